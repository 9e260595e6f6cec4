/* exporter.c - a ring of spans, and one thread that posts them
 *
 * Invariants (check): n <= QUEUE. The spans that wait are ring[first .. first + n), modulo QUEUE.
 * The ring, its counts, `random` and end_us are guarded by `lock`. Everything else belongs to the
 * thread or does not change.
 */
#include "trace/exporter.h"

#include <curl/curl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <time.h>

#include "base/assert.h"
#include "base/clock.h"
#include "base/fail.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/os.h"
#include "base/rng.h"
#include "fathom/fathom.h"

enum {
    QUEUE = 2048,
    BATCH = 512,
    GATHER_US = 1000000, /* how long the first span waits for others before a message is sent */
    TRIES = 4,
    PAUSE_US = 1000000, /* after the first try that fails; doubled after each */
    POST_MS = 10000,
    LAST_US = 3000000, /* time for sending what still waits at the end */
    TELL_US = 60000000,
    FRAME_BYTES = 5, /* gRPC: no compression, and the message's length */
};

/* Of gRPC, in a head's or a trailer's `grpc-status`. */
enum { GRPC_OK = 0, GRPC_NONE = -1 };

struct trace_exporter {
    struct trace_setup setup;
    pthread_t thread;
    bool is_started;

    pthread_mutex_t lock;
    pthread_cond_t change;
    struct trace_span *ring; /* [QUEUE] */
    struct otlp_ids *ids;    /* [QUEUE] */
    size_t first, n;
    uint64_t random; /* ids are drawn from it */
    uint64_t end_us; /* 0: it goes on; else the time by which the thread is to end */

    atomic_uint_fast64_t n_sent, n_lost;

    CURL *easy;
    struct curl_slist *headers;
    struct trace_span *batch;   /* [BATCH] */
    struct otlp_ids *batch_ids; /* [BATCH] */
    struct buf body;
    int grpc_status;
    char reason[128]; /* grpc-message */
    char cause[CURL_ERROR_SIZE];
    uint64_t told_us; /* when the last line about lost spans was logged; 0: none was */
    uint64_t n_told;  /* n_lost at that time */
};

static void check(const struct trace_exporter *x)
{
    DCHECK(x->n <= QUEUE && x->first < QUEUE);
    (void)x;
}

/* ---- spans come ----------------------------------------------------------------------------- */

static void draw(uint64_t *random, uint8_t *bytes, size_t n)
{
    for (size_t i = 0; i < n; i += 8) {
        uint64_t x = rng_next(random);
        memcpy(bytes + i, &x, 8);
    }
}

static void draw_ids(struct trace_exporter *x, struct otlp_ids *ids, const struct trace_context *of)
{
    draw(&x->random, ids->span_id, sizeof ids->span_id);
    if (of->is_set) {
        memcpy(ids->trace_id, of->trace_id, sizeof ids->trace_id);
    } else {
        draw(&x->random, ids->trace_id, sizeof ids->trace_id);
    }
}

void trace_exporter_put(struct trace_exporter *x, const struct trace_span *span)
{
    struct otlp_ids ids;
    if (!x) return;
    (void)pthread_mutex_lock(&x->lock);
    draw_ids(x, &ids, &span->parent);
    bool is_wanted = trace_setup_samples(&x->setup, &span->parent, ids.trace_id);
    bool has_room = x->n < QUEUE;
    if (is_wanted && has_room) {
        size_t at = (x->first + x->n++) % QUEUE;
        x->ring[at] = *span;
        x->ids[at] = ids;
        if (x->n == 1 || x->n == BATCH) (void)pthread_cond_signal(&x->change);
    }
    check(x);
    (void)pthread_mutex_unlock(&x->lock);
    if (is_wanted && !has_room) atomic_fetch_add(&x->n_lost, 1);
}

struct trace_counts trace_exporter_counts(const struct trace_exporter *x)
{
    if (!x) return (struct trace_counts){0};
    return (struct trace_counts){atomic_load(&x->n_sent), atomic_load(&x->n_lost)};
}

/* ---- a message goes ------------------------------------------------------------------------- */

static size_t pass_over(char *bytes, size_t one, size_t n, void *arg)
{
    (void)bytes;
    (void)arg;
    return one * n;
}

