/* dense.cu - embedding, norm, quantization, SwiGLU, dense FFN, linear, head, the draft's front */
#include "backend/cuda/common.cuh"
#include "backend/cuda/generic/collect.cuh"
#include "backend/cuda/generic/collect_net.cuh"
#include "backend/cuda/generic/norm.cuh"
#include "backend/cuda/launch.cuh"
#include "backend/cuda/product.cuh"

enum {
    CONCAT_THREADS = 512,
    EMBED_THREADS = 256,
    GROUP_THREADS = 256, /* of blocks whose warps have a group of FP8_GROUP values each */
    GROUP_WARPS = GROUP_THREADS / WARP,
};

/* Value `col` of a row of a table of BF16; those up to a multiple of 8 follow it. */
static __device__ __forceinline__ const bf16 *bf16_at(const struct matrix &table, uint32_t row,
                                                      uint32_t col)
{
    if (!table.tiled) return (const bf16 *)table.data + (size_t)row * table.n_col + col;
    return (const bf16 *)((const char *)table.data + tiled_at(row, col * 2, table.n_col * 2));
}

/* One thread 4 values of a row; needs a width that is a multiple of 4. */
__global__ void __launch_bounds__(EMBED_THREADS)
    embed_kernel(float *x, struct matrix table, const int32_t *ids, const int32_t *drawn)
{
    const uint32_t i = (blockIdx.y * EMBED_THREADS + threadIdx.x) * 4;
    kernel_begin();
    if (i >= table.n_col) return;
    const int32_t given = ids[blockIdx.x], id = given < 0 ? drawn[~given] : given;
    DCHECK(id >= 0 && (uint32_t)id < table.n_row && table.n_col % 4 == 0);
    float4 v;
    if (table.dtype == DTYPE_BF16) {
        const uint2 h = *(const uint2 *)bf16_at(table, (uint32_t)id, i);
        v = make_float4(__uint_as_float(h.x << 16), __uint_as_float(h.x & 0xffff0000u),
                        __uint_as_float(h.y << 16), __uint_as_float(h.y & 0xffff0000u));
    } else {
        v = *(const float4 *)((const float *)table.data + (size_t)id * table.n_col + i);
    }
    *(float4 *)(x + (size_t)blockIdx.x * table.n_col + i) = v;
}

fathom_err cuda_embed(struct backend *b, const struct embed_args *a)
{
    struct cuda_backend *c = cuda_of(b);
    op_check_embed(&c->c, a);
    ASSERT(a->x->kind == BUFFER_RESIDUAL && a->table->kind == WEIGHT_LINEAR);
    ASSERT(a->table->linear.n_col == c->c.hidden && a->table->linear.dtype != DTYPE_F8_E4M3);
    dim3 grid(a->n_token, ceil_div(a->table->linear.n_col, EMBED_THREADS * 4));
    return cuda_launch(c, "embed", embed_kernel, grid, EMBED_THREADS, 0, a->x->f, a->table->linear,
                       a->ids, a->drawn);
}

__global__ void quantize_kernel(const float *f, uint32_t n_group, uint8_t *q, float *scale)
{
    uint32_t group = blockIdx.x * (blockDim.x / WARP) + threadIdx.x / WARP;
    kernel_begin();
    if (group >= n_group) return;
    const float4 v = ((const float4 *)(f + (size_t)group * FP8_GROUP))[threadIdx.x % WARP];
    store_group(v, q, scale, {}, group);
}

fathom_err cuda_quantize(struct cuda_backend *c, const float *f, uint32_t n_row, uint32_t width,
                         uint8_t *q, float *scale, const char *what)
{
    uint32_t n_group = n_row * (width / FP8_GROUP);
    ASSERT(width % FP8_GROUP == 0 && (uint64_t)n_row * width / FP8_GROUP == n_group);
    ASSERT((uintptr_t)f % 16 == 0 && (uintptr_t)q % 4 == 0);
    return cuda_launch(c, what, quantize_kernel, dim3(ceil_div(n_group, GROUP_WARPS)),
                       GROUP_THREADS, 0, f, n_group, q, scale);
}

/* A thread has SUM_CODES codes of a K line. */
enum { SUM_CODES = sizeof(uint4), SUM_LANES = FP8_GROUP / SUM_CODES };

