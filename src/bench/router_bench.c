/* router_bench.c - rounds of one request by two ways */
#include "bench/router_bench.h"

#include <curl/curl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "base/clock.h"
#include "base/fail.h"
#include "base/mem.h"
#include "bench/http_target.h"
#include "bench/sse_reader.h"
#include "bench/stream_server.h"
#include "bench/summary.h"
#include "router/router.h"

enum {
    WARM_UP = 5,
    URL_BYTES = 64,
    UP_TRIES = 2000,
    UP_STEP_US = 5000,
    LOOK_MS = 250,
    MAX_MOVES = 8,
    CONNECTIONS = 64,
    HTTP_THREADS = 2, /* as fathom router has */
};

/* A way to the server, and what its last answer was like. */
struct way {
    char url[URL_BYTES];
    CURL *easy;
    struct sse_reader reader;
    uint64_t start_ns, first_ns;
    uint64_t lag_ns; /* of the events behind the first, together */
    uint32_t n_event;
    double first_us, token_us, cpu_us;
};

enum { DIRECT, ROUTED, N_WAY };

struct router_bench {
    struct stream_server *server;
    struct router *router;
    struct curl_slist *headers;
    struct way ways[N_WAY];
    struct buf body;
};

static fathom_err take_event(void *arg, const char *data, size_t n)
{
    static const char mark[] = "{\"sent_ns\":";
    struct way *w = arg;
    uint64_t now_ns = clock_now_ns();
    if (n < sizeof mark || memcmp(data, mark, sizeof mark - 1) != 0) return FATHOM_OK;
    if (w->n_event++ == 0) {
        w->first_ns = now_ns;
    } else {
        w->lag_ns += now_ns - strtoull(data + sizeof mark - 1, NULL, 10);
    }
    return FATHOM_OK;
}

static size_t take_bytes(char *bytes, size_t one, size_t n, void *arg)
{
    struct way *w = arg;
    (void)one;
    return sse_reader_feed(&w->reader, bytes, n, take_event, w) == FATHOM_OK ? n : 0;
}

static fathom_err open_way(struct router_bench *b, int which, uint16_t port)
{
    const struct http_target target = {.timeout_s = 60};
    struct way *w = &b->ways[which];
    (void)snprintf(w->url, sizeof w->url, "http://127.0.0.1:%u/v1/chat/completions", port);
    sse_reader_init(&w->reader);
    w->easy = curl_easy_init();
    if (!w->easy || !http_set_common(w->easy, &target, w->url, b->headers)) return FATHOM_ENOMEM;
    (void)curl_easy_setopt(w->easy, CURLOPT_WRITEFUNCTION, take_bytes);
    (void)curl_easy_setopt(w->easy, CURLOPT_WRITEDATA, w);
    return FATHOM_OK;
}

/* A request by one way, measured. */
static fathom_err ask(struct router_bench *b, struct way *w, fathom_diag *d)
{
    long status = 0;
    sse_reader_reset(&w->reader);
    w->n_event = 0;
    w->lag_ns = 0;
    (void)curl_easy_setopt(w->easy, CURLOPT_POSTFIELDSIZE, (long)b->body.len);
    (void)curl_easy_setopt(w->easy, CURLOPT_POSTFIELDS, buf_str(&b->body));
    uint64_t cpu_us = clock_process_cpu_us();
    w->start_ns = clock_now_ns();
    CURLcode code = curl_easy_perform(w->easy);
    w->cpu_us = (double)(clock_process_cpu_us() - cpu_us);
    (void)curl_easy_getinfo(w->easy, CURLINFO_RESPONSE_CODE, &status);
    if (code != CURLE_OK || status != 200 || w->n_event != STREAM_EVENTS) {
        FAIL(d, FATHOM_EIO, "%s: status %ld with %u of %d events: %s", w->url, status, w->n_event,
             STREAM_EVENTS, curl_easy_strerror(code));
    }
    w->first_us = (double)(w->first_ns - w->start_ns) / 1e3;
    w->token_us = (double)w->lag_ns / (STREAM_EVENTS - 1) / 1e3;
    return FATHOM_OK;
}

/* A chat whose text begins with the round's number, so that no block of it is known. */
static fathom_err write_body(struct buf *b, uint64_t n_token, uint32_t round)
{
    static const char words[] = "sail over the bar at slack water, ";
    size_t n_text = (size_t)(n_token * ROUTER_BENCH_TOKEN_BYTES);
    buf_clear(b);
    TRY(buf_printf(b,
                   "{\"model\":\"m\",\"stream\":true,\"max_tokens\":8,\"messages\":"
                   "[{\"role\":\"user\",\"content\":\"%u ",
                   round));
    for (size_t n = 0; n < n_text; n += sizeof words - 1) {
        size_t left = n_text - n;
        TRY(buf_add(b, words, left < sizeof words - 1 ? left : sizeof words - 1));
    }
    return buf_add_str(b, "\"}]}");
}

