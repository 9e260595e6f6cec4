/* schema_unique.c - arrays whose elements all differ, where elements have a list of values
 *
 * With few values, each set of values written so far has a state of its own, so they may come in
 * any order. More values come in the order of the list only.
 */
#include "base/fail.h"
#include "base/mem.h"
#include "grammar/builder.h"
#include "grammar/schema_int.h"

enum {
    ORDERS_MAX = 6, /* values of which every order is drawn */
    PLACES_MAX = 4096,
};

/* ---- which values ------------------------------------------------------------------------ */

struct listing {
    json_t *values; /* an array, without repetitions */
    bool whole;     /* elements have no other values */
};

static fathom_err add_new(struct schema_compiler *c, json_t *values, const json_t *value)
{
    for (size_t i = 0; i < json_array_size(values); i++) {
        bool same;
        TRY(schema_same_value(c, value, json_array_get(values, i), &same));
        if (same) return FATHOM_OK;
    }
    return json_array_append(values, (json_t *)value) ? FATHOM_ENOMEM : FATHOM_OK;
}

/* Adds the values of an element under one choice of alternatives. */
static fathom_err list_values(struct schema_compiler *c, struct schema_flat *f, void *arg)
{
    struct listing *l = arg;
    const unsigned types = schema_types(f);
    if (f->never || types == 0) return FATHOM_OK;
    if (f->values) {
        TRY(schema_keep_allowed(c, f));
        for (size_t i = 0; i < json_array_size(f->values); i++) {
            TRY(add_new(c, l->values, json_array_get(f->values, i)));
        }
        return FATHOM_OK;
    }
    if (types & ~(unsigned)(SCHEMA_TYPE_BOOLEAN | SCHEMA_TYPE_NULL)) l->whole = false;
    if (types & SCHEMA_TYPE_BOOLEAN) {
        TRY(add_new(c, l->values, json_true()));
        TRY(add_new(c, l->values, json_false()));
    }
    return types & SCHEMA_TYPE_NULL ? add_new(c, l->values, json_null()) : FATHOM_OK;
}

fathom_err unique_values(struct schema_compiler *c, const struct schema_flat *f, json_t **out)
{
    struct schema_flat element;
    json_t *schema = NULL;
    *out = NULL;
    if (json_array_size(f->prefix)) return FATHOM_OK;
    struct listing l = {json_array(), true};
    if (!l.values) return FATHOM_ENOMEM;
    size_t mark = schema_enter(c, "items");
    schema_flat_init(&element);
    fathom_err err = schema_flat_item(f, 0, &schema);
    if (!err) err = schema_flat_merge(c, &element, schema);
    if (!err) err = schema_flat_each(c, &element, list_values, &l);
    if (!err) schema_leave(c, mark);
    schema_flat_free(&element);
    json_decref(schema);
    if (!err && l.whole) *out = json_incref(l.values);
    json_decref(l.values);
    return err;
}

/* ---- drawing ----------------------------------------------------------------------------- */

/* Draws the comma behind an element; returns where the next one begins. */
static uint32_t put_comma(struct grammar_builder *b, uint32_t after)
{
    return grammar_put_space(b, grammar_put_text(b, after, ",", 1), GRAMMAR_AFTER_COMMA);
}

/* after[s]: the values of the set s have been written. */
static void put_orders(struct grammar_builder *b, uint32_t begin, const json_t *values,
                       uint32_t min, uint32_t max, uint32_t close)
{
    uint32_t after[1u << ORDERS_MAX] = {0};
    const uint32_t n = (uint32_t)json_array_size(values);
    for (uint32_t set = 1; set < 1u << n; set++) after[set] = grammar_add_state(b);
    for (uint32_t set = 0; set < 1u << n; set++) {
        const uint32_t n_written = (uint32_t)__builtin_popcount(set);
        if (set && n_written >= min) grammar_join(b, after[set], close);
        if (n_written >= max) continue;
        const uint32_t at = set ? put_comma(b, after[set]) : begin;
        for (uint32_t i = 0; i < n; i++) {
            if (set >> i & 1u) continue;
            const uint32_t end = grammar_put_literal(b, at, json_array_get(values, i));
            grammar_join(b, end, after[set | 1u << i]);
        }
    }
}

/* In layer k, k values have been written; if they need not be counted, layer 1 stands for any
 * number of them. next[k]: the state from which value i or a later one may come. */
static fathom_err put_in_order(struct schema_compiler *c, uint32_t begin, const json_t *values,
                               uint32_t min, uint32_t max, uint32_t close)
{
    struct grammar_builder *b = c->b;
    const uint32_t n = (uint32_t)json_array_size(values);
    const bool counted = min > 1 || max < n;
    const uint32_t n_layer = counted ? max : 1;
    if ((uint64_t)n * n_layer > PLACES_MAX) {
        FAIL(c->d, FATHOM_ELIMIT,
             "schema %s: %u of %u values that differ, up to %d of such places are possible",
             buf_str(&c->path), max, n, PLACES_MAX);
    }
    uint32_t *next = mem_calloc(n_layer + 1, sizeof *next);
    if (!next) return FATHOM_ENOMEM;
    next[0] = begin;
    for (uint32_t k = 1; k <= n_layer; k++) next[k] = grammar_add_state(b);
    for (uint32_t i = 0; i < n; i++) {
        /* From the last layer on, so that what follows value i is that of later values alone. */
        for (uint32_t k = n_layer + 1; k-- > 0;) {
            const uint32_t to = counted ? k + 1 : 1, from = next[k];
            next[k] = grammar_add_state(b);
            grammar_join(b, from, next[k]);
            if (to > n_layer) continue;
            const uint32_t end = grammar_put_literal(b, from, json_array_get(values, i));
            if (!counted || to >= min) grammar_join(b, end, close);
            if (!counted || to < max) grammar_join(b, put_comma(b, end), next[to]);
        }
    }
    mem_free(next);
    return FATHOM_OK;
}

fathom_err unique_put_elements(struct schema_compiler *c, uint32_t open,
                               const struct schema_flat *f, const json_t *values, uint32_t close)
{
    const size_t n = json_array_size(values);
    const uint32_t max = f->max_items < n ? f->max_items : (uint32_t)n;
    const uint32_t min = f->min_items;
    if (max == 0 || min > max) return FATHOM_OK;
    TRY(schema_spend(c, n * UNITS_VALUE));
    uint32_t begin = grammar_put_space(c->b, open, GRAMMAR_IN_BRACKET);
    if (n > ORDERS_MAX) return put_in_order(c, begin, values, min, max, close);
    put_orders(c->b, begin, values, min, max, close);
    return FATHOM_OK;
}
