/* join.cuh - ranks of one process become each other's peers (join.cu) */
#ifndef FATHOM_BACKEND_CUDA_JOIN_CUH
#define FATHOM_BACKEND_CUDA_JOIN_CUH

#include "backend/cuda/cuda_int.cuh"

/* cuda_join - backend_join; leaves the last rank's device the thread's current one
 * cuda_get_waits - of the seam; as of the last step that drew. One wait of a launch counts, from
 * the first look that misses: the way of a store is part of it
 * cuda_tell_waits - behind the draws of a rank with rows of its own, which bring no ranks together:
 * what cuda_get_waits and cuda_progress read
 * cuda_progress - of the seam: steps of several ranks that have drawn
 * cuda_peers_leave - gives back what a rank has of it */
fathom_err cuda_join(struct backend *const *b, uint32_t n, fathom_diag *d);
void cuda_get_waits(const struct backend *b, struct rank_waits *out);
fathom_err cuda_tell_waits(struct cuda_backend *c);
uint64_t cuda_progress(const struct backend *b);
void cuda_peers_leave(struct cuda_backend *c);

#endif
