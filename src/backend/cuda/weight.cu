/* weight.cu - checkpoint views to device matrices: copies, conversions
 *
 * FP8 keeps its bytes and block scales, I8 likewise; a scale for all of an FP8 matrix becomes one a
 * row. BF16 stays; F32 stays; F16 becomes F32. Codes
 * of four bits stay packed (pack4.h), with their scales and zeros. Matrices that share
 * an input are stacked into one, each part on a multiple of 128 rows, so that one product serves
 * them and no scale block is shared.
 *
 * On sm_90 the codes of products lie in tiles (product.cuh). Rows come to a staging area first, so
 * many at a time as it holds, and a kernel puts them where they belong. */
#include <string.h>

#include "backend/cuda/common.cuh"
#include "backend/cuda/k_parts.h"
#include "backend/cuda/launch.cuh"
#include "backend/cuda/product.cuh"
#include "backend/cuda/unpack4.cuh"

extern "C" {
#include "base/mem.h"
}

enum { THREADS = 256, STAGING_BYTES = 2 << 20 };

/* Rows of n_byte to their tiles; `to` begins with a tile. */
__global__ void tile_kernel(uint4 *to, const uint4 *from, uint32_t n_row, uint32_t n_byte)
{
    const uint32_t n_piece = n_byte / (uint32_t)sizeof(uint4);
    kernel_begin();
    for (uint64_t i = blockIdx.x * (uint64_t)blockDim.x + threadIdx.x;
         i < (uint64_t)n_row * n_piece; i += (uint64_t)gridDim.x * blockDim.x) {
        const uint32_t row = (uint32_t)(i / n_piece), piece = (uint32_t)(i % n_piece);
        to[tiled_at(row, piece * (uint32_t)sizeof(uint4), n_byte) / sizeof(uint4)] = from[i];
    }
}

/* w[h][r][c] of kv_b as plain values: codes times scale, or a converted copy */
template <typename OUT> __global__ void decode_kernel(OUT *out, struct matrix m)
{
    kernel_begin();
    uint64_t n = (uint64_t)m.n_row * m.n_col;
    DCHECK(m.dtype != DTYPE_F8_E4M3 || m.scale);
    for (uint64_t i = blockIdx.x * (uint64_t)blockDim.x + threadIdx.x; i < n;
         i += (uint64_t)gridDim.x * blockDim.x) {
        uint32_t r = (uint32_t)(i / m.n_col), col = (uint32_t)(i % m.n_col);
        float v;
        if (m.dtype == DTYPE_U8) {
            v = pack4_value(m.pack, (const char *)m.data, ceil_div(m.n_col, SCALE_BLOCK), m.scale,
                            r, col);
        } else if (m.dtype == DTYPE_I8 || m.dtype == DTYPE_F8_E4M3) {
            v = m.dtype == DTYPE_I8 ? (float)((const int8_t *)m.data)[i]
                                    : stored_value<DTYPE_F8_E4M3>(m.data, i);
            v *=
                m.scale[(m.row0 + r) / m.block_row * m.scale_stride + (m.col0 + col) / m.block_col];
        } else if (m.dtype == DTYPE_BF16) {
            v = stored_value<DTYPE_BF16>(m.data, i);
        } else {
            v = stored_value<DTYPE_F32>(m.data, i);
        }
        out[i] = (OUT)v;
    }
}

/* ---- allocation ---- */

static fathom_err take(struct cuda_backend *c, struct weight *w, size_t bytes, const char *what,
                       void **out, fathom_diag *d)
{
    ASSERT(w->n_allocation < sizeof w->allocations / sizeof *w->allocations);
    ASSERT(bytes > 0);
    TRY(c->base.ops->alloc(&c->base, bytes, what, out, d));
    w->allocations[w->n_allocation++] = *out;
    w->n_bytes += bytes;
    return FATHOM_OK;
}

static void release_staging(struct cuda_backend *c)
{
    if (c->staging) c->base.ops->release(&c->base, c->staging);
    c->staging = NULL;
    c->staging_bytes = 0;
}

static fathom_err weight_create(enum weight_kind kind, struct weight **out, fathom_diag *d)
{
    *out = (struct weight *)mem_calloc(1, sizeof **out);
    if (!*out) FAIL(d, FATHOM_ENOMEM, "no memory for a weight");
    (*out)->kind = kind;
    return FATHOM_OK;
}

void cuda_weight_destroy(struct backend *b, struct weight *w)
{
    if (!w) return;
    for (uint32_t i = 0; i < w->n_allocation; i++) b->ops->release(b, w->allocations[i]);
    mem_free(w);
}

uint64_t cuda_weight_bytes(const struct weight *w)
{
    return w->n_bytes;
}

/* ---- filling ---- */

