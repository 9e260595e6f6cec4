/* down_args.cuh - what down_few.cuh makes, and of how many tokens and K lines at most */
#ifndef FATHOM_BACKEND_CUDA_SM90_DOWN_ARGS_CUH
#define FATHOM_BACKEND_CUDA_SM90_DOWN_ARGS_CUH

#include "backend/cuda/cuda_int.cuh"

/* y[t] = sum over the rows r of a token, in ascending order, of weight(t, r) * W(t, r) mid(t, r),
 * and `shared` where it is not NULL; mid = silu(gate) * up in codes, or in bf16 where W is E2M1. */
struct down_args {
    enum codes codes;       /* of mid; w is of the same */
    const uint8_t *w;       /* [expert][n][k] */
    size_t w_stride;        /* bytes from expert to expert */
    struct pack4 pack;      /* w is packed: U4, which has no scales below, or E2M1, */
    const float *w_scale;   /* of which a tile of 64 outputs has one */
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

#endif
