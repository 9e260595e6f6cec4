/* test_grammar.c - grammars that are drawn or simple, and the matcher */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "base/mem.h"
#include "base/rng.h"
#include "base/thread.h"
#include "grammar/builder.h"
#include "grammar/matcher_int.h"
#include "support/grammar_data.h"
#include "support/json_tree.h"
#include "support/tokenizer_data.h"

static bool takes(const struct grammar_data *g, struct grammar *grammar, const char *text)
{
    return matcher_takes(g, grammar, text, strlen(text));
}

static bool allows(const struct grammar_data *g, const struct matcher *m, int32_t id)
{
    assert_int_equal(matcher_fill_mask(m, g->words, g->n_word), FATHOM_OK);
    return g->words[id / 32] >> (id % 32) & 1;
}

static uint32_t count_allowed(const struct grammar_data *g, const struct matcher *m)
{
    uint32_t n = 0;
    assert_int_equal(matcher_fill_mask(m, g->words, g->n_word), FATHOM_OK);
    for (size_t i = 0; i < g->n_word; i++) n += (uint32_t)__builtin_popcount(g->words[i]);
    return n;
}

/* ---- simple grammars -------------------------------------------------------------------- */

static void test_choice(void **state)
{
    const struct grammar_data *g = *state;
    struct grammar *grammar;
    fathom_diag d = {""};
    json_t *choices = json_tree_of("[\"yes\", \"yesterday\", \"no\", \"né\", \"\"]");
    assert_int_equal(grammar_from_choice(&grammar, g->v, choices, &d), FATHOM_OK);
    assert_true(takes(g, grammar, "yes") && takes(g, grammar, "yesterday"));
    assert_true(takes(g, grammar, "no") && takes(g, grammar, "né") && takes(g, grammar, ""));
    assert_false(takes(g, grammar, "yest") || takes(g, grammar, "nope") || takes(g, grammar, "n"));
    struct matcher *m = matcher_of(g, grammar);
    assert_true(mask_is_exact(g, grammar, m, 0, 1));
    assert_int_equal(matcher_accept_bytes(m, "yest", 4), FATHOM_OK);
    char bytes[16];
    assert_int_equal(matcher_is_forced(m, bytes, sizeof bytes), 5);
    assert_memory_equal(bytes, "erday", 5);
    assert_int_equal(matcher_is_forced(m, bytes, 2), 2);
    matcher_destroy(m);
    grammar_release(grammar);
    json_decref(choices);
}

static void refuse_choice(const struct grammar_data *g, const char *text, const char *why)
{
    struct grammar *grammar;
    fathom_diag d = {""};
    json_t *choices = json_tree_of(text);
    assert_int_not_equal(grammar_from_choice(&grammar, g->v, choices, &d), FATHOM_OK);
    if (!strstr(d.text, why)) fail_msg("%s", d.text);
    assert_null(grammar);
    json_decref(choices);
}

static void test_choice_refused(void **state)
{
    const struct grammar_data *g = *state;
    refuse_choice(g, "[]", "an empty array");
    refuse_choice(g, "\"a\"", "array of at least one string");
    refuse_choice(g, "[\"a\", 1]", "choice 1 is ");
    struct buf many = {0};
    for (int i = 0; i <= GRAMMAR_CHOICES_MAX; i++) {
        assert_int_equal(buf_printf(&many, "%s\"%d\"", i ? "," : "[", i), FATHOM_OK);
    }
    assert_int_equal(buf_add_char(&many, ']'), FATHOM_OK);
    refuse_choice(g, many.data, "4097 choices");
    buf_free(&many);
}

