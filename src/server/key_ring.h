/* key_ring.h - the API keys, and whose they are
 *
 * A key belongs to a tenant: to the one it was given with, else to one of its own. Tenants take
 * turns in the queue, do not find each other's stored responses, and share cached prompts only
 * where the operator says so. A tenant keeps its number while the ring lives, also when the keys
 * are replaced, so nobody comes by the responses of another.
 *
 * Any thread may call.
 */
#ifndef FATHOM_SERVER_KEY_RING_H
#define FATHOM_SERVER_KEY_RING_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "fathom/err.h"

struct key_ring;

/* Keys as the operator gives them. */
struct key_list {
    const char *const *keys;
    const char *const *tenants; /* whose they are; NULL: each has a tenant of its own, as has a key
                                   whose entry is NULL */
    size_t n;                   /* 0: everybody may ask */
};

/* key_list_check - whether these can be keys
 * Errors  EINVAL: a key is empty or holds what no header can carry (named by its place, never by
 *         its text). */
FATHOM_MUST_CHECK fathom_err key_list_check(const struct key_list *list, fathom_diag *d);

/* key_ring_create - the texts are copied
 * Errors  EINVAL as of key_list_check; ENOMEM. */
FATHOM_MUST_CHECK fathom_err key_ring_create(struct key_ring **out, const struct key_list *list,
                                             fathom_diag *d);

/* key_ring_destroy - accepts NULL */
void key_ring_destroy(struct key_ring *r);

/* key_ring_replace - from now on these keys alone are taken; after an error the old ones still are
 * Errors  EINVAL, ENOMEM as of key_ring_create; EINVAL also for 0 keys in place of some: a ring
 *         that is locked is never opened. */
FATHOM_MUST_CHECK fathom_err key_ring_replace(struct key_ring *r, const struct key_list *list,
                                              fathom_diag *d);

/* key_ring_find - whether a request that brings this key may ask
 *
 *   given   NULL: it brings none
 *   tenant  number of the key's tenant; 0 when the ring is open
 * Cost    that of comparing with every key, however much of one is right. */
bool key_ring_find(struct key_ring *r, const char *given, uint32_t *tenant);

/* key_ring_n - keys now; key_ring_n_tenant - tenants that these belong to */
size_t key_ring_n(struct key_ring *r);
size_t key_ring_n_tenant(struct key_ring *r);

/* key_ring_salt - a salt that keeps the cached prompts of a tenant apart from all others'
 *
 * It follows from the first key the tenant has ever had, so it is the same after a restart with the
 * same keys, and nobody without that key can compute it. Never 0. */
uint64_t key_ring_salt(struct key_ring *r, uint32_t tenant);

#endif
