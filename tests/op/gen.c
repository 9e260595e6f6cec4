/* gen.c - generated configs, weights, batches and caches for operator tests */
#include "op/gen.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

#include "base/dtype.h"
#include "base/mem.h"
#include "base/rng.h"

struct block {
    struct block *next;
    void *data;
};

struct gen {
    struct weight_form form; /* of matrices of F8_E4M3; CODE_WIDE: E4M3 itself */
    bool aligned;            /* scale blocks begin with the matrix */
    uint64_t state;
    struct block *blocks;
};

struct gen *gen_create(uint64_t seed)
{
    struct gen *g = mem_calloc(1, sizeof *g);
    assert_non_null(g);
    g->state = seed;
    return g;
}

struct gen *gen_create_for(uint64_t seed, enum act_type act)
{
    struct gen *g = gen_create(seed);
    g->aligned = act == ACT_FP8;
    return g;
}

void gen_destroy(struct gen *g)
{
    for (struct block *b = g->blocks; b;) {
        struct block *next = b->next;
        mem_free(b->data);
        mem_free(b);
        b = next;
    }
    mem_free(g);
}

void *gen_alloc(struct gen *g, size_t bytes)
{
    struct block *b = mem_calloc(1, sizeof *b);
    assert_non_null(b);
    b->data = mem_alloc_aligned(64, bytes > 0 ? bytes : 1);
    assert_non_null(b->data);
    memset(b->data, 0, bytes);
    b->next = g->blocks;
    g->blocks = b;
    return b->data;
}

uint32_t gen_below(struct gen *g, uint32_t n)
{
    return (uint32_t)rng_below(&g->state, n);
}

float gen_normal(struct gen *g)
{
    return rng_normal(&g->state);
}

float *gen_floats(struct gen *g, size_t n, float std)
{
    float *v = gen_alloc(g, n * sizeof *v);
    for (size_t i = 0; i < n; i++) v[i] = gen_normal(g) * std;
    return v;
}

void gen_config(struct backend_config *c, enum act_type act, enum kv_type kv, bool wide)
{
    memset(c, 0, sizeof *c);
    c->act = act;
    c->hidden = wide ? 320 : 256;
    c->n_head = wide ? 5 : 4;
    c->q_lora_rank = wide ? 96 : 128;
    c->nope_dim = 128;
    c->v_dim = 128;
    c->softmax_scale = 0.1352338f;
    c->norm_eps = 1e-6f;
    for (int i = 0; i < KV_ROPE / 2; i++) c->rope_freq[i] = powf(10000.0f, -(float)i / 32);
    c->rope_interleaved = true;
    c->index_rope_interleaved = false;
    c->index_n_head = wide ? 6 : 8;
    c->index_topk = wide ? 96 : 64;
    c->dense_inner = wide ? 416 : 384;
    c->n_expert = wide ? 12 : 16;
    c->n_expert_used = wide ? 3 : 4;
    c->n_group = wide ? 1 : 4;
    c->topk_group = wide ? 1 : 2;
    c->moe_inner = wide ? 160 : 128;
    c->shared_inner = wide ? 96 : 128;
    c->routed_scale = 2.5f;
    c->norm_topk = true;
    c->n_vocab = wide ? 1000 : 1024;
    kv_layout_init(&c->kv, kv, 2, true);
    c->max_token = 160;
    c->max_request = 40;
    c->max_context = 512;
    c->max_logit_row = 160;
    c->n_thread = 2;
    c->parallel.tp.size = 1;
}

/* ---- weights ---- */

static void store(void *data, enum dtype t, size_t i, float f)
{
    uint16_t half = t == DTYPE_F16 ? f16_from_f32(f) : bf16_from_f32(f);
    if (t == DTYPE_F32)
        ((float *)data)[i] = f;
    else if (t == DTYPE_F8_E4M3)
        ((uint8_t *)data)[i] = e4m3_from_f32(f);
    else
        ((uint16_t *)data)[i] = half;
}

static float load(const void *data, enum dtype t, size_t i)
{
    switch (t) {
    case DTYPE_F32: return ((const float *)data)[i];
    case DTYPE_F16: return f32_from_f16(((const uint16_t *)data)[i]);
    case DTYPE_BF16: return f32_from_bf16(((const uint16_t *)data)[i]);
    default: return f32_from_e4m3(((const uint8_t *)data)[i]);
    }
}

