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
 * U4 weights take half of the room, so there is no ring: all of them are requested at once. Making
 * their codes is more work than four warps can do in time, so three warpgroups make the sums of
 * every third row each and leave them in shared memory, where they are added up in the end.
 *
 *   empty --- weights requested; full: 2 arrivals and the bytes ---> full
 *   full ---- read by the four warps ---> empty
 *   made: the inputs are there, 4 arrivals, once */
#include "backend/cuda/sm90/down_few.cuh"

#include <type_traits>

#include "backend/cuda/common.cuh"
#include "backend/cuda/generic/int8_codes.cuh"
#include "backend/cuda/k_parts.h"
#include "backend/cuda/sm90/stage.cuh"
#include "backend/cuda/sm90/u4.cuh"

enum {
    BM = TILE_ROWS, /* outputs of a tile */
    COLS = 8,
    CONSUMERS = 128,
    CONSUMER_WARPS = CONSUMERS / WARP,
    THREADS = CONSUMERS + WARP,
    W_BYTES = BM * K_LINE_BYTES,
    IN_BYTES = COLS * K_LINE_BYTES,
    AHEAD = 5,         /* K lines of inputs that a warp makes at a time, */
    ROWS_AHEAD = 3,    /* or rows, */
    KEPT_LINES = 2,    /* which it keeps if they are no longer */
    STAGES_ALONE = 12, /* one token: one block a multiprocessor; with more tokens, two */
    STAGES_MANY = 9,
    U4_GROUPS = 3,      /* warpgroups */
    U4_LINE_GROUPS = 2, /* of a K line, at most */
    U4_WARPS = U4_GROUPS * CONSUMER_WARPS,
    U4_THREADS = (U4_WARPS + 1) * WARP,
    BYTES_MAX = SHARED_MAX,
};
static_assert((int)DOWN_K_LINES_MAX <= (int)WARP, "a lane of the loading warp has a K line");
static_assert(BM == CONSUMER_WARPS * 16 && (int)SCALE_BLOCK % BM == 0, "a tile has one scale");
static_assert(STAGES_ALONE <= (int)DOWN_K_LINES_MAX, "barriers of all stages");
static_assert(PACK4_CODE_BYTES + 2 * PACK4_ROWS * 5 + IN_BYTES + BM * 4 <=
                  (BYTES_MAX - 2048) / DOWN_K_LINES_MAX,
              "shared memory of a block with U4 weights");
static_assert(W_BYTES % 1024 == 0 && IN_BYTES % 1024 == 0, "atoms of operands");

/* The start of a block's shared memory; stages of weights and the inputs of all K lines follow. */
struct alignas(1024) down_shared {
    float w_scale[DOWN_K_LINES_MAX];
    float in_scale[DOWN_K_LINES_MAX];
    uint64_t full[DOWN_K_LINES_MAX];
    uint64_t empty[DOWN_K_LINES_MAX];
    uint64_t made;
};
static_assert(sizeof(struct down_shared) + STAGES_ALONE * W_BYTES + DOWN_K_LINES_MAX * IN_BYTES <=
                  BYTES_MAX,
              "shared memory of a block");

struct down_work {
    struct down_args a;
    uint32_t n_k_line;     /* of a row */
    uint32_t n_all;        /* of all rows */
    uint32_t k_part_lines; /* of a part */
    uint32_t n_stage;
    struct u4_form u4;
};

/* A block's view of its shared memory, and what it makes. */
struct down_block {
    struct down_shared *s;
    uint32_t stages;
    uint32_t inputs;
    uint32_t token;
    uint32_t col; /* tile */
};

/* ---- the warp that loads ---- */

static __device__ __forceinline__ void
load_k_line(const struct down_work &w, const struct down_block &b, uint32_t i, int expert)
{
    const uint32_t stage = i % w.n_stage, full = smem_address(&b.s->full[stage]);
    mbarrier_arrive_expect(full, W_BYTES);
    weight_load(b.stages + stage * W_BYTES, (const char *)w.a.w + (size_t)expert * w.a.w_stride,
                full, w.n_k_line, i % w.n_k_line, b.col);
}

