/* share.h - a long prompt that all lanes compute together
 *
 * The lane that a request is on is its home; the other lanes are guests. In a step that shares the
 * request's prompt, each lane computes a run of consecutive prompt tokens: the guests in the order
 * of their numbers, and the home the last run, whose last token draws. A guest has pages of its own
 * pool for all tokens of the prompt. After each layer's cache rows are written, every rank sends
 * the rows of its run to the others (op_attn.h, share_rows). The home also sends earlier rows that
 * the guests do not have. So sharing may begin at any token, stop, and go on.
 *
 * Bits do not depend on which lane computes a row, so when a prompt is shared changes the speed and
 * nothing else. The home's scheduler plans all of the step's tokens as if it had the budget of all
 * lanes (sched_lend); it knows nothing else of sharing.
 *
 * At most one prompt is shared in a step. A lane owes the prompt tokens that it has not computed
 * yet. If n lanes owe S tokens together, a lane owes much if it owes at least S / n + S / 8:
 * sharing costs an eighth (docs/parallel.md), so all lanes together then compute everything in no
 * more time than that lane needs for its own part. Only a lane that owes much shares a prompt.
 *
 * If several lanes owe much and have prompts long enough, the prompt that came first is shared. The
 * other lanes wait: their long prompt and the requests behind it are not planned. All other prompts
 * are planned as always, before those of the home. What waiting lanes owe does not count in S for
 * the choice of the home. So a prompt waits only for prompts that came before it, no later one gets
 * between, and when nothing is shared no prompt waits.
 *
 *   share_begin    before the plans: chooses the prompt, and takes pages for it on the guests
 *   ... the guests' schedulers plan ...
 *   share_lend     lends what they have left of their budgets to the home's scheduler
 *   ... the home's scheduler plans ...
 *   share_cut      decides which lane computes which run
 *   share_plan, share_put    each lane's part of the step, in place of its scheduler's plan
 *   share_settle   once the step is committed and the plans are not read any more
 */
#ifndef FATHOM_ENGINE_SHARE_H
#define FATHOM_ENGINE_SHARE_H

#include <stdbool.h>
#include <stdint.h>

#include "engine/step_runner.h"
#include "fathom/err.h"
#include "sched/sched.h"

/* A lane's part in sharing. */
struct share_part {
    struct sched *sched;
    struct request guest; /* on a guest: the shared request, as a request with the guest's pages */
    uint32_t *pages;      /* [request_n_page(max_context)] */
    struct plan plan;     /* what the lane computes in a shared step */
    uint32_t n_row;       /* how many rows of the shared prompt that includes */
    struct request *waiting; /* the request of this lane whose prompt waits; NULL: none does */
};

struct share {
    uint32_t n_lane; /* 0: no prompt is ever shared */
    uint32_t least;  /* a prompt is shared if it lacks least * n_lane tokens or more */
    uint32_t max_num_seqs;
    struct share_part *parts; /* [n_lane] */
    struct request *request;  /* the one that guests have pages for; NULL: none */
    uint32_t home;            /* its lane */
    uint32_t n_known;         /* all guests have its first n_known rows */
    uint32_t first;           /* the first token that the step planned last shares, */
    uint32_t n_token;         /* and how many it shares; 0: none */
};

struct share_config {
    uint32_t n_lane;
    uint32_t least; /* >= 1; no prompt has more than max_context */
    uint32_t max_num_seqs;
    uint32_t max_context;
    struct sched *scheds[PARALLEL_RANKS_MAX]; /* [n_lane], borrowed */
};

/* share_init - ENOMEM. share_fini accepts a zeroed share, with which nothing is ever shared. */
fathom_err share_init(struct share *s, const struct share_config *c);
void share_fini(struct share *s);

/* share_begin - choose the prompt that the next step may share, and take pages for it on all guests
 *
 * If there is none, pages that guests hold for an earlier choice stay: that prompt may be shared
 * again.
 *
 *   owed  [n_lane] prompt tokens that each lane owes
 * Returns  true: a prompt may be shared, and the home's scheduler must plan last.
 * Cost     O(lanes) if no lane owes much, else a call of sched_first_wide for each lane. */
bool share_begin(struct share *s, const uint64_t *owed);

/* share_is_waiting - whether a long prompt of lane i waits. If share_cut then returns 0, the lane
 * has to plan once more. */
static inline bool share_is_waiting(const struct share *s, uint32_t i)
{
    return s->parts[i].waiting != NULL;
}

/* share_lend - lend the guests' remaining budgets to the home's scheduler, which plans next. Lends
 * nothing if a guest has no room for one more token or request.
 *
 *   plans  [n_lane]; those of the guests have been made */
void share_lend(struct share *s, const struct plan *plans);

/* share_cut - divide the shared tokens of a step among the lanes; returns how many are shared
 *
 *   plans  [n_lane], all made; they are read until share_settle */
uint32_t share_cut(struct share *s, const struct plan *plans);

/* share_runs - divide T tokens among n lanes, at least one for each
 *
 * The lanes' totals (n_own + run) become as even as their room allows. Later lanes get what does
 * not divide evenly.
 *
 *   n_own  [n] tokens that a lane has in the step already
 *   room   [n] how many more it can have
 *   run    [n] written
 * Needs  1 <= room[i], n <= T <= the sum of room. */
void share_runs(uint32_t n_token, const uint32_t *n_own, const uint32_t *room, uint32_t n,
                uint32_t *run);

/* share_plan - what lane i computes in the step planned last; `own` is its scheduler's plan
 * share_is_guest_alone - whether lane i's part of that step is nothing but shared rows of a guest
 * */
const struct plan *share_plan(const struct share *s, uint32_t i, const struct plan *own);
bool share_is_guest_alone(const struct share *s, uint32_t i, const struct step *step);

/* share_put - write into the arrays of lane i's part which rows are shared */
void share_put(const struct share *s, uint32_t i, const struct batch_layout *l, void *host,
               struct step *step);

/* share_settle - the step has been committed, so the guests have its rows too. If the prompt is now
 * computed, or its request no longer runs, the guests give their pages back. */
void share_settle(struct share *s);

/* share_drop - request r is about to end: the guests give back their pages for it, if they have any
 * */
void share_drop(struct share *s, const struct request *r);

#endif
