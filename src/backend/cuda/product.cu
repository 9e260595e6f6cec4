/* product.cu - which kernel a product runs on: by path, matrix and number of rows alone
 *
 * Kernels that a matrix runs on with few rows and with many give the same bits: those of generic/,
 * or those of sm90/, whose tensor cores sum a K line of 128 otherwise. */
#include "backend/cuda/k_parts.h"
#include "backend/cuda/product.cuh"
#include "backend/cuda/sm90/product_bf16.cuh"
#include "backend/cuda/sm90/product_e2m1.cuh"
#include "backend/cuda/sm90/product_few.cuh"
#include "backend/cuda/sm90/product_fp8.cuh"
#include "backend/cuda/sm90/product_fp8_wide.cuh"
#include "backend/cuda/sm90/product_int8.cuh"
#include "backend/cuda/sm90/product_u4.cuh"
#include "backend/cuda/sm90/product_u4_turned.cuh"

enum { SMALL_TOKENS_MAX = 64, FEW_TOKENS_MAX = 64, FEW_TILE_MAX = 64, LONG_K_LINES = 32 };
static_assert((int)FEW_TILE_MAX == 8 << (FEW_TILES - 1), "tiles of product_few: 8, 16, 32, 64");

/* Products of codes have scales of squares or rows; product_float has blocks of any size. */
static void set_scales(struct product_args *a, const struct matrix *w, bool codes)
{
    const bool by_row = codes && w->line_scale;
    a->w_scale = by_row ? w->line_scale : w->scale;
    a->scale_stride = by_row ? 0 : w->scale_stride;
    a->row_scale = by_row ? w->scale : NULL;
    a->block_row = w->block_row;
    a->block_col = w->block_col;
}

/* Whether the inputs are there as the codes that w takes. */
static bool has_codes(const struct cuda_backend *c, const struct matrix *w, const struct act *in)
{
    return in->q && in->codes != CODES_NONE && in->codes == cuda_codes_of(c, w);
}

static struct product_args make_args(const struct cuda_backend *c, const struct matrix *w,
                                     const struct act *in, float *out, uint32_t stride)
{
    struct product_args a = {};
    ASSERT(w->data && w->n_row > 0 && w->n_col > 0 && stride >= w->n_row);
    ASSERT(in->width == w->n_col);
    ASSERT(w->dtype != DTYPE_F8_E4M3 || (w->scale && w->scale_stride > 0));
    ASSERT((w->dtype == DTYPE_U8) == (w->pack.tile_bytes > 0));
    a.w = w->data;
    a.tiled = w->tiled;
    a.w_stride = tiled_bytes(w->n_row, w->n_col);
    a.pack = w->pack;
    a.int8 = cuda_wants_int8(c, w);
    set_scales(&a, w, a.int8 || has_codes(c, w, in));
    a.n = w->n_row;
    a.k = w->n_col;
    a.row0 = w->row0;
    a.col0 = w->col0;
    a.f = in->f;
    a.h = in->h;
    if (has_codes(c, w, in)) {
        a.q = in->q;
        a.q_scale = in->scale;
    }
    a.in_rows = in->rows;
    a.out = out;
    a.out_stride = stride;
    a.round = c->c.act != ACT_F32;
    return a;
}

bool cuda_wants_fp8(const struct cuda_backend *c, const struct matrix *w)
{
    /* as tensor_takes_fp8 */
    if (w->dtype == DTYPE_U8) return c->c.act == ACT_FP8 && w->packs_fp8;
    return c->fast && w->dtype == DTYPE_F8_E4M3 && w->n_col % 128 == 0 && w->row0 == 0 &&
           w->col0 == 0;
}

bool cuda_wants_int8(const struct cuda_backend *c, const struct matrix *w)
{
    return c->c.act == ACT_INT8 && w->dtype == DTYPE_I8 && w->int8 != TENSOR_INT8_NONE;
}

enum codes cuda_codes_of(const struct cuda_backend *c, const struct matrix *w)
{
    if (cuda_wants_fp8(c, w)) return CODES_FP8;
    if (!cuda_wants_int8(c, w)) return CODES_NONE;
    return w->int8 == TENSOR_INT8_ROW ? CODES_INT8_ROW : CODES_INT8;
}

