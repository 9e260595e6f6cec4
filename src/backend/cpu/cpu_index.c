/* cpu_index.c - index_topk (op_attn.h)
 *
 * Tokens are taken in waves of as many as there is room for scores. A wave computes all its scores
 * first. An item is a block of one request's tokens and a run of its pages. A page's 64 keys become
 * two panels of a weight; the block's queries, token by token and head by head, become its input.
 * So the dot products are the matrix kernel's. Then each token's rows are selected: the n-th
 * largest score by bisection (cpu_topk.h), and one walk over the positions in order.
 */
#include "backend/cpu/cpu_int.h"
#include "backend/cpu/cpu_topk.h"

#include <string.h>

#include "base/assert.h"

enum {
    MAX_ROWS = 128, /* queries of an item: tokens times index heads, at least one token */
    PAGES_PER_ITEM = 8,
    MIN_WAVE = 16,
};

struct item {
    uint32_t token0;
    uint32_t n_token;
    uint32_t page0;
    uint32_t n_page;
};

struct index_task {
    struct cpu_backend *cpu;
    const struct index_topk_args *a;
    uint32_t n_wave; /* most tokens of a wave */
    uint32_t token0; /* first token of this wave */
    float *score;    /* [n_wave][max_context rounded up to pages] */
    size_t score_stride;
    struct item *items; /* [n_wave][pages / PAGES_PER_ITEM, rounded up] */
    uint32_t n_item;
};

struct index_scratch {
    uint8_t *panels; /* two panels of 64 pairs */
    void *query;     /* operand [rows][128] */
    float *dot;      /* [rows][64] */
    uint8_t *decoded;
    uint32_t *keys; /* [max_context rounded up to pages] */
};

static uint32_t n_page_of(uint32_t n_position)
{
    return (n_position + KV_PAGE_TOKENS - 1) / KV_PAGE_TOKENS;
}

static uint32_t max_rows(const struct cpu_backend *cpu)
{
    return max_u32(MAX_ROWS, cpu->c.index_n_head);
}

static size_t lay_out_task(const struct cpu_backend *cpu, struct index_task *t, uint8_t *base)
{
    uint32_t n_page = n_page_of(cpu->c.max_context);
    struct carver c = {.base = base};
    t->n_wave = max_u32(MIN_WAVE, 2 * cpu->n_thread);
    t->score_stride = (size_t)n_page * KV_PAGE_TOKENS;
    t->score = carve(&c, t->n_wave * t->score_stride, sizeof(float));
    t->items = carve(&c, (size_t)t->n_wave * (n_page / PAGES_PER_ITEM + 1), sizeof *t->items);
    return c.used;
}

static size_t lay_out_worker(const struct cpu_backend *cpu, struct index_scratch *s, uint8_t *base)
{
    struct carver c = {.base = base};
    s->panels = carve(&c, (size_t)GROUP_ROWS * KV_INDEX_DIM, sizeof(float));
    s->query = carve(&c, (size_t)max_rows(cpu) * KV_INDEX_DIM, sizeof(float));
    s->dot = carve(&c, (size_t)max_rows(cpu) * GROUP_ROWS, sizeof(float));
    s->decoded = carve(&c, CHUNK_BYTES, 1);
    s->keys = carve(&c, (size_t)n_page_of(cpu->c.max_context) * KV_PAGE_TOKENS, sizeof *s->keys);
    return c.used;
}

size_t cpu_index_arena_bytes(const struct cpu_backend *cpu)
{
    struct index_task t;
    return cpu->c.index_n_head > 0 ? lay_out_task(cpu, &t, NULL) : 0;
}

size_t cpu_index_worker_bytes(const struct cpu_backend *cpu)
{
    struct index_scratch s;
    return cpu->c.index_n_head > 0 ? lay_out_worker(cpu, &s, NULL) : 0;
}

static uint32_t n_visible(const struct index_task *task, uint32_t t)
{
    DCHECK(t < task->a->batch->n_token);
    return (uint32_t)task->a->batch->pos[t] + 1;
}

static const float *query_row(const struct index_task *task, uint32_t t)
{
    DCHECK(t < task->a->batch->n_token);
    const struct buffer *query = task->a->query;
    return query->value + (size_t)t * query->stride + (size_t)task->cpu->c.n_head * KV_ROW;
}

/* ---- scores ---- */

/* The 64 scores of one token on one page, from its heads' dot products. */
static void sum_heads(const struct index_task *task, const float *weight, const float *dot,
                      const float *key_scale, uint32_t n_row, float *score)
{
    const struct cpu_kernels *k = task->cpu->k;
    memset(score, 0, GROUP_ROWS * sizeof *score);
    for (uint32_t h = 0; h < task->cpu->c.index_n_head; h++)
        k->add_relu(score, weight[h], dot + (size_t)h * GROUP_ROWS, GROUP_ROWS);
    for (uint32_t i = 0; i < n_row && key_scale; i++) score[i] *= key_scale[i];
}

