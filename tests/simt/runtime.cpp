/* runtime.cpp - devices, memory, streams, events and graphs of the simulated GPU
 *
 * A stream is a list of actions; a wait does them in order. Copies from memory of the host that is
 * not pinned take the bytes at once and copies to it wait, as the runtime does. Once a device has
 * failed it does nothing more, and every call but those that release says so.
 *
 * A wait is for one stream. Where a kernel of it looks for what another device sends, the streams
 * take turns, in an order of chance, until it has come. One thread at a time uses the devices; one
 * that waits where nobody gets on lets others enqueue. Where none can, the clock leaps, so that
 * bounded waits end; where that does not help the process ends and says who looks for what. */
#include <stdio.h>
#include <stdlib.h>

#include <chrono>
#include <condition_variable>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "cudaTypedefs.h"
#include "cuda_runtime.h"
#include "simt/simt_fault.h"
#include "simt/simt_link.h"
#include "simt/simt_outside.h"

extern "C" {
#include "base/clock.h"
}

typedef std::vector<std::function<void()>> actions;

struct simt_stream {
    std::deque<std::function<void()>> todo;
    simt_graph *capture; /* NULL: none */
    int device;
    simt_engine *engine;          /* of the action that has begun; NULL: none */
    std::function<void()> action; /* that one */
    unsigned delay;               /* turns until the next one may begin */
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

enum {
    DELAYS_MAX = 48,     /* turns of others before an action begins, with several devices */
    TURNS_IDLE = 256,    /* of each stream without an event: nobody gets on */
    OTHERS_S = 20,       /* so long another thread may take to enqueue what is missing */
    TURNS_OUTSIDE = 4,   /* likewise, where others do something */
    OUTSIDE_US = 500,    /* between looks at that */
};

struct allocation {
    size_t n;
    int device;
};

size_t memory_bytes = MEMORY_BYTES;
const char *odd_name; /* of odd_device, whose memory is odd_bytes where that is not 0 */
size_t odd_bytes;
int odd_device = -1;
int capability[2] = {8, 9};
int n_device = 1;
bool is_barred[SIMT_DEVICES_MAX][SIMT_DEVICES_MAX]; /* peer access cannot be had */
bool is_peer[SIMT_DEVICES_MAX][SIMT_DEVICES_MAX];   /* it has been enabled */
size_t n_allocated[SIMT_DEVICES_MAX];
size_t n_event, n_graph, n_replay, last_cluster, last_shared;
std::map<void *, allocation> allocations;
/* Not destroyed at exit: engines are kept to the end, and what looks for leaks finds them here. */
std::vector<simt_engine *> &idle_engines = *new std::vector<simt_engine *>;
uint64_t n_ended;      /* actions */
unsigned n_outside;    /* that others are doing */
uint64_t nanoseconds = 1;
constexpr uint64_t LEAP_NS = 1000000, LEAPS_MAX_NS = 1000000000000;

/* Of everything here; who waits lets others in where nobody gets on. */
std::recursive_mutex lock;
std::condition_variable_any enqueued;
int n_thread; /* that have said which device is theirs */
std::map<const char *, size_t> pinned;
std::map<const void *, size_t> shared_room; /* of kernels whose limit has been set */
std::vector<cudaStream_t> streams;

simt_call failing;    /* the kind that fails */
long n_until_failure; /* calls of it that succeed before */
bool has_failed;
cudaError_t broken[SIMT_DEVICES_MAX]; /* what a device says from then on */

/* -1: the thread has not said which device it works with. The CUDA runtime would take device 0. */
struct device_user {
    int device = -1;
    ~device_user()
    {
        if (device < 0) return;
        std::lock_guard<std::recursive_mutex> hold(lock);
        n_thread--;
        enqueued.notify_all();
    }
};
thread_local device_user user;

typedef std::lock_guard<std::recursive_mutex> guard;

int current_device(void)
{
    return user.device < 0 ? 0 : user.device;
}

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
cudaError_t outcome(simt_call call, int device)
{
    if (broken[device]) return broken[device];
    return fails(call) ? cudaErrorLaunchFailure : cudaSuccess;
}

/* ---- turns -------------------------------------------------------------------------------- */

bool has_work(const simt_stream *s)
{
    return s->engine || !s->todo.empty();
}

uint64_t count_events(void)
{
    return n_ended + simt_link_events();
}

/* Lets a stream take a turn: its action ends, or is left where it looks for something. */
void take_turn(cudaStream_t s)
{
    nanoseconds++;
    if (s->delay) {
        s->delay--;
        return;
    }
    const bool is_new = !s->engine;
    if (is_new) {
        s->action = std::move(s->todo.front());
        s->todo.pop_front();
        if (broken[s->device]) {
            n_ended++;
            return;
        }
        if (idle_engines.empty()) idle_engines.push_back(simt_engine_create());
        s->engine = idle_engines.back();
        idle_engines.pop_back();
    }
    if (!simt_engine_run(s->engine, s->device, is_new ? &s->action : NULL)) return;
    idle_engines.push_back(s->engine);
    s->engine = NULL;
    n_ended++;
    if (n_device > 1) s->delay = simt_random() % 2 ? (unsigned)(simt_random() % DELAYS_MAX) : 0;
}

void tell_who_waits(void)
{
    fprintf(stderr, "simt: devices wait for what does not come\n");
    for (cudaStream_t s : streams) {
        char text[256];
        if (!s->engine) continue;
        simt_engine_describe(s->engine, text, sizeof text);
        fprintf(stderr, "simt: %s\n", text);
    }
}

/* Nobody gets on: another thread may enqueue what is missing, else time passes, from a millisecond
 * on twice as much each time. */
void pass_time(uint64_t *leapt)
{
    if (n_outside) {
        (void)enqueued.wait_for(lock, std::chrono::microseconds(OUTSIDE_US));
        return;
    }
    if (n_thread > 1 && *leapt == 0 && enqueued.wait_for(lock, std::chrono::seconds(OTHERS_S)) ==
                            std::cv_status::no_timeout)
        return;
    if (*leapt > LEAPS_MAX_NS) {
        tell_who_waits();
        abort();
    }
    const uint64_t leap = *leapt ? *leapt : LEAP_NS;
    nanoseconds += leap;
    *leapt += leap;
}

cudaStream_t choose_stream(cudaStream_t wanted)
{
    if (streams.size() == 1 || simt_random() % 4 == 0) return wanted;
    return streams[simt_random() % streams.size()];
}

/* Does the stream's actions until `until` is true, or all. */
void drain(cudaStream_t stream, const bool *until)
{
    uint64_t events = count_events();
    size_t n_idle = 0;
    uint64_t leapt = 0;
    stream->delay = 0;
    while (has_work(stream) && !(until && *until)) {
        cudaStream_t s = stream->engine || stream->delay ? choose_stream(stream) : stream;
        if (has_work(s)) take_turn(s);
        if (count_events() != events) {
            events = count_events();
            n_idle = 0;
            leapt = 0;
        } else if (++n_idle > (n_outside ? TURNS_OUTSIDE : TURNS_IDLE) * streams.size()) {
            pass_time(&leapt);
            n_idle = 0;
        }
    }
    if (stream->todo.empty()) simt_link_flush(stream->device, false);
}

void drain_all(void)
{
    for (size_t i = 0; i < streams.size(); i++) drain(streams[i], NULL);
}

/* What a thread waits for may be its own device's alone: another one's may wait for this thread. */
void drain_device(int device)
{
    for (size_t i = 0; i < streams.size(); i++) {
        if (streams[i]->device == device) drain(streams[i], NULL);
    }
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
    return (const char *)p < (const char *)after->first + after->second.n;
}

} // namespace

