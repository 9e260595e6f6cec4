/* cpu_front.c - mla_front and mla_out (op_attn.h)
 *
 * mla_front is three parallel products with row work between them:
 *   x      -> q_a, kv_a, index_k, index_head          one loop
 *   rows:     norm of the query latent; the cache's latent row and index key
 *   qa     -> q_b, index_q_b                           one loop
 *   rows:     rope of the queries; index query
 *   q_nope -> W_UK,h^T of every head                   one loop, straight into the query
 */
#include "backend/cpu/cpu_int.h"

#include <math.h>
#include <string.h>

#include "base/assert.h"

static const float INDEX_NORM_EPS =
    1e-6f; /* of the index key's LayerNorm; no model names another */

struct front_scratch {
    float *qa;      /* [T][row_stride(q_lora)] */
    float *kv;      /* [T][576] */
    float *key;     /* [T][128] index key */
    float *weight;  /* [T][pad32(index_n_head)] index head weights */
    float *q;       /* [T][row_stride(H * (nope + 64))] */
    float *index_q; /* [T][index_n_head * 128] */
    void *qa_act;   /* operand [T][row_stride(q_lora)] */
    void *nope_act; /* operand [T][row_stride(H * nope)] */
};

static size_t lay_out_front(const struct cpu_backend *cpu, uint32_t n_token,
                            struct front_scratch *s, uint8_t *base)
{
    const struct backend_config *c = &cpu->c;
    size_t t = n_token;
    size_t act = operand_bytes(cpu->operand);
    struct carver v = {.base = base};
    s->qa = carve(&v, t * row_stride(c->q_lora_rank), sizeof(float));
    s->kv = carve(&v, t * KV_ROW, sizeof(float));
    s->key = carve(&v, t * KV_INDEX_DIM, sizeof(float));
    s->weight = carve(&v, t * pad32(c->index_n_head), sizeof(float));
    s->q = carve(&v, t * row_stride(c->n_head * (c->nope_dim + KV_ROPE)), sizeof(float));
    s->index_q = carve(&v, t * c->index_n_head * KV_INDEX_DIM, sizeof(float));
    s->qa_act = carve(&v, t * row_stride(c->q_lora_rank), act);
    s->nope_act = carve(&v, t * row_stride(c->n_head * c->nope_dim), act);
    return v.used;
}

struct front_task {
    struct cpu_backend *cpu;
    const struct mla_front_args *a;
    struct front_scratch s;
};

/* ---- from x ---- */

static void project_input(struct front_task *f)
{
    const struct mla_front_args *a = f->a;
    const struct mla_weight *w = &a->w->mla;
    const struct backend_config *c = &f->cpu->c;
    const struct gemm_job from_x = {
        .x = a->x->operand, .x_stride = a->x->stride, .n_token = a->batch->n_token};
    struct gemm_job *jobs = f->cpu->jobs;
    uint32_t n = 0;
    struct gemm_job j = from_x;
    j.w = &w->q_a, j.y = f->s.qa, j.y_stride = row_stride(c->q_lora_rank);
    jobs[n++] = j;
    j.w = &w->kv_a, j.y = f->s.kv, j.y_stride = KV_ROW;
    jobs[n++] = j;
    if (c->index_n_head > 0) {
        j.w = &w->index_k, j.y = f->s.key, j.y_stride = KV_INDEX_DIM;
        jobs[n++] = j;
        if (a->want_index_query) {
            j.w = &w->index_head, j.y = f->s.weight, j.y_stride = pad32(c->index_n_head);
            jobs[n++] = j;
        }
    }
    cpu_gemm(f->cpu, f->cpu->operand, jobs, n);
}

static uint8_t *page_at(const struct kv_cache *kv, int32_t slot)
{
    uint32_t page = (uint32_t)slot / KV_PAGE_TOKENS;
    ASSERT(slot >= 0 && page < kv->n_page);
    return (uint8_t *)kv->base + page * kv->layout.page_bytes;
}

/* The index key of one token: norm, rope on the first 64, Hadamard, and into the cache. */
static void cache_index_key(const struct front_task *f, size_t t)
{
    DCHECK(f->cpu->c.index_n_head > 0);
    const struct cpu_kernels *k = f->cpu->k;
    const struct mla_front_args *a = f->a;
    const struct mla_weight *w = &a->w->mla;
    int32_t slot = a->batch->slot[t];
    uint32_t row = (uint32_t)slot % KV_PAGE_TOKENS;
    uint8_t *block = page_at(a->kv, slot) + kv_index_offset(&a->kv->layout, a->layer);
    float *key = f->s.key + t * KV_INDEX_DIM;
    k->layer_norm(key, w->index_k_weight, w->index_k_bias, KV_INDEX_DIM, INDEX_NORM_EPS, key);
    k->rope(key, cpu_cos_sin(f->cpu, a->batch->pos[t]), f->cpu->c.index_rope_interleaved);
    k->hadamard(key);
    if (a->kv->layout.type == KV_TYPE_F32) {
        memcpy(block + (size_t)row * KV_INDEX_ROW_BYTES_F32, key, KV_INDEX_ROW_BYTES_F32);
        return;
    }
    float scale = k->quantize_group(key, block + (size_t)row * KV_INDEX_DIM);
    memcpy(block + KV_INDEX_SCALES_OFFSET + row * sizeof scale, &scale, sizeof scale);
}

