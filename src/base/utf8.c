/* utf8.c - UTF-8 decoded, encoded and checked */
#include "base/utf8.h"

#include <string.h>

/* Smallest and largest second byte for each lead byte that restricts it (Unicode, table 3-7). */
static void second_range(unsigned char lead, unsigned char *lo, unsigned char *hi)
{
    *lo = lead == 0xe0 ? 0xa0 : lead == 0xf0 ? 0x90 : 0x80;
    *hi = lead == 0xed ? 0x9f : lead == 0xf4 ? 0x8f : 0xbf;
}

int32_t utf8_next(const char *s, size_t n, size_t *len)
{
    const unsigned char *u = (const unsigned char *)s;
    unsigned char lead = u[0];
    *len = 1;
    if (lead < 0x80) return lead;
    if (lead < 0xc2 || lead > 0xf4) return UTF8_BAD;
    size_t need = lead < 0xe0 ? 2 : lead < 0xf0 ? 3 : 4;
    int32_t cp = need == 2 ? lead & 0x1f : need == 3 ? lead & 0x0f : lead & 0x07;
    unsigned char lo, hi;
    second_range(lead, &lo, &hi);
    for (size_t i = 1; i < need; i++) {
        *len = i;
        if (i >= n) return UTF8_SHORT;
        if (u[i] < lo || u[i] > hi) return UTF8_BAD;
        cp = cp << 6 | (u[i] & 0x3f);
        lo = 0x80;
        hi = 0xbf;
    }
    *len = need;
    return cp;
}

size_t utf8_encode(char out[4], int32_t cp)
{
    if (cp < 0x80) {
        out[0] = (char)cp;
        return 1;
    }
    if (cp < 0x800) {
        out[0] = (char)(0xc0 | cp >> 6);
        out[1] = (char)(0x80 | (cp & 0x3f));
        return 2;
    }
    if (cp < 0x10000) {
        out[0] = (char)(0xe0 | cp >> 12);
        out[1] = (char)(0x80 | (cp >> 6 & 0x3f));
        out[2] = (char)(0x80 | (cp & 0x3f));
        return 3;
    }
    out[0] = (char)(0xf0 | cp >> 18);
    out[1] = (char)(0x80 | (cp >> 12 & 0x3f));
    out[2] = (char)(0x80 | (cp >> 6 & 0x3f));
    out[3] = (char)(0x80 | (cp & 0x3f));
    return 4;
}

bool utf8_valid(const char *s, size_t n)
{
    size_t len;
    for (size_t i = 0; i < n; i += len) {
        if (utf8_next(s + i, n - i, &len) < 0) return false;
    }
    return true;
}

size_t utf8_mark(const char *s, size_t n)
{
    return n >= 3 && memcmp(s, "\xEF\xBB\xBF", 3) == 0 ? 3 : 0;
}

size_t utf8_complete(const char *s, size_t n)
{
    size_t len;
    /* a character that is still incomplete starts in the last three bytes */
    for (size_t back = 1; back <= 3 && back <= n; back++) {
        unsigned char c = (unsigned char)s[n - back];
        if (c >= 0xc0) {
            return utf8_next(s + n - back, back, &len) == UTF8_SHORT ? n - back : n;
        }
        if (c < 0x80) return n;
    }
    return n;
}
