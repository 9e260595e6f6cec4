/* test_sequence.c - every range of a request, the message for each, the copy, and the events */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "base/fail.h"
#include "base/limits.h"
#include "base/mem.h"
#include "engine/sequence.h"

static const struct sequence_limits limits = {
    .max_model_len = 100, .n_vocab = 50, .n_vocab_used = 48, .eos_ids = {1, 2}, .n_eos = 2};
static const int32_t prompt[] = {10, 20, 30};

static fathom_request make(void)
{
    fathom_request r = {.prompt = prompt, .n_prompt = 3, .user = (void *)prompt};
    fathom_sampling_init(&r.sampling);
    return r;
}

static void expect(const fathom_request *r, fathom_err err, const char *part)
{
    fathom_diag d = {{0}};
    assert_int_equal(sequence_check(r, &limits, &d), err);
    if (err != FATHOM_OK && !strstr(d.text, part)) fail_msg("\"%s\" not in \"%s\"", part, d.text);
}

static void neutral_sampling_is_valid(void **state)
{
    (void)state;
    fathom_request r = make();
    assert_true(r.sampling.temperature == 1 && r.sampling.top_p == 1);
    assert_true(r.sampling.repetition_penalty == 1 && r.sampling.top_k == 0);
    expect(&r, FATHOM_OK, "");
}

static void lengths_name_both_numbers(void **state)
{
    (void)state;
    fathom_request r = make();
    r.n_prompt = 0;
    expect(&r, FATHOM_EINVAL, "prompt is empty");
    r = make();
    r.prompt = NULL;
    expect(&r, FATHOM_EINVAL, "prompt is empty");
    r = make();
    r.sampling.max_tokens = 97;
    expect(&r, FATHOM_OK, "");
    r.sampling.max_tokens = 98;
    expect(&r, FATHOM_ELIMIT, "max_tokens is 98");
    expect(&r, FATHOM_ELIMIT, "100 tokens. Give max_tokens 97");
    r.sampling.max_tokens = UINT32_MAX;
    expect(&r, FATHOM_ELIMIT, "max_tokens is 4294967295");
    int32_t ids[100] = {0};
    r = make();
    r.prompt = ids;
    r.n_prompt = 99;
    expect(&r, FATHOM_OK, "");
    r.n_prompt = 100;
    expect(&r, FATHOM_ELIMIT, "100 tokens");
}

static void ids_out_of_the_vocabulary_are_named(void **state)
{
    (void)state;
    const int32_t low[] = {3, -1}, high[] = {3, 49, 50};
    fathom_request r = make();
    r.prompt = low;
    r.n_prompt = 2;
    expect(&r, FATHOM_EINVAL, "prompt[1] is -1, needed is 0 to 49");
    r.prompt = high;
    r.n_prompt = 3;
    expect(&r, FATHOM_EINVAL, "prompt[2] is 50");
    r = make();
    r.sampling.stop_ids = high;
    r.sampling.n_stop_id = 3;
    expect(&r, FATHOM_EINVAL, "stop_ids[2] is 50");
    r.sampling.n_stop_id = 2;
    expect(&r, FATHOM_OK, "");
    const fathom_bias bias[] = {{49, 1}, {50, 1}};
    r.sampling.bias = bias;
    r.sampling.n_bias = 2;
    expect(&r, FATHOM_EINVAL, "bias[1] is 50");
}

static void long_and_missing_lists_are_refused(void **state)
{
    (void)state;
    fathom_request r = make();
    r.sampling.stop_ids = prompt;
    r.sampling.n_stop_id = LIMIT_STOP_TOKENS + 1;
    expect(&r, FATHOM_EINVAL, "stop_ids has 65 entries, allowed are 64");
    r.sampling.stop_ids = NULL;
    r.sampling.n_stop_id = 1;
    expect(&r, FATHOM_EINVAL, "stop_ids is NULL");
    r = make();
    r.sampling.n_bias = 1;
    expect(&r, FATHOM_EINVAL, "bias is NULL");
    r.sampling.n_bias = LIMIT_LOGIT_BIAS + 1;
    expect(&r, FATHOM_EINVAL, "bias has 1025 entries");
}

