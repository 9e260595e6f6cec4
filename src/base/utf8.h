/* utf8.h - validation and decoding of UTF-8 (no surrogates, nothing past U+10FFFF, no overlong) */
#ifndef FATHOM_BASE_UTF8_H
#define FATHOM_BASE_UTF8_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { UTF8_BAD = -1, UTF8_SHORT = -2 };

/* utf8_next - decode the character at s[0 .. n)
 *
 *   len   its bytes; when bad: the bytes of the maximal ill-formed part (at least 1), which stand
 *         for one U+FFFD
 * Returns  the code point, UTF8_BAD, or UTF8_SHORT when n ends inside a so far valid character
 *          (len = n)
 * Needs    n >= 1. */
int32_t utf8_next(const char *s, size_t n, size_t *len);

/* utf8_encode - bytes written to out (1 to 4); cp is a valid scalar value */
size_t utf8_encode(char out[4], int32_t cp);

/* utf8_valid - whether all of s[0 .. n) is well formed; the empty text is */
bool utf8_valid(const char *s, size_t n);

/* utf8_mark - bytes of the mark (U+FEFF) that some editors put before a text, which is no part of
 * it: 3, or 0 */
size_t utf8_mark(const char *s, size_t n);

/* utf8_complete - the longest prefix of s[0 .. n) that does not end inside a character; bytes that
 * can never become valid count as complete */
size_t utf8_complete(const char *s, size_t n);

/* utf8_take - the character at p of a text that is valid; *cp: its code point
 * Returns  what follows it
 * Cost     no check, for loops over every character of a prompt */
static inline const unsigned char *utf8_take(const unsigned char *p, uint32_t *cp)
{
    uint32_t first = p[0];
    if (first < 0x80) {
        *cp = first;
        return p + 1;
    }
    if (first < 0xe0) {
        *cp = (first & 31) << 6 | (p[1] & 0x3fu);
        return p + 2;
    }
    if (first < 0xf0) {
        *cp = (first & 15) << 12 | (p[1] & 0x3fu) << 6 | (p[2] & 0x3fu);
        return p + 3;
    }
    *cp = (first & 7) << 18 | (p[1] & 0x3fu) << 12 | (p[2] & 0x3fu) << 6 | (p[3] & 0x3fu);
    return p + 4;
}

#endif
