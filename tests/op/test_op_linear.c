/* test_op_linear.c - every weight type; and what prepare_linear refuses */
#include "op/harness.h"

#include <math.h>
#include <string.h>

#include "base/mem.h"

enum { N = 129 };

static float *run(struct rig *r, void *arg, const float *x, uint32_t n)
{
    uint32_t hidden = r->config.hidden;
    rig_write(r, BUFFER_NORMED, n, hidden, x);
    struct linear_args args = {
        .w = arg, .x = r->buffer[BUFFER_NORMED], .y = r->buffer[BUFFER_DELTA], .n_token = n};
    op_ok(r, r->ops->linear(r->b, &args), "linear");
    return rig_read(r, BUFFER_DELTA, n, hidden);
}

static void check(enum act_type act, enum dtype t, bool pow2, bool wide)
{
    struct backend_config c;
    struct rig ref, dev;
    struct gen *g = gen_create_for(31, act);
    gen_config(&c, act, KV_TYPE_BF16, wide);
    rig_open_pair(&ref, &dev, &c);
    struct tensor_view v = gen_matrix(g, t, c.hidden, c.hidden, pow2);
    struct weight *wr = rig_linear(&ref, &v);
    struct weight *wd = rig_linear(&dev, &v);
    assert_true(dev.ops->weight_bytes(wd) > 0);
    float *x = gen_floats(g, (size_t)N * c.hidden, 1);
    float *want = run(&ref, wr, x, N);
    float *got = run(&dev, wd, x, N);
    op_close(dtype_name(t), got, want, (size_t)N * c.hidden, op_tolerance(act));
    op_check_rows(dtype_name(t), &dev, run, wd, x, N, c.hidden, c.hidden);

    double *formula = gen_alloc(g, c.hidden * sizeof *formula);
    double *row = gen_alloc(g, c.hidden * sizeof *row);
    for (uint32_t n = 0; n < N; n += 32) {
        for (uint32_t i = 0; i < c.hidden; i++) row[i] = (double)x[(size_t)n * c.hidden + i];
        for (uint32_t i = 0; i < c.hidden; i++) formula[i] = gen_product(&v, i, row, act);
        op_close_double("formula", want + (size_t)n * c.hidden, formula, c.hidden, 1e-6);
    }
    mem_free(want);
    mem_free(got);
    rig_close_pair(&ref, &dev);
    gen_destroy(g);
}

static void test_every_type(void **state)
{
    (void)state;
    for (int i = 0; i < 4; i++) {
        enum act_type act = i & 1 ? ACT_BF16 : ACT_F32;
        for (size_t t = 0; t < op_n_weight_type; t++) check(act, op_weight_types[t], true, i & 2);
        check(act, DTYPE_F8_E4M3, false, i & 2);
    }
    for (size_t t = 0; t < op_n_weight_type; t++) check(ACT_FP8, op_weight_types[t], true, false);
    check(ACT_FP8, DTYPE_F8_E4M3, false, false);
}

/* A tensor without data is made by the backend: normal, and the same for the same seed. */
static void test_generated(void **state)
{
    (void)state;
    const enum dtype types[] = {DTYPE_BF16, DTYPE_F8_E4M3};
    for (int i = 0; i < 2; i++) {
        struct backend_config c;
        struct rig r;
        struct gen *g = gen_create(32);
        gen_config(&c, ACT_F32, KV_TYPE_BF16, false);
        rig_open(&r, op_backend(), &c);
        struct tensor_view v = {.dtype = types[i],
                                .n_row = c.hidden,
                                .n_col = c.hidden,
                                .row_stride = c.hidden,
                                .generate_seed = 5,
                                .generate_std = 0.02f};
        struct weight *a = rig_linear(&r, &v);
        struct weight *b = rig_linear(&r, &v);
        v.generate_seed = 6;
        struct weight *other = rig_linear(&r, &v);
        float *x = gen_floats(g, (size_t)8 * c.hidden, 1);
        float *ya = run(&r, a, x, 8);
        float *yb = run(&r, b, x, 8);
        float *yo = run(&r, other, x, 8);
        size_t n = (size_t)8 * c.hidden;
        double square = 0;
        for (size_t k = 0; k < n; k++) square += (double)ya[k] * (double)ya[k];
        double std = sqrt(square / (double)n) / sqrt(c.hidden); /* x has unit variance */
        assert_true(std > 0.017 && std < 0.023);
        op_same_bits("equal seeds", ya, yb, n * sizeof *ya);
        assert_memory_not_equal(ya, yo, n * sizeof *ya);
        mem_free(ya);
        mem_free(yb);
        mem_free(yo);
        rig_close(&r);
        gen_destroy(g);
    }
}

static void test_refused_types(void **state)
{
    (void)state;
    if (!op_is_ref()) skip();
    struct backend_config c;
    struct rig r;
    gen_config(&c, ACT_F32, KV_TYPE_F32, false);
    rig_open(&r, op_backend(), &c);
    const enum dtype types[] = {DTYPE_I8, DTYPE_U8, DTYPE_I32, DTYPE_I64, DTYPE_NONE};
    static const uint64_t data[64];
    for (size_t i = 0; i < sizeof types / sizeof *types; i++) {
        struct tensor_view v = {
            .data = data, .dtype = types[i], .n_row = 4, .n_col = 4, .row_stride = 4};
        struct weight *w = NULL;
        fathom_diag d = {{0}};
        assert_int_equal(r.ops->prepare_linear(r.b, &v, &w, &d), FATHOM_EUNSUPPORTED);
        assert_null(w);
        assert_non_null(strstr(d.text, dtype_name(types[i])));
    }
    rig_close(&r);
}

