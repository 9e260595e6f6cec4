/* test_sched_ahead.c - plans made before the steps before them are over, worked out by hand */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "support/sched_fixture.h"

static struct plan next;

static void open_fixture(struct sched_fixture *f, uint32_t n_page, uint32_t budget,
                         uint32_t max_num_seqs)
{
    fixture_open_cached(f, n_page, budget, max_num_seqs);
    assert_int_equal(plan_init(&next, max_num_seqs), FATHOM_OK);
}

static void close_fixture(struct sched_fixture *f)
{
    assert_null(sched_any(f->s));
    assert_int_equal(page_pool_n_available(f->pool), page_pool_n_page(f->pool));
    plan_fini(&next);
    fixture_close(f);
}

static void commit(struct sched_fixture *f, const struct plan *p, const int32_t *drawn)
{
    sched_commit(f->s, p, drawn, ++f->now_us);
    sched_check(f->s);
}

/* The entry computes what draw i_before of the step before is, at position `first`. */
static void expect(uint32_t i, const struct request *r, uint32_t first, uint32_t i_before)
{
    const struct plan_entry *e = &next.entries[i];
    assert_true(i < next.n_entry);
    assert_ptr_equal(e->request, r);
    assert_int_equal(e->first, first);
    assert_int_equal(e->n_token, 1);
    assert_int_equal(e->i_before, i_before);
    assert_int_equal(e->i_draw, i);
    assert_true(e->draws && e->n_draft == 0 && e->n_score == 0);
}

/* From a prompt on; b ends by its length, c by a stop, d is cancelled, a goes on alone. */
static void who_ends_leaves_the_plan_made_ahead(void **state)
{
    (void)state;
    struct sched_fixture f;
    open_fixture(&f, 16, 256, 4);
    struct request *a = fixture_add(&f, 63, 3);
    struct request *b = fixture_add(&f, 10, 1);
    struct request *c = fixture_add(&f, 20, 9);
    struct request *d = fixture_add(&f, 30, 9);
    fixture_plan(&f);
    assert_true(sched_plan_ahead(f.s, &f.plan, &next));
    assert_true(next.is_ahead && !f.plan.is_ahead);
    assert_int_equal(next.n_entry, 3);
    assert_int_equal(next.n_token, 3);
    assert_int_equal(next.n_draw, 3);
    assert_int_equal(next.max_context, 64);
    expect(0, a, 63, 0);
    expect(1, c, 20, 2);
    expect(2, d, 30, 3);
    commit(&f, &f.plan, (const int32_t[]){7, 8, STOP_ID, 9});
    assert_int_equal(b->finish, REQUEST_FINISH_LENGTH);
    assert_int_equal(c->finish, REQUEST_FINISH_STOP);
    assert_int_equal(next.n_entry, 2);
    assert_int_equal(next.n_draw, 3); /* as many as are drawn */
    assert_int_equal(next.entries[1].i_draw, 2);
    sched_end(f.s, d, REQUEST_FINISH_CANCEL, ++f.now_us);
    sched_check(f.s);
    assert_int_equal(next.n_entry, 1);
    assert_int_equal(d->n_planned, 0);

    assert_true(sched_plan_ahead(f.s, &next, &f.plan)); /* position 64: another page */
    assert_int_equal(a->n_page, 2);
    assert_int_equal(a->n_planned, 2);
    commit(&f, &next, (const int32_t[]){11, -1, -1});
    assert_false(sched_plan_ahead(f.s, &f.plan, &next)); /* a's last token */
    commit(&f, &f.plan, (const int32_t[]){12});
    assert_int_equal(a->finish, REQUEST_FINISH_LENGTH);
    assert_int_equal(a->ids[63], 7);
    assert_int_equal(a->ids[64], 11);
    assert_int_equal(a->ids[65], 12);
    close_fixture(&f);
}

static void all_may_leave_it(void **state)
{
    (void)state;
    struct sched_fixture f;
    open_fixture(&f, 4, 256, 4);
    fixture_add(&f, 10, 9);
    fixture_plan(&f);
    assert_true(sched_plan_ahead(f.s, &f.plan, &next));
    fixture_commit(&f, STOP_ID);
    assert_int_equal(next.n_entry, 0);
    struct request *b = fixture_add(&f, 10, 2); /* waits for the step in vain to be over */
    assert_false(sched_plan_ahead(f.s, &next, &f.plan));
    commit(&f, &next, (const int32_t[]){-1});
    fixture_plan(&f);
    fixture_expect(&f, 0, b, 0, 10, true);
    sched_abort(f.s);
    sched_end(f.s, b, REQUEST_FINISH_CANCEL, ++f.now_us);
    close_fixture(&f);
}

