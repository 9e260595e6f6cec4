/* test_figures.c - figures of made-up requests, the checks, the server's metrics */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "base/mem.h"
#include "bench/figures.h"
#include "bench/scrape.h"

enum { N = 4, GAPS = 4 };

static uint32_t gaps[GAPS] = {10000, 20000, 10000, 40000}; /* 80 ms */
static struct load_record records[N];
static struct load_run run;
static struct figures_options options;
static const struct percentile_list percentiles = {{50}, 1};

static void near_value(double value, double want)
{
    if (fabs(value - want) > 1e-6 * (1 + fabs(want))) fail_msg("%.9g, not %.9g", value, want);
}

/* Four requests one after another, a second each: 100 ms to the first token, 80 ms to the last. */
static void reset(void)
{
    memset(records, 0, sizeof records);
    for (uint64_t i = 0; i < N; i++) {
        struct load_record *r = &records[i];
        r->due_us = 0;
        r->start_us = i * 1000000;
        r->first_us = r->start_us + 100000;
        r->last_us = r->first_us + 80000;
        r->end_us = r->start_us + 1000000;
        r->n_asked = 9;
        r->n_input = 50;
        r->has_usage = true;
        r->n_usage_input = 50;
        r->n_usage_output = 9;
        r->gap_us = gaps;
        r->n_gap = GAPS;
        r->status = 200;
    }
    run = (struct load_run){
        .records = records, .n = N, .seconds = 4, .mean_in_flight = 1, .max_in_flight = 1};
    options =
        (struct figures_options){.percentiles = &percentiles, .goodput = {{-1, -1, -1, -1}, false}};
}

static void latencies_are_of_the_right_ends(void **state)
{
    (void)state;
    struct figures f;
    reset();
    assert_int_equal(figures_compute(&f, &run, &options), FATHOM_OK);
    assert_int_equal(f.n_completed, N);
    near_value(f.metrics[METRIC_TTFT].mean, 100);
    near_value(f.metrics[METRIC_TPOT].mean, 10); /* 80 ms over the 8 tokens after the first */
    near_value(f.metrics[METRIC_ITL].mean, 20);  /* 80 ms over 4 events */
    near_value(f.metrics[METRIC_ITL].median, 15);
    assert_int_equal(f.metrics[METRIC_ITL].n, N * GAPS);
    near_value(f.metrics[METRIC_E2EL].mean, 180);
    near_value(f.request_rate, 1);
    near_value(f.output_rate, 9);
    near_value(f.total_rate, 59);
    near_value(f.client_wait_ms_mean, 1500);
    near_value(f.client_wait_ms_max, 3000);
    near_value(f.peak_output_rate, 9);
    assert_true(f.little_holds && !f.client_is_limit && !f.tokens_differ && !f.is_cached);
}

static void littles_law_fails_when_requests_do(void **state)
{
    (void)state;
    struct figures f;
    reset();
    records[1].outcome = LOAD_TIMEOUT;
    static char message[] = "too late";
    records[1].message = message;
    assert_int_equal(figures_compute(&f, &run, &options), FATHOM_OK);
    assert_int_equal(f.n_failed, 1);
    assert_int_equal(f.n_outcome[LOAD_TIMEOUT], 1);
    assert_string_equal(f.first_message, "too late");
    near_value(f.little, 0.75);
    assert_false(f.little_holds);
    reset();
    run.mean_in_flight = 1.04;
    assert_int_equal(figures_compute(&f, &run, &options), FATHOM_OK);
    assert_true(f.little_holds);
    run.mean_in_flight = 1.06;
    assert_int_equal(figures_compute(&f, &run, &options), FATHOM_OK);
    assert_false(f.little_holds);
}

static void goodput_counts_those_that_keep_every_limit(void **state)
{
    (void)state;
    struct figures f;
    reset();
    options.goodput = (struct goodput_limits){{150, 9, -1, -1}, true};
    assert_int_equal(figures_compute(&f, &run, &options), FATHOM_OK);
    near_value(f.good_rate, 0);
    options.goodput.ms[METRIC_TPOT] = 11;
    records[2].first_us += 60000;
    assert_int_equal(figures_compute(&f, &run, &options), FATHOM_OK);
    near_value(f.good_rate, 0.75);
    options.goodput.ms[METRIC_ITL] = 19;
    assert_int_equal(figures_compute(&f, &run, &options), FATHOM_OK);
    near_value(f.good_rate, 0);
    options.goodput = (struct goodput_limits){{150, -1, -1, -1}, true};
    records[1].first_us = records[1].last_us = records[1].n_gap = 0; /* it says nothing */
    assert_int_equal(figures_compute(&f, &run, &options), FATHOM_OK);
    near_value(f.good_rate, 0.5);
}

