/* schema_logic.c - "not", "if", "oneOf" and dependencies, as constraints and alternatives
 *
 * An alternative of "oneOf" that has no value in common with any other one is drawn as it is.
 * Another gets a constraint for each alternative that it is not apart from: a member of which the
 * two say different things becomes required; if there is no such member, a negation of the other
 * alternative must hold.
 */
#include "base/fail.h"
#include "base/json.h"
#include "grammar/schema_int.h"

/* Notes that fewer values are drawn of a keyword than it allows. If no value is left in the end, it
 * is then not certain that the schema has none. */
static void note_narrowed(struct schema_compiler *c, const char *keyword, bool exact)
{
    if (!exact) c->b->narrowed = keyword;
}

/* f must also satisfy one of the schemas of an array. */
static fathom_err merge_any(struct schema_compiler *c, struct schema_flat *f, const json_t *list)
{
    if (json_array_size(list) == 1) return schema_flat_merge(c, f, json_array_get(list, 0));
    if (json_array_size(list) > 1) return schema_append(&f->groups, list);
    f->never = true;
    return FATHOM_OK;
}

fathom_err logic_merge_not(struct schema_compiler *c, struct schema_flat *f, const json_t *schema)
{
    json_t *others;
    bool exact;
    if (!schema_is(schema)) return schema_malformed(c, "not", schema, "a schema");
    TRY(schema_negate(c, schema, &others, &exact));
    note_narrowed(c, "not", exact);
    fathom_err err;
    if (json_array_size(others) == 0 && !exact) {
        err = schema_unsupported(c, "not", " for what this schema says");
    } else {
        err = merge_any(c, f, others);
    }
    json_decref(others);
    return err;
}

/* f must also satisfy one of two ways: `when` and `then`, or a negation of `when` and
 * `otherwise`. */
static fathom_err merge_ways(struct schema_compiler *c, struct schema_flat *f, const json_t *when,
                             const json_t *then, const json_t *otherwise)
{
    json_t *others, *ways = json_array();
    bool exact;
    fathom_err err = ways ? schema_negate(c, when, &others, &exact) : FATHOM_ENOMEM;
    if (err) json_decref(ways);
    TRY(err);
    note_narrowed(c, "if", exact);
    if (json_array_size(others) == 0 && !exact) {
        err = schema_unsupported(c, "if", " for what this schema says");
    } else {
        json_t *way = json_pack("{s:[O,O]}", "allOf", when, then);
        if (json_array_append_new(ways, way)) err = FATHOM_ENOMEM;
        way = json_pack("{s:[{s:O},O]}", "allOf", "anyOf", others, otherwise);
        if (json_array_size(others) == 0) {
            json_decref(way);
        } else if (json_array_append_new(ways, way)) {
            err = FATHOM_ENOMEM;
        }
        if (!err) err = merge_any(c, f, ways);
    }
    json_decref(others);
    json_decref(ways);
    return err;
}

fathom_err logic_merge_if(struct schema_compiler *c, struct schema_flat *f, const json_t *schema)
{
    const json_t *when = json_object_get(schema, "if");
    json_t *then = json_object_get(schema, "then");
    json_t *otherwise = json_object_get(schema, "else");
    if (!then) then = json_true();
    if (!otherwise) otherwise = json_true();
    if (!schema_is(when)) return schema_malformed(c, "if", when, "a schema");
    if (!schema_is(then)) return schema_malformed(c, "then", then, "a schema");
    if (!schema_is(otherwise)) return schema_malformed(c, "else", otherwise, "a schema");
    /* members that "if" speaks of count as spoken of, for "unevaluatedProperties" */
    return merge_ways(c, f, when, then, otherwise);
}

/* The schema that holds if a certain member is there, a new reference; NULL: `what` is neither
 * names nor a schema. */
static json_t *dependent_schema(json_t *what)
{
    if (json_is_array(what)) return json_pack("{s:O}", "required", what);
    if (json_is_string(what)) return json_pack("{s:[O]}", "required", what);
    return schema_is(what) ? json_incref(what) : NULL;
}

