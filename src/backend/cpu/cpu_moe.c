/* cpu_moe.c - router and moe (op_moe.h)
 *
 * moe: the rows of a run of tokens that this rank has experts of are grouped by expert, tokens
 * ascending, and gathered; the groups go through cpu_ffn_groups in ascending expert, the shared
 * expert last. Tokens are taken in runs so that the gathered rows stay within GATHER_BYTES.
 */
#include "backend/cpu/cpu_int.h"

#include <math.h>
#include <string.h>

#include "base/assert.h"

enum { GATHER_BYTES = 64 << 20, MIN_RUN = 64 };

/* ---- router ---- */

struct router_task {
    struct cpu_backend *cpu;
    const struct router_args *a;
    float *score;  /* [T][pad32(E)] logits, then sigmoids */
    float *biased; /* [T][pad32(E)] */
};

/* A group's score: its two largest, or its only one. */
static float group_score(const float *biased, uint32_t n)
{
    DCHECK(n >= 1);
    float first = -INFINITY;
    float second = -INFINITY;
    for (uint32_t e = 0; e < n; e++) {
        if (biased[e] > first) {
            second = first;
            first = biased[e];
        } else if (biased[e] > second) {
            second = biased[e];
        }
    }
    return n > 1 ? first + second : first;
}

/* Is value[i] among the n_keep largest, ties to the lower index? */
static bool is_among(const float *value, uint32_t n, uint32_t i, uint32_t n_keep)
{
    DCHECK(i < n);
    uint32_t n_before = 0;
    for (uint32_t j = 0; j < n; j++)
        n_before += value[j] > value[i] || (value[j] == value[i] && j < i);
    return n_before < n_keep;
}

/* b of the groups that are not kept becomes -inf. The groups' scores stand in `score`, which is
 * padded: group g at the place of its first expert. */
static void keep_groups(const struct backend_config *c, float *biased, float *group)
{
    DCHECK(c->n_group >= 1 && c->n_expert % c->n_group == 0);
    uint32_t width = c->n_expert / c->n_group;
    for (uint32_t g = 0; g < c->n_group; g++)
        group[g] = group_score(biased + (size_t)g * width, width);
    for (uint32_t g = 0; g < c->n_group; g++) {
        if (is_among(group, c->n_group, g, c->topk_group)) continue;
        for (uint32_t e = 0; e < width; e++) biased[g * width + e] = -INFINITY;
    }
}

/* The experts with the largest b, as indexes ascending: the least that stays is found by taking
 * the largest again and again, marking it with NaN. */
static void take_experts(const struct backend_config *c, float *biased, int32_t *chosen)
{
    for (uint32_t k = 0; k < c->n_expert_used; k++) {
        uint32_t best = c->n_expert;
        for (uint32_t e = 0; e < c->n_expert; e++) {
            if (isnan(biased[e])) continue;
            if (best == c->n_expert || biased[e] > biased[best]) best = e;
        }
        ASSERT(best < c->n_expert);
        biased[best] = NAN;
    }
    uint32_t n = 0;
    for (uint32_t e = 0; e < c->n_expert && n < c->n_expert_used; e++) {
        if (isnan(biased[e])) chosen[n++] = (int32_t)e;
    }
    ASSERT(n == c->n_expert_used);
}

static void route_token(void *arg, size_t t, size_t n_item, unsigned worker)
{
    const struct router_task *task = arg;
    const struct backend_config *c = &task->cpu->c;
    const struct moe_weight *w = &task->a->w->moe;
    uint32_t stride = pad32(c->n_expert);
    float *score = task->score + t * stride;
    float *biased = task->biased + t * 2 * stride;
    int32_t *chosen = task->a->route->index + t * task->a->route->width;
    float *weight = task->a->route->value + t * task->a->route->stride;
    (void)n_item;
    (void)worker;
    task->cpu->k->sigmoid(score, stride);
    for (uint32_t e = 0; e < c->n_expert; e++) {
        if (isnan(score[e])) score[e] = 0; /* never better than another */
        biased[e] = score[e] + w->router_bias[e];
    }
    keep_groups(c, biased, biased + stride);
    take_experts(c, biased, chosen);
    float sum = 0;
    for (uint32_t k = 0; k < c->n_expert_used; k++) sum += score[chosen[k]];
    for (uint32_t k = 0; k < c->n_expert_used; k++)
        weight[k] = score[chosen[k]] / (c->norm_topk ? sum : 1) * c->routed_scale;
}

static size_t lay_out_router(const struct cpu_backend *cpu, uint32_t n_token, struct router_task *t,
                             uint8_t *base)
{
    struct carver c = {.base = base};
    t->score = carve(&c, (size_t)n_token * pad32(cpu->c.n_expert), sizeof(float));
    t->biased = carve(&c, (size_t)n_token * 2 * pad32(cpu->c.n_expert), sizeof(float));
    return c.used;
}

