/* pretok_scan.c - this family's patterns as one scan */
#include "tokenizer/pretok_scan.h"

#include <stdint.h>
#include <string.h>

#include "base/mem.h"
#include "base/utf8.h"
#include "tokenizer/unicode.h"

/* What the patterns ask of a character. The range of pattern 2 is the same scale from KANA up; a
 * stretch of either scale ends where the other begins, or a number. */
enum kind {
    LETTER,
    MARK,
    PUNCT,
    SYMBOL,
    LINE_END, /* CR and LF */
    SPACE,    /* other white space */
    OTHER,
    KANA = 8, /* added to the kind of a character in the range of pattern 2 */
    NUMBER = 16,
};

enum { TABLE_SIZE = 0x20000 }; /* planes 0 and 1 by table, the rest by search */

/* Kinds as sets; a kind of another stretch is in none of them. */
#define SET(kind) (1u << (kind))
enum {
    WORD = SET(LETTER) | SET(MARK),
    SIGN = SET(PUNCT) | SET(SYMBOL),
    WHITE = SET(LINE_END) | SET(SPACE),
    PREFIX = SET(MARK) | SET(SPACE) | SET(OTHER), /* [^\r\n\p{L}\p{P}\p{S}] in a stretch */
};

struct scanner {
    unsigned char kinds[TABLE_SIZE];
};

/* A text being cut; `scale` is 0 or KANA, the kind of stretch that is scanned. */
struct scan {
    const struct scanner *scanner;
    const unsigned char *end;
    unsigned scale;
    pretok_emit *emit;
    void *arg;
};

static const char *const family[] = {
    "\\p{N}{1,3}",
    "[\xe4\xb8\x80-\xe9\xbe\xa5\xe3\x81\x80-\xe3\x82\x9f\xe3\x82\xa0-\xe3\x83\xbf]+",
    "[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+"
    "|[^\r\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+"
    "| ?[\\p{P}\\p{S}]+[\r\n]*"
    "|\\s*[\r\n]+"
    "|\\s+(?!\\S)"
    "|\\s+",
};

bool scanner_knows(const struct pretok_pattern *patterns, size_t n)
{
    if (n != sizeof family / sizeof family[0]) return false;
    for (size_t i = 0; i < n; i++) {
        if (patterns[i].n != strlen(family[i])) return false;
        if (memcmp(patterns[i].text, family[i], patterns[i].n) != 0) return false;
    }
    return true;
}

/* The kind of a character that is neither white space nor in the range of pattern 2. */
static unsigned char kind_of_group(unsigned group)
{
    static const unsigned char kinds[] = {
        [UNICODE_L] = LETTER, [UNICODE_M] = MARK,  [UNICODE_N] = NUMBER, [UNICODE_P] = PUNCT,
        [UNICODE_S] = SYMBOL, [UNICODE_Z] = SPACE, [UNICODE_C] = OTHER,
    };
    return kinds[group];
}

fathom_err scanner_create(struct scanner **out)
{
    struct scanner *s = mem_alloc(sizeof *s);
    *out = s;
    if (!s) return FATHOM_ENOMEM;
    unicode_fill_groups(s->kinds, TABLE_SIZE);
    for (size_t i = 0; i < TABLE_SIZE; i++) s->kinds[i] = kind_of_group(s->kinds[i]);
    s->kinds['\t'] = s->kinds['\v'] = s->kinds['\f'] = s->kinds[0x85] = SPACE;
    s->kinds['\n'] = s->kinds['\r'] = LINE_END;
    for (size_t i = 0x3040; i <= 0x30ff; i++) s->kinds[i] += KANA;
    for (size_t i = 0x4e00; i <= 0x9fa5; i++) s->kinds[i] += KANA;
    return FATHOM_OK;
}

void scanner_destroy(struct scanner *s)
{
    mem_free(s);
}

/* The character at p, its kind on this stretch's scale, and what follows it. On a foreign scale
 * the kind is 8 or more, which no set holds. */
static inline const unsigned char *take(const struct scan *c, const unsigned char *p,
                                        unsigned *kind)
{
    uint32_t cp;
    p = utf8_take(p, &cp);
    unsigned absolute =
        cp < TABLE_SIZE ? c->scanner->kinds[cp] : kind_of_group(unicode_group((int32_t)cp));
    *kind = absolute ^ c->scale;
    return p;
}

static inline bool is_in(unsigned kind, unsigned set)
{
    return set >> kind & 1;
}

