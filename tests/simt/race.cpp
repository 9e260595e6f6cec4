/* race.cpp - see race.h
 *
 * Time is counted in steps: one for each thing that others may wait for. An access has the step it
 * was made in, and its thread, or the barrier at which a copy counts. What is known of it by thread
 * t, that is, comes before what t does:
 *   the same thread's                      always
 *   the same block's                       up to the block's last barrier, but for copies
 *   the same warp's                        from before the warp's last barrier
 *   any                                    up to the step that known[t] has for who made it
 * A thread learns that at barriers: what those who arrived had done, and had learned. Clusters run
 * one after the other, so one count of steps serves all of them.
 *
 * A byte's shadow has its last write and its last reads. Of the reads since the block's last
 * barrier it is kept whether they were of several warps, and of the last warp's time whether they
 * were of several lanes: enough to judge a write, where __syncthreads and __syncwarp are all that
 * waits. Where there is more (is_tracked) a word's readers are kept too: of each warp which lanes,
 * and the last step. */
#include "simt/race.h"

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include <vector>

#include "simt/simt.h"
#include "simt/simt_link.h"

extern "C" char __data_start, _end; /* the program's variables: all shared memory is among them */

namespace
{

enum {
    THREADS_MAX = SIMT_THREADS_MAX,
    BARRIERS_MAX = 256,
    ENTITIES = THREADS_MAX + BARRIERS_MAX, /* who makes accesses: threads, and barriers' copies */
    WARPS_MAX = THREADS_MAX / SIMT_WARP,
};

struct access {
    uint32_t step;      /* 0: never */
    uint16_t warp_time; /* its low bits */
    uint16_t entity : 12, atomic : 1;
    uint16_t several_lanes : 1, several_warps : 1; /* reads alone */
};
static_assert(ENTITIES <= 1 << 12 && sizeof(access) == 8, "bytes of shadow are what a run costs");

struct shadow {
    access write, read;
};

bool operator==(const access &a, const access &b)
{
    return !memcmp(&a, &b, sizeof a);
}

bool operator==(const shadow &a, const shadow &b)
{
    return !memcmp(&a, &b, sizeof a);
}

/* The step up to which what each entity did comes before something. */
struct knowledge {
    uint32_t of[ENTITIES];
};

struct barrier {
    const void *place;
    knowledge arrived, over; /* of those who have arrived; of phases that are over */
};

struct warp_barrier {
    knowledge known; /* of the lanes that have arrived */
    bool is_left;    /* by one of them */
};

struct range {
    const void *p;
    size_t n;
    unsigned group; /* groups committed before */
};

/* The readers of a word among a warp's lanes, and the step of the last read: those since the warp's
 * last barrier, for who knows of them knows of those before. */
struct readers {
    uint32_t lanes, step;
};

shadow *shadows; /* [_end - __data_start] */
uint32_t now = 1; /* step */

} // namespace

/* Of an engine's threads. */
struct race_state {
    const char *shared; /* its dynamic shared memory */
    size_t n_shared;
    shadow *shared_shadows;
    bool running;
    uint32_t first_step;                   /* of the cluster */
    uint32_t block_step[SIMT_CLUSTER_MAX]; /* of a block's last barrier */
    uint32_t warp_now[THREADS_MAX];        /* barriers of the thread's warp that it has left */
    unsigned n_thread, n_block;            /* of a block, in whole warps; of the cluster */

    /* Of blocks that are in a cluster, or have barriers in shared memory */
    bool is_tracked;
    unsigned n_barrier;
    barrier barriers[BARRIERS_MAX];
    knowledge *known; /* [THREADS_MAX] */
    warp_barrier warp_barriers[WARPS_MAX][2]; /* by turns */
    knowledge cluster_arrived[2];             /* by turns */
    uint32_t warp_step[WARPS_MAX];            /* of the warp's last barrier */
    std::vector<range> reads[THREADS_MAX];    /* of products that are not waited for */
    unsigned n_commit[THREADS_MAX];           /* groups of products */
    readers *word_readers;                    /* [WARPS_MAX][n_shared / 4] */
};

