/* pretok_pattern.c - patterns of tokenizer.json translated for PCRE2 */
#include "tokenizer/pretok_pattern.h"

#include <stdbool.h>
#include <string.h>

#include "base/fail.h"
#include "tokenizer/unicode.h"

/* White_Space inside a class, and all else. */
#define SPACE                                                                                      \
    "\\t-\\r \\x{85}\\x{a0}\\x{1680}\\x{2000}-\\x{200a}\\x{2028}\\x{2029}\\x{202f}\\x{205f}"       \
    "\\x{3000}"
#define NOT_SPACE                                                                                  \
    "\\x{0}-\\x{8}\\x{e}-\\x{1f}!-\\x{84}\\x{86}-\\x{9f}\\x{a1}-\\x{167f}\\x{1681}-\\x{1fff}"      \
    "\\x{200b}-\\x{2027}\\x{202a}-\\x{202e}\\x{2030}-\\x{205e}\\x{2060}-\\x{2fff}"                 \
    "\\x{3001}-\\x{10ffff}"

/* Categories that only ever grow from one Unicode version to the next. The rest of C shrinks. */
static const char *const categories[] = {
    "L",  "Lu", "Ll", "Lt", "Lm", "Lo", "M",  "Mn", "Mc", "Me", "N", "Nd",
    "Nl", "No", "P",  "Pc", "Pd", "Ps", "Pe", "Pi", "Pf", "Po", "S", "Sm",
    "Sc", "Sk", "So", "Z",  "Zs", "Zl", "Zp", "Cc", "Cf", "Co",
};

struct translation {
    const char *text, *p, *end;
    struct buf *out;
    const char *what;
    fathom_diag *d;
};

static bool starts(const struct translation *t, const char *prefix)
{
    size_t n = strlen(prefix);
    return (size_t)(t->end - t->p) >= n && memcmp(t->p, prefix, n) == 0;
}

static void copy(struct translation *t, size_t n)
{
    (void)buf_add(t->out, t->p, n);
    t->p += n;
}

static fathom_err refuse(const struct translation *t, const char *construct)
{
    FAIL(t->d, FATHOM_EUNSUPPORTED,
         "%s: the pattern \"%.*s\" uses %s at byte %zu, which this tokenizer does not support",
         t->what, (int)(t->end - t->text < 300 ? t->end - t->text : 300), t->text, construct,
         (size_t)(t->p - t->text));
}

/* A set written into a class, or made a class of its own. */
static void write_set(struct translation *t, bool in_class, bool negated, const char *set)
{
    if (!in_class) (void)buf_add_str(t->out, negated ? "[^" : "[");
    (void)buf_add_str(t->out, set);
    if (!in_class) (void)buf_add_str(t->out, "]");
}

/* category plus what is new in it, for \p{name} and \d */
static fathom_err write_category(struct translation *t, bool in_class, bool negated,
                                 const char *name)
{
    struct buf set = {0};
    (void)buf_printf(&set, "\\p{%s}", name);
    (void)unicode_add_newer(&set, name, strlen(name));
    fathom_err err = buf_status(&set);
    if (!err) write_set(t, in_class, negated, buf_str(&set));
    buf_free(&set);
    return err;
}

/* \p{..} and \P{..}; t->p at the backslash */
static fathom_err translate_property(struct translation *t, bool in_class)
{
    const char *name = t->p + 3;
    bool negated = t->p[1] == 'P';
    const char *close =
        t->end - t->p > 3 && t->p[2] == '{' ? memchr(name, '}', (size_t)(t->end - name)) : NULL;
    if (!close) return refuse(t, "a property without braces");
    if (*name == '^') {
        negated = !negated;
        name++;
    }
    if (negated && in_class) return refuse(t, "a negated property inside a class");
    size_t n = (size_t)(close - name);
    for (size_t i = 0; i < sizeof categories / sizeof categories[0]; i++) {
        if (strlen(categories[i]) == n && memcmp(categories[i], name, n) == 0) {
            t->p = close + 1;
            return write_category(t, in_class, negated, categories[i]);
        }
    }
    return refuse(t, "a property that is not one of the general categories L, M, N, P, S, Z (or "
                     "one of their parts), Cc, Cf and Co");
}

/* \x{..} and \uXXXX; t->p at the backslash */
static fathom_err translate_code_point(struct translation *t)
{
    static const char hex[] = "0123456789abcdefABCDEF";
    bool braces = starts(t, "\\x{");
    const char *digits = t->p + (braces ? 3 : 2);
    size_t n = 0;
    while (digits + n < t->end && digits[n] && strchr(hex, digits[n])) n++;
    if (braces && (n == 0 || n > 6 || digits + n >= t->end || digits[n] != '}')) {
        return refuse(t, "\\x{} without one to six hexadecimal digits");
    }
    if (!braces && (t->p[1] != 'u' || n < 4)) return refuse(t, "\\x without braces");
    if (!braces) n = 4;
    (void)buf_printf(t->out, "\\x{%.*s}", (int)n, digits);
    t->p = digits + n + braces;
    return FATHOM_OK;
}

