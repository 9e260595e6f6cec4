/* collect.cuh - what ranks bring together (collect.cu); every rank makes the same calls */
#ifndef FATHOM_BACKEND_CUDA_GENERIC_COLLECT_CUH
#define FATHOM_BACKEND_CUDA_GENERIC_COLLECT_CUH

#include "backend/cuda/cuda_int.cuh"

struct kv_layer;
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

/* own_row - the row at a rank's place; own_row_count - rows that a rank has */
static __host__ __device__ inline uint32_t own_row(uint32_t place, uint32_t run, uint32_t rank,
                                                   uint32_t world)
{
    return (place / run * world + rank) * run + place % run;
}

static inline uint32_t own_row_count(uint32_t n_row, uint32_t rank, uint32_t world)
{
    const uint32_t run = row_run(n_row), whole = n_row / (run * world) * run;
    const uint32_t left = n_row % (run * world), before = rank * run;
    return whole + (left <= before ? 0 : left - before < run ? left - before : run);
}

static __host__ __device__ inline uint32_t draw_owner(uint32_t logit_row, uint32_t world)
{
    return logit_row % world;
}

/* cuda_parts_are_rounded - a rank's part of a sum is rounded to bf16, as an expert's output is: it
 * travels as half the bytes */
static inline bool cuda_parts_are_rounded(const struct cuda_backend *c)
{
    return c->c.act != ACT_F32;
}

/* cuda_sum_norm - add_norm of n_row rows with the sum over ranks of delta, in rank order; with
 * SPREAD_OWN norms are at the rows' places, one behind the other */
fathom_err cuda_sum_norm(struct cuda_backend *c, const struct norm_args *n, uint32_t n_row,
                         uint32_t layer, enum spread spread);

/* Rows of n_byte, a multiple of 4, in device memory: all rows of a step one behind the other, or
 * rows of the cache's pages. Own rows are there, or are taken from `from`, at their places. */
struct row_array {
    void *data;
    uint32_t n_byte;
    const void *from;
    const int32_t *slot; /* not NULL: row t is that of slot[t]; data is page 0's first */
    size_t page_bytes;
};

/* cuda_spread - rows of their owners to all: row t is that of row_owner(t, row_run(n_row), world)
 * cuda_cache_arrays - the arrays of a layer's cache into to[], of rows at slot; returns how many
 * cuda_own_rows, cuda_spread_rows - of the seam
 * cuda_share_rows - of the seam, between ranks of one host
 * cuda_share_draws - what sample has written of rows that it drew, to all */
fathom_err cuda_spread(struct cuda_backend *c, const struct row_array *array, uint32_t n_array,
                       uint32_t n_row);
uint32_t cuda_cache_arrays(struct row_array *to, const struct kv_layer *kv, bool has_index,
                           const int32_t *slot);
uint32_t cuda_own_rows(const struct backend *b, uint32_t n_token);
fathom_err cuda_spread_rows(struct backend *b, const struct spread_rows_args *a);
fathom_err cuda_share_rows(struct cuda_backend *c, const struct share_rows_args *a);
fathom_err cuda_share_draws(struct cuda_backend *c, const struct sample_args *a);

/* cuda_logits_to_owners - each rank has its columns of all rows: part [n_row][V / world]; row i
 * goes to rank i % world, whole, as row i of out [n_row][V] */
fathom_err cuda_logits_to_owners(struct cuda_backend *c, const float *part, float *out,
                                 uint32_t n_row);

#endif