static enum dtype stored_type(const struct tensor_view *v)
{
    if (v->source) return DTYPE_U8;
    return v->dtype == DTYPE_F16 ? DTYPE_F32 : v->dtype;
}

/* E4M3 or I8 whose rows have one scale each, or all the same. */
static bool has_row_scales(const struct tensor_view *v)
{
    if (v->dtype == DTYPE_I8) return tensor_takes_int8(v) == TENSOR_INT8_ROW;
    if (v->scale_row0 || v->scale_col0) return false;
    return v->dtype == DTYPE_F8_E4M3 && v->scale && v->scale_block_col == TENSOR_SCALE_WHOLE &&
           (v->scale_block_row == 1 || v->scale_block_row == TENSOR_SCALE_WHOLE);
}

static fathom_err check_type(const struct tensor_view *v, const char *what, fathom_diag *d)
{
    char text[WEIGHT_FORM_TEXT_BYTES];
    if (v->source) {
        if (pack4_of(&v->source->form).tile_bytes) return FATHOM_OK;
        FAIL(d, FATHOM_EUNSUPPORTED, "%s: weights of %s are not supported by the cuda backend",
             what, weight_form_text(text, &v->source->form));
    }
    switch (v->dtype) {
    case DTYPE_F32:
    case DTYPE_BF16:
    case DTYPE_F16: return FATHOM_OK;
    case DTYPE_I8:
        if (v->scale || !v->data) return FATHOM_OK;
        FAIL(d, FATHOM_EUNSUPPORTED, "%s: I8 without scales", what);
    case DTYPE_F8_E4M3:
        if (!v->scale && v->data) {
            FAIL(d, FATHOM_EUNSUPPORTED, "%s: F8_E4M3 without scales", what);
        }
        if (tensor_view_is_block128(v) || has_row_scales(v)) return FATHOM_OK;
        FAIL(d, FATHOM_EUNSUPPORTED,
             "%s: F8_E4M3 with scales of %u x %u; the cuda backend takes one for 128 x 128, a row "
             "or all",
             what, v->scale_block_row, v->scale_block_col);
    default:
        FAIL(d, FATHOM_EUNSUPPORTED, "%s: weight type %s is not supported by the cuda backend",
             what, dtype_name(v->dtype));
    }
}

static fathom_err check_shape(const struct tensor_view *v, const char *name, uint32_t n_row,
                              uint32_t n_col, fathom_diag *d)
{
    if (v->n_row == n_row && v->n_col == n_col) return FATHOM_OK;
    FAIL(d, FATHOM_EMISMATCH, "%s is [%u][%u]; the configuration needs [%u][%u]", name, v->n_row,
         v->n_col, n_row, n_col);
}

/* Copies n floats that may go away on return. */
static fathom_err upload_values(struct cuda_backend *c, void *dst, const float *values, size_t n,
                                const char *what)
{
    CU_TRY(c, gpu_memcpy_async(dst, values, n * 4, GPU_TO_DEVICE, c->stream), what);
    CU_TRY(c, gpu_stream_synchronize(c->stream), what);
    return FATHOM_OK;
}

/* Rows of a strided host view, as bytes, to n_row rows side by side. */
static fathom_err copy_rows(struct cuda_backend *c, void *dst, const struct tensor_view *v,
                            uint32_t row, uint32_t n_row, const char *what)
{
    const size_t size = dtype_size(v->dtype), width = (size_t)v->n_col * size;
    ASSERT(row + n_row <= v->n_row);
    const char *from = (const char *)v->data + (size_t)row * v->row_stride * size;
    CU_TRY(c,
           gpu_memcpy_2d_async(dst, width, from, v->row_stride * size, width, n_row, GPU_TO_DEVICE,
                               c->stream),
           what);
    return FATHOM_OK;
}

/* Copies the rows of a host view into tiles. */
static fathom_err upload_tiles(struct cuda_backend *c, char *dst, const struct tensor_view *v,
                               const char *what, fathom_diag *d)
{
    const uint32_t row_bytes = v->n_col * (uint32_t)dtype_size(v->dtype);
    const size_t strip = (size_t)TILE_ROWS * row_bytes;
    if (c->staging_bytes < strip) {
        CU_TRY(c, gpu_stream_synchronize(c->stream), what);
        release_staging(c);
        const size_t bytes = strip > STAGING_BYTES ? strip : (size_t)STAGING_BYTES;
        TRY(c->base.ops->alloc(&c->base, bytes, "staging", &c->staging, d));
        c->staging_bytes = bytes;
    }
    const uint32_t step = (uint32_t)(c->staging_bytes / strip) * TILE_ROWS;
    for (uint32_t row = 0; row < v->n_row; row += step) {
        const uint32_t n = v->n_row - row < step ? v->n_row - row : step;
        TRY(copy_rows(c, c->staging, v, row, n, what));
        const uint64_t n_piece = (uint64_t)n * row_bytes / sizeof(uint4);
        TRY(cuda_launch(c, what, tile_kernel, dim3(walk_blocks(n_piece, THREADS)), THREADS, 0,
                        (uint4 *)(dst + (size_t)row * row_bytes), (const uint4 *)c->staging, n,
                        row_bytes));
    }
    return FATHOM_OK;
}

