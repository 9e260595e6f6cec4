/* product_fp8_kernel.cuh - matrix product of codes for many rows on sm_90a: its kernel, which
 * product_fp8.cu has for FP8 weights and product_int8.cu for int8
 *
 * One resident block a multiprocessor walks over tiles of 128 rows x 128 outputs. Warpgroup 0
 * fills a ring of stages, one stage a K line of 128: the tile of inputs and the tile of weights.
 * Warpgroups 1 and 2 own 64 rows each: four products of K = 32 sum one K line in the tensor cores,
 * which keep few bits, then the sum times both scales is added in f32 to the part of K, and parts
 * to the total, in ascending order. Scales are loaded by the lanes that multiply with them, four K
 * lines at a time and four ahead. A warpgroup's way from one K line to the next is what bounds the
 * kernel, so whatever can wait (a part's sum, a finished tile's way to memory) is done while
 * products are under way, those of the next tile included.
 *
 * U4 weights whose codes have been made E4M3 (product_u4_turned.cu) have a scale an output and K
 * line: those of a tile come with the stage, as F16, and a thread reads its 32 in front of the wait
 * for the K line's sum.
 *
 * Int8 is summed exactly: a K line, or with scales of rows all of K, of which one K line is in the
 * tensor cores while the next one's products begin. Nothing is scaled then but what leaves a tile.
 *
 * What leaves a tile: sums as they are; rounded to bf16, of queries with their rotary parts turned
 * before; or, of gate and up, the codes of their SwiGLU. There a tile of weights is 64 rows of gate
 * and the 64 of up that belong to them, so that a thread has both of a value, and two tiles, one
 * after the other, make a group of codes.
 *
 * Plain products copy both tiles by tensor maps, and so do mapped ones whose rows lie in the order
 * of the list. Others gather their rows by 16-byte copies and take weights alone by tensor map.
 *
 * A stage goes round:
 *
 *   empty --- copies issued; full: the bytes, gathering 128 more arrivals ---> full
 *   full ---- read by every warp that multiplies ---> empty
 *
 * The parity of a stage's barrier flips each time round; struct ring holds the parity that the
 * consumers wait for, the producers wait for the other one.
 */
#ifndef FATHOM_BACKEND_CUDA_SM90_PRODUCT_FP8_KERNEL_CUH
#define FATHOM_BACKEND_CUDA_SM90_PRODUCT_FP8_KERNEL_CUH

#include <type_traits>

#include "backend/cuda/k_parts.h"
#include "backend/cuda/sm90/product_fp8_store.cuh"
#include "backend/cuda/sm90/product_fp8_work.cuh"
#include "backend/cuda/sm90/stage.cuh"

/* ---- the producers ---- */

/* The tensor maps' copies of one stage, by one thread. Rows past the task that come along, and
 * those of a warpgroup without any, are no one's. */
template <enum form FORM, enum output OUTPUT, enum weights WEIGHTS>
static __device__ __forceinline__ void load_tiles(const struct work &w, struct stages *s,
                                                  uint32_t stage, uint32_t k_line,
                                                  const struct task &t, uint32_t col)
{
    const bool both = t.n > GROUP_ROWS;
    const uint32_t full = smem_address(&s->full[stage]), in = smem_address(s->in[stage]);
    const uint32_t weights = smem_address(s->w[stage]);
    const int x = (int)k_line * BK;
    const uint32_t n_in = FORM == FORM_GATHER ? 0 : both ? BM : GROUP_ROWS;
    const uint32_t n_half = WEIGHTS == WEIGHTS_U4 ? sizeof s->halves[0] : 0;
    mbarrier_arrive_expect(full, (BN + n_in) * BK + n_half);
    const char *from = (const char *)w.a.w + (size_t)t.expert * w.a.w_stride;
    for (uint32_t i = 0; i < BN / TILE_ROWS; i++) {
        uint32_t tile = (uint32_t)col * (BN / TILE_ROWS) + i;
        if (OUTPUT == OUTPUT_SWIGLU) tile = (uint32_t)col + i * (w.a.n / 2 / PAIR_COLS);
        weight_load(weights + i * TILE_BYTES, from, full, w.n_k_line, k_line, tile);
        if (WEIGHTS == WEIGHTS_U4) {
            bulk_load(smem_address(s->halves[stage][i]),
                      from + w.a.w_stride + turned_scales_at(tile, k_line, w.n_k_line),
                      TURNED_SCALE_BYTES, full);
        }
    }
    if (FORM == FORM_GATHER) return;
    tensor_load(in, &w.in_map, full, x, t.first, 0);
    if (both) tensor_load(in + GROUP_ROWS * BK, &w.in_map, full, x, t.first + GROUP_ROWS, 0);
}

