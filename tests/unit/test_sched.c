/* Plans, step by step, for small cases worked out by hand. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "base/mem.h"
#include "sched/sched.h"

enum { MAX_REQUESTS = 8, MAX_TOKENS = 1024, MAX_SCORE = 32, STOP_ID = 1 };

struct job {
    struct request r;
    int32_t ids[MAX_TOKENS];
    uint32_t pages[MAX_TOKENS / KV_PAGE_TOKENS];
};

struct fixture {
    struct page_pool *pool;
    struct prefix_cache *prefix; /* NULL: none */
    struct sched *s;
    struct plan plan;
    struct job jobs[MAX_REQUESTS];
    uint32_t n_job;
    uint32_t max_draft;
    uint64_t now_us;
};

static const int32_t stop_ids[] = {STOP_ID};

static void open_fixture(struct fixture *f, uint32_t n_page, uint32_t budget, uint32_t max_num_seqs)
{
    memset(f, 0, sizeof *f);
    struct sched_config c = {budget, max_num_seqs, f->max_draft, MAX_SCORE};
    assert_int_equal(page_pool_create(&f->pool, n_page, NULL), FATHOM_OK);
    assert_int_equal(sched_create(&f->s, &c, f->pool, f->prefix, NULL), FATHOM_OK);
    assert_int_equal(plan_init(&f->plan, max_num_seqs), FATHOM_OK);
}

/* With a prefix cache, and drafts if max_draft is not 0. */
static void open_more(struct fixture *f, uint32_t n_page, uint32_t budget, uint32_t max_num_seqs,
                      uint32_t max_draft)
{
    open_fixture(f, n_page, budget, max_num_seqs);
    f->max_draft = max_draft;
    struct sched_config c = {budget, max_num_seqs, f->max_draft, MAX_SCORE};
    sched_destroy(f->s);
    assert_int_equal(prefix_create(&f->prefix, f->pool, max_draft > 0, NULL), FATHOM_OK);
    assert_int_equal(sched_create(&f->s, &c, f->pool, f->prefix, NULL), FATHOM_OK);
}

static void open_with_prefix(struct fixture *f, uint32_t n_page, uint32_t budget,
                             uint32_t max_num_seqs)
{
    open_more(f, n_page, budget, max_num_seqs, 0);
}

static void close_fixture(struct fixture *f)
{
    sched_check(f->s);
    sched_destroy(f->s);
    prefix_destroy(f->prefix);
    page_pool_destroy(f->pool);
    plan_fini(&f->plan);
}

static struct request *add(struct fixture *f, uint32_t n_prompt, uint32_t max_output)
{
    struct job *j = &f->jobs[f->n_job++];
    j->r = (struct request){.id = f->n_job,
                            .ids = j->ids,
                            .pages = j->pages,
                            .stop_ids = stop_ids,
                            .n_stop_id = 1,
                            .n_prompt = n_prompt,
                            .max_token = n_prompt + max_output};
    sched_add(f->s, &j->r);
    sched_check(f->s);
    return &j->r;
}

static void plan(struct fixture *f)
{
    sched_plan(f->s, ++f->now_us, &f->plan);
    sched_check(f->s);
}

static void commit(struct fixture *f, int32_t id)
{
    int32_t drawn[MAX_REQUESTS];
    for (int i = 0; i < MAX_REQUESTS; i++) drawn[i] = id;
    sched_commit(f->s, &f->plan, drawn, ++f->now_us);
    sched_check(f->s);
}

static void expect_entry(const struct fixture *f, uint32_t i, const struct request *r,
                         uint32_t first, uint32_t n_token, bool draws)
{
    assert_true(i < f->plan.n_entry);
    assert_ptr_equal(f->plan.entries[i].request, r);
    assert_int_equal(f->plan.entries[i].first, first);
    assert_int_equal(f->plan.entries[i].n_token, n_token);
    assert_int_equal(f->plan.entries[i].draws, draws);
}

