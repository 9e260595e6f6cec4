/* token_rule.c - the sequences of a rule, and the constraint that holds an output to it */
#include "server/token_rule.h"

#include <string.h>

#include "base/fail.h"
#include "base/mem.h"

/* Two for each word at the most. */
struct token_rule {
    uint32_t *allowed; /* [n_word] a bit for each id; NULL: all */
    size_t n_word;
    size_t n_sequence;
    struct {
        int32_t ids[LIMIT_BAD_WORD_TOKENS];
        uint32_t n;
    } sequences[2 * LIMIT_BAD_WORDS];
};

/* ---- the rule ------------------------------------------------------------------------------ */

/* One with a token that the model does not have cannot come. */
static fathom_err add_sequence(struct token_rule *rule, const struct token_list *l, size_t i,
                               const struct rule_source *from, struct api_error *e)
{
    if (l->n == 0 || l->n > LIMIT_BAD_WORD_TOKENS) {
        return api_error_set(e, 400, "invalid_value", "bad_words",
                             "bad_words[%zu] is %zu tokens long, needed is 1 to %d", i, l->n,
                             LIMIT_BAD_WORD_TOKENS);
    }
    for (size_t k = 0; k < l->n; k++) {
        if ((uint32_t)l->ids[k] >= from->n_vocab) return FATHOM_OK;
    }
    memcpy(rule->sequences[rule->n_sequence].ids, l->ids, l->n * sizeof *l->ids);
    rule->sequences[rule->n_sequence++].n = (uint32_t)l->n;
    return FATHOM_OK;
}

static bool ends_with(const struct token_list *l, const struct token_list *end)
{
    return l->n >= end->n &&
           memcmp(l->ids + (l->n - end->n), end->ids, end->n * sizeof *end->ids) == 0;
}

/* The word as it stands; and behind a space, unless its tokens there end in those of the word. */
static fathom_err add_word(struct token_rule *rule, const char *word, size_t i,
                           const struct rule_source *from, struct api_error *e)
{
    const struct tokenizer *t = from->tokenizer;
    struct token_list plain = {0}, spaced = {0};
    struct buf text = {0};
    while (*word == ' ') word++;
    (void)buf_printf(&text, " %s", word);
    fathom_err err = buf_status(&text);
    if (!err) err = tokenizer_encode(t, word, strlen(word), TOKENIZER_MARKUP_OFF, &plain);
    if (!err) err = tokenizer_encode(t, buf_str(&text), text.len, TOKENIZER_MARKUP_OFF, &spaced);
    if (!err) err = add_sequence(rule, &plain, i, from, e);
    if (!err && !ends_with(&spaced, &plain)) err = add_sequence(rule, &spaced, i, from, e);
    token_list_free(&plain);
    token_list_free(&spaced);
    buf_free(&text);
    return err;
}

fathom_err token_rule_create(struct token_rule **out, const struct api_request *r,
                             const struct rule_source *from, struct api_error *e)
{
    *out = NULL;
    if (!r->allowed_ids && r->n_bad_word == 0) return FATHOM_OK;
    struct token_rule *rule = mem_calloc(1, sizeof *rule);
    if (!rule) return FATHOM_ENOMEM;
    fathom_err err = FATHOM_OK;
    for (size_t i = 0; i < r->n_bad_word && !err; i++) {
        err = add_word(rule, r->bad_words[i], i, from, e);
    }
    if (!err && r->allowed_ids) {
        rule->n_word = r->n_allowed_word;
        rule->allowed = mem_alloc_array(rule->n_word, sizeof *rule->allowed);
        if (rule->allowed) {
            memcpy(rule->allowed, r->allowed_ids, rule->n_word * sizeof *rule->allowed);
        } else {
            err = FATHOM_ENOMEM;
        }
    }
    if (err) {
        token_rule_destroy(rule);
        return err;
    }
    *out = rule;
    return FATHOM_OK;
}

void token_rule_destroy(struct token_rule *rule)
{
    if (!rule) return;
    mem_free(rule->allowed);
    mem_free(rule);
}

/* ---- an output under it -------------------------------------------------------------------- */

