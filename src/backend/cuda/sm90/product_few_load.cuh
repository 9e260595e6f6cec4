/* product_few_load.cuh - how blocks of product_few_kernel.cuh walk their work, and the warp of each
 * that fills the ring
 *
 * A stage goes round:
 *
 *   empty --- all copies issued; full: 1 + 32 arrivals and the bytes ---> full
 *   full ---- read by the four warps ---> empty
 *
 * Weights do not change: those of a plain product, of the expert that every token takes, and of
 * tasks that were there early, are requested before the kernel waits for the one in front of it. */
#ifndef FATHOM_BACKEND_CUDA_SM90_PRODUCT_FEW_LOAD_CUH
#define FATHOM_BACKEND_CUDA_SM90_PRODUCT_FEW_LOAD_CUH

#include "backend/cuda/e2m1.cuh"
#include "backend/cuda/k_parts.h"
#include "backend/cuda/sm90/stage.cuh"
#include "backend/cuda/sm90/u4.cuh"

enum {
    BM = TILE_ROWS, /* outputs of a tile */
    CONSUMERS = 128,
    CONSUMER_WARPS = CONSUMERS / WARP,
    THREADS = CONSUMERS + WARP,
    STAGES_MAX = 8,
    BLOCK_PARTS_MAX = 2,  /* K parts of a tile that a block of a cluster makes */
    SPLIT_STAGES_MIN = 2, /* of a ring of such a block that makes one tile */
    ALONE_STAGES_MIN = 6, /* and of one that makes all of them */
    /* Shared memory of such a block, at least, if each has a multiprocessor: with less there is
     * room beside it for blocks of later kernels, and steps are slower
     * (docs/kernels/product_fp8.md). */
    WHOLE_TILE_BYTES = 200 << 10,
    UNITS = 8,        /* eighths of a tile: what a block of a cluster of 8 adds up */
    RUN_K_LINES = 16, /* K lines that one lookup of a task's rows should last for */
    ALONE_TILES = 2,  /* tiles a multiprocessor from which on no K is shared */
    SM_BYTES = 228 << 10,
    BLOCK_BYTES = 1 << 10, /* what the device keeps for itself of each block's shared memory */
    ALIGN_BYTES = 1024,
};
static_assert(SM_BYTES - BLOCK_BYTES == SHARED_MAX, "shared memory of a block");
static_assert((int)UNITS == (int)CLUSTER_BLOCKS_MAX && UNITS * 8 == BM, "an eighth has 8 outputs");
static_assert(BM == CONSUMER_WARPS * 16 && (int)SCALE_BLOCK % BM == 0, "a tile has one scale");
static_assert(SPLIT_STAGES_MIN <= ALONE_STAGES_MIN && ALONE_STAGES_MIN <= STAGES_MAX, "rings");
static_assert(1u << (FEW_K_PARTS - 1) == UNITS, "clusters of 1, 2, 4, 8 blocks");

/* What weights are, in the place of a number of groups of U4; E2M1 by its scales. */
enum {
    FEW_FP8 = 0,
    FEW_INT8 = -1,
    FEW_INT8_ROW = -2,
    FEW_NVFP4 = -3,
    FEW_MXFP4 = -4,
    FEW_BF16 = -5
};

template <int G> static __host__ __device__ constexpr bool is_e2m1(void)
{
    return G == FEW_NVFP4 || G == FEW_MXFP4;
}

template <int G> static __host__ __device__ constexpr bool is_packed(void)
{
    return G > 0 || is_e2m1<G>();
}

/* Scales of a row of a packed tile. */
template <int G> static __host__ __device__ constexpr uint32_t groups_of(void)
{
    return G > 0 ? (uint32_t)G : G == FEW_NVFP4 ? 8 : 4;
}

/* Bytes of a row of inputs that belong to a K line of weights: codes, or 128 values of bf16 in two
 * operands, one behind the other. */
template <int G> static __host__ __device__ constexpr uint32_t input_bytes(void)
{
    return is_e2m1<G>() ? 2 * K_LINE_BYTES : K_LINE_BYTES;
}