static void zero_sizes_are_refused(void **state)
{
    (void)state;
    struct page_pool *pool = NULL;
    assert_int_equal(page_pool_create(&pool, 1, NULL), FATHOM_OK);
    struct sched *s = NULL;
    fathom_diag d = {{0}};
    assert_int_equal(sched_create(&s, &(struct sched_config){0, 1, 0, 1}, pool, NULL, &d),
                     FATHOM_EINVAL);
    assert_non_null(strstr(d.text, "max_num_batched_tokens"));
    fathom_diag d2 = {{0}};
    assert_int_equal(sched_create(&s, &(struct sched_config){1, 0, 0, 1}, pool, NULL, &d2),
                     FATHOM_EINVAL);
    assert_non_null(strstr(d2.text, "max_num_seqs"));
    fathom_diag d3 = {{0}};
    assert_int_equal(sched_create(&s, &(struct sched_config){1, 1, 0, 0}, pool, NULL, &d3),
                     FATHOM_EINVAL);
    assert_non_null(strstr(d3.text, "max_score"));
    assert_null(s);
    for (long n = 0; n < 2; n++) {
        mem_fail_after(n);
        assert_int_equal(sched_create(&s, &(struct sched_config){1, 1, 0, 1}, pool, NULL, NULL),
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
    struct fixture f;
    open_fixture(&f, 2, 16, 2);
    plan(&f);
    assert_int_equal(f.plan.n_entry, 0);
    assert_null(sched_any(f.s));
    close_fixture(&f);
}

static void one_request_from_prompt_to_stop(void **state)
{
    (void)state;
    struct fixture f;
    open_fixture(&f, 2, 16, 2);
    struct request *r = add(&f, 5, 10);
    plan(&f);
    assert_int_equal(f.plan.n_entry, 1);
    assert_int_equal(f.plan.n_draw, 1);
    expect_entry(&f, 0, r, 0, 5, true);
    assert_int_equal(page_pool_n_free(f.pool), 1);
    commit(&f, 7);
    assert_int_equal(r->scheduled_us, 1);
    assert_int_equal(r->first_us, 2);
    plan(&f);
    expect_entry(&f, 0, r, 5, 1, true);
    assert_int_equal(f.plan.max_context, 6);
    commit(&f, STOP_ID);
    assert_int_equal(r->state, REQUEST_FINISHED);
    assert_int_equal(r->finish, REQUEST_FINISH_STOP);
    assert_int_equal(request_n_output(r), 2);
    assert_int_equal(page_pool_n_free(f.pool), 2);
    assert_int_equal(sched_n_running(f.s), 0);
    close_fixture(&f);
}

static void a_long_prompt_comes_in_chunks_and_draws_at_its_end(void **state)
{
    (void)state;
    struct fixture f;
    open_fixture(&f, 2, 16, 2);
    struct request *r = add(&f, 40, 3);
    const uint32_t first[] = {0, 16, 32};
    for (int i = 0; i < 3; i++) {
        plan(&f);
        assert_int_equal(f.plan.n_entry, 1);
        expect_entry(&f, 0, r, first[i], i < 2 ? 16 : 8, i == 2);
        commit(&f, 7);
    }
    assert_int_equal(request_n_output(r), 1);
    close_fixture(&f);
}

static void decodes_go_before_an_older_prefill(void **state)
{
    (void)state;
    struct fixture f;
    open_fixture(&f, 8, 10, 4);
    struct request *a = add(&f, 1, 20);
    plan(&f);
    commit(&f, 7); /* a decodes from here on */
    struct request *b = add(&f, 100, 4);
    struct request *c = add(&f, 1, 20);
    plan(&f);
    expect_entry(&f, 0, a, 1, 1, true);
    expect_entry(&f, 1, b, 0, 9, false); /* the budget is used up: c waits */
    assert_int_equal(f.plan.n_entry, 2);
    assert_int_equal(sched_n_waiting(f.s), 1);
    for (uint32_t done = 9; done < 99; done += 9) {
        commit(&f, 7);
        plan(&f);
        expect_entry(&f, 1, b, done, 9, false);
    }
    commit(&f, 7);
    plan(&f);
    expect_entry(&f, 0, a, 12, 1, true);
    expect_entry(&f, 1, b, 99, 1, true);
    expect_entry(&f, 2, c, 0, 1, true);
    commit(&f, 7);
    close_fixture(&f);
}

static void the_oldest_gets_a_token_even_when_decodes_fill_the_budget(void **state)
{
    (void)state;
    struct fixture f;
    open_fixture(&f, 8, 3, 4);
    struct request *a = add(&f, 8, 4);
    plan(&f);
    commit(&f, 7);
    struct request *b = add(&f, 1, 20);
    struct request *c = add(&f, 1, 20);
    plan(&f); /* a takes the budget: b and c wait */
    expect_entry(&f, 0, a, 3, 3, false);
    commit(&f, 7);
    plan(&f);
    expect_entry(&f, 0, a, 6, 2, true);
    expect_entry(&f, 1, b, 0, 1, true);
    commit(&f, 7);
    plan(&f);
    expect_entry(&f, 2, c, 0, 1, true);
    commit(&f, 7);
    close_fixture(&f);
}

static void max_num_seqs_bounds_the_running(void **state)
{
    (void)state;
    struct fixture f;
    open_fixture(&f, 8, 64, 2);
    struct request *a = add(&f, 4, 1);
    add(&f, 4, 4);
    struct request *c = add(&f, 4, 4);
    plan(&f);
    assert_int_equal(f.plan.n_entry, 2);
    commit(&f, 7);
    assert_int_equal(a->finish, REQUEST_FINISH_LENGTH);
    plan(&f);
    assert_int_equal(f.plan.n_entry, 2);
    expect_entry(&f, 1, c, 0, 4, true);
    commit(&f, 7);
    close_fixture(&f);
}

static void admission_leaves_a_page_for_each_running(void **state)
{
    (void)state;
    struct fixture f;
    open_fixture(&f, 4, 256, 4);
    add(&f, 65, 4); /* 2 of 4 pages */
    struct request *b = add(&f, 65, 4);
    struct request *c = add(&f, 4, 4);
    plan(&f);
    assert_int_equal(f.plan.n_entry, 1); /* b would leave none; c does not overtake it */
    assert_int_equal(b->state, REQUEST_WAITING);
    assert_int_equal(c->state, REQUEST_WAITING);
    commit(&f, STOP_ID);
    plan(&f);
    assert_int_equal(f.plan.n_entry, 2);
    commit(&f, 7);
    close_fixture(&f);
}

static void the_youngest_is_preempted_and_resumes_with_its_output(void **state)
{
    (void)state;
    struct fixture f;
    open_fixture(&f, 3, 256, 4);
    struct request *a =
        add(&f, 64, 80); /* its next token begins a page, and so does the 65th more */
    struct request *b = add(&f, 4, 4);
    plan(&f);
    commit(&f, 7);
    assert_int_equal(page_pool_n_free(f.pool), 1);
    plan(&f);
    expect_entry(&f, 0, a, 64, 1, true);
    expect_entry(&f, 1, b, 4, 1, true);
    assert_int_equal(page_pool_n_free(f.pool), 0);
    commit(&f, 9);
    b->max_token = 256; /* b runs on until a wants its page */
    for (int i = 0; i < 58; i++) {
        plan(&f);
        assert_int_equal(f.plan.n_entry, 2);
        commit(&f, 9);
    }
    assert_int_equal(b->n_computed, 63);
    plan(&f);
    commit(&f, 9);
    plan(&f); /* b wants a second page, and only a, which is older, holds others */
    assert_int_equal(f.plan.n_entry, 1);
    assert_int_equal(b->state, REQUEST_RUNNING);
    commit(&f, 9);
    while (a->n_computed < 128) {
        plan(&f);
        commit(&f, 9);
    }
    plan(&f);
    assert_int_equal(f.plan.n_entry, 1);
    expect_entry(&f, 0, a, 128, 1, true);
    assert_int_equal(b->state, REQUEST_WAITING);
    assert_int_equal(b->n_preempted, 1);
    assert_int_equal(sched_totals(f.s)->n_preempted, 1);
    assert_int_equal(b->n_token, 65);
    commit(&f, STOP_ID);
    plan(&f);
    expect_entry(&f, 0, b, 0, 65, true);
    commit(&f, STOP_ID);
    assert_int_equal(page_pool_n_free(f.pool), 3);
    close_fixture(&f);
}

static void cancel_gives_pages_back_in_either_state(void **state)
{
    (void)state;
    struct fixture f;
    open_fixture(&f, 2, 16, 1);
    struct request *a = add(&f, 20, 4);
    struct request *b = add(&f, 20, 4);
    plan(&f);
    commit(&f, 7);
    sched_end(f.s, b, REQUEST_FINISH_CANCEL, 50);
    sched_check(f.s);
    assert_int_equal(sched_n_waiting(f.s), 0);
    sched_end(f.s, a, REQUEST_FINISH_CANCEL, 51);
    sched_check(f.s);
    assert_int_equal(page_pool_n_free(f.pool), 2);
    assert_int_equal(a->finished_us, 51);
    assert_null(sched_any(f.s));
    close_fixture(&f);
}

/* ---- with a prefix cache ---- */

static void expect_found(const struct fixture *f, uint64_t n_hit, uint64_t n_query)
{
    const struct sched_totals *t = sched_totals(f->s);
    assert_int_equal(t->n_hit_token, n_hit);
    assert_int_equal(t->n_query_token, n_query);
}

static void what_was_computed_is_found_and_goes_on_at_once(void **state)
{
    (void)state;
    struct fixture f;
    open_with_prefix(&f, 8, 256, 4);
    struct request *a = add(&f, 200, 4);
    plan(&f);
    commit(&f, STOP_ID);
    assert_int_equal(page_pool_n_cached(f.pool), 3);
    assert_int_equal(a->n_cached, 0);
    struct request *b = add(&f, 200, 4);
    struct request *c = add(&f, 192, 4); /* its last page is found, but then nothing would draw */
    plan(&f);
    expect_entry(&f, 0, b, 192, 8, true);
    expect_entry(&f, 1, c, 128, 64, true);
    assert_int_equal(b->n_cached, 192);
    assert_int_equal(c->n_cached, 128);
    expect_found(&f, 320, 592);
    assert_ptr_not_equal(b->pages[2], c->pages[2]);
    commit(&f, 7);
    assert_int_equal(b->pages[2], c->pages[2]); /* c's own gave way to the one that was there */
    assert_int_equal(page_pool_n_holder(f.pool, b->pages[2]), 2);
    plan(&f);
    commit(&f, STOP_ID);
    assert_int_equal(page_pool_n_available(f.pool), 8);
    close_fixture(&f);
}

static void output_is_found_too(void **state)
{
    (void)state;
    struct fixture f;
    open_with_prefix(&f, 8, 256, 4);
    struct request *a = add(&f, 60, 10);
    for (int i = 0; i < 10; i++) {
        plan(&f);
        commit(&f, 7);
    }
    assert_int_equal(a->finish, REQUEST_FINISH_LENGTH);
    assert_int_equal(prefix_n_page(f.prefix), 1);
    struct job *next = &f.jobs[f.n_job];
    for (uint32_t i = 0; i < 70; i++) next->ids[i] = a->ids[i];
    add(&f, 75, 4);
    plan(&f);
    expect_entry(&f, 0, &next->r, 64, 11, true);
    commit(&f, STOP_ID);
    close_fixture(&f);
}

static void a_preempted_request_finds_its_own_pages(void **state)
{
    (void)state;
    struct fixture f;
    open_with_prefix(&f, 5, 256, 4);
    struct request *a = add(&f, 120, 100);
    struct request *b = add(&f, 60, 100);
    f.jobs[1].ids[0] = 3; /* unlike a */
    for (plan(&f); b->n_preempted == 0; plan(&f)) commit(&f, 7);
    assert_int_equal(b->n_token, 129); /* a took the second of its two full pages */
    commit(&f, STOP_ID);
    assert_int_equal(a->state, REQUEST_FINISHED);
    plan(&f);
    expect_entry(&f, 0, b, 64, 65, true);
    assert_int_equal(b->n_cached, 0);
    expect_found(&f, 0, 180);
    commit(&f, STOP_ID);
    close_fixture(&f);
}

static void cached_pages_make_room(void **state)
{
    (void)state;
    struct fixture f;
    open_with_prefix(&f, 4, 256, 4);
    struct request *a = add(&f, 250, 4);
    plan(&f);
    commit(&f, STOP_ID);
    assert_int_equal(page_pool_n_cached(f.pool), 3);
    f.jobs[1].ids[0] = 3;
    struct request *b = add(&f, 140, 4); /* 3 pages: the free one and a's last two */
    plan(&f);
    expect_entry(&f, 0, b, 0, 140, true);
    assert_int_equal(prefix_n_page(f.prefix), 1);
    commit(&f, STOP_ID);
    struct request *again = add(&f, 250, 4);
    plan(&f);
    expect_entry(&f, 0, again, 64, 186, true);
    assert_int_equal(a->n_cached, 0);
    commit(&f, STOP_ID);
    close_fixture(&f);
}

/* A page that is found and CACHED is one less to take. */
static void admission_counts_found_pages_that_nobody_holds(void **state)
{
    (void)state;
    struct fixture f;
    open_with_prefix(&f, 4, 256, 4);
    add(&f, 130, 4);
    plan(&f);
    commit(&f, STOP_ID);
    f.jobs[1].ids[0] = 3;
    add(&f, 60, 80);
    plan(&f);
    commit(&f, 7); /* holds 1 of 4 pages; 2 are cached */
    struct request *c = add(&f, 130, 4);
    plan(&f); /* c would take all three and leave none to grow into */
    assert_int_equal(c->state, REQUEST_WAITING);
    commit(&f, STOP_ID);
    plan(&f);
    expect_entry(&f, 0, c, 128, 2, true);
    commit(&f, STOP_ID);
    close_fixture(&f);
}

static void lower_priority_numbers_go_first_and_keep_their_pages(void **state)
{
    (void)state;
    struct fixture f;
    open_fixture(&f, 4, 64, 2);
    struct request *late = add(&f, 10, 100);
    struct request *plain = add(&f, 10, 100);
    struct job *j = &f.jobs[f.n_job++];
    j->r = (struct request){.id = 9,
                            .ids = j->ids,
                            .pages = j->pages,
                            .n_prompt = 10,
                            .max_token = 150,
                            .priority = -3};
    sched_add(f.s, &j->r);
    assert_ptr_equal(sched_first_waiting(f.s), &j->r);
    plan(&f);
    assert_int_equal(f.plan.n_entry, 2);
    expect_entry(&f, 0, &j->r, 0, 10, true);
    expect_entry(&f, 1, late, 0, 10, true);
    commit(&f, 7);
    plan(&f); /* who came first does not matter: the urgent one leads the walk */
    expect_entry(&f, 0, &j->r, 10, 1, true);
    commit(&f, 7);
    assert_int_equal(plain->state, REQUEST_WAITING);
    close_fixture(&f);
}

static void running_requests_leave_a_bounded_share_to_prefill(void **state)
{
    (void)state;
    struct fixture f;
    open_fixture(&f, 16, 64, 4);
    sched_set_bounds(f.s, &(struct sched_bounds){3, 8});
    struct request *first = add(&f, 100, 10);
    plan(&f);
    expect_entry(&f, 0, first, 0, 64, false); /* nobody decodes: all of the budget */
    commit(&f, 7);
    plan(&f);
    expect_entry(&f, 0, first, 64, 36, true);
    commit(&f, 7);
    struct request *a = add(&f, 20, 10);
    struct request *b = add(&f, 20, 10);
    plan(&f);
    assert_int_equal(f.plan.n_entry, 2);
    expect_entry(&f, 0, first, 100, 1, true);
    expect_entry(&f, 1, a, 0, 8, false);
    commit(&f, 7);
    assert_int_equal(b->state, REQUEST_WAITING);
    plan(&f);
    commit(&f, 7);
    plan(&f);
    assert_int_equal(f.plan.n_entry, 3);
    expect_entry(&f, 1, a, 16, 4, true);
    expect_entry(&f, 2, b, 0, 4, false);
    commit(&f, 7);
    add(&f, 1, 10);
    plan(&f);
    assert_int_equal(f.plan.n_entry, 3); /* three may run */
    assert_false(sched_is_short_of_pages(f.s));
    commit(&f, 7);
    close_fixture(&f);
}

/* ---- with drafts ---- */

static void guess(struct request *r, int32_t a, int32_t b, int32_t c)
{
    const int32_t ids[] = {a, b, c};
    memcpy(r->ids + r->n_token, ids, sizeof ids);
    r->n_draft = 3;
}

static void commit_drawn(struct fixture *f, int32_t a, int32_t b, int32_t c, int32_t d)
{
    const int32_t drawn[] = {a, b, c, d};
    sched_commit(f->s, &f->plan, drawn, ++f->now_us);
    sched_check(f->s);
}

static void drafts_count_up_to_the_first_wrong_one(void **state)
{
    (void)state;
    struct fixture f;
    open_more(&f, 8, 64, 4, 3);
    struct request *r = add(&f, 10, 50);
    plan(&f);
    expect_entry(&f, 0, r, 0, 10, true);
    commit(&f, 7);
    guess(r, 20, 21, 22);
    plan(&f);
    expect_entry(&f, 0, r, 10, 4, true);
    assert_int_equal(f.plan.entries[0].n_draft, 3);
    assert_int_equal(f.plan.n_draw, 4);
    commit_drawn(&f, 20, 21, 30, 31);
    assert_int_equal(r->n_token, 14);
    assert_int_equal(r->n_computed, 13);
    assert_int_equal(r->n_draft, 0);
    const int32_t want[] = {7, 20, 21, 30};
    assert_memory_equal(r->ids + 10, want, sizeof want);
    guess(r, 20, 21, 22);
    plan(&f);
    commit_drawn(&f, 19, 21, 22, 23);
    assert_int_equal(r->n_token, 15);
    guess(r, 20, 21, 22);
    plan(&f);
    commit_drawn(&f, 20, 21, 22, 23);
    assert_int_equal(r->n_token, 19);
    assert_int_equal(r->ids[18], 23);
    plan(&f); /* no draft: one token as ever */
    expect_entry(&f, 0, r, 18, 1, true);
    commit(&f, STOP_ID);
    close_fixture(&f);
}

static void a_stop_among_the_drafts_ends_it_there(void **state)
{
    (void)state;
    struct fixture f;
    open_more(&f, 8, 64, 4, 3);
    struct request *r = add(&f, 10, 50);
    plan(&f);
    commit(&f, 7);
    guess(r, 20, STOP_ID, 22);
    plan(&f);
    commit_drawn(&f, 20, STOP_ID, 22, 23);
    assert_int_equal(r->finish, REQUEST_FINISH_STOP);
    assert_int_equal(r->n_token, 13);
    struct request *s = add(&f, 10, 5);
    plan(&f);
    commit(&f, 7);
    guess(s, 20, 21, 22);
    assert_int_equal(request_draft_room(s), 3);
    plan(&f);
    commit_drawn(&f, 20, 21, 22, 23);
    assert_int_equal(s->finish, REQUEST_FINISH_LENGTH);
    assert_int_equal(s->n_token, s->max_token);
    assert_int_equal(page_pool_n_available(f.pool), 8);
    close_fixture(&f);
}

static void drafts_take_what_is_left_of_the_budget(void **state)
{
    (void)state;
    struct fixture f;
    open_more(&f, 8, 6, 4, 3);
    struct request *a = add(&f, 2, 50);
    struct request *b = add(&f, 2, 50);
    struct request *c = add(&f, 2, 50);
    plan(&f);
    commit(&f, 7);
    guess(a, 20, 21, 22);
    guess(b, 20, 21, 22);
    guess(c, 20, 21, 22);
    plan(&f); /* 6 tokens: one for each, and three drafts of the oldest */
    expect_entry(&f, 0, a, 2, 4, true);
    expect_entry(&f, 1, b, 2, 1, true);
    expect_entry(&f, 2, c, 2, 1, true);
    assert_int_equal(f.plan.n_draw, 6);
    sched_abort(f.s, &f.plan);
    close_fixture(&f);
}

/* Three pages: a's drafts take the last one, and only a preemption would give b another. */
static void drafts_preempt_nobody(void **state)
{
    (void)state;
    struct fixture f;
    open_more(&f, 3, 256, 4, 3);
    struct request *a = add(&f, 60, 60);
    struct request *b = add(&f, 62, 60);
    f.jobs[1].ids[0] = 3;
    plan(&f);
    commit(&f, 7);
    guess(a, 20, 21, 22);
    guess(b, 20, 21, 22);
    plan(&f);
    expect_entry(&f, 0, a, 60, 4, true);
    assert_int_equal(a->n_page, 2);      /* room for the drafts after these */
    expect_entry(&f, 1, b, 62, 2, true); /* one draft fits into the page it has */
    assert_int_equal(f.plan.entries[1].n_draft, 1);
    assert_int_equal(sched_totals(f.s)->n_preempted, 0);
    sched_abort(f.s, &f.plan);
    close_fixture(&f);
}

/* ---- logits of prompts ---- */

static struct request *add_scored(struct fixture *f, uint32_t n_prompt, uint32_t max_output)
{
    struct request *r = add(f, n_prompt, max_output);
    r->n_to_score = n_prompt - 1;
    return r;
}

static void expect_score(const struct fixture *f, uint32_t i, uint32_t n_score)
{
    assert_int_equal(f->plan.entries[i].n_score, n_score);
}

static void scored_prompts_share_the_rows_of_a_step(void **state)
{
    (void)state;
    struct fixture f;
    open_fixture(&f, 16, 256, 4);
    struct request *a = add_scored(&f, 40, 5);
    struct request *b = add_scored(&f, 30, 5);
    struct request *c = add(&f, 50, 5);
    plan(&f);
    expect_entry(&f, 0, a, 0, 32, false);
    expect_score(&f, 0, MAX_SCORE);
    assert_int_equal(f.plan.n_entry, 1); /* no row is left for b, and c does not overtake it */
    assert_int_equal(f.plan.n_score, MAX_SCORE);
    commit(&f, 7);
    assert_int_equal(request_n_scored(a), 32);
    plan(&f);
    expect_entry(&f, 0, a, 32, 8, true); /* the last token's logits are those of the draw */
    expect_score(&f, 0, 7);
    expect_entry(&f, 1, b, 0, 25, false);
    expect_score(&f, 1, 25);
    expect_entry(&f, 2, c, 0, 50, true);
    expect_score(&f, 2, 0);
    assert_int_equal(f.plan.n_draw, 2);
    commit(&f, 7);
    plan(&f);
    expect_entry(&f, 1, b, 25, 5, true);
    expect_score(&f, 1, 4);
    commit(&f, STOP_ID);
    close_fixture(&f);
}

static void a_scored_prompt_uses_no_cached_page_until_it_is_scored(void **state)
{
    (void)state;
    struct fixture f;
    open_with_prefix(&f, 8, 512, 4);
    (void)add(&f, 130, 5);
    plan(&f);
    commit(&f, STOP_ID);
    struct request *r = add_scored(&f, 130, 200);
    for (uint32_t i = 0; i < 4; i++) {
        plan(&f);
        expect_entry(&f, 0, r, i * MAX_SCORE, MAX_SCORE, false);
        expect_score(&f, 0, MAX_SCORE);
        commit(&f, 7);
    }
    plan(&f);
    expect_entry(&f, 0, r, 128, 2, true);
    expect_score(&f, 0, 1);
    commit(&f, 7);
    assert_int_equal(r->n_cached, 0);
    assert_int_equal(sched_totals(f.s)->n_query_token, 130); /* the first one's alone */
    struct request *again = add(&f, 130, 5);
    plan(&f);
    expect_entry(&f, 1, again, 128, 2, true);
    commit(&f, STOP_ID);
    close_fixture(&f);
}

/* What has been scored before a preemption is computed again and not scored twice. Nine pages: a
 * has one and grows, b has seven and loses them when a needs its third. */
static void a_preempted_prompt_is_scored_once(void **state)
{
    (void)state;
    struct fixture f;
    open_fixture(&f, 9, 5, 4);
    struct request *a = add(&f, 63, 100);
    struct request *b = add_scored(&f, 400, 20);
    uint32_t n_score = 0;
    uint32_t n_before = 0;
    while (b->state != REQUEST_FINISHED) {
        plan(&f);
        for (uint32_t i = 0; i < f.plan.n_entry; i++) {
            const struct plan_entry *e = &f.plan.entries[i];
            if (e->request != b) continue;
            n_score += e->n_score;
            if (b->n_preempted == 0) n_before += e->n_score;
            if (e->first + e->n_token <= n_before && b->n_preempted) expect_score(&f, i, 0);
        }
        commit(&f, a->n_token == 130 || a->state == REQUEST_FINISHED ? STOP_ID : 7);
    }
    assert_int_equal(b->n_preempted, 1);
    assert_true(n_before > 200 && n_before < 399);
    assert_int_equal(n_score, 399);
    close_fixture(&f);
}

static void dump_shows_requests_and_pages(void **state)
{
    (void)state;
    struct fixture f;
    struct buf b = {0};
    open_fixture(&f, 2, 16, 1);
    add(&f, 20, 4);
    add(&f, 20, 4);
    plan(&f);
    assert_int_equal(sched_dump(f.s, &b), FATHOM_OK);
    assert_non_null(strstr(buf_str(&b), "scheduler: 1 running, 0 fetching, 1 waiting, 0 preempted, "
                                        "0 of 0 prompt tokens found, in step\n"));
    assert_non_null(strstr(buf_str(&b),
                           "request 1 RUNNING prompt=20 tokens=20/24 computed=0 drafts=0 "
                           "planned=16 pages=1"));
    assert_non_null(strstr(buf_str(&b), "request 2 WAITING"));
    assert_non_null(strstr(buf_str(&b), "page 0 HELD"));
    buf_free(&b);
    commit(&f, 7);
    close_fixture(&f);
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
        cmocka_unit_test(a_preempted_request_finds_its_own_pages),
        cmocka_unit_test(cached_pages_make_room),
        cmocka_unit_test(admission_counts_found_pages_that_nobody_holds),
        cmocka_unit_test(lower_priority_numbers_go_first_and_keep_their_pages),
        cmocka_unit_test(running_requests_leave_a_bounded_share_to_prefill),
        cmocka_unit_test(drafts_count_up_to_the_first_wrong_one),
        cmocka_unit_test(a_stop_among_the_drafts_ends_it_there),
        cmocka_unit_test(drafts_take_what_is_left_of_the_budget),
        cmocka_unit_test(drafts_preempt_nobody),
        cmocka_unit_test(scored_prompts_share_the_rows_of_a_step),
        cmocka_unit_test(a_scored_prompt_uses_no_cached_page_until_it_is_scored),
        cmocka_unit_test(a_preempted_prompt_is_scored_once),
        cmocka_unit_test(dump_shows_requests_and_pages),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
