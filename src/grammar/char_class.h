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

/* char_class_add - add a range; ELIMIT: there are CHAR_CLASS_RANGES_MAX already */
fathom_err char_class_add(struct char_class *c, uint32_t lo, uint32_t hi);

/* char_class_add_named - add \d, \w or \s of ASCII, or \D, \W or \S: all but these
 *
 *   known  false: the letter names no class, and nothing was added
 * Errors  ELIMIT as above. */
fathom_err char_class_add_named(struct char_class *c, uint32_t letter, bool *known);

/* char_class_normalise - sort the ranges and join those that overlap or touch */
void char_class_normalise(struct char_class *c);

/* char_class_negate - all other code points, normalised; ELIMIT as above */
fathom_err char_class_negate(struct char_class *c);

/* char_class_put - draw an edge for each range, without the surrogates */
void char_class_put(struct nfa *n, const struct char_class *c, uint32_t from, uint32_t to);

#endif
