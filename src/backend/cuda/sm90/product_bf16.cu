/* product_bf16.cu - BF16 matrix product for many rows on sm_90a
 *
 * One resident block a multiprocessor walks over tiles of 128 rows x COLS outputs: 256 where K is
 * one part; where it has several, 192, or 96 if all tiles end earlier so, since a thread keeps the
 * sum of the parts before beside the one that it sums. Warpgroup 0 fills a ring of
 * stages, one stage a K line of 64 values: inputs and weights. Warpgroups 1 and 2 own 64 rows each.
 *
 * Weights come by tensor map, or tile by tile where they lie in tiles; inputs of plain products
 * by tensor map, others are gathered by 16-byte copies. A stage goes round as in
 * product_fp8.cu. */
#include "backend/cuda/sm90/product_bf16.cuh"

#include "backend/cuda/k_parts.h"
#include "backend/cuda/sm90/feed.cuh"
#include "backend/cuda/sm90/stage.cuh"

enum {
    BM = PRODUCT_LARGE_TILE,
    COLS_ONE_PART = 256,
    COLS_PARTS = 192,
    COLS_PARTS_FEW = 96,
    LINE_VALUES = K_LINE_BYTES / 2,
    STEPS = K_LINE_BYTES / 32, /* products of a K line */
    GROUP_ROWS = 64,           /* of a warpgroup */
    WARP_ROWS = 16,
    GROUP_THREADS = 128,
    CONSUMER_WARPS = 8,
    THREADS = 3 * GROUP_THREADS,
    PRODUCER_REGISTERS = 40,
    CONSUMER_REGISTERS = 232,
    GATHER_ROWS = GROUP_THREADS / K_LINE_PIECES,
    RASTER_TILES = 16, /* row tiles that are walked together, for reuse in L2 */
};
static_assert((int)COLS_ONE_PART <= (int)TENSOR_BOX_MAX && BM == 2 * GROUP_ROWS,
              "boxes of a tensor map");
static_assert(GATHER_ROWS % 8 == 0 && BM % GATHER_ROWS == 0,
              "the permutation is the same for all rows of a thread");
static_assert(GROUP_THREADS * (PRODUCER_REGISTERS + 2 * CONSUMER_REGISTERS) <= 64 << 10,
              "registers of a multiprocessor");

template <int COLS> constexpr uint32_t STAGES = (SHARED_MAX - 2048) / ((BM + COLS) * K_LINE_BYTES);

template <int COLS> struct alignas(1024) stages {
    uint8_t in[STAGES<COLS>][BM * K_LINE_BYTES];
    uint8_t w[STAGES<COLS>][COLS * K_LINE_BYTES];
    uint64_t full[STAGES<COLS>];
    uint64_t empty[STAGES<COLS>];
    struct feed feed; /* GATHER, mapped; all warps read */
};
static_assert(sizeof(struct stages<COLS_PARTS_FEW>) <= SHARED_MAX, "shared memory of a block");

struct work {
    CUtensorMap in_map; /* not gathered */
    CUtensorMap w_map;
    struct product_args a;
    uint32_t n_k_line;
    uint32_t part_lines; /* K lines of a part */
    uint32_t n_col_tile;
    uint32_t n_row_tile; /* plain */
};

struct ring {
    uint32_t stage;
    uint32_t parity;
};

template <int COLS> static __device__ __forceinline__ void advance(struct ring &r)
{
    if (++r.stage == STAGES<COLS>) {
        r.stage = 0;
        r.parity ^= 1;
    }
}

/* A tile: rows of a task, or of a plain product in the same words. */
struct tile {
    int expert;
    uint32_t col;
    int n; /* rows */
    struct product_rows rows;
};

static __device__ __forceinline__ uint32_t tile_count(const struct work &w)
{
    return (w.a.tasks ? (uint32_t)*w.a.n_task : w.n_row_tile) * w.n_col_tile;
}