template <enum form FORM, enum output OUTPUT, enum weights WEIGHTS>
static __device__ __forceinline__ void produce(const struct work &w, struct stages *s)
{
    const int thread = (int)threadIdx.x;
    if (FORM != FORM_GATHER && thread != 0) return;
    const uint32_t n_row_tile = row_tile_count<FORM>(w);
    struct ring at = {0, 0};
    struct cursor i = {0, 0};
    for (bool more = move_on<FORM>(w, i, block_cursor(w), n_row_tile); more;
         more = move_on<FORM>(w, i, w.step, n_row_tile)) {
        const struct run r = run_at<FORM>(w, i, n_row_tile);
        const struct task t = task_at<FORM>(w, r.row_tile);
        struct gather<GATHER_ROWS> g;
        if (FORM == FORM_GATHER) g = gather_of<GATHER_ROWS>(w, t);
        for (uint32_t col = r.col; col < r.col_end; col++) {
            for (uint32_t k_line = 0; k_line < w.n_k_line; k_line++, advance(at)) {
                wait_phase(&s->empty[at.stage], at.parity ^ 1);
                if (thread == 0) load_tiles<FORM, OUTPUT, WEIGHTS>(w, s, at.stage, k_line, t, col);
                if (FORM != FORM_GATHER) continue;
                gather_k_line<GATHER_ROWS>(w, g, smem_address(s->in[at.stage]), k_line);
                mbarrier_arrive_cp_async(smem_address(&s->full[at.stage]));
            }
        }
    }
}

/* ---- scales ---- */

/* What scales depend on: of halves of a tile there are two, unless outputs have their own. */
static __host__ __device__ constexpr enum output scales_of_output(enum output output,
                                                                  enum weights weights)
{
    return weights == WEIGHTS_U4 ? OUTPUT_FLOAT : output;
}

template <enum form FORM, enum output OUTPUT, enum weights WEIGHTS>
static __device__ __forceinline__ struct scales load_scales(const struct work &w,
                                                            const struct scales_at &s, uint32_t col,
                                                            uint32_t k_line, uint32_t lane)
{
    const uint32_t divisor = FORM == FORM_GATHER ? w.a.in_divisor : 1;
    const uint32_t i = min(k_line + lane % SCALE_LINES, w.n_k_line - 1);
    const uint32_t block = OUTPUT == OUTPUT_SWIGLU ? col / 2 : col;
    const float first = w.a.q_scale[(uint32_t)s.first / divisor * w.n_k_line + i];
    const float second = w.a.q_scale[(uint32_t)s.second / divisor * w.n_k_line + i];
    if (WEIGHTS == WEIGHTS_U4) return {first, second, TURNED_FACTOR, 0.0f};
    const float *of_w = w.a.w_scale + s.w + block * w.a.scale_stride + i;
    return {first, second, of_w[0],
            OUTPUT == OUTPUT_SWIGLU ? of_w[w.n_col_tile / 2 * w.a.scale_stride] : 0.0f};
}

/* ---- the consumers ---- */

/* This warp has read the stage. */
static __device__ __forceinline__ void release(struct stages *s, uint32_t stage, uint32_t lane)
{
    __syncwarp();
    if (lane == 0) mbarrier_arrive(smem_address(&s->empty[stage]));
}

/* Every SCALE_LINES K lines the scales requested are taken, */
template <enum output OUTPUT> static __device__ __forceinline__ void take_scales(struct walk &x)
{
    x.first = x.ahead.w * x.ahead.first;
    x.second = x.ahead.w * x.ahead.second;
    if (OUTPUT == OUTPUT_SWIGLU) {
        x.up_first = x.ahead.up * x.ahead.first;
        x.up_second = x.ahead.up * x.ahead.second;
    }
}

/* and those behind them requested; k_line: of column tile `col`, the first one taken. */
template <enum form FORM, enum output OUTPUT, enum weights WEIGHTS>
static __device__ __forceinline__ void request_scales(const struct work &w, struct walk &x,
                                                      uint32_t col, uint32_t col_end,
                                                      uint32_t k_line)
{
    const bool in_tile = k_line + SCALE_LINES < w.n_k_line, in_run = col + 1 < col_end;
    const struct scales_at &s = in_tile || in_run ? x.here : x.next;
    const uint32_t next_col = in_tile ? col : in_run ? col + 1 : x.next_col;
    x.ahead = load_scales<FORM, OUTPUT, WEIGHTS>(w, s, next_col, in_tile ? k_line + SCALE_LINES : 0,
                                                 x.lane);
}

