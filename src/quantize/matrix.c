/* matrix.c - one matrix to the bytes of its new tensors */
#include "quantize/matrix.h"

#include <math.h>
#include <string.h>

#include "base/assert.h"
#include "base/fail.h"
#include "base/mem.h"
#include "base/thread.h"

enum {
    ITEM_ROWS = 32, /* of what a thread does at a time; a multiple of 8, for words of zeros */
    BLOCK = TENSOR_SCALE_BLOCK,
};

/* What a thread works in. */
struct matrix_worker {
    float *rows;    /* [worker_rows][max_col] */
    uint8_t *codes; /* [max_col]; with feedback of as many rows */
    /* METHOD_GPTQ, as feedback_codes takes them */
    struct codes_scale *scales;
    float *sums, *differences;
};

static bool is_block_fp8(const struct quant_scheme *s)
{
    return s->code == CODE_E4M3 && s->is_block;
}

static uint32_t item_rows(const struct quant_scheme *s)
{
    if (s->method == METHOD_GPTQ) return FEEDBACK_ROWS;
    return is_block_fp8(s) ? BLOCK : ITEM_ROWS;
}

static uint32_t worker_rows(const struct quant_scheme *s)
{
    if (s->method == METHOD_GPTQ) return FEEDBACK_ROWS;
    return is_block_fp8(s) ? BLOCK : 1;
}

/* Inputs of a row that share a scale, of int codes. */
static uint32_t group_of(const struct quant_scheme *s, uint32_t n_col)
{
    return s->code == CODE_U4 ? s->group : n_col;
}

static size_t most_items(const struct plan *plan)
{
    size_t most = 1;
    for (size_t i = 0; i < plan->n_matrix; i++) {
        const uint32_t rows = item_rows(&plan->scheme);
        size_t n = (plan->matrices[i].view->n_row + rows - 1) / rows;
        if (n > most) most = n;
    }
    return most;
}

uint64_t matrix_room_bytes(const struct plan *plan, unsigned n_thread)
{
    const uint32_t n_row = worker_rows(&plan->scheme);
    uint64_t row = (uint64_t)plan->max_col * (4 * n_row + 1);
    if (plan->scheme.method == METHOD_GPTQ) {
        const uint64_t n_scale = plan->scheme.code == CODE_U4 ? plan->max_col / 32 : 1;
        row += (uint64_t)plan->max_col * (n_row - 1 + 4 * n_row);
        row += n_scale * n_row * sizeof(struct codes_scale) + 4 * FEEDBACK_BLOCK * n_row;
    }
    return plan->matrix_bytes + n_thread * row;
}

static bool worker_init(struct matrix_worker *w, const struct plan *plan)
{
    const size_t n_row = worker_rows(&plan->scheme), n = plan->max_col;
    w->rows = mem_alloc_array(n * n_row, sizeof *w->rows);
    if (plan->scheme.method != METHOD_GPTQ) {
        w->codes = mem_alloc(n);
        return w->rows && w->codes;
    }
    const size_t n_scale = plan->scheme.code == CODE_U4 ? n / 32 : 1;
    w->codes = mem_alloc(n * n_row);
    w->scales = mem_alloc_array(n_scale * n_row, sizeof *w->scales);
    w->sums = mem_alloc_array(n * n_row, sizeof *w->sums);
    w->differences = mem_alloc_array(n_row * FEEDBACK_BLOCK, sizeof *w->differences);
    return w->rows && w->codes && w->scales && w->sums && w->differences;
}

fathom_err matrix_room_init(struct matrix_room *r, const struct plan *plan,
                            struct thread_pool *pool, unsigned n_thread, fathom_diag *d)
{
    *r = (struct matrix_room){.pool = pool, .n_thread = n_thread};
    r->bytes = mem_alloc(plan->matrix_bytes);
    r->workers = mem_calloc(n_thread, sizeof *r->workers);
    r->n_error = most_items(plan);
    r->errors = mem_alloc_array(r->n_error, sizeof *r->errors);
    bool ok = r->bytes && r->workers && r->errors;
    for (unsigned i = 0; ok && i < n_thread; i++) ok = worker_init(&r->workers[i], plan);
    if (ok) return FATHOM_OK;
    matrix_room_fini(r);
    FAIL(d, FATHOM_ENOMEM, "no memory for a matrix of %llu bytes",
         (unsigned long long)plan->matrix_bytes);
}

void matrix_room_fini(struct matrix_room *r)
{
    for (unsigned i = 0; r->workers && i < r->n_thread; i++) {
        mem_free(r->workers[i].rows);
        mem_free(r->workers[i].codes);
        mem_free(r->workers[i].scales);
        mem_free(r->workers[i].sums);
        mem_free(r->workers[i].differences);
    }
    mem_free(r->workers);
    mem_free(r->errors);
    mem_free(r->bytes);
    memset(r, 0, sizeof *r);
}