/* A warp's way through a block's tiles: tasks' come by the feed, others are every gridDim.x-th. */
struct tile_walk {
    uint32_t n_tile;
    uint32_t next;
    struct feed_ring fed;
};

static __device__ __forceinline__ struct tile_walk begin_tiles(const struct work &w)
{
    return {tile_count(w), blockIdx.x, {0, 0}};
}

/* Mapped: columns first, since only neighbouring tasks have an expert in common. Plain: bands of
 * RASTER_TILES row tiles, rows first inside a band. */
static __device__ __forceinline__ struct tile tile_at(const struct work &w, uint32_t i)
{
    struct tile t = {0, 0, 0, {}};
    uint32_t row = i / w.n_col_tile;
    t.col = i % w.n_col_tile;
    if (w.a.tasks) {
        t.expert = w.a.tasks[row].expert;
    } else {
        const uint32_t band = i / (RASTER_TILES * w.n_col_tile) * RASTER_TILES;
        const uint32_t height = min((uint32_t)RASTER_TILES, w.n_row_tile - band);
        const uint32_t rest = i - band * w.n_col_tile;
        row = band + rest % height;
        t.col = rest / height;
    }
    t.rows = product_rows_of(w.a, (int)row, BM);
    t.n = t.rows.n;
    DCHECK(t.n > 0 && t.col < w.n_col_tile);
    return t;
}

/* t = the next tile; false: there is none */
template <bool GATHER>
static __device__ __forceinline__ bool next_tile(const struct work &w, struct feed *feed,
                                                 struct tile_walk &walk, struct tile &t)
{
    uint32_t i = walk.next;
    if (GATHER && w.a.tasks) {
        i = feed_get(feed, walk.fed, threadIdx.x % WARP);
    } else {
        walk.next += gridDim.x;
    }
    if (i >= walk.n_tile) return false;
    t = tile_at(w, i);
    return true;
}

/* ---- the producers ---- */

/* Where a producer thread copies from, in pieces from the first input: piece thread % K_LINE_PIECES
 * of row thread / K_LINE_PIECES and of every GATHER_ROWS rows on. Rows past the end are not copied:
 * sums of theirs are not looked at. */
struct gather {
    uint32_t from[BM / GATHER_ROWS];
    int n; /* how many of them */
};

static __device__ __forceinline__ struct gather gather_of(const struct work &w,
                                                          const struct tile &t)
{
    const int first = (int)threadIdx.x / K_LINE_PIECES;
    struct gather g;
    g.n = t.n > first ? (t.n - first - 1) / GATHER_ROWS + 1 : 0;
#pragma unroll
    for (int i = 0; i < BM / GATHER_ROWS; i++) {
        int row = in_row(w.a, t.rows, min(first + i * GATHER_ROWS, t.n - 1));
        if (w.a.in_rows) row = w.a.in_rows[row];
        g.from[i] = (uint32_t)row * (w.a.k * 2 / PIECE_BYTES) + threadIdx.x % K_LINE_PIECES;
    }
    return g;
}

static __device__ __forceinline__ void gather_k_line(const struct work &w, const struct gather &g,
                                                     uint32_t dst, uint32_t k_line)
{
    const uint32_t first = threadIdx.x / K_LINE_PIECES, piece = threadIdx.x % K_LINE_PIECES;
    dst += first * K_LINE_BYTES + (piece ^ (first & 7)) * PIECE_BYTES;
#pragma unroll
    for (int i = 0; i < BM / GATHER_ROWS; i++) {
        if (i >= g.n) break;
        const size_t from = (size_t)g.from[i] + (size_t)k_line * K_LINE_PIECES;
        cp_async_16(dst + (uint32_t)(i * GATHER_ROWS * K_LINE_BYTES),
                    (const char *)w.a.h + from * PIECE_BYTES, true);
    }
}

