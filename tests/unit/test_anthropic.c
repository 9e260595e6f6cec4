/* test_anthropic.c - /v1/messages: bodies to chats, events to blocks, streamed and whole */
#include <stdio.h>
#include <string.h>

#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

#include "support/json_tree.h"
#include "support/request_check.h"
#include "support/scene.h"

#define D "｜DSML｜"
#define ASK "\"max_tokens\":9,\"messages\":[{\"role\":\"user\",\"content\":\"x\"}]"
#define TOOL "\"tools\":[{\"name\":\"f\",\"input_schema\":{\"type\":\"object\"}}]"

static const struct api_bounds BOUNDS = {.n_vocab = 1000, .strict = true};

static fathom_err parse(struct api_request *r, enum api_kind api, const char *body,
                        struct api_error *e)
{
    *e = (struct api_error){0};
    return api_request_parse(r, api, body, strlen(body), &BOUNDS, e);
}

/* ---- bodies -------------------------------------------------------------------------------- */

struct refusal {
    const char *body;
    const char *param;
    const char *message;
};

#define MESSAGES(list) "{\"max_tokens\":9,\"messages\":" list "}"
#define USER(blocks) MESSAGES("[{\"role\":\"user\",\"content\":" blocks "}]")
#define ASSISTANT(blocks) MESSAGES("[{\"role\":\"assistant\",\"content\":" blocks "}]")

