/* test_sched.c - plans, step by step, for small cases worked out by hand: who runs, with which
 * pages */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "base/mem.h"
#include "support/sched_fixture.h"

static void zero_sizes_are_refused(void **state)
{
    (void)state;
    struct page_pool *pool = NULL;
    assert_int_equal(page_pool_create(&pool, 1, NULL), FATHOM_OK);
    struct sched *s = NULL;
    fathom_diag d = {{0}};
    assert_int_equal(
        sched_create(&s, &(struct sched_config){0, 1, 0, 1, 1, 1, false, 0, 0}, pool, NULL, &d),
        FATHOM_EINVAL);
    assert_non_null(strstr(d.text, "max_num_batched_tokens"));
    fathom_diag d2 = {{0}};
    assert_int_equal(
        sched_create(&s, &(struct sched_config){1, 0, 0, 1, 1, 1, false, 0, 0}, pool, NULL, &d2),
        FATHOM_EINVAL);
    assert_non_null(strstr(d2.text, "max_num_seqs"));
    fathom_diag d3 = {{0}};
    assert_int_equal(
        sched_create(&s, &(struct sched_config){1, 1, 0, 0, 1, 1, false, 0, 0}, pool, NULL, &d3),
        FATHOM_EINVAL);
    assert_non_null(strstr(d3.text, "max_score"));
    fathom_diag d4 = {{0}};
    assert_int_equal(
        sched_create(&s, &(struct sched_config){1, 1, 0, 1, 0, 1, false, 0, 0}, pool, NULL, &d4),
        FATHOM_EINVAL);
    assert_non_null(strstr(d4.text, "max_flight"));
    assert_null(s);
    for (long n = 0; n < 3; n++) {
        mem_fail_after(n);
        assert_int_equal(sched_create(&s, &(struct sched_config){1, 1, 0, 1, 1, 1, false, 0, 0},
                                      pool, NULL, NULL),
                         FATHOM_ENOMEM);
        assert_null(s);
    }
    struct plan p;
    mem_fail_after(0);
    assert_int_equal(plan_init(&p, 4), FATHOM_ENOMEM);
    mem_fail_after(-1);
    plan_fini(&p);
    sched_destroy(NULL);
    page_pool_destroy(pool);
}

static void nothing_to_do_gives_an_empty_plan(void **state)
{
    (void)state;
    struct sched_fixture f;
    fixture_open(&f, 2, 16, 2);
    fixture_plan(&f);
    assert_int_equal(f.plan.n_entry, 0);
    assert_null(sched_any(f.s));
    fixture_close(&f);
}

static void one_request_from_prompt_to_stop(void **state)
{
    (void)state;
    struct sched_fixture f;
    fixture_open(&f, 2, 16, 2);
    struct request *r = fixture_add(&f, 5, 10);
    fixture_plan(&f);
    assert_int_equal(f.plan.n_entry, 1);
    assert_int_equal(f.plan.n_draw, 1);
    fixture_expect(&f, 0, r, 0, 5, true);
    assert_int_equal(page_pool_n_free(f.pool), 1);
    fixture_commit(&f, 7);
    assert_int_equal(r->scheduled_us, 1);
    assert_int_equal(r->first_us, 2);
    fixture_plan(&f);
    fixture_expect(&f, 0, r, 5, 1, true);
    assert_int_equal(f.plan.max_context, 6);
    fixture_commit(&f, STOP_ID);
    assert_int_equal(r->state, REQUEST_FINISHED);
    assert_int_equal(r->finish, REQUEST_FINISH_STOP);
    assert_int_equal(request_n_output(r), 2);
    assert_int_equal(page_pool_n_free(f.pool), 2);
    assert_int_equal(sched_n_running(f.s), 0);
    fixture_close(&f);
}

static void a_long_prompt_comes_in_chunks_and_draws_at_its_end(void **state)
{
    (void)state;
    struct sched_fixture f;
    fixture_open(&f, 2, 16, 2);
    struct request *r = fixture_add(&f, 40, 3);
    const uint32_t first[] = {0, 16, 32};
    for (int i = 0; i < 3; i++) {
        fixture_plan(&f);
        assert_int_equal(f.plan.n_entry, 1);
        fixture_expect(&f, 0, r, first[i], i < 2 ? 16 : 8, i == 2);
        fixture_commit(&f, 7);
    }
    assert_int_equal(request_n_output(r), 1);
    fixture_close(&f);
}

