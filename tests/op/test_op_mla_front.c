/* test_op_mla_front.c - queries, and the rows that go to the cache */
#include "op/harness.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/dtype.h"
#include "base/mem.h"

enum { LAYER = 1 };

/* One set of weights and inputs on two rigs. */
struct front {
    struct backend_config c;
    struct gen *g;
    struct rig ref, dev;
    struct mla_tensors tensors;
    struct weight *wr, *wd;
    struct batch host;
    float *x; /* [n_token][D] */
    uint8_t *image;
    uint32_t n_page;
};

static uint32_t query_width(const struct front *f)
{
    return f->c.n_head * KV_ROW + f->c.index_n_head * (KV_INDEX_DIM + 1);
}

static void open_rigs(struct front *f, enum dtype t)
{
    rig_open_pair(&f->ref, &f->dev, &f->c);
    gen_mla(f->g, &f->c, t, &f->tensors);
    f->wr = rig_mla(&f->ref, &f->tensors);
    f->wd = rig_mla(&f->dev, &f->tensors);
}

static void open_front(struct front *f, enum act_type act, enum kv_type kv, bool wide, enum dtype t)
{
    memset(f, 0, sizeof *f);
    f->g = gen_create_for(91, act);
    gen_config(&f->c, act, kv, wide);
    open_rigs(f, t);
}

static void close_front(struct front *f)
{
    rig_close_pair(&f->ref, &f->dev);
    gen_destroy(f->g);
}

static void set_case(struct front *f, const struct op_batch_case *k)
{
    gen_batch(f->g, &f->c, k->request, k->n_request, &f->host, &f->n_page);
    f->x = gen_floats(f->g, (size_t)f->host.n_token * f->c.hidden, 1);
    f->image = gen_cache(f->g, &f->c.kv, f->n_page, &f->host, false);
}

/* Runs tokens t0 .. t0+n-1; their queries [n][query_width]. */
static float *run(struct front *f, struct rig *r, struct weight *w, uint32_t t0, uint32_t n)
{
    struct batch slice;
    gen_slice(f->g, &f->host, t0, n, &slice);
    rig_set_batch(r, &slice);
    rig_write(r, BUFFER_NORMED, n, f->c.hidden, f->x + (size_t)t0 * f->c.hidden);
    struct mla_front_args args = {.w = w,
                                  .batch = &r->batch,
                                  .kv = &r->kv,
                                  .layer = LAYER,
                                  .want_index_query = true,
                                  .x = r->buffer[BUFFER_NORMED],
                                  .query = r->buffer[BUFFER_QUERY]};
    op_ok(r, r->ops->mla_front(r->b, &args), "mla_front");
    return rig_read(r, BUFFER_QUERY, n, query_width(f));
}

/* ---- the equations, in double ---- */

static void rmsnorm(double *x, const struct tensor_view *weight, uint32_t n)
{
    double square = 0;
    for (uint32_t i = 0; i < n; i++) square += x[i] * x[i];
    for (uint32_t i = 0; i < n; i++) x[i] *= gen_element(weight, 0, i) / sqrt(square / n + 1e-6);
}

static void rope(const struct backend_config *c, bool interleaved, int32_t pos, double *x)
{
    for (int i = 0; i < 32; i++) {
        double angle = (double)((float)pos * c->rope_freq[i]);
        double *a = x + (interleaved ? 2 * i : i);
        double *b = x + (interleaved ? 2 * i + 1 : i + 32);
        double re = *a * cos(angle) - *b * sin(angle);
        *b = *a * sin(angle) + *b * cos(angle);
        *a = re;
    }
}

/* Sylvester: the sign of entry (i, j) is the parity of i AND j. */
static void hadamard(double *x)
{
    double y[KV_INDEX_DIM] = {0};
    for (int i = 0; i < KV_INDEX_DIM; i++) {
        for (int j = 0; j < KV_INDEX_DIM; j++)
            y[i] += __builtin_popcount((unsigned)(i & j)) % 2 ? -x[j] : x[j];
    }
    for (int i = 0; i < KV_INDEX_DIM; i++) x[i] = y[i] / sqrt(KV_INDEX_DIM);
}

