/* json_cursor.h - a forward reader for JSON too large to make a tree of
 *
 * tokenizer.json holds a quarter of a million short strings; reading them in place takes a tenth
 * of the time and of the memory of a tree. Small parts go to base/json.h: json_cursor_skip gives
 * their bytes. Every failure is EFORMAT with the byte at which the text stops being right.
 */
#ifndef FATHOM_TOKENIZER_JSON_CURSOR_H
#define FATHOM_TOKENIZER_JSON_CURSOR_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/buf.h"
#include "fathom/err.h"

struct json_cursor {
    const char *p; /* next byte */
    const char *end;
    const char *text;   /* whole text, for positions */
    const char *what;   /* names the text in messages */
    struct buf scratch; /* last string with escapes; freed by json_cursor_close */
    fathom_diag *d;
};

/* A piece of the text, or of scratch: valid until the next json_cursor_string. */
struct json_span {
    const char *s; /* NULL: none */
    size_t n;
};

/* json_cursor_open - start at the first byte, or behind a mark (utf8_mark); the text outlives the
 * cursor */
void json_cursor_open(struct json_cursor *c, const char *text, size_t n, const char *what,
                      fathom_diag *d);

/* json_cursor_close - release what strings with escapes needed */
void json_cursor_close(struct json_cursor *c);

/* json_cursor_at - continue at a span that json_cursor_skip gave, up to its end */
void json_cursor_at(struct json_cursor *c, struct json_span span);

/* json_cursor_enter - pass the '{' or '[' of the next value; `of` says what must stand there */
fathom_err json_cursor_enter(struct json_cursor *c, char open, const char *of);

/* json_cursor_next - step to the next element of the object or array that `close` ends
 *
 *   first  true before the first element; set to false
 *   more   false when `close` has been passed instead */
fathom_err json_cursor_next(struct json_cursor *c, char close, bool *first, bool *more);

/* json_cursor_key - a member's name and the colon after it */
fathom_err json_cursor_key(struct json_cursor *c, struct json_span *key);

/* json_cursor_string - bytes of a string, escapes resolved; they may hold NUL. UTF-8 is checked by
 * the caller, escapes always give well-formed characters. */
fathom_err json_cursor_string(struct json_cursor *c, struct json_span *out);

/* json_cursor_uint - a whole number in [0, max] */
fathom_err json_cursor_uint(struct json_cursor *c, uint32_t max, uint32_t *out);

/* json_cursor_skip - pass any value and give its bytes. Only its extent is established: that
 * brackets nest and strings end. */
fathom_err json_cursor_skip(struct json_cursor *c, struct json_span *value);

/* json_cursor_peek - the first byte of the next value; 0 at the end */
char json_cursor_peek(struct json_cursor *c);

/* json_cursor_finish - nothing but white space may follow */
fathom_err json_cursor_finish(struct json_cursor *c);

/* json_cursor_fail - EFORMAT at the present byte, with what was expected */
fathom_err json_cursor_fail(const struct json_cursor *c, const char *expected);

#endif
