/* test_request.c - the edges of a request's states, the stop rules, the list */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "sched/request.h"

enum { MAX_TOKEN = 8 };

struct fixture {
    struct request r;
    int32_t ids[MAX_TOKEN];
    uint32_t pages[1];
    int32_t stop_ids[2];
};

static struct request *make(struct fixture *f, uint32_t n_prompt, uint32_t max_token)
{
    memset(f, 0, sizeof *f);
    f->stop_ids[0] = 1;
    f->stop_ids[1] = 42;
    f->r.id = 9;
    f->r.ids = f->ids;
    f->r.pages = f->pages;
    f->r.stop_ids = f->stop_ids;
    f->r.n_stop_id = 2;
    f->r.n_prompt = n_prompt;
    f->r.max_token = max_token;
    request_check(&f->r);
    request_enter(&f->r, 5);
    request_check(&f->r);
    return &f->r;
}

static void run(struct request *r)
{
    request_admit(r, 0, 100);
    r->n_page = 1;
    request_check(r);
}

static void page_counts_round_up(void **state)
{
    (void)state;
    assert_int_equal(request_n_page(0), 0);
    assert_int_equal(request_n_page(1), 1);
    assert_int_equal(request_n_page(64), 1);
    assert_int_equal(request_n_page(65), 2);
    assert_int_equal(request_n_page(UINT32_MAX), 1u << 26);
}

static void entering_wants_the_prompt(void **state)
{
    (void)state;
    struct fixture f;
    struct request *r = make(&f, 3, MAX_TOKEN);
    assert_int_equal(r->state, REQUEST_WAITING);
    assert_int_equal(request_gap(r), 3);
    assert_int_equal(request_n_output(r), 0);
    assert_int_equal(r->arrival, 5);
}

static void the_length_ends_it(void **state)
{
    (void)state;
    struct fixture f;
    struct request *r = make(&f, 3, 5);
    run(r);
    assert_int_equal(request_push(r, 7), REQUEST_FINISH_NONE);
    assert_int_equal(request_push(r, 8), REQUEST_FINISH_LENGTH);
    assert_int_equal(r->ids[3], 7);
    assert_int_equal(r->ids[4], 8);
}

static void each_stop_id_ends_it_and_is_kept(void **state)
{
    (void)state;
    for (int i = 0; i < 2; i++) {
        struct fixture f;
        struct request *r = make(&f, 1, MAX_TOKEN);
        run(r);
        assert_int_equal(request_push(r, f.stop_ids[i]), REQUEST_FINISH_STOP);
        assert_int_equal(r->n_token, 2);
        assert_int_equal(r->ids[1], f.stop_ids[i]);
    }
}

static void a_stop_id_at_the_last_place_is_a_stop(void **state)
{
    (void)state;
    struct fixture f;
    struct request *r = make(&f, 1, 2);
    run(r);
    assert_int_equal(request_push(r, 42), REQUEST_FINISH_STOP);
}

static void stop_ids_do_not_count_before_min_output(void **state)
{
    (void)state;
    struct fixture f;
    struct request *r = make(&f, 1, MAX_TOKEN);
    r->min_output = 2;
    run(r);
    assert_int_equal(request_push(r, 1), REQUEST_FINISH_NONE);
    assert_int_equal(request_push(r, 42), REQUEST_FINISH_NONE);
    assert_true(request_is_stop(r, 1));
    assert_int_equal(request_push(r, 1), REQUEST_FINISH_STOP);
}

static void preemption_keeps_the_output(void **state)
{
    (void)state;
    struct fixture f;
    struct request *r = make(&f, 2, MAX_TOKEN);
    run(r);
    r->n_computed = r->n_reached = 2;
    assert_int_equal(request_push(r, 7), REQUEST_FINISH_NONE);
    request_check(r);
    r->n_page = 0;
    request_preempt(r);
    request_check(r);
    assert_int_equal(r->state, REQUEST_WAITING);
    assert_int_equal(request_gap(r), 3);
    assert_int_equal(r->ids[2], 7);
    request_admit(r, 0, 999);
    assert_int_equal(r->scheduled_us, 100); /* the first time counts */
    assert_int_equal(r->n_reached, 2);
}

static void found_tokens_are_computed_and_count_once(void **state)
{
    (void)state;
    struct fixture f;
    struct request *r = make(&f, 3, MAX_TOKEN);
    request_admit(r, 2, 100);
    r->n_page = 1;
    request_check(r);
    assert_int_equal(request_gap(r), 1);
    assert_int_equal(r->n_cached, 2);
    assert_int_equal(r->n_reached, 2);
    assert_int_equal(request_push(r, 7), REQUEST_FINISH_NONE);
    r->n_page = 0;
    request_preempt(r);
    request_admit(r, 3, 200);
    r->n_page = 1;
    request_check(r);
    assert_int_equal(r->n_computed, 3);
    assert_int_equal(r->n_cached, 2); /* its own work, found again, is no gain */
}

static void ending_from_either_live_state(void **state)
{
    (void)state;
    struct fixture f;
    struct request *r = make(&f, 2, MAX_TOKEN);
    request_end(r, REQUEST_FINISH_CANCEL, 7);
    request_check(r);
    assert_int_equal(r->state, REQUEST_FINISHED);
    assert_int_equal(r->finish, REQUEST_FINISH_CANCEL);
    r = make(&f, 2, MAX_TOKEN);
    run(r);
    r->n_page = 0;
    request_end(r, REQUEST_FINISH_ERROR, 8);
    request_check(r);
    assert_int_equal(r->finished_us, 8);
}

static void dump_is_one_line(void **state)
{
    (void)state;
    struct fixture f;
    struct buf b = {0};
    struct request *r = make(&f, 2, MAX_TOKEN);
    assert_int_equal(request_dump(r, &b), FATHOM_OK);
    assert_string_equal(buf_str(&b),
                        "  request 9 WAITING prompt=2 tokens=2/8 computed=0 drafts=0 planned=0 "
                        "pages=0 published=0 cached=0 preempted=0\n");
    buf_free(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(page_counts_round_up),
        cmocka_unit_test(entering_wants_the_prompt),
        cmocka_unit_test(the_length_ends_it),
        cmocka_unit_test(each_stop_id_ends_it_and_is_kept),
        cmocka_unit_test(a_stop_id_at_the_last_place_is_a_stop),
        cmocka_unit_test(stop_ids_do_not_count_before_min_output),
        cmocka_unit_test(preemption_keeps_the_output),
        cmocka_unit_test(found_tokens_are_computed_and_count_once),
        cmocka_unit_test(ending_from_either_live_state),
        cmocka_unit_test(dump_is_one_line),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
