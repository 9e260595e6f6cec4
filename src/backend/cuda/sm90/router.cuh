/* router.cuh - the router's scores of many tokens on sm_90a */
#ifndef FATHOM_BACKEND_CUDA_SM90_ROUTER_CUH
#define FATHOM_BACKEND_CUDA_SM90_ROUTER_CUH

#include "backend/cuda/generic/router.cuh"

/* router_sm90_init - raises the kernel's limits; once, before router_sm90 */
fathom_err router_sm90_init(struct cuda_backend *c);

/* router_sm90 - score[k part][t][e] = the part's sum over k of w[e][k] x[t][k]
 *
 * Needs    BF16 weights of whole K lines, aligned to 16 bytes
 * Errors   cudaErrorInvalidValue if the tensor map cannot be made, or what the launch gives
 * Numerics the bits of router.cu's kernels: products of 16 terms, plane by plane, a K line from
 *          zero, K lines added in ascending order */
fathom_err router_sm90(struct cuda_backend *c, const struct router_args_device &a);

#endif
