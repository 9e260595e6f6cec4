/* quantize_head.c - the output head in one byte a weight */
#include <math.h>

#include "base/assert.h"
#include "base/fail.h"
#include "base/mem.h"
#include "base/os.h"
#include "base/thread.h"
#include "model/quantize.h"

/* Rows that a thread takes at a time, and columns. */
enum { ROWS = 32, RUN = 256 };

struct head_task {
    const struct tensor_view *in;
    int8_t *codes; /* NULL: scales alone */
    float *scales; /* [n_row] */
};

static float row_scale(const struct tensor_view *v, uint32_t row)
{
    float values[RUN], largest = 0;
    for (uint32_t c = 0; c < v->n_col; c += RUN) {
        const uint32_t n = v->n_col - c < RUN ? v->n_col - c : RUN;
        tensor_view_row(v, row, c, n, values);
        for (uint32_t i = 0; i < n; i++) largest = fmaxf(largest, fabsf(values[i]));
    }
    return largest > 0 ? largest / 127 : 1;
}

static void code_row(const struct tensor_view *v, uint32_t row, float scale, int8_t *out)
{
    float values[RUN];
    for (uint32_t c = 0; c < v->n_col; c += RUN) {
        const uint32_t n = v->n_col - c < RUN ? v->n_col - c : RUN;
        tensor_view_row(v, row, c, n, values);
        for (uint32_t i = 0; i < n; i++) {
            const float code = rintf(values[i] / scale);
            out[c + i] = (int8_t)fmaxf(fminf(code, 127), -127);
        }
    }
}

static void do_rows(void *arg, size_t item, size_t n_item, unsigned worker)
{
    const struct head_task *t = arg;
    const uint32_t first = (uint32_t)item * ROWS;
    const uint32_t left = t->in->n_row - first, n = left < ROWS ? left : ROWS;
    (void)n_item;
    (void)worker;
    for (uint32_t r = first; r < first + n; r++) {
        if (!t->codes)
            t->scales[r] = row_scale(t->in, r);
        else
            code_row(t->in, r, t->scales[r], t->codes + (size_t)r * t->in->n_col);
    }
}

static void run_rows(struct quantizer *q, struct head_task *task)
{
    thread_pool_run(q->pool, (task->in->n_row + ROWS - 1) / ROWS, do_rows, task);
}

double quantize_head_kl(const float *scale, uint32_t n_row, const float *norm, uint32_t n_col)
{
    double input = 0, largest = 0;
    for (uint32_t i = 0; i < n_col; i++) input += (double)norm[i] * (double)norm[i];
    for (uint32_t r = 0; r < n_row; r++) largest = fmax(largest, (double)scale[r]);
    return 0.5 * input * largest * largest / 12;
}

static fathom_err estimate(const struct head_task *task, const struct tensor_view *norm,
                           double *out, fathom_diag *d)
{
    ASSERT(norm->n_row == 1 && norm->n_col == task->in->n_col);
    float *weight = mem_alloc_array(norm->n_col, sizeof *weight);
    if (!weight) FAIL(d, FATHOM_ENOMEM, "no memory for a norm of %u values", norm->n_col);
    tensor_view_row(norm, 0, 0, norm->n_col, weight);
    *out = quantize_head_kl(task->scales, task->in->n_row, weight, norm->n_col);
    mem_free(weight);
    return FATHOM_OK;
}

static fathom_err to_int8(struct quantizer *q, enum head_form *form, const struct tensor_view *norm,
                          struct tensor_view *v, double *kl, fathom_diag *d)
{
    const size_t n_code = quantize_aligned((size_t)v->n_row * v->n_col);
    struct tensor_view in = *v;
    TRY(quantize_reserve(q, n_code + v->n_row * sizeof(float), d));
    struct head_task task = {.in = &in, .scales = (float *)(void *)(q->memory + n_code)};
    run_rows(q, &task);
    TRY(estimate(&task, norm, kl, d));
    if (*form == HEAD_AUTO) *form = *kl <= HEAD_KL_BOUND ? HEAD_INT8 : HEAD_STORED;
    if (*form == HEAD_STORED) return FATHOM_OK;
    task.codes = (int8_t *)q->memory;
    run_rows(q, &task);
    *v = (struct tensor_view){.data = task.codes,
                              .dtype = DTYPE_I8,
                              .n_row = in.n_row,
                              .n_col = in.n_col,
                              .row_stride = in.n_col,
                              .scale = task.scales,
                              .scale_stride = 1,
                              .scale_block_row = 1,
                              .scale_block_col = TENSOR_SCALE_WHOLE};
    return FATHOM_OK;
}

fathom_err quantize_head(struct quantizer *q, enum head_form *form, const struct tensor_view *norm,
                         struct tensor_view *v, double *kl, fathom_diag *d)
{
    *kl = 0;
    if (!quantize_is_wide(v) && (v->data || v->source || *form == HEAD_AUTO)) *form = HEAD_STORED;
    if (*form == HEAD_STORED) return FATHOM_OK;
    if (!v->data) {
        v->dtype = *form == HEAD_INT8 ? DTYPE_I8 : DTYPE_F8_E4M3; /* made as such */
        return FATHOM_OK;
    }
    if (*form != HEAD_FP8) return to_int8(q, form, norm, v, kl, d);
    TRY(quantize_reserve(q, quantize_bytes(v), d));
    quantize_to_blocks(q, v);
    return FATHOM_OK;
}
