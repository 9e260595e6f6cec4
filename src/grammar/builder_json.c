/* builder_json.c - JSON in general: any value, and values spelled out
 *
 * The rules of a value, an object and an array call each other, so nesting costs frames, not
 * states.
 */
#include <string.h>

#include "base/fail.h"
#include "base/json.h"
#include "grammar/builder.h"
#include "grammar/grammar_int.h"

enum { DIGITS_MAX = 18, EXPONENT_DIGITS_MAX = 2 };

static uint32_t put(struct grammar_builder *b, uint32_t from, const char *text)
{
    return grammar_put_text(b, from, text, strlen(text));
}

/* ---- white space ------------------------------------------------------------------------ */

/* Up to n of a character. */
static void put_some(struct grammar_builder *b, uint32_t from, const char *text, int n, uint32_t to)
{
    for (int i = 0; i <= n; i++) {
        grammar_join(b, from, to);
        if (i < n) from = put(b, from, text);
    }
}

/* A newline and its indentation: up to 8 blanks or 2 tabs for each bracket around it; where their
 * number is not known, up to 32 or 8. */
static uint32_t lines_rule(struct grammar_builder *b, uint32_t level)
{
    uint32_t *known = &b->lines[level];
    if (*known) return *known - 1;
    uint32_t rule = grammar_add_rule(b), end = grammar_rule_end(b, rule);
    int n = level + 1 < INDENTS ? (int)level * INDENT_STEP : INDENT_MAX;
    *known = rule + 1;
    uint32_t at = put(b, grammar_rule_begin(b, rule), "\n");
    put_some(b, at, " ", n, end);
    put_some(b, at, "\t", n / 4, end);
    return rule;
}

uint32_t grammar_put_space(struct grammar_builder *b, uint32_t from, enum grammar_place place)
{
    enum grammar_space space = b->options.space;
    if (space == GRAMMAR_SPACE_NONE) return from;
    bool lines = space == GRAMMAR_SPACE_LINES && place != GRAMMAR_AFTER_COLON;
    bool bracket = place == GRAMMAR_IN_BRACKET || place == GRAMMAR_BEFORE_CLOSE;
    uint32_t level = b->level + (place != GRAMMAR_BEFORE_CLOSE);
    if (level >= INDENTS || b->level + 2 >= INDENTS) level = INDENTS - 1;
    if (!lines && bracket) return from;
    uint32_t to = grammar_add_state(b);
    grammar_join(b, from, to);
    if (!bracket) grammar_join(b, put(b, from, " "), to);
    if (lines) grammar_join(b, grammar_put_rule(b, from, lines_rule(b, level)), to);
    return to;
}

/* ---- numbers ---------------------------------------------------------------------------- */

/* min to max digits */
static uint32_t put_digits(struct grammar_builder *b, uint32_t from, int min, int max)
{
    uint32_t end = grammar_add_state(b);
    for (int i = 0; i < max; i++) {
        if (i >= min) grammar_join(b, from, end);
        from = grammar_put_bytes(b, from, '0', '9');
    }
    grammar_join(b, from, end);
    return end;
}

/* 0, or digits that do not begin with it */
static uint32_t put_natural(struct grammar_builder *b, uint32_t from, uint32_t from_positive)
{
    uint32_t end = grammar_add_state(b);
    grammar_join(b, put(b, from, "0"), end);
    uint32_t at = grammar_put_bytes(b, from_positive, '1', '9');
    grammar_join(b, put_digits(b, at, 0, DIGITS_MAX - 1), end);
    return end;
}

static void draw_integer(struct grammar_builder *b, uint32_t at, uint32_t end)
{
    uint32_t positive = put(b, at, "-");
    grammar_join(b, at, positive);
    grammar_join(b, put_natural(b, at, positive), end);
}

static void draw_number(struct grammar_builder *b, uint32_t at, uint32_t end)
{
    uint32_t first = grammar_add_state(b);
    grammar_join(b, at, first);
    grammar_join(b, put(b, at, "-"), first);
    uint32_t whole = put_natural(b, first, first);
    uint32_t mantissa = put_digits(b, put(b, whole, "."), 1, DIGITS_MAX);
    grammar_join(b, whole, mantissa);
    grammar_join(b, mantissa, end);
    uint32_t exponent = put(b, mantissa, "e"), digits = grammar_add_state(b);
    nfa_edge(&b->nfa, mantissa, 'E', 'E', exponent);
    grammar_join(b, exponent, digits);
    grammar_join(b, put(b, exponent, "+"), digits);
    grammar_join(b, put(b, exponent, "-"), digits);
    grammar_join(b, put_digits(b, digits, 1, EXPONENT_DIGITS_MAX), end);
}

/* ---- values ----------------------------------------------------------------------------- */

