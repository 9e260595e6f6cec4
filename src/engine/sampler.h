/* sampler.h - from the requests of a plan to the rows of the sample operator
 *
 * A draw is keyed by (seed, position of the token drawn), so it does not depend on the step, the
 * neighbours or what happened before. min_tokens bans the stop ids while they do not count. The
 * prompt and output go along only for rows with a penalty.
 */
#ifndef FATHOM_ENGINE_SAMPLER_H
#define FATHOM_ENGINE_SAMPLER_H

#include <stddef.h>
#include <stdint.h>

#include "backend/op_sample.h"
#include "engine/batch_build.h"
#include "sched/sched.h"

/* Bytes of the block that a step uses. */
struct block_range {
    size_t offset;
    size_t n_bytes;
};

struct sampler_step {
    struct sample_args args;      /* logits and outputs are left to the runner; n_row may be 0 */
    uint32_t n_top;               /* the largest of the rows' */
    struct block_range extras[3]; /* bias, bans, histories: what to copy besides the prefix */
};

/* sampler_build - write the rows of every entry that draws, in the plan's order
 *
 *   host, device  as for batch_build
 * Needs   every request of the plan is the first member of a struct sequence. */
void sampler_build(const struct batch_layout *l, const struct plan *plan, void *host, void *device,
                   struct sampler_step *out);

#endif