bool cuda_wants_bf16(const struct cuda_backend *c, const struct matrix *w)
{
    const bool is_bf16 = w->dtype == DTYPE_BF16 || (w->dtype == DTYPE_U8 && w->pack.is_e2m1);
    return c->fast && is_bf16 && w->n_col % 64 == 0;
}

static uint32_t input_form(const struct cuda_backend *c, const struct matrix *w)
{
    if (!c->fast) return INPUT_F32;
    switch (cuda_codes_of(c, w)) {
    case CODES_FP8: return INPUT_FP8;
    case CODES_INT8: return INPUT_INT8;
    case CODES_INT8_ROW: return INPUT_INT8_ROW;
    default: return cuda_wants_bf16(c, w) ? INPUT_BF16 : INPUT_F32;
    }
}

/* Of several kinds of codes the first; products make the others, which are int8, of values. */
static uint32_t one_kind(uint32_t forms)
{
    const uint32_t codes = forms & INPUT_CODES, first = codes & (~codes + 1);
    return codes == first ? forms : (forms & ~(uint32_t)INPUT_CODES) | first | INPUT_F32;
}

static uint32_t list_forms(const struct cuda_backend *c, const struct matrix_list *w)
{
    uint32_t forms = 0;
    for (uint32_t i = 0; i < w->n; i++) forms |= input_form(c, &w->part[i]);
    return forms;
}

uint32_t cuda_input_forms(const struct cuda_backend *c, const struct weight *w)
{
    if (!w) return INPUT_ALL;
    if (w->kind == WEIGHT_MLA) {
        const uint32_t forms = list_forms(c, &w->mla.front);
        return one_kind(w->mla.index_head.data ? forms | input_form(c, &w->mla.index_head) : forms);
    }
    if (w->kind == WEIGHT_FFN) return one_kind(list_forms(c, &w->ffn.up));
    ASSERT(w->kind == WEIGHT_MOE);
    uint32_t forms = input_form(c, &w->moe.up.first);
    if (!w->moe.fused_up) forms |= input_form(c, &w->moe.up_alone.first);
    if (w->moe.separate_shared) forms |= list_forms(c, &w->ffn.up);
    return one_kind(forms);
}

/* Whether sm90/ takes it where rows are many. */
static bool bf16_takes_many(const struct cuda_backend *c, const struct matrix *w)
{
    return c->sm90 && cuda_wants_bf16(c, w) && w->dtype == DTYPE_BF16 && w->n_row % 8 == 0;
}

/* Rows from which on sm90/ is faster: of few outputs its tiles leave most of the device idle. As
 * measured on an H200. */
static uint32_t bf16_many_rows(const struct matrix *w)
{
    enum { OUTPUTS_MANY = 4096, ROWS_OF_MANY = 33, OUTPUTS_TILED = 16384 };
    static_assert((int)ROWS_OF_MANY <= (int)PRODUCT_BF16_TILE_MAX, "the least number of rows");
    if (w->tiled && w->n_row >= OUTPUTS_TILED) return 1;
    return w->n_row >= OUTPUTS_MANY ? ROWS_OF_MANY : PRODUCT_BF16_TILE_MAX + 1;
}

static uint32_t token_tile(uint32_t n_token)
{
    return n_token <= 8 ? 8 : n_token <= 16 ? 16 : 32;
}

/* Of product_few. */
static uint32_t few_tile(uint32_t n_token)
{
    return n_token > 32 ? (uint32_t)FEW_TILE_MAX : token_tile(n_token);
}

static bool is_aligned(const void *p)
{
    return (uintptr_t)p % 16 == 0;
}

/* Whether codes of U4 are made E4M3 once, not in every tile of rows, in room that attention of
 * prompts has at other times; the bits are the same. It costs bytes, whatever the rows, and saves
 * multiprocessors' time in every tile of rows: counted, on an H200 from 5 to 7 tiles on
 * (product_u4.md). A factor of 0: never. */
static bool turns_u4(const struct cuda_backend *c, const struct product_args &a)
{
    enum { U4_TURNED_TILES = 16 };
    return !a.tasks && product_u4_turns(a.pack) &&
           ceil_div(a.n_token, PRODUCT_LARGE_TILE) * U4_TURNED_TILES >= c->limits.n_sm &&
           product_u4_turned_bytes(a.n, a.k) <= c->prompt.kv_bytes;
}