namespace
{

/* Of the threads of the kernel that this thread of the host runs; NULL: it runs none. What others do
 * meanwhile, the hooks are told of too: launches are compiled with kernels. */
thread_local race_state *st;

unsigned block_of(unsigned thread)
{
    return st->n_block == 1 ? 0 : thread / st->n_thread;
}

access access_now(bool atomic)
{
    if (!st) return {}; /* no kernel */
    const unsigned thread = simt_thread();
    return {now, (uint16_t)st->warp_now[thread], (uint16_t)thread, atomic, false, false};
}

void learn(knowledge &k, const knowledge &from)
{
    for (unsigned i = 0; i < st->n_thread * st->n_block; i++)
        k.of[i] = from.of[i] > k.of[i] ? from.of[i] : k.of[i];
    for (unsigned i = THREADS_MAX; i < THREADS_MAX + st->n_barrier; i++)
        k.of[i] = from.of[i] > k.of[i] ? from.of[i] : k.of[i];
}

/* What the thread's block has waited for is st->known to it. */
void learn_block(knowledge &k, unsigned thread)
{
    const unsigned block = block_of(thread);
    for (unsigned i = block * st->n_thread; i < (block + 1) * st->n_thread; i++)
        k.of[i] = st->block_step[block] > k.of[i] ? st->block_step[block] : k.of[i];
}

/* Whether nothing has been waited for between an access and what a thread does now. */
bool is_beside(const access &before, unsigned thread, uint16_t warp_time)
{
    const bool is_copy = before.entity >= THREADS_MAX;
    if (before.step <= st->first_step) return false;
    if (st->is_tracked && !before.several_warps && before.step <= st->known[thread].of[before.entity])
        return false;
    if (is_copy || block_of(before.entity) != block_of(thread)) return true;
    if (before.step <= st->block_step[block_of(thread)]) return false;
    if (before.several_warps) return true;
    if (before.entity / SIMT_WARP != thread / SIMT_WARP) return true;
    if (before.warp_time != warp_time) return false;
    return before.several_lanes || before.entity != thread;
}

/* What the word at p, and those behind it, have of the warp's readers; NULL for other memory, and
 * where they are not kept */
readers *readers_of(const void *p, unsigned warp)
{
    const size_t at = (size_t)((const char *)p - st->shared);
    if (!st->is_tracked || at >= st->n_shared) return NULL;
    return st->word_readers + warp * (st->n_shared / 4) + at / 4;
}

/* Whether a reader of the word at p, of another warp, is beside what the thread does now. */
bool is_read_beside(const void *p, unsigned thread)
{
    for (unsigned w = 0; w < st->n_thread * st->n_block / SIMT_WARP; w++) {
        const readers r = *readers_of(p, w);
        const unsigned block = block_of(w * SIMT_WARP);
        const bool is_own = block == block_of(thread);
        if (r.step <= (is_own ? st->block_step[block] : st->first_step)) continue;
        if (w == thread / SIMT_WARP) continue;
        for (uint32_t lanes = r.lanes; lanes; lanes &= lanes - 1) {
            if (r.step > st->known[thread].of[w * SIMT_WARP + (unsigned)__builtin_ctz(lanes)])
                return true;
        }
    }
    return false;
}

[[noreturn]] void report(const char *what, const access &before, const void *p)
{
    fprintf(stderr,
            "simt: race: %s by thread %u of block %u,%u,%u after one by %s %u%s, nothing waited "
            "for between them; %td bytes from the start of the dynamic shared memory\n",
            what, simt_thread() % st->n_thread, blockIdx.x, blockIdx.y, blockIdx.z,
            before.entity < THREADS_MAX ? "thread" : "a copy of barrier",
            before.entity < THREADS_MAX ? before.entity % st->n_thread : before.entity - THREADS_MAX,
            before.several_warps || before.several_lanes ? " and others" : "",
            (const char *)p - (const char *)simt_shared());
    abort();
}

/* NULL for memory that is not shared, as most is */
inline shadow *shadow_of(const void *p)
{
    if (!st->running) return NULL;
    const size_t at = (size_t)((const char *)p - st->shared);
    if (at < st->n_shared) return st->shared_shadows + at;
    const size_t place = (size_t)((const char *)p - &__data_start);
    return place < (size_t)(&_end - &__data_start) ? shadows + place : NULL;
}

/* Whether what is known of byte i is what was known of the one before it, in the same word, so that
 * it need not be judged again. */
bool is_as_before(const void *p, size_t i, const shadow &of, const shadow &before)
{
    return i > 0 && ((uintptr_t)p + i) % 4 != 0 && of == before;
}

[[gnu::noinline]] void note_shared_write(shadow *s, const void *p, size_t n, const access &a)
{
    const unsigned thread = simt_thread();
    const bool has_readers = readers_of(p, 0) != NULL;
    shadow last = {};
    for (size_t i = 0; i < n; i++, s++) {
        if (!is_as_before(p, i, *s, last)) {
            last = *s;
            if (!(a.atomic && s->write.atomic) && is_beside(s->write, thread, a.warp_time))
                report("a write", s->write, p);
            if ((!(has_readers && s->read.several_warps) &&
                 is_beside(s->read, thread, a.warp_time)) ||
                (has_readers && is_read_beside((const char *)p + i, thread)))
                report("a write over a read", s->read, p);
        }
        s->write = a;
    }
}

/* The calling thread writes, or starts a copy that does: a.entity. */
inline void note_write(const void *p, size_t n, const access &a)
{
    if (!st) return;
    shadow *s = shadow_of(p);
    if (!s) return simt_link_write(p, n);
    note_shared_write(s, p, n, a);
}

inline void note_plain_write(const void *p, size_t n)
{
    if (!st) return;
    shadow *s = shadow_of(p);
    if (!s) return simt_link_write(p, n);
    note_shared_write(s, p, n, access_now(false));
}

/* Adds the calling thread to the readers of words; false if it is among them since this step, in
 * which nobody else can have written without a race. */
bool note_readers(const void *p, size_t n)
{
    const unsigned thread = simt_thread(), warp = thread / SIMT_WARP;
    const uint32_t lane = 1u << thread % SIMT_WARP;
    const uint32_t block = st->block_step[block_of(thread)];
    const uint32_t since = block > st->warp_step[warp] ? block : st->warp_step[warp];
    readers *all = readers_of(p, warp);
    bool is_new = false;
    for (size_t i = 0; i < ((uintptr_t)p % 4 + n + 3) / 4; i++) {
        readers &r = all[i];
        is_new |= r.step != now || !(r.lanes & lane);
        r.lanes = r.step <= since ? lane : r.lanes | lane;
        r.step = now;
    }
    return is_new;
}

/* Whether n bytes have been read by several warps since the last barrier and not written: one more
 * reader changes nothing. Most reads find that. */
inline bool is_read_by_many(const shadow *s, size_t n, unsigned thread)
{
    const uint32_t since = st->block_step[block_of(thread)];
    for (size_t i = 0; i < n; i++) {
        if (!s[i].read.several_warps || s[i].read.step <= since || s[i].write.step > since)
            return false;
    }
    return true;
}

[[gnu::noinline]] void note_shared_read(shadow *s, const void *p, size_t n)
{
    if (readers_of(p, 0) ? !note_readers(p, n) : is_read_by_many(s, n, simt_thread())) return;
    const access a = access_now(false);
    shadow last = {};
    access read = a;
    for (size_t i = 0; i < n; i++, s++) {
        if (i == 0 || !(*s == last)) {
            last = *s;
            if (is_beside(s->write, a.entity, a.warp_time))
                report("a read of a write", s->write, p);
            const access &r = s->read;
            const bool fresh = r.step <= st->block_step[block_of(a.entity)];
            const bool same_warp = !fresh && r.entity / SIMT_WARP == a.entity / SIMT_WARP;
            read.several_warps = !fresh && (r.several_warps || !same_warp);
            read.several_lanes = same_warp && r.warp_time == a.warp_time &&
                                 (r.several_lanes || r.entity != a.entity);
        }
        s->read = read;
    }
}

inline void note_read(const void *p, size_t n)
{
    if (!st) return;
    shadow *s = shadow_of(p);
    if (!s) return simt_link_read(p, n);
    note_shared_read(s, p, n);
}

} // namespace

