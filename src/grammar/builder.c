/* builder.c - rules drawn as one NFA: text, markup, strings, patterns, choices */
#include "grammar/builder.h"

#include <string.h>

#include "base/assert.h"
#include "base/fail.h"
#include "base/json.h"
#include "base/mem.h"
#include "grammar/grammar_int.h"
#include "grammar/regex.h"
#include "grammar/spelling.h"

fathom_err grammar_builder_create(struct grammar_builder **out, const struct grammar_vocab *v,
                                  const struct grammar_options *options)
{
    struct grammar_builder *b = mem_calloc(1, sizeof *b);
    *out = b;
    if (!b) return FATHOM_ENOMEM;
    b->vocab = v;
    if (options) b->options = *options;
    b->budget.left = GRAMMAR_WORK_MAX;
    nfa_init(&b->nfa, BUILDER_STATES_MAX, &b->budget);
    return FATHOM_OK;
}

struct grammar_budget *grammar_builder_budget(struct grammar_builder *b)
{
    return &b->budget;
}

void grammar_builder_destroy(struct grammar_builder *b)
{
    if (!b) return;
    nfa_free(&b->nfa);
    mem_free(b->rules);
    mem_free(b);
}

fathom_err builder_status(const struct grammar_builder *b, fathom_diag *d)
{
    if (b->nfa.err != FATHOM_ELIMIT) return b->nfa.err;
    FAIL(d, FATHOM_ELIMIT,
         "the grammar is too large: more than %d rules, %d states or %d markers while drawing",
         GRAMMAR_RULES_MAX, BUILDER_STATES_MAX, GRAMMAR_MARKERS_MAX);
}

fathom_err grammar_build(struct grammar **out, struct grammar_builder *b, uint32_t root,
                         fathom_diag *d)
{
    *out = NULL;
    TRY(builder_status(b, d));
    return grammar_link(out, b, root, d);
}

fathom_err grammar_compile(struct grammar **out, const struct grammar_vocab *v,
                           const struct grammar_options *options, grammar_draw *draw,
                           const void *what, const atomic_bool *stop, fathom_diag *d)
{
    struct grammar_builder *b;
    *out = NULL;
    TRY(grammar_builder_create(&b, v, options));
    b->budget.stop = stop;
    uint32_t rule = grammar_add_rule(b), to = 0;
    fathom_err err = draw(b, grammar_rule_begin(b, rule), what, &to, d);
    if (!err) {
        grammar_join(b, to, grammar_rule_end(b, rule));
        err = grammar_build(out, b, rule, d);
    }
    err = budget_tell(&b->budget, err, "the grammar", d);
    if (err == FATHOM_ECANCEL && b->budget.used_up) err = FATHOM_ELIMIT;
    grammar_builder_destroy(b);
    return err;
}

/* ---- rules and states ------------------------------------------------------------------- */

/* Room for a rule; NULL after a failure. */
static struct drawn_rule *new_rule(struct grammar_builder *b)
{
    if (!b->nfa.err && b->n_rule == GRAMMAR_RULES_MAX) b->nfa.err = FATHOM_ELIMIT;
    if (b->nfa.err) return NULL;
    b->nfa.err = mem_grow(&b->rules, &b->cap_rule, b->n_rule + 1, sizeof *b->rules);
    if (b->nfa.err) return NULL;
    b->rules[b->n_rule] = (struct drawn_rule){0};
    return &b->rules[b->n_rule++];
}

uint32_t grammar_add_rule(struct grammar_builder *b)
{
    struct drawn_rule *r = new_rule(b);
    if (!r) return 0;
    r->begin = nfa_state(&b->nfa);
    r->end = nfa_state(&b->nfa);
    return b->n_rule - 1;
}

uint32_t grammar_rule_begin(const struct grammar_builder *b, uint32_t rule)
{
    return b->nfa.err ? 0 : b->rules[rule].begin;
}

uint32_t grammar_rule_end(const struct grammar_builder *b, uint32_t rule)
{
    return b->nfa.err ? 0 : b->rules[rule].end;
}

uint32_t grammar_add_state(struct grammar_builder *b)
{
    return nfa_state(&b->nfa);
}

void grammar_join(struct grammar_builder *b, uint32_t from, uint32_t to)
{
    nfa_link(&b->nfa, from, NFA_EPSILON, to);
}

/* ---- text and markup -------------------------------------------------------------------- */

uint32_t grammar_put_bytes(struct grammar_builder *b, uint32_t from, uint8_t lo, uint8_t hi)
{
    uint32_t to = nfa_state(&b->nfa);
    nfa_edge(&b->nfa, from, lo, hi, to);
    return to;
}

uint32_t grammar_put_text(struct grammar_builder *b, uint32_t from, const char *text, size_t n)
{
    for (size_t i = 0; i < n && !b->nfa.err; i++) {
        from = grammar_put_bytes(b, from, (uint8_t)text[i], (uint8_t)text[i]);
    }
    return from;
}

