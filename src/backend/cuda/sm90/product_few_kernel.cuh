/* product_few_kernel.cuh - matrix product of weights that stream once through a ring, past few rows
 * or, of packed U4 weights, any number of rows: its kernels, which product_few.cu has for FP8
 * weights, product_few_int8.cu for int8, product_few_u4.cu for U4, product_few_e2m1.cu for E2M1 and
 * product_few_bf16.cu for BF16
 *
 * Weights are the 64-row operand of the warpgroup products, rows of input the N columns. A block
 * makes tiles of 64 outputs, for one part of K (k_parts.h), two or all: its last warp fills a ring
 * of stages, one stage a K line (product_few_load.cuh), its first four multiply. With few tiles the
 * blocks of a cluster share each, with a part or two a block: each block sends each of the others
 * what that one adds up and writes of its parts' sums. With many tiles a block makes all parts of
 * its own, one after the other. Lines are summed, scaled and added as in product_fp8.cu, and an
 * element of the tensor cores' sum does not depend on the shape of the product, so the bits are the
 * same.
 *
 * U4 weights (G groups of a K line have scales of their own; G is none for others) come to the
 * tensor cores from registers, as u4.cuh makes their codes, of experts as they are stored. A stage
 * has scales and zeros behind its codes, and of experts the scales and sums of inputs. Int8 with
 * scales of rows is summed over all of K in integers. E2M1 is made bf16 in registers (e2m1.cuh) and
 * multiplied with inputs of bf16; the tensor cores sum all of a part of K, as they do of BF16.
 *
 * A tile that two blocks share (few_walk) has one's sums handed on to the other through global
 * memory, a warp's to the same warp, which goes on from them: what is added to what stays the same.
 *
 * The sums of item i are in parts[i % 2], and their bytes count at ready[i % 2]. A block sends sums
 * of item i + 1 after its warps have read those of i, which they say at `read`; so whoever has got
 * those of i + 1 from every block may send those of i + 2, and nobody has to be asked. */
#ifndef FATHOM_BACKEND_CUDA_SM90_PRODUCT_FEW_KERNEL_CUH
#define FATHOM_BACKEND_CUDA_SM90_PRODUCT_FEW_KERNEL_CUH

#include <type_traits>

#include "backend/cuda/sm90/product_few_load.cuh"

/* What is summed: values, or codes over all of K. */
template <int G> struct few_sum {
    typedef float type;
};
template <> struct few_sum<FEW_INT8_ROW> {
    typedef int type;
};

/* A sum as the bits of a float, which a cluster's blocks send each other. */
static __device__ __forceinline__ float sum_bits(float sum)
{
    return sum;
}

static __device__ __forceinline__ float sum_bits(int sum)
{
    return __uint_as_float((uint32_t)sum);
}

static __device__ __forceinline__ void take_bits(float &sum, float bits)
{
    sum = bits;
}

static __device__ __forceinline__ void take_bits(int &sum, float bits)
{
    sum = (int)__float_as_uint(bits);
}

static __device__ __forceinline__ void add_bits(float &sum, float bits)
{
    sum += bits;
}

static __device__ __forceinline__ void add_bits(int &sum, float bits)
{
    sum += (int)__float_as_uint(bits);
}

/* ---- the warps that multiply ---- */

/* This warp has read the stage. */
template <int N, int G>
static __device__ __forceinline__ void release(const struct few_block<N, G> &b, uint32_t stage)
{
    __syncwarp();
    if (threadIdx.x % WARP == 0) mbarrier_arrive(smem_address(&b.s->empty[stage]));
}

/* k_part += the next K line's sum of int8, */
template <int N, bool MAPPED, int G>
static __device__ __forceinline__ void add_k_line(int (&k_part)[N / 2], const struct few_work &w,
                                                  const struct few_block<N, G> &b, uint32_t stage)
{
    const uint64_t weight = wgmma_operand(smem_address(weights_at(w, b, stage)));
    const uint64_t in = wgmma_operand(smem_address(inputs_at(w, b, stage)));
    if (MAPPED) async_proxy_fence();
    wgmma_fence();
    line_start<true>(k_part, weight, in);
    wgmma_commit();
    wgmma_wait(k_part);
    release(b, stage);
}

