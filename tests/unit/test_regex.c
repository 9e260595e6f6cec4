/* test_regex.c - patterns against PCRE2 on many texts, and what is refused */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "base/mem.h"
#include "base/rng.h"
#include "grammar/regex.h"
#include "support/json_check.h"

static const char *const patterns[] = {
    "",
    "a",
    "abc",
    "a|b",
    "a|bc|",
    "(ab)+",
    "(?:ab)*c?",
    "a{3}",
    "a{2,4}b",
    "a{2,}",
    "a{,2}b",
    "a{0}b",
    "(a{1,2}b){2}",
    "[abc]+",
    "[^abc]+",
    "[a-c]*[^-a]",
    "[]a]+",
    "[^]a]",
    "[a\\]b-]+",
    "[\\d_]+",
    "[^\\w]",
    "\\d+\\.\\d*",
    "\\w+\\s\\w+",
    "\\D\\W\\S",
    ".",
    ".*b",
    "a.c",
    "(a|ab)(c|bcd)",
    "(a*)*",
    "(a*)+b",
    "(|a)+",
    "(?<name>a)b",
    "(?P<name>a)b",
    "a*?b",
    "a+?b??",
    "^a",
    "a$",
    "^a$|^b$",
    "^(a|b$)",
    "a^b",
    "(^a|b)c",
    "^$",
    "^^a$$",
    "(a$|ab)",
    "\\Aa+\\Z",
    "\\x61\\u0062",
    "\\U0001F600|\\u00e9",
    "[\\u00e0-\\u00ff]+",
    "é+",
    "[é-ü😀]",
    "[^é]",
    "\\.\\*\\[\\]\\{\\}\\(\\)\\|\\^\\$\\\\\\/\\-",
    "a{b",
    "{a}",
    "a{1,b}",
    "[0-9]{1,3}(,[0-9]{3})*",
    "(?:(?:a|b)(?:c|d)){2,3}e",
    "\\n|\\t|\\r|\\f|\\v",
    "[\\n\\t ]",
    "x*y*z*",
    "(a|b)*abb",
    "[+-]?\\d+([eE][+-]?\\d+)?",
};

/* PCRE2 writes \u and \U otherwise, and counts from 0 only when told to. */
static void to_pcre(const char *pattern, char *out, size_t size)
{
    static const struct {
        const char *ours, *theirs;
    } spellings[] = {{"\\u0062", "\\x62"},   {"\\U0001F600", "\\x{1F600}"}, {"\\u00e9", "\\x{e9}"},
                     {"\\u00e0", "\\x{e0}"}, {"\\u00ff", "\\x{ff}"},        {"a{,2}", "a{0,2}"},
                     {"\\Z", "\\z"}};
    size_t n = 0;
    while (*pattern) {
        size_t k = 0, n_spelling = sizeof spellings / sizeof spellings[0];
        while (k < n_spelling && strncmp(pattern, spellings[k].ours, strlen(spellings[k].ours))) {
            k++;
        }
        const char *put = k < n_spelling ? spellings[k].theirs : pattern;
        size_t n_put = k < n_spelling ? strlen(put) : 1;
        assert_true(n + n_put < size);
        memcpy(out + n, put, n_put);
        n += n_put;
        pattern += k < n_spelling ? strlen(spellings[k].ours) : 1;
    }
    out[n] = '\0';
}

static size_t random_text(char *out, uint64_t *rng)
{
    static const char *const pieces[] = {"a", "b", "c", "d",  "e",  "ab", "bc",  "0", "12", ".",
                                         "-", " ", "_", "]",  "é",  "ü",  "😀",   "x", "y",  "z",
                                         "{", "}", ",", "\n", "\t", "b$", "a{b", "A", "+",  "E"};
    size_t n = 0, n_piece = rng_below(rng, 7);
    for (size_t i = 0; i < n_piece; i++) {
        const char *piece = pieces[rng_below(rng, sizeof pieces / sizeof pieces[0])];
        memcpy(out + n, piece, strlen(piece));
        n += strlen(piece);
    }
    out[n] = '\0';
    return n;
}

static void check_pattern(const char *pattern, uint64_t *rng)
{
    char theirs[256], text[64];
    struct dfa full, search;
    fathom_diag d = {""};
    size_t n = strlen(pattern);
    if (regex_compile(&full, pattern, n, REGEX_FULL, NULL, &d)) fail_msg("%s: %s", pattern, d.text);
    assert_int_equal(regex_compile(&search, pattern, n, REGEX_SEARCH, NULL, &d), FATHOM_OK);
    to_pcre(pattern, theirs, sizeof theirs);
    for (int i = 0; i < 400; i++) {
        size_t n_text = random_text(text, rng);
        if (dfa_accepts_text(&full, text, n_text) != pattern_found(theirs, text, n_text, true)) {
            fail_msg("%s on \"%s\", whole", pattern, text);
        }
        if (dfa_accepts_text(&search, text, n_text) != pattern_found(theirs, text, n_text, false)) {
            fail_msg("%s on \"%s\", inside", pattern, text);
        }
    }
    dfa_free(&full);
    dfa_free(&search);
}

