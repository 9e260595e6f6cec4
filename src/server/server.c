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
 * Order of the end: no connection may be suspended when the HTTP library stops, so every job is
 * DONE before; the poll thread goes last, since it takes the FINISH events that release jobs.
 */
#include "server/server.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "base/assert.h"
#include "base/clock.h"
#include "base/fail.h"
#include "base/json.h"
#include "base/limits.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/os.h"
#include "server/admin.h"
#include "server/http.h"
#include "server/job.h"
#include "server/response_store.h"
#include "server/state.h"
#include "server/watch.h"
#include "server/workers.h"

enum {
    POLL_EVENTS = 64,
    POLL_TIMEOUT_MS = 250,
    TICK_US = 250000,
    FAREWELL_MS = 5000,         /* a drain with an engine that has failed or is stuck */
    LAST_WORDS_MS = 1000,       /* for answers that are on their way out */
    ENGINE_PATIENCE_MS = 30000, /* for the FINISH events of cancelled requests */
};

/* ---- the poll thread ----------------------------------------------------------------------- */

static void look_at_engine(struct server *s)
{
    fathom_stats stats;
    (void)health_look(s);
    fathom_get_stats(s->engine, &stats);
    if (stats.failed && !atomic_exchange(&s->engine_down, true)) {
        LOG_ERROR("server", "the engine has failed: %s", fathom_fault(s->engine));
        server_stop(s);
    }
}

static void tick(struct server *s, uint64_t now_us)
{
    look_at_engine(s);
    (void)gate_sweep(s->gate, now_us);
    (void)pthread_mutex_lock(&s->jobs_lock);
    for (struct job *job = s->jobs; job; job = job->next) job_tick(job, now_us);
    (void)pthread_mutex_unlock(&s->jobs_lock);
}

static void *poll_main(void *arg)
{
    struct server *s = arg;
    fathom_event events[POLL_EVENTS];
    uint64_t tick_us = 0;
    os_name_thread("poll");
    while (!atomic_load(&s->poll_ends)) {
        size_t n = fathom_poll(s->engine, events, POLL_EVENTS, POLL_TIMEOUT_MS);
        for (size_t i = 0; i < n; i++) job_take_event(&events[i]);
        uint64_t now_us = clock_now_us();
        if (now_us - tick_us < TICK_US) continue;
        tick_us = now_us;
        tick(s, now_us);
    }
    return NULL;
}

bool server_hold_bytes(struct server *s, size_t n)
{
    if (atomic_fetch_add(&s->held_bytes, n) + n <= s->o.max_held_bytes) return true;
    server_drop_bytes(s, n);
    return false;
}

void server_drop_bytes(struct server *s, size_t n)
{
    size_t before = atomic_fetch_sub(&s->held_bytes, n);
    ASSERT(before >= n);
}

unsigned server_retry_after_s(struct server *s)
{
    fathom_stats stats;
    fathom_get_stats(s->engine, &stats);
    uint64_t wait_s = (stats.retry_after_us + 999999) / 1000000;
    return wait_s < 1 ? 1 : wait_s > 60 ? 60 : (unsigned)wait_s;
}

/* ---- create -------------------------------------------------------------------------------- */

static void set_default(uint32_t *value, uint32_t fallback)
{
    if (*value == 0) *value = fallback;
}

/* Probes see a stuck step within 5 s: this and a tick. The reference backend tells nothing of a
 * step before its end, and may take minutes for one; a GPU neither, and may take seconds. */
static uint32_t default_stall_ms(const fathom_info *info)
{
    if (strcmp(info->backend, "ref") == 0) return 600000;
    return strcmp(info->backend, "cuda") == 0 ? 30000 : 4000;
}

static void fill_options(struct server_options *o, const fathom_info *info)
{
    if (!o->host) o->host = "127.0.0.1";
    set_default(&o->n_http_thread, 2);
    set_default(&o->n_worker, 2);
    set_default(&o->max_connections, 4096);
    set_default(&o->max_preparing, 1024);
    set_default(&o->max_held_bytes, LIMIT_HTTP_HELD_BYTES);
    set_default(&o->comment_interval_ms, 10000);
    set_default(&o->drain_timeout_ms, 30000);
    set_default(&o->head_timeout_ms, LIMIT_HTTP_HEAD_MS);
    set_default(&o->body_timeout_ms, LIMIT_HTTP_BODY_MS);
    set_default(&o->idle_timeout_ms, LIMIT_HTTP_IDLE_MS);
    set_default(&o->max_stored_responses, LIMIT_STORED_RESPONSES);
    set_default(&o->stored_response_s, LIMIT_STORED_S);
    if (o->max_stored_bytes == 0) o->max_stored_bytes = LIMIT_STORED_BYTES;
    set_default(&o->stall_timeout_ms, default_stall_ms(info));
}

