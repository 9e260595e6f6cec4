/* test_responses.c - /v1/responses: bodies to chats, what is said to items, streamed and whole */
#include "server/api/responses_form.h"

#include <stdio.h>
#include <string.h>

#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

#include "support/json_tree.h"
#include "support/request_check.h"
#include "support/scene.h"

#define D "｜DSML｜"
#define ASK "\"input\":\"x\""
#define TOOL "\"tools\":[{\"type\":\"function\",\"name\":\"f\"}]"

/* One response is stored, "resp_1": a question and its answer. */
#define STORED                                                                                     \
    "[{\"role\":\"user\",\"content\":\"q\"},"                                                      \
    "{\"id\":\"rs_1\",\"type\":\"reasoning\",\"status\":\"completed\",\"summary\":[],"             \
    "\"content\":[{\"type\":\"reasoning_text\",\"text\":\"why\"}]},"                               \
    "{\"id\":\"fc_1\",\"type\":\"function_call\",\"status\":\"completed\",\"call_id\":\"c1\","     \
    "\"name\":\"f\",\"arguments\":\"{}\"}]"

static fathom_err recall(void *arg, const char *id, json_t *items, struct api_error *e)
{
    (void)arg;
    if (strcmp(id, "resp_1") != 0) {
        return api_error_set(e, 400, "previous_response_not_found", "previous_response_id",
                             "there is no response %s", id);
    }
    json_t *stored = json_loads(STORED, 0, NULL);
    bool ok = json_array_extend(items, stored) == 0;
    json_decref(stored);
    return ok ? FATHOM_OK : FATHOM_ENOMEM;
}

static const struct api_bounds BOUNDS = {.n_vocab = 1000, .strict = true, .recall = recall};
static const struct api_bounds NO_STORE = {.n_vocab = 1000, .strict = true};

static fathom_err parse(struct api_request *r, const struct api_bounds *bounds, const char *body,
                        struct api_error *e)
{
    *e = (struct api_error){0};
    return api_request_parse(r, API_RESPONSES, body, strlen(body), bounds, e);
}

/* ---- bodies -------------------------------------------------------------------------------- */

struct refusal {
    const char *body;
    const char *param;
    const char *message;
};

#define INPUT(items) "{\"input\":[" items "]}"

