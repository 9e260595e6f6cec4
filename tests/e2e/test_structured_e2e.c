/* test_structured_e2e.c - outputs held to a grammar, over loopback: what a request says reaches the
 * engine as a constraint, which the scripted engine must satisfy as a model would */
#include <stdio.h>
#include <string.h>

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "support/world.h"

#define SCHEMA                                                                                     \
    "{\"type\":\"object\",\"properties\":{\"a\":{\"type\":\"integer\"}},\"required\":[\"a\"]}"
#define FORMAT                                                                                     \
    ",\"response_format\":{\"type\":\"json_schema\",\"json_schema\":{\"name\":\"n\","              \
    "\"schema\":" SCHEMA "}}"
#define TOOL(strict)                                                                               \
    ",\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"f\",\"strict\":" strict           \
    ",\"parameters\":" SCHEMA "}}]"
#define D "｜DSML｜"
/* a call of f with one parameter, as it stands within a JSON string */
#define CALL(kind, value)                                                                          \
    "\\n\\n<" D "function_calls>\\n<" D "invoke name=\\\"f\\\">\\n<" D                             \
    "parameter name=\\\"a\\\" string=\\\"" kind "\\\">" value "</" D "parameter>\\n</" D           \
    "invoke>\\n</" D "function_calls>"
#define NAMED ",\"tool_choice\":{\"type\":\"function\",\"function\":{\"name\":\"f\"}}"

#define SUM "root ::= root [+-] t | t\\nt ::= [0-9]+ | \\\"(\\\" root \\\")\\\""
#define TAG                                                                                        \
    ",\"response_format\":{\"type\":\"structural_tag\",\"structures\":[{\"begin\":\"<f>\","        \
    "\"schema\":" SCHEMA ",\"end\":\"</f>\"}],\"triggers\":[\"<f\"]}"

struct step {
    const char *script;
    const char *fields;
    int status;
    const char *part;
};

static void run_steps(const struct step *steps, size_t n)
{
    struct world w;
    struct http_client c;
    world_open(&w, NULL, NULL);
    world_connect(&c, &w);
    for (size_t i = 0; i < n; i++) {
        expect_chat(&c, steps[i].script, steps[i].fields, steps[i].status, steps[i].part);
    }
    http_client_close(&c);
    world_close(&w);
}

static void test_contents(void **state)
{
    (void)state;
    static const struct step steps[] = {
        {"say={\\\"a\\\": 1}", FORMAT, 200, "\"content\":\"{\\\"a\\\": 1}\""},
        {"say={\\\"a\\\": 1}", FORMAT ",\"stream\":true", 200, "\"finish_reason\":\"stop\""},
        {"say={\\\"a\\\": true}", FORMAT, 500, "\"code\":\"grammar_failed\""},
        {"say=Hello!", FORMAT ",\"n\":2", 500, "the grammar of the answer left no token"},
        {"say={\\\"a\\\": 1}", ",\"guided_json\":" SCHEMA ",\"n\":3,\"logprobs\":true", 200,
         "\"index\":2"},
        {"say={\\\"b\\\": [1]}", ",\"response_format\":{\"type\":\"json_object\"}", 200, "[1]}"},
        {"say=[1]", ",\"response_format\":{\"type\":\"json_object\"}", 500, "grammar_failed"},
        {"say=Hello!", ",\"response_format\":{\"type\":\"text\"}", 200, "Hello!"},
        {"say=cat", ",\"guided_choice\":[\"cat\",\"dog\"]", 200, "\"content\":\"cat\""},
        {"say=cow", ",\"structured_outputs\":{\"choice\":[\"cat\",\"dog\"]}", 500, ""},
        {"say=ab12", ",\"guided_regex\":\"[a-z]+[0-9]+\"", 200, "ab12"},
        {"say=ab12", ",\"guided_regex\":\"[a-z]+[0-9]+\",\"stop\":\"b1\"", 200,
         "\"content\":\"a\""},
        {"say=ab12", ",\"guided_regex\":\"[a-z]+[0-9]+\",\"max_tokens\":2", 200,
         "\"finish_reason\":\"length\""},
        {"say=1+(2)", ",\"guided_grammar\":\"" SUM "\",\"n\":2", 200, "\"content\":\"1+(2)\""},
        {"say=1+(2)", ",\"ebnf\":\"" SUM "\",\"stream\":true", 200, "[DONE]"},
        {"say=1+(2", ",\"structured_outputs\":{\"grammar\":\"" SUM "\"}", 500, "grammar_failed"},
        {"say=Now <f>{\\\"a\\\": 1}</f>.", TAG, 200, "Now <f>{\\\"a\\\": 1}</f>."},
        {"say=Nothing.", TAG, 200, "\"content\":\"Nothing.\""},
        {"say=Now <f>{\\\"b\\\": 1}</f>.", TAG, 500, "grammar_failed"},
    };
    run_steps(steps, sizeof steps / sizeof steps[0]);
}

