/* schema_merge.c - a schema with its $ref and allOf to one flat set of constraints */
#include <stddef.h>
#include <string.h>

#include "base/fail.h"
#include "base/json.h"
#include "grammar/schema_int.h"

/* A keyword where it stands. */
struct site {
    const struct keyword *k;
    const json_t *value;
    const json_t *schema; /* that has the keyword */
};

/* What a keyword asks of a value becomes part of f. */
typedef fathom_err merge_keyword(struct schema_compiler *c, struct schema_flat *f,
                                 const struct site *at);

struct keyword {
    const char *name;
    merge_keyword *merge; /* NULL: another function looks at it */
    unsigned touches;     /* the types that it speaks of */
    size_t count;         /* of merge_least and merge_most: offset in schema_flat of their number */
};

/* ---- small steps ------------------------------------------------------------------------ */

fathom_err schema_malformed(struct schema_compiler *c, const char *keyword, const json_t *value,
                            const char *needed)
{
    FAIL(c->d, FATHOM_EINVAL, "schema %s: \"%s\" is %s, %s is needed", buf_str(&c->path), keyword,
         json_type_text(value), needed);
}

fathom_err schema_unsupported(struct schema_compiler *c, const char *keyword, const char *why)
{
    if (c->b->options.lenient) return FATHOM_OK;
    FAIL(c->d, FATHOM_EUNSUPPORTED, "schema %s: the keyword \"%s\" is not supported%s",
         buf_str(&c->path), keyword, why);
}

/* A string that a C string can stand for. */
static bool is_text(const json_t *value)
{
    const char *text = json_string_value(value);
    return text && strlen(text) == json_string_length(value);
}

bool schema_is(const json_t *value)
{
    return json_is_plain_object(value) || json_is_boolean(value);
}

/* Appends a value, which stays the caller's, to an array that may not exist yet. */
fathom_err schema_append(json_t **array, const json_t *value)
{
    if (!*array) *array = json_array();
    return *array && json_array_append(*array, (json_t *)value) == 0 ? FATHOM_OK : FATHOM_ENOMEM;
}

/* Whether a schema of other members or items forbids anything; NULL does not. */
static bool restricts(const json_t *additional)
{
    return additional && !json_is_true(additional);
}

/* Joins a schema to *to, so that both must hold. */
static fathom_err conjoin(struct schema_compiler *c, json_t **to, const json_t *schema)
{
    bool same;
    if (!schema || json_is_true(schema)) return FATHOM_OK;
    if (!*to || json_is_true(*to)) {
        json_decref(*to);
        *to = json_incref((json_t *)schema);
        return FATHOM_OK;
    }
    TRY(schema_spend(c, UNITS_VALUE));
    TRY(schema_same_value(c, *to, schema, &same));
    if (same) return FATHOM_OK;
    json_t *both = json_pack("{s:[O,O]}", "allOf", *to, schema);
    if (!both) return FATHOM_ENOMEM;
    json_decref(*to);
    *to = both;
    return FATHOM_OK;
}

static fathom_err read_count(struct schema_compiler *c, const struct site *at, uint32_t *out)
{
    double x = json_is_number(at->value) ? json_number_value(at->value) : -1;
    if (x < 0 || x > UINT32_MAX - 1 || x != (double)(uint32_t)x) {
        return schema_malformed(c, at->k->name, at->value, "a whole number of 0 or more");
    }
    *out = (uint32_t)x;
    return FATHOM_OK;
}

static fathom_err merge_least(struct schema_compiler *c, struct schema_flat *f,
                              const struct site *at)
{
    uint32_t n = 0, *count = (uint32_t *)((char *)f + at->k->count);
    TRY(read_count(c, at, &n));
    if (*count < n) *count = n;
    return FATHOM_OK;
}

static fathom_err merge_most(struct schema_compiler *c, struct schema_flat *f,
                             const struct site *at)
{
    uint32_t n = 0, *count = (uint32_t *)((char *)f + at->k->count);
    TRY(read_count(c, at, &n));
    if (*count > n) *count = n;
    return FATHOM_OK;
}

/* ---- references ------------------------------------------------------------------------- */

