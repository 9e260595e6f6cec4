/* test_http_e2e.c - connections: what is refused, who has left, who is idle, who does not read
 *
 * Each test is a table of what is sent on a socket and of what must come back. */
#include <poll.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <zlib.h>

#include <cmocka.h>

#include "base/clock.h"
#include "base/mem.h"
#include "support/exposition.h"
#include "support/patience.h"
#include "support/world.h"

#define HOST "Host: localhost\r\n"
#define POST "POST " COMPLETIONS " HTTP/1.1\r\n" HOST
#define CHUNKED POST "Transfer-Encoding: chunked\r\n\r\n"
#define BEHIND "GET /version HTTP/1.1\r\n" HOST "\r\n"
#define BODY "{\"prompt\":\"[[say=Hi]]\"}"

/* All that comes until the server closes. */
static void read_to_end(struct http_client *c)
{
    char bytes[4096];
    for (ssize_t n; (n = recv(c->fd, bytes, sizeof bytes, 0)) > 0;) {
        (void)buf_add(&c->in, bytes, (size_t)n);
    }
}

static unsigned count(const char *text, const char *part)
{
    unsigned n = 0;
    for (const char *at = text; (at = strstr(at, part)); at += strlen(part)) n++;
    return n;
}

static double metric(const struct world *w, const char *name)
{
    struct http_client c;
    struct http_reply r;
    world_connect(&c, w);
    ask(&c, &r, "GET", "/metrics", "", NULL);
    double v = exposition_value(buf_str(&r.body), name, "");
    http_reply_free(&r);
    http_client_close(&c);
    return v;
}

/* ---- refused requests ---------------------------------------------------------------------- */

struct refusal {
    const char *bytes;
    size_t n;
    int status;
};

#define ROW(text, status)                                                                          \
    {                                                                                              \
        text, sizeof(text) - 1, status                                                             \
    }

