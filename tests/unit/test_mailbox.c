/* test_mailbox.c - ids, entries, lists and events, with the engine's side played by hand */
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "base/clock.h"
#include "base/mem.h"
#include "engine/mailbox.h"

static const struct sequence_limits limits = {
    .max_model_len = 100, .n_vocab = 50, .n_vocab_used = 50};
static const int32_t prompt[] = {10, 20, 30};
static const fathom_stats no_stats;

static struct mailbox *open_box(uint32_t n_entry)
{
    struct mailbox *m = NULL;
    assert_int_equal(mailbox_create(&m, n_entry, 5, NULL), FATHOM_OK);
    return m;
}

static struct sequence *make_sequence(void)
{
    fathom_request r = {.prompt = prompt, .n_prompt = 3};
    fathom_sampling_init(&r.sampling);
    struct sequence *j = NULL;
    assert_int_equal(sequence_create(&j, &r, &limits, 0, NULL), FATHOM_OK);
    return j;
}

static struct sequence *submit(struct mailbox *m, uint64_t *id)
{
    struct sequence *j = make_sequence();
    assert_int_equal(mailbox_submit(m, j, id, NULL), FATHOM_OK);
    mailbox_check(m);
    return j;
}

/* The engine draws n tokens and, with `why`, ends the request. */
static void draw(struct mailbox *m, struct sequence *j, uint32_t n, enum request_finish why)
{
    struct request *r = &j->request;
    if (r->state == REQUEST_NEW) {
        request_enter(r, 0);
        request_admit(r, 0, 0);
    }
    for (uint32_t i = 0; i < n; i++) (void)request_push(r, 40 + (int32_t)i);
    if (why != REQUEST_FINISH_NONE) request_end(r, why, 1);
    mailbox_publish(m, &j, 1, &no_stats);
}

static void every_failing_allocation_is_clean(void **state)
{
    (void)state;
    for (long n = 0; n < 3; n++) {
        struct mailbox *m = (struct mailbox *)1;
        mem_fail_after(n);
        assert_int_equal(mailbox_create(&m, 4, 0, NULL), FATHOM_ENOMEM);
        assert_true(mem_fail_hit());
        assert_null(m);
    }
    mem_fail_after(-1);
    struct mailbox *m = NULL;
    assert_int_equal(mailbox_create(&m, 0, 0, NULL), FATHOM_EINVAL);
    mailbox_destroy(NULL);
}

static void ids_are_never_used_twice(void **state)
{
    (void)state;
    struct mailbox *m = open_box(1);
    uint64_t before = 0;
    for (int i = 0; i < 5; i++) {
        uint64_t id = 0;
        fathom_event e[2];
        struct sequence *j = submit(m, &id);
        assert_true(id > before);
        before = id;
        assert_ptr_equal(mailbox_take_new(m), j);
        draw(m, j, 1, REQUEST_FINISH_LENGTH);
        assert_int_equal(mailbox_poll(m, e, 2, 0), 2);
        mailbox_check(m);
    }
    mailbox_destroy(m);
}

static void an_entry_is_free_when_the_finish_has_been_read(void **state)
{
    (void)state;
    struct mailbox *m = open_box(2);
    uint64_t a_id, b_id, c_id;
    struct sequence *a = submit(m, &a_id);
    submit(m, &b_id);
    struct sequence *c = make_sequence();
    fathom_diag d = {{0}};
    assert_int_equal(mailbox_submit(m, c, &c_id, &d), FATHOM_EBUSY);
    assert_non_null(strstr(d.text, "2 requests"));
    assert_ptr_equal(mailbox_take_new(m), a);
    draw(m, a, 1, REQUEST_FINISH_LENGTH);
    assert_int_equal(mailbox_submit(m, c, &c_id, NULL), FATHOM_EBUSY);
    fathom_event e[4];
    assert_int_equal(mailbox_poll(m, e, 1, 0), 1); /* the token alone */
    assert_int_equal(mailbox_submit(m, c, &c_id, NULL), FATHOM_EBUSY);
    assert_int_equal(mailbox_poll(m, e, 4, 0), 1);
    assert_int_equal(e[0].kind, FATHOM_EVENT_FINISH);
    assert_int_equal(mailbox_submit(m, c, &c_id, NULL), FATHOM_OK);
    mailbox_check(m);
    mailbox_destroy(m); /* releases b and c */
}

