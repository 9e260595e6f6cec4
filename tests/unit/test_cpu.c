/* test_cpu.c - the CPU backend as a whole
 *
 * Two layers give the same bits however the tokens are cut into steps, by however many threads.
 * Weights come back from their panels. Bad input and failing allocations are clean. Single
 * operators are compared with ref in tests/op. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "backend/cpu/cpu_int.h"
#include "base/mem.h"
#include "base/rng.h"
#include "op/gen.h"

enum { N_LAYER = 2, N_KIND = BUFFER_LOGITS + 1 };

/* ---- a model of two layers ---- */

struct tensors {
    struct tensor_view table, norm, head;
    struct mla_tensors mla[N_LAYER];
    struct ffn_tensors ffn;
    struct moe_tensors moe;
};

struct rig {
    struct backend *b;
    struct backend_config c;
    struct weight *table, *norm, *head, *mla[N_LAYER], *ffn, *moe;
    struct buffer *buffer[N_KIND];
    struct kv_cache kv;
};

static void make_tensors(struct gen *g, const struct backend_config *c, struct tensors *t)
{
    t->table = gen_matrix(g, DTYPE_BF16, c->n_vocab, c->hidden, true);
    t->norm = gen_vector(g, DTYPE_BF16, c->hidden, 1, 0.1f);
    t->head = gen_matrix(g, DTYPE_BF16, c->n_vocab, c->hidden, true);
    for (int i = 0; i < N_LAYER; i++) gen_mla(g, c, DTYPE_F8_E4M3, &t->mla[i]);
    gen_ffn(g, DTYPE_F8_E4M3, c->hidden, c->dense_inner, &t->ffn);
    gen_moe(g, c, DTYPE_F8_E4M3, &t->moe);
}

static void ok(fathom_err err)
{
    assert_int_equal(err, FATHOM_OK);
}

static void open_rig(struct rig *r, const struct backend_config *c, enum cpu_isa isa,
                     const struct tensors *t, uint32_t n_page)
{
    fathom_diag d = {0};
    memset(r, 0, sizeof *r);
    r->c = *c;
    ok(backend_cpu_create_isa(&r->b, c, isa, &d));
    const struct backend_ops *ops = r->b->ops;
    ok(ops->prepare_linear(r->b, &t->table, &r->table, &d));
    ok(ops->prepare_linear(r->b, &t->head, &r->head, &d));
    ok(ops->prepare_vector(r->b, &t->norm, &r->norm, &d));
    for (int i = 0; i < N_LAYER; i++) ok(ops->prepare_mla(r->b, &t->mla[i], &r->mla[i], &d));
    ok(ops->prepare_ffn(r->b, &t->ffn, &r->ffn, &d));
    ok(ops->prepare_moe(r->b, &t->moe, &r->moe, &d));
    for (int i = 0; i < N_KIND; i++)
        ok(ops->buffer_create(r->b, (enum buffer_kind)i, &r->buffer[i], &d));
    r->kv = (struct kv_cache){.n_page = n_page, .layout = c->kv};
    ok(ops->alloc(r->b, n_page * c->kv.page_bytes, "cache", &r->kv.base, &d));
    memset(r->kv.base, 0xff, n_page * c->kv.page_bytes); /* NaN where nothing is written */
}

static void close_rig(struct rig *r)
{
    const struct backend_ops *ops = r->b->ops;
    struct weight *all[] = {r->table, r->norm, r->head, r->mla[0], r->mla[1], r->ffn, r->moe};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) ops->weight_destroy(r->b, all[i]);
    for (int i = 0; i < N_KIND; i++) ops->buffer_destroy(r->b, r->buffer[i]);
    ops->release(r->b, r->kv.base);
    ops->destroy(r->b);
}

