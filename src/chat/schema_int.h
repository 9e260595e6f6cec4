/* schema_int.h - what the files of a schema's compilation share
 *
 *   schema.c         values of any type, alternatives, rules for subschemas
 *   schema_merge.c   $ref, allOf and keywords into one flat set of constraints
 *   schema_ref.c     where a $ref leads
 *   schema_value.c   does a value of enum or const meet the other keywords
 *   schema_number.c  numbers as automata over digits
 *   schema_string.c  pattern, format and lengths as automata over code points
 *   schema_object.c  objects
 */
#ifndef FATHOM_CHAT_SCHEMA_INT_H
#define FATHOM_CHAT_SCHEMA_INT_H

#include <jansson.h>

#include "base/buf.h"
#include "chat/grammar_build_int.h"

enum {
    SCHEMA_REF_DEPTH_MAX = 64,    /* $ref and allOf inside one another, alternatives: EINVAL */
    SCHEMA_ITEMS_MAX = 4096,      /* minItems, finite maxItems, prefixItems: ELIMIT */
    SCHEMA_STATES_MAX = 1 << 15,  /* states of a number or a string with a pattern: ELIMIT */
    SCHEMA_PROPERTIES_MAX = 4096, /* properties of one object, required ones included: ELIMIT */
    SCHEMA_COUNT_MAX = 1 << 16,   /* properties times counts, with min- or maxProperties: ELIMIT */
    SCHEMA_ALTERNATIVES_MAX = 4096, /* combinations of anyOf and oneOf in one place: ELIMIT */
    SCHEMA_COST_MAX = 1 << 24,      /* of all automata together, some 2 s: ELIMIT */
};

enum schema_type {
    TYPE_NULL = 1,
    TYPE_BOOLEAN = 2,
    TYPE_INTEGER = 4,
    TYPE_NUMBER = 8, /* with TYPE_INTEGER: all numbers */
    TYPE_STRING = 16,
    TYPE_ARRAY = 32,
    TYPE_OBJECT = 64,
    TYPE_ALL = 127,
};

/* A schema without references and allOf: all keywords must hold. Containers are owned; NULL stands
 * for a keyword that does not occur. */
struct flat {
    unsigned types;   /* that "type" leaves */
    unsigned touched; /* that keywords speak of */
    bool never;
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
    uint32_t min_properties, max_properties;
    json_t *groups; /* array of arrays of schemas: one of each must hold */
    /* "unevaluated..." speaks of what its own schema leaves open. In one that others are joined to
     * (inner), this is known only as long as they say nothing of members or items. */
    bool inner_properties, inner_items;
    uint32_t n_members, n_elements; /* schemas that do */
};

/* A subschema with a rule of its own, drawn when its turn comes. */
struct schema_rule {
    json_t *schema; /* reference */
    char *key;      /* the schema as text: equal texts share a rule */
    uint64_t hash;
    char *path;
    uint32_t rule;
};

struct schema_compiler {
    struct grammar_builder *b;
    const json_t *root;
    fathom_diag *d;
    struct buf path; /* of what is looked at now, for messages */
    struct schema_rule *rules;
    uint32_t n_rule;
    size_t cap_rule;
    uint32_t n_alternative;
    uint32_t depth;
    uint64_t cost;
};

/* ---- schema.c --------------------------------------------------------------------------- */

/* schema_open, schema_close - a compiler for the subschemas of a root; schema_finish draws the
 * rules that are still to be drawn */
fathom_err schema_open(struct schema_compiler *c, struct grammar_builder *b, const json_t *root,
                       const char *path, fathom_diag *d);
fathom_err schema_finish(struct schema_compiler *c);
void schema_close(struct schema_compiler *c);

/* schema_enter - lengthen the path by "/name"; returns what schema_leave wants */
size_t schema_enter(struct schema_compiler *c, const char *name);
size_t schema_enter_index(struct schema_compiler *c, size_t i);
void schema_leave(struct schema_compiler *c, size_t mark);

/* schema_spend - account for an automaton; ELIMIT past SCHEMA_COST_MAX */
fathom_err schema_spend(struct schema_compiler *c, const struct dfa *d);

