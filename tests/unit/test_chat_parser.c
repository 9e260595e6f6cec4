/* test_chat_parser.c - the answer parser over the case tables, recorded streams and reasoning;
 * each text whole, byte by byte and in random pieces */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "base/json.h"
#include "base/mem.h"
#include "chat/chat_int.h"
#include "chat/parser_int.h"
#include "support/chat_answer.h"
#include "support/json_tree.h"

enum { N_RANDOM_CUT = 40 };

/* Parses whole into *out and asserts that every other cut gives the same. */
static void parse(struct answer *out, const struct answer_input *in)
{
    assert_int_equal(answer_run(out, in, ANSWER_WHOLE, 0), FATHOM_OK);
    for (uint64_t i = 0; i <= N_RANDOM_CUT; i++) {
        struct answer a;
        enum answer_cut cut = i == 0 ? ANSWER_BYTES : ANSWER_RANDOM;
        assert_int_equal(answer_run(&a, in, cut, i), FATHOM_OK);
        if (strcmp(buf_str(&a.log), buf_str(&out->log)) != 0) {
            print_error("whole: %s\ncut %d: %s\n", buf_str(&out->log), (int)i, buf_str(&a.log));
        }
        assert_string_equal(buf_str(&a.log), buf_str(&out->log));
        answer_free(&a);
    }
}

static json_t *one_tool(void)
{
    return json_pack("[{s:s,s:{s:s}}]", "type", "function", "function", "name", "f");
}

static const char *text_of(const json_t *object, const char *key)
{
    const char *s = json_string_value(json_object_get(object, key));
    return s ? s : "";
}

/* The arguments are JSON and equal the expected value. */
static void check_arguments(const struct buf *args, const json_t *call)
{
    const json_t *text = json_object_get(call, "arguments_text");
    json_t *got;
    fathom_diag d = {0};
    if (text) assert_string_equal(buf_str(args), json_string_value(text));
    if (json_read(buf_str(args), args->len, "arguments", &got, &d)) {
        fail_msg("%s: %s", d.text, buf_str(args));
    }
    const json_t *want = json_object_get(call, "arguments");
    if (want) assert_true(json_equal(got, want));
    json_decref(got);
}

static void check_answer(const struct answer *a, const json_t *expect, const char *content)
{
    const json_t *calls = json_object_get(expect, "tool_calls");
    assert_string_equal(buf_str(&a->reasoning), text_of(expect, "reasoning"));
    assert_string_equal(buf_str(&a->content), content);
    assert_int_equal(a->n_call, json_array_size(calls));
    for (uint32_t i = 0; i < a->n_call; i++) {
        const json_t *call = json_array_get(calls, i);
        assert_string_equal(buf_str(&a->names[i]), text_of(call, "name"));
        check_arguments(&a->args[i], call);
    }
}

/* Servers disagree about these. Text after a block is dropped by some; here nothing that the model
 * says is lost, so it is content. A call cut short is dropped by some and left half by others; it
 * is closed here, since its name has been streamed. EOS is left out by the caller. */
static const struct {
    const char *name;
    const char *more_content;
    const char *call; /* name and arguments of a call that the table does not have */
} disagreements[] = {
    {"trailing_text_dropped", "trailing text", NULL},
    {"raw_arguments_kept", " trailing text", NULL},
    {"truncated_parameter", "",
     "{\"name\":\"get_weather\",\"arguments\":{\"location\":\"Tokyo\"}}"},
};

