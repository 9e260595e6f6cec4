/* test_op_moe.c - routed experts and the shared one */
#include "op/harness.h"

#include <math.h>
#include <string.h>

#include "base/mem.h"

enum { N = 129 };

struct moe_case {
    struct weight *w;
    const float *x;     /* [N][D] all rows */
    const float *route; /* [N][2K] */
};

static float *run(struct rig *r, void *arg, const float *x, uint32_t n)
{
    const struct moe_case *k = arg;
    uint32_t hidden = r->config.hidden;
    uint32_t width = 2 * r->config.n_expert_used;
    size_t row0 = (size_t)(x - k->x) / hidden;
    rig_write(r, BUFFER_NORMED, n, hidden, x);
    rig_write(r, BUFFER_ROUTE, n, width, k->route + row0 * width);
    struct moe_args args = {.w = k->w,
                            .x = r->buffer[BUFFER_NORMED],
                            .route = r->buffer[BUFFER_ROUTE],
                            .y = r->buffer[BUFFER_DELTA],
                            .n_token = n};
    op_ok(r, r->ops->moe(r->b, &args), "moe");
    return rig_read(r, BUFFER_DELTA, n, hidden);
}

/* Distinct ascending experts; the first tokens all choose the same ones. */
static float *gen_route(struct gen *g, const struct backend_config *c)
{
    uint32_t used = c->n_expert_used;
    float *route = gen_alloc(g, (size_t)N * 2 * used * sizeof *route);
    for (uint32_t t = 0; t < N; t++) {
        float *row = route + (size_t)t * 2 * used;
        uint32_t n = 0;
        for (uint32_t e = 0; e < c->n_expert && n < used; e++) {
            uint32_t left = c->n_expert - e;
            if (t < 40 || gen_below(g, left) < used - n) row[n++] = (float)e;
        }
        for (uint32_t i = 0; i < used; i++) row[used + i] = 0.1f + fabsf(gen_normal(g));
    }
    return route;
}

/* want += weight * ffn(x) */
static void add_expert(struct gen *g, const struct ffn_tensors *t, enum act_type act,
                       const double *x, double weight, double *want)
{
    uint32_t inner = t->gate.n_row;
    double *mid = gen_alloc(g, inner * sizeof *mid);
    for (uint32_t i = 0; i < inner; i++) {
        double gate = gen_product(&t->gate, i, x, act);
        mid[i] = gate / (1 + exp(-gate)) * gen_product(&t->up, i, x, act);
    }
    for (uint32_t i = 0; i < t->down.n_row; i++)
        want[i] += weight * gen_product(&t->down, i, mid, act);
}

static void check_formula(struct gen *g, const struct backend_config *c,
                          const struct moe_tensors *t, const float *x, const float *route,
                          const float *got)
{
    double *row = gen_alloc(g, c->hidden * sizeof *row);
    double *want = gen_alloc(g, c->hidden * sizeof *want);
    for (uint32_t i = 0; i < c->hidden; i++) row[i] = (double)x[i];
    for (uint32_t k = 0; k < c->n_expert_used; k++)
        add_expert(g, &t->experts[(uint32_t)route[k]], c->act, row,
                   (double)route[c->n_expert_used + k], want);
    if (c->shared_inner > 0) add_expert(g, &t->shared, c->act, row, 1, want);
    op_close_double("formula", got, want, c->hidden, op_formula_limit(c->act));
}

/* form: of weights of F8_E4M3, or NULL */
static void check_form(const struct backend_config *c, enum dtype t, const struct weight_form *form,
                       uint32_t n_row)
{
    if (op_is_elsewhere(c->act)) return;
    char text[WEIGHT_FORM_TEXT_BYTES];
    const char *what = form ? weight_form_text(text, form) : dtype_name(t);
    struct rig ref, dev;
    struct moe_tensors tensors;
    struct gen *g = gen_create_for(81, c->act);
    rig_open_pair(&ref, &dev, c);
    if (form) gen_code_as(g, form);
    gen_moe(g, c, t, &tensors);
    float *x = gen_floats(g, (size_t)N * c->hidden, 1);
    float *route = gen_route(g, c);
    struct moe_case kr = {rig_moe(&ref, &tensors), x, route};
    struct moe_case kd = {rig_moe(&dev, &tensors), x, route};
    float *want = run(&ref, &kr, x, n_row);
    float *got = run(&dev, &kd, x, n_row);
    op_close(what, got, want, (size_t)n_row * c->hidden, op_tolerance(c->act));
    if (!form || !op_wants_few() || op_form_has_product(form))
        op_check_rows(what, &dev, run, &kd, x, got, n_row, c->hidden, c->hidden);
    for (uint32_t i = 3; i < n_row; i += 80)
        check_formula(g, c, &tensors, x + (size_t)i * c->hidden,
                      route + (size_t)i * 2 * c->n_expert_used, want + (size_t)i * c->hidden);
    mem_free(want);
    mem_free(got);
    rig_close_pair(&ref, &dev);
    gen_destroy(g);
}

