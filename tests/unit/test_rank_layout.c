/* test_rank_layout.c - predicted steps beside measured ones, what is chosen for which load, and
 * options that contradict each other */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "base/os.h"
#include "engine/rank_layout.h"
#include "model/config.h"

#define H200 ((uint64_t)141000000000)

static struct model_config config; /* DeepSeek-V3.2 */

static int read_config(void **state)
{
    struct file_map map;
    (void)state;
    if (file_map_open(&map, FATHOM_SOURCE_DIR "/tests/data/checkpoint/config_v32.json", NULL))
        return -1;
    fathom_err err = model_config_parse(&config, map.data, map.size, NULL);
    file_map_close(&map);
    return err ? -1 : 0;
}

static fathom_options gpus(void)
{
    return (fathom_options){
        .backend = FATHOM_BACKEND_CUDA, .dummy = true, .kv = FATHOM_KV_FP8, .max_model_len = 8192};
}

/* Within a share of what was measured. */
static void expect_time(const struct model_config *c, const fathom_options *o,
                        const struct step_rows *rows, double measured_ms, double share)
{
    struct engine_settings s;
    struct memory_plan p;
    struct machine_figures m;
    fathom_diag d = {{0}};
    if (settings_resolve(&s, o, c, &d) || memory_plan_make(&p, &s, c, NULL, H200, &d))
        fail_msg("%s", d.text);
    machine_figures_find(&m, &s, H200);
    assert_string_equal(m.name, "NVIDIA H200");
    const double ms = 1e3 * step_time(&m, &s, &p, c, rows);
    print_message("%g rows behind %g to %g tokens: %.2f ms, measured %.2f\n", rows->n_row,
                  rows->first, rows->last, ms, measured_ms);
    if (ms < measured_ms * (1 - share) || ms > measured_ms * (1 + share)) fail();
}

static struct step_rows decodes(double n, double n_input)
{
    return (struct step_rows){
        .n_row = n, .n_request = n, .first = n_input, .last = n_input + 64, .n_logit = n};
}

static struct step_rows a_prompt(double n)
{
    return (struct step_rows){
        .n_row = n, .n_request = 1, .last = n, .n_logit = 1, .is_prompt = true};
}

/* bench/results/h200_latency_prompts.csv: one rank of 8 by itself, and 10 layers, 1 dense, on one
 * GPU. */
static void steps_of_one_gpu_are_predicted_as_measured(void **state)
{
    const struct {
        double n, slice_ms, whole_ms;
    } measured[] = {{1, 3.95, 2.44}, {8, 8.25, 6.92}, {64, 20.90, 21.46}};
    struct model_config ten = config;
    fathom_options slice = gpus(), whole = gpus();
    (void)state;
    ten.n_layer = 10;
    ten.n_dense_layer = 1;
    slice.world = 8;
    slice.rank_slice = true;
    whole.kv = FATHOM_KV_BF16;
    for (size_t i = 0; i < sizeof measured / sizeof *measured; i++) {
        const struct step_rows rows = decodes(measured[i].n, 1984);
        expect_time(&config, &slice, &rows, measured[i].slice_ms, 0.2);
        expect_time(&ten, &whole, &rows, measured[i].whole_ms, 0.2);
    }
    const struct step_rows prompt = a_prompt(4096), longer = a_prompt(8000);
    slice.max_num_batched_tokens = 4096;
    expect_time(&config, &slice, &prompt, 141.33, 0.2);
    whole.max_num_batched_tokens = 8192;
    expect_time(&ten, &whole, &prompt, 87.20, 0.2);
    expect_time(&ten, &whole, &longer, 179.71, 0.2);
}

/* bench/results/h200_x2_latency.csv: three layers on two GPUs, with what they send each other. */
static void steps_of_two_gpus_are_predicted_as_measured(void **state)
{
    const struct {
        double n, ms;
    } measured[] = {{1, 0.73}, {8, 1.26}, {64, 3.38}};
    struct model_config three = config;
    fathom_options o = gpus();
    (void)state;
    three.n_layer = 3;
    three.n_dense_layer = 1;
    o.kv = FATHOM_KV_BF16;
    o.world = 2;
    for (size_t i = 0; i < sizeof measured / sizeof *measured; i++) {
        const struct step_rows rows = decodes(measured[i].n, 64);
        expect_time(&three, &o, &rows, measured[i].ms, 0.25);
    }
}

/* docs/parallel.md and bench/results/h200_x4_share.csv: 24 layers, each of four GPUs with requests
 * of its own; a prompt on one of them, on each, and computed by all. */