/* Lane i has K line i. Experts are read past L1: this kernel has not waited for who wrote them. */
static __device__ __forceinline__ void produce(const struct down_work &w,
                                               const struct down_block &b)
{
    const uint32_t i = threadIdx.x % WARP, row = i / w.n_k_line;
    int expert = (int)w.a.n_expert - 1;
    if (i < w.n_all) {
        if (row < w.a.n_used)
            expert = *(const volatile int32_t *)&w.a.experts[b.token * w.a.n_used + row];
        if (i < w.n_stage) load_k_line(w, b, i, expert);
        DCHECK(expert >= 0 && (uint32_t)expert < w.a.n_expert);
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

/* A lane's four values of K line i of gate and up. */
static __device__ __forceinline__ const float *gate_of(const struct down_work &w,
                                                       const struct down_block &b, uint32_t i)
{
    const size_t row = (size_t)b.token * w.a.rows_per_token + i / w.n_k_line;
    return w.a.gate_up + row * 2 * w.a.k + i % w.n_k_line * K_LINE_BYTES + threadIdx.x % WARP * 4;
}

/* Where the codes of K line i go. */
static __device__ __forceinline__ uint8_t *input_of(const struct down_block &b, uint32_t i)
{
    return (uint8_t *)b.s + (b.inputs - smem_address(b.s)) + i * IN_BYTES;
}

/* Every WARPS-th K line's inputs, codes and scale, from gate and up; of G groups the sums too, to
 * G a K line. */
template <enum codes CODES, uint32_t WARPS, uint32_t G>
static __device__ __forceinline__ void make_lines(const struct down_work &w,
                                                  const struct down_block &b, float *sums)
{
    const uint32_t lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
    for (uint32_t first = warp; first < w.n_all; first += AHEAD * WARPS) {
        float4 gate[AHEAD], up[AHEAD];
#pragma unroll
        for (uint32_t j = 0; j < AHEAD; j++) {
            const uint32_t i = first + j * WARPS;
            if (i >= w.n_all) continue;
            const float *g = gate_of(w, b, i);
            gate[j] = *(const float4 *)g;
            up[j] = *(const float4 *)(g + w.a.k);
        }
#pragma unroll
        for (uint32_t j = 0; j < AHEAD; j++) {
            const uint32_t i = first + j * WARPS;
            if (i >= w.n_all) continue;
            const float4 v = swiglu(gate[j], up[j]);
            if (CODES == CODES_INT8) {
                store_int8(v, int8_scale(warp_most(largest_bits(v))), input_of(b, i),
                           &b.s->in_scale[i]);
                continue;
            }
            float scale;
            const uint32_t codes = quantize_group(v, &scale);
            *(uint32_t *)(input_of(b, i) + lane * 4) = codes;
            if (lane == 0) b.s->in_scale[i] = scale;
            if constexpr (G > 0) {
                const float sum = input_sum(codes_sum(codes), WARP / G, scale);
                if (lane % (WARP / G) == 0) sums[i * G + lane / (WARP / G)] = sum;
            }
        }
    }
}

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
        make_lines<CODES, CONSUMER_WARPS, 0>(w, b, NULL);
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
    struct down_rows rows = {1.0f, (int)w.a.n_expert - 1, column};
    if (lane < w.a.n_used) {
        rows.weight = *(const volatile float *)&w.a.weights[b.token * w.a.n_used + lane];
        rows.expert = *(const volatile int32_t *)&w.a.experts[b.token * w.a.n_used + lane];
    }
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

/* ---- U4 weights ---- */

/* The start of a block's shared memory; inputs and packed tiles of all K lines follow. */
struct alignas(1024) down_u4_shared {
    struct down_shared s;
    float row[DOWN_K_LINES_MAX][BM];                 /* rounded */
    float in_sum[DOWN_K_LINES_MAX * U4_LINE_GROUPS]; /* of a K line the groups' */
    uint64_t summed;
};

static __device__ __forceinline__ const char *packed_at(const struct down_work &w,
                                                        const struct down_block &b, uint32_t i)
{
    return (const char *)b.s + (b.stages - smem_address(b.s)) + i * w.a.pack.tile_bytes;
}

/* Lane i has K line i. */
static __device__ __forceinline__ void produce_u4(const struct down_work &w,
                                                  const struct down_block &b)
{
    const uint32_t i = threadIdx.x % WARP, row = i / w.n_k_line, bytes = w.a.pack.tile_bytes;
    if (i >= w.n_all) return;
    const uint32_t full = smem_address(&b.s->full[i]);
    int expert = (int)w.a.n_expert - 1;
    if (row < w.a.n_used)
        expert = *(const volatile int32_t *)&w.a.experts[b.token * w.a.n_used + row];
    DCHECK(expert >= 0 && (uint32_t)expert < w.a.n_expert);
    const char *from = (const char *)w.a.w + (size_t)expert * w.a.w_stride;
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

template <int G>
static __device__ __forceinline__ void
consume_u4(const struct down_work &w, const struct down_block &b, struct down_u4_shared *s)
{
    const uint32_t lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
    float weight = 1.0f; /* of row `lane` */
    if (lane < w.a.n_used)
        weight = *(const volatile float *)&w.a.weights[b.token * w.a.n_used + lane];
    dependency_wait();
    make_lines<CODES_FP8, U4_WARPS, G>(w, b, s->in_sum);
    async_proxy_fence();
    __syncwarp();
    if (lane == 0) mbarrier_arrive(smem_address(&b.s->made));
    wait_phase(&b.s->made, 0);
    for (uint32_t r = warp / CONSUMER_WARPS; r < w.a.rows_per_token; r += U4_GROUPS) {
        const float2 sum = sum_u4_row<G>(w, b, r, s->in_sum);
        float *to = s->row[r] + warp % CONSUMER_WARPS * 16 + lane / 4;
        if (lane % 4) continue;
        to[0] = to_bf16_and_back(sum.x);
        to[8] = to_bf16_and_back(sum.y);
    }
    __syncwarp();
    if (lane == 0) mbarrier_arrive(smem_address(&s->summed));
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

template <int G>
__global__ void __launch_bounds__(U4_THREADS, 2)
    down_few_u4_kernel(const __grid_constant__ struct down_work w)
{
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
    SHARED_DYNAMIC(unsigned char, shared);
    struct down_u4_shared *s = (struct down_u4_shared *)shared;
    struct down_block b;
    b.s = &s->s;
    b.inputs = smem_address(s + 1);
    b.stages = b.inputs + w.n_all * IN_BYTES;
    b.token = blockIdx.x;
    b.col = blockIdx.y;
    if (threadIdx.x == U4_WARPS * WARP) {
        for (uint32_t i = 0; i < w.n_all; i++) mbarrier_init(smem_address(&b.s->full[i]), 1);
        mbarrier_init(smem_address(&b.s->made), U4_WARPS);
        mbarrier_init(smem_address(&s->summed), U4_WARPS);
        mbarrier_init_fence();
        async_proxy_fence();
    }
    __syncthreads();
    dependency_release();
    if (threadIdx.x >= U4_WARPS * WARP) {
        produce_u4(w, b);
    } else {
        consume_u4<G>(w, b, s);
    }
#endif
}

/* ---- the host ---- */

static uint32_t bytes_of(uint32_t n_stage, uint32_t n_all)
{
    return (uint32_t)sizeof(struct down_shared) + n_stage * W_BYTES + n_all * IN_BYTES;
}

/* Lines at a time: what divides them all. */
typedef void (*down_kernel)(struct down_work);
template <enum codes CODES> static down_kernel kernel_of(uint32_t n_all)
{
    return n_all % 3 == 0 ? down_few_kernel<3, CODES> : down_few_kernel<1, CODES>;
}

static down_kernel u4_kernel_for(uint32_t n_group)
{
    return n_group == 2 ? down_few_u4_kernel<2> : down_few_u4_kernel<1>;
}

static down_kernel kernel_for(enum codes codes, uint32_t n_all)
{
    switch (codes) {
    case CODES_INT8: return kernel_of<CODES_INT8>(n_all);
    case CODES_INT8_ROW: return kernel_of<CODES_INT8_ROW>(n_all);
    default: return kernel_of<CODES_FP8>(n_all);
    }
}

static uint32_t u4_bytes_of(uint32_t tile_bytes, uint32_t n_all)
{
    return (uint32_t)sizeof(struct down_u4_shared) + n_all * (IN_BYTES + tile_bytes);
}

cudaError_t down_few_init(void)
{
    for (uint32_t n_group : {1, 2}) {
        cudaError_t e = raise_shared(u4_kernel_for(n_group), BYTES_MAX);
        if (e != cudaSuccess) return e;
    }
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
    ASSERT(a.codes != CODES_NONE && (a.codes != CODES_INT8_ROW || a.row_scale));
    ASSERT(a.rows_per_token >= 1 && a.rows_per_token - a.n_used <= 1);
    struct down_work w = {};
    w.a = a;
    w.n_k_line = a.k / K_LINE_BYTES;
    w.n_all = w.n_k_line * a.rows_per_token;
    w.k_part_lines = w.n_k_line / fp8_k_part_count(a.n, w.n_k_line, true);
    ASSERT(w.n_all >= 1 && w.n_all <= DOWN_K_LINES_MAX);
    w.n_stage = min(w.n_all, (uint32_t)(a.n_token == 1 ? STAGES_ALONE : STAGES_MANY));
    const bool is_u4 = a.pack.tile_bytes > 0;
    ASSERT(!is_u4 || (a.codes == CODES_FP8 && a.pack.n_group <= U4_LINE_GROUPS && !a.row_scale));
    if (is_u4) w.u4 = u4_form_of(a.pack, true);
    cudaLaunchAttribute attribute = {};
    attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attribute.val.programmaticStreamSerializationAllowed = 1;
    cudaLaunchConfig_t config = {};
    config.gridDim = dim3(a.n_token, ceil_div(a.n, BM));
    config.blockDim = dim3(is_u4 ? U4_THREADS : THREADS);
    config.dynamicSmemBytes =
        is_u4 ? u4_bytes_of(a.pack.tile_bytes, w.n_all) : bytes_of(w.n_stage, w.n_all);
    ASSERT(config.dynamicSmemBytes <= BYTES_MAX);
    config.stream = stream;
    config.attrs = &attribute;
    config.numAttrs = 1;
    return cudaLaunchKernelEx(
        &config, is_u4 ? u4_kernel_for(a.pack.n_group) : kernel_for(a.codes, w.n_all), w);
}
