/* test_op_bench.c - every operator is timed once, with a cost, which is less of packed weights, and
 * shapes beyond the limits are refused */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "base/os.h"
#include "bench/op_bench.h"
#include "model/config.h"

static struct model_config config;

static int read_config(void **state)
{
    (void)state;
    struct file_map map;
    if (file_map_open(&map, FATHOM_SOURCE_DIR "/models/pilot/config.json", NULL)) return -1;
    fathom_err err = model_config_parse(&config, map.data, map.size, NULL);
    file_map_close(&map);
    return err;
}

struct seen {
    uint32_t n;
    const char *names[16];
    double ffn_bytes;
};

static void note(void *arg, const struct op_bench_row *row)
{
    struct seen *s = arg;
    assert_true(s->n < 16);
    s->names[s->n++] = row->op;
    if (strcmp(row->op, "ffn") == 0) s->ffn_bytes = row->bytes;
    assert_true(row->us > 0 && row->bytes > 0 && row->floor_us > 0 && row->flop >= 0);
}

static struct op_bench *open_bench(uint32_t world, enum act_type act)
{
    struct backend_config c;
    struct backend *b = NULL;
    struct op_bench *p = NULL;
    fathom_diag d = {{0}};
    const struct model_limits limits = {.act = act,
                                        .kv_type = KV_TYPE_FP8,
                                        .max_token = 32,
                                        .max_request = 4,
                                        .max_context = 400,
                                        .max_logit_row = 4};
    const struct model_place place = {.parallel = {.tp = {.size = world}, .is_slice = world > 1},
                                      .n_thread = 2};
    const struct op_bench_options o = {
        .n_repeat = 1, .flush_bytes = 1 << 16, .measure_bytes = 1 << 18};
    op_bench_config(&c, &config, &limits, &place);
    assert_int_equal(c.kv.n_layer, 2);
    assert_int_equal(backend_cpu_create(&b, &c, &d), FATHOM_OK);
    if (op_bench_create(&p, b, &config, &limits, &place, &o, &d)) fail_msg("%s", d.text);
    assert_true(op_bench_bandwidth(p) > 1e6);
    return p;
}

static void every_operator_is_timed(void **state)
{
    (void)state;
    for (uint32_t world = 1; world <= 2; world++) {
        struct op_bench *p = open_bench(world, ACT_FP8);
        fathom_diag d = {{0}};
        struct seen s = {0};
        const struct op_bench_shape shapes[] = {{4, 100, false}, {2, 400, false}, {32, 300, true}};
        const uint32_t n[] = {11, 12, 12}; /* the indexer chooses beyond 256 rows */
        for (int i = 0; i < 3; i++) {
            s.n = 0;
            if (op_bench_run(p, &shapes[i], note, &s, &d)) fail_msg("%s", d.text);
            assert_int_equal(s.n, n[i]);
            assert_string_equal(s.names[0], "embed");
            assert_string_equal(s.names[s.n - 1], "sample_cut");
        }
        assert_string_equal(s.names[3], "index_topk");
        op_bench_destroy(p);
    }
}

/* Of a decode of one token of the pilot, in the form that the config names. */
static double ffn_bytes(const char *quantization)
{
    const struct model_config whole = config;
    fathom_diag d = {{0}};
    struct seen s = {0};
    model_config_set_quant(&config, quantization);
    struct op_bench *p = open_bench(1, ACT_BF16);
    const struct op_bench_shape shape = {1, 100, false};
    if (op_bench_run(p, &shape, note, &s, &d)) fail_msg("%s", d.text);
    op_bench_destroy(p);
    config = whole;
    return s.ffn_bytes;
}

static void packed_weights_have_their_own_bytes(void **state)
{
    (void)state;
    const double of_codes = ffn_bytes("w8a8_int8"), packed = ffn_bytes("awq");
    assert_true(packed > 0.5 * of_codes &&
                packed < 0.65 * of_codes); /* scales and zeros are small */
}

static void shapes_beyond_the_limits_are_refused(void **state)
{
    (void)state;
    struct op_bench *p = open_bench(1, ACT_FP8);
    struct seen s = {0};
    const struct op_bench_shape bad[] = {
        {0, 10, false}, {5, 10, false}, {33, 100, true}, {1, 401, false}, {20, 10, true}};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        fathom_diag d = {{0}};
        assert_int_equal(op_bench_run(p, &bad[i], note, &s, &d), FATHOM_EINVAL);
        assert_non_null(strstr(d.text, "at most 32 tokens, 4 requests, context 400"));
    }
    assert_int_equal(s.n, 0);
    op_bench_destroy(p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_operator_is_timed),
        cmocka_unit_test(packed_weights_have_their_own_bytes),
        cmocka_unit_test(shapes_beyond_the_limits_are_refused),
    };
    return cmocka_run_group_tests(tests, read_config, NULL);
}