/* A matrix of U4 or E2M1 with a byte a code. */
struct coded {
    struct weight_source s; /* first */
    uint8_t *codes;         /* [n_row][n_col] */
    float *scales;          /* [n_row][n_block] */
    uint8_t *zeros;
    uint32_t n_block;
};

static void coded_codes(const struct weight_source *s, uint32_t row, uint32_t col, uint32_t n,
                        uint8_t *out)
{
    const struct coded *m = (const struct coded *)s;
    assert_true(row < s->n_row && col + n <= s->n_col);
    memcpy(out, m->codes + (size_t)row * s->n_col + col, n);
}

static float coded_scale(const struct weight_source *s, uint32_t row, uint32_t block, int *zero)
{
    const struct coded *m = (const struct coded *)s;
    assert_true(row < s->n_row && block < m->n_block);
    *zero = m->zeros[(size_t)row * m->n_block + block];
    return m->scales[(size_t)row * m->n_block + block];
}

static double coded_element(const struct coded *m, uint32_t r, uint32_t c)
{
    static const double e2m1[8] = {0, 0.5, 1, 1.5, 2, 3, 4, 6};
    const uint8_t code = m->codes[(size_t)r * m->s.n_col + c];
    const size_t i = (size_t)r * m->n_block + (m->s.form.block_col ? c / m->s.form.block_col : 0);
    double value = m->s.form.code == CODE_U4 ? (double)code - m->zeros[i]
                   : code < 8                ? e2m1[code]
                                             : -e2m1[code - 8];
    return value * (double)m->scales[i];
}

/* A scale near s of the type, times the matrix's one for E4M3. */
static float scale_of_type(const struct weight_source *s, float scale)
{
    switch (s->form.scale_type) {
    case DTYPE_F16: return f32_from_f16(f16_from_f32(scale));
    case DTYPE_BF16: return f32_from_bf16(bf16_from_f32(scale));
    case DTYPE_F8_E4M3: return f32_from_e4m3(e4m3_from_f32(scale / s->global)) * s->global;
    case DTYPE_U8: return ue8m0_round_up(scale);
    default: return scale;
    }
}

static struct tensor_view gen_coded(struct gen *g, uint32_t n_row, uint32_t n_col)
{
    struct coded *m = gen_alloc(g, sizeof *m);
    const uint32_t block = g->form.block_col ? g->form.block_col : n_col;
    m->s = (struct weight_source){.form = g->form,
                                  .n_row = n_row + 3,
                                  .n_col = n_col + (g->form.block_col ? g->form.block_col : 0),
                                  .global = 3.1e-5f * (1 + fabsf(gen_normal(g))),
                                  .codes = coded_codes,
                                  .scale = coded_scale};
    m->n_block = (m->s.n_col + block - 1) / block;
    const size_t n_code = (size_t)m->s.n_row * m->s.n_col, n_scale = m->s.n_row * m->n_block;
    m->codes = gen_alloc(g, n_code);
    m->scales = gen_alloc(g, n_scale * sizeof *m->scales);
    m->zeros = gen_alloc(g, n_scale);
    for (size_t i = 0; i < n_code; i++) m->codes[i] = (uint8_t)gen_below(g, 16);
    for (size_t i = 0; i < n_scale; i++) {
        float s = 0.2f / sqrtf((float)n_col) * expf(0.5f * gen_normal(g));
        m->scales[i] = scale_of_type(&m->s, s);
        m->zeros[i] = g->form.has_zero ? (uint8_t)gen_below(g, 17) : 8;
    }
    return (struct tensor_view){.n_row = n_row,
                                .n_col = n_col,
                                .source = &m->s,
                                .source_row0 = 3,
                                .source_col0 = g->aligned ? 0 : g->form.block_col};
}