static void check_config(const struct backend_config *c, enum dtype t, uint32_t n_row)
{
    check_form(c, t, NULL, n_row);
}

static void test_every_form(void **state)
{
    (void)state;
    for (size_t i = 0; i < op_n_weight_form; i++) {
        const struct weight_form *form = &op_weight_forms[i];
        struct backend_config c;
        gen_config(&c, i % 2 ? ACT_F32 : ACT_BF16, KV_TYPE_BF16, i % 4 < 2);
        if (!op_wants_few()) check_form(&c, DTYPE_F8_E4M3, form, 17);
        gen_config(&c, ACT_FP8, KV_TYPE_BF16, false);
        if (i == 1 || (i == 4 && !op_wants_few()))
            c.moe_inner = c.shared_inner = 768; /* sums in two parts */
        if (op_wants_few() && i != 1) {
            c.hidden = 128;
            c.n_expert = 4;
            c.n_expert_used = 2;
            c.n_group = c.topk_group = 1;
        }
        if (op_wants_few() && i >= 4 && i % 2) continue; /* two scales more of E2M1 and I8 */
        check_form(&c, DTYPE_F8_E4M3, form, i < 2 || i == 4 ? N : 17);
    }
}

/* Inputs are int8 codes: what is left are values on either side of a code's boundary, and experts'
 * rows that a GPU may round to bf16, by 2^-9 at most. */
static void test_int8_inputs(void **state)
{
    (void)state;
    static const struct weight_form forms[] = {
        {.code = CODE_I8, .scale_type = DTYPE_F32, .block_row = 1},
        {.code = CODE_I8, .scale_type = DTYPE_F32, .block_row = 128, .block_col = 128}};
    for (size_t i = 0; i < sizeof forms / sizeof *forms; i++) {
        struct backend_config c;
        struct rig ref, dev;
        struct moe_tensors tensors;
        struct gen *g = gen_create_for(83, ACT_INT8);
        gen_config(&c, ACT_INT8, KV_TYPE_BF16, false);
        if (i == 1) c.shared_inner = 256; /* a shared expert by itself */
        rig_open_pair(&ref, &dev, &c);
        gen_code_as(g, &forms[i]);
        gen_moe(g, &c, DTYPE_F8_E4M3, &tensors);
        float *x = gen_floats(g, (size_t)N * c.hidden, 1);
        float *route = gen_route(g, &c);
        struct moe_case kr = {rig_moe(&ref, &tensors), x, route};
        struct moe_case kd = {rig_moe(&dev, &tensors), x, route};
        float *want = run(&ref, &kr, x, N);
        float *got = run(&dev, &kd, x, N);
        op_close("int8 inputs", got, want, (size_t)N * c.hidden, op_is_cuda() ? 3e-3 : 1e-3);
        op_check_rows("int8 inputs", &dev, run, &kd, x, got, N, c.hidden, c.hidden);
        mem_free(want);
        mem_free(got);
        rig_close_pair(&ref, &dev);
        gen_destroy(g);
    }
}

static void check(enum act_type act, enum dtype t, bool wide, bool with_shared)
{
    struct backend_config c;
    gen_config(&c, act, KV_TYPE_BF16, wide);
    if (!with_shared) c.shared_inner = 0;
    /* on a simulated GPU the floats of one type have as many rows as codes have */
    check_config(&c, t, op_wants_few() && act != ACT_FP8 && t != DTYPE_BF16 ? 33 : N);
}

static void test_every_type(void **state)
{
    (void)state;
    for (size_t t = 0; t < op_n_weight_type; t++) {
        check(ACT_F32, op_weight_types[t], t % 2 == 1, true);
        check(ACT_BF16, op_weight_types[t], t % 2 == 0, true);
    }
    check(ACT_FP8, DTYPE_F8_E4M3, false, true);
    check(ACT_FP8, DTYPE_BF16, false, true);
}

static void test_without_shared(void **state)
{
    (void)state;
    check(ACT_F32, DTYPE_F8_E4M3, false, false);
    check(ACT_FP8, DTYPE_F8_E4M3, false, false);
}

