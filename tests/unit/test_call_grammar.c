/* test_call_grammar.c - tool calls: what the releases write is taken, and what comes out of the
 * mask is read by the answer parser as calls whose arguments satisfy their schemas */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "base/json.h"
#include "base/mem.h"
#include "base/rng.h"
#include "chat/answer_grammar.h"
#include "chat/chat_int.h"
#include "support/call_text.h"
#include "support/chat_answer.h"
#include "support/grammar_data.h"
#include "support/json_check.h"
#include "support/json_tree.h"
#include "support/tokenizer_data.h"

static const char tools_text[] =
    "[{\"type\": \"function\", \"function\": {\"name\": \"get_weather\", \"parameters\": "
    "{\"type\": \"object\", \"properties\": {\"city\": {\"type\": \"string\"}, \"unit\": "
    "{\"enum\": [\"C\", \"F\"]}, \"days\": {\"type\": \"integer\", \"minimum\": 1, \"maximum\": "
    "14}, \"where\": {\"anyOf\": [{\"type\": \"string\", \"pattern\": \"^[a-z]{2}$\"}, {\"type\": "
    "\"null\"}, {\"type\": \"array\", \"items\": {\"type\": \"number\"}}]}}, \"required\": "
    "[\"city\"]}}}, {\"type\": \"function\", \"function\": {\"name\": \"now\"}}, {\"type\": "
    "\"function\", \"function\": {\"name\": \"note\", \"parameters\": {\"type\": \"object\", "
    "\"properties\": {\"short\": {\"type\": \"string\", \"minLength\": 1, \"maxLength\": 5}, "
    "\"long\": {\"type\": \"string\", \"maxLength\": 100000}, \"any\": {}, \"map\": {\"type\": "
    "\"object\", \"additionalProperties\": {\"type\": \"boolean\"}}}, \"required\": [\"short\", "
    "\"any\"], \"additionalProperties\": false}}}]";

struct call_case {
    enum chat_encoding markup;
    const char *text;
    bool taken;
};

