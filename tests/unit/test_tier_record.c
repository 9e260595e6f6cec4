/* test_tier_record.c - a record is taken when every part of it is right, and refused for the
 * reason that it is not */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "kv/tier_record.h"

enum { PAGE = 1000 };

static const struct hash128 owner = {11, 12};
static unsigned char page[PAGE];
static struct tier_name name;
static struct tier_header header;

static int fill(void **state)
{
    (void)state;
    for (size_t i = 0; i < PAGE; i++) page[i] = (unsigned char)(i * 31);
    name = (struct tier_name){.key = {5, 6}, .n_id = KV_PAGE_TOKENS};
    for (int i = 0; i < KV_PAGE_TOKENS; i++) name.ids[i] = 100 + i;
    tier_header_fill(&header, &owner, PAGE, 7, &name, hash_checksum(page, PAGE));
    return 0;
}

static enum tier_verdict judge(void)
{
    return tier_record_judge(&header, &owner, PAGE, &name, page);
}

static void a_whole_record_is_taken(void **state)
{
    (void)state;
    assert_int_equal(judge(), TIER_GOOD);
    assert_int_equal(header.order, 7);
}

static void no_flipped_bit_of_the_page_is_taken(void **state)
{
    (void)state;
    for (size_t bit = 0; bit < PAGE * 8; bit += 13) {
        page[bit / 8] ^= (unsigned char)(1u << bit % 8);
        assert_int_equal(judge(), TIER_BAD_CHECKSUM);
        page[bit / 8] ^= (unsigned char)(1u << bit % 8);
    }
}

static void no_flipped_bit_of_the_header_is_taken(void **state)
{
    (void)state;
    unsigned char *bytes = (unsigned char *)&header;
    for (size_t bit = 0; bit < sizeof header * 8; bit++) {
        bytes[bit / 8] ^= (unsigned char)(1u << bit % 8);
        assert_int_not_equal(judge(), TIER_GOOD);
        assert_int_not_equal(tier_header_judge(&header, &owner, PAGE), TIER_GOOD);
        bytes[bit / 8] ^= (unsigned char)(1u << bit % 8);
    }
    assert_int_equal(judge(), TIER_GOOD);
}

static void others_are_told_apart(void **state)
{
    (void)state;
    const struct hash128 other = {11, 13};
    assert_int_equal(tier_record_judge(&header, &other, PAGE, &name, page), TIER_BAD_MODEL);
    assert_int_equal(tier_record_judge(&header, &owner, PAGE - 8, &name, page), TIER_BAD_MODEL);
    struct tier_name asked = name;
    asked.ids[63]++;
    assert_int_equal(tier_record_judge(&header, &owner, PAGE, &asked, page), TIER_BAD_TOKENS);
    asked = name;
    asked.key.hi++;
    assert_int_equal(tier_record_judge(&header, &owner, PAGE, &asked, page), TIER_BAD_TOKENS);
    asked = name;
    asked.n_id++;
    assert_int_equal(tier_record_judge(&header, &owner, PAGE, &asked, page), TIER_BAD_TOKENS);
    header.format++;
    assert_int_equal(judge(), TIER_BAD_VERSION);
    header.format--;
    header.layout++;
    assert_int_equal(judge(), TIER_BAD_VERSION);
    memset(&header, 0, sizeof header);
    assert_int_equal(judge(), TIER_BAD_CHECKSUM);
}

