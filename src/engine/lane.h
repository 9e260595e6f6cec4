/* lane.h - requests that are planned together: a scheduler, pages, a prefix cache, drafts
 *
 * With data parallelism (parallel.h, axis dp) an engine has a lane for each rank, or group of
 * ranks, that has requests of its own. Otherwise it has one lane. A request stays on its lane,
 * except that one still waiting may move (lanes_level). Lanes step together: each makes a plan of
 * its own, and a step has a part for each lane. Lanes belong to the engine's thread.
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
    uint32_t i;          /* its number */
    uint32_t first, end; /* the lanes first .. end - 1 include all that its requests may be on */
    struct page_pool *pool;
    struct prefix_cache *prefix; /* NULL: turned off */
    struct sched *sched;
    struct drafter *drafters; /* [n_drafter]: one for each stage's step */
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

/* lane_check - assert the invariants of the scheduler and of n_owed_token; they hold between the
 * commit of a step and the next plan */
void lane_check(const struct lane *l);

/* ---- requests come and go ---- */

/* lane_choose - the lane for a new request
 *
 * It is the lane with most of the request's pages in its cache, then the least loaded, then the one
 * with the lowest number. A lane's load is the prompt tokens that it has not computed yet, plus
 * LANE_LIVE_TOKENS for each live request. The cached pages of a lane do not count if its load is
 * above 1.25 times the mean plus slack_token: so a prefix that many prompts have in common does not
 * bring all of them to one lane. A lane with max_num_seqs live requests is chosen only when all
 * have as many.
 *
 *   q  NEW; only the lanes that it may be on are compared
 * Cost  O(tokens of the prompt that are found) for each lane; nothing with one lane. */
enum { LANE_LIVE_TOKENS = 64 };
struct lane *lane_choose(struct lane *lanes, uint32_t n_lane, struct sequence *q,
                         uint32_t max_num_seqs, uint32_t slack_token);

/* lane_add - the request is on this lane now. lane_end - it has ended; the caller publishes it. */
void lane_add(struct lane *l, struct sequence *q);
void lane_end(struct lane *l, struct sequence *q, enum request_finish why, uint64_t now_us);

/* lanes_level - before each plan: move waiting requests from full lanes to lanes with room
 *
 * Each lane that has room for one more request and no waiting request gets one that waits on a full
 * lane, has held no page there and may be on both. It comes from the full lane on which most wait.
 * Returns  how many requests have moved.
 * Cost     O(lanes) for each lane, plus the waiting requests of a lane that is searched. */
uint32_t lanes_level(struct lane *lanes, uint32_t n_lane, uint32_t max_num_seqs);

/* ---- its part of a step ---- */

/* lane_write_step - write a plan's arrays and sample rows into the lane's block of the runner
 *
 *   plan  the scheduler's plan: the step makes its draws
 *   part  what the lane computes: the plan, or what share_plan makes of it. Without entries the
 *         lane has no part in the step, and *step gets no rows
 *   step  written, but for its pass, which the caller has set */
void lane_write_step(const struct lane *l, const struct plan *plan, const struct plan *part,
                     const struct step_runner *r, struct step *step);

/* lane_has_part - whether a step has rows of the lane */
static inline bool lane_has_part(const struct step *step)
{
    return step->batch.n_token > 0;
}

/* lane_rest - make *step one without rows, of this pass */
void lane_rest(struct step *step, enum step_pass pass);

/* lane_fill_masks - write the masks of constrained requests into the block of a step that has been
 * launched; returns how many
 *
 *   i_drafter  for a pass of drafts: which drafter made it */
uint32_t lane_fill_masks(const struct lane *l, const struct plan *plan, const struct step_runner *r,
                         const struct step *step, uint32_t i_drafter);

/* lane_reads_ids - whether, for any request of the plan, the sample row of the token `n_behind`
 * after the next one depends on ids that have not been drawn yet (sampler_reads_ids) */
bool lane_reads_ids(const struct plan *plan, uint32_t n_behind);

/* What the lanes' parts of a step add up to. */
struct lane_tally {
    fathom_stats *stats;
    struct sequence **told; /* [lanes * max_num_seqs], n_told used: sequences with new events */
    size_t n_told;
    uint32_t n_token;
    struct admission_step measured;
};

/* lane_finish - the lane's part has been computed: keep its results, commit the plan, advance the
 * constraints over the drawn tokens, and add to *t */
void lane_finish(struct lane *l, const struct plan *plan, const struct step_result *result,
                 uint64_t now_us, struct lane_tally *t);

/* lane_fill_stats - fill the lane's own entry of fathom_stats, and add to the sums over all lanes,
 * which the caller has set to 0 */
void lane_fill_stats(const struct lane *l, fathom_stats *s);

#endif
