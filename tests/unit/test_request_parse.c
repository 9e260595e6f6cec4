/* test_request_parse.c - request bodies: every refusal by its exact words, every field by its value
 */
#include "server/api/api_request.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

#include "base/json.h"
#include "base/mem.h"
#include "support/request_check.h"

static const struct api_bounds BOUNDS = {.n_vocab = 1000, .strict = true};

static fathom_err parse(struct api_request *r, enum api_kind api, const char *body,
                        struct api_error *e)
{
    *e = (struct api_error){0};
    return api_request_parse(r, api, body, strlen(body), &BOUNDS, e);
}

#define M "\"messages\":[{\"role\":\"user\",\"content\":\"hi\"}]"
#define P "\"prompt\":\"hi\""
#define TOOL "\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"f\"}}]"

struct refusal {
    enum api_kind api;
    const char *body;
    const char *param; /* "" : null */
    const char *message;
};

static const struct refusal refusals[] = {
    /* the body as a whole */
    {API_CHAT, "", "", "the request body is empty, a JSON object is needed"},
    {API_CHAT, "[]", "", "the request body is an array, needed is an object"},
    {API_CHAT, "{}", "messages", "messages is missing, an array of messages is needed"},
    {API_COMPLETION, "{}", "prompt", "prompt is missing, a string or an array is needed"},
    {API_COMPLETION, "{" P ",\"stream\":\"1\\u0000x\"}", "stream",
     "stream is a string, needed is a boolean"},
    {API_COMPLETION, "{" P ",\"temperature\":\"1e400\"}", "temperature",
     "temperature is a string, needed is a number"},
    {API_COMPLETION, "{" P ",\"seed\":\"9223372036854775808\"}", "seed",
     "seed is a string, needed is an integer"},
    /* messages and tools */
    {API_CHAT, "{\"messages\":\"hi\"}", "messages",
     "messages is a string, needed is an array of messages"},
    {API_CHAT, "{\"messages\":[]}", "messages",
     "messages is empty, at least one message is needed"},
    {API_CHAT, "{" M ",\"tools\":{}}", "tools", "tools is an object, needed is an array of tools"},
    {API_CHAT, "{" M ",\"tools\":[1]}", "tools[0]", "tools[0] is an integer, needed is an object"},
    {API_CHAT,
     "{" M
     ",\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"f\",\"strict\":\"true\"}}]}",
     "tools[0].function.strict", "tools[0].function.strict is a string, needed is a boolean"},
    {API_CHAT, "{" M ",\"model\":\"x\\u0000y\"}", "model",
     "model holds a NUL character, needed is a served name"},
    {API_CHAT, "{" M ",\"request_id\":\"x\\u0000y\"}", "request_id",
     "request_id is \"x\", needed are 1 to 64 letters, digits or characters of -_.:"},
    {API_CHAT, "{" M ",\"tools\":[{\"type\":\"web\"}]}", "tools[0].type",
     "tools[0].type is \"web\", a tool that does not run here; only functions of the client are "
     "supported"},
    {API_CHAT, "{" M ",\"tools\":[{\"type\":\"function\"}]}", "tools[0].function",
     "tools[0].function is absent, needed is an object"},
    {API_CHAT, "{" M ",\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"\"}}]}",
     "tools[0].function.name",
     "tools[0].function.name is an empty string, needed is a string that is not empty"},
    {API_CHAT, "{" M ",\"tool_choice\":\"required\"}", "tool_choice",
     "tool_choice demands a call and there are no tools"},
    {API_CHAT, "{" M ",\"tool_choice\":\"always\"}", "tool_choice",
     "tool_choice is \"always\", needed is auto, none, required or a function"},
    {API_CHAT, "{" M ",\"tool_choice\":{\"type\":\"function\"}}", "tool_choice.function.name",
     "tool_choice.function.name is absent, needed is a string"},
    {API_CHAT, "{" M ",\"tool_choice\":{\"type\":\"custom\"}}", "tool_choice.type",
     "tool_choice.type is \"custom\", only \"function\" is supported"},
    {API_CHAT,
     "{" M "," TOOL ",\"tool_choice\":{\"type\":\"function\",\"function\":{\"name\":\"x\"}}}",
     "tool_choice", "tool_choice names \"x\", which is none of the tools"},
    {API_CHAT,
     "{" M "," TOOL ",\"tool_choice\":\"required\",\"guided_json\":{\"type\":\"object\"}}",
     "tool_choice",
     "tool_choice demands a call and guided_json says what the content must be: an answer cannot "
     "be "
     "both"},
    {API_CHAT, "{" M ",\"parallel_tool_calls\":2}", "parallel_tool_calls",
     "parallel_tool_calls is an integer, needed is a boolean"},
    {API_CHAT, "{" M ",\"response_format\":{\"type\":\"grammar\"}}", "response_format.type",
     "response_format.type is \"grammar\", which is not supported; text, json_object, json_schema "
     "and structural_tag are"},
    {API_CHAT, "{" M ",\"response_format\":{\"type\":\"json_schema\"}}",
     "response_format.json_schema", "response_format.json_schema is absent, needed is an object"},
    {API_CHAT, "{" M ",\"response_format\":{\"type\":\"json_schema\",\"json_schema\":{}}}",
     "response_format.json_schema.schema",
     "response_format.json_schema.schema is missing, a JSON schema is needed"},
    {API_CHAT,
     "{" M ",\"response_format\":{\"type\":\"json_schema\",\"json_schema\":{\"schema\":[]}}}",
     "response_format.json_schema.schema",
     "response_format.json_schema.schema is an empty array, needed is an object (a JSON schema)"},
    {API_CHAT,
     "{" M ",\"response_format\":{\"type\":\"json_schema\",\"json_schema\":{\"schema\":{},"
     "\"strict\":\"yes\"}}}",
     "response_format.json_schema.strict",
     "response_format.json_schema.strict is a string, needed is a boolean"},
    {API_CHAT, "{" M ",\"response_format\":{\"type\":\"json_object\"},\"guided_json\":{}}",
     "guided_json",
     "response_format and guided_json both say what the answer must be, only one may"},
    {API_COMPLETION, "{" P ",\"guided_json\":{},\"guided_choice\":[\"a\"]}", "guided_choice",
     "guided_json and guided_choice both say what the answer must be, only one may"},
    {API_COMPLETION, "{" P ",\"guided_json\":\"[1]\"}", "guided_json",
     "guided_json is an array, needed is a JSON schema"},
    {API_COMPLETION, "{" P ",\"guided_json\":7}", "guided_json",
     "guided_json is an integer, needed is an object (a JSON schema)"},
    {API_COMPLETION, "{" P ",\"guided_choice\":\"a\"}", "guided_choice",
     "guided_choice is a string, needed is an array of strings"},
    {API_COMPLETION, "{" P ",\"structured_outputs\":{}}", "structured_outputs",
     "structured_outputs says nothing of the answer; json, regex, choice, grammar, structural_tag "
     "or json_object is needed"},
    {API_COMPLETION, "{" P ",\"structured_outputs\":{\"regex\":\"a\",\"choice\":[\"a\"]}}",
     "structured_outputs",
     "structured_outputs.regex and structured_outputs.choice both say what the answer must be, "
     "only "
     "one may"},
    {API_COMPLETION, "{" P ",\"structured_outputs\":{\"structural_tag\":\"[]\"}}",
     "structured_outputs.structural_tag",
     "structured_outputs.structural_tag is an empty array, needed is an object (a structural tag)"},
    {API_COMPLETION, "{" P ",\"structured_outputs\":{\"grammar\":{}}}",
     "structured_outputs.grammar",
     "structured_outputs.grammar is an object, needed is a string (a grammar)"},
    {API_CHAT, "{" M ",\"response_format\":{\"type\":\"structural_tag\",\"trigger\":[]}}",
     "response_format.trigger", "response_format.trigger is not known here; leave it out"},
    {API_COMPLETION, "{" P ",\"structured_outputs\":{\"whitespace_pattern\":\" \"}}",
     "structured_outputs.whitespace_pattern",
     "structured_outputs.whitespace_pattern is not supported: use disable_any_whitespace"},
    {API_CHAT, "{" M ",\"response_format\":\"text\"}", "response_format",
     "response_format is a string, needed is an object"},
    /* numbers */
    {API_CHAT, "{" M ",\"temperature\":9}", "temperature", "temperature is 9, needed is 0 to 2"},
    {API_CHAT, "{" M ",\"temperature\":-0.5}", "temperature",
     "temperature is -0.5, needed is 0 to 2"},
    {API_CHAT, "{" M ",\"temperature\":\"hot\"}", "temperature",
     "temperature is a string, needed is a number"},
    {API_CHAT, "{" M ",\"top_p\":0}", "top_p", "top_p is 0, needed is more than 0, up to 1"},
    {API_CHAT, "{" M ",\"top_k\":-2}", "top_k", "top_k is -2, needed is -1 to 2147483647"},
    {API_CHAT, "{" M ",\"min_p\":1.5}", "min_p", "min_p is 1.5, needed is 0 to 1"},
    {API_CHAT, "{" M ",\"repetition_penalty\":0}", "repetition_penalty",
     "repetition_penalty is 0, needed is more than 0"},
    {API_CHAT, "{" M ",\"repetition_penalty\":-1e-300}", "repetition_penalty",
     "repetition_penalty is -1e-300, needed is more than 0"},
    {API_CHAT, "{" M ",\"presence_penalty\":3}", "presence_penalty",
     "presence_penalty is 3, needed is -2 to 2"},
    {API_CHAT, "{" M ",\"cache_salt\":5}", "cache_salt",
     "cache_salt is an integer, needed is a string"},
    {API_CHAT, "{" M ",\"cache_salt\":\"\"}", "cache_salt",
     "cache_salt is empty, needed is at least one character"},
    {API_CHAT, "{" M ",\"seed\":1.5}", "seed", "seed is a number, needed is an integer"},
    {API_CHAT, "{" M ",\"n\":0}", "n", "n is 0, needed is 1 to 1024"},
    {API_CHAT, "{" M ",\"n\":true}", "n", "n is a boolean, needed is an integer"},
    {API_CHAT, "{" M ",\"priority\":0.5}", "priority",
     "priority is a number, needed is an integer"},
    {API_CHAT, "{" M ",\"max_tokens\":-5}", "max_tokens",
     "max_tokens is -5, needed is 1 to 2147483647"},
    {API_CHAT, "{" M ",\"max_tokens\":0}", "max_tokens",
     "max_tokens is 0, needed is 1 to 2147483647"},
    {API_COMPLETION, "{" P ",\"max_tokens\":0}", "max_tokens",
     "max_tokens is 0, needed is at least 1 (0 only with echo)"},
    {API_CHAT, "{" M ",\"max_tokens\":\"many\"}", "max_tokens",
     "max_tokens is a string, needed is an integer"},
    {API_CHAT, "{" M ",\"min_tokens\":9,\"max_tokens\":8}", "min_tokens",
     "min_tokens is 9, more than max_tokens, which is 8"},
    {API_COMPLETION, "{" P ",\"best_of\":1,\"n\":2}", "best_of",
     "best_of is 1 and n is 2, needed is at least n"},
    {API_COMPLETION, "{" P ",\"best_of\":2,\"stream\":true}", "best_of",
     "best_of is more than n, so what is told is known at the end: it cannot be streamed"},
    {API_COMPLETION, "{\"prompt\":[\"a\",\"b\"],\"best_of\":600}", "n",
     "2 prompts times n = 600 are 1200 choices, at most 1024 are taken"},
    {API_CHAT, "{" M ",\"prompt_logprobs\":-1}", "prompt_logprobs",
     "prompt_logprobs is -1, needed is 0 to 20"},
    {API_CHAT, "{" M ",\"prompt_logprobs\":1,\"stream\":true}", "prompt_logprobs",
     "prompt_logprobs cannot be streamed; leave stream out"},
    {API_CHAT, "{" M ",\"truncate_prompt_tokens\":0}", "truncate_prompt_tokens",
     "truncate_prompt_tokens is 0, needed is a number of tokens, or -1 for as many as fit"},
    {API_COMPLETION, "{" P ",\"truncate_prompt_tokens\":-2}", "truncate_prompt_tokens",
     "truncate_prompt_tokens is -2, needed is -1 to 2147483647"},
    {API_COMPLETION, "{" P ",\"truncation_side\":\"up\"}", "truncation_side",
     "truncation_side is \"up\", needed is left or right"},
    {API_CHAT, "{" M ",\"request_id\":\"a b\"}", "request_id",
     "request_id is \"a b\", needed are 1 to 64 letters, digits or characters of -_.:"},
    {API_CHAT, "{" M ",\"request_id\":7}", "request_id",
     "request_id is an integer, needed is a string"},
    {API_CHAT, "{" M ",\"top_logprobs\":21,\"logprobs\":true}", "top_logprobs",
     "top_logprobs is 21, needed is 0 to 20"},
    {API_CHAT, "{" M ",\"top_logprobs\":2}", "top_logprobs",
     "top_logprobs is only taken when logprobs is true"},
    {API_CHAT, "{" M ",\"logprobs\":3}", "logprobs", "logprobs is an integer, needed is a boolean"},
    {API_COMPLETION, "{" P ",\"logprobs\":\"true\"}", "logprobs",
     "logprobs is a string, needed is an integer"},
    /* text that is no number, and what a number in a text may be */
    {API_CHAT, "{" M ",\"max_tokens\":\"\"}", "max_tokens",
     "max_tokens is an empty string, needed is an integer"},
    {API_CHAT, "{" M ",\"max_tokens\":\"0x10\"}", "max_tokens",
     "max_tokens is a string, needed is an integer"},
    {API_CHAT, "{" M ",\"max_tokens\":\"  \"}", "max_tokens",
     "max_tokens is a string, needed is an integer"},
    {API_CHAT, "{" M ",\"max_tokens\":\"5 6\"}", "max_tokens",
     "max_tokens is a string, needed is an integer"},
    {API_CHAT, "{" M ",\"max_tokens\":\"5\\u00006\"}", "max_tokens",
     "max_tokens is a string, needed is an integer"},
    {API_CHAT, "{" M ",\"max_tokens\":\"5.5\"}", "max_tokens",
     "max_tokens is a string, needed is an integer"},
    {API_CHAT, "{" M ",\"max_tokens\":\"-5\"}", "max_tokens",
     "max_tokens is -5, needed is 1 to 2147483647"},
    {API_CHAT, "{" M ",\"seed\":\"99999999999999999999\"}", "seed",
     "seed is a string, needed is an integer"},
    {API_CHAT, "{" M ",\"temperature\":\"2.5\"}", "temperature",
     "temperature is 2.5, needed is 0 to 2"},
    {API_CHAT, "{" M ",\"temperature\":\"1e999\"}", "temperature",
     "temperature is a string, needed is a number"},
    {API_CHAT, "{" M ",\"temperature\":\"nan\"}", "temperature",
     "temperature is a string, needed is a number"},
    {API_CHAT, "{" M ",\"temperature\":\"-\"}", "temperature",
     "temperature is a string, needed is a number"},
    {API_CHAT, "{" M ",\"temperature\":\"0000000000000000000000000000000001\"}", "temperature",
     "temperature is a string, needed is a number"},
    {API_CHAT, "{" M ",\"stream\":\"perhaps\"}", "stream",
     "stream is a string, needed is a boolean"},
    /* stops and bias */
    {API_CHAT, "{" M ",\"stop\":[\"a\",\"\"]}", "stop[1]",
     "stop[1] is an empty string, which would stop at once"},
    {API_CHAT, "{" M ",\"stop\":[\"a\",1]}", "stop[1]",
     "stop[1] is an integer, needed is a string"},
    {API_CHAT, "{" M ",\"stop\":1}", "stop",
     "stop is an integer, needed is a string or an array of strings"},
    {API_CHAT, "{" M ",\"stop_token_ids\":[5,1000]}", "stop_token_ids[1]",
     "stop_token_ids[1] is 1000, needed is 0 to 999"},
    {API_CHAT, "{" M ",\"logit_bias\":{\"x\":1}}", "logit_bias[\"x\"]",
     "logit_bias[\"x\"]: the key is not a token id, needed is 0 to 999"},
    {API_CHAT, "{" M ",\"logit_bias\":{\"99999999999999999999\":1}}",
     "logit_bias[\"99999999999999999999\"]",
     "logit_bias[\"99999999999999999999\"]: the key is not a token id, needed is 0 to 999"},
    /* streaming, thinking */
    {API_CHAT, "{" M ",\"stream\":2}", "stream", "stream is an integer, needed is a boolean"},
    {API_CHAT, "{" M ",\"stream_options\":{\"include_usage\":false}}", "stream_options",
     "stream_options is only taken when stream is true"},
    {API_CHAT, "{" M ",\"stream\":true,\"stream_options\":{\"include_usage\":1.5}}",
     "stream_options.include_usage",
     "stream_options.include_usage is a number, needed is a boolean"},
    {API_CHAT, "{" M ",\"reasoning_effort\":\"some\"}", "reasoning_effort",
     "reasoning_effort is \"some\", needed is none or minimal (no thinking), low, medium, high, "
     "xhigh or max (thinking)"},
    {API_CHAT, "{" M ",\"thinking\":{\"type\":\"on\"}}", "thinking.type",
     "thinking.type is \"on\", needed is enabled, disabled or auto"},
    {API_CHAT, "{" M ",\"chat_template_kwargs\":{\"thinking\":[]}}",
     "chat_template_kwargs.thinking",
     "chat_template_kwargs.thinking is an empty array, needed is a boolean"},
    {API_CHAT, "{" M ",\"continue_final_message\":true}", "continue_final_message",
     "continue_final_message needs a last message of the role assistant, messages[0] has another"},
    {API_CHAT, "{" M ",\"continue_final_message\":true,\"add_generation_prompt\":true}",
     "continue_final_message",
     "continue_final_message and add_generation_prompt cannot both be true"},
    /* known, not supported */
    {API_CHAT, "{" M ",\"functions\":[{}]}", "functions", "functions is not supported: use tools"},
    {API_CHAT, "{" M ",\"chat_template\":\"{{ x }}\"}", "chat_template",
     "chat_template is not supported: the checkpoint decides how messages are rendered"},
    {API_CHAT, "{" M ",\"audio\":{\"voice\":\"x\"}}", "audio",
     "audio is not supported: only text is generated"},
    {API_CHAT, "{" M ",\"verbosity\":\"low\"}", "verbosity",
     "verbosity is only supported as \"medium\": ask for it in a message"},
    {API_CHAT, "{" M ",\"vllm_xargs\":{\"a\":1}}", "vllm_xargs",
     "vllm_xargs is not supported: there are no extensions"},
    {API_CHAT, "{" M ",\"bad_words\":\"x\"}", "bad_words",
     "bad_words is a string, needed is an array of strings"},
    {API_CHAT, "{" M ",\"bad_words\":[\"x\",\"\"]}", "bad_words[1]",
     "bad_words[1] is an empty string, needed is a string that is not empty"},
    {API_CHAT, "{" M ",\"allowed_token_ids\":[]}", "allowed_token_ids",
     "allowed_token_ids is empty, needed is at least one token id"},
    {API_CHAT, "{" M ",\"allowed_token_ids\":[1,1000]}", "allowed_token_ids[1]",
     "allowed_token_ids[1] is 1000, needed is 0 to 999"},
    {API_COMPLETION, "{" P ",\"prompt_embeds\":\"AA==\"}", "prompt_embeds",
     "prompt_embeds is not supported: send text or token ids"},
    {API_CHAT, "{" M ",\"thinking_token_budget\":-2}", "thinking_token_budget",
     "thinking_token_budget is -2, needed is -1 to 2147483647"},
    {API_COMPLETION, "{" P ",\"thinking_token_budget\":true}", "thinking_token_budget",
     "thinking_token_budget is a boolean, needed is an integer"},
    {API_CHAT, "{" M ",\"thinking\":{\"type\":\"enabled\",\"budget_tokens\":-2}}",
     "thinking.budget_tokens", "thinking.budget_tokens is -2, needed is at least -1"},
    {API_CHAT, "{" M ",\"stream\":true,\"stream_options\":{\"usage\":true}}",
     "stream_options.usage", "stream_options.usage is not known here; leave it out"},
    {API_CHAT, "{" M ",\"chat_template_kwargs\":{\"think\":true}}", "chat_template_kwargs.think",
     "chat_template_kwargs.think is not known here; leave it out"},
    /* unknown */
    {API_CHAT, "{" M ",\"temprature\":1}", "temprature",
     "temprature is no field of /v1/chat/completions; did you mean temperature?"},
    {API_CHAT, "{" M ",\"prompt\":\"x\"}", "prompt",
     "prompt is no field of /v1/chat/completions; /v1/completions has it"},
    {API_COMPLETION, "{" P ",\"messages\":[]}", "messages",
     "messages is no field of /v1/completions; /v1/chat/completions has it"},
    {API_COMPLETION, "{" P ",\"frobnicate\":1}", "frobnicate",
     "frobnicate is no field of /v1/completions; leave it out"},
    {API_CHAT, "{" M ",\"modalities\":[\"text\",\"audio\"]}", "modalities",
     "modalities[1] is not supported; only \"text\" is"},
    {API_CHAT, "{" M ",\"echo\":true}", "echo", "echo is not supported: /v1/completions has it"},
    {API_COMPLETION, "{" P ",\"guided_grammar\":[]}", "guided_grammar",
     "guided_grammar is an empty array, needed is a string (a grammar)"},
    {API_CHAT, "{" M ",\"ebnf\":\"root ::= a\",\"guided_grammar\":\"root ::= a\"}",
     "guided_grammar", "ebnf and guided_grammar both say what the answer must be, only one may"},
    {API_CHAT, "{" M ",\"structural_tag\":7}", "structural_tag",
     "structural_tag is an integer, needed is an object (a structural tag)"},
    {API_CHAT, "{" M ",\"separate_reasoning\":false}", "separate_reasoning",
     "separate_reasoning is false, only true is supported: start the server with "
     "--reasoning-parser none"},
    {API_COMPLETION, "{" P ",\"regex\":\"a\",\"guided_regex\":\"a\"}", "guided_regex",
     "regex and guided_regex both say what the answer must be, only one may"},
    {API_CHAT, "{" M ",\"response_format\":{\"type\":\"json_object\",\"shema\":{}}}",
     "response_format.shema", "response_format.shema is not known here; leave it out"},
    {API_CHAT, "{" M ",\"structured_outputs\":{\"regex\":\"a\",\"ebnf\":\"b\"}}",
     "structured_outputs.ebnf", "structured_outputs.ebnf is not known here; leave it out"},
    {API_COMPLETION, "{" P ",\"use_beam_search\":true}", "use_beam_search",
     "use_beam_search is not supported: use n for several samples"},
    {API_COMPLETION, "{" P ",\"suffix\":\"end\",\"echo\":true}", "echo",
     "echo with suffix is not supported"},
    {API_COMPLETION, "{" P ",\"suffix\":1}", "suffix", "suffix is an integer, needed is a string"},
    /* prompts */
    {API_COMPLETION, "{\"prompt\":1}", "prompt",
     "prompt is an integer, needed is a string or an array of token ids"},
    {API_COMPLETION, "{\"prompt\":[]}", "prompt", "prompt has 0 entries, needed is 1 to 1024"},
    {API_COMPLETION, "{\"prompt\":[\"a\",5]}", "prompt[1]",
     "prompt[1] is an integer, needed is a string or an array of token ids"},
    {API_COMPLETION, "{\"prompt\":[1,\"a\"]}", "prompt[1]",
     "prompt[1] is a string, needed is a token id"},
    {API_COMPLETION, "{\"prompt\":[1,1000]}", "prompt[1]", "prompt[1] is 1000, needed is 0 to 999"},
    {API_COMPLETION, "{\"prompt\":[[1],[2,-1]]}", "prompt[1][1]",
     "prompt[1][1] is -1, needed is 0 to 999"},
    {API_COMPLETION, "{\"prompt\":[[1],[]]}", "prompt[1]",
     "prompt[1] is empty, at least one token is needed"},
    {API_COMPLETION, "{\"prompt\":[\"a\",\"b\",\"c\"],\"n\":342}", "n",
     "3 prompts times n = 342 are 1026 choices, at most 1024 are taken"},
};

