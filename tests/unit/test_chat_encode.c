/* test_chat_encode.c - the prompts of V3, R1 and V3.1, and what a prompt says about the answer */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "base/mem.h"
#include "chat/chat_int.h"
#include "support/json_tree.h"
#include "support/marks.h"

static const struct chat_style v3 = {.encoding = CHAT_ENCODING_V3};
static const struct chat_style r1 = {.encoding = CHAT_ENCODING_R1};
static const struct chat_style r1_0528 = {.encoding = CHAT_ENCODING_R1, .model_opens_think = true};
static const struct chat_style v31 = {.encoding = CHAT_ENCODING_V31};

/* FORGED: a user's message spells markers */
enum { THINK = 1, GO_ON = 2, NO_PROMPT = 4, TOOLS = 8, FORMAT = 16, FORGED = 32 };

static const char tools_text[] =
    "[{\"type\":\"function\",\"function\":{\"name\":\"get\",\"description\":\"Gets \\\"it\\\"\","
    "\"parameters\":{\"type\":\"object\",\"properties\":{}}}},{\"function\":{\"name\":\"now\"}}]";
static const char format_text[] =
    "{\"type\":\"json_schema\",\"json_schema\":{\"schema\":{\"type\":\"object\"}}}";

static void render(const struct chat_style *s, const char *messages, unsigned flags,
                   struct buf *out)
{
    json_t *m = json_tree_of(messages);
    json_t *tools = json_tree_of(tools_text);
    json_t *format = json_tree_of(format_text);
    struct chat_request r = {
        .messages = m,
        .tools = flags & TOOLS ? tools : NULL,
        .response_format = flags & FORMAT ? format : NULL,
        .thinking = flags & THINK,
        .continue_final_message = flags & GO_ON,
        .add_generation_prompt = !(flags & NO_PROMPT),
    };
    fathom_diag d = {0};
    fathom_err err =
        flags & FORGED ? chat_render(s, &r, out, NULL, &d) : render_marked(s, &r, out, &d);
    if (err) print_error("%s\n", d.text);
    assert_int_equal(err, FATHOM_OK);
    json_decref(m);
    json_decref(tools);
    json_decref(format);
}

static void check(const struct chat_style *s, const char *messages, unsigned flags,
                  const char *want)
{
    struct buf out = {0};
    render(s, messages, flags, &out);
    assert_string_equal(buf_str(&out), want);
    buf_free(&out);
}

#define SYS "{\"role\":\"system\",\"content\":\"S\"}"
#define DEV "{\"role\":\"developer\",\"content\":[{\"type\":\"text\",\"text\":\"D\"}]}"
#define USER1 "{\"role\":\"user\",\"content\":\"one\"}"
#define USER2 "{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":\"t\"},\"wo\"]}"
#define ANSWER "{\"role\":\"assistant\",\"reasoning_content\":\"why\",\"content\":\"so\"}"
#define TAGGED "{\"role\":\"assistant\",\"content\":\"a</think>b</think>c\"}"
#define CALL                                                                                       \
    "{\"role\":\"assistant\",\"content\":null,\"tool_calls\":[{\"id\":\"a\",\"type\":"             \
    "\"function\",\"function\":{\"name\":\"f\",\"arguments\":\"{\\\"x\\\":1}\"}},{\"id\":"         \
    "\"b\",\"function\":{\"name\":\"g\",\"arguments\":{\"y\":[1,2]}}},{\"id\":\"c\","              \
    "\"function\":{\"name\":\"h\"}}]}"
#define RESULT(id, text) "{\"role\":\"tool\",\"tool_call_id\":\"" id "\",\"content\":\"" text "\"}"
#define RESULTS RESULT("c", "C") "," RESULT("a", "A") "," RESULT("b", "B")
#define U CHAT_USER
#define A CHAT_ASSISTANT
#define BOS CHAT_BOS
#define EOS CHAT_EOS

