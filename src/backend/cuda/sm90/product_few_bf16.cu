/* product_few_bf16.cu - the kernels of product_few.cuh for BF16 weights */
#include "backend/cuda/sm90/product_few.cuh"
#include "backend/cuda/sm90/product_few_launch.cuh"

/* Of tiles of N rows. Experts have one part of K (k_parts.h). */
template <int N> static cudaError_t init_rows(void)
{
    uint32_t n_block = UINT32_MAX; /* a launch asks for as many as FP8's */
    return init_plain<N, FEW_BF16>(&n_block);
}

cudaError_t product_few_bf16_init(void)
{
    cudaError_t e = init_rows<8>();
    if (e == cudaSuccess) e = init_rows<16>();
    if (e == cudaSuccess) e = init_rows<32>();
    return e == cudaSuccess ? init_rows<64>() : e;
}

cudaError_t product_few_bf16(const struct product_args &a, uint32_t tile, uint32_t n_tile,
                             uint32_t n_matrix, const struct sm90_limits &limits,
                             cudaStream_t stream)
{
    ASSERT(a.k * 2 % K_LINE_BYTES == 0 && a.h && !a.in_rows && !a.tiled && a.w_stride % 16 == 0);
    ASSERT((uintptr_t)a.w % 16 == 0 && (uintptr_t)a.h % 16 == 0);
    switch (tile) {
    case 8: return launch_tile<8, FEW_BF16>(a, n_tile, limits, 0, stream, n_matrix);
    case 16: return launch_tile<16, FEW_BF16>(a, n_tile, limits, 1, stream, n_matrix);
    case 32: return launch_tile<32, FEW_BF16>(a, n_tile, limits, 2, stream, n_matrix);
    case 64: return launch_tile<64, FEW_BF16>(a, n_tile, limits, 3, stream, n_matrix);
    default: return cudaErrorInvalidValue;
    }
}