/* One float member at a time: values inside and outside its range. */
struct float_case {
    const char *name;
    size_t offset;
    float good[3];
    float bad[3];
};

static const struct float_case float_cases[] = {
    {"temperature", offsetof(fathom_sampling, temperature), {0, 2, 1e30f}, {-0.1f, NAN, INFINITY}},
    {"top_p", offsetof(fathom_sampling, top_p), {1e-6f, 0.5f, 1}, {0, 1.01f, NAN}},
    {"min_p", offsetof(fathom_sampling, min_p), {0, 0.5f, 1}, {-0.1f, 1.01f, NAN}},
    {"repetition_penalty",
     offsetof(fathom_sampling, repetition_penalty),
     {0.1f, 1, 10},
     {0, -1, NAN}},
    {"presence_penalty",
     offsetof(fathom_sampling, presence_penalty),
     {-2, 0, 2},
     {-2.1f, 2.1f, NAN}},
    {"frequency_penalty",
     offsetof(fathom_sampling, frequency_penalty),
     {-2, 0, 2},
     {-2.1f, 2.1f, NAN}},
};

static void each_number_has_its_range(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof float_cases / sizeof float_cases[0]; i++) {
        const struct float_case *c = &float_cases[i];
        for (int k = 0; k < 3; k++) {
            fathom_request r = make();
            memcpy((char *)&r.sampling + c->offset, &c->good[k], sizeof(float));
            expect(&r, FATHOM_OK, "");
            memcpy((char *)&r.sampling + c->offset, &c->bad[k], sizeof(float));
            expect(&r, FATHOM_EINVAL, c->name);
        }
    }
    fathom_request r = make();
    r.sampling.top_k = -1;
    expect(&r, FATHOM_OK, "");
    r.sampling.top_k = -2;
    expect(&r, FATHOM_EINVAL, "top_k is -2");
    r = make();
    r.sampling.n_top_logprobs = 21;
    expect(&r, FATHOM_EINVAL, "n_top_logprobs is 21, needed is 0 to 20");
    r = make();
    r.sampling.max_tokens = 5;
    r.sampling.min_tokens = 6;
    expect(&r, FATHOM_EINVAL, "min_tokens is 6, needed is 0 to max_tokens, 5");
    const fathom_bias nan_bias[] = {{3, NAN}}, wide_bias[] = {{3, 101}};
    r = make();
    r.sampling.bias = nan_bias;
    r.sampling.n_bias = 1;
    expect(&r, FATHOM_EINVAL, "bias is nan");
    r.sampling.bias = wide_bias;
    expect(&r, FATHOM_EINVAL, "bias is 101");
}

static void a_job_is_a_copy(void **state)
{
    (void)state;
    int32_t ids[] = {10, 20, 30}, stops[] = {7, 8};
    fathom_bias bias[] = {{4, 1.5f}};
    fathom_request r = make();
    r.prompt = ids;
    r.sampling.stop_ids = stops;
    r.sampling.n_stop_id = 2;
    r.sampling.bias = bias;
    r.sampling.n_bias = 1;
    r.sampling.max_tokens = 9;
    r.sampling.min_tokens = 4;
    r.sampling.n_top_logprobs = 2;
    struct sequence *j = NULL;
    assert_int_equal(sequence_create(&j, &r, &limits, 77, NULL), FATHOM_OK);
    memset(ids, 0, sizeof ids);
    memset(stops, 0, sizeof stops);
    memset(bias, 0, sizeof bias);
    const struct request *q = &j->request;
    assert_int_equal(q->n_prompt, 3);
    assert_int_equal(q->max_token, 12);
    assert_int_equal(q->min_output, 4);
    assert_int_equal(q->ids[1], 20);
    assert_int_equal(q->n_stop_id, 4);
    const int32_t want_stops[] = {7, 8, 1, 2};
    assert_memory_equal(q->stop_ids, want_stops, sizeof want_stops);
    assert_int_equal(j->bias[0].id, 4);
    assert_true(j->bias[0].bias == 1.5f);
    assert_int_equal(j->row.want_logprob, 1); /* alternatives imply it */
    assert_int_equal(j->row.n_vocab_used, 48);
    assert_int_equal(j->submitted_us, 77);
    assert_non_null(j->logprobs);
    /* the arrays have all the room they may need, and do not overlap */
    for (uint32_t i = 0; i < 12; i++) q->ids[i] = -1;
    q->pages[0] = 5;
    for (uint32_t i = 0; i < 9; i++) j->logprobs[i] = 1;
    for (uint32_t i = 0; i < 18; i++) j->tops[i] = (fathom_logprob){1, 1};
    assert_memory_equal(q->stop_ids, want_stops, sizeof want_stops);
    sequence_destroy(j);
    sequence_destroy(NULL);
}

