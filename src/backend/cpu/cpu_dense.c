/* cpu_dense.c - embed, reduce_norm, ffn, head, mtp_front (op_dense.h) */
#include "backend/cpu/cpu_int.h"

#include <string.h>

#include "base/assert.h"
#include "base/fail.h"

static float *row_of(const struct buffer *buf, size_t t)
{
    return buf->value + t * buf->stride;
}

/* ---- embed ---- */

static void embed_row(void *arg, size_t t, size_t n, unsigned worker)
{
    const struct embed_args *a = arg;
    (void)n;
    (void)worker;
    int32_t id = embed_id(a, t);
    ASSERT(id >= 0 && (uint32_t)id < a->table->linear.n_row);
    packed_row(&a->table->linear, (uint32_t)id, row_of(a->x, t));
}

fathom_err cpu_embed(struct backend *b, const struct embed_args *a)
{
    op_check_embed(&cpu_of(b)->c, a);
    ASSERT(a->table->kind == CPU_LINEAR);
    ASSERT(a->x->kind == BUFFER_RESIDUAL);
    struct embed_args args = *a;
    cpu_rows(cpu_of(b), a->n_token, (size_t)4 * cpu_of(b)->c.hidden, embed_row, &args);
    return FATHOM_OK;
}

/* ---- reduce_norm ---- */

struct norm_task {
    struct cpu_backend *cpu;
    const struct reduce_norm_args *a;
    const void *const *all; /* every rank's delta; NULL: one rank, or nothing is added */
};

/* Row t of every rank's delta, added up in out's row; NULL: nothing is to be added. */
static const float *sum_delta(const struct norm_task *task, size_t t)
{
    const float *parts[PARALLEL_RANKS_MAX];
    const uint32_t n_rank = task->cpu->peers.sums.n_rank;
    if (!task->a->delta) return NULL;
    if (!task->all) return row_of(task->a->delta, t);
    const size_t stride = task->a->delta->stride;
    for (uint32_t k = 0; k < n_rank; k++) parts[k] = (const float *)task->all[k] + t * stride;
    float *sum = row_of(task->a->out, t);
    host_sum_row(sum, parts, n_rank, pad32(task->cpu->c.hidden));
    return sum;
}

static void norm_row(void *arg, size_t t, size_t n, unsigned worker)
{
    DCHECK(t < n);
    const struct norm_task *task = arg;
    const struct cpu_backend *cpu = task->cpu;
    const struct reduce_norm_args *a = task->a;
    (void)n;
    (void)worker;
    float *out = row_of(a->out, t);
    const float *delta = sum_delta(task, t);
    if (a->begins) {
        memcpy(row_of(a->x, t), delta, pad32(cpu->c.hidden) * sizeof *delta);
        delta = NULL;
    }
    cpu->k->add_norm(row_of(a->x, t), delta, a->weight->vector, pad32(cpu->c.hidden), cpu->c.hidden,
                     cpu->c.norm_eps, out);
    cpu_to_operand(cpu, out, pad32(cpu->c.hidden),
                   operand_row(cpu->operand, a->out->operand, t * a->out->stride));
}

fathom_err cpu_reduce_norm(struct backend *b, const struct reduce_norm_args *a)
{
    op_check_reduce_norm(&cpu_of(b)->c, a);
    ASSERT(a->weight->kind == CPU_VECTOR);
    ASSERT(a->x->kind == BUFFER_RESIDUAL);
    ASSERT(a->out->kind == BUFFER_NORMED);
    ASSERT(!a->delta || a->delta->kind == BUFFER_DELTA);
    struct cpu_backend *cpu = cpu_of(b);
    struct norm_task task = {.cpu = cpu, .a = a};
    struct host_place place = {.op = "reduce_norm", .layer = a->layer, .n_row = a->n_token};
    bool meets = a->delta && cpu->peers.sums.group;
    if (meets) {
        place.n_bytes = a->n_token * a->delta->stride * sizeof(float);
        TRY(host_meet(&cpu->peers.sums, &place, a->delta->value, &task.all));
    }
    cpu_rows(cpu, a->n_token, cpu->c.hidden, norm_row, &task);
    return meets ? host_part(&cpu->peers.sums) : FATHOM_OK;
}

