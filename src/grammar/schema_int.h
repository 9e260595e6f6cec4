/* schema_int.h - what the files of a schema's compilation share, from the ground up
 *
 *   schema.c         the compiler's path and account; constraints as containers
 *   schema_ref.c     where a $ref leads
 *   schema_string.c  pattern, format and lengths as automata over code points
 *   schema_number.c  numbers as automata over digits
 *   schema_merge.c   $ref, allOf and keywords into one flat set of constraints
 *   schema_value.c   does a value of enum or const meet the other keywords
 *   schema_member.c  which members an object may have
 *   schema_put.c     values of any type drawn; rules for subschemas
 */
#ifndef FATHOM_GRAMMAR_SCHEMA_INT_H
#define FATHOM_GRAMMAR_SCHEMA_INT_H

#include "grammar/grammar_int.h"
#include "grammar/schema.h"

/* ---- schema_ref.c ----------------------------------------------------------------------- */

/* schema_resolve - what the value of a "$ref" leads to, borrowed from the root. EINVAL when there
 * is nothing, EUNSUPPORTED when it lies outside. */
fathom_err schema_resolve(struct schema_compiler *c, const json_t *ref, const json_t **out);

/* ---- schema_string.c -------------------------------------------------------------------- */

/* pattern_build - the texts in which a pattern occurs; errors name the schema's path.
 * pattern_matches - whether it occurs in a name. */
fathom_err pattern_build(struct schema_compiler *c, const char *pattern, struct dfa *out);
fathom_err pattern_matches(struct schema_compiler *c, const char *pattern, const char *name,
                           bool *out);

/* string_too_large - ELIMIT with its message */
fathom_err string_too_large(struct schema_compiler *c);

/* ---- schema_number.c -------------------------------------------------------------------- */

/* number_build - the spellings of the numbers under the rules of f, of which there is at least one;
 * integer: without a fraction */
fathom_err number_build(struct schema_compiler *c, const struct schema_flat *f, bool integer,
                        struct dfa *out);

/* ---- schema_value.c --------------------------------------------------------------------- */

/* value_allowed - whether a value meets f, alternatives included */
fathom_err value_allowed(struct schema_compiler *c, const struct schema_flat *f,
                         const json_t *value, bool *out);

/* ---- schema_member.c -------------------------------------------------------------------- */

/* Some members that are not named: the keys they may have, and what they are. */
struct other {
    struct dfa keys;
    json_t *schema; /* borrowed */
};

/* All of them: those of each pattern, then the rest. */
struct others {
    struct other *list;
    size_t n;
    bool any_key; /* the last one has every string for a key; its automaton is empty */
};

/* others_collect - besides the members m. Released with others_free. */
fathom_err others_collect(struct schema_compiler *c, const struct schema_flat *f,
                          const struct schema_members *m, struct others *o);
void others_free(struct others *o);

#endif
