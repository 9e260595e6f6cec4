/* test_json.c - reading with limits and positions, writing as Python does */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/fail.h"
#include "base/json.h"
#include "base/limits.h"
#include "base/mem.h"
#include "base/rng.h"

static json_t *read_ok(const char *text)
{
    json_t *v;
    fathom_diag d = {{0}};
    if (json_read(text, strlen(text), "test", &v, &d)) fail_msg("%s: %s", text, d.text);
    return v;
}

/* Text to tree to text. */
static void assert_rewritten(const char *text, const char *compact, const char *python)
{
    struct buf b = {0};
    json_t *v = read_ok(text);
    assert_int_equal(json_write(&b, v), FATHOM_OK);
    assert_string_equal(buf_str(&b), compact);
    buf_clear(&b);
    assert_int_equal(json_write_python(&b, v), FATHOM_OK);
    assert_string_equal(buf_str(&b), python);
    buf_free(&b);
    json_decref(v);
}

static void values_are_written_as_python_writes_them(void **state)
{
    (void)state;
    assert_rewritten("{\"b\": [1, 2.50, true, null], \"a\": {}}",
                     "{\"b\":[1,2.5,true,null],\"a\":{}}",
                     "{\"b\": [1, 2.5, true, null], \"a\": {}}");
    assert_rewritten("[]", "[]", "[]");
    assert_rewritten(" \"\\u00e9\\u4e16\\ud83d\\ude00/\\/\" ",
                     "\"\xc3\xa9\xe4\xb8\x96\xf0\x9f\x98\x80//\"",
                     "\"\xc3\xa9\xe4\xb8\x96\xf0\x9f\x98\x80//\"");
    assert_rewritten("\"\\b\\f\\n\\r\\t\\\"\\\\\\u0000\\u001f\x7f\"",
                     "\"\\b\\f\\n\\r\\t\\\"\\\\\\u0000\\u001f\x7f\"",
                     "\"\\b\\f\\n\\r\\t\\\"\\\\\\u0000\\u001f\x7f\"");
    assert_rewritten("-9223372036854775808", "-9223372036854775808", "-9223372036854775808");
}

static void assert_repr(double v, const char *repr)
{
    struct buf b = {0};
    json_t *j = json_real(v);
    assert_int_equal(json_write(&b, j), FATHOM_OK);
    assert_string_equal(buf_str(&b), repr);
    buf_free(&b);
    json_decref(j);
}

static void numbers_have_pythons_repr(void **state)
{
    (void)state;
    static const struct {
        double v;
        const char *repr;
    } known[] = {
        {0x0.0p+0, "0.0"},
        {-0x0.0p+0, "-0.0"},
        {0x1.0000000000000p+0, "1.0"},
        {-0x1.8000000000000p+0, "-1.5"},
        {0x1.999999999999ap-4, "0.1"},
        {0x1.999999999999ap-3, "0.2"},
        {0x1.5555555555555p-2, "0.3333333333333333"},
        {0x1.5555555555555p-1, "0.6666666666666666"},
        {0x1.9000000000000p+6, "100.0"},
        {0x1.c6bf526340000p+49, "1000000000000000.0"},
        {0x1.1c37937e08000p+53, "1e+16"},
        {0x1.c12218377de66p+46, "123456789012345.6"},
        {0x1.0000000000000p+53, "9007199254740992.0"},
        {0x1.1c37937e07fffp+53, "9999999999999998.0"},
        {0x1.a36e2eb1c432dp-14, "0.0001"},
        {0x1.4f8b588e368f1p-17, "1e-05"},
        {0x1.02e4b6ce5dc68p-13, "0.00012345"},
        {0x1.421f5f40d8376p-23, "1.5e-07"},
        {0x1.0f0cf064dd592p+73, "1e+22"},
        {0x1.52d02c7e14af6p+76, "1e+23"},
        {0x1.fffffffffffffp+1023, "1.7976931348623157e+308"},
        {0x0.0000000000001p-1022, "5e-324"},
        {0x1.0000000000000p-1022, "2.2250738585072014e-308"},
        {0x1.0000000000000p-1017, "7.120236347223045e-307"},
        {0x1.0000000000000p-1007, "7.291122019556398e-304"},
        {0x1.0000000000000p-44, "5.684341886080802e-14"},
        {0x1.921fb54442d18p+1, "3.141592653589793"},
        {0x1.fe185ca57c517p+78, "6.02214076e+23"},
        {0x1.1de784a000000p+28, "299792458.0"},
        {0x1.6666666666666p-1, "0.7"},
        {0x1.249ad2594c37dp+332, "1e+100"},
        {0x1.1666666666666p+2, "4.35"},
    };
    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++) {
        assert_repr(known[i].v, known[i].repr);
    }
}