static const struct refusal refusals[] = {
    {"{}", "input", "input is missing, a string or an array of items is needed"},
    {"{\"input\":7}", "input", "input is an integer, needed is a string or an array of items"},
    {"{\"input\":[]}", "input", "input is empty, at least one item is needed"},
    {INPUT("1"), "input[0]", "input[0] is an integer, needed is an object (an item)"},
    {INPUT("{}"), "input[0].role", "input[0].role is absent, needed is a string"},
    {INPUT("{\"type\":\"reasoning\",\"content\":\"x\"}"), "input[0].content",
     "input[0].content is a string, needed is an array of parts"},
    {INPUT("{\"type\":\"reasoning\",\"summary\":{}}"), "input[0].summary",
     "input[0].summary is an object, needed is an array of parts"},
    {INPUT("{\"role\":\"tool\",\"content\":\"x\"}"), "input[0].role",
     "input[0].role is \"tool\", needed is user, assistant, system or developer"},
    {INPUT("{\"role\":\"user\"}"), "input[0].content",
     "input[0].content is absent, needed is a string or an array of parts that is not empty"},
    {INPUT("{\"role\":\"user\",\"content\":[{\"type\":\"input_image\",\"image_url\":\"x\"}]}"),
     "input[0].content[0].type",
     "input[0].content[0].type is \"input_image\", which is not supported; only input_text is"},
    {INPUT("{\"role\":\"user\",\"content\":\"x\",\"wat\":1}"), "input[0].wat",
     "input[0].wat is not known here; leave it out"},
    {INPUT("{\"role\":\"assistant\",\"content\":[{\"type\":\"input_text\",\"text\":\"x\"}]}"),
     "input[0].content[0].type",
     "input[0].content[0].type is \"input_text\", which is not supported; only output_text is"},
    {INPUT("{\"type\":\"web_search_call\",\"id\":\"x\"}"), "input[0].type",
     "input[0].type is \"web_search_call\", which is not supported; message, reasoning, "
     "function_call and function_call_output are"},
    {INPUT("{\"type\":\"item_reference\",\"id\":\"x\"}"), "input[0].type",
     "input[0].type is \"item_reference\", which is not supported; message, reasoning, "
     "function_call and function_call_output are"},
    {INPUT("{\"type\":\"reasoning\",\"summary\":[],\"encrypted_content\":\"zzz\"}"),
     "input[0].encrypted_content",
     "input[0].encrypted_content cannot be read here: it comes from another server; leave the item "
     "out"},
    {INPUT("{\"type\":\"function_call\",\"call_id\":\"c\",\"name\":\"f\",\"arguments\":[1]}"),
     "input[0].arguments", "input[0].arguments is an array, needed is a string"},
    {INPUT("{\"type\":\"function_call\",\"name\":\"f\",\"arguments\":\"{}\"}"), "input[0].call_id",
     "input[0].call_id is absent, needed is a string"},
    {INPUT("{\"type\":\"function_call_output\",\"call_id\":\"c\"}"), "input[0].output",
     "input[0].output is absent, needed is a string or an array of parts that is not empty"},
    {"{" ASK ",\"whatever\":1}", "whatever", "whatever is no field of /v1/responses; leave it out"},
    {"{" ASK ",\"tool_choise\":1}", "tool_choise",
     "tool_choise is no field of /v1/responses; did you mean tool_choice?"},
    {"{" ASK ",\"messages\":[1]}", "messages", "messages is not supported: use input"},
    {"{" ASK ",\"max_tokens\":4}", "max_tokens",
     "max_tokens is not supported: use max_output_tokens"},
    {"{" ASK ",\"background\":true}", "background",
     "background is not supported: an answer lives as long as its connection; stream it"},
    {"{" ASK ",\"conversation\":\"c\"}", "conversation",
     "conversation is not supported: use previous_response_id"},
    {"{" ASK ",\"truncation\":\"some\"}", "truncation",
     "truncation is not known, needed is disabled, or auto, which is the same here: what is too "
     "long is refused"},
    {"{" ASK ",\"include\":[\"wat.results\"]}", "include[0]",
     "include[0] is \"wat.results\", which is not supported; "
     "message.output_text.logprobs and reasoning.encrypted_content are"},
    {"{" ASK ",\"tools\":[{\"type\":\"web_search\"}]}", "tools[0].type",
     "tools[0].type is \"web_search\", a tool that does not run here; only functions of the "
     "client are supported"},
    {"{" ASK ",\"tools\":[{\"type\":\"function\"}]}", "tools[0].name",
     "tools[0].name is absent, needed is a string"},
    {"{" ASK ",\"tool_choice\":{\"type\":\"file_search\"}}", "tool_choice.type",
     "tool_choice.type is \"file_search\", which is not supported; only \"function\" is"},
    {"{" ASK ",\"reasoning\":{\"summary\":\"wat\"}}", "reasoning.summary",
     "reasoning.summary is not known, needed is auto, concise or detailed"},
    {"{" ASK ",\"reasoning\":{\"effort\":1}}", "reasoning.effort",
     "reasoning.effort is an integer, needed is a string"},
    {"{" ASK ",\"reasoning\":{\"wat\":1}}", "reasoning.wat",
     "reasoning.wat is not known here; leave it out"},
    {"{" ASK ",\"text\":{\"verbosity\":\"low\"}}", "text.verbosity",
     "text.verbosity is only supported as \"medium\": ask for it in a message"},
    {"{" ASK ",\"text\":{\"format\":{\"type\":\"wat\"}}}", "text.format.type",
     "text.format.type is \"wat\", needed is text, json_object or json_schema"},
    {"{" ASK ",\"text\":{\"format\":{\"type\":\"json_schema\",\"name\":\"n\"}}}",
     "text.format.schema", "text.format.schema is absent, needed is an object (a JSON schema)"},
    {"{" ASK ",\"metadata\":{\"k\":1}}", "metadata.k",
     "metadata.k is an integer, needed is a string"},
    {"{" ASK ",\"stream_options\":{}}", "stream_options",
     "stream_options is only taken when stream is true"},
    {"{" ASK ",\"max_output_tokens\":0}", "max_output_tokens",
     "max_output_tokens is 0, needed is 1 to 2147483647"},
    {"{" ASK ",\"previous_response_id\":\"resp_2\"}", "previous_response_id",
     "there is no response resp_2"},
    {"{" ASK ",\"store\":2}", "store", "store is an integer, needed is a boolean"},
};

