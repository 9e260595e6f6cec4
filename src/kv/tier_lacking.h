/* tier_lacking.h - pulls from other servers that lack a record, and when they ask for it again
 *
 * If the server of a pull (tiers.h) does not have a record yet, it is asked again after an eighth
 * of the time for which the pull has lacked it, but after at most TIER_AGAIN_US. When a record
 * comes, the pull is forgotten here. A pull that is lost asks no more. That is remembered until
 * TIER_LACKING_MAX later pulls have been lost or had to wait.
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
    uint32_t place; /* the number of its server */
    uint64_t since_us;
    uint64_t again_us; /* when it may ask again */
    uint64_t until_us; /* until when the server may be busy, as it has said */
};

/* All zero: nothing is lacking. */
struct tier_lacking {
    struct lacking pulls[TIER_LACKING_MAX]; /* a ring of the latest */
    uint32_t n;                             /* ever */
};

/* tier_lacking_of - what is known of a pull; NULL: nothing, so it may ask */
const struct lacking *tier_lacking_of(const struct tier_lacking *all, uint64_t pull);

/* tier_lacking_wait - the server of a place does not have the record yet, and says that it needs
 * busy_us for the prompts that it has */
void tier_lacking_wait(struct tier_lacking *all, uint64_t pull, uint32_t place, uint64_t now_us,
                       uint64_t busy_us);

/* tier_lacking_until_us - until when the server of a place may be busy, by what it has said to any
 * pull that still waits for it (pulls that wait for the same record do not all ask); 0: nothing */
uint64_t tier_lacking_until_us(const struct tier_lacking *all, uint32_t place);

/* tier_lacking_came - a record of the pull has come */
void tier_lacking_came(struct tier_lacking *all, uint64_t pull);

/* tier_lacking_lose - the pull is lost: it asks no more
 *
 * Returns  false: it was lost before. */
bool tier_lacking_lose(struct tier_lacking *all, uint64_t pull, uint64_t now_us);

/* tier_lacking_asks - whether a pull will ask again. A pull that could have asked TIER_AGAIN_US ago
 * and has not does not count: its request has ended. */
bool tier_lacking_asks(const struct tier_lacking *all, uint64_t now_us);

#endif
