/* parallel.h - how a model is cut over ranks, and which part of it a rank has
 *
 * An axis is one way of cutting: `size` ranks share what is cut along it, and a rank has part
 * `rank` of it. What an axis does not cut is whole on all of its ranks.
 *
 *   axis  cuts
 *   tp    tensor parallel: heads, inner widths of feed-forward blocks, rows of the head, columns of
 *         the draft layer's eh_proj
 *   dp    data parallel: requests. With experts_whole the routed experts too, each whole on a rank
 *
 * All ranks lie on one axis: the other one has one rank. A rank's number is its place there.
 */
#ifndef FATHOM_BACKEND_PARALLEL_H
#define FATHOM_BACKEND_PARALLEL_H

#include <stdbool.h>
#include <stdint.h>

struct axis {
    uint32_t rank; /* below size */
    uint32_t size; /* >= 1 */
};

struct parallel {
    struct axis tp;
    struct axis dp;     /* zeros: one rank */
    bool experts_whole; /* an expert is on one rank of dp, else cut on all of tp */
    bool is_slice; /* one rank of several is measured by itself: sums over ranks are left out */
};

/* Ranks of one axis at most. */
enum { PARALLEL_RANKS_MAX = 64 };

/* How often a rank was not the last one to come to a meeting of all, and how long it waited. */
struct rank_waits {
    uint64_t n;
    uint64_t ns;
};

/* What of a model is cut over ranks. */
enum parallel_cut { CUT_NONE, CUT_HEADS, CUT_INNER, CUT_VOCAB, CUT_EXPERTS };

/* parallel_one - one rank that has everything */
static inline struct parallel parallel_one(void)
{
    const struct axis one = {.rank = 0, .size = 1};
    return (struct parallel){.tp = one, .dp = one, .experts_whole = false, .is_slice = false};
}

/* parallel_n_rank - ranks that share the model */
static inline uint32_t parallel_n_rank(const struct parallel *p)
{
    return p->dp.size > 1 ? p->tp.size * p->dp.size : p->tp.size;
}

/* parallel_rank - this rank's number, of parallel_n_rank; parallel_be - it becomes another one */
static inline uint32_t parallel_rank(const struct parallel *p)
{
    return p->dp.size > 1 ? p->dp.rank : p->tp.rank;
}

static inline void parallel_be(struct parallel *p, uint32_t rank)
{
    *(p->dp.size > 1 ? &p->dp.rank : &p->tp.rank) = rank;
}

/* parallel_axis - the axis that cuts something; that of CUT_NONE has one rank */
static inline struct axis parallel_axis(const struct parallel *p, enum parallel_cut cut)
{
    const struct axis one = {.rank = 0, .size = 1};
    if (cut == CUT_EXPERTS) return p->experts_whole && p->dp.size > 1 ? p->dp : one;
    return cut == CUT_NONE ? one : p->tp;
}

/* parallel_part - a rank's part of n units that are cut; Needs n a multiple of the axis' size */
static inline uint32_t parallel_part(const struct parallel *p, enum parallel_cut cut, uint32_t n)
{
    return n / parallel_axis(p, cut).size;
}

/* ---- experts by rank ---- */

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

static inline uint32_t expert_rank(uint16_t place)
{
    return place >> 8;
}

static inline uint32_t expert_index(uint16_t place)
{
    return place & 0xff;
}

#endif