/* or times its scales */
template <int N, bool MAPPED, int G>
static __device__ __forceinline__ void add_k_line(float (&k_part)[N / 2], const struct few_work &w,
                                                  const struct few_block<N, G> &b, uint32_t stage)
{
    const uint32_t lane = threadIdx.x % WARP;
    const uint64_t weight = wgmma_operand(smem_address(weights_at(w, b, stage)));
    const uint64_t in = wgmma_operand(smem_address(inputs_at(w, b, stage)));
    if (MAPPED) async_proxy_fence();
    typename std::conditional<G == FEW_INT8, int, float>::type c[N / 2];
    wgmma_fence();
    line_start<false>(c, weight, in);
    wgmma_commit();
    const float w_scale = b.s->w_scale[stage];
    float2 scale[N / 8]; /* of rows 8 j + 2 t and the next */
#pragma unroll
    for (int j = 0; j < N / 8; j++) {
        scale[j] = *(const float2 *)&b.s->in_scale[stage][8 * j + 2 * (int)(lane % 4)];
    }
    wgmma_wait(c);
    release(b, stage);
#pragma unroll
    for (int j = 0; j < N / 8; j++) {
        const float s0 = w_scale * scale[j].x, s1 = w_scale * scale[j].y;
        k_part[4 * j] = fmaf(line_value(c[4 * j]), s0, k_part[4 * j]);
        k_part[4 * j + 1] = fmaf(line_value(c[4 * j + 1]), s1, k_part[4 * j + 1]);
        k_part[4 * j + 2] = fmaf(line_value(c[4 * j + 2]), s0, k_part[4 * j + 2]);
        k_part[4 * j + 3] = fmaf(line_value(c[4 * j + 3]), s1, k_part[4 * j + 3]);
    }
}

/* What a lane has of a line of packed weights: its words, where its rows are among scales, and
 * where those of its columns begin. And the inputs of stage 0 as an operand, which changes in its
 * lower half from stage to stage. */
struct u4_lane {
    uint32_t words;
    uint32_t row;
    uint32_t pair;
    uint64_t in;
    struct e2m1_lane e2m1; /* of E2M1, which has words here too */
};

template <int N, int G>
static __device__ __forceinline__ struct u4_lane u4_lane_of(const struct few_work &w,
                                                            const struct few_block<N, G> &b)
{
    const uint32_t lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
    const struct u4_lane l = {warp * 1024 + lane * 16, warp * 16 + lane / 4, lane % 4 * 2,
                              wgmma_operand(smem_address(inputs_at(w, b, 0))),
                              e2m1_lane_of<(int)groups_of<G>()>(warp, lane)};
    return l;
}

static __device__ __forceinline__ uint64_t u4_inputs_of(const struct few_work &w,
                                                        const struct u4_lane &lane, uint32_t stage)
{
    const uint32_t low = (uint32_t)lane.in + stage * (w.stage_bytes / PIECE_BYTES);
    return (lane.in & 0xffffffff00000000u) | low;
}

/* The same of U4 weights, group by group. Scales are there before the products begin: nothing that
 * could branch is beside these. */
template <int N, int G>
static __device__ __forceinline__ void add_u4_line(float (&k_part)[N / 2], const struct few_work &w,
                                                   const struct few_block<N, G> &b, uint32_t stage,
                                                   const struct u4_lane &lane)
{
    enum { STEPS = 4 / G };
    const char *tile = (const char *)weights_at(w, b, stage);
    const uint64_t in = wgmma_operand(smem_address(inputs_at(w, b, stage)));
    const uint4 lo = *(const uint4 *)(tile + lane.words);
    const uint4 hi = *(const uint4 *)(tile + lane.words + 512);
    const uint32_t words[8] = {lo.x, lo.y, lo.z, lo.w, hi.x, hi.y, hi.z, hi.w};
#pragma unroll
    for (int i = 0; i < G; i++) {
        const uint32_t at = (uint32_t)i * PACK4_ROWS + lane.row;
        const uint32_t zero[2] = {u4_zero(w.u4, tile, at), u4_zero(w.u4, tile, at + 8)};
        const float s[2] = {u4_scale(w.u4, tile, at), u4_scale(w.u4, tile, at + 8)};
        uint32_t a[STEPS][4];
        float c[N / 2];
#pragma unroll
        for (int u = 0; u < STEPS; u++) {
            uint32_t rows[2];
#pragma unroll
            for (int half = 0; half < 2; half++) {
                u4_rows(words[2 * (i * STEPS + u) + half], zero, rows);
                a[u][2 * half] = rows[0];
                a[u][2 * half + 1] = rows[1];
            }
        }
        const uint64_t x = in + (uint64_t)(2 * i * STEPS);
        wgmma_fence();
        wgmma_e4m3_start(c, a[0], x);
#pragma unroll
        for (int u = 1; u < STEPS; u++) wgmma_e4m3_add(c, a[u], x + 2 * (uint64_t)u);
        wgmma_commit();
        float2 scale[N / 8]; /* of rows 8 j + 2 t and the next */
#pragma unroll
        for (int j = 0; j < N / 8; j++) {
            scale[j] = *(const float2 *)&b.s->in_scale[stage][8 * j + lane.pair];
        }
        wgmma_wait(c);
        if (i == G - 1) release(b, stage);
#pragma unroll
        for (int j = 0; j < N / 2; j++) {
            const float of_row = j % 2 ? scale[j / 4].y : scale[j / 4].x;
            k_part[j] = fmaf(c[j], s[j / 2 % 2] * of_row, k_part[j]);
        }
    }
}