/* The start of a block's shared memory; sums for the cluster's exchange and the ring follow. */
template <int N> struct alignas(ALIGN_BYTES) few_shared {
    float in_scale[STAGES_MAX][N];
    float w_scale[STAGES_MAX];
    uint64_t full[STAGES_MAX];
    uint64_t empty[STAGES_MAX];
    uint64_t packed[STAGES_MAX]; /* of weights that are turned ahead */
    uint64_t turned;
    uint64_t ready[2];
    uint64_t read;
};

/* Eighth u of a tile has outputs 8 u to 8 u + 7. Sums lie as lanes hold them: [K part][eighth of
 * this block][group of 8 rows][lane], two values each. So much for each K part that a block makes.
 */
template <int N> struct few_parts {
    float2 sum[UNITS * N / 8 * WARP];
};

/* Where a stage of packed U4 weights has, mapped, the inputs' scales and sums: [group][row], a pair
 * each. */
template <int G> static __host__ __device__ constexpr uint32_t pairs_at(void)
{
    return PACK4_CODE_BYTES + G * PACK4_ROWS * 5;
}

/* Bytes of a stage: weights, with scales and zeros of U4 ones and those pairs, and behind them
 * inputs. */
template <int N, int G> static __host__ __device__ constexpr uint32_t weight_bytes(bool turns)
{
    const uint32_t tail = G > 0
                              ? pairs_at<G>() - PACK4_CODE_BYTES + G * N * (uint32_t)sizeof(float2)
                          : is_e2m1<G>() ? groups_of<G>() * PACK4_ROWS
                                         : 0;
    const uint32_t codes =
        is_packed<G>() && !turns ? (uint32_t)PACK4_CODE_BYTES : BM * K_LINE_BYTES;
    return (codes + tail + ALIGN_BYTES - 1) / ALIGN_BYTES * ALIGN_BYTES;
}
static_assert(BM * K_LINE_BYTES % ALIGN_BYTES == 0 && 8 * K_LINE_BYTES % ALIGN_BYTES == 0,
              "atoms of operands");
static_assert((int)U4_TURNED_BYTES == (int)BM * K_LINE_BYTES, "turned tiles are FP8's");

struct few_work {
    CUtensorMap in_map; /* plain only */
    CUtensorMap w_map;  /* of BF16, which lies row by row */
    struct product_args a;
    struct u4_form u4; /* of U4 weights */
    uint32_t n_k_line;
    uint32_t n_k_part;
    uint32_t k_part_lines;
    uint32_t cluster_size; /* blocks of a cluster, which share a tile; they divide n_k_part */
    uint32_t n_stage;
    uint32_t stage_bytes;
    uint32_t in_at;  /* of a stage */
    bool turns;      /* U4: a block's K lines are all in its ring and turned ahead */
    uint32_t n_part; /* 0: no cluster; 1: at most one item a cluster; 2 */
    uint32_t n_col_tile;
    uint32_t n_row_tile; /* plain */
    uint32_t run_cols;   /* column tiles of a run */
    uint32_t cut_lines;  /* tiles may be cut at multiples of so many K lines; 0: they stay whole */
};

/* A block's view of its shared memory. */
template <int N, int G> struct few_block {
    struct few_shared<N> *s;
    struct few_parts<N> *parts;
    uint8_t *stages;
    uint32_t cluster_rank;
};

template <int N, int G>
static __device__ __forceinline__ uint8_t *
weights_at(const struct few_work &w, const struct few_block<N, G> &b, uint32_t stage)
{
    return b.stages +
           stage * (G > 0 ? w.stage_bytes : weight_bytes<N, G>(false) + N * input_bytes<G>());
}

template <int N, int G>
static __device__ __forceinline__ uint8_t *
inputs_at(const struct few_work &w, const struct few_block<N, G> &b, uint32_t stage)
{
    return weights_at(w, b, stage) + (G > 0 ? w.in_at : weight_bytes<N, G>(false));
}

template <int N, int G>
static __device__ __forceinline__ float2 *pairs_of(const struct few_work &w,
                                                   const struct few_block<N, G> &b, uint32_t stage)
{
    return (float2 *)(weights_at(w, b, stage) + pairs_at<G>());
}

struct few_ring {
    uint32_t stage;
    uint32_t parity;
};

