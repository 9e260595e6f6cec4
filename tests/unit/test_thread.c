/* test_thread.c - the pool: every item once, the same result whoever did it, and no waiting for a
 * worker that loses its processor again and again */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include <stdatomic.h>
#include <stdbool.h>

#include "base/clock.h"
#include "base/mem.h"
#include "base/rng.h"
#include "base/thread.h"

enum { ITEMS_MAX = 3000 };

struct work {
    unsigned char done[ITEMS_MAX]; /* plain on purpose: two workers on one item are a data race */
    uint64_t result[ITEMS_MAX];
    uint64_t seed;
    unsigned n_thread;
    _Atomic unsigned bad_worker;
};

static void do_item(void *arg, size_t part, size_t n_part, unsigned worker)
{
    struct work *w = arg;
    if (worker >= w->n_thread || part >= n_part) atomic_fetch_add(&w->bad_worker, 1);
    w->done[part]++;
    w->result[part] = rng_mix(w->seed, n_part, part);
}

static void run_and_check(struct thread_pool *p, struct work *w, size_t n_item)
{
    memset(w->done, 0, sizeof w->done);
    w->seed++;
    if (w->seed % 2)
        thread_pool_run(p, n_item, do_item, w);
    else
        thread_pool_compute(p, n_item, do_item, w);
    for (size_t i = 0; i < ITEMS_MAX; i++) {
        if (w->done[i] != (i < n_item))
            fail_msg("item %zu of %zu: %u times", i, n_item, w->done[i]);
        if (i < n_item) assert_int_equal(w->result[i], rng_mix(w->seed, n_item, i));
    }
    assert_int_equal(w->bad_worker, 0);
}

static void every_item_is_done_once(void **state)
{
    (void)state;
    static const unsigned threads[] = {1, 2, 3, 7};
    static const size_t sizes[] = {0, 1, 2, 3, 5, 16, 100, ITEMS_MAX};
    struct work *w = mem_calloc(1, sizeof *w);
    assert_non_null(w);
    for (size_t t = 0; t < sizeof threads / sizeof threads[0]; t++) {
        struct thread_pool *p;
        fathom_diag d = {{0}};
        assert_int_equal(thread_pool_create(&p, threads[t], &d), FATHOM_OK);
        w->n_thread = threads[t];
        for (int round = 0; round < 20; round++) {
            for (size_t k = 0; k < sizeof sizes / sizeof sizes[0]; k++)
                run_and_check(p, w, sizes[k]);
        }
        thread_pool_destroy(p);
    }
    mem_free(w);
}

/* Pauses between loops let workers fall asleep at every point of their wait. */
static void sleeping_workers_wake_up(void **state)
{
    (void)state;
    struct work *w = mem_calloc(1, sizeof *w);
    struct thread_pool *p;
    assert_non_null(w);
    assert_int_equal(thread_pool_create(&p, 3, NULL), FATHOM_OK);
    w->n_thread = 3;
    for (int i = 0; i < 60; i++) {
        clock_sleep_us((uint64_t)i * 37 % 1500);
        run_and_check(p, w, 50);
    }
    thread_pool_destroy(p);
    mem_free(w);
}

static void pools_come_and_go_without_work(void **state)
{
    (void)state;
    for (unsigned n = 1; n < 6; n++) {
        struct thread_pool *p;
        assert_int_equal(thread_pool_create(&p, n, NULL), FATHOM_OK);
        thread_pool_destroy(p);
    }
    thread_pool_destroy(NULL);
}

struct watched {
    struct thread_pool *pool;
    uint64_t seen[8]; /* progress as item i sees it */
};

static void see_progress(void *arg, size_t i, size_t n, unsigned worker)
{
    struct watched *w = arg;
    (void)n, (void)worker;
    w->seen[i] = thread_pool_progress(w->pool);
}

static void progress_moves_from_item_to_item(void **state)
{
    (void)state;
    struct watched w;
    assert_int_equal(thread_pool_create(&w.pool, 1, NULL), FATHOM_OK);
    uint64_t last = thread_pool_progress(w.pool);
    for (int loop = 0; loop < 3; loop++) {
        thread_pool_run(w.pool, 8, see_progress, &w);
        for (int i = 0; i < 8; i++) {
            assert_true(w.seen[i] > last);
            last = w.seen[i];
        }
    }
    thread_pool_destroy(w.pool);
    assert_int_equal(thread_pool_create(&w.pool, 3, NULL), FATHOM_OK);
    last = thread_pool_progress(w.pool);
    for (int loop = 0; loop < 20; loop++) {
        thread_pool_run(w.pool, loop % 8 + 1, see_progress, &w);
        assert_true(thread_pool_progress(w.pool) > last);
        last = thread_pool_progress(w.pool);
    }
    thread_pool_destroy(w.pool);
}

enum { BOUND_US = 20000000 }; /* beyond any wait of a loaded machine */

/* A loop whose items wait for one worker to take part. */
struct joint {
    unsigned who;
    uint64_t patience_us; /* of the others */
    uint64_t asleep_us;   /* that worker's first item: off its processor */
    uint64_t busy_us;     /* or on it */
    _Atomic bool joined;
};

