/* cuda_runtime.h - what the CUDA backend uses of the runtime, on the simulated GPU (simt/simt.h)
 *
 * Types, launches and copies as there. A stream keeps what it is told in order and does it when
 * somebody waits; a stream that is being captured gives what it is told to the graph instead.
 * Memory of the device is the host's. */
#ifndef FATHOM_TESTS_SIMT_CUDA_RUNTIME_H
#define FATHOM_TESTS_SIMT_CUDA_RUNTIME_H

#include <math.h>
#include <string.h>

#include <tuple>

#include "simt/race.h"
#include "simt/simt.h"

#define __global__
#define __device__
#define __host__
#define __forceinline__ inline
#define __noinline__ __attribute__((noinline))
#define __launch_bounds__(...)
#define __align__(n) alignas(n)
#define __shared__ static
#define __grid_constant__
#define SHARED_DYNAMIC(type, name) type *const name = (type *)simt_shared()

/* ---- vectors ------------------------------------------------------------------------------ */

struct uint2 {
    uint32_t x, y;
};
struct alignas(16) uint4 {
    uint32_t x, y, z, w;
};
struct int2 {
    int x, y;
};
struct alignas(16) int4 {
    int x, y, z, w;
};
struct alignas(8) float2 {
    float x, y;
};
struct alignas(16) float4 {
    float x, y, z, w;
};

static inline uint2 make_uint2(uint32_t x, uint32_t y)
{
    return {x, y};
}
static inline uint4 make_uint4(uint32_t x, uint32_t y, uint32_t z, uint32_t w)
{
    return {x, y, z, w};
}
static inline int2 make_int2(int x, int y)
{
    return {x, y};
}
static inline int4 make_int4(int x, int y, int z, int w)
{
    return {x, y, z, w};
}
static inline float2 make_float2(float x, float y)
{
    return {x, y};
}
static inline float4 make_float4(float x, float y, float z, float w)
{
    return {x, y, z, w};
}

/* ---- device functions --------------------------------------------------------------------- */

static inline int min(int a, int b)
{
    return a < b ? a : b;
}
static inline int max(int a, int b)
{
    return a > b ? a : b;
}
static inline uint32_t min(uint32_t a, uint32_t b)
{
    return a < b ? a : b;
}
static inline uint32_t max(uint32_t a, uint32_t b)
{
    return a > b ? a : b;
}

static inline uint32_t __float_as_uint(float v)
{
    uint32_t u;
    memcpy(&u, &v, 4);
    return u;
}
static inline float __uint_as_float(uint32_t u)
{
    float v;
    memcpy(&v, &u, 4);
    return v;
}
static inline int __popc(uint32_t v)
{
    return __builtin_popcount(v);
}
static inline int __ffs(int v)
{
    return __builtin_ffs(v);
}
/* byte i of the result is byte (selector >> 4i) % 8 of b:a */
static inline uint32_t __byte_perm(uint32_t a, uint32_t b, uint32_t selector)
{
    const uint64_t both = (uint64_t)b << 32 | a;
    uint32_t v = 0;
    for (int i = 0; i < 4; i++) {
        v |= (uint32_t)(both >> (selector >> 4 * i & 7) * 8 & 0xff) << 8 * i;
    }
    return v;
}
#define __expf expf
#define __logf logf
#define __cosf cosf
static inline float rsqrtf(float x)
{
    return 1.0f / sqrtf(x);
}

#include "cuda_warp.h"

/* ---- runtime ------------------------------------------------------------------------------ */

enum cudaError_t {
    cudaSuccess,
    cudaErrorInvalidValue,
    cudaErrorMemoryAllocation,
    cudaErrorStreamCapture,
    cudaErrorLaunchFailure,
    cudaErrorNotSupported,
    cudaErrorNoKernelImageForDevice,
    cudaErrorPeerAccessAlreadyEnabled,
};
enum cudaMemcpyKind {
    cudaMemcpyHostToDevice,
    cudaMemcpyDeviceToHost,
    cudaMemcpyDeviceToDevice,
    cudaMemcpyDefault
};
enum cudaDeviceP2PAttr {
    cudaDevP2PAttrNativeAtomicSupported,
};

enum cudaFuncAttribute {
    cudaFuncAttributeMaxDynamicSharedMemorySize,
    cudaFuncAttributePreferredSharedMemoryCarveout,
    cudaFuncAttributeNonPortableClusterSizeAllowed
};
enum { cudaSharedmemCarveoutMaxShared = 100 };
enum { cudaStreamNonBlocking = 1 };
enum cudaStreamCaptureMode { cudaStreamCaptureModeThreadLocal };
enum cudaLaunchAttributeID {
    cudaLaunchAttributeProgrammaticStreamSerialization,
    cudaLaunchAttributeClusterDimension
};

struct simt_stream;
struct simt_event;
struct simt_graph;
typedef struct simt_stream *cudaStream_t;
typedef struct simt_event *cudaEvent_t;
typedef struct simt_graph *cudaGraph_t, *cudaGraphExec_t;

struct cudaDeviceProp {
    char name[256];
    int major, minor, multiProcessorCount, warpSize;
    size_t sharedMemPerBlockOptin;
};

struct cudaFuncAttributes {
    int binaryVersion;
};

struct cudaLaunchAttribute {
    enum cudaLaunchAttributeID id;
    struct {
        int programmaticStreamSerializationAllowed;
        struct {
            unsigned x, y, z;
        } clusterDim;
    } val;
};

struct cudaLaunchConfig_t {
    dim3 gridDim, blockDim;
    size_t dynamicSmemBytes;
    cudaStream_t stream;
    struct cudaLaunchAttribute *attrs;
    unsigned numAttrs;
};

