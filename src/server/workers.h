/* workers.h - jobs that wait, by tenant, and the threads that work on them
 *
 * There are two queues: one of jobs to be prepared, which is short work, and one of jobs that have
 * to compile a grammar. Half of the threads, but at least one, also take jobs from the second
 * queue; the others only prepare. If there is only one thread, it prepares first. In each queue
 * tenants take turns, one job at a time.
 *
 * A task returns what is left to do for its job: nothing, a turn to compile, or waiting for
 * workers_resume. A job that waits occupies no thread.
 */
#ifndef FATHOM_SERVER_WORKERS_H
#define FATHOM_SERVER_WORKERS_H

#include <stddef.h>
#include <stdint.h>

#include "fathom/err.h"

struct job;
struct workers;

enum work_kind { WORK_PREPARE, WORK_COMPILE, WORK_KIND_COUNT };

enum work_rest {
    WORK_DONE,
    WORK_TO_COMPILE, /* the task is called again with WORK_COMPILE */
    WORK_TO_WAIT,    /* it is called again with WORK_PREPARE after workers_resume */
};

typedef enum work_rest worker_task(struct job *job, enum work_kind kind);

struct workers_config {
    unsigned n_thread;
    size_t max;                    /* jobs that wait, in a queue or for workers_resume */
    size_t n_tenant;               /* above 1: no tenant may take all places */
    worker_task *task;             /* called by any thread, for one job by one thread at a time */
    void (*done)(struct job *job); /* called after WORK_DONE; the job is in no queue then */
};

/* workers_create - Errors  ENOMEM; EIO when a thread cannot start. */
fathom_err workers_create(struct workers **out, const struct workers_config *config,
                          fathom_diag *d);

/* workers_stop - take no more jobs, finish those that wait, end the threads; accepts NULL
 *
 * Needs  jobs that wait for workers_resume are still resumed by another thread. */
void workers_stop(struct workers *w);
void workers_destroy(struct workers *w); /* stops first; accepts NULL */

/* workers_push - queue a job to be prepared
 *
 * Errors  EBUSY: no place is free, the tenant has as many jobs waiting as places are free, or the
 *         threads have been stopped. */
fathom_err workers_push(struct workers *w, struct job *job, uint32_t tenant);

/* workers_set_tenants - change config.n_tenant */
void workers_set_tenants(struct workers *w, size_t n);

/* workers_resume - go on with a job that waits. It may be called before the task has returned
 * WORK_TO_WAIT. */
void workers_resume(struct workers *w, struct job *job);

#endif
