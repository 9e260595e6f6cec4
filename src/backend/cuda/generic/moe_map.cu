/* moe_map.cu - the map from experts to rows of a step
 *
 * One block counts and places the rows of up to MAP_TOKENS tokens. With more tokens blocks count
 * theirs first; then each adds up the counts before it and places its rows. */
#include "backend/cuda/generic/moe_map.cuh"

#include "backend/cuda/common.cuh"
#include "backend/cuda/launch.cuh"
#include "backend/cuda/product.cuh"

enum { MAP_TOKENS = ROUTER_MAP_TOKENS, MAP_THREADS = 1024, MAP_THREADS_MIN = 256 };
static_assert((int)EXPERTS_MAX < (int)MAP_THREADS, "a thread an expert, the shared one included");

/* Exclusive sums of two counts over the block's threads; *total gets both sums. */
static __device__ __forceinline__ int2 scan_pairs(int2 v, int2 *scratch, int2 *total)
{
    const uint32_t warp = threadIdx.x / WARP, lane = threadIdx.x % WARP;
    int2 sum = v;
#pragma unroll
    for (unsigned d = 1; d < WARP; d <<= 1) {
        int x = shfl_up(sum.x, (int)d), y = shfl_up(sum.y, (int)d);
        if (lane >= d) sum = make_int2(sum.x + x, sum.y + y);
    }
    if (lane == WARP - 1) scratch[warp] = sum;
    __syncthreads();
    int2 before_warp = make_int2(0, 0), all = make_int2(0, 0);
    for (uint32_t w = 0; w < blockDim.x / WARP; w++) {
        const int2 s = scratch[w];
        if (w < warp) before_warp = make_int2(before_warp.x + s.x, before_warp.y + s.y);
        all = make_int2(all.x + s.x, all.y + s.y);
    }
    *total = all;
    return make_int2(before_warp.x + sum.x - v.x, before_warp.y + sum.y - v.y);
}

struct map_shared {
    int count[MAP_THREADS]; /* of an expert; then where its next row goes */
    int2 scratch[MAP_THREADS / WARP];
};

/* Places the rows of tokens t0 .. t0 + n by cursors; `experts` are theirs. The order of rows inside
 * an expert may vary, which changes no bit: rows do not see each other. The shared expert, the last
 * of the stack, has the tokens in order. */
static __device__ __forceinline__ void place_rows(const struct map_args &a, const int32_t *experts,
                                                  uint32_t t0, uint32_t n, int *cursor)
{
    const int shared_first = a.rows_per_token > a.n_used ? cursor[a.n_stack - 1] : 0;
#pragma unroll 1
    for (uint32_t i = threadIdx.x; i < n * a.rows_per_token; i += blockDim.x) {
        const uint32_t t = i / a.rows_per_token, j = i % a.rows_per_token;
        const int e = j < a.n_used ? experts[t * a.n_used + j] : 0;
        if (e < 0) continue;
        const int at = j < a.n_used ? atomicAdd(&cursor[e], 1) : shared_first + (int)(t0 + t);
        DCHECK(at >= 0 && (uint32_t)at < a.n_token * a.rows_per_token);
        a.rows[at] = (int32_t)((t0 + t) * a.rows_per_token + j);
    }
}

/* Rows of a task of an expert with n of them: of the wide tile, which takes blocks of 64 rows,
 * tasks have the same number of blocks or so. */
static __device__ __forceinline__ int task_rows(int n, int n_task, int tile)
{
    enum { BLOCK_ROWS = 64 };
    if (tile != PRODUCT_WIDE_TILE || n_task < 2) return tile;
    const int rows = (n + n_task - 1) / n_task;
    return (rows + BLOCK_ROWS - 1) / BLOCK_ROWS * BLOCK_ROWS;
}

/* Thread e: tasks of expert e with n rows; returns where its rows begin. */
static __device__ __forceinline__ int list_tasks(const struct map_args &a, int n, bool write,
                                                 int2 *scratch)
{
    const int tile = (int)a.tile, n_task = (n + tile - 1) / tile;
    DCHECK(n >= 0 && (n == 0 || threadIdx.x < a.n_stack));
    int2 total, first = scan_pairs(make_int2(n, n_task), scratch, &total);
    if (!write) return first.x;
    if (threadIdx.x == 0) {
        a.n_task[0] = total.y;
        a.n_task[TASK_FEED] = 0;
        a.n_task[TASK_FEED + 1] = 0;
        a.n_task[TASK_N_ROW] = total.x;
    }
    const int rows = task_rows(n, n_task, tile);
    DCHECK(rows <= tile && (n_task - 1) * rows < max(n, 1));
#pragma unroll 1
    for (int i = 0; i < n_task; i++) {
        struct task t = {(int32_t)threadIdx.x, first.x + i * rows, min(rows, n - i * rows)};
        a.tasks[first.y + i] = t;
    }
    return first.x;
}

static __device__ __forceinline__ void count_rows(const struct map_args &a, const int32_t *experts,
                                                  uint32_t n, int *count)
{
#pragma unroll 1
    for (uint32_t i = threadIdx.x; i < n * a.n_used; i += blockDim.x) {
        if (experts[i] < 0) continue;
        DCHECK((uint32_t)experts[i] < a.n_stack);
        atomicAdd(&count[experts[i]], 1);
    }
}