static void an_index_says_whose_it_is(void **state)
{
    (void)state;
    const struct identity id = {.model = {{1}}, .numerics = {{2}}, .layout = {{3}}};
    const struct hash128 secret = {3, 4};
    struct tier_super s;
    struct identity other = id;
    tier_super_fill(&s, &id, PAGE, &secret);
    assert_true(tier_super_is_ours(&s));
    assert_int_equal(tier_super_judge(&s, &id, PAGE), TIER_GOOD);
    assert_int_equal(tier_super_judge(&s, &id, PAGE + 1), TIER_BAD_LAYOUT);
    other.layout.bytes[31]++;
    assert_int_equal(tier_super_judge(&s, &other, PAGE), TIER_BAD_LAYOUT);
    other.numerics.bytes[31]++;
    assert_int_equal(tier_super_judge(&s, &other, PAGE), TIER_BAD_NUMERICS);
    other.model.bytes[31]++;
    assert_int_equal(tier_super_judge(&s, &other, PAGE), TIER_BAD_MODEL);
    s.secret.lo++;
    assert_int_equal(tier_super_judge(&s, &id, PAGE), TIER_BAD_CHECKSUM);
    s.format--; /* an older version's records */
    assert_int_equal(tier_super_judge(&s, &id, PAGE), TIER_BAD_VERSION);
    s.magic++;
    assert_false(tier_super_is_ours(&s));
}

/* Every part counts for the key that a record's header has. */
static void a_records_owner_is_all_of_the_identity(void **state)
{
    (void)state;
    const struct identity id = {.model = {{1}}, .numerics = {{2}}, .layout = {{3}}};
    const struct hash128 key = identity_key(&id);
    for (size_t i = 0; i < sizeof id; i++) {
        struct identity other = id;
        ((unsigned char *)&other)[i] ^= 1;
        const struct hash128 changed = identity_key(&other);
        assert_false(hash128_equal(&key, &changed));
        assert_int_not_equal(identity_compare(&id, &other), IDENTITY_EQUAL);
    }
}

static void keys_depend_on_all_that_came_before(void **state)
{
    (void)state;
    const struct hash128 secret = {3, 4}, other = {3, 5};
    struct hash128 a = tier_key_first(&secret, 0), b = tier_key_first(&secret, 1);
    struct hash128 c = tier_key_first(&other, 0);
    assert_false(hash128_equal(&a, &b));
    assert_false(hash128_equal(&a, &c));
    struct hash128 a1 = tier_key_next(&secret, &a, name.ids, 64, 0);
    struct hash128 b1 = tier_key_next(&secret, &b, name.ids, 64, 0);
    struct hash128 longer = tier_key_next(&secret, &a, name.ids, 65, 0);
    assert_false(hash128_equal(&a1, &b1));
    assert_false(hash128_equal(&a1, &longer));
    struct hash128 answer = tier_key_next(&secret, &a, name.ids, 64, 1);
    struct hash128 earlier = tier_key_next(&secret, &a, name.ids, 64, 2);
    assert_false(hash128_equal(&a1, &answer));
    assert_false(hash128_equal(&answer, &earlier));
    name.ids[0]++;
    struct hash128 a2 = tier_key_next(&secret, &a, name.ids, 64, 0);
    assert_false(hash128_equal(&a1, &a2));
}

static void reasons_have_names(void **state)
{
    (void)state;
    for (int v = 0; v < TIER_VERDICT_COUNT; v++) {
        assert_true(strlen(tier_verdict_name((enum tier_verdict)v)) > 1);
    }
    assert_string_equal(tier_verdict_name(TIER_BAD_CHECKSUM), "checksum");
    assert_non_null(strstr(tier_verdict_advice(TIER_BAD_MODEL), "other weights"));
    assert_non_null(strstr(tier_verdict_advice(TIER_BAD_NUMERICS), "precision"));
    assert_non_null(strstr(tier_verdict_advice(TIER_BAD_LAYOUT), "cache type"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(a_whole_record_is_taken, fill),
        cmocka_unit_test_setup(no_flipped_bit_of_the_page_is_taken, fill),
        cmocka_unit_test_setup(no_flipped_bit_of_the_header_is_taken, fill),
        cmocka_unit_test_setup(others_are_told_apart, fill),
        cmocka_unit_test_setup(an_index_says_whose_it_is, fill),
        cmocka_unit_test(a_records_owner_is_all_of_the_identity),
        cmocka_unit_test_setup(keys_depend_on_all_that_came_before, fill),
        cmocka_unit_test(reasons_have_names),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
