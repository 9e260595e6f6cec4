/* schema_number.c - numbers as automata over digits
 *
 * Each rule becomes an automaton over spellings, which is exact in decimal. The product of these
 * with the general form of numbers is what may be written. A number under rules has no exponent.
 *
 *   bounds       the whole part is compared digit by digit, then the fraction
 *   multiple of  the state is the remainder of the digits read so far
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/fail.h"
#include "base/json.h"
#include "grammar/schema_int.h"

enum { DIGITS_MAX = 18, EXACT_DIGITS = 15 };

/* A number of a rule: +-whole.fraction, without leading and trailing zeros; 0 has no digits. */
struct decimal {
    bool negative;
    char whole[DIGITS_MAX + 2];
    char fraction[DIGITS_MAX + 2];
    int n_whole, n_fraction;
    bool huge; /* more than DIGITS_MAX digits before the point */
};

/* ---- reading ---------------------------------------------------------------------------- */

/* A number's digits, without its point and exponent, and where the point stands. */
struct spelled {
    char digits[400];
    int n;
    int point; /* digits before the point; may be negative or past the end */
};

static fathom_err read_spelling(const json_t *value, struct spelled *out, bool *negative)
{
    struct buf text = {0};
    TRY(json_write_python(&text, value));
    const char *p = buf_str(&text);
    bool seen_point = false;
    *out = (struct spelled){.n = 0};
    *negative = *p == '-';
    if (*negative) p++;
    for (; *p && *p != 'e' && *p != 'E'; p++) {
        if (*p == '.') {
            seen_point = true;
        } else if (out->n < (int)sizeof out->digits) {
            out->digits[out->n++] = *p;
            out->point += !seen_point;
        }
    }
    if (*p) out->point += (int)strtol(p + 1, NULL, 10);
    buf_free(&text);
    return FATHOM_OK;
}

/* Errors  ELIMIT: more than DIGITS_MAX digits after the point. */
static fathom_err read_decimal(const json_t *value, struct decimal *out)
{
    struct spelled s;
    *out = (struct decimal){.n_whole = 0};
    TRY(read_spelling(value, &s, &out->negative));
    int first = 0, last = s.n;
    while (first < s.n && s.digits[first] == '0') first++;
    while (last > first && s.digits[last - 1] == '0') last--;
    if (first == last) {
        out->negative = false;
        return FATHOM_OK;
    }
    out->huge = s.point - first > DIGITS_MAX;
    if (out->huge) return FATHOM_OK;
    for (int i = first; i < s.point; i++) out->whole[out->n_whole++] = i < last ? s.digits[i] : '0';
    if (last - s.point > DIGITS_MAX) return FATHOM_ELIMIT;
    for (int i = s.point; i < last; i++) {
        out->fraction[out->n_fraction++] = i < first ? '0' : s.digits[i];
    }
    return FATHOM_OK;
}

/* ---- drawing ---------------------------------------------------------------------------- */

/* An automaton under construction, with states for numbers without a sign. From free[n], up to n
 * more whole digits and then any fraction may follow; from rest[n], up to n more digits of a
 * fraction. */
struct canvas {
    struct nfa n;
    uint32_t start, end;
    uint32_t free[DIGITS_MAX + 1];
    uint32_t rest[DIGITS_MAX + 1];
};

static uint32_t put_char(struct canvas *c, uint32_t from, char lo, char hi)
{
    uint32_t to = nfa_state(&c->n);
    nfa_edge(&c->n, from, (uint8_t)lo, (uint8_t)hi, to);
    return to;
}

static void join(struct canvas *c, uint32_t from, uint32_t to)
{
    nfa_link(&c->n, from, NFA_EPSILON, to);
}

/* Any fraction, or none. */
static void put_any_fraction(struct canvas *c, uint32_t from)
{
    uint32_t point = put_char(c, from, '.', '.');
    nfa_edge(&c->n, point, '0', '9', c->rest[DIGITS_MAX - 1]);
    join(c, from, c->end);
}

