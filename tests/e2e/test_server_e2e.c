/* test_server_e2e.c - the server over loopback, with the scripted engine behind it */
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

#include "base/mem.h"
#include "base/rng.h"
#include "support/world.h"

static const char *const KEYS[] = {"first", "second"};

/* ---- routes -------------------------------------------------------------------------------- */

static void test_routes(void **state)
{
    (void)state;
    struct world w;
    struct http_client c;
    world_open(&w, NULL, NULL);
    world_connect(&c, &w);
    expect(&c, "GET", "/health", NULL, 200, "\"status\":\"ok\"");
    expect(&c, "GET", "/ping", NULL, 200, "\"status\":\"ok\"");
    expect(&c, "POST", "/ping", "{}", 200, "\"status\":\"ok\"");
    expect(&c, "GET", "/version", NULL, 200, "{\"version\":\"" FATHOM_VERSION "\"}");
    expect(&c, "GET", "/v1/models", NULL, 200, "\"id\":\"deepseek-ai/DeepSeek-V3.2\"");
    expect(&c, "GET", "/v1/models/m", NULL, 200, "\"id\":\"m\"");
    expect(&c, "GET", "/v1/models/", NULL, 200, "\"object\":\"list\"");
    expect(&c, "GET", "/v1/models", NULL, 200, "\"type\":\"model\",\"created\":");
    expect(&c, "GET", "/v1/models", NULL, 200,
           "],\"has_more\":false,\"first_id\":\"m\",\"last_id\":\"deepseek-ai/DeepSeek-V3.2\"}");
    expect(&c, "GET", "/v1/models/deepseek-ai/DeepSeek-V3.2", NULL, 200, "DeepSeek-V3.2");
    expect(&c, "GET", "/v1/models/deepseek-ai%2FDeepSeek-V3.2", NULL, 200, "DeepSeek-V3.2");
    expect(&c, "GET", "/v1/models/x", NULL, 404, "\"code\":\"model_not_found\"");
    expect(&c, "GET", "/nothing%0a", NULL, 404, "there is no GET /nothing?");
    expect(&c, "POST", "/chat/completions", "{}", 404, "did you mean /v1/chat/completions?");
    expect(&c, "POST", "/v1/load_lora_adapter", "{\"lora_name\":\"a\"}", 404,
           "\"there is no POST /v1/load_lora_adapter: adapters are not supported\"");
    expect(&c, "GET", "/v1/files/a/", NULL, 404, "/v1/files/a/: fathom run-batch answers");
    expect(&c, "GET", "/props", NULL, 404, "/props: /v1/models tells");
    expect(&c, "POST", "/api/chat", "{}", 404, "/api/chat: send messages to /v1/chat/completions");
    expect(&c, "POST", "/reset_prefix_cache", "{}", 404,
           "\"there is no POST /reset_prefix_cache: --admin-socket has it\"");
    expect(&c, "POST", "/completion", "{\"prompt\":\"a\"}", 404,
           "/completion: send prompts to /v1/completions");
    expect(&c, "POST", "/v1" CHAT, "{}", 404, "did you mean /v1/chat/completions?");
    http_client_close(&c);
    world_close(&w);
}

