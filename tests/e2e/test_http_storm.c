/* test_http_storm [requests] [seed] - requests that are wrong in every way that bytes can be
 *
 * Clients take well-formed requests of every route and change them: methods, paths, headers,
 * bodies, lengths and chunks that lie, bytes cut off, doubled, swapped and made up. They pipeline
 * them, close their half of the connection, leave in the middle, or reset it. Meanwhile one client
 * asks as one should and must be answered. In the end nothing is left in the server or the engine.
 *
 * What the storm sends follows from its seed, which is printed; how it meets the server's threads
 * does not. */
#include <poll.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/clock.h"
#include "base/rng.h"
#include "support/patience.h"
#include "support/world.h"

enum {
    STORMERS = 16,
    PIPELINE_MAX = 12,
    READ_MS = 2000,
    SILENCE_MS = 10,
    DEADLINE_MS = 1000,
    BATCH_MAX_BYTES = 1 << 18
};

#define STATUS "HTTP/1.1 "

static uint64_t n_wanted = 60000;
static uint64_t seed = 1;

/* One storm, shared by its clients. */
struct storm {
    struct world w;
    atomic_uint_fast64_t n_sent;   /* requests */
    atomic_uint_fast64_t n_answer; /* status lines that came back */
    atomic_uint_fast64_t n_by_class[6];
    atomic_uint_fast64_t n_garbled; /* answers that are no HTTP */
    atomic_uint_fast64_t n_refused; /* connections that were not taken */
    atomic_uint_fast64_t n_fault;   /* answers of 500 */
    char garbled[256];              /* the first of them */
    char fault[1024];
};

/* ---- what is sent --------------------------------------------------------------------------- */

static const char *const methods[] = {"GET",   "HEAD",  "POST",    "OPTIONS", "PUT",      "DELETE",
                                      "PATCH", "TRACE", "CONNECT", "get",     "BREW/1.0", ""};

static const char *const paths[] = {"/v1/chat/completions",
                                    "/v1/completions",
                                    "/v1/responses",
                                    "/v1/responses/resp_x",
                                    "/v1/messages",
                                    "/v1/messages/count_tokens",
                                    "/inference/v1/generate",
                                    "/generate",
                                    "/model_info",
                                    "/server_info",
                                    "/flush_cache",
                                    "/invocations",
                                    "/tokenize",
                                    "/detokenize",
                                    "/tokenizer_info",
                                    "/load",
                                    "/v1/models",
                                    "/v1/models/m",
                                    "/health",
                                    "/ready",
                                    "/metrics",
                                    "/",
                                    "/ui/app.js",
                                    "/version",
                                    "/v1/v1/models",
                                    "/../../etc/passwd",
                                    "/%00",
                                    "/%",
                                    "//",
                                    "*",
                                    "http://x/health",
                                    "/v1/models/%2e%2e%2f",
                                    "/?a=1&b=%zz",
                                    "/\xff\xfe"};

/* What each of the bodies below is for. */
static const char *const targets[] = {"/v1/chat/completions",
                                      "/v1/chat/completions",
                                      "/v1/chat/completions",
                                      "/v1/completions",
                                      "/v1/completions",
                                      "/v1/messages",
                                      "/v1/responses",
                                      "/v1/responses",
                                      "/v1/chat/completions",
                                      "/tokenize",
                                      "/v1/messages/count_tokens"};

static const char *const headers[] = {"Host: localhost\r\n",
                                      "Host: \r\n",
                                      "Content-Type: application/json\r\n",
                                      "Authorization: Bearer first\r\n",
                                      "Authorization: Basic Og==\r\n",
                                      "Authorization:\r\n",
                                      "X-Api-Key: \xff\r\n",
                                      "X-Request-Id: a b\r\n",
                                      "X-Request-Id: ok\r\n",
                                      "Expect: 100-continue\r\n",
                                      "Connection: close\r\n",
                                      "Connection: keep-alive, Upgrade\r\n",
                                      "Upgrade: websocket\r\n",
                                      "Transfer-Encoding: chunked\r\n",
                                      "Transfer-Encoding: gzip, chunked\r\n",
                                      "Content-Length: 99999999999999999999\r\n",
                                      "Content-Length: -1\r\n",
                                      "Content-Length: 3\r\n",
                                      "Origin: https://a\r\n",
                                      "Access-Control-Request-Headers: x\r\n",
                                      "Cookie: a=b; c\r\n",
                                      "Range: bytes=0-\r\n",
                                      "anthropic-version: 2023-06-01\r\n",
                                      "Accept-Encoding: gzip\r\n",
                                      ": no name\r\n",
                                      "no colon\r\n",
                                      "Folded: a\r\n b\r\n",
                                      "A:b\n",
                                      "Null: a\0b\r\n"};

