/* test_tag.c - structural tags: free text in which tags begin, and formats within one another */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "base/mem.h"
#include "grammar/builder.h"
#include "support/grammar_data.h"
#include "support/json_tree.h"
#include "support/tokenizer_data.h"

static struct grammar *grammar_of(const struct grammar_data *g, const char *text)
{
    fathom_diag d = {""};
    struct grammar *out;
    json_t *tag = json_tree_of(text);
    struct grammar_options options = {.space = GRAMMAR_SPACE_NONE};
    if (grammar_from_tag(&out, g->v, tag, &options, &d)) fail_msg("%s: %s", text, d.text);
    json_decref(tag);
    return out;
}

/* Texts that each end with a line break: the yes are taken, the no are not. */
struct table {
    const char *tag, *yes, *no;
};

static void try_texts(const struct grammar_data *g, struct grammar *grammar, const char *source,
                      const char *texts, bool wanted)
{
    for (size_t n; *texts; texts += n + 1) {
        n = strcspn(texts, "\n");
        assert_true(texts[n] == '\n');
        if (matcher_takes(g, grammar, texts, n) == wanted) continue;
        fail_msg("%s\n\"%.*s\" is %s", source, (int)n, texts, wanted ? "not taken" : "taken");
    }
}

#define FORMAT(f) "{\"type\": \"structural_tag\", \"format\": " f "}"
#define CONST(s) "{\"type\": \"const_string\", \"value\": \"" s "\"}"
#define OBJECT                                                                                     \
    "{\"type\": \"object\", \"properties\": {\"a\": {\"type\": \"integer\"}}, "                    \
    "\"required\": [\"a\"]}"
#define TAG(begin, content, end)                                                                   \
    "{\"type\": \"tag\", \"begin\": \"" begin "\", \"content\": " content ", \"end\": " end "}"
#define SCHEMA "{\"type\": \"json_schema\", \"json_schema\": " OBJECT "}"
#define FUNCTIONS                                                                                  \
    "{\"type\": \"structural_tag\", \"structures\": [{\"begin\": \"<function=f>\", "               \
    "\"schema\": " OBJECT                                                                          \
    ", \"end\": \"</function>\"}, {\"begin\": \"<function=g>\", \"schema\": {\"type\": "           \
    "\"integer\"}, \"end\": \"</function>\"}], \"triggers\": [\"<function=\"]}"
#define TRIGGERED(more)                                                                            \
    "{\"type\": \"triggered_tags\", \"triggers\": [\"<f\"], \"tags\": [{\"begin\": \"<f>\", "      \
    "\"content\": " SCHEMA ", \"end\": \"</f>\"}]" more "}"