static void test_regex(void **state)
{
    const struct grammar_data *g = *state;
    struct grammar *grammar;
    fathom_diag d = {""};
    const char *pattern = "(?:red|gr[ae]y|bleu é{2,3})( \\d+)?";
    assert_int_equal(grammar_from_regex(&grammar, g->v, pattern, strlen(pattern), &d), FATHOM_OK);
    assert_true(takes(g, grammar, "red") && takes(g, grammar, "grey 12"));
    assert_true(takes(g, grammar, "bleu ééé 1"));
    assert_false(takes(g, grammar, "red ") || takes(g, grammar, "bleu é"));
    assert_false(takes(g, grammar, "xred") || takes(g, grammar, ""));
    uint64_t rng = 3;
    for (int i = 0; i < 20; i++) {
        struct matcher *m = matcher_of(g, grammar);
        struct buf text = {0};
        do {
            assert_true(mask_is_exact(g, grammar, m, 0, 1));
        } while (walk_step(g, m, &rng, i > 10, &text));
        assert_true(takes(g, grammar, buf_str(&text)));
        buf_free(&text);
        matcher_destroy(m);
    }
    grammar_release(grammar);
    assert_int_equal(grammar_from_regex(&grammar, g->v, "(?=a)", 5, &d), FATHOM_EUNSUPPORTED);
    d.text[0] = '\0';
    assert_int_equal(grammar_from_regex(&grammar, g->v, "a^b", 3, &d), FATHOM_EINVAL);
    assert_string_equal(d.text, "no text matches the pattern");
    assert_null(grammar);
}

/* Any text at all: a wide state, whose mask goes through walk, kept mask and tables. */
static void test_wide_states(void **state)
{
    const struct grammar_data *g = *state;
    static const char *const patterns[] = {"(?:.|\\n)*", "(?:.|\\n){0,6}", "[^,]*(,[^,]*){2}",
                                           "[a-z ]{3,9}\\."};
    uint64_t rng = 8;
    for (size_t i = 0; i < sizeof patterns / sizeof patterns[0]; i++) {
        struct grammar *grammar;
        assert_int_equal(grammar_from_regex(&grammar, g->v, patterns[i], strlen(patterns[i]), NULL),
                         FATHOM_OK);
        for (int k = 0; k < 6; k++) {
            struct matcher *m = matcher_of(g, grammar);
            struct buf text = {0};
            for (int n = 0; n < 12; n++) {
                assert_true(mask_is_exact(g, grammar, m, 0, 1));
                if (!walk_step(g, m, &rng, false, &text)) break;
            }
            buf_free(&text);
            matcher_destroy(m);
        }
        assert_true(grammar_n_byte(grammar) > 0);
        grammar_release(grammar);
    }
}

/* ---- drawing ---------------------------------------------------------------------------- */

static struct grammar *build(struct grammar_builder *b, uint32_t rule)
{
    struct grammar *out;
    fathom_diag d = {""};
    if (grammar_build(&out, b, rule, &d)) fail_msg("%s", d.text);
    grammar_builder_destroy(b);
    return out;
}

static struct grammar_builder *builder(const struct grammar_data *g)
{
    struct grammar_builder *b;
    struct grammar_options options = {.space = GRAMMAR_SPACE_NONE};
    assert_int_equal(grammar_builder_create(&b, g->v, &options), FATHOM_OK);
    return b;
}

/* think: any text, its end mark; then a list of schema values. */
static void test_composition(void **state)
{
    const struct grammar_data *g = *state;
    struct grammar_builder *b = builder(g);
    json_t *schema = json_tree_of("{\"type\": \"object\", \"properties\": {\"a\": {\"type\": "
                                  "\"integer\"}}, \"required\": [\"a\"]}");
    uint32_t rule = grammar_add_rule(b), at = grammar_rule_begin(b, rule), to;
    at = grammar_put_until(b, at, "</think>");
    uint32_t again = grammar_add_state(b);
    grammar_join(b, at, again);
    assert_int_equal(grammar_put_schema(b, again, schema, &to, NULL), FATHOM_OK);
    grammar_join(b, grammar_put_text(b, to, "\n", 1), again);
    grammar_join(b, to, grammar_rule_end(b, rule));
    struct grammar *grammar = build(b, rule);
    assert_true(takes(g, grammar, "hm <thi </think</think>{\"a\":1}"));
    assert_true(takes(g, grammar, "</think>{\"a\":1}\n{\"a\":2}"));
    assert_false(takes(g, grammar, "hm</think></think>{\"a\":1}"));
    assert_false(takes(g, grammar, "hm{\"a\":1}") || takes(g, grammar, "</think>"));
    struct matcher *m = matcher_of(g, grammar);
    int32_t mark = tokenizer_find(g->t, "</think>"), user = tokenizer_find(g->t, "<｜User｜>");
    assert_true(mark >= 0 && user >= 0 && allows(g, m, mark) && !allows(g, m, user));
    assert_int_equal(matcher_accept_token(m, user), FATHOM_EINVAL);
    assert_true(mask_is_exact(g, grammar, m, 0, 1));
    assert_int_equal(matcher_accept_bytes(m, "so </", 5), FATHOM_OK);
    assert_true(allows(g, m, mark) && mask_is_exact(g, grammar, m, 0, 1));
    assert_int_equal(matcher_accept_token(m, mark), FATHOM_OK);
    char bytes[32];
    assert_int_equal(matcher_is_forced(m, bytes, sizeof bytes), 5);
    assert_memory_equal(bytes, "{\"a\":", 5);
    assert_false(allows(g, m, mark));
    matcher_destroy(m);
    grammar_release(grammar);
    json_decref(schema);
}

