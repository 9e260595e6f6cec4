/* draft.h - speculative decoding: the draft layer (MTP) guesses the next tokens of each request
 *
 * After a step of the model, the draft layer runs once over the same tokens. That pass writes the
 * layer's cache rows at every position and gives one draft to each request that goes on. Further
 * passes, over the latest draft of each request, give more drafts. The next step of the model
 * computes the drafts together with the known tokens. A draft is accepted if the step draws the
 * same token in its place (sched_commit), so drafts change the speed and nothing else.
 *
 * A draft is drawn with the parameters and the noise with which the token itself will be drawn. So
 * when the draft layer's logits are close to the model's, both draw the same token, greedy or not.
 * Under a constraint a draft has the token's mask too, and a draft that the constraint does not
 * allow is dropped.
 *
 *   drafter_begin      the pass over the step's tokens    launch, drafter_fill_masks, draw, wait
 *   drafter_take       the drafts that it drew
 *   drafter_continue   the pass over those                launch, ..., drafter_take, ...
 */
#ifndef FATHOM_ENGINE_DRAFT_H
#define FATHOM_ENGINE_DRAFT_H

#include <stdbool.h>
#include <stdint.h>

#include "engine/step_runner.h"
#include "sched/sched.h"

/* A request that gets drafts after the step under way. It is held (request.h) until it has them. */
struct draft_target {
    struct request *request; /* NULL: it has ended meanwhile */
    uint32_t n_wanted;       /* drafts */
    int32_t row;             /* the row of its last token in the pass before */
};

struct drafter {
    uint32_t max_draft;           /* 0: no drafts, and the other members are not used */
    struct draft_target *targets; /* [max_num_seqs], n_target used */
    uint32_t n_target;
    struct plan plan; /* of the passes after the first */
};

/* drafter_init - ENOMEM. drafter_fini accepts a zeroed drafter. */
fathom_err drafter_init(struct drafter *d, uint32_t max_draft, uint32_t max_num_seqs);
void drafter_fini(struct drafter *d);

/* drafter_begin - write the first pass of the draft layer, over the tokens of a step
 *
 *   plan  the step's, committed. The pages that its requests had still hold their rows, even if the
 *         requests have given them back
 *   l, host  the block with the step's arrays
 *   step  the model's step; becomes the draft layer's
 * Needs  max_draft > 0; every request is the first member of a struct sequence. */
void drafter_begin(struct drafter *d, const struct plan *plan, const struct batch_layout *l,
                   void *host, struct step *step);

/* drafter_fill_masks - write the masks of the pass; returns how many */
uint32_t drafter_fill_masks(const struct drafter *d, const struct batch_layout *l, void *host);

/* drafter_drop - forget a request that ends, if it is getting drafts */
void drafter_drop(struct drafter *d, const struct request *r);

/* drafter_take - append what a pass drew (ids, in the pass's order) to the drafts of its requests
 * */
void drafter_take(struct drafter *d, const int32_t *ids);

/* drafter_continue - write the pass that makes one more draft for each request that wants one;
 * false: none does
 *
 *   max_context  at least the largest pos + 1 of the pass */
bool drafter_continue(struct drafter *d, const struct batch_layout *l, uint32_t max_context,
                      void *host, struct step *step);

#endif
