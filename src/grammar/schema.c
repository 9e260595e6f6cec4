/* schema.c - the ground of a schema's compilation: path, account, constraints as containers */
#include "grammar/schema.h"

#include <string.h>

#include "base/fail.h"
#include "base/json.h"
#include "grammar/grammar_int.h"

/* ---- path and account ------------------------------------------------------------------- */

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

fathom_err schema_spend(struct schema_compiler *c, uint64_t units)
{
    return budget_spend(&c->b->budget, units);
}

/* ---- constraints ------------------------------------------------------------------------ */

void schema_flat_init(struct schema_flat *f)
{
    *f = (struct schema_flat){.types = SCHEMA_TYPE_ALL,
                              .max_length = UINT32_MAX,
                              .max_items = UINT32_MAX,
                              .max_properties = UINT32_MAX};
}

/* The containers of a flat, to be treated alike. */
enum { N_CONTAINER = 14 };

static void list_containers(struct schema_flat *f, json_t **out[N_CONTAINER])
{
    json_t **all[N_CONTAINER] = {&f->values,      &f->number_rules, &f->string_rules,
                                 &f->prefix,      &f->items,        &f->unevaluated_items,
                                 &f->properties,  &f->required,     &f->additional,
                                 &f->unevaluated, &f->patterns,     &f->names,
                                 &f->demands,     &f->groups};
    memcpy(out, all, sizeof all);
}

void schema_flat_free(struct schema_flat *f)
{
    json_t **containers[N_CONTAINER];
    list_containers(f, containers);
    for (size_t i = 0; i < N_CONTAINER; i++) json_decref(*containers[i]);
    schema_flat_init(f);
}

fathom_err schema_flat_copy(struct schema_compiler *c, struct schema_flat *out,
                            const struct schema_flat *f)
{
    json_t **containers[N_CONTAINER];
    bool failed = false;
    uint64_t n_value = N_CONTAINER;
    *out = *f;
    list_containers(out, containers);
    for (size_t i = 0; i < N_CONTAINER; i++) {
        n_value += json_is_array(*containers[i]) ? json_array_size(*containers[i])
                                                 : 4 * json_object_size(*containers[i]);
    }
    fathom_err err = schema_spend(c, n_value * UNITS_VALUE);
    if (err) schema_flat_init(out);
    TRY(err);
    for (size_t i = 0; i < N_CONTAINER; i++) {
        if (!*containers[i]) continue;
        *containers[i] = json_copy_level(*containers[i]);
        failed |= !*containers[i];
    }
    if (!failed) return FATHOM_OK;
    schema_flat_free(out);
    return FATHOM_ENOMEM;
}

unsigned schema_types(const struct schema_flat *f)
{
    return f->types;
}

fathom_err schema_flat_item(const struct schema_flat *f, size_t i, json_t **out)
{
    const json_t *own = json_array_get(f->prefix, i);
    if (!own) own = f->items ? f->items : f->unevaluated_items;
    *out = own ? json_incref((json_t *)own) : json_true();
    return *out ? FATHOM_OK : FATHOM_ENOMEM;
}

static bool same_number(const json_t *a, const json_t *b)
{
    if (json_is_integer(a) && json_is_integer(b)) {
        return json_integer_value(a) == json_integer_value(b);
    }
    return json_number_value(a) == json_number_value(b);
}

static fathom_err same_members(struct schema_compiler *c, const json_t *a, const json_t *b,
                               bool *out)
{
    const char *name;
    json_t *value;
    *out = json_object_size(a) == json_object_size(b);
    json_object_foreach ((json_t *)a, name, value) {
        const json_t *other = json_object_get(b, name);
        if (*out) TRY(schema_spend(c, UNITS_COMPARE + strlen(name) * 4));
        if (*out && !other) *out = false;
        if (*out) TRY(schema_same_value(c, value, other, out));
    }
    return FATHOM_OK;
}

fathom_err schema_same_value(struct schema_compiler *c, const json_t *a, const json_t *b, bool *out)
{
    *out = a == b;
    if (a == b) return FATHOM_OK;
    TRY(schema_spend(c, UNITS_COMPARE));
    if (json_is_number(a) && json_is_number(b)) {
        *out = same_number(a, b);
        return FATHOM_OK;
    }
    if (json_typeof(a) != json_typeof(b)) return FATHOM_OK;
    TRY(schema_spend(c, json_is_string(a) ? json_string_length(a) / 4 : UNITS_COMPARE));
    if (json_is_object(a)) return same_members(c, a, b, out);
    if (!json_is_array(a)) {
        *out = json_equal(a, b);
        return FATHOM_OK;
    }
    *out = json_array_size(a) == json_array_size(b);
    for (size_t i = 0; i < json_array_size(a) && *out; i++) {
        TRY(schema_same_value(c, json_array_get(a, i), json_array_get(b, i), out));
    }
    return FATHOM_OK;
}
