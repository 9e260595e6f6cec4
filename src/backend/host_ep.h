/* host_ep.h - moe_ep over ranks that meet: which rows are whose, and what is added to what
 *
 * Ranks show each other their rows and routes. Each computes what its experts make of the rows of
 * all ranks, and puts that where the rows' ranks read it. They go through their rows in rounds of
 * n_run rows, all through as many as the rank with most rows needs, so that results have a bound.
 *
 *   host_ep_open                       what every rank shows
 *   for each round, until host_ep_is_last:
 *     host_ep_meet                     all have come: rows can be read, results be written
 *     ... results of this rank's experts, host_ep_run rows of each rank, one rank after the other
 *     host_ep_swap                     all have written
 *     ... host_ep_sum_row for own rows
 *
 * Ranks that share a lane's rows (parallel.h) each show a run of them, and have the sums of these.
 *
 * A rank may still read the others' results when these go on: who writes results again has met all
 * first.
 *
 * Ranks of several processes (host_net) show how many rows they have, then the rows of each round,
 * packed, and then results, of which a net brings to each rank those of its own rows. What is read
 * and added is the same, in the same order.
 */
#ifndef FATHOM_BACKEND_HOST_EP_H
#define FATHOM_BACKEND_HOST_EP_H

#include "backend/backend.h"
#include "backend/host_group.h"

/* Rows with their routes, wherever they are. Strides are bytes from a row to the next. */
struct host_ep_rows {
    const void *x; /* as the backend has inputs of experts */
    size_t x_stride;
    const void *chosen; /* i32 [n_used] a row */
    size_t chosen_stride;
    const void *weight; /* f32 [n_used] a row */
    size_t weight_stride;
};

/* What a rank shows. */
struct host_ep_rank {
    struct host_ep_rows rows;
    uint32_t row0;     /* of these, the round's first */
    uint32_t n_token;  /* live, of all rounds */
    const float *part; /* f32 [n_rank * n_run][stride] */
};

struct host_ep {
    struct host_rank *peer;
    const struct moe_ep_args *a;
    uint32_t n_rank, rank; /* one where the backend is a member of no group */
    struct row_run run;    /* of the lane's rows, those of this rank: "own rows" */
    uint32_t n_run;        /* rows of a rank in a round at most */
    uint32_t n_used;       /* experts of a row */
    size_t x_bytes;        /* of an input */
    uint32_t row0;         /* of the round under way, counted in own rows */
    size_t stride;         /* values from a result to the next */
    struct host_ep_rank all[PARALLEL_RANKS_MAX];
    struct host_ep_rows own;
    const float *part;                      /* this rank's */
    uint32_t first[PARALLEL_RANKS_MAX + 1]; /* result of each rank's first row, then their number */
    size_t starts[PARALLEL_RANKS_MAX + 1];  /* the same in bytes */
};

/* host_ep_open - fills in *e, which peers read and which stays where it is as long as the backend
 *
 *   p        which of the lane's rows are this rank's
 *   lane     the lane's rows; x_bytes of an input are read, n_used experts and weights
 *   part     f32 [n_rank * n_run][stride] of this rank */
void host_ep_open(struct host_ep *e, struct host_rank *peer, const struct parallel *p,
                  const struct moe_ep_args *a, const struct host_ep_rows *lane, size_t x_bytes,
                  uint32_t n_used, uint32_t n_run, const float *part, size_t stride);

/* host_ep_is_other - row t of the lane is another rank's, which has its sum */
static inline bool host_ep_is_other(const struct host_ep *e, size_t t)
{
    return t < e->run.first || t >= (size_t)e->run.first + e->run.n;
}

/* host_ep_row - of the lane, own row i of this round */
static inline size_t host_ep_row(const struct host_ep *e, size_t i)
{
    return e->run.first + e->row0 + i;
}

/* host_ep_x, host_ep_chosen, host_ep_weight - of row i of a rank in this round */
static inline const void *host_ep_x(const struct host_ep *e, uint32_t rank, uint32_t i)
{
    const struct host_ep_rank *r = &e->all[rank];
    return (const char *)r->rows.x + (size_t)(r->row0 + i) * r->rows.x_stride;
}

static inline const int32_t *host_ep_chosen(const struct host_ep *e, uint32_t rank, uint32_t i)
{
    const struct host_ep_rank *r = &e->all[rank];
    const char *first = (const char *)r->rows.chosen;
    return (const int32_t *)(const void *)(first + (r->row0 + i) * r->rows.chosen_stride);
}

static inline const float *host_ep_weight(const struct host_ep *e, uint32_t rank, uint32_t i)
{
    const struct host_ep_rank *r = &e->all[rank];
    const char *first = (const char *)r->rows.weight;
    return (const float *)(const void *)(first + (r->row0 + i) * r->rows.weight_stride);
}

/* host_ep_meet - the round from row0 on; host_ep_swap
 * Errors  EPEER */
fathom_err host_ep_meet(struct host_ep *e, uint32_t row0);
fathom_err host_ep_swap(struct host_ep *e);

/* host_ep_is_last - no rank has rows behind this round */
bool host_ep_is_last(const struct host_ep *e);

/* host_ep_run - rows of a rank in this round */
uint32_t host_ep_run(const struct host_ep *e, uint32_t rank);

/* host_ep_sum_row - sum = the results of row i of this round, ranks ascending, then `last`
 *
 *   chosen  i32 [n_used]: the row's experts
 *   last    f32 [n], or NULL */
void host_ep_sum_row(const struct host_ep *e, uint32_t i, const int32_t *chosen, uint32_t n_used,
                     const float *last, float *sum, uint32_t n);

#endif
