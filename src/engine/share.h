/* share.h - a long prompt that all lanes compute together
 *
 * A request is its lane's, the home's. In a step that shares its prompt each lane computes a run of
 * the step's prompt tokens: the others, the guests, runs in the order of their numbers, and the
 * home the last one, whose last token draws. A guest has pages of its own pool for all tokens of
 * the prompt. After each layer's cache rows are written, every rank brings the rows of its run to
 * the others (op_attn.h, share_rows), and the home those from before that guests do not have. So
 * sharing may begin at any token, stop, and go on.
 *
 * Bits do not depend on which lane computes a row: when a prompt is shared is a matter of time
 * alone. The home's scheduler plans all of the step's tokens, as if it had the budget of all lanes
 * (sched_lend), and knows nothing else.
 *
 * One prompt a step is shared. With n lanes that owe S tokens of prompts, a lane owes much if it
 * owes S / n + S / 8 or more: computed together, all of it takes no longer than that lane's part by
 * itself, sharing costing an eighth (docs/parallel.md). A lane that owes much, with a prompt long
 * enough to be shared, waits while another's is shared that came before: neither that prompt nor
 * what is behind it on its lane is planned. All other prompts are planned as ever, before the
 * home's. A lane whose prompt is shared owes much of what those owe that do not wait. So whoever
 * waits does so for prompts that came before, no later one gets between, and when nothing is shared
 * nobody waits.
 *
 *   share_begin    before a plan: whose prompt, and pages of the guests
 *   ... the guests' schedulers plan ...
 *   share_lend     what they have left of their budgets, to the home's
 *   ... the home's scheduler plans ...
 *   share_cut      who computes what
 *   share_plan, share_put    each lane's part of the step, in place of its scheduler's plan
 *   share_settle   when the step is committed, and the plans are not read any more
 */
#ifndef FATHOM_ENGINE_SHARE_H
#define FATHOM_ENGINE_SHARE_H

#include <stdbool.h>
#include <stdint.h>

#include "engine/step_runner.h"
#include "fathom/err.h"
#include "sched/sched.h"

/* Of a lane. */
struct share_part {
    struct sched *sched;
    struct request guest; /* what the lane, not the home, knows of the request: ids and its pages */
    uint32_t *pages;      /* [request_n_page(max_context)] */
    struct plan plan;     /* its part of a shared step */
    uint32_t n_row;       /* of the prompt in it */
    struct request *waiting; /* its prompt that waits in the next step; NULL: none does */
};

struct share {
    uint32_t n_lane; /* 0: no prompt is ever shared */
    uint32_t least;  /* tokens that a prompt lacks, for each lane, from which on it is */
    uint32_t max_num_seqs;
    struct share_part *parts; /* [n_lane] */
    struct request *request;  /* guests have pages for its prompt; NULL: for none */
    uint32_t home;            /* its lane, if there is one */
    uint32_t n_known;         /* its first so many rows are on all guests */
    uint32_t first;           /* of a shared step: its first token, */
    uint32_t n_token;         /* and how many; 0: the step, planned last, shares nothing */
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

/* share_begin - whether the next step may share a prompt, which then has pages on all lanes
 *
 * It may where the home has a request that lacks least * n_lane tokens of its prompt. Where it may
 * not, guests' pages stay for a prompt that may be shared again.
 *
 *   owed  [n_lane] tokens of prompts
 * Returns  the home's scheduler is to plan last.
 * Cost     without a lane that owes much, O(lanes); else that of sched_first_wide a lane. */
bool share_begin(struct share *s, const uint64_t *owed);

/* share_is_waiting - whether lane i, whose next plan gives nothing to its long prompts, has to plan
 * once more if share_cut is 0 */
static inline bool share_is_waiting(const struct share *s, uint32_t i)
{
    return s->parts[i].waiting != NULL;
}

/* share_lend - to the home's scheduler, which plans next; nothing where a guest has no room for a
 * token, or for one more request in its plan
 *
 *   plans  [n_lane], all others' made */
void share_lend(struct share *s, const struct plan *plans);

/* share_cut - the runs of a step, all of whose plans are made; how many tokens are shared
 *
 *   plans  [n_lane], which it reads until share_settle */
uint32_t share_cut(struct share *s, const struct plan *plans);

/* share_runs - T tokens over n lanes, at least one for each
 *
 * Lanes have as even a number with what they have already as their room allows, the last ones no
 * fewer than those before them.
 *
 *   n_own  [n] tokens that a lane has already
 *   room   [n] and how many more it can have
 * Needs  1 <= room[i], n <= T <= the sum of room. */
void share_runs(uint32_t n_token, const uint32_t *n_own, const uint32_t *room, uint32_t n,
                uint32_t *run);

/* share_plan - what lane i computes in the step planned last, whose plan by its scheduler is `own`
 * share_is_guest_alone - nothing of it is its scheduler's */
const struct plan *share_plan(const struct share *s, uint32_t i, const struct plan *own);
bool share_is_guest_alone(const struct share *s, uint32_t i, const struct step *step);

/* share_put - into the arrays of lane i's part: what is shared */
void share_put(const struct share *s, uint32_t i, const struct batch_layout *l, void *host,
               struct step *step);

/* share_settle - the step has been committed: the guests have its rows too. Their pages are given
 * back when the prompt is computed, or its request is not running any more. */
void share_settle(struct share *s);

/* share_drop - the request is about to end, or all are void: r's pages on guests are given back */
void share_drop(struct share *s, const struct request *r);

#endif