static fathom_err product_sm90(struct cuda_backend *c, const struct product_args &a, uint32_t tile,
                               uint32_t n_tile, const char *what)
{
    ASSERT(a.q && a.q_scale && a.row0 == 0 && a.col0 == 0 && a.out_stride % 4 == 0);
    ASSERT(is_aligned(a.w) && is_aligned(a.q) && is_aligned(a.out));
    c->last.what = what;
    c->last.grid = dim3(c->limits.n_sm, tile, n_tile);
    if (tile <= FEW_TILE_MAX) {
        return cuda_check(c, product_few(a, tile, n_tile, c->limits, c->stream), "product_few",
                          what);
    }
    if (tile == PRODUCT_WIDE_TILE) {
        return cuda_check(c, product_fp8_wide(a, n_tile, c->limits, c->stream), "product_fp8_wide",
                          what);
    }
    if (turns_u4(c, a)) {
        return cuda_check(c, product_u4_turned(a, c->prompt.kv, n_tile, c->limits, c->stream),
                          "product_u4_turned", what);
    }
    if (a.pack.tile_bytes) {
        return cuda_check(c, product_u4_sm90(a, n_tile, c->limits, c->stream), "product_u4_sm90",
                          what);
    }
    if (a.int8) {
        return cuda_check(c, product_int8_sm90(a, n_tile, c->limits, c->stream),
                          "product_int8_sm90", what);
    }
    return cuda_check(c, product_fp8_sm90(a, n_tile, c->limits, c->stream), "product_fp8_sm90",
                      what);
}

static fathom_err product_u4(struct cuda_backend *c, const struct product_args &a, uint32_t tile,
                             uint32_t n_tile, const char *what)
{
    return c->sm90 ? product_sm90(c, a, tile, n_tile, what)
                   : product_u4_small(c, a, tile, n_tile, what);
}

/* Whether sm90/ takes it, all rows. */
static bool takes_e2m1(const struct cuda_backend *c, const struct pack4 &pack, uint32_t k)
{
    return c->sm90 && pack.is_e2m1 && k % PACK4_COLS == 0;
}

/* A product of E2M1. */
static fathom_err product_e2m1(struct cuda_backend *c, const struct product_args &a, uint32_t tile,
                               uint32_t n_tile, const char *what)
{
    if (a.in_rows || !takes_e2m1(c, a.pack, a.k)) return product_bf16(c, a, tile, n_tile, what);
    c->last.what = what;
    c->last.grid = dim3(c->limits.n_sm, tile, n_tile);
    if (tile == PRODUCT_LARGE_TILE) {
        return cuda_check(c, product_e2m1_sm90(a, n_tile, c->limits, c->stream),
                          "product_e2m1_sm90", what);
    }
    return cuda_check(c, product_few_e2m1(a, tile, n_tile, c->limits, c->stream),
                      "product_few_e2m1", what);
}

/* Whether product_few takes a plain product: rows of inputs one after the other, and no more of
 * them than wide matrices, whose tiles fill the device, have on sm90/product_bf16.cu. */
static bool bf16_is_few(const struct cuda_backend *c, const struct product_args &a)
{
    enum { OUTPUTS_WIDE = 32768, ROWS_OF_WIDE = 32 };
    const uint32_t most = a.n >= OUTPUTS_WIDE ? (uint32_t)ROWS_OF_WIDE : (uint32_t)FEW_TOKENS_MAX;
    return c->sm90 && !a.pack.tile_bytes && !a.tiled && !a.in_rows && a.n_token <= most;
}

static fathom_err product_bf16_few(struct cuda_backend *c, const struct product_args &a,
                                   uint32_t tile, uint32_t n_tile, uint32_t n_matrix,
                                   const char *what)
{
    c->last.what = what;
    c->last.grid = dim3(c->limits.n_sm, tile, n_tile);
    return cuda_check(c, product_few_bf16(a, tile, n_tile, n_matrix, c->limits, c->stream),
                      "product_few_bf16", what);
}

