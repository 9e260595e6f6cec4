/* schema.c - JSON schemas to rules
 *
 * A subschema becomes a rule, once for each different text, so recursion is a rule that calls
 * itself and a definition used twice is drawn once. Alternatives are drawn side by side into one
 * rule, where the subset construction finds what they have in common: {"kind": "a", ...} or
 * {"kind": "b", ...} is decided at the letter where they differ.
 */
#include <stdio.h>
#include <string.h>

#include "base/fail.h"
#include "base/json.h"
#include "base/mem.h"
#include "base/rng.h"
#include "chat/schema_int.h"

enum { ENUM_IN_PLACE_MAX = 64 };

/* ---- the compiler ----------------------------------------------------------------------- */

fathom_err schema_open(struct schema_compiler *c, struct grammar_builder *b, const json_t *root,
                       const char *path, fathom_diag *d)
{
    *c = (struct schema_compiler){.b = b, .root = root, .d = d};
    return buf_add_str(&c->path, path);
}

void schema_close(struct schema_compiler *c)
{
    for (uint32_t i = 0; i < c->n_rule; i++) {
        json_decref(c->rules[i].schema);
        mem_free(c->rules[i].key);
        mem_free(c->rules[i].path);
    }
    mem_free(c->rules);
    buf_free(&c->path);
}

size_t schema_enter(struct schema_compiler *c, const char *name)
{
    size_t mark = c->path.len;
    (void)buf_add_char(&c->path, '/');
    for (; *name; name++) {
        if (*name == '~' || *name == '/') {
            (void)buf_add_str(&c->path, *name == '~' ? "~0" : "~1");
        } else {
            (void)buf_add_char(&c->path, *name);
        }
    }
    return mark;
}

size_t schema_enter_index(struct schema_compiler *c, size_t i)
{
    size_t mark = c->path.len;
    (void)buf_printf(&c->path, "/%zu", i);
    return mark;
}

void schema_leave(struct schema_compiler *c, size_t mark)
{
    if (mark >= c->path.len) return;
    c->path.len = mark;
    c->path.data[mark] = '\0';
}

fathom_err schema_spend(struct schema_compiler *c, const struct dfa *d)
{
    c->cost += d->cost;
    if (c->cost <= SCHEMA_COST_MAX) return FATHOM_OK;
    FAIL(c->d, FATHOM_ELIMIT,
         "schema %s: the schema is too costly to compile; use simpler or fewer patterns and bounds",
         buf_str(&c->path));
}

/* ---- rules ------------------------------------------------------------------------------ */

static uint64_t hash_text(const char *s, size_t n)
{
    uint64_t h = n;
    for (size_t i = 0; i < n; i++) h = rng_hash(h ^ (uint8_t)s[i]);
    return h;
}

/* The rule of a subschema, new ones to be drawn by schema_finish. */
static fathom_err find_rule(struct schema_compiler *c, const json_t *schema, uint32_t *out)
{
    struct buf key = {0};
    fathom_err err = json_write(&key, schema);
    uint64_t hash = err ? 0 : hash_text(buf_str(&key), key.len);
    for (uint32_t i = 0; i < c->n_rule && !err; i++) {
        if (c->rules[i].hash != hash || strcmp(c->rules[i].key, buf_str(&key)) != 0) continue;
        *out = c->rules[i].rule;
        buf_free(&key);
        return FATHOM_OK;
    }
    if (!err) err = mem_grow(&c->rules, &c->cap_rule, c->n_rule + 1, sizeof *c->rules);
    char *path = err ? NULL : mem_strdup(buf_str(&c->path));
    if (!path) {
        buf_free(&key);
        return err ? err : FATHOM_ENOMEM;
    }
    *out = grammar_add_rule(c->b);
    c->rules[c->n_rule++] = (struct schema_rule){.schema = json_incref((json_t *)schema),
                                                 .key = buf_steal(&key),
                                                 .hash = hash,
                                                 .path = path,
                                                 .rule = *out};
    return FATHOM_OK;
}

