/* cpu_gemm.c - several products in one parallel loop
 *
 * An item is some panels of one job's weight against at most TOKEN_BLOCK rows of x. The cut changes
 * no bit (cpu_kernel.h), so it follows the amount of work. There are so many items that the last
 * one to finish costs little, and each is large enough to pay for being handed out.
 */
#include "backend/cpu/cpu_int.h"

#include "base/assert.h"

enum {
    PAIR = 2,                 /* panels of one kernel call that ends in an operand */
    MAX_PANELS = 64,          /* of an item: one long read of the weight */
    MAX_PANELS_MANY_ROWS = 8, /* the same for products that are not bound by memory */
    ITEMS_PER_THREAD = 4,
    /* Multiply-adds below which waking the pool costs more than it gives. */
    SERIAL_WORK = 40000,
};

struct gemm_scratch {
    uint8_t *decoded; /* [CHUNK_BYTES] */
    float *tile;      /* [TOKEN_BLOCK][PAIR * PANEL] */
    uint8_t *input;   /* cpu_input_bytes */
};

/* ---- the loop ---- */

static size_t lay_out(const struct cpu_backend *cpu, struct gemm_scratch *s, uint8_t *base)
{
    struct carver c = {.base = base};
    s->input = carve(&c, cpu_input_bytes(cpu), 1);
    s->decoded = carve(&c, CHUNK_BYTES, 1);
    s->tile = carve(&c, TOKEN_BLOCK * PAIR * PANEL, sizeof(float));
    return c.used;
}

size_t cpu_gemm_worker_bytes(const struct cpu_backend *cpu)
{
    struct gemm_scratch s;
    return lay_out(cpu, &s, NULL);
}

struct gemm_task {
    struct cpu_backend *cpu;
    struct gemm_job *jobs;
    uint32_t n_job;
    uint32_t n_panel; /* of an item */
};

static uint32_t blocks_of(const struct gemm_job *j)
{
    return (j->n_token + TOKEN_BLOCK - 1) / TOKEN_BLOCK;
}

/* Two panels at a time through a tile, so that y need not exist. */
static void run_to_operand(const struct gemm_task *task, const struct gemm_job *j,
                           struct gemm_call *call, uint32_t token0, struct gemm_scratch *s)
{
    DCHECK(j->act && call->panel0 % PAIR == 0);
    const struct cpu_backend *cpu = task->cpu;
    uint32_t end = call->panel0 + call->n_panel;
    call->y = s->tile;
    call->y_stride = PAIR * PANEL;
    for (; call->panel0 < end; call->panel0 += call->n_panel) {
        call->n_panel = min_u32(PAIR, end - call->panel0);
        cpu->k->gemm[call->type](call);
        for (uint32_t t = 0; t < call->n_token; t++) {
            size_t at = (token0 + t) * j->act_stride + (size_t)call->panel0 * PANEL;
            cpu_to_operand(cpu, s->tile + (size_t)t * PAIR * PANEL, call->n_panel * PANEL,
                           operand_row(cpu->operand, j->act, at));
        }
    }
}

static void run_item(void *arg, size_t item, size_t n_item, unsigned worker)
{
    DCHECK(item < n_item);
    const struct gemm_task *task = arg;
    struct gemm_scratch s;
    uint32_t i = 0;
    (void)n_item;
    lay_out(task->cpu, &s, worker_scratch(task->cpu, worker));
    while (i + 1 < task->n_job && task->jobs[i + 1].first_item <= item) i++;
    const struct gemm_job *j = &task->jobs[i];
    uint32_t at = (uint32_t)(item - j->first_item);
    uint32_t token0 = at % blocks_of(j) * TOKEN_BLOCK;
    uint32_t panel0 = at / blocks_of(j) * task->n_panel;
    struct gemm_call call = {
        .w = j->w,
        .panel0 = panel0,
        .n_panel = min_u32(task->n_panel, j->w->n_panel - panel0),
        .n_token = min_u32(TOKEN_BLOCK, j->n_token - token0),
        .decoded = s.decoded,
    };
    cpu_round_item(task->cpu, &j->input, token0, &call, s.input);
    if (!j->y) {
        run_to_operand(task, j, &call, token0, &s);
        return;
    }
    call.y = j->y + token0 * j->y_stride + (size_t)panel0 * PANEL;
    call.y_stride = j->y_stride;
    task->cpu->k->gemm[call.type](&call);
}

void cpu_gemm(struct cpu_backend *cpu, enum operand type, struct gemm_job *jobs, uint32_t n_job)
{
    ASSERT(n_job >= 1 && cpu->k->gemm[type]);
    struct gemm_task task = {.cpu = cpu, .jobs = jobs, .n_job = n_job};
    size_t n_piece = 0; /* panels times token blocks */
    uint64_t work = 0;
    bool many_rows = false;
    cpu_round_begin(cpu);
    for (uint32_t i = 0; i < n_job; i++) {
        ASSERT(jobs[i].x && (jobs[i].y || jobs[i].act));
        ASSERT(jobs[i].n_token >= 1 && jobs[i].w->n_panel >= 1);
        jobs[i].input =
            (struct gemm_input){.x = jobs[i].x, .stride = jobs[i].x_stride, .type = type};
        cpu_round_plan(cpu, jobs[i].rounding, jobs[i].w, jobs[i].n_token, &jobs[i].input);
        n_piece += (size_t)jobs[i].w->n_panel * blocks_of(&jobs[i]);
        work += (uint64_t)jobs[i].w->n_panel * jobs[i].w->n_pair * 2 * PANEL * jobs[i].n_token;
        many_rows |= jobs[i].n_token > TOKEN_BLOCK / 2;
    }
    cpu_round_run(cpu);
    uint32_t most = many_rows ? MAX_PANELS_MANY_ROWS : MAX_PANELS;
    size_t part = n_piece / ((size_t)cpu->n_thread * ITEMS_PER_THREAD);
    task.n_panel = part >= most ? most : max_u32((uint32_t)part / PAIR * PAIR, PAIR);

    size_t n_item = 0;
    for (uint32_t i = 0; i < n_job; i++) {
        uint32_t n_group = (jobs[i].w->n_panel + task.n_panel - 1) / task.n_panel;
        jobs[i].first_item = n_item;
        n_item += (size_t)n_group * blocks_of(&jobs[i]);
    }
    if (work < SERIAL_WORK) {
        for (size_t i = 0; i < n_item; i++) run_item(&task, i, n_item, 0);
    } else {
        cpu_items(cpu, n_item, run_item, &task);
    }
}
