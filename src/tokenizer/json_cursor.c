/* json_cursor.c - reading JSON forward, in place */
#include "tokenizer/json_cursor.h"

#include <string.h>

#include "base/fail.h"
#include "base/limits.h"
#include "base/utf8.h"

void json_cursor_open(struct json_cursor *c, const char *text, size_t n, const char *what,
                      fathom_diag *d)
{
    const char *first = text + utf8_mark(text, n);
    *c = (struct json_cursor){.p = first, .end = text + n, .text = text, .what = what, .d = d};
}

void json_cursor_close(struct json_cursor *c)
{
    buf_free(&c->scratch);
}

void json_cursor_at(struct json_cursor *c, struct json_span span)
{
    c->p = span.s;
    c->end = span.s + span.n;
}

fathom_err json_cursor_fail(const struct json_cursor *c, const char *expected)
{
    size_t at = (size_t)(c->p - c->text);
    if (c->p >= c->end) {
        FAIL(c->d, FATHOM_EFORMAT, "%s: byte %zu: the text ends where %s is expected", c->what, at,
             expected);
    }
    unsigned char seen = (unsigned char)*c->p;
    if (seen > 0x20 && seen < 0x7f) {
        FAIL(c->d, FATHOM_EFORMAT, "%s: byte %zu: '%c' stands where %s is expected", c->what, at,
             seen, expected);
    }
    FAIL(c->d, FATHOM_EFORMAT, "%s: byte %zu: 0x%02x stands where %s is expected", c->what, at,
         seen, expected);
}

static void skip_space(struct json_cursor *c)
{
    while (c->p < c->end && (*c->p == ' ' || *c->p == '\n' || *c->p == '\t' || *c->p == '\r')) {
        c->p++;
    }
}

char json_cursor_peek(struct json_cursor *c)
{
    skip_space(c);
    return c->p < c->end ? *c->p : '\0';
}

fathom_err json_cursor_enter(struct json_cursor *c, char open, const char *of)
{
    if (json_cursor_peek(c) != open) return json_cursor_fail(c, of);
    c->p++;
    return FATHOM_OK;
}

fathom_err json_cursor_next(struct json_cursor *c, char close, bool *first, bool *more)
{
    char seen = json_cursor_peek(c);
    *more = seen != close;
    if (!*more) {
        c->p++;
    } else if (!*first) {
        if (seen != ',') return json_cursor_fail(c, close == '}' ? "',' or '}'" : "',' or ']'");
        c->p++;
    }
    *first = false;
    return FATHOM_OK;
}

fathom_err json_cursor_key(struct json_cursor *c, struct json_span *key)
{
    TRY(json_cursor_string(c, key));
    if (json_cursor_peek(c) != ':') return json_cursor_fail(c, "':'");
    c->p++;
    return FATHOM_OK;
}

static int hex_value(char c)
{
    if (c >= '0' && c <= '9') return c - '0';
    if (c >= 'a' && c <= 'f') return c - 'a' + 10;
    if (c >= 'A' && c <= 'F') return c - 'A' + 10;
    return -1;
}

/* The four digits of \uXXXX at p; -1 if they are not there. */
static int32_t read_hex4(const struct json_cursor *c, const char *p)
{
    if (c->end - p < 4) return -1;
    int32_t value = 0;
    for (int i = 0; i < 4; i++) {
        int digit = hex_value(p[i]);
        if (digit < 0) return -1;
        value = value << 4 | digit;
    }
    return value;
}

/* The character of \uXXXX, or of a surrogate pair of them; c->p stands behind the 'u'. */
static fathom_err read_unicode_escape(struct json_cursor *c, int32_t *cp)
{
    int32_t high = read_hex4(c, c->p);
    if (high < 0) return json_cursor_fail(c, "four hexadecimal digits");
    c->p += 4;
    *cp = high;
    if (high < 0xd800 || high > 0xdfff) return FATHOM_OK;
    int32_t low = -1;
    if (high < 0xdc00 && c->end - c->p >= 6 && c->p[0] == '\\' && c->p[1] == 'u') {
        low = read_hex4(c, c->p + 2);
    }
    if (low < 0xdc00 || low > 0xdfff) return json_cursor_fail(c, "the second half of a surrogate");
    c->p += 6;
    *cp = 0x10000 + ((high - 0xd800) << 10) + (low - 0xdc00);
    return FATHOM_OK;
}

