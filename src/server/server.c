/* server.c - the server's threads from start to end
 *
 *   server_create --> SERVING --server_stop | engine failed--> DRAINING --> CANCELLING --> CLOSED
 *                                                (server_run)        (server_destroy)
 *
 *   SERVING     requests are taken
 *   DRAINING    `draining`: new requests get 503, connections are still taken so that they and the
 *               probes of /ready are told so; the rest go on
 *   CANCELLING  `cancelling`: what is in flight is answered with 503 and cancelled
 *   CLOSED      no connection, no thread; the jobs are gone, unless the engine does not give its
 *               requests back in time
 *
 * Order of the end: who waits for an answer is told before the connections end, so every job is
 * DONE before. The poll thread goes last, since it takes the FINISH events that release jobs.
 */
#include "server/server.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/fail.h"
#include "base/json_arena.h"
#include "base/limits.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/os.h"
#include "http/gate.h"
#include "http/listen.h"
#include "http/supervisor.h"
#include "server/batch_api.h"
#include "server/grammar_cache.h"
#include "server/health.h"
#include "server/http/access_log.h"
#include "server/http/admin.h"
#include "server/http/claim.h"
#include "server/http/http.h"
#include "server/http/state_text.h"
#include "server/job.h"
#include "server/key_ring.h"
#include "server/response_store.h"
#include "server/workers.h"

struct server {
    struct served served;
    struct server_state state;
    struct metrics metrics;
    struct health health;
    struct jobs jobs; /* the parts it points to are the server's */
    struct route_env env;
    struct gate *gate;
    struct server_claim *claim;
    bool owns_claim;
    struct http *http;   /* NULL: not open */
    struct batch *batch; /* with no_port; else NULL */
    struct admin *admin; /* NULL: none */
    pthread_t poll_thread;
    uint64_t trim_us; /* when the heap was last looked at; of the poll thread, as heap_free */
    size_t heap_free;
    bool poll_started;
    uint64_t patted_us;      /* when the service manager was told last that all is well */
    int stop_fd;             /* eventfd that server_run waits on */
    atomic_bool poll_ends;   /* the poll thread returns */
    atomic_bool engine_down; /* the engine has met a fatal error */
};

enum {
    POLL_EVENTS = 64,
    POLL_TIMEOUT_MS = 250,
    TICK_US = 250000,
    GIVE_BACK_US = 2000000,     /* between two looks at the heap */
    GIVE_BACK_BYTES = 32 << 20, /* of freed blocks, from which on it is trimmed */
    FAREWELL_MS = 5000,         /* a drain with an engine that has failed or is stuck */
    LAST_WORDS_MS = 1000,       /* for answers that are on their way out */
    ENGINE_PATIENCE_MS = 30000, /* for the FINISH events of cancelled requests */
};

/* ---- the poll thread ----------------------------------------------------------------------- */

static void look_at_engine(struct server *s)
{
    fathom_stats stats;
    (void)health_look(&s->health);
    fathom_get_stats(s->served.engine, &stats);
    if (stats.failed && !atomic_exchange(&s->engine_down, true)) {
        LOG_ERROR("server", "the engine has failed: %s", fathom_fault(s->served.engine));
        server_stop(s);
    }
}

static void tick(struct server *s, uint64_t now_us)
{
    look_at_engine(s);
    grammar_cache_tick(s->jobs.grammars, now_us);
    jobs_tick(&s->jobs, now_us);
    if (now_us - s->trim_us < GIVE_BACK_US) return;
    s->trim_us = now_us;
    mem_give_back(GIVE_BACK_BYTES, &s->heap_free);
}

static void *poll_main(void *arg)
{
    struct server *s = arg;
    fathom_event events[POLL_EVENTS];
    uint64_t tick_us = 0;
    os_name_thread("poll");
    while (!atomic_load(&s->poll_ends)) {
        size_t n = fathom_poll(s->served.engine, events, POLL_EVENTS, POLL_TIMEOUT_MS);
        for (size_t i = 0; i < n; i++) job_take_event(&events[i]);
        uint64_t now_us = clock_now_us();
        if (now_us - tick_us < TICK_US) continue;
        tick_us = now_us;
        tick(s, now_us);
    }
    return NULL;
}

