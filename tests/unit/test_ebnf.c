/* test_ebnf.c - grammars in GBNF and in Lark's notation: what they take, and what they are refused
 * for */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "base/mem.h"
#include "base/rng.h"
#include "grammar/builder.h"
#include "support/grammar_data.h"
#include "support/tokenizer_data.h"

static struct grammar *grammar_of(const struct grammar_data *g, const char *text)
{
    fathom_diag d = {""};
    struct grammar *out;
    if (grammar_from_ebnf(&out, g->v, text, strlen(text), &d)) fail_msg("%s: %s", text, d.text);
    return out;
}

/* Texts after one another, each ended by a line break ("\n" is written "^"): the yes are taken, the
 * no are not. */
struct table {
    const char *grammar, *yes, *no;
};

static void try_texts(const struct grammar_data *g, struct grammar *grammar, const char *source,
                      const char *texts, bool wanted)
{
    while (*texts) {
        char text[400];
        size_t n = strcspn(texts, "\n");
        assert_true(n < sizeof text && texts[n] == '\n');
        for (size_t i = 0; i < n; i++) text[i] = texts[i] == '^' ? '\n' : texts[i];
        if (matcher_takes(g, grammar, text, n) != wanted) {
            fail_msg("%s\n\"%.*s\" is %s", source, (int)n, text, wanted ? "not taken" : "taken");
        }
        texts += n + 1;
    }
}

static void try_table(const struct grammar_data *g, const struct table *t, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        struct grammar *grammar = grammar_of(g, t[i].grammar);
        try_texts(g, grammar, t[i].grammar, t[i].yes, true);
        try_texts(g, grammar, t[i].grammar, t[i].no, false);
        grammar_release(grammar);
    }
}

#define ARITHMETIC                                                                                 \
    "root ::= expr\nexpr ::= expr [-+] term | term\nterm ::= term [*/] factor | factor\n"          \
    "factor ::= \"-\"? ([0-9]+ | \"(\" expr \")\")\n"

#define JSON                                                                                       \
    "root   ::= object\nvalue  ::= object | array | string | number | (\"true\" | \"false\" | "    \
    "\"null\") ws\nobject ::=\n  \"{\" ws (\n            string \":\" ws value\n    (\",\" ws "    \
    "string \":\" ws value)*\n  )? \"}\" ws\narray  ::=\n  \"[\" ws (\n            value\n    "    \
    "(\",\" ws value)*\n  )? \"]\" ws\nstring ::=\n  \"\\\"\" (\n    [^\"\\\\\\x7F\\x00-\\x1F] "   \
    "|\n    \"\\\\\" ([\"\\\\bfnrt] | \"u\" [0-9a-fA-F]{4}) # escapes\n  )* \"\\\"\" ws\nnumber "  \
    "::= (\"-\"? ([0-9] | [1-9] [0-9]{0,15})) (\".\" [0-9]+)? ([eE] [-+]? [0-9] [1-9]{0,15})? "    \
    "ws\n# a blank\nws ::= | \" \" | \"\\n\" [ \\t]{0,20}\n"

