/* Where requests go, and what lanes count. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "engine/lane.h"

enum { N_LANE = 3, N_PAGE = 32, MAX_SEQS = 4, BUDGET = 256, N_SEQ = 16, N_PROMPT = 130 };

static struct {
    struct lane lanes[N_LANE];
    struct sequence *q[N_SEQ];
    uint32_t n;
    struct plan plan;
} all;

static int begin(void **state)
{
    (void)state;
    memset(&all, 0, sizeof all);
    struct lane_config c = {.sched = {.max_num_batched_tokens = BUDGET,
                                      .max_num_seqs = MAX_SEQS,
                                      .max_score = 1,
                                      .max_flight = 1,
                                      .n_lane = N_LANE},
                            .n_page = N_PAGE};
    for (uint32_t i = 0; i < N_LANE; i++) {
        c.sched.lane = i;
        assert_int_equal(lane_init(&all.lanes[i], &c, NULL), FATHOM_OK);
    }
    return plan_init(&all.plan, MAX_SEQS);
}

static int end(void **state)
{
    (void)state;
    for (uint32_t i = 0; i < all.n; i++) {
        struct sequence *q = all.q[i];
        if (q->request.state != REQUEST_FINISHED && q->request.state != REQUEST_NEW)
            lane_end(&all.lanes[q->lane], q, REQUEST_FINISH_CANCEL, 9);
        sequence_destroy(q);
    }
    for (uint32_t i = 0; i < N_LANE; i++) {
        lane_check(&all.lanes[i]);
        assert_int_equal(all.lanes[i].n_owed_token, 0);
        assert_int_equal(page_pool_n_available(all.lanes[i].pool), N_PAGE);
        lane_fini(&all.lanes[i]);
    }
    plan_fini(&all.plan);
    return 0;
}

/* A request of n_prompt ids that begin with `first`. */
static struct sequence *make(int32_t first, uint32_t n_prompt)
{
    int32_t ids[N_PAGE * 64];
    const struct sequence_limits limits = {
        .max_model_len = N_PAGE * 64, .n_vocab = 1000, .n_vocab_used = 1000, .n_lane = N_LANE};
    fathom_request r = {.prompt = ids, .n_prompt = n_prompt};
    for (uint32_t i = 0; i < n_prompt; i++) ids[i] = first + (int32_t)i % 7;
    fathom_sampling_init(&r.sampling);
    r.sampling.max_tokens = 8;
    struct sequence *q = NULL;
    assert_int_equal(sequence_create(&q, &r, &limits, 1, NULL), FATHOM_OK);
    return all.q[all.n++] = q;
}

static uint32_t place(struct sequence *q)
{
    struct lane *l = lane_choose(all.lanes, N_LANE, q, MAX_SEQS, BUDGET);
    lane_add(l, q);
    lane_check(l);
    return l->i;
}

/* One step of a lane; every draw is 5. */
static void step(struct lane *l)
{
    int32_t drawn[MAX_SEQS] = {5, 5, 5, 5};
    const struct step_result result = {.ids = drawn};
    struct sequence *told[MAX_SEQS];
    fathom_stats stats = {0};
    struct lane_tally t = {.stats = &stats, .told = told};
    sched_plan(l->sched, 2, &all.plan);
    lane_finish(l, &all.plan, &result, 3, &t);
    assert_true(t.n_told <= MAX_SEQS && t.n_token == stats.n_prompt_token + t.measured.n_decode);
    lane_check(l);
}

static void requests_go_to_the_least_loaded_lane_then_to_the_lowest(void **state)
{
    (void)state;
    assert_int_equal(place(make(1, 200)), 0);
    assert_int_equal(place(make(20, 100)), 1);
    assert_int_equal(place(make(40, 50)), 2);
    assert_int_equal(place(make(60, 10)), 2);
    assert_int_equal(place(make(80, 10)), 1); /* 164 against 188 */
    assert_int_equal(all.lanes[0].n_owed_token, 200);
}

static void a_request_goes_where_its_pages_are(void **state)
{
    (void)state;
    place(make(1, 10));
    struct sequence *first = make(100, N_PROMPT);
    assert_int_equal(place(first), 1);
    step(&all.lanes[1]);
    struct sequence *same = make(100, N_PROMPT);
    assert_int_equal(sched_n_found(all.lanes[1].sched, &same->request), 2);
    assert_int_equal(sched_n_found(all.lanes[2].sched, &same->request), 0);
    assert_int_equal(place(same), 1); /* though lane 2 has nothing to do */
    assert_int_equal(place(make(200, N_PROMPT)), 2);
}

static void pages_do_not_bring_all_requests_to_one_lane(void **state)
{
    (void)state;
    uint32_t n[N_LANE] = {0};
    assert_int_equal(place(make(100, N_PROMPT)), 0);
    step(&all.lanes[0]);
    for (int i = 0; i < 9; i++) n[place(make(100, N_PROMPT))]++;
    assert_true(n[0] >= 2 && n[0] <= MAX_SEQS - 1); /* no more than have a place there */
    assert_true(n[1] >= 2 && n[2] >= 2);
}