static const struct refusal refusals[] = {
    ROW(POST "Content-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n" BEHIND, 400),
    ROW(POST "Content-Length: 23\r\nContent-Length: 2\r\n\r\n" BODY BEHIND, 400),
    ROW(POST "Content-Length: 23\r\nContent-Length: 23\r\n\r\n" BODY BEHIND, 400),
    ROW(POST "Content-Length : 23\r\n\r\n" BEHIND, 400),
    ROW(POST "Content-Length: 23\0 1\r\n\r\n" BODY BEHIND, 400),
    ROW(POST "Content-Length: +23\r\n\r\n" BODY BEHIND, 400),
    ROW(POST "Content-Length: -1\r\n\r\n" BODY BEHIND, 400),
    ROW(POST "Content-Length: 0x17\r\n\r\n" BODY BEHIND, 400),
    ROW(POST "Content-Length: 23, 23\r\n\r\n" BODY BEHIND, 400),
    ROW(POST "Content-Length: 99999999999999999999999\r\n\r\n" BODY BEHIND, 400),
    ROW(POST "Content-Length:\r\n 23\r\n\r\n" BODY BEHIND, 400),
    ROW(POST "Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n" BEHIND, 501),
    ROW(POST "Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n" BEHIND, 501),
    ROW(POST "Transfer-Encoding: identity\r\n\r\n" BODY BEHIND, 501),
    ROW(POST "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400),
    ROW("POST " COMPLETIONS " HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400),
    ROW("GET /version HTTP/1.1\r\n\r\n" BEHIND, 400),
    ROW("GET /version HTTP/1.1\r\n" HOST HOST "\r\n" BEHIND, 400),
    ROW("GET /version HTTP/1.1\nHost: localhost\n\n" BEHIND, 400),
    ROW("GET /version HTTP/1.1\r\n" HOST "X: a\r\n b\r\n\r\n" BEHIND, 400),
    ROW("GET /version HTTP/1.1\r\n" HOST "X: a\rb\r\n\r\n" BEHIND, 400),
    ROW("GET /version HTTP/1.1\r\n" HOST "X-Api-Key: a\0b\r\n\r\n" BEHIND, 400),
    ROW("GET /health%00/anything HTTP/1.1\r\n" HOST "\r\n" BEHIND, 400),
    ROW("GET /version HTTP/2.0\r\n" HOST "\r\n" BEHIND, 505),
    ROW("GET /version HTTP/1.1\r\n" HOST "Expect: magic\r\n\r\n" BEHIND, 417),
    ROW(CHUNKED "2d;\n" BODY "\r\n0\r\n\r\n" BEHIND, 400),
    ROW(CHUNKED "-5\r\nabc\r\n0\r\n\r\n" BEHIND, 400),
    ROW(CHUNKED "17\r\n" BODY "XX0\r\n\r\n" BEHIND, 400),
    ROW(CHUNKED "fffffffffffffffff\r\nabc" BEHIND, 400),
};

/* One status line, one error of ours, then the end: what came behind is not taken for a request. */
static void what_is_refused_has_one_answer_and_ends(void **state)
{
    (void)state;
    struct world w;
    world_open(&w, NULL, NULL);
    for (size_t i = 0; i < sizeof refusals / sizeof refusals[0]; i++) {
        struct http_client c;
        char begin[32];
        world_connect(&c, &w);
        assert_true(http_client_send_bytes(&c, refusals[i].bytes, refusals[i].n));
        read_to_end(&c);
        const char *in = buf_str(&c.in);
        (void)snprintf(begin, sizeof begin, "HTTP/1.1 %d ", refusals[i].status);
        if (strncmp(in, begin, strlen(begin)) != 0 || count(in, "\r\nDate: ") != 1 ||
            !strstr(in, "Connection: close\r\n") || !strstr(in, "\"code\":\"malformed_request\"")) {
            fail_msg("%s\n- wanted %d and the end, but got\n%s", refusals[i].bytes,
                     refusals[i].status, in);
        }
        http_client_close(&c);
    }
    assert_true(metric(&w, "fathom_requests_in_flight") == 0);
    world_close(&w);
}

static void extensions_and_trailers_have_a_bound(void **state)
{
    (void)state;
    struct world w;
    struct http_client c;
    world_open(&w, NULL, NULL);
    for (int trailer = 0; trailer < 2; trailer++) {
        struct buf text = {0};
        (void)buf_add_str(&text, CHUNKED);
        (void)buf_add_str(&text, trailer ? "0\r\n" : "17;");
        for (int i = 0; i < 100000; i++) (void)buf_add_str(&text, trailer ? "A: b\r\n" : "a");
        (void)buf_add_str(&text, trailer ? "\r\n" : "\r\n" BODY "\r\n0\r\n\r\n");
        world_connect(&c, &w);
        (void)http_client_send_bytes(&c, text.data, text.len);
        assert_true(http_client_wait_for(&c, "HTTP/1.1 400 "));
        http_client_close(&c);
        buf_free(&text);
    }
    world_connect(&c, &w);
    static const char fine[] = CHUNKED "17;a=b\r\n" BODY "\r\n0\r\nA: b\r\n\r\n";
    struct http_reply r;
    assert_true(http_client_send_bytes(&c, fine, sizeof fine - 1));
    assert_true(http_client_read(&c, &r, false));
    assert_reply(&r, 200, "\"text\":\"Hi\"");
    http_client_close(&c);
    world_close(&w);
}

/* ---- what is taken ------------------------------------------------------------------------- */

static void requests_behind_each_other_are_answered_in_order(void **state)
{
    (void)state;
    enum { ROUNDS = 40 };
    struct world w;
    struct http_client c;
    struct http_reply r;
    struct buf text = {0};
    world_open(&w, NULL, NULL);
    for (int i = 0; i < ROUNDS; i++) {
        (void)buf_printf(&text, "\r\n%sX-Request-Id: job-%d\r\nContent-Length: 23\r\n\r\n%s", POST,
                         i, BODY);
        (void)buf_printf(&text, "GET /health HTTP/1.1\r\n%sX-Request-Id: get-%d\r\n\r\n", HOST, i);
        (void)buf_printf(&text, "%sX-Request-Id: in-%d\r\nTransfer-Encoding: chunked\r\n\r\n", POST,
                         i);
        (void)buf_add_str(&text,
                          "10\r\n{\"stream\":true,\"\r\n12\r\nprompt\":\"[[say=s]]\r\n2\r\n\"}"
                          "\r\n0\r\n\r\n");
    }
    world_connect(&c, &w);
    assert_true(http_client_send_bytes(&c, text.data, text.len));
    for (int i = 0; i < 3 * ROUNDS; i++) {
        static const char *const names[] = {"job", "get", "in"};
        static const char *const parts[] = {"\"text\":\"Hi\"", "ok", "data: [DONE]"};
        char want[32], id[32];
        assert_true(http_client_read(&c, &r, false));
        (void)snprintf(want, sizeof want, "%s-%d", names[i % 3], i / 3);
        assert_true(http_reply_header(&r, "X-Request-Id", id, sizeof id));
        assert_string_equal(id, want);
        assert_reply(&r, 200, parts[i % 3]);
    }
    http_client_close(&c);
    buf_free(&text);
    world_close(&w);
}

static void other_forms_of_requests_are_taken(void **state)
{
    (void)state;
    static const struct {
        const char *text, *part;
    } rows[] = {
        {"GET http://localhost:1/version HTTP/1.1\r\nHost: other.example\r\nConnection: "
         "close\r\n\r\n",
         "\"version\""},
        {"GET /version HTTP/1.0\r\n\r\n", "Connection: close\r\nContent-Length: "},
        {"HEAD /version HTTP/1.1\r\n" HOST "Connection: close\r\n\r\n", "Content-Length: "},
        {"OPTIONS /version HTTP/1.1\r\n" HOST "Connection: close\r\n\r\n", "HTTP/1.1 204 "},
        {"POST " COMPLETIONS " HTTP/1.0\r\nContent-Length: 37\r\n\r\n"
         "{\"prompt\":\"[[say=Hi]]\",\"stream\":true}",
         "\r\n\r\ndata: {"}, /* without chunks, to the end of the connection */
        {POST "Expect: 100-continue\r\nConnection: close\r\nContent-Length: 23\r\n\r\n" BODY,
         "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\n"},
        {"GET /health HTTP/1.1\r\n" HOST "\r\n" BEHIND "GET /ready HTTP/1.1\r\n" HOST
         "Connection: close\r\n\r\n",
         "\"version\""},
    };
    struct world w;
    world_open(&w, NULL, NULL);
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct http_client c;
        world_connect(&c, &w);
        assert_true(http_client_send_bytes(&c, rows[i].text, strlen(rows[i].text)));
        read_to_end(&c);
        if (!strstr(buf_str(&c.in), rows[i].part)) {
            fail_msg("%s\n- answered with\n%s", rows[i].text, buf_str(&c.in));
        }
        assert_int_equal(count(buf_str(&c.in), "\r\nDate: "),
                         count(buf_str(&c.in), "HTTP/1.1 ") - count(buf_str(&c.in), " 100 Cont"));
        http_client_close(&c);
    }
    world_close(&w);
}

/* A body that waits to be asked for is not asked for when it is not wanted. */
/* ---- packed bodies ---- */

/* A POST whose body is `text` as gzip, sent on the connection. */
static void send_packed(struct http_client *c, const char *text, size_t n)
{
    z_stream z = {0};
    struct buf b = {0};
    size_t max = n / 100 + 1000;
    char *packed = mem_alloc(max);
    assert_non_null(packed);
    assert_int_equal(deflateInit2(&z, 9, Z_DEFLATED, 31, 8, Z_DEFAULT_STRATEGY), Z_OK);
    z.next_in = (z_const Bytef *)text;
    z.avail_in = (uInt)n;
    z.next_out = (Bytef *)packed;
    z.avail_out = (uInt)max;
    assert_int_equal(deflate(&z, Z_FINISH), Z_STREAM_END);
    (void)buf_printf(&b, POST "Content-Encoding: gzip\r\nContent-Length: %zu\r\n\r\n",
                     max - z.avail_out);
    (void)buf_add(&b, packed, max - z.avail_out);
    assert_true(http_client_send_bytes(c, b.data, b.len));
    (void)deflateEnd(&z);
    mem_free(packed);
    buf_free(&b);
}

static void bodies_come_packed(void **state)
{
    (void)state;
    struct world w;
    struct http_client c;
    struct http_reply r;
    world_open(&w, NULL, NULL);
    world_connect(&c, &w);
    send_packed(&c, BODY, sizeof BODY - 1);
    assert_true(http_client_read(&c, &r, false));
    assert_reply(&r, 200, "\"text\":\"Hi\"");

    size_t n = 60 << 20;
    char *bomb = mem_alloc(n);
    assert_non_null(bomb);
    memset(bomb, ' ', n);
    send_packed(&c, bomb, n);
    mem_free(bomb);
    assert_true(http_client_read(&c, &r, false));
    assert_reply(&r, 413, "unpacks to more than 67108864 bytes, or to more than 64 for each");
    static const char *const plain[][2] = {{"gzip", "is no gzip"}, {"br", "is \\\"br\\\"; gzip"}};
    for (int i = 0; i < 2; i++) {
        char headers[60];
        (void)snprintf(headers, sizeof headers, "Content-Encoding: %s\r\n", plain[i][0]);
        ask(&c, &r, "POST", COMPLETIONS, headers, BODY);
        assert_reply(&r, i ? 415 : 400, plain[i][1]);
    }
    ask(&c, &r, "POST", COMPLETIONS, "Content-Encoding: identity\r\n", "\xEF\xBB\xBF" BODY);
    assert_reply(&r, 200, "\"text\":\"Hi\"");
    assert_true(metric(&w, "fathom_body_bytes_held") == 0);
    http_client_close(&c);
    world_close(&w);
}

static void a_body_that_is_not_wanted_is_not_asked_for(void **state)
{
    (void)state;
    static const char text[] =
        "POST /nowhere HTTP/1.1\r\n" HOST "Expect: 100-continue\r\nContent-Length: 1000\r\n\r\n";
    struct world w;
    struct http_client c;
    world_open(&w, NULL, NULL);
    world_connect(&c, &w);
    assert_true(http_client_send_bytes(&c, text, sizeof text - 1));
    read_to_end(&c);
    assert_int_equal(strncmp(buf_str(&c.in), "HTTP/1.1 404 ", 13), 0);
    assert_int_equal(count(buf_str(&c.in), "HTTP/1.1 "), 1);
    http_client_close(&c);
    world_close(&w);
}

/* ---- who has left -------------------------------------------------------------------------- */

/* Bytes and the end of the client's side come together; a deadline is minutes away. */
static void who_leaves_within_a_request_is_seen_at_once(void **state)
{
    (void)state;
    static const char *const texts[] = {"",
                                        "G",
                                        "GET /health HTTP/1.1\r\nHo",
                                        POST,
                                        POST "Content-Length: 300000\r\n\r\n{",
                                        CHUNKED "5\r\nab",
                                        BEHIND "GET /vers",
                                        POST "Content-Length: 300000\r\n\r\n"};
    enum { EACH = 40, BODY_BYTES = 20000 };
    struct world w;
    char *body = mem_alloc(BODY_BYTES);
    memset(body, ' ', BODY_BYTES);
    world_open(&w, NULL, NULL);
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++) {
        struct http_client c[EACH];
        for (int k = 0; k < EACH; k++) {
            world_connect(&c[k], &w);
            assert_true(http_client_send_bytes(&c[k], texts[i], strlen(texts[i])));
            if (i == 7) assert_true(http_client_send_bytes(&c[k], body, BODY_BYTES));
            (void)shutdown(c[k].fd, SHUT_WR);
        }
        for (int k = 0; k < EACH; k++) {
            read_to_end(&c[k]);
            http_client_close(&c[k]);
        }
    }
    uint64_t end_us = 0;
    while (metric(&w, "fathom_connections") > 1) assert_true(keep_waiting(&end_us));
    assert_true(metric(&w, "fathom_body_bytes_held") == 0);
    assert_true(metric(&w, "fathom_late_connections_total") == 0);
    mem_free(body);
    world_close(&w);
}