static double *apply(struct front *f, const struct tensor_view *w, const double *x)
{
    double *y = gen_alloc(f->g, w->n_row * sizeof *y);
    for (uint32_t i = 0; i < w->n_row; i++) y[i] = gen_product(w, i, x, f->c.act);
    return y;
}

static void formula_query(struct front *f, const double *qa, int32_t pos, double *query)
{
    uint32_t nope = f->c.nope_dim, head_dim = nope + KV_ROPE;
    double *q = apply(f, &f->tensors.q_b, qa);
    for (uint32_t h = 0; h < f->c.n_head; h++) {
        double *head = q + (size_t)h * head_dim;
        rope(&f->c, f->c.rope_interleaved, pos, head + nope);
        for (uint32_t j = 0; j < KV_LATENT; j++) {
            double sum = 0;
            for (uint32_t i = 0; i < nope; i++)
                sum += gen_round(f->c.act, head[i]) *
                       gen_element(&f->tensors.kv_b, h * (nope + f->c.v_dim) + i, j);
            query[(size_t)h * KV_ROW + j] = sum;
        }
        memcpy(query + (size_t)h * KV_ROW + KV_LATENT, head + nope, KV_ROPE * sizeof *query);
    }
}

/* Index query before quantization, and weights without its scale. */
static void formula_index(struct front *f, const double *x, const double *qa, int32_t pos,
                          double *query)
{
    uint32_t n = f->c.index_n_head;
    double *q = apply(f, &f->tensors.index_q_b, qa);
    double *w = apply(f, &f->tensors.index_head, x);
    for (uint32_t h = 0; h < n; h++) {
        rope(&f->c, f->c.index_rope_interleaved, pos, q + (size_t)h * KV_INDEX_DIM);
        hadamard(q + (size_t)h * KV_INDEX_DIM);
        query[(size_t)n * KV_INDEX_DIM + h] = w[h] / sqrt(n) / sqrt(KV_INDEX_DIM);
    }
    memcpy(query, q, (size_t)n * KV_INDEX_DIM * sizeof *query);
}

/* Cached row [576] and index key [128]. */
static void formula_cache(struct front *f, const double *x, int32_t pos, double *row, double *key)
{
    const struct mla_tensors *t = &f->tensors;
    double *kv = apply(f, &t->kv_a, x);
    rmsnorm(kv, &t->kv_a_norm, KV_LATENT);
    rope(&f->c, f->c.rope_interleaved, pos, kv + KV_LATENT);
    memcpy(row, kv, KV_ROW * sizeof *row);

    double *k = apply(f, &t->index_k, x);
    double mean = 0, variance = 0;
    for (int i = 0; i < KV_INDEX_DIM; i++) mean += k[i] / KV_INDEX_DIM;
    for (int i = 0; i < KV_INDEX_DIM; i++) variance += (k[i] - mean) * (k[i] - mean) / KV_INDEX_DIM;
    for (uint32_t i = 0; i < KV_INDEX_DIM; i++)
        k[i] = (k[i] - mean) / sqrt(variance + 1e-6) * gen_element(&t->index_k_weight, 0, i) +
               gen_element(&t->index_k_bias, 0, i);
    rope(&f->c, f->c.index_rope_interleaved, pos, k);
    hadamard(k);
    memcpy(key, k, KV_INDEX_DIM * sizeof *key);
}

/* How far storing moves a row: nothing, 2^-9 (bf16 has 8 bits), e4m3's 2^-4 (4 bits). */
static double storage_error(enum kv_type t)
{
    return t == KV_TYPE_F32 ? 0 : t == KV_TYPE_BF16 ? 0x1p-9 : 0x1p-4;
}