static void ignored_eos_is_no_stop(void **state)
{
    (void)state;
    fathom_request r = make();
    r.sampling.ignore_eos = true;
    r.sampling.stop_ids = prompt;
    r.sampling.n_stop_id = 1;
    struct sequence *j = NULL;
    assert_int_equal(sequence_create(&j, &r, &limits, 0, NULL), FATHOM_OK);
    assert_int_equal(j->request.n_stop_id, 1);
    assert_int_equal(j->request.stop_ids[0], 10);
    assert_int_equal(j->request.max_token, 100); /* max_tokens 0: up to the model's length */
    assert_null(j->logprobs);
    assert_null(j->tops);
    sequence_destroy(j);
}

static void tiny_temperatures_are_greedy(void **state)
{
    (void)state;
    fathom_request r = make();
    r.sampling.temperature = 1e-6f;
    struct sequence *j = NULL;
    assert_int_equal(sequence_create(&j, &r, &limits, 0, NULL), FATHOM_OK);
    assert_true(j->row.temperature == 0);
    sequence_destroy(j);
}

/* A logit of any model, over the smallest temperature too. */
static void no_repetition_penalty_makes_a_logit_infinite(void **state)
{
    (void)state;
    static const float penalties[] = {1e-38f, 1e-6f, 0.5f, 1, 1.3f, 1e6f, 3e38f};
    fathom_request r = make();
    for (size_t i = 0; i < sizeof penalties / sizeof *penalties; i++) {
        struct sequence *j = NULL;
        r.sampling.repetition_penalty = penalties[i];
        assert_int_equal(sequence_create(&j, &r, &limits, 0, NULL), FATHOM_OK);
        const float penalty = j->row.repetition_penalty;
        assert_true(isfinite(1e4f / penalty / 1e-5f) && isfinite(1e4f * penalty / 1e-5f));
        if (i > 0 && i < 6) assert_true(penalty == penalties[i]);
        sequence_destroy(j);
    }
}

static void a_failing_allocation_is_clean(void **state)
{
    (void)state;
    fathom_request r = make();
    struct sequence *j = (struct sequence *)1;
    mem_fail_after(0);
    assert_int_equal(sequence_create(&j, &r, &limits, 0, NULL), FATHOM_ENOMEM);
    mem_fail_after(-1);
    assert_null(j);
}

