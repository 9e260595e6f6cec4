/* out.cuh - what the kernels that make the heads' values are given */
#ifndef FATHOM_BACKEND_CUDA_GENERIC_OUT_CUH
#define FATHOM_BACKEND_CUDA_GENERIC_OUT_CUH

#include "backend/cuda/cuda_int.cuh"

struct value_args {
    const bf16 *z_h; /* [T][H][512] */
    const float *z_f;
    const bf16 *kv_b; /* [H][KV_B_ROWS][512], the values' rows behind NOPE_DIM others */
    const float *kv_b_f;
    const int32_t *pos;
    struct expanded_rows expanded;
    uint32_t n_head, n_token;
    float *f; /* [T][H * 128], or */
    bf16 *h;  /* not NULL: rounded, or */
    uint8_t *q;
    float *scale;
};

/* out_fast.cu, of the fast path:
 *
 * values_fast - values of v's rows, on the tensor cores
 * values_of_units - of up to LEFT_TOKENS_MAX rows that attention has left as units
 * values_of_prompts - of the n_token prompt rows behind v's: those in expanded form as attention
 *                     left them, unless their codes are `there`, and, if there are any, those of
 *                     the absorbed form */
fathom_err values_fast(struct cuda_backend *c, const struct value_args &v);
fathom_err values_of_units(struct cuda_backend *c, const struct value_args &v,
                           const struct left_units &left);
fathom_err values_of_prompts(struct cuda_backend *c, struct value_args v, uint32_t n_token,
                             bool there, bool some_absorbed);

#endif
