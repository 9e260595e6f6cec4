/* absorb.cuh - the absorbed queries of prompt rows on sm_90a */
#ifndef FATHOM_BACKEND_CUDA_SM90_ABSORB_CUH
#define FATHOM_BACKEND_CUDA_SM90_ABSORB_CUH

#include "backend/cuda/cuda_int.cuh"

struct absorb_args {
    const float *query; /* [T][n_query]: heads of QUERY_DIM, the part without position first */
    uint32_t n_query, n_head, n_token;
    const int32_t *pos; /* [T] */
    int32_t skip_below; /* rows at positions below are left alone */
    const bf16 *kv_b;   /* [H][KV_B_ROWS][512], the keys' rows first */
    bf16 *h;            /* [T][H][KV_ROW], of which the first 512 of each row are written */
};

/* absorb_sm90_init - raises the kernel's limits
 *
 * Needs    to be called once for a device, before absorb_sm90
 * Errors   what the runtime says */
gpu_error absorb_sm90_init(void);

/* absorb_sm90 - W_UK^T q of every head, inputs rounded to bf16
 *
 * Needs    n_query a multiple of 4; query and h aligned to 16 bytes
 * Errors   cudaErrorInvalidValue if a tensor map cannot be made, or what the launch gives
 * Numerics a sum is one chain over the 128 terms on the warpgroup's tensor cores, 16 at a time */
fathom_err absorb_sm90(struct cuda_backend *c, const struct absorb_args &a);

#endif
