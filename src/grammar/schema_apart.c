/* schema_apart.c - whether no output of one schema is a value of another: alternatives of "oneOf"
 *
 * The answer "yes" is proved, by types, values, bounds, texts and required members. The answer "no"
 * only means that no proof was found. The first schema stands for the outputs drawn from it, the
 * second one for all of its values. Therefore the second one is read widely: without its "not" and
 * "if", and "oneOf" as "anyOf". Either may have further schemas joined to it; that only takes
 * values away.
 */
#include <string.h>

#include "base/fail.h"
#include "base/json.h"
#include "grammar/schema_int.h"

enum { DEPTH_MAX = 4, COMPARED_MAX = 64, ABSENT_MAX = 3 };

static fathom_err schemas_apart(struct schema_compiler *c, const json_t *a, const json_t *b,
                                int depth, bool *out);

/* The types that constraints allow; where they list values, only types of these. */
static unsigned types_of(const struct schema_flat *f)
{
    unsigned types = 0;
    if (!f->values) return f->types;
    for (size_t i = 0; i < json_array_size(f->values); i++) {
        types |= schema_type_of(json_array_get(f->values, i));
    }
    return types & f->types;
}

static bool has_format(const struct schema_flat *f)
{
    for (size_t i = 0; i < json_array_size(f->string_rules); i++) {
        if (json_object_get(json_array_get(f->string_rules, i), "format")) return true;
    }
    return false;
}

/* Whether none of the values that one lists is allowed by the other. Formats are enforced more
 * narrowly than they are meant, and alternatives may be: a value that these refuse may be a value
 * all the same, so nothing is proved where there are any. */
static fathom_err values_apart(struct schema_compiler *c, const struct schema_flat *a,
                               const struct schema_flat *b, bool *out)
{
    const struct schema_flat *one = a->values ? a : b, *other = a->values ? b : a;
    *out = !has_format(other) && !other->groups &&
           json_array_size(one->values) <= COMPARED_MAX * COMPARED_MAX;
    for (size_t i = 0; i < json_array_size(one->values) && *out; i++) {
        bool allowed;
        bool before = c->wide;
        c->wide = other == b;
        fathom_err err = value_allowed(c, other, json_array_get(one->values, i), &allowed);
        c->wide = before;
        TRY(err);
        *out = !allowed;
    }
    return FATHOM_OK;
}

static fathom_err numbers_apart(struct schema_compiler *c, const struct schema_flat *a,
                                const struct schema_flat *b, bool *out)
{
    struct schema_flat both;
    struct dfa d;
    *out = false;
    if (!a->number_rules || !b->number_rules) return FATHOM_OK;
    schema_flat_init(&both);
    both.number_rules = json_copy_level(a->number_rules);
    if (!both.number_rules) return FATHOM_ENOMEM;
    fathom_err err =
        json_array_extend(both.number_rules, b->number_rules) ? FATHOM_ENOMEM : FATHOM_OK;
    if (!err) err = number_build(c, &both, false, &d);
    if (!err) {
        *out = dfa_is_empty(&d);
        dfa_free(&d);
    }
    schema_flat_free(&both);
    return err;
}

static fathom_err strings_apart(struct schema_compiler *c, const struct schema_flat *a,
                                const struct schema_flat *b, bool *out)
{
    struct schema_flat both;
    struct dfa d;
    *out = a->min_length > b->max_length || b->min_length > a->max_length;
    if (*out || !a->string_rules || !b->string_rules) return FATHOM_OK;
    schema_flat_init(&both);
    both.string_rules = json_copy_level(a->string_rules);
    fathom_err err = both.string_rules ? FATHOM_OK : FATHOM_ENOMEM;
    for (size_t i = 0; i < json_array_size(b->string_rules) && !err; i++) {
        json_t *rule = json_array_get(b->string_rules, i);
        if (json_object_get(rule, "format")) continue;
        if (json_array_append(both.string_rules, rule)) err = FATHOM_ENOMEM;
    }
    if (!err) err = schema_build_string(c, &both, &d);
    if (!err) {
        *out = dfa_is_empty(&d);
        dfa_free(&d);
    }
    schema_flat_free(&both);
    return err;
}

static fathom_err arrays_apart(struct schema_compiler *c, const struct schema_flat *a,
                               const struct schema_flat *b, int depth, bool *out)
{
    *out = a->min_items > b->max_items || b->min_items > a->max_items;
    uint32_t least = a->min_items > b->min_items ? a->min_items : b->min_items;
    if (*out || least == 0) return FATHOM_OK;
    json_t *x = NULL, *y = NULL;
    fathom_err err = schema_flat_item(a, 0, &x);
    if (!err) err = schema_flat_item(b, 0, &y);
    if (!err) err = schemas_apart(c, x, y, depth + 1, out);
    json_decref(x);
    json_decref(y);
    return err;
}

