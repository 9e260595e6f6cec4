/* test_operations_e2e.c - what operators see of the server: metrics, probes, limits */
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>

#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

#include "base/clock.h"
#include "support/exposition.h"
#include "support/patience.h"
#include "support/world.h"

/* ---- metrics ------------------------------------------------------------------------------- */

/* A scrape that holds together; released by the caller. */
static struct http_reply scrape(struct http_client *c, const char *headers)
{
    struct http_reply r;
    char why[256] = "", type[128];
    ask(c, &r, "GET", "/metrics", headers, NULL);
    assert_int_equal(r.status, 200);
    assert_true(http_reply_header(&r, "Content-Type", type, sizeof type));
    assert_string_equal(type, "text/plain; version=0.0.4; charset=utf-8");
    if (!exposition_check(buf_str(&r.body), why, sizeof why)) {
        fail_msg("%s in:\n%s", why, buf_str(&r.body));
    }
    return r;
}

static double value(struct http_client *c, const char *name, const char *part)
{
    struct http_reply r = scrape(c, "");
    double v = exposition_value(buf_str(&r.body), name, part);
    http_reply_free(&r);
    return v;
}

/* What a connection did is counted when the server has seen it end. */
static void wait_for_value(struct http_client *c, const char *name, const char *part, double want)
{
    double v;
    uint64_t end_us = 0;
    do {
        v = value(c, name, part);
    } while (v != want && keep_waiting(&end_us));
    if (v != want) fail_msg("%s %s is %g, needed is %g", name, part, v, want);
}

static void a_scrape_counts_what_has_been_served(void **state)
{
    (void)state;
    struct world w;
    struct http_client c;
    world_open(&w, NULL, NULL);
    world_connect(&c, &w);
    expect_chat(&c, "cached=3;say=Hi", "", 200, "Hi");
    expect_chat(&c, "step_ms=1;say=abcd", ",\"stream\":true,\"n\":2,\"max_tokens\":4", 200, "");
    expect_chat(&c, "say=ab STOP c", ",\"stop\":\"STOP\"", 200, "ab");
    expect_chat(&c, "refuse=busy", "", 429, "");
    expect_chat(&c, "say=x", ",\"temperature\":9", 400, "");
    expect(&c, "POST", "/nowhere", "{}", 404, "");
    wait_for_count(w.engine, fake_engine_n_alive, 0);
    wait_for_value(&c, "fathom_requests_in_flight", "", 0);
    wait_for_value(&c, "vllm:request_success_total", "finished_reason=\"stop\"", 2);
    struct http_reply r = scrape(&c, "");
    const char *text = buf_str(&r.body);
    static const struct {
        const char *name, *part;
        double want;
    } rows[] = {
        {"vllm:request_success_total", "finished_reason=\"length\"", 2},
        {"vllm:request_success_total", "finished_reason=\"abort\"", 0},
        {"vllm:time_to_first_token_seconds_count", "model_name=\"m\"", 4},
        {"vllm:time_to_first_token_seconds_bucket", "le=\"+Inf\"", 4},
        {"vllm:e2e_request_latency_seconds_count", "", 4},
        {"vllm:inter_token_latency_seconds_count", "", 2 + 3 + 3 + 6},
        {"vllm:request_generation_tokens_sum", "", 3 + 4 + 4 + 7},
        {"vllm:request_params_n_sum", "", 1 + 2 + 1 + 1},
        {"vllm:request_params_max_tokens_sum", "", 4 + 4},
        {"vllm:prefix_cache_hits_total", "", 3},
        {"fathom_http_responses_total", "status=\"200\"", 4},
        {"fathom_http_responses_total", "status=\"400\"", 1},
        {"fathom_http_responses_total", "status=\"404\"", 1},
        {"fathom_http_responses_total", "status=\"429\"", 1},
        {"fathom_request_errors_total", "code=\"server_busy\"", 1},
        {"fathom_request_errors_total", "code=\"not_found\"", 1},
        {"fathom_request_errors_total", "code=\"invalid_value\"", 1},
        {"fathom_engine_up", "", 1},
        {"fathom_streams", "", 0},
        {"fathom_requests_in_flight", "", 0},
        {"fathom_body_bytes_held", "", 0},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        double v = exposition_value(text, rows[i].name, rows[i].part);
        /* the scrapes before this one were answers too */
        bool ok = rows[i].want == v || (strstr(rows[i].part, "200") && v > rows[i].want);
        if (!ok) fail_msg("%s %s is %g, needed is %g", rows[i].name, rows[i].part, v, rows[i].want);
    }
    http_reply_free(&r);
    http_client_close(&c);
    world_close(&w);
}

