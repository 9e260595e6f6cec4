/* cpu_weight.c - the weights of operators: which matrices are packed, and how they are cut */
#include "backend/cpu/cpu_int.h"

#include <string.h>

#include "base/assert.h"
#include "base/fail.h"
#include "base/mem.h"

/* ---- parts ---- */

static fathom_err check_shape(const struct tensor_view *v, const char *name, uint32_t n_row,
                              uint32_t n_col, fathom_diag *d)
{
    if (v->n_row == n_row && v->n_col == n_col) return FATHOM_OK;
    FAIL(d, FATHOM_EMISMATCH, "%s is [%u][%u]; the configuration needs [%u][%u]", name, v->n_row,
         v->n_col, n_row, n_col);
}

static fathom_err pack_whole(struct cpu_backend *cpu, const struct tensor_view *v, const char *name,
                             uint32_t n_row, uint32_t n_col, struct packed *out, fathom_diag *d)
{
    TRY(check_shape(v, name, n_row, n_col, d));
    struct pack_part part = {.view = v, .n_row = n_row};
    TRY(pack_matrix(cpu, &part, 1, name, out, d));
    out->input = backend_input_code(cpu->c.act, v);
    return FATHOM_OK;
}

static fathom_err load_vector(const struct tensor_view *v, const char *name, uint32_t n,
                              float **out, fathom_diag *d)
{
    ASSERT(n > 0);
    TRY(check_shape(v, name, 1, n, d));
    *out = mem_alloc_aligned(CPU_ALIGN, pad32(n) * sizeof **out);
    if (!*out) FAIL(d, FATHOM_ENOMEM, "no memory for %s, %u values", name, n);
    memset(*out, 0, pad32(n) * sizeof **out);
    host_view_row(v, 0, *out);
    return FATHOM_OK;
}

static fathom_err load_ffn(struct cpu_backend *cpu, const struct ffn_tensors *t, uint32_t inner,
                           struct ffn_weight *out, fathom_diag *d)
{
    ASSERT(inner > 0);
    uint32_t hidden = cpu->c.hidden;
    TRY(check_shape(&t->gate, "gate", inner, hidden, d));
    TRY(check_shape(&t->up, "up", inner, hidden, d));
    const struct pack_part gate_up[2] = {{.view = &t->gate, .n_row = inner},
                                         {.view = &t->up, .n_row = inner}};
    out->inner = inner;
    TRY(pack_matrix(cpu, gate_up, 2, "gate and up", &out->gate_up, d));
    const enum input_code gate = backend_input_code(cpu->c.act, &t->gate);
    const enum input_code up = backend_input_code(cpu->c.act, &t->up);
    out->gate_up.input = gate == up ? gate : INPUT_CODE_NONE;
    return pack_whole(cpu, &t->down, "down", hidden, inner, &out->down, d);
}

/* kv_b: per head nope_dim rows of the key half, then v_dim rows of the value half. */
static fathom_err load_kv_b(struct cpu_backend *cpu, const struct tensor_view *v,
                            struct mla_weight *w, fathom_diag *d)
{
    const struct backend_config *c = &cpu->c;
    uint32_t n_head_row = c->nope_dim + c->v_dim;
    TRY(check_shape(v, "kv_b", c->n_head * n_head_row, KV_LATENT, d));
    w->n_head = c->n_head;
    w->key_absorb = mem_calloc(c->n_head, sizeof *w->key_absorb);
    w->value = mem_calloc(c->n_head, sizeof *w->value);
    if (!w->key_absorb || !w->value)
        FAIL(d, FATHOM_ENOMEM, "no memory for a table of %u heads", c->n_head);
    for (uint32_t h = 0; h < c->n_head; h++) {
        uint32_t row0 = h * n_head_row;
        const struct pack_part key = {
            .view = v, .row0 = row0, .n_row = c->nope_dim, .transposed = true};
        const struct pack_part value = {.view = v, .row0 = row0 + c->nope_dim, .n_row = c->v_dim};
        TRY(pack_matrix(cpu, &key, 1, "kv_b", &w->key_absorb[h], d));
        TRY(pack_matrix(cpu, &value, 1, "kv_b", &w->value[h], d));
    }
    return FATHOM_OK;
}

