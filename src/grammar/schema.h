/* schema.h - a JSON schema taken apart, for those who draw some values in a form of their own
 *
 * To draw a schema as JSON, grammar_put_schema (builder.h) is enough. A writer with another form
 * for some values, as V3.2 has for the parameters of a tool call, goes step by step:
 *
 *   struct schema_compiler c;
 *   schema_open(&c, b, schema, path, d)       for all subschemas of one schema
 *   schema_flat_merge(&c, &f, schema)         $ref, allOf and keywords become constraints
 *   schema_flat_each(&c, &f, visit, arg)      one call for each choice of alternatives, which
 *       schema_members_collect(&c, f, &m)       may ask for the members of an object,
 *       schema_build_string(&c, f, &dfa)        for the texts of a string,
 *       schema_put_flat(&c, from, f, to)        or draw what is left as JSON
 *   schema_finish(&c)                         draws the rules of subschemas met on the way
 *   schema_close(&c)
 */
#ifndef FATHOM_GRAMMAR_SCHEMA_H
#define FATHOM_GRAMMAR_SCHEMA_H

#include <jansson.h>

#include "base/buf.h"
#include "grammar/automaton.h"

enum {
    SCHEMA_REF_DEPTH_MAX = 64,    /* $ref and allOf inside one another, alternatives: EINVAL */
    SCHEMA_ITEMS_MAX = 4096,      /* minItems, finite maxItems, prefixItems: ELIMIT */
    SCHEMA_STATES_MAX = 1 << 15,  /* states of a number or a string with a pattern: ELIMIT */
    SCHEMA_PROPERTIES_MAX = 4096, /* properties of one object, required ones included: ELIMIT */
    SCHEMA_COUNT_MAX = 1 << 16,   /* properties times counts, with min- or maxProperties: ELIMIT */
    SCHEMA_ALTERNATIVES_MAX = 4096, /* combinations of anyOf and oneOf in one place: ELIMIT */
};

/* ---- the compiler ----------------------------------------------------------------------- */

struct grammar_builder;
struct schema_rule;

/* The state of one compilation. */
struct schema_compiler {
    struct grammar_builder *b;
    const json_t *root; /* borrowed */
    fathom_diag *d;
    struct buf path; /* of what is looked at now, for messages */
    struct schema_rule *rules;
    uint32_t n_rule;
    size_t cap_rule;
    uint32_t n_alternative;
    uint32_t depth;
    bool wide; /* keywords that are only drawn narrower than they are, such as "not", are left out
                  (schema_apart.c) */
};

/* schema_open - a compiler for a root and its subschemas
 *
 *   path  of the root, for messages: "#"
 * Errors  ENOMEM.
 * Owns    what schema_close releases, after an error too. */
fathom_err schema_open(struct schema_compiler *c, struct grammar_builder *b, const json_t *root,
                       const char *path, fathom_diag *d);

/* schema_finish - draw the rules that schema_put_flat has put off; errors as grammar_from_schema
 * schema_close - release. If the budget ran out and there is no message yet, writes one with the
 * place. */
fathom_err schema_finish(struct schema_compiler *c);
void schema_close(struct schema_compiler *c);

/* schema_enter - lengthen the path by "/name". schema_enter_index - by "/i".
 * Returns what schema_leave wants. */
size_t schema_enter(struct schema_compiler *c, const char *name);
size_t schema_enter_index(struct schema_compiler *c, size_t i);
void schema_leave(struct schema_compiler *c, size_t mark);

/* Units (budget.h) for what is done in many places. */
enum {
    UNITS_STEP = 5,      /* to look at an element of a list */
    UNITS_COMPARE = 35,  /* to compare two JSON values */
    UNITS_TEXT = 30,     /* to write and hash a byte of a schema */
    UNITS_VALUE = 120,   /* to copy a JSON value, or to put it into a container */
    UNITS_KEYWORD = 800, /* to find a keyword by its name */
};

/* schema_spend - pay for work out of the builder's budget; errors as budget_spend */
fathom_err schema_spend(struct schema_compiler *c, uint64_t units);

/* ---- constraints ------------------------------------------------------------------------ */

enum schema_type {
    SCHEMA_TYPE_NULL = 1,
    SCHEMA_TYPE_BOOLEAN = 2,
    SCHEMA_TYPE_INTEGER = 4,
    SCHEMA_TYPE_NUMBER = 8, /* with INTEGER: all numbers */
    SCHEMA_TYPE_STRING = 16,
    SCHEMA_TYPE_ARRAY = 32,
    SCHEMA_TYPE_OBJECT = 64,
    SCHEMA_TYPE_ALL = 127,
};

/* Whether "unevaluatedProperties" (or "unevaluatedItems") can be joined with what stands around it.
 * The keyword sees the members (or items) that its own schema speaks of, with all that is inside
 * that schema, but nothing beside it. In an inner schema, one that others are joined to, joining it
 * is right only if every schema that speaks of members is inside. */