/* add_bos_token of tokenizer_config.json; a checkpoint without the file adds none. */
static fathom_err read_add_bos(struct server *s, fathom_diag *d)
{
    const char *text;
    size_t n;
    json_t *config;
    if (fathom_get_file(s->engine, "tokenizer_config.json", &text, &n) != FATHOM_OK) {
        return FATHOM_OK;
    }
    TRY(json_read(text, n, "tokenizer_config.json", &config, d));
    fathom_err err = FATHOM_EFORMAT;
    if (json_is_object(config)) {
        err = json_get_bool(config, "add_bos_token", false, &s->add_bos, d);
    } else {
        err = diag_fail(d, FATHOM_EFORMAT, "tokenizer_config.json is %s, needed is an object",
                        json_type_text(config));
    }
    json_decref(config);
    return err;
}

/* The context's length in the longest token there is. */
static size_t prompt_bytes(const struct server *s)
{
    size_t longest = 1;
    for (int32_t id = tokenizer_n_token(s->tokenizer) - 1; id >= 0; id--) {
        size_t n;
        (void)tokenizer_bytes(s->tokenizer, id, &n);
        if (n > longest) longest = n;
    }
    return longest * s->info->max_model_len;
}

static fathom_err start(struct server *s, fathom_diag *d)
{
    static const struct watch_actions watch_actions = {job_hold, job_client_left};
    const struct gate_limits gate_limits = {.max_connections = s->o.max_connections,
                                            .head_timeout_ms = s->o.head_timeout_ms,
                                            .idle_timeout_ms = s->o.idle_timeout_ms,
                                            .body_timeout_ms = s->o.body_timeout_ms};
    const struct grammar_cache_config grammars = {.tokenizer = s->tokenizer,
                                                  .n_vocab = s->info->n_vocab,
                                                  .max_bytes = LIMIT_GRAMMAR_CACHE_BYTES,
                                                  .compile_us = &s->metrics.grammar_compile};
    const struct response_limits kept = {.max = s->o.max_stored_responses,
                                         .bytes = s->o.max_stored_bytes,
                                         .age_us = (uint64_t)s->o.stored_response_s * 1000000};
    TRY(gate_create(&s->gate, &gate_limits));
    TRY(grammar_cache_create(&s->grammars, &grammars));
    if (!s->o.keep_no_responses) TRY(response_store_create(&s->responses, &kept));
    TRY(read_add_bos(s, d));
    s->stop_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK | EFD_SEMAPHORE); /* each stop counts */
    if (s->stop_fd < 0) FAIL(d, FATHOM_EIO, "no handle to wait on: %s", strerror(errno));
    TRY(watch_create(&s->watch, &watch_actions, d));
    TRY(workers_create(&s->workers, s->o.n_worker, s->o.max_preparing, job_prepare, d));
    if (pthread_create(&s->poll_thread, NULL, poll_main, s) != 0) {
        FAIL(d, FATHOM_EIO, "the thread that polls the engine cannot be started");
    }
    s->poll_started = true;
    TRY(http_open(s, d));
    return s->o.admin_socket ? admin_open(&s->admin, s, d) : FATHOM_OK;
}

fathom_err server_create(struct server **out, const struct server_options *o, fathom_engine *e,
                         const struct tokenizer *t, const struct chat_style *style, fathom_diag *d)
{
    *out = NULL;
    if (o->n_model_name == 0) FAIL(d, FATHOM_EINVAL, "the server needs a name for the model");
    struct server *s = mem_calloc(1, sizeof *s);
    if (!s) FAIL(d, FATHOM_ENOMEM, "out of memory for the server");
    s->o = *o;
    s->engine = e;
    s->info = fathom_get_info(e);
    fill_options(&s->o, s->info);
    s->tokenizer = t;
    s->style = *style;
    s->created = clock_unix_s();
    s->listen_fd = s->access_log_fd = s->stop_fd = -1;
    metrics_init(&s->metrics, s->info->max_model_len);
    health_init(&s->health, clock_now_us());
    s->max_prompt_bytes = prompt_bytes(s);
    (void)pthread_mutex_init(&s->jobs_lock, NULL);
    fathom_err err = start(s, d);
    if (err) {
        (void)diag_fail(d, err, "the server cannot start: %s", fathom_err_text(err));
        server_destroy(s);
        return err;
    }
    *out = s;
    return FATHOM_OK;
}