static void check_formula(struct front *f, uint32_t t, const float *query, const uint8_t *image)
{
    int32_t pos = f->host.pos[t], slot = f->host.slot[t];
    uint32_t width = query_width(f), n_index = f->c.index_n_head * KV_INDEX_DIM;
    uint32_t n_query = width - n_index - f->c.index_n_head;
    double base = 2 * op_formula_limit(f->c.act);
    double *x = gen_alloc(f->g, f->c.hidden * sizeof *x);
    double *want = gen_alloc(f->g, width * sizeof *want);
    double row[KV_ROW], key[KV_INDEX_DIM];
    float got_row[KV_ROW], got_key[KV_INDEX_DIM];
    for (uint32_t i = 0; i < f->c.hidden; i++) x[i] = (double)f->x[(size_t)t * f->c.hidden + i];
    double *qa = apply(f, &f->tensors.q_a, x);
    rmsnorm(qa, &f->tensors.q_a_norm, f->c.q_lora_rank);
    formula_query(f, qa, pos, want);
    op_close_double("query", query, want, n_query, base);

    formula_index(f, x, qa, pos, want);
    if (f->c.kv.type == KV_TYPE_F32) {
        op_close_double("index query", query + n_query, want, n_index + f->c.index_n_head, base);
    } else {
        /* the product of query and weight is what counts: quantized here, exact there */
        for (uint32_t h = 0; h < f->c.index_n_head; h++) {
            float *got = gen_alloc(f->g, KV_INDEX_DIM * sizeof *got);
            for (int i = 0; i < KV_INDEX_DIM; i++) {
                got[i] =
                    query[n_query + h * KV_INDEX_DIM + (uint32_t)i] * query[n_query + n_index + h];
                want[h * KV_INDEX_DIM + (uint32_t)i] *= want[n_index + h];
            }
            op_close_double("index query", got, want + h * KV_INDEX_DIM, KV_INDEX_DIM, 0x1p-4);
        }
    }
    formula_cache(f, x, pos, row, key);
    gen_latent(&f->c.kv, image, LAYER, slot, got_row);
    gen_index_key(&f->c.kv, image, LAYER, slot, got_key);
    op_close_double("latent", got_row, row, KV_LATENT, base + storage_error(f->c.kv.type));
    double rope_error = f->c.kv.type == KV_TYPE_F32 ? 0 : 0x1p-9;
    op_close_double("rotary key", got_row + KV_LATENT, row + KV_LATENT, KV_ROPE, base + rope_error);
    double key_error = f->c.kv.type == KV_TYPE_F32 ? 0 : 0x1p-4;
    op_close_double("index key", got_key, key, KV_INDEX_DIM, base + key_error);
}

/* ---- comparison ---- */

/* Rows written equal ref's to within rounding (a value on the edge of two codes may fall to either
 * side); every other byte is as it was. */
static void check_cache(struct front *f, const uint8_t *want, const uint8_t *got)
{
    uint32_t n = f->host.n_token;
    const struct kv_layout *l = &f->c.kv;
    double limit = fmax(op_tolerance(f->c.act), l->type == KV_TYPE_F32 ? 0 : 4e-3);
    float *a = gen_alloc(f->g, (size_t)n * KV_ROW * sizeof *a);
    float *b = gen_alloc(f->g, (size_t)n * KV_ROW * sizeof *b);
    for (uint32_t t = 0; t < n; t++) {
        gen_latent(l, got, LAYER, f->host.slot[t], a + (size_t)t * KV_ROW);
        gen_latent(l, want, LAYER, f->host.slot[t], b + (size_t)t * KV_ROW);
    }
    op_close("latent rows", a, b, (size_t)n * KV_ROW, limit);
    for (uint32_t t = 0; t < n; t++) {
        gen_index_key(l, got, LAYER, f->host.slot[t], a + (size_t)t * KV_INDEX_DIM);
        gen_index_key(l, want, LAYER, f->host.slot[t], b + (size_t)t * KV_INDEX_DIM);
    }
    op_close("index keys", a, b, (size_t)n * KV_INDEX_DIM, fmax(limit, op_tolerance(f->c.act)));

    uint8_t *expected = gen_alloc(f->g, f->n_page * l->page_bytes);
    memcpy(expected, f->image, f->n_page * l->page_bytes);
    for (uint32_t t = 0; t < n; t++) gen_copy_rows(l, expected, got, LAYER, f->host.slot[t]);
    op_same_bits("the rest of the cache", got, expected, f->n_page * l->page_bytes);
}

