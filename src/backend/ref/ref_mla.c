/* ref_mla.c - mla_front, mla_attend, mla_out: equations in op_attn.h
 *
 * Rows of kv_b, for head h with n = nope_dim and v = v_dim:
 *   W_UK,h = rows h*(n+v) .. +n     [n][512]   key half
 *   W_UV,h = the v rows after them  [v][512]   value half
 *
 * Attention reads its rows in ascending position, once for the scores and once for the sum, which
 * is in double. Backends that sum in f32 do so in the groups of 64 that op_attn.h fixes.
 */
#include "backend/ref/ref_int.h"

#include <math.h>
#include <string.h>

#include "base/assert.h"
#include "base/dtype.h"

/* Where a latent row begins. */
static uint8_t *latent_at(const struct kv_cache *kv, uint32_t layer, int32_t slot)
{
    uint32_t page = (uint32_t)slot / KV_PAGE_TOKENS;
    uint32_t row = (uint32_t)slot % KV_PAGE_TOKENS;
    ASSERT(slot >= 0 && page < kv->n_page && layer < kv->layout.n_layer);
    return (uint8_t *)kv->base + page * kv->layout.page_bytes +
           kv_latent_offset(&kv->layout, layer) + (size_t)row * kv->layout.row_bytes;
}

static void write_bf16(uint8_t *to, const float *from, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        uint16_t h = bf16_from_f32(from[i]);
        memcpy(to + 2 * i, &h, sizeof h);
    }
}

static void read_bf16(float *to, const uint8_t *from, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        uint16_t h;
        memcpy(&h, from + 2 * i, sizeof h);
        to[i] = f32_from_bf16(h);
    }
}

static void write_latent(enum kv_type type, const float row[KV_ROW], uint8_t *to)
{
    DCHECK(type <= KV_TYPE_FP8);
    if (type == KV_TYPE_F32) {
        memcpy(to, row, KV_ROW_BYTES_F32);
    } else if (type == KV_TYPE_BF16) {
        write_bf16(to, row, KV_ROW);
    } else {
        for (int g = 0; g < KV_LATENT / KV_FP8_GROUP; g++) {
            float scale = ref_fp8_group(row + g * KV_FP8_GROUP, to + g * KV_FP8_GROUP);
            memcpy(to + KV_FP8_SCALES_OFFSET + g * sizeof scale, &scale, sizeof scale);
        }
        write_bf16(to + KV_FP8_ROPE_OFFSET, row + KV_LATENT, KV_ROPE);
    }
}

static void read_latent(enum kv_type type, const uint8_t *from, float row[KV_ROW])
{
    DCHECK(type <= KV_TYPE_FP8);
    if (type == KV_TYPE_F32) {
        memcpy(row, from, KV_ROW_BYTES_F32);
    } else if (type == KV_TYPE_BF16) {
        read_bf16(row, from, KV_ROW);
    } else {
        for (int i = 0; i < KV_LATENT; i++) {
            float scale;
            memcpy(&scale, from + KV_FP8_SCALES_OFFSET + i / KV_FP8_GROUP * sizeof scale,
                   sizeof scale);
            row[i] = f32_from_e4m3(from[i]) * scale;
        }
        read_bf16(row + KV_LATENT, from + KV_FP8_ROPE_OFFSET, KV_ROPE);
    }
}

/* to[j] = sum_i q_nope[i] * W_UK,h[i][j]: W_UK,h^T q_nope */
static void absorb_key(struct ref_backend *r, const struct mla_weight *w, uint32_t h,
                       const float *q_nope, float to[KV_LATENT])
{
    DCHECK(h < r->c.n_head);
    uint32_t row0 = h * (r->c.nope_dim + r->c.v_dim);
    double sum[KV_LATENT] = {0};
    for (uint32_t i = 0; i < r->c.nope_dim; i++) {
        const float *key = w->kv_b.value + (size_t)(row0 + i) * KV_LATENT;
        for (int j = 0; j < KV_LATENT; j++) sum[j] += (double)q_nope[i] * (double)key[j];
    }
    for (int j = 0; j < KV_LATENT; j++) to[j] = (float)sum[j];
}