static void decodes_go_before_an_older_prefill(void **state)
{
    (void)state;
    struct sched_fixture f;
    fixture_open(&f, 8, 10, 4);
    struct request *a = fixture_add(&f, 1, 20);
    fixture_plan(&f);
    fixture_commit(&f, 7); /* a decodes from here on */
    struct request *b = fixture_add(&f, 100, 4);
    struct request *c = fixture_add(&f, 1, 20);
    fixture_plan(&f);
    fixture_expect(&f, 0, a, 1, 1, true);
    fixture_expect(&f, 1, b, 0, 9, false); /* the budget is used up: c waits */
    assert_int_equal(f.plan.n_entry, 2);
    assert_int_equal(sched_n_waiting(f.s), 1);
    for (uint32_t done = 9; done < 99; done += 9) {
        fixture_commit(&f, 7);
        fixture_plan(&f);
        fixture_expect(&f, 1, b, done, 9, false);
    }
    fixture_commit(&f, 7);
    fixture_plan(&f);
    fixture_expect(&f, 0, a, 12, 1, true);
    fixture_expect(&f, 1, b, 99, 1, true);
    fixture_expect(&f, 2, c, 0, 1, true);
    fixture_commit(&f, 7);
    fixture_close(&f);
}

static void the_oldest_gets_a_token_even_when_decodes_fill_the_budget(void **state)
{
    (void)state;
    struct sched_fixture f;
    fixture_open(&f, 8, 3, 4);
    struct request *a = fixture_add(&f, 8, 4);
    fixture_plan(&f);
    fixture_commit(&f, 7);
    struct request *b = fixture_add(&f, 1, 20);
    struct request *c = fixture_add(&f, 1, 20);
    fixture_plan(&f); /* a takes the budget: b and c wait */
    fixture_expect(&f, 0, a, 3, 3, false);
    fixture_commit(&f, 7);
    fixture_plan(&f);
    fixture_expect(&f, 0, a, 6, 2, true);
    fixture_expect(&f, 1, b, 0, 1, true);
    fixture_commit(&f, 7);
    fixture_plan(&f);
    fixture_expect(&f, 2, c, 0, 1, true);
    fixture_commit(&f, 7);
    fixture_close(&f);
}

static void max_num_seqs_bounds_the_running(void **state)
{
    (void)state;
    struct sched_fixture f;
    fixture_open(&f, 8, 64, 2);
    struct request *a = fixture_add(&f, 4, 1);
    fixture_add(&f, 4, 4);
    struct request *c = fixture_add(&f, 4, 4);
    fixture_plan(&f);
    assert_int_equal(f.plan.n_entry, 2);
    fixture_commit(&f, 7);
    assert_int_equal(a->finish, REQUEST_FINISH_LENGTH);
    fixture_plan(&f);
    assert_int_equal(f.plan.n_entry, 2);
    fixture_expect(&f, 1, c, 0, 4, true);
    fixture_commit(&f, 7);
    fixture_close(&f);
}

static void admission_leaves_a_page_for_each_running(void **state)
{
    (void)state;
    struct sched_fixture f;
    fixture_open(&f, 4, 256, 4);
    fixture_add(&f, 65, 4); /* 2 of 4 pages */
    struct request *b = fixture_add(&f, 65, 4);
    struct request *c = fixture_add(&f, 4, 4);
    fixture_plan(&f);
    assert_int_equal(f.plan.n_entry, 1); /* b would leave none; c does not overtake it */
    assert_int_equal(b->state, REQUEST_WAITING);
    assert_int_equal(c->state, REQUEST_WAITING);
    fixture_commit(&f, STOP_ID);
    fixture_plan(&f);
    assert_int_equal(f.plan.n_entry, 2);
    fixture_commit(&f, 7);
    fixture_close(&f);
}

