/* ebnf_gbnf.c - GBNF, the notation of llama.cpp and xgrammar
 *
 *   grammar  = (name "::=" choice)*             a rule ends before the next name with a "::="
 *   choice   = sequence ("|" sequence)*
 *   sequence = (atom ("*" | "+" | "?" | "{m}" | "{m,}" | "{m,n}" | "{,n}")?)*
 *   atom     = "text" | [class] | [^class] | . | name | ( choice )
 *
 * "#" begins a comment. A "." between two letters of a name belongs to it.
 */
#include <string.h>

#include "base/fail.h"
#include "grammar/ebnf_int.h"

static void skip_space(struct ebnf_reader *r)
{
    while (r->at < r->n) {
        char c = r->text[r->at];
        if (c == '#') {
            while (r->at < r->n && r->text[r->at] != '\n') r->at++;
        } else if (c == ' ' || c == '\t' || c == '\n' || c == '\r') {
            r->at++;
        } else {
            return;
        }
    }
}

/* Whether a rule begins here: a name of n bytes, then "::=". */
static bool at_rule(const struct ebnf_reader *r, size_t n)
{
    struct ebnf_reader ahead = *r;
    ahead.at += n;
    if (n == 0) return false;
    skip_space(&ahead);
    return ebnf_peek(&ahead, "::=");
}

static bool at_quantifier(const struct ebnf_reader *r)
{
    return r->at < r->n && memchr("*+?{", r->text[r->at], 4) != NULL;
}

/* ---- atoms ------------------------------------------------------------------------------ */

static fathom_err add_range(struct ebnf_reader *r, size_t at, struct char_class *c, uint32_t lo,
                            uint32_t hi)
{
    if (hi < lo) {
        return ebnf_fail(r->e, at, FATHOM_EINVAL, "a range that ends before it begins");
    }
    fathom_err err = char_class_add(c, lo, hi);
    if (!err) return FATHOM_OK;
    return ebnf_fail(r->e, at, err, "a class of more than %d ranges", CHAR_CLASS_RANGES_MAX);
}

/* Reads \d, \w, \s, \D, \W or \S; *known is false if something else stands there. */
static fathom_err take_named(struct ebnf_reader *r, struct char_class *c, bool *known)
{
    *known = false;
    if (!ebnf_peek(r, "\\") || r->n - r->at < 2) return FATHOM_OK;
    fathom_err err = char_class_add_named(c, (unsigned char)r->text[r->at + 1], known);
    if (*known) r->at += 2;
    if (!err) return FATHOM_OK;
    return ebnf_fail(r->e, r->at, err, "a class of more than %d ranges", CHAR_CLASS_RANGES_MAX);
}

/* After "[". */
static fathom_err take_class(struct ebnf_reader *r, size_t begin, uint32_t *out)
{
    struct char_class c = {.n = 0};
    bool negated = ebnf_take(r, "^");
    while (r->at < r->n && r->text[r->at] != ']' && r->text[r->at] != '\n') {
        uint32_t lo, hi;
        bool known;
        size_t at = r->at;
        TRY(take_named(r, &c, &known));
        if (known) continue;
        TRY(ebnf_character(r, &lo));
        hi = lo;
        if (ebnf_peek(r, "-") && r->n - r->at > 1 && r->text[r->at + 1] != ']') {
            r->at++;
            TRY(ebnf_character(r, &hi));
        }
        TRY(add_range(r, at, &c, lo, hi));
    }
    if (!ebnf_take(r, "]")) {
        return ebnf_fail(r->e, begin, FATHOM_EINVAL, "a class whose [ its line does not end");
    }
    fathom_err err = FATHOM_OK;
    if (negated) err = char_class_negate(&c);
    if (err) return add_range(r, begin, &c, 0, 0);
    char_class_normalise(&c);
    if (c.n == 0) return ebnf_fail(r->e, begin, FATHOM_EINVAL, "a class without a character");
    return ebnf_class(r->e, &c, out);
}

static fathom_err take_text(struct ebnf_reader *r, uint32_t *out)
{
    struct buf text = {0};
    fathom_err err = ebnf_literal(r, &text);
    if (!err) err = ebnf_text(r->e, buf_str(&text), text.len, out);
    buf_free(&text);
    return err;
}

static fathom_err take_choice(struct ebnf_reader *r, uint32_t *out);

static fathom_err take_group(struct ebnf_reader *r, size_t begin, uint32_t *out)
{
    if (ebnf_peek(r, "=")) {
        return ebnf_fail(r->e, begin, FATHOM_EUNSUPPORTED,
                         "(=...), a look ahead, is not supported");
    }
    TRY(ebnf_deeper(r));
    TRY(take_choice(r, out));
    if (!ebnf_take(r, ")")) {
        return ebnf_fail(r->e, begin, FATHOM_EINVAL, "a ( without its )");
    }
    r->depth--;
    return FATHOM_OK;
}

