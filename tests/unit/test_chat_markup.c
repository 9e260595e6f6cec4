/* test_chat_markup.c - tool markup that is odd, broken or cut short: what comes out, event by
 * event, for every cut */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/buf.h"
#include "chat/chat_int.h"
#include "chat/parser_int.h"
#include "support/chat_answer.h"
#include "support/json_tree.h"

enum { N_RANDOM_CUT = 60 };

struct markup_case {
    const char *text;
    const char *log; /* as in support/chat_answer.h */
};

static json_t *schema_tools(void)
{
    const char *text = "[{\"type\":\"function\",\"function\":{\"name\":\"f\",\"parameters\":{"
                       "\"type\":\"object\",\"properties\":{\"s\":{\"type\":\"string\"},\"n\":{"
                       "\"type\":\"integer\"},\"u\":{\"type\":[\"string\",\"null\"]},\"m\":{"
                       "\"type\":[\"integer\",\"null\"]},\"x\":{}}}}}]";
    return json_tree_of(text);
}

static void check(enum chat_encoding markup, const json_t *tools, const char *text, size_t n,
                  const char *log)
{
    struct chat_style s = {.tool_markup = markup, .parse_tools = true, .parse_reasoning = true};
    struct answer_input in = {&s, false, tools, text, n};
    for (uint64_t i = 0; i < N_RANDOM_CUT; i++) {
        enum answer_cut cut = i == 0 ? ANSWER_WHOLE : i == 1 ? ANSWER_BYTES : ANSWER_RANDOM;
        struct answer a;
        assert_int_equal(answer_run(&a, &in, cut, i), FATHOM_OK);
        if (strcmp(buf_str(&a.log), log) != 0) {
            print_error("text: %.300s\n got: %.300s\nwant: %.300s\n", text, buf_str(&a.log), log);
        }
        assert_string_equal(buf_str(&a.log), log);
        answer_free(&a);
    }
}

static void run(enum chat_encoding markup, const struct markup_case *cases, size_t n)
{
    json_t *tools = schema_tools();
    for (size_t i = 0; i < n; i++) {
        check(markup, tools, cases[i].text, strlen(cases[i].text), cases[i].log);
    }
    json_decref(tools);
}

#define RUN(markup, cases) run((markup), (cases), sizeof(cases) / sizeof(cases)[0])

#define CALLS "<｜tool▁calls▁begin｜>"
#define CALLS_END "<｜tool▁calls▁end｜>"
#define CALL "<｜tool▁call▁begin｜>"
#define CALL_END "<｜tool▁call▁end｜>"
#define SEP "<｜tool▁sep｜>"