static void run_attention(struct rig *r, const struct batch *batch, uint32_t layer)
{
    const struct backend_ops *ops = r->b->ops;
    bool is_long = batch->max_context > r->c.index_topk;
    struct mla_front_args front = {.w = r->mla[layer],
                                   .batch = batch,
                                   .kv = &r->kv,
                                   .layer = layer,
                                   .want_index_query = is_long,
                                   .x = r->buffer[BUFFER_NORMED],
                                   .query = r->buffer[BUFFER_QUERY]};
    struct index_topk_args topk = {.batch = batch,
                                   .kv = &r->kv,
                                   .layer = layer,
                                   .query = r->buffer[BUFFER_QUERY],
                                   .select = r->buffer[BUFFER_SELECT]};
    struct mla_attend_args attend = {.batch = batch,
                                     .kv = &r->kv,
                                     .layer = layer,
                                     .query = r->buffer[BUFFER_QUERY],
                                     .select = is_long ? r->buffer[BUFFER_SELECT] : NULL,
                                     .out = r->buffer[BUFFER_LATENT]};
    struct mla_out_args out = {.w = r->mla[layer],
                               .batch = batch,
                               .z = r->buffer[BUFFER_LATENT],
                               .y = r->buffer[BUFFER_DELTA]};
    ok(ops->mla_front(r->b, &front));
    if (is_long) ok(ops->index_topk(r->b, &topk));
    ok(ops->mla_attend(r->b, &attend));
    ok(ops->mla_out(r->b, &out));
}

/* One step; out: f32 [n_token][D], the final norm's output. */
static void run_step(struct rig *r, const struct batch *batch, float *out)
{
    const struct backend_ops *ops = r->b->ops;
    struct buffer **u = r->buffer;
    uint32_t n = batch->n_token;
    struct embed_args embed = {r->table, batch->ids, NULL, n, u[BUFFER_RESIDUAL]};
    struct reduce_norm_args norm = {.x = u[BUFFER_RESIDUAL],
                                    .delta = NULL,
                                    .weight = r->norm,
                                    .out = u[BUFFER_NORMED],
                                    .n_token = n};
    struct ffn_args ffn = {r->ffn, u[BUFFER_NORMED], u[BUFFER_DELTA], n};
    struct router_args router = {r->moe, u[BUFFER_NORMED], u[BUFFER_ROUTE], n, NULL};
    struct moe_args moe = {r->moe, u[BUFFER_NORMED], u[BUFFER_ROUTE], u[BUFFER_DELTA], n};
    ok(ops->embed(r->b, &embed));
    for (uint32_t layer = 0; layer < N_LAYER; layer++) {
        ok(ops->reduce_norm(r->b, &norm));
        norm.delta = u[BUFFER_DELTA];
        run_attention(r, batch, layer);
        ok(ops->reduce_norm(r->b, &norm));
        if (layer == 0) {
            ok(ops->ffn(r->b, &ffn));
        } else {
            ok(ops->router(r->b, &router));
            ok(ops->moe(r->b, &moe));
        }
    }
    ok(ops->reduce_norm(r->b, &norm));
    ok(ops->buffer_read(r->b, u[BUFFER_NORMED], 0, n, r->c.hidden, out));
}

/* The same tokens in steps of `n_step`, on a backend of its own. */
static void run_cut(struct gen *g, const struct backend_config *c, enum cpu_isa isa,
                    const struct tensors *t, const struct batch *batch, uint32_t n_page,
                    uint32_t n_step, float *out)
{
    struct rig r;
    open_rig(&r, c, isa, t, n_page);
    for (uint32_t t0 = 0; t0 < batch->n_token; t0 += n_step) {
        struct batch slice;
        gen_slice(g, batch, t0, min_u32(n_step, batch->n_token - t0), &slice);
        run_step(&r, &slice, out + (size_t)t0 * c->hidden);
    }
    close_rig(&r);
}

