/* test_chat_encode_v32.c - V3.2's prompt: the official pairs and vLLM's byte for byte, and the
 * turns they do not cover */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "base/mem.h"
#include "base/os.h"
#include "chat/chat_int.h"
#include "support/json_tree.h"
#include "support/marks.h"

static const struct chat_style v32 = {.encoding = CHAT_ENCODING_V32};

static void assert_same(const struct buf *got, const char *want, size_t n)
{
    size_t i = 0;
    while (i < n && i < got->len && got->data[i] == want[i]) i++;
    if (i == n && i == got->len) return;
    size_t from = i > 60 ? i - 60 : 0;
    print_error("differs at byte %zu (lengths %zu and %zu)\ngot  %.120s\nwant %.120s\n", i,
                got->len, n, buf_str(got) + from, want + from);
    fail();
}

/* trim: a newline at the end of the file is not part of the prompt */
static void check_pair(const char *input, const char *output, bool vllm, bool trim)
{
    json_t *v = json_tree_of_file(input);
    bool list = json_is_array(v);
    struct chat_request r = {
        .messages = list ? v : json_object_get(v, "messages"),
        .tools = json_object_get(v, "tools"),
        .thinking = true,
        .tools_first_message = vllm,
        .add_generation_prompt = true,
    };
    struct buf out = {0};
    fathom_diag d = {0};
    struct file_map map;
    assert_int_equal(file_map_open(&map, output, &d), FATHOM_OK);
    fathom_err err = render_marked(&v32, &r, &out, &d);
    if (err) print_error("%s\n", d.text);
    assert_int_equal(err, FATHOM_OK);
    size_t n = map.size;
    if (trim && n > 0 && ((const char *)map.data)[n - 1] == '\n') n--;
    assert_same(&out, (const char *)map.data, n);
    file_map_close(&map);
    buf_free(&out);
    json_decref(v);
}

static void test_official_tools(void **state)
{
    (void)state;
    check_pair(CHAT_DATA_DIR "/v32_tools_input.json", CHAT_DATA_DIR "/v32_tools_output.txt", false,
               true);
}

static void test_official_search(void **state)
{
    (void)state;
    check_pair(CHAT_DATA_OUT_DIR "/v32_search_w_date_input.json",
               CHAT_DATA_OUT_DIR "/v32_search_w_date_output.txt", false, false);
    check_pair(CHAT_DATA_OUT_DIR "/v32_search_wo_date_input.json",
               CHAT_DATA_OUT_DIR "/v32_search_wo_date_output.txt", false, false);
}

static void test_vllm_tools(void **state)
{
    (void)state;
    check_pair(CHAT_DATA_DIR "/v32_tools_input.json", CHAT_DATA_DIR "/v32_tools_output_vllm.txt",
               true, false);
}

/* ---- what the vectors do not cover ------------------------------------------------------ */

enum { THINK = 1, GO_ON = 2, NO_PROMPT = 4 };

static void check(const char *messages, unsigned flags, const char *want)
{
    json_t *m = json_tree_of(messages);
    struct chat_request r = {
        .messages = m,
        .thinking = flags & THINK,
        .continue_final_message = flags & GO_ON,
        .add_generation_prompt = !(flags & NO_PROMPT),
    };
    struct buf out = {0};
    fathom_diag d = {0};
    fathom_err err = render_marked(&v32, &r, &out, &d);
    if (err) print_error("%s\n", d.text);
    assert_int_equal(err, FATHOM_OK);
    assert_same(&out, want, strlen(want));
    buf_free(&out);
    json_decref(m);
}

#define SYS "{\"role\":\"system\",\"content\":\"S\"}"
#define NOTE(text) "{\"role\":\"system\",\"content\":\"" text "\"}"
#define NO_TEXT "{\"role\":\"system\",\"content\":\"\"}"
#define USER1 "{\"role\":\"user\",\"content\":\"one\"}"
#define USER2 "{\"role\":\"user\",\"content\":\"two\"}"
#define ANSWER "{\"role\":\"assistant\",\"reasoning_content\":\"why\",\"content\":\"so\"}"
#define DEV "{\"role\":\"developer\",\"content\":\"do\"}"
#define CALL                                                                                       \
    "{\"role\":\"assistant\",\"reasoning\":\"why\",\"tool_calls\":[{\"id\":\"a\",\"function\":"    \
    "{\"name\":\"f\",\"arguments\":{\"x\":1}}},{\"id\":\"b\",\"function\":{\"name\":\"g\"}}]}"
