/* moe.cu - experts and their weighted sum */
#include "backend/cuda/generic/moe.cuh"

#include "backend/cuda/generic/moe_map.cuh"
#include "backend/cuda/launch.cuh"
#include "backend/cuda/product.cuh"
#include "backend/cuda/sm90/down_few.cuh"

enum { COMBINE_THREADS = 128, ROWS_AHEAD = 10, LIST_WARPS = 8, PIECES_AHEAD = 14 };

/* Rows of an expert, and its width, from which gate and up gain more by inputs in the order of the
 * list than the copy costs, which does not depend on the width: as measured on an H200 with 2048
 * and, at a loss of 4 % of a prompt, with the 256 of one rank of eight. */
enum { LIST_INPUT_ROWS = 128, LIST_INPUT_WIDTH = 1024 };

/* y[t] = sum over the rows of a token that are here of weight * row, in ascending order; the shared
 * expert last, unweighted. `present` NULL: all are. */
template <enum row_form FORM>
__global__ void __launch_bounds__(COMBINE_THREADS)
    combine_rows_kernel(const typename row_value<FORM>::type *rows, const int32_t *present,
                        const float *weights, const float *shared, uint32_t n_used,
                        uint32_t rows_per_token, uint32_t n, float *y)
{
    const uint32_t i = (blockIdx.x * COMBINE_THREADS + threadIdx.x) * 4;
    const size_t t = blockIdx.y;
    DCHECK(n % 4 == 0 && (n_used == rows_per_token || n_used + 1 == rows_per_token));
    kernel_begin();
    if (i >= n) return;
    float4 sum = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    const typename row_value<FORM>::type *from = rows + (t * rows_per_token * n + i) / 4;
    for (uint32_t s0 = 0; s0 < rows_per_token; s0 += ROWS_AHEAD) {
        typename row_value<FORM>::type v[ROWS_AHEAD];
        float w[ROWS_AHEAD];
        bool here[ROWS_AHEAD];
#pragma unroll
        for (uint32_t s = 0; s < ROWS_AHEAD; s++) {
            here[s] = s0 + s < rows_per_token;
            if (here[s] && present) here[s] = present[t * rows_per_token + s0 + s] >= 0;
        }
#pragma unroll
        for (uint32_t s = 0; s < ROWS_AHEAD; s++) {
            if (!here[s]) continue;
            v[s] = from[(size_t)(s0 + s) * (n / 4)];
            w[s] = s0 + s < n_used ? weights[t * n_used + s0 + s] : 1.0f;
        }
#pragma unroll
        for (uint32_t s = 0; s < ROWS_AHEAD; s++) {
            if (!here[s]) continue;
            const float4 x = read_row<FORM>(v[s]);
            sum.x = fmaf(w[s], x.x, sum.x);
            sum.y = fmaf(w[s], x.y, sum.y);
            sum.z = fmaf(w[s], x.z, sum.z);
            sum.w = fmaf(w[s], x.w, sum.w);
        }
    }
    if (shared) { /* a shared expert without a row of its own here */
        float4 v = *(const float4 *)(shared + t * n + i);
        sum = make_float4(sum.x + v.x, sum.y + v.y, sum.z + v.z, sum.w + v.w);
    }
    *(float4 *)(y + t * n + i) = sum;
}

struct list_args {
    const int32_t *rows;
    const int32_t *present; /* of struct task_map */
    int32_t *entries;       /* [row]: where it is in the list */
    const int32_t *n_entry;
    uint32_t n_token;
    uint32_t rows_per_token;
    uint32_t n_k_line;
    const uint8_t *q; /* [token][n_k_line * FP8_GROUP] */
    const float *scale;
    uint8_t *to; /* [entry of the list] of the same */
    float *to_scale;
};