/* The same of the experts' weights, whose codes are multiplied as they are stored: a group's zero
 * times the sum of its inputs is taken off while the products are under way. */
template <int N, int G>
static __device__ __forceinline__ void
add_stored_line(float (&k_part)[N / 2], const struct few_work &w, const struct few_block<N, G> &b,
                uint32_t stage, const struct u4_lane &lane)
{
    enum { STEPS = 4 / G };
    const char *tile = (const char *)weights_at(w, b, stage);
    const uint64_t in = u4_inputs_of(w, lane, stage);
    const uint4 lo = *(const uint4 *)(tile + lane.words);
    const uint4 hi = *(const uint4 *)(tile + lane.words + 512);
    const uint32_t words[8] = {lo.x, lo.y, lo.z, lo.w, hi.x, hi.y, hi.z, hi.w};
    struct u4_stored of[G][2];
#pragma unroll
    for (int i = 0; i < G; i++) {
        const uint32_t at = (uint32_t)i * PACK4_ROWS + lane.row;
        of[i][0] = u4_stored_of(w.u4, tile, at);
        of[i][1] = u4_stored_of(w.u4, tile, at + 8);
    }
    float4 pair[N / 8]; /* of rows 8 j + 2 t and the next: scale and sum */
    constexpr bool early = N <= 16 && G == 1;
#pragma unroll
    for (int j = 0; j < N / 8 && early; j++)
        pair[j] = *(const float4 *)&pairs_of(w, b, stage)[8 * j + lane.pair];
    async_proxy_fence();
#pragma unroll
    for (int i = 0; i < G; i++) {
        uint32_t a[STEPS][4];
        float c[N / 2];
#pragma unroll
        for (int u = 0; u < STEPS; u++) {
            uint32_t rows[2];
#pragma unroll
            for (int half = 0; half < 2; half++) {
                u4_rows_stored(words[2 * (i * STEPS + u) + half], rows);
                a[u][2 * half] = rows[0];
                a[u][2 * half + 1] = rows[1];
            }
        }
        wgmma_fence();
        u4_start_stored<STEPS>(c, a, in + (uint64_t)(2 * i * STEPS));
        wgmma_commit();
#pragma unroll
        for (int j = 0; j < N / 8; j++) {
            const uint32_t row = (uint32_t)(i * N + 8 * j) + lane.pair;
            if (!early) pair[j] = *(const float4 *)&pairs_of(w, b, stage)[row];
#pragma unroll
            for (int k = 0; k < 4; k++) {
                float &sum = k_part[4 * j + k];
                sum = u4_add_zero(sum, of[i][k / 2], k % 2 ? pair[j].w : pair[j].y);
            }
        }
        wgmma_wait(c);
        if (i == G - 1) release(b, stage);
#pragma unroll
        for (int j = 0; j < N / 2; j++) {
            const float of_row = j % 2 ? pair[j / 4].z : pair[j / 4].x;
            k_part[j] = u4_add_codes(k_part[j], of[i][j / 2 % 2], c[j], of_row);
        }
    }
}

/* sum += a K line of E2M1 */
template <int N, bool MAPPED, int G>
static __device__ __forceinline__ void add_e2m1_line(float (&sum)[N / 2], const struct few_work &w,
                                                     const struct few_block<N, G> &b,
                                                     uint32_t stage, const struct u4_lane &lane)
{
    enum { HALF = N * K_LINE_BYTES / PIECE_BYTES };
    const char *tile = (const char *)weights_at(w, b, stage);
    const uint64_t in = wgmma_operand(smem_address(inputs_at(w, b, stage)));
    struct e2m1_step a[E2M1_STEPS / 2][2];
    e2m1_line<(int)groups_of<G>()>(tile, lane.e2m1, a);
    if (MAPPED) async_proxy_fence();
    wgmma_fence();
#pragma unroll
    for (uint32_t i = 0; i < E2M1_STEPS; i++)
        wgmma_bf16_add(sum, a[i / 2][i % 2].v, in + (i / 4 * HALF + i % 4 * 2));
    wgmma_commit();
    wgmma_wait(sum);
    release(b, stage);
}

/* sum += a K line of BF16: 64 values */
template <int N, bool MAPPED>
static __device__ __forceinline__ void add_bf16_line(float (&sum)[N / 2], const struct few_work &w,
                                                     const struct few_block<N, FEW_BF16> &b,
                                                     uint32_t stage)
{
    const uint64_t weight = wgmma_operand(smem_address(weights_at(w, b, stage)));
    const uint64_t in = wgmma_operand(smem_address(inputs_at(w, b, stage)));
    if (MAPPED) async_proxy_fence();
    wgmma_fence();
#pragma unroll
    for (uint64_t i = 0; i < K_LINE_BYTES / 16; i += 2) wgmma_bf16_add(sum, weight + i, in + i);
    wgmma_commit();
    wgmma_wait(sum);
    release(b, stage);
}

