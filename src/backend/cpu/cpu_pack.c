/* cpu_pack.c - a matrix of the checkpoint to panels (struct packed in cpu_kernel.h)
 *
 * Codes keep their type, so that memory holds what the checkpoint holds; scales become f32.
 * Everything else becomes f32 with its scale multiplied in: F32, F16, and the coded matrices that
 * the fast forms cannot hold exactly. Such a matrix has NaN codes, was cut out of another at an odd
 * column of its scale blocks, or is needed transposed while its rows have scales of their own. An
 * int8 matrix with codes of -128, which have no sign and magnitude, has its codes kept as bf16.
 */
#include "backend/cpu/cpu_int.h"

#include <stdatomic.h>
#include <string.h>

#include "base/assert.h"
#include "base/fail.h"
#include "base/mem.h"

enum { BLOCK_COLUMNS = 2 * PAIRS_PER_BLOCK, BLOCK_COLUMNS_MIN = 16 };

/* ---- the form of a matrix ---- */

/* Rows of a matrix that are searched for a code. */
struct search {
    const struct pack_part *part;
    uint8_t mask, code;
    atomic_bool found;
};

enum { SEARCH_ROWS = 32 };

/* Eight bytes at a time: of (byte & mask) ^ code, one that is 0. */
static bool row_has_code(const uint8_t *row, uint32_t n, uint8_t mask, uint8_t code)
{
    const uint64_t ones = 0x0101010101010101, tops = ones << 7;
    uint64_t zero = 0;
    uint32_t c = 0;
    for (; c + 8 <= n; c += 8) {
        uint64_t eight;
        memcpy(&eight, row + c, sizeof eight);
        eight = (eight & mask * ones) ^ code * ones;
        zero |= (eight - ones) & ~eight & tops;
    }
    bool found = zero != 0;
    for (; c < n; c++) found |= (row[c] & mask) == code;
    return found;
}

static void search_rows(void *arg, size_t item, size_t n_item, unsigned worker)
{
    struct search *s = arg;
    const struct pack_part *p = s->part;
    const uint32_t first = (uint32_t)item * SEARCH_ROWS;
    const uint32_t end = min_u32(first + SEARCH_ROWS, p->n_row);
    (void)n_item;
    (void)worker;
    for (uint32_t r = first; r < end && !s->found; r++) {
        const uint8_t *row = (const uint8_t *)p->view->data + (p->row0 + r) * p->view->row_stride;
        if (row_has_code(row, p->view->n_col, s->mask, s->code)) s->found = true;
    }
}

/* Whether a code is in the part: either sign of 0x7f for NaN, -128 for int8. The search is the
 * first to touch the file, so it brings its pages too. */
static bool has_code(struct cpu_backend *cpu, const struct pack_part *p, uint8_t mask, uint8_t code)
{
    struct search s = {.part = p, .mask = mask, .code = code};
    if (!p->view->data) return false;
    thread_pool_run(cpu->pool, (p->n_row + SEARCH_ROWS - 1) / SEARCH_ROWS, search_rows, &s);
    return s.found;
}

/* Place of the packed matrix's first row and column in the grid of scale blocks. */
static uint32_t row_origin(const struct pack_part *p)
{
    return p->transposed ? p->view->scale_col0 : p->view->scale_row0 + p->row0;
}

/* The largest part of BLOCK_COLUMNS that groups are whole numbers of; 0: none. */
static uint32_t blocks_of_group(uint32_t group)
{
    uint32_t n = BLOCK_COLUMNS;
    while (group % n != 0) n /= 2;
    return n < BLOCK_COLUMNS_MIN ? 0 : n;
}

/* Columns of the packed matrix that share a row's scale, as blocks can have them. 0: no block has
 * one scale. */
static uint32_t block_columns(const struct pack_part *p)
{
    const struct tensor_view *v = p->view;
    if (v->source) {
        bool is_whole = !p->transposed && v->n_col % BLOCK_COLUMNS_MIN == 0;
        return is_whole ? blocks_of_group(v->source->form.block_col) : 0;
    }
    uint32_t block = p->transposed ? v->scale_block_row : v->scale_block_col;
    bool fits = !v->scale || block == 0 || block == BLOCK_COLUMNS || block == TENSOR_SCALE_WHOLE;
    return fits ? BLOCK_COLUMNS : 0;
}