static void events_tell_the_story(void **state)
{
    (void)state;
    fathom_request r = make();
    r.sampling.logprobs = true;
    r.sampling.n_top_logprobs = 1;
    struct sequence *j = NULL;
    fathom_event e;
    assert_int_equal(sequence_create(&j, &r, &limits, 1000, NULL), FATHOM_OK);
    struct request *q = &j->request;
    q->id = 99;
    request_enter(q, 0);
    request_admit(q, 2, 1500);
    assert_int_equal(request_push(q, 40), REQUEST_FINISH_NONE);
    assert_int_equal(request_push(q, 2), REQUEST_FINISH_STOP);
    q->first_us = 2500;
    j->logprobs[0] = -0.5f;
    j->tops[0] = (fathom_logprob){41, -0.25f};
    request_end(q, REQUEST_FINISH_STOP, 4000);
    j->n_published = 2;
    j->is_over = true;

    sequence_event(j, 0, &e);
    assert_int_equal(e.kind, FATHOM_EVENT_TOKEN);
    assert_int_equal(e.id, 99);
    assert_ptr_equal(e.user, prompt);
    assert_int_equal(e.token, 40);
    assert_int_equal(e.n_cached, 2);
    assert_false(e.is_stop);
    assert_true(e.logprob == -0.5f);
    assert_int_equal(e.n_top, 1);
    assert_int_equal(e.top[0].id, 41);
    sequence_event(j, 1, &e);
    assert_int_equal(e.token, 2);
    assert_true(e.is_stop);

    sequence_finish_event(j, &e);
    assert_int_equal(e.kind, FATHOM_EVENT_FINISH);
    assert_int_equal(e.finish, FATHOM_FINISH_STOP);
    assert_int_equal(e.stop_id, 2);
    assert_int_equal(e.n_prompt, 3);
    assert_int_equal(e.n_output, 2);
    assert_int_equal(e.n_cached, 2);
    assert_int_equal(e.queue_us, 500);
    assert_int_equal(e.first_us, 1500);
    assert_int_equal(e.total_us, 3000);
    sequence_destroy(j);
}

/* Prompt tokens come before those drawn, in one numbering. */
static void prompt_events_come_first(void **state)
{
    (void)state;
    fathom_request r = make();
    r.sampling.prompt_logprobs = true;
    r.sampling.n_prompt_top_logprobs = 2;
    struct sequence *j = NULL;
    fathom_event e;
    assert_int_equal(sequence_create(&j, &r, &limits, 0, NULL), FATHOM_OK);
    struct request *q = &j->request;
    assert_int_equal(q->n_to_score, 2);
    request_enter(q, 0);
    request_admit(q, 0, 0);
    assert_int_equal(sequence_n_event(j), 0);
    q->n_reached = 1;
    assert_int_equal(sequence_n_event(j), 1);
    q->n_reached = 3;
    assert_int_equal(request_push(q, 2), REQUEST_FINISH_STOP);
    assert_int_equal(sequence_n_event(j), 3);
    for (uint32_t i = 0; i < 2; i++) {
        j->scores[i] = (struct prompt_score){-1.0f - (float)i, 5 + i};
        j->prompt_tops[2 * i] = (fathom_logprob){40, -0.5f};
        j->prompt_tops[2 * i + 1] = (fathom_logprob){41 + (int32_t)i, -0.75f};
    }
    request_end(q, REQUEST_FINISH_STOP, 0);
    j->n_published = 3;
    j->is_over = true;
    sequence_event(j, 1, &e);
    assert_int_equal(e.kind, FATHOM_EVENT_PROMPT);
    assert_int_equal(e.token, prompt[2]);
    assert_true(e.logprob == -2.0f);
    assert_int_equal(e.place, 6);
    assert_int_equal(e.n_top, 2);
    assert_int_equal(e.top[1].id, 42);
    assert_false(e.is_stop);
    sequence_event(j, 2, &e);
    assert_int_equal(e.kind, FATHOM_EVENT_TOKEN);
    assert_int_equal(e.token, 2);
    assert_true(e.is_stop);
    assert_int_equal(e.n_top, 0);
    sequence_finish_event(j, &e);
    assert_int_equal(e.n_output, 1);
    sequence_destroy(j);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(neutral_sampling_is_valid),
        cmocka_unit_test(lengths_name_both_numbers),
        cmocka_unit_test(ids_out_of_the_vocabulary_are_named),
        cmocka_unit_test(long_and_missing_lists_are_refused),
        cmocka_unit_test(each_number_has_its_range),
        cmocka_unit_test(a_job_is_a_copy),
        cmocka_unit_test(ignored_eos_is_no_stop),
        cmocka_unit_test(tiny_temperatures_are_greedy),
        cmocka_unit_test(no_repetition_penalty_makes_a_logit_infinite),
        cmocka_unit_test(a_failing_allocation_is_clean),
        cmocka_unit_test(events_tell_the_story),
        cmocka_unit_test(prompt_events_come_first),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