static void check_cuts(enum cpu_isa isa, enum act_type act, enum kv_type kv, bool wide)
{
    static const struct gen_request requests[] = {{0, 130}, {0, 3}, {0, 1}, {0, 26}};
    static const uint32_t cuts[][2] = {{1, 3}, {7, 2}, {64, 5}, {160, 4}}; /* step, threads */
    struct gen *g = gen_create(17);
    struct backend_config c;
    struct tensors t;
    struct batch batch;
    uint32_t n_page;
    gen_config(&c, act, kv, wide);
    make_tensors(g, &c, &t);
    gen_batch(g, &c, requests, 4, &batch, &n_page);
    size_t bytes = (size_t)batch.n_token * c.hidden * sizeof(float);
    float *whole = gen_alloc(g, bytes);
    float *cut = gen_alloc(g, bytes);
    c.n_thread = 1;
    run_cut(g, &c, isa, &t, &batch, n_page, batch.n_token, whole);
    for (size_t i = 0; i < bytes / sizeof(float); i++) assert_true(isfinite(whole[i]));
    for (size_t i = 0; i < sizeof cuts / sizeof *cuts; i++) {
        c.n_thread = cuts[i][1];
        run_cut(g, &c, isa, &t, &batch, n_page, cuts[i][0], cut);
        assert_memory_equal(cut, whole, bytes);
    }
    gen_destroy(g);
}

static void bits_do_not_depend_on_the_cut(void **state)
{
    static const enum cpu_isa isas[] = {CPU_ISA_AMX, CPU_ISA_AVX512, CPU_ISA_AVX2};
    (void)state;
    for (size_t i = 0; i < sizeof isas / sizeof *isas; i++) {
        if (!cpu_kernels_of(isas[i])) continue;
        check_cuts(isas[i], ACT_BF16, KV_TYPE_BF16, false);
        check_cuts(isas[i], ACT_F32, KV_TYPE_FP8, true);
        check_cuts(isas[i], ACT_FP8, KV_TYPE_FP8, false);
    }
    check_cuts(CPU_ISA_BEST, ACT_BF16, KV_TYPE_F32, true);
    check_cuts(CPU_ISA_PORTABLE, ACT_BF16, KV_TYPE_FP8, false);
}

/* Equal scores everywhere: the first index_topk positions, and not one slot more. */
static void equal_scores_select_the_first(void **state)
{
    (void)state;
    static const struct gen_request requests[] = {{300, 1}, {280, 2}, {100, 1}};
    struct gen *g = gen_create(23);
    struct backend_config c;
    struct backend *b;
    struct batch batch;
    struct buffer *query, *select;
    uint32_t n_page;
    fathom_diag d = {0};
    gen_config(&c, ACT_BF16, KV_TYPE_FP8, false);
    gen_batch(g, &c, requests, 3, &batch, &n_page);
    ok(backend_cpu_create(&b, &c, &d));
    ok(b->ops->buffer_create(b, BUFFER_QUERY, &query, &d)); /* zero: every score is 0 */
    ok(b->ops->buffer_create(b, BUFFER_SELECT, &select, &d));
    struct kv_cache kv = {
        .base = gen_cache(g, &c.kv, n_page, &batch, true), .n_page = n_page, .layout = c.kv};
    struct index_topk_args a = {.batch = &batch, .kv = &kv, .query = query, .select = select};
    ok(b->ops->index_topk(b, &a));
    float *row = gen_alloc(g, (1 + c.index_topk) * sizeof *row);
    for (uint32_t t = 0; t < batch.n_token; t++) {
        uint32_t n = min_u32((uint32_t)batch.pos[t] + 1, c.index_topk);
        ok(b->ops->buffer_read(b, select, t, 1, 1 + c.index_topk, row));
        assert_true(row[0] == (float)n);
        for (uint32_t i = 0; i < n; i++)
            assert_true(row[1 + i] == (float)gen_slot(&batch, (uint32_t)batch.request[t], i));
    }
    assert_int_equal(select->index[(size_t)batch.n_token * select->width], 0); /* untouched */
    b->ops->buffer_destroy(b, query);
    b->ops->buffer_destroy(b, select);
    b->ops->destroy(b);
    gen_destroy(g);
}

