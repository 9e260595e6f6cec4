/* value.cuh - the heads' values of prompt rows on sm_90a */
#ifndef FATHOM_BACKEND_CUDA_SM90_VALUE_CUH
#define FATHOM_BACKEND_CUDA_SM90_VALUE_CUH

#include "backend/cuda/generic/out.cuh"

/* value_sm90_init - raises the kernel's limits
 *
 * Needs    to be called once for a device, before value_sm90
 * Errors   what the runtime says */
gpu_error value_sm90_init(void);

/* value_sm90 - W_UV z of every head, as codes with a scale a head or as values
 *
 * Needs    z_h and kv_b aligned to 16 bytes; q and scale, or f
 * Errors   cudaErrorInvalidValue if a tensor map cannot be made, or what the launch gives
 * Numerics a sum is one chain over the 512 terms on the tensor cores, 16 at a time; value_kernel of
 *          the answer rows adds four parts */
fathom_err value_sm90(struct cuda_backend *c, const struct value_args &a);

#endif
