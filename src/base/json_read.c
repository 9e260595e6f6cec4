/* json_read.c - the reader of JSON texts: jansson's trees, our own scanning
 *
 * Jansson's scanner passes over a failed allocation within a string and goes on behind its own
 * buffer. It has no value for integers beyond 64 bits. Here each allocation that fails is ENOMEM,
 * and such an integer is json.h's.
 *
 * Arrays of token ids are long, and a tree takes 32 bytes for what is 2 to 7 in the text. Where the
 * caller says that ids stand, they are read to a string of numbers of 4 bytes (json_ids).
 *
 * Invariant: at <= n; what stands before `at` has been taken. Recursion is bounded by
 * LIMIT_JSON_DEPTH. */
#include "base/json.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/fail.h"
#include "base/json_arena.h"
#include "base/limits.h"
#include "base/mem.h"
#include "base/os.h"
#include "base/utf8.h"

struct reader {
    const char *s; /* [n] */
    size_t n;
    size_t at;
    bool strict;
    const char *const *id_keys; /* ends in NULL; NULL: none */
    bool ids;                   /* within the value of one of them */
    size_t n_value;             /* read so far; of ids the array alone */
    int depth;
    struct buf scratch; /* a number, ids, or a string with escapes */
    const char *what;
    fathom_diag *d;
};

static fathom_err read_value(struct reader *r, json_t **out);

static fathom_err fault(const struct reader *r, size_t at, const char *text)
{
    int line = 1, column = 1;
    for (size_t i = 0; i < at; i++) {
        if (r->s[i] == '\n') {
            line++;
            column = 1;
        } else if (((unsigned char)r->s[i] & 0xc0) != 0x80) {
            column++;
        }
    }
    FAIL(r->d, FATHOM_EFORMAT, "%s: not valid JSON at line %d column %d (byte %zu): %s", r->what,
         line, column, at + 1, text);
}

static fathom_err no_memory(const struct reader *r)
{
    const struct json_arena *a = json_arena_entered();
    switch (json_arena_fault(a)) {
    case JSON_ARENA_OVER:
        FAIL(r->d, FATHOM_ELIMIT,
             "%s: the %zu values up to byte %zu of %zu take more than the %zu bytes of memory that "
             "are allowed (%d for each byte and %d MiB): send fewer and longer values",
             r->what, r->n_value, r->at, r->n, json_arena_limit(a), LIMIT_JSON_FACTOR,
             LIMIT_JSON_LEAST_BYTES >> 20);
    case JSON_ARENA_FULL:
        FAIL(r->d, FATHOM_EBUSY,
             "%s: %zu bytes are parsed at the moment, which is the limit; try again later", r->what,
             json_arenas_used());
    case JSON_ARENA_FINE: break;
    }
    FAIL(r->d, FATHOM_ENOMEM, "%s: out of memory while parsing JSON", r->what);
}

/* The byte at `at`; NUL, which no value begins or ends with, behind the text. */
static char peek(const struct reader *r)
{
    return r->at < r->n ? r->s[r->at] : '\0';
}

static void skip_space(struct reader *r)
{
    while (peek(r) == ' ' || peek(r) == '\t' || peek(r) == '\n' || peek(r) == '\r') r->at++;
}

/* ---- strings ---- */

static fathom_err keep(struct reader *r, const char *bytes, size_t n)
{
    return buf_add(&r->scratch, bytes, n) == FATHOM_OK ? FATHOM_OK : no_memory(r);
}

/* Passes over what stands for itself, which is UTF-8. */
static fathom_err skip_plain(struct reader *r)
{
    size_t start = r->at;
    unsigned char seen = 0;
    for (; r->at < r->n; r->at++) {
        unsigned char c = (unsigned char)r->s[r->at];
        if (c < 0x20 || c == '"' || c == '\\') break;
        seen |= c;
    }
    if (seen < 0x80) return FATHOM_OK;
    for (size_t i = start, len = 0; i < r->at; i += len) {
        if (utf8_next(r->s + i, r->at - i, &len) < 0) return fault(r, i, "bytes are not UTF-8");
    }
    return FATHOM_OK;
}