/* Copies rows of a strided host view; F16 is widened on the way. */
static fathom_err upload_rows(struct cuda_backend *c, void *dst, const struct tensor_view *v,
                              const char *what, fathom_diag *d)
{
    ASSERT(v->data && (v->n_row == 1 || v->row_stride >= v->n_col));
    if (v->dtype != DTYPE_F16) return copy_rows(c, dst, v, 0, v->n_row, what);
    size_t n = (size_t)v->n_row * v->n_col;
    float *wide = (float *)mem_alloc_array(n, sizeof *wide);
    if (!wide) FAIL(d, FATHOM_ENOMEM, "%s: no host memory to widen F16", what);
    for (uint32_t r = 0; r < v->n_row; r++)
        tensor_view_row(v, r, 0, v->n_col, wide + (size_t)r * v->n_col);
    fathom_err err = upload_values(c, dst, wide, n, what);
    mem_free(wide);
    return err;
}

/* Packs the rows of a view with a source into tiles from `dst` on, as many at a time as
 * STAGING_BYTES hold. */
static fathom_err upload_packed(struct cuda_backend *c, const struct matrix *m, char *dst,
                                const struct tensor_view *v, const char *what, fathom_diag *d)
{
    const size_t strip = pack4_bytes(&m->pack, PACK4_ROWS, v->n_col);
    const uint32_t n_strip = (uint32_t)pack4_tile_rows(v->n_row);
    const uint32_t most = STAGING_BYTES / strip > 1 ? (uint32_t)(STAGING_BYTES / strip) : 1;
    uint8_t *tiles = (uint8_t *)mem_alloc(strip * most);
    if (!tiles) FAIL(d, FATHOM_ENOMEM, "%s: no host memory to pack", what);
    fathom_err err = FATHOM_OK;
    for (uint32_t i = 0; i < n_strip && !err; i += most) {
        const uint32_t n = n_strip - i < most ? n_strip - i : most;
        for (uint32_t j = 0; j < n; j++)
            pack4_rows(&m->pack, v, (i + j) * PACK4_ROWS, tiles + j * strip);
        err = cuda_check(
            c, gpu_memcpy_async(dst + i * strip, tiles, n * strip, GPU_TO_DEVICE, c->stream),
            "copy", what);
        if (!err) err = cuda_check(c, gpu_stream_synchronize(c->stream), "sync", what);
    }
    mem_free(tiles);
    return err;
}

static fathom_err upload_globals(struct cuda_backend *c, float *dst, const struct tensor_view *v,
                                 const char *what, fathom_diag *d)
{
    const size_t n = pack4_tile_rows(v->n_row);
    float *values = (float *)mem_alloc_array(n, sizeof *values);
    if (!values) FAIL(d, FATHOM_ENOMEM, "%s: no host memory", what);
    for (size_t i = 0; i < n; i++) values[i] = pack4_global(v);
    fathom_err err = upload_values(c, dst, values, n, what);
    mem_free(values);
    return err;
}

static fathom_err upload_row_scales(struct cuda_backend *c, float *dst, const struct tensor_view *v,
                                    const char *what, fathom_diag *d)
{
    float *values = (float *)mem_alloc_array(v->n_row, sizeof *values);
    if (!values) FAIL(d, FATHOM_ENOMEM, "%s: no host memory", what);
    for (uint32_t r = 0; r < v->n_row; r++) values[r] = tensor_view_scale(v, r, 0);
    fathom_err err = upload_values(c, dst, values, v->n_row, what);
    mem_free(values);
    return err;
}

/* Fills rows [row, row + v->n_row) of a packed matrix. */
static fathom_err fill_packed(struct cuda_backend *c, const struct matrix *m, uint32_t row,
                              const struct tensor_view *v, const char *what, fathom_diag *d)
{
    ASSERT(v->source && row % PACK4_ROWS == 0);
    char *data = (char *)m->data + pack4_bytes(&m->pack, row, m->n_col);
    TRY(cuda_makes_packed(v) ? cuda_make_packed(c, m, data, v, what)
                             : upload_packed(c, m, data, v, what, d));
    return m->scale ? upload_globals(c, m->scale + row / PACK4_ROWS, v, what, d) : FATHOM_OK;
}

/* Fills rows [row, row + v->n_row) of m (whose memory exists). FP8 parts stacked into one matrix
 * start on a multiple of SCALE_BLOCK rows unless they are alone. */