/* Every allocation of a prepare fails once; nothing is leaked and nothing half-made is kept. */
static void test_out_of_memory(void **state)
{
    (void)state;
    struct backend_config c;
    struct rig r;
    struct gen *g = gen_create(33);
    gen_config(&c, ACT_F32, KV_TYPE_F32, false);
    rig_open(&r, op_backend(), &c);
    struct moe_tensors moe;
    gen_moe(g, &c, DTYPE_BF16, &moe);
    struct mla_tensors mla;
    gen_mla(g, &c, DTYPE_BF16, &mla);
    for (int kind = 0; kind < 2; kind++) {
        for (long n = 0;; n++) {
            struct weight *w = NULL;
            fathom_diag d = {{0}};
            mem_fail_after(n);
            fathom_err err = kind == 0 ? r.ops->prepare_moe(r.b, &moe, &w, &d)
                                       : r.ops->prepare_mla(r.b, &mla, &w, &d);
            bool hit = mem_fail_hit();
            mem_fail_after(-1);
            if (!hit) {
                assert_int_equal(err, FATHOM_OK);
                r.ops->weight_destroy(r.b, w);
                break;
            }
            assert_int_equal(err, FATHOM_ENOMEM);
            assert_null(w);
            assert_string_not_equal(d.text, "");
        }
    }
    rig_close(&r);
    gen_destroy(g);
}

static void test_create_out_of_memory(void **state)
{
    (void)state;
    if (!op_is_ref()) skip();
    struct backend_config c;
    gen_config(&c, ACT_F32, KV_TYPE_F32, false);
    for (long n = 0;; n++) {
        struct backend *b = NULL;
        fathom_diag d = {{0}};
        mem_fail_after(n);
        fathom_err err = backend_ref_create(&b, &c, &d);
        bool hit = mem_fail_hit();
        mem_fail_after(-1);
        if (b) b->ops->destroy(b);
        if (!hit) break;
        assert_int_equal(err, FATHOM_ENOMEM);
        assert_null(b);
    }
}

static void expect_refused(const struct backend_config *c, fathom_err want, const char *word)
{
    struct backend *b = NULL;
    fathom_diag d = {{0}};
    assert_int_equal(backend_ref_create(&b, c, &d), want);
    assert_null(b);
    if (!strstr(d.text, word)) fail_msg("message without %s: %s", word, d.text);
}

static void test_refused_configs(void **state)
{
    (void)state;
    if (!op_is_ref()) skip();
    struct backend_config good, c;
    gen_config(&good, ACT_F32, KV_TYPE_F32, false);
    c = good, c.hidden = 0;
    expect_refused(&c, FATHOM_EINVAL, "hidden");
    c = good, c.parallel.tp.size = 2;
    expect_refused(&c, FATHOM_EUNSUPPORTED, "2 ranks");
    c = good, c.index_topk = 0;
    expect_refused(&c, FATHOM_EINVAL, "index_topk");
    c = good, c.kv.has_index = false;
    expect_refused(&c, FATHOM_EINVAL, "has_index");
    c = good, c.n_group = 3;
    expect_refused(&c, FATHOM_EINVAL, "n_group");
    c = good, c.topk_group = 5;
    expect_refused(&c, FATHOM_EINVAL, "topk_group");
    c = good, c.n_expert_used = 9;
    expect_refused(&c, FATHOM_EINVAL, "n_expert_used");
}

/* Rows outside and widths of another kind are refused; nothing is written. */
static void test_buffer_access(void **state)
{
    (void)state;
    if (!op_is_ref()) skip();
    struct backend_config c;
    struct rig r;
    float *x = mem_calloc(1 << 16, sizeof *x);
    assert_non_null(x);
    gen_config(&c, ACT_F32, KV_TYPE_F32, false);
    rig_open(&r, op_backend(), &c);
    const struct {
        enum buffer_kind kind;
        uint32_t row0, n_row, width;
    } bad[] = {
        {BUFFER_NORMED, 0, 1, c.hidden + 1},
        {BUFFER_NORMED, c.max_token, 1, c.hidden},
        {BUFFER_NORMED, 0, c.max_token + 1, c.hidden},
        {BUFFER_NORMED, UINT32_MAX, 2, c.hidden},
        {BUFFER_QUERY, 0, 1, c.n_head},
        {BUFFER_LATENT, 0, 1, KV_LATENT + 1},
        {BUFFER_ROUTE, 0, 1, c.n_expert_used},
        {BUFFER_SELECT, 0, 1, c.index_topk},
        {BUFFER_LOGITS, c.max_logit_row, 1, c.n_vocab},
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        struct buffer *buf = r.buffer[bad[i].kind];
        assert_int_equal(r.ops->buffer_write(r.b, buf, bad[i].row0, bad[i].n_row, bad[i].width, x),
                         FATHOM_EINVAL);
        assert_int_equal(r.ops->buffer_read(r.b, buf, bad[i].row0, bad[i].n_row, bad[i].width, x),
                         FATHOM_EINVAL);
    }
    rig_close(&r);
    mem_free(x);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_type),           cmocka_unit_test(test_generated),
        cmocka_unit_test(test_refused_types),        cmocka_unit_test(test_out_of_memory),
        cmocka_unit_test(test_create_out_of_memory), cmocka_unit_test(test_refused_configs),
        cmocka_unit_test(test_buffer_access),
    };
    return OP_MAIN(argc, argv, tests);
}
