/* product_fp8_sum.cuh - the warps that multiply, in product_fp8_kernel.cuh and product_fp8_wide.cu:
 * scales, K lines, and the sums of a tile
 *
 * SHARED is a block's shared memory: N_STAGE stages `in` and `w` with the barriers `full` and
 * `empty` (product_fp8_kernel.cuh). */
#ifndef FATHOM_BACKEND_CUDA_SM90_PRODUCT_FP8_SUM_CUH
#define FATHOM_BACKEND_CUDA_SM90_PRODUCT_FP8_SUM_CUH

#include <type_traits>

#include "backend/cuda/sm90/product_fp8_store.cuh"
#include "backend/cuda/sm90/product_fp8_work.cuh"
#include "backend/cuda/sm90/stage.cuh"

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

/* ---- K lines ---- */

/* This warp has read the stage. */
template <typename SHARED>
static __device__ __forceinline__ void release(SHARED *s, uint32_t stage, uint32_t lane)
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

/* Whether the K line that is next is there, and its operands. */
template <typename SHARED>
static __device__ __forceinline__ void look_ahead(SHARED *s, struct walk &x)
{
    x.in_next = x.in + x.at.stage * (sizeof s->in[0] >> 4);
    x.weight_next = x.weight + x.at.stage * (sizeof s->w[0] >> 4);
    x.is_full = mbarrier_test_wait(smem_address(&s->full[x.at.stage]), x.at.parity);
}

/* Begins the products of the next K line, once it is there; ADDS: to what c has. What the K line
 * behind it needs is made while these are under way: between two K lines a warpgroup is not to wait
 * for anything but the sums. */
template <enum form FORM, bool ADDS, typename SUM, typename SHARED>
static __device__ __forceinline__ void start_k_line(SUM (&c)[64], SHARED *s, struct walk &x)
{
    if (!x.is_full) wait_phase(&s->full[x.at.stage], x.at.parity);
    if (FORM == FORM_GATHER) async_proxy_fence();
    wgmma_fence();
    line_start<ADDS>(c, x.in_next, x.weight_next);
    wgmma_commit();
    x.under_way = x.at.stage;
    advance_of<SHARED::N_STAGE>(x.at);
    look_ahead(s, x);
}

/* Those of the K line under way, of outputs. */
template <typename SHARED>
static __device__ __forceinline__ struct column_halves halves_of(const SHARED *s,
                                                                 const struct walk &x)
{
    struct column_halves columns;
    const uint4 *from = (const uint4 *)s->halves[x.under_way][0] + x.lane % 4;
#pragma unroll
    for (int i = 0; i < 4; i++) columns.v[i] = from[i * 4];
    return columns;
}

/* k_part += the K line's sum times its scales; FIRST: k_part is what that adds to 0. */
template <enum output OUTPUT, enum weights WEIGHTS, bool FIRST, typename SUM, typename SHARED>
static __device__ __forceinline__ void add_k_line(float (&k_part)[64], SUM (&c)[64], SHARED *s,
                                                  struct walk &x, const struct line_scales &of)
{
    if constexpr (WEIGHTS == WEIGHTS_U4) {
        const struct column_halves columns = halves_of(s, x);
        wgmma_wait(c);
        release(s, x.under_way, x.lane);
        add_scaled_halves<FIRST>(k_part, c, of, columns);
    } else {
        wgmma_wait(c);
        release(s, x.under_way, x.lane);
        add_scaled<OUTPUT, FIRST>(k_part, c, of);
    }
}

/* The sums of one tile of int8 with scales of rows. What the tile before has left in `total` goes
 * to memory while the first products are under way. */
template <enum form FORM, enum output OUTPUT, typename SHARED>
static __device__ __forceinline__ void sum_int8_tile(const struct work &w, SHARED *s,
                                                     struct walk &x, float (&total)[64])
{
    int c[64];
    start_k_line<FORM, false>(c, s, x);
    if (x.summed.n) store_tile<FORM, OUTPUT, WEIGHTS_INT8_ROW>(w, x, total);
    for (uint32_t k_line = 1; k_line < w.n_k_line; k_line++) {
        const uint32_t stage = x.under_way;
        start_k_line<FORM, true>(c, s, x);
        wgmma_wait_but<1>(c);
        release(s, stage, x.lane);
    }
    wgmma_wait(c);
    release(s, x.under_way, x.lane);
#pragma unroll
    for (int j = 0; j < 64; j++) total[j] = (float)c[j];
}

/* sum = the K lines of a part, of which the first one's products are under way. `now` has its
 * scales, then those of the K line behind the part. */