static fathom_err fill_part(struct cuda_backend *c, const struct matrix *m, uint32_t row,
                            const struct tensor_view *v, const char *what, fathom_diag *d)
{
    size_t size = dtype_size(m->dtype);
    ASSERT(m->data && v->n_col == m->n_col && row + v->n_row <= m->n_row);
    ASSERT(m->dtype == stored_type(v));
    if (m->pack.tile_bytes) return fill_packed(c, m, row, v, what, d);
    ASSERT(!m->scale || row == 0 || (m->row0 == 0 && row % m->block_row == 0));
    char *data = (char *)m->data + (size_t)row * m->n_col * size;
    float *scale = m->scale ? m->scale + (size_t)(row / m->block_row) * m->scale_stride : NULL;
    if (!v->data) return cuda_make_values(c, m, data, scale, v, what);
    TRY(m->tiled ? upload_tiles(c, data, v, what, d) : upload_rows(c, data, v, what, d));
    if (!m->scale) return FATHOM_OK;
    if (m->line_scale) return upload_row_scales(c, scale, v, what, d);
    uint32_t n_scale_row = ceil_div(v->scale_row0 + v->n_row, m->block_row);
    uint32_t n_scale_col = ceil_div(v->scale_col0 + v->n_col, m->block_col);
    CU_TRY(c,
           gpu_memcpy_2d_async(scale, (size_t)m->scale_stride * 4, v->scale,
                               (size_t)v->scale_stride * 4, (size_t)n_scale_col * 4, n_scale_row,
                               GPU_TO_DEVICE, c->stream),
           what);
    return FATHOM_OK;
}

/* Whether products take inputs of the same codes, and scales of squares or rows. */
static bool takes_int8(const struct cuda_backend *c, const struct tensor_view *v)
{
    if (c->c.act != ACT_INT8 || v->dtype != DTYPE_I8) return false;
    if (has_row_scales(v)) return true;
    const bool squares = v->scale_block_row == 0 || v->scale_block_row == SCALE_BLOCK;
    return tensor_takes_int8(v) == TENSOR_INT8_GROUP && squares;
}

/* What sm90/ takes: the same for every number of rows. Rows come in multiples of 16, so the outputs
 * of matrices side by side are aligned for each. */
static bool takes_tiles(const struct cuda_backend *c, const struct tensor_view *v)
{
    return c->sm90 && c->fast && (v->dtype == DTYPE_F8_E4M3 || takes_int8(c, v)) &&
           v->n_col % K_LINE_BYTES == 0 && v->n_row % 16 == 0 && v->scale_row0 == 0 &&
           v->scale_col0 == 0;
}

/* A matrix of BF16 whose products walk through all of K (product_bf16.cu): the head. */
static bool takes_tiles_bf16(const struct cuda_backend *c, const struct tensor_view *v)
{
    const uint32_t line = K_LINE_BYTES / 2;
    return c->sm90 && c->fast && v->dtype == DTYPE_BF16 && v->n_col % line == 0 &&
           bf16_k_part_count(v->n_row, v->n_col / line, false) == 1;
}

static uint32_t scale_block(uint32_t n)
{
    enum { ALL = 1 << 30 };
    return n == TENSOR_SCALE_WHOLE ? (uint32_t)ALL : n ? n : (uint32_t)SCALE_BLOCK;
}

/* What a matrix of parts like `like` is, but for its rows and memory. */
static void shape_matrix(struct matrix *m, const struct tensor_view *like)
{
    m->dtype = stored_type(like);
    m->n_col = like->n_col;
    m->row0 = like->scale_row0;
    m->col0 = like->scale_col0;
    m->block_row = scale_block(like->scale_block_row);
    m->block_col = scale_block(like->scale_block_col);
    m->packs_fp8 = false;
    m->int8 = tensor_takes_int8(like);
    if (has_row_scales(like)) {
        m->row0 = 0;
        m->col0 = 0;
        m->block_row = 1;
        m->block_col = scale_block(TENSOR_SCALE_WHOLE);
    }
    if (like->source) {
        m->pack = pack4_of(&like->source->form);
        m->packs_fp8 = tensor_takes_fp8(like);
        m->block_row = PACK4_ROWS;
    }
}

/* Bytes and scales of n_row rows of it; *scale_stride from row to row of scales. */
static size_t matrix_bytes(const struct matrix *m, uint32_t n_row, bool tiled)
{
    if (m->pack.tile_bytes) return pack4_bytes(&m->pack, n_row, m->n_col);
    const size_t size = dtype_size(m->dtype);
    return tiled ? tiled_bytes(n_row, m->n_col * (uint32_t)size) : (size_t)n_row * m->n_col * size;
}

static size_t scale_count(const struct matrix *m, uint32_t n_row, uint32_t *scale_stride)
{
    *scale_stride = 1;
    if (m->pack.is_e2m1) return pack4_tile_rows(n_row);
    if (m->dtype != DTYPE_F8_E4M3 && m->dtype != DTYPE_I8) return 0;
    *scale_stride = ceil_div(m->col0 + m->n_col, m->block_col);
    return (size_t)ceil_div(m->row0 + n_row, m->block_row) * *scale_stride;
}

