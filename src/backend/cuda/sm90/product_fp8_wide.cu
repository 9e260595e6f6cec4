/* product_fp8_wide.cu - FP8 matrix product of experts with many rows on sm_90a
 *
 * As product_fp8.cu, for tasks of up to 256 rows whose inputs lie in the order of the list: a tile
 * is 256 rows x 128 outputs, in blocks of 64 rows, of which a task has as many as it needs. The two
 * warpgroups that multiply take blocks in turn, up to two each: of a K line first the one, then the
 * other is summed in the tensor cores and added, times its scales, to sums of its own. So the tile
 * of weights crosses shared memory for twice as many rows, and a task may have 192 rows as well.
 * There is no room for a total beside the sums of two blocks: K is one part (fp8_k_part_count).
 *
 * A finished block goes to memory behind the first products of the next tile's same block. */
#include "backend/cuda/sm90/product_fp8_wide.cuh"

#include "backend/cuda/k_parts.h"
#include "backend/cuda/sm90/feed.cuh"
#include "backend/cuda/sm90/product_fp8_store.cuh"
#include "backend/cuda/sm90/product_fp8_work.cuh"
#include "backend/cuda/sm90/stage.cuh"

enum {
    WIDE_ROWS = PRODUCT_WIDE_TILE,
    OWN_BLOCKS = 2, /* of a warpgroup */
    BLOCK_BYTES = GROUP_ROWS * BK,
    OWN_ROWS = 2 * GROUP_ROWS, /* rows from a warpgroup's block to its next */
    HELD_BYTES = WARP_ROWS * PAIR_COLS * (int)sizeof(float),
    ROUNDED_BYTES = WARP_ROWS * BN * (int)sizeof(bf16),
};
static_assert((int)WIDE_ROWS == 2 * OWN_BLOCKS * (int)GROUP_ROWS, "blocks of two warpgroups");

/* Shared memory of a block: what a warp needs to write a block's rows, and as many stages as that
 * leaves room for. */
template <enum output OUTPUT> struct alignas(ALIGN_BYTES) wide_shared {
    static constexpr bool CODES = OUTPUT == OUTPUT_SWIGLU;
    static constexpr int N_STAGE = CODES ? 3 : 4;
    static constexpr int OUT_BYTES = CODES ? CODES_BYTES + OWN_BLOCKS * HELD_BYTES : ROUNDED_BYTES;
    uint8_t in[N_STAGE][WIDE_ROWS * BK];
    uint8_t w[N_STAGE][BN * BK];
    uint8_t out[CONSUMER_WARPS][OUT_BYTES];
    uint64_t full[N_STAGE];
    uint64_t empty[N_STAGE];
    struct feed feed;
    static_assert(OUT_BYTES % PIECE_BYTES == 0, "pieces of rows");
};
static_assert(sizeof(struct wide_shared<OUTPUT_SWIGLU>) <= SHARED_MAX, "shared memory of a block");
static_assert(sizeof(struct wide_shared<OUTPUT_BF16>) <= SHARED_MAX, "shared memory of a block");

static __device__ __forceinline__ int blocks_of(const struct task &t)
{
    DCHECK(t.n > 0 && t.n <= WIDE_ROWS);
    return (t.n + GROUP_ROWS - 1) / GROUP_ROWS;
}

/* ---- the producer ---- */

/* The copies of one stage. Rows past the task that come along are no one's. */
template <enum output OUTPUT>
static __device__ __forceinline__ void
load_stage(const struct work &w, struct wide_shared<OUTPUT> *s, uint32_t stage, uint32_t k_line,
           const struct task &t, uint32_t col)
{
    const uint32_t full = smem_address(&s->full[stage]), in = smem_address(s->in[stage]);
    const uint32_t weights = smem_address(s->w[stage]);
    const int n_block = blocks_of(t);
    mbarrier_arrive_expect(full, (uint32_t)(BN * BK + n_block * BLOCK_BYTES));
    const char *from = (const char *)w.a.w + (size_t)t.expert * w.a.w_stride;
    for (uint32_t i = 0; i < BN / TILE_ROWS; i++) {
        uint32_t tile = col * (BN / TILE_ROWS) + i;
        if (OUTPUT == OUTPUT_SWIGLU) tile = col + i * (w.a.n / 2 / PAIR_COLS);
        weight_load(weights + i * TILE_BYTES, from, full, w.n_k_line, k_line, tile);
    }
    for (int b = 0; b < n_block; b++) {
        tensor_load(in + (uint32_t)(b * BLOCK_BYTES), &w.in_map, full, (int)k_line * BK,
                    t.first + b * GROUP_ROWS, 0);
    }
}

