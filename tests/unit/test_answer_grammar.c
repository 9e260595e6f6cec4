/* test_answer_grammar.c - whole answers: reasoning before content, content or calls, text and
 * then maybe calls */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

#include "base/mem.h"
#include "chat/answer_grammar.h"
#include "chat/chat_int.h"
#include "support/call_text.h"
#include "support/grammar_data.h"
#include "support/json_tree.h"
#include "support/tokenizer_data.h"

static const char tools_text[] =
    "[{\"type\": \"function\", \"function\": {\"name\": \"tight\", \"strict\": true, "
    "\"parameters\": {\"type\": \"object\", \"properties\": {\"n\": {\"type\": \"integer\"}}, "
    "\"required\": [\"n\"]}}}, {\"type\": \"function\", \"function\": {\"name\": \"loose\", "
    "\"parameters\": {\"type\": \"object\", \"properties\": {\"n\": {\"type\": \"integer\"}}, "
    "\"contains\": {}}}}]";

static const char schema_text[] =
    "{\"type\": \"object\", \"properties\": {\"a\": {\"type\": \"integer\"}}, \"required\": "
    "[\"a\"]}";

struct env {
    struct grammar_data g;
    json_t *tools;
    json_t *schema;
};

static struct grammar *compile(const struct env *e, const struct answer_grammar *a)
{
    struct grammar *out;
    fathom_diag d = {""};
    if (answer_grammar_compile(&out, e->g.v, a, NULL, NULL, &d)) fail_msg("%s", d.text);
    return out;
}

static void expect(const struct env *e, const struct answer_grammar *a, const char *text, bool want)
{
    struct grammar *grammar = compile(e, a);
    bool marked = matcher_takes_tokens(&e->g, grammar, text, TOKENIZER_MARKUP_ON);
    bool plain = matcher_takes_tokens(&e->g, grammar, text, TOKENIZER_MARKUP_OFF);
    if (marked != want || plain != want) fail_msg("%d %d, not %d: %s", marked, plain, want, text);
    grammar_release(grammar);
}

static void content_comes_after_reasoning(void **state)
{
    const struct env *e = *state;
    struct answer_grammar a = {
        .thinking = true, .content = ANSWER_CONTENT_SCHEMA, .value = e->schema};
    expect(e, &a, "Let me see: {\"b\"</think>{\"a\": 1}", true);
    expect(e, &a, "</think>{\"a\": 1}", true);
    expect(e, &a, "<think>\nhm\n</think>{\"a\": 1}", true);
    expect(e, &a, "{\"a\": 1}", false); /* still reasoning */
    expect(e, &a, "hm</think>", false);
    expect(e, &a, "hm</think>{\"a\": \"x\"}", false);
    expect(e, &a, "hm</think>\n\n{\"a\": 1}", false);
    a.thinking = false;
    expect(e, &a, "{\"a\": 1}", true);
    expect(e, &a, "hm</think>{\"a\": 1}", false);
    json_t *value = json_string("[a-c]*");
    a = (struct answer_grammar){true, ANSWER_CONTENT_REGEX, value, NULL};
    expect(e, &a, "x</think>abc", true);
    expect(e, &a, "x</think>", true); /* the pattern takes nothing, too */
    expect(e, &a, "x</think>abd", false);
    json_decref(value);
    value = json_pack("[s, s]", "yes", "no");
    a = (struct answer_grammar){true, ANSWER_CONTENT_CHOICE, value, NULL};
    expect(e, &a, "yes? no?</think>no", true);
    expect(e, &a, "yes? no?</think>maybe", false);
    json_decref(value);
    value = json_string("root ::= root [-+] [0-9]+ | [0-9]+");
    a = (struct answer_grammar){true, ANSWER_CONTENT_EBNF, value, NULL};
    expect(e, &a, "1+?</think>1+22-3", true);
    expect(e, &a, "1+1", false);
    expect(e, &a, "so</think>1+", false);
    json_decref(value);
    value = json_pack("{s:[{s:s, s:O, s:s}], s:[s]}", "structures", "begin", "<f>", "schema",
                      e->schema, "end", "</f>", "triggers", "<f");
    a = (struct answer_grammar){true, ANSWER_CONTENT_TAG, value, NULL};
    expect(e, &a, "<f>?</think>Here: <f>{\"a\": 1}</f>.", true);
    expect(e, &a, "</think>", true);
    expect(e, &a, "hm</think><f>1</f>", false);
    json_decref(value);
}

