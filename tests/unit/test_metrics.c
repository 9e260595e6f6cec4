/* test_metrics.c - what a scrape tells after requests, steps and copies */
#include <stdio.h>
#include <string.h>

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/mem.h"
#include "server/metrics.h"
#include "support/exposition.h"

static fathom_info info = {.model_type = "deepseek_v32",
                           .backend = "cpu",
                           .max_model_len = 4096,
                           .n_page = 120, /* of which other hosts have room for fewer */
                           .n_lane = 2};
static fathom_stats stats = {.n_running = 3,
                             .n_waiting = 2,
                             .n_page = 100,
                             .n_page_free = 25,
                             .n_page_cached = 5,
                             .n_fetching = 1,
                             .n_step = 7,
                             .n_step_token = 960,
                             .n_step_by_size = {[0] = 6, [FATHOM_STEP_SIZES - 1] = 1},
                             .n_step_ahead = 5,
                             .n_prompt_token = 900,
                             .n_shared_token = 512,
                             .n_output_token = 60,
                             .n_preempted = 1,
                             .n_prefix_query_token = 640,
                             .n_prefix_hit_token = 128,
                             .n_prefix_fetched_token = 64,
                             .busy_us = 2500000,
                             .wait_us = 1500000,
                             .n_lane = 2,
                             .lanes = {{3, 1, 10, 4, 700}, {2, 0, 15, 1, 0}},
                             .n_rank_wait = 2,
                             .rank_waits = {{.n = 6, .us = 500000}, {.n = 8, .us = 250000}}};

static struct metrics metrics;

static int init_metrics(void **state)
{
    (void)state;
    metrics_init(&metrics, info.max_model_len);
    return 0;
}

static fathom_err write_as(struct buf *b, const char *model_name)
{
    static const struct grammar_cache_stats grammars = {.n_hit = 5, .n_miss = 3, .n_failed = 1};
    const struct metrics_view v = {.model_name = model_name,
                                   .info = &info,
                                   .stats = &stats,
                                   .grammars = &grammars,
                                   .held_bytes = 11,
                                   .n_job = 6,
                                   .start_s = 1700000000};
    return metrics_write(b, &metrics, &v);
}

/* A scrape that holds together; released by the caller. */
static struct buf scrape(void)
{
    struct buf b = {0};
    char why[256] = "";
    assert_int_equal(write_as(&b, "m"), FATHOM_OK);
    if (!exposition_check(buf_str(&b), why, sizeof why)) fail_msg("%s in:\n%s", why, buf_str(&b));
    return b;
}

static void assert_sample(const struct buf *b, const char *name, const char *part, double want)
{
    double got = exposition_value(buf_str(b), name, part);
    if (got != want) fail_msg("%s %s is %g, needed is %g", name, part, got, want);
}

static void what_the_engine_counts_is_told(void **state)
{
    (void)state;
    struct buf b = scrape();
    assert_sample(&b, "vllm:num_requests_running", "{model_name=\"m\",engine=\"0\"}", 3);
    assert_sample(&b, "vllm:num_requests_waiting", "", 2);
    assert_sample(&b, "vllm:num_requests_waiting_by_reason", "reason=\"capacity\"", 1);
    assert_sample(&b, "vllm:num_requests_waiting_by_reason", "reason=\"deferred\"", 1);
    assert_sample(&b, "vllm:kv_cache_usage_perc", "", 0.75);
    assert_sample(&b, "vllm:prompt_tokens_total", "", 1028);
    assert_sample(&b, "fathom_prompt_tokens_shared_total", "", 512);
    assert_sample(&b, "vllm:generation_tokens_total", "", 60);
    assert_sample(&b, "vllm:num_preemptions_total", "", 1);
    assert_sample(&b, "vllm:prompt_tokens_cached_total", "", 128);
    assert_sample(&b, "vllm:prompt_tokens_by_source_total", "source=\"local_compute\"", 900);
    assert_sample(&b, "vllm:prompt_tokens_by_source_total", "source=\"local_cache_hit\"", 64);
    assert_sample(&b, "vllm:prompt_tokens_by_source_total", "source=\"external_kv_transfer\"", 64);
    assert_sample(&b, "vllm:iteration_tokens_total_count", "", 7);
    assert_sample(&b, "vllm:iteration_tokens_total_sum", "", 960);
    assert_sample(&b, "vllm:iteration_tokens_total_bucket", "le=\"1.0\"", 6);
    assert_sample(&b, "vllm:request_max_num_generation_tokens_count", "", 0);
    assert_sample(&b, "vllm:cache_config_info", "num_gpu_blocks=\"50\"", 1);
    assert_sample(&b, "fathom_build_info", "backend=\"cpu\"", 1);
    assert_sample(&b, "fathom_steps_total", "", 7);
    assert_sample(&b, "fathom_steps_ahead_total", "", 5);
    assert_sample(&b, "fathom_step_busy_seconds_total", "", 2.5);
    assert_sample(&b, "fathom_step_wait_seconds_total", "", 1.5);
    assert_sample(&b, "fathom_lane_running", "dp_rank=\"0\"", 3);
    assert_sample(&b, "fathom_lane_running", "dp_rank=\"1\"", 2);
    assert_sample(&b, "fathom_lane_waiting", "dp_rank=\"0\"", 1);
    assert_sample(&b, "fathom_lane_pages_free", "dp_rank=\"1\"", 15);
    assert_sample(&b, "fathom_lane_backlog_tokens", "dp_rank=\"0\"", 700);
    assert_sample(&b, "fathom_rank_waits_total", "rank=\"0\"", 6);
    assert_sample(&b, "fathom_rank_waits_total", "rank=\"1\"", 8);
    assert_sample(&b, "fathom_rank_wait_seconds_total", "rank=\"0\"", 0.5);
    assert_sample(&b, "fathom_rank_wait_seconds_total", "rank=\"1\"", 0.25);
    assert_sample(&b, "fathom_pages", "state=\"free\"", 20);
    assert_sample(&b, "fathom_pages", "state=\"cached\"", 5);
    assert_sample(&b, "fathom_pages", "state=\"held\"", 75);
    assert_sample(&b, "fathom_engine_up", "", 1);
    assert_sample(&b, "fathom_requests_in_flight", "", 6);
    assert_sample(&b, "fathom_body_bytes_held", "", 11);
    assert_sample(&b, "process_start_time_seconds", "", 1700000000);
    assert_true(exposition_value(buf_str(&b), "process_resident_memory_bytes", "") > 1e6);
    assert_true(exposition_value(buf_str(&b), "process_cpu_seconds_total", "") > 0);
    buf_free(&b);
}