static void test_refusals(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof refusals / sizeof refusals[0]; i++) {
        const struct refusal *c = &refusals[i];
        check_refused(c->api, &BOUNDS, c->body, c->param, c->message);
    }
}

static void test_malformed_json_has_a_position(void **state)
{
    (void)state;
    struct api_request r;
    struct api_error e;
    assert_int_equal(parse(&r, API_CHAT, "{\"model\": \"x\",,}", &e), FATHOM_EFORMAT);
    assert_int_equal(e.status, 400);
    assert_non_null(strstr(e.diag.text, "request body: not valid JSON at line 1 column 15"));
    api_request_free(&r);
    e = (struct api_error){0};
    assert_int_equal(parse(&r, API_CHAT, "{" M ",\"structural_tag\":\"x\"}", &e), FATHOM_EFORMAT);
    assert_int_equal(e.status, 400);
    assert_non_null(strstr(e.diag.text, "structural_tag: not valid JSON at line 1 column 1"));
    api_request_free(&r);
}

static void test_message_paths_are_kept(void **state)
{
    (void)state;
    struct api_request r;
    struct api_error e;
    assert_int_equal(parse(&r, API_CHAT,
                           "{\"messages\":[{\"role\":\"user\",\"content\":\"a\"},"
                           "{\"role\":\"user\",\"content\":[{\"type\":\"image_url\"}]}]}",
                           &e),
                     FATHOM_EINVAL);
    assert_int_equal(e.status, 400);
    assert_string_equal(e.param, "messages[1].content[0].type");
    api_request_free(&r);
    assert_int_not_equal(parse(&r, API_CHAT, "{\"messages\":[{\"role\":\"wizard\"}]}", &e), 0);
    assert_string_equal(e.param, "messages[0].role");
    api_request_free(&r);
}

