/* test_engine.c - the public functions over a runner without a model: what one caller sees */
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "base/clock.h"
#include "base/mem.h"
#include "support/answers.h"
#include "support/null_runner.h"

enum { EOS = 1 };

static const int32_t prompt[] = {10, 20, 30, 40, 50};
static struct answer answers[32];

static struct null_engine_options defaults(void)
{
    return (struct null_engine_options){
        .n_vocab = 1000,
        .max_model_len = 256,
        .max_num_seqs = 8,
        .max_num_batched_tokens = 64,
        .max_queued = 24,
        .seed = 3,
        .runner = {.n_page = 16},
    };
}

static fathom_engine *open_with(const struct null_engine_options *o)
{
    fathom_engine *e = NULL;
    assert_int_equal(null_engine_open(&e, o, NULL), FATHOM_OK);
    return e;
}

static fathom_engine *open_default(void)
{
    struct null_engine_options o = defaults();
    return open_with(&o);
}

static fathom_request greedy(uint32_t max_tokens)
{
    fathom_request r = {.prompt = prompt, .n_prompt = 5};
    fathom_sampling_init(&r.sampling);
    r.sampling.temperature = 0;
    r.sampling.max_tokens = max_tokens;
    return r;
}

static void output_is_what_the_tokens_before_it_say(void **state)
{
    (void)state;
    fathom_engine *e = open_default();
    fathom_request r = greedy(100);
    r.sampling.logprobs = true;
    answer_ask(e, &answers[0], &r);
    answers_wait(e, 1);
    const struct answer *a = &answers[0];
    int32_t ids[256];
    memcpy(ids, prompt, sizeof prompt);
    for (uint32_t i = 0; i < a->n; i++) {
        uint64_t s = null_state(ids, 5 + i);
        assert_int_equal(a->ids[i], s % 1000);
        assert_true(a->logprobs[i] == null_logprob(s));
        ids[5 + i] = a->ids[i];
    }
    assert_int_equal(a->finish.n_prompt, 5);
    assert_int_equal(a->finish.n_cached, 0);
    assert_int_equal(a->finish.finish, FATHOM_FINISH_LENGTH);
    assert_int_equal(a->n, 100);
    assert_true(a->finish.first_us > 0 && a->finish.total_us >= a->finish.first_us);
    assert_true(a->finish.first_us >= a->finish.queue_us);
    fathom_stats s;
    fathom_get_stats(e, &s);
    assert_int_equal(s.n_step, 100);
    assert_int_equal(s.n_prompt_token, 5);
    uint64_t n_step = 0;
    for (int i = 0; i < FATHOM_STEP_SIZES; i++) n_step += s.n_step_by_size[i];
    assert_int_equal(n_step, s.n_step);
    assert_int_equal(s.n_step_by_size[0], s.n_step - 1); /* all but the prompt's are of one token */
    assert_int_equal(s.n_step_by_size[1], 1);
    assert_int_equal(s.n_step_token, s.n_step - 1 + 5);
    assert_int_equal(s.n_output_token, 100);
    assert_int_equal(s.n_finished, 1);
    assert_false(s.failed);
    answers_expect_rest(e);
    fathom_close(e);
}

/* A first turn of 5 + 100 tokens and a second one that begins with it. */
static void run_two_turns(fathom_engine *e, uint64_t second_salt, bool reset)
{
    fathom_request r = greedy(100);
    r.cache_salt = 1;
    r.sampling.ignore_eos = true;
    answer_ask(e, &answers[0], &r);
    answers_wait(e, 1);
    int32_t ids[5 + 100 + 3] = {0};
    memcpy(ids, prompt, sizeof prompt);
    memcpy(ids + 5, answers[0].ids, 100 * sizeof ids[0]);
    r.prompt = ids;
    r.n_prompt = 108;
    r.cache_salt = second_salt;
    if (reset) fathom_reset_cache(e);
    answer_ask(e, &answers[1], &r);
    answers_wait(e, 1);
    assert_int_equal(answers[1].ids[0], null_state(ids, 108) % 1000);
    assert_int_equal(answers[0].finish.n_cached, 0);
}

static void a_second_turn_finds_the_first(void **state)
{
    (void)state;
    fathom_engine *e = open_default();
    fathom_stats s;
    run_two_turns(e, 1, false);
    assert_int_equal(answers[1].finish.n_cached, 64);
    fathom_get_stats(e, &s);
    assert_int_equal(s.n_prefix_query_token, 5 + 108);
    assert_int_equal(s.n_prefix_hit_token, 64);
    assert_int_equal(s.n_prompt_token, 5 + 108 - 64);
    answers_expect_rest(e);
    fathom_close(e);
}

