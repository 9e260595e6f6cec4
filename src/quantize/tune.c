/* tune.c - what calibration says of a matrix
 *
 * A tuner holds the figures of one block at a time: those of the block that was asked for last.
 */
#include "quantize/tune.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/assert.h"
#include "base/fail.h"
#include "base/mem.h"
#include "base/thread.h"
#include "quantize/calibration.h"
#include "quantize/down_scale.h"
#include "quantize/moments.h"

enum {
    CHUNK = 256, /* tokens at a time; a multiple of TILE_COLS */
    DAMPS = 6,   /* attempts to factor, each with ten times the damping */
};

enum role { ROLE_GATE, ROLE_UP, ROLE_DOWN, N_ROLE };

/* A matrix and the block that it belongs to. */
struct member {
    uint32_t layer, expert;
    enum quant_target target;
    enum role role;
    size_t i_matrix;
};

/* Inputs of a matrix, over the block's rows. */
struct inputs {
    uint32_t n;
    float *squares; /* [n] their sums */
    float *panels;  /* [n / 16][CHUNK][16] those of a chunk */
    float *moments; /* METHOD_GPTQ, as the two below */
    float *factor;
    uint32_t *order; /* [n] */
};

struct tuner {
    const struct plan *plan;
    const char *dir;
    struct thread_pool *pool;
    unsigned n_thread;
    uint64_t n_row;

    struct member *members; /* [n_member] by block, then role */
    size_t n_member;
    struct calibration_layer layer;
    uint32_t i_layer; /* of `layer`, while it is open */

    const struct member *block; /* N_ROLE members whose figures these are; NULL: none */
    enum tuned how;
    uint32_t *picked; /* [n_picked] rows of the layer */
    uint32_t n_picked;
    struct inputs x, h;     /* of gate and up; of down */
    float *turned;          /* [CHUNK / 16][hidden][16] the chunk, turned */
    float *rows;            /* [n_thread][2][TILE_ROWS][hidden] of gate and up */
    float *scale, *inverse; /* METHOD_SCALE: [inner] of down's columns and up's rows */
    float *factor_panels;   /* for moments_factor */
};

/* ---- blocks ---------------------------------------------------------------------------------- */

static bool role_of(const struct plan_matrix *m, enum role *role)
{
    static const char *const names[] = {".gate_proj", ".up_proj", ".down_proj"};
    const unsigned in_blocks = TARGET_EXPERTS | TARGET_SHARED | TARGET_DENSE;
    const char *last = strrchr(m->name, '.');
    if (!m->is_quantized || m->is_draft || !(m->target & in_blocks) || !last) return false;
    for (int r = 0; r < N_ROLE; r++) {
        if (strcmp(last, names[r]) != 0) continue;
        *role = (enum role)r;
        return true;
    }
    return false;
}

static int compare_blocks(const struct member *x, const struct member *y)
{
    if (x->layer != y->layer) return x->layer < y->layer ? -1 : 1;
    if (x->target != y->target) return x->target < y->target ? -1 : 1;
    if (x->expert != y->expert) return x->expert < y->expert ? -1 : 1;
    return 0;
}

static int compare_members(const void *a, const void *b)
{
    const struct member *x = a, *y = b;
    const int order = compare_blocks(x, y);
    return order ? order : (int)x->role - (int)y->role;
}

static int compare_member_block(const void *a, const void *b)
{
    return compare_blocks(a, b);
}

static fathom_err list_members(struct tuner *t, fathom_diag *d)
{
    const struct plan *p = t->plan;
    t->members = mem_alloc_array(p->n_matrix + 1, sizeof *t->members);
    if (!t->members) FAIL(d, FATHOM_ENOMEM, "no memory for a list of %zu matrices", p->n_matrix);
    for (size_t i = 0; i < p->n_matrix; i++) {
        const struct plan_matrix *m = &p->matrices[i];
        struct member *to = &t->members[t->n_member];
        *to = (struct member){.layer = m->layer, .target = m->target, .i_matrix = i};
        to->expert = m->target == TARGET_EXPERTS ? m->expert : 0;
        if (!role_of(m, &to->role)) continue;
        t->n_member++;
        if (m->view->n_col % MOMENTS_ALIGN == 0) continue;
        FAIL(d, FATHOM_EINVAL, "%s has %u inputs, methods that calibrate need a multiple of %d",
             m->name, m->view->n_col, MOMENTS_ALIGN);
    }
    if (t->n_member) qsort(t->members, t->n_member, sizeof *t->members, compare_members);
    ASSERT(t->n_member % N_ROLE == 0);
    return FATHOM_OK;
}