__global__ void __launch_bounds__(GROUP_THREADS)
    input_sums_kernel(const uint8_t *q, const float *scale, uint32_t n_piece,
                      struct input_sums sums)
{
    const uint32_t n_lane = sums.group / SUM_CODES;
    const uint32_t i = blockIdx.x * GROUP_THREADS + threadIdx.x;
    const bool inside = i < n_piece;
    kernel_begin();
    const uint4 v = inside ? ((const uint4 *)q)[i] : make_uint4(0, 0, 0, 0);
    const float sum = codes_sum(v.x) + codes_sum(v.y) + (codes_sum(v.z) + codes_sum(v.w));
    const float of_group = input_sum(sum, n_lane, inside ? scale[i / SUM_LANES] : 0.0f);
    if (inside && i % n_lane == 0) sums.at[i / n_lane] = of_group;
}

fathom_err cuda_input_sums(struct cuda_backend *c, const uint8_t *q, const float *scale,
                           uint32_t n_row, uint32_t width, struct input_sums sums, const char *what)
{
    const uint32_t n_piece = n_row * (width / SUM_CODES);
    ASSERT(width % FP8_GROUP == 0 && (uint64_t)n_row * width / SUM_CODES == n_piece);
    ASSERT(sums.at && sums.group % SUM_CODES == 0 && FP8_GROUP % sums.group == 0);
    return cuda_launch(c, what, input_sums_kernel, dim3(ceil_div(n_piece, GROUP_THREADS)),
                       GROUP_THREADS, 0, q, scale, n_piece, sums);
}

/* One block a token: x += delta; out = rmsnorm(x) in the forms that the next products take. A
 * thread keeps its STEPS times 4 values to the end. STEPS and the number of threads, thus the order
 * of the sum, depend on the width alone. */
template <int STEPS>
__global__ void __launch_bounds__(NORM_THREADS, STEPS == 4 ? 2 : 1)
    add_norm_kernel(const struct norm_args a)
{
    __shared__ float scratch[NORM_THREADS / WARP];
    const size_t out = (size_t)blockIdx.x * a.n;
    const size_t row =
        a.world < 2 ? out : (size_t)own_row(blockIdx.x, a.run, a.rank, a.world) * a.n;
    const struct row_steps t = row_steps_of(a.n, 0, blockDim.x);
    const float4 zero = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    float4 v[STEPS], w[STEPS];
    DCHECK(a.n % 4 == 0 && a.n <= STEPS * t.step);
    dependency_release();
    if (t.first * STEPS < a.n) prefetch_l2(a.weight + t.first * STEPS);
    dependency_wait();
#pragma unroll
    for (int j = 0; j < STEPS; j++) { /* all in flight at once */
        const uint32_t i = t.first + (uint32_t)j * t.step;
        v[j] = i < a.n && !a.begins ? *(const float4 *)(a.x + row + i) : zero;
        w[j] = i < a.n && a.delta ? *(const float4 *)(a.delta + row + i) : zero;
    }
#pragma unroll
    for (int j = 0; j < STEPS && a.delta; j++) {
        const uint32_t i = t.first + (uint32_t)j * t.step;
        v[j] = a.begins ? w[j]
                        : make_float4(v[j].x + w[j].x, v[j].y + w[j].y, v[j].z + w[j].z,
                                      v[j].w + w[j].w);
        if (i < a.n) *(float4 *)(a.x + row + i) = v[j];
    }
    norm_row<STEPS>(
        a, out, v, t, [&](float sum) { return block_sum(sum, scratch); }, scratch);
}

/* Of rows that experts read as they are here. */
static void name_sums(struct cuda_backend *c, const struct reduce_norm_args *a, struct norm_args *k)
{
    if (c->normed.of == a->out) c->normed.of = NULL;
    if (!a->reader || a->reader->kind != WEIGHT_MOE || a->spread == SPREAD_OWN) return;
    if (k->codes == CODES_FP8) k->sums = cuda_sums_for(c, &a->reader->moe.up.first);
    if (!k->sums.at) return;
    c->normed.of = a->out;
    c->normed.sums = k->sums;
}