static void far_more_load_is_weightier_than_pages(void **state)
{
    (void)state;
    assert_int_equal(place(make(100, N_PROMPT)), 0);
    step(&all.lanes[0]);
    struct sequence *big = make(300, 1000);
    big->end_lane = 1;
    assert_int_equal(place(big), 0); /* 1128 of a mean of 376: above 470 and 256 */
    assert_int_equal(place(make(100, N_PROMPT)), 1);
}

static void a_request_goes_to_the_lane_that_it_names(void **state)
{
    (void)state;
    for (int i = 0; i < 6; i++) {
        struct sequence *q = make(1 + i, 20);
        q->first_lane = 2;
        assert_int_equal(place(q), 2);
    }
}

/* As of hosts that serve their own lanes alone. */
static void a_request_stays_on_the_lanes_that_it_names(void **state)
{
    (void)state;
    for (uint32_t i = 0; i < 9; i++) {
        struct sequence *q = make(1 + (int32_t)i, 20);
        q->first_lane = 1;
        assert_int_equal(place(q), 1 + i % 2);
    }
    for (uint32_t i = 1; i < N_LANE; i++) step(&all.lanes[i]);
    assert_int_equal(sched_n_waiting(all.lanes[1].sched),
                     1); /* lane 0 has a place, and not for it */
    assert_int_equal(lanes_level(all.lanes, N_LANE, MAX_SEQS), 0);
    assert_int_equal(all.lanes[1].first, 1); /* so that nobody is looked at for it */
    struct sequence *any = make(30, 20);
    lane_add(&all.lanes[1], any);
    assert_int_equal(lanes_level(all.lanes, N_LANE, MAX_SEQS), 1);
    assert_int_equal(any->lane, 0);
}

static void who_waits_for_a_place_goes_where_one_is(void **state)
{
    (void)state;
    struct sequence *named = NULL;
    for (int i = 0; i < 7; i++) {
        struct sequence *q = make(1 + i, 20);
        if (i == 4) named = q;
        if (i == 4) q->end_lane = 1; /* all to one lane; only the fifth has named it */
        lane_add(&all.lanes[0], q);
    }
    assert_int_equal(lanes_level(all.lanes, N_LANE, MAX_SEQS), 0); /* nobody runs there yet */
    step(&all.lanes[0]);
    assert_int_equal(sched_n_waiting(all.lanes[0].sched), 3);
    assert_int_equal(lanes_level(all.lanes, N_LANE, MAX_SEQS), 2);
    assert_int_equal(all.lanes[0].n_owed_token, 20);
    for (uint32_t i = 0; i < N_LANE; i++) {
        assert_int_equal(sched_n_waiting(all.lanes[i].sched), 1);
        lane_check(&all.lanes[i]);
    }
    assert_ptr_equal(sched_first_waiting(all.lanes[0].sched), &named->request);
    step(&all.lanes[1]);
    assert_int_equal(all.q[5]->lane, 1);
    assert_int_equal(all.q[5]->request.state, REQUEST_RUNNING);
    assert_int_equal(lanes_level(all.lanes, N_LANE, MAX_SEQS), 0); /* it stays where it said */
}

static void arrivals_are_numbered_for_all_lanes(void **state)
{
    (void)state;
    for (uint32_t i = 0; i < 9; i++) place(make(1 + (int32_t)i, 20));
    for (uint32_t i = 0; i < all.n; i++) {
        for (uint32_t k = 0; k < i; k++)
            assert_int_not_equal(all.q[i]->request.arrival, all.q[k]->request.arrival);
    }
}

static void statistics_are_of_each_lane_and_of_all(void **state)
{
    (void)state;
    fathom_stats s = {.n_lane = N_LANE};
    place(make(1, 100));
    place(make(30, 20));
    step(&all.lanes[0]);
    for (uint32_t i = 0; i < N_LANE; i++) lane_fill_stats(&all.lanes[i], &s);
    assert_int_equal(s.n_running, 1);
    assert_int_equal(s.n_waiting, 1);
    assert_int_equal(s.lanes[0].n_running, 1);
    assert_int_equal(s.lanes[1].n_waiting, 1);
    assert_int_equal(s.lanes[1].n_backlog_token, 20);
    assert_int_equal(s.n_backlog_token, 20);
    assert_int_equal(s.n_page_free, N_LANE * N_PAGE - 2);
}

#define CASE(f) cmocka_unit_test_setup_teardown(f, begin, end)

int main(void)
{
    const struct CMUnitTest tests[] = {
        CASE(requests_go_to_the_least_loaded_lane_then_to_the_lowest),
        CASE(a_request_goes_where_its_pages_are),
        CASE(pages_do_not_bring_all_requests_to_one_lane),
        CASE(far_more_load_is_weightier_than_pages),
        CASE(a_request_goes_to_the_lane_that_it_names),
        CASE(a_request_stays_on_the_lanes_that_it_names),
        CASE(who_waits_for_a_place_goes_where_one_is),
        CASE(arrivals_are_numbered_for_all_lanes),
        CASE(statistics_are_of_each_lane_and_of_all),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