static void draw_value(struct grammar_builder *b, uint32_t at, uint32_t end)
{
    static const char *const words[] = {"true", "false", "null"};
    static const enum grammar_json parts[] = {GRAMMAR_JSON_OBJECT, GRAMMAR_JSON_ARRAY,
                                              GRAMMAR_JSON_NUMBER};
    for (size_t i = 0; i < 3; i++) {
        grammar_join(b, put(b, at, words[i]), end);
        grammar_join(b, grammar_put_json(b, at, parts[i]), end);
    }
    grammar_join(b, grammar_put_string(b, at, 0, UINT32_MAX), end);
}

/* An object or array of any values: open ( item ( "," item )* )? close */
static void draw_list(struct grammar_builder *b, uint32_t at, const char *brackets, uint32_t end)
{
    uint32_t open = grammar_put_text(b, at, brackets, 1), close = grammar_add_state(b);
    uint32_t item = grammar_put_space(b, open, GRAMMAR_IN_BRACKET);
    uint32_t from = grammar_add_state(b), to = grammar_add_state(b);
    grammar_join(b, item, from);
    if (brackets[0] == '{') {
        uint32_t key = grammar_put_string(b, from, 0, UINT32_MAX);
        from = grammar_put_space(b, put(b, key, ":"), GRAMMAR_AFTER_COLON);
    }
    grammar_join(b, grammar_put_json(b, from, GRAMMAR_JSON_VALUE), to);
    grammar_join(b, grammar_put_space(b, put(b, to, ","), GRAMMAR_AFTER_COMMA), item);
    grammar_join(b, grammar_put_space(b, to, GRAMMAR_BEFORE_CLOSE), close);
    grammar_join(b, grammar_put_text(b, close, brackets + 1, 1), end);
    grammar_join(b, grammar_put_text(b, open, brackets + 1, 1), end);
}

uint32_t grammar_put_json(struct grammar_builder *b, uint32_t from, enum grammar_json what)
{
    if (!b->json[what]) {
        uint32_t rule = grammar_add_rule(b);
        uint32_t begin = grammar_rule_begin(b, rule), end = grammar_rule_end(b, rule);
        if (b->nfa.err) return 0;
        uint32_t level = b->level;
        b->json[what] = rule + 1;
        b->level = INDENTS; /* called from anywhere */
        switch (what) {
        case GRAMMAR_JSON_VALUE: draw_value(b, begin, end); break;
        case GRAMMAR_JSON_OBJECT: draw_list(b, begin, "{}", end); break;
        case GRAMMAR_JSON_ARRAY: draw_list(b, begin, "[]", end); break;
        case GRAMMAR_JSON_NUMBER: draw_number(b, begin, end); break;
        case GRAMMAR_JSON_INTEGER: draw_integer(b, begin, end); break;
        case GRAMMAR_JSON_COUNT: break;
        }
        b->level = level;
    }
    return grammar_put_rule(b, from, b->json[what] - 1);
}

static fathom_err draw_object(struct grammar_builder *b, uint32_t from, const void *what,
                              uint32_t *to, fathom_diag *d)
{
    (void)what, (void)d;
    *to = grammar_put_json(b, from, GRAMMAR_JSON_OBJECT);
    return FATHOM_OK;
}

fathom_err grammar_from_json_object(struct grammar **out, const struct grammar_vocab *v,
                                    const struct grammar_options *options, fathom_diag *d)
{
    return grammar_compile(out, v, options, draw_object, NULL, NULL, d);
}

/* ---- values spelled out ----------------------------------------------------------------- */

static uint32_t put_scalar(struct grammar_builder *b, uint32_t from, const json_t *value)
{
    struct buf text = {0};
    if (!b->nfa.err) b->nfa.err = json_write_python(&text, value);
    uint32_t to = grammar_put_text(b, from, buf_str(&text), text.len);
    buf_free(&text);
    return to;
}

uint32_t grammar_put_literal(struct grammar_builder *b, uint32_t from, const json_t *value)
{
    bool object = json_is_plain_object(value);
    if (!object && !json_is_array(value)) return put_scalar(b, from, value);
    size_t n = object ? json_object_size(value) : json_array_size(value);
    uint32_t level = b->level, at = put(b, from, object ? "{" : "[");
    void *iter = json_object_iter((json_t *)value);
    for (size_t i = 0; i < n && !b->nfa.err; i++) {
        if (i > 0) at = put(b, at, ",");
        at = grammar_put_space(b, at, i > 0 ? GRAMMAR_AFTER_COMMA : GRAMMAR_IN_BRACKET);
        const json_t *item = object ? json_object_iter_value(iter) : json_array_get(value, i);
        if (object) {
            struct buf key = {0};
            const char *name = json_object_iter_key(iter);
            b->nfa.err = json_write_string(&key, name, strlen(name));
            at = grammar_put_text(b, at, buf_str(&key), key.len);
            buf_free(&key);
            at = grammar_put_space(b, put(b, at, ":"), GRAMMAR_AFTER_COLON);
            iter = json_object_iter_next((json_t *)value, iter);
        }
        b->level = INDENTS;
        at = grammar_put_literal(b, at, item);
        b->level = level;
    }
    if (n > 0) at = grammar_put_space(b, at, GRAMMAR_BEFORE_CLOSE);
    return put(b, at, object ? "}" : "]");
}
