/* test_automaton.c - operations on automata against their meaning, on all short texts */
#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

#include "base/rng.h"
#include "base/utf8.h"
#include "grammar/automaton.h"
#include "grammar/regex.h"
#include "grammar/spelling.h"

static void of_pattern(struct dfa *out, const char *pattern)
{
    fathom_diag d = {""};
    if (regex_compile(out, pattern, strlen(pattern), REGEX_FULL, NULL, &d)) fail_msg("%s", d.text);
}

/* Text number i over the letters a, b, é and 😀. */
static size_t text_of(uint32_t i, char *out)
{
    static const char *const letters[] = {"a", "b", "é", "😀"};
    size_t n = 0;
    for (; i > 0; i = (i - 1) / 4) {
        const char *letter = letters[(i - 1) % 4];
        memcpy(out + n, letter, strlen(letter));
        n += strlen(letter);
    }
    return n;
}

enum { N_TEXT = 1 + 4 + 16 + 64 + 256 };

static void conjunction_and_negation(void **state)
{
    (void)state;
    static const char *const patterns[] = {"a*b?", "[^a]{2}", "(é|a)+",  "",       "😀.*",
                                           ".*",   "a|b|é",   "(ab|ba)", "[a-é]*", "a{2,3}"};
    size_t n = sizeof patterns / sizeof patterns[0];
    for (size_t i = 0; i < n; i++) {
        for (size_t k = 0; k < n; k++) {
            struct dfa a, b, both, not_a;
            char text[64];
            of_pattern(&a, patterns[i]);
            of_pattern(&b, patterns[k]);
            assert_int_equal(dfa_intersect(&both, &a, &b, 1000, NULL), FATHOM_OK);
            assert_int_equal(dfa_negate(&not_a, &a, NULL), FATHOM_OK);
            bool any = false;
            for (uint32_t x = 0; x < N_TEXT; x++) {
                size_t len = text_of(x, text);
                bool in_a = dfa_accepts_text(&a, text, len), in_b = dfa_accepts_text(&b, text, len);
                assert_int_equal(dfa_accepts_text(&both, text, len), in_a && in_b);
                assert_int_equal(dfa_accepts_text(&not_a, text, len), !in_a);
                any |= in_a && in_b;
            }
            assert_int_equal(dfa_is_empty(&both), !any);
            dfa_free(&a);
            dfa_free(&b);
            dfa_free(&both);
            dfa_free(&not_a);
        }
    }
}

static void lengths(void **state)
{
    (void)state;
    struct dfa d, none, all;
    char text[64];
    assert_int_equal(dfa_lengths(&d, 2, 3, 100, NULL), FATHOM_OK);
    assert_int_equal(dfa_lengths(&all, 1, UINT32_MAX, 100, NULL), FATHOM_OK);
    for (uint32_t x = 0; x < N_TEXT; x++) {
        size_t n = text_of(x, text), n_char = x == 0 ? 0 : x < 5 ? 1 : x < 21 ? 2 : x < 85 ? 3 : 4;
        assert_int_equal(dfa_accepts_text(&d, text, n), n_char == 2 || n_char == 3);
        assert_int_equal(dfa_accepts_text(&all, text, n), n_char >= 1);
    }
    assert_false(dfa_is_open(&d, 0));
    assert_true(dfa_is_open(&all, 1));
    assert_int_equal(dfa_lengths(&none, 3, 2, 100, NULL), FATHOM_OK);
    assert_true(dfa_is_empty(&none));
    dfa_free(&none);
    assert_int_equal(dfa_lengths(&none, 0, 100, 100, NULL), FATHOM_ELIMIT);
    dfa_free(&none);
    dfa_free(&d);
    dfa_free(&all);
}

static void first_words(void **state)
{
    (void)state;
    struct nfa n;
    struct dfa d;
    nfa_init(&n, 100, NULL);
    uint32_t s = nfa_state(&n), a = nfa_state(&n), end = nfa_state(&n);
    nfa_edge(&n, s, 'a', 'b', s);
    nfa_edge(&n, s, 'a', 'a', a);
    nfa_edge(&n, a, 'b', 'b', end);
    assert_int_equal(dfa_build(&d, &n, s, end, DFA_FIRST, 100, NULL), FATHOM_OK);
    assert_true(dfa_accepts_text(&d, "bbaab", 5));
    assert_false(dfa_accepts_text(&d, "abab", 4));
    assert_false(dfa_accepts_text(&d, "ba", 2));
    dfa_free(&d);
    assert_int_equal(dfa_build(&d, &n, s, end, DFA_WHOLE, 1, NULL), FATHOM_ELIMIT);
    assert_null(d.edges);
    nfa_free(&n);
}

/* Every code point, and everything that is none, through the bytes of a range. */
static void utf8_of_ranges(void **state)
{
    (void)state;
    static const uint32_t ranges[][2] = {{0, 0x10ffff},   {0x80, 0x7ff},     {0x7f, 0x80},
                                         {0x39e, 0xfffd}, {0xd000, 0xe100},  {0x12345, 0x54321},
                                         {0x41, 0x41},    {0xffff, 0x10000}, {0x10ffff, 0x10ffff},
                                         {0x800, 0x1000}, {0xd800, 0xdfff}};
    for (size_t i = 0; i < sizeof ranges / sizeof ranges[0]; i++) {
        struct nfa n;
        struct dfa d;
        nfa_init(&n, 1000, NULL);
        uint32_t from = nfa_state(&n);
        struct spell_target to = {.state = nfa_state(&n)};
        spell_text(&n, from, ranges[i][0], ranges[i][1], &to);
        assert_int_equal(dfa_build(&d, &n, from, to.state, DFA_WHOLE, 1000, NULL), FATHOM_OK);
        for (uint32_t cp = 0; cp <= 0x10ffff; cp += cp % 97 == 5 ? 13 : 1) {
            char bytes[4];
            if (cp >= 0xd800 && cp <= 0xdfff) continue;
            size_t n_byte = utf8_encode(bytes, (int32_t)cp);
            int64_t at = 0;
            for (size_t k = 0; k < n_byte && at >= 0; k++) {
                at = dfa_step(&d, (uint32_t)at, (uint8_t)bytes[k]);
            }
            bool in = cp >= ranges[i][0] && cp <= ranges[i][1];
            assert_int_equal(at >= 0 && d.accept[at], in);
        }
        dfa_free(&d);
        nfa_free(&n);
    }
}

static void keeps_the_first_failure(void **state)
{
    (void)state;
    struct nfa n;
    nfa_init(&n, 4, NULL);
    for (int i = 0; i < 10; i++) (void)nfa_state(&n);
    assert_int_equal(n.err, FATHOM_ELIMIT);
    assert_int_equal(n.n_state, 4);
    nfa_edge(&n, 0, 1, 2, 3);
    assert_int_equal(n.n_edge, 0);
    nfa_free(&n);
    nfa_init(&n, 4, NULL);
    for (int i = 0; i < 100; i++) nfa_link(&n, nfa_state(&n), NFA_EPSILON, 0);
    assert_int_equal(n.err, FATHOM_ELIMIT);
    nfa_free(&n);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(conjunction_and_negation),
                                       cmocka_unit_test(lengths), cmocka_unit_test(first_words),
                                       cmocka_unit_test(utf8_of_ranges),
                                       cmocka_unit_test(keeps_the_first_failure)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