/* Those of K line k_line. */
template <enum output OUTPUT>
static __device__ __forceinline__ struct line_scales scales_at_line(const struct walk &x,
                                                                    uint32_t k_line)
{
    const int from = (int)(x.lane - x.lane % SCALE_LINES + k_line % SCALE_LINES);
    const bool up = OUTPUT == OUTPUT_SWIGLU;
    return {shfl(x.first, from), shfl(x.second, from), up ? shfl(x.up_first, from) : 0.0f,
            up ? shfl(x.up_second, from) : 0.0f};
}

template <enum form FORM, enum output OUTPUT, enum weights WEIGHTS>
static __device__ __forceinline__ struct line_scales
scales_of(const struct work &w, struct walk &x, uint32_t col, uint32_t col_end, uint32_t k_line)
{
    if (k_line % SCALE_LINES == 0) {
        take_scales<OUTPUT>(x);
        request_scales<FORM, OUTPUT, WEIGHTS>(w, x, col, col_end, k_line);
    }
    return scales_at_line<OUTPUT>(x, k_line);
}

/* Begins the products of the next K line, once it is there; ADDS: to what c has. */
template <enum form FORM, bool ADDS, typename SUM>
static __device__ __forceinline__ void start_k_line(SUM (&c)[64], struct stages *s,
                                                    const struct walk &x)
{
    wait_phase(&s->full[x.at.stage], x.at.parity);
    if (FORM == FORM_GATHER) async_proxy_fence();
    const uint64_t in = x.in + x.at.stage * (sizeof s->in[0] >> 4);
    const uint64_t weight = x.weight + x.at.stage * (sizeof s->w[0] >> 4);
    wgmma_fence();
    line_start<ADDS>(c, in, weight);
    wgmma_commit();
}

/* Those of the K line under way, of outputs. */
static __device__ __forceinline__ struct column_halves halves_of(const struct stages *s,
                                                                 const struct walk &x)
{
    struct column_halves columns;
    const uint4 *from = (const uint4 *)s->halves[x.at.stage][0] + x.lane % 4;
#pragma unroll
    for (int i = 0; i < 4; i++) columns.v[i] = from[i * 4];
    return columns;
}

/* k_part += the K line's sum times its scales; FIRST: k_part is what that adds to 0. */
template <enum output OUTPUT, enum weights WEIGHTS, bool FIRST, typename SUM>
static __device__ __forceinline__ void add_k_line(float (&k_part)[64], SUM (&c)[64],
                                                  struct stages *s, struct walk &x,
                                                  const struct line_scales &of)
{
    if constexpr (WEIGHTS == WEIGHTS_U4) {
        const struct column_halves columns = halves_of(s, x);
        wgmma_wait(c);
        release(s, x.at.stage, x.lane);
        advance(x.at);
        add_scaled_halves<FIRST>(k_part, c, of, columns);
    } else {
        wgmma_wait(c);
        release(s, x.at.stage, x.lane);
        advance(x.at);
        add_scaled<OUTPUT, FIRST>(k_part, c, of);
    }
}

/* The sums of one tile of int8 with scales of rows. What the tile before has left in `total` goes
 * to memory while the first products are under way. */
template <enum form FORM, enum output OUTPUT>
static __device__ __forceinline__ void sum_int8_tile(const struct work &w, struct stages *s,
                                                     struct walk &x, float (&total)[64])
{
    int c[64];
    start_k_line<FORM, false>(c, s, x);
    if (x.summed.n) store_tile<FORM, OUTPUT, WEIGHTS_INT8_ROW>(w, x, total);
    for (uint32_t k_line = 1; k_line < w.n_k_line; k_line++) {
        const uint32_t stage = x.at.stage;
        advance(x.at);
        start_k_line<FORM, true>(c, s, x);
        wgmma_wait_but<1>(c);
        release(s, stage, x.lane);
    }
    wgmma_wait(c);
    release(s, x.at.stage, x.lane);
    advance(x.at);
#pragma unroll
    for (int j = 0; j < 64; j++) total[j] = (float)c[j];
}

/* The sums of one tile. What the tile before it, or the part of K before, has left in k_part and
 * total is dealt with while the products that follow are under way. */
