/* test_op_head.c - logits of chosen rows */
#include "op/harness.h"

#include "base/mem.h"

enum { N = 129 };

/* Logits of rows 0 .. n-1. */
static float *run(struct rig *r, void *arg, const float *x, uint32_t n)
{
    int32_t rows[N];
    rig_write(r, BUFFER_NORMED, n, r->config.hidden, x);
    for (uint32_t i = 0; i < n; i++) rows[i] = (int32_t)i;
    int32_t *device = rig_put(r, rows, n * sizeof *rows);
    struct head_args args = {.w = arg,
                             .hidden = r->buffer[BUFFER_NORMED],
                             .rows = device,
                             .n_row = n,
                             .logits = r->buffer[BUFFER_LOGITS]};
    op_ok(r, r->ops->head(r->b, &args), "head");
    float *out = rig_read(r, BUFFER_LOGITS, n, r->config.n_vocab);
    rig_drop(r, device);
    return out;
}

/* n_vocab, hidden: 0, or in place of the usual ones */
static void check(enum act_type act, enum dtype t, bool wide, uint32_t n_vocab, uint32_t hidden)
{
    struct backend_config c;
    struct rig ref, dev;
    struct gen *g = gen_create_for(51, act);
    gen_config(&c, act, KV_TYPE_BF16, wide);
    if (n_vocab) c.n_vocab = n_vocab;
    if (hidden) c.hidden = hidden;
    rig_open_pair(&ref, &dev, &c);
    struct tensor_view v = gen_matrix(g, t, c.n_vocab, c.hidden, true);
    struct weight *wr = rig_linear(&ref, &v);
    struct weight *wd = rig_linear(&dev, &v);
    float *x = gen_floats(g, (size_t)N * c.hidden, 1);
    float *want = run(&ref, wr, x, N);
    float *got = run(&dev, wd, x, N);
    op_close(dtype_name(t), got, want, (size_t)N * c.n_vocab, op_tolerance(act));
    op_check_rows(dtype_name(t), &dev, run, wd, x, got, N, c.hidden, c.n_vocab);

    /* a few rows, not neighbours: the same bits as among all */
    const int32_t some[] = {0, 5, 63, 64, 128};
    rig_write(&dev, BUFFER_NORMED, N, c.hidden, x);
    int32_t *device = rig_put(&dev, some, sizeof some);
    struct head_args args = {.w = wd,
                             .hidden = dev.buffer[BUFFER_NORMED],
                             .rows = device,
                             .n_row = 5,
                             .logits = dev.buffer[BUFFER_LOGITS]};
    op_ok(&dev, dev.ops->head(dev.b, &args), "head");
    float *part = rig_read(&dev, BUFFER_LOGITS, 5, c.n_vocab);
    for (size_t i = 0; i < 5; i++)
        op_same_bits("chosen rows", part + i * c.n_vocab, got + (size_t)some[i] * c.n_vocab,
                     c.n_vocab * sizeof *part);
    double *row = gen_alloc(g, c.hidden * sizeof *row);
    double *formula = gen_alloc(g, c.n_vocab * sizeof *formula);
    for (uint32_t i = 0; i < c.hidden; i++) row[i] = (double)x[5 * c.hidden + i];
    for (uint32_t i = 0; i < c.n_vocab; i++)
        formula[i] = gen_product(&v, i, row, gen_wide_act(act));
    op_close_double("formula", want + (size_t)5 * c.n_vocab, formula, c.n_vocab, 1e-6);

    mem_free(part);
    mem_free(want);
    mem_free(got);
    rig_drop(&dev, device);
    rig_close_pair(&ref, &dev);
    gen_destroy(g);
}

static void test_against_ref(void **state)
{
    (void)state;
    for (size_t t = 0; t < op_n_weight_type; t++) {
        check(ACT_F32, op_weight_types[t], t % 2 == 0, 0, 0);
        check(ACT_BF16, op_weight_types[t], t % 2 == 1, 0, 0);
    }
    check(ACT_FP8, DTYPE_BF16, false, 0, 0);
    check(ACT_FP8, DTYPE_F8_E4M3, false, 0, 0);
}

/* So many outputs that a backend may choose another kernel, and no whole number of tiles. */
static void test_large_vocabulary(void **state)
{
    (void)state;
    check(ACT_FP8, DTYPE_BF16, false, 8200, 0);
    check(ACT_FP8, DTYPE_BF16, false, 16392, 128);
}

/* So many inputs besides that the sum over them is cut in two, where 33 rows are many. */
static void test_two_parts(void **state)
{
    (void)state;
    check(ACT_FP8, DTYPE_BF16, false, 4104, 384);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_against_ref),
                                       cmocka_unit_test(test_large_vocabulary),
                                       cmocka_unit_test(test_two_parts)};
    return OP_MAIN(argc, argv, tests);
}