static __device__ __forceinline__ void advance(struct few_ring &r, uint32_t n_stage)
{
    if (++r.stage == n_stage) {
        r.stage = 0;
        r.parity ^= 1;
    }
}

/* A run: column tiles of one row tile, one after the other, and the K lines of each that are this
 * block's. */
struct few_run {
    int row_tile;
    uint32_t col;
    uint32_t col_end;
    uint32_t k_begin;
    uint32_t k_end;
};

/* Mapped: the columns of a task one after the other. Plain: all rows of a column tile at once,
 * which have its weights in common. */
template <bool MAPPED>
static __device__ __forceinline__ struct few_run run_at(const struct few_work &w, uint32_t i,
                                                        uint32_t cluster_rank)
{
    const uint32_t n_col = ceil_div(w.n_col_tile, w.run_cols), k_part = w.n_k_line / w.cluster_size;
    const uint32_t col = MAPPED ? i % n_col : i / w.n_row_tile;
    struct few_run r;
    r.row_tile = (int)(MAPPED ? i / n_col : i % w.n_row_tile);
    r.col = col * w.run_cols;
    r.col_end = min(r.col + w.run_cols, w.n_col_tile);
    r.k_begin = cluster_rank * k_part;
    r.k_end = r.k_begin + k_part;
    return r;
}

/* Whether tiles of experts may be cut between blocks. Packed ones are slower to multiply than to
 * load, so that a last round of few blocks leaves memory idle; FP8's and int8's are not. */
template <int G> static __host__ __device__ constexpr bool may_cut(void)
{
    return is_packed<G>();
}

/* What a block walks through: every run that is a multiple of the number of blocks on from its own.
 * Or, where that would give some a run more than others, an even share of the K lines of all runs,
 * in order, counted in units of cut_lines:
 *
 *   block b      |--- whole runs ---|= first lines of a run =|
 *   block b + 1                                              |= its last lines =|--- whole ---|...
 *
 * A block makes those first lines before all else and hands their sums on (product_few_kernel.cuh);
 * those last lines come behind all else. So it waits for the block in front, which began before it
 * did and waits for nobody in what it is waited for. */
struct few_walk {
    uint32_t i, end, step; /* whole runs that are left */
    uint32_t head;         /* K lines of run `end` that come first; 0: none, or they have come */
    uint32_t tail, last; /* K lines of run `last` that are the block's in front, which comes last */
};

/* The start of it, of n_row row tiles. CUT: runs may be cut. */
template <bool MAPPED, bool CUT>
static __device__ __forceinline__ struct few_walk walk_of(const struct few_work &w, uint32_t n_row)
{
    const uint32_t n_run = n_row * ceil_div(w.n_col_tile, w.run_cols);
    const uint32_t n_block = gridDim.x / w.cluster_size, block = blockIdx.x / w.cluster_size;
    struct few_walk walk = {block, n_run, n_block, 0, 0, 0};
    if (CUT && w.cut_lines && n_run > n_block) {
        const uint32_t per = w.n_k_line / w.cut_lines, n_unit = n_run * per;
        const uint32_t least = n_unit / n_block, more = n_unit % n_block;
        const uint32_t begin = least * block + min(block, more);
        const uint32_t end = begin + least + (block < more ? 1 : 0);
        DCHECK(w.run_cols == 1 && w.n_k_line % w.cut_lines == 0 && least >= per);
        walk.i = (begin + per - 1) / per;
        walk.end = end / per;
        walk.step = 1;
        walk.head = end % per * w.cut_lines;
        walk.tail = begin % per * w.cut_lines;
        walk.last = begin / per;
    }
    return walk;
}

/* The next run; false: there is none. */
template <bool MAPPED, bool CUT>
static __device__ __forceinline__ bool walk_on(const struct few_work &w, struct few_walk &walk,
                                               uint32_t cluster_rank, struct few_run &r)
{
    if (CUT && walk.head) {
        r = run_at<MAPPED>(w, walk.end, cluster_rank);
        r.k_end = walk.head;
        walk.head = 0;
        return true;
    }
    if (walk.i < walk.end) {
        r = run_at<MAPPED>(w, walk.i, cluster_rank);
        walk.i += walk.step;
        return true;
    }
    if (CUT && walk.tail) {
        r = run_at<MAPPED>(w, walk.last, cluster_rank);
        r.k_begin = walk.tail;
        walk.tail = 0;
        return true;
    }
    return false;
}

