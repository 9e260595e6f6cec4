/* front.cuh - what the files of mla_front have in common */
#ifndef FATHOM_BACKEND_CUDA_GENERIC_FRONT_CUH
#define FATHOM_BACKEND_CUDA_GENERIC_FRONT_CUH

#include "backend/cuda/cuda_int.cuh"

/* query.cu: the queries of attention and of the index, from c->query; the index heads' weights are
 * in c->index_head, or so many parts of them, each [T][n] */
fathom_err front_queries(struct cuda_backend *c, const struct mla_front_args *a,
                         uint32_t n_head_part);

#endif
