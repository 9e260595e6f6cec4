/* moments.c - sums of products of inputs, and their factor */
#include "quantize/moments.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/assert.h"
#include "base/mem.h"
#include "base/thread.h"

enum { BLOCK = 64 }; /* rows of what a thread does at a time, and columns of a step */

static void load_tile(float tile[TILE_ROWS][TILE_COLS], const float *from, size_t stride)
{
    for (int i = 0; i < TILE_ROWS; i++) {
        memcpy(tile[i], from + (size_t)i * stride, sizeof tile[i]);
    }
}

static void store_tile(float *to, size_t stride, const float tile[TILE_ROWS][TILE_COLS])
{
    for (int i = 0; i < TILE_ROWS; i++) {
        memcpy(to + (size_t)i * stride, tile[i], sizeof tile[i]);
    }
}

static uint32_t block_rows(uint32_t row0, uint32_t n)
{
    return n - row0 < BLOCK ? n - row0 : BLOCK;
}

/* ---- sums ------------------------------------------------------------------------------------ */

struct adding {
    float *m;
    uint32_t n, n_row;
    const float *panels;
};

static const float *panel_of(const struct adding *x, uint32_t col)
{
    return x->panels + (size_t)(col / TILE_COLS) * x->n_row * TILE_COLS;
}

static void add_block(void *arg, size_t i_item, size_t n_item, unsigned worker)
{
    const struct adding *x = arg;
    const size_t stride = moments_stride(x->n);
    const uint32_t row0 = (uint32_t)i_item * BLOCK, end = row0 + block_rows(row0, x->n);
    float tile[TILE_ROWS][TILE_COLS];
    (void)n_item;
    (void)worker;
    for (uint32_t col = 0; col < end; col += TILE_COLS) {
        const uint32_t first = col > row0 ? col : row0;
        for (uint32_t row = first; row < end; row += TILE_ROWS) {
            float *at = x->m + row * stride + col;
            load_tile(tile, at, stride);
            tile_add(tile, panel_of(x, row) + row % TILE_COLS, TILE_COLS, 1, panel_of(x, col),
                     TILE_COLS, x->n_row);
            store_tile(at, stride, (const float(*)[TILE_COLS])tile);
        }
    }
}

void moments_add(struct thread_pool *pool, float *m, uint32_t n, const float *panels,
                 uint32_t n_row)
{
    struct adding x = {m, n, n_row, panels};
    ASSERT(n > 0 && n % MOMENTS_ALIGN == 0);
    thread_pool_run(pool, (n + BLOCK - 1) / BLOCK, add_block, &x);
}

/* ---- order ----------------------------------------------------------------------------------- */

struct ranked {
    float moment;
    uint32_t input;
};

static int compare_ranked(const void *a, const void *b)
{
    const struct ranked *x = a, *y = b;
    if (x->moment != y->moment) return x->moment < y->moment ? -1 : 1;
    return x->input < y->input ? -1 : 1;
}

fathom_err moments_order(uint32_t *order, const float *m, uint32_t n)
{
    struct ranked *list = mem_alloc_array(n, sizeof *list);
    if (!list) return FATHOM_ENOMEM;
    for (uint32_t i = 0; i < n; i++) {
        list[i] = (struct ranked){m[i * moments_stride(n) + i], i};
    }
    qsort(list, n, sizeof *list, compare_ranked);
    for (uint32_t i = 0; i < n; i++) order[i] = list[i].input;
    mem_free(list);
    return FATHOM_OK;
}

/* ---- factor ---------------------------------------------------------------------------------- */

struct factoring {
    float *f;
    const float *m;
    uint32_t n;
    const uint32_t *order;
    float damp;    /* added to the diagonal */
    float *panels; /* [BLOCK / 16][col0][16] rows of the step's block, turned */
    uint32_t col0, n_col;
};

static void copy_block(void *arg, size_t i_item, size_t n_item, unsigned worker)
{
    const struct factoring *x = arg;
    const size_t stride = moments_stride(x->n);
    const uint32_t row0 = (uint32_t)i_item * BLOCK, end = row0 + block_rows(row0, x->n);
    (void)n_item;
    (void)worker;
    for (uint32_t i = row0; i < end; i++) {
        const size_t a = x->order[i];
        for (uint32_t j = 0; j <= i; j++) {
            const size_t b = x->order[j];
            x->f[i * stride + j] = a > b ? x->m[a * stride + b] : x->m[b * stride + a];
        }
        x->f[i * stride + i] += x->damp;
    }
}

