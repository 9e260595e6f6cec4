/* test_op_router.c - choice and weights of experts */
#include "op/harness.h"

#include <math.h>
#include <string.h>

#include "base/mem.h"

enum { N = 129 };

static float *run(struct rig *r, void *arg, const float *x, uint32_t n)
{
    rig_write(r, BUFFER_NORMED, n, r->config.hidden, x);
    struct router_args args = {
        .w = arg, .x = r->buffer[BUFFER_NORMED], .route = r->buffer[BUFFER_ROUTE], .n_token = n};
    op_ok(r, r->ops->router(r->b, &args), "router");
    return rig_read(r, BUFFER_ROUTE, n, 2 * r->config.n_expert_used);
}

/* Rows that are not live are routed as row 0 is, whatever they hold; the others as ever. */
static void check_padding(struct rig *r, struct weight *w, const float *x)
{
    enum { ROWS = 12 };
    static const int32_t counts[] = {1, 5, ROWS, ROWS + 5};
    uint32_t width = 2 * r->config.n_expert_used;
    float *all = run(r, w, x, ROWS);
    for (size_t i = 0; i < sizeof counts / sizeof *counts; i++) {
        fathom_diag d = {{0}};
        void *n_live = NULL;
        if (r->ops->alloc(r->b, sizeof counts[i], "live rows", &n_live, &d)) fail_msg("%s", d.text);
        op_ok(r, r->ops->copy_in(r->b, n_live, &counts[i], sizeof counts[i]), "copy_in");
        struct router_args args = {.w = w,
                                   .x = r->buffer[BUFFER_NORMED],
                                   .route = r->buffer[BUFFER_ROUTE],
                                   .n_token = ROWS,
                                   .n_live = n_live};
        op_ok(r, r->ops->router(r->b, &args), "router");
        float *got = rig_read(r, BUFFER_ROUTE, ROWS, width);
        for (uint32_t t = 0; t < ROWS; t++) {
            uint32_t like = (int32_t)t < counts[i] ? t : 0;
            op_same_bits("padding", got + (size_t)t * width, all + (size_t)like * width,
                         width * sizeof(float));
        }
        mem_free(got);
        r->ops->release(r->b, n_live);
    }
    mem_free(all);
}

/* The rule of op_moe.h, written as "who has fewer than k better ones". */
static void choose(const struct backend_config *c, const struct moe_tensors *t, const float *x,
                   float *want)
{
    uint32_t width = c->n_expert / c->n_group;
    double s[256], b[256], group[64], row[1152];
    bool in[256];
    for (uint32_t i = 0; i < c->hidden; i++) row[i] = (double)x[i];
    for (uint32_t e = 0; e < c->n_expert; e++) {
        s[e] = 1 / (1 + exp(-gen_product(&t->router, e, row, ACT_F32)));
        b[e] = s[e] + gen_element(&t->router_bias, 0, e);
    }
    for (uint32_t g = 0; g < c->n_group; g++) {
        group[g] = width == 1 ? b[g] : -INFINITY;
        for (uint32_t i = 0; i < width; i++) {
            for (uint32_t j = 0; j < i; j++)
                group[g] = fmax(group[g], b[g * width + i] + b[g * width + j]);
        }
    }
    for (uint32_t e = 0; e < c->n_expert; e++) {
        uint32_t n_better = 0, g = e / width;
        for (uint32_t h = 0; h < c->n_group; h++)
            n_better += group[h] > group[g] || (group[h] == group[g] && h < g);
        if (n_better >= c->topk_group) b[e] = -INFINITY;
    }
    double sum = 0;
    uint32_t n = 0;
    for (uint32_t e = 0; e < c->n_expert; e++) {
        uint32_t n_better = 0;
        for (uint32_t f = 0; f < c->n_expert; f++)
            n_better += b[f] > b[e] || (b[f] == b[e] && f < e);
        in[e] = n_better < c->n_expert_used;
        if (in[e]) sum += s[e];
    }
    for (uint32_t e = 0; e < c->n_expert; e++) {
        if (!in[e]) continue;
        want[n] = (float)e;
        want[c->n_expert_used + n] =
            (float)(s[e] / (c->norm_topk ? sum : 1) * (double)c->routed_scale);
        n++;
    }
    assert_int_equal(n, c->n_expert_used);
}