static const struct table tables[] = {
    {FUNCTIONS,
     "\nfree text, <b>, <function, a<\n<function=f>{\"a\":1}</function>\nhm "
     "<function=f>{\"a\":1}</function> and <function=g>7</function><function=g>8</function>.\n"
     "<<function=g>1</function>\n<function<function=g>1</function>\n",
     "<function=\n<function=h>\n<function=f>{}</"
     "function>\n<function=f>{\"a\":1}\n<function=g>7\n"
     "x <function=g>1</function><function=\n"},
    {FORMAT(TRIGGERED("")), "\nx\n<f>{\"a\":1}</f>y\n<<f>{\"a\":1}</f>\n", "<f\n<f>\n<fx\n"},
    {FORMAT(TRIGGERED(", \"at_least_one\": true")), "<f>{\"a\":1}</f>\n<f>{\"a\":1}</f>x<\n",
     "\nx\nx<f>{\"a\":1}</f>\n"},
    {FORMAT(TRIGGERED(", \"stop_after_first\": true")), "\nx\nx<f>{\"a\":1}</f>\n",
     "x<f>{\"a\":1}</f>y\n"},
    {FORMAT(TRIGGERED(", \"excludes\": [\"no\", \"never\"]")), "n\nnev\nx<f>{\"a\":1}</f>n\n",
     "no\nxnever\n<f>{\"a\":1}</f>no\n"},
    {FORMAT(CONST("yes")), "yes\n", "\nye\nyess\n"},
    {FORMAT("{\"type\": \"sequence\", \"elements\": [" CONST(
         "a: ") ", {\"type\": \"or\", "
                "\"elements\": [" SCHEMA
                ", {\"type\": \"regex\", \"pattern\": \"[0-9]+\"}, {\"type\": "
                "\"grammar\", \"grammar\": \"root ::= \\\"(\\\" root \\\")\\\" | "
                "\\\"x\\\"\"}]}]}"),
     "a: {\"a\":1}\na: 12\na: ((x))\n", "a: \n12\na: ((x)\n"},
    {FORMAT("{\"type\": \"any_text\"}"), "\nanything ü\n", ""},
    {FORMAT("{\"type\": \"any_text\", \"excludes\": [\"<f\", \"b\"]}"), "\na<\n<<ga\n", "<f\nab\n"},
    {FORMAT("{\"type\": \"sequence\", \"elements\": [" TAG("<think>", "{\"type\": \"any_text\"}",
                                                           "\"</think>\"") ", " TRIGGERED("") "]}"),
     "<think></think>\n<think>hm</th</think>x\n<think><f></think><f>{\"a\":1}</f>\n",
     "<think>\n<think></think><f\nx\n"},
    {FORMAT(TAG("<a>", TRIGGERED(""), "[\"</a>\", \"</b>\"]")),
     "<a></a>\n<a>x</b>\n<a>x<f>{\"a\":1}</f></a>\n", "<a>\n<a>x</a>y\n<a><f></a>\n"},
    {FORMAT(TAG("<a>", TRIGGERED(", \"stop_after_first\": true"), "\"</a>\"")),
     "<a></a>\n<a>x<f>{\"a\":1}</f></a>\n", "<a>x<f>{\"a\":1}</f>y</a>\n"},
    {FORMAT(TAG(
         "<a>",
         "{\"type\": \"or\", \"elements\": [" CONST("x") ", {\"type\": "
                                                         "\"any_text\", \"excludes\": [\"y\"]}]}",
         "\"</a>\"")),
     "<a>x</a>\n<a>z</a>\n", "<a>y</a>\n<a>x\n<a></a></a>\n"},
    {FORMAT(TAG("<a>", "{\"type\": \"any_text\"}", "\"\"")), "<a>\n<a>x</a>\n", "\n"},
    {FORMAT("{\"type\": \"tags_with_separator\", \"separator\": \",\", \"tags\": [" TAG(
         "<i>", SCHEMA, "\"</i>\"") ", " TAG("<j>", CONST("1"), "\"</j>\"") "]}"),
     "\n<i>{\"a\":1}</i>\n<j>1</j>,<i>{\"a\":1}</i>,<j>1</j>\n",
     ",\n<j>1</j>,\n<j>1</j><j>1</j>\n"},
    {FORMAT("{\"type\": \"tags_with_separator\", \"separator\": \"\", \"at_least_one\": true, "
            "\"stop_after_first\": true, \"tags\": [{\"begin\": \"<i>\", \"content\": " CONST(
                "1") ", \"end\": \"</i>\"}]}"),
     "<i>1</i>\n", "\n<i>1</i><i>1</i>\n"},
    {FORMAT("{\"type\": \"sequence\", \"elements\": [{\"type\": \"optional\", "
            "\"content\": " CONST("a") "}, {\"type\": \"star\", \"content\": " CONST(
                "b") "}, {\"type\": \"plus\", "
                     "\"content\": " CONST(
                         "c") "}, {\"type\": \"repeat\", \"min\": 1, \"max\": 2, "
                              "\"content\": " CONST(
                                  "d") "}, {\"type\": \"repeat\", \"min\": 0, \"max\": -1, "
                                       "\"content\": " CONST("e") "}]}"),
     "cd\nabbccdde\ncdeee\n", "\nabd\ncddd\naacd\n"},
    /* two triggers that end at once, and one that overlaps itself */
    {FORMAT("{\"type\": \"triggered_tags\", \"triggers\": [\"ab\", \"b\"], \"tags\": [{\"begin\": "
            "\"ab1\", \"content\": " CONST("x") ", \"end\": \"\"}, {\"begin\": \"b2\", "
                                                "\"content\": " CONST("y") ", \"end\": \"\"}]}"),
     "a\nab1x\nab2y\nb2y\nzab1xb2ya\n", "b\nb1x\nab\nab1y\n"},
    {FORMAT("{\"type\": \"triggered_tags\", \"triggers\": [\"aab\", \"aa\u00e9\"], \"tags\": "
            "[{\"begin\": \"aab!\", \"content\": " CONST("x") ", \"end\": \"\"}, {\"begin\": "
                                                              "\"aa\u00e9\", \"content\": " CONST(
                                                                  "y") ", \"end\": \"\"}]}"),
     "aaaab!x\naaaaa\u00e9y\naa\u00e8\n", "aaab\naaab?\naa\u00e9\n"},
    {FORMAT("{\"type\": \"json_schema\", \"json_schema\": true, \"style\": \"json\"}"), "1\n[]\n",
     "\n"},
};