static void join_item(void *arg, size_t i, size_t n, unsigned worker)
{
    struct joint *j = arg;
    uint64_t start = clock_now_us();
    (void)i, (void)n;
    if (worker == j->who) {
        if (atomic_exchange(&j->joined, true)) return;
        clock_sleep_us(j->asleep_us);
        uint64_t cpu = clock_thread_cpu_us();
        while (clock_thread_cpu_us() - cpu < j->busy_us) continue;
    }
    while (!atomic_load(&j->joined) && clock_now_us() - start < j->patience_us) clock_sleep_us(100);
}

typedef void run_fn(struct thread_pool *p, size_t n_item, thread_task *task, void *arg);

/* Whether worker `j.who` took an item of a loop of two for each thread. */
static bool joins(struct thread_pool *p, run_fn *run, struct joint j)
{
    run(p, 6, join_item, &j);
    return atomic_load(&j.joined);
}

static void a_worker_that_is_held_up_rests_and_comes_back(void **state)
{
    (void)state;
    struct thread_pool *p;
    assert_int_equal(thread_pool_create(&p, 3, NULL), FATHOM_OK);
    bool rests = false;
    for (int i = 0; i < 20 && !rests; i++) { /* the caller may be off its own when it is late */
        struct joint late = {.who = 2, .patience_us = 1000000, .asleep_us = 30000};
        if (!joins(p, thread_pool_compute, late)) continue;
        rests = !joins(p, thread_pool_compute, (struct joint){.who = 2, .patience_us = 300000});
    }
    assert_true(rests);
    struct work *w = mem_calloc(1, sizeof *w);
    assert_non_null(w);
    w->n_thread = 3;
    for (int i = 0; i < 20; i++) run_and_check(p, w, ITEMS_MAX);
    mem_free(w);
    uint64_t start = clock_now_us();
    bool back = false;
    while (!back && clock_now_us() - start < BOUND_US)
        back = joins(p, thread_pool_compute, (struct joint){.who = 2, .patience_us = 20000});
    assert_true(back);
    thread_pool_destroy(p); /* once more with one that rests */
    assert_int_equal(thread_pool_create(&p, 2, NULL), FATHOM_OK);
    struct joint late = {.who = 1, .patience_us = BOUND_US, .asleep_us = 30000};
    assert_true(joins(p, thread_pool_compute, late));
    thread_pool_destroy(p);
}

static void a_worker_that_reads_or_computes_does_not_rest(void **state)
{
    (void)state;
    struct thread_pool *p;
    assert_int_equal(thread_pool_create(&p, 2, NULL), FATHOM_OK);
    for (int i = 0; i < 4; i++) {
        struct joint reads = {.who = 1, .patience_us = BOUND_US, .asleep_us = 20000};
        assert_true(joins(p, thread_pool_run, reads));
    }
    bool works = false;
    for (int i = 0; i < 30 && !works; i++) { /* the machine may take its processor at any time */
        struct joint computes = {.who = 1, .patience_us = 500000, .busy_us = 2000};
        works = joins(p, thread_pool_compute, computes) &&
                joins(p, thread_pool_compute, (struct joint){.who = 1, .patience_us = 500000});
    }
    assert_true(works);
    thread_pool_destroy(p);
}

static void use_own_pool(void *arg, size_t i, size_t n, unsigned worker)
{
    struct work *w = (struct work *)arg + i;
    struct thread_pool *own;
    (void)n, (void)worker;
    assert_int_equal(thread_pool_create(&own, 2, NULL), FATHOM_OK);
    w->n_thread = 2;
    for (int k = 0; k < 4; k++) run_and_check(own, w, 64);
    thread_pool_destroy(own);
}

static void an_item_may_have_a_pool_of_its_own(void **state)
{
    (void)state;
    struct thread_pool *p;
    struct work *works = mem_calloc(4, sizeof *works);
    assert_non_null(works);
    assert_int_equal(thread_pool_create(&p, 3, NULL), FATHOM_OK);
    thread_pool_compute(p, 4, use_own_pool, works);
    thread_pool_destroy(p);
    mem_free(works);
}

static void bad_sizes_and_failing_allocations_are_errors(void **state)
{
    (void)state;
    struct thread_pool *p = NULL;
    fathom_diag d = {{0}};
    assert_int_equal(thread_pool_create(&p, 0, &d), FATHOM_EINVAL);
    assert_non_null(strstr(d.text, "1 to 256"));
    assert_int_equal(thread_pool_create(&p, 257, NULL), FATHOM_EINVAL);
    assert_null(p);
    bool hit = true;
    for (long n = 0; hit; n++) {
        mem_fail_after(n);
        fathom_err err = thread_pool_create(&p, 2, NULL);
        hit = mem_fail_hit();
        mem_fail_after(-1);
        assert_int_equal(err, hit ? FATHOM_ENOMEM : FATHOM_OK);
        assert_int_equal(p == NULL, hit);
        thread_pool_destroy(p);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_item_is_done_once),
        cmocka_unit_test(sleeping_workers_wake_up),
        cmocka_unit_test(pools_come_and_go_without_work),
        cmocka_unit_test(progress_moves_from_item_to_item),
        cmocka_unit_test(a_worker_that_is_held_up_rests_and_comes_back),
        cmocka_unit_test(a_worker_that_reads_or_computes_does_not_rest),
        cmocka_unit_test(an_item_may_have_a_pool_of_its_own),
        cmocka_unit_test(bad_sizes_and_failing_allocations_are_errors),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
