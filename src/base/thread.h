/* thread.h - a pool that runs one parallel loop at a time
 *
 * The caller is worker 0 and works too. Workers spin briefly for the next loop and then sleep, so
 * that a step of many small operators pays about a microsecond each and an idle engine nothing.
 * A pool belongs to one calling thread.
 */
#ifndef FATHOM_BASE_THREAD_H
#define FATHOM_BASE_THREAD_H

#include <stddef.h>
#include <stdint.h>

#include "fathom/err.h"

struct thread_pool;

/* task - does part `part` of `n_part` (or item `part` of `n_part`) on worker `worker` */
typedef void thread_task(void *arg, size_t part, size_t n_part, unsigned worker);

/* thread_pool_create - n_thread workers, the caller included; 1 makes no thread at all
 * Errors  EINVAL for 0 or more than LIMIT_THREADS; ENOMEM; EIO when a thread cannot start. */
fathom_err thread_pool_create(struct thread_pool **out, unsigned n_thread, fathom_diag *d);

/* thread_pool_create_on - the same; each thread but the caller first calls start(arg, worker). arg
 * outlives the pool. */
typedef void thread_start(void *arg, unsigned worker);
fathom_err thread_pool_create_on(struct thread_pool **out, unsigned n_thread, thread_start *start,
                                 void *arg, fathom_diag *d);
void thread_pool_destroy(struct thread_pool *p);

/* thread_pool_run - task(arg, i, n_item, worker) for every i in [0, n_item), items handed out in
 * order to whoever is free; returns when all are done. What an item computes must not depend on
 * the worker. */
void thread_pool_run(struct thread_pool *p, size_t n_item, thread_task *task, void *arg);

/* thread_pool_compute - the same for items that compute and neither read files nor sleep: a worker
 * that was off its processor while it held an item and the others waited takes no item for 16 times
 * what was lost, times the number of workers besides the caller, at most 10 s. So the waits of a
 * caller whose machine is busy with other work are at most about 1/16 of its time, and with few
 * processors to be had it does the loops alone.
 * Cost  about a microsecond beyond the items', as thread_pool_run's */
void thread_pool_compute(struct thread_pool *p, size_t n_item, thread_task *task, void *arg);

/* thread_pool_progress - a number that changes with every loop begun and item done. Any thread may
 * read it, to see whether a loop gets on. */
uint64_t thread_pool_progress(const struct thread_pool *p);

#endif
