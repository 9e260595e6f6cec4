/* cpu_attend.c - mla_attend (op_attn.h)
 *
 * Cut. Tokens that see a prefix of one request's positions are neighbours and share its rows. They
 * make blocks of up to QUERY_MAX queries (tokens times heads). A token with rows of its own choice
 * is a block alone. An item is a block and a run of heads. Rows come in groups of 64, in ascending
 * position. Each group's maximum, sum and weighted values are computed from zero and merged into
 * the item's state in order. With many items an item walks its groups. With few, all groups of all
 * items are computed side by side in waves and merged after each wave (split KV). Both do the same
 * arithmetic on the same numbers, so the choice changes no bit.
 *
 * Rows are read where they lie when the cache's type is the operand's; else they are decoded once
 * for the item's queries.
 */
#include "backend/cpu/cpu_int.h"

#include <math.h>
#include <string.h>

#include "base/assert.h"

enum { PARTIALS_PER_THREAD = 8, MIN_PARTIALS = 16, ITEMS_PER_THREAD = 2 };

struct block {
    uint32_t token0;
    uint32_t n_token;
    uint32_t n_group;
    bool chosen; /* rows come from `select` */
};

/* Running softmax of an item's queries. */
struct state {
    float *max; /* [QUERY_MAX] */
    float *sum; /* [QUERY_MAX] */
    float *out; /* [QUERY_MAX][512] */
};

/* One group of one item, computed beside others. */
struct partial {
    uint32_t item;
    uint32_t group;
    uint32_t first_query; /* the queries before see none of its rows */
    struct state state;
};

struct attend_task {
    struct cpu_backend *cpu;
    const struct mla_attend_args *a;
    uint32_t n_block_token; /* largest block */
    uint32_t n_chunk_head;  /* heads of an item */
    uint32_t n_chunk;       /* items of a block */
    struct block *blocks;   /* [max_token] */
    uint32_t n_block;
    struct state *states;     /* [ITEMS_PER_THREAD * n_thread], when groups run side by side */
    struct partial *partials; /* [n_partial] */
    uint32_t n_partial;
    uint32_t n_used; /* partials of this wave */
    uint32_t item0;  /* first item of this wave */
};

/* A worker's own memory. */
struct attend_scratch {
    void *query;  /* operand [QUERY_MAX][576] */
    void *tile;   /* operand [64][576] */
    float *score; /* [QUERY_MAX][64] */
    struct state group;
    struct state state;
};

/* ---- memory ---- */

static void carve_state(struct carver *c, struct state *s)
{
    s->max = carve(c, QUERY_MAX, sizeof(float));
    s->sum = carve(c, QUERY_MAX, sizeof(float));
    s->out = carve(c, (size_t)QUERY_MAX * KV_LATENT, sizeof(float));
}

static size_t lay_out_worker(struct attend_scratch *s, uint8_t *base)
{
    struct carver c = {.base = base};
    s->query = carve(&c, (size_t)QUERY_MAX * KV_ROW, sizeof(float));
    s->tile = carve(&c, (size_t)GROUP_ROWS * KV_ROW, sizeof(float));
    s->score = carve(&c, (size_t)QUERY_MAX * GROUP_ROWS, sizeof(float));
    carve_state(&c, &s->group);
    carve_state(&c, &s->state);
    return c.used;
}

size_t cpu_attend_worker_bytes(void)
{
    struct attend_scratch s;
    return lay_out_worker(&s, NULL);
}

static size_t lay_out_task(const struct cpu_backend *cpu, struct attend_task *t, uint8_t *base)
{
    uint32_t n_state = ITEMS_PER_THREAD * cpu->n_thread;
    struct carver c = {.base = base};
    t->n_partial = max_u32(MIN_PARTIALS, PARTIALS_PER_THREAD * cpu->n_thread);
    t->blocks = carve(&c, cpu->c.max_token, sizeof *t->blocks);
    t->states = carve(&c, n_state, sizeof *t->states);
    t->partials = carve(&c, t->n_partial, sizeof *t->partials);
    for (uint32_t i = 0; i < n_state; i++) {
        struct state s;
        carve_state(&c, &s);
        if (base) t->states[i] = s;
    }
    for (uint32_t i = 0; i < t->n_partial; i++) {
        struct state s;
        carve_state(&c, &s);
        if (base) t->partials[i].state = s;
    }
    return c.used;
}

