/* tier_pace.h - what a page of a fetch took lately, beside what computing it takes */
#ifndef FATHOM_KV_TIER_PACE_H
#define FATHOM_KV_TIER_PACE_H

#include <stdbool.h>
#include <stdint.h>

/* All zero: nothing is known. */
struct tier_pace {
    double page_us; /* 0: unknown */
    uint64_t seen_us;
};

/* tier_pace_note - a fetch of n pages took so long */
void tier_pace_note(struct tier_pace *p, uint64_t now_us, uint32_t n_page, uint64_t us);

/* tier_pace_pays - whether a page comes sooner than it is computed, by the measurements of the last
 * minute; yes without one
 *
 *   prefill_page_us  what computing one takes; 0: unknown */
bool tier_pace_pays(const struct tier_pace *p, uint64_t now_us, double prefill_page_us);

/* tier_pace_patience_us - how long n pages are waited for: see tiers_patience_us of kv/tiers.h */
uint64_t tier_pace_patience_us(double prefill_page_us, uint32_t n_page);

#endif
