/* test_responses_e2e.c - /v1/responses over HTTP: the chat's answers in another form, conversations
 * that the server keeps, and all that a request meets besides */
#include <stdio.h>
#include <string.h>

#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

#include "support/world.h"

#define RESPONSES "/v1/responses"

static void responses_body(char *body, size_t bytes, const char *script, const char *fields)
{
    (void)snprintf(body, bytes, "{\"model\":\"m\",\"input\":\"[[%s]]\"%s}", script, fields);
}

static void expect_response(struct http_client *c, const char *script, const char *fields,
                            int status, const char *part)
{
    char body[1024];
    responses_body(body, sizeof body, script, fields);
    expect(c, "POST", RESPONSES, body, status, part);
}

static json_t *respond(struct http_client *c, const char *script, const char *fields)
{
    char body[1024];
    responses_body(body, sizeof body, script, fields);
    return ask_json(c, "POST", RESPONSES, "", body);
}

static const char *id_of(const json_t *response)
{
    const char *id = json_string_value(json_object_get(response, "id"));
    assert_non_null(id);
    return id;
}

static json_int_t count_in(const json_t *root, const char *key)
{
    return json_integer_value(json_object_get(json_object_get(root, "usage"), key));
}

static void the_same_as_a_chat(void **state)
{
    (void)state;
    struct world w;
    struct http_client c;
    char body[1024];
    world_open(&w, NULL, NULL);
    world_connect(&c, &w);
    chat_body(body, sizeof body, "cached=3;say=Hi there", ",\"reasoning_effort\":\"none\"");
    json_t *chat = ask_json(&c, "POST", CHAT, "", body);
    json_t *response = respond(&c, "cached=3;say=Hi there", ",\"reasoning\":{\"effort\":\"none\"}");
    const json_t *choice = json_array_get(json_object_get(chat, "choices"), 0);
    const json_t *item = json_array_get(json_object_get(response, "output"), 0);
    const json_t *part = json_array_get(json_object_get(item, "content"), 0);
    assert_true(json_equal(json_object_get(json_object_get(choice, "message"), "content"),
                           json_object_get(part, "text")));
    assert_int_equal(count_in(chat, "prompt_tokens"), count_in(response, "input_tokens"));
    assert_int_equal(count_in(chat, "completion_tokens"), count_in(response, "output_tokens"));
    json_decref(chat);
    json_decref(response);
    struct http_reply r;
    ask(&c, &r, "POST", RESPONSES,
        "X-Request-Id: 0123456789012345678901234567890123456789012345678901234567890123\r\n",
        "{\"input\":\"[[say=Hi]]\"}");
    assert_non_null(strstr(buf_str(&r.head), "0123456789012345678901234567890123456789"));
    assert_null(strstr(buf_str(&r.body), "0123456789"));
    assert_reply(&r, 200, "\"status\":\"completed\"");
    expect(&c, "POST", RESPONSES, "{]", 400, "{\"error\":{\"message\":\"request body: not valid");
    expect(&c, "POST", RESPONSES, "{\"model\":\"other\",\"input\":\"x\"}", 404, "model_not_found");
    expect(&c, "PUT", RESPONSES, "{}", 405, "method_not_allowed");
    expect_response(&c, "refuse=busy", "", 429, "server_busy");
    http_client_close(&c);
    world_close(&w);
}

/* What is gone on from gives the prompt that all items at once give. */
static void a_conversation_goes_on(void **state)
{
    (void)state;
    struct world w;
    struct http_client c;
    char fields[256], path[128];
    uint32_t n_chained, n_whole;
    world_open(&w, NULL, NULL);
    world_connect(&c, &w);
    json_t *first = respond(&c, "say=Hi", ",\"instructions\":\"not carried over\"");
    (void)snprintf(fields, sizeof fields, ",\"previous_response_id\":\"%s\"", id_of(first));
    json_t *second = respond(&c, "say=Yes", fields);
    (void)fake_engine_last(w.engine, &n_chained);
    expect(&c, "POST", RESPONSES,
           "{\"input\":[{\"role\":\"user\",\"content\":\"[[say=Hi]]\"},{\"role\":\"assistant\","
           "\"content\":\"Hi\"},{\"role\":\"user\",\"content\":\"[[say=Yes]]\"}],\"store\":false}",
           200, "\"text\":\"Yes\"");
    (void)fake_engine_last(w.engine, &n_whole);
    assert_int_equal(n_chained, n_whole);
    /* told again; deleted, but what went on from it goes on */
    (void)snprintf(path, sizeof path, RESPONSES "/%s", id_of(first));
    json_t *again = ask_json(&c, "GET", path, "", NULL);
    assert_true(json_equal(first, again));
    expect(&c, "GET", "/v1/responses/nobody", NULL, 404, "not_found");
    expect(&c, "DELETE", path, NULL, 200, "\"object\":\"response\",\"deleted\":true}");
    expect(&c, "GET", path, NULL, 404, "not_found");
    expect_response(&c, "say=No", fields, 400, "previous_response_not_found");
    (void)snprintf(fields, sizeof fields, ",\"previous_response_id\":\"%s\"", id_of(second));
    expect_response(&c, "say=Still", fields, 200, "\"text\":\"Still\"");
    json_decref(first);
    json_decref(second);
    json_decref(again);
    http_client_close(&c);
    world_close(&w);
}