static fathom_err merge_ref(struct schema_compiler *c, struct schema_flat *f, const struct site *at)
{
    const json_t *target = NULL;
    TRY(schema_resolve(c, at->value, &target));
    return schema_flat_merge(c, f, target);
}

static fathom_err merge_all_of(struct schema_compiler *c, struct schema_flat *f,
                               const struct site *at)
{
    if (!json_is_array(at->value))
        return schema_malformed(c, "allOf", at->value, "an array of schemas");
    for (size_t i = 0; i < json_array_size(at->value); i++) {
        size_t mark = schema_enter(c, "allOf");
        (void)schema_enter_index(c, i);
        TRY(schema_flat_merge(c, f, json_array_get(at->value, i)));
        schema_leave(c, mark);
    }
    return FATHOM_OK;
}

static fathom_err merge_group(struct schema_compiler *c, struct schema_flat *f,
                              const struct site *at)
{
    if (json_array_size(at->value) == 0)
        return schema_malformed(c, "anyOf", at->value, "an array of schemas");
    return schema_append(&f->groups, at->value);
}

/* ---- all types -------------------------------------------------------------------------- */

static fathom_err read_type(struct schema_compiler *c, const json_t *value, unsigned *out)
{
    static const struct {
        const char *name;
        unsigned types;
    } names[] = {
        {"null", SCHEMA_TYPE_NULL},       {"boolean", SCHEMA_TYPE_BOOLEAN},
        {"integer", SCHEMA_TYPE_INTEGER}, {"number", SCHEMA_TYPE_NUMBER | SCHEMA_TYPE_INTEGER},
        {"string", SCHEMA_TYPE_STRING},   {"array", SCHEMA_TYPE_ARRAY},
        {"object", SCHEMA_TYPE_OBJECT}};
    const char *name = json_string_value(value);
    for (size_t i = 0; name && i < sizeof names / sizeof names[0]; i++) {
        if (strcmp(name, names[i].name) != 0) continue;
        *out |= names[i].types;
        return FATHOM_OK;
    }
    FAIL(c->d, FATHOM_EINVAL,
         "schema %s: \"type\" is %s%s%s, one of null, boolean, integer, number, string, array, "
         "object is needed",
         buf_str(&c->path), name ? "\"" : "", name ? name : json_type_text(value),
         name ? "\"" : "");
}

static fathom_err merge_type(struct schema_compiler *c, struct schema_flat *f,
                             const struct site *at)
{
    unsigned types = 0;
    if (json_is_array(at->value)) {
        for (size_t i = 0; i < json_array_size(at->value); i++) {
            TRY(read_type(c, json_array_get(at->value, i), &types));
        }
    } else {
        TRY(read_type(c, at->value, &types));
    }
    f->types &= types;
    return FATHOM_OK;
}

/* Keeps the values that are also in an array. */
static fathom_err keep_values(struct schema_compiler *c, struct schema_flat *f,
                              const json_t *values)
{
    json_t *kept = json_array();
    fathom_err err = kept ? FATHOM_OK : FATHOM_ENOMEM;
    for (size_t i = 0; i < json_array_size(values) && !err; i++) {
        json_t *value = json_array_get(values, i);
        bool known = !f->values;
        err = schema_spend(c, UNITS_VALUE);
        for (size_t k = 0; k < json_array_size(f->values) && !known && !err; k++) {
            err = schema_same_value(c, value, json_array_get(f->values, k), &known);
        }
        if (!err && known && json_array_append(kept, value)) err = FATHOM_ENOMEM;
    }
    if (err) {
        json_decref(kept);
        return err;
    }
    json_decref(f->values);
    f->values = kept;
    return FATHOM_OK;
}

static fathom_err merge_enum(struct schema_compiler *c, struct schema_flat *f,
                             const struct site *at)
{
    if (!json_is_array(at->value)) return schema_malformed(c, "enum", at->value, "an array");
    return keep_values(c, f, at->value);
}

static fathom_err merge_const(struct schema_compiler *c, struct schema_flat *f,
                              const struct site *at)
{
    json_t *values = json_pack("[O]", at->value);
    if (!values) return FATHOM_ENOMEM;
    fathom_err err = keep_values(c, f, values);
    json_decref(values);
    return err;
}