fathom_err cpu_router(struct backend *b, const struct router_args *a)
{
    op_check_router(&cpu_of(b)->c, a);
    ASSERT(a->w->kind == CPU_MOE);
    ASSERT(a->x->kind == BUFFER_NORMED);
    ASSERT(a->route->kind == BUFFER_ROUTE);
    struct cpu_backend *cpu = cpu_of(b);
    struct router_task task = {.cpu = cpu, .a = a};
    lay_out_router(cpu, a->n_token, &task, cpu->arena);
    struct gemm_job job = {
        .w = &a->w->moe.router,
        .rounding = INPUT_EXACT,
        .x = a->x->value,
        .x_stride = a->x->stride,
        .n_token = a->n_token,
        .y = task.score,
        .y_stride = pad32(cpu->c.n_expert),
    };
    cpu_gemm(cpu, OPERAND_F32, &job, 1);
    uint32_t n_live =
        a->n_live && *a->n_live < (int32_t)a->n_token ? (uint32_t)*a->n_live : a->n_token;
    if (n_live == 0) n_live = 1; /* row 0 is what padding is routed like */
    cpu_rows(cpu, n_live, (size_t)16 * cpu->c.n_expert, route_token, &task);
    for (uint32_t t = n_live; t < a->n_token; t++) {
        memcpy(a->route->index + (size_t)t * a->route->width, a->route->index,
               cpu->c.n_expert_used * sizeof a->route->index[0]);
        memcpy(a->route->value + (size_t)t * a->route->stride, a->route->value,
               cpu->c.n_expert_used * sizeof a->route->value[0]);
    }
    return FATHOM_OK;
}

/* ---- moe ---- */

struct moe_task {
    struct cpu_backend *cpu;
    const struct moe_args *a;
    uint32_t token0; /* of the run */
    uint32_t n_run;  /* most tokens of a run */
    uint32_t *start; /* [held + 1] first row of each expert */
    uint32_t *token; /* [rows] token of a row, from token0 */
    float *weight;   /* [rows] */
    void *x;         /* operand [rows][stride of NORMED] */
    void *inner;     /* operand [rows + n_run][inner_stride] */
    size_t inner_stride;
    struct ffn_group *groups; /* [held + 1] */
};

static size_t lay_out_moe(const struct cpu_backend *cpu, struct moe_task *t, uint8_t *base)
{
    const struct backend_config *c = &cpu->c;
    size_t act = operand_bytes(cpu->operand);
    t->inner_stride = row_stride(max_u32(c->moe_inner, c->shared_inner));
    size_t token_bytes = (size_t)c->n_expert_used * (row_stride(c->hidden) + t->inner_stride) * act;
    size_t run = max_size(GATHER_BYTES / token_bytes, MIN_RUN);
    t->n_run = run < c->max_token ? (uint32_t)run : c->max_token;
    const size_t n_row = (size_t)t->n_run * c->n_expert_used;
    const uint32_t n_held = backend_held_experts(c);
    struct carver v = {.base = base};
    t->start = carve(&v, (size_t)n_held + 1, sizeof *t->start);
    t->token = carve(&v, n_row, sizeof *t->token);
    t->weight = carve(&v, n_row, sizeof *t->weight);
    t->x = carve(&v, n_row * row_stride(c->hidden), act);
    t->inner = carve(&v, (n_row + t->n_run) * t->inner_stride, act);
    t->groups = carve(&v, (size_t)n_held + 1, sizeof *t->groups);
    return v.used;
}

/* An expert's number on this rank; not below n_held: it is elsewhere. */
static uint32_t number_here(const struct backend_config *c, int32_t expert)
{
    ASSERT(expert >= 0 && (uint32_t)expert < c->n_expert);
    return (uint32_t)expert - parallel_first_expert(&c->parallel, c->n_expert); /* wraps below it */
}

/* start, token and weight: a counting sort of the run's (token, expert) pairs by expert; how many
 * there are. */
static uint32_t group_rows(struct moe_task *task, uint32_t n_token)
{
    const struct buffer *route = task->a->route;
    const struct backend_config *c = &task->cpu->c;
    const uint32_t n_held = backend_held_experts(c), n_used = c->n_expert_used;
    uint32_t *start = task->start;
    memset(start, 0, (n_held + 1) * sizeof *start);
    for (uint32_t t = 0; t < n_token; t++) {
        const int32_t *chosen = route->index + (size_t)(task->token0 + t) * route->width;
        for (uint32_t k = 0; k < n_used; k++) {
            const uint32_t e = number_here(c, chosen[k]);
            if (e < n_held) start[e + 1]++;
        }
    }
    for (uint32_t e = 0; e < n_held; e++) start[e + 1] += start[e];
    for (uint32_t t = 0; t < n_token; t++) {
        const int32_t *chosen = route->index + (size_t)(task->token0 + t) * route->width;
        const float *weight = route->value + (size_t)(task->token0 + t) * route->stride;
        for (uint32_t k = 0; k < n_used; k++) {
            const uint32_t e = number_here(c, chosen[k]);
            if (e >= n_held) continue;
            const uint32_t row = start[e]++; /* becomes the expert's end */
            task->token[row] = t;
            task->weight[row] = weight[k];
        }
    }
    memmove(start + 1, start, n_held * sizeof *start);
    start[0] = 0;
    ASSERT(start[n_held] <= n_token * n_used);
    return start[n_held];
}