static void begin_tracking(void)
{
    st->is_tracked = true;
    memset(st->known, 0, st->n_thread * st->n_block * sizeof st->known[0]);
    memset(st->warp_barriers, 0, sizeof st->warp_barriers);
    memset(st->cluster_arrived, 0, sizeof st->cluster_arrived);
    for (unsigned i = 0; i < st->n_thread * st->n_block; i++) st->reads[i].clear();
}

static void *map_zeros(size_t n)
{
    void *p = mmap(NULL, n, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1,
                   0);
    if (p == MAP_FAILED) abort();
    return p;
}

race_state *race_create(const void *shared, size_t n)
{
    race_state *s = new race_state();
    s->shared = (const char *)shared;
    s->n_shared = n;
    s->shared_shadows = (shadow *)map_zeros(n * sizeof(shadow));
    s->known = (knowledge *)map_zeros(THREADS_MAX * sizeof(knowledge));
    s->word_readers = (readers *)map_zeros(WARPS_MAX * (n / 4) * sizeof *s->word_readers);
    return s;
}

void race_use(race_state *s)
{
    st = s;
}

void race_run(unsigned n_cluster)
{
    if (!shadows)
        shadows = (shadow *)map_zeros((size_t)(&_end - &__data_start) * sizeof *shadows);
    st->running = n_cluster > 0;
    st->is_tracked = false;
    st->n_barrier = 0;
    st->n_block = n_cluster;
    st->n_thread = blockDim.x * blockDim.y * blockDim.z;
    st->n_thread = (st->n_thread + SIMT_WARP - 1) / SIMT_WARP * SIMT_WARP;
    st->first_step = now++;
    if (n_cluster > 1) begin_tracking();
}