/* The symbol of a marker. */
static uint32_t marker_symbol(struct grammar_builder *b, int32_t id)
{
    uint32_t i = 0;
    while (i < b->n_marker && b->marker_ids[i] != id) i++;
    if (i == GRAMMAR_MARKERS_MAX) {
        b->nfa.err = FATHOM_ELIMIT;
        return 0;
    }
    if (i == b->n_marker) b->marker_ids[b->n_marker++] = id;
    return SYMBOL_MARKER + i;
}

/* Edges for the markers that stand at text[0 .. n); states[i] is before byte i. */
static void put_markers(struct grammar_builder *b, const char *text, size_t n, uint32_t first)
{
    const struct grammar_vocab *v = b->vocab;
    if (!b->nfa.err) b->nfa.err = budget_spend(&b->budget, n * v->n_marker);
    for (size_t i = 0; i < n && !b->nfa.err; i++) {
        for (uint32_t k = 0; k < v->n_marker; k++) {
            const struct marker *m = &v->markers[k];
            const char *bytes = v->marker_bytes.data + m->start;
            if (bytes[0] != text[i] || m->n_byte > n - i) continue;
            if (memcmp(bytes, text + i, m->n_byte) != 0) continue;
            uint32_t symbol = marker_symbol(b, m->id), at = first + (uint32_t)i;
            nfa_edge(&b->nfa, at, symbol, symbol, at + m->n_byte);
        }
    }
}

uint32_t grammar_put_markup(struct grammar_builder *b, uint32_t from, const char *text)
{
    size_t n = strlen(text);
    uint32_t first = nfa_state(&b->nfa);
    grammar_join(b, from, first);
    uint32_t to = grammar_put_text(b, first, text, n);
    if (b->nfa.err) return 0;
    ASSERT(to == first + n); /* states are numbered as they are made */
    put_markers(b, text, n, first);
    return to;
}

uint32_t grammar_put_rule(struct grammar_builder *b, uint32_t from, uint32_t rule)
{
    uint32_t to = nfa_state(&b->nfa);
    nfa_edge(&b->nfa, from, SYMBOL_CALL + rule, SYMBOL_CALL + rule, to);
    return to;
}

uint32_t grammar_put_until(struct grammar_builder *b, uint32_t from, const char *end)
{
    uint32_t rule = grammar_add_rule(b), begin = grammar_rule_begin(b, rule);
    struct spell_target again = {.state = begin};
    spell_text(&b->nfa, begin, 0, FA_CODE_POINT_LAST, &again);
    uint32_t last = grammar_put_markup(b, begin, end);
    grammar_join(b, last, grammar_rule_end(b, rule));
    if (!b->nfa.err) b->rules[rule].cut = true;
    return grammar_put_rule(b, from, rule);
}

/* ---- texts of an automaton -------------------------------------------------------------- */

/* The rule of a JSON string's inside, of min to max characters. */
static uint32_t text_rule(struct grammar_builder *b, uint32_t min, uint32_t max)
{
    if (!b->nfa.err) b->nfa.err = budget_spend(&b->budget, b->n_rule);
    for (uint32_t i = 0; i < b->n_rule; i++) {
        const struct drawn_rule *r = &b->rules[i];
        if (r->is_text && r->min == min && r->max == max) return i;
    }
    struct drawn_rule *r = new_rule(b);
    if (!r) return 0;
    r->is_text = true;
    r->min = min;
    r->max = max;
    return b->n_rule - 1;
}

/* Draws d from `from`: the state of d's state s goes to targets[s], edges as UTF-8 bytes. */
static void put_texts(struct grammar_builder *b, uint32_t from, const struct dfa *d,
                      struct spell_target *targets, bool json)
{
    for (uint32_t s = 0; s < d->n_state; s++) targets[s].state = nfa_state(&b->nfa);
    grammar_join(b, from, targets[0].state);
    for (uint32_t s = 0; s < d->n_state; s++) {
        if (json && dfa_is_open(d, s)) continue;
        for (uint32_t e = d->first[s]; e < d->first[s + 1] && !b->nfa.err; e++) {
            const struct dfa_edge *edge = &d->edges[e];
            struct spell_target *to = &targets[edge->to];
            if (json) {
                spell_json(&b->nfa, targets[s].state, edge->lo, edge->hi, to);
            } else {
                spell_text(&b->nfa, targets[s].state, edge->lo, edge->hi, to);
            }
        }
    }
}

static struct spell_target *new_targets(struct grammar_builder *b, const struct dfa *d)
{
    if (b->nfa.err) return NULL;
    struct spell_target *targets = mem_calloc(d->n_state, sizeof *targets);
    if (!targets) b->nfa.err = FATHOM_ENOMEM;
    return targets;
}