template <enum output OUTPUT>
static __device__ __forceinline__ void produce(const struct work &w, struct wide_shared<OUTPUT> *s)
{
    if (threadIdx.x != 0) return;
    const uint32_t n_run = row_tile_count<FORM_LISTED>(w) * w.n_run_col;
    struct ring at = {0, 0};
    struct feed_source source = feed_begin();
    uint32_t run = feed_put_next(&s->feed, source, w.a.feed, n_run);
    while (run < n_run) {
        const uint32_t next = feed_put_next(&s->feed, source, w.a.feed, n_run);
        const struct run r = task_run_at(w, run);
        const struct task t = task_at<FORM_LISTED>(w, r.row_tile);
        for (uint32_t col = r.col; col < r.col_end; col++) {
            for (uint32_t k_line = 0; k_line < w.n_k_line; k_line++) {
                wait_phase(&s->empty[at.stage], at.parity ^ 1);
                load_stage<OUTPUT>(w, s, at.stage, k_line, t, col);
                advance_of<s->N_STAGE>(at);
            }
        }
        run = next;
    }
    feed_end(w.a.feed);
}

/* ---- the consumers ---- */

/* Scales of K line k_line + lane % SCALE_LINES: of the weights, and of four rows, two of each of
 * the thread's blocks. */
struct wide_scales {
    float row[OWN_BLOCKS][2];
    float w, up;
};

/* What a consumer's thread has on its way through the tiles. */
struct wide_walk {
    struct ring at;
    uint32_t lane;
    int row;             /* the thread's first in a tile */
    uint64_t in, weight; /* operands of stage 0 */
    struct task t, t_next;
    uint32_t next_col;
    struct wide_scales ahead; /* of the K lines behind `scale` */
    struct line_scales scale[OWN_BLOCKS];
    struct walk block[OWN_BLOCKS]; /* finished ones */
};

template <enum output OUTPUT>
static __device__ __forceinline__ struct wide_scales
load_scales(const struct work &w, const struct wide_walk &x, const struct task &t, uint32_t col,
            uint32_t k_line)
{
    const uint32_t i = min(k_line + x.lane % SCALE_LINES, w.n_k_line - 1);
    const uint32_t block = OUTPUT == OUTPUT_SWIGLU ? col / 2 : col;
    const float *of_w = w.a.w_scale + (uint32_t)t.expert * (uint32_t)w.a.w_scale_step +
                        block * w.a.scale_stride + i;
    struct wide_scales s;
#pragma unroll
    for (int j = 0; j < 2 * OWN_BLOCKS; j++) {
        const int row = t.first + min(x.row + j / 2 * OWN_ROWS + j % 2 * 8, t.n - 1);
        s.row[j / 2][j % 2] = w.a.q_scale[(uint32_t)row * w.n_k_line + i];
    }
    s.w = of_w[0];
    s.up = OUTPUT == OUTPUT_SWIGLU ? of_w[w.n_col_tile / 2 * w.a.scale_stride] : 0.0f;
    return s;
}

/* Every SCALE_LINES K lines the scales requested are taken, and those behind them requested;
 * k_line: of column tile `col`, the first one taken. */
template <enum output OUTPUT>
static __device__ __forceinline__ void take_scales(const struct work &w, struct wide_walk &x,
                                                   uint32_t col, uint32_t col_end, uint32_t k_line)
{
#pragma unroll
    for (int b = 0; b < OWN_BLOCKS; b++) {
        const float first = x.ahead.row[b][0], second = x.ahead.row[b][1];
        x.scale[b] = {x.ahead.w * first, x.ahead.w * second, 0.0f, 0.0f};
        if (OUTPUT == OUTPUT_SWIGLU) {
            x.scale[b].up_first = x.ahead.up * first;
            x.scale[b].up_second = x.ahead.up * second;
        }
    }
    const bool in_tile = k_line + SCALE_LINES < w.n_k_line, in_run = col + 1 < col_end;
    const struct task t = in_tile || in_run ? x.t : x.t_next;
    x.ahead = load_scales<OUTPUT>(w, x, t,
                                  in_tile  ? col
                                  : in_run ? col + 1
                                           : x.next_col,
                                  in_tile ? k_line + SCALE_LINES : 0);
}