/* The value of \uXXXX at `at`; -1: there is none. */
static int32_t peek_unit(const struct reader *r)
{
    int32_t unit = 0;
    if (r->n - r->at < 6 || r->s[r->at] != '\\' || r->s[r->at + 1] != 'u') return -1;
    for (size_t i = 2; i < 6; i++) {
        char c = r->s[r->at + i];
        int32_t digit = -1;
        if (c >= '0' && c <= '9') digit = c - '0';
        if (c >= 'a' && c <= 'f') digit = c - 'a' + 10;
        if (c >= 'A' && c <= 'F') digit = c - 'A' + 10;
        if (digit < 0) return -1;
        unit = unit * 16 + digit;
    }
    return unit;
}

static fathom_err read_unit(struct reader *r)
{
    size_t start = r->at;
    int32_t cp = peek_unit(r);
    if (cp < 0) return fault(r, start, "four hexadecimal digits are needed after \\u");
    r->at += 6;
    if (cp >= 0xd800 && cp < 0xe000) {
        int32_t low = peek_unit(r);
        if (cp >= 0xdc00 || low < 0xdc00 || low >= 0xe000) {
            return fault(r, start, "half of a surrogate pair is no character");
        }
        r->at += 6;
        cp = 0x10000 + ((cp - 0xd800) << 10) + (low - 0xdc00);
    }
    if (cp == 0 && r->strict) return fault(r, start, "\\u0000 is not allowed");
    char bytes[4];
    return keep(r, bytes, utf8_encode(bytes, cp));
}

static fathom_err read_escape(struct reader *r)
{
    static const char names[] = "\"\\/bfnrt";
    static const char values[] = "\"\\/\b\f\n\r\t";
    char c = r->at + 1 < r->n ? r->s[r->at + 1] : '\0';
    if (c == 'u') return read_unit(r);
    const char *name = c ? strchr(names, c) : NULL;
    if (!name) return fault(r, r->at, "unknown escape in a string");
    r->at += 2;
    return keep(r, &values[name - names], 1);
}

/* A string: a part of the text, or of the scratch until the next one is read. */
static fathom_err read_string(struct reader *r, const char **s, size_t *n)
{
    size_t start = ++r->at;
    TRY(skip_plain(r));
    if (peek(r) == '"') {
        *s = r->s + start;
        *n = r->at++ - start;
        return FATHOM_OK;
    }
    buf_clear(&r->scratch);
    for (;;) {
        TRY(keep(r, r->s + start, r->at - start));
        if (r->at == r->n) return fault(r, r->at, "the text ends within a string");
        if (r->s[r->at] == '"') break;
        if (r->s[r->at] != '\\') return fault(r, r->at, "control character in a string");
        TRY(read_escape(r));
        start = r->at;
        TRY(skip_plain(r));
    }
    r->at++;
    *s = buf_str(&r->scratch);
    *n = r->scratch.len;
    return FATHOM_OK;
}

/* ---- numbers ---- */

static bool is_digit(char c)
{
    return c >= '0' && c <= '9';
}

static fathom_err skip_digits(struct reader *r)
{
    if (!is_digit(peek(r))) return fault(r, r->at, "a digit is needed");
    while (is_digit(peek(r))) r->at++;
    return FATHOM_OK;
}

/* Passes over a number; *whole: it is written as an integer. */
static fathom_err skip_number(struct reader *r, bool *whole)
{
    if (peek(r) == '-') r->at++;
    size_t first = r->at;
    TRY(skip_digits(r));
    if (r->s[first] == '0' && r->at > first + 1) return fault(r, first, "a number begins with 0");
    *whole = peek(r) != '.' && peek(r) != 'e' && peek(r) != 'E';
    if (peek(r) == '.') {
        r->at++;
        TRY(skip_digits(r));
    }
    if (peek(r) == 'e' || peek(r) == 'E') {
        r->at++;
        if (peek(r) == '+' || peek(r) == '-') r->at++;
        TRY(skip_digits(r));
    }
    return FATHOM_OK;
}

static fathom_err read_number(struct reader *r, json_t **out)
{
    size_t start = r->at;
    bool whole = false;
    TRY(skip_number(r, &whole));
    buf_clear(&r->scratch);
    TRY(keep(r, r->s + start, r->at - start));
    const char *text = buf_str(&r->scratch);
    errno = 0;
    if (whole) {
        long long i = strtoll(text, NULL, 10);
        *out = errno == ERANGE ? json_big_create(text) : json_integer(i);
    } else {
        double real = strtod(text, NULL);
        if (!isfinite(real)) return fault(r, start, "the number is too large for a double");
        *out = json_real(real);
    }
    return *out ? FATHOM_OK : no_memory(r);
}

