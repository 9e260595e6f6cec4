/* product_bf16.cuh - BF16 matrix product for many rows on sm_90a */
#ifndef FATHOM_BACKEND_CUDA_SM90_PRODUCT_BF16_CUH
#define FATHOM_BACKEND_CUDA_SM90_PRODUCT_BF16_CUH

#include "backend/cuda/product.cuh"

/* product_bf16_sm90_init - raises the kernels' limits
 *
 * Needs    to be called once for a device, before product_bf16_sm90
 * Errors   what the runtime says */
gpu_error product_bf16_sm90_init(void);

/* product_bf16_sm90 - out[row][n] of struct product_args from rows h, plain or mapped
 *
 * n_tile   plain: tiles of PRODUCT_LARGE_TILE rows; mapped: tasks at most, *a.n_task the true count
 * n_matrix matrices, w_stride bytes from one to the next
 * limits   of the device: n_sm
 * Needs    k a multiple of 64, n of 8, out_stride of 2; w and h aligned to 16 bytes, out to 8;
 *          mapped: tasks of at most PRODUCT_LARGE_TILE rows
 * Edge     rows past n_token or past a task, and columns past n, are not written
 * Errors   cudaErrorInvalidValue if a tensor map cannot be made, or what the launch gives
 * Numerics a row's bits depend on n, k, its input and the weights alone, and are those of
 *          generic/product_bf16.cu; K is cut as k_parts.h says */
gpu_error product_bf16_sm90(const struct product_args &a, uint32_t n_tile, uint32_t n_matrix,
                            const struct sm90_limits &limits, gpu_stream stream);

#endif
