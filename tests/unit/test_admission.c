/* test_admission.c - rates from steps, and decisions from rates, worked out by hand */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "base/rng.h"
#include "engine/admission.h"

static const struct admission_config plain = {.max_num_seqs = 64, .max_num_batched_tokens = 2048};

/* A machine: what a step takes. */
struct machine {
    double fixed_us, decode_us, token_us, noise;
    uint64_t rng;
    uint64_t now_us;
};

static void run(struct machine *m, struct admission_rates *r, uint32_t n_decode, uint32_t n_prefill)
{
    double us = m->fixed_us + m->decode_us * n_decode + m->token_us * n_prefill;
    us *= 1 + m->noise * ((double)rng_below(&m->rng, 2001) / 1000 - 1);
    m->now_us += (uint64_t)us;
    const struct admission_step step = {n_decode, n_prefill, (uint64_t)us, n_decode, false};
    admission_note_step(r, &step, m->now_us);
}

static void assert_near(double got, double want, double share)
{
    if (fabs(got - want) > share * want) fail_msg("%g, needed is %g", got, want);
}

static void rates_are_those_of_the_machine(void **state)
{
    (void)state;
    struct machine m = {.fixed_us = 8000, .decode_us = 100, .token_us = 20, .noise = 0.05};
    struct admission_rates r = {0};
    for (int i = 0; i < 40; i++) run(&m, &r, 20, i % 4 ? 0 : 1000);
    assert_near(r.token_us, 20, 0.1);
    assert_near(r.fixed_us, 10000, 0.1);
    /* more decodes and no prefill for long: the price of a token is kept */
    for (int i = 0; i < 100; i++) run(&m, &r, 40, 0);
    assert_near(r.token_us, 20, 0.2);
    assert_near(r.fixed_us, 12000, 0.1);
    assert_near(r.n_decode, 40, 0.01);
    /* prefill in every step, always as much: the decodes' share is still found */
    for (int i = 0; i < 100; i++) run(&m, &r, 60, 500);
    assert_near(r.fixed_us, 14000, 0.2);
}

static void short_prompts_do_not_price_a_token(void **state)
{
    (void)state;
    struct machine m = {.fixed_us = 8000, .token_us = 20, .noise = 0.3};
    struct admission_rates r = {0};
    for (int i = 0; i < 200; i++) run(&m, &r, 4, i % 3 ? 0 : 12);
    assert_true(r.token_us == 0);
    assert_near(r.fixed_us, 8000, 0.3);
}

static void without_promises_all_is_allowed(void **state)
{
    (void)state;
    struct machine m = {.fixed_us = 8000, .token_us = 20};
    struct admission_rates r = {0};
    struct admission_load load = {.n_live = 1000, .n_backlog_token = 1000000};
    for (int i = 0; i < 40; i++) run(&m, &r, 20, i % 4 ? 0 : 1000);
    load.now_us = m.now_us;
    struct sched_bounds b = admission_bounds(&plain, &r);
    assert_int_equal(b.max_running, 64);
    assert_int_equal(b.max_prefill, 2048);
    assert_int_equal(admission_judge(&plain, &r, &load, 100000, NULL), ADMISSION_TAKEN);
    assert_false(admission_has_expired(&plain, 0, UINT64_MAX));
}

/* The engine may have published newer rates since the request was stamped. */
static void a_request_stamped_before_the_rates_meets_them(void **state)
{
    (void)state;
    struct machine m = {.fixed_us = 8000, .token_us = 20};
    struct admission_rates r = {0};
    struct admission_load load = {.n_live = 1, .n_backlog_token = 10000};
    for (int i = 0; i < 40; i++) run(&m, &r, 20, i % 4 ? 0 : 1000);
    load.now_us = r.token_seen_us;
    uint64_t at_once = admission_first_token_us(&plain, &r, &load, 1000);
    assert_true(at_once > 11000 * 20);
    load.now_us -= 5;
    assert_true(admission_first_token_us(&plain, &r, &load, 1000) == at_once);
}