static const struct markup_case v31_cases[] = {
    /* well formed, with white space where there should be none */
    {"a" CALLS CALL "f" SEP "{\"x\": [1, \"}\"]}" CALL_END CALLS_END,
     "[C a][B f][A {\"x\": [1, \"}\"]}][E]"},
    {CALLS "\n" CALL " f \n" SEP " \n{}\n" CALL_END "\n" CALL "g" SEP "{}" CALL_END "\n" CALLS_END
           "\n\n",
     "[B f][A {}][E][B g][A {}][E]"},
    /* a fence, as V3 has it */
    {CALLS CALL "f" SEP "\n```json\n{\"a\":1}\n```" CALL_END CALLS_END, "[B f][A {\"a\":1}][E]"},
    /* outer markers missing */
    {CALL "f" SEP "{}" CALL_END, "[B f][A {}][E]"},
    {CALLS CALL "f" SEP "{}" CALLS_END, "[B f][A {}][E]"},
    {CALLS CALL "f" SEP "{}" CALL "g" SEP "{}", "[B f][A {}][E][B g][A {}][E]"},
    {CALLS CALL "f" SEP "{}" CALL_END CALL "g" SEP "{}", "[B f][A {}][E][B g][A {}][E]"},
    /* two blocks, text between and after */
    {CALLS CALL "f" SEP "{}" CALL_END CALLS_END "\n\n" CALLS CALL "g" SEP "{}" CALL_END CALLS_END,
     "[B f][A {}][E][B g][A {}][E]"},
    {CALLS CALL "f" SEP "{}" CALL_END " and " CALL "g" SEP "{}" CALL_END CALLS_END "\nend",
     "[B f][A {}][E][C  and ][B g][A {}][E][C \nend]"},
    /* no call at all */
    {"a<b<｜tool▁calls", "[C a<b<｜tool▁calls]"},
    {CALLS, "[C " CALLS "]"},
    {CALLS " " CALLS_END "x", "[C " CALLS " " CALLS_END "x]"},
    {CALLS "oops" CALL "f" SEP "{}" CALL_END CALLS_END, "[C " CALLS "oops][B f][A {}][E]"},
    {CALLS CALLS CALL "f" SEP "{}" CALL_END, "[C " CALLS "][B f][A {}][E]"},
    {CALL SEP "{}" CALL_END, "[C " CALL SEP "{}" CALL_END "]"},
    {CALL "f" CALL_END, "[C " CALL "f" CALL_END "]"},
    {CALL "f\x01" SEP "{}", "[C " CALL "f\x01" SEP "{}]"},
    {CALLS_END CALL_END SEP, "[C " CALLS_END CALL_END SEP "]"},
    {"\n\n" CALL "f<｜tool▁se", "[C \n\n" CALL "f<｜tool▁se]"},
    /* a name, then no object */
    {CALL "f" SEP CALL_END CALLS_END "x", "[B f][A {}][E][C x]"},
    {CALL "f" SEP "[1]" CALL_END, "[B f][A {}][E][C [1]" CALL_END "]"},
    {CALL "f" SEP " \"s\"", "[B f][A {}][E][C  \"s\"]"},
    {CALL "f" SEP "```python\n{}", "[B f][A {}][E][C ```python\n{}]"},
    /* the object ends early, or late */
    {CALL "f" SEP "{\"a\": [1, {\"b\": \"c\"" CALL_END CALLS_END "x",
     "[B f][A {\"a\": [1, {\"b\": \"c\"}]}][E][C x]"},
    {CALL "f" SEP "{\"a\": 1\n```" CALL_END "x", "[B f][A {\"a\": 1\n}][E][C x]"},
    {CALL "f" SEP "{\"a\": 1}}" CALL_END, "[B f][A {\"a\": 1}][E][C }" CALL_END "]"},
    {CALL "f" SEP "{\"a\": 1} ```py", "[B f][A {\"a\": 1}][E][C  ```py]"},
    /* not JSON: passed on, brackets followed */
    {CALL "f" SEP "{'a': <b>, `c`: \"}\"}" CALL_END, "[B f][A {'a': <b>, `c`: \"}\"}][E]"},
    {CALL "f" SEP "{\"a\": \"x\ny\t\x02\"}" CALL_END, "[B f][A {\"a\": \"x\\ny\\t\\u0002\"}][E]"},
    /* a second call that is none stays inside the block */
    {CALLS CALL "f" SEP "{}" CALL_END CALL "no" CALL "g" SEP "{}" CALL_END CALLS_END,
     "[B f][A {}][E][C " CALL "no][B g][A {}][E]"},
};

