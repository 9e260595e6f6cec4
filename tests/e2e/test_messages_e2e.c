/* test_messages_e2e.c - /v1/messages over HTTP: the chat's answers in Anthropic's form, and all
 * that a request meets besides: keys, limits, leaving, the end of the server */
#include <stdio.h>
#include <string.h>

#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

#include "support/world.h"

#define MESSAGES "/v1/messages"
#define COUNT "/v1/messages/count_tokens"

static void messages_body(char *body, size_t bytes, const char *script, const char *fields)
{
    (void)snprintf(body, bytes,
                   "{\"model\":\"m\",\"max_tokens\":100,\"messages\":[{\"role\":\"user\","
                   "\"content\":\"[[%s]]\"}]%s}",
                   script, fields);
}

static void expect_message(struct http_client *c, const char *script, const char *fields,
                           int status, const char *part)
{
    char body[1024];
    messages_body(body, sizeof body, script, fields);
    expect(c, "POST", MESSAGES, body, status, part);
}

static json_int_t count_in(const json_t *root, const char *object, const char *key)
{
    return json_integer_value(json_object_get(json_object_get(root, object), key));
}

static void the_same_as_a_chat(void **state)
{
    (void)state;
    struct world w;
    struct http_client c;
    char body[1024];
    world_open(&w, NULL, NULL);
    world_connect(&c, &w);
    chat_body(body, sizeof body, "cached=3;say=Hi there",
              ",\"max_tokens\":100,\"chat_template_kwargs\":{\"thinking\":false}");
    json_t *chat = ask_json(&c, "POST", CHAT, "", body);
    messages_body(body, sizeof body, "cached=3;say=Hi there",
                  ",\"thinking\":{\"type\":\"disabled\"}");
    json_t *message = ask_json(&c, "POST", MESSAGES, "", body);
    const json_t *choice = json_array_get(json_object_get(chat, "choices"), 0);
    const json_t *said = json_object_get(json_object_get(choice, "message"), "content");
    const json_t *block = json_array_get(json_object_get(message, "content"), 0);
    assert_true(json_equal(said, json_object_get(block, "text")));
    json_int_t n_prompt = count_in(chat, "usage", "prompt_tokens");
    assert_int_equal(n_prompt, count_in(message, "usage", "input_tokens") + 3);
    assert_int_equal(count_in(message, "usage", "cache_read_input_tokens"), 3);
    assert_int_equal(count_in(chat, "usage", "completion_tokens"),
                     count_in(message, "usage", "output_tokens"));
    (void)snprintf(body, sizeof body, "{\"input_tokens\":%d}", (int)n_prompt);
    expect(&c, "POST", COUNT,
           "{\"messages\":[{\"role\":\"user\",\"content\":\"[[cached=3;say=Hi there]]\"}]}", 200,
           body);
    json_decref(chat);
    json_decref(message);
    http_client_close(&c);
    world_close(&w);
}

/* A system text that comes last is told with the user's, in front of the generation prompt, by
 * whatever door it comes. */
static void a_system_text_comes_before_the_generation_prompt(void **state)
{
    (void)state;
    static const char talk[] = "[{\"role\":\"user\",\"content\":\"[[say=Hi]]\"},"
                               "{\"role\":\"system\",\"content\":\"Be brief.\"}]";
    static const char folded[] =
        "{\"messages\":[{\"role\":\"user\",\"content\":\"[[say=Hi]]\\n\\nBe brief.\"}]}";
    struct world w;
    struct http_client c;
    char body[512];
    world_open(&w, NULL, NULL);
    world_connect(&c, &w);
    (void)snprintf(body, sizeof body, "{\"messages\":%s}", talk);
    json_t *want = ask_json(&c, "POST", "/tokenize", "", folded);
    json_t *got = ask_json(&c, "POST", "/tokenize", "", body);
    assert_true(json_array_size(json_object_get(want, "tokens")) > 20);
    assert_true(json_equal(json_object_get(got, "tokens"), json_object_get(want, "tokens")));
    json_int_t n = json_integer_value(json_object_get(want, "count"));
    json_decref(want);
    json_decref(got);

    got = ask_json(&c, "POST", COUNT, "", body);
    assert_int_equal(json_integer_value(json_object_get(got, "input_tokens")), n);
    json_decref(got);
    got = ask_json(&c, "POST", CHAT, "", body);
    assert_int_equal(count_in(got, "usage", "prompt_tokens"), n);
    json_decref(got);
    (void)snprintf(body, sizeof body, "{\"max_tokens\":9,\"messages\":%s}", talk);
    got = ask_json(&c, "POST", MESSAGES, "", body);
    assert_int_equal(count_in(got, "usage", "input_tokens"), n);
    json_decref(got);
    (void)snprintf(body, sizeof body, "{\"input\":%s}", talk);
    got = ask_json(&c, "POST", "/v1/responses", "", body);
    assert_int_equal(count_in(got, "usage", "input_tokens"), n);
    json_decref(got);
    http_client_close(&c);
    world_close(&w);
}