/* ---- U4 weights that are turned ahead ---- */

/* Those of plain products come before the inputs do. */
template <int N, bool MAPPED, int PARTS, int G>
static __host__ __device__ constexpr bool can_turn(void)
{
    return G > 0 && N <= 16 && PARTS == 1 && !MAPPED;
}

/* Makes E4M3 codes of all of a block's weights, which arrive before its inputs do. */
template <int N, int G>
static __device__ __forceinline__ void turn_weights(const struct few_work &w,
                                                    const struct few_block<N, G> &b)
{
    for (uint32_t i = 0; i < w.n_k_line / w.cluster_size; i++) {
        wait_phase(&b.s->packed[i], 0);
        u4_turn_in_place<G>(w.u4, weights_at(w, b, i));
    }
    async_proxy_fence();
    __syncwarp();
    if (threadIdx.x % WARP == 0) mbarrier_arrive(smem_address(&b.s->turned));
    wait_phase(&b.s->turned, 0);
}

/* k_part += a K line of them */
template <int N, int G>
static __device__ __forceinline__ void
add_turned_line(float (&k_part)[N / 2], const struct few_work &w, const struct few_block<N, G> &b,
                uint32_t stage, const struct u4_lane &lane)
{
    enum { STEPS = 4 / G };
    const char *tile = u4_turned_tile(weights_at(w, b, stage));
    const uint64_t weight = wgmma_operand(smem_address(weights_at(w, b, stage)));
    const uint64_t in = wgmma_operand(smem_address(inputs_at(w, b, stage)));
#pragma unroll
    for (int i = 0; i < G; i++) {
        const uint32_t at = (uint32_t)i * PACK4_ROWS + lane.row;
        const float s[2] = {u4_scale(w.u4, tile, at), u4_scale(w.u4, tile, at + 8)};
        float c[N / 2];
        wgmma_fence();
        wgmma_e4m3_start(c, weight + 2 * i * STEPS, in + 2 * i * STEPS);
#pragma unroll
        for (int u = 1; u < STEPS; u++)
            wgmma_e4m3_add(c, weight + 2 * (i * STEPS + u), in + 2 * (i * STEPS + u));
        wgmma_commit();
        float2 scale[N / 8];
#pragma unroll
        for (int j = 0; j < N / 8; j++) {
            scale[j] = *(const float2 *)&b.s->in_scale[stage][8 * j + lane.pair];
        }
        wgmma_wait(c);
#pragma unroll
        for (int j = 0; j < N / 2; j++) {
            const float of_row = j % 2 ? scale[j / 4].y : scale[j / 4].x;
            k_part[j] = fmaf(c[j], s[j / 2 % 2] * of_row, k_part[j]);
        }
    }
}

/* k_part = the sum of a block's part of K */
template <int N, int G>
static __device__ __forceinline__ void
sum_turned_part(float (&k_part)[N / 2], const struct few_work &w, const struct few_block<N, G> &b,
                const struct u4_lane &lane)
{
#pragma unroll
    for (int j = 0; j < N / 2; j++) k_part[j] = 0;
    for (uint32_t i = 0; i < w.k_part_lines; i++) {
        wait_phase(&b.s->full[i], 0);
        add_turned_line<N, G>(k_part, w, b, i, lane);
    }
}

/* sum += the next n K lines */
template <int N, bool MAPPED, int G>
static __device__ __forceinline__ void
    add_k_lines(typename few_sum<G>::type (&sum)[N / 2], uint32_t n, const struct few_work &w,
                const struct few_block<N, G> &b, const struct u4_lane &lane, struct few_ring &at)
{
    for (uint32_t i = 0; i < n; i++, advance(at, w.n_stage)) {
        wait_phase(&b.s->full[at.stage], at.parity);
        if constexpr (is_e2m1<G>()) {
            add_e2m1_line<N, MAPPED, G>(sum, w, b, at.stage, lane);
        } else if constexpr (G == FEW_BF16) {
            add_bf16_line<N, MAPPED>(sum, w, b, at.stage);
        } else if constexpr (G <= 0) {
            add_k_line<N, MAPPED, G>(sum, w, b, at.stage);
        } else if constexpr (MAPPED) {
            add_stored_line<N, G>(sum, w, b, at.stage, lane);
        } else {
            add_u4_line<N, G>(sum, w, b, at.stage, lane);
        }
    }
}

/* k_part = the sum of a block's part of K */
template <int N, bool MAPPED, int G>
static __device__ __forceinline__ void
    sum_k_part(typename few_sum<G>::type (&k_part)[N / 2], const struct few_work &w,
               const struct few_block<N, G> &b, const struct u4_lane &lane, struct few_ring &at)
{
#pragma unroll
    for (int j = 0; j < N / 2; j++) k_part[j] = 0;
    add_k_lines<N, MAPPED, G>(k_part, w.k_part_lines, w, b, lane, at);
}