static void check_case(const json_t *c, enum chat_encoding markup, bool thinking, json_t *tools)
{
    struct chat_style s = {
        .encoding = markup, .tool_markup = markup, .parse_tools = true, .parse_reasoning = true};
    const char *text = text_of(c, "completion");
    const char *eos = strstr(text, CHAT_EOS);
    struct answer_input in = {.style = &s,
                              .thinking = thinking,
                              .tools = tools,
                              .text = text,
                              .n = eos ? (size_t)(eos - text) : strlen(text)};
    json_t *expect = json_deep_copy(json_object_get(c, "expect"));
    struct buf content = {0};
    (void)buf_add_str(&content, text_of(expect, "content"));
    for (size_t i = 0; i < sizeof disagreements / sizeof disagreements[0]; i++) {
        if (strcmp(text_of(c, "name"), disagreements[i].name) != 0) continue;
        (void)buf_add_str(&content, disagreements[i].more_content);
        if (!disagreements[i].call) continue;
        json_t *call = json_loads(disagreements[i].call, 0, NULL);
        assert_int_equal(json_array_append_new(json_object_get(expect, "tool_calls"), call), 0);
    }
    struct answer a;
    print_message("  %s\n", text_of(c, "name"));
    parse(&a, &in);
    check_answer(&a, expect, buf_str(&content));
    answer_free(&a);
    buf_free(&content);
    json_decref(expect);
}

static void test_v32_cases(void **state)
{
    (void)state;
    json_t *file = json_tree_of_file(CHAT_DATA_DIR "/parsers/dsml_v32_cases.json");
    json_t *tools = one_tool();
    const json_t *cases = json_object_get(file, "cases");
    assert_int_equal(json_array_size(cases), 16);
    for (size_t i = 0; i < json_array_size(cases); i++) {
        const json_t *c = json_array_get(cases, i);
        bool thinking = strcmp(text_of(c, "thinking_mode"), "thinking") == 0;
        check_case(c, CHAT_ENCODING_V32, thinking, tools);
    }
    json_decref(tools);
    json_decref(file);
}

static void test_json_cases(void **state)
{
    (void)state;
    json_t *file = json_tree_of_file(CHAT_DATA_DIR "/parsers/json_v3_v31_cases.json");
    json_t *tools = one_tool();
    const json_t *cases = json_object_get(file, "cases");
    assert_int_equal(json_array_size(cases), 9);
    for (size_t i = 0; i < json_array_size(cases); i++) {
        const json_t *c = json_array_get(cases, i);
        bool v31 = strcmp(text_of(c, "format"), "v31") == 0;
        check_case(c, v31 ? CHAT_ENCODING_V31 : CHAT_ENCODING_V3, false, tools);
    }
    json_decref(tools);
    json_decref(file);
}

/* ---- recorded streams ------------------------------------------------------------------- */

static void check_stream(const char *path, enum chat_encoding markup)
{
    json_t *file = json_tree_of_file(path);
    json_t *tools = one_tool();
    struct chat_style s = {
        .encoding = markup, .tool_markup = markup, .parse_tools = true, .parse_reasoning = true};
    struct answer a;
    struct chat_parser *p;
    struct buf whole = {0};
    answer_init(&a);
    assert_int_equal(chat_parser_create(&p, &s, false, tools, answer_sink, &a), FATHOM_OK);
    const json_t *chunks = json_object_get(file, "input_stream");
    for (size_t i = 0; i < json_array_size(chunks); i++) {
        const json_t *data = json_object_get(json_array_get(chunks, i), "data");
        const json_t *choice = json_array_get(json_object_get(data, "choices"), 0);
        const char *text = text_of(json_object_get(choice, "delta"), "content");
        (void)buf_add_str(&whole, text);
        assert_int_equal(chat_parser_push(p, text, strlen(text)), FATHOM_OK);
    }
    assert_int_equal(chat_parser_finish(p), FATHOM_OK);
    chat_parser_destroy(p);
    answer_end(&a);
    const json_t *expect = json_object_get(file, "expected_output");
    assert_string_equal(buf_str(&a.content), text_of(expect, "normal_content"));
    assert_string_equal(buf_str(&a.reasoning), text_of(expect, "reasoning_content"));
    const json_t *calls = json_object_get(expect, "tool_calls");
    assert_int_equal(a.n_call, json_array_size(calls));
    for (uint32_t i = 0; i < a.n_call; i++) {
        const json_t *f = json_object_get(json_array_get(calls, i), "function");
        assert_string_equal(buf_str(&a.names[i]), text_of(f, "name"));
        assert_string_equal(buf_str(&a.args[i]), text_of(f, "arguments"));
    }
    struct answer again;
    parse(&again, &(struct answer_input){&s, false, tools, buf_str(&whole), whole.len});
    assert_string_equal(buf_str(&again.log), buf_str(&a.log));
    answer_free(&again);
    answer_free(&a);
    buf_free(&whole);
    json_decref(tools);
    json_decref(file);
}