static const struct table gbnf[] = {
    {"root ::= \"yes\" | \"no\"", "yes\nno\n", "\nye\nyesno\n"},
    {"root ::= \"\" | \"a\"", "\na\n", "aa\n"},
    {"root ::= ( ) \"a\" (|\"b\")", "a\nab\n", "\nb\n"},
    {"root ::= [a-c]{2}", "ab\ncc\n", "a\nabc\nad\n"},
    {"root ::= [a-c]{2,}", "ab\nabcabc\n", "a\n"},
    {"root ::= [a-c]{1,2}", "a\nbc\n", "\nabc\n"},
    {"root ::= [a-c] { , 2 }", "\na\nbc\n", "abc\n"},
    {"root ::= \"ab\"{2} \"c\"{0}", "abab\n", "ab\nabb\nababc\n"},
    {"root ::= (\"a\"{2}){2,3}", "aaaa\naaaaaa\n", "aa\naaa\naaaaa\naaaaaaa\n"},
    {"root ::= [^a-y^-] [-a] [\\]\\[\\-] [\\d_]+", "z--0_9\n{a]1\n", "a--0\nz-x1\n--]1\n"},
    {"root ::= [^\\n]* \"\\n\"", "^\nxyz ü 字^\n", "\nx\n^^\n"},
    {"root ::= \"\\x41\\u00e9\\U0001F600\\t\\\"\\\\\\/\"", "Aé😀\t\"\\/\n", "A\n"},
    {"root ::= [ぁ-ゟ]+ [\\u4e00-\\u9fff]", "ひら字\n", "カ字\n"},
    {"root ::= .{3}", "aé字\n😀^x\n", "ab\nabcd\n"},
    {"root ::= a.b a-c d_0\na.b ::= \"x\"\na-c ::= \"y\" # ::= z\nd_0 ::= \"z\"", "xyz\n", "xy\n"},
    {"root ::= a.*\na ::= \"<\"", "<\n<ab\n", "a\n"},
    {"root ::= a |\n  b\na ::= \"a\"\n\n\n  b ::=\n \"b\"\n  \"c\"", "a\nbc\n", "b\nab\n"},
    {"root ::= (\"a\"?)* \"b\"", "b\naaab\n", "a\nba\n"},
    {"root ::= ((\"a\" | \"\")+ \"\")* \"b\"", "b\naaab\n", "a\nba\n"},
    {"unused ::= \"x\" also\nalso ::= unused\nroot ::= \"a\"", "a\n", "x\n"},
    {"root ::= root \"a\" | \"a\"", "a\naaaa\n", "\nab\n"},
    {"root ::= \"a\" root | \"\"", "\na\naaaa\n", "b\n"},
    {"root ::= \"(\" root \")\" root | \"\"", "\n()\n(()())()\n", "(\n)(\n(()\n"},
    {"root ::= a\na ::= b \"x\" | \"1\"\nb ::= a \"y\" | \"2\"", "1\n2x\n1yx\n2xyx\n1yxyx\n",
     "2\n1x\n1y\n2xy\n"},
    {"root ::= o root \"x\" | \"1\"\no ::= \"-\"*", "1\n1x\n--1xx\n-1x\n", "-1\nx\n-1x-x\n"},
    {"root ::= root root | \"a\" | \"(\" root \")\" |", "\na\naa\na(a(a)a)()\n", "(\n(a))\n"},
    {"root ::= a a\na ::= a b | \"\"\nb ::= a \"x\"", "\nx\nxxxx\n", "y\n"},
    {ARITHMETIC, "1\n1+2*3\n-(1+2)*-3/4-5\n((((7))))\n", "\n1+\n(1\n1)\n--1\n1++2\n1 + 2\n"},
    {JSON, "{}\n{\"a\":1}\n{\"a\": [1, -2.5e+3, true, {\"b\": null}], \"c\":\"\\u00e9\\n x\"}\n",
     "[]\n{\"a\"}\n{\"a\":01}\n{\"a\":\"\\x\"}\n{\"a\":1,}\n"},
    {"root ::= select_statement\nselect_statement ::= \"SELECT \" column \" from \" table \" where "
     "\" condition\ncolumn ::= \"col_1 \" | \"col_2 \"\ntable ::= \"table_1 \" | \"table_2 "
     "\"\ncondition ::= column \"= \" number\nnumber ::= \"1 \" | \"2 \"\n",
     "SELECT col_1  from table_1  where col_2 = 2 \n", "SELECT col_1\n"},
};

static void test_gbnf(void **state)
{
    try_table(*state, gbnf, sizeof gbnf / sizeof gbnf[0]);
}

