/* char_class.h - a set of characters, as patterns and grammars write it in brackets */
#ifndef FATHOM_GRAMMAR_CHAR_CLASS_H
#define FATHOM_GRAMMAR_CHAR_CLASS_H

#include "grammar/automaton.h"

enum { CHAR_CLASS_RANGES_MAX = 256 };

/* Code points; ascending, disjoint ranges once it has been normalised. */
struct char_class {
    uint32_t n;
    struct {
        uint32_t lo, hi;
    } ranges[CHAR_CLASS_RANGES_MAX];
};

/* char_class_add - one more range; ELIMIT when there are CHAR_CLASS_RANGES_MAX */
fathom_err char_class_add(struct char_class *c, uint32_t lo, uint32_t hi);

/* char_class_add_named - \d \w \s of ASCII, and \D \W \S, what these do not hold
 *
 *   known  false, and nothing is added: the letter names no class
 * Errors  ELIMIT as above. */
fathom_err char_class_add_named(struct char_class *c, uint32_t letter, bool *known);

/* char_class_normalise - the same characters in ascending, disjoint ranges */
void char_class_normalise(struct char_class *c);

/* char_class_negate - all other code points, normalised; ELIMIT as above */
fathom_err char_class_negate(struct char_class *c);

/* char_class_put - an edge for each range, without the surrogates */
void char_class_put(struct nfa *n, const struct char_class *c, uint32_t from, uint32_t to);

#endif