static fathom_err load_indexer(struct cpu_backend *cpu, const struct mla_tensors *t,
                               struct mla_weight *w, fathom_diag *d)
{
    ASSERT(cpu->c.index_n_head > 0);
    const struct backend_config *c = &cpu->c;
    TRY(pack_whole(cpu, &t->index_q_b, "index_q_b", c->index_n_head * KV_INDEX_DIM, c->q_lora_rank,
                   &w->index_q_b, d));
    TRY(pack_whole(cpu, &t->index_k, "index_k", KV_INDEX_DIM, c->hidden, &w->index_k, d));
    TRY(pack_whole(cpu, &t->index_head, "index_head", c->index_n_head, c->hidden, &w->index_head,
                   d));
    TRY(load_vector(&t->index_k_weight, "index_k_weight", KV_INDEX_DIM, &w->index_k_weight, d));
    return load_vector(&t->index_k_bias, "index_k_bias", KV_INDEX_DIM, &w->index_k_bias, d);
}

static fathom_err load_mla(struct cpu_backend *cpu, const struct mla_tensors *t,
                           struct mla_weight *w, fathom_diag *d)
{
    const struct backend_config *c = &cpu->c;
    TRY(pack_whole(cpu, &t->q_a, "q_a", c->q_lora_rank, c->hidden, &w->q_a, d));
    TRY(load_vector(&t->q_a_norm, "q_a_norm", c->q_lora_rank, &w->q_a_norm, d));
    TRY(pack_whole(cpu, &t->q_b, "q_b", c->n_head * (c->nope_dim + KV_ROPE), c->q_lora_rank,
                   &w->q_b, d));
    TRY(pack_whole(cpu, &t->kv_a, "kv_a", KV_ROW, c->hidden, &w->kv_a, d));
    TRY(load_vector(&t->kv_a_norm, "kv_a_norm", KV_LATENT, &w->kv_a_norm, d));
    TRY(load_kv_b(cpu, &t->kv_b, w, d));
    TRY(pack_whole(cpu, &t->o, "o", c->hidden, c->n_head * c->v_dim, &w->o, d));
    return c->index_n_head > 0 ? load_indexer(cpu, t, w, d) : FATHOM_OK;
}

static fathom_err load_moe(struct cpu_backend *cpu, const struct moe_tensors *t,
                           struct moe_weight *w, fathom_diag *d)
{
    ASSERT(cpu->c.n_expert > 0 && t->experts);
    const struct backend_config *c = &cpu->c;
    TRY(pack_whole(cpu, &t->router, "router", c->n_expert, c->hidden, &w->router, d));
    TRY(load_vector(&t->router_bias, "router_bias", c->n_expert, &w->router_bias, d));
    if (c->shared_inner > 0) TRY(load_ffn(cpu, &t->shared, c->shared_inner, &w->shared, d));
    w->n_expert = backend_held_experts(c);
    w->experts = mem_calloc(w->n_expert, sizeof *w->experts);
    if (!w->experts) FAIL(d, FATHOM_ENOMEM, "no memory for a table of %u experts", w->n_expert);
    for (uint32_t e = 0; e < w->n_expert; e++)
        TRY(load_ffn(cpu, &t->experts[e], c->moe_inner, &w->experts[e], d));
    return FATHOM_OK;
}

/* ---- size and release ---- */

static uint64_t ffn_bytes(const struct ffn_weight *w)
{
    return packed_bytes(&w->gate_up) + packed_bytes(&w->down);
}

static uint64_t mla_bytes(const struct mla_weight *w)
{
    const struct packed *all[] = {&w->q_a,       &w->q_b,     &w->kv_a,      &w->o,
                                  &w->index_q_b, &w->index_k, &w->index_head};
    uint64_t n = 0;
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) n += packed_bytes(all[i]);
    for (uint32_t h = 0; h < w->n_head; h++)
        n += packed_bytes(&w->key_absorb[h]) + packed_bytes(&w->value[h]);
    return n;
}

static uint64_t count_bytes(const struct weight *w, uint32_t n_vector)
{
    uint64_t n = n_vector * sizeof(float);
    switch (w->kind) {
    case CPU_VECTOR: break;
    case CPU_LINEAR: n += packed_bytes(&w->linear); break;
    case CPU_FFN: n += ffn_bytes(&w->ffn); break;
    case CPU_MLA: n += mla_bytes(&w->mla); break;
    case CPU_MOE:
        n += packed_bytes(&w->moe.router) + ffn_bytes(&w->moe.shared);
        for (uint32_t e = 0; e < w->moe.n_expert; e++) n += ffn_bytes(&w->moe.experts[e]);
        break;
    }
    return n;
}