static const struct table lark[] = {
    {"start: select_statement\nselect_statement: \"SELECT\" column \"from\" table \"where\" "
     "condition\ncolumn: \"col_1\" | \"col_2\"\ntable: \"table_1\" | \"table_2\"\ncondition: "
     "column "
     "\"=\" number\nnumber: \"1\" | \"2\"",
     "SELECTcol_1fromtable_2wherecol_1=2\n", "SELECT\n"},
    {"value: \"x\" | \"(\" value \")\"", "x\n((x))\n", "(x\n"},
    {"?start: select_statement\n\n?select_statement: \"SELECT \" column_list \" FROM \" "
     "table_name\n\n?column_list: column_name (\",\" column_name)*\n\n?table_name: "
     "identifier\n\n?column_name: identifier\n\n?identifier: /[a-zA-Z_][a-zA-Z0-9_]*/\n",
     "SELECT a,b_1 FROM t\n", "SELECT FROM t\n"},
    {"?start: sum\n?sum: product\n    | sum \"+\" product   -> add\n    | sum \"-\" product   -> "
     "sub\n?product: atom\n    | product \"*\" atom  -> mul\n?atom: NUMBER           -> number\n   "
     " "
     "| \"-\" atom         -> neg\n    | \"(\" sum \")\"\n%import common.NUMBER\n%import "
     "common.WS_INLINE\n%ignore WS_INLINE\n",
     "1+2\n1 + 2.5e3 * (3 - -4)\n(1) \n", " 1\n1 +\n1 2\n(1\n1.2.3\n"},
    {"?start: value\n?value: object | array | string | SIGNED_NUMBER -> number\n  | \"true\" // "
     "yes\n  | \"false\" # no\nobject: \"{\" [pair (\",\" pair)*] \"}\"\npair: string \":\" "
     "value\narray: \"[\" [value (\",\" value)*] \"]\"\nstring: ESCAPED_STRING\n%import common "
     "(ESCAPED_STRING, SIGNED_NUMBER, WS)\n%ignore WS\n",
     "{}\n{ \"a\": [1, -2.5 , true]^, \"b\\\"\": {} }^\n", "{\"a\"}\n[1 true]\n{\"a\":1,}\n"},
    {"start: A B~2 C~1..2 \"d\"{2}\nA.2: /[a-f]\\/x?/\nB: \"0\"..\"9\"\nC: \"k\"i | \"\\u00e9\"",
     "a/x12Kkdd\nf/00édd\n", "a/1Kdd\nadd\n"},
    {"start: \"select\"i \" \" 'x'", "SELECT x\nSelEct x\n", "sel x\n"},
    {"start: (\"a\"\n  | \"b\"\n)+ tail?\ntail: _NL\n_NL: \"\\n\"\n", "a\nabba^\n", "\n^\n"},
    {"start: item (\",\" item)*\nitem: \"id=\" INT\n%import common.INT\n%import common.INT -> "
     "OTHER\n%ignore /;+/\n%ignore \" \"\n",
     "id=1\nid=1, id=42 ;; ,id=3;\n", ";id=1\nid=1 2\n"},
    {"start:\n  a\n  b\na: | \"x\"\nb: \"y\"", "y\nxy\n", "x\n"},
};

static void test_lark(void **state)
{
    try_table(*state, lark, sizeof lark / sizeof lark[0]);
}

/* ---- what is wrong ---------------------------------------------------------------------- */

struct refusal {
    const char *grammar;
    fathom_err err;
    const char *why;
};