/* ---- numbers and strings ---------------------------------------------------------------- */

static fathom_err add_rule(json_t **rules, const char *keyword, const json_t *value)
{
    json_t *rule = json_pack("{s:O}", keyword, value);
    if (!rule) return FATHOM_ENOMEM;
    fathom_err err = schema_append(rules, rule);
    json_decref(rule);
    return err;
}

/* A bound. In the oldest drafts exclusiveMinimum is a flag beside minimum. */
static fathom_err merge_bound(struct schema_compiler *c, struct schema_flat *f,
                              const struct site *at)
{
    const char *name = at->k->name;
    const char *exclusive = strcmp(name, "minimum") == 0   ? "exclusiveMinimum"
                            : strcmp(name, "maximum") == 0 ? "exclusiveMaximum"
                                                           : NULL;
    if (!exclusive && json_is_boolean(at->value)) return FATHOM_OK;
    if (!json_is_number(at->value)) return schema_malformed(c, name, at->value, "a number");
    bool strict = exclusive && json_is_true(json_object_get(at->schema, exclusive));
    return add_rule(&f->number_rules, strict ? exclusive : name, at->value);
}

static fathom_err merge_multiple_of(struct schema_compiler *c, struct schema_flat *f,
                                    const struct site *at)
{
    if (!json_is_number(at->value) || !(json_number_value(at->value) > 0)) {
        return schema_malformed(c, "multipleOf", at->value, "a number above 0");
    }
    return add_rule(&f->number_rules, "multipleOf", at->value);
}

static fathom_err merge_pattern(struct schema_compiler *c, struct schema_flat *f,
                                const struct site *at)
{
    if (!is_text(at->value))
        return schema_malformed(c, "pattern", at->value, "a string without NUL");
    return add_rule(&f->string_rules, "pattern", at->value);
}

/* WORD_NOT_PATTERN or WORD_NOT_VALUES. */
static fathom_err merge_avoided(struct schema_compiler *c, struct schema_flat *f,
                                const struct site *at)
{
    bool pattern = strcmp(at->k->name, WORD_NOT_PATTERN) == 0;
    if (pattern ? !is_text(at->value) : !json_is_array(at->value)) {
        return schema_malformed(c, at->k->name, at->value, "another value");
    }
    return add_rule(&f->string_rules, at->k->name, at->value);
}

static fathom_err merge_format(struct schema_compiler *c, struct schema_flat *f,
                               const struct site *at)
{
    static const char *const numeric[] = {"int32", "int64", "float", "double"};
    const char *name = json_string_value(at->value);
    if (!name) return schema_malformed(c, "format", at->value, "a string");
    for (size_t i = 0; i < sizeof numeric / sizeof numeric[0]; i++) {
        if (strcmp(name, numeric[i]) == 0) return FATHOM_OK;
    }
    if (!format_is_known(name)) return FATHOM_OK; /* a name that nobody defines says nothing */
    f->touched |= SCHEMA_TYPE_STRING;
    return add_rule(&f->string_rules, "format", at->value);
}

/* ---- arrays ----------------------------------------------------------------------------- */

static fathom_err merge_unique(struct schema_compiler *c, struct schema_flat *f,
                               const struct site *at)
{
    if (!json_is_boolean(at->value))
        return schema_malformed(c, "uniqueItems", at->value, "true or false");
    f->unique |= json_is_true(at->value);
    return FATHOM_OK;
}

/* Joins the schemas of elements, and of those past the end of each array. */
static fathom_err merge_elements(struct schema_compiler *c, struct schema_flat *f,
                                 const json_t *prefix, const json_t *items)
{
    size_t n = json_array_size(f->prefix), m = json_array_size(prefix);
    TRY(schema_spend(c, (n + m) * 2 * UNITS_VALUE));
    json_t *joined = json_array();
    fathom_err err = joined ? FATHOM_OK : FATHOM_ENOMEM;
    for (size_t i = 0; i < (n > m ? n : m) && !err; i++) {
        const json_t *a = i < n ? json_array_get(f->prefix, i) : f->items;
        const json_t *b = i < m ? json_array_get(prefix, i) : items;
        json_t *both = json_true();
        err = conjoin(c, &both, a);
        if (!err) err = conjoin(c, &both, b);
        if (!err && json_array_append(joined, both)) err = FATHOM_ENOMEM;
        json_decref(both);
    }
    if (!err) err = conjoin(c, &f->items, items);
    if (!err && json_array_size(joined) > 0) {
        json_decref(f->prefix);
        f->prefix = json_incref(joined);
    }
    json_decref(joined);
    return err;
}

