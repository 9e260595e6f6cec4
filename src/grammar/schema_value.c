/* schema_value.c - whether a value of "enum" or "const" meets the other keywords */
#include <string.h>

#include "base/fail.h"
#include "base/json.h"
#include "base/utf8.h"
#include "grammar/schema_int.h"

unsigned schema_type_of(const json_t *value)
{
    switch (json_typeof(value)) {
    case JSON_NULL: return SCHEMA_TYPE_NULL;
    case JSON_TRUE:
    case JSON_FALSE: return SCHEMA_TYPE_BOOLEAN;
    case JSON_INTEGER: return SCHEMA_TYPE_INTEGER | SCHEMA_TYPE_NUMBER;
    case JSON_REAL: break;
    case JSON_STRING: return SCHEMA_TYPE_STRING;
    case JSON_ARRAY: return SCHEMA_TYPE_ARRAY;
    case JSON_OBJECT:
        return json_big_digits(value) ? SCHEMA_TYPE_INTEGER | SCHEMA_TYPE_NUMBER
                                      : (unsigned)SCHEMA_TYPE_OBJECT;
    }
    double x = json_real_value(value);
    bool whole = x > -9e15 && x < 9e15 && x == (double)(int64_t)x;
    return whole ? SCHEMA_TYPE_INTEGER | SCHEMA_TYPE_NUMBER : SCHEMA_TYPE_NUMBER;
}

static uint32_t count_chars(const char *s, size_t n)
{
    uint32_t count = 0;
    for (size_t i = 0, len; i < n; i += len, count++) (void)utf8_next(s + i, n - i, &len);
    return count;
}

static fathom_err schema_allowed(struct schema_compiler *c, const json_t *schema,
                                 const json_t *value, bool *out)
{
    struct schema_flat f;
    schema_flat_init(&f);
    fathom_err err = schema_flat_merge(c, &f, schema);
    if (!err) err = value_allowed(c, &f, value, out);
    schema_flat_free(&f);
    return err;
}

static fathom_err number_allowed(struct schema_compiler *c, const struct schema_flat *f,
                                 const json_t *value, bool *out)
{
    struct dfa d;
    struct buf text = {0};
    if (!f->number_rules) return FATHOM_OK;
    TRY(json_write_python(&text, value));
    fathom_err err = number_build(c, f, false, &d);
    if (!err) {
        *out = dfa_accepts_text(&d, buf_str(&text), text.len);
        dfa_free(&d);
    }
    buf_free(&text);
    return err;
}

static fathom_err string_allowed(struct schema_compiler *c, const struct schema_flat *f,
                                 const json_t *value, bool *out)
{
    const char *s = json_string_value(value);
    size_t n = json_string_length(value);
    TRY(schema_spend(c, n * UNITS_VALUE));
    uint32_t n_char = count_chars(s, n);
    if (n_char < f->min_length || n_char > f->max_length) *out = false;
    if (!f->string_rules || !*out) return FATHOM_OK;
    struct schema_flat rules;
    struct dfa d;
    schema_flat_init(&rules);
    rules.string_rules = f->string_rules;
    TRY(schema_build_string(c, &rules, &d));
    *out = dfa_accepts_text(&d, s, n);
    dfa_free(&d);
    return FATHOM_OK;
}

static fathom_err array_allowed(struct schema_compiler *c, const struct schema_flat *f,
                                const json_t *value, bool *out)
{
    size_t n = json_array_size(value);
    if (n < f->min_items || n > f->max_items) *out = false;
    for (size_t i = 0; i < n && *out; i++) {
        json_t *schema;
        TRY(schema_flat_item(f, i, &schema));
        fathom_err err = schema_allowed(c, schema, json_array_get(value, i), out);
        json_decref(schema);
        TRY(err);
        for (size_t k = 0; k < i && f->unique && *out; k++) {
            bool same;
            TRY(schema_same_value(c, json_array_get(value, i), json_array_get(value, k), &same));
            *out = !same;
        }
    }
    return FATHOM_OK;
}

