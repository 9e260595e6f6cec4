/* ebnf.c - the tree of a grammar in EBNF, and what its two notations have in common */
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/assert.h"
#include "base/fail.h"
#include "base/mem.h"
#include "base/utf8.h"
#include "grammar/ebnf_int.h"
#include "grammar/regex.h"

/* Units (budget.h). */
enum { UNITS_NODE = 60, UNITS_BYTE = 4, UNITS_RANGE = 30, UNITS_RULE = 100 };

/* ---- messages --------------------------------------------------------------------------- */

uint32_t ebnf_line(const struct ebnf *e, size_t at)
{
    uint32_t line = 1;
    for (size_t i = 0; i < at && i < e->n; i++) line += e->text[i] == '\n';
    return line;
}

/* In characters, from 1. */
static uint32_t column_of(const struct ebnf *e, size_t at)
{
    uint32_t column = 1;
    for (size_t i = at; i-- > 0 && e->text[i] != '\n';) {
        column += ((unsigned char)e->text[i] & 0xc0) != 0x80;
    }
    return column;
}

fathom_err ebnf_fail(const struct ebnf *e, size_t at, fathom_err err, const char *format, ...)
{
    char what[200];
    va_list args;
    va_start(args, format);
    (void)vsnprintf(what, sizeof what, format, args);
    va_end(args);
    size_t n = strlen(what);
    what[utf8_complete(what, n)] = '\0';
    return diag_fail(e->d, err, "grammar, line %u, column %u: %s", ebnf_line(e, at),
                     column_of(e, at), what);
}

/* ---- nodes ------------------------------------------------------------------------------ */

fathom_err ebnf_node(struct ebnf *e, enum ebnf_kind kind, uint32_t a, uint32_t b, uint32_t *out)
{
    if (e->n_node == EBNF_NODES_MAX) {
        FAIL(e->d, FATHOM_ELIMIT, "the grammar has more than %d parts", EBNF_NODES_MAX);
    }
    TRY(budget_spend(&e->b->budget, UNITS_NODE));
    TRY(mem_grow(&e->nodes, &e->cap_node, e->n_node + 1, sizeof *e->nodes));
    e->nodes[e->n_node] = (struct ebnf_node){.kind = kind, .a = a, .b = b};
    *out = e->n_node++;
    return FATHOM_OK;
}

fathom_err ebnf_text(struct ebnf *e, const char *bytes, size_t n, uint32_t *out)
{
    uint32_t begin = (uint32_t)e->bytes.len;
    TRY(budget_spend(&e->b->budget, n * UNITS_BYTE));
    TRY(buf_add(&e->bytes, bytes, n));
    return ebnf_node(e, EBNF_TEXT, begin, (uint32_t)n, out);
}

fathom_err ebnf_class(struct ebnf *e, const struct char_class *c, uint32_t *out)
{
    uint32_t begin = e->n_range;
    TRY(budget_spend(&e->b->budget, (uint64_t)c->n * UNITS_RANGE));
    TRY(mem_grow(&e->ranges, &e->cap_range, (size_t)begin + c->n, sizeof *e->ranges));
    for (uint32_t i = 0; i < c->n; i++) {
        e->ranges[e->n_range++] = (struct ebnf_range){c->ranges[i].lo, c->ranges[i].hi};
    }
    return ebnf_node(e, EBNF_CLASS, begin, c->n, out);
}

fathom_err ebnf_regex(struct ebnf *e, const char *pattern, size_t n, size_t at, uint32_t *out)
{
    struct dfa dfa;
    fathom_diag d = {""};
    TRY(mem_grow(&e->dfas, &e->cap_dfa, (size_t)e->n_dfa + 1, sizeof *e->dfas));
    fathom_err err = regex_compile(&dfa, pattern, n, REGEX_FULL, &e->b->budget, &d);
    if (err) return d.text[0] ? ebnf_fail(e, at, err, "%s", d.text) : err;
    e->dfas[e->n_dfa++] = dfa;
    if (dfa_is_empty(&dfa)) return ebnf_fail(e, at, FATHOM_EINVAL, "no text matches the pattern");
    return ebnf_node(e, EBNF_REGEX, e->n_dfa - 1, 0, out);
}

