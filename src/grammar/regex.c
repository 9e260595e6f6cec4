/* regex.c - a pattern is drawn into an automaton while it is read
 *
 * What is repeated is read again for each copy, so no syntax tree is needed.
 */
#include "grammar/regex.h"

#include <string.h>

#include "base/fail.h"
#include "base/utf8.h"
#include "grammar/char_class.h"

enum {
    PARTS_MAX = 1 << 17, /* characters, classes and groups read, copies counted */
    NO_END = UINT32_MAX,
    UNITS_ATOM = 150, /* see budget.h: for an atom, and for each byte and range read for it */
    UNITS_BYTE = 3,
    UNITS_RANGE = 60,
};

struct parser {
    const char *text;
    size_t n;
    size_t at;
    struct nfa nfa;
    uint32_t depth;
    uint32_t n_part;
    fathom_diag *d;
};

static bool peek(const struct parser *p, const char *literal)
{
    size_t n = strlen(literal);
    return p->n - p->at >= n && memcmp(p->text + p->at, literal, n) == 0;
}

static bool take(struct parser *p, const char *literal)
{
    if (!peek(p, literal)) return false;
    p->at += strlen(literal);
    return true;
}

#define REFUSE(p, what)                                                                            \
    FAIL((p)->d, FATHOM_EUNSUPPORTED, "pattern, byte %zu: %s is not supported", (p)->at, what)

#define MALFORMED(p, what) FAIL((p)->d, FATHOM_EINVAL, "pattern, byte %zu: %s", (p)->at, what)

static fathom_err too_large(struct parser *p)
{
    FAIL(p->d, FATHOM_ELIMIT, "pattern: it needs more than %d states; repeat fewer times",
         REGEX_STATES_MAX);
}

/* Pays for the bytes read since `begin`; those of a repeated part are read and paid for again for
 * each copy. */
static fathom_err pay_for_bytes(struct parser *p, size_t begin)
{
    return budget_spend(p->nfa.budget, (p->at - begin) * UNITS_BYTE);
}

static fathom_err next_code_point(struct parser *p, uint32_t *cp)
{
    size_t len;
    if (p->at == p->n) MALFORMED(p, "it ends too early");
    int32_t c = utf8_next(p->text + p->at, p->n - p->at, &len);
    if (c < 0) MALFORMED(p, "not UTF-8");
    p->at += len;
    *cp = (uint32_t)c;
    return FATHOM_OK;
}

/* ---- classes ---------------------------------------------------------------------------- */

/* Writes the message for a class with too many ranges; other errors are passed on. */
static fathom_err tell_class(struct parser *p, fathom_err err)
{
    if (err != FATHOM_ELIMIT) return err;
    FAIL(p->d, err, "pattern, byte %zu: a class of more than %d ranges", p->at,
         CHAR_CLASS_RANGES_MAX);
}

/* ---- escapes ---------------------------------------------------------------------------- */

static fathom_err read_hex(struct parser *p, unsigned n_digit, uint32_t *cp)
{
    *cp = 0;
    for (unsigned i = 0; i < n_digit; i++, p->at++) {
        char c = p->at < p->n ? p->text[p->at] : '\0';
        uint32_t digit;
        if (c >= '0' && c <= '9') {
            digit = (uint32_t)(c - '0');
        } else if ((c | 0x20) >= 'a' && (c | 0x20) <= 'f') {
            digit = (uint32_t)((c | 0x20) - 'a' + 10);
        } else {
            MALFORMED(p, "a hexadecimal digit is missing");
        }
        *cp = *cp << 4 | digit;
    }
    if (*cp > FA_CODE_POINT_LAST || (*cp >= FA_SURROGATE_FIRST && *cp <= FA_SURROGATE_LAST)) {
        MALFORMED(p, "an escape that is no character");
    }
    return FATHOM_OK;
}