/* ---- what holds others ---- */

/* Behind a value within brackets: *more when a comma stands there, else the closing one. */
static fathom_err read_separator(struct reader *r, char close, bool *more)
{
    skip_space(r);
    *more = peek(r) == ',';
    if (!*more && peek(r) != close) {
        return fault(r, r->at, close == ']' ? "',' or ']' is needed" : "',' or '}' is needed");
    }
    r->at++;
    skip_space(r);
    return FATHOM_OK;
}

/* Behind an opening bracket: whether its closing one follows at once. */
static bool take_empty(struct reader *r, char close)
{
    r->at++;
    skip_space(r);
    if (peek(r) != close) return false;
    r->at++;
    return true;
}

static fathom_err read_array(struct reader *r, json_t *array)
{
    bool more = !take_empty(r, ']');
    while (more) {
        json_t *value = NULL;
        TRY(read_value(r, &value));
        if (json_array_append_new(array, value) != 0) return no_memory(r);
        TRY(read_separator(r, ']', &more));
    }
    return FATHOM_OK;
}

static bool is_id_key(const struct reader *r, const char *key, size_t n)
{
    for (const char *const *k = r->id_keys; k && *k; k++) {
        if (strlen(*k) == n && memcmp(*k, key, n) == 0) return true;
    }
    return false;
}

/* The colon and value of a member. */
static fathom_err read_member_value(struct reader *r, json_t *object, const char *key, size_t n)
{
    json_t *value = NULL;
    skip_space(r);
    if (peek(r) != ':') return fault(r, r->at, "':' is needed");
    r->at++;
    skip_space(r);
    if (r->depth == 1) r->ids = is_id_key(r, key, n);
    TRY(read_value(r, &value));
    return json_object_setn_new_nocheck(object, key, n, value) == 0 ? FATHOM_OK : no_memory(r);
}

static fathom_err read_member(struct reader *r, json_t *object)
{
    size_t start = r->at;
    const char *key = "";
    size_t n = 0;
    if (peek(r) != '"') return fault(r, start, "a string is needed as key");
    TRY(read_string(r, &key, &n));
    if (memchr(key, '\0', n)) return fault(r, start, "NUL in an object's key");
    if (r->strict && json_object_getn(object, key, n)) {
        return fault(r, start, "duplicate object key");
    }
    if (key != r->scratch.data) return read_member_value(r, object, key, n);
    char *copy = mem_strndup(key, n); /* the value has its own use of the scratch */
    fathom_err err = copy ? read_member_value(r, object, copy, n) : no_memory(r);
    mem_free(copy);
    return err;
}

static fathom_err read_object(struct reader *r, json_t *object)
{
    bool more = !take_empty(r, '}');
    while (more) {
        if (json_arena_entered() && json_object_size(object) == LIMIT_JSON_MEMBERS) {
            FAIL(r->d, FATHOM_ELIMIT,
                 "%s: the object that goes on at byte %zu has more than %d "
                 "members: send fewer",
                 r->what, r->at + 1, LIMIT_JSON_MEMBERS);
        }
        TRY(read_member(r, object));
        TRY(read_separator(r, '}', &more));
    }
    return FATHOM_OK;
}

/* The id that stands here, up to INT32_MAX; -1: something else does. */
static int32_t take_id(struct reader *r)
{
    int64_t id = 0;
    size_t first = r->at;
    for (; is_digit(peek(r)); r->at++) {
        id = id * 10 + (peek(r) - '0');
        if (id > INT32_MAX) return -1;
    }
    bool leads = r->at > first + 1 && r->s[first] == '0';
    return r->at == first || leads ? -1 : (int32_t)id;
}

/* An array of nothing but ids, at least one; otherwise *out stays NULL, and it is read as any other
 * array. */
static fathom_err read_ids(struct reader *r, json_t **out)
{
    size_t start = r->at++;
    buf_clear(&r->scratch);
    skip_space(r);
    for (;;) {
        int32_t id = take_id(r);
        skip_space(r);
        char c = peek(r);
        if (id < 0 || (c != ',' && c != ']')) break;
        TRY(keep(r, (const char *)&id, sizeof id));
        r->at++;
        if (c == ']') {
            *out = json_ids_create(buf_str(&r->scratch), r->scratch.len / sizeof id);
            return *out ? FATHOM_OK : no_memory(r);
        }
        skip_space(r);
    }
    r->at = start;
    return FATHOM_OK;
}

