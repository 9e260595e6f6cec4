/* schema_object.c - objects
 *
 * Members come in the order of "properties", those that are not required may be left out, others
 * follow them. Layer c of the drawing is where c members have been written, one layer for all when
 * nobody counts:
 *
 *   member[i][c]  one of the members i and up must come next
 *   after[i][c]   one has come, those before i are settled: a comma, or the end
 */
#include <string.h>

#include "base/fail.h"
#include "base/json.h"
#include "base/mem.h"
#include "base/utf8.h"
#include "chat/schema_int.h"

/* ---- members ---------------------------------------------------------------------------- */

void members_free(struct members *m)
{
    for (size_t i = 0; i < m->n; i++) json_decref(m->list[i].schema);
    mem_free(m->list);
    *m = (struct members){0};
}

static bool is_required(const struct flat *f, const char *name)
{
    for (size_t i = 0; i < json_array_size(f->required); i++) {
        if (strcmp(json_string_value(json_array_get(f->required, i)), name) == 0) return true;
    }
    return false;
}

/* Appends a member with what patternProperties and propertyNames say of its name; leaves it out
 * when it cannot occur. */
static fathom_err add_member(struct schema_compiler *c, struct flat *f, struct members *m,
                             const char *name, const json_t *schema, const struct dfa *names)
{
    const char *pattern;
    json_t *other;
    bool required = is_required(f, name);
    bool possible = !json_is_false(schema);
    if (names) possible = possible && dfa_accepts_text(names, name, strlen(name));
    json_t *all = possible ? json_pack("[O]", schema) : NULL;
    if (possible && !all) return FATHOM_ENOMEM;
    json_object_foreach (f->patterns, pattern, other) {
        bool matches = false;
        fathom_err err = possible ? pattern_matches(c, pattern, name, &matches) : FATHOM_OK;
        if (!err && matches && json_array_append(all, other)) err = FATHOM_ENOMEM;
        if (err) json_decref(all);
        TRY(err);
        if (matches && json_is_false(other)) possible = false;
    }
    if (!possible) {
        json_decref(all);
        f->never |= required;
        return FATHOM_OK;
    }
    json_t *joined = json_array_size(all) == 1 ? json_incref((json_t *)schema)
                                               : json_pack("{s:O}", "allOf", all);
    json_decref(all);
    if (!joined) return FATHOM_ENOMEM;
    m->list[m->n++] = (struct member){name, strlen(name), joined, required};
    return FATHOM_OK;
}

/* What a required name that is not in "properties" must be: what others must be, unless a pattern
 * speaks of it. */
static fathom_err rest_of(struct schema_compiler *c, const struct flat *f, const char *name,
                          json_t *rest, json_t **out)
{
    const char *pattern;
    json_t *schema;
    *out = rest ? rest : json_true();
    json_object_foreach (f->patterns, pattern, schema) {
        bool matches;
        TRY(pattern_matches(c, pattern, name, &matches));
        if (matches) *out = json_true();
    }
    return FATHOM_OK;
}

/* The automaton of propertyNames. */
static fathom_err build_names(struct schema_compiler *c, const struct flat *f, struct dfa *out)
{
    *out = (struct dfa){0};
    if (!f->names) return FATHOM_OK;
    json_t *all = json_pack("{s:O,s:s}", "allOf", f->names, "type", "string");
    if (!all) return FATHOM_ENOMEM;
    size_t mark = schema_enter(c, "propertyNames");
    fathom_err err = string_build_schema(c, all, out);
    if (!err) schema_leave(c, mark);
    json_decref(all);
    return err;
}

static fathom_err collect(struct schema_compiler *c, struct flat *f, struct members *m,
                          json_t *given, const struct dfa *names)
{
    const char *name;
    json_t *schema;
    json_object_foreach (f->properties, name, schema) {
        TRY(add_member(c, f, m, name, schema, names));
    }
    for (size_t i = 0; i < json_array_size(f->required); i++) {
        name = json_string_value(json_array_get(f->required, i));
        bool known = json_object_get(f->properties, name) != NULL;
        for (size_t k = 0; k < m->n && !known; k++) known = strcmp(m->list[k].name, name) == 0;
        if (known) continue;
        TRY(rest_of(c, f, name, given, &schema));
        TRY(add_member(c, f, m, name, schema, names));
    }
    return FATHOM_OK;
}

