/* test_host_group.c - ranks that meet, and ranks that do not */
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
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
        struct host_place place = {.op = "sum", .layer = i, .n_row = 1, .n_bytes = sizeof own};
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

/* Two processes of N / 2 ranks each, as two groups: what one shows is copied to the other when both
 * have come. */
enum { N_HALF = N / 2 };

static struct half {
    struct host_net net; /* first member */
    bool is_lost;
    uint64_t theirs[N];
} halves[2];

static pthread_mutex_t swap_lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t swap_turned = PTHREAD_COND_INITIALIZER;
static unsigned n_swapped;
static uint64_t swapped[2][N]; /* by rounds in turn: a process may be one ahead */

static fathom_err swap(struct host_net *net, const struct host_place *place, const void **shown,
                       char *fault, size_t n_fault)
{
    struct half *h = (struct half *)net;
    if (h->is_lost) {
        (void)snprintf(fault, n_fault, "host 1 of 2 is lost");
        return FATHOM_EPEER;
    }
    pthread_mutex_lock(&swap_lock);
    assert_int_equal(place->n_bytes, sizeof(uint64_t));
    const unsigned round = n_swapped++ / 2;
    uint64_t *both = swapped[round % 2];
    for (uint32_t i = 0; i < N_HALF; i++)
        memcpy(&both[net->first + i], shown[net->first + i], sizeof(uint64_t));
    pthread_cond_broadcast(&swap_turned);
    while (n_swapped < 2 * round + 2) pthread_cond_wait(&swap_turned, &swap_lock);
    memcpy(h->theirs, both, sizeof h->theirs);
    pthread_mutex_unlock(&swap_lock);
    for (uint32_t i = 0; i < N; i++) {
        if (i / N_HALF != net->first / N_HALF) shown[i] = &h->theirs[i];
    }
    return FATHOM_OK;
}

static void begin_halves(void)
{
    memset(members, 0, sizeof members);
    n_swapped = 0;
    for (uint32_t k = 0; k < 2; k++) {
        struct host_rank *ranks[N_HALF];
        halves[k] = (struct half){
            .net = {.first = k * N_HALF, .n_local = N_HALF, .n_rank = N, .swap = swap}};
        for (uint32_t i = 0; i < N_HALF; i++) {
            ranks[i] = &members[k * N_HALF + i].rank;
            members[k * N_HALF + i].n_meeting = N_MEETING;
        }
        assert_int_equal(host_group_create(ranks, N_HALF, &halves[k].net, 10000000, NULL),
                         FATHOM_OK);
    }
}

static void begin(uint64_t patience_us)
{
    struct host_rank *ranks[N];
    memset(members, 0, sizeof members);
    for (int i = 0; i < N; i++) {
        ranks[i] = &members[i].rank;
        members[i].n_meeting = N_MEETING;
    }
    assert_int_equal(host_group_create(ranks, N, NULL, patience_us, NULL), FATHOM_OK);
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

static void ranks_of_two_processes_see_what_all_show(void **state)
{
    (void)state;
    begin_halves();
    run();
    for (int i = 0; i < N; i++) {
        assert_int_equal(members[i].err, FATHOM_OK);
        assert_int_equal(members[i].rank.rank, i);
        assert_int_equal(members[i].sum, members[0].sum);
    }
    const uint64_t n = (uint64_t)N * N_MEETING;
    assert_int_equal(members[0].sum, n * (n - 1) / 2);
    end();
}

/* A process that is lost breaks the group; renewed, it works as at first. */
static void a_lost_process_is_named_and_met_again(void **state)
{
    (void)state;
    begin_halves();
    halves[0].is_lost = halves[1].is_lost = true;
    run();
    for (int i = 0; i < N; i++) {
        assert_int_equal(members[i].err, FATHOM_EPEER);
        assert_string_equal(host_rank_fault(&members[i].rank), "host 1 of 2 is lost");
    }
    halves[0].is_lost = halves[1].is_lost = false;
    for (int i = 0; i < N; i++) host_rank_renew(&members[i].rank);
    for (int i = 0; i < N; i++) members[i].sum = 0;
    run();
    for (int i = 0; i < N; i++) assert_int_equal(members[i].err, FATHOM_OK);
    const uint64_t n = (uint64_t)N * N_MEETING;
    assert_int_equal(members[N - 1].sum, n * (n - 1) / 2);
    end();
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
        cmocka_unit_test(ranks_of_two_processes_see_what_all_show),
        cmocka_unit_test(a_lost_process_is_named_and_met_again),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