static struct tensor_view gen_int8(struct gen *g, uint32_t n_row, uint32_t n_col)
{
    int8_t *data = gen_alloc(g, (size_t)n_row * n_col);
    const uint32_t n_scale_row = (n_row + g->form.block_row - 1) / g->form.block_row;
    const uint32_t n_scale_col =
        g->form.block_col ? (n_col + g->form.block_col - 1) / g->form.block_col : 1;
    float *scale = gen_alloc(g, (size_t)n_scale_row * n_scale_col * sizeof *scale);
    for (size_t i = 0; i < (size_t)n_row * n_col; i++) data[i] = (int8_t)(gen_below(g, 256) - 128);
    for (size_t i = 0; i < (size_t)n_scale_row * n_scale_col; i++)
        scale[i] = 0.0135f / sqrtf((float)n_col) * expf(0.5f * gen_normal(g));
    return (struct tensor_view){.data = data,
                                .dtype = DTYPE_I8,
                                .n_row = n_row,
                                .n_col = n_col,
                                .row_stride = n_col,
                                .scale = scale,
                                .scale_stride = n_scale_col,
                                .scale_block_row = g->form.block_row,
                                .scale_block_col =
                                    g->form.block_col ? g->form.block_col : TENSOR_SCALE_WHOLE};
}

/* A scale a row, or one for all. */
static struct tensor_view gen_e4m3_rows(struct gen *g, uint32_t n_row, uint32_t n_col)
{
    const uint32_t stride = n_col + 24, n_scale = g->form.block_row ? n_row : 1;
    uint8_t *data = gen_alloc(g, (size_t)n_row * stride);
    float *scale = gen_alloc(g, n_scale * sizeof *scale);
    for (size_t i = 0; i < (size_t)n_row * stride; i++)
        data[i] = e4m3_from_f32(gen_normal(g) * 112);
    for (uint32_t i = 0; i < n_scale; i++)
        scale[i] = 4.0f / 448 / sqrtf((float)n_col) * expf(0.5f * gen_normal(g));
    return (struct tensor_view){.data = data + 16,
                                .dtype = DTYPE_F8_E4M3,
                                .n_row = n_row,
                                .n_col = n_col,
                                .row_stride = stride,
                                .scale = scale,
                                .scale_stride = 1,
                                .scale_block_row =
                                    g->form.block_row ? g->form.block_row : TENSOR_SCALE_WHOLE,
                                .scale_block_col = TENSOR_SCALE_WHOLE};
}

void gen_code_as(struct gen *g, const struct weight_form *form)
{
    g->form = *form;
}

double gen_element(const struct tensor_view *v, uint32_t r, uint32_t c)
{
    if (v->source)
        return coded_element((const struct coded *)v->source, v->source_row0 + r,
                             v->source_col0 + c);
    if (v->dtype == DTYPE_I8)
        return ((const int8_t *)v->data)[r * v->row_stride + c] *
               (double)tensor_view_scale(v, r, c);
    double f = (double)load(v->data, v->dtype, r * v->row_stride + c);
    if (!v->scale) return f;
    if (v->scale_block_col == TENSOR_SCALE_WHOLE)
        return f * (double)v->scale[v->scale_block_row == 1 ? r : 0];
    uint32_t i = (v->scale_row0 + r) / TENSOR_SCALE_BLOCK;
    uint32_t j = (v->scale_col0 + c) / TENSOR_SCALE_BLOCK;
    return f * (double)v->scale[(size_t)i * v->scale_stride + j];
}

double gen_round(enum act_type act, double x)
{
    return act == ACT_F32 ? x : (double)f32_from_bf16(bf16_from_f32((float)x));
}

/* The power of two that divides 128 values before they are rounded to e4m3. */
static double group_scale(const double *x)
{
    double largest = 1e-4;
    for (int i = 0; i < TENSOR_SCALE_BLOCK; i++) largest = fmax(largest, fabs(x[i]));
    return exp2(ceil(log2(largest / 448)));
}

double gen_product(const struct tensor_view *v, uint32_t row, const double *x, enum act_type act)
{
    double sum = 0;
    double scale = 0;
    bool codes = act == ACT_FP8 && tensor_takes_fp8(v);
    for (uint32_t c = 0; c < v->n_col; c++) {
        if (codes && c % TENSOR_SCALE_BLOCK == 0) scale = group_scale(x + c);
        double in = codes ? scale * (double)f32_from_e4m3(e4m3_from_f32((float)(x[c] / scale)))
                          : gen_round(act, x[c]);
        sum += gen_element(v, row, c) * in;
    }
    return sum;
}

