/* quantize.c - wide linear weights to FP8 blocks, one layer at a time */
#include "model/quantize.h"

#include <math.h>
#include <string.h>

#include "base/assert.h"
#include "base/fail.h"
#include "base/mem.h"
#include "base/os.h"
#include "base/thread.h"
#include "model/weights_int.h"

enum { BLOCK = TENSOR_SCALE_BLOCK, ALIGN_BYTES = 64 };

static const float fp8_max = 448.0f;

fathom_err quantizer_init(struct quantizer *q, uint32_t n_expert, uint32_t n_thread, fathom_diag *d)
{
    *q = (struct quantizer){.n_expert = n_expert};
    q->experts = mem_calloc(n_expert, sizeof *q->experts);
    if (!q->experts) FAIL(d, FATHOM_ENOMEM, "no memory for views of %u experts", n_expert);
    fathom_err err = thread_pool_create(&q->pool, n_thread ? n_thread : os_n_cpu(), d);
    if (err) quantizer_fini(q);
    return err;
}

void quantizer_fini(struct quantizer *q)
{
    thread_pool_destroy(q->pool);
    mem_free(q->experts);
    mem_free_pages(q->memory);
    *q = (struct quantizer){0};
}

/* ---- one matrix ----------------------------------------------------------------------------- */

bool quantize_is_wide(const struct tensor_view *v)
{
    return v->n_row > 0 && v->data &&
           (v->dtype == DTYPE_BF16 || v->dtype == DTYPE_F16 || v->dtype == DTYPE_F32);
}

static uint32_t blocks_of(uint32_t n)
{
    return n / BLOCK + (n % BLOCK != 0);
}

size_t quantize_aligned(size_t n)
{
    return (n + ALIGN_BYTES - 1) / ALIGN_BYTES * ALIGN_BYTES;
}

size_t quantize_bytes(const struct tensor_view *v)
{
    size_t n_scale = (size_t)blocks_of(v->n_row) * blocks_of(v->n_col);
    return quantize_aligned((size_t)v->n_row * v->n_col) +
           quantize_aligned(n_scale * sizeof(float));
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
            tensor_view_row(v, r0 + r, c0, n_col, values[r]);
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

void quantize_to_blocks(struct quantizer *q, struct tensor_view *v)
{
    struct tensor_view in = *v;
    size_t n_code = quantize_aligned((size_t)in.n_row * in.n_col);
    ASSERT(q->n_used + quantize_bytes(&in) <= q->n_bytes);
    struct matrix_task task = {.in = &in, .codes = q->memory + q->n_used};
    task.scales = (float *)(void *)(task.codes + n_code);
    q->n_used += quantize_bytes(&in);
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

fathom_err quantize_reserve(struct quantizer *q, size_t n_bytes, fathom_diag *d)
{
    q->n_used = 0;
    if (n_bytes <= q->n_bytes) return FATHOM_OK;
    mem_free_pages(q->memory);
    q->n_bytes = 0;
    q->memory = mem_alloc_pages(n_bytes);
    if (!q->memory) {
        FAIL(d, FATHOM_ENOMEM, "no memory for the quantized copy of a layer, %zu bytes", n_bytes);
    }
    q->n_bytes = n_bytes;
    return FATHOM_OK;
}

static void count_view(void *arg, struct tensor_view *v)
{
    struct quantizer *q = arg;
    if (quantize_is_wide(v)) q->n_used += quantize_bytes(v);
}

static void quantize_view(void *arg, struct tensor_view *v)
{
    if (quantize_is_wide(v)) quantize_to_blocks(arg, v);
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
    weights_walk_fp8(out, q->experts, q->n_expert, count_view, q);
    size_t n_bytes = q->n_used;
    TRY(quantize_reserve(q, n_bytes, d));
    weights_walk_fp8(out, q->experts, q->n_expert, quantize_view, q);
    ASSERT(q->n_used == n_bytes);
    return FATHOM_OK;
}
