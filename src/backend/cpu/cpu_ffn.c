/* cpu_ffn.c - feed-forward groups: gate and up, silu, down, weighted sum
 *
 * Two parallel loops. The first takes a pair of panels of one group's gate_up (32 rows of gate and
 * the same 32 of up), so that silu(gate) * up leaves it as an operand. The second takes panels of
 * the output and adds one group after the other to their columns. So the order of the sum is fixed,
 * and no lock is needed, because an item's columns are its own.
 */
#include "backend/cpu/cpu_int.h"

#include <string.h>

#include "base/assert.h"

enum { PAIR = 2, ITEMS_PER_THREAD = 4, MAX_PANELS = 8 };

struct ffn_scratch {
    uint8_t *decoded; /* [CHUNK_BYTES] */
    float *tile;      /* [TOKEN_BLOCK][MAX_PANELS * PANEL] */
    uint8_t *input;   /* cpu_input_bytes */
};

static size_t lay_out(const struct cpu_backend *cpu, struct ffn_scratch *s, uint8_t *base)
{
    struct carver c = {.base = base};
    s->input = carve(&c, cpu_input_bytes(cpu), 1);
    s->decoded = carve(&c, CHUNK_BYTES, 1);
    s->tile = carve(&c, TOKEN_BLOCK * MAX_PANELS * PANEL, sizeof(float));
    return c.used;
}

size_t cpu_ffn_worker_bytes(const struct cpu_backend *cpu)
{
    struct ffn_scratch s;
    return lay_out(cpu, &s, NULL);
}

struct ffn_task {
    struct cpu_backend *cpu;
    const struct ffn_call *call;
    uint32_t n_panel; /* of an item */
};

static uint32_t blocks_of(const struct ffn_group *g)
{
    return (g->n_row + TOKEN_BLOCK - 1) / TOKEN_BLOCK;
}

/* ---- gate, up, silu ---- */

static void gate_up_item(void *arg, size_t item, size_t n_item, unsigned worker)
{
    DCHECK(item < n_item);
    const struct ffn_task *task = arg;
    const struct cpu_backend *cpu = task->cpu;
    const struct ffn_call *f = task->call;
    struct ffn_scratch s;
    uint32_t i = 0;
    (void)n_item;
    lay_out(cpu, &s, worker_scratch(cpu, worker));
    while (i + 1 < f->n_group && f->groups[i + 1].first_item <= item) i++;
    const struct ffn_group *g = &f->groups[i];
    uint32_t at = (uint32_t)(item - g->first_item);
    uint32_t row0 = at % blocks_of(g) * TOKEN_BLOCK;
    uint32_t panel0 = at / blocks_of(g) * task->n_panel;
    uint32_t end = min_u32(panel0 + task->n_panel, g->w->gate_up.n_panel);
    struct gemm_call call = {
        .w = &g->w->gate_up,
        .n_panel = PAIR,
        .n_token = min_u32(TOKEN_BLOCK, g->n_row - row0),
        .y = s.tile,
        .y_stride = PAIR * PANEL,
        .decoded = s.decoded,
    };
    cpu_round_item(cpu, &g->input, row0, &call, s.input);
    for (call.panel0 = panel0; call.panel0 < end; call.panel0 += PAIR) {
        cpu->k->gemm[call.type](&call);
        for (uint32_t r = 0; r < call.n_token; r++) {
            float *gate = s.tile + (size_t)r * PAIR * PANEL;
            size_t to = (g->row0 + row0 + r) * f->inner_stride + call.panel0 / PAIR * PANEL;
            cpu->k->silu_mul(gate, gate + PANEL, PANEL, gate);
            cpu_to_operand(cpu, gate, PANEL, operand_row(cpu->operand, f->inner, to));
        }
    }
}

static void run_gate_up(struct cpu_backend *cpu, struct ffn_call *f)
{
    struct ffn_task task = {.cpu = cpu, .call = f};
    size_t n_piece = 0;
    for (uint32_t i = 0; i < f->n_group; i++) {
        ASSERT(f->groups[i].n_row >= 1);
        ASSERT(f->groups[i].w->gate_up.n_panel % PAIR == 0);
        n_piece += (size_t)f->groups[i].w->gate_up.n_panel * blocks_of(&f->groups[i]);
    }
    size_t part = n_piece / ((size_t)cpu->n_thread * ITEMS_PER_THREAD);
    task.n_panel = part >= MAX_PANELS ? MAX_PANELS : max_u32((uint32_t)part / PAIR * PAIR, PAIR);
    size_t n_item = 0;
    cpu_round_begin(cpu);
    for (uint32_t i = 0; i < f->n_group; i++) {
        struct ffn_group *g = &f->groups[i];
        g->input = (struct gemm_input){.x = g->x, .stride = g->x_stride, .type = cpu->operand};
        cpu_round_plan(cpu, INPUT_AS_WEIGHT, &g->w->gate_up, g->n_row, &g->input);
        g->first_item = n_item;
        n_item += (g->w->gate_up.n_panel + task.n_panel - 1) / task.n_panel * blocks_of(g);
    }
    cpu_round_run(cpu);
    cpu_items(cpu, n_item, gate_up_item, &task);
}

