/* test_grammar_vocab.c - the index of a vocabulary, and masks over the published V3 tokenizer of
 * 128,000 tokens */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "base/json.h"
#include "base/mem.h"
#include "base/rng.h"
#include "grammar/grammar_int.h"
#include "support/grammar_data.h"
#include "support/tokenizer_data.h"

static void trie_holds_every_token(void **state)
{
    const struct grammar_data *g = *state;
    const struct grammar_vocab *v = g->v;
    uint32_t n_plain = 0, n_added = 0;
    for (int32_t id = 0; id < tokenizer_n_token(g->t); id++) {
        size_t n;
        const char *bytes = tokenizer_bytes(g->t, id, &n);
        bool plain = n > 0 && !tokenizer_is_added(g->t, id);
        n_added += n > 0 && !plain;
        assert_int_equal(v->nodes[id] != UINT32_MAX, plain);
        if (!plain) continue;
        n_plain++;
        uint32_t node = v->nodes[id];
        assert_int_equal(v->depth[node], n - 1);
        for (size_t i = n; i-- > 0; node = v->parent[node]) {
            assert_int_equal(v->byte[node], (uint8_t)bytes[i]);
        }
    }
    assert_int_equal(v->first[v->n_node], n_plain);
    assert_int_equal(v->n_marker, n_added);
    for (uint32_t i = 0; i < v->n_node; i++) {
        assert_true(v->skip[i] > i && v->skip[i] <= v->n_node);
        assert_true(v->first[i] < n_plain && v->first[i] <= v->first[i + 1]);
        if (v->depth[i] > 0) assert_true(v->parent[i] < i && v->skip[v->parent[i]] >= v->skip[i]);
    }
}

/* A sample of the tokens, another one at each state. */
static void masks_are_exact(void **state)
{
    const struct grammar_data *g = *state;
    static const char *const schemas[] = {
        "{\"type\": \"object\", \"properties\": {\"name\": {\"type\": \"string\"}, \"age\": "
        "{\"type\": \"integer\", \"maximum\": 150}, \"zip\": {\"type\": \"string\", \"pattern\": "
        "\"^[0-9]{5}$\"}, \"short\": {\"type\": \"string\", \"maxLength\": 30}, \"at least\": "
        "{\"type\": \"string\", \"minLength\": 12}}, \"required\": [\"name\", \"short\", \"at "
        "least\"], \"additionalProperties\": {\"type\": \"string\", \"maxLength\": 3}}",
        "{}",
        "{\"type\": \"array\", \"items\": {\"anyOf\": [{\"type\": \"string\", \"format\": "
        "\"date\"}, {\"type\": \"number\"}, {\"enum\": [\"a\", \"ab\", \"the end\"]}]}}",
        "{\"type\": \"string\", \"maxLength\": 40}",
        "{\"type\": \"string\", \"pattern\": \"^[^0-9]{3,60}$\"}"};
    uint64_t rng = 31;
    for (size_t i = 0; i < sizeof schemas / sizeof schemas[0]; i++) {
        struct grammar *grammar = grammar_of_schema(g, schemas[i], NULL);
        for (int k = 0; k < 8; k++) {
            struct matcher *m = matcher_of(g, grammar);
            struct buf text = {0};
            uint32_t n = 0;
            do {
                if (mask_is_exact(g, grammar, m, (int32_t)rng_below(&rng, 61), 61)) continue;
                fail_msg("%s, after %s", schemas[i], buf_str(&text));
            } while (walk_step(g, m, &rng, n++ >= 20, &text));
            matcher_destroy(m);
            buf_free(&text);
        }
        grammar_release(grammar);
    }
}

