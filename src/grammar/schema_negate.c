/* schema_negate.c - the values that a schema does not have: "not", "if", "oneOf", "dependencies"
 *
 * A negation is a list of schemas without "not", of which one must hold. It may have fewer values
 * than the whole complement, never more. So all that is written is valid, and what the list leaves
 * out is never written. Three keywords of our own say what no keyword of JSON schema says without
 * other effects:
 *
 *   WORD_MEMBERS      {name: schema}: a member of this name, if there is one, meets the schema. For
 *                     "unevaluatedProperties" this does not speak of the member
 *   WORD_NOT_PATTERN  a string in which the pattern does not occur
 *   WORD_NOT_VALUES   a string that is none of these
 */
#include <string.h>

#include "base/fail.h"
#include "base/json.h"
#include "grammar/schema_int.h"

/* The list under construction. */
struct negation {
    struct schema_compiler *c;
    json_t *list;
    bool exact;
};

static fathom_err negate(struct negation *n, const json_t *schema);

/* Appends an alternative, which is taken over. */
static fathom_err add(struct negation *n, json_t *alternative)
{
    if (!alternative || json_array_append_new(n->list, alternative)) return FATHOM_ENOMEM;
    return schema_spend(n->c, UNITS_VALUE);
}

/* Makes the negation of an inner schema one schema; NULL: it is not known to have any value. */
static fathom_err negate_apart(struct negation *n, const json_t *schema, json_t **out)
{
    struct negation inner = {n->c, json_array(), true};
    *out = NULL;
    fathom_err err = inner.list ? negate(&inner, schema) : FATHOM_ENOMEM;
    n->exact &= inner.exact;
    size_t size = json_array_size(inner.list);
    if (!err && size == 1) *out = json_incref(json_array_get(inner.list, 0));
    if (!err && size > 1) *out = json_pack("{s:O}", "anyOf", inner.list);
    if (!err && size > 0 && !*out) err = FATHOM_ENOMEM;
    json_decref(inner.list);
    return err;
}

/* Adds that none of the alternatives holds. */
static fathom_err negate_group(struct negation *n, const json_t *group)
{
    json_t *all = json_array();
    fathom_err err = all ? FATHOM_OK : FATHOM_ENOMEM;
    bool possible = json_array_size(group) > 0;
    for (size_t i = 0; i < json_array_size(group) && possible && !err; i++) {
        json_t *one;
        err = negate_apart(n, json_array_get(group, i), &one);
        possible = !err && one;
        if (one && json_array_append_new(all, one)) err = FATHOM_ENOMEM;
    }
    if (!err && possible) err = add(n, json_pack("{s:O}", "allOf", all));
    json_decref(all);
    return err;
}

/* ---- types and values ------------------------------------------------------------------- */

static const char *const type_names[] = {"null", "boolean", "number", "string", "array", "object"};
enum { N_TYPE = 6 };

static bool names_type(const json_t *type, const char *name)
{
    for (size_t i = 0; i < json_array_size(type); i++) {
        if (names_type(json_array_get(type, i), name)) return true;
    }
    return json_is_string(type) && strcmp(json_string_value(type), name) == 0;
}

/* Of what is not an "integer", numbers with a fraction are left out. */
static fathom_err negate_type(struct negation *n, const json_t *type)
{
    json_t *others = json_array();
    bool integer = names_type(type, "integer"), number = names_type(type, "number");
    if (!others) return FATHOM_ENOMEM;
    n->exact &= !integer || number;
    for (size_t i = 0; i < N_TYPE; i++) {
        bool named = i == 2 ? integer || number : names_type(type, type_names[i]);
        if (!named) json_array_append_new(others, json_string(type_names[i]));
    }
    if (json_array_size(others) == 0) {
        json_decref(others);
        return FATHOM_OK;
    }
    return add(n, json_pack("{s:o}", "type", others));
}

static size_t type_index(const json_t *value)
{
    switch (json_typeof(value)) {
    case JSON_NULL: return 0;
    case JSON_TRUE:
    case JSON_FALSE: return 1;
    case JSON_INTEGER:
    case JSON_REAL: return 2;
    case JSON_STRING: return 3;
    case JSON_ARRAY: return 4;
    case JSON_OBJECT: break;
    }
    return 5;
}

