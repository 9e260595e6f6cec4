/* collect.cuh - what ranks bring together (collect.cu); every rank makes the same calls */
#ifndef FATHOM_BACKEND_CUDA_GENERIC_COLLECT_CUH
#define FATHOM_BACKEND_CUDA_GENERIC_COLLECT_CUH

#include "backend/cuda/cuda_int.cuh"

struct norm_args;

/* row_run - neighbours that have one owner in a step of n_row rows
 * row_owner - the rank that owns row t of them
 * row_places - rows that the owner of most of them has, whole runs
 * draw_owner - logit_row_owner, for kernels */
static __host__ __device__ inline uint32_t row_run(uint32_t n_row)
{
    return n_row < OWNED_BY_ONE ? 1 : OWNED_RUN;
}

static __host__ __device__ inline uint32_t row_owner(uint32_t t, uint32_t run, uint32_t world)
{
    return t / run % world;
}

static __host__ __device__ inline uint32_t row_places(uint32_t n_row, uint32_t run, uint32_t world)
{
    return (n_row + run * world - 1) / (run * world) * run;
}

static __host__ __device__ inline uint32_t draw_owner(uint32_t logit_row, uint32_t world)
{
    return logit_row % world;
}

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
