/* simt.cpp - engines that run kernels: clusters of blocks, fibers, barriers
 *
 * A fiber's states, each but IDLE a mask of its warp:
 *
 *   IDLE --block begins--> ready --needs the block--> at_block --all are there--> ready
 *     ^                    | |`---needs the warp---> at_warp --all are there--> ready
 *     `------returns-------' `----looks again later--> paused --all have had a turn--> ready
 *
 * Invariants: one fiber runs at a time, or the scheduler; a fiber's stack is used by it alone and
 * kept from block to block. A fiber that returns gives its stack to the next one if that has not
 * begun, for one in use is in the cache, and takes that one's: where threads wait for nobody, a
 * whole warp runs on one stack.
 *
 * An engine runs one thing at a time, on a stack of its own. It is left in the midst of a kernel
 * where threads look for what another device sends (simt_poll), and gone on with later; `gpu` is
 * the one that runs. A kernel that is run by no engine (simt_run alone) cannot be left.
 */
#include "simt/simt.h"
#include "simt/race.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <ucontext.h>

#include <utility>
#include <vector>

#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif

uint3 threadIdx, blockIdx;
dim3 blockDim, gridDim;

namespace
{

enum {
    THREADS_MAX = 1024, /* of a block */
    FIBERS_MAX = SIMT_THREADS_MAX,
    STACK_BYTES = 256 << 10,
    STACK_STAGGER = 576, /* stacks that began alike would share the same few lines of the cache */
    ROUNDS_MAX = 1000000
};

struct copy {
    void *to;
    const void *from; /* NULL: zeros */
    size_t n;
    unsigned group;
};

/* A place to jump to. The compiler's own jumps cost a fifth of the library's. */
typedef void *place[5];

/* What a change of fibers touches lies in one line of the cache. */
struct alignas(64) fiber {
    place context;
    void *stack; /* NULL: it has never been used */
    uint3 index; /* threadIdx */
    bool is_started; /* the stack is at fiber_main, or within the body */
    bool is_fresh;   /* it has not begun with the block yet */
    void *fake_stack;         /* the address sanitizer's */
    std::vector<copy> copies; /* cp.async that have not arrived, in order */
    std::vector<copy> stores; /* bulk stores whose sources have not been read */
    unsigned group;           /* the one that is open */
    unsigned cluster_turn;    /* the cluster's when this one arrived */
};

struct warp {
    uint32_t ready, at_warp, at_block, paused; /* bit i: lane i */
    unsigned n_alive, n_arrived;
    unsigned parity; /* which half of `exchanged` the next exchange uses */
    alignas(16) char exchanged[2][SIMT_WARP][SIMT_EXCHANGE_BYTES];
};

/* One of the cluster. Its warps, and so its fibers, begin at a multiple of the warps of a block. */
struct block {
    uint3 index; /* blockIdx */
    unsigned n_alive, n_at_block;
};

} // namespace

struct simt_engine {
    fiber fibers[FIBERS_MAX];
    warp warps[FIBERS_MAX / SIMT_WARP];
    block blocks[SIMT_CLUSTER_MAX];
    unsigned n_cluster;                  /* blocks that run together */
    unsigned n_thread, n_warp;           /* of a block */
    unsigned n_at_cluster, cluster_turn; /* arrivals of this turn; turns that are over */
    size_t shared_bytes;
    dim3 block_dim, grid_dim;
    unsigned current; /* the fiber that runs */
    place scheduler;
    const void *scheduler_stack; /* for the address sanitizer */
    size_t scheduler_stack_bytes;
    void *scheduler_fake_stack;
    const std::function<void()> *body;
    uint64_t random;
    char (*shared)[SIMT_SHARED_BYTES]; /* [SIMT_CLUSTER_MAX] */
    race_state *races;
    int device;
    bool is_trapped; /* the kernel has ended itself */
    bool is_looking; /* a thread looks for what another device sends */
    simt_look look;  /* the last one's */
    /* what the engine does, and where it was left */
    const std::function<void()> *action; /* NULL: nothing */
    void *stack;
    ucontext_t context, caller;
    ucontext_t starting; /* a fiber's. On the scheduler's stack, which is left by it and not
                            returned on, the address sanitizer would fence it for ever */
    void *fake_stack, *caller_fake_stack;
    const void *caller_stack;
    size_t caller_stack_bytes;
};