static const char *const bodies[] = {
    "{\"messages\":[{\"role\":\"user\",\"content\":\"[[say=Hi there]]\"}],\"max_tokens\":5}",
    "{\"messages\":[{\"role\":\"user\",\"content\":\"x\"}],\"stream\":true,\"n\":3,\"stop\":[\"e\"]"
    "}",
    "{\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":\"x\"}]}],"
    "\"tools\":[{"
    "\"type\":\"function\",\"function\":{\"name\":\"f\",\"parameters\":{\"type\":\"object\"}}}]}",
    "{\"prompt\":\"[[say=abc]]\",\"logprobs\":2,\"echo\":true,\"temperature\":0.5,\"seed\":-1}",
    "{\"prompt\":[[1,2,3],[4]],\"stream\":true,\"logit_bias\":{\"5\":-100},\"top_p\":1e-9}",
    "{\"model\":\"m\",\"max_tokens\":3,\"system\":\"s\",\"messages\":[{\"role\":\"user\","
    "\"content\":"
    "\"x\"}],\"stream\":true}",
    "{\"input\":\"hello\",\"store\":true,\"metadata\":{\"a\":\"b\"}}",
    "{\"input\":[{\"role\":\"user\",\"content\":\"x\"}],\"previous_response_id\":\"resp_1\"}",
    "{\"messages\":[{\"role\":\"user\",\"content\":\"x\"}],\"response_format\":{\"type\":"
    "\"json_schema\",\"json_schema\":{\"name\":\"n\",\"schema\":{\"type\":\"object\","
    "\"properties\":{"
    "\"a\":{\"enum\":[1,\"\\u00e9\"]}},\"required\":[\"a\"]}}}}",
    "{\"prompt\":\"\\ud800 \\u0000\",\"max_tokens\":1e99,\"user\":null}",
    "[[[[[[[[[[[[[[[[{\"a\":",
    "{}",
    "null",
    ""};

#define PICK(list, rng) ((list)[rng_below((rng), sizeof(list) / sizeof((list)[0]))])

/* Some bytes of b cut out, doubled, swapped or made up. */
static void mutate(struct buf *b, uint64_t *rng)
{
    static const char marks[] = "{}[]\",:\\\r\n\0 0-e.%\x80\xff";
    for (uint64_t n = rng_below(rng, 5); n > 0 && b->len > 2; n--) {
        size_t at = rng_below(rng, b->len);
        size_t len = rng_below(rng, b->len - at < 40 ? b->len - at : 40);
        switch (rng_below(rng, 6)) {
        case 0: b->data[at] = (char)rng_next(rng); break;
        case 1: b->data[at] = marks[rng_below(rng, sizeof marks - 1)]; break;
        case 2: b->data[at] ^= (char)(1 << rng_below(rng, 7)); break;
        case 3:
            memmove(b->data + at, b->data + at + len, b->len - at - len);
            b->len -= len;
            b->data[b->len] = '\0';
            break;
        case 4: {
            struct buf copy = {0};
            (void)buf_add(&copy, b->data + at, len);
            for (uint64_t k = rng_below(rng, 30); k > 0; k--) (void)buf_add(b, copy.data, copy.len);
            buf_free(&copy);
            break;
        }
        default:
            b->len = at;
            b->data[at] = '\0';
            break;
        }
    }
}

