/* port.cuh - what the language and the runtime of GPUs are called here: one name, CUDA's and HIP's
 *
 * Kernels name what both languages have (__global__, threadIdx, __syncthreads, atomicAdd, float4,
 * __float_as_uint) as it is. What only one of them has stands here alone, and in ptx.cuh and sm90/,
 * which are NVIDIA's; tools/check_style looks. The simulated GPU speaks CUDA (tests/simt).
 *
 * A warp is 32 lanes whatever the GPU, so that a kernel adds up in the same order everywhere. What
 * runs in lock-step is a wave: on NVIDIA's GPUs a warp, on others one warp or two. Warps of a wave
 * may go different ways, but not through different barriers of the block: where warps have parts
 * that hold one, the parts end with a wave. */
#ifndef FATHOM_BACKEND_CUDA_PORT_CUH
#define FATHOM_BACKEND_CUDA_PORT_CUH

#ifdef __HIP__
#include <hip/hip_bfloat16.h>
#include <hip/hip_runtime.h>
#else
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>
#include <cuda_runtime.h>
#endif
#include <stdint.h>
#include <string.h>

#include "base/assert.h"

#ifdef __HIP__
#define GPU(cuda_name, hip_name) hip_name
#else
#define GPU(cuda_name, hip_name) cuda_name
#endif

/* The text of a call, with the name that the runtime has for it. */
#define GPU_TEXT(call) GPU_TEXT_OF(call)
#define GPU_TEXT_OF(call) #call

/* ---- the target ---- */

#define WARP 32
#define GPU_WAVE GPU(WARP, __AMDGCN_WAVEFRONT_SIZE)
static_assert(GPU_WAVE % WARP == 0, "a warp lies in one wave");

/* Whether the paths of ACT_FP8 and ACT_INT8 are built. */
#define GPU_TENSOR_CORES GPU(true, false)

#if defined(__CUDA_ARCH__) || (defined(__HIP_DEVICE_COMPILE__) && __HIP_DEVICE_COMPILE__)
#define GPU_DEVICE_CODE
#endif

/* ---- the runtime's names ---- */

#define GPU_SUCCESS GPU(cudaSuccess, hipSuccess)
#define GPU_NO_MEMORY GPU(cudaErrorMemoryAllocation, hipErrorOutOfMemory)
#define GPU_PEER_ALREADY GPU(cudaErrorPeerAccessAlreadyEnabled, hipErrorPeerAccessAlreadyEnabled)
#define GPU_TO_DEVICE GPU(cudaMemcpyHostToDevice, hipMemcpyHostToDevice)
#define GPU_TO_HOST GPU(cudaMemcpyDeviceToHost, hipMemcpyDeviceToHost)
#define GPU_EITHER_WAY GPU(cudaMemcpyDefault, hipMemcpyDefault)
#define GPU_NON_BLOCKING GPU(cudaStreamNonBlocking, hipStreamNonBlocking)
#define GPU_OF_THREAD GPU(cudaStreamCaptureModeThreadLocal, hipStreamCaptureModeThreadLocal)

#define gpu_error GPU(cudaError_t, hipError_t)
#define gpu_properties GPU(cudaDeviceProp, hipDeviceProp_t)
#define gpu_stream GPU(cudaStream_t, hipStream_t)
#define gpu_event GPU(cudaEvent_t, hipEvent_t)
#define gpu_graph GPU(cudaGraph_t, hipGraph_t)
#define gpu_graph_exec GPU(cudaGraphExec_t, hipGraphExec_t)