static void a_prompt_under_way_is_not_foreseen(void **state)
{
    (void)state;
    struct sched_fixture f;
    open_fixture(&f, 16, 64, 4);
    struct request *a = fixture_add(&f, 100, 2);
    fixture_plan(&f);
    assert_false(sched_plan_ahead(f.s, &f.plan, &next));
    fixture_commit(&f, 7);
    fixture_plan(&f); /* the rest of it, and the first token */
    assert_true(sched_plan_ahead(f.s, &f.plan, &next));
    expect(0, a, 100, 0);
    sched_abort(f.s);
    sched_check(f.s);
    assert_int_equal(a->n_planned, 0);
    fixture_plan(&f); /* as before */
    fixture_expect(&f, 0, a, 64, 36, true);
    fixture_commit(&f, STOP_ID);
    close_fixture(&f);
}

static void who_waits_and_could_be_admitted_is(void **state)
{
    (void)state;
    struct sched_fixture f;
    open_fixture(&f, 16, 64, 2);
    fixture_add(&f, 10, 9);
    fixture_plan(&f);
    struct request *b = fixture_add(&f, 10, 9);
    assert_false(sched_plan_ahead(f.s, &f.plan, &next));
    fixture_commit(&f, 7);
    fixture_plan(&f);
    struct request *c = fixture_add(&f, 10, 9); /* two run, more may not */
    assert_true(sched_plan_ahead(f.s, &f.plan, &next));
    commit(&f, &f.plan, (const int32_t[]){7, STOP_ID});
    assert_int_equal(b->state, REQUEST_FINISHED);
    assert_false(sched_plan_ahead(f.s, &next, &f.plan)); /* c may now */
    commit(&f, &next, (const int32_t[]){STOP_ID, -1});
    fixture_plan(&f);
    fixture_expect(&f, 0, c, 0, 10, true);
    fixture_commit(&f, STOP_ID);
    close_fixture(&f);
}

/* Four pages: a has two and takes one more, b has one and would need another; c waits. */
static void nobody_is_preempted_for_it(void **state)
{
    (void)state;
    struct sched_fixture f;
    open_fixture(&f, 4, 256, 4);
    struct request *a = fixture_add(&f, 127, 9);
    struct request *b = fixture_add(&f, 62, 9);
    struct request *c = fixture_add(&f, 10, 9);
    fixture_plan(&f);
    assert_int_equal(c->state, REQUEST_WAITING);
    assert_true(sched_is_short_of_pages(f.s));
    assert_true(sched_plan_ahead(f.s, &f.plan, &next)); /* c cannot come before somebody ends */
    expect(0, a, 127, 0);
    expect(1, b, 62, 1);
    commit(&f, &f.plan, (const int32_t[]){7, 8});
    assert_true(sched_plan_ahead(f.s, &next, &f.plan));
    assert_int_equal(a->n_page, 3);
    commit(&f, &next, (const int32_t[]){7, 8});
    assert_false(sched_plan_ahead(f.s, &f.plan, &next)); /* b at position 64 */
    assert_int_equal(b->n_page, 1);
    commit(&f, &f.plan, (const int32_t[]){7, 8});
    fixture_plan(&f);
    assert_int_equal(f.plan.n_entry, 1); /* b stands still */
    fixture_expect(&f, 0, a, 129, 1, true);
    assert_false(sched_plan_ahead(f.s, &f.plan, &next));
    fixture_commit(&f, STOP_ID);
    while (sched_any(f.s)) {
        fixture_plan(&f);
        fixture_commit(&f, STOP_ID);
    }
    close_fixture(&f);
}

static void drafts_are_not_foreseen(void **state)
{
    (void)state;
    struct sched_fixture f;
    fixture_open_more(&f, 8, 64, 4, 2);
    assert_int_equal(plan_init(&next, 4), FATHOM_OK);
    fixture_add(&f, 10, 9);
    fixture_plan(&f);
    assert_false(sched_plan_ahead(f.s, &f.plan, &next));
    fixture_commit(&f, STOP_ID);
    close_fixture(&f);
}

/* ---- three and four plans under way ---- */