fathom_err members_collect(struct schema_compiler *c, struct flat *f, struct members *out)
{
    struct dfa names;
    json_t *given = f->additional ? f->additional : f->unevaluated;
    size_t n = json_object_size(f->properties) + json_array_size(f->required) + 1;
    *out = (struct members){.rest = given};
    if (n > SCHEMA_PROPERTIES_MAX + 1) {
        FAIL(c->d, FATHOM_ELIMIT, "schema %s: %zu properties, at most %d are possible",
             buf_str(&c->path), n - 1, SCHEMA_PROPERTIES_MAX);
    }
    bool closed = (f->properties || f->patterns) && !c->b->options.open_objects;
    if (!given && !closed) out->rest = json_true();
    if (json_is_false(out->rest)) out->rest = NULL;
    out->list = mem_calloc(n, sizeof *out->list);
    if (!out->list) return FATHOM_ENOMEM;
    fathom_err err = build_names(c, f, &names);
    if (!err) err = collect(c, f, out, given, f->names ? &names : NULL);
    dfa_free(&names);
    if (err) members_free(out);
    return err;
}

/* ---- names of others -------------------------------------------------------------------- */

struct other {
    struct dfa keys;
    json_t *schema; /* borrowed */
};

/* Members that are not named: those of each pattern, then the rest. */
struct others {
    struct other *list;
    size_t n;
    bool any_key; /* the last one has every string for a key; its automaton is empty */
};

static void others_free(struct others *o)
{
    for (size_t i = 0; i < o->n; i++) dfa_free(&o->list[i].keys);
    mem_free(o->list);
    *o = (struct others){0};
}

/* All texts but the names that members have, or must not have. */
static fathom_err build_unnamed(const struct flat *f, const struct members *m, struct dfa *out)
{
    struct nfa n;
    struct dfa named;
    nfa_init(&n, SCHEMA_STATES_MAX * 8);
    uint32_t start = nfa_state(&n), end = nfa_state(&n);
    size_t n_property = json_object_size(f->properties);
    void *iter = json_object_iter(f->properties);
    for (size_t i = 0; i < n_property + m->n; i++) {
        const char *name =
            i < n_property ? json_object_iter_key(iter) : m->list[i - n_property].name;
        if (i < n_property) iter = json_object_iter_next(f->properties, iter);
        uint32_t at = start;
        for (size_t k = 0, len, size = strlen(name); k < size && !n.err; k += len) {
            int32_t cp = utf8_next(name + k, size - k, &len);
            uint32_t next = nfa_state(&n);
            if (cp >= 0) nfa_edge(&n, at, (uint32_t)cp, (uint32_t)cp, next);
            at = next;
        }
        nfa_link(&n, at, NFA_EPSILON, end);
    }
    fathom_err err = n.err;
    if (!err) err = dfa_build(&named, &n, start, end, DFA_WHOLE, SCHEMA_STATES_MAX, NULL);
    nfa_free(&n);
    TRY(err);
    err = dfa_negate(out, &named);
    dfa_free(&named);
    return err;
}

/* *d becomes its part in (or, when negated, outside) `other`. */
static fathom_err narrow(struct dfa *d, const struct dfa *other, bool negated)
{
    struct dfa outside = {0}, both;
    if (negated) TRY(dfa_negate(&outside, other));
    fathom_err err = dfa_intersect(&both, d, negated ? &outside : other, SCHEMA_STATES_MAX);
    dfa_free(&outside);
    TRY(err);
    dfa_free(d);
    *d = both;
    return FATHOM_OK;
}

static fathom_err check_disjoint(struct schema_compiler *c, const struct others *o,
                                 const struct dfa *keys, const char *pattern)
{
    for (size_t i = 0; i < o->n; i++) {
        struct dfa both;
        TRY(dfa_intersect(&both, keys, &o->list[i].keys, SCHEMA_STATES_MAX));
        bool empty = dfa_is_empty(&both);
        dfa_free(&both);
        if (empty) continue;
        FAIL(c->d, FATHOM_EUNSUPPORTED,
             "schema %s: \"patternProperties\": \"%s\" has names in common with another pattern, "
             "which is not supported",
             buf_str(&c->path), pattern);
    }
    return FATHOM_OK;
}

/* The keys of each pattern; *left becomes the names that no pattern has. */
static fathom_err add_patterns(struct schema_compiler *c, const struct flat *f, struct others *o,
                               struct dfa *left)
{
    const char *pattern;
    json_t *schema;
    json_object_foreach (f->patterns, pattern, schema) {
        struct other *other = &o->list[o->n];
        struct dfa all;
        fathom_err err = pattern_build(c, pattern, &all);
        if (!err) err = check_disjoint(c, o, &all, pattern);
        if (!err) err = dfa_copy(&other->keys, left);
        if (!err) err = narrow(&other->keys, &all, false);
        if (!err) err = narrow(left, &all, true);
        dfa_free(&all);
        if (err) dfa_free(&other->keys);
        TRY(err);
        other->schema = schema;
        o->n++;
    }
    return FATHOM_OK;
}