/* Whether the row may be in the backend's own form, which fills 192 values a head. */
static bool is_expanded(const struct front *f, uint32_t t)
{
    return t >= f->host.n_answer_token && f->host.pos[t] < 8 * (int32_t)f->c.index_topk;
}

/* The same tokens, n_single by themselves and the others in steps of `chunk`: the same queries and
 * the same cache. */
static void check_chunks(struct front *f, uint32_t n_single, uint32_t chunk, const float *query,
                         const uint8_t *image)
{
    uint32_t width = query_width(f);
    uint8_t *again = gen_alloc(f->g, f->n_page * f->c.kv.page_bytes);
    rig_set_cache(&f->dev, f->image, f->n_page);
    for (uint32_t t = 0, n; t < f->host.n_token; t += n) {
        n = t < n_single ? 1 : f->host.n_token - t < chunk ? f->host.n_token - t : chunk;
        float *part = run(f, &f->dev, f->wd, t, n);
        for (uint32_t i = 0; i < n; i++) {
            const float *a = part + (size_t)i * width, *b = query + (size_t)(t + i) * width;
            uint32_t n_value = f->c.n_head * (is_expanded(f, t + i) ? 192 : KV_ROW);
            uint32_t index = f->c.n_head * KV_ROW;
            op_same_bits("query of a chunk", a, b, n_value * sizeof *a);
            op_same_bits("index query of a chunk", a + index, b + index,
                         (width - index) * sizeof *a);
        }
        mem_free(part);
    }
    rig_get_cache(&f->dev, again);
    op_same_bits("cache of chunks", again, image, f->n_page * f->c.kv.page_bytes);
}

/* The same tokens, all but the first n_answer requests' as rows of prompts: queries as ref's where
 * they are absorbed, what else there is with the bits of rows of answers. */
static void check_prompts(struct front *f, uint32_t n_answer, const float *want, const float *got)
{
    uint32_t width = query_width(f), n_head_part = f->c.n_head * KV_ROW;
    uint8_t *image = gen_alloc(f->g, f->n_page * f->c.kv.page_bytes);
    gen_set_answers(&f->host, n_answer);
    rig_set_cache(&f->dev, f->image, f->n_page);
    float *query = run(f, &f->dev, f->wd, 0, f->host.n_token);
    rig_get_cache(&f->dev, image);
    for (uint32_t t = 0; t < f->host.n_token; t++) {
        const float *a = query + (size_t)t * width, *b = got + (size_t)t * width;
        uint32_t n_same = t < f->host.n_answer_token ? 0 : n_head_part;
        op_same_bits("beside a prompt", a + n_same, b + n_same, (width - n_same) * sizeof *a);
        if (!is_expanded(f, t)) {
            op_close("query of a prompt", a, want + (size_t)t * width, n_head_part,
                     4 * op_tolerance(f->c.act));
        }
    }
    check_chunks(f, 0, 17, query, image);
    gen_set_answers(&f->host, f->host.n_request);
    mem_free(query);
}

static void check_case(struct front *f, const struct op_batch_case *k)
{
    set_case(f, k);
    uint32_t n = f->host.n_token, width = query_width(f);
    uint32_t n_exact = width - f->c.index_n_head * (KV_INDEX_DIM + 1);
    size_t image_bytes = f->n_page * f->c.kv.page_bytes;
    uint8_t *want_image = gen_alloc(f->g, image_bytes);
    uint8_t *got_image = gen_alloc(f->g, image_bytes);
    rig_set_cache(&f->ref, f->image, f->n_page);
    rig_set_cache(&f->dev, f->image, f->n_page);
    float *want = run(f, &f->ref, f->wr, 0, n);
    float *got = run(f, &f->dev, f->wd, 0, n);
    rig_get_cache(&f->ref, want_image);
    rig_get_cache(&f->dev, got_image);
    double index_limit = fmax(op_tolerance(f->c.act), f->c.kv.type == KV_TYPE_F32 ? 0 : 4e-3);
    for (uint32_t t = 0; t < n; t++) {
        const float *a = got + (size_t)t * width;
        const float *b = want + (size_t)t * width;
        /* the products before it are rounded to codes, which a sum of fewer bits may cross */
        op_close("query", a, b, n_exact, (f->c.act == ACT_FP8 ? 4 : 1) * op_tolerance(f->c.act));
        op_close("index query", a + n_exact, b + n_exact, width - n_exact, 4 * index_limit);
    }
    check_cache(f, want_image, got_image);
    check_formula(f, n - 1, want + (size_t)(n - 1) * width, want_image);
    if (!op_wants_few()) check_chunks(f, n, 1, got, got_image);
    check_chunks(f, op_wants_few() ? 2 : 0, 17, got, got_image);
    if (f->c.act == ACT_FP8) {
        const uint32_t n_answer = f->host.n_request / 2;
        if (!op_wants_few() || n_answer == 0) check_prompts(f, 0, want, got);
        if (n_answer > 0) check_prompts(f, n_answer, want, got);
    }
    mem_free(want);
    mem_free(got);
}

