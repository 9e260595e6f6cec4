/* port.cuh - what every kernel file names: the warp size, bf16, shuffles and votes of whole warps
 */
#ifndef FATHOM_BACKEND_CUDA_PORT_CUH
#define FATHOM_BACKEND_CUDA_PORT_CUH

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>
#include <stdint.h>

#include "base/assert.h"

#define WARP 32
#define FULL_MASK 0xffffffffu

/* DCHECK in kernels: nothing in release, and the simulated GPU, whose kernels are the host's code,
 * aborts as the host does. A GPU stops the kernel, and the device's fault names its launch. */
#if defined(FATHOM_DCHECK) && defined(__CUDACC__)
static __host__ __device__ inline void dcheck_failed(const char *cond, const char *file, int line)
{
#ifdef __CUDA_ARCH__
    (void)cond, (void)file, (void)line;
    __trap();
#else
    assert_failed(cond, file, line);
#endif
}
#undef DCHECK
#define DCHECK(cond) ((cond) ? (void)0 : dcheck_failed(#cond, __FILE__, __LINE__))
#endif

/* The block's dynamic shared memory as an array of a type, aligned as permuted tiles need it. */
#ifndef SHARED_DYNAMIC
#define SHARED_DYNAMIC(type, name) extern __shared__ __align__(1024) type name[]
#endif

typedef __nv_bfloat16 bf16;
static_assert(sizeof(bf16) == 2, "as checkpoints and cache rows have it");

template <typename T> static __device__ __forceinline__ T shfl_xor(T v, int lane_mask)
{
    return __shfl_xor_sync(FULL_MASK, v, lane_mask);
}

template <typename T> static __device__ __forceinline__ T shfl(T v, int lane)
{
    return __shfl_sync(FULL_MASK, v, lane);
}

/* of the lane `distance` below; lanes without one keep theirs */
template <typename T> static __device__ __forceinline__ T shfl_up(T v, int distance)
{
    return __shfl_up_sync(FULL_MASK, v, (unsigned)distance);
}

static __device__ __forceinline__ uint32_t warp_largest(uint32_t v)
{
    return __reduce_max_sync(FULL_MASK, v);
}

static __device__ __forceinline__ int warp_total(int v)
{
    return __reduce_add_sync(FULL_MASK, v);
}

static __device__ __forceinline__ unsigned warp_ballot(bool p)
{
    return __ballot_sync(FULL_MASK, p);
}

#endif
