/* test_body_memory_e2e.c - what a request may take of the server's memory, and that it gives it
 * back
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "base/json_arena.h"
#include "base/limits.h"
#include "base/mem.h"
#include "support/patience.h"
#include "support/resident.h"
#include "support/world.h"

enum { BODY_BYTES = 4 << 20, WAIT_US = 5000000 };

static char *make_body(const char *begin, const char *unit, const char *end)
{
    struct buf b = {0};
    assert_int_equal(buf_reserve(&b, BODY_BYTES + 256), FATHOM_OK);
    (void)buf_add_str(&b, begin);
    while (b.len < BODY_BYTES) (void)buf_add_str(&b, unit);
    b.len--; /* the last comma */
    assert_int_equal(buf_add_str(&b, end), FATHOM_OK);
    return buf_steal(&b);
}

/* Until what is held is less than this; fails after 5 s. */
static void wait_for_room(size_t bytes)
{
    uint64_t end_us = clock_now_us() + WAIT_US;
    if (KEEPS_FREED_MEMORY) {
        print_message("no check of resident memory: a sanitizer has memory of its own\n");
        return;
    }
    while (resident_bytes() > bytes) {
        if (clock_now_us() > end_us) {
            fail_msg("%zu bytes are resident 5 s after the request, %zu are allowed",
                     resident_bytes(), bytes);
        }
        clock_sleep_us(10000);
    }
}

static void a_body_of_small_values_is_refused_and_leaves_nothing(void **state)
{
    (void)state;
    static const char *const units[] = {"{},", "[],", "{\"\":0},", "[[[[]]]],", "\"\",", "1,"};
    struct world w;
    struct http_client c;
    world_open(&w, NULL, NULL);
    world_connect(&c, &w);
    expect_chat(&c, "say=Hi", "", 200, "\"content\":\"Hi\"");
    for (int round = 0; round < 2; round++) {
        for (size_t i = 0; i < sizeof units / sizeof units[0]; i++) {
            char *body = make_body("{\"user\":[", units[i], "]}");
            size_t before = resident_bytes();
            expect(&c, "POST", COMPLETIONS, body, 400, "8 for each byte and 4 MiB");
            assert_int_equal(json_arenas_used(), 0);
            wait_for_room(before + (8 << 20)); /* of 36 MiB and more for the tree */
            mem_free(body);
            expect_chat(&c, "say=Hi", "", 200, "\"content\":\"Hi\"");
        }
    }
    http_client_close(&c);
    world_close(&w);
}

static void a_large_text_leaves_nothing(void **state)
{
    (void)state;
    struct world w;
    struct http_client c;
    world_open(&w, NULL, NULL);
    world_connect(&c, &w);
    char *body = make_body("{\"prompt\":\"", "some words\\n ", "\"}");
    size_t before = resident_bytes();
    for (int i = 0; i < 3; i++) {
        expect(&c, "POST", COMPLETIONS, body, 400, "bytes fit; shorten it");
        wait_for_room(before + (8 << 20));
    }
    mem_free(body);
    http_client_close(&c);
    world_close(&w);
}

/* Others have taken the range, so that no tree has room: the client is told to come again. */
static void without_room_for_a_tree_a_request_is_told_to_wait(void **state)
{
    (void)state;
    struct world w;
    struct http_client c;
    struct json_arena *a[4];
    json_malloc_t alloc;
    json_free_t release;
    world_open(&w, NULL, NULL);
    world_connect(&c, &w);
    for (size_t i = 0; i < 4; i++) {
        assert_int_equal(json_arena_create(&a[i], LIMIT_JSON_TREE_BYTES), FATHOM_OK);
        struct json_arena *before = json_arena_enter(a[i]);
        json_get_alloc_funcs(&alloc, &release);
        for (size_t n = 256 << 20; n >= 1 << 10; n /= 2) {
            while (alloc(n)) {
            }
        }
        (void)json_arena_enter(before);
    }
    struct http_reply r;
    ask(&c, &r, "POST", COMPLETIONS, "", "{\"prompt\":\"Hi\"}");
    char seconds[16];
    assert_true(http_reply_header(&r, "Retry-After", seconds, sizeof seconds));
    assert_reply(&r, 429, "try again later");
    for (size_t i = 0; i < 4; i++) json_arena_destroy(a[i]);
    expect_chat(&c, "say=Hi", "", 200, "\"content\":\"Hi\"");
    http_client_close(&c);
    world_close(&w);
}