/* Any double reads back as itself, and no decimal with a digit less does. */
static void numbers_are_shortest_and_exact(void **state)
{
    (void)state;
    uint64_t seed = 11;
    for (int i = 0; i < 20000; i++) {
        uint64_t bits = rng_next(&seed);
        double v;
        memcpy(&v, &bits, sizeof v);
        if (!isfinite(v)) continue;
        struct buf b = {0};
        json_t *j = json_real(v);
        assert_int_equal(json_write(&b, j), FATHOM_OK);
        if (strtod(buf_str(&b), NULL) != v) fail_msg("%a is written %s", v, buf_str(&b));
        int n_digit = 0;
        for (const char *p = buf_str(&b); *p && *p != 'e'; p++) n_digit += *p >= '0' && *p <= '9';
        char shorter[40];
        if (n_digit > 1) (void)snprintf(shorter, sizeof shorter, "%.*e", n_digit - 2, v);
        if (n_digit > 1 && fabs(v) > 1e17 && strtod(shorter, NULL) == v) fail_msg("%s", shorter);
        buf_free(&b);
        json_decref(j);
    }
}

static void assert_malformed(const char *text, size_t n, const char *part)
{
    json_t *v = NULL;
    fathom_diag d = {{0}};
    assert_int_equal(json_read(text, n, "config.json", &v, &d), FATHOM_EFORMAT);
    assert_null(v);
    if (!strstr(d.text, "config.json") || !strstr(d.text, part)) fail_msg("%s", d.text);
}

static void bad_text_is_refused_with_its_place(void **state)
{
    (void)state;
    static const char *const bad[] = {"",       " ",       "{",           "[1,]",     "{\"a\" 1}",
                                      "tru",    "1 2",     "\"abc",       "[01]",     "\"\\x\"",
                                      "{1: 2}", "nan",     "\"\\ud800\"", "\"\xff\"", "\"\n\"",
                                      "1e999",  "Infinity"};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        assert_malformed(bad[i], strlen(bad[i]), "not valid JSON");
    }
    assert_malformed(NULL, 0, "not valid JSON");
    assert_malformed("{\n  \"a\": oops}", 14, "line 2");
}

static void a_mark_before_a_text_is_no_part_of_it(void **state)
{
    (void)state;
    assert_rewritten("\xef\xbb\xbf [1]", "[1]", "[1]");
    json_t *v;
    fathom_diag d = {{0}};
    assert_int_equal(json_read("\xef\xbb\xbf", 3, "a", &v, &d), FATHOM_EFORMAT);
    assert_non_null(strstr(d.text, "(byte 4): the text ends"));
    d.text[0] = '\0';
    static const char twice[] = "\xef\xbb\xbf\xef\xbb\xbf[1]";
    assert_int_equal(json_read(twice, sizeof twice - 1, "a", &v, &d), FATHOM_EFORMAT);
    assert_non_null(strstr(d.text, "(byte 4): a value is needed"));
    d.text[0] = '\0';
    assert_int_equal(json_read("\xff\xfe{\0}\0", 6, "a", &v, &d), FATHOM_EFORMAT);
    assert_non_null(strstr(d.text, "(byte 1): the text is UTF-16, needed is UTF-8"));
}

static void nesting_has_a_limit(void **state)
{
    (void)state;
    char text[2 * LIMIT_JSON_DEPTH + 2];
    memset(text, '[', LIMIT_JSON_DEPTH + 1);
    memset(text + LIMIT_JSON_DEPTH + 1, ']', LIMIT_JSON_DEPTH + 1);
    json_t *v;
    assert_int_equal(json_read(text + 1, 2 * LIMIT_JSON_DEPTH, "t", &v, NULL), FATHOM_OK);
    json_decref(v);
    assert_malformed(text, sizeof text, "deeper than 512");
    /* brackets in strings do not count */
    memset(text, '[', sizeof text);
    text[0] = text[sizeof text - 1] = '"';
    assert_int_equal(json_read(text, sizeof text, "t", &v, NULL), FATHOM_OK);
    json_decref(v);
    v = read_ok("[\"\\\"[[\", \"\\\\\"]");
    assert_int_equal(json_array_size(v), 2);
    json_decref(v);
}

