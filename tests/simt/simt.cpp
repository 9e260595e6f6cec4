/* simt.cpp - blocks, fibers, barriers
 *
 * A fiber's states:
 *
 *   IDLE --block begins--> READY --needs the block--> AT_BLOCK --all are there--> READY
 *     ^                      | `---needs the warp---> AT_WARP --all are there--> READY
 *     `------returns---------'
 *
 * Invariants: one fiber runs at a time, or the scheduler; a fiber's stack is used by it alone and
 * kept from block to block.
 */
#include "simt/simt.h"

#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <ucontext.h>

#include <vector>

uint3 threadIdx, blockIdx;
dim3 blockDim, gridDim;

namespace
{

enum { THREADS_MAX = 1024, STACK_BYTES = 256 << 10 };

enum state { IDLE, READY, AT_BLOCK, AT_WARP };

struct copy {
    void *to;
    const void *from; /* NULL: zeros */
    unsigned group;
};

struct fiber {
    enum state state;
    bool started; /* its context exists */
    jmp_buf context;
    ucontext_t first;
    std::vector<copy> copies; /* cp.async that have not arrived, in order */
    unsigned group;           /* the one that is open */
};

struct warp {
    unsigned n_alive, n_arrived;
    unsigned parity; /* which half of `slots` the next exchange uses */
    alignas(16) char slots[2][SIMT_WARP][SIMT_EXCHANGE_BYTES];
};

struct device {
    fiber fibers[THREADS_MAX];
    warp warps[THREADS_MAX / SIMT_WARP];
    unsigned n_thread, n_alive, n_at_block;
    size_t shared_bytes;
    unsigned current; /* the fiber that runs */
    jmp_buf scheduler;
    ucontext_t starter;
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

/* ---- fibers ------------------------------------------------------------------------------- */

void yield(enum state s)
{
    fiber &f = gpu.fibers[gpu.current];
    f.state = s;
    if (_setjmp(f.context) == 0) _longjmp(gpu.scheduler, 1);
}

void release_warp(warp &w, unsigned first)
{
    w.n_arrived = 0;
    w.parity ^= 1;
    for (unsigned i = first; i < first + SIMT_WARP && i < gpu.n_thread; i++) {
        if (gpu.fibers[i].state == AT_WARP) gpu.fibers[i].state = READY;
    }
}

void leave(void)
{
    unsigned i = gpu.current / SIMT_WARP;
    warp &w = gpu.warps[i];
    gpu.n_alive--;
    w.n_alive--;
    if (w.n_alive && w.n_arrived == w.n_alive) release_warp(w, i * SIMT_WARP);
}

void fiber_main(void)
{
    for (;;) {
        (*gpu.body)();
        leave();
        yield(IDLE);
    }
}

void start(fiber &f)
{
    void *stack = mmap(NULL, STACK_BYTES, PROT_READ | PROT_WRITE,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (stack == MAP_FAILED) die("no memory for a stack");
    (void)getcontext(&f.first);
    f.first.uc_stack.ss_sp = stack;
    f.first.uc_stack.ss_size = STACK_BYTES;
    f.first.uc_link = NULL;
    makecontext(&f.first, fiber_main, 0);
    f.started = true;
    (void)setcontext(&f.first);
}

/* Lets fiber i run until it needs others or returns. */
void resume(unsigned i)
{
    fiber &f = gpu.fibers[i];
    gpu.current = i;
    threadIdx.x = i % blockDim.x;
    threadIdx.y = i / blockDim.x % blockDim.y;
    threadIdx.z = i / blockDim.x / blockDim.y;
    if (_setjmp(gpu.scheduler) != 0) return;
    if (f.started) _longjmp(f.context, 1);
    start(f);
}

/* ---- blocks ------------------------------------------------------------------------------- */

/* Runs a warp as far as it comes by itself. */
void run_warp(unsigned first, unsigned turn)
{
    unsigned n = gpu.n_thread - first < SIMT_WARP ? gpu.n_thread - first : SIMT_WARP;
    for (bool any = true; any;) {
        any = false;
        for (unsigned k = 0; k < n; k++) {
            unsigned i = first + (k + turn) % n;
            if (gpu.fibers[i].state != READY) continue;
            resume(i);
            any = true;
        }
    }
}

void release_block(void)
{
    if (gpu.n_alive == 0 || gpu.n_at_block != gpu.n_alive) die("threads wait for each other");
    gpu.n_at_block = 0;
    for (unsigned i = 0; i < gpu.n_thread; i++) {
        if (gpu.fibers[i].state == AT_BLOCK) gpu.fibers[i].state = READY;
    }
}

void begin_block(void)
{
    memset(shared, 0xff, gpu.shared_bytes);
    gpu.n_alive = gpu.n_thread;
    gpu.n_at_block = 0;
    for (unsigned i = 0; i < gpu.n_thread; i++) {
        fiber &f = gpu.fibers[i];
        f.state = READY;
        f.copies.clear();
        f.group = 0;
        if (i % SIMT_WARP == 0) gpu.warps[i / SIMT_WARP] = {};
        gpu.warps[i / SIMT_WARP].n_alive++;
    }
}

void run_block(void)
{
    const unsigned n_warp = (gpu.n_thread + SIMT_WARP - 1) / SIMT_WARP;
    begin_block();
    for (;;) {
        unsigned turn = (unsigned)(next_random() >> 32);
        for (unsigned w = 0; w < n_warp; w++) {
            run_warp((w + turn) % n_warp * SIMT_WARP, turn / 64);
        }
        if (gpu.n_alive == 0) return;
        release_block();
    }
}

} // namespace

void simt_run(dim3 grid, dim3 block, size_t shared_bytes, const std::function<void()> &body)
{
    if (gpu.random == 0) gpu.random = 0x9e3779b97f4a7c15u;
    gpu.n_thread = block.x * block.y * block.z;
    gpu.body = &body;
    blockDim = block;
    gridDim = grid;
    if (gpu.n_thread == 0 || gpu.n_thread > THREADS_MAX) die("a block of too many threads");
    if (shared_bytes > SIMT_SHARED_BYTES) die("too much shared memory");
    gpu.shared_bytes = shared_bytes;
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
    yield(AT_BLOCK);
}

const char *simt_warp_exchange(const void *mine, size_t n)
{
    const unsigned i = gpu.current / SIMT_WARP;
    warp &w = gpu.warps[i];
    const unsigned parity = w.parity;
    if (n > SIMT_EXCHANGE_BYTES) die("too much to exchange");
    if (w.n_arrived == 0 && w.n_alive < SIMT_WARP)
        memset(w.slots[parity], 0, sizeof w.slots[parity]);
    if (n) memcpy(w.slots[parity][gpu.current % SIMT_WARP], mine, n);
    if (++w.n_arrived == w.n_alive) {
        release_warp(w, i * SIMT_WARP);
    } else {
        yield(AT_WARP);
    }
    return w.slots[parity][0];
}

void simt_copy_later(void *to, const void *from, bool valid)
{
    fiber &f = gpu.fibers[gpu.current];
    f.copies.push_back({to, valid ? from : NULL, f.group});
}

void simt_copy_commit(void)
{
    gpu.fibers[gpu.current].group++;
}

void simt_copy_wait(unsigned n_left)
{
    fiber &f = gpu.fibers[gpu.current];
    size_t n = 0;
    for (; n < f.copies.size() && f.copies[n].group + n_left < f.group; n++) {
        const copy &c = f.copies[n];
        if (c.from)
            memcpy(c.to, c.from, 16);
        else
            memset(c.to, 0, 16);
    }
    f.copies.erase(f.copies.begin(), f.copies.begin() + (long)n);
}
