/* product_few.cuh - matrix product of codes for few rows on sm_90a, of E2M1 and of BF16 */
#ifndef FATHOM_BACKEND_CUDA_SM90_PRODUCT_FEW_CUH
#define FATHOM_BACKEND_CUDA_SM90_PRODUCT_FEW_CUH

#include "backend/cuda/product.cuh"

/* product_few_init - raises the kernels' limits and fills limits->few
 *
 * Needs    to be called once for a device, before product_few
 * Errors   what the runtime says */
gpu_error product_few_init(struct sm90_limits *out);

/* product_few - out[row][n] of struct product_args, plain or mapped, or mapped out_h, on the tensor
 * cores
 *
 * tile     rows that a block takes at once: 8, 16, 32 or 64; mapped: tasks of at most so many
 * n_tile   plain: tiles of rows; mapped: tasks at most, *a.n_task the true count
 * limits   of the current device: n_sm, and what product_few_init fills
 * Needs    k a multiple of 128, n of 16, row0 and col0 0; w and q aligned to 16 bytes; mapped:
 *          w tiled
 * Edge     rows past n_token or past a task, and columns past n, are not written
 * Errors   cudaErrorInvalidValue if a tensor map cannot be made, or what the launch gives
 * Numerics the bits of product_fp8_sm90, of int8 those of product_i8, for every number of rows */
gpu_error product_few(const struct product_args &a, uint32_t tile, uint32_t n_tile,
                      const struct sm90_limits &limits, gpu_stream stream);

/* product_few_u4 - product_few for a.pack of U4, in groups of 32, 64 or multiples of 128; of any
 *          number of tiles of up to 64 rows
 * product_few_u4_init - product_few_init's part for it */
gpu_error product_few_u4_init(void);
gpu_error product_few_u4(const struct product_args &a, uint32_t tile, uint32_t n_tile,
                         const struct sm90_limits &limits, gpu_stream stream);

/* product_few_e2m1 - product_few for a.pack of E2M1 and inputs a.h; of any number of tiles of up to
 *          64 rows, with the bits of product_bf16
 * product_few_e2m1_init - product_few_init's part for it */
gpu_error product_few_e2m1_init(void);
gpu_error product_few_e2m1(const struct product_args &a, uint32_t tile, uint32_t n_tile,
                           const struct sm90_limits &limits, gpu_stream stream);

/* product_few_bf16 - product_few for inputs a.h and BF16 weights row by row, n_matrix of them where
 *          rows are mapped, else one; of any number of tiles of up to 64 rows, with the bits of
 *          product_bf16
 * product_few_bf16_init - product_few_init's part for it */
gpu_error product_few_bf16_init(void);
gpu_error product_few_bf16(const struct product_args &a, uint32_t tile, uint32_t n_tile,
                           uint32_t n_matrix, const struct sm90_limits &limits, gpu_stream stream);

/* product_few_int8 - product_few for int8
 * product_few_int8_init - product_few_init's part for it */
gpu_error product_few_int8_init(void);
gpu_error product_few_int8(const struct product_args &a, uint32_t tile, uint32_t n_tile,
                           const struct sm90_limits &limits, gpu_stream stream);

#endif
