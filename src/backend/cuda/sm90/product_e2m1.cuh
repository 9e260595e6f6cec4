/* product_e2m1.cuh - matrix product of packed E2M1 weights for many rows on sm_90a */
#ifndef FATHOM_BACKEND_CUDA_SM90_PRODUCT_E2M1_CUH
#define FATHOM_BACKEND_CUDA_SM90_PRODUCT_E2M1_CUH

#include "backend/cuda/product.cuh"

/* product_e2m1_sm90_init - raises the kernels' limits
 *
 * Needs    to be called once for a device, before product_e2m1_sm90
 * Errors   what the runtime says */
gpu_error product_e2m1_sm90_init(void);

/* product_e2m1_sm90 - out[row][n], or mapped out_h, of struct product_args from rows h
 *
 * n_tile   plain: tiles of PRODUCT_LARGE_TILE rows; mapped: tasks of at most so many rows at most,
 *          *a.n_task the true count
 * limits   of the current device: n_sm
 * Needs    k a multiple of 128, n and out_stride of 4; w, h, out and out_h aligned to 16 bytes; no
 *          in_rows
 * Edge     rows past n_token or past a task, and columns past n, are not written
 * Errors   cudaErrorInvalidValue if a tensor map cannot be made, or what the launch gives
 * Numerics the bits of product_few_e2m1, for every number of rows; in out_h rounded */
gpu_error product_e2m1_sm90(const struct product_args &a, uint32_t n_tile,
                            const struct sm90_limits &limits, gpu_stream stream);

#endif