template <enum form FORM, enum output OUTPUT, bool ONE_K_PART, enum weights WEIGHTS>
static __device__ __forceinline__ void sum_tile(const struct work &w, struct stages *s,
                                                struct walk &x, float (&total)[64],
                                                float (&k_part)[64], uint32_t col, uint32_t col_end)
{
    const uint32_t n_k_part = ONE_K_PART ? 1 : w.n_k_part, n_k_line = w.n_k_line / n_k_part;
    constexpr enum output SCALES = scales_of_output(OUTPUT, WEIGHTS);
    uint32_t k_line = 0;
    typename std::conditional<WEIGHTS == WEIGHTS_INT8, int, float>::type c[64];
    /* behind the fence of outputs, which waits for what is requested */
    const bool late = OUTPUT != OUTPUT_SWIGLU;
    take_scales<SCALES>(x);
    if (!late) request_scales<FORM, SCALES, WEIGHTS>(w, x, col, col_end, 0);
    struct line_scales now = scales_at_line<SCALES>(x, 0);
    for (uint32_t i = 0; i < n_k_part; i++) {
        start_k_line<FORM, false>(c, s, x);
        if (!ONE_K_PART) {
            const bool fresh = i == 1 || n_k_part == 1;
#pragma unroll
            for (int j = 0; j < 64; j++) total[j] = (fresh ? 0.0f : total[j]) + k_part[j];
        }
        if (i == 0 && x.summed.n)
            store_tile<FORM, OUTPUT, WEIGHTS>(w, x, ONE_K_PART ? k_part : total);
        if (i == 0 && late) request_scales<FORM, SCALES, WEIGHTS>(w, x, col, col_end, 0);
        struct line_scales next = now;
        if (++k_line < w.n_k_line)
            next = scales_of<FORM, SCALES, WEIGHTS>(w, x, col, col_end, k_line);
        add_k_line<OUTPUT, WEIGHTS, true>(k_part, c, s, x, now);
        for (uint32_t j = 1; j < n_k_line; j++) {
            now = next;
            start_k_line<FORM, false>(c, s, x);
            if (++k_line < w.n_k_line)
                next = scales_of<FORM, SCALES, WEIGHTS>(w, x, col, col_end, k_line);
            add_k_line<OUTPUT, WEIGHTS, false>(k_part, c, s, x, now);
        }
        now = next;
    }
}

/* A warpgroup without rows keeps the ring going, and what is requested. */
template <enum form FORM, enum output OUTPUT, enum weights WEIGHTS>
static __device__ __forceinline__ void pass_tile(const struct work &w, struct stages *s,
                                                 struct walk &x, uint32_t col, uint32_t col_end)
{
    const bool in_run = col + 1 < col_end;
    if (WEIGHTS != WEIGHTS_INT8_ROW) {
        constexpr enum output SCALES = scales_of_output(OUTPUT, WEIGHTS);
        x.ahead = load_scales<FORM, SCALES, WEIGHTS>(w, in_run ? x.here : x.next,
                                                     in_run ? col + 1 : x.next_col, 0, x.lane);
    }
    for (uint32_t k_line = 0; k_line < w.n_k_line; k_line++, advance(x.at)) {
        wait_phase(&s->full[x.at.stage], x.at.parity);
        release(s, x.at.stage, x.lane);
    }
}

