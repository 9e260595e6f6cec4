/* health.h - whether the engine gets on, and what probes are told
 *
 * The watermark is fathom_stats.progress. It is looked at by the poll thread at every tick and by
 * each probe; while requests are live and it does not change, the engine is still, and after
 * stall_timeout_ms of stillness it is stuck. An idle engine is never stuck.
 *
 *            live        ready
 *   serving  200         200
 *   draining 200         503 shutting_down
 *   stuck    503 engine_stalled, until the engine moves again
 *   failed   503 engine_failed, for good
 */
#ifndef FATHOM_SERVER_HEALTH_H
#define FATHOM_SERVER_HEALTH_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/buf.h"
#include "fathom/fathom.h"
#include "server/api/api_error.h"

struct server;

struct health {
    atomic_uint_fast64_t progress; /* as last seen */
    atomic_uint_fast64_t moved_us; /* when it was last seen to change, or no request was live */
    atomic_bool stuck;             /* as last told to the log */
};

/* health_init - as if the engine had moved now */
void health_init(struct health *h, uint64_t now_us);

/* health_note - take a look at the engine's statistics; any thread
 * Returns for how long the engine has been still, microseconds. */
uint64_t health_note(struct health *h, const fathom_stats *stats, uint64_t now_us);

/* health_look - health_note for the server's engine; logs when it gets stuck and when it moves
 * again. Returns whether it is stuck. */
bool health_look(struct server *s);

/* health_get_live, health_get_ready - the routes (routes.h) */
fathom_err health_get_live(struct server *s, const char *rest, struct buf *body,
                           struct api_error *e);
fathom_err health_get_ready(struct server *s, const char *rest, struct buf *body,
                            struct api_error *e);

#endif
