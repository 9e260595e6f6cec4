/* gate.h - the connections of a port: how many there are, what each is waited for, and who goes
 * when there are too many
 *
 *   enter --> NEW --first byte--> HEAD --head complete--> BODY --body complete--> BUSY
 *     BUSY --its client does not read--> UNREAD --it has read all--> BUSY
 *     BUSY --answer gone--> KEPT --first byte--> HEAD
 *     BUSY --answer gone, closing--> CLOSING
 *
 * Every phase but BUSY has a deadline, the same for each connection in it, so its list is in order
 * of deadlines: entering, moving, leaving and the sweep cost O(1) a connection. A connection that
 * is cut has its socket shut down, which its thread sees and closes; until then it holds its file
 * and counts in gate_n, but takes no place.
 *
 * When a connection comes and no place is free, one of the slowest class is cut for it: the oldest
 * that says nothing (NEW, KEPT), else the oldest in HEAD, else the slowest in BODY. If all are
 * BUSY, it is let in over the limit so that it can be told, up to a reserve of such. Nobody is cut
 * whose bytes wait to be read.
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

enum { GATE_OVER_LIMIT_MAX = 64 }; /* connections above the limit that are told so */

struct gate_limits {
    uint32_t max_connections;
    uint32_t head_timeout_ms;   /* for the first byte, and from it to the last header */
    uint32_t idle_timeout_ms;   /* for the first byte after an answer */
    uint32_t body_timeout_ms;   /* from the last header to the body's end */
    uint32_t unread_timeout_ms; /* for a client to read anything of what waits for it */
    size_t max_unread_bytes;    /* that wait for clients to read, of all connections */
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

/* gate_set_max - another max_connections; gate_max - what it is */
void gate_set_max(struct gate *g, uint32_t max_connections);
uint32_t gate_max(struct gate *g);

/* gate_enter - a connection on socket fd, phase NEW
 * gate_leave - before fd is closed
 * Errors  EBUSY: no place, and none to be had soon; ENOMEM. */
fathom_err gate_enter(struct gate *g, int fd, uint64_t now_us, struct gate_pass **out);
void gate_leave(struct gate *g, struct gate_pass *pass);

/* gate_move - the connection is in this phase from now on, any but UNREAD */
void gate_move(struct gate *g, struct gate_pass *pass, enum gate_phase phase, uint64_t now_us);

/* gate_note_body - n more bytes of a body have come */
void gate_note_body(struct gate_pass *pass, size_t n);

/* gate_note_unread - phase UNREAD: some of an answer has been read just now, and so many bytes of
 * it wait. When all that wait pass max_unread_bytes, the connections with the greatest product of
 * bytes and silence are cut until they do not. */
void gate_note_unread(struct gate *g, struct gate_pass *pass, size_t bytes, uint64_t now_us);

/* gate_is_full - gate_enter would say EBUSY: who comes is left to the system's queue */
bool gate_is_full(struct gate *g);

/* gate_is_over_limit - it came when no place was free */
bool gate_is_over_limit(const struct gate_pass *pass);

/* gate_drop_slowest - cut one of the slowest class; false: all are BUSY
 * Cost    O(1); O(connections in BODY) when there is no other. */
bool gate_drop_slowest(struct gate *g, uint64_t now_us);

/* gate_sweep - cut every connection that is past its deadline
 * Returns how many. */
uint32_t gate_sweep(struct gate *g, uint64_t now_us);

/* gate_shut - cut every connection, and from now on each that enters */
void gate_shut(struct gate *g);

/* gate_n - connections now; gate_n_late, gate_n_dropped - cut so far by their deadline, for others
 * gate_unread_bytes - that wait for clients to read */
uint32_t gate_n(struct gate *g);
uint64_t gate_n_late(struct gate *g);
uint64_t gate_n_dropped(struct gate *g);
size_t gate_unread_bytes(struct gate *g);

#endif
