/* down_few.cu - the experts' second half for few tokens on sm_90a: SwiGLU, down, the sum of a
 * token's rows
 *
 * A token has a row for each of its experts. A block makes 64 outputs of one token: the products of
 * all its rows, K line by K line, and their weighted sum. Its last warp fetches the weights, which
 * are known long before the inputs are: the route was chosen two kernels ago, so they are requested
 * before this kernel waits for gate and up, as many K lines as the ring holds. Then the first four
 * warps make the inputs of all rows from gate and up, 128 values a warp, and multiply.
 *
 * Weights are the 64-row operand, the token is the first of the 8 columns; what the others hold is
 * never looked at. K lines, parts of K and rows are added as by kernels of their own; of int8 with
 * scales of rows a row's K lines, in integers.
 *
 * down_few_packed.cu has the kernels of packed weights.
 *
 *   empty --- weights requested; full: 2 arrivals and the bytes ---> full
 *   full ---- read by the four warps ---> empty
 *   made: the inputs are there, 4 arrivals, once */
#include "backend/cuda/sm90/down_few.cuh"

#include <type_traits>

#include "backend/cuda/generic/int8_codes.cuh"
#include "backend/cuda/sm90/down_few_work.cuh"

enum {
    THREADS = CONSUMERS + WARP,
    W_BYTES = BM * K_LINE_BYTES,
    ROWS_AHEAD = 3,    /* rows of inputs that a warp makes at a time, */
    KEPT_LINES = 2,    /* which it keeps if they are no longer */
    STAGES_ALONE = 12, /* one token: one block a multiprocessor; with more tokens, two */
    STAGES_MANY = 9,
};
static_assert(BM == CONSUMER_WARPS * 16 && (int)SCALE_BLOCK % BM == 0, "a tile has one scale");
static_assert(STAGES_ALONE <= (int)DOWN_K_LINES_MAX, "barriers of all stages");
static_assert(W_BYTES % 1024 == 0, "atoms of operands");
static_assert(sizeof(struct down_shared) + STAGES_ALONE * W_BYTES + DOWN_K_LINES_MAX * IN_BYTES <=
                  BYTES_MAX,
              "shared memory of a block");

/* ---- the warp that loads ---- */

static __device__ __forceinline__ void
load_k_line(const struct down_work &w, const struct down_block &b, uint32_t i, int expert)
{
    const uint32_t stage = i % w.n_stage, full = smem_address(&b.s->full[stage]);
    mbarrier_arrive_expect(full, W_BYTES);
    weight_load(b.stages + stage * W_BYTES, (const char *)w.a.w + (size_t)expert * w.a.w_stride,
                full, w.n_k_line, i % w.n_k_line, b.col);
}

/* Lane i has K line i. */
static __device__ __forceinline__ void produce(const struct down_work &w,
                                               const struct down_block &b)
{
    const uint32_t i = threadIdx.x % WARP, row = i / w.n_k_line;
    int expert = 0;
    if (i < w.n_all) {
        expert = expert_of_row(w, b, row);
        if (i < w.n_stage) load_k_line(w, b, i, expert);
        const float *scale = w.a.w_scale + (size_t)expert * w.a.w_scale_step;
        b.s->w_scale[i] = scale[(b.col * BM / SCALE_BLOCK) * w.a.scale_stride + i % w.n_k_line];
        if (i < w.n_stage) mbarrier_arrive(smem_address(&b.s->full[i]));
    }
    for (uint32_t at = w.n_stage; at < w.n_all; at++) {
        wait_phase(&b.s->empty[at % w.n_stage], (at / w.n_stage - 1) % 2);
        if (i == at) {
            load_k_line(w, b, i, expert);
            mbarrier_arrive(smem_address(&b.s->full[at % w.n_stage]));
        }
    }
}

/* ---- the warps that multiply ---- */

/* Every fourth row's, which has one scale. */
static __device__ __forceinline__ void make_rows(const struct down_work &w,
                                                 const struct down_block &b)
{
    const uint32_t n_row = w.a.rows_per_token;
    for (uint32_t first = threadIdx.x / WARP; first < n_row; first += ROWS_AHEAD * CONSUMER_WARPS) {
        uint32_t bits[ROWS_AHEAD] = {};
        for (uint32_t k_line = 0; k_line < w.n_k_line; k_line++) {
#pragma unroll
            for (uint32_t j = 0; j < ROWS_AHEAD; j++) {
                const uint32_t row = min(first + j * CONSUMER_WARPS, n_row - 1);
                const float *g = gate_of(w, b, row * w.n_k_line + k_line);
                const float4 v = swiglu(*(const float4 *)g, *(const float4 *)(g + w.a.k));
                bits[j] = max(bits[j], largest_bits(v));
            }
        }
#pragma unroll
        for (uint32_t j = 0; j < ROWS_AHEAD; j++) {
            const uint32_t row = first + j * CONSUMER_WARPS;
            if (row >= n_row) continue;
            const float scale = int8_scale(warp_most(bits[j]));
            for (uint32_t i = row * w.n_k_line; i < (row + 1) * w.n_k_line; i++) {
                const float *g = gate_of(w, b, i);
                store_int8(swiglu(*(const float4 *)g, *(const float4 *)(g + w.a.k)), scale,
                           input_of(b, i), &b.s->in_scale[i]);
            }
        }
    }
}