static void test_texts(void **state)
{
    const struct grammar_data *g = *state;
    for (size_t i = 0; i < sizeof tables / sizeof tables[0]; i++) {
        struct grammar *grammar = grammar_of(g, tables[i].tag);
        try_texts(g, grammar, tables[i].tag, tables[i].yes, true);
        try_texts(g, grammar, tables[i].tag, tables[i].no, false);
        grammar_release(grammar);
    }
}

static void test_schema_as_text(void **state)
{
    const struct grammar_data *g = *state;
    struct grammar *grammar =
        grammar_of(g, "{\"triggers\": [\"<\"], \"structures\": [{\"begin\": \"<\", \"schema\": "
                      "\"{\\\"type\\\": \\\"null\\\"}\", \"end\": \">\"}]}");
    try_texts(g, grammar, "a schema as text", "x<null>\n", true);
    try_texts(g, grammar, "a schema as text", "x<1>\n", false);
    grammar_release(grammar);
}

/* An added token stands where a begin or an end has its text, and nowhere else in free text. */
static void test_markers(void **state)
{
    const struct grammar_data *g = *state;
    struct grammar *grammar = grammar_of(
        g, FORMAT("{\"type\": \"triggered_tags\", \"triggers\": [\"\\n<think>\"], \"tags\": "
                  "[{\"begin\": \"\\n<think>!\", \"content\": {\"type\": \"any_text\"}, \"end\": "
                  "\"</think>\"}]}"));
    struct matcher *m = matcher_of(g, grammar);
    int32_t begin = tokenizer_find(g->t, "<think>"), end = tokenizer_find(g->t, "</think>");
    assert_true(begin >= 0 && end >= 0);
    assert_int_equal(matcher_accept_token(m, begin), FATHOM_EINVAL);
    assert_int_equal(matcher_accept_bytes(m, "so\n\n", 4), FATHOM_OK);
    assert_true(mask_is_exact(g, grammar, m, 0, 1));
    assert_int_equal(matcher_accept_token(m, end), FATHOM_EINVAL);
    assert_int_equal(matcher_accept_token(m, begin), FATHOM_OK);
    assert_false(matcher_can_end(m));
    assert_int_equal(matcher_accept_bytes(m, "!hm", 3), FATHOM_OK);
    assert_true(mask_is_exact(g, grammar, m, 0, 1));
    assert_int_equal(matcher_accept_token(m, end), FATHOM_OK);
    assert_true(matcher_can_end(m));
    matcher_destroy(m);
    grammar_release(grammar);
}

