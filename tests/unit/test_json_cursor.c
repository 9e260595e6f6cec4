/* test_json_cursor.c - the cursor over large JSON texts, sound and malformed */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "base/limits.h"
#include "base/mem.h"
#include "tokenizer/json_cursor.h"

/* A copy of exactly the text's bytes, so that a sanitizer sees a read past the end. */
struct text {
    struct json_cursor c;
    fathom_diag d;
    char *copy;
};

static void open_text(struct text *t, const char *s, size_t n)
{
    t->d.text[0] = '\0';
    t->copy = mem_alloc(n);
    assert_non_null(t->copy);
    memcpy(t->copy, s, n);
    json_cursor_open(&t->c, t->copy, n, "t.json", &t->d);
}

static void close_text(struct text *t)
{
    json_cursor_close(&t->c);
    mem_free(t->copy);
}

static void expect_reading(const char *json, const char *want, size_t n_want)
{
    struct text t;
    struct json_span got;
    open_text(&t, json, strlen(json));
    assert_int_equal(json_cursor_string(&t.c, &got), 0);
    assert_int_equal(got.n, n_want);
    assert_memory_equal(got.s, want, n_want);
    assert_int_equal(json_cursor_finish(&t.c), 0);
    close_text(&t);
}

static void reads_strings(void **state)
{
    (void)state;
    expect_reading("\"\"", "", 0);
    expect_reading(" \n\"plain\" \t", "plain", 5);
    expect_reading("\"Ġ中😀\"", "Ġ中😀", strlen("Ġ中😀"));
    expect_reading("\"a\\\"b\\\\c\\/d\\n\\r\\t\\b\\f\"", "a\"b\\c/d\n\r\t\b\f", 12);
    expect_reading("\"\\u0120\\u4E2d\\ud83d\\uDE00x\"", "Ġ中😀x", strlen("Ġ中😀x"));
    expect_reading("\"a\\u0000b\"", "a\0b", 3);
}

static void expect_fault(fathom_err (*read)(struct json_cursor *), const char *json,
                         const char *message)
{
    struct text t;
    open_text(&t, json, strlen(json));
    fathom_err err = read(&t.c);
    if (!err || !strstr(t.d.text, message)) {
        print_error("%s: %d \"%s\", wanted \"%s\"\n", json, err, t.d.text, message);
    }
    assert_int_not_equal(err, FATHOM_OK);
    assert_non_null(strstr(t.d.text, message));
    assert_int_equal(strncmp(t.d.text, "t.json: byte ", 13), 0);
    close_text(&t);
}

static fathom_err read_string(struct json_cursor *c)
{
    struct json_span s;
    return json_cursor_string(c, &s);
}