static void the_youngest_is_preempted_and_resumes_with_its_output(void **state)
{
    (void)state;
    struct sched_fixture f;
    fixture_open(&f, 3, 256, 4);
    struct request *a =
        fixture_add(&f, 64, 80); /* its next token begins a page, and so does the 65th more */
    struct request *b = fixture_add(&f, 4, 4);
    fixture_plan(&f);
    fixture_commit(&f, 7);
    assert_int_equal(page_pool_n_free(f.pool), 1);
    fixture_plan(&f);
    fixture_expect(&f, 0, a, 64, 1, true);
    fixture_expect(&f, 1, b, 4, 1, true);
    assert_int_equal(page_pool_n_free(f.pool), 0);
    fixture_commit(&f, 9);
    b->max_token = 256; /* b runs on until a wants its page */
    for (int i = 0; i < 58; i++) {
        fixture_plan(&f);
        assert_int_equal(f.plan.n_entry, 2);
        fixture_commit(&f, 9);
    }
    assert_int_equal(b->n_computed, 63);
    fixture_plan(&f);
    fixture_commit(&f, 9);
    fixture_plan(&f); /* b wants a second page, and only a, which is older, holds others */
    assert_int_equal(f.plan.n_entry, 1);
    assert_int_equal(b->state, REQUEST_RUNNING);
    fixture_commit(&f, 9);
    while (a->n_computed < 128) {
        fixture_plan(&f);
        fixture_commit(&f, 9);
    }
    fixture_plan(&f);
    assert_int_equal(f.plan.n_entry, 1);
    fixture_expect(&f, 0, a, 128, 1, true);
    assert_int_equal(b->state, REQUEST_WAITING);
    assert_int_equal(b->n_preempted, 1);
    assert_int_equal(sched_totals(f.s)->n_preempted, 1);
    assert_int_equal(b->n_token, 65);
    fixture_commit(&f, STOP_ID);
    fixture_plan(&f);
    fixture_expect(&f, 0, b, 0, 65, true);
    fixture_commit(&f, STOP_ID);
    assert_int_equal(page_pool_n_free(f.pool), 3);
    fixture_close(&f);
}

static void cancel_gives_pages_back_in_either_state(void **state)
{
    (void)state;
    struct sched_fixture f;
    fixture_open(&f, 2, 16, 1);
    struct request *a = fixture_add(&f, 20, 4);
    struct request *b = fixture_add(&f, 20, 4);
    fixture_plan(&f);
    fixture_commit(&f, 7);
    sched_end(f.s, b, REQUEST_FINISH_CANCEL, 50);
    sched_check(f.s);
    assert_int_equal(sched_n_waiting(f.s), 0);
    sched_end(f.s, a, REQUEST_FINISH_CANCEL, 51);
    sched_check(f.s);
    assert_int_equal(page_pool_n_free(f.pool), 2);
    assert_int_equal(a->finished_us, 51);
    assert_null(sched_any(f.s));
    fixture_close(&f);
}

/* ---- with a prefix cache ---- */

static void expect_found(const struct sched_fixture *f, uint64_t n_hit, uint64_t n_query)
{
    const struct sched_totals *t = sched_totals(f->s);
    assert_int_equal(t->n_hit_token, n_hit);
    assert_int_equal(t->n_query_token, n_query);
}

static void what_was_computed_is_found_and_goes_on_at_once(void **state)
{
    (void)state;
    struct sched_fixture f;
    fixture_open_cached(&f, 8, 256, 4);
    struct request *a = fixture_add(&f, 200, 4);
    fixture_plan(&f);
    fixture_commit(&f, STOP_ID);
    assert_int_equal(page_pool_n_cached(f.pool), 3);
    assert_int_equal(a->n_cached, 0);
    struct request *b = fixture_add(&f, 200, 4);
    struct request *c =
        fixture_add(&f, 192, 4); /* its last page is found, but then nothing would draw */
    fixture_plan(&f);
    fixture_expect(&f, 0, b, 192, 8, true);
    fixture_expect(&f, 1, c, 128, 64, true);
    assert_int_equal(b->n_cached, 192);
    assert_int_equal(c->n_cached, 128);
    expect_found(&f, 320, 592);
    assert_ptr_not_equal(b->pages[2], c->pages[2]);
    fixture_commit(&f, 7);
    assert_int_equal(b->pages[2], c->pages[2]); /* c's own gave way to the one that was there */
    assert_int_equal(page_pool_n_holder(f.pool, b->pages[2]), 2);
    fixture_plan(&f);
    fixture_commit(&f, STOP_ID);
    assert_int_equal(page_pool_n_available(f.pool), 8);
    fixture_close(&f);
}