size_t cpu_attend_arena_bytes(const struct cpu_backend *cpu)
{
    struct attend_task t;
    return lay_out_task(cpu, &t, NULL);
}

/* ---- the cut ---- */

static bool sees_prefix(const struct mla_attend_args *a, uint32_t t)
{
    DCHECK(t < a->batch->n_token);
    if (!a->select) return true;
    return (uint32_t)a->select->index[(size_t)t * a->select->width] ==
           (uint32_t)a->batch->pos[t] + 1;
}

static void cut_blocks(struct attend_task *task)
{
    const struct mla_attend_args *a = task->a;
    const struct batch *batch = a->batch;
    task->n_block = 0;
    for (uint32_t t = 0; t < batch->n_token;) {
        struct block *b = &task->blocks[task->n_block++];
        uint32_t n_row = (uint32_t)batch->pos[t] + 1;
        *b = (struct block){.token0 = t, .n_token = 1};
        ASSERT(batch->pos[t] >= 0 && n_row <= task->cpu->c.max_context);
        if (!sees_prefix(a, t)) {
            b->chosen = true;
            n_row = (uint32_t)a->select->index[(size_t)t * a->select->width];
            ASSERT(n_row >= 1 && n_row <= task->cpu->c.index_topk);
        } else {
            while (b->n_token < task->n_block_token && t + b->n_token < batch->n_token &&
                   batch->request[t + b->n_token] == batch->request[t] &&
                   sees_prefix(a, t + b->n_token)) {
                n_row = (uint32_t)batch->pos[t + b->n_token] + 1;
                b->n_token++;
            }
        }
        b->n_group = (n_row + GROUP_ROWS - 1) / GROUP_ROWS;
        t += b->n_token;
    }
}

/* One item: queries in order of token, then head. */
struct item {
    const struct block *block;
    uint32_t head0;
    uint32_t n_head;
    uint32_t n_query;
};

static struct item item_at(const struct attend_task *task, size_t i)
{
    DCHECK(i < (size_t)task->n_block * task->n_chunk);
    struct item it = {.block = &task->blocks[i / task->n_chunk]};
    it.head0 = (uint32_t)(i % task->n_chunk) * task->n_chunk_head;
    it.n_head = min_u32(task->n_chunk_head, task->cpu->c.n_head - it.head0);
    it.n_query = it.block->n_token * it.n_head;
    DCHECK(it.n_query >= 1 && it.n_query <= QUERY_MAX);
    return it;
}

/* ---- rows of a group ---- */

static const uint8_t *latent_at(const struct kv_cache *kv, uint32_t layer, int32_t slot)
{
    uint32_t page = (uint32_t)slot / KV_PAGE_TOKENS;
    ASSERT(slot >= 0 && page < kv->n_page);
    return (const uint8_t *)kv->base + page * kv->layout.page_bytes +
           kv_latent_offset(&kv->layout, layer) +
           (size_t)slot % KV_PAGE_TOKENS * kv->layout.row_bytes;
}

/* Where the rows of group `group` lie in the cache; returns how many there are. */
static uint32_t find_rows(const struct attend_task *task, const struct block *b, uint32_t group,
                          const uint8_t *row[GROUP_ROWS])
{
    DCHECK(group < b->n_group);
    const struct mla_attend_args *a = task->a;
    const struct batch *batch = a->batch;
    uint32_t first = group * GROUP_ROWS;
    if (b->chosen) {
        const int32_t *select = a->select->index + (size_t)b->token0 * a->select->width;
        uint32_t n = min_u32((uint32_t)select[0] - first, GROUP_ROWS);
        for (uint32_t i = 0; i < n; i++) row[i] = latent_at(a->kv, a->layer, select[1 + first + i]);
        return n;
    }
    uint32_t last = (uint32_t)batch->pos[b->token0 + b->n_token - 1];
    const int32_t *pages =
        batch->page_table + (size_t)batch->request[b->token0] * batch->page_stride;
    const uint8_t *page = latent_at(a->kv, a->layer, pages[group] * KV_PAGE_TOKENS);
    uint32_t n = min_u32(last + 1 - first, GROUP_ROWS);
    for (uint32_t i = 0; i < n; i++) row[i] = page + (size_t)i * a->kv->layout.row_bytes;
    return n;
}

static bool in_place(enum kv_type type, enum operand operand)
{
    return operand == OPERAND_BF16 ? type == KV_TYPE_BF16 : type == KV_TYPE_F32;
}

