/* parallel.h - how a model is cut over ranks, and which part of it a rank has
 *
 * An axis is one way of cutting: `size` ranks share what is cut along it, and a rank has part
 * `rank` of it. What an axis does not cut is whole on all of its ranks.
 *
 *   axis  cuts
 *   tp    tensor parallel: heads, inner widths of feed-forward blocks, rows of the head, columns of
 *         the draft layer's eh_proj
 *   dp    data parallel: requests, which each of its parts, a lane, has its own of. Routed experts
 *         are whole then (experts_whole), each on one rank of all of tp and dp, and shared ones are
 *         whole on every rank
 *
 * Experts may be whole on ranks of tp alone too: these all have the same rows, so that each makes
 * what its experts make of them, a partial sum as of any block, and no row moves.
 *
 *   pp    pipeline parallel: the list of layers, in runs. The first stage has the embedding, the
 *         last one head, final norm and draft layer
 *
 * Ranks of one stage are peers, those of one lane next to each other: peer p is rank p % tp.size of
 * lane p / tp.size. Rank r of the model is peer r % n of stage r / n, of n peers.
 */
#ifndef FATHOM_BACKEND_PARALLEL_H
#define FATHOM_BACKEND_PARALLEL_H

#include <stdbool.h>
#include <stdint.h>

struct axis {
    uint32_t rank; /* below size */
    uint32_t size; /* >= 1 */
};

/* Ranks of one axis at most, and stages. */
enum { PARALLEL_RANKS_MAX = 64, PARALLEL_STAGES_MAX = 8 };

struct parallel {
    struct axis tp;
    struct axis dp;     /* zeros: one rank */
    struct axis pp;     /* zeros: one stage */
    bool experts_whole; /* a routed expert is on one rank, else cut on all of tp; of lanes always */
    bool is_slice; /* one rank of several is measured by itself: sums over ranks are left out */
    uint16_t layer_ends[PARALLEL_STAGES_MAX]; /* of several stages: the layers below layer_ends[i]
                                                 that no stage before i has are stage i's */
};

/* How often a rank was not the last one to come to a meeting of all, and how long it waited. */
struct rank_waits {
    uint64_t n;
    uint64_t ns;
};

/* What of a model is cut over ranks. */
enum parallel_cut {
    CUT_NONE,
    CUT_HEADS,
    CUT_INNER,        /* inner widths of dense blocks */
    CUT_EXPERT_INNER, /* inner widths of routed experts, and of shared ones */
    CUT_SHARED_INNER,
    CUT_VOCAB,
    CUT_EXPERTS,
};

/* parallel_one - one rank that has everything */
static inline struct parallel parallel_one(void)
{
    const struct axis one = {.rank = 0, .size = 1};
    return (struct parallel){.tp = one,
                             .dp = one,
                             .pp = one,
                             .experts_whole = false,
                             .is_slice = false,
                             .layer_ends = {0}};
}

/* parallel_n_stage - runs of layers
 * parallel_n_peer - ranks that share a stage
 * parallel_n_rank - ranks that share the model */
static inline uint32_t parallel_n_stage(const struct parallel *p)
{
    return p->pp.size > 1 ? p->pp.size : 1;
}

static inline uint32_t parallel_n_peer(const struct parallel *p)
{
    return p->dp.size > 1 ? p->tp.size * p->dp.size : p->tp.size;
}

static inline uint32_t parallel_n_rank(const struct parallel *p)
{
    return parallel_n_stage(p) * parallel_n_peer(p);
}

/* parallel_peer - this rank's number among its peers
 * parallel_rank - this rank's number, of parallel_n_rank; parallel_be - it becomes another one */
static inline uint32_t parallel_peer(const struct parallel *p)
{
    return p->dp.size > 1 ? p->dp.rank * p->tp.size + p->tp.rank : p->tp.rank;
}

static inline uint32_t parallel_rank(const struct parallel *p)
{
    return p->pp.rank * parallel_n_peer(p) + parallel_peer(p);
}

