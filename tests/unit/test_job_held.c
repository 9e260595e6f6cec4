/* test_job_held.c - the bytes of all answers: who is refused, and who gives way */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "base/crash.h"
#include "base/log.h"
#include "base/mem.h"
#include "server/job.h"

enum { N_JOB = 4, LIMIT = 1000 };

static struct served served;
static struct server_state flags;
static struct metrics metrics;
static struct jobs jobs;
static struct job *all[N_JOB];
static size_t n_shut[N_JOB];

static void count_shut(void *arg)
{
    ++*(size_t *)arg;
}

static const struct job_client_ops ops = {.resume = count_shut, .shut = count_shut};

/* Answers that are whole and on their way to their clients, the first one for longest. */
static int open_jobs(void **state)
{
    (void)state;
    log_set_level(LOG_LEVEL_ERROR);
    served.o.max_answer_bytes = LIMIT;
    metrics_init(&metrics, 1000);
    jobs = (struct jobs){.served = &served, .state = &flags, .metrics = &metrics};
    jobs_init(&jobs);
    for (size_t i = 0; i < N_JOB; i++) {
        struct job *job = all[i] = mem_calloc(1, sizeof *job);
        assert_non_null(job);
        n_shut[i] = 0;
        job->jobs = &jobs;
        job->crash_entry = CRASH_NO_ENTRY;
        job->state = JOB_DONE;
        job->attached = job->told = true;
        job->read_us = 100 + i;
        job->client = (struct job_client){&ops, &n_shut[i]};
        atomic_init(&job->n_ref, 1);
        (void)pthread_mutex_init(&job->lock, NULL);
        job->next = jobs.first;
        if (jobs.first) jobs.first->prev = job;
        jobs.first = job;
        jobs.n++;
    }
    return 0;
}

static int close_jobs(void **state)
{
    (void)state;
    for (size_t i = 0; i < N_JOB; i++) job_release(all[i]);
    assert_int_equal(atomic_load(&metrics.n_answer_byte), 0);
    assert_int_equal(jobs_count(&jobs), 0);
    jobs_free(&jobs);
    return 0;
}

static void hold(size_t i, size_t n)
{
    job_lock(all[i]);
    job_count_taken(all[i], n);
    job_unlock(all[i]);
}

static void nobody_gives_way_below_the_limit(void **state)
{
    (void)state;
    for (size_t i = 0; i < N_JOB; i++) hold(i, LIMIT / N_JOB);
    assert_int_equal(atomic_load(&metrics.n_answer_byte), LIMIT);
    assert_false(jobs_are_full(&jobs));
    jobs_make_room(&jobs);
    for (size_t i = 0; i < N_JOB; i++) assert_false(all[i]->cut);
}

static void who_has_not_read_for_longest_is_cut_first(void **state)
{
    (void)state;
    hold(0, 10); /* old, and not enough */
    hold(1, 600);
    hold(2, 600);
    hold(3, 390);
    assert_true(jobs_are_full(&jobs));
    jobs_make_room(&jobs);
    assert_true(all[0]->cut && all[1]->cut);
    assert_false(all[2]->cut || all[3]->cut);
    assert_int_equal(n_shut[0], 1);
    assert_int_equal(n_shut[1], 1);
    assert_int_equal(atomic_load(&metrics.n_backlog_cut), 2);
    jobs_make_room(&jobs); /* what the cut ones hold is on its way out, and they give way once */
    hold(0, 0);
    hold(1, 0);
    assert_false(jobs_are_full(&jobs));
}

static void a_stream_that_has_been_read_waits_for_nobody(void **state)
{
    (void)state;
    all[0]->request.stream = true; /* nothing in its buffer */
    all[0]->state = JOB_RUNNING;
    hold(0, 100);
    hold(1, 800);
    hold(2, 101);
    jobs_make_room(&jobs);
    assert_false(all[0]->cut);
    assert_true(all[1]->cut);
    assert_false(all[2]->cut);
    all[0]->state = JOB_DONE;
}

static void where_nobody_waits_the_largest_ends(void **state)
{
    (void)state;
    for (size_t i = 0; i < N_JOB; i++) {
        all[i]->state = JOB_RUNNING;
        all[i]->told = false;
        hold(i, i == 2 ? 500 : 200);
    }
    jobs_make_room(&jobs);
    for (size_t i = 0; i < N_JOB; i++) {
        assert_int_equal(all[i]->state, i == 2 ? JOB_DONE : JOB_RUNNING);
        assert_int_equal(all[i]->error.status, i == 2 ? 429 : 0);
        assert_int_equal(n_shut[i], 0);
    }
    assert_non_null(strstr(all[2]->error.diag.text, "and this one 500, which is the most"));
    for (size_t i = 0; i < N_JOB; i++) all[i]->state = JOB_DONE;
}

static void while_it_is_full_requests_are_refused(void **state)
{
    (void)state;
    hold(0, LIMIT + 1);
    struct job *job;
    struct buf body = {0};
    const struct job_setup setup = {
        .api = API_CHAT, .request_id = "", .client = {&ops, &n_shut[1]}};
    assert_int_equal(job_start(&job, &jobs, &setup, &body), FATHOM_OK);
    assert_int_equal(job->state, JOB_DONE);
    assert_int_equal(job->error.status, 429);
    assert_non_null(strstr(job->error.diag.text, "hold more than 1000 bytes, which is the limit"));
    assert_int_equal(job_next_action(job), JOB_ANSWER);
    struct job_summary summary;
    job_detach(job, &summary);
    assert_int_equal(summary.status, 429);
}

static fathom_err add_line(struct answer *a)
{
    return buf_add_char(&a->out, '\n');
}

/* The thread that ticks may have read the clock and then waited for the job, which began to run. */
static void a_stream_gets_a_line_once_it_has_been_silent(void **state)
{
    (void)state;
    static const struct answer_form form = {.keep_alive = add_line};
    struct job *job = all[0];
    served.o.idle_line_ms = 10;
    job->state = JOB_RUNNING;
    job->told = false;
    job->suspended = job->request.stream = true;
    job->answer.form = &form;
    job->moved_us = 50000;
    jobs_tick(&jobs, 49999);
    jobs_tick(&jobs, 59999);
    assert_true(job->suspended && job->answer.out.len == 0);
    jobs_tick(&jobs, 60000);
    assert_int_equal(job->answer.out.len, 1);
    assert_int_equal(n_shut[0], 1); /* resumed */
    job->state = JOB_DONE;
}

int main(void)
{
#define TEST(f) cmocka_unit_test_setup_teardown(f, open_jobs, close_jobs)
    const struct CMUnitTest tests[] = {
        TEST(nobody_gives_way_below_the_limit),
        TEST(who_has_not_read_for_longest_is_cut_first),
        TEST(a_stream_that_has_been_read_waits_for_nobody),
        TEST(where_nobody_waits_the_largest_ends),
        TEST(while_it_is_full_requests_are_refused),
        TEST(a_stream_gets_a_line_once_it_has_been_silent),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
