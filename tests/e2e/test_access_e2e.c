/* test_access_e2e.c - who gets what: keys, pages, proxies, socket files, the operator */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/json.h"
#include "base/log.h"
#include "base/os.h"
#include "server/http/routes.h"
#include "support/world.h"

static const char *const KEYS[] = {"first", "second"};
static const char *const PROBES[] = {"/health", "/health/live", "/health_generate",
                                     "/ping",   "/ready",       "/health/ready"};

/* A directory of the test, and paths in it. */
static char folder[] = "/tmp/test_access_XXXXXX";

static char *path_in(const char *name)
{
    static char path[64];
    (void)snprintf(path, sizeof path, "%s/%s", folder, name);
    return path;
}

static void connect_unix(struct http_client *c, const char *path)
{
    struct sockaddr_un at = {.sun_family = AF_UNIX};
    struct timeval limit = {.tv_sec = 20};
    (void)snprintf(at.sun_path, sizeof at.sun_path, "%s", path);
    *c = (struct http_client){.fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0)};
    (void)setsockopt(c->fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
    if (connect(c->fd, (struct sockaddr *)&at, sizeof at) != 0) fail_msg("no socket %s", path);
}

static bool is_probe(const char *path)
{
    for (size_t i = 0; i < sizeof PROBES / sizeof PROBES[0]; i++) {
        if (strcmp(path, PROBES[i]) == 0) return true;
    }
    return false;
}

/* ---- keys ---------------------------------------------------------------------------------- */

static void without_a_key_every_route_but_probes_answers_401(void **state)
{
    (void)state;
    static const char *const methods[] = {"GET", "HEAD", "POST", "PUT", "DELETE", "PATCH", "BREW"};
    static const char *const headers[] = {"", "Authorization: Bearer wrong\r\n",
                                          "Authorization: Basic Zmlyc3Q=\r\n",
                                          "X-Api-Key: firs\r\n"};
    struct world w;
    struct http_client c;
    struct http_reply r;
    const struct server_options o = {.api_keys = KEYS, .n_api_key = 2, .root_path = "/llm"};
    char path[128];
    world_open(&w, &o, NULL);
    world_connect(&c, &w);
    size_t n = 0;
    for (const struct route *route; (route = route_at(n)); n++) {
        bool probe = is_probe(route->path);
        assert_int_equal(probe, route->guard == ROUTE_PROBE);
        for (size_t m = 0; m < sizeof methods / sizeof methods[0]; m++) {
            for (size_t h = 0; h < sizeof headers / sizeof headers[0]; h++) {
                bool has_body = strcmp(methods[m], "POST") == 0;
                (void)snprintf(path, sizeof path, "%s%s%s", h % 2 ? "/llm" : "", route->path,
                               route->prefix ? "m" : "");
                ask(&c, &r, methods[m], path, headers[h], has_body ? "{}" : NULL);
                if (probe ? r.status == 401 : r.status != 401) {
                    fail_msg("%s %s: %d", methods[m], path, r.status);
                }
                http_reply_free(&r);
            }
        }
    }
    assert_true(n >= 11);
    expect(&c, "GET", "/nowhere", NULL, 401, "invalid_api_key");
    expect(&c, "GET", "/admin", NULL, 401, "invalid_api_key");
    char load[64];
    ask(&c, &r, "POST", "/v1/completions", "endpoint-load-metrics-format: TEXT\r\n", "{}");
    assert_false(http_reply_header(&r, "endpoint-load-metrics", load, sizeof load));
    assert_reply(&r, 401, "invalid_api_key");
    ask(&c, &r, "GET", "/llm/sleep", "Authorization: Bearer first\r\n", NULL);
    assert_reply(&r, 404, "there is no GET /sleep: stop the server instead");
    http_client_close(&c);
    world_close(&w);
}

static void metrics_may_be_opened(void **state)
{
    (void)state;
    struct world w;
    struct http_client c;
    const struct server_options o = {.api_keys = KEYS, .n_api_key = 2, .open_metrics = true};
    world_open(&w, &o, NULL);
    world_connect(&c, &w);
    expect(&c, "GET", "/metrics", NULL, 200, "vllm:num_requests_running");
    expect(&c, "GET", "/v1/models", NULL, 401, "invalid_api_key");
    http_client_close(&c);
    world_close(&w);
}

/* ---- headers ------------------------------------------------------------------------------- */

static void assert_header(struct http_reply *r, const char *name, const char *want)
{
    char value[256] = "(absent)";
    (void)http_reply_header(r, name, value, sizeof value);
    assert_string_equal(value, want ? want : "(absent)");
}

