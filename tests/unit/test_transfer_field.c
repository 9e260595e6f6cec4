/* test_transfer_field.c - who has the pages of a prompt, as three kinds of proxies name it */
#include "server/api/api_request.h"

#include <stdio.h>
#include <string.h>

#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

#include "base/mem.h"

static const struct api_bounds BOUNDS = {.n_vocab = 1000, .strict = true};

/* A body of each API that may say it, without its end. */
static const struct {
    enum api_kind api;
    const char *body;
} bodies[] = {
    {API_CHAT, "{\"messages\":[{\"role\":\"user\",\"content\":\"hi\"}]"},
    {API_COMPLETION, "{\"prompt\":\"hi\""},
    {API_RESPONSES, "{\"input\":\"hi\""},
    {API_MESSAGES, "{\"max_tokens\":2,\"messages\":[{\"role\":\"user\",\"content\":\"hi\"}]"},
};

enum { N_BODY = sizeof bodies / sizeof bodies[0] };

static fathom_err parse(struct api_request *r, size_t i, const char *fields, struct api_error *e)
{
    char body[768];
    *e = (struct api_error){0};
    (void)snprintf(body, sizeof body, "%s,%s}", bodies[i].body, fields);
    return api_request_parse(r, bodies[i].api, body, strlen(body), &BOUNDS, e);
}

#define PARAMS(members) "\"kv_transfer_params\":{" members "}"
#define TAKES "\"do_remote_decode\":false,\"do_remote_prefill\":true"

static const struct {
    const char *fields;
    bool lends, takes, is_shared;
    const char *host;
    uint16_t port;
} cases[] = {
    /* NIXL: to the server that prefills, and what it has answered to the other one */
    {PARAMS("\"do_remote_decode\":true,\"do_remote_prefill\":false,\"remote_engine_id\":null,"
            "\"remote_block_ids\":null,\"remote_host\":null,\"remote_port\":null"),
     true, false, false, "", 0},
    {PARAMS(TAKES
            ",\"remote_engine_id\":\"a\",\"remote_block_ids\":[0,1],\"remote_host\":\"10.0.0.1\","
            "\"remote_port\":5600,\"tp_size\":8"),
     false, true, false, "10.0.0.1", 5600},
    {PARAMS(TAKES ",\"remote_host\":\"a\",\"remote_port\":\"65535\""), false, true, false, "a",
     65535},
    /* Mooncake, as it is and as it was */
    {PARAMS(TAKES ",\"transfer_id\":\"x\",\"remote_bootstrap_addr\":\"http://p0:8998\""), false,
     true, false, "p0", 8998},
    {PARAMS(TAKES ",\"remote_bootstrap_addr\":\"p0:1\""), false, true, false, "p0", 1},
    {PARAMS(TAKES ",\"bootstrap_server_host\":\"p0\",\"bootstrap_server_port\":8998"), false, true,
     false, "p0", 8998},
    {PARAMS(TAKES ",\"remote_host\":null,\"bootstrap_server_host\":\"p0\",\"remote_port\":null,"
                  "\"bootstrap_server_port\":\"8998\""),
     false, true, false, "p0", 8998},
    /* SGLang: the same for both servers */
    {"\"bootstrap_host\":\"p0\",\"bootstrap_port\":8998,\"bootstrap_room\":7", false, false, true,
     "p0", 8998},
    {"\"bootstrap_host\":null,\"bootstrap_port\":null,\"bootstrap_room\":null", false, false, false,
     "", 0},
    /* neither of both: a request like others */
    {PARAMS(""), false, false, false, "", 0},
    {PARAMS("\"do_remote_prefill\":0,\"remote_port\":\"x\""), false, false, false, "", 0},
    {"\"kv_transfer_params\":null", false, false, false, "", 0},
    /* texts and numbers as templates make them */
    {PARAMS("\"do_remote_decode\":\"true\""), true, false, false, "", 0},
    {PARAMS("\"do_remote_prefill\":1,\"remote_host\":\"a\",\"remote_port\":\"1.0\""), false, true,
     false, "a", 1},
    {"\"bootstrap_host\":\"p0\",\"bootstrap_port\":\"8998\"", false, false, true, "p0", 8998},
};

static void three_dialects_name_a_server(void **state)
{
    (void)state;
    for (size_t k = 0; k < sizeof cases / sizeof cases[0]; k++) {
        for (size_t i = 0; i < N_BODY; i++) {
            struct api_request r;
            struct api_error e;
            if (parse(&r, i, cases[k].fields, &e)) fail_msg("%s: %s", cases[k].fields, e.diag.text);
            assert_int_equal(r.transfer.lends, cases[k].lends);
            assert_int_equal(r.transfer.takes, cases[k].takes);
            assert_int_equal(r.transfer.is_shared, cases[k].is_shared);
            assert_string_equal(r.transfer.host, cases[k].host);
            assert_int_equal(r.transfer.port, cases[k].port);
            api_request_free(&r);
        }
    }
}

