/* builder.h - draw a grammar
 *
 * A grammar is a set of rules. Each rule is a graph with a begin state and an end state. An output
 * is what stands on a path from the begin to the end of the root rule: text, markup, JSON, words of
 * other rules. For a sequence, one thing is put after the other; a choice is several paths between
 * two states; a repetition is a link back:
 *
 *   uint32_t rule = grammar_add_rule(b);
 *   uint32_t at = grammar_rule_begin(b, rule);
 *   at = grammar_put_text(b, at, "answer: ", 8);
 *   TRY(grammar_put_schema(b, at, schema, &at, d));
 *   grammar_join(b, at, grammar_rule_end(b, rule));
 *   TRY(grammar_build(&g, b, rule, d));
 *
 * Functions that return a state report no error: the first failure is kept, and grammar_build
 * returns it. Each returns a new state, which stands behind what was put.
 */
#ifndef FATHOM_GRAMMAR_BUILDER_H
#define FATHOM_GRAMMAR_BUILDER_H

#include "grammar/automaton.h"
#include "grammar/grammar.h"

struct grammar_builder;

/* grammar_builder_create - a builder without rules. v must outlive the grammars; options may be
 * NULL. */
fathom_err grammar_builder_create(struct grammar_builder **out, const struct grammar_vocab *v,
                                  const struct grammar_options *options);
void grammar_builder_destroy(struct grammar_builder *b); /* accepts NULL */

/* grammar_builder_budget - what pays for drawing and building, GRAMMAR_WORK_MAX units at first */
struct grammar_budget *grammar_builder_budget(struct grammar_builder *b);

/* grammar_build - compile what has been drawn
 *
 *   root  a rule
 * Errors  what failed while drawing; EINVAL when nothing can be written, when a rule that is called
 *         may be empty, or when a rule begins with itself; ELIMIT, ENOMEM; ECANCEL of the
 *         budget. */
fathom_err grammar_build(struct grammar **out, struct grammar_builder *b, uint32_t root,
                         fathom_diag *d);

/* grammar_draw - draw `what` from state `from` on; *to becomes the state behind it */
typedef fathom_err grammar_draw(struct grammar_builder *b, uint32_t from, const void *what,
                                uint32_t *to, fathom_diag *d);

/* grammar_compile - make the grammar whose root rule one function draws
 *
 *   what  passed to `draw`
 *   stop  NULL, or a flag that any thread may raise to end the compilation
 * Errors  as grammar_build, and what `draw` returns; ELIMIT when it is more work than
 *         GRAMMAR_WORK_MAX units, ECANCEL when the flag was raised. *out is then NULL. */
fathom_err grammar_compile(struct grammar **out, const struct grammar_vocab *v,
                           const struct grammar_options *options, grammar_draw *draw,
                           const void *what, const atomic_bool *stop, fathom_diag *d);

/* grammar_add_rule - a rule that nothing matches yet. grammar_rule_begin, grammar_rule_end - its
 * states. */
uint32_t grammar_add_rule(struct grammar_builder *b);
uint32_t grammar_rule_begin(const struct grammar_builder *b, uint32_t rule);
uint32_t grammar_rule_end(const struct grammar_builder *b, uint32_t rule);

/* grammar_add_state - a new state. grammar_join - add a link: who is at `from` may go on at
 * `to`. */
uint32_t grammar_add_state(struct grammar_builder *b);
void grammar_join(struct grammar_builder *b, uint32_t from, uint32_t to);

/* grammar_put_text - exactly these n bytes. grammar_put_markup - the same, but where the text has
 * that of an added token, the token itself may come too. grammar_put_bytes - one byte of lo .. hi.
 */
uint32_t grammar_put_text(struct grammar_builder *b, uint32_t from, const char *text, size_t n);
uint32_t grammar_put_markup(struct grammar_builder *b, uint32_t from, const char *text);
uint32_t grammar_put_bytes(struct grammar_builder *b, uint32_t from, uint8_t lo, uint8_t hi);

/* grammar_put_rule - a word of another rule, which may be drawn later. No word of that rule may be
 * empty. */
uint32_t grammar_put_rule(struct grammar_builder *b, uint32_t from, uint32_t rule);

/* grammar_put_until - any text, then `end`, which does not occur before. Markup as above. */
uint32_t grammar_put_until(struct grammar_builder *b, uint32_t from, const char *end);

/* grammar_put_dfa - a text that d accepts. grammar_put_string_dfa - a JSON string that stands for
 * such a text, escaped as json.dumps(ensure_ascii=False) does. */
uint32_t grammar_put_dfa(struct grammar_builder *b, uint32_t from, const struct dfa *d);
uint32_t grammar_put_string_dfa(struct grammar_builder *b, uint32_t from, const struct dfa *d);

/* grammar_put_string - any JSON string of min to max characters; UINT32_MAX: no end */
uint32_t grammar_put_string(struct grammar_builder *b, uint32_t from, uint32_t min, uint32_t max);

/* grammar_put_json - JSON in general (builder_json.c) */
uint32_t grammar_put_json(struct grammar_builder *b, uint32_t from, enum grammar_json what);

/* grammar_put_literal - exactly this value, spelled as json.dumps(ensure_ascii=False) does up to
 * white space */
uint32_t grammar_put_literal(struct grammar_builder *b, uint32_t from, const json_t *value);

/* grammar_put_space - the optional white space after ':', after ',', or inside a bracket */
enum grammar_place {
    GRAMMAR_AFTER_COLON,
    GRAMMAR_AFTER_COMMA,
    GRAMMAR_IN_BRACKET,   /* after the opening one */
    GRAMMAR_BEFORE_CLOSE, /* before the closing one */
};
uint32_t grammar_put_space(struct grammar_builder *b, uint32_t from, enum grammar_place place);

/* grammar_put_schema - a value that the schema describes (schema_put.c). grammar_put_schema_at -
 * messages call the schema's root `path` in place of "#"
 *
 *   to  the state after it
 * Errors  as grammar_from_schema */
fathom_err grammar_put_schema(struct grammar_builder *b, uint32_t from, const json_t *schema,
                              uint32_t *to, fathom_diag *d);
fathom_err grammar_put_schema_at(struct grammar_builder *b, uint32_t from, const json_t *schema,
                                 const char *path, uint32_t *to, fathom_diag *d);

/* grammar_put_regex - a text that a pattern (grammar/regex.h) matches as a whole
 * grammar_put_choice - one of the strings of an array
 *
 *   to  the state after it
 * Errors  as grammar_from_regex, grammar_from_choice */
fathom_err grammar_put_regex(struct grammar_builder *b, uint32_t from, const char *pattern,
                             size_t n, uint32_t *to, fathom_diag *d);
fathom_err grammar_put_choice(struct grammar_builder *b, uint32_t from, const json_t *choices,
                              uint32_t *to, fathom_diag *d);

/* grammar_put_ebnf - a text of the root of a grammar in GBNF, or Lark's notation (ebnf.c)
 *
 *   text  n bytes
 *   to    the state after it
 * Errors  as grammar_from_ebnf */
fathom_err grammar_put_ebnf(struct grammar_builder *b, uint32_t from, const char *text, size_t n,
                            uint32_t *to, fathom_diag *d);

/* grammar_put_tag - a text that a structural tag describes (tag_put.c)
 *
 *   to  the state after it
 * Errors  as grammar_from_tag */
fathom_err grammar_put_tag(struct grammar_builder *b, uint32_t from, const json_t *tag,
                           uint32_t *to, fathom_diag *d);

#endif