static void counts_that_do_not_agree_are_told(void **state)
{
    (void)state;
    struct figures f;
    reset();
    for (size_t i = 0; i < N; i++) {
        records[i].n_usage_input = 53;
        records[i].n_cached = 20;
    }
    run.busy_share = 0.9;
    assert_int_equal(figures_compute(&f, &run, &options), FATHOM_OK);
    assert_int_equal(f.n_input, 4 * 53);
    assert_true(f.tokens_differ && f.is_cached && f.client_is_limit);
    options.cache_expected = true;
    assert_int_equal(figures_compute(&f, &run, &options), FATHOM_OK);
    assert_false(f.is_cached);
}

static void answers_without_usage_or_text_count_as_what_they_are(void **state)
{
    (void)state;
    struct figures f;
    reset();
    records[0].has_usage = false;
    records[1].first_us = records[1].last_us = 0;
    records[1].n_gap = 0;
    records[1].n_usage_output = 1;
    assert_int_equal(figures_compute(&f, &run, &options), FATHOM_OK);
    assert_int_equal(f.n_without_usage, 1);
    assert_int_equal(f.n_silent, 1);
    assert_int_equal(f.n_output, 5 + 1 + 9 + 9);
    assert_int_equal(f.metrics[METRIC_TTFT].n, 3);
}

static void nothing_that_succeeded_gives_zeros(void **state)
{
    (void)state;
    struct figures f;
    reset();
    for (size_t i = 0; i < N; i++) records[i].outcome = LOAD_CONNECT;
    assert_int_equal(figures_compute(&f, &run, &options), FATHOM_OK);
    near_value(f.output_rate, 0);
    near_value(f.metrics[METRIC_E2EL].p99, 0);
    assert_false(f.little_holds);
}

static void failing_allocations_come_out_as_errors(void **state)
{
    (void)state;
    bool hit = true;
    reset();
    for (long n = 0; hit; n++) {
        struct figures f;
        mem_fail_after(n);
        fathom_err err = figures_compute(&f, &run, &options);
        hit = mem_fail_hit();
        mem_fail_after(-1);
        assert_int_equal(err, hit ? FATHOM_ENOMEM : FATHOM_OK);
    }
}

/* ---- metrics of the server --------------------------------------------------------------- */

static void series_are_summed_and_compared(void **state)
{
    (void)state;
    static const char first[] = "# HELP vllm:request_queue_time_seconds x\n"
                                "vllm:request_queue_time_seconds_sum{m=\"a b}\\\"\"} 1.5\n"
                                "vllm:request_queue_time_seconds_count{m=\"a\"} 10\n"
                                "vllm:prefix_cache_queries_total 100\n"
                                "vllm:prefix_cache_hits_total 0\n"
                                "vllm:num_preemptions_total NaN\n"
                                "vllm:prefix_cache_hits_total{broken 9\n"
                                "other 3";
    static const char second[] = "vllm:request_queue_time_seconds_sum{m=\"a\"} 2.5\n"
                                 "vllm:request_queue_time_seconds_count{m=\"a\"} 12\n"
                                 "vllm:request_queue_time_seconds_count{m=\"b\"} 2\n"
                                 "vllm:prefix_cache_queries_total 300\n"
                                 "vllm:prefix_cache_hits_total 5e1\n";
    struct scrape a;
    struct scrape b;
    struct server_view v;
    scrape_parse(&a, first, strlen(first));
    scrape_parse(&b, second, strlen(second));
    scrape_difference(&v, &a, &b);
    assert_true(v.has_queue && v.has_prefix);
    near_value(v.queue_ms, 250);
    near_value(v.prefix_hit_share, 0.25);
    assert_false(v.has_drafts || v.has_preemptions);
    scrape_difference(&v, &b, &a);
    assert_false(v.has_queue || v.has_prefix);
    scrape_parse(&a, "", 0);
    scrape_difference(&v, &a, &b);
    assert_false(v.has_queue || v.has_prefix);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(latencies_are_of_the_right_ends),
        cmocka_unit_test(littles_law_fails_when_requests_do),
        cmocka_unit_test(goodput_counts_those_that_keep_every_limit),
        cmocka_unit_test(counts_that_do_not_agree_are_told),
        cmocka_unit_test(answers_without_usage_or_text_count_as_what_they_are),
        cmocka_unit_test(nothing_that_succeeded_gives_zeros),
        cmocka_unit_test(failing_allocations_come_out_as_errors),
        cmocka_unit_test(series_are_summed_and_compared),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