static void output_is_found_too(void **state)
{
    (void)state;
    struct sched_fixture f;
    fixture_open_cached(&f, 8, 256, 4);
    struct request *a = fixture_add(&f, 60, 10);
    for (int i = 0; i < 10; i++) {
        fixture_plan(&f);
        fixture_commit(&f, 7);
    }
    assert_int_equal(a->finish, REQUEST_FINISH_LENGTH);
    assert_int_equal(prefix_n_page(f.prefix), 1);
    struct sched_job *next = &f.jobs[f.n_job];
    for (uint32_t i = 0; i < 70; i++) next->ids[i] = a->ids[i];
    fixture_add(&f, 75, 4);
    fixture_plan(&f);
    fixture_expect(&f, 0, &next->r, 64, 11, true);
    fixture_commit(&f, STOP_ID);
    fixture_close(&f);
}

/* One that was drawn elsewhere and goes on here. */
static void output_that_is_given_is_no_hit_of_the_prompt(void **state)
{
    (void)state;
    struct sched_fixture f;
    fixture_open_cached(&f, 8, 256, 4);
    struct request *a = fixture_add(&f, 70, 130);
    while (a->state != REQUEST_FINISHED) {
        fixture_plan(&f);
        fixture_commit(&f, 7);
    }
    struct sched_job *next = &f.jobs[f.n_job++];
    for (uint32_t i = 0; i < 200; i++) next->ids[i] = a->ids[i];
    next->r = (struct request){
        .ids = next->ids, .pages = next->pages, .n_prompt = 70, .n_given = 128, .max_token = 200};
    sched_add(f.s, &next->r);
    fixture_plan(&f);
    fixture_expect(&f, 0, &next->r, 192, 6, true);
    assert_int_equal(next->r.n_cached, 64);
    expect_found(&f, 64, 140);
    fixture_commit(&f, 7);
    sched_end(f.s, &next->r, REQUEST_FINISH_CANCEL, f.now_us);
    fixture_close(&f);
}

static void a_preempted_request_finds_its_own_pages(void **state)
{
    (void)state;
    struct sched_fixture f;
    fixture_open_cached(&f, 5, 256, 4);
    struct request *a = fixture_add(&f, 120, 100);
    struct request *b = fixture_add(&f, 60, 100);
    f.jobs[1].ids[0] = 3; /* unlike a */
    for (fixture_plan(&f); b->n_preempted == 0; fixture_plan(&f)) fixture_commit(&f, 7);
    assert_int_equal(b->n_token, 129); /* a took the second of its two full pages */
    fixture_commit(&f, STOP_ID);
    assert_int_equal(a->state, REQUEST_FINISHED);
    fixture_plan(&f);
    fixture_expect(&f, 0, b, 64, 65, true);
    assert_int_equal(b->n_cached, 0);
    expect_found(&f, 0, 180);
    fixture_commit(&f, STOP_ID);
    fixture_close(&f);
}

static void cached_pages_make_room(void **state)
{
    (void)state;
    struct sched_fixture f;
    fixture_open_cached(&f, 4, 256, 4);
    struct request *a = fixture_add(&f, 250, 4);
    fixture_plan(&f);
    fixture_commit(&f, STOP_ID);
    assert_int_equal(page_pool_n_cached(f.pool), 3);
    f.jobs[1].ids[0] = 3;
    struct request *b = fixture_add(&f, 140, 4); /* 3 pages: the free one and a's last two */
    fixture_plan(&f);
    fixture_expect(&f, 0, b, 0, 140, true);
    assert_int_equal(prefix_n_page(f.prefix), 1);
    fixture_commit(&f, STOP_ID);
    struct request *again = fixture_add(&f, 250, 4);
    fixture_plan(&f);
    fixture_expect(&f, 0, again, 64, 186, true);
    assert_int_equal(a->n_cached, 0);
    fixture_commit(&f, STOP_ID);
    fixture_close(&f);
}

