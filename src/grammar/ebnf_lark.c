/* ebnf_lark.c - the notation of Lark, as far as it says which texts there are
 *
 *   name: choice      a rule. "?" and "!" before its name, and "-> name" behind a sequence, shape
 *                     syntax trees and are passed over
 *   NAME: choice      a terminal. A priority (NAME.2) is for lexers and is passed over
 *   %import common.NAME [-> NAME]    %import common (NAME, NAME)
 *   %ignore choice    what may stand behind each text, pattern and terminal of a rule
 *
 *   choice   = sequence ("|" sequence)*
 *   sequence = (atom ("*" | "+" | "?" | "~m" | "~m..n" | {..} as in GBNF)?)*
 *   atom     = "text" ["i"] | "a".."z" | /pattern/ | name | NAME | ( choice ) | [ choice ]
 *
 * A definition ends with its line, unless the next line begins neither another definition nor a
 * "%". Within brackets lines do not matter. The root is the rule `start`; without one, it is the
 * first definition.
 */
#include <string.h>

#include "base/fail.h"
#include "base/mem.h"
#include "base/utf8.h"
#include "grammar/ebnf_int.h"

/* Terminals that every grammar may import, as patterns. */
static const struct {
    const char *name, *pattern;
} common[] = {
    {"DIGIT", "[0-9]"},
    {"HEXDIGIT", "[0-9a-fA-F]"},
    {"INT", "[0-9]+"},
    {"SIGNED_INT", "[+-]?[0-9]+"},
    {"DECIMAL", "[0-9]+\\.[0-9]*|\\.[0-9]+"},
    {"_EXP", "[eE][+-]?[0-9]+"},
    {"FLOAT", "[0-9]+[eE][+-]?[0-9]+|([0-9]+\\.[0-9]*|\\.[0-9]+)([eE][+-]?[0-9]+)?"},
    {"SIGNED_FLOAT", "[+-]?([0-9]+[eE][+-]?[0-9]+|([0-9]+\\.[0-9]*|\\.[0-9]+)([eE][+-]?[0-9]+)?)"},
    {"NUMBER", "([0-9]+(\\.[0-9]*)?|\\.[0-9]+)([eE][+-]?[0-9]+)?"},
    {"SIGNED_NUMBER", "[+-]?([0-9]+(\\.[0-9]*)?|\\.[0-9]+)([eE][+-]?[0-9]+)?"},
    {"ESCAPED_STRING", "\"([^\"\\\\\\n]|\\\\.)*\""},
    {"LCASE_LETTER", "[a-z]"},
    {"UCASE_LETTER", "[A-Z]"},
    {"LETTER", "[a-zA-Z]"},
    {"WORD", "[a-zA-Z]+"},
    {"CNAME", "[a-zA-Z_][a-zA-Z0-9_]*"},
    {"WS_INLINE", "[ \\t]+"},
    {"WS", "[ \\t\\f\\r\\n]+"},
    {"CR", "\\r"},
    {"LF", "\\n"},
    {"NEWLINE", "(\\r?\\n)+"},
    {"SH_COMMENT", "#[^\\n]*"},
    {"CPP_COMMENT", "//[^\\n]*"},
    {"C_COMMENT", "/\\*([^*]|\\*+[^*/])*\\*+/"},
    {"SQL_COMMENT", "--[^\\n]*"},
};

struct lark {
    struct ebnf_reader r;
    uint32_t ignore; /* the rule of what %ignore lets stand between lexemes; UINT32_MAX: none */
    bool in_rule;    /* whether what is read is a rule; false: a terminal, or an %ignore */
    uint32_t *ignored_rules;
    uint32_t n_ignored;
    size_t cap_ignored;
};

/* ---- lines ------------------------------------------------------------------------------ */

static void skip_comment(struct ebnf_reader *r)
{
    if (!ebnf_peek(r, "//") && !ebnf_peek(r, "#")) return;
    while (r->at < r->n && r->text[r->at] != '\n') r->at++;
}

/* Blanks and comments; lines too. */
static void skip_lines(struct ebnf_reader *r)
{
    for (size_t at = r->n + 1; at != r->at;) {
        at = r->at;
        while (r->at < r->n && strchr(" \t\r\n", r->text[r->at]) && r->text[r->at]) r->at++;
        skip_comment(r);
    }
}

