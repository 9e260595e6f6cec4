/* unicode.h - general categories as of Unicode 16.0, the version the reference tokenizers follow
 *
 * Source  Unicode Character Database 16.0.0, DerivedGeneralCategory.txt and Scripts.txt;
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

/* Of letters; for other code points the case of the letter before them. */
enum unicode_case {
    UNICODE_UPPER, /* title case too */
    UNICODE_LOWER,
    UNICODE_NEITHER,
};

/* unicode_fill_groups - the group of every code point in [0, n), one byte each */
void unicode_fill_groups(unsigned char *groups, int32_t n);

/* unicode_group - of any code point up to U+10FFFF; a binary search */
enum unicode_group unicode_group(int32_t cp);

/* unicode_fill_cases, unicode_case - the same for the case of letters */
void unicode_fill_cases(unsigned char *cases, int32_t n);
enum unicode_case unicode_case(int32_t cp);

/* unicode_is_han - whether the script of a code point is Han */
bool unicode_is_han(int32_t cp);

/* unicode_add_newer - append, as ranges of a PCRE2 character class, the code points of a general
 * category ("L", "Nd") that Unicode 16.0 has and 14.0 has not. Between the two, assigned code
 * points change only within their group (U+1171E from Mn to Mc). */
fathom_err unicode_add_newer(struct buf *b, const char *category, size_t n);

#endif