static void what_is_not_kept_is_not_found(void **state)
{
    (void)state;
    static const char *const keys[] = {"one", "two"};
    struct world w;
    struct http_client c;
    struct http_reply r;
    char path[128];
    world_open(&w, &(struct server_options){.keep_no_responses = true}, NULL);
    world_connect(&c, &w);
    json_t *response = respond(&c, "say=Hi", "");
    assert_true(json_is_false(json_object_get(response, "store")));
    (void)snprintf(path, sizeof path, RESPONSES "/%s", id_of(response));
    expect(&c, "GET", path, NULL, 404, "not_found");
    expect(&c, "DELETE", path, NULL, 404, "not_found");
    expect_response(&c, "say=Hi", ",\"store\":true", 400, "--max-stored-responses 0");
    json_decref(response);
    http_client_close(&c);
    world_close(&w);
    /* each key finds its own */
    world_open(&w, &(struct server_options){.api_keys = keys, .n_api_key = 2}, NULL);
    world_connect(&c, &w);
    response = ask_json(&c, "POST", RESPONSES, "X-Api-Key: one\r\n", "{\"input\":\"[[say=Hi]]\"}");
    (void)snprintf(path, sizeof path, RESPONSES "/%s", id_of(response));
    expect(&c, "GET", path, NULL, 401, "invalid_api_key");
    ask(&c, &r, "GET", path, "X-Api-Key: two\r\n", NULL);
    assert_reply(&r, 404, "not_found");
    ask(&c, &r, "GET", path, "X-Api-Key: one\r\n", NULL);
    assert_reply(&r, 200, "\"text\":\"Hi\"");
    json_decref(response);
    http_client_close(&c);
    world_close(&w);
    /* the oldest leave */
    world_open(&w, &(struct server_options){.max_stored_responses = 1}, NULL);
    world_connect(&c, &w);
    response = respond(&c, "say=Hi", "");
    (void)snprintf(path, sizeof path, RESPONSES "/%s", id_of(response));
    expect(&c, "GET", path, NULL, 200, "\"text\":\"Hi\"");
    expect_response(&c, "say=Hi", "", 200, "completed");
    expect(&c, "GET", path, NULL, 404, "not_found");
    json_decref(response);
    http_client_close(&c);
    world_close(&w);
}

/* The id of the response that a stream has begun with. */
static void stream_id(struct http_client *c, char *id, size_t bytes)
{
    assert_true(http_client_wait_for(c, "\"created_at\""));
    const char *at = strstr(buf_str(&c->in), "\"id\":\"resp_");
    assert_non_null(at);
    (void)snprintf(id, bytes, "%.*s", (int)strcspn(at + 6, "\""), at + 6);
}