static bool at_definition(const struct ebnf_reader *r)
{
    struct ebnf_reader ahead = *r;
    uint32_t priority;
    while (ebnf_take(&ahead, "?") || ebnf_take(&ahead, "!")) continue;
    size_t n = ebnf_name(&ahead, false);
    ahead.at += n;
    if (ebnf_peek(&ahead, "{")) return n > 0;
    if (ebnf_take(&ahead, ".")) (void)ebnf_number(&ahead, &priority);
    while (ebnf_take(&ahead, " ") || ebnf_take(&ahead, "\t")) continue;
    return n > 0 && ebnf_peek(&ahead, ":");
}

/* Skips blanks, and the end of the line if the definition goes on behind it. False: the definition
 * has ended, and nothing was skipped. */
static bool goes_on(struct ebnf_reader *r)
{
    struct ebnf_reader ahead = *r;
    skip_lines(&ahead);
    bool line = memchr(r->text + r->at, '\n', ahead.at - r->at) != NULL;
    if (ahead.at == r->n) return false;
    if (line && r->depth == 0 && (ebnf_peek(&ahead, "%") || at_definition(&ahead))) return false;
    r->at = ahead.at;
    return true;
}

/* ---- atoms ------------------------------------------------------------------------------ */

static fathom_err refuse(struct ebnf_reader *r, size_t at, const char *what)
{
    return ebnf_fail(r->e, at, FATHOM_EUNSUPPORTED, "%s is not supported", what);
}

/* A text in which ASCII letters may be upper or lower case. */
static fathom_err any_case(struct ebnf_reader *r, const char *text, size_t n, uint32_t *out)
{
    struct ebnf_list list = {0};
    for (size_t i = 0; i < n; i++) {
        uint32_t node, small = (unsigned char)text[i] | 0x20;
        if (small >= 'a' && small <= 'z') {
            struct char_class c = {.n = 2,
                                   .ranges = {{small - 0x20, small - 0x20}, {small, small}}};
            TRY(ebnf_class(r->e, &c, &node));
        } else {
            TRY(ebnf_text(r->e, text + i, 1, &node));
        }
        ebnf_append(r->e, &list, node);
    }
    return ebnf_close(r->e, &list, EBNF_SEQUENCE, out);
}

/* The only character of a text; UINT32_MAX: it has none, or several. */
static uint32_t only_character(const struct buf *text)
{
    size_t len;
    int32_t cp = text->len ? utf8_next(text->data, text->len, &len) : -1;
    return cp >= 0 && len == text->len ? (uint32_t)cp : UINT32_MAX;
}

/* After "a".. : reads the last character of a range. */
static fathom_err take_range(struct ebnf_reader *r, size_t at, const struct buf *first,
                             uint32_t *out)
{
    struct buf last = {0};
    bool quoted = ebnf_peek(r, "\"") || ebnf_peek(r, "'");
    fathom_err err = quoted ? ebnf_literal(r, &last) : FATHOM_OK;
    uint32_t lo = only_character(first), hi = only_character(&last);
    buf_free(&last);
    TRY(err);
    if (lo > hi || hi == UINT32_MAX) {
        return ebnf_fail(r->e, at, FATHOM_EINVAL,
                         "a range of characters is \"a\"..\"z\", one character each, in order");
    }
    struct char_class c = {.n = 1, .ranges = {{lo, hi}}};
    return ebnf_class(r->e, &c, out);
}

static fathom_err take_text(struct ebnf_reader *r, uint32_t *out)
{
    struct buf text = {0};
    size_t at = r->at;
    fathom_err err = ebnf_literal(r, &text);
    if (!err && ebnf_take(r, "..")) {
        err = take_range(r, at, &text, out);
    } else if (!err && ebnf_take(r, "i")) {
        err = any_case(r, buf_str(&text), text.len, out);
    } else if (!err) {
        err = ebnf_text(r->e, buf_str(&text), text.len, out);
    }
    buf_free(&text);
    return err;
}

static fathom_err take_pattern(struct ebnf_reader *r, uint32_t *out)
{
    size_t begin = r->at++;
    while (r->at < r->n && r->text[r->at] != '/' && r->text[r->at] != '\n') {
        r->at += r->text[r->at] == '\\' && r->at + 1 < r->n ? 2 : 1;
    }
    size_t end = r->at;
    if (!ebnf_take(r, "/")) {
        return ebnf_fail(r->e, begin, FATHOM_EINVAL, "a pattern whose / its line does not end");
    }
    if (ebnf_name(r, false) > 0) return refuse(r, r->at, "a flag of a pattern");
    return ebnf_regex(r->e, r->text + begin + 1, end - begin - 1, begin, out);
}

static fathom_err take_choice(struct lark *l, uint32_t *out);

