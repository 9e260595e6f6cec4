/* test_chat_args_scan.c - the incremental reader of JSON arguments: where a value ends, whether
 * it is JSON, what completes it; jansson is the judge */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "base/json.h"
#include "chat/args_scan.h"

static bool is_json(const char *s, size_t n)
{
    json_t *v;
    if (json_read(s, n, "text", &v, NULL)) return false;
    json_decref(v);
    return true;
}

static const char *const values[] = {
    "{}",
    "[]",
    "{\"a\": 1}",
    " { \"a\" : [ 1 , 2.5 , -3e+7, 0.1E-2, 1e5 ] , \"b\" : { } } ",
    "{\"a\":\"x\\\"y\\\\\",\"b\":true,\"c\":false,\"d\":null,\"e\":[[],{}]}",
    "\"text \\u4e2d\\n\"",
    "\"pair \\ud83d\\ude00 \\uD83D\\uDE00 end\"",
    "-0",
    "12",
    "1.5e3",
    "true",
    "null",
    "[[[[1]]],\"]}\"]",
    "{\"中\":\"\\u00e9é\"}",
};

static const char *const no_values[] = {
    "",     "{",       "[1,]",  "{\"a\":1,}", "{a:1}",      "{'a':1}",  "01",    "1.", "-",
    "+1",   "tru",     "truex", "nul",        "\"",         "\"\\x\"",  "[1 2]", "}",  "{]",
    "[}",   "1 2",     "{}{}",  "{\"a\" 1}",  "\"\\u12g\"", "True",     "NaN",   "1e", "1e+",
    "[1]x", "{\"a\"}", "[,1]",  "\"a\nb\" x", "<a>",        "{\"a\":}", ".5",
};

static void test_whole(void **state)
{
    (void)state;
    struct args_scan a;
    for (size_t i = 0; i < sizeof values / sizeof values[0]; i++) {
        assert_true(is_json(values[i], strlen(values[i])));
        args_scan_init(&a);
        args_scan_text(&a, values[i], strlen(values[i]));
        if (!args_scan_complete(&a)) print_error("%s\n", values[i]);
        assert_true(args_scan_complete(&a));
    }
    for (size_t i = 0; i < sizeof no_values / sizeof no_values[0]; i++) {
        assert_false(is_json(no_values[i], strlen(no_values[i])));
        args_scan_init(&a);
        args_scan_text(&a, no_values[i], strlen(no_values[i]));
        if (args_scan_complete(&a)) print_error("%s\n", no_values[i]);
        assert_false(args_scan_complete(&a));
    }
}

/* Every beginning of a value is completed to JSON; a whole one gets nothing. */
static void test_close(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof values / sizeof values[0]; i++) {
        size_t n = strlen(values[i]);
        for (size_t k = 0; k <= n; k++) {
            if (k < n && ((unsigned char)values[i][k] & 0xC0) == 0x80) continue;
            struct args_scan a;
            struct buf out = {0};
            args_scan_init(&a);
            args_scan_text(&a, values[i], k);
            assert_true(a.valid);
            assert_int_equal(buf_add(&out, values[i], k), FATHOM_OK);
            args_scan_close(&a, &out);
            if (!is_json(out.data, out.len))
                print_error("%.*s -> %s\n", (int)k, values[i], out.data);
            assert_true(is_json(out.data, out.len));
            if (args_scan_complete(&a)) assert_int_equal(out.len, k);
            buf_free(&out);
        }
    }
}

static void test_close_escape(void **state)
{
    (void)state;
    static const char *const halves[] = {
        "\"\\",        "\"\\u",        "\"\\u1",        "\"\\ud83",        "\"\\ud83d",
        "\"\\ud83d\\", "\"\\ud83d\\u", "\"\\ud83d\\ud", "\"\\ud83d\\ude0", "[\"\\uDB",
    };
    for (size_t i = 0; i < sizeof halves / sizeof halves[0]; i++) {
        struct args_scan a;
        struct buf out = {0};
        args_scan_init(&a);
        args_scan_text(&a, halves[i], strlen(halves[i]));
        assert_int_equal(buf_add_str(&out, halves[i]), FATHOM_OK);
        args_scan_close(&a, &out);
        if (!is_json(out.data, out.len)) print_error("%s -> %s\n", halves[i], out.data);
        assert_true(is_json(out.data, out.len));
        buf_free(&out);
    }
}

static void test_stops(void **state)
{
    (void)state;
    struct args_scan a;
    size_t used;
    const char *done = "{\"a\":[1]} rest";
    args_scan_init(&a);
    assert_int_equal(args_scan_run(&a, done, strlen(done), &used), ARGS_STOP_DONE);
    assert_int_equal(used, 9);
    assert_true(args_scan_complete(&a));
    args_scan_init(&a);
    assert_int_equal(args_scan_run(&a, "\"a\" ", 4, &used), ARGS_STOP_MORE);
    assert_int_equal(used, 4);
    const char *mark = "{\"a<`\":1<x>}";
    args_scan_init(&a);
    assert_int_equal(args_scan_run(&a, mark, strlen(mark), &used), ARGS_STOP_MARK);
    assert_int_equal(used, 8);
    args_scan_skip(&a, '<');
    assert_false(a.valid);
    assert_int_equal(args_scan_run(&a, mark + 9, 3, &used), ARGS_STOP_DONE);
    const char *control = "[\"a\nb\"]";
    args_scan_init(&a);
    assert_int_equal(args_scan_run(&a, control, strlen(control), &used), ARGS_STOP_CONTROL);
    assert_int_equal(used, 3);
    args_scan_skip(&a, '\n');
    assert_true(a.valid);
    assert_int_equal(args_scan_run(&a, control + 4, 3, &used), ARGS_STOP_DONE);
    assert_true(args_scan_complete(&a));
}

/* Brackets past the bit set, and text that is no JSON, are still followed to their end. */
static void test_loose(void **state)
{
    (void)state;
    struct args_scan a;
    size_t used;
    char deep[4 * ARGS_SCAN_DEPTH];
    memset(deep, '[', sizeof deep / 2);
    memset(deep + sizeof deep / 2, ']', sizeof deep / 2);
    args_scan_init(&a);
    assert_int_equal(args_scan_run(&a, deep, sizeof deep, &used), ARGS_STOP_DONE);
    assert_int_equal(used, sizeof deep);
    assert_false(args_scan_complete(&a));
    const char *python = "{'a': True, 'b': \"}\"}.";
    args_scan_init(&a);
    assert_int_equal(args_scan_run(&a, python, strlen(python), &used), ARGS_STOP_DONE);
    assert_int_equal(used, strlen(python) - 1);
    struct buf out = {0};
    args_scan_init(&a);
    args_scan_text(&a, "{x: [\"", 6);
    args_scan_close(&a, &out);
    assert_string_equal(buf_str(&out), "\"]}");
    buf_free(&out);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_whole),        cmocka_unit_test(test_close),
        cmocka_unit_test(test_close_escape), cmocka_unit_test(test_stops),
        cmocka_unit_test(test_loose),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
