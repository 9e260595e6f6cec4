/* schema_int.h - what the files of a schema's compilation share; each may use those listed before
 * it
 *
 *   schema.c         the compiler's path and budget; constraints as containers
 *   schema_ref.c     where a $ref leads
 *   schema_string.c  pattern, format and lengths as automata over code points
 *   schema_number.c  numbers as automata over digits
 *   schema_merge.c   $ref, allOf and keywords into one flat set of constraints
 *   schema_logic.c   not, if, oneOf, dependencies
 *   schema_negate.c  what does not satisfy a schema, as alternatives
 *   schema_apart.c   whether two schemas have no value in common
 *   schema_value.c   whether a value of enum or const meets the other keywords
 *   schema_member.c  which members an object may have
 *   schema_unique.c  arrays whose elements differ
 *   schema_put.c     values of any type drawn; rules for subschemas
 */
#ifndef FATHOM_GRAMMAR_SCHEMA_INT_H
#define FATHOM_GRAMMAR_SCHEMA_INT_H

#include "grammar/grammar_int.h"
#include "grammar/schema.h"

/* ---- schema_ref.c ----------------------------------------------------------------------- */

/* schema_resolve - find what a "$ref" leads to, borrowed from the root. EINVAL: there is nothing.
 * EUNSUPPORTED: it lies outside the schema. */
fathom_err schema_resolve(struct schema_compiler *c, const json_t *ref, const json_t **out);

/* ---- schema_string.c -------------------------------------------------------------------- */

/* pattern_build - make the automaton of the texts in which a pattern occurs; errors name the
 * schema's path. pattern_matches - whether it occurs in a name. */
fathom_err pattern_build(struct schema_compiler *c, const char *pattern, struct dfa *out);
fathom_err pattern_matches(struct schema_compiler *c, const char *pattern, const char *name,
                           bool *out);

/* format_is_known - whether a "format" of strings of this name is enforced */
bool format_is_known(const char *name);

/* string_too_large - ELIMIT with its message */
fathom_err string_too_large(struct schema_compiler *c);

/* ---- schema_number.c -------------------------------------------------------------------- */

/* number_build - make the automaton of the spellings of numbers that meet the rules of f, of which
 * there is at least one. integer: without a fraction. */
fathom_err number_build(struct schema_compiler *c, const struct schema_flat *f, bool integer,
                        struct dfa *out);

/* ---- schema_value.c --------------------------------------------------------------------- */

/* value_allowed - whether a value meets f, alternatives included */
fathom_err value_allowed(struct schema_compiler *c, const struct schema_flat *f,
                         const json_t *value, bool *out);

/* schema_type_of - the types that a value is of */
unsigned schema_type_of(const json_t *value);

/* ---- schema_merge.c --------------------------------------------------------------------- */

/* keyword_asserts - whether a keyword of this name says anything about values */
bool keyword_asserts(const char *name);

/* schema_malformed - EINVAL with its message. schema_unsupported - EUNSUPPORTED, unless lenient.
 * schema_append - a value, which stays the caller's, to an array that may not exist yet.
 * schema_is - an object, true or false */
fathom_err schema_malformed(struct schema_compiler *c, const char *keyword, const json_t *value,
                            const char *needed);
fathom_err schema_unsupported(struct schema_compiler *c, const char *keyword, const char *why);
fathom_err schema_append(json_t **array, const json_t *value);
bool schema_is(const json_t *value);

/* ---- schema_logic.c --------------------------------------------------------------------- */

/* logic_merge_* - f must also satisfy
 *   _not           the negation of a schema
 *   _if            the "if", "then" and "else" of a schema
 *   _dependencies  the dependencies that a keyword's object lists
 *   _one_of        exactly one schema of a group
 * Errors as schema_flat_merge. */
fathom_err logic_merge_not(struct schema_compiler *c, struct schema_flat *f, const json_t *schema);
fathom_err logic_merge_if(struct schema_compiler *c, struct schema_flat *f, const json_t *schema);
fathom_err logic_merge_dependencies(struct schema_compiler *c, struct schema_flat *f,
                                    const char *keyword, const json_t *dependencies);
fathom_err logic_merge_one_of(struct schema_compiler *c, struct schema_flat *f,
                              const json_t *group);

/* ---- schema_negate.c -------------------------------------------------------------------- */

/* Keywords of our own, which schema_negate.c describes. */
#define WORD_MEMBERS "\001members"
#define WORD_NOT_PATTERN "\001notPattern"
#define WORD_NOT_VALUES "\001notValues"

/* schema_negate - make schemas such that a value that satisfies any of them does not satisfy
 * `schema`
 *
 *   out    a new array of them; it may be empty
 *   exact  whether every value that does not satisfy `schema` satisfies one of them */
fathom_err schema_negate(struct schema_compiler *c, const json_t *schema, json_t **out,
                         bool *exact);

/* ---- schema_apart.c --------------------------------------------------------------------- */

/* schema_apart - whether it is certain that no output drawn from a is a value of b */
fathom_err schema_apart(struct schema_compiler *c, const json_t *a, const json_t *b, bool *out);

/* schema_tell_apart - find a constraint that keeps the objects of a from being values of b: that a
 * member is there of which the two schemas say different things, or that one is not there which b
 * requires. *out is a new schema; NULL: none was found */
fathom_err schema_tell_apart(struct schema_compiler *c, const json_t *a, const json_t *b,
                             json_t **out);

/* ---- schema_unique.c -------------------------------------------------------------------- */

/* unique_values - list the values that elements of an array may have, without repetitions; *out is
 * a new array, or NULL if they are not a list of values */
fathom_err unique_values(struct schema_compiler *c, const struct schema_flat *f, json_t **out);

/* unique_put_elements - draw one or more elements, each a different one of the values, from behind
 * the bracket to `close`. ELIMIT: there are too many. */
fathom_err unique_put_elements(struct schema_compiler *c, uint32_t open,
                               const struct schema_flat *f, const json_t *values, uint32_t close);

/* ---- schema_member.c -------------------------------------------------------------------- */

/* Members that are not named: the keys that they may have, and the schema of their values. */
struct other {
    struct dfa keys;
    json_t *schema; /* borrowed */
};

/* All members that are not named: those of each pattern, then the rest. */
struct others {
    struct other *list;
    size_t n;
    bool any_key; /* the last one has every string for a key; its automaton is empty */
};

/* others_collect - list what members an object may have besides m. Released with others_free. */
fathom_err others_collect(struct schema_compiler *c, const struct schema_flat *f,
                          const struct schema_members *m, struct others *o);
void others_free(struct others *o);

#endif
