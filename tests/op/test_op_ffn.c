/* test_op_ffn.c - the dense feed-forward block */
#include "op/harness.h"

#include <math.h>
#include <string.h>

#include "base/mem.h"

enum { N = 129, N_FEW = 65, N_FORM = 17 };

static float *run(struct rig *r, void *arg, const float *x, uint32_t n)
{
    uint32_t hidden = r->config.hidden;
    rig_write(r, BUFFER_NORMED, n, hidden, x);
    struct ffn_args args = {
        .w = arg, .x = r->buffer[BUFFER_NORMED], .y = r->buffer[BUFFER_DELTA], .n_token = n};
    op_ok(r, r->ops->ffn(r->b, &args), "ffn");
    return rig_read(r, BUFFER_DELTA, n, hidden);
}

static void check_formula(struct gen *g, const struct ffn_tensors *t, enum act_type act,
                          const float *x, const float *got)
{
    uint32_t hidden = t->gate.n_col;
    uint32_t inner = t->gate.n_row;
    double *row = gen_alloc(g, hidden * sizeof *row);
    double *mid = gen_alloc(g, inner * sizeof *mid);
    double *want = gen_alloc(g, hidden * sizeof *want);
    for (uint32_t i = 0; i < hidden; i++) row[i] = (double)x[i];
    for (uint32_t i = 0; i < inner; i++) {
        double gate = gen_product(&t->gate, i, row, act);
        mid[i] = gate / (1 + exp(-gate)) * gen_product(&t->up, i, row, act);
    }
    for (uint32_t i = 0; i < hidden; i++) want[i] = gen_product(&t->down, i, mid, act);
    /* a product that lies between two bf16 values may be rounded to either */
    op_close_double("formula", got, want, hidden, op_formula_limit(act));
}

/* pow2: scales of FP8 weights are powers of two. form: of weights of F8_E4M3, or NULL */
static void check_form(enum act_type act, enum dtype t, const struct weight_form *form, bool wide,
                       bool pow2, uint32_t n_row)
{
    if (op_is_elsewhere(act)) return;
    char text[WEIGHT_FORM_TEXT_BYTES];
    const char *what = form ? weight_form_text(text, form) : dtype_name(t);
    struct backend_config c;
    struct rig ref, dev;
    struct gen *g = gen_create_for(41, act);
    const bool decodes = op_wants_few() && form && (act != ACT_FP8 || !op_form_has_product(form));
    gen_config(&c, act, KV_TYPE_BF16, wide);
    if (decodes && !wide) c.hidden = c.dense_inner = 128;
    rig_open_pair(&ref, &dev, &c);
    struct ffn_tensors tensors;
    if (form) gen_code_as(g, form);
    gen_ffn(g, t, c.hidden, c.dense_inner, &tensors);
    if (!pow2) {
        tensors.gate = gen_matrix(g, t, c.dense_inner, c.hidden, false);
        tensors.up = gen_matrix(g, t, c.dense_inner, c.hidden, false);
        tensors.down = gen_matrix(g, t, c.hidden, c.dense_inner, false);
    }
    struct weight *wr = rig_ffn(&ref, &tensors);
    struct weight *wd = rig_ffn(&dev, &tensors);
    float *x = gen_floats(g, (size_t)n_row * c.hidden, 1);
    float *want = run(&ref, wr, x, n_row);
    float *got = run(&dev, wd, x, n_row);
    op_close(what, got, want, (size_t)n_row * c.hidden, op_tolerance(act));
    if (!decodes) op_check_rows(what, &dev, run, wd, x, got, n_row, c.hidden, c.hidden);
    check_formula(g, &tensors, act, x + c.hidden, want + c.hidden);
    mem_free(want);
    mem_free(got);
    rig_close_pair(&ref, &dev);
    gen_destroy(g);
}

static void check(enum act_type act, enum dtype t, bool wide, bool pow2)
{
    check_form(act, t, NULL, wide, pow2,
               op_wants_few() && act != ACT_FP8 && t != DTYPE_BF16 ? N_FEW : N);
}

static void test_every_form(void **state)
{
    (void)state;
    for (size_t i = 0; i < op_n_weight_form; i++) {
        const struct weight_form *form = &op_weight_forms[i];
        if (op_wants_few() && form->block_col == 0 && op_form_has_product(form)) continue;
        const uint32_t n_row = op_form_has_product(form) ? N : N_FORM;
        check_form(ACT_FP8, DTYPE_F8_E4M3, form, false, true, n_row);
        if (op_wants_few() && i != 1) continue;
        check_form(ACT_F32, DTYPE_F8_E4M3, form, i % 2, true, N_FORM);
        check_form(ACT_BF16, DTYPE_F8_E4M3, form, !(i % 2), true, N_FORM);
    }
}

