/* health.c - see health.h for what is told when */
#include "server/health.h"

#include "base/clock.h"
#include "base/fail.h"
#include "base/log.h"
#include "server/served.h"
#include "server/state.h"

void health_init(struct health *h, const struct served *served, const struct server_state *state,
                 uint64_t now_us)
{
    h->served = served;
    h->state = state;
    atomic_init(&h->progress, 0);
    atomic_init(&h->moved_us, now_us);
    atomic_init(&h->stuck, false);
}

uint64_t health_note(struct health *h, const fathom_stats *stats, uint64_t now_us)
{
    bool live = stats->n_running + stats->n_waiting > 0;
    if (atomic_exchange(&h->progress, stats->progress) != stats->progress || !live) {
        atomic_store(&h->moved_us, now_us);
        return 0;
    }
    uint64_t moved_us = atomic_load(&h->moved_us);
    return now_us > moved_us ? now_us - moved_us : 0;
}

/* Fills *stats too; returns 0 unless the engine is stuck, else for how long it has been still. */
static uint64_t stuck_us(struct health *h, fathom_stats *stats)
{
    fathom_get_stats(h->served->engine, stats);
    uint64_t still_us = health_note(h, stats, clock_now_us());
    bool stuck = still_us > (uint64_t)h->served->o.stall_timeout_ms * 1000;
    if (atomic_exchange(&h->stuck, stuck) != stuck) {
        if (stuck) {
            LOG_ERROR("server",
                      "the engine is stuck: step %llu has not moved for %llu ms, %u "
                      "requests run, %u wait",
                      (unsigned long long)stats->n_step + 1, (unsigned long long)still_us / 1000,
                      stats->n_running, stats->n_waiting);
        } else {
            LOG_WARN("server", "the engine moves again");
        }
    }
    return stuck ? still_us : 0;
}

bool health_look(struct health *h)
{
    fathom_stats stats;
    return stuck_us(h, &stats) > 0;
}

static fathom_err check_live(struct health *h, fathom_stats *stats, struct api_error *e)
{
    uint64_t still_us = stuck_us(h, stats);
    if (stats->failed) {
        const char *fault = fathom_fault(h->served->engine);
        return api_error_set(e, 503, "engine_failed", NULL, "the engine has failed: %s",
                             fault[0] ? fault : "no cause is known");
    }
    if (still_us) {
        return api_error_set(e, 503, "engine_stalled", NULL,
                             "the engine is stuck: step %llu has not moved for %.1f s, allowed are "
                             "%.1f s (--stall-timeout); %u requests run, %u wait",
                             (unsigned long long)stats->n_step + 1, (double)still_us / 1e6,
                             h->served->o.stall_timeout_ms / 1e3, stats->n_running,
                             stats->n_waiting);
    }
    return FATHOM_OK;
}

static fathom_err write_body(struct health *h, const fathom_stats *stats, struct buf *body)
{
    return buf_printf(body, "{\"status\":\"%s\",\"running\":%u,\"waiting\":%u}",
                      atomic_load(&h->state->draining) ? "draining" : "ok", stats->n_running,
                      stats->n_waiting);
}

fathom_err health_tell_live(struct health *h, struct buf *body, struct api_error *e)
{
    fathom_stats stats;
    TRY(check_live(h, &stats, e));
    return write_body(h, &stats, body);
}

fathom_err health_check_ready(struct health *h, fathom_stats *stats, struct api_error *e)
{
    TRY(check_live(h, stats, e));
    if (atomic_load(&h->state->draining)) {
        return api_error_set(e, 503, "shutting_down", NULL, "the server is shutting down");
    }
    if (stats->away[0]) return api_error_set(e, 503, "host_away", NULL, "%s", stats->away);
    return FATHOM_OK;
}

fathom_err health_tell_ready(struct health *h, struct buf *body, struct api_error *e)
{
    fathom_stats stats;
    TRY(health_check_ready(h, &stats, e));
    return write_body(h, &stats, body);
}