/* Those of K line k_line. */
template <enum output OUTPUT, int BLOCK>
static __device__ __forceinline__ struct line_scales scales_at_line(const struct wide_walk &x,
                                                                    uint32_t k_line)
{
    const int from = (int)(x.lane - x.lane % SCALE_LINES + k_line % SCALE_LINES);
    const bool up = OUTPUT == OUTPUT_SWIGLU;
    const struct line_scales &s = x.scale[BLOCK];
    return {shfl(s.first, from), shfl(s.second, from), up ? shfl(s.up_first, from) : 0.0f,
            up ? shfl(s.up_second, from) : 0.0f};
}

/* Where a warpgroup is: K line k_line of column tile `col`, with n_block blocks of rows. */
struct place {
    uint32_t col, col_end, k_line;
    int n_block;
};

/* One K line of one block. FIRST: sum has what the tile before has left, if anything; it goes to
 * memory while the products are under way. `now` has the scales, then those of what is next. */
template <enum output OUTPUT, int BLOCK, bool FIRST, enum weights WEIGHTS>
static __device__ __forceinline__ void
add_block(const struct work &w, struct wide_shared<OUTPUT> *s, struct wide_walk &x,
          float (&sum)[64], struct line_scales &now, const struct place &p)
{
    const uint64_t in =
        x.in + x.at.stage * (sizeof s->in[0] >> 4) + (uint64_t)(BLOCK * 2 * BLOCK_BYTES >> 4);
    const uint64_t weight = x.weight + x.at.stage * (sizeof s->w[0] >> 4);
    const bool last = BLOCK + 1 == OWN_BLOCKS || p.n_block == 1;
    float c[64];
    if (BLOCK == 0) wait_phase(&s->full[x.at.stage], x.at.parity);
    wgmma_fence();
    wgmma_e4m3_start(c, in, weight);
#pragma unroll
    for (int i = 1; i < BK / 32; i++) {
        wgmma_e4m3_add(c, in + (uint64_t)(2 * i), weight + (uint64_t)(2 * i));
    }
    wgmma_commit();
    if (FIRST && x.block[BLOCK].summed.n) {
        store_tile<FORM_LISTED, OUTPUT, WEIGHTS>(w, x.block[BLOCK], sum);
    }
    struct line_scales next = now;
    if (!last) {
        next = scales_at_line<OUTPUT, OWN_BLOCKS - 1>(x, p.k_line);
    } else if (p.k_line + 1 < w.n_k_line) {
        if ((p.k_line + 1) % SCALE_LINES == 0) {
            take_scales<OUTPUT>(w, x, p.col, p.col_end, p.k_line + 1);
        }
        next = scales_at_line<OUTPUT, 0>(x, p.k_line + 1);
    }
    wgmma_wait(c);
    if (last) {
        __syncwarp();
        if (x.lane == 0) mbarrier_arrive(smem_address(&s->empty[x.at.stage]));
        advance_of<s->N_STAGE>(x.at);
    }
    add_scaled<OUTPUT, FIRST>(sum, c, now);
    now = next;
}

/* The sums of one tile. */
template <enum output OUTPUT, enum weights WEIGHTS>
static __device__ __forceinline__ void sum_tile(const struct work &w, struct wide_shared<OUTPUT> *s,
                                                struct wide_walk &x, float (&low)[64],
                                                float (&high)[64], struct place p)
{
    p.k_line = 0;
    take_scales<OUTPUT>(w, x, p.col, p.col_end, 0);
    if (p.n_block == 0) { /* keeps the ring going */
        for (; p.k_line < w.n_k_line; p.k_line++) {
            if (p.k_line > 0 && p.k_line % SCALE_LINES == 0) {
                take_scales<OUTPUT>(w, x, p.col, p.col_end, p.k_line);
            }
            wait_phase(&s->full[x.at.stage], x.at.parity);
            __syncwarp();
            if (x.lane == 0) mbarrier_arrive(smem_address(&s->empty[x.at.stage]));
            advance_of<s->N_STAGE>(x.at);
        }
        return;
    }
    struct line_scales now = scales_at_line<OUTPUT, 0>(x, 0);
    add_block<OUTPUT, 0, true, WEIGHTS>(w, s, x, low, now, p);
    if (p.n_block > 1) add_block<OUTPUT, 1, true, WEIGHTS>(w, s, x, high, now, p);
    for (p.k_line = 1; p.k_line < w.n_k_line; p.k_line++) {
        add_block<OUTPUT, 0, false, WEIGHTS>(w, s, x, low, now, p);
        if (p.n_block > 1) add_block<OUTPUT, 1, false, WEIGHTS>(w, s, x, high, now, p);
    }
}