static void what_a_request_brought_is_told(void **state)
{
    (void)state;
    struct world w;
    struct http_client c;
    char path[160];
    world_open(&w, NULL, NULL);
    world_connect(&c, &w);
    json_t *response = respond(&c, "say=Hi", "");
    (void)snprintf(path, sizeof path, RESPONSES "/%s/input_items?order=asc", id_of(response));
    expect(&c, "GET", path, NULL, 200, "\"role\":\"user\",\"content\":\"[[say=Hi]]\"}]");
    (void)snprintf(path, sizeof path, RESPONSES "/%s/input_items?limit=0", id_of(response));
    expect(&c, "GET", path, NULL, 400, "limit is \\\"0\\\", needed is 1 to 100");
    expect(&c, "GET", RESPONSES "/resp_0/input_items", NULL, 404, "no response \\\"resp_0\\\"");
    char count[60];
    (void)snprintf(count, sizeof count,
                   "{\"object\":\"response.input_tokens\",\"input_tokens\":%d}",
                   (int)count_in(response, "input_tokens"));
    expect(&c, "POST", RESPONSES "/input_tokens", "{\"input\":\"[[say=Hi]]\",\"text\":{}}", 200,
           count);
    expect(&c, "POST", RESPONSES "/input_tokens", "{}", 400, "input is missing");
    expect(&c, "GET", RESPONSES "/input_tokens", NULL, 405, "method_not_allowed");
    json_decref(response);
    http_client_close(&c);
    world_close(&w);
}

/* Before the model has said anything. */
static void a_stream_begins_at_once(void **state)
{
    (void)state;
    struct world w;
    struct http_client c;
    char body[1024];
    world_open(&w, NULL, NULL);
    world_connect(&c, &w);
    responses_body(body, sizeof body, "first_ms=60000;say=Hi", ",\"stream\":true");
    assert_true(http_client_send(&c, "POST", RESPONSES, "", body));
    assert_true(http_client_wait_for(&c, "event: response.in_progress"));
    http_client_close(&c);
    wait_for_count(w.engine, fake_engine_n_cancelled, 1);
    world_close(&w);
}

static void one_in_progress_is_cancelled(void **state)
{
    (void)state;
    struct world w;
    struct http_client c, other;
    char body[1024], id[64], path[128];
    world_open(&w, NULL, NULL);
    world_connect(&c, &w);
    world_connect(&other, &w);
    responses_body(body, sizeof body, "step_ms=20;repeat=1000;say=ab", ",\"stream\":true");
    assert_true(http_client_send(&c, "POST", RESPONSES, "", body));
    stream_id(&c, id, sizeof id);
    (void)snprintf(path, sizeof path, RESPONSES "/%s/cancel", id);
    expect(&other, "POST", path, "{}", 200, "\"status\":\"cancelled\"");
    assert_true(http_client_wait_for(&c, "event: response.failed\n"));
    wait_for_count(w.engine, fake_engine_n_cancelled, 1);
    expect(&other, "POST", path, NULL, 400, "has ended; only one in progress can be cancelled");
    *strrchr(path, '/') = '\0';
    expect(&other, "GET", path, NULL, 200, "\"status\":\"cancelled\"");
    expect(&other, "POST", path, NULL, 404, "there is /v1/responses/ID/cancel");
    (void)snprintf(path, sizeof path, RESPONSES "/%s?stream=true", id);
    expect(&other, "GET", path, NULL, 400, "leave stream out");
    expect(&other, "POST", "/v1/responses/resp_0/cancel", NULL, 404, "there is no response");
    http_client_close(&c);
    http_client_close(&other);
    world_close(&w);
}

static void failing_and_leaving_are_as_for_chats(void **state)
{
    (void)state;
    struct world w;
    struct http_client c;
    char body[1024];
    world_open(&w, &(struct server_options){.idle_line_ms = 50}, NULL);
    world_connect(&c, &w);
    responses_body(body, sizeof body, "first_ms=60000;say=Hi", ",\"stream\":true");
    assert_true(http_client_send(&c, "POST", RESPONSES, "", body));
    assert_true(http_client_wait_for(&c, "\r\n1\r\n\n\r\n"));
    http_client_close(&c);
    wait_for_count(w.engine, fake_engine_n_cancelled, 1);
    world_connect(&c, &w);
    expect_response(&c, "step_ms=20;then=fail;say=Hi", ",\"stream\":true", 200,
                    "event: response.failed\ndata: {\"type\":\"response.failed\"");
    http_client_close(&c);
    world_close(&w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_same_as_a_chat),
        cmocka_unit_test(a_conversation_goes_on),
        cmocka_unit_test(what_is_not_kept_is_not_found),
        cmocka_unit_test(what_a_request_brought_is_told),
        cmocka_unit_test(a_stream_begins_at_once),
        cmocka_unit_test(one_in_progress_is_cancelled),
        cmocka_unit_test(failing_and_leaving_are_as_for_chats),
    };
    return cmocka_run_group_tests(tests, world_setup, world_teardown);
}