namespace
{

enum { ENGINE_STACK_BYTES = 1 << 20 };

alignas(1024) char first_shared[SIMT_CLUSTER_MAX][SIMT_SHARED_BYTES];
static_assert(SIMT_SHARED_BYTES % 1024 == 0, "every block's shared memory is aligned");
simt_engine *gpu; /* the one that runs */
simt_engine *direct; /* of kernels that no engine runs */
uint64_t seed = 0x9e3779b97f4a7c15u;

/* Of the fiber that runs. */
unsigned current_rank(void)
{
    if (gpu->n_cluster == 1) return 0;
    return gpu->current / SIMT_WARP / gpu->n_warp;
}

block &current_block(void)
{
    return gpu->blocks[current_rank()];
}

[[noreturn]] void die(const char *what)
{
    fprintf(stderr,
            "simt: %s in block %u,%u,%u of %u,%u,%u: %u of %u threads left, %u at the block's "
            "barrier\n",
            what, blockIdx.x, blockIdx.y, blockIdx.z, gridDim.x, gridDim.y, gridDim.z,
            current_block().n_alive, gpu->n_thread, current_block().n_at_block);
    abort();
}

uint64_t next_random(void)
{
    gpu->random ^= gpu->random << 13;
    gpu->random ^= gpu->random >> 7;
    gpu->random ^= gpu->random << 17;
    return gpu->random;
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
    ASAN_UNPOISON_MEMORY_REGION(gpu->shared, sizeof first_shared);
    for (int i = 0; i < SIMT_CLUSTER_MAX; i++)
        ASAN_POISON_MEMORY_REGION(gpu->shared[i] + n, SIMT_SHARED_BYTES - n);
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
    __builtin_longjmp(gpu->scheduler, 1);
}

[[noreturn]] __attribute__((noinline)) void jump_to_fiber(fiber &f)
{
    __builtin_longjmp(f.context, 1);
}

/* Makes the fiber of a ready lane the current one, of the block whose blockIdx is set. */
fiber &take_lane(warp &w, unsigned first, unsigned lane)
{
    w.ready &= ~(1u << lane);
    gpu->current = first + lane;
    threadIdx = gpu->fibers[gpu->current].index;
    return gpu->fibers[gpu->current];
}

/* The first ready lane from `lane` on, around. */
unsigned next_lane(const warp &w, unsigned lane)
{
    uint32_t after = w.ready & ~((1u << lane) - 1);
    return (unsigned)__builtin_ctz(after ? after : w.ready);
}

/* To the next lane of the warp that is ready, or the scheduler. */
[[noreturn]] __attribute__((noinline)) void hand_over(void)
{
    const unsigned lane = gpu->current % SIMT_WARP, first = gpu->current - lane;
    warp &w = gpu->warps[first / SIMT_WARP];
    void **fake_stack = &gpu->fibers[gpu->current].fake_stack;
    unsigned next = w.ready ? next_lane(w, lane) : 0;
    if (w.ready && gpu->fibers[first + next].is_started) {
        leave_stack(fake_stack, gpu->fibers[first + next].stack, STACK_BYTES);
        jump_to_fiber(take_lane(w, first, next));
    }
    leave_stack(fake_stack, gpu->scheduler_stack, gpu->scheduler_stack_bytes);
    jump_to_scheduler();
}

/* The fiber waits here until it is taken again. It is no function, because processors guess returns
 * behind a jump wrong. */
#define YIELD()                                                                                    \
    do {                                                                                           \
        if (__builtin_setjmp(gpu->fibers[gpu->current].context) == 0) hand_over();                 \
        come_to_stack(gpu->fibers[gpu->current].fake_stack, NULL, NULL);                           \
    } while (0)

void release_warp(warp &w)
{
    w.n_arrived = 0;
    w.parity ^= 1;
    w.ready |= w.at_warp;
    w.at_warp = 0;
}

void leave(void)
{
    if (!gpu->fibers[gpu->current].stores.empty()) die("a thread leaves before its stores were read");
    warp &w = gpu->warps[gpu->current / SIMT_WARP];
    current_block().n_alive--;
    w.n_alive--;
    if (w.n_alive && w.n_arrived == w.n_alive) release_warp(w);
}

/* Whether the next lane has not begun: it is the current one now, on this stack. */
bool go_on_as_next(void)
{
    const unsigned lane = gpu->current % SIMT_WARP, first = gpu->current - lane;
    warp &w = gpu->warps[first / SIMT_WARP];
    if (!w.ready) return false;
    fiber &own = gpu->fibers[gpu->current];
    const unsigned next = next_lane(w, lane);
    fiber &other = gpu->fibers[first + next];
    if (!other.is_fresh) return false;
    memcpy(own.context, other.context, sizeof own.context);
    std::swap(own.stack, other.stack);
    std::swap(own.is_started, other.is_started);
    own.fake_stack = other.fake_stack; /* this one's is in use */
    take_lane(w, first, next);
    return true;
}

void fiber_main(void)
{
    come_to_stack(NULL, &gpu->scheduler_stack, &gpu->scheduler_stack_bytes);
    for (;;) {
        do {
            gpu->fibers[gpu->current].is_fresh = false;
            (*gpu->body)();
            leave();
        } while (go_on_as_next());
        YIELD();
    }
}

[[noreturn]] void start(fiber &f)
{
    f.is_started = true;
    ucontext_t *first = &gpu->starting;
    (void)getcontext(first);
    first->uc_stack.ss_sp = f.stack;
    first->uc_stack.ss_size = STACK_BYTES - gpu->current % 128 * STACK_STAGGER;
    first->uc_link = NULL;
    makecontext(first, fiber_main, 0);
    (void)setcontext(first);
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
    if (__builtin_setjmp(gpu->scheduler) == 0) {
        fiber &f = take_lane(w, first, lane);
        blockIdx = current_block().index;
        bool is_new = !f.is_started;
        if (!f.stack) make_stack(f);
        leave_stack(&gpu->scheduler_fake_stack, f.stack, STACK_BYTES);
        if (is_new) start(f);
        jump_to_fiber(f);
    }
    come_to_stack(gpu->scheduler_fake_stack, NULL, NULL);
}

/* ---- blocks ------------------------------------------------------------------------------- */

/* Runs a warp as far as it comes by itself, from lane `turn` on. */
void run_warp(unsigned first, unsigned turn)
{
    warp &w = gpu->warps[first / SIMT_WARP];
    while (w.ready) resume(w, first, next_lane(w, turn % SIMT_WARP));
}

/* Whether a block's threads were all at its barrier, which they leave. */
bool release_block(unsigned cluster_rank)
{
    block &b = gpu->blocks[cluster_rank];
    if (b.n_alive == 0 || b.n_at_block != b.n_alive) return false;
    b.n_at_block = 0;
    race_block(cluster_rank);
    for (unsigned i = cluster_rank * gpu->n_warp; i < (cluster_rank + 1) * gpu->n_warp; i++) {
        gpu->warps[i].ready |= gpu->warps[i].at_block;
        gpu->warps[i].at_block = 0;
    }
    return true;
}

void begin_block(unsigned cluster_rank, uint3 index)
{
    memset(gpu->shared[cluster_rank], 0xff, gpu->shared_bytes);
    race_block(cluster_rank);
    gpu->blocks[cluster_rank] = {index, gpu->n_thread, 0};
    for (unsigned i = 0; i < gpu->n_warp; i++) {
        warp &w = gpu->warps[cluster_rank * gpu->n_warp + i];
        unsigned n = gpu->n_thread - i * SIMT_WARP;
        w.n_alive = n < SIMT_WARP ? n : SIMT_WARP;
        w.ready = w.n_alive < SIMT_WARP ? (1u << w.n_alive) - 1 : ~0u;
        w.at_warp = w.at_block = w.paused = 0;
        w.n_arrived = w.parity = 0;
        memset(w.exchanged, 0, sizeof w.exchanged);
    }
    for (unsigned i = 0; i < gpu->n_thread; i++) {
        fiber &f = gpu->fibers[cluster_rank * gpu->n_warp * SIMT_WARP + i];
        f.copies.clear();
        f.stores.clear();
        f.group = 0;
        f.is_fresh = true;
    }
}

/* Whether threads were waiting for a turn of the others, which they have had. */
bool resume_paused(void)
{
    bool any = false;
    for (unsigned i = 0; i < gpu->n_warp * gpu->n_cluster; i++) {
        warp &w = gpu->warps[i];
        any |= w.paused != 0;
        w.ready |= w.paused;
        w.paused = 0;
    }
    return any;
}

unsigned count_alive(void)
{
    unsigned n = 0;
    for (unsigned i = 0; i < gpu->n_cluster; i++) n += gpu->blocks[i].n_alive;
    return n;
}

/* Back to who lets the engine run, until it is let run again. */
void leave_engine(void)
{
    simt_engine *own = gpu;
    const uint3 block = blockIdx;
    if (!own->action) die("a kernel that no stream runs looks for what another device sends");
    leave_stack(&own->fake_stack, own->caller_stack, own->caller_stack_bytes);
    (void)swapcontext(&own->context, &own->caller);
    come_to_stack(own->fake_stack, &own->caller_stack, &own->caller_stack_bytes);
    blockIdx = block;
    blockDim = own->block_dim;
    gridDim = own->grid_dim;
}

void engine_main(void)
{
    simt_engine *own = gpu;
    come_to_stack(NULL, &own->caller_stack, &own->caller_stack_bytes);
    for (;;) {
        (*own->action)();
        own->action = NULL;
        leave_stack(&own->fake_stack, own->caller_stack, own->caller_stack_bytes);
        (void)swapcontext(&own->context, &own->caller);
        come_to_stack(own->fake_stack, &own->caller_stack, &own->caller_stack_bytes);
    }
}

void *map_memory(size_t n)
{
    void *p = mmap(NULL, n, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1,
                   0);
    if (p == MAP_FAILED) {
        fprintf(stderr, "simt: no memory for one more engine\n");
        abort();
    }
    return p;
}

simt_engine *make_engine(bool is_first)
{
    simt_engine *e = new simt_engine();
    void *more = is_first ? first_shared : map_memory(sizeof first_shared + 1024);
    e->shared = (char(*)[SIMT_SHARED_BYTES])(((uintptr_t)more + 1023) / 1024 * 1024);
    e->races = race_create(e->shared, sizeof first_shared);
    return e;
}

/* The blocks from blockIdx on, as many as are in a cluster. */
void run_cluster(void)
{
    const unsigned n_warp = gpu->n_warp * gpu->n_cluster;
    const uint3 first = blockIdx;
    gpu->n_at_cluster = gpu->cluster_turn = 0;
    for (unsigned i = 0; i < gpu->n_cluster; i++) begin_block(i, {first.x + i, first.y, first.z});
    for (unsigned round = 0;; round++) {
        unsigned turn = (unsigned)(next_random() >> 32);
        unsigned w = turn % n_warp;
        for (unsigned k = 0; k < n_warp; k++) {
            run_warp(w * SIMT_WARP, turn / 64);
            if (++w == n_warp) w = 0;
        }
        if (count_alive() == 0) break;
        if (gpu->is_looking) {
            gpu->is_looking = false;
            leave_engine();
            round = 0;
        }
        if (round == ROUNDS_MAX) die("threads look for ever for what does not come");
        bool any = resume_paused();
        for (unsigned i = 0; i < gpu->n_cluster; i++) any |= release_block(i);
        if (!any) die("threads wait for each other");
    }
    blockIdx = first;
}

/* Whether races are looked for in the next cluster: the grid's first and last, and one in eight. */
bool is_watched(void)
{
    const bool is_first = blockIdx.x == 0 && blockIdx.y == 0 && blockIdx.z == 0;
    const bool is_last = blockIdx.x + gpu->n_cluster == gridDim.x && blockIdx.y == gridDim.y - 1 &&
                         blockIdx.z == gridDim.z - 1;
    return is_first || is_last || next_random() % 8 == 0;
}

void begin_grid(dim3 grid, dim3 block, unsigned n_cluster, size_t shared_bytes)
{
    if (gpu->random == 0) gpu->random = seed;
    gpu->is_trapped = gpu->is_looking = false;
    gpu->block_dim = block;
    gpu->grid_dim = grid;
    gpu->n_thread = block.x * block.y * block.z;
    gpu->n_cluster = n_cluster;
    gpu->n_warp = (gpu->n_thread + SIMT_WARP - 1) / SIMT_WARP;
    blockDim = block;
    gridDim = grid;
    if (gpu->n_thread == 0 || gpu->n_thread > THREADS_MAX) die("a block of too many threads");
    if (n_cluster == 0 || n_cluster > SIMT_CLUSTER_MAX || grid.x % n_cluster ||
        gpu->n_warp * SIMT_WARP * n_cluster > FIBERS_MAX) {
        die("a cluster of too many blocks, or part of one");
    }
    if (shared_bytes > SIMT_SHARED_BYTES) die("too much shared memory");
    gpu->shared_bytes = shared_bytes;
    fence_shared(shared_bytes);
    for (unsigned b = 0; b < n_cluster; b++) {
        for (unsigned i = 0; i < gpu->n_thread; i++) {
            gpu->fibers[b * gpu->n_warp * SIMT_WARP + i].index = {i % block.x, i / block.x % block.y,
                                                                i / block.x / block.y};
        }
    }
}

/* After a trap: none of them is gone on with. */
void forget_fibers(void)
{
    for (fiber &f : gpu->fibers) f.is_started = false;
    race_run(0);
}

} // namespace