/* What a thread of the block knows of others than the block's threads is known to all of them. */
static void share(unsigned block)
{
    knowledge all = {};
    for (unsigned t = block * st->n_thread; t < (block + 1) * st->n_thread; t++) learn(all, st->known[t]);
    for (unsigned t = block * st->n_thread; t < (block + 1) * st->n_thread; t++) learn(st->known[t], all);
}

void race_block(unsigned block)
{
    st->block_step[block] = now++;
    if (st->is_tracked) share(block);
}

void race_warp_arrive(void)
{
    if (!st->is_tracked) return;
    const unsigned thread = simt_thread();
    warp_barrier &b = st->warp_barriers[thread / SIMT_WARP][st->warp_now[thread] % 2];
    if (b.is_left) memset(&b, 0, sizeof b);
    learn(b.known, st->known[thread]);
}

void race_warp(void)
{
    const unsigned thread = simt_thread(), first = thread - thread % SIMT_WARP;
    warp_barrier &b = st->warp_barriers[first / SIMT_WARP][st->warp_now[thread]++ % 2];
    if (!st->is_tracked) return;
    if (!b.is_left) { /* all have arrived, and done nothing since */
        for (unsigned i = 0; i < SIMT_WARP; i++) b.known.of[first + i] = now;
        st->warp_step[first / SIMT_WARP] = now++;
        b.is_left = true;
    }
    learn(st->known[thread], b.known);
}

void race_cluster_arrive(unsigned turn)
{
    if (!st->is_tracked) return;
    const unsigned thread = simt_thread();
    knowledge &arrived = st->cluster_arrived[turn % 2];
    learn(arrived, st->known[thread]);
    learn_block(arrived, thread);
    arrived.of[thread] = now++;
}

