/* grammar_data.c - vocabularies, walks and brute force */
#include "support/grammar_data.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "base/mem.h"
#include "base/rng.h"
#include "support/json_tree.h"
#include "support/tokenizer_data.h"

void grammar_data_open(struct grammar_data *g, const char *path)
{
    fathom_diag d = {""};
    *g = (struct grammar_data){0};
    if (tokenizer_open_file(&g->t, path, &d)) fail_msg("%s", d.text);
    if (grammar_vocab_create(&g->v, g->t, &d)) fail_msg("%s", d.text);
    g->eos = tokenizer_find(g->t, "<｜end▁of▁sentence｜>");
    assert_true(g->eos >= 0);
    g->n_word = grammar_vocab_n_word(g->v);
    g->words = mem_calloc(g->n_word, sizeof *g->words);
    assert_non_null(g->words);
}

void grammar_data_close(struct grammar_data *g)
{
    mem_free(g->words);
    grammar_vocab_destroy(g->v);
    tokenizer_close(g->t);
}

static int set_up(void **state, const char *path)
{
    struct grammar_data *g = mem_alloc(sizeof *g);
    assert_non_null(g);
    grammar_data_open(g, path);
    *state = g;
    return 0;
}

int grammar_data_set_up_pilot(void **state)
{
    return set_up(state, TOKENIZER_PILOT_JSON);
}

int grammar_data_set_up_v3(void **state)
{
    return set_up(state, TOKENIZER_V3_JSON);
}

int grammar_data_tear_down(void **state)
{
    grammar_data_close(*state);
    mem_free(*state);
    return 0;
}

struct grammar *grammar_of_schema(const struct grammar_data *g, const char *schema,
                                  const struct grammar_options *options)
{
    fathom_diag d = {""};
    struct grammar *out;
    json_t *tree = json_tree_of(schema);
    if (grammar_from_schema(&out, g->v, tree, options, &d)) fail_msg("%s: %s", schema, d.text);
    json_decref(tree);
    return out;
}

struct matcher *matcher_of(const struct grammar_data *g, struct grammar *grammar)
{
    struct matcher *m;
    assert_int_equal(matcher_create(&m, grammar, &g->eos, 1), FATHOM_OK);
    return m;
}

bool matcher_takes(const struct grammar_data *g, struct grammar *grammar, const char *text,
                   size_t n)
{
    struct matcher *m = matcher_of(g, grammar);
    bool taken = matcher_accept_bytes(m, text, n) == FATHOM_OK && matcher_can_end(m);
    matcher_destroy(m);
    return taken;
}

static bool allows(const struct grammar_data *g, int32_t id)
{
    return g->words[id / 32] >> (id % 32) & 1;
}

bool matcher_takes_tokens(const struct grammar_data *g, struct grammar *grammar, const char *text,
                          enum tokenizer_markup markup)
{
    struct token_list ids = {0};
    struct matcher *m = matcher_of(g, grammar);
    bool ok = true;
    assert_int_equal(tokenizer_encode(g->t, text, strlen(text), markup, &ids), FATHOM_OK);
    for (size_t i = 0; i < ids.n && ok; i++) {
        assert_int_equal(matcher_fill_mask(m, g->words, g->n_word), FATHOM_OK);
        ok = matcher_accept_token(m, ids.ids[i]) == FATHOM_OK;
        assert_int_equal(g->words[ids.ids[i] / 32] >> (ids.ids[i] % 32) & 1, ok);
    }
    ok = ok && matcher_can_end(m);
    matcher_destroy(m);
    token_list_free(&ids);
    return ok;
}

bool mask_is_exact(const struct grammar_data *g, struct grammar *grammar, const struct matcher *m,
                   int32_t first, int32_t stride)
{
    bool exact = true, any = false;
    struct matcher *copy = matcher_of(g, grammar);
    assert_int_equal(matcher_fill_mask(m, g->words, g->n_word), FATHOM_OK);
    for (size_t i = 0; i < g->n_word; i++) any |= g->words[i] != 0;
    assert_true(any);
    for (int32_t id = first; id < tokenizer_n_token(g->t); id += stride) {
        matcher_copy(copy, m);
        bool taken = matcher_accept_token(copy, id) == FATHOM_OK;
        if (taken == allows(g, id)) continue;
        size_t n;
        const char *bytes = tokenizer_bytes(g->t, id, &n);
        print_error("token %d \"%.*s\": mask %d, taken %d\n", id, (int)n, bytes, allows(g, id),
                    taken);
        exact = false;
        break;
    }
    matcher_destroy(copy);
    return exact;
}

/* The id of the first of these tokens that is allowed, or -1. */
static int32_t find_allowed(const struct grammar_data *g, const char *const *texts, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        int32_t id = tokenizer_find(g->t, texts[i]);
        if (id >= 0 && allows(g, id)) return id;
    }
    return -1;
}

static int32_t draw_allowed(const struct grammar_data *g, uint64_t *rng)
{
    uint32_t n_allowed = 0;
    for (size_t i = 0; i < g->n_word; i++) n_allowed += (uint32_t)__builtin_popcount(g->words[i]);
    assert_true(n_allowed > 0);
    uint32_t left = (uint32_t)rng_below(rng, n_allowed);
    for (size_t i = 0;; i++) {
        uint32_t word = g->words[i], n = (uint32_t)__builtin_popcount(word);
        if (left >= n) {
            left -= n;
            continue;
        }
        while (left-- > 0) word &= word - 1;
        return (int32_t)(i * 32) + __builtin_ctz(word);
    }
}

bool walk_step(const struct grammar_data *g, struct matcher *m, uint64_t *rng, bool hurry,
               struct buf *text)
{
    static const char *const closers[] = {"\"", "1", "0", "}", "]", "n", "t"};
    static const char *const marks[] = {"@", ".", ":", "-"};
    assert_int_equal(matcher_fill_mask(m, g->words, g->n_word), FATHOM_OK);
    uint64_t kind = rng_below(rng, 8);
    int32_t id = -1;
    if (allows(g, g->eos) && (hurry || kind < 2)) {
        id = g->eos;
    } else if (hurry && kind < 7) {
        id = kind < 6 ? find_allowed(g, closers, 7) : find_allowed(g, marks + rng_below(rng, 4), 1);
    } else if (kind < 3) {
        id = find_allowed(g, closers + (kind ? kind + 2 : 0), 1);
    }
    if (id < 0) id = draw_allowed(g, rng);
    size_t n;
    const char *bytes = tokenizer_bytes(g->t, id, &n);
    if (matcher_accept_token(m, id)) {
        fail_msg("after \"%s\" the mask allows token %d \"%.*s\", the matcher does not take it",
                 buf_str(text), id, (int)n, bytes);
    }
    if (id == g->eos) return false;
    assert_int_equal(buf_add(text, bytes, n), FATHOM_OK);
    return true;
}

void walk(const struct grammar_data *g, struct grammar *grammar, uint64_t *rng, uint32_t n_free,
          struct buf *text)
{
    struct matcher *m = matcher_of(g, grammar);
    uint32_t n = 0;
    while (walk_step(g, m, rng, n >= n_free, text)) {
        if (++n == 20000) fail_msg("no end after %.200s", buf_str(text));
    }
    matcher_destroy(m);
}