#define gpu_last_error GPU(cudaGetLastError, hipGetLastError)
#define gpu_error_name GPU(cudaGetErrorName, hipGetErrorName)
#define gpu_error_string GPU(cudaGetErrorString, hipGetErrorString)
#define gpu_device_count GPU(cudaGetDeviceCount, hipGetDeviceCount)
#define gpu_device_properties GPU(cudaGetDeviceProperties, hipGetDeviceProperties)
#define gpu_set_device GPU(cudaSetDevice, hipSetDevice)
#define gpu_can_access_peer GPU(cudaDeviceCanAccessPeer, hipDeviceCanAccessPeer)
#define gpu_enable_peer_access GPU(cudaDeviceEnablePeerAccess, hipDeviceEnablePeerAccess)
#define gpu_malloc GPU(cudaMalloc, hipMalloc)
#define gpu_free GPU(cudaFree, hipFree)
#define gpu_free_host GPU(cudaFreeHost, hipHostFree)
#define gpu_mem_info GPU(cudaMemGetInfo, hipMemGetInfo)
#define gpu_memcpy GPU(cudaMemcpy, hipMemcpy)
#define gpu_memcpy_async GPU(cudaMemcpyAsync, hipMemcpyAsync)
#define gpu_memcpy_2d_async GPU(cudaMemcpy2DAsync, hipMemcpy2DAsync)
#define gpu_memset_async GPU(cudaMemsetAsync, hipMemsetAsync)
#define gpu_stream_create GPU(cudaStreamCreateWithFlags, hipStreamCreateWithFlags)
#define gpu_stream_destroy GPU(cudaStreamDestroy, hipStreamDestroy)
#define gpu_stream_synchronize GPU(cudaStreamSynchronize, hipStreamSynchronize)
#define gpu_stream_begin_capture GPU(cudaStreamBeginCapture, hipStreamBeginCapture)
#define gpu_stream_end_capture GPU(cudaStreamEndCapture, hipStreamEndCapture)
#define gpu_graph_launch GPU(cudaGraphLaunch, hipGraphLaunch)
#define gpu_graph_destroy GPU(cudaGraphDestroy, hipGraphDestroy)
#define gpu_graph_exec_destroy GPU(cudaGraphExecDestroy, hipGraphExecDestroy)
#define gpu_event_create GPU(cudaEventCreate, hipEventCreate)
#define gpu_event_destroy GPU(cudaEventDestroy, hipEventDestroy)
#define gpu_event_record GPU(cudaEventRecord, hipEventRecord)
#define gpu_event_synchronize GPU(cudaEventSynchronize, hipEventSynchronize)
#define gpu_event_elapsed_ms GPU(cudaEventElapsedTime, hipEventElapsedTime)

/* Of what the two runtimes have in different forms: pinned memory, recorded graphs, what a device
 * can.
 *
 * gpu_raise_shared - lets a kernel have blocks of so much dynamic shared memory
 * gpu_find_kernel - an error where the program has no code of the kernel for the device */
#ifdef __HIP__
#define gpu_malloc_host(out, n_byte) hipHostMalloc((out), (n_byte), 0)
#define gpu_graph_instantiate(exec, graph) hipGraphInstantiate((exec), (graph), NULL, NULL, 0)

static inline size_t gpu_shared_of_block(const gpu_properties &p)
{
    return p.sharedMemPerBlock;
}

static inline bool gpu_has_clusters(const gpu_properties &)
{
    return false;
}
#else
#define gpu_malloc_host(out, n_byte) cudaMallocHost((out), (n_byte))
#define gpu_graph_instantiate(exec, graph) cudaGraphInstantiate((exec), (graph), 0)

static inline size_t gpu_shared_of_block(const gpu_properties &p)
{
    return p.sharedMemPerBlockOptin;
}

static inline bool gpu_has_clusters(const gpu_properties &p)
{
    return p.major >= 9;
}
#endif

static inline gpu_error gpu_peer_atomics(int *has, int from, int to)
{
    return GPU(cudaDeviceGetP2PAttribute, hipDeviceGetP2PAttribute)(
        has, GPU(cudaDevP2PAttrNativeAtomicSupported, hipDevP2PAttrNativeAtomicSupported), from,
        to);
}

template <typename KERNEL> static inline gpu_error gpu_raise_shared(KERNEL *kernel, size_t n_byte)
{
    return GPU(
        cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)n_byte),
        hipFuncSetAttribute((const void *)kernel, hipFuncAttributeMaxDynamicSharedMemorySize,
                            (int)n_byte));
}