/* ---- ffn ---- */

fathom_err cpu_ffn(struct backend *b, const struct ffn_args *a)
{
    op_check_ffn(&cpu_of(b)->c, a);
    ASSERT(a->w->kind == CPU_FFN);
    ASSERT(a->x->kind == BUFFER_NORMED);
    ASSERT(a->y->kind == BUFFER_DELTA);
    struct cpu_backend *cpu = cpu_of(b);
    struct ffn_group group = {
        .w = &a->w->ffn,
        .x = a->x->operand,
        .x_stride = a->x->stride,
        .n_row = a->n_token,
    };
    struct ffn_call call = {
        .groups = &group,
        .n_group = 1,
        .n_token = a->n_token,
        .inner = cpu->arena,
        .inner_stride = row_stride(cpu->c.dense_inner),
        .y = a->y->value,
        .y_stride = a->y->stride,
    };
    cpu_ffn_groups(cpu, &call);
    return FATHOM_OK;
}

/* ---- head, mtp_front: their inputs are gathered first ---- */

struct gather_task {
    struct cpu_backend *cpu;
    const struct head_args *head;
    const struct mtp_front_args *mtp;
    float *row; /* mtp: f32 [n][2 * pad32(hidden)] */
    void *x;    /* operands */
};

static void gather_head_row(void *arg, size_t i, size_t n, unsigned worker)
{
    DCHECK(i < n);
    const struct gather_task *task = arg;
    const struct buffer *hidden = task->head->hidden;
    (void)n;
    (void)worker;
    ASSERT(task->head->rows[i] >= 0 && (uint32_t)task->head->rows[i] < hidden->n_row);
    cpu_to_operand(task->cpu, row_of(hidden, (uint32_t)task->head->rows[i]), pad32(hidden->width),
                   operand_row(task->cpu->operand, task->x, i * hidden->stride));
}

fathom_err cpu_head(struct backend *b, const struct head_args *a)
{
    op_check_head(&cpu_of(b)->c, a);
    ASSERT(a->w->kind == CPU_LINEAR);
    ASSERT(a->hidden->kind == BUFFER_NORMED);
    ASSERT(a->logits->kind == BUFFER_LOGITS);
    struct cpu_backend *cpu = cpu_of(b);
    struct gather_task task = {.cpu = cpu, .head = a, .x = cpu->arena};
    const uint32_t n_col = backend_head_rows(&cpu->c);
    const bool meets = cpu->peers.sums.group;
    ASSERT(a->w->linear.n_row == n_col);
    struct gemm_job job = {
        .w = &a->w->linear,
        .rounding = INPUT_BF16,
        .x = task.x,
        .x_stride = a->hidden->stride,
        .n_token = a->n_row,
        .y = meets ? cpu->head : a->logits->value,
        .y_stride = meets ? row_stride(n_col) : a->logits->stride,
    };
    if (a->n_row == 0) return FATHOM_OK;
    cpu_rows(cpu, a->n_row, cpu->c.hidden, gather_head_row, &task);
    cpu_gemm(cpu, cpu->operand, &job, 1);
    if (!meets) return FATHOM_OK;
    return host_gather_logits(&cpu->peers.sums, cpu->head, job.y_stride, n_col, a->n_row,
                              a->logits->value, a->logits->stride);
}

/* The two halves stand side by side without padding between them, as eh_proj's columns do; of
 * several ranks each takes its part of the pair. */