static void test_refusals(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof refusals / sizeof refusals[0]; i++) {
        const struct refusal *c = &refusals[i];
        check_refused(API_RESPONSES, &BOUNDS, c->body, c->param, c->message);
    }
}

/* A body and the chat that means the same. */
static const char *const translations[][2] = {
    {ASK, "[{\"role\":\"user\",\"content\":\"x\"}]"},
    {ASK ",\"instructions\":\"s\"",
     "[{\"role\":\"system\",\"content\":\"s\"},{\"role\":\"user\",\"content\":\"x\"}]"},
    {"\"input\":["
     "{\"role\":\"developer\",\"content\":\"d\"},"
     "{\"type\":\"message\",\"role\":\"user\",\"content\":[{\"type\":\"input_text\",\"text\":"
     "\"a\"},{\"type\":\"input_text\",\"text\":\"b\"}]},"
     "{\"type\":\"reasoning\",\"id\":\"r\",\"summary\":[{\"type\":\"summary_text\",\"text\":\"s\"}]"
     ","
     "\"content\":[{\"type\":\"reasoning_text\",\"text\":\"why\"}]},"
     "{\"type\":\"message\",\"role\":\"assistant\",\"id\":\"m\",\"status\":\"completed\","
     "\"content\":[{\"type\":\"output_text\",\"text\":\"one\",\"annotations\":[]}]},"
     "{\"type\":\"function_call\",\"call_id\":\"c1\",\"name\":\"f\",\"arguments\":\"{\\\"k\\\":1}"
     "\"},"
     "{\"type\":\"function_call\",\"call_id\":\"c2\",\"name\":\"g\",\"arguments\":\"[cut\"},"
     "{\"role\":\"assistant\",\"content\":\"two\"},"
     "{\"type\":\"function_call_output\",\"call_id\":\"c1\",\"output\":\"r1\"},"
     "{\"type\":\"function_call_output\",\"call_id\":\"c2\",\"output\":[{\"type\":\"input_text\","
     "\"text\":\"r2\"}]},"
     "{\"role\":\"assistant\",\"content\":\"p\"},{\"role\":\"assistant\",\"content\":\"q\"},"
     "{\"type\":\"reasoning\",\"summary\":[{\"type\":\"summary_text\",\"text\":\"sum\"}]}]",
     "[{\"role\":\"developer\",\"content\":\"d\"},"
     "{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":\"a\"},{\"type\":\"text\","
     "\"text\":\"b\"}]},"
     "{\"role\":\"assistant\",\"content\":\"onetwo\",\"reasoning_content\":\"why\",\"tool_calls\":["
     "{\"id\":\"c1\",\"type\":\"function\",\"function\":{\"name\":\"f\",\"arguments\":"
     "\"{\\\"k\\\":1}\"}},"
     "{\"id\":\"c2\",\"type\":\"function\",\"function\":{\"name\":\"g\",\"arguments\":\"[cut\"}}]},"
     "{\"role\":\"tool\",\"tool_call_id\":\"c1\",\"content\":\"r1\"},"
     "{\"role\":\"tool\",\"tool_call_id\":\"c2\",\"content\":[{\"type\":\"text\",\"text\":\"r2\"}]}"
     ","
     "{\"role\":\"assistant\",\"content\":\"p\",\"reasoning_content\":\"\"},"
     "{\"role\":\"assistant\",\"content\":\"q\",\"reasoning_content\":\"\"},"
     "{\"role\":\"assistant\",\"content\":\"\",\"reasoning_content\":\"sum\"}]"},
    {"\"previous_response_id\":\"resp_1\",\"instructions\":\"s\",\"input\":["
     "{\"type\":\"function_call_output\",\"call_id\":\"c1\",\"output\":\"r\"}]",
     "[{\"role\":\"system\",\"content\":\"s\"},{\"role\":\"user\",\"content\":\"q\"},"
     "{\"role\":\"assistant\",\"content\":\"\",\"reasoning_content\":\"why\",\"tool_calls\":["
     "{\"id\":\"c1\",\"type\":\"function\",\"function\":{\"name\":\"f\",\"arguments\":\"{}\"}}]},"
     "{\"role\":\"tool\",\"tool_call_id\":\"c1\",\"content\":\"r\"}]"},
};