static void events_keep_their_order_however_they_are_read(void **state)
{
    (void)state;
    struct mailbox *m = open_box(2);
    uint64_t a_id, b_id;
    struct sequence *a = submit(m, &a_id), *b = submit(m, &b_id);
    (void)mailbox_take_new(m);
    (void)mailbox_take_new(m);
    draw(m, a, 2, REQUEST_FINISH_NONE);
    draw(m, b, 1, REQUEST_FINISH_NONE);
    fathom_event e[8];
    assert_int_equal(mailbox_poll(m, e, 1, 0), 1);
    assert_true(e[0].id == a_id && e[0].token == 40 && !e[0].is_joined);
    mailbox_check(m);
    draw(m, a, 1, REQUEST_FINISH_LENGTH);
    assert_int_equal(mailbox_poll(m, e, 8, 0), 4);
    assert_true(e[0].id == a_id && e[0].token == 41 && e[0].is_joined);
    assert_true(e[1].id == a_id && e[1].token == 40 && !e[1].is_joined); /* of another step */
    assert_true(e[2].id == a_id && e[2].kind == FATHOM_EVENT_FINISH && e[2].n_output == 3);
    assert_true(e[3].id == b_id && e[3].token == 40);
    assert_int_equal(mailbox_poll(m, e, 8, 0), 0);
    mailbox_check(m);
    mailbox_destroy(m);
}

static void cancels_meet_the_right_job_once(void **state)
{
    (void)state;
    struct mailbox *m = open_box(4);
    uint64_t a_id, b_id;
    struct sequence *a = submit(m, &a_id), *b = submit(m, &b_id);
    mailbox_cancel(m, a_id + 1000);
    mailbox_cancel(m, 0);
    mailbox_cancel(m, UINT64_MAX);
    mailbox_cancel(m, b_id);
    mailbox_cancel(m, b_id);
    mailbox_check(m);
    assert_null(mailbox_take_cancel(m)); /* not before it has been taken as new */
    assert_ptr_equal(mailbox_take_new(m), a);
    assert_null(mailbox_take_cancel(m));
    mailbox_cancel(m, a_id);
    assert_ptr_equal(mailbox_take_cancel(m), a); /* b, in front of it, is not ready */
    assert_ptr_equal(mailbox_take_new(m), b);
    assert_null(mailbox_take_new(m));
    assert_ptr_equal(mailbox_take_cancel(m), b);
    assert_null(mailbox_take_cancel(m));
    mailbox_cancel(m, a_id);
    draw(m, a, 1, REQUEST_FINISH_LENGTH); /* the end comes first: the cancel is void */
    assert_null(mailbox_take_cancel(m));
    mailbox_cancel(m, a_id);
    assert_null(mailbox_take_cancel(m));
    mailbox_check(m);
    mailbox_destroy(m);
}

static void seeds_follow_the_order_of_submission(void **state)
{
    (void)state;
    uint64_t seeds[2][2];
    for (int i = 0; i < 2; i++) {
        struct mailbox *m = open_box(2);
        uint64_t id;
        seeds[i][0] = submit(m, &id)->row.seed;
        seeds[i][1] = submit(m, &id)->row.seed;
        mailbox_destroy(m);
    }
    assert_true(seeds[0][0] != seeds[0][1]);
    assert_memory_equal(seeds[0], seeds[1], sizeof seeds[0]);
}

static void poll_waits_no_longer_than_told(void **state)
{
    (void)state;
    struct mailbox *m = open_box(1);
    fathom_event e;
    uint64_t start_us = clock_now_us();
    assert_int_equal(mailbox_poll(m, &e, 1, 20), 0);
    assert_true(clock_now_us() - start_us >= 19000);
    mailbox_wake(m); /* a wake that comes before the poll is not lost */
    assert_int_equal(mailbox_poll(m, &e, 1, -1), 0);
    assert_int_equal(mailbox_poll(m, &e, 1, 0), 0);
    mailbox_destroy(m);
}

