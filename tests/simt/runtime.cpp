/* runtime.cpp - memory, streams, events and graphs of the simulated GPU
 *
 * A stream is a list of actions; a wait does them in order. Copies from memory of the host that is
 * not pinned take the bytes at once and copies to it wait, as the runtime does. Once the device has
 * failed it does nothing more, and every call but those that release says so. */
#include <stdio.h>
#include <stdlib.h>

#include <deque>
#include <map>
#include <memory>
#include <vector>

#include "cudaTypedefs.h"
#include "cuda_runtime.h"
#include "simt/simt_fault.h"

extern "C" {
#include "base/clock.h"
}

typedef std::vector<std::function<void()>> actions;

struct simt_stream {
    std::deque<std::function<void()>> todo;
    simt_graph *capture; /* NULL: none */
};

struct moment {
    bool come;
    uint64_t at_us;
};

struct simt_event {
    std::shared_ptr<moment> when; /* empty: never recorded */
    cudaStream_t stream;
};

struct simt_graph {
    actions list;
};

namespace
{

enum { MEMORY_BYTES = 1 << 30 };

size_t memory_bytes = MEMORY_BYTES;
int capability[2] = {8, 9};
size_t n_allocated;
size_t n_event, n_graph, n_replay;
std::map<void *, size_t> allocations;
std::map<const char *, size_t> pinned;
std::vector<cudaStream_t> streams;

simt_call failing;    /* the kind that fails */
long n_until_failure; /* calls of it that succeed before */
bool has_failed;
cudaError_t broken; /* what the device says from then on */

/* -1: the thread has not said which device it works with. The CUDA runtime would take device 0. */
thread_local int current_device = -1;

bool fails(simt_call call)
{
    if (call != failing || n_until_failure-- > 0) return false;
    failing = SIMT_NONE;
    has_failed = true;
    return true;
}

/* Shared memory that a block can have on a GPU of this capability. */
size_t shared_max(void)
{
    const bool is_first = capability[0] == 8 && capability[1] == 0;
    const bool is_small = capability[0] == 8 || capability[0] == 12;
    return is_first ? 163 * 1024 : is_small ? 99 * 1024 : SIMT_SHARED_BYTES;
}

/* Of a call that can fail: the device's own error first. */
cudaError_t outcome(simt_call call)
{
    if (broken) return broken;
    return fails(call) ? cudaErrorLaunchFailure : cudaSuccess;
}

/* Does the stream's actions until `until` is true, or all. */
void drain(cudaStream_t stream, const bool *until)
{
    while (!stream->todo.empty() && !(until && *until)) {
        std::function<void()> action = std::move(stream->todo.front());
        stream->todo.pop_front();
        if (!broken) action();
    }
}

void drain_all(void)
{
    for (cudaStream_t s : streams) drain(s, NULL);
}

bool is_pinned(const void *p)
{
    auto after = pinned.upper_bound((const char *)p);
    if (after == pinned.begin()) return false;
    --after;
    return (const char *)p < after->first + after->second;
}

bool is_device(const void *p)
{
    auto after = allocations.upper_bound((void *)p);
    if (after == allocations.begin()) return false;
    --after;
    return (const char *)p < (const char *)after->first + after->second;
}

} // namespace

cudaError_t simt_enqueue(cudaStream_t stream, std::function<void()> action)
{
    if (current_device < 0) {
        fprintf(stderr, "simt: work from a thread that has not said which device is its own\n");
        abort();
    }
    if (stream->capture) {
        stream->capture->list.push_back(std::move(action));
    } else {
        stream->todo.push_back(std::move(action));
    }
    return cudaSuccess;
}

cudaError_t simt_launch(cudaStream_t stream, std::function<void()> kernel)
{
    cudaError_t e = outcome(SIMT_LAUNCH);
    if (e) return e;
    return simt_enqueue(stream, [kernel] {
        if (fails(SIMT_KERNEL)) broken = cudaErrorLaunchFailure;
        if (!broken) kernel();
    });
}

/* ---- faults ------------------------------------------------------------------------------- */

void simt_fail_after(simt_call call, long n)
{
    failing = call;
    n_until_failure = n;
    has_failed = false;
    broken = cudaSuccess;
}

bool simt_fail_hit(void)
{
    return has_failed;
}

void simt_set_memory(size_t n_bytes)
{
    memory_bytes = n_bytes ? n_bytes : MEMORY_BYTES;
}

void simt_get_usage(struct simt_usage *out)
{
    *out = {allocations.size(), pinned.size(), streams.size(), n_event, n_graph, n_replay};
}

/* ---- device ------------------------------------------------------------------------------- */

void simt_set_capability(int major, int minor)
{
    capability[0] = major;
    capability[1] = minor;
}

cudaError_t cudaGetDeviceCount(int *n)
{
    *n = 1;
    return cudaSuccess;
}

cudaError_t cudaSetDevice(int device)
{
    if (device != 0) return cudaErrorInvalidValue;
    current_device = device;
    return cudaSuccess;
}

cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp *out, int device)
{
    if (device != 0) return cudaErrorInvalidValue;
    *out = {};
    (void)snprintf(out->name, sizeof out->name, "simulated");
    out->major = capability[0];
    out->minor = capability[1];
    out->multiProcessorCount = 1; /* so that one resident block walks over all tiles */
    out->warpSize = SIMT_WARP;
    out->sharedMemPerBlockOptin = shared_max();
    return cudaSuccess;
}

cudaError_t cudaGetLastError(void)
{
    return cudaSuccess;
}

const char *cudaGetErrorName(cudaError_t e)
{
    static const char *const names[] = {"cudaSuccess",
                                        "cudaErrorInvalidValue",
                                        "cudaErrorMemoryAllocation",
                                        "cudaErrorStreamCapture",
                                        "cudaErrorLaunchFailure",
                                        "cudaErrorNotSupported",
                                        "cudaErrorNoKernelImageForDevice"};
    return names[e];
}

const char *cudaGetErrorString(cudaError_t e)
{
    return cudaGetErrorName(e);
}

/* ---- memory ------------------------------------------------------------------------------- */

cudaError_t cudaMalloc(void **out, size_t n)
{
    *out = NULL;
    if (broken) return broken;
    if (fails(SIMT_MALLOC)) return cudaErrorMemoryAllocation;
    if (n_allocated > memory_bytes || n > memory_bytes - n_allocated) {
        return cudaErrorMemoryAllocation;
    }
    if (posix_memalign(out, 256, n) != 0) return cudaErrorMemoryAllocation;
    memset(*out, 0xff, n);
    allocations[*out] = n;
    n_allocated += n;
    return cudaSuccess;
}

cudaError_t cudaFree(void *p)
{
    drain_all();
    if (!p) return cudaSuccess;
    auto at = allocations.find(p);
    if (at == allocations.end()) return cudaErrorInvalidValue;
    n_allocated -= at->second;
    allocations.erase(at);
    free(p);
    return cudaSuccess;
}

cudaError_t cudaMallocHost(void **out, size_t n)
{
    if (broken) return broken;
    if (fails(SIMT_MALLOC_HOST)) return cudaErrorMemoryAllocation;
    if (posix_memalign(out, 256, n) != 0) return cudaErrorMemoryAllocation;
    pinned[(const char *)*out] = n;
    return cudaSuccess;
}

cudaError_t cudaFreeHost(void *p)
{
    drain_all();
    if (pinned.erase((const char *)p) == 0) return cudaErrorInvalidValue;
    free(p);
    return cudaSuccess;
}

cudaError_t cudaMemGetInfo(size_t *n_free, size_t *n_total)
{
    *n_total = memory_bytes;
    *n_free = memory_bytes > n_allocated ? memory_bytes - n_allocated : 0;
    return broken;
}

/* ---- copies ------------------------------------------------------------------------------- */

cudaError_t cudaMemcpy2DAsync(void *to, size_t to_pitch, const void *from, size_t from_pitch,
                              size_t width, size_t height, cudaMemcpyKind kind, cudaStream_t stream)
{
    cudaError_t e = outcome(SIMT_COPY);
    if (e) return e;
    if (kind == cudaMemcpyDefault) {
        kind = !is_device(from) ? cudaMemcpyHostToDevice
               : is_device(to)  ? cudaMemcpyDeviceToDevice
                                : cudaMemcpyDeviceToHost;
    }
    if (!is_device(kind == cudaMemcpyDeviceToHost ? from : to)) return cudaErrorInvalidValue;
    if (width == 0 || height == 0) return cudaSuccess;
    auto copy_rows = [to, to_pitch, width, height](const char *rows, size_t pitch) {
        for (size_t i = 0; i < height; i++) {
            memcpy((char *)to + i * to_pitch, rows + i * pitch, width);
        }
    };
    if (kind == cudaMemcpyHostToDevice && !is_pinned(from)) {
        if (stream->capture) return cudaErrorStreamCapture;
        auto taken = std::make_shared<std::vector<char>>(height * width);
        for (size_t i = 0; i < height; i++) {
            memcpy(taken->data() + i * width, (const char *)from + i * from_pitch, width);
        }
        return simt_enqueue(stream, [=] { copy_rows(taken->data(), width); });
    }
    bool waits = kind == cudaMemcpyDeviceToHost && !is_pinned(to);
    if (waits && stream->capture) return cudaErrorStreamCapture;
    (void)simt_enqueue(stream, [=] { copy_rows((const char *)from, from_pitch); });
    if (waits) drain(stream, NULL);
    return broken;
}

cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t n, cudaMemcpyKind kind,
                            cudaStream_t stream)
{
    return cudaMemcpy2DAsync(to, n, from, n, n, 1, kind, stream);
}

cudaError_t cudaMemcpy(void *to, const void *from, size_t n, cudaMemcpyKind kind)
{
    (void)kind;
    cudaError_t e = outcome(SIMT_COPY);
    if (e) return e;
    drain_all();
    memcpy(to, from, n);
    return cudaSuccess;
}

cudaError_t cudaMemsetAsync(void *p, int value, size_t n, cudaStream_t stream)
{
    return simt_enqueue(stream, [=] { memset(p, value, n); });
}