static const struct markup_case v31_cut_cases[] = {
    {CALL "f" SEP, "[B f][A {}][E]"},
    {CALL "f" SEP " ``", "[B f][A {}][E]"},
    {CALL "f" SEP "```js", "[B f][A {}][E]"},
    {CALL "f" SEP "<｜tool▁ca", "[B f][A {}][E]"},
    {CALL "f" SEP "{", "[B f][A {}][E]"},
    {CALL "f" SEP "{\"a", "[B f][A {\"a\": null}][E]"},
    {CALL "f" SEP "{\"a\"", "[B f][A {\"a\": null}][E]"},
    {CALL "f" SEP "{\"a\":", "[B f][A {\"a\":null}][E]"},
    {CALL "f" SEP "{\"a\":tr", "[B f][A {\"a\":true}][E]"},
    {CALL "f" SEP "{\"a\":-", "[B f][A {\"a\":-0}][E]"},
    {CALL "f" SEP "{\"a\":1,", "[B f][A {\"a\":1,\"\": null}][E]"},
    {CALL "f" SEP "{\"a\":[1,", "[B f][A {\"a\":[1,null]}][E]"},
    {CALL "f" SEP "{\"a\":\"x\\", "[B f][A {\"a\":\"x\\\\\"}][E]"},
    {CALL "f" SEP "{\"a\":\"\xe4\xb8\xad\\u4e", "[B f][A {\"a\":\"中\\u4e00\"}][E]"},
    {CALL "f" SEP "{\"a\":1<｜tool", "[B f][A {\"a\":1}][E]"},
    {CALL "f" SEP "{}<｜tool▁call", "[B f][A {}][E]"},
    {CALL "f" SEP "{}" CALL_END " <｜tool▁calls▁en", "[B f][A {}][E]"},
    {CALL "f" SEP "{}" CALL_END " <", "[B f][A {}][E][C  <]"},
    {CALL "f" SEP "{}" CALL_END "x<｜tool▁calls▁en", "[B f][A {}][E][C x<｜tool▁calls▁en]"},
};

static const struct markup_case v3_cases[] = {
    {"a" CALLS CALL "function" SEP "f\n```json\n{\"x\": 1}\n```" CALL_END "\n" CALL "function" SEP
     "g\n```json\n{}\n```" CALL_END CALLS_END "\n",
     "[C a][B f][A {\"x\": 1}][E][B g][A {}][E]"},
    /* fence, type or end markers missing */
    {CALLS CALL "function" SEP "f\n{\"x\": 1}" CALLS_END, "[B f][A {\"x\": 1}][E]"},
    {CALL "function" SEP "f{}", "[B f][A {}][E]"},
    {CALL "function" SEP "f```json\n{}\n```\n" CALLS_END "\nx", "[B f][A {}][E][C \nx]"},
    {CALL SEP "f\n```\n{}\n```" CALL_END, "[B f][A {}][E]"},
    {CALL "function" SEP "f\n```json\n```" CALL_END "x", "[B f][A {}][E][C x]"},
    /* not calls */
    {CALL "function" SEP "\n```json\n{}", "[C " CALL "function" SEP "\n```json\n{}]"},
    {CALL "function" SEP "f", "[C " CALL "function" SEP "f]"},
    {CALL "function" SEP "f<x>\n{}", "[C " CALL "function" SEP "f<x>\n{}]"},
    {CALL "function\n{}", "[C " CALL "function\n{}]"},
    /* cut short */
    {CALL "function" SEP "f\n", "[B f][A {}][E]"},
    {CALL "function" SEP "f\n```json\n{\"a\": \"b", "[B f][A {\"a\": \"b\"}][E]"},
    {CALL "function" SEP "f\n```json\n{}\n``", "[B f][A {}][E]"},
    {CALL "function" SEP "f\n```json\n{}\n```", "[B f][A {}][E]"},
};

#define D "｜DSML｜"
#define BLOCK "<" D "function_calls>"
#define BLOCK_END "</" D "function_calls>"
#define INVOKE(name) "<" D "invoke name=\"" name "\">"
#define INVOKE_END "</" D "invoke>"
#define PARAM(name, string) "<" D "parameter name=\"" name "\" string=\"" string "\">"
#define OPEN_PARAM(name) "<" D "parameter name=\"" name "\">"
#define PARAM_END "</" D "parameter>"