/* The router's first look at the server. */
static fathom_err wait_up(struct router_bench *b, fathom_diag *d)
{
    char url[URL_BYTES];
    struct buf body = {0};
    (void)snprintf(url, sizeof url, "http://127.0.0.1:%u", router_port(b->router));
    const struct http_target target = {.base_url = url, .timeout_s = 60};
    fathom_err err = FATHOM_OK;
    for (int i = 0; i < UP_TRIES && !err; i++) {
        long status = 0;
        buf_clear(&body);
        err = http_get(&target, "/instances", &body, &status, d);
        if (!err && strstr(buf_str(&body), "\"state\":\"up\"")) goto done;
        clock_sleep_us(UP_STEP_US);
    }
    if (!err)
        err = diag_fail(d, FATHOM_EIO, "the router does not see its server: %s", buf_str(&body));
done:
    buf_free(&body);
    return err;
}

static fathom_err open_all(struct router_bench *b, fathom_diag *d)
{
    char server[URL_BYTES];
    const char *servers[] = {server};
    const struct http_target target = {0};
    TRY(stream_server_open(&b->server, d));
    (void)snprintf(server, sizeof server, "http://127.0.0.1:%u", stream_server_port(b->server));
    const struct router_options o = {.host = "127.0.0.1",
                                     .servers = servers,
                                     .n_server = 1,
                                     .policy = CHOICE_CACHE_AWARE,
                                     .look_ms = LOOK_MS,
                                     .max_moves = MAX_MOVES,
                                     .max_connections = CONNECTIONS,
                                     .n_http_thread = HTTP_THREADS};
    TRY(router_open(&b->router, &o, d));
    TRY(http_headers(&b->headers, &target, true, d));
    TRY(open_way(b, DIRECT, stream_server_port(b->server)));
    TRY(open_way(b, ROUTED, router_port(b->router)));
    return wait_up(b, d);
}

fathom_err router_bench_open(struct router_bench **out, fathom_diag *d)
{
    struct router_bench *b = mem_calloc(1, sizeof *b);
    *out = NULL;
    if (!b) FAIL(d, FATHOM_ENOMEM, "no memory for the bench");
    fathom_err err = open_all(b, d);
    if (err) {
        router_bench_close(b);
        return err;
    }
    *out = b;
    return FATHOM_OK;
}

void router_bench_close(struct router_bench *b)
{
    if (!b) return;
    for (int i = 0; i < N_WAY; i++) {
        curl_easy_cleanup(b->ways[i].easy);
        sse_reader_free(&b->ways[i].reader);
    }
    router_close(b->router);
    stream_server_close(b->server);
    curl_slist_free_all(b->headers);
    buf_free(&b->body);
    mem_free(b);
}

enum {
    FIRST_DIRECT,
    FIRST_ROUTED,
    FIRST_ADDED,
    TOKEN_DIRECT,
    TOKEN_ROUTED,
    TOKEN_ADDED,
    CPU_ADDED,
    N_LIST
};

static void note_round(double *const *lists, uint32_t i, const struct way *direct,
                       const struct way *routed)
{
    lists[FIRST_DIRECT][i] = direct->first_us;
    lists[FIRST_ROUTED][i] = routed->first_us;
    lists[FIRST_ADDED][i] = routed->first_us - direct->first_us;
    lists[TOKEN_DIRECT][i] = direct->token_us;
    lists[TOKEN_ROUTED][i] = routed->token_us;
    lists[TOKEN_ADDED][i] = routed->token_us - direct->token_us;
    lists[CPU_ADDED][i] = routed->cpu_us - direct->cpu_us;
}

static void describe(struct router_bench_row *out, double *const *lists, uint32_t n)
{
    const struct percentile_list p = {.at = {90}, .n = 1};
    struct summary s[N_LIST];
    for (int k = 0; k < N_LIST; k++) summarise(&s[k], lists[k], n, &p);
    out->direct_us = s[FIRST_DIRECT].median;
    out->routed_us = s[FIRST_ROUTED].median;
    out->added_us = s[FIRST_ADDED].median;
    out->added_p90_us = s[FIRST_ADDED].percentiles[0];
    out->token_direct_us = s[TOKEN_DIRECT].median;
    out->token_routed_us = s[TOKEN_ROUTED].median;
    out->token_added_us = s[TOKEN_ADDED].median;
    out->added_cpu_us = s[CPU_ADDED].median;
}

/* One round: both ways, the direct one first in every other. */
static fathom_err run_round(struct router_bench *b, uint64_t n_token, uint32_t round,
                            fathom_diag *d)
{
    int first = round % 2 ? ROUTED : DIRECT;
    TRY(write_body(&b->body, n_token, round));
    TRY(ask(b, &b->ways[first], d));
    return ask(b, &b->ways[N_WAY - 1 - first], d);
}

fathom_err router_bench_run(struct router_bench *b, uint64_t n_token, uint32_t n_round,
                            struct router_bench_row *out, fathom_diag *d)
{
    double *lists[N_LIST];
    double *all = mem_alloc_array((size_t)n_round * N_LIST, sizeof *all);
    fathom_err err = FATHOM_OK;
    if (!all) FAIL(d, FATHOM_ENOMEM, "no memory for %u rounds", n_round);
    for (int k = 0; k < N_LIST; k++) lists[k] = all + (size_t)k * n_round;
    *out = (struct router_bench_row){.n_round = n_round};
    for (uint32_t i = 0; i < WARM_UP + n_round && !err; i++) {
        err = run_round(b, n_token, i, d);
        if (!err && i >= WARM_UP) note_round(lists, i - WARM_UP, &b->ways[0], &b->ways[1]);
    }
    out->n_byte = b->body.len;
    if (!err) describe(out, lists, n_round);
    mem_free(all);
    return err;
}