static void check(enum act_type act, enum kv_type kv, bool wide, enum dtype t, size_t first_case,
                  size_t step)
{
    if (op_is_elsewhere(act)) return;
    struct front f;
    open_front(&f, act, kv, wide, t);
    if (op_wants_few()) step *= 3;
    for (size_t i = first_case; i < op_n_batch_case; i += step) check_case(&f, &op_batch_cases[i]);
    close_front(&f);
}

static void test_f32_cache(void **state)
{
    (void)state;
    check(ACT_F32, KV_TYPE_F32, false, DTYPE_F8_E4M3, 0, 2);
    check(ACT_F32, KV_TYPE_F32, true, DTYPE_F32, 1, 3);
}

static void test_bf16_cache(void **state)
{
    (void)state;
    check(ACT_F32, KV_TYPE_BF16, true, DTYPE_BF16, 1, 3);
    check(ACT_BF16, KV_TYPE_BF16, false, DTYPE_F8_E4M3, 0, 4);
    check(ACT_FP8, KV_TYPE_BF16, false, DTYPE_BF16, 0, 4);
}

static void test_fp8_cache(void **state)
{
    (void)state;
    check(ACT_F32, KV_TYPE_FP8, false, DTYPE_F8_E4M3, 1, 3);
    check(ACT_BF16, KV_TYPE_FP8, true, DTYPE_F16, 2, 4);
    check(ACT_FP8, KV_TYPE_FP8, false, DTYPE_F8_E4M3, 1, 3);
}

/* Sums over K that are cut in several parts, and more tokens than parts are kept for. */
static void test_many_tokens(void **state)
{
    (void)state;
    const struct op_batch_case many = {"many", 2, {{0, 300}, {5, 230}}};
    const struct op_batch_case few = {"few", 2, {{0, 9}, {5, 10}}};
    struct front f;
    if (!op_is_cuda()) return;
    memset(&f, 0, sizeof f);
    f.g = gen_create_for(91, ACT_FP8);
    gen_config(&f.c, ACT_FP8, KV_TYPE_FP8, false);
    f.c.hidden = 640;
    f.c.index_n_head = 72;
    f.c.max_token = 530;
    open_rigs(&f, DTYPE_BF16);
    check_case(&f, op_wants_few() ? &few : &many);
    close_front(&f);
}

/* Rows of prompts all in expanded form, so many that q_b's product leaves their queries; form: of
 * weights, NULL: blocks of E4M3. */
static void check_many_expanded(const struct weight_form *form)
{
    const struct op_batch_case k = {"expanded", 3, {{5, 3}, {40, 30}, {0, 50}}};
    struct front f;
    memset(&f, 0, sizeof f);
    f.g = gen_create_for(92, ACT_FP8);
    if (form) gen_code_as(f.g, form);
    gen_config(&f.c, ACT_FP8, KV_TYPE_BF16, false);
    f.c.index_topk = 256;
    open_rigs(&f, DTYPE_F8_E4M3);
    set_case(&f, &k);
    rig_set_cache(&f.ref, f.image, f.n_page);
    rig_set_cache(&f.dev, f.image, f.n_page);
    float *want = run(&f, &f.ref, f.wr, 0, f.host.n_token);
    float *got = run(&f, &f.dev, f.wd, 0, f.host.n_token);
    check_prompts(&f, 1, want, got);
    mem_free(want);
    mem_free(got);
    close_front(&f);
}