fathom_err ebnf_repeat(struct ebnf *e, uint32_t child, uint32_t lo, uint32_t hi, uint32_t *out)
{
    TRY(ebnf_node(e, EBNF_REPEAT, lo, hi, out));
    e->nodes[*out].child = child;
    return FATHOM_OK;
}

void ebnf_append(struct ebnf *e, struct ebnf_list *list, uint32_t node)
{
    ASSERT(node > 0 && e->nodes[node].next == 0);
    if (list->n++ == 0) {
        list->first = node;
    } else {
        e->nodes[list->last].next = node;
    }
    list->last = node;
}

fathom_err ebnf_close(struct ebnf *e, const struct ebnf_list *list, enum ebnf_kind kind,
                      uint32_t *out)
{
    *out = list->first;
    if (list->n == 1) return FATHOM_OK;
    TRY(ebnf_node(e, list->n ? kind : EBNF_EMPTY, 0, 0, out));
    e->nodes[*out].child = list->first;
    return FATHOM_OK;
}

/* ---- names ------------------------------------------------------------------------------ */

fathom_err ebnf_add_rule(struct ebnf *e, const char *name, size_t n, size_t at, uint32_t *out)
{
    if (e->n_rule == EBNF_RULES_MAX) {
        return ebnf_fail(e, at, FATHOM_ELIMIT, "the grammar has more than %d rules",
                         EBNF_RULES_MAX);
    }
    TRY(budget_spend(&e->b->budget, UNITS_RULE));
    TRY(mem_grow(&e->rules, &e->cap_rule, (size_t)e->n_rule + 1, sizeof *e->rules));
    e->rules[e->n_rule] = (struct ebnf_rule){.name = name,
                                             .n_name = (uint32_t)n,
                                             .at = (uint32_t)at,
                                             .component = UINT32_MAX,
                                             .drawn = UINT32_MAX};
    *out = e->n_rule++;
    return FATHOM_OK;
}

fathom_err ebnf_find_rule(struct ebnf *e, const char *name, size_t n, size_t at, uint32_t *out)
{
    uint64_t hash = n;
    for (size_t i = 0; i < n; i++) hash = (hash ^ (unsigned char)name[i]) * 0x100000001b3;
    size_t i = (hash ^ hash >> 29) % EBNF_BUCKETS;
    TRY(budget_spend(&e->b->budget, n * UNITS_BYTE));
    for (; e->buckets[i]; i = (i + 1) % EBNF_BUCKETS) {
        const struct ebnf_rule *r = &e->rules[e->buckets[i] - 1];
        TRY(budget_spend(&e->b->budget, UNITS_BYTE));
        if (r->n_name != n || memcmp(r->name, name, n) != 0) continue;
        *out = e->buckets[i] - 1;
        return FATHOM_OK;
    }
    TRY(ebnf_add_rule(e, name, n, at, out));
    e->buckets[i] = *out + 1;
    return FATHOM_OK;
}

fathom_err ebnf_define(struct ebnf *e, uint32_t rule, size_t at, uint32_t first, uint32_t node)
{
    struct ebnf_rule *r = &e->rules[rule];
    if (r->node) {
        return ebnf_fail(e, at, FATHOM_EINVAL, "rule \"%.*s\" is defined before, in line %u",
                         (int)r->n_name, r->name, ebnf_line(e, r->at));
    }
    r->at = (uint32_t)at;
    r->node = node;
    r->first = first;
    r->last = e->n_node;
    return FATHOM_OK;
}

/* ---- reading ---------------------------------------------------------------------------- */

bool ebnf_peek(const struct ebnf_reader *r, const char *literal)
{
    size_t n = strlen(literal);
    return r->n - r->at >= n && memcmp(r->text + r->at, literal, n) == 0;
}

bool ebnf_take(struct ebnf_reader *r, const char *literal)
{
    if (!ebnf_peek(r, literal)) return false;
    r->at += strlen(literal);
    return true;
}

fathom_err ebnf_deeper(struct ebnf_reader *r)
{
    if (++r->depth <= EBNF_DEPTH_MAX) return FATHOM_OK;
    return ebnf_fail(r->e, r->at, FATHOM_ELIMIT, "groups nested deeper than %d", EBNF_DEPTH_MAX);
}

