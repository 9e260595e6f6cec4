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

#endif
