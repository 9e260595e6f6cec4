/* draft_pace.h - how many drafts a request gets, from how its earlier ones fared
 *
 * A draft pays when its chance of being kept is at least DRAFT_PAYS. The rate at place i is the
 * recent share of drafts there that were right after all drafts before them were right. The chance
 * of the draft at place i is the product of the rates at places 0 .. i. After DRAFT_PROBE_STEPS
 * steps with fewer drafts than allowed, one more is tried: so a text that becomes easy again is
 * noticed. The number of drafts never changes what is drawn.
 */
#ifndef FATHOM_ENGINE_DRAFT_PACE_H
#define FATHOM_ENGINE_DRAFT_PACE_H

#include <stdint.h>

#include "fathom/fathom.h"

#define DRAFT_PAYS 0.3f
enum { DRAFT_PROBE_STEPS = 32 };

struct draft_pace {
    float rates[FATHOM_DRAFT_MAX];
    uint32_t n_short; /* steps since the last one with as many drafts as are allowed, or a probe */
};

/* draft_pace_init - as if all earlier drafts had been right */
void draft_pace_init(struct draft_pace *p);

/* draft_pace_next - drafts for the next step, 0 .. max */
uint32_t draft_pace_next(struct draft_pace *p, uint32_t max);

/* draft_pace_note - n_accepted of n_draft drafts were right; the one after them was not */
void draft_pace_note(struct draft_pace *p, uint32_t n_draft, uint32_t n_accepted);

#endif