static void finish_input_row(void *arg, size_t t, size_t n, unsigned worker)
{
    DCHECK(t < n);
    const struct front_task *f = arg;
    const struct cpu_backend *cpu = f->cpu;
    const struct backend_config *c = &cpu->c;
    const struct mla_front_args *a = f->a;
    const struct mla_weight *w = &a->w->mla;
    uint32_t lora = pad32(c->q_lora_rank);
    float *qa = f->s.qa + t * row_stride(c->q_lora_rank);
    float *kv = f->s.kv + t * KV_ROW;
    int32_t slot = a->batch->slot[t];
    (void)n;
    (void)worker;
    cpu->k->add_norm(qa, NULL, w->q_a_norm, lora, c->q_lora_rank, c->norm_eps, qa);
    cpu_to_operand(cpu, qa, lora,
                   operand_row(cpu->operand, f->s.qa_act, t * row_stride(c->q_lora_rank)));

    cpu->k->add_norm(kv, NULL, w->kv_a_norm, KV_LATENT, KV_LATENT, c->norm_eps, kv);
    cpu->k->rope(kv + KV_LATENT, cpu_cos_sin(cpu, a->batch->pos[t]), c->rope_interleaved);
    cpu->k->store_latent(a->kv->layout.type, kv,
                         page_at(a->kv, slot) + kv_latent_offset(&a->kv->layout, a->layer) +
                             (size_t)slot % KV_PAGE_TOKENS * a->kv->layout.row_bytes);
    if (c->index_n_head > 0) cache_index_key(f, t);
}

/* ---- from the query latent ---- */

static void project_query(struct front_task *f)
{
    const struct mla_weight *w = &f->a->w->mla;
    const struct backend_config *c = &f->cpu->c;
    struct gemm_job j = {
        .x = f->s.qa_act, .x_stride = row_stride(c->q_lora_rank), .n_token = f->a->batch->n_token};
    struct gemm_job *jobs = f->cpu->jobs;
    uint32_t n = 0;
    j.w = &w->q_b, j.y = f->s.q, j.y_stride = row_stride(c->n_head * (c->nope_dim + KV_ROPE));
    jobs[n++] = j;
    if (c->index_n_head > 0 && f->a->want_index_query) {
        j.w = &w->index_q_b, j.y = f->s.index_q, j.y_stride = c->index_n_head * KV_INDEX_DIM;
        jobs[n++] = j;
    }
    cpu_gemm(f->cpu, f->cpu->operand, jobs, n);
}

/* Index query and weights of one token, as values of their codes. */
static void finish_index_query(const struct front_task *f, size_t t, float *query)
{
    DCHECK(f->a->want_index_query);
    const struct cpu_kernels *k = f->cpu->k;
    const struct backend_config *c = &f->cpu->c;
    uint32_t n_head = c->index_n_head;
    const float *weight = f->s.weight + t * pad32(n_head);
    float *out_weight = query + (size_t)n_head * KV_INDEX_DIM;
    double factor = 1 / sqrt((double)n_head) / sqrt((double)KV_INDEX_DIM);
    for (uint32_t h = 0; h < n_head; h++) {
        float *q = f->s.index_q + (t * n_head + h) * KV_INDEX_DIM;
        float scale = 1;
        k->rope(q, cpu_cos_sin(f->cpu, f->a->batch->pos[t]), c->index_rope_interleaved);
        k->hadamard(q);
        if (c->kv.type == KV_TYPE_F32) {
            memcpy(query + (size_t)h * KV_INDEX_DIM, q, KV_INDEX_DIM * sizeof *q);
        } else {
            uint8_t code[KV_INDEX_DIM];
            scale = k->quantize_group(q, code);
            k->load_codes(code, KV_INDEX_DIM, OPERAND_F32, query + (size_t)h * KV_INDEX_DIM);
        }
        out_weight[h] = (float)(weight[h] * factor * (double)scale);
    }
}