/* ---- blocks of rows -------------------------------------------------------------------------- */

struct matrix_task {
    const struct matrix_order *order;
    struct matrix_room *room;
    uint8_t *codes, *scales, *zeros;
};

/* A row as it is to be quantized; false: an element of it is not finite. */
static bool read_row(const struct matrix_order *o, uint32_t row, float *out)
{
    const uint32_t n = o->view->n_col;
    tensor_view_row(o->view, row, 0, n, out);
    for (uint32_t c = 0; o->col_factor && c < n; c++) out[c] *= o->col_factor[c];
    for (uint32_t c = 0; o->row_factor && c < n; c++) out[c] *= o->row_factor[row];
    return !isnan(codes_largest(out, n));
}

static void put_words(uint8_t *to, const uint8_t *codes, uint32_t n)
{
    for (uint32_t i = 0; i < n; i += 8) {
        uint32_t word = 0;
        for (uint32_t k = 0; k < 8; k++) word |= (uint32_t)codes[i + k] << 4 * k;
        memcpy(to + i / 2, &word, sizeof word);
    }
}

static void put_scale(const struct matrix_task *t, size_t i, float scale)
{
    if (t->order->scheme->code == CODE_U4) {
        uint16_t half = bf16_from_f32(scale);
        memcpy(t->scales + i * sizeof half, &half, sizeof half);
    } else {
        memcpy(t->scales + i * sizeof scale, &scale, sizeof scale);
    }
}

/* Scales of a row, stored and in `scales` where that is not NULL, and the codes nearest to it. */
static void scale_row(const struct matrix_task *t, uint32_t row, const float *values,
                      uint8_t *codes, struct codes_scale *scales, struct codes_error *e)
{
    const struct quant_scheme *s = t->order->scheme;
    const uint32_t n_col = t->order->view->n_col, group = group_of(s, n_col);
    const uint32_t n_group = n_col / group;
    const bool searches = s->method != METHOD_RTN;
    for (uint32_t g = 0; g < n_group; g++) {
        const uint32_t c = g * group;
        const float *importance = t->order->importance ? t->order->importance + c : NULL;
        const struct codes_scale scale =
            s->code == CODE_U4
                ? codes_u4(values + c, importance, group, s->asymmetric, searches, codes + c, e)
                : codes_i8(values + c, importance, group, searches, (int8_t *)codes + c, e);
        put_scale(t, (size_t)row * n_group + g, scale.scale);
        if (scales) scales[g] = scale;
        if (!s->asymmetric) continue;
        uint8_t *word = t->zeros + ((size_t)(row / 8) * n_group + g) * 4;
        word[row % 8 / 2] |= (uint8_t)(scale.zero << (row % 2 ? 4 : 0));
    }
}

static void put_codes(const struct matrix_task *t, uint32_t row, const uint8_t *codes)
{
    const uint32_t n_col = t->order->view->n_col;
    if (t->order->scheme->code == CODE_U4) {
        put_words(t->codes + (size_t)row * n_col / 2, codes, n_col);
    } else {
        memcpy(t->codes + (size_t)row * n_col, codes, n_col);
    }
}

static void do_e4m3_row(const struct matrix_task *t, uint32_t row, const struct matrix_worker *w,
                        struct codes_error *e)
{
    const uint32_t n_col = t->order->view->n_col;
    const float scale = codes_e4m3_scale(codes_largest(w->rows, n_col));
    codes_e4m3(w->rows, n_col, scale, t->codes + (size_t)row * n_col, e);
    put_scale(t, row, scale);
}

static void do_row(const struct matrix_task *t, uint32_t row, const struct matrix_worker *w,
                   struct codes_error *e)
{
    if (t->order->scheme->code == CODE_E4M3) {
        do_e4m3_row(t, row, w, e);
        return;
    }
    scale_row(t, row, w->rows, w->codes, NULL, e);
    put_codes(t, row, w->codes);
}

/* Rows that the worker has read, with feedback. Their scales are those without it. */
static void do_feedback(const struct matrix_task *t, uint32_t row0, uint32_t n_row,
                        const struct matrix_worker *w, struct codes_error *e)
{
    const struct quant_scheme *s = t->order->scheme;
    const uint32_t n_col = t->order->view->n_col, group = group_of(s, n_col);
    const bool is_u4 = s->code == CODE_U4;
    struct codes_error without = {0};
    for (uint32_t r = 0; r < n_row; r++) {
        scale_row(t, row0 + r, w->rows + (size_t)r * n_col, w->codes,
                  w->scales + (size_t)r * (n_col / group), &without);
    }
    const struct feedback_rows rows = {.n_row = n_row,
                                       .n_col = n_col,
                                       .w = w->rows,
                                       .group = group,
                                       .scales = w->scales,
                                       .is_u4 = is_u4};
    e->n_clipped += feedback_codes(&t->order->feedback, &rows, w->sums, w->differences, w->codes);
    without.n_clipped = 0;
    without.error = 0;
    codes_error_add(e, &without);
    e->error += feedback_error(&rows, w->codes);
    for (uint32_t r = 0; r < n_row; r++) put_codes(t, row0 + r, w->codes + (size_t)r * n_col);
}