/* Fills row[] with the group's rows as the kernel wants them, then zeros up to a multiple of 4. */
static uint32_t load_rows(const struct attend_task *task, const struct attend_scratch *s,
                          const struct item *it, uint32_t group, const void *row[GROUP_ROWS])
{
    const struct cpu_backend *cpu = task->cpu;
    enum kv_type type = cpu->c.kv.type;
    enum operand operand = cpu->attend_operand;
    const uint8_t *cached[GROUP_ROWS];
    uint32_t n = find_rows(task, it->block, group, cached);
    for (uint32_t i = 0; i < n; i++) {
        void *decoded = operand_row(operand, s->tile, (size_t)i * KV_ROW);
        if (in_place(type, operand)) {
            row[i] = cached[i];
        } else {
            cpu->k->load_latent(type, cached[i], operand, decoded);
            row[i] = decoded;
        }
    }
    for (uint32_t i = n; i % 4 != 0; i++) row[i] = cpu->zeros;
    return n;
}

/* ---- one item ---- */

static void load_queries(const struct attend_task *task, const struct attend_scratch *s,
                         const struct item *it)
{
    const struct buffer *query = task->a->query;
    enum operand operand = task->cpu->attend_operand;
    for (uint32_t q = 0; q < it->n_query; q++) {
        uint32_t t = it->block->token0 + q / it->n_head;
        uint32_t h = it->head0 + q % it->n_head;
        task->cpu->k->to_operand(operand, false,
                                 query->value + (size_t)t * query->stride + (size_t)h * KV_ROW,
                                 KV_ROW, operand_row(operand, s->query, (size_t)q * KV_ROW));
    }
}

/* Group `group` for the item's queries, from zero, into *out; the queries before the returned one
 * see none of its rows. */
static uint32_t attend_group(const struct attend_task *task, const struct attend_scratch *s,
                             const struct item *it, uint32_t group, const struct state *out)
{
    const void *row[GROUP_ROWS];
    uint32_t visible[QUERY_MAX];
    const int32_t *pos = task->a->batch->pos + it->block->token0;
    uint32_t n_row = load_rows(task, s, it, group, row);
    uint32_t q0 = 0;
    for (uint32_t q = 0; q < it->n_query; q++) {
        int32_t n = it->block->chosen ? (int32_t)n_row
                                      : pos[q / it->n_head] + 1 - (int32_t)(group * GROUP_ROWS);
        visible[q] = n <= 0 ? 0 : min_u32((uint32_t)n, n_row);
        if (n <= 0) q0 = q + 1;
    }
    struct attend_call call = {
        .row = row,
        .n_row = n_row,
        .n_query = it->n_query - q0,
        .key_dim = KV_ROW,
        .value_dim = KV_LATENT,
        .query = operand_row(task->cpu->attend_operand, s->query, (size_t)q0 * KV_ROW),
        .query_stride = KV_ROW,
        .n_visible = visible + q0,
        .softmax_scale = task->cpu->c.softmax_scale,
        .score = s->score,
        .max = out->max + q0,
        .sum = out->sum + q0,
        .out = out->out + (size_t)q0 * KV_LATENT,
        .out_stride = KV_LATENT,
    };
    task->cpu->k->attend[task->cpu->attend_operand](&call);
    return q0;
}

static void start_state(const struct item *it, struct state *s)
{
    DCHECK(it->n_query <= QUERY_MAX);
    for (uint32_t q = 0; q < it->n_query; q++) {
        s->max[q] = -INFINITY;
        s->sum[q] = 0;
    }
    memset(s->out, 0, (size_t)it->n_query * KV_LATENT * sizeof *s->out);
}

static void merge_group(const struct attend_task *task, const struct item *it, uint32_t q0,
                        const struct state *group, struct state *s)
{
    DCHECK(q0 <= it->n_query);
    for (uint32_t q = q0; q < it->n_query; q++) {
        size_t at = (size_t)q * KV_LATENT;
        task->cpu->k->merge(&s->max[q], &s->sum[q], s->out + at, group->max[q], group->sum[q],
                            group->out + at, KV_LATENT);
    }
}