static void canvas_init(struct canvas *c, struct grammar_budget *budget)
{
    nfa_init(&c->n, SCHEMA_STATES_MAX, budget);
    c->start = nfa_state(&c->n);
    c->end = nfa_state(&c->n);
    for (int i = 0; i <= DIGITS_MAX; i++) {
        c->rest[i] = nfa_state(&c->n);
        join(c, c->rest[i], c->end);
        if (i > 0) nfa_edge(&c->n, c->rest[i], '0', '9', c->rest[i - 1]);
    }
    for (int i = 0; i <= DIGITS_MAX; i++) {
        c->free[i] = nfa_state(&c->n);
        put_any_fraction(c, c->free[i]);
        if (i > 0) nfa_edge(&c->n, c->free[i], '0', '9', c->free[i - 1]);
    }
}

/* Any number of min to max whole digits. */
static void put_longer(struct canvas *c, uint32_t from, int min, int max)
{
    if (min == 0) {
        put_any_fraction(c, put_char(c, from, '0', '0'));
        min = 1;
    }
    if (min > max) return;
    uint32_t at = put_char(c, from, '1', '9');
    for (int i = 1; i < min; i++) at = put_char(c, at, '0', '9');
    join(c, at, c->free[max - min]);
}

/* Draws fractions that are at least the bound's; strict: above it. Then a number near the bound has
 * at most EXACT_DIGITS digits, so that it is above the bound as a double too. */
static void put_fraction_least(struct canvas *c, uint32_t from, const struct decimal *b,
                               bool strict)
{
    int n = b->n_fraction, longest = EXACT_DIGITS - b->n_whole;
    if (longest <= n) longest = n + 1;
    if (longest > DIGITS_MAX) longest = DIGITS_MAX;
    if (n == 0 && !strict) {
        put_any_fraction(c, from);
        return;
    }
    uint32_t at = put_char(c, from, '.', '.');
    for (int i = 0; i < n; i++) {
        char digit = b->fraction[i];
        if (digit < '9') {
            nfa_edge(&c->n, at, (uint8_t)digit + 1u, '9', c->rest[DIGITS_MAX - 1 - i]);
        }
        at = put_char(c, at, digit, digit);
    }
    if (!strict) {
        join(c, at, c->rest[DIGITS_MAX - n]);
        return;
    }
    for (int i = n; i < longest; i++) {
        nfa_edge(&c->n, at, '1', '9', c->rest[longest - 1 - i]);
        at = put_char(c, at, '0', '0');
    }
}

static void put_fraction_most(struct canvas *c, uint32_t from, const struct decimal *b, bool strict)
{
    int n = b->n_fraction;
    if (n > 0 || !strict) join(c, from, c->end);
    uint32_t at = put_char(c, from, '.', '.');
    for (int i = 0; i < n; i++) {
        char digit = b->fraction[i];
        if (digit > '0') {
            nfa_edge(&c->n, at, '0', (uint8_t)digit - 1u, c->rest[DIGITS_MAX - 1 - i]);
        }
        at = put_char(c, at, digit, digit);
        if (i + 1 < n || !strict) join(c, at, c->end);
    }
    for (int i = n; i < DIGITS_MAX && !strict; i++) {
        at = put_char(c, at, '0', '0');
        join(c, at, c->end);
    }
}

/* Draws the whole part of a bound, digit by digit; *at becomes the state in which all digits were
 * equal. Whole parts of the same length beyond it (above, or below) may have any fraction. */
