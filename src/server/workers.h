/* workers.h - a bounded queue of jobs and the threads that prepare them */
#ifndef FATHOM_SERVER_WORKERS_H
#define FATHOM_SERVER_WORKERS_H

#include <stddef.h>

#include "fathom/err.h"

struct job;
struct workers;

typedef void worker_task(struct job *job);

/* workers_create - n_thread threads that call task for each job, in order; up to max wait
 * Errors  ENOMEM; EIO when a thread cannot start. */
fathom_err workers_create(struct workers **out, unsigned n_thread, size_t max, worker_task *task,
                          fathom_diag *d);

/* workers_stop - take no more, finish what is queued, end the threads; accepts NULL */
void workers_stop(struct workers *w);
void workers_destroy(struct workers *w); /* stops first; accepts NULL */

/* workers_push - EBUSY when the queue is full or the threads have been stopped */
fathom_err workers_push(struct workers *w, struct job *job);

#endif
