/* down_few.cuh - the experts' second half for few tokens on sm_90a: SwiGLU, down, the sum of a
 * token's rows */
#ifndef FATHOM_BACKEND_CUDA_SM90_DOWN_FEW_CUH
#define FATHOM_BACKEND_CUDA_SM90_DOWN_FEW_CUH

#include "backend/cuda/cuda_int.cuh"

/* y[t] = sum over the rows r of a token, in ascending order, of weight(t, r) * W(t, r) mid(t, r),
 * and `shared` where it is not NULL; mid = silu(gate) * up in codes. */
struct down_args {
    enum codes codes;  /* of mid; w is of the same */
    const uint8_t *w;  /* [expert][n][k] */
    size_t w_stride;   /* bytes from expert to expert */
    struct pack4 pack; /* w is U4, packed, and has no scales below */
    const float *w_scale;
    size_t w_scale_step;    /* floats from expert to expert */
    uint32_t scale_stride;  /* floats from 128 outputs to the next */
    const float *row_scale; /* as of struct product_args */
    size_t row_scale_step;
    uint32_t n;
    uint32_t k;
    uint32_t n_token;
    uint32_t rows_per_token;
    uint32_t n_used;        /* rows with an expert of `experts`; one more is the last expert's */
    uint32_t n_expert;      /* of w */
    const int32_t *experts; /* [n_token][n_used] */
    const float *weights;   /* likewise; the last row's is 1 */
    const float *gate_up;   /* [n_token][rows_per_token][gate | up] */
    const float *shared;    /* [n_token][n] or NULL */
    float *y;               /* [n_token][n] */
};

/* K lines of all rows of a token, at most. */
enum { DOWN_K_LINES_MAX = 32, DOWN_TOKENS_MAX = 8 };

/* down_few_init - raises the kernels' limits; once for a device, before down_few */
gpu_error down_few_init(void);

/* down_few - y of struct down_args
 *
 * Needs    k a multiple of 128, n of 16, rows_per_token * k / 128 at most DOWN_K_LINES_MAX; w
 *          aligned to 16 bytes and tiled, or packed as product_u4_takes it; experts and weights
 *          written by a kernel that has ended when the one in front of this one releases it
 * Errors   cudaErrorInvalidValue if a tensor map cannot be made, or what the launch gives
 * Numerics the bits of SwiGLU, product_few and the sum over rows as kernels of their own */
gpu_error down_few(const struct down_args &a, gpu_stream stream);

#endif
