/* host_group.h - ranks whose devices are the host: threads of one process, or of several, that meet
 *
 * A collective is a meeting: every rank shows what it has, waits until all have come, reads what
 * the others show, and leaves; what it showed may change when all have left. Ranks meet in one
 * order of places, so a rank that computes another step than its peers is found where they meet.
 *
 * A wait looks for 20 us and then sleeps; with fewer processors than ranks it sleeps at once. No
 * wait is without an end: who waits longer than the group's patience breaks the group, and so does
 * a rank that fails. In a broken group every meeting, under way or later, is EPEER.
 *
 * Of several processes each has a group of its ranks and a struct host_net. The rank that comes
 * last brings what its process shows to the others and theirs here, so that all ranks find the same
 * bytes at the same places: what they compute of them has the bits that one process would have.
 */
#ifndef FATHOM_BACKEND_HOST_GROUP_H
#define FATHOM_BACKEND_HOST_GROUP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "backend/backend.h"
#include "fathom/err.h"

struct host_group;
struct host_place;

/* The other processes of a group: ranks first .. first + n_local - 1 of n_rank are here. */
struct host_net {
    uint32_t first;
    uint32_t n_local;
    uint32_t n_rank;
    unsigned char *packs; /* [n_local][pack_bytes], where a rank may lay out what it shows */
    size_t pack_bytes;
    /* Brings place->n_bytes of every rank, or as many as place->sizes says, to all processes, or to
     * each what place->starts says is for its ranks.
     *
     *   shown   [n_rank]: of the ranks here as they show it; of the others filled, until the next
     *           swap
     *   fault   the message of an error
     * Errors  EPEER: another process is lost, or is at another place. */
    fathom_err (*swap)(struct host_net *net, const struct host_place *place, const void **shown,
                       char *fault, size_t n_fault);
    /* Whether another process is lost, and why; any thread, from the first swap of a generation on
     * until the ranks part. */
    bool (*is_lost)(struct host_net *net, char *why, size_t n_why);
};

/* A rank's membership, part of its backend; group is NULL where there is one rank. */
struct host_rank {
    struct host_group *group;
    uint32_t rank;
    uint32_t n_rank;
};

/* A rank's memberships, part of its backend. */
struct host_peers {
    struct host_rank sums;    /* ranks that share rows: they add up parts */
    struct host_rank experts; /* ranks that have experts for each other's rows */
};

/* Where ranks meet: equal on all of them. */
struct host_place {
    const char *op; /* a literal */
    uint32_t layer;
    uint32_t n_row;
    size_t n_bytes; /* of what each shows; 0: a thing of this process, which no other can read */
    const size_t *starts; /* NULL: all of it is for all ranks; or of what each shows the bytes
                             [starts[r], starts[r + 1]) are for rank r, of n_rank, and a net brings
                             no more. It stays until host_meet returns */
    const size_t *sizes; /* NULL: each shows n_bytes; or rank r, of n_rank, sizes[r] of them, all of
                             it for all. It stays as long */
};

/* host_group_create - the ranks r[0 .. n) become each other's peers
 *
 *   net          NULL: they are all
 *   patience_us  of a wait
 * Errors  ENOMEM. Owns: the last host_rank_leave frees the group; net is borrowed. */
fathom_err host_group_create(struct host_rank *const *r, uint32_t n, struct host_net *net,
                             uint64_t patience_us, fathom_diag *d);

/* host_join - the backends b[0 .. n) of all ranks of this process become peers as c says, which is
 * the first one's: for sums each lane by itself, for experts all. A net brings together the ranks
 * of experts, or else of sums.
 * Errors  ENOMEM; some may be peers then. */
fathom_err host_join(struct backend *const *b, uint32_t n, const struct backend_config *c,
                     struct host_peers *(*peers_of)(struct backend *b), fathom_diag *d);

/* host_rank_net - to the other processes of its group; NULL: there are none */
struct host_net *host_rank_net(const struct host_rank *r);

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

/* host_rank_renew - a broken group works again, as if nobody had met yet
 * Needs   no rank at a meeting, and none that goes to one before all have been renewed. */
void host_rank_renew(struct host_rank *r);

/* host_rank_break - meetings fail from now on, because this rank does not come; any thread */
void host_rank_break(struct host_rank *r);

/* host_rank_fault - why meetings fail; "" while they do not, or for no member of a group */
const char *host_rank_fault(const struct host_rank *r);

/* host_rank_waits - what this rank has waited so far, zeros for no member; any thread */
void host_rank_waits(const struct host_rank *r, struct rank_waits *out);

/* host_peers_leave, _renew, _break, _fault, _waits - the same for both memberships; waits are
 * added, and of two faults that of sums is told */
void host_peers_leave(struct host_peers *p);
void host_peers_renew(struct host_peers *p);
void host_peers_break(struct host_peers *p);
const char *host_peers_fault(const struct host_peers *p);
void host_peers_waits(const struct host_peers *p, struct rank_waits *out);

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