static fathom_err product_bf16_many(struct cuda_backend *c, const struct product_args &a,
                                    uint32_t n_tile, uint32_t n_matrix, const char *what)
{
    c->last.what = what;
    c->last.grid = dim3(c->limits.n_sm, PRODUCT_LARGE_TILE, n_tile);
    return cuda_check(c, product_bf16_sm90(a, n_tile, n_matrix, c->limits, c->stream),
                      "product_bf16_sm90", what);
}

/* A product of codes. */
static fathom_err product_codes(struct cuda_backend *c, const struct product_args &a, uint32_t tile,
                                uint32_t n_tile, const char *what)
{
    if (a.pack.tile_bytes) return product_u4(c, a, tile, n_tile, what);
    if (a.tiled) return product_sm90(c, a, tile, n_tile, what);
    if (a.int8) return product_i8(c, a, tile, n_tile, what);
    if (tile == PRODUCT_LARGE_TILE) return product_fp8_large(c, a, n_tile, what);
    return product_small(c, a, tile, n_tile, what);
}

/* More than 32 rows: product_fp8 has one block a tile of 128 x 128 and walks through K, which is
 * long where tiles are few; product_few shares K, and is slow where the device does not hold its
 * blocks all at once. As measured on an H200. */
static bool few_is_faster(const struct cuda_backend *c, const struct product_args &a)
{
    enum { BLOCKS_PER_SM = 3 };
    const uint32_t n_k_line = a.k / 128, n_sm = c->limits.n_sm;
    if (n_k_line >= LONG_K_LINES) {
        const uint32_t n_tile = ceil_div(a.n, 128) * ceil_div(a.n_token, PRODUCT_LARGE_TILE);
        return a.n_token <= FEW_TOKENS_MAX || n_tile <= n_sm * 3 / 10;
    }
    return a.n_token <= FEW_TOKENS_MAX &&
           ceil_div(a.n, 64) * k_part_count(n_k_line) < n_sm * BLOCKS_PER_SM;
}

/* Experts with a long K: product_fp8 takes tasks of few rows as well, and is a little faster where
 * its tiles are enough to keep the device busy and few enough to end together, and where tasks of
 * 32 rows fill half of its tile. Not with one token, which
 * leaves tiles of wide experts for a third of a wave. As measured on an H200. */
static bool many_is_faster(const struct cuda_backend *c, const struct matrix *w)
{
    const uint32_t n_tile = c->map.max_task * ceil_div(w->n_row, 128), n_sm = c->limits.n_sm;
    if (!w->tiled || w->n_col / 128 < LONG_K_LINES || c->map.n_token == 1) return false;
    if (c->map.tile > PRODUCT_LARGE_TILE) return false;
    return c->map.tile == 32 || (n_tile >= n_sm / 2 && n_tile <= 3 * n_sm);
}

/* Rows of a tile of U4 weights. Where there is no kernel for many, that for few makes as many tiles
 * as it takes. */
static uint32_t u4_tile(const struct cuda_backend *c, const struct product_args &a)
{
    if (!c->sm90 || a.n_token <= 32) return token_tile(a.n_token);
    const bool few = a.n_token <= FEW_TOKENS_MAX || few_is_faster(c, a);
    return few || !product_u4_takes(a.pack) ? (uint32_t)FEW_TILE_MAX : (uint32_t)PRODUCT_LARGE_TILE;
}

/* Rows of a tile of a plain product of E2M1. */
static uint32_t e2m1_tile(const struct cuda_backend *c, const struct product_args &a)
{
    const bool many = takes_e2m1(c, a.pack, a.k) && !a.in_rows && a.n % 4 == 0 &&
                      a.out_stride % 4 == 0 && is_aligned(a.out);
    const bool few = a.n_token <= FEW_TOKENS_MAX || few_is_faster(c, a);
    return few || !many ? few_tile(a.n_token) : (uint32_t)PRODUCT_LARGE_TILE;
}

/* Rows of a tile of a plain product of codes. */
static uint32_t codes_tile(const struct cuda_backend *c, const struct product_args &a)
{
    if (a.pack.tile_bytes) return u4_tile(c, a);
    if (!a.tiled) {
        return a.n_token > SMALL_TOKENS_MAX ? PRODUCT_LARGE_TILE : token_tile(a.n_token);
    }
    if (a.n_token <= 32) return token_tile(a.n_token);
    return few_is_faster(c, a) ? (uint32_t)FEW_TILE_MAX : (uint32_t)PRODUCT_LARGE_TILE;
}

