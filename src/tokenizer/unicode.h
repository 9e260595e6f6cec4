/* unicode.h - general categories as of Unicode 16.0, the version the reference tokenizers follow
 *
 * Source  Unicode Character Database 16.0.0, DerivedGeneralCategory.txt;
 *         tools/make_unicode_tables writes the tables.
 */
#ifndef FATHOM_TOKENIZER_UNICODE_H
#define FATHOM_TOKENIZER_UNICODE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/buf.h"

/* First letter of the general category; surrogates and unassigned code points are C. */
enum unicode_group {
    UNICODE_L,
    UNICODE_M,
    UNICODE_N,
    UNICODE_P,
    UNICODE_S,
    UNICODE_Z,
    UNICODE_C,
};

/* unicode_fill_groups - the group of every code point in [0, n), one byte each */
void unicode_fill_groups(unsigned char *groups, int32_t n);

/* unicode_group - of any code point up to U+10FFFF; a binary search */
enum unicode_group unicode_group(int32_t cp);

/* unicode_add_newer - append, as ranges of a PCRE2 character class, the code points of a general
 * category ("L", "Nd") that Unicode 16.0 has and 14.0 has not. Between the two, assigned code
 * points change only within their group (U+1171E from Mn to Mc). */
fathom_err unicode_add_newer(struct buf *b, const char *category, size_t n);

#endif
