/* schema_put.c - JSON schemas to rules
 *
 * A subschema becomes a rule, one for each different text. So recursion is a rule that calls
 * itself, and a definition that is used twice is drawn once. Rules are put off until schema_finish,
 * so drawing does not recurse with the schema. Small schemas are drawn in place; these hold no
 * others.
 *
 * Alternatives are drawn side by side into one rule, where the subset construction merges their
 * common beginnings. Between {"kind": "a", ...} and {"kind": "b", ...} the first letter that
 * differs decides.
 */
#include <string.h>

#include "base/fail.h"
#include "base/json.h"
#include "base/mem.h"
#include "base/rng.h"
#include "grammar/builder.h"
#include "grammar/schema_int.h"

enum { ENUM_IN_PLACE_MAX = 64 };

/* A subschema with a rule of its own, drawn when its turn comes. */
struct schema_rule {
    json_t *schema; /* reference */
    char *key;      /* the schema as text: equal texts share a rule */
    uint64_t hash;
    char *path;
    uint32_t rule;
};

/* ---- the compiler ----------------------------------------------------------------------- */

fathom_err schema_open(struct schema_compiler *c, struct grammar_builder *b, const json_t *root,
                       const char *path, fathom_diag *d)
{
    *c = (struct schema_compiler){.b = b, .root = root, .d = d};
    return buf_add_str(&c->path, path);
}

void schema_close(struct schema_compiler *c)
{
    struct buf what = {0};
    if (c->b->budget.used_up && !buf_printf(&what, "schema %s", buf_str(&c->path))) {
        (void)budget_tell(&c->b->budget, FATHOM_ECANCEL, buf_str(&what), c->d);
    }
    buf_free(&what);
    for (uint32_t i = 0; i < c->n_rule; i++) {
        json_decref(c->rules[i].schema);
        mem_free(c->rules[i].key);
        mem_free(c->rules[i].path);
    }
    mem_free(c->rules);
    buf_free(&c->path);
}

/* ---- rules ------------------------------------------------------------------------------ */

static uint64_t hash_text(const char *s, size_t n)
{
    uint64_t h = n;
    for (size_t i = 0; i < n; i++) h = rng_hash(h ^ (uint8_t)s[i]);
    return h;
}

