/* test_utf8.c - every code point, every pair of bytes, and every cut */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "base/utf8.h"

static bool is_scalar(int32_t cp)
{
    return cp >= 0 && cp <= 0x10ffff && !(cp >= 0xd800 && cp <= 0xdfff);
}

static void every_scalar_value_round_trips(void **state)
{
    (void)state;
    for (int32_t cp = 0; cp <= 0x10ffff; cp++) {
        if (!is_scalar(cp)) continue;
        char s[4];
        size_t n = utf8_encode(s, cp);
        size_t len = 0;
        if (utf8_next(s, n, &len) != cp || len != n || !utf8_valid(s, n)) fail_msg("U+%04X", cp);
        if (utf8_complete(s, n) != n) fail_msg("U+%04X is whole", cp);
        for (size_t cut = 1; cut < n; cut++) {
            if (utf8_next(s, cut, &len) != UTF8_SHORT || len != cut) fail_msg("U+%04X", cp);
            if (utf8_complete(s, cut) != 0) fail_msg("U+%04X cut at %zu", cp, cut);
        }
    }
}

/* All sequences of two bytes and all of three with a lead that allows it. Whatever decodes must be
 * what encoding gives back, so no overlong form, surrogate or value past U+10FFFF gets through. */
static void whatever_decodes_is_canonical(void **state)
{
    (void)state;
    for (uint32_t bits = 0; bits < 1u << 24; bits += (bits & 0xff0000) < 0xe00000 ? 0x100 : 1) {
        char s[4] = {(char)(bits >> 16), (char)(bits >> 8), (char)bits, (char)0x80};
        size_t len = 0;
        int32_t cp = utf8_next(s, 4, &len);
        if (cp < 0) {
            if (cp != UTF8_BAD || len < 1 || len > 3) fail_msg("%06x gives %d", bits, cp);
            continue;
        }
        char again[4];
        if (!is_scalar(cp) || utf8_encode(again, cp) != len || memcmp(s, again, len) != 0) {
            fail_msg("%06x gives U+%04X", bits, cp);
        }
    }
}

/* A walk over any bytes ends, covers them, and cuts ill-formed parts where Unicode says (a byte
 * that can start a character is never swallowed). */
static void ill_formed_parts_are_maximal(void **state)
{
    (void)state;
    static const struct {
        const char *bytes;
        size_t lens[6];
    } cases[] = {
        {"\x61\xf1\x80\x80\xe1", {1, 3, 1}},
        {"\xc2\x61", {1, 1}},
        {"\x80\xbf", {1, 1}},
        {"\xc0\x80", {1, 1}},
        {"\xe0\x9f\xbf", {1, 1, 1}},
        {"\xed\xa0\x80", {1, 1, 1}},
        {"\xf0\x8f\x80", {1, 1, 1}},
        {"\xf4\x90\x80", {1, 1, 1}},
        {"\xf5\x80", {1, 1}},
        {"\xff", {1}},
        {"\xe2\x82\x61", {2, 1}},
        {"\xf0\x9f\x98\xc3\xa9", {3, 2}},
    };
    for (size_t k = 0; k < sizeof cases / sizeof cases[0]; k++) {
        size_t n = strlen(cases[k].bytes);
        size_t i = 0;
        for (size_t part = 0; i < n; part++) {
            size_t len;
            (void)utf8_next(cases[k].bytes + i, n - i, &len);
            if (len != cases[k].lens[part]) fail_msg("case %zu part %zu: %zu", k, part, len);
            i += len;
        }
        assert_int_equal(i, n);
    }
}

static void an_unfinished_tail_is_cut_off_and_nothing_else(void **state)
{
    (void)state;
    assert_int_equal(utf8_complete("", 0), 0);
    assert_int_equal(utf8_complete("abc", 3), 3);
    assert_int_equal(utf8_complete("ab\xe2\x82", 4), 2);
    assert_int_equal(utf8_complete("ab\xe2\x82\xac", 5), 5);
    assert_int_equal(utf8_complete("ab\xf0\x9f\x98", 5), 2);
    assert_int_equal(utf8_complete("ab\x82\x82", 4), 4); /* no lead: never valid */
    assert_int_equal(utf8_complete("ab\xff", 3), 3);     /* no character starts so */
    assert_int_equal(utf8_complete("ab\xe0\x80", 4), 4); /* overlong: never valid */
    assert_int_equal(utf8_complete("\x80\x80\x80\x80", 4), 4);
    assert_true(utf8_valid("", 0));
    assert_false(utf8_valid("ab\xe2\x82", 4));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_scalar_value_round_trips),
        cmocka_unit_test(whatever_decodes_is_canonical),
        cmocka_unit_test(ill_formed_parts_are_maximal),
        cmocka_unit_test(an_unfinished_tail_is_cut_off_and_nothing_else),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
