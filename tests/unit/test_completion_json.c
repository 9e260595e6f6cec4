/* test_completion_json.c - what an event of a stream says, and the bodies of requests */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "base/json.h"
#include "bench/completion_json.h"

static struct stream_chunk chunk;
static struct buf text;
static fathom_diag fault;

static fathom_err read_chunk(const char *data)
{
    buf_free(&text);
    memset(&fault, 0, sizeof fault);
    return stream_chunk_read(&chunk, data, strlen(data), &text, &fault);
}

static void the_role_alone_is_no_text(void **state)
{
    (void)state;
    assert_int_equal(
        read_chunk("{\"choices\":[{\"delta\":{\"role\":\"assistant\",\"content\":\"\"},"
                   "\"finish_reason\":null}]}"),
        FATHOM_OK);
    assert_false(chunk.has_text);
    assert_false(chunk.has_stop);
}

static void text_comes_under_many_names(void **state)
{
    (void)state;
    static const char *const cases[][2] = {
        {"{\"choices\":[{\"text\":\"a\"}]}", "a"},
        {"{\"choices\":[{\"delta\":{\"content\":\"b\"}}]}", "b"},
        {"{\"choices\":[{\"delta\":{\"reasoning_content\":\"c\",\"reasoning\":\"c\"}}]}", "c"},
        {"{\"choices\":[{\"delta\":{\"reasoning\":\"d\",\"content\":null}}]}", "d"},
        {"{\"choices\":[{\"delta\":{\"tool_calls\":[{\"function\":{\"name\":\"f\","
         "\"arguments\":\"{}\"}}]}}]}",
         "f{}"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        assert_int_equal(read_chunk(cases[i][0]), FATHOM_OK);
        assert_true(chunk.has_text);
        assert_string_equal(buf_str(&text), cases[i][1]);
    }
    buf_free(&text);
}

static void usage_and_ends_are_read(void **state)
{
    (void)state;
    assert_int_equal(
        read_chunk("{\"choices\":[],\"usage\":{\"prompt_tokens\":7,\"completion_tokens\":3,"
                   "\"prompt_tokens_details\":{\"cached_tokens\":4}}}"),
        FATHOM_OK);
    assert_true(chunk.has_usage && chunk.n_input == 7 && chunk.n_output == 3);
    assert_int_equal(chunk.n_cached, 4);
    assert_int_equal(read_chunk("{\"choices\":[{\"text\":\"\",\"finish_reason\":\"length\"}],"
                                "\"usage\":null}"),
                     FATHOM_OK);
    assert_true(chunk.has_stop && !chunk.has_text && !chunk.has_usage);
    assert_int_equal(read_chunk("[DONE]"), FATHOM_OK);
    assert_true(chunk.is_end);
}

static void errors_and_nonsense_are_told(void **state)
{
    (void)state;
    assert_int_equal(read_chunk("{\"error\":{\"message\":\"no more\"}}"), FATHOM_OK);
    assert_true(chunk.is_error);
    assert_string_equal(fault.text, "no more");
    assert_int_equal(read_chunk("{\"error\":\"odd\"}"), FATHOM_OK);
    assert_true(chunk.is_error);
    assert_int_equal(read_chunk("{\"choices\""), FATHOM_EFORMAT);
    assert_int_equal(read_chunk("3"), FATHOM_EFORMAT);
    assert_int_equal(read_chunk("{\"choices\":7,\"usage\":{\"prompt_tokens\":-1}}"), FATHOM_OK);
    assert_int_equal(chunk.n_input, 0);
    buf_free(&text);
}

/* The whole body as a tree; released by the caller. */
static json_t *body_of(const struct request_shape *shape, const char *salt)
{
    static char prompt[] = "a \"b\"\n";
    struct dataset_item item = {prompt, 6, 3, 20};
    struct buf common = {0};
    struct buf body = {0};
    json_t *tree = NULL;
    assert_int_equal(request_shape_write(&common, shape, NULL), FATHOM_OK);
    assert_int_equal(request_body_write(&body, &common, shape->is_chat, &item, salt), FATHOM_OK);
    assert_int_equal(json_read_strict(buf_str(&body), body.len, "body", &tree, NULL), FATHOM_OK);
    buf_free(&common);
    buf_free(&body);
    return tree;
}

static struct request_shape plain_shape(bool is_chat)
{
    double no = SAMPLING_UNSET;
    return (struct request_shape){is_chat, "m", false, 0, no, no, no, no, no, no, no, NULL};
}

static void a_completion_has_prompt_and_length(void **state)
{
    (void)state;
    struct request_shape s = plain_shape(false);
    json_t *b = body_of(&s, "salty");
    assert_string_equal(json_string_value(json_object_get(b, "prompt")), "a \"b\"\n");
    assert_string_equal(json_string_value(json_object_get(b, "cache_salt")), "salty");
    assert_int_equal(json_integer_value(json_object_get(b, "max_tokens")), 20);
    assert_true(json_is_integer(json_object_get(b, "temperature")));
    assert_true(json_is_true(json_object_get(b, "stream")));
    const json_t *options = json_object_get(b, "stream_options");
    assert_true(json_is_true(json_object_get(options, "include_usage")));
    assert_null(json_object_get(b, "top_p"));
    assert_null(json_object_get(b, "ignore_eos"));
    json_decref(b);
}

static void a_chat_has_a_message_and_what_is_added_wins(void **state)
{
    (void)state;
    struct request_shape s = plain_shape(true);
    s.ignore_eos = true;
    s.top_p = 0.5;
    s.logprobs = 3;
    s.extra = "{\"temperature\": 0.25, \"x\": [1]}";
    json_t *b = body_of(&s, NULL);
    const json_t *message = json_array_get(json_object_get(b, "messages"), 0);
    assert_string_equal(json_string_value(json_object_get(message, "role")), "user");
    assert_string_equal(json_string_value(json_object_get(message, "content")), "a \"b\"\n");
    assert_int_equal(json_integer_value(json_object_get(b, "max_completion_tokens")), 20);
    assert_true(json_real_value(json_object_get(b, "temperature")) == 0.25);
    assert_true(json_real_value(json_object_get(b, "top_p")) == 0.5);
    assert_true(json_is_true(json_object_get(b, "logprobs")));
    assert_int_equal(json_integer_value(json_object_get(b, "top_logprobs")), 3);
    assert_true(json_is_array(json_object_get(b, "x")));
    assert_null(json_object_get(b, "cache_salt"));
    json_decref(b);
}

static void extra_members_must_be_an_object(void **state)
{
    (void)state;
    struct request_shape s = plain_shape(false);
    struct buf out = {0};
    s.extra = "[1]";
    assert_int_equal(request_shape_write(&out, &s, &fault), FATHOM_EINVAL);
    s.extra = "{";
    assert_int_equal(request_shape_write(&out, &s, NULL), FATHOM_EFORMAT);
    buf_free(&out);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_role_alone_is_no_text),
        cmocka_unit_test(text_comes_under_many_names),
        cmocka_unit_test(usage_and_ends_are_read),
        cmocka_unit_test(errors_and_nonsense_are_told),
        cmocka_unit_test(a_completion_has_prompt_and_length),
        cmocka_unit_test(a_chat_has_a_message_and_what_is_added_wins),
        cmocka_unit_test(extra_members_must_be_an_object),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