static void test_methods(void **state)
{
    (void)state;
    struct world w;
    struct http_client c;
    struct http_reply r;
    char value[128];
    static const char *const all[] = {"*"};
    const struct server_options o = {.origins = all,
                                     .n_origin = 1,
                                     .cors_headers = all,
                                     .n_cors_header = 1,
                                     .cors_methods = all,
                                     .n_cors_method = 1};
    world_open(&w, &o, NULL);
    world_connect(&c, &w);
    ask(&c, &r, "DELETE", "/ping", "", NULL);
    assert_true(http_reply_header(&r, "Allow", value, sizeof value));
    assert_string_equal(value, "GET, HEAD, POST, OPTIONS");
    assert_reply(&r, 405, "/ping does not take DELETE");
    ask(&c, &r, "HEAD", "/health", "", NULL);
    assert_reply(&r, 200, "");
    ask(&c, &r, "GET", CHAT, "", NULL);
    assert_true(http_reply_header(&r, "Allow", value, sizeof value));
    assert_string_equal(value, "POST, OPTIONS");
    assert_reply(&r, 405, "does not take GET");
    ask(&c, &r, "DELETE", "/v1/models", "", NULL);
    assert_true(http_reply_header(&r, "Allow", value, sizeof value));
    assert_string_equal(value, "GET, HEAD, OPTIONS");
    assert_reply(&r, 405, "\"error\"");
    ask(&c, &r, "OPTIONS", CHAT,
        "Origin: http://x\r\nAccess-Control-Request-Method: POST\r\n"
        "Access-Control-Request-Headers: authorization,content-type\r\n",
        NULL);
    assert_true(http_reply_header(&r, "Access-Control-Allow-Origin", value, sizeof value));
    assert_string_equal(value, "*");
    assert_true(http_reply_header(&r, "Access-Control-Allow-Headers", value, sizeof value));
    assert_string_equal(value, "authorization,content-type");
    assert_reply(&r, 204, "");
    http_client_close(&c);
    world_close(&w);
}

/* The document of the paths and their fields. */
static void test_openapi(void **state)
{
    (void)state;
    struct world w;
    struct http_client c;
    world_open(&w, NULL, NULL);
    world_connect(&c, &w);
    json_t *document = ask_json(&c, "GET", "/openapi.json", "", NULL);
    json_t *paths = json_object_get(document, "paths");
    assert_true(json_object_size(paths) > 15);
    assert_non_null(json_object_get(json_object_get(paths, "/ping"), "post"));
    assert_null(json_object_get(json_object_get(paths, "/health"), "post"));
    const json_t *temperature = NULL, *prompt = NULL;
    assert_int_equal(json_unpack(paths, "{s:{s:{s:{s:{s:{s:{s:[o,{s:o}]}}}}}}}", "/invocations",
                                 "post", "requestBody", "content", "application/json", "schema",
                                 "anyOf", &temperature, "properties", &prompt),
                     0);
    assert_non_null(json_object_get(prompt, "prompt"));
    assert_int_equal(json_unpack(paths, "{s:{s:{s:{s:{s:{s:{s:{s:o}}}}}}}}", CHAT, "post",
                                 "requestBody", "content", "application/json", "schema",
                                 "properties", "temperature", &temperature),
                     0);
    assert_true(json_number_value(json_object_get(temperature, "maximum")) == 2);
    json_decref(document);
    http_client_close(&c);
    world_close(&w);
}

/* The page and the document it reads; both are gone when that is asked for. */
static void test_docs(void **state)
{
    (void)state;
    struct world w;
    struct http_client c;
    struct http_reply r;
    char value[64];
    world_open(&w, &(struct server_options){0}, NULL);
    world_connect(&c, &w);
    ask(&c, &r, "GET", "/docs", "", NULL);
    assert_true(http_reply_header(&r, "Content-Type", value, sizeof value));
    assert_string_equal(value, "text/html; charset=utf-8");
    assert_reply(&r, 200, "ui/docs.js");
    expect(&c, "GET", "/ui/docs.js", NULL, 200, "openapi()");
    expect(&c, "GET", "/docs/", NULL, 404, "there is no GET /docs/");
    json_t *document = ask_json(&c, "GET", "/openapi.json", "", NULL);
    const json_t *paths = json_object_get(document, "paths");
    assert_non_null(json_object_get(json_object_get(paths, "/v1/responses/{id}"), "delete"));
    assert_non_null(json_object_get(paths, "/v1/responses/{id}/input_items"));
    json_decref(document);
    http_client_close(&c);
    world_close(&w);

    world_open(&w, &(struct server_options){.no_docs = true}, NULL);
    world_connect(&c, &w);
    expect(&c, "GET", "/docs", NULL, 404, "--disable-fastapi-docs");
    expect(&c, "GET", "/openapi.json", NULL, 404, "--disable-fastapi-docs");
    http_client_close(&c);
    world_close(&w);
}