/* The same of rows of up to KEPT_LINES K lines, whose values are kept while the scale is found. */
static __device__ __forceinline__ void make_short_rows(const struct down_work &w,
                                                       const struct down_block &b)
{
    const uint32_t n_row = w.a.rows_per_token;
    for (uint32_t first = threadIdx.x / WARP; first < n_row; first += ROWS_AHEAD * CONSUMER_WARPS) {
        float4 gate[ROWS_AHEAD][KEPT_LINES] = {}, up[ROWS_AHEAD][KEPT_LINES] = {};
#pragma unroll
        for (uint32_t j = 0; j < ROWS_AHEAD; j++) {
            const uint32_t row = min(first + j * CONSUMER_WARPS, n_row - 1);
#pragma unroll
            for (uint32_t k_line = 0; k_line < KEPT_LINES; k_line++) {
                if (k_line >= w.n_k_line) continue;
                const float *g = gate_of(w, b, row * w.n_k_line + k_line);
                gate[j][k_line] = *(const float4 *)g;
                up[j][k_line] = *(const float4 *)(g + w.a.k);
            }
        }
#pragma unroll
        for (uint32_t j = 0; j < ROWS_AHEAD; j++) {
            const uint32_t row = first + j * CONSUMER_WARPS;
            if (row >= n_row) continue;
            uint32_t bits = 0;
#pragma unroll
            for (uint32_t i = 0; i < KEPT_LINES; i++) {
                gate[j][i] = swiglu(gate[j][i], up[j][i]);
                bits = max(bits, largest_bits(gate[j][i]));
            }
            const float scale = int8_scale(warp_most(bits));
#pragma unroll
            for (uint32_t i = 0; i < KEPT_LINES; i++) {
                if (i >= w.n_k_line) continue;
                const uint32_t at = row * w.n_k_line + i;
                store_int8(gate[j][i], scale, input_of(b, at), &b.s->in_scale[at]);
            }
        }
    }
}

template <enum codes CODES>
static __device__ __forceinline__ void make_inputs(const struct down_work &w,
                                                   const struct down_block &b)
{
    if (CODES == CODES_INT8_ROW && w.n_k_line <= KEPT_LINES) {
        make_short_rows(w, b);
    } else if (CODES == CODES_INT8_ROW) {
        make_rows(w, b);
    } else {
        make_lines<CONSUMER_WARPS>(w, b, [&](uint32_t i, const float4 &v) {
            float scale;
            if (CODES == CODES_INT8)
                store_int8(v, int8_scale(warp_most(largest_bits(v))), input_of(b, i),
                           &b.s->in_scale[i]);
            else
                store_fp8(b, i, v, &scale);
        });
    }
    async_proxy_fence();
    __syncwarp();
    if (threadIdx.x % WARP == 0) mbarrier_arrive(smem_address(&b.s->made));
}

/* Sums on their way: of a part of K, of a row and of all rows, for rows lane / 4 and 8 on of a
 * warp's 16. Lanes that are multiples of 4 hold the token's. */
struct down_sums {
    float2 k_part, row, all;
    int2 codes;            /* CODES_INT8_ROW: of a row */
    uint32_t k_part_lines; /* of the part so far */
    uint32_t row_k_lines;
    uint32_t i_row;
};

/* What lane r knows of row r of the token; and the first of a lane's two outputs. */
struct down_rows {
    float weight;
    int expert;
    uint32_t column;
};

/* Times the scales of the expert's rows, where weights have such. */
static __device__ __forceinline__ float2 scale_row(const struct down_work &w,
                                                   const struct down_rows &rows, uint32_t i_row,
                                                   float2 sum)
{
    if (!w.a.row_scale) return sum;
    const int expert = shfl(rows.expert, (int)i_row);
    const float *s =
        w.a.row_scale + (size_t)expert * w.a.row_scale_step + min(rows.column, w.a.n - 9);
    return make_float2(sum.x * s[0], sum.y * s[8]);
}