/* A proxy cuts the tokens of a request whose answer another server makes, and these alone. */
static void who_computes_for_another_server_may_draw_less_than_is_wanted(void **state)
{
    (void)state;
    struct api_request r;
    struct api_error e;
    static const char cut[] = "\"max_tokens\":1,\"min_tokens\":8";
    static const char lent[] = PARAMS("\"do_remote_decode\":true");
    char fields[200];
    (void)snprintf(fields, sizeof fields, "%s,%s", cut, lent);
    assert_int_equal(parse(&r, 1, fields, &e), FATHOM_OK);
    assert_int_equal(r.sampling.min_tokens, 1);
    assert_int_equal(r.max_tokens, 1);
    api_request_free(&r);
    assert_int_not_equal(parse(&r, 1, cut, &e), FATHOM_OK);
    api_request_free(&r);
}

/* What both servers call a request that they are asked at once: equal where the text is. */
static void both_servers_have_one_name_for_a_request(void **state)
{
    (void)state;
    static const struct {
        const char *fields;
        int name; /* 0: none */
    } names[] = {
        {PARAMS("\"do_remote_decode\":true,\"transfer_id\":\"x-1\""), 1},
        {PARAMS(TAKES ",\"transfer_id\":\"x-1\",\"remote_bootstrap_addr\":\"p0:1\""), 1},
        {PARAMS("\"do_remote_decode\":true,\"transfer_id\":\"x-2\""), 2},
        {"\"bootstrap_host\":\"p0\",\"bootstrap_port\":1,\"bootstrap_room\":77", 3},
        {"\"bootstrap_room\":77", 3},
        {"\"bootstrap_room\":-9223372036854775808", 4},
        {"\"bootstrap_room\":[77]", 0},
        {PARAMS("\"do_remote_decode\":true,\"transfer_id\":null"), 0},
        {PARAMS("\"do_remote_decode\":true"), 0},
    };
    uint64_t known[5] = {0};
    for (size_t k = 0; k < sizeof names / sizeof names[0]; k++) {
        for (size_t i = 0; i < N_BODY; i++) {
            struct api_request r;
            struct api_error e;
            if (parse(&r, i, names[k].fields, &e)) fail_msg("%s: %s", names[k].fields, e.diag.text);
            uint64_t *is = &known[names[k].name];
            if (names[k].name && *is == 0) *is = r.transfer.name;
            assert_int_equal(r.transfer.name, *is);
            api_request_free(&r);
        }
    }
    for (int a = 0; a < 5; a++) {
        for (int b = 0; b < a; b++) assert_int_not_equal(known[a], known[b]);
    }
}

#define A50 "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"
#define A256 A50 A50 A50 A50 A50 "aaaaaa"

static const struct {
    const char *fields, *message;
} refusals[] = {
    {"\"kv_transfer_params\":7", "kv_transfer_params is an integer, needed is an object"},
    {PARAMS(TAKES), "kv_transfer_params has to be with remote_host and remote_port"},
    {PARAMS(TAKES ",\"remote_host\":\"a\""), "kv_transfer_params has to be with"},
    {PARAMS(TAKES ",\"remote_host\":5,\"remote_port\":1"), "remote_host has to be a host"},
    {PARAMS(TAKES ",\"remote_host\":\"\",\"remote_port\":1"), "remote_host has to be a host"},
    {PARAMS(TAKES ",\"remote_host\":\"a b\",\"remote_port\":1"), "remote_host has to be a host"},
    {PARAMS(TAKES ",\"remote_host\":\"" A256 "\",\"remote_port\":1"),
     "remote_host has to be a host"},
    {PARAMS(TAKES ",\"remote_host\":\"a\",\"remote_port\":0"), "a port from 1 to 65535"},
    {PARAMS(TAKES ",\"remote_host\":\"a\",\"remote_port\":65536"), "a port from 1 to 65535"},
    {PARAMS(TAKES ",\"remote_host\":\"a\",\"remote_port\":\"1x\""), "a port from 1 to 65535"},
    {PARAMS(TAKES ",\"remote_host\":\"a\",\"remote_port\":1.5"), "a port from 1 to 65535"},
    {PARAMS(TAKES ",\"remote_bootstrap_addr\":\"http://a\""), "has to be http://HOST:PORT"},
    {PARAMS(TAKES ",\"remote_bootstrap_addr\":\":5\""), "has to be http://HOST:PORT"},
    {PARAMS(TAKES ",\"remote_bootstrap_addr\":\"http://a:5/x\""), "has to be http://HOST:PORT"},
    {"\"bootstrap_host\":[\"a\"]", "bootstrap_host has to be a host"},
    {"\"bootstrap_host\":\"a\",\"bootstrap_port\":\"x\"", "bootstrap_port"},
    {"\"bootstrap_host\":\"a\",\"bootstrap_port\":70000", "bootstrap_port"},
};

static void what_names_no_server_is_refused_by_its_name(void **state)
{
    (void)state;
    for (size_t k = 0; k < sizeof refusals / sizeof refusals[0]; k++) {
        for (size_t i = 0; i < N_BODY; i++) {
            struct api_request r;
            struct api_error e;
            if (!parse(&r, i, refusals[k].fields, &e)) fail_msg("%s is taken", refusals[k].fields);
            assert_int_equal(e.status, 400);
            if (!strstr(e.diag.text, refusals[k].message)) {
                fail_msg("%s: %s", refusals[k].fields, e.diag.text);
            }
            api_request_free(&r);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(three_dialects_name_a_server),
        cmocka_unit_test(who_computes_for_another_server_may_draw_less_than_is_wanted),
        cmocka_unit_test(both_servers_have_one_name_for_a_request),
        cmocka_unit_test(what_names_no_server_is_refused_by_its_name),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