__global__ void __launch_bounds__(LIST_WARPS *WARP) find_entries_kernel(const struct list_args a)
{
    const uint32_t i = blockIdx.x * LIST_WARPS * WARP + threadIdx.x;
    kernel_begin();
    if (i >= (uint32_t)*a.n_entry) return;
    DCHECK(a.rows[i] >= 0 && (uint32_t)a.rows[i] < a.n_token * a.rows_per_token);
    a.entries[a.rows[i]] = (int32_t)i;
}

/* A warp copies a token's codes and scales to all entries of the list that read them, so that they
 * are read once. */
__global__ void __launch_bounds__(LIST_WARPS *WARP) list_inputs_kernel(const struct list_args a)
{
    const uint32_t t = blockIdx.x * LIST_WARPS + threadIdx.x / WARP, lane = threadIdx.x % WARP;
    const uint32_t n_piece = a.n_k_line * (FP8_GROUP / (uint32_t)sizeof(uint4));
    kernel_begin();
    if (t >= a.n_token) return;
    const uint4 *from = (const uint4 *)a.q + (size_t)t * n_piece;
    const size_t row = (size_t)t * a.rows_per_token + lane;
    int entry = -1; /* of the token's row `lane` */
    if (lane < a.rows_per_token && !(a.present && a.present[row] < 0)) entry = a.entries[row];
    const unsigned listed = warp_ballot(entry >= 0);
    for (uint32_t first = 0; listed && first < n_piece; first += PIECES_AHEAD * WARP) {
        const uint32_t p0 = first + lane;
        uint4 v[PIECES_AHEAD];
#pragma unroll
        for (uint32_t j = 0; j < PIECES_AHEAD; j++) {
            if (p0 + j * WARP < n_piece) v[j] = from[p0 + j * WARP];
        }
        for (unsigned rows = listed; rows; rows &= rows - 1) {
            uint4 *to = (uint4 *)a.to + (size_t)shfl(entry, __ffs((int)rows) - 1) * n_piece;
#pragma unroll
            for (uint32_t j = 0; j < PIECES_AHEAD; j++) {
                if (p0 + j * WARP < n_piece) to[p0 + j * WARP] = v[j];
            }
        }
    }
    for (unsigned rows = listed; rows; rows &= rows - 1) {
        const size_t to = (size_t)shfl(entry, __ffs((int)rows) - 1) * a.n_k_line;
        for (uint32_t j = lane; j < a.n_k_line; j += WARP)
            a.to_scale[to + j] = a.scale[(size_t)t * a.n_k_line + j];
    }
}

/* Whether what is between gate and up and down lies in the order of the list, so that down copies
 * its tiles whole. */
static bool lists_rows(const struct cuda_backend *c, const struct weight *w, uint32_t tile)
{
    return tile >= PRODUCT_LARGE_TILE && cuda_takes_listed(c, &w->moe.up.first) &&
           (w->moe.fused_up || cuda_takes_listed(c, &w->moe.up_alone.first)) &&
           cuda_takes_listed(c, &w->moe.down.first);
}

/* x in the order of the list, where the experts' outputs will be: they are written when it has been
 * read. */
static fathom_err list_inputs(struct cuda_backend *c, struct act *x, uint32_t rows_per_token)
{
    const size_t n_row = c->map.n_row, n_code = n_row * x->width;
    static_assert(FP8_GROUP * sizeof(uint8_t) + sizeof(float) + sizeof(int32_t) <=
                      FP8_GROUP * sizeof(bf16),
                  "room of an output");
    ASSERT(x->q && x->width % FP8_GROUP == 0 && n_row == c->map.n_token * rows_per_token);
    ASSERT(rows_per_token <= WARP);
    struct list_args a = {};
    a.rows = c->map.rows;
    a.n_entry = c->map.n_task + TASK_N_ROW;
    a.present = c->map.present;
    a.n_token = c->map.n_token;
    a.rows_per_token = rows_per_token;
    a.n_k_line = x->width / FP8_GROUP;
    a.q = x->q;
    a.scale = x->scale;
    a.to = (uint8_t *)c->expert_out;
    a.to_scale = (float *)(a.to + n_code);
    a.entries = (int32_t *)(a.to_scale + n_code / FP8_GROUP);
    x->q = a.to;
    x->scale = a.to_scale;
    x->sums = {};
    TRY(cuda_launch(c, "entries of the list", find_entries_kernel,
                    dim3(ceil_div(c->map.n_row, LIST_WARPS * WARP)), LIST_WARPS * WARP, 0, a));
    return cuda_launch(c, "experts' inputs", list_inputs_kernel,
                       dim3(ceil_div(a.n_token, LIST_WARPS)), LIST_WARPS * WARP, 0, a);
}

