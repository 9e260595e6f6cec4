/* test_schema_walk.c - schemas with documents (tests/data/grammar): what is valid is taken, what
 * is not is refused, and what comes out of the mask is valid
 *
 * With "--print N" instead: N outputs of each schema, one JSON object a line, for
 * tests/clients/schema_check.py. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/json.h"
#include "base/rng.h"
#include "support/grammar_data.h"
#include "support/json_check.h"
#include "support/json_tree.h"
#include "support/tokenizer_data.h"

static json_t *read_cases(void)
{
    json_t *cases = json_tree_of_file(GRAMMAR_DATA_DIR "/schemas.json");
    assert_true(json_array_size(cases) >= 50);
    return cases;
}

static const char *name_of(const json_t *c)
{
    return json_string_value(json_object_get(c, "name"));
}

static struct grammar *compile(const struct grammar_data *g, const json_t *c)
{
    struct grammar *out = NULL;
    fathom_diag d = {""};
    if (grammar_from_schema(&out, g->v, json_object_get(c, "schema"), NULL, &d)) {
        fail_msg("%s: %s", name_of(c), d.text);
    }
    return out;
}

/* Every document as tokens, which must be in the mask one by one. */
static bool takes_tokens(const struct grammar_data *g, struct grammar *grammar, const char *text,
                         size_t n)
{
    struct token_list ids = {0};
    struct matcher *m = matcher_of(g, grammar);
    bool ok = true;
    assert_int_equal(tokenizer_encode(g->t, text, n, TOKENIZER_MARKUP_OFF, &ids), FATHOM_OK);
    for (size_t i = 0; i < ids.n && ok; i++) {
        assert_int_equal(matcher_fill_mask(m, g->words, g->n_word), FATHOM_OK);
        ok = g->words[ids.ids[i] / 32] >> (ids.ids[i] % 32) & 1;
        assert_int_equal(matcher_accept_token(m, ids.ids[i]) == FATHOM_OK, ok);
    }
    ok = ok && matcher_can_end(m);
    matcher_destroy(m);
    token_list_free(&ids);
    return ok;
}

static void test_documents(void **state)
{
    const struct grammar_data *g = *state;
    json_t *cases = read_cases();
    for (size_t i = 0; i < json_array_size(cases); i++) {
        const json_t *c = json_array_get(cases, i);
        struct grammar *grammar = compile(g, c);
        for (int valid = 0; valid < 2; valid++) {
            const json_t *texts = json_object_get(c, valid ? "valid" : "invalid");
            assert_true(json_array_size(texts) > 0);
            for (size_t k = 0; k < json_array_size(texts); k++) {
                const char *text = json_string_value(json_array_get(texts, k));
                size_t n = strlen(text);
                bool taken = matcher_takes(g, grammar, text, n);
                if (taken != valid) fail_msg("%s: %s: taken %d", name_of(c), text, taken);
                if (takes_tokens(g, grammar, text, n) != valid) {
                    fail_msg("%s: %s: as tokens", name_of(c), text);
                }
            }
        }
        grammar_release(grammar);
    }
    json_decref(cases);
}

static void test_walks(void **state)
{
    const struct grammar_data *g = *state;
    json_t *cases = read_cases();
    uint64_t rng = 20240229;
    for (size_t i = 0; i < json_array_size(cases); i++) {
        const json_t *c = json_array_get(cases, i), *schema = json_object_get(c, "schema");
        struct grammar *grammar = compile(g, c);
        for (int k = 0; k < 20; k++) {
            struct buf text = {0};
            json_t *value;
            fathom_diag d = {""};
            walk(g, grammar, &rng, (uint32_t)rng_below(&rng, 60), &text);
            if (json_read_strict(text.data, text.len, name_of(c), &value, &d) &&
                !strstr(d.text, "duplicate")) {
                fail_msg("%s: %s: %s", name_of(c), buf_str(&text), d.text);
            }
            if (value && !json_check(schema, schema, value)) {
                fail_msg("%s: %s is not valid", name_of(c), buf_str(&text));
            }
            json_decref(value);
            buf_free(&text);
        }
        grammar_release(grammar);
    }
    json_decref(cases);
}