int simt_owner(const void *p)
{
    auto after = allocations.upper_bound((void *)p);
    if (after == allocations.begin()) return -1;
    --after;
    const bool is_in = (const char *)p < (const char *)after->first + after->second.n;
    return is_in ? after->second.device : -1;
}

bool simt_reaches(int from, int to)
{
    return from == to || is_peer[from][to];
}

uint64_t simt_nanoseconds(void)
{
    return nanoseconds;
}

cudaError_t simt_enqueue(cudaStream_t stream, std::function<void()> action)
{
    guard hold(lock);
    if (user.device < 0) {
        fprintf(stderr, "simt: work from a thread that has not said which device is its own\n");
        abort();
    }
    if (stream->capture) {
        stream->capture->list.push_back(std::move(action));
    } else {
        stream->todo.push_back(std::move(action));
        enqueued.notify_all();
    }
    return cudaSuccess;
}

int simt_enqueue_outside(void *stream, bool (*is_over)(void *arg), void *arg)
{
    return simt_enqueue((cudaStream_t)stream, [is_over, arg] {
        n_outside++;
        simt_run(dim3(1), dim3(1), 1, 0, [is_over, arg] {
            while (!is_over(arg)) simt_poll({"what others do", 0, 0, 0});
        });
        n_outside--;
    });
}