static void finish_query_row(void *arg, size_t t, size_t n, unsigned worker)
{
    DCHECK(t < n);
    const struct front_task *f = arg;
    const struct cpu_backend *cpu = f->cpu;
    const struct backend_config *c = &cpu->c;
    const struct mla_front_args *a = f->a;
    uint32_t head_dim = c->nope_dim + KV_ROPE;
    float *q = f->s.q + t * row_stride(c->n_head * head_dim);
    float *query = a->query->value + t * a->query->stride;
    (void)n;
    (void)worker;
    for (uint32_t h = 0; h < c->n_head; h++) {
        float *nope = q + (size_t)h * head_dim;
        float *pe = nope + c->nope_dim;
        cpu->k->rope(pe, cpu_cos_sin(cpu, a->batch->pos[t]), c->rope_interleaved);
        size_t at = t * row_stride(c->n_head * c->nope_dim) + h * c->nope_dim;
        cpu_to_operand(cpu, nope, c->nope_dim, operand_row(cpu->operand, f->s.nope_act, at));
        memcpy(query + (size_t)h * KV_ROW + KV_LATENT, pe, KV_ROPE * sizeof *pe);
    }
    if (c->index_n_head > 0 && a->want_index_query)
        finish_index_query(f, t, query + (size_t)c->n_head * KV_ROW);
}

static void absorb_key(struct front_task *f)
{
    const struct backend_config *c = &f->cpu->c;
    const struct mla_front_args *a = f->a;
    struct gemm_job *jobs = f->cpu->jobs;
    for (uint32_t h = 0; h < c->n_head; h++) {
        jobs[h] = (struct gemm_job){
            .w = &a->w->mla.key_absorb[h],
            .x = operand_row(f->cpu->operand, f->s.nope_act, (size_t)h * c->nope_dim),
            .x_stride = row_stride(c->n_head * c->nope_dim),
            .n_token = a->batch->n_token,
            .y = a->query->value + (size_t)h * KV_ROW,
            .y_stride = a->query->stride,
        };
    }
    cpu_gemm(f->cpu, f->cpu->operand, jobs, c->n_head);
}

fathom_err cpu_mla_front(struct backend *b, const struct mla_front_args *a)
{
    op_check_mla_front(&cpu_of(b)->c, a);
    ASSERT(a->w->kind == CPU_MLA);
    ASSERT(a->x->kind == BUFFER_NORMED);
    ASSERT(a->query->kind == BUFFER_QUERY);
    struct cpu_backend *cpu = cpu_of(b);
    const struct backend_config *c = &cpu->c;
    struct front_task f = {.cpu = cpu, .a = a};
    lay_out_front(cpu, a->batch->n_token, &f.s, cpu->arena);
    project_input(&f);
    cpu_rows(cpu, a->batch->n_token, c->q_lora_rank + KV_ROW, finish_input_row, &f);
    project_query(&f);
    cpu_rows(cpu, a->batch->n_token, a->query->width, finish_query_row, &f);
    absorb_key(&f);
    return FATHOM_OK;
}

/* ---- mla_out ---- */

fathom_err cpu_mla_out(struct backend *b, const struct mla_out_args *a)
{
    op_check_mla_out(&cpu_of(b)->c, a);
    ASSERT(a->w->kind == CPU_MLA);
    ASSERT(a->z->kind == BUFFER_LATENT);
    ASSERT(a->y->kind == BUFFER_DELTA);
    struct cpu_backend *cpu = cpu_of(b);
    const struct backend_config *c = &cpu->c;
    size_t stride = row_stride(c->n_head * c->v_dim);
    struct gemm_job out = {
        .w = &a->w->mla.o,
        .x = cpu->arena,
        .x_stride = stride,
        .n_token = a->batch->n_token,
        .y = a->y->value,
        .y_stride = a->y->stride,
    };
    for (uint32_t h = 0; h < c->n_head; h++) {
        cpu->jobs[h] = (struct gemm_job){
            .w = &a->w->mla.value[h],
            .x = operand_row(cpu->operand, a->z->operand, (size_t)h * KV_LATENT),
            .x_stride = a->z->stride,
            .n_token = a->batch->n_token,
            .act = operand_row(cpu->operand, cpu->arena, (size_t)h * c->v_dim),
            .act_stride = stride,
        };
    }
    cpu_gemm(cpu, cpu->operand, cpu->jobs, c->n_head);
    cpu_gemm(cpu, cpu->operand, &out, 1);
    return FATHOM_OK;
}

size_t cpu_front_arena_bytes(const struct cpu_backend *cpu)
{
    const struct backend_config *c = &cpu->c;
    struct front_scratch s;
    size_t heads =
        (size_t)c->max_token * row_stride(c->n_head * c->v_dim) * operand_bytes(cpu->operand);
    return max_size(lay_out_front(cpu, c->max_token, &s, NULL), heads);
}