static void what_is_unknown_refuses_nobody(void **state)
{
    (void)state;
    struct admission_config c = plain;
    c.ttft_us = 1;
    c.tpot_us = 1;
    const struct admission_rates nothing = {0};
    const struct admission_load load = {.n_live = 5000, .n_backlog_token = 1u << 30};
    assert_int_equal(admission_judge(&c, &nothing, &load, 1u << 20, NULL), ADMISSION_TAKEN);
    assert_int_equal(admission_bounds(&c, &nothing).max_running, 64);
    assert_int_equal(admission_bounds(&c, &nothing).max_prefill, 2048);
    assert_int_equal(admission_first_token_us(&c, &nothing, &load, 10), 0);
    assert_int_equal(admission_retry_us(&c, &nothing, &load), 0);
}

static void waiting_prompt_tokens_have_a_limit(void **state)
{
    (void)state;
    struct admission_config c = plain;
    c.max_queued_tokens = 1000;
    const struct admission_rates nothing = {0};
    struct admission_load load = {.n_live = 3, .n_backlog_token = 600};
    fathom_diag d = {{0}};
    assert_int_equal(admission_judge(&c, &nothing, &load, 400, &d), ADMISSION_TAKEN);
    assert_string_equal(d.text, "");
    assert_int_equal(admission_judge(&c, &nothing, &load, 401, &d), ADMISSION_TOKENS);
    assert_non_null(strstr(d.text, "600 prompt tokens wait to be computed and this prompt has 401; "
                                   "together they may be 1000 (--max-num-queued-tokens)"));
    /* one that is over the limit by itself is taken when no other waits */
    load.n_backlog_token = 0;
    assert_int_equal(admission_judge(&c, &nothing, &load, 5000, NULL), ADMISSION_TAKEN);
}

static void a_first_token_that_would_be_late_is_refused(void **state)
{
    (void)state;
    struct admission_config c = plain;
    c.ttft_us = 1000000;
    struct machine m = {.fixed_us = 10000, .token_us = 100};
    struct admission_rates r = {0};
    fathom_diag d = {{0}};
    for (int i = 0; i < 40; i++) run(&m, &r, 10, i % 4 ? 0 : 1000);
    struct admission_load load = {.n_live = 10, .now_us = m.now_us};
    /* 8000 tokens in 4 steps: 0.8 s and 4 times 10 ms */
    assert_near((double)admission_first_token_us(&c, &r, &load, 8000), 840000, 0.02);
    assert_int_equal(admission_judge(&c, &r, &load, 8000, &d), ADMISSION_TAKEN);
    load.n_backlog_token = 2048;
    assert_int_equal(admission_judge(&c, &r, &load, 8000, &d), ADMISSION_TTFT);
    assert_non_null(strstr(d.text, "promised within 1.00 s (--slo-ttft-ms): 2048 prompt tokens are "
                                   "ahead at 10000 a second"));
    /* nobody is ahead: it is as soon as it can be */
    load = (struct admission_load){.now_us = m.now_us};
    assert_int_equal(admission_judge(&c, &r, &load, 100000, NULL), ADMISSION_TAKEN);
    /* a price that has not been seen for a minute is no reason any more */
    load = (struct admission_load){.n_live = 10, .n_backlog_token = 100000, .now_us = m.now_us};
    assert_int_equal(admission_judge(&c, &r, &load, 100, NULL), ADMISSION_TTFT);
    load.now_us += 61000000;
    assert_int_equal(admission_judge(&c, &r, &load, 100, NULL), ADMISSION_TAKEN);
}

