/* tier_lacking.h - what pulls from other servers lack, and when they ask again
 *
 * A pull (kv/tiers.h) whose server does not have a record yet asks for it again after an eighth of
 * the time that it has been lacking, and after TIER_AGAIN_US at most. When a record comes, that is
 * forgotten. A pull that is lost asks no more; that is remembered until TIER_LACKING_MAX later ones
 * have been lost or have waited.
 */
#ifndef FATHOM_KV_TIER_LACKING_H
#define FATHOM_KV_TIER_LACKING_H

#include <stdbool.h>
#include <stdint.h>

enum { TIER_LACKING_MAX = 64, TIER_AGAIN_US = 32000 };

struct lacking {
    bool is_set;
    bool lost;
    uint64_t pull;
    uint32_t place; /* its server */
    uint64_t since_us;
    uint64_t again_us; /* nothing is asked for before */
    uint64_t until_us; /* the server may be busy, by what it has said */
};

/* All zero: nothing is lacking. */
struct tier_lacking {
    struct lacking pulls[TIER_LACKING_MAX]; /* a ring of the latest */
    uint32_t n;                             /* ever */
};

/* tier_lacking_of - what is known of a pull; NULL: nothing stands against it */
const struct lacking *tier_lacking_of(const struct tier_lacking *all, uint64_t pull);

/* tier_lacking_wait - the server of a place does not have it yet, and needs busy_us for the prompts
 * before */
void tier_lacking_wait(struct tier_lacking *all, uint64_t pull, uint32_t place, uint64_t now_us,
                       uint64_t busy_us);

/* tier_lacking_until_us - what it has said, to whoever asked: pulls that wait for one record do not
 * all ask for it. 0: nothing to those that still wait */
uint64_t tier_lacking_until_us(const struct tier_lacking *all, uint32_t place);

/* tier_lacking_came - a record of the pull is here */
void tier_lacking_came(struct tier_lacking *all, uint64_t pull);

/* tier_lacking_lose - no more is asked for
 *
 * Returns  whether that is new. */
bool tier_lacking_lose(struct tier_lacking *all, uint64_t pull, uint64_t now_us);

/* tier_lacking_asks - whether a pull that is not lost will ask again; one that could have asked
 * TIER_AGAIN_US ago has nobody who does */
bool tier_lacking_asks(const struct tier_lacking *all, uint64_t now_us);

#endif
