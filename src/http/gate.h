/* gate.h - the connections of a port: how many there are, how long each may take for what it does,
 * and which are cut when there are too many
 *
 *   enter --> NEW --first byte--> HEAD --head complete--> BODY --body complete--> BUSY
 *     BUSY --its client does not read--> UNREAD --it has read all--> BUSY
 *     BUSY --answer gone--> KEPT --first byte--> HEAD
 *     BUSY --answer gone, closing--> CLOSING
 *
 * Every phase but BUSY has a time limit, the same for all connections in it. So the list of a phase
 * is in order of deadlines, and entering, moving, leaving and the sweep cost O(1) per connection.
 * To cut a connection is to shut its socket down; its thread notices that and closes it. Until then
 * it has its descriptor and counts in gate_n, but takes no place.
 *
 * When a connection comes and no place is free, a slow one is cut for it: one in CLOSING, else the
 * oldest that is silent (NEW, KEPT), else the oldest in HEAD, else the slowest in BODY. If all
 * others are busy, the new one is let in over the limit, so that it gets an error answer; there is
 * a reserve for these. A connection whose bytes wait to be read is not cut.
 *
 * Any thread may call; one lock, held for a few instructions.
 */
#ifndef FATHOM_HTTP_GATE_H
#define FATHOM_HTTP_GATE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "fathom/err.h"

struct gate;
struct gate_pass; /* one connection */

enum { GATE_OVER_LIMIT_MAX = 64 }; /* connections over the limit, which get an error answer */

struct gate_limits {
    uint32_t max_connections;
    uint32_t head_timeout_ms;   /* for the first byte, and from it to the last header */
    uint32_t idle_timeout_ms;   /* for the first byte after an answer */
    uint32_t body_timeout_ms;   /* from the last header to the body's end */
    uint32_t unread_timeout_ms; /* for a client to read at least something of its answer */
    size_t max_unread_bytes;    /* bytes of answers that wait for clients, of all connections */
};

enum gate_phase {
    GATE_NEW,
    GATE_KEPT,
    GATE_HEAD,
    GATE_BODY,
    GATE_BUSY,
    GATE_UNREAD,
    GATE_CLOSING,
    GATE_N_PHASE,
};

/* gate_create - no connection yet; gate_destroy accepts NULL
 * Needs   every pass given back, for gate_destroy.
 * Errors  ENOMEM. */
fathom_err gate_create(struct gate **out, const struct gate_limits *limits);
void gate_destroy(struct gate *g);

/* gate_set_max - change max_connections; gate_max - what it is */
void gate_set_max(struct gate *g, uint32_t max_connections);
uint32_t gate_max(struct gate *g);

/* gate_enter - a connection on socket fd, phase NEW
 * gate_leave - before fd is closed
 * Errors  EBUSY: no place, and none to be had soon; ENOMEM. */
fathom_err gate_enter(struct gate *g, int fd, uint64_t now_us, struct gate_pass **out);
void gate_leave(struct gate *g, struct gate_pass *pass);

/* gate_move - the connection is in this phase from now on; not for UNREAD */
void gate_move(struct gate *g, struct gate_pass *pass, enum gate_phase phase, uint64_t now_us);

/* gate_note_body - n more bytes of a body have come */
void gate_note_body(struct gate_pass *pass, size_t n);

/* gate_note_unread - go to phase UNREAD: the client has just read a part of its answer, and `bytes`
 * of it still wait. If all waiting bytes together exceed max_unread_bytes, connections are cut
 * until they do not: always the one with the greatest product of bytes and time since its last
 * read. */
void gate_note_unread(struct gate *g, struct gate_pass *pass, size_t bytes, uint64_t now_us);

/* gate_is_full - whether gate_enter would return EBUSY. Then do not accept: the system queues them.
 * */
bool gate_is_full(struct gate *g);

/* gate_is_over_limit - it came when no place was free */
bool gate_is_over_limit(const struct gate_pass *pass);

/* gate_drop_slowest - cut one connection as for a new one; false: all are busy
 * Cost    O(1); O(connections in BODY) if only those can be cut. */
bool gate_drop_slowest(struct gate *g, uint64_t now_us);

/* gate_sweep - cut every connection that is past its deadline
 * Returns how many. */
uint32_t gate_sweep(struct gate *g, uint64_t now_us);

/* gate_shut - cut every connection, and from now on each that enters */
void gate_shut(struct gate *g);

/* gate_n - connections now; gate_n_late, gate_n_dropped - connections cut so far because they were
 * too late, and to make room for others
 * gate_unread_bytes - bytes of answers that wait for clients to read */
uint32_t gate_n(struct gate *g);
uint64_t gate_n_late(struct gate *g);
uint64_t gate_n_dropped(struct gate *g);
size_t gate_unread_bytes(struct gate *g);

#endif
