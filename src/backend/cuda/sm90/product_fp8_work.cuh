/* product_fp8_work.cuh - what the warps of product_fp8.cu share: constants, shared memory, tiles
 * in their order, and what a multiplying thread carries along */
#ifndef FATHOM_BACKEND_CUDA_SM90_PRODUCT_FP8_WORK_CUH
#define FATHOM_BACKEND_CUDA_SM90_PRODUCT_FP8_WORK_CUH

#include "backend/cuda/k_parts.h"
#include "backend/cuda/sm90/feed.cuh"
#include "backend/cuda/sm90/stage.cuh"

enum {
    BM = PRODUCT_LARGE_TILE,
    BN = SCALE_BLOCK,
    BK = K_LINE_BYTES,
    GROUP_ROWS = 64, /* of a warpgroup */
    WARP_ROWS = 16,
    STAGES = 5,
    GROUP_THREADS = 128,
    CONSUMER_WARPS = 8,
    THREADS = 3 * GROUP_THREADS,
    PRODUCER_REGISTERS = 40,
    CONSUMER_REGISTERS = 232,
    ONE_PART_REGISTERS = 184,
    GATHER_ROWS = GROUP_THREADS / K_LINE_PIECES,
    RASTER_TILES = 16,    /* row tiles that are walked together, for reuse in L2 */
    SCALE_LINES = 4,      /* K lines whose scales are requested together */
    RUN_K_LINES_MIN = 16, /* K lines that one lookup of rows should last for */
    PAIR_COLS = BN / 2,   /* of gate, and of up, in a tile that makes both */
};
static_assert(2 * (int)PAIR_COLS == (int)FP8_GROUP, "two tiles of SwiGLU make a group");

enum { ALIGN_BYTES = 1024, BOX_BYTES = 128, BOXES = BN * sizeof(float) / BOX_BYTES };

/* Shared memory of a block. A warp's rows of `out` are BOXES tiles of 128 bytes a row, permuted as
 * operands are: a tensor map takes them away, and no access of a warp meets a bank twice. */
struct alignas(ALIGN_BYTES) stages {
    static constexpr int N_STAGE = STAGES;
    uint8_t in[STAGES][BM * BK];
    uint8_t w[STAGES][BN * BK];
    uint8_t out[CONSUMER_WARPS][BOXES][WARP_ROWS * BOX_BYTES];
    uint8_t halves[STAGES][BN / TILE_ROWS][TURNED_SCALE_BYTES]; /* WEIGHTS_U4 */
    uint64_t full[STAGES];
    uint64_t empty[STAGES];
};

static_assert(sizeof(struct stages) <= SHARED_MAX, "shared memory of a block");
static_assert(BM == 2 * GROUP_ROWS && CONSUMER_WARPS * WARP_ROWS == BM, "a warp has 16 rows");
static_assert((int)BN <= (int)TENSOR_BOX_MAX && GROUP_ROWS * BK % ALIGN_BYTES == 0,
              "boxes of a tensor map");
static_assert(WARP_ROWS * BOX_BYTES % ALIGN_BYTES == 0, "boxes of outputs");

/* OUTPUT_SWIGLU: a warp's rows of codes, apart so that no access meets a bank twice, and values
 * that wait for the other half of their groups */
enum { CODES_PITCH = FP8_GROUP + PIECE_BYTES, CODES_BYTES = WARP_ROWS * CODES_PITCH };
static_assert(CODES_BYTES % PIECE_BYTES == 0 &&
                  CODES_BYTES + WARP_ROWS * PAIR_COLS * sizeof(float) <=
                      BOXES * WARP_ROWS * BOX_BYTES,
              "both fit");
static_assert(PRODUCER_REGISTERS % 8 == 0 && CONSUMER_REGISTERS % 8 == 0 &&
                  GROUP_THREADS * (PRODUCER_REGISTERS + 2 * CONSUMER_REGISTERS) <= 64 << 10,
              "registers of a multiprocessor");
static_assert(BM * BK % ALIGN_BYTES == 0 && BN * BK % ALIGN_BYTES == 0, "atoms of operands");

/* Where the rows of a tile are read */
enum form {
    FORM_PLAIN,  /* one after the other */
    FORM_LISTED, /* a task's one after the other, as the list of rows has them */
    FORM_GATHER, /* anywhere: the list says where */
};

/* Codes, and scales of 128 x 128, of rows, or of an output and K line (product_u4_turned.cu) */
enum weights { WEIGHTS_FP8, WEIGHTS_FP8_ROW, WEIGHTS_INT8, WEIGHTS_INT8_ROW, WEIGHTS_U4 };