static void refuse_build(struct grammar_builder *b, uint32_t rule, fathom_err want, const char *why)
{
    struct grammar *out;
    fathom_diag d = {""};
    fathom_err err = grammar_build(&out, b, rule, &d);
    if (err != want || !strstr(d.text, why)) fail_msg("%d: %s", err, d.text);
    assert_null(out);
    grammar_builder_destroy(b);
}

static void test_drawings_refused(void **state)
{
    const struct grammar_data *g = *state;
    struct grammar_builder *b = builder(g);
    uint32_t rule = grammar_add_rule(b), other = grammar_add_rule(b);
    refuse_build(b, rule, FATHOM_EINVAL, "nothing satisfies");

    b = builder(g);
    rule = grammar_add_rule(b);
    other = grammar_add_rule(b);
    grammar_join(b, grammar_rule_begin(b, other), grammar_rule_end(b, other));
    grammar_join(b, grammar_put_rule(b, grammar_rule_begin(b, rule), other),
                 grammar_rule_end(b, rule));
    refuse_build(b, rule, FATHOM_EINVAL, "may be empty");

    b = builder(g);
    rule = grammar_add_rule(b);
    uint32_t at = grammar_put_rule(b, grammar_rule_begin(b, rule), rule);
    grammar_join(b, grammar_put_text(b, at, "x", 1), grammar_rule_end(b, rule));
    grammar_join(b, grammar_put_text(b, grammar_rule_begin(b, rule), "y", 1),
                 grammar_rule_end(b, rule));
    refuse_build(b, rule, FATHOM_EINVAL, "begins with itself");

    b = builder(g);
    rule = grammar_add_rule(b);
    at = grammar_rule_begin(b, rule);
    for (int i = 0; i < 600000; i++) at = grammar_put_text(b, at, "x", 1);
    grammar_join(b, at, grammar_rule_end(b, rule));
    refuse_build(b, rule, FATHOM_ELIMIT, "too large");

    b = builder(g);
    rule = grammar_add_rule(b);
    at = grammar_rule_begin(b, rule);
    for (int i = 0; i < 200000; i++) at = grammar_put_text(b, at, "x", 1);
    grammar_join(b, at, grammar_rule_end(b, rule));
    refuse_build(b, rule, FATHOM_ELIMIT, "more than 131072 states");
}