struct tensor_view gen_matrix(struct gen *g, enum dtype t, uint32_t n_row, uint32_t n_col,
                              bool pow2)
{
    if (t == DTYPE_F8_E4M3 && g->form.code == CODE_I8) return gen_int8(g, n_row, n_col);
    if (t == DTYPE_F8_E4M3 && g->form.code == CODE_E4M3) return gen_e4m3_rows(g, n_row, n_col);
    if (t == DTYPE_F8_E4M3 && g->form.code != CODE_WIDE) return gen_coded(g, n_row, n_col);
    /* Place of the view inside the larger matrix: (row0, col0), with rows of `stride`. */
    uint32_t block = TENSOR_SCALE_BLOCK;
    uint32_t row0 = t != DTYPE_F8_E4M3 ? 3 : g->aligned ? block : block / 2;
    uint32_t col0 = t != DTYPE_F8_E4M3 ? 5 : g->aligned ? block : block / 2 * 3;
    uint32_t stride = col0 + n_col + 8;
    uint32_t full_row = row0 + n_row;
    float std = 1 / sqrtf((float)n_col);
    void *data = gen_alloc(g, (size_t)full_row * stride * dtype_size(t));
    struct tensor_view v = {.dtype = t, .n_row = n_row, .n_col = n_col, .row_stride = stride};
    v.data = (const uint8_t *)data + ((size_t)row0 * stride + col0) * dtype_size(t);
    if (t == DTYPE_F8_E4M3) {
        uint32_t scale_row = (full_row + block - 1) / block;
        v.scale_stride = (stride + block - 1) / block;
        float *scale = gen_alloc(g, (size_t)scale_row * v.scale_stride * sizeof *scale);
        for (uint32_t i = 0; i < scale_row * v.scale_stride; i++) {
            float s = std * 4 / 448 * expf(0.5f * gen_normal(g));
            scale[i] = pow2 ? ue8m0_round_up(s) : s;
        }
        v.scale = scale + (row0 / block) * v.scale_stride + col0 / block;
        v.scale_row0 = row0 % block;
        v.scale_col0 = col0 % block;
    }
    for (uint32_t r = 0; r < full_row; r++) {
        for (uint32_t c = 0; c < stride; c++) {
            float f = gen_normal(g) * std;
            if (t == DTYPE_F8_E4M3) f = gen_normal(g) * 112; /* 4 deviations are 448 */
            store(data, t, (size_t)r * stride + c, f);
        }
    }
    return v;
}

struct tensor_view gen_vector(struct gen *g, enum dtype t, uint32_t n, float mean, float std)
{
    void *data = gen_alloc(g, n * dtype_size(t));
    for (uint32_t i = 0; i < n; i++) store(data, t, i, mean + std * gen_normal(g));
    return (struct tensor_view){.data = data, .dtype = t, .n_row = 1, .n_col = n, .row_stride = n};
}

void gen_mla(struct gen *g, const struct backend_config *c, enum dtype t, struct mla_tensors *out)
{
    uint32_t nope = c->nope_dim;
    uint32_t lora = c->q_lora_rank;
    memset(out, 0, sizeof *out);
    out->q_a = gen_matrix(g, t, lora, c->hidden, true);
    out->q_a_norm = gen_vector(g, DTYPE_BF16, lora, 1, 0.1f);
    out->q_b = gen_matrix(g, t, c->n_head * (nope + KV_ROPE), lora, true);
    out->kv_a = gen_matrix(g, t, KV_ROW, c->hidden, true);
    out->kv_a_norm = gen_vector(g, DTYPE_BF16, KV_LATENT, 1, 0.1f);
    out->kv_b = gen_matrix(g, t, c->n_head * (nope + c->v_dim), KV_LATENT, true);
    out->o = gen_matrix(g, t, c->hidden, c->n_head * c->v_dim, true);
    if (c->index_n_head == 0) return;
    out->index_q_b = gen_matrix(g, t, c->index_n_head * KV_INDEX_DIM, lora, true);
    out->index_k = gen_matrix(g, t, KV_INDEX_DIM, c->hidden, true);
    out->index_k_weight = gen_vector(g, DTYPE_F32, KV_INDEX_DIM, 1, 0.1f);
    out->index_k_bias = gen_vector(g, DTYPE_F32, KV_INDEX_DIM, 0, 0.1f);
    out->index_head = gen_matrix(g, DTYPE_BF16, c->index_n_head, c->hidden, true);
}