static bool is_name(char c)
{
    return (c >= '0' && c <= '9') || ((c | 0x20) >= 'a' && (c | 0x20) <= 'z') || c == '_' ||
           c == '-';
}

size_t ebnf_name(const struct ebnf_reader *r, bool dots)
{
    const char *s = r->text + r->at;
    size_t n = r->n - r->at, i = 0;
    while (i < n &&
           (is_name(s[i]) || (dots && s[i] == '.' && i > 0 && i + 1 < n && is_name(s[i + 1])))) {
        i++;
    }
    return i;
}

static fathom_err take_hex(struct ebnf_reader *r, unsigned n_digit, uint32_t *cp)
{
    size_t begin = r->at;
    *cp = 0;
    for (unsigned i = 0; i < n_digit; i++, r->at++) {
        char c = r->at < r->n ? r->text[r->at] : '\0';
        bool decimal = c >= '0' && c <= '9', letter = (c | 0x20) >= 'a' && (c | 0x20) <= 'f';
        if (!decimal && !letter) {
            return ebnf_fail(r->e, begin, FATHOM_EINVAL,
                             "an escape of %u hexadecimal digits has fewer", n_digit);
        }
        *cp = *cp << 4 | (uint32_t)(decimal ? c - '0' : (c | 0x20) - 'a' + 10);
    }
    if (*cp <= FA_CODE_POINT_LAST && (*cp < FA_SURROGATE_FIRST || *cp > FA_SURROGATE_LAST)) {
        return FATHOM_OK;
    }
    return ebnf_fail(r->e, begin, FATHOM_EINVAL, "an escape that is no character");
}

static fathom_err take_escape(struct ebnf_reader *r, uint32_t *cp)
{
    static const char letters[] = "nrtbfav0e", values[] = "\n\r\t\b\f\a\v\0\x1b";
    char c = r->at < r->n ? r->text[r->at] : '\n';
    const char *letter = c ? strchr(letters, c) : NULL;
    bool other = is_name(c) && c != '-' && c != '_';
    if (letter) {
        r->at++;
        *cp = (uint32_t)values[letter - letters];
        return FATHOM_OK;
    }
    if (c == 'x' || c == 'u' || c == 'U') {
        r->at++;
        return take_hex(r, c == 'x' ? 2 : c == 'u' ? 4 : 8, cp);
    }
    if (other || (unsigned char)c < ' ' || (unsigned char)c >= 0x80) {
        return ebnf_fail(r->e, r->at, FATHOM_EINVAL, "an unknown escape");
    }
    r->at++;
    *cp = (unsigned char)c;
    return FATHOM_OK;
}

fathom_err ebnf_character(struct ebnf_reader *r, uint32_t *cp)
{
    size_t len;
    if (ebnf_take(r, "\\")) return take_escape(r, cp);
    int32_t c = utf8_next(r->text + r->at, r->n - r->at, &len);
    if (c < 0) return ebnf_fail(r->e, r->at, FATHOM_EINVAL, "not UTF-8");
    r->at += len;
    *cp = (uint32_t)c;
    return FATHOM_OK;
}

fathom_err ebnf_literal(struct ebnf_reader *r, struct buf *out)
{
    size_t begin = r->at++;
    const char quote = r->text[begin];
    while (r->at < r->n && r->text[r->at] != quote) {
        uint32_t cp = 0;
        char bytes[4];
        if (r->text[r->at] == '\n') break;
        TRY(ebnf_character(r, &cp));
        TRY(buf_add(out, bytes, utf8_encode(bytes, (int32_t)cp)));
    }
    if (r->at == r->n || r->text[r->at] != quote) {
        return ebnf_fail(r->e, begin, FATHOM_EINVAL, "a text whose quotes its line does not end");
    }
    r->at++;
    return budget_spend(&r->e->b->budget, (r->at - begin) * UNITS_BYTE);
}

bool ebnf_number(struct ebnf_reader *r, uint32_t *value)
{
    size_t begin = r->at;
    *value = 0;
    for (; r->at < r->n && r->text[r->at] >= '0' && r->text[r->at] <= '9'; r->at++) {
        if (*value <= EBNF_REPEAT_MAX) *value = *value * 10 + (uint32_t)(r->text[r->at] - '0');
    }
    return r->at > begin;
}

