/* test_access.c - keys, origins, paths and ids of requests; the line of the access log */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "base/json.h"
#include "base/mem.h"
#include "http/host_names.h"
#include "server/http/access.h"
#include "server/http/access_log.h"
#include "server/http/route.h"

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

static void a_login_holds_a_password(void **state)
{
    (void)state;
    char password[LOGIN_BYTES];
    assert_true(access_password(password, "Basic eDpmaXJzdA=="));
    assert_string_equal(password, "first");
    assert_true(access_password(password, "basic  Ong6eQ==")); /* ":x:y" */
    assert_string_equal(password, "x:y");
    static const char *const bad[] = {NULL,         "",           "Basic ",
                                      "Basic !!!!", "Basic eA==", "Bearer eDp5"};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        assert_false(access_password(password, bad[i]));
    }
}

static void pages_of_others_are_told_from_the_own(void **state)
{
    (void)state;
    static const struct {
        struct access_asker asker;
        bool own;
    } rows[] = {
        {{METHOD_POST, "same-origin", NULL, "a"}, true},
        {{METHOD_POST, "none", NULL, "a"}, true},
        {{METHOD_GET, "cross-site", NULL, "a"}, false},
        {{METHOD_POST, "same-site", "http://a", "a"}, false},
        {{METHOD_POST, NULL, "http://A:80", "a:80"}, true},
        {{METHOD_POST, NULL, "http://a", "a:80"}, false},
        {{METHOD_GET, NULL, "http://b", "a"}, false},
        {{METHOD_POST, NULL, "null", "null"}, false},
        {{METHOD_POST, NULL, "http://a", NULL}, false},
        {{METHOD_GET, NULL, NULL, "a"}, true},
        {{METHOD_POST, NULL, NULL, "a"}, false},
        {{METHOD_DELETE, NULL, NULL, "a"}, false},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        if (access_is_own_page(&rows[i].asker) != rows[i].own) fail_msg("row %zu", i);
    }
}

static void hosts_of_a_loopback_server_are_known(void **state)
{
    (void)state;
    static const char *const names[] = {"llm.example", "b"}, *const any[] = {"*"};
    struct host_names near = {"my-host", names, 2, true}, far = {"my-host", names, 2, false};
    static const char *const right[] = {"localhost",      "LocalHost:80", "my-host:1",
                                        "127.0.0.1:8000", "10.1.2.3",     "[::1]",
                                        "[fe80::1]:80",   "b:8",          "LLM.example"};
    for (size_t i = 0; i < sizeof right / sizeof right[0]; i++) {
        if (!host_names_take(&near, right[i])) fail_msg("%s is refused", right[i]);
    }
    static const char *const wrong[] = {"evil.example",
                                        "localhost.evil.example",
                                        "127.0.0.1.nip.io",
                                        "1.2.3",
                                        "[zz]",
                                        "::1",
                                        "llm.example.",
                                        "b.b",
                                        "[localhos",
                                        "2130706433"};
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        if (host_names_take(&near, wrong[i])) fail_msg("%s is taken", wrong[i]);
        assert_false(host_names_take(&far, wrong[i])); /* there is a list */
    }
    assert_true(host_names_take(&near, NULL));
    near.n_allowed = far.n_allowed = 0;
    assert_true(host_names_take(&far, "evil.example"));
    assert_false(host_names_take(&near, "llm.example"));
    near.allowed = any;
    near.n_allowed = 1;
    assert_true(host_names_take(&near, "evil.example"));
}

static void a_path_is_one_printable_line(void **state)
{
    (void)state;
    static const struct {
        const char *path, *text;
    } rows[] = {
        {"/v1/models/\xc3\xa9\xe4\xb8\xad", "/v1/models/\xc3\xa9\xe4\xb8\xad"},
        {"/\x01\r\n\x1b[31m\x7f", "/????[31m?"},
        {"/\xc2\x9b"
         "31mRED\xc2\x85\xc2\x80",
         "/?31mRED??"},
        {"/\xe2\x80\xa8\xe2\x80\xa9x", "/??x"},
        {"/\xe2\x80\xae"
         "gpj\xe2\x81\xa6\xe2\x80\x8f\xd8\x9c\xe2\x81\xa9\xe2\x80\xac",
         "/?gpj?????"},
        {"/\xff\xc3\xa9", "/???"},
        {"/\xc2\xa0", "/\xc2\xa0"},
    };
    char out[32];
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        access_copy_path(out, sizeof out, rows[i].path);
        assert_string_equal(out, rows[i].text);
    }
    access_copy_path(out, 4, "/abcdef");
    assert_string_equal(out, "/ab");
    access_copy_path(out, 4, "/a\xc3\xa9");
    assert_string_equal(out, "/a");
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
        cmocka_unit_test(a_login_holds_a_password),
        cmocka_unit_test(pages_of_others_are_told_from_the_own),
        cmocka_unit_test(hosts_of_a_loopback_server_are_known),
        cmocka_unit_test(a_path_is_one_printable_line),
        cmocka_unit_test(a_line_of_the_access_log_is_json),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