/* The page's keys, rows from n_row on not read, as the two panels of *keys. */
static void pack_page(const struct cpu_backend *cpu, const struct packed *keys, bool coded,
                      const uint8_t *block, uint32_t n_row)
{
    DCHECK(n_row >= 1 && n_row <= KV_PAGE_TOKENS);
    size_t row_bytes = coded ? (size_t)KV_INDEX_DIM : KV_INDEX_ROW_BYTES_F32;
    for (uint32_t i = 0; i < keys->n_panel; i++) {
        const uint8_t *rows = block + i * PANEL * row_bytes;
        uint8_t *panel = keys->data + i * keys->panel_bytes;
        uint32_t n = n_row > i * PANEL ? min_u32(n_row - i * PANEL, PANEL) : 0;
        if (keys->kind == PACK_FP8)
            cpu->k->pack_codes(rows, row_bytes, n, panel);
        else
            cpu->k->pack_keys_f32(coded, rows, n, panel);
    }
}

static void score_page(const struct index_task *task, const struct index_scratch *s,
                       const struct item *it, uint32_t i_page)
{
    struct cpu_backend *cpu = task->cpu;
    const struct batch *batch = task->a->batch;
    DCHECK(i_page < batch->page_stride);
    const struct kv_cache *kv = task->a->kv;
    uint32_t n_head = cpu->c.index_n_head;
    bool coded = kv->layout.type != KV_TYPE_F32;
    int32_t page =
        batch->page_table[(size_t)batch->request[it->token0] * batch->page_stride + i_page];
    ASSERT(page >= 0 && (uint32_t)page < kv->n_page);
    const uint8_t *block = (const uint8_t *)kv->base + (uint32_t)page * kv->layout.page_bytes +
                           kv_index_offset(&kv->layout, task->a->layer);
    uint32_t last = n_visible(task, it->token0 + it->n_token - 1);
    uint32_t n_row = min_u32(last - i_page * KV_PAGE_TOKENS, KV_PAGE_TOKENS);
    float one[GROUP_ROWS / PANEL] = {1, 1};
    enum pack_kind kind = cpu->index_operand == OPERAND_BF16 ? PACK_FP8 : PACK_F32;
    struct packed keys = {
        .kind = kind,
        .n_row = GROUP_ROWS,
        .n_col = KV_INDEX_DIM,
        .n_panel = GROUP_ROWS / PANEL,
        .n_pair = PAIRS_PER_BLOCK,
        .block_pairs = PAIRS_PER_BLOCK,
        .first_pair = PAIRS_PER_BLOCK,
        .n_block = 1,
        .n_scale = 1,
        .scale_lanes = 1,
        .panel_bytes = (size_t)PAIRS_PER_BLOCK * pack_group_bytes(kind),
        .data = s->panels,
        .scale = one,
    };
    pack_page(cpu, &keys, coded, block, n_row);
    struct gemm_call call = {
        .w = &keys,
        .n_panel = keys.n_panel,
        .n_token = it->n_token * n_head,
        .x = s->query,
        .x_stride = KV_INDEX_DIM,
        .y = s->dot,
        .y_stride = GROUP_ROWS,
        .decoded = s->decoded,
    };
    cpu->k->gemm[cpu->index_operand](&call);
    const float *key_scale = (const float *)(const void *)(block + KV_INDEX_SCALES_OFFSET);
    for (uint32_t i = 0; i < it->n_token; i++) {
        uint32_t t = it->token0 + i;
        float *score = task->score + (t - task->token0) * task->score_stride;
        sum_heads(task, query_row(task, t) + (size_t)n_head * KV_INDEX_DIM,
                  s->dot + (size_t)i * n_head * GROUP_ROWS, coded ? key_scale : NULL, n_row,
                  score + (size_t)i_page * KV_PAGE_TOKENS);
    }
}

static void score_item(void *arg, size_t i, size_t n, unsigned worker)
{
    const struct index_task *task = arg;
    const struct cpu_backend *cpu = task->cpu;
    const struct item *it = &task->items[i];
    uint32_t width = cpu->c.index_n_head * KV_INDEX_DIM;
    struct index_scratch s;
    (void)n;
    lay_out_worker(cpu, &s, worker_scratch(cpu, worker));
    for (uint32_t k = 0; k < it->n_token; k++)
        cpu->k->to_operand(cpu->index_operand, false, query_row(task, it->token0 + k), width,
                           operand_row(cpu->index_operand, s.query, (size_t)k * width));
    for (uint32_t p = 0; p < it->n_page; p++) score_page(task, &s, it, it->page0 + p);
}

/* ---- selection ---- */

static int32_t slot_of(const int32_t *pages, uint32_t pos)
{
    DCHECK(pages[pos / KV_PAGE_TOKENS] >= 0);
    return pages[pos / KV_PAGE_TOKENS] * KV_PAGE_TOKENS + (int32_t)(pos % KV_PAGE_TOKENS);
}