static const struct call_case call_cases[] = {
    {CHAT_ENCODING_V31, V31(CALL31("now", "{}")), true},
    {CHAT_ENCODING_V31, V31(CALL31("get_weather", "{\"city\": \"Oslo\", \"days\": 3}")), true},
    {CHAT_ENCODING_V31, V31(CALL31("now", "{}") CALL31("now", "{}")), true},
    {CHAT_ENCODING_V31, V31(CALL31("get_weather", "{\"days\": 3}")), false},
    {CHAT_ENCODING_V31, V31(CALL31("then", "{}")), false},
    {CHAT_ENCODING_V31, V31(""), false},
    {CHAT_ENCODING_V31, "Sure! " V31(CALL31("now", "{}")), false},
    {CHAT_ENCODING_V31, V31(CALL31("get_weather", "{\n\"city\": \"Oslo\"}")), false},
    {CHAT_ENCODING_V3, V31(CALL3("now", "{}")), true},
    {CHAT_ENCODING_R1, V31(CALL3("now", "{}") "\n" CALL3("now", "{}")), true},
    {CHAT_ENCODING_V3, V31(CALL31("now", "{}")), false},
    {CHAT_ENCODING_KIMI_K2, KIMI(KIMI_CALL("now:0", "{}")), true},
    {CHAT_ENCODING_KIMI_K2, KIMI(KIMI_CALL("now:7", "{}") KIMI_CALL("now:18", "{}")), true},
    {CHAT_ENCODING_KIMI_K2, KIMI(KIMI_CALL("get_weather:3", "{\"city\": \"Oslo\"}")), true},
    {CHAT_ENCODING_KIMI_K2, KIMI(KIMI_CALL("get_weather:3", "{\"days\": 3}")), false},
    {CHAT_ENCODING_KIMI_K2, KIMI(KIMI_CALL("now", "{}")), false},
    {CHAT_ENCODING_KIMI_K2, KIMI(KIMI_CALL("now:01", "{}")), false},
    {CHAT_ENCODING_KIMI_K2, KIMI(KIMI_CALL("then:0", "{}")), false},
    {CHAT_ENCODING_KIMI_K2, KIMI(""), false},
    {CHAT_ENCODING_V32, BLOCK(INVOKE("now", "\n")), true},
    {CHAT_ENCODING_V32, BLOCK(INVOKE("now", "\n") INVOKE("now", "\n")), true},
    {CHAT_ENCODING_V32, BLOCK(INVOKE("now", "")), false},
    {CHAT_ENCODING_V32,
     BLOCK(INVOKE("get_weather", PARAMETER("city", "true", "São <Paulo> & \"x\"")
                                     PARAMETER("days", "false", "14"))),
     true},
    {CHAT_ENCODING_V32, BLOCK(INVOKE("get_weather", PARAMETER("days", "false", "14"))), false},
    {CHAT_ENCODING_V32,
     BLOCK(INVOKE("get_weather", PARAMETER("city", "true", "x") PARAMETER("days", "true", "14"))),
     false},
    {CHAT_ENCODING_V32,
     BLOCK(INVOKE("get_weather", PARAMETER("city", "true", "x") PARAMETER("where", "true", "no"))),
     true},
    {CHAT_ENCODING_V32,
     BLOCK(INVOKE("get_weather", PARAMETER("city", "true", "x") PARAMETER("where", "true", "nor"))),
     false},
    {CHAT_ENCODING_V32,
     BLOCK(INVOKE("get_weather",
                  PARAMETER("city", "true", "x") PARAMETER("where", "false", "[1, 2.5]"))),
     true},
    {CHAT_ENCODING_V32,
     BLOCK(
         INVOKE("get_weather", PARAMETER("city", "true", "x") PARAMETER("where", "false", "null"))),
     true},
    {CHAT_ENCODING_V32,
     BLOCK(INVOKE("get_weather", PARAMETER("city", "true", "") PARAMETER("unit", "true", "C"))),
     true},
    {CHAT_ENCODING_V32,
     BLOCK(INVOKE("get_weather", PARAMETER("unit", "true", "C") PARAMETER("city", "true", ""))),
     false},
    {CHAT_ENCODING_V32,
     BLOCK(INVOKE("note", PARAMETER("short", "true", "éé") PARAMETER("any", "false", "{\"a\": [1]}")
                              PARAMETER("map", "false", "{\"x\": true}"))),
     true},
    {CHAT_ENCODING_V32,
     BLOCK(INVOKE("note",
                  PARAMETER("short", "true", "éé") PARAMETER("long", "true", "a\nb")
                      PARAMETER("any", "true", "raw") PARAMETER("map", "false", "{\"x\": true}"))),
     true},
    {CHAT_ENCODING_V32,
     BLOCK(INVOKE("note", PARAMETER("short", "true", "") PARAMETER("any", "false", "1"))), false},
    {CHAT_ENCODING_V32,
     BLOCK(INVOKE("note", PARAMETER("short", "true", "sixsix") PARAMETER("any", "false", "1"))),
     false},
};

struct env {
    struct grammar_data g;
    json_t *tools;
};

static struct grammar *compile(const struct env *e, enum chat_encoding markup, const char *name,
                               bool parallel)
{
    struct grammar *out;
    fathom_diag d = {""};
    struct call_grammar calls = {markup, e->tools, name, parallel, false};
    struct answer_grammar answer = {.calls = &calls};
    if (answer_grammar_compile(&out, e->g.v, &answer, NULL, NULL, &d)) fail_msg("%s", d.text);
    return out;
}

static void takes_what_is_written(void **state)
{
    const struct env *e = *state;
    for (size_t i = 0; i < sizeof call_cases / sizeof call_cases[0]; i++) {
        const struct call_case *c = &call_cases[i];
        struct grammar *grammar = compile(e, c->markup, NULL, true);
        if (matcher_takes_tokens(&e->g, grammar, c->text, TOKENIZER_MARKUP_ON) != c->taken) {
            fail_msg("case %zu: %s", i, c->text);
        }
        assert_int_equal(matcher_takes_tokens(&e->g, grammar, c->text, TOKENIZER_MARKUP_OFF),
                         c->taken);
        grammar_release(grammar);
    }
}

