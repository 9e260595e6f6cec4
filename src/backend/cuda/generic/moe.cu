/* moe.cu - router, the map from experts to rows, experts, and their weighted sum */
#include "backend/cuda/launch.cuh"
#include "backend/cuda/product.cuh"

enum { THREADS = 256, MAP_THREADS = 1024 };

struct router_args_device {
    struct matrix w;
    const float *x; /* [T][D] */
    uint32_t n_token;
    float *score; /* [T][E] */
};

/* Float path: one block an (expert, token); thread i sums every 256th product, then a tree. */
__global__ void __launch_bounds__(THREADS) router_float_kernel(const struct router_args_device a)
{
    __shared__ float scratch[THREADS / WARP + 1];
    kernel_begin();
    const uint32_t e = blockIdx.x, t = blockIdx.y, n = a.w.n_col;
    float sum = 0.0f;
    for (uint32_t k = threadIdx.x; k < n; k += THREADS) {
        size_t at = (size_t)e * n + k;
        float w = a.w.dtype == DTYPE_BF16 ? __bfloat162float(((const __nv_bfloat16 *)a.w.data)[at])
                                          : ((const float *)a.w.data)[at];
        sum = fmaf(w, a.x[(size_t)t * n + k], sum);
    }
    sum = block_sum(sum, scratch);
    if (threadIdx.x == 0) a.score[(size_t)t * a.w.n_row + e] = sum;
}

enum { PLANES = 3 };

/* Two f32 as three bf16 pairs whose sum is exact: 3 times 8 bits of mantissa. */
static __device__ __forceinline__ void split_planes(float x, float y, uint32_t (&planes)[PLANES])
{
#pragma unroll
    for (int i = 0; i < PLANES; i++) {
        planes[i] = pack_bf16(x, y);
        x -= __uint_as_float(planes[i] << 16);
        y -= __uint_as_float(planes[i] & 0xffff0000u);
    }
}

/* Fast path: BF16 weights against f32 activations on the tensor cores, without rounding them: an
 * activation is three bf16 values. A block makes 16 experts for 8 tokens, its 8 warps share K;
 * weights and lanes as in product_small.cu. */
__global__ void __launch_bounds__(THREADS) router_kernel(const struct router_args_device a)
{
    __shared__ float part[THREADS / WARP][8][17];
    const int warp = (int)threadIdx.x / WARP, lane = (int)threadIdx.x % WARP;
    const int g = lane / 4, t = lane % 4;
    const uint32_t e0 = blockIdx.x * 16, t0 = blockIdx.y * 8, n = a.w.n_col, n_line = n / 64;
    const uint32_t token = min(t0 + (uint32_t)g, a.n_token - 1);
    const char *row0 =
        (const char *)a.w.data + (size_t)min(e0 + (uint32_t)g, a.w.n_row - 1) * n * 2;
    const char *row1 =
        (const char *)a.w.data + (size_t)min(e0 + (uint32_t)g + 8, a.w.n_row - 1) * n * 2;
    const float *x = a.x + (size_t)token * n;
    float c[4] = {};
    kernel_begin();
    for (uint32_t line = (uint32_t)warp; line < n_line; line += THREADS / WARP) {
        size_t at = (size_t)line * 128 + (size_t)t * 16;
        uint4 w[4] = {*(const uint4 *)(row0 + at), *(const uint4 *)(row1 + at),
                      *(const uint4 *)(row0 + at + 64), *(const uint4 *)(row1 + at + 64)};
        const float4 *lo = (const float4 *)(x + line * 64 + (uint32_t)t * 8), *hi = lo + 8;
        float4 v[4] = {lo[0], lo[1], hi[0], hi[1]};
        const float *f = &v[0].x;
#pragma unroll
        for (int j = 0; j < 4; j++) {
            uint32_t b0[PLANES], b1[PLANES];
            const uint32_t *w0 = &w[0].x, *w1 = &w[1].x, *w2 = &w[2].x, *w3 = &w[3].x;
            split_planes(f[j * 2], f[j * 2 + 1], b0);
            split_planes(f[8 + j * 2], f[8 + j * 2 + 1], b1);
#pragma unroll
            for (int i = 0; i < PLANES; i++) mma_bf16(c, w0[j], w1[j], w2[j], w3[j], b0[i], b1[i]);
        }
    }
    part[warp][2 * t][g] = c[0];
    part[warp][2 * t + 1][g] = c[1];
    part[warp][2 * t][g + 8] = c[2];
    part[warp][2 * t + 1][g + 8] = c[3];
    __syncthreads();
    if (threadIdx.x >= 128) return;
    uint32_t e = threadIdx.x % 16, i = threadIdx.x / 16;
    if (e0 + e >= a.w.n_row || t0 + i >= a.n_token) return;
    float sum = 0.0f;
#pragma unroll
    for (int k = 0; k < THREADS / WARP; k++) sum += part[k][i][e];
    a.score[(size_t)(t0 + i) * a.w.n_row + e0 + e] = sum;
}

