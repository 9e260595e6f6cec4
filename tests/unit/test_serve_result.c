/* test_serve_result.c - a result as JSON, as a table, as a name of a file, as a workload */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "base/json.h"
#include "base/mem.h"
#include "bench/serve_result.h"

static uint32_t gaps[] = {5000, 7000};
static char words[] = "a b c";
static struct load_record records[2];
static struct serve_result result;
static struct serve_options options;
static struct serve_description about;
static const char *const metadata[] = {"gpu=H200", "n=x=y"};

static int set_up(void **state)
{
    (void)state;
    memset(records, 0, sizeof records);
    for (uint64_t i = 0; i < 2; i++) {
        records[i] = (struct load_record){.start_us = i * 1000,
                                          .first_us = 50000,
                                          .last_us = 62000,
                                          .end_us = 63000,
                                          .n_input = 10,
                                          .n_asked = 3,
                                          .has_usage = true,
                                          .n_usage_input = 10,
                                          .n_usage_output = 3,
                                          .gap_us = gaps,
                                          .n_gap = 2,
                                          .text = words,
                                          .n_text = 5};
    }
    options = (struct serve_options){
        .target = {.base_url = "http://x:1"},
        .path = "/v1/completions",
        .shape = {.model = "org/name", .ignore_eos = true, .temperature = 0},
        .dataset = {.kind = DATASET_RANDOM, .n = 2, .n_input = 10, .n_output = 3, .seed = 4},
        .arrival = {.rate = INFINITY, .burstiness = 1},
        .n_repeat = 1,
        .percentiles = {{50, 99.9}, 2},
    };
    about = (struct serve_description){.backend = "openai",
                                       .model = "org/name",
                                       .tokenizer = "pilot",
                                       .date = "20260102-030405",
                                       .metadata = metadata,
                                       .n_metadata = 2,
                                       .metrics = "ttft,itl"};
    memset(&result, 0, sizeof result);
    result.run = (struct load_run){
        .records = records, .n = 2, .seconds = 0.5, .mean_in_flight = 0.25, .max_in_flight = 2};
    result.n_repeat = 1;
    const struct figures_options f = {.percentiles = &options.percentiles,
                                      .goodput = {{-1, -1, -1, -1}, false}};
    return figures_compute(&result.figures, &result.run, &f);
}

/* The result as JSON; released by the caller. */
static json_t *as_json(void)
{
    json_t *r = NULL;
    assert_int_equal(serve_result_json(&r, &result, &options, &about, NULL), FATHOM_OK);
    return r;
}

static void assert_has(const json_t *r, const char *key, bool want)
{
    if ((json_object_get(r, key) != NULL) != want) fail_msg("%s", key);
}

static void members_are_vllms(void **state)
{
    (void)state;
    static const char *const always[] = {"date",
                                         "endpoint_type",
                                         "backend",
                                         "label",
                                         "model_id",
                                         "tokenizer_id",
                                         "num_prompts",
                                         "request_rate",
                                         "burstiness",
                                         "max_concurrency",
                                         "duration",
                                         "completed",
                                         "failed",
                                         "total_input_tokens",
                                         "total_output_tokens",
                                         "request_throughput",
                                         "request_goodput",
                                         "output_throughput",
                                         "total_token_throughput",
                                         "max_output_tokens_per_s",
                                         "max_concurrent_requests",
                                         "mean_ttft_ms",
                                         "median_ttft_ms",
                                         "std_ttft_ms",
                                         "p50_ttft_ms",
                                         "p99.9_ttft_ms",
                                         "mean_itl_ms",
                                         "p99.9_itl_ms",
                                         "workload",
                                         "checks",
                                         "spread"};
    static const char *const detailed[] = {"input_lens",  "output_lens",     "ttfts", "itls",
                                           "start_times", "generated_texts", "errors"};
    json_t *r = as_json();
    for (size_t i = 0; i < sizeof always / sizeof always[0]; i++) assert_has(r, always[i], true);
    for (size_t i = 0; i < sizeof detailed / sizeof detailed[0]; i++) {
        assert_has(r, detailed[i], false);
    }
    assert_has(r, "mean_tpot_ms", false);
    assert_string_equal(json_string_value(json_object_get(r, "request_rate")), "inf");
    assert_true(json_is_null(json_object_get(r, "max_concurrency")));
    assert_string_equal(json_string_value(json_object_get(r, "gpu")), "H200");
    assert_string_equal(json_string_value(json_object_get(r, "n")), "x=y");
    assert_int_equal(json_integer_value(json_object_get(r, "total_output_tokens")), 6);
    json_decref(r);

    about.detailed = true;
    options.arrival.rate = 2;
    options.max_in_flight = 8;
    r = as_json();
    for (size_t i = 0; i < sizeof detailed / sizeof detailed[0]; i++) {
        assert_int_equal(json_array_size(json_object_get(r, detailed[i])), 2);
    }
    assert_true(json_real_value(json_object_get(r, "request_rate")) == 2);
    assert_int_equal(json_integer_value(json_object_get(r, "max_concurrency")), 8);
    const json_t *itls = json_array_get(json_object_get(r, "itls"), 0);
    assert_true(json_real_value(json_array_get(itls, 1)) == 0.007);
    json_decref(r);
}

