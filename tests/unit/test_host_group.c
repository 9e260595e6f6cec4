/* test_host_group.c - ranks that meet, and ranks that do not */
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "backend/host_group.h"

enum { N = 4, N_MEETING = 300 };

struct member {
    struct host_rank rank;
    pthread_t thread;
    uint32_t n_meeting;
    bool strays; /* goes to another place in the end */
    bool fails;  /* breaks the group instead of coming */
    bool leaves; /* does not come in the end, and says nothing */
    fathom_err err;
    uint64_t sum;
};

static struct member members[N];

static void *meet(void *arg)
{
    struct member *m = arg;
    const void *const *all;
    for (uint32_t i = 0; i < m->n_meeting; i++) {
        bool is_last = i + 1 == m->n_meeting;
        uint64_t own = (uint64_t)i * N + m->rank.rank;
        struct host_place place = {.op = "sum", .layer = i, .n_row = 1};
        if (is_last && m->leaves) return NULL;
        if (is_last && m->fails) {
            host_rank_break(&m->rank);
            return NULL;
        }
        if (is_last && m->strays) place.op = "head";
        m->err = host_meet(&m->rank, &place, &own, &all);
        if (m->err) return NULL;
        for (uint32_t k = 0; k < N; k++) m->sum += *(const uint64_t *)all[k];
        m->err = host_part(&m->rank);
        if (m->err) return NULL;
    }
    return NULL;
}

static void begin(uint64_t patience_us)
{
    struct host_rank *ranks[N];
    memset(members, 0, sizeof members);
    for (int i = 0; i < N; i++) {
        ranks[i] = &members[i].rank;
        members[i].n_meeting = N_MEETING;
    }
    assert_int_equal(host_group_create(ranks, N, patience_us, NULL), FATHOM_OK);
}

static void run(void)
{
    for (int i = 0; i < N; i++)
        assert_int_equal(pthread_create(&members[i].thread, NULL, meet, &members[i]), 0);
    for (int i = 0; i < N; i++) pthread_join(members[i].thread, NULL);
}

static void end(void)
{
    for (int i = 0; i < N; i++) host_rank_leave(&members[i].rank);
}

static void all_see_what_all_show(void **state)
{
    (void)state;
    begin(600000000);
    run();
    const uint64_t n = (uint64_t)N * N_MEETING;
    for (int i = 0; i < N; i++) {
        assert_int_equal(members[i].err, FATHOM_OK);
        assert_true(members[i].sum == n * (n - 1) / 2);
        assert_string_equal(host_rank_fault(&members[i].rank), "");
    }
    end();
}

/* Of N ranks one is the last, at each of two meetings. */
static void waits_are_counted(void **state)
{
    (void)state;
    struct rank_waits w;
    uint64_t n = 0, ns = 0;
    begin(600000000);
    run();
    for (int i = 0; i < N; i++) {
        host_rank_waits(&members[i].rank, &w);
        n += w.n;
        ns += w.ns;
    }
    assert_int_equal(n, (N - 1) * 2 * N_MEETING);
    assert_true(ns > 0);
    end();
}

static void a_rank_at_another_place_is_named(void **state)
{
    (void)state;
    begin(600000000);
    members[2].strays = true;
    run();
    for (int i = 0; i < N; i++) {
        assert_int_equal(members[i].err, FATHOM_EPEER);
        assert_non_null(strstr(host_rank_fault(&members[i].rank), "rank 2 at head of layer 299"));
    }
    end();
}

static void a_rank_that_fails_frees_its_peers(void **state)
{
    (void)state;
    begin(600000000);
    members[1].fails = true;
    run();
    for (int i = 0; i < N; i++) {
        if (i != 1) assert_int_equal(members[i].err, FATHOM_EPEER);
        assert_non_null(strstr(host_rank_fault(&members[i].rank), "rank 1 of 4 has failed"));
    }
    end();
}

static void a_rank_that_does_not_come_is_named(void **state)
{
    (void)state;
    begin(100000);
    members[3].leaves = true;
    members[3].n_meeting = 1;
    for (int i = 0; i < N; i++) members[i].n_meeting = 1;
    run();
    for (int i = 0; i < 3; i++) {
        assert_int_equal(members[i].err, FATHOM_EPEER);
        assert_non_null(strstr(host_rank_fault(&members[i].rank),
                               "rank 3 of 4 did not come to sum of layer 0"));
    }
    end();
}

static void sums_are_formed_in_ascending_rank(void **state)
{
    (void)state;
    const float a[1] = {1e8f}, b[1] = {1.0f}, c[1] = {-1e8f};
    const float *up[] = {a, b, c}, *down[] = {a, c, b};
    float sum[1];
    host_sum_row(sum, up, 3, 1);
    assert_true(sum[0] == 0.0f); /* 1e8 + 1 is 1e8 in f32 */
    host_sum_row(sum, down, 3, 1);
    assert_true(sum[0] == 1.0f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(all_see_what_all_show),
        cmocka_unit_test(waits_are_counted),
        cmocka_unit_test(a_rank_at_another_place_is_named),
        cmocka_unit_test(a_rank_that_fails_frees_its_peers),
        cmocka_unit_test(a_rank_that_does_not_come_is_named),
        cmocka_unit_test(sums_are_formed_in_ascending_rank),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