static void check(const struct backend_config *c, struct moe_tensors *t, struct gen *g)
{
    if (op_is_elsewhere(c->act)) return;
    struct rig ref, dev;
    uint32_t width = 2 * c->n_expert_used;
    rig_open_pair(&ref, &dev, c);
    struct weight *wr = rig_moe(&ref, t);
    struct weight *wd = rig_moe(&dev, t);
    float *x = gen_floats(g, (size_t)N * c->hidden, 1);
    float *want = run(&ref, wr, x, N);
    float *got = run(&dev, wd, x, N);
    for (uint32_t i = 0; i < N; i++) {
        float formula[128];
        const float *a = got + (size_t)i * width;
        const float *b = want + (size_t)i * width;
        choose(c, t, x + (size_t)i * c->hidden, formula);
        for (uint32_t k = 0; k < c->n_expert_used; k++) {
            if (a[k] != b[k] || b[k] != formula[k])
                fail_msg("token %u, choice %u: %g, ref %g, formula %g", i, k, (double)a[k],
                         (double)b[k], (double)formula[k]);
        }
        op_close("weights", a + c->n_expert_used, b + c->n_expert_used, c->n_expert_used, 1e-5);
        op_close("formula", b + c->n_expert_used, formula + c->n_expert_used, c->n_expert_used,
                 1e-6);
    }
    check_padding(&ref, wr, x);
    check_padding(&dev, wd, x);
    op_check_rows("router", &dev, run, wd, x, got, N, c->hidden, width);
    mem_free(want);
    mem_free(got);
    rig_close_pair(&ref, &dev);
}

static void test_groups(void **state)
{
    (void)state;
    for (int i = 0; i < 8; i++) {
        struct backend_config c;
        struct moe_tensors t;
        struct gen *g = gen_create(71);
        gen_config(&c, i & 1 ? ACT_BF16 : ACT_F32, KV_TYPE_BF16, i & 2);
        c.norm_topk = !(i & 4);
        if (i == 5) c.n_group = 16, c.topk_group = 7; /* groups of one */
        gen_moe(g, &c, DTYPE_BF16, &t);
        check(&c, &t, g);
        gen_destroy(g);
    }
}

/* Biases so negative that a dropped group's experts would win if masked with 0. */
static void test_negative_bias(void **state)
{
    (void)state;
    struct backend_config c;
    struct moe_tensors t;
    struct gen *g = gen_create(72);
    gen_config(&c, ACT_F32, KV_TYPE_BF16, false);
    gen_moe(g, &c, DTYPE_BF16, &t);
    t.router_bias = gen_vector(g, DTYPE_F32, c.n_expert, -5, 0.2f);
    check(&c, &t, g);
    gen_destroy(g);
}

/* All equal: the lowest experts of the lowest groups. */
static void test_ties(void **state)
{
    (void)state;
    struct backend_config c;
    struct moe_tensors t;
    struct gen *g = gen_create(73);
    gen_config(&c, ACT_F32, KV_TYPE_BF16, false);
    gen_moe(g, &c, DTYPE_BF16, &t);
    t.router.data = gen_alloc(g, c.n_expert * t.router.row_stride * 2);
    t.router_bias = gen_vector(g, DTYPE_F32, c.n_expert, 0, 0);
    check(&c, &t, g);
    gen_destroy(g);
}