static void put_whole(struct canvas *c, uint32_t *at, const struct decimal *b, bool least)
{
    if (b->n_whole == 0) *at = put_char(c, *at, '0', '0');
    for (int i = 0; i < b->n_whole; i++) {
        char digit = b->whole[i], zero = i == 0 ? '1' : '0';
        uint32_t beyond = nfa_state(&c->n), from = beyond;
        for (int k = i + 1; k < b->n_whole; k++) from = put_char(c, from, '0', '9');
        put_any_fraction(c, from);
        if (least && digit < '9') nfa_edge(&c->n, *at, (uint8_t)digit + 1u, '9', beyond);
        if (!least && digit > zero) {
            nfa_edge(&c->n, *at, (uint8_t)zero, (uint8_t)digit - 1u, beyond);
        }
        *at = put_char(c, *at, digit, digit);
    }
}

/* Numbers without a sign that are at least the size of a bound. */
static void put_least(struct canvas *c, uint32_t from, const struct decimal *b, bool strict)
{
    if (b->huge) return;
    uint32_t at = from;
    put_whole(c, &at, b, true);
    put_fraction_least(c, at, b, strict);
    put_longer(c, from, b->n_whole + 1, DIGITS_MAX);
}

static void put_most(struct canvas *c, uint32_t from, const struct decimal *b, bool strict)
{
    if (b->huge) {
        put_longer(c, from, 0, DIGITS_MAX);
        return;
    }
    uint32_t at = from;
    put_whole(c, &at, b, false);
    put_fraction_most(c, at, b, strict);
    if (b->n_whole > 0) put_longer(c, from, 0, b->n_whole - 1);
}

static bool is_zero(const struct decimal *b)
{
    return !b->huge && b->n_whole == 0 && b->n_fraction == 0;
}

/* All numbers on one side of a bound, with signs. */
static void put_side(struct canvas *c, const struct decimal *b, bool least, bool strict)
{
    uint32_t minus = put_char(c, c->start, '-', '-');
    if (least && b->negative) {
        put_longer(c, c->start, 0, DIGITS_MAX);
        put_most(c, minus, b, strict);
    } else if (least) {
        put_least(c, c->start, b, strict);
    } else if (b->negative) {
        put_least(c, minus, b, strict);
    } else {
        if (!is_zero(b) || !strict) put_most(c, c->start, b, strict);
        if (is_zero(b) && strict) {
            put_least(c, minus, b, true);
        } else {
            put_longer(c, minus, 0, DIGITS_MAX);
        }
    }
}

/* Draws multiples: a state is the remainder, by m, of the digits so far. Up to `places` digits may
 * follow the point, and the number times 10^places must be a multiple of m. */
static void put_multiples(struct canvas *c, uint32_t m, int places)
{
    uint32_t base = c->n.n_state, n_layer = (uint32_t)places + 2;
    for (uint32_t i = 0; i < n_layer * m; i++) (void)nfa_state(&c->n);
    if (c->n.err) return;
    join(c, put_char(c, c->start, '-', '-'), base);
    join(c, c->start, base);
    for (uint32_t layer = 0; layer < n_layer; layer++) {
        for (uint32_t r = 0; r < m; r++) {
            uint32_t at = base + layer * m + r, next = layer == 0 ? 0 : layer + 1;
            uint64_t scaled = r;
            for (uint32_t k = layer ? layer - 1 : 0; k < (uint32_t)places; k++) {
                scaled = scaled * 10 % m;
            }
            if (scaled == 0 && layer != 1) join(c, at, c->end);
            if (layer == 0 && places > 0) nfa_edge(&c->n, at, '.', '.', base + m + r);
            for (uint32_t digit = 0; digit < 10 && next < n_layer; digit++) {
                nfa_edge(&c->n, at, '0' + digit, '0' + digit,
                         base + next * m + (r * 10 + digit) % m);
            }
        }
    }
}

/* Any number without an exponent, or any integer. */
static void put_form(struct canvas *c, bool integer)
{
    uint32_t minus = put_char(c, c->start, '-', '-');
    if (!integer) {
        put_longer(c, c->start, 0, DIGITS_MAX);
        put_longer(c, minus, 0, DIGITS_MAX);
        return;
    }
    join(c, put_char(c, c->start, '0', '0'), c->end);
    uint32_t at = put_char(c, c->start, '1', '9');
    nfa_edge(&c->n, minus, '1', '9', at);
    for (int i = 1; i < DIGITS_MAX; i++) {
        join(c, at, c->end);
        at = put_char(c, at, '0', '9');
    }
    join(c, at, c->end);
}