/* Called for each line of the head and of trailers; a line does not end with a NUL. */
static size_t take_line(char *bytes, size_t one, size_t n, void *arg)
{
    struct trace_exporter *x = arg;
    char line[sizeof x->reason + 16];
    size_t m = n < sizeof line ? n : sizeof line - 1;
    (void)one;
    memcpy(line, bytes, m);
    line[m] = '\0';
    line[strcspn(line, "\r\n")] = '\0';
    char *value = strchr(line, ':');
    if (!value) return n;
    *value++ = '\0';
    value += strspn(value, " \t");
    if (strcasecmp(line, "grpc-status") == 0) {
        char *end = NULL;
        long status = strtol(value, &end, 10);
        if (end != value && status >= 0 && status < 32) x->grpc_status = (int)status;
    }
    if (strcasecmp(line, "grpc-message") == 0)
        (void)snprintf(x->reason, sizeof x->reason, "%s", value);
    return n;
}

/* Whether the exporter is to end and the time for that is over. */
static bool is_over(struct trace_exporter *x)
{
    (void)pthread_mutex_lock(&x->lock);
    uint64_t end_us = x->end_us;
    (void)pthread_mutex_unlock(&x->lock);
    return end_us && clock_now_us() >= end_us;
}

/* libcurl calls this about once a second, and when data moves; true ends the request. */
static int look_for_end(void *arg, curl_off_t a, curl_off_t b, curl_off_t c, curl_off_t e)
{
    (void)a, (void)b, (void)c, (void)e;
    return is_over(arg);
}

static fathom_err write_body(struct trace_exporter *x, size_t n)
{
    const struct otlp_resource resource = {x->setup.resource.pairs, x->setup.resource.n,
                                           FATHOM_VERSION};
    static const char frame[FRAME_BYTES] = {0};
    const size_t ahead = x->setup.is_grpc ? FRAME_BYTES : 0;
    buf_free(&x->body);
    (void)buf_add(&x->body, frame, ahead);
    TRY(otlp_encode(&x->body, &resource, x->batch, x->batch_ids, n));
    size_t length = x->body.len - ahead;
    for (size_t i = 1; i < ahead; i++)
        x->body.data[i] = (char)(length >> 8 * (FRAME_BYTES - 1 - i));
    return FATHOM_OK;
}

enum outcome { TAKEN, LATER, NEVER };

/* What the collector's answer means; if it refuses, x->cause says why. */
static enum outcome judge(struct trace_exporter *x, long status)
{
    /* CANCELLED, DEADLINE_EXCEEDED, RESOURCE_EXHAUSTED, ABORTED, OUT_OF_RANGE, UNAVAILABLE and
     * DATA_LOSS: another try may succeed */
    static const unsigned passing =
        1u << 1 | 1u << 4 | 1u << 8 | 1u << 10 | 1u << 11 | 1u << 14 | 1u << 15;
    if (status != 200) {
        (void)snprintf(x->cause, sizeof x->cause, "status %ld", status);
        return status == 429 || (status >= 502 && status <= 504) ? LATER : NEVER;
    }
    if (!x->setup.is_grpc || x->grpc_status == GRPC_OK) return TAKEN;
    if (x->grpc_status == GRPC_NONE) {
        (void)snprintf(x->cause, sizeof x->cause, "it does not speak gRPC");
        return NEVER;
    }
    (void)snprintf(x->cause, sizeof x->cause, "gRPC status %d %s", x->grpc_status, x->reason);
    return passing >> x->grpc_status & 1 ? LATER : NEVER;
}

static enum outcome post(struct trace_exporter *x)
{
    long status = 0;
    x->grpc_status = GRPC_NONE;
    x->reason[0] = x->cause[0] = '\0';
    (void)curl_easy_setopt(x->easy, CURLOPT_POSTFIELDS, x->body.data);
    (void)curl_easy_setopt(x->easy, CURLOPT_POSTFIELDSIZE_LARGE, (curl_off_t)x->body.len);
    CURLcode code = curl_easy_perform(x->easy);
    (void)curl_easy_getinfo(x->easy, CURLINFO_RESPONSE_CODE, &status);
    if (code == CURLE_OK) return judge(x, status);
    if (!x->cause[0]) (void)snprintf(x->cause, sizeof x->cause, "%s", curl_easy_strerror(code));
    return LATER;
}

static void tell(struct trace_exporter *x)
{
    uint64_t now_us = clock_now_us(), n = atomic_load(&x->n_lost);
    if (n == x->n_told || (x->told_us && now_us - x->told_us < TELL_US)) return;
    LOG_ERROR("traces", "--otlp-traces-endpoint %s: %s; %llu spans are lost", x->setup.url,
              x->cause[0] ? x->cause : "it takes spans too slowly",
              (unsigned long long)(n - x->n_told));
    x->told_us = now_us;
    x->n_told = n;
}

/* ---- the thread ----------------------------------------------------------------------------- */

