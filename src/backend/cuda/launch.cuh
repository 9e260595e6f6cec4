/* launch.cuh - kernel launches with programmatic dependence
 *
 * Every kernel of this backend calls dependency_wait before it reads anything a kernel before it
 * wrote and before it ends, in every block; so the next kernel may be launched while this one
 * still runs, and pays neither launch nor ramp. What does not change (weights) may be read before
 * the wait. */
#ifndef FATHOM_BACKEND_CUDA_LAUNCH_CUH
#define FATHOM_BACKEND_CUDA_LAUNCH_CUH

#include "backend/cuda/cuda_int.cuh"
#include "backend/cuda/ptx.cuh"

template <typename... PARAMS, typename... ARGS>
static fathom_err cuda_launch(struct cuda_backend *c, const char *what, void (*kernel)(PARAMS...),
                              dim3 grid, unsigned threads, size_t shared_bytes, ARGS... args)
{
    cudaLaunchAttribute attribute = {};
    attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attribute.val.programmaticStreamSerializationAllowed = 1;
    cudaLaunchConfig_t config = {};
    config.gridDim = grid;
    config.blockDim = dim3(threads);
    config.dynamicSmemBytes = shared_bytes;
    config.stream = c->stream;
    config.attrs = &attribute;
    config.numAttrs = c->properties.major >= 9 ? 1 : 0;
    c->last.what = what;
    c->last.grid = grid;
    return cuda_check(c, cudaLaunchKernelEx(&config, kernel, PARAMS(args)...), "launch", what);
}

/* The start of a kernel that has nothing to do before its predecessor's results. */
static __device__ __forceinline__ void kernel_begin(void)
{
    dependency_release();
    dependency_wait();
}

#endif
