/* race.h - who touched what of shared memory since the last barrier
 *
 * The kernels are compiled with the thread sanitizer's hooks, which race.cpp answers itself: each
 * read and write of shared memory is compared with what other threads of the block did to the same
 * bytes and have not been waited for. Barriers are __syncthreads, and __syncwarp among a warp's
 * lanes; shuffles and votes order nothing. A race ends the process and names both threads.
 */
#ifndef FATHOM_TESTS_SIMT_RACE_H
#define FATHOM_TESTS_SIMT_RACE_H

#include <stddef.h>

#ifdef SIMT_RACES
/* race_run - from now on (or no more) the threads of a kernel run */
void race_run(bool running);

/* race_barrier - all that this block's threads have done comes before what they will do. race_warp
 * - likewise among the lanes of the calling thread's warp, each of which calls it. */
void race_barrier(void);
void race_warp(void);

/* race_write - the calling thread writes n bytes, or will at any time from now on; race_atomic - it
 * does so atomically, which may happen beside other such writes */
void race_write(const void *p, size_t n);
void race_atomic(const void *p, size_t n);
#else
static inline void race_run(bool)
{
}
static inline void race_barrier(void)
{
}
static inline void race_warp(void)
{
}
static inline void race_write(const void *, size_t)
{
}
static inline void race_atomic(const void *, size_t)
{
}
#endif

#endif
