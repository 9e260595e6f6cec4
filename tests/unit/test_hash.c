/* test_hash.c - the published vectors of SipHash-2-4-128, and what the checksum promises */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "base/hash.h"
#include "base/rng.h"

static void keyed_hashes_are_the_published_ones(void **state)
{
    (void)state;
    static const struct {
        size_t n;
        unsigned char out[16];
    } vectors[] = {
        {0,
         {0xa3, 0x81, 0x7f, 0x04, 0xba, 0x25, 0xa8, 0xe6, 0x6d, 0xf6, 0x72, 0x14, 0xc7, 0x55, 0x02,
          0x93}},
        {1,
         {0xda, 0x87, 0xc1, 0xd8, 0x6b, 0x99, 0xaf, 0x44, 0x34, 0x76, 0x59, 0x11, 0x9b, 0x22, 0xfc,
          0x45}},
        {8,
         {0x3b, 0x62, 0xa9, 0xba, 0x62, 0x58, 0xf5, 0x61, 0x0f, 0x83, 0xe2, 0x64, 0xf3, 0x14, 0x97,
          0xb4}},
        {15,
         {0x54, 0x93, 0xe9, 0x99, 0x33, 0xb0, 0xa8, 0x11, 0x7e, 0x08, 0xec, 0x0f, 0x97, 0xcf, 0xc3,
          0xd9}},
    };
    unsigned char bytes[64];
    struct hash128 key;
    for (size_t i = 0; i < sizeof bytes; i++) bytes[i] = (unsigned char)i;
    memcpy(&key, bytes, sizeof key);
    for (size_t i = 0; i < sizeof vectors / sizeof vectors[0]; i++) {
        struct hash128 out = hash_keyed(&key, bytes, vectors[i].n);
        assert_memory_equal(&out, vectors[i].out, sizeof out);
    }
}

static void a_keyed_hash_depends_on_its_key(void **state)
{
    (void)state;
    struct hash128 a = {1, 2}, b = {1, 3}, c = {0, 2};
    struct hash128 ha = hash_keyed(&a, "fathom", 6), hb = hash_keyed(&b, "fathom", 6);
    struct hash128 hc = hash_keyed(&c, "fathom", 6);
    assert_false(hash128_equal(&ha, &hb));
    assert_false(hash128_equal(&ha, &hc));
    assert_true(hash128_equal(&ha, &ha));
}

static void no_flipped_bit_keeps_a_checksum(void **state)
{
    (void)state;
    unsigned char bytes[200];
    uint64_t rng = 1;
    for (size_t i = 0; i < sizeof bytes; i++) bytes[i] = (unsigned char)rng_next(&rng);
    static const size_t sizes[] = {1, 7, 8, 63, 64, 65, 128, 200};
    for (size_t k = 0; k < sizeof sizes / sizeof sizes[0]; k++) {
        uint64_t sum = hash_checksum(bytes, sizes[k]);
        for (size_t bit = 0; bit < sizes[k] * 8; bit++) {
            bytes[bit / 8] ^= (unsigned char)(1u << bit % 8);
            assert_int_not_equal(hash_checksum(bytes, sizes[k]), sum);
            bytes[bit / 8] ^= (unsigned char)(1u << bit % 8);
        }
        assert_int_equal(hash_checksum(bytes, sizes[k]), sum);
    }
}

static void a_checksum_knows_order_and_length(void **state)
{
    (void)state;
    unsigned char bytes[256] = {0};
    uint64_t zeros[5];
    for (size_t i = 0; i < 5; i++) zeros[i] = hash_checksum(bytes, i * 64);
    for (size_t i = 0; i < 5; i++) {
        for (size_t k = 0; k < i; k++) assert_int_not_equal(zeros[i], zeros[k]);
    }
    assert_int_not_equal(hash_checksum(bytes, 63), hash_checksum(bytes, 64));
    bytes[3] = 1;
    uint64_t first = hash_checksum(bytes, sizeof bytes);
    bytes[3] = 0;
    bytes[67] = 1; /* the same word of the next group */
    assert_int_not_equal(hash_checksum(bytes, sizeof bytes), first);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(keyed_hashes_are_the_published_ones),
        cmocka_unit_test(a_keyed_hash_depends_on_its_key),
        cmocka_unit_test(no_flipped_bit_keeps_a_checksum),
        cmocka_unit_test(a_checksum_knows_order_and_length),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