static void test_streams(void **state)
{
    (void)state;
    check_stream(CHAT_DATA_DIR "/parsers/dynamo_v3_stream_tool.json", CHAT_ENCODING_V3);
    check_stream(CHAT_DATA_DIR "/parsers/dynamo_v31_stream_tool.json", CHAT_ENCODING_V31);
}

/* ---- reasoning -------------------------------------------------------------------------- */

static void test_reasoning_cases(void **state)
{
    (void)state;
    json_t *file = json_tree_of_file(CHAT_DATA_DIR "/parsers/reasoning_cases.json");
    const json_t *cases = json_object_get(file, "cases");
    assert_int_equal(json_array_size(cases), 7);
    struct chat_style s = {.encoding = CHAT_ENCODING_R1, .parse_reasoning = true};
    for (size_t i = 0; i < json_array_size(cases); i++) {
        const json_t *c = json_array_get(cases, i);
        const json_t *thinking = json_object_get(c, "thinking");
        const json_t *chunks = json_object_get(c, "chunks");
        const json_t *stream = json_object_get(c, "stream");
        const json_t *finish = json_object_get(c, "finish");
        struct answer a;
        struct chat_parser *p;
        answer_init(&a);
        assert_int_equal(
            chat_parser_create(&p, &s, !thinking || json_is_true(thinking), NULL, answer_sink, &a),
            FATHOM_OK);
        const char *whole = text_of(c, "output");
        assert_int_equal(chat_parser_push(p, whole, strlen(whole)), FATHOM_OK);
        struct buf reasoning = {0}, content = {0};
        (void)buf_add_str(&reasoning, text_of(c, "reasoning"));
        (void)buf_add_str(&content, text_of(c, "content"));
        for (size_t k = 0; k < json_array_size(chunks); k++) {
            const char *chunk = json_string_value(json_array_get(chunks, k));
            assert_int_equal(chat_parser_push(p, chunk, strlen(chunk)), FATHOM_OK);
            (void)buf_add_str(&reasoning, text_of(json_array_get(stream, k), "reasoning"));
            (void)buf_add_str(&content, text_of(json_array_get(stream, k), "content"));
            assert_string_equal(buf_str(&a.reasoning), buf_str(&reasoning));
        }
        assert_int_equal(chat_parser_finish(p), FATHOM_OK);
        (void)buf_add_str(&reasoning, text_of(finish, "reasoning"));
        assert_string_equal(buf_str(&a.reasoning), buf_str(&reasoning));
        assert_string_equal(buf_str(&a.content), buf_str(&content));
        chat_parser_destroy(p);
        buf_free(&reasoning);
        buf_free(&content);
        answer_free(&a);
    }
    json_decref(file);
}

struct reasoning_case {
    bool parse;
    bool thinking;
    const char *text;
    const char *log;
};

static const struct reasoning_case reasoning_cases[] = {
    {true, true, "", ""},
    {true, true, "a\n</think>\n\nb", "[R a\n][C \n\nb]"},
    {true, true, "<think>\na</think>", "[R \na]"},
    {true, false, "<think>a</think>b</think>c<think>", "[R a][C b</think>c<think>]"},
    {true, false, "<thinker>a", "[C <thinker>a]"},
    {true, false, " <think>a", "[C  <think>a]"},
    {true, false, "<thi", "[C <thi]"},
    {true, true, "<thi", "[R <thi]"},
    {true, true, "a<</think>b", "[R a<][C b]"},
    {true, true, "a</thi</think>b", "[R a</thi][C b]"},
    {true, true, "a</｜DSML｜invoke><think>", "[R a</｜DSML｜invoke><think>]"},
    {false, true, "a</think>b", "[C a</think>b]"},
    {false, false, "<think>a</think>b", "[C <think>a</think>b]"},
    {true, true, "a<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>f<｜tool▁sep｜>{}",
     "[R a<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>f<｜tool▁sep｜>{}]"},
    {false, true,
     "a<｜tool▁call▁begin｜>f<｜tool▁sep｜>{}</think><｜tool▁call▁begin｜>g"
     "<｜tool▁sep｜>{}<｜tool▁call▁end｜>",
     "[C a<｜tool▁call▁begin｜>f<｜tool▁sep｜>{}</think>][B g][A {}][E]"},
};

