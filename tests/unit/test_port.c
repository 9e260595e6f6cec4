/* test_port.c - what ports for clients have in common */
#include "http/port.h"

#include <string.h>

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>

#include <cmocka.h>

static void origins_are_told_when_they_may_ask(void **state)
{
    (void)state;
    static const char *const all[] = {"*"};
    static const char *const two[] = {"https://a", "https://b"};
    struct port_rules o = {.origins = all, .n_origin = 1};
    bool varies;
    assert_string_equal(port_origin(&o, "https://x", &varies), "*");
    assert_string_equal(port_origin(&o, NULL, &varies), "*");
    assert_false(varies);
    o.allow_credentials = true; /* "*" does not go with credentials */
    assert_string_equal(port_origin(&o, "https://x", &varies), "https://x");
    assert_true(varies);
    assert_null(port_origin(&o, NULL, &varies));
    o = (struct port_rules){.origins = two, .n_origin = 2};
    assert_string_equal(port_origin(&o, "https://b", &varies), "https://b");
    assert_true(varies);
    assert_null(port_origin(&o, "https://c", &varies));
    assert_null(port_origin(&o, "https://b\r\nX: y", &varies));
    assert_null(port_origin(&(struct port_rules){0}, "https://a", &varies));
    assert_false(varies);
}

static void a_prefix_of_a_proxy_is_taken_off(void **state)
{
    (void)state;
    const struct port_rules o = {.root_path = "/llm/"};
    assert_string_equal(port_path(&o, "/llm/v1/models"), "/v1/models");
    assert_string_equal(port_path(&o, "/llm"), "/");
    assert_string_equal(port_path(&o, "/llmv1"), "/llmv1");
    assert_string_equal(port_path(&o, "/v1/models"), "/v1/models");
    assert_string_equal(port_path(&(struct port_rules){.root_path = "/"}, "/v1"), "/v1");
    assert_string_equal(port_path(&(struct port_rules){0}, "/v1"), "/v1");
}

static void ids_of_clients_are_taken_when_they_are_harmless(void **state)
{
    (void)state;
    char id[REQUEST_ID_BYTES];
    char long_id[REQUEST_ID_BYTES + 1];
    port_request_id(id, "trace-1:2/3");
    assert_string_equal(id, "trace-1:2/3");
    static const char *const bad[] = {NULL, "", "a b", "a\nb", "a\"b", "a\\b", "\xc3\xa9"};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        port_request_id(id, bad[i]);
        assert_string_equal(id, "");
    }
    memset(long_id, 'x', sizeof long_id);
    long_id[REQUEST_ID_BYTES] = '\0';
    port_request_id(id, long_id);
    assert_string_equal(id, "");
    long_id[REQUEST_ID_BYTES - 1] = '\0';
    port_request_id(id, long_id);
    assert_string_equal(id, long_id);
}

static void errors_have_the_form_of_their_path(void **state)
{
    (void)state;
    const struct port_rules r = {.root_path = "/llm"};
    static const char *const theirs[] = {"/v1/messages", "/v1/messages/", "/llm/v1/messages",
                                         "/v1/messages/count_tokens", "/v1/messages/batches"};
    static const char *const others[] = {"/", "/v1/messagesx", "/v1", "/x/v1/messages"};
    for (size_t i = 0; i < sizeof theirs / sizeof theirs[0]; i++)
        assert_true(port_is_anthropic(&r, theirs[i]));
    for (size_t i = 0; i < sizeof others / sizeof others[0]; i++)
        assert_false(port_is_anthropic(&r, others[i]));
}

static void the_first_refusal_is_told(void **state)
{
    (void)state;
    struct api_error e = {0};
    struct buf b = {0};
    port_refuse_size(&e, 1 << 26);
    port_refuse_bodies(&e, 5);
    port_refuse_form(&e, 400, "x");
    assert_int_equal(e.status, 413);
    assert_int_equal(e.retry_after_s, 0);
    assert_int_equal(port_write_error(&b, &e, true), FATHOM_OK);
    assert_string_equal(buf_str(&b),
                        "{\"type\":\"error\",\"error\":{\"type\":\"request_too_large\","
                        "\"message\":\"the request body is larger than 67108864 "
                        "bytes\"}}");
    buf_free(&b);
    e = (struct api_error){0};
    port_refuse_bodies(&e, 5);
    assert_int_equal(e.status, 429);
    assert_int_equal(e.retry_after_s, 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(origins_are_told_when_they_may_ask),
        cmocka_unit_test(a_prefix_of_a_proxy_is_taken_off),
        cmocka_unit_test(ids_of_clients_are_taken_when_they_are_harmless),
        cmocka_unit_test(errors_have_the_form_of_their_path),
        cmocka_unit_test(the_first_refusal_is_told),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
