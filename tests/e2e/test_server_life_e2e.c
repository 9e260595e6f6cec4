/* test_server_life_e2e.c - how a server begins and ends: refused starts, an engine that fails or
 * stands still, stops; over loopback, with the scripted engine behind it */
#include <pthread.h>
#include <string.h>

#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"
#include "support/patience.h"
#include "support/world.h"

static void test_refused_starts(void **state)
{
    (void)state;
    struct world w;
    struct server *s;
    struct chat_style style = {.encoding = CHAT_ENCODING_V32};
    fathom_diag d = {{0}};
    world_open(&w, NULL, NULL);
    struct server_options o = {0};
    assert_int_equal(server_create(&s, &o, w.engine, world_tokenizer(), &style, &d), FATHOM_EINVAL);
    assert_non_null(strstr(d.text, "needs a name"));
    fathom_engine *e = fake_engine_open(&(struct fake_options){0});
    o = (struct server_options){
        .model_names = world_model_names, .n_model_name = 1, .port = w.port};
    d.text[0] = '\0';
    assert_int_equal(server_create(&s, &o, e, world_tokenizer(), &style, &d), FATHOM_EIO);
    assert_non_null(strstr(d.text, "another program has it, choose another --port"));
    o.port = 0;
    o.host = "256.1.1.1.x";
    d.text[0] = '\0';
    assert_int_equal(server_create(&s, &o, e, world_tokenizer(), &style, &d), FATHOM_EINVAL);
    assert_non_null(strstr(d.text, "256.1.1.1.x"));
    assert_null(s);
    o.host = NULL;
    bool failed = true;
    for (long n = 0; failed; n++) {
        mem_fail_after(n);
        fathom_err err = server_create(&s, &o, e, world_tokenizer(), &style, &d);
        failed = mem_fail_hit();
        mem_fail_after(-1);
        assert_int_equal(err, failed ? FATHOM_ENOMEM : FATHOM_OK);
        server_destroy(s);
    }
    fathom_close(e);
    world_close(&w);
}

static void test_engine_failure(void **state)
{
    (void)state;
    struct world w;
    struct http_client c[3];
    struct http_reply r;
    fathom_diag d = {{0}};
    world_open(&w, NULL, NULL);
    for (size_t i = 0; i < 3; i++) world_connect(&c[i], &w);
    send_chat(&c[0], "step_ms=5;repeat=1000;say=abc", ",\"stream\":true");
    send_chat(&c[1], "first_ms=60000;say=abc", "");
    assert_true(http_client_wait_for(&c[0], "\"content\":\"c\""));
    wait_for_count(w.engine, fake_engine_n_alive, 2);
    fake_engine_fail(w.engine, "device 3 is lost");
    assert_true(http_client_read(&c[0], &r, false));
    assert_reply(&r, 200,
                 "data: {\"error\":{\"message\":\"the engine has failed: device 3 is lost\"");
    assert_true(http_client_read(&c[1], &r, false));
    assert_reply(&r, 503, "device 3 is lost");
    expect(&c[2], "GET", "/health", NULL, 503, "\"code\":\"engine_failed\"");
    expect_chat(&c[2], "say=x", "", 503, "device 3 is lost");
    for (size_t i = 0; i < 3; i++) http_client_close(&c[i]);
    assert_int_equal(server_run(w.server, &d), FATHOM_EDEVICE);
    assert_non_null(strstr(d.text, "device 3 is lost"));
    log_set_level(LOG_LEVEL_ERROR);
    world_close(&w);
}

static int probe(struct http_client *c, const char *path)
{
    struct http_reply r;
    ask(c, &r, "GET", path, "", NULL);
    int status = r.status;
    http_reply_free(&r);
    return status;
}

static void test_stalled_engine_is_not_healthy(void **state)
{
    (void)state;
    struct world w;
    struct http_client c[2];
    const struct server_options o = {.stall_timeout_ms = 300};
    world_open(&w, &o, NULL);
    world_connect(&c[0], &w);
    world_connect(&c[1], &w);
    fake_engine_stall(w.engine, true);
    clock_sleep_us(700000);
    expect(&c[1], "GET", "/health", NULL, 200, "ok"); /* idle is not stalled */
    send_chat(&c[0], "say=Hi", "");
    uint64_t end_us = 0;
    while (probe(&c[1], "/health") == 200 && keep_waiting(&end_us)) {
    }
    expect(&c[1], "GET", "/health", NULL, 503, "\"code\":\"engine_stalled\"");
    expect(&c[1], "GET", "/ready", NULL, 503, "1 requests run, 0 wait");
    fake_engine_stall(w.engine, false);
    struct http_reply r;
    assert_true(http_client_read(&c[0], &r, false));
    assert_reply(&r, 200, "Hi");
    expect(&c[1], "GET", "/ready", NULL, 200, "ok");
    http_client_close(&c[0]);
    http_client_close(&c[1]);
    world_close(&w);
}

/* ---- stopping ------------------------------------------------------------------------------ */

static void *run_server(void *arg)
{
    fathom_diag d = {{0}};
    return server_run(arg, &d) ? arg : NULL;
}

