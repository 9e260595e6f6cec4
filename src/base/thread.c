/* thread.c - one loop at a time
 *
 * `ticket` is the loop's number in its high half and its unclaimed items in the low half. The
 * caller publishes a loop by storing it and then works too. A thread that swaps the ticket for one
 * item less owns that item. A swap with a past number fails, so a worker that comes late, or was
 * off its processor meanwhile, touches nothing. The caller returns when all items are done: it
 * waits for workers that hold an item, never for one that sleeps.
 *
 *   task, arg, n_item  change only while no item is unclaimed or unfinished
 *
 * What is left is a worker that loses its processor while it holds an item: on a machine that
 * others use as well, the caller then waits for the operating system, at the end of any loop. So a
 * worker that made a loop of thread_pool_compute wait rests, for a time in proportion to what was
 * lost, and the loops until then go without it:
 *
 *         spins <--> asleep          a loop begins, or none for SPINS_MAX looks
 *           |          ^
 *           v held up  | its time is over
 *          rests ------+             takes no item, is not woken
 *
 *   n_resting   workers whose `rests` is set; it and ready_ns are the caller's alone
 *   rests       is set by the caller, and cleared by it under the lock
 *   parked      the caller sleeps until n_done is n_item; who finishes an item then leaves the
 *               times of that in done_ns and done_cpu_ns, before it counts the item as done
 */
#define _GNU_SOURCE
#include "base/thread.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>
#include <time.h>

#include "base/assert.h"
#include "base/clock.h"
#include "base/fail.h"
#include "base/limits.h"
#include "base/mem.h"
#include "base/os.h"

enum {
    SPINS_MAX = 4000,     /* looks at a number before a thread sleeps: 20 to 200 us */
    LOST_NS_MIN = 100000, /* a shorter wait is not worth a worker's rest */
    REST_PER_LOST = 16,   /* so that all rests together cost at most 1/16 of the time */
};
static const uint64_t REST_NS_MAX = 10000000000u;

struct worker {
    struct thread_pool *pool;
    pthread_t thread;
    clockid_t cpu_clock; /* processor time of its thread */
    unsigned id;
    bool started;
    bool noted;            /* it held an item when the caller parked, cpu_ns into its time */
    uint64_t noted_cpu_ns; /* these three and ready_ns are the caller's */
    uint64_t ready_ns;
    _Alignas(64) _Atomic bool holds;
    _Atomic bool rests;
    uint64_t done_ns;
    uint64_t done_cpu_ns;
};

