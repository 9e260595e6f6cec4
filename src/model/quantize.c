#include "model/quantize.h"

#include <math.h>
#include <string.h>

#include "base/fail.h"
#include "base/mem.h"
#include "base/os.h"
#include "base/thread.h"

enum { BLOCK = TENSOR_SCALE_BLOCK, ALIGN_BYTES = 64, FIXED_VIEWS = 13 };

static const float fp8_max = 448.0f;

fathom_err quantizer_init(struct quantizer *q, uint32_t n_expert, uint32_t n_thread, fathom_diag *d)
{
    *q = (struct quantizer){.n_expert = n_expert};
    q->experts = mem_calloc(n_expert, sizeof *q->experts);
    if (!q->experts) FAIL(d, FATHOM_ENOMEM, "no memory for views of %u experts", n_expert);
    return thread_pool_create(&q->pool, n_thread ? n_thread : os_n_cpu(), d);
}

void quantizer_fini(struct quantizer *q)
{
    thread_pool_destroy(q->pool);
    mem_free(q->experts);
    mem_free_pages(q->memory);
    *q = (struct quantizer){0};
}

/* ---- one matrix ----------------------------------------------------------------------------- */

static bool is_wide(const struct tensor_view *v)
{
    return v->n_row > 0 && v->data &&
           (v->dtype == DTYPE_BF16 || v->dtype == DTYPE_F16 || v->dtype == DTYPE_F32);
}

static uint32_t blocks_of(uint32_t n)
{
    return n / BLOCK + (n % BLOCK != 0);
}

static size_t aligned(size_t n)
{
    return (n + ALIGN_BYTES - 1) / ALIGN_BYTES * ALIGN_BYTES;
}

static size_t bytes_of(const struct tensor_view *v)
{
    size_t n_scale = (size_t)blocks_of(v->n_row) * blocks_of(v->n_col);
    return aligned((size_t)v->n_row * v->n_col) + aligned(n_scale * sizeof(float));
}

static void read_row(const struct tensor_view *v, uint32_t r, uint32_t c0, uint32_t n, float *out)
{
    const uint8_t *at = (const uint8_t *)v->data + (r * v->row_stride + c0) * dtype_size(v->dtype);
    uint16_t h;
    for (uint32_t i = 0; i < n; i++) {
        switch (v->dtype) {
        case DTYPE_BF16: memcpy(&h, at + 2 * (size_t)i, 2), out[i] = f32_from_bf16(h); break;
        case DTYPE_F16: memcpy(&h, at + 2 * (size_t)i, 2), out[i] = f32_from_f16(h); break;
        default: memcpy(&out[i], at + 4 * (size_t)i, 4);
        }
    }
}

struct matrix_task {
    const struct tensor_view *in;
    uint8_t *codes;
    float *scales;
};

/* One row of blocks. */
static void quantize_blocks(void *arg, size_t i_block, size_t n_block, unsigned worker)
{
    const struct matrix_task *t = arg;
    const struct tensor_view *v = t->in;
    uint32_t r0 = (uint32_t)i_block * BLOCK;
    uint32_t n_row = v->n_row - r0 < BLOCK ? v->n_row - r0 : BLOCK;
    uint32_t n_scale = blocks_of(v->n_col);
    float values[BLOCK][BLOCK];
    (void)n_block;
    (void)worker;
    for (uint32_t b = 0; b < n_scale; b++) {
        uint32_t c0 = b * BLOCK;
        uint32_t n_col = v->n_col - c0 < BLOCK ? v->n_col - c0 : BLOCK;
        float largest = 0;
        for (uint32_t r = 0; r < n_row; r++) {
            read_row(v, r0 + r, c0, n_col, values[r]);
            for (uint32_t c = 0; c < n_col; c++) largest = fmaxf(largest, fabsf(values[r][c]));
        }
        float scale = largest > 0 ? largest / fp8_max : 1;
        t->scales[i_block * n_scale + b] = scale;
        for (uint32_t r = 0; r < n_row; r++) {
            uint8_t *to = t->codes + (size_t)(r0 + r) * v->n_col + c0;
            for (uint32_t c = 0; c < n_col; c++) to[c] = e4m3_from_f32(values[r][c] / scale);
        }
    }
}