/* The first of the block's three members; NULL: the matrix is in no block. */
static const struct member *block_of(const struct tuner *t, size_t i_matrix)
{
    const struct plan_matrix *m = &t->plan->matrices[i_matrix];
    struct member key = {.layer = m->layer, .target = m->target};
    key.expert = m->target == TARGET_EXPERTS ? m->expert : 0;
    enum role role;
    if (!role_of(m, &role)) return NULL;
    const struct member *found =
        bsearch(&key, t->members, t->n_member, sizeof *t->members, compare_member_block);
    ASSERT(found);
    const struct member *first = found - found->role;
    ASSERT(first[role].i_matrix == i_matrix);
    return first;
}

static const struct tensor_view *view_of(const struct tuner *t, enum role role)
{
    return t->plan->matrices[t->block[role].i_matrix].view;
}

/* ---- memory ---------------------------------------------------------------------------------- */

struct extent {
    uint32_t hidden, inner;
};

static struct extent extent_of(const struct plan *p)
{
    struct extent e = {0, 0};
    enum role role;
    for (size_t i = 0; i < p->n_matrix; i++) {
        const struct plan_matrix *m = &p->matrices[i];
        if (!role_of(m, &role)) continue;
        uint32_t *to = role == ROLE_DOWN ? &e.inner : &e.hidden;
        if (m->view->n_col > *to) *to = m->view->n_col;
    }
    return e;
}

static uint64_t inputs_bytes(uint64_t n, bool has_moments)
{
    const uint64_t moments = 2 * n * (n + TILE_COLS) + n;
    return 4 * (n + n * CHUNK + (has_moments ? moments : 0));
}

static uint64_t picked_rows(uint64_t n_row)
{
    return n_row < TUNE_ROWS ? n_row : TUNE_ROWS;
}

uint64_t tuner_bytes(const struct plan *p, uint64_t n_row, unsigned n_thread)
{
    const struct extent e = extent_of(p);
    const bool gptq = p->scheme.method == METHOD_GPTQ;
    const uint32_t widest = e.hidden > e.inner ? e.hidden : e.inner;
    const uint64_t rows = (uint64_t)n_thread * 2 * TILE_ROWS * e.hidden;
    const uint64_t values = (uint64_t)CHUNK * e.hidden + rows + 2 * (uint64_t)e.inner;
    return inputs_bytes(e.hidden, gptq) + inputs_bytes(e.inner, gptq) + 4 * values +
           4 * (picked_rows(n_row) + (gptq ? moments_panel_elements(widest) : 0));
}

static bool inputs_init(struct inputs *in, uint32_t n, bool has_moments)
{
    in->n = n;
    in->squares = mem_alloc_array(n, sizeof(float));
    in->panels = mem_alloc_array((size_t)n * CHUNK, sizeof(float));
    if (!in->squares || !in->panels) return false;
    if (!has_moments) return true;
    in->moments = mem_alloc_array(n, moments_stride(n) * sizeof(float));
    in->factor = mem_alloc_array(n, moments_stride(n) * sizeof(float));
    in->order = mem_alloc_array(n, sizeof *in->order);
    return in->moments && in->factor && in->order;
}

static void inputs_fini(struct inputs *in)
{
    mem_free(in->squares);
    mem_free(in->panels);
    mem_free(in->moments);
    mem_free(in->factor);
    mem_free(in->order);
}