static void test_reasoning(void **state)
{
    (void)state;
    json_t *tools = one_tool();
    for (size_t i = 0; i < sizeof reasoning_cases / sizeof reasoning_cases[0]; i++) {
        const struct reasoning_case *c = &reasoning_cases[i];
        struct chat_style s = {
            .tool_markup = CHAT_ENCODING_V31, .parse_tools = true, .parse_reasoning = c->parse};
        struct answer a;
        parse(&a, &(struct answer_input){&s, c->thinking, tools, c->text, strlen(c->text)});
        assert_string_equal(buf_str(&a.log), c->log);
        answer_free(&a);
    }
    json_decref(tools);
}

static void test_state_queries(void **state)
{
    (void)state;
    struct chat_style s = {.tool_markup = CHAT_ENCODING_V31, .parse_reasoning = true};
    struct answer a;
    struct chat_parser *p;
    struct buf dump = {0};
    answer_init(&a);
    assert_int_equal(chat_parser_create(&p, &s, true, NULL, answer_sink, &a), FATHOM_OK);
    assert_true(chat_parser_in_reasoning(p));
    assert_int_equal(chat_parser_push(p, "a</thi", 6), FATHOM_OK);
    assert_true(chat_parser_in_reasoning(p));
    parser_dump(p, &dump);
    assert_non_null(strstr(buf_str(&dump), "stage=reasoning part=text"));
    assert_non_null(strstr(buf_str(&dump), "window=\"</thi\""));
    assert_int_equal(chat_parser_push(p, "nk>", 3), FATHOM_OK);
    assert_false(chat_parser_in_reasoning(p));
    assert_int_equal(chat_parser_finish(p), FATHOM_OK);
    assert_int_equal(chat_parser_n_call(p), 0);
    chat_parser_destroy(p);
    chat_parser_destroy(NULL);
    buf_free(&dump);
    answer_free(&a);
}

/* ---- the prompt's calls come back out --------------------------------------------------- */

/* What an encoding renders for a call its parser reads as the same call. */
static void check_round_trip(enum chat_encoding e, const char *arguments)
{
    struct chat_style s = {
        .encoding = e, .tool_markup = e, .parse_tools = true, .parse_reasoning = true};
    json_t *value = json_loads(arguments, 0, NULL);
    json_t *messages = json_pack("[{s:s,s:s,s:[{s:{s:s,s:O}},{s:{s:s}}]}]", "role", "assistant",
                                 "content", "Look.", "tool_calls", "function", "name", "get",
                                 "arguments", value, "function", "name", "now");
    json_t *tools = one_tool();
    struct chat_request r = {.messages = messages};
    struct buf prompt = {0};
    struct answer a;
    assert_non_null(messages);
    assert_int_equal(chat_render(&s, &r, &prompt, NULL, NULL), FATHOM_OK);
    const char *text = strstr(buf_str(&prompt), "Look.");
    parse(&a, &(struct answer_input){&s, false, tools, text, strlen(text) - strlen(CHAT_EOS)});
    assert_string_equal(buf_str(&a.content), "Look.");
    assert_int_equal(a.n_call, 2);
    assert_string_equal(buf_str(&a.names[0]), "get");
    assert_string_equal(buf_str(&a.names[1]), "now");
    struct buf want = {0};
    assert_int_equal(json_write_python(&want, value), FATHOM_OK);
    assert_string_equal(buf_str(&a.args[0]), buf_str(&want));
    assert_string_equal(buf_str(&a.args[1]), "{}");
    answer_free(&a);
    buf_free(&want);
    buf_free(&prompt);
    json_decref(tools);
    json_decref(messages);
    json_decref(value);
}

