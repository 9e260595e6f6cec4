/* test_op_mtp_front.c - embedding half first, hidden half second, each under its own norm */
#include "op/harness.h"

#include <math.h>
#include <string.h>

#include "base/mem.h"

enum { N = 129 };

struct front {
    struct tensor_view view[4];
    struct weight *w[4];     /* table, enorm, hnorm, eh_proj */
    const int32_t *next_ids; /* host [N] */
    const float *hidden;     /* [N][D] all rows */
    bool reversed;           /* token t goes on from row n - 1 - t, and the rows lie that way */
};

static void open_weights(struct rig *r, struct front *f)
{
    f->w[0] = rig_linear(r, &f->view[0]);
    f->w[1] = rig_vector(r, &f->view[1]);
    f->w[2] = rig_vector(r, &f->view[2]);
    f->w[3] = rig_linear(r, &f->view[3]);
}

/* The rows of x in reverse order, and where each token finds its own. */
static int32_t *write_reversed(struct rig *r, const float *x, uint32_t n)
{
    uint32_t hidden = r->config.hidden;
    float *turned = mem_alloc_array((size_t)n * hidden, sizeof *turned);
    int32_t *rows = mem_alloc_array(n, sizeof *rows);
    assert_true(turned && rows);
    for (uint32_t t = 0; t < n; t++) {
        rows[t] = (int32_t)(n - 1 - t);
        memcpy(turned + (size_t)rows[t] * hidden, x + (size_t)t * hidden, hidden * sizeof *x);
    }
    rig_write(r, BUFFER_NORMED, n, hidden, turned);
    int32_t *out = rig_put(r, rows, n * sizeof *rows);
    mem_free(turned);
    mem_free(rows);
    return out;
}

static float *run(struct rig *r, void *arg, const float *x, uint32_t n)
{
    const struct front *f = arg;
    uint32_t hidden = r->config.hidden;
    size_t row0 = (size_t)(x - f->hidden) / hidden;
    int32_t *rows = NULL;
    if (f->reversed) {
        rows = write_reversed(r, x, n);
    } else {
        rig_write(r, BUFFER_NORMED, n, hidden, x);
    }
    int32_t *ids = rig_put(r, f->next_ids + row0, n * sizeof *ids);
    struct mtp_front_args args = {.table = f->w[0],
                                  .enorm = f->w[1],
                                  .hnorm = f->w[2],
                                  .eh_proj = f->w[3],
                                  .next_ids = ids,
                                  .hidden = r->buffer[BUFFER_NORMED],
                                  .rows = rows,
                                  .y = r->buffer[BUFFER_DELTA],
                                  .n_token = n};
    op_ok(r, r->ops->mtp_front(r->b, &args), "mtp_front");
    float *out = rig_read(r, BUFFER_DELTA, n, hidden);
    rig_drop(r, ids);
    if (rows) rig_drop(r, rows);
    return out;
}

/* to = rmsnorm(from) * weight */
static void norm(double *to, const double *from, const struct tensor_view *weight, uint32_t n)
{
    double square = 0;
    for (uint32_t i = 0; i < n; i++) square += from[i] * from[i];
    for (uint32_t i = 0; i < n; i++)
        to[i] = from[i] / sqrt(square / n + 1e-6) * gen_element(weight, 0, i);
}

static void check_formula(struct gen *g, const struct front *f, enum act_type act, uint32_t t,
                          const float *got, uint32_t hidden)
{
    double *in = gen_alloc(g, hidden * sizeof *in);
    double *pair = gen_alloc(g, 2 * hidden * sizeof *pair);
    double *want = gen_alloc(g, hidden * sizeof *want);
    for (uint32_t i = 0; i < hidden; i++)
        in[i] = gen_element(&f->view[0], (uint32_t)f->next_ids[t], i);
    norm(pair, in, &f->view[1], hidden);
    for (uint32_t i = 0; i < hidden; i++) in[i] = (double)f->hidden[(size_t)t * hidden + i];
    norm(pair + hidden, in, &f->view[2], hidden);
    for (uint32_t i = 0; i < hidden; i++)
        want[i] = gen_product(&f->view[3], i, pair, gen_wide_act(act));
    op_close_double("formula", got, want, hidden, op_formula_limit(act));
}

/* The same bits whatever rows the hidden states lie in. */
static void check_chosen_rows(struct rig *r, const struct front *f, const float *want)
{
    struct front turned = *f;
    turned.reversed = true;
    float *got = run(r, &turned, f->hidden, N);
    assert_memory_equal(got, want, (size_t)N * r->config.hidden * sizeof *got);
    mem_free(got);
}

static void check(enum act_type act, enum dtype t, bool wide)
{
    struct backend_config c;
    struct rig ref, dev;
    struct gen *g = gen_create_for(61, act);
    gen_config(&c, act, KV_TYPE_BF16, wide);
    rig_open_pair(&ref, &dev, &c);
    struct front fr = {.view = {gen_matrix(g, DTYPE_BF16, c.n_vocab, c.hidden, true),
                                gen_vector(g, DTYPE_BF16, c.hidden, 1, 0.1f),
                                gen_vector(g, DTYPE_BF16, c.hidden, 1, 0.1f),
                                gen_matrix(g, t, c.hidden, 2 * c.hidden, true)}};
    int32_t *ids = gen_alloc(g, N * sizeof *ids);
    for (int i = 0; i < N; i++) ids[i] = (int32_t)gen_below(g, c.n_vocab);
    fr.next_ids = ids;
    fr.hidden = gen_floats(g, (size_t)N * c.hidden, 2);
    struct front fd = fr;
    open_weights(&ref, &fr);
    open_weights(&dev, &fd);
    float *want = run(&ref, &fr, fr.hidden, N);
    float *got = run(&dev, &fd, fd.hidden, N);
    op_close("mtp_front", got, want, (size_t)N * c.hidden, op_tolerance(act));
    check_chosen_rows(&ref, &fr, want);
    check_chosen_rows(&dev, &fd, got);
    op_check_rows("mtp_front", &dev, run, &fd, fd.hidden, got, N, c.hidden, c.hidden);
    check_formula(g, &fr, act, 7, want + (size_t)7 * c.hidden, c.hidden);
    mem_free(want);
    mem_free(got);
    rig_close_pair(&ref, &dev);
    gen_destroy(g);
}

static void test_against_ref(void **state)
{
    (void)state;
    check(ACT_F32, DTYPE_BF16, false);
    check(ACT_F32, DTYPE_F8_E4M3, true);
    check(ACT_BF16, DTYPE_BF16, true);
    check(ACT_BF16, DTYPE_F32, false);
    check(ACT_FP8, DTYPE_BF16, false);
    check(ACT_FP8, DTYPE_F8_E4M3, false);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_against_ref)};
    return OP_MAIN(argc, argv, tests);
}