/* Whether the product of gate and up makes the codes that down takes. */
static bool makes_codes(const struct cuda_backend *c, const struct weight *w, bool listed)
{
    return listed && w->moe.fused_up && cuda_codes_of(c, &w->moe.up.first) == CODES_FP8;
}

bool moe_lists_codes(const struct cuda_backend *c, const struct weight *w, uint32_t n_likely)
{
    ASSERT(w->kind == WEIGHT_MOE);
    const uint32_t tile = cuda_moe_tile(c, w, n_likely, w->moe.up.n);
    return makes_codes(c, w, lists_rows(c, w, tile));
}

/* What down takes, in mid_q: in one kernel where rows are listed and gate and up lie together. Else
 * mid [row][gate | up] first, whose halves are filled one after the other if they lie apart; then,
 * unless `only_up`, their SwiGLU. */
static fathom_err run_up(struct cuda_backend *c, const struct weight *w, struct act x,
                         uint32_t rows_per_token, bool listed, bool only_up)
{
    const uint32_t inner = c->c.moe_inner;
    const enum codes codes = cuda_codes_of(c, &w->moe.up.first);
    const bool fused = makes_codes(c, w, listed);
    const bool many = inner >= LIST_INPUT_WIDTH && c->map.n_likely >= w->moe.up.n * LIST_INPUT_ROWS;
    const bool sums = c->map.present && cuda_sums_for(c, &w->moe.up.first).at; /* are of all rows */
    const bool ahead =
        c->map.tile == PRODUCT_WIDE_TILE || (listed && many && !sums && x.q && x.codes == codes);
    struct expert_rows rows = {rows_per_token, ahead, listed};
    if (fused) {
        rows.q = c->mid_q;
        rows.scale = c->mid_scale;
    }
    ASSERT(!fused || !only_up);
    if (ahead) TRY(list_inputs(c, &x, rows_per_token));
    TRY(cuda_product_mapped(c, &w->moe.up, &x, rows, c->mid, 2 * inner, "experts' gate and up"));
    if (fused) return FATHOM_OK;
    if (!w->moe.fused_up) {
        TRY(cuda_product_mapped(c, &w->moe.up_alone, &x, rows, c->mid + inner, 2 * inner,
                                "experts' up"));
    }
    if (only_up) return FATHOM_OK;
    const struct matrix *down = &w->moe.down.first;
    /* in the order of the list those that are there are the first */
    const int32_t *present = listed ? NULL : c->map.present;
    return cuda_swiglu(c, c->map.n_row, present, down, cuda_sums_for(c, down), "experts");
}

/* Whether one kernel makes everything behind gate and up. It reads the route before it has waited
 * for them, so they run on kernels that let no other begin before the route is there (launch.cuh).
 */
static bool down_is_few(const struct cuda_backend *c, const struct moe_args *a,
                        uint32_t rows_per_token)
{
    const struct matrix_stack *down = &a->w->moe.down;
    return a->n_token <= DOWN_TOKENS_MAX && cuda_few_is_sm90(c, &a->w->moe.up.first) &&
           cuda_few_is_sm90(c, &down->first) &&
           down->first.n_col / 128 * rows_per_token <= DOWN_K_LINES_MAX;
}

