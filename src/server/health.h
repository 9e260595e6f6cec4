/* health.h - whether the engine makes progress, and what probes are told
 *
 * The watermark is fathom_stats.progress. The poll thread looks at it at every tick, and each probe
 * does. While requests are live and the watermark does not change, the engine is still. After
 * stall_timeout_ms of stillness it is stuck. An idle engine is never stuck.
 *
 *            live        ready
 *   serving  200         200
 *   draining 200         503 shutting_down
 *   stuck    503 engine_stalled, until the engine moves again
 *   failed   503 engine_failed, for good
 *   away     200         503 host_away, until all hosts are there
 */
#ifndef FATHOM_SERVER_HEALTH_H
#define FATHOM_SERVER_HEALTH_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/api_error.h"
#include "base/buf.h"
#include "fathom/fathom.h"

struct served;
struct server_state;

struct health {
    const struct served *served;
    const struct server_state *state;
    atomic_uint_fast64_t progress; /* as last seen */
    atomic_uint_fast64_t moved_us; /* when it was last seen to change, or no request was live */
    atomic_bool stuck;             /* as last told to the log */
};

/* health_init - as if the engine had moved now; health_note alone needs neither served nor state */
void health_init(struct health *h, const struct served *served, const struct server_state *state,
                 uint64_t now_us);

/* health_note - note the engine's statistics; any thread
 * Returns for how long the engine has been still, microseconds. */
uint64_t health_note(struct health *h, const fathom_stats *stats, uint64_t now_us);

/* health_look - health_note of what the engine tells now; logs when it gets stuck and when it moves
 * again.
 * Returns whether it is stuck. */
bool health_look(struct health *h);

/* health_check_ready - 503 in *e where requests are not taken
 *
 *   stats  written in any case */
fathom_err health_check_ready(struct health *h, fathom_stats *stats, struct api_error *e);

/* health_tell_live, health_tell_ready - the body of a probe's answer, or 503 in *e */
fathom_err health_tell_live(struct health *h, struct buf *body, struct api_error *e);
fathom_err health_tell_ready(struct health *h, struct buf *body, struct api_error *e);

#endif