static void test_equal_salts_are_equal(void **state)
{
    (void)state;
    static const char *const bodies[] = {
        "{" M "}",
        "{" M ",\"cache_salt\":\"ab\"}",
        "{" M ",\"cache_salt\":\"ba\"}",
        "{" M ",\"cache_salt\":\"a\"}",
        "{\"cache_salt\":\"ab\"," M "}",
    };
    uint64_t salts[5];
    for (int i = 0; i < 5; i++) {
        struct api_request r;
        struct api_error e;
        assert_int_equal(parse(&r, API_CHAT, bodies[i], &e), FATHOM_OK);
        salts[i] = r.cache_salt;
        api_request_free(&r);
    }
    assert_int_equal(salts[0], 0);
    assert_true(salts[1] == salts[4]);
    for (int i = 0; i < 4; i++) {
        for (int k = 0; k < i; k++) assert_true(salts[i] != salts[k]);
    }
}

static void test_every_value_arrives(void **state)
{
    (void)state;
    struct api_request r;
    struct api_error e;
    const char *body =
        "{" M ",\"model\":\"x\",\"stream\":true,\"stream_options\":{\"include_usage\":true,"
        "\"continuous_usage_stats\":true},\"n\":2,\"priority\":-4,\"max_tokens\":7,\"max_"
        "completion_tokens\":9,"
        "\"min_tokens\":3,\"stop\":[\"a\",\"bc\"],\"stop_token_ids\":[5,6.0],"
        "\"include_stop_str_in_output\":true,\"ignore_eos\":true,\"skip_special_tokens\":false,"
        "\"temperature\":0,\"top_p\":0.5,\"top_k\":40,\"min_p\":0.25,\"seed\":-2,"
        "\"presence_penalty\":1,\"frequency_penalty\":-1,\"repetition_penalty\":1.5,"
        "\"logit_bias\":{\"7\":-100,\"8\":2.5},\"logprobs\":true,\"top_logprobs\":4,"
        "\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"f\"}}],"
        "\"tool_choice\":\"auto\",\"parallel_tool_calls\":false,\"user\":\"u\",\"unknown\":null,"
        "\"bad_words\":[],\"use_beam_search\":false,\"length_penalty\":1.0,"
        "\"request_id\":\"a-1:b.2_c\",\"truncate_prompt_tokens\":-1,\"truncation_side\":\"right\","
        "\"include_reasoning\":false,"
        "\"response_format\":{\"type\":\"text\"},\"modalities\":[\"text\"],\"audio\":null}";
    if (parse(&r, API_CHAT, body, &e)) fail_msg("%s", e.diag.text);
    assert_string_equal(r.model, "x");
    assert_true(r.stream && r.include_usage && r.continuous_usage && r.include_stop);
    assert_false(r.skip_special_tokens);
    assert_int_equal(r.n, 2);
    assert_int_equal(r.priority, -4);
    assert_int_equal(r.max_tokens, 9);
    assert_int_equal(r.n_stop, 2);
    assert_string_equal(r.stops[1], "bc");
    assert_int_equal(r.stop_lens[1], 2);
    const fathom_sampling *s = &r.sampling;
    assert_true(s->ignore_eos && s->logprobs && s->has_seed);
    assert_true(s->seed == UINT64_MAX - 1 && s->min_tokens == 3 && s->top_k == 40);
    assert_true(s->temperature == 0.0f && s->top_p == 0.5f && s->min_p == 0.25f);
    assert_true(s->presence_penalty == 1.0f && s->frequency_penalty == -1.0f);
    assert_true(s->repetition_penalty == 1.5f && s->n_top_logprobs == 4);
    assert_true(s->n_stop_id == 2 && s->stop_ids[1] == 6);
    assert_true(s->n_bias == 2 && s->bias[0].id == 7 && s->bias[1].bias == 2.5f);
    assert_string_equal(r.request_id, "a-1:b.2_c");
    assert_true(r.truncate == -1 && r.truncate_right);
    assert_false(r.include_reasoning);
    assert_int_equal(json_array_size(r.tools), 1);
    api_request_drop_body(&r);
    assert_int_equal(json_array_size(r.tools), 1);
    api_request_free(&r);
}