void gen_ffn(struct gen *g, enum dtype t, uint32_t hidden, uint32_t inner, struct ffn_tensors *out)
{
    out->gate = gen_matrix(g, t, inner, hidden, true);
    out->up = gen_matrix(g, t, inner, hidden, true);
    out->down = gen_matrix(g, t, hidden, inner, true);
}

void gen_moe(struct gen *g, const struct backend_config *c, enum dtype t, struct moe_tensors *out)
{
    memset(out, 0, sizeof *out);
    out->router = gen_matrix(g, DTYPE_BF16, c->n_expert, c->hidden, true);
    out->router_bias = gen_vector(g, DTYPE_F32, c->n_expert, 0, 0.2f);
    if (c->shared_inner > 0) gen_ffn(g, t, c->hidden, c->shared_inner, &out->shared);
    struct ffn_tensors *experts = gen_alloc(g, c->n_expert * sizeof *experts);
    for (uint32_t e = 0; e < c->n_expert; e++) gen_ffn(g, t, c->hidden, c->moe_inner, &experts[e]);
    out->experts = experts;
}

/* ---- batches ---- */

static uint32_t pages_of(uint32_t n_position)
{
    return (n_position + KV_PAGE_TOKENS - 1) / KV_PAGE_TOKENS;
}

static int32_t *shuffled(struct gen *g, uint32_t n)
{
    int32_t *v = gen_alloc(g, n * sizeof *v);
    for (uint32_t i = 0; i < n; i++) v[i] = (int32_t)i;
    for (uint32_t i = n; i > 1; i--) {
        uint32_t j = gen_below(g, i);
        int32_t swap = v[i - 1];
        v[i - 1] = v[j];
        v[j] = swap;
    }
    return v;
}

int32_t gen_slot(const struct batch *host, uint32_t request, uint32_t pos)
{
    int32_t page = host->page_table[request * host->page_stride + pos / KV_PAGE_TOKENS];
    assert_true(page >= 0);
    return page * KV_PAGE_TOKENS + (int32_t)(pos % KV_PAGE_TOKENS);
}

void gen_batch(struct gen *g, const struct backend_config *c, const struct gen_request *r,
               uint32_t n_request, struct batch *out, uint32_t *n_page)
{
    uint32_t n_used = 0;
    memset(out, 0, sizeof *out);
    out->n_request = n_request;
    out->page_stride = pages_of(c->max_context);
    for (uint32_t i = 0; i < n_request; i++) {
        uint32_t end = r[i].n_past + r[i].n_new;
        assert_true(r[i].n_new >= 1 && end <= c->max_context);
        out->n_token += r[i].n_new;
        if (end > out->max_context) out->max_context = end;
        n_used += pages_of(end);
    }
    assert_true(out->n_token <= c->max_token && n_request <= c->max_request);
    *n_page = n_used + 2;
    int32_t *pages = shuffled(g, *n_page);

    uint32_t n = out->n_token;
    size_t n_table = (size_t)n_request * out->page_stride;
    int32_t *arrays = gen_alloc(g, (6 * (size_t)n + n_table + n_request + 1) * sizeof *arrays);
    int32_t *ids = arrays, *next = ids + n, *pos = next + n, *request = pos + n,
            *slot = request + n;
    int32_t *rows = slot + n, *table = rows + n, *first = table + n_table;
    out->ids = ids, out->next_ids = next, out->pos = pos, out->request = request;
    out->slot = slot, out->logit_rows = rows, out->page_table = table, out->first = first;

    for (size_t i = 0; i < n_table; i++) table[i] = -1;
    uint32_t t = 0;
    for (uint32_t i = 0; i < n_request; i++) {
        uint32_t end = r[i].n_past + r[i].n_new;
        first[i] = (int32_t)t;
        for (uint32_t j = 0; j < pages_of(end); j++) table[i * out->page_stride + j] = *pages++;
        for (uint32_t p = r[i].n_past; p < end; p++, t++) {
            ids[t] = (int32_t)gen_below(g, c->n_vocab);
            next[t] = (int32_t)gen_below(g, c->n_vocab);
            pos[t] = (int32_t)p;
            request[t] = (int32_t)i;
            slot[t] = gen_slot(out, i, p);
            bool wanted = p + 1 == end || t % 7 == 0;
            if (wanted && out->n_logit_row < c->max_logit_row)
                rows[out->n_logit_row++] = (int32_t)t;
        }
    }
    first[n_request] = (int32_t)t;
    gen_set_answers(out, n_request);
}

