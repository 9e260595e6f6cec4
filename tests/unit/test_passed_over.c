/* test_passed_over.c - what requests bring beyond the fields of this server: passed over with a
 * warning, refused under --strict-fields, or refused because it would change the answer */
#include "server/api/api_request.h"

#include <string.h>

#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

#include "base/json.h"
#include "support/json_tree.h"
#include "support/request_check.h"

static const struct api_bounds LENIENT = {.n_vocab = 1000};
static const struct api_bounds STRICT = {.n_vocab = 1000, .strict = true};

#define CHAT "\"messages\":[{\"role\":\"user\",\"content\":\"hi\"}]"
#define MESSAGES "\"max_tokens\":9," CHAT
#define INPUT "\"input\":\"hi\""
#define F "{\"type\":\"function\",\"name\":\"f\",\"parameters\":{\"type\":\"object\"}}"
#define SAMPLING(members) "\"token_ids\":[7],\"sampling_params\":{" members "}"
#define FUNCTION "{\"type\":\"function\",\"function\":{\"name\":\"f\"}}"

static void parse(struct api_request *r, enum api_kind api, const struct api_bounds *bounds,
                  const char *body)
{
    struct api_error e = {0};
    if (api_request_parse(r, api, body, strlen(body), bounds, &e)) {
        fail_msg("%s: %s", body, e.diag.text);
    }
}