static uint32_t column_origin(const struct pack_part *p)
{
    const struct tensor_view *v = p->view;
    uint32_t at = p->transposed ? v->scale_row0 + p->row0 : v->scale_col0;
    uint32_t block = p->transposed ? v->scale_block_row : v->scale_block_col;
    return v->scale && block != TENSOR_SCALE_WHOLE ? at % BLOCK_COLUMNS : 0;
}

static enum pack_kind kind_of(struct cpu_backend *cpu, const struct pack_part *p)
{
    const struct tensor_view *v = p->view;
    if (v->dtype == DTYPE_BF16 && !v->scale) return PACK_BF16;
    if (block_columns(p) == 0 || column_origin(p) % 2 != 0) return PACK_F32;
    if (v->source) return v->source->form.code == CODE_U4 ? PACK_U4 : PACK_E2M1;
    if (v->dtype == DTYPE_I8) return has_code(cpu, p, 0xff, 0x80) ? PACK_BF16 : PACK_I8;
    return v->dtype != DTYPE_F8_E4M3 || has_code(cpu, p, 0x7f, 0x7f) ? PACK_F32 : PACK_FP8;
}

/* Whether the rows of a panel have scales of their own. */
static bool has_row_scales(const struct pack_part *p)
{
    const struct tensor_view *v = p->view;
    if (v->source) return true;
    uint32_t block = p->transposed ? v->scale_block_col : v->scale_block_row;
    if (!v->scale || block == TENSOR_SCALE_WHOLE) return false;
    return block % PANEL != 0 || row_origin(p) % PANEL != 0;
}

/* Whether a row has one scale in all of the packed matrix's columns. */
static bool are_scales_whole(const struct pack_part *p)
{
    const struct tensor_view *v = p->view;
    if (v->source) return false;
    return !v->scale ||
           (p->transposed ? v->scale_block_row : v->scale_block_col) == TENSOR_SCALE_WHOLE;
}

static bool has_zeros(const struct pack_part *p)
{
    return p->view->source && p->view->source->form.has_zero;
}

/* Gate and up may be of int8 with and without codes of -128. */
static enum pack_kind common_kind(enum pack_kind a, enum pack_kind b)
{
    if (a == b) return a;
    bool are_int8 = (a == PACK_I8 || a == PACK_BF16) && (b == PACK_I8 || b == PACK_BF16);
    return are_int8 ? PACK_BF16 : PACK_F32;
}