static const void *input_row(const struct moe_task *task, uint32_t token)
{
    DCHECK(task->token0 + token < task->a->n_token);
    const struct buffer *x = task->a->x;
    return operand_row(task->cpu->operand, x->operand, (size_t)(task->token0 + token) * x->stride);
}

static void gather_row(void *arg, size_t row, size_t n_item, unsigned worker)
{
    const struct moe_task *task = arg;
    uint32_t stride = task->a->x->stride;
    (void)n_item;
    (void)worker;
    memcpy(operand_row(task->cpu->operand, task->x, row * stride),
           input_row(task, task->token[row]), stride * operand_bytes(task->cpu->operand));
}

static void run_tokens(struct moe_task *task, uint32_t n_token)
{
    ASSERT(n_token >= 1 && n_token <= task->n_run);
    struct cpu_backend *cpu = task->cpu;
    const struct moe_weight *w = &task->a->w->moe;
    uint32_t stride = task->a->x->stride;
    const uint32_t n_row = group_rows(task, n_token), n_held = backend_held_experts(&cpu->c);
    struct ffn_call call = {
        .groups = task->groups,
        .n_token = n_token,
        .inner = task->inner,
        .inner_stride = task->inner_stride,
        .y = task->a->y->value + (size_t)task->token0 * task->a->y->stride,
        .y_stride = task->a->y->stride,
    };
    /* one token is its own gathered row, whatever the expert */
    if (n_token > 1 && n_row > 0) cpu_rows(cpu, n_row, stride / 4, gather_row, task);
    for (uint32_t e = 0; e < n_held; e++) {
        uint32_t row0 = task->start[e];
        if (task->start[e + 1] == row0) continue;
        task->groups[call.n_group++] = (struct ffn_group){
            .w = &w->experts[e],
            .x = n_token > 1 ? operand_row(cpu->operand, task->x, (size_t)row0 * stride)
                             : input_row(task, 0),
            .x_stride = stride,
            .n_row = task->start[e + 1] - row0,
            .row0 = row0,
            .token = task->token + row0,
            .weight = task->weight + row0,
        };
    }
    if (cpu->c.shared_inner > 0) {
        task->groups[call.n_group++] = (struct ffn_group){
            .w = &w->shared,
            .x = input_row(task, 0),
            .x_stride = stride,
            .n_row = n_token,
            .row0 = n_row,
        };
    }
    if (call.n_group > 0) {
        cpu_ffn_groups(cpu, &call);
        return;
    }
    for (uint32_t t = 0; t < n_token; t++)
        memset(call.y + (size_t)t * call.y_stride, 0, call.y_stride * sizeof *call.y);
}

fathom_err cpu_moe(struct backend *b, const struct moe_args *a)
{
    op_check_moe(&cpu_of(b)->c, a);
    ASSERT(a->w->kind == CPU_MOE && a->w->moe.n_expert == backend_held_experts(&cpu_of(b)->c));
    ASSERT(a->x->kind == BUFFER_NORMED);
    ASSERT(a->route->kind == BUFFER_ROUTE);
    ASSERT(a->y->kind == BUFFER_DELTA);
    struct cpu_backend *cpu = cpu_of(b);
    struct moe_task task = {.cpu = cpu, .a = a};
    lay_out_moe(cpu, &task, cpu->arena);
    for (; task.token0 < a->n_token; task.token0 += task.n_run)
        run_tokens(&task, min_u32(task.n_run, a->n_token - task.token0));
    return FATHOM_OK;
}

size_t cpu_moe_gathered_rows(const struct cpu_backend *cpu)
{
    struct moe_task task;
    if (cpu->c.n_expert == 0) return 0;
    lay_out_moe(cpu, &task, NULL);
    return max_size((size_t)task.n_run * (cpu->c.n_expert_used + 1), cpu_moe_ep_rows(cpu));
}

size_t cpu_moe_arena_bytes(const struct cpu_backend *cpu)
{
    struct router_task router;
    struct moe_task moe;
    if (cpu->c.n_expert == 0) return 0;
    return max_size(lay_out_router(cpu, cpu->c.max_token, &router, NULL),
                    lay_out_moe(cpu, &moe, NULL));
}