/* Adds a finished row. */
static __device__ __forceinline__ void add_row(struct down_sums &sum, const struct down_rows &rows,
                                               float2 row)
{
    const float of_row = shfl(rows.weight, (int)sum.i_row);
    sum.all.x = fmaf(of_row, to_bf16_and_back(row.x), sum.all.x);
    sum.all.y = fmaf(of_row, to_bf16_and_back(row.y), sum.all.y);
    sum.row_k_lines = 0;
    sum.i_row++;
}

/* Adds K line i's sum; at the ends of parts and rows, theirs. */
static __device__ __forceinline__ void add_k_line(struct down_sums &sum, const struct down_work &w,
                                                  float x, float y, float scale,
                                                  const struct down_rows &rows)
{
    sum.k_part.x = fmaf(x, scale, sum.k_part.x);
    sum.k_part.y = fmaf(y, scale, sum.k_part.y);
    sum.row_k_lines++;
    if (++sum.k_part_lines < w.k_part_lines) return;
    const bool only = w.k_part_lines == w.n_k_line;
    sum.row.x = only ? sum.k_part.x : sum.row.x + sum.k_part.x;
    sum.row.y = only ? sum.k_part.y : sum.row.y + sum.k_part.y;
    sum.k_part = make_float2(0.0f, 0.0f);
    sum.k_part_lines = 0;
    if (sum.row_k_lines < w.n_k_line) return;
    add_row(sum, rows, scale_row(w, rows, sum.i_row, sum.row));
    sum.row = make_float2(0.0f, 0.0f);
}

/* The same of int8 with scales of rows, `scale` being that of the input's row. */
static __device__ __forceinline__ void add_k_line(struct down_sums &sum, const struct down_work &w,
                                                  int x, int y, float scale,
                                                  const struct down_rows &rows)
{
    sum.codes.x += x;
    sum.codes.y += y;
    if (++sum.row_k_lines < w.n_k_line) return;
    const int expert = shfl(rows.expert, (int)sum.i_row);
    const float *s =
        w.a.row_scale + (size_t)expert * w.a.row_scale_step + min(rows.column, w.a.n - 9);
    add_row(
        sum, rows,
        make_float2(int8_value(sum.codes.x, scale, s[0]), int8_value(sum.codes.y, scale, s[8])));
    sum.codes = make_int2(0, 0);
}

/* Lines i to i + BATCH - 1, whose products are in the tensor cores at the same time. */
template <uint32_t BATCH, enum codes CODES>
static __device__ __forceinline__ void add_k_lines(struct down_sums &sum, const struct down_work &w,
                                                   const struct down_block &b, uint32_t i,
                                                   const struct down_rows &rows)
{
    uint64_t a_at[BATCH];
    DCHECK(i + BATCH <= w.n_all);
    const uint64_t in_at = wgmma_operand(b.inputs + i * IN_BYTES);
    typename std::conditional<CODES == CODES_FP8, float, int>::type c[BATCH][COLS / 2];
#pragma unroll
    for (uint32_t j = 0; j < BATCH; j++) {
        const uint32_t stage = (i + j) % w.n_stage;
        wait_phase(&b.s->full[stage], (i + j) / w.n_stage % 2);
        a_at[j] = wgmma_operand(b.stages + stage * W_BYTES);
    }
    wgmma_fence();
#pragma unroll
    for (uint32_t j = 0; j < BATCH; j++) code_start(c[j], a_at[j], in_at + j * (IN_BYTES / 16));
#pragma unroll
    for (uint64_t k = 2; k < K_LINE_BYTES / 16; k += 2) {
#pragma unroll
        for (uint32_t j = 0; j < BATCH; j++)
            code_add(c[j], a_at[j] + k, in_at + j * (IN_BYTES / 16) + k);
    }
    wgmma_commit();
#pragma unroll
    for (uint32_t j = 0; j < BATCH; j++) wgmma_wait(c[j]);
    __syncwarp();
    if (threadIdx.x % WARP == 0) {
        for (uint32_t j = 0; j < BATCH; j++)
            mbarrier_arrive(smem_address(&b.s->empty[(i + j) % w.n_stage]));
    }
#pragma unroll
    for (uint32_t j = 0; j < BATCH; j++) {
        const float in_scale = b.s->in_scale[i + j];
        if constexpr (CODES == CODES_INT8_ROW) {
            add_k_line(sum, w, c[j][0], c[j][2], in_scale, rows);
        } else {
            add_k_line(sum, w, line_value(c[j][0]), line_value(c[j][2]),
                       b.s->w_scale[i + j] * in_scale, rows);
        }
    }
}