struct choose_args {
    const float *score; /* [T][E] */
    const float *bias;
    uint32_t n_expert, n_group, topk_group, n_used;
    float routed_scale;
    bool norm_topk;
    int32_t *experts; /* [T][n_used] */
    float *weights;
    uint32_t n_token;
};

/* Larger value first, then the lower index: the order of every choice. */
static __device__ __forceinline__ bool before(float a, int i, float b, int j)
{
    return a > b || (a == b && i < j);
}

static __device__ __forceinline__ int warp_best(float v, int i)
{
#pragma unroll
    for (int d = WARP / 2; d > 0; d >>= 1) {
        float v2 = shfl_xor(v, d);
        int i2 = shfl_xor(i, d);
        if (before(v2, i2, v, i)) {
            v = v2;
            i = i2;
        }
    }
    return i;
}

/* Sum of the two largest of a group of `size`, by one warp. */
static __device__ __forceinline__ float group_score(const float *b, uint32_t size)
{
    float first = -INFINITY, second = -INFINITY;
    for (uint32_t e = threadIdx.x % WARP; e < size; e += WARP) {
        second = fmaxf(second, fminf(first, b[e]));
        first = fmaxf(first, b[e]);
    }
#pragma unroll
    for (int d = WARP / 2; d > 0; d >>= 1) {
        float f = shfl_xor(first, d), g = shfl_xor(second, d);
        second = fmaxf(fmaxf(second, g), fminf(first, f));
        first = fmaxf(first, f);
    }
    return size > 1 ? first + second : first;
}

enum { EXPERTS_MAX = 1024, USED_MAX = 32, GROUPS_MAX = 32 };

/* Scratch of one warp that chooses for one token. */
struct choice {
    float s[EXPERTS_MAX], b[EXPERTS_MAX];
    int chosen[USED_MAX];
};

