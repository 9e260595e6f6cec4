/* common.cuh - reductions, element conversion and small helpers of every kernel file */
#ifndef FATHOM_BACKEND_CUDA_COMMON_CUH
#define FATHOM_BACKEND_CUDA_COMMON_CUH

#include "backend/cuda/cuda_int.cuh"
#include "backend/cuda/k_parts.h"
#include "backend/cuda/port.cuh"
#include "backend/cuda/ptx.cuh"

#define FP8_AMAX_MIN 1e-4f

static_assert(FP8_GROUP == 4 * WARP, "a warp holds a group, four values a lane");
static_assert((int)FP8_GROUP == (int)SCALE_BLOCK,
              "a K line of FP8 has one scale of weights and of inputs");
static_assert((int)FP8_GROUP == (int)KV_FP8_GROUP, "cache rows are quantized as inputs are");
static_assert((int)FP8_GROUP == (int)K_LINE_BYTES, "a K line of codes is a group");

static __device__ __forceinline__ float warp_sum(float v)
{
#pragma unroll
    for (int d = WARP / 2; d > 0; d >>= 1) v += shfl_xor(v, d);
    return v;
}

/* The warp's number in its block, in a way that the compiler knows to be the same in all lanes. */
static __device__ __forceinline__ int warp_id(void)
{
    return shfl((int)threadIdx.x / WARP, 0);
}

static __device__ __forceinline__ float warp_max(float v)
{
#pragma unroll
    for (int d = WARP / 2; d > 0; d >>= 1) v = fmaxf(v, shfl_xor(v, d));
    return v;
}

/* Sum over the block, the same value in every thread; `scratch` holds one float a warp. */
static __device__ __forceinline__ float block_sum(float v, float *scratch)
{
    const uint32_t warp = threadIdx.x / WARP, lane = threadIdx.x % WARP;
    DCHECK(blockDim.x % WARP == 0 && blockDim.x / WARP <= WARP); /* a lane reads a warp's sum */
    v = warp_sum(v);
    __syncthreads();
    if (lane == 0) scratch[warp] = v;
    __syncthreads();
    return warp_sum(lane < blockDim.x / WARP ? scratch[lane] : 0.0f);
}

/* A stored element before its scale, as tensor_view_row has it. */
template <enum dtype DT>
static __device__ __forceinline__ float stored_value(const void *data, size_t at)
{
    static_assert(DT == DTYPE_F32 || DT == DTYPE_BF16 || DT == DTYPE_F8_E4M3,
                  "what weight.cu stores");
    if (DT == DTYPE_F32) return ((const float *)data)[at];
    if (DT == DTYPE_BF16) return bf16_to_float(((const bf16 *)data)[at]);
    return e4m3_to_float(((const uint8_t *)data)[at]);
}

/* The scale of a group with the largest magnitude amax: amax / 448 rounded up to a power of two.
 * 448 is 1.75 * 2^8: an amax up to 1.75 * 2^e gives 2^(e - 8), a larger one the next. */
static __device__ __forceinline__ float fp8_scale(float amax)
{
    uint32_t u = __float_as_uint(fmaxf(amax, FP8_AMAX_MIN));
    DCHECK(u > 8u << 23); /* the scale's exponent stays above 0 */
    return __uint_as_float(((u + 0x1fffffu) & 0x7f800000u) - (8u << 23));
}

/* 1 / s of a power of two, exactly */
static __device__ __forceinline__ float fp8_inverse(float s)
{
    DCHECK(s > 0.0f && (__float_as_uint(s) & 0x7fffffu) == 0);
    return __uint_as_float((254u << 23) - __float_as_uint(s));
}

/* Four values as codes, the first lowest. The scale is a power of two: nothing is rounded twice. */
static __device__ __forceinline__ uint32_t pack_e4m3(const float v[4], float scale)
{
    const float inverse = fp8_inverse(scale);
    return (uint32_t)float2_to_e4m3x2(v[0] * inverse, v[1] * inverse) |
           (uint32_t)float2_to_e4m3x2(v[2] * inverse, v[3] * inverse) << 16;
}

/* 16 bytes at 16 t of each half of a K line of 128 bytes, as the products take them */
struct alignas(16) k_line_words {
    uint32_t lo[4], hi[4];
};
static_assert(sizeof(struct k_line_words) * 4 == K_LINE_BYTES, "four lanes hold a K line");

static __device__ __forceinline__ void load_words(struct k_line_words &to, const void *from)
{
    DCHECK((uintptr_t)from % 16 == 0);
    *(uint4 *)to.lo = *(const uint4 *)from;
    *(uint4 *)to.hi = *(const uint4 *)((const char *)from + 64);
}

static __device__ __forceinline__ float to_bf16_and_back(float v)
{
    return bf16_to_float(float_to_bf16(v));
}

/* Two bf16, the lower one first. */
static __device__ __forceinline__ float2 bf16x2_to_float2(uint32_t v)
{
    return make_float2(__uint_as_float(v << 16), __uint_as_float(v & 0xffff0000u));
}

/* Within a few units in the last place; 0 below -88. */
static __device__ __forceinline__ float silu(float x)
{
    const float log2_e = 1.44269504f;
    return x * reciprocal_approx(1.0f + exp2_approx(-log2_e * x));
}

static __device__ __forceinline__ float4 swiglu(const float4 &g, const float4 &u)
{
    return make_float4(silu(g.x) * u.x, silu(g.y) * u.y, silu(g.z) * u.z, silu(g.w) * u.w);
}

/* A lane's four codes of 128 values held 4 a lane by one warp, and the group's scale. */
static __device__ __forceinline__ uint32_t quantize_group(const float4 &v, float *scale)
{
    const float amax = fmaxf(fmaxf(fabsf(v.x), fabsf(v.y)), fmaxf(fabsf(v.z), fabsf(v.w)));
    const float s = fp8_scale(warp_max(amax)), inverse = fp8_inverse(s);
    *scale = s;
    return (uint32_t)float2_to_e4m3x2(v.x * inverse, v.y * inverse) |
           (uint32_t)float2_to_e4m3x2(v.z * inverse, v.w * inverse) << 16;
}

/* The sum of four codes' values. */
static __device__ __forceinline__ float codes_sum(uint32_t codes)
{
    const float2 lo = e4m3x2_to_float2((uint16_t)codes);
    const float2 hi = e4m3x2_to_float2((uint16_t)(codes >> 16));
    return lo.x + lo.y + (hi.x + hi.y);
}

/* What takes a zero off the products of U4 weights (sm90/u4.cuh), of a group of inputs: 2^-9 times
 * its scale and the sum of its codes, of which a lane of each n_lane neighbours brings that of
 * equally many. Values are multiples of 2^-9 up to 448, so sums of up to 64 are exact, and of 128
 * rounded once: whoever makes them, they have the same bits. */
static __device__ __forceinline__ float input_sum(float sum, uint32_t n_lane, float scale)
{
    if (n_lane == WARP) return (float)warp_total((int)(sum * 512.0f)) * (scale * 0x1p-18f);
    for (uint32_t d = 1; d < n_lane; d *= 2) sum += shfl_xor(sum, (int)d);
    return sum * (scale * 0x1p-9f);
}

#endif
