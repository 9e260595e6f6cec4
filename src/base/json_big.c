#include "base/json_big.h"

#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "base/fail.h"
#include "base/rng.h"

#define BIG_KEY "\xff"

enum { MARK_BYTES = 24 };

const char *json_big_digits(const json_t *value)
{
    if (!json_is_object(value) || json_object_size(value) != 1) return NULL;
    return json_string_value(json_object_get(value, BIG_KEY));
}

static bool is_digit(char c)
{
    return c >= '0' && c <= '9';
}

/* Bytes of the number at s; 0 when there is none. *big: an integer beyond 64 bits. */
static size_t scan_number(const char *s, size_t n, bool *big)
{
    enum { SAFE_BYTES = 18, TEXT_BYTES = 24 };
    char text[TEXT_BYTES];
    size_t len = n > 0 && s[0] == '-';
    size_t n_sign = len;
    while (len < n && is_digit(s[len])) len++;
    bool whole = len == n || !s[len] || !strchr(".eE", s[len]);
    if (!whole) {
        while (len < n && s[len] && strchr(".eE+-0123456789", s[len])) len++;
        return len;
    }
    if (len <= SAFE_BYTES || s[n_sign] == '0') return len; /* zeros in front are the parser's */
    *big = len >= TEXT_BYTES;
    if (*big) return len;
    memcpy(text, s, len);
    text[len] = '\0';
    errno = 0;
    (void)strtoll(text, NULL, 10);
    *big = errno == ERANGE;
    return len;
}

/* The text with every such integer as {"mark":"digits"}. */
static fathom_err wrap(const char *s, size_t n, const char *mark, struct buf *out)
{
    bool in_string = false;
    size_t done = 0;
    for (size_t i = 0; i < n;) {
        bool big = false;
        size_t len = in_string ? 0 : scan_number(s + i, n - i, &big);
        if (big) {
            TRY(buf_add(out, s + done, i - done));
            TRY(buf_printf(out, "{\"%s\":\"%.*s\"}", mark, (int)len, s + i));
            done = i + len;
        }
        if (in_string && s[i] == '\\') len = 2;
        if (s[i] == '"') in_string = !in_string;
        i += len ? len : 1;
    }
    return buf_add(out, s + done, n - done);
}

static fathom_err unwrap(json_t *v, const char *mark);

static fathom_err unwrap_members(json_t *v, const char *mark)
{
    const char *key;
    json_t *member;
    json_t *digits = json_object_size(v) == 1 ? json_object_get(v, mark) : NULL;
    if (digits) {
        if (json_object_set_nocheck(v, BIG_KEY, digits) != 0) return FATHOM_ENOMEM;
        (void)json_object_del(v, mark);
        return FATHOM_OK;
    }
    json_object_foreach (v, key, member) TRY(unwrap(member, mark));
    return FATHOM_OK;
}

/* Recursion is bounded by the parser's depth limit. */
static fathom_err unwrap(json_t *v, const char *mark)
{
    if (json_is_object(v)) return unwrap_members(v, mark);
    for (size_t i = 0; i < json_array_size(v); i++) TRY(unwrap(json_array_get(v, i), mark));
    return FATHOM_OK;
}

fathom_err json_big_read(const char *text, size_t n, size_t flags, json_t **out, json_error_t *e)
{
    struct buf wrapped = {0};
    char mark[MARK_BYTES]; /* random: the text cannot hold it */
    fathom_err err;
    *out = NULL;
    (void)snprintf(mark, sizeof mark, "%016llx", (unsigned long long)rng_entropy());
    TRY_GOTO(wrap(text, n, mark, &wrapped), out);
    *out = json_loadb(buf_str(&wrapped), wrapped.len, flags, e);
    err = *out ? unwrap(*out, mark) : FATHOM_EFORMAT;
    if (err) {
        json_decref(*out);
        *out = NULL;
    }
out:
    buf_free(&wrapped);
    return err;
}