/* U4's products, which are plain, load by one thread, and multiply with more scales. What one takes
 * the others have not: a launch allots as many registers to all threads. */
static __host__ __device__ constexpr int producer_registers(enum weights weights)
{
    return weights == WEIGHTS_U4 ? PRODUCER_REGISTERS - 16 : PRODUCER_REGISTERS;
}

/* With registers to spare, operands' addresses lie in ordinary ones, which are copied between two K
 * lines: where one sum is made of all of K, which takes fewer, there are none to spare. */
static __host__ __device__ constexpr int consumer_registers(bool one_k_part, enum weights weights)
{
    if (one_k_part || weights == WEIGHTS_INT8_ROW) return ONE_PART_REGISTERS;
    return weights == WEIGHTS_U4 ? CONSUMER_REGISTERS + 8 : CONSUMER_REGISTERS;
}

static __host__ __device__ constexpr bool has_row_scales(enum weights weights)
{
    return weights == WEIGHTS_FP8_ROW || weights == WEIGHTS_INT8_ROW;
}

/* What is written */
enum output {
    OUTPUT_FLOAT,
    OUTPUT_BF16,
    OUTPUT_SWIGLU, /* codes */
    OUTPUT_QUERY,  /* BF16, of heads whose rotary parts are turned */
};

/* Where a block is among the runs, without divisions from one to the next: run `rest` of a band of
 * row tiles, or of a task. */
struct cursor {
    uint32_t band;
    uint32_t rest;
};

struct work {
    CUtensorMap in_map;  /* but for FORM_GATHER */
    CUtensorMap out_map; /* where rows are stored by boxes */
    struct product_args a;
    const uint8_t *in;  /* inputs: codes, or of E2M1 weights bf16 */
    uint32_t row_bytes; /* of them */
    uint32_t n_k_line;
    uint32_t n_k_part;
    uint32_t n_col_tile; /* OUTPUT_SWIGLU: even, as are the runs */
    uint32_t n_row_tile; /* plain */
    uint32_t run_cols;   /* column tiles of a run */
    uint32_t n_run_col;  /* runs of a row tile */
    uint32_t n_run_band; /* of a band, or a task */
    struct cursor step;  /* as many runs as there are blocks */
};

struct ring {
    uint32_t stage;
    uint32_t parity;
};

template <int N_STAGE> static __device__ __forceinline__ void advance_of(struct ring &r)
{
    if (++r.stage == N_STAGE) {
        r.stage = 0;
        r.parity ^= 1;
    }
}

/* A run: column tiles of one row tile, one after the other. A block takes every gridDim.x-th.
 * Mapped: columns first, since only neighbouring tasks have an expert in common. Plain: bands of
 * RASTER_TILES row tiles, rows first inside a band. */
struct run {
    int row_tile;
    uint32_t col;
    uint32_t col_end;
};

template <enum form FORM>
static __device__ __forceinline__ uint32_t row_tile_count(const struct work &w)
{
    return FORM == FORM_PLAIN ? w.n_row_tile : (uint32_t)*w.a.n_task;
}

static __device__ __forceinline__ struct cursor block_cursor(const struct work &w)
{
    return {blockIdx.x / w.n_run_band, blockIdx.x % w.n_run_band};
}

/* Moves on by `step`; false behind the last run, where the cursor stays. */
template <enum form FORM>
static __device__ __forceinline__ bool move_on(const struct work &w, struct cursor &at,
                                               const struct cursor &step, uint32_t n_row_tile)
{
    const uint32_t height = FORM == FORM_PLAIN ? (uint32_t)RASTER_TILES : 1;
    struct cursor to = {at.band + step.band, at.rest + step.rest};
    if (to.rest >= w.n_run_band) {
        to.rest -= w.n_run_band;
        to.band++;
    }
    const uint32_t first = to.band * height;
    if (first >= n_row_tile) return false;
    if (to.rest >= min(height, n_row_tile - first) * w.n_run_col) return false;
    at = to;
    return true;
}

template <enum form FORM>
static __device__ __forceinline__ struct run run_at(const struct work &w, const struct cursor &at,
                                                    uint32_t n_row_tile)
{
    uint32_t unit = at.band, col = at.rest;
    if (FORM == FORM_PLAIN) {
        const uint32_t band = RASTER_TILES, first = at.band * band;
        const uint32_t height = min(band, n_row_tile - first);
        col = height == band ? at.rest / band : at.rest / height;
        unit = first + at.rest - col * height;
    }
    struct run r;
    DCHECK(unit < n_row_tile && col < w.n_run_col);
    r.row_tile = (int)unit;
    r.col = col * w.run_cols;
    r.col_end = min(r.col + w.run_cols, w.n_col_tile);
    return r;
}

