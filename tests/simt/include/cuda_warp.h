/* cuda_warp.h - what threads of the simulated GPU do together: atomics, barriers, shuffles, votes;
 * a part of cuda_runtime.h */
#ifndef FATHOM_TESTS_SIMT_CUDA_WARP_H
#define FATHOM_TESTS_SIMT_CUDA_WARP_H

#include "cuda_runtime.h"

/* Not seen as plain accesses by the hooks of race.h */
#define SIMT_UNWATCHED __attribute__((no_sanitize("thread")))
#define SIMT_UNSEEN __attribute__((noinline)) SIMT_UNWATCHED
/* A part of such a function, which the compiler would leave a call in builds with the hooks */
#define SIMT_WITHIN __attribute__((always_inline)) SIMT_UNWATCHED

template <typename T> SIMT_UNSEEN static T atomicAdd(T *p, T v)
{
    race_atomic(p, sizeof *p);
    T old = *p;
    *p = old + v;
    return old;
}
template <typename T> SIMT_UNSEEN static T atomicOr(T *p, T v)
{
    race_atomic(p, sizeof *p);
    T old = *p;
    *p = old | v;
    return old;
}
template <typename T> SIMT_UNSEEN static T atomicCAS(T *p, T expected, T v)
{
    race_atomic(p, sizeof *p);
    T old = *p;
    if (old == expected) *p = v;
    return old;
}
template <typename T> SIMT_UNSEEN static T atomicMin(T *p, T v)
{
    race_atomic(p, sizeof *p);
    T old = *p;
    *p = old < v ? old : v;
    return old;
}

static inline void __syncthreads(void)
{
    simt_block_wait();
}
static inline void __syncwarp(void)
{
    race_warp_arrive();
    (void)simt_warp_exchange(NULL, 0);
    race_warp();
}

template <typename T> SIMT_WITHIN static inline T simt_lane(const char *all, unsigned lane)
{
    T v;
    memcpy(&v, all + (size_t)lane * SIMT_EXCHANGE_BYTES, sizeof v);
    return v;
}
template <typename T> static inline T __shfl_xor_sync(unsigned, T v, int lane_mask)
{
    const char *all = simt_warp_exchange(&v, sizeof v);
    return simt_lane<T>(all, threadIdx.x % SIMT_WARP ^ (unsigned)lane_mask);
}
template <typename T> static inline T __shfl_sync(unsigned, T v, int lane)
{
    return simt_lane<T>(simt_warp_exchange(&v, sizeof v), (unsigned)lane % SIMT_WARP);
}
template <typename T> static inline T __shfl_up_sync(unsigned, T v, unsigned distance)
{
    const char *all = simt_warp_exchange(&v, sizeof v);
    unsigned lane = threadIdx.x % SIMT_WARP;
    return lane < distance ? v : simt_lane<T>(all, lane - distance);
}
static inline unsigned __ballot_sync(unsigned, bool p)
{
    const char *all = simt_warp_exchange(&p, sizeof p);
    unsigned bits = 0;
    for (unsigned i = 0; i < SIMT_WARP; i++) bits |= (unsigned)simt_lane<bool>(all, i) << i;
    return bits;
}

static inline int __reduce_add_sync(unsigned, int v)
{
    const char *all = simt_warp_exchange(&v, sizeof v);
    int sum = 0;
    for (unsigned i = 0; i < SIMT_WARP; i++) sum += simt_lane<int>(all, i);
    return sum;
}
static inline unsigned __reduce_max_sync(unsigned, unsigned v)
{
    const char *all = simt_warp_exchange(&v, sizeof v);
    for (unsigned i = 0; i < SIMT_WARP; i++) {
        unsigned other = simt_lane<unsigned>(all, i);
        v = other > v ? other : v;
    }
    return v;
}

#endif