/* Chooses the experts of one token, by one warp. */
static __device__ void choose_token(const struct choose_args &a, uint32_t token, struct choice *ch)
{
    const uint32_t lane = threadIdx.x % WARP, size = a.n_expert / a.n_group;
    for (uint32_t e = lane; e < a.n_expert; e += WARP) {
        float x = a.score[(size_t)token * a.n_expert + e];
        ch->s[e] = 1.0f / (1.0f + expf(-x));
        float b = ch->s[e] + a.bias[e];
        ch->b[e] = b == b ? b : -INFINITY;
    }
    __syncwarp();
    float mine = -INFINITY; /* lane g has group g's score */
    for (uint32_t g = 0; g < a.n_group; g++) {
        float score = group_score(ch->b + g * size, size);
        if (lane == g) mine = score;
    }
    uint32_t better = 0;
    for (uint32_t g = 0; g < a.n_group; g++) {
        float other = shfl(mine, (int)g); /* of every lane, also of lane g itself */
        better += g != lane && before(other, (int)g, mine, (int)lane);
    }
    unsigned kept = warp_ballot(lane < a.n_group && better < a.topk_group);
    for (uint32_t e = lane; e < a.n_expert; e += WARP) {
        if (!(kept >> (e / size) & 1u)) ch->b[e] = -INFINITY;
    }
    __syncwarp();
    for (uint32_t k = 0; k < a.n_used; k++) {
        float v = -INFINITY;
        int i = 0x7fffffff;
        for (uint32_t e = lane; e < a.n_expert; e += WARP) {
            if (ch->b[e] != ch->b[e]) continue; /* taken */
            if (before(ch->b[e], (int)e, v, i)) {
                v = ch->b[e];
                i = (int)e;
            }
        }
        i = warp_best(v, i);
        if (lane == 0) {
            ch->chosen[k] = i;
            ch->b[i] = NAN;
        }
        __syncwarp();
    }
    if (lane != 0) return;
    float sum = 0.0f;
    for (uint32_t i = 1; i < a.n_used; i++) { /* ascending index */
        int v = ch->chosen[i], j = (int)i;
        for (; j > 0 && ch->chosen[j - 1] > v; j--) ch->chosen[j] = ch->chosen[j - 1];
        ch->chosen[j] = v;
    }
    for (uint32_t i = 0; i < a.n_used; i++) sum += ch->s[ch->chosen[i]];
    float factor = a.norm_topk ? a.routed_scale / sum : a.routed_scale;
    for (uint32_t i = 0; i < a.n_used; i++) {
        a.experts[(size_t)token * a.n_used + i] = ch->chosen[i];
        a.weights[(size_t)token * a.n_used + i] = ch->s[ch->chosen[i]] * factor;
    }
}

enum { CHOOSE_WARPS = 4 };

__global__ void __launch_bounds__(CHOOSE_WARPS *WARP) choose_kernel(const struct choose_args a)
{
    __shared__ struct choice choices[CHOOSE_WARPS];
    kernel_begin();
    uint32_t token = blockIdx.x * CHOOSE_WARPS + threadIdx.x / WARP;
    if (token < a.n_token) choose_token(a, token, &choices[threadIdx.x / WARP]);
}

static fathom_err run_scores(struct cuda_backend *c, const struct router_args *a)
{
    struct router_args_device r = {a->w->moe.router, a->x->f, a->n_token, c->router_score};
    if (c->fast && r.w.dtype == DTYPE_BF16 && r.w.n_col % 64 == 0) {
        dim3 grid(ceil_div(r.w.n_row, 16), ceil_div(a->n_token, 8));
        return cuda_launch(c, "router", router_kernel, grid, THREADS, 0, r);
    }
    return cuda_launch(c, "router", router_float_kernel, dim3(r.w.n_row, a->n_token), THREADS, 0,
                       r);
}

fathom_err cuda_router(struct backend *b, const struct router_args *a)
{
    struct cuda_backend *c = cuda_of(b);
    TRY(run_scores(c, a));
    struct choose_args k = {c->router_score, a->w->moe.bias,     c->c.n_expert,     c->c.n_group,
                            c->c.topk_group, c->c.n_expert_used, c->c.routed_scale, c->c.norm_topk,
                            a->route->i,     a->route->w,        a->n_token};
    return cuda_launch(c, "router", choose_kernel, dim3(ceil_div(a->n_token, CHOOSE_WARPS)),
                       CHOOSE_WARPS * WARP, 0, k);
}

struct map_args {
    const int32_t *experts; /* [T][n_used] */
    uint32_t n_token, n_used, n_slot, n_stack, tile;
    struct task *tasks;
    int32_t *n_task, *rows;
};

