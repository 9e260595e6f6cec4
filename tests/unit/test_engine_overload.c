/* test_engine_overload.c - the engine over a runner without a model when more is asked of it
 * than it can do: limits, promises, priorities, tenants
 *
 * The only time that passes is the device's (sim_clock.c), and a step ends when the test lets
 * it: every number is exact. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "support/answers.h"
#include "support/null_runner.h"

enum { MAX_PROMPT = 900, STEP_US = 2000 };

static int32_t prompt[MAX_PROMPT];
static struct answer answers[64];
static struct null_gate gate; /* shut when an engine is opened */

static struct null_engine_options defaults(void)
{
    return (struct null_engine_options){
        .n_vocab = 1000,
        .max_model_len = 1024,
        .max_num_seqs = 4,
        .max_num_batched_tokens = 256,
        .max_queued = 60,
        .seed = 3,
        .no_prefix_cache = true, /* every prompt costs what it says */
        .runner = {.n_page = 64, .step_us = STEP_US, .gate = &gate},
    };
}

static fathom_engine *open_with(const struct null_engine_options *o)
{
    fathom_engine *e = NULL;
    null_gate_init(&gate);
    assert_int_equal(null_engine_open(&e, o, NULL), FATHOM_OK);
    return e;
}

static fathom_request asking(uint32_t n_prompt, uint32_t max_tokens)
{
    for (int i = 0; i < MAX_PROMPT; i++) prompt[i] = 10 + i;
    fathom_request r = {.prompt = prompt, .n_prompt = n_prompt};
    fathom_sampling_init(&r.sampling);
    r.sampling.temperature = 0;
    r.sampling.ignore_eos = true;
    r.sampling.max_tokens = max_tokens;
    return r;
}

static void expect_refusal(fathom_engine *e, const fathom_request *r, const char *part)
{
    static struct answer refused;
    fathom_diag d = {{0}};
    assert_int_equal(answer_submit(e, &refused, r, &d), FATHOM_EBUSY);
    if (!strstr(d.text, part)) fail_msg("%s, needed: %s", d.text, part);
}

static fathom_stats stats_of(fathom_engine *e)
{
    fathom_stats s;
    fathom_get_stats(e, &s);
    return s;
}

/* Until the first n answers are whole. */
static void wait_for(fathom_engine *e, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        while (!answers[i].done) answers_take(e, 1000);
    }
}

static void close_at_rest(fathom_engine *e)
{
    answers_expect_rest(e);
    fathom_close(e);
}

static void prompt_tokens_that_wait_are_limited(void **state)
{
    (void)state;
    struct null_engine_options o = defaults();
    o.admission.max_queued_tokens = 1000;
    fathom_engine *e = open_with(&o);
    fathom_request big = asking(900, 2), small = asking(100, 2), tiny = asking(1, 2);
    answer_ask(e, &answers[0], &big);
    answer_ask(e, &answers[1], &small);
    expect_refusal(e, &tiny,
                   "1000 prompt tokens wait to be computed and this prompt has 1; "
                   "together they may be 1000 (--max-num-queued-tokens)");
    assert_int_equal(stats_of(e).n_backlog_token, 1000);
    null_gate_let(&gate, 1);
    null_gate_wait(&gate);
    assert_int_equal(stats_of(e).n_backlog_token, 1000 - 256);
    answer_ask(e, &answers[2], &small); /* a step has made room */
    fathom_cancel(e, answers[0].id);
    null_gate_open(&gate);
    wait_for(e, 3);
    assert_int_equal(stats_of(e).n_refused_tokens, 1);
    close_at_rest(e);
}

/* The engine learns what a token costs; a request that would be late is refused at once. */
static void a_promise_about_the_first_token_is_kept(void **state)
{
    (void)state;
    struct null_engine_options o = defaults();
    o.admission.ttft_us = 400000;
    o.runner.token_us = 200; /* 900 tokens take 0.19 s */
    fathom_engine *e = open_with(&o);
    fathom_request big = asking(900, 1);
    null_gate_open(&gate);
    answer_ask(e, &answers[0], &big);
    wait_for(e, 1);
    null_gate_shut(&gate);
    answer_ask(e, &answers[0], &big);
    null_gate_wait(&gate); /* what the steps before have cost is known */
    assert_int_equal(stats_of(e).prefill_token_us, 200);
    answer_ask(e, &answers[1], &big);
    for (int i = 0; i < 10; i++) {
        expect_refusal(e, &big, "promised within 0.40 s (--slo-ttft-ms)");
        assert_true(stats_of(e).retry_after_us > 0);
    }
    null_gate_open(&gate);
    wait_for(e, 2);
    for (uint32_t i = 0; i < 2; i++) {
        assert_int_equal(answers[i].finish.finish, FATHOM_FINISH_LENGTH);
        assert_in_range(answers[i].finish.first_us, 1, 400000);
    }
    assert_int_equal(stats_of(e).n_refused_ttft, 10);
    assert_int_equal(stats_of(e).n_expired, 0);
    close_at_rest(e);
}