void gen_set_answers(struct batch *host, uint32_t n_request)
{
    assert_true(n_request <= host->n_request);
    host->n_answer_request = n_request;
    host->n_answer_token = (uint32_t)host->first[n_request];
}

/* How many of the n things from `from` on are below `end`. */
static uint32_t n_below(uint32_t from, uint32_t n, uint32_t end)
{
    return end <= from ? 0 : end - from < n ? end - from : n;
}

void gen_slice(struct gen *g, const struct batch *host, uint32_t t0, uint32_t n, struct batch *out)
{
    assert_true(n >= 1 && t0 + n <= host->n_token);
    uint32_t r0 = (uint32_t)host->request[t0];
    uint32_t r1 = (uint32_t)host->request[t0 + n - 1];
    *out = *host;
    out->n_token = n;
    out->n_request = r1 - r0 + 1;
    out->n_answer_token = n_below(t0, n, host->n_answer_token);
    out->n_answer_request = n_below(r0, out->n_request, host->n_answer_request);
    out->n_logit_row = 0;
    out->max_context = 0;
    out->ids += t0, out->next_ids += t0, out->pos += t0, out->slot += t0;
    out->page_table += (size_t)r0 * host->page_stride;
    int32_t *request = gen_alloc(g, n * sizeof *request);
    int32_t *first = gen_alloc(g, (out->n_request + 1) * sizeof *first);
    for (uint32_t t = 0; t < n; t++) {
        request[t] = host->request[t0 + t] - (int32_t)r0;
        uint32_t end = (uint32_t)out->pos[t] + 1;
        if (end > out->max_context) out->max_context = end;
    }
    for (uint32_t r = 1; r < out->n_request; r++) first[r] = host->first[r0 + r] - (int32_t)t0;
    first[out->n_request] = (int32_t)n;
    out->request = request, out->first = first;
}

/* ---- caches ---- */

static uint8_t *latent_row(const struct kv_layout *l, const uint8_t *image, uint32_t layer,
                           int32_t slot)
{
    uint32_t page = (uint32_t)slot / KV_PAGE_TOKENS;
    uint32_t row = (uint32_t)slot % KV_PAGE_TOKENS;
    return (uint8_t *)(uintptr_t)image + page * l->page_bytes + kv_latent_offset(l, layer) +
           (size_t)row * l->row_bytes;
}

static uint8_t *index_block(const struct kv_layout *l, const uint8_t *image, uint32_t layer,
                            int32_t slot)
{
    uint32_t page = (uint32_t)slot / KV_PAGE_TOKENS;
    return (uint8_t *)(uintptr_t)image + page * l->page_bytes + kv_index_offset(l, layer);
}

/* 128 values as e4m3 with a scale: 2^n, so that the largest lies in (224, 448] */
static float store_group(const float *x, uint8_t *code)
{
    float top = 1e-4f;
    for (int i = 0; i < KV_FP8_GROUP; i++) top = fmaxf(top, fabsf(x[i]));
    float scale = exp2f(ceilf(log2f(top / 448)));
    for (int i = 0; i < KV_FP8_GROUP; i++) code[i] = e4m3_from_f32(x[i] / scale);
    return scale;
}

static void store_latent(const struct kv_layout *l, uint8_t *row, const float *x)
{
    if (l->type != KV_TYPE_FP8) {
        enum dtype t = l->type == KV_TYPE_F32 ? DTYPE_F32 : DTYPE_BF16;
        for (int i = 0; i < KV_ROW; i++) store(row, t, (size_t)i, x[i]);
        return;
    }
    for (int i = 0; i < KV_LATENT / KV_FP8_GROUP; i++) {
        float scale = store_group(x + i * KV_FP8_GROUP, row + i * KV_FP8_GROUP);
        store(row + 512, DTYPE_F32, (size_t)i, scale);
    }
    for (int i = 0; i < KV_ROPE; i++) store(row + 528, DTYPE_BF16, (size_t)i, x[KV_LATENT + i]);
}