static void what_is_open_and_what_was_left_is_counted(void **state)
{
    (void)state;
    struct world w;
    struct http_client c[3];
    world_open(&w, NULL, NULL);
    for (size_t i = 0; i < 3; i++) world_connect(&c[i], &w);
    send_chat(&c[0], "step_ms=50;repeat=1000;say=abc", ",\"stream\":true");
    send_chat(&c[1], "first_ms=60000;say=abc", "");
    assert_true(http_client_wait_for(&c[0], "\"content\":\"c\""));
    wait_for_count(w.engine, fake_engine_n_alive, 2);
    wait_for_value(&c[2], "vllm:num_requests_running", "", 2);
    wait_for_value(&c[2], "fathom_streams", "", 1);
    wait_for_value(&c[2], "fathom_requests_in_flight", "", 2);
    wait_for_value(&c[2], "fathom_connections", "", 3);
    http_client_close(&c[0]);
    http_client_close(&c[1]);
    wait_for_value(&c[2], "fathom_disconnects_total", "", 2);
    wait_for_value(&c[2], "vllm:request_success_total", "finished_reason=\"abort\"", 2);
    wait_for_value(&c[2], "fathom_http_responses_total", "status=\"499\"", 1);
    wait_for_value(&c[2], "fathom_streams", "", 0);
    wait_for_value(&c[2], "fathom_requests_in_flight", "", 0);
    wait_for_value(&c[2], "fathom_connections", "", 1);
    assert_true(value(&c[2], "vllm:e2e_request_latency_seconds_count", "") == 0);
    http_client_close(&c[2]);
    world_close(&w);
}

static void a_cut_of_a_slow_reader_is_counted(void **state)
{
    (void)state;
    struct world w;
    struct http_client c, probe;
    const struct fake_options f = {.max_model_len = 1000000};
    world_open(&w, NULL, &f);
    world_connect(&c, &w);
    world_connect(&probe, &w);
    send_chat(&c, "repeat=500000;say=abc",
              ",\"stream\":true,\"logprobs\":true,\"top_logprobs\":20");
    wait_for_count(w.engine, fake_engine_n_cancelled, 1);
    wait_for_value(&probe, "fathom_backlog_cuts_total", "", 1);
    wait_for_value(&probe, "fathom_disconnects_total", "", 0);
    http_client_close(&c);
    http_client_close(&probe);
    world_close(&w);
}

static void a_key_guards_the_metrics(void **state)
{
    (void)state;
    static const char *const keys[] = {"secret"};
    const struct server_options o = {.api_keys = keys, .n_api_key = 1};
    struct world w;
    struct http_client c;
    world_open(&w, &o, NULL);
    world_connect(&c, &w);
    expect(&c, "GET", "/metrics", NULL, 401, "invalid_api_key");
    struct http_reply r = scrape(&c, "Authorization: Bearer secret\r\n");
    http_reply_free(&r);
    http_client_close(&c);
    world_close(&w);
}

static void an_expired_request_is_told_by_the_status(void **state)
{
    (void)state;
    struct world w;
    struct http_client c;
    struct http_reply r;
    char body[256], value[16];
    world_open(&w, NULL, NULL);
    world_connect(&c, &w);
    for (int stream = 0; stream < 2; stream++) {
        chat_body(body, sizeof body,
                  "first_ms=50;then=expire;say=", stream ? ",\"stream\":true" : "");
        ask(&c, &r, "POST", CHAT, "", body);
        assert_true(http_reply_header(&r, "Retry-After", value, sizeof value));
        assert_reply(&r, 429, "without being started, longer than its first token may take");
    }
    wait_for_value(&c, "fathom_request_errors_total", "code=\"server_busy\"", 2);
    wait_for_value(&c, "vllm:request_success_total", "finished_reason=\"abort\"", 2);
    http_client_close(&c);
    world_close(&w);
}

/* ---- limits -------------------------------------------------------------------------------- */

static bool is_closed(const struct http_client *c)
{
    char byte;
    return recv(c->fd, &byte, 1, MSG_DONTWAIT | MSG_PEEK) == 0;
}

/* Sends bytes one by one, 20 ms apart, until the server closes the connection. */
static void dribble(struct http_client *c, const char *text)
{
    uint64_t end_us = 0;
    for (const char *at = text; !is_closed(c); at += at[1] != '\0') {
        if (!http_client_send_bytes(c, at, 1)) return;
        if (!keep_waiting(&end_us)) fail_msg("the connection is never closed");
        clock_sleep_us(20000);
    }
}

