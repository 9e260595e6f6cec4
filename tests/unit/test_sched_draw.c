/* test_sched_draw.c - what a step draws beyond one token a request: drafts, and the logits of
 * prompts */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "support/sched_fixture.h"

/* ---- with drafts ---- */

static void guess(struct request *r, int32_t a, int32_t b, int32_t c)
{
    const int32_t ids[] = {a, b, c};
    memcpy(r->ids + r->n_token, ids, sizeof ids);
    r->n_draft = 3;
}

static void commit_drawn(struct sched_fixture *f, int32_t a, int32_t b, int32_t c, int32_t d)
{
    const int32_t drawn[] = {a, b, c, d};
    sched_commit(f->s, &f->plan, drawn, ++f->now_us);
    sched_check(f->s);
}

static void drafts_count_up_to_the_first_wrong_one(void **state)
{
    (void)state;
    struct sched_fixture f;
    fixture_open_more(&f, 8, 64, 4, 3);
    struct request *r = fixture_add(&f, 10, 50);
    fixture_plan(&f);
    fixture_expect(&f, 0, r, 0, 10, true);
    fixture_commit(&f, 7);
    guess(r, 20, 21, 22);
    fixture_plan(&f);
    fixture_expect(&f, 0, r, 10, 4, true);
    assert_int_equal(f.plan.entries[0].n_draft, 3);
    assert_int_equal(f.plan.n_draw, 4);
    commit_drawn(&f, 20, 21, 30, 31);
    assert_int_equal(r->n_token, 14);
    assert_int_equal(r->n_computed, 13);
    assert_int_equal(r->n_draft, 0);
    const int32_t want[] = {7, 20, 21, 30};
    assert_memory_equal(r->ids + 10, want, sizeof want);
    guess(r, 20, 21, 22);
    fixture_plan(&f);
    commit_drawn(&f, 19, 21, 22, 23);
    assert_int_equal(r->n_token, 15);
    guess(r, 20, 21, 22);
    fixture_plan(&f);
    commit_drawn(&f, 20, 21, 22, 23);
    assert_int_equal(r->n_token, 19);
    assert_int_equal(r->ids[18], 23);
    fixture_plan(&f); /* no draft: one token as ever */
    fixture_expect(&f, 0, r, 18, 1, true);
    fixture_commit(&f, STOP_ID);
    fixture_close(&f);
}

static void a_stop_among_the_drafts_ends_it_there(void **state)
{
    (void)state;
    struct sched_fixture f;
    fixture_open_more(&f, 8, 64, 4, 3);
    struct request *r = fixture_add(&f, 10, 50);
    fixture_plan(&f);
    fixture_commit(&f, 7);
    guess(r, 20, STOP_ID, 22);
    fixture_plan(&f);
    commit_drawn(&f, 20, STOP_ID, 22, 23);
    assert_int_equal(r->finish, REQUEST_FINISH_STOP);
    assert_int_equal(r->n_token, 13);
    struct request *s = fixture_add(&f, 10, 5);
    fixture_plan(&f);
    fixture_commit(&f, 7);
    guess(s, 20, 21, 22);
    assert_int_equal(request_draft_room(s), 3);
    fixture_plan(&f);
    commit_drawn(&f, 20, 21, 22, 23);
    assert_int_equal(s->finish, REQUEST_FINISH_LENGTH);
    assert_int_equal(s->n_token, s->max_token);
    assert_int_equal(page_pool_n_available(f.pool), 8);
    fixture_close(&f);
}

static void drafts_take_what_is_left_of_the_budget(void **state)
{
    (void)state;
    struct sched_fixture f;
    fixture_open_more(&f, 8, 6, 4, 3);
    struct request *a = fixture_add(&f, 2, 50);
    struct request *b = fixture_add(&f, 2, 50);
    struct request *c = fixture_add(&f, 2, 50);
    fixture_plan(&f);
    fixture_commit(&f, 7);
    guess(a, 20, 21, 22);
    guess(b, 20, 21, 22);
    guess(c, 20, 21, 22);
    fixture_plan(&f); /* 6 tokens: one for each, and three drafts of the oldest */
    fixture_expect(&f, 0, a, 2, 4, true);
    fixture_expect(&f, 1, b, 2, 1, true);
    fixture_expect(&f, 2, c, 2, 1, true);
    assert_int_equal(f.plan.n_draw, 6);
    sched_abort(f.s);
    fixture_close(&f);
}

/* Three pages: a's drafts take the last one, and only a preemption would give b another. */
static void drafts_preempt_nobody(void **state)
{
    (void)state;
    struct sched_fixture f;
    fixture_open_more(&f, 3, 256, 4, 3);
    struct request *a = fixture_add(&f, 60, 60);
    struct request *b = fixture_add(&f, 62, 60);
    f.jobs[1].ids[0] = 3;
    fixture_plan(&f);
    fixture_commit(&f, 7);
    guess(a, 20, 21, 22);
    guess(b, 20, 21, 22);
    fixture_plan(&f);
    fixture_expect(&f, 0, a, 60, 4, true);
    assert_int_equal(a->n_page, 2);        /* room for the drafts after these */
    fixture_expect(&f, 1, b, 62, 2, true); /* one draft fits into the page it has */
    assert_int_equal(f.plan.entries[1].n_draft, 1);
    assert_int_equal(sched_totals(f.s)->n_preempted, 0);
    sched_abort(f.s);
    fixture_close(&f);
}