/* The body in chunks, of which one may lie about its size. */
static void add_chunked(struct buf *b, const struct buf *body, uint64_t *rng)
{
    size_t at = 0;
    while (at < body->len) {
        size_t n = 1 + rng_below(rng, body->len - at);
        size_t told = rng_below(rng, 40) ? n : rng_next(rng) >> rng_below(rng, 64);
        (void)buf_printf(b, "%zx%s\r\n", told, rng_below(rng, 8) ? "" : ";ext=\"x\"");
        (void)buf_add(b, body->data + at, n);
        (void)buf_add_str(b, rng_below(rng, 40) ? "\r\n" : "\n");
        at += n;
    }
    if (rng_below(rng, 20)) (void)buf_add_str(b, "0\r\n\r\n");
}

/* Appends one request; the later the mutation, the deeper it gets. */
static void add_request(struct buf *out, uint64_t *rng)
{
    struct buf body = {0}, b = {0};
    uint64_t how = rng_below(rng, 10);
    bool is_plain = rng_below(rng, 3) > 0; /* a head as it should be: only the body is wrong */
    size_t i_body = rng_below(rng, sizeof bodies / sizeof bodies[0]);
    bool is_aimed = i_body < sizeof targets / sizeof targets[0] && rng_below(rng, 8);
    const char *path = is_aimed ? targets[i_body] : PICK(paths, rng);
    const char *method = is_aimed || how < 6 ? "POST" : how < 9 ? "GET" : PICK(methods, rng);
    (void)buf_add_str(&body, bodies[i_body]);
    if (rng_below(rng, 2)) mutate(&body, rng);
    (void)buf_printf(&b, "%s %s HTTP/1.%u\r\nHost: localhost\r\n", method, path,
                     rng_below(rng, 40) ? 1u : (unsigned)rng_below(rng, 4));
    for (uint64_t n = is_plain ? 0 : rng_below(rng, 4); n > 0; n--) {
        (void)buf_add_str(&b, PICK(headers, rng));
    }
    if (rng_below(rng, 2000) == 0) {
        for (int i = 0; i < 2000; i++) (void)buf_printf(&b, "X-%d: %d\r\n", i, i);
    }
    if (how == 9) {
        (void)buf_add_str(&b, "Transfer-Encoding: chunked\r\n\r\n");
        add_chunked(&b, &body, rng);
    } else {
        size_t told = body.len;
        if (!is_plain && rng_below(rng, 6) == 0) told += rng_below(rng, 9) - 4;
        (void)buf_printf(&b, "Content-Length: %zu\r\n\r\n", told);
        (void)buf_add(&b, body.data, body.len);
    }
    if (!is_plain && rng_below(rng, 4) == 0) mutate(&b, rng);
    (void)buf_add(out, b.data, b.len);
    buf_free(&b);
    buf_free(&body);
}

/* ---- what comes back ------------------------------------------------------------------------ */

/* How many status lines there are. */
static uint64_t count_answers(const struct buf *in)
{
    uint64_t n = 0;
    for (const char *at = strstr(buf_str(in), STATUS); at; at = strstr(at + 1, STATUS)) n++;
    return n;
}

/* Counts, and keeps the first. */
static void note(atomic_uint_fast64_t *n, char *text, size_t bytes, const char *what)
{
    if (atomic_fetch_add(n, 1) == 0) (void)snprintf(text, bytes, "%s", what);
}

/* A fault of the server's own. The scripted engine does not keep to a grammar, and so the server
 * says of its tokens. */
static bool is_fault(const char *answer)
{
    if (strncmp(answer, STATUS "500", 12) != 0) return false;
    const char *next = strstr(answer + 1, STATUS);
    const char *excuse = strstr(answer, "\"grammar_failed\"");
    return !excuse || (next && excuse > next);
}

/* Counts the status lines; an answer that does not begin with one is garbled. */
static void look_at_answers(struct storm *s, const struct buf *in)
{
    if (in->len == 0) return;
    if (strncmp(in->data, "HTTP/1.", 7) != 0) {
        note(&s->n_garbled, s->garbled, sizeof s->garbled, in->data);
        return;
    }
    for (const char *at = in->data; at; at = strstr(at + 1, STATUS)) {
        unsigned class = (unsigned)(at[9] - '0');
        atomic_fetch_add(&s->n_answer, 1);
        if (class < 6) atomic_fetch_add(&s->n_by_class[class], 1);
        if (is_fault(at)) note(&s->n_fault, s->fault, sizeof s->fault, at);
    }
}