static void gather_mtp_row(void *arg, size_t t, size_t n_item, unsigned worker)
{
    const struct gather_task *task = arg;
    const struct mtp_front_args *a = task->mtp;
    const struct cpu_backend *cpu = task->cpu;
    const struct packed *table = &a->table->linear;
    uint32_t hidden = cpu->c.hidden;
    uint32_t n = pad32(hidden);
    float *pair = task->row + t * 2 * n;
    float *second = pair + hidden;
    (void)n_item;
    (void)worker;
    ASSERT(a->next_ids[t] >= 0 && (uint32_t)a->next_ids[t] < table->n_row);
    memset(pair, 0, 2 * n * sizeof *pair);
    packed_row(table, (uint32_t)a->next_ids[t], pair);
    cpu->k->add_norm(pair, NULL, a->enorm->vector, n, hidden, cpu->c.norm_eps, pair);
    size_t row = a->rows ? (size_t)a->rows[t] : t;
    ASSERT(row < a->hidden->n_row);
    cpu->k->add_norm(row_of(a->hidden, row), NULL, a->hnorm->vector, n, hidden, cpu->c.norm_eps,
                     second);
    const uint32_t n_col = a->eh_proj->linear.n_col;
    if (cpu->c.parallel.tp.rank > 0)
        memmove(pair, pair + cpu->c.parallel.tp.rank * n_col, n_col * sizeof *pair);
    memset(pair + n_col, 0, (pad32(n_col) - n_col) * sizeof *pair);
    cpu_to_operand(cpu, pair, pad32(n_col),
                   operand_row(cpu->operand, task->x, t * row_stride(2 * hidden)));
}

struct mtp_scratch {
    float *row; /* [n_token][2 * pad32(hidden)] */
    void *x;    /* operand [n_token][row_stride(2 * hidden)] */
};

static size_t lay_out_mtp(const struct cpu_backend *cpu, uint32_t n_token, struct mtp_scratch *s,
                          uint8_t *base)
{
    struct carver c = {.base = base};
    s->row = carve(&c, (size_t)n_token * 2 * pad32(cpu->c.hidden), sizeof(float));
    s->x = carve(&c, (size_t)n_token * row_stride(2 * cpu->c.hidden), operand_bytes(cpu->operand));
    return c.used;
}

fathom_err cpu_mtp_front(struct backend *b, const struct mtp_front_args *a)
{
    op_check_mtp_front(&cpu_of(b)->c, a);
    ASSERT(a->table->kind == CPU_LINEAR);
    ASSERT(a->eh_proj->kind == CPU_LINEAR);
    ASSERT(a->enorm->kind == CPU_VECTOR);
    ASSERT(a->hnorm->kind == CPU_VECTOR);
    ASSERT(a->hidden->kind == BUFFER_NORMED);
    ASSERT(a->y->kind == BUFFER_DELTA);
    struct cpu_backend *cpu = cpu_of(b);
    struct mtp_scratch s;
    ASSERT(a->eh_proj->linear.n_col ==
           parallel_part(&cpu->c.parallel, CUT_INNER, 2 * cpu->c.hidden));
    lay_out_mtp(cpu, a->n_token, &s, cpu->arena);
    struct gather_task task = {.cpu = cpu, .mtp = a, .row = s.row, .x = s.x};
    struct gemm_job job = {
        .w = &a->eh_proj->linear,
        .rounding = INPUT_BF16,
        .x = s.x,
        .x_stride = row_stride(2 * cpu->c.hidden),
        .n_token = a->n_token,
        .y = a->y->value,
        .y_stride = a->y->stride,
    };
    cpu_rows(cpu, a->n_token, (size_t)4 * cpu->c.hidden, gather_mtp_row, &task);
    cpu_gemm(cpu, cpu->operand, &job, 1);
    return FATHOM_OK;
}

size_t cpu_dense_arena_bytes(const struct cpu_backend *cpu)
{
    const struct backend_config *c = &cpu->c;
    struct mtp_scratch s;
    size_t head = (size_t)c->max_logit_row * row_stride(c->hidden) * operand_bytes(cpu->operand);
    size_t ffn = (size_t)c->max_token * row_stride(c->dense_inner) * operand_bytes(cpu->operand);
    return max_size(lay_out_mtp(cpu, c->max_token, &s, NULL), max_size(head, ffn));
}
