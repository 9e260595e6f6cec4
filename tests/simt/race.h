/* race.h - who touched what of shared memory, and what has been waited for
 *
 * The kernels are compiled with the thread sanitizer's hooks, which race.cpp answers itself. Each
 * read and write of shared memory is compared with what other threads of the block did to the same
 * bytes and have not been waited for. These count as waiting: __syncthreads; __syncwarp among a
 * warp's lanes; barrier.cluster; barriers in shared memory (mbarrier). An mbarrier tells what the
 * threads that arrived had done and seen. Shuffles and votes order nothing. A copy that counts at a
 * barrier has written when the barrier's phase is over, a warpgroup's product has read when it is
 * waited for. A race ends the process and names both threads.
 */
#ifndef FATHOM_TESTS_SIMT_RACE_H
#define FATHOM_TESTS_SIMT_RACE_H

#include <stddef.h>

struct race_state;

#ifdef SIMT_RACES
/* race_create - what is known of an engine's threads, whose dynamic shared memory this is;
 * race_use - it is that engine's threads that run now */
race_state *race_create(const void *shared, size_t n);
void race_use(race_state *s);

/* race_run - from now on the threads of so many blocks of a kernel run together; 0: no more */
void race_run(unsigned n_block);

/* race_block - all that a block's threads have done comes before what they will do. race_warp -
 * likewise among the lanes of the calling thread's warp: each calls race_warp_arrive before they
 * wait for each other, and race_warp behind that. race_cluster_arrive, race_cluster - likewise for
 * the cluster, whose turns of waiting are counted */
void race_block(unsigned cluster_rank);
void race_warp_arrive(void);
void race_warp(void);
void race_cluster_arrive(unsigned turn);
void race_cluster(unsigned turn);

/* race_barrier_init - a barrier in shared memory, known by its place: nobody has arrived.
 * race_arrive - what the calling thread has done and knows of comes before the end of the phase;
 * race_phase_over - that is now; race_wait - phases that are over come before what it will do */
void race_barrier_init(const void *barrier);
void race_arrive(const void *barrier);
void race_phase_over(const void *barrier);
void race_wait(const void *barrier);

/* race_read - the calling thread reads n bytes; race_read_on - from now on until race_reads_end.
 * race_reads_commit - those so far are a group; race_reads_end - all but the newest n_left groups
 */
void race_read(const void *p, size_t n);
void race_read_on(const void *p, size_t n);
void race_reads_commit(void);
void race_reads_end(unsigned n_left);

/* race_write - the calling thread writes n bytes, or will at any time from now on; race_atomic - it
 * does so atomically, which may happen beside other such writes */
void race_write(const void *p, size_t n);
void race_atomic(const void *p, size_t n);

/* race_copy - a copy that the calling thread starts writes n bytes until the barrier's phase ends
 */
void race_copy(const void *p, size_t n, const void *barrier);
#else
static inline race_state *race_create(const void *, size_t)
{
    return NULL;
}
static inline void race_use(race_state *)
{
}
static inline void race_run(unsigned)
{
}
static inline void race_block(unsigned)
{
}
static inline void race_warp_arrive(void)
{
}
static inline void race_warp(void)
{
}
static inline void race_cluster_arrive(unsigned)
{
}
static inline void race_cluster(unsigned)
{
}
static inline void race_barrier_init(const void *)
{
}
static inline void race_arrive(const void *)
{
}
static inline void race_phase_over(const void *)
{
}
static inline void race_wait(const void *)
{
}
static inline void race_read(const void *, size_t)
{
}
static inline void race_read_on(const void *, size_t)
{
}
static inline void race_reads_commit(void)
{
}
static inline void race_reads_end(unsigned)
{
}
static inline void race_write(const void *, size_t)
{
}
static inline void race_atomic(const void *, size_t)
{
}
static inline void race_copy(const void *, size_t, const void *)
{
}
#endif

#endif