static const struct refusal refusals[] = {
    {"", FATHOM_EINVAL, "grammar: it has no rules"},
    {"a ::= \"x\"", FATHOM_EINVAL, "grammar: it has no rule \"root\", with which it begins"},
    {"root ::= \"a\"\n  | b c", FATHOM_EINVAL,
     "grammar, line 2, column 5: rule \"b\" is not defined"},
    {"root ::= \"é\" b", FATHOM_EINVAL, "grammar, line 1, column 14: rule \"b\" is not defined"},
    {"root ::= \"a\"\nroot ::= \"b\"", FATHOM_EINVAL,
     "grammar, line 2, column 1: rule \"root\" is defined before, in line 1"},
    {"root ::= \"a\" x\nx ::= \"b\" x", FATHOM_EINVAL,
     "grammar, line 2, column 1: no text of rule \"x\" ever ends"},
    {"root ::= root", FATHOM_EINVAL, "no text of rule \"root\" ever ends"},
    {"root ::= a \"x\"\na ::= b\nb ::= a", FATHOM_EINVAL, "ever ends"},
    {"root ::= \"a", FATHOM_EINVAL,
     "grammar, line 1, column 10: a text whose quotes its line does not end"},
    {"root ::= [a\n]", FATHOM_EINVAL, "line 1, column 10: a class whose [ its line does not end"},
    {"root ::= []", FATHOM_EINVAL, "a class without a character"},
    {"root ::= [z-a]", FATHOM_EINVAL, "column 11: a range that ends before it begins"},
    {"root ::= \"\\q\"", FATHOM_EINVAL, "column 12: an unknown escape"},
    {"root ::= \"\\u12\"", FATHOM_EINVAL, "an escape of 4 hexadecimal digits has fewer"},
    {"root ::= \"\\ud800\"", FATHOM_EINVAL, "an escape that is no character"},
    {"root ::= \"\\U00110000\"", FATHOM_EINVAL, "an escape that is no character"},
    {"root ::= \"\xff\"", FATHOM_EINVAL, "not UTF-8"},
    {"root ::= (\"a\"", FATHOM_EINVAL, "column 10: a ( without its )"},
    {"root ::= \"a\")", FATHOM_EINVAL, "column 13: a ) without its ("},
    {"root ::= *", FATHOM_EINVAL, "nothing to repeat"},
    {"root ::= \"a\"+*", FATHOM_EINVAL, "a repetition of a repetition; put the first into ( )"},
    {"root ::= \"a\"{3,2}", FATHOM_EINVAL, "a repetition that ends before it begins"},
    {"root ::= \"a\"{x}", FATHOM_EINVAL, "a repetition is one of {m}, {m,}, {m,n} and {,n}"},
    {"root ::= \"a\"{16385}", FATHOM_ELIMIT, "more than 16384 repetitions"},
    {"root ::= (\"a\"{1000}){1000}", FATHOM_ELIMIT,
     "line 1, column 1: the grammar is too large: more than 524288 states, most of them in rule "
     "\"root\"; repeat fewer times"},
    {"root ::= 'a'", FATHOM_EINVAL, "needed is a name, \"text\", [class] or ( here"},
    {"root ::= \"a\" = \"b\"", FATHOM_EINVAL, "column 14: needed is a name"},
    {"root = \"a\"\nx ::= \"b\"", FATHOM_EINVAL, "needed is the name of a rule and ::= here"},
    {"root ::= <think>", FATHOM_EUNSUPPORTED, "a token (<...>) is not supported"},
    {"root ::= (=\"a\")", FATHOM_EUNSUPPORTED, "(=...), a look ahead, is not supported"},
    {"root ::= TagDispatch((\"a\", b))", FATHOM_EUNSUPPORTED,
     "column 10: TagDispatch(...) is not supported"},
    {"root[max_tokens=3] ::= \"a\"", FATHOM_EUNSUPPORTED, "options of a rule are not supported"},
    {"start \"a\"", FATHOM_EINVAL, "needed is \"name:\" of a rule here, or \"::=\" somewhere"},
    {"start: a", FATHOM_EINVAL, "line 1, column 8: rule \"a\" is not defined"},
    {"start: \"a\"\n%import python.NAME\n", FATHOM_EUNSUPPORTED,
     "line 2, column 9: %import of another library than common is not supported"},
    {"%import common.NOPE\nstart: NOPE", FATHOM_EUNSUPPORTED, "common.NOPE is not supported"},
    {"%declare X\nstart: X", FATHOM_EUNSUPPORTED, "column 1: %declare is not supported"},
    {"start: _sep{a, \",\"}\n_sep{x, y}: x (y x)*\na: \"a\"", FATHOM_EUNSUPPORTED,
     "a template (name{...}) is not supported"},
    {"start: /a/i", FATHOM_EUNSUPPORTED, "column 11: a flag of a pattern is not supported"},
    {"start: /(?=a)b/", FATHOM_EUNSUPPORTED, "column 8: pattern, byte 2: look-around is not"},
    {"start: /a", FATHOM_EINVAL, "a pattern whose / its line does not end"},
    {"start: (\"a\" | \"b\"", FATHOM_EINVAL, "column 8: a ( without its )"},
    {"start: \"a\")", FATHOM_EINVAL, "a ) without its beginning"},
    {"start: \"ab\"..\"c\"", FATHOM_EINVAL, "a range of characters is"},
    {"start: \"a\"~x", FATHOM_EINVAL, "a repetition is ~m or ~m..n"},
    {"start: <[3]>", FATHOM_EUNSUPPORTED, "a token (<...>) is not supported"},
    {"start: %json {}", FATHOM_EUNSUPPORTED, "a grammar within a rule (%...) is not supported"},
};

static void test_refused(void **state)
{
    const struct grammar_data *g = *state;
    for (size_t i = 0; i < sizeof refusals / sizeof refusals[0]; i++) {
        const struct refusal *r = &refusals[i];
        struct grammar *out;
        fathom_diag d = {""};
        fathom_err err = grammar_from_ebnf(&out, g->v, r->grammar, strlen(r->grammar), &d);
        if (err != r->err || !strstr(d.text, r->why) || strchr(d.text, '\n')) {
            fail_msg("%s: %d, %s", r->grammar, err, d.text);
        }
        assert_null(out);
    }
}