/* What is counted is told once, by host 0. */
static void another_host_tells_the_gauges_of_its_lanes(void **state)
{
    static const struct grammar_cache_stats grammars = {0};
    fathom_stats own = {.n_running = 2,
                        .n_waiting = 1,
                        .n_page = 50,
                        .n_page_free = 15,
                        .n_lane = 1,
                        .lanes = {{2, 1, 15, 1, 9}}};
    const struct metrics_view v = {.model_name = "m",
                                   .info = &info,
                                   .stats = &own,
                                   .first_lane = 1,
                                   .gauges_alone = true,
                                   .grammars = &grammars,
                                   .ready = true};
    struct buf b = {0};
    char why[256] = "";
    (void)state;
    assert_int_equal(metrics_write(&b, &metrics, &v), FATHOM_OK);
    if (!exposition_check(buf_str(&b), why, sizeof why)) fail_msg("%s", why);
    assert_sample(&b, "vllm:num_requests_running", "", 2);
    assert_sample(&b, "vllm:kv_cache_usage_perc", "", 0.7);
    assert_sample(&b, "vllm:cache_config_info", "num_gpu_blocks=\"50\"", 1);
    assert_sample(&b, "fathom_lane_running", "dp_rank=\"1\"", 2);
    assert_sample(&b, "fathom_ready", "", 1);
    assert_null(strstr(buf_str(&b), "dp_rank=\"0\""));
    assert_null(strstr(buf_str(&b), "counter"));
    buf_free(&b);
}

static void an_engine_that_drafts_tells_how_they_fare(void **state)
{
    (void)state;
    struct buf b = scrape();
    assert_null(strstr(buf_str(&b), "spec_decode"));
    buf_free(&b);
    info.n_draft = 2;
    stats.n_draft_token[0] = 100;
    stats.n_draft_token[1] = 90;
    stats.n_accepted_token[0] = 80;
    stats.n_accepted_token[1] = 40;
    b = scrape();
    assert_sample(&b, "vllm:spec_decode_num_drafts_total", "", 100);
    assert_sample(&b, "vllm:spec_decode_num_draft_tokens_total", "", 190);
    assert_sample(&b, "vllm:spec_decode_num_accepted_tokens_total", "", 120);
    const char *name = "vllm:spec_decode_num_accepted_tokens_per_pos_total";
    assert_sample(&b, name, "position=\"0\"", 80);
    assert_sample(&b, name, "position=\"1\"", 40);
    buf_free(&b);
    info.n_draft = 0;
}