/* Run i of all tasks' */
static __device__ __forceinline__ struct run task_run_at(const struct work &w, uint32_t i)
{
    struct run r;
    r.row_tile = (int)(i / w.n_run_col);
    r.col = i % w.n_run_col * w.run_cols;
    r.col_end = min(r.col + w.run_cols, w.n_col_tile);
    return r;
}

/* A warp's way through a block's runs: plain ones are every gridDim.x-th, tasks' come by the
 * feed. */
struct run_walk {
    uint32_t n_row_tile;
    struct cursor at;
    struct feed_ring fed;
    bool begun;
};

template <enum form FORM>
static __device__ __forceinline__ struct run_walk begin_runs(const struct work &w)
{
    struct run_walk walk = {};
    walk.n_row_tile = row_tile_count<FORM>(w);
    return walk;
}

/* r = the next run; false: there is none */
template <enum form FORM>
static __device__ __forceinline__ bool next_run(const struct work &w, struct feed *feed,
                                                struct run_walk &walk, struct run &r)
{
    if (FORM == FORM_PLAIN) {
        const struct cursor step = walk.begun ? w.step : block_cursor(w);
        walk.begun = true;
        if (!move_on<FORM>(w, walk.at, step, walk.n_row_tile)) return false;
        r = run_at<FORM>(w, walk.at, walk.n_row_tile);
        return true;
    }
    const uint32_t i = feed_get(feed, walk.fed, threadIdx.x % WARP);
    if (i >= walk.n_row_tile * w.n_run_col) return false;
    r = task_run_at(w, i);
    return true;
}

/* Thread 0 of those that load, before next_run: one run ahead of them. */
template <enum form FORM>
static __device__ __forceinline__ void feed_run(const struct work &w, struct feed *feed,
                                                struct feed_source &source,
                                                const struct run_walk &walk)
{
    if (FORM == FORM_PLAIN || threadIdx.x != 0) return;
    feed_put_next(feed, source, w.a.feed, walk.n_row_tile * w.n_run_col);
}

/* The rows of a row tile: a task's, or of a plain product in the same words. */
template <enum form FORM>
static __device__ __forceinline__ struct task task_at(const struct work &w, int row_tile)
{
    if (FORM != FORM_PLAIN) return w.a.tasks[row_tile];
    struct task t = {0, row_tile * BM, min((int)BM, (int)w.a.n_token - row_tile * BM)};
    return t;
}

/* ---- a thread that gathers ---- */

/* What a thread copies: piece `thread % K_LINE_PIECES` of row thread / K_LINE_PIECES and of every
 * ROWS rows on, by as many threads as have a piece of ROWS rows. */
template <int ROWS> struct gather {
    uint32_t from[BM / ROWS]; /* in pieces from the first input */
    int n;                    /* how many of them */
};

template <int ROWS>
static __device__ __forceinline__ struct gather<ROWS> gather_of(const struct work &w,
                                                                const struct task &t) {
    const int thread = (int)threadIdx.x, first = thread / K_LINE_PIECES;
    const int divisor = (int)w.a.in_divisor;
    struct gather<ROWS> g;
    DCHECK(t.n > 0 && t.n <= BM && first < ROWS);
    g.n = t.n > first ? (t.n - first - 1) / ROWS + 1 : 0;
#pragma unroll
    for (int i = 0; i < BM / ROWS; i++) {
        g.from[i] = (uint32_t)w.a.rows[t.first + min(first + i * ROWS, t.n - 1)];
    }
#pragma unroll
    for (int i = 0; i < BM / ROWS; i++) {
        uint32_t row = g.from[i] / (uint32_t)divisor;
        g.from[i] = row * (w.row_bytes / PIECE_BYTES) + (uint32_t)(thread % K_LINE_PIECES);
    }
    return g;
}

/* 128 bytes of each row, the k_line-th ones. */
template <int ROWS>
static __device__ __forceinline__ void
gather_k_line(const struct work &w, const struct gather<ROWS> &g, uint32_t dst, uint32_t k_line)
{
    static_assert(ROWS % 8 == 0 && BM % ROWS == 0,
                  "the permutation is the same for all rows of a thread");
    const int thread = (int)threadIdx.x, first = thread / K_LINE_PIECES;
    dst += (uint32_t)(first * BK + ((thread % K_LINE_PIECES) ^ (first & 7)) * PIECE_BYTES);
#pragma unroll
    for (int i = 0; i < BM / ROWS; i++) {
        if (i >= g.n) break;
        const uint32_t piece = g.from[i] + k_line * K_LINE_PIECES;
        const uint8_t *src = w.in + (size_t)piece * PIECE_BYTES;
        cp_async_16(dst + (uint32_t)(i * ROWS * BK), src, true);
    }
}