static void test_round_trip(void **state)
{
    (void)state;
    static const char *const arguments[] = {
        "{}",
        "{\"a\":\"x\"}",
        "{\"s\":\"quote \\\" slash \\\\ line\\nbell\\u0007 中 😀 </｜DSML｜param\",\"n\":-1.5,"
        "\"b\":true,\"z\":null,\"l\":[1,\"]\",{\"k\":\"}\"}],\"o\":{}}",
        "{\"code\":\"if (a < b) { return \\\"<｜tool▁call▁end｜>\\\"; }\"}",
        "{\"\":\"\",\"empty\":[]}",
    };
    for (size_t i = 0; i < sizeof arguments / sizeof arguments[0]; i++) {
        check_round_trip(CHAT_ENCODING_V3, arguments[i]);
        check_round_trip(CHAT_ENCODING_V31, arguments[i]);
        check_round_trip(CHAT_ENCODING_V32, arguments[i]);
        check_round_trip(CHAT_ENCODING_KIMI_K2, arguments[i]);
    }
}

/* ---- faults of others ------------------------------------------------------------------- */

static const char v32_text[] =
    "why</think>Look.\n\n<｜DSML｜function_calls>\n<｜DSML｜invoke name=\"f\">\n"
    "<｜DSML｜parameter name=\"a\" string=\"true\">x\ny</｜DSML｜parameter>\n"
    "<｜DSML｜parameter name=\"b\" string=\"false\">[1]</｜DSML｜parameter>\n"
    "</｜DSML｜invoke>\n</｜DSML｜function_calls> more";

static void test_sink_fails(void **state)
{
    (void)state;
    struct chat_style s = {
        .tool_markup = CHAT_ENCODING_V32, .parse_tools = true, .parse_reasoning = true};
    json_t *tools = one_tool();
    for (long after = 0;; after++) {
        struct answer a;
        struct chat_parser *p;
        answer_init(&a);
        a.fail_after = after;
        assert_int_equal(chat_parser_create(&p, &s, true, tools, answer_sink, &a), FATHOM_OK);
        fathom_err err = chat_parser_push(p, v32_text, strlen(v32_text));
        fathom_err end = chat_parser_finish(p);
        if (err) assert_int_equal(end, err);
        assert_true(end == FATHOM_OK || end == FATHOM_ECANCEL);
        assert_true((long)a.n_event <= after);
        chat_parser_destroy(p);
        answer_free(&a);
        if (!end) {
            assert_true(after > 4);
            break;
        }
    }
    json_decref(tools);
}

static fathom_err ignore_event(void *arg, const struct chat_event *e)
{
    (void)arg;
    (void)e;
    return FATHOM_OK;
}

static void test_no_memory(void **state)
{
    (void)state;
    struct chat_style s = {
        .tool_markup = CHAT_ENCODING_V32, .parse_tools = true, .parse_reasoning = true};
    json_t *tools = one_tool();
    fathom_err err = FATHOM_ENOMEM;
    long n = 0;
    for (; n < 1000 && err; n++) {
        struct chat_parser *p;
        mem_fail_after(n);
        err = chat_parser_create(&p, &s, true, tools, ignore_event, NULL);
        for (size_t i = 0; i < strlen(v32_text) && !err; i++) {
            err = chat_parser_push(p, v32_text + i, 1);
        }
        if (!err) err = chat_parser_finish(p);
        mem_fail_after(-1);
        assert_true(err == FATHOM_OK || err == FATHOM_ENOMEM);
        chat_parser_destroy(p);
    }
    assert_int_equal(err, FATHOM_OK);
    assert_true(n > 3);
    json_decref(tools);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_v32_cases),  cmocka_unit_test(test_json_cases),
        cmocka_unit_test(test_streams),    cmocka_unit_test(test_reasoning_cases),
        cmocka_unit_test(test_reasoning),  cmocka_unit_test(test_state_queries),
        cmocka_unit_test(test_round_trip), cmocka_unit_test(test_sink_fails),
        cmocka_unit_test(test_no_memory),
    };
    json_set_alloc_funcs(mem_alloc, mem_free);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
