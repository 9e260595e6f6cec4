/* simt.h - a GPU on the host: the CUDA backend's kernels, compiled as C++ and run thread by thread
 *
 * It serves the tests: the portable kernels run on every machine, also with the address sanitizer.
 * What a GPU leaves open is varied on purpose or made to show:
 *
 *   order     the threads of a block run in an order that changes from block to block; a missing
 *             barrier gives other bits on the next run
 *   shared    dynamic shared memory holds NaN until it is written
 *   streams   nothing of a stream is done before somebody waits for it, so memory of the host that
 *             changes too early is seen changed
 *   cp.async  nothing has arrived before the wait
 *   races     in shared memory end the process, in builds that look for them (race.h)
 *   blocks    run one after the other; a block that waits for another one never ends, and says so.
 *             The blocks of a cluster run together
 *   devices   take turns: a kernel runs until it has to look again for what another device sends
 *             (simt_poll), and begins when chance has it. What devices send each other arrives late
 *             and in any order (simt_link.h)
 *
 * A thread is a fiber with a stack of its own. It runs until it needs others: __syncthreads waits
 * for all threads of the block that have not returned, a warp's operation for those of the warp.
 * __shared__ variables exist once: kernels in clusters, and those that look for what other devices
 * send, must not have any.
 */
#ifndef FATHOM_TESTS_SIMT_H
#define FATHOM_TESTS_SIMT_H

#include <stddef.h>
#include <stdint.h>

#include <functional>

struct dim3 {
    unsigned x, y, z;
    dim3(unsigned x_ = 1, unsigned y_ = 1, unsigned z_ = 1) : x(x_), y(y_), z(z_)
    {
    }
};

struct uint3 {
    unsigned x, y, z;
};

/* Of the thread that runs. */
extern uint3 threadIdx, blockIdx;
extern dim3 blockDim, gridDim;

enum {
    SIMT_WARP = 32,
    SIMT_EXCHANGE_BYTES = 64,
    SIMT_SHARED_BYTES = 232448,
    SIMT_CLUSTER_MAX = 8,
    SIMT_THREADS_MAX = 2048
};

/* simt_run - a grid of blocks, each thread of which calls body; n_cluster neighbours along x run
 * together: 1 to SIMT_CLUSTER_MAX, which divides the grid */
void simt_run(dim3 grid, dim3 block, unsigned n_cluster, size_t shared_bytes,
              const std::function<void()> &body);

/* simt_shared - the block's dynamic shared memory, [SIMT_SHARED_BYTES]; that of the cluster's next
 * block is SIMT_SHARED_BYTES further. */
void *simt_shared(void);

/* simt_cluster_rank - the block's place in its cluster */
unsigned simt_cluster_rank(void);

/* simt_thread - the thread's number in the cluster; each block's begin at a multiple of SIMT_WARP
 */
unsigned simt_thread(void);

/* simt_cluster_arrive, simt_cluster_wait - barrier.cluster: every thread of the cluster, in turn.
 * tells: what the thread has done comes before the end of the wait */
void simt_cluster_arrive(bool tells);
void simt_cluster_wait(void);

/* simt_block_wait - __syncthreads */
void simt_block_wait(void);

/* simt_warp_exchange - every thread of the warp brings n bytes and sees those of all
 *
 * Returns lane 0's; lane i's are i * SIMT_EXCHANGE_BYTES further. Valid until the thread's next but
 * one exchange. Lanes that have returned have zeros. */
const char *simt_warp_exchange(const void *mine, size_t n);

/* simt_pause - let all other threads have a turn, then go on */
void simt_pause(void);

/* What a thread looks for that another device sends. */
struct simt_look {
    const char *what;
    uint32_t epoch, row, rank;
};

/* simt_poll - let all other threads and devices have a turn, then look again */
void simt_poll(const simt_look &look);

/* simt_trap - the kernel ends as one that has failed, and the device with it; does not return.
 * simt_is_trapped - whether the last kernel of this engine has */
void simt_trap(void);
bool simt_is_trapped(void);

/* simt_device - whose kernel runs */
int simt_device(void);

/* simt_random - a number of chance; simt_reseed - another order of everything that is left to it */
uint64_t simt_random(void);
void simt_reseed(uint64_t seed);

/* simt_nanoseconds - the devices' clock: 1 a turn, and leaps where everybody waits for what
 * does not come */
uint64_t simt_nanoseconds(void);

/* An engine runs what a stream has, kernels or not, and can be left within a kernel. */
struct simt_engine;
simt_engine *simt_engine_create(void);

/* simt_engine_run - lets the engine run something, or go on with it (NULL), for a device; true when
 * it has ended, false when it looks for something */
bool simt_engine_run(simt_engine *e, int device, const std::function<void()> *action);

/* simt_engine_describe - where an engine was left, for people */
void simt_engine_describe(const simt_engine *e, char *out, size_t n);

/* simt_fault - end the process: a kernel did what it must not */
[[noreturn]] void simt_fault(const char *what);

/* simt_copy_later - cp.async of n bytes, or zeros; simt_copy_commit ends a group; simt_copy_wait
 * makes all but the newest n groups of this thread arrive */
void simt_copy_later(void *to, const void *from, size_t n, bool valid);
void simt_copy_commit(void);
void simt_copy_wait(unsigned n_left);

/* simt_store_later - a bulk store, whose source is read no sooner than at simt_store_wait */
void simt_store_later(void *to, const void *from, size_t n);
void simt_store_wait(void);

#endif
