/* race.cpp - see race.h
 *
 * A byte's shadow has its last write and its last reads. An access is at a block's time, which a
 * barrier advances, and at a warp's, which __syncwarp advances for each of its lanes. It comes
 * after another one of
 *   the same thread                                     always
 *   the same block's time, the same warp                at a later time of the warp
 *   the same block's time, another warp                 never
 *   an earlier time of the block                        always
 * Blocks run one after the other, so one time serves all of them.
 *
 * Of the reads since the last barrier it is kept whether they were of several warps, and of the
 * last warp's time whether they were of several lanes: no more is needed to judge a write. */
#include "simt/race.h"

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "simt/simt.h"

extern "C" char __data_start, _end; /* the program's variables: all shared memory is among them */

namespace
{

struct access {
    uint32_t time, warp_time; /* time 0: never */
    uint16_t thread;
    bool atomic;
    bool several_lanes, several_warps; /* reads alone */
};

struct shadow {
    access write, read;
};

enum { THREADS_MAX = 1024 };

shadow *shadows; /* [_end - __data_start] */
uint32_t now = 1, warp_now[THREADS_MAX];
bool running;

uint16_t this_thread(void)
{
    return (uint16_t)(threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z));
}

access access_now(bool atomic)
{
    const uint16_t thread = this_thread();
    return {now, warp_now[thread], thread, atomic, false, false};
}

/* Whether nothing has been waited for between the two. */
bool is_beside(const access &before, const access &a)
{
    if (before.time != a.time) return false;
    if (before.several_warps) return true;
    if (before.thread / SIMT_WARP != a.thread / SIMT_WARP) return true;
    if (before.warp_time != a.warp_time) return false;
    return before.several_lanes || before.thread != a.thread;
}

[[noreturn]] void report(const char *what, const access &before, const access &a, const void *p)
{
    fprintf(
        stderr,
        "simt: race: %s by thread %u of block %u,%u,%u after one by thread %u%s, nothing waited "
        "for between them; %zu bytes into the dynamic shared memory (or negative: a variable)\n",
        what, a.thread, blockIdx.x, blockIdx.y, blockIdx.z, before.thread,
        before.several_warps || before.several_lanes ? " and others" : "",
        (size_t)((const char *)p - (const char *)simt_shared()));
    abort();
}

shadow *shadow_of(const void *p)
{
    if (!running || (const char *)p < &__data_start || (const char *)p >= &_end) return NULL;
    return shadows + ((const char *)p - &__data_start);
}

inline void note_write(const void *p, size_t n, bool atomic)
{
    shadow *s = shadow_of(p);
    if (!s) return;
    const access a = access_now(atomic);
    for (size_t i = 0; i < n; i++, s++) {
        if (!(atomic && s->write.atomic) && is_beside(s->write, a))
            report("a write", s->write, a, p);
        if (is_beside(s->read, a)) report("a write over a read", s->read, a, p);
        s->write = a;
    }
}

/* Whether n bytes have been read by several warps since the last barrier and not written: one more
 * reader changes nothing. Most reads find that. */
inline bool is_read_by_many(const shadow *s, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        if (!s[i].read.several_warps || s[i].read.time != now || s[i].write.time == now)
            return false;
    }
    return true;
}

inline void note_read(const void *p, size_t n)
{
    shadow *s = shadow_of(p);
    if (!s || is_read_by_many(s, n)) return;
    const access a = access_now(false);
    for (size_t i = 0; i < n; i++, s++) {
        if (is_beside(s->write, a)) report("a read of a write", s->write, a, p);
        access &r = s->read;
        const bool fresh = r.time != a.time;
        const bool same_warp = !fresh && r.thread / SIMT_WARP == a.thread / SIMT_WARP;
        const bool several_warps = !fresh && (r.several_warps || !same_warp);
        const bool several_lanes =
            same_warp && r.warp_time == a.warp_time && (r.several_lanes || r.thread != a.thread);
        r = a;
        r.several_warps = several_warps;
        r.several_lanes = several_lanes;
    }
}

} // namespace

void race_run(bool on)
{
    if (!shadows) {
        const size_t n = (size_t)(&_end - &__data_start) * sizeof *shadows;
        void *p = mmap(NULL, n, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE,
                       -1, 0);
        if (p == MAP_FAILED) abort();
        shadows = (shadow *)p;
    }
    running = on;
}

void race_barrier(void)
{
    now++;
}

void race_warp(void)
{
    warp_now[this_thread()]++;
}

void race_write(const void *p, size_t n)
{
    note_write(p, n, false);
}

void race_atomic(const void *p, size_t n)
{
    note_write(p, n, true);
}

/* ---- the hooks ---------------------------------------------------------------------------- */

#define HOOKS(n)                                                                                   \
    void __tsan_read##n(void *p)                                                                   \
    {                                                                                              \
        note_read(p, n);                                                                           \
    }                                                                                              \
    void __tsan_write##n(void *p)                                                                  \
    {                                                                                              \
        note_write(p, n, false);                                                                   \
    }                                                                                              \
    void __tsan_unaligned_read##n(void *p)                                                         \
    {                                                                                              \
        note_read(p, n);                                                                           \
    }                                                                                              \
    void __tsan_unaligned_write##n(void *p)                                                        \
    {                                                                                              \
        note_write(p, n, false);                                                                   \
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
    note_write(p, n, false);
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