static void test_reasoning_is_free(void **state)
{
    (void)state;
    static const char thinking[] = FORMAT ",\"chat_template_kwargs\":{\"thinking\":true}";
    static const struct step steps[] = {
        {"say=Well, {[ what?</think>{\\\"a\\\": 1}", thinking, 200,
         "\"content\":\"{\\\"a\\\": 1}\",\"refusal\":null,\"reasoning_content\":\"Well, {[ "
         "what?\""},
        {"say=Well</think>no", thinking, 500, "grammar_failed"},
        {"say={\\\"a\\\": 1}", thinking, 500, "grammar_failed"},
        {"say=1+?</think>1+(2)",
         ",\"ebnf\":\"" SUM "\",\"chat_template_kwargs\":{\"thinking\":true}", 200,
         "\"content\":\"1+(2)\""},
    };
    run_steps(steps, sizeof steps / sizeof steps[0]);
}

static void test_tokens_that_are_barred(void **state)
{
    (void)state;
    static const struct step steps[] = {
        {"say=abcab", ",\"bad_words\":[\"cb\",\"abd\"]", 200, "\"content\":\"abcab\""},
        {"say=abcab", ",\"bad_words\":[\"x\",\"bca\"]", 400,
         "allowed_token_ids and bad_words left no token to go on with after 3"},
        {"say=a cab", ",\"bad_words\":[\"cab\"]", 400, "after 4"},
        {"say=cab", ",\"guided_choice\":[\"cab\"],\"bad_words\":[\"b\"]", 400, "after 2"},
        {"say=cab", ",\"guided_choice\":[\"cab\"],\"bad_words\":[\"d\"]", 200, "\"cab\""},
        {"say=cab", ",\"allowed_token_ids\":[1]", 400, "after 0"},
        {"say=x", ",\"bad_words\":[\"aaaaaaaaaaaaaaaaa\"]", 400,
         "bad_words[0] is 17 tokens long, needed is 1 to 16"},
    };
    run_steps(steps, sizeof steps / sizeof steps[0]);
}

static void test_calls(void **state)
{
    (void)state;
    static const char args[] = "\"name\":\"f\",\"arguments\":\"{\\\"a\\\": 7}\"";
    static const struct step steps[] = {
        {"say=" CALL("false", "7"), TOOL("false") ",\"tool_choice\":\"required\"", 200, args},
        {"say=" CALL("false", "7"), TOOL("false") ",\"tool_choice\":\"required\"", 200,
         "\"finish_reason\":\"tool_calls\""},
        {"say=" CALL("false", "7"), TOOL("false") NAMED, 200, "\"finish_reason\":\"stop\""},
        {"say=" CALL("true", "7"), TOOL("false") ",\"tool_choice\":\"required\"", 500, ""},
        {"say=No.", TOOL("false") ",\"tool_choice\":\"required\"", 500, "grammar_failed"},
        {"say=Hm</think>" CALL("false", "7"),
         TOOL("false") ",\"tool_choice\":\"required\",\"thinking\":{\"type\":\"enabled\"}", 200,
         args},
        {"say=No.", TOOL("false") ",\"tool_choice\":\"auto\"", 200, "No."},
        {"say=" CALL("true", "x"), TOOL("false"), 200, "{\\\"a\\\": \\\"x\\\"}"},
        {"say=" CALL("true", "x"), TOOL("true"), 500, "grammar_failed"},
        {"say=Look: " CALL("false", "7"), TOOL("true"), 200, args},
        {"say=No.", TOOL("true"), 200, "\"content\":\"No.\""},
        {"say={\\\"a\\\": 1}", TOOL("false") FORMAT, 200, "\"content\":\"{\\\"a\\\": 1}\""},
        {"say=" CALL("false", "7"), TOOL("false") FORMAT, 200, args},
        {"say=No.", TOOL("false") FORMAT, 500, "grammar_failed"},
        {"say={\\\"a\\\": 1}", TOOL("false") FORMAT ",\"tool_choice\":\"none\"", 200, "a"},
    };
    run_steps(steps, sizeof steps / sizeof steps[0]);
}