/* Until so many have come, or none does for a while. */
static void read_answers(struct storm *s, int fd, uint64_t n_request, int silence_ms)
{
    struct buf in = {0};
    char bytes[16384];
    for (;;) {
        struct pollfd p = {.fd = fd, .events = POLLIN};
        if (poll(&p, 1, silence_ms) <= 0) break;
        ssize_t n = recv(fd, bytes, sizeof bytes, 0);
        if (n <= 0 || in.len > BATCH_MAX_BYTES) break;
        (void)buf_add(&in, bytes, (size_t)n);
        if (count_answers(&in) >= n_request) break;
    }
    look_at_answers(s, &in);
    buf_free(&in);
}

/* One connection: some requests, sent at once or in pieces, and one of the ways to leave. */
static uint64_t visit(struct storm *s, uint64_t *rng)
{
    struct http_client c;
    struct buf out = {0};
    uint64_t n = 1 + rng_below(rng, PIPELINE_MAX);
    for (uint64_t i = 0; i < n; i++) add_request(&out, rng);
    if (!http_client_open(&c, s->w.port)) {
        atomic_fetch_add(&s->n_refused, 1);
        buf_free(&out);
        return 0;
    }
    size_t first = rng_below(rng, 3) ? out.len : rng_below(rng, out.len + 1);
    (void)http_client_send_bytes(&c, out.data, first);
    if (first < out.len && rng_below(rng, 2)) {
        (void)http_client_send_bytes(&c, out.data + first, out.len - first);
    }
    switch (rng_below(rng, 8)) {
    case 0: break; /* leaves without a look */
    case 1: {
        const struct linger reset = {.l_onoff = 1};
        (void)setsockopt(c.fd, SOL_SOCKET, SO_LINGER, &reset, sizeof reset);
        break;
    }
    case 2:
        (void)shutdown(c.fd, SHUT_WR);
        read_answers(s, c.fd, n, READ_MS);
        break;
    default: read_answers(s, c.fd, n, SILENCE_MS);
    }
    http_client_close(&c);
    buf_free(&out);
    return n;
}

struct stormer {
    struct storm *storm;
    uint64_t rng;
    pthread_t thread;
};

static void *storm_on(void *arg)
{
    struct stormer *me = arg;
    struct storm *s = me->storm;
    while (atomic_load(&s->n_sent) < n_wanted) atomic_fetch_add(&s->n_sent, visit(s, &me->rng));
    return NULL;
}

/* ---- the test ------------------------------------------------------------------------------- */

/* One who asks as one should gets a whole answer. On a busy machine he too may need the time after
 * which a connection is cut: then he tries again. */
static void ask_well(const struct world *w, struct http_reply *r, const char *method,
                     const char *path, const char *body)
{
    uint64_t end_us = 0;
    for (bool whole = false; !whole;) {
        struct http_client c;
        uint64_t begin_us = clock_now_us();
        r->head.len = 0;
        world_connect(&c, w);
        whole = http_client_send(&c, method, path, "", body) && http_client_read(&c, r, false);
        bool late = clock_now_us() - begin_us >= 1000 * DEADLINE_MS;
        if (!whole && (!late || c.in.len + r->head.len > 0 || !keep_waiting(&end_us)))
            fail_msg("%s %s: no whole answer", method, path);
        http_client_close(&c);
    }
}

static void expect_well(const struct world *w, const char *method, const char *path,
                        const char *body, const char *part)
{
    struct http_reply r;
    ask_well(w, &r, method, path, body);
    assert_reply(&r, 200, part);
}