/* Finds the rule of a subschema; a new one will be drawn by schema_finish. */
static fathom_err find_rule(struct schema_compiler *c, const json_t *schema, uint32_t *out)
{
    struct buf key = {0};
    fathom_err err = json_write(&key, schema);
    if (!err) {
        err = schema_spend(c, key.len * UNITS_TEXT + c->path.len * 4 + c->n_rule * UNITS_STEP);
    }
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
static fathom_err draw_schema(struct schema_compiler *c, uint32_t from, const json_t *schema,
                              uint32_t to)
{
    struct schema_flat f;
    uint32_t n_alternative = c->n_alternative;
    schema_flat_init(&f);
    c->n_alternative = 0;
    fathom_err err = schema_flat_merge(c, &f, schema);
    if (!err) err = schema_put_flat(c, from, &f, to);
    c->n_alternative = n_alternative;
    schema_flat_free(&f);
    return err;
}

fathom_err schema_finish(struct schema_compiler *c)
{
    c->b->level = INDENTS; /* rules are called from anywhere */
    for (uint32_t i = 0; i < c->n_rule; i++) {
        struct schema_rule r = c->rules[i];
        TRY(builder_status(c->b, c->d));
        TRY(buf_status(&c->path));
        buf_clear(&c->path);
        TRY(buf_add_str(&c->path, r.path));
        TRY(draw_schema(c, grammar_rule_begin(c->b, r.rule), r.schema,
                        grammar_rule_end(c->b, r.rule)));
    }
    c->b->level = 0;
    TRY(buf_status(&c->path));
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

/* A value that a schema describes: a small one in place, another as a rule. */
static fathom_err put_schema(struct schema_compiler *c, uint32_t from, const json_t *schema,
                             uint32_t *to)
{
    TRY(schema_spend(c, json_object_size(schema) * UNITS_KEYWORD));
    if (is_small(schema)) {
        uint32_t level = c->b->level;
        *to = grammar_add_state(c->b);
        c->b->level = INDENTS;
        fathom_err err = draw_schema(c, from, schema, *to);
        c->b->level = level;
        return err;
    }
    uint32_t rule;
    TRY(find_rule(c, schema, &rule));
    *to = grammar_put_rule(c->b, from, rule);
    return FATHOM_OK;
}

/* ---- scalars ---------------------------------------------------------------------------- */

static fathom_err put_values(struct schema_compiler *c, uint32_t from, struct schema_flat *f,
                             uint32_t to)
{
    TRY(schema_keep_allowed(c, f));
    for (size_t i = 0; i < json_array_size(f->values); i++) {
        grammar_join(c->b, grammar_put_literal(c->b, from, json_array_get(f->values, i)), to);
    }
    return FATHOM_OK;
}

static fathom_err put_number(struct schema_compiler *c, uint32_t from, const struct schema_flat *f,
                             bool integer, uint32_t to)
{
    struct dfa d;
    if (!f->number_rules) {
        enum grammar_json what = integer ? GRAMMAR_JSON_INTEGER : GRAMMAR_JSON_NUMBER;
        grammar_join(c->b, grammar_put_json(c->b, from, what), to);
        return FATHOM_OK;
    }
    TRY(number_build(c, f, integer, &d));
    dfa_put(&c->b->nfa, &d, from, to);
    dfa_free(&d);
    return FATHOM_OK;
}

static fathom_err put_string(struct schema_compiler *c, uint32_t from, const struct schema_flat *f,
                             uint32_t to)
{
    struct dfa d;
    if (f->min_length > f->max_length) return FATHOM_OK;
    if (!f->string_rules) {
        uint32_t end = grammar_put_string(c->b, from, f->min_length, f->max_length);
        grammar_join(c->b, end, to);
        return FATHOM_OK;
    }
    TRY(schema_build_string(c, f, &d));
    if (!dfa_is_empty(&d)) grammar_join(c->b, grammar_put_string_dfa(c->b, from, &d), to);
    dfa_free(&d);
    return FATHOM_OK;
}

/* ---- arrays ----------------------------------------------------------------------------- */

/* An element of an array, from `from` on. */
static fathom_err put_element(struct schema_compiler *c, uint32_t from, const struct schema_flat *f,
                              size_t i, uint32_t *to)
{
    json_t *schema;
    TRY(schema_flat_item(f, i, &schema));
    size_t mark = schema_enter(c, i < json_array_size(f->prefix) ? "prefixItems" : "items");
    if (i < json_array_size(f->prefix)) (void)schema_enter_index(c, i);
    fathom_err err = put_schema(c, from, schema, to);
    if (!err) schema_leave(c, mark);
    json_decref(schema);
    return err;
}

static fathom_err put_elements(struct schema_compiler *c, uint32_t open,
                               const struct schema_flat *f, uint32_t close)
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

static fathom_err put_array(struct schema_compiler *c, uint32_t from, const struct schema_flat *f,
                            uint32_t to)
{
    struct grammar_builder *b = c->b;
    json_t *values = NULL;
    if (f->min_items > f->max_items) return FATHOM_OK;
    if (f->unique && f->max_items > 1) {
        TRY(unique_values(c, f, &values));
        if (!values && !b->options.lenient) {
            FAIL(c->d, FATHOM_EUNSUPPORTED,
                 "schema %s: the keyword \"uniqueItems\" is not supported for more than one item, "
                 "unless items have an \"enum\"",
                 buf_str(&c->path));
        }
    }
    uint32_t open = grammar_put_text(b, from, "[", 1), close = grammar_add_state(b);
    if (f->min_items == 0) grammar_join(b, grammar_put_text(b, open, "]", 1), to);
    fathom_err err = FATHOM_OK;
    if (values) {
        err = unique_put_elements(c, open, f, values, close);
    } else if (f->max_items > 0) {
        err = put_elements(c, open, f, close);
    }
    json_decref(values);
    TRY(err);
    uint32_t end = grammar_put_space(b, close, GRAMMAR_BEFORE_CLOSE);
    grammar_join(b, grammar_put_text(b, end, "]", 1), to);
    return FATHOM_OK;
}

/* ---- objects ---------------------------------------------------------------------------- */

/* Members come in the order of "properties"; those that are not required may be left out, and
 * others follow them. In layer c of the drawing, c members have been written; if they need not be
 * counted, there is one layer.
 *
 *   member[i][c]  one of the members from i on must come next
 *   after[i][c]   a member has just come, and only those from i on may follow: behind a comma, or
 *                 the object ends */
struct drawing {
    struct schema_compiler *c;
    const struct schema_members *m;
    const struct others *others;
    uint32_t min, max; /* members; 0 and UINT32_MAX: not counted */
    uint32_t n_layer;
    uint32_t *member; /* [(n + 1) * n_layer] */
    uint32_t *after;  /* likewise; after[0] is not used */
    uint32_t close;
    uint32_t others_rule; /* with several layers: the rule of other members + 1; 0: none yet */
};

/* The layer after one more member; false: there may be no more. */
static bool next_layer(const struct drawing *g, uint32_t layer, uint32_t *out)
{
    *out = layer;
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
    TRY(put_schema(g->c, grammar_put_space(b, at, GRAMMAR_AFTER_COLON), schema, &end));
    schema_leave(g->c, mark);
    grammar_join(b, end, to);
    return FATHOM_OK;
}

static fathom_err put_member(struct drawing *g, uint32_t from, const struct schema_member *m,
                             uint32_t to)
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

/* The same; with several layers, in which it is drawn several times, as calls of one rule. */
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
        const struct schema_member *m = i < n ? &g->m->list[i] : NULL;
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

static fathom_err draw_members(struct drawing *g, uint32_t from, uint32_t to)
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
    uint32_t end = grammar_put_space(b, g->close, GRAMMAR_BEFORE_CLOSE);
    grammar_join(b, grammar_put_text(b, end, "}", 1), to);
    return FATHOM_OK;
}

/* Decides how many layers there are: one, if the members themselves keep the bounds. */
static fathom_err plan_layers(struct drawing *g, const struct schema_flat *f)
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

static fathom_err draw_object(struct drawing *g, const struct schema_flat *f, uint32_t from,
                              uint32_t to)
{
    fathom_err err = plan_layers(g, f);
    TRY(err);
    size_t n_state = (g->m->n + 1) * g->n_layer;
    g->member = mem_alloc_array(n_state, sizeof *g->member);
    g->after = mem_alloc_array(n_state, sizeof *g->after);
    err = g->member && g->after ? draw_members(g, from, to) : FATHOM_ENOMEM;
    mem_free(g->member);
    mem_free(g->after);
    return err;
}

static fathom_err put_object(struct schema_compiler *c, uint32_t from, struct schema_flat *f,
                             uint32_t to)
{
    struct schema_members m;
    struct others o;
    if (f->min_properties > f->max_properties) return FATHOM_OK;
    TRY(schema_members_collect(c, f, &m));
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
    schema_members_free(&m);
    return err;
}

/* ---- values ----------------------------------------------------------------------------- */

struct span {
    uint32_t from, to;
};

/* Draws all values that constraints without alternatives allow. */
static fathom_err put_flat(struct schema_compiler *c, struct schema_flat *f, void *arg)
{
    const struct span *span = arg;
    struct grammar_builder *b = c->b;
    uint32_t from = span->from, to = span->to;
    unsigned types = schema_types(f);
    if (f->values) return put_values(c, from, f, to);
    if (types == SCHEMA_TYPE_ALL && f->touched == 0) {
        grammar_join(b, grammar_put_json(b, from, GRAMMAR_JSON_VALUE), to);
        return FATHOM_OK;
    }
    if (types & SCHEMA_TYPE_NULL) grammar_join(b, grammar_put_text(b, from, "null", 4), to);
    if (types & SCHEMA_TYPE_BOOLEAN) {
        grammar_join(b, grammar_put_text(b, from, "true", 4), to);
        grammar_join(b, grammar_put_text(b, from, "false", 5), to);
    }
    if (types & (SCHEMA_TYPE_NUMBER | SCHEMA_TYPE_INTEGER)) {
        TRY(put_number(c, from, f, !(types & SCHEMA_TYPE_NUMBER), to));
    }
    if (types & SCHEMA_TYPE_STRING) TRY(put_string(c, from, f, to));
    if (types & SCHEMA_TYPE_ARRAY & ~f->touched) {
        grammar_join(b, grammar_put_json(b, from, GRAMMAR_JSON_ARRAY), to);
    } else if (types & SCHEMA_TYPE_ARRAY) {
        TRY(put_array(c, from, f, to));
    }
    if (types & SCHEMA_TYPE_OBJECT & ~f->touched) {
        grammar_join(b, grammar_put_json(b, from, GRAMMAR_JSON_OBJECT), to);
    } else if (types & SCHEMA_TYPE_OBJECT) {
        TRY(put_object(c, from, f, to));
    }
    return FATHOM_OK;
}

fathom_err schema_put_flat(struct schema_compiler *c, uint32_t from, const struct schema_flat *f,
                           uint32_t to)
{
    return schema_flat_each(c, f, put_flat, &(struct span){from, to});
}

/* ---- public ----------------------------------------------------------------------------- */

fathom_err grammar_put_schema_at(struct grammar_builder *b, uint32_t from, const json_t *schema,
                                 const char *path, uint32_t *to, fathom_diag *d)
{
    struct schema_compiler c;
    fathom_err err = schema_open(&c, b, schema, path, d);
    *to = grammar_add_state(b);
    if (!err) err = draw_schema(&c, from, schema, *to);
    if (!err) err = schema_finish(&c);
    schema_close(&c);
    return err;
}

fathom_err grammar_put_schema(struct grammar_builder *b, uint32_t from, const json_t *schema,
                              uint32_t *to, fathom_diag *d)
{
    return grammar_put_schema_at(b, from, schema, "#", to, d);
}

static fathom_err draw_root(struct grammar_builder *b, uint32_t from, const void *what,
                            uint32_t *to, fathom_diag *d)
{
    return grammar_put_schema(b, from, what, to, d);
}

fathom_err grammar_from_schema(struct grammar **out, const struct grammar_vocab *v,
                               const json_t *schema, const struct grammar_options *options,
                               fathom_diag *d)
{
    return grammar_compile(out, v, options, draw_root, schema, NULL, d);
}