static void one_call_or_a_named_one(void **state)
{
    const struct env *e = *state;
    struct grammar *one = compile(e, CHAT_ENCODING_V31, NULL, false);
    struct grammar *named = compile(e, CHAT_ENCODING_V31, "now", true);
    assert_true(matcher_takes_tokens(&e->g, one, V31(CALL31("now", "{}")), TOKENIZER_MARKUP_ON));
    assert_false(matcher_takes_tokens(&e->g, one, V31(CALL31("now", "{}") CALL31("now", "{}")),
                                      TOKENIZER_MARKUP_ON));
    assert_true(matcher_takes_tokens(&e->g, named, V31(CALL31("now", "{}")), TOKENIZER_MARKUP_ON));
    assert_false(matcher_takes_tokens(
        &e->g, named, V31(CALL31("note", "{\"short\": \"a\", \"any\": 1}")), TOKENIZER_MARKUP_ON));
    /* all of a named call without arguments is forced */
    struct matcher *m = matcher_of(&e->g, named);
    char bytes[256];
    size_t n = matcher_is_forced(m, bytes, sizeof bytes);
    assert_int_equal(n, strlen(CHAT_CALLS_BEGIN CALL31("now", "{}") "<｜tool▁call"));
    matcher_destroy(m);
    grammar_release(one);
    grammar_release(named);
}

/* Markers stand in the markup, not in what the model may write freely. */
static void markers_are_markup(void **state)
{
    const struct env *e = *state;
    const struct grammar_data *g = &e->g;
    struct grammar *grammar = compile(e, CHAT_ENCODING_V32, "get_weather", false);
    struct matcher *m = matcher_of(g, grammar);
    int32_t dsml = tokenizer_find(g->t, CHAT_DSML), user = tokenizer_find(g->t, CHAT_USER);
    assert_true(tokenizer_is_added(g->t, dsml) && tokenizer_is_added(g->t, user));
    const char *before = "\n\n<";
    assert_int_equal(matcher_accept_bytes(m, before, strlen(before)), FATHOM_OK);
    assert_true(mask_is_exact(g, grammar, m, 0, 1));
    assert_int_equal(matcher_accept_token(m, dsml), FATHOM_OK);
    const char *inside = "function_calls>\n<" CHAT_DSML "invoke name=\"get_weather\">\n<" CHAT_DSML
                         "parameter name=\"city\" string=\"true\">a <";
    assert_int_equal(matcher_accept_bytes(m, inside, strlen(inside)), FATHOM_OK);
    assert_int_equal(matcher_accept_token(m, dsml), FATHOM_EINVAL);
    assert_int_equal(matcher_accept_token(m, user), FATHOM_EINVAL);
    assert_true(mask_is_exact(g, grammar, m, 0, 1));
    assert_int_equal(matcher_accept_bytes(m, "/", 1), FATHOM_OK);
    assert_true(mask_is_exact(g, grammar, m, 0, 1));
    assert_int_equal(matcher_accept_token(m, dsml), FATHOM_OK);
    assert_true(mask_is_exact(g, grammar, m, 0, 1));
    /* a marker is no text, so the tag that it began must be finished */
    assert_int_equal(matcher_accept_bytes(m, "param<", 6), FATHOM_EINVAL);
    assert_int_equal(matcher_accept_bytes(m, "parameter>\n<", 12), FATHOM_OK);
    assert_true(mask_is_exact(g, grammar, m, 0, 1));
    matcher_destroy(m);
    grammar_release(grammar);
}