static void agrees_with_pcre(void **state)
{
    (void)state;
    uint64_t rng = 5;
    for (size_t i = 0; i < sizeof patterns / sizeof patterns[0]; i++) {
        check_pattern(patterns[i], &rng);
    }
}

/* Random patterns of the pieces that both understand alike. */
static void agrees_on_random_patterns(void **state)
{
    (void)state;
    static const char *const atoms[] = {"a", "b", "[ab]", "[^a]", ".", "(?:ab|c)", "(a|)", "\\d"};
    static const char *const repeats[] = {"", "", "", "*", "+", "?", "{2}", "{1,3}"};
    static const char *const anchors[] = {"", "", "", "", "^", "$", "|"};
    uint64_t rng = 11;
    for (int i = 0; i < 300; i++) {
        char pattern[256] = "";
        size_t n_atom = 1 + rng_below(&rng, 5), n = 0;
        for (size_t k = 0; k < n_atom; k++) {
            n += (size_t)snprintf(pattern + n, sizeof pattern - n, "%s%s%s",
                                  anchors[rng_below(&rng, 7)], atoms[rng_below(&rng, 8)],
                                  repeats[rng_below(&rng, 8)]);
        }
        check_pattern(pattern, &rng);
    }
}

static void refused(const char *pattern, fathom_err want, const char *why)
{
    struct dfa out;
    fathom_diag d = {""};
    fathom_err err = regex_compile(&out, pattern, strlen(pattern), REGEX_FULL, NULL, &d);
    if (err != want || !strstr(d.text, why)) fail_msg("%s: %d %s", pattern, err, d.text);
    assert_null(out.edges);
}

static void refuses(void **state)
{
    (void)state;
    refused("(a)\\1", FATHOM_EUNSUPPORTED, "back reference");
    refused("(?P<x>a)(?P=x)", FATHOM_EUNSUPPORTED, "back reference");
    refused("a\\k<x>", FATHOM_EUNSUPPORTED, "back reference");
    refused("(?=a)", FATHOM_EUNSUPPORTED, "byte 2: look-around");
    refused("(?<!a)b", FATHOM_EUNSUPPORTED, "look-around");
    refused("\\bword", FATHOM_EUNSUPPORTED, "word boundary");
    refused("\\p{L}", FATHOM_EUNSUPPORTED, "Unicode property");
    refused("(?i)a", FATHOM_EUNSUPPORTED, "flag");
    refused("(?>a)", FATHOM_EUNSUPPORTED, "atomic");
    refused("a++", FATHOM_EUNSUPPORTED, "possessive");
    refused("[[:alpha:]]", FATHOM_EUNSUPPORTED, "POSIX");
    refused("a**", FATHOM_EINVAL, "repetition of a repetition");
    refused("*a", FATHOM_EINVAL, "nothing to repeat");
    refused("(a", FATHOM_EINVAL, "without its )");
    refused("a)", FATHOM_EINVAL, "without its group");
    refused("[a", FATHOM_EINVAL, "too early");
    refused("[b-a]", FATHOM_EINVAL, "ends before it begins");
    refused("[a-\\d]", FATHOM_EINVAL, "ends in a class");
    refused("a{2}{3}", FATHOM_EINVAL, "a repetition of a repetition");
    refused("a*{2,}", FATHOM_EINVAL, "a repetition of a repetition");
    refused("a|{2}", FATHOM_EINVAL, "nothing to repeat");
    refused("\\01", FATHOM_EUNSUPPORTED, "octal escape");
    refused("a{3,2}", FATHOM_EINVAL, "ends before it begins");
    refused("\\", FATHOM_EINVAL, "too early");
    refused("\\q", FATHOM_EINVAL, "unknown escape");
    refused("\\x4", FATHOM_EINVAL, "hexadecimal");
    refused("\\ud800", FATHOM_EINVAL, "no character");
    refused("(?<x", FATHOM_EINVAL, "without its end");
    refused("\xff", FATHOM_EINVAL, "not UTF-8");
    refused("a{5000}", FATHOM_ELIMIT, "more than 4096");
    refused("((((a{90}){90}){90}){90}){90}", FATHOM_ELIMIT, "states");
    refused("((){4000}){4000}", FATHOM_ELIMIT, "states");
    refused("(a|b)*a(a|b){20}", FATHOM_ELIMIT, "states");
    char deep[512];
    memset(deep, '(', 200);
    memset(deep + 200, ')', 200);
    deep[400] = '\0';
    refused(deep, FATHOM_ELIMIT, "nested deeper");
}

static void survives_failing_allocations(void **state)
{
    (void)state;
    const char *pattern = "(?:[a-z]{2,5}|é+)*\\d{3}$";
    for (long n = 0;; n++) {
        struct dfa out;
        mem_fail_after(n);
        fathom_err err = regex_compile(&out, pattern, strlen(pattern), REGEX_SEARCH, NULL, NULL);
        bool hit = mem_fail_hit();
        mem_fail_after(-1);
        if (!hit) {
            assert_int_equal(err, FATHOM_OK);
            dfa_free(&out);
            return;
        }
        assert_int_equal(err, FATHOM_ENOMEM);
        assert_null(out.edges);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(agrees_with_pcre), cmocka_unit_test(agrees_on_random_patterns),
        cmocka_unit_test(refuses), cmocka_unit_test(survives_failing_allocations)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