/* As templates of requests send them. */
static void test_numbers_and_flags_may_be_text(void **state)
{
    (void)state;
    struct api_request r;
    struct api_error e;
    const char *body =
        "{" M ",\"max_tokens\":\" 5 \",\"n\":\"2.0 \",\"temperature\":\"0.5\",\"top_p\":\"1\","
        "\"top_k\":\"-1\",\"seed\":\"9223372036854775807\",\"stop_token_ids\":[\"7\"],"
        "\"logit_bias\":{\"7\":\"-2.5\"},\"stream\":\"True\",\"logprobs\":1,\"ignore_eos\":\"no\","
        "\"skip_special_tokens\":0.0,\"stream_options\":{\"include_usage\":\"on\"},"
        "\"chat_template_kwargs\":{\"thinking\":\"false\"},\"parallel_tool_calls\":\"false\"}";
    if (parse(&r, API_CHAT, body, &e)) fail_msg("%s", e.diag.text);
    const fathom_sampling *s = &r.sampling;
    assert_true(r.max_tokens == 5 && r.n == 2 && s->temperature == 0.5f && s->top_p == 1.0f);
    assert_true(s->top_k == -1 && s->has_seed && s->seed == INT64_MAX);
    assert_true(s->n_stop_id == 1 && s->stop_ids[0] == 7 && s->bias[0].bias == -2.5f);
    assert_true(r.stream && s->logprobs && !s->ignore_eos && !r.skip_special_tokens);
    assert_true(r.include_usage && r.thinking == API_OFF && r.rule.one_call);
    assert_int_equal(r.warnings.n, 0);
    api_request_free(&r);

    static const struct {
        const char *logprobs;
        bool on;
        uint32_t n_top;
    } cases[] = {{"true", true, 1}, {"false", false, 0}, {"\"3\"", true, 3}, {"0", true, 0}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char text[64];
        (void)snprintf(text, sizeof text, "{" P ",\"logprobs\":%s}", cases[i].logprobs);
        if (parse(&r, API_COMPLETION, text, &e)) fail_msg("%s", e.diag.text);
        assert_int_equal(r.sampling.logprobs, cases[i].on);
        assert_int_equal(r.sampling.n_top_logprobs, cases[i].n_top);
        api_request_free(&r);
    }
}