uint32_t grammar_put_dfa(struct grammar_builder *b, uint32_t from, const struct dfa *d)
{
    uint32_t to = nfa_state(&b->nfa);
    struct spell_target *targets = new_targets(b, d);
    if (!targets) return 0;
    put_texts(b, from, d, targets, false);
    for (uint32_t s = 0; s < d->n_state; s++) {
        if (d->accept[s]) grammar_join(b, targets[s].state, to);
    }
    mem_free(targets);
    return to;
}

uint32_t grammar_put_string_dfa(struct grammar_builder *b, uint32_t from, const struct dfa *d)
{
    uint32_t to = nfa_state(&b->nfa);
    struct spell_target *targets = new_targets(b, d);
    if (!targets) return 0;
    put_texts(b, grammar_put_text(b, from, "\"", 1), d, targets, true);
    for (uint32_t s = 0; s < d->n_state; s++) {
        uint32_t at = targets[s].state;
        if (dfa_is_open(d, s)) {
            grammar_join(b, grammar_put_rule(b, at, text_rule(b, 0, UINT32_MAX)), to);
        } else if (d->accept[s]) {
            grammar_join(b, grammar_put_text(b, at, "\"", 1), to);
        }
    }
    mem_free(targets);
    return to;
}

/* ---- strings ---------------------------------------------------------------------------- */

uint32_t grammar_put_string(struct grammar_builder *b, uint32_t from, uint32_t min, uint32_t max)
{
    uint32_t inside = grammar_put_text(b, from, "\"", 1);
    return grammar_put_rule(b, inside, text_rule(b, min, max));
}

/* ---- patterns and choices --------------------------------------------------------------- */

fathom_err grammar_put_regex(struct grammar_builder *b, uint32_t from, const char *pattern,
                             size_t n, uint32_t *to, fathom_diag *d)
{
    struct dfa dfa;
    TRY(regex_compile(&dfa, pattern, n, REGEX_FULL, &b->budget, d));
    fathom_err err = FATHOM_OK;
    if (dfa_is_empty(&dfa)) {
        err = diag_fail(d, FATHOM_EINVAL, "no text matches the pattern");
    } else {
        *to = grammar_put_dfa(b, from, &dfa);
    }
    dfa_free(&dfa);
    return err;
}

static fathom_err check_choices(const json_t *choices, fathom_diag *d)
{
    size_t n_byte = 0;
    if (!json_is_array(choices) || json_array_size(choices) == 0) {
        FAIL(d, FATHOM_EINVAL, "the choices are %s, an array of at least one string is needed",
             json_is_array(choices) ? "an empty array" : json_type_text(choices));
    }
    for (size_t i = 0; i < json_array_size(choices); i++) {
        const json_t *choice = json_array_get(choices, i);
        if (!json_is_string(choice)) {
            FAIL(d, FATHOM_EINVAL, "choice %zu is %s, a string is needed", i,
                 json_type_text(choice));
        }
        n_byte += json_string_length(choice);
    }
    if (json_array_size(choices) > GRAMMAR_CHOICES_MAX || n_byte > GRAMMAR_CHOICE_BYTES_MAX) {
        FAIL(d, FATHOM_ELIMIT, "%zu choices of %zu bytes, at most %d of %d are possible",
             json_array_size(choices), n_byte, GRAMMAR_CHOICES_MAX, GRAMMAR_CHOICE_BYTES_MAX);
    }
    return FATHOM_OK;
}

fathom_err grammar_put_choice(struct grammar_builder *b, uint32_t from, const json_t *choices,
                              uint32_t *to, fathom_diag *d)
{
    TRY(check_choices(choices, d));
    *to = grammar_add_state(b);
    for (size_t i = 0; i < json_array_size(choices); i++) {
        const json_t *choice = json_array_get(choices, i);
        const char *text = json_string_value(choice);
        grammar_join(b, grammar_put_text(b, from, text, json_string_length(choice)), *to);
    }
    return FATHOM_OK;
}

struct pattern {
    const char *text;
    size_t n;
};

static fathom_err draw_regex(struct grammar_builder *b, uint32_t from, const void *what,
                             uint32_t *to, fathom_diag *d)
{
    const struct pattern *pattern = what;
    return grammar_put_regex(b, from, pattern->text, pattern->n, to, d);
}

fathom_err grammar_from_regex(struct grammar **out, const struct grammar_vocab *v,
                              const char *pattern, size_t n, fathom_diag *d)
{
    return grammar_compile(out, v, NULL, draw_regex, &(struct pattern){pattern, n}, NULL, d);
}

static fathom_err draw_choice(struct grammar_builder *b, uint32_t from, const void *what,
                              uint32_t *to, fathom_diag *d)
{
    return grammar_put_choice(b, from, what, to, d);
}

fathom_err grammar_from_choice(struct grammar **out, const struct grammar_vocab *v,
                               const json_t *choices, fathom_diag *d)
{
    return grammar_compile(out, v, NULL, draw_choice, choices, NULL, d);
}