template <enum form FORM, enum output OUTPUT, enum weights WEIGHTS, typename SUM, typename SHARED>
static __device__ __forceinline__ void sum_k_part(const struct work &w, SHARED *s, struct walk &x,
                                                  float (&sum)[64], SUM (&c)[64],
                                                  struct line_scales &now, const struct part &p)
{
    constexpr enum output SCALES = scales_of_output(OUTPUT, WEIGHTS);
    const auto scales_behind = [&](uint32_t k_line) {
        return k_line + 1 < w.n_k_line
                   ? scales_of<FORM, SCALES, WEIGHTS>(w, x, p.col, p.col_end, k_line + 1)
                   : now;
    };
    struct line_scales next = scales_behind(p.k_line);
    add_k_line<OUTPUT, WEIGHTS, true>(sum, c, s, x, now);
    for (uint32_t k_line = p.k_line + 1; k_line < p.k_line_end; k_line++) {
        now = next;
        start_k_line<FORM, false>(c, s, x);
        next = scales_behind(k_line);
        add_k_line<OUTPUT, WEIGHTS, false>(sum, c, s, x, now);
    }
    now = next;
}

/* total += k_part, if `more`. A branch, for what is behind it stays behind the products that have
 * been started: of a stream of instructions the compiler puts half between them. */
static __device__ __forceinline__ void add_part(float (&total)[64], const float (&k_part)[64],
                                                bool more)
{
    if (!more) return;
#pragma unroll
    for (int j = 0; j < 64; j++) total[j] += k_part[j];
}

/* The sums of one tile: the first part of K in `total`, to which the others are added from k_part.
 * What the tile before it, or the part of K before, has left is dealt with while the products that
 * follow are under way. */
template <enum form FORM, enum output OUTPUT, bool ONE_K_PART, enum weights WEIGHTS,
          typename SHARED>
static __device__ __forceinline__ void sum_tile(const struct work &w, SHARED *s, struct walk &x,
                                                float (&total)[64], float (&k_part)[64],
                                                uint32_t col, uint32_t col_end)
{
    const uint32_t n_k_part = ONE_K_PART ? 1 : w.n_k_part, n_k_line = w.n_k_line / n_k_part;
    constexpr enum output SCALES = scales_of_output(OUTPUT, WEIGHTS);
    typename std::conditional<WEIGHTS == WEIGHTS_INT8, int, float>::type c[64];
    /* behind the fence of outputs, which waits for what is requested */
    const bool late = OUTPUT != OUTPUT_SWIGLU;
    take_scales<SCALES>(x);
    if (!late) request_scales<FORM, SCALES, WEIGHTS>(w, x, col, col_end, 0);
    struct line_scales now = scales_at_line<SCALES>(x, 0);
    struct part p = {col, col_end, 0, n_k_line};
    start_k_line<FORM, false>(c, s, x);
    if (x.summed.n) {
        add_part(total, k_part, n_k_part > 1);
        store_tile<FORM, OUTPUT, WEIGHTS>(w, x, total);
    }
    if (late) request_scales<FORM, SCALES, WEIGHTS>(w, x, col, col_end, 0);
    sum_k_part<FORM, OUTPUT, WEIGHTS>(w, s, x, total, c, now, p);
    for (uint32_t i = 1; i < n_k_part; i++) {
        p.k_line = p.k_line_end;
        p.k_line_end += n_k_line;
        start_k_line<FORM, false>(c, s, x);
        add_part(total, k_part, i > 1);
        sum_k_part<FORM, OUTPUT, WEIGHTS>(w, s, x, k_part, c, now, p);
    }
}

/* A warpgroup without rows keeps the ring going, and what is requested. */
template <enum form FORM, enum output OUTPUT, enum weights WEIGHTS, typename SHARED>
static __device__ __forceinline__ void pass_tile(const struct work &w, SHARED *s, struct walk &x,
                                                 uint32_t col, uint32_t col_end)
{
    const bool in_run = col + 1 < col_end;
    if (WEIGHTS != WEIGHTS_INT8_ROW) {
        constexpr enum output SCALES = scales_of_output(OUTPUT, WEIGHTS);
        x.ahead = load_scales<FORM, SCALES, WEIGHTS>(w, in_run ? x.here : x.next,
                                                     in_run ? col + 1 : x.next_col, 0, x.lane);
    }
    for (uint32_t k_line = 0; k_line < w.n_k_line; k_line++, advance_of<SHARED::N_STAGE>(x.at)) {
        wait_phase(&s->full[x.at.stage], x.at.parity);
        release(s, x.at.stage, x.lane);
    }
    look_ahead(s, x);
}

#endif
