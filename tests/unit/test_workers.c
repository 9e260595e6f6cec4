/* test_workers.c - every job is done once, in order, and the queue has an end */
#include "server/workers.h"

#include <pthread.h>
#include <stdatomic.h>

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/clock.h"
#include "base/mem.h"

/* Stands for the server's job. */
struct job {
    atomic_int n_done;
    int order;
};

static pthread_mutex_t gate = PTHREAD_MUTEX_INITIALIZER;
static atomic_int n_done;

static void finish_job(struct job *job)
{
    (void)pthread_mutex_lock(&gate);
    job->order = atomic_fetch_add(&n_done, 1);
    atomic_fetch_add(&job->n_done, 1);
    (void)pthread_mutex_unlock(&gate);
}

static void test_order_limit_and_end(void **state)
{
    (void)state;
    enum { MAX = 4 };
    struct workers *w;
    struct job jobs[MAX + 2] = {0};
    int n_pushed = 0;
    assert_int_equal(workers_create(&w, 1, MAX, finish_job, NULL), FATHOM_OK);
    (void)pthread_mutex_lock(&gate);
    /* one is taken by the worker, which waits at the gate; MAX more fit */
    while (n_pushed < MAX + 1) {
        if (workers_push(w, &jobs[n_pushed]) == FATHOM_OK)
            n_pushed++;
        else
            clock_sleep_us(1000);
    }
    assert_int_equal(workers_push(w, &jobs[MAX + 1]), FATHOM_EBUSY);
    (void)pthread_mutex_unlock(&gate);
    workers_stop(w);
    for (int i = 0; i <= MAX; i++) {
        assert_int_equal(atomic_load(&jobs[i].n_done), 1);
        assert_int_equal(jobs[i].order, i);
    }
    assert_int_equal(workers_push(w, &jobs[MAX + 1]), FATHOM_EBUSY);
    assert_int_equal(atomic_load(&jobs[MAX + 1].n_done), 0);
    workers_destroy(w);
}

static void test_many_threads(void **state)
{
    (void)state;
    enum { N = 500 };
    static struct job jobs[N];
    struct workers *w;
    assert_int_equal(workers_create(&w, 4, N, finish_job, NULL), FATHOM_OK);
    for (int i = 0; i < N; i++) assert_int_equal(workers_push(w, &jobs[i]), FATHOM_OK);
    workers_destroy(w);
    for (int i = 0; i < N; i++) assert_int_equal(atomic_load(&jobs[i].n_done), 1);
    workers_destroy(NULL);
}

static void test_each_failing_allocation_is_clean(void **state)
{
    (void)state;
    for (long n = 0; n < 3; n++) {
        struct workers *w;
        mem_fail_after(n);
        assert_int_equal(workers_create(&w, 2, 4, finish_job, NULL), FATHOM_ENOMEM);
        mem_fail_after(-1);
        assert_null(w);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_order_limit_and_end),
        cmocka_unit_test(test_many_threads),
        cmocka_unit_test(test_each_failing_allocation_is_clean),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