/* c = rmsnorm(kv[0:512]); k_pe = rope(kv[512:576]); both into the cache */
static void cache_latent(struct ref_backend *r, const struct mla_front_args *a, uint32_t t,
                         const float *x)
{
    DCHECK(t < a->batch->n_token);
    const struct mla_weight *w = &a->w->mla;
    float kv[KV_ROW];
    ref_product(r, &w->kv_a, x, kv);
    ref_rmsnorm(kv, w->kv_a_norm.value, KV_LATENT, r->c.norm_eps, kv);
    ref_rope(&r->c, r->c.rope_interleaved, a->batch->pos[t], kv + KV_LATENT);
    write_latent(a->kv->layout.type, kv, latent_at(a->kv, a->layer, a->batch->slot[t]));
}

/* q = q_b qa, rope; the key half absorbed; one head after the other */
static void project_query(struct ref_backend *r, const struct mla_front_args *a, uint32_t t,
                          const float *qa, float *query)
{
    DCHECK(t < a->batch->n_token);
    const struct mla_weight *w = &a->w->mla;
    uint32_t nope = r->c.nope_dim;
    uint32_t head_dim = nope + KV_ROPE;
    float *q = r->wide2;
    ref_product(r, &w->q_b, qa, q);
    for (uint32_t h = 0; h < r->c.n_head; h++) {
        float *q_nope = q + (size_t)h * head_dim;
        float *q_pe = q_nope + nope;
        ref_rope(&r->c, r->c.rope_interleaved, a->batch->pos[t], q_pe);
        ref_round(r->c.act, q_nope, nope, q_nope);
        absorb_key(r, w, h, q_nope, query + (size_t)h * KV_ROW);
        memcpy(query + (size_t)h * KV_ROW + KV_LATENT, q_pe, KV_ROPE * sizeof(float));
    }
}

fathom_err ref_mla_front(struct backend *b, const struct mla_front_args *a)
{
    op_check_mla_front(&ref_of(b)->c, a);
    ASSERT(a->w->kind == REF_MLA);
    ASSERT(a->x->kind == BUFFER_NORMED);
    ASSERT(a->query->kind == BUFFER_QUERY);
    struct ref_backend *r = ref_of(b);
    const struct mla_weight *w = &a->w->mla;
    const struct batch *batch = a->batch;
    float *qa = r->wide;
    for (uint32_t t = 0; t < batch->n_token; t++) {
        float *query = a->query->value + (size_t)t * a->query->width;
        const float *x = a->x->value + (size_t)t * a->x->width;
        ref_product(r, &w->q_a, x, qa);
        ref_rmsnorm(qa, w->q_a_norm.value, r->c.q_lora_rank, r->c.norm_eps, qa);
        project_query(r, a, t, qa, query);
        cache_latent(r, a, t, x);
        if (r->c.index_n_head == 0) continue;
        ref_write_index_key(r, w, a->kv, a->layer, batch->slot[t], batch->pos[t], x);
        if (a->want_index_query) {
            float *index = query + (size_t)r->c.n_head * KV_ROW;
            ref_index_query(r, w, batch->pos[t], qa, x, index);
        }
    }
    return FATHOM_OK;
}

/* The rows that one token attends to, in ascending position. */
struct visible {
    const struct kv_cache *kv;
    uint32_t layer;
    uint32_t n;
    const struct batch *batch; /* dense: every position of `request` below n */
    int32_t request;
    const int32_t *slots; /* else the selected ones; NULL when dense */
};

static struct visible visible_rows(const struct mla_attend_args *a, uint32_t t)
{
    DCHECK(t < a->batch->n_token);
    struct visible v = {.kv = a->kv, .layer = a->layer, .batch = a->batch};
    v.request = a->batch->request[t];
    ASSERT(v.request >= 0 && (uint32_t)v.request < a->batch->n_request);
    ASSERT(a->batch->pos[t] >= 0);
    v.n = (uint32_t)a->batch->pos[t] + 1;
    if (a->select) {
        const int32_t *select = a->select->index + (size_t)t * a->select->width;
        v.n = (uint32_t)select[0];
        v.slots = select + 1;
        ASSERT(select[0] >= 1 && v.n <= a->select->width - 1);
    }
    return v;
}

static void read_visible(const struct visible *v, uint32_t i, float row[KV_ROW])
{
    DCHECK(i < v->n);
    int32_t slot = v->slots ? v->slots[i] : ref_slot(v->batch, v->request, (int32_t)i);
    read_latent(v->kv->layout.type, latent_at(v->kv, v->layer, slot), row);
}