/* A plan that must succeed, checked: one entry each for `n` requests at the positions given. */
static void plan_more(struct sched_fixture *f, const struct plan *newest, struct plan *p,
                      uint32_t n, struct request *const *requests, const uint32_t *firsts)
{
    assert_true(sched_plan_ahead(f->s, newest, p));
    sched_check(f->s);
    assert_int_equal(p->n_entry, n);
    for (uint32_t i = 0; i < n; i++) {
        assert_ptr_equal(p->entries[i].request, requests[i]);
        assert_int_equal(p->entries[i].first, firsts[i]);
        assert_true(p->entries[i].n_token == 1 && p->entries[i].draws);
    }
}

static void open_four(struct sched_fixture *f, struct plan *plans, uint32_t n_page)
{
    fixture_open_cached(f, n_page, 256, 4);
    for (int i = 0; i < 3; i++) assert_int_equal(plan_init(&plans[i], 4), FATHOM_OK);
}

static void close_four(struct sched_fixture *f, struct plan *plans)
{
    assert_null(sched_any(f->s));
    assert_int_equal(page_pool_n_available(f->pool), page_pool_n_page(f->pool));
    for (int i = 0; i < 3; i++) plan_fini(&plans[i]);
    fixture_close(f);
}

/* Steps 0 .. 3 under way: b ends by its length in step 1, so steps 2 and 3 are of a and c. */
static void a_length_that_ends_in_the_middle_is_foreseen(void **state)
{
    (void)state;
    struct sched_fixture f;
    struct plan p[3];
    struct plan fifth;
    open_four(&f, p, 16);
    assert_int_equal(plan_init(&fifth, 4), FATHOM_OK);
    struct request *a = fixture_add(&f, 10, 9);
    struct request *b = fixture_add(&f, 20, 2);
    struct request *c = fixture_add(&f, 30, 4);
    fixture_plan(&f);
    plan_more(&f, &f.plan, &p[0], 3, (struct request *[]){a, b, c}, (uint32_t[]){10, 20, 30});
    plan_more(&f, &p[0], &p[1], 2, (struct request *[]){a, c}, (uint32_t[]){11, 31});
    assert_int_equal(p[1].entries[1].i_before, 2); /* c was the third to draw */
    plan_more(&f, &p[1], &p[2], 2, (struct request *[]){a, c}, (uint32_t[]){12, 32});
    assert_int_equal(p[2].entries[1].i_before, 1);
    assert_int_equal(a->n_planned, 13);
    assert_false(sched_plan_ahead(f.s, &p[2], &fifth)); /* four are under way */
    fixture_commit(&f, 7);
    assert_true(sched_plan_ahead(f.s, &p[2], &fifth)); /* c ends with step 3 */
    assert_int_equal(fifth.n_entry, 1);
    sched_check(f.s);
    commit(&f, &p[0], (const int32_t[]){7, 8, 9});
    assert_int_equal(b->finish, REQUEST_FINISH_LENGTH);
    commit(&f, &p[1], (const int32_t[]){7, 9});
    commit(&f, &p[2], (const int32_t[]){7, 9});
    assert_int_equal(c->finish, REQUEST_FINISH_LENGTH);
    commit(&f, &fifth, (const int32_t[]){STOP_ID});
    assert_int_equal(request_n_output(a), 5);
    plan_fini(&fifth);
    close_four(&f, p);
}

/* Somebody waits: what a length that ends under way makes room for is not planned over. */
static void who_waits_for_a_length_to_end_is_not_passed_over(void **state)
{
    (void)state;
    struct sched_fixture f;
    struct plan p[3];
    open_four(&f, p, 16);
    struct request *r[4];
    for (int i = 0; i < 4; i++) r[i] = fixture_add(&f, 10, i == 1 ? 1 : 9);
    struct request *waits = fixture_add(&f, 10, 9);
    fixture_plan(&f);
    plan_more(&f, &f.plan, &p[0], 3, (struct request *[]){r[0], r[2], r[3]},
              (uint32_t[]){10, 10, 10});
    assert_false(sched_plan_ahead(f.s, &p[0], &p[1])); /* r[1] is over before it */
    fixture_commit(&f, 7);
    assert_false(sched_plan_ahead(f.s, &p[0], &p[1]));
    commit(&f, &p[0], (const int32_t[]){STOP_ID, STOP_ID, STOP_ID});
    fixture_plan(&f);
    fixture_expect(&f, 0, waits, 0, 10, true);
    fixture_commit(&f, STOP_ID);
    close_four(&f, p);
}