static inline void parallel_be(struct parallel *p, uint32_t rank)
{
    const uint32_t n_peer = parallel_n_peer(p);
    p->pp.rank = rank / n_peer;
    p->tp.rank = rank % n_peer % p->tp.size;
    if (p->dp.size > 1) p->dp.rank = rank % n_peer / p->tp.size;
}

/* A stage's layers: [first, end). */
struct layer_run {
    uint32_t first;
    uint32_t end;
};

/* parallel_layers - this rank's, of a model of n_layer
 * parallel_is_first, parallel_is_last - whether its stage has the model's beginning, its end */
static inline struct layer_run parallel_layers(const struct parallel *p, uint32_t n_layer)
{
    const uint32_t i = p->pp.rank;
    if (p->pp.size <= 1) return (struct layer_run){0, n_layer};
    const uint32_t first = i > 0 ? p->layer_ends[i - 1] : 0;
    return (struct layer_run){first, p->layer_ends[i]};
}

static inline bool parallel_is_first(const struct parallel *p)
{
    return p->pp.rank == 0;
}

static inline bool parallel_is_last(const struct parallel *p)
{
    return p->pp.rank + 1 >= p->pp.size;
}

/* parallel_moves_rows - whether rows go to the ranks of their experts: those of lanes, of which one
 * rank is the least */
static inline bool parallel_moves_rows(const struct parallel *p)
{
    return p->experts_whole && (p->dp.size > 1 || p->tp.size <= 1);
}

/* parallel_axis - the axis that cuts something; that of CUT_NONE has one rank */
static inline struct axis parallel_axis(const struct parallel *p, enum parallel_cut cut)
{
    const struct axis one = {.rank = 0, .size = 1};
    const struct axis all = {.rank = parallel_peer(p), .size = parallel_n_peer(p)};
    if (cut == CUT_EXPERTS) return p->experts_whole ? all : one;
    if (cut == CUT_EXPERT_INNER && p->experts_whole) return one;
    if (cut == CUT_SHARED_INNER && parallel_moves_rows(p)) return one;
    return cut == CUT_NONE ? one : p->tp;
}

/* parallel_part - a rank's part of n units that are cut; Needs n a multiple of the axis' size */
static inline uint32_t parallel_part(const struct parallel *p, enum parallel_cut cut, uint32_t n)
{
    return n / parallel_axis(p, cut).size;
}

/* ---- experts by rank ---- */

/* Rows [first, first + n). */
struct row_run {
    uint32_t first;
    uint32_t n;
};

/* parallel_lane_rows - of a lane's n_row rows those that this rank of it gives to the experts;
 * ranks have runs of equal length, the last ones fewer or none */
static inline struct row_run parallel_lane_rows(const struct parallel *p, uint32_t n_row)
{
    const uint32_t n = (n_row + p->tp.size - 1) / p->tp.size, first = n * p->tp.rank;
    if (first >= n_row) return (struct row_run){n_row, 0};
    return (struct row_run){first, n_row - first < n ? n_row - first : n};
}

/* Experts of a rank at most: their number there is a byte of an entry of the table. */
enum { EXPERTS_HELD_MAX = 256 };

/* parallel_place - where an expert is: its rank << 8 | its number there, which is how tables of
 * places have it. Ranks have equal parts of the n_expert in ascending order, so that a group of
 * experts is on few ranks.
 * expert_rank, expert_index - the halves of an entry
 * Needs   CUT_EXPERTS divides n_expert, and no rank has more than EXPERTS_HELD_MAX. */
static inline uint16_t parallel_place(const struct parallel *p, uint32_t n_expert, uint32_t expert)
{
    const uint32_t n_held = parallel_part(p, CUT_EXPERTS, n_expert);
    return (uint16_t)(expert / n_held << 8 | expert % n_held);
}

/* parallel_first_expert - the first of this rank's; the others follow */
static inline uint32_t parallel_first_expert(const struct parallel *p, uint32_t n_expert)
{
    return parallel_axis(p, CUT_EXPERTS).rank * parallel_part(p, CUT_EXPERTS, n_expert);
}

static inline uint32_t expert_rank(uint16_t place)
{
    return place >> 8;
}

static inline uint32_t expert_index(uint16_t place)
{
    return place & 0xff;
}

#endif