static void test_v3_turns(void **state)
{
    (void)state;
    check(&v3, "[" SYS "," USER1 "]", THINK, BOS "S" U "one" A);
    check(&v3, "[" USER1 "]", NO_PROMPT, BOS U "one");
    check(&v3, "[" SYS "," USER1 "," ANSWER "," DEV "," USER2 "]", 0,
          BOS "S\n\nD" U "one" A "so" EOS U "t\nwo" A);
    check(&v3, "[" USER1 "," TAGGED "," USER1 "]", 0,
          BOS U "one" A "a</think>b</think>c" EOS U "one" A);
    check(&v3, "[" USER1 "," ANSWER "]", GO_ON, BOS U "one" A "so");
    check(&v3, "[" SYS "]", 0, BOS "S" A);
}

#define V3_CALLS                                                                                   \
    "<｜tool▁calls▁begin｜>"                                                                 \
    "<｜tool▁call▁begin｜>function<｜tool▁sep｜>f\n```json\n{\"x\":1}\n```"              \
    "<｜tool▁call▁end｜>\n"                                                                  \
    "<｜tool▁call▁begin｜>function<｜tool▁sep｜>g\n```json\n{\"y\": [1, 2]}\n```"        \
    "<｜tool▁call▁end｜>\n"                                                                  \
    "<｜tool▁call▁begin｜>function<｜tool▁sep｜>h\n```json\n{}\n```"                     \
    "<｜tool▁call▁end｜><｜tool▁calls▁end｜>"
#define V3_OUTPUTS                                                                                 \
    "<｜tool▁outputs▁begin｜><｜tool▁output▁begin｜>A<｜tool▁output▁end｜>\n"    \
    "<｜tool▁output▁begin｜>B<｜tool▁output▁end｜>\n"                                  \
    "<｜tool▁output▁begin｜>C<｜tool▁output▁end｜><｜tool▁outputs▁end｜>"

static void test_v3_tools(void **state)
{
    (void)state;
    check(&v3, "[" USER1 "," CALL "," RESULTS "]", 0, BOS U "one" A V3_CALLS EOS V3_OUTPUTS);
    /* the answer, and a second round, go on without the assistant's marker */
    check(&v3, "[" USER1 "," CALL "," RESULTS "," CALL "," RESULTS "," ANSWER "," USER1 "]", 0,
          BOS U "one" A V3_CALLS EOS V3_OUTPUTS V3_CALLS EOS V3_OUTPUTS "so" EOS U "one" A);
    check(&v3, "[" USER1 "," RESULT("?", "A") "]", 0,
          BOS U "one<｜tool▁outputs▁begin｜><｜tool▁output▁begin｜>A<｜tool▁output▁end｜>"
                "<｜tool▁outputs▁end｜>");
    check(&v3, "[" USER1 "," CALL "," RESULTS ",{\"role\":\"assistant\",\"content\":\"pre\"}]",
          GO_ON, BOS U "one" A V3_CALLS EOS V3_OUTPUTS "pre");
}

static void test_r1(void **state)
{
    (void)state;
    check(&r1, "[" SYS "," USER1 "]", 0, BOS "S" U "one" A "<think>\n");
    check(&r1_0528, "[" USER1 "]", 0, BOS U "one" A);
    check(&r1, "[" USER1 "," TAGGED "," USER1 "," ANSWER "," USER1 "]", 0,
          BOS U "one" A "c" EOS U "one" A "so" EOS U "one" A "<think>\n");
    check(&r1, "[" USER1 "," CALL "," RESULTS "]", 0, BOS U "one" A V3_CALLS EOS V3_OUTPUTS);
    check(&r1, "[" USER1 "," ANSWER "]", GO_ON, BOS U "one" A "<think>\nwhy</think>so");
    check(&r1, "[" USER1 ",{\"role\":\"assistant\",\"reasoning\":\"be\"}]", GO_ON,
          BOS U "one" A "<think>\nbe");
    check(&r1, "[" USER1 "," TAGGED "]", GO_ON, BOS U "one" A "a</think>b</think>c");
}