#define RESULT(id, text) "{\"role\":\"tool\",\"tool_call_id\":\"" id "\",\"content\":\"" text "\"}"
#define DSML_CALLS                                                                                 \
    "\n\n<｜DSML｜function_calls>\n<｜DSML｜invoke name=\"f\">\n"                              \
    "<｜DSML｜parameter name=\"x\" string=\"false\">1</｜DSML｜parameter>\n"                   \
    "</｜DSML｜invoke>\n"                                                                        \
    "<｜DSML｜invoke name=\"g\">\n\n</｜DSML｜invoke>\n</｜DSML｜function_calls>" CHAT_EOS

static void test_chat_mode(void **state)
{
    (void)state;
    check("[" SYS "," USER1 "]", 0, CHAT_BOS "S" CHAT_USER "one" CHAT_ASSISTANT "</think>");
    check("[" SYS "," USER1 "," ANSWER "," USER2 "]", 0,
          CHAT_BOS "S" CHAT_USER "one" CHAT_ASSISTANT "</think>so" CHAT_EOS CHAT_USER
                   "two" CHAT_ASSISTANT "</think>");
    check("[" USER1 "," DEV "]", 0,
          CHAT_BOS CHAT_USER "one" CHAT_ASSISTANT "</think>" CHAT_USER
                             "\n\n# The user's message is: do" CHAT_ASSISTANT "</think>");
}

/* In place, but never behind an assistant's marker. */
static void test_system_in_the_middle(void **state)
{
    (void)state;
    const char *folded = CHAT_BOS CHAT_USER "one\n\nS\n\nS" CHAT_ASSISTANT "</think>";
    check("[" USER1 "," SYS "," SYS "]", 0, folded);
    check("[" USER1 "," SYS "," NO_TEXT "," SYS "]", 0, folded);
    check("[" USER1 "," NO_TEXT "]", 0, CHAT_BOS CHAT_USER "one" CHAT_ASSISTANT "</think>");
    check("[" USER1 "," SYS "]", NO_PROMPT, CHAT_BOS CHAT_USER "one\n\nS");
    check("[" USER1 "," SYS "," ANSWER "," SYS "," USER2 "," SYS "]", THINK,
          CHAT_BOS CHAT_USER "one\n\nS" CHAT_ASSISTANT "</think>so" CHAT_EOS "S" CHAT_USER
                             "two\n\nS" CHAT_ASSISTANT "<think>");
    check("[" USER1 "," CALL "," RESULT("b", "B") "," RESULT("a", "A") "," SYS "]", THINK,
          CHAT_BOS CHAT_USER "one" CHAT_ASSISTANT "<think>why</think>" DSML_CALLS
                             "\n\n<function_results>\n<result>A</result>\n<result>B\n\nS</result>\n"
                             "</function_results>\n\n<think>");
    check("[" USER1 "," CALL
          "," NOTE("P") "," RESULT("a", "A") "," NOTE("Q") "," RESULT("b", "B") "," NOTE("R") "]",
          0,
          CHAT_BOS CHAT_USER "one" CHAT_ASSISTANT "</think>" DSML_CALLS
                             "\n\n<function_results>\n<result>A</result>\n"
                             "<result>B\n\nP\n\nQ\n\nR</result>\n</function_results>\n\n</think>");
    check("[" USER1 "," ANSWER "," SYS "," SYS "]", THINK,
          CHAT_BOS CHAT_USER "one" CHAT_ASSISTANT "</think>so" CHAT_EOS CHAT_USER
                             "S\n\nS" CHAT_ASSISTANT "<think>");
    check("[" USER1 "," ANSWER "," SYS "," ANSWER "]", THINK,
          CHAT_BOS CHAT_USER "one" CHAT_ASSISTANT "</think>so" CHAT_EOS CHAT_USER "S" CHAT_ASSISTANT
                             "<think>why</think>so" CHAT_EOS);
    check("[" DEV "," SYS "]", THINK,
          CHAT_BOS CHAT_USER "\n\n# The user's message is: do\n\nS" CHAT_ASSISTANT "<think>");
    check("[" DEV "," SYS "," USER1 "]", THINK,
          CHAT_BOS "S" CHAT_USER "one" CHAT_ASSISTANT "<think>");
}