/* More than one block, first: rows of each expert in each block's tokens, the shared one left out.
 */
__global__ void __launch_bounds__(MAP_THREADS) count_kernel(const struct map_args a)
{
    __shared__ int count[MAP_THREADS];
    const uint32_t t0 = blockIdx.x * MAP_TOKENS, n = min((uint32_t)MAP_TOKENS, a.n_token - t0);
    count[threadIdx.x] = 0;
    kernel_begin();
    __syncthreads();
    count_rows(a, a.experts + (size_t)t0 * a.n_used, n, count);
    __syncthreads();
    if (threadIdx.x < a.n_stack)
        a.counts[blockIdx.x * a.n_stack + threadIdx.x] = count[threadIdx.x];
}

/* One block counts and places all rows; of more, each adds up the counts and places its tokens'. */
__global__ void __launch_bounds__(MAP_THREADS) map_kernel(const struct map_args a)
{
    __shared__ struct map_shared sh;
    const uint32_t e = threadIdx.x, t0 = blockIdx.x * MAP_TOKENS;
    const uint32_t n_token = min((uint32_t)MAP_TOKENS, a.n_token - t0);
    const int32_t *experts = a.experts + (size_t)t0 * a.n_used;
    int n = 0, n_before = 0;
    sh.count[e] = 0;
    kernel_begin();
    __syncthreads();
    if (gridDim.x == 1) {
        count_rows(a, experts, n_token, sh.count);
        __syncthreads();
        n = sh.count[e];
    } else if (e < a.n_stack) {
        const int32_t *of = a.counts + e;
#pragma unroll 16
        for (uint32_t i = 0; i < gridDim.x; i++) {
            int k = of[i * a.n_stack];
            n += k;
            n_before += i < blockIdx.x ? k : 0;
        }
    }
    if (a.rows_per_token > a.n_used && e == a.n_stack - 1) n = (int)a.n_token;
    const int first = list_tasks(a, n, blockIdx.x == 0, sh.scratch);
    sh.count[e] = first + n_before;
    __syncthreads();
    place_rows(a, experts, t0, n_token, sh.count);
}

/* ---- launches ---- */

static uint32_t map_threads(uint32_t n_stack, uint32_t at_least)
{
    const uint32_t n = n_stack > at_least ? n_stack : at_least;
    ASSERT(n <= MAP_THREADS);
    return ceil_div(n, WARP) * WARP;
}

/* Of n_token tokens with n_used entries of `experts` each. */
static struct map_args map_experts(struct cuda_backend *c, const struct weight *w,
                                   const int32_t *experts, uint32_t n_token, uint32_t n_used,
                                   uint32_t n_likely)
{
    const uint32_t rows_per_token = c->c.n_expert_used + (w->moe.stacked_shared ? 1 : 0);
    const uint32_t n_row = n_token * rows_per_token, n_stack = w->moe.up.n;
    const uint32_t tile = cuda_moe_tile(c, w, n_likely, n_stack);
    c->map.w = w;
    c->map.n_token = n_token;
    c->map.n_row = n_row;
    c->map.n_likely = n_likely;
    c->map.tile = tile;
    c->map.max_task = (n_row < n_stack ? n_row : n_stack) + n_row / tile;
    ASSERT(c->map.max_task <= n_row / TASK_ROWS_MIN + n_stack); /* the list's room: scratch.c */
    struct map_args m = {};
    m.experts = experts;
    m.n_token = n_token;
    m.n_used = n_used;
    m.rows_per_token = rows_per_token;
    m.n_stack = n_stack;
    m.tile = tile;
    m.counts = c->map.counts;
    m.tasks = c->map.tasks;
    m.n_task = c->map.n_task;
    m.rows = c->map.rows;
    return m;
}

struct map_args moe_map_args(struct cuda_backend *c, const struct weight *w,
                             const struct buffer *route, uint32_t n_token)
{
    const uint32_t n_used = c->c.n_expert_used;
    const uint32_t n_row = n_token * (n_used + (w->moe.stacked_shared ? 1 : 0));
    c->map.route = route;
    c->map.present = NULL;
    return map_experts(c, w, route->i, n_token, n_used, n_row);
}

static fathom_err run_map(struct cuda_backend *c, const struct map_args &m)
{
    const dim3 grid(ceil_div(m.n_token, MAP_TOKENS));
    const uint32_t threads = map_threads(m.n_stack, MAP_THREADS_MIN);
    c->map.route = NULL; /* what is in it may change before the next call */
    if (grid.x > 1) TRY(cuda_launch(c, "moe map", count_kernel, grid, threads, 0, m));
    return cuda_launch(c, "moe map", map_kernel, grid, threads, 0, m);
}

fathom_err cuda_moe_map(struct cuda_backend *c, const struct weight *w, const struct buffer *route,
                        uint32_t n_token)
{
    if (c->map.route == route && c->map.w == w && c->map.n_token == n_token) return FATHOM_OK;
    return run_map(c, moe_map_args(c, w, route, n_token));
}

fathom_err moe_map_present(struct cuda_backend *c, const struct weight *w, const int32_t *experts,
                           uint32_t n_token, uint32_t n_likely)
{
    const uint32_t rows_per_token = c->c.n_expert_used + (w->moe.stacked_shared ? 1 : 0);
    c->map.present = experts;
    return run_map(c, map_experts(c, w, experts, n_token, rows_per_token, n_likely));
}