static const json_t *schema_of(const json_t *tools, const char *name)
{
    for (size_t i = 0; i < json_array_size(tools); i++) {
        const json_t *f = json_object_get(json_array_get(tools, i), "function");
        if (strcmp(json_string_value(json_object_get(f, "name")), name) == 0) {
            const json_t *schema = json_object_get(f, "parameters");
            return schema ? schema : json_false();
        }
    }
    return NULL;
}

/* The calls of an output, as the parser reads them. */
static void check_answer(const struct env *e, enum chat_encoding markup, const struct buf *text)
{
    struct answer a = {.fail_after = -1};
    struct chat_style style = {.encoding = markup, .tool_markup = markup, .parse_tools = true};
    struct answer_input in = {&style, false, e->tools, text->data, text->len};
    assert_int_equal(answer_run(&a, &in, ANSWER_RANDOM, 1), FATHOM_OK);
    if (a.n_call == 0 || a.content.len > 0) fail_msg("%s: %s", text->data, buf_str(&a.log));
    for (uint32_t i = 0; i < a.n_call && i < ANSWER_CALLS_MAX; i++) {
        json_t *args;
        fathom_diag d = {""};
        const json_t *schema = schema_of(e->tools, buf_str(&a.names[i]));
        assert_non_null(schema);
        if (json_read(a.args[i].data, a.args[i].len, "args", &args, &d)) {
            fail_msg("%s: %s", text->data, d.text);
        }
        bool ok = json_is_false(schema) ? json_is_object(args) && json_object_size(args) == 0
                                        : json_check(schema, schema, args);
        if (!ok) fail_msg("%s: %s", text->data, a.args[i].data);
        json_decref(args);
    }
    answer_free(&a);
}

/* Raw text never ends by chance. The newline tells it from a JSON string. */
static void close_raw(struct matcher *m, struct buf *text)
{
    const char *tag = "</" CHAT_DSML "parameter>\n";
    if (matcher_accept_bytes(m, tag, strlen(tag))) return;
    assert_int_equal(buf_add_str(text, tag), FATHOM_OK);
}

static void outputs_are_calls(void **state)
{
    const struct env *e = *state;
    uint64_t rng = 77;
    for (int i = 0; i < 120; i++) {
        enum chat_encoding markup = (enum chat_encoding)(i % CHAT_ENCODING_COUNT);
        if (markup == CHAT_ENCODING_R1) markup = CHAT_ENCODING_V3;
        if (markup == CHAT_ENCODING_KIMI_K2_THINKING) markup = CHAT_ENCODING_KIMI_K2;
        struct grammar *grammar = compile(e, markup, i % 3 ? NULL : "note", i % 5 > 0);
        struct buf text = {0};
        struct matcher *m = matcher_of(&e->g, grammar);
        uint32_t n = 0;
        do {
            if (n % 16 == 3) assert_true(mask_is_exact(&e->g, grammar, m, 0, 1));
            assert_true(n < 20000);
            if (n > 60) close_raw(m, &text);
        } while (walk_step(&e->g, m, &rng, n++ > 60, &text));
        check_answer(e, markup, &text);
        buf_free(&text);
        matcher_destroy(m);
        grammar_release(grammar);
    }
}

