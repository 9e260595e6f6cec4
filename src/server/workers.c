/* workers.c - a ring of jobs under a lock, and the threads that wait for it */
#include "server/workers.h"

#include <pthread.h>
#include <stdbool.h>

#include "base/fail.h"
#include "base/mem.h"
#include "base/os.h"

/* Invariant: the n jobs at queue[(first + 0 .. n-1) % max] wait, oldest first. */
struct workers {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    struct job **queue; /* [max] */
    size_t max;
    size_t first;
    size_t n;
    bool ending;
    worker_task *task;
    pthread_t *threads;
    unsigned n_thread; /* started */
};

static struct job *take_job(struct workers *w)
{
    struct job *job = NULL;
    (void)pthread_mutex_lock(&w->lock);
    while (w->n == 0 && !w->ending) (void)pthread_cond_wait(&w->changed, &w->lock);
    if (w->n) {
        job = w->queue[w->first];
        w->first = (w->first + 1) % w->max;
        w->n--;
    }
    (void)pthread_mutex_unlock(&w->lock);
    return job;
}

static void *work(void *arg)
{
    struct workers *w = arg;
    os_name_thread("prepare");
    for (struct job *job = take_job(w); job; job = take_job(w)) w->task(job);
    return NULL;
}

fathom_err workers_create(struct workers **out, unsigned n_thread, size_t max, worker_task *task,
                          fathom_diag *d)
{
    fathom_err err = FATHOM_OK;
    struct workers *w = mem_calloc(1, sizeof *w);
    *out = NULL;
    if (!w) return FATHOM_ENOMEM;
    (void)pthread_mutex_init(&w->lock, NULL);
    (void)pthread_cond_init(&w->changed, NULL);
    w->max = max;
    w->task = task;
    w->queue = mem_alloc_array(max, sizeof(struct job *));
    w->threads = mem_alloc_array(n_thread, sizeof *w->threads);
    if (!w->queue || !w->threads) {
        err = FATHOM_ENOMEM;
        goto out;
    }
    for (; w->n_thread < n_thread; w->n_thread++) {
        if (pthread_create(&w->threads[w->n_thread], NULL, work, w) == 0) continue;
        err = diag_fail(d, FATHOM_EIO, "thread %u of %u for requests cannot be started",
                        w->n_thread + 1, n_thread);
        goto out;
    }
    *out = w;
out:
    if (err) workers_destroy(w);
    return err;
}

void workers_stop(struct workers *w)
{
    if (!w) return;
    (void)pthread_mutex_lock(&w->lock);
    w->ending = true;
    (void)pthread_cond_broadcast(&w->changed);
    (void)pthread_mutex_unlock(&w->lock);
    for (unsigned i = 0; i < w->n_thread; i++) (void)pthread_join(w->threads[i], NULL);
    w->n_thread = 0;
}

void workers_destroy(struct workers *w)
{
    if (!w) return;
    workers_stop(w);
    (void)pthread_mutex_destroy(&w->lock);
    (void)pthread_cond_destroy(&w->changed);
    mem_free(w->queue);
    mem_free(w->threads);
    mem_free(w);
}

fathom_err workers_push(struct workers *w, struct job *job)
{
    fathom_err err = FATHOM_EBUSY;
    (void)pthread_mutex_lock(&w->lock);
    if (w->n < w->max && !w->ending) {
        w->queue[(w->first + w->n++) % w->max] = job;
        (void)pthread_cond_signal(&w->changed);
        err = FATHOM_OK;
    }
    (void)pthread_mutex_unlock(&w->lock);
    return err;
}
