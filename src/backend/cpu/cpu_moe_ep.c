/* cpu_moe_ep.c - moe over ranks (op_moe.h, host_ep.h)
 *
 * A round takes the rows of all ranks that chose an expert of this one, grouped by expert, and own
 * rows for the shared expert, through one cpu_ffn_groups. Results have a place for every row of the
 * round, own ones of the shared expert behind them. They lie in memory of their own, for peers may
 * read them while this rank has gone on.
 */
#include "backend/cpu/cpu_int.h"

#include <string.h>

#include "base/assert.h"
#include "base/fail.h"

enum { ROUND_BYTES = 64 << 20, ROUND_ROWS_MIN = 16 };

/* A row that goes through an expert. */
struct ep_row {
    uint32_t rank;
    uint32_t i; /* of that rank's in the round */
};

struct ep_task {
    struct cpu_backend *cpu;
    const struct moe_ep_args *a;
    uint32_t *start;      /* [held + 1] first row of each expert */
    struct ep_row *rows;  /* [rows] */
    uint32_t *result;     /* [rows] places in ep_part */
    uint32_t *own_result; /* [n_run] of the shared expert's */
    float *weight;        /* [rows] */
    void *x;              /* operand [rows][stride of NORMED] */
    void *inner;          /* operand [rows + n_run][inner_stride] */
    size_t inner_stride;
    struct ffn_group *groups; /* [held + 1] */
};

static uint32_t ranks_of(const struct cpu_backend *cpu)
{
    return parallel_axis(&cpu->c.parallel, CUT_EXPERTS).size;
}

/* Most experts of one rank that a row chooses. */
static uint32_t used_here(const struct cpu_backend *cpu)
{
    return min_u32(cpu->c.n_expert_used, backend_held_experts(&cpu->c));
}

static size_t inner_stride(const struct cpu_backend *cpu)
{
    return row_stride(max_u32(cpu->c.moe_inner, cpu->c.shared_inner));
}

/* Rows of a rank in a round: equal on all ranks. */
static uint32_t round_rows(const struct cpu_backend *cpu)
{
    const size_t row = (row_stride(cpu->c.hidden) + inner_stride(cpu)) * sizeof(float);
    const size_t n = ROUND_BYTES / (row * used_here(cpu) * ranks_of(cpu));
    return min_u32((uint32_t)max_size(n, ROUND_ROWS_MIN), cpu->c.max_token);
}

static size_t lay_out(const struct cpu_backend *cpu, struct ep_task *t, uint8_t *base)
{
    const struct backend_config *c = &cpu->c;
    const size_t act = operand_bytes(cpu->operand);
    const uint32_t n_run = round_rows(cpu), n_held = backend_held_experts(c);
    const size_t n_row = (size_t)ranks_of(cpu) * n_run * used_here(cpu);
    struct carver v = {.base = base};
    t->inner_stride = inner_stride(cpu);
    t->start = carve(&v, (size_t)n_held + 1, sizeof *t->start);
    t->rows = carve(&v, n_row, sizeof *t->rows);
    t->result = carve(&v, n_row, sizeof *t->result);
    t->own_result = carve(&v, n_run, sizeof *t->own_result);
    t->weight = carve(&v, n_row, sizeof *t->weight);
    t->x = carve(&v, n_row * row_stride(c->hidden), act);
    t->inner = carve(&v, (n_row + n_run) * t->inner_stride, act);
    t->groups = carve(&v, (size_t)n_held + 1, sizeof *t->groups);
    return v.used;
}

/* The number that a row's k-th choice has on this rank; false: it is elsewhere. */
static bool is_here(const struct ep_task *t, const int32_t *chosen, uint32_t k, uint32_t *held)
{
    ASSERT(chosen[k] >= 0 && (uint32_t)chosen[k] < t->cpu->c.n_expert);
    const uint16_t place = t->a->place[chosen[k]];
    *held = expert_index(place);
    ASSERT(expert_rank(place) < t->cpu->ep.n_rank && *held < t->a->w->moe.n_expert);
    return expert_rank(place) == t->cpu->ep.rank;
}