static fathom_err take_group(struct lark *l, const char *end, uint32_t *out)
{
    struct ebnf_reader *r = &l->r;
    size_t begin = r->at++;
    TRY(ebnf_deeper(r));
    TRY(take_choice(l, out));
    if (!ebnf_take(r, end)) {
        return ebnf_fail(r->e, begin, FATHOM_EINVAL, "a %c without its %s", r->text[begin], end);
    }
    r->depth--;
    return *end == ']' ? ebnf_repeat(r->e, *out, 0, 1, out) : FATHOM_OK;
}

/* A name is a terminal's if its first character behind underscores is a capital letter. */
static bool is_terminal(const char *name, size_t n)
{
    size_t i = 0;
    while (i < n && name[i] == '_') i++;
    return i < n && name[i] >= 'A' && name[i] <= 'Z';
}

/* Lets what %ignore names follow a lexeme, if it stands in a rule. */
static fathom_err add_ignored(struct lark *l, uint32_t lexeme, uint32_t *out)
{
    struct ebnf_list list = {0};
    uint32_t rule;
    *out = lexeme;
    if (l->ignore == UINT32_MAX || !l->in_rule) return FATHOM_OK;
    TRY(ebnf_node(l->r.e, EBNF_RULE, l->ignore, (uint32_t)l->r.at, &rule));
    ebnf_append(l->r.e, &list, lexeme);
    ebnf_append(l->r.e, &list, rule);
    return ebnf_close(l->r.e, &list, EBNF_SEQUENCE, out);
}

static fathom_err take_name(struct lark *l, size_t n, uint32_t *out)
{
    struct ebnf_reader *r = &l->r;
    const char *name = r->text + r->at;
    size_t at = r->at;
    uint32_t rule;
    r->at += n;
    if (ebnf_peek(r, "{") && r->at + 1 < r->n && !strchr("0123456789, ", r->text[r->at + 1])) {
        return refuse(r, at, "a template (name{...})");
    }
    TRY(ebnf_find_rule(r->e, name, n, at, &rule));
    TRY(ebnf_node(r->e, EBNF_RULE, rule, (uint32_t)at, out));
    return is_terminal(name, n) ? add_ignored(l, *out, out) : FATHOM_OK;
}

static fathom_err take_atom(struct lark *l, uint32_t *out)
{
    struct ebnf_reader *r = &l->r;
    size_t at = r->at, n = ebnf_name(r, false);
    *out = 0;
    if (n > 0) return take_name(l, n, out);
    if (ebnf_peek(r, "(")) return take_group(l, ")", out);
    if (ebnf_peek(r, "[")) return take_group(l, "]", out);
    if (ebnf_peek(r, "\"") || ebnf_peek(r, "'")) {
        TRY(take_text(r, out));
        return add_ignored(l, *out, out);
    }
    if (ebnf_peek(r, "/")) {
        TRY(take_pattern(r, out));
        return add_ignored(l, *out, out);
    }
    if (ebnf_peek(r, "<")) return refuse(r, at, "a token (<...>)");
    if (ebnf_peek(r, "@")) return refuse(r, at, "a grammar of another name (@...)");
    if (ebnf_peek(r, "%")) return refuse(r, at, "a grammar within a rule (%...)");
    return ebnf_fail(r->e, at, FATHOM_EINVAL, "needed is a name, \"text\", /pattern/, ( or [ here");
}

/* ---- sequences -------------------------------------------------------------------------- */

/* After "~": m or m..n. */
static fathom_err take_tilde(struct ebnf_reader *r, uint32_t *lo, uint32_t *hi)
{
    size_t at = r->at;
    while (ebnf_take(r, " ")) continue;
    bool ok = ebnf_number(r, lo);
    *hi = *lo;
    while (ebnf_take(r, " ")) continue;
    if (ok && ebnf_take(r, "..")) {
        while (ebnf_take(r, " ")) continue;
        ok = ebnf_number(r, hi);
    }
    if (!ok) return ebnf_fail(r->e, at, FATHOM_EINVAL, "a repetition is ~m or ~m..n");
    return ebnf_check_counts(r, at, *lo, *hi);
}