/* The weights of a stage, one thread; `more` bytes of other copies count at `full` too. */
template <int COLS>
static __device__ __forceinline__ void load_weights(const struct work &w, const struct tile &t,
                                                    uint32_t dst, uint32_t full, uint32_t k_line,
                                                    uint32_t more)
{
    enum { TILES = COLS / TILE_ROWS };
    if (!w.a.tiled) {
        mbarrier_arrive_expect(full, COLS * K_LINE_BYTES + more);
        tensor_load(dst, &w.w_map, full, (int)(k_line * K_LINE_BYTES), (int)(t.col * COLS),
                    t.expert);
        return;
    }
    const uint32_t first = t.col * TILES;
    const uint32_t n = min((uint32_t)TILES, ceil_div(w.a.n, TILE_ROWS) - first);
    mbarrier_arrive_expect(full, n * TILE_BYTES + more);
    for (uint32_t i = 0; i < n; i++) {
        weight_load(dst + i * TILE_BYTES, (const char *)w.a.w, full, w.n_k_line, k_line, first + i);
    }
}

template <int COLS, bool GATHER>
static __device__ __forceinline__ void produce(const struct work &w, struct stages<COLS> *s)
{
    if (!GATHER && threadIdx.x != 0) return;
    const bool feeds = GATHER && w.a.tasks && threadIdx.x == 0;
    struct tile_walk tiles = begin_tiles(w);
    struct feed_source source = feed_begin();
    struct ring at = {0, 0};
    struct tile t;
    if (feeds) feed_put_next(&s->feed, source, w.a.feed, tiles.n_tile);
    for (;;) {
        if (feeds) feed_put_next(&s->feed, source, w.a.feed, tiles.n_tile);
        if (!next_tile<GATHER>(w, &s->feed, tiles, t)) break;
        struct gather g;
        if (GATHER) g = gather_of(w, t);
        for (uint32_t k_line = 0; k_line < w.n_k_line; k_line++, advance<COLS>(at)) {
            const uint32_t full = smem_address(&s->full[at.stage]);
            const uint32_t in = smem_address(s->in[at.stage]);
            const int x = (int)(k_line * K_LINE_BYTES);
            wait_phase(&s->empty[at.stage], at.parity ^ 1);
            if (threadIdx.x == 0) {
                load_weights<COLS>(w, t, smem_address(s->w[at.stage]), full, k_line,
                                   GATHER ? 0 : BM * K_LINE_BYTES);
                if (!GATHER) tensor_load(in, &w.in_map, full, x, t.rows.first, 0);
            }
            if (!GATHER) continue;
            gather_k_line(w, g, in, k_line);
            mbarrier_arrive_cp_async(full);
        }
    }
    if (feeds) feed_end(w.a.feed);
}

/* ---- the consumers ---- */

template <int COLS>
static __device__ __forceinline__ void release(struct stages<COLS> *s, uint32_t stage)
{
    __syncwarp();
    if (threadIdx.x % WARP == 0) mbarrier_arrive(smem_address(&s->empty[stage]));
}

/* A warp's rows, from row0 of the tile on, to `out`. */
template <int COLS>
static __device__ __forceinline__ void store(const struct work &w, const struct tile &t,
                                             const float (&c)[COLS / 2], int row0)
{
    const int g = (int)threadIdx.x % WARP / 4;
    const uint32_t col0 = t.col * COLS + threadIdx.x % 4 * 2;
#pragma unroll
    for (int half = 0; half < 2; half++) {
        const int row = row0 + g + 8 * half;
        if (row >= t.n) continue;
        float *to = w.a.out + (size_t)out_row(t.rows, row) * w.a.out_stride + col0;
#pragma unroll
        for (int j = 0; j < COLS / 8; j++) {
            if (col0 + 8 * (uint32_t)j >= w.a.n) break;
            *(float2 *)(to + 8 * j) = make_float2(c[4 * j + 2 * half], c[4 * j + 2 * half + 1]);
        }
    }
}