static void places_ahead_count_too(void **state)
{
    (void)state;
    struct admission_config c = plain;
    c.max_num_seqs = 10;
    c.ttft_us = 1000000;
    struct machine m = {.fixed_us = 10000, .token_us = 10};
    struct admission_rates r = {0};
    for (int i = 0; i < 20; i++) run(&m, &r, 10, 0);
    struct admission_load load = {.n_live = 19, .now_us = m.now_us};
    assert_int_equal(admission_judge(&c, &r, &load, 10, NULL), ADMISSION_TAKEN);
    for (int i = 0; i < 50; i++) admission_note_end(&r, 2000000);
    assert_near(r.hold_us, 2000000, 0.01);
    /* ten have to end before it, one each 0.2 s */
    assert_near((double)admission_first_token_us(&c, &r, &load, 10), 2010000, 0.01);
    assert_int_equal(admission_judge(&c, &r, &load, 10, NULL), ADMISSION_TTFT);
    assert_near((double)admission_retry_us(&c, &r, &load), 1010000, 0.01);
    load.n_live = 13;
    assert_int_equal(admission_judge(&c, &r, &load, 10, NULL), ADMISSION_TAKEN);
    /* pages for five requests only */
    const struct admission_step step = {5, 0, 10000, 5, true};
    admission_note_step(&r, &step, m.now_us);
    assert_int_equal(admission_judge(&c, &r, &load, 10, NULL), ADMISSION_TTFT);
}

static void the_pace_bounds_prefill_and_running(void **state)
{
    (void)state;
    struct admission_config c = plain;
    c.tpot_us = 50000;
    struct machine m = {.fixed_us = 10000, .token_us = 100};
    struct admission_rates r = {0};
    for (int i = 0; i < 60; i++) run(&m, &r, 10, i % 4 ? 0 : 1000);
    struct sched_bounds b = admission_bounds(&c, &r);
    assert_near(b.max_prefill, 350, 0.03); /* of 45 ms, 35 ms for prompt tokens at 0.1 ms */
    assert_near(b.max_running, 45, 0.03);  /* 10 in 10 ms: 45 in 45 ms */
    /* a machine that cannot keep the promise at all goes on with the least */
    m.fixed_us = 80000;
    for (int i = 0; i < 100; i++) run(&m, &r, 2, 0);
    b = admission_bounds(&c, &r);
    assert_int_equal(b.max_running, 1);
    assert_int_equal(b.max_prefill, ADMISSION_MIN_PREFILL);
}

/* The whole loop: a machine that obeys the bounds keeps the pace, with as many as it can. */
static void the_pace_is_found_by_obeying_the_bounds(void **state)
{
    (void)state;
    struct admission_config c = plain;
    c.tpot_us = 30000;
    struct machine m = {.fixed_us = 5000, .decode_us = 200, .token_us = 50, .noise = 0.05};
    struct admission_rates r = {0};
    uint32_t n_running = 1;
    double worst_us = 0;
    for (int i = 0; i < 400; i++) {
        struct sched_bounds b = admission_bounds(&c, &r);
        if (n_running < b.max_running) n_running++;
        uint64_t before_us = m.now_us;
        run(&m, &r, n_running, b.max_prefill);
        double us = (double)(m.now_us - before_us);
        if (i > 100 && us > worst_us) worst_us = us;
    }
    /* 27 ms are aimed at, and the machine is off by up to 5 % */
    if (worst_us > 30000 || worst_us < 26000) fail_msg("the worst step took %g us", worst_us);
    assert_int_equal(n_running, 64);
}

static void a_request_expires_with_its_promise(void **state)
{
    (void)state;
    struct admission_config c = plain;
    c.ttft_us = 1000;
    assert_false(admission_has_expired(&c, 5000, 5999));
    assert_true(admission_has_expired(&c, 5000, 6000));
    assert_false(admission_has_expired(&c, 5000, 4000));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rates_are_those_of_the_machine),
        cmocka_unit_test(short_prompts_do_not_price_a_token),
        cmocka_unit_test(without_promises_all_is_allowed),
        cmocka_unit_test(a_request_stamped_before_the_rates_meets_them),
        cmocka_unit_test(what_is_unknown_refuses_nobody),
        cmocka_unit_test(waiting_prompt_tokens_have_a_limit),
        cmocka_unit_test(a_first_token_that_would_be_late_is_refused),
        cmocka_unit_test(places_ahead_count_too),
        cmocka_unit_test(the_pace_bounds_prefill_and_running),
        cmocka_unit_test(the_pace_is_found_by_obeying_the_bounds),
        cmocka_unit_test(a_request_expires_with_its_promise),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
