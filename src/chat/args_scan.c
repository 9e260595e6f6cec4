/* args_scan.c - one JSON value, read byte by byte */
#include "chat/args_scan.h"

#include <string.h>

static bool is_space(char c)
{
    return c == ' ' || c == '\t' || c == '\n' || c == '\r';
}

static bool is_digit(char c)
{
    return c >= '0' && c <= '9';
}

static int hex_value(char c)
{
    if (is_digit(c)) return c - '0';
    if (c >= 'a' && c <= 'f') return c - 'a' + 10;
    if (c >= 'A' && c <= 'F') return c - 'A' + 10;
    return -1;
}

void args_scan_init(struct args_scan *a)
{
    memset(a, 0, sizeof *a);
    a->state = ARGS_VALUE;
    a->valid = true;
}

/* ---- brackets --------------------------------------------------------------------------- */

static bool top_is_object(const struct args_scan *a)
{
    uint32_t i = a->depth - 1;
    if (a->depth == 0 || i >= ARGS_SCAN_DEPTH) return false;
    return a->is_object[i / 8] >> (i % 8) & 1;
}

static void open_bracket(struct args_scan *a, bool object)
{
    uint32_t i = a->depth++;
    if (i >= ARGS_SCAN_DEPTH) {
        a->valid = false;
    } else if (object) {
        a->is_object[i / 8] |= (uint8_t)(1u << (i % 8));
    } else {
        a->is_object[i / 8] &= (uint8_t) ~(1u << (i % 8));
    }
    a->state = !a->valid ? ARGS_LOOSE : object ? ARGS_KEY_OR_END : ARGS_VALUE_OR_END;
}

static void end_value(struct args_scan *a)
{
    if (a->depth == 0) {
        a->state = ARGS_DONE;
    } else {
        a->state = a->valid ? ARGS_COMMA_OR_END : ARGS_LOOSE;
    }
}

/* ---- loose text ------------------------------------------------------------------------- */

static void begin_string(struct args_scan *a, bool key)
{
    a->state = ARGS_STRING;
    a->is_key = key;
    a->n_escape = 0;
    a->high = false;
}

static void read_loose(struct args_scan *a, char c)
{
    a->valid = false;
    a->state = ARGS_LOOSE;
    switch (c) {
    case '"': begin_string(a, false); break;
    case '{': open_bracket(a, true); break;
    case '[': open_bracket(a, false); break;
    case '}':
    case ']':
        if (a->depth > 0) a->depth--;
        if (a->depth == 0) a->state = ARGS_DONE;
        break;
    default: break;
    }
}

/* ---- JSON ------------------------------------------------------------------------------- */

static void begin_value(struct args_scan *a, char c)
{
    if (c == '"') {
        begin_string(a, false);
    } else if (c == '{' || c == '[') {
        open_bracket(a, c == '{');
    } else if (c == '-' || is_digit(c)) {
        a->state = ARGS_NUMBER;
        a->number = c == '-' ? NUM_SIGN : c == '0' ? NUM_ZERO : NUM_INT;
    } else if (c == 't' || c == 'f' || c == 'n') {
        a->state = ARGS_LITERAL;
        a->literal = c == 't' ? "true" : c == 'f' ? "false" : "null";
        a->n_literal = 1;
    } else {
        read_loose(a, c);
    }
}

/* Takes c into the number; false: it does not belong to it. */
static bool extend_number(struct args_scan *a, char c)
{
    bool digit = is_digit(c);
    bool e = c == 'e' || c == 'E';
    switch (a->number) {
    case NUM_SIGN:
        if (digit) a->number = c == '0' ? NUM_ZERO : NUM_INT;
        return digit;
    case NUM_INT:
        if (digit) return true;
        /* fall through */
    case NUM_ZERO:
        if (c == '.') a->number = NUM_POINT;
        if (e) a->number = NUM_E;
        return c == '.' || e;
    case NUM_POINT:
        if (digit) a->number = NUM_FRAC;
        return digit;
    case NUM_FRAC:
        if (e) a->number = NUM_E;
        return digit || e;
    case NUM_E:
        if (digit) a->number = NUM_EXP;
        if (c == '+' || c == '-') a->number = NUM_E_SIGN;
        return digit || c == '+' || c == '-';
    case NUM_E_SIGN:
        if (digit) a->number = NUM_EXP;
        return digit;
    case NUM_EXP: return digit;
    }
    return false;
}