static void test_items_become_a_chat(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof translations / sizeof translations[0]; i++) {
        struct api_request r;
        struct buf body = {0};
        (void)buf_printf(&body, "{%s}", translations[i][0]);
        check_becomes(&r, API_RESPONSES, &BOUNDS, buf_str(&body), translations[i][1]);
        api_request_free(&r);
        buf_free(&body);
    }
}

static void test_every_value_arrives(void **state)
{
    (void)state;
    struct api_request r;
    struct api_error e;
    const char *body =
        "{" ASK ",\"model\":\"x\",\"stream\":true,\"stream_options\":{\"include_obfuscation\":false"
        "},\"max_output_tokens\":7,\"temperature\":0.5,\"top_p\":0.25,\"top_logprobs\":3,\"top_k\":"
        "4,\"seed\":9,\"thinking_token_budget\":6,\"reasoning\":{\"effort\":\"high\",\"summary\":"
        "\"auto\"},\"store\":false,"
        "\"tools\":[{\"type\":\"function\",\"name\":\"f\",\"description\":null,\"parameters\":{"
        "\"type\":\"object\"},\"strict\":false}],\"tool_choice\":\"auto\",\"parallel_tool_calls\":"
        "true,\"metadata\":{\"k\":\"v\"},\"include\":[\"reasoning.encrypted_content\"],"
        "\"text\":{\"format\":{\"type\":\"text\"},\"verbosity\":\"medium\"},\"background\":false,"
        "\"truncation\":\"disabled\",\"user\":\"u\",\"service_tier\":\"auto\",\"structured_"
        "outputs\":"
        "{\"regex\":\"a\"},\"include_stop_str_in_output\":true,\"skip_special_tokens\":false,"
        "\"include_reasoning\":false}";
    if (parse(&r, &BOUNDS, body, &e)) fail_msg("%s", e.diag.text);
    assert_string_equal(r.model, "x");
    assert_true(r.stream && r.max_tokens == 7 && r.thinking == API_ON);
    assert_int_equal(r.thinking_budget, 6);
    assert_true(r.sampling.temperature == 0.5f && r.sampling.top_p == 0.25f);
    assert_true(r.sampling.logprobs && r.sampling.n_top_logprobs == 3);
    assert_true(r.sampling.top_k == 4 && r.sampling.seed == 9);
    assert_true(r.include_stop && !r.skip_special_tokens && !r.include_reasoning);
    assert_int_equal(r.rule.content, ANSWER_CONTENT_REGEX);
    assert_true(r.responses->summary && !r.responses->store && r.responses->items.len == 0);
    json_t *want =
        json_tree_of("[{\"type\":\"function\",\"function\":{\"name\":\"f\",\"parameters\":{"
                     "\"type\":\"object\"},\"strict\":false}}]");
    assert_true(json_equal(r.tools, want));
    json_decref(want);
    assert_non_null(strstr(buf_str(&r.responses->echo), ",\"metadata\":{\"k\":\"v\"},"));
    assert_non_null(strstr(buf_str(&r.responses->echo),
                           "\"truncation\":\"disabled\",\"user\":\"u\",\"max_output_tokens\":7,"
                           "\"parallel_tool_calls\":true,\"top_logprobs\":3"));
    api_request_free(&r);
    body = "{" ASK
           ",\"max_output_tokens\":\"7\",\"parallel_tool_calls\":\"no\",\"top_logprobs\":\"2\"}";
    if (parse(&r, &BOUNDS, body, &e)) fail_msg("%s", e.diag.text);
    assert_non_null(strstr(buf_str(&r.responses->echo),
                           "\"max_output_tokens\":7,\"parallel_tool_calls\":false,"
                           "\"top_logprobs\":2"));
    api_request_free(&r);
}

