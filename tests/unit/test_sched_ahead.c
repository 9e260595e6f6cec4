/* Plans made before the step before them is over, worked out by hand. */
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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(who_ends_leaves_the_plan_made_ahead),
        cmocka_unit_test(all_may_leave_it),
        cmocka_unit_test(a_prompt_under_way_is_not_foreseen),
        cmocka_unit_test(who_waits_and_could_be_admitted_is),
        cmocka_unit_test(nobody_is_preempted_for_it),
        cmocka_unit_test(drafts_are_not_foreseen),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
