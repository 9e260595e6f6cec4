/* test_engine_identity.c - what tells the pages of two engines apart */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "checkpoint/checkpoint.h"
#include "engine/engine_identity.h"

static const char *config = "{}";

static struct identity of(struct identity_source s, enum kv_type type, uint32_t n_layer)
{
    struct checkpoint *c = NULL;
    struct kv_layout layout;
    struct identity id;
    const fathom_bundle_file file = {
        .name = "config.json", .data = (const unsigned char *)config, .size = strlen(config)};
    const fathom_bundle bundle = {.name = "test", .files = &file, .n_file = 1};
    assert_int_equal(checkpoint_open_files(&c, NULL, &bundle, NULL), FATHOM_OK);
    kv_layout_init(&layout, type, n_layer, true);
    s.checkpoint = c;
    s.layout = &layout;
    if (!s.numerics) s.numerics = "x";
    identify(&id, &s);
    checkpoint_close(c);
    return id;
}

static void each_part_has_what_it_is_made_of(void **state)
{
    (void)state;
    const struct identity_source s = {.parallel = parallel_one()};
    const struct identity plain = of(s, KV_TYPE_BF16, 4);
    struct identity other = of(s, KV_TYPE_BF16, 4);
    assert_int_equal(identity_compare(&plain, &other), IDENTITY_EQUAL);

    struct identity_source t = s;
    t.weights.bytes[31] = 1;
    other = of(t, KV_TYPE_BF16, 4);
    assert_int_equal(identity_compare(&plain, &other), IDENTITY_MODEL);
    t = s;
    t.dummy = true;
    other = of(t, KV_TYPE_BF16, 4);
    assert_int_equal(identity_compare(&plain, &other), IDENTITY_MODEL);
    config = "{ }";
    other = of(s, KV_TYPE_BF16, 4);
    config = "{}";
    assert_int_equal(identity_compare(&plain, &other), IDENTITY_MODEL);

    t = s;
    t.numerics = "y";
    other = of(t, KV_TYPE_BF16, 4);
    assert_int_equal(identity_compare(&plain, &other), IDENTITY_NUMERICS);
    t = s;
    t.prompt_form = true;
    other = of(t, KV_TYPE_BF16, 4);
    assert_int_equal(identity_compare(&plain, &other), IDENTITY_NUMERICS);
}

/* Experts by rank change the sums; which of these ranks made a page does not matter. */
static void ranks_with_whole_experts_share_pages(void **state)
{
    (void)state;
    struct identity_source s = {.parallel = parallel_one()};
    const struct identity plain = of(s, KV_TYPE_BF16, 4);
    s.parallel.dp = (struct axis){.rank = 0, .size = 4};
    s.parallel.experts_whole = true;
    const struct identity first = of(s, KV_TYPE_BF16, 4);
    assert_int_equal(identity_compare(&plain, &first), IDENTITY_NUMERICS);
    s.parallel.dp.rank = 3;
    struct identity other = of(s, KV_TYPE_BF16, 4);
    assert_int_equal(identity_compare(&first, &other), IDENTITY_EQUAL);
    s.parallel.dp = (struct axis){.rank = 0, .size = 2};
    other = of(s, KV_TYPE_BF16, 4);
    assert_int_equal(identity_compare(&first, &other), IDENTITY_NUMERICS);
}

static void layout_is_type_layers_and_ranks(void **state)
{
    (void)state;
    struct identity_source s = {.parallel = parallel_one()};
    const struct identity plain = of(s, KV_TYPE_BF16, 4);
    struct identity other = of(s, KV_TYPE_FP8, 4);
    assert_int_equal(identity_compare(&plain, &other), IDENTITY_LAYOUT);
    other = of(s, KV_TYPE_BF16, 5);
    assert_int_equal(identity_compare(&plain, &other), IDENTITY_LAYOUT);
    s.parallel.tp.size = 2;
    const struct identity first = of(s, KV_TYPE_BF16, 4);
    assert_int_equal(identity_compare(&plain, &first), IDENTITY_LAYOUT);
    s.parallel.tp.rank = 1;
    other = of(s, KV_TYPE_BF16, 4);
    assert_int_equal(identity_compare(&first, &other), IDENTITY_LAYOUT);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_part_has_what_it_is_made_of),
        cmocka_unit_test(ranks_with_whole_experts_share_pages),
        cmocka_unit_test(layout_is_type_layers_and_ranks),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
