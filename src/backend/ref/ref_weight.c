/* ref_weight.c - tensors of a checkpoint to f32 matrices */
#include "backend/ref/ref_int.h"

#include "base/assert.h"
#include "base/fail.h"
#include "base/mem.h"

/* What the tensor must be: its name in messages, and its shape. */
struct want {
    const char *name;
    uint32_t n_row;
    uint32_t n_col;
};

static fathom_err decode(const struct tensor_view *v, struct want want, struct matrix *out,
                         fathom_diag *d)
{
    ASSERT(want.name && want.n_row > 0);
    if (v->n_row != want.n_row || v->n_col != want.n_col)
        FAIL(d, FATHOM_EMISMATCH, "%s is [%u][%u]; the configuration needs [%u][%u]", want.name,
             v->n_row, v->n_col, want.n_row, want.n_col);
    if (!tensor_view_is_float(v))
        FAIL(d, FATHOM_EUNSUPPORTED,
             "%s has type %s; the reference backend takes F32, F16, BF16, F8_E4M3 and I8 with "
             "scales, and packed codes. Use an unquantized checkpoint",
             want.name, dtype_name(v->dtype));
    size_t n = (size_t)v->n_row * v->n_col;
    out->value = mem_alloc_array(n, sizeof(float));
    if (!out->value)
        FAIL(d, FATHOM_ENOMEM, "no memory for %s, %zu bytes", want.name, n * sizeof(float));
    out->n_row = v->n_row;
    out->n_col = v->n_col;
    for (int act = 0; act <= ACT_INT8; act++)
        out->input[act] = backend_input_code((enum act_type)act, v);
    for (uint32_t r = 0; r < v->n_row; r++) host_view_row(v, r, out->value + (size_t)r * v->n_col);
    return FATHOM_OK;
}

static fathom_err decode_ffn(const struct ffn_tensors *t, uint32_t hidden, uint32_t inner,
                             struct ffn_weight *out, fathom_diag *d)
{
    TRY(decode(&t->gate, (struct want){"gate", inner, hidden}, &out->gate, d));
    TRY(decode(&t->up, (struct want){"up", inner, hidden}, &out->up, d));
    return decode(&t->down, (struct want){"down", hidden, inner}, &out->down, d);
}

static fathom_err decode_mla(const struct backend_config *c, const struct mla_tensors *t,
                             struct mla_weight *w, fathom_diag *d)
{
    uint32_t q_head = c->nope_dim + KV_ROPE;
    uint32_t kv_head = c->nope_dim + c->v_dim;
    const struct {
        const struct tensor_view *view;
        struct want want;
        struct matrix *to;
        bool index;
    } parts[] = {
        {&t->q_a, {"q_a", c->q_lora_rank, c->hidden}, &w->q_a, false},
        {&t->q_a_norm, {"q_a_norm", 1, c->q_lora_rank}, &w->q_a_norm, false},
        {&t->q_b, {"q_b", c->n_head * q_head, c->q_lora_rank}, &w->q_b, false},
        {&t->kv_a, {"kv_a", KV_ROW, c->hidden}, &w->kv_a, false},
        {&t->kv_a_norm, {"kv_a_norm", 1, KV_LATENT}, &w->kv_a_norm, false},
        {&t->kv_b, {"kv_b", c->n_head * kv_head, KV_LATENT}, &w->kv_b, false},
        {&t->o, {"o", c->hidden, c->n_head * c->v_dim}, &w->o, false},
        {&t->index_q_b,
         {"index_q_b", c->index_n_head * KV_INDEX_DIM, c->q_lora_rank},
         &w->index_q_b,
         true},
        {&t->index_k, {"index_k", KV_INDEX_DIM, c->hidden}, &w->index_k, true},
        {&t->index_k_weight, {"index_k_weight", 1, KV_INDEX_DIM}, &w->index_k_weight, true},
        {&t->index_k_bias, {"index_k_bias", 1, KV_INDEX_DIM}, &w->index_k_bias, true},
        {&t->index_head, {"index_head", c->index_n_head, c->hidden}, &w->index_head, true},
    };
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
        if (parts[i].index && c->index_n_head == 0) continue;
        TRY(decode(parts[i].view, parts[i].want, parts[i].to, d));
    }
    return FATHOM_OK;
}

static fathom_err decode_moe(const struct backend_config *c, const struct moe_tensors *t,
                             struct moe_weight *w, fathom_diag *d)
{
    ASSERT(c->n_expert > 0 && t->experts);
    TRY(decode(&t->router, (struct want){"router", c->n_expert, c->hidden}, &w->router, d));
    TRY(decode(&t->router_bias, (struct want){"router_bias", 1, c->n_expert}, &w->router_bias, d));
    if (c->shared_inner > 0) TRY(decode_ffn(&t->shared, c->hidden, c->shared_inner, &w->shared, d));
    w->n_expert = backend_held_experts(c);
    w->experts = mem_calloc(w->n_expert, sizeof *w->experts);
    if (!w->experts) FAIL(d, FATHOM_ENOMEM, "no memory for a table of %u experts", w->n_expert);
    for (uint32_t e = 0; e < w->n_expert; e++)
        TRY(decode_ffn(&t->experts[e], c->hidden, c->moe_inner, &w->experts[e], d));
    return FATHOM_OK;
}