/* The mask of states that walks reach, against all tokens one by one. */
static void test_masks(void **state)
{
    const struct grammar_data *g = *state;
    json_t *cases = read_cases();
    uint64_t rng = 7;
    for (size_t i = 0; i < json_array_size(cases); i++) {
        const json_t *c = json_array_get(cases, i);
        struct grammar *grammar = compile(g, c);
        for (int k = 0; k < 3; k++) {
            struct buf text = {0};
            struct matcher *m = matcher_of(g, grammar);
            uint32_t n = 0;
            do {
                if (rng_below(&rng, 4) > 0 && n > 0) continue;
                if (!mask_is_exact(g, grammar, m, 0, 1)) {
                    fail_msg("%s, after %s", name_of(c), buf_str(&text));
                }
            } while (walk_step(g, m, &rng, n++ >= 25, &text));
            matcher_destroy(m);
            buf_free(&text);
        }
        grammar_release(grammar);
    }
    json_decref(cases);
}

/* A copy is a snapshot: whatever has been tried since, it leads on as if nothing had been. */
static void test_rollback(void **state)
{
    const struct grammar_data *g = *state;
    json_t *cases = read_cases();
    uint64_t rng = 99;
    uint32_t before[8192], after[8192];
    assert_true(g->n_word <= 8192);
    for (size_t i = 0; i < json_array_size(cases); i += 3) {
        struct grammar *grammar = compile(g, json_array_get(cases, i));
        struct matcher *m = matcher_of(g, grammar), *saved = matcher_of(g, grammar);
        struct buf text = {0};
        for (uint32_t n = 0; walk_step(g, m, &rng, n > 30, &text); n++) {
            bool end = matcher_can_end(m);
            matcher_copy(saved, m);
            assert_int_equal(matcher_fill_mask(m, before, g->n_word), FATHOM_OK);
            for (int k = 0; k < 4 && walk_step(g, m, &rng, false, &text); k++) {
            }
            matcher_copy(m, saved);
            assert_int_equal(matcher_fill_mask(m, after, g->n_word), FATHOM_OK);
            assert_memory_equal(before, after, g->n_word * sizeof *before);
            assert_int_equal(matcher_can_end(m), end);
            assert_false(matcher_has_ended(m));
        }
        buf_free(&text);
        matcher_destroy(m);
        matcher_destroy(saved);
        grammar_release(grammar);
    }
    json_decref(cases);
}

/* ---- random schemas ---------------------------------------------------------------------- */

/* A value from a list of JSON texts. */
static void set_one_of(json_t *schema, const char *key, uint64_t *rng, const char *const *texts,
                       size_t n)
{
    json_t *value = json_tree_of(texts[rng_below(rng, n)]);
    assert_int_equal(json_object_set_new(schema, key, value), 0);
}

/* Keywords whose scopes meet: members or items, what is left of them, counts, and schemas joined to
 * one another in every way. */
static json_t *random_schema(uint64_t *rng, bool array, int depth)
{
    static const char *const members[] = {
        "{\"a\":{\"type\":\"integer\"}}",
        "{\"a\":{\"type\":\"null\"},\"b\":{\"type\":\"integer\"}}", "{\"b\":{\"enum\":[1,\"x\"]}}",
        "{\"c\":{\"type\":\"boolean\"}}", "{}"};
    static const char *const rest[] = {"true", "false", "{\"type\":\"integer\"}", "false"};
    static const char *const prefix[] = {"[{\"type\":\"integer\"}]", "[true]",
                                         "[{\"enum\":[1,\"x\"]},{\"type\":\"null\"}]"};
    static const char *const counts[] = {"0", "1", "2", "3"};
    static const char *const refs[] = {"\"#/$defs/p\"", "\"#/$defs/q\""};
    json_t *schema = json_object();
    for (int i = 0; i < 3; i++) {
        uint64_t what = rng_below(rng, 12);
        if (what < 3) {
            set_one_of(schema, array ? "prefixItems" : "properties", rng, array ? prefix : members,
                       array ? 3 : 5);
        } else if (what == 3) {
            set_one_of(schema, array ? "items" : "additionalProperties", rng, rest, 4);
        } else if (what < 7) {
            set_one_of(schema, array ? "unevaluatedItems" : "unevaluatedProperties", rng, rest, 4);
        } else if (what == 7) {
            set_one_of(schema, array ? "maxItems" : "maxProperties", rng, counts, 4);
        } else if (what == 8 && depth < 3) {
            set_one_of(schema, "$ref", rng, refs, 2);
        } else if (depth < 2) {
            json_t *group = json_array();
            for (uint64_t k = rng_below(rng, 2) + 1; k > 0; k--) {
                json_array_append_new(group, random_schema(rng, array, depth + 1));
            }
            json_object_set_new(schema, what < 11 ? "allOf" : "anyOf", group);
        }
    }
    return schema;
}