/* A page that is found and CACHED is one less to take. */
static void admission_counts_found_pages_that_nobody_holds(void **state)
{
    (void)state;
    struct sched_fixture f;
    fixture_open_cached(&f, 4, 256, 4);
    fixture_add(&f, 130, 4);
    fixture_plan(&f);
    fixture_commit(&f, STOP_ID);
    f.jobs[1].ids[0] = 3;
    fixture_add(&f, 60, 80);
    fixture_plan(&f);
    fixture_commit(&f, 7); /* holds 1 of 4 pages; 2 are cached */
    struct request *c = fixture_add(&f, 130, 4);
    fixture_plan(&f); /* c would take all three and leave none to grow into */
    assert_int_equal(c->state, REQUEST_WAITING);
    fixture_commit(&f, STOP_ID);
    fixture_plan(&f);
    fixture_expect(&f, 0, c, 128, 2, true);
    fixture_commit(&f, STOP_ID);
    fixture_close(&f);
}

static void lower_priority_numbers_go_first_and_keep_their_pages(void **state)
{
    (void)state;
    struct sched_fixture f;
    fixture_open(&f, 4, 64, 2);
    struct request *late = fixture_add(&f, 10, 100);
    struct request *plain = fixture_add(&f, 10, 100);
    struct sched_job *j = &f.jobs[f.n_job++];
    j->r = (struct request){.id = 9,
                            .ids = j->ids,
                            .pages = j->pages,
                            .n_prompt = 10,
                            .max_token = 150,
                            .priority = -3};
    sched_add(f.s, &j->r);
    assert_ptr_equal(sched_first_waiting(f.s), &j->r);
    fixture_plan(&f);
    assert_int_equal(f.plan.n_entry, 2);
    fixture_expect(&f, 0, &j->r, 0, 10, true);
    fixture_expect(&f, 1, late, 0, 10, true);
    fixture_commit(&f, 7);
    fixture_plan(&f); /* who came first does not matter: the urgent one leads the walk */
    fixture_expect(&f, 0, &j->r, 10, 1, true);
    fixture_commit(&f, 7);
    assert_int_equal(plain->state, REQUEST_WAITING);
    fixture_close(&f);
}

static void running_requests_leave_a_bounded_share_to_prefill(void **state)
{
    (void)state;
    struct sched_fixture f;
    fixture_open(&f, 16, 64, 4);
    sched_set_bounds(f.s, &(struct sched_bounds){3, 8, false});
    struct request *first = fixture_add(&f, 100, 10);
    fixture_plan(&f);
    fixture_expect(&f, 0, first, 0, 64, false); /* nobody decodes: all of the budget */
    fixture_commit(&f, 7);
    fixture_plan(&f);
    fixture_expect(&f, 0, first, 64, 36, true);
    fixture_commit(&f, 7);
    struct request *a = fixture_add(&f, 20, 10);
    struct request *b = fixture_add(&f, 20, 10);
    fixture_plan(&f);
    assert_int_equal(f.plan.n_entry, 2);
    fixture_expect(&f, 0, first, 100, 1, true);
    fixture_expect(&f, 1, a, 0, 8, false);
    fixture_commit(&f, 7);
    assert_int_equal(b->state, REQUEST_WAITING);
    fixture_plan(&f);
    fixture_commit(&f, 7);
    fixture_plan(&f);
    assert_int_equal(f.plan.n_entry, 3);
    fixture_expect(&f, 1, a, 16, 4, true);
    fixture_expect(&f, 2, b, 0, 4, false);
    fixture_commit(&f, 7);
    fixture_add(&f, 1, 10);
    fixture_plan(&f);
    assert_int_equal(f.plan.n_entry, 3); /* three may run */
    assert_false(sched_is_short_of_pages(f.s));
    fixture_commit(&f, 7);
    fixture_close(&f);
}

/* A preempted request computes its prompt as a prompt and its answer as an answer. */
static void a_chunk_ends_where_the_answer_begins(void **state)
{
    (void)state;
    struct sched_fixture f;
    fixture_open_form(&f, 3, 200, 4);
    struct request *a = fixture_add(&f, 60, 80);
    struct request *b = fixture_add(&f, 50, 60);
    fixture_plan(&f);
    assert_true(f.plan.entries[0].is_prompt && f.plan.entries[1].is_prompt);
    for (int i = 0; i < 80; i++) { /* b stands still at its page's end, until a takes that too */
        fixture_commit(&f, 7);
        fixture_plan(&f);
        if (b->n_preempted > 0) break;
        assert_false(f.plan.entries[f.plan.n_entry - 1].is_prompt);
    }
    assert_int_equal(b->n_preempted, 1);
    fixture_commit(&f, 7);
    sched_end(f.s, a, REQUEST_FINISH_CANCEL, 1);
    fixture_plan(&f);
    fixture_expect(&f, 0, b, 0, 50, false);
    assert_true(f.plan.entries[0].is_prompt);
    fixture_commit(&f, 7);
    fixture_plan(&f);
    fixture_expect(&f, 0, b, 50, request_n_output(b), true);
    assert_false(f.plan.entries[0].is_prompt);
    fixture_commit(&f, 7);
    fixture_close(&f);
}

