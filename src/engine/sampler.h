/* sampler.h - from requests that draw, or want logits of their prompt, to the rows of the sample
 * operator
 *
 * A draw is keyed by (seed, position of the token drawn), so it does not depend on the step, the
 * neighbours or what happened before. min_tokens bans the stop ids while they do not count. Prompt
 * and output are copied for rows with a penalty alone. A token after drafts is drawn as if the
 * drafts were output: it is the token that a step without drafts would draw. Each row under a
 * constraint has a mask, in the order of the rows, but those for tokens that may be any. A prompt
 * token is given, not drawn: its logits are those of the token before it.
 */
#ifndef FATHOM_ENGINE_SAMPLER_H
#define FATHOM_ENGINE_SAMPLER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "backend/op_sample.h"
#include "engine/batch_build.h"
#include "sched/sched.h"

struct sequence;

/* A step's rows being written. */
struct sampler {
    void *host;
    const struct batch_layout *l;
    uint32_t n_row;
    uint32_t n_top;
    uint32_t n_bias; /* elements used of the arrays that rows share */
    uint32_t n_ban;
    uint32_t n_history;
    uint32_t n_mask;
};

/* sampler_begin, sampler_add, sampler_end - rows one after the other
 *
 *   q         its constraint stands where ids are known or guessed
 *   logit_row the first of n logit rows, one after the other
 *   position  the draws are for positions position .. position + n - 1, all ids before them known
 *             or guessed
 *   plain     nobody wants log-probabilities */
void sampler_begin(struct sampler *s, const struct batch_layout *l, void *host);
void sampler_add(struct sampler *s, const struct sequence *q, uint32_t logit_row, uint32_t position,
                 uint32_t n, bool plain);
void sampler_end(const struct sampler *s, struct sample_shape *out);

/* sampler_reads_ids - whether the row of the token `n_behind` behind the next one depends on ids
 * that are not known: penalties, masks
 *
 * Needs  q's constraint AT_END. */
bool sampler_reads_ids(const struct sequence *q, uint32_t n_behind);

/* sampler_mask - room for mask number i of a step */
uint32_t *sampler_mask(const struct batch_layout *l, void *host, uint32_t i);

/* sampler_build - write the rows of every entry that draws, in the plan's order: one for its last
 * known token and one for each draft; then those of prompts, in the plan's order too
 *
 *   host  as for batch_build
 *         constraints return to the end of the known tokens
 * Needs   every request of the plan is the first member of a struct sequence; of a plan made ahead,
 *         none that sampler_reads_ids so far behind. */
void sampler_build(const struct batch_layout *l, const struct plan *plan, void *host,
                   struct sample_shape *out);

/* sampler_fill_masks - write the masks of the rows that sampler_build made: a draft's token counts
 * as drawn for the rows after it. Those after a draft that cannot be drawn do not matter.
 * Returns their number. */
uint32_t sampler_fill_masks(const struct batch_layout *l, const struct plan *plan, void *host);

#endif
