/* cpu_pack.c - a matrix of the checkpoint to panels (struct packed in cpu_kernel.h)
 *
 * FP8 codes and BF16 values keep their type, so that memory holds what the checkpoint holds.
 * Everything else becomes f32 with its scale multiplied in: F32, F16, and the FP8 matrices that the
 * fast form cannot hold exactly. Such a matrix has NaN codes, or was cut out of another at an odd
 * column of its scale blocks.
 */
#include "backend/cpu/cpu_int.h"

#include <string.h>

#include "base/assert.h"
#include "base/fail.h"
#include "base/mem.h"

enum { BLOCK_COLUMNS = 2 * PAIRS_PER_BLOCK };

/* ---- the form of a matrix ---- */

static bool has_nan_code(const struct pack_part *p)
{
    const struct tensor_view *v = p->view;
    if (!v->data) return false;
    for (uint32_t r = 0; r < p->n_row; r++) {
        const uint8_t *row = (const uint8_t *)v->data + (p->row0 + r) * v->row_stride;
        bool found = false;
        for (uint32_t c = 0; c < v->n_col; c++) found |= (row[c] & 0x7f) == 0x7f;
        if (found) return true;
    }
    return false;
}

/* Place of the packed matrix's first row and column in the grid of scale blocks. */
static uint32_t row_origin(const struct pack_part *p)
{
    return p->transposed ? p->view->scale_col0 : p->view->scale_row0 + p->row0;
}

static uint32_t column_origin(const struct pack_part *p)
{
    uint32_t at = p->transposed ? p->view->scale_row0 + p->row0 : p->view->scale_col0;
    return p->view->scale ? at % TENSOR_SCALE_BLOCK : 0;
}

static enum pack_kind kind_of(const struct pack_part *p)
{
    if (p->view->dtype == DTYPE_BF16 && !p->view->scale) return PACK_BF16;
    if (p->view->dtype != DTYPE_F8_E4M3 || column_origin(p) % 2 != 0) return PACK_F32;
    return has_nan_code(p) ? PACK_F32 : PACK_FP8;
}

static void shape_panels(const struct pack_part *parts, uint32_t n_part, struct packed *out)
{
    ASSERT(n_part == 1 || n_part == 2);
    const struct pack_part *p = &parts[0];
    uint32_t n_row = p->transposed ? p->view->n_col : p->n_row;
    uint32_t n_col = p->transposed ? p->n_row : p->view->n_col;
    out->kind = kind_of(p);
    out->scale_lanes = 1;
    if (n_part == 2 &&
        (kind_of(&parts[1]) != out->kind || column_origin(&parts[1]) != column_origin(p)))
        out->kind = PACK_F32;
    uint32_t origin = out->kind == PACK_FP8 ? column_origin(p) : 0;
    for (uint32_t i = 0; i < n_part && out->kind == PACK_FP8; i++) {
        if (parts[i].view->scale && row_origin(&parts[i]) % PANEL != 0) out->scale_lanes = PANEL;
    }
    out->n_row = n_part * n_row;
    out->n_col = n_col;
    out->n_panel = n_part * ((n_row + PANEL - 1) / PANEL);
    out->n_pair = (n_col + 1) / 2;
    out->first_pair = min_u32((BLOCK_COLUMNS - origin) / 2, out->n_pair);
    out->n_block = 1 + (out->n_pair - out->first_pair + PAIRS_PER_BLOCK - 1) / PAIRS_PER_BLOCK;
    out->panel_bytes = (size_t)out->n_pair * pack_group_bytes(out->kind);
}

/* ---- filling ---- */

struct pack_task {
    const struct cpu_kernels *k;
    const struct pack_part *parts;
    uint32_t n_part;
    struct packed *out;
};

/* Elements of a block, as the panel takes them. */
union run {
    uint8_t code[BLOCK_COLUMNS];
    uint16_t half[BLOCK_COLUMNS];
    float value[BLOCK_COLUMNS];
};