static bool is_whole_number(const struct args_scan *a)
{
    return a->number == NUM_ZERO || a->number == NUM_INT || a->number == NUM_FRAC ||
           a->number == NUM_EXP;
}

/* A character of an escape, n_escape >= 1. */
static void read_escape(struct args_scan *a, char c)
{
    if (a->n_escape == 1 && c != 'u') {
        if (!strchr("\"\\/bfnrt", c)) a->valid = false;
        a->n_escape = 0;
        a->high = false;
        return;
    }
    if (a->n_escape == 1) {
        a->escape = 0;
        a->n_escape = 2;
        return;
    }
    int v = hex_value(c);
    if (v < 0) {
        a->valid = false;
        a->n_escape = 0;
        if (c == '"') end_value(a);
        return;
    }
    a->escape = a->escape << 4 | (uint32_t)v;
    if (++a->n_escape < 6) return;
    a->n_escape = 0;
    a->high = a->escape >= 0xD800 && a->escape < 0xDC00;
}

static void read_string(struct args_scan *a, char c)
{
    if (a->n_escape) {
        read_escape(a, c);
        return;
    }
    if (c == '\\') {
        a->n_escape = 1;
        return;
    }
    a->high = false;
    if (c != '"') return;
    if (a->is_key && a->valid) {
        a->state = ARGS_COLON;
    } else {
        end_value(a);
    }
}

static void read_structure(struct args_scan *a, char c)
{
    if (is_space(c)) return;
    char end = top_is_object(a) ? '}' : ']';
    switch (a->state) {
    case ARGS_VALUE: begin_value(a, c); return;
    case ARGS_COLON:
        if (c != ':') break;
        a->state = ARGS_VALUE;
        return;
    case ARGS_KEY:
    case ARGS_KEY_OR_END:
        if (c == '"') {
            begin_string(a, true);
            return;
        }
        if (c != '}' || a->state == ARGS_KEY) break;
        a->depth--;
        end_value(a);
        return;
    case ARGS_VALUE_OR_END:
        if (c != ']') {
            begin_value(a, c);
            return;
        }
        a->depth--;
        end_value(a);
        return;
    case ARGS_COMMA_OR_END:
        if (c == ',') {
            a->state = top_is_object(a) ? ARGS_KEY : ARGS_VALUE;
            return;
        }
        if (c != end) break;
        a->depth--;
        end_value(a);
        return;
    case ARGS_DONE: a->valid = false; return;
    default: break;
    }
    read_loose(a, c);
}

static void read_byte(struct args_scan *a, char c)
{
    switch (a->state) {
    case ARGS_STRING: read_string(a, c); return;
    case ARGS_LOOSE: read_loose(a, c); return;
    case ARGS_NUMBER:
        if (extend_number(a, c)) return;
        if (!is_whole_number(a)) {
            read_loose(a, c);
            return;
        }
        end_value(a);
        read_structure(a, c);
        return;
    case ARGS_LITERAL:
        if (c != a->literal[a->n_literal]) {
            read_loose(a, c);
            return;
        }
        a->n_literal++;
        if (a->literal[a->n_literal] == '\0') end_value(a);
        return;
    default: read_structure(a, c);
    }
}

enum args_stop args_scan_run(struct args_scan *a, const char *s, size_t n, size_t *used)
{
    for (size_t i = 0; i < n; i++) {
        *used = i;
        if (a->state == ARGS_STRING) {
            if ((unsigned char)s[i] < 0x20) return ARGS_STOP_CONTROL;
        } else if (s[i] == '<' || s[i] == '`') {
            return ARGS_STOP_MARK;
        }
        bool inside = a->depth > 0;
        read_byte(a, s[i]);
        *used = i + 1;
        if (inside && a->depth == 0) return ARGS_STOP_DONE;
    }
    *used = n;
    return ARGS_STOP_MORE;
}