/* Bounds on how many parameters there are, in JSON and in V3.2's markup. */
static void counts_parameters(void **state)
{
    const struct env *e = *state;
    static const struct {
        const char *bounds;
        bool taken[4]; /* none, a; a, b; a, b, c */
    } cases[] = {{"\"maxProperties\": 0", {true, false, false, false}},
                 {"\"maxProperties\": 1", {true, true, false, false}},
                 {"\"maxProperties\": 2, \"minProperties\": 1", {false, true, true, false}},
                 {"\"minProperties\": 2", {false, false, true, true}},
                 {"\"minProperties\": 3", {false, false, false, true}},
                 {"\"maxProperties\": 3", {true, true, true, true}},
                 {"\"maxProperties\": 2, \"required\": [\"b\"]", {false, false, true, false}}};
    static const char *const raw[] = {
        BLOCK(INVOKE("f", "\n")), BLOCK(INVOKE("f", PARAMETER("a", "false", "1"))),
        BLOCK(INVOKE("f", PARAMETER("a", "false", "1") PARAMETER("b", "false", "2"))),
        BLOCK(INVOKE("f", PARAMETER("a", "false", "1") PARAMETER("b", "false", "2")
                              PARAMETER("c", "false", "3")))};
    static const char *const json[] = {"{}", "{\"a\": 1}", "{\"a\": 1, \"b\": 2}",
                                       "{\"a\": 1, \"b\": 2, \"c\": 3}"};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct buf tools = {0};
        assert_int_equal(
            buf_printf(&tools,
                       "[{\"function\": {\"name\": \"f\", \"parameters\": {\"properties\": {\"a\": "
                       "{\"type\": \"integer\"}, \"b\": {\"type\": \"integer\"}, \"c\": {\"type\": "
                       "\"integer\"}}, %s}}}]",
                       cases[i].bounds),
            FATHOM_OK);
        json_t *tree = json_tree_of(buf_str(&tools));
        for (int v32 = 0; v32 < 2; v32++) {
            struct grammar *grammar;
            fathom_diag d = {""};
            struct call_grammar calls = {v32 ? CHAT_ENCODING_V32 : CHAT_ENCODING_V31, tree, NULL,
                                         false, false};
            struct answer_grammar answer = {.calls = &calls};
            fathom_err err = answer_grammar_compile(&grammar, e->g.v, &answer, NULL, NULL, &d);
            if (err) fail_msg("%s: %s", cases[i].bounds, d.text);
            for (int k = 0; k < 4; k++) {
                char text[512];
                (void)snprintf(text, sizeof text, "%sf%s%s%s%s", CHAT_CALLS_BEGIN CHAT_CALL_BEGIN,
                               CHAT_CALL_SEP, json[k], CHAT_CALL_END, CHAT_CALLS_END);
                bool taken =
                    matcher_takes_tokens(&e->g, grammar, v32 ? raw[k] : text, TOKENIZER_MARKUP_ON);
                if (taken != cases[i].taken[k]) fail_msg("%s: %d", cases[i].bounds, k);
            }
            grammar_release(grammar);
        }
        json_decref(tree);
        buf_free(&tools);
    }
}

static void refused(const struct env *e, const char *tools, const char *name, fathom_err want,
                    const char *why)
{
    struct grammar *out;
    fathom_diag d = {""};
    json_t *tree = json_tree_of(tools);
    for (int markup = 0; markup < CHAT_ENCODING_COUNT; markup++) {
        struct call_grammar calls = {(enum chat_encoding)markup, tree, name, true, false};
        struct answer_grammar answer = {.calls = &calls};
        d.text[0] = '\0';
        fathom_err err = answer_grammar_compile(&out, e->g.v, &answer, NULL, NULL, &d);
        if (err != want || !strstr(d.text, why)) fail_msg("%d: %s", err, d.text);
        assert_null(out);
    }
    json_decref(tree);
}

static void refuses(void **state)
{
    const struct env *e = *state;
    refused(e, "[]", NULL, FATHOM_EINVAL, "there are no tools");
    refused(e, "[{\"function\": {\"name\": \"a\"}}]", "b", FATHOM_EINVAL, "names \"b\"");
    refused(e, "[{\"function\": {}}]", NULL, FATHOM_EINVAL, "tools[0].function.name");
    refused(e,
            "[{\"function\": {\"name\": \"a\"}}, {\"function\": {\"name\": \"b\", \"parameters\": "
            "{\"properties\": {\"x\": {\"contains\": {}}}, \"required\": [\"x\"]}}}]",
            NULL, FATHOM_EUNSUPPORTED,
            "tools[1].function.parameters#/properties/x: the keyword \"contains\"");
}

