/* peers_join.cuh - ranks of one process become each other's peers (peers.cu) */
#ifndef FATHOM_BACKEND_CUDA_PEERS_JOIN_CUH
#define FATHOM_BACKEND_CUDA_PEERS_JOIN_CUH

#include "backend/cuda/cuda_int.cuh"

/* cuda_peers_join - c [n] in rank order. Once, while no kernel runs; leaves the last rank's device
 * the thread's current one.
 * Errors  EUNSUPPORTED: so many ranks; EDEVICE names the pair that cannot be peers; ENOMEM. */
fathom_err cuda_peers_join(struct cuda_backend *const *c, uint32_t n, fathom_diag *d);
void cuda_peers_leave(struct cuda_backend *c);

#endif