/* Where this lane's row of block `block` is written: of the warp's 16, that of lane % 16. */
static __device__ __forceinline__ int out_row_of(const struct work &w, const struct wide_walk &x,
                                                 const struct task &t, int block)
{
    const int row = x.row - (int)x.lane / 4 + (int)x.lane % WARP_ROWS + block * OWN_ROWS;
    if (row >= t.n) return -1;
    return w.a.out_listed ? t.first + row : w.a.rows[t.first + row];
}

template <enum output OUTPUT>
static __device__ __forceinline__ void begin_walk(struct wide_shared<OUTPUT> *s,
                                                  struct wide_walk &x, int group)
{
    const int warp = (int)threadIdx.x / WARP % 4;
    x.lane = threadIdx.x % WARP;
    x.row = group * GROUP_ROWS + warp * WARP_ROWS + (int)x.lane / 4;
    x.in = wgmma_operand(smem_address(s->in[0]) + (uint32_t)(group * BLOCK_BYTES));
    x.weight = wgmma_operand(smem_address(s->w[0]));
#pragma unroll
    for (int b = 0; b < OWN_BLOCKS; b++) {
        x.block[b].lane = x.lane;
        x.block[b].boxes = s->out[group * 4 + warp];
        x.block[b].held = x.block[b].boxes + CODES_BYTES + b * HELD_BYTES;
    }
}

template <enum output OUTPUT, enum weights WEIGHTS>
static __device__ __forceinline__ void consume(const struct work &w, struct wide_shared<OUTPUT> *s,
                                               int group)
{
    const uint32_t n_run = row_tile_count<FORM_LISTED>(w) * w.n_run_col;
    struct wide_walk x = {};
    begin_walk<OUTPUT>(s, x, group);
    struct feed_ring get = {0, 0};
    uint32_t run = feed_get(&s->feed, get, x.lane);
    if (run >= n_run) return;
    bool more = true;
    float low[64] = {}, high[64] = {};
    struct run r = task_run_at(w, run);
    x.t = task_at<FORM_LISTED>(w, r.row_tile);
    x.ahead = load_scales<OUTPUT>(w, x, x.t, r.col, 0);
    for (;;) {
        const int n_block = more ? (blocks_of(x.t) + 1 - group) / 2 : 0;
        if (n_block < 2 && x.block[1].summed.n) {
            store_tile<FORM_LISTED, OUTPUT, WEIGHTS>(w, x.block[1], high);
        }
        if (n_block < 1 && x.block[0].summed.n) {
            store_tile<FORM_LISTED, OUTPUT, WEIGHTS>(w, x.block[0], low);
        }
        if (!more) break;
        const uint32_t next = feed_get(&s->feed, get, x.lane);
        more = next < n_run;
        const struct run r_next = task_run_at(w, more ? next : run);
        run = next;
        x.t_next = task_at<FORM_LISTED>(w, r_next.row_tile);
        x.next_col = r_next.col;
        const int out[OWN_BLOCKS] = {out_row_of(w, x, x.t, 0), out_row_of(w, x, x.t, 1)};
        for (uint32_t col = r.col; col < r.col_end; col++) {
            sum_tile<OUTPUT, WEIGHTS>(w, s, x, low, high, {col, r.col_end, 0, n_block});
            const uint32_t n = min((uint32_t)BN, w.a.n - col * BN);
            const uint32_t of =
                has_row_scales(WEIGHTS) ? (uint32_t)x.t.expert * (uint32_t)w.a.row_scale_step : 0;
            if (n_block > 0) x.block[0].summed = {out[0], col, n, of};
            if (n_block > 1) x.block[1].summed = {out[1], col, n, of};
        }
        r = r_next;
        x.t = x.t_next;
    }
}

