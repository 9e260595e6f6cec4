/* test_watch.c - leaving is seen once, and never after the job was removed */
#include "server/http/watch.h"

#include <stdatomic.h>
#include <sys/socket.h>
#include <unistd.h>

#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>

#include <cmocka.h>

#include "base/clock.h"
#include "base/mem.h"
#include "support/patience.h"

/* Stands for the server's job. */
struct job {
    atomic_int n_held;
    atomic_int n_left;
};

static void hold(struct job *job)
{
    atomic_fetch_add(&job->n_held, 1);
}

static void left(struct job *job)
{
    atomic_fetch_add(&job->n_left, 1);
    atomic_fetch_sub(&job->n_held, 1);
}

static const struct watch_actions ACTIONS = {hold, left};

static bool has_left(const struct job *job, int n)
{
    return atomic_load(&job->n_left) == n && atomic_load(&job->n_held) == 0;
}

static bool comes(const struct job *job, int n)
{
    uint64_t end_us = 0;
    while (!has_left(job, n) && keep_waiting(&end_us)) {
    }
    return has_left(job, n);
}

static void test_leaving_is_seen_once(void **state)
{
    (void)state;
    struct watch *w;
    struct job closed = {0}, half = {0}, stays = {0};
    int a[2], b[2], c[2];
    assert_int_equal(watch_create(&w, &ACTIONS, NULL), FATHOM_OK);
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM, 0, a), 0);
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM, 0, b), 0);
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM, 0, c), 0);
    uint32_t entries[3] = {watch_add(w, a[0], &closed), watch_add(w, b[0], &half),
                           watch_add(w, c[0], &stays)};
    assert_int_equal(write(c[1], "data is no leaving", 18), 18);
    assert_int_equal(close(a[1]), 0);
    assert_int_equal(shutdown(b[1], SHUT_WR), 0);
    assert_true(comes(&closed, 1));
    assert_true(comes(&half, 1));
    clock_sleep_us(20000);
    assert_int_equal(atomic_load(&closed.n_left), 1);
    assert_int_equal(atomic_load(&stays.n_left), 0);
    for (size_t i = 0; i < 3; i++) watch_remove(w, entries[i]);
    watch_remove(w, WATCH_NONE);
    assert_int_equal(close(c[1]), 0);
    clock_sleep_us(20000);
    assert_int_equal(atomic_load(&stays.n_left), 0);
    watch_destroy(w);
    (void)close(a[0]), (void)close(b[0]), (void)close(b[1]), (void)close(c[0]);
}

/* The same descriptors over and over, through more entries than fit at first. */
static void test_entries_are_used_again(void **state)
{
    (void)state;
    enum { N = 100 };
    struct watch *w;
    int pair[N][2];
    uint32_t entries[N];
    struct job jobs[N] = {0};
    assert_int_equal(watch_create(&w, &ACTIONS, NULL), FATHOM_OK);
    for (size_t i = 0; i < N; i++) {
        assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM, 0, pair[i]), 0);
    }
    for (int round = 0; round < 3; round++) {
        for (size_t i = 0; i < N; i++) {
            entries[i] = watch_add(w, pair[i][0], &jobs[i]);
            assert_int_not_equal(entries[i], WATCH_NONE);
        }
        if (round == 2) break;
        for (size_t i = 0; i < N; i++) watch_remove(w, entries[i]);
    }
    for (size_t i = 0; i < N; i++) (void)close(pair[i][1]);
    for (size_t i = 0; i < N; i++) assert_true(comes(&jobs[i], 1));
    for (size_t i = 0; i < N; i++) {
        watch_remove(w, entries[i]);
        (void)close(pair[i][0]);
    }
    watch_destroy(w);
}

static void test_bad_descriptor_and_no_memory(void **state)
{
    (void)state;
    struct watch *w;
    struct job job = {0};
    mem_fail_after(0);
    assert_int_equal(watch_create(&w, &ACTIONS, NULL), FATHOM_ENOMEM);
    mem_fail_after(-1);
    assert_null(w);
    assert_int_equal(watch_create(&w, &ACTIONS, NULL), FATHOM_OK);
    mem_fail_after(0);
    assert_int_equal(watch_add(w, 0, &job), WATCH_NONE);
    mem_fail_after(-1);
    assert_int_equal(watch_add(w, -1, &job), WATCH_NONE);
    watch_destroy(w);
    watch_destroy(NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_leaving_is_seen_once),
        cmocka_unit_test(test_entries_are_used_again),
        cmocka_unit_test(test_bad_descriptor_and_no_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