static void test_thinking_mode(void **state)
{
    (void)state;
    check("[" USER1 "," ANSWER "," USER2 "]", THINK,
          CHAT_BOS CHAT_USER "one" CHAT_ASSISTANT "</think>so" CHAT_EOS CHAT_USER
                             "two" CHAT_ASSISTANT "<think>");
    check("[" USER1 "," ANSWER "]", THINK,
          CHAT_BOS CHAT_USER "one" CHAT_ASSISTANT "<think>why</think>so" CHAT_EOS);
    check("[" DEV "," ANSWER "," USER2 "]", THINK,
          CHAT_BOS "so" CHAT_EOS CHAT_USER "two" CHAT_ASSISTANT "<think>");
    check("[" ANSWER "]", THINK, CHAT_BOS "why</think>so" CHAT_EOS);
}

static void test_tool_results(void **state)
{
    (void)state;
    const char *loop = CHAT_BOS CHAT_USER
        "one" CHAT_ASSISTANT "<think>why</think>" DSML_CALLS
        "\n\n<function_results>\n<result>A</result>\n<result>B</result>\n</function_results>\n\n"
        "<think>";
    check("[" USER1 "," CALL "," RESULT("a", "A") "," RESULT("b", "B") "]", THINK, loop);
    check("[" USER1 "," CALL "," RESULT("b", "B") "," RESULT("a", "A") "]", THINK, loop);
    /* ids that do not all match: as they come */
    check("[" USER1 "," CALL "," RESULT("?", "A") "," RESULT("a", "B") "]", THINK, loop);
    check("[" USER1 "," CALL "," RESULT("a", "A") "," RESULT("a", "B") "]", THINK, loop);
    check("[" USER1 "," CALL "," RESULT("b", "B") "]", NO_PROMPT,
          CHAT_BOS CHAT_USER "one" CHAT_ASSISTANT "</think>" DSML_CALLS
                             "\n\n<function_results>\n<result>B</result>\n</function_results>");
}

static void test_continue(void **state)
{
    (void)state;
    check("[" USER1 "," ANSWER "]", THINK | GO_ON,
          CHAT_BOS CHAT_USER "one" CHAT_ASSISTANT "<think>why</think>so");
    check("[" USER1 "," ANSWER "]", GO_ON, CHAT_BOS CHAT_USER "one" CHAT_ASSISTANT "</think>so");
    check("[" USER1 ",{\"role\":\"assistant\",\"reasoning\":\"be\"}]", THINK | GO_ON,
          CHAT_BOS CHAT_USER "one" CHAT_ASSISTANT "<think>be");
    check("[" USER1 ",{\"role\":\"assistant\",\"content\":\"ye\",\"prefix\":true}]", 0,
          CHAT_BOS CHAT_USER "one" CHAT_ASSISTANT "</think>ye");
    check("[" USER1 "]", NO_PROMPT, CHAT_BOS CHAT_USER "one");
}

