/* state_text.c - lines of counters and of requests in flight */
#include "server/http/state_text.h"

#include "http/gate.h"
#include "server/job.h"

fathom_err state_write(const struct route_env *env, struct buf *out)
{
    fathom_stats stats;
    fathom_get_stats(env->served->engine, &stats);
    (void)buf_printf(out,
                     "engine running=%u waiting=%u step=%llu progress=%llu pages_free=%u "
                     "pages_cached=%u pages=%u failed=%d\n",
                     stats.n_running, stats.n_waiting, (unsigned long long)stats.n_step,
                     (unsigned long long)stats.progress, stats.n_page_free, stats.n_page_cached,
                     stats.n_page, stats.failed);
    (void)buf_printf(out, "server connections=%u held_bytes=%zu draining=%d\n", gate_n(env->gate),
                     atomic_load(&env->state->held_bytes), atomic_load(&env->state->draining));
    jobs_dump(env->jobs, out);
    return buf_status(out);
}