/* The int8 codes of a's inputs, where nobody has made them. */
static fathom_err find_int8_codes(struct cuda_backend *c, struct product_args *a,
                                  const struct matrix *w, const struct act *in, uint32_t n_in,
                                  const char *what)
{
    if (!a->int8 || a->q) return FATHOM_OK;
    ASSERT((uint64_t)n_in * in->width <= c->int8_bytes);
    a->q = c->int8_q;
    a->q_scale = c->int8_scale;
    return cuda_int8_codes(c, in->f, n_in, in->width, false, cuda_codes_of(c, w), c->int8_q,
                           c->int8_scale, what);
}

struct input_sums cuda_sums_for(const struct cuda_backend *c, const struct matrix *w)
{
    if (!c->sm90 || !cuda_wants_fp8(c, w) || !w->pack.tile_bytes || w->pack.is_e2m1) return {};
    return {c->input_sums, K_LINE_BYTES / w->pack.n_group};
}

/* The sums of a's inputs for experts w, where nobody has made them. */
static fathom_err find_input_sums(struct cuda_backend *c, struct product_args *a,
                                  const struct matrix *w, const struct act *in,
                                  const struct expert_rows &rows, const char *what)
{
    const struct input_sums sums = a->q ? cuda_sums_for(c, w) : (struct input_sums){};
    a->input_sums = sums.at;
    if (!sums.at || (in->sums.at == sums.at && in->sums.group == sums.group)) return FATHOM_OK;
    const uint32_t n_row = rows.in_listed ? c->map.n_row : c->map.n_row / rows.in_divisor;
    return cuda_input_sums(c, in->q, in->scale, n_row, in->width, sums, what);
}

fathom_err cuda_product(struct cuda_backend *c, const struct matrix *w, const struct act *in,
                        uint32_t n_token, float *out, uint32_t stride, const char *what)
{
    struct product_args a = make_args(c, w, in, out, stride);
    a.n_token = n_token;
    TRY(find_int8_codes(c, &a, w, in, n_token, what));
    if (a.q) {
        uint32_t tile = codes_tile(c, a);
        return product_codes(c, a, tile, ceil_div(n_token, tile), what);
    }
    if (in->h && cuda_wants_bf16(c, w)) {
        if (w->pack.is_e2m1) {
            const uint32_t tile = e2m1_tile(c, a);
            return product_e2m1(c, a, tile, ceil_div(n_token, tile), what);
        }
        if (bf16_is_few(c, a)) return product_bf16_few(c, a, few_tile(n_token), 1, 1, what);
        const bool many = n_token >= bf16_many_rows(w) && stride % 2 == 0;
        if (!many || !bf16_takes_many(c, w)) return product_bf16(c, a, 0, 0, what);
        return product_bf16_many(c, a, ceil_div(n_token, PRODUCT_LARGE_TILE), 1, what);
    }
    ASSERT(!a.tiled);
    return product_float(c, a, w->dtype, ceil_div(n_token, PRODUCT_FLOAT_TILE), what);
}

fathom_err cuda_product_list(struct cuda_backend *c, const struct matrix_list *w,
                             const struct act *in, uint32_t n_token, float *out, const char *what)
{
    for (uint32_t i = 0; i < w->n; i++) {
        TRY(cuda_product(c, &w->part[i], in, n_token, out + w->row[i], w->n_row, what));
    }
    return FATHOM_OK;
}

bool cuda_takes_many(const struct cuda_backend *c, const struct matrix *w, const struct act *in,
                     uint32_t n_token)
{
    if (!has_codes(c, w, in) || n_token == 0) return false;
    struct product_args a = make_args(c, w, in, NULL, w->n_row);
    a.n_token = n_token;
    return (a.tiled || a.pack.tile_bytes) && codes_tile(c, a) == PRODUCT_LARGE_TILE;
}

bool cuda_takes_listed(const struct cuda_backend *c, const struct matrix *w)
{
    return w->tiled || (c->sm90 && cuda_wants_fp8(c, w) && product_u4_takes(w->pack));
}