void args_scan_skip(struct args_scan *a, char c)
{
    if (a->state != ARGS_STRING) {
        read_byte(a, c);
        return;
    }
    if (a->n_escape) a->valid = false; /* "\" before a raw control character */
    a->n_escape = 0;
    a->high = false;
}

void args_scan_text(struct args_scan *a, const char *s, size_t n)
{
    while (n > 0) {
        size_t used;
        enum args_stop stop = args_scan_run(a, s, n, &used);
        if (stop == ARGS_STOP_MARK || stop == ARGS_STOP_CONTROL) args_scan_skip(a, s[used++]);
        s += used;
        n -= used;
    }
}

bool args_scan_complete(const struct args_scan *a)
{
    if (!a->valid) return false;
    return a->state == ARGS_DONE ||
           (a->state == ARGS_NUMBER && a->depth == 0 && is_whole_number(a));
}

/* ---- completion ------------------------------------------------------------------------- */

/* Completes \u and its digits so far with zeros, but never to NUL, which many readers refuse.
 * Returns the character. */
static uint32_t close_hex(uint32_t escape, unsigned n_digit, struct buf *out)
{
    static const char *const not_nul[] = {"0020", "020", "20", "9"};
    if (escape == 0 && n_digit < 4) {
        (void)buf_add_str(out, not_nul[n_digit]);
        return n_digit < 3 ? ' ' : '\t';
    }
    for (unsigned i = n_digit; i < 4; i++) {
        (void)buf_add_char(out, '0');
        escape <<= 4;
    }
    return escape;
}

/* Completes the escape under way; a first half of a surrogate pair gets a second half. */
static void close_escape(const struct args_scan *a, struct buf *out)
{
    static const char low[] = "\\udc00";
    bool high = a->high;
    if (a->n_escape == 1 && !high) {
        (void)buf_add_char(out, '\\');
        return;
    }
    if (a->n_escape > 0 && high) { /* inside the second half: \u, then dc00 to dfff */
        unsigned have = a->n_escape;
        if (have == 1) (void)buf_add_char(out, 'u');
        if (have <= 2) (void)buf_add_char(out, 'd');
        if (have <= 3) (void)buf_add_char(out, 'c');
        for (unsigned i = have < 4 ? 4 : have; i < 6; i++) (void)buf_add_char(out, '0');
        return;
    }
    if (a->n_escape > 0) {
        uint32_t escape = close_hex(a->escape, a->n_escape - 2u, out);
        high = escape >= 0xD800 && escape < 0xDC00;
    }
    if (high) (void)buf_add_str(out, low);
}

static void close_token(const struct args_scan *a, struct buf *out)
{
    switch (a->state) {
    case ARGS_VALUE: (void)buf_add_str(out, "null"); break;
    case ARGS_KEY: (void)buf_add_str(out, "\"\": null"); break;
    case ARGS_COLON: (void)buf_add_str(out, ": null"); break;
    case ARGS_STRING:
        close_escape(a, out);
        (void)buf_add_char(out, '"');
        if (a->is_key && a->valid) (void)buf_add_str(out, ": null");
        break;
    case ARGS_NUMBER:
        if (!is_whole_number(a)) (void)buf_add_char(out, '0');
        break;
    case ARGS_LITERAL: (void)buf_add_str(out, a->literal + a->n_literal); break;
    default: break;
    }
}

void args_scan_close(const struct args_scan *a, struct buf *out)
{
    close_token(a, out);
    for (uint32_t i = a->depth; i-- > 0;) {
        bool object = i < ARGS_SCAN_DEPTH && a->is_object[i / 8] >> (i % 8) & 1;
        (void)buf_add_char(out, object ? '}' : ']');
    }
}