static void errors_have_its_form(void **state)
{
    (void)state;
    static const char *const keys[] = {"secret"};
    struct world w;
    struct http_client c;
    struct http_reply r;
    char id[64], body[1024];
    world_open(&w, &(struct server_options){.api_keys = keys, .n_api_key = 1}, NULL);
    world_connect(&c, &w);
    messages_body(body, sizeof body, "say=Hi", "");
    expect(&c, "POST", MESSAGES, body, 401,
           "{\"type\":\"error\",\"error\":{\"type\":\"authentication_error\",\"message\":");
    ask(&c, &r, "GET", MESSAGES, "x-api-key: secret\r\n", NULL);
    assert_reply(&r, 405, "{\"type\":\"error\",");
    ask(&c, &r, "POST", MESSAGES, "x-api-key: secret\r\nanthropic-version: 2023-06-01\r\n", body);
    assert_true(http_reply_header(&r, "request-id", id, sizeof id));
    assert_int_equal(strncmp(id, "msg_", 4), 0);
    assert_reply(&r, 200, "\"text\":\"Hi\"");
    ask(&c, &r, "POST", MESSAGES, "x-api-key: secret\r\nanthropic-version: 2022-01-01\r\n", body);
    assert_reply(&r, 400, "\"invalid_request_error\",\"message\":\"the header anthropic-version");
    ask(&c, &r, "POST", MESSAGES, "Authorization: Bearer secret\r\n", "{]");
    assert_reply(&r, 400, "\"invalid_request_error\",\"message\":\"request body: not valid JSON");
    ask(&c, &r, "POST", MESSAGES, "Authorization: Bearer secret\r\n",
        "{\"model\":\"other\",\"max_tokens\":1,\"messages\":[{\"role\":\"user\",\"content\":"
        "\"x\"}]}");
    assert_reply(&r, 404, "\"not_found_error\",\"message\":\"the model \\\"other\\\"");
    http_client_close(&c);
    world_close(&w);
}

static void limits_hold(void **state)
{
    (void)state;
    struct world w;
    struct http_client c;
    world_open(&w, NULL, &(struct fake_options){.max_model_len = 64});
    world_connect(&c, &w);
    char body[512];
    (void)snprintf(body, sizeof body,
                   "{\"max_tokens\":9,\"messages\":[{\"role\":\"user\",\"content\":\"%080d\"}]}",
                   0);
    expect(&c, "POST", MESSAGES, body, 400, "prompt is too long: 84 tokens > 64 maximum");
    expect(&c, "POST", MESSAGES "/batches", "{}", 404,
           "{\"type\":\"error\",\"error\":{\"type\":\"not_found_error\"");
    expect_message(&c, "say=Hi", "", 400, "input length and `max_tokens` exceed context limit: ");
    /* what is only counted need not fit */
    (void)snprintf(body, sizeof body, "{\"messages\":[{\"role\":\"user\",\"content\":\"%0200d\"}]}",
                   0);
    expect(&c, "POST", COUNT, body, 200, "{\"input_tokens\":20");
    assert_int_equal(fake_engine_n_submitted(w.engine), 0);
    http_client_close(&c);
    world_close(&w);
}

static void a_stream_is_pinged_and_ends_when_its_client_leaves(void **state)
{
    (void)state;
    struct world w;
    struct http_client c;
    char body[1024];
    world_open(&w, &(struct server_options){.idle_line_ms = 50}, NULL);
    world_connect(&c, &w);
    messages_body(body, sizeof body, "first_ms=60000;say=Hi", ",\"stream\":true");
    assert_true(http_client_send(&c, "POST", MESSAGES, "", body));
    assert_true(http_client_wait_for(&c, "event: message_start\n"));
    assert_true(http_client_wait_for(&c, "event: ping\ndata: {\"type\":\"ping\"}\n\n"));
    http_client_close(&c);
    wait_for_count(w.engine, fake_engine_n_cancelled, 1);
    world_close(&w);
}

static void a_busy_and_a_failing_engine_are_told(void **state)
{
    (void)state;
    struct world w;
    struct http_client c;
    world_open(&w, NULL, NULL);
    world_connect(&c, &w);
    expect_message(&c, "refuse=busy", "", 429, "\"rate_limit_error\"");
    expect_message(&c, "then=fail;say=Hi", "", 503, "\"type\":\"api_error\"");
    http_client_close(&c);
    world_close(&w);
    world_open(&w, NULL, NULL);
    world_connect(&c, &w);
    expect_message(&c, "step_ms=20;then=fail;say=Hi", ",\"stream\":true", 200,
                   "event: error\ndata: {\"type\":\"error\",\"error\":{\"type\":\"api_error\"");
    http_client_close(&c);
    world_close(&w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_same_as_a_chat),
        cmocka_unit_test(a_system_text_comes_before_the_generation_prompt),
        cmocka_unit_test(errors_have_its_form),
        cmocka_unit_test(limits_hold),
        cmocka_unit_test(a_stream_is_pinged_and_ends_when_its_client_leaves),
        cmocka_unit_test(a_busy_and_a_failing_engine_are_told),
    };
    return cmocka_run_group_tests(tests, world_setup, world_teardown);
}
