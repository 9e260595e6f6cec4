/* collect_net.cuh - what collect.cuh brings together, of ranks on several hosts (net.h) */
#ifndef FATHOM_BACKEND_CUDA_GENERIC_COLLECT_NET_CUH
#define FATHOM_BACKEND_CUDA_GENERIC_COLLECT_NET_CUH

#include "backend/cuda/cuda_int.cuh"

/* Rows that go to the ranks of a group, or come from them. */
struct net_side {
    const void *at;
    uint64_t stride; /* from those of a rank to those of the next one; 0: all get the same */
    uint64_t row_bytes;
    const uint32_t *n_row; /* of rank 0 */
    uint32_t n_step;       /* 1: [world]; 0: all have as many */
};

/* cuda_net_swap_rows - to every other rank of the group what `out` says, and from it what `in` does
 * cuda_net_swap - to every other rank r of the group the n_byte at from + r * stride, and what r
 * has for this one to `to` + r * n_byte
 * cuda_net_sum - delta [n_row][D], this rank's part of each row, becomes the sum over ranks, in
 * rank order
 * cuda_net_logits, cuda_net_draws, cuda_net_share - as cuda_logits_to_owners, cuda_share_draws and
 * cuda_share_rows */
fathom_err cuda_net_swap_rows(struct cuda_backend *c, const struct peers *group,
                              const struct net_side *out, const struct net_side *in);
fathom_err cuda_net_swap(struct cuda_backend *c, const struct peers *group, const void *from,
                         uint64_t stride, void *to, uint64_t n_byte);
fathom_err cuda_net_sum(struct cuda_backend *c, float *delta, uint32_t n_row);
fathom_err cuda_net_logits(struct cuda_backend *c, const float *part, float *out, uint32_t n_row);
fathom_err cuda_net_draws(struct cuda_backend *c, const struct sample_args *a);
fathom_err cuda_net_share(struct cuda_backend *c, const struct share_rows_args *a);

/* cuda_net_connect - of the seam */
fathom_err cuda_net_connect(struct backend *b);

#endif