/* ---- sums that go from one block to the next ---- */

/* A thread's values of what block `block` hands on, CONSUMERS apart, and its warp's flag: 1 when
 * they are there, 0 again when they are taken. */
template <int N>
static __device__ __forceinline__ float *handed_at(const struct few_work &w, uint32_t block)
{
    return w.a.handed.sums + (size_t)block * CONSUMERS * (N / 2) + threadIdx.x;
}

static __device__ __forceinline__ uint32_t *handed_flag(const struct few_work &w, uint32_t block)
{
    return &w.a.handed.flags[block * CONSUMER_WARPS + threadIdx.x / WARP];
}

template <int N, typename SUM>
static __device__ __forceinline__ void hand_on(const struct few_work &w, const SUM (&sum)[N / 2])
{
    float *to = handed_at<N>(w, blockIdx.x);
#pragma unroll
    for (int j = 0; j < N / 2; j++) to[j * CONSUMERS] = sum_bits(sum[j]);
    __syncwarp();
    if (threadIdx.x % WARP == 0) grid_store_release(handed_flag(w, blockIdx.x), 1);
}

/* What the block in front has handed on. */
template <int N, typename SUM>
static __device__ __forceinline__ void take_over(const struct few_work &w, SUM (&sum)[N / 2])
{
    DCHECK(blockIdx.x > 0);
    const volatile float *from = handed_at<N>(w, blockIdx.x - 1);
    uint32_t *flag = handed_flag(w, blockIdx.x - 1);
    while (!warp_ballot(grid_load_acquire(flag))) continue;
    __syncwarp();
    if (threadIdx.x % WARP == 0) *flag = 0;
#pragma unroll
    for (int j = 0; j < N / 2; j++) take_bits(sum[j], from[j * CONSUMERS]);
}

/* total = the sum of a run's K lines: of one part as it is; more are added to zero one after the
 * other. If the run does not begin with the tile, to what the block in front has of it. */
template <int N, bool MAPPED, bool CUT, int G>
static __device__ __forceinline__ void sum_run(typename few_sum<G>::type (&total)[N / 2],
                                               const struct few_run &r, const struct few_work &w,
                                               const struct few_block<N, G> &b,
                                               const struct u4_lane &lane, struct few_ring &at)
{
    const bool one = w.n_k_part == 1;
    uint32_t k = CUT ? warp_uniform(r.k_begin) : 0;
    const uint32_t end = CUT ? warp_uniform(r.k_end) : w.n_k_line;
    if (k) {
        take_over<N>(w, total);
    } else {
#pragma unroll
        for (int j = 0; j < N / 2; j++) total[j] = 0;
    }
    if (one || !k) {
        const uint32_t n = one ? end - k : w.k_part_lines;
        add_k_lines<N, MAPPED, G>(total, n, w, b, lane, at);
        if (one) return;
#pragma unroll
        for (int j = 0; j < N / 2; j++) total[j] += 0;
        k += n;
    }
    for (; k < end; k += w.k_part_lines) {
        typename few_sum<G>::type k_part[N / 2];
        sum_k_part<N, MAPPED, G>(k_part, w, b, lane, at);
#pragma unroll
        for (int j = 0; j < N / 2; j++) total[j] += k_part[j];
    }
}

/* FEW_INT8_ROW: scales of the inputs of rows 8 j + 2 t and the next, and of a lane's two outputs;
 * E2M1: of its tile. A tile of a short K is over before they are there, so they are requested ahead
 * of its sums. */
template <int N> struct few_scales {
    float2 in[N / 8];
    float out[2];
};

template <int G>
static __device__ __forceinline__ float2 pair_scales(const struct few_work &w,
                                                     const struct product_rows &rows, int j)
{
    if (G != FEW_INT8_ROW) return make_float2(0.0f, 0.0f);
    const int row = 8 * j + 2 * ((int)threadIdx.x % 4), last = rows.n - 1;
    return make_float2(w.a.q_scale[(size_t)in_row(w.a, rows, min(row, last)) * w.n_k_line],
                       w.a.q_scale[(size_t)in_row(w.a, rows, min(row + 1, last)) * w.n_k_line]);
}

template <int G>
static __device__ __forceinline__ float
column_scale(const struct few_work &w, const struct product_rows &rows, uint32_t column)
{
    const uint32_t n = min(column, w.a.n - 1);
    if (is_e2m1<G>()) return rows.w_scale[n / PACK4_ROWS] * e2m1_factor<groups_of<G>()>();
    return G == FEW_INT8_ROW ? rows.row_scale[n] : 0.0f;
}

