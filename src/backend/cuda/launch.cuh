/* launch.cuh - kernel launches with programmatic dependence
 *
 * Every kernel of this backend calls dependency_wait before it reads anything a kernel before it
 * wrote and before it ends, in every block; so the next kernel may be launched while this one
 * still runs, and pays neither launch nor ramp. What does not change (weights) may be read before
 * the wait.
 *
 * A recorded step begins when all that was enqueued before it has ended. So a kernel of one may
 * read the step's arrays before its wait, and rows of the cache that earlier steps wrote.
 *
 * The products of experts on sm90/, but for BF16's of many rows, release the next kernel only
 * behind their own wait. So whatever was written before them, the route and its map, is there when
 * the next kernel begins, and it may read that, past L1, before it waits (sm90/down_few.cu,
 * product_few_load.cuh). So do index scores of answers (sm90/index_score_alone.cu) and the choice
 * of rows behind them: attention finds its queries when it begins.
 */
#ifndef FATHOM_BACKEND_CUDA_LAUNCH_CUH
#define FATHOM_BACKEND_CUDA_LAUNCH_CUH

#include "backend/cuda/cuda_int.cuh"
#include "backend/cuda/ptx.cuh"

/* The grid's blocks in clusters of n_cluster neighbours in x. */
template <typename... PARAMS, typename... ARGS>
static fathom_err cuda_launch_clusters(struct cuda_backend *c, const char *what,
                                       void (*kernel)(PARAMS...), dim3 grid, unsigned n_cluster,
                                       unsigned threads, size_t shared_bytes, ARGS... args)
{
    ASSERT(grid.x >= 1 && grid.x <= INT32_MAX);
    ASSERT(grid.y >= 1 && grid.y <= GRID_YZ_MAX && grid.z >= 1 && grid.z <= GRID_YZ_MAX);
    ASSERT(threads >= WARP && threads <= BLOCK_THREADS_MAX && threads % WARP == 0);
    ASSERT(n_cluster >= 1 && n_cluster <= CLUSTER_BLOCKS_LARGE && grid.x % n_cluster == 0);
    ASSERT(n_cluster == 1 || gpu_has_clusters(c->properties));
    ASSERT(shared_bytes <= gpu_shared_of_block(c->properties));
    const struct gpu_shape shape = {grid, n_cluster, threads, shared_bytes,
                                    gpu_has_clusters(c->properties)};
    c->last.what = what;
    c->last.grid = grid;
    return cuda_check(c, gpu_launch(shape, c->stream, kernel, PARAMS(args)...), "launch", what);
}

template <typename... PARAMS, typename... ARGS>
static fathom_err cuda_launch(struct cuda_backend *c, const char *what, void (*kernel)(PARAMS...),
                              dim3 grid, unsigned threads, size_t shared_bytes, ARGS... args)
{
    return cuda_launch_clusters(c, what, kernel, grid, 1, threads, shared_bytes, args...);
}

/* The start of a kernel that has nothing to do before its predecessor's results. */
static __device__ __forceinline__ void kernel_begin(void)
{
    dependency_release();
    dependency_wait();
}

#endif
