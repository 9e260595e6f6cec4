/* feed.cuh - runs of tasks, which differ in length, go to whichever block is free
 *
 * Block i begins with run i, and takes the next one that nobody has. So blocks stay where the
 * others are, and find weights in L2. One thread of a block takes runs, and says what comes next to
 * the warps that read, which go through all slots in turn:
 *
 *   empty --- feed_put_next: the number of a run, or one past all, which is the last ---> full
 *   full ---- feed_get, by every warp that reads ---> empty
 *
 * A launch's feed (product_args.feed) is two zeros: runs that have been taken behind those that
 * blocks begin with, and blocks that take no more, of which the last one leaves zeros. */
#ifndef FATHOM_BACKEND_CUDA_SM90_FEED_CUH
#define FATHOM_BACKEND_CUDA_SM90_FEED_CUH

#include "backend/cuda/sm90/stage.cuh"

enum { FEED_SLOTS = 4 };

/* In shared memory */
struct feed {
    uint64_t full[FEED_SLOTS];
    uint64_t empty[FEED_SLOTS];
    uint32_t run[FEED_SLOTS];
};

/* Whoever walks along a feed */
struct feed_ring {
    uint32_t slot;
    uint32_t parity;
};

/* The thread that takes runs */
struct feed_source {
    struct feed_ring put;
    uint32_t next;
};

static __device__ __forceinline__ void feed_init(struct feed *f, uint32_t n_reader)
{
    for (int i = 0; i < FEED_SLOTS; i++) {
        mbarrier_init(smem_address(&f->full[i]), 1);
        mbarrier_init(smem_address(&f->empty[i]), n_reader);
    }
}

static __device__ __forceinline__ struct feed_source feed_begin(void)
{
    return {{0, 0}, blockIdx.x};
}

static __device__ __forceinline__ void feed_advance(struct feed_ring &r)
{
    r.slot = (r.slot + 1) % FEED_SLOTS;
    if (r.slot == 0) r.parity ^= 1;
}

/* By one thread. Returns what it has put: a run, or not less than n_run. What follows is taken at
 * once, so that it is there when it is put. */
static __device__ __forceinline__ uint32_t feed_put_next(struct feed *f, struct feed_source &s,
                                                         int32_t *taken, uint32_t n_run)
{
    const uint32_t run = s.next;
    wait_phase(&f->empty[s.put.slot], s.put.parity ^ 1);
    f->run[s.put.slot] = run;
    mbarrier_arrive(smem_address(&f->full[s.put.slot]));
    feed_advance(s.put);
    if (run < n_run) s.next = gridDim.x + (uint32_t)atomicAdd((int *)&taken[0], 1);
    return run;
}

/* By every warp that reads */
static __device__ __forceinline__ uint32_t feed_get(struct feed *f, struct feed_ring &r,
                                                    uint32_t lane)
{
    wait_phase(&f->full[r.slot], r.parity);
    const uint32_t run = f->run[r.slot];
    __syncwarp();
    if (lane == 0) mbarrier_arrive(smem_address(&f->empty[r.slot]));
    feed_advance(r);
    return run;
}

/* By the thread that takes: no more. */
static __device__ __forceinline__ void feed_end(int32_t *taken)
{
    if (atomicAdd((int *)&taken[1], 1) + 1 != (int)gridDim.x) return;
    taken[0] = 0;
    taken[1] = 0;
}

#endif