/* Calls visit for every choice of the round that is of this rank, by rank and row. */
typedef void visit_choice(struct ep_task *t, uint32_t rank, uint32_t i, uint32_t held,
                          float weight);

static void each_choice(struct ep_task *t, visit_choice *visit)
{
    const struct host_ep *e = &t->cpu->ep;
    for (uint32_t r = 0; r < e->n_rank; r++) {
        for (uint32_t i = 0; i < host_ep_run(e, r); i++) {
            const int32_t *chosen = host_ep_chosen(e, r, i);
            const float *weight = host_ep_weight(e, r, i);
            uint32_t held;
            for (uint32_t k = 0; k < t->cpu->c.n_expert_used; k++) {
                if (is_here(t, chosen, k, &held)) visit(t, r, i, held, weight[k]);
            }
        }
    }
}

static void count_choice(struct ep_task *t, uint32_t rank, uint32_t i, uint32_t held, float weight)
{
    (void)rank;
    (void)i;
    (void)weight;
    t->start[held + 1]++;
}

static void put_choice(struct ep_task *t, uint32_t rank, uint32_t i, uint32_t held, float weight)
{
    const struct host_ep *e = &t->cpu->ep;
    const uint32_t row = t->start[held]++; /* becomes the expert's end */
    t->rows[row] = (struct ep_row){.rank = rank, .i = i};
    t->result[row] = e->first[rank] + i;
    t->weight[row] = weight;
}

/* start, rows, result and weight: a counting sort of the round's choices by expert. */
static uint32_t sort_choices(struct ep_task *t)
{
    const uint32_t n_held = backend_held_experts(&t->cpu->c);
    memset(t->start, 0, (n_held + 1) * sizeof *t->start);
    each_choice(t, count_choice);
    for (uint32_t h = 0; h < n_held; h++) t->start[h + 1] += t->start[h];
    each_choice(t, put_choice);
    memmove(t->start + 1, t->start, n_held * sizeof *t->start);
    t->start[0] = 0;
    return t->start[n_held];
}

static void gather_row(void *arg, size_t row, size_t n_item, unsigned worker)
{
    const struct ep_task *t = arg;
    const struct cpu_backend *cpu = t->cpu;
    const struct ep_row *from = &t->rows[row];
    (void)n_item;
    (void)worker;
    memcpy(operand_row(cpu->operand, t->x, row * t->a->x->stride),
           host_ep_x(&cpu->ep, from->rank, from->i), cpu->ep.x_bytes);
}

/* What this rank's experts and the shared one make of the round's rows. */
static void run_experts(struct ep_task *t)
{
    struct cpu_backend *cpu = t->cpu;
    const struct host_ep *e = &cpu->ep;
    const struct moe_weight *w = &t->a->w->moe;
    const uint32_t stride = t->a->x->stride, n_row = sort_choices(t);
    const uint32_t n_own = cpu->c.shared_inner > 0 ? host_ep_run(e, e->rank) : 0;
    const uint32_t own0 = e->first[e->n_rank];
    struct ffn_call call = {
        .groups = t->groups,
        .n_token = own0 + n_own,
        .inner = t->inner,
        .inner_stride = t->inner_stride,
        .y = cpu->ep_part,
        .y_stride = e->stride,
    };
    if (n_row > 0) cpu_rows(cpu, n_row, stride / 4, gather_row, t);
    for (uint32_t s = 0; s < w->n_expert; s++) {
        const uint32_t row0 = t->start[s];
        if (t->start[s + 1] == row0) continue;
        t->groups[call.n_group++] = (struct ffn_group){
            .w = &w->experts[s],
            .x = operand_row(cpu->operand, t->x, (size_t)row0 * stride),
            .x_stride = stride,
            .n_row = t->start[s + 1] - row0,
            .row0 = row0,
            .token = t->result + row0,
            .weight = t->weight + row0,
        };
    }
    if (n_own > 0) {
        for (uint32_t i = 0; i < n_own; i++) t->own_result[i] = own0 + i;
        t->groups[call.n_group++] = (struct ffn_group){
            .w = &w->shared,
            .x = operand_row(cpu->operand, t->a->x->operand, host_ep_row(e, 0) * stride),
            .x_stride = stride,
            .n_row = n_own,
            .row0 = n_row,
            .token = t->own_result,
        };
    }
    if (call.n_group > 0) cpu_ffn_groups(cpu, &call);
}

