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
    float *rows;    /* [1 or BLOCK][max_col] */
    uint8_t *codes; /* [max_col] */
};

static uint32_t item_rows(const struct quant_scheme *s)
{
    return s->code == CODE_E4M3 && s->is_block ? BLOCK : ITEM_ROWS;
}

static uint32_t worker_rows(const struct quant_scheme *s)
{
    return s->code == CODE_E4M3 && s->is_block ? BLOCK : 1;
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
    const uint64_t row = (uint64_t)plan->max_col * (4 * worker_rows(&plan->scheme) + 1);
    return plan->matrix_bytes + n_thread * row;
}

fathom_err matrix_room_init(struct matrix_room *r, const struct plan *plan,
                            struct thread_pool *pool, unsigned n_thread, fathom_diag *d)
{
    const size_t n_value = (size_t)plan->max_col * worker_rows(&plan->scheme);
    *r = (struct matrix_room){.pool = pool, .n_thread = n_thread};
    r->bytes = mem_alloc(plan->matrix_bytes);
    r->workers = mem_calloc(n_thread, sizeof *r->workers);
    r->n_error = most_items(plan);
    r->errors = mem_alloc_array(r->n_error, sizeof *r->errors);
    bool ok = r->bytes && r->workers && r->errors;
    for (unsigned i = 0; ok && i < n_thread; i++) {
        r->workers[i].rows = mem_alloc_array(n_value, sizeof(float));
        r->workers[i].codes = mem_alloc(plan->max_col);
        ok = r->workers[i].rows && r->workers[i].codes;
    }
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

static void do_u4_row(const struct matrix_task *t, uint32_t row, const struct matrix_worker *w,
                      struct codes_error *e)
{
    const struct quant_scheme *s = t->order->scheme;
    const uint32_t n_col = t->order->view->n_col, n_group = n_col / s->group;
    for (uint32_t g = 0; g < n_group; g++) {
        const uint32_t c = g * s->group;
        const float *importance = t->order->importance ? t->order->importance + c : NULL;
        const struct codes_scale scale = codes_u4(w->rows + c, importance, s->group, s->asymmetric,
                                                  s->method != METHOD_RTN, w->codes + c, e);
        put_scale(t, (size_t)row * n_group + g, scale.scale);
        if (!s->asymmetric) continue;
        uint8_t *word = t->zeros + ((size_t)(row / 8) * n_group + g) * 4;
        word[row % 8 / 2] |= (uint8_t)(scale.zero << (row % 2 ? 4 : 0));
    }
    put_words(t->codes + (size_t)row * n_col / 2, w->codes, n_col);
}

static void do_byte_row(const struct matrix_task *t, uint32_t row, const struct matrix_worker *w,
                        struct codes_error *e)
{
    const struct quant_scheme *s = t->order->scheme;
    const uint32_t n_col = t->order->view->n_col;
    uint8_t *to = t->codes + (size_t)row * n_col;
    if (s->code == CODE_I8) {
        const struct codes_scale scale = codes_i8(w->rows, t->order->importance, n_col,
                                                  s->method != METHOD_RTN, (int8_t *)to, e);
        put_scale(t, row, scale.scale);
        return;
    }
    const float scale = codes_e4m3_scale(codes_largest(w->rows, n_col));
    codes_e4m3(w->rows, n_col, scale, to, e);
    put_scale(t, row, scale);
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
    const bool is_block = worker_rows(s) > 1;
    struct codes_error e = {0, 0};
    ASSERT(worker < t->room->n_thread && n_item <= t->room->n_error);
    for (uint32_t r = 0; r < n_row; r++) {
        if (!read_row(t->order, row0 + r, w->rows + (is_block ? (size_t)r * n_col : 0))) {
            t->room->errors[i_item] = (struct codes_error){.error = -1.0 - (row0 + r)};
            return;
        }
        if (is_block) continue;
        if (s->code == CODE_U4) do_u4_row(t, row0 + r, w, &e);
        if (s->code != CODE_U4) do_byte_row(t, row0 + r, w, &e);
    }
    if (is_block) do_blocks(t, row0, n_row, w, &e);
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