struct schema_scope {
    uint32_t n_speaker; /* schemas merged so far that speak of members */
    bool inner;         /* an inner schema has the keyword, and it forbids something */
    bool unlike;        /* several inner schemas have it and see different numbers of speakers */
    bool whole;         /* no speakers and no alternatives came before any of them */
    uint32_t n_seen;    /* speakers inside the latest of them */
    size_t n_group;     /* the fewest groups of alternatives there were behind one of them */
};

/* The constraints of a schema, with those of $ref and allOf joined to them: all must hold.
 * Containers are owned; NULL stands for a keyword that does not occur. */
struct schema_flat {
    unsigned types;       /* the types that "type" allows */
    unsigned touched;     /* the types that other keywords speak of */
    bool never;           /* no value meets the constraints */
    json_t *values;       /* array: enum, const */
    json_t *number_rules; /* array of {keyword: number}: bounds and multipleOf */
    json_t *string_rules; /* array of {keyword: string}: pattern and format */
    uint32_t min_length, max_length;
    json_t *prefix; /* array of schemas */
    json_t *items;
    json_t *unevaluated_items;
    bool unique;
    uint32_t min_items, max_items;
    json_t *properties; /* name: schema */
    json_t *required;   /* array of names */
    json_t *additional;
    json_t *unevaluated;
    json_t *patterns; /* pattern: schema */
    json_t *names;    /* array of schemas */
    json_t *demands;  /* name: a schema that a member of this name must meet too, if there is one */
    uint32_t min_properties, max_properties;
    json_t *groups; /* array of arrays of schemas: one of each must hold */
    struct schema_scope members, elements;
};

/* schema_flat_init - set no constraint, so that every value is allowed. schema_flat_free - release;
 * f is as initialised then. */
void schema_flat_init(struct schema_flat *f);
void schema_flat_free(struct schema_flat *f);

/* schema_flat_copy - make *out a copy with containers of its own
 * Errors  ENOMEM; ECANCEL of the budget; *out is as initialised then. */
fathom_err schema_flat_copy(struct schema_compiler *c, struct schema_flat *out,
                            const struct schema_flat *f);

/* schema_flat_merge - f must also satisfy a schema. EUNSUPPORTED, EINVAL with keyword and path. */
fathom_err schema_flat_merge(struct schema_compiler *c, struct schema_flat *f,
                             const json_t *schema);

/* schema_flat_each - call visit with a copy of f for each way to choose one schema of every group.
 * The copy, which has no groups, may be changed. */
typedef fathom_err schema_visit(struct schema_compiler *c, struct schema_flat *f, void *arg);
fathom_err schema_flat_each(struct schema_compiler *c, const struct schema_flat *f,
                            schema_visit *visit, void *arg);

/* schema_types - the types that the constraints allow; f has no groups */
unsigned schema_types(const struct schema_flat *f);

/* schema_flat_item - the schema of element i of an array; *out is a new reference. ENOMEM. */
fathom_err schema_flat_item(const struct schema_flat *f, size_t i, json_t **out);

/* schema_same_value - the equality of JSON schema: 1 is 1.0. ECANCEL of the budget. */
fathom_err schema_same_value(struct schema_compiler *c, const json_t *a, const json_t *b,
                             bool *out);

/* schema_keep_allowed - remove from f->values those that do not meet the other constraints; does
 * nothing if f has no values. f has no groups. */
fathom_err schema_keep_allowed(struct schema_compiler *c, struct schema_flat *f);

/* schema_build_string - make the automaton, over code points, of the strings that the constraints
 * describe: of the strings in f->values, on which schema_keep_allowed was called before, or else of
 * those that meet the rules and lengths. f has no groups. */
fathom_err schema_build_string(struct schema_compiler *c, const struct schema_flat *f,
                               struct dfa *out);

/* schema_put_flat - draw the JSON values that constraints describe, from one state to another */
fathom_err schema_put_flat(struct schema_compiler *c, uint32_t from, const struct schema_flat *f,
                           uint32_t to);

/* ---- objects ---------------------------------------------------------------------------- */

/* One member that an object may have. */
struct schema_member {
    const char *name;
    size_t n_name;
    json_t *schema; /* owned: all schemas that apply */
    bool required;
};

struct schema_members {
    struct schema_member *list;
    size_t n;
    json_t *rest; /* schema of others, borrowed; NULL: there are none */
};

/* schema_members_collect - list the members of an object in order: its properties, then other
 * required names. Members that cannot occur are left out; if one of these is required, f->never is
 * set. Released with schema_members_free. */
fathom_err schema_members_collect(struct schema_compiler *c, struct schema_flat *f,
                                  struct schema_members *out);
void schema_members_free(struct schema_members *m);

#endif