/* ---- logits of prompts ---- */

static struct request *add_scored(struct sched_fixture *f, uint32_t n_prompt, uint32_t max_output)
{
    struct request *r = fixture_add(f, n_prompt, max_output);
    r->n_to_score = n_prompt - 1;
    return r;
}

static void expect_score(const struct sched_fixture *f, uint32_t i, uint32_t n_score)
{
    assert_int_equal(f->plan.entries[i].n_score, n_score);
}

static void scored_prompts_share_the_rows_of_a_step(void **state)
{
    (void)state;
    struct sched_fixture f;
    fixture_open(&f, 16, 256, 4);
    struct request *a = add_scored(&f, 40, 5);
    struct request *b = add_scored(&f, 30, 5);
    struct request *c = fixture_add(&f, 50, 5);
    fixture_plan(&f);
    fixture_expect(&f, 0, a, 0, 32, false);
    expect_score(&f, 0, MAX_SCORE);
    assert_int_equal(f.plan.n_entry, 1); /* no row is left for b, and c does not overtake it */
    assert_int_equal(f.plan.n_score, MAX_SCORE);
    fixture_commit(&f, 7);
    assert_int_equal(request_n_scored(a), 32);
    fixture_plan(&f);
    fixture_expect(&f, 0, a, 32, 8, true); /* the last token's logits are those of the draw */
    expect_score(&f, 0, 7);
    fixture_expect(&f, 1, b, 0, 25, false);
    expect_score(&f, 1, 25);
    fixture_expect(&f, 2, c, 0, 50, true);
    expect_score(&f, 2, 0);
    assert_int_equal(f.plan.n_draw, 2);
    fixture_commit(&f, 7);
    fixture_plan(&f);
    fixture_expect(&f, 1, b, 25, 5, true);
    expect_score(&f, 1, 4);
    fixture_commit(&f, STOP_ID);
    fixture_close(&f);
}

static void a_scored_prompt_uses_no_cached_page_until_it_is_scored(void **state)
{
    (void)state;
    struct sched_fixture f;
    fixture_open_cached(&f, 8, 512, 4);
    (void)fixture_add(&f, 130, 5);
    fixture_plan(&f);
    fixture_commit(&f, STOP_ID);
    struct request *r = add_scored(&f, 130, 200);
    for (uint32_t i = 0; i < 4; i++) {
        fixture_plan(&f);
        fixture_expect(&f, 0, r, i * MAX_SCORE, MAX_SCORE, false);
        expect_score(&f, 0, MAX_SCORE);
        fixture_commit(&f, 7);
    }
    fixture_plan(&f);
    fixture_expect(&f, 0, r, 128, 2, true);
    expect_score(&f, 0, 1);
    fixture_commit(&f, 7);
    assert_int_equal(r->n_cached, 0);
    assert_int_equal(sched_totals(f.s)->n_query_token, 130); /* the first one's alone */
    struct request *again = fixture_add(&f, 130, 5);
    fixture_plan(&f);
    fixture_expect(&f, 1, again, 128, 2, true);
    fixture_commit(&f, STOP_ID);
    fixture_close(&f);
}

/* What has been scored before a preemption is computed again and not scored twice. Nine pages: a
 * has one and grows, b has seven and loses them when a needs its third. */
static void a_preempted_prompt_is_scored_once(void **state)
{
    (void)state;
    struct sched_fixture f;
    fixture_open(&f, 9, 5, 4);
    struct request *a = fixture_add(&f, 63, 100);
    struct request *b = add_scored(&f, 400, 20);
    uint32_t n_score = 0;
    uint32_t n_before = 0;
    while (b->state != REQUEST_FINISHED) {
        fixture_plan(&f);
        for (uint32_t i = 0; i < f.plan.n_entry; i++) {
            const struct plan_entry *e = &f.plan.entries[i];
            if (e->request != b) continue;
            n_score += e->n_score;
            if (b->n_preempted == 0) n_before += e->n_score;
            if (e->first + e->n_token <= n_before && b->n_preempted) expect_score(&f, i, 0);
        }
        fixture_commit(&f, a->n_token == 130 || a->state == REQUEST_FINISHED ? STOP_ID : 7);
    }
    assert_int_equal(b->n_preempted, 1);
    assert_true(n_before > 200 && n_before < 399);
    assert_int_equal(n_score, 399);
    fixture_close(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(drafts_count_up_to_the_first_wrong_one),
        cmocka_unit_test(a_stop_among_the_drafts_ends_it_there),
        cmocka_unit_test(drafts_take_what_is_left_of_the_budget),
        cmocka_unit_test(drafts_preempt_nobody),
        cmocka_unit_test(scored_prompts_share_the_rows_of_a_step),
        cmocka_unit_test(a_scored_prompt_uses_no_cached_page_until_it_is_scored),
        cmocka_unit_test(a_preempted_prompt_is_scored_once),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