/* The last tokens of an output, the newest last. */
struct tail {
    int32_t ids[LIMIT_BAD_WORD_TOKENS];
    uint32_t n;
};

/* Invariant: `now` has the last n tokens that accept has taken since the mark or the beginning. */
struct barred {
    struct token_rule *rule;
    fathom_constraint other; /* ops NULL: none */
    struct tail now, marked;
};

/* Whether the output ends in all of a sequence but its last id. */
static bool ends_in(const struct tail *t, const int32_t *ids, uint32_t n)
{
    return t->n >= n - 1 && memcmp(t->ids + t->n - (n - 1), ids, (n - 1) * sizeof *ids) == 0;
}

static bool is_barred(const struct barred *b, int32_t id)
{
    const struct token_rule *rule = b->rule;
    if (rule->allowed &&
        ((size_t)id / 32 >= rule->n_word || !(rule->allowed[id / 32] >> (id % 32) & 1))) {
        return true;
    }
    for (size_t i = 0; i < rule->n_sequence; i++) {
        uint32_t n = rule->sequences[i].n;
        const int32_t *ids = rule->sequences[i].ids;
        if (ids[n - 1] == id && ends_in(&b->now, ids, n)) return true;
    }
    return false;
}

static void fill_mask(const void *state, uint32_t *words, size_t n_word)
{
    const struct barred *b = state;
    const struct token_rule *rule = b->rule;
    if (b->other.ops) {
        b->other.ops->fill_mask(b->other.state, words, n_word);
    } else {
        memset(words, 0xff, n_word * sizeof *words);
    }
    for (size_t i = 0; rule->allowed && i < n_word; i++) {
        words[i] &= i < rule->n_word ? rule->allowed[i] : 0;
    }
    for (size_t i = 0; i < rule->n_sequence; i++) {
        uint32_t n = rule->sequences[i].n;
        const int32_t *ids = rule->sequences[i].ids;
        if (ends_in(&b->now, ids, n)) words[ids[n - 1] / 32] &= ~(1u << (ids[n - 1] % 32));
    }
}

static bool accept(void *state, int32_t id)
{
    struct barred *b = state;
    if (is_barred(b, id)) return false;
    if (b->other.ops && !b->other.ops->accept(b->other.state, id)) return false;
    struct tail *t = &b->now;
    if (t->n == LIMIT_BAD_WORD_TOKENS) {
        memmove(t->ids, t->ids + 1, (size_t)--t->n * sizeof *t->ids);
    }
    t->ids[t->n++] = id;
    return true;
}

static void mark(void *state)
{
    struct barred *b = state;
    b->marked = b->now;
    if (b->other.ops) b->other.ops->mark(b->other.state);
}

static void go_back(void *state)
{
    struct barred *b = state;
    b->now = b->marked;
    if (b->other.ops) b->other.ops->go_back(b->other.state);
}

static void destroy(void *state)
{
    struct barred *b = state;
    if (b->other.ops) b->other.ops->destroy(b->other.state);
    token_rule_destroy(b->rule);
    mem_free(b);
}

static const fathom_constraint_ops barred_ops = {
    .fill_mask = fill_mask,
    .accept = accept,
    .mark = mark,
    .go_back = go_back,
    .destroy = destroy,
};

fathom_err token_rule_constrain(const struct token_rule *rule, fathom_constraint *c)
{
    struct barred *b = mem_calloc(1, sizeof *b);
    struct token_rule *own = mem_alloc(sizeof *own);
    uint32_t *allowed = NULL;
    if (rule->allowed) allowed = mem_alloc_array(rule->n_word, sizeof *allowed);
    if (!b || !own || (rule->allowed && !allowed)) {
        mem_free(b);
        mem_free(own);
        mem_free(allowed);
        return FATHOM_ENOMEM;
    }
    *own = *rule;
    own->allowed = allowed;
    if (allowed) memcpy(allowed, rule->allowed, rule->n_word * sizeof *allowed);
    b->rule = own;
    b->other = *c;
    *c = (fathom_constraint){&barred_ops, b};
    return FATHOM_OK;
}