static void test_an_invocation_is_a_chat_with_messages(void **state)
{
    (void)state;
    struct api_request r;
    struct api_error e;
    assert_int_equal(parse(&r, API_INVOCATION, "{" M "}", &e), 0);
    assert_int_equal(r.api, API_CHAT);
    api_request_free(&r);
    assert_int_equal(parse(&r, API_INVOCATION, "{" P ",\"messages\":null}", &e), 0);
    assert_int_equal(r.api, API_COMPLETION);
    api_request_free(&r);
}

static void test_defaults_are_told_from_values(void **state)
{
    (void)state;
    struct api_request r;
    struct api_error e;
    assert_int_equal(parse(&r, API_CHAT, "{" M ",\"temperature\":null,\"stop\":null}", &e), 0);
    assert_true(r.sampling.temperature < 0 && r.sampling.top_p < 0);
    assert_int_equal(r.sampling.top_k, API_TOP_K_UNSET);
    assert_int_equal(r.max_tokens, -1);
    assert_int_equal(r.thinking, API_UNSET);
    assert_true(r.add_generation_prompt && r.skip_special_tokens && !r.model);
    api_request_free(&r);
    assert_int_equal(parse(&r, API_COMPLETION, "{" P "}", &e), 0);
    assert_int_equal(r.max_tokens, 16);
    api_request_free(&r);
}