/* n elements of a row of the view: values for PACK_F32, else as they are stored. */
static void read_run(const struct tensor_view *v, enum pack_kind kind, uint32_t r, uint32_t c0,
                     uint32_t n, union run *out)
{
    size_t size = dtype_size(v->dtype);
    DCHECK(n <= BLOCK_COLUMNS);
    if (kind == PACK_F32 && v->data)
        tensor_view_row(v, r, c0, n, out->value);
    else if (kind == PACK_F32)
        tensor_view_make_row(v, r, c0, n, out->value);
    else if (v->data)
        memcpy(out, (const uint8_t *)v->data + (r * v->row_stride + c0) * size, n * size);
    else
        tensor_view_make(v, r, c0, n, out);
}

/* Element i of a run to row `row` and column c of a panel. */
static void put(enum pack_kind kind, const union run *run, uint32_t i, uint32_t row, uint32_t c,
                uint8_t *panel)
{
    DCHECK(row < PANEL && i < BLOCK_COLUMNS);
    uint8_t *group = panel + (size_t)(c / 2) * pack_group_bytes(kind);
    switch (kind) {
    case PACK_FP8: group[2 * fp8_place(row) + c % 2] = run->code[i]; break;
    case PACK_BF16: memcpy(group + 4 * row + 2 * (c % 2), &run->half[i], 2); break;
    default: memcpy(group + 4 * ((c % 2) * PANEL + row), &run->value[i], 4);
    }
}

/* Columns [c0, c1) of a block, for n_row rows of the packed matrix from row0 on. */
static void fill_block(const struct pack_part *p, enum pack_kind kind, uint32_t row0,
                       uint32_t n_row, uint32_t c0, uint32_t c1, uint8_t *panel)
{
    DCHECK(n_row <= PANEL && c1 - c0 <= BLOCK_COLUMNS);
    union run run;
    if (p->transposed) {
        for (uint32_t c = c0; c < c1; c++) {
            read_run(p->view, kind, p->row0 + c, row0, n_row, &run);
            for (uint32_t i = 0; i < n_row; i++) put(kind, &run, i, i, c, panel);
        }
        return;
    }
    for (uint32_t i = 0; i < n_row; i++) {
        read_run(p->view, kind, p->row0 + row0 + i, c0, c1 - c0, &run);
        for (uint32_t c = c0; c < c1; c++) put(kind, &run, c - c0, i, c, panel);
    }
}

static void fill_panel(void *arg, size_t i_panel, size_t n_panel, unsigned worker)
{
    const struct pack_task *task = arg;
    struct packed *w = task->out;
    const struct pack_part *p = &task->parts[i_panel % task->n_part];
    uint8_t *panel = w->data + i_panel * w->panel_bytes;
    uint32_t row0 = (uint32_t)(i_panel / task->n_part) * PANEL;
    uint32_t n_row = min_u32(w->n_row / task->n_part - row0, PANEL);
    (void)n_panel;
    (void)worker;
    memset(panel, 0, w->panel_bytes);
    for (uint32_t b = 0; b < w->n_block; b++) {
        uint32_t c0 = 2 * packed_block_start(w, b);
        uint32_t c1 = min_u32(c0 + 2 * packed_block_pairs(w, b), w->n_col);
        if (w->kind == PACK_FP8 && p->view->data && !p->transposed && c1 - c0 == BLOCK_COLUMNS) {
            const uint8_t *codes = (const uint8_t *)p->view->data;
            task->k->pack_codes(codes + (p->row0 + row0) * p->view->row_stride + c0,
                                p->view->row_stride, n_row, panel + (size_t)c0 / 2 * 64);
        } else {
            fill_block(p, w->kind, row0, n_row, c0, c1, panel);
        }
        float *scale = w->scale + (i_panel * w->n_block + b) * w->scale_lanes;
        for (uint32_t i = 0; i < w->scale_lanes; i++) {
            uint32_t r = row0 + min_u32(i, n_row - 1);
            uint32_t view_r = p->row0 + (p->transposed ? c0 : r);
            uint32_t view_c = p->transposed ? r : c0;
            scale[i] = w->kind == PACK_FP8 ? tensor_view_scale(p->view, view_r, view_c) : 1;
        }
    }
}