/* The same on a connection of its own, which the server may have cut where this program was slow.
 */
static double value_elsewhere(const struct world *w, const char *name)
{
    struct http_client c;
    struct http_reply r;
    world_connect(&c, w);
    bool whole =
        http_client_send(&c, "GET", "/metrics", "", NULL) && http_client_read(&c, &r, false);
    double v = whole ? exposition_value(buf_str(&r.body), name, "") : -1;
    if (whole) http_reply_free(&r);
    http_client_close(&c);
    return v;
}

static void a_request_that_trickles_in_is_cut(void **state)
{
    (void)state;
    const struct server_options o = {.head_timeout_ms = 300, .body_timeout_ms = 300};
    struct world w;
    struct http_client c;
    uint64_t end_us = 0;
    world_open(&w, &o, NULL);
    static const char *const texts[] = {
        "GET /health HTTP/1.1\r\nHost: localhost\r\nX: aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa",
        "POST " CHAT " HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000\r\n\r\n{\"messages\"  "};
    for (size_t i = 0; i < 2; i++) {
        uint64_t begin_us = clock_now_us();
        world_connect(&c, &w);
        size_t head = i ? strlen(texts[i]) - 14 : 0; /* at once, so that the body is what is late */
        (void)http_client_send_bytes(&c, texts[i], head);
        dribble(&c, texts[i] + head);
        assert_true(clock_now_us() - begin_us >= 300000);
        http_client_close(&c);
    }
    while (value_elsewhere(&w, "fathom_late_connections_total") < 2) {
        assert_true(keep_waiting(&end_us));
    }
    world_close(&w);
}

/* The head of the next request has its time from its first byte on. */
static void between_requests_a_connection_may_be_idle_for_longer(void **state)
{
    (void)state;
    struct server_options o = {.head_timeout_ms = 300, .idle_timeout_ms = 600000};
    struct world w;
    struct http_client c;
    struct http_reply r;
    world_open(&w, &o, NULL);
    for (bool answered = false; !answered;) { /* unless this program was slow */
        world_connect(&c, &w);
        answered =
            http_client_send(&c, "GET", "/health", "", NULL) && http_client_read(&c, &r, false);
        if (!answered) http_client_close(&c);
    }
    http_reply_free(&r);
    clock_sleep_us(600000);
    expect(&c, "GET", "/health", NULL, 200, "ok");
    http_client_close(&c);
    world_close(&w);

    o = (struct server_options){.idle_timeout_ms = 300};
    world_open(&w, &o, NULL);
    world_connect(&c, &w);
    expect(&c, "GET", "/health", NULL, 200, "ok");
    assert_true(http_client_at_end(&c));
    http_client_close(&c);
    world_close(&w);
}

static void an_answer_has_no_deadline(void **state)
{
    (void)state;
    const struct server_options o = {
        .head_timeout_ms = 100, .idle_timeout_ms = 100, .body_timeout_ms = 100};
    struct world w;
    struct http_client c;
    struct http_reply r;
    world_open(&w, &o, NULL);
    fake_engine_stall(w.engine, true);
    world_connect(&c, &w);
    send_chat(&c, "say=Hi", "");
    for (uint64_t end_us = 0; fake_engine_n_submitted(w.engine) == 0;) {
        assert_true(keep_waiting(&end_us));
        if (!is_closed(&c)) continue;
        http_client_close(&c); /* this program was slow */
        world_connect(&c, &w);
        send_chat(&c, "say=Hi", "");
    }
    clock_sleep_us(600000);
    fake_engine_stall(w.engine, false);
    assert_true(http_client_read(&c, &r, false));
    assert_reply(&r, 200, "Hi");
    http_client_close(&c);
    world_close(&w);
}

static void one_connection_too_many_is_told_so(void **state)
{
    (void)state;
    const struct server_options o = {.max_connections = 2};
    struct world w;
    struct http_client c[3];
    struct http_reply r;
    char body[256], value[16];
    world_open(&w, &o, NULL);
    fake_engine_stall(w.engine, true);
    for (size_t i = 0; i < 2; i++) {
        world_connect(&c[i], &w);
        send_chat(&c[i], "say=x", "");
    }
    wait_for_count(w.engine, fake_engine_n_submitted, 2);
    world_connect(&c[2], &w);
    expect(&c[2], "GET", "/health", NULL, 200, "ok"); /* probes are always answered */
    assert_true(http_client_at_end(&c[2]));
    http_client_close(&c[2]);
    world_connect(&c[2], &w);
    chat_body(body, sizeof body, "say=x", "");
    ask(&c[2], &r, "POST", CHAT, "", body);
    assert_true(http_reply_header(&r, "Retry-After", value, sizeof value));
    assert_reply(&r, 503, "\"code\":\"too_many_connections\"");
    assert_true(http_client_at_end(&c[2]));
    http_client_close(&c[2]);
    fake_engine_stall(w.engine, false);
    for (size_t i = 0; i < 2; i++) {
        assert_true(http_client_read(&c[i], &r, false));
        assert_reply(&r, 200, "x");
    }
    for (size_t i = 0; i < 2; i++) http_client_close(&c[i]);
    world_close(&w);
}

