/* product_u4_turned.cuh - product of packed U4 weights for very many rows on sm_90a */
#ifndef FATHOM_BACKEND_CUDA_SM90_PRODUCT_U4_TURNED_CUH
#define FATHOM_BACKEND_CUDA_SM90_PRODUCT_U4_TURNED_CUH

#include "backend/cuda/product.cuh"

/* product_u4_turns - whether product_u4_turned takes matrices packed so: U4 in groups of a multiple
 * of 128, with scales of F16 */
bool product_u4_turns(const struct pack4 &p);

/* product_u4_turned_bytes - room that it takes for a matrix */
size_t product_u4_turned_bytes(uint32_t n_row, uint32_t k);

/* product_u4_turned_init - raises the kernels' limits
 *
 * Needs    to be called once for a device, before product_u4_turned
 * Errors   what the runtime says */
gpu_error product_u4_turned_init(void);

/* product_u4_turned - out, out_h or out_q of struct product_args, plain: codes of weights are made
 * E4M3 in `room`, and the product reads them there
 *
 * n_tile   tiles of PRODUCT_LARGE_TILE rows
 * limits   of the current device: n_sm
 * Needs    what product_fp8_sm90 needs, but weights packed as product_u4_turns has it; room aligned
 *          to 16 bytes, product_u4_turned_bytes of it, which nothing else uses meanwhile
 * Errors   cudaErrorInvalidValue if a tensor map cannot be made, or what the launches give
 * Numerics the bits of product_few_u4 and product_u4_sm90 */
gpu_error product_u4_turned(const struct product_args &a, void *room, uint32_t n_tile,
                            const struct sm90_limits &limits, gpu_stream stream);

#endif