fathom_err logic_merge_dependencies(struct schema_compiler *c, struct schema_flat *f,
                                    const char *keyword, const json_t *dependencies)
{
    const char *name;
    json_t *what;
    if (!json_is_plain_object(dependencies))
        return schema_malformed(c, keyword, dependencies, "an object");
    json_object_foreach ((json_t *)dependencies, name, what) {
        json_t *then = dependent_schema(what);
        if (!then) return schema_malformed(c, keyword, what, "an array of names or a schema");
        json_t *ways = json_pack("[{s:{s:b}},{s:[o,{s:[s],s:s}]}]", WORD_MEMBERS, name, 0, "allOf",
                                 then, "required", name, "type", "object");
        if (!ways) return FATHOM_ENOMEM;
        fathom_err err = schema_append(&f->groups, ways);
        json_decref(ways);
        TRY(err);
    }
    return FATHOM_OK;
}

/* ---- oneOf ------------------------------------------------------------------------------ */

enum { NEAR_MAX = 4 }; /* schemas that say "and not that one"; each of them is drawn */

/* Keeps, of the negations of another alternative, up to `max` that outputs of this one may meet. */
static fathom_err keep_near(struct schema_compiler *c, const json_t *own, json_t *others,
                            size_t max, bool *exact)
{
    for (size_t i = 0; i < json_array_size(others);) {
        bool apart = false;
        if (i < max) TRY(schema_apart(c, own, json_array_get(others, i), &apart));
        if (i >= max) *exact = false;
        if (apart || i >= max) {
            json_array_remove(others, i);
        } else {
            i++;
        }
    }
    return FATHOM_OK;
}

/* Adds to `parts` what keeps values of `own` from being values of `other` too. */
static fathom_err add_distance(struct schema_compiler *c, const json_t *own, const json_t *other,
                               size_t *n_hard, json_t *parts, bool *possible, bool *exact)
{
    bool apart = false, whole;
    json_t *others, *part = NULL;
    TRY(schema_apart(c, own, other, &apart));
    if (apart) return FATHOM_OK;
    TRY(schema_tell_apart(c, own, other, &part));
    if (part) return json_array_append_new(parts, part) ? FATHOM_ENOMEM : FATHOM_OK;
    TRY(schema_negate(c, other, &others, &whole));
    *exact &= whole;
    fathom_err err = keep_near(c, own, others, (*n_hard)++ == 0 ? NEAR_MAX : 1, exact);
    *possible = json_array_size(others) > 0;
    part = json_pack("{s:o}", "anyOf", others);
    if (!part || json_array_append_new(parts, part)) err = FATHOM_ENOMEM;
    return err;
}

/* Alternative i of a group and none of the others, as a new schema in *out; NULL: it has no
 * value. */
static fathom_err only_one(struct schema_compiler *c, const json_t *group, size_t i, json_t **out,
                           bool *exact)
{
    json_t *own = json_array_get(group, i), *parts = json_pack("[O]", own);
    fathom_err err = parts ? FATHOM_OK : FATHOM_ENOMEM;
    size_t n_hard = 0;
    bool possible = true;
    *out = NULL;
    for (size_t k = 0; k < json_array_size(group) && !err && possible; k++) {
        if (k == i) continue;
        err = add_distance(c, own, json_array_get(group, k), &n_hard, parts, &possible, exact);
    }
    if (!err && possible) {
        *out = json_array_size(parts) > 1 ? json_pack("{s:O}", "allOf", parts) : json_incref(own);
        if (!*out) err = FATHOM_ENOMEM;
    }
    json_decref(parts);
    return err;
}

fathom_err logic_merge_one_of(struct schema_compiler *c, struct schema_flat *f, const json_t *group)
{
    json_t *kept = json_array();
    bool exact = true;
    fathom_err err = kept ? FATHOM_OK : FATHOM_ENOMEM;
    for (size_t i = 0; i < json_array_size(group) && !err; i++) {
        json_t *one;
        size_t mark = schema_enter(c, "oneOf");
        (void)schema_enter_index(c, i);
        err = only_one(c, group, i, &one, &exact);
        if (!err) schema_leave(c, mark);
        if (!err && one && json_array_append_new(kept, one)) err = FATHOM_ENOMEM;
    }
    note_narrowed(c, "oneOf", exact);
    if (!err && json_array_size(kept) == 0 && !exact) {
        err = schema_unsupported(c, "oneOf", " for alternatives that cannot be told apart");
    } else if (!err && json_array_size(kept) == 0) {
        f->never = true;
    } else if (!err) {
        err = schema_append(&f->groups, kept);
    }
    json_decref(kept);
    return err;
}