/* ---- a multiplying thread ---- */

/* Whose scales a lane loads in a run: those of rows lane / 4 of the warp and the eighth behind it,
 * by their entries in the list if they are gathered, and of the weights, in floats from w_scale. */
struct scales_at {
    int first, second;
    uint32_t w;
};

template <enum form FORM>
static __device__ __forceinline__ struct scales_at find_scales(const struct work &w,
                                                               const struct task &t, int row)
{
    int first = t.first + min(row, t.n - 1), second = t.first + min(row + 8, t.n - 1);
    if (FORM == FORM_GATHER) {
        first = w.a.rows[first];
        second = w.a.rows[second];
    }
    return {first, second, (uint32_t)t.expert * (uint32_t)w.a.w_scale_step};
}

/* The scale of an int8 row of inputs that has one, by its entry in the list if it is gathered. */
template <enum form FORM>
static __device__ __forceinline__ float in_scale(const struct work &w, int entry)
{
    const uint32_t divisor = FORM == FORM_GATHER ? w.a.in_divisor : 1;
    return w.a.q_scale[(size_t)((uint32_t)entry / divisor) * w.n_k_line];
}

/* Lane 4 g + t has the scales of K line t of a group of SCALE_LINES: of two rows, and of the
 * weights, those of up beside gate's. */
struct scales {
    float first, second, w, up;
};

/* The scales of one K line, for the two rows of a thread. */
struct line_scales {
    float first, second, up_first, up_second;
};

/* sum += a K line's sum times its scales; FIRST: sum is what that adds to 0. */
template <enum output OUTPUT, bool FIRST, typename SUM>
static __device__ __forceinline__ void add_scaled(float (&sum)[64], const SUM (&c)[64],
                                                  const struct line_scales &of)
{
#pragma unroll
    for (int j = 0; j < 64; j += 4) {
        const bool up = OUTPUT == OUTPUT_SWIGLU && j >= 32;
        const float first = up ? of.up_first : of.first, second = up ? of.up_second : of.second;
        sum[j] = fmaf(line_value(c[j]), first, FIRST ? 0.0f : sum[j]);
        sum[j + 1] = fmaf(line_value(c[j + 1]), first, FIRST ? 0.0f : sum[j + 1]);
        sum[j + 2] = fmaf(line_value(c[j + 2]), second, FIRST ? 0.0f : sum[j + 2]);
        sum[j + 3] = fmaf(line_value(c[j + 3]), second, FIRST ? 0.0f : sum[j + 3]);
    }
}

/* The scales of a K line's outputs, of a thread's columns: v[i] has those of 8 j + 2 t and the next
 * for four j from 4 i on, as F16. */
struct column_halves {
    uint4 v[4];
};

/* sum += a K line's sum times the scales of row and output, which are powers of two and F16: their
 * product is exact, as that of product_u4.cu is. */
template <bool FIRST>
static __device__ __forceinline__ void add_scaled_halves(float (&sum)[64], const float (&c)[64],
                                                         const struct line_scales &of,
                                                         const struct column_halves &columns)
{
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const uint4 v = columns.v[i];
        const uint32_t words[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
        for (int q = 0; q < 4; q++) {
            const int j = i * 16 + q * 4;
            const float2 scale = f16x2_to_float2(words[q]);
            sum[j] = fmaf(c[j], scale.x * of.first, FIRST ? 0.0f : sum[j]);
            sum[j + 1] = fmaf(c[j + 1], scale.y * of.first, FIRST ? 0.0f : sum[j + 1]);
            sum[j + 2] = fmaf(c[j + 2], scale.x * of.second, FIRST ? 0.0f : sum[j + 2]);
            sum[j + 3] = fmaf(c[j + 3], scale.y * of.second, FIRST ? 0.0f : sum[j + 3]);
        }
    }
}

/* K lines [k_line, k_line_end) of column tile `col` of a run up to col_end. */
struct part {
    uint32_t col, col_end, k_line, k_line_end;
};

