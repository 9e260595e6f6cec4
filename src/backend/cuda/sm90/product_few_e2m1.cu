/* product_few_e2m1.cu - the kernels of product_few.cuh for packed E2M1 weights */
#include "backend/cuda/sm90/product_few.cuh"
#include "backend/cuda/sm90/product_few_launch.cuh"

cudaError_t product_few_e2m1_init(void)
{
    uint32_t few[FEW_TILES][FEW_K_PARTS]; /* a launch asks for as many clusters as FP8's */
    cudaError_t e = init_tiles<FEW_NVFP4>(few);
    return e == cudaSuccess ? init_tiles<FEW_MXFP4>(few) : e;
}

cudaError_t product_few_e2m1(const struct product_args &a, uint32_t tile, uint32_t n_tile,
                             const struct sm90_limits &limits, cudaStream_t stream)
{
    ASSERT(a.pack.is_e2m1 && a.k % PACK4_COLS == 0 && a.h && a.w_scale && !a.in_rows);
    ASSERT((uintptr_t)a.w % 16 == 0 && (uintptr_t)a.h % 16 == 0);
    return a.pack.n_group == 8 ? launch_tiles<FEW_NVFP4>(a, tile, n_tile, limits, stream)
                               : launch_tiles<FEW_MXFP4>(a, tile, n_tile, limits, stream);
}
