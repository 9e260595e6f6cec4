/* test_workers.c - every job is done once, tenants take turns and leave each other room, and those
 * that compile leave threads for the others */
#include "server/workers.h"

#include <pthread.h>
#include <stdatomic.h>

#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/clock.h"
#include "base/mem.h"
#include "support/patience.h"

/* Stands for the server's job. */
struct job {
    bool compiles; /* what its preparation asks for */
    bool waits;
    atomic_int n_begun, n_prepared, n_compiled, n_done;
    int order; /* of the first preparation */
};

/* Held by a test: preparations, or compilations, stand still. */
static pthread_mutex_t prepare_gate = PTHREAD_MUTEX_INITIALIZER;
static pthread_mutex_t compile_gate = PTHREAD_MUTEX_INITIALIZER;
static atomic_int n_prepared, n_compiling, n_compiling_most;

static enum work_rest run_job(struct job *job, enum work_kind kind)
{
    if (kind == WORK_COMPILE) {
        int n = atomic_fetch_add(&n_compiling, 1) + 1, most = atomic_load(&n_compiling_most);
        while (n > most && !atomic_compare_exchange_weak(&n_compiling_most, &most, n)) {
        }
        (void)pthread_mutex_lock(&compile_gate);
        atomic_fetch_add(&job->n_compiled, 1);
        (void)pthread_mutex_unlock(&compile_gate);
        atomic_fetch_sub(&n_compiling, 1);
        return WORK_DONE;
    }
    atomic_fetch_add(&job->n_begun, 1);
    (void)pthread_mutex_lock(&prepare_gate);
    bool first = atomic_fetch_add(&job->n_prepared, 1) == 0;
    if (first) job->order = atomic_fetch_add(&n_prepared, 1);
    (void)pthread_mutex_unlock(&prepare_gate);
    if (!first) return WORK_DONE;
    return job->compiles ? WORK_TO_COMPILE : job->waits ? WORK_TO_WAIT : WORK_DONE;
}

static void end_job(struct job *job)
{
    atomic_fetch_add(&job->n_done, 1);
}

static struct workers *open_workers(unsigned n_thread, size_t max, size_t n_tenant)
{
    struct workers *w;
    const struct workers_config config = {
        .n_thread = n_thread, .max = max, .n_tenant = n_tenant, .task = run_job, .done = end_job};
    assert_int_equal(workers_create(&w, &config, NULL), FATHOM_OK);
    atomic_store(&n_prepared, 0);
    atomic_store(&n_compiling_most, 0);
    return w;
}

static void wait_for(atomic_int *counter, int n)
{
    uint64_t end_us = 0;
    while (atomic_load(counter) < n && keep_waiting(&end_us)) {
    }
    assert_int_equal(atomic_load(counter), n);
}

/* Pushes a job with which a thread stands still at the gate, which the test holds: what comes now,
 * waits. */
static void occupy(struct workers *w, struct job *job, uint32_t tenant)
{
    uint64_t end_us = 0;
    assert_int_equal(workers_push(w, job, tenant), FATHOM_OK);
    while (!atomic_load(&job->n_begun) && keep_waiting(&end_us)) {
    }
    assert_int_equal(atomic_load(&job->n_begun), 1);
}

static void test_order_limit_and_end(void **state)
{
    (void)state;
    enum { MAX = 4 };
    struct workers *w = open_workers(1, MAX, 1);
    struct job jobs[MAX + 2] = {0};
    int n_pushed = 0;
    (void)pthread_mutex_lock(&prepare_gate);
    /* one is taken by the worker, which waits at the gate; MAX more fit */
    while (n_pushed < MAX + 1) {
        if (workers_push(w, &jobs[n_pushed], 7) == FATHOM_OK)
            n_pushed++;
        else
            clock_sleep_us(1000);
    }
    assert_int_equal(workers_push(w, &jobs[MAX + 1], 7), FATHOM_EBUSY);
    (void)pthread_mutex_unlock(&prepare_gate);
    workers_stop(w);
    for (int i = 0; i <= MAX; i++) {
        assert_int_equal(atomic_load(&jobs[i].n_done), 1);
        assert_int_equal(jobs[i].order, i);
    }
    assert_int_equal(workers_push(w, &jobs[MAX + 1], 7), FATHOM_EBUSY);
    assert_int_equal(atomic_load(&jobs[MAX + 1].n_done), 0);
    workers_destroy(w);
}

static void test_tenants_take_turns(void **state)
{
    (void)state;
    static const uint32_t tenants[] = {5, 5, 5, 5, 5, 1, 1, 9};
    static const int orders[] = {3, 5, 6, 7, 8, 2, 4, 1}; /* 9 follows 5, whose turn it was */
    struct job jobs[8] = {0}, first = {0};
    struct workers *w = open_workers(1, 100, 3);
    (void)pthread_mutex_lock(&prepare_gate);
    occupy(w, &first, 5);
    for (size_t i = 0; i < 8; i++) {
        assert_int_equal(workers_push(w, &jobs[i], tenants[i]), FATHOM_OK);
    }
    (void)pthread_mutex_unlock(&prepare_gate);
    workers_destroy(w);
    assert_int_equal(first.order, 0);
    for (int i = 0; i < 8; i++) assert_int_equal(jobs[i].order, orders[i]);
}