struct thread_pool {
    unsigned n_thread;
    struct worker *workers; /* [n_thread]; 0 is the caller and has no thread */
    thread_start *start;    /* NULL: none */
    void *start_arg;
    pthread_mutex_t lock;
    pthread_cond_t wake;   /* a loop began */
    pthread_cond_t rested; /* a worker's rest is over */
    pthread_cond_t done;   /* all items are */
    bool sync_ready;
    bool stop; /* under lock */
    unsigned n_resting;
    _Atomic unsigned n_asleep;
    _Atomic bool parked;

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

static uint64_t clock_cpu_ns(clockid_t clock)
{
    struct timespec t;
    clock_gettime(clock, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

/* Counts an item as done; the last one wakes a caller that sleeps. */
static void finish_item(struct thread_pool *p, struct worker *w, uint32_t n_item)
{
    if (atomic_load(&p->parked)) {
        w->done_ns = clock_now_ns();
        w->done_cpu_ns = clock_cpu_ns(CLOCK_THREAD_CPUTIME_ID);
    }
    atomic_store_explicit(&w->holds, false, memory_order_relaxed);
    if (atomic_fetch_add(&p->n_done, 1) + 1 < n_item || !atomic_load(&p->parked)) return;
    pthread_mutex_lock(&p->lock);
    pthread_cond_signal(&p->done);
    pthread_mutex_unlock(&p->lock);
}

/* Items of loop number `loop` until none is left. A swap that succeeds shows that the loop is still
 * on, so that what was read before it belongs to this loop. */
static void take_items(struct thread_pool *p, uint32_t loop, struct worker *w)
{
    uint64_t ticket = atomic_load_explicit(&p->ticket, memory_order_acquire);
    while (loop_of(ticket) == loop && unclaimed(ticket) > 0 &&
           !atomic_load_explicit(&w->rests, memory_order_relaxed)) {
        thread_task *task = atomic_load_explicit(&p->task, memory_order_relaxed);
        void *arg = atomic_load_explicit(&p->arg, memory_order_relaxed);
        uint32_t n_item = atomic_load_explicit(&p->n_item, memory_order_relaxed);
        uint32_t item = n_item - unclaimed(ticket);
        atomic_store_explicit(&w->holds, true, memory_order_relaxed);
        if (!atomic_compare_exchange_weak_explicit(&p->ticket, &ticket, ticket - 1,
                                                   memory_order_acq_rel, memory_order_acquire))
            continue;
        task(arg, item, n_item, w->id);
        finish_item(p, w, n_item);
        ticket = atomic_load_explicit(&p->ticket, memory_order_acquire);
    }
    atomic_store_explicit(&w->holds, false, memory_order_relaxed);
}

/* Waits for a loop other than `seen` that the worker may take part in, into *loop; false when the
 * pool stops. */
static bool wait_for_loop(struct thread_pool *p, struct worker *w, uint32_t seen, uint32_t *loop)
{
    for (int spin = 0; spin < SPINS_MAX && !atomic_load(&w->rests); spin++) {
        *loop = loop_of(atomic_load_explicit(&p->ticket, memory_order_acquire));
        if (*loop != seen) return true;
        cpu_relax();
    }
    pthread_mutex_lock(&p->lock);
    atomic_fetch_add(&p->n_asleep, 1);
    while (!p->stop) {
        bool rests = atomic_load(&w->rests);
        *loop = loop_of(atomic_load(&p->ticket));
        if (!rests && *loop != seen) break;
        pthread_cond_wait(rests ? &p->rested : &p->wake, &p->lock);
    }
    atomic_fetch_sub(&p->n_asleep, 1);
    bool go_on = !p->stop;
    pthread_mutex_unlock(&p->lock);
    return go_on;
}

static void *worker_main(void *arg)
{
    struct worker *w = arg;
    os_name_thread("compute");
    if (w->pool->start) w->pool->start(w->pool->start_arg, w->id);
    for (uint32_t loop = 0; wait_for_loop(w->pool, w, loop, &loop);) take_items(w->pool, loop, w);
    return NULL;
}

fathom_err thread_pool_create(struct thread_pool **out, unsigned n_thread, fathom_diag *d)
{
    return thread_pool_create_on(out, n_thread, NULL, NULL, d);
}

fathom_err thread_pool_create_on(struct thread_pool **out, unsigned n_thread, thread_start *start,
                                 void *arg, fathom_diag *d)
{
    *out = NULL;
    if (n_thread == 0 || n_thread > LIMIT_THREADS) {
        FAIL(d, FATHOM_EINVAL, "%u threads asked for, needed is 1 to %d", n_thread, LIMIT_THREADS);
    }
    struct thread_pool *p = mem_alloc_aligned(64, sizeof *p);
    if (!p) FAIL(d, FATHOM_ENOMEM, "no memory for a thread pool");
    memset(p, 0, sizeof *p);
    p->n_thread = n_thread;
    p->start = start;
    p->start_arg = arg;
    p->workers = mem_alloc_aligned(64, n_thread * sizeof *p->workers);
    fathom_err err = FATHOM_OK;
    if (!p->workers) {
        err = diag_fail(d, FATHOM_ENOMEM, "no memory for threads");
        goto fail;
    }
    memset(p->workers, 0, n_thread * sizeof *p->workers);
    pthread_mutex_init(&p->lock, NULL);
    pthread_cond_init(&p->wake, NULL);
    pthread_cond_init(&p->rested, NULL);
    pthread_cond_init(&p->done, NULL);
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
        if (pthread_getcpuclockid(w->thread, &w->cpu_clock) != 0) {
            err = diag_fail(d, FATHOM_EIO, "thread %u of %u has no clock", i, n_thread);
            goto fail;
        }
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
        pthread_cond_broadcast(&p->rested);
        pthread_mutex_unlock(&p->lock);
        for (unsigned i = 1; i < p->n_thread; i++) {
            if (p->workers[i].started) pthread_join(p->workers[i].thread, NULL);
        }
        pthread_cond_destroy(&p->done);
        pthread_cond_destroy(&p->rested);
        pthread_cond_destroy(&p->wake);
        pthread_mutex_destroy(&p->lock);
    }
    mem_free(p->workers);
    mem_free(p);
}

/* A worker that was off its processor for most of `waited_ns`, the caller's wait for its item,
 * rests. If all n do so in turn, the loops still run undisturbed for REST_PER_LOST times what they
 * wait: hence the n in the rest. One worker of n that rests costs 1/n of the speed. */
static void rest_if_late(struct thread_pool *p, struct worker *w, uint64_t waited_ns)
{
    uint64_t ran_ns = w->done_cpu_ns - w->noted_cpu_ns;
    if (ran_ns >= waited_ns / 2 || waited_ns < LOST_NS_MIN) return;
    uint64_t rest_ns = (waited_ns - ran_ns) * REST_PER_LOST * (p->n_thread - 1);
    w->ready_ns = clock_now_ns() + (rest_ns < REST_NS_MAX ? rest_ns : REST_NS_MAX);
    atomic_store(&w->rests, true);
    p->n_resting++;
}

/* Lets those work again whose rest is over. */
static void end_rests(struct thread_pool *p)
{
    uint64_t now_ns = clock_now_ns();
    unsigned n_ready = 0;
    for (unsigned i = 1; i < p->n_thread; i++) {
        struct worker *w = &p->workers[i];
        if (!atomic_load_explicit(&w->rests, memory_order_relaxed) || now_ns < w->ready_ns)
            continue;
        if (n_ready++ == 0) pthread_mutex_lock(&p->lock);
        atomic_store(&w->rests, false);
    }
    if (n_ready == 0) return;
    p->n_resting -= n_ready;
    pthread_cond_broadcast(&p->rested);
    pthread_mutex_unlock(&p->lock);
}

/* A loop without items for others. */
static void run_alone(struct thread_pool *p, uint32_t n_item, thread_task *task, void *arg)
{
    uint32_t loop = loop_of(atomic_load_explicit(&p->ticket, memory_order_relaxed)) + 1;
    atomic_store_explicit(&p->n_done, 0, memory_order_relaxed);
    atomic_store_explicit(&p->ticket, (uint64_t)loop << 32, memory_order_relaxed);
    for (uint32_t i = 0; i < n_item; i++) {
        task(arg, i, n_item, 0);
        atomic_store_explicit(&p->n_done, i + 1, memory_order_relaxed);
    }
}

/* Waits for the items that workers hold. With `blame`, those that were off their processors
 * meanwhile begin a rest. */
static void wait_for_held(struct thread_pool *p, uint32_t n_item, bool blame)
{
    for (int spin = 0; spin < SPINS_MAX; spin++) {
        if (atomic_load_explicit(&p->n_done, memory_order_acquire) == n_item) return;
        cpu_relax();
    }
    pthread_mutex_lock(&p->lock);
    atomic_store(&p->parked, true);
    uint64_t start_ns = clock_now_ns();
    for (unsigned i = 1; blame && i < p->n_thread; i++) {
        struct worker *w = &p->workers[i];
        w->noted = atomic_load(&w->holds);
        if (w->noted) w->noted_cpu_ns = clock_cpu_ns(w->cpu_clock);
    }
    while (atomic_load(&p->n_done) != n_item) pthread_cond_wait(&p->done, &p->lock);
    atomic_store(&p->parked, false);
    pthread_mutex_unlock(&p->lock);
    for (unsigned i = 1; blame && i < p->n_thread; i++) {
        struct worker *w = &p->workers[i];
        if (w->noted && w->done_ns > start_ns) rest_if_late(p, w, w->done_ns - start_ns);
    }
}

static void run_loop(struct thread_pool *p, size_t n_item, thread_task *task, void *arg, bool blame)
{
    if (n_item == 0) return;
    ASSERT(n_item <= UINT32_MAX);
    if (p->n_resting > 0) end_rests(p);
    if (n_item == 1 || p->n_resting == p->n_thread - 1) {
        run_alone(p, (uint32_t)n_item, task, arg);
        return;
    }
    uint32_t loop = loop_of(atomic_load_explicit(&p->ticket, memory_order_relaxed)) + 1;
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
    take_items(p, loop, &p->workers[0]);
    wait_for_held(p, (uint32_t)n_item, blame);
}

void thread_pool_run(struct thread_pool *p, size_t n_item, thread_task *task, void *arg)
{
    run_loop(p, n_item, task, arg, false);
}

void thread_pool_compute(struct thread_pool *p, size_t n_item, thread_task *task, void *arg)
{
    run_loop(p, n_item, task, arg, true);
}

uint64_t thread_pool_progress(const struct thread_pool *p)
{
    uint64_t ticket = atomic_load_explicit(&p->ticket, memory_order_relaxed);
    return ((uint64_t)loop_of(ticket) << 32) +
           atomic_load_explicit(&p->n_done, memory_order_relaxed);
}