static void test_api_key(void **state)
{
    (void)state;
    struct world w;
    struct http_client c;
    struct http_reply r;
    const struct server_options o = {.api_keys = KEYS, .n_api_key = 2};
    char value[32];
    world_open(&w, &o, NULL);
    world_connect(&c, &w);
    expect(&c, "GET", "/health", NULL, 200, "ok");
    expect(&c, "GET", "/v1/models", NULL, 401, "\"code\":\"invalid_api_key\"");
    expect(&c, "POST", CHAT, "{}", 401, "\"type\":\"authentication_error\"");
    static const char *const bad[] = {"Bearer ",     "Bearer wrong", "Bearer firstt",
                                      "Bearer firs", "Basic first",  "first"};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        char header[64];
        (void)snprintf(header, sizeof header, "Authorization: %s\r\n", bad[i]);
        ask(&c, &r, "GET", "/v1/models", header, NULL);
        assert_true(http_reply_header(&r, "WWW-Authenticate", value, sizeof value));
        assert_reply(&r, 401, "");
    }
    ask(&c, &r, "GET", "/v1/models", "Authorization: Bearer first\r\n", NULL);
    assert_reply(&r, 200, "\"m\"");
    ask(&c, &r, "GET", "/v1/models", "authorization: bearer second\r\n", NULL);
    assert_reply(&r, 200, "\"m\"");
    ask(&c, &r, "GET", "/v1/models", "X-Api-Key: second\r\n", NULL);
    assert_reply(&r, 200, "\"m\"");
    http_client_close(&c);
    world_close(&w);
}

/* ---- requests ------------------------------------------------------------------------------ */

static void test_one_connection_goes_on(void **state)
{
    (void)state;
    struct world w;
    struct http_client c;
    world_open(&w, NULL, NULL);
    world_connect(&c, &w);
    for (int round = 0; round < 3; round++) {
        expect_chat(&c, "say=Hi", "", 200, "\"content\":\"Hi\"");
        expect_chat(&c, "say=Hi", ",\"temperature\":9", 400, "\"param\":\"temperature\"");
        expect_chat(&c, "say=Hi", ",\"stream\":true", 200, "data: [DONE]\n\n");
        expect(&c, "POST", CHAT, "{,}", 400, "line 1 column 2");
        expect(&c, "POST", "/nowhere", "{\"a\":1}", 404, "\"error\"");
        expect_chat(&c, "refuse=busy", "", 429, "rate_limit_error");
        expect_chat(&c, "refuse=busy", ",\"stream\":true", 429, "rate_limit_error");
        expect(&c, "POST", "/v1/completions", "{\"prompt\":\"x\"}", 200, "\"text\":\"Hello!\"");
        expect(&c, "POST", "/v1/completions", "{\"prompt\":\"x\",\"model\":\"other\"}", 404,
               "served: \\\"m\\\", \\\"deepseek-ai/DeepSeek-V3.2\\\"");
    }
    http_client_close(&c);
    world_close(&w);
}

static void test_sampling_reaches_the_engine(void **state)
{
    (void)state;
    struct world w;
    struct http_client c;
    uint32_t n_prompt;
    const struct fake_options f = {
        .temperature = 0.6f, .top_p = 0.95f, .tokenizer_config = "{\"add_bos_token\": true}"};
    world_open(&w, NULL, &f);
    world_connect(&c, &w);
    expect(&c, "POST", "/v1/completions", "{\"prompt\":\"abc\",\"max_tokens\":5}", 200, "");
    fathom_sampling s = fake_engine_last(w.engine, &n_prompt);
    assert_true(s.temperature == 0.6f && s.top_p == 0.95f && s.top_k == 0);
    assert_int_equal(s.max_tokens, 5);
    assert_int_equal(n_prompt, 4); /* BOS and three bytes */
    const char *body = "{\"prompt\":\"<｜begin▁of▁sentence｜>abc\",\"temperature\":0,\"seed\":7,"
                       "\"logit_bias\":{\"30\":5},\"stop_token_ids\":[33]}";
    expect(&c, "POST", "/v1/completions", body, 200, "");
    s = fake_engine_last(w.engine, &n_prompt);
    assert_true(s.temperature == 0.0f && s.has_seed && s.seed == 7);
    assert_true(s.n_bias == 1 && s.n_stop_id == 1);
    assert_int_equal(n_prompt, 4);
    expect(&c, "POST", "/v1/completions", "{\"prompt\":[20,21,22]}", 200, "");
    (void)fake_engine_last(w.engine, &n_prompt);
    assert_int_equal(n_prompt, 3);
    expect_chat(&c, "say=x", "", 200, "");
    s = fake_engine_last(w.engine, &n_prompt);
    assert_int_equal(s.max_tokens, 0);
    http_client_close(&c);
    world_close(&w);
}