static fathom_err member_allowed(struct schema_compiler *c, const struct schema_flat *f,
                                 const char *name, const json_t *value, bool *out)
{
    const char *pattern;
    json_t *schema;
    const json_t *own = json_object_get(f->properties, name);
    bool known = own != NULL;
    if (own) TRY(schema_allowed(c, own, value, out));
    json_object_foreach (f->patterns, pattern, schema) {
        bool matches;
        TRY(pattern_matches(c, pattern, name, &matches));
        if (!matches) continue;
        known = true;
        if (*out) TRY(schema_allowed(c, schema, value, out));
    }
    const json_t *rest = f->additional ? f->additional : f->unevaluated;
    if (!known && rest && *out) TRY(schema_allowed(c, rest, value, out));
    const json_t *demand = json_object_get(f->demands, name);
    if (demand && *out) TRY(schema_allowed(c, demand, value, out));
    for (size_t i = 0; i < json_array_size(f->names) && *out; i++) {
        json_t *text = json_string(name);
        if (!text) return FATHOM_ENOMEM;
        fathom_err err = schema_allowed(c, json_array_get(f->names, i), text, out);
        json_decref(text);
        TRY(err);
    }
    return FATHOM_OK;
}

static fathom_err object_allowed(struct schema_compiler *c, const struct schema_flat *f,
                                 const json_t *value, bool *out)
{
    const char *name;
    json_t *member;
    size_t n = json_object_size(value);
    if (n < f->min_properties || n > f->max_properties) *out = false;
    TRY(schema_spend(c, (n + json_array_size(f->required)) * UNITS_VALUE));
    for (size_t i = 0; i < json_array_size(f->required); i++) {
        const char *key = json_string_value(json_array_get(f->required, i));
        if (!json_object_get(value, key)) *out = false;
    }
    json_object_foreach ((json_t *)value, name, member) {
        if (*out) TRY(member_allowed(c, f, name, member, out));
    }
    return FATHOM_OK;
}

struct question {
    const json_t *value;
    bool yes;
};

static fathom_err ask(struct schema_compiler *c, struct schema_flat *f, void *arg)
{
    struct question *q = arg;
    unsigned type = schema_type_of(q->value);
    bool known = !f->values, allowed = true;
    if (q->yes || !(type & f->types)) return FATHOM_OK;
    for (size_t i = 0; i < json_array_size(f->values) && !known; i++) {
        TRY(schema_same_value(c, q->value, json_array_get(f->values, i), &known));
    }
    if (!known) return FATHOM_OK;
    if (type & SCHEMA_TYPE_NUMBER) TRY(number_allowed(c, f, q->value, &allowed));
    if (type & SCHEMA_TYPE_STRING) TRY(string_allowed(c, f, q->value, &allowed));
    if (type & SCHEMA_TYPE_ARRAY) TRY(array_allowed(c, f, q->value, &allowed));
    if (type & SCHEMA_TYPE_OBJECT) TRY(object_allowed(c, f, q->value, &allowed));
    q->yes = allowed;
    return FATHOM_OK;
}

fathom_err value_allowed(struct schema_compiler *c, const struct schema_flat *f,
                         const json_t *value, bool *out)
{
    struct question q = {value, false};
    TRY(schema_flat_each(c, f, ask, &q));
    *out = q.yes;
    return FATHOM_OK;
}

fathom_err schema_keep_allowed(struct schema_compiler *c, struct schema_flat *f)
{
    if (!f->values) return FATHOM_OK;
    json_t *kept = json_array(), *values = f->values;
    fathom_err err = kept ? FATHOM_OK : FATHOM_ENOMEM;
    f->values = NULL; /* each is one of them */
    for (size_t i = 0; i < json_array_size(values) && !err; i++) {
        json_t *value = json_array_get(values, i);
        bool allowed = false;
        err = value_allowed(c, f, value, &allowed);
        if (!err && allowed && json_array_append(kept, value)) err = FATHOM_ENOMEM;
    }
    json_decref(err ? kept : values);
    f->values = err ? values : kept;
    return err;
}