static void test_store_is_asked_for_or_not(void **state)
{
    (void)state;
    struct api_request r;
    struct api_error e;
    assert_int_equal(parse(&r, &BOUNDS, "{" ASK "}", &e), 0);
    assert_true(r.responses->store);
    assert_string_equal(buf_str(&r.responses->items),
                        "[{\"type\":\"message\",\"role\":\"user\",\"content\":\"x\"}]");
    api_request_free(&r);
    assert_int_equal(parse(&r, &NO_STORE, "{" ASK ",\"store\":false}", &e), 0);
    assert_false(r.responses->store);
    api_request_free(&r);
    assert_int_equal(parse(&r, &NO_STORE, "{" ASK ",\"store\":true}", &e), FATHOM_EINVAL);
    assert_string_equal(e.param, "store");
    api_request_free(&r);
    assert_int_equal(parse(&r, &NO_STORE, "{" ASK ",\"previous_response_id\":\"resp_1\"}", &e),
                     FATHOM_EINVAL);
    assert_string_equal(e.param, "previous_response_id");
    api_request_free(&r);
}

/* ---- answers ------------------------------------------------------------------------------- */

#define SAID                                                                                       \
    "why</think>Ok.\n\n<" D "function_calls>\n<" D "invoke name=\"f\">\n<" D                       \
    "parameter name=\"city\" string=\"true\">Rome</" D "parameter>\n</" D "invoke>\n<" D           \
    "invoke name=\"g\">\n</" D "invoke>\n</" D "function_calls>"

/* The output that SAID makes, ids left out. */
#define OUTPUT                                                                                     \
    "[{\"type\":\"reasoning\",\"status\":\"completed\",\"summary\":[],\"content\":["               \
    "{\"type\":\"reasoning_text\",\"text\":\"why\"}]},"                                            \
    "{\"type\":\"message\",\"status\":\"completed\",\"role\":\"assistant\",\"content\":["          \
    "{\"type\":\"output_text\",\"text\":\"Ok.\",\"annotations\":[],\"logprobs\":[]}]},"            \
    "{\"type\":\"function_call\",\"status\":\"completed\",\"name\":\"f\","                         \
    "\"arguments\":\"{\\\"city\\\": \\\"Rome\\\"}\"},"                                             \
    "{\"type\":\"function_call\",\"status\":\"completed\",\"name\":\"g\",\"arguments\":\"{}\"}]"

static struct scene *play(const char *fields, const char *said, fathom_finish why)
{
    char body[512];
    (void)snprintf(body, sizeof body, "{" ASK "," TOOL "%s}", fields);
    return scene_play(API_RESPONSES, body, said, why);
}

static void strip_ids(json_t *output)
{
    static const char *const prefixes[][2] = {
        {"reasoning", "rs_"}, {"message", "msg_"}, {"function_call", "fc_"}};
    size_t i;
    json_t *item;
    json_array_foreach (output, i, item) {
        const char *type = json_string_value(json_object_get(item, "type"));
        const char *id = json_string_value(json_object_get(item, "id"));
        for (int k = 0; k < 3; k++) {
            if (strcmp(type, prefixes[k][0]) != 0) continue;
            assert_int_equal(strncmp(id, prefixes[k][1], strlen(prefixes[k][1])), 0);
        }
        (void)json_object_del(item, "id");
        const char *call = json_string_value(json_object_get(item, "call_id"));
        assert_true(!call || strncmp(call, "call_", 5) == 0);
        (void)json_object_del(item, "call_id");
    }
}

