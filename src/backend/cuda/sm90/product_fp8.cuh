/* product_fp8.cuh - FP8 matrix product for many rows on sm_90a */
#ifndef FATHOM_BACKEND_CUDA_SM90_PRODUCT_FP8_CUH
#define FATHOM_BACKEND_CUDA_SM90_PRODUCT_FP8_CUH

#include "backend/cuda/product.cuh"

/* product_fp8_sm90_init - raises the kernels' limits
 *
 * Needs    to be called once for a device, before product_fp8_sm90
 * Errors   what the runtime says */
gpu_error product_fp8_sm90_init(void);

/* product_fp8_sm90 - out[row][n] of struct product_args, plain or mapped, on the tensor cores; or
 * out_h, the same rounded to bf16; or out_q and out_scale, of the SwiGLU of columns [gate | up]
 *
 * n_tile   plain: tiles of PRODUCT_LARGE_TILE rows; mapped: tasks at most, *a.n_task the true count
 * limits   of the device: n_sm
 * Needs    k a multiple of 128, n of 16, out_stride of 4; row0 and col0 0; w, q and out
 *          aligned to 16 bytes; w tiled; out_q: n of 2 * FP8_GROUP; mapped: tasks of at most
 *          PRODUCT_LARGE_TILE rows, in_listed for out_h
 * Edge     rows past n_token or past a task, and columns past n, are not written
 * Errors   cudaErrorInvalidValue if a tensor map cannot be made, or what the launch gives
 * Numerics a row's bits depend on n, k, its input and the weights alone: not on its neighbours, its
 *          place, the number of rows or multiprocessors; K is cut as k_parts.h says */
gpu_error product_fp8_sm90(const struct product_args &a, uint32_t n_tile,
                           const struct sm90_limits &limits, gpu_stream stream);

#endif
