/* test_share.c - runs of a shared prompt, and what the schedulers of home and guests make of it */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/rng.h"
#include "engine/share.h"
#include "support/sched_fixture.h"

static void expect_runs(uint32_t n_token, const uint32_t *n_own, const uint32_t *room, uint32_t n,
                        const uint32_t *want)
{
    uint32_t run[PARALLEL_RANKS_MAX];
    share_runs(n_token, n_own, room, n, run);
    for (uint32_t i = 0; i < n; i++) assert_int_equal(run[i], want[i]);
}

static void runs_are_even_where_there_is_room(void **state)
{
    (void)state;
    static const uint32_t none[3], own[] = {3, 0, 0}, most[] = {9, 0, 0};
    expect_runs(12, none, (const uint32_t[]){9, 9, 9}, 3, (const uint32_t[]){4, 4, 4});
    expect_runs(13, none, (const uint32_t[]){9, 9, 9}, 3, (const uint32_t[]){4, 4, 5});
    expect_runs(12, none, (const uint32_t[]){9, 1, 9}, 3, (const uint32_t[]){5, 1, 6});
    expect_runs(12, none, (const uint32_t[]){2, 1, 9}, 3, (const uint32_t[]){2, 1, 9});
    expect_runs(3, none, (const uint32_t[]){2, 1, 9}, 3, (const uint32_t[]){1, 1, 1});
    expect_runs(12, own, (const uint32_t[]){9, 9, 9}, 3, (const uint32_t[]){2, 5, 5});
    expect_runs(12, most, (const uint32_t[]){9, 9, 9}, 3, (const uint32_t[]){1, 5, 6});
    expect_runs(20, most, (const uint32_t[]){9, 9, 9}, 3, (const uint32_t[]){2, 9, 9});
    uint64_t g = 1;
    for (int k = 0; k < 2000; k++) {
        const uint32_t n = 2 + (uint32_t)rng_below(&g, 7);
        uint32_t n_own[8], room[8], run[8], sum = 0, most_of_all = 0;
        for (uint32_t i = 0; i < n; i++) {
            n_own[i] = rng_below(&g, 2) ? (uint32_t)rng_below(&g, 40) : 0;
            sum += room[i] = 1 + (uint32_t)rng_below(&g, 40);
        }
        const uint32_t n_token = n + (uint32_t)rng_below(&g, sum - n + 1);
        share_runs(n_token, n_own, room, n, run);
        sum = 0;
        for (uint32_t i = 0; i < n; i++) {
            assert_true(run[i] >= 1 && run[i] <= room[i]);
            sum += run[i];
            if (run[i] > 1 && n_own[i] + run[i] > most_of_all) most_of_all = n_own[i] + run[i];
        }
        assert_int_equal(sum, n_token);
        for (uint32_t i = 0; i < n; i++)
            assert_true(run[i] == room[i] || n_own[i] + run[i] + 1 >= most_of_all);
    }
}

/* Budget of 32 tokens and 40 of others: a prompt of 200 gets 71, beside an answer. */
static void what_is_lent_goes_to_one_request_of_one_plan(void **state)
{
    (void)state;
    struct sched_fixture f;
    fixture_open(&f, 32, 32, 4);
    struct request *answer = fixture_add(&f, 8, 20);
    fixture_plan(&f);
    fixture_commit(&f, 5);
    struct request *r = fixture_add(&f, 200, 4), *behind = fixture_add(&f, 50, 4);
    uint32_t n;
    assert_null(sched_first_wide(f.s, 201, &n));
    assert_ptr_equal(sched_first_wide(f.s, 60, &n), r);
    assert_int_equal(n, 200);
    sched_lend(f.s, r, 40, 60);
    fixture_plan(&f);
    assert_int_equal(f.plan.n_entry, 2);
    fixture_expect(&f, 0, answer, 8, 1, true);
    fixture_expect(&f, 1, r, 0, 71, false);
    assert_true(f.plan.entries[1].is_lent && f.plan.entries[1].n_lent == 40);
    assert_int_equal(f.plan.n_lent, 40);
    assert_int_equal(sched_n_left(f.s), 0);
    fixture_commit(&f, 5);
    fixture_plan(&f); /* nothing is lent now */
    fixture_expect(&f, 1, r, 71, 31, false);
    assert_false(f.plan.entries[1].is_lent);
    fixture_commit(&f, 5);
    sched_lend(f.s, r, 200, 60); /* more than it lacks: the others find what is left */
    fixture_plan(&f);
    fixture_expect(&f, 1, r, 102, 98, true);
    assert_int_equal(f.plan.entries[1].n_lent, 67);
    fixture_commit(&f, 5);
    sched_lend(f.s, behind, 200, 60); /* lacks less */
    fixture_plan(&f);
    assert_int_equal(f.plan.n_lent, 0);
    fixture_commit(&f, 5);
    fixture_close(&f);
}