/* The character after a backslash, which has been taken. */
static fathom_err read_escape(struct parser *p, uint32_t *cp)
{
    static const char letters[] = "nrtfv0", values[] = "\n\r\t\f\v";
    TRY(next_code_point(p, cp));
    if (*cp >= 0x80) return FATHOM_OK;
    const char *letter = *cp ? strchr(letters, (int)*cp) : NULL;
    const char after = p->at < p->n ? p->text[p->at] : '\0';
    if (*cp == '0' && after >= '0' && after <= '9') REFUSE(p, "an octal escape");
    if (letter) {
        *cp = (uint32_t)values[letter - letters];
        return FATHOM_OK;
    }
    switch (*cp) {
    case 'x': return read_hex(p, 2, cp);
    case 'u': return read_hex(p, 4, cp);
    case 'U': return read_hex(p, 8, cp);
    case 'b':
    case 'B': REFUSE(p, "a word boundary (\\b)");
    case 'p':
    case 'P': REFUSE(p, "a Unicode property (\\p)");
    case 'k': REFUSE(p, "a back reference (\\k)");
    default: break;
    }
    if (*cp >= '1' && *cp <= '9') REFUSE(p, "a back reference");
    if ((*cp | 0x20) >= 'a' && (*cp | 0x20) <= 'z') MALFORMED(p, "an unknown escape");
    return FATHOM_OK;
}

/* ---- [...] ------------------------------------------------------------------------------ */

/* One element of a class: a named class, added at once, or a character. */
static fathom_err read_element(struct parser *p, struct char_class *c, uint32_t *cp, bool *is_class)
{
    *is_class = false;
    TRY(next_code_point(p, cp));
    if (*cp == '[' && p->at < p->n && (p->text[p->at] == ':' || p->text[p->at] == '.')) {
        REFUSE(p, "a POSIX class");
    }
    if (*cp != '\\') return FATHOM_OK;
    size_t before = p->at;
    TRY(next_code_point(p, cp));
    TRY(tell_class(p, char_class_add_named(c, *cp, is_class)));
    if (*is_class) return FATHOM_OK;
    if (*cp == 'b') {
        *cp = '\b';
        return FATHOM_OK;
    }
    p->at = before;
    return read_escape(p, cp);
}

/* After "[". */
static fathom_err read_class(struct parser *p, struct char_class *c)
{
    c->n = 0;
    bool negated = take(p, "^");
    for (bool first = true; first || !peek(p, "]"); first = false) {
        uint32_t lo, hi;
        bool is_class;
        TRY(read_element(p, c, &lo, &is_class));
        if (is_class) continue;
        hi = lo;
        bool range = peek(p, "-") && p->n - p->at > 1 && p->text[p->at + 1] != ']';
        if (range) {
            p->at++;
            TRY(read_element(p, c, &hi, &is_class));
            if (is_class) MALFORMED(p, "a range that ends in a class");
            if (hi < lo) MALFORMED(p, "a range that ends before it begins");
        }
        TRY(tell_class(p, char_class_add(c, lo, hi)));
    }
    p->at++;
    if (negated) TRY(tell_class(p, char_class_negate(c)));
    char_class_normalise(c);
    return FATHOM_OK;
}

/* ---- repetition ------------------------------------------------------------------------- */

static bool read_number(struct parser *p, uint32_t *value)
{
    size_t begin = p->at;
    *value = 0;
    while (p->at < p->n && p->text[p->at] >= '0' && p->text[p->at] <= '9') {
        if (*value <= REGEX_REPEAT_MAX) *value = *value * 10 + (uint32_t)(p->text[p->at] - '0');
        p->at++;
    }
    return p->at > begin;
}

/* {m}, {m,}, {,n} or {m,n}; anything else after a brace makes the brace a character. */
static bool read_braces(struct parser *p, uint32_t *lo, uint32_t *hi)
{
    size_t before = p->at;
    if (!take(p, "{")) return false;
    bool has_lo = read_number(p, lo), comma = take(p, ","), has_hi = comma && read_number(p, hi);
    if (!take(p, "}") || (!has_lo && !has_hi)) {
        p->at = before;
        return false;
    }
    if (!comma) *hi = *lo;
    if (comma && !has_hi) *hi = NO_END;
    return true;
}

/* Whether a repetition comes next. */
static bool peek_quantifier(const struct parser *p)
{
    struct parser ahead = *p;
    uint32_t lo, hi;
    return peek(p, "*") || peek(p, "+") || peek(p, "?") || read_braces(&ahead, &lo, &hi);
}

/* ---- atoms ------------------------------------------------------------------------------ */

static fathom_err read_choice(struct parser *p, uint32_t from, uint32_t *to);