/* score[h][i] becomes softmax_i(score[h][i]) */
static void softmax(struct ref_backend *r, uint32_t n)
{
    DCHECK(n >= 1 && n <= r->c.max_context);
    for (uint32_t h = 0; h < r->c.n_head; h++) {
        float *score = r->score + (size_t)h * r->c.max_context;
        float top = score[0];
        double sum = 0;
        for (uint32_t i = 1; i < n; i++) top = score[i] > top ? score[i] : top;
        for (uint32_t i = 0; i < n; i++) sum += exp((double)score[i] - (double)top);
        for (uint32_t i = 0; i < n; i++)
            score[i] = (float)(exp((double)score[i] - (double)top) / sum);
    }
}

static void add_scaled(double *sum, double p, const float *value, uint32_t n)
{
    for (uint32_t d = 0; d < n; d++) sum[d] += p * (double)value[d];
}

/* Keys and values are the cached rows: k = [c ; k_pe], v = c, the same for all heads. */
static void attend(struct ref_backend *r, const struct visible *v, const float *query)
{
    DCHECK(v->n <= r->c.max_context);
    float row[KV_ROW];
    for (uint32_t i = 0; i < v->n; i++) {
        read_visible(v, i, row);
        for (uint32_t h = 0; h < r->c.n_head; h++) {
            float dot = ref_dot(query + (size_t)h * KV_ROW, row, KV_ROW);
            r->score[(size_t)h * r->c.max_context + i] = r->c.softmax_scale * dot;
        }
    }
    softmax(r, v->n);
    for (uint32_t i = 0; i < v->n; i++) {
        read_visible(v, i, row);
        for (uint32_t h = 0; h < r->c.n_head; h++)
            add_scaled(r->sum + (size_t)h * KV_LATENT,
                       (double)r->score[(size_t)h * r->c.max_context + i], row, KV_LATENT);
    }
}

fathom_err ref_mla_attend(struct backend *b, const struct mla_attend_args *a)
{
    op_check_mla_attend(&ref_of(b)->c, a);
    ASSERT(a->query->kind == BUFFER_QUERY);
    ASSERT(a->out->kind == BUFFER_LATENT);
    ASSERT(!a->select || a->select->kind == BUFFER_SELECT);
    struct ref_backend *r = ref_of(b);
    uint32_t width = r->c.n_head * KV_LATENT;
    for (uint32_t t = 0; t < a->batch->n_token; t++) {
        struct visible v = visible_rows(a, t);
        const float *query = a->query->value + (size_t)t * a->query->width;
        float *out = a->out->value + (size_t)t * a->out->width;
        ASSERT(v.n >= 1 && v.n <= r->c.max_context);
        memset(r->sum, 0, width * sizeof *r->sum);
        attend(r, &v, query);
        for (uint32_t i = 0; i < width; i++) out[i] = (float)r->sum[i];
    }
    return FATHOM_OK;
}

/* o_h = W_UV,h z_h; then y = o [o_0 ; o_1 ; ...] */
fathom_err ref_mla_out(struct backend *b, const struct mla_out_args *a)
{
    op_check_mla_out(&ref_of(b)->c, a);
    ASSERT(a->w->kind == REF_MLA);
    ASSERT(a->z->kind == BUFFER_LATENT);
    ASSERT(a->y->kind == BUFFER_DELTA);
    struct ref_backend *r = ref_of(b);
    const struct mla_weight *w = &a->w->mla;
    uint32_t v_dim = r->c.v_dim;
    uint32_t kv_dim = r->c.nope_dim + v_dim;
    float *heads = r->wide;
    for (uint32_t t = 0; t < a->batch->n_token; t++) {
        const float *z = a->z->value + (size_t)t * a->z->width;
        for (uint32_t h = 0; h < r->c.n_head; h++) {
            ref_round(r->c.act, z + (size_t)h * KV_LATENT, KV_LATENT, r->x);
            ref_matvec(&w->kv_b, h * kv_dim + r->c.nope_dim, v_dim, r->x,
                       heads + (size_t)h * v_dim);
        }
        ref_product(r, &w->o, heads, a->y->value + (size_t)t * a->y->width);
    }
    return FATHOM_OK;
}