static const struct refusal refusals[] = {
    {"{}", "messages", "messages is missing, an array of messages is needed"},
    {"{\"messages\":[{\"role\":\"user\",\"content\":\"x\"}]}", "max_tokens",
     "max_tokens is missing, an integer of at least 1 is needed"},
    {MESSAGES("{}"), "messages", "messages is an object, needed is an array of messages"},
    {MESSAGES("[]"), "messages", "messages is empty, at least one message is needed"},
    {MESSAGES("[{\"role\":\"system\",\"content\":[{\"type\":\"text\",\"text\":"
              "\"x-anthropic-billing-header: a\"}]}]"),
     "messages", "messages say only what to bill, at least one message is needed"},
    {MESSAGES("[1]"), "messages[0]",
     "messages[0] is an integer, needed is an object with role and content"},
    {MESSAGES("[{\"role\":\"tool\",\"content\":\"x\"}]"), "messages[0].role",
     "messages[0].role is \"tool\", needed is user, assistant or system"},
    {USER("[{\"type\":\"text\",\"text\":\"x\",\"citations\":[{}]}]"),
     "messages[0].content[0].citations",
     "messages[0].content[0].citations is not supported: write sources into the text"},
    {"{" ASK ",\"speed\":\"fast\"}", "speed", "speed is only supported as \"standard\""},
    {USER("[]"), "messages[0].content",
     "messages[0].content is an empty array, needed is a string or an array of blocks that is not "
     "empty"},
    {USER("[{\"type\":\"image\",\"source\":{}}]"), "messages[0].content[0].type",
     "messages[0].content[0].type is \"image\", which is not supported; text and tool_result are "
     "in a user's message"},
    {USER("[{\"type\":\"document\",\"source\":{}}]"), "messages[0].content[0].type",
     "messages[0].content[0].type is \"document\", which is not supported; text and tool_result "
     "are in a user's message"},
    {USER("[{\"type\":\"text\",\"text\":1}]"), "messages[0].content[0].text",
     "messages[0].content[0].text is an integer, needed is a string"},
    {USER("[{\"type\":\"text\",\"text\":\"x\",\"wat\":1}]"), "messages[0].content[0].wat",
     "messages[0].content[0].wat is not known here; leave it out"},
    {USER("[{\"type\":\"tool_result\",\"content\":\"x\"}]"), "messages[0].content[0].tool_use_id",
     "messages[0].content[0].tool_use_id is absent, needed is a string"},
    {USER("[{\"type\":\"tool_result\",\"tool_use_id\":\"t\",\"content\":[{\"type\":\"image\"}]}]"),
     "messages[0].content[0].content[0].type",
     "messages[0].content[0].content[0].type is \"image\", which is not supported; only text is"},
    {ASSISTANT("[{\"type\":\"redacted_thinking\",\"data\":\"x\"}]"), "messages[0].content[0].type",
     "messages[0].content[0].type is \"redacted_thinking\", which is not supported; text, thinking "
     "and tool_use are in an assistant's message"},
    {ASSISTANT("[{\"type\":\"tool_use\",\"id\":\"t\",\"name\":\"f\",\"input\":\"{}\"}]"),
     "messages[0].content[0].input",
     "messages[0].content[0].input is a string, needed is an object"},
    {ASSISTANT("[{\"type\":\"tool_use\",\"id\":\"t\",\"name\":\"f\",\"input\":{}}]"), "messages",
     "the last message has a tool_use, needed is a message with its tool_result after it"},
    {"{" ASK ",\"system\":7}", "system",
     "system is an integer, needed is a string or an array of text blocks"},
    {"{" ASK ",\"wat\":7}", "wat", "wat is no field of /v1/messages; leave it out"},
    {"{" ASK ",\"n\":2}", "n", "n is no field of /v1/messages; /v1/chat/completions has it"},
    {"{" ASK ",\"max_tokens\":0}", "max_tokens", "max_tokens is 0, needed is 1 to 2147483647"},
    {"{" ASK ",\"temperature\":3}", "temperature", "temperature is 3, needed is 0 to 2"},
    {"{" ASK ",\"stop_sequences\":[\"a\",\"\"]}", "stop_sequences[1]",
     "stop_sequences[1] is an empty string, which would stop at once"},
    {"{" ASK ",\"tools\":[{\"type\":\"web_search_20250305\",\"name\":\"web_search\"}]}",
     "tools[0].type",
     "tools[0].type is \"web_search_20250305\", a tool that does not run here; only functions of "
     "the client are supported"},
    {"{" ASK ",\"tools\":[{\"name\":\"f\"}]}", "tools[0].input_schema",
     "tools[0].input_schema is absent, needed is an object (a JSON schema)"},
    {"{" ASK ",\"tools\":[{\"name\":\"f\",\"input_schema\":{},\"wat\":1}]}", "tools[0].wat",
     "tools[0].wat is not known here; leave it out"},
    {"{" ASK ",\"tool_choice\":{\"type\":\"maybe\"}}", "tool_choice.type",
     "tool_choice.type is \"maybe\", needed is auto, any, tool or none"},
    {"{" ASK ",\"tool_choice\":{\"type\":\"tool\"}}", "tool_choice.name",
     "tool_choice.name is absent, needed is a string"},
    {"{" ASK ",\"thinking\":{\"type\":\"enabled\",\"budget_tokens\":0}}", "thinking.budget_tokens",
     "thinking.budget_tokens is 0, needed is at least 1"},
    {"{" ASK ",\"thinking\":{\"type\":\"wat\"}}", "thinking.type",
     "thinking.type is \"wat\", needed is enabled, disabled or auto"},
    {"{" ASK ",\"thinking\":{\"type\":\"enabled\",\"display\":1}}", "thinking.display",
     "thinking.display is not known, needed is summarized (all of it is told) or omitted"},
    {"{" ASK ",\"output_config\":{\"effort\":\"wat\"}}", "output_config.effort",
     "output_config.effort is \"wat\", needed is low, medium, high, xhigh or max"},
    {"{" ASK ",\"output_config\":{\"format\":{\"type\":\"wat\"}}}", "output_config.format.type",
     "output_config.format.type is \"wat\", needed is json_schema"},
    {"{" ASK ",\"context_management\":{\"edits\":[{\"type\":\"clear_tool_uses_20250919\"}]}}",
     "context_management",
     "context_management.edits[0] is \"clear_tool_uses_20250919\", which is not supported: send "
     "the messages as they shall be read"},
    {"{" ASK ",\"mcp_servers\":[{}]}", "mcp_servers",
     "mcp_servers is not supported: tools run at the client; list them"},
};

static void test_refusals(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof refusals / sizeof refusals[0]; i++) {
        const struct refusal *c = &refusals[i];
        check_refused(API_MESSAGES, &BOUNDS, c->body, c->param, c->message);
    }
}

/* A body of messages and the chat that means the same. */
struct translation {
    const char *fields;
    const char *messages;
    bool continues;
};