static void content_or_calls(void **state)
{
    const struct env *e = *state;
    struct call_grammar calls = {CHAT_ENCODING_V32, e->tools, NULL, true, true};
    struct answer_grammar a = {false, ANSWER_CONTENT_SCHEMA, e->schema, &calls};
    expect(e, &a, "{\"a\": 1}", true);
    expect(e, &a, BLOCK(INVOKE("tight", PARAMETER("n", "false", "3"))), true);
    expect(e, &a, BLOCK(INVOKE("tight", PARAMETER("n", "true", "3"))), false);
    expect(e, &a, "{\"a\": 1}" BLOCK(INVOKE("tight", PARAMETER("n", "false", "3"))), false);
    expect(e, &a, "Well", false);
    a.content = ANSWER_CONTENT_NONE;
    a.thinking = true;
    expect(e, &a, "Well</think>" BLOCK(INVOKE("tight", PARAMETER("n", "false", "3"))), true);
    expect(e, &a, "Well</think>{\"a\": 1}", false);
}

static void text_and_then_maybe_calls(void **state)
{
    const struct env *e = *state;
    struct call_grammar calls = {CHAT_ENCODING_V32, e->tools, NULL, true, true};
    struct answer_grammar a = {.content = ANSWER_CONTENT_TEXT, .calls = &calls};
    expect(e, &a, "", true);
    expect(e, &a, "a < b, <b>c</b>\n\n<", true);
    expect(e, &a, "Yes." BLOCK(INVOKE("tight", PARAMETER("n", "false", "3"))), true);
    expect(e, &a, BLOCK(INVOKE("tight", "\n")), false);
    expect(e, &a, BLOCK(INVOKE("loose", "\n")), true);
    expect(e, &a,
           BLOCK(INVOKE("loose",
                        PARAMETER("x", "true", "raw <b>") PARAMETER("y", "false", "[1, {}]"))),
           true);
    expect(e, &a, BLOCK(INVOKE("loose", PARAMETER("x", "false", "\"text\""))), false);
    expect(e, &a, BLOCK(INVOKE("third", "\n")), false);
    expect(e, &a, "<" CHAT_DSML "invoke name=\"tight\">", false);
    expect(e, &a, BLOCK(INVOKE("loose", "\n")) "more", false);
    calls.markup = CHAT_ENCODING_V31;
    expect(e, &a, "So:" V31(CALL31("loose", "{\"x\": [\"y\"]}") CALL31("tight", "{\"n\": 1}")),
           true);
    expect(e, &a, V31(CALL31("tight", "{\"x\": 1}")), false);
    expect(e, &a, CALL31("tight", "{\"n\": 1}"), false); /* the parser would take it for a call */
    calls.markup = CHAT_ENCODING_V3;
    calls.parallel = false;
    expect(e, &a, "So:" V31(CALL3("loose", "{}")), true);
    expect(e, &a, V31(CALL3("loose", "{}") "\n" CALL3("loose", "{}")), false);
    expect(e, &a, V31(CALL3("tight", "{}")), false);
}

/* All tools are held to their schemas unless only strict ones are. */
static void strictness_is_asked_for(void **state)
{
    const struct env *e = *state;
    struct grammar *out;
    fathom_diag d = {""};
    struct call_grammar calls = {CHAT_ENCODING_V31, e->tools, NULL, true, false};
    struct answer_grammar a = {.calls = &calls};
    assert_int_equal(answer_grammar_compile(&out, e->g.v, &a, NULL, NULL, &d), FATHOM_EUNSUPPORTED);
    assert_non_null(strstr(d.text, "tools[1].function.parameters#"));
    assert_non_null(strstr(d.text, "\"contains\""));
}

static void survives_failing_allocations(void **state)
{
    const struct env *e = *state;
    struct call_grammar calls = {CHAT_ENCODING_V32, e->tools, NULL, true, true};
    const struct answer_grammar answers[] = {
        {true, ANSWER_CONTENT_SCHEMA, e->schema, &calls},
        {true, ANSWER_CONTENT_TEXT, NULL, &calls},
    };
    for (size_t i = 0; i < 2; i++) {
        for (long n = 0;; n += 1 + n / 50) {
            struct grammar *out;
            mem_fail_after(n);
            fathom_err err = answer_grammar_compile(&out, e->g.v, &answers[i], NULL, NULL, NULL);
            bool hit = mem_fail_hit();
            mem_fail_after(-1);
            grammar_release(out);
            if (!hit) {
                assert_int_equal(err, FATHOM_OK);
                break;
            }
            assert_int_equal(err, FATHOM_ENOMEM);
        }
    }
}

static int set_up(void **state)
{
    static struct env e;
    grammar_data_open(&e.g, TOKENIZER_PILOT_JSON);
    e.tools = json_tree_of(tools_text);
    e.schema = json_tree_of(schema_text);
    *state = &e;
    return 0;
}

static int tear_down(void **state)
{
    struct env *e = *state;
    json_decref(e->tools);
    json_decref(e->schema);
    grammar_data_close(&e->g);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(content_comes_after_reasoning), cmocka_unit_test(content_or_calls),
        cmocka_unit_test(text_and_then_maybe_calls),     cmocka_unit_test(strictness_is_asked_for),
        cmocka_unit_test(survives_failing_allocations),
    };
    json_set_alloc_funcs(mem_alloc, mem_free);
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