/* Many readings of one text at once: more than are kept. */
static void test_ambiguity(void **state)
{
    const struct grammar_data *g = *state;
    struct grammar_builder *b = builder(g);
    uint32_t rule = grammar_add_rule(b), begin = grammar_rule_begin(b, rule);
    for (int i = 0; i < 100; i++) {
        uint32_t list = grammar_add_rule(b), at = grammar_rule_begin(b, list);
        char end[8];
        int n = snprintf(end, sizeof end, "b%d.", i);
        uint32_t next = grammar_put_text(b, at, "a", 1);
        grammar_join(b, next, at);
        grammar_join(b, grammar_put_text(b, next, end, (size_t)n), grammar_rule_end(b, list));
        grammar_join(b, grammar_put_rule(b, begin, list), grammar_rule_end(b, rule));
    }
    struct grammar *grammar = build(b, rule);
    struct matcher *m = matcher_of(g, grammar);
    for (int i = 0; i < 4; i++) {
        assert_true(mask_is_exact(g, grammar, m, 0, 1));
        assert_int_equal(matcher_accept_bytes(m, i < 3 ? "aa" : "b", i < 3 ? 2 : 1), FATHOM_OK);
    }
    assert_true(m->n_thread == THREADS_MAX && mask_is_exact(g, grammar, m, 0, 1));
    assert_true(takes(g, grammar, "aab0.") && takes(g, grammar, "ab63."));
    matcher_destroy(m);
    grammar_release(grammar);
}

/* ---- matcher ---------------------------------------------------------------------------- */

static void test_end(void **state)
{
    const struct grammar_data *g = *state;
    struct grammar *grammar;
    assert_int_equal(grammar_from_json_object(&grammar, g->v, NULL, NULL), FATHOM_OK);
    struct matcher *m = matcher_of(g, grammar);
    assert_false(allows(g, m, g->eos) || matcher_can_end(m));
    assert_int_equal(matcher_accept_token(m, g->eos), FATHOM_EINVAL);
    assert_int_equal(matcher_accept_bytes(m, "{}", 2), FATHOM_OK);
    assert_true(matcher_can_end(m) && !matcher_has_ended(m) && allows(g, m, g->eos));
    assert_int_equal(count_allowed(g, m), 1);
    char bytes[4];
    assert_int_equal(matcher_is_forced(m, bytes, sizeof bytes), 0);
    assert_int_equal(matcher_accept_token(m, g->eos), FATHOM_OK);
    assert_true(matcher_has_ended(m));
    assert_int_equal(count_allowed(g, m), 1);
    assert_int_equal(matcher_accept_token(m, tokenizer_find(g->t, "{")), FATHOM_EINVAL);
    assert_int_equal(matcher_accept_bytes(m, "x", 1), FATHOM_EINVAL);
    assert_int_equal(matcher_accept_token(m, g->eos), FATHOM_OK);
    matcher_reset(m);
    assert_false(matcher_can_end(m));
    assert_int_equal(matcher_accept_bytes(m, "{\"a\"", 4), FATHOM_OK);
    matcher_destroy(m);
    grammar_release(grammar);
    matcher_destroy(NULL);
    grammar_release(NULL);
}

static void test_bad_calls(void **state)
{
    const struct grammar_data *g = *state;
    struct grammar *grammar;
    struct matcher *m;
    int32_t ids[GRAMMAR_EOS_MAX + 1] = {0};
    assert_int_equal(grammar_from_json_object(&grammar, g->v, NULL, NULL), FATHOM_OK);
    assert_int_equal(matcher_create(&m, grammar, ids, GRAMMAR_EOS_MAX + 1), FATHOM_ELIMIT);
    ids[0] = tokenizer_n_token(g->t);
    assert_int_equal(matcher_create(&m, grammar, ids, 1), FATHOM_EINVAL);
    ids[0] = -1;
    assert_int_equal(matcher_create(&m, grammar, ids, 1), FATHOM_EINVAL);
    assert_null(m);
    m = matcher_of(g, grammar);
    assert_int_equal(matcher_fill_mask(m, g->words, g->n_word - 1), FATHOM_EINVAL);
    uint32_t *wide = mem_alloc_array(g->n_word + 3, sizeof *wide);
    memset(wide, 0xff, (g->n_word + 3) * sizeof *wide);
    assert_int_equal(matcher_fill_mask(m, wide, g->n_word + 3), FATHOM_OK);
    for (int i = 0; i < 3; i++) assert_int_equal(wide[g->n_word + (size_t)i], 0);
    mem_free(wide);
    assert_int_equal(matcher_accept_token(m, -1), FATHOM_EINVAL);
    assert_int_equal(matcher_accept_token(m, tokenizer_n_token(g->t)), FATHOM_EINVAL);
    assert_int_equal(matcher_accept_token(m, tokenizer_find(g->t, "a")), FATHOM_EINVAL);
    assert_int_equal(matcher_accept_bytes(m, "{\"a\" ", 5), FATHOM_EINVAL);
    uint32_t before = count_allowed(g, m);
    assert_int_equal(matcher_accept_bytes(m, "", 0), FATHOM_OK);
    assert_int_equal(count_allowed(g, m), before);
    matcher_destroy(m);
    grammar_release(grammar);
}

