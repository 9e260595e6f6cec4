/* test_op_reduce_norm.c - the sum in the residual, and its norm */
#include "op/harness.h"

#include <math.h>
#include <string.h>

#include "base/mem.h"

enum { N = 129 };

struct reduce_norm_case {
    struct weight *w;
    const float *delta; /* [N][D], or NULL */
    const float *x;     /* start of all rows: finds the delta of a part of them */
    uint32_t hidden;
};

/* Row t of the result is the residual, then the norm. */
static float *run(struct rig *r, void *arg, const float *x, uint32_t n)
{
    const struct reduce_norm_case *k = arg;
    size_t d = k->hidden;
    rig_write(r, BUFFER_RESIDUAL, n, k->hidden, x);
    if (k->delta) rig_write(r, BUFFER_DELTA, n, k->hidden, k->delta + (x - k->x));
    struct reduce_norm_args args = {.x = r->buffer[BUFFER_RESIDUAL],
                                    .delta = k->delta ? r->buffer[BUFFER_DELTA] : NULL,
                                    .weight = k->w,
                                    .out = r->buffer[BUFFER_NORMED],
                                    .n_token = n};
    op_ok(r, r->ops->reduce_norm(r->b, &args), "reduce_norm");
    float *residual = rig_read(r, BUFFER_RESIDUAL, n, k->hidden);
    float *normed = rig_read(r, BUFFER_NORMED, n, k->hidden);
    float *out = mem_alloc_array(2 * n * d, sizeof *out);
    assert_non_null(out);
    for (uint32_t t = 0; t < n; t++) {
        memcpy(out + 2 * t * d, residual + t * d, d * sizeof *out);
        memcpy(out + (2 * t + 1) * d, normed + t * d, d * sizeof *out);
    }
    mem_free(residual);
    mem_free(normed);
    return out;
}

static void check(enum act_type act, enum dtype weight_type, bool wide, bool with_delta)
{
    struct backend_config c;
    struct rig ref, dev;
    struct gen *g = gen_create(21);
    gen_config(&c, act, KV_TYPE_BF16, wide);
    rig_open_pair(&ref, &dev, &c);
    struct tensor_view weight = gen_vector(g, weight_type, c.hidden, 1, 0.2f);
    float *x = gen_floats(g, (size_t)N * c.hidden, 3);
    float *delta = gen_floats(g, (size_t)N * c.hidden, 1);
    memset(x, 0, c.hidden * sizeof *x); /* a row of zeros */
    memset(delta, 0, c.hidden * sizeof *x);
    struct reduce_norm_case k = {rig_vector(&ref, &weight), with_delta ? delta : NULL, x, c.hidden};
    struct reduce_norm_case kd = {rig_vector(&dev, &weight), with_delta ? delta : NULL, x,
                                  c.hidden};
    float *want = run(&ref, &k, x, N);
    float *got = run(&dev, &kd, x, N);
    op_close("reduce_norm", got, want, (size_t)2 * N * c.hidden, op_tolerance(act));
    op_check_rows("reduce_norm", &dev, run, &kd, x, got, N, c.hidden, 2 * c.hidden);

    for (uint32_t t = 0; t < N; t++) {
        double square = 0;
        const float *row = want + (size_t)2 * t * c.hidden;
        for (uint32_t i = 0; i < c.hidden; i++) {
            size_t at = (size_t)t * c.hidden + i;
            double sum = (double)x[at] + (with_delta ? (double)delta[at] : 0);
            square += sum * sum;
            assert_true(fabs((double)row[i] - sum) <= 1e-6 * fabs(sum));
        }
        double scale = 1 / sqrt(square / c.hidden + 1e-6);
        for (uint32_t i = 0; i < c.hidden; i++) {
            double w = gen_element(&weight, 0, i);
            double normed = (double)row[i] * scale * w;
            assert_true(fabs((double)row[c.hidden + i] - normed) <= 1e-5 * fabs(normed) + 1e-12);
        }
    }
    mem_free(want);
    mem_free(got);
    rig_close_pair(&ref, &dev);
    gen_destroy(g);
}

static void test_against_ref(void **state)
{
    (void)state;
    for (int i = 0; i < 8; i++)
        check(i & 1 ? ACT_BF16 : ACT_F32, i & 1 ? DTYPE_BF16 : DTYPE_F32, i & 2, i & 4);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_against_ref)};
    return OP_MAIN(argc, argv, tests);
}