static fathom_err run_down_few(struct cuda_backend *c, const struct moe_args *a,
                               uint32_t rows_per_token, const float *shared)
{
    const struct matrix_stack *w = &a->w->moe.down;
    ASSERT(w->first.n_row == c->c.hidden && w->first.n_col == c->c.moe_inner);
    struct down_args k = {};
    k.codes = cuda_codes_of(c, &w->first);
    k.w = (const uint8_t *)w->first.data;
    k.w_stride = w->data_stride;
    k.pack = w->first.pack;
    const bool by_row = w->first.line_scale != NULL;
    k.w_scale = by_row ? w->first.line_scale : w->first.scale;
    k.w_scale_step = by_row ? 0 : w->scale_stride;
    k.scale_stride = by_row ? 0 : w->first.scale_stride;
    k.row_scale = by_row ? w->first.scale : NULL;
    k.row_scale_step = w->scale_stride;
    k.n = w->first.n_row;
    k.k = w->first.n_col;
    k.n_token = a->n_token;
    k.rows_per_token = rows_per_token;
    k.n_used = c->c.n_expert_used;
    k.n_expert = w->n;
    k.experts = a->route->i;
    k.weights = a->route->w;
    k.gate_up = c->mid;
    k.shared = shared;
    k.y = a->y->f;
    c->last.what = "experts' down";
    c->last.grid = dim3(k.n_token, k.n);
    return cuda_check(c, down_few(k, c->stream), "down_few", "experts' down");
}

static fathom_err combine_rows(struct cuda_backend *c, const struct moe_args *a, enum row_form form,
                               uint32_t rows_per_token, const float *shared)
{
    const uint32_t hidden = c->c.hidden, n_used = c->c.n_expert_used;
    const dim3 grid(ceil_div(hidden, COMBINE_THREADS * 4), a->n_token);
    const float4 *rows = (const float4 *)c->expert_out;
    if (form == ROWS_BF16) {
        return cuda_launch(c, "moe", combine_rows_kernel<ROWS_BF16>, grid, COMBINE_THREADS, 0,
                           (const uint2 *)c->expert_out, c->map.present, a->route->w, shared,
                           n_used, rows_per_token, hidden, a->y->f);
    }
    return cuda_launch(c, "moe",
                       form == ROWS_FLOAT ? combine_rows_kernel<ROWS_FLOAT>
                                          : combine_rows_kernel<ROWS_FLOAT_TO_ROUND>,
                       grid, COMBINE_THREADS, 0, rows, c->map.present, a->route->w, shared, n_used,
                       rows_per_token, hidden, a->y->f);
}

/* Whether the experts' product of w lets no other kernel begin before its tasks are there
 * (launch.cuh). */
static bool releases_late(const struct cuda_backend *c, const struct matrix *w)
{
    ASSERT(!w->tiled || w->dtype != DTYPE_BF16);
    const bool few_bf16 = c->sm90 && cuda_wants_bf16(c, w) && w->dtype == DTYPE_BF16 &&
                          c->map.tile <= PRODUCT_BF16_TILE_MAX;
    return cuda_few_is_sm90(c, w) || few_bf16;
}

/* expert_out, of mid, and its form. */
static fathom_err run_down(struct cuda_backend *c, const struct weight *w, bool listed,
                           enum row_form *form)
{
    const struct matrix_stack *down = &w->moe.down;
    struct act mid = cuda_mid(c, &down->first);
    if (!makes_codes(c, w, listed)) mid.sums = cuda_sums_for(c, &down->first);
    struct expert_rows rows = {1, listed, false};
    rows.early = releases_late(c, w->moe.fused_up ? &w->moe.up.first : &w->moe.up_alone.first);
    const bool rounded = cuda_few_is_sm90(c, &down->first);
    if (cuda_mapped_leaves_bf16(c, &down->first, listed)) rows.h = (bf16 *)c->expert_out;
    *form = rows.h ? ROWS_BF16 : rounded ? ROWS_FLOAT_TO_ROUND : ROWS_FLOAT;
    return cuda_product_mapped(c, down, &mid, rows, c->expert_out, c->c.hidden, "experts' down");
}