/* ---- the warp that loads ---- */

enum { GATHER_ROWS = WARP / K_LINE_PIECES };

/* What a lane copies: piece lane % LINE_PIECES of row lane / LINE_PIECES and of every GATHER_ROWS
 * rows on; the scales of row `lane` and of every WARP rows on. */
template <int N> struct few_gather {
    uint32_t from[N / GATHER_ROWS];            /* in pieces from the first input */
    const float *scale[(N + WARP - 1) / WARP]; /* NULL: no such row */
    const float *sum[(N + WARP - 1) / WARP];   /* of experts' U4 weights */
    int n;                                     /* rows */
};

template <int N, bool MAPPED, int G>
static __device__ __forceinline__ void gather_of(struct few_gather<N> &g, const struct few_work &w,
                                                 const struct product_rows &rows)
{
    const int lane = (int)threadIdx.x % WARP, last = rows.n - 1;
    static_assert(N % GATHER_ROWS == 0, "lanes copy equally many rows");
    DCHECK(rows.n >= 1 && rows.n <= N);
    g.n = rows.n;
    if (MAPPED) {
#pragma unroll
        for (int i = 0; i < N / GATHER_ROWS; i++) {
            const int row = in_row(w.a, rows, min(lane / K_LINE_PIECES + i * GATHER_ROWS, last));
            const uint32_t row_pieces = w.n_k_line * (input_bytes<G>() / PIECE_BYTES);
            g.from[i] = (uint32_t)row * row_pieces + (uint32_t)(lane % K_LINE_PIECES);
        }
    }
    if constexpr (!is_e2m1<G>() && G != FEW_BF16) {
#pragma unroll
        for (int i = 0; i < (N + WARP - 1) / WARP; i++) {
            const int at = lane + i * WARP;
            g.scale[i] = g.sum[i] = NULL;
            if (at >= rows.n) continue;
            const size_t first = (size_t)in_row(w.a, rows, at) * w.n_k_line;
            g.scale[i] = w.a.q_scale + first;
            if constexpr (MAPPED && G > 0) g.sum[i] = w.a.input_sums + first * G;
        }
    }
}

/* 128 bytes of each row, the k_line-th ones. */
template <int N>
static __device__ __forceinline__ void
gather_k_line(const void *inputs, const struct few_gather<N> &g, uint32_t dst, uint32_t k_line)
{
    const int lane = (int)threadIdx.x % WARP, first = lane / K_LINE_PIECES;
#pragma unroll
    for (int i = 0; i < N / GATHER_ROWS; i++) {
        const int row = first + i * GATHER_ROWS;
        if (row >= g.n) break;
        const uint8_t *src = (const uint8_t *)inputs +
                             ((size_t)g.from[i] + (size_t)k_line * K_LINE_PIECES) * PIECE_BYTES;
        const int place = (lane % K_LINE_PIECES) ^ (row & 7);
        cp_async_16(dst + (uint32_t)(row * K_LINE_BYTES + place * PIECE_BYTES), src, true);
    }
}

template <int N, bool MAPPED, int G>
static __device__ __forceinline__ void load_weights(const struct few_work &w,
                                                    const struct few_block<N, G> &b, uint32_t stage,
                                                    uint32_t k_line, uint32_t col, int expert)
{
    const uint32_t full = smem_address(&b.s->full[stage]),
                   dst = smem_address(weights_at(w, b, stage));
    const uint32_t tile_bytes = G > 0          ? w.a.pack.tile_bytes
                                : is_e2m1<G>() ? PACK4_CODE_BYTES + groups_of<G>() * PACK4_ROWS
                                               : (uint32_t)TILE_BYTES;
    const char *from = (const char *)w.a.w + (size_t)expert * w.a.w_stride;
    DCHECK(stage < w.n_stage && k_line < w.n_k_line && col < w.n_col_tile && expert >= 0);
    const char *tile = from + ((size_t)col * w.n_k_line + k_line) * tile_bytes;
    if (G > 0 && w.turns) {
        const uint32_t packed = smem_address(&b.s->packed[stage]);
        mbarrier_arrive_expect(packed, tile_bytes);
        u4_load_to_turn(dst, tile, tile_bytes, packed);
        mbarrier_arrive_expect(full, MAPPED ? 0 : N * K_LINE_BYTES);
        return;
    }
    mbarrier_arrive_expect(full, tile_bytes + (MAPPED ? 0 : N * input_bytes<G>()));
    if (G == FEW_BF16)
        tensor_load(dst, &w.w_map, full, (int)k_line * K_LINE_BYTES, (int)col * BM, expert);
    else
        bulk_load(dst, tile, tile_bytes, full);
}