bool simt_records(void *stream)
{
    guard hold(lock);
    return ((cudaStream_t)stream)->capture != NULL;
}

cudaError_t simt_launch(cudaStream_t stream, unsigned n_cluster, size_t shared_bytes,
                        std::function<void()> kernel)
{
    guard hold(lock);
    last_cluster = n_cluster;
    last_shared = shared_bytes;
    const int device = stream->device;
    if (user.device >= 0 && user.device != device) return cudaErrorInvalidValue;
    cudaError_t e = outcome(SIMT_LAUNCH, device);
    if (e) return e;
    return simt_enqueue(stream, [kernel, device] {
        if (fails(SIMT_KERNEL)) broken[device] = cudaErrorLaunchFailure;
        if (broken[device]) return;
        kernel();
        if (simt_is_trapped()) broken[device] = cudaErrorLaunchFailure;
        simt_link_flush(device, true);
    });
}

cudaError_t simt_raise_shared(const void *kernel, size_t n_byte)
{
    guard hold(lock);
    if (n_byte > shared_max()) return cudaErrorInvalidValue;
    shared_room[kernel] = n_byte;
    return cudaSuccess;
}

size_t simt_shared_room(const void *kernel)
{
    static constexpr size_t ROOM_PLAIN = 48 << 10;
    guard hold(lock);
    const auto at = shared_room.find(kernel);
    return at == shared_room.end() ? ROOM_PLAIN : at->second;
}

/* ---- faults ------------------------------------------------------------------------------- */

void simt_fail_after(simt_call call, long n)
{
    failing = call;
    n_until_failure = n;
    has_failed = false;
    for (cudaError_t &e : broken) e = cudaSuccess;
}

bool simt_fail_hit(void)
{
    return has_failed;
}

void simt_set_memory(size_t n_bytes)
{
    memory_bytes = n_bytes ? n_bytes : MEMORY_BYTES;
}

void simt_set_odd(int device, const char *name, size_t n_bytes)
{
    odd_device = device;
    odd_name = name;
    odd_bytes = n_bytes;
}

void simt_get_usage(struct simt_usage *out)
{
    *out = {allocations.size(), pinned.size(), streams.size(), n_event, n_graph, n_replay,
            last_cluster, last_shared};
}

/* ---- device ------------------------------------------------------------------------------- */

void simt_set_capability(int major, int minor)
{
    capability[0] = major;
    capability[1] = minor;
}

void simt_set_devices(int n)
{
    guard hold(lock);
    drain_all();
    n_device = n;
    memset(is_barred, 0, sizeof is_barred);
    memset(is_peer, 0, sizeof is_peer);
}

void simt_set_peer_access(int from, int to, bool can)
{
    is_barred[from][to] = !can;
}

void simt_set_seed(uint64_t seed)
{
    guard hold(lock);
    drain_all();
    simt_reseed(seed);
    for (cudaStream_t s : streams) s->delay = (unsigned)(simt_random() % DELAYS_MAX);
}

cudaError_t cudaGetDeviceCount(int *n)
{
    *n = n_device;
    return cudaSuccess;
}

cudaError_t cudaSetDevice(int device)
{
    guard hold(lock);
    if (device < 0 || device >= n_device) return cudaErrorInvalidValue;
    if (user.device < 0) n_thread++;
    user.device = device;
    return cudaSuccess;
}

