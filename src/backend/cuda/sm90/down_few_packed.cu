/* down_few_packed.cu - down_few.cu's work with packed weights, U4 and E2M1
 *
 * They take half of the room, so there is no ring: all of them are requested at once. To make
 * operands of them is more work than four warps can do in time, so three warpgroups make the sums
 * of every third row each and leave them in shared memory, where they are added up in the end.
 *
 * Inputs of U4 are codes, a K line in an operand of 8 columns, of which the token is the first.
 * Those of E2M1 are bf16, and rows of the token take turns in the columns of an operand, since a
 * row's sum is looked at in its own column alone. */
#include "backend/cuda/e2m1.cuh"
#include "backend/cuda/sm90/down_few_work.cuh"

enum {
    GROUPS = 3,         /* warpgroups */
    U4_LINE_GROUPS = 2, /* of a K line, at most */
    PACKED_WARPS = GROUPS * CONSUMER_WARPS,
    PACKED_THREADS = (PACKED_WARPS + 1) * WARP,
    E2M1_LINE_BYTES = 2 * COLS * K_LINE_BYTES, /* inputs of a K line, of COLS rows: two atoms */
};
static_assert(PACK4_CODE_BYTES + 2 * PACK4_ROWS * 5 + IN_BYTES + BM * 4 <=
                  (BYTES_MAX - 2048) / DOWN_K_LINES_MAX,
              "shared memory of a block with U4 weights");
static_assert(PACK4_CODE_BYTES + 8 * PACK4_ROWS + E2M1_LINE_BYTES + BM * 4 <=
                  (BYTES_MAX - 2048) / DOWN_K_LINES_MAX,
              "shared memory of a block with E2M1 weights");

/* The start of a block's shared memory; inputs and packed tiles of all K lines follow. */
struct alignas(1024) down_packed_shared {
    struct down_shared s;
    float row[DOWN_K_LINES_MAX][BM];                 /* of U4 rounded */
    float in_sum[DOWN_K_LINES_MAX * U4_LINE_GROUPS]; /* of a K line of U4 the groups' */
    uint64_t summed;
};

static __device__ __forceinline__ const char *packed_at(const struct down_work &w,
                                                        const struct down_block &b, uint32_t i)
{
    return (const char *)b.s + (b.stages - smem_address(b.s)) + i * w.a.pack.tile_bytes;
}

/* The last warp's work: lane i has K line i. */
static __device__ __forceinline__ void produce(const struct down_work &w,
                                               const struct down_block &b)
{
    const uint32_t i = threadIdx.x % WARP, row = i / w.n_k_line, bytes = w.a.pack.tile_bytes;
    if (i >= w.n_all) return;
    const uint32_t full = smem_address(&b.s->full[i]);
    const char *from = (const char *)w.a.w + (size_t)expert_of_row(w, b, row) * w.a.w_stride;
    mbarrier_arrive_expect(full, bytes);
    bulk_load(b.stages + i * bytes, from + ((size_t)b.col * w.n_k_line + i % w.n_k_line) * bytes,
              bytes, full);
}

/* Products of K line i on their way, and what they are of a lane's outputs. */
template <int G> struct u4_line {
    float c[G][COLS / 2];
    struct u4_stored of[G][2];
};