void gen_latent(const struct kv_layout *l, const uint8_t *image, uint32_t layer, int32_t slot,
                float *row)
{
    const uint8_t *from = latent_row(l, image, layer, slot);
    for (size_t i = 0; i < KV_ROW; i++) {
        if (l->type == KV_TYPE_F32)
            row[i] = load(from, DTYPE_F32, i);
        else if (l->type == KV_TYPE_BF16)
            row[i] = load(from, DTYPE_BF16, i);
        else if (i >= KV_LATENT)
            row[i] = load(from + 528, DTYPE_BF16, i - KV_LATENT);
        else
            row[i] = f32_from_e4m3(from[i]) * load(from + 512, DTYPE_F32, i / 128);
    }
}

static void store_index_key(const struct kv_layout *l, uint8_t *block, uint32_t j, const float *x)
{
    if (l->type == KV_TYPE_F32) {
        memcpy(block + (size_t)j * 512, x, 512);
        return;
    }
    float scale = store_group(x, block + (size_t)j * 128);
    memcpy(block + 64 * 128 + 4 * (size_t)j, &scale, 4);
}

void gen_index_key(const struct kv_layout *l, const uint8_t *image, uint32_t layer, int32_t slot,
                   float *row)
{
    const uint8_t *block = index_block(l, image, layer, slot);
    size_t j = (uint32_t)slot % KV_PAGE_TOKENS;
    for (size_t i = 0; i < KV_INDEX_DIM; i++) {
        if (l->type == KV_TYPE_F32)
            row[i] = load(block + j * 512, DTYPE_F32, i);
        else
            row[i] = f32_from_e4m3(block[j * 128 + i]) * load(block + 64 * 128, DTYPE_F32, j);
    }
}

void gen_copy_rows(const struct kv_layout *l, uint8_t *to, const uint8_t *from, uint32_t layer,
                   int32_t slot)
{
    size_t j = (uint32_t)slot % KV_PAGE_TOKENS;
    memcpy(latent_row(l, to, layer, slot), latent_row(l, from, layer, slot), l->row_bytes);
    if (!l->has_index) return;
    uint8_t *to_block = index_block(l, to, layer, slot);
    const uint8_t *from_block = index_block(l, from, layer, slot);
    if (l->type == KV_TYPE_F32) {
        memcpy(to_block + j * 512, from_block + j * 512, 512);
    } else {
        memcpy(to_block + j * 128, from_block + j * 128, 128);
        memcpy(to_block + 64 * 128 + 4 * j, from_block + 64 * 128 + 4 * j, 4);
    }
}

void gen_spoil(const struct kv_layout *l, uint8_t *image, int32_t slot)
{
    /* Only the bytes of slot's page are read from `nan`, at the same places. */
    size_t n = ((uint32_t)slot / KV_PAGE_TOKENS + 1) * l->page_bytes;
    uint8_t *nan = mem_alloc(n);
    assert_non_null(nan);
    memset(nan, 0xff, n);
    for (uint32_t layer = 0; layer < l->n_layer; layer++) gen_copy_rows(l, image, nan, layer, slot);
    mem_free(nan);
}

uint8_t *gen_cache(struct gen *g, const struct kv_layout *l, uint32_t n_page,
                   const struct batch *host, bool with_new)
{
    uint8_t *image = gen_alloc(g, n_page * l->page_bytes);
    memset(image, 0xff, n_page * l->page_bytes);
    for (uint32_t r = 0; r < host->n_request; r++) {
        int32_t t = with_new ? host->first[r + 1] - 1 : host->first[r];
        uint32_t end = (uint32_t)host->pos[t] + (with_new ? 1 : 0);
        for (uint32_t p = 0; p < end; p++) {
            int32_t slot = gen_slot(host, r, p);
            for (uint32_t layer = 0; layer < l->n_layer; layer++) {
                float x[KV_ROW];
                for (int i = 0; i < KV_ROW; i++) x[i] = gen_normal(g);
                store_latent(l, latent_row(l, image, layer, slot), x);
                for (int i = 0; i < KV_INDEX_DIM; i++) x[i] = gen_normal(g);
                if (l->has_index)
                    store_index_key(l, index_block(l, image, layer, slot),
                                    (uint32_t)slot % KV_PAGE_TOKENS, x);
            }
        }
    }
    return image;
}