static void who_leaves_while_a_job_runs_is_seen(void **state)
{
    (void)state;
    struct world w;
    struct http_client c;
    world_open(&w, NULL, NULL);
    for (int stream = 0; stream < 2; stream++) {
        world_connect(&c, &w);
        send_chat(&c, "first_ms=600000;say=abc", stream ? ",\"stream\":true" : "");
        wait_for_count(w.engine, fake_engine_n_alive, 1);
        assert_true(http_client_send_bytes(&c, BEHIND, sizeof BEHIND - 1)); /* waits unread */
        (void)shutdown(c.fd, SHUT_WR);
        wait_for_count(w.engine, fake_engine_n_alive, 0);
        http_client_close(&c);
    }
    world_close(&w);
}

/* ---- who is idle --------------------------------------------------------------------------- */

static void idle_connections_keep_nobody_out(void **state)
{
    (void)state;
    static const char *const texts[] = {"", "GET / HTTP/1.1\r\nX",
                                        POST "Content-Length: 9\r\n\r\n{"};
    enum { MAX = 32, N = 100 };
    /* one thread takes connections as they came: none of them comes after c, which would go for it
     * between two requests */
    const struct server_options o = {.max_connections = MAX, .n_http_thread = 1};
    struct world w;
    struct http_client idle[N], c;
    world_open(&w, &o, NULL);
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++) {
        for (int k = 0; k < N; k++) {
            world_connect(&idle[k], &w);
            (void)http_client_send_bytes(&idle[k], texts[i], strlen(texts[i]));
        }
        for (int k = 0; k < 3; k++) {
            world_connect(&c, &w);
            expect(&c, "GET", "/health", NULL, 200, "ok");
            expect_chat(&c, "say=Hi", "", 200, "Hi");
            http_client_close(&c);
        }
        for (int k = 0; k < N; k++) http_client_close(&idle[k]);
    }
    assert_true(metric(&w, "fathom_dropped_connections_total") >= 3 * (N - MAX));
    assert_true(metric(&w, "fathom_late_connections_total") == 0);
    world_close(&w);
}

