/* common.cuh - reductions, element conversion and small helpers of every kernel file */
#ifndef FATHOM_BACKEND_CUDA_COMMON_CUH
#define FATHOM_BACKEND_CUDA_COMMON_CUH

#include <cuda_fp8.h>

#include "backend/cuda/port.cuh"

#define FP8_MAX 448.0f
#define FP8_AMAX_MIN 1e-4f

static __device__ __forceinline__ float warp_sum(float v)
{
#pragma unroll
    for (int d = WARP / 2; d > 0; d >>= 1) v += shfl_xor(v, d);
    return v;
}

static __device__ __forceinline__ float warp_max(float v)
{
#pragma unroll
    for (int d = WARP / 2; d > 0; d >>= 1) v = fmaxf(v, shfl_xor(v, d));
    return v;
}

/* Sum over the block, the same value in every thread; `scratch` holds one float a warp plus one. */
static __device__ __forceinline__ float block_sum(float v, float *scratch)
{
    int warp = (int)threadIdx.x / WARP, n_warp = (int)blockDim.x / WARP;
    v = warp_sum(v);
    __syncthreads();
    if (threadIdx.x % WARP == 0) scratch[warp] = v;
    __syncthreads();
    float sum = 0.0f;
    for (int i = 0; i < n_warp; i++) sum += scratch[i];
    return sum;
}

static __device__ __forceinline__ float e4m3_to_float(uint8_t v)
{
    __half_raw h = __nv_cvt_fp8_to_halfraw(v, __NV_E4M3);
    return __half2float(*(__half *)&h);
}

static __device__ __forceinline__ uint8_t float_to_e4m3(float v)
{
    return (uint8_t)__nv_cvt_float_to_fp8(v, __NV_SATFINITE, __NV_E4M3);
}

static __device__ __forceinline__ float2 e4m3x2_to_float2(uint16_t v)
{
    __half2_raw h = __nv_cvt_fp8x2_to_halfraw2(v, __NV_E4M3);
    return __half22float2(*(__half2 *)&h);
}

/* The scale of a group with the largest magnitude amax: amax / 448 rounded up to a power of two */
static __device__ __forceinline__ float fp8_scale(float amax)
{
    uint32_t u = __float_as_uint(fmaxf(amax, FP8_AMAX_MIN) / FP8_MAX);
    return __uint_as_float((u + 0x7fffffu) & 0x7f800000u);
}

/* Four values as codes, the first lowest. The scale is a power of two: nothing is rounded twice. */
static __device__ __forceinline__ uint32_t pack_e4m3(const float v[4], float scale)
{
    const float inverse = 1.0f / scale;
    return (uint32_t)float_to_e4m3(v[0] * inverse) | (uint32_t)float_to_e4m3(v[1] * inverse) << 8 |
           (uint32_t)float_to_e4m3(v[2] * inverse) << 16 |
           (uint32_t)float_to_e4m3(v[3] * inverse) << 24;
}

static __device__ __forceinline__ float to_bf16_and_back(float v)
{
    return __bfloat162float(__float2bfloat16_rn(v));
}

static __device__ __forceinline__ uint32_t pack_bf16(float lo, float hi)
{
    __nv_bfloat162 p = __floats2bfloat162_rn(lo, hi);
    return *(uint32_t *)&p;
}

static __device__ __forceinline__ float silu(float x)
{
    return x / (1.0f + __expf(-x));
}

#endif