static const struct markup_case v32_cases[] = {
    {"a\n\n\n" BLOCK "\n" INVOKE("f") "\n" PARAM("s", "true") "x\"y\n" PARAM_END "\n" PARAM(
         "n", "false") "1" PARAM_END "\n" INVOKE_END "\n" BLOCK_END,
     "[C a\n][B f][A {\"s\": \"x\\\"y\\n\", \"n\": 1}][E]"},
    {"a\n" BLOCK INVOKE("f") INVOKE_END INVOKE("g") "\n\n" INVOKE_END BLOCK_END "\n",
     "[C a][B f][A {}][E][B g][A {}][E]"},
    {"\n\n<\n\n\n" INVOKE("f") INVOKE_END "\n\n" BLOCK INVOKE("g") INVOKE_END,
     "[C \n\n<\n][B f][A {}][E][B g][A {}][E]"},
    /* attributes in another order, with white space, or unknown */
    {"<" D "invoke  name = \"f\" id=\"1\" ><" D
     "parameter\nstring=\"false\" name=\"n\"> 1 " PARAM_END INVOKE_END,
     "[B f][A {\"n\":  1 }][E]"},
    {INVOKE("a>b") "<" D "parameter name=\"<k>\" string=\"true\">" PARAM_END INVOKE_END,
     "[B a>b][A {\"<k>\": \"\"}][E]"},
    /* what the schema says when the markup does not */
    {INVOKE("f") OPEN_PARAM("s") "1" PARAM_END OPEN_PARAM("n") "1" PARAM_END OPEN_PARAM(
         "u") "1" PARAM_END OPEN_PARAM("x") "1" PARAM_END OPEN_PARAM("?") "1" PARAM_END INVOKE_END,
     "[B f][A {\"s\": \"1\", \"n\": 1, \"u\": \"1\", \"x\": \"1\", \"?\": \"1\"}][E]"},
    {INVOKE("f") OPEN_PARAM("m") "1" PARAM_END INVOKE_END, "[B f][A {\"m\": 1}][E]"},
    {INVOKE("g") PARAM("n", "True") "1" PARAM_END INVOKE_END, "[B g][A {\"n\": \"1\"}][E]"},
    /* "false" values that are not JSON */
    {INVOKE("f") PARAM("a", "false") "True" PARAM_END PARAM("b", "false") " None\n" PARAM_END PARAM(
         "c", "false") PARAM_END PARAM("d", "false") "no \"json\"" PARAM_END INVOKE_END,
     "[B f][A {\"a\": true, \"b\": null, \"c\": null, \"d\": \"no \\\"json\\\"\"}][E]"},
    {INVOKE("f") PARAM("a", "false") "[\"x\ny\", {\"k\":1}]" PARAM_END INVOKE_END,
     "[B f][A {\"a\": [\"x\\ny\", {\"k\":1}]}][E]"},
    {INVOKE("f") PARAM("a", "false") "[1, 2" PARAM_END INVOKE_END,
     "[B f][A {\"a\": \"[1, 2\"}][E]"},
    {INVOKE("f") PARAM("a", "false") "{\"t\": \"<b>`\"}" PARAM_END INVOKE_END,
     "[B f][A {\"a\": {\"t\": \"<b>`\"}}][E]"},
    /* nearly a closing tag inside a value */
    {INVOKE("f") PARAM("s", "true") "a</" D "parameter</" D "param>< </" PARAM_END INVOKE_END,
     "[B f][A {\"s\": \"a</" D "parameter</" D "param>< </\"}][E]"},
    /* a JSON object instead of parameters */
    {BLOCK "\n" INVOKE("f") "\n{\"a\": [1]}\n" INVOKE_END "\n" BLOCK_END,
     "[B f][A {\"a\": [1]}][E]"},
    {INVOKE("f") "{\"a\": 1" INVOKE_END BLOCK_END "x", "[B f][A {\"a\": 1}][E][C x]"},
    /* end tags missing */
    {BLOCK INVOKE("f") PARAM("s", "true") "x" PARAM_END BLOCK_END "y",
     "[B f][A {\"s\": \"x\"}][E][C y]"},
    {BLOCK INVOKE("f") PARAM("s", "true") "x" PARAM_END INVOKE("g") INVOKE_END BLOCK_END,
     "[B f][A {\"s\": \"x\"}][E][B g][A {}][E]"},
    /* no call at all */
    {BLOCK "\n" BLOCK_END, "[C " BLOCK "\n" BLOCK_END "]"},
    {"\n\n" BLOCK "\nwhat", "[C \n\n" BLOCK "\nwhat]"},
    {BLOCK "x" INVOKE("f") INVOKE_END BLOCK_END, "[C " BLOCK "x][B f][A {}][E]"},
    {INVOKE("") INVOKE_END, "[C " INVOKE("") INVOKE_END "]"},
    {"<" D "invoke>", "[C <" D "invoke>]"},
    {"<" D "invoke name=f>", "[C <" D "invoke name=f>]"},
    {"<" D "invoked name=\"f\">", "[C <" D "invoked name=\"f\">]"},
    {"<" D "invoke name=\"f\"<", "[C <" D "invoke name=\"f\"<]"},
    {BLOCK_END PARAM_END INVOKE_END, "[C " BLOCK_END PARAM_END INVOKE_END "]"},
    /* text inside a call ends it */
    {BLOCK INVOKE("f") "\noops\n" PARAM("s", "true") "x" PARAM_END INVOKE_END "\n" INVOKE("g")
         INVOKE_END BLOCK_END "z",
     "[B f][A {}][E][C \noops\n" PARAM("s", "true") "x" PARAM_END INVOKE_END
                                                    "][B g][A {}][E][C z]"},
    {INVOKE("f") PARAM("s", "true") "x" PARAM_END "{}" INVOKE_END,
     "[B f][A {\"s\": \"x\"}][E][C {}" INVOKE_END "]"},
    /* text after the block */
    {BLOCK INVOKE("f") INVOKE_END BLOCK_END "\n\nDone. " BLOCK_END,
     "[B f][A {}][E][C \n\nDone. " BLOCK_END "]"},
};

