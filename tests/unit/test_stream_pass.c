/* test_stream_pass.c - what is written is read; what was changed, or comes from afar, is not */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "base/stream_pass.h"

static const struct stream_pass pass = {true, 0xfedcba9876543210u, 1763800000};

static void without_a_secret_it_holds_on_one_machine(void **state)
{
    (void)state;
    const struct pool_secret none = {0};
    char text[STREAM_PASS_BYTES];
    struct stream_pass p;
    stream_pass_write(text, &pass, &none);
    assert_string_equal(text, "fedcba9876543210-1763800000");
    assert_true(stream_pass_read(&p, text, &none, true));
    assert_true(p.is_on && p.nonce == pass.nonce && p.created == pass.created);
    assert_false(stream_pass_read(&p, text, &none, false));
    assert_false(p.is_on);
}

static void with_a_secret_each_byte_counts(void **state)
{
    (void)state;
    struct pool_secret s, other;
    const struct pool_secret none = {0};
    char text[STREAM_PASS_BYTES];
    struct stream_pass p;
    pool_secret_set(&s, "secret\n", 7);
    pool_secret_set(&other, "secret2", 7);
    stream_pass_write(text, &pass, &s);
    assert_true(stream_pass_read(&p, text, &s, false));
    assert_true(p.nonce == pass.nonce);
    assert_false(stream_pass_read(&p, text, &other, true));
    assert_false(stream_pass_read(&p, text, &none, true));
    for (size_t i = 0; i < strlen(text); i++) {
        char changed[STREAM_PASS_BYTES];
        memcpy(changed, text, sizeof changed);
        changed[i] = changed[i] == '1' ? '2' : '1';
        assert_false(stream_pass_read(&p, changed, &s, true));
        memcpy(changed, text, sizeof changed);
        changed[i] = '\0';
        assert_false(stream_pass_read(&p, changed, &s, true));
    }
}

static void what_is_no_pass_is_none(void **state)
{
    (void)state;
    static const char *const texts[] = {
        "",
        "fedcba9876543210",
        "fedcba9876543210-",
        "fedcba987654321-1763800000",
        "fedcba98765432100-1763800000",
        "FEDCBA9876543210-1763800000",
        "fedcba9876543210-1763800000 ",
        "fedcba9876543210-1763800000-",
        "fedcba9876543210-99999999999999999999",
        "fedcba9876543210-000000000000000000000000000000000000000000000000000000000000000001",
    };
    const struct pool_secret none = {0};
    struct stream_pass p;
    assert_false(stream_pass_read(&p, NULL, &none, true));
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++) {
        if (stream_pass_read(&p, texts[i], &none, true)) fail_msg("\"%s\" is taken", texts[i]);
        assert_false(p.is_on);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(without_a_secret_it_holds_on_one_machine),
        cmocka_unit_test(with_a_secret_each_byte_counts),
        cmocka_unit_test(what_is_no_pass_is_none),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