/* ---- weights ---- */

static struct cpu_backend small_backend(void)
{
    struct cpu_backend cpu = {.k = cpu_kernels_of(CPU_ISA_BEST), .n_thread = 2};
    fathom_diag d;
    ok(thread_pool_create(&cpu.pool, 2, &d));
    return cpu;
}

static void check_panels(struct cpu_backend *cpu, const struct tensor_view *v, uint32_t row0,
                         uint32_t n_row, bool transposed, enum pack_kind want)
{
    struct pack_part part = {.view = v, .row0 = row0, .n_row = n_row, .transposed = transposed};
    struct packed w;
    fathom_diag d = {0};
    float row[512];
    ok(pack_matrix(cpu, &part, 1, "matrix", &w, &d));
    assert_int_equal(w.kind, want);
    assert_int_equal(w.n_row, transposed ? v->n_col : n_row);
    assert_int_equal(w.n_col, transposed ? n_row : v->n_col);
    for (uint32_t r = 0; r < w.n_row; r++) {
        packed_row(&w, r, row);
        for (uint32_t c = 0; c < w.n_col; c++) {
            double value = transposed ? gen_element(v, row0 + c, r) : gen_element(v, row0 + r, c);
            if (isnan(value))
                assert_true(isnan(row[c]));
            else
                assert_true(row[c] == (float)value);
        }
    }
    packed_free(&w);
}

static void panels_hold_the_matrix(void **state)
{
    (void)state;
    struct cpu_backend cpu = small_backend();
    struct gen *g = gen_create(3);
    static const enum dtype types[] = {DTYPE_F32, DTYPE_F16, DTYPE_BF16, DTYPE_F8_E4M3};
    static const enum pack_kind kinds[] = {PACK_F32, PACK_F32, PACK_BF16, PACK_FP8};
    for (int i = 0; i < 4; i++) {
        struct tensor_view v = gen_matrix(g, types[i], 300, 400, false);
        check_panels(&cpu, &v, 0, 300, false, kinds[i]);
        check_panels(&cpu, &v, 17, 33, false, kinds[i]);
        check_panels(&cpu, &v, 64, 128, true, kinds[i]);
    }
    struct tensor_view v = gen_matrix(g, DTYPE_F8_E4M3, 200, 300, false);
    for (v.scale_row0 = 0; v.scale_row0 < 100; v.scale_row0 += 31) {
        for (v.scale_col0 = 0; v.scale_col0 < 128; v.scale_col0 += 17)
            check_panels(&cpu, &v, 0, 200, false, v.scale_col0 % 2 ? PACK_F32 : PACK_FP8);
    }
    v.scale_row0 = v.scale_col0 = 0;
    v.scale = NULL;
    check_panels(&cpu, &v, 0, 200, false, PACK_FP8);
    uint8_t codes[40 * 40];
    for (size_t i = 0; i < sizeof codes; i++) codes[i] = (uint8_t)i; /* NaN among them */
    v = (struct tensor_view){
        .data = codes, .dtype = DTYPE_F8_E4M3, .n_row = 40, .n_col = 40, .row_stride = 40};
    check_panels(&cpu, &v, 0, 40, false, PACK_F32);
    gen_destroy(g);
    thread_pool_destroy(cpu.pool);
}

static void some_codes(const struct weight_source *s, uint32_t row, uint32_t col, uint32_t n,
                       uint8_t *out)
{
    (void)s;
    for (uint32_t i = 0; i < n; i++) out[i] = (uint8_t)((row * 5 + (col + i) * 3) % 16);
}

