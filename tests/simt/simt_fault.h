/* simt_fault.h - what the simulated GPU is, making it fail, and what of it is in use */
#ifndef FATHOM_TESTS_SIMT_FAULT_H
#define FATHOM_TESTS_SIMT_FAULT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum simt_call {
    SIMT_NONE,
    SIMT_MALLOC,      /* cudaMalloc: no memory */
    SIMT_MALLOC_HOST, /* cudaMallocHost: no memory */
    SIMT_LAUNCH,      /* a launch, or its place in a recording, is refused */
    SIMT_COPY,
    SIMT_SYNC,
    SIMT_INSTANTIATE, /* of a recording */
    SIMT_KERNEL /* a kernel fails while it runs: whatever waits next says so, and all after it */
};

/* simt_fail_after - let n calls of a kind succeed and fail the next; SIMT_NONE: none fails, and the
 * device works again. simt_fail_hit tells whether one has been failed since. */
void simt_fail_after(enum simt_call call, long n);
bool simt_fail_hit(void);

/* simt_set_capability - what kind of GPU it is from now on; at first sm_89. The program has no
 * kernels for those before sm_80 and after sm_12x. */
void simt_set_capability(int major, int minor);

/* simt_set_devices - how many there are from now on, 1 at first; each reaches every other's memory
 * unless told by simt_set_peer_access. The order of their turns is left to chance. */
enum { SIMT_DEVICES_MAX = 8 };
void simt_set_devices(int n);
void simt_set_peer_access(int from, int to, bool can);

/* simt_set_odd - one device has a name and memory of its own; -1: none has. 0 bytes: as much as the
 * others. */
void simt_set_odd(int device, const char *name, size_t n_bytes);

/* simt_set_seed - of everything that is left to chance from now on */
void simt_set_seed(uint64_t seed);

/* simt_set_memory - bytes of each device; 0: 1 GiB, as at the start */
void simt_set_memory(size_t n_bytes);

struct simt_usage {
    size_t n_allocation, n_pinned, n_stream, n_event, n_graph;
    size_t n_replay;     /* recordings launched since the start */
    size_t cluster_size; /* blocks of a cluster of the last kernel launched; 1: it has none */
    size_t shared_bytes; /* dynamic shared memory of each of its blocks */
};
void simt_get_usage(struct simt_usage *out);

#ifdef __cplusplus
}
#endif

#endif
