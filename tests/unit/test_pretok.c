/* test_pretok.c - cutting text by patterns, and the scanner that gives the same pieces */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "base/mem.h"
#include "base/rng.h"
#include "base/utf8.h"
#include "support/tokenizer_data.h"
#include "tokenizer/pretok.h"

/* Where pieces end. */
struct cuts {
    const char *text;
    size_t at; /* end of the last piece */
    size_t n;
    size_t cap;
    size_t *ends;
};

static fathom_err add_cut(void *arg, const char *s, size_t n)
{
    struct cuts *c = arg;
    assert_true(n > 0);
    assert_ptr_equal(s, c->text + c->at);
    if (c->n == c->cap) {
        c->cap = c->cap ? 2 * c->cap : 64;
        size_t *ends = mem_resize(c->ends, c->cap * sizeof *ends);
        if (!ends) return FATHOM_ENOMEM;
        c->ends = ends;
    }
    c->ends[c->n++] = c->at += n;
    return FATHOM_OK;
}

static struct cuts cut(const struct pretok *p, const char *s, size_t n)
{
    struct cuts c = {.text = s};
    struct pretok_call call = {0};
    assert_int_equal(pretok_split(p, &call, s, n, add_cut, &c), 0);
    assert_int_equal(c.at, n);
    pretok_call_free(&call);
    return c;
}

static void open_family(struct pretok **scanner, struct pretok **pcre2)
{
    assert_int_equal(pretok_open(scanner, family_patterns, 3, PRETOK_ENGINE_AUTO, "t", NULL), 0);
    assert_int_equal(pretok_open(pcre2, family_patterns, 3, PRETOK_ENGINE_PCRE2, "t", NULL), 0);
    assert_true(pretok_has_scanner(*scanner));
    assert_false(pretok_has_scanner(*pcre2));
}

static void expect_same(const struct pretok *a, const struct pretok *b, const char *s, size_t n)
{
    struct cuts x = cut(a, s, n), y = cut(b, s, n);
    bool same = x.n == y.n && (x.n == 0 || memcmp(x.ends, y.ends, x.n * sizeof *x.ends) == 0);
    if (!same) {
        for (size_t i = 0; i < n; i++) print_error("%02x ", (unsigned char)s[i]);
        print_error("\n");
    }
    assert_true(same);
    mem_free(x.ends);
    mem_free(y.ends);
}

/* pieces: the text with '|' between them */
static void expect_pieces(const struct pretok *p, const char *pieces)
{
    struct buf text = {0};
    for (const char *s = pieces; *s; s++) {
        if (*s != '|') assert_int_equal(buf_add_char(&text, *s), 0);
    }
    struct cuts c = cut(p, buf_str(&text), text.len);
    struct buf got = {0};
    for (size_t i = 0, from = 0; i < c.n; from = c.ends[i++]) {
        if (i) assert_int_equal(buf_add_char(&got, '|'), 0);
        assert_int_equal(buf_add(&got, text.data + from, c.ends[i] - from), 0);
    }
    assert_string_equal(buf_str(&got), pieces);
    mem_free(c.ends);
    buf_free(&got);
    buf_free(&text);
}

static void cuts_as_the_patterns_say(void **state)
{
    (void)state;
    struct pretok *scanner, *pcre2;
    static const char *const cases[] = {
        "",
        "Hello| world|!",
        "123|456|7",
        "x|123|y",
        "a|  |1", /* white space before a number is the end of its text */
        "a| | b",
        "a|   | b",
        "a|\n\n|b",
        "a| \n \n|  | b",
        "a|   ",
        ".method|(arg|)",
        "don|'t|;\n|x",
        " ?!\n\n|x",
        "价格|￥|1|,|299|元",
        "カタカナ|・|テスト", /* the middle dot is punctuation inside the kana range */
        "漢字|abc",
        "a|漢字",
        "\x01\x02",
        "\x01|\x02"
        "a",
        "\xc2\x85word",       /* NEL goes before letters */
        "\xef\xbb\xbfword",   /* so does U+FEFF, */
        "\n|\xef\xbb\xbf|\n", /* which is no white space */
        "e\xcc\x81",
        "!|\xcc\x81",
        "१२३|४",
        "<div|></|p|>",
        "~/|path|/to",
    };
    open_family(&scanner, &pcre2);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        expect_pieces(scanner, cases[i]);
        expect_pieces(pcre2, cases[i]);
    }
    pretok_close(scanner);
    pretok_close(pcre2);
}

static void scanner_agrees_on_vectors(void **state)
{
    (void)state;
    size_t n;
    struct pretok *scanner, *pcre2;
    struct vector *vectors = data_read_vectors(&n);
    open_family(&scanner, &pcre2);
    for (size_t i = 0; i < n; i++) expect_same(scanner, pcre2, vectors[i].text, vectors[i].n_text);
    data_free_vectors(vectors, n);
    pretok_close(scanner);
    pretok_close(pcre2);
}