static float some_scale(const struct weight_source *s, uint32_t row, uint32_t block, int *zero)
{
    (void)s;
    *zero = (int)((row + block) % 17);
    return 0.25f + (float)(row % 7) + (float)block / 8;
}

/* Rows of a packed matrix, or columns of a transposed one, are those of the view. */
static void check_decoded(struct cpu_backend *cpu, const struct tensor_view *v, bool transposed,
                          enum pack_kind want, uint32_t block_pairs)
{
    struct pack_part part = {.view = v, .row0 = 16, .n_row = 96, .transposed = transposed};
    struct packed w;
    fathom_diag d = {0};
    float row[512], element;
    ok(pack_matrix(cpu, &part, 1, "matrix", &w, &d));
    assert_int_equal(w.kind, want);
    assert_int_equal(w.block_pairs, block_pairs);
    for (uint32_t r = 0; r < w.n_row; r++) {
        packed_row(&w, r, row);
        for (uint32_t c = 0; c < w.n_col; c++) {
            tensor_view_row(v, 16 + (transposed ? c : r), transposed ? r : c, 1, &element);
            assert_true(row[c] == element);
        }
    }
    packed_free(&w);
}

static void panels_hold_codes_of_every_form_exactly(void **state)
{
    (void)state;
    struct cpu_backend cpu = small_backend();
    static const uint32_t groups[][2] = {{16, 8},  {32, 16},  {48, 8}, {64, 32},
                                         {96, 16}, {128, 64}, {0, 64}, {8, 64}};
    for (size_t i = 0; i < sizeof groups / sizeof *groups; i++) {
        for (int fp4 = 0; fp4 < 2; fp4++) {
            struct weight_source s = {.form = {.code = fp4 ? CODE_E2M1 : CODE_U4,
                                               .block_row = 1,
                                               .block_col = groups[i][0],
                                               .has_zero = !fp4},
                                      .n_row = 120,
                                      .n_col = 384,
                                      .codes = some_codes,
                                      .scale = some_scale};
            struct tensor_view v = {.n_row = 112, .n_col = 384, .source = &s, .source_row0 = 8};
            enum pack_kind kind = fp4 ? PACK_E2M1 : PACK_U4;
            check_decoded(&cpu, &v, false, groups[i][0] == 8 ? PACK_F32 : kind, groups[i][1]);
            check_decoded(&cpu, &v, true, PACK_F32, 64);
        }
    }
    int8_t codes[112 * 300];
    float scales[112 * 3];
    for (size_t i = 0; i < sizeof codes; i++) codes[i] = (int8_t)((int)(i * 37 % 255) - 127);
    for (int i = 0; i < 336; i++) scales[i] = 0.1f + (float)i;
    struct tensor_view v = {.data = codes,
                            .dtype = DTYPE_I8,
                            .n_row = 112,
                            .n_col = 300,
                            .row_stride = 300,
                            .scale = scales,
                            .scale_stride = 3};
    check_decoded(&cpu, &v, false, PACK_I8, 64);
    check_decoded(&cpu, &v, true, PACK_I8, 64);
    v.scale_stride = v.scale_block_row = 1;
    v.scale_block_col = TENSOR_SCALE_WHOLE;
    check_decoded(&cpu, &v, false, PACK_I8, 64);
    check_decoded(&cpu, &v, true, PACK_F32, 64);
    v.scale_block_row = TENSOR_SCALE_WHOLE;
    check_decoded(&cpu, &v, true, PACK_I8, 64);
    codes[50 * 300 + 7] = -128; /* has no sign and magnitude */
    check_decoded(&cpu, &v, false, PACK_BF16, 64);
    thread_pool_destroy(cpu.pool);
}