static void refuses_bad_strings(void **state)
{
    (void)state;
    static const char *const cases[][2] = {
        {"", "byte 0: the text ends where a string is expected"},
        {"x", "byte 0: 'x' stands where a string is expected"},
        {"\"abc", "byte 4: the text ends where the end of a string is expected"},
        {"\"a\nb\"", "byte 2: 0x0a stands where the end of a string is expected"},
        {"\"a\\", "byte 3: the text ends where an escape"},
        {"\"a\\q\"", "byte 3: 'q' stands where an escape"},
        {"\"\\u12", "four hexadecimal digits"},
        {"\"\\u12g4\"", "four hexadecimal digits"},
        {"\"\\ud800\"", "the second half of a surrogate"},
        {"\"\\udc00\"", "the second half of a surrogate"},
        {"\"\\ud800\\u0041\"", "the second half of a surrogate"},
        {"\"\\ud800\\ud800\"", "the second half of a surrogate"},
        {"\"\\ud83d\\u", "the second half of a surrogate"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        expect_fault(read_string, cases[i][0], cases[i][1]);
    }
}

static fathom_err read_small(struct json_cursor *c)
{
    uint32_t value;
    return json_cursor_uint(c, 1000, &value);
}

static void reads_whole_numbers(void **state)
{
    (void)state;
    struct text t;
    uint32_t value;
    open_text(&t, " 0 ", 3);
    assert_int_equal(json_cursor_uint(&t.c, 10, &value), 0);
    assert_int_equal(value, 0);
    close_text(&t);
    open_text(&t, "4294967295", 10);
    assert_int_equal(json_cursor_uint(&t.c, UINT32_MAX, &value), 0);
    assert_int_equal(value, UINT32_MAX);
    close_text(&t);
    expect_fault(read_small, "1001", "byte 0: the number is over the limit of 1000");
    expect_fault(read_small, "99999999999999999999999999", "over the limit");
    expect_fault(read_small, "-1", "a whole number");
    expect_fault(read_small, "\"1\"", "a whole number");
    expect_fault(read_small, "01", "a number without zeros before it");
    expect_fault(read_small, "", "a whole number");
}

/* {"a": 1, "b": [..]} element by element */
static void walks_objects_and_arrays(void **state)
{
    (void)state;
    static const char json[] =
        " { \"a\" : 1 , \"b\":[ [ ] , {\"]\":\"}\"},\"x\\\"]\", -1.5e3,null]}\n";
    static const char *const items[] = {"[ ]", "{\"]\":\"}\"}", "\"x\\\"]\"", "-1.5e3", "null"};
    struct text t;
    struct json_span key, value;
    uint32_t number;
    bool first = true, more, first_item = true;
    open_text(&t, json, sizeof json - 1);
    assert_int_equal(json_cursor_enter(&t.c, '{', "an object"), 0);
    assert_int_equal(json_cursor_next(&t.c, '}', &first, &more), 0);
    assert_true(more);
    assert_int_equal(json_cursor_key(&t.c, &key), 0);
    assert_memory_equal(key.s, "a", 1);
    assert_int_equal(json_cursor_uint(&t.c, 9, &number), 0);
    assert_int_equal(json_cursor_next(&t.c, '}', &first, &more), 0);
    assert_int_equal(json_cursor_key(&t.c, &key), 0);
    assert_int_equal(json_cursor_enter(&t.c, '[', "an array"), 0);
    for (size_t i = 0; i < 5; i++) {
        assert_int_equal(json_cursor_next(&t.c, ']', &first_item, &more), 0);
        assert_true(more);
        assert_int_equal(json_cursor_skip(&t.c, &value), 0);
        assert_int_equal(value.n, strlen(items[i]));
        assert_memory_equal(value.s, items[i], value.n);
    }
    assert_int_equal(json_cursor_next(&t.c, ']', &first_item, &more), 0);
    assert_false(more);
    assert_int_equal(json_cursor_next(&t.c, '}', &first, &more), 0);
    assert_false(more);
    assert_int_equal(json_cursor_finish(&t.c), 0);
    close_text(&t);
}

static fathom_err read_array(struct json_cursor *c)
{
    bool first = true, more = true;
    struct json_span value;
    fathom_err err = json_cursor_enter(c, '[', "an array");
    while (!err && more) {
        err = json_cursor_next(c, ']', &first, &more);
        if (!err && more) err = json_cursor_skip(c, &value);
    }
    return err ? err : json_cursor_finish(c);
}

static void refuses_bad_structure(void **state)
{
    (void)state;
    static const char *const cases[][2] = {
        {"{}", "'{' stands where an array is expected"},
        {"[1", "the text ends where ',' or ']' is expected"},
        {"[1 2]", "'2' stands where ',' or ']' is expected"},
        {"[,1]", "',' stands where a value is expected"},
        {"[1,]", "']' stands where a value is expected"},
        {"[[1}]", "'}' stands where the other bracket is expected"},
        {"[{\"a\":[}]", "the other bracket"},
        {"[\"a", "the end of a string"},
        {"[\"a\\", "the end of a string"},
        {"[[", "a value"},
        {"[] x", "'x' stands where the end of the text is expected"},
        {"", "the text ends where an array is expected"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        expect_fault(read_array, cases[i][0], cases[i][1]);
    }
    char deep[LIMIT_JSON_DEPTH + 4];
    memset(deep, '[', sizeof deep);
    deep[sizeof deep - 1] = '\0';
    expect_fault(read_array, deep, "less nesting");
}

static void survives_failing_memory(void **state)
{
    (void)state;
    struct text t;
    struct json_span s;
    open_text(&t, "\"a\\n\"", 5);
    mem_fail_after(0);
    assert_int_equal(json_cursor_string(&t.c, &s), FATHOM_ENOMEM);
    mem_fail_after(-1);
    close_text(&t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(reads_strings),         cmocka_unit_test(refuses_bad_strings),
        cmocka_unit_test(reads_whole_numbers),   cmocka_unit_test(walks_objects_and_arrays),
        cmocka_unit_test(refuses_bad_structure), cmocka_unit_test(survives_failing_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