/* ---- rules ------------------------------------------------------------------------------ */

/* Makes the automaton of what has been drawn. */
static fathom_err finish(struct canvas *c, struct dfa *out)
{
    fathom_err err = c->n.err;
    *out = (struct dfa){0};
    if (!err) err = dfa_build(out, &c->n, c->start, c->end, DFA_WHOLE, SCHEMA_STATES_MAX, NULL);
    nfa_free(&c->n);
    return err;
}

static fathom_err too_fine(struct schema_compiler *c, const char *keyword)
{
    FAIL(c->d, FATHOM_EUNSUPPORTED,
         "schema %s: \"%s\" of more than %d digits before or after the point, or a multiple with "
         "too many digits, is not supported",
         buf_str(&c->path), keyword, DIGITS_MAX);
}

static fathom_err build_multiples(struct schema_compiler *c, const json_t *value, struct dfa *out)
{
    struct decimal b;
    struct canvas canvas;
    uint64_t m = 0;
    fathom_err err = read_decimal(value, &b);
    if (err == FATHOM_ELIMIT || b.huge) return too_fine(c, "multipleOf");
    TRY(err);
    for (int i = 0; i < b.n_whole + b.n_fraction && m < SCHEMA_STATES_MAX; i++) {
        m = m * 10 + (uint64_t)((i < b.n_whole ? b.whole[i] : b.fraction[i - b.n_whole]) - '0');
    }
    if (m * (uint64_t)(b.n_fraction + 2) >= SCHEMA_STATES_MAX / 2) return too_fine(c, "multipleOf");
    canvas_init(&canvas, &c->b->budget);
    put_multiples(&canvas, (uint32_t)m, b.n_fraction);
    return finish(&canvas, out);
}

static fathom_err build_bound(struct schema_compiler *c, const char *keyword, const json_t *value,
                              struct dfa *out)
{
    struct decimal b;
    struct canvas canvas;
    bool strict = keyword[0] == 'e';
    bool least = strcmp(keyword, strict ? "exclusiveMinimum" : "minimum") == 0;
    fathom_err err = read_decimal(value, &b);
    if (err == FATHOM_ELIMIT) return too_fine(c, keyword);
    TRY(err);
    canvas_init(&canvas, &c->b->budget);
    put_side(&canvas, &b, least, strict);
    return finish(&canvas, out);
}

static fathom_err build_form(struct schema_compiler *c, bool integer, struct dfa *out)
{
    struct canvas canvas;
    canvas_init(&canvas, &c->b->budget);
    put_form(&canvas, integer);
    return finish(&canvas, out);
}

fathom_err number_build(struct schema_compiler *c, const struct schema_flat *f, bool integer,
                        struct dfa *out)
{
    fathom_err err = build_form(c, integer, out);
    for (size_t i = 0; i < json_array_size(f->number_rules) && !err; i++) {
        void *iter = json_object_iter(json_array_get(f->number_rules, i));
        const char *keyword = json_object_iter_key(iter);
        const json_t *value = json_object_iter_value(iter);
        struct dfa rule, both = {0};
        err = strcmp(keyword, "multipleOf") == 0 ? build_multiples(c, value, &rule)
                                                 : build_bound(c, keyword, value, &rule);
        if (err) break;
        err = dfa_intersect(&both, out, &rule, SCHEMA_STATES_MAX, &c->b->budget);
        dfa_free(&rule);
        dfa_free(out);
        *out = both;
    }
    if (err) dfa_free(out);
    if (err != FATHOM_ELIMIT) return err;
    FAIL(c->d, err, "schema %s: the bounds of a number together need more than %d states",
         buf_str(&c->path), SCHEMA_STATES_MAX);
}