static void the_table_has_the_lines_and_the_workload(void **state)
{
    (void)state;
    struct buf b = {0};
    static const char *const parts[] = {
        "============ Serving Benchmark Result ============\n",
        "Successful requests:                     2         \n",
        "Output token throughput (tok/s):         12.00     \n",
        "---------------Time to First Token----------------\n",
        "Median TTFT (ms):                        49.50     \n",
        "P99.9 TTFT (ms):",
        "workload  random 10 in, 3 out; 2 requests after 1, seed 4; all due at once; temperature "
        "0, "
        "past EOS; prompts as they are\n",
        "server    http://x:1/v1/completions, model org/name\n",
    };
    assert_int_equal(serve_result_table(&b, &result, &options, &about, NULL), FATHOM_OK);
    for (size_t i = 0; i < sizeof parts / sizeof parts[0]; i++) {
        if (!strstr(buf_str(&b), parts[i])) fail_msg("%s\nlacks %s", buf_str(&b), parts[i]);
    }
    assert_null(strstr(buf_str(&b), "TPOT"));
    assert_null(strstr(buf_str(&b), "does not hold"));
    buf_free(&b);
}

static void a_check_that_fails_is_said(void **state)
{
    (void)state;
    struct buf b = {0};
    struct figures *f = &result.figures;
    f->little_holds = false;
    f->client_is_limit = f->is_cached = f->tokens_differ = true;
    f->n_without_usage = f->n_silent = 1;
    f->n_asked = 100;
    assert_int_equal(serve_warnings_write(&b, f), FATHOM_OK);
    static const char *const parts[] = {"Little's law does not hold",
                                        "its own limit",
                                        "prefix cache",
                                        "our tokenizer",
                                        "without usage",
                                        "no text",
                                        "--ignore-eos"};
    for (size_t i = 0; i < sizeof parts / sizeof parts[0]; i++) {
        assert_non_null(strstr(buf_str(&b), parts[i]));
    }
    buf_free(&b);
}

static void files_are_named_as_vllm_names_them(void **state)
{
    (void)state;
    struct buf b = {0};
    assert_int_equal(serve_file_name(&b, &options, &about), FATHOM_OK);
    assert_string_equal(buf_str(&b), "openai-infqps-name-20260102-030405.json");
    buf_clear(&b);
    options.arrival.rate = 1;
    options.max_in_flight = 4;
    about.label = "run";
    assert_int_equal(serve_file_name(&b, &options, &about), FATHOM_OK);
    assert_string_equal(buf_str(&b), "run-1.0qps-concurrency4-name-20260102-030405.json");
    buf_free(&b);
}

static void bad_words_are_refused(void **state)
{
    (void)state;
    json_t *r;
    static const char *const bad[] = {"novalue"};
    fathom_diag d = {{0}};
    about.metadata = bad;
    about.n_metadata = 1;
    assert_int_equal(serve_result_json(&r, &result, &options, &about, &d), FATHOM_EINVAL);
    assert_null(r);
    about.n_metadata = 0;
    about.metrics = "ttft,speed";
    assert_int_equal(serve_result_json(&r, &result, &options, &about, &d), FATHOM_EINVAL);
}

static void failing_allocations_come_out_as_errors(void **state)
{
    (void)state;
    bool hit = true;
    for (long n = 0; hit; n++) {
        struct buf b = {0};
        mem_fail_after(n);
        fathom_err err = serve_result_table(&b, &result, &options, &about, NULL);
        hit = mem_fail_hit();
        mem_fail_after(-1);
        assert_int_equal(err, hit ? FATHOM_ENOMEM : FATHOM_OK);
        buf_free(&b);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(members_are_vllms, set_up),
        cmocka_unit_test_setup(the_table_has_the_lines_and_the_workload, set_up),
        cmocka_unit_test_setup(a_check_that_fails_is_said, set_up),
        cmocka_unit_test_setup(files_are_named_as_vllm_names_them, set_up),
        cmocka_unit_test_setup(bad_words_are_refused, set_up),
        cmocka_unit_test_setup(failing_allocations_come_out_as_errors, set_up),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