fathom_err cuda_reduce_norm(struct backend *b, const struct reduce_norm_args *a)
{
    struct cuda_backend *c = cuda_of(b);
    op_check_reduce_norm(&c->c, a);
    ASSERT(a->x->kind == BUFFER_RESIDUAL && a->out->kind == BUFFER_NORMED);
    ASSERT(!a->delta || a->delta->kind == BUFFER_DELTA);
    ASSERT(a->weight->kind == WEIGHT_VECTOR);
    struct norm_args k = {};
    k.x = a->x->f;
    k.delta = a->delta ? a->delta->f : NULL;
    k.weight = a->weight->vector;
    uint32_t forms = cuda_input_forms(c, a->reader);
    if (a->reader && a->reader->kind == WEIGHT_MOE) forms |= INPUT_F32; /* the router's */
    k.f = forms & INPUT_F32 ? a->out->f : NULL;
    k.h = forms & INPUT_BF16 ? a->out->h : NULL;
    k.codes = codes_of_forms(forms);
    k.q = k.codes ? a->out->q : NULL;
    a->out->codes = k.codes;
    k.scale = a->out->scale;
    name_sums(c, a, &k);
    k.n = c->c.hidden;
    k.eps = c->c.norm_eps;
    k.begins = a->begins;
    ASSERT(!k.q || k.n % FP8_GROUP == 0); /* a warp has one group of codes */
    const bool sums = a->delta && c->peers.world > 1;
    if (sums && c->net)
        TRY(cuda_net_sum(c, a->delta->f, a->n_token));
    else if (sums)
        return cuda_sum_norm(c, &k, a->n_token, a->layer, a->spread);
    ASSERT(a->spread == SPREAD_ALL || (a->spread == SPREAD_OWN && c->peers.world > 1));
    const bool own = a->spread == SPREAD_OWN;
    const uint32_t n_row = own ? cuda_own_rows(b, a->n_token) : a->n_token;
    k.rank = c->peers.rank;
    k.world = own ? c->peers.world : 1;
    k.run = row_run(a->n_token);
    return cuda_launch(c, "reduce_norm",
                       norm_is_few(k.n) ? add_norm_kernel<NORM_STEPS_FEW>
                                        : add_norm_kernel<NORM_STEPS_MAX>,
                       dim3(n_row), norm_threads(k.n), 0, k);
}

/* out = silu(gate) * up for rows [gate | up] of 2 * inner, as f, h or codes; one thread 4 values.
 * With codes (inner a
 * multiple of FP8_GROUP) a warp has one group, which is quantized where it is made. */
__global__ void swiglu_kernel(const float *gate_up, uint32_t n_row, const int32_t *present,
                              uint32_t inner, float *f, bf16 *h, uint8_t *q, float *scale,
                              struct input_sums sums)
{
    const uint32_t per_row = ceil_div(inner, FP8_GROUP);
    const uint32_t group = blockIdx.x * (blockDim.x / WARP) + threadIdx.x / WARP;
    kernel_begin();
    if (group >= n_row * per_row) return;
    const uint32_t row = group / per_row, i = group % per_row * FP8_GROUP + threadIdx.x % WARP * 4;
    DCHECK(!q || inner % FP8_GROUP == 0);
    if (present && present[row] < 0) return;
    const float *g = gate_up + (size_t)row * 2 * inner + i, *u = g + inner;
    if (q) {
        store_group(swiglu(*(const float4 *)g, *(const float4 *)u), q, scale, sums, group);
    } else if (h) {
        const float4 v =
            i < inner ? swiglu(*(const float4 *)g, *(const float4 *)u) : make_float4(0, 0, 0, 0);
        if (i < inner)
            *(uint2 *)(h + (size_t)row * inner + i) =
                make_uint2(pack_bf16(v.x, v.y), pack_bf16(v.z, v.w));
    } else if (inner % 4 == 0) {
        if (i < inner)
            *(float4 *)(f + (size_t)row * inner + i) =
                swiglu(*(const float4 *)g, *(const float4 *)u);
    } else {
        for (uint32_t j = 0; j < 4 && i + j < inner; j++)
            f[(size_t)row * inner + i + j] = silu(g[j]) * u[j];
    }
}