static void generated_values_have_their_deviation(void **state)
{
    (void)state;
    struct cpu_backend cpu = small_backend();
    static const enum dtype types[] = {DTYPE_F32, DTYPE_BF16, DTYPE_F8_E4M3};
    float row[256], again[256];
    fathom_diag d;
    for (int i = 0; i < 3; i++) {
        struct tensor_view v = {.dtype = types[i],
                                .n_row = 96,
                                .n_col = 256,
                                .generate_seed = 4,
                                .generate_std = 0.125f};
        struct pack_part whole = {.view = &v, .n_row = 96};
        struct pack_part part = {.view = &v, .row0 = 40, .n_row = 10};
        struct packed a, b;
        double square = 0;
        ok(pack_matrix(&cpu, &whole, 1, "whole", &a, &d));
        ok(pack_matrix(&cpu, &part, 1, "part", &b, &d));
        for (uint32_t r = 0; r < 96; r++) {
            packed_row(&a, r, row);
            for (int c = 0; c < 256; c++) square += (double)row[c] * (double)row[c];
            if (r < 40 || r >= 50) continue;
            packed_row(&b, r - 40, again);
            assert_memory_equal(row, again, sizeof row);
        }
        assert_true(fabs(sqrt(square / (96 * 256)) - 0.125) < 0.005);
        packed_free(&a);
        packed_free(&b);
    }
    thread_pool_destroy(cpu.pool);
}

/* ---- what cannot be ---- */

static void odd_configurations_are_refused(void **state)
{
    (void)state;
    struct backend_config good, c;
    struct backend *b;
    gen_config(&good, ACT_F32, KV_TYPE_F32, false);
#define REFUSED(change, code, word)                                                                \
    do {                                                                                           \
        fathom_diag d = {0};                                                                       \
        c = good;                                                                                  \
        change;                                                                                    \
        assert_int_equal(backend_cpu_create(&b, &c, &d), code);                                    \
        assert_null(b);                                                                            \
        assert_non_null(strstr(d.text, word));                                                     \
    } while (0)
    REFUSED(c.hidden = 0, FATHOM_EINVAL, "hidden");
    REFUSED(c.max_token = 0, FATHOM_EINVAL, "max_token");
    REFUSED(c.nope_dim = 100, FATHOM_EUNSUPPORTED, "nope_dim");
    REFUSED(c.v_dim = 48, FATHOM_EUNSUPPORTED, "v_dim");
    REFUSED(c.parallel.tp.size = 65, FATHOM_EUNSUPPORTED, "65 ranks");
    REFUSED(c.index_topk = 0, FATHOM_EINVAL, "index_topk");
    REFUSED(c.kv.has_index = false, FATHOM_EINVAL, "has_index");
    REFUSED(c.n_group = 5, FATHOM_EINVAL, "n_group");
    REFUSED(c.topk_group = 9, FATHOM_EINVAL, "topk_group");
    REFUSED(c.n_expert_used = 9, FATHOM_EINVAL, "n_expert_used");
    REFUSED(c.n_thread = 1000000, FATHOM_EINVAL, "threads");
#undef REFUSED
}

static void odd_weights_are_refused(void **state)
{
    (void)state;
    struct gen *g = gen_create(1);
    struct backend_config c;
    struct backend *b;
    struct weight *w;
    struct mla_tensors mla;
    struct moe_tensors moe;
    fathom_diag d = {0};
    gen_config(&c, ACT_F32, KV_TYPE_F32, false);
    ok(backend_cpu_create(&b, &c, &d));
    gen_mla(g, &c, DTYPE_BF16, &mla);
    mla.kv_b.n_row--;
    assert_int_equal(b->ops->prepare_mla(b, &mla, &w, &d), FATHOM_EMISMATCH);
    assert_null(w);
    assert_non_null(strstr(d.text, "kv_b"));
    d.text[0] = 0;
    gen_moe(g, &c, DTYPE_BF16, &moe);
    moe.shared.down.dtype = DTYPE_I8;
    assert_int_equal(b->ops->prepare_moe(b, &moe, &w, &d), FATHOM_EUNSUPPORTED);
    assert_null(w);
    assert_non_null(strstr(d.text, "down"));
    d.text[0] = 0;
    struct tensor_view empty = {.dtype = DTYPE_F32, .n_row = 0, .n_col = 4};
    assert_int_equal(b->ops->prepare_linear(b, &empty, &w, &d), FATHOM_EINVAL);
    assert_null(w);
    b->ops->weight_destroy(b, NULL);
    b->ops->destroy(b);
    b = NULL;
    gen_destroy(g);
}