static void test_every_type(void **state)
{
    (void)state;
    for (size_t t = 0; t < op_n_weight_type; t++) {
        for (int wide = 0; wide < 2; wide++) {
            const bool other = (t + (size_t)wide) % 2;
            if (!op_wants_few() || other) check(ACT_F32, op_weight_types[t], wide, true);
            if (!op_wants_few() || !other) check(ACT_BF16, op_weight_types[t], wide, true);
        }
        check(ACT_FP8, op_weight_types[t], false, true);
    }
    for (int wide = op_wants_few(); wide < 2; wide++) {
        check(ACT_F32, DTYPE_F8_E4M3, wide, false);
        check(ACT_BF16, DTYPE_F8_E4M3, wide, false);
    }
    check(ACT_FP8, DTYPE_F8_E4M3, false, false);
}

/* Matrices of int8 with a scale for each row, or for each 128 x 128, and of four bits in groups. */
static struct tensor_view coded_matrix(struct gen *g, int form, uint32_t n_row, uint32_t n_col)
{
    struct tensor_view v = {.n_row = n_row, .n_col = n_col, .row_stride = n_col};
    if (form < 2) {
        const uint32_t scale_row = form == 0 ? n_row : (n_row + 127) / 128;
        const uint32_t scale_col = form == 0 ? 1 : (n_col + 127) / 128;
        int8_t *code = gen_alloc(g, (size_t)n_row * n_col);
        float *scale = gen_alloc(g, (size_t)scale_row * scale_col * sizeof *scale);
        for (size_t i = 0; i < (size_t)n_row * n_col; i++)
            code[i] = (int8_t)((int)gen_below(g, 255) - 127);
        for (uint32_t i = 0; i < scale_row * scale_col; i++)
            scale[i] = expf(0.5f * gen_normal(g)) / 73 / sqrtf((float)n_col);
        v.data = code;
        v.dtype = DTYPE_I8;
        v.scale = scale;
        v.scale_stride = scale_col;
        if (form == 0) v.scale_block_row = 1, v.scale_block_col = TENSOR_SCALE_WHOLE;
        return v;
    }
    const struct weight_form u4 = {.code = CODE_U4,
                                   .scale_type = DTYPE_F16,
                                   .block_row = 1,
                                   .block_col = 16u << form,
                                   .has_zero = form % 2};
    struct weight_source *s = gen_alloc(g, sizeof *s);
    weight_source_make(s, &u4, n_row, n_col, gen_below(g, 1000), 1 / sqrtf((float)n_col));
    v.source = s;
    return v;
}

/* Gate, up and down each coded in another way. */
static void test_mixed_forms(void **state)
{
    (void)state;
    if (op_is_cuda()) skip();
    static const enum act_type acts[] = {ACT_F32, ACT_BF16};
    for (int i = 0; i < 2; i++) {
        struct backend_config c;
        struct rig ref, dev;
        struct gen *g = gen_create(53);
        gen_config(&c, acts[i], KV_TYPE_BF16, false);
        rig_open_pair(&ref, &dev, &c);
        const struct ffn_tensors t = {
            .gate = coded_matrix(g, i, c.dense_inner, c.hidden),
            .up = coded_matrix(g, i == 0 ? 2 : 0, c.dense_inner, c.hidden),
            .down = gen_matrix(g, DTYPE_BF16, c.hidden, c.dense_inner, true)};
        struct weight *wr = rig_ffn(&ref, &t), *wd = rig_ffn(&dev, &t);
        float *x = gen_floats(g, (size_t)N * c.hidden, 1);
        float *want = run(&ref, wr, x, N);
        float *got = run(&dev, wd, x, N);
        op_close("mixed forms", got, want, (size_t)N * c.hidden, op_tolerance(acts[i]));
        op_check_rows("mixed forms", &dev, run, wd, x, got, N, c.hidden, c.hidden);
        mem_free(want);
        mem_free(got);
        rig_close_pair(&ref, &dev);
        gen_destroy(g);
    }
}

static void test_int8_inputs(void **state)
{
    (void)state;
    const int n_form = op_is_cuda() ? 2 : 4;
    for (int form = 0; form < n_form; form++) {
        struct backend_config c;
        struct rig ref, dev;
        struct gen *g = gen_create(47);
        gen_config(&c, ACT_INT8, KV_TYPE_BF16, false);
        rig_open_pair(&ref, &dev, &c);
        const struct ffn_tensors t = {.gate = coded_matrix(g, form, c.dense_inner, c.hidden),
                                      .up = coded_matrix(g, form, c.dense_inner, c.hidden),
                                      .down = coded_matrix(g, form, c.hidden, c.dense_inner)};
        struct weight *wr = rig_ffn(&ref, &t);
        struct weight *wd = rig_ffn(&dev, &t);
        float *x = gen_floats(g, (size_t)N * c.hidden, 1);
        float *want = run(&ref, wr, x, N);
        float *got = run(&dev, wd, x, N);
        /* what is left are values on either side of a code's boundary */
        op_close("int8 inputs", got, want, (size_t)N * c.hidden, 1e-4);
        op_check_rows("int8 inputs", &dev, run, wd, x, got, N, c.hidden, c.hidden);
        c.act = ACT_BF16;
        struct rig bf16;
        rig_open(&bf16, "ref", &c);
        float *near = run(&bf16, rig_ffn(&bf16, &t), x, N);
        op_close("int8 beside bf16", got, near, (size_t)N * c.hidden, 3e-2);
        assert_memory_not_equal(got, near, (size_t)N * c.hidden * sizeof *got);
        mem_free(near);
        mem_free(want);
        mem_free(got);
        rig_close(&bf16);
        rig_close_pair(&ref, &dev);
        gen_destroy(g);
    }
}

