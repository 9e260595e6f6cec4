/* test_pretok_pattern.c - patterns in PCRE2's terms, and what is refused */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include "base/utf8.h"
#include "support/tokenizer_data.h"
#include "tokenizer/pretok_pattern.h"
#include "tokenizer/unicode.h"

#define SPACE                                                                                      \
    "\\t-\\r \\x{85}\\x{a0}\\x{1680}\\x{2000}-\\x{200a}\\x{2028}\\x{2029}\\x{202f}\\x{205f}"       \
    "\\x{3000}"

static void expect_refusal(const char *pattern, size_t n, const char *message)
{
    struct buf out = {0};
    fathom_diag d = {""};
    fathom_err err = pattern_translate(&out, pattern, n, "t.json", &d);
    if (err != FATHOM_EUNSUPPORTED || !strstr(d.text, message)) {
        print_error("%s: %s \"%s\", wanted \"%s\"\n", pattern, fathom_err_name(err), d.text,
                    message);
    }
    assert_int_equal(err, FATHOM_EUNSUPPORTED);
    assert_non_null(strstr(d.text, message));
    assert_non_null(strstr(d.text, "t.json: "));
    buf_free(&out);
}

static void translates(void **state)
{
    (void)state;
    static const char *const pairs[][2] = {
        {"", ""},
        {"abc 中|x*+?.^$", "abc 中|x*+?.^$"},
        {"[a-z]+?", "[a-z]+?"},
        {"\\n\\t\\-\\\\\\/", "\\n\\t\\-\\\\\\/"},
        {"\\s+(?!\\S)", "[" SPACE "]+(?![\\x{0}-\\x{8}..."},
        {"[\\s]", "[" SPACE "]"},
        {"[^\\s-]", "[^" SPACE "-]"},
        {"[-\\s]", "[-" SPACE "]"},
        {"[\\-\\s]", "[\\-" SPACE "]"},
        {"\\p{Zs}", "[\\p{Zs}]"},
        {"\\P{Zs}", "[^\\p{Zs}]"},
        {"\\p{^Zs}", "[^\\p{Zs}]"},
        {"[^\\p{Nl}x]", "[^\\p{Nl}x]"},
        {"\\d", "[\\p{Nd}\\x{10d40}-\\x{10d49}..."},
        {"\\D", "[^\\p{Nd}\\x{10d40}-\\x{10d49}..."},
        {"\\x{4e00}\\u4E01", "\\x{4e00}\\x{4E01}"},
        {"(?i:'s|'t)(?:a)(?=b)(?!c)(?<=d)(?<!e)(?>f)(g)",
         "(?i:'s|'t)(?:a)(?=b)(?!c)(?<=d)(?<!e)(?>f)(g)"},
        {"x{1,3}y{2}z{3,}", "x{1,3}y{2}z{3,}"},
        {"\\A.\\z", "\\A.\\z"},
    };
    for (size_t i = 0; i < sizeof pairs / sizeof pairs[0]; i++) {
        struct buf out = {0};
        fathom_diag d = {""};
        fathom_err err = pattern_translate(&out, pairs[i][0], strlen(pairs[i][0]), "t", &d);
        if (err) print_error("%s: %s\n", pairs[i][0], d.text);
        assert_int_equal(err, 0);
        const char *dots = strstr(pairs[i][1], "..."); /* the start is enough */
        if (dots) {
            assert_memory_equal(out.data, pairs[i][1], (size_t)(dots - pairs[i][1]));
        } else {
            assert_string_equal(buf_str(&out), pairs[i][1]);
        }
        buf_free(&out);
    }
}