/* Whether the line stands in the metrics now. */
static bool tells(struct http_client *c, const char *line)
{
    struct http_reply r;
    ask(c, &r, "GET", "/metrics", "", NULL);
    bool there = strstr(buf_str(&r.body), line) != NULL;
    http_reply_free(&r);
    return there;
}

static void an_answer_is_bounded(void **state)
{
    (void)state;
    const struct server_options o = {.max_answer_bytes = 1 << 20};
    const struct fake_options f = {.max_model_len = 1000000};
    struct world w;
    struct http_client c;
    world_open(&w, &o, &f);
    world_connect(&c, &w);
    expect_chat(&c, "repeat=10000;say=abc", ",\"logprobs\":true,\"top_logprobs\":20", 400,
                "at most 262144 are held for one: ask for fewer tokens, choices or "
                "log-probabilities");
    wait_for_count(w.engine, fake_engine_n_cancelled, 1);
    expect_chat(&c, "repeat=10;say=abc", ",\"logprobs\":true,\"top_logprobs\":20", 200, "abcabc");
    /* read as it comes, a stream may be of any length */
    expect_chat(&c, "repeat=300;step_ms=1;say=abc",
                ",\"stream\":true,\"logprobs\":true,\"top_logprobs\":20", 200, "data: [DONE]");
    /* given back a moment after the client has read its end */
    uint64_t end_us = 0;
    while (!tells(&c, "fathom_answer_bytes_held{model_name=\"m\",engine=\"0\"} 0\n")) {
        assert_true(keep_waiting(&end_us));
    }
    http_client_close(&c);
    world_close(&w);
}

static void ids_beyond_the_context_are_refused(void **state)
{
    (void)state;
    const struct fake_options f = {.max_model_len = 100};
    struct world w;
    struct http_client c;
    struct buf b = {0};
    world_open(&w, NULL, &f);
    world_connect(&c, &w);
    (void)buf_add_str(&b, "{\"tokens\":[");
    for (int i = 0; i < 99; i++) (void)buf_add_str(&b, "65,");
    (void)buf_add_str(&b, "65]}");
    expect(&c, "POST", "/detokenize", b.data, 200, "\"prompt\":");
    buf_truncate(&b, b.len - 2);
    (void)buf_add_str(&b, ",65]}");
    expect(&c, "POST", "/detokenize", b.data, 400,
           "context length is 100 tokens. However, your tokens has 101 token ids");
    buf_free(&b);
    http_client_close(&c);
    world_close(&w);
}

static void a_prompt_that_cannot_fit_is_not_read_to_its_end(void **state)
{
    (void)state;
    const struct fake_options f = {.max_model_len = 100000};
    struct world w;
    struct http_client c;
    struct buf b = {0};
    world_open(&w, NULL, &f);
    world_connect(&c, &w);
    (void)buf_add_str(&b, "{\"prompt\":\"");
    for (int i = 0; i < 300000; i++) (void)buf_add_str(&b, " x");
    (void)buf_add_str(&b, "\"}");
    expect(&c, "POST", COMPLETIONS, b.data, 400,
           "context length is 100000 tokens. However, your prompt has more than 200000 tokens");
    buf_clear(&b);
    (void)buf_add_str(&b, "{\"messages\":[{\"role\":\"user\",\"content\":\"");
    for (int i = 0; i < (1 << 20) + 10; i++) (void)buf_add_char(&b, 'x');
    (void)buf_add_str(&b, "\"}]}");
    expect(&c, "POST", "/tokenize", b.data, 400, "too long to become tokens");
    expect(&c, "POST", CHAT, b.data, 400, "too long to become tokens");
    buf_free(&b);
    http_client_close(&c);
    world_close(&w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_body_of_small_values_is_refused_and_leaves_nothing),
        cmocka_unit_test(a_large_text_leaves_nothing),
        cmocka_unit_test(without_room_for_a_tree_a_request_is_told_to_wait),
        cmocka_unit_test(an_answer_is_bounded),
        cmocka_unit_test(a_prompt_that_cannot_fit_is_not_read_to_its_end),
        cmocka_unit_test(ids_beyond_the_context_are_refused),
    };
    return cmocka_run_group_tests(tests, world_setup, world_teardown);
}
