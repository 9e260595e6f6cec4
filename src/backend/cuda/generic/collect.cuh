/* collect.cuh - what ranks bring together (collect.cu); every rank makes the same calls */
#ifndef FATHOM_BACKEND_CUDA_COLLECT_CUH
#define FATHOM_BACKEND_CUDA_COLLECT_CUH

#include "backend/cuda/cuda_int.cuh"

struct norm_args;

/* cuda_sum_norm - add_norm of n_row rows with the sum over ranks of delta, in rank order; to_all:
 * every rank has all rows, else each those that row_owner gives it, of at least as many as ranks */
fathom_err cuda_sum_norm(struct cuda_backend *c, const struct norm_args *n, uint32_t n_row,
                         uint32_t layer, bool to_all);

/* Rows of n_byte, a multiple of 4, one behind the other in device memory. */
struct row_array {
    void *data;
    uint32_t n_byte;
};

/* cuda_spread - rows of their owners to all: row t is that of row_owner(t, row_run(n_row), world)
 * cuda_share_draws - what sample has written of rows that it drew, to all */
fathom_err cuda_spread(struct cuda_backend *c, const struct row_array *array, uint32_t n_array,
                       uint32_t n_row);
fathom_err cuda_share_draws(struct cuda_backend *c, const struct sample_args *a);

/* cuda_logits_to_owners - each rank has its columns of all rows: part [n_row][V / world]; row i
 * goes to rank i % world, whole, as row i of out [n_row][V] */
fathom_err cuda_logits_to_owners(struct cuda_backend *c, const float *part, float *out,
                                 uint32_t n_row);

#endif
