/* int8_codes.cuh - int8 codes of inputs: the one way in which they are made */
#ifndef FATHOM_BACKEND_CUDA_GENERIC_INT8_CODES_CUH
#define FATHOM_BACKEND_CUDA_GENERIC_INT8_CODES_CUH

#include "backend/cuda/common.cuh"

/* max(largest magnitude, 1e-10) / 127; NaN where a value is not finite. bits: the largest of the
 * magnitudes' bits, which are in the order of their values, infinity and NaN last. */
static __device__ __forceinline__ float int8_scale(uint32_t bits)
{
    if (bits >= 0x7f800000u) return __uint_as_float(0x7fc00000u);
    return fmaxf(__uint_as_float(bits), 1e-10f) / 127.0f;
}

static __device__ __forceinline__ uint32_t largest_bits(const float4 &v)
{
    const uint32_t mask = 0x7fffffffu;
    return max(max(__float_as_uint(v.x) & mask, __float_as_uint(v.y) & mask),
               max(__float_as_uint(v.z) & mask, __float_as_uint(v.w) & mask));
}

static __device__ __forceinline__ uint32_t warp_most(uint32_t bits)
{
#pragma unroll
    for (int d = 1; d < WARP; d <<= 1) bits = max(bits, (uint32_t)shfl_xor((int)bits, d));
    return bits;
}

/* The largest of all threads of a block; scratch has a float a warp. */
static __device__ __forceinline__ uint32_t block_most(uint32_t bits, float *scratch)
{
    const uint32_t n_warp = blockDim.x / WARP;
    bits = warp_most(bits);
    __syncthreads(); /* who used scratch before has read it */
    if (threadIdx.x % WARP == 0) scratch[threadIdx.x / WARP] = __uint_as_float(bits);
    __syncthreads();
    for (uint32_t i = 0; i < n_warp; i++) bits = max(bits, __float_as_uint(scratch[i]));
    return bits;
}

/* A value that is no number becomes some code: its scale is NaN. */
static __device__ __forceinline__ uint32_t int8_code(float v, float scale)
{
    const float q = fminf(fmaxf(rintf(v / scale), -127.0f), 127.0f);
    return (uint32_t)(int)q & 0xffu;
}

static __device__ __forceinline__ uint32_t int8_codes(const float4 &v, float scale)
{
    return int8_code(v.x, scale) | int8_code(v.y, scale) << 8 | int8_code(v.z, scale) << 16 |
           int8_code(v.w, scale) << 24;
}

/* Codes of 128 values held 4 a lane by one warp, with this scale. */
static __device__ __forceinline__ void store_int8(const float4 &v, float s, uint8_t *q,
                                                  float *scale)
{
    const int lane = (int)threadIdx.x % WARP;
    *(uint32_t *)(q + lane * 4) = int8_codes(v, s);
    if (lane == 0) *scale = s;
}

#endif