static void test_refusals(void **state)
{
    (void)state;
    static const struct step steps[] = {
        {"say=x", ",\"guided_json\":{\"type\":\"array\",\"items\":{\"contains\":{}}}", 400,
         "schema #/items: the keyword \\\"contains\\\" is not supported\",\"type\":"
         "\"invalid_request_error\",\"param\":\"guided_json\",\"code\":\"unsupported_value\""},
        {"say=x", ",\"guided_regex\":\"(a\"", 400, "\"param\":\"guided_regex\""},
        {"say=x", ",\"guided_choice\":[]", 400, "\"code\":\"invalid_value\""},
        {"say=x", ",\"guided_choice\":[1]", 400, "choice 0 is an integer"},
        {"say=x", ",\"guided_grammar\":\"root ::= x\"", 400,
         "grammar, line 1, column 10: rule \\\"x\\\" is not defined\",\"type\":"
         "\"invalid_request_error\",\"param\":\"guided_grammar\",\"code\":\"invalid_value\""},
        {"say=x", ",\"ebnf\":\"root ::= \\\"a\\\" |\\n  (\\\"b\\\"\"", 400,
         "line 2, column 3: a ( without"},
        {"say=x", ",\"structured_outputs\":{\"grammar\":\"start: <[3]>\"}", 400,
         "\"code\":\"unsupported_value\""},
        {"say=x",
         ",\"response_format\":{\"type\":\"structural_tag\",\"format\":{\"type\":\"token\"}}", 400,
         "structural tag format: the type \\\"token\\\" is not supported\",\"type\":"
         "\"invalid_request_error\",\"param\":\"response_format\",\"code\":\"unsupported_value\""},
        {"say=x", ",\"tool_choice\":\"required\"", 400, "there are no tools"},
        {"say=x", TOOL("true") ",\"tool_choice\":\"required\",\"guided_regex\":\"x\"", 400,
         "cannot be both"},
        {"say=x", FORMAT ",\"guided_json\":{}", 400, "only one may"},
        {"say=x",
         ",\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"f\",\"parameters\":{"
         "\"contains\":"
         "{}}}}],\"tool_choice\":\"required\"",
         400, "\"param\":\"tools\""},
    };
    run_steps(steps, sizeof steps / sizeof steps[0]);
}

static void test_completions_and_metrics(void **state)
{
    (void)state;
    struct world w;
    struct http_client c;
    world_open(&w, NULL, NULL);
    world_connect(&c, &w);
    for (int i = 0; i < 3; i++) {
        expect(&c, "POST", COMPLETIONS,
               "{\"prompt\":[\"[[say={\\\"a\\\": 2}]]\",\"[[say={\\\"a\\\": "
               "3}]]\"],\"guided_json\":" SCHEMA ",\"max_tokens\":20}",
               200, "\"text\":\"{\\\"a\\\": 3}\"");
    }
    expect_chat(&c, "say=x", ",\"guided_json\":{\"contains\":{}}", 400, "");
    expect(&c, "GET", "/metrics", NULL, 200,
           "fathom_grammar_cache_hits_total{model_name=\"m\",engine=\"0\"} 2\n");
    expect(&c, "GET", "/metrics", NULL, 200,
           "fathom_grammar_cache_misses_total{model_name=\"m\",engine=\"0\"} 2\n");
    expect(&c, "GET", "/metrics", NULL, 200,
           "fathom_grammar_failures_total{model_name=\"m\",engine=\"0\"} 1\n");
    expect(&c, "GET", "/metrics", NULL, 200,
           "fathom_grammar_compile_seconds_count{model_name=\"m\",engine=\"0\"} 2\n");
    http_client_close(&c);
    world_close(&w);
}

/* All of it at once: forced calls of three choices in one stream, at temperature 1, with stop
 * strings and a least length. The client goes at the start, in the midst of a call, at its end. */
static void test_leaving_forced_calls(void **state)
{
    (void)state;
    static const char fields[] =
        TOOL("false") ",\"tool_choice\":\"required\",\"stream\":true,\"n\":3,"
                      "\"temperature\":1,\"min_tokens\":9,\"seed\":5,"
                      "\"stop\":[\"never\",\"said\"],\"logprobs\":true";
    static const char *const until[] = {"\"role\":\"assistant\"", "\"name\":\"f\"",
                                        "arguments\":\"{", "finish_reason\":\"tool_calls\""};
    struct world w;
    struct http_client c;
    uint64_t n_cancelled = 0;
    char script[800], digits[300];
    memset(digits, '7', sizeof digits);
    (void)snprintf(script, sizeof script, "step_ms=10;then=stall;say=" CALL("false", "%.*s"),
                   (int)sizeof digits, digits); /* without an end: who leaves is in time */
    world_open(&w, NULL, NULL);
    for (size_t i = 0; i < sizeof until / sizeof until[0]; i++) {
        world_connect(&c, &w);
        send_chat(&c, i < 3 ? script : "say=" CALL("false", "7"), fields);
        assert_true(http_client_wait_for(&c, until[i]));
        http_client_close(&c);
        wait_for_count(w.engine, fake_engine_n_alive, 0);
        if (i < 3) wait_for_count(w.engine, fake_engine_n_cancelled, n_cancelled += 3);
        fake_engine_stall(w.engine, false);
    }
    world_connect(&c, &w);
    expect_chat(&c, "say=" CALL("false", "7"), fields, 200, "[DONE]");
    http_client_close(&c);
    world_close(&w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_contents),
        cmocka_unit_test(test_reasoning_is_free),
        cmocka_unit_test(test_tokens_that_are_barred),
        cmocka_unit_test(test_calls),
        cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_completions_and_metrics),
        cmocka_unit_test(test_leaving_forced_calls),
    };
    return cmocka_run_group_tests(tests, world_setup, world_teardown);
}
