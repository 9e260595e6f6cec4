/* join.cuh - ranks of one process become each other's peers (join.cu) */
#ifndef FATHOM_BACKEND_CUDA_JOIN_CUH
#define FATHOM_BACKEND_CUDA_JOIN_CUH

#include "backend/cuda/cuda_int.cuh"

/* cuda_join - backend_join; leaves the last rank's device the thread's current one
 * cuda_peers_leave - gives back what a rank has of it */
fathom_err cuda_join(struct backend *const *b, uint32_t n, fathom_diag *d);
void cuda_peers_leave(struct cuda_backend *c);

#endif
