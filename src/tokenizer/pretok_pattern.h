/* pretok_pattern.h - regular expressions of tokenizer.json in PCRE2's terms
 *
 * The reference runs them with Oniguruma (Ruby syntax) and Unicode 16.0. What both engines read
 * alike passes unchanged. \p{..}, \s and \d are written so that PCRE2 with Unicode 14.0 tables
 * gives 16.0's answer. A category gains the code points that came later; \s is White_Space. A PCRE2
 * with newer tables loses nothing by it. What the engines read differently, and what this family
 * has no use for, is refused by name.
 */
#ifndef FATHOM_TOKENIZER_PRETOK_PATTERN_H
#define FATHOM_TOKENIZER_PRETOK_PATTERN_H

#include <stddef.h>

#include "base/buf.h"
#include "fathom/err.h"

/* One pattern of tokenizer.json, in its own spelling. */
struct pretok_pattern {
    const char *text; /* n bytes of UTF-8 */
    size_t n;
};

/* pretok_emit - takes a piece, n >= 1; an error ends the splitting and comes back */
typedef fathom_err pretok_emit(void *arg, const char *s, size_t n);

/* pattern_translate - append the PCRE2 form of pattern[0 .. n)
 *
 *   what  names the input in messages
 * Errors  EUNSUPPORTED naming the construct and its byte; ENOMEM. */
fathom_err pattern_translate(struct buf *out, const char *pattern, size_t n, const char *what,
                             fathom_diag *d);

#endif
