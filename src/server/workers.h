/* workers.h - jobs that wait, by tenant, and the threads that work on them
 *
 * There are two queues: of jobs to be prepared, which is short work, and of jobs that have to
 * compile a grammar. At most half of the threads, and at least one, ever take from the second; the
 * others are always there for the first. With one thread there is but one, which prepares first. In
 * each queue tenants take turns, a job each.
 *
 * A task says what is left of a job: nothing, a turn to compile, or to wait until somebody calls
 * workers_resume. A job that waits holds no thread.
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
    size_t n_tenant;               /* more than one: none takes the places of all others */
    worker_task *task;             /* called by any thread, for one job by one at a time */
    void (*done)(struct job *job); /* after WORK_DONE: the queues know the job no more */
};

/* workers_create - Errors  ENOMEM; EIO when a thread cannot start. */
fathom_err workers_create(struct workers **out, const struct workers_config *config,
                          fathom_diag *d);

/* workers_stop - take no more, finish what waits, end the threads; accepts NULL
 *
 * Needs  somebody who resumes what waits to be resumed. */
void workers_stop(struct workers *w);
void workers_destroy(struct workers *w); /* stops first; accepts NULL */

/* workers_push - a job that is to be prepared
 *
 * Errors  EBUSY when no place is free, when the tenant holds as many as are free for others, or
 *         when the threads have been stopped. */
fathom_err workers_push(struct workers *w, struct job *job, uint32_t tenant);

/* workers_set_tenants - there are n from now on: config.n_tenant */
void workers_set_tenants(struct workers *w, size_t n);

/* workers_resume - a job that waits goes on; its task may not have returned WORK_TO_WAIT yet */
void workers_resume(struct workers *w, struct job *job);

#endif
