/* int8_codes.cu - int8 codes of rows of values, or of their SwiGLU
 *
 * A row's scale needs all of the row, so a block has a row; of groups of 128 a warp has one. */
#include "backend/cuda/generic/int8_codes.cuh"
#include "backend/cuda/launch.cuh"

enum { CODE_THREADS = 256, CODE_WARPS = CODE_THREADS / WARP, VALUES = 4 };

struct code_args {
    const float *f;
    uint32_t n_row, width;
    uint8_t *q;
    float *scale; /* [n_row][width / FP8_GROUP] */
};

/* Values i to i + 3 of a row. */
template <bool SWIGLU>
static __device__ __forceinline__ float4 values_at(const struct code_args &a, size_t row,
                                                   uint32_t i)
{
    if (!SWIGLU) return *(const float4 *)(a.f + row * a.width + i);
    const float *gate = a.f + row * 2 * a.width + i;
    return swiglu(*(const float4 *)gate, *(const float4 *)(gate + a.width));
}

template <bool SWIGLU>
__global__ void __launch_bounds__(CODE_THREADS) int8_row_kernel(const struct code_args a)
{
    __shared__ float scratch[CODE_WARPS];
    const size_t row = blockIdx.x, n_group = a.width / FP8_GROUP;
    const uint32_t first = threadIdx.x * VALUES, step = blockDim.x * VALUES;
    uint32_t bits = 0;
    kernel_begin();
    for (uint32_t i = first; i < a.width; i += step)
        bits = max(bits, largest_bits(values_at<SWIGLU>(a, row, i)));
    const float s = int8_scale(block_most(bits, scratch));
    for (uint32_t i = first; i < a.width; i += step) {
        const size_t group = row * n_group + i / FP8_GROUP;
        store_int8(values_at<SWIGLU>(a, row, i), s, a.q + group * FP8_GROUP, a.scale + group);
    }
}

template <bool SWIGLU>
__global__ void __launch_bounds__(CODE_THREADS) int8_group_kernel(const struct code_args a)
{
    const uint32_t n_group = a.width / FP8_GROUP, lane = threadIdx.x % WARP;
    const uint32_t group = blockIdx.x * CODE_WARPS + threadIdx.x / WARP;
    kernel_begin();
    if (group >= a.n_row * n_group) return;
    const float4 v =
        values_at<SWIGLU>(a, group / n_group, group % n_group * FP8_GROUP + lane * VALUES);
    store_int8(v, int8_scale(warp_most(largest_bits(v))), a.q + (size_t)group * FP8_GROUP,
               a.scale + group);
}

fathom_err cuda_int8_codes(struct cuda_backend *c, const float *f, uint32_t n_row, uint32_t width,
                           bool swiglu, enum codes codes, uint8_t *q, float *scale,
                           const char *what)
{
    const struct code_args a = {f, n_row, width, q, scale};
    ASSERT(f && n_row > 0 && width % FP8_GROUP == 0 && (uintptr_t)f % 16 == 0);
    ASSERT(q && scale && (uintptr_t)q % 4 == 0 && codes != CODES_FP8 && codes != CODES_NONE);
    if (codes == CODES_INT8) {
        return cuda_launch(c, what, swiglu ? int8_group_kernel<true> : int8_group_kernel<false>,
                           dim3(ceil_div(n_row * (width / FP8_GROUP), CODE_WARPS)), CODE_THREADS, 0,
                           a);
    }
    const uint32_t n_thread = width / VALUES;
    return cuda_launch(c, what, swiglu ? int8_row_kernel<true> : int8_row_kernel<false>,
                       dim3(n_row), n_thread < CODE_THREADS ? n_thread : (uint32_t)CODE_THREADS, 0,
                       a);
}
