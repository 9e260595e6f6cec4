/* schema_member.c - which members an object may have: the named ones, then others by their keys */
#include <string.h>

#include "base/fail.h"
#include "base/json.h"
#include "base/mem.h"
#include "grammar/schema_int.h"

/* ---- names ------------------------------------------------------------------------------ */

struct string_union {
    struct nfa n;
    uint32_t start, end;
    struct dfa first; /* the only one, if there is no other */
    uint32_t n_part;
};

/* Adds the strings of one alternative to a union. */
static fathom_err add_part(struct schema_compiler *c, struct schema_flat *f, void *arg)
{
    struct string_union *u = arg;
    struct dfa d;
    if (!(schema_types(f) & SCHEMA_TYPE_STRING)) return FATHOM_OK;
    TRY(schema_keep_allowed(c, f));
    TRY(schema_build_string(c, f, &d));
    dfa_put(&u->n, &d, u->start, u->end);
    if (u->n_part++ == 0) {
        u->first = d;
    } else {
        dfa_free(&d);
    }
    return u->n.err == FATHOM_ELIMIT ? string_too_large(c) : u->n.err;
}

/* Makes the automaton of all strings that a schema describes, in any of its alternatives. */
static fathom_err build_strings(struct schema_compiler *c, const json_t *schema, struct dfa *out)
{
    struct string_union u = {.n_part = 0};
    struct schema_flat f;
    *out = (struct dfa){0};
    nfa_init(&u.n, SCHEMA_STATES_MAX * 8, &c->b->budget);
    u.start = nfa_state(&u.n);
    u.end = nfa_state(&u.n);
    schema_flat_init(&f);
    fathom_err err = schema_flat_merge(c, &f, schema);
    if (!err) err = schema_flat_each(c, &f, add_part, &u);
    if (!err && u.n_part == 1) {
        *out = u.first;
        u.first = (struct dfa){0};
    } else if (!err) {
        err = u.n.err;
        if (!err) err = dfa_build(out, &u.n, u.start, u.end, DFA_WHOLE, SCHEMA_STATES_MAX, NULL);
    }
    schema_flat_free(&f);
    nfa_free(&u.n);
    dfa_free(&u.first);
    return err == FATHOM_ELIMIT ? string_too_large(c) : err;
}

/* Makes the automaton of "propertyNames"; empty if there is none. */
static fathom_err build_names(struct schema_compiler *c, const struct schema_flat *f,
                              struct dfa *out)
{
    *out = (struct dfa){0};
    if (!f->names) return FATHOM_OK;
    json_t *all = json_pack("{s:O,s:s}", "allOf", f->names, "type", "string");
    if (!all) return FATHOM_ENOMEM;
    size_t mark = schema_enter(c, "propertyNames");
    fathom_err err = build_strings(c, all, out);
    if (!err) schema_leave(c, mark);
    json_decref(all);
    return err;
}

/* ---- members ---------------------------------------------------------------------------- */

void schema_members_free(struct schema_members *m)
{
    for (size_t i = 0; i < m->n; i++) json_decref(m->list[i].schema);
    mem_free(m->list);
    *m = (struct schema_members){0};
}

static bool is_required(const struct schema_flat *f, const char *name)
{
    for (size_t i = 0; i < json_array_size(f->required); i++) {
        if (strcmp(json_string_value(json_array_get(f->required, i)), name) == 0) return true;
    }
    return false;
}

/* Appends a member with what patternProperties and propertyNames say of its name; leaves it out
 * when it cannot occur. */