static void members_are_typed_and_named_in_messages(void **state)
{
    (void)state;
    json_t *o =
        read_ok("{\"i\": 7, \"whole\": 3.0, \"f\": 2.5, \"b\": true, \"s\": \"x\", \"n\": null}");
    int64_t i = -1;
    double f = -1;
    bool b = false;
    const char *s = NULL;
    fathom_diag d = {{0}};
    assert_int_equal(json_get_i64(o, "i", true, 0, 9, &i, &d), FATHOM_OK);
    assert_int_equal(i, 7);
    assert_int_equal(json_get_i64(o, "whole", true, 0, 9, &i, &d), FATHOM_OK);
    assert_int_equal(i, 3);
    assert_int_equal(json_get_f64(o, "i", true, &f, &d), FATHOM_OK);
    assert_true(f == 7.0);
    assert_int_equal(json_get_bool(o, "b", true, &b, &d), FATHOM_OK);
    assert_true(b);
    assert_int_equal(json_get_str(o, "s", true, &s, &d), FATHOM_OK);
    assert_string_equal(s, "x");
    /* absent and null leave the value alone */
    assert_int_equal(json_get_i64(o, "n", false, 0, 9, &i, &d), FATHOM_OK);
    assert_int_equal(json_get_i64(o, "absent", false, 0, 9, &i, &d), FATHOM_OK);
    assert_int_equal(i, 3);
    assert_string_equal(d.text, "");

    assert_int_equal(json_get_i64(o, "f", true, 0, 9, &i, &d), FATHOM_EFORMAT);
    assert_string_equal(d.text, "\"f\" is a number, an integer is needed");
    diag_clear(&d);
    assert_int_equal(json_get_i64(o, "i", true, 8, 9, &i, &d), FATHOM_EFORMAT);
    assert_string_equal(d.text, "\"i\" is 7, needed is 8 to 9");
    diag_clear(&d);
    assert_int_equal(json_get_str(o, "absent", true, &s, &d), FATHOM_EFORMAT);
    assert_string_equal(d.text, "\"absent\" is missing (a string is needed)");
    assert_int_equal(json_get_bool(o, "n", true, &b, NULL), FATHOM_EFORMAT);
    assert_int_equal(json_get_f64(o, "s", false, &f, NULL), FATHOM_EFORMAT);
    assert_int_equal(json_get_str(o, "b", false, &s, NULL), FATHOM_EFORMAT);
    assert_int_equal(json_get_bool(o, "s", false, &b, NULL), FATHOM_EFORMAT);
    json_decref(o);
}

static void the_last_of_equal_keys_holds(void **state)
{
    (void)state;
    assert_rewritten("{\"a\": 1, \"b\": 2, \"a\": 3}", "{\"a\":3,\"b\":2}", "{\"a\": 3, \"b\": 2}");
}

static void failing_allocations_come_out(void **state)
{
    (void)state;
    json_t *v = read_ok("{\"key\": [1.5, \"a long enough string to make the buffer grow twice, "
                        "and then a little longer than that, so that it does\", {}]}");
    bool hit = true;
    for (long n = 0; hit; n++) {
        struct buf b = {0};
        mem_fail_after(n);
        fathom_err err = json_write_python(&b, v);
        hit = mem_fail_hit();
        mem_fail_after(-1);
        assert_int_equal(err, hit ? FATHOM_ENOMEM : FATHOM_OK);
        buf_free(&b);
    }
    json_decref(v);
}

/* A text with a byte changed, dropped or put in, or cut off. */
static size_t damage(char *text, size_t n, uint64_t *seed)
{
    static const char bytes[] = "{}[]\":,\\ud8c0123eE+-. \n\xc3\xa9\x01tfn";
    size_t at = rng_next(seed) % n;
    char c = bytes[rng_next(seed) % (sizeof bytes - 1)];
    switch (rng_next(seed) % 4) {
    case 0: text[at] = c; break;
    case 1: memmove(text + at, text + at + 1, n - at - 1); return n - 1;
    case 2:
        memmove(text + at + 1, text + at, n - at);
        text[at] = c;
        return n + 1;
    default: return at;
    }
    return n;
}