static void prompts_of_four_lanes_are_predicted_as_measured(void **state)
{
    struct model_config c = config;
    fathom_options o = gpus();
    struct step_rows rows = a_prompt(8192);
    (void)state;
    c.n_layer = 24;
    c.n_dense_layer = 3;
    o.data_parallel = 4;
    o.expert_parallel = true;
    o.max_model_len = 33000;
    o.max_num_batched_tokens = 8192;
    expect_time(&c, &o, &rows, 519, 0.25);
    rows.n_lane = 1;
    expect_time(&c, &o, &rows, 380.35, 0.2);
    rows = a_prompt(2048);
    rows.is_shared = true;
    rows.first = 6144;
    rows.last = 8192;
    expect_time(&c, &o, &rows, 159.82, 0.2);
    rows = a_prompt(8192);
    rows.is_shared = true;
    rows.first = 24576;
    rows.last = 32768;
    expect_time(&c, &o, &rows, 894.13, 0.2);
}

static void compare_of(struct rank_layout *r, const struct model_config *c, const fathom_options *o,
                       uint64_t bytes)
{
    fathom_diag d = {{0}};
    if (rank_layout_compare(r, o, c, NULL, bytes, &d)) fail_msg("%s", d.text);
}

static void compare(struct rank_layout *r, const fathom_options *o, uint64_t bytes)
{
    compare_of(r, &config, o, bytes);
}

static void few_requests_share_layers_and_many_do_not(void **state)
{
    struct rank_layout r;
    fathom_options o = gpus();
    (void)state;
    o.layout_ranks = 8;
    o.load = (fathom_load){8, 2048, 512};
    compare(&r, &o, H200);
    const struct layout_plan *latency = &r.plans[0], *throughput = &r.plans[1];
    assert_int_equal(latency->err, FATHOM_OK);
    assert_int_equal(throughput->err, FATHOM_OK);
    assert_true(latency->output_tokens_per_s > 1.2 * throughput->output_tokens_per_s);
    assert_int_equal(r.chosen, 0);
    o.load.n_request = 1024;
    compare(&r, &o, H200);
    assert_true(throughput->output_tokens_per_s > 1.5 * latency->output_tokens_per_s);
    assert_int_equal(latency->settings.max_num_seqs, 1024);
    assert_int_equal(throughput->settings.max_num_seqs, 128);
    /* no token of a cache is on two ranks */
    assert_int_equal(throughput->n_token, 8 * throughput->memory.n_token_capacity);
    assert_int_equal(latency->n_token, latency->memory.n_token_capacity);
    assert_int_equal(throughput->n_running, 1024);
    assert_true(latency->n_running < 1024);
    assert_int_equal(r.chosen, 1);
    assert_true(strncmp(r.reason, "throughput over 8", 17) == 0);
}

/* A prompt alone, of which four lanes make a quarter each; steps that hold a half of it. */
static void a_prompt_alone_is_predicted_as_it_is_computed(void **state)
{
    struct rank_layout r, apart;
    fathom_options o = gpus();
    (void)state;
    o.layout_ranks = 8;
    o.max_model_len = 16384;
    o.load = (fathom_load){1, 8192, 512};
    compare(&r, &o, H200);
    o.share_prompts = -1;
    compare(&apart, &o, H200);
    assert_true(r.plans[1].shares_prompt);
    assert_false(r.plans[0].shares_prompt || apart.plans[1].shares_prompt);
    assert_true(r.plans[1].first_token_s * 2 < apart.plans[1].first_token_s);
    assert_true(r.plans[0].first_token_s == apart.plans[0].first_token_s);
    assert_true(r.plans[1].output_tokens_per_s > apart.plans[1].output_tokens_per_s);
    o.share_prompts = 1025; /* of 8 lanes each; the prompt has fewer */
    compare(&r, &o, H200);
    assert_false(r.plans[1].shares_prompt);
    o.share_prompts = 0;
    o.max_num_batched_tokens = 512; /* of a lane; a step has half of it */
    compare(&r, &o, H200);
    assert_true(r.plans[1].first_token_s < apart.plans[1].first_token_s);
    o.load.n_input = 8192 + 2048; /* a third step; with one token less its rest stays on its lane */
    compare(&r, &o, H200);
    o.load.n_input--;
    compare(&apart, &o, H200);
    assert_true(r.plans[1].first_token_s < apart.plans[1].first_token_s);
}

/* From one request to 1024, as many as lanes among them: more of them lower no prediction, but for
 * two thousandths where the lane that has one more to attend to is waited for. With lanes none of
 * them is done sooner; ranks that share layers share more of them from 64 rows on. Four layers,
 * planned sooner than all. */