/* ---- down ---- */

/* The tile's rows, weighted, into the rows of y that they belong to. */
static void add_rows(const struct ffn_task *task, const struct ffn_group *g, uint32_t row0,
                     const struct gemm_call *call, bool first)
{
    const struct cpu_backend *cpu = task->cpu;
    const struct ffn_call *f = task->call;
    uint32_t n = call->n_panel * PANEL;
    for (uint32_t r = 0; r < call->n_token; r++) {
        uint32_t token = g->token ? g->token[row0 + r] : row0 + r;
        DCHECK(token < f->n_token);
        float weight = g->weight ? g->weight[row0 + r] : 1;
        float *y = f->y + token * f->y_stride + (size_t)call->panel0 * PANEL;
        const float *part = call->y + r * call->y_stride;
        if (first)
            memcpy(y, part, n * sizeof *y);
        else
            cpu->k->add_scaled(y, weight, part, n);
    }
}

static void down_item(void *arg, size_t item, size_t n_item, unsigned worker)
{
    DCHECK(item < n_item);
    const struct ffn_task *task = arg;
    const struct cpu_backend *cpu = task->cpu;
    const struct ffn_call *f = task->call;
    struct ffn_scratch s;
    (void)n_item;
    lay_out(cpu, &s, worker_scratch(cpu, worker));
    uint32_t panel0 = (uint32_t)item * task->n_panel;
    uint32_t n_panel = min_u32(task->n_panel, f->groups[0].w->down.n_panel - panel0);
    /* one group of all rows, unweighted: its product is the result */
    bool alone = f->n_group == 1 && !f->groups[0].token && !f->groups[0].weight;
    for (uint32_t t = 0; t < f->n_token && !alone; t++)
        memset(f->y + t * f->y_stride + (size_t)panel0 * PANEL, 0, n_panel * PANEL * sizeof(float));
    for (uint32_t i = 0; i < f->n_group; i++) {
        const struct ffn_group *g = &f->groups[i];
        for (uint32_t row0 = 0; row0 < g->n_row; row0 += TOKEN_BLOCK) {
            struct gemm_call call = {
                .w = &g->w->down,
                .panel0 = panel0,
                .n_panel = n_panel,
                .n_token = min_u32(TOKEN_BLOCK, g->n_row - row0),
                .y = s.tile,
                .y_stride = (size_t)n_panel * PANEL,
                .decoded = s.decoded,
            };
            cpu_round_item(cpu, &g->input, row0, &call, s.input);
            cpu->k->gemm[call.type](&call);
            add_rows(task, g, row0, &call, alone);
        }
    }
}

/* What gate and up made, as inputs of down. */
static void round_inner(struct cpu_backend *cpu, struct ffn_call *f)
{
    cpu_round_begin(cpu);
    for (uint32_t i = 0; i < f->n_group; i++) {
        struct ffn_group *g = &f->groups[i];
        g->input = (struct gemm_input){
            .x = operand_row(cpu->operand, f->inner, g->row0 * f->inner_stride),
            .stride = f->inner_stride,
            .type = cpu->operand,
        };
        cpu_round_plan(cpu, INPUT_AS_WEIGHT, &g->w->down, g->n_row, &g->input);
    }
    cpu_round_run(cpu);
}

void cpu_ffn_groups(struct cpu_backend *cpu, struct ffn_call *f)
{
    ASSERT(f->n_group >= 1 && f->n_token >= 1);
    ASSERT(f->inner && f->y);
    run_gate_up(cpu, f);
    round_inner(cpu, f);
    uint32_t n_panel = f->groups[0].w->down.n_panel;
    struct ffn_task task = {.cpu = cpu, .call = f};
    uint32_t part = n_panel / (cpu->n_thread * ITEMS_PER_THREAD);
    task.n_panel = part >= MAX_PANELS ? MAX_PANELS : max_u32(part / PAIR * PAIR, PAIR);
    cpu_items(cpu, (n_panel + task.n_panel - 1) / task.n_panel, down_item, &task);
}
