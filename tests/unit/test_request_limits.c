/* test_request_limits.c - how much a request body may hold: at each limit it is taken, beyond it is
 * refused by its words */
#include "server/api/api_request.h"

#include <float.h>
#include <stdlib.h>
#include <string.h>

#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

#include "base/json.h"
#include "base/mem.h"
#include "support/request_check.h"

static const struct api_bounds BOUNDS = {.n_vocab = 1000, .strict = true};

static fathom_err parse(struct api_request *r, enum api_kind api, const char *body,
                        struct api_error *e)
{
    *e = (struct api_error){0};
    return api_request_parse(r, api, body, strlen(body), &BOUNDS, e);
}

#define M "\"messages\":[{\"role\":\"user\",\"content\":\"hi\"}]"
#define P "\"prompt\":\"hi\""

/* A body: `begin`, a unit n times with a comma between, `end`. */
static struct buf repeat(const char *begin, const char *unit, size_t n, const char *end)
{
    struct buf b = {0};
    (void)buf_add_str(&b, begin);
    for (size_t i = 0; i < n; i++) {
        if (i) (void)buf_add_char(&b, ',');
        (void)buf_add_str(&b, unit);
    }
    assert_int_equal(buf_add_str(&b, end), FATHOM_OK);
    return b;
}

static void assert_limit(enum api_kind api, const char *begin, const char *unit, size_t limit,
                         const char *end, const char *message)
{
    struct api_request r;
    struct api_error e;
    struct buf b = repeat(begin, unit, limit, end);
    if (parse(&r, api, b.data, &e)) fail_msg("%zu of %s: %s", limit, unit, e.diag.text);
    api_request_free(&r);
    buf_free(&b);
    b = repeat(begin, unit, limit + 1, end);
    assert_int_equal(parse(&r, api, b.data, &e), FATHOM_EINVAL);
    assert_int_equal(e.status, 400);
    assert_string_equal(e.diag.text, message);
    api_request_free(&r);
    buf_free(&b);
    assert_int_equal(json_arenas_used(), 0);
}

#define WORDS "a few words as they come in a chat, "
#define MESSAGE "{\"role\":\"user\",\"content\":\"" WORDS WORDS WORDS "\"}"

static void test_numbers_of_things_are_bounded(void **state)
{
    (void)state;
    assert_limit(API_CHAT, "{" M ",\"stop\":[", "\"x\"", 64, "]}",
                 "stop has 65 entries, at most 64 are taken");
    assert_limit(API_CHAT, "{\"messages\":[", MESSAGE, 65536, "]}",
                 "messages has 65537 entries, at most 65536 are taken");
    assert_limit(API_MESSAGES, "{\"max_tokens\":1,\"messages\":[", MESSAGE, 65536, "]}",
                 "messages has 65537 entries, at most 65536 are taken");
    assert_limit(API_RESPONSES, "{\"input\":[", MESSAGE, 65536, "]}",
                 "input has 65537 entries, at most 65536 are taken");
}

static void test_a_stop_string_is_bounded(void **state)
{
    (void)state;
    struct api_request r;
    struct api_error e;
    struct buf b = {0};
    (void)buf_add_str(&b, "{" M ",\"stop\":[\"y\",\"");
    for (size_t i = 0; i < 4096; i++) (void)buf_add_char(&b, 'x');
    size_t n = b.len;
    (void)buf_add_str(&b, "\"]}");
    assert_int_equal(parse(&r, API_CHAT, b.data, &e), FATHOM_OK);
    assert_int_equal(r.stop_lens[1], 4096);
    api_request_free(&r);
    buf_truncate(&b, n);
    (void)buf_add_str(&b, "x\"]}");
    check_refused(API_CHAT, &BOUNDS, b.data, "stop[1]",
                  "stop[1] is 4097 bytes long, at most 4096 are taken");
    buf_free(&b);
}

