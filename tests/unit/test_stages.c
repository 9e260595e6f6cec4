/* test_stages.c - the list of layers in runs: every layer and every weight is in one of them */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "checkpoint/checkpoint.h"
#include "model/config.h"
#include "model/stages.h"
#include "model/weights.h"
#include "model/weights_int.h"

static struct checkpoint *pilot;
static struct model_config config;

static int open_pilot(void **state)
{
    (void)state;
    if (checkpoint_open(&pilot, FATHOM_SOURCE_DIR "/models/pilot", NULL) != FATHOM_OK) return -1;
    return model_config_load(&config, pilot, NULL) == FATHOM_OK ? 0 : -1;
}

static int close_pilot(void **state)
{
    (void)state;
    checkpoint_close(pilot);
    return 0;
}

static struct parallel cut(uint32_t n_stage, bool with_mtp)
{
    struct parallel p = parallel_one();
    fathom_diag d = {{0}};
    if (stages_cut(&p, &config, with_mtp, n_stage, &d) != FATHOM_OK) fail_msg("%s", d.text);
    return p;
}

static void stages_have_all_layers_in_order(void **state)
{
    (void)state;
    for (uint32_t n = 1; n <= config.n_layer; n++) {
        struct parallel p = cut(n, n % 2);
        uint32_t end = 0;
        assert_int_equal(parallel_n_rank(&p), n);
        for (uint32_t i = 0; i < n; i++) {
            parallel_be(&p, i);
            const struct layer_run run = parallel_layers(&p, config.n_layer);
            assert_int_equal(run.first, end);
            assert_true(run.end > run.first);
            assert_int_equal(parallel_is_first(&p), i == 0);
            assert_int_equal(parallel_is_last(&p), i + 1 == n);
            end = run.end;
        }
        assert_int_equal(end, config.n_layer);
    }
}

static uint64_t n_parameter(const struct parallel *p)
{
    struct weight_sizes sizes;
    weights_measure(&sizes, &config, pilot, p);
    return sizes.total.n_parameter;
}

/* No other cut in two has a smaller larger part. */
static void the_largest_stage_is_as_small_as_it_can_be(void **state)
{
    (void)state;
    struct parallel p = cut(2, true);
    uint64_t most = 0;
    for (p.pp.rank = 0; p.pp.rank < 2; p.pp.rank++) {
        const uint64_t n = n_parameter(&p);
        if (n > most) most = n;
    }
    for (uint16_t first = 1; first < config.n_layer; first++) {
        struct parallel other = p;
        uint64_t most_other = 0;
        other.layer_ends[0] = first;
        for (other.pp.rank = 0; other.pp.rank < 2; other.pp.rank++) {
            const uint64_t n = n_parameter(&other);
            if (n > most_other) most_other = n;
        }
        assert_true(most <= most_other);
    }
}

struct holders {
    struct parallel *p;
    uint32_t n_embed;
};

static fathom_err count_holders(void *arg, const struct weight_need *need)
{
    struct holders *h = arg;
    uint32_t n = 0;
    for (uint32_t r = 0; r < parallel_n_rank(h->p); r++) {
        parallel_be(h->p, r);
        n += weights_is_held(need, &config, h->p);
    }
    if (need->kind == WEIGHT_EMBED)
        h->n_embed = n;
    else
        assert_int_equal(n, parallel_n_peer(h->p)); /* one stage, all of its ranks */
    return FATHOM_OK;
}

static void every_weight_is_one_stages(void **state)
{
    (void)state;
    for (uint32_t n = 2; n <= 4; n++) {
        struct parallel p = cut(n, false);
        p.tp.size = 2;
        struct holders h = {.p = &p};
        assert_int_equal(weights_walk(&config, config.n_mtp, count_holders, &h), FATHOM_OK);
        assert_int_equal(h.n_embed, 4); /* the first stage and, for the draft layer, the last */
    }
}

static void parts_of_a_record_are_the_record(void **state)
{
    (void)state;
    for (uint32_t n = 2; n <= 4; n++) {
        struct parallel p = cut(n, true);
        struct kv_layout whole, part;
        uint64_t page_bytes = 0;
        uint32_t n_layer = 0;
        const struct parallel one = parallel_one();
        stages_layout(&whole, &config, KV_TYPE_BF16, true, &one);
        for (p.pp.rank = 0; p.pp.rank < n; p.pp.rank++) {
            stages_layout(&part, &config, KV_TYPE_BF16, true, &p);
            assert_int_equal(stages_record_offset(&config, KV_TYPE_BF16, true, &p), page_bytes);
            assert_int_equal(part.layer_bytes, whole.layer_bytes);
            page_bytes += part.page_bytes;
            n_layer += part.n_layer;
        }
        assert_int_equal(page_bytes, whole.page_bytes);
        assert_int_equal(stages_record_offset(&config, KV_TYPE_BF16, true, &p), page_bytes);
        assert_int_equal(n_layer, config.n_layer + 1);
    }
}

static void more_stages_than_layers_are_refused(void **state)
{
    (void)state;
    struct parallel p = parallel_one();
    fathom_diag d = {{0}};
    struct model_config few = config;
    few.n_layer = 3;
    assert_int_equal(stages_cut(&p, &few, false, 4, &d), FATHOM_EINVAL);
    assert_non_null(strstr(d.text, "--pipeline-parallel-size 4 is out of range, needed is 1 to 3"));
    assert_int_equal(stages_cut(&p, &config, false, PARALLEL_STAGES_MAX + 1, &d), FATHOM_EINVAL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(stages_have_all_layers_in_order),
        cmocka_unit_test(the_largest_stage_is_as_small_as_it_can_be),
        cmocka_unit_test(every_weight_is_one_stages),
        cmocka_unit_test(parts_of_a_record_are_the_record),
        cmocka_unit_test(more_stages_than_layers_are_refused),
    };
    return cmocka_run_group_tests(tests, open_pilot, close_pilot);
}