static void *wake_soon(void *arg)
{
    clock_sleep_us(10000);
    mailbox_wake(arg);
    return NULL;
}

static void wake_reaches_a_sleeping_poll(void **state)
{
    (void)state;
    struct mailbox *m = open_box(1);
    pthread_t thread;
    fathom_event e;
    assert_int_equal(pthread_create(&thread, NULL, wake_soon, m), 0);
    assert_int_equal(mailbox_poll(m, &e, 1, -1), 0);
    pthread_join(thread, NULL);
    mailbox_destroy(m);
}

static void after_a_fault_nothing_is_taken(void **state)
{
    (void)state;
    struct mailbox *m = open_box(2);
    uint64_t id;
    fathom_stats stats;
    assert_string_equal(mailbox_fault(m), "");
    mailbox_fail(m, "it burns");
    mailbox_fail(m, "something else");
    assert_string_equal(mailbox_fault(m), "it burns");
    struct sequence *j = make_sequence();
    fathom_diag d = {{0}};
    assert_int_equal(mailbox_submit(m, j, &id, &d), FATHOM_EDEVICE);
    assert_string_equal(d.text, "the engine has failed: it burns");
    sequence_destroy(j);
    mailbox_get_stats(m, &stats);
    assert_true(stats.failed);
    mailbox_destroy(m);
}

static void closing_ends_the_wait(void **state)
{
    (void)state;
    struct mailbox *m = open_box(2);
    uint64_t id;
    assert_true(mailbox_wait(m, 0));
    submit(m, &id);
    assert_true(mailbox_wait(m, MAILBOX_FOREVER));
    fathom_stats stats;
    mailbox_get_stats(m, &stats);
    assert_int_equal(stats.n_waiting, 1); /* not taken yet, and counted all the same */
    mailbox_close(m);
    assert_false(mailbox_wait(m, MAILBOX_FOREVER));
    mailbox_destroy(m);
}

static void expect_load(struct mailbox *m, uint64_t n_waiting, uint64_t n_token)
{
    fathom_stats s;
    mailbox_get_stats(m, &s);
    assert_int_equal(s.n_waiting, n_waiting);
    assert_int_equal(s.n_backlog_token, n_token);
}

/* Between being taken and the engine's next report nobody may think that there is room. */
static void what_has_been_taken_counts_until_the_engine_reports(void **state)
{
    (void)state;
    struct mailbox *m = open_box(4);
    mailbox_set_admission(m, &(struct admission_config){.max_num_seqs = 4,
                                                        .max_num_batched_tokens = 8,
                                                        .max_queued_tokens = 5});
    uint64_t id;
    submit(m, &id);
    expect_load(m, 1, 3);
    (void)mailbox_take_new(m);
    expect_load(m, 1, 3);
    struct sequence *next = make_sequence();
    assert_int_equal(mailbox_submit(m, next, &id, NULL), FATHOM_EBUSY);
    mailbox_publish(m, NULL, 0, &(fathom_stats){.n_waiting = 1, .n_backlog_token = 3});
    expect_load(m, 1, 3);
    mailbox_publish(m, NULL, 0, &(fathom_stats){.n_running = 1});
    expect_load(m, 0, 0);
    assert_int_equal(mailbox_submit(m, next, &id, NULL), FATHOM_OK);
    mailbox_check(m);
    mailbox_destroy(m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_failing_allocation_is_clean),
        cmocka_unit_test(ids_are_never_used_twice),
        cmocka_unit_test(an_entry_is_free_when_the_finish_has_been_read),
        cmocka_unit_test(events_keep_their_order_however_they_are_read),
        cmocka_unit_test(cancels_meet_the_right_job_once),
        cmocka_unit_test(seeds_follow_the_order_of_submission),
        cmocka_unit_test(poll_waits_no_longer_than_told),
        cmocka_unit_test(wake_reaches_a_sleeping_poll),
        cmocka_unit_test(after_a_fault_nothing_is_taken),
        cmocka_unit_test(closing_ends_the_wait),
        cmocka_unit_test(what_has_been_taken_counts_until_the_engine_reports),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