static void test_values_mean_what_they_mean_to_vllm(void **state)
{
    (void)state;
    struct api_request r;
    struct api_error e;
    const char *body = "{" M ",\"seed\":-1,\"logit_bias\":{\"7\":1000,\"8\":-100.5}}";
    assert_int_equal(parse(&r, API_CHAT, body, &e), FATHOM_OK);
    assert_false(r.sampling.has_seed);
    assert_true(r.bias[0].bias == 100.0f && r.bias[1].bias == -100.0f);
    api_request_free(&r);
}

static void test_prompt_logprobs_are_the_more_of_two_wishes(void **state)
{
    (void)state;
    static const struct {
        const char *fields;
        bool wanted;
        uint32_t n_top;
    } cases[] = {
        {",\"echo\":true", false, 0},
        {",\"logprobs\":5", false, 0},
        {",\"echo\":true,\"logprobs\":5", true, 5},
        {",\"prompt_logprobs\":3", true, 3},
        {",\"prompt_logprobs\":0", true, 0},
        {",\"prompt_logprobs\":3,\"echo\":true,\"logprobs\":5", true, 5},
        {",\"prompt_logprobs\":9,\"echo\":true,\"logprobs\":5", true, 9},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct api_request r;
        struct api_error e;
        char body[256];
        (void)snprintf(body, sizeof body, "{" P "%s}", cases[i].fields);
        assert_int_equal(parse(&r, API_COMPLETION, body, &e), FATHOM_OK);
        assert_int_equal(r.sampling.prompt_logprobs, cases[i].wanted);
        assert_int_equal(r.sampling.n_prompt_top_logprobs, cases[i].n_top);
        api_request_free(&r);
    }
}

static void test_usage_of_each_chunk_comes_with_that_of_all(void **state)
{
    (void)state;
    struct api_request r;
    struct api_error e;
    const char *body =
        "{" M ",\"stream\":true,\"stream_options\":{\"continuous_usage_stats\":true}}";
    assert_int_equal(parse(&r, API_CHAT, body, &e), FATHOM_OK);
    assert_false(r.include_usage || r.continuous_usage);
    api_request_free(&r);
}

static void test_prompt_logprobs_of_nothing_may_stream(void **state)
{
    (void)state;
    struct api_request r;
    struct api_error e;
    const char *body = "{" M ",\"stream\":true,\"prompt_logprobs\":0}";
    assert_int_equal(parse(&r, API_CHAT, body, &e), FATHOM_OK);
    assert_false(r.prompt_logprobs || r.sampling.prompt_logprobs);
    api_request_free(&r);
}