/* prefixItems with items, or in older drafts an array of items with additionalItems; called for
 * the first of these in a schema. */
static fathom_err merge_items(struct schema_compiler *c, struct schema_flat *f,
                              const struct site *at)
{
    const json_t *items = json_object_get(at->schema, "items");
    const json_t *prefix = json_object_get(at->schema, "prefixItems");
    if (json_is_array(items)) {
        prefix = items;
        items = json_object_get(at->schema, "additionalItems");
    }
    if (at->value != (prefix ? prefix : items)) return FATHOM_OK;
    if (prefix && !json_is_array(prefix)) {
        return schema_malformed(c, "prefixItems", prefix, "an array of schemas");
    }
    if (items && !schema_is(items)) return schema_malformed(c, "items", items, "a schema");
    f->elements.n_speaker++;
    TRY(merge_elements(c, f, prefix, items));
    if (json_is_true(items) && !f->items) f->items = json_true(); /* spoken of, all of them */
    return FATHOM_OK;
}

static fathom_err merge_unevaluated_items(struct schema_compiler *c, struct schema_flat *f,
                                          const struct site *at)
{
    if (!schema_is(at->value))
        return schema_malformed(c, "unevaluatedItems", at->value, "a schema");
    return conjoin(c, &f->unevaluated_items, at->value);
}

/* ---- objects ---------------------------------------------------------------------------- */

/* The schema that one side of a conjunction has for a name: that of its property, else that of
 * other names. Schemas of patterns are kept apart, so if a pattern matches the name there is none.
 * *out is borrowed; NULL: there is none. */
static fathom_err effective(struct schema_compiler *c, const json_t *properties,
                            const json_t *patterns, const json_t *additional, const char *name,
                            const json_t **out)
{
    const char *pattern;
    json_t *schema;
    *out = json_object_get(properties, name);
    if (*out || !additional) return FATHOM_OK;
    json_object_foreach ((json_t *)patterns, pattern, schema) {
        bool matches;
        TRY(pattern_matches(c, pattern, name, &matches));
        if (matches) return FATHOM_OK;
    }
    *out = additional;
    return FATHOM_OK;
}

static fathom_err join_members(struct schema_compiler *c, struct schema_flat *f,
                               const json_t *properties, const json_t *patterns,
                               const json_t *additional, const json_t *from, json_t *to)
{
    const char *name;
    json_t *ignored;
    TRY(schema_spend(c, json_object_size(from) * 4 * UNITS_VALUE));
    json_object_foreach ((json_t *)from, name, ignored) {
        const json_t *a, *b;
        if (json_object_get(to, name)) continue;
        TRY(effective(c, f->properties, f->patterns, f->additional, name, &a));
        TRY(effective(c, properties, patterns, additional, name, &b));
        json_t *both = json_true();
        fathom_err err = conjoin(c, &both, a);
        if (!err) err = conjoin(c, &both, b);
        if (err) json_decref(both);
        TRY(err);
        if (json_object_set_new(to, name, both)) return FATHOM_ENOMEM;
    }
    return FATHOM_OK;
}

static fathom_err join_patterns(struct schema_compiler *c, json_t **to, const json_t *patterns)
{
    const char *pattern;
    json_t *schema;
    if (!patterns) return FATHOM_OK;
    if (!*to) *to = json_object();
    if (!*to) return FATHOM_ENOMEM;
    json_object_foreach ((json_t *)patterns, pattern, schema) {
        json_t *both = json_true();
        fathom_err err = conjoin(c, &both, json_object_get(*to, pattern));
        if (!err) err = conjoin(c, &both, schema);
        if (err) json_decref(both);
        TRY(err);
        if (json_object_set_new(*to, pattern, both)) return FATHOM_ENOMEM;
    }
    return FATHOM_OK;
}