static void a_reset_forgets_the_first(void **state)
{
    (void)state;
    fathom_engine *e = open_default();
    run_two_turns(e, 1, true);
    assert_int_equal(answers[1].finish.n_cached, 0);
    run_two_turns(e, 1, false); /* what came after the reset is found */
    assert_int_equal(answers[1].finish.n_cached, 64);
    answers_expect_rest(e);
    fathom_close(e);
}

static void a_page_of_another_salt_or_without_a_cache_is_not_found(void **state)
{
    (void)state;
    struct null_engine_options o = defaults();
    for (int i = 0; i < 2; i++) {
        o.no_prefix_cache = i == 1;
        fathom_engine *e = open_with(&o);
        fathom_stats s;
        run_two_turns(e, i == 0 ? 2 : 1, false);
        assert_int_equal(answers[1].finish.n_cached, 0);
        fathom_get_stats(e, &s);
        assert_int_equal(s.n_prefix_query_token, i == 0 ? 113 : 0);
        assert_int_equal(s.n_prefix_hit_token, 0);
        answers_expect_rest(e);
        fathom_close(e);
    }
}

static void info_and_files(void **state)
{
    (void)state;
    fathom_engine *e = open_default();
    const fathom_info *info = fathom_get_info(e);
    assert_string_equal(info->model_type, "null");
    assert_string_equal(info->backend, "null");
    assert_int_equal(info->n_page, 16);
    assert_int_equal(info->n_vocab, 1000);
    assert_int_equal(info->max_requests, 8 + 24);
    const char *data;
    size_t n;
    assert_int_equal(fathom_get_file(e, "config.json", &data, &n), FATHOM_ENOTFOUND);
    assert_string_equal(fathom_fault(e), "");
    fathom_close(e);
    fathom_close(NULL);
}

/* The id that the request draws at output position i, found by a run without stops. */
static int32_t drawn_at(uint32_t i)
{
    fathom_engine *e = open_default();
    fathom_request r = greedy(i + 1);
    answer_ask(e, &answers[0], &r);
    answers_wait(e, 1);
    fathom_close(e);
    return answers[0].ids[i];
}

static void a_stop_id_ends_it_and_is_reported(void **state)
{
    (void)state;
    int32_t stop_ids[] = {999, drawn_at(6)};
    fathom_engine *e = open_default();
    fathom_request r = greedy(50);
    r.sampling.stop_ids = stop_ids;
    r.sampling.n_stop_id = 2;
    answer_ask(e, &answers[0], &r);
    answers_wait(e, 1);
    assert_int_equal(answers[0].n, 7);
    assert_true(answers[0].stopped);
    assert_int_equal(answers[0].finish.finish, FATHOM_FINISH_STOP);
    assert_int_equal(answers[0].finish.stop_id, stop_ids[1]);
    answers_expect_rest(e);
    fathom_close(e);
}

static void eos_stops_unless_told_otherwise(void **state)
{
    (void)state;
    struct null_engine_options o = defaults();
    o.n_vocab = 20; /* EOS comes soon */
    fathom_engine *e = open_with(&o);
    const int32_t small[] = {10, 11, 12};
    fathom_request r = greedy(200);
    r.prompt = small;
    r.n_prompt = 3;
    answer_ask(e, &answers[0], &r);
    r.sampling.ignore_eos = true;
    answer_ask(e, &answers[1], &r);
    r.sampling.ignore_eos = false;
    r.sampling.min_tokens = 150;
    answer_ask(e, &answers[2], &r);
    answers_wait(e, 3);
    assert_int_equal(answers[0].finish.finish, FATHOM_FINISH_STOP);
    assert_int_equal(answers[0].finish.stop_id, EOS);
    assert_int_equal(answers[1].n, 200);
    assert_int_equal(answers[1].ids[answers[0].n - 1], EOS); /* drawn, and no end */
    assert_true(answers[2].n > 150);
    for (uint32_t i = 0; i < 150; i++) assert_int_not_equal(answers[2].ids[i], EOS);
    answers_expect_rest(e);
    fathom_close(e);
}