/* With the lock: waits until `until_us`, a change, or the end. */
static void wait_until(struct trace_exporter *x, uint64_t until_us)
{
    const struct timespec at = {.tv_sec = (time_t)(until_us / 1000000),
                                .tv_nsec = (long)(until_us % 1000000) * 1000};
    (void)pthread_cond_timedwait(&x->change, &x->lock, &at);
}

/* Returns how many spans are in the batch; 0: none wait, and the exporter is to end. */
static size_t take_batch(struct trace_exporter *x)
{
    (void)pthread_mutex_lock(&x->lock);
    while (x->n == 0 && !x->end_us) (void)pthread_cond_wait(&x->change, &x->lock);
    const uint64_t full_us = clock_now_us() + GATHER_US;
    while (x->n < BATCH && !x->end_us && clock_now_us() < full_us) wait_until(x, full_us);
    size_t n = x->n < BATCH ? x->n : BATCH;
    for (size_t i = 0; i < n; i++) {
        x->batch[i] = x->ring[x->first];
        x->batch_ids[i] = x->ids[x->first];
        x->first = (x->first + 1) % QUEUE;
    }
    x->n -= n;
    check(x);
    (void)pthread_mutex_unlock(&x->lock);
    return n;
}

/* Returns false if the exporter is to end, so that there is no time for another try. */
static bool pause_before_a_try(struct trace_exporter *x, uint64_t pause_us)
{
    const uint64_t next_us = clock_now_us() + pause_us;
    (void)pthread_mutex_lock(&x->lock);
    while (!x->end_us && clock_now_us() < next_us) wait_until(x, next_us);
    bool goes_on = !x->end_us;
    (void)pthread_mutex_unlock(&x->lock);
    return goes_on;
}

static void send_batch(struct trace_exporter *x, size_t n)
{
    uint64_t pause_us = PAUSE_US;
    enum outcome outcome = NEVER;
    if (!is_over(x) && write_body(x, n) == FATHOM_OK) outcome = post(x);
    for (int i = 1; outcome == LATER && i < TRIES; i++, pause_us *= 2) {
        if (!pause_before_a_try(x, pause_us)) break;
        outcome = post(x);
    }
    atomic_fetch_add(outcome == TAKEN ? &x->n_sent : &x->n_lost, n);
}

static void *export_spans(void *arg)
{
    struct trace_exporter *x = arg;
    os_name_thread("traces");
    for (size_t n = take_batch(x); n; n = take_batch(x)) {
        send_batch(x, n);
        tell(x);
    }
    return NULL;
}

/* ---- create and destroy --------------------------------------------------------------------- */

static fathom_err add_header(struct trace_exporter *x, const char *key, const char *value)
{
    struct buf line = {0};
    (void)buf_printf(&line, "%s: %s", key, value);
    struct curl_slist *list = line.failed ? NULL : curl_slist_append(x->headers, buf_str(&line));
    buf_free(&line);
    if (!list) return FATHOM_ENOMEM;
    x->headers = list;
    return FATHOM_OK;
}

static fathom_err add_headers(struct trace_exporter *x)
{
    const struct trace_pairs *given = &x->setup.headers;
    TRY(add_header(x, "Content-Type",
                   x->setup.is_grpc ? "application/grpc" : "application/x-protobuf"));
    if (x->setup.is_grpc) TRY(add_header(x, "TE", "trailers"));
    for (size_t i = 0; i < given->n; i++)
        TRY(add_header(x, given->pairs[i].key, given->pairs[i].value));
    return FATHOM_OK;
}