/* One value under a schema, drawn between two states. */
static fathom_err draw(struct schema_compiler *c, uint32_t from, const json_t *schema, uint32_t to)
{
    struct flat f;
    uint32_t n_alternative = c->n_alternative;
    flat_init(&f);
    c->n_alternative = 0;
    fathom_err err = flat_merge(c, &f, schema);
    if (!err) err = schema_put_flat(c, from, &f, to);
    c->n_alternative = n_alternative;
    flat_free(&f);
    return err;
}

fathom_err schema_finish(struct schema_compiler *c)
{
    for (uint32_t i = 0; i < c->n_rule; i++) {
        struct schema_rule r = c->rules[i];
        TRY(builder_status(c->b, c->d));
        buf_clear(&c->path);
        TRY(buf_add_str(&c->path, r.path));
        TRY(draw(c, grammar_rule_begin(c->b, r.rule), r.schema, grammar_rule_end(c->b, r.rule)));
    }
    return builder_status(c->b, c->d);
}

/* Whether a schema is better drawn where it stands: it is small, or stands for a general rule. */
static bool is_small(const json_t *schema)
{
    static const char *const small[] = {"type",    "const",    "enum",       "minLength",
                                        "title",   "default",  "maxLength",  "description",
                                        "example", "examples", "deprecated", "$comment"};
    const char *key;
    json_t *value;
    if (json_is_boolean(schema)) return true;
    if (json_array_size(json_object_get(schema, "enum")) > ENUM_IN_PLACE_MAX) return false;
    json_object_foreach ((json_t *)schema, key, value) {
        bool found = false;
        for (size_t i = 0; i < sizeof small / sizeof small[0] && !found; i++) {
            found = strcmp(key, small[i]) == 0;
        }
        if (!found) return false;
    }
    return true;
}

fathom_err schema_put(struct schema_compiler *c, uint32_t from, const json_t *schema, uint32_t *to)
{
    if (is_small(schema)) {
        *to = grammar_add_state(c->b);
        return draw(c, from, schema, *to);
    }
    uint32_t rule;
    TRY(find_rule(c, schema, &rule));
    *to = grammar_put_rule(c->b, from, rule);
    return FATHOM_OK;
}

/* ---- values ----------------------------------------------------------------------------- */

unsigned schema_types(const struct flat *f)
{
    return f->types == TYPE_ALL && f->touched ? f->touched : f->types;
}

static fathom_err put_values(struct schema_compiler *c, uint32_t from, const struct flat *f,
                             uint32_t to)
{
    for (size_t i = 0; i < json_array_size(f->values); i++) {
        bool allowed;
        TRY(value_allowed(c, f, json_array_get(f->values, i), &allowed));
        if (!allowed) continue;
        grammar_join(c->b, grammar_put_literal(c->b, from, json_array_get(f->values, i)), to);
    }
    return FATHOM_OK;
}

/* An element of an array, from `from` on. */
static fathom_err put_element(struct schema_compiler *c, uint32_t from, const struct flat *f,
                              size_t i, uint32_t *to)
{
    json_t *schema;
    TRY(flat_item(f, i, &schema));
    size_t mark = schema_enter(c, i < json_array_size(f->prefix) ? "prefixItems" : "items");
    if (i < json_array_size(f->prefix)) (void)schema_enter_index(c, i);
    fathom_err err = schema_put(c, from, schema, to);
    if (!err) schema_leave(c, mark);
    json_decref(schema);
    return err;
}