static void test_context_length(void **state)
{
    (void)state;
    struct world w;
    struct http_client c;
    const struct fake_options f = {.max_model_len = 64};
    char body[512];
    world_open(&w, NULL, &f);
    world_connect(&c, &w);
    (void)snprintf(body, sizeof body, "{\"prompt\":\"%064d\"}", 0);
    expect(&c, "POST", "/v1/completions", body, 400,
           "This model's maximum context length is 64 tokens. However, your prompt has 64 tokens: "
           "shorten it (context_length_exceeded)");
    expect(
        &c, "POST", "/v1/completions", "{\"prompt\":\"abcd\",\"max_tokens\":61}", 400,
        "This model's maximum context length is 64 tokens. However, you requested 65 tokens (4 in "
        "the prompt, 61 in max_tokens)");
    expect(&c, "POST", "/v1/completions", "{\"prompt\":\"abcd\",\"max_tokens\":60}", 200, "Hello!");
    expect(&c, "POST", "/v1/completions", "{\"prompt\":\"\"}", 400, "has no tokens");
    expect(&c, "POST", "/v1/completions", "{\"prompt\":\"ab\",\"max_tokens\":0,\"echo\":true}", 200,
           "\"text\":\"ab\"");
    expect(&c, "POST", "/v1/completions",
           "{\"prompt\":\"ab\",\"max_tokens\":0,\"echo\":true,\"stream\":true}", 200,
           "\"text\":\"ab\"");
    http_client_close(&c);
    world_close(&w);
}

static void test_choices_and_stops(void **state)
{
    (void)state;
    struct world w;
    struct http_client c;
    world_open(&w, NULL, NULL);
    world_connect(&c, &w);
    expect_chat(&c, "cached=3;say=one STOP two", ",\"n\":3,\"stop\":\"STOP\"", 200,
                "{\"index\":2,\"message\":{\"role\":\"assistant\",\"content\":\"one \"");
    expect_chat(&c, "cached=3;say=one", ",\"n\":3", 200, "\"cached_tokens\":3");
    struct http_reply r;
    char id[64], body[512];
    chat_body(body, sizeof body, "say=x", "");
    ask(&c, &r, "POST", CHAT, "", body);
    assert_true(http_reply_header(&r, "X-Request-Id", id, sizeof id));
    assert_non_null(strstr(buf_str(&r.body), id));
    http_reply_free(&r);
    expect_chat(&c, "repeat=5;say=ab", ",\"max_tokens\":3", 200, "\"finish_reason\":\"length\"");
    expect_chat(&c, "say=abc", ",\"stop_token_ids\":[118]", 200, "\"stop_reason\":118");
    expect_chat(&c, "say=one STOP", ",\"n\":2,\"stream\":true,\"stop\":\"STOP\"", 200,
                "\"index\":1,\"delta\":{},\"logprobs\":null,\"finish_reason\":\"stop\","
                "\"stop_reason\":\"STOP\"");
    wait_for_count(w.engine, fake_engine_n_alive, 0);
    http_client_close(&c);
    world_close(&w);
}

