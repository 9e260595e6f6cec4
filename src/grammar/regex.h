/* regex.h - regular expressions to automata over code points
 *
 * A subset of what Python and ECMAScript have in common:
 *
 *   x y, x|y, (x), (?:x), (?<name>x), (?P<name>x)
 *   x* x+ x? x{m} x{m,} x{,n} x{m,n}; a ? after these is read and changes nothing, since it only
 *   prefers one match to another
 *   . (all but \n), [a-z], [^a-z], ^ and $ (\A, \Z) wherever they stand
 *   \d \w \s \D \W \S (of ASCII), \n \r \t \f \v \0, \xHH, \uHHHH, \UHHHHHHHH, \ before a sign
 *
 * Not supported: back references, look-around, \b, \p{...}, flags, possessive repetitions, atomic
 * groups.
 */
#ifndef FATHOM_GRAMMAR_REGEX_H
#define FATHOM_GRAMMAR_REGEX_H

#include <stddef.h>

#include "fathom/err.h"
#include "grammar/automaton.h"

enum {
    REGEX_STATES_MAX = 1 << 15, /* states of a pattern's DFA; its NFA may have 4 times as many:
                                   ELIMIT */
    REGEX_REPEAT_MAX = 4096,    /* m and n of x{m,n}: ELIMIT */
    REGEX_DEPTH_MAX = 100,      /* nested groups: ELIMIT */
};

enum regex_mode {
    REGEX_FULL,   /* the whole text matches */
    REGEX_SEARCH, /* some part of it does: "pattern" of JSON schema */
};

/* regex_compile - the texts that a pattern matches
 *
 *   pattern  n bytes of UTF-8
 * Errors  EINVAL        the pattern is malformed; the message says at which byte and why
 *         EUNSUPPORTED  it uses what the subset does not have; the message names that and the byte
 *         ELIMIT, ENOMEM; ECANCEL of the budget, which may be NULL. *out is then empty.
 * Edge    a pattern may match nothing at all: dfa_is_empty. */
fathom_err regex_compile(struct dfa *out, const char *pattern, size_t n, enum regex_mode mode,
                         struct grammar_budget *budget, fathom_diag *d);

#endif
