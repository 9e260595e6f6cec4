/* ref_index.c - the lightning indexer: its keys and queries, and index_topk (op_attn.h) */
#include "backend/ref/ref_int.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/assert.h"
#include "base/dtype.h"

/* LayerNorm of the index key; the model names no other */
static const float INDEX_NORM_EPS = 1e-6f;

static uint8_t *index_block(const struct kv_cache *kv, uint32_t layer, int32_t slot)
{
    uint32_t page = (uint32_t)slot / KV_PAGE_TOKENS;
    ASSERT(slot >= 0 && page < kv->n_page && layer < kv->layout.n_layer && kv->layout.has_index);
    return (uint8_t *)kv->base + page * kv->layout.page_bytes + kv_index_offset(&kv->layout, layer);
}

/* rope on the first 64 of 128, then Hadamard: the same for queries and keys */
static void rotate(const struct ref_backend *r, int32_t pos, float x[KV_INDEX_DIM])
{
    DCHECK(pos >= 0);
    ref_rope(&r->c, r->c.index_rope_interleaved, pos, x);
    ref_hadamard(x, KV_INDEX_DIM);
}

void ref_write_index_key(struct ref_backend *r, const struct mla_weight *w,
                         const struct kv_cache *kv, uint32_t layer, int32_t slot, int32_t pos,
                         const float *x)
{
    ASSERT(r->c.index_n_head > 0);
    uint8_t *block = index_block(kv, layer, slot);
    uint32_t row = (uint32_t)slot % KV_PAGE_TOKENS;
    float key[KV_INDEX_DIM];
    ref_product(r, &w->index_k, x, key);
    ref_layernorm(key, w->index_k_weight.value, w->index_k_bias.value, KV_INDEX_DIM, INDEX_NORM_EPS,
                  key);
    rotate(r, pos, key);
    if (kv->layout.type == KV_TYPE_F32) {
        memcpy(block + (size_t)row * KV_INDEX_ROW_BYTES_F32, key, sizeof key);
        return;
    }
    float scale = ref_fp8_group(key, block + (size_t)row * KV_INDEX_DIM);
    memcpy(block + KV_INDEX_SCALES_OFFSET + row * sizeof scale, &scale, sizeof scale);
}

/* The key as the products take it, and its scale: I = scale * sum(...) */
static float read_index_key(const struct kv_cache *kv, uint32_t layer, int32_t slot,
                            float key[KV_INDEX_DIM])
{
    const uint8_t *block = index_block(kv, layer, slot);
    uint32_t row = (uint32_t)slot % KV_PAGE_TOKENS;
    float scale = 1;
    if (kv->layout.type == KV_TYPE_F32) {
        memcpy(key, block + (size_t)row * KV_INDEX_ROW_BYTES_F32, KV_INDEX_ROW_BYTES_F32);
        return scale;
    }
    for (int i = 0; i < KV_INDEX_DIM; i++)
        key[i] = f32_from_e4m3(block[(size_t)row * KV_INDEX_DIM + i]);
    memcpy(&scale, block + KV_INDEX_SCALES_OFFSET + row * sizeof scale, sizeof scale);
    return scale;
}

void ref_index_query(struct ref_backend *r, const struct mla_weight *w, int32_t pos,
                     const float *qa, const float *x, float *query)
{
    ASSERT(r->c.index_n_head > 0);
    uint32_t n_head = r->c.index_n_head;
    float *weight = query + (size_t)n_head * KV_INDEX_DIM;
    double factor = 1 / sqrt((double)n_head) / sqrt((double)KV_INDEX_DIM);
    ref_product(r, &w->index_q_b, qa, query);
    ref_product(r, &w->index_head, x, weight);
    for (uint32_t h = 0; h < n_head; h++) {
        float *q = query + (size_t)h * KV_INDEX_DIM;
        float scale = 1;
        rotate(r, pos, q);
        if (r->c.kv.type != KV_TYPE_F32) {
            uint8_t code[KV_INDEX_DIM];
            scale = ref_fp8_group(q, code);
            for (int i = 0; i < KV_INDEX_DIM; i++) q[i] = f32_from_e4m3(code[i]);
        }
        weight[h] = (float)(weight[h] * factor * (double)scale);
    }
}

/* I(t, s) = ks_s * sum_h w[t,h] * max(0, qi[t,h] . ki_s) */
static float index_score(const struct ref_backend *r, const float *query, const float *key,
                         float key_scale)
{
    DCHECK(r->c.index_n_head > 0);
    uint32_t n_head = r->c.index_n_head;
    const float *weight = query + (size_t)n_head * KV_INDEX_DIM;
    double sum = 0;
    for (uint32_t h = 0; h < n_head; h++) {
        float dot = ref_dot(query + (size_t)h * KV_INDEX_DIM, key, KV_INDEX_DIM);
        if (dot > 0) sum += (double)weight[h] * (double)dot;
    }
    float score = (float)(key_scale * sum);
    return isnan(score) ? -INFINITY : score;
}

static int lower_id_first(const void *a, const void *b)
{
    const struct scored *x = a;
    const struct scored *y = b;
    return (x->id > y->id) - (x->id < y->id);
}

fathom_err ref_index_topk(struct backend *b, const struct index_topk_args *a)
{
    op_check_index_topk(&ref_of(b)->c, a);
    ASSERT(a->query->kind == BUFFER_QUERY);
    ASSERT(a->select->kind == BUFFER_SELECT);
    struct ref_backend *r = ref_of(b);
    const struct batch *batch = a->batch;
    for (uint32_t t = 0; t < batch->n_token; t++) {
        const float *query =
            a->query->value + (size_t)t * a->query->width + (size_t)r->c.n_head * KV_ROW;
        int32_t *select = a->select->index + (size_t)t * a->select->width;
        uint32_t n_visible = (uint32_t)batch->pos[t] + 1;
        ASSERT(n_visible >= 1 && n_visible <= r->c.max_context);
        uint32_t n_keep = n_visible < r->c.index_topk ? n_visible : r->c.index_topk;
        for (uint32_t s = 0; s < n_visible; s++) {
            r->scored[s] = (struct scored){0, (int32_t)s};
            if (n_keep == n_visible) continue; /* all stay, whatever the scores */
            float key[KV_INDEX_DIM];
            int32_t slot = ref_slot(batch, batch->request[t], (int32_t)s);
            float scale = read_index_key(a->kv, a->layer, slot, key);
            r->scored[s].score = index_score(r, query, key, scale);
        }
        if (n_keep < n_visible) {
            ref_sort_scored(r->scored, n_visible);
            qsort(r->scored, n_keep, sizeof *r->scored, lower_id_first);
        }
        select[0] = (int32_t)n_keep;
        for (uint32_t i = 0; i < n_keep; i++)
            select[1 + i] = ref_slot(batch, batch->request[t], r->scored[i].id);
    }
    return FATHOM_OK;
}