static void test_arguments(void **state)
{
    (void)state;
    check("[{\"role\":\"assistant\",\"content\":\"c\",\"tool_calls\":[{\"function\":{\"name\":"
          "\"f\",\"arguments\":\"{\\\"s\\\":\\\"a\\\\nb\\\\u4e2d\\\",\\\"n\\\":1e2,\\\"l\\\":[1,{"
          "\\\"k\\\":null}],\\\"t\\\":true}\"}}]}]",
          0,
          CHAT_BOS "c\n\n<｜DSML｜function_calls>\n<｜DSML｜invoke name=\"f\">\n"
                   "<｜DSML｜parameter name=\"s\" string=\"true\">a\nb中</｜DSML｜parameter>\n"
                   "<｜DSML｜parameter name=\"n\" string=\"false\">100.0</｜DSML｜parameter>\n"
                   "<｜DSML｜parameter name=\"l\" string=\"false\">[1, {\"k\": null}]"
                   "</｜DSML｜parameter>\n"
                   "<｜DSML｜parameter name=\"t\" string=\"false\">true</｜DSML｜parameter>\n"
                   "</｜DSML｜invoke>\n</｜DSML｜function_calls>" CHAT_EOS);
    /* what is no object, as of a call that was cut off, comes back as it was */
    static const char *const texts[][2] = {{"{\\\"a\\\": \\\"b", "{\"a\": \"b"}, {"[1]", "[1]"}};
    for (size_t i = 0; i < 2; i++) {
        char messages[256], want[512];
        (void)snprintf(messages, sizeof messages,
                       "[{\"role\":\"assistant\",\"tool_calls\":[{\"function\":{\"name\":\"f\","
                       "\"arguments\":\"%s\"}}]}]",
                       texts[i][0]);
        (void)snprintf(want, sizeof want,
                       CHAT_BOS "\n\n<｜DSML｜function_calls>\n<｜DSML｜invoke name=\"f\">\n"
                                "<｜DSML｜parameter name=\"arguments\" string=\"true\">%s"
                                "</｜DSML｜parameter>\n</｜DSML｜invoke>\n"
                                "</｜DSML｜function_calls>" CHAT_EOS,
                       texts[i][1]);
        check(messages, 0, want);
    }
}

#define TOOLS "[{\"type\":\"function\",\"function\":{\"name\":\"f\",\"strict\":true}}]"
#define FORMAT                                                                                     \
    "{\"type\":\"json_schema\",\"json_schema\":{\"name\":\"x\",\"schema\":{\"a\":[1,2]}}}"
#define SCHEMA                                                                                     \
    "\n\n## Response Format:\n\nYou MUST strictly adhere to the following schema to reply:\n"

/* Renders with TOOLS and FORMAT and gives what stands before and after the fixed preamble. */
static void check_sections(const char *messages, bool first, const char *before, const char *after)
{
    json_t *m = json_tree_of(messages);
    json_t *tools = json_tree_of(TOOLS);
    json_t *format = json_tree_of(FORMAT);
    struct chat_request r = {
        .messages = m, .tools = tools, .response_format = format, .tools_first_message = first};
    struct buf out = {0};
    assert_int_equal(render_marked(&v32, &r, &out, NULL), FATHOM_OK);
    const char *preamble = strstr(buf_str(&out), "\n\n## Tools\n\nYou have access to a set of");
    assert_non_null(preamble);
    assert_int_equal((size_t)(preamble - out.data), strlen(before));
    assert_memory_equal(out.data, before, strlen(before));
    const char *functions = strstr(preamble, "\n<functions>\n");
    assert_non_null(functions);
    assert_string_equal(functions, after);
    buf_free(&out);
    json_decref(m);
    json_decref(tools);
    json_decref(format);
}