/* Nesting up to the limit and not beyond; from there, out again. */
static void test_depth(void **state)
{
    const struct grammar_data *g = *state;
    struct grammar *grammar;
    struct grammar_options options = {.space = GRAMMAR_SPACE_NONE};
    assert_int_equal(grammar_from_json_object(&grammar, g->v, &options, NULL), FATHOM_OK);
    struct matcher *m = matcher_of(g, grammar);
    assert_int_equal(matcher_accept_bytes(m, "{\"a\":", 5), FATHOM_OK);
    uint32_t n = 0;
    while (matcher_accept_bytes(m, "[", 1) == FATHOM_OK) {
        if (++n % 64 == 0 || n > 500) assert_true(mask_is_exact(g, grammar, m, 0, 7));
    }
    assert_true(n >= 400 && n <= GRAMMAR_DEPTH_MAX);
    assert_true(mask_is_exact(g, grammar, m, 0, 1));
    for (; n > 0; n--) assert_int_equal(matcher_accept_bytes(m, "]", 1), FATHOM_OK);
    assert_int_equal(matcher_accept_bytes(m, "}", 1), FATHOM_OK);
    assert_true(matcher_can_end(m));
    matcher_destroy(m);
    grammar_release(grammar);
}

/* Jump ahead: the forced bytes and nothing else may come. */
static void test_forced(void **state)
{
    const struct grammar_data *g = *state;
    struct grammar_options options = {.space = GRAMMAR_SPACE_NONE};
    struct grammar *grammar = grammar_of_schema(
        g,
        "{\"type\": \"object\", \"properties\": {\"first name\": {\"enum\": [\"Ada\", \"Adam\"]},"
        " \"x\": {\"const\": null}}, \"required\": [\"first name\", \"x\"]}",
        &options);
    struct matcher *m = matcher_of(g, grammar);
    char bytes[64];
    size_t n = matcher_is_forced(m, bytes, sizeof bytes);
    assert_int_equal(n, strlen("{\"first name\":\"Ada"));
    assert_memory_equal(bytes, "{\"first name\":\"Ada", n);
    assert_int_equal(matcher_accept_bytes(m, bytes, n), FATHOM_OK);
    assert_int_equal(matcher_is_forced(m, bytes, sizeof bytes), 0);
    assert_int_equal(matcher_accept_bytes(m, "\"", 1), FATHOM_OK);
    n = matcher_is_forced(m, bytes, sizeof bytes);
    assert_int_equal(n, strlen(",\"x\":null}"));
    assert_int_equal(matcher_accept_bytes(m, bytes, n), FATHOM_OK);
    assert_true(matcher_can_end(m));
    matcher_destroy(m);
    grammar_release(grammar);
}

/* ---- memory and threads ----------------------------------------------------------------- */

static fathom_err compile_one(const struct grammar_data *g, int kind, struct grammar **out)
{
    fathom_err err;
    json_t *choices = json_tree_of("[\"a\", \"bc\"]");
    switch (kind) {
    case 0: err = grammar_from_json_object(out, g->v, NULL, NULL); break;
    case 1: err = grammar_from_regex(out, g->v, "a[b-d]{2,4}é", 13, NULL); break;
    default: err = grammar_from_choice(out, g->v, choices, NULL); break;
    }
    json_decref(choices);
    return err;
}

