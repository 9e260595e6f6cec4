/* test_prepare.c - what a worker does with a request, with each allocation failing in turn
 *
 * The worker parses, checks, renders, tokenises, compiles a grammar and submits. A failure is
 * answered with 500 and nothing is left. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "base/clock.h"
#include "base/crash.h"
#include "base/fail.h"
#include "base/limits.h"
#include "base/log.h"
#include "base/mem.h"
#include "server/grammar_cache.h"
#include "server/job.h"
#include "support/null_runner.h"
#include "support/patience.h"

#define TOKENIZER_JSON FATHOM_SOURCE_DIR "/models/pilot/tokenizer.json"

#define TOOLS                                                                                      \
    "\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"f\",\"parameters\":{\"type\":"     \
    "\"object\",\"properties\":{\"a\":{\"type\":\"string\"}}}}}]"

static fathom_engine *engine;
static struct tokenizer *tokenizer;
static struct served served;
static struct server_state flags;
static struct metrics metrics;
static struct jobs jobs;

static fathom_err open_engine(fathom_diag *d)
{
    static const char *const names[] = {"m"};
    const struct server_options o = {.model_names = names, .n_model_name = 1};
    const struct chat_style style = {.encoding = CHAT_ENCODING_V32,
                                     .tool_markup = CHAT_ENCODING_V32,
                                     .parse_tools = true,
                                     .parse_reasoning = true};
    struct null_engine_options e = {
        .max_model_len = 1024,
        .max_num_seqs = 4,
        .max_num_batched_tokens = 256,
        .max_queued = 8,
        .runner = {.n_page = 64, .skip_attention = true},
    };
    TRY(tokenizer_open_file(&tokenizer, TOKENIZER_JSON, d));
    e.n_vocab = (uint32_t)tokenizer_n_token(tokenizer);
    TRY(null_engine_open(&engine, &e, d));
    return served_open(&served, &o, engine, tokenizer, &style, d);
}

static int open_jobs(void **state)
{
    (void)state;
    fathom_diag d = {{0}};
    log_set_level(LOG_LEVEL_ERROR);
    if (open_engine(&d) != FATHOM_OK) fail_msg("%s", d.text);
    const struct grammar_cache_config grammars = {.tokenizer = tokenizer,
                                                  .n_vocab = served.info->n_vocab,
                                                  .max_bytes = LIMIT_GRAMMAR_CACHE_BYTES};
    metrics_init(&metrics, served.info->max_model_len);
    flags.max_held_bytes = served.o.max_held_bytes;
    jobs = (struct jobs){.served = &served, .state = &flags, .metrics = &metrics};
    assert_int_equal(grammar_cache_create(&jobs.grammars, &grammars), FATHOM_OK);
    jobs_init(&jobs);
    return 0;
}

static int close_jobs(void **state)
{
    (void)state;
    jobs_free(&jobs);
    grammar_cache_destroy(jobs.grammars);
    fathom_close(engine);
    tokenizer_close(tokenizer);
    return 0;
}

/* A job without a client, as a worker takes it. One reference is the worker's. */
static struct job *make_job(enum api_kind api, const char *body)
{
    struct job *job = mem_calloc(1, sizeof *job);
    assert_non_null(job);
    job->jobs = &jobs;
    job->api = api;
    job->start_us = clock_now_us();
    job->crash_entry = CRASH_NO_ENTRY;
    assert_int_equal(buf_add_str(&job->body, body), FATHOM_OK);
    assert_true(state_hold_bytes(&flags, job->body.len));
    atomic_init(&job->n_ref, 2);
    (void)pthread_mutex_init(&job->lock, NULL);
    jobs.first = job;
    jobs.n = 1;
    return job;
}