/* ---- who does not read --------------------------------------------------------------------- */

/* A client with a small window, which asks for an answer of some megabytes. */
static void ask_for_much(struct http_client *c, const struct world *w)
{
    enum { TEXT_BYTES = 6 << 20 };
    int window = 4096;
    struct buf b = {0};
    world_connect(c, w);
    (void)setsockopt(c->fd, SOL_SOCKET, SO_RCVBUF, &window, sizeof window);
    (void)buf_printf(&b, "POST /tokenize HTTP/1.1\r\n%sContent-Length: %d\r\n\r\n{\"prompt\":\"",
                     HOST, TEXT_BYTES + 13);
    size_t at = b.len;
    assert_int_equal(buf_reserve(&b, TEXT_BYTES + 2), FATHOM_OK);
    while (b.len < at + TEXT_BYTES) (void)buf_add_str(&b, "x ");
    (void)buf_add_str(&b, "\"}");
    assert_true(http_client_send_bytes(c, b.data, b.len));
    buf_free(&b);
}

static const struct fake_options large = {.max_model_len = 1 << 24};

static void who_reads_nothing_is_cut(void **state)
{
    (void)state;
    const struct server_options o = {.unread_timeout_ms = 300};
    struct world w;
    struct http_client c;
    uint64_t end_us = 0;
    world_open(&w, &o, &large);
    ask_for_much(&c, &w);
    while (metric(&w, "fathom_unread_answer_bytes") == 0) assert_true(keep_waiting(&end_us));
    while (metric(&w, "fathom_late_connections_total") < 1) assert_true(keep_waiting(&end_us));
    while (metric(&w, "fathom_connections") > 1) assert_true(keep_waiting(&end_us));
    assert_true(metric(&w, "fathom_unread_answer_bytes") == 0);
    http_client_close(&c);
    world_close(&w);
}