/* The schemas of a "properties" or "patternProperties". */
static fathom_err check_schemas(struct schema_compiler *c, const char *keyword,
                                const json_t *schemas)
{
    const char *name;
    json_t *schema;
    if (schemas && !json_is_plain_object(schemas)) {
        return schema_malformed(c, keyword, schemas, "an object of schemas");
    }
    json_object_foreach ((json_t *)schemas, name, schema) {
        if (schema_is(schema)) continue;
        size_t mark = schema_enter(c, keyword);
        fathom_err err = schema_malformed(c, name, schema, "a schema");
        schema_leave(c, mark);
        return err;
    }
    return FATHOM_OK;
}

/* properties, patternProperties and additionalProperties together, at the first of them. */
static fathom_err merge_members(struct schema_compiler *c, struct schema_flat *f,
                                const struct site *at)
{
    const json_t *properties = json_object_get(at->schema, "properties");
    const json_t *patterns = json_object_get(at->schema, "patternProperties");
    const json_t *additional = json_object_get(at->schema, "additionalProperties");
    if (at->value != (properties ? properties : patterns ? patterns : additional)) return FATHOM_OK;
    TRY(check_schemas(c, "properties", properties));
    TRY(check_schemas(c, "patternProperties", patterns));
    if (additional && !schema_is(additional)) {
        return schema_malformed(c, "additionalProperties", additional, "a schema");
    }
    bool apart =
        (!f->patterns || !restricts(additional)) && (!patterns || !restricts(f->additional));
    if (f->members.n_speaker++ > 0 && !apart) {
        TRY(schema_unsupported(c, "patternProperties",
                               " together with another \"additionalProperties\""));
    }
    json_t *joined = json_object();
    if (!joined) return FATHOM_ENOMEM;
    fathom_err err = join_members(c, f, properties, patterns, additional, f->properties, joined);
    if (!err) err = join_members(c, f, properties, patterns, additional, properties, joined);
    if (!err) err = join_patterns(c, &f->patterns, patterns);
    if (!err) {
        bool any = json_object_size(joined) > 0 || f->properties || properties;
        json_decref(f->properties);
        f->properties = any ? json_incref(joined) : NULL;
        if (additional && !f->additional) {
            f->additional = json_incref((json_t *)additional);
        } else {
            err = conjoin(c, &f->additional, additional);
        }
    }
    json_decref(joined);
    return err;
}

static fathom_err merge_unevaluated(struct schema_compiler *c, struct schema_flat *f,
                                    const struct site *at)
{
    if (!schema_is(at->value))
        return schema_malformed(c, "unevaluatedProperties", at->value, "a schema");
    return conjoin(c, &f->unevaluated, at->value);
}

static fathom_err merge_demands(struct schema_compiler *c, struct schema_flat *f,
                                const struct site *at)
{
    TRY(check_schemas(c, "members", at->value));
    return join_patterns(c, &f->demands, at->value);
}

static fathom_err merge_required(struct schema_compiler *c, struct schema_flat *f,
                                 const struct site *at)
{
    if (json_is_boolean(at->value)) return FATHOM_OK; /* a flag of the oldest drafts */
    if (!json_is_array(at->value))
        return schema_malformed(c, "required", at->value, "an array of names");
    TRY(schema_spend(c, json_array_size(at->value) * UNITS_VALUE));
    for (size_t i = 0; i < json_array_size(at->value); i++) {
        const json_t *name = json_array_get(at->value, i);
        if (!is_text(name)) return schema_malformed(c, "required", name, "a name");
        TRY(schema_append(&f->required, name));
    }
    return FATHOM_OK;
}

static fathom_err merge_names(struct schema_compiler *c, struct schema_flat *f,
                              const struct site *at)
{
    if (!schema_is(at->value)) return schema_malformed(c, "propertyNames", at->value, "a schema");
    return schema_append(&f->names, at->value);
}