static void shape_panels(struct cpu_backend *cpu, const struct pack_part *parts, uint32_t n_part,
                         struct packed *out)
{
    ASSERT(n_part == 1 || n_part == 2);
    const struct pack_part *p = &parts[0];
    uint32_t n_row = p->transposed ? p->view->n_col : p->n_row;
    uint32_t n_col = p->transposed ? p->n_row : p->view->n_col;
    out->kind = kind_of(cpu, p);
    out->scale_lanes = 1;
    if (n_part == 2) {
        out->kind = common_kind(out->kind, kind_of(cpu, &parts[1]));
        if (column_origin(&parts[1]) != column_origin(p) ||
            block_columns(&parts[1]) != block_columns(p))
            out->kind = PACK_F32;
    }
    const bool coded = out->kind != PACK_F32;
    const uint32_t origin = coded ? column_origin(p) : 0;
    const uint32_t block = coded ? block_columns(p) : BLOCK_COLUMNS;
    for (uint32_t i = 0; i < n_part && coded; i++) {
        if (has_row_scales(&parts[i])) out->scale_lanes = PANEL;
    }
    out->n_row = n_part * n_row;
    out->n_col = n_col;
    out->n_panel = n_part * ((n_row + PANEL - 1) / PANEL);
    out->n_pair = (n_col + 1) / 2;
    out->block_pairs = block / 2;
    out->first_pair = min_u32((block - origin) / 2, out->n_pair);
    out->n_block = 1 + (out->n_pair - out->first_pair + out->block_pairs - 1) / out->block_pairs;
    out->n_scale = out->n_block;
    if (coded && are_scales_whole(&parts[0]) && (n_part == 1 || are_scales_whole(&parts[1])))
        out->n_scale = 1;
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

/* n int8 codes of a row: as BF16 values, or as signs and magnitudes. */
static void read_int8(const struct tensor_view *v, enum pack_kind kind, uint32_t r, uint32_t c0,
                      uint32_t n, union run *out)
{
    int8_t made[BLOCK_COLUMNS];
    const int8_t *codes = made;
    DCHECK(n <= BLOCK_COLUMNS);
    if (v->data)
        codes = (const int8_t *)v->data + r * v->row_stride + c0;
    else
        tensor_view_make(v, r, c0, n, made);
    for (uint32_t i = 0; i < n; i++) {
        if (kind == PACK_BF16)
            out->half[i] = bf16_from_f32(codes[i]);
        else
            out->code[i] = (uint8_t)(codes[i] < 0 ? 0x80 | -codes[i] : codes[i]);
    }
}

/* n elements of a row of the view: values for PACK_F32, else codes of the kind. */
static void read_run(const struct tensor_view *v, enum pack_kind kind, uint32_t r, uint32_t c0,
                     uint32_t n, union run *out)
{
    size_t size = dtype_size(v->dtype);
    DCHECK(n <= BLOCK_COLUMNS);
    if (kind == PACK_F32 && (v->data || v->source))
        tensor_view_row(v, r, c0, n, out->value);
    else if (kind == PACK_F32)
        tensor_view_make_row(v, r, c0, n, out->value);
    else if (v->dtype == DTYPE_I8)
        read_int8(v, kind, r, c0, n, out);
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
    case PACK_FP8:
    case PACK_I8: group[2 * byte_place(row) + c % 2] = run->code[i]; break;
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

/* The same of codes of four bits, and their zeros. Rows that are padding are zero. */
static void fill_nibbles(const struct pack_part *p, enum pack_kind kind, uint32_t row0,
                         uint32_t n_row, uint32_t c0, uint32_t c1, uint8_t *panel, uint8_t *zeros)
{
    const struct tensor_view *v = p->view;
    const struct weight_source *s = v->source;
    const uint32_t block = s->form.block_col, col = v->source_col0 + c0;
    uint8_t codes[PANEL][BLOCK_COLUMNS];
    memset(codes, kind == PACK_U4 ? U4_ZERO : 0, sizeof codes);
    if (zeros) memset(zeros, U4_ZERO, PANEL);
    for (uint32_t i = 0; i < n_row; i++) {
        const uint32_t row = v->source_row0 + p->row0 + row0 + i;
        int zero = U4_ZERO;
        s->codes(s, row, col, c1 - c0, codes[i]);
        if (kind == PACK_U4) (void)s->scale(s, row, block ? col / block : 0, &zero);
        ASSERT(zeros ? zero >= 0 && zero <= 16 : zero == U4_ZERO);
        if (zeros) zeros[i] = (uint8_t)zero;
    }
    for (uint32_t c = 0; c < c1 - c0; c += 4) {
        uint8_t *out = panel + (size_t)(c0 + c) / 4 * 64;
        for (uint32_t r = 0; r < 16; r++, out += 4) {
            const uint8_t *low = codes[r] + c, *high = codes[16 + r] + c;
            out[0] = (uint8_t)(low[0] | high[0] << 4);
            out[1] = (uint8_t)(low[2] | high[2] << 4);
            out[2] = (uint8_t)(low[1] | high[1] << 4);
            out[3] = (uint8_t)(low[3] | high[3] << 4);
        }
    }
}

/* A whole block of int8 codes. */
static void fill_int8_block(const struct pack_task *task, const struct pack_part *p, uint32_t row0,
                            uint32_t n_row, uint32_t c0, uint8_t *panel)
{
    union run rows[PANEL];
    for (uint32_t i = 0; i < n_row; i++)
        read_int8(p->view, PACK_I8, p->row0 + row0 + i, c0, BLOCK_COLUMNS, &rows[i]);
    task->k->pack_codes(rows[0].code, sizeof rows[0], n_row, panel + (size_t)c0 / 2 * 64);
}

/* What the codes of element (r, c) of a view are multiplied by. */
static float scale_of(const struct tensor_view *v, uint32_t r, uint32_t c)
{
    const struct weight_source *s = v->source;
    int zero;
    if (!s) return tensor_view_scale(v, r, c);
    uint32_t block = s->form.block_col;
    return s->scale(s, v->source_row0 + r, block ? (v->source_col0 + c) / block : 0, &zero);
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
        bool is_square = !p->transposed && c1 - c0 == BLOCK_COLUMNS;
        if (pack_is_nibbles(w->kind)) {
            uint8_t *zeros = w->zero ? w->zero + (i_panel * w->n_block + b) * PANEL : NULL;
            fill_nibbles(p, w->kind, row0, n_row, c0, c1, panel, zeros);
        } else if (is_square && w->kind == PACK_I8) {
            fill_int8_block(task, p, row0, n_row, c0, panel);
        } else if (is_square && w->kind == PACK_FP8 && p->view->data) {
            const uint8_t *codes = (const uint8_t *)p->view->data;
            task->k->pack_codes(codes + (p->row0 + row0) * p->view->row_stride + c0,
                                p->view->row_stride, n_row, panel + (size_t)c0 / 2 * 64);
        } else if (is_square && w->kind == PACK_BF16 && p->view->dtype == DTYPE_BF16 &&
                   p->view->data) {
            const size_t stride = p->view->row_stride * 2;
            const uint8_t *halves = (const uint8_t *)p->view->data + 2 * (size_t)c0;
            task->k->pack_halves(halves + (p->row0 + row0) * stride, stride, n_row,
                                 panel + (size_t)c0 / 2 * 128);
        } else {
            fill_block(p, w->kind, row0, n_row, c0, c1, panel);
        }
        float *scale = packed_scales(w, (uint32_t)i_panel, b);
        for (uint32_t i = 0; i < w->scale_lanes && b < w->n_scale; i++) {
            uint32_t r = row0 + min_u32(i, n_row - 1);
            uint32_t view_r = p->row0 + (p->transposed ? c0 : r);
            uint32_t view_c = p->transposed ? r : c0;
            scale[i] = w->kind == PACK_F32 ? 1 : scale_of(p->view, view_r, view_c);
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
         "%s has type %s; the cpu backend takes F32, F16, BF16, F8_E4M3 and I8 with scales, and "
         "packed codes. Convert the checkpoint to one of them",
         name, dtype_name(p->view->dtype));
}

/* ---- memory ---- */

/* Weights lie one after the other in large pieces, which the system can give huge pages. */
enum { PIECE_BYTES = 64 << 20 };

struct weight_piece {
    struct weight_piece *next;
    size_t n_bytes, n_used; /* with this header */
};

static void *take(struct cpu_backend *cpu, size_t bytes)
{
    const size_t header = (sizeof(struct weight_piece) + CPU_ALIGN - 1) / CPU_ALIGN * CPU_ALIGN;
    if (cpu->n_weight == 0) return mem_alloc_aligned(CPU_ALIGN, bytes);
    struct weight_piece *p = cpu->pieces;
    bytes = (bytes + CPU_ALIGN - 1) / CPU_ALIGN * CPU_ALIGN;
    if (!p || p->n_bytes - p->n_used < bytes) {
        const size_t n = max_size(PIECE_BYTES, header + bytes);
        p = mem_alloc_pages(n);
        if (!p) return NULL;
        cpu_nodes_place(&cpu->nodes, p, n);
        *p = (struct weight_piece){.next = cpu->pieces, .n_bytes = n, .n_used = header};
        cpu->pieces = p;
    }
    void *out = (uint8_t *)p + p->n_used;
    p->n_used += bytes;
    return out;
}

void cpu_weight_opens(struct cpu_backend *cpu)
{
    cpu->n_weight++;
}

void cpu_weight_closes(struct cpu_backend *cpu)
{
    ASSERT(cpu->n_weight > 0);
    if (--cpu->n_weight > 0) return;
    while (cpu->pieces) {
        struct weight_piece *next = cpu->pieces->next;
        mem_free_pages(cpu->pieces);
        cpu->pieces = next;
    }
}

fathom_err pack_matrix(struct cpu_backend *cpu, const struct pack_part *parts, uint32_t n_part,
                       const char *name, struct packed *out, fathom_diag *d)
{
    ASSERT(n_part == 1 || n_part == 2);
    for (uint32_t i = 0; i < n_part; i++) TRY(check_part(&parts[i], name, d));
    shape_panels(cpu, parts, n_part, out);
    size_t bytes = out->n_panel * out->panel_bytes;
    out->zero = NULL;
    out->is_lent = cpu->n_weight > 0;
    out->data = take(cpu, bytes);
    out->scale =
        take(cpu, (size_t)out->n_panel * out->n_scale * out->scale_lanes * sizeof *out->scale);
    bool zeros = out->kind == PACK_U4 && has_zeros(&parts[0]);
    zeros |= out->kind == PACK_U4 && n_part == 2 && has_zeros(&parts[1]);
    if (zeros) out->zero = take(cpu, (size_t)out->n_panel * out->n_block * PANEL);
    if (!out->data || !out->scale || (zeros && !out->zero)) {
        packed_free(out);
        FAIL(d, FATHOM_ENOMEM, "no memory for %s, %zu bytes", name, bytes);
    }
    struct pack_task task = {.k = cpu->k, .parts = parts, .n_part = n_part, .out = out};
    thread_pool_run(cpu->pool, out->n_panel, fill_panel, &task);
    return FATHOM_OK;
}

void packed_free(struct packed *w)
{
    if (!w->is_lent) {
        mem_free(w->data);
        mem_free(w->scale);
        mem_free(w->zero);
    }
    memset(w, 0, sizeof *w);
}

uint64_t packed_bytes(const struct packed *w)
{
    const uint64_t scale_bytes = w->n_scale * w->scale_lanes * sizeof(float);
    return w->n_panel * (w->panel_bytes + scale_bytes + (w->zero ? w->n_block * PANEL : 0));
}

uint64_t backend_cpu_weight_bytes(const struct weight_form *f, uint32_t n_row, uint32_t n_col)
{
    const uint64_t n = (uint64_t)n_row * n_col;
    const bool is_packed = f->code == CODE_U4 || f->code == CODE_E2M1;
    if (f->code == CODE_WIDE) return f->type == DTYPE_BF16 ? 2 * n : 4 * n;
    if (!is_packed && f->block_row != 1) return weight_form_bytes(f, n_row, n_col);
    const uint32_t block = is_packed ? blocks_of_group(f->block_col) : BLOCK_COLUMNS;
    if (block == 0 || (is_packed && n_col % BLOCK_COLUMNS_MIN != 0)) return 4 * n;
    const bool is_whole = !is_packed && f->block_col == 0;
    const uint64_t n_scale = (uint64_t)n_row * (is_whole ? 1 : (n_col + block - 1) / block);
    return (is_packed ? n / 2 : n) + n_scale * (sizeof(float) + f->has_zero);
}

/* ---- reading back ---- */

/* Element (row, c) of a panel, before its scale. zero: of the panel's rows. */
static float packed_value(enum pack_kind kind, const uint8_t *panel, uint32_t row, uint32_t c,
                          const uint8_t *zero)
{
    const uint8_t *group = panel + (size_t)(c / 2) * pack_group_bytes(kind);
    const uint32_t byte = 2 * byte_place(row) + c % 2;
    const size_t both = (size_t)(c / 4) * 64 + 4 * (row % 16) + 2 * (c % 2) + c / 2 % 2;
    uint16_t half;
    float value;
    int code;
    switch (kind) {
    case PACK_FP8: return f32_from_e4m3(group[byte]);
    case PACK_I8: code = group[byte] & 0x7f; return (float)(group[byte] & 0x80 ? -code : code);
    case PACK_BF16:
        memcpy(&half, group + 4 * row + 2 * (c % 2), sizeof half);
        return f32_from_bf16(half);
    case PACK_U4:
        code = panel[both] >> 4 * (row / 16) & 15;
        return (float)(code - (zero ? zero[row] : U4_ZERO));
    case PACK_E2M1: return e2m1_value(panel[both] >> 4 * (row / 16) & 15);
    default: memcpy(&value, group + 4 * ((c % 2) * PANEL + row), sizeof value); return value;
    }
}

void packed_row(const struct packed *w, uint32_t r, float *out)
{
    ASSERT(w->data && r < w->n_row);
    const uint32_t i_panel = r / PANEL, row = r % PANEL;
    const uint8_t *panel = w->data + i_panel * w->panel_bytes;
    for (uint32_t b = 0; b < w->n_block; b++) {
        const float *scale = packed_scales(w, i_panel, b);
        const uint8_t *zero = packed_zeros(w, i_panel, b);
        float s = scale[w->scale_lanes == 1 ? 0 : row];
        uint32_t c0 = 2 * packed_block_start(w, b);
        uint32_t c1 = min_u32(c0 + 2 * packed_block_pairs(w, b), w->n_col);
        for (uint32_t c = c0; c < c1; c++) out[c] = packed_value(w->kind, panel, row, c, zero) * s;
    }
}