static void a_finished_request_is_in_every_histogram(void **state)
{
    (void)state;
    const struct metric_request r = {
        .finish = METRIC_FINISH_LENGTH, .total_us = 2600000, .n_output = 11, .max_tokens = 11};
    const fathom_event e = {.kind = FATHOM_EVENT_FINISH,
                            .n_prompt = 640,
                            .n_cached = 128,
                            .n_output = 11,
                            .queue_us = 400000,
                            .first_us = 1400000,
                            .total_us = 2400000};
    metrics_note_finish(&metrics, &r, &e);
    struct buf b = scrape();
    assert_sample(&b, "vllm:request_success_total", "finished_reason=\"length\"", 1);
    assert_sample(&b, "vllm:request_success_total", "finished_reason=\"stop\"", 0);
    assert_sample(&b, "vllm:prefix_cache_queries_total", "", 640);
    assert_sample(&b, "vllm:prefix_cache_hits_total", "", 64);
    assert_sample(&b, "vllm:external_prefix_cache_queries_total", "", 0); /* there are no tiers */
    assert_sample(&b, "vllm:external_prefix_cache_hits_total", "", 64);
    assert_sample(&b, "vllm:e2e_request_latency_seconds_sum", "", 2.6);
    assert_sample(&b, "vllm:request_queue_time_seconds_sum", "", 0.4);
    assert_sample(&b, "vllm:request_prefill_time_seconds_sum", "", 1);
    assert_sample(&b, "vllm:request_decode_time_seconds_sum", "", 1);
    assert_sample(&b, "vllm:request_inference_time_seconds_sum", "", 2);
    assert_sample(&b, "vllm:request_time_per_output_token_seconds_sum", "", 0.1);
    assert_sample(&b, "vllm:request_prompt_tokens_bucket", "le=\"500.0\"", 0);
    assert_sample(&b, "vllm:request_prompt_tokens_bucket", "le=\"1000.0\"", 1);
    assert_sample(&b, "vllm:request_generation_tokens_sum", "", 11);
    assert_sample(&b, "vllm:request_params_max_tokens_count", "", 1);
    buf_free(&b);
}

static void one_that_was_given_up_is_counted_and_not_measured(void **state)
{
    (void)state;
    const fathom_event e = {.kind = FATHOM_EVENT_FINISH, .n_prompt = 5, .total_us = 10};
    metrics_note_finish(&metrics, &(struct metric_request){.finish = METRIC_FINISH_ABORT}, &e);
    metrics_note_finish(&metrics, &(struct metric_request){.finish = METRIC_FINISH_ERROR}, &e);
    /* stopped before the first token: there is no prefill to measure */
    const fathom_event early = {.n_prompt = 5, .queue_us = 7, .first_us = 0, .total_us = 9};
    metrics_note_finish(&metrics, &(struct metric_request){.finish = METRIC_FINISH_STOP}, &early);
    struct buf b = scrape();
    assert_sample(&b, "vllm:request_success_total", "finished_reason=\"abort\"", 1);
    assert_sample(&b, "vllm:request_success_total", "finished_reason=\"error\"", 1);
    assert_sample(&b, "vllm:e2e_request_latency_seconds_count", "", 1);
    assert_sample(&b, "vllm:request_prefill_time_seconds_count", "", 0);
    buf_free(&b);
}

static void errors_and_answers_are_counted_by_kind(void **state)
{
    (void)state;
    metrics_note_error(&metrics, "server_busy");
    metrics_note_error(&metrics, "server_busy");
    metrics_note_error(&metrics, NULL);
    metrics_note_error(&metrics, "a code of the future");
    metrics_note_response(&metrics, 0, "POST", 200);
    metrics_note_response(&metrics, 0, "POST", 429);
    metrics_note_response(&metrics, SIZE_MAX, "BREW", 418);
    struct buf b = scrape();
    assert_sample(&b, "fathom_request_errors_total", "code=\"server_busy\"", 2);
    assert_sample(&b, "fathom_request_errors_total", "code=\"other\"", 2);
    assert_sample(&b, "fathom_http_responses_total", "status=\"200\"", 1);
    assert_sample(&b, "fathom_http_responses_total", "status=\"429\"", 1);
    assert_sample(&b, "fathom_http_responses_total", "status=\"other\"", 1);
    assert_sample(&b, "fathom_http_responses_total", "status=\"500\"", 0);
    assert_sample(&b, "http_requests_total", "method=\"POST\",status=\"4xx\"", 1);
    assert_sample(&b, "http_requests_total", "handler=\"none\",method=\"other\",status=\"4xx\"", 1);
    buf_free(&b);
}