uint16_t server_port(const struct server *s)
{
    return s->port;
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

size_t server_n_job(struct server *s)
{
    (void)pthread_mutex_lock(&s->jobs_lock);
    size_t n = s->n_job;
    (void)pthread_mutex_unlock(&s->jobs_lock);
    return n;
}

fathom_err server_run(struct server *s, fathom_diag *d)
{
    enum { STEP_MS = 20 };
    while (!wait_for_stop(s, -1)) {
    }
    atomic_store(&s->draining, true);
    size_t n_job = server_n_job(s);
    if (n_job) LOG_INFO("server", "stopping: %zu requests are in flight", n_job);
    uint64_t start_us = clock_now_us();
    while (server_n_job(s) && !wait_for_stop(s, STEP_MS)) {
        uint64_t waited_ms = (clock_now_us() - start_us) / 1000;
        if (waited_ms >= s->o.drain_timeout_ms) break;
        if (waited_ms >= FAREWELL_MS && (atomic_load(&s->engine_down) || server_is_stuck(s))) break;
    }
    if (atomic_load(&s->engine_down)) {
        FAIL(d, FATHOM_EDEVICE, "the engine has failed: %s", fathom_fault(s->engine));
    }
    if (server_is_stuck(s)) {
        FAIL(d, FATHOM_EDEVICE, "the engine is stuck in a step; its requests were given up");
    }
    return FATHOM_OK;
}

bool server_is_stuck(struct server *s)
{
    return health_look(s);
}

/* ---- destroy ------------------------------------------------------------------------------- */

static void give_up_jobs(struct server *s)
{
    (void)pthread_mutex_lock(&s->jobs_lock);
    for (struct job *job = s->jobs; job; job = job->next) job_give_up(job);
    (void)pthread_mutex_unlock(&s->jobs_lock);
}

static void wait_for_jobs(struct server *s, unsigned timeout_ms)
{
    uint64_t end_us = clock_now_us() + (uint64_t)timeout_ms * 1000;
    while (server_n_job(s) && clock_now_us() < end_us) clock_sleep_us(1000);
}

void server_dump_jobs(struct server *s, struct buf *out)
{
    (void)pthread_mutex_lock(&s->jobs_lock);
    for (struct job *job = s->jobs; job; job = job->next) {
        job_dump(job, out);
        (void)buf_add_char(out, '\n');
    }
    (void)pthread_mutex_unlock(&s->jobs_lock);
}

static void log_jobs(struct server *s)
{
    struct buf lines = {0};
    server_dump_jobs(s, &lines);
    LOG_ERROR("server", "left behind:\n%s", buf_str(&lines));
    buf_free(&lines);
}

/* The workers see `cancelling`, and every job is DONE once they have ended. The last answers get
 * a moment to leave before the connections are closed. */
static void end_jobs(struct server *s)
{
    atomic_store(&s->draining, true);
    atomic_store(&s->cancelling, true);
    give_up_jobs(s);
    workers_stop(s->workers);
    give_up_jobs(s);
    wait_for_jobs(s, LAST_WORDS_MS);
    http_close(s);
    workers_destroy(s->workers);
}

void server_destroy(struct server *s)
{
    if (!s) return;
    admin_close(s->admin);
    end_jobs(s);
    if (s->poll_started) {
        wait_for_jobs(s, health_look(s) ? LAST_WORDS_MS : ENGINE_PATIENCE_MS);
        atomic_store(&s->poll_ends, true);
        fathom_wake(s->engine);
        (void)pthread_join(s->poll_thread, NULL);
    }
    if (server_n_job(s)) {
        log_jobs(s); /* the engine may be using their grammars, which stay */
    } else {
        grammar_cache_destroy(s->grammars);
    }
    watch_destroy(s->watch);
    gate_destroy(s->gate);
    if (s->responses && server_n_job(s) == 0) response_store_destroy(s->responses);
    if (s->stop_fd >= 0) (void)close(s->stop_fd);
    (void)pthread_mutex_destroy(&s->jobs_lock);
    mem_free(s);
}