static void pages_are_told_whether_they_may_ask(void **state)
{
    (void)state;
    struct world w;
    struct http_client c;
    struct http_reply r;
    static const char *const origins[] = {"https://a.example", "https://b.example"};
    static const char *const methods[] = {"POST"};
    static const char *const headers[] = {"X-One", "X-Two"};
    const struct server_options o = {.origins = origins,
                                     .n_origin = 2,
                                     .cors_methods = methods,
                                     .n_cors_method = 1,
                                     .cors_headers = headers,
                                     .n_cors_header = 2,
                                     .allow_credentials = true,
                                     .api_keys = KEYS,
                                     .n_api_key = 1};
    world_open(&w, &o, NULL);
    world_connect(&c, &w);
    ask(&c, &r, "OPTIONS", CHAT, "Origin: https://b.example\r\n", NULL);
    assert_header(&r, "Access-Control-Allow-Origin", "https://b.example");
    assert_header(&r, "Access-Control-Allow-Credentials", "true");
    assert_header(&r, "Access-Control-Allow-Methods", "POST");
    assert_header(&r, "Access-Control-Allow-Headers", "X-One, X-Two");
    assert_header(&r, "Vary", "Origin");
    assert_reply(&r, 204, "");
    ask(&c, &r, "GET", "/health", "Origin: https://c.example\r\n", NULL);
    assert_header(&r, "Access-Control-Allow-Origin", NULL);
    assert_header(&r, "Vary", "Origin");
    assert_reply(&r, 200, "ok");
    http_client_close(&c);
    world_close(&w);

    world_open(&w, NULL, NULL);
    world_connect(&c, &w);
    ask(&c, &r, "OPTIONS", CHAT, "Origin: https://b.example\r\n", NULL);
    assert_header(&r, "Access-Control-Allow-Origin", NULL);
    assert_header(&r, "Access-Control-Allow-Methods", NULL);
    assert_reply(&r, 204, "");
    http_client_close(&c);
    world_close(&w);
}

static void a_request_keeps_its_id(void **state)
{
    (void)state;
    struct world w;
    struct http_client c;
    struct http_reply r;
    char value[64];
    world_open(&w, NULL, NULL);
    world_connect(&c, &w);
    ask(&c, &r, "GET", "/health", "X-Request-Id: mine-1\r\n", NULL);
    assert_header(&r, "X-Request-Id", "mine-1");
    assert_reply(&r, 200, "ok");
    ask(&c, &r, "POST", "/v1/completions", "X-Request-Id: mine-2\r\n",
        "{\"prompt\":\"[[say=a]]\"}");
    assert_header(&r, "X-Request-Id", "mine-2");
    assert_reply(&r, 200, "\"id\":\"cmpl-");
    ask(&c, &r, "GET", "/nowhere", "X-Request-Id: mine-3\r\n", NULL);
    assert_header(&r, "X-Request-Id", "mine-3");
    assert_reply(&r, 404, "error");
    ask(&c, &r, "POST", "/v1/completions", "X-Request-Id: not mine\r\n", "{\"prompt\":\"x\"}");
    assert_true(http_reply_header(&r, "X-Request-Id", value, sizeof value));
    assert_int_equal(strncmp(value, "cmpl-", 5), 0);
    assert_reply(&r, 200, "");
    http_client_close(&c);
    world_close(&w);
}

/* ---- the access log ------------------------------------------------------------------------ */

static void answers_are_logged_without_what_was_said(void **state)
{
    (void)state;
    struct world w;
    struct http_client c;
    struct http_reply r;
    struct file_map map;
    fathom_diag d = {{0}};
    const char *path = path_in("access.log");
    const struct server_options o = {.access_log = path, .api_keys = KEYS, .n_api_key = 2};
    world_open(&w, &o, NULL);
    world_connect(&c, &w);
    ask(&c, &r, "POST", "/v1/completions?secret=1",
        "Authorization: Bearer second\r\nX-Request-Id: mine\r\n",
        "{\"prompt\":\"secret [[say=whisper]]\"}");
    assert_reply(&r, 200, "whisper");
    ask(&c, &r, "GET", "/v1/models", "Authorization: Bearer wrong\r\n", NULL);
    assert_reply(&r, 401, "");
    http_client_close(&c);
    world_close(&w);
    assert_int_equal(file_map_open(&map, path, &d), FATHOM_OK);
    char *text = strndup(map.data, map.size);
    file_map_close(&map);
    assert_null(strstr(text, "secret"));
    assert_null(strstr(text, "whisper"));
    assert_null(strstr(text, "wrong"));
    char *second = strchr(text, '\n') + 1;
    json_t *line = json_loadb(text, (size_t)(second - text), 0, NULL);
    assert_string_equal(json_string_value(json_object_get(line, "request_id")), "mine");
    assert_string_equal(json_string_value(json_object_get(line, "path")), "/v1/completions");
    assert_string_equal(json_string_value(json_object_get(line, "remote")), "127.0.0.1");
    assert_int_equal(json_integer_value(json_object_get(line, "key")), 1);
    assert_int_equal(json_integer_value(json_object_get(line, "status")), 200);
    assert_true(json_integer_value(json_object_get(line, "output_tokens")) > 0);
    json_decref(line);
    line = json_loads(second, JSON_DISABLE_EOF_CHECK, NULL);
    assert_int_equal(json_integer_value(json_object_get(line, "status")), 401);
    assert_null(json_object_get(line, "key"));
    json_decref(line);
    free(text);
    struct stat st;
    assert_int_equal(stat(path, &st), 0);
    assert_int_equal(st.st_mode & 0777, 0600);
}