static void test_silent_stream_gets_empty_lines(void **state)
{
    (void)state;
    struct world w;
    struct http_client c;
    struct http_reply r;
    const struct server_options o = {.idle_line_ms = 100};
    world_open(&w, &o, NULL);
    world_connect(&c, &w);
    fake_engine_stall(w.engine, true);
    send_chat(&c, "say=Hi", ",\"stream\":true");
    assert_true(http_client_wait_for(&c, "\r\n\r\n1\r\n\n\r\n")); /* a chunk of one byte */
    fake_engine_stall(w.engine, false);
    assert_true(http_client_read(&c, &r, false));
    assert_int_equal(buf_str(&r.body)[0], '\n');
    assert_reply(&r, 200, "\ndata: {");
    http_client_close(&c);
    world_close(&w);
}

/* ---- clients that leave -------------------------------------------------------------------- */

static void test_leaving_cancels(void **state)
{
    (void)state;
    struct world w;
    world_open(&w, NULL, NULL);
    static const char *const fields[] = {"", ",\"stream\":true", ",\"n\":3",
                                         ",\"n\":3,\"stream\":true"};
    uint64_t n_cancelled = 0;
    for (size_t i = 0; i < 4; i++) {
        bool stream = i % 2;
        uint64_t n = i < 2 ? 1 : 3;
        struct http_client c;
        world_connect(&c, &w);
        send_chat(&c, stream ? "step_ms=20;repeat=1000;say=abc" : "first_ms=60000;say=abc",
                  fields[i]);
        wait_for_count(w.engine, fake_engine_n_alive, n);
        if (stream) assert_true(http_client_wait_for(&c, "\"content\":\"b\""));
        http_client_close(&c);
        n_cancelled += n;
        wait_for_count(w.engine, fake_engine_n_cancelled, n_cancelled);
    }
    world_close(&w);
}

static void test_leaving_before_the_first_token_of_a_stream(void **state)
{
    (void)state;
    const struct server_options o = {.idle_line_ms = 100};
    struct world w;
    struct http_client c;
    world_open(&w, &o, NULL);
    world_connect(&c, &w);
    send_chat(&c, "first_ms=60000;say=abc", ",\"stream\":true");
    assert_true(http_client_wait_for(&c, "text/event-stream")); /* with the first empty line */
    http_client_close(&c);
    wait_for_count(w.engine, fake_engine_n_cancelled, 1);
    world_close(&w);
}

static void test_slow_reader_is_cut(void **state)
{
    (void)state;
    struct world w;
    struct http_client c;
    const struct fake_options f = {.max_model_len = 1000000};
    world_open(&w, NULL, &f);
    world_connect(&c, &w);
    send_chat(&c, "repeat=500000;say=abc",
              ",\"stream\":true,\"logprobs\":true,\"top_logprobs\":20");
    wait_for_count(w.engine, fake_engine_n_cancelled, 1);
    /* the connection is closed: reading on meets an end, not the end of the stream */
    struct http_reply r;
    assert_false(http_client_read(&c, &r, false));
    http_reply_free(&r);
    http_client_close(&c);
    world_close(&w);
}

enum { N_STREAM = 64 };

/* 64 streams in flight; at random some clients leave, the others must get every byte. */
static void test_many_streams_with_leavers(void **state)
{
    (void)state;
    struct world w;
    struct http_client c[N_STREAM];
    uint64_t rng = 11;
    world_open(&w, NULL, NULL);
    for (int round = 0; round < 3; round++) {
        for (size_t i = 0; i < N_STREAM; i++) {
            char script[64];
            world_connect(&c[i], &w);
            (void)snprintf(script, sizeof script, "step_ms=1;repeat=%zu;say=x", 20 + i);
            send_chat(&c[i], script, ",\"stream\":true");
        }
        bool left[N_STREAM] = {false};
        for (size_t i = 0; i < N_STREAM; i++) {
            left[i] = rng_below(&rng, 2);
            if (!left[i]) continue;
            if (rng_below(&rng, 2)) assert_true(http_client_wait_for(&c[i], "\"content\":\"x\""));
            http_client_close(&c[i]);
        }
        for (size_t i = 0; i < N_STREAM; i++) {
            struct http_reply r;
            size_t n = 0;
            if (left[i]) continue;
            assert_true(http_client_read(&c[i], &r, false));
            for (const char *at = buf_str(&r.body); (at = strstr(at, "\"content\":\"x\"")); at++)
                n++;
            assert_int_equal(n, 20 + i);
            assert_non_null(strstr(buf_str(&r.body), "data: [DONE]\n\n"));
            http_reply_free(&r);
            expect(&c[i], "GET", "/health", NULL, 200, "ok");
            http_client_close(&c[i]);
        }
        wait_for_count(w.engine, fake_engine_n_alive, 0);
    }
    world_close(&w);
}