template <int G>
static __device__ __forceinline__ void start_u4_line(struct u4_line<G> &x,
                                                     const struct down_work &w,
                                                     const struct down_block &b, uint32_t i)
{
    enum { STEPS = 4 / G };
    const uint32_t lane = threadIdx.x % WARP, warp = threadIdx.x / WARP % CONSUMER_WARPS;
    const char *tile = packed_at(w, b, i);
    const uint64_t in = wgmma_operand(b.inputs + i * IN_BYTES);
    wait_phase(&b.s->full[i], 0);
    const uint4 lo = *(const uint4 *)(tile + warp * 1024 + lane * 16);
    const uint4 hi = *(const uint4 *)(tile + warp * 1024 + 512 + lane * 16);
    const uint32_t words[8] = {lo.x, lo.y, lo.z, lo.w, hi.x, hi.y, hi.z, hi.w};
    uint32_t a[G][STEPS][4];
#pragma unroll
    for (int g = 0; g < G; g++) {
#pragma unroll
        for (int v = 0; v < 2 * STEPS; v++) {
            uint32_t rows[2];
            u4_rows_stored(words[2 * g * STEPS + v], rows);
            a[g][v / 2][v % 2 * 2] = rows[0];
            a[g][v / 2][v % 2 * 2 + 1] = rows[1];
        }
    }
    wgmma_fence();
#pragma unroll
    for (int g = 0; g < G; g++)
        u4_start_stored<STEPS>(x.c[g], a[g], in + (uint64_t)(2 * g * STEPS));
    wgmma_commit();
#pragma unroll
    for (int g = 0; g < G; g++) {
#pragma unroll
        for (uint32_t half = 0; half < 2; half++) {
            const uint32_t at = (uint32_t)g * PACK4_ROWS + warp * 16 + lane / 4 + 8 * half;
            x.of[g][half] = u4_stored_of(w.u4, tile, at);
        }
    }
}

/* A lane's two outputs of a row. */
template <int G>
static __device__ __forceinline__ float2 sum_u4_row(const struct down_work &w,
                                                    const struct down_block &b, uint32_t row,
                                                    const float *in_sum)
{
    float2 sum = make_float2(0.0f, 0.0f), part = sum;
    const bool only = w.k_part_lines == w.n_k_line;
    uint32_t n = 0;
    for (uint32_t i = row * w.n_k_line; i < (row + 1) * w.n_k_line; i++) {
        struct u4_line<G> x;
        start_u4_line<G>(x, w, b, i);
        const float in_scale = b.s->in_scale[i];
#pragma unroll
        for (int g = 0; g < G; g++) wgmma_wait(x.c[g]);
#pragma unroll
        for (int g = 0; g < G; g++) {
            const float inputs = in_sum[i * G + g];
            part.x = u4_add_zero(part.x, x.of[g][0], inputs);
            part.y = u4_add_zero(part.y, x.of[g][1], inputs);
            part.x = u4_add_codes(part.x, x.of[g][0], x.c[g][0], in_scale);
            part.y = u4_add_codes(part.y, x.of[g][1], x.c[g][2], in_scale);
        }
        if (++n < w.k_part_lines) continue;
        sum.x = only ? part.x : sum.x + part.x;
        sum.y = only ? part.y : sum.y + part.y;
        part = make_float2(0.0f, 0.0f);
        n = 0;
    }
    return sum;
}

/* What is left of both when a warp has left its sums of rows; lane r knows the weight of row r. */
static __device__ __forceinline__ void add_rows(const struct down_work &w,
                                                const struct down_block &b,
                                                struct down_packed_shared *s, float weight)
{
    __syncwarp();
    if (threadIdx.x % WARP == 0) mbarrier_arrive(smem_address(&s->summed));
    if (threadIdx.x >= BM) return;
    wait_phase(&s->summed, 0);
    float all = 0.0f;
    for (uint32_t r = 0; r < w.a.rows_per_token; r++)
        all = fmaf(shfl(weight, (int)r), s->row[r][threadIdx.x], all);
    const uint32_t column = b.col * BM + threadIdx.x;
    if (column >= w.a.n) return;
    const size_t at = (size_t)b.token * w.a.n + column;
    w.a.y[at] = w.a.shared ? all + w.a.shared[at] : all;
}

/* Inputs of all rows, by all warps. */
template <typename STORE>
static __device__ __forceinline__ void make_inputs(const struct down_work &w,
                                                   const struct down_block &b, const STORE &store)
{
    make_lines<PACKED_WARPS>(w, b, store);
    async_proxy_fence();
    __syncwarp();
    if (threadIdx.x % WARP == 0) mbarrier_arrive(smem_address(&b.s->made));
    wait_phase(&b.s->made, 0);
}