static uint64_t matrix_bytes(const struct matrix *m)
{
    return (uint64_t)m->n_row * m->n_col * sizeof(float);
}

static uint64_t ffn_bytes(const struct ffn_weight *w)
{
    return matrix_bytes(&w->gate) + matrix_bytes(&w->up) + matrix_bytes(&w->down);
}

static uint64_t count_bytes(const struct weight *w)
{
    uint64_t n = 0;
    switch (w->kind) {
    case REF_VECTOR:
    case REF_LINEAR: return matrix_bytes(&w->matrix);
    case REF_FFN: return ffn_bytes(&w->ffn);
    case REF_MLA:
        for (int i = 0; i < MLA_N_MATRIX; i++) n += matrix_bytes(&w->mla.all[i]);
        return n;
    case REF_MOE:
        n = matrix_bytes(&w->moe.router) + matrix_bytes(&w->moe.router_bias) +
            ffn_bytes(&w->moe.shared);
        for (uint32_t e = 0; e < w->moe.n_expert; e++) n += ffn_bytes(&w->moe.experts[e]);
        return n;
    }
    return n;
}

static fathom_err create_weight(enum ref_kind kind, struct weight **out, fathom_diag *d)
{
    ASSERT(out);
    *out = mem_calloc(1, sizeof **out);
    if (!*out) FAIL(d, FATHOM_ENOMEM, "no memory for a weight");
    (*out)->kind = kind;
    return FATHOM_OK;
}

/* Finishes what a prepare function began: on an error the half-decoded weight goes. */
static fathom_err finish_weight(struct backend *b, struct weight **w, fathom_err err)
{
    ASSERT(*w);
    if (err == FATHOM_OK) {
        (*w)->n_bytes = count_bytes(*w);
    } else {
        ref_weight_destroy(b, *w);
        *w = NULL;
    }
    return err;
}

fathom_err ref_prepare_vector(struct backend *b, const struct tensor_view *v, struct weight **out,
                              fathom_diag *d)
{
    ASSERT(v);
    TRY(create_weight(REF_VECTOR, out, d));
    struct want want = {"vector", 1, v->n_col};
    return finish_weight(b, out, decode(v, want, &(*out)->matrix, d));
}

fathom_err ref_prepare_linear(struct backend *b, const struct tensor_view *v, struct weight **out,
                              fathom_diag *d)
{
    ASSERT(v);
    TRY(create_weight(REF_LINEAR, out, d));
    struct want want = {"matrix", v->n_row, v->n_col};
    return finish_weight(b, out, decode(v, want, &(*out)->matrix, d));
}

fathom_err ref_prepare_mla(struct backend *b, const struct mla_tensors *t, struct weight **out,
                           fathom_diag *d)
{
    ASSERT(t);
    TRY(create_weight(REF_MLA, out, d));
    return finish_weight(b, out, decode_mla(&ref_of(b)->c, t, &(*out)->mla, d));
}

fathom_err ref_prepare_ffn(struct backend *b, const struct ffn_tensors *t, struct weight **out,
                           fathom_diag *d)
{
    ASSERT(t);
    const struct backend_config *c = &ref_of(b)->c;
    TRY(create_weight(REF_FFN, out, d));
    return finish_weight(b, out, decode_ffn(t, c->hidden, c->dense_inner, &(*out)->ffn, d));
}

fathom_err ref_prepare_moe(struct backend *b, const struct moe_tensors *t, struct weight **out,
                           fathom_diag *d)
{
    ASSERT(t);
    TRY(create_weight(REF_MOE, out, d));
    return finish_weight(b, out, decode_moe(&ref_of(b)->c, t, &(*out)->moe, d));
}

static void free_ffn(struct ffn_weight *w)
{
    mem_free(w->gate.value);
    mem_free(w->up.value);
    mem_free(w->down.value);
}

void ref_weight_destroy(struct backend *b, struct weight *w)
{
    (void)b;
    if (!w) return;
    switch (w->kind) {
    case REF_VECTOR:
    case REF_LINEAR: mem_free(w->matrix.value); break;
    case REF_FFN: free_ffn(&w->ffn); break;
    case REF_MLA:
        for (int i = 0; i < MLA_N_MATRIX; i++) mem_free(w->mla.all[i].value);
        break;
    case REF_MOE:
        mem_free(w->moe.router.value);
        mem_free(w->moe.router_bias.value);
        free_ffn(&w->moe.shared);
        for (uint32_t e = 0; w->moe.experts && e < w->moe.n_expert; e++)
            free_ffn(&w->moe.experts[e]);
        mem_free(w->moe.experts);
        break;
    }
    mem_free(w);
}

uint64_t ref_weight_bytes(const struct weight *w)
{
    ASSERT(w);
    return w->n_bytes;
}