/* Experts whose sums have two shares; a token's slots have more lines of K than are on their way to
 * a multiprocessor at once. */
static void test_long_sums(void **state)
{
    (void)state;
    struct backend_config c;
    gen_config(&c, ACT_FP8, KV_TYPE_BF16, false);
    c.moe_inner = c.shared_inner = 768;
    check_config(&c, DTYPE_F8_E4M3, 17);
}

/* Every token takes every expert: so many rows an expert, of such a width, that a device may bring
 * them in order. */
static void test_every_expert(void **state)
{
    (void)state;
    struct backend_config c;
    gen_config(&c, ACT_FP8, KV_TYPE_BF16, false);
    c.n_expert = c.n_expert_used = 2;
    c.n_group = c.topk_group = 1;
    c.moe_inner = 1024;
    check_config(&c, DTYPE_F8_E4M3, N);
    c.moe_inner = c.shared_inner = 512; /* K of down in one part: tasks of up to 256 rows */
    check_config(&c, DTYPE_F8_E4M3, N);
}

/* A step's router and its experts, one after the other, then the experts of the same choice by
 * themselves: a device may have used what its router left. */
static void check_routed(struct rig *r, struct moe_case *k, uint32_t n)
{
    const uint32_t hidden = r->config.hidden, width = 2 * r->config.n_expert_used;
    struct router_args router = {
        .w = k->w, .x = r->buffer[BUFFER_NORMED], .route = r->buffer[BUFFER_ROUTE], .n_token = n};
    struct moe_args moe = {.w = k->w,
                           .x = r->buffer[BUFFER_NORMED],
                           .route = r->buffer[BUFFER_ROUTE],
                           .y = r->buffer[BUFFER_DELTA],
                           .n_token = n};
    rig_write(r, BUFFER_NORMED, n, hidden, k->x);
    op_ok(r, r->ops->router(r->b, &router), "router");
    op_ok(r, r->ops->moe(r->b, &moe), "moe");
    float *got = rig_read(r, BUFFER_DELTA, n, hidden);
    float *route = rig_read(r, BUFFER_ROUTE, n, width);
    const struct moe_case again = {k->w, k->x, route};
    float *want = run(r, (void *)&again, k->x, n);
    op_same_bits("experts behind their router", got, want, (size_t)n * hidden * sizeof *got);
    mem_free(got);
    mem_free(route);
    mem_free(want);
}

static void test_behind_router(void **state)
{
    (void)state;
    const uint32_t rows[] = {1, 2, 64, 8, 65, 1, N};
    struct backend_config c;
    struct rig ref, dev;
    struct moe_tensors tensors;
    struct gen *g = gen_create_for(82, ACT_FP8);
    gen_config(&c, ACT_FP8, KV_TYPE_BF16, false);
    rig_open_pair(&ref, &dev, &c);
    gen_moe(g, &c, DTYPE_F8_E4M3, &tensors);
    struct moe_case k = {rig_moe(&dev, &tensors), gen_floats(g, (size_t)N * c.hidden, 1), NULL};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) check_routed(&dev, &k, rows[i]);
    rig_close_pair(&ref, &dev);
    gen_destroy(g);
}

/* Experts of normed rows, then of the same rows brought by themselves: a device may have used what
 * its norm left for them. */
static void check_normed(struct rig *r, struct weight *w, const struct weight *norm, const float *x,
                         const float *route, uint32_t n)
{
    const uint32_t hidden = r->config.hidden;
    rig_write(r, BUFFER_RESIDUAL, n, hidden, x);
    rig_write(r, BUFFER_ROUTE, n, 2 * r->config.n_expert_used, route);
    struct reduce_norm_args a = {.x = r->buffer[BUFFER_RESIDUAL],
                                 .weight = norm,
                                 .reader = w,
                                 .out = r->buffer[BUFFER_NORMED],
                                 .n_token = n};
    struct moe_args moe = {.w = w,
                           .x = r->buffer[BUFFER_NORMED],
                           .route = r->buffer[BUFFER_ROUTE],
                           .y = r->buffer[BUFFER_DELTA],
                           .n_token = n};
    op_ok(r, r->ops->reduce_norm(r->b, &a), "reduce_norm");
    op_ok(r, r->ops->moe(r->b, &moe), "moe");
    float *got = rig_read(r, BUFFER_DELTA, n, hidden);
    float *normed = rig_read(r, BUFFER_NORMED, n, hidden);
    const struct moe_case again = {w, normed, route};
    float *want = run(r, (void *)&again, normed, n);
    op_same_bits("experts behind their norm", got, want, (size_t)n * hidden * sizeof *got);
    mem_free(got);
    mem_free(normed);
    mem_free(want);
}