static void test_masks(void **state)
{
    const struct grammar_data *g = *state;
    uint64_t rng = 5;
    for (size_t i = 0; i < sizeof tables / sizeof tables[0]; i++) {
        struct grammar *grammar = grammar_of(g, tables[i].tag);
        for (int k = 0; k < 3; k++) {
            struct matcher *m = matcher_of(g, grammar);
            struct buf text = {0};
            for (int n = 0; n < 16; n++) {
                assert_true(mask_is_exact(g, grammar, m, n % 5, 5));
                if (!walk_step(g, m, &rng, n > 8, &text)) break;
            }
            buf_free(&text);
            matcher_destroy(m);
        }
        grammar_release(grammar);
    }
}

struct refusal {
    const char *tag;
    fathom_err err;
    const char *why;
};

static const struct refusal refusals[] = {
    {"{}", FATHOM_EINVAL, "structural tag format is missing, an object with a \"type\" is needed"},
    {"{\"format\": []}", FATHOM_EINVAL, "structural tag format is an array, an object with"},
    {FORMAT("{\"type\": \"token\", \"token\": 1}"), FATHOM_EUNSUPPORTED,
     "structural tag format: the type \"token\" is not supported"},
    {FORMAT("{\"type\": \"const_string\"}"), FATHOM_EINVAL,
     "structural tag format: \"value\" is missing, a string is needed"},
    {FORMAT("{\"type\": \"sequence\", \"elements\": [" CONST("a") ", 3]}"), FATHOM_EINVAL,
     "structural tag format.elements[1] is an integer, an object with a \"type\" is needed"},
    {FORMAT("{\"type\": \"or\", \"elements\": []}"), FATHOM_EINVAL,
     "\"elements\" is an empty array, an array of at least one element is needed"},
    {FORMAT("{\"type\": \"any_text\", \"exclude\": []}"), FATHOM_EUNSUPPORTED,
     "structural tag format: \"exclude\" is not supported"},
    {FORMAT("{\"type\": \"any_text\", \"\": []}"), FATHOM_EUNSUPPORTED, "\"\" is not supported"},
    {FORMAT("{\"type\": \"any_text\", \"type excludes\": 1}"), FATHOM_EUNSUPPORTED,
     "\"type excludes\" is not supported"},
    {FORMAT("{\"type\": \"any_text\", \"excludes\": [\"\"]}"), FATHOM_EINVAL,
     "excludes[0] is empty"},
    {FORMAT("{\"type\": \"json_schema\", \"json_schema\": {}, \"style\": \"qwen_xml\"}"),
     FATHOM_EUNSUPPORTED, "a json_schema of another style than json is not"},
    {FORMAT("{\"type\": \"json_schema\", \"json_schema\": {\"contains\": 1}}"), FATHOM_EUNSUPPORTED,
     "schema structural tag format.json_schema: the keyword \"contains\" is not supported"},
    {FORMAT("{\"type\": \"json_schema\"}"), FATHOM_EINVAL,
     "structural tag format.json_schema is missing, a JSON schema is needed"},
    {FORMAT("{\"type\": \"grammar\", \"grammar\": \"root ::= x\"}"), FATHOM_EINVAL,
     "grammar, line 1, column 10: rule \"x\" is not defined"},
    {FORMAT("{\"type\": \"repeat\", \"min\": 2, \"max\": 1, \"content\": " CONST("a") "}"),
     FATHOM_EINVAL, "\"min\" and \"max\" are needed, from 0 to 4096 and in order"},
    {FORMAT(TAG("a", "1", "\"\"")), FATHOM_EINVAL, "format.content is an integer"},
    {FORMAT("{\"type\": \"tag\", \"begin\": \"a\", \"content\": " CONST("b") "}"), FATHOM_EINVAL,
     "structural tag format: \"end\" is missing"},
    {FORMAT("{\"type\": \"tag\", \"begin\": {\"type\": \"token\"}, \"content\": " CONST(
         "b") ", \"end\": \"c\"}"),
     FATHOM_EINVAL, "\"begin\" is an object, a string is needed"},
    {"{\"structures\": [], \"triggers\": [\"<\"]}", FATHOM_EINVAL,
     "structural tag: \"structures\" is an empty array"},
    {"{\"structures\": [{\"begin\": \"a\", \"schema\": {}, \"end\": \"b\"}], \"triggers\": "
     "[\"<\"]}",
     FATHOM_EINVAL, "structural tag: the begin \"a\" begins with none of the triggers"},
    {"{\"structures\": [{\"begin\": \"a\", \"schema\": 1, \"end\": \"b\"}], \"triggers\": [\"a\"]}",
     FATHOM_EINVAL, "structural tag structures[0].schema is an integer, a JSON schema is needed"},
    {"{\"structures\": [{\"begin\": \"aba\", \"schema\": {}, \"end\": \"c\"}, {\"begin\": \"b\", "
     "\"schema\": {}, \"end\": \"c\"}], \"triggers\": [\"aba\", \"b\"]}",
     FATHOM_EINVAL, "\"aba\" can never be met, another text that is awaited or excluded stands"},
    {FORMAT(TRIGGERED(", \"at_least_one\": 1")), FATHOM_EINVAL, "a boolean is needed"},
};