/* ---- create -------------------------------------------------------------------------------- */

static void stop(void *arg)
{
    server_stop(arg);
}

/* The grammar that a job waited for is there, or will not be. */
static void wake_job(void *arg)
{
    struct job *job = arg;
    workers_resume(job->jobs->workers, job);
}

/* What jobs and routes work with. */
static fathom_err make_parts(struct server *s, fathom_diag *d)
{
    const struct server_options *o = &s->served.o;
    const struct gate_limits gate_limits = {.max_connections = o->max_connections,
                                            .head_timeout_ms = o->head_timeout_ms,
                                            .idle_timeout_ms = o->idle_timeout_ms,
                                            .body_timeout_ms = o->body_timeout_ms,
                                            .unread_timeout_ms = o->unread_timeout_ms,
                                            .max_unread_bytes = o->max_unread_bytes};
    const struct grammar_cache_config grammars = {.tokenizer = s->served.tokenizer,
                                                  .n_vocab = s->served.info->n_vocab,
                                                  .max_bytes = LIMIT_GRAMMAR_CACHE_BYTES,
                                                  .compile_us = &s->metrics.grammar_compile,
                                                  .wake = wake_job};
    const struct workers_config workers = {.n_thread = o->n_worker,
                                           .max = o->max_preparing,
                                           .n_tenant = key_ring_n_tenant(s->served.keys),
                                           .task = job_prepare,
                                           .done = job_release};
    const struct response_limits kept = {.max = o->max_stored_responses,
                                         .bytes = o->max_stored_bytes,
                                         .age_us = (uint64_t)o->stored_response_s * 1000000};
    s->state.max_held_bytes = o->max_held_bytes;
    metrics_init(&s->metrics, s->served.info->max_model_len);
    health_init(&s->health, &s->served, &s->state, clock_now_us());
    struct json_arena *first; /* jansson is taken over before there are threads that use it */
    TRY(json_arena_create(&first, 0));
    json_arena_destroy(first);
    s->jobs.served = &s->served;
    s->jobs.state = &s->state;
    s->jobs.metrics = &s->metrics;
    TRY(gate_create(&s->gate, &gate_limits));
    TRY(grammar_cache_create(&s->jobs.grammars, &grammars));
    if (!o->keep_no_responses) TRY(response_store_create(&s->jobs.responses, &kept));
    TRY(workers_create(&s->jobs.workers, &workers, d));
    s->env = (struct route_env){&s->served, &s->state, &s->health, &s->jobs, s->gate, 0};
    return FATHOM_OK;
}

static fathom_err start(struct server *s, fathom_diag *d)
{
    s->stop_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK | EFD_SEMAPHORE); /* each stop counts */
    if (s->stop_fd < 0) FAIL(d, FATHOM_EIO, "no handle to wait on: %s", strerror(errno));
    s->claim = s->served.o.claim;
    s->owns_claim = !s->claim && !s->served.o.no_port;
    if (s->owns_claim) TRY(server_claim_make(&s->claim, &s->served.o, d));
    TRY(make_parts(s, d));
    if (s->claim) s->jobs.traces = s->claim->traces;
    if (pthread_create(&s->poll_thread, NULL, poll_main, s) != 0) {
        FAIL(d, FATHOM_EIO, "the thread that polls the engine cannot be started");
    }
    s->poll_started = true;
    if (s->served.o.no_port) return batch_create(&s->batch, &s->env);
    TRY(http_open(&s->http, &s->env, s->claim, d));
    if (!s->served.o.admin_socket) return FATHOM_OK;
    return admin_open(&s->admin, &s->env, s->claim, stop, s, d);
}