static void what_is_not_read_has_a_bound(void **state)
{
    (void)state;
    enum { N = 6, BOUND = 20 << 20 };
    const struct server_options o = {.max_unread_bytes = BOUND};
    struct world w;
    struct http_client c[N];
    uint64_t end_us = 0;
    world_open(&w, &o, &large);
    for (int i = 0; i < N; i++) ask_for_much(&c[i], &w);
    while (metric(&w, "fathom_dropped_connections_total") < 1) {
        assert_true(metric(&w, "fathom_unread_answer_bytes") <= BOUND);
        assert_true(keep_waiting(&end_us));
    }
    for (int i = 0; i < N; i++) http_client_close(&c[i]);
    while (metric(&w, "fathom_connections") > 1) assert_true(keep_waiting(&end_us));
    world_close(&w);
}

/* ---- names and pages ----------------------------------------------------------------------- */

static void expect_host(const struct world *w, const char *host, int status)
{
    char text[256];
    struct http_client c;
    struct http_reply r;
    (void)snprintf(text, sizeof text, "GET /version HTTP/1.1\r\nHost: %s\r\n\r\n", host);
    world_connect(&c, w);
    assert_true(http_client_send_bytes(&c, text, strlen(text)));
    assert_true(http_client_read(&c, &r, false));
    assert_reply(&r, status, status == 200 ? "version" : "\"code\":\"host_not_allowed\"");
    http_client_close(&c);
}