cudaError_t cudaGetDevice(int *device)
{
    *device = current_device();
    return cudaSuccess;
}

cudaError_t cudaDeviceCanAccessPeer(int *can, int device, int peer)
{
    if (device < 0 || device >= n_device || peer < 0 || peer >= n_device)
        return cudaErrorInvalidValue;
    *can = device != peer && !is_barred[device][peer];
    return cudaSuccess;
}

/* Devices that can be peers are as on NVLink. */
cudaError_t cudaDeviceGetP2PAttribute(int *value, enum cudaDeviceP2PAttr attribute, int device,
                                      int peer)
{
    (void)attribute;
    return cudaDeviceCanAccessPeer(value, device, peer);
}

cudaError_t cudaDeviceEnablePeerAccess(int peer, unsigned flags)
{
    guard hold(lock);
    const int own = current_device();
    if (flags || peer < 0 || peer >= n_device || peer == own || is_barred[own][peer])
        return cudaErrorInvalidValue;
    if (is_peer[own][peer]) return cudaErrorPeerAccessAlreadyEnabled;
    is_peer[own][peer] = true;
    return cudaSuccess;
}

cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp *out, int device)
{
    if (device < 0 || device >= n_device) return cudaErrorInvalidValue;
    *out = {};
    (void)snprintf(out->name, sizeof out->name, "%s",
                   device == odd_device ? odd_name : "simulated");
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
                                        "cudaErrorNoKernelImageForDevice",
                                        "cudaErrorPeerAccessAlreadyEnabled"};
    return names[e];
}

const char *cudaGetErrorString(cudaError_t e)
{
    return cudaGetErrorName(e);
}

/* ---- memory ------------------------------------------------------------------------------- */

static size_t bytes_of_device(int device)
{
    return device == odd_device && odd_bytes ? odd_bytes : memory_bytes;
}

/* Bytes behind an allocation that nobody may write; looked at when it is given back. */
static constexpr size_t FENCE_BYTES = 4096;
static constexpr int FENCE_FILL = 0xa5;

static void check_fence(const void *p, size_t n)
{
    const unsigned char *fence = (const unsigned char *)p + n;
    for (size_t i = 0; i < FENCE_BYTES; i++) {
        if (fence[i] == FENCE_FILL) continue;
        fprintf(stderr, "simt: byte %zu behind an allocation of %zu bytes has been written\n", i, n);
        abort();
    }
}

cudaError_t cudaMalloc(void **out, size_t n)
{
    guard hold(lock);
    const int device = current_device();
    *out = NULL;
    if (broken[device]) return broken[device];
    if (fails(SIMT_MALLOC)) return cudaErrorMemoryAllocation;
    const size_t total = bytes_of_device(device);
    if (n_allocated[device] > total || n > total - n_allocated[device]) {
        return cudaErrorMemoryAllocation;
    }
    if (posix_memalign(out, 256, n + FENCE_BYTES) != 0) return cudaErrorMemoryAllocation;
    memset(*out, 0xff, n);
    memset((char *)*out + n, FENCE_FILL, FENCE_BYTES);
    allocations[*out] = {n, device};
    n_allocated[device] += n;
    return cudaSuccess;
}

cudaError_t cudaFree(void *p)
{
    guard hold(lock);
    drain_all();
    if (!p) return cudaSuccess;
    auto at = allocations.find(p);
    if (at == allocations.end()) return cudaErrorInvalidValue;
    check_fence(p, at->second.n);
    simt_link_forget(p, at->second.n);
    n_allocated[at->second.device] -= at->second.n;
    allocations.erase(at);
    free(p);
    return cudaSuccess;
}

cudaError_t cudaMallocHost(void **out, size_t n)
{
    guard hold(lock);
    if (broken[current_device()]) return broken[current_device()];
    if (fails(SIMT_MALLOC_HOST)) return cudaErrorMemoryAllocation;
    if (posix_memalign(out, 4096, n) != 0) return cudaErrorMemoryAllocation; /* whole pages */
    pinned[(const char *)*out] = n;
    return cudaSuccess;
}

