/* args_scan.h - incremental reader of one JSON value, for arguments as they stream
 *
 * It finds the end of the value, knows whether what it has read can still become JSON, and can
 * tell the fewest characters that complete it. It never allocates and never fails: text that is
 * not JSON is followed by its brackets and strings alone.
 *
 * Invariants: depth is the number of open brackets; is_object has a bit for each of the first
 * ARGS_SCAN_DEPTH of them; once valid is false it stays so.
 */
#ifndef FATHOM_CHAT_ARGS_SCAN_H
#define FATHOM_CHAT_ARGS_SCAN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/buf.h"

enum { ARGS_SCAN_DEPTH = 512 };

enum args_state {
    ARGS_VALUE,        /* a value must begin */
    ARGS_VALUE_OR_END, /* after [ */
    ARGS_KEY_OR_END,   /* after { */
    ARGS_KEY,          /* after , in an object */
    ARGS_COLON,
    ARGS_COMMA_OR_END, /* after a value inside brackets */
    ARGS_STRING,       /* a value, or a key when is_key */
    ARGS_NUMBER,
    ARGS_LITERAL,
    ARGS_LOOSE, /* not JSON, outside strings */
    ARGS_DONE,
};

enum args_number { NUM_SIGN, NUM_ZERO, NUM_INT, NUM_POINT, NUM_FRAC, NUM_E, NUM_E_SIGN, NUM_EXP };

struct args_scan {
    enum args_state state;
    bool valid;
    bool is_key;
    enum args_number number;
    const char *literal; /* the one being read; n_literal characters of it have come */
    unsigned n_literal;
    unsigned n_escape; /* characters of the escape being read, its backslash included; 0: none */
    uint32_t escape;   /* value of its hex digits */
    bool high;         /* the escape before was the first half of a surrogate pair */
    uint32_t depth;
    uint8_t is_object[ARGS_SCAN_DEPTH / 8];
};

/* Why args_scan_run stopped. */
enum args_stop {
    ARGS_STOP_MORE,    /* all read */
    ARGS_STOP_DONE,    /* right after the bracket that closes the value */
    ARGS_STOP_MARK,    /* before a '<' or '`' outside strings, which is no JSON */
    ARGS_STOP_CONTROL, /* before a control character inside a string */
};

/* args_scan_init - before the first byte of a value */
void args_scan_init(struct args_scan *a);

/* args_scan_run - read s[0 .. n); *used: bytes read. Linear. */
enum args_stop args_scan_run(struct args_scan *a, const char *s, size_t n, size_t *used);

/* args_scan_skip - go past the byte at which args_scan_run stopped (MARK or CONTROL). A control
 * character counts as its escape, any other byte as not JSON. */
void args_scan_skip(struct args_scan *a, char c);

/* args_scan_text - read all of s[0 .. n), past whatever args_scan_run stops at */
void args_scan_text(struct args_scan *a, const char *s, size_t n);

/* args_scan_complete - whether what was read is a whole JSON value and nothing else */
bool args_scan_complete(const struct args_scan *a);

/* args_scan_close - append what completes the value: nothing when it is complete. Text that is not
 * JSON gets its string and brackets closed. */
void args_scan_close(const struct args_scan *a, struct buf *out);

#endif