bool cuda_few_is_sm90(const struct cuda_backend *c, const struct matrix *w)
{
    return cuda_takes_listed(c, w) || (cuda_wants_bf16(c, w) && takes_e2m1(c, w->pack, w->n_col));
}

bool cuda_mapped_leaves_bf16(const struct cuda_backend *c, const struct matrix *w, bool listed)
{
    const bool many = c->map.tile > FEW_TILE_MAX;
    if (!cuda_few_is_sm90(c, w)) return false;
    return listed || (many ? w->pack.is_e2m1 : !many_is_faster(c, w));
}

fathom_err cuda_product_query(struct cuda_backend *c, const struct matrix *w, const struct act *in,
                              uint32_t n_token, const struct query_rows *out, const char *what)
{
    struct product_args a = make_args(c, w, in, NULL, out->stride);
    ASSERT(cuda_takes_many(c, w, in, n_token) && out->to && out->angles &&
           out->angle_stride % 2 == 0);
    a.n_token = n_token;
    a.out_h = out->to;
    a.angles = out->angles;
    a.angle_stride = out->angle_stride;
    return product_sm90(c, a, PRODUCT_LARGE_TILE, ceil_div(n_token, PRODUCT_LARGE_TILE), what);
}

bool cuda_takes_swiglu(const struct cuda_backend *c, const struct matrix_list *w,
                       const struct act *in, uint32_t n_token)
{
    const struct matrix *m = &w->part[0];
    return w->n == 1 && m->n_row % (2 * FP8_GROUP) == 0 && cuda_wants_fp8(c, m) &&
           cuda_takes_many(c, m, in, n_token);
}

fathom_err cuda_product_swiglu(struct cuda_backend *c, const struct matrix_list *w,
                               const struct act *in, uint32_t n_token, uint8_t *q, float *scale,
                               const char *what)
{
    struct product_args a = make_args(c, &w->part[0], in, NULL, w->n_row);
    ASSERT(cuda_takes_swiglu(c, w, in, n_token) && q && scale);
    a.n_token = n_token;
    a.out_q = q;
    a.out_scale = scale;
    return product_sm90(c, a, PRODUCT_LARGE_TILE, ceil_div(n_token, PRODUCT_LARGE_TILE), what);
}

fathom_err cuda_product_mapped(struct cuda_backend *c, const struct matrix_stack *w,
                               const struct act *in, struct expert_rows rows, float *out,
                               uint32_t stride, const char *what)
{
    struct product_args a = make_args(c, &w->first, in, out, stride);
    a.n_token = c->map.n_row;
    a.tasks = c->map.tasks;
    a.n_task = c->map.n_task;
    a.feed = c->map.n_task + TASK_FEED;
    a.rows = c->map.rows;
    a.in_divisor = rows.in_divisor;
    a.in_listed = rows.in_listed;
    a.out_listed = rows.out_listed;
    a.out_h = rows.h;
    a.out_q = rows.q;
    a.out_scale = rows.scale;
    a.tasks_early = rows.early;
    a.handed = c->handed;
    ASSERT((!rows.in_listed && !rows.out_listed && !rows.q) || cuda_takes_listed(c, &w->first));
    ASSERT((!rows.in_listed && !rows.out_listed && !rows.q) ||
           (c->map.tile >= PRODUCT_LARGE_TILE && cuda_few_is_sm90(c, &w->first)));
    ASSERT(!rows.h || cuda_mapped_leaves_bf16(c, &w->first, rows.in_listed));
    a.w_stride = w->data_stride;
    *(a.row_scale ? &a.row_scale_step : &a.w_scale_step) = w->scale_stride;
    if (c->map.n_token == 1 && c->map.w->moe.stacked_shared && !c->map.present) { /* a row a task */
        a.known_task = (int)c->c.n_expert_used + 1;
        a.known_expert = (int)w->n - 1;
    }
    TRY(find_int8_codes(c, &a, &w->first, in, c->map.n_row / rows.in_divisor, what));
    TRY(find_input_sums(c, &a, &w->first, in, rows, what));
    if (a.q) {
        const uint32_t tile = many_is_faster(c, &w->first) ? PRODUCT_LARGE_TILE : c->map.tile;
        return product_codes(c, a, tile, c->map.max_task, what);
    }
    if (in->h && cuda_wants_bf16(c, &w->first)) {
        if (a.pack.is_e2m1) return product_e2m1(c, a, c->map.tile, c->map.max_task, what);
        if (c->map.tile <= PRODUCT_BF16_TILE_MAX) {
            return c->sm90 ? product_bf16_few(c, a, c->map.tile, c->map.max_task, w->n, what)
                           : product_bf16(c, a, c->map.tile, c->map.max_task, what);
        }
        return product_bf16_many(c, a, c->map.max_task, w->n, what);
    }
    ASSERT(!a.tiled);
    return product_float(c, a, w->first.dtype, c->map.max_task, what);
}

