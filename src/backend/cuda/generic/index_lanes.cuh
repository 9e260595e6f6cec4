/* index_lanes.cuh - rope, and index queries and keys in registers */
#ifndef FATHOM_BACKEND_CUDA_GENERIC_INDEX_LANES_CUH
#define FATHOM_BACKEND_CUDA_GENERIC_INDEX_LANES_CUH

#include "backend/cuda/common.cuh"
#include "backend/cuda/cuda_int.cuh"

/* Rope: a pair by the angle whose sine and cosine are s and c; the same bits in every kernel */
static __device__ __forceinline__ void rotate(float &a, float &b, float s, float c)
{
    const float x = fmaf(a, c, -(b * s));
    b = fmaf(a, s, b * c);
    a = x;
}

/* ---- 128 values of an index query or key ----
 *
 * Eight lanes have them: lane 8 n + l holds values 32 q + 4 l + j of the n-th at [4 q + j]. */

enum { INDEX_LANES = 8, INDEX_EACH = KV_INDEX_DIM / INDEX_LANES };
static_assert(INDEX_EACH == 16, "four times four values a lane");
static_assert(WARP % INDEX_LANES == 0, "shuffles stay in a warp");
static_assert((int)KV_INDEX_DIM == (int)FP8_GROUP, "one scale an index key or query");
static_assert(KV_ROPE / 2 == 4 * INDEX_LANES, "four pairs of rope a lane");
static_assert(KV_ROPE / 2 <= WARP, "a lane has a pair's angle");

static __device__ __forceinline__ void load_index(float (&v)[INDEX_EACH], const float *from)
{
    const int l = (int)threadIdx.x % INDEX_LANES;
#pragma unroll
    for (int q = 0; q < 4; q++) *(float4 *)(v + 4 * q) = *(const float4 *)(from + 32 * q + 4 * l);
}

/* Over the eight lanes */
static __device__ __forceinline__ float index_sum(float v)
{
#pragma unroll
    for (int m = 1; m < INDEX_LANES; m <<= 1) v += shfl_xor(v, m);
    return v;
}

/* Rope's angles of one token: lane i has pair i's. */
struct angles {
    float s, c;
};

static __device__ __forceinline__ struct angles angles_at(const float *freq, int position)
{
    struct angles x;
    DCHECK(position >= 0);
    sincosf((float)position * freq[threadIdx.x % WARP], &x.s, &x.c);
    return x;
}

/* The indexer's rope, on the first 64 values: which four pairs a lane has, */
static __device__ __forceinline__ int index_pair(int k, bool interleaved)
{
    const int l = (int)threadIdx.x % INDEX_LANES;
    DCHECK(k >= 0 && k < 4);
    return interleaved ? 16 * (k / 2) + 2 * l + k % 2 : 4 * l + k;
}

/* and where their values are; s, c: of each. */
static __device__ __forceinline__ void rotate_index(float (&v)[INDEX_EACH], const float (&s)[4],
                                                    const float (&c)[4], bool interleaved)
{
#pragma unroll
    for (int k = 0; k < 4; k++) {
        if (interleaved) {
            rotate(v[k / 2 * 4 + k % 2 * 2], v[k / 2 * 4 + k % 2 * 2 + 1], s[k], c[k]);
        } else {
            rotate(v[k], v[k + 4], s[k], c[k]);
        }
    }
}

/* Walsh-Hadamard transform over sqrt(128), natural order */
static __device__ __forceinline__ void hadamard(float (&v)[INDEX_EACH])
{
#pragma unroll
    for (int m = 1; m < INDEX_EACH; m <<= 1) {
#pragma unroll
        for (int i = 0; i < INDEX_EACH; i++) {
            if (i & m) continue;
            const float x = v[i], y = v[i + m];
            v[i] = x + y;
            v[i + m] = x - y;
        }
    }
#pragma unroll
    for (int m = 1; m < INDEX_LANES; m <<= 1) {
        const float sign = threadIdx.x & (unsigned)m ? -1.0f : 1.0f;
#pragma unroll
        for (int i = 0; i < INDEX_EACH; i++) v[i] = fmaf(sign, v[i], shfl_xor(v[i], m));
    }
#pragma unroll
    for (int i = 0; i < INDEX_EACH; i++) v[i] *= 0.08838834764831845f;
}

/* The scale of their codes, the same in the eight lanes */
static __device__ __forceinline__ float index_scale(const float (&v)[INDEX_EACH])
{
    float amax = 0.0f;
#pragma unroll
    for (int i = 0; i < INDEX_EACH; i++) amax = fmaxf(amax, fabsf(v[i]));
#pragma unroll
    for (int m = 1; m < INDEX_LANES; m <<= 1) amax = fmaxf(amax, shfl_xor(amax, m));
    return fp8_scale(amax);
}

static __device__ __forceinline__ void store_index_codes(uint8_t *to, const float (&v)[INDEX_EACH],
                                                         float scale)
{
    const int l = (int)threadIdx.x % INDEX_LANES;
#pragma unroll
    for (int q = 0; q < 4; q++) *(uint32_t *)(to + 32 * q + 4 * l) = pack_e4m3(v + 4 * q, scale);
}

static __device__ __forceinline__ void store_index_values(float *to, const float (&v)[INDEX_EACH])
{
    const int l = (int)threadIdx.x % INDEX_LANES;
#pragma unroll
    for (int q = 0; q < 4; q++) *(float4 *)(to + 32 * q + 4 * l) = *(const float4 *)(v + 4 * q);
}

#endif