static void no_max_tokens_means_up_to_the_models_length(void **state)
{
    (void)state;
    fathom_engine *e = open_default();
    fathom_request r = greedy(0);
    r.sampling.ignore_eos = true;
    answer_ask(e, &answers[0], &r);
    answers_wait(e, 1);
    assert_int_equal(answers[0].n, 256 - 5);
    assert_int_equal(answers[0].finish.finish, FATHOM_FINISH_LENGTH);
    fathom_close(e);
}

static void alternatives_come_with_each_token(void **state)
{
    (void)state;
    fathom_engine *e = open_default();
    fathom_request plain = greedy(4), r = greedy(4);
    r.sampling.n_top_logprobs = 20;
    fathom_event events[16];
    answer_ask(e, &answers[0], &plain); /* a neighbour without any */
    answer_ask(e, &answers[1], &r);
    uint32_t n_with = 0;
    for (size_t n_done = 0; n_done < 2;) {
        size_t n = fathom_poll(e, events, 16, -1);
        for (size_t i = 0; i < n; i++) {
            const fathom_event *v = &events[i];
            n_done += v->kind == FATHOM_EVENT_FINISH;
            if (v->kind != FATHOM_EVENT_TOKEN) continue;
            assert_int_equal(v->n_top, v->user == &answers[1] ? 20 : 0);
            if (v->n_top == 0) continue;
            n_with++;
            assert_int_equal(v->top[0].id, v->token);
            assert_int_equal(v->top[3].id, (v->token + 3) % 1000);
            assert_true(v->top[0].logprob == v->logprob);
            assert_true(v->top[19].logprob == v->logprob - 19);
        }
    }
    assert_int_equal(n_with, 4);
    fathom_close(e);
}

/* Each prompt token's number follows from the ids before it, whatever the steps: few rows of
 * logits, drafts, neighbours, a prompt that is in the cache. */
static void prompt_tokens_are_told_once_and_in_order(void **state)
{
    (void)state;
    for (uint32_t n_draft = 0; n_draft < 3; n_draft++) {
        struct null_engine_options o = defaults();
        o.n_draft = n_draft;
        o.max_score = 7;
        fathom_engine *e = open_with(&o);
        int32_t ids[150];
        for (int32_t i = 0; i < 150; i++) ids[i] = 2 + i * 7 % 900;
        for (uint32_t round = 0; round < 2; round++) {
            for (uint32_t i = 0; i < 8; i++) {
                fathom_request r = greedy(20);
                r.prompt = ids + i;
                r.n_prompt = 150 - 20 * i;
                r.sampling.ignore_eos = true;
                r.sampling.prompt_logprobs = i % 4 != 3;
                r.sampling.n_prompt_top_logprobs = i % 3;
                answer_ask(e, &answers[i], &r);
            }
            answers_wait(e, 8);
            for (uint32_t i = 0; i < 8; i++) {
                const struct answer *a = &answers[i];
                uint32_t n_prompt = 150 - 20 * i;
                assert_int_equal(a->n, 20);
                assert_int_equal(a->n_prompt, i % 4 != 3 ? n_prompt - 1 : 0);
                assert_int_equal(a->finish.n_output, 20);
                if (a->n_prompt > 0) assert_int_equal(a->finish.n_cached, 0);
                for (uint32_t k = 0; k < a->n_prompt; k++) {
                    uint64_t s = null_state(ids + i, k + 1);
                    assert_int_equal(a->prompt[k].id, ids[i + k + 1]);
                    assert_true(a->prompt[k].logprob == null_logprob(s));
                    assert_int_equal(a->prompt[k].place, s % 100 + 1);
                    assert_int_equal(a->prompt[k].n_top, i % 3);
                    if (i % 3 > 0) assert_int_equal(a->prompt[k].top[0].id, s % 1000);
                }
            }
            answers_expect_rest(e);
        }
        fathom_close(e);
    }
}

static void seeds_make_runs_repeatable(void **state)
{
    (void)state;
    struct null_engine_options o = defaults();
    fathom_engine *e = open_with(&o);
    fathom_request r = greedy(20);
    r.sampling.temperature = 1;
    answer_ask(e, &answers[0], &r);
    answer_ask(e, &answers[1], &r); /* without a seed each request has its own */
    r.sampling.has_seed = true;
    r.sampling.seed = 42;
    answer_ask(e, &answers[2], &r);
    answer_ask(e, &answers[3], &r);
    r.sampling.seed = 43;
    answer_ask(e, &answers[4], &r);
    answers_wait(e, 5);
    fathom_close(e);
    assert_memory_not_equal(answers[0].ids, answers[1].ids, 20 * sizeof(int32_t));
    assert_memory_equal(answers[2].ids, answers[3].ids, 20 * sizeof(int32_t));
    assert_memory_not_equal(answers[2].ids, answers[4].ids, 20 * sizeof(int32_t));
    e = open_with(&o); /* the same engine seed: the first request draws the same again */
    r = greedy(20);
    r.sampling.temperature = 1;
    answer_ask(e, &answers[5], &r);
    answers_wait(e, 1);
    fathom_close(e);
    assert_memory_equal(answers[0].ids, answers[5].ids, 20 * sizeof(int32_t));
}

