/* sampler.h - writes the rows of the sample operator for requests that draw, or that want logits of
 * their prompt
 *
 * The random numbers of a draw are keyed by (seed, position of the token drawn), so it does not
 * depend on the step, the neighbours or what happened before. While a request has fewer than
 * min_tokens output tokens, its stop ids are banned. Prompt and output are copied (the history)
 * only for rows with a penalty. A token after drafts is drawn as if the drafts were output: it is
 * the token that a step without drafts would draw. Each row under a constraint has a mask, in the
 * order of the rows, unless any token is allowed there. A prompt token is given, not drawn: its
 * logits are those of the row before it.
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

/* The rows of a step while they are written. */
struct sampler {
    void *host;
    const struct batch_layout *l;
    uint32_t n_row;
    uint32_t n_top;
    uint32_t n_bias; /* from here on: elements used of the arrays that all rows share */
    uint32_t n_ban;
    uint32_t n_history;
    uint32_t n_mask;
};

/* sampler_begin, sampler_add, sampler_end - write rows, one request after the other
 *
 *   q         the request; its constraint has consumed its known tokens, or drafts too
 *   logit_row the first of n consecutive rows of logits
 *   position  the draws are for the positions position .. position + n - 1. All ids before them are
 *             known, or drafts
 *   plain     without log-probabilities */
void sampler_begin(struct sampler *s, const struct batch_layout *l, void *host);
void sampler_add(struct sampler *s, const struct sequence *q, uint32_t logit_row, uint32_t position,
                 uint32_t n, bool plain);
void sampler_end(const struct sampler *s, struct sample_shape *out);

/* sampler_reads_ids - whether the row for the token `n_behind` after the next one cannot be written
 * yet, because a penalty or a mask depends on ids that are not known
 *
 * Needs  q's constraint AT_END. */
bool sampler_reads_ids(const struct sequence *q, uint32_t n_behind);

/* sampler_mask - where mask number i of a step lies */
uint32_t *sampler_mask(const struct batch_layout *l, void *host, uint32_t i);

/* sampler_build - write the sample rows of a plan
 *
 * First those of every entry that draws, in the plan's order: one for its last known token and one
 * for each draft. Then those of scored prompt tokens, in the plan's order too. Constraints go back
 * to the end of the known tokens.
 *
 *   host  as for batch_build
 * Needs   every request of the plan is the first member of a struct sequence. In a plan made ahead,
 *         sampler_reads_ids is false for every request. */
void sampler_build(const struct batch_layout *l, const struct plan *plan, void *host,
                   struct sample_shape *out);

/* sampler_fill_masks - write the masks of the rows that sampler_build made. For the rows after a
 * draft, the draft counts as drawn; if the constraint does not allow it, those masks do not matter.
 * Returns how many masks there are. */
uint32_t sampler_fill_masks(const struct batch_layout *l, const struct plan *plan, void *host);

#endif