/* The first of a lane's outputs of a tile; the second is 8 on. */
static __device__ __forceinline__ uint32_t lane_column(uint32_t column0)
{
    return column0 + threadIdx.x / WARP * 16 + threadIdx.x % WARP / 4;
}

/* An output of a sum of values, of codes */
template <int G>
static __device__ __forceinline__ float finished(const struct product_rows &rows, uint32_t column,
                                                 float sum, float, float out_scale)
{
    return is_e2m1<G>() ? sum * out_scale : row_scaled(rows, column, sum);
}

template <int G>
static __device__ __forceinline__ float finished(const struct product_rows &, uint32_t, int sum,
                                                 float in_scale, float out_scale)
{
    return int8_value(sum, in_scale, out_scale);
}

/* The outputs of row `row` of a tile, bf16 where it is ROUNDED and there is out_h, else f32; NULL:
 * there is no such row. */
template <bool ROUNDED>
static __device__ __forceinline__ char *outputs_of(const struct few_work &w,
                                                   const struct product_rows &rows, int row)
{
    if (row >= rows.n) return NULL;
    const size_t at = (size_t)out_row(rows, row) * w.a.out_stride;
    return ROUNDED && w.a.out_h ? (char *)(w.a.out_h + at) : (char *)(w.a.out + at);
}

/* Those of a lane's rows 2 t and the next of 8, kept for a run: its tiles may be as short as two K
 * lines. More rows take registers that sums need. */
template <int N> struct few_outputs {
    enum { KEPT = N == 8 };
    char *row[2];
};

template <bool ROUNDED, int N>
static __device__ __forceinline__ void
outputs_keep(struct few_outputs<N> &o, const struct few_work &w, const struct product_rows &rows)
{
    const int first = 2 * ((int)threadIdx.x % 4);
    for (int i = 0; i < 2 && few_outputs<N>::KEPT; i++)
        o.row[i] = outputs_of<ROUNDED>(w, rows, first + i);
}

/* Output `column` of two rows. */
template <int G, typename SUM>
static __device__ __forceinline__ void
store_pair(const struct few_work &w, const struct product_rows &rows, char *to0, char *to1,
           uint32_t column, SUM sum0, SUM sum1, const float2 &in_scale, float out_scale)
{
    if (column >= w.a.n) return;
    const float x = finished<G>(rows, column, sum0, in_scale.x, out_scale);
    const float y = finished<G>(rows, column, sum1, in_scale.y, out_scale);
    if (to0) ((float *)to0)[column] = x;
    if (to1) ((float *)to1)[column] = y;
}

/* The same rounded: a lane of an even column stores its own and the next of the first row, one of
 * an odd column those of the second. */
template <int G, typename SUM>
static __device__ __forceinline__ void
store_rounded(const struct few_work &w, const struct product_rows &rows, char *to0, char *to1,
              uint32_t column, SUM sum0, SUM sum1, const float2 &in_scale, float out_scale)
{
    const bool odd = column % 2;
    const uint32_t known = min(column, w.a.n - 1);
    const float x = finished<G>(rows, known, sum0, in_scale.x, out_scale);
    const float y = finished<G>(rows, known, sum1, in_scale.y, out_scale);
    const float other = shfl_xor(odd ? x : y, 4); /* lanes of a column are four neighbours */
    char *const to = odd ? to1 : to0;
    if (to && column < w.a.n)
        ((uint32_t *)to)[column / 2] = odd ? pack_bf16(other, y) : pack_bf16(x, other);
}

/* Where a tile's sums lie in buffer `part`: of all K parts, this block's eighths. */
template <int PARTS, int N, int G>
static __device__ __forceinline__ float2 *sums_at(const struct few_work &w,
                                                  const struct few_block<N, G> &b, uint32_t part)
{
    DCHECK(part < w.n_part && w.n_k_part == w.cluster_size * PARTS);
    return b.parts[part * PARTS].sum;
}

/* Sends the sums of the block's i-th K part to the blocks that add them up: eighth u to block
 * u / (eighths of a block). */
template <int PARTS, int N, int G>
static __device__ __forceinline__ void
send_k_part(const struct few_work &w, const struct few_block<N, G> &b, uint32_t part, uint32_t i,
            const typename few_sum<G>::type (&k_part)[N / 2])
{
    const uint32_t lane = threadIdx.x % WARP, warp = threadIdx.x / WARP,
                   mine = UNITS / w.cluster_size;
    const uint32_t ready = smem_address(&b.s->ready[part]);
    const uint32_t sums = smem_address(sums_at<PARTS>(w, b, part)),
                   first = (b.cluster_rank * PARTS + i) * mine;
#pragma unroll
    for (uint32_t half = 0; half < 2; half++) {
        const uint32_t unit = 2 * warp + half, to = unit / mine;
        const uint32_t place = (first + unit % mine) * (N / 8) * WARP + lane;
        const uint32_t at = cluster_address(sums + place * (uint32_t)sizeof(float2), to);
        const uint32_t barrier = cluster_address(ready, to);
#pragma unroll
        for (uint32_t j = 0; j < N / 8; j++) {
            cluster_store(at + j * (uint32_t)(WARP * sizeof(float2)), barrier,
                          sum_bits(k_part[4 * j + 2 * half]),
                          sum_bits(k_part[4 * j + 2 * half + 1]));
        }
    }
}

