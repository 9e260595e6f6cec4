/* test_unicode.c - groups and categories of code points */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "base/mem.h"
#include "tokenizer/unicode.h"

enum { N_CODE_POINT = 0x110000 };

static void knows_groups(void **state)
{
    (void)state;
    static const struct {
        int32_t cp;
        enum unicode_group group;
    } known[] = {
        {'a', UNICODE_L},     {'0', UNICODE_N},     {' ', UNICODE_Z},     {'_', UNICODE_P},
        {'$', UNICODE_S},     {'\n', UNICODE_C},    {0x301, UNICODE_M},   {0x3007, UNICODE_N},
        {0x4e2d, UNICODE_L},  {0x200d, UNICODE_C},  {0xd800, UNICODE_C},  {0xe000, UNICODE_C},
        {0x1f600, UNICODE_S}, {0x323af, UNICODE_L}, {0x323b0, UNICODE_C}, /* a letter in 17.0 */
        {0x1c89, UNICODE_L},  {0x1ccf0, UNICODE_N}, {0xa7cb, UNICODE_L},  {0x10ffff, UNICODE_C},
        {0, UNICODE_C},       {0x1171e, UNICODE_M}, {0x2ebf0, UNICODE_L}, {0x378, UNICODE_C},
    };
    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++) {
        assert_int_equal(unicode_group(known[i].cp), known[i].group);
    }
}

static void counts_as_published(void **state)
{
    (void)state;
    /* code points of each group in Unicode 16.0 */
    static const int want[] = {[UNICODE_L] = 141028, [UNICODE_M] = 2501, [UNICODE_N] = 1911,
                               [UNICODE_P] = 855,    [UNICODE_S] = 8514, [UNICODE_Z] = 19};
    int count[UNICODE_C + 1] = {0};
    unsigned char *groups = mem_alloc(N_CODE_POINT);
    assert_non_null(groups);
    memset(groups, 0xff, N_CODE_POINT);
    unicode_fill_groups(groups, N_CODE_POINT);
    for (int32_t cp = 0; cp < N_CODE_POINT; cp++) {
        assert_int_equal(groups[cp], unicode_group(cp));
        count[groups[cp]]++;
    }
    for (int g = UNICODE_L; g < UNICODE_C; g++) assert_int_equal(count[g], want[g]);
    mem_free(groups);
}

static void fills_no_more_than_asked(void **state)
{
    (void)state;
    unsigned char groups[102];
    memset(groups, 0xff, sizeof groups);
    unicode_fill_groups(groups, 101);
    assert_int_equal(groups[100], UNICODE_L);
    assert_int_equal(groups[101], 0xff);
}

static void lists_newer_code_points(void **state)
{
    (void)state;
    struct buf b = {0};
    assert_int_equal(unicode_add_newer(&b, "Nl", 2), 0);
    assert_int_equal(b.len, 0); /* no letter number came */
    assert_int_equal(unicode_add_newer(&b, "Lu", 2), 0);
    assert_non_null(strstr(buf_str(&b), "\\x{a7cb}-\\x{a7cc}"));
    assert_null(strstr(buf_str(&b), "\\x{323af}"));
    buf_clear(&b);
    assert_int_equal(unicode_add_newer(&b, "L", 1), 0);
    assert_non_null(strstr(buf_str(&b), "\\x{31350}-\\x{323af}"));
    buf_free(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(knows_groups),
        cmocka_unit_test(counts_as_published),
        cmocka_unit_test(fills_no_more_than_asked),
        cmocka_unit_test(lists_newer_code_points),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