static void who_waited_too_long_leaves_the_queue(void **state)
{
    (void)state;
    struct null_engine_options o = defaults();
    o.max_num_seqs = 1;
    o.admission.ttft_us = 100000;
    fathom_engine *e = open_with(&o);
    fathom_request running = asking(10, 300), waiting = asking(10, 5);
    answer_ask(e, &answers[0], &running);
    answer_ask(e, &answers[1], &waiting); /* nothing is known yet, so it is taken */
    null_gate_open(&gate);
    wait_for(e, 2);
    assert_int_equal(answers[0].n, 300);
    assert_int_equal(answers[1].finish.finish, FATHOM_FINISH_EXPIRED);
    assert_int_equal(answers[1].n, 0);
    assert_in_range(answers[1].finish.total_us, 100000, 100000 + STEP_US);
    assert_int_equal(stats_of(e).n_expired, 1);
    close_at_rest(e);
}

/* The most tokens that a step brings while a request decodes and long prompts come. */
static uint32_t most_tokens_beside_a_decode(uint64_t tpot_us)
{
    uint32_t most = 0;
    struct null_engine_options o = defaults();
    o.admission.tpot_us = tpot_us;
    o.runner.token_us = 200; /* 256 tokens take 53 ms */
    o.runner.max_mixed = &most;
    fathom_engine *e = open_with(&o);
    fathom_request talker = asking(10, 200), big = asking(900, 1);
    null_gate_open(&gate);
    answer_ask(e, &answers[0], &big); /* tells what a token costs */
    answers_wait(e, 1);
    null_gate_shut(&gate);
    answer_ask(e, &answers[0], &talker);
    for (uint32_t i = 1; i <= 2; i++) {
        null_gate_let(&gate, 40);
        null_gate_wait(&gate);
        answer_ask(e, &answers[i], &big);
    }
    null_gate_open(&gate);
    wait_for(e, 3);
    close_at_rest(e);
    return most;
}

static void a_promise_about_the_pace_bounds_prefill(void **state)
{
    (void)state;
    uint32_t n_free = most_tokens_beside_a_decode(0);
    uint32_t n_kept = most_tokens_beside_a_decode(20000);
    assert_int_equal(n_free, 256);
    /* of 20 ms, 18 are aimed at */
    assert_in_range(STEP_US + (n_kept - 2) * 200, 15000, 20000);
}

static void priorities_are_for_who_allows_them(void **state)
{
    (void)state;
    struct null_engine_options o = defaults();
    o.max_num_seqs = 1;
    fathom_engine *e = open_with(&o);
    fathom_request r = asking(10, 5);
    fathom_diag d = {{0}};
    r.priority = 3;
    assert_int_equal(answer_submit(e, &answers[0], &r, &d), FATHOM_EINVAL);
    assert_non_null(strstr(d.text, "--scheduling-policy priority"));
    fathom_close(e);

    o.priorities = true;
    e = open_with(&o);
    fathom_request first = asking(10, 2);
    answer_ask(e, &answers[0], &first);
    null_gate_wait(&gate); /* it runs */
    static const int32_t priorities[] = {5, 0, -7};
    for (int i = 0; i < 3; i++) {
        r.priority = priorities[i];
        answer_ask(e, &answers[1 + i], &r);
    }
    null_gate_open(&gate);
    wait_for(e, 4);
    /* each came later than the one before and was started earlier */
    assert_true(answers[3].finish.queue_us < answers[2].finish.queue_us);
    assert_true(answers[2].finish.queue_us < answers[1].finish.queue_us);
    close_at_rest(e);
}

static void tenants_take_turns(void **state)
{
    (void)state;
    struct null_engine_options o = defaults();
    o.max_num_seqs = 1;
    fathom_engine *e = open_with(&o);
    fathom_request first = asking(10, 2), r = asking(10, 5);
    answer_ask(e, &answers[0], &first);
    null_gate_wait(&gate);
    for (int i = 1; i < 10; i++) answer_ask(e, &answers[i], &r); /* one caller fills the queue */
    r.tenant = 1;
    answer_ask(e, &answers[10], &r);
    null_gate_open(&gate);
    wait_for(e, 11);
    assert_true(answers[10].finish.queue_us < answers[2].finish.queue_us);
    close_at_rest(e);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(prompt_tokens_that_wait_are_limited),
        cmocka_unit_test(a_promise_about_the_first_token_is_kept),
        cmocka_unit_test(who_waited_too_long_leaves_the_queue),
        cmocka_unit_test(a_promise_about_the_pace_bounds_prefill),
        cmocka_unit_test(priorities_are_for_who_allows_them),
        cmocka_unit_test(tenants_take_turns),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
