/* test_sha256.c - the published vectors, and parts that cannot be moved */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "base/sha256.h"

static void expect(const char *text, const char *hex)
{
    const struct sha256 h = sha256_of(text, strlen(text));
    char got[65];
    for (size_t i = 0; i < 32; i++) (void)snprintf(got + 2 * i, 3, "%02x", h.bytes[i]);
    assert_string_equal(got, hex);
}

/* FIPS 180-4, and its example of 448 bits. */
static void published_vectors_hold(void **state)
{
    (void)state;
    expect("", "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
    expect("abc", "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
    expect("abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq",
           "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
}

static void parts_count_by_their_borders(void **state)
{
    (void)state;
    struct sha256 a = {{0}}, b = {{0}}, c = {{0}};
    sha256_absorb_text(&a, "ab");
    sha256_absorb_text(&a, "c");
    sha256_absorb_text(&b, "a");
    sha256_absorb_text(&b, "bc");
    sha256_absorb_text(&c, "ab");
    assert_false(sha256_equal(&a, &b));
    assert_false(sha256_equal(&a, &c));
    sha256_absorb_text(&c, "c");
    assert_true(sha256_equal(&a, &c));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(published_vectors_hold),
        cmocka_unit_test(parts_count_by_their_borders),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