void race_cluster(unsigned turn)
{
    if (st->is_tracked) learn(st->known[simt_thread()], st->cluster_arrived[turn % 2]);
}

static barrier *barrier_of(const void *place)
{
    for (unsigned i = 0; i < st->n_barrier; i++) {
        if (st->barriers[i].place == place) return &st->barriers[i];
    }
    return NULL;
}

void race_barrier_init(const void *place)
{
    if (!st->running) return;
    if (st->n_barrier == BARRIERS_MAX) simt_fault("more barriers than are watched");
    if (!st->is_tracked) begin_tracking();
    memset(&st->barriers[st->n_barrier], 0, sizeof st->barriers[0]);
    st->barriers[st->n_barrier++].place = place;
}

void race_arrive(const void *place)
{
    barrier *b = barrier_of(place);
    if (!b) return;
    const unsigned thread = simt_thread();
    learn(b->arrived, st->known[thread]);
    learn_block(b->arrived, thread);
    b->arrived.of[thread] = now++;
}

void race_phase_over(const void *place)
{
    barrier *b = barrier_of(place);
    if (b) b->over = b->arrived;
}

void race_wait(const void *place)
{
    const barrier *b = barrier_of(place);
    if (b) learn(st->known[simt_thread()], b->over);
}

void race_read(const void *p, size_t n)
{
    note_read(p, n);
}

void race_read_on(const void *p, size_t n)
{
    if (!st->is_tracked) return;
    note_read(p, n);
    st->reads[simt_thread()].push_back({p, n, st->n_commit[simt_thread()]});
}

void race_reads_commit(void)
{
    st->n_commit[simt_thread()]++;
}

void race_reads_end(unsigned n_left)
{
    if (!st->is_tracked) return;
    std::vector<range> &all = st->reads[simt_thread()];
    size_t n = 0;
    while (n < all.size() && st->n_commit[simt_thread()] - all[n].group >= 1 + n_left) n++;
    for (size_t i = 0; i < n; i++) note_read(all[i].p, all[i].n);
    all.erase(all.begin(), all.begin() + (ptrdiff_t)n);
}

void race_write(const void *p, size_t n)
{
    note_write(p, n, access_now(false));
}

void race_atomic(const void *p, size_t n)
{
    note_write(p, n, access_now(true));
}

void race_copy(const void *p, size_t n, const void *place)
{
    barrier *b = barrier_of(place);
    if (!b) return;
    access a = access_now(false);
    a.entity = (uint16_t)(THREADS_MAX + (b - st->barriers));
    note_write(p, n, a);
    learn(b->arrived, st->known[simt_thread()]);
    learn_block(b->arrived, simt_thread());
    b->arrived.of[a.entity] = now++;
}

/* ---- the hooks ---------------------------------------------------------------------------- */

#define HOOKS(n)                                                                                   \
    void __tsan_read##n(void *p)                                                                   \
    {                                                                                              \
        note_read(p, n);                                                                           \
    }                                                                                              \
    void __tsan_write##n(void *p)                                                                  \
    {                                                                                              \
        note_plain_write(p, n);                                                                    \
    }                                                                                              \
    void __tsan_unaligned_read##n(void *p)                                                         \
    {                                                                                              \
        note_read(p, n);                                                                           \
    }                                                                                              \
    void __tsan_unaligned_write##n(void *p)                                                        \
    {                                                                                              \
        note_plain_write(p, n);                                                                    \
    }

extern "C" {
HOOKS(1)
HOOKS(2)
HOOKS(4)
HOOKS(8)
HOOKS(16)
void __tsan_read_range(void *p, size_t n)
{
    note_read(p, n);
}
void __tsan_write_range(void *p, size_t n)
{
    note_plain_write(p, n);
}
void __tsan_init(void)
{
}
void __tsan_func_entry(void *)
{
}
void __tsan_func_exit(void)
{
}
void __tsan_vptr_update(void *, void *)
{
}
void __tsan_vptr_read(void *)
{
}
}
