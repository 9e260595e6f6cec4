/* pretok_kimi.c - Kimi's pattern as one scan
 *
 * At each place the alternatives are tried in the pattern's order, and each takes what a
 * backtracking engine takes. Every character matches one of them, so nothing is left between.
 */
#include "tokenizer/pretok_kimi.h"

#include <stdint.h>
#include <string.h>

#include "base/mem.h"
#include "base/utf8.h"
#include "tokenizer/unicode.h"

/* What the pattern asks of a character. A mark is UPPER and LOWER at once, as is a letter without
 * case; Han characters are neither. */
enum {
    HAN = 1,
    UPPER = 2,
    LOWER = 4,
    LETTER = 8, /* \p{L}, Han too */
    NUMBER = 16,
    SPACE = 32, /* \s, line ends too */
    LINE_END = 64,
};

enum { TABLE_SIZE = 0x20000 }; /* planes 0 and 1 by table, the rest by search */

struct kimi_scanner {
    unsigned char kinds[TABLE_SIZE];
};

struct scan {
    const struct kimi_scanner *scanner;
    const unsigned char *end;
};

static const char pattern[] =
    "[\\p{Han}]+"
    "|[^\\r\\n\\p{L}\\p{N}]?[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}&&[^\\p{Han}]]*"
    "[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}&&[^\\p{Han}]]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
    "|[^\\r\\n\\p{L}\\p{N}]?[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}&&[^\\p{Han}]]+"
    "[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}&&[^\\p{Han}]]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
    "|\\p{N}{1,3}"
    "| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*"
    "|\\s*[\\r\\n]+"
    "|\\s+(?!\\S)"
    "|\\s+";

struct pretok_pattern kimi_pattern(void)
{
    return (struct pretok_pattern){pattern, sizeof pattern - 1};
}

bool kimi_scanner_knows(const struct pretok_pattern *patterns, size_t n)
{
    return n == 1 && patterns[0].n == sizeof pattern - 1 &&
           memcmp(patterns[0].text, pattern, sizeof pattern - 1) == 0;
}

static unsigned kind_of(int32_t cp, unsigned group, unsigned letter_case)
{
    static const unsigned cases[] = {
        [UNICODE_UPPER] = UPPER, [UNICODE_LOWER] = LOWER, [UNICODE_NEITHER] = UPPER | LOWER};
    unsigned kind = 0;
    if (group == UNICODE_L) kind = LETTER | cases[letter_case];
    if (group == UNICODE_M) kind = UPPER | LOWER;
    if (group == UNICODE_N) kind = NUMBER;
    if (group == UNICODE_Z || (cp >= '\t' && cp <= '\r') || cp == 0x85) kind = SPACE;
    if (cp == '\n' || cp == '\r') kind |= LINE_END;
    if (unicode_is_han(cp)) kind = (kind & ~(unsigned)(UPPER | LOWER)) | HAN;
    return kind;
}

fathom_err kimi_scanner_create(struct kimi_scanner **out)
{
    struct kimi_scanner *s = mem_alloc(sizeof *s);
    unsigned char *cases = mem_alloc(TABLE_SIZE);
    *out = s;
    if (!s || !cases) {
        mem_free(s);
        mem_free(cases);
        *out = NULL;
        return FATHOM_ENOMEM;
    }
    unicode_fill_groups(s->kinds, TABLE_SIZE);
    unicode_fill_cases(cases, TABLE_SIZE);
    for (int32_t i = 0; i < TABLE_SIZE; i++) {
        s->kinds[i] = (unsigned char)kind_of(i, s->kinds[i], cases[i]);
    }
    mem_free(cases);
    return FATHOM_OK;
}

void kimi_scanner_destroy(struct kimi_scanner *s)
{
    mem_free(s);
}

/* The kind of the character at p, and what follows it. */
static inline const unsigned char *take(const struct scan *c, const unsigned char *p,
                                        unsigned *kind)
{
    uint32_t cp;
    p = utf8_take(p, &cp);
    *kind = cp < TABLE_SIZE
                ? c->scanner->kinds[cp]
                : kind_of((int32_t)cp, unicode_group((int32_t)cp), unicode_case((int32_t)cp));
    return p;
}

/* The kind at p; 0 at the end. */
static inline unsigned look(const struct scan *c, const unsigned char *p)
{
    unsigned kind = 0;
    if (p < c->end) (void)take(c, p, &kind);
    return kind;
}

/* The end of the run at p of characters that have one of `any`. */
static inline const unsigned char *pass(const struct scan *c, const unsigned char *p, unsigned any)
{
    while (p < c->end) {
        unsigned kind;
        const unsigned char *next = take(c, p, &kind);
        if (!(kind & any)) break;
        p = next;
    }
    return p;
}