/* Adds up this block's eighths of a tile, parts in ascending order, and writes them. */
template <int PARTS, int N, int G>
static __device__ __forceinline__ void
add_k_parts(const struct few_work &w, const struct few_block<N, G> &b, uint32_t part,
            uint32_t parity, const struct product_rows &rows, uint32_t column0, float tile_scale)
{
    const uint32_t lane = threadIdx.x % WARP, mine = UNITS / w.cluster_size, pairs = mine * (N / 8);
    wait_phase<true>(&b.s->ready[part], parity);
    for (uint32_t i = threadIdx.x / WARP; i < pairs; i += CONSUMER_WARPS) {
        const float2 *from = sums_at<PARTS>(w, b, part) + i * WARP + lane;
        const uint32_t unit = b.cluster_rank * mine + i / (N / 8);
        const uint32_t column = column0 + unit * 8 + lane / 4;
        const float2 in_scale = pair_scales<G>(w, rows, (int)(i % (N / 8)));
        const float out_scale = is_e2m1<G>() ? tile_scale : column_scale<G>(w, rows, column);
        typename few_sum<G>::type x = 0, y = 0;
        for (uint32_t k_part = 0; k_part < w.cluster_size * PARTS; k_part++) {
            const float2 v = from[k_part * pairs * WARP];
            add_bits(x, v.x);
            add_bits(y, v.y);
        }
        const int row = 8 * (int)(i % (N / 8)) + 2 * ((int)lane % 4);
        store_pair<G>(w, rows, outputs_of<false>(w, rows, row), outputs_of<false>(w, rows, row + 1),
                      column, x, y, in_scale, out_scale);
    }
    __syncwarp();
    if (lane == 0) mbarrier_arrive(smem_address(&b.s->read));
}

template <bool ROUNDED, int N, int G>
static __device__ __forceinline__ void
store_tile(const struct few_work &w, const struct product_rows &rows,
           const struct few_outputs<N> &o, uint32_t column0,
           const typename few_sum<G>::type (&sum)[N / 2], const struct few_scales<N> &s)
{
    const uint32_t column = lane_column(column0);
#pragma unroll
    for (int j = 0; j < N / 8; j++) {
        const int row = 8 * j + 2 * ((int)threadIdx.x % 4);
        char *to0 = few_outputs<N>::KEPT ? o.row[0] : outputs_of<ROUNDED>(w, rows, row);
        char *to1 = few_outputs<N>::KEPT ? o.row[1] : outputs_of<ROUNDED>(w, rows, row + 1);
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const auto sum0 = sum[4 * j + 2 * half], sum1 = sum[4 * j + 2 * half + 1];
            if (ROUNDED && w.a.out_h) {
                store_rounded<G>(w, rows, to0, to1, column + 8 * half, sum0, sum1, s.in[j],
                                 s.out[half]);
            } else {
                store_pair<G>(w, rows, to0, to1, column + 8 * half, sum0, sum1, s.in[j],
                              s.out[half]);
            }
        }
    }
}