static void test_many_expanded(void **state)
{
    (void)state;
    if (!op_is_cuda()) return;
    check_many_expanded(NULL);
    check_many_expanded(&op_weight_forms[0]);
    check_many_expanded(&op_weight_forms[1]);
}

/* Zeros in give the floor of the scale: 2^ceil(log2(1e-4 / 448)) = 2^-22. */
/* Int8 weights with a scale a row, and with squares; few tokens and many. */
static void test_int8_inputs(void **state)
{
    (void)state;
    const struct op_batch_case k = {"int8", 2, {{0, 70}, {5, 13}}};
    for (uint32_t block = 0; block <= 128; block += 128) {
        const struct weight_form form = {
            .code = CODE_I8, .block_row = block ? block : 1, .block_col = block};
        struct front f;
        memset(&f, 0, sizeof f);
        f.g = gen_create_for(93, ACT_INT8);
        gen_code_as(f.g, &form);
        gen_config(&f.c, ACT_INT8, KV_TYPE_BF16, false);
        open_rigs(&f, DTYPE_F8_E4M3);
        set_case(&f, &k);
        rig_set_cache(&f.ref, f.image, f.n_page);
        rig_set_cache(&f.dev, f.image, f.n_page);
        const uint32_t n = f.host.n_token, width = query_width(&f);
        uint8_t *image = gen_alloc(f.g, f.n_page * f.c.kv.page_bytes);
        float *want = run(&f, &f.ref, f.wr, 0, n);
        float *got = run(&f, &f.dev, f.wd, 0, n);
        rig_get_cache(&f.dev, image);
        for (uint32_t t = 0; t < n; t++) {
            op_close("int8 query", got + (size_t)t * width, want + (size_t)t * width,
                     f.c.n_head * KV_ROW, 4 * op_tolerance(ACT_FP8));
        }
        check_chunks(&f, 2, 17, got, image);
        mem_free(want);
        mem_free(got);
        close_front(&f);
    }
}

static void test_zero_row(void **state)
{
    (void)state;
    struct front f;
    open_front(&f, ACT_F32, KV_TYPE_FP8, false, DTYPE_BF16);
    f.tensors.index_k_bias = gen_vector(f.g, DTYPE_F32, KV_INDEX_DIM, 0, 0);
    f.wd = rig_mla(&f.dev, &f.tensors);
    set_case(&f, &op_batch_cases[0]);
    memset(f.x, 0, f.c.hidden * sizeof *f.x);
    uint8_t *image = gen_alloc(f.g, f.n_page * f.c.kv.page_bytes);
    rig_set_cache(&f.dev, f.image, f.n_page);
    mem_free(run(&f, &f.dev, f.wd, 0, 1));
    rig_get_cache(&f.dev, image);
    uint32_t slot = (uint32_t)f.host.slot[0];
    const uint8_t *page = image + slot / 64 * f.c.kv.page_bytes;
    const uint8_t *row = page + kv_latent_offset(&f.c.kv, LAYER) + (size_t)(slot % 64) * 656;
    const uint8_t *index = page + kv_index_offset(&f.c.kv, LAYER);
    for (int i = 0; i < 5; i++) {
        float scale;
        memcpy(&scale, i < 4 ? row + 512 + 4 * i : index + 64 * 128 + 4 * (slot % 64), 4);
        assert_true(scale == 0x1p-22f);
    }
    for (int i = 0; i < 512; i++) assert_int_equal(row[i] & 0x7f, 0);
    close_front(&f);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_f32_cache),     cmocka_unit_test(test_bf16_cache),
        cmocka_unit_test(test_fp8_cache),     cmocka_unit_test(test_many_tokens),
        cmocka_unit_test(test_many_expanded), cmocka_unit_test(test_zero_row),
        cmocka_unit_test(test_int8_inputs),
    };
    return OP_MAIN(argc, argv, tests);
}