/* Strings with few characters left: where tables of lengths change over, for every token. */
static void masks_near_the_longest(void **state)
{
    const struct grammar_data *g = *state;
    const uint32_t n_max = g->v->n_char_max;
    const uint32_t lengths[] = {0,  1,         TEXT_SHORT - 1, TEXT_SHORT, TEXT_SHORT + 1,
                                30, n_max - 1, n_max,          n_max + 1};
    for (size_t i = 0; i < sizeof lengths / sizeof lengths[0]; i++) {
        char schema[64];
        (void)snprintf(schema, sizeof schema, "{\"type\": \"string\", \"maxLength\": %u}",
                       lengths[i]);
        struct grammar *grammar = grammar_of_schema(g, schema, NULL);
        struct matcher *m = matcher_of(g, grammar);
        assert_int_equal(matcher_accept_bytes(m, "\"", 1), FATHOM_OK);
        if (!mask_is_exact(g, grammar, m, 0, 1)) fail_msg("%s", schema);
        if (lengths[i] > 1) {
            assert_int_equal(matcher_accept_bytes(m, "\\", 1), FATHOM_OK);
            if (!mask_is_exact(g, grammar, m, 0, 7)) fail_msg("%s, in an escape", schema);
        }
        matcher_destroy(m);
        grammar_release(grammar);
    }
}

static void special_tokens_never(void **state)
{
    const struct grammar_data *g = *state;
    struct grammar *grammar = grammar_of_schema(g, "{\"type\": \"string\"}", NULL);
    struct matcher *m = matcher_of(g, grammar);
    assert_int_equal(matcher_accept_bytes(m, "\"ab", 3), FATHOM_OK);
    assert_int_equal(matcher_fill_mask(m, g->words, g->n_word), FATHOM_OK);
    uint32_t n_allowed = 0;
    for (int32_t id = 0; id < tokenizer_n_token(g->t); id++) {
        bool allowed = mask_has(g->words, id);
        if (tokenizer_is_special(g->t, id) || tokenizer_is_added(g->t, id)) assert_false(allowed);
        n_allowed += allowed;
    }
    assert_true(n_allowed > 100000);
    matcher_destroy(m);
    grammar_release(grammar);
}

/* A vocabulary that cannot spell some text, because a byte is a marker, is refused. */
static void needs_all_bytes(void **state)
{
    (void)state;
    struct buf json = {0};
    struct tokenizer *t;
    struct grammar_vocab *v;
    fathom_diag d = {""};
    data_small_json(&json, "", "", "");
    assert_int_equal(tokenizer_open(&t, json.data, json.len, "small", &d), FATHOM_OK);
    assert_int_equal(grammar_vocab_create(&v, t, &d), FATHOM_OK);
    grammar_vocab_destroy(v);
    tokenizer_close(t);
    buf_clear(&json);
    data_small_json(&json, "", "",
                    "{\"id\": 97, \"content\": \"a\", \"single_word\": false, \"lstrip\": false, "
                    "\"rstrip\": false, \"normalized\": false, \"special\": false}");
    if (tokenizer_open(&t, json.data, json.len, "small", &d)) fail_msg("%s", d.text);
    assert_int_equal(grammar_vocab_create(&v, t, &d), FATHOM_EUNSUPPORTED);
    assert_non_null(strstr(d.text, "no token for the byte 61"));
    assert_null(v);
    tokenizer_close(t);
    buf_free(&json);
    grammar_vocab_destroy(NULL);
}

static void survives_failing_allocations(void **state)
{
    (void)state;
    struct tokenizer *t;
    assert_int_equal(tokenizer_open_file(&t, TOKENIZER_PILOT_JSON, NULL), FATHOM_OK);
    for (long n = 0;; n++) {
        struct grammar_vocab *v;
        mem_fail_after(n);
        fathom_err err = grammar_vocab_create(&v, t, NULL);
        bool hit = mem_fail_hit();
        mem_fail_after(-1);
        grammar_vocab_destroy(v);
        if (!hit) {
            assert_int_equal(err, FATHOM_OK);
            break;
        }
        /* giving memory back may fail without harm */
        assert_true(err == FATHOM_ENOMEM || (err == FATHOM_OK && v));
    }
    tokenizer_close(t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(trie_holds_every_token), cmocka_unit_test(masks_are_exact),
        cmocka_unit_test(masks_near_the_longest), cmocka_unit_test(special_tokens_never),
        cmocka_unit_test(needs_all_bytes),        cmocka_unit_test(survives_failing_allocations)};
    return cmocka_run_group_tests(tests, grammar_data_set_up_v3, grammar_data_tear_down);
}
