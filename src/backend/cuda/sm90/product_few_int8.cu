/* product_few_int8.cu - the kernels of product_few.cuh for int8 weights */
#include "backend/cuda/sm90/product_few.cuh"
#include "backend/cuda/sm90/product_few_launch.cuh"

cudaError_t product_few_int8_init(void)
{
    uint32_t few[FEW_TILES][FEW_K_PARTS]; /* a launch asks for as many clusters as FP8's */
    cudaError_t e = init_tiles<FEW_INT8>(few);
    return e == cudaSuccess ? init_tiles<FEW_INT8_ROW>(few) : e;
}

cudaError_t product_few_int8(const struct product_args &a, uint32_t tile, uint32_t n_tile,
                             const struct sm90_limits &limits, cudaStream_t stream)
{
    ASSERT(a.int8 && a.tiled);
    return a.row_scale ? launch_tiles<FEW_INT8_ROW>(a, tile, n_tile, limits, stream)
                       : launch_tiles<FEW_INT8>(a, tile, n_tile, limits, stream);
}