static void test_a_tree_too_large_for_its_text_is_refused(void **state)
{
    (void)state;
    static const struct {
        enum api_kind api;
        const char *begin, *unit, *end;
        bool in_text; /* the text is well, what is made of it is too much */
    } cases[] = {
        {API_COMPLETION, "{\"user\":[", "{}", "]}", false},
        {API_COMPLETION, "{" P ",\"guided_json\":\"[", "[]", "]\"}", false},
        {API_CHAT,
         "{\"messages\":[{\"role\":\"assistant\",\"tool_calls\":[{\"function\":{\"name\":\"f\","
         "\"arguments\":\"[",
         "{}", "]\"}}]}]}", false},
        {API_RESPONSES,
         "{\"input\":[{\"type\":\"function_call\",\"call_id\":\"1\",\"name\":\"f\","
         "\"arguments\":\"[",
         "{}", "]\"}]}", false},
        {API_MESSAGES, "{\"max_tokens\":1,\"messages\":[{\"role\":\"user\",\"content\":[",
         "{\"type\":\"text\",\"text\":\"012345678901234567890123456789\"}", "]}]}", true},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct api_request r;
        struct api_error e;
        struct buf b = repeat(cases[i].begin, cases[i].unit, 60000, cases[i].end);
        fathom_err err = parse(&r, cases[i].api, b.data, &e);
        assert_int_equal(e.status, 400);
        if (cases[i].in_text == (strstr(e.diag.text, "values up to byte") != NULL) ||
            !strstr(e.diag.text, "8 for each byte and 4 MiB")) {
            fail_msg("case %zu: %d %s", i, err, e.diag.text);
        }
        api_request_free(&r);
        buf_free(&b);
        assert_int_equal(json_arenas_used(), 0);
    }
}

/* What clients send at the most: no limit is in their way. */
static void test_large_bodies_that_are_meant_so_pass(void **state)
{
    (void)state;
    struct api_request r;
    struct api_error e;
    struct buf b = repeat("{\"prompt\":[", "7", 128 << 10, "]}");
    assert_int_equal(parse(&r, API_COMPLETION, b.data, &e), FATHOM_OK);
    assert_int_equal(r.prompts[0].n_id, 128 << 10);
    assert_true(r.prompts[0].ids[0] == 7 && r.prompts[0].ids[(128 << 10) - 1] == 7);
    assert_true(json_arena_used(r.body_arena) < 8 * b.len);
    api_request_free(&r);
    buf_free(&b);

    b = repeat(
        "{" M ",\"tools\":[",
        "{\"type\":\"function\",\"function\":{\"name\":\"f\",\"parameters\":{\"type\":"
        "\"object\",\"properties\":{\"a\":{\"type\":\"string\"},\"b\":{\"type\":\"integer\"},"
        "\"c\":{\"type\":\"array\",\"items\":{\"type\":\"number\"}},\"d\":{\"enum\":[1,2,3]}}}}}",
        512, "]}");
    assert_int_equal(parse(&r, API_CHAT, b.data, &e), FATHOM_OK);
    assert_int_equal(json_array_size(r.tools), 512);
    api_request_drop_body(&r); /* the tools stay */
    assert_string_equal(json_string_value(json_object_get(json_array_get(r.tools, 511), "type")),
                        "function");
    api_request_free(&r);
    buf_free(&b);
    assert_int_equal(json_arenas_used(), 0);
}

/* A float holds neither; the engine has bounds of its own. */
static void test_positive_numbers_stay_positive_and_finite(void **state)
{
    (void)state;
    static const char *const bodies[] = {"{" M ",\"repetition_penalty\":1e300}",
                                         "{" M ",\"repetition_penalty\":1e-300,\"top_p\":5e-324}"};
    for (int i = 0; i < 2; i++) {
        struct api_request r;
        struct api_error e;
        if (parse(&r, API_CHAT, bodies[i], &e)) fail_msg("%s", e.diag.text);
        assert_true(r.sampling.repetition_penalty == (i ? FLT_MIN : FLT_MAX));
        if (i) assert_true(r.sampling.top_p == FLT_MIN);
        api_request_free(&r);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_numbers_of_things_are_bounded),
        cmocka_unit_test(test_a_stop_string_is_bounded),
        cmocka_unit_test(test_a_tree_too_large_for_its_text_is_refused),
        cmocka_unit_test(test_large_bodies_that_are_meant_so_pass),
        cmocka_unit_test(test_positive_numbers_stay_positive_and_finite),
    };
    json_set_alloc_funcs(mem_alloc, mem_free);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