/* n scales, if any, and behind those of rows the ones of K lines. */
static fathom_err take_scales(struct cuda_backend *c, struct weight *w, struct matrix *m, size_t n,
                              bool of_rows, const char *what, fathom_diag *d)
{
    const uint32_t n_line = of_rows ? ceil_div(m->n_col, SCALE_BLOCK) : 0;
    if (!n) return FATHOM_OK;
    TRY(take(c, w, (n + n_line) * sizeof(float), what, (void **)&m->scale, d));
    if (!of_rows) return FATHOM_OK;
    m->line_scale = m->scale + n;
    return cuda_fill_values(c, m->line_scale, n_line, 1.0f, what);
}

/* A matrix of n_row rows for parts like `like`; the memory is zero. */
static fathom_err matrix_alloc(struct cuda_backend *c, struct weight *w, struct matrix *m,
                               uint32_t n_row, const struct tensor_view *like, bool tiled,
                               const char *what, fathom_diag *d)
{
    ASSERT(n_row > 0 && like->n_col > 0);
    TRY(check_type(like, what, d));
    shape_matrix(m, like);
    m->n_row = n_row;
    m->tiled = tiled;
    TRY(take(c, w, matrix_bytes(m, n_row, tiled), what, &m->data, d));
    return take_scales(c, w, m, scale_count(m, n_row, &m->scale_stride), has_row_scales(like), what,
                       d);
}

static fathom_err matrix_make(struct cuda_backend *c, struct weight *w, struct matrix *m,
                              const struct tensor_view *v, const char *what, fathom_diag *d)
{
    TRY(matrix_alloc(c, w, m, v->n_row, v, false, what, d));
    return fill_part(c, m, 0, v, what, d);
}

/* A matrix whose inputs are codes where it is FP8. */
static fathom_err product_make(struct cuda_backend *c, struct weight *w, struct matrix *m,
                               const struct tensor_view *v, const char *what, fathom_diag *d)
{
    TRY(matrix_alloc(c, w, m, v->n_row, v, takes_tiles(c, v), what, d));
    return fill_part(c, m, 0, v, what, d);
}

/* Whether views are coded alike. */
static bool same_form(const struct tensor_view *a, const struct tensor_view *b)
{
    if (!a->source != !b->source) return false;
    if (a->source) {
        return weight_form_equal(&a->source->form, &b->source->form) &&
               tensor_takes_fp8(a) == tensor_takes_fp8(b);
    }
    if (a->dtype != b->dtype) return false;
    if (has_row_scales(a) && has_row_scales(b)) return true;
    return a->scale_block_row == b->scale_block_row && a->scale_block_col == b->scale_block_col;
}

/* Whether parts can be one matrix: one form, and for coded ones no scale block or tile shared or
 * cut. */
static bool can_stack(const struct tensor_view *const *parts, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        const struct tensor_view *v = parts[i];
        if (!same_form(v, parts[0]) || v->n_col != parts[0]->n_col) return false;
        if (v->source) {
            if (i + 1 < n && v->n_row % PACK4_ROWS != 0) return false;
            continue;
        }
        if (v->dtype == DTYPE_I8) {
            if (has_row_scales(v) && i + 1 < n && v->n_row % SCALE_BLOCK != 0) return false;
            if (has_row_scales(v)) continue;
            const uint32_t block = v->scale_block_row ? v->scale_block_row : (uint32_t)SCALE_BLOCK;
            if (n > 1 && (v->n_row % block != 0 || v->scale_row0 || v->scale_col0)) return false;
            continue;
        }
        if (v->dtype != DTYPE_F8_E4M3) continue;
        if (i + 1 < n && v->n_row % SCALE_BLOCK != 0) return false;
        if (v->scale_row0 || v->scale_col0) return false;
    }
    return true;
}

static fathom_err list_make(struct cuda_backend *c, struct weight *w, struct matrix_list *l,
                            const struct tensor_view *const *parts, uint32_t n, const char *what,
                            fathom_diag *d)
{
    ASSERT(n >= 1 && n <= MATRIX_PARTS_MAX);
    bool one = can_stack(parts, n), tiled = true;
    l->n = one ? 1 : n;
    l->n_row = 0;
    l->n_col = parts[0]->n_col;
    for (uint32_t i = 0; i < n; i++) {
        l->n_row += parts[i]->n_row;
        tiled = tiled && takes_tiles(c, parts[i]);
    }
    if (one) TRY(matrix_alloc(c, w, &l->part[0], l->n_row, parts[0], tiled, what, d));
    uint32_t row = 0;
    for (uint32_t i = 0; i < n; i++) {
        if (one) {
            TRY(fill_part(c, &l->part[0], row, parts[i], what, d));
        } else {
            TRY(matrix_alloc(c, w, &l->part[i], parts[i]->n_row, parts[i], tiled, what, d));
            TRY(fill_part(c, &l->part[i], 0, parts[i], what, d));
            l->row[i] = row;
        }
        row += parts[i]->n_row;
    }
    return FATHOM_OK;
}