static void sum_row(void *arg, size_t i, size_t n_item, unsigned worker)
{
    const struct ep_task *t = arg;
    const struct cpu_backend *cpu = t->cpu;
    const struct host_ep *e = &cpu->ep;
    const struct buffer *route = t->a->route, *y = t->a->y;
    const size_t row = host_ep_row(e, i), own0 = e->first[e->n_rank];
    (void)n_item;
    (void)worker;
    host_ep_sum_row(e, (uint32_t)i, route->index + row * route->width, cpu->c.n_expert_used,
                    cpu->c.shared_inner > 0 ? cpu->ep_part + (own0 + i) * e->stride : NULL,
                    y->value + row * y->stride, pad32(cpu->c.hidden));
}

/* What the lane's other ranks have the sums of. */
static void clear_row(void *arg, size_t t, size_t n_item, unsigned worker)
{
    const struct ep_task *task = arg;
    const struct buffer *y = task->a->y;
    (void)n_item;
    (void)worker;
    if (!host_ep_is_other(&task->cpu->ep, t)) return;
    memset(y->value + t * y->stride, 0, pad32(task->cpu->c.hidden) * sizeof *y->value);
}

fathom_err cpu_moe_ep(struct backend *b, const struct moe_ep_args *a)
{
    op_check_moe_ep(&cpu_of(b)->c, a);
    ASSERT(a->w->kind == CPU_MOE);
    ASSERT(a->x->kind == BUFFER_NORMED);
    ASSERT(a->route->kind == BUFFER_ROUTE);
    ASSERT(a->y->kind == BUFFER_DELTA);
    struct cpu_backend *cpu = cpu_of(b);
    struct host_ep *e = &cpu->ep;
    struct ep_task task = {.cpu = cpu, .a = a};
    ASSERT(cpu->ep_part); /* experts_whole */
    lay_out(cpu, &task, cpu->arena);
    const struct host_ep_rows lane = {.x = a->x->operand,
                                      .x_stride = a->x->stride * operand_bytes(cpu->operand),
                                      .chosen = a->route->index,
                                      .chosen_stride = a->route->width * sizeof(int32_t),
                                      .weight = a->route->value,
                                      .weight_stride = a->route->stride * sizeof(float)};
    host_ep_open(e, &cpu->peers.experts, &cpu->c.parallel, a, &lane, lane.x_stride,
                 cpu->c.n_expert_used, round_rows(cpu), cpu->ep_part, row_stride(cpu->c.hidden));
    ASSERT(e->n_rank == ranks_of(cpu) && a->w->moe.n_expert == backend_held_experts(&cpu->c));
    if (e->run.n < a->n_token) cpu_rows(cpu, a->n_token, cpu->c.hidden, clear_row, &task);
    for (uint32_t row0 = 0;; row0 += e->n_run) {
        TRY(host_ep_meet(e, row0));
        run_experts(&task);
        TRY(host_ep_swap(e));
        const uint32_t n_own = host_ep_run(e, e->rank);
        if (n_own > 0) cpu_rows(cpu, n_own, cpu->c.hidden, sum_row, &task);
        if (host_ep_is_last(e)) return FATHOM_OK;
    }
}

size_t cpu_moe_ep_rows(const struct cpu_backend *cpu)
{
    if (!parallel_moves_rows(&cpu->c.parallel) || cpu->c.n_expert == 0) return 0;
    return (size_t)round_rows(cpu) * (ranks_of(cpu) * used_here(cpu) + 1);
}

size_t cpu_moe_ep_arena_bytes(const struct cpu_backend *cpu)
{
    struct ep_task t;
    return cpu_moe_ep_rows(cpu) > 0 ? lay_out(cpu, &t, NULL) : 0;
}

uint32_t cpu_moe_ep_results(const struct cpu_backend *cpu)
{
    return cpu_moe_ep_rows(cpu) > 0 ? round_rows(cpu) * (ranks_of(cpu) + 1) : 0;
}