/* c = the sums of the part of K that begins at `at`. */
template <int COLS, bool GATHER>
static __device__ __forceinline__ void sum_part(const struct work &w, struct stages<COLS> *s,
                                                struct ring &at, uint64_t in, uint64_t weights,
                                                float (&c)[COLS / 2])
{
    enum { IN_STEP = BM * K_LINE_BYTES / 16, W_STEP = COLS * K_LINE_BYTES / 16 };
    uint32_t before = 0;
#pragma unroll
    for (int i = 0; i < COLS / 2; i++) c[i] = 0.0f;
    for (uint32_t line = 0; line < w.part_lines; line++, advance<COLS>(at)) {
        const uint64_t a = in + (uint64_t)at.stage * IN_STEP;
        const uint64_t b = weights + (uint64_t)at.stage * W_STEP;
        wait_phase(&s->full[at.stage], at.parity);
        if (GATHER) async_proxy_fence();
        wgmma_fence();
#pragma unroll
        for (int k = 0; k < STEPS; k++) wgmma_bf16_add(c, a + 2 * k, b + 2 * k);
        wgmma_commit();
        wgmma_wait_but<1>(c);
        if (line) release<COLS>(s, before);
        before = at.stage;
    }
    wgmma_wait_but<0>(c);
    release<COLS>(s, before);
}

/* sum = the sums of all of K, part by part. */
template <int COLS, bool GATHER>
static __device__ __forceinline__ void sum_all(const struct work &w, struct stages<COLS> *s,
                                               struct ring &at, uint64_t in, uint64_t weights,
                                               float (&sum)[COLS / 2])
{
    sum_part<COLS, GATHER>(w, s, at, in, weights, sum);
    if constexpr (COLS != COLS_ONE_PART) {
        for (uint32_t line = w.part_lines; line < w.n_k_line; line += w.part_lines) {
            float c[COLS / 2];
            sum_part<COLS, GATHER>(w, s, at, in, weights, c);
#pragma unroll
            for (int i = 0; i < COLS / 2; i++) sum[i] += c[i];
        }
    }
}

template <int COLS, bool GATHER>
static __device__ __forceinline__ void consume(const struct work &w, struct stages<COLS> *s,
                                               int group)
{
    const int first_row = group * GROUP_ROWS, warp = (int)threadIdx.x / WARP % 4;
    const uint64_t in = wgmma_operand(smem_address(s->in[0]) + (uint32_t)first_row * K_LINE_BYTES);
    const uint64_t weights = wgmma_operand(smem_address(s->w[0]));
    struct tile_walk tiles = begin_tiles(w);
    struct ring at = {0, 0};
    struct tile t;
    while (next_tile<GATHER>(w, &s->feed, tiles, t)) {
        if (first_row >= t.n) { /* the other warpgroup's alone */
            for (uint32_t line = 0; line < w.n_k_line; line++, advance<COLS>(at)) {
                wait_phase(&s->full[at.stage], at.parity);
                release<COLS>(s, at.stage);
            }
            continue;
        }
        float sum[COLS / 2];
        sum_all<COLS, GATHER>(w, s, at, in, weights, sum);
        store<COLS>(w, t, sum, first_row + warp * WARP_ROWS);
    }
}

template <int COLS, bool GATHER>
__global__ void __launch_bounds__(THREADS, 1)
    product_bf16_sm90_kernel(const __grid_constant__ struct work w)
{
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
    SHARED_DYNAMIC(unsigned char, shared);
    struct stages<COLS> *s = (struct stages<COLS> *)shared;
    const int group = shfl((int)threadIdx.x / GROUP_THREADS, 0);
    dependency_release();
    if (threadIdx.x == 0) {
        if (!w.a.tiled) tensor_map_prefetch(&w.w_map);
        for (uint32_t i = 0; i < STAGES<COLS>; i++) {
            mbarrier_init(smem_address(&s->full[i]), GATHER ? 1 + GROUP_THREADS : 1);
            mbarrier_init(smem_address(&s->empty[i]), CONSUMER_WARPS);
        }
        if (GATHER) feed_init(&s->feed, THREADS / WARP);
        mbarrier_init_fence();
        async_proxy_fence();
    }
    __syncthreads();
    dependency_wait();
    if (group == 0) {
        registers_lower<PRODUCER_REGISTERS>();
        produce<COLS, GATHER>(w, s);
    } else {
        registers_raise<CONSUMER_REGISTERS>();
        consume<COLS, GATHER>(w, s, group - 1);
    }
#endif
}