fathom_err server_create(struct server **out, const struct server_options *o, fathom_engine *e,
                         const struct tokenizer *t, const struct chat_style *style, fathom_diag *d)
{
    *out = NULL;
    if (o->n_model_name == 0) FAIL(d, FATHOM_EINVAL, "the server needs a name for the model");
    struct server *s = mem_calloc(1, sizeof *s);
    if (!s) FAIL(d, FATHOM_ENOMEM, "out of memory for the server");
    s->stop_fd = -1;
    mem_return_large();
    jobs_init(&s->jobs);
    fathom_err err = served_open(&s->served, o, e, t, style, d);
    if (!err) err = start(s, d);
    if (err) {
        (void)diag_fail(d, err, "the server cannot start: %s", fathom_err_text(err));
        server_destroy(s);
        return err;
    }
    *out = s;
    return FATHOM_OK;
}

fathom_err server_check_address(const char *host, uint16_t port, fathom_diag *d)
{
    int fd;
    uint16_t chosen;
    TRY(listen_bind_tcp(host, port, &fd, &chosen, d));
    (void)close(fd);
    return FATHOM_OK;
}

uint16_t server_port(const struct server *s)
{
    return s->claim->port;
}

struct batch *server_batch(struct server *s)
{
    return s->batch;
}

/* ---- run and stop -------------------------------------------------------------------------- */

/* Only calls that a signal handler may make. */
void server_stop(struct server *s)
{
    int saved = errno;
    uint64_t one = 1;
    ssize_t n = write(s->stop_fd, &one, sizeof one);
    (void)n; /* full means that a stop is pending already */
    errno = saved;
}

/* Waits up to timeout_ms (-1: for ever) for server_stop. */
static bool wait_for_stop(struct server *s, int timeout_ms)
{
    struct pollfd p = {.fd = s->stop_fd, .events = POLLIN};
    uint64_t count;
    if (poll(&p, 1, timeout_ms) <= 0) return false;
    return read(s->stop_fd, &count, sizeof count) == sizeof count;
}

/* Tells the service manager, when it is due, that the engine gets on; one that is stuck is silent,
 * and ended for it. Returns after how many ms it is due again; -1: never. */
static int pat_watchdog(struct server *s)
{
    const struct supervisor *v = &s->served.o.supervisor;
    uint64_t now_us = clock_now_us(), every_us = v->watchdog_us / 3;
    if (every_us == 0) return -1;
    if (now_us - s->patted_us >= every_us) {
        if (!server_is_stuck(s)) supervisor_tell(v, "WATCHDOG=1");
        s->patted_us = now_us;
    }
    return (int)((s->patted_us + every_us - now_us) / 1000) + 1;
}

fathom_err server_run(struct server *s, fathom_diag *d)
{
    enum { STEP_MS = 20 };
    while (!wait_for_stop(s, pat_watchdog(s))) {
    }
    atomic_store(&s->state.draining, true);
    supervisor_tell(&s->served.o.supervisor, "STOPPING=1\nSTATUS=requests that run may finish");
    size_t n_job = jobs_count(&s->jobs);
    if (n_job) LOG_INFO("server", "stopping: %zu requests are in flight", n_job);
    uint64_t start_us = clock_now_us();
    while (jobs_count(&s->jobs) && !wait_for_stop(s, STEP_MS)) {
        uint64_t waited_ms = (clock_now_us() - start_us) / 1000;
        (void)pat_watchdog(s);
        if (waited_ms >= s->served.o.drain_timeout_ms) break;
        if (waited_ms >= FAREWELL_MS && (atomic_load(&s->engine_down) || server_is_stuck(s))) break;
    }
    if (atomic_load(&s->engine_down)) {
        FAIL(d, FATHOM_EDEVICE, "the engine has failed: %s", fathom_fault(s->served.engine));
    }
    if (server_is_stuck(s)) {
        FAIL(d, FATHOM_EDEVICE, "the engine is stuck in a step; its requests were given up");
    }
    return FATHOM_OK;
}

bool server_is_stuck(struct server *s)
{
    return health_look(&s->health);
}

/* ---- what an operator asks for ------------------------------------------------------------- */

static void log_lines(enum log_level level, const struct buf *lines)
{
    const char *next;
    for (const char *line = buf_str(lines); *line; line = next) {
        size_t n = strcspn(line, "\n");
        next = line + n + (line[n] != '\0');
        log_write(level, "server", "%.*s", (int)n, line);
    }
}