/* Jansson's own reader is the judge of what is JSON. */
static void jansson_reads_the_same(void **state)
{
    (void)state;
    static const char *const texts[] = {
        "{\"a\": [1, -2.5e-3, 0, -0, 1E+2], \"b\\u0041\\n\": {\"\": null}, \"a\": \"x\"}",
        "[true, false, null, \"\\ud83d\\ude00 \xf0\x9f\x98\x80 \xc3\xa9 \\u00e9\\\\ "
        "\\/\\b\\f\\r\\t\"]",
        " \t\r\n{\"k\\\"\":[[],{},[{}],\"\\u0001\\u001F\\u2028\"]} ",
    };
    uint64_t seed = 5;
    int n_read = 0;
    for (int i = 0; i < 60000; i++) {
        char text[256];
        json_error_t e;
        json_t *got, *want;
        const char *from = texts[i % 3];
        size_t n = strlen(from);
        memcpy(text, from, n);
        for (uint64_t k = rng_next(&seed) % 3; k-- > 0 && n > 1;) n = damage(text, n, &seed);
        bool strict = i % 2;
        size_t flags = JSON_DECODE_ANY | (strict ? JSON_REJECT_DUPLICATES : JSON_ALLOW_NUL);
        want = json_loadb(text, n, flags, &e);
        fathom_err err = (strict ? json_read_strict : json_read)(text, n, "t", &got, NULL);
        if (!want != (err == FATHOM_EFORMAT) || (want && !json_equal(want, got))) {
            fail_msg("%.*s: %d, jansson: %s", (int)n, text, err, want ? "read" : e.text);
        }
        n_read += want != NULL;
        json_decref(want);
        json_decref(got);
    }
    assert_in_range(n_read, 20000, 50000);
}

/* A chat request whose every allocation fails in turn. */
static void reading_without_memory_says_so(void **state)
{
    (void)state;
    static const char text[] =
        "{\"model\":\"deepseek\",\"messages\":[{\"role\":\"system\",\"content\":\"Answer in one "
        "sentence, in the language of the question, and name what it rests on.\"},"
        "{\"role\":\"user\",\"content\":\"Why is\\nthe sky blue? Caf\\u00e9, \\ud83d\\ude00, "
        "0123456789012345678901234567890123456789012345678901234567890123456789\"}],"
        "\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"f\",\"parameters\":{\"type\":"
        "\"object\",\"properties\":{\"a\\tb\":{\"type\":\"integer\",\"maximum\":"
        "99999999999999999999}},\"required\":[\"a\\tb\"]}}}],\"stop\":[\"a\",\"b\",\"c\",\"d\"],"
        "\"temperature\":0.7,\"stream\":true,\"logit_bias\":{\"1\":1,\"2\":2,\"3\":3,\"4\":4,"
        "\"5\":5,\"6\":6,\"7\":7,\"8\":8,\"9\":9,\"10\":10}}";
    json_set_alloc_funcs(mem_alloc, mem_free);
    bool hit = true;
    long n = 0;
    for (; hit; n++) {
        json_t *v;
        fathom_diag d = {{0}};
        mem_fail_after(n);
        fathom_err err = json_read_strict(text, sizeof text - 1, "body", &v, &d);
        hit = mem_fail_hit();
        mem_fail_after(-1);
        assert_int_equal(err, hit ? FATHOM_ENOMEM : FATHOM_OK);
        assert_string_equal(d.text, hit ? "body: out of memory while parsing JSON" : "");
        json_decref(v);
    }
    json_set_alloc_funcs(malloc, free);
    assert_true(n > 80);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(values_are_written_as_python_writes_them),
        cmocka_unit_test(numbers_have_pythons_repr),
        cmocka_unit_test(numbers_are_shortest_and_exact),
        cmocka_unit_test(bad_text_is_refused_with_its_place),
        cmocka_unit_test(a_mark_before_a_text_is_no_part_of_it),
        cmocka_unit_test(nesting_has_a_limit),
        cmocka_unit_test(members_are_typed_and_named_in_messages),
        cmocka_unit_test(the_last_of_equal_keys_holds),
        cmocka_unit_test(failing_allocations_come_out),
        cmocka_unit_test(jansson_reads_the_same),
        cmocka_unit_test(reading_without_memory_says_so),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
