/* gate.h - the connections: how many there are, and how long each may take to say what it wants
 *
 *   enter --> HEAD --headers complete--> BODY --body complete--> ANSWER --answer gone--> HEAD
 *     HEAD and BODY have a deadline, however busily bytes trickle in. When it has passed, the
 *     socket is shut down, which makes the HTTP library drop the connection. ANSWER has no
 *     deadline: the bound of a slow reader is its backlog.
 *
 * A connection above the limit is let in so that it can be told: its requests get 503 and it is
 * closed. Beyond a reserve of such connections the system's own queue holds them.
 */
#ifndef FATHOM_SERVER_HTTP_GATE_H
#define FATHOM_SERVER_HTTP_GATE_H

#include <stdbool.h>
#include <stdint.h>

#include "fathom/err.h"

struct gate;
struct gate_pass; /* one connection */

struct gate_limits {
    uint32_t max_connections;
    uint32_t head_timeout_ms; /* from the first byte possible to the last header */
    uint32_t idle_timeout_ms; /* the same on a connection that has been answered before */
    uint32_t body_timeout_ms; /* from the last header to the body's end */
};

enum gate_phase { GATE_HEAD, GATE_BODY, GATE_ANSWER };

/* gate_create - no connection yet; gate_destroy accepts NULL
 * Needs   every pass given back, for gate_destroy.
 * Errors  ENOMEM. */
fathom_err gate_create(struct gate **out, const struct gate_limits *limits);
void gate_destroy(struct gate *g);

/* gate_enter - a connection on socket fd, phase HEAD; NULL when out of memory: it goes unwatched
 * gate_leave - before fd is closed; accepts NULL */
struct gate_pass *gate_enter(struct gate *g, int fd, uint64_t now_us);
void gate_leave(struct gate *g, struct gate_pass *pass);

/* gate_move - the connection is in this phase from now on; accepts NULL */
void gate_move(struct gate *g, struct gate_pass *pass, enum gate_phase phase, uint64_t now_us);

/* gate_is_over_limit - it came when max_connections were there; false for NULL */
bool gate_is_over_limit(const struct gate_pass *pass);

/* gate_sweep - shut down every connection that is past its deadline
 * Returns how many.
 * Cost    O(connections). */
uint32_t gate_sweep(struct gate *g, uint64_t now_us);

/* gate_shut - shut down every connection, and from now on each that enters */
void gate_shut(struct gate *g);

/* gate_n - connections now; gate_n_late - shut down so far */
uint32_t gate_n(struct gate *g);
uint64_t gate_n_late(struct gate *g);

#endif