/* Draws are counted in that order. */
static void answers_come_first_in_a_plan(void **state)
{
    (void)state;
    struct sched_fixture f;
    fixture_open_form(&f, 8, 200, 4);
    struct request *a = fixture_add(&f, MAX_SCORE + 8, 80);
    a->n_to_score = MAX_SCORE + 7; /* so it takes two steps, and leaves room in the first */
    struct request *b = fixture_add(&f, 1, 20);
    fixture_plan(&f);
    fixture_expect(&f, 0, a, 0, MAX_SCORE, false);
    fixture_expect(&f, 1, b, 0, 1, true);
    assert_true(f.plan.entries[0].is_prompt && f.plan.entries[1].is_prompt);
    fixture_commit(&f, 7);
    fixture_plan(&f);
    fixture_expect(&f, 0, b, 1, 1, true);
    fixture_expect(&f, 1, a, MAX_SCORE, 8, true);
    assert_true(f.plan.entries[1].is_prompt && !f.plan.entries[0].is_prompt);
    assert_int_equal(f.plan.entries[0].i_draw, 0);
    assert_int_equal(f.plan.entries[1].i_draw, 1);
    fixture_commit(&f, 7);
    fixture_close(&f);
}

static void dump_shows_requests_and_pages(void **state)
{
    (void)state;
    struct sched_fixture f;
    struct buf b = {0};
    fixture_open(&f, 2, 16, 1);
    fixture_add(&f, 20, 4);
    fixture_add(&f, 20, 4);
    fixture_plan(&f);
    assert_int_equal(sched_dump(f.s, &b), FATHOM_OK);
    assert_non_null(strstr(buf_str(&b),
                           "scheduler: 1 running, 0 fetching, 1 waiting, 1 plans under "
                           "way, 0 preempted, 0 of 0 prompt tokens found\n"
                           "  plan 0: entries=1 tokens=16 draws=0\n"));
    assert_non_null(strstr(buf_str(&b),
                           "request 1 RUNNING prompt=20 tokens=20/24 computed=0 drafts=0 "
                           "planned=16 pages=1"));
    assert_non_null(strstr(buf_str(&b), "request 2 WAITING"));
    assert_non_null(strstr(buf_str(&b), "page 0 HELD"));
    buf_free(&b);
    fixture_commit(&f, 7);
    fixture_close(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(zero_sizes_are_refused),
        cmocka_unit_test(nothing_to_do_gives_an_empty_plan),
        cmocka_unit_test(one_request_from_prompt_to_stop),
        cmocka_unit_test(a_long_prompt_comes_in_chunks_and_draws_at_its_end),
        cmocka_unit_test(decodes_go_before_an_older_prefill),
        cmocka_unit_test(the_oldest_gets_a_token_even_when_decodes_fill_the_budget),
        cmocka_unit_test(max_num_seqs_bounds_the_running),
        cmocka_unit_test(admission_leaves_a_page_for_each_running),
        cmocka_unit_test(the_youngest_is_preempted_and_resumes_with_its_output),
        cmocka_unit_test(cancel_gives_pages_back_in_either_state),
        cmocka_unit_test(what_was_computed_is_found_and_goes_on_at_once),
        cmocka_unit_test(output_is_found_too),
        cmocka_unit_test(output_that_is_given_is_no_hit_of_the_prompt),
        cmocka_unit_test(a_preempted_request_finds_its_own_pages),
        cmocka_unit_test(cached_pages_make_room),
        cmocka_unit_test(admission_counts_found_pages_that_nobody_holds),
        cmocka_unit_test(lower_priority_numbers_go_first_and_keep_their_pages),
        cmocka_unit_test(running_requests_leave_a_bounded_share_to_prefill),
        cmocka_unit_test(a_chunk_ends_where_the_answer_begins),
        cmocka_unit_test(answers_come_first_in_a_plan),
        cmocka_unit_test(dump_shows_requests_and_pages),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
