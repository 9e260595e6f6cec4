/* product_few_u4.cu - the kernels of product_few.cuh for packed U4 weights */
#include "backend/cuda/sm90/product_few.cuh"
#include "backend/cuda/sm90/product_few_launch.cuh"

cudaError_t product_few_u4_init(void)
{
    uint32_t few[FEW_TILES][FEW_K_PARTS]; /* a launch asks for as many clusters as FP8's */
    cudaError_t e = init_tiles<1>(few);
    if (e == cudaSuccess) e = init_tiles<2>(few);
    if (e == cudaSuccess) e = init_tiles<4>(few);
    return e;
}

cudaError_t product_few_u4(const struct product_args &a, uint32_t tile, uint32_t n_tile,
                           const struct sm90_limits &limits, cudaStream_t stream)
{
    ASSERT(a.pack.tile_bytes > 0 && !a.pack.is_e2m1 && (!a.tasks || a.input_sums));
    switch (a.pack.n_group) {
    case 1: return launch_tiles<1>(a, tile, n_tile, limits, stream);
    case 2: return launch_tiles<2>(a, tile, n_tile, limits, stream);
    case 4: return launch_tiles<4>(a, tile, n_tile, limits, stream);
    default: return cudaErrorInvalidValue;
    }
}
