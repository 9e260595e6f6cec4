/* tier_pace.c - a mean of the latest fetches */
#include "kv/tier_pace.h"

#define FRESH_US 60000000 /* older measurements say nothing */

static bool is_known(const struct tier_pace *p, uint64_t now_us)
{
    return p->page_us > 0 && now_us - p->seen_us < FRESH_US;
}

void tier_pace_note(struct tier_pace *p, uint64_t now_us, uint32_t n_page, uint64_t us)
{
    /* A fetch that brought no page counts as one page. */
    double page_us = (double)us / (n_page > 0 ? n_page : 1);
    p->page_us = is_known(p, now_us) ? p->page_us + 0.25 * (page_us - p->page_us) : page_us;
    p->seen_us = now_us;
}

bool tier_pace_pays(const struct tier_pace *p, uint64_t now_us, double prefill_page_us)
{
    return !is_known(p, now_us) || prefill_page_us <= 0 || p->page_us <= prefill_page_us;
}

uint64_t tier_pace_patience_us(double prefill_page_us, uint32_t n_page)
{
    if (prefill_page_us <= 0) return 5000000;
    double us = n_page * prefill_page_us;
    return us > 1e6 ? (uint64_t)us : 1000000;
}
