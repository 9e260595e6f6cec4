/* ref_dense.c - embed, add_norm, ffn, head, mtp_front: equations in op_dense.h */
#include "backend/ref/ref_int.h"

#include <string.h>

#include "base/assert.h"

static float *row_of(const struct buffer *buf, uint32_t t)
{
    DCHECK(t < buf->n_row);
    return buf->value + (size_t)t * buf->width;
}

/* x[t] = table[id of t] */
fathom_err ref_embed(struct backend *b, const struct embed_args *a)
{
    op_check_embed(&ref_of(b)->c, a);
    ASSERT(a->table->kind == REF_LINEAR);
    ASSERT(a->x->kind == BUFFER_RESIDUAL);
    uint32_t hidden = ref_of(b)->c.hidden;
    const struct matrix *table = &a->table->matrix;
    for (uint32_t t = 0; t < a->n_token; t++) {
        int32_t id = embed_id(a, t);
        ASSERT(id >= 0 && (uint32_t)id < table->n_row);
        memcpy(row_of(a->x, t), table->value + (size_t)id * hidden, hidden * sizeof(float));
    }
    return FATHOM_OK;
}

/* x[t] += delta[t]; out[t] = rmsnorm(x[t]) */
fathom_err ref_add_norm(struct backend *b, const struct add_norm_args *a)
{
    op_check_add_norm(&ref_of(b)->c, a);
    ASSERT(a->weight->kind == REF_VECTOR);
    ASSERT(a->x->kind == BUFFER_RESIDUAL);
    ASSERT(a->out->kind == BUFFER_NORMED);
    ASSERT(!a->delta || a->delta->kind == BUFFER_DELTA);
    const struct backend_config *c = &ref_of(b)->c;
    for (uint32_t t = 0; t < a->n_token; t++) {
        float *x = row_of(a->x, t);
        if (a->delta) {
            const float *delta = row_of(a->delta, t);
            for (uint32_t i = 0; i < c->hidden; i++) x[i] += delta[i];
        }
        ref_rmsnorm(x, a->weight->matrix.value, c->hidden, c->norm_eps, row_of(a->out, t));
    }
    return FATHOM_OK;
}

void ref_ffn_row(struct ref_backend *r, const struct ffn_weight *w, const float *x, float *y)
{
    ASSERT(w->up.n_row == w->gate.n_row && w->down.n_col == w->gate.n_row);
    uint32_t inner = w->gate.n_row;
    float *gate = r->wide;
    float *up = r->wide2;
    ref_product(r, &w->gate, x, gate);
    ref_product(r, &w->up, x, up);
    for (uint32_t i = 0; i < inner; i++) gate[i] = ref_silu(gate[i]) * up[i];
    ref_product(r, &w->down, gate, y);
}

/* y[t] = down( silu(gate x[t]) * (up x[t]) ) */
fathom_err ref_ffn(struct backend *b, const struct ffn_args *a)
{
    op_check_ffn(&ref_of(b)->c, a);
    ASSERT(a->w->kind == REF_FFN);
    ASSERT(a->x->kind == BUFFER_NORMED);
    ASSERT(a->y->kind == BUFFER_DELTA);
    struct ref_backend *r = ref_of(b);
    for (uint32_t t = 0; t < a->n_token; t++)
        ref_ffn_row(r, &a->w->ffn, row_of(a->x, t), row_of(a->y, t));
    return FATHOM_OK;
}

/* logits[i] = W hidden[rows[i]] */
fathom_err ref_head(struct backend *b, const struct head_args *a)
{
    op_check_head(&ref_of(b)->c, a);
    ASSERT(a->w->kind == REF_LINEAR);
    ASSERT(a->hidden->kind == BUFFER_NORMED);
    ASSERT(a->logits->kind == BUFFER_LOGITS);
    struct ref_backend *r = ref_of(b);
    const struct matrix *w = &a->w->matrix;
    for (uint32_t i = 0; i < a->n_row; i++) {
        ASSERT(a->rows[i] >= 0 && (uint32_t)a->rows[i] < a->hidden->n_row);
        ref_round(r->c.act, row_of(a->hidden, (uint32_t)a->rows[i]), w->n_col, r->x);
        ref_matvec(w, 0, w->n_row, r->x, row_of(a->logits, i));
    }
    return FATHOM_OK;
}

/* x[t] = eh_proj [ rmsnorm(table[next_ids[t]]; enorm) ; rmsnorm(hidden[t]; hnorm) ] */
fathom_err ref_mtp_front(struct backend *b, const struct mtp_front_args *a)
{
    op_check_mtp_front(&ref_of(b)->c, a);
    ASSERT(a->table->kind == REF_LINEAR);
    ASSERT(a->eh_proj->kind == REF_LINEAR);
    ASSERT(a->enorm->kind == REF_VECTOR);
    ASSERT(a->hnorm->kind == REF_VECTOR);
    ASSERT(a->hidden->kind == BUFFER_NORMED);
    ASSERT(a->x->kind == BUFFER_RESIDUAL);
    struct ref_backend *r = ref_of(b);
    uint32_t hidden = r->c.hidden;
    const struct matrix *table = &a->table->matrix;
    float *pair = r->x;
    for (uint32_t t = 0; t < a->n_token; t++) {
        ASSERT(a->next_ids[t] >= 0 && (uint32_t)a->next_ids[t] < table->n_row);
        const float *embedding = table->value + (size_t)a->next_ids[t] * hidden;
        ref_rmsnorm(embedding, a->enorm->matrix.value, hidden, r->c.norm_eps, pair);
        uint32_t row = a->rows ? (uint32_t)a->rows[t] : t;
        ASSERT(row < a->hidden->n_row);
        ref_rmsnorm(row_of(a->hidden, row), a->hnorm->matrix.value, hidden, r->c.norm_eps,
                    pair + hidden);
        ref_round(r->c.act, pair, 2 * hidden, pair);
        ref_matvec(&a->eh_proj->matrix, 0, hidden, pair, row_of(a->x, t));
    }
    return FATHOM_OK;
}
