/* test_op_weight.c - weights that the backend makes or refuses; configs, memory, buffers */
#include "op/harness.h"

#include <math.h>
#include <string.h>

#include "base/mem.h"

enum { N_ROW = 8 };

/* Logits of N_ROW rows of hidden states x. */
static float *run(struct rig *r, const struct weight *w, const float *x)
{
    const int32_t rows[N_ROW] = {0, 1, 2, 3, 4, 5, 6, 7};
    rig_write(r, BUFFER_NORMED, N_ROW, r->config.hidden, x);
    int32_t *device = rig_put(r, rows, sizeof rows);
    struct head_args args = {.w = w,
                             .hidden = r->buffer[BUFFER_NORMED],
                             .rows = device,
                             .n_row = N_ROW,
                             .logits = r->buffer[BUFFER_LOGITS]};
    op_ok(r, r->ops->head(r->b, &args), "head");
    rig_drop(r, device);
    return rig_read(r, BUFFER_LOGITS, N_ROW, r->config.n_vocab);
}

/* A tensor without data is made by the backend: normal, and the same for the same seed. */
static void test_generated(void **state)
{
    (void)state;
    const enum dtype types[] = {DTYPE_BF16, DTYPE_F8_E4M3, DTYPE_I8};
    for (int i = 0; i < 3; i++) {
        struct backend_config c;
        struct rig r;
        struct gen *g = gen_create(32);
        gen_config(&c, ACT_F32, KV_TYPE_BF16, false);
        rig_open(&r, op_backend(), &c);
        struct tensor_view v = {.dtype = types[i],
                                .n_row = c.n_vocab,
                                .n_col = c.hidden,
                                .row_stride = c.hidden,
                                .generate_seed = 5,
                                .generate_std = 0.02f};
        struct weight *a = rig_linear(&r, &v);
        struct weight *b = rig_linear(&r, &v);
        v.generate_seed = 6;
        struct weight *other = rig_linear(&r, &v);
        assert_true(r.ops->weight_bytes(a) > 0);
        float *x = gen_floats(g, (size_t)N_ROW * c.hidden, 1);
        float *ya = run(&r, a, x);
        float *yb = run(&r, b, x);
        float *yo = run(&r, other, x);
        size_t n = (size_t)N_ROW * c.n_vocab;
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

/* With an input that is one at column k and zero elsewhere, logits are column k of the matrix. The
 * backend decodes it on the way or in its products; both have to be what tensor_view_row says. */
static void test_decoded(void **state)
{
    (void)state;
    const enum dtype types[] = {DTYPE_F32, DTYPE_F16, DTYPE_BF16, DTYPE_F8_E4M3};
    for (int i = 0; i < 4; i++) {
        struct backend_config c;
        struct rig r;
        struct gen *g = gen_create(34);
        gen_config(&c, ACT_F32, KV_TYPE_F32, true);
        rig_open(&r, op_backend(), &c);
        struct tensor_view v = gen_matrix(g, types[i], c.n_vocab, c.hidden, false);
        struct weight *w = rig_linear(&r, &v);
        float *x = mem_calloc((size_t)N_ROW * c.hidden, sizeof *x);
        uint32_t column[N_ROW];
        for (uint32_t n = 0; n < N_ROW; n++) {
            column[n] = n * (c.hidden - 1) / (N_ROW - 1); /* the first and the last among them */
            x[(size_t)n * c.hidden + column[n]] = 1;
        }
        float *y = run(&r, w, x);
        for (uint32_t n = 0; n < N_ROW; n++) {
            for (uint32_t row = 0; row < c.n_vocab; row++) {
                float want;
                tensor_view_row(&v, row, column[n], 1, &want);
                if (y[(size_t)n * c.n_vocab + row] != want) {
                    fail_msg("%s [%u][%u] is %a, and %a with tensor_view_row", dtype_name(types[i]),
                             row, column[n], (double)y[(size_t)n * c.n_vocab + row], (double)want);
                }
            }
        }
        mem_free(x);
        mem_free(y);
        rig_close(&r);
        gen_destroy(g);
    }
}

/* Made-up codes of four bits are the same on every backend, in a part of a matrix too. */
static void test_made_sources(void **state)
{
    (void)state;
    for (size_t i = 0; i < op_n_weight_form; i++) {
        const struct weight_form *form = &op_weight_forms[i];
        if (form->code != CODE_U4 && form->code != CODE_E2M1) continue;
        struct backend_config c;
        struct rig r;
        struct weight_source s;
        gen_config(&c, ACT_F32, KV_TYPE_F32, false);
        c.n_vocab = 140;
        rig_open(&r, op_backend(), &c);
        weight_source_make(&s, form, c.n_vocab + 3, c.hidden + 128, 9, 0.02f);
        const struct tensor_view v = {.n_row = c.n_vocab,
                                      .n_col = c.hidden,
                                      .source = &s,
                                      .source_row0 = 3,
                                      .source_col0 = form->block_col ? 128 : 0};
        struct weight *w = rig_linear(&r, &v);
        float *x = mem_calloc((size_t)N_ROW * c.hidden, sizeof *x);
        for (uint32_t n = 0; n < N_ROW; n++) x[(size_t)n * c.hidden + n * 33] = 1;
        float *y = run(&r, w, x);
        for (uint32_t n = 0; n < N_ROW; n++) {
            for (uint32_t row = 0; row < c.n_vocab; row++) {
                float want;
                tensor_view_row(&v, row, n * 33, 1, &want);
                if (y[(size_t)n * c.n_vocab + row] != want)
                    fail_msg("form %zu, element [%u][%u] is %a, want %a", i, row, n * 33,
                             (double)y[(size_t)n * c.n_vocab + row], (double)want);
            }
        }
        mem_free(x);
        mem_free(y);
        rig_close(&r);
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

/* What is refused before anything is loaded, by form alone. */
static void test_taken_forms(void **state)
{
    (void)state;
    for (size_t i = 0; i < op_n_weight_form; i++)
        assert_true(backend_cuda_takes(&op_weight_forms[i]));
    static const struct {
        uint32_t block_row, block_col;
        bool taken;
    } e4m3[] = {{128, 128, true}, {1, 0, true},    {0, 0, true},   {64, 64, false},
                {1, 128, false},  {128, 0, false}, {0, 128, false}};
    for (size_t i = 0; i < sizeof e4m3 / sizeof *e4m3; i++) {
        struct weight_form f = {.code = CODE_E4M3,
                                .scale_type = DTYPE_BF16,
                                .block_row = e4m3[i].block_row,
                                .block_col = e4m3[i].block_col};
        assert_int_equal(backend_cuda_takes(&f), e4m3[i].taken);
        f.scale_type = DTYPE_NONE;
        assert_false(backend_cuda_takes(&f));
    }
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_generated),       cmocka_unit_test(test_made_sources),
        cmocka_unit_test(test_decoded),         cmocka_unit_test(test_refused_types),
        cmocka_unit_test(test_out_of_memory),   cmocka_unit_test(test_create_out_of_memory),
        cmocka_unit_test(test_refused_configs), cmocka_unit_test(test_buffer_access),
        cmocka_unit_test(test_taken_forms),
    };
    return OP_MAIN(argc, argv, tests);
}