/* A warp's part of a tile whose sums are there: lanes r and r + 16 have the output row of row r. */
struct finished {
    int row;             /* -1: none */
    uint32_t col;        /* tile */
    uint32_t n;          /* columns */
    uint32_t row_scale;  /* where scales of its matrix's rows begin */
    float first, second; /* WEIGHTS_INT8_ROW: scales of the inputs of a thread's two rows, */
    float4 columns;      /* and column_scales */
};

/* What a consumer's thread has on its way through the tiles. */
struct walk {
    struct ring at;     /* the K line that is next */
    uint32_t under_way; /* the stage of the one before */
    uint32_t lane;
    uint64_t in, weight;           /* operands of stage 0 */
    uint64_t in_next, weight_next; /* of the next K line */
    bool is_full;                  /* it has been seen there */
    struct scales_at here, next;   /* of this run and the next one */
    uint32_t next_col;
    struct scales ahead;           /* of the K lines behind `scale` */
    float first, second;           /* products of scales of four K lines, one a lane */
    float up_first, up_second;     /* OUTPUT_SWIGLU: of the columns of up */
    uint8_t *boxes;                /* the warp's part of `out` */
    uint8_t *held;                 /* OUTPUT_SWIGLU: where the first tile of a pair waits */
    float amax_first, amax_second; /* OUTPUT_SWIGLU: of the first tile of a pair */
    struct finished
        summed; /* its last part of K, unless it is the first, is in k_part; n 0: none */
};

/* ---- the host ---- */

static inline cudaError_t make_maps(struct work *w)
{
    const struct product_args &a = w->a;
    if (!a.tasks || a.in_listed) {
        const size_t n_byte = (size_t)w->row_bytes * a.n_token;
        cudaError_t e = make_map(&w->in_map, w->in, w->row_bytes, a.n_token, 1, n_byte, GROUP_ROWS);
        if (e != cudaSuccess) return e;
    }
    if (!a.tasks && a.out) {
        const uint64_t pitch = a.out_stride * sizeof(float);
        cudaError_t e = make_strided_map(&w->out_map, a.out, a.n * (uint32_t)sizeof(float), pitch,
                                         a.n_token, 1, pitch * a.n_token, WARP_ROWS);
        if (e != cudaSuccess) return e;
    }
    return cudaSuccess;
}

static inline enum output output_of(const struct product_args &a)
{
    ASSERT(!a.out_q || (a.n % (2 * FP8_GROUP) == 0 && a.out_scale));
    ASSERT(!a.out_h || ((uintptr_t)a.out_h % 16 == 0 && a.out_stride % 8 == 0));
    ASSERT(!a.out_h || a.pack.is_e2m1 ||
           (a.angles ? !a.tasks && a.n % QUERY_DIM == 0 : a.in_listed));
    return a.out_q ? OUTPUT_SWIGLU : a.angles ? OUTPUT_QUERY : a.out_h ? OUTPUT_BF16 : OUTPUT_FLOAT;
}

static inline enum form form_of(const struct product_args &a)
{
    return !a.tasks ? FORM_PLAIN : a.in_listed ? FORM_LISTED : FORM_GATHER;
}

/* make_work - a launch: its tiles in their order, its tensor maps, and its blocks; 0: none
 *
 * n_tile   plain: tiles of rows; mapped: tasks at most */
static inline cudaError_t make_work(struct work *w, uint32_t *n_block, const struct product_args &a,
                                    uint32_t n_tile, uint32_t n_sm)
{
    *w = {};
    w->a = a;
    w->in = a.pack.is_e2m1 ? (const uint8_t *)a.h : a.q;
    w->row_bytes = a.k * (a.pack.is_e2m1 ? (uint32_t)sizeof(bf16) : 1);
    w->n_k_line = a.k / BK;
    w->n_k_part = fp8_k_part_count(a.n, w->n_k_line, a.tasks != NULL);
    w->n_col_tile = ceil_div(a.n, BN);
    w->n_row_tile = n_tile;
    w->run_cols = a.tasks ? ceil_div(RUN_K_LINES_MIN, w->n_k_line) : 1;
    if (output_of(a) == OUTPUT_SWIGLU) w->run_cols = ceil_div(w->run_cols, 2) * 2;
    w->n_run_col = ceil_div(w->n_col_tile, w->run_cols);
    *n_block = min(n_tile * w->n_run_col, n_sm);
    if (!*n_block) return cudaSuccess;
    w->n_run_band = (a.tasks ? 1 : (uint32_t)RASTER_TILES) * w->n_run_col;
    w->step = {*n_block / w->n_run_band, *n_block % w->n_run_band};
    return make_maps(w);
}

#endif