template <typename KERNEL> static inline gpu_error gpu_find_kernel(KERNEL *kernel)
{
    GPU(cudaFuncAttributes, hipFuncAttributes) found;
    return GPU(cudaFuncGetAttributes(&found, kernel),
               hipFuncGetAttributes(&found, (const void *)kernel));
}

/* A launch: blocks in clusters of n_cluster neighbours in x, threads of a block in a row. */
struct gpu_shape {
    dim3 grid;
    unsigned n_cluster, threads;
    size_t shared_bytes;
    bool overlaps; /* may begin while the kernel before runs (launch.cuh) */
};

#ifdef __HIP__
template <typename... PARAMS>
static inline gpu_error gpu_launch(const struct gpu_shape &s, gpu_stream stream,
                                   void (*kernel)(PARAMS...), const PARAMS &...values)
{
    void *at[] = {(void *)&values...};
    return hipLaunchKernel((const void *)kernel, s.grid, dim3(s.threads), at, s.shared_bytes,
                           stream);
}
#else
template <typename... PARAMS>
static inline gpu_error gpu_launch(const struct gpu_shape &s, gpu_stream stream,
                                   void (*kernel)(PARAMS...), const PARAMS &...values)
{
    cudaLaunchAttribute attributes[2] = {};
    attributes[0].id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attributes[0].val.programmaticStreamSerializationAllowed = 1;
    attributes[1].id = cudaLaunchAttributeClusterDimension;
    attributes[1].val.clusterDim.x = s.n_cluster;
    attributes[1].val.clusterDim.y = 1;
    attributes[1].val.clusterDim.z = 1;
    cudaLaunchConfig_t config = {};
    config.gridDim = s.grid;
    config.blockDim = dim3(s.threads);
    config.dynamicSmemBytes = s.shared_bytes;
    config.stream = stream;
    config.attrs = attributes;
    config.numAttrs = s.n_cluster > 1 ? 2 : s.overlaps ? 1 : 0;
    return cudaLaunchKernelEx(&config, kernel, values...);
}
#endif

/* ---- the language ---- */

/* DCHECK in kernels: nothing in release, and the simulated GPU, whose kernels are the host's code,
 * aborts as the host does. A GPU stops the kernel, and the device's fault names its launch. */