template <int N, bool MAPPED, int PARTS, int G>
static __device__ __forceinline__ void consume(const struct few_work &w,
                                               const struct few_block<N, G> &b)
{
    constexpr bool SPLIT = PARTS > 0, CUT = MAPPED && !SPLIT && may_cut<G>();
    struct few_walk walk = walk_of<MAPPED, CUT>(w, MAPPED ? (uint32_t)*w.a.n_task : w.n_row_tile);
    struct few_run r;
    const struct u4_lane lane = u4_lane_of(w, b);
    struct few_ring at = {0, 0};
    uint32_t n_item = 0; /* items so far */
    while (walk_on<MAPPED, CUT>(w, walk, b.cluster_rank, r)) {
        struct product_rows rows = product_rows_of(w.a, r.row_tile, N);
        if (is_packed<G>()) rows.row_scale = NULL; /* they have none, and tiles may be short */
        struct few_scales<N> scales;
        struct few_outputs<N> outputs;
        if (!SPLIT) outputs_keep<MAPPED>(outputs, w, rows);
#pragma unroll
        for (int j = 0; j < N / 8 && !SPLIT; j++) scales.in[j] = pair_scales<G>(w, rows, j);
        for (uint32_t col = r.col; col < r.col_end; col++, n_item++) {
            typename few_sum<G>::type sum[N / 2];
            if constexpr (SPLIT) {
                const float scale = is_e2m1<G>() ? column_scale<G>(w, rows, col * BM) : 0.0f;
                if (threadIdx.x == 0) {
                    mbarrier_arrive_expect(smem_address(&b.s->ready[n_item % 2]),
                                           PARTS * (uint32_t)sizeof(struct few_parts<N>));
                }
#pragma unroll 1
                for (uint32_t i = 0; i < PARTS; i++) {
                    if constexpr (can_turn<N, MAPPED, PARTS, G>()) {
                        if (w.turns)
                            sum_turned_part<N, G>(sum, w, b, lane);
                        else
                            sum_k_part<N, MAPPED, G>(sum, w, b, lane, at);
                    } else {
                        sum_k_part<N, MAPPED, G>(sum, w, b, lane, at);
                    }
                    if (n_item && i == 0) wait_phase(&b.s->read, (n_item - 1) % 2);
                    send_k_part<PARTS>(w, b, n_item % 2, i, sum);
                }
                add_k_parts<PARTS>(w, b, n_item % 2, n_item / 2 % 2, rows, col * BM, scale);
            } else {
                scales.out[0] = column_scale<G>(w, rows, lane_column(col * BM));
                scales.out[1] = column_scale<G>(w, rows, lane_column(col * BM) + 8);
                sum_run<N, MAPPED, CUT, G>(sum, r, w, b, lane, at);
                if (CUT && r.k_end < w.n_k_line) {
                    hand_on<N>(w, sum);
                } else {
                    store_tile<MAPPED, N, G>(w, rows, outputs, col * BM, sum, scales);
                }
            }
        }
    }
}

/* Blocks of a multiprocessor that registers leave room for: k_line, k_part and, where a block makes
 * all parts, total take N / 2 a thread each. */
template <int N, bool SPLIT, int G> constexpr uint32_t blocks_max(void)
{
    if (is_e2m1<G>()) return (N <= 16 ? 4 : N == 32 ? 3 : 2) + SPLIT; /* weights of a K line */
    if (G > 0 && N == 8) return SPLIT ? 6 : 4; /* codes of weights; rings hold no more blocks */
    if (G > 0 && N == 16) return SPLIT ? 5 : 4;
    if (G > 0 && N == 32) return 3;
    if (G > 0 && N == 64) return SPLIT && G == 1 ? 3 : 2;
    return N == 8 && SPLIT ? 8 : N <= 16 ? 6 : N == 32 ? (SPLIT ? 5 : 4) : (SPLIT ? 3 : 2);
}

/* PARTS: K parts of a tile that a block of a cluster makes; 0: there are no clusters, and a block
 * makes all of them. */
template <int N, bool MAPPED, int PARTS, int G>
__global__ void __launch_bounds__(THREADS, blocks_max<N, (PARTS > 0), G>())
    product_few_kernel(const __grid_constant__ struct few_work w)
{
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
    constexpr bool SPLIT = PARTS > 0;
    SHARED_DYNAMIC(unsigned char, shared);
    struct few_block<N, G> b;
    b.s = (struct few_shared<N> *)shared;
    b.parts = (struct few_parts<N> *)(b.s + 1);
    b.stages = (uint8_t *)(b.parts + w.n_part * (PARTS > 1 ? PARTS : 1));
    b.cluster_rank = SPLIT ? cluster_rank() : 0;
    if (threadIdx.x == CONSUMERS) {
        if (!MAPPED) tensor_map_prefetch(&w.in_map);
        for (uint32_t i = 0; i < w.n_stage; i++) {
            mbarrier_init(smem_address(&b.s->full[i]), 1 + WARP);
            mbarrier_init(smem_address(&b.s->empty[i]), CONSUMER_WARPS);
            if (can_turn<N, MAPPED, PARTS, G>()) mbarrier_init(smem_address(&b.s->packed[i]), 1);
        }
        mbarrier_init(smem_address(&b.s->turned), CONSUMER_WARPS);
        for (int i = 0; i < 2; i++) {
            mbarrier_init(smem_address(&b.s->ready[i]), 1);
        }
        mbarrier_init(smem_address(&b.s->read), CONSUMER_WARPS);
        mbarrier_init_fence();
        async_proxy_fence();
    }
    __syncthreads();
    if (SPLIT) cluster_arrive_relaxed();
    if (!MAPPED) dependency_release();
    if (threadIdx.x >= CONSUMERS) {
        produce<N, MAPPED, G>(w, b);
        if (SPLIT) cluster_wait();
    } else {
        if constexpr (can_turn<N, MAPPED, PARTS, G>()) {
            if (w.turns) turn_weights<N, G>(w, b);
        }
        dependency_wait();
        if (MAPPED) dependency_release(); /* launch.cuh */
        if (SPLIT) cluster_wait();        /* every block's barriers are there */
        consume<N, MAPPED, PARTS, G>(w, b);
    }
#endif
}

#endif