struct act cuda_mid(struct cuda_backend *c, const struct matrix *down)
{
    const enum codes codes = cuda_codes_of(c, down);
    const bool rounded = cuda_wants_bf16(c, down);
    struct act mid = {rounded ? NULL : c->mid_f,
                      rounded ? (const bf16 *)c->mid_f : NULL,
                      codes ? c->mid_q : NULL,
                      c->mid_scale,
                      down->n_col,
                      NULL,
                      codes,
                      {}};
    return mid;
}

fathom_err cuda_swiglu(struct cuda_backend *c, uint32_t n_row, const int32_t *present,
                       const struct matrix *down, struct input_sums sums, const char *what)
{
    const uint32_t inner = down->n_col, n_group = n_row * ceil_div(inner, FP8_GROUP);
    const enum codes codes = cuda_codes_of(c, down);
    const bool fp8 = codes == CODES_FP8;
    bf16 *h = cuda_wants_bf16(c, down) ? (bf16 *)c->mid_f : NULL;
    ASSERT(!codes || inner % FP8_GROUP == 0);
    if (codes && !fp8)
        return cuda_int8_codes(c, c->mid, n_row, inner, true, codes, c->mid_q, c->mid_scale, what);
    ASSERT((uint64_t)n_row * ceil_div(inner, FP8_GROUP) == n_group);
    return cuda_launch(c, what, swiglu_kernel, dim3(ceil_div(n_group, GROUP_WARPS)), GROUP_THREADS,
                       0, c->mid, n_row, present, inner, c->mid_f, h, fp8 ? c->mid_q : NULL,
                       c->mid_scale, sums);
}

fathom_err cuda_ffn_run(struct cuda_backend *c, const struct weight *w, const struct act &x,
                        uint32_t n_token, float *y)
{
    uint32_t inner = w->ffn.down.n_col;
    ASSERT(w->ffn.up.n_row == 2 * inner && w->ffn.up.n_col == c->c.hidden);
    ASSERT(w->ffn.down.n_row == c->c.hidden && x.width == c->c.hidden);
    bool fp8 = cuda_wants_fp8(c, &w->ffn.down);
    struct act mid = cuda_mid(c, &w->ffn.down);
    if (fp8 && cuda_takes_swiglu(c, &w->ffn.up, &x, n_token)) {
        TRY(cuda_product_swiglu(c, &w->ffn.up, &x, n_token, c->mid_q, c->mid_scale,
                                "ffn gate and up"));
    } else {
        TRY(cuda_product_list(c, &w->ffn.up, &x, n_token, c->mid, "ffn gate and up"));
        TRY(cuda_swiglu(c, n_token, NULL, &w->ffn.down, {}, "ffn"));
    }
    return cuda_product(c, &w->ffn.down, &mid, n_token, y, c->c.hidden, "ffn down");
}

fathom_err cuda_ffn(struct backend *b, const struct ffn_args *a)
{
    struct cuda_backend *c = cuda_of(b);
    op_check_ffn(&c->c, a);
    ASSERT(a->w->kind == WEIGHT_FFN && a->y->kind == BUFFER_DELTA && a->x->kind == BUFFER_NORMED);
    return cuda_ffn_run(c, a->w, act_of(a->x, c->c.hidden), a->n_token, a->y->f);
}

/* Rows of the hidden states that the head wants, side by side. */
__global__ void gather_kernel(const float *f, const int32_t *rows, uint32_t n, float *out)
{
    kernel_begin();
    DCHECK(rows[blockIdx.x] >= 0);
    size_t from = (size_t)rows[blockIdx.x] * n, to = (size_t)blockIdx.x * n;
    for (uint32_t i = threadIdx.x; i < n; i += blockDim.x) out[to + i] = f[from + i];
}

fathom_err cuda_head(struct backend *b, const struct head_args *a)
{
    struct cuda_backend *c = cuda_of(b);
    op_check_head(&c->c, a);
    ASSERT(a->hidden->kind == BUFFER_NORMED && a->logits->kind == BUFFER_LOGITS);
    ASSERT(a->w->kind == WEIGHT_LINEAR && a->w->linear.n_row == backend_head_rows(&c->c));
    if (a->n_row == 0) return FATHOM_OK;
    const bool is_part = c->peers.world > 1; /* sample's scratch has room for a part of each row */
    float *out = is_part ? c->sample_shaped : a->logits->f;
    struct act x = {NULL, a->hidden->h, NULL, NULL, c->c.hidden, a->rows};
    if (!cuda_wants_bf16(c, &a->w->linear)) {
        TRY(cuda_launch(c, "head", gather_kernel, dim3(a->n_row), 256, 0, a->hidden->f, a->rows,
                        c->c.hidden, c->mtp_f));
        x = {c->mtp_f, NULL, NULL, NULL, c->c.hidden, NULL};
    }
    TRY(cuda_product(c, &a->w->linear, &x, a->n_row, out, a->w->linear.n_row, "head"));
    if (!is_part) return FATHOM_OK;
    return c->net ? cuda_net_logits(c, out, a->logits->f, a->n_row)
                  : cuda_logits_to_owners(c, out, a->logits->f, a->n_row);
}