static void buffers_check_what_is_asked(void **state)
{
    (void)state;
    struct backend_config c;
    struct backend *b;
    struct buffer *buf;
    fathom_diag d = {0};
    float row[4096] = {0};
    gen_config(&c, ACT_F32, KV_TYPE_F32, false);
    ok(backend_cpu_create(&b, &c, &d));
    ok(b->ops->buffer_create(b, BUFFER_DELTA, &buf, &d));
    ok(b->ops->buffer_read(b, buf, c.max_token - 1, 1, c.hidden, row));
    assert_int_equal(b->ops->buffer_read(b, buf, c.max_token, 1, c.hidden, row), FATHOM_EINVAL);
    assert_int_equal(b->ops->buffer_read(b, buf, 0, 1, c.hidden + 1, row), FATHOM_EINVAL);
    assert_int_equal(b->ops->buffer_write(b, buf, 1, UINT32_MAX, c.hidden, row), FATHOM_EINVAL);
    b->ops->buffer_destroy(b, buf);
    b->ops->destroy(b);
}

static void every_failing_allocation_is_clean(void **state)
{
    (void)state;
    struct gen *g = gen_create(2);
    struct backend_config c;
    struct mla_tensors mla;
    struct moe_tensors moe;
    gen_config(&c, ACT_BF16, KV_TYPE_BF16, false);
    c.hidden = c.q_lora_rank = c.moe_inner = c.shared_inner = 32;
    c.n_head = c.index_n_head = 1;
    c.n_expert = 4;
    c.n_expert_used = c.n_group = c.topk_group = 2;
    c.max_token = c.max_context = c.max_logit_row = 8;
    gen_mla(g, &c, DTYPE_F8_E4M3, &mla);
    gen_moe(g, &c, DTYPE_F8_E4M3, &moe);
    for (long n = 0;; n++) {
        struct backend *b = NULL;
        struct weight *attention = NULL;
        struct weight *experts = NULL;
        struct buffer *buf = NULL;
        fathom_diag d = {0};
        mem_fail_after(n);
        fathom_err err = backend_cpu_create(&b, &c, &d);
        if (!err) err = b->ops->prepare_mla(b, &mla, &attention, &d);
        if (!err) err = b->ops->prepare_moe(b, &moe, &experts, &d);
        if (!err) err = b->ops->buffer_create(b, BUFFER_NORMED, &buf, &d);
        bool hit = mem_fail_hit();
        mem_fail_after(-1);
        assert_int_equal(err, hit ? FATHOM_ENOMEM : FATHOM_OK);
        assert_true(!hit || d.text[0] != 0);
        if (b) {
            b->ops->weight_destroy(b, attention);
            b->ops->weight_destroy(b, experts);
            b->ops->buffer_destroy(b, buf);
            b->ops->destroy(b);
        }
        if (!hit) break;
    }
    gen_destroy(g);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bits_do_not_depend_on_the_cut),
        cmocka_unit_test(equal_scores_select_the_first),
        cmocka_unit_test(panels_hold_the_matrix),
        cmocka_unit_test(panels_hold_codes_of_every_form_exactly),
        cmocka_unit_test(generated_values_have_their_deviation),
        cmocka_unit_test(odd_configurations_are_refused),
        cmocka_unit_test(odd_weights_are_refused),
        cmocka_unit_test(buffers_check_what_is_asked),
        cmocka_unit_test(every_failing_allocation_is_clean),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