static const struct markup_case v32_cut_cases[] = {
    {"a\n\n<", "[C a\n\n<]"},
    {"a\n\n" BLOCK, "[C a\n\n" BLOCK "]"},
    {BLOCK "\n<" D "invoke name=\"f", "[C " BLOCK "\n<" D "invoke name=\"f]"},
    {INVOKE("f"), "[B f][A {}][E]"},
    {INVOKE("f") "\n<" D "para", "[B f][A {}][E]"},
    {INVOKE("f") "\n</" D "inv", "[B f][A {}][E]"},
    {INVOKE("f") PARAM("s", "true"), "[B f][A {\"s\": \"\"}][E]"},
    {INVOKE("f") PARAM("s", "true") "x</" D "parameter", "[B f][A {\"s\": \"x\"}][E]"},
    {INVOKE("f") PARAM("s", "true") "x<", "[B f][A {\"s\": \"x<\"}][E]"},
    {INVOKE("f") PARAM("s", "true") "x</", "[B f][A {\"s\": \"x</\"}][E]"},
    {INVOKE("f") PARAM("n", "false"), "[B f][A {\"n\": null}][E]"},
    {INVOKE("f") PARAM("n", "false") "[1, {\"a", "[B f][A {\"n\": [1, {\"a\": null}]}][E]"},
    {INVOKE("f") PARAM("n", "false") "tr</" D, "[B f][A {\"n\": true}][E]"},
    {INVOKE("f") PARAM("n", "false") "word", "[B f][A {\"n\": \"word\"}][E]"},
    {INVOKE("f") PARAM("n", "false") "1" PARAM_END, "[B f][A {\"n\": 1}][E]"},
    {INVOKE("f") "{\"a\": \"b", "[B f][A {\"a\": \"b\"}][E]"},
    {INVOKE("f") "{}</" D "invoke", "[B f][A {}][E]"},
    {INVOKE("f") INVOKE_END "\n</" D "function_calls", "[B f][A {}][E]"},
};

static void test_v31(void **state)
{
    (void)state;
    RUN(CHAT_ENCODING_V31, v31_cases);
    RUN(CHAT_ENCODING_V31, v31_cut_cases);
}