/* After "(": what kind of group it is. */
static fathom_err read_group_head(struct parser *p)
{
    if (!take(p, "?")) return FATHOM_OK;
    if (take(p, ":")) return FATHOM_OK;
    if (peek(p, "=") || peek(p, "!") || peek(p, "<=") || peek(p, "<!")) REFUSE(p, "look-around");
    if (peek(p, "P=")) REFUSE(p, "a back reference");
    if (peek(p, ">")) REFUSE(p, "an atomic group");
    if (peek(p, "#")) REFUSE(p, "a comment group");
    if (!take(p, "P<") && !take(p, "<")) REFUSE(p, "a flag in a group");
    size_t begin = p->at;
    while (p->at < p->n && p->text[p->at] != '>') p->at++;
    if (!take(p, ">")) MALFORMED(p, "a group name without its end");
    return pay_for_bytes(p, begin);
}

static fathom_err read_group(struct parser *p, uint32_t from, uint32_t *to)
{
    TRY(read_group_head(p));
    if (++p->depth > REGEX_DEPTH_MAX) {
        FAIL(p->d, FATHOM_ELIMIT, "pattern, byte %zu: groups nested deeper than %d", p->at,
             REGEX_DEPTH_MAX);
    }
    TRY(read_choice(p, from, to));
    if (!take(p, ")")) MALFORMED(p, "a group without its )");
    p->depth--;
    return FATHOM_OK;
}

static fathom_err read_backslash(struct parser *p, uint32_t from, uint32_t *to)
{
    struct char_class c = {.n = 0};
    uint32_t cp;
    bool known;
    size_t before = p->at;
    *to = nfa_state(&p->nfa);
    TRY(next_code_point(p, &cp));
    if (cp == 'A' || cp == 'Z') {
        nfa_link(&p->nfa, from, cp == 'A' ? NFA_BEGIN : NFA_END, *to);
        return FATHOM_OK;
    }
    TRY(tell_class(p, char_class_add_named(&c, cp, &known)));
    if (!known) {
        p->at = before;
        TRY(read_escape(p, &cp));
        TRY(tell_class(p, char_class_add(&c, cp, cp)));
    }
    char_class_put(&p->nfa, &c, from, *to);
    return FATHOM_OK;
}

/* A character, class, group or anchor, drawn from state `from` to a new state, *to. */
static fathom_err read_atom(struct parser *p, uint32_t from, uint32_t *to)
{
    struct char_class c = {.n = 0};
    uint32_t cp;
    if (++p->n_part > PARTS_MAX || p->nfa.err == FATHOM_ELIMIT) return too_large(p);
    TRY(p->nfa.err);
    TRY(budget_spend(p->nfa.budget, UNITS_ATOM));
    if (take(p, "(")) return read_group(p, from, to);
    size_t begin = p->at;
    if (take(p, "\\")) return read_backslash(p, from, to);
    if (peek_quantifier(p)) MALFORMED(p, "nothing to repeat");
    *to = nfa_state(&p->nfa);
    if (take(p, "^")) {
        nfa_link(&p->nfa, from, NFA_BEGIN, *to);
    } else if (take(p, "$")) {
        nfa_link(&p->nfa, from, NFA_END, *to);
    } else if (take(p, ".")) {
        TRY(tell_class(p, char_class_add(&c, '\n', '\n')));
        TRY(tell_class(p, char_class_negate(&c)));
        char_class_put(&p->nfa, &c, from, *to);
    } else if (take(p, "[")) {
        TRY(read_class(p, &c));
        TRY(pay_for_bytes(p, begin));
        TRY(budget_spend(p->nfa.budget, c.n * UNITS_RANGE));
        char_class_put(&p->nfa, &c, from, *to);
    } else {
        TRY(next_code_point(p, &cp));
        nfa_edge(&p->nfa, from, cp, cp, *to);
    }
    return FATHOM_OK;
}

/* ---- pieces ----------------------------------------------------------------------------- */