static void each_request_more_costs_the_others_and_adds_to_all(void **state)
{
    const fathom_load loads[] = {{0, 1024, 256}, {0, 2048, 512}, {0, 7680, 64}, {0, 4096, 1}};
    struct model_config four = config;
    (void)state;
    four.n_layer = 4;
    four.n_dense_layer = 1;
    for (size_t i = 0; i < sizeof loads / sizeof *loads; i++) {
        double all[LAYOUTS] = {0}, one[LAYOUTS] = {1e9, 1e9};
        fathom_options o = gpus();
        o.layout_ranks = i == 1 ? 4 : 8;
        o.share_prompts = i == 2 ? -1 : 0;
        o.max_num_seqs = 1024;
        o.load = loads[i];
        for (uint32_t n = 1; n <= 1024; n += n < 34 ? 1 : 9) {
            struct rank_layout r;
            o.load.n_request = n;
            compare_of(&r, &four, &o, H200);
            for (int k = 0; k < LAYOUTS; k++) {
                const double is = r.plans[k].output_tokens_per_s;
                assert_int_equal(r.plans[k].n_running, n);
                const bool is_sooner = k == 1 && is / n > one[k] * 1.000001;
                if (is < all[k] * 0.998 || is_sooner)
                    fail_msg("load %zu, %s: %u requests %.1f tokens/s, %.2f each; fewer %.1f, %.2f",
                             i, layout_name(r.plans[k].layout), n, is, is / n, all[k], one[k]);
                if (is > all[k]) all[k] = is;
                one[k] = is / n;
            }
        }
    }
}

static void requests_that_run_fit_the_cache(void **state)
{
    struct rank_layout r;
    fathom_options o = gpus();
    (void)state;
    o.layout_ranks = 8;
    o.load = (fathom_load){4096, 2048, 512};
    compare(&r, &o, H200);
    for (int i = 0; i < LAYOUTS; i++) {
        const struct layout_plan *l = &r.plans[i];
        const uint32_t n_lane = i == 0 ? 1 : 8;
        assert_int_equal(l->n_running, l->memory.n_page / (2560 / 64) * n_lane);
        assert_in_range((uint64_t)l->n_running * 2560, 1, l->n_token);
    }
}

static void a_way_that_does_not_fit_says_so(void **state)
{
    struct rank_layout r;
    fathom_options o = gpus();
    (void)state;
    o.layout_ranks = 8;
    compare(&r, &o, 110000000000); /* attention weights are whole in throughput */
    assert_int_equal(r.plans[0].err, FATHOM_OK);
    assert_int_equal(r.plans[1].err, FATHOM_ENOMEM);
    assert_int_equal(r.chosen, 0);
    assert_non_null(strstr(r.reason, "may be used"));
    assert_int_equal(r.load.n_request, SETTINGS_MAX_NUM_SEQS);
    o.layout_ranks = 3; /* divides neither heads nor experts */
    compare(&r, &o, H200);
    assert_int_equal(r.plans[0].err, FATHOM_EINVAL);
    assert_int_equal(r.plans[1].err, FATHOM_EINVAL);
    assert_int_equal(r.chosen, -1);
    o.layout = FATHOM_LAYOUT_AUTO;
    fathom_diag d = {{0}};
    fathom_options resolved;
    assert_int_equal(rank_layout_resolve(&resolved, &r, &o, &config, NULL, H200, &d),
                     FATHOM_EINVAL);
    assert_non_null(strstr(d.text, "--layout auto: \"num_attention_heads\" is 128"));
}

static void a_processor_takes_what_it_is_expected_to_do_more_by(void **state)
{
    struct rank_layout r;
    fathom_options resolved, o = {.backend = FATHOM_BACKEND_CPU,
                                  .dummy = true,
                                  .n_thread = 64,
                                  .max_model_len = 4096,
                                  .kv = FATHOM_KV_FP8,
                                  .layout = FATHOM_LAYOUT_AUTO,
                                  .layout_ranks = 4,
                                  .load = {.n_request = 1}};
    fathom_diag d = {{0}};
    (void)state;
    for (int i = 0; i < 2; i++) {
        o.load.n_request = i == 0 ? 1 : 512;
        if (rank_layout_resolve(&resolved, &r, &o, &config, NULL, 400000000000, &d))
            fail_msg("%s", d.text);
        assert_int_equal(resolved.layout, FATHOM_LAYOUT_GIVEN);
        assert_int_equal(resolved.layout_ranks, 0);
        const int best = r.plans[1].output_tokens_per_s > r.plans[0].output_tokens_per_s;
        assert_int_equal(r.chosen, best);
        assert_int_equal(resolved.world, best ? 1 : 4);
        assert_int_equal(resolved.data_parallel, best ? 4 : 1);
        assert_int_equal(resolved.expert_parallel, best);
        assert_int_equal(resolved.max_num_seqs,
                         best ? (o.load.n_request + 3) / 4 : o.load.n_request);
        assert_true(strncmp(r.reason, best ? "throughput over 4" : "latency over 4", 14) == 0);
    }
}