static const struct translation translations[] = {
    {ASK, "[{\"role\":\"user\",\"content\":\"x\"}]", false},
    {ASK ",\"system\":\"s\"",
     "[{\"role\":\"system\",\"content\":\"s\"},{\"role\":\"user\",\"content\":\"x\"}]", false},
    {"\"max_tokens\":9,\"messages\":[{\"role\":\"user\",\"content\":\"x\"},{\"role\":\"system\","
     "\"content\":[{\"type\":\"text\",\"text\":\"s\"}]},{\"role\":\"user\",\"content\":\"y\"}]",
     "[{\"role\":\"user\",\"content\":\"x\"},{\"role\":\"system\",\"content\":[{\"type\":\"text\","
     "\"text\":\"s\"}]},{\"role\":\"user\",\"content\":\"y\"}]",
     false},
    {ASK ",\"system\":[{\"type\":\"text\",\"text\":\"s\",\"cache_control\":{}}]",
     "[{\"role\":\"system\",\"content\":[{\"type\":\"text\",\"text\":\"s\"}]},{\"role\":\"user\","
     "\"content\":\"x\"}]",
     false},
    {"\"max_tokens\":9,\"messages\":[{\"role\":\"user\",\"content\":\"x\"},{\"role\":\"assistant\","
     "\"content\":\"The\"}]",
     "[{\"role\":\"user\",\"content\":\"x\"},{\"role\":\"assistant\",\"content\":\"The\"}]", true},
    {"\"max_tokens\":9,\"messages\":["
     "{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":\"a\"},"
     "{\"type\":\"text\",\"text\":\"b\",\"citations\":null}]},"
     "{\"role\":\"assistant\",\"content\":["
     "{\"type\":\"thinking\",\"thinking\":\"why\",\"signature\":\"s\"},"
     "{\"type\":\"text\",\"text\":\"one\"},"
     "{\"type\":\"tool_use\",\"id\":\"t1\",\"name\":\"f\",\"input\":{\"k\":1}},"
     "{\"type\":\"text\",\"text\":\"two\"},"
     "{\"type\":\"tool_use\",\"id\":\"t2\",\"name\":\"g\",\"input\":{}}]},"
     "{\"role\":\"user\",\"content\":["
     "{\"type\":\"tool_result\",\"tool_use_id\":\"t1\",\"content\":\"r1\",\"is_error\":true},"
     "{\"type\":\"tool_result\",\"tool_use_id\":\"t2\"},"
     "{\"type\":\"text\",\"text\":\"go\"}]}]",
     "[{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":\"a\"},{\"type\":\"text\","
     "\"text\":\"b\"}]},"
     "{\"role\":\"assistant\",\"content\":\"onetwo\",\"reasoning_content\":\"why\",\"tool_calls\":["
     "{\"id\":\"t1\",\"type\":\"function\",\"function\":{\"name\":\"f\",\"arguments\":{\"k\":1}}},"
     "{\"id\":\"t2\",\"type\":\"function\",\"function\":{\"name\":\"g\",\"arguments\":{}}}]},"
     "{\"role\":\"tool\",\"tool_call_id\":\"t1\",\"content\":\"r1\"},"
     "{\"role\":\"tool\",\"tool_call_id\":\"t2\",\"content\":\"\"},"
     "{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":\"go\"}]}]",
     false},
};

static void test_messages_become_a_chat(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof translations / sizeof translations[0]; i++) {
        const struct translation *t = &translations[i];
        struct api_request r;
        char body[2048];
        (void)snprintf(body, sizeof body, "{%s}", t->fields);
        check_becomes(&r, API_MESSAGES, &BOUNDS, body, t->messages);
        assert_int_equal(r.continue_final_message, t->continues);
        assert_int_equal(r.add_generation_prompt, !t->continues);
        api_request_free(&r);
    }
}