#define V31_CALLS                                                                                  \
    "<｜tool▁calls▁begin｜>"                                                                 \
    "<｜tool▁call▁begin｜>f<｜tool▁sep｜>{\"x\":1}<｜tool▁call▁end｜>"             \
    "<｜tool▁call▁begin｜>g<｜tool▁sep｜>{\"y\": [1, 2]}<｜tool▁call▁end｜>"       \
    "<｜tool▁call▁begin｜>h<｜tool▁sep｜>{}<｜tool▁call▁end｜>"                    \
    "<｜tool▁calls▁end｜>"
#define V31_OUTPUTS                                                                                \
    "<｜tool▁output▁begin｜>A<｜tool▁output▁end｜>"                                    \
    "<｜tool▁output▁begin｜>B<｜tool▁output▁end｜>"                                    \
    "<｜tool▁output▁begin｜>C<｜tool▁output▁end｜>"

static void test_v31_turns(void **state)
{
    (void)state;
    check(&v31, "[" SYS "," USER1 "]", 0, BOS "S" U "one" A "</think>");
    check(&v31, "[" SYS "," SYS "," USER1 "]", THINK, BOS "S\n\nS" U "one" A "<think>");
    check(&v31, "[" USER1 "," ANSWER "," USER2 "]", THINK,
          BOS U "one" A "</think>so" EOS U "t\nwo" A "<think>");
    check(&v31, "[" USER1 "," TAGGED "," USER1 "]", 0,
          BOS U "one" A "</think>b</think>c" EOS U "one" A "</think>");
    check(&v31, "[" USER1 "," ANSWER "," ANSWER "]", 0, BOS U "one" A "</think>so" EOS "so" EOS);
    check(&v31, "[" SYS "]", 0, BOS "S");
    check(&v31, "[" USER1 "," SYS "]", 0, BOS "S" U "one" A "</think>");
    check(&v31, "[" SYS "," USER1 "," ANSWER "," SYS "," DEV "]", THINK,
          BOS "S" U "one" A "</think>so" EOS U "S\n\nD" A "<think>");
    check(&v31, "[" USER1 "," ANSWER "," SYS "]", NO_PROMPT, BOS U "one" A "</think>so" EOS U "S");
    check(&v31, "[" USER1 "]", NO_PROMPT, BOS U "one");
}

static void test_v31_tools(void **state)
{
    (void)state;
    check(&v31, "[" USER1 "," CALL "," RESULTS "]", 0,
          BOS U "one" A "</think>" V31_CALLS EOS V31_OUTPUTS);
    check(&v31, "[" USER1 "," CALL "," RESULTS "," CALL "," RESULTS "," TAGGED "," USER1 "]", 0,
          BOS U "one" A "</think>" V31_CALLS EOS V31_OUTPUTS V31_CALLS EOS V31_OUTPUTS
                "a</think>b</think>c" EOS U "one" A "</think>");
}

/* A system message among the results is told at the head and does not part them. */
static void test_system_among_results(void **state)
{
    (void)state;
    const char *talk = "[" USER1 "," CALL "," SYS
                       "," RESULT("c", "C") "," SYS "," RESULT("a", "A") "," RESULT("b", "B") "]";
    check(&v3, talk, 0, BOS "S\n\nS" U "one" A V3_CALLS EOS V3_OUTPUTS);
    check(&v31, talk, 0, BOS "S\n\nS" U "one" A "</think>" V31_CALLS EOS V31_OUTPUTS);
}

static void test_v31_continue(void **state)
{
    (void)state;
    check(&v31, "[" USER1 "," ANSWER "]", GO_ON, BOS U "one" A "</think>so");
    check(&v31, "[" USER1 "," ANSWER "]", GO_ON | THINK, BOS U "one" A "<think>why</think>so");
    check(&v31, "[" USER1 ",{\"role\":\"assistant\",\"content\":\"so\"}]", GO_ON | THINK,
          BOS U "one" A "</think>so");
    check(&v31, "[" USER1 ",{\"role\":\"assistant\",\"reasoning\":\"be\"}]", GO_ON | THINK,
          BOS U "one" A "<think>be");
    check(&v31, "[" USER1 ",{\"role\":\"assistant\",\"content\":\"be\",\"prefix\":true}]", THINK,
          BOS U "one" A "<think>be");
    check(&v31, "[" USER1 ",{\"role\":\"assistant\",\"content\":\"be\",\"prefix\":true}]", 0,
          BOS U "one" A "</think>be");
}