/* ---- the host ---- */

struct launch {
    void (*kernel)(struct work);
    uint32_t cols;
    size_t shared;
};

template <int COLS> static struct launch launch_of(bool gathers)
{
    return {gathers ? product_bf16_sm90_kernel<COLS, true> : product_bf16_sm90_kernel<COLS, false>,
            COLS, sizeof(struct stages<COLS>)};
}

/* Whether n_tile row tiles of n outputs take less time in COLS_PARTS_FEW: a tile takes 0.53 to 0.74
 * of the other's, as measured on an H200. */
static bool few_cols_are_faster(uint32_t n, uint32_t n_tile, uint32_t n_sm)
{
    const uint32_t rounds = ceil_div(n_tile * ceil_div(n, COLS_PARTS), n_sm);
    return ceil_div(n_tile * ceil_div(n, COLS_PARTS_FEW), n_sm) * 5 <= rounds * 8;
}

cudaError_t product_bf16_sm90(const struct product_args &a, uint32_t n_tile, uint32_t n_matrix,
                              const struct sm90_limits &limits, cudaStream_t stream)
{
    ASSERT(a.k % LINE_VALUES == 0 && a.n % 8 == 0 && a.out_stride % 2 == 0 && limits.n_sm > 0);
    ASSERT((uintptr_t)a.w % 16 == 0 && (uintptr_t)a.h % 16 == 0 && (uintptr_t)a.out % 8 == 0);
    ASSERT(n_matrix > 0 && (!a.tasks || (a.in_divisor > 0 && !a.in_rows && a.feed)));
    const bool gathers = a.tasks || a.in_rows;
    struct work w = {};
    w.a = a;
    w.n_k_line = a.k / LINE_VALUES;
    w.part_lines = w.n_k_line / bf16_k_part_count(a.n, w.n_k_line, a.tasks != NULL);
    const struct launch launch = w.part_lines == w.n_k_line ? launch_of<COLS_ONE_PART>(gathers)
                                 : few_cols_are_faster(a.n, n_tile, limits.n_sm)
                                     ? launch_of<COLS_PARTS_FEW>(gathers)
                                     : launch_of<COLS_PARTS>(gathers);
    w.n_col_tile = ceil_div(a.n, launch.cols);
    w.n_row_tile = n_tile;
    const size_t matrix_bytes = (size_t)a.n * a.k * 2;
    cudaError_t e = cudaSuccess;
    ASSERT(!a.tiled || !a.tasks);
    if (!a.tiled)
        e = make_map(&w.w_map, a.w, a.k * 2, a.n, n_matrix,
                     n_matrix > 1 ? a.w_stride : matrix_bytes, launch.cols);
    if (e != cudaSuccess) return e;
    if (!gathers)
        e = make_map(&w.in_map, a.h, a.k * 2, a.n_token, 1, (size_t)a.n_token * a.k * 2, BM);
    if (e != cudaSuccess) return e;
    if (!n_tile) return cudaSuccess;
    return gpu_launch(
        {dim3(min(n_tile * w.n_col_tile, limits.n_sm)), 1, THREADS, launch.shared, true}, stream,
        launch.kernel, w);
}

cudaError_t product_bf16_sm90_init(void)
{
    for (bool gathers : {false, true}) {
        for (const struct launch &l :
             {launch_of<COLS_ONE_PART>(gathers), launch_of<COLS_PARTS>(gathers),
              launch_of<COLS_PARTS_FEW>(gathers)}) {
            const cudaError_t e = cudaFuncSetAttribute(
                l.kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)l.shared);
            if (e != cudaSuccess) return e;
        }
    }
    return cudaSuccess;
}