static void quantize_view(struct quantizer *q, struct tensor_view *v)
{
    struct tensor_view in = *v;
    size_t n_code = aligned((size_t)in.n_row * in.n_col);
    struct matrix_task task = {.in = &in, .codes = q->memory + q->n_used};
    task.scales = (float *)(void *)(task.codes + n_code);
    q->n_used += bytes_of(&in);
    thread_pool_run(q->pool, blocks_of(in.n_row), quantize_blocks, &task);
    *v = (struct tensor_view){.data = task.codes,
                              .dtype = DTYPE_F8_E4M3,
                              .n_row = in.n_row,
                              .n_col = in.n_col,
                              .row_stride = in.n_col,
                              .scale = task.scales,
                              .scale_stride = blocks_of(in.n_col)};
}

/* ---- a layer -------------------------------------------------------------------------------- */

/* The linear views that are not experts'. */
static void list_fixed(struct layer_views *v, struct tensor_view *out[FIXED_VIEWS])
{
    struct tensor_view *const views[FIXED_VIEWS] = {
        &v->mla.q_a,         &v->mla.q_b,       &v->mla.kv_a,        &v->mla.kv_b, &v->mla.o,
        &v->mla.index_q_b,   &v->mla.index_k,   &v->dense.gate,      &v->dense.up, &v->dense.down,
        &v->moe.shared.gate, &v->moe.shared.up, &v->moe.shared.down,
    };
    memcpy(out, views, sizeof views);
}

static fathom_err reserve(struct quantizer *q, size_t n_bytes, fathom_diag *d)
{
    q->n_used = 0;
    if (n_bytes <= q->n_bytes) return FATHOM_OK;
    mem_free_pages(q->memory);
    q->n_bytes = 0;
    q->memory = mem_alloc_pages(n_bytes);
    if (!q->memory) {
        FAIL(d, FATHOM_ENOMEM, "no memory for the FP8 copy of a layer, %zu bytes", n_bytes);
    }
    q->n_bytes = n_bytes;
    return FATHOM_OK;
}

typedef void view_visit(struct quantizer *q, struct tensor_view *v);

static void count_view(struct quantizer *q, struct tensor_view *v)
{
    q->n_used += bytes_of(v);
}

/* The wide linear views of a layer whose experts are in q. */
static void each_wide(struct quantizer *q, struct layer_views *v, view_visit *visit)
{
    struct tensor_view *fixed[FIXED_VIEWS];
    list_fixed(v, fixed);
    for (int i = 0; i < FIXED_VIEWS; i++) {
        if (is_wide(fixed[i])) visit(q, fixed[i]);
    }
    for (uint32_t e = 0; v->moe.experts && e < q->n_expert; e++) {
        struct ffn_tensors *t = &q->experts[e];
        struct tensor_view *const parts[] = {&t->gate, &t->up, &t->down};
        for (int i = 0; i < 3; i++) {
            if (is_wide(parts[i])) visit(q, parts[i]);
        }
    }
}

fathom_err quantize_layer(struct quantizer *q, const struct layer_views *in,
                          struct layer_views *out, fathom_diag *d)
{
    *out = *in;
    if (in->moe.experts) {
        memcpy(q->experts, in->moe.experts, q->n_expert * sizeof *q->experts);
        out->moe.experts = q->experts;
    }
    q->n_used = 0;
    each_wide(q, out, count_view);
    TRY(reserve(q, q->n_used, d));
    each_wide(q, out, quantize_view);
    return FATHOM_OK;
}