static void test_v3(void **state)
{
    (void)state;
    RUN(CHAT_ENCODING_V3, v3_cases);
    RUN(CHAT_ENCODING_R1, v3_cases);
}

static void test_v32(void **state)
{
    (void)state;
    RUN(CHAT_ENCODING_V32, v32_cases);
    RUN(CHAT_ENCODING_V32, v32_cut_cases);
}

/* ---- limits ----------------------------------------------------------------------------- */

static void fill(struct buf *b, char c, size_t n)
{
    for (size_t i = 0; i < n; i++) assert_int_equal(buf_add_char(b, c), FATHOM_OK);
}

/* before, n times c, after; the same for the log */
static void check_filled(enum chat_encoding markup, const char *before, char c, size_t n,
                         const char *after, const char *log_before, const char *log_after)
{
    struct buf text = {0}, log = {0};
    json_t *tools = schema_tools();
    (void)buf_add_str(&text, before);
    (void)buf_add_str(&log, log_before);
    fill(&text, c, n);
    if (log_after) {
        fill(&log, c, n);
        (void)buf_add_str(&log, log_after);
    }
    (void)buf_add_str(&text, after);
    check(markup, tools, buf_str(&text), text.len, buf_str(&log));
    json_decref(tools);
    buf_free(&text);
    buf_free(&log);
}

static void test_limits(void **state)
{
    (void)state;
    const enum chat_encoding v31 = CHAT_ENCODING_V31, v32 = CHAT_ENCODING_V32;
    check_filled(v31, CALL, 'n', PARSER_NAME_MAX, SEP "{}", "[B ", "][A {}][E]");
    check_filled(v31, CALL, 'n', PARSER_NAME_MAX + 1, SEP "{}", "[C " CALL, SEP "{}]");
    check_filled(v31, CALL "f" SEP, ' ', PARSER_SPACE_MAX, "{}", "[B f][A {}][E]", NULL);
    check_filled(v31, CALL "f" SEP, ' ', PARSER_SPACE_MAX + 1, "{}", "[B f][A {}][E][C ", "{}]");
    check_filled(v31, CALL "f" SEP "{}" CALL_END, '\n', PARSER_SPACE_MAX, "", "[B f][A {}][E]",
                 NULL);
    check_filled(v31, CALL "f" SEP "{}" CALL_END, '\n', PARSER_SPACE_MAX + 1, "",
                 "[B f][A {}][E][C ", "]");
    check_filled(v31, "", '\n', 3000, "", "[C ", "]");
    check_filled(v32, "", '\n', 3000, "", "[C ", "]");
    check_filled(v32, "", '<', 3000, "", "[C ", "]");
    check_filled(v32, "<" D "invoke name=\"", 'n', PARSER_NAME_MAX, "\">" INVOKE_END, "[B ",
                 "][A {}][E]");
    check_filled(v32, "<" D "invoke name=\"", 'n', PARSER_NAME_MAX + 1, "\">",
                 "[C <" D "invoke name=\"", "\">]");
    check_filled(v32, "<" D "invoke name=\"f\" y=\"", 'n', PARSER_TAG_MAX, "\">",
                 "[C <" D "invoke name=\"f\" y=\"", "\">]");
}