static bool make_room(struct tuner *t)
{
    const struct extent e = extent_of(t->plan);
    const bool gptq = t->plan->scheme.method == METHOD_GPTQ;
    const uint32_t widest = e.hidden > e.inner ? e.hidden : e.inner;
    bool ok = inputs_init(&t->x, e.hidden, gptq);
    ok = inputs_init(&t->h, e.inner, gptq) && ok;
    t->turned = mem_alloc_array((size_t)e.hidden * CHUNK, sizeof(float));
    t->rows = mem_alloc_array((size_t)t->n_thread * 2 * TILE_ROWS, e.hidden * sizeof(float));
    t->scale = mem_alloc_array(e.inner, sizeof(float));
    t->inverse = mem_alloc_array(e.inner, sizeof(float));
    t->picked = mem_alloc_array((size_t)picked_rows(t->n_row), sizeof *t->picked);
    if (gptq) t->factor_panels = mem_alloc_array(moments_panel_elements(widest), sizeof(float));
    ok = ok && (t->factor_panels || !gptq);
    return ok && t->turned && t->rows && t->scale && t->inverse && t->picked;
}

fathom_err tuner_create(struct tuner **out, const struct plan *plan, const char *dir,
                        uint64_t n_row, struct thread_pool *pool, unsigned n_thread, fathom_diag *d)
{
    ASSERT(quant_method_calibrates(plan->scheme.method) && n_row > 0);
    *out = NULL;
    struct tuner *t = mem_calloc(1, sizeof *t);
    if (!t) FAIL(d, FATHOM_ENOMEM, "no memory for calibration");
    t->plan = plan;
    t->dir = dir;
    t->n_row = n_row;
    t->pool = pool;
    t->n_thread = n_thread;
    fathom_err err = list_members(t, d);
    if (!err && t->n_member > 0 && !make_room(t)) {
        err = diag_fail(d, FATHOM_ENOMEM, "no memory for calibration: it takes %llu bytes",
                        (unsigned long long)tuner_bytes(plan, n_row, n_thread));
    }
    if (err) {
        tuner_destroy(t);
        return err;
    }
    *out = t;
    return FATHOM_OK;
}

void tuner_destroy(struct tuner *t)
{
    if (!t) return;
    calibration_close(&t->layer);
    inputs_fini(&t->x);
    inputs_fini(&t->h);
    mem_free(t->turned);
    mem_free(t->rows);
    mem_free(t->scale);
    mem_free(t->inverse);
    mem_free(t->picked);
    mem_free(t->factor_panels);
    mem_free(t->members);
    mem_free(t);
}

/* ---- rows ------------------------------------------------------------------------------------ */

static fathom_err open_layer(struct tuner *t, fathom_diag *d)
{
    const struct member *m = t->block;
    if (t->layer.rows && t->i_layer == m->layer) return FATHOM_OK;
    calibration_close(&t->layer);
    const struct calibration_shape shape = {.n_row = t->n_row,
                                            .hidden = view_of(t, ROLE_GATE)->n_col,
                                            .n_used = plan_layer_used(t->plan, m->layer)};
    TRY(calibration_open(&t->layer, t->dir, m->layer, &shape, d));
    t->i_layer = m->layer;
    return FATHOM_OK;
}

static bool went_to(const struct calibration_layer *l, uint64_t row, uint32_t expert)
{
    const uint16_t *chosen = l->experts + row * l->shape.n_used;
    for (uint32_t k = 0; k < l->shape.n_used; k++) {
        if (chosen[k] == expert) return true;
    }
    return false;
}

/* Of n rows `most`, evenly; which of them is number i. */
static uint64_t evenly(uint64_t i, uint64_t n, uint64_t most)
{
    return n <= most ? i : i * n / most;
}

static void pick_all(struct tuner *t)
{
    t->n_picked = (uint32_t)picked_rows(t->n_row);
    for (uint32_t i = 0; i < t->n_picked; i++) {
        t->picked[i] = (uint32_t)evenly(i, t->n_row, t->n_picked);
    }
}