static void assert_response(const struct scene *s, json_t *root, const char *status,
                            const char *output)
{
    char usage[256];
    unsigned n = s->answer.choices[0].n_token;
    (void)snprintf(usage, sizeof usage,
                   "{\"input_tokens\":6,\"input_tokens_details\":{\"cached_tokens\":4,"
                   "\"cache_write_tokens\":0},\"output_tokens\":%u,\"output_tokens_details\":{"
                   "\"reasoning_tokens\":4},\"total_tokens\":%u}",
                   n, n + 6);
    strip_ids(json_object_get(root, "output"));
    json_tree_expect(root, "output", output);
    json_tree_expect(root, "status", status);
    json_tree_expect(root, "usage", usage);
    json_tree_expect(root, "object", "\"response\"");
    json_tree_expect(root, "created_at", "5");
    json_tree_expect(root, "error", "null");
    assert_string_equal(json_string_value(json_object_get(root, "id")), s->answer.id);
}

static void test_whole_response(void **state)
{
    (void)state;
    struct scene *s = play("", SAID, FATHOM_FINISH_STOP);
    json_t *root = json_tree_of(scene_out(s));
    assert_response(s, root, "\"completed\"", OUTPUT);
    json_tree_expect(root, "tools", "[{\"type\":\"function\",\"name\":\"f\"}]");
    json_tree_expect(root, "tool_choice", "\"auto\"");
    json_tree_expect(root, "parallel_tool_calls", "true");
    assert_int_equal(strncmp(s->answer.id, "resp_", 5), 0);
    json_decref(root);
    scene_close(s);
}

static void test_what_is_cut_is_incomplete(void **state)
{
    (void)state;
    struct scene *s = play("", "why</think>Ok", FATHOM_FINISH_LENGTH);
    json_t *root = json_tree_of(scene_out(s));
    assert_response(
        s, root, "\"incomplete\"",
        "[{\"type\":\"reasoning\",\"status\":\"completed\",\"summary\":[],\"content\":["
        "{\"type\":\"reasoning_text\",\"text\":\"why\"}]},{\"type\":\"message\",\"status\":"
        "\"incomplete\",\"role\":\"assistant\",\"content\":[{\"type\":\"output_text\",\"text\":"
        "\"Ok\",\"annotations\":[],\"logprobs\":[]}]}]");
    json_tree_expect(root, "incomplete_details", "{\"reason\":\"max_output_tokens\"}");
    json_decref(root);
    scene_close(s);
}

static void test_summary_is_the_reasoning(void **state)
{
    (void)state;
    struct scene *s = play(",\"stream\":true,\"reasoning\":{\"summary\":\"auto\"}", "why</think>Ok",
                           FATHOM_FINISH_STOP);
    static const char *const parts[] = {
        "event: response.reasoning_summary_part.added\n",
        "\"summary_index\":0,\"part\":{\"type\":\"summary_text\",\"text\":\"\"}}",
        "event: response.reasoning_summary_text.delta\n",
        "event: response.reasoning_summary_text.done\n",
        "\"summary_index\":0,\"text\":\"why\"}",
        "event: response.reasoning_summary_part.done\n",
        "\"summary\":[{\"type\":\"summary_text\",\"text\":\"why\"}]}",
    };
    const char *at = scene_out(s);
    for (size_t i = 0; i < sizeof parts / sizeof parts[0]; i++) {
        const char *found = strstr(at, parts[i]);
        if (!found) fail_msg("%s\nis not in its place in %s", parts[i], scene_out(s));
        at = found ? found : at;
    }
    assert_null(strstr(scene_out(s), "reasoning_text"));
    scene_close(s);
}

#define END_ENTRY "{\"token\":\"<｜end▁of▁sentence｜>\",\"logprob\":-0.75,"