/* A "false" value longer than what is held is judged by its beginning. */
static void test_long_values(void **state)
{
    (void)state;
    struct chat_style s = {.tool_markup = CHAT_ENCODING_V32, .parse_tools = true};
    json_t *tools = schema_tools();
    for (int kind = 0; kind < 4; kind++) {
        struct buf text = {0}, want = {0};
        static const char *const opens[] = {"[", "words ", "{\"k\": \"", "["};
        static const char *const closes[] = {"0]", "end", "\"}", "no JSON]"};
        const char *open = opens[kind], *close = closes[kind];
        (void)buf_add_str(&text, INVOKE("f") PARAM("x", "false"));
        size_t from = text.len;
        (void)buf_add_str(&text, open);
        for (int i = 0; i < PARSER_VALUE_MAX / 4; i++) (void)buf_printf(&text, "%d, ", i);
        (void)buf_add_str(&text, close);
        (void)buf_add_str(&want, kind == 1 ? "{\"x\": \"" : "{\"x\": ");
        (void)buf_add(&want, text.data + from, text.len - from);
        (void)buf_add_str(&want, kind == 1 ? "\"}" : "}");
        (void)buf_add_str(&text, PARAM_END INVOKE_END);
        for (uint64_t i = 0; i < 4; i++) {
            struct answer_input in = {&s, false, tools, text.data, text.len};
            struct answer a;
            enum answer_cut cut = i == 0 ? ANSWER_WHOLE : i == 1 ? ANSWER_BYTES : ANSWER_RANDOM;
            assert_int_equal(answer_run(&a, &in, cut, i), FATHOM_OK);
            assert_int_equal(a.n_call, 1);
            assert_string_equal(buf_str(&a.args[0]), buf_str(&want));
            answer_free(&a);
        }
        buf_free(&text);
        buf_free(&want);
    }
    json_decref(tools);
}

/* Without tools, or with tool parsing off, markup is text. */
static void test_off(void **state)
{
    (void)state;
    json_t *tools = schema_tools();
    json_t *none = json_array();
    const char *text = "a\n\n" BLOCK INVOKE("f") INVOKE_END BLOCK_END "<";
    struct chat_style on = {.tool_markup = CHAT_ENCODING_V32, .parse_tools = true};
    struct chat_style off = {.tool_markup = CHAT_ENCODING_V32};
    const struct answer_input inputs[] = {
        {&off, false, tools, text, strlen(text)},
        {&on, false, NULL, text, strlen(text)},
        {&on, false, none, text, strlen(text)},
    };
    for (size_t i = 0; i < 3; i++) {
        struct answer a;
        assert_int_equal(answer_run(&a, &inputs[i], ANSWER_BYTES, 0), FATHOM_OK);
        assert_string_equal(buf_str(&a.content), text);
        assert_int_equal(a.n_call, 0);
        answer_free(&a);
    }
    json_decref(tools);
    json_decref(none);
}

/* Nothing that can be decided waits: a name, a string's characters, text before a possible tag. */
static void test_prompt_events(void **state)
{
    (void)state;
    json_t *tools = schema_tools();
    struct chat_style s = {.tool_markup = CHAT_ENCODING_V32, .parse_tools = true};
    static const struct {
        const char *push;
        const char *log;
    } steps[] = {
        {"Hi <", "[C Hi "},
        {"b>\n", "[C Hi <b>"},
        {"\n\n", "[C Hi <b>\n"},
        {BLOCK "\n" INVOKE("f"), "[C Hi <b>\n][B f"},
        {PARAM("s", "true"), "[C Hi <b>\n][B f][A {\"s\": \""},
        {"x \xe4\xb8", "[C Hi <b>\n][B f][A {\"s\": \"x "},
        {"\xad</" D "param", "[C Hi <b>\n][B f][A {\"s\": \"x 中"},
    };
    struct answer a;
    struct chat_parser *p;
    answer_init(&a);
    assert_int_equal(chat_parser_create(&p, &s, false, tools, answer_sink, &a), FATHOM_OK);
    for (size_t i = 0; i < sizeof steps / sizeof steps[0]; i++) {
        assert_int_equal(chat_parser_push(p, steps[i].push, strlen(steps[i].push)), FATHOM_OK);
        assert_string_equal(buf_str(&a.log), steps[i].log);
    }
    chat_parser_destroy(p);
    answer_free(&a);
    json_decref(tools);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_v31),           cmocka_unit_test(test_v3),
        cmocka_unit_test(test_v32),           cmocka_unit_test(test_limits),
        cmocka_unit_test(test_long_values),   cmocka_unit_test(test_off),
        cmocka_unit_test(test_prompt_events),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