void server_log_state(struct server *s)
{
    struct buf lines = {0};
    LOG_INFO("server", "the state, as asked for:");
    (void)state_write(&s->env, &lines);
    log_lines(LOG_LEVEL_INFO, &lines);
    buf_free(&lines);
}

/* Names what was replaced, or says why it was not. */
static void note_reload(struct buf *done, fathom_err err, const fathom_diag *d, const char *what)
{
    if (err) {
        LOG_ERROR("server", "reload: %s; %s stays as it was",
                  d->text[0] ? d->text : fathom_err_text(err), what);
    } else {
        (void)buf_printf(done, "%s%s", done->len ? ", " : "", what);
    }
}

void server_reload(struct server *s, const struct server_reload *r)
{
    struct buf done = {0};
    fathom_diag d[3] = {{{0}}};
    if (r->keys) {
        fathom_err err = key_ring_replace(s->served.keys, r->keys, &d[0]);
        note_reload(&done, err, &d[0], "the list of API keys");
        workers_set_tenants(s->jobs.workers, key_ring_n_tenant(s->served.keys));
    }
    if (r->tls_certificate) {
        fathom_err err =
            http_set_certificates(s->http, r->tls_certificate, r->tls_key, r->tls_client_ca, &d[1]);
        note_reload(&done, err, &d[1], "the TLS certificate");
    }
    if (s->claim->access_log) {
        fathom_err err = access_log_reopen(s->claim->access_log, &d[2]);
        note_reload(&done, err, &d[2], "the access log");
    }
    LOG_INFO("server", "reloaded: %s", done.len ? buf_str(&done) : "nothing");
    buf_free(&done);
}

/* ---- destroy ------------------------------------------------------------------------------- */

static void wait_for_jobs(struct server *s, unsigned timeout_ms)
{
    uint64_t end_us = clock_now_us() + (uint64_t)timeout_ms * 1000;
    while (jobs_count(&s->jobs) && clock_now_us() < end_us) clock_sleep_us(1000);
}

static void log_jobs(struct server *s)
{
    struct buf lines = {0};
    jobs_dump(&s->jobs, &lines);
    LOG_ERROR("server", "left behind:");
    log_lines(LOG_LEVEL_ERROR, &lines);
    buf_free(&lines);
}

/* The workers see `cancelling`, and every job is DONE once they have ended. The last answers get
 * a moment to leave before the connections are closed. */
static void end_jobs(struct server *s)
{
    atomic_store(&s->state.draining, true);
    atomic_store(&s->state.cancelling, true);
    jobs_give_up(&s->jobs);
    if (s->jobs.grammars) grammar_cache_stop(s->jobs.grammars);
    workers_stop(s->jobs.workers);
    jobs_give_up(&s->jobs);
    wait_for_jobs(s, LAST_WORDS_MS);
    http_close(s->http);
    workers_destroy(s->jobs.workers);
}

void server_destroy(struct server *s)
{
    if (!s) return;
    admin_close(s->admin);
    batch_destroy(s->batch);
    end_jobs(s);
    if (s->poll_started) {
        wait_for_jobs(s, health_look(&s->health) ? LAST_WORDS_MS : ENGINE_PATIENCE_MS);
        atomic_store(&s->poll_ends, true);
        fathom_wake(s->served.engine);
        (void)pthread_join(s->poll_thread, NULL);
    }
    if (jobs_count(&s->jobs)) {
        log_jobs(s); /* the engine may be using their grammars, which stay */
    } else {
        grammar_cache_destroy(s->jobs.grammars);
    }
    gate_destroy(s->gate);
    if (jobs_count(&s->jobs) == 0) response_store_destroy(s->jobs.responses);
    if (s->stop_fd >= 0) (void)close(s->stop_fd);
    jobs_free(&s->jobs);
    if (s->owns_claim) server_claim_free(s->claim);
    served_close(&s->served);
    mem_free(s);
}