static void penalties_and_bias_reach_the_sampler(void **state)
{
    (void)state;
    const fathom_bias bias[] = {{3, 5}};
    fathom_engine *e = open_default();
    fathom_request r = greedy(30);
    r.sampling.frequency_penalty = 0.5f;
    answer_ask(e, &answers[0], &r);
    r = greedy(30);
    r.sampling.bias = bias;
    r.sampling.n_bias = 1;
    answer_ask(e, &answers[1], &r);
    answers_wait(e, 2);
    int32_t ids[64];
    memcpy(ids, prompt, sizeof prompt);
    const struct sample_bias want_bias[] = {{3, 5}};
    for (uint32_t i = 0; i < answers[0].n; i++) {
        struct sample_row row = {
            .n_prompt = 5, .n_output = i, .n_vocab_used = 1000, .mask_offset = SAMPLE_NONE};
        assert_int_equal(answers[0].ids[i],
                         null_draw(null_state(ids, 5 + i), &row, ids, NULL, NULL, NULL));
        ids[5 + i] = answers[0].ids[i];
    }
    struct sample_row row = {.n_bias = 1, .n_vocab_used = 1000, .mask_offset = SAMPLE_NONE};
    assert_int_equal(answers[1].ids[0],
                     null_draw(null_state(prompt, 5), &row, NULL, want_bias, NULL, NULL));
    fathom_close(e);
}

static void bad_requests_are_refused_at_the_door(void **state)
{
    (void)state;
    fathom_engine *e = open_default();
    fathom_request r = greedy(4);
    uint64_t id;
    fathom_diag d = {{0}};
    r.sampling.top_p = 0;
    assert_int_equal(fathom_submit(e, &r, &id, &d), FATHOM_EINVAL);
    assert_string_equal(d.text, "top_p is 0, needed is (0, 1]");
    r = greedy(252);
    fathom_diag d2 = {{0}};
    assert_int_equal(fathom_submit(e, &r, &id, &d2), FATHOM_ELIMIT);
    answers_expect_rest(e);
    fathom_close(e);
}

static void a_caller_that_does_not_poll_loses_nothing_and_blocks_nobody(void **state)
{
    (void)state;
    fathom_engine *e = open_default(); /* 32 slots */
    fathom_request r = greedy(100);
    r.sampling.ignore_eos = true;
    for (int i = 0; i < 32; i++) answer_ask(e, &answers[i], &r);
    struct answer extra;
    fathom_diag d = {{0}};
    assert_int_equal(answer_submit(e, &extra, &r, &d), FATHOM_EBUSY);
    assert_non_null(strstr(d.text, "the queue is full"));
    fathom_stats s;
    do {
        clock_sleep_us(1000);
        fathom_get_stats(e, &s);
    } while (s.n_finished < 32);
    assert_int_equal(answer_submit(e, &extra, &r, NULL), FATHOM_EBUSY); /* finished, not read */
    answers_wait(e, 32);
    for (int i = 0; i < 32; i++) assert_int_equal(answers[i].n, 100);
    for (int i = 1; i < 32; i++) {
        assert_memory_equal(answers[i].ids, answers[0].ids, 100 * sizeof(int32_t));
    }
    answer_ask(e, &extra, &r);
    answers_wait(e, 1);
    answers_expect_rest(e);
    fathom_close(e);
}

