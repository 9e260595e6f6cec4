/* product_few.cu - matrix product for few rows on sm_90a: the kernels of FP8 weights, and which are
 * launched */
#include "backend/cuda/sm90/product_few.cuh"

#include "backend/cuda/sm90/product_few_launch.cuh"

cudaError_t product_few_init(struct sm90_limits *out)
{
    cudaError_t e = init_tiles<FEW_FP8>(out->few);
    if (e == cudaSuccess) e = product_few_int8_init();
    if (e == cudaSuccess) e = product_few_u4_init();
    if (e == cudaSuccess) e = product_few_e2m1_init();
    return e == cudaSuccess ? product_few_bf16_init() : e;
}

cudaError_t product_few(const struct product_args &a, uint32_t tile, uint32_t n_tile,
                        const struct sm90_limits &limits, cudaStream_t stream)
{
    if (a.pack.is_e2m1) return product_few_e2m1(a, tile, n_tile, limits, stream);
    ASSERT(a.k % K_LINE_BYTES == 0 && (a.n % 16 == 0 || a.pack.tile_bytes));
    ASSERT((uintptr_t)a.w % 16 == 0 && (uintptr_t)a.q % 16 == 0 && a.pack.tile_bytes % 16 == 0);
    ASSERT((a.tiled || a.pack.tile_bytes) && (!a.tasks || a.in_divisor > 0));
    if (a.pack.tile_bytes) return product_few_u4(a, tile, n_tile, limits, stream);
    if (a.int8) return product_few_int8(a, tile, n_tile, limits, stream);
    return launch_tiles<FEW_FP8>(a, tile, n_tile, limits, stream);
}