static fathom_err merge_not(struct schema_compiler *c, struct schema_flat *f, const struct site *at)
{
    return c->wide ? FATHOM_OK : logic_merge_not(c, f, at->value);
}

static fathom_err merge_if(struct schema_compiler *c, struct schema_flat *f, const struct site *at)
{
    return c->wide ? FATHOM_OK : logic_merge_if(c, f, at->schema);
}

static fathom_err merge_dependencies(struct schema_compiler *c, struct schema_flat *f,
                                     const struct site *at)
{
    return logic_merge_dependencies(c, f, at->k->name, at->value);
}

static fathom_err merge_one_of(struct schema_compiler *c, struct schema_flat *f,
                               const struct site *at)
{
    bool plain = json_array_size(at->value) < 2 || c->b->options.lenient || c->wide;
    return plain ? merge_group(c, f, at) : logic_merge_one_of(c, f, at->value);
}

/* ---- keywords --------------------------------------------------------------------------- */

static fathom_err merge_unsupported(struct schema_compiler *c, struct schema_flat *f,
                                    const struct site *at)
{
    (void)f;
    return schema_unsupported(c, at->k->name, "");
}

/* The keywords that assert something. Any other says nothing about values. */
static const struct keyword keywords[] = {
    {"$ref", merge_ref, 0, 0},
    {"allOf", merge_all_of, 0, 0},
    {"anyOf", merge_group, 0, 0},
    {"oneOf", merge_one_of, 0, 0},
    {"type", merge_type, 0, 0},
    {"enum", merge_enum, 0, 0},
    {"const", merge_const, 0, 0},
    {"minimum", merge_bound, SCHEMA_TYPE_NUMBER | SCHEMA_TYPE_INTEGER, 0},
    {"maximum", merge_bound, SCHEMA_TYPE_NUMBER | SCHEMA_TYPE_INTEGER, 0},
    {"exclusiveMinimum", merge_bound, SCHEMA_TYPE_NUMBER | SCHEMA_TYPE_INTEGER, 0},
    {"exclusiveMaximum", merge_bound, SCHEMA_TYPE_NUMBER | SCHEMA_TYPE_INTEGER, 0},
    {"multipleOf", merge_multiple_of, SCHEMA_TYPE_NUMBER | SCHEMA_TYPE_INTEGER, 0},
    {"pattern", merge_pattern, SCHEMA_TYPE_STRING, 0},
    {"format", merge_format, 0, 0},
    {"minLength", merge_least, SCHEMA_TYPE_STRING, offsetof(struct schema_flat, min_length)},
    {"maxLength", merge_most, SCHEMA_TYPE_STRING, offsetof(struct schema_flat, max_length)},
    {"items", merge_items, SCHEMA_TYPE_ARRAY, 0},
    {"prefixItems", merge_items, SCHEMA_TYPE_ARRAY, 0},
    {"additionalItems", NULL, 0, 0}, /* merge_items looks at it */
    {"unevaluatedItems", merge_unevaluated_items, SCHEMA_TYPE_ARRAY, 0},
    {"minItems", merge_least, SCHEMA_TYPE_ARRAY, offsetof(struct schema_flat, min_items)},
    {"maxItems", merge_most, SCHEMA_TYPE_ARRAY, offsetof(struct schema_flat, max_items)},
    {"uniqueItems", merge_unique, SCHEMA_TYPE_ARRAY, 0},
    {"properties", merge_members, SCHEMA_TYPE_OBJECT, 0},
    {"patternProperties", merge_members, SCHEMA_TYPE_OBJECT, 0},
    {"additionalProperties", merge_members, SCHEMA_TYPE_OBJECT, 0},
    {"unevaluatedProperties", merge_unevaluated, SCHEMA_TYPE_OBJECT, 0},
    {"required", merge_required, SCHEMA_TYPE_OBJECT, 0},
    {"propertyNames", merge_names, SCHEMA_TYPE_OBJECT, 0},
    {"minProperties", merge_least, SCHEMA_TYPE_OBJECT,
     offsetof(struct schema_flat, min_properties)},
    {"maxProperties", merge_most, SCHEMA_TYPE_OBJECT, offsetof(struct schema_flat, max_properties)},
    {"nullable", NULL, 0, 0}, /* schema_flat_merge looks at it */
    {"not", merge_not, 0, 0},
    {"if", merge_if, 0, 0},
    {WORD_MEMBERS, merge_demands, SCHEMA_TYPE_OBJECT, 0},
    {WORD_NOT_PATTERN, merge_avoided, SCHEMA_TYPE_STRING, 0},
    {WORD_NOT_VALUES, merge_avoided, SCHEMA_TYPE_STRING, 0},
    {"contains", merge_unsupported, 0, 0},
    {"dependencies", merge_dependencies, SCHEMA_TYPE_OBJECT, 0},
    {"dependentRequired", merge_dependencies, SCHEMA_TYPE_OBJECT, 0},
    {"dependentSchemas", merge_dependencies, SCHEMA_TYPE_OBJECT, 0},
    {"extends", merge_unsupported, 0, 0},
    {"disallow", merge_unsupported, 0, 0},
    {"divisibleBy", merge_multiple_of, SCHEMA_TYPE_NUMBER | SCHEMA_TYPE_INTEGER, 0},
    {"$dynamicRef", merge_unsupported, 0, 0},
    {"$recursiveRef", merge_unsupported, 0, 0},
};