static void pick_rows(struct tuner *t)
{
    const uint32_t expert = t->block->expert;
    uint64_t n = 0, i = 0;
    t->how = TUNED;
    if (t->block->target != TARGET_EXPERTS) {
        pick_all(t);
        return;
    }
    for (uint64_t row = 0; row < t->n_row; row++) n += went_to(&t->layer, row, expert);
    if (n < TUNE_FEW) {
        t->how = TUNED_FEW;
        pick_all(t);
        return;
    }
    const uint64_t most = picked_rows(n);
    t->n_picked = 0;
    for (uint64_t row = 0; row < t->n_row && t->n_picked < most; row++) {
        if (!went_to(&t->layer, row, expert)) continue;
        if (i++ == evenly(t->n_picked, n, most)) t->picked[t->n_picked++] = (uint32_t)row;
    }
    ASSERT(t->n_picked == most);
}

/* ---- a chunk --------------------------------------------------------------------------------- */

struct chunk {
    struct tuner *t;
    const uint32_t *picked;
    uint32_t n; /* tokens */
};

/* A token's inputs, as panels and turned; tokens past the last are zeros in what is turned. */
static void gather_token(void *arg, size_t i, size_t n_item, unsigned worker)
{
    const struct chunk *c = arg;
    const struct tuner *t = c->t;
    const uint32_t n = t->x.n, hidden = t->layer.shape.hidden;
    const bool is_there = i < c->n;
    const uint16_t *row = t->layer.rows + (is_there ? (size_t)c->picked[i] * hidden : 0);
    float *turned = t->turned + i / TILE_COLS * TILE_COLS * n + i % TILE_COLS;
    (void)n_item;
    (void)worker;
    for (uint32_t k = 0; k < hidden; k++) {
        const float value = is_there ? f32_from_bf16(row[k]) : 0;
        turned[(size_t)k * TILE_COLS] = value;
        if (!is_there) continue;
        t->x.panels[((size_t)(k / TILE_COLS) * c->n + i) * TILE_COLS + k % TILE_COLS] = value;
    }
}

static float silu(float x)
{
    return x / (1 + expf(-x));
}

/* Four of down's inputs, of all tokens. */
static void multiply_rows(void *arg, size_t i_item, size_t n_item, unsigned worker)
{
    const struct chunk *c = arg;
    const struct tuner *t = c->t;
    const struct tensor_view *gate = view_of(t, ROLE_GATE), *up = view_of(t, ROLE_UP);
    const uint32_t n = t->x.n, row0 = (uint32_t)i_item * TILE_ROWS;
    float *g = t->rows + (size_t)worker * 2 * TILE_ROWS * n, *u = g + (size_t)TILE_ROWS * n;
    (void)n_item;
    for (uint32_t r = 0; r < TILE_ROWS; r++) {
        tensor_view_row(gate, row0 + r, 0, n, g + (size_t)r * n);
        tensor_view_row(up, row0 + r, 0, n, u + (size_t)r * n);
    }
    for (uint32_t token0 = 0; token0 < c->n; token0 += TILE_COLS) {
        float a[TILE_ROWS][TILE_COLS] = {{0}}, b[TILE_ROWS][TILE_COLS] = {{0}};
        const float *turned = t->turned + (size_t)token0 * n;
        tile_add(a, g, 1, n, turned, TILE_COLS, n);
        tile_add(b, u, 1, n, turned, TILE_COLS, n);
        for (uint32_t k = 0; k < TILE_COLS && token0 + k < c->n; k++) {
            float *to = t->h.panels + ((size_t)(row0 / TILE_COLS) * c->n + token0 + k) * TILE_COLS;
            for (uint32_t r = 0; r < TILE_ROWS; r++) {
                to[row0 % TILE_COLS + r] = silu(a[r][k]) * b[r][k];
            }
        }
    }
}

static void add_squares(struct inputs *in, uint32_t n_token)
{
    for (uint32_t k = 0; k < in->n; k += TILE_COLS) {
        const float *panel = in->panels + (size_t)(k / TILE_COLS) * n_token * TILE_COLS;
        for (uint32_t i = 0; i < n_token; i++) {
            const float *values = panel + (size_t)i * TILE_COLS;
            for (int c = 0; c < TILE_COLS; c++) in->squares[k + c] += values[c] * values[c];
        }
    }
}

