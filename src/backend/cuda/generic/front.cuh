/* front.cuh - what the files of mla_front have in common */
#ifndef FATHOM_BACKEND_CUDA_GENERIC_FRONT_CUH
#define FATHOM_BACKEND_CUDA_GENERIC_FRONT_CUH

#include "backend/cuda/cuda_int.cuh"

/* front.cu: own rows of a batch (op_dense.h), n_token of them with slots, positions and requests,
 * as mla_front has left them in a step of this batch */
void front_own_batch(const struct cuda_backend *c, const struct batch *batch, struct batch *own);

/* query.cu: index queries of own rows, from c->query [n_own][index heads * 128] and the weights of
 * index heads in c->own */
fathom_err front_own_index(struct cuda_backend *c, const struct mla_front_args *a,
                           const struct batch *own);

/* query.cu: the queries of attention and of the index, from c->query; the index heads' weights are
 * in c->index_head, or so many parts of them, each [T][n]. Rows from n_plain on, in expanded form,
 * are in a->query already. */
fathom_err front_queries(struct cuda_backend *c, const struct mla_front_args *a,
                         uint32_t n_head_part, uint32_t n_plain);

/* The angles of tokens from `first` on, KV_ROPE / 2 times a sine and a cosine at the start of each
 * row of c->query: for rows whose queries q_b's product makes. */
fathom_err front_angles(struct cuda_backend *c, const struct mla_front_args *a, uint32_t first);

#endif