/* The numbers that are none of the values: between each two of them, and on both sides. */
static fathom_err negate_numbers(struct negation *n, const json_t *values)
{
    json_t *all = json_array();
    if (!all) return FATHOM_ENOMEM;
    for (size_t i = 0; i < json_array_size(values); i++) {
        json_t *value = json_array_get(values, i);
        if (type_index(value) != 2) continue;
        json_t *below = json_pack("{s:O}", "exclusiveMaximum", value);
        json_t *above = json_pack("{s:O}", "exclusiveMinimum", value);
        json_array_append_new(all, json_pack("{s:[o,o]}", "anyOf", below, above));
    }
    return add(n, json_pack("{s:s,s:o}", "type", "number", "allOf", all));
}

static fathom_err negate_strings(struct negation *n, const json_t *values)
{
    json_t *strings = json_array();
    if (!strings) return FATHOM_ENOMEM;
    for (size_t i = 0; i < json_array_size(values); i++) {
        json_t *value = json_array_get(values, i);
        if (json_is_string(value)) json_array_append(strings, value);
    }
    return add(n, json_pack("{s:s,s:o}", "type", "string", WORD_NOT_VALUES, strings));
}

static fathom_err negate_values(struct negation *n, const json_t *values)
{
    bool has[N_TYPE] = {false}, truth[2] = {false};
    json_t *others = json_array();
    if (!others) return FATHOM_ENOMEM;
    for (size_t i = 0; i < json_array_size(values); i++) {
        const json_t *value = json_array_get(values, i);
        has[type_index(value)] = true;
        if (json_is_boolean(value)) truth[json_is_true(value)] = true;
    }
    for (size_t i = 0; i < N_TYPE; i++) {
        if (!has[i]) json_array_append_new(others, json_string(type_names[i]));
    }
    n->exact &= !has[4] && !has[5];
    fathom_err err = FATHOM_OK;
    if (json_array_size(others) > 0) err = add(n, json_pack("{s:O}", "type", others));
    if (!err && has[1] && !(truth[0] && truth[1])) {
        err = add(n, json_pack("{s:b}", "const", !truth[1]));
    }
    if (!err && has[2]) err = negate_numbers(n, values);
    if (!err && has[3]) err = negate_strings(n, values);
    json_decref(others);
    return err;
}

/* ---- counts, bounds, members ------------------------------------------------------------ */

/* Adds the negation of a count: less than a least one, more than a most one. */
static fathom_err negate_count(struct negation *n, const char *type, const char *other, bool least,
                               const json_t *value)
{
    double x = json_number_value(value);
    if (!json_is_number(value) || x < 0 || x > UINT32_MAX - 2) {
        n->exact = false;
        return FATHOM_OK;
    }
    if (least && x < 1) return FATHOM_OK;
    json_int_t bound = (json_int_t)x + (least ? -1 : 1);
    return add(n, json_pack("{s:s,s:I}", "type", type, other, bound));
}

static bool is_bound(const char *name)
{
    return strcmp(name, "minimum") == 0 || strcmp(name, "maximum") == 0 ||
           strcmp(name, "exclusiveMinimum") == 0 || strcmp(name, "exclusiveMaximum") == 0;
}

/* In draft 4, a flag beside "minimum" or "maximum" excludes the bound itself. */
static fathom_err negate_bound(struct negation *n, const char *name, const json_t *value,
                               const json_t *schema)
{
    bool least = strstr(name, "inimum") != NULL, strict = name[0] == 'e';
    const char *flag = least ? "exclusiveMinimum" : "exclusiveMaximum";
    if (!json_is_number(value)) return FATHOM_OK;
    strict |= json_is_true(json_object_get(schema, flag));
    const char *other = least ? (strict ? "maximum" : "exclusiveMaximum")
                              : (strict ? "minimum" : "exclusiveMinimum");
    return add(n, json_pack("{s:s,s:O}", "type", "number", other, value));
}

static fathom_err negate_required(struct negation *n, const json_t *names)
{
    for (size_t i = 0; i < json_array_size(names); i++) {
        const char *name = json_string_value(json_array_get(names, i));
        if (!name) continue;
        TRY(add(n, json_pack("{s:s,s:{s:b}}", "type", "object", WORD_MEMBERS, name, 0)));
    }
    return FATHOM_OK;
}

static fathom_err negate_properties(struct negation *n, const json_t *properties)
{
    const char *name;
    json_t *schema;
    json_object_foreach ((json_t *)properties, name, schema) {
        json_t *other;
        TRY(negate_apart(n, schema, &other));
        if (!other) continue;
        TRY(add(n, json_pack("{s:s,s:[s],s:{s:o}}", "type", "object", "required", name,
                             WORD_MEMBERS, name, other)));
    }
    return FATHOM_OK;
}

