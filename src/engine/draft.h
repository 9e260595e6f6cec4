/* draft.h - speculative decoding: the draft layer (MTP) guesses the next tokens of each request
 *
 * After a step of the model the draft layer goes over the same tokens once. That pass writes the
 * layer's cache rows at every position and gives one draft to each request that goes on. Further
 * passes over the last draft alone give more drafts. The next step computes the drafts beside the
 * known tokens. A draft is kept when the step draws the same token there (sched_commit), so drafts
 * change the speed and nothing else.
 *
 * A draft is drawn as the token itself will be: same parameters, same noise. When the draft
 * layer's logits are near the model's, both draw the same token, greedy or not. Under a constraint
 * a draft has the token's mask too. A draft that the constraint does not allow is dropped.
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

/* A request that gets drafts after the step under way; it is held (request.h) until it has them. */
struct draft_target {
    struct request *request; /* NULL: it has been dropped */
    uint32_t n_wanted;
    int32_t row; /* its last token in the pass before */
};

struct drafter {
    uint32_t max_draft;           /* 0: no drafts, and nothing else here is used */
    struct draft_target *targets; /* [max_num_seqs], n_target used */
    uint32_t n_target;
    struct plan plan; /* of the passes after the first */
};

/* drafter_init - ENOMEM. drafter_fini accepts a zeroed drafter. */
fathom_err drafter_init(struct drafter *d, uint32_t max_draft, uint32_t max_num_seqs);
void drafter_fini(struct drafter *d);

/* drafter_begin - write the pass over the tokens of a step
 *
 *   plan  committed; the pages of its requests are still as they were, also those given back
 *   l, host  the block with the step's arrays
 *   step  the model's step; becomes the draft layer's
 * Needs  max_draft > 0; every request is the first member of a struct sequence. */
void drafter_begin(struct drafter *d, const struct plan *plan, const struct batch_layout *l,
                   void *host, struct step *step);

/* drafter_fill_masks - the masks of the pass; returns their number */
uint32_t drafter_fill_masks(const struct drafter *d, const struct batch_layout *l, void *host);

/* drafter_drop - a request that ends, if it is getting drafts; what is drawn for it is passed
 * over */
void drafter_drop(struct drafter *d, const struct request *r);

/* drafter_take - append what a pass drew to the drafts of its requests; ids in its order */
void drafter_take(struct drafter *d, const int32_t *ids);

/* drafter_continue - write the pass that makes one draft more for those who want it; false when
 * nobody does
 *
 *   max_context  that no request's row is beyond */
bool drafter_continue(struct drafter *d, const struct batch_layout *l, uint32_t max_context,
                      void *host, struct step *step);

#endif