/* A row of blocks of 128 x 128; the worker's rows are read. */
static void do_blocks(const struct matrix_task *t, uint32_t row0, uint32_t n_row,
                      const struct matrix_worker *w, struct codes_error *e)
{
    const uint32_t n_col = t->order->view->n_col, n_block = (n_col + BLOCK - 1) / BLOCK;
    for (uint32_t b = 0; b < n_block; b++) {
        const uint32_t c = b * BLOCK, n = n_col - c < BLOCK ? n_col - c : BLOCK;
        float largest = 0;
        for (uint32_t r = 0; r < n_row; r++) {
            largest = fmaxf(largest, codes_largest(w->rows + (size_t)r * n_col + c, n));
        }
        const float scale = codes_e4m3_scale(largest);
        for (uint32_t r = 0; r < n_row; r++) {
            codes_e4m3(w->rows + (size_t)r * n_col + c, n, scale,
                       t->codes + (size_t)(row0 + r) * n_col + c, e);
        }
        put_scale(t, (size_t)(row0 / BLOCK) * n_block + b, scale);
    }
}

/* One block of rows. An error below 0 says that its row -1 - error is not finite. */
static void do_item(void *arg, size_t i_item, size_t n_item, unsigned worker)
{
    const struct matrix_task *t = arg;
    const struct quant_scheme *s = t->order->scheme;
    const struct matrix_worker *w = &t->room->workers[worker];
    const uint32_t n_col = t->order->view->n_col, step = item_rows(s);
    const uint32_t row0 = (uint32_t)i_item * step;
    const uint32_t n_row =
        t->order->view->n_row - row0 < step ? t->order->view->n_row - row0 : step;
    const bool has_feedback = t->order->feedback.factor != NULL;
    const bool is_block = has_feedback || is_block_fp8(s);
    struct codes_error e = {0};
    ASSERT(worker < t->room->n_thread && n_item <= t->room->n_error);
    for (uint32_t r = 0; r < n_row; r++) {
        if (!read_row(t->order, row0 + r, w->rows + (is_block ? (size_t)r * n_col : 0))) {
            t->room->errors[i_item] = (struct codes_error){.error = -1.0 - (row0 + r)};
            return;
        }
        if (!is_block) do_row(t, row0 + r, w, &e);
    }
    if (has_feedback) do_feedback(t, row0, n_row, w, &e);
    if (is_block_fp8(s)) do_blocks(t, row0, n_row, w, &e);
    t->room->errors[i_item] = e;
}

static fathom_err name_element(const struct matrix_room *room, const struct matrix_order *o,
                               uint32_t row, fathom_diag *d)
{
    float *values = room->workers[0].rows;
    uint32_t c = 0;
    (void)read_row(o, row, values);
    while (c + 1 < o->view->n_col && isfinite(values[c])) c++;
    FAIL(d, FATHOM_EFORMAT,
         "%s: element [%u, %u] is %g, needed is a finite number: the source is broken", o->name,
         row, c, (double)values[c]);
}

fathom_err matrix_quantize(struct matrix_room *room, const struct matrix_order *order,
                           struct codes_error *error, fathom_diag *d)
{
    const struct tensor_view *v = order->view;
    const struct plan_parts parts = plan_parts_of(order->scheme, v->n_row, v->n_col);
    const uint32_t rows = item_rows(order->scheme);
    const size_t n_item = (v->n_row + rows - 1) / rows;
    struct matrix_task t = {.order = order, .room = room, .codes = room->bytes};
    t.scales = t.codes + parts.codes;
    t.zeros = t.scales + parts.scales;
    memset(t.zeros, 0, parts.zeros);
    if (parts.shape) {
        const int64_t shape[2] = {v->n_row, v->n_col};
        static_assert(sizeof shape == 16, "weight_shape");
        memcpy(t.zeros + parts.zeros, shape, sizeof shape);
    }
    thread_pool_run(room->pool, n_item, do_item, &t);
    for (size_t i = 0; i < n_item; i++) {
        const struct codes_error *e = &room->errors[i];
        if (e->error < 0) return name_element(room, order, (uint32_t)(-1.0 - e->error), d);
        codes_error_add(error, e);
    }
    return FATHOM_OK;
}