static void join_run(pthread_t thread)
{
    void *failed;
    assert_int_equal(pthread_join(thread, &failed), 0);
    assert_null(failed);
}

/* Asks /ready until an answer is the last one of its connection: a 503, or a 200 that was made when
 * the end began. */
static void wait_for_close(struct http_client *c)
{
    struct http_reply r;
    uint64_t end_us = 0;
    bool is_last;
    do {
        char value[16] = "";
        ask(c, &r, "GET", "/ready", "", NULL);
        is_last = r.status != 200 || (http_reply_header(&r, "Connection", value, sizeof value) &&
                                      strcmp(value, "close") == 0);
        http_reply_free(&r);
    } while (!is_last && keep_waiting(&end_us));
}

static void test_stop_lets_requests_end(void **state)
{
    (void)state;
    struct world w;
    struct http_client c[2], late;
    struct http_reply r;
    char value[16];
    pthread_t thread;
    const struct server_options o = {.stall_timeout_ms = 600000, .drain_timeout_ms = 600000};
    world_open(&w, &o, NULL);
    world_connect(&c[0], &w);
    world_connect(&c[1], &w);
    expect(&c[1], "GET", "/health", NULL, 200, "ok");
    assert_int_equal(pthread_create(&thread, NULL, run_server, w.server), 0);
    fake_engine_stall(w.engine, true); /* until all has been asked */
    send_chat(&c[0], "say=abcdefghij", ",\"stream\":true");
    wait_for_count(w.engine, fake_engine_n_alive, 1);
    server_stop(w.server);
    /* probes and requests are answered, on new connections too, which are closed then */
    wait_for_close(&c[1]);
    assert_true(http_client_at_end(&c[1]));
    world_connect(&late, &w);
    expect(&late, "GET", "/health", NULL, 200, "\"status\":\"draining\"");
    http_client_close(&late);
    world_connect(&late, &w);
    send_chat(&late, "say=x", "");
    assert_true(http_client_read(&late, &r, false));
    assert_true(http_reply_header(&r, "Retry-After", value, sizeof value));
    assert_reply(&r, 503, "shutting down");
    assert_true(http_client_at_end(&late));
    http_client_close(&late);
    fake_engine_stall(w.engine, false);
    assert_true(http_client_read(&c[0], &r, false));
    assert_reply(&r, 200, "data: [DONE]");
    join_run(thread);
    http_client_close(&c[0]);
    http_client_close(&c[1]);
    world_close(&w);
}

/* Each stop counts, those that come before anybody looks too. */
static void test_second_stop_cancels(void **state)
{
    (void)state;
    const struct server_options o = {.drain_timeout_ms = 600000};
    for (int late = 0; late < 2; late++) {
        struct world w;
        struct http_client c[2];
        struct http_reply r;
        pthread_t thread;
        world_open(&w, &o, NULL);
        world_connect(&c[0], &w);
        world_connect(&c[1], &w);
        send_chat(&c[0], "step_ms=5;repeat=10000;say=abc", ",\"stream\":true");
        send_chat(&c[1], "first_ms=60000;say=abc", "");
        wait_for_count(w.engine, fake_engine_n_alive, 2);
        assert_true(http_client_wait_for(&c[0], "\"content\":\"c\""));
        if (late) assert_int_equal(pthread_create(&thread, NULL, run_server, w.server), 0);
        server_stop(w.server);
        server_stop(w.server);
        if (!late) assert_int_equal(pthread_create(&thread, NULL, run_server, w.server), 0);
        join_run(thread);
        server_destroy(w.server);
        assert_int_equal(fake_engine_n_alive(w.engine), 0);
        assert_true(http_client_read(&c[0], &r, false));
        assert_reply(&r, 200, "\"code\":\"shutting_down\"");
        assert_true(http_client_read(&c[1], &r, false));
        assert_reply(&r, 503, "shutting_down");
        http_client_close(&c[0]);
        http_client_close(&c[1]);
        fathom_close(w.engine);
    }
}

static void test_destroy_with_requests_in_flight(void **state)
{
    (void)state;
    for (int round = 0; round < 5; round++) {
        struct world w;
        struct http_client c[8];
        world_open(&w, NULL, NULL);
        for (size_t i = 0; i < 8; i++) {
            world_connect(&c[i], &w);
            send_chat(&c[i], "step_ms=2;repeat=1000;say=abc", i % 2 ? ",\"stream\":true" : "");
        }
        if (round % 2) wait_for_count(w.engine, fake_engine_n_submitted, 8);
        world_close(&w);
        for (size_t i = 0; i < 8; i++) http_client_close(&c[i]);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_refused_starts),
        cmocka_unit_test(test_engine_failure),
        cmocka_unit_test(test_stalled_engine_is_not_healthy),
        cmocka_unit_test(test_stop_lets_requests_end),
        cmocka_unit_test(test_second_stop_cancels),
        cmocka_unit_test(test_destroy_with_requests_in_flight),
    };
    return cmocka_run_group_tests(tests, world_setup, world_teardown);
}
