/* index_topk.cuh - what the kernels that choose rows by index scores are given */
#ifndef FATHOM_BACKEND_CUDA_GENERIC_INDEX_TOPK_CUH
#define FATHOM_BACKEND_CUDA_GENERIC_INDEX_TOPK_CUH

#include "backend/cuda/generic/collect.cuh"
#include "backend/cuda/kv.cuh"

struct topk_args {
    float *score; /* [piece][stride] */
    uint32_t stride, first_token, topk;
    const int32_t *pos, *request, *page_table;
    uint32_t page_stride;
    int32_t *slots, *counts;
    uint32_t run, rank, world; /* world > 1: tokens are own rows, and are written where they are in
                                  the step */
};

/* Where a token's choice is written. */
static __device__ __forceinline__ uint32_t topk_row(const struct topk_args &a, uint32_t token)
{
    return a.world > 1 ? own_row(token, a.run, a.rank, a.world) : token;
}

/* Floats in the order of unsigned integers, none of which is 0; NaN counts as -inf, -0 as 0. */
static __device__ __forceinline__ uint32_t order_key(float v)
{
    const uint32_t u = __float_as_uint(v != v ? -INFINITY : v + 0.0f);
    return u & 0x80000000u ? ~u : u | 0x80000000u;
}

#endif
