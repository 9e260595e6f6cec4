/* ref_dense.c - embed, reduce_norm, ffn, head, mtp_front: equations in op_dense.h */
#include "backend/ref/ref_int.h"

#include <string.h>

#include "base/assert.h"
#include "base/fail.h"

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

/* Row t of every rank's delta, added up in out's row; NULL: nothing is to be added. */
static const float *sum_delta(const struct ref_backend *r, const struct reduce_norm_args *a,
                              const void *const *all, uint32_t t)
{
    const float *parts[PARALLEL_RANKS_MAX];
    if (!a->delta) return NULL;
    if (!all) return row_of(a->delta, t);
    const size_t stride = a->delta->width;
    for (uint32_t k = 0; k < r->peers.sums.n_rank; k++)
        parts[k] = (const float *)all[k] + t * stride;
    float *sum = row_of(a->out, t);
    host_sum_row(sum, parts, r->peers.sums.n_rank, r->c.hidden);
    return sum;
}

/* x[t] += delta[t]; out[t] = rmsnorm(x[t]) */
fathom_err ref_reduce_norm(struct backend *b, const struct reduce_norm_args *a)
{
    op_check_reduce_norm(&ref_of(b)->c, a);
    ASSERT(a->weight->kind == REF_VECTOR);
    ASSERT(a->x->kind == BUFFER_RESIDUAL);
    ASSERT(a->out->kind == BUFFER_NORMED);
    ASSERT(!a->delta || a->delta->kind == BUFFER_DELTA);
    struct ref_backend *r = ref_of(b);
    const struct backend_config *c = &r->c;
    struct host_place place = {.op = "reduce_norm", .layer = a->layer, .n_row = a->n_token};
    const void *const *all = NULL;
    bool meets = a->delta && r->peers.sums.group;
    if (meets) {
        place.n_bytes = a->n_token * (size_t)a->delta->width * sizeof(float);
        TRY(host_meet(&r->peers.sums, &place, a->delta->value, &all));
    }
    for (uint32_t t = 0; t < a->n_token; t++) {
        float *x = row_of(a->x, t);
        const float *delta = sum_delta(r, a, all, t);
        for (uint32_t i = 0; delta && i < c->hidden; i++)
            x[i] = a->begins ? delta[i] : x[i] + delta[i];
        ref_rmsnorm(x, a->weight->matrix.value, c->hidden, c->norm_eps, row_of(a->out, t));
    }
    return meets ? host_part(&r->peers.sums) : FATHOM_OK;
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
    ASSERT(w->n_row == backend_head_rows(&r->c));
    for (uint32_t i = 0; i < a->n_row; i++) {
        ASSERT(a->rows[i] >= 0 && (uint32_t)a->rows[i] < a->hidden->n_row);
        ref_round(r->c.act, row_of(a->hidden, (uint32_t)a->rows[i]), w->n_col, r->x);
        float *own = r->peers.sums.group ? r->head + (size_t)i * w->n_row : row_of(a->logits, i);
        ref_matvec(w, 0, w->n_row, r->x, own);
    }
    if (!r->peers.sums.group || a->n_row == 0) return FATHOM_OK;
    return host_gather_logits(&r->peers.sums, r->head, w->n_row, w->n_row, a->n_row,
                              a->logits->value, a->logits->width);
}

/* y[t] = eh_proj [ rmsnorm(table[next_ids[t]]; enorm) ; rmsnorm(hidden[t]; hnorm) ] */
fathom_err ref_mtp_front(struct backend *b, const struct mtp_front_args *a)
{
    op_check_mtp_front(&ref_of(b)->c, a);
    ASSERT(a->table->kind == REF_LINEAR);
    ASSERT(a->eh_proj->kind == REF_LINEAR);
    ASSERT(a->enorm->kind == REF_VECTOR);
    ASSERT(a->hnorm->kind == REF_VECTOR);
    ASSERT(a->hidden->kind == BUFFER_NORMED);
    ASSERT(a->y->kind == BUFFER_DELTA);
    struct ref_backend *r = ref_of(b);
    uint32_t hidden = r->c.hidden;
    uint32_t n_col = a->eh_proj->matrix.n_col;
    ASSERT(n_col == parallel_part(&r->c.parallel, CUT_INNER, 2 * hidden));
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
        ref_matvec(&a->eh_proj->matrix, 0, hidden, pair + r->c.parallel.tp.rank * n_col,
                   row_of(a->y, t));
    }
    return FATHOM_OK;
}
