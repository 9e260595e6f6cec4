/* lane.h - requests that are planned together: a scheduler, pages, a prefix cache, drafts
 *
 * An engine has a lane for each rank whose requests are its own (parallel.h, axis dp), and one
 * where there is no such axis. A request is on one lane from its arrival to its end. Lanes step
 * together: each plans for itself, and a step has a part for each. All of it belongs to the
 * engine's thread.
 */
#ifndef FATHOM_ENGINE_LANE_H
#define FATHOM_ENGINE_LANE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "engine/admission.h"
#include "engine/draft.h"
#include "engine/sequence.h"
#include "engine/step_runner.h"
#include "kv/page_pool.h"
#include "kv/prefix.h"
#include "sched/sched.h"

struct lane {
    uint32_t i; /* its number */
    uint32_t first,
        end; /* no request that came here may be on a lane before first, or from end on */
    struct page_pool *pool;
    struct prefix_cache *prefix; /* NULL: turned off */
    struct sched *sched;
    struct drafter *drafters; /* [n_drafter]: of each stage's step one */
    uint32_t n_drafter;
    uint64_t n_owed_token; /* prompt tokens of its live requests that are not computed yet */
};

struct lane_config {
    struct sched_config sched; /* its lane and n_lane too */
    uint32_t n_page;
    bool no_prefix_cache;
};

/* lane_init - without requests; errors as of its parts. lane_fini accepts a zeroed lane. */
fathom_err lane_init(struct lane *l, const struct lane_config *c, fathom_diag *d);
void lane_fini(struct lane *l);

/* lane_check - assert the invariants of the scheduler and of what is owed; between the commit of a
 * step and the next plan */
void lane_check(const struct lane *l);

/* ---- requests come and go ---- */

/* lane_choose - where a new request goes: of the lanes that are not far more loaded than the
 * others, to the one with most of its pages in the cache, then to the least loaded, then to the
 * lowest number
 *
 * A lane's load is the prompt tokens that it owes, and LANE_LIVE_TOKENS for each live request. It
 * is far more loaded with above 1.25 times the mean and slack_token besides, so that what many
 * prompts begin with does not bring all of them to one lane. A lane on which max_num_seqs requests
 * live is chosen only when that is so on all.
 *
 *   q  NEW; of the lanes that it may be on, which alone are compared
 * Cost  O(tokens of the prompt that are found) a lane; with one lane none. */
enum { LANE_LIVE_TOKENS = 64 };
struct lane *lane_choose(struct lane *lanes, uint32_t n_lane, struct sequence *q,
                         uint32_t max_num_seqs, uint32_t slack_token);

/* lane_add - the request is the lane's. lane_end - and is over; its owner publishes it. */
void lane_add(struct lane *l, struct sequence *q);
void lane_end(struct lane *l, struct sequence *q, enum request_finish why, uint64_t now_us);

/* lanes_level - to each lane that has a place and nobody who waits for it goes one who waits for a
 * place on another, has had no pages there and may be on both; before each plan
 *
 * Returns  how many have moved.
 * Cost     O(lanes) a lane, and the requests that wait where some may be on both; nothing is looked
 *          at where nobody waits. */
uint32_t lanes_level(struct lane *lanes, uint32_t n_lane, uint32_t max_num_seqs);

/* ---- its part of a step ---- */

/* lane_write_step - the arrays and sample rows of a plan, into the lane's block of the runner
 *
 *   plan  the scheduler's, whose draws the step makes
 *   part  what is computed: the plan, or what share_plan makes of it. Without entries the lane has
 *         no part, and gets a step of no rows
 *   step  its pass is given */
void lane_write_step(const struct lane *l, const struct plan *plan, const struct plan *part,
                     const struct step_runner *r, struct step *step);

/* lane_has_part - whether a step has rows of the lane */
static inline bool lane_has_part(const struct step *step)
{
    return step->batch.n_token > 0;
}

/* lane_rest - a step of no rows, of the same pass */
void lane_rest(struct step *step, enum step_pass pass);

/* lane_fill_masks - what constraints allow, into the block of a step that is under way; returns how
 * many masks
 *
 *   i_drafter  whose pass it is, of a pass of drafts */
uint32_t lane_fill_masks(const struct lane *l, const struct plan *plan, const struct step_runner *r,
                         const struct step *step, uint32_t i_drafter);

/* lane_reads_ids - whether the row of the token `n_behind` behind the next one of a request of the
 * plan depends on ids not drawn yet */
bool lane_reads_ids(const struct plan *plan, uint32_t n_behind);

/* What a step gave, of all lanes. */
struct lane_tally {
    fathom_stats *stats;
    struct sequence **told; /* [lanes * max_num_seqs], n_told of them: those with events */
    size_t n_told;
    uint32_t n_token;
    struct admission_step measured;
};

/* lane_finish - the lane's part has been computed: keep what was drawn, commit, let constraints
 * follow, and count it into *t */
void lane_finish(struct lane *l, const struct plan *plan, const struct step_result *result,
                 uint64_t now_us, struct lane_tally *t);

/* lane_fill_stats - its member of fathom_stats, and its share of the sums there, which are 0 before
 * the first lane */
void lane_fill_stats(const struct lane *l, fathom_stats *s);

#endif