static fathom_err vector_make(struct cuda_backend *c, struct weight *w, float **out,
                              const struct tensor_view *v, const char *what, fathom_diag *d)
{
    size_t n = v->n_col;
    ASSERT(v->n_row == 1);
    TRY(take(c, w, n * 4, what, (void **)out, d));
    float *wide = (float *)mem_alloc_array(n, 4);
    if (!wide) FAIL(d, FATHOM_ENOMEM, "%s: no host memory", what);
    if (v->data) {
        tensor_view_row(v, 0, 0, v->n_col, wide);
    } else { /* a made-up model with norms of one is neither dead nor wild */
        for (size_t i = 0; i < n; i++) wide[i] = 1.0f;
    }
    fathom_err err = upload_values(c, *out, wide, n, what);
    mem_free(wide);
    return err;
}

/* ---- the five kinds ---- */

/* Finishes a prepare: everything is on the device, or nothing is left. */
static fathom_err finish(struct cuda_backend *c, struct weight *w, fathom_err err,
                         struct weight **out, fathom_diag *d)
{
    if (!err) err = cuda_check(c, gpu_stream_synchronize(c->stream), "sync", "prepare");
    release_staging(c);
    if (err) {
        if (c->fault[0]) err = diag_fail(d, err, "%s", c->fault);
        cuda_weight_destroy(&c->base, w);
        w = NULL;
    }
    ASSERT(err || w->n_bytes > 0);
    *out = w;
    return err;
}

fathom_err cuda_prepare_vector(struct backend *b, const struct tensor_view *v, struct weight **out,
                               fathom_diag *d)
{
    struct weight *w;
    TRY(weight_create(WEIGHT_VECTOR, &w, d));
    fathom_err err = check_type(v, "vector", d);
    if (!err) err = vector_make(cuda_of(b), w, &w->vector, v, "vector", d);
    return finish(cuda_of(b), w, err, out, d);
}

fathom_err cuda_prepare_linear(struct backend *b, const struct tensor_view *v, struct weight **out,
                               fathom_diag *d)
{
    struct weight *w;
    TRY(weight_create(WEIGHT_LINEAR, &w, d));
    struct cuda_backend *c = cuda_of(b);
    fathom_err err =
        matrix_alloc(c, w, &w->linear, v->n_row, v, takes_tiles_bf16(c, v), "linear", d);
    if (!err) err = fill_part(c, &w->linear, 0, v, "linear", d);
    return finish(c, w, err, out, d);
}

static fathom_err make_kv_b(struct cuda_backend *c, struct weight *w, const struct tensor_view *v,
                            fathom_diag *d)
{
    struct weight scratch = {};
    struct matrix m = {};
    fathom_err err = matrix_make(c, &scratch, &m, v, "kv_b", d);
    size_t n = (size_t)v->n_row * v->n_col;
    const dim3 grid(walk_blocks(n, THREADS));
    if (!err && c->fast) {
        err = take(c, w, n * 2, "kv_b", (void **)&w->mla.kv_b, d);
        if (!err)
            err = cuda_launch(c, "kv_b", decode_kernel<bf16>, grid, THREADS, 0, w->mla.kv_b, m);
    } else if (!err) {
        err = take(c, w, n * 4, "kv_b", (void **)&w->mla.kv_b_f, d);
        if (!err)
            err = cuda_launch(c, "kv_b", decode_kernel<float>, grid, THREADS, 0, w->mla.kv_b_f, m);
    }
    if (!err) err = cuda_check(c, gpu_stream_synchronize(c->stream), "sync", "kv_b");
    for (uint32_t i = 0; i < scratch.n_allocation; i++) {
        c->base.ops->release(&c->base, scratch.allocations[i]);
    }
    return err;
}