/* simt_enqueue - do this once the stream gets there */
cudaError_t simt_enqueue(cudaStream_t stream, std::function<void()> action);

/* simt_launch - the same for a kernel, n_cluster blocks a cluster, which may fail (simt_fault.h)
 * simt_raise_shared, simt_shared_room - what a kernel's blocks may have; 48 KB unless raised */
cudaError_t simt_launch(cudaStream_t stream, unsigned n_cluster, size_t shared_bytes,
                        std::function<void()> kernel);
cudaError_t simt_raise_shared(const void *kernel, size_t n_byte);
size_t simt_shared_room(const void *kernel);

cudaError_t cudaGetDeviceCount(int *n);
cudaError_t cudaSetDevice(int device);
cudaError_t cudaGetDevice(int *device);
cudaError_t cudaDeviceCanAccessPeer(int *can, int device, int peer);
cudaError_t cudaDeviceGetP2PAttribute(int *value, enum cudaDeviceP2PAttr attribute, int device,
                                      int peer);
cudaError_t cudaDeviceEnablePeerAccess(int peer, unsigned flags);
cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp *out, int device);
cudaError_t cudaGetLastError(void);
const char *cudaGetErrorName(cudaError_t e);
const char *cudaGetErrorString(cudaError_t e);
cudaError_t cudaMalloc(void **out, size_t n);
cudaError_t cudaFree(void *p);
cudaError_t cudaMallocHost(void **out, size_t n);
cudaError_t cudaFreeHost(void *p);
cudaError_t cudaMemGetInfo(size_t *n_free, size_t *n_total);
cudaError_t cudaMemcpy(void *to, const void *from, size_t n, cudaMemcpyKind kind);
cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t n, cudaMemcpyKind kind,
                            cudaStream_t stream);
cudaError_t cudaMemcpy2DAsync(void *to, size_t to_pitch, const void *from, size_t from_pitch,
                              size_t width, size_t height, cudaMemcpyKind kind,
                              cudaStream_t stream);
cudaError_t cudaMemsetAsync(void *p, int value, size_t n, cudaStream_t stream);
cudaError_t cudaStreamCreateWithFlags(cudaStream_t *out, unsigned flags);
cudaError_t cudaStreamDestroy(cudaStream_t stream);
cudaError_t cudaStreamSynchronize(cudaStream_t stream);
cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode mode);
cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t *out);
cudaError_t cudaGraphInstantiate(cudaGraphExec_t *out, cudaGraph_t graph, unsigned long long flags);
cudaError_t cudaGraphLaunch(cudaGraphExec_t graph, cudaStream_t stream);
cudaError_t cudaGraphDestroy(cudaGraph_t graph);
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t graph);
cudaError_t cudaEventCreate(cudaEvent_t *out);
cudaError_t cudaEventDestroy(cudaEvent_t event);
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream);
cudaError_t cudaEventSynchronize(cudaEvent_t event);
cudaError_t cudaEventElapsedTime(float *ms, cudaEvent_t from, cudaEvent_t to);

template <typename F>
static inline cudaError_t cudaFuncSetAttribute(F *kernel, cudaFuncAttribute attribute, int n)
{
    if (attribute != cudaFuncAttributeMaxDynamicSharedMemorySize) return cudaSuccess;
    return simt_raise_shared((const void *)kernel, (size_t)n);
}

template <typename F> static inline cudaError_t cudaFuncGetAttributes(cudaFuncAttributes *out, F *)
{
    struct cudaDeviceProp p;
    (void)cudaGetDeviceProperties(&p, 0);
    out->binaryVersion = p.major * 10 + p.minor;
    return p.major < 8 || p.major > 12 ? cudaErrorNoKernelImageForDevice : cudaSuccess;
}

static inline unsigned simt_cluster_size(const cudaLaunchConfig_t &c)
{
    for (unsigned i = 0; i < c.numAttrs; i++) {
        if (c.attrs[i].id == cudaLaunchAttributeClusterDimension)
            return c.attrs[i].val.clusterDim.x;
    }
    return 1;
}

/* Few, so that clusters walk over several items; none where more threads than run together. */
template <typename F>
static inline cudaError_t cudaOccupancyMaxActiveClusters(int *n, F *, const cudaLaunchConfig_t *c)
{
    const unsigned n_block = simt_cluster_size(*c);
    *n = n_block <= SIMT_CLUSTER_MAX && n_block * c->blockDim.x <= SIMT_THREADS_MAX ? 2 : 0;
    return cudaSuccess;
}

/* Arguments are copied now, as there. */
template <typename... PARAMS, typename... ARGS>
static inline cudaError_t cudaLaunchKernelEx(const struct cudaLaunchConfig_t *config,
                                             void (*kernel)(PARAMS...), ARGS... args)
{
    const cudaLaunchConfig_t c = *config;
    const std::tuple<PARAMS...> values(args...);
    const unsigned n_cluster = simt_cluster_size(c);
    if (c.gridDim.x == 0 || c.gridDim.y == 0 || c.gridDim.z == 0) return cudaErrorInvalidValue;
    if (c.dynamicSmemBytes > simt_shared_room((const void *)kernel)) return cudaErrorInvalidValue;
    return simt_launch(c.stream, n_cluster, c.dynamicSmemBytes, [c, n_cluster, kernel, values] {
        simt_run(c.gridDim, c.blockDim, n_cluster, c.dynamicSmemBytes,
                 [kernel, &values] { std::apply(kernel, values); });
    });
}

#endif