static void a_layout_is_what_other_options_give(void **state)
{
    struct rank_layout r;
    fathom_options resolved, o = gpus();
    (void)state;
    o.layout_ranks = 4;
    o.layout = FATHOM_LAYOUT_LATENCY;
    assert_int_equal(rank_layout_resolve(&resolved, &r, &o, &config, NULL, H200, NULL), FATHOM_OK);
    assert_int_equal(resolved.world, 4);
    assert_int_equal(resolved.data_parallel, 1);
    assert_int_equal(resolved.max_num_seqs, 0);
    assert_int_equal(r.n_rank, 0);
    o.layout = FATHOM_LAYOUT_THROUGHPUT;
    o.data_parallel = 4;
    o.expert_parallel = true;
    o.load.n_request = 10;
    assert_int_equal(rank_layout_resolve(&resolved, &r, &o, &config, NULL, H200, NULL), FATHOM_OK);
    assert_int_equal(resolved.world, 1);
    assert_int_equal(resolved.data_parallel, 4);
    assert_true(resolved.expert_parallel);
    assert_int_equal(resolved.max_num_seqs, 3);
    o.max_num_seqs = 7;
    assert_int_equal(rank_layout_resolve(&resolved, &r, &o, &config, NULL, H200, NULL), FATHOM_OK);
    assert_int_equal(resolved.max_num_seqs, 7);
}

static void contradictions_are_refused_by_name(void **state)
{
    const fathom_hosts hosts = {.n_node = 2};
    const struct {
        fathom_options o;
        const char *part;
    } cases[] = {
        {{.layout = FATHOM_LAYOUT_AUTO, .world = 8},
         "--tensor-parallel-size 8, which is --layout latency"},
        {{.layout = FATHOM_LAYOUT_AUTO, .data_parallel = 8},
         "--data-parallel-size, which is --layout"},
        {{.layout = FATHOM_LAYOUT_AUTO, .expert_parallel = true},
         "--enable-expert-parallel, which"},
        {{.layout = FATHOM_LAYOUT_LATENCY, .data_parallel = 8},
         "--layout latency and --data-parallel-size"},
        {{.layout = FATHOM_LAYOUT_THROUGHPUT, .world = 8},
         "--layout throughput and --tensor-parallel-size 8"},
        {{.layout = FATHOM_LAYOUT_LATENCY, .world = 8, .layout_ranks = 4},
         "--ranks 4 and --tensor-parallel-size 8"},
        {{.layout = FATHOM_LAYOUT_AUTO, .hosts = &hosts}, "with --nnodes give"},
        {{.layout = FATHOM_LAYOUT_AUTO, .rank_slice = true}, "with --rank-slice give"},
        {{.layout_ranks = 4}, "give --layout too"},
        {{.load = {.n_input = 4}}, "--layout auto chooses by"},
        {{.layout = FATHOM_LAYOUT_AUTO, .backend = FATHOM_BACKEND_CPU}, "give --ranks"},
        {{.layout = FATHOM_LAYOUT_AUTO, .layout_ranks = 65}, "--ranks 65 is out of range"},
        {{.layout = FATHOM_LAYOUT_AUTO, .layout_ranks = 2, .max_model_len = 64, .load = {1, 60, 5}},
         "--input-len 60 and --output-len 5 are more than a request may have, 64"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct rank_layout r;
        fathom_options resolved;
        fathom_diag d = {{0}};
        assert_int_equal(rank_layout_resolve(&resolved, &r, &cases[i].o, &config, NULL, H200, &d),
                         FATHOM_EINVAL);
        if (!strstr(d.text, cases[i].part)) fail_msg("\"%s\" not in \"%s\"", cases[i].part, d.text);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(steps_of_one_gpu_are_predicted_as_measured),
        cmocka_unit_test(steps_of_two_gpus_are_predicted_as_measured),
        cmocka_unit_test(prompts_of_four_lanes_are_predicted_as_measured),
        cmocka_unit_test(few_requests_share_layers_and_many_do_not),
        cmocka_unit_test(a_prompt_alone_is_predicted_as_it_is_computed),
        cmocka_unit_test(each_request_more_costs_the_others_and_adds_to_all),
        cmocka_unit_test(requests_that_run_fit_the_cache),
        cmocka_unit_test(a_way_that_does_not_fit_says_so),
        cmocka_unit_test(a_processor_takes_what_it_is_expected_to_do_more_by),
        cmocka_unit_test(a_layout_is_what_other_options_give),
        cmocka_unit_test(contradictions_are_refused_by_name),
    };
    return cmocka_run_group_tests(tests, read_config, NULL);
}