static void test_best_of_makes_more_choices_than_are_told(void **state)
{
    (void)state;
    struct api_request r;
    struct api_error e;
    assert_int_equal(parse(&r, API_COMPLETION, "{" P ",\"n\":2,\"best_of\":5}", &e), FATHOM_OK);
    assert_true(r.n == 5 && r.n_told == 2);
    api_request_free(&r);
    assert_int_equal(parse(&r, API_COMPLETION, "{" P ",\"n\":2}", &e), FATHOM_OK);
    assert_true(r.n == 2 && r.n_told == 2);
    api_request_free(&r);
}

static void test_prompt_forms(void **state)
{
    (void)state;
    struct api_request r;
    struct api_error e;
    assert_int_equal(parse(&r, API_COMPLETION, "{\"prompt\":[\"ab\",\"\"]}", &e), 0);
    assert_true(r.n_prompt == 2 && r.prompts[0].n_text == 2 && r.prompts[1].n_text == 0);
    api_request_free(&r);
    assert_int_equal(parse(&r, API_COMPLETION, "{\"prompt\":[4,5,6]}", &e), 0);
    assert_true(r.n_prompt == 1 && r.prompts[0].n_id == 3 && r.prompts[0].ids[2] == 6);
    assert_null(r.prompts[0].text);
    api_request_free(&r);
    assert_int_equal(parse(&r, API_COMPLETION, "{\"prompt\":[[4],[5,6]]}", &e), 0);
    assert_true(r.n_prompt == 2 && r.prompts[1].n_id == 2);
    api_request_free(&r);
    assert_int_equal(parse(&r, API_COMPLETION, "{" P ",\"max_tokens\":0,\"echo\":true}", &e), 0);
    api_request_free(&r);
}

static void test_tool_choice_none_hides_tools(void **state)
{
    (void)state;
    struct api_request r;
    struct api_error e;
    assert_int_equal(parse(&r, API_CHAT,
                           "{" M ",\"tool_choice\":\"none\",\"tools\":[{\"type\":\"function\","
                           "\"function\":{\"name\":\"f\"}}]}",
                           &e),
                     0);
    assert_null(r.tools);
    api_request_free(&r);
}

struct rule_case {
    enum api_kind api;
    const char *body;
    enum answer_content content;
    const char *value; /* as compact JSON; NULL: none */
    const char *param;
    enum tool_choice choice;
};

static const struct rule_case rule_cases[] = {
    {API_CHAT, "{" M ",\"response_format\":{\"type\":\"text\"}}", ANSWER_CONTENT_NONE, NULL, NULL,
     TOOL_CHOICE_AUTO},
    {API_CHAT, "{" M ",\"response_format\":{\"type\":\"json_object\"}}", ANSWER_CONTENT_OBJECT,
     NULL, "response_format", TOOL_CHOICE_AUTO},
    {API_CHAT,
     "{" M ",\"response_format\":{\"type\":\"json_schema\",\"json_schema\":{\"name\":\"a\","
     "\"strict\":true,\"description\":\"d\",\"schema\":{\"type\":\"null\"}}}}",
     ANSWER_CONTENT_SCHEMA, "{\"type\":\"null\"}", "response_format.json_schema.schema",
     TOOL_CHOICE_AUTO},
    {API_COMPLETION, "{" P ",\"guided_json\":{\"type\":\"null\"}}", ANSWER_CONTENT_SCHEMA,
     "{\"type\":\"null\"}", "guided_json", TOOL_CHOICE_AUTO},
    {API_COMPLETION, "{" P ",\"guided_json\":\"{\\\"type\\\": \\\"null\\\"}\"}",
     ANSWER_CONTENT_SCHEMA, "{\"type\":\"null\"}", "guided_json", TOOL_CHOICE_AUTO},
    {API_COMPLETION, "{" P ",\"guided_regex\":\"a+\",\"guided_decoding_backend\":\"x\"}",
     ANSWER_CONTENT_REGEX, "\"a+\"", "guided_regex", TOOL_CHOICE_AUTO},
    {API_COMPLETION, "{" P ",\"regex\":\"a+\",\"ebnf\":null}", ANSWER_CONTENT_REGEX, "\"a+\"",
     "regex", TOOL_CHOICE_AUTO},
    {API_COMPLETION, "{" P ",\"json_schema\":\"{\\\"type\\\": \\\"null\\\"}\"}",
     ANSWER_CONTENT_SCHEMA, "{\"type\":\"null\"}", "json_schema", TOOL_CHOICE_AUTO},
    {API_CHAT,
     "{" M ",\"separate_reasoning\":true,\"response_format\":{\"type\":\"json_object\","
     "\"schema\":{\"type\":\"null\"}}}",
     ANSWER_CONTENT_SCHEMA, "{\"type\":\"null\"}", "response_format.schema", TOOL_CHOICE_AUTO},
    {API_COMPLETION, "{" P ",\"guided_choice\":[\"a\",\"b\"]}", ANSWER_CONTENT_CHOICE,
     "[\"a\",\"b\"]", "guided_choice", TOOL_CHOICE_AUTO},
    {API_CHAT,
     "{" M ",\"structured_outputs\":{\"choice\":[\"a\"],\"regex\":null,\"disable_fallback\":true}}",
     ANSWER_CONTENT_CHOICE, "[\"a\"]", "structured_outputs.choice", TOOL_CHOICE_AUTO},
    {API_COMPLETION, "{" P ",\"guided_grammar\":\"root ::= \\\"a\\\"\"}", ANSWER_CONTENT_EBNF,
     "\"root ::= \\\"a\\\"\"", "guided_grammar", TOOL_CHOICE_AUTO},
    {API_CHAT, "{" M ",\"ebnf\":\"start: A\"}", ANSWER_CONTENT_EBNF, "\"start: A\"", "ebnf",
     TOOL_CHOICE_AUTO},
    {API_CHAT, "{" M ",\"structured_outputs\":{\"grammar\":\"x\"}}", ANSWER_CONTENT_EBNF, "\"x\"",
     "structured_outputs.grammar", TOOL_CHOICE_AUTO},
    {API_CHAT,
     "{" M ",\"structured_outputs\":{\"structural_tag\":\"{\\\"type\\\": \\\"structural_tag\\\", "
     "\\\"format\\\": 1}\"}}",
     ANSWER_CONTENT_TAG, "{\"format\":1}", "structured_outputs.structural_tag", TOOL_CHOICE_AUTO},
    {API_COMPLETION, "{" P ",\"structural_tag\":{\"structures\":[],\"triggers\":[\"<\"]}}",
     ANSWER_CONTENT_TAG, "{\"structures\":[],\"triggers\":[\"<\"]}", "structural_tag",
     TOOL_CHOICE_AUTO},
    {API_CHAT,
     "{" M
     ",\"response_format\":{\"type\":\"structural_tag\",\"structures\":[],\"triggers\":[\"<\"]"
     "}}",
     ANSWER_CONTENT_TAG, "{\"structures\":[],\"triggers\":[\"<\"]}", "response_format",
     TOOL_CHOICE_AUTO},
    {API_CHAT, "{" M ",\"structured_outputs\":{\"json_object\":true}}", ANSWER_CONTENT_OBJECT, NULL,
     "structured_outputs.json_object", TOOL_CHOICE_AUTO},
    {API_CHAT, "{" M "," TOOL ",\"tool_choice\":\"required\"}", ANSWER_CONTENT_NONE, NULL, NULL,
     TOOL_CHOICE_REQUIRED},
    {API_CHAT,
     "{" M "," TOOL ",\"tool_choice\":{\"type\":\"function\",\"function\":{\"name\":\"f\"}}}",
     ANSWER_CONTENT_NONE, NULL, NULL, TOOL_CHOICE_NAMED},
    {API_CHAT, "{" M "," TOOL ",\"guided_json\":{}}", ANSWER_CONTENT_SCHEMA, "{}", "guided_json",
     TOOL_CHOICE_AUTO},
};