template <uint32_t BATCH, enum codes CODES>
static __device__ __forceinline__ void consume(const struct down_work &w,
                                               const struct down_block &b)
{
    const uint32_t lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
    const uint32_t column = b.col * BM + warp * 16 + lane / 4;
    const struct down_rows rows = {weight_of_row(w, b, lane), expert_of_row(w, b, lane), column};
    dependency_wait();
    make_inputs<CODES>(w, b);
    wait_phase(&b.s->made, 0);
    struct down_sums sum = {};
    for (uint32_t i = 0; i < w.n_all; i += BATCH) add_k_lines<BATCH, CODES>(sum, w, b, i, rows);
    if (lane % 4 || column >= w.a.n) return; /* n is a multiple of 16: so is what a warp writes */
    const size_t at = (size_t)b.token * w.a.n + column;
    if (w.a.shared) {
        sum.all.x += w.a.shared[at];
        sum.all.y += w.a.shared[at + 8];
    }
    w.a.y[at] = sum.all.x;
    w.a.y[at + 8] = sum.all.y;
}

template <uint32_t BATCH, enum codes CODES>
__global__ void __launch_bounds__(THREADS, 6)
    down_few_kernel(const __grid_constant__ struct down_work w)
{
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
    SHARED_DYNAMIC(unsigned char, shared);
    struct down_block b;
    b.s = (struct down_shared *)shared;
    b.stages = smem_address(b.s + 1);
    b.inputs = b.stages + w.n_stage * W_BYTES;
    b.token = blockIdx.x;
    b.col = blockIdx.y;
    if (threadIdx.x == CONSUMERS) {
        for (uint32_t i = 0; i < w.n_stage; i++) {
            mbarrier_init(smem_address(&b.s->full[i]), 2);
            mbarrier_init(smem_address(&b.s->empty[i]), CONSUMER_WARPS);
        }
        mbarrier_init(smem_address(&b.s->made), CONSUMER_WARPS);
        mbarrier_init_fence();
        async_proxy_fence();
    }
    __syncthreads();
    dependency_release();
    if (threadIdx.x >= CONSUMERS) {
        produce(w, b);
    } else {
        consume<BATCH, CODES>(w, b);
    }
#endif
}

/* ---- the host ---- */

static uint32_t bytes_of(uint32_t n_stage, uint32_t n_all)
{
    return (uint32_t)sizeof(struct down_shared) + n_stage * W_BYTES + n_all * IN_BYTES;
}

/* Lines at a time: what divides them all. */
template <enum codes CODES> static down_kernel kernel_of(uint32_t n_all)
{
    return n_all % 3 == 0 ? down_few_kernel<3, CODES> : down_few_kernel<1, CODES>;
}

static down_kernel kernel_for(enum codes codes, uint32_t n_all)
{
    switch (codes) {
    case CODES_INT8: return kernel_of<CODES_INT8>(n_all);
    case CODES_INT8_ROW: return kernel_of<CODES_INT8_ROW>(n_all);
    default: return kernel_of<CODES_FP8>(n_all);
    }
}

cudaError_t down_few_init(void)
{
    cudaError_t packed = down_few_packed_init();
    if (packed != cudaSuccess) return packed;
    for (enum codes codes : {CODES_FP8, CODES_INT8, CODES_INT8_ROW}) {
        for (uint32_t n_all : {1, 3}) {
            cudaError_t e = raise_shared(kernel_for(codes, n_all), BYTES_MAX);
            if (e != cudaSuccess) return e;
        }
    }
    return cudaSuccess;
}

cudaError_t down_few(const struct down_args &a, cudaStream_t stream)
{
    ASSERT(a.k % K_LINE_BYTES == 0 && a.n % 16 == 0);
    ASSERT(a.n_token >= 1 && a.n_token <= DOWN_TOKENS_MAX && (uintptr_t)a.w % 16 == 0);
    ASSERT(a.codes != CODES_INT8_ROW || a.row_scale);
    ASSERT(a.rows_per_token >= 1 && a.rows_per_token - a.n_used <= 1);
    struct down_work w = {};
    w.a = a;
    w.n_k_line = a.k / K_LINE_BYTES;
    w.n_all = w.n_k_line * a.rows_per_token;
    w.k_part_lines = w.n_k_line / fp8_k_part_count(a.n, w.n_k_line, true);
    ASSERT(w.n_all >= 1 && w.n_all <= DOWN_K_LINES_MAX);
    if (a.pack.tile_bytes) return down_few_packed(w, stream);
    ASSERT(a.codes != CODES_NONE);
    w.n_stage = min(w.n_all, (uint32_t)(a.n_token == 1 ? STAGES_ALONE : STAGES_MANY));
    return launch_down(kernel_for(a.codes, w.n_all), w, THREADS, bytes_of(w.n_stage, w.n_all),
                       stream);
}
