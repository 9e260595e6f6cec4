/* product_bf16.cu - BF16 matrix product for many rows on sm_90a
 *
 * One resident block a multiprocessor walks over tiles of 128 rows x 256 outputs. Warpgroup 0
 * fills a ring of stages, one stage a K line of 64 values: inputs and weights. Warpgroups 1 and 2
 * own 64 rows each, and sum a part of K in their registers. Where K has several parts, the sum of
 * those before lies in `out`, and the thread that wrote it adds the next one.
 *
 * Weights come by tensor map, or tile by tile where they lie in tiles; inputs of plain products
 * by tensor map, others are gathered by 16-byte copies. A stage goes round as in
 * product_fp8.cu. */
#include "backend/cuda/sm90/product_bf16.cuh"

#include "backend/cuda/k_parts.h"
#include "backend/cuda/sm90/stage.cuh"

enum {
    BM = PRODUCT_LARGE_TILE,
    BN = 256,
    LINE_VALUES = K_LINE_BYTES / 2,
    STEPS = K_LINE_BYTES / 32, /* products of a K line */
    GROUP_ROWS = 64,           /* of a warpgroup */
    WARP_ROWS = 16,
    STAGES = 4,
    GROUP_THREADS = 128,
    CONSUMER_WARPS = 8,
    THREADS = 3 * GROUP_THREADS,
    PRODUCER_REGISTERS = 40,
    CONSUMER_REGISTERS = 232,
    GATHER_ROWS = GROUP_THREADS / K_LINE_PIECES,
    RASTER_TILES = 16, /* row tiles that are walked together, for reuse in L2 */
};
static_assert((int)BN <= (int)TENSOR_BOX_MAX && BM == 2 * GROUP_ROWS, "boxes of a tensor map");
static_assert(GATHER_ROWS % 8 == 0 && BM % GATHER_ROWS == 0,
              "the permutation is the same for all rows of a thread");
static_assert(GROUP_THREADS * (PRODUCER_REGISTERS + 2 * CONSUMER_REGISTERS) <= 64 << 10,
              "registers of a multiprocessor");

struct alignas(1024) stages {
    uint8_t in[STAGES][BM * K_LINE_BYTES];
    uint8_t w[STAGES][BN * K_LINE_BYTES];
    uint64_t full[STAGES];
    uint64_t empty[STAGES];
};
static_assert(sizeof(struct stages) <= SHARED_MAX, "shared memory of a block");

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