static void cancel_works_waiting_running_and_late(void **state)
{
    (void)state;
    struct null_engine_options o = defaults();
    struct null_gate gate;
    null_gate_init(&gate);
    o.max_num_seqs = 1;
    o.runner.gate = &gate;
    fathom_engine *e = open_with(&o);
    fathom_request r = greedy(200);
    r.sampling.ignore_eos = true;
    answer_ask(e, &answers[0], &r);
    answer_ask(e, &answers[1], &r);
    null_gate_let(&gate, 3);
    while (answers[0].n < 3) answers_take(e, 1000);
    fathom_request w = greedy(200);
    uint64_t waiting_id;
    w.user = &answers[2];
    answers[2] = (struct answer){0};
    assert_int_equal(fathom_submit(e, &w, &waiting_id, NULL), FATHOM_OK);
    fathom_cancel(e, waiting_id);
    fathom_cancel(e, answers[0].id);
    fathom_cancel(e, answers[0].id);
    fathom_cancel(e, 12345678);
    null_gate_open(&gate);
    answers_wait(e, 2);
    assert_int_equal(answers[0].finish.finish, FATHOM_FINISH_CANCEL);
    assert_in_range(answers[0].n, 3, 4); /* with the step that ran, if it had begun */
    assert_int_equal(answers[2].finish.finish, FATHOM_FINISH_CANCEL);
    assert_int_equal(answers[2].n, 0);
    assert_int_equal(answers[2].finish.first_us, 0);
    answers_wait(e, 1);
    assert_int_equal(answers[1].n, 200);
    fathom_cancel(e, answers[1].id);
    fathom_stats s;
    fathom_get_stats(e, &s);
    assert_int_equal(s.n_cancelled, 2);
    assert_int_equal(s.n_finished, 1);
    answers_expect_rest(e);
    fathom_close(e);
}

static void the_first_device_error_ends_everything_with_its_cause(void **state)
{
    (void)state;
    struct null_engine_options o = defaults();
    struct null_gate gate;
    null_gate_init(&gate);
    o.runner.fail_after = 5;
    o.runner.gate = &gate;
    o.max_num_seqs = 2;
    fathom_engine *e = open_with(&o);
    fathom_request r = greedy(100);
    r.sampling.ignore_eos = true;
    answer_ask(e, &answers[0], &r);
    answer_ask(e, &answers[1], &r);
    answer_ask(e, &answers[2], &r); /* waits */
    null_gate_open(&gate);
    answers_wait(e, 3);
    for (int i = 0; i < 3; i++) {
        assert_int_equal(answers[i].finish.finish, FATHOM_FINISH_ERROR);
        assert_true(answers[i].n <= 5);
    }
    assert_string_equal(fathom_fault(e), "the null device burns");
    fathom_diag d = {{0}};
    assert_int_equal(answer_submit(e, &answers[0], &r, &d), FATHOM_EDEVICE);
    assert_string_equal(d.text, "the engine has failed: the null device burns");
    fathom_stats s;
    fathom_get_stats(e, &s);
    assert_true(s.failed);
    assert_int_equal(s.n_step, 5);
    answers_expect_rest(e);
    fathom_close(e);
}

/* With drafts a step has several launches; whichever fails, it is the last. */
static void a_device_error_while_drafting_ends_everything(void **state)
{
    (void)state;
    struct null_engine_options o = defaults();
    o.n_draft = 3;
    for (o.runner.fail_after = 1; o.runner.fail_after < 12; o.runner.fail_after++) {
        fathom_engine *e = open_with(&o);
        fathom_request r = greedy(100);
        r.sampling.ignore_eos = true;
        answer_ask(e, &answers[0], &r);
        answers_wait(e, 1);
        assert_int_equal(answers[0].finish.finish, FATHOM_FINISH_ERROR);
        assert_string_equal(fathom_fault(e), "the null device burns");
        fathom_close(e);
    }
}

static void drafts_are_counted_by_place(void **state)
{
    (void)state;
    struct null_engine_options o = defaults();
    o.n_draft = 3;
    fathom_engine *e = open_with(&o);
    assert_int_equal(fathom_get_info(e)->n_draft, 3);
    fathom_request r = greedy(101);
    r.sampling.ignore_eos = true;
    answer_ask(e, &answers[0], &r);
    answers_wait(e, 1);
    fathom_stats s;
    fathom_get_stats(e, &s);
    assert_int_equal(s.n_step, 1 + 25); /* the prompt's, then four tokens a step */
    assert_int_equal(s.n_output_token, 101);
    for (int i = 0; i < 3; i++) {
        assert_int_equal(s.n_draft_token[i], 25);
        assert_int_equal(s.n_accepted_token[i], 25);
    }
    assert_int_equal(s.n_draft_token[3], 0);
    fathom_close(e);
}