static fathom_err put_elements(struct schema_compiler *c, uint32_t open, const struct flat *f,
                               uint32_t close)
{
    struct grammar_builder *b = c->b;
    bool endless = f->max_items == UINT32_MAX;
    size_t n_prefix = json_array_size(f->prefix);
    size_t n = n_prefix + 1 > f->min_items ? n_prefix + 1 : f->min_items;
    if (!endless) n = f->max_items;
    if (n > SCHEMA_ITEMS_MAX) {
        FAIL(c->d, FATHOM_ELIMIT,
             "schema %s: an array of %zu counted items, at most %d are possible", buf_str(&c->path),
             n, SCHEMA_ITEMS_MAX);
    }
    uint32_t at = grammar_put_space(b, open, GRAMMAR_IN_BRACKET);
    for (size_t i = 0; i < n; i++) {
        uint32_t item = grammar_add_state(b), end;
        grammar_join(b, at, item);
        TRY(put_element(c, item, f, i, &end));
        if (i + 1 >= f->min_items) grammar_join(b, end, close);
        if (i + 1 == n && !endless) break;
        at = grammar_put_space(b, grammar_put_text(b, end, ",", 1), GRAMMAR_AFTER_COMMA);
        if (i + 1 == n) grammar_join(b, at, item);
    }
    return FATHOM_OK;
}

static fathom_err put_array(struct schema_compiler *c, uint32_t from, const struct flat *f,
                            uint32_t to)
{
    struct grammar_builder *b = c->b;
    if (f->min_items > f->max_items) return FATHOM_OK;
    if (f->unique && f->max_items > 1 && !b->options.lenient) {
        FAIL(c->d, FATHOM_EUNSUPPORTED,
             "schema %s: the keyword \"uniqueItems\" is not supported for more than one item",
             buf_str(&c->path));
    }
    uint32_t open = grammar_put_text(b, from, "[", 1), close = grammar_add_state(b);
    if (f->min_items == 0) grammar_join(b, grammar_put_text(b, open, "]", 1), to);
    if (f->max_items > 0) TRY(put_elements(c, open, f, close));
    uint32_t end = grammar_put_space(b, close, GRAMMAR_IN_BRACKET);
    grammar_join(b, grammar_put_text(b, end, "]", 1), to);
    return FATHOM_OK;
}

struct span {
    uint32_t from, to;
};

/* All that constraints without alternatives allow. */
static fathom_err put_flat(struct schema_compiler *c, struct flat *f, void *arg)
{
    const struct span *span = arg;
    struct grammar_builder *b = c->b;
    uint32_t from = span->from, to = span->to;
    unsigned types = schema_types(f);
    if (f->values) return put_values(c, from, f, to);
    if (types == TYPE_ALL && f->touched == 0) {
        grammar_join(b, grammar_put_json(b, from, GRAMMAR_JSON_VALUE), to);
        return FATHOM_OK;
    }
    if (types & TYPE_NULL) grammar_join(b, grammar_put_text(b, from, "null", 4), to);
    if (types & TYPE_BOOLEAN) {
        grammar_join(b, grammar_put_text(b, from, "true", 4), to);
        grammar_join(b, grammar_put_text(b, from, "false", 5), to);
    }
    if (types & (TYPE_NUMBER | TYPE_INTEGER)) {
        TRY(number_put(c, from, f, !(types & TYPE_NUMBER), to));
    }
    if (types & TYPE_STRING) TRY(string_put(c, from, f, to));
    if (types & TYPE_ARRAY) TRY(put_array(c, from, f, to));
    if (types & TYPE_OBJECT) TRY(object_put(c, from, f, to));
    return FATHOM_OK;
}

fathom_err schema_put_flat(struct schema_compiler *c, uint32_t from, struct flat *f, uint32_t to)
{
    return flat_each(c, f, put_flat, &(struct span){from, to});
}

/* ---- public ----------------------------------------------------------------------------- */

fathom_err grammar_put_schema(struct grammar_builder *b, uint32_t from, const json_t *schema,
                              uint32_t *to, fathom_diag *d)
{
    struct schema_compiler c;
    fathom_err err = schema_open(&c, b, schema, "#", d);
    *to = grammar_add_state(b);
    if (!err) err = draw(&c, from, schema, *to);
    if (!err) err = schema_finish(&c);
    schema_close(&c);
    return err;
}