/* What is compiled never writes what the schema forbids; what cannot be is refused in clear. */
static void test_random_scopes(void **state)
{
    const struct grammar_data *g = *state;
    uint64_t rng = 4711;
    int n_compiled = 0, n_refused = 0, n_judged = 0;
    for (int i = 0; i < 1500; i++) {
        bool array = i % 3 == 0;
        json_t *schema = random_schema(&rng, array, 0);
        json_t *defs = json_pack("{s:o,s:o}", "p", random_schema(&rng, array, 3), "q",
                                 random_schema(&rng, array, 3));
        struct grammar *grammar = NULL;
        struct buf shown = {0};
        fathom_diag d = {""};
        json_object_set_new(schema, "$defs", defs);
        json_object_set_new(schema, "type", json_string(array ? "array" : "object"));
        assert_int_equal(json_write(&shown, schema), FATHOM_OK);
        fathom_err err = grammar_from_schema(&grammar, g->v, schema, NULL, &d);
        n_compiled += !err;
        n_refused += strstr(d.text, "in a schema that others are joined to") != NULL;
        if (err == FATHOM_OK || err == FATHOM_EUNSUPPORTED || strstr(d.text, "nothing satisfies")) {
            for (int k = 0; k < 6 && !err; k++) {
                struct buf text = {0};
                fathom_diag ignored = {""};
                json_t *value = NULL;
                walk(g, grammar, &rng, (uint32_t)rng_below(&rng, 30), &text);
                (void)json_read_strict(text.data, text.len, "walk", &value, &ignored);
                if (value && !json_check(schema, schema, value)) {
                    fail_msg("%s writes %s", buf_str(&shown), buf_str(&text));
                }
                n_judged += value != NULL;
                json_decref(value);
                buf_free(&text);
            }
        } else {
            fail_msg("%s: %s", buf_str(&shown), d.text);
        }
        buf_free(&shown);
        grammar_release(grammar);
        json_decref(schema);
    }
    assert_true(n_compiled > 500 && n_refused > 50 && n_judged > 3000);
}

static void print_walks(void **state)
{
    const struct grammar_data *g = *state;
    json_t *cases = read_cases();
    uint64_t rng = 1;
    long n_walk = strtol(getenv("SCHEMA_WALKS"), NULL, 10);
    for (size_t i = 0; i < json_array_size(cases); i++) {
        struct grammar *grammar = compile(g, json_array_get(cases, i));
        for (long k = 0; k < n_walk; k++) {
            struct buf text = {0}, line = {0};
            walk(g, grammar, &rng, (uint32_t)rng_below(&rng, 60), &text);
            json_t *object = json_pack("{s:i,s:s%}", "case", (int)i, "text", text.data, text.len);
            assert_int_equal(json_write(&line, object), FATHOM_OK);
            printf("%s\n", buf_str(&line));
            json_decref(object);
            buf_free(&text);
            buf_free(&line);
        }
        grammar_release(grammar);
    }
    json_decref(cases);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_documents),
                                       cmocka_unit_test(test_walks), cmocka_unit_test(test_masks),
                                       cmocka_unit_test(test_rollback),
                                       cmocka_unit_test(test_random_scopes)};
    const struct CMUnitTest printing[] = {cmocka_unit_test(print_walks)};
    if (getenv("SCHEMA_WALKS"))
        return cmocka_run_group_tests(printing, grammar_data_set_up_pilot, grammar_data_tear_down);
    return cmocka_run_group_tests(tests, grammar_data_set_up_pilot, grammar_data_tear_down);
}