/* The stop is drawn in the oldest of three; the two behind it have an entry of its request. */
static void a_stop_leaves_both_later_plans(void **state)
{
    (void)state;
    struct sched_fixture f;
    struct plan p[3];
    open_four(&f, p, 16);
    struct request *a = fixture_add(&f, 10, 9);
    struct request *b = fixture_add(&f, 20, 9);
    fixture_plan(&f);
    plan_more(&f, &f.plan, &p[0], 2, (struct request *[]){a, b}, (uint32_t[]){10, 20});
    plan_more(&f, &p[0], &p[1], 2, (struct request *[]){a, b}, (uint32_t[]){11, 21});
    commit(&f, &f.plan, (const int32_t[]){STOP_ID, 8});
    assert_int_equal(a->finish, REQUEST_FINISH_STOP);
    assert_true(a->n_planned == 0 && a->n_page == 0);
    assert_true(p[0].n_entry == 1 && p[0].entries[0].request == b && p[0].n_draw == 2);
    assert_true(p[1].n_entry == 1 && p[1].entries[0].request == b && p[1].n_draw == 2);
    assert_int_equal(p[1].entries[0].i_before, 1);
    plan_more(&f, &p[1], &p[2], 1, &b, (uint32_t[]){22});
    assert_true(p[2].entries[0].i_before == 1 && p[2].entries[0].i_draw == 0);
    commit(&f, &p[0], (const int32_t[]){-1, 9});
    commit(&f, &p[1], (const int32_t[]){-1, STOP_ID});
    commit(&f, &p[2], (const int32_t[]){-1});
    assert_int_equal(b->ids[21], 9);
    assert_int_equal(request_n_output(b), 3);
    close_four(&f, p);
}

/* Cancels with four plans under way, of the oldest too: its page is free, and the next step takes
 * it at once. */
static void a_cancel_leaves_every_plan_under_way(void **state)
{
    (void)state;
    struct sched_fixture f;
    struct plan p[3];
    open_four(&f, p, 3);
    struct request *a = fixture_add(&f, 61, 9);
    struct request *b = fixture_add(&f, 20, 9);
    fixture_plan(&f);
    plan_more(&f, &f.plan, &p[0], 2, (struct request *[]){a, b}, (uint32_t[]){61, 20});
    plan_more(&f, &p[0], &p[1], 2, (struct request *[]){a, b}, (uint32_t[]){62, 21});
    plan_more(&f, &p[1], &p[2], 2, (struct request *[]){a, b}, (uint32_t[]){63, 22});
    uint32_t page = b->pages[0];
    sched_end(f.s, b, REQUEST_FINISH_CANCEL, ++f.now_us);
    sched_check(f.s);
    assert_int_equal(page_pool_n_free(f.pool), 2);
    assert_true(f.plan.n_entry == 1 && p[0].n_entry == 1 && p[1].n_entry == 1);
    assert_int_equal(p[2].n_entry, 1);
    commit(&f, &f.plan, (const int32_t[]){7, -1});
    plan_more(&f, &p[2], &f.plan, 1, (struct request *[]){a}, (uint32_t[]){64});
    assert_int_equal(a->pages[1], page);
    sched_end(f.s, a, REQUEST_FINISH_CANCEL, ++f.now_us);
    sched_check(f.s);
    assert_false(sched_plan_ahead(f.s, &f.plan, &(struct plan){0}));
    commit(&f, &p[0], (const int32_t[]){-1, -1});
    commit(&f, &p[1], (const int32_t[]){-1, -1});
    commit(&f, &p[2], (const int32_t[]){-1, -1});
    commit(&f, &f.plan, (const int32_t[]){-1});
    close_four(&f, p);
}

/* Positions 62 .. 65 are under way at once: one page more for both later ones, and the full page is
 * published with the step that computes its last row. */
static void plans_cross_a_page_border(void **state)
{
    (void)state;
    struct sched_fixture f;
    struct plan p[3];
    open_four(&f, p, 3);
    struct request *a = fixture_add(&f, 62, 9);
    fixture_plan(&f);
    plan_more(&f, &f.plan, &p[0], 1, &a, (uint32_t[]){62});
    plan_more(&f, &p[0], &p[1], 1, &a, (uint32_t[]){63});
    assert_int_equal(a->n_page, 1);
    plan_more(&f, &p[1], &p[2], 1, &a, (uint32_t[]){64});
    assert_int_equal(a->n_page, 2);
    commit(&f, &f.plan, (const int32_t[]){7});
    plan_more(&f, &p[2], &f.plan, 1, &a, (uint32_t[]){65});
    assert_int_equal(a->n_page, 2);
    commit(&f, &p[0], (const int32_t[]){8});
    assert_int_equal(a->n_published, 0);
    commit(&f, &p[1], (const int32_t[]){9});
    assert_int_equal(a->n_published, 1);
    commit(&f, &p[2], (const int32_t[]){STOP_ID});
    assert_int_equal(a->finish, REQUEST_FINISH_STOP);
    assert_int_equal(f.plan.n_entry, 0);
    commit(&f, &f.plan, (const int32_t[]){-1});
    assert_int_equal(page_pool_n_cached(f.pool), 1);
    close_four(&f, p);
}