static fathom_err take_piece(struct lark *l, uint32_t *out)
{
    struct ebnf_reader *r = &l->r;
    uint32_t atom, lo = 0, hi = EBNF_NO_END;
    TRY(take_atom(l, &atom));
    *out = atom;
    while (ebnf_take(r, " ") || ebnf_take(r, "\t")) continue;
    size_t at = r->at;
    if (ebnf_take(r, "*")) {
    } else if (ebnf_take(r, "+")) {
        lo = 1;
    } else if (ebnf_take(r, "?")) {
        hi = 1;
    } else if (ebnf_take(r, "~")) {
        TRY(take_tilde(r, &lo, &hi));
    } else if (ebnf_peek(r, "{")) {
        TRY(ebnf_count(r, &lo, &hi));
    } else {
        return FATHOM_OK;
    }
    TRY(ebnf_repeat(r->e, atom, lo, hi, out));
    if (!ebnf_peek(r, "*") && !ebnf_peek(r, "+") && !ebnf_peek(r, "~")) return FATHOM_OK;
    return ebnf_fail(r->e, at, FATHOM_EINVAL,
                     "a repetition of a repetition; put the first into ( )");
}

static fathom_err take_sequence(struct lark *l, uint32_t *out)
{
    struct ebnf_reader *r = &l->r;
    struct ebnf_list list = {0};
    while (goes_on(r) && !ebnf_peek(r, "|") && !ebnf_peek(r, ")") && !ebnf_peek(r, "]")) {
        uint32_t piece;
        if (ebnf_take(r, "->")) {
            while (ebnf_take(r, " ") || ebnf_take(r, "\t")) continue;
            r->at += ebnf_name(r, false);
            continue;
        }
        TRY(take_piece(l, &piece));
        ebnf_append(r->e, &list, piece);
    }
    return ebnf_close(r->e, &list, EBNF_SEQUENCE, out);
}

static fathom_err take_choice(struct lark *l, uint32_t *out)
{
    struct ebnf_list list = {0};
    do {
        uint32_t sequence;
        TRY(take_sequence(l, &sequence));
        ebnf_append(l->r.e, &list, sequence);
    } while (goes_on(&l->r) && ebnf_take(&l->r, "|"));
    return ebnf_close(l->r.e, &list, EBNF_CHOICE, out);
}

/* A choice, behind which the definition must end. */
static fathom_err take_body(struct lark *l, uint32_t *out)
{
    TRY(take_choice(l, out));
    if (!goes_on(&l->r)) return FATHOM_OK;
    return ebnf_fail(l->r.e, l->r.at, FATHOM_EINVAL, "a %c without its beginning",
                     l->r.text[l->r.at]);
}

/* ---- definitions ------------------------------------------------------------------------ */

static fathom_err take_definition(struct lark *l)
{
    struct ebnf_reader *r = &l->r;
    uint32_t rule, node, priority, first = r->e->n_node;
    while (ebnf_take(r, "?") || ebnf_take(r, "!")) continue;
    const char *name = r->text + r->at;
    size_t at = r->at, n = ebnf_name(r, false);
    r->at += n;
    if (n && ebnf_peek(r, "{")) return refuse(r, at, "a template (name{...})");
    if (n && ebnf_peek(r, "[")) return refuse(r, at, "an option of a rule (name[...])");
    if (n && ebnf_take(r, ".")) (void)ebnf_number(r, &priority);
    while (ebnf_take(r, " ") || ebnf_take(r, "\t")) continue;
    if (n == 0 || !ebnf_take(r, ":")) {
        return ebnf_fail(r->e, at, FATHOM_EINVAL,
                         "needed is \"name:\" of a rule here, or \"::=\" somewhere in the grammar");
    }
    TRY(ebnf_find_rule(r->e, name, n, at, &rule));
    l->in_rule = !is_terminal(name, n);
    TRY(take_body(l, &node));
    bool is_start = n == 5 && memcmp(name, "start", 5) == 0;
    if (is_start || r->e->root == UINT32_MAX) r->e->root = rule;
    return ebnf_define(r->e, rule, at, first, node);
}

/* Defines the terminal `name` of the library under the name `as`. */
static fathom_err import_terminal(struct ebnf_reader *r, const char *name, size_t n, const char *as,
                                  size_t n_as)
{
    size_t i = 0, at = (size_t)(name - r->text), n_common = sizeof common / sizeof common[0];
    uint32_t rule, node, first = r->e->n_node;
    while (i < n_common && (strlen(common[i].name) != n || memcmp(common[i].name, name, n) != 0)) {
        i++;
    }
    if (i == n_common) {
        return ebnf_fail(r->e, at, FATHOM_EUNSUPPORTED, "common.%.*s is not supported", (int)n,
                         name);
    }
    TRY(ebnf_find_rule(r->e, as, n_as, at, &rule));
    TRY(ebnf_regex(r->e, common[i].pattern, strlen(common[i].pattern), at, &node));
    return ebnf_define(r->e, rule, at, first, node);
}