/* The second column of its table of errors. */
static void each_code_that_the_api_tells_has_a_counter(void **state)
{
    (void)state;
    char line[4096], label[96];
    uint32_t n_code = 0;
    bool in_errors = false;
    FILE *f = fopen(FATHOM_SOURCE_DIR "/docs/api.md", "r");
    assert_non_null(f);
    while (fgets(line, sizeof line, f)) {
        if (strncmp(line, "## ", 3) == 0) in_errors = strcmp(line, "## Errors\n") == 0;
        char *code = in_errors && line[0] == '|' ? strchr(line + 1, '|') : NULL;
        char *const end = code ? strchr(code + 1, '|') : NULL;
        while (end && (code = strchr(code, '`')) && code < end) {
            char *const close = strchr(++code, '`');
            assert_true(close && close < end);
            *close = '\0';
            if (strcmp(code, "code") != 0) {
                metrics_note_error(&metrics, code);
                n_code++;
                (void)snprintf(label, sizeof label, "code=\"%s\"", code);
                struct buf b = scrape();
                if (!strstr(buf_str(&b), label)) fail_msg("%s counts as another", code);
                buf_free(&b);
            }
            code = close + 1;
        }
    }
    (void)fclose(f);
    assert_true(n_code > 25);
}

static void a_name_may_have_any_character(void **state)
{
    (void)state;
    struct buf b = {0};
    char why[256] = "";
    assert_int_equal(write_as(&b, "a \"b\" \\ c\nd"), FATHOM_OK);
    if (!exposition_check(buf_str(&b), why, sizeof why)) fail_msg("%s", why);
    assert_non_null(strstr(buf_str(&b), "model_name=\"a \\\"b\\\" \\\\ c\\nd\""));
    buf_free(&b);
}

static void each_failing_allocation_is_told(void **state)
{
    (void)state;
    bool failed = true;
    for (long n = 0; failed; n++) {
        struct buf b = {0};
        mem_fail_after(n);
        fathom_err err = write_as(&b, "m");
        failed = mem_fail_hit();
        mem_fail_after(-1);
        assert_int_equal(err, failed ? FATHOM_ENOMEM : FATHOM_OK);
        buf_free(&b);
    }
}

static void tiers_are_told_where_there_are_some(void **state)
{
    (void)state;
    struct buf without = scrape();
    assert_null(strstr(buf_str(&without), "fathom_kv_tier"));
    buf_free(&without);
    const fathom_stats before = stats;
    stats.n_fetching = 2;
    stats.tiers = (fathom_tier_stats){.n_ram_page = 64,
                                      .n_ram_used = 60,
                                      .n_disk_page = 900,
                                      .n_disk_used = 800,
                                      .n_uncopied = 4,
                                      .n_unwritten = 3,
                                      .page_bytes = 1000,
                                      .n_kept = 500,
                                      .n_written = 400,
                                      .n_read = 30,
                                      .n_ram_hit = 20,
                                      .n_disk_hit = 10,
                                      .n_dropped = 5,
                                      .n_write_failed = 9,
                                      .n_bad[FATHOM_TIER_BAD_CHECKSUM] = 7,
                                      .n_fetch = 6,
                                      .fetch_us = 1500000,
                                      .writes_off = true};
    struct buf b = scrape();
    assert_sample(&b, "fathom_kv_tier_pages", "tier=\"ram\"", 60);
    assert_sample(&b, "fathom_kv_tier_capacity_pages", "tier=\"disk\"", 900);
    assert_sample(&b, "fathom_kv_tier_uncopied_pages", "", 4);
    assert_sample(&b, "fathom_kv_tier_hits_total", "tier=\"disk\"", 10);
    assert_sample(&b, "fathom_kv_tier_stored_pages_total", "tier=\"disk\"", 400);
    assert_sample(&b, "fathom_kv_tier_bytes_total", "direction=\"read\"", 30000);
    assert_sample(&b, "fathom_kv_tier_restore_seconds_total", "", 1.5);
    assert_sample(&b, "fathom_kv_tier_rejected_total", "reason=\"checksum\"", 7);
    assert_sample(&b, "fathom_kv_tier_rejected_total", "reason=\"tokens\"", 0);
    assert_sample(&b, "fathom_kv_tier_writes_off", "", 1);
    assert_sample(&b, "fathom_requests_fetching", "", 2);
    buf_free(&b);
    stats = before;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(tiers_are_told_where_there_are_some, init_metrics),
        cmocka_unit_test_setup(what_the_engine_counts_is_told, init_metrics),
        cmocka_unit_test_setup(another_host_tells_the_gauges_of_its_lanes, init_metrics),
        cmocka_unit_test_setup(an_engine_that_drafts_tells_how_they_fare, init_metrics),
        cmocka_unit_test_setup(a_finished_request_is_in_every_histogram, init_metrics),
        cmocka_unit_test_setup(one_that_was_given_up_is_counted_and_not_measured, init_metrics),
        cmocka_unit_test_setup(errors_and_answers_are_counted_by_kind, init_metrics),
        cmocka_unit_test_setup(each_code_that_the_api_tells_has_a_counter, init_metrics),
        cmocka_unit_test_setup(a_name_may_have_any_character, init_metrics),
        cmocka_unit_test_setup(each_failing_allocation_is_told, init_metrics),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
