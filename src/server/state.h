/* state.h - flags and counts that any thread of the server reads and changes, without a lock
 *
 * The order in which the server's locks are taken: first the lock of the jobs, then the lock of one
 * job. The locks of the workers, the grammar cache, the engine, the gate, the mail of connections
 * and a batch are taken last, and no other lock is taken while one of these is held.
 */
#ifndef FATHOM_SERVER_STATE_H
#define FATHOM_SERVER_STATE_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>

#include "base/assert.h"

struct server_state {
    atomic_bool draining;     /* requests are refused */
    atomic_bool cancelling;   /* requests in flight are cancelled */
    atomic_size_t held_bytes; /* bytes of bodies that were received and are not yet parsed */
    size_t max_held_bytes;    /* fixed */
};

/* state_drop_bytes - give back what state_hold_bytes has counted */
static inline void state_drop_bytes(struct server_state *s, size_t n)
{
    size_t before = atomic_fetch_sub(&s->held_bytes, n);
    ASSERT(before >= n);
}

/* state_hold_bytes - count n more bytes of a body; false, and nothing counted, when all bodies
 * together would pass max_held_bytes */
static inline bool state_hold_bytes(struct server_state *s, size_t n)
{
    if (atomic_fetch_add(&s->held_bytes, n) + n <= s->max_held_bytes) return true;
    state_drop_bytes(s, n);
    return false;
}

#endif
