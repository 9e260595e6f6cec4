/* draft_pace.c - rates of drafts that were right, and how many drafts pay by them */
#include "engine/draft_pace.h"

#include "base/assert.h"

#define RATE_STEP 0.125f /* weight of the newest draft */

void draft_pace_init(struct draft_pace *p)
{
    *p = (struct draft_pace){0};
    for (int i = 0; i < FATHOM_DRAFT_MAX; i++) p->rates[i] = 1;
}

uint32_t draft_pace_next(struct draft_pace *p, uint32_t max)
{
    ASSERT(max <= FATHOM_DRAFT_MAX);
    float chance = 1;
    uint32_t n = 0;
    while (n < max && chance * p->rates[n] >= DRAFT_PAYS) chance *= p->rates[n++];
    if (n == max) {
        p->n_short = 0;
    } else if (++p->n_short == DRAFT_PROBE_STEPS) {
        p->n_short = 0;
        n++;
    }
    ASSERT(n <= max && p->n_short < DRAFT_PROBE_STEPS);
    return n;
}

void draft_pace_note(struct draft_pace *p, uint32_t n_draft, uint32_t n_accepted)
{
    ASSERT(n_accepted <= n_draft && n_draft <= FATHOM_DRAFT_MAX);
    for (uint32_t i = 0; i < n_draft && i <= n_accepted; i++) {
        p->rates[i] += RATE_STEP * ((i < n_accepted ? 1.0f : 0.0f) - p->rates[i]);
        ASSERT(p->rates[i] >= 0 && p->rates[i] <= 1);
    }
}