static void refuses_what_engines_read_differently(void **state)
{
    (void)state;
    static const char *const cases[][2] = {
        {"\\w+", "\\w"},
        {"a\\b", "\\b"},
        {"\\h", "\\h"},
        {"\\R", "\\R"},
        {"\\K", "\\K"},
        {"\\1", "\\1"},
        {"\\Qx\\E", "\\Q"},
        {"\\v", "\\v"},
        {"x\\", "a backslash without a character at byte 1"},
        {"\\\xc3\xa9", "\\?"},
        {"[\\A]", "\\A"},
        {"\\pL", "a property without braces"},
        {"\\p{L", "a property without braces"},
        {"\\p", "a property without braces"},
        {"\\p{Han}", "a property that is not one of the general categories"},
        {"\\p{C}", "a property that is not one"},
        {"\\p{Cn}", "a property that is not one"},
        {"\\p{}", "a property that is not one"},
        {"[\\P{L}]", "a negated property inside a class"},
        {"[\\p{^L}]", "a negated property inside a class"},
        {"[\\D]", "\\D inside a class"},
        {"[a-\\s]", "a set as the end of a range"},
        {"[\\s-a]", "a set as the end of a range"},
        {"[a-\\p{L}]", "a set as the end of a range"},
        {"[[:alpha:]]", "a class inside a class"},
        {"[a&&b]", "an intersection of classes"},
        {"[]a]", "a class that begins with ]"},
        {"[^]a]", "a class that begins with ]"},
        {"[abc", "a class without its end"},
        {"[", "a class without its end"},
        {"(?<name>a)", "a group other than"},
        {"(?m:a)", "a group other than"},
        {"(*ACCEPT)", "a group other than"},
        {"x{,3}", "a repeat without a lower bound"},
        {"x{2}+", "a repeat of a repeat"},
        {"\\x41", "\\x without braces"},
        {"\\x{}", "\\x{} without one to six"},
        {"\\x{1234567}", "\\x{} without one to six"},
        {"\\x{41", "\\x{} without one to six"},
        {"\\u12", "\\x without braces"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        expect_refusal(cases[i][0], strlen(cases[i][0]), cases[i][1]);
    }
    expect_refusal("a\\\0b", 4, "\\");
}

/* ---- over every code point --------------------------------------------------------------- */

struct runs {
    const char *category; /* "s" for white space */
    bool member;          /* of the last piece */
    bool first;
};

/* White_Space: what \s means. U+0085 is one; U+180E and U+FEFF are not. */
static bool is_space(int32_t cp)
{
    return (cp >= 0x09 && cp <= 0x0d) || cp == 0x85 || unicode_group(cp) == UNICODE_Z;
}

static bool belongs(const char *category, int32_t cp)
{
    static const char groups[] = "LMNPSZC";
    if (*category == 's') return is_space(cp);
    return groups[unicode_group(cp)] == *category;
}

/* Pieces are wholly in or wholly out of the category, and take turns. */
static fathom_err check_run(void *arg, const char *s, size_t n)
{
    struct runs *r = arg;
    size_t len;
    bool member = belongs(r->category, utf8_next(s, n, &len));
    assert_true(r->first || member != r->member);
    for (size_t i = 0; i < n; i += len) {
        int32_t cp = utf8_next(s + i, n - i, &len);
        if (belongs(r->category, cp) != member) print_error("U+%04X in %s\n", cp, r->category);
        assert_int_equal(belongs(r->category, cp), member);
    }
    r->member = member;
    r->first = false;
    return FATHOM_OK;
}

static void check_category(const char *pattern, const char *category, const struct buf *all)
{
    struct pretok *p;
    struct pretok_call call = {0};
    struct runs runs = {.category = category, .first = true};
    struct pretok_pattern one = {pattern, strlen(pattern)};
    assert_int_equal(pretok_open(&p, &one, 1, PRETOK_ENGINE_PCRE2, "t", NULL), 0);
    assert_int_equal(pretok_split(p, &call, all->data, all->len, check_run, &runs), 0);
    pretok_call_free(&call);
    pretok_close(p);
}

static void gives_unicode_16_for_every_code_point(void **state)
{
    (void)state;
    char version[32] = "";
    (void)pcre2_config(PCRE2_CONFIG_UNICODE_VERSION, version);
    if (version[0] != '1' || version[1] < '4' || version[1] > '6') {
        print_message("skipped: this PCRE2 has Unicode %s, the tables join 14.0 to 16.0\n",
                      version);
        skip();
    }
    struct buf all = {0};
    for (int32_t cp = 0; cp < 0x110000; cp++) {
        char utf8[4];
        if (cp >= 0xd800 && cp <= 0xdfff) continue;
        assert_int_equal(buf_add(&all, utf8, utf8_encode(utf8, cp)), 0);
    }
    static const char *const cases[][2] = {
        {"\\p{L}+", "L"},
        {"\\p{M}+", "M"},
        {"\\p{N}+", "N"},
        {"\\p{P}+", "P"},
        {"\\p{S}+", "S"},
        {"\\p{Z}+", "Z"},
        {"[\\p{Lu}\\p{Ll}\\p{Lt}\\p{Lm}\\p{Lo}]+", "L"},
        {"[\\p{Mn}\\p{Mc}\\p{Me}]+", "M"},
        {"[\\p{Nd}\\p{Nl}\\p{No}]+", "N"},
        {"[\\p{Pc}\\p{Pd}\\p{Ps}\\p{Pe}\\p{Pi}\\p{Pf}\\p{Po}]+", "P"},
        {"[\\p{Sm}\\p{Sc}\\p{Sk}\\p{So}]+", "S"},
        {"\\P{L}+", "L"},
        {"[^\\p{S}]+", "S"},
        {"\\s+", "s"},
        {"\\S+", "s"},
        {"[\\S]+", "s"},
        {"[^\\s]+", "s"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        check_category(cases[i][0], cases[i][1], &all);
    }
    buf_free(&all);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(translates),
        cmocka_unit_test(refuses_what_engines_read_differently),
        cmocka_unit_test(gives_unicode_16_for_every_code_point),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
