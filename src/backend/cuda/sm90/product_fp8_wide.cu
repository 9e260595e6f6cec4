/* product_fp8_wide.cu - FP8 matrix product of experts with many rows on sm_90a
 *
 * As product_fp8.cu, for tasks of up to 192 rows whose inputs lie in the order of the list: a tile
 * is 192 rows x 128 outputs. Three warpgroups multiply, 64 rows each, so that two have products for
 * the tensor cores while one adds up; what a warpgroup keeps is then a K line's sum and the tile's,
 * for there are 160 registers a thread: K is one part (fp8_k_part_count). A warpgroup without rows
 * keeps the ring going.
 *
 * A finished tile goes to memory behind the first products of the next. */
#include "backend/cuda/sm90/product_fp8_wide.cuh"

#include "backend/cuda/k_parts.h"
#include "backend/cuda/sm90/feed.cuh"
#include "backend/cuda/sm90/product_fp8_sum.cuh"
#include "backend/cuda/sm90/product_fp8_work.cuh"
#include "backend/cuda/sm90/stage.cuh"

enum {
    WIDE_ROWS = PRODUCT_WIDE_TILE,
    WIDE_GROUPS = WIDE_ROWS / GROUP_ROWS, /* that multiply */
    WIDE_WARPS = WIDE_GROUPS * GROUP_THREADS / WARP,
    WIDE_THREADS = (1 + WIDE_GROUPS) * GROUP_THREADS,
    WIDE_PRODUCER_REGISTERS = 32,
    WIDE_REGISTERS = 160,
    GROUP_BYTES = GROUP_ROWS * BK,
    HELD_BYTES = WARP_ROWS * PAIR_COLS * (int)sizeof(float),
    ROUNDED_BYTES = WARP_ROWS * BN * (int)sizeof(bf16),
};
static_assert(WIDE_ROWS % GROUP_ROWS == 0, "whole warpgroups");
static_assert(GROUP_THREADS * (WIDE_PRODUCER_REGISTERS + WIDE_GROUPS * WIDE_REGISTERS) <= 64 << 10,
              "registers of a multiprocessor");

/* Shared memory of a block: what a warp needs to write its rows, and as many stages as that
 * leaves room for. */
template <enum output OUTPUT> struct alignas(ALIGN_BYTES) wide_shared {
    static constexpr bool CODES = OUTPUT == OUTPUT_SWIGLU;
    static constexpr int N_STAGE = CODES ? 3 : 4;
    static constexpr int OUT_BYTES = CODES ? CODES_BYTES + HELD_BYTES : ROUNDED_BYTES;
    uint8_t in[N_STAGE][WIDE_ROWS * BK];
    uint8_t w[N_STAGE][BN * BK];
    uint8_t out[WIDE_WARPS][OUT_BYTES];
    uint64_t full[N_STAGE];
    uint64_t empty[N_STAGE];
    struct feed feed;
    static_assert(OUT_BYTES % PIECE_BYTES == 0, "pieces of rows");
};
static_assert(sizeof(struct wide_shared<OUTPUT_SWIGLU>) <= SHARED_MAX, "shared memory of a block");
static_assert(sizeof(struct wide_shared<OUTPUT_BF16>) <= SHARED_MAX, "shared memory of a block");

/* How many warpgroups have rows of the task. */
static __device__ __forceinline__ int groups_of(const struct task &t)
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
    const int n_group = groups_of(t);
    mbarrier_arrive_expect(full, (uint32_t)(BN * BK + n_group * GROUP_BYTES));
    const char *from = (const char *)w.a.w + (size_t)t.expert * w.a.w_stride;
    for (uint32_t i = 0; i < BN / TILE_ROWS; i++) {
        uint32_t tile = col * (BN / TILE_ROWS) + i;
        if (OUTPUT == OUTPUT_SWIGLU) tile = col + i * (w.a.n / 2 / PAIR_COLS);
        weight_load(weights + i * TILE_BYTES, from, full, w.n_k_line, k_line, tile);
    }
    for (int g = 0; g < n_group; g++) {
        tensor_load(in + (uint32_t)(g * GROUP_BYTES), &w.in_map, full, (int)k_line * BK,
                    t.first + g * GROUP_ROWS, 0);
    }
}

template <enum output OUTPUT>
static __device__ __forceinline__ void produce(const struct work &w, struct wide_shared<OUTPUT> *s)
{
    const uint32_t lane = threadIdx.x;
    if (lane >= WARP) return;
    const uint32_t n_run = row_tile_count<FORM_LISTED>(w) * w.n_run_col;
    struct ring at = {0, 0};
    struct feed_source source = feed_begin();
    const auto put_next = [&] {
        uint32_t run = 0;
        if (lane == 0) run = feed_put_next(&s->feed, source, w.a.feed, n_run);
        return shfl(run, 0);
    };
    uint32_t run = put_next();
    while (run < n_run) {
        const uint32_t next = put_next();
        const struct run r = task_run_at(w, run);
        const struct task t = task_at<FORM_LISTED>(w, r.row_tile);
        for (uint32_t col = r.col; col < r.col_end; col++) {
            for (uint32_t k_line = 0; k_line < w.n_k_line; k_line++) {
                wait_phase(&s->empty[at.stage], at.parity ^ 1);
                if (elect_lane()) load_stage<OUTPUT>(w, s, at.stage, k_line, t, col);
                advance_of<s->N_STAGE>(at);
            }
        }
        run = next;
    }
    if (lane == 0) feed_end(w.a.feed);
}