/* One tenant fills what it can; each that comes then still finds room. */
static void test_no_tenant_takes_all_places(void **state)
{
    (void)state;
    enum { MAX = 16 };
    struct job jobs[4][MAX] = {0}, first = {0};
    struct workers *w = open_workers(1, MAX, 4);
    int n[4] = {0};
    (void)pthread_mutex_lock(&prepare_gate);
    occupy(w, &first, 0);
    for (uint32_t t = 0; t < 4; t++) {
        while (n[t] < MAX && workers_push(w, &jobs[t][n[t]], t) == FATHOM_OK) n[t]++;
    }
    (void)pthread_mutex_unlock(&prepare_gate);
    workers_destroy(w);
    assert_int_equal(n[0], MAX / 2);
    assert_int_equal(n[1], MAX / 4);
    assert_int_equal(n[2], MAX / 8);
    assert_int_equal(n[3], MAX / 16);
    for (uint32_t t = 0; t < 4; t++) {
        for (int i = 0; i < n[t]; i++) assert_int_equal(atomic_load(&jobs[t][i].n_done), 1);
    }
}

/* However many wait to compile, whoever does not is prepared meanwhile. */
static void test_compilations_leave_threads_free(void **state)
{
    (void)state;
    enum { N = 24 };
    static const unsigned n_threads[] = {2, 3, 4, 8};
    for (size_t k = 0; k < sizeof n_threads / sizeof n_threads[0]; k++) {
        struct job heavy[N] = {0}, light[N] = {0};
        int n_most = (int)n_threads[k] / 2;
        struct workers *w = open_workers(n_threads[k], 1000, 2);
        (void)pthread_mutex_lock(&compile_gate);
        for (int i = 0; i < N; i++) {
            heavy[i].compiles = true;
            assert_int_equal(workers_push(w, &heavy[i], 0), FATHOM_OK);
        }
        wait_for(&n_prepared, N);
        wait_for(&n_compiling, n_most);
        for (int i = 0; i < N; i++) {
            assert_int_equal(workers_push(w, &light[i], 1), FATHOM_OK);
        }
        for (int i = 0; i < N; i++) wait_for(&light[i].n_done, 1);
        for (int i = 0; i < N; i++) assert_int_equal(atomic_load(&heavy[i].n_done), 0);
        (void)pthread_mutex_unlock(&compile_gate);
        workers_destroy(w);
        assert_int_equal(atomic_load(&n_compiling_most), n_most);
        for (int i = 0; i < N; i++) {
            assert_int_equal(atomic_load(&heavy[i].n_compiled), 1);
            assert_int_equal(atomic_load(&heavy[i].n_done), 1);
        }
    }
}

/* One thread does both, one after the other. */
static void test_one_thread_compiles_too(void **state)
{
    (void)state;
    struct job jobs[4] = {{.compiles = true}, {0}, {.compiles = true}, {0}};
    struct workers *w = open_workers(1, 10, 1);
    for (int i = 0; i < 4; i++) assert_int_equal(workers_push(w, &jobs[i], 0), FATHOM_OK);
    workers_destroy(w);
    for (int i = 0; i < 4; i++) assert_int_equal(atomic_load(&jobs[i].n_done), 1);
}

/* Who waits holds a place and no thread; it is resumed before its task has returned, or after. */
static void test_a_job_waits_without_a_thread(void **state)
{
    (void)state;
    struct job waiting[2] = {{.waits = true}, {.waits = true}}, other = {0};
    struct workers *w = open_workers(1, 2, 1);
    (void)pthread_mutex_lock(&prepare_gate);
    occupy(w, &waiting[0], 0);
    workers_resume(w, &waiting[0]);
    (void)pthread_mutex_unlock(&prepare_gate);
    wait_for(&waiting[0].n_done, 1);
    assert_int_equal(workers_push(w, &waiting[1], 0), FATHOM_OK);
    wait_for(&waiting[1].n_prepared, 1);
    assert_int_equal(workers_push(w, &other, 0), FATHOM_OK);
    wait_for(&other.n_done, 1);
    assert_int_equal(atomic_load(&waiting[1].n_done), 0);
    workers_resume(w, &waiting[1]);
    wait_for(&waiting[1].n_done, 1);
    workers_destroy(w);
    for (int i = 0; i < 2; i++) assert_int_equal(atomic_load(&waiting[i].n_prepared), 2);
}

static void test_many_threads(void **state)
{
    (void)state;
    enum { N = 500 };
    static struct job jobs[N];
    struct workers *w = open_workers(4, N, 1);
    for (int i = 0; i < N; i++) {
        jobs[i].compiles = i % 3 == 0;
        assert_int_equal(workers_push(w, &jobs[i], (uint32_t)i), FATHOM_OK);
    }
    workers_destroy(w);
    for (int i = 0; i < N; i++) assert_int_equal(atomic_load(&jobs[i].n_done), 1);
    workers_destroy(NULL);
}

static void test_each_failing_allocation_is_clean(void **state)
{
    (void)state;
    const struct workers_config config = {
        .n_thread = 2, .max = 4, .task = run_job, .done = end_job};
    for (long n = 0; n < 3; n++) {
        struct workers *w;
        mem_fail_after(n);
        assert_int_equal(workers_create(&w, &config, NULL), FATHOM_ENOMEM);
        mem_fail_after(-1);
        assert_null(w);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_order_limit_and_end),
        cmocka_unit_test(test_tenants_take_turns),
        cmocka_unit_test(test_no_tenant_takes_all_places),
        cmocka_unit_test(test_compilations_leave_threads_free),
        cmocka_unit_test(test_one_thread_compiles_too),
        cmocka_unit_test(test_a_job_waits_without_a_thread),
        cmocka_unit_test(test_many_threads),
        cmocka_unit_test(test_each_failing_allocation_is_clean),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
