/* What a worker does with a request - parse, check, render, tokenise, compile a grammar, submit -
 * with each allocation failing in turn: it is answered with 500 and nothing is left. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"
#include "server/job.h"
#include "server/watch.h"
#include "support/null_server.h"
#include "support/patience.h"

#define TOOLS                                                                                      \
    "\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"f\",\"parameters\":{\"type\":"     \
    "\"object\",\"properties\":{\"a\":{\"type\":\"string\"}}}}}]"

static struct null_server server;

static int open_server(void **state)
{
    (void)state;
    const struct null_engine_options e = {
        .max_model_len = 1024,
        .max_num_seqs = 4,
        .max_num_batched_tokens = 256,
        .max_queued = 8,
        .runner = {.n_page = 64, .skip_attention = true},
    };
    fathom_diag d = {{0}};
    log_set_level(LOG_LEVEL_ERROR);
    if (null_server_open(&server, &e, NULL, &d) != FATHOM_OK) fail_msg("%s", d.text);
    return 0;
}

static int close_server(void **state)
{
    (void)state;
    null_server_close(&server);
    return 0;
}

/* A job without a connection, as a worker takes it. One reference is the worker's. */
static struct job *make_job(enum api_kind api, const char *body)
{
    struct server *s = server.server;
    struct job *job = mem_calloc(1, sizeof *job);
    assert_non_null(job);
    job->server = s;
    job->api = api;
    job->fd = -1;
    job->watch_entry = WATCH_NONE;
    job->start_us = clock_now_us();
    job->crash_slot = -1;
    assert_int_equal(buf_add_str(&job->body, body), FATHOM_OK);
    assert_true(server_hold_bytes(s, job->body.len));
    atomic_init(&job->n_ref, 2);
    (void)pthread_mutex_init(&job->lock, NULL);
    (void)pthread_mutex_lock(&s->jobs_lock);
    job->next = s->jobs;
    if (s->jobs) s->jobs->prev = job;
    s->jobs = job;
    s->n_job++;
    (void)pthread_mutex_unlock(&s->jobs_lock);
    return job;
}

/* Until the poll thread has given back every request of the job. */
static void wait_for_end(struct job *job)
{
    uint64_t end_us = 0;
    while (atomic_load(&job->n_ref) > 1 && keep_waiting(&end_us)) {
    }
    assert_int_equal(atomic_load(&job->n_ref), 1);
    assert_int_equal(job->state, JOB_DONE);
}

/* Returns whether the n-th allocation was made, and failed; counts those that a request can do
 * without, for what is remembered for others. */
static bool prepare_without(enum api_kind api, const char *body, long n, long *n_spare)
{
    struct job *job = make_job(api, body);
    mem_fail_after(n);
    job_prepare(job);
    bool hit = mem_fail_hit();
    mem_fail_after(-1);
    wait_for_end(job);
    if (hit && job->error.status == 0) ++*n_spare;
    if (job->error.status != 0 && !(hit && job->error.status == 500)) {
        fail_msg("allocation %ld of %s: status %d, %s", n, body, job->error.status,
                 job->error.diag.text);
    }
    job_release(job);
    assert_int_equal(server_n_job(server.server), 0);
    assert_int_equal(atomic_load(&server.server->held_bytes), 0);
    return hit;
}

static void each_failing_allocation_is_answered(void **state)
{
    (void)state;
    static const struct {
        enum api_kind api;
        const char *body;
    } cases[] = {
        {API_CHAT, "{\"messages\":[{\"role\":\"system\",\"content\":\"a\"},{\"role\":\"user\","
                   "\"content\":\"b\"}],\"n\":2,\"stream\":true,\"stop\":[\"x\"],\"max_tokens\":"
                   "4,\"logprobs\":true,\"top_logprobs\":2,\"return_token_ids\":true," TOOLS "}"},
        {API_CHAT, "{\"messages\":[{\"role\":\"user\",\"content\":\"b\"}],\"max_tokens\":4,"
                   "\"response_format\":{\"type\":\"json_schema\",\"json_schema\":{\"name\":\"s\","
                   "\"schema\":{\"type\":\"object\",\"properties\":{\"a\":{\"type\":\"integer\"}},"
                   "\"required\":[\"a\"]}}}}"},
        {API_COMPLETION, "{\"prompt\":[\"a b\",\"c\"],\"echo\":true,\"logprobs\":2,\"max_tokens\":"
                         "3,\"logit_bias\":{\"5\":-1},\"stop\":\"q\",\"stop_token_ids\":[7]}"},
        {API_COMPLETION, "{\"prompt\":[[5,6,7],[8]],\"n\":2,\"max_tokens\":3}"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        long n = 0, n_spare = 0;
        while (prepare_without(cases[i].api, cases[i].body, n, &n_spare)) n++;
        assert_true(n > 10 && n_spare <= 2);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_failing_allocation_is_answered),
    };
    json_set_alloc_funcs(mem_alloc, mem_free);
    return cmocka_run_group_tests(tests, open_server, close_server);
}