static void add_chunk(struct tuner *t, uint32_t first, uint32_t n)
{
    struct chunk c = {.t = t, .picked = t->picked + first, .n = n};
    const uint32_t n_padded = (n + TILE_COLS - 1) / TILE_COLS * TILE_COLS;
    thread_pool_run(t->pool, n_padded, gather_token, &c);
    thread_pool_run(t->pool, t->h.n / TILE_ROWS, multiply_rows, &c);
    add_squares(&t->x, n);
    add_squares(&t->h, n);
    if (t->plan->scheme.method != METHOD_GPTQ) return;
    moments_add(t->pool, t->x.moments, t->x.n, t->x.panels, n);
    moments_add(t->pool, t->h.moments, t->h.n, t->h.panels, n);
}

/* ---- a block --------------------------------------------------------------------------------- */

static void inputs_begin(struct inputs *in, uint32_t n)
{
    in->n = n;
    memset(in->squares, 0, n * sizeof *in->squares);
    if (in->moments) memset(in->moments, 0, n * moments_stride(n) * sizeof *in->moments);
}

static fathom_err factor_inputs(struct tuner *t, struct inputs *in, fathom_diag *d)
{
    float damp = 0.01f;
    if (moments_order(in->order, in->moments, in->n)) {
        FAIL(d, FATHOM_ENOMEM, "no memory for the order of %u inputs", in->n);
    }
    for (int i = 0; i < DAMPS; i++) {
        if (moments_factor(t->pool, in->factor, in->moments, in->n, in->order, damp,
                           t->factor_panels)) {
            return FATHOM_OK;
        }
        damp *= 10;
    }
    FAIL(d, FATHOM_EFORMAT, "%s: its inputs over the calibration texts are not finite",
         t->plan->matrices[t->block[ROLE_GATE].i_matrix].name);
}

static fathom_err measure_block(struct tuner *t, fathom_diag *d)
{
    const struct quant_scheme *s = &t->plan->scheme;
    TRY(open_layer(t, d));
    inputs_begin(&t->x, view_of(t, ROLE_GATE)->n_col);
    inputs_begin(&t->h, view_of(t, ROLE_DOWN)->n_col);
    pick_rows(t);
    for (uint32_t i = 0; i < t->n_picked; i += CHUNK) {
        add_chunk(t, i, t->n_picked - i < CHUNK ? t->n_picked - i : CHUNK);
    }
    if (s->method == METHOD_GPTQ) {
        TRY(factor_inputs(t, &t->x, d));
        return factor_inputs(t, &t->h, d);
    }
    TRY(down_scale_choose(t->scale, view_of(t, ROLE_DOWN), s, t->h.squares, t->pool, d));
    for (uint32_t k = 0; k < t->h.n; k++) {
        t->inverse[k] = 1 / t->scale[k];
        t->h.squares[k] *= t->inverse[k] * t->inverse[k];
    }
    return FATHOM_OK;
}

fathom_err tuner_matrix(struct tuner *t, size_t i_matrix, struct matrix_order *order,
                        enum tuned *how, fathom_diag *d)
{
    const struct member *block = block_of(t, i_matrix);
    *how = TUNED_NOT;
    if (!block) return FATHOM_OK;
    if (block != t->block) {
        t->block = block;
        fathom_err err = measure_block(t, d);
        if (err) {
            t->block = NULL;
            return err;
        }
    }
    const bool is_down = block[ROLE_DOWN].i_matrix == i_matrix;
    const struct inputs *in = is_down ? &t->h : &t->x;
    *how = t->how;
    order->importance = in->squares;
    if (t->plan->scheme.method == METHOD_GPTQ) {
        order->feedback = (struct feedback){in->factor, in->order};
        return FATHOM_OK;
    }
    if (is_down) order->col_factor = t->scale;
    if (block[ROLE_UP].i_matrix == i_matrix) order->row_factor = t->inverse;
    return FATHOM_OK;
}