static void scanner_agrees_on_random_text(void **state)
{
    (void)state;
    uint64_t rng = 11;
    struct buf text = {0};
    struct pretok *scanner, *pcre2;
    open_family(&scanner, &pcre2);
    for (int i = 0; i < 4000; i++) {
        buf_clear(&text);
        data_random_text(&text, 1 + rng_below(&rng, 40), &rng);
        expect_same(scanner, pcre2, text.data, text.len);
    }
    buf_free(&text);
    pretok_close(scanner);
    pretok_close(pcre2);
}

/* Every short text over one character of each kind. */
static void scanner_agrees_on_all_short_texts(void **state)
{
    (void)state;
    static const char *const kinds[] = {"a",  "é",  "\xcc\x81", "1",           "-",  "+",
                                        "«",  " ",  "\t",       "\n",          "\r", "\xc2\xa0",
                                        "中", "・", "\x01",     "\xe2\x80\x8d"};
    enum { N_KIND = sizeof kinds / sizeof kinds[0], LONGEST = 4 };
    struct pretok *scanner, *pcre2;
    open_family(&scanner, &pcre2);
    for (int length = 1; length <= LONGEST; length++) {
        int n_text = 1;
        for (int i = 0; i < length; i++) n_text *= N_KIND;
        for (int code = 0; code < n_text; code++) {
            char text[4 * LONGEST + 1] = "";
            for (int i = 0, rest = code; i < length; i++, rest /= N_KIND) {
                memcpy(text + strlen(text), kinds[rest % N_KIND], strlen(kinds[rest % N_KIND]) + 1);
            }
            expect_same(scanner, pcre2, text, strlen(text));
        }
    }
    pretok_close(scanner);
    pretok_close(pcre2);
}

/* Each code point between letters, signs, white space and kana. */
static void scanner_agrees_on_every_code_point(void **state)
{
    (void)state;
    struct buf text = {0};
    struct pretok *scanner, *pcre2;
    open_family(&scanner, &pcre2);
    for (int32_t block = 0; block < 0x110000; block += 256) {
        if (block >= 0xd800 && block < 0xe000) continue;
        if (block > 0x34000 && block < 0xe0000) continue; /* unassigned */
        buf_clear(&text);
        for (int32_t cp = block; cp < block + 256; cp++) {
            static const char *const after[] = {"a", " b", "\n", "- ", "カ", "1", "  \xcc\x81"};
            char utf8[4];
            size_t n = utf8_encode(utf8, cp);
            for (size_t i = 0; i < sizeof after / sizeof after[0]; i++) {
                (void)buf_add(&text, utf8, n);
                (void)buf_add_str(&text, after[i]);
            }
        }
        assert_int_equal(buf_status(&text), 0);
        expect_same(scanner, pcre2, text.data, text.len);
    }
    buf_free(&text);
    pretok_close(scanner);
    pretok_close(pcre2);
}

/* Long runs of one character through both, linear in their length. */
static void cuts_long_runs(void **state)
{
    (void)state;
    static const char *const units[] = {"a", " ",    "\n", "中",  "😀",
                                        "1", "\x01", "a ", " \n", "\xcc\x81"};
    enum { N_BYTE = 1 << 18 };
    struct pretok *scanner, *pcre2;
    open_family(&scanner, &pcre2);
    for (size_t i = 0; i < sizeof units / sizeof units[0]; i++) {
        struct buf text = {0};
        while (text.len < N_BYTE) assert_int_equal(buf_add_str(&text, units[i]), 0);
        expect_same(scanner, pcre2, text.data, text.len);
        assert_int_equal(buf_add_str(&text, "x"), 0);
        expect_same(scanner, pcre2, text.data, text.len);
        buf_free(&text);
    }
    pretok_close(scanner);
    pretok_close(pcre2);
}

static void uses_the_scanner_for_its_patterns_only(void **state)
{
    (void)state;
    struct pretok *p;
    struct pretok_pattern changed[3];
    memcpy(changed, family_patterns, sizeof changed);
    changed[0] = (struct pretok_pattern){"\\p{N}", 5};
    assert_int_equal(pretok_open(&p, changed, 3, PRETOK_ENGINE_AUTO, "t", NULL), 0);
    assert_false(pretok_has_scanner(p));
    expect_pieces(p, "1|2|3| a");
    pretok_close(p);
    assert_int_equal(pretok_open(&p, family_patterns, 2, PRETOK_ENGINE_AUTO, "t", NULL), 0);
    assert_false(pretok_has_scanner(p));
    expect_pieces(p, "123|456| a-b |中");
    pretok_close(p);
}