fathom_err moe_run_experts(struct cuda_backend *c, const struct weight *w, const struct act *x,
                           enum row_form *form)
{
    const bool listed = lists_rows(c, w, c->map.tile);
    TRY(run_up(c, w, *x, c->map.n_row / c->map.n_token, listed, false));
    return run_down(c, w, listed, form);
}

/* ---- whole experts, on ranks that have the same rows ---- */

struct held_args {
    const int32_t *route; /* [token][n_used] */
    int32_t *experts;     /* [token][rows_per_token]: of this rank, or -1 */
    uint32_t n_token, n_used, rows_per_token;
    int32_t first, n_held, shared;
};

__global__ void __launch_bounds__(LIST_WARPS *WARP) held_kernel(const struct held_args a)
{
    const uint32_t i = blockIdx.x * LIST_WARPS * WARP + threadIdx.x;
    const uint32_t t = i / a.rows_per_token, k = i % a.rows_per_token;
    kernel_begin();
    if (t >= a.n_token) return;
    int32_t e = a.shared;
    if (k < a.n_used) {
        e = a.route[(size_t)t * a.n_used + k] - a.first;
        if (e < 0 || e >= a.n_held) e = -1;
    }
    a.experts[i] = e;
}

/* c->map, of the rows that this rank has experts of. */
static fathom_err map_rows(struct cuda_backend *c, const struct moe_args *a,
                           uint32_t rows_per_token)
{
    if (!cuda_has_part(c)) return cuda_moe_map(c, a->w, a->route, a->n_token);
    const uint32_t n_part = parallel_axis(&c->c.parallel, CUT_EXPERTS).size;
    struct held_args k = {};
    k.route = a->route->i;
    k.experts = c->round.experts;
    k.n_token = a->n_token;
    k.n_used = c->c.n_expert_used;
    k.rows_per_token = rows_per_token;
    k.first = (int32_t)parallel_first_expert(&c->c.parallel, c->c.n_expert);
    k.n_held = (int32_t)backend_held_experts(&c->c);
    k.shared = (int32_t)a->w->moe.up.n - 1;
    const uint32_t n_row = a->n_token * rows_per_token;
    ASSERT(k.n_held > 0 && rows_per_token >= k.n_used);
    TRY(cuda_launch(c, "moe: experts here", held_kernel, dim3(ceil_div(n_row, LIST_WARPS * WARP)),
                    LIST_WARPS * WARP, 0, k));
    const uint32_t n_likely = ceil_div(a->n_token * k.n_used, n_part);
    return moe_map_present(c, a->w, k.experts, a->n_token,
                           n_likely + (a->w->moe.stacked_shared ? a->n_token : 0));
}

fathom_err cuda_moe(struct backend *b, const struct moe_args *a)
{
    struct cuda_backend *c = cuda_of(b);
    op_check_moe(&c->c, a);
    ASSERT(a->w->kind == WEIGHT_MOE && a->route->kind == BUFFER_ROUTE);
    ASSERT(a->x->kind == BUFFER_NORMED && a->y->kind == BUFFER_DELTA);
    uint32_t n_used = c->c.n_expert_used,
             rows_per_token = n_used + (a->w->moe.stacked_shared ? 1 : 0);
    uint32_t hidden = c->c.hidden;
    const float *shared = a->w->moe.separate_shared ? c->shared_out : NULL;
    struct act x = act_of(a->x, hidden);
    if (c->normed.of == a->x) x.sums = c->normed.sums;
    c->normed.of = NULL; /* down's come to the same room */
    if (shared) TRY(cuda_ffn_run(c, a->w, x, a->n_token, c->shared_out));
    TRY(map_rows(c, a, rows_per_token));
    const bool listed = lists_rows(c, a->w, c->map.tile);
    const bool few = !c->map.present && down_is_few(c, a, rows_per_token);
    TRY(run_up(c, a->w, x, rows_per_token, listed, few));
    if (few) return run_down_few(c, a, rows_per_token, shared);
    enum row_form form;
    TRY(run_down(c, a->w, listed, &form));
    return combine_rows(c, a, form, rows_per_token, shared);
}