template <enum form FORM, enum output OUTPUT, bool ONE_K_PART, enum weights WEIGHTS>
static __device__ __forceinline__ void consume(const struct work &w, struct stages *s, int group)
{
    const int warp = (int)threadIdx.x / WARP % 4;
    struct walk x = {};
    x.lane = threadIdx.x % WARP;
    x.in = wgmma_operand(smem_address(s->in[0]) + (uint32_t)(group * GROUP_ROWS * BK));
    x.weight = wgmma_operand(smem_address(s->w[0]));
    x.boxes = s->out[group * 4 + warp][0];
    x.held = x.boxes + CODES_BYTES;
    const int first = group * GROUP_ROWS + warp * WARP_ROWS, row = first + (int)x.lane / 4;
    const int mine = first + (int)x.lane % WARP_ROWS;
    const uint32_t n_row_tile = row_tile_count<FORM>(w);
    struct cursor i = {0, 0};
    if (!move_on<FORM>(w, i, block_cursor(w), n_row_tile)) return;
    float total[64] = {}, k_part[64] = {};
    struct run r = run_at<FORM>(w, i, n_row_tile);
    bool more = move_on<FORM>(w, i, w.step, n_row_tile);
    struct run r_next = run_at<FORM>(w, i, n_row_tile);
    struct task t = task_at<FORM>(w, r.row_tile), t_next = task_at<FORM>(w, r_next.row_tile);
    const bool whole = WEIGHTS == WEIGHTS_INT8_ROW; /* nothing is scaled on the way */
    x.here = find_scales<FORM>(w, t, row);
    if (!whole) {
        constexpr enum output SCALES = scales_of_output(OUTPUT, WEIGHTS);
        x.ahead = load_scales<FORM, SCALES, WEIGHTS>(w, x.here, r.col, 0, x.lane);
    }
    for (bool last = false; !last;) {
        last = !more;
        more = more && move_on<FORM>(w, i, w.step, n_row_tile);
        const struct run r_after = run_at<FORM>(w, i, n_row_tile);
        const struct task t_after = task_at<FORM>(w, r_after.row_tile);
        x.next = find_scales<FORM>(w, t_next, row);
        x.next_col = r_next.col;
        int out = -1;
        if (mine < t.n) out = t.first + mine;
        if (out >= 0 && FORM != FORM_PLAIN && !w.a.out_listed) out = w.a.rows[out];
        const float in_first = whole ? in_scale<FORM>(w, x.here.first) : 0.0f;
        const float in_second = whole ? in_scale<FORM>(w, x.here.second) : 0.0f;
        for (uint32_t col = r.col; col < r.col_end; col++) {
            if (group * GROUP_ROWS >= t.n) {
                pass_tile<FORM, OUTPUT, WEIGHTS>(w, s, x, col, r.col_end);
                continue;
            }
            if constexpr (WEIGHTS == WEIGHTS_INT8_ROW) {
                sum_int8_tile<FORM, OUTPUT>(w, s, x, k_part);
            } else {
                sum_tile<FORM, OUTPUT, ONE_K_PART, WEIGHTS>(w, s, x, total, k_part, col, r.col_end);
            }
            x.summed = {out,
                        col,
                        min((uint32_t)BN, w.a.n - col * BN),
                        has_row_scales(WEIGHTS) ? (uint32_t)t.expert * (uint32_t)w.a.row_scale_step
                                                : 0,
                        in_first,
                        in_second};
            if (whole) x.summed.columns = column_scales<OUTPUT>(w, x);
        }
        x.here = x.next;
        r = r_next;
        t = t_next;
        r_next = r_after;
        t_next = t_after;
    }
    if (!x.summed.n) return;
#pragma unroll
    for (int j = 0; j < 64; j++) {
        total[j] = ONE_K_PART || whole || w.n_k_part == 1 ? k_part[j] : total[j] + k_part[j];
    }
    store_tile<FORM, OUTPUT, WEIGHTS>(w, x, total);
    if (x.lane == 0) bulk_wait();
}

template <enum form FORM, enum output OUTPUT, bool ONE_K_PART, enum weights WEIGHTS>
__global__ void __launch_bounds__(THREADS, 1)
    product_fp8_sm90_kernel(const __grid_constant__ struct work w)
{
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
    SHARED_DYNAMIC(unsigned char, shared);
    struct stages *s = (struct stages *)shared;
    const int group = shfl((int)threadIdx.x / GROUP_THREADS, 0);
    if (threadIdx.x == 0) {
        if (FORM != FORM_GATHER) tensor_map_prefetch(&w.in_map);
        for (int i = 0; i < STAGES; i++) {
            mbarrier_init(smem_address(&s->full[i]), FORM == FORM_GATHER ? 1 + GROUP_THREADS : 1);
            mbarrier_init(smem_address(&s->empty[i]), CONSUMER_WARPS);
        }
        mbarrier_init_fence();
        async_proxy_fence();
    }
    __syncthreads();
    if (FORM == FORM_PLAIN) dependency_release();
    dependency_wait();
    if (FORM != FORM_PLAIN) dependency_release(); /* launch.cuh */
    if (group == 0) {
        registers_lower<producer_registers(WEIGHTS)>();
        produce<FORM, OUTPUT, WEIGHTS>(w, s);
    } else {
        registers_raise<consumer_registers(WEIGHTS)>();
        consume<FORM, OUTPUT, ONE_K_PART, WEIGHTS>(w, s, group - 1);
    }
#endif
}

/* ---- the host ---- */

typedef void (*product_kernel)(struct work);

static cudaError_t launch(const struct work &w, product_kernel kernel, uint32_t n_block,
                          cudaStream_t stream)
{
    return gpu_launch({dim3(n_block), 1, THREADS, sizeof(struct stages), true}, stream, kernel, w);
}

#endif