/* Exclusive sums of two counts over the block's threads; *total gets both sums. */
static __device__ int2 scan_pairs(int2 v, int2 *scratch, int2 *total)
{
    const int warp = (int)threadIdx.x / WARP, lane = (int)threadIdx.x % WARP;
    int2 sum = v;
#pragma unroll
    for (int d = 1; d < WARP; d <<= 1) {
        int x = __shfl_up_sync(FULL_MASK, sum.x, (unsigned)d);
        int y = __shfl_up_sync(FULL_MASK, sum.y, (unsigned)d);
        if (lane >= d) sum = make_int2(sum.x + x, sum.y + y);
    }
    if (lane == WARP - 1) scratch[warp] = sum;
    __syncthreads();
    int2 before_warp = make_int2(0, 0), all = make_int2(0, 0);
    for (int w = 0; w < MAP_THREADS / WARP; w++) {
        if (w < warp)
            before_warp = make_int2(before_warp.x + scratch[w].x, before_warp.y + scratch[w].y);
        all = make_int2(all.x + scratch[w].x, all.y + scratch[w].y);
    }
    *total = all;
    return make_int2(before_warp.x + sum.x - v.x, before_warp.y + sum.y - v.y);
}

/* One block, one thread an expert: counts, the row list, the task list. The order of rows inside an
 * expert may vary, which changes no bit: rows do not see each other. */
__global__ void __launch_bounds__(MAP_THREADS) map_kernel(const struct map_args a)
{
    __shared__ int count[MAP_THREADS + 1], cursor[MAP_THREADS + 1];
    __shared__ int2 scratch[MAP_THREADS / WARP];
    const uint32_t n_row = a.n_token * a.n_slot;
    const int e = (int)threadIdx.x, tile = (int)a.tile;
    count[e] = 0;
    if (e == 0) count[MAP_THREADS] = 0;
    kernel_begin();
    __syncthreads();
    for (uint32_t r = threadIdx.x; r < n_row; r += MAP_THREADS) {
        uint32_t t = r / a.n_slot, j = r % a.n_slot;
        atomicAdd(&count[j < a.n_used ? a.experts[t * a.n_used + j] : (int)a.n_stack - 1], 1);
    }
    __syncthreads();
    int n = e < (int)a.n_stack ? count[e] : 0, n_task = (n + tile - 1) / tile;
    int2 total, first = scan_pairs(make_int2(n, n_task), scratch, &total);
    cursor[e] = first.x;
    if (e == 0) *a.n_task = total.y;
    for (int i = 0; i < n_task; i++) {
        struct task t = {e, first.x + i * tile, min(tile, n - i * tile)};
        a.tasks[first.y + i] = t;
    }
    __syncthreads();
    for (uint32_t r = threadIdx.x; r < n_row; r += MAP_THREADS) {
        uint32_t t = r / a.n_slot, j = r % a.n_slot;
        int x = j < a.n_used ? a.experts[t * a.n_used + j] : (int)a.n_stack - 1;
        a.rows[atomicAdd(&cursor[x], 1)] = (int32_t)r;
    }
}

/* y[t] = sum over slots of weight * row, in slot order; the shared expert last, unweighted. */
__global__ void combine_slots_kernel(const float *rows, const float *weights, const float *shared,
                                     uint32_t n_used, uint32_t n_slot, uint32_t n, float *y)
{
    uint32_t i = (blockIdx.x * blockDim.x + threadIdx.x) * 4;
    size_t t = blockIdx.y;
    kernel_begin();
    if (i >= n) return;
    float4 sum = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    for (uint32_t s = 0; s < n_slot; s++) {
        float4 v = *(const float4 *)(rows + (t * n_slot + s) * n + i);
        float w = s < n_used ? weights[t * n_used + s] : 1.0f;
        sum.x = fmaf(w, v.x, sum.x);
        sum.y = fmaf(w, v.y, sum.y);
        sum.z = fmaf(w, v.z, sum.z);
        sum.w = fmaf(w, v.w, sum.w);
    }
    if (shared) { /* a shared expert that is not a slot */
        float4 v = *(const float4 *)(shared + t * n + i);
        sum = make_float4(sum.x + v.x, sum.y + v.y, sum.z + v.z, sum.w + v.w);
    }
    *(float4 *)(y + t * n + i) = sum;
}