template <int G>
static __device__ __forceinline__ void
consume_u4(const struct down_work &w, const struct down_block &b, struct down_packed_shared *s)
{
    const uint32_t lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
    const float weight = weight_of_row(w, b, lane);
    dependency_wait();
    make_inputs(w, b, [&](uint32_t i, const float4 &v) {
        float scale;
        const float sum = codes_sum(store_fp8(b, i, v, &scale));
        const float of_group = input_sum(sum, WARP / G, scale);
        if (lane % (WARP / G) == 0) s->in_sum[i * G + lane / (WARP / G)] = of_group;
    });
    for (uint32_t r = warp / CONSUMER_WARPS; r < w.a.rows_per_token; r += GROUPS) {
        const float2 sum = sum_u4_row<G>(w, b, r, s->in_sum);
        float *to = s->row[r] + warp % CONSUMER_WARPS * 16 + lane / 4;
        if (lane % 4) continue;
        to[0] = to_bf16_and_back(sum.x);
        to[8] = to_bf16_and_back(sum.y);
    }
    add_rows(w, b, s, weight);
}

/* Where the two atoms of inputs lie that have K line `k_line` of `row` in column row % COLS. */
static __device__ __forceinline__ uint32_t values_at(const struct down_work &w,
                                                     const struct down_block &b, uint32_t row,
                                                     uint32_t k_line)
{
    return b.inputs + (row / COLS * w.n_k_line + k_line) * E2M1_LINE_BYTES;
}

/* A lane's four values of K line i as bf16. */
static __device__ __forceinline__ void
store_values(const struct down_work &w, const struct down_block &b, uint32_t i, const float4 &v)
{
    const uint32_t lane = threadIdx.x % WARP, row = i / w.n_k_line, column = row % COLS;
    const uint32_t place = (lane % 16 / 2 ^ column) * 16 + lane % 2 * 8;
    const uint32_t at = values_at(w, b, row, i % w.n_k_line) - smem_address(b.s) +
                        lane / 16 * (COLS * K_LINE_BYTES) + column * K_LINE_BYTES + place;
    *(uint2 *)((uint8_t *)b.s + at) = make_uint2(pack_bf16(v.x, v.y), pack_bf16(v.z, v.w));
}

/* c += the products of K line `k_line` of a row. G: groups of a K line. */
template <int G>
static __device__ __forceinline__ void
add_e2m1_line(float (&c)[COLS / 2], const struct down_work &w, const struct down_block &b,
              uint32_t row, uint32_t k_line)
{
    enum { ATOM = COLS * K_LINE_BYTES / 16 };
    const uint32_t lane = threadIdx.x % WARP, warp = threadIdx.x / WARP % CONSUMER_WARPS;
    const uint32_t i = row * w.n_k_line + k_line;
    const char *tile = packed_at(w, b, i);
    const uint64_t in = wgmma_operand(values_at(w, b, row, k_line));
    wait_phase(&b.s->full[i], 0);
    struct e2m1_step a[E2M1_STEPS / 2][2];
    e2m1_line<G>(tile, e2m1_lane_of<G>(warp, lane), a);
    wgmma_fence();
#pragma unroll
    for (uint32_t u = 0; u < E2M1_STEPS; u++)
        wgmma_bf16_add(c, a[u / 2][u % 2].v, in + (u / 4 * ATOM + u % 4 * 2));
    wgmma_commit();
    wgmma_wait(c);
}

/* Two outputs of a row, in the lanes that have its column. */
template <int G>
static __device__ __forceinline__ float2 sum_e2m1_row(const struct down_work &w,
                                                      const struct down_block &b, uint32_t row)
{
    float2 sum = make_float2(0.0f, 0.0f);
    for (uint32_t k_line = 0; k_line < w.n_k_line;) {
        float c[COLS / 2] = {};
        for (uint32_t end = k_line + w.k_part_lines; k_line < end; k_line++)
            add_e2m1_line<G>(c, w, b, row, k_line);
        sum.x += row % 2 ? c[1] : c[0];
        sum.y += row % 2 ? c[3] : c[2];
    }
    return sum;
}