/* ---- bad clients --------------------------------------------------------------------------- */

static void test_body_too_large(void **state)
{
    (void)state;
    struct world w;
    struct http_client c;
    struct http_reply r;
    world_open(&w, NULL, NULL);
    world_connect(&c, &w);
    /* announced: refused before it is sent */
    const char *announced =
        "POST " CHAT " HTTP/1.1\r\nHost: localhost\r\nContent-Length: 99999999999\r\n\r\n";
    assert_true(http_client_send_bytes(&c, announced, strlen(announced)));
    assert_true(http_client_read(&c, &r, false));
    assert_reply(&r, 413, "larger than 67108864 bytes");
    http_client_close(&c);
    /* not announced: refused when it is all there */
    world_connect(&c, &w);
    const char *chunked =
        "POST " CHAT " HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n";
    assert_true(http_client_send_bytes(&c, chunked, strlen(chunked)));
    char *chunk = mem_alloc((1 << 20) + 16);
    memcpy(chunk, "100000\r\n", 8);
    memset(chunk + 8, ' ', 1 << 20);
    memcpy(chunk + 8 + (1 << 20), "\r\n", 2);
    for (int i = 0; i < 65; i++) {
        assert_true(http_client_send_bytes(&c, chunk, 10 + (1 << 20)));
    }
    mem_free(chunk);
    assert_true(http_client_send_bytes(&c, "0\r\n\r\n", 5));
    assert_true(http_client_read(&c, &r, false));
    assert_reply(&r, 413, "\"code\":\"request_too_large\"");
    expect(&c, "GET", "/health", NULL, 200, "ok");
    http_client_close(&c);
    world_close(&w);
}

static void test_bodies_held_are_limited(void **state)
{
    (void)state;
    struct world w;
    struct http_client c;
    const struct server_options o = {.max_held_bytes = 1000};
    char body[2000];
    world_open(&w, &o, NULL);
    world_connect(&c, &w);
    (void)snprintf(body, sizeof body, "{\"prompt\":\"%0999d\"}", 0);
    for (int round = 0; round < 3; round++) {
        expect(&c, "POST", "/v1/completions", body, 429, "hold 1000 bytes, which is the limit");
        expect_chat(&c, "say=Hi", "", 200, "\"content\":\"Hi\"");
    }
    http_client_close(&c);
    world_close(&w);
}

static void test_malformed_http(void **state)
{
    (void)state;
    struct world w;
    struct http_client c;
    static const char *const texts[] = {
        "\r\n\r\n",
        "GARBAGE\r\n\r\n",
        "GET\r\n\r\n",
        "GET /health\r\n\r\n",
        "GET /health HTTP/9.9\r\n\r\n",
        "POST " CHAT " HTTP/1.1\r\nContent-Length: x\r\n\r\n{}",
        "POST " CHAT " HTTP/1.1\r\nHost: localhost\r\nContent-Length: -5\r\n\r\n",
        "POST " CHAT
        " HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n{}\r\n",
        "POST " CHAT " HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\n{\"mess",
        "GET /v1/models/%zz%00 HTTP/1.1\r\nHost: localhost\r\n\r\n",
        "GET /health HTTP/1.1\r\nHost x\r\n: y\r\n\r\n",
        "\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
    };
    world_open(&w, NULL, NULL);
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++) {
        world_connect(&c, &w);
        assert_true(http_client_send_bytes(&c, texts[i], strlen(texts[i])));
        struct pollfd p = {.fd = c.fd, .events = POLLIN};
        (void)poll(&p, 1, 50); /* an answer, a closed connection, or nothing: all are fine */
        http_client_close(&c);
    }
    world_connect(&c, &w);
    char *head = mem_alloc(300000);
    memset(head, 'a', 300000);
    memcpy(head, "GET /", 5);
    (void)http_client_send_bytes(&c, head, 300000);
    mem_free(head);
    http_client_close(&c);
    world_connect(&c, &w);
    expect(&c, "GET", "/health", NULL, 200, "ok");
    assert_int_equal(fake_engine_n_submitted(w.engine), 0);
    http_client_close(&c);
    world_close(&w);
}