fathom_err ebnf_check_counts(struct ebnf_reader *r, size_t at, uint32_t lo, uint32_t hi)
{
    if (lo > EBNF_REPEAT_MAX || (hi != EBNF_NO_END && hi > EBNF_REPEAT_MAX)) {
        return ebnf_fail(r->e, at, FATHOM_ELIMIT, "more than %d repetitions", EBNF_REPEAT_MAX);
    }
    if (hi >= lo) return FATHOM_OK;
    return ebnf_fail(r->e, at, FATHOM_EINVAL, "a repetition that ends before it begins");
}

static void skip_blanks(struct ebnf_reader *r)
{
    while (r->at < r->n && (r->text[r->at] == ' ' || r->text[r->at] == '\t')) r->at++;
}

fathom_err ebnf_count(struct ebnf_reader *r, uint32_t *lo, uint32_t *hi)
{
    size_t begin = r->at++;
    skip_blanks(r);
    bool has_lo = ebnf_number(r, lo);
    skip_blanks(r);
    bool comma = ebnf_take(r, ",");
    skip_blanks(r);
    bool has_hi = comma && ebnf_number(r, hi);
    skip_blanks(r);
    if (!ebnf_take(r, "}") || (!has_lo && !has_hi)) {
        return ebnf_fail(r->e, begin, FATHOM_EINVAL,
                         "a repetition is one of {m}, {m,}, {m,n} and {,n}");
    }
    if (!comma) *hi = *lo;
    if (comma && !has_hi) *hi = EBNF_NO_END;
    return ebnf_check_counts(r, begin, *lo, *hi);
}

/* ---- the whole -------------------------------------------------------------------------- */

/* A grammar without "::=" outside its comments is in Lark's notation. */
static bool is_lark(const char *text, size_t n)
{
    bool comment = false;
    for (size_t i = 0; i + 2 < n; i++) {
        if (text[i] == '\n') comment = false;
        comment |= text[i] == '#' || (text[i] == '/' && text[i + 1] == '/');
        if (!comment && memcmp(text + i, "::=", 3) == 0) return false;
    }
    return true;
}

static void ebnf_free(struct ebnf *e)
{
    for (uint32_t i = 0; i < e->n_dfa; i++) dfa_free(&e->dfas[i]);
    mem_free(e->dfas);
    mem_free(e->nodes);
    mem_free(e->ranges);
    mem_free(e->rules);
    mem_free(e->buckets);
    mem_free(e->order);
    buf_free(&e->bytes);
}

fathom_err grammar_put_ebnf(struct grammar_builder *b, uint32_t from, const char *text, size_t n,
                            uint32_t *to, fathom_diag *d)
{
    struct ebnf e = {.b = b, .d = d, .text = text, .n = n};
    uint32_t none;
    if (n > EBNF_BYTES_MAX) {
        FAIL(d, FATHOM_ELIMIT, "the grammar is %zu bytes long, at most %d are possible", n,
             EBNF_BYTES_MAX);
    }
    e.buckets = mem_calloc(EBNF_BUCKETS, sizeof *e.buckets);
    fathom_err err = e.buckets ? ebnf_node(&e, EBNF_EMPTY, 0, 0, &none) : FATHOM_ENOMEM;
    if (!err) err = budget_spend(&b->budget, n * UNITS_BYTE);
    if (!err) err = is_lark(text, n) ? ebnf_read_lark(&e) : ebnf_read_gbnf(&e);
    if (!err) err = ebnf_plan(&e);
    if (!err) err = ebnf_put(&e, from, to);
    ebnf_free(&e);
    return err;
}

struct grammar_text {
    const char *text;
    size_t n;
};

static fathom_err draw_ebnf(struct grammar_builder *b, uint32_t from, const void *what,
                            uint32_t *to, fathom_diag *d)
{
    const struct grammar_text *grammar = what;
    return grammar_put_ebnf(b, from, grammar->text, grammar->n, to, d);
}

fathom_err grammar_from_ebnf(struct grammar **out, const struct grammar_vocab *v, const char *text,
                             size_t n, fathom_diag *d)
{
    return grammar_compile(out, v, NULL, draw_ebnf, &(struct grammar_text){text, n}, NULL, d);
}
