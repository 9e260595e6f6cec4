/* test_engine_e2e.c - what server and engine owe each other: an error that reaches every client,
 * clients that leave a queue, readers that do not read, a step that does not end */
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "base/log.h"
#include "support/http_client.h"
#include "support/null_server.h"
#include "support/patience.h"

/* LONG tokens take minutes. */
enum { N_CLIENT = 100, N_RUNNING = 8, LONG = 300000, MAX_LEN = LONG + 1024 };

static const struct null_engine_options defaults = {
    .max_model_len = MAX_LEN,
    .max_num_seqs = N_RUNNING,
    .max_num_batched_tokens = 512,
    .max_queued = 2 * N_CLIENT,
    .seed = 1,
    .runner = {.n_page = N_RUNNING * (MAX_LEN / 64 + 1), .step_us = 1000, .skip_attention = true},
};

static void open_server(struct null_server *s, const struct null_engine_options *e,
                        const struct server_options *o)
{
    fathom_diag d = {{0}};
    if (null_server_open(s, e, o, &d) != FATHOM_OK) fail_msg("%s", d.text);
}

static void ask(struct http_client *c, const struct null_server *s, unsigned max_tokens,
                const char *fields)
{
    char body[256];
    assert_true(http_client_open(c, s->port));
    (void)snprintf(body, sizeof body,
                   "{\"prompt\":\"one two three\",\"ignore_eos\":true,\"max_tokens\":%u%s}",
                   max_tokens, fields);
    assert_true(http_client_send(c, "POST", "/v1/completions", "Connection: close\r\n", body));
}

static int probe(const struct null_server *s, const char *path)
{
    struct http_client c;
    struct http_reply r;
    assert_true(http_client_open(&c, s->port));
    assert_true(http_client_send(&c, "GET", path, "", NULL));
    assert_true(http_client_read(&c, &r, false));
    int status = r.status;
    http_reply_free(&r);
    http_client_close(&c);
    return status;
}

static fathom_stats stats_of(const struct null_server *s)
{
    fathom_stats stats;
    fathom_get_stats(s->engine, &stats);
    return stats;
}

/* Until so many requests run and wait. */
static void wait_for_load(const struct null_server *s, uint32_t n_running, uint32_t n_waiting)
{
    fathom_stats stats;
    uint64_t end_us = 0;
    do {
        stats = stats_of(s);
        if (stats.n_running == n_running && stats.n_waiting == n_waiting) return;
    } while (keep_waiting(&end_us));
    fail_msg("%u requests run and %u wait, needed are %u and %u", stats.n_running, stats.n_waiting,
             n_running, n_waiting);
}

/* Those that wait, run, are streamed and are not: each is told the cause, once, and then the
 * server ends with it. */
static void the_first_device_error_reaches_every_client(void **state)
{
    (void)state;
    static struct http_client clients[N_CLIENT];
    struct null_engine_options e = defaults;
    struct null_server s;
    fathom_diag d = {{0}};
    atomic_bool burns = false;
    uint64_t end_us = 0;
    e.runner.burns = &burns;
    open_server(&s, &e, NULL);
    for (size_t i = 0; i < N_CLIENT; i++) {
        ask(&clients[i], &s, LONG, i % 2 ? ",\"stream\":true" : "");
    }
    wait_for_load(&s, N_RUNNING, N_CLIENT - N_RUNNING);
    while (stats_of(&s).n_output_token < 20 * N_RUNNING) assert_true(keep_waiting(&end_us));
    atomic_store(&burns, true);
    assert_int_equal(server_run(s.server, &d), FATHOM_EDEVICE);
    assert_non_null(strstr(d.text, "the null device burns"));
    size_t n_streamed = 0;
    for (size_t i = 0; i < N_CLIENT; i++) {
        struct http_reply r;
        assert_true(http_client_read(&clients[i], &r, false));
        if (r.status == 200) n_streamed++;
        if (r.status == 200 && i % 2 == 0) fail_msg("client %zu got an answer", i);
        if (r.status != 200) assert_int_equal(r.status, 503);
        const char *cause =
            strstr(buf_str(&r.body), "the engine has failed: the null device burns");
        assert_non_null(cause);
        assert_null(strstr(cause + 1, "the engine has failed"));
        http_reply_free(&r);
        http_client_close(&clients[i]);
    }
    assert_in_range(n_streamed, 1, N_RUNNING);
    assert_int_equal(stats_of(&s).n_running + stats_of(&s).n_waiting, 0);
    null_server_close(&s);
}