static void test_what_the_answer_must_be(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof rule_cases / sizeof rule_cases[0]; i++) {
        const struct rule_case *c = &rule_cases[i];
        struct api_request r;
        struct api_error e;
        struct buf value = {0};
        if (parse(&r, c->api, c->body, &e)) fail_msg("%s: %s", c->body, e.diag.text);
        api_request_drop_body(&r); /* the rule stays */
        assert_null(r.root);
        assert_int_equal(r.rule.content, c->content);
        assert_int_equal(r.rule.tool_choice, c->choice);
        if (c->param) assert_string_equal(r.rule.param, c->param);
        assert_int_equal(r.rule.value != NULL, c->value != NULL);
        if (c->value) {
            assert_int_equal(json_write(&value, r.rule.value), FATHOM_OK);
            assert_string_equal(buf_str(&value), c->value);
        }
        buf_free(&value);
        api_request_free(&r);
        assert_int_equal(json_arenas_used(), 0);
    }
}

static void test_each_failing_allocation_is_clean(void **state)
{
    (void)state;
    const char *bodies[] = {
        "{" M "," TOOL ",\"model\":\"x\",\"stop\":[\"a\",\"b\"],\"tool_choice\":{\"type\":"
        "\"function\",\"function\":{\"name\":\"f\"}}}",
        "{\"prompt\":[[4],[5,6]],\"model\":\"x\",\"stop\":\"a\",\"guided_json\":\"{}\"}"};
    for (int api = 0; api < 2; api++) {
        bool failed = true;
        for (long n = 0; failed; n++) {
            struct api_request r;
            struct api_error e;
            mem_fail_after(n);
            fathom_err err = parse(&r, (enum api_kind)api, bodies[api], &e);
            failed = mem_fail_hit();
            mem_fail_after(-1);
            assert_int_equal(err, failed ? FATHOM_ENOMEM : FATHOM_OK);
            assert_int_equal(e.status, failed ? 500 : 0);
            api_request_free(&r);
        }
    }
}

static void tokens_are_ids_where_a_server_says_so(void **state)
{
    (void)state;
    static const struct api_bounds ids = {.n_vocab = 1000, .tokens_as_ids = true};
    static const struct {
        const char *field;
        const struct api_bounds *bounds;
        bool as_ids;
    } cases[] = {{"", &BOUNDS, false},
                 {"", &ids, true},
                 {",\"return_tokens_as_token_ids\":false", &ids, false},
                 {",\"return_tokens_as_token_ids\":true", &BOUNDS, true}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct api_request r;
        struct api_error e = {0};
        char body[128];
        int n = snprintf(body, sizeof body, "{\"prompt\":\"a\"%s}", cases[i].field);
        assert_int_equal(
            api_request_parse(&r, API_COMPLETION, body, (size_t)n, cases[i].bounds, &e), FATHOM_OK);
        assert_int_equal(r.tokens_as_ids, cases[i].as_ids);
        api_request_free(&r);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(tokens_are_ids_where_a_server_says_so),
        cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_malformed_json_has_a_position),
        cmocka_unit_test(test_message_paths_are_kept),
        cmocka_unit_test(test_equal_salts_are_equal),
        cmocka_unit_test(test_every_value_arrives),
        cmocka_unit_test(test_numbers_and_flags_may_be_text),
        cmocka_unit_test(test_an_invocation_is_a_chat_with_messages),
        cmocka_unit_test(test_defaults_are_told_from_values),
        cmocka_unit_test(test_values_mean_what_they_mean_to_vllm),
        cmocka_unit_test(test_prompt_logprobs_are_the_more_of_two_wishes),
        cmocka_unit_test(test_usage_of_each_chunk_comes_with_that_of_all),
        cmocka_unit_test(test_prompt_logprobs_of_nothing_may_stream),
        cmocka_unit_test(test_best_of_makes_more_choices_than_are_told),
        cmocka_unit_test(test_prompt_forms),
        cmocka_unit_test(test_tool_choice_none_hides_tools),
        cmocka_unit_test(test_what_the_answer_must_be),
        cmocka_unit_test(test_each_failing_allocation_is_clean),
    };
    json_set_alloc_funcs(mem_alloc, mem_free);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