static fathom_err check_part(const struct pack_part *p, const char *name, fathom_diag *d)
{
    if (p->n_row == 0 || p->view->n_col == 0)
        FAIL(d, FATHOM_EINVAL, "%s is [%u][%u]; a matrix has rows and columns", name, p->n_row,
             p->view->n_col);
    if (tensor_view_is_float(p->view)) return FATHOM_OK;
    FAIL(d, FATHOM_EUNSUPPORTED,
         "%s has type %s; the cpu backend takes F32, F16, BF16 and F8_E4M3. Convert the "
         "checkpoint to one of them",
         name, dtype_name(p->view->dtype));
}

fathom_err pack_matrix(struct cpu_backend *cpu, const struct pack_part *parts, uint32_t n_part,
                       const char *name, struct packed *out, fathom_diag *d)
{
    ASSERT(n_part == 1 || n_part == 2);
    for (uint32_t i = 0; i < n_part; i++) TRY(check_part(&parts[i], name, d));
    shape_panels(parts, n_part, out);
    size_t bytes = out->n_panel * out->panel_bytes;
    out->data = mem_alloc_aligned(CPU_ALIGN, bytes);
    out->scale =
        mem_alloc_array((size_t)out->n_panel * out->n_block * out->scale_lanes, sizeof *out->scale);
    if (!out->data || !out->scale) {
        packed_free(out);
        FAIL(d, FATHOM_ENOMEM, "no memory for %s, %zu bytes", name, bytes);
    }
    struct pack_task task = {.k = cpu->k, .parts = parts, .n_part = n_part, .out = out};
    thread_pool_run(cpu->pool, out->n_panel, fill_panel, &task);
    return FATHOM_OK;
}

void packed_free(struct packed *w)
{
    mem_free(w->data);
    mem_free(w->scale);
    memset(w, 0, sizeof *w);
}

uint64_t packed_bytes(const struct packed *w)
{
    return w->n_panel *
           ((uint64_t)w->panel_bytes + (uint64_t)w->n_block * w->scale_lanes * sizeof(float));
}

/* ---- reading back ---- */

void packed_row(const struct packed *w, uint32_t r, float *out)
{
    ASSERT(w->data && r < w->n_row);
    uint32_t i_panel = r / PANEL;
    uint32_t row = r % PANEL;
    const uint8_t *panel = w->data + i_panel * w->panel_bytes;
    for (uint32_t b = 0; b < w->n_block; b++) {
        const float *scale = w->scale + ((size_t)i_panel * w->n_block + b) * w->scale_lanes;
        float s = scale[w->scale_lanes == 1 ? 0 : row];
        uint32_t c0 = 2 * packed_block_start(w, b);
        uint32_t c1 = min_u32(c0 + 2 * packed_block_pairs(w, b), w->n_col);
        for (uint32_t c = c0; c < c1; c++) {
            const uint8_t *group = panel + (size_t)(c / 2) * pack_group_bytes(w->kind);
            uint16_t half;
            switch (w->kind) {
            case PACK_FP8: out[c] = f32_from_e4m3(group[2 * fp8_place(row) + c % 2]) * s; break;
            case PACK_BF16:
                memcpy(&half, group + 4 * row + 2 * (c % 2), sizeof half);
                out[c] = f32_from_bf16(half);
                break;
            default: memcpy(&out[c], group + 4 * ((c % 2) * PANEL + row), sizeof out[c]);
            }
        }
    }
}