static void test_sections(void **state)
{
    (void)state;
    const char *f = "\n<functions>\n{\"name\": \"f\", \"strict\": true}\n</functions>\n" SCHEMA
                    "{\"a\": [1, 2]}" CHAT_USER "one";
    check_sections("[" SYS "," USER1 "]", false, CHAT_BOS "S", f);
    check_sections("[" USER1 "]", false, CHAT_BOS, f);
    check_sections("[" SYS "," USER1 "]", true, CHAT_BOS,
                   "\n<functions>\n{\"name\": \"f\", \"strict\": true}\n</functions>\n" SCHEMA
                   "{\"a\": [1, 2]}S" CHAT_USER "one");
    /* behind a system message that is folded away they would be the user's */
    check_sections("[" USER1 "," SYS "]", false, CHAT_BOS,
                   "\n<functions>\n{\"name\": \"f\", \"strict\": true}\n</functions>\n" SCHEMA
                   "{\"a\": [1, 2]}" CHAT_USER "one\n\nS");
    check_sections("[" USER1 "," ANSWER "," SYS "]", false, CHAT_BOS,
                   "\n<functions>\n{\"name\": \"f\", \"strict\": true}\n</functions>\n" SCHEMA
                   "{\"a\": [1, 2]}" CHAT_USER "one" CHAT_ASSISTANT "</think>so" CHAT_EOS CHAT_USER
                   "S");
    /* a message's own tools come before the request's, its own format instead of the request's */
    check_sections("[{\"role\":\"system\",\"content\":\"S\",\"tools\":[{\"function\":{\"name\":"
                   "\"own\"}}],\"response_format\":{\"o\":0}}]",
                   false, CHAT_BOS "S",
                   "\n<functions>\n{\"name\": \"own\"}\n{\"name\": \"f\", \"strict\": true}\n"
                   "</functions>\n" SCHEMA "{\"o\": 0}");
}

static void check_error(const char *messages, unsigned flags, const char *want)
{
    json_t *m = json_tree_of(messages);
    struct chat_request r = {
        .messages = m, .thinking = flags & THINK, .continue_final_message = flags & GO_ON};
    struct buf out = {0};
    fathom_diag d = {0};
    assert_int_equal(render_marked(&v32, &r, &out, &d), FATHOM_EINVAL);
    if (!strstr(d.text, want)) print_error("got: %s\nwant: %s\n", d.text, want);
    assert_non_null(strstr(d.text, want));
    buf_free(&out);
    json_decref(m);
}

static void test_errors(void **state)
{
    (void)state;
    check_error("[" USER1 "," RESULT("a", "A") "]", 0, "messages[1] is a tool result, but");
    check_error("[" RESULT("a", "A") "]", 0, "messages[0] is a tool result");
    check_error("[" CALL "," RESULT("a", "A") "," RESULT("b", "B") "," RESULT("c", "C") "]", 0,
                "messages[1]: 3 tool results follow 2 tool calls");
    check_error("[{\"role\":\"developer\",\"content\":\"\"}]", 0, "messages[0].content is empty");
    check_error("[{\"role\":\"system\",\"tools\":[{\"function\":{}}]}]", 0,
                "messages[0].tools[0].function.name is missing");
    check_error("[" USER1 "]", GO_ON, "its role is \"user\"");
    check_error("[" USER1 "," CALL "]", GO_ON, "the last message has tool_calls");
}

static void test_no_memory(void **state)
{
    (void)state;
    json_t *m =
        json_tree_of("[" SYS "," USER1 "," CALL "," RESULT("b", "B") "," RESULT("a", "A") "]");
    json_t *tools = json_tree_of(TOOLS);
    struct chat_request r = {.messages = m, .tools = tools, .thinking = true};
    fathom_err err = FATHOM_ENOMEM;
    long n = 0;
    for (; n < 1000 && err; n++) {
        struct buf out = {0};
        mem_fail_after(n);
        err = render_marked(&v32, &r, &out, NULL);
        mem_fail_after(-1);
        assert_true(err == FATHOM_OK || err == FATHOM_ENOMEM);
        buf_free(&out);
    }
    assert_int_equal(err, FATHOM_OK);
    assert_true(n > 3);
    json_decref(m);
    json_decref(tools);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_official_tools),
        cmocka_unit_test(test_official_search),
        cmocka_unit_test(test_vllm_tools),
        cmocka_unit_test(test_chat_mode),
        cmocka_unit_test(test_system_in_the_middle),
        cmocka_unit_test(test_thinking_mode),
        cmocka_unit_test(test_tool_results),
        cmocka_unit_test(test_continue),
        cmocka_unit_test(test_arguments),
        cmocka_unit_test(test_sections),
        cmocka_unit_test(test_errors),
        cmocka_unit_test(test_no_memory),
    };
    json_set_alloc_funcs(mem_alloc, mem_free);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
