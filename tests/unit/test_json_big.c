/* test_json_big.c - integers beyond 64 bits go through json_read and the writers digit by digit */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

#include "base/json.h"
#include "base/mem.h"

static json_t *read_text(const char *text)
{
    fathom_diag d = {{0}};
    json_t *v;
    if (json_read(text, strlen(text), "test", &v, &d)) fail_msg("%s: %s", text, d.text);
    return v;
}

static void digits_come_out_as_they_went_in(void **state)
{
    (void)state;
    static const char *const texts[] = {
        "123456789012345678901234567890",
        "-123456789012345678901234567890",
        "9223372036854775808",
        "-9223372036854775809",
        "[1,9223372036854775807,9223372036854775808,-9223372036854775808]",
        "{\"a\":{\"b\":[18446744073709551616,\"99999999999999999999\"]},\"c\":1}",
        "{\"\\\"99999999999999999999\":99999999999999999999,\"x\\\\\":99999999999999999999}",
    };
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++) {
        struct buf out = {0};
        json_t *v = read_text(texts[i]);
        assert_int_equal(json_write(&out, v), FATHOM_OK);
        assert_string_equal(buf_str(&out), texts[i]);
        json_decref(v);
        buf_free(&out);
    }
    struct buf out = {0};
    json_t *v = read_text("{\"a\": 99999999999999999999, \"b\": 1.5}");
    assert_int_equal(json_write_python(&out, v), FATHOM_OK);
    assert_string_equal(buf_str(&out), "{\"a\": 99999999999999999999, \"b\": 1.5}");
    json_decref(v);
    buf_free(&out);
}

static void they_are_a_type_of_their_own(void **state)
{
    (void)state;
    json_t *v = read_text("[99999999999999999999, {\"\\u00ff\": \"7\"}, 7]");
    assert_string_equal(json_big_digits(json_array_get(v, 0)), "99999999999999999999");
    assert_null(json_big_digits(json_array_get(v, 1)));
    assert_null(json_big_digits(json_array_get(v, 2)));
    assert_null(json_big_digits(NULL));
    assert_false(json_is_plain_object(json_array_get(v, 0)));
    assert_true(json_is_plain_object(json_array_get(v, 1)));
    assert_string_equal(json_type_text(json_array_get(v, 0)), "an integer beyond 64 bits");
    assert_string_equal(json_type_text(json_array_get(v, 1)), "an object");
    int64_t i;
    fathom_diag d = {{0}};
    json_t *object = read_text("{\"n\": 99999999999999999999}");
    assert_int_equal(json_get_i64(object, "n", true, 0, 9, &i, &d), FATHOM_EFORMAT);
    assert_string_equal(d.text, "\"n\" is an integer beyond 64 bits, an integer is needed");
    json_decref(object);
    json_decref(v);
}

static void what_is_wrong_otherwise_stays_wrong(void **state)
{
    (void)state;
    static const char *const texts[] = {
        "[99999999999999999999",        "[99999999999999999999,]", "[1e999]",
        "[99999999999999999999,1e999]", "[099999999999999999999]", "[--99999999999999999999]",
        "[999999999999999999999-1]",
    };
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++) {
        fathom_diag d = {{0}};
        json_t *v;
        fathom_err err = json_read(texts[i], strlen(texts[i]), "test", &v, &d);
        if (err != FATHOM_EFORMAT) fail_msg("%s gave %d", texts[i], err);
        assert_null(v);
        assert_non_null(strstr(d.text, "test: not valid JSON"));
    }
}

static void each_failing_allocation_is_clean(void **state)
{
    (void)state;
    static const char text[] = "{\"a\":[99999999999999999999,{\"b\":-99999999999999999999}]}";
    for (long n = 0;; n++) {
        json_t *v;
        mem_fail_after(n);
        fathom_err err = json_read(text, sizeof text - 1, "test", &v, NULL);
        bool hit = mem_fail_hit();
        mem_fail_after(-1);
        if (!hit) {
            assert_int_equal(err, FATHOM_OK);
            json_decref(v);
            return;
        }
        assert_int_equal(err, FATHOM_ENOMEM);
        assert_null(v);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(digits_come_out_as_they_went_in),
        cmocka_unit_test(they_are_a_type_of_their_own),
        cmocka_unit_test(what_is_wrong_otherwise_stays_wrong),
        cmocka_unit_test(each_failing_allocation_is_clean),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