static fathom_err take_name(struct ebnf_reader *r, size_t n, uint32_t *out)
{
    const char *name = r->text + r->at;
    uint32_t rule;
    size_t at = r->at;
    r->at += n;
    if (ebnf_peek(r, "(")) {
        return ebnf_fail(r->e, at, FATHOM_EUNSUPPORTED, "%.*s(...) is not supported", (int)n, name);
    }
    TRY(ebnf_find_rule(r->e, name, n, at, &rule));
    return ebnf_node(r->e, EBNF_RULE, rule, (uint32_t)at, out);
}

static fathom_err take_atom(struct ebnf_reader *r, uint32_t *out)
{
    size_t at = r->at, n = ebnf_name(r, true);
    if (n > 0) return take_name(r, n, out);
    if (ebnf_peek(r, "\"")) return take_text(r, out);
    if (ebnf_take(r, "[")) return take_class(r, at, out);
    if (ebnf_take(r, "(")) return take_group(r, at, out);
    if (ebnf_take(r, ".")) {
        struct char_class all = {.n = 1, .ranges = {{0, FA_CODE_POINT_LAST}}};
        return ebnf_class(r->e, &all, out);
    }
    if (ebnf_peek(r, "<") || ebnf_peek(r, "!")) {
        return ebnf_fail(r->e, at, FATHOM_EUNSUPPORTED, "a token (<...>) is not supported");
    }
    if (at_quantifier(r)) {
        return ebnf_fail(r->e, at, FATHOM_EINVAL, "nothing to repeat");
    }
    return ebnf_fail(r->e, at, FATHOM_EINVAL,
                     "needed is a name, \"text\", [class] or ( here, or the name of the next rule "
                     "and ::=");
}

/* ---- sequences -------------------------------------------------------------------------- */

static fathom_err take_quantifier(struct ebnf_reader *r, uint32_t *lo, uint32_t *hi, bool *found)
{
    *found = true;
    *lo = 0;
    *hi = EBNF_NO_END;
    if (ebnf_peek(r, "{")) return ebnf_count(r, lo, hi);
    if (ebnf_take(r, "*")) return FATHOM_OK;
    *lo = 1;
    if (ebnf_take(r, "+")) return FATHOM_OK;
    *lo = 0;
    *hi = 1;
    *found = ebnf_take(r, "?");
    return FATHOM_OK;
}

static fathom_err take_piece(struct ebnf_reader *r, uint32_t *out)
{
    uint32_t atom, lo, hi;
    bool found;
    TRY(take_atom(r, &atom));
    skip_space(r);
    size_t at = r->at;
    TRY(take_quantifier(r, &lo, &hi, &found));
    *out = atom;
    if (!found) return FATHOM_OK;
    TRY(ebnf_repeat(r->e, atom, lo, hi, out));
    skip_space(r);
    if (!at_quantifier(r)) return FATHOM_OK;
    return ebnf_fail(r->e, at, FATHOM_EINVAL,
                     "a repetition of a repetition; put the first into ( )");
}

static fathom_err take_sequence(struct ebnf_reader *r, uint32_t *out)
{
    struct ebnf_list list = {0};
    for (;;) {
        uint32_t piece;
        skip_space(r);
        if (r->at == r->n || ebnf_peek(r, "|") || ebnf_peek(r, ")")) break;
        if (at_rule(r, ebnf_name(r, true))) break;
        TRY(take_piece(r, &piece));
        ebnf_append(r->e, &list, piece);
    }
    return ebnf_close(r->e, &list, EBNF_SEQUENCE, out);
}

static fathom_err take_choice(struct ebnf_reader *r, uint32_t *out)
{
    struct ebnf_list list = {0};
    do {
        uint32_t sequence;
        TRY(take_sequence(r, &sequence));
        ebnf_append(r->e, &list, sequence);
    } while (ebnf_take(r, "|"));
    return ebnf_close(r->e, &list, EBNF_CHOICE, out);
}

static fathom_err take_rule(struct ebnf_reader *r)
{
    const char *name = r->text + r->at;
    size_t at = r->at, n = ebnf_name(r, true);
    uint32_t rule, node, first = r->e->n_node;
    r->at += n;
    skip_space(r);
    if (n && ebnf_peek(r, "[")) {
        return ebnf_fail(r->e, at, FATHOM_EUNSUPPORTED, "options of a rule are not supported");
    }
    if (n == 0 || !ebnf_take(r, "::=")) {
        return ebnf_fail(r->e, at, FATHOM_EINVAL, "needed is the name of a rule and ::= here");
    }
    TRY(ebnf_find_rule(r->e, name, n, at, &rule));
    TRY(take_choice(r, &node));
    if (ebnf_peek(r, ")")) return ebnf_fail(r->e, r->at, FATHOM_EINVAL, "a ) without its (");
    return ebnf_define(r->e, rule, at, first, node);
}

fathom_err ebnf_read_gbnf(struct ebnf *e)
{
    struct ebnf_reader r = {.e = e, .text = e->text, .n = e->n};
    for (skip_space(&r); r.at < r.n; skip_space(&r)) TRY(take_rule(&r));
    TRY(ebnf_find_rule(e, "root", 4, 0, &e->root));
    if (e->rules[e->root].node) return FATHOM_OK;
    FAIL(e->d, FATHOM_EINVAL, "grammar: it has no rule \"root\", with which it begins");
}