/* After "%import". */
static fathom_err take_import(struct ebnf_reader *r)
{
    while (ebnf_take(r, " ") || ebnf_take(r, "\t")) continue;
    size_t at = r->at;
    if (!ebnf_take(r, "common")) return refuse(r, at, "%import of another library than common");
    while (ebnf_take(r, " ")) continue;
    bool one = ebnf_take(r, "."), list = !one && ebnf_take(r, "(");
    do {
        while (ebnf_take(r, " ")) continue;
        const char *name = r->text + r->at, *as = name;
        size_t n = ebnf_name(r, false), n_as = n;
        r->at += n;
        while (ebnf_take(r, " ")) continue;
        if (one && ebnf_take(r, "->")) {
            while (ebnf_take(r, " ")) continue;
            as = r->text + r->at;
            n_as = ebnf_name(r, false);
            r->at += n_as;
        }
        if (n == 0 || n_as == 0 || (!one && !list)) {
            return ebnf_fail(r->e, at, FATHOM_EINVAL,
                             "needed is %%import common.NAME or %%import common (NAME, ...)");
        }
        TRY(import_terminal(r, name, n, as, n_as));
    } while (list && ebnf_take(r, ","));
    if (!list || ebnf_take(r, ")")) return FATHOM_OK;
    return ebnf_fail(r->e, at, FATHOM_EINVAL, "a ( without its )");
}

/* After "%ignore": a rule of its own. */
static fathom_err take_ignore(struct lark *l, size_t at)
{
    struct ebnf_reader *r = &l->r;
    uint32_t node, first = r->e->n_node;
    l->in_rule = false;
    TRY(take_body(l, &node));
    TRY(mem_grow(&l->ignored_rules, &l->cap_ignored, (size_t)l->n_ignored + 1,
                 sizeof *l->ignored_rules));
    uint32_t *rule = &l->ignored_rules[l->n_ignored];
    TRY(ebnf_add_rule(r->e, "%ignore", 7, at, rule));
    l->n_ignored++;
    return ebnf_define(r->e, *rule, at, first, node);
}

/* Defines the rule of ignored texts: any number of what the %ignore lines name. */
static fathom_err define_ignored(struct lark *l)
{
    struct ebnf *e = l->r.e;
    struct ebnf_list list = {0};
    uint32_t node, first = e->n_node;
    for (uint32_t i = 0; i < l->n_ignored; i++) {
        TRY(ebnf_node(e, EBNF_RULE, l->ignored_rules[i], e->rules[l->ignored_rules[i]].at, &node));
        ebnf_append(e, &list, node);
    }
    TRY(ebnf_close(e, &list, EBNF_CHOICE, &node));
    TRY(ebnf_repeat(e, node, 0, EBNF_NO_END, &node));
    return ebnf_define(e, l->ignore, 0, first, node);
}

static fathom_err take_item(struct lark *l)
{
    struct ebnf_reader *r = &l->r;
    size_t at = r->at;
    if (ebnf_take(r, "%import")) return take_import(r);
    if (ebnf_take(r, "%ignore")) return take_ignore(l, at);
    if (!ebnf_take(r, "%")) return take_definition(l);
    return ebnf_fail(r->e, at, FATHOM_EUNSUPPORTED, "%%%.*s is not supported",
                     (int)ebnf_name(r, false), r->text + r->at);
}

static fathom_err read_items(struct lark *l)
{
    struct ebnf *e = l->r.e;
    for (size_t i = 0; i + 7 <= e->n && l->ignore == UINT32_MAX; i++) {
        if (memcmp(e->text + i, "%ignore", 7) != 0) continue;
        TRY(ebnf_add_rule(e, "%ignore", 7, 0, &l->ignore));
    }
    for (skip_lines(&l->r); l->r.at < l->r.n; skip_lines(&l->r)) TRY(take_item(l));
    if (e->root == UINT32_MAX) FAIL(e->d, FATHOM_EINVAL, "grammar: it has no rules");
    return l->ignore == UINT32_MAX ? FATHOM_OK : define_ignored(l);
}

fathom_err ebnf_read_lark(struct ebnf *e)
{
    struct lark l = {.r = {.e = e, .text = e->text, .n = e->n}, .ignore = UINT32_MAX};
    e->root = UINT32_MAX;
    fathom_err err = read_items(&l);
    mem_free(l.ignored_rules);
    return err;
}