static void test_every_value_arrives(void **state)
{
    (void)state;
    struct api_request r;
    struct api_error e;
    const char *body =
        "{" ASK ",\"model\":\"x\",\"stream\":true,\"stop_sequences\":[\"a\",\"bc\"],"
        "\"temperature\":0.5,\"top_p\":0.25,\"top_k\":7,\"seed\":3,"
        "\"thinking\":{\"type\":\"enabled\",\"budget_tokens\":1024,\"display\":\"omitted\"},"
        "\"tools\":[{\"name\":\"f\",\"description\":\"d\",\"input_schema\":{\"type\":\"object\"},"
        "\"cache_control\":{\"type\":\"ephemeral\"}}],\"metadata\":{\"user_id\":\"u\"},"
        "\"tool_choice\":{\"type\":\"auto\",\"disable_parallel_tool_use\":true}}";
    if (parse(&r, API_MESSAGES, body, &e)) fail_msg("%s", e.diag.text);
    assert_string_equal(r.model, "x");
    assert_true(r.stream && r.hide_thinking && r.thinking == API_ON);
    assert_int_equal(r.thinking_budget, 1024);
    assert_true(r.max_tokens == 9 && r.n_stop == 2 && r.n == 1);
    assert_true(r.sampling.temperature == 0.5f && r.sampling.top_p == 0.25f);
    assert_true(r.sampling.top_k == 7 && r.sampling.has_seed && r.sampling.seed == 3);
    json_t *want =
        json_tree_of("[{\"type\":\"function\",\"function\":{\"name\":\"f\",\"description\":"
                     "\"d\",\"parameters\":{\"type\":\"object\"}}}]");
    assert_true(json_equal(r.tools, want));
    json_decref(want);
    api_request_drop_body(&r);
    assert_null(r.messages);
    api_request_free(&r);
    /* none hides the tools; counting takes no sampling */
    assert_int_equal(
        parse(&r, API_MESSAGES, "{" ASK "," TOOL ",\"tool_choice\":{\"type\":\"none\"}}", &e), 0);
    assert_null(r.tools);
    api_request_free(&r);
    assert_int_equal(
        parse(&r, API_COUNT_TOKENS,
              "{\"messages\":[{\"role\":\"user\",\"content\":\"x\"}],\"system\":\"s\"}", &e),
        0);
    assert_int_equal(r.n, 0);
    api_request_free(&r);
    assert_int_equal(parse(&r, API_COUNT_TOKENS, "{" ASK "}", &e), FATHOM_EINVAL);
    assert_string_equal(e.param, "max_tokens");
    api_request_free(&r);
}

/* ---- answers ------------------------------------------------------------------------------- */

#define SAID                                                                                       \
    "why</think>Ok.\n\n<" D "function_calls>\n<" D "invoke name=\"f\">\n<" D                       \
    "parameter name=\"city\" string=\"true\">Rome</" D "parameter>\n</" D "invoke>\n<" D           \
    "invoke name=\"g\">\n</" D "invoke>\n</" D "function_calls>"

/* The content that SAID makes, ids and signatures left out. */
#define BLOCKS                                                                                     \
    "[{\"type\":\"thinking\",\"thinking\":\"why\"},{\"type\":\"text\",\"text\":\"Ok.\"},"          \
    "{\"type\":\"tool_use\",\"name\":\"f\",\"input\":{\"city\":\"Rome\"}},"                        \
    "{\"type\":\"tool_use\",\"name\":\"g\",\"input\":{}}]"

static struct scene *play(const char *fields, const char *said, fathom_finish why)
{
    char body[512];
    (void)snprintf(body, sizeof body, "{" ASK "," TOOL "%s}", fields);
    return scene_play(API_MESSAGES, body, said, why);
}

/* Takes out what differs from run to run, after a look at it. */
static void strip_blocks(json_t *content)
{
    size_t i;
    json_t *block;
    json_array_foreach (content, i, block) {
        const char *type = json_string_value(json_object_get(block, "type"));
        if (strcmp(type, "tool_use") == 0) {
            const char *id = json_string_value(json_object_get(block, "id"));
            assert_int_equal(strncmp(id, "toolu_", 6), 0);
            (void)json_object_del(block, "id");
        } else if (strcmp(type, "thinking") == 0) {
            assert_true(json_string_length(json_object_get(block, "signature")) == 16);
            (void)json_object_del(block, "signature");
        }
    }
}

#define USAGE                                                                                      \
    "{\"input_tokens\":2,\"cache_creation_input_tokens\":0,\"cache_read_input_tokens\":4,"         \
    "\"output_tokens\":%u,\"output_tokens_details\":{\"thinking_tokens\":4}}"

static void assert_usage(const struct scene *s, const json_t *holder)
{
    char want[256];
    (void)snprintf(want, sizeof want, USAGE, s->answer.choices[0].n_token);
    json_tree_expect(holder, "usage", want);
}

static void test_whole_message(void **state)
{
    (void)state;
    struct scene *s = play("", SAID, FATHOM_FINISH_STOP);
    json_t *root = json_tree_of(scene_out(s));
    json_tree_expect(root, "type", "\"message\"");
    json_tree_expect(root, "role", "\"assistant\"");
    json_tree_expect(root, "model", "\"m\"");
    json_tree_expect(root, "stop_reason", "\"tool_use\"");
    json_tree_expect(root, "stop_sequence", "null");
    strip_blocks(json_object_get(root, "content"));
    json_tree_expect(root, "content", BLOCKS);
    assert_usage(s, root);
    assert_int_equal(strncmp(s->answer.id, "msg_", 4), 0);
    json_decref(root);
    scene_close(s);
}

