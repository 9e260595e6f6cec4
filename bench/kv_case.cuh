/* kv_case.cuh - the cache that attend_bench.cu and prompt_bench.cu attend to: generated rows */
#ifndef FATHOM_BENCH_KV_CASE_CUH
#define FATHOM_BENCH_KV_CASE_CUH

#include "backend/cuda/kv.cuh"

static __host__ __device__ uint32_t mix(uint64_t x)
{
    x = (x + 0x9e3779b97f4a7c15ull) * 0xbf58476d1ce4e5b9ull;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
    return (uint32_t)(x >> 32) ^ (uint32_t)x;
}

static __device__ float uniform(uint64_t i)
{
    return (float)mix(i) * 0x1p-31f - 1.0f;
}

/* Block: one row. Scales differ by up to 2^3 so that one used in a wrong place shows. */
__global__ void fill_cache_kernel(struct kv_layer l)
{
    const uint64_t slot = blockIdx.x, seed = slot * 1024;
    char *row = kv_row(l, (int)slot);
    for (int i = (int)threadIdx.x; i < KV_ROW; i += (int)blockDim.x) {
        float v = uniform(seed + (uint64_t)i);
        if (l.type == KV_TYPE_BF16) {
            ((bf16 *)row)[i] = __float2bfloat16_rn(v);
        } else if (i < KV_LATENT) {
            ((uint8_t *)row)[i] = float_to_e4m3(v * 448.0f);
        } else {
            ((bf16 *)(row + KV_FP8_ROPE_OFFSET))[i - KV_LATENT] = __float2bfloat16_rn(v);
        }
    }
    if (l.type == KV_TYPE_FP8 && threadIdx.x < 4) {
        ((float *)(row + KV_FP8_SCALES_OFFSET))[threadIdx.x] =
            exp2f(-9.0f - (float)(mix(seed + threadIdx.x + 600) % 4u));
    }
}

#endif
