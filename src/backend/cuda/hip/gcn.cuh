/* gcn.cuh - what the float path takes of ptx.cuh, on AMD's GPUs
 *
 * There are no launches with programmatic dependence: a kernel begins when the one before it has
 * ended. */
#ifndef FATHOM_BACKEND_CUDA_HIP_GCN_CUH
#define FATHOM_BACKEND_CUDA_HIP_GCN_CUH

#include "backend/cuda/port.cuh"

static __device__ __forceinline__ float exp2_approx(float x)
{
    return exp2f(x);
}

static __device__ __forceinline__ float reciprocal_approx(float x)
{
    return __builtin_amdgcn_rcpf(x);
}

static __device__ __forceinline__ void prefetch_l2(const void *)
{
}

static __device__ __forceinline__ void dependency_wait(void)
{
}

static __device__ __forceinline__ void dependency_release(void)
{
}

#endif