static void finish_item(const struct attend_task *task, const struct item *it, struct state *s)
{
    const struct cpu_backend *cpu = task->cpu;
    DCHECK(it->head0 + it->n_head <= cpu->c.n_head);
    const struct buffer *out = task->a->out;
    for (uint32_t q = 0; q < it->n_query; q++) {
        uint32_t t = it->block->token0 + q / it->n_head;
        uint32_t h = it->head0 + q % it->n_head;
        float *value = s->out + (size_t)q * KV_LATENT;
        cpu->k->scale(value, 1 / s->sum[q], KV_LATENT);
        cpu_to_operand(cpu, value, KV_LATENT,
                       operand_row(cpu->operand, out->operand,
                                   (size_t)t * out->stride + (size_t)h * KV_LATENT));
    }
}

static void run_item(void *arg, size_t i, size_t n, unsigned worker)
{
    const struct attend_task *task = arg;
    struct attend_scratch s;
    struct item it = item_at(task, i);
    (void)n;
    lay_out_worker(&s, worker_scratch(task->cpu, worker));
    load_queries(task, &s, &it);
    start_state(&it, &s.state);
    for (uint32_t g = 0; g < it.block->n_group; g++) {
        uint32_t q0 = attend_group(task, &s, &it, g, &s.group);
        merge_group(task, &it, q0, &s.group, &s.state);
    }
    finish_item(task, &it, &s.state);
}

/* ---- groups side by side ---- */

static void run_partial(void *arg, size_t i, size_t n, unsigned worker)
{
    const struct attend_task *task = arg;
    struct partial *partial = &task->partials[i];
    struct attend_scratch s;
    struct item it = item_at(task, partial->item);
    (void)n;
    lay_out_worker(&s, worker_scratch(task->cpu, worker));
    load_queries(task, &s, &it);
    partial->first_query = attend_group(task, &s, &it, partial->group, &partial->state);
}

/* Merges one item's partials of this wave, and finishes it after its last group. */
static void merge_partials(void *arg, size_t i, size_t n, unsigned worker)
{
    const struct attend_task *task = arg;
    uint32_t item = task->item0 + (uint32_t)i;
    struct item it = item_at(task, item);
    struct state *s = &task->states[item];
    (void)n;
    (void)worker;
    for (uint32_t k = 0; k < task->n_used; k++) {
        const struct partial *partial = &task->partials[k];
        if (partial->item != item) continue;
        if (partial->group == 0) start_state(&it, s);
        merge_group(task, &it, partial->first_query, &partial->state, s);
        if (partial->group + 1 == it.block->n_group) finish_item(task, &it, s);
    }
}

static void run_waves(struct attend_task *task, uint32_t n_item)
{
    ASSERT(n_item < ITEMS_PER_THREAD * task->cpu->n_thread); /* their states */
    uint32_t item = 0;
    uint32_t group = 0;
    while (item < n_item) {
        task->item0 = item;
        uint32_t last = item;
        for (task->n_used = 0; task->n_used < task->n_partial && item < n_item; task->n_used++) {
            struct partial *partial = &task->partials[task->n_used];
            partial->item = last = item;
            partial->group = group++;
            if (group == item_at(task, item).block->n_group) {
                group = 0;
                item++;
            }
        }
        cpu_items(task->cpu, task->n_used, run_partial, task);
        cpu_items(task->cpu, last - task->item0 + 1, merge_partials, task);
    }
}

fathom_err cpu_mla_attend(struct backend *b, const struct mla_attend_args *a)
{
    op_check_mla_attend(&cpu_of(b)->c, a);
    ASSERT(a->query->kind == BUFFER_QUERY);
    ASSERT(a->out->kind == BUFFER_LATENT);
    ASSERT(!a->select || a->select->kind == BUFFER_SELECT);
    struct cpu_backend *cpu = cpu_of(b);
    const struct backend_config *c = &cpu->c;
    struct attend_task task = {.cpu = cpu, .a = a};
    lay_out_task(cpu, &task, cpu->arena);
    task.n_chunk_head = min_u32(c->n_head, QUERY_MAX);
    task.n_block_token = QUERY_MAX / task.n_chunk_head;
    task.n_chunk = (c->n_head + task.n_chunk_head - 1) / task.n_chunk_head;
    cut_blocks(&task);
    uint32_t n_item = task.n_block * task.n_chunk;
    if (n_item >= ITEMS_PER_THREAD * cpu->n_thread)
        cpu_items(cpu, n_item, run_item, &task);
    else
        run_waves(&task, n_item);
    return FATHOM_OK;
}