/* Until the engine has given back every request of the job. */
static void wait_for_end(struct job *job)
{
    fathom_event events[16];
    uint64_t end_us = 0;
    while (atomic_load(&job->n_ref) > 1 && keep_waiting(&end_us)) {
        size_t n = fathom_poll(engine, events, 16, 10);
        for (size_t i = 0; i < n; i++) job_take_event(&events[i]);
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
    if (job_prepare(job, WORK_PREPARE) == WORK_TO_COMPILE) {
        assert_int_equal(job_prepare(job, WORK_COMPILE), WORK_DONE);
    }
    bool hit = mem_fail_hit();
    mem_fail_after(-1);
    job_release(job); /* the workers' */
    wait_for_end(job);
    if (hit && job->error.status == 0) ++*n_spare;
    if (job->error.status != 0 && !(hit && job->error.status == 500)) {
        fail_msg("allocation %ld of %s: status %d, %s", n, body, job->error.status,
                 job->error.diag.text);
    }
    job_release(job);
    assert_int_equal(jobs_count(&jobs), 0);
    assert_int_equal(atomic_load(&flags.held_bytes), 0);
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
                   "\"required\":[\"a\"]}}},\"chat_template_kwargs\":{\"thinking\":true},"
                   "\"thinking_token_budget\":2}"},
        {API_COMPLETION, "{\"prompt\":[\"a b\",\"c\"],\"echo\":true,\"logprobs\":2,\"max_tokens\":"
                         "3,\"logit_bias\":{\"5\":-1},\"stop\":\"q\",\"stop_token_ids\":[7]}"},
        {API_COMPLETION, "{\"prompt\":[[5,6,7],[8]],\"n\":2,\"max_tokens\":3}"},
        {API_SGLANG,
         "{\"text\":[\"a b\",\"c\"],\"return_logprob\":[true,false],\"sampling_params\":"
         "[{\"max_new_tokens\":2,\"stop\":\"q\"},{\"max_new_tokens\":3,\"json_schema\":"
         "\"{\\\"type\\\":\\\"integer\\\"}\"}]}"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        long n = 0, n_spare = 0;
        while (prepare_without(cases[i].api, cases[i].body, n, &n_spare)) n++;
        assert_true(n > 10 && n_spare <= 2);
    }
}

/* Takes the engine's events, of which the last says that a constraint has failed. */
static void fail_at_the_end(struct job *job)
{
    fathom_event events[16];
    uint64_t end_us = 0;
    while (job->state != JOB_DONE && keep_waiting(&end_us)) {
        size_t n = fathom_poll(engine, events, 16, 10);
        for (size_t i = 0; i < n; i++) {
            if (events[i].kind == FATHOM_EVENT_FINISH) events[i].finish = FATHOM_FINISH_CONSTRAINT;
            job_take_event(&events[i]);
        }
    }
    assert_int_equal(job->state, JOB_DONE);
}

/* However late the connection comes for it. */
static void an_error_behind_the_first_bytes_is_an_event(void **state)
{
    (void)state;
    static const char *const forms[] = {"true", "false"};
    for (size_t i = 0; i < 2; i++) {
        char body[128], bytes[4096];
        struct job_answer answer;
        (void)snprintf(body, sizeof body, "{\"prompt\":\"a\",\"max_tokens\":1,\"stream\":%s}",
                       forms[i]);
        struct job *job = make_job(API_COMPLETION, body);
        assert_int_equal(job_prepare(job, WORK_PREPARE), WORK_DONE);
        fail_at_the_end(job);
        assert_int_equal(job_next_action(job), JOB_ANSWER);
        assert_int_equal(job_take_answer(job, &answer), FATHOM_OK);
        if (i == 0) {
            assert_true(answer.status == 200 && answer.stream);
            const ssize_t n = job_read(job, bytes, sizeof bytes - 1);
            assert_true(n > 0);
            bytes[n] = '\0';
            const char *error = strstr(bytes, "\"grammar_failed\"");
            assert_true(error && strstr(bytes, "\"text\"") && strstr(bytes, "\"text\"") < error);
            assert_int_equal(job_read(job, bytes, sizeof bytes), JOB_END);
        } else {
            assert_true(answer.status == 500 && !answer.stream);
            assert_non_null(strstr(buf_str(&answer.body), "\"grammar_failed\""));
        }
        buf_free(&answer.body);
        job_release(job);
        job_release(job);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_failing_allocation_is_answered),
        cmocka_unit_test(an_error_behind_the_first_bytes_is_an_event),
    };
    json_set_alloc_funcs(mem_alloc, mem_free);
    return cmocka_run_group_tests(tests, open_jobs, close_jobs);
}