static void test_refused(void **state)
{
    const struct grammar_data *g = *state;
    for (size_t i = 0; i < sizeof refusals / sizeof refusals[0]; i++) {
        const struct refusal *r = &refusals[i];
        struct grammar *out;
        fathom_diag d = {""};
        json_t *tag = json_tree_of(r->tag);
        fathom_err err = grammar_from_tag(&out, g->v, tag, NULL, &d);
        if (err != r->err || !strstr(d.text, r->why)) fail_msg("%s: %d, %s", r->tag, err, d.text);
        assert_null(out);
        json_decref(tag);
    }
}

static void test_hostile(void **state)
{
    const struct grammar_data *g = *state;
    struct buf b = {0};
    struct grammar *out;
    fathom_diag d = {""};
    for (int i = 0; i < 70; i++) {
        assert_int_equal(buf_add_str(&b, "{\"type\": \"star\", \"content\": "), FATHOM_OK);
    }
    assert_int_equal(buf_add_str(&b, CONST("x")), FATHOM_OK);
    for (int i = 0; i < 70; i++) assert_int_equal(buf_add_char(&b, '}'), FATHOM_OK);
    json_t *format = json_tree_of(b.data), *tag = json_pack("{s:o}", "format", format);
    assert_int_equal(grammar_from_tag(&out, g->v, tag, NULL, &d), FATHOM_ELIMIT);
    assert_non_null(strstr(d.text, "nested deeper than 64"));
    json_decref(tag);
    buf_free(&b);
    d.text[0] = '\0';
    tag = json_tree_of(FORMAT(
        "{\"type\": \"repeat\", \"min\": 4096, \"max\": 4096, \"content\": "
        "{\"type\": \"repeat\", \"min\": 4096, \"max\": 4096, \"content\": " CONST("ab") "}}"));
    assert_int_equal(grammar_from_tag(&out, g->v, tag, NULL, &d), FATHOM_ELIMIT);
    assert_true(d.text[0] != '\0');
    json_decref(tag);
}

static void test_failing_allocations(void **state)
{
    const struct grammar_data *g = *state;
    json_t *tag = json_tree_of(FUNCTIONS);
    for (long n = 0;; n++) {
        struct grammar *grammar = NULL;
        mem_fail_after(n);
        fathom_err err = grammar_from_tag(&grammar, g->v, tag, NULL, NULL);
        bool hit = mem_fail_hit();
        mem_fail_after(-1);
        grammar_release(grammar);
        assert_int_equal(err, hit ? FATHOM_ENOMEM : FATHOM_OK);
        if (!hit) break;
    }
    json_decref(tag);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_texts),
                                       cmocka_unit_test(test_schema_as_text),
                                       cmocka_unit_test(test_markers),
                                       cmocka_unit_test(test_masks),
                                       cmocka_unit_test(test_refused),
                                       cmocka_unit_test(test_hostile),
                                       cmocka_unit_test(test_failing_allocations)};
    return cmocka_run_group_tests(tests, grammar_data_set_up_pilot, grammar_data_tear_down);
}