static void test_stop_reasons(void **state)
{
    (void)state;
    static const struct {
        const char *said, *fields, *part;
        fathom_finish why;
    } cases[] = {
        {"a</think>b", "", "\"stop_reason\":\"end_turn\",\"stop_sequence\":null",
         FATHOM_FINISH_STOP},
        {"a</think>b", "", "\"stop_reason\":\"max_tokens\",\"stop_sequence\":null",
         FATHOM_FINISH_LENGTH},
        {"a</think>bSTOPc", ",\"stop_sequences\":[\"STOP\"]",
         "\"stop_reason\":\"stop_sequence\",\"stop_sequence\":\"STOP\"", FATHOM_FINISH_STOP},
        {"a</think>bSTOPc", ",\"stop_sequences\":[\"STOP\"],\"stream\":true",
         "\"delta\":{\"stop_reason\":\"stop_sequence\",\"stop_sequence\":\"STOP\"}",
         FATHOM_FINISH_STOP},
        {"", "", "\"content\":[],\"stop_reason\":\"end_turn\"", FATHOM_FINISH_STOP},
        {"a</think>b", ",\"thinking\":{\"type\":\"enabled\",\"display\":\"omitted\"}",
         "{\"type\":\"thinking\",\"thinking\":\"\",\"signature\":", FATHOM_FINISH_STOP},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct scene *s = play(cases[i].fields, cases[i].said, cases[i].why);
        if (!strstr(scene_out(s), cases[i].part)) {
            fail_msg("%s\nis not in %s", cases[i].part, scene_out(s));
        }
        scene_close(s);
    }
}

/* What a client makes of a stream. */
struct reader {
    json_t *content;
    struct buf text, input, order;
};

static void end_block(struct reader *r, json_t *block)
{
    const char *type = json_string_value(json_object_get(block, "type"));
    const char *key = strcmp(type, "tool_use") == 0   ? "input"
                      : strcmp(type, "thinking") == 0 ? "thinking"
                                                      : "text";
    json_t *value = key[0] == 'i' ? json_tree_of(r->input.len ? buf_str(&r->input) : "{}")
                                  : json_string(buf_str(&r->text));
    (void)json_object_set_new(block, key, value);
    buf_clear(&r->text);
    buf_clear(&r->input);
}

static void take_delta(struct reader *r, const json_t *event)
{
    static const char *const keys[] = {"text", "thinking", "partial_json", "signature"};
    const json_t *delta = json_object_get(event, "delta");
    json_t *block =
        json_array_get(r->content, (size_t)json_integer_value(json_object_get(event, "index")));
    assert_ptr_equal(block, json_array_get(r->content, json_array_size(r->content) - 1));
    for (size_t i = 0; i < 4; i++) {
        json_t *v = json_object_get(delta, keys[i]);
        if (!v) continue;
        if (i == 3) (void)json_object_set(block, "signature", v);
        if (i < 3) (void)buf_add_str(i == 2 ? &r->input : &r->text, json_string_value(v));
    }
}

static void read_stream(struct reader *r, const struct scene *s)
{
    r->content = json_array();
    for (const char *at = scene_out(s); *at;) {
        json_t *e = scene_next_event(&at);
        const char *type = json_string_value(json_object_get(e, "type"));
        if (strcmp(type, "content_block_start") == 0) {
            assert_int_equal(json_integer_value(json_object_get(e, "index")),
                             json_array_size(r->content));
            (void)json_array_append(r->content, json_object_get(e, "content_block"));
        } else if (strcmp(type, "content_block_delta") == 0) {
            take_delta(r, e);
        } else if (strcmp(type, "content_block_stop") == 0) {
            end_block(r, json_array_get(r->content, json_array_size(r->content) - 1));
        } else if (strcmp(type, "message_delta") == 0) {
            json_tree_expect(e, "delta", "{\"stop_reason\":\"tool_use\",\"stop_sequence\":null}");
            assert_usage(s, e);
        } else if (strcmp(type, "message_start") == 0) {
            json_tree_expect(json_object_get(e, "message"), "stop_reason", "null");
            json_tree_expect(json_object_get(e, "message"), "content", "[]");
        }
        if (strcmp(type, "content_block_delta") != 0) (void)buf_printf(&r->order, "%s ", type);
        json_decref(e);
    }
}

