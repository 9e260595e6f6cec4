/* test_op_embed.c - rows of the table, exactly */
#include "op/harness.h"

#include "base/mem.h"

static void check_type(enum dtype t, bool wide)
{
    struct backend_config c;
    struct rig r;
    struct gen *g = gen_create(11);
    gen_config(&c, ACT_BF16, KV_TYPE_BF16, wide);
    rig_open(&r, op_backend(), &c);
    struct tensor_view table = gen_matrix(g, t, c.n_vocab, c.hidden, true);
    struct weight *w = rig_linear(&r, &table);
    int32_t ids[129];
    for (uint32_t i = 0; i < 129; i++) ids[i] = (int32_t)gen_below(g, c.n_vocab);
    ids[0] = 0;
    ids[1] = (int32_t)c.n_vocab - 1;
    int32_t given[129]; /* every third is what an earlier step drew */
    for (int32_t i = 0; i < 129; i++) given[i] = i % 3 ? ids[i] : ~(128 - i);
    int32_t drawn[129];
    for (uint32_t i = 0; i < 129; i++) drawn[128 - i] = i % 3 ? -1 : ids[i];
    int32_t *device_ids = rig_put(&r, given, sizeof given);
    int32_t *device_drawn = rig_put(&r, drawn, sizeof drawn);
    struct embed_args args = {.table = w,
                              .ids = device_ids,
                              .drawn = device_drawn,
                              .n_token = 129,
                              .x = r.buffer[BUFFER_RESIDUAL]};
    op_ok(&r, r.ops->embed(r.b, &args), "embed");
    float *x = rig_read(&r, BUFFER_RESIDUAL, 129, c.hidden);
    for (uint32_t i = 0; i < 129; i++) {
        for (uint32_t d = 0; d < c.hidden; d++) {
            float want = (float)gen_element(&table, (uint32_t)ids[i], d);
            if (x[i * c.hidden + d] != want)
                fail_msg("%s row %u column %u: %g, want %g", dtype_name(t), i, d,
                         (double)x[i * c.hidden + d], (double)want);
        }
    }
    mem_free(x);
    rig_drop(&r, device_ids);
    rig_drop(&r, device_drawn);
    rig_close(&r);
    gen_destroy(g);
}

static void test_every_table_type(void **state)
{
    (void)state;
    const enum dtype types[] = {DTYPE_F32, DTYPE_F16, DTYPE_BF16};
    for (size_t i = 0; i < sizeof types / sizeof *types; i++) {
        check_type(types[i], false);
        check_type(types[i], true);
    }
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_every_table_type)};
    return OP_MAIN(argc, argv, tests);
}
