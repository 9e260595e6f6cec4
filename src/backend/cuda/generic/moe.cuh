/* moe.cuh - experts of the rows of a map, and the form in which they leave them */
#ifndef FATHOM_BACKEND_CUDA_GENERIC_MOE_CUH
#define FATHOM_BACKEND_CUDA_GENERIC_MOE_CUH

#include "backend/cuda/common.cuh"
#include "backend/cuda/cuda_int.cuh"

/* How the rows of experts are: where sm90/ makes them, all but those of BF16 weights are rounded to
 * bf16, some by who reads them. */
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

/* moe_lists_codes - whether experts of so many rows take them in a list, and leave codes between
 * their products and bf16 behind them
 *
 * moe_run_experts - expert_out of the rows of c->map, whose tokens' inputs are x
 *   form  how its rows are to be read */
bool moe_lists_codes(const struct cuda_backend *c, const struct weight *w, uint32_t n_likely);
fathom_err moe_run_experts(struct cuda_backend *c, const struct weight *w, const struct act *x,
                           enum row_form *form);

/* cuda_moe_ep_ways - what moe_ep does but for its experts: rows to their ranks, and back the sums
 * of what expert_out holds, which is nobody's result. For benchmarks. Needs several ranks */
fathom_err cuda_moe_ep_ways(struct backend *b, const struct moe_ep_args *a);

#endif