/* One escape, c->p behind the backslash, appended to scratch. */
static fathom_err read_escape(struct json_cursor *c)
{
    static const char from[] = "\"\\/bfnrt";
    static const char to[] = "\"\\/\b\f\n\r\t";
    if (c->p < c->end && *c->p == 'u') {
        int32_t cp = 0;
        char utf8[4];
        c->p++;
        TRY(read_unicode_escape(c, &cp));
        return buf_add(&c->scratch, utf8, utf8_encode(utf8, cp));
    }
    const char *at = c->p < c->end && *c->p ? strchr(from, *c->p) : NULL;
    if (!at) return json_cursor_fail(c, "an escape such as \\n or \\u0041");
    c->p++;
    return buf_add_char(&c->scratch, to[at - from]);
}

/* First byte of the string's rest that is a quote, a backslash or a control character. */
static void pass_plain(struct json_cursor *c)
{
    while (c->p < c->end && *c->p != '"' && *c->p != '\\' && (unsigned char)*c->p >= 0x20) c->p++;
}

fathom_err json_cursor_string(struct json_cursor *c, struct json_span *out)
{
    if (json_cursor_peek(c) != '"') return json_cursor_fail(c, "a string");
    const char *start = ++c->p;
    pass_plain(c);
    if (c->p < c->end && *c->p == '"') {
        *out = (struct json_span){start, (size_t)(c->p - start)};
        c->p++;
        return FATHOM_OK;
    }
    buf_clear(&c->scratch);
    for (;;) {
        TRY(buf_add(&c->scratch, start, (size_t)(c->p - start)));
        if (c->p < c->end && *c->p == '"') break;
        if (c->p >= c->end || *c->p != '\\') return json_cursor_fail(c, "the end of a string");
        c->p++;
        TRY(read_escape(c));
        start = c->p;
        pass_plain(c);
    }
    c->p++;
    *out = (struct json_span){buf_str(&c->scratch), c->scratch.len};
    return FATHOM_OK;
}

fathom_err json_cursor_uint(struct json_cursor *c, uint32_t max, uint32_t *out)
{
    char seen = json_cursor_peek(c);
    if (seen < '0' || seen > '9') return json_cursor_fail(c, "a whole number, 0 or more");
    const char *start = c->p;
    uint64_t value = 0;
    while (c->p < c->end && *c->p >= '0' && *c->p <= '9') {
        value = value * 10 + (uint64_t)(*c->p++ - '0');
        if (value > max) {
            FAIL(c->d, FATHOM_ELIMIT, "%s: byte %zu: the number is over the limit of %u", c->what,
                 (size_t)(start - c->text), max);
        }
    }
    if (*start == '0' && c->p - start > 1)
        return json_cursor_fail(c, "a number without zeros before it");
    *out = (uint32_t)value;
    return FATHOM_OK;
}

/* Passes a string without resolving it. */
static fathom_err skip_string(struct json_cursor *c)
{
    c->p++;
    for (;;) {
        pass_plain(c);
        if (c->p < c->end && *c->p == '"') break;
        if (c->end - c->p < 2 || *c->p != '\\') return json_cursor_fail(c, "the end of a string");
        c->p += 2;
    }
    c->p++;
    return FATHOM_OK;
}

/* Passes a number, true, false or null: whatever runs up to the next mark. */
static fathom_err skip_word(struct json_cursor *c)
{
    const char *start = c->p;
    while (c->p < c->end && *c->p && !strchr(" \n\t\r,:{}[]\"", *c->p)) c->p++;
    return c->p == start ? json_cursor_fail(c, "a value") : FATHOM_OK;
}

fathom_err json_cursor_skip(struct json_cursor *c, struct json_span *value)
{
    char closers[LIMIT_JSON_DEPTH];
    size_t depth = 0;
    (void)json_cursor_peek(c);
    const char *start = c->p;
    do {
        char seen = json_cursor_peek(c);
        if (seen == '"') {
            TRY(skip_string(c));
        } else if (seen == '{' || seen == '[') {
            if (depth == LIMIT_JSON_DEPTH) return json_cursor_fail(c, "less nesting");
            closers[depth++] = seen == '{' ? '}' : ']';
            c->p++;
        } else if (depth > 0 && (seen == '}' || seen == ']')) {
            if (seen != closers[--depth]) return json_cursor_fail(c, "the other bracket");
            c->p++;
        } else if (depth > 0 && (seen == ',' || seen == ':')) {
            c->p++;
        } else {
            TRY(skip_word(c));
        }
    } while (depth > 0);
    *value = (struct json_span){start, (size_t)(c->p - start)};
    return FATHOM_OK;
}

fathom_err json_cursor_finish(struct json_cursor *c)
{
    skip_space(c);
    return c->p == c->end ? FATHOM_OK : json_cursor_fail(c, "the end of the text");
}
