/* pretok_scan.h - the three patterns of this model family as one hand-written scan
 *
 *   1  \p{N}{1,3}
 *   2  a run of U+4E00-U+9FA5, U+3040-U+309F, U+30A0-U+30FF
 *   3  ASCII punctuation and the ASCII letters after it; letters and marks with one other character
 *      before them; punctuation and symbols with a space before and line ends after; white space
 *
 * The pieces are those of PCRE2, found several times as fast.
 * Source  the pattern strings in the .c file.
 */
#ifndef FATHOM_TOKENIZER_PRETOK_SCAN_H
#define FATHOM_TOKENIZER_PRETOK_SCAN_H

#include <stdbool.h>
#include <stddef.h>

#include "tokenizer/pretok_pattern.h"

struct scanner;

/* scanner_knows - whether these are the patterns of the family */
bool scanner_knows(const struct pretok_pattern *patterns, size_t n);

fathom_err scanner_create(struct scanner **out);
void scanner_destroy(struct scanner *s); /* accepts NULL */

/* scanner_split - as pretok_split */
fathom_err scanner_split(const struct scanner *scanner, const char *s, size_t n, pretok_emit *emit,
                         void *arg);

#endif