/* Whether a schema may name members or items. If it may, the negation of its "not" is not drawn,
 * because it would count as speaking of them. */
static bool speaks(const json_t *schema)
{
    static const char *const silent[] = {"type",      "enum",     "const",     "required",
                                         "minLength", "pattern",  "maxLength", "minimum",
                                         "maximum",   "minItems", "maxItems"};
    const char *name;
    json_t *value;
    json_object_foreach ((json_t *)schema, name, value) {
        bool found = false;
        for (size_t i = 0; i < sizeof silent / sizeof silent[0] && !found; i++) {
            found = strcmp(name, silent[i]) == 0;
        }
        if (!found && keyword_asserts(name)) return true;
    }
    return false;
}

/* ---- keywords --------------------------------------------------------------------------- */

static fathom_err negate_keyword(struct negation *n, const char *name, const json_t *value,
                                 const json_t *schema)
{
    static const struct {
        const char *name, *type, *other;
    } counts[] = {{"minLength", "string", "maxLength"},
                  {"maxLength", "string", "minLength"},
                  {"minItems", "array", "maxItems"},
                  {"maxItems", "array", "minItems"},
                  {"minProperties", "object", "maxProperties"},
                  {"maxProperties", "object", "minProperties"}};
    for (size_t i = 0; i < sizeof counts / sizeof counts[0]; i++) {
        if (strcmp(name, counts[i].name) != 0) continue;
        return negate_count(n, counts[i].type, counts[i].other, i % 2 == 0, value);
    }
    if (strcmp(name, "type") == 0) return negate_type(n, value);
    if (strcmp(name, "enum") == 0) return negate_values(n, value);
    if (strcmp(name, "const") == 0) {
        json_t *values = json_pack("[O]", value);
        fathom_err err = values ? negate_values(n, values) : FATHOM_ENOMEM;
        json_decref(values);
        return err;
    }
    if (strcmp(name, "properties") == 0) return negate_properties(n, value);
    if (strcmp(name, "anyOf") == 0) return negate_group(n, value);
    if (strcmp(name, "oneOf") == 0) {
        n->exact = false; /* two of them hold */
        return negate_group(n, value);
    }
    if (strcmp(name, "allOf") == 0) {
        for (size_t i = 0; i < json_array_size(value); i++)
            TRY(negate(n, json_array_get(value, i)));
        return FATHOM_OK;
    }
    if (strcmp(name, "not") == 0 && !speaks(value)) return add(n, json_incref((json_t *)value));
    if (strcmp(name, "pattern") == 0) {
        return add(n, json_pack("{s:s,s:O}", "type", "string", WORD_NOT_PATTERN, value));
    }
    if (is_bound(name)) return negate_bound(n, name, value, schema);
    if (strcmp(name, "required") != 0 && keyword_asserts(name)) n->exact = false;
    return FATHOM_OK;
}

static fathom_err negate_ref(struct negation *n, const json_t *ref)
{
    const json_t *target;
    TRY(schema_resolve(n->c, ref, &target));
    return negate(n, target);
}

/* Adds what does not satisfy a schema: what does not satisfy one of its keywords. */
static fathom_err negate(struct negation *n, const json_t *schema)
{
    const char *name;
    json_t *value;
    TRY(schema_spend(n->c, UNITS_KEYWORD));
    if (json_is_false(schema)) return add(n, json_true());
    if (!json_is_plain_object(schema)) return FATHOM_OK;
    const json_t *ref = json_object_get(schema, "$ref");
    if (n->c->depth == SCHEMA_REF_DEPTH_MAX || json_is_true(json_object_get(schema, "nullable"))) {
        n->exact = false;
        return FATHOM_OK;
    }
    n->c->depth++;
    /* in older drafts, keywords beside a reference say nothing */
    if (ref) n->exact &= json_object_size(schema) == 1;
    fathom_err err =
        ref ? negate_ref(n, ref) : negate_required(n, json_object_get(schema, "required"));
    json_object_foreach ((json_t *)schema, name, value) {
        if (!err && !ref) err = negate_keyword(n, name, value, schema);
    }
    n->c->depth--;
    return err;
}

fathom_err schema_negate(struct schema_compiler *c, const json_t *schema, json_t **out, bool *exact)
{
    struct negation n = {c, json_array(), true};
    fathom_err err = n.list ? negate(&n, schema) : FATHOM_ENOMEM;
    *exact = n.exact;
    *out = err ? NULL : n.list;
    if (err) json_decref(n.list);
    return err;
}