/* The one that has said nothing for longest goes, and neither of the others. */
static void who_is_idle_makes_room(void **state)
{
    (void)state;
    const struct server_options o = {.max_connections = 3};
    struct world w;
    struct http_client c[4];
    world_open(&w, &o, NULL);
    for (size_t i = 0; i < 4; i++) {
        world_connect(&c[i], &w);
        expect(&c[i], "GET", "/health", NULL, 200, "ok");
        if (i < 3) expect(&c[0], "GET", "/health", NULL, 200, "ok");
    }
    assert_true(http_client_at_end(&c[1]));
    for (size_t i = 0; i < 4; i++) {
        if (i != 1) expect_chat(&c[i], "say=x", "", 200, "x");
        http_client_close(&c[i]);
    }
    world_close(&w);
}

static void headers_too_long_are_answered(void **state)
{
    (void)state;
    struct world w;
    struct http_client c;
    world_open(&w, NULL, NULL);
    world_connect(&c, &w);
    struct buf head = {0};
    (void)buf_add_str(&head, "GET /health HTTP/1.1\r\nHost: localhost\r\nX: ");
    for (int i = 0; i < 100000; i++) (void)buf_add_char(&head, 'x');
    (void)buf_add_str(&head, "\r\n\r\n");
    (void)http_client_send_bytes(&c, head.data, head.len);
    assert_true(http_client_wait_for(&c, "HTTP/1.1 431 "));
    buf_free(&head);
    http_client_close(&c);
    world_close(&w);
}

/* The longest token of the tests' tokenizer is an added one; a prompt of more bytes than the
 * context's tokens could cover is refused by its length alone. */
static void text_that_cannot_fit_is_refused_by_its_bytes(void **state)
{
    (void)state;
    const struct fake_options f = {.max_model_len = 8};
    struct world w;
    struct http_client c;
    struct buf body = {0};
    world_open(&w, NULL, &f);
    world_connect(&c, &w);
    (void)buf_add_str(&body, "{\"prompt\":\"");
    for (int i = 0; i < 5000; i++) (void)buf_add_char(&body, 'a');
    (void)buf_add_str(&body, "\"}");
    expect(
        &c, "POST", COMPLETIONS, buf_str(&body), 400,
        "This model's maximum context length is 8 tokens. However, your prompt is 5000 bytes long");
    buf_clear(&body);
    (void)buf_add_str(&body, "{\"messages\":[{\"role\":\"user\",\"content\":\"");
    for (int i = 0; i < 5000; i++) (void)buf_add_char(&body, 'a');
    (void)buf_add_str(&body, "\"}]}");
    expect(&c, "POST", CHAT, buf_str(&body), 400, "your prompt is more than ");
    expect(&c, "POST", COMPLETIONS, "{\"prompt\":\"abc\",\"max_tokens\":2}", 200, "");
    wait_for_value(&c, "fathom_request_errors_total", "code=\"context_length_exceeded\"", 2);
    buf_free(&body);
    http_client_close(&c);
    world_close(&w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_scrape_counts_what_has_been_served),
        cmocka_unit_test(what_is_open_and_what_was_left_is_counted),
        cmocka_unit_test(a_cut_of_a_slow_reader_is_counted),
        cmocka_unit_test(a_key_guards_the_metrics),
        cmocka_unit_test(an_expired_request_is_told_by_the_status),
        cmocka_unit_test(a_request_that_trickles_in_is_cut),
        cmocka_unit_test(between_requests_a_connection_may_be_idle_for_longer),
        cmocka_unit_test(an_answer_has_no_deadline),
        cmocka_unit_test(one_connection_too_many_is_told_so),
        cmocka_unit_test(who_is_idle_makes_room),
        cmocka_unit_test(headers_too_long_are_answered),
        cmocka_unit_test(text_that_cannot_fit_is_refused_by_its_bytes),
    };
    return cmocka_run_group_tests(tests, world_setup, world_teardown);
}