/* ---- hostile grammars ------------------------------------------------------------------- */

static void repeat(struct buf *out, const char *text, int n)
{
    for (int i = 0; i < n; i++) assert_int_equal(buf_add_str(out, text), FATHOM_OK);
}

static void expect(const struct grammar_data *g, struct buf *text, fathom_err want, const char *why)
{
    struct grammar *out;
    fathom_diag d = {""};
    fathom_err err = grammar_from_ebnf(&out, g->v, text->data, text->len, &d);
    if (err != want || !strstr(d.text, why)) fail_msg("%.60s: %d, %s", text->data, err, d.text);
    grammar_release(out);
    buf_free(text);
}

static void test_hostile(void **state)
{
    const struct grammar_data *g = *state;
    struct buf b = {0};
    repeat(&b, "root ::= ", 1);
    repeat(&b, "(", 101);
    expect(g, &b, FATHOM_ELIMIT, "groups nested deeper than 100");

    repeat(&b, "root ::= \"a\"\n#", 1);
    repeat(&b, "0123456789abcdef", 65536);
    expect(g, &b, FATHOM_ELIMIT, "bytes long, at most 1048576 are possible");

    repeat(&b, "root ::= \"", 1);
    repeat(&b, "0123456789abcdef", 60000);
    repeat(&b, "\"", 1);
    expect(g, &b, FATHOM_ELIMIT, "the grammar is too large: more than 524288 states");

    repeat(&b, "root ::= ", 1);
    repeat(&b, "a ", 140000);
    repeat(&b, "\na ::= \"x\"", 1);
    expect(g, &b, FATHOM_ELIMIT, "more than 131072 parts");

    repeat(&b, "root ::= r0\n", 1);
    for (int i = 0; i < 9000; i++)
        assert_int_equal(buf_printf(&b, "r%d ::= \"x\"\n", i), FATHOM_OK);
    expect(g, &b, FATHOM_ELIMIT, "more than 8192 rules");

    repeat(&b, "root ::= (", 1);
    for (int i = 0; i < 12; i++) repeat(&b, "([a-z]*){0,3} | (", 1);
    repeat(&b, "\"a\"", 1);
    repeat(&b, ")", 13);
    expect(g, &b, FATHOM_OK, "");

    repeat(&b, "root ::= [a-z]* \"a\" [a-z]{40} \"!\"", 1);
    expect(g, &b, FATHOM_ELIMIT, "more than 131072 states");

    /* each rule twice the one before, and each a rule of the next: drawn as calls */
    repeat(&b, "root ::= a0\n", 1);
    for (int i = 0; i < 60; i++) {
        assert_int_equal(buf_printf(&b, "a%d ::= a%d a%d\n", i, i + 1, i + 1), FATHOM_OK);
    }
    repeat(&b, "a60 ::= \"x\"\n", 1);
    expect(g, &b, FATHOM_OK, "");
}

/* ---- against another recogniser --------------------------------------------------------- */

enum { N_RULE = 4, N_WAY = 3, N_SYMBOL = 3, LENGTH = 5 };

/* Rules of alternatives of up to N_SYMBOL symbols: 'a', 'b', or the number of a rule. */
struct small {
    int n_way[N_RULE];
    int n_symbol[N_RULE][N_WAY];
    char symbols[N_RULE][N_WAY][N_SYMBOL];
};

static void make_small(struct small *s, uint64_t *rng, struct buf *text)
{
    for (int r = 0; r < N_RULE; r++) {
        assert_int_equal(buf_printf(text, r ? "r%d ::=" : "root ::=", r), FATHOM_OK);
        s->n_way[r] = 1 + (int)rng_below(rng, N_WAY);
        for (int w = 0; w < s->n_way[r]; w++) {
            if (w) repeat(text, " |", 1);
            s->n_symbol[r][w] = (int)rng_below(rng, N_SYMBOL + 1);
            for (int k = 0; k < s->n_symbol[r][w]; k++) {
                char c = (char)rng_below(rng, N_RULE + 3);
                if (c >= N_RULE) c = c == N_RULE + 2 ? 'b' : 'a';
                s->symbols[r][w][k] = c;
                if (c >= 'a') assert_int_equal(buf_printf(text, " \"%c\"", c), FATHOM_OK);
                if (c == 0) repeat(text, " root", 1);
                if (c > 0 && c < 'a') assert_int_equal(buf_printf(text, " r%d", c), FATHOM_OK);
            }
        }
        repeat(text, "\n", 1);
    }
}