/* The end's token belongs to the message that it ends; streamed, to a last delta without text. */
static void test_logprobs_are_the_messages(void **state)
{
    (void)state;
    for (int streamed = 0; streamed < 2; streamed++) {
        struct scene *s = play(streamed ? ",\"stream\":true,\"top_logprobs\":2"
                                        : ",\"include\":[\"message.output_text.logprobs\"]",
                               "why</think>ab", FATHOM_FINISH_STOP);
        const char *last = strstr(scene_out(s), streamed ? "response.completed\"" : "{");
        size_t n = 0;
        for (const char *at = last; (at = strstr(at, "\"top_logprobs\":[")); at++) n++;
        assert_int_equal(n, 3);
        const char *at = strstr(last, "\"logprobs\":[{\"token\":\"a\",");
        assert_non_null(at);
        assert_non_null(strstr(at, "},{\"token\":\"b\","));
        assert_non_null(strstr(at, "}," END_ENTRY));
        if (streamed) {
            assert_non_null(strstr(scene_out(s), "\"delta\":\"b\",\"logprobs\":[{\"token\":\"b\""));
            assert_non_null(strstr(scene_out(s), "\"delta\":\"\",\"logprobs\":[" END_ENTRY));
        }
        scene_close(s);
    }
}

/* ---- streams ------------------------------------------------------------------------------- */

/* What a client makes of a stream: the items as their events build them. */
struct reader {
    json_t *output;
    struct buf text; /* deltas of the open item */
    json_int_t next; /* sequence number */
    json_t *last;    /* the response of the last event */
    unsigned n_created;
};

static void read_done(struct reader *r, const json_t *e, const char *member)
{
    assert_string_equal(json_string_value(json_object_get(e, member)), buf_str(&r->text));
    buf_clear(&r->text);
}

static void read_event(struct reader *r, json_t *e)
{
    const char *type = json_string_value(json_object_get(e, "type"));
    json_t *item = json_object_get(e, "item");
    assert_int_equal(json_integer_value(json_object_get(e, "sequence_number")), r->next++);
    if (json_object_get(e, "output_index")) {
        bool added = strcmp(type, "response.output_item.added") == 0;
        assert_int_equal(json_integer_value(json_object_get(e, "output_index")),
                         json_array_size(r->output) - !added);
    }
    if (strcmp(type, "response.output_item.added") == 0) {
        json_tree_expect(item, "status", "\"in_progress\"");
        (void)json_array_append(r->output, item);
    } else if (strcmp(type, "response.output_item.done") == 0) {
        size_t i = json_array_size(r->output) - 1;
        assert_true(json_equal(json_object_get(json_array_get(r->output, i), "id"),
                               json_object_get(item, "id")));
        (void)json_array_set(r->output, i, item);
    } else if (strstr(type, ".delta")) {
        (void)buf_add_str(&r->text, json_string_value(json_object_get(e, "delta")));
    } else if (strcmp(type, "response.function_call_arguments.done") == 0) {
        read_done(r, e, "arguments");
    } else if (strstr(type, "_text.done")) {
        read_done(r, e, "text");
    }
    if (json_object_get(e, "response")) {
        json_decref(r->last);
        r->last = json_incref(json_object_get(e, "response"));
        r->n_created += strcmp(type, "response.created") == 0;
    }
}

static void read_stream(struct reader *r, const struct scene *s)
{
    r->output = json_array();
    for (const char *at = scene_out(s); *at;) {
        json_t *e = scene_next_event(&at);
        read_event(r, e);
        json_decref(e);
    }
}

static void reader_free(struct reader *r)
{
    json_decref(r->output);
    json_decref(r->last);
    buf_free(&r->text);
}

static void test_stream_is_the_whole_in_pieces(void **state)
{
    (void)state;
    struct scene *s = play(",\"stream\":true", SAID, FATHOM_FINISH_STOP);
    struct reader r = {0};
    read_stream(&r, s);
    assert_int_equal(r.n_created, 1);
    assert_true(json_equal(r.output, json_object_get(r.last, "output")));
    assert_response(s, r.last, "\"completed\"", OUTPUT);
    reader_free(&r);
    scene_close(s);
}

static void test_an_empty_answer_streams(void **state)
{
    (void)state;
    struct scene *s = scene_open(API_RESPONSES, "{" ASK ",\"stream\":true}", false);
    struct reader r = {0};
    assert_int_equal(scene_say(&s->answer, 0, "", FATHOM_FINISH_STOP), 0);
    assert_int_equal(answer_close(&s->answer), 0);
    read_stream(&r, s);
    assert_int_equal(r.next, 3);
    json_tree_expect(r.last, "output", "[]");
    reader_free(&r);
    scene_close(s);
}