/* schema_put - a value that a schema describes: small ones in place, others as a rule */
fathom_err schema_put(struct schema_compiler *c, uint32_t from, const json_t *schema, uint32_t *to);

/* schema_put_flat - the same for constraints, in place; to is an existing state. f's groups are
 * taken apart. */
fathom_err schema_put_flat(struct schema_compiler *c, uint32_t from, struct flat *f, uint32_t to);

/* schema_types - the types that a flat schema without groups has values of */
unsigned schema_types(const struct flat *f);

/* ---- schema_merge.c --------------------------------------------------------------------- */

void flat_init(struct flat *f);
void flat_free(struct flat *f);

/* flat_merge - f must also satisfy a schema. EUNSUPPORTED, EINVAL with keyword and path. */
fathom_err flat_merge(struct schema_compiler *c, struct flat *f, const json_t *schema);

/* flat_each - call visit with a copy of f for each way to choose one schema of every group */
typedef fathom_err flat_visit(struct schema_compiler *c, struct flat *f, void *arg);
fathom_err flat_each(struct schema_compiler *c, const struct flat *f, flat_visit *visit, void *arg);

/* flat_item - the schema of element i, as an array of schemas that all hold; *out is a new
 * reference */
fathom_err flat_item(const struct flat *f, size_t i, json_t **out);

/* ---- schema_ref.c ----------------------------------------------------------------------- */

/* schema_resolve - what the value of a "$ref" leads to, borrowed from the root. EINVAL when there
 * is nothing, EUNSUPPORTED when it lies outside. */
fathom_err schema_resolve(struct schema_compiler *c, const json_t *ref, const json_t **out);

/* ---- schema_value.c --------------------------------------------------------------------- */

/* value_allowed - whether a value meets f, alternatives included */
fathom_err value_allowed(struct schema_compiler *c, const struct flat *f, const json_t *value,
                         bool *out);

/* value_equal - the equality of JSON schema: 1 is 1.0 */
bool value_equal(const json_t *a, const json_t *b);

/* ---- schema_number.c -------------------------------------------------------------------- */

/* number_put - a number under the rules of f; integer: without a fraction */
fathom_err number_put(struct schema_compiler *c, uint32_t from, const struct flat *f, bool integer,
                      uint32_t to);

/* number_build - its spellings as an automaton; needs at least one rule */
fathom_err number_build(struct schema_compiler *c, const struct flat *f, bool integer,
                        struct dfa *out);

/* ---- schema_string.c -------------------------------------------------------------------- */

/* pattern_build - the texts in which a pattern occurs; errors name the schema's path.
 * pattern_matches - whether it occurs in a name. */
fathom_err pattern_build(struct schema_compiler *c, const char *pattern, struct dfa *out);
fathom_err pattern_matches(struct schema_compiler *c, const char *pattern, const char *name,
                           bool *out);

/* string_put - a JSON string under the rules of f */
fathom_err string_put(struct schema_compiler *c, uint32_t from, const struct flat *f, uint32_t to);

/* string_build - the texts of the strings that f describes: values, rules, lengths. f has no
 * groups. */
fathom_err string_build(struct schema_compiler *c, const struct flat *f, struct dfa *out);

/* string_build_schema - the same for a schema with alternatives, all of its strings together */
fathom_err string_build_schema(struct schema_compiler *c, const json_t *schema, struct dfa *out);

/* ---- schema_object.c -------------------------------------------------------------------- */

/* One member that an object may have. */
struct member {
    const char *name;
    size_t n_name;
    json_t *schema; /* owned: all schemas that apply */
    bool required;
};

struct members {
    struct member *list;
    size_t n;
    json_t *rest; /* schema of others, borrowed; NULL: there are none */
};

/* members_collect - the members of an object in order: properties, then what else is required.
 * Members that cannot occur are left out; f->never is set when one of them is required. Released
 * with members_free. */
fathom_err members_collect(struct schema_compiler *c, struct flat *f, struct members *out);
void members_free(struct members *m);

fathom_err object_put(struct schema_compiler *c, uint32_t from, struct flat *f, uint32_t to);

#endif