/* ---- objects ---------------------------------------------------------------------------- */

static bool requires(const struct schema_flat *f, const char *name)
{
    for (size_t i = 0; i < json_array_size(f->required); i++) {
        if (strcmp(json_string_value(json_array_get(f->required, i)), name) == 0) return true;
    }
    return false;
}

/* The schema that a member of this name must meet; NULL: none is known. With patterns, only
 * "properties" is looked at; with alternatives, "unevaluatedProperties" is not. */
static const json_t *member_of(const struct schema_flat *f, const char *name)
{
    const json_t *own = json_object_get(f->properties, name);
    if (own || f->patterns) return own;
    if (f->additional) return f->additional;
    return f->groups ? NULL : f->unevaluated;
}

/* Whether an output of f never has a member that is neither named nor required. */
static bool is_closed(const struct schema_compiler *c, const struct schema_flat *f)
{
    if (f->additional || f->unevaluated || f->groups || f->patterns) return false;
    return f->properties && !c->b->options.open_objects;
}

/* Whether no member of this name can be a value of both schemas; every value of both has one. */
static fathom_err member_apart(struct schema_compiler *c, const struct schema_flat *a,
                               const struct schema_flat *b, const char *name, int depth, bool *out)
{
    const json_t *demand_a = json_object_get(a->demands, name);
    const json_t *demand_b = json_object_get(b->demands, name);
    const json_t *x = member_of(a, name), *y = member_of(b, name);
    *out =
        json_is_false(x) || json_is_false(y) || json_is_false(demand_a) || json_is_false(demand_b);
    const json_t *left[] = {x, demand_a}, *right[] = {y, demand_b};
    for (int i = 0; i < 4 && !*out; i++) {
        const json_t *l = left[i / 2], *r = right[i % 2];
        if (l && r) TRY(schemas_apart(c, l, r, depth + 1, out));
    }
    return FATHOM_OK;
}

static fathom_err objects_apart(struct schema_compiler *c, const struct schema_flat *a,
                                const struct schema_flat *b, int depth, bool *out)
{
    *out = a->min_properties > b->max_properties || b->min_properties > a->max_properties;
    size_t n = json_array_size(a->required), m = json_array_size(b->required);
    for (size_t i = 0; i < n + m && !*out; i++) {
        const json_t *name =
            i < n ? json_array_get(a->required, i) : json_array_get(b->required, i - n);
        TRY(schema_spend(c, UNITS_KEYWORD));
        TRY(member_apart(c, a, b, json_string_value(name), depth, out));
    }
    return FATHOM_OK;
}

/* ---- all types -------------------------------------------------------------------------- */

static fathom_err flats_apart(struct schema_compiler *c, const struct schema_flat *a,
                              const struct schema_flat *b, int depth, bool *out)
{
    unsigned types = types_of(a) & types_of(b);
    *out = a->never || b->never || types == 0;
    if (*out || depth == DEPTH_MAX) return FATHOM_OK;
    if (a->values || b->values) return values_apart(c, a, b, out);
    if (types & (SCHEMA_TYPE_NULL | SCHEMA_TYPE_BOOLEAN)) return FATHOM_OK;
    *out = true;
    if (types & (SCHEMA_TYPE_NUMBER | SCHEMA_TYPE_INTEGER)) TRY(numbers_apart(c, a, b, out));
    if (*out && types & SCHEMA_TYPE_STRING) TRY(strings_apart(c, a, b, out));
    if (*out && types & SCHEMA_TYPE_ARRAY) TRY(arrays_apart(c, a, b, depth, out));
    if (*out && types & SCHEMA_TYPE_OBJECT) TRY(objects_apart(c, a, b, depth, out));
    return FATHOM_OK;
}

/* Alternatives of two schemas, of which each of one is compared with each of the other. */
struct pair {
    const struct schema_flat *a; /* the alternative of the first schema that is visited */
    const struct schema_flat *b; /* the second schema, with its alternatives */
    int depth;
    bool apart;
    uint32_t n;
};

static fathom_err compare_right(struct schema_compiler *c, struct schema_flat *f, void *arg)
{
    struct pair *p = arg;
    if (!p->apart) return FATHOM_OK;
    if (++p->n > COMPARED_MAX) {
        p->apart = false;
        return FATHOM_OK;
    }
    return flats_apart(c, p->a, f, p->depth, &p->apart);
}