static void runs_other_patterns(void **state)
{
    (void)state;
    struct pretok *p;
    static const char gpt2[] = "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|"
                               "\\s+(?!\\S)|\\s+";
    struct pretok_pattern one = {gpt2, sizeof gpt2 - 1};
    assert_int_equal(pretok_open(&p, &one, 1, PRETOK_ENGINE_AUTO, "t", NULL), 0);
    expect_pieces(p, "It|'s| 12345|  | £|5| ok|!");
    pretok_close(p);
    assert_int_equal(pretok_open(&p, NULL, 0, PRETOK_ENGINE_AUTO, "t", NULL), 0);
    expect_pieces(p, "a whole text 1");
    pretok_close(p);
    one = (struct pretok_pattern){"x*", 2}; /* matches the empty string everywhere */
    assert_int_equal(pretok_open(&p, &one, 1, PRETOK_ENGINE_AUTO, "t", NULL), 0);
    expect_pieces(p, "a|xx|é|b|x");
    pretok_close(p);
    one = (struct pretok_pattern){"^b$", 3}; /* lines, as Ruby reads it */
    assert_int_equal(pretok_open(&p, &one, 1, PRETOK_ENGINE_AUTO, "t", NULL), 0);
    expect_pieces(p, "a\n|b|\nc");
    pretok_close(p);
}

static void refuses_bad_patterns(void **state)
{
    (void)state;
    static const char *const bad[] = {"(", "a)", "*", "[z-a]", "x{5,2}", "(?<=a+)b"};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        struct pretok *p;
        fathom_diag d = {""};
        struct pretok_pattern one = {bad[i], strlen(bad[i])};
        assert_int_equal(pretok_open(&p, &one, 1, PRETOK_ENGINE_AUTO, "t.json", &d),
                         FATHOM_EFORMAT);
        assert_null(p);
        assert_non_null(strstr(d.text, "t.json: the pattern \""));
        assert_non_null(strstr(d.text, "\" is not valid: "));
    }
    struct pretok *p;
    struct pretok_pattern many[17];
    for (int i = 0; i < 17; i++) many[i] = family_patterns[0];
    assert_int_equal(pretok_open(&p, many, 17, PRETOK_ENGINE_AUTO, "t", NULL), FATHOM_ELIMIT);
}

/* A pattern that would try for ages is given up, not waited for. */
static void gives_up_on_runaway_patterns(void **state)
{
    (void)state;
    struct pretok *p;
    struct pretok_call call = {0};
    struct cuts c = {0};
    char text[64];
    struct pretok_pattern one = {"(?:a|aa|aaa)+[bc]", 17};
    memset(text, 'a', sizeof text);
    c.text = text;
    assert_int_equal(pretok_open(&p, &one, 1, PRETOK_ENGINE_AUTO, "t", NULL), 0);
    assert_int_equal(pretok_split(p, &call, text, sizeof text, add_cut, &c), FATHOM_ELIMIT);
    pretok_call_free(&call);
    pretok_close(p);
    mem_free(c.ends);
}

static void survives_failing_memory(void **state)
{
    (void)state;
    for (int engine = PRETOK_ENGINE_AUTO; engine <= PRETOK_ENGINE_PCRE2; engine++) {
        for (long fail = 0;; fail++) {
            struct pretok *p;
            struct pretok_call call = {0};
            struct cuts c = {.text = "a b 12"};
            mem_fail_after(fail);
            fathom_err err =
                pretok_open(&p, family_patterns, 3, (enum pretok_engine)engine, "t", NULL);
            if (!err) err = pretok_split(p, &call, c.text, 6, add_cut, &c);
            bool hit = mem_fail_hit();
            mem_fail_after(-1);
            pretok_call_free(&call);
            pretok_close(p);
            mem_free(c.ends);
            /* PCRE2 does without JIT code when there is no memory for it */
            if (err) assert_int_equal(err, FATHOM_ENOMEM);
            if (!hit) assert_int_equal(err, FATHOM_OK);
            if (!hit) break;
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(cuts_as_the_patterns_say),
        cmocka_unit_test(scanner_agrees_on_vectors),
        cmocka_unit_test(scanner_agrees_on_random_text),
        cmocka_unit_test(scanner_agrees_on_all_short_texts),
        cmocka_unit_test(scanner_agrees_on_every_code_point),
        cmocka_unit_test(cuts_long_runs),
        cmocka_unit_test(uses_the_scanner_for_its_patterns_only),
        cmocka_unit_test(runs_other_patterns),
        cmocka_unit_test(refuses_bad_patterns),
        cmocka_unit_test(gives_up_on_runaway_patterns),
        cmocka_unit_test(survives_failing_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