static void expect_all_well(const struct world *w)
{
    char body[256];
    expect_well(w, "GET", "/health", NULL, "\"status\":\"ok\"");
    chat_body(body, sizeof body, "say=Hi", "");
    expect_well(w, "POST", CHAT, body, "\"content\":\"Hi\"");
    chat_body(body, sizeof body, "say=Hi", ",\"stream\":true");
    expect_well(w, "POST", CHAT, body, "data: [DONE]\n\n");
    expect_well(w, "POST", COMPLETIONS, "{\"prompt\":\"x\"}", "\"text\":\"Hello!\"");
}

/* Is a metric there, and 0? */
static bool is_zero(const struct buf *metrics, const char *name)
{
    char line[64];
    (void)snprintf(line, sizeof line, "\n%s{", name);
    const char *at = strstr(buf_str(metrics), line);
    const char *value = at ? strstr(at, "} ") : NULL;
    return value && strncmp(value, "} 0\n", 4) == 0;
}

static void expect_rest(const struct world *w)
{
    uint64_t end_us = 0;
    wait_for_count(w->engine, fake_engine_n_alive, 0);
    do {
        struct http_reply r;
        ask_well(w, &r, "GET", "/metrics", NULL);
        bool rests = is_zero(&r.body, "fathom_requests_in_flight") &&
                     is_zero(&r.body, "fathom_body_bytes_held") &&
                     is_zero(&r.body, "fathom_streams");
        http_reply_free(&r);
        if (rests) return;
    } while (keep_waiting(&end_us));
    fail_msg("requests, bodies or streams are left in the server");
}

static void a_storm_hurts_nobody(void **state)
{
    (void)state;
    static struct storm s;
    struct stormer stormers[STORMERS];
    /* what never comes whole is given up soon, so that connections do not pile up */
    const struct server_options o = {.head_timeout_ms = DEADLINE_MS,
                                     .idle_timeout_ms = DEADLINE_MS,
                                     .body_timeout_ms = DEADLINE_MS};
    world_open(&s.w, &o, NULL);
    expect_all_well(&s.w);
    uint64_t start_us = clock_now_us();
    for (unsigned i = 0; i < STORMERS; i++) {
        stormers[i] = (struct stormer){.storm = &s, .rng = rng_mix(seed, i, 0)};
        assert_int_equal(pthread_create(&stormers[i].thread, NULL, storm_on, &stormers[i]), 0);
    }
    while (atomic_load(&s.n_sent) < n_wanted) {
        expect_all_well(&s.w);
        clock_sleep_us(20000);
    }
    for (unsigned i = 0; i < STORMERS; i++) (void)pthread_join(stormers[i].thread, NULL);
    expect_all_well(&s.w);
    expect_rest(&s.w);
    double seconds = (double)(clock_now_us() - start_us) / 1e6;
    print_message(
        "seed %llu: %llu requests in %.1f s, %llu answers: 2xx %llu, 4xx %llu, 5xx %llu\n",
        (unsigned long long)seed, (unsigned long long)atomic_load(&s.n_sent), seconds,
        (unsigned long long)atomic_load(&s.n_answer),
        (unsigned long long)atomic_load(&s.n_by_class[2]),
        (unsigned long long)atomic_load(&s.n_by_class[4]),
        (unsigned long long)atomic_load(&s.n_by_class[5]));
    if (atomic_load(&s.n_garbled)) {
        fail_msg("%llu answers are no HTTP; the first: %s",
                 (unsigned long long)atomic_load(&s.n_garbled), s.garbled);
    }
    if (atomic_load(&s.n_fault)) fail_msg("a fault of the server's own: %s", s.fault);
    assert_int_equal(atomic_load(&s.n_refused), 0);
    assert_true(atomic_load(&s.n_by_class[2]) > 0 && atomic_load(&s.n_by_class[4]) > 0);
    world_close(&s.w);
}

int main(int argc, char **argv)
{
    if (argc > 1) n_wanted = strtoull(argv[1], NULL, 10);
    if (argc > 2) seed = strtoull(argv[2], NULL, 10);
    const struct CMUnitTest tests[] = {cmocka_unit_test(a_storm_hurts_nobody)};
    return cmocka_run_group_tests(tests, world_setup, world_teardown);
}
