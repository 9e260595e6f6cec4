/* expert_rows.cuh - the weighted sum of a token's rows: the one way in which it is computed */
#ifndef FATHOM_BACKEND_CUDA_GENERIC_EXPERT_ROWS_CUH
#define FATHOM_BACKEND_CUDA_GENERIC_EXPERT_ROWS_CUH

#include "backend/cuda/common.cuh"

enum { ROWS_AHEAD = 10 }; /* read before the first is added */

/* How the rows of experts are: where sm90/ makes them, all are rounded to bf16, some by who reads
 * them. */
enum row_form { ROWS_FLOAT, ROWS_FLOAT_TO_ROUND, ROWS_BF16 };

template <enum row_form FORM> struct row_value {
    typedef float4 type;
};
template <> struct row_value<ROWS_BF16> {
    typedef uint2 type;
};

template <enum row_form FORM> static __device__ __forceinline__ float4 read_row(const float4 &v)
{
    if (FORM == ROWS_FLOAT) return v;
    return make_float4(to_bf16_and_back(v.x), to_bf16_and_back(v.y), to_bf16_and_back(v.z),
                       to_bf16_and_back(v.w));
}

template <enum row_form FORM> static __device__ __forceinline__ float4 read_row(const uint2 &v)
{
    return make_float4(__uint_as_float(v.x << 16), __uint_as_float(v.x & 0xffff0000u),
                       __uint_as_float(v.y << 16), __uint_as_float(v.y & 0xffff0000u));
}

/* Four values of the sum over a token's rows of weight * row, in ascending order; `from` is the
 * first row's, `pitch` the way to the next row, both in fours of values. The row behind n_used is
 * the shared expert's, unweighted. */
template <enum row_form FORM>
static __device__ __forceinline__ float4 sum_rows(const typename row_value<FORM>::type *from,
                                                  uint32_t pitch, const float *weights,
                                                  uint32_t n_used, uint32_t rows_per_token)
{
    float4 sum = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    for (uint32_t s0 = 0; s0 < rows_per_token; s0 += ROWS_AHEAD) {
        typename row_value<FORM>::type v[ROWS_AHEAD];
        float w[ROWS_AHEAD];
#pragma unroll
        for (uint32_t s = 0; s < ROWS_AHEAD; s++) {
            if (s0 + s >= rows_per_token) continue;
            v[s] = from[(size_t)(s0 + s) * pitch];
            w[s] = s0 + s < n_used ? weights[s0 + s] : 1.0f;
        }
#pragma unroll
        for (uint32_t s = 0; s < ROWS_AHEAD; s++) {
            if (s0 + s >= rows_per_token) continue;
            const float4 x = read_row<FORM>(v[s]);
            sum.x = fmaf(w[s], x.x, sum.x);
            sum.y = fmaf(w[s], x.y, sum.y);
            sum.z = fmaf(w[s], x.z, sum.z);
            sum.w = fmaf(w[s], x.w, sum.w);
        }
    }
    return sum;
}

#endif