static void test_behind_norm(void **state)
{
    (void)state;
    for (size_t i = 0; i < op_n_weight_form; i++) {
        if (op_weight_forms[i].code != CODE_U4) continue;
        struct backend_config c;
        struct rig r;
        struct moe_tensors tensors;
        struct gen *g = gen_create_for(84, ACT_FP8);
        gen_config(&c, ACT_FP8, KV_TYPE_BF16, false);
        c.n_expert = 4;
        c.n_expert_used = 2;
        c.n_group = c.topk_group = 1;
        rig_open(&r, op_backend(), &c);
        gen_code_as(g, &op_weight_forms[i]);
        gen_moe(g, &c, DTYPE_F8_E4M3, &tensors);
        const struct tensor_view vector = gen_vector(g, DTYPE_F32, c.hidden, 1, 0.2f);
        struct weight *w = rig_moe(&r, &tensors), *norm = rig_vector(&r, &vector);
        const float *x = gen_floats(g, (size_t)N * c.hidden, 1), *route = gen_route(g, &c);
        check_normed(&r, w, norm, x, route, 3);
        check_normed(&r, w, norm, x, route, i < 2 ? N : 17);
        rig_close(&r);
        gen_destroy(g);
    }
}

/* A rank of n that have the same rows, measured by itself. */
static void open_slice(struct rig *r, const char *backend, const struct backend_config *all,
                       uint32_t i, uint32_t n)
{
    struct backend_config c = *all;
    c.parallel = parallel_one();
    c.parallel.tp = (struct axis){.rank = i, .size = n};
    c.parallel.experts_whole = c.parallel.is_slice = true;
    rig_open(r, backend, &c);
}

/* Of rank i's experts alone, and of the shared one. */
static void check_slice(struct gen *g, const struct backend_config *c,
                        const struct moe_tensors *tensors, uint32_t i, uint32_t n)
{
    struct rig ref, dev;
    struct moe_tensors part = *tensors;
    float *x = gen_floats(g, (size_t)N * c->hidden, 1), *route = gen_route(g, c);
    const size_t n_value = (size_t)N * c->hidden;
    open_slice(&ref, "ref", c, i, n);
    open_slice(&dev, op_backend(), c, i, n);
    part.experts += parallel_first_expert(&dev.config.parallel, c->n_expert);
    struct moe_case kr = {rig_moe(&ref, &part), x, route};
    struct moe_case kd = {rig_moe(&dev, &part), x, route};
    float *want = run(&ref, &kr, x, N), *got = run(&dev, &kd, x, N);
    op_close("a rank's experts", got, want, n_value, op_tolerance(c->act));
    op_check_rows("a rank's experts", &dev, run, &kd, x, got, N, c->hidden, c->hidden);
    mem_free(want);
    mem_free(got);
    rig_close(&ref);
    rig_close(&dev);
}

/* Experts are whole on ranks that have the same rows: some rows have none of them on a rank, the
 * first ones all on rank 0. */
static void check_ranks(enum act_type act, enum dtype t, uint32_t n, uint32_t shared_inner)
{
    struct backend_config c;
    struct moe_tensors tensors;
    struct gen *g = gen_create_for(85, act);
    gen_config(&c, act, KV_TYPE_BF16, false);
    c.shared_inner = shared_inner;
    gen_moe(g, &c, t, &tensors);
    for (uint32_t i = 0; i < n; i++) check_slice(g, &c, &tensors, i, n);
    gen_destroy(g);
}

static void test_whole_on_ranks(void **state)
{
    (void)state;
    check_ranks(ACT_FP8, DTYPE_F8_E4M3, 2, 128);
    check_ranks(ACT_FP8, DTYPE_F8_E4M3, 4, 0);
    if (op_wants_few()) return;
    check_ranks(ACT_FP8, DTYPE_F8_E4M3, 4, 256);
    check_ranks(ACT_F32, DTYPE_BF16, 4, 128);
    check_ranks(ACT_BF16, DTYPE_F8_E4M3, 2, 128);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_type),     cmocka_unit_test(test_every_form),
        cmocka_unit_test(test_int8_inputs),    cmocka_unit_test(test_without_shared),
        cmocka_unit_test(test_long_sums),      cmocka_unit_test(test_every_expert),
        cmocka_unit_test(test_behind_router),  cmocka_unit_test(test_behind_norm),
        cmocka_unit_test(test_whole_on_ranks),
    };
    return OP_MAIN(argc, argv, tests);
}