static void test_stream_is_the_whole_in_pieces(void **state)
{
    (void)state;
    struct scene *s = play(",\"stream\":true", SAID, FATHOM_FINISH_STOP);
    struct reader r = {0};
    read_stream(&r, s);
    json_t *want = json_tree_of(BLOCKS);
    strip_blocks(r.content);
    assert_true(json_equal(r.content, want));
    assert_string_equal(
        buf_str(&r.order),
        "message_start content_block_start content_block_stop content_block_start "
        "content_block_stop content_block_start content_block_stop content_block_start "
        "content_block_stop message_delta message_stop ");
    json_decref(want);
    json_decref(r.content);
    buf_free(&r.text);
    buf_free(&r.input);
    buf_free(&r.order);
    scene_close(s);
}

static void test_pings_and_errors(void **state)
{
    (void)state;
    struct scene *s = scene_open(API_MESSAGES, "{" ASK ",\"stream\":true}", false);
    assert_int_equal(answer_keep_alive(&s->answer), 0);
    assert_int_equal(answer_keep_alive(&s->answer), 0);
    assert_int_equal(strncmp(scene_out(s), "event: message_start\n", 21), 0);
    const char *ping = "event: ping\ndata: {\"type\":\"ping\"}\n\n";
    const char *at = strstr(scene_out(s), ping);
    assert_non_null(at);
    assert_non_null(strstr(at + 1, ping));
    buf_clear(&s->answer.out);
    struct api_error e = {0};
    (void)api_error_set(&e, 503, "engine_failed", NULL, "the engine has failed");
    assert_int_equal(answer_fail(&s->answer, &e), 0);
    assert_string_equal(scene_out(s),
                        "event: error\ndata: {\"type\":\"error\",\"error\":{\"type\":\"api_error\","
                        "\"message\":\"the engine has failed\"}}\n\n");
    assert_int_equal(answer_keep_alive(&s->answer), 0);
    assert_null(strstr(scene_out(s), "ping"));
    scene_close(s);
}

static void test_count_is_the_prompts(void **state)
{
    (void)state;
    struct scene *s = scene_open(API_COUNT_TOKENS,
                                 "{\"messages\":[{\"role\":\"user\",\"content\":\"x\"}]}", false);
    assert_int_equal(s->answer.n_choice, 0);
    assert_int_equal(answer_close(&s->answer), 0);
    assert_string_equal(scene_out(s), "{\"input_tokens\":6}");
    scene_close(s);
}

static void test_each_failing_allocation_is_clean(void **state)
{
    (void)state;
    static const char *const bodies[] = {"{" ASK "," TOOL ",\"system\":[{\"type\":\"text\","
                                         "\"text\":\"s\"}],\"stop_sequences\":[\"zz\"]}",
                                         "{" ASK "," TOOL ",\"stream\":true}"};
    for (int i = 0; i < 2; i++) scene_fail_each(API_MESSAGES, bodies[i], SAID);
}

static void test_each_failing_allocation_of_a_tree_is_clean(void **state)
{
    (void)state;
    char body[2048];
    const size_t last = sizeof translations / sizeof translations[0] - 1;
    (void)snprintf(body, sizeof body,
                   "{%s,\"system\":\"s\"," TOOL ",\"tool_choice\":{\"type\":\"auto\","
                   "\"disable_parallel_tool_use\":true}}",
                   translations[last].fields);
    check_failing_trees(API_MESSAGES, &BOUNDS, body);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_messages_become_a_chat),
        cmocka_unit_test(test_every_value_arrives),
        cmocka_unit_test(test_whole_message),
        cmocka_unit_test(test_stop_reasons),
        cmocka_unit_test(test_stream_is_the_whole_in_pieces),
        cmocka_unit_test(test_pings_and_errors),
        cmocka_unit_test(test_count_is_the_prompts),
        cmocka_unit_test(test_each_failing_allocation_is_clean),
        cmocka_unit_test(test_each_failing_allocation_of_a_tree_is_clean),
    };
    return cmocka_run_group_tests(tests, scene_setup, scene_teardown);
}