static void test_http_10_stream(void **state)
{
    (void)state;
    struct world w;
    struct http_client c;
    char body[512], head[1024];
    world_open(&w, NULL, NULL);
    world_connect(&c, &w);
    chat_body(body, sizeof body, "say=Hi", ",\"stream\":true");
    (void)snprintf(head, sizeof head, "POST " CHAT " HTTP/1.0\r\nContent-Length: %zu\r\n\r\n%s",
                   strlen(body), body);
    assert_true(http_client_send_bytes(&c, head, strlen(head)));
    assert_true(http_client_wait_for(&c, "data: [DONE]\n\n"));
    assert_true(http_client_at_end(&c));
    http_client_close(&c);
    world_close(&w);
}

/* ---- the engine fails, stalls, is full ----------------------------------------------------- */

static void test_busy(void **state)
{
    (void)state;
    struct world w;
    struct http_client c[2];
    struct http_reply r;
    char body[512], value[16];
    const struct fake_options f = {.max_requests = 2};
    world_open(&w, NULL, &f);
    world_connect(&c[0], &w);
    world_connect(&c[1], &w);
    /* three choices never find room */
    chat_body(body, sizeof body, "first_ms=60000;say=x", ",\"n\":3");
    ask(&c[1], &r, "POST", CHAT, "", body);
    assert_reply(&r, 400, "3 choices are more than run and wait here at once, which is 2 (--max-");
    send_chat(&c[0], "first_ms=300;say=Hi", "");
    wait_for_count(w.engine, fake_engine_n_alive, 1);
    /* of two one finds room and must be taken back */
    chat_body(body, sizeof body, "first_ms=60000;say=x", ",\"n\":2");
    ask(&c[1], &r, "POST", CHAT, "", body);
    assert_true(http_reply_header(&r, "Retry-After", value, sizeof value));
    assert_true(strtol(value, NULL, 10) >= 1);
    assert_reply(&r, 429, "the queue is full");
    assert_true(http_client_read(&c[0], &r, false));
    assert_reply(&r, 200, "\"content\":\"Hi\"");
    wait_for_count(w.engine, fake_engine_n_alive, 0);
    http_client_close(&c[0]);
    http_client_close(&c[1]);
    world_close(&w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_routes),
        cmocka_unit_test(test_methods),
        cmocka_unit_test(test_openapi),
        cmocka_unit_test(test_docs),
        cmocka_unit_test(test_api_key),
        cmocka_unit_test(test_one_connection_goes_on),
        cmocka_unit_test(test_sampling_reaches_the_engine),
        cmocka_unit_test(test_context_length),
        cmocka_unit_test(test_choices_and_stops),
        cmocka_unit_test(test_silent_stream_gets_empty_lines),
        cmocka_unit_test(test_leaving_cancels),
        cmocka_unit_test(test_leaving_before_the_first_token_of_a_stream),
        cmocka_unit_test(test_slow_reader_is_cut),
        cmocka_unit_test(test_many_streams_with_leavers),
        cmocka_unit_test(test_body_too_large),
        cmocka_unit_test(test_bodies_held_are_limited),
        cmocka_unit_test(test_malformed_http),
        cmocka_unit_test(test_http_10_stream),
        cmocka_unit_test(test_busy),
    };
    return cmocka_run_group_tests(tests, world_setup, world_teardown);
}