/* The scale and the sums of a lane's i-th row. */
template <int G, int N>
static __device__ __forceinline__ void load_pairs(const struct few_gather<N> &g, int i, uint32_t to,
                                                  uint32_t k_line)
{
#pragma unroll
    for (int j = 0; j < G; j++, to += N * (uint32_t)sizeof(float2)) {
        cp_async_4(to, g.scale[i] + k_line);
        cp_async_4(to + 4, g.sum[i] + k_line * G + j);
    }
}

/* Those of bf16 of one stage. */
template <int N, bool MAPPED>
static __device__ __forceinline__ void load_values(const struct few_work &w,
                                                   const struct few_gather<N> &g, uint32_t in,
                                                   uint32_t full, uint32_t k_line, int first_row)
{
#pragma unroll
    for (uint32_t half = 0; half < 2; half++, in += N * K_LINE_BYTES) {
        const uint32_t line = 2 * k_line + half;
        if (MAPPED)
            gather_k_line<N>(w.a.h, g, in, line);
        else if (threadIdx.x % WARP == 0)
            tensor_load(in, &w.in_map, full, (int)(line * K_LINE_BYTES), first_row, 0);
    }
}

/* The inputs of one stage, by the whole warp. */
template <int N, bool MAPPED, int G>
static __device__ __forceinline__ void load_inputs(const struct few_work &w,
                                                   const struct few_block<N, G> &b, uint32_t stage,
                                                   const struct few_gather<N> &g, uint32_t k_line,
                                                   const struct product_rows &rows, uint32_t col)
{
    const int lane = (int)threadIdx.x % WARP;
    const uint32_t full = smem_address(&b.s->full[stage]),
                   in = smem_address(inputs_at(w, b, stage));
    if constexpr (is_e2m1<G>()) {
        load_values<N, MAPPED>(w, g, in, full, k_line, rows.first);
        mbarrier_arrive_cp_async(full);
        return;
    }
    if constexpr (G == FEW_BF16) {
        if (MAPPED)
            gather_k_line<N>(w.a.h, g, in, k_line);
        else if (lane == 0)
            tensor_load(in, &w.in_map, full, (int)k_line * K_LINE_BYTES, rows.first, 0);
        mbarrier_arrive_cp_async(full);
        return;
    }
    if (lane == 0) {
        if (G == FEW_FP8 || G == FEW_INT8) {
            const float *scale = rows.w_scale + (size_t)(col * BM / SCALE_BLOCK) * w.a.scale_stride;
            cp_async_4(smem_address(&b.s->w_scale[stage]), scale + k_line);
        }
        if (!MAPPED) tensor_load(in, &w.in_map, full, (int)k_line * K_LINE_BYTES, rows.first, 0);
    }
    if (MAPPED) gather_k_line<N>(w.a.q, g, in, k_line);
#pragma unroll
    for (int i = 0; i < (N + WARP - 1) / WARP; i++) {
        const int at = lane + i * WARP;
        if (G == FEW_INT8_ROW || !g.scale[i]) continue;
        if constexpr (MAPPED && G > 0) {
            load_pairs<G>(g, i, smem_address(&pairs_of(w, b, stage)[at]), k_line);
        } else {
            cp_async_4(smem_address(&b.s->in_scale[stage][at]), g.scale[i] + k_line);
        }
    }
    mbarrier_arrive_cp_async(full);
}

