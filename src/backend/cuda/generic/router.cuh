/* router.cuh - what the kernels that score experts share */
#ifndef FATHOM_BACKEND_CUDA_GENERIC_ROUTER_CUH
#define FATHOM_BACKEND_CUDA_GENERIC_ROUTER_CUH

#include "backend/cuda/common.cuh"
#include "backend/cuda/cuda_int.cuh"
#include "backend/cuda/k_parts.h"

enum { PLANES = 3, K_LINE = K_LINE_BYTES / 2, K_PART_LINES = ROUTER_K_PART_LINES };
/* Up to which kernels for few tokens run, of the scores and of the choice. */
enum { ROUTER_FEW_TOKENS = 64 };
static_assert(PLANES * 8 >= 24, "three bf16 mantissas hold one of f32");

struct router_args_device {
    struct matrix w;
    const float *x; /* [T][D] */
    uint32_t n_token;
    uint32_t pitch; /* of a token's scores */
    float *score;   /* [K part][T][pitch] */
};

static __device__ __forceinline__ float *score_row(const struct router_args_device &a,
                                                   uint32_t k_part, uint32_t token)
{
    DCHECK(token < a.n_token);
    return a.score + ((size_t)k_part * a.n_token + token) * a.pitch;
}

/* Two f32 as three bf16 pairs whose sum is exact: 3 times 8 bits of mantissa. */
static __device__ __forceinline__ void split_planes(float x, float y, uint32_t (&planes)[PLANES])
{
#pragma unroll
    for (int i = 0; i < PLANES; i++) {
        planes[i] = pack_bf16(x, y);
        x -= __uint_as_float(planes[i] << 16);
        y -= __uint_as_float(planes[i] & 0xffff0000u);
    }
}

/* router_fast.cu: scores on the tensor cores, n_k_part parts of them; of BF16 weights, rows of
 * whole K lines */
fathom_err router_fast(struct cuda_backend *c, const struct router_args_device &a,
                       uint32_t n_k_part);

#endif