static fathom_err set_up_client(struct trace_exporter *x, fathom_diag *d)
{
    const curl_version_info_data *have = curl_version_info(CURLVERSION_NOW);
    bool is_tls = strncmp(x->setup.url, "https:", 6) == 0;
    if (x->setup.is_grpc && !(have->features & CURL_VERSION_HTTP2)) {
        FAIL(d, FATHOM_EINVAL,
             "--otlp-traces-endpoint: this libcurl has no HTTP/2 for gRPC: give "
             "http://HOST:4318/v1/traces");
    }
    CURL *e = x->easy = curl_easy_init();
    if (!e || curl_easy_setopt(e, CURLOPT_URL, x->setup.url) != CURLE_OK || add_headers(x))
        FAIL(d, FATHOM_ENOMEM, "out of memory for traces");
    long version = !x->setup.is_grpc ? CURL_HTTP_VERSION_1_1
                   : is_tls          ? CURL_HTTP_VERSION_2TLS
                                     : CURL_HTTP_VERSION_2_PRIOR_KNOWLEDGE;
    (void)curl_easy_setopt(e, CURLOPT_PROTOCOLS_STR, "http,https");
    (void)curl_easy_setopt(e, CURLOPT_HTTP_VERSION, version);
    /* libcurl 7.88.1 begins HTTP/2 anew on a connection that it reuses, and fails (curl #10634) */
    (void)curl_easy_setopt(e, CURLOPT_FORBID_REUSE, x->setup.is_grpc ? 1L : 0L);
    (void)curl_easy_setopt(e, CURLOPT_HTTPHEADER, x->headers);
    (void)curl_easy_setopt(e, CURLOPT_USERAGENT, "fathom/" FATHOM_VERSION);
    (void)curl_easy_setopt(e, CURLOPT_NOSIGNAL, 1L);
    (void)curl_easy_setopt(e, CURLOPT_TIMEOUT_MS, (long)POST_MS);
    (void)curl_easy_setopt(e, CURLOPT_ERRORBUFFER, x->cause);
    (void)curl_easy_setopt(e, CURLOPT_WRITEFUNCTION, pass_over);
    (void)curl_easy_setopt(e, CURLOPT_HEADERFUNCTION, take_line);
    (void)curl_easy_setopt(e, CURLOPT_HEADERDATA, x);
    (void)curl_easy_setopt(e, CURLOPT_XFERINFOFUNCTION, look_for_end);
    (void)curl_easy_setopt(e, CURLOPT_XFERINFODATA, x);
    (void)curl_easy_setopt(e, CURLOPT_NOPROGRESS, 0L);
    if (x->setup.certificate &&
        curl_easy_setopt(e, CURLOPT_CAINFO, x->setup.certificate) != CURLE_OK)
        FAIL(d, FATHOM_ENOMEM, "out of memory for traces");
    return FATHOM_OK;
}

static fathom_err allocate(struct trace_exporter *x)
{
    x->ring = mem_calloc(QUEUE, sizeof *x->ring);
    x->ids = mem_calloc(QUEUE, sizeof *x->ids);
    x->batch = mem_calloc(BATCH, sizeof *x->batch);
    x->batch_ids = mem_calloc(BATCH, sizeof *x->batch_ids);
    return x->ring && x->ids && x->batch && x->batch_ids ? FATHOM_OK : FATHOM_ENOMEM;
}

static fathom_err start(struct trace_exporter *x, const struct trace_words *w, fathom_diag *d)
{
    pthread_condattr_t monotonic;
    (void)pthread_mutex_init(&x->lock, NULL);
    (void)pthread_condattr_init(&monotonic);
    (void)pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    (void)pthread_cond_init(&x->change, &monotonic);
    (void)pthread_condattr_destroy(&monotonic);
    x->random = rng_entropy();
    TRY(trace_setup_read(&x->setup, w, d));
    if (allocate(x)) FAIL(d, FATHOM_ENOMEM, "out of memory for traces");
    TRY(set_up_client(x, d));
    if (pthread_create(&x->thread, NULL, export_spans, x) != 0)
        FAIL(d, FATHOM_EIO, "the thread that sends traces cannot be started");
    x->is_started = true;
    return FATHOM_OK;
}

fathom_err trace_exporter_create(struct trace_exporter **out, const struct trace_words *w,
                                 fathom_diag *d)
{
    *out = NULL;
    if (!w->endpoint) return FATHOM_OK;
    if (curl_global_init(CURL_GLOBAL_DEFAULT) != CURLE_OK) return FATHOM_ENOMEM;
    struct trace_exporter *x = mem_calloc(1, sizeof *x);
    fathom_err err = x ? start(x, w, d) : diag_fail(d, FATHOM_ENOMEM, "out of memory for traces");
    if (err) {
        trace_exporter_destroy(x);
        if (!x) curl_global_cleanup();
        return err;
    }
    *out = x;
    return FATHOM_OK;
}

void trace_exporter_destroy(struct trace_exporter *x)
{
    if (!x) return;
    if (x->is_started) {
        (void)pthread_mutex_lock(&x->lock);
        x->end_us = clock_now_us() + LAST_US;
        (void)pthread_cond_signal(&x->change);
        (void)pthread_mutex_unlock(&x->lock);
        (void)pthread_join(x->thread, NULL);
    }
    curl_easy_cleanup(x->easy);
    curl_slist_free_all(x->headers);
    curl_global_cleanup();
    (void)pthread_cond_destroy(&x->change);
    (void)pthread_mutex_destroy(&x->lock);
    trace_setup_free(&x->setup);
    mem_free(x->ring);
    mem_free(x->ids);
    mem_free(x->batch);
    mem_free(x->batch_ids);
    buf_free(&x->body);
    mem_free(x);
}
