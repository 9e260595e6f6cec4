/* parallel.h - how a model is cut over ranks, and which part of it a rank has
 *
 * An axis is one way of cutting: `size` ranks share what is cut along it, and a rank has part
 * `rank` of it. What an axis does not cut is whole on all of its ranks.
 *
 *   axis  cuts
 *   tp    tensor parallel: heads, inner widths of feed-forward blocks, rows of the head, columns of
 *         the draft layer's eh_proj
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
enum parallel_cut { CUT_NONE, CUT_HEADS, CUT_INNER, CUT_VOCAB };

/* parallel_one - one rank that has everything */
static inline struct parallel parallel_one(void)
{
    return (struct parallel){.tp = {.rank = 0, .size = 1}, .is_slice = false};
}

/* parallel_n_rank - ranks that share the model */
static inline uint32_t parallel_n_rank(const struct parallel *p)
{
    return p->tp.size;
}

/* parallel_axis - the axis that cuts something; that of CUT_NONE has one rank */
static inline struct axis parallel_axis(const struct parallel *p, enum parallel_cut cut)
{
    return cut == CUT_NONE ? (struct axis){.rank = 0, .size = 1} : p->tp;
}

/* parallel_part - a rank's part of n units that are cut; Needs n a multiple of the axis' size */
static inline uint32_t parallel_part(const struct parallel *p, enum parallel_cut cut, uint32_t n)
{
    return n / parallel_axis(p, cut).size;
}

#endif