/* The end of the run of characters in `set` that starts at p. */
static inline const unsigned char *pass(const struct scan *c, const unsigned char *p, unsigned set)
{
    while (p < c->end) {
        unsigned kind;
        const unsigned char *next = take(c, p, &kind);
        if (!is_in(kind, set)) break;
        p = next;
    }
    return p;
}

static inline bool is_letter_ascii(unsigned char c)
{
    return (unsigned char)((c | 0x20) - 'a') < 26;
}

/* White space from p on. \s*[\r\n]+ takes it up to its last line end. Without a line end \s+(?!\S)
 * takes all of it at the end of the stretch, and all but the last character before something else.
 * \s+ takes the one character that remains. */
static const unsigned char *match_white(const struct scan *c, const unsigned char *p)
{
    const unsigned char *last = p, *after_line = NULL, *start = p;
    unsigned kind = SPACE;
    while (p < c->end) {
        const unsigned char *next = take(c, p, &kind);
        if (!is_in(kind, WHITE)) break;
        last = p;
        p = next;
        if (kind == LINE_END) after_line = p;
    }
    if (after_line) return after_line;
    bool at_end = p == c->end || kind >= KANA;
    return at_end || last == start ? p : last;
}

/* The match of pattern 3 at p, whose character has this kind and ends at next; NULL if none. */
static inline const unsigned char *match(const struct scan *c, const unsigned char *p,
                                         const unsigned char *next, unsigned kind)
{
    unsigned second = NUMBER;
    const unsigned char *after = next < c->end ? take(c, next, &second) : next;
    if (kind == LETTER) return is_in(second, WORD) ? pass(c, after, WORD) : next;
    if (is_in(kind, PREFIX) && is_in(second, WORD)) return pass(c, after, WORD);
    if (kind == MARK) return next;
    if (is_in(kind, SIGN)) {
        if (*p < 0x80 && next < c->end && is_letter_ascii(*next)) {
            do next++;
            while (next < c->end && is_letter_ascii(*next));
            return next;
        }
        return pass(c, pass(c, next, SIGN), SET(LINE_END));
    }
    if (*p == ' ' && is_in(second, SIGN)) {
        return pass(c, pass(c, after, SIGN), SET(LINE_END));
    }
    return is_in(kind, WHITE) ? match_white(c, p) : NULL;
}

static inline fathom_err emit_piece(const struct scan *c, const unsigned char *from,
                                    const unsigned char *to)
{
    return from < to ? c->emit(c->arg, (const char *)from, (size_t)(to - from)) : FATHOM_OK;
}

/* Cuts the stretch that starts at *at; moves *at behind it. What matches nowhere (control,
 * format, unassigned characters) makes a piece up to the next match. */
static fathom_err scan_stretch(const struct scan *c, const unsigned char **at)
{
    const unsigned char *p = *at, *loose = p;
    while (p < c->end) {
        unsigned kind;
        const unsigned char *next = take(c, p, &kind);
        if (kind >= KANA) break;
        const unsigned char *end = match(c, p, next, kind);
        if (!end) {
            p = next;
            continue;
        }
        fathom_err err = emit_piece(c, loose, p);
        if (!err) err = emit_piece(c, p, end);
        if (err) return err;
        loose = p = end;
    }
    *at = p;
    return emit_piece(c, loose, p);
}

/* One to three numbers. */
static const unsigned char *pass_numbers(const struct scan *c, const unsigned char *p)
{
    for (int i = 0; i < 3 && p < c->end; i++) {
        unsigned kind;
        const unsigned char *next = take(c, p, &kind);
        if (kind != NUMBER) break;
        p = next;
    }
    return p;
}

fathom_err scanner_split(const struct scanner *scanner, const char *s, size_t n, pretok_emit *emit,
                         void *arg)
{
    const unsigned char *p = (const unsigned char *)s;
    struct scan c = {.scanner = scanner, .end = p + n, .emit = emit, .arg = arg};
    fathom_err err = FATHOM_OK;
    while (p < c.end && !err) {
        unsigned kind;
        c.scale = 0;
        (void)take(&c, p, &kind);
        if (kind == NUMBER) {
            const unsigned char *end = pass_numbers(&c, p);
            err = emit_piece(&c, p, end);
            p = end;
        } else {
            c.scale = kind & KANA;
            err = scan_stretch(&c, &p);
        }
    }
    return err;
}
