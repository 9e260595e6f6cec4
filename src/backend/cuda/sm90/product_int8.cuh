/* product_int8.cuh - int8 matrix product for many rows on sm_90a */
#ifndef FATHOM_BACKEND_CUDA_SM90_PRODUCT_INT8_CUH
#define FATHOM_BACKEND_CUDA_SM90_PRODUCT_INT8_CUH

#include "backend/cuda/product.cuh"

/* product_int8_sm90_init - raises the kernels' limits
 *
 * Needs    to be called once for a device, before product_int8_sm90
 * Errors   what the runtime says */
gpu_error product_int8_sm90_init(void);

/* product_int8_sm90 - out, or out_h, of struct product_args for int8, as product_fp8_sm90 but for
 *          codes of a SwiGLU
 *
 * Needs    what it needs, and w and q of int8
 * Edge     as there
 * Errors   as there
 * Numerics the bits of product_i8 */
gpu_error product_int8_sm90(const struct product_args &a, uint32_t n_tile,
                            const struct sm90_limits &limits, gpu_stream stream);

#endif