/* Nothing is computed for a request whose client has left the queue. */
static void who_leaves_the_queue_is_not_computed(void **state)
{
    (void)state;
    static struct http_client clients[N_CLIENT];
    struct null_server s;
    open_server(&s, &defaults, NULL);
    for (size_t i = 0; i < N_RUNNING; i++) ask(&clients[i], &s, LONG, ",\"stream\":true");
    wait_for_load(&s, N_RUNNING, 0);
    for (size_t i = 0; i < N_RUNNING; i++)
        assert_true(http_client_wait_for(&clients[i], "data: {"));
    uint64_t n_prompt = stats_of(&s).n_prompt_token;
    for (size_t i = N_RUNNING; i < N_CLIENT; i++) {
        ask(&clients[i], &s, 10, i % 2 ? ",\"stream\":true" : "");
    }
    wait_for_load(&s, N_RUNNING, N_CLIENT - N_RUNNING);
    for (size_t i = N_RUNNING; i < N_CLIENT; i++) http_client_close(&clients[i]);
    wait_for_load(&s, N_RUNNING, 0);
    assert_int_equal(stats_of(&s).n_prompt_token, n_prompt);
    assert_int_equal(stats_of(&s).n_cancelled, N_CLIENT - N_RUNNING);
    for (size_t i = 0; i < N_RUNNING; i++) http_client_close(&clients[i]);
    wait_for_load(&s, 0, 0);
    assert_int_equal(stats_of(&s).n_page_free, stats_of(&s).n_page);
    null_server_close(&s);
}

/* Its pages come back, and the stream beside it gets every token. */
static void a_reader_that_does_not_read_is_cut(void **state)
{
    (void)state;
    struct http_client slow[2], beside;
    struct null_engine_options e = defaults;
    struct http_reply r;
    struct null_server s;
    e.runner.step_us = 0;
    open_server(&s, &e, NULL);
    for (size_t i = 0; i < 2; i++) {
        ask(&slow[i], &s, 199000, ",\"stream\":true,\"logprobs\":20");
    }
    ask(&beside, &s, 3000, ",\"stream\":true,\"return_token_ids\":true");
    assert_true(http_client_read(&beside, &r, false));
    size_t n = 0;
    for (const char *at = buf_str(&r.body); (at = strstr(at, "\"token_ids\":[")); at++) {
        n += at[-1] == ',';
        for (const char *id = at; *id != ']'; id++) n += *id == ',';
    }
    assert_true(n >= 3000);
    assert_non_null(strstr(buf_str(&r.body), "data: [DONE]"));
    http_reply_free(&r);
    wait_for_load(&s, 0, 0);
    assert_int_equal(stats_of(&s).n_cancelled, 2);
    assert_int_equal(stats_of(&s).n_page_free, stats_of(&s).n_page);
    for (size_t i = 0; i < 2; i++) {
        assert_false(http_client_read(&slow[i], &r, false));
        http_reply_free(&r);
        http_client_close(&slow[i]);
    }
    http_client_close(&beside);
    null_server_close(&s);
}

static void a_step_that_does_not_end_is_seen_by_the_probes(void **state)
{
    (void)state;
    struct http_client c;
    struct null_engine_options e = defaults;
    const struct server_options o = {.stall_timeout_ms = 400};
    struct http_reply r;
    struct null_server s;
    struct null_gate gate;
    uint64_t end_us = 0;
    null_gate_init(&gate);
    e.runner.gate = &gate;
    open_server(&s, &e, &o);
    assert_int_equal(probe(&s, "/ready"), 200);
    ask(&c, &s, 1, "");
    wait_for_load(&s, 0, 1); /* what runs is told after the step */
    while (probe(&s, "/health") == 200 && keep_waiting(&end_us)) {
    }
    assert_int_equal(probe(&s, "/health"), 503);
    assert_int_equal(probe(&s, "/ready"), 503);
    null_gate_open(&gate);
    assert_true(http_client_read(&c, &r, false)); /* it was slow, not stuck */
    assert_int_equal(r.status, 200);
    assert_int_equal(probe(&s, "/health"), 200);
    http_reply_free(&r);
    http_client_close(&c);
    null_server_close(&s);
}

static int quiet(void **state)
{
    (void)state;
    log_set_level(LOG_LEVEL_ERROR);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_first_device_error_reaches_every_client),
        cmocka_unit_test(who_leaves_the_queue_is_not_computed),
        cmocka_unit_test(a_reader_that_does_not_read_is_cut),
        cmocka_unit_test(a_step_that_does_not_end_is_seen_by_the_probes),
    };
    return cmocka_run_group_tests(tests, quiet, NULL);
}