template <int G>
static __device__ __forceinline__ void
consume_e2m1(const struct down_work &w, const struct down_block &b, struct down_packed_shared *s)
{
    const uint32_t lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
    const float weight = weight_of_row(w, b, lane);
    const size_t expert = (size_t)expert_of_row(w, b, lane);
    const float scale = w.a.w_scale[expert * w.a.w_scale_step + b.col] * e2m1_factor<G>();
    dependency_wait();
    make_inputs(w, b, [&](uint32_t i, const float4 &v) { store_values(w, b, i, v); });
    for (uint32_t r = warp / CONSUMER_WARPS; r < w.a.rows_per_token; r += GROUPS) {
        const float2 sum = sum_e2m1_row<G>(w, b, r);
        const float of_row = shfl(scale, (int)r);
        float *to = s->row[r] + warp % CONSUMER_WARPS * 16 + lane / 4;
        if (lane % 4 != r % COLS / 2) continue;
        to[0] = to_bf16_and_back(sum.x * of_row);
        to[8] = to_bf16_and_back(sum.y * of_row);
    }
    add_rows(w, b, s, weight);
}

/* G: groups of a K line. */
template <bool E2M1, int G>
__global__ void __launch_bounds__(PACKED_THREADS, 2)
    down_few_packed_kernel(const __grid_constant__ struct down_work w)
{
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
    SHARED_DYNAMIC(unsigned char, shared);
    struct down_packed_shared *s = (struct down_packed_shared *)shared;
    struct down_block b;
    b.s = &s->s;
    b.inputs = smem_address(s + 1);
    b.stages = b.inputs + w.in_bytes;
    b.token = blockIdx.x;
    b.col = blockIdx.y;
    if (threadIdx.x == PACKED_WARPS * WARP) {
        for (uint32_t i = 0; i < w.n_all; i++) mbarrier_init(smem_address(&b.s->full[i]), 1);
        mbarrier_init(smem_address(&b.s->made), PACKED_WARPS);
        mbarrier_init(smem_address(&s->summed), PACKED_WARPS);
        mbarrier_init_fence();
        async_proxy_fence();
    }
    __syncthreads();
    dependency_release();
    if (threadIdx.x >= PACKED_WARPS * WARP) {
        produce(w, b);
    } else if constexpr (E2M1) {
        consume_e2m1<G>(w, b, s);
    } else {
        consume_u4<G>(w, b, s);
    }
#endif
}

/* ---- the host ---- */

static down_kernel packed_kernel_for(bool is_e2m1, uint32_t n_group)
{
    if (is_e2m1)
        return n_group == 8 ? down_few_packed_kernel<true, 8> : down_few_packed_kernel<true, 4>;
    return n_group == 2 ? down_few_packed_kernel<false, 2> : down_few_packed_kernel<false, 1>;
}

/* Of inputs of packed weights. */
static uint32_t packed_in_bytes(const struct down_work &w)
{
    if (!w.a.pack.is_e2m1) return w.n_all * IN_BYTES;
    return ceil_div(w.a.rows_per_token, COLS) * w.n_k_line * E2M1_LINE_BYTES;
}

static cudaError_t init_packed(bool is_e2m1, uint32_t n_group)
{
    return raise_shared(packed_kernel_for(is_e2m1, n_group), BYTES_MAX);
}

cudaError_t down_few_packed_init(void)
{
    for (uint32_t n_group : {1, 2, 4, 8}) {
        cudaError_t e = init_packed(n_group > U4_LINE_GROUPS, n_group);
        if (e != cudaSuccess) return e;
    }
    return cudaSuccess;
}

cudaError_t down_few_packed(struct down_work w, cudaStream_t stream)
{
    const struct pack4 &pack = w.a.pack;
    ASSERT(pack.is_e2m1 || (pack.n_group <= U4_LINE_GROUPS && !w.a.row_scale));
    ASSERT((w.a.codes == CODES_NONE) == pack.is_e2m1);
    if (!pack.is_e2m1) w.u4 = u4_form_of(pack, true);
    w.in_bytes = packed_in_bytes(w);
    const uint32_t n_byte =
        (uint32_t)sizeof(struct down_packed_shared) + w.in_bytes + w.n_all * pack.tile_bytes;
    return launch_down(packed_kernel_for(pack.is_e2m1, pack.n_group), w, PACKED_THREADS, n_byte,
                       stream);
}