static fathom_err others_collect(struct schema_compiler *c, const struct flat *f,
                                 const struct members *m, struct others *o)
{
    struct dfa left = {0}, names = {0};
    size_t n = json_object_size(f->patterns) + 1;
    *o = (struct others){.list = mem_calloc(n, sizeof *o->list)};
    if (!o->list) return FATHOM_ENOMEM;
    if (!f->patterns && !m->rest) return FATHOM_OK;
    if (!f->patterns && !f->names && m->n == 0 && !f->properties) {
        o->any_key = true;
        o->list[o->n++].schema = m->rest;
        return FATHOM_OK;
    }
    fathom_err err = build_unnamed(f, m, &left);
    if (!err && f->names) {
        err = build_names(c, f, &names);
        if (!err) err = narrow(&left, &names, false);
        dfa_free(&names);
    }
    if (!err) err = add_patterns(c, f, o, &left);
    if (!err && m->rest) {
        o->list[o->n++] = (struct other){left, m->rest};
    } else {
        dfa_free(&left);
    }
    if (err) others_free(o);
    return err;
}

/* ---- drawing ---------------------------------------------------------------------------- */

struct drawing {
    struct schema_compiler *c;
    const struct members *m;
    const struct others *others;
    uint32_t min, max; /* members; 0 and UINT32_MAX: not counted */
    uint32_t n_layer;
    uint32_t *member; /* [(n + 1) * n_layer] */
    uint32_t *after;  /* likewise; after[0] is not used */
    uint32_t close;
    uint32_t others_rule; /* + 1, when there are layers */
};

/* The layer after one more member; false when there may be no more. */
static bool next_layer(const struct drawing *g, uint32_t layer, uint32_t *out)
{
    *out = layer;
    if (g->n_layer == 1) return true;
    if (layer == g->max) return false;
    if (layer + 1 < g->n_layer) *out = layer + 1;
    return true;
}

static fathom_err put_value(struct drawing *g, uint32_t key, const char *name, const json_t *schema,
                            uint32_t to)
{
    struct grammar_builder *b = g->c->b;
    uint32_t end, at = grammar_put_text(b, key, ":", 1);
    size_t mark = schema_enter(g->c, name ? "properties" : "additionalProperties");
    if (name) (void)schema_enter(g->c, name);
    TRY(schema_put(g->c, grammar_put_space(b, at, GRAMMAR_AFTER_COLON), schema, &end));
    schema_leave(g->c, mark);
    grammar_join(b, end, to);
    return FATHOM_OK;
}

static fathom_err put_member(struct drawing *g, uint32_t from, const struct member *m, uint32_t to)
{
    struct buf key = {0};
    TRY(json_write_string(&key, m->name, m->n_name));
    uint32_t at = grammar_put_text(g->c->b, from, buf_str(&key), key.len);
    buf_free(&key);
    return put_value(g, at, m->name, m->schema, to);
}

static fathom_err put_others(struct drawing *g, uint32_t from, uint32_t to)
{
    struct grammar_builder *b = g->c->b;
    for (size_t i = 0; i < g->others->n; i++) {
        const struct other *o = &g->others->list[i];
        bool any = g->others->any_key && i + 1 == g->others->n;
        if (!any && dfa_is_empty(&o->keys)) continue;
        uint32_t key = any ? grammar_put_string(b, from, 0, UINT32_MAX)
                           : grammar_put_string_dfa(b, from, &o->keys);
        TRY(put_value(g, key, NULL, o->schema, to));
    }
    return FATHOM_OK;
}

/* The same as a rule, when it is drawn more than once. */
static fathom_err put_others_again(struct drawing *g, uint32_t from, uint32_t to)
{
    struct grammar_builder *b = g->c->b;
    if (g->others->n == 0) return FATHOM_OK;
    if (g->n_layer == 1) return put_others(g, from, to);
    if (!g->others_rule) {
        uint32_t rule = grammar_add_rule(b);
        TRY(put_others(g, grammar_rule_begin(b, rule), grammar_rule_end(b, rule)));
        g->others_rule = rule + 1;
    }
    grammar_join(b, grammar_put_rule(b, from, g->others_rule - 1), to);
    return FATHOM_OK;
}

