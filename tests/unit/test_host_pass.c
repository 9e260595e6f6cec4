/* test_host_pass.c - what is written is read; what was changed is not */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "base/host_pass.h"

static const uint64_t key[2] = {0xfedcba9876543210u, 7};

static void each_byte_counts(void **state)
{
    char text[HOST_PASS_BYTES], changed[HOST_PASS_BYTES];
    uint32_t host = 0;
    (void)state;
    host_pass_write(text, 63, key);
    assert_string_equal(text, "63-fedcba98765432100000000000000007");
    assert_true(host_pass_read(&host, text, 64, key));
    assert_int_equal(host, 63);
    for (size_t i = 0; i < strlen(text); i++) {
        memcpy(changed, text, sizeof changed);
        changed[i] = changed[i] == '1' ? '2' : '1';
        if (i > 1) assert_false(host_pass_read(&host, changed, 64, key)); /* no other host */
        changed[i] = '\0';
        assert_false(host_pass_read(&host, changed, 64, key));
    }
}

static void what_is_no_other_host_is_none(void **state)
{
    static const char *const texts[] = {
        NULL,
        "",
        "-",
        "1",
        "0-fedcba98765432100000000000000007",
        "2-fedcba98765432100000000000000007",
        "01-fedcba98765432100000000000000007",
        "4294967297-fedcba98765432100000000000000007",
        " 1-fedcba98765432100000000000000007",
        "1-FEDCBA98765432100000000000000007",
        "1-fedcba987654321000000000000000070",
    };
    uint32_t host = 9;
    (void)state;
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++)
        assert_false(host_pass_read(&host, texts[i], 2, key));
    assert_int_equal(host, 9);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(each_byte_counts),
                                       cmocka_unit_test(what_is_no_other_host_is_none)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