/* Reads how often the atom before may stand there. */
static fathom_err read_quantifier(struct parser *p, uint32_t *lo, uint32_t *hi, bool *found)
{
    size_t begin = p->at;
    *found = true;
    *lo = 0;
    *hi = NO_END;
    if (take(p, "*")) {
    } else if (take(p, "+")) {
        *lo = 1;
    } else if (take(p, "?")) {
        *hi = 1;
    } else if (!read_braces(p, lo, hi)) {
        *found = false;
        return FATHOM_OK;
    }
    if (*hi < *lo) MALFORMED(p, "a repetition that ends before it begins");
    if (*lo > REGEX_REPEAT_MAX || (*hi != NO_END && *hi > REGEX_REPEAT_MAX)) {
        FAIL(p->d, FATHOM_ELIMIT, "pattern, byte %zu: more than %d repetitions", p->at,
             REGEX_REPEAT_MAX);
    }
    if (peek(p, "+")) REFUSE(p, "a possessive repetition");
    (void)take(p, "?");
    if (peek_quantifier(p)) MALFORMED(p, "a repetition of a repetition");
    return pay_for_bytes(p, begin);
}

/* An atom with its repetition. The copies are read again from the atom's first byte. */
static fathom_err read_piece(struct parser *p, uint32_t from, uint32_t *to)
{
    size_t begin = p->at;
    uint32_t lo, hi, out, once, depth = p->depth;
    bool found;
    uint32_t inner = nfa_state(&p->nfa);
    TRY(read_atom(p, inner, &once));
    TRY(read_quantifier(p, &lo, &hi, &found));
    if (!found) lo = hi = 1;
    size_t end = p->at;
    out = nfa_state(&p->nfa);
    uint32_t n_copy = hi != NO_END ? hi : lo ? lo : 1;
    uint32_t at = from;
    for (uint32_t i = 0; i < n_copy; i++) {
        if (i > 0) {
            p->at = begin;
            p->depth = depth;
            inner = nfa_state(&p->nfa);
            TRY(read_atom(p, inner, &once));
        }
        nfa_link(&p->nfa, at, NFA_EPSILON, inner);
        if (i >= lo) nfa_link(&p->nfa, at, NFA_EPSILON, out);
        at = once;
    }
    if (hi == NO_END) nfa_link(&p->nfa, at, NFA_EPSILON, inner);
    nfa_link(&p->nfa, at, NFA_EPSILON, out);
    p->at = end;
    *to = out;
    return p->nfa.err == FATHOM_ELIMIT ? FATHOM_OK : p->nfa.err; /* too_large says that one */
}

static fathom_err read_choice(struct parser *p, uint32_t from, uint32_t *to)
{
    *to = nfa_state(&p->nfa);
    do {
        uint32_t at = from;
        while (p->at < p->n && !peek(p, "|") && !peek(p, ")")) TRY(read_piece(p, at, &at));
        nfa_link(&p->nfa, at, NFA_EPSILON, *to);
    } while (take(p, "|"));
    return FATHOM_OK;
}

/* ---- the whole -------------------------------------------------------------------------- */

static fathom_err build(struct dfa *out, struct parser *p, enum regex_mode mode)
{
    uint32_t start = nfa_state(&p->nfa), end;
    uint32_t inner = nfa_state(&p->nfa);
    if (mode == REGEX_SEARCH) nfa_any(&p->nfa, start, start);
    nfa_link(&p->nfa, start, NFA_EPSILON, inner);
    TRY(read_choice(p, inner, &end));
    if (p->at < p->n) MALFORMED(p, "a ) without its group");
    if (mode == REGEX_SEARCH) {
        uint32_t open = nfa_state(&p->nfa);
        nfa_any(&p->nfa, open, open);
        nfa_link(&p->nfa, end, NFA_EPSILON, open);
        end = open;
    }
    fathom_err err = p->nfa.err;
    if (!err) {
        err = dfa_build(out, &p->nfa, start, end, mode == REGEX_SEARCH ? DFA_OPEN : DFA_WHOLE,
                        REGEX_STATES_MAX, NULL);
    }
    return err == FATHOM_ELIMIT ? too_large(p) : err;
}

fathom_err regex_compile(struct dfa *out, const char *pattern, size_t n, enum regex_mode mode,
                         struct grammar_budget *budget, fathom_diag *d)
{
    struct parser p = {.text = pattern, .n = n, .d = d};
    *out = (struct dfa){0};
    nfa_init(&p.nfa, REGEX_STATES_MAX * 4, budget);
    fathom_err err = budget_tell(budget, build(out, &p, mode), "pattern", d);
    nfa_free(&p.nfa);
    if (err) dfa_free(out);
    return err;
}