static void test_failing_allocations(void **state)
{
    const struct grammar_data *g = *state;
    for (int kind = 0; kind < 3; kind++) {
        for (long n = 0;; n++) {
            struct grammar *grammar = NULL;
            struct matcher *m = NULL;
            mem_fail_after(n);
            fathom_err err = compile_one(g, kind, &grammar);
            if (!err) err = matcher_create(&m, grammar, &g->eos, 1);
            bool hit = mem_fail_hit();
            mem_fail_after(-1);
            matcher_destroy(m);
            grammar_release(grammar);
            if (!hit) {
                assert_int_equal(err, FATHOM_OK);
                break;
            }
            assert_int_equal(err, FATHOM_ENOMEM);
        }
    }
}

static void test_nothing_allocates(void **state)
{
    const struct grammar_data *g = *state;
    struct grammar *grammar;
    assert_int_equal(grammar_from_json_object(&grammar, g->v, NULL, NULL), FATHOM_OK);
    struct matcher *m = matcher_of(g, grammar), *copy = matcher_of(g, grammar);
    char bytes[16];
    bool before = mem_forbid(true);
    for (const char *p = "{\"key\": [1, {\"x\": \"y\"}, null]}"; *p; p++) {
        assert_int_equal(matcher_fill_mask(m, g->words, g->n_word), FATHOM_OK);
        assert_int_equal(matcher_accept_bytes(m, p, 1), FATHOM_OK);
        (void)matcher_is_forced(m, bytes, sizeof bytes);
        matcher_copy(copy, m);
    }
    (void)mem_forbid(before);
    matcher_destroy(m);
    matcher_destroy(copy);
    grammar_release(grammar);
}

struct shared {
    const struct grammar_data *g;
    struct grammar *grammar;
    uint32_t *words; /* [n_worker][n_word] */
    bool same[64];
};

/* Workers fill the kept masks of one grammar at once and must all see the same masks. */
static void use_shared(void *arg, size_t part, size_t n_part, unsigned worker)
{
    struct shared *s = arg;
    uint32_t *words = s->words + (2 * (size_t)worker) * s->g->n_word, *again = words + s->g->n_word;
    (void)n_part;
    struct matcher *m = matcher_of(s->g, s->grammar);
    s->same[part] = true;
    for (const char *p = "{\"key\": \"a, b\"} "; *p; p++) {
        s->same[part] &= !matcher_fill_mask(m, words, s->g->n_word);
        s->same[part] &= !matcher_fill_mask(m, again, s->g->n_word);
        s->same[part] &= memcmp(words, again, s->g->n_word * sizeof *words) == 0;
        if (matcher_accept_bytes(m, p, 1)) break;
    }
    matcher_destroy(m);
}

static void test_shared(void **state)
{
    const struct grammar_data *g = *state;
    struct thread_pool *pool;
    struct shared s = {.g = g};
    assert_int_equal(grammar_from_regex(&s.grammar, g->v, "\\{[^}]*\\}( .*)?", 15, NULL),
                     FATHOM_OK);
    assert_int_equal(thread_pool_create(&pool, 4, NULL), FATHOM_OK);
    s.words = mem_calloc(8 * g->n_word, sizeof *s.words);
    thread_pool_run(pool, 64, use_shared, &s);
    for (int i = 0; i < 64; i++) assert_true(s.same[i]);
    thread_pool_destroy(pool);
    mem_free(s.words);
    struct buf text = {0};
    grammar_dump(s.grammar, &text);
    assert_true(text.len > 100);
    buf_free(&text);
    grammar_release(s.grammar);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_choice),
                                       cmocka_unit_test(test_choice_refused),
                                       cmocka_unit_test(test_regex),
                                       cmocka_unit_test(test_wide_states),
                                       cmocka_unit_test(test_composition),
                                       cmocka_unit_test(test_drawings_refused),
                                       cmocka_unit_test(test_ambiguity),
                                       cmocka_unit_test(test_end),
                                       cmocka_unit_test(test_bad_calls),
                                       cmocka_unit_test(test_depth),
                                       cmocka_unit_test(test_forced),
                                       cmocka_unit_test(test_failing_allocations),
                                       cmocka_unit_test(test_nothing_allocates),
                                       cmocka_unit_test(test_shared)};
    return cmocka_run_group_tests(tests, grammar_data_set_up_pilot, grammar_data_tear_down);
}