static __device__ __forceinline__ void advance(struct ring &r)
{
    if (++r.stage == STAGES) {
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

/* ---- the producers ---- */

/* Where a producer thread copies from: piece thread % K_LINE_PIECES of row thread / K_LINE_PIECES
 * and of every GATHER_ROWS rows on. Rows past the end are not copied: sums of theirs are not
 * looked at. */
struct gather {
    const char *from[BM / GATHER_ROWS];
    uint32_t n; /* rows */
};

static __device__ __forceinline__ struct gather gather_of(const struct work &w,
                                                          const struct tile &t)
{
    const int first = (int)threadIdx.x / K_LINE_PIECES;
    struct gather g;
    g.n = (uint32_t)t.n;
#pragma unroll
    for (int i = 0; i < BM / GATHER_ROWS; i++) {
        const int row = in_row(w.a, t.rows, min(first + i * GATHER_ROWS, t.n - 1));
        g.from[i] = (const char *)w.a.h +
                    (size_t)(w.a.in_rows ? w.a.in_rows[row] : row) * w.a.k * 2 +
                    threadIdx.x % K_LINE_PIECES * PIECE_BYTES;
    }
    return g;
}

static __device__ __forceinline__ void gather_k_line(const struct gather &g, uint32_t dst,
                                                     uint32_t k_line)
{
    const uint32_t first = threadIdx.x / K_LINE_PIECES, piece = threadIdx.x % K_LINE_PIECES;
    dst += first * K_LINE_BYTES + (piece ^ (first & 7)) * PIECE_BYTES;
#pragma unroll
    for (uint32_t i = 0; i < BM / GATHER_ROWS; i++) {
        if (first + i * GATHER_ROWS >= g.n) break;
        cp_async_16(dst + i * GATHER_ROWS * K_LINE_BYTES, g.from[i] + (size_t)k_line * K_LINE_BYTES,
                    true);
    }
}

/* The weights of a stage, one thread; `more` bytes of other copies count at `full` too. */
static __device__ __forceinline__ void load_weights(const struct work &w, const struct tile &t,
                                                    uint32_t dst, uint32_t full, uint32_t k_line,
                                                    uint32_t more)
{
    enum { TILES = BN / TILE_ROWS };
    if (!w.a.tiled) {
        mbarrier_arrive_expect(full, BN * K_LINE_BYTES + more);
        tensor_load(dst, &w.w_map, full, (int)(k_line * K_LINE_BYTES), (int)(t.col * BN), t.expert);
        return;
    }
    const uint32_t first = t.col * TILES;
    const uint32_t n = min((uint32_t)TILES, ceil_div(w.a.n, TILE_ROWS) - first);
    mbarrier_arrive_expect(full, n * TILE_BYTES + more);
    for (uint32_t i = 0; i < n; i++) {
        weight_load(dst + i * TILE_BYTES, (const char *)w.a.w, full, w.n_k_line, k_line, first + i);
    }
}

template <bool GATHER>
static __device__ __forceinline__ void produce(const struct work &w, struct stages *s)
{
    if (!GATHER && threadIdx.x != 0) return;
    const uint32_t n_tile = tile_count(w);
    struct ring at = {0, 0};
    for (uint32_t i = blockIdx.x; i < n_tile; i += gridDim.x) {
        const struct tile t = tile_at(w, i);
        struct gather g;
        if (GATHER) g = gather_of(w, t);
        for (uint32_t k_line = 0; k_line < w.n_k_line; k_line++, advance(at)) {
            const uint32_t full = smem_address(&s->full[at.stage]);
            const uint32_t in = smem_address(s->in[at.stage]);
            const int x = (int)(k_line * K_LINE_BYTES);
            wait_phase(&s->empty[at.stage], at.parity ^ 1);
            if (threadIdx.x == 0) {
                load_weights(w, t, smem_address(s->w[at.stage]), full, k_line,
                             GATHER ? 0 : BM * K_LINE_BYTES);
                if (!GATHER) tensor_load(in, &w.in_map, full, x, t.rows.first, 0);
            }
            if (!GATHER) continue;
            gather_k_line(g, in, k_line);
            mbarrier_arrive_cp_async(full);
        }
    }
}

/* ---- the consumers ---- */

static __device__ __forceinline__ void release(struct stages *s, uint32_t stage)
{
    __syncwarp();
    if (threadIdx.x % WARP == 0) mbarrier_arrive(smem_address(&s->empty[stage]));
}

/* A part's sums to `out`, behind those before it. */
static __device__ __forceinline__ void store(const struct work &w, const struct tile &t,
                                             const float (&c)[128], int row0, bool first)
{
    const int g = (int)threadIdx.x % WARP / 4;
    const uint32_t col0 = t.col * BN + threadIdx.x % 4 * 2;
#pragma unroll
    for (int half = 0; half < 2; half++) {
        const int row = row0 + g + 8 * half;
        if (row >= t.n) continue;
        float *to = w.a.out + (size_t)out_row(t.rows, row) * w.a.out_stride + col0;
#pragma unroll
        for (int j = 0; j < BN / 8; j++) {
            float2 v = make_float2(c[4 * j + 2 * half], c[4 * j + 2 * half + 1]);
            if (col0 + 8 * (uint32_t)j >= w.a.n) break;
            if (!first) {
                const float2 before = *(const float2 *)(to + 8 * j);
                v = make_float2(before.x + v.x, before.y + v.y);
            }
            *(float2 *)(to + 8 * j) = v;
        }
    }
}

/* c = the sums of the part of K that begins at `at`. */
template <bool GATHER>
static __device__ __forceinline__ void sum_part(const struct work &w, struct stages *s,
                                                struct ring &at, uint64_t in, uint64_t weights,
                                                float (&c)[128])
{
    enum { IN_STEP = BM * K_LINE_BYTES / 16, W_STEP = BN * K_LINE_BYTES / 16 };
    uint32_t before = 0;
#pragma unroll
    for (int i = 0; i < 128; i++) c[i] = 0.0f;
    for (uint32_t line = 0; line < w.part_lines; line++, advance(at)) {
        const uint64_t a = in + (uint64_t)at.stage * IN_STEP;
        const uint64_t b = weights + (uint64_t)at.stage * W_STEP;
        wait_phase(&s->full[at.stage], at.parity);
        if (GATHER) async_proxy_fence();
        wgmma_fence();
#pragma unroll
        for (int k = 0; k < STEPS; k++) wgmma_bf16_add(c, a + 2 * k, b + 2 * k);
        wgmma_commit();
        wgmma_wait_but<1>(c);
        if (line) release(s, before);
        before = at.stage;
    }
    wgmma_wait_but<0>(c);
    release(s, before);
}

template <bool GATHER>
static __device__ __forceinline__ void consume(const struct work &w, struct stages *s, int group)
{
    const uint32_t n_tile = tile_count(w);
    const int first_row = group * GROUP_ROWS, warp = (int)threadIdx.x / WARP % 4;
    const uint64_t in = wgmma_operand(smem_address(s->in[0]) + (uint32_t)first_row * K_LINE_BYTES);
    const uint64_t weights = wgmma_operand(smem_address(s->w[0]));
    struct ring at = {0, 0};
    for (uint32_t i = blockIdx.x; i < n_tile; i += gridDim.x) {
        const struct tile t = tile_at(w, i);
        if (first_row >= t.n) { /* the other warpgroup's alone */
            for (uint32_t line = 0; line < w.n_k_line; line++, advance(at)) {
                wait_phase(&s->full[at.stage], at.parity);
                release(s, at.stage);
            }
            continue;
        }
        for (uint32_t line = 0; line < w.n_k_line; line += w.part_lines) {
            float c[128];
            sum_part<GATHER>(w, s, at, in, weights, c);
            store(w, t, c, first_row + warp * WARP_ROWS, line == 0);
        }
    }
}

template <bool GATHER>
__global__ void __launch_bounds__(THREADS, 1)
    product_bf16_sm90_kernel(const __grid_constant__ struct work w)
{
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
    SHARED_DYNAMIC(unsigned char, shared);
    struct stages *s = (struct stages *)shared;
    const int group = shfl((int)threadIdx.x / GROUP_THREADS, 0);
    dependency_release();
    if (threadIdx.x == 0) {
        if (!w.a.tiled) tensor_map_prefetch(&w.w_map);
        for (int i = 0; i < STAGES; i++) {
            mbarrier_init(smem_address(&s->full[i]), GATHER ? 1 + GROUP_THREADS : 1);
            mbarrier_init(smem_address(&s->empty[i]), CONSUMER_WARPS);
        }
        mbarrier_init_fence();
        async_proxy_fence();
    }
    __syncthreads();
    dependency_wait();
    if (group == 0) {
        registers_lower<PRODUCER_REGISTERS>();
        produce<GATHER>(w, s);
    } else {
        registers_raise<CONSUMER_REGISTERS>();
        consume<GATHER>(w, s, group - 1);
    }
#endif
}

/* ---- the host ---- */

cudaError_t product_bf16_sm90(const struct product_args &a, uint32_t n_tile, uint32_t n_matrix,
                              const struct sm90_limits &limits, cudaStream_t stream)
{
    ASSERT(a.k % LINE_VALUES == 0 && a.n % 8 == 0 && a.out_stride % 2 == 0 && limits.n_sm > 0);
    ASSERT((uintptr_t)a.w % 16 == 0 && (uintptr_t)a.h % 16 == 0 && (uintptr_t)a.out % 8 == 0);
    ASSERT(n_matrix > 0 && (!a.tasks || (a.in_divisor > 0 && !a.in_rows)));
    const bool gathers = a.tasks || a.in_rows;
    struct work w = {};
    w.a = a;
    w.n_k_line = a.k / LINE_VALUES;
    w.part_lines = w.n_k_line / bf16_k_part_count(a.n, w.n_k_line, a.tasks != NULL);
    w.n_col_tile = ceil_div(a.n, BN);
    w.n_row_tile = n_tile;
    const size_t matrix_bytes = (size_t)a.n * a.k * 2;
    cudaError_t e = cudaSuccess;
    ASSERT(!a.tiled || !a.tasks);
    if (!a.tiled)
        e = make_map(&w.w_map, a.w, a.k * 2, a.n, n_matrix,
                     n_matrix > 1 ? a.w_stride : matrix_bytes, BN);
    if (e != cudaSuccess) return e;
    if (!gathers)
        e = make_map(&w.in_map, a.h, a.k * 2, a.n_token, 1, (size_t)a.n_token * a.k * 2, BM);
    if (e != cudaSuccess) return e;
    if (!n_tile) return cudaSuccess;
    return gpu_launch(
        {dim3(min(n_tile * w.n_col_tile, limits.n_sm)), 1, THREADS, sizeof(struct stages), true},
        stream, gathers ? product_bf16_sm90_kernel<true> : product_bf16_sm90_kernel<false>, w);
}

cudaError_t product_bf16_sm90_init(void)
{
    const enum cudaFuncAttribute limit = cudaFuncAttributeMaxDynamicSharedMemorySize;
    cudaError_t e =
        cudaFuncSetAttribute(product_bf16_sm90_kernel<true>, limit, sizeof(struct stages));
    if (e != cudaSuccess) return e;
    return cudaFuncSetAttribute(product_bf16_sm90_kernel<false>, limit, sizeof(struct stages));
}