static fathom_err check_mla(const struct backend_config *g, const struct mla_tensors *t,
                            fathom_diag *d)
{
    const uint32_t heads = g->n_head, index = g->index_n_head;
    TRY(check_shape(&t->q_a, "q_a", g->q_lora_rank, g->hidden, d));
    TRY(check_shape(&t->q_a_norm, "q_a_norm", 1, g->q_lora_rank, d));
    TRY(check_shape(&t->q_b, "q_b", heads * QUERY_DIM, g->q_lora_rank, d));
    TRY(check_shape(&t->kv_a, "kv_a", KV_ROW, g->hidden, d));
    TRY(check_shape(&t->kv_a_norm, "kv_a_norm", 1, KV_LATENT, d));
    TRY(check_shape(&t->kv_b, "kv_b", heads * KV_B_ROWS, KV_LATENT, d));
    TRY(check_shape(&t->o, "o", g->hidden, heads * V_DIM, d));
    if (index == 0) return FATHOM_OK;
    TRY(check_shape(&t->index_q_b, "index_q_b", index * KV_INDEX_DIM, g->q_lora_rank, d));
    TRY(check_shape(&t->index_k, "index_k", KV_INDEX_DIM, g->hidden, d));
    TRY(check_shape(&t->index_k_weight, "index_k_weight", 1, KV_INDEX_DIM, d));
    TRY(check_shape(&t->index_k_bias, "index_k_bias", 1, KV_INDEX_DIM, d));
    return check_shape(&t->index_head, "index_head", index, g->hidden, d);
}

static fathom_err fill_mla(struct cuda_backend *c, struct weight *w, const struct mla_tensors *t,
                           fathom_diag *d)
{
    TRY(check_mla(&c->c, t, d));
    bool index = c->c.index_n_head > 0;
    const struct tensor_view *front[3] = {&t->q_a, &t->index_k, &t->kv_a};
    const struct tensor_view *front_plain[2] = {&t->q_a, &t->kv_a};
    const struct tensor_view *query[2] = {&t->q_b, &t->index_q_b};
    w->mla.index_row = t->q_a.n_row;
    w->mla.kv_row = t->q_a.n_row + (index ? t->index_k.n_row : 0);
    TRY(list_make(c, w, &w->mla.front, index ? front : front_plain, index ? 3 : 2,
                  "q_a, index_k, kv_a", d));
    TRY(list_make(c, w, &w->mla.query, query, index ? 2 : 1, "q_b, index_q_b", d));
    TRY(product_make(c, w, &w->mla.out, &t->o, "o", d));
    TRY(vector_make(c, w, &w->mla.q_norm, &t->q_a_norm, "q_a_norm", d));
    TRY(vector_make(c, w, &w->mla.kv_norm, &t->kv_a_norm, "kv_a_norm", d));
    TRY(make_kv_b(c, w, &t->kv_b, d));
    if (!index) return FATHOM_OK;
    TRY(product_make(c, w, &w->mla.index_head, &t->index_head, "index_head", d));
    TRY(vector_make(c, w, &w->mla.index_weight, &t->index_k_weight, "index_k_weight", d));
    return vector_make(c, w, &w->mla.index_bias, &t->index_k_bias, "index_k_bias", d);
}

fathom_err cuda_prepare_mla(struct backend *b, const struct mla_tensors *t, struct weight **out,
                            fathom_diag *d)
{
    struct weight *w;
    TRY(weight_create(WEIGHT_MLA, &w, d));
    return finish(cuda_of(b), w, fill_mla(cuda_of(b), w, t, d), out, d);
}

static fathom_err check_ffn(const struct ffn_tensors *t, uint32_t hidden, uint32_t inner,
                            fathom_diag *d)
{
    TRY(check_shape(&t->gate, "gate", inner, hidden, d));
    TRY(check_shape(&t->up, "up", inner, hidden, d));
    return check_shape(&t->down, "down", hidden, inner, d);
}

static fathom_err fill_ffn(struct cuda_backend *c, struct weight *w, const struct ffn_tensors *t,
                           uint32_t inner, fathom_diag *d)
{
    TRY(check_ffn(t, c->c.hidden, inner, d));
    const struct tensor_view *up[2] = {&t->gate, &t->up};
    TRY(list_make(c, w, &w->ffn.up, up, 2, "gate, up", d));
    return product_make(c, w, &w->ffn.down, &t->down, "down", d);
}

fathom_err cuda_prepare_ffn(struct backend *b, const struct ffn_tensors *t, struct weight **out,
                            fathom_diag *d)
{
    struct weight *w;
    TRY(weight_create(WEIGHT_FFN, &w, d));
    return finish(cuda_of(b), w, fill_ffn(cuda_of(b), w, t, cuda_of(b)->c.dense_inner, d), out, d);
}

/* One slab for all experts' matrices of one kind: `n_part` views make one expert's matrix. All
 * experts are alike in type, shape and place inside their scale blocks, and each starts on a scale
 * row of its own. */
