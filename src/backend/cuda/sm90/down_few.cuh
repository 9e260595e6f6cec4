/* down_few.cuh - the experts' second half for few tokens on sm_90a: SwiGLU, down, the sum of a
 * token's rows */
#ifndef FATHOM_BACKEND_CUDA_SM90_DOWN_FEW_CUH
#define FATHOM_BACKEND_CUDA_SM90_DOWN_FEW_CUH

#include "backend/cuda/sm90/down_args.cuh"

/* down_few_init - raises the kernels' limits; once for a device, before down_few */
gpu_error down_few_init(void);

/* down_few - y of struct down_args
 *
 * Needs    k a multiple of 128, n of 16, rows_per_token * k / 128 at most DOWN_K_LINES_MAX; w
 *          aligned to 16 bytes and tiled, or packed as product_u4_takes it or as E2M1; experts and
 *          weights written by a kernel that has ended when the one in front of this one releases it
 * Errors   cudaErrorInvalidValue if a tensor map cannot be made, or what the launch gives
 * Numerics the bits of SwiGLU, product_few and the sum over rows as kernels of their own */
gpu_error down_few(const struct down_args &a, gpu_stream stream);

#endif