static const struct keyword *find_keyword(const char *name)
{
    for (size_t i = 0; i < sizeof keywords / sizeof keywords[0]; i++) {
        if (strcmp(keywords[i].name, name) == 0) return &keywords[i];
    }
    return NULL;
}

bool keyword_asserts(const char *name)
{
    return find_keyword(name) != NULL;
}

static fathom_err merge_keywords(struct schema_compiler *c, struct schema_flat *f,
                                 const json_t *schema)
{
    const char *name;
    json_t *value;
    json_object_foreach ((json_t *)schema, name, value) {
        TRY(schema_spend(c, UNITS_KEYWORD + strlen(name)));
        const struct keyword *k = find_keyword(name);
        if (!k) continue;
        f->touched |= k->touches;
        if (k->merge) TRY(k->merge(c, f, &(struct site){k, value, schema}));
    }
    return FATHOM_OK;
}

/* "nullable": the schema without it, or null. */
static fathom_err merge_nullable(struct schema_flat *f, const json_t *schema)
{
    json_t *plain = json_copy_level(schema);
    if (plain) (void)json_object_del(plain, "nullable");
    json_t *group = json_pack("[o,{s:s}]", plain, "type", "null");
    fathom_err err = group ? schema_append(&f->groups, group) : FATHOM_ENOMEM;
    json_decref(group);
    return err;
}

/* ---- scopes ----------------------------------------------------------------------------- */

/* An inner schema with the keyword has been merged; `before` is the scope as it was before that. */
static void note_inner(struct schema_scope *s, const struct schema_scope *before,
                       size_t n_group_before, size_t n_group)
{
    uint32_t n_seen = s->n_speaker - before->n_speaker;
    bool whole = before->n_speaker == 0 && n_group_before == 0;
    s->unlike |= s->inner && s->n_seen != n_seen;
    s->whole = whole && (!s->inner || s->whole);
    s->n_group = s->inner && s->n_group < n_group ? s->n_group : n_group;
    s->n_seen = n_seen;
    s->inner = true;
}

/* Everything has been joined, except for the alternatives. If the inner schema saw every speaker
 * and all alternatives stand within it, its keyword counts as one of the outer schema. */
static void settle_scope(struct schema_scope *s, size_t n_group)
{
    if (s->unlike || !s->whole) return;
    if (s->n_seen == s->n_speaker && s->n_group == n_group) s->inner = false;
}

static void settle_scopes(struct schema_flat *f)
{
    settle_scope(&f->members, json_array_size(f->groups));
    settle_scope(&f->elements, json_array_size(f->groups));
}

static bool is_blind(const struct schema_scope *s)
{
    return s->inner && (s->unlike || s->n_seen != s->n_speaker);
}