void simt_run(dim3 grid, dim3 block, unsigned n_cluster, size_t shared_bytes,
              const std::function<void()> &body)
{
    if (!gpu) {
        if (!direct) direct = make_engine(true);
        gpu = direct;
        race_use(gpu->races);
    }
    begin_grid(grid, block, n_cluster, shared_bytes);
    gpu->body = &body;
    for (blockIdx.z = 0; blockIdx.z < grid.z; blockIdx.z++) {
        for (blockIdx.y = 0; blockIdx.y < grid.y; blockIdx.y++) {
            for (blockIdx.x = 0; blockIdx.x < grid.x; blockIdx.x += n_cluster) {
                race_run(is_watched() ? n_cluster : 0);
                run_cluster();
                if (gpu->is_trapped) return forget_fibers();
            }
        }
    }
    race_run(0);
}

void simt_trap(void)
{
    gpu->is_trapped = true;
    for (warp &w : gpu->warps) w.ready = w.at_warp = w.at_block = w.paused = 0;
    for (block &b : gpu->blocks) b.n_alive = 0;
    leave_stack(NULL, gpu->scheduler_stack, gpu->scheduler_stack_bytes);
    jump_to_scheduler();
}

bool simt_is_trapped(void)
{
    return gpu && gpu->is_trapped;
}