/* upper* lower+; NULL without a match. Where no small one follows the run of capitals, the last of
 * it that is both stands for one. */
static const unsigned char *match_small(const struct scan *c, const unsigned char *p)
{
    const unsigned char *after_both = NULL;
    while (p < c->end) {
        unsigned kind;
        const unsigned char *next = take(c, p, &kind);
        if (!(kind & UPPER)) return kind & LOWER ? pass(c, next, LOWER) : after_both;
        if (kind & LOWER) after_both = next;
        p = next;
    }
    return after_both;
}

/* upper+ lower* */
static const unsigned char *match_capital(const struct scan *c, const unsigned char *p)
{
    const unsigned char *end = pass(c, p, UPPER);
    return end > p ? pass(c, end, LOWER) : NULL;
}

/* What follows an apostrophe in short forms, or p. The long s folds to s. */
static const unsigned char *pass_short_form(const struct scan *c, const unsigned char *p)
{
    static const char *const forms[] = {"s", "\xc5\xbf", "t", "re", "ve", "m", "ll", "d"};
    if (p >= c->end || *p != '\'') return p;
    for (size_t i = 0; i < sizeof forms / sizeof *forms; i++) {
        size_t n = strlen(forms[i]), k = 0;
        if ((size_t)(c->end - p) <= n) continue;
        for (; k < n; k++) {
            unsigned char byte = p[1 + k];
            if (byte >= 'A' && byte <= 'Z') byte |= 0x20;
            if (byte != (unsigned char)forms[i][k]) break;
        }
        if (k == n) return p + 1 + n;
    }
    return p;
}

/* A word, with one other character before it where there is one; NULL without a match. */
static const unsigned char *match_word(const struct scan *c, const unsigned char *p,
                                       const unsigned char *next, unsigned kind)
{
    bool may_lead = !(kind & (LINE_END | LETTER | NUMBER));
    bool may_begin = kind & (UPPER | LOWER);
    const unsigned char *end = may_lead ? match_small(c, next) : NULL;
    if (!end && may_begin) end = match_small(c, p);
    if (!end && may_lead) end = match_capital(c, next);
    if (!end && may_begin) end = match_capital(c, p);
    return end ? pass_short_form(c, end) : NULL;
}

/* White space: up to its last line end; without one, at the end of the text all of it, and before
 * something else all but its last character, unless it is the only one. */
static const unsigned char *match_white(const struct scan *c, const unsigned char *p)
{
    const unsigned char *start = p, *last = p, *after_line = NULL;
    while (p < c->end) {
        unsigned kind;
        const unsigned char *next = take(c, p, &kind);
        if (!(kind & SPACE)) break;
        last = p;
        p = next;
        if (kind & LINE_END) after_line = p;
    }
    if (after_line) return after_line;
    return p == c->end || last == start ? p : last;
}

static const unsigned char *pass_numbers(const struct scan *c, const unsigned char *p)
{
    for (int i = 0; i < 3 && look(c, p) & NUMBER; i++) {
        unsigned kind;
        p = take(c, p, &kind);
    }
    return p;
}

static inline bool is_sign(unsigned kind)
{
    return !(kind & (SPACE | LETTER | NUMBER));
}

static const unsigned char *match_signs(const struct scan *c, const unsigned char *p)
{
    while (p < c->end && is_sign(look(c, p))) {
        unsigned kind;
        p = take(c, p, &kind);
    }
    return pass(c, p, LINE_END);
}

/* The end of the piece that begins at p. */
static const unsigned char *match(const struct scan *c, const unsigned char *p)
{
    unsigned kind;
    const unsigned char *next = take(c, p, &kind);
    if (kind & HAN) return pass(c, next, HAN);
    const unsigned char *word = match_word(c, p, next, kind);
    if (word) return word;
    if (kind & NUMBER) return pass_numbers(c, p);
    if (is_sign(kind)) return match_signs(c, p);
    if (*p == ' ' && next < c->end && is_sign(look(c, next))) return match_signs(c, next);
    return match_white(c, p);
}

fathom_err kimi_scanner_split(const struct kimi_scanner *scanner, const char *s, size_t n,
                              pretok_emit *emit, void *arg)
{
    const unsigned char *p = (const unsigned char *)s;
    struct scan c = {.scanner = scanner, .end = p + n};
    fathom_err err = FATHOM_OK;
    while (p < c.end && !err) {
        const unsigned char *end = match(&c, p);
        err = emit(arg, (const char *)p, (size_t)(end - p));
        p = end;
    }
    return err;
}