static void free_ffn(struct ffn_weight *w)
{
    packed_free(&w->gate_up);
    packed_free(&w->down);
}

static void free_mla(struct mla_weight *w)
{
    struct packed *all[] = {&w->q_a,       &w->q_b,     &w->kv_a,      &w->o,
                            &w->index_q_b, &w->index_k, &w->index_head};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) packed_free(all[i]);
    for (uint32_t h = 0; h < w->n_head; h++) {
        if (w->key_absorb) packed_free(&w->key_absorb[h]);
        if (w->value) packed_free(&w->value[h]);
    }
    mem_free(w->key_absorb);
    mem_free(w->value);
    mem_free(w->q_a_norm);
    mem_free(w->kv_a_norm);
    mem_free(w->index_k_weight);
    mem_free(w->index_k_bias);
}

void cpu_weight_destroy(struct backend *b, struct weight *w)
{
    if (!w) return;
    switch (w->kind) {
    case CPU_VECTOR: mem_free(w->vector); break;
    case CPU_LINEAR: packed_free(&w->linear); break;
    case CPU_FFN: free_ffn(&w->ffn); break;
    case CPU_MLA: free_mla(&w->mla); break;
    case CPU_MOE:
        packed_free(&w->moe.router);
        mem_free(w->moe.router_bias);
        free_ffn(&w->moe.shared);
        for (uint32_t e = 0; w->moe.experts && e < w->moe.n_expert; e++)
            free_ffn(&w->moe.experts[e]);
        mem_free(w->moe.experts);
        break;
    }
    mem_free(w);
    cpu_weight_closes(cpu_of(b));
}

uint64_t cpu_weight_bytes(const struct weight *w)
{
    return w->n_bytes;
}

/* ---- prepare ---- */

static fathom_err create_weight(struct backend *b, enum cpu_kind kind, struct weight **out,
                                fathom_diag *d)
{
    *out = mem_calloc(1, sizeof **out);
    if (!*out) FAIL(d, FATHOM_ENOMEM, "no memory for a weight");
    (*out)->kind = kind;
    cpu_weight_opens(cpu_of(b));
    return FATHOM_OK;
}

/* Finishes what a prepare function began: on an error the half-packed weight goes. */
static fathom_err finish_weight(struct backend *b, struct weight **w, uint32_t n_vector,
                                fathom_err err)
{
    if (err == FATHOM_OK) {
        (*w)->n_bytes = count_bytes(*w, n_vector);
    } else {
        cpu_weight_destroy(b, *w);
        *w = NULL;
    }
    return err;
}

fathom_err cpu_prepare_vector(struct backend *b, const struct tensor_view *v, struct weight **out,
                              fathom_diag *d)
{
    TRY(create_weight(b, CPU_VECTOR, out, d));
    return finish_weight(b, out, v->n_col, load_vector(v, "vector", v->n_col, &(*out)->vector, d));
}

fathom_err cpu_prepare_linear(struct backend *b, const struct tensor_view *v, struct weight **out,
                              fathom_diag *d)
{
    TRY(create_weight(b, CPU_LINEAR, out, d));
    return finish_weight(
        b, out, 0, pack_whole(cpu_of(b), v, "matrix", v->n_row, v->n_col, &(*out)->linear, d));
}

fathom_err cpu_prepare_mla(struct backend *b, const struct mla_tensors *t, struct weight **out,
                           fathom_diag *d)
{
    const struct backend_config *c = &cpu_of(b)->c;
    uint32_t n_vector = c->q_lora_rank + KV_LATENT + (c->index_n_head > 0 ? 2 * KV_INDEX_DIM : 0);
    TRY(create_weight(b, CPU_MLA, out, d));
    return finish_weight(b, out, n_vector, load_mla(cpu_of(b), t, &(*out)->mla, d));
}

fathom_err cpu_prepare_ffn(struct backend *b, const struct ffn_tensors *t, struct weight **out,
                           fathom_diag *d)
{
    TRY(create_weight(b, CPU_FFN, out, d));
    return finish_weight(b, out, 0,
                         load_ffn(cpu_of(b), t, cpu_of(b)->c.dense_inner, &(*out)->ffn, d));
}

fathom_err cpu_prepare_moe(struct backend *b, const struct moe_tensors *t, struct weight **out,
                           fathom_diag *d)
{
    TRY(create_weight(b, CPU_MOE, out, d));
    return finish_weight(b, out, cpu_of(b)->c.n_expert, load_moe(cpu_of(b), t, &(*out)->moe, d));
}
