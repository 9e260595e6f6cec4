/* One loop at a time: `epoch` counts loops; the caller publishes the loop, bumps the epoch and
 * works; a worker that sees a new epoch takes items from `next` until they run out and then counts
 * itself out of `n_busy`. The caller returns when n_busy is 0, so no worker can touch the loop's
 * arguments afterwards. */
#include "base/thread.h"

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#include "base/assert.h"
#include "base/fail.h"
#include "base/limits.h"
#include "base/mem.h"

enum { SPIN_TURNS = 4000 };

struct worker {
    struct thread_pool *pool;
    pthread_t thread;
    unsigned id;
    bool started;
};

struct thread_pool {
    unsigned n_thread;
    struct worker *workers; /* [n_thread]; 0 is the caller and has no thread */
    pthread_mutex_t lock;
    pthread_cond_t wake;
    bool sync_ready;
    bool stop; /* under lock */
    _Atomic unsigned n_asleep;
    _Atomic uint64_t epoch;
    _Atomic uint64_t n_loop; /* begun; written by the caller alone */

    thread_task *task;
    void *arg;
    size_t n_item;
    _Alignas(64) _Atomic size_t next;
    _Alignas(64) _Atomic unsigned n_busy;
};

static inline void cpu_relax(void)
{
#if defined(__x86_64__)
    __builtin_ia32_pause();
#else
    __asm__ volatile("" ::: "memory");
#endif
}

static void take_items(struct thread_pool *p, unsigned worker)
{
    for (;;) {
        size_t i = atomic_fetch_add_explicit(&p->next, 1, memory_order_relaxed);
        if (i >= p->n_item) return;
        p->task(p->arg, i, p->n_item, worker);
    }
}

/* Waits until the epoch differs from `seen`; false when the pool stops. */
static bool wait_for_loop(struct thread_pool *p, uint64_t seen)
{
    for (int turn = 0; turn < SPIN_TURNS; turn++) {
        if (atomic_load_explicit(&p->epoch, memory_order_acquire) != seen) return true;
        cpu_relax();
    }
    pthread_mutex_lock(&p->lock);
    atomic_fetch_add(&p->n_asleep, 1);
    while (atomic_load(&p->epoch) == seen && !p->stop) pthread_cond_wait(&p->wake, &p->lock);
    atomic_fetch_sub(&p->n_asleep, 1);
    bool go_on = !p->stop;
    pthread_mutex_unlock(&p->lock);
    return go_on;
}

static void *worker_main(void *arg)
{
    struct worker *w = arg;
    struct thread_pool *p = w->pool;
    for (uint64_t seen = 0; wait_for_loop(p, seen); seen++) {
        take_items(p, w->id);
        atomic_fetch_sub_explicit(&p->n_busy, 1, memory_order_release);
    }
    return NULL;
}

fathom_err thread_pool_create(struct thread_pool **out, unsigned n_thread, fathom_diag *d)
{
    *out = NULL;
    if (n_thread == 0 || n_thread > LIMIT_THREADS) {
        FAIL(d, FATHOM_EINVAL, "%u threads asked for, needed is 1 to %d", n_thread, LIMIT_THREADS);
    }
    struct thread_pool *p = mem_alloc_aligned(64, sizeof *p);
    if (!p) FAIL(d, FATHOM_ENOMEM, "no memory for a thread pool");
    memset(p, 0, sizeof *p);
    p->n_thread = n_thread;
    p->workers = mem_calloc(n_thread, sizeof *p->workers);
    fathom_err err = p->workers ? FATHOM_OK : diag_fail(d, FATHOM_ENOMEM, "no memory for threads");
    if (err) goto fail;
    pthread_mutex_init(&p->lock, NULL);
    pthread_cond_init(&p->wake, NULL);
    p->sync_ready = true;
    for (unsigned i = 1; i < n_thread; i++) {
        struct worker *w = &p->workers[i];
        w->pool = p;
        w->id = i;
        if (pthread_create(&w->thread, NULL, worker_main, w) != 0) {
            err = diag_fail(d, FATHOM_EIO, "thread %u of %u cannot be started", i, n_thread);
            goto fail;
        }
        w->started = true;
    }
    *out = p;
    return FATHOM_OK;
fail:
    thread_pool_destroy(p);
    return err;
}

void thread_pool_destroy(struct thread_pool *p)
{
    if (!p) return;
    if (p->sync_ready) {
        pthread_mutex_lock(&p->lock);
        p->stop = true;
        pthread_cond_broadcast(&p->wake);
        pthread_mutex_unlock(&p->lock);
        for (unsigned i = 1; i < p->n_thread; i++) {
            if (p->workers[i].started) pthread_join(p->workers[i].thread, NULL);
        }
        pthread_cond_destroy(&p->wake);
        pthread_mutex_destroy(&p->lock);
    }
    mem_free(p->workers);
    mem_free(p);
}

unsigned thread_pool_size(const struct thread_pool *p)
{
    return p->n_thread;
}

void thread_pool_run(struct thread_pool *p, size_t n_item, thread_task *task, void *arg)
{
    if (n_item == 0) return;
    uint64_t n_loop = atomic_load_explicit(&p->n_loop, memory_order_relaxed);
    atomic_store_explicit(&p->n_loop, n_loop + 1, memory_order_relaxed);
    if (p->n_thread == 1 || n_item == 1) {
        for (size_t i = 0; i < n_item; i++) {
            atomic_store_explicit(&p->next, i, memory_order_relaxed);
            task(arg, i, n_item, 0);
        }
        return;
    }
    p->task = task;
    p->arg = arg;
    p->n_item = n_item;
    atomic_store_explicit(&p->next, 0, memory_order_relaxed);
    atomic_store_explicit(&p->n_busy, p->n_thread - 1, memory_order_relaxed);
    atomic_fetch_add(&p->epoch, 1);
    if (atomic_load(&p->n_asleep) > 0) {
        pthread_mutex_lock(&p->lock);
        pthread_cond_broadcast(&p->wake);
        pthread_mutex_unlock(&p->lock);
    }
    take_items(p, 0);
    int turn = 0;
    while (atomic_load_explicit(&p->n_busy, memory_order_acquire) != 0) {
        if (turn < SPIN_TURNS) {
            turn++;
            cpu_relax();
        } else {
            sched_yield(); /* more workers than processors: let them finish */
        }
    }
}

uint64_t thread_pool_progress(const struct thread_pool *p)
{
    uint64_t n_loop = atomic_load_explicit(&p->n_loop, memory_order_relaxed);
    return (n_loop << 24) + atomic_load_explicit(&p->next, memory_order_relaxed);
}