static fathom_err add_member(struct schema_compiler *c, struct schema_flat *f,
                             struct schema_members *m, const char *name, const json_t *schema,
                             const struct dfa *names)
{
    const char *pattern;
    json_t *other;
    TRY(schema_spend(c, UNITS_KEYWORD + json_array_size(f->required) * UNITS_STEP));
    bool required = is_required(f, name);
    bool possible = !json_is_false(schema);
    if (names) TRY(schema_spend(c, strlen(name) * UNITS_VALUE));
    if (names) possible = possible && dfa_accepts_text(names, name, strlen(name));
    json_t *all = possible ? json_pack("[O]", schema) : NULL;
    if (possible && !all) return FATHOM_ENOMEM;
    json_object_foreach (f->patterns, pattern, other) {
        bool matches = false, same = false;
        fathom_err err = possible ? pattern_matches(c, pattern, name, &matches) : FATHOM_OK;
        if (!err && matches) err = schema_same_value(c, schema, other, &same);
        if (!err && matches && !same && json_array_append(all, other)) err = FATHOM_ENOMEM;
        if (err) json_decref(all);
        TRY(err);
        if (matches && json_is_false(other)) possible = false;
    }
    json_t *demand = json_object_get(f->demands, name);
    if (json_is_false(demand)) possible = false;
    if (possible && demand && json_array_append(all, demand)) {
        json_decref(all);
        return FATHOM_ENOMEM;
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
    m->list[m->n++] = (struct schema_member){name, strlen(name), joined, required};
    return FATHOM_OK;
}

/* The schema of a required name that is not in "properties": true if a pattern matches it, whose
 * schema is added later, else the one of other names. */
static fathom_err rest_of(struct schema_compiler *c, const struct schema_flat *f, const char *name,
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

static fathom_err collect(struct schema_compiler *c, struct schema_flat *f,
                          struct schema_members *m, json_t *given, const struct dfa *names)
{
    const char *name;
    json_t *schema;
    json_object_foreach (f->properties, name, schema) {
        TRY(add_member(c, f, m, name, schema, names));
    }
    for (size_t i = 0; i < json_array_size(f->required); i++) {
        name = json_string_value(json_array_get(f->required, i));
        bool known = json_object_get(f->properties, name) != NULL;
        TRY(schema_spend(c, UNITS_VALUE + m->n * UNITS_STEP));
        for (size_t k = 0; k < m->n && !known; k++) known = strcmp(m->list[k].name, name) == 0;
        if (known) continue;
        TRY(rest_of(c, f, name, given, &schema));
        TRY(add_member(c, f, m, name, schema, names));
    }
    return FATHOM_OK;
}

fathom_err schema_members_collect(struct schema_compiler *c, struct schema_flat *f,
                                  struct schema_members *out)
{
    struct dfa names;
    json_t *given = f->additional ? f->additional : f->unevaluated;
    size_t n = json_object_size(f->properties) + json_array_size(f->required) + 1;
    *out = (struct schema_members){.rest = given};
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
    if (err) schema_members_free(out);
    return err;
}

/* ---- names of others -------------------------------------------------------------------- */

void others_free(struct others *o)
{
    for (size_t i = 0; i < o->n; i++) dfa_free(&o->list[i].keys);
    mem_free(o->list);
    *o = (struct others){0};
}

/* Says of a construction with names that it has too many states. */
static fathom_err tell_names(struct schema_compiler *c, fathom_err err)
{
    if (err != FATHOM_ELIMIT) return err;
    FAIL(c->d, err,
         "schema %s: the names of members, with their patterns, need more than %d states; declare "
         "fewer, or forbid others by \"additionalProperties\": false",
         buf_str(&c->path), SCHEMA_STATES_MAX);
}

/* All texts but the names that members have, or must not have. */
static fathom_err build_unnamed(struct schema_compiler *c, const struct schema_flat *f,
                                const struct schema_members *m, struct dfa *out)
{
    struct nfa n;
    struct dfa named;
    nfa_init(&n, SCHEMA_STATES_MAX * 8, &c->b->budget);
    uint32_t start = nfa_state(&n), end = nfa_state(&n);
    size_t n_property = json_object_size(f->properties);
    void *iter = json_object_iter(f->properties);
    for (size_t i = 0; i < n_property + m->n; i++) {
        const char *name =
            i < n_property ? json_object_iter_key(iter) : m->list[i - n_property].name;
        if (i < n_property) iter = json_object_iter_next(f->properties, iter);
        nfa_link(&n, nfa_text(&n, start, name, strlen(name)), NFA_EPSILON, end);
    }
    const char *demanded;
    json_t *ignored;
    json_object_foreach (f->demands, demanded, ignored) {
        nfa_link(&n, nfa_text(&n, start, demanded, strlen(demanded)), NFA_EPSILON, end);
    }
    fathom_err err = n.err;
    if (!err) err = dfa_build(&named, &n, start, end, DFA_WHOLE, SCHEMA_STATES_MAX, NULL);
    nfa_free(&n);
    TRY(tell_names(c, err));
    err = dfa_negate(out, &named, &c->b->budget);
    dfa_free(&named);
    return err;
}

/* Removes from *d what `other` does not accept; negated: what it accepts. */
static fathom_err narrow(struct schema_compiler *c, struct dfa *d, const struct dfa *other,
                         bool negated)
{
    struct grammar_budget *budget = &c->b->budget;
    struct dfa outside = {0}, both;
    if (negated) TRY(dfa_negate(&outside, other, budget));
    fathom_err err = dfa_intersect(&both, d, negated ? &outside : other, SCHEMA_STATES_MAX, budget);
    dfa_free(&outside);
    TRY(tell_names(c, err));
    dfa_free(d);
    *d = both;
    return FATHOM_OK;
}

static fathom_err check_disjoint(struct schema_compiler *c, const struct others *o,
                                 const struct dfa *keys, const char *pattern)
{
    for (size_t i = 0; i < o->n; i++) {
        struct dfa both;
        TRY(tell_names(
            c, dfa_intersect(&both, keys, &o->list[i].keys, SCHEMA_STATES_MAX, &c->b->budget)));
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

/* Adds the keys of each pattern; of *left, the names that no pattern matches remain. */
static fathom_err add_patterns(struct schema_compiler *c, const struct schema_flat *f,
                               struct others *o, struct dfa *left)
{
    const char *pattern;
    json_t *schema;
    json_object_foreach (f->patterns, pattern, schema) {
        struct other *other = &o->list[o->n];
        struct dfa all;
        fathom_err err = pattern_build(c, pattern, &all);
        if (!err) err = check_disjoint(c, o, &all, pattern);
        if (!err) err = dfa_copy(&other->keys, left, &c->b->budget);
        if (!err) err = narrow(c, &other->keys, &all, false);
        if (!err) err = narrow(c, left, &all, true);
        dfa_free(&all);
        if (err) dfa_free(&other->keys);
        TRY(err);
        other->schema = schema;
        o->n++;
    }
    return FATHOM_OK;
}

fathom_err others_collect(struct schema_compiler *c, const struct schema_flat *f,
                          const struct schema_members *m, struct others *o)
{
    struct dfa left = {0}, names = {0};
    size_t n = json_object_size(f->patterns) + 1;
    *o = (struct others){.list = mem_calloc(n, sizeof *o->list)};
    if (!o->list) return FATHOM_ENOMEM;
    if (!f->patterns && !m->rest) return FATHOM_OK;
    if (!f->patterns && !f->names && m->n == 0 && !f->properties && !f->demands) {
        o->any_key = true;
        o->list[o->n++].schema = m->rest;
        return FATHOM_OK;
    }
    fathom_err err = build_unnamed(c, f, m, &left);
    if (!err && f->names) {
        err = build_names(c, f, &names);
        if (!err) err = narrow(c, &left, &names, false);
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