cudaError_t cudaFreeHost(void *p)
{
    guard hold(lock);
    drain_all();
    if (pinned.erase((const char *)p) == 0) return cudaErrorInvalidValue;
    free(p);
    return cudaSuccess;
}

cudaError_t cudaMemGetInfo(size_t *n_free, size_t *n_total)
{
    const size_t used = n_allocated[current_device()];
    *n_total = bytes_of_device(current_device());
    *n_free = *n_total > used ? *n_total - used : 0;
    return broken[current_device()];
}

/* ---- copies ------------------------------------------------------------------------------- */

cudaError_t cudaMemcpy2DAsync(void *to, size_t to_pitch, const void *from, size_t from_pitch,
                              size_t width, size_t height, cudaMemcpyKind kind, cudaStream_t stream)
{
    guard hold(lock);
    cudaError_t e = outcome(SIMT_COPY, stream->device);
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
    return broken[stream->device];
}

cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t n, cudaMemcpyKind kind,
                            cudaStream_t stream)
{
    return cudaMemcpy2DAsync(to, n, from, n, n, 1, kind, stream);
}

cudaError_t cudaMemcpy(void *to, const void *from, size_t n, cudaMemcpyKind kind)
{
    (void)kind;
    guard hold(lock);
    cudaError_t e = outcome(SIMT_COPY, current_device());
    if (e) return e;
    drain_device(current_device());
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
    guard hold(lock);
    (void)flags;
    *out = new simt_stream();
    (*out)->device = current_device();
    streams.push_back(*out);
    return cudaSuccess;
}

cudaError_t cudaStreamDestroy(cudaStream_t stream)
{
    guard hold(lock);
    drain(stream, NULL);
    for (size_t i = 0; i < streams.size(); i++) {
        if (streams[i] == stream) streams.erase(streams.begin() + (long)i);
    }
    delete stream;
    return cudaSuccess;
}

cudaError_t cudaStreamSynchronize(cudaStream_t stream)
{
    guard hold(lock);
    if (stream->capture) return cudaErrorStreamCapture;
    cudaError_t e = outcome(SIMT_SYNC, stream->device);
    if (e) return e;
    drain(stream, NULL);
    return broken[stream->device];
}

cudaError_t cudaEventCreate(cudaEvent_t *out)
{
    guard hold(lock);
    *out = new simt_event();
    n_event++;
    return cudaSuccess;
}

cudaError_t cudaEventDestroy(cudaEvent_t event)
{
    guard hold(lock);
    delete event;
    n_event--;
    return cudaSuccess;
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream)
{
    guard hold(lock);
    auto when = std::make_shared<moment>();
    event->when = when;
    event->stream = stream;
    return simt_enqueue(stream, [when] { *when = {true, clock_now_us()}; });
}

cudaError_t cudaEventSynchronize(cudaEvent_t event)
{
    guard hold(lock);
    cudaError_t e = outcome(SIMT_SYNC, event->stream ? event->stream->device : current_device());
    if (e) return e;
    if (event->when) drain(event->stream, &event->when->come);
    return broken[event->stream ? event->stream->device : current_device()];
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
    guard hold(lock);
    if (stream->capture) return cudaErrorStreamCapture;
    if (broken[stream->device]) return broken[stream->device];
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
    guard hold(lock);
    cudaError_t e = outcome(SIMT_INSTANTIATE, current_device());
    if (e) return e;
    *out = new simt_graph(*graph);
    n_graph++;
    return cudaSuccess;
}

cudaError_t cudaGraphLaunch(cudaGraphExec_t graph, cudaStream_t stream)
{
    guard hold(lock);
    cudaError_t e = outcome(SIMT_LAUNCH, stream->device);
    if (e) return e;
    auto list = std::make_shared<actions>(graph->list);
    n_replay++;
    return simt_enqueue(stream, [list] {
        for (const std::function<void()> &action : *list) action();
    });
}

cudaError_t cudaGraphDestroy(cudaGraph_t graph)
{
    guard hold(lock);
    delete graph;
    n_graph--;
    return cudaSuccess;
}

cudaError_t cudaGraphExecDestroy(cudaGraphExec_t graph)
{
    guard hold(lock);
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