/* The keywords of a schema, which is inner when another one leads to it. */
static fathom_err merge_scoped(struct schema_compiler *c, struct schema_flat *f,
                               const json_t *schema)
{
    const struct schema_scope members = f->members, elements = f->elements;
    size_t n_group = json_array_size(f->groups);
    TRY(merge_keywords(c, f, schema));
    if (c->depth == 1) return FATHOM_OK;
    if (restricts(json_object_get(schema, "unevaluatedProperties"))) {
        note_inner(&f->members, &members, n_group, json_array_size(f->groups));
    }
    if (restricts(json_object_get(schema, "unevaluatedItems"))) {
        note_inner(&f->elements, &elements, n_group, json_array_size(f->groups));
    }
    return FATHOM_OK;
}

fathom_err schema_flat_merge(struct schema_compiler *c, struct schema_flat *f, const json_t *schema)
{
    fathom_err err;
    if (json_is_boolean(schema)) {
        f->never |= json_is_false(schema);
        return FATHOM_OK;
    }
    if (!json_is_plain_object(schema)) {
        FAIL(c->d, FATHOM_EINVAL, "schema %s is %s, an object, true or false is needed",
             buf_str(&c->path), json_type_text(schema));
    }
    if (c->depth == SCHEMA_REF_DEPTH_MAX) {
        FAIL(c->d, FATHOM_EINVAL,
             "schema %s: references and alternatives are nested deeper than %d, or in a circle",
             buf_str(&c->path), SCHEMA_REF_DEPTH_MAX);
    }
    c->depth++;
    if (json_is_true(json_object_get(schema, "nullable"))) {
        err = merge_nullable(f, schema);
    } else {
        err = merge_scoped(c, f, schema);
    }
    c->depth--;
    if (c->depth == 0) settle_scopes(f);
    return err;
}

/* ---- alternatives ----------------------------------------------------------------------- */

static fathom_err each_of(struct schema_compiler *c, const struct schema_flat *f,
                          const json_t *group, schema_visit *visit, void *arg)
{
    for (size_t i = 0; i < json_array_size(group); i++) {
        struct schema_flat copy;
        if (++c->n_alternative > SCHEMA_ALTERNATIVES_MAX) {
            FAIL(c->d, FATHOM_ELIMIT, "schema %s: more than %d alternatives in one place",
                 buf_str(&c->path), SCHEMA_ALTERNATIVES_MAX);
        }
        TRY(schema_flat_copy(c, &copy, f));
        size_t mark = schema_enter_index(c, i);
        fathom_err err = json_array_remove(copy.groups, 0) ? FATHOM_ENOMEM : FATHOM_OK;
        if (!err) err = schema_flat_merge(c, &copy, json_array_get(group, i));
        settle_scopes(&copy);
        if (!err) err = schema_flat_each(c, &copy, visit, arg);
        if (!err) schema_leave(c, mark);
        schema_flat_free(&copy);
        TRY(err);
    }
    return FATHOM_OK;
}

fathom_err schema_flat_each(struct schema_compiler *c, const struct schema_flat *f,
                            schema_visit *visit, void *arg)
{
    fathom_err err;
    if (f->never) return FATHOM_OK;
    if (json_array_size(f->groups) == 0) {
        struct schema_flat copy;
        if (is_blind(&f->members)) {
            TRY(schema_unsupported(c, "unevaluatedProperties",
                                   " in a schema that others are joined to"));
        }
        if (is_blind(&f->elements)) {
            TRY(schema_unsupported(c, "unevaluatedItems",
                                   " in a schema that others are joined to"));
        }
        TRY(schema_flat_copy(c, &copy, f));
        err = visit(c, &copy, arg);
        schema_flat_free(&copy);
        return err;
    }
    if (c->depth == SCHEMA_REF_DEPTH_MAX) {
        FAIL(c->d, FATHOM_EINVAL,
             "schema %s: references and alternatives are nested deeper than %d, or in a circle",
             buf_str(&c->path), SCHEMA_REF_DEPTH_MAX);
    }
    c->depth++;
    size_t mark = schema_enter(c, "anyOf");
    err = each_of(c, f, json_array_get(f->groups, 0), visit, arg);
    if (!err) schema_leave(c, mark);
    c->depth--;
    return err;
}
