/* simt.cpp - blocks, fibers, barriers
 *
 * A fiber's states, each but IDLE a mask of its warp:
 *
 *   IDLE --block begins--> ready --needs the block--> at_block --all are there--> ready
 *     ^                    | |`---needs the warp---> at_warp --all are there--> ready
 *     `------returns-------' `----looks again later--> paused --all have had a turn--> ready
 *
 * Invariants: one fiber runs at a time, or the scheduler; a fiber's stack is used by it alone and
 * kept from block to block.
 */
#include "simt/simt.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <ucontext.h>

#include <vector>

#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif

uint3 threadIdx, blockIdx;
dim3 blockDim, gridDim;

namespace
{

enum { THREADS_MAX = 1024, STACK_BYTES = 256 << 10, ROUNDS_MAX = 1000000 };

struct copy {
    void *to;
    const void *from; /* NULL: zeros */
    size_t n;
    unsigned group;
};

/* A place to jump to. The compiler's own jumps cost a fifth of the library's. */
typedef void *place[5];

struct fiber {
    void *stack; /* NULL: it has not started */
    place context;
    void *fake_stack; /* the address sanitizer's */
    ucontext_t first;
    uint3 index;              /* threadIdx */
    std::vector<copy> copies; /* cp.async that have not arrived, in order */
    std::vector<copy> stores; /* bulk stores whose sources have not been read */
    unsigned group;           /* the one that is open */
};

struct warp {
    uint32_t ready, at_warp, at_block, paused; /* bit i: lane i */
    unsigned n_alive, n_arrived;
    unsigned parity; /* which half of `slots` the next exchange uses */
    alignas(16) char slots[2][SIMT_WARP][SIMT_EXCHANGE_BYTES];
};

struct device {
    fiber fibers[THREADS_MAX];
    warp warps[THREADS_MAX / SIMT_WARP];
    unsigned n_thread, n_warp, n_alive, n_at_block;
    size_t shared_bytes;
    unsigned current; /* the fiber that runs */
    place scheduler;
    const void *scheduler_stack; /* for the address sanitizer */
    size_t scheduler_stack_bytes;
    void *scheduler_fake_stack;
    const std::function<void()> *body;
    uint64_t random;
};

device gpu;
alignas(1024) char shared[SIMT_SHARED_BYTES];

[[noreturn]] void die(const char *what)
{
    fprintf(stderr,
            "simt: %s in block %u,%u,%u of %u,%u,%u: %u of %u threads left, %u at the block's "
            "barrier\n",
            what, blockIdx.x, blockIdx.y, blockIdx.z, gridDim.x, gridDim.y, gridDim.z, gpu.n_alive,
            gpu.n_thread, gpu.n_at_block);
    abort();
}

uint64_t next_random(void)
{
    gpu.random ^= gpu.random << 13;
    gpu.random ^= gpu.random >> 7;
    gpu.random ^= gpu.random << 17;
    return gpu.random;
}

/* ---- what the address sanitizer is told --------------------------------------------------- */

#ifdef __SANITIZE_ADDRESS__
void leave_stack(void **fake_stack, const void *to, size_t n)
{
    __sanitizer_start_switch_fiber(fake_stack, to, n);
}
void come_to_stack(void *fake_stack, const void **from, size_t *n)
{
    __sanitizer_finish_switch_fiber(fake_stack, from, n);
}
void fence_shared(size_t n)
{
    ASAN_UNPOISON_MEMORY_REGION(shared, sizeof shared);
    ASAN_POISON_MEMORY_REGION(shared + n, sizeof shared - n);
}
#else
void leave_stack(void **, const void *, size_t)
{
}
void come_to_stack(void *, const void **, size_t *)
{
}
void fence_shared(size_t)
{
}
#endif

/* ---- fibers ------------------------------------------------------------------------------- */

/* The jumps, each in a frame of its own: one never jumps within its frame. */
[[noreturn]] __attribute__((noinline)) void jump_to_scheduler(void)
{
    __builtin_longjmp(gpu.scheduler, 1);
}

[[noreturn]] __attribute__((noinline)) void jump_to_fiber(fiber &f)
{
    __builtin_longjmp(f.context, 1);
}

/* Makes the fiber of a ready lane the current one. */
fiber &take_lane(warp &w, unsigned first, unsigned lane)
{
    w.ready &= ~(1u << lane);
    gpu.current = first + lane;
    threadIdx = gpu.fibers[gpu.current].index;
    return gpu.fibers[gpu.current];
}

/* The first ready lane from `lane` on, around. */
unsigned next_lane(const warp &w, unsigned lane)
{
    uint32_t after = w.ready & ~((1u << lane) - 1);
    return (unsigned)__builtin_ctz(after ? after : w.ready);
}

/* To the next lane of the warp that is ready, or the scheduler; it comes back when the fiber is
 * taken again. */
__attribute__((noinline)) void yield(void)
{
    fiber &own = gpu.fibers[gpu.current];
    if (__builtin_setjmp(own.context) == 0) {
        const unsigned lane = gpu.current % SIMT_WARP, first = gpu.current - lane;
        warp &w = gpu.warps[first / SIMT_WARP];
        void **fake_stack = &gpu.fibers[gpu.current].fake_stack;
        unsigned next = w.ready ? next_lane(w, lane) : 0;
        if (w.ready && gpu.fibers[first + next].stack) {
            leave_stack(fake_stack, gpu.fibers[first + next].stack, STACK_BYTES);
            jump_to_fiber(take_lane(w, first, next));
        }
        leave_stack(fake_stack, gpu.scheduler_stack, gpu.scheduler_stack_bytes);
        jump_to_scheduler();
    }
    come_to_stack(gpu.fibers[gpu.current].fake_stack, NULL, NULL);
}

void release_warp(warp &w)
{
    w.n_arrived = 0;
    w.parity ^= 1;
    w.ready |= w.at_warp;
    w.at_warp = 0;
}

void leave(void)
{
    if (!gpu.fibers[gpu.current].stores.empty()) die("a thread leaves before its stores were read");
    warp &w = gpu.warps[gpu.current / SIMT_WARP];
    gpu.n_alive--;
    w.n_alive--;
    if (w.n_alive && w.n_arrived == w.n_alive) release_warp(w);
}

void fiber_main(void)
{
    come_to_stack(NULL, &gpu.scheduler_stack, &gpu.scheduler_stack_bytes);
    for (;;) {
        (*gpu.body)();
        leave();
        yield();
    }
}

[[noreturn]] void start(fiber &f)
{
    (void)getcontext(&f.first);
    f.first.uc_stack.ss_sp = f.stack;
    f.first.uc_stack.ss_size = STACK_BYTES;
    f.first.uc_link = NULL;
    makecontext(&f.first, fiber_main, 0);
    (void)setcontext(&f.first);
    abort();
}

void make_stack(fiber &f)
{
    f.stack = mmap(NULL, STACK_BYTES, PROT_READ | PROT_WRITE,
                   MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (f.stack == MAP_FAILED) die("no memory for a stack");
}

/* Lets a fiber run, and those that it hands over to, until none of the warp is ready or one has to
 * be started. */
__attribute__((noinline)) void resume(warp &w, unsigned first, unsigned lane)
{
    if (__builtin_setjmp(gpu.scheduler) == 0) {
        fiber &f = take_lane(w, first, lane);
        bool is_new = !f.stack;
        if (is_new) make_stack(f);
        leave_stack(&gpu.scheduler_fake_stack, f.stack, STACK_BYTES);
        if (is_new) start(f);
        jump_to_fiber(f);
    }
    come_to_stack(gpu.scheduler_fake_stack, NULL, NULL);
}

/* ---- blocks ------------------------------------------------------------------------------- */

/* Runs a warp as far as it comes by itself, from lane `turn` on. */
void run_warp(unsigned first, unsigned turn)
{
    warp &w = gpu.warps[first / SIMT_WARP];
    while (w.ready) resume(w, first, next_lane(w, turn % SIMT_WARP));
}

void release_block(void)
{
    if (gpu.n_alive == 0 || gpu.n_at_block != gpu.n_alive) die("threads wait for each other");
    gpu.n_at_block = 0;
    for (unsigned i = 0; i < gpu.n_warp; i++) {
        gpu.warps[i].ready |= gpu.warps[i].at_block;
        gpu.warps[i].at_block = 0;
    }
}

void begin_block(void)
{
    memset(shared, 0xff, gpu.shared_bytes);
    gpu.n_alive = gpu.n_thread;
    gpu.n_at_block = 0;
    for (unsigned i = 0; i < gpu.n_warp; i++) {
        warp &w = gpu.warps[i];
        unsigned n = gpu.n_thread - i * SIMT_WARP;
        w.n_alive = n < SIMT_WARP ? n : SIMT_WARP;
        w.ready = w.n_alive < SIMT_WARP ? (1u << w.n_alive) - 1 : ~0u;
        w.at_warp = w.at_block = w.paused = 0;
        w.n_arrived = w.parity = 0;
        memset(w.slots, 0, sizeof w.slots);
    }
    for (unsigned i = 0; i < gpu.n_thread; i++) {
        gpu.fibers[i].copies.clear();
        gpu.fibers[i].stores.clear();
        gpu.fibers[i].group = 0;
    }
}

/* Whether threads were waiting for a turn of the others, which they have had. */
bool resume_paused(void)
{
    bool any = false;
    for (unsigned i = 0; i < gpu.n_warp; i++) {
        warp &w = gpu.warps[i];
        any |= w.paused != 0;
        w.ready |= w.paused;
        w.paused = 0;
    }
    return any;
}

void run_block(void)
{
    begin_block();
    for (unsigned round = 0;; round++) {
        unsigned turn = (unsigned)(next_random() >> 32);
        unsigned w = turn % gpu.n_warp;
        for (unsigned k = 0; k < gpu.n_warp; k++) {
            run_warp(w * SIMT_WARP, turn / 64);
            if (++w == gpu.n_warp) w = 0;
        }
        if (gpu.n_alive == 0) return;
        if (round == ROUNDS_MAX) die("threads look for ever for what does not come");
        if (!resume_paused()) release_block();
    }
}

void begin_grid(dim3 grid, dim3 block, size_t shared_bytes)
{
    if (gpu.random == 0) gpu.random = 0x9e3779b97f4a7c15u;
    gpu.n_thread = block.x * block.y * block.z;
    blockDim = block;
    gridDim = grid;
    if (gpu.n_thread == 0 || gpu.n_thread > THREADS_MAX) die("a block of too many threads");
    if (shared_bytes > SIMT_SHARED_BYTES) die("too much shared memory");
    gpu.n_warp = (gpu.n_thread + SIMT_WARP - 1) / SIMT_WARP;
    gpu.shared_bytes = shared_bytes;
    fence_shared(shared_bytes);
    for (unsigned i = 0; i < gpu.n_thread; i++) {
        gpu.fibers[i].index = {i % block.x, i / block.x % block.y, i / block.x / block.y};
    }
}

} // namespace

void simt_run(dim3 grid, dim3 block, size_t shared_bytes, const std::function<void()> &body)
{
    begin_grid(grid, block, shared_bytes);
    gpu.body = &body;
    for (blockIdx.z = 0; blockIdx.z < grid.z; blockIdx.z++) {
        for (blockIdx.y = 0; blockIdx.y < grid.y; blockIdx.y++) {
            for (blockIdx.x = 0; blockIdx.x < grid.x; blockIdx.x++) run_block();
        }
    }
}

void *simt_shared(void)
{
    return shared;
}

void simt_block_wait(void)
{
    gpu.n_at_block++;
    gpu.warps[gpu.current / SIMT_WARP].at_block |= 1u << gpu.current % SIMT_WARP;
    yield();
}

const char *simt_warp_exchange(const void *mine, size_t n)
{
    warp &w = gpu.warps[gpu.current / SIMT_WARP];
    const unsigned parity = w.parity;
    if (n > SIMT_EXCHANGE_BYTES) die("too much to exchange");
    if (w.n_arrived == 0 && w.n_alive < SIMT_WARP)
        memset(w.slots[parity], 0, sizeof w.slots[parity]);
    if (n) memcpy(w.slots[parity][gpu.current % SIMT_WARP], mine, n);
    if (++w.n_arrived == w.n_alive) {
        release_warp(w);
    } else {
        w.at_warp |= 1u << gpu.current % SIMT_WARP;
        yield();
    }
    return w.slots[parity][0];
}

void simt_pause(void)
{
    gpu.warps[gpu.current / SIMT_WARP].paused |= 1u << gpu.current % SIMT_WARP;
    yield();
}

void simt_fault(const char *what)
{
    die(what);
}

namespace
{

void perform(const copy &c)
{
    if (c.from)
        memcpy(c.to, c.from, c.n);
    else
        memset(c.to, 0, c.n);
}

} // namespace

void simt_copy_later(void *to, const void *from, size_t n, bool valid)
{
    fiber &f = gpu.fibers[gpu.current];
    f.copies.push_back({to, valid ? from : NULL, n, f.group});
}

void simt_copy_commit(void)
{
    gpu.fibers[gpu.current].group++;
}

void simt_copy_wait(unsigned n_left)
{
    fiber &f = gpu.fibers[gpu.current];
    size_t n = 0;
    for (; n < f.copies.size() && f.copies[n].group + n_left < f.group; n++) perform(f.copies[n]);
    f.copies.erase(f.copies.begin(), f.copies.begin() + (long)n);
}

void simt_store_later(void *to, const void *from, size_t n)
{
    gpu.fibers[gpu.current].stores.push_back({to, from, n, 0});
}

void simt_store_wait(void)
{
    fiber &f = gpu.fibers[gpu.current];
    for (const copy &c : f.stores) perform(c);
    f.stores.clear();
}