/* ---- streams ------------------------------------------------------------------------------ */

cudaError_t cudaStreamCreateWithFlags(cudaStream_t *out, unsigned flags)
{
    (void)flags;
    *out = new simt_stream();
    streams.push_back(*out);
    return cudaSuccess;
}

cudaError_t cudaStreamDestroy(cudaStream_t stream)
{
    drain(stream, NULL);
    for (size_t i = 0; i < streams.size(); i++) {
        if (streams[i] == stream) streams.erase(streams.begin() + (long)i);
    }
    delete stream;
    return cudaSuccess;
}

cudaError_t cudaStreamSynchronize(cudaStream_t stream)
{
    if (stream->capture) return cudaErrorStreamCapture;
    cudaError_t e = outcome(SIMT_SYNC);
    if (e) return e;
    drain(stream, NULL);
    return broken;
}

cudaError_t cudaEventCreate(cudaEvent_t *out)
{
    *out = new simt_event();
    n_event++;
    return cudaSuccess;
}

cudaError_t cudaEventDestroy(cudaEvent_t event)
{
    delete event;
    n_event--;
    return cudaSuccess;
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream)
{
    auto when = std::make_shared<moment>();
    event->when = when;
    event->stream = stream;
    return simt_enqueue(stream, [when] { *when = {true, clock_now_us()}; });
}

cudaError_t cudaEventSynchronize(cudaEvent_t event)
{
    cudaError_t e = outcome(SIMT_SYNC);
    if (e) return e;
    if (event->when) drain(event->stream, &event->when->come);
    return broken;
}

cudaError_t cudaEventElapsedTime(float *ms, cudaEvent_t from, cudaEvent_t to)
{
    if (!from->when || !to->when || !from->when->come || !to->when->come) {
        return cudaErrorInvalidValue;
    }
    *ms = (float)(to->when->at_us - from->when->at_us) / 1000.0f;
    return cudaSuccess;
}

/* ---- graphs ------------------------------------------------------------------------------- */

cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode mode)
{
    (void)mode;
    if (stream->capture) return cudaErrorStreamCapture;
    if (broken) return broken;
    stream->capture = new simt_graph();
    n_graph++;
    return cudaSuccess;
}

cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t *out)
{
    if (!stream->capture) return cudaErrorStreamCapture;
    *out = stream->capture;
    stream->capture = NULL;
    return cudaSuccess;
}

cudaError_t cudaGraphInstantiate(cudaGraphExec_t *out, cudaGraph_t graph, unsigned long long flags)
{
    (void)flags;
    cudaError_t e = outcome(SIMT_INSTANTIATE);
    if (e) return e;
    *out = new simt_graph(*graph);
    n_graph++;
    return cudaSuccess;
}

cudaError_t cudaGraphLaunch(cudaGraphExec_t graph, cudaStream_t stream)
{
    cudaError_t e = outcome(SIMT_LAUNCH);
    if (e) return e;
    auto list = std::make_shared<actions>(graph->list);
    n_replay++;
    return simt_enqueue(stream, [list] {
        for (const std::function<void()> &action : *list) action();
    });
}

cudaError_t cudaGraphDestroy(cudaGraph_t graph)
{
    delete graph;
    n_graph--;
    return cudaSuccess;
}

cudaError_t cudaGraphExecDestroy(cudaGraphExec_t graph)
{
    delete graph;
    n_graph--;
    return cudaSuccess;
}

/* ---- tensor maps -------------------------------------------------------------------------- */

namespace
{

CUresult encode(CUtensorMap *map, CUtensorMapDataType, cuuint32_t rank, void *data,
                const cuuint64_t *size, const cuuint64_t *stride, const cuuint32_t *box,
                const cuuint32_t *step, CUtensorMapInterleave, CUtensorMapSwizzle,
                CUtensorMapL2promotion, CUtensorMapFloatOOBfill)
{
    if (rank != 3 || (uintptr_t)data % 16 || box[0] != 128) return CUDA_ERROR_INVALID_VALUE;
    *map = {};
    map->data = (const char *)data;
    for (int i = 0; i < 3; i++) {
        if (size[i] == 0 || box[i] == 0 || box[i] > 256 || step[i] != 1) {
            return CUDA_ERROR_INVALID_VALUE;
        }
        if (i < 2 && (stride[i] % 16 || stride[i] == 0)) return CUDA_ERROR_INVALID_VALUE;
        map->size[i] = size[i];
        map->box[i] = box[i];
        if (i < 2) map->stride[i] = stride[i];
    }
    return CUDA_SUCCESS;
}

} // namespace

cudaError_t cudaGetDriverEntryPointByVersion(const char *name, void **function, unsigned version,
                                             unsigned long long flags,
                                             cudaDriverEntryPointQueryResult *result)
{
    (void)version, (void)flags;
    if (strcmp(name, "cuTensorMapEncodeTiled") != 0) return cudaErrorInvalidValue;
    *function = (void *)encode;
    *result = cudaDriverEntryPointSuccess;
    return cudaSuccess;
}
