/* test_api_error.c - the error body, and which status an error gets */
#include "base/api_error.h"

#include <string.h>

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/json.h"

static void test_body(void **state)
{
    (void)state;
    struct api_error e = {0};
    struct buf b = {0};
    assert_int_equal(api_error_set(&e, 400, "invalid_value", "a[\"b\"]", "n is %d", 5),
                     FATHOM_EINVAL);
    assert_int_equal(api_error_set(&e, 500, NULL, NULL, "the first one is told"), FATHOM_EINVAL);
    assert_int_equal(api_error_write(&b, &e), FATHOM_OK);
    assert_string_equal(buf_str(&b),
                        "{\"error\":{\"message\":\"n is 5\",\"type\":\"invalid_request_error\","
                        "\"param\":\"a[\\\"b\\\"]\",\"code\":\"invalid_value\"}}");
    buf_free(&b);
}

static void test_a_cut_message_stays_utf8(void **state)
{
    (void)state;
    char text[FATHOM_DIAG_BYTES + 10];
    struct api_error e = {0};
    struct buf b = {0};
    json_t *root;
    for (size_t i = 0; i + 3 < sizeof text; i += 3) memcpy(text + i, "世", 4);
    (void)api_error_set(&e, 400, NULL, text, "x\xFFy%s", text);
    assert_int_equal(api_error_write(&b, &e), FATHOM_OK);
    assert_int_equal(json_read(buf_str(&b), b.len, "body", &root, NULL), FATHOM_OK);
    json_decref(root);
    assert_non_null(strstr(buf_str(&b), "\"message\":\"x\xEF\xBF\xBDy世世"));
    buf_free(&b);
}

static void test_status_of_errors(void **state)
{
    (void)state;
    static const struct {
        fathom_err err;
        int status;
        const char *type, *code;
    } rows[] = {
        {FATHOM_EINVAL, 400, "invalid_request_error", NULL},
        {FATHOM_EFORMAT, 400, "invalid_request_error", NULL},
        {FATHOM_ELIMIT, 400, "invalid_request_error", NULL},
        {FATHOM_EUNSUPPORTED, 400, "invalid_request_error", NULL},
        {FATHOM_ENOTFOUND, 404, "invalid_request_error", NULL},
        {FATHOM_EBUSY, 429, "rate_limit_error", "server_busy"},
        {FATHOM_ENOMEM, 500, "server_error", NULL},
        {FATHOM_EDEVICE, 503, "server_error", "engine_failed"},
        {FATHOM_ECANCEL, 503, "server_error", "cancelled"},
        {FATHOM_EPEER, 503, "server_error", "host_away"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct api_error e = {0};
        assert_int_equal(api_error_from(&e, rows[i].err, NULL, NULL), rows[i].err);
        assert_int_equal(e.status, rows[i].status);
        assert_string_equal(api_error_type(e.status), rows[i].type);
        assert_true(!e.code == !rows[i].code);
        if (e.code) assert_string_equal(e.code, rows[i].code);
        assert_string_equal(e.diag.text, fathom_err_text(rows[i].err));
    }
    assert_string_equal(api_error_type(401), "authentication_error");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_body),
        cmocka_unit_test(test_a_cut_message_stays_utf8),
        cmocka_unit_test(test_status_of_errors),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