static fathom_err compare_left(struct schema_compiler *c, struct schema_flat *f, void *arg)
{
    struct pair *p = arg;
    if (!p->apart) return FATHOM_OK;
    p->a = f;
    c->wide = true;
    fathom_err err = schema_flat_each(c, p->b, compare_right, p);
    c->wide = false;
    return err;
}

static uint64_t count_ways(const struct schema_flat *f)
{
    uint64_t n = 1;
    for (size_t i = 0; i < json_array_size(f->groups) && n <= COMPARED_MAX; i++) {
        n *= json_array_size(json_array_get(f->groups, i));
    }
    return n;
}

/* As flats_apart, and if that proves nothing, alternative by alternative, unless there are too
 * many.
 */
static fathom_err ways_apart(struct schema_compiler *c, const struct schema_flat *a,
                             const struct schema_flat *b, int depth, bool *out)
{
    uint32_t n_alternative = c->n_alternative;
    TRY(flats_apart(c, a, b, depth, out));
    if (*out || (!a->groups && !b->groups) || depth > 1) return FATHOM_OK;
    if (count_ways(a) * count_ways(b) > COMPARED_MAX) return FATHOM_OK;
    struct pair p = {.b = b, .depth = depth, .apart = true};
    bool before = c->wide;
    c->n_alternative = 0;
    c->wide = false;
    fathom_err err = schema_flat_each(c, a, compare_left, &p);
    c->wide = before;
    TRY(err);
    c->n_alternative = n_alternative;
    *out = p.apart;
    return FATHOM_OK;
}

/* Reads the first schema as it is drawn, the second one widely. */
static fathom_err merge_both(struct schema_compiler *c, struct schema_flat *x, const json_t *a,
                             struct schema_flat *y, const json_t *b)
{
    bool before = c->wide;
    c->wide = false;
    fathom_err err = schema_flat_merge(c, x, a);
    c->wide = true;
    if (!err) err = schema_flat_merge(c, y, b);
    c->wide = before;
    return err;
}

static fathom_err schemas_apart(struct schema_compiler *c, const json_t *a, const json_t *b,
                                int depth, bool *out)
{
    struct schema_flat x, y;
    *out = false;
    if (depth >= DEPTH_MAX || c->depth + 2 >= SCHEMA_REF_DEPTH_MAX) return FATHOM_OK;
    schema_flat_init(&x);
    schema_flat_init(&y);
    c->depth++;
    fathom_err err = merge_both(c, &x, a, &y, b);
    if (!err) err = ways_apart(c, &x, &y, depth, out);
    c->depth--;
    schema_flat_free(&x);
    schema_flat_free(&y);
    return err;
}

/* x is closed and does not have some member that y requires. Then *out demands that one of the
 * members that y requires, and x does not, is absent. */
static fathom_err ask_for_absence(const struct schema_flat *x, const struct schema_flat *y,
                                  json_t **out)
{
    bool lacks = false;
    json_t *ways = json_array();
    fathom_err err = ways ? FATHOM_OK : FATHOM_ENOMEM;
    for (size_t i = 0; i < json_array_size(y->required) && i < ABSENT_MAX && !err; i++) {
        const char *name = json_string_value(json_array_get(y->required, i));
        if (requires(x, name)) continue;
        lacks |= !json_object_get(x->properties, name);
        json_t *way = json_pack("{s:{s:b}}", WORD_MEMBERS, name, 0);
        if (json_array_append_new(ways, way)) err = FATHOM_ENOMEM;
    }
    if (!err && lacks) *out = json_pack("{s:s,s:O}", "type", "object", "anyOf", ways);
    if (!err && lacks && !*out) err = FATHOM_ENOMEM;
    json_decref(ways);
    return err;
}

fathom_err schema_tell_apart(struct schema_compiler *c, const json_t *a, const json_t *b,
                             json_t **out)
{
    const char *name;
    json_t *own;
    struct schema_flat x, y;
    bool apart = false;
    *out = NULL;
    schema_flat_init(&x);
    schema_flat_init(&y);
    fathom_err err = merge_both(c, &x, a, &y, b);
    if (!err && is_closed(c, &x)) err = ask_for_absence(&x, &y, out);
    json_object_foreach (x.properties, name, own) {
        const json_t *other = json_object_get(y.properties, name);
        if (err || *out || !other || json_is_false(own)) continue;
        err = schemas_apart(c, own, other, 1, &apart);
        if (!err && apart) *out = json_pack("{s:s,s:[s]}", "type", "object", "required", name);
        if (!err && apart && !*out) err = FATHOM_ENOMEM;
    }
    schema_flat_free(&x);
    schema_flat_free(&y);
    return err;
}

fathom_err schema_apart(struct schema_compiler *c, const json_t *a, const json_t *b, bool *out)
{
    return schemas_apart(c, a, b, 0, out);
}
