/* test_access.c - keys, origins, paths and ids of requests; the line of the access log */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "base/json.h"
#include "base/mem.h"
#include "server/http/access.h"
#include "server/http/access_log.h"

static void a_bearer_token_is_what_follows_the_word(void **state)
{
    (void)state;
    assert_string_equal(access_bearer("Bearer first"), "first");
    assert_string_equal(access_bearer("bearer   first"), "first");
    assert_string_equal(access_bearer("Bearer "), "");
    assert_null(access_bearer("Basic first"));
    assert_null(access_bearer("first"));
    assert_null(access_bearer(NULL));
}

static void origins_are_told_when_they_may_ask(void **state)
{
    (void)state;
    static const char *const all[] = {"*"};
    static const char *const two[] = {"https://a", "https://b"};
    struct server_options o = {.origins = all, .n_origin = 1};
    bool varies;
    assert_string_equal(access_origin(&o, "https://x", &varies), "*");
    assert_string_equal(access_origin(&o, NULL, &varies), "*");
    assert_false(varies);
    o.allow_credentials = true; /* "*" does not go with credentials */
    assert_string_equal(access_origin(&o, "https://x", &varies), "https://x");
    assert_true(varies);
    assert_null(access_origin(&o, NULL, &varies));
    o = (struct server_options){.origins = two, .n_origin = 2};
    assert_string_equal(access_origin(&o, "https://b", &varies), "https://b");
    assert_true(varies);
    assert_null(access_origin(&o, "https://c", &varies));
    assert_null(access_origin(&o, "https://b\r\nX: y", &varies));
    assert_null(access_origin(&(struct server_options){0}, "https://a", &varies));
    assert_false(varies);
}

static void a_prefix_of_a_proxy_is_taken_off(void **state)
{
    (void)state;
    const struct server_options o = {.root_path = "/llm/"};
    assert_string_equal(access_path(&o, "/llm/v1/models"), "/v1/models");
    assert_string_equal(access_path(&o, "/llm"), "/");
    assert_string_equal(access_path(&o, "/llmv1"), "/llmv1");
    assert_string_equal(access_path(&o, "/v1/models"), "/v1/models");
    assert_string_equal(access_path(&(struct server_options){.root_path = "/"}, "/v1"), "/v1");
    assert_string_equal(access_path(&(struct server_options){0}, "/v1"), "/v1");
}

static void ids_of_clients_are_taken_when_they_are_harmless(void **state)
{
    (void)state;
    char id[REQUEST_ID_BYTES];
    char long_id[REQUEST_ID_BYTES + 1];
    access_request_id(id, "trace-1:2/3");
    assert_string_equal(id, "trace-1:2/3");
    static const char *const bad[] = {NULL, "", "a b", "a\nb", "a\"b", "a\\b", "\xc3\xa9"};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        access_request_id(id, bad[i]);
        assert_string_equal(id, "");
    }
    memset(long_id, 'x', sizeof long_id);
    long_id[REQUEST_ID_BYTES] = '\0';
    access_request_id(id, long_id);
    assert_string_equal(id, "");
    long_id[REQUEST_ID_BYTES - 1] = '\0';
    access_request_id(id, long_id);
    assert_string_equal(id, long_id);
}

static void a_line_of_the_access_log_is_json(void **state)
{
    (void)state;
    struct buf b = {0};
    const struct access_entry e = {.request_id = "r",
                                   .id = "",
                                   .remote = "127.0.0.1",
                                   .method = "POST",
                                   .path = "/v1/\"x\"",
                                   .status = 200,
                                   .has_key = true,
                                   .has_tokens = true,
                                   .n_prompt = 3,
                                   .n_output = 4,
                                   .first_ms = 5,
                                   .total_ms = 6};
    assert_int_equal(access_log_format(&b, &e, 1700000000123), FATHOM_OK);
    assert_string_equal(
        buf_str(&b), "{\"time\":\"2023-11-14T22:13:20.123Z\",\"request_id\":\"r\",\"remote\":"
                     "\"127.0.0.1\",\"method\":\"POST\",\"path\":\"/v1/\\\"x\\\"\",\"status\":200,"
                     "\"key\":0,\"prompt_tokens\":3,\"cached_tokens\":0,\"output_tokens\":4,"
                     "\"first_ms\":5,\"ms\":6}\n");
    buf_clear(&b);
    const struct access_entry small = {.method = "GET", .path = "/", .status = 404};
    assert_int_equal(access_log_format(&b, &small, 0), FATHOM_OK);
    assert_string_equal(buf_str(&b), "{\"time\":\"1970-01-01T00:00:00.000Z\",\"method\":\"GET\","
                                     "\"path\":\"/\",\"status\":404,\"ms\":0}\n");
    buf_free(&b);
    mem_fail_after(0);
    assert_int_equal(access_log_format(&b, &e, 0), FATHOM_ENOMEM);
    mem_fail_after(-1);
    buf_free(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_bearer_token_is_what_follows_the_word),
        cmocka_unit_test(origins_are_told_when_they_may_ask),
        cmocka_unit_test(a_prefix_of_a_proxy_is_taken_off),
        cmocka_unit_test(ids_of_clients_are_taken_when_they_are_harmless),
        cmocka_unit_test(a_line_of_the_access_log_is_json),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