static fathom_err
fill_slab(struct cuda_backend *c, struct weight *w, struct matrix_stack *s,
          const struct tensor_view *(*view_of)(const struct ffn_tensors *e, int i), int n_part,
          const struct moe_tensors *t, const char *what, fathom_diag *d)
{
    const struct tensor_view *like = view_of(&t->experts[0], 0);
    const uint32_t n_held = backend_held_experts(&c->c);
    ASSERT(t->experts && n_held > 0 && n_part >= 1 && n_part <= 2);
    TRY(check_type(like, what, d));
    s->n = n_held + (w->moe.stacked_shared ? 1 : 0);
    shape_matrix(&s->first, like);
    s->first.tiled = takes_tiles(c, like) && (n_part == 1 || like->n_row % SCALE_BLOCK == 0);
    s->first.n_row = like->n_row * (uint32_t)n_part;
    const size_t part_bytes = matrix_bytes(&s->first, like->n_row, s->first.tiled);
    s->data_stride = part_bytes * (size_t)n_part;
    TRY(take(c, w, s->data_stride * s->n, what, &s->first.data, d));
    const size_t n_scale = scale_count(&s->first, like->n_row, &s->first.scale_stride);
    s->scale_stride = n_scale * (size_t)n_part;
    TRY(take_scales(c, w, &s->first, s->scale_stride * s->n, has_row_scales(like), what, d));
    for (uint32_t i = 0; i < s->n * (uint32_t)n_part; i++) {
        uint32_t e = i / (uint32_t)n_part;
        const struct tensor_view *v =
            view_of(e < n_held ? &t->experts[e] : &t->shared, (int)(i % (uint32_t)n_part));
        if (!same_form(v, like) || v->n_row != like->n_row || v->n_col != like->n_col ||
            v->scale_row0 != like->scale_row0 || v->scale_col0 != like->scale_col0) {
            FAIL(d, FATHOM_EUNSUPPORTED, "%s: expert %u differs from expert 0 in form or shape",
                 what, e);
        }
        struct matrix m = s->first;
        m.n_row = v->n_row;
        m.data = (char *)m.data + part_bytes * i;
        if (m.scale) m.scale += n_scale * i;
        TRY(fill_part(c, &m, 0, v, what, d));
    }
    return FATHOM_OK;
}

static const struct tensor_view *gate_or_up(const struct ffn_tensors *e, int i)
{
    return i ? &e->up : &e->gate;
}

static const struct tensor_view *only_down(const struct ffn_tensors *e, int i)
{
    (void)i;
    return &e->down;
}

static const struct tensor_view *only_gate(const struct ffn_tensors *e, int i)
{
    (void)i;
    return &e->gate;
}

static const struct tensor_view *only_up(const struct ffn_tensors *e, int i)
{
    (void)i;
    return &e->up;
}

static fathom_err fill_moe(struct cuda_backend *c, struct weight *w, const struct moe_tensors *t,
                           fathom_diag *d)
{
    const struct ffn_tensors *e0 = &t->experts[0], *shared = &t->shared;
    bool has_shared = c->c.shared_inner > 0;
    TRY(check_shape(&t->router, "router", c->c.n_expert, c->c.hidden, d));
    TRY(check_shape(&t->router_bias, "router_bias", 1, c->c.n_expert, d));
    TRY(check_ffn(e0, c->c.hidden, c->c.moe_inner, d));
    if (has_shared) TRY(check_ffn(shared, c->c.hidden, c->c.shared_inner, d));
    w->moe.stacked_shared =
        has_shared && shared->gate.n_row == e0->gate.n_row && same_form(&shared->gate, &e0->gate) &&
        same_form(&shared->up, &e0->up) && same_form(&shared->down, &e0->down) &&
        shared->gate.scale_row0 == e0->gate.scale_row0 &&
        shared->down.scale_col0 == e0->down.scale_col0;
    w->moe.separate_shared = has_shared && !w->moe.stacked_shared;
    TRY(matrix_make(c, w, &w->moe.router, &t->router, "router", d));
    TRY(vector_make(c, w, &w->moe.bias, &t->router_bias, "router_bias", d));
    if (w->moe.separate_shared) TRY(fill_ffn(c, w, shared, c->c.shared_inner, d));
    const struct tensor_view *parts[2] = {&e0->gate, &e0->up};
    w->moe.fused_up = can_stack(parts, 2) &&
                      (e0->gate.dtype != DTYPE_F8_E4M3 || e0->gate.n_row % SCALE_BLOCK == 0);
    if (w->moe.fused_up) {
        TRY(fill_slab(c, w, &w->moe.up, gate_or_up, 2, t, "experts' gate and up", d));
    } else {
        TRY(fill_slab(c, w, &w->moe.up, only_gate, 1, t, "experts' gate", d));
        TRY(fill_slab(c, w, &w->moe.up_alone, only_up, 1, t, "experts' up", d));
    }
    return fill_slab(c, w, &w->moe.down, only_down, 1, t, "experts' down", d);
}

fathom_err cuda_prepare_moe(struct backend *b, const struct moe_tensors *t, struct weight **out,
                            fathom_diag *d)
{
    struct weight *w;
    TRY(weight_create(WEIGHT_MOE, &w, d));
    return finish(cuda_of(b), w, fill_moe(cuda_of(b), w, t, d), out, d);
}
