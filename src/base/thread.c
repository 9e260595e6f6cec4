/* thread.c - one loop at a time
 *
 * `ticket` is the loop's number in its high half and its unclaimed items in the low half. The
 * caller publishes a loop by storing it and then works too. A thread that swaps the ticket for one
 * item less owns that item. A swap with a past number fails, so a worker that comes late, or was
 * off its processor meanwhile, touches nothing. The caller returns when all items are done: it
 * waits for workers that hold an item, never for one that sleeps.
 *
 *   task, arg, n_item  change only while no item is unclaimed or unfinished
 */
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
#include "base/os.h"

enum { SPINS_MAX = 4000 };

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

    thread_task *_Atomic task;
    void *_Atomic arg;
    _Atomic uint32_t n_item;
    _Alignas(64) _Atomic uint64_t ticket;
    _Alignas(64) _Atomic uint32_t n_done;
};

static inline uint32_t loop_of(uint64_t ticket)
{
    return (uint32_t)(ticket >> 32);
}

static inline uint32_t unclaimed(uint64_t ticket)
{
    return (uint32_t)ticket;
}

static inline void cpu_relax(void)
{
#if defined(__x86_64__)
    __builtin_ia32_pause();
#else
    __asm__ volatile("" ::: "memory");
#endif
}

/* Items of loop number `loop` until none is left. A swap that succeeds shows that the loop is still
 * on, so that what was read before it belongs to this loop. */
static void take_items(struct thread_pool *p, uint32_t loop, unsigned worker)
{
    uint64_t ticket = atomic_load_explicit(&p->ticket, memory_order_acquire);
    while (loop_of(ticket) == loop && unclaimed(ticket) > 0) {
        thread_task *task = atomic_load_explicit(&p->task, memory_order_relaxed);
        void *arg = atomic_load_explicit(&p->arg, memory_order_relaxed);
        uint32_t n_item = atomic_load_explicit(&p->n_item, memory_order_relaxed);
        uint32_t item = n_item - unclaimed(ticket);
        if (!atomic_compare_exchange_weak_explicit(&p->ticket, &ticket, ticket - 1,
                                                   memory_order_acq_rel, memory_order_acquire))
            continue;
        task(arg, item, n_item, worker);
        atomic_fetch_add_explicit(&p->n_done, 1, memory_order_release);
        ticket = atomic_load_explicit(&p->ticket, memory_order_acquire);
    }
}

/* Waits for a loop other than `seen`, into *loop; false when the pool stops. */
static bool wait_for_loop(struct thread_pool *p, uint32_t seen, uint32_t *loop)
{
    for (int spin = 0; spin < SPINS_MAX; spin++) {
        *loop = loop_of(atomic_load_explicit(&p->ticket, memory_order_acquire));
        if (*loop != seen) return true;
        cpu_relax();
    }
    pthread_mutex_lock(&p->lock);
    atomic_fetch_add(&p->n_asleep, 1);
    while ((*loop = loop_of(atomic_load(&p->ticket))) == seen && !p->stop)
        pthread_cond_wait(&p->wake, &p->lock);
    atomic_fetch_sub(&p->n_asleep, 1);
    bool go_on = !p->stop;
    pthread_mutex_unlock(&p->lock);
    return go_on;
}

static void *worker_main(void *arg)
{
    struct worker *w = arg;
    os_name_thread("compute");
    for (uint32_t loop = 0; wait_for_loop(w->pool, loop, &loop);) take_items(w->pool, loop, w->id);
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

void thread_pool_run(struct thread_pool *p, size_t n_item, thread_task *task, void *arg)
{
    if (n_item == 0) return;
    ASSERT(n_item <= UINT32_MAX);
    uint32_t loop = loop_of(atomic_load_explicit(&p->ticket, memory_order_relaxed)) + 1;
    if (p->n_thread == 1 || n_item == 1) { /* a loop without items for others */
        atomic_store_explicit(&p->n_done, 0, memory_order_relaxed);
        atomic_store_explicit(&p->ticket, (uint64_t)loop << 32, memory_order_relaxed);
        for (uint32_t i = 0; i < n_item; i++) {
            task(arg, i, n_item, 0);
            atomic_store_explicit(&p->n_done, i + 1, memory_order_relaxed);
        }
        return;
    }
    atomic_store_explicit(&p->task, task, memory_order_relaxed);
    atomic_store_explicit(&p->arg, arg, memory_order_relaxed);
    atomic_store_explicit(&p->n_item, (uint32_t)n_item, memory_order_relaxed);
    atomic_store_explicit(&p->n_done, 0, memory_order_relaxed);
    atomic_store(&p->ticket, (uint64_t)loop << 32 | n_item);
    if (atomic_load(&p->n_asleep) > 0) {
        pthread_mutex_lock(&p->lock);
        pthread_cond_broadcast(&p->wake);
        pthread_mutex_unlock(&p->lock);
    }
    take_items(p, loop, 0);
    int spin = 0;
    while (atomic_load_explicit(&p->n_done, memory_order_acquire) != n_item) {
        if (spin < SPINS_MAX) {
            spin++;
            cpu_relax();
        } else {
            sched_yield(); /* more workers than processors: let them finish */
        }
    }
}

uint64_t thread_pool_progress(const struct thread_pool *p)
{
    uint64_t ticket = atomic_load_explicit(&p->ticket, memory_order_relaxed);
    return ((uint64_t)loop_of(ticket) << 32) +
           atomic_load_explicit(&p->n_done, memory_order_relaxed);
}