#define SECTION_TOOLS                                                                              \
    "\n\n## Tools\nYou have access to the following tools:\n\n"                                    \
    "### get\nDescription: Gets \"it\"\n\n"                                                        \
    "Parameters: {\"type\": \"object\", \"properties\": {}}\n\n"                                   \
    "### now\nDescription: \n\nParameters: {}\n\n"                                                 \
    "IMPORTANT: ALWAYS adhere to this exact format for tool use:\n"
#define SECTION_WHERE                                                                              \
    "\n\nWhere:\n- `tool_call_name` must be an exact match to one of the available tools\n"        \
    "- `tool_call_arguments` must be valid JSON that strictly follows the tool's Parameters "      \
    "Schema\n- For multiple tool calls, "
#define SECTION_FORMAT                                                                             \
    "\n\n## Response Format:\n\nYou MUST strictly adhere to the following schema to reply:\n"      \
    "{\"type\": \"object\"}"

static void test_sections(void **state)
{
    (void)state;
    check(&v31, "[" SYS "," USER1 "]", TOOLS,
          BOS "S" SECTION_TOOLS "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>tool_call_name"
              "<｜tool▁sep｜>tool_call_arguments<｜tool▁call▁end｜>{additional_tool_calls}"
              "<｜tool▁calls▁end｜>" SECTION_WHERE
              "chain them directly without separators or spaces" U "one" A "</think>");
    check(&v3, "[" USER1 "]", TOOLS | FORMAT,
          BOS SECTION_TOOLS "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>"
                            "tool_call_name\n```json\ntool_call_arguments\n```<｜tool▁call▁end｜>"
                            "{additional_tool_calls}<｜tool▁calls▁end｜>" SECTION_WHERE
                            "start each further one on a new line" SECTION_FORMAT U "one" A);
    check(&v31, "[" USER1 "]", FORMAT, BOS SECTION_FORMAT U "one" A "</think>");
}

/* ---- where the answer begins ------------------------------------------------------------ */

static bool begins_reasoning(const struct chat_style *s, const char *messages, unsigned flags)
{
    struct buf out = {0};
    render(s, messages, flags | FORGED, &out);
    bool in = chat_prompt_in_reasoning(s, buf_str(&out), out.len);
    buf_free(&out);
    return in;
}

/* Every conversation of up to N_STEP steps: a prompt that asks for a turn ends with what opens it,
 * and tells the text of every system message. */
static void test_the_generation_prompt_is_last(void **state)
{
    (void)state;
    enum { N_STEP = 4, N_KIND = 5 };
    static const char *const steps[] = {USER1, SYS, ANSWER, DEV, CALL "," RESULTS};
    static const struct chat_style v32 = {.encoding = CHAT_ENCODING_V32};
    static const struct {
        const struct chat_style *style;
        unsigned flags;
        const char *turn, *results;
    } cases[] = {{&v3, 0, A, CHAT_OUTPUTS_END},
                 {&r1, 0, A "<think>\n", CHAT_OUTPUTS_END},
                 {&v31, 0, A "</think>", CHAT_OUTPUT_END},
                 {&v31, THINK, A "<think>", CHAT_OUTPUT_END},
                 {&v32, 0, A "</think>", "\n</function_results>\n\n</think>"},
                 {&v32, THINK, A "<think>", "\n</function_results>\n\n<think>"}};
    for (size_t n = 1, n_talk = N_KIND; n <= N_STEP; n++, n_talk *= N_KIND) {
        for (size_t talk = 0; talk < n_talk; talk++) {
            struct buf text = {0};
            size_t n_system = 0, last = 0, n_turn = 0;
            (void)buf_add_char(&text, '[');
            for (size_t i = 0, code = talk; i < n; i++, code /= N_KIND) {
                last = code % N_KIND;
                (void)buf_printf(&text, i ? ",%s" : "%s", steps[last]);
                n_system += last == 1;
                n_turn += last != 1 && last != 3;
            }
            (void)buf_add_char(&text, ']');
            bool asks = n_turn > 0 && last != 2;
            for (size_t k = 0; asks && k < sizeof cases / sizeof *cases; k++) {
                struct buf out = {0};
                size_t n_told = 0;
                render(cases[k].style, buf_str(&text), cases[k].flags, &out);
                const char *s = buf_str(&out);
                bool ends = false;
                for (int e = 0; e < 2; e++) {
                    const char *end = e ? cases[k].results : cases[k].turn;
                    size_t len = strlen(end);
                    ends |= out.len >= len && strcmp(s + out.len - len, end) == 0;
                }
                for (const char *at = s; (at = strchr(at, 'S')); at++) {
                    n_told += strncmp(at, "SML", 3) != 0; /* of ｜DSML｜ */
                }
                if (!ends || n_told != n_system)
                    fail_msg("case %zu: %s gives %s", k, buf_str(&text), s);
                buf_free(&out);
            }
            buf_free(&text);
        }
    }
}