void simt_poll(const simt_look &look)
{
    gpu->is_looking = true;
    gpu->look = look;
    simt_pause();
}

/* ---- engines ------------------------------------------------------------------------------ */

simt_engine *simt_engine_create(void)
{
    if (!direct) return direct = make_engine(true);
    return make_engine(false);
}

bool simt_engine_run(simt_engine *e, int device, const std::function<void()> *action)
{
    simt_engine *outer = gpu;
    gpu = e;
    race_use(e->races);
    if (action) {
        e->action = action;
        e->device = device;
        e->is_trapped = false;
    }
    if (!e->stack) {
        e->stack = map_memory(ENGINE_STACK_BYTES);
        (void)getcontext(&e->context);
        e->context.uc_stack.ss_sp = e->stack;
        e->context.uc_stack.ss_size = ENGINE_STACK_BYTES;
        e->context.uc_link = NULL;
        makecontext(&e->context, engine_main, 0);
    }
    leave_stack(&e->caller_fake_stack, e->stack, ENGINE_STACK_BYTES);
    (void)swapcontext(&e->caller, &e->context);
    come_to_stack(e->caller_fake_stack, NULL, NULL);
    gpu = outer;
    race_use(outer ? outer->races : NULL);
    return !e->action;
}

void simt_engine_describe(const simt_engine *e, char *out, size_t n)
{
    const block &b = e->blocks[0];
    (void)snprintf(out, n,
                   "device %d: block %u,%u,%u of %u,%u,%u looks for %s, epoch %u, row %u of rank "
                   "%u",
                   e->device, b.index.x, b.index.y, b.index.z, e->grid_dim.x, e->grid_dim.y,
                   e->grid_dim.z, e->look.what, e->look.epoch, e->look.row, e->look.rank);
}