template <enum output OUTPUT, enum weights WEIGHTS>
__global__ void __launch_bounds__(THREADS, 1)
    product_fp8_wide_kernel(const __grid_constant__ struct work w)
{
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
    SHARED_DYNAMIC(unsigned char, shared);
    struct wide_shared<OUTPUT> *s = (struct wide_shared<OUTPUT> *)shared;
    const int group = shfl((int)threadIdx.x / GROUP_THREADS, 0);
    if (threadIdx.x == 0) {
        tensor_map_prefetch(&w.in_map);
        for (int i = 0; i < s->N_STAGE; i++) {
            mbarrier_init(smem_address(&s->full[i]), 1);
            mbarrier_init(smem_address(&s->empty[i]), CONSUMER_WARPS);
        }
        feed_init(&s->feed, CONSUMER_WARPS);
        mbarrier_init_fence();
        async_proxy_fence();
    }
    __syncthreads();
    dependency_wait();
    dependency_release(); /* launch.cuh */
    if (group == 0) {
        registers_lower<PRODUCER_REGISTERS>();
        produce<OUTPUT>(w, s);
    } else {
        registers_raise<CONSUMER_REGISTERS>();
        consume<OUTPUT, WEIGHTS>(w, s, group - 1);
    }
#endif
}

/* ---- the host ---- */

template <enum output OUTPUT, enum weights WEIGHTS>
static cudaError_t launch(const struct work &w, uint32_t n_block, cudaStream_t stream)
{
    return gpu_launch({dim3(n_block), 1, THREADS, sizeof(struct wide_shared<OUTPUT>), true}, stream,
                      product_fp8_wide_kernel<OUTPUT, WEIGHTS>, w);
}

cudaError_t product_fp8_wide(const struct product_args &a, uint32_t n_task,
                             const struct sm90_limits &limits, cudaStream_t stream)
{
    const bool codes = a.out_q != NULL;
    ASSERT(a.k % BK == 0 && a.n % 16 == 0 && a.tiled && a.tasks && a.in_listed && limits.n_sm > 0);
    ASSERT(a.feed && (uintptr_t)a.feed % 4 == 0);
    ASSERT((uintptr_t)a.w % 16 == 0 && (uintptr_t)a.q % 16 == 0);
    ASSERT(codes ? a.n % (2 * FP8_GROUP) == 0 && a.out_scale
                 : a.out_h && (uintptr_t)a.out_h % 16 == 0 && a.out_stride % 8 == 0);
    struct work w = {};
    w.a = a;
    w.n_k_line = a.k / BK;
    w.n_k_part = fp8_k_part_count(a.n, w.n_k_line, true);
    ASSERT(w.n_k_part == 1);
    w.n_col_tile = ceil_div(a.n, BN);
    w.run_cols = ceil_div(RUN_K_LINES_MIN, w.n_k_line);
    if (codes) w.run_cols = ceil_div(w.run_cols, 2) * 2;
    w.n_run_col = ceil_div(w.n_col_tile, w.run_cols);
    const uint32_t n_run = n_task * w.n_run_col;
    if (!n_run) return cudaSuccess;
    cudaError_t e =
        make_map(&w.in_map, a.q, a.k, a.n_token, 1, (size_t)a.k * a.n_token, GROUP_ROWS);
    if (e != cudaSuccess) return e;
    const uint32_t n_block = min(n_run, limits.n_sm);
    if (a.row_scale) {
        return codes ? launch<OUTPUT_SWIGLU, WEIGHTS_FP8_ROW>(w, n_block, stream)
                     : launch<OUTPUT_BF16, WEIGHTS_FP8_ROW>(w, n_block, stream);
    }
    return codes ? launch<OUTPUT_SWIGLU, WEIGHTS_FP8>(w, n_block, stream)
                 : launch<OUTPUT_BF16, WEIGHTS_FP8>(w, n_block, stream);
}

template <enum output OUTPUT, enum weights WEIGHTS> static cudaError_t init_kernel(void)
{
    return cudaFuncSetAttribute(product_fp8_wide_kernel<OUTPUT, WEIGHTS>,
                                cudaFuncAttributeMaxDynamicSharedMemorySize,
                                sizeof(struct wide_shared<OUTPUT>));
}

cudaError_t product_fp8_wide_init(void)
{
    cudaError_t e = init_kernel<OUTPUT_SWIGLU, WEIGHTS_FP8>();
    if (e == cudaSuccess) e = init_kernel<OUTPUT_SWIGLU, WEIGHTS_FP8_ROW>();
    if (e == cudaSuccess) e = init_kernel<OUTPUT_BF16, WEIGHTS_FP8>();
    return e == cudaSuccess ? init_kernel<OUTPUT_BF16, WEIGHTS_FP8_ROW>() : e;
}
