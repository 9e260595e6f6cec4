/* test_operations_e2e.c - what operators see of the server: metrics */
#include <stdio.h>
#include <string.h>

#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

#include "base/clock.h"
#include "support/exposition.h"
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
    double v = -1;
    for (int i = 0; i < 200 && v != want; i++) {
        if (i) clock_sleep_us(10000);
        v = value(c, name, part);
    }
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
    send_chat(&c[0], "step_ms=10;repeat=1000;say=abc", ",\"stream\":true");
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
    struct http_client c, operator;
    const struct fake_options f = {.max_model_len = 1000000};
    world_open(&w, NULL, &f);
    world_connect(&c, &w);
    world_connect(&operator, & w);
    send_chat(&c, "repeat=500000;say=abc",
              ",\"stream\":true,\"logprobs\":true,\"top_logprobs\":20");
    wait_for_count(w.engine, fake_engine_n_cancelled, 1);
    wait_for_value(&operator, "fathom_backlog_cuts_total", "", 1);
    wait_for_value(&operator, "fathom_disconnects_total", "", 0);
    http_client_close(&c);
    http_client_close(&operator);
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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_scrape_counts_what_has_been_served),
        cmocka_unit_test(what_is_open_and_what_was_left_is_counted),
        cmocka_unit_test(a_cut_of_a_slow_reader_is_counted),
        cmocka_unit_test(a_key_guards_the_metrics),
    };
    return cmocka_run_group_tests(tests, world_setup, world_teardown);
}
