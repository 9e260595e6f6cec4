/* host_group.h - ranks whose devices are the host: threads of one process that meet
 *
 * A collective is a meeting: every rank shows what it has, waits until all have come, reads what
 * the others show, and leaves; what it showed may change when all have left. Ranks meet in one
 * order of places, so a rank that computes another step than its peers is found where they meet.
 *
 * A wait looks for 20 us and then sleeps; with fewer processors than ranks it sleeps at once. No
 * wait is without an end: who waits longer than the group's patience breaks the group, and so does
 * a rank that fails. In a broken group every meeting, under way or later, is EPEER.
 */
#ifndef FATHOM_BACKEND_HOST_GROUP_H
#define FATHOM_BACKEND_HOST_GROUP_H

#include <stdbool.h>
#include <stdint.h>

#include "backend/backend.h"
#include "fathom/err.h"

struct host_group;

/* A rank's membership, part of its backend; group is NULL where there is one rank. */
struct host_rank {
    struct host_group *group;
    uint32_t rank;
    uint32_t n_rank;
};

/* host_rank_sums - other ranks have parts of what this one computes */
static inline bool host_rank_sums(const struct host_rank *r, const struct parallel *p)
{
    return r->group && p->tp.size > 1;
}

/* Where ranks meet: equal on all of them. */
struct host_place {
    const char *op; /* a literal */
    uint32_t layer;
    uint32_t n_row;
};

/* host_group_create - the ranks r[0 .. n) become each other's peers
 *
 *   patience_us  of a wait
 * Errors  ENOMEM. Owns: the last host_rank_leave frees the group. */
fathom_err host_group_create(struct host_rank *const *r, uint32_t n, uint64_t patience_us,
                             fathom_diag *d);

/* host_join - the same for backends, which wait patience_ms for each other; 0: RANK_PATIENCE_MS */
fathom_err host_join(struct backend *const *b, uint32_t n, uint32_t patience_ms,
                     struct host_rank *(*peer_of)(struct backend *b), fathom_diag *d);

/* host_rank_leave - no member any more; for a member of a group that still works this breaks it */
void host_rank_leave(struct host_rank *r);

/* host_meet - shows `own` and waits for all ranks
 *
 *   all  what they show, [n_rank], until host_part
 * host_part - waits until all ranks are done with it
 * Needs   the thread that works with the rank.
 * Errors  EPEER; host_rank_fault says who failed, or did not come. */
fathom_err host_meet(struct host_rank *r, const struct host_place *place, const void *own,
                     const void *const **all);
fathom_err host_part(struct host_rank *r);

/* host_rank_break - meetings fail from now on, because this rank does not come; any thread */
void host_rank_break(struct host_rank *r);

/* host_rank_fault - why meetings fail; "" while they do not, or for no member of a group */
const char *host_rank_fault(const struct host_rank *r);

/* host_rank_waits - what this rank has waited so far, zeros for no member; any thread */
void host_rank_waits(const struct host_rank *r, struct rank_waits *out);

/* ---- what backends do at a meeting ---- */

/* host_sum_row - sum[i] = parts[0][i] + parts[1][i] + ..., in f32, in that order */
void host_sum_row(float *sum, const float *const *parts, uint32_t n_part, uint32_t n);

/* host_gather_logits - from every rank's columns to whole rows on their owners (op_sample.h)
 *
 *   own     f32 [n_row][stride]: n_col columns of this rank
 *   logits  f32 [n_row][logit_stride]: written in this rank's rows */
fathom_err host_gather_logits(struct host_rank *r, const float *own, size_t stride, uint32_t n_col,
                              uint32_t n_row, float *logits, size_t logit_stride);

/* host_share_draws - what each row's owner has drawn, to all ranks */
fathom_err host_share_draws(struct host_rank *r, const struct sample_args *a);

#endif
