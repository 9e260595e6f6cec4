/* tier_lacking.c - a ring of the pulls that did not get what they asked for
 *
 * Invariant  Of the places that are set no two have the same pull. */
#include "kv/tier_lacking.h"

#include <stddef.h>

enum { AGAIN_LEAST_US = 2000 };

static struct lacking *find(const struct tier_lacking *all, uint64_t pull)
{
    for (uint32_t k = 0; k < TIER_LACKING_MAX && k < all->n; k++) {
        const struct lacking *l = &all->pulls[k];
        if (l->is_set && l->pull == pull) return (struct lacking *)l;
    }
    return NULL;
}

/* The same, made if there is none. */
static struct lacking *need(struct tier_lacking *all, uint64_t pull, uint64_t now_us)
{
    struct lacking *l = find(all, pull);
    if (l) return l;
    l = &all->pulls[all->n++ % TIER_LACKING_MAX];
    *l = (struct lacking){.is_set = true, .pull = pull, .since_us = now_us};
    return l;
}

const struct lacking *tier_lacking_of(const struct tier_lacking *all, uint64_t pull)
{
    return find(all, pull);
}

void tier_lacking_wait(struct tier_lacking *all, uint64_t pull, uint32_t place, uint64_t now_us,
                       uint64_t busy_us)
{
    struct lacking *l = need(all, pull, now_us);
    l->place = place;
    uint64_t pause_us = (now_us - l->since_us) / 8;
    if (pause_us < AGAIN_LEAST_US) pause_us = AGAIN_LEAST_US;
    l->again_us = now_us + (pause_us < TIER_AGAIN_US ? pause_us : TIER_AGAIN_US);
    if (l->until_us < now_us + 2 * busy_us) l->until_us = now_us + 2 * busy_us;
}

uint64_t tier_lacking_until_us(const struct tier_lacking *all, uint32_t place)
{
    uint64_t until_us = 0;
    for (uint32_t k = 0; k < TIER_LACKING_MAX && k < all->n; k++) {
        const struct lacking *l = &all->pulls[k];
        if (!l->is_set || l->lost || l->place != place) continue;
        if (l->until_us > until_us) until_us = l->until_us;
    }
    return until_us;
}

void tier_lacking_came(struct tier_lacking *all, uint64_t pull)
{
    struct lacking *l = find(all, pull);
    if (l && !l->lost) l->is_set = false;
}

bool tier_lacking_lose(struct tier_lacking *all, uint64_t pull, uint64_t now_us)
{
    struct lacking *l = need(all, pull, now_us);
    bool is_new = !l->lost;
    l->lost = true;
    return is_new;
}

bool tier_lacking_asks(const struct tier_lacking *all, uint64_t now_us)
{
    for (uint32_t k = 0; k < TIER_LACKING_MAX && k < all->n; k++) {
        const struct lacking *l = &all->pulls[k];
        if (l->is_set && !l->lost && now_us < l->again_us + TIER_AGAIN_US) return true;
    }
    return false;
}
