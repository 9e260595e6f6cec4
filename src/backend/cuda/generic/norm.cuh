/* norm.cuh - the norm of a row that a block holds: the one way in which it is computed */
#ifndef FATHOM_BACKEND_CUDA_GENERIC_NORM_CUH
#define FATHOM_BACKEND_CUDA_GENERIC_NORM_CUH

#include "backend/cuda/common.cuh"
#include "backend/cuda/generic/int8_codes.cuh"
#include "backend/cuda/ptx.cuh"

enum {
    NORM_THREADS = 512,
    NORM_STEPS_FEW = 4, /* of 4 values, of a thread */
    NORM_STEPS_MAX = 8,
};
static_assert(NORM_THREADS * NORM_STEPS_MAX * 4 == HIDDEN_MAX, "a thread holds its values");

struct norm_args {
    float *x;
    const float *delta; /* NULL: none */
    const float *weight;
    float *f; /* NULL, each of them: the form is not wanted */
    bf16 *h;
    uint8_t *q; /* with scale */
    enum codes codes;
    float *scale;
    struct input_sums sums; /* of q */
    uint32_t n;
    float eps;
    bool begins;               /* x is delta */
    uint32_t run, rank, world; /* world > 1, without a delta: rows of x are this rank's own */
};

/* Values of a thread, and threads, of a row so wide: the order of its sum depends on this alone. */
static inline bool norm_is_few(uint32_t n)
{
    return n <= NORM_STEPS_FEW * NORM_THREADS * 4;
}

static inline unsigned norm_threads(uint32_t n)
{
    return ceil_div(n, (norm_is_few(n) ? NORM_STEPS_FEW : NORM_STEPS_MAX) * 4 * WARP) * WARP;
}

/* Quantizes 128 values held 4 a lane by one warp, the i-th of all, and stores codes, scale and
 * sums. */
static __device__ __forceinline__ void store_group(const float4 &v, uint8_t *q, float *scale,
                                                   const struct input_sums &sums, size_t i)
{
    const uint32_t lane = threadIdx.x % WARP;
    float s;
    const uint32_t codes = quantize_group(v, &s);
    *(uint32_t *)(q + i * FP8_GROUP + lane * 4) = codes;
    if (lane == 0) scale[i] = s;
    if (!sums.at) return;
    const uint32_t n_lane = sums.group / 4;
    const float sum = input_sum(codes_sum(codes), n_lane, s);
    if (lane % n_lane == 0) sums.at[i * (FP8_GROUP / sums.group) + lane / n_lane] = sum;
}

/* A thread's values of a row: steps of 4. */
struct row_steps {
    uint32_t first, step; /* values */
    int n;                /* in the row */
};

/* Of a row of n values that n_thread threads have, `part` blocks before this one: sums are formed
 * as those of one block with all of them. A thread behind them has nothing. */
static __device__ __forceinline__ struct row_steps row_steps_of(uint32_t n, uint32_t part,
                                                                uint32_t n_thread)
{
    const uint32_t thread = part * blockDim.x + threadIdx.x;
    struct row_steps t = {thread * 4, n_thread * 4, 0};
    t.n = thread < n_thread && t.first < n ? (int)((n - t.first + t.step - 1) / t.step) : 0;
    return t;
}

/* Codes of the row that begins at value `row`, 4 values a lane: a warp holds groups of 128. A scale
 * of the whole row needs all of it in one block. */
template <int STEPS>
static __device__ __forceinline__ void store_codes(const struct norm_args &a, size_t row,
                                                   const float4 (&v)[STEPS],
                                                   const struct row_steps &t, float *scratch)
{
    float of_row = 0.0f;
    if (a.codes == CODES_INT8_ROW) {
        uint32_t bits = 0;
#pragma unroll
        for (int j = 0; j < STEPS; j++) {
            if (j < t.n) bits = max(bits, largest_bits(v[j]));
        }
        of_row = int8_scale(block_most(bits, scratch));
    }
#pragma unroll
    for (int j = 0; j < STEPS; j++) {
        const uint32_t i = t.first + (uint32_t)j * t.step;
        if (j >= t.n) break;
        const size_t group = (row + i) / FP8_GROUP;
        if (a.codes == CODES_FP8) {
            store_group(v[j], a.q, a.scale, a.sums, group);
        } else {
            const float s =
                a.codes == CODES_INT8_ROW ? of_row : int8_scale(warp_most(largest_bits(v[j])));
            store_int8(v[j], s, a.q + group * FP8_GROUP, a.scale + group);
        }
    }
}

/* out = rmsnorm(v), in the forms that the next products take, of the row that begins at value
 * `row`; row_sum(x) is the sum of x over all threads of the row; scratch holds one float a warp. */
template <int STEPS, typename ROW_SUM>
static __device__ __forceinline__ void norm_row(const struct norm_args &a, size_t row,
                                                const float4 (&v)[STEPS], const struct row_steps &t,
                                                const ROW_SUM &row_sum, float *scratch)
{
    float4 w[STEPS], o[STEPS];
    float sum = 0.0f;
#pragma unroll
    for (int j = 0; j < STEPS; j++) {
        sum += v[j].x * v[j].x + v[j].y * v[j].y + v[j].z * v[j].z + v[j].w * v[j].w;
        w[j] = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
        if (j < t.n) w[j] = *(const float4 *)(a.weight + t.first + (uint32_t)j * t.step);
    }
    const float r = rsqrtf(row_sum(sum) / (float)a.n + a.eps);
#pragma unroll
    for (int j = 0; j < STEPS; j++) {
        const uint32_t i = t.first + (uint32_t)j * t.step;
        if (j >= t.n) break;
        o[j] = make_float4(v[j].x * r * w[j].x, v[j].y * r * w[j].y, v[j].z * r * w[j].z,
                           v[j].w * r * w[j].w);
        if (a.f) *(float4 *)(a.f + row + i) = o[j];
        if (a.h)
            *(uint2 *)(a.h + row + i) =
                make_uint2(pack_bf16(o[j].x, o[j].y), pack_bf16(o[j].z, o[j].w));
    }
    if (a.q) store_codes(a, row, o, t, scratch);
}

#endif