#if defined(FATHOM_DCHECK) && (defined(__CUDACC__) || defined(__HIP__))
static __host__ __device__ inline void dcheck_failed(const char *cond, const char *file, int line)
{
#ifdef GPU_DEVICE_CODE
    (void)cond, (void)file, (void)line;
    GPU(__trap, __builtin_trap)();
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

/* A parameter that the kernel reads where it lies. */
#define GRID_CONSTANT GPU(__grid_constant__, )

/* ---- warps ---- */

#ifdef __HIP__
template <typename T> static __device__ __forceinline__ T shfl_xor(T v, int lane_mask)
{
    return __shfl_xor(v, lane_mask, WARP);
}

template <typename T> static __device__ __forceinline__ T shfl(T v, int lane)
{
    return __shfl(v, lane, WARP);
}

template <typename T> static __device__ __forceinline__ T shfl_up(T v, int distance)
{
    return __shfl_up(v, (unsigned)distance, WARP);
}

static __device__ __forceinline__ uint32_t warp_largest(uint32_t v)
{
#pragma unroll
    for (int d = WARP / 2; d > 0; d >>= 1) v = max(v, shfl_xor(v, d));
    return v;
}

static __device__ __forceinline__ int warp_total(int v)
{
#pragma unroll
    for (int d = WARP / 2; d > 0; d >>= 1) v += shfl_xor(v, d);
    return v;
}

static __device__ __forceinline__ unsigned warp_ballot(bool p)
{
    return (unsigned)((uint64_t)__ballot(p) >> __lane_id() / WARP * WARP);
}

static __device__ __forceinline__ void warp_sync(void)
{
    __builtin_amdgcn_fence(__ATOMIC_ACQ_REL, "wavefront");
    __builtin_amdgcn_wave_barrier();
}
#else
#define FULL_MASK 0xffffffffu

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

static __device__ __forceinline__ void warp_sync(void)
{
    __syncwarp();
}
#endif

/* ---- types of two bytes and of one ---- */

#ifdef __HIP__
typedef hip_bfloat16 bf16;

static __device__ __forceinline__ float bf16_to_float(bf16 v)
{
    return (float)v;
}

static __device__ __forceinline__ bf16 float_to_bf16(float v)
{
    return bf16(v);
}

static __device__ __forceinline__ uint32_t pack_bf16(float lo, float hi)
{
    return bf16(lo).data | (uint32_t)bf16(hi).data << 16;
}

static __device__ __forceinline__ float e4m3_to_float(uint8_t v)
{
    const uint32_t sign = (uint32_t)(v & 0x80) << 24, of = v & 0x7f;
    if (of == 0x7f) return __uint_as_float(0x7fffffffu);
    const float size = of < 8 ? (float)of / 512.0f : __uint_as_float((of << 20) + (120u << 23));
    return __uint_as_float(__float_as_uint(size) | sign);
}

/* Rounds to the nearest, ties to even; ends at 448. */
static __device__ __forceinline__ uint8_t float_to_e4m3(float v)
{
    if (v != v) return 0x7f;
    const float size = fminf(fabsf(v), 448.0f);
    const uint32_t sign = __float_as_uint(v) >> 24 & 0x80, u = __float_as_uint(size);
    const uint32_t of =
        size < 0x1p-6f ? (uint32_t)rintf(size * 512.0f) : (u + 0x7ffffu + (u >> 20 & 1)) >> 20;
    return (uint8_t)(sign | (size < 0x1p-6f ? of : of - (120u << 3)));
}

static __device__ __forceinline__ uint16_t float2_to_e4m3x2(float x, float y)
{
    return (uint16_t)(float_to_e4m3(x) | float_to_e4m3(y) << 8);
}

static __device__ __forceinline__ float2 e4m3x2_to_float2(uint16_t v)
{
    return make_float2(e4m3_to_float((uint8_t)v), e4m3_to_float((uint8_t)(v >> 8)));
}
#else
typedef __nv_bfloat16 bf16;

static __device__ __forceinline__ float bf16_to_float(bf16 v)
{
    return __bfloat162float(v);
}

static __device__ __forceinline__ bf16 float_to_bf16(float v)
{
    return __float2bfloat16_rn(v);
}

static __device__ __forceinline__ uint32_t pack_bf16(float lo, float hi)
{
    const __nv_bfloat162 pair = __floats2bfloat162_rn(lo, hi);
    uint32_t bits;
    memcpy(&bits, &pair, sizeof bits);
    return bits;
}

static __device__ __forceinline__ float e4m3_to_float(uint8_t v)
{
    __half_raw h = __nv_cvt_fp8_to_halfraw(v, __NV_E4M3);
    return __half2float(*(__half *)&h);
}

static __device__ __forceinline__ uint8_t float_to_e4m3(float v)
{
    return (uint8_t)__nv_cvt_float_to_fp8(v, __NV_SATFINITE, __NV_E4M3);
}

/* Two codes, x in the low byte. */
static __device__ __forceinline__ uint16_t float2_to_e4m3x2(float x, float y)
{
    return (uint16_t)__nv_cvt_float2_to_fp8x2(make_float2(x, y), __NV_SATFINITE, __NV_E4M3);
}

static __device__ __forceinline__ float2 e4m3x2_to_float2(uint16_t v)
{
    __half2_raw h = __nv_cvt_fp8x2_to_halfraw2(v, __NV_E4M3);
    return __half22float2(*(__half2 *)&h);
}
#endif
static_assert(sizeof(bf16) == 2, "as checkpoints and cache rows have it");

#endif