/* The ffn of normed rows: of the forms that `reader` takes, or of all. */
static float *run_normed(struct rig *r, const struct weight *norm, struct weight *w,
                         const struct weight *reader, const float *x)
{
    const uint32_t hidden = r->config.hidden;
    rig_write(r, BUFFER_RESIDUAL, N, hidden, x);
    struct reduce_norm_args a = {.x = r->buffer[BUFFER_RESIDUAL],
                                 .weight = norm,
                                 .reader = reader,
                                 .out = r->buffer[BUFFER_NORMED],
                                 .n_token = N};
    op_ok(r, r->ops->reduce_norm(r->b, &a), "reduce_norm");
    struct ffn_args f = {
        .w = w, .x = r->buffer[BUFFER_NORMED], .n_token = N, .y = r->buffer[BUFFER_DELTA]};
    op_ok(r, r->ops->ffn(r->b, &f), "ffn");
    return rig_read(r, BUFFER_DELTA, N, hidden);
}

/* Int8 codes that the norm leaves are those that products make of its values. */
static void test_int8_codes_of_a_norm(void **state)
{
    (void)state;
    for (int form = 0; form < 2; form++) {
        struct backend_config c;
        struct rig r;
        struct gen *g = gen_create(48);
        gen_config(&c, ACT_INT8, KV_TYPE_BF16, false);
        rig_open(&r, op_backend(), &c);
        const struct ffn_tensors t = {.gate = coded_matrix(g, form, c.dense_inner, c.hidden),
                                      .up = coded_matrix(g, form, c.dense_inner, c.hidden),
                                      .down = coded_matrix(g, form, c.hidden, c.dense_inner)};
        const struct tensor_view vector = gen_vector(g, DTYPE_F32, c.hidden, 1, 0.2f);
        struct weight *w = rig_ffn(&r, &t), *norm = rig_vector(&r, &vector);
        float *x = gen_floats(g, (size_t)N * c.hidden, 3);
        memset(x, 0, c.hidden * sizeof *x); /* a row of zeros */
        float *want = run_normed(&r, norm, w, NULL, x), *got = run_normed(&r, norm, w, w, x);
        op_same_bits("codes of a norm", got, want, (size_t)N * c.hidden * sizeof *got);
        mem_free(want);
        mem_free(got);
        rig_close(&r);
        gen_destroy(g);
    }
}

/* Rows that reach a device in several steps. */
static void test_tall(void **state)
{
    (void)state;
    enum { ROWS = 2, INNER = 9 << 10 };
    struct backend_config c;
    struct rig ref, dev;
    struct gen *g = gen_create_for(43, ACT_FP8);
    gen_config(&c, ACT_FP8, KV_TYPE_BF16, false);
    c.dense_inner = INNER;
    rig_open_pair(&ref, &dev, &c);
    struct ffn_tensors tensors;
    gen_ffn(g, DTYPE_F8_E4M3, c.hidden, c.dense_inner, &tensors);
    float *x = gen_floats(g, (size_t)ROWS * c.hidden, 1);
    float *want = run(&ref, rig_ffn(&ref, &tensors), x, ROWS);
    float *got = run(&dev, rig_ffn(&dev, &tensors), x, ROWS);
    op_close("tall", got, want, (size_t)ROWS * c.hidden, op_tolerance(ACT_FP8));
    mem_free(want);
    mem_free(got);
    rig_close_pair(&ref, &dev);
    gen_destroy(g);
}

static void test_wrong_shape(void **state)
{
    (void)state;
    struct backend_config c;
    struct rig r;
    struct gen *g = gen_create(42);
    gen_config(&c, ACT_F32, KV_TYPE_F32, false);
    rig_open(&r, op_backend(), &c);
    struct ffn_tensors tensors;
    gen_ffn(g, DTYPE_BF16, c.hidden, c.dense_inner + 32, &tensors);
    struct weight *w = NULL;
    fathom_diag d = {{0}};
    assert_int_equal(r.ops->prepare_ffn(r.b, &tensors, &w, &d), FATHOM_EMISMATCH);
    assert_null(w);
    assert_non_null(strstr(d.text, "gate"));
    rig_close(&r);
    gen_destroy(g);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_type),
        cmocka_unit_test(test_every_form),
        cmocka_unit_test(test_mixed_forms),
        cmocka_unit_test(test_int8_inputs),
        cmocka_unit_test(test_tall),
        cmocka_unit_test(test_wrong_shape),
        cmocka_unit_test(test_int8_codes_of_a_norm),
    };
    return OP_MAIN(argc, argv, tests);
}