/* ---- the consumers ---- */

/* Where this lane's row of a tile is written: of the warp's 16, that of lane % 16. */
static __device__ __forceinline__ int out_row_of(const struct work &w, const struct task &t,
                                                 int row)
{
    if (row >= t.n) return -1;
    return w.a.out_listed ? t.first + row : w.a.rows[t.first + row];
}

template <enum output OUTPUT, enum weights WEIGHTS>
static __device__ __forceinline__ void consume(const struct work &w, struct wide_shared<OUTPUT> *s,
                                               int group)
{
    const uint32_t n_run = row_tile_count<FORM_LISTED>(w) * w.n_run_col;
    const int warp = (int)threadIdx.x / WARP % 4, first = group * GROUP_ROWS + warp * WARP_ROWS;
    struct walk x = {};
    x.lane = threadIdx.x % WARP;
    x.in = wgmma_operand(smem_address(s->in[0]) + (uint32_t)(group * GROUP_BYTES));
    x.weight = wgmma_operand(smem_address(s->w[0]));
    look_ahead(s, x);
    x.boxes = s->out[group * 4 + warp];
    x.held = x.boxes + CODES_BYTES;
    const int row = first + (int)x.lane / 4, mine = first + (int)x.lane % WARP_ROWS;
    struct feed_ring get = {0, 0};
    uint32_t run = feed_get(&s->feed, get, x.lane);
    if (run >= n_run) return;
    float sum[64] = {}, none[64] = {};
    struct run r = task_run_at(w, run);
    struct task t = task_at<FORM_LISTED>(w, r.row_tile);
    x.here = find_scales<FORM_LISTED>(w, t, row);
    x.ahead = load_scales<FORM_LISTED, OUTPUT, WEIGHTS>(w, x.here, r.col, 0, x.lane);
    for (bool more = true; more;) {
        const uint32_t next = feed_get(&s->feed, get, x.lane);
        more = next < n_run;
        const struct run r_next = task_run_at(w, more ? next : run);
        const struct task t_next = task_at<FORM_LISTED>(w, r_next.row_tile);
        x.next = find_scales<FORM_LISTED>(w, t_next, row);
        x.next_col = r_next.col;
        const int out = out_row_of(w, t, mine);
        for (uint32_t col = r.col; col < r.col_end; col++) {
            if (group * GROUP_ROWS >= t.n) {
                pass_tile<FORM_LISTED, OUTPUT, WEIGHTS>(w, s, x, col, r.col_end);
                continue;
            }
            sum_tile<FORM_LISTED, OUTPUT, true, WEIGHTS>(w, s, x, sum, none, col, r.col_end);
            x.summed = {out, col, min((uint32_t)BN, w.a.n - col * BN),
                        has_row_scales(WEIGHTS) ? (uint32_t)t.expert * (uint32_t)w.a.row_scale_step
                                                : 0};
        }
        x.here = x.next;
        run = next;
        r = r_next;
        t = t_next;
    }
    if (x.summed.n) store_tile<FORM_LISTED, OUTPUT, WEIGHTS>(w, x, sum);
}

template <enum output OUTPUT, enum weights WEIGHTS>
__global__ void __launch_bounds__(WIDE_THREADS, 1)
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
            mbarrier_init(smem_address(&s->empty[i]), WIDE_WARPS);
        }
        feed_init(&s->feed, WIDE_WARPS);
        mbarrier_init_fence();
        async_proxy_fence();
    }
    __syncthreads();
    dependency_wait();
    dependency_release(); /* launch.cuh */
    if (group == 0) {
        registers_lower<WIDE_PRODUCER_REGISTERS>();
        produce<OUTPUT>(w, s);
    } else {
        registers_raise<WIDE_REGISTERS>();
        consume<OUTPUT, WEIGHTS>(w, s, group - 1);
    }
#endif
}

/* ---- the host ---- */

template <enum output OUTPUT, enum weights WEIGHTS>
static cudaError_t launch(const struct work &w, uint32_t n_block, cudaStream_t stream)
{
    return gpu_launch({dim3(n_block), 1, WIDE_THREADS, sizeof(struct wide_shared<OUTPUT>), true},
                      stream, product_fp8_wide_kernel<OUTPUT, WEIGHTS>, w);
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