/* Who waits for a place is not looked at; who is admitted next is, behind shorter ones too. */
static void a_full_scheduler_has_nobody_else(void **state)
{
    (void)state;
    struct sched_fixture f;
    fixture_open(&f, 32, 32, 1);
    struct request *first = fixture_add(&f, 8, 20);
    fixture_plan(&f);
    fixture_commit(&f, 5);
    struct request *r = fixture_add(&f, 200, 4);
    uint32_t n;
    assert_null(sched_first_wide(f.s, 60, &n));
    sched_end(f.s, first, REQUEST_FINISH_CANCEL, 1);
    assert_ptr_equal(sched_first_wide(f.s, 60, &n), r);
    assert_null(sched_first_wide(f.s, 201, &n));
    struct request *longer = fixture_add(&f, 300, 4);
    assert_ptr_equal(sched_first_wide(f.s, 201, &n), longer);
    fixture_close(&f);
}

/* What a prompt lacks besides its pages, whether it runs or waits. */
static void cached_tokens_are_not_lacking(void **state)
{
    (void)state;
    struct sched_fixture f;
    uint32_t n;
    fixture_open_cached(&f, 32, 64, 4);
    struct request *first = fixture_add(&f, 200, 1);
    while (first->state != REQUEST_FINISHED) {
        fixture_plan(&f);
        fixture_commit(&f, 5);
    }
    struct request *r = fixture_add(&f, 400, 4);
    assert_ptr_equal(sched_first_wide(f.s, 60, &n), r);
    assert_int_equal(n, 400 - 192);
    assert_null(sched_first_wide(f.s, 300, &n));
    fixture_plan(&f);
    fixture_commit(&f, 5);
    assert_ptr_equal(sched_first_wide(f.s, 60, &n), r);
    assert_int_equal(n, 400 - 192 - 64);
    fixture_close(&f);
}

/* One that runs is held back with who comes behind it; who comes before it is admitted. */
static void who_comes_before_the_held_one_is_admitted(void **state)
{
    (void)state;
    struct sched_fixture f;
    uint32_t n;
    fixture_open(&f, 32, 64, 4);
    struct request *held = fixture_add(&f, 200, 4);
    fixture_plan(&f);
    fixture_commit(&f, 5);
    struct request *behind = fixture_add(&f, 100, 4);
    sched_hold_back(f.s, held);
    fixture_plan(&f);
    assert_int_equal(f.plan.n_entry, 0);
    assert_int_equal(behind->state, REQUEST_WAITING);
    struct request *before = fixture_add_urgent(&f, 100, 4);
    assert_ptr_equal(sched_first_wide(f.s, 60, &n), before);
    sched_hold_back(f.s, held);
    fixture_plan(&f);
    assert_int_equal(f.plan.n_entry, 1);
    fixture_expect(&f, 0, before, 0, 64, false);
    assert_int_equal(behind->state, REQUEST_WAITING);
    fixture_commit(&f, 5);
    fixture_close(&f);
}

/* 8 pages: a guest's four are there while others need less, and are the first to go. */
static void guests_pages_go_before_anybody_waits(void **state)
{
    (void)state;
    struct sched_fixture f;
    uint32_t pages[8];
    fixture_open(&f, 8, 64, 4);
    assert_true(sched_take_guest(f.s, pages, 8)); /* of an idle lane: all */
    sched_check(f.s);
    sched_give_guest(f.s);
    struct request *r = fixture_add(&f, 64, 300);
    fixture_plan(&f);
    fixture_commit(&f, 5);
    assert_false(sched_take_guest(f.s, pages, 7)); /* r may grow */
    assert_true(sched_take_guest(f.s, pages, 6));
    sched_check(f.s);
    fixture_plan(&f); /* r has its second page */
    fixture_commit(&f, 5);
    assert_int_equal(sched_n_guest_page(f.s), 6);
    while (r->n_token < 130) {
        fixture_plan(&f);
        fixture_commit(&f, 5);
    }
    assert_int_equal(sched_n_guest_page(f.s), 0);
    assert_int_equal(sched_totals(f.s)->n_preempted, 0);
    assert_true(sched_take_guest(f.s, pages, 4));
    struct request *other = fixture_add(&f, 64, 4);
    fixture_plan(&f);
    assert_int_equal(other->state, REQUEST_RUNNING);
    assert_int_equal(sched_n_guest_page(f.s), 0);
    fixture_commit(&f, 5);
    fixture_close(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(runs_are_even_where_there_is_room),
        cmocka_unit_test(what_is_lent_goes_to_one_request_of_one_plan),
        cmocka_unit_test(a_full_scheduler_has_nobody_else),
        cmocka_unit_test(cached_tokens_are_not_lacking),
        cmocka_unit_test(who_comes_before_the_held_one_is_admitted),
        cmocka_unit_test(guests_pages_go_before_anybody_waits),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
