/* product_u4.cuh - matrix product of packed U4 weights for many rows on sm_90a */
#ifndef FATHOM_BACKEND_CUDA_SM90_PRODUCT_U4_CUH
#define FATHOM_BACKEND_CUDA_SM90_PRODUCT_U4_CUH

#include "backend/cuda/product.cuh"

/* product_u4_takes - whether product_u4_sm90 takes matrices packed so: U4 in groups of 64 or of a
 * multiple of 128 */
bool product_u4_takes(const struct pack4 &p);

/* product_u4_sm90_init - raises the kernels' limits
 *
 * Needs    to be called once for a device, before product_u4_sm90
 * Errors   what the runtime says */
gpu_error product_u4_sm90_init(void);

/* product_u4_sm90 - out, out_h or out_q of struct product_args, plain or mapped, on tensor cores
 *
 * n_tile   plain: tiles of PRODUCT_LARGE_TILE rows; mapped: tasks of at most so many rows at most,
 *          *a.n_task the true count
 * limits   of the current device: n_sm
 * Needs    what product_fp8_sm90 needs, but weights packed as product_u4_takes has it
 * Errors   cudaErrorInvalidValue if a tensor map cannot be made, or what the launch gives
 * Numerics the bits of product_few_u4, for every number of rows */
gpu_error product_u4_sm90(const struct product_args &a, uint32_t n_tile,
                          const struct sm90_limits &limits, gpu_stream stream);

#endif