/* ---- socket files -------------------------------------------------------------------------- */

static void the_server_may_listen_on_a_socket_file(void **state)
{
    (void)state;
    struct world w, second = {0};
    struct http_client c;
    struct stat st;
    fathom_diag d = {{0}};
    struct chat_style style = {.encoding = CHAT_ENCODING_V32};
    char path[64];
    (void)snprintf(path, sizeof path, "%s", path_in("http.sock"));
    struct server_options o = {.uds = path};
    world_open(&w, &o, NULL);
    assert_int_equal(stat(path, &st), 0);
    assert_int_equal(st.st_mode & 0777, 0600);
    connect_unix(&c, path);
    expect(&c, "GET", "/health", NULL, 200, "ok");
    expect_chat(&c, "say=Hi", "", 200, "Hi");
    http_client_close(&c);
    o.model_names = world_model_names;
    o.n_model_name = 1;
    assert_int_equal(server_create(&second.server, &o, w.engine, world_tokenizer(), &style, &d),
                     FATHOM_EIO);
    assert_non_null(strstr(d.text, "another program listens on"));
    connect_unix(&c, path); /* its file is still there */
    http_client_close(&c);
    world_close(&w);
    assert_false(path_exists(path));
    FILE *f = fopen(path, "we");
    assert_non_null(f);
    (void)fclose(f);
    struct fake_options fake = {0};
    fathom_engine *e = fake_engine_open(&fake);
    d = (fathom_diag){{0}};
    assert_int_equal(server_create(&second.server, &o, e, world_tokenizer(), &style, &d),
                     FATHOM_EIO);
    assert_non_null(strstr(d.text, "is no socket"));
    fathom_close(e);
    (void)unlink(path);
}

static void the_operator_has_a_socket_of_his_own(void **state)
{
    (void)state;
    struct world w;
    struct http_client c, busy;
    struct stat st;
    char path[64];
    (void)snprintf(path, sizeof path, "%s", path_in("admin.sock"));
    const struct server_options o = {.admin_socket = path, .api_keys = KEYS, .n_api_key = 1};
    world_open(&w, &o, NULL);
    assert_int_equal(stat(path, &st), 0);
    assert_int_equal(st.st_mode & 0777, 0600);
    connect_unix(&c, path);
    expect(&c, "GET", "/server_info", NULL, 200, "\"version\":\"" FATHOM_VERSION "\"");
    expect(&c, "GET", "/health", NULL, 200, "ok");
    expect(&c, "GET", "/metrics", NULL, 200, "fathom_engine_up");
    world_connect(&busy, &w);
    fake_engine_stall(w.engine, true); /* it runs until all has been asked */
    assert_true(http_client_send(&busy, "POST", "/v1/completions", "X-Api-Key: first\r\n",
                                 "{\"prompt\":\"[[say=x]]\"}"));
    wait_for_count(w.engine, fake_engine_n_submitted, 1);
    expect(&c, "GET", "/state", NULL, 200, "job state=RUNNING");
    expect(&c, "GET", "/log_level", NULL, 200, "\"level\":\"error\"");
    expect(&c, "POST", "/log_level?level=loud", "{}", 400, "needed is error, warn, info or debug");
    expect(&c, "POST", "/log_level", NULL, 400, "needed is");
    expect(&c, "POST", "/log_level?level=warn", NULL, 200, "ok");
    assert_int_equal(log_get_level(), LOG_LEVEL_WARN);
    expect(&c, "POST", "/log_level?level=error", NULL, 200, "ok");
    expect(&c, "POST", "/reset_prefix_cache", "{}", 200, "ok");
    assert_int_equal(fake_engine_n_reset(w.engine), 1);
    expect(&c, "GET", "/drain", NULL, 404, "POST /drain");
    expect(&c, "POST", "/v1/completions", "{}", 404, "there is no POST");
    expect(&c, "POST", "/drain", NULL, 200, "ok");
    fake_engine_stall(w.engine, false);
    fathom_diag d = {{0}};
    assert_int_equal(server_run(w.server, &d), FATHOM_OK); /* ends, since it was told to */
    http_client_close(&busy);
    http_client_close(&c);
    world_close(&w);
    assert_false(path_exists(path));
}

static int make_folder(void **state)
{
    return mkdtemp(folder) ? world_setup(state) : -1;
}

static int drop_folder(void **state)
{
    (void)unlink(path_in("access.log"));
    (void)rmdir(folder);
    return world_teardown(state);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(without_a_key_every_route_but_probes_answers_401),
        cmocka_unit_test(metrics_may_be_opened),
        cmocka_unit_test(pages_are_told_whether_they_may_ask),
        cmocka_unit_test(a_request_keeps_its_id),
        cmocka_unit_test(answers_are_logged_without_what_was_said),
        cmocka_unit_test(the_server_may_listen_on_a_socket_file),
        cmocka_unit_test(the_operator_has_a_socket_of_his_own),
    };
    return cmocka_run_group_tests(tests, make_folder, drop_folder);
}
