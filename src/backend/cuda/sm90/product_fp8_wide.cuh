/* product_fp8_wide.cuh - FP8 matrix product of experts with many rows on sm_90a */
#ifndef FATHOM_BACKEND_CUDA_SM90_PRODUCT_FP8_WIDE_CUH
#define FATHOM_BACKEND_CUDA_SM90_PRODUCT_FP8_WIDE_CUH

#include "backend/cuda/product.cuh"

/* product_fp8_wide_init - raises the kernels' limits
 *
 * Needs    to be called once for a device, before product_fp8_wide
 * Errors   what the runtime says */
gpu_error product_fp8_wide_init(void);

/* product_fp8_wide - out_h or out_q and out_scale of struct product_args as product_fp8_sm90 makes
 * them, for tasks of at most PRODUCT_WIDE_TILE rows
 *
 * n_task   tasks at most, *a.n_task the true count
 * limits   of the device: n_sm
 * Needs    what product_fp8_sm90 does; in_listed, out_h or out_q, and K in one part
 *          (fp8_k_part_count)
 * Edge     rows past a task, and columns past n, are not written
 * Errors   cudaErrorInvalidValue if a tensor map cannot be made, or what the launch gives
 * Numerics the bits of product_fp8_sm90 */
gpu_error product_fp8_wide(const struct product_args &a, uint32_t n_task,
                           const struct sm90_limits &limits, gpu_stream stream);

#endif