static fathom_err draw_layer(struct drawing *g, uint32_t layer)
{
    struct grammar_builder *b = g->c->b;
    size_t n = g->m->n;
    uint32_t next;
    bool more = next_layer(g, layer, &next), may_end = true;
    for (size_t i = n + 1; i-- > 0;) {
        uint32_t member = g->member[i * g->n_layer + layer];
        uint32_t after = g->after[i * g->n_layer + layer];
        const struct member *m = i < n ? &g->m->list[i] : NULL;
        if (m && !m->required) grammar_join(b, member, g->member[(i + 1) * g->n_layer + layer]);
        if (m && m->required) may_end = false;
        if (more && m) TRY(put_member(g, member, m, g->after[(i + 1) * g->n_layer + next]));
        if (more && !m) TRY(put_others_again(g, member, g->after[i * g->n_layer + next]));
        uint32_t comma = grammar_put_text(b, after, ",", 1);
        grammar_join(b, grammar_put_space(b, comma, GRAMMAR_AFTER_COMMA), member);
        if (may_end && (g->n_layer == 1 || layer >= g->min)) grammar_join(b, after, g->close);
    }
    return FATHOM_OK;
}

static fathom_err draw(struct drawing *g, uint32_t from, uint32_t to)
{
    struct grammar_builder *b = g->c->b;
    size_t n_required = 0, n_state = (g->m->n + 1) * g->n_layer;
    for (size_t i = 0; i < g->m->n; i++) n_required += g->m->list[i].required;
    for (size_t i = 0; i < n_state; i++) {
        g->member[i] = grammar_add_state(b);
        g->after[i] = grammar_add_state(b);
    }
    uint32_t open = grammar_put_text(b, from, "{", 1);
    g->close = grammar_add_state(b);
    if (n_required == 0 && g->min == 0) {
        grammar_join(b, grammar_put_text(b, open, "}", 1), to);
    }
    grammar_join(b, grammar_put_space(b, open, GRAMMAR_IN_BRACKET), g->member[0]);
    for (uint32_t layer = 0; layer < g->n_layer; layer++) TRY(draw_layer(g, layer));
    uint32_t end = grammar_put_space(b, g->close, GRAMMAR_IN_BRACKET);
    grammar_join(b, grammar_put_text(b, end, "}", 1), to);
    return FATHOM_OK;
}

/* How many layers: none are counted when the members themselves keep the bounds. */
static fathom_err plan_layers(struct drawing *g, const struct flat *f)
{
    size_t n_required = 0, n = g->m->n;
    for (size_t i = 0; i < n; i++) n_required += g->m->list[i].required;
    g->min = f->min_properties > n_required ? f->min_properties : 0;
    g->max = g->others->n == 0 && f->max_properties >= n ? UINT32_MAX : f->max_properties;
    bool counted = g->min > 0 || g->max != UINT32_MAX;
    uint32_t highest = g->max != UINT32_MAX ? g->max : g->min;
    if (counted && (n + 1) * ((uint64_t)highest + 1) > SCHEMA_COUNT_MAX) {
        FAIL(g->c->d, FATHOM_ELIMIT,
             "schema %s: %zu properties with minProperties %u and maxProperties %u, together too "
             "many to be counted",
             buf_str(&g->c->path), n, f->min_properties, f->max_properties);
    }
    g->n_layer = counted ? highest + 1 : 1;
    return FATHOM_OK;
}

static fathom_err draw_object(struct drawing *g, const struct flat *f, uint32_t from, uint32_t to)
{
    fathom_err err = plan_layers(g, f);
    TRY(err);
    size_t n_state = (g->m->n + 1) * g->n_layer;
    g->member = mem_alloc_array(n_state, sizeof *g->member);
    g->after = mem_alloc_array(n_state, sizeof *g->after);
    err = g->member && g->after ? draw(g, from, to) : FATHOM_ENOMEM;
    mem_free(g->member);
    mem_free(g->after);
    return err;
}

fathom_err object_put(struct schema_compiler *c, uint32_t from, struct flat *f, uint32_t to)
{
    struct members m;
    struct others o;
    if (f->min_properties > f->max_properties) return FATHOM_OK;
    TRY(members_collect(c, f, &m));
    fathom_err err = f->never ? FATHOM_OK : others_collect(c, f, &m, &o);
    if (!err && !f->never) {
        struct drawing g = {.c = c, .m = &m, .others = &o};
        if (g.others->n == 0 && m.n == 0 && f->min_properties > 0) {
            f->never = true;
        } else {
            err = draw_object(&g, f, from, to);
        }
        others_free(&o);
    }
    members_free(&m);
    return err;
}