typedef bool spans[N_RULE][LENGTH + 1][LENGTH + 1];

static bool reads(const struct small *s, const spans *known, const char *text, int r, int w, int k,
                  int i, int j)
{
    if (k == s->n_symbol[r][w]) return i == j;
    char c = s->symbols[r][w][k];
    if (c >= 'a') return i < j && text[i] == c && reads(s, known, text, r, w, k + 1, i + 1, j);
    for (int m = i; m <= j; m++) {
        if ((*known)[(int)c][i][m] && reads(s, known, text, r, w, k + 1, m, j)) return true;
    }
    return false;
}

/* Spans that rules read, until there are no more. */
static bool small_takes(const struct small *s, const char *text, int n)
{
    spans known;
    memset(known, 0, sizeof known);
    for (bool changed = true; changed;) {
        changed = false;
        for (int r = 0; r < N_RULE; r++) {
            for (int i = 0; i <= n; i++) {
                for (int j = i; j <= n; j++) {
                    for (int w = 0; w < s->n_way[r] && !known[r][i][j]; w++) {
                        known[r][i][j] = reads(s, (const spans *)&known, text, r, w, 0, i, j);
                        changed |= known[r][i][j];
                    }
                }
            }
        }
    }
    return known[0][0][n];
}

static void test_random_grammars(void **state)
{
    const struct grammar_data *g = *state;
    uint64_t rng = 20251128;
    int n_taken = 0, n_recursive = 0;
    for (int round = 0; round < 600; round++) {
        struct small s;
        struct buf text = {0};
        struct grammar *grammar;
        fathom_diag d = {""};
        make_small(&s, &rng, &text);
        fathom_err err = grammar_from_ebnf(&grammar, g->v, text.data, text.len, &d);
        if (err && (err != FATHOM_EINVAL || !strstr(d.text, "ever ends"))) {
            fail_msg("%s: %s", text.data, d.text);
        }
        for (int n = 0; n <= LENGTH && !err; n++) {
            for (int bits = 0; bits < 1 << n; bits++) {
                char word[LENGTH + 1] = "";
                for (int i = 0; i < n; i++) word[i] = bits >> i & 1 ? 'b' : 'a';
                bool want = small_takes(&s, word, n);
                n_taken += want;
                if (matcher_takes(g, grammar, word, (size_t)n) != want) {
                    fail_msg("%s\n\"%s\" is %s", text.data, word, want ? "not taken" : "taken");
                }
            }
        }
        n_recursive += !err;
        grammar_release(grammar);
        buf_free(&text);
    }
    assert_true(n_taken > 1000 && n_recursive > 200);
}

/* ---- masks ------------------------------------------------------------------------------ */

static void test_masks(void **state)
{
    const struct grammar_data *g = *state;
    static const char *const sources[] = {
        ARITHMETIC, JSON, "root ::= root root | \"a\" [^\\n]* | \"(\" root \")\" |",
        "root ::= item+\nitem ::= \"- \" text \"\\n\" (\"  \" item)?\ntext ::= [^\\n]{1,40}\n",
        "start: (WORD \" \")+ /[.!?]/ start?\n%import common.WORD\n"};
    uint64_t rng = 11;
    for (size_t i = 0; i < sizeof sources / sizeof sources[0]; i++) {
        struct grammar *grammar = grammar_of(g, sources[i]);
        for (int k = 0; k < 4; k++) {
            struct matcher *m = matcher_of(g, grammar);
            struct buf text = {0};
            for (int n = 0; n < 24; n++) {
                assert_true(mask_is_exact(g, grammar, m, n % 3, 3));
                if (!walk_step(g, m, &rng, n > 12, &text)) break;
            }
            if (matcher_has_ended(m)) assert_true(matcher_takes(g, grammar, text.data, text.len));
            buf_free(&text);
            matcher_destroy(m);
        }
        grammar_release(grammar);
    }
}

/* Rules that begin with one another in more ways than can be tried: the same call by all of them,
 * calls that lead to different places, and letters before each. */