__device__ static inline float table_value(const struct matrix &table, uint32_t row, uint32_t col)
{
    if (table.dtype == DTYPE_BF16) return stored_value<DTYPE_BF16>(bf16_at(table, row, col), 0);
    return stored_value<DTYPE_F32>(table.data, (size_t)row * table.n_col + col);
}

/* One block a token: columns [col0, col0 + n_col) of [ rmsnorm(embedding) ; rmsnorm(hidden) ] */
__global__ void __launch_bounds__(CONCAT_THREADS)
    mtp_concat_kernel(struct matrix table, const int32_t *ids, const float *hidden,
                      const int32_t *rows, const float *enorm, const float *hnorm, float *out,
                      bf16 *out_h, uint32_t n, uint32_t col0, uint32_t n_col, float eps)
{
    __shared__ float scratch[CONCAT_THREADS / WARP + 1];
    kernel_begin();
    DCHECK(ids[blockIdx.x] >= 0 && (uint32_t)ids[blockIdx.x] < table.n_row);
    DCHECK(!rows || rows[blockIdx.x] >= 0);
    const uint32_t row = (uint32_t)ids[blockIdx.x];
    size_t from = (size_t)(rows ? rows[blockIdx.x] : (int32_t)blockIdx.x) * n;
    for (int half = 0; half < 2; half++) {
        float sum = 0.0f;
        for (uint32_t i = threadIdx.x; i < n; i += CONCAT_THREADS) {
            float v = half ? hidden[from + i] : table_value(table, row, i);
            sum += v * v;
        }
        float r = rsqrtf(block_sum(sum, scratch) / (float)n + eps);
        const float *w = half ? hnorm : enorm;
        for (uint32_t i = threadIdx.x; i < n; i += CONCAT_THREADS) {
            const uint32_t col = half * n + i - col0;
            if (col >= n_col) continue; /* also those before col0 */
            float v = (half ? hidden[from + i] : table_value(table, row, i)) * r * w[i];
            out[(size_t)blockIdx.x * n_col + col] = v;
            if (out_h) out_h[(size_t)blockIdx.x * n_col + col] = float_to_bf16(v);
        }
    }
}

fathom_err cuda_mtp_front(struct backend *b, const struct mtp_front_args *a)
{
    struct cuda_backend *c = cuda_of(b);
    op_check_mtp_front(&c->c, a);
    ASSERT(a->hidden->kind == BUFFER_NORMED && a->y->kind == BUFFER_DELTA);
    ASSERT(a->table->linear.dtype != DTYPE_F8_E4M3 && a->table->linear.n_col == c->c.hidden);
    const uint32_t n_col = parallel_part(&c->c.parallel, CUT_INNER, 2 * c->c.hidden);
    const uint32_t col0 = c->c.parallel.tp.rank * n_col;
    ASSERT(a->eh_proj->linear.n_col == n_col && a->eh_proj->linear.n_row == c->c.hidden);
    bf16 *h = c->fast ? c->mtp_h : NULL;
    TRY(cuda_launch(c, "mtp_front", mtp_concat_kernel, dim3(a->n_token), CONCAT_THREADS, 0,
                    a->table->linear, a->next_ids, a->hidden->f, a->rows, a->enorm->vector,
                    a->hnorm->vector, c->mtp_f, h, c->c.hidden, col0, n_col, c->c.norm_eps));
    struct act x = {c->mtp_f, h, NULL, NULL, n_col};
    return cuda_product(c, &a->eh_proj->linear, &x, a->n_token, a->y->f, c->c.hidden, "mtp_front");
}