static void a_loopback_server_has_few_names(void **state)
{
    (void)state;
    static const char *const names[] = {"llm.example"};
    struct server_options o = {0};
    struct world w;
    world_open(&w, &o, NULL);
    expect_host(&w, "localhost:8000", 200);
    expect_host(&w, "127.0.0.1:8000", 200);
    expect_host(&w, "[::1]", 200);
    expect_host(&w, "evil.example", 403);
    expect_host(&w, "llm.example", 403);
    world_close(&w);
    o.allowed_hosts = names;
    o.n_allowed_host = 1;
    world_open(&w, &o, NULL);
    expect_host(&w, "LLM.example:443", 200);
    expect_host(&w, "evil.example", 403);
    world_close(&w);
    o = (struct server_options){.host = "0.0.0.0"};
    world_open(&w, &o, NULL);
    expect_host(&w, "evil.example", 200);
    world_close(&w);
}

static void a_login_is_spent_by_the_own_page_alone(void **state)
{
    (void)state;
    static const char *const keys[] = {"first"};
    static const struct {
        const char *method, *path, *headers;
        int status;
    } rows[] = {
        {"GET", "/", "Sec-Fetch-Site: cross-site\r\n", 200},
        {"GET", "/v1/models", "Sec-Fetch-Site: same-origin\r\n", 200},
        {"POST", COMPLETIONS, "Sec-Fetch-Site: same-origin\r\n", 200},
        {"POST", COMPLETIONS, "Origin: http://localhost\r\n", 200},
        {"POST", COMPLETIONS, "Origin: http://evil.example\r\n", 401},
        {"POST", COMPLETIONS, "Origin: null\r\n", 401},
        {"POST", COMPLETIONS, "Sec-Fetch-Site: cross-site\r\nOrigin: http://localhost\r\n", 401},
        {"POST", COMPLETIONS, "Sec-Fetch-Site: same-site\r\n", 401},
        {"POST", COMPLETIONS, "", 401},
        {"GET", "/v1/models", "Sec-Fetch-Site: cross-site\r\n", 401},
    };
    const struct server_options o = {.api_keys = keys, .n_api_key = 1};
    struct world w;
    struct http_client c;
    struct http_reply r;
    world_open(&w, &o, NULL);
    world_connect(&c, &w);
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        char headers[256];
        (void)snprintf(headers, sizeof headers, "Authorization: Basic eDpmaXJzdA==\r\n%s",
                       rows[i].headers);
        ask(&c, &r, rows[i].method, rows[i].path, headers, rows[i].method[0] == 'P' ? BODY : NULL);
        if (r.status != rows[i].status) fail_msg("row %zu: %d", i, r.status);
        http_reply_free(&r);
    }
    http_client_close(&c);
    world_close(&w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_is_refused_has_one_answer_and_ends),
        cmocka_unit_test(extensions_and_trailers_have_a_bound),
        cmocka_unit_test(requests_behind_each_other_are_answered_in_order),
        cmocka_unit_test(other_forms_of_requests_are_taken),
        cmocka_unit_test(bodies_come_packed),
        cmocka_unit_test(a_body_that_is_not_wanted_is_not_asked_for),
        cmocka_unit_test(who_leaves_within_a_request_is_seen_at_once),
        cmocka_unit_test(who_leaves_while_a_job_runs_is_seen),
        cmocka_unit_test(idle_connections_keep_nobody_out),
        cmocka_unit_test(who_reads_nothing_is_cut),
        cmocka_unit_test(what_is_not_read_has_a_bound),
        cmocka_unit_test(a_loopback_server_has_few_names),
        cmocka_unit_test(a_login_is_spent_by_the_own_page_alone),
    };
    return cmocka_run_group_tests(tests, world_setup, world_teardown);
}