/* A layer's experts, of which only the router is read: they all have the same matrices. */
static void gen_router(struct gen *g, struct backend_config *c, uint32_t n_expert,
                       struct moe_tensors *t)
{
    c->n_expert = 1;
    gen_moe(g, c, DTYPE_F8_E4M3, t);
    c->n_expert = n_expert;
    struct ffn_tensors *experts = gen_alloc(g, n_expert * sizeof *experts);
    for (uint32_t e = 0; e < n_expert; e++) experts[e] = t->experts[0];
    t->experts = experts;
    t->router = gen_matrix(g, DTYPE_BF16, n_expert, c->hidden, true);
    t->router_bias = gen_vector(g, DTYPE_F32, n_expert, 0, 0.2f);
}

/* FP8 activations: the router's inputs stay f32. Widths of more than one share of K, experts of
 * more than one tile, groups that do not fit lanes; 256 experts, also all equal ones. */
static void test_fp8(void **state)
{
    (void)state;
    static const uint32_t hidden[] = {256, 1152, 128, 128}, n_expert[] = {16, 96, 256, 256};
    static const uint32_t n_group[] = {4, 8, 8, 8};
    for (int i = 0; i < 4; i++) {
        struct backend_config c;
        struct moe_tensors t;
        struct gen *g = gen_create_for(74, ACT_FP8);
        gen_config(&c, ACT_FP8, KV_TYPE_BF16, false);
        c.hidden = hidden[i];
        c.n_group = n_group[i];
        c.topk_group = n_group[i] / 2;
        c.n_expert_used = i ? 8 : 4;
        gen_router(g, &c, n_expert[i], &t);
        if (i == 3) {
            t.router.data = gen_alloc(g, c.n_expert * t.router.row_stride * 2);
            t.router_bias = gen_vector(g, DTYPE_F32, c.n_expert, 0, 0);
        }
        check(&c, &t, g);
        gen_destroy(g);
    }
}

/* Scores have the same bits whether a token is among few or many, which other kernels may make. All
 * weights are negative and inputs positive, so that scores are about -30 and a chosen expert's
 * weight, the sigmoid without a norm, moves by 16 units for the last bit of its score. */
static void test_few_and_many(void **state)
{
    (void)state;
    struct backend_config c;
    struct moe_tensors t;
    struct rig r;
    struct gen *g = gen_create_for(75, ACT_FP8);
    gen_config(&c, ACT_FP8, KV_TYPE_BF16, false);
    c.hidden = 2304; /* K in parts of 16, 16 and 4 lines */
    c.n_group = c.topk_group = 1;
    c.n_expert_used = 32; /* as many as there may be beside no shared one */
    c.shared_inner = 0;
    c.norm_topk = false;
    gen_router(g, &c, 160, &t);
    uint16_t *weights = gen_alloc(g, (size_t)c.n_expert * c.hidden * sizeof *weights);
    for (uint32_t e = 0; e < c.n_expert; e++) {
        const uint16_t *from = (const uint16_t *)t.router.data + e * t.router.row_stride;
        for (uint32_t i = 0; i < c.hidden; i++) weights[e * c.hidden + i] = from[i] | 0x8000;
    }
    t.router.data = weights;
    t.router.row_stride = c.hidden;
    float *x = gen_floats(g, (size_t)N * c.hidden, 1);
    for (size_t i = 0; i < (size_t)N * c.hidden; i++) x[i] = fabsf(x[i]);
    rig_open(&r, op_backend(), &c);
    struct weight *w = rig_moe(&r, &t);
    float *full = run(&r, w, x, N);
    op_check_rows("few and many", &r, run, w, x, full, N, c.hidden, 2 * c.n_expert_used);
    mem_free(full);
    rig_close(&r);
    gen_destroy(g);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_groups),       cmocka_unit_test(test_negative_bias),
        cmocka_unit_test(test_ties),         cmocka_unit_test(test_fp8),
        cmocka_unit_test(test_few_and_many),
    };
    return OP_MAIN(argc, argv, tests);
}