int simt_device(void)
{
    return gpu ? gpu->device : 0;
}

uint64_t simt_random(void)
{
    seed ^= seed << 13;
    seed ^= seed >> 7;
    seed ^= seed << 17;
    return seed >> 11;
}

void simt_reseed(uint64_t value)
{
    seed = (value + 1) * 0x9e3779b97f4a7c15u | 1;
    if (direct) direct->random = seed;
}

void *simt_shared(void)
{
    return gpu->shared[current_rank()];
}

unsigned simt_cluster_rank(void)
{
    return current_rank();
}

unsigned simt_thread(void)
{
    return gpu->current;
}

void simt_cluster_arrive(bool tells)
{
    if (tells) race_cluster_arrive(gpu->cluster_turn);
    gpu->fibers[gpu->current].cluster_turn = gpu->cluster_turn;
    if (++gpu->n_at_cluster < count_alive()) return;
    gpu->n_at_cluster = 0;
    gpu->cluster_turn++;
}

void simt_cluster_wait(void)
{
    const unsigned turn = gpu->fibers[gpu->current].cluster_turn;
    while (turn == gpu->cluster_turn) simt_pause();
    race_cluster(turn);
}

void simt_block_wait(void)
{
    current_block().n_at_block++;
    gpu->warps[gpu->current / SIMT_WARP].at_block |= 1u << gpu->current % SIMT_WARP;
    YIELD();
}