/* Rows of a task, of those that both products can take: small tiles stream the weights of every
 * expert hit once or a few times; with many rows an expert the large tile computes instead. */
static uint32_t choose_tile(const struct cuda_backend *c, const struct weight *w, uint32_t n_row,
                            uint32_t n_stack)
{
    if (!c->fast) return PRODUCT_FLOAT_TILE;
    uint32_t mean = n_row / n_stack;
    bool large = cuda_wants_fp8(c, &w->moe.up.first) && cuda_wants_fp8(c, &w->moe.down.first);
    return mean < 4 ? 8 : mean < 10 ? 16 : mean < 24 || !large ? 32 : PRODUCT_LARGE_TILE;
}

static fathom_err make_map(struct cuda_backend *c, const struct moe_args *a, uint32_t n_slot)
{
    uint32_t n_row = a->n_token * n_slot, n_stack = a->w->moe.up.n;
    c->map.tile = choose_tile(c, a->w, n_row, n_stack);
    uint32_t hit = n_row < n_stack ? n_row : n_stack;
    c->map.max_task = hit + n_row / c->map.tile;
    struct map_args m = {a->route->i, a->n_token,   c->c.n_expert_used, n_slot,     n_stack,
                         c->map.tile, c->map.tasks, c->map.n_task,      c->map.rows};
    return cuda_launch(c, "moe map", map_kernel, dim3(1), MAP_THREADS, 0, m);
}

/* mid [row][gate | up]; experts that are not fused fill the two halves one after the other */
static fathom_err run_up(struct cuda_backend *c, const struct weight *w, const struct act *x,
                         uint32_t n_slot)
{
    uint32_t inner = c->c.moe_inner;
    TRY(cuda_product_mapped(c, &w->moe.up, x, n_slot, c->mid, 2 * inner, "experts' gate and up"));
    if (w->moe.fused_up) return FATHOM_OK;
    return cuda_product_mapped(c, &w->moe.up_alone, x, n_slot, c->mid + inner, 2 * inner,
                               "experts' up");
}

fathom_err cuda_moe(struct backend *b, const struct moe_args *a)
{
    struct cuda_backend *c = cuda_of(b);
    uint32_t n_used = c->c.n_expert_used, n_slot = n_used + (a->w->moe.stacked_shared ? 1 : 0);
    uint32_t n_row = a->n_token * n_slot, inner = c->c.moe_inner, hidden = c->c.hidden;
    bool fp8 = cuda_wants_fp8(c, &a->w->moe.down.first);
    const float *shared = a->w->moe.separate_shared ? c->shared_out : NULL;
    if (shared) TRY(cuda_ffn_run(c, a->w, a->x, a->n_token, c->shared_out));
    TRY(make_map(c, a, n_slot));
    struct act x = {a->x->f, a->x->h, a->x->q, a->x->scale, hidden};
    TRY(run_up(c, a->w, &x, n_slot));
    TRY(cuda_swiglu(c, n_row, inner, fp8, "experts"));
    struct act mid = {c->mid_f, NULL, fp8 ? c->mid_q : NULL, c->mid_scale, inner};
    TRY(cuda_product_mapped(c, &a->w->moe.down, &mid, 1, c->slot_out, hidden, "experts' down"));
    return cuda_launch(c, "moe", combine_slots_kernel,
                       dim3(dim3(ceil_div(hidden, 1024), a->n_token)), 256, 0, c->slot_out,
                       a->route->w, shared, n_used, n_slot, hidden, a->y->f);
}