static struct grammar *dear_grammar(const struct grammar_data *g, int kind)
{
    static const char *const forms[] = {
        "a%d ::= a%d | b%d | root \"x\"\nb%d ::= a%d | b%d | root \"y\"\n",
        "a%d ::= a%d \"1\" | b%d \"2\" | root\nb%d ::= a%d \"3\" | b%d \"4\" | root\n",
        "a%d ::= [a-z] a%d \"1\" | [a-z] b%d \"2\" | root\n"
        "b%d ::= [a-z] a%d \"3\" | [a-z] b%d \"4\" | root\n"};
    struct buf b = {0};
    repeat(&b, "root ::= \"<\" a0 root | \"\"\n", 1);
    for (int i = 0; i < 60; i++) {
        assert_int_equal(buf_printf(&b, forms[kind], i, i + 1, i + 1, i, i + 1, i + 1), FATHOM_OK);
    }
    repeat(&b, "a60 ::= [a-z]+ root?\nb60 ::= [a-z]+ a60?\n", 1);
    struct grammar *grammar = grammar_of(g, b.data);
    buf_free(&b);
    return grammar;
}

static uint32_t count_longer(const struct grammar_data *g, const uint32_t *words)
{
    uint32_t n_longer = 0;
    for (int32_t id = 0; id < tokenizer_n_token(g->t); id++) {
        size_t n;
        if (id == g->eos || !(words[id / 32] >> (id % 32) & 1)) continue;
        (void)tokenizer_bytes(g->t, id, &n);
        n_longer += n > 1;
    }
    return n_longer;
}

/* Where a mask is more work than it may be, single bytes are left; what is allowed is the same
 * however often it has been asked for. */
static void test_dear_masks(void **state)
{
    const struct grammar_data *g = *state;
    uint32_t *first = mem_alloc_array(g->n_word, sizeof *first);
    int32_t letter = tokenizer_find(g->t, "q");
    for (int kind = 0; kind < 3; kind++) {
        struct grammar *grammar = dear_grammar(g, kind);
        struct matcher *m = matcher_of(g, grammar);
        assert_int_equal(matcher_accept_bytes(m, "<", 1), FATHOM_OK);
        for (int n = 0; n < 4; n++) {
            assert_int_equal(matcher_fill_mask(m, first, g->n_word), FATHOM_OK);
            for (int again = 0; again < 3; again++) {
                assert_int_equal(matcher_fill_mask(m, g->words, g->n_word), FATHOM_OK);
                assert_memory_equal(first, g->words, g->n_word * sizeof *first);
            }
            if (n == 0) assert_int_equal(count_longer(g, first) > 0, kind != 1);
            assert_true(first[letter / 32] >> (letter % 32) & 1);
            assert_int_equal(matcher_accept_token(m, letter), FATHOM_OK);
        }
        matcher_destroy(m);
        grammar_release(grammar);
    }
    mem_free(first);
}

static void test_failing_allocations(void **state)
{
    const struct grammar_data *g = *state;
    static const char *const sources[] = {
        "root ::= a \"x\" | [b-d]{2}\na ::= root \"y\" | o\no ::= \"-\"*\n",
        "start: \"a\"..\"b\" start | W \"c\"i\n%import common.WS -> W\n%ignore /;/\n"};
    for (size_t i = 0; i < sizeof sources / sizeof sources[0]; i++) {
        for (long n = 0;; n++) {
            struct grammar *grammar = NULL;
            mem_fail_after(n);
            fathom_err err =
                grammar_from_ebnf(&grammar, g->v, sources[i], strlen(sources[i]), NULL);
            bool hit = mem_fail_hit();
            mem_fail_after(-1);
            grammar_release(grammar);
            assert_int_equal(err, hit ? FATHOM_ENOMEM : FATHOM_OK);
            if (!hit) break;
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_gbnf),
                                       cmocka_unit_test(test_lark),
                                       cmocka_unit_test(test_refused),
                                       cmocka_unit_test(test_hostile),
                                       cmocka_unit_test(test_random_grammars),
                                       cmocka_unit_test(test_masks),
                                       cmocka_unit_test(test_dear_masks),
                                       cmocka_unit_test(test_failing_allocations)};
    return cmocka_run_group_tests(tests, grammar_data_set_up_pilot, grammar_data_tear_down);
}