/* A copy; most are of a word. */
static inline void bring(void *to, const void *from, size_t n)
{
    if (n == 4) {
        memcpy(to, from, 4);
    } else if (n) {
        memcpy(to, from, n);
    }
}

const char *simt_warp_exchange(const void *mine, size_t n)
{
    warp &w = gpu->warps[gpu->current / SIMT_WARP];
    const unsigned parity = w.parity;
    if (n > SIMT_EXCHANGE_BYTES) die("too much to exchange");
    if (w.n_arrived == 0 && w.n_alive < SIMT_WARP)
        memset(w.exchanged[parity], 0, sizeof w.exchanged[parity]);
    bring(w.exchanged[parity][gpu->current % SIMT_WARP], mine, n);
    if (++w.n_arrived == w.n_alive) {
        release_warp(w);
    } else {
        w.at_warp |= 1u << gpu->current % SIMT_WARP;
        YIELD();
    }
    return w.exchanged[parity][0];
}

void simt_pause(void)
{
    gpu->warps[gpu->current / SIMT_WARP].paused |= 1u << gpu->current % SIMT_WARP;
    YIELD();
}

void simt_fault(const char *what)
{
    die(what);
}

namespace
{

void perform(const copy &c)
{
    if (c.from) race_read(c.from, c.n);
    race_write(c.to, c.n);
    if (c.from)
        memcpy(c.to, c.from, c.n);
    else
        memset(c.to, 0, c.n);
}

} // namespace

void simt_copy_later(void *to, const void *from, size_t n, bool valid)
{
    fiber &f = gpu->fibers[gpu->current];
    race_write(to, n);
    f.copies.push_back({to, valid ? from : NULL, n, f.group});
}

void simt_copy_commit(void)
{
    gpu->fibers[gpu->current].group++;
}

void simt_copy_wait(unsigned n_left)
{
    fiber &f = gpu->fibers[gpu->current];
    size_t n = 0;
    for (; n < f.copies.size() && f.copies[n].group + n_left < f.group; n++) perform(f.copies[n]);
    f.copies.erase(f.copies.begin(), f.copies.begin() + (long)n);
}

void simt_store_later(void *to, const void *from, size_t n)
{
    race_read(from, n);
    gpu->fibers[gpu->current].stores.push_back({to, from, n, 0});
}

void simt_store_wait(void)
{
    fiber &f = gpu->fibers[gpu->current];
    for (const copy &c : f.stores) perform(c);
    f.stores.clear();
}