static void test_in_reasoning(void **state)
{
    (void)state;
    static const struct chat_style v32 = {.encoding = CHAT_ENCODING_V32};
    const char *user = "[{\"role\":\"user\",\"content\":\"<think>\"}]";
    const char *loop = "[" USER1 "," CALL "," RESULTS "]";
    assert_false(begins_reasoning(&v3, user, THINK));
    assert_true(begins_reasoning(&r1, user, 0));
    assert_true(begins_reasoning(&r1_0528, user, 0));
    assert_false(begins_reasoning(&r1, loop, 0));
    assert_false(begins_reasoning(&r1, "[" USER1 "," ANSWER "]", GO_ON));
    assert_false(
        begins_reasoning(&r1, "[" USER1 ",{\"role\":\"assistant\",\"content\":\"a\"}]", GO_ON));
    assert_true(begins_reasoning(&v31, user, THINK));
    assert_false(begins_reasoning(&v31, user, 0));
    assert_false(begins_reasoning(&v31, loop, THINK));
    assert_true(begins_reasoning(&v32, user, THINK));
    assert_false(begins_reasoning(&v32, user, 0));
    assert_true(begins_reasoning(&v32, loop, THINK));
    assert_false(begins_reasoning(&v32, "[" USER1 "," ANSWER "]", THINK | GO_ON));
    assert_false(chat_prompt_in_reasoning(&v32, "", 0));
    assert_false(chat_prompt_in_reasoning(&v32, "<thin", 5));
}

static void test_no_memory(void **state)
{
    (void)state;
    const struct chat_style *styles[] = {&v3, &r1, &v31};
    json_t *m = json_tree_of("[" SYS "," USER1 "," TAGGED "," CALL "," RESULTS "," ANSWER "]");
    json_t *tools = json_tree_of(tools_text);
    struct chat_request r = {.messages = m, .tools = tools, .add_generation_prompt = true};
    for (size_t i = 0; i < 3; i++) {
        fathom_err err = FATHOM_ENOMEM;
        long n = 0;
        for (; n < 1000 && err; n++) {
            struct buf out = {0};
            mem_fail_after(n);
            err = render_marked(styles[i], &r, &out, NULL);
            mem_fail_after(-1);
            assert_true(err == FATHOM_OK || err == FATHOM_ENOMEM);
            buf_free(&out);
        }
        assert_int_equal(err, FATHOM_OK);
        assert_true(n > 3);
    }
    json_decref(m);
    json_decref(tools);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_v3_turns),
        cmocka_unit_test(test_v3_tools),
        cmocka_unit_test(test_r1),
        cmocka_unit_test(test_v31_turns),
        cmocka_unit_test(test_v31_tools),
        cmocka_unit_test(test_v31_continue),
        cmocka_unit_test(test_sections),
        cmocka_unit_test(test_in_reasoning),
        cmocka_unit_test(test_no_memory),
        cmocka_unit_test(test_the_generation_prompt_is_last),
        cmocka_unit_test(test_system_among_results),
    };
    json_set_alloc_funcs(mem_alloc, mem_free);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