static void test_a_failure_ends_the_stream(void **state)
{
    (void)state;
    struct scene *s = scene_open(API_RESPONSES, "{" ASK ",\"stream\":true}", false);
    fathom_event token = {.kind = FATHOM_EVENT_TOKEN, .token = 117}; /* "a" */
    struct api_error e = {0};
    struct reader r = {0};
    bool stopped;
    assert_int_equal(answer_token(&s->answer, 0, &token, &stopped), 0);
    (void)api_error_set(&e, 503, "engine_failed", NULL, "the engine has failed");
    assert_int_equal(answer_fail(&s->answer, &e), 0);
    read_stream(&r, s);
    json_tree_expect(r.last, "status", "\"failed\"");
    json_tree_expect(r.last, "error",
                     "{\"code\":\"server_error\",\"message\":\"the engine has failed\"}");
    json_tree_expect(json_array_get(r.output, 0), "status", "\"incomplete\"");
    reader_free(&r);
    scene_close(s);
}

static void test_what_was_said_is_written_at_any_time(void **state)
{
    (void)state;
    struct scene *s = scene_open(API_RESPONSES, "{" ASK "}", false);
    fathom_event token = {.kind = FATHOM_EVENT_TOKEN, .token = 117};
    struct responses_part part;
    struct buf b = {0};
    bool stopped;
    assert_int_equal(answer_token(&s->answer, 0, &token, &stopped), 0);
    assert_int_equal(responses_end_item(&s->answer), 0);
    assert_int_equal(responses_write(&b, &s->answer, RESPONSES_CANCELLED, NULL, &part), 0);
    json_t *root = json_tree_of(buf_str(&b));
    json_t *output = json_tree_of_bytes(b.data + part.output_at, part.n_output);
    assert_true(json_equal(json_object_get(root, "output"), output));
    assert_int_equal(json_array_size(output), 1);
    json_tree_expect(root, "status", "\"cancelled\"");
    json_decref(root);
    json_decref(output);
    buf_free(&b);
    scene_close(s);
}

/* ---- memory -------------------------------------------------------------------------------- */

static void test_each_failing_allocation_is_clean(void **state)
{
    (void)state;
    static const char *const bodies[] = {"{" ASK "," TOOL ",\"include\":["
                                         "\"message.output_text.logprobs\"]}",
                                         "{" ASK "," TOOL ",\"stream\":true}"};
    for (int i = 0; i < 2; i++) scene_fail_each(API_RESPONSES, bodies[i], SAID);
}

static void test_each_failing_allocation_of_a_tree_is_clean(void **state)
{
    (void)state;
    struct buf body = {0};
    (void)buf_printf(&body, "{%s,\"instructions\":\"s\"," TOOL ",\"tool_choice\":\"auto\"}",
                     translations[2][0]);
    check_failing_trees(API_RESPONSES, &BOUNDS, buf_str(&body));
    buf_free(&body);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_items_become_a_chat),
        cmocka_unit_test(test_every_value_arrives),
        cmocka_unit_test(test_store_is_asked_for_or_not),
        cmocka_unit_test(test_whole_response),
        cmocka_unit_test(test_what_is_cut_is_incomplete),
        cmocka_unit_test(test_summary_is_the_reasoning),
        cmocka_unit_test(test_logprobs_are_the_messages),
        cmocka_unit_test(test_stream_is_the_whole_in_pieces),
        cmocka_unit_test(test_an_empty_answer_streams),
        cmocka_unit_test(test_a_failure_ends_the_stream),
        cmocka_unit_test(test_what_was_said_is_written_at_any_time),
        cmocka_unit_test(test_each_failing_allocation_is_clean),
        cmocka_unit_test(test_each_failing_allocation_of_a_tree_is_clean),
    };
    return cmocka_run_group_tests(tests, scene_setup, scene_teardown);
}