/* The rows of a page whose keys are >= least; returns how many. No branch: few are taken, and which
 * ones cannot be foreseen. */
static uint32_t take_all(const uint32_t *keys, uint32_t n_row, uint32_t least, int32_t *rows)
{
    DCHECK(n_row <= KV_PAGE_TOKENS);
    uint32_t n = 0;
    for (uint32_t r = 0; r < n_row; r++) {
        rows[n] = (int32_t)r;
        n += keys[r] >= least;
    }
    return n;
}

/* The same, but of the keys equal to least only the first *n_equal that are left. */
static uint32_t take_some(const uint32_t *keys, uint32_t n_row, uint32_t least, uint32_t *n_equal,
                          int32_t *rows)
{
    DCHECK(n_row <= KV_PAGE_TOKENS);
    uint32_t n = 0;
    for (uint32_t r = 0; r < n_row; r++) {
        bool equal = keys[r] == least;
        if (keys[r] < least || (equal && *n_equal == 0)) continue;
        *n_equal -= equal;
        rows[n++] = (int32_t)r;
    }
    return n;
}

static void select_token(void *arg, size_t i, size_t n, unsigned worker)
{
    const struct index_task *task = arg;
    const struct batch *batch = task->a->batch;
    const struct buffer *select = task->a->select;
    uint32_t t = task->token0 + (uint32_t)i;
    uint32_t n_key = n_visible(task, t);
    uint32_t n_keep = min_u32(n_key, task->cpu->c.index_topk);
    const int32_t *pages = batch->page_table + (size_t)batch->request[t] * batch->page_stride;
    int32_t *out = select->index + (size_t)t * select->width;
    struct index_scratch s;
    (void)n;
    *out++ = (int32_t)n_keep;
    if (n_keep == n_key) {
        for (uint32_t p = 0; p < n_key; p++) out[p] = slot_of(pages, p);
        return;
    }
    lay_out_worker(task->cpu, &s, worker_scratch(task->cpu, worker));
    DCHECK(i < task->n_wave);
    const float *score = task->score + i * task->score_stride;
    task->cpu->k->order_keys(score, n_key, s.keys);
    uint32_t n_equal;
    uint32_t least = topk_least(task->cpu->k, s.keys, n_key, n_keep, &n_equal);
    for (uint32_t page = 0; page * KV_PAGE_TOKENS < n_key; page++) {
        const uint32_t *keys = s.keys + page * KV_PAGE_TOKENS;
        int32_t slots[KV_PAGE_TOKENS];
        uint32_t n_row = min_u32(n_key - page * KV_PAGE_TOKENS, KV_PAGE_TOKENS);
        uint32_t n_taken = n_equal != TOPK_ALL ? take_some(keys, n_row, least, &n_equal, slots)
                                               : take_all(keys, n_row, least, slots);
        for (uint32_t r = 0; r < n_taken; r++) *out++ = pages[page] * KV_PAGE_TOKENS + slots[r];
    }
}

/* ---- waves ---- */

/* The items of the tokens [token0, end) that see more than index_topk rows. */
static void cut_items(struct index_task *task, uint32_t end)
{
    const struct batch *batch = task->a->batch;
    ASSERT(end <= batch->n_token);
    const struct backend_config *c = &task->cpu->c;
    uint32_t most = max_u32(1, MAX_ROWS / c->index_n_head);
    task->n_item = 0;
    for (uint32_t t = task->token0; t < end;) {
        uint32_t n = 1;
        ASSERT(n_visible(task, t) <= c->max_context);
        if (n_visible(task, t) <= c->index_topk) {
            t++;
            continue;
        }
        while (n < most && t + n < end && batch->request[t + n] == batch->request[t]) n++;
        uint32_t n_page = n_page_of(n_visible(task, t + n - 1));
        for (uint32_t p = 0; p < n_page; p += PAGES_PER_ITEM) {
            task->items[task->n_item++] = (struct item){
                .token0 = t,
                .n_token = n,
                .page0 = p,
                .n_page = min_u32(PAGES_PER_ITEM, n_page - p),
            };
        }
        t += n;
    }
}

fathom_err cpu_index_topk(struct backend *b, const struct index_topk_args *a)
{
    op_check_index_topk(&cpu_of(b)->c, a);
    ASSERT(a->query->kind == BUFFER_QUERY);
    ASSERT(a->select->kind == BUFFER_SELECT);
    struct cpu_backend *cpu = cpu_of(b);
    struct index_task task = {.cpu = cpu, .a = a};
    lay_out_task(cpu, &task, cpu->arena);
    for (; task.token0 < a->batch->n_token; task.token0 += task.n_wave) {
        uint32_t n = min_u32(task.n_wave, a->batch->n_token - task.token0);
        cut_items(&task, task.token0 + n);
        cpu_items(cpu, task.n_item, score_item, &task);
        cpu_rows(cpu, n, a->batch->max_context, select_token, &task);
    }
    return FATHOM_OK;
}