/* The weights of a block's first run, as many K lines as the ring holds: before its rows are known,
 * and where they do not depend on the kernel in front, before that has ended. Returns their number.
 */
template <int N, bool MAPPED, int G>
static __device__ __forceinline__ uint32_t load_early(const struct few_work &w,
                                                      const struct few_block<N, G> &b,
                                                      const struct few_run &r, int expert)
{
    const uint32_t n_line = r.k_end - r.k_begin, n = min(n_line * (r.col_end - r.col), w.n_stage);
    for (uint32_t i = 0; i < n && threadIdx.x % WARP == 0; i++) {
        load_weights<N, MAPPED, G>(w, b, i, r.k_begin + i % n_line, r.col + i / n_line, expert);
    }
    return n;
}

/* Row tiles, and an expert's number, as the kernel before the one in front left them. Past L1: this
 * one has not waited for either. */
template <bool MAPPED>
static __device__ __forceinline__ uint32_t row_tiles_early(const struct few_work &w)
{
    if (!MAPPED) return w.n_row_tile;
    return w.a.known_task ? (uint32_t)w.a.known_task
                          : (uint32_t) * (const volatile int32_t *)w.a.n_task;
}

static __device__ __forceinline__ int expert_early(const struct few_work &w, int row_tile)
{
    if (row_tile + 1 == w.a.known_task) return w.a.known_expert;
    return *(const volatile int32_t *)&w.a.tasks[row_tile].expert;
}

/* Whether a run's expert is known before this kernel has waited for the one in front. */
template <bool MAPPED>
static __device__ __forceinline__ bool is_early(const struct few_work &w, int row_tile)
{
    return !MAPPED || w.a.tasks_early || row_tile + 1 == w.a.known_task;
}

template <int N, bool MAPPED, int G>
static __device__ __forceinline__ void produce(const struct few_work &w,
                                               const struct few_block<N, G> &b)
{
    constexpr bool CUT = MAPPED && may_cut<G>();
    const bool leads = threadIdx.x % WARP == 0;
    const bool counted = !MAPPED || w.a.tasks_early || w.a.known_task;
    struct few_walk walk = {};
    struct few_run r = {};
    uint32_t n_early = 0;
    bool goes = false, begun = false;
    if (counted) {
        walk = walk_of<MAPPED, CUT>(w, row_tiles_early<MAPPED>(w));
        goes = walk_on<MAPPED, CUT>(w, walk, b.cluster_rank, r);
        begun = goes && is_early<MAPPED>(w, r.row_tile);
        if (begun)
            n_early = load_early<N, MAPPED, G>(w, b, r, MAPPED ? expert_early(w, r.row_tile) : 0);
    }
    dependency_wait();
    DCHECK(!MAPPED || !w.a.known_task || *w.a.n_task == w.a.known_task);
    if (!counted) {
        walk = walk_of<MAPPED, CUT>(w, (uint32_t)*w.a.n_task);
        goes = walk_on<MAPPED, CUT>(w, walk, b.cluster_rank, r);
    }
    if (goes && !begun) n_early = load_early<N, MAPPED, G>(w, b, r, w.a.tasks[r.row_tile].expert);
    struct few_ring at = {0, 0};
    for (; goes; goes = walk_on<MAPPED, CUT>(w, walk, b.cluster_rank, r)) {
        const struct product_rows rows = product_rows_of(w.a, r.row_tile, N);
        const int expert = MAPPED ? w.a.tasks[r.row_tile].expert : 0;
        struct few_gather<N> g;
        gather_of<N, MAPPED, G>(g, w, rows);
        for (uint32_t col = r.col; col < r.col_end; col++) {
            for (uint32_t k_line = r.k_begin; k_line < r.k_end; k_line++, advance(at, w.n_stage)) {
                wait_phase(&b.s->empty[at.stage], at.parity ^ 1);
                if (n_early) {
                    n_early--;
                } else if (leads) {
                    load_weights<N, MAPPED, G>(w, b, at.stage, k_line, col, expert);
                }
                load_inputs<N, MAPPED, G>(w, b, at.stage, g, k_line, rows, col);
            }
        }
    }
}

#endif