/* One page is left for two requests at position 64: no plan goes there before one has ended. */
static void a_page_border_without_a_page_ends_the_row_of_plans(void **state)
{
    (void)state;
    struct sched_fixture f;
    struct plan p[3];
    open_four(&f, p, 3);
    struct request *a = fixture_add(&f, 63, 9);
    struct request *b = fixture_add(&f, 63, 9);
    fixture_plan(&f);
    plan_more(&f, &f.plan, &p[0], 2, (struct request *[]){a, b}, (uint32_t[]){63, 63});
    assert_false(sched_plan_ahead(f.s, &p[0], &p[1]));
    commit(&f, &f.plan, (const int32_t[]){7, STOP_ID});
    plan_more(&f, &p[0], &p[1], 1, &a, (uint32_t[]){64});
    sched_abort(f.s); /* the page stays */
    sched_check(f.s);
    assert_true(a->n_planned == 0 && a->n_page == 2);
    fixture_plan(&f);
    fixture_expect(&f, 0, a, 63, 1, true);
    fixture_commit(&f, STOP_ID);
    close_four(&f, p);
}

/* Three pages: at position 64 one is left, and nobody waits. b stands still for want of another. */
static void no_plan_goes_past_who_stands_still(void **state)
{
    (void)state;
    struct sched_fixture f;
    struct plan p[3];
    open_four(&f, p, 3);
    struct request *a = fixture_add(&f, 64, 9);
    struct request *b = fixture_add(&f, 64, 9);
    b->cache_salt = 1; /* its page is not that of a */
    fixture_plan(&f);
    fixture_commit(&f, 7);
    fixture_plan(&f);
    assert_int_equal(f.plan.n_entry, 1);
    fixture_expect(&f, 0, a, 64, 1, true);
    assert_int_equal(b->state, REQUEST_RUNNING);
    assert_false(sched_plan_ahead(f.s, &f.plan, &p[0]));
    fixture_commit(&f, STOP_ID);
    fixture_plan(&f);
    fixture_expect(&f, 0, b, 64, 1, true);
    fixture_commit(&f, STOP_ID);
    close_four(&f, p);
}

static void one_plan_under_way_is_all_there_is_with_max_flight_1(void **state)
{
    (void)state;
    struct sched_fixture f;
    open_fixture(&f, 4, 256, 4);
    sched_destroy(f.s);
    assert_int_equal(sched_create(&f.s,
                                  &(struct sched_config){256, 4, 0, MAX_SCORE, 1, 1, false, 0, 0},
                                  f.pool, f.prefix, NULL),
                     FATHOM_OK);
    fixture_add(&f, 10, 9);
    fixture_plan(&f);
    assert_false(sched_plan_ahead(f.s, &f.plan, &next));
    fixture_commit(&f, STOP_ID);
    close_fixture(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(who_ends_leaves_the_plan_made_ahead),
        cmocka_unit_test(all_may_leave_it),
        cmocka_unit_test(a_prompt_under_way_is_not_foreseen),
        cmocka_unit_test(who_waits_and_could_be_admitted_is),
        cmocka_unit_test(nobody_is_preempted_for_it),
        cmocka_unit_test(drafts_are_not_foreseen),
        cmocka_unit_test(a_length_that_ends_in_the_middle_is_foreseen),
        cmocka_unit_test(who_waits_for_a_length_to_end_is_not_passed_over),
        cmocka_unit_test(a_stop_leaves_both_later_plans),
        cmocka_unit_test(a_cancel_leaves_every_plan_under_way),
        cmocka_unit_test(plans_cross_a_page_border),
        cmocka_unit_test(a_page_border_without_a_page_ends_the_row_of_plans),
        cmocka_unit_test(no_plan_goes_past_who_stands_still),
        cmocka_unit_test(one_plan_under_way_is_all_there_is_with_max_flight_1),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