/* An array or an object. */
static fathom_err read_nested(struct reader *r, json_t **out)
{
    if (r->depth == LIMIT_JSON_DEPTH) {
        FAIL(r->d, FATHOM_EFORMAT, "%s: JSON is nested deeper than %d levels", r->what,
             LIMIT_JSON_DEPTH);
    }
    bool is_array = peek(r) == '[';
    if (is_array && r->ids) {
        *out = NULL;
        TRY(read_ids(r, out));
        if (*out) return FATHOM_OK;
    }
    json_t *v = is_array ? json_array() : json_object();
    if (!v) return no_memory(r);
    r->depth++;
    fathom_err err = is_array ? read_array(r, v) : read_object(r, v);
    r->depth--;
    if (err) {
        json_decref(v);
        return err;
    }
    *out = v;
    return FATHOM_OK;
}

static bool take_word(struct reader *r, const char *word)
{
    size_t n = strlen(word);
    if (r->n - r->at < n || memcmp(r->s + r->at, word, n) != 0) return false;
    r->at += n;
    return true;
}

static fathom_err read_value(struct reader *r, json_t **out)
{
    char c = peek(r);
    if (++r->n_value > LIMIT_JSON_VALUES && json_arena_entered()) {
        FAIL(r->d, FATHOM_ELIMIT, "%s: more than %d values up to byte %zu of %zu: send fewer",
             r->what, LIMIT_JSON_VALUES, r->at, r->n);
    }
    if (c == '[' || c == '{') return read_nested(r, out);
    if (c == '-' || is_digit(c)) return read_number(r, out);
    if (c == '"') {
        const char *s = "";
        size_t n = 0;
        TRY(read_string(r, &s, &n));
        *out = json_stringn_nocheck(s, n);
        return *out ? FATHOM_OK : no_memory(r);
    }
    if (take_word(r, "true")) {
        *out = json_true();
    } else if (take_word(r, "false")) {
        *out = json_false();
    } else if (take_word(r, "null")) {
        *out = json_null();
    } else {
        return fault(r, r->at, r->at < r->n ? "a value is needed" : "the text ends");
    }
    return FATHOM_OK;
}

/* By the mark that its writers put first. */
static bool is_utf16(const struct reader *r)
{
    return r->n >= 2 && (memcmp(r->s, "\xFF\xFE", 2) == 0 || memcmp(r->s, "\xFE\xFF", 2) == 0);
}

static fathom_err read_text(struct reader *r, json_t **out)
{
    *out = NULL;
    json_t *v = NULL;
    r->at = utf8_mark(r->s, r->n);
    skip_space(r);
    fathom_err err =
        is_utf16(r) ? fault(r, 0, "the text is UTF-16, needed is UTF-8") : read_value(r, &v);
    skip_space(r);
    if (!err && r->at < r->n) err = fault(r, r->at, "the text goes on behind its value");
    buf_free(&r->scratch);
    if (err) {
        json_decref(v);
        return err;
    }
    *out = v;
    return FATHOM_OK;
}

fathom_err json_read(const char *text, size_t n, const char *what, json_t **out, fathom_diag *d)
{
    return read_text(&(struct reader){.s = text, .n = n, .what = what, .d = d}, out);
}

fathom_err json_read_strict(const char *text, size_t n, const char *what, json_t **out,
                            fathom_diag *d)
{
    return read_text(&(struct reader){.s = text, .n = n, .strict = true, .what = what, .d = d},
                     out);
}

fathom_err json_read_with_ids(const char *text, size_t n, const char *what,
                              const char *const *id_keys, json_t **out, fathom_diag *d)
{
    return read_text(&(struct reader){.s = text, .n = n, .id_keys = id_keys, .what = what, .d = d},
                     out);
}

fathom_err json_read_file(const char *path, json_t **out, fathom_diag *d)
{
    struct file_map map;
    *out = NULL;
    TRY(file_map_open(&map, path, d));
    fathom_err err = json_read(map.data, map.size, path, out, d);
    file_map_close(&map);
    return err;
}