/* Whether product_fp8_wide takes gate and up, and down. */
static bool takes_wide(const struct cuda_backend *c, const struct weight *w)
{
    const struct matrix *up = &w->moe.up.first, *down = &w->moe.down.first;
    return w->moe.fused_up && up->tiled && down->tiled && cuda_wants_fp8(c, up) &&
           cuda_wants_fp8(c, down) && up->n_row % (2 * FP8_GROUP) == 0 && down->n_row % 16 == 0 &&
           fp8_k_part_count(up->n_row, up->n_col / 128, true) == 1 &&
           fp8_k_part_count(down->n_row, down->n_col / 128, true) == 1;
}

/* Whether product_e2m1_sm90 takes the experts' products: widths are multiples of 128 then. */
static bool e2m1_takes_many(const struct cuda_backend *c, const struct weight *w)
{
    const struct matrix *up = &w->moe.up.first, *down = &w->moe.down.first;
    return takes_e2m1(c, up->pack, up->n_col) && takes_e2m1(c, down->pack, down->n_col) &&
           (w->moe.fused_up || w->moe.up_alone.first.pack.is_e2m1);
}

/* Rows of a task, of those that both products can take: small tiles stream the weights of every
 * expert hit once or a few times; with many rows an expert the large tile computes instead. */
uint32_t cuda_moe_tile(const struct cuda_backend *c, const struct weight *w, uint32_t n_row,
                       uint32_t n_stack)
{
    enum { LARGE_FROM = 24, LARGE_FROM_BF16 = 10, WIDE_FROM = 100 }; /* as measured on an H200 */
    static_assert((int)TASK_ROWS_MIN <= 8, "scratch.h: tasks of the smallest tile are listed");
    ASSERT(n_stack > 0);
    const struct matrix *up = &w->moe.up.first, *down = &w->moe.down.first;
    const bool up_fp8 = cuda_wants_fp8(c, up), down_fp8 = cuda_wants_fp8(c, down);
    const bool up_int8 = cuda_wants_int8(c, up), down_int8 = cuda_wants_int8(c, down);
    uint32_t mean = n_row / n_stack;
    bool large = (up_fp8 || bf16_takes_many(c, up)) && (down_fp8 || bf16_takes_many(c, down));
    if (up_int8 != down_int8) return 32;
    if (up_int8)
        large = true;
    else if (!up_fp8 && !cuda_wants_bf16(c, up))
        return down_fp8 ? 32 : PRODUCT_FLOAT_TILE;
    if (up->pack.tile_bytes || down->pack.tile_bytes) {
        const bool both =
            c->sm90 && up_fp8 && down_fp8 && up->pack.tile_bytes == down->pack.tile_bytes;
        if (both && mean >= LARGE_FROM) {
            const bool listed = cuda_takes_listed(c, up) && cuda_takes_listed(c, down);
            return listed ? (uint32_t)PRODUCT_LARGE_TILE : (uint32_t)FEW_TILE_MAX;
        }
        if (up->pack.is_e2m1 && down->pack.is_e2m1 && mean >= LARGE_FROM) {
            const bool many = e2m1_takes_many(c, w);
            return many ? (uint32_t)PRODUCT_LARGE_TILE : (uint32_t)PRODUCT_BF16_TILE_MAX;
        }
        large = false;
    }
    const uint32_t large_from = up_fp8 || down_fp8 || up_int8 ? LARGE_FROM : LARGE_FROM_BF16;
    if (large && mean >= WIDE_FROM && takes_wide(c, w)) return PRODUCT_WIDE_TILE;
    return mean < 4 ? 8 : mean < 10 ? 16 : mean < large_from || !large ? 32 : PRODUCT_LARGE_TILE;
}