/* A name that would be cut where the call is read again is refused before one is written. */
static void names_can_be_read_again(void **state)
{
    const struct env *e = *state;
    static const struct {
        const char *name;
        bool v3, v32, others;
    } cases[] = {{"a b.c:7/\xE5\x90\x8D", true, true, true},
                 {"a\"b", true, false, true},
                 {"a<b", false, true, false},
                 {"a\nb", false, true, true}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        json_t *tools = json_pack("[{s:{s:s}}]", "function", "name", cases[i].name);
        for (int markup = 0; markup < CHAT_ENCODING_COUNT; markup++) {
            const bool is_v3 = markup == CHAT_ENCODING_V3 || markup == CHAT_ENCODING_R1;
            const bool good = is_v3                         ? cases[i].v3
                              : markup == CHAT_ENCODING_V32 ? cases[i].v32
                                                            : cases[i].others;
            struct call_grammar calls = {(enum chat_encoding)markup, tools, NULL, true, false};
            struct answer_grammar answer = {.calls = &calls};
            struct grammar *out;
            fathom_diag d = {""};
            fathom_err err = answer_grammar_compile(&out, e->g.v, &answer, NULL, NULL, &d);
            if (err != (good ? FATHOM_OK : FATHOM_EUNSUPPORTED)) fail_msg("%d: %s", err, d.text);
            if (!good) assert_non_null(strstr(d.text, "tools[0].function.name"));
            grammar_release(out);
        }
        json_decref(tools);
    }
    /* V3.2 has the names of parameters in its markup, too */
    json_t *tools =
        json_tree_of("[{\"function\": {\"name\": \"f\", \"parameters\": {\"properties\": "
                     "{\"x\\\"y\": {}}, \"required\": [\"x\\\"y\"]}}}]");
    for (int markup = 0; markup < CHAT_ENCODING_COUNT; markup++) {
        struct call_grammar calls = {(enum chat_encoding)markup, tools, NULL, true, false};
        struct answer_grammar answer = {.calls = &calls};
        struct grammar *out;
        fathom_diag d = {""};
        fathom_err err = answer_grammar_compile(&out, e->g.v, &answer, NULL, NULL, &d);
        assert_int_equal(err, markup == CHAT_ENCODING_V32 ? FATHOM_EUNSUPPORTED : FATHOM_OK);
        if (err) assert_non_null(strstr(d.text, "needed is one without quote"));
        grammar_release(out);
    }
    json_decref(tools);
}

static void survives_failing_allocations(void **state)
{
    const struct env *e = *state;
    static const enum chat_encoding markups[] = {CHAT_ENCODING_V31, CHAT_ENCODING_V32};
    for (size_t i = 0; i < 2; i++) {
        for (long n = 0;; n += 1 + n / 50) {
            struct grammar *grammar;
            struct call_grammar calls = {markups[i], e->tools, NULL, true, false};
            struct answer_grammar answer = {.calls = &calls};
            mem_fail_after(n);
            fathom_err err = answer_grammar_compile(&grammar, e->g.v, &answer, NULL, NULL, NULL);
            bool hit = mem_fail_hit();
            mem_fail_after(-1);
            grammar_release(grammar);
            if (!hit) {
                assert_int_equal(err, FATHOM_OK);
                break;
            }
            assert_int_equal(err, FATHOM_ENOMEM);
        }
    }
}

static int open_env(void **state)
{
    static struct env e;
    grammar_data_open(&e.g, TOKENIZER_PILOT_JSON);
    e.tools = json_tree_of(tools_text);
    *state = &e;
    return 0;
}

static int close_env(void **state)
{
    struct env *e = *state;
    grammar_data_close(&e->g);
    json_decref(e->tools);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(takes_what_is_written),   cmocka_unit_test(one_call_or_a_named_one),
        cmocka_unit_test(markers_are_markup),      cmocka_unit_test(outputs_are_calls),
        cmocka_unit_test(counts_parameters),       cmocka_unit_test(refuses),
        cmocka_unit_test(names_can_be_read_again), cmocka_unit_test(survives_failing_allocations)};
    json_set_alloc_funcs(mem_alloc, mem_free);
    return cmocka_run_group_tests(tests, open_env, close_env);
}
