/* schema.c - the ground of a schema's compilation: path, account, constraints as containers */
#include "grammar/schema.h"

#include <string.h>

#include "base/fail.h"
#include "base/json.h"

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

fathom_err schema_spend(struct schema_compiler *c, const struct dfa *d)
{
    c->cost += d->cost;
    if (c->cost <= SCHEMA_COST_MAX) return FATHOM_OK;
    FAIL(c->d, FATHOM_ELIMIT,
         "schema %s: the schema is too costly to compile; use simpler or fewer patterns and bounds",
         buf_str(&c->path));
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
enum { N_CONTAINER = 13 };

static void list_containers(struct schema_flat *f, json_t **out[N_CONTAINER])
{
    json_t **all[N_CONTAINER] = {&f->values,      &f->number_rules, &f->string_rules,
                                 &f->prefix,      &f->items,        &f->unevaluated_items,
                                 &f->properties,  &f->required,     &f->additional,
                                 &f->unevaluated, &f->patterns,     &f->names,
                                 &f->groups};
    memcpy(out, all, sizeof all);
}

void schema_flat_free(struct schema_flat *f)
{
    json_t **containers[N_CONTAINER];
    list_containers(f, containers);
    for (size_t i = 0; i < N_CONTAINER; i++) json_decref(*containers[i]);
    schema_flat_init(f);
}

fathom_err schema_flat_copy(struct schema_flat *out, const struct schema_flat *f)
{
    json_t **containers[N_CONTAINER];
    bool failed = false;
    *out = *f;
    list_containers(out, containers);
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
    return f->types == SCHEMA_TYPE_ALL && f->touched ? f->touched : f->types;
}

fathom_err schema_flat_item(const struct schema_flat *f, size_t i, json_t **out)
{
    const json_t *own = json_array_get(f->prefix, i);
    if (!own) own = f->items ? f->items : f->unevaluated_items;
    *out = own ? json_incref((json_t *)own) : json_true();
    return *out ? FATHOM_OK : FATHOM_ENOMEM;
}

bool schema_same_value(const json_t *a, const json_t *b)
{
    if (json_is_number(a) && json_is_number(b)) {
        if (json_is_integer(a) && json_is_integer(b)) {
            return json_integer_value(a) == json_integer_value(b);
        }
        return json_number_value(a) == json_number_value(b);
    }
    return json_equal(a, b);
}