/* Rows of a block of the step's columns, less what the columns before stand for. */
static void subtract_block(void *arg, size_t i_item, size_t n_item, unsigned worker)
{
    const struct factoring *x = arg;
    const size_t stride = moments_stride(x->n);
    const uint32_t row0 = x->col0 + (uint32_t)i_item * BLOCK;
    const uint32_t end = row0 + block_rows(row0, x->n);
    (void)n_item;
    (void)worker;
    for (uint32_t j = 0; j < x->n_col; j += TILE_COLS) {
        const float *panel = x->panels + (size_t)j * x->col0;
        for (uint32_t i = row0; i < end; i += TILE_ROWS) {
            float sum[TILE_ROWS][TILE_COLS] = {{0}};
            tile_add(sum, x->f + i * stride, 1, stride, panel, TILE_COLS, x->col0);
            for (int r = 0; r < TILE_ROWS; r++) {
                float *at = x->f + (i + (size_t)r) * stride + x->col0 + j;
                for (int c = 0; c < TILE_COLS; c++) at[c] -= sum[r][c];
            }
        }
    }
}

/* The step's columns of a row below its square block, once that is factored. */
static void divide_row(const struct factoring *x, float *row, uint32_t n_col)
{
    const size_t stride = moments_stride(x->n);
    for (uint32_t j = 0; j < n_col; j++) {
        const float *other = x->f + (x->col0 + j) * stride + x->col0;
        float sum = row[j];
        for (uint32_t k = 0; k < j; k++) sum -= row[k] * other[k];
        row[j] = sum / other[j];
    }
}

static void divide_block(void *arg, size_t i_item, size_t n_item, unsigned worker)
{
    const struct factoring *x = arg;
    const uint32_t row0 = x->col0 + x->n_col + (uint32_t)i_item * BLOCK;
    const uint32_t end = row0 + block_rows(row0, x->n);
    (void)n_item;
    (void)worker;
    for (uint32_t i = row0; i < end; i++) {
        divide_row(x, x->f + i * moments_stride(x->n) + x->col0, x->n_col);
    }
}

static bool factor_square(const struct factoring *x)
{
    const size_t stride = moments_stride(x->n);
    for (uint32_t i = 0; i < x->n_col; i++) {
        float *row = x->f + (x->col0 + i) * stride + x->col0;
        divide_row(x, row, i);
        float rest = row[i];
        for (uint32_t k = 0; k < i; k++) rest -= row[k] * row[k];
        if (!(rest > 0) || !isfinite(rest)) return false;
        row[i] = sqrtf(rest);
    }
    return true;
}

static void turn_rows(const struct factoring *x)
{
    const size_t stride = moments_stride(x->n);
    for (uint32_t j = 0; j < x->n_col; j++) {
        const float *row = x->f + (x->col0 + j) * stride;
        float *to = x->panels + (size_t)(j - j % TILE_COLS) * x->col0 + j % TILE_COLS;
        for (uint32_t k = 0; k < x->col0; k++) to[(size_t)k * TILE_COLS] = row[k];
    }
}

bool moments_factor(struct thread_pool *pool, float *factor, const float *m, uint32_t n,
                    const uint32_t *order, float damp, float *panels)
{
    struct factoring x = {.f = factor, .m = m, .n = n, .order = order, .panels = panels};
    const size_t n_block = (n + BLOCK - 1) / BLOCK;
    double trace = 0;
    ASSERT(n > 0 && n % MOMENTS_ALIGN == 0);
    for (uint32_t i = 0; i < n; i++) trace += (double)m[i * moments_stride(n) + i];
    x.damp = (float)(damp * trace / n);
    if (trace <= 0) x.damp = 1; /* no input is ever anything but 0 */
    thread_pool_run(pool, n_block, copy_block, &x);
    for (size_t b = 0; b < n_block; b++) {
        x.col0 = (uint32_t)b * BLOCK;
        x.n_col = block_rows(x.col0, n);
        turn_rows(&x);
        thread_pool_run(pool, n_block - b, subtract_block, &x);
        if (!factor_square(&x)) return false;
        if (b + 1 < n_block) thread_pool_run(pool, n_block - b - 1, divide_block, &x);
    }
    return true;
}