static void test_warnings(void **state)
{
    (void)state;
    static const struct {
        enum api_kind api;
        const char *body;
        const char *warnings;
    } cases[] = {
        {API_CHAT, "{" CHAT ",\"frobnicate\":1}", "frobnicate is no field of /v1/chat/completions"},
        {API_CHAT, "{" CHAT ",\"temprature\":1}",
         "temprature is no field of /v1/chat/completions, did you mean temperature?"},
        {API_COMPLETION, "{\"prompt\":\"x\",\"frobnicate\":1,\"twiddle\":[]}",
         "frobnicate is no field of /v1/completions; twiddle is no field of /v1/completions"},
        {API_TOKENIZE, "{\"prompt\":\"x\",\"temperature\":1}",
         "temperature is no field of /tokenize"},
        {API_CHAT, "{" CHAT ",\"stream_options\":{\"wat\":1},\"stream\":true}",
         "stream_options.wat is not known here"},
        {API_CHAT, "{" CHAT ",\"tools\":[{\"type\":\"web_search\"}]}",
         "tools[0].type is \"web_search\", a tool that does not run here"},
        {API_CHAT, "{" CHAT ",\"verbosity\":\"low\"}",
         "verbosity is \"low\", which changes nothing: ask for it in a message"},
        {API_CHAT, "{" CHAT ",\"response_format\":{\"type\":\"text\",\"wat\":1}}",
         "response_format.wat is not known here"},
        {API_RESPONSES,
         "{" INPUT ",\"text\":{\"format\":{\"type\":\"json_schema\",\"name\":\"n\",\"schema\":{},"
         "\"strict\":null,\"wat\":1}}}",
         "text.format.wat is not known here"},
        {API_RESPONSES, "{" INPUT ",\"frobnicate\":1}", "frobnicate is no field of /v1/responses"},
        {API_RESPONSES, "{" INPUT ",\"include\":[\"wat\"],\"background\":true}",
         "include[0] is \"wat\", which is not known here; background is true: the answer comes by "
         "this connection all the same"},
        {API_RESPONSES, "{" INPUT ",\"tools\":[{\"type\":\"mcp\",\"server_label\":\"s\"}]}",
         "tools[0].type is \"mcp\", a tool that does not run here"},
        {API_MESSAGES, "{" MESSAGES ",\"frobnicate\":1}", "frobnicate is no field of /v1/messages"},
        {API_MESSAGES,
         "{" MESSAGES ",\"thinking\":{\"type\":\"adaptive\",\"display\":\"updates\"}}",
         "thinking.display is not known: all of it is told"},
        {API_MESSAGES,
         "{" MESSAGES ",\"tools\":[{\"name\":\"f\",\"input_schema\":{},\"wat\":1},"
         "{\"type\":\"web_search_20250305\",\"name\":\"web_search\"}]}",
         "tools[0].wat is not known here; tools[1].type is \"web_search_20250305\", a tool that "
         "does not run here"},
        /* what vLLM takes and has no use for either, with a model of text */
        {API_CHAT, "{" CHAT ",\"documents\":[{\"text\":\"x\"}],\"prediction\":{\"content\":\"x\"}}",
         "documents changes nothing: the model's prompt has no place for them, put them into a "
         "message; prediction changes nothing: drafts are the model's own"},
        {API_COMPLETION,
         "{\"prompt\":\"x\",\"vllm_xargs\":{\"a\":1},\"mm_processor_kwargs\":{\"a\":1}}",
         "vllm_xargs changes nothing: there are no extensions; mm_processor_kwargs changes "
         "nothing: "
         "messages are text"},
        {API_RESPONSES, "{" INPUT ",\"vllm_xargs\":{\"a\":1},\"request_id\":\"x\"}",
         "vllm_xargs is no field of /v1/responses; request_id changes nothing: a response's id is "
         "the server's"},
        {API_CHAT, "{" CHAT ",\"reasoning\":{\"effort\":\"low\"}}",
         "reasoning changes nothing: reasoning_effort is what a chat has"},
        {API_CHAT, "{" CHAT ",\"request_id\":\"a b\"}",
         "request_id is no id of 1 to 64 letters, digits or characters of -_.:, so the answer has "
         "its own"},
        {API_GENERATE, "{" SAMPLING("\"frobnicate\":1") "}",
         "sampling_params.frobnicate is no field of /inference/v1/generate"},
        {API_GENERATE, "{" SAMPLING("\"temprature\":1") "}",
         "sampling_params.temprature is no field of /inference/v1/generate, did you mean "
         "temperature?"},
        {API_GENERATE, "{" SAMPLING("\"extra_args\":{\"kv_transfer_params\":{},\"wat\":1}") "}",
         "extra_args.wat is not known here"},
        /* it goes into a header */
        {API_CHAT, "{" CHAT ",\"a\\r\\nb\\u00e9\":1}",
         "a??b?? is no field of /v1/chat/completions"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct api_request r;
        struct api_error e = {0};
        parse(&r, cases[i].api, &LENIENT, cases[i].body);
        assert_string_equal(r.warnings.text, cases[i].warnings);
        api_request_free(&r);
        assert_int_equal(
            api_request_parse(&r, cases[i].api, cases[i].body, strlen(cases[i].body), &STRICT, &e),
            FATHOM_EINVAL);
        assert_int_equal(e.status, 400);
        api_request_free(&r);
    }
}

/* Known here, or to clients everywhere: no word of it, strict or not. */
static void test_no_warnings(void **state)
{
    (void)state;
    static const struct {
        enum api_kind api;
        const char *body;
    } cases[] = {
        {API_RESPONSES, "{" INPUT ",\"client_metadata\":{\"a\":\"b\"},\"truncation\":\"auto\","
                        "\"background\":false,\"include\":[\"web_search_call.action.sources\"]}"},
        {API_MESSAGES, "{" MESSAGES ",\"thread\":{\"type\":\"create\"},\"tools\":[{\"name\":\"f\","
                       "\"input_schema\":{},\"defer_loading\":true}]}"},
        {API_CHAT, "{" CHAT ",\"verbosity\":\"medium\",\"frobnicate\":null}"},
        {API_TOKENIZE, "{" CHAT ",\"response_format\":{\"type\":\"json_object\"}}"},
        {API_CHAT, "{" CHAT ",\"stream_options\":{},\"best_of\":1,\"documents\":[],"
                   "\"vllm_xargs\":{}}"},
        {API_CHAT, "{" CHAT ",\"tools\":[{\"function\":{\"name\":\"f\"}}],\"tool_choice\":{"
                   "\"function\":{\"name\":\"f\"}}}"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct api_request r;
        parse(&r, cases[i].api, &STRICT, cases[i].body);
        assert_int_equal(r.warnings.n, 0);
        assert_string_equal(r.warnings.text, "");
        api_request_free(&r);
    }
}

/* A field of another endpoint, which would change its answer. */
static void test_what_would_matter_is_refused(void **state)
{
    (void)state;
    check_refused(API_CHAT, &LENIENT, "{" CHAT ",\"input\":\"x\"}", "input",
                  "input is no field of /v1/chat/completions; /v1/responses has it");
    check_refused(API_CHAT, &LENIENT, "{" CHAT ",\"system\":\"x\"}", "system",
                  "system is no field of /v1/chat/completions; /v1/messages has it");
    check_refused(API_COMPLETION, &LENIENT, "{\"prompt\":\"x\",\"messages\":[]}", "messages",
                  "messages is no field of /v1/completions; /v1/chat/completions has it");
    check_refused(API_MESSAGES, &LENIENT, "{" MESSAGES ",\"n\":2}", "n",
                  "n is no field of /v1/messages; /v1/chat/completions has it");
    check_refused(API_GENERATE, &LENIENT, "{\"token_ids\":[7],\"temperature\":0}", "temperature",
                  "temperature is no field of /inference/v1/generate; sampling_params has it");
    check_refused(API_GENERATE, &LENIENT, "{" SAMPLING("\"guided_regex\":\"a\"") "}",
                  "sampling_params.guided_regex",
                  "sampling_params.guided_regex is no field of /inference/v1/generate; "
                  "/v1/chat/completions has it");
    check_refused(API_RESPONSES, &LENIENT, "{" INPUT ",\"conversation\":\"c\"}", "conversation",
                  "conversation is not supported: use previous_response_id");
    check_refused(API_RESPONSES, &LENIENT,
                  "{\"input\":[{\"type\":\"item_reference\",\"id\":\"x\"}]}", "input[0].type",
                  "input[0].type is \"item_reference\", which is not supported; message, "
                  "reasoning, function_call and function_call_output are");
    check_refused(API_CHAT, &LENIENT,
                  "{" CHAT ",\"tools\":[{\"type\":\"web_search\"}],\"tool_choice\":\"required\"}",
                  "tool_choice", "tool_choice demands a call and there are no tools");
}

static void test_there_is_room_for_some_warnings(void **state)
{
    (void)state;
    struct api_request r;
    struct buf b = {0};
    (void)buf_add_str(&b, "{" CHAT);
    for (int i = 0; i < 1000; i++) (void)buf_printf(&b, ",\"frobnicate%d\":1", i);
    (void)buf_add_char(&b, '}');
    parse(&r, API_CHAT, &LENIENT, buf_str(&b));
    assert_int_equal(r.warnings.n, 1000);
    assert_true(r.warnings.n_untold > 980 && r.warnings.n_untold < 1000);
    assert_true(strlen(r.warnings.text) < sizeof r.warnings.text);
    api_request_free(&r);
    buf_free(&b);
}

/* The messages end where a thread of Anthropic's would hold them: its clients then send all. */
static void test_a_thread_is_not_gone_on_from(void **state)
{
    (void)state;
    static const char body[] =
        "{" MESSAGES ",\"thread\":{\"type\":\"continue\",\"previous_message_id\":\"m\"}}";
    struct api_request r;
    struct api_error e = {0};
    struct buf b = {0};
    assert_int_equal(api_request_parse(&r, API_MESSAGES, body, strlen(body), &LENIENT, &e),
                     FATHOM_ENOTFOUND);
    assert_int_equal(e.status, 404);
    assert_int_equal(api_error_write_anthropic(&b, &e), FATHOM_OK);
    assert_non_null(strstr(buf_str(&b), "\"type\":\"not_found_error\""));
    assert_non_null(strstr(buf_str(&b), ",\"details\":{\"error_code\":\"thread_not_found\"}}}"));
    buf_free(&b);
    api_request_free(&r);
}

static void expect_tools(enum api_kind api, const char *body, const char *tools)
{
    struct api_request r;
    parse(&r, api, &LENIENT, body);
    json_t *want = json_tree_of(tools);
    if (!json_equal(r.tools, want)) fail_msg("%s\nbecame %s", body, json_dumps(r.tools, 0));
    json_decref(want);
    api_request_free(&r);
}

static void test_tools_of_a_namespace_are_functions(void **state)
{
    (void)state;
    expect_tools(API_RESPONSES,
                 "{" INPUT ",\"tools\":[" F ",{\"type\":\"web_search\"},{\"type\":\"namespace\","
                 "\"name\":\"s\",\"description\":\"d\",\"tools\":[" F ",{\"type\":\"custom\"}]}]}",
                 "[{\"type\":\"function\",\"function\":{\"name\":\"f\",\"parameters\":{\"type\":"
                 "\"object\"}}},{\"type\":\"function\",\"function\":{\"name\":\"s__f\","
                 "\"parameters\":{\"type\":\"object\"}},\"namespace\":\"s\",\"name\":\"f\"}]");
    struct api_request r;
    check_becomes(&r, API_RESPONSES, &LENIENT,
                  "{\"input\":[{\"type\":\"function_call\",\"call_id\":\"c\",\"namespace\":\"s\","
                  "\"name\":\"f\",\"arguments\":\"{}\"}]}",
                  "[{\"role\":\"assistant\",\"content\":\"\",\"reasoning_content\":\"\","
                  "\"tool_calls\":[{\"id\":\"c\",\"type\":\"function\",\"function\":{\"name\":"
                  "\"s__f\",\"arguments\":\"{}\"}}]}]");
    api_request_free(&r);
    parse(&r, API_RESPONSES, &LENIENT,
          "{" INPUT ",\"tools\":[{\"type\":\"namespace\",\"name\":\"s\",\"tools\":[" F "]}],"
          "\"tool_choice\":{\"type\":\"function\",\"namespace\":\"s\",\"name\":\"f\"}}");
    assert_string_equal(r.rule.tool_name, "s__f");
    api_request_free(&r);
}

static void test_allowed_tools_are_shown_alone(void **state)
{
    (void)state;
    static const char other[] = "{\"type\":\"function\",\"function\":{\"name\":\"g\"}}";
    struct buf b = {0};
    (void)buf_printf(&b,
                     "{" CHAT ",\"tools\":[" FUNCTION ",%s],\"tool_choice\":{\"type\":"
                     "\"allowed_tools\",\"allowed_tools\":{\"mode\":\"auto\",\"tools\":[%s]}}}",
                     other, other);
    expect_tools(API_CHAT, buf_str(&b), "[{\"type\":\"function\",\"function\":{\"name\":\"g\"}}]");
    buf_free(&b);
    struct api_request r;
    parse(&r, API_RESPONSES, &LENIENT,
          "{" INPUT ",\"tools\":[" F "],\"tool_choice\":{\"type\":\"allowed_tools\",\"mode\":"
          "\"required\",\"tools\":[{\"type\":\"function\",\"name\":\"f\"}]}}");
    assert_int_equal(r.rule.tool_choice, TOOL_CHOICE_REQUIRED);
    assert_int_equal(json_array_size(r.tools), 1);
    api_request_free(&r);
    check_refused(API_RESPONSES, &LENIENT,
                  "{" INPUT ",\"tools\":[" F "],\"tool_choice\":{\"type\":\"allowed_tools\","
                  "\"tools\":[{\"type\":\"function\",\"name\":\"g\"}]}}",
                  "tool_choice", "tool_choice allows \"g\", which is none of the tools");
    check_refused(API_RESPONSES, &LENIENT,
                  "{" INPUT ",\"tool_choice\":{\"type\":\"allowed_tools\",\"tools\":1}}",
                  "tool_choice.tools",
                  "tool_choice.tools is an integer, needed is an array of tools");
}

/* A call is no message: what a format says of messages is no word of it. */
static void test_a_call_that_must_come_wins_over_a_format(void **state)
{
    (void)state;
    static const char *const bodies[] = {
        "{" CHAT ",\"tools\":[" FUNCTION "],\"tool_choice\":\"required\",\"response_format\":"
        "{\"type\":\"json_object\"}}",
        "{" CHAT ",\"tools\":[" FUNCTION "],\"response_format\":{\"type\":\"json_schema\","
        "\"json_schema\":{\"schema\":{}}},\"tool_choice\":{\"type\":\"function\",\"function\":"
        "{\"name\":\"f\"}}}"};
    for (int i = 0; i < 2; i++) {
        struct api_request r;
        parse(&r, API_CHAT, &STRICT, bodies[i]);
        assert_int_equal(r.rule.content, ANSWER_CONTENT_NONE);
        assert_null(r.rule.value);
        api_request_free(&r);
    }
    check_refused(API_CHAT, &LENIENT,
                  "{" CHAT ",\"tools\":[" FUNCTION "],\"tool_choice\":\"required\","
                  "\"guided_regex\":\"a\"}",
                  "tool_choice",
                  "tool_choice demands a call and guided_regex says what the content must be: an "
                  "answer cannot be both");
}

static void test_what_claude_code_sends_beside_its_words(void **state)
{
    (void)state;
    struct api_request r;
    check_becomes(&r, API_MESSAGES, &STRICT,
                  "{" MESSAGES ",\"system\":[{\"type\":\"text\",\"text\":"
                  "\"x-anthropic-billing-header: cc_version=1.2\"},{\"type\":\"text\","
                  "\"text\":\"Be brief.\"}]}",
                  "[{\"role\":\"system\",\"content\":[{\"type\":\"text\",\"text\":\"Be brief.\"}]},"
                  "{\"role\":\"user\",\"content\":\"hi\"}]");
    api_request_free(&r);
    check_becomes(&r, API_MESSAGES, &STRICT,
                  "{" MESSAGES ",\"system\":[{\"type\":\"text\",\"text\":"
                  "\"x-anthropic-billing-header: cc_version=1.2\"}]}",
                  "[{\"role\":\"user\",\"content\":\"hi\"}]");
    api_request_free(&r);
    check_becomes(&r, API_MESSAGES, &STRICT,
                  "{\"max_tokens\":9,\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":"
                  "\"tool_result\",\"tool_use_id\":\"t\",\"content\":[{\"type\":\"tool_reference\","
                  "\"tool_name\":\"f\"}]}]}]}",
                  "[{\"role\":\"tool\",\"tool_call_id\":\"t\",\"content\":[{\"type\":\"text\","
                  "\"text\":\"The tool f is there.\"}]}]");
    api_request_free(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_warnings),
        cmocka_unit_test(test_no_warnings),
        cmocka_unit_test(test_what_would_matter_is_refused),
        cmocka_unit_test(test_there_is_room_for_some_warnings),
        cmocka_unit_test(test_a_thread_is_not_gone_on_from),
        cmocka_unit_test(test_tools_of_a_namespace_are_functions),
        cmocka_unit_test(test_allowed_tools_are_shown_alone),
        cmocka_unit_test(test_a_call_that_must_come_wins_over_a_format),
        cmocka_unit_test(test_what_claude_code_sends_beside_its_words),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