/* An escape that stands for a set of characters: sets *is_set and is done, or leaves it alone. */
static fathom_err translate_set(struct translation *t, bool in_class, bool *is_set)
{
    *is_set = true;
    switch (t->p[1]) {
    case 'p':
    case 'P': return translate_property(t, in_class);
    case 'd': t->p += 2; return write_category(t, in_class, false, "Nd");
    case 'D':
        if (in_class) return refuse(t, "\\D inside a class");
        t->p += 2;
        return write_category(t, in_class, true, "Nd");
    case 's':
        t->p += 2;
        write_set(t, in_class, false, SPACE);
        return FATHOM_OK;
    case 'S':
        t->p += 2;
        write_set(t, in_class, false, NOT_SPACE);
        return FATHOM_OK;
    default: *is_set = false; return FATHOM_OK;
    }
}

/* t->p at the backslash */
static fathom_err translate_escape(struct translation *t, bool in_class)
{
    if (t->end - t->p < 2) return refuse(t, "a backslash without a character");
    unsigned char c = (unsigned char)t->p[1];
    bool is_set;
    const char *before = t->p;
    TRY(translate_set(t, in_class, &is_set));
    if (is_set) {
        bool range_before =
            in_class && before[-1] == '-' && before[-2] != '[' && before[-2] != '\\';
        bool range_after = in_class && t->end - t->p > 1 && t->p[0] == '-' && t->p[1] != ']';
        return range_before || range_after ? refuse(t, "a set as the end of a range") : FATHOM_OK;
    }
    if (c == 'x' || c == 'u') return translate_code_point(t);
    bool punctuation =
        c > 0x20 && c < 0x7f && unicode_group(c) != UNICODE_L && unicode_group(c) != UNICODE_N;
    bool shared = c && (strchr("tnrfae", c) || (!in_class && strchr("Az", c)));
    if (!punctuation && !shared) {
        char escape[] = {'\\', c < 0x7f ? (char)c : '?', 0};
        return refuse(t, escape);
    }
    copy(t, 2);
    return FATHOM_OK;
}

/* t->p at the bracket */
static fathom_err translate_class(struct translation *t)
{
    copy(t, starts(t, "[^") ? 2 : 1);
    if (starts(t, "]")) return refuse(t, "a class that begins with ]");
    while (t->p < t->end && *t->p != ']') {
        if (*t->p == '\\') {
            TRY(translate_escape(t, true));
        } else if (*t->p == '[') {
            return refuse(t, "a class inside a class");
        } else if (starts(t, "&&")) {
            return refuse(t, "an intersection of classes");
        } else {
            copy(t, 1);
        }
    }
    if (t->p >= t->end) return refuse(t, "a class without its end");
    copy(t, 1);
    return FATHOM_OK;
}

/* t->p at the parenthesis */
static fathom_err translate_group(struct translation *t)
{
    static const char *const kinds[] = {"(?:", "(?=", "(?!", "(?<=", "(?<!", "(?>", "(?i:"};
    for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++) {
        if (starts(t, kinds[i])) {
            copy(t, strlen(kinds[i]));
            return FATHOM_OK;
        }
    }
    if (starts(t, "(?") || starts(t, "(*")) {
        return refuse(t, "a group other than ( (?: (?= (?! (?<= (?<! (?> and (?i:");
    }
    copy(t, 1);
    return FATHOM_OK;
}

/* A repeat in braces; t->p at the brace. Ruby reads {,n} as a repeat and {n}+ as two of them. */
static fathom_err translate_repeat(struct translation *t)
{
    const char *close = memchr(t->p, '}', (size_t)(t->end - t->p));
    if (starts(t, "{,")) return refuse(t, "a repeat without a lower bound");
    if (close && close + 1 < t->end && close[1] == '+') return refuse(t, "a repeat of a repeat");
    copy(t, 1);
    return FATHOM_OK;
}

fathom_err pattern_translate(struct buf *out, const char *pattern, size_t n, const char *what,
                             fathom_diag *d)
{
    struct translation t = {pattern, pattern, pattern + n, out, what, d};
    while (t.p < t.end) {
        switch (*t.p) {
        case '\\': TRY(translate_escape(&t, false)); break;
        case '[': TRY(translate_class(&t)); break;
        case '(': TRY(translate_group(&t)); break;
        case '{': TRY(translate_repeat(&t)); break;
        default: copy(&t, 1); break;
        }
    }
    return buf_status(out);
}