static void closing_with_live_requests_releases_everything(void **state)
{
    (void)state;
    struct null_engine_options o = defaults();
    o.runner.step_us = 500;
    fathom_engine *e = open_with(&o);
    fathom_request r = greedy(200);
    for (int i = 0; i < 20; i++) answer_ask(e, &answers[i], &r);
    answers_take(e, 1000);
    fathom_close(e);
}

static void every_failing_allocation_is_clean(void **state)
{
    (void)state;
    struct null_engine_options o = defaults();
    o.n_draft = 2;
    for (long n = 0;; n++) {
        fathom_engine *e = NULL;
        mem_fail_after(n);
        fathom_err err = null_engine_open(&e, &o, NULL);
        bool hit = mem_fail_hit();
        mem_fail_after(-1);
        if (hit) {
            assert_int_equal(err, FATHOM_ENOMEM);
            assert_null(e);
            continue;
        }
        assert_int_equal(err, FATHOM_OK);
        assert_true(n > 10);
        fathom_request r = greedy(3);
        mem_fail_after(0);
        assert_int_equal(answer_submit(e, &answers[0], &r, NULL), FATHOM_ENOMEM);
        mem_fail_after(-1);
        answers_expect_rest(e);
        fathom_close(e);
        return;
    }
}

static void a_pool_too_small_for_one_request_is_refused(void **state)
{
    (void)state;
    struct null_engine_options o = defaults();
    o.runner.n_page = 3;
    fathom_engine *e = NULL;
    fathom_diag d = {{0}};
    assert_int_equal(null_engine_open(&e, &o, &d), FATHOM_EINVAL);
    assert_string_equal(d.text, "3 pages do not hold one request of 256 tokens");
    assert_null(e);
}

static uint64_t progress_of(fathom_engine *e)
{
    fathom_stats s;
    fathom_get_stats(e, &s);
    return s.progress;
}

/* A device that tells of its parts moves with each; one that does not moves with the step alone. */
static void a_slow_step_is_not_a_stuck_one(void **state)
{
    (void)state;
    enum { N_PART = 10 };
    struct null_engine_options o = defaults();
    struct null_gate gate;
    o.runner.gate = &gate;
    for (int parts = 0; parts < 2; parts++) {
        o.runner.n_part = parts ? N_PART : 0;
        null_gate_init(&gate);
        fathom_engine *e = open_with(&o);
        fathom_request r = greedy(1);
        answer_ask(e, &answers[0], &r);
        null_gate_wait(&gate);
        uint64_t last = progress_of(e);
        for (int i = 1; i < N_PART; i++) {
            clock_sleep_us(1000);
            assert_true(progress_of(e) == last); /* nothing has been let */
            if (!parts) continue;
            null_gate_let(&gate, 1);
            null_gate_wait(&gate);
            assert_true(progress_of(e) > last);
            last = progress_of(e);
        }
        null_gate_open(&gate);
        answers_wait(e, 1);
        assert_true(progress_of(e) > last);
        fathom_close(e);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(output_is_what_the_tokens_before_it_say),
        cmocka_unit_test(a_second_turn_finds_the_first),
        cmocka_unit_test(a_reset_forgets_the_first),
        cmocka_unit_test(a_page_of_another_salt_or_without_a_cache_is_not_found),
        cmocka_unit_test(info_and_files),
        cmocka_unit_test(a_stop_id_ends_it_and_is_reported),
        cmocka_unit_test(eos_stops_unless_told_otherwise),
        cmocka_unit_test(no_max_tokens_means_up_to_the_models_length),
        cmocka_unit_test(alternatives_come_with_each_token),
        cmocka_unit_test(prompt_tokens_are_told_once_and_in_order),
        cmocka_unit_test(seeds_make_runs_repeatable),
        cmocka_unit_test(penalties_and_bias_reach_the_sampler),
        cmocka_unit_test(bad_requests_are_refused_at_the_door),
        cmocka_unit_test(a_caller_that_does_not_poll_loses_nothing_and_blocks_nobody),
        cmocka_unit_test(cancel_works_waiting_running_and_late),
        cmocka_unit_test(the_first_device_error_ends_everything_with_its_cause),
        cmocka_unit_test(a_device_error_while_drafting_ends_everything),
        cmocka_unit_test(drafts_are_counted_by_place),
        cmocka_unit_test(closing_with_live_requests_releases_everything),
        cmocka_unit_test(every_failing_allocation_is_clean),
        cmocka_unit_test(a_pool_too_small_for_one_request_is_refused),
        cmocka_unit_test(a_slow_step_is_not_a_stuck_one),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
