/* test_settings.c - defaults, AUTO choices and ranges of fathom_options */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "backend/backend.h"
#include "base/fail.h"
#include "base/limits.h"
#include "checkpoint/checkpoint.h"
#include "engine/settings.h"
#include "model/config.h"

static const struct model_config config = {
    .n_vocab = 4096, .max_position = 4000, .dtype = DTYPE_BF16};

static void expect(const fathom_options *o, fathom_err err, const char *part)
{
    struct engine_settings s;
    fathom_diag d = {{0}};
    assert_int_equal(settings_resolve(&s, o, &config, &d), err);
    if (err != FATHOM_OK && !strstr(d.text, part)) fail_msg("\"%s\" not in \"%s\"", part, d.text);
}

static void zero_means_the_default(void **state)
{
    (void)state;
    struct engine_settings s;
    fathom_options o = {0};
    assert_int_equal(settings_resolve(&s, &o, &config, NULL), FATHOM_OK);
    if (backend_cuda_count() > 0) skip(); /* it is chosen, and fp8 with it */
    assert_int_equal(s.backend, FATHOM_BACKEND_CPU);
    assert_int_equal(s.limits.act, ACT_BF16);
    assert_int_equal(s.limits.kv_type, KV_TYPE_BF16);
    assert_int_equal(s.limits.max_context, 4000);
    assert_int_equal(s.limits.max_token, 2048);
    assert_int_equal(s.limits.max_request, 64);
    assert_int_equal(s.limits.max_logit_row, 64 + SETTINGS_MAX_SCORE);
    assert_int_equal(s.max_score, SETTINGS_MAX_SCORE);
    assert_int_equal(s.place.parallel.tp.size, 1);
    assert_int_equal(s.max_num_seqs, 64);
    assert_int_equal(s.max_queued, 1024);
    assert_int_equal(s.n_vocab_used, 4096);
    assert_true(s.memory_utilization == 0.9);
}

static void a_method_that_is_not_read_is_refused(void **state)
{
    (void)state;
    for (int dummy = 0; dummy < 2; dummy++) {
        struct model_config quantized = config;
        struct engine_settings s;
        const fathom_options o = {.dummy = dummy == 1};
        fathom_diag d = {{0}};
        quantized.quant = QUANT_OTHER;
        memcpy(quantized.quant_name, "its-name", sizeof "its-name");
        assert_int_equal(settings_resolve(&s, &o, &quantized, &d), FATHOM_EUNSUPPORTED);
        assert_non_null(strstr(d.text, "\"its-name\""));
    }
}

static void made_up_weights_are_of_the_method_asked_for(void **state)
{
    (void)state;
    struct engine_settings s;
    fathom_diag d = {{0}};
    fathom_options o = {.quantization = "awq"};
    assert_int_equal(settings_resolve(&s, &o, &config, &d), FATHOM_OK);
    assert_int_equal(settings_stored(&s, &config).quant, config.quant);
    o.dummy = true;
    assert_int_equal(settings_resolve(&s, &o, &config, &d), FATHOM_OK);
    assert_int_equal(settings_stored(&s, &config).quant, QUANT_AWQ);
    assert_string_equal(settings_stored(&s, &config).quant_name, "awq");
}

static void tiers_want_both_halves_of_a_directory(void **state)
{
    (void)state;
    struct engine_settings s;
    expect(&(fathom_options){.offload_dir = "/x"}, FATHOM_EINVAL, "give both or neither");
    expect(&(fathom_options){.offload_dir_bytes = 1}, FATHOM_EINVAL, "--kv-offload-dir-size");
    expect(&(fathom_options){.offload_ram_bytes = 1 << 30, .no_prefix_cache = true}, FATHOM_EINVAL,
           "leave --no-enable-prefix-caching out");
    const fathom_options o = {
        .offload_ram_bytes = 5, .offload_dir = "/x", .offload_dir_bytes = 1 << 30};
    assert_int_equal(settings_resolve(&s, &o, &config, NULL), FATHOM_OK);
    assert_int_equal(s.offload_ram_bytes, 5);
    assert_string_equal(s.offload_dir, "/x");
    assert_int_equal(s.offload_dir_bytes, 1 << 30);
}

static void activations_follow_the_checkpoint(void **state)
{
    (void)state;
    const struct {
        enum dtype dtype;
        enum fathom_act asked;
        enum act_type act;
    } cases[] = {{DTYPE_F32, FATHOM_ACT_AUTO, ACT_F32},
                 {DTYPE_F16, FATHOM_ACT_AUTO, ACT_BF16},
                 {DTYPE_F32, FATHOM_ACT_BF16, ACT_BF16},
                 {DTYPE_BF16, FATHOM_ACT_F32, ACT_F32}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct model_config c = config;
        struct engine_settings s;
        fathom_options o = {.act = cases[i].asked};
        c.dtype = cases[i].dtype;
        assert_int_equal(settings_resolve(&s, &o, &c, NULL), FATHOM_OK);
        assert_int_equal(s.limits.act, cases[i].act);
    }
}

/* bf16 inputs on a GPU: the kernels of codes, which quantize for quantized weights alone */
static void bf16_on_a_gpu_leaves_codes_to_quantized_weights(void **state)
{
    (void)state;
    const struct {
        enum quant_method quant;
        enum fathom_kv kv;
        uint32_t hidden;
        bool is_int8;
        enum act_type act;
    } cases[] = {{QUANT_NONE, FATHOM_KV_BF16, 256, false, ACT_FP8},
                 {QUANT_FP8, FATHOM_KV_BF16, 256, false, ACT_FP8},
                 {QUANT_FP8, FATHOM_KV_F32, 256, false, ACT_BF16},
                 {QUANT_INT8, FATHOM_KV_BF16, 256, true, ACT_INT8},
                 {QUANT_NONE, FATHOM_KV_F32, 256, false, ACT_BF16},
                 {QUANT_NONE, FATHOM_KV_BF16, 320, false, ACT_BF16}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct model_config c = config;
        struct engine_settings s;
        fathom_options o = {
            .act = FATHOM_ACT_BF16, .kv = cases[i].kv, .backend = FATHOM_BACKEND_CUDA};
        c.quant = cases[i].quant;
        c.quant_int8 = cases[i].is_int8;
        c.hidden = cases[i].hidden;
        c.q_lora_rank = c.dense_inner = 256;
        assert_int_equal(settings_resolve(&s, &o, &c, NULL), FATHOM_OK);
        assert_int_equal(s.limits.act, cases[i].act);
    }
}

static void cache_types_map_one_to_one(void **state)
{
    (void)state;
    const enum fathom_kv asked[] = {FATHOM_KV_F32, FATHOM_KV_BF16, FATHOM_KV_FP8};
    const enum kv_type want[] = {KV_TYPE_F32, KV_TYPE_BF16, KV_TYPE_FP8};
    for (int i = 0; i < 3; i++) {
        struct engine_settings s;
        fathom_options o = {.kv = asked[i], .backend = FATHOM_BACKEND_REF};
        assert_int_equal(settings_resolve(&s, &o, &config, NULL), FATHOM_OK);
        assert_int_equal(s.limits.kv_type, want[i]);
        assert_int_equal(s.backend, FATHOM_BACKEND_REF);
    }
}

static void a_step_has_no_more_requests_than_tokens(void **state)
{
    (void)state;
    struct engine_settings s;
    fathom_options o = {.max_num_batched_tokens = 16, .max_num_seqs = 64};
    assert_int_equal(settings_resolve(&s, &o, &config, NULL), FATHOM_OK);
    assert_int_equal(s.limits.max_request, 16);
    assert_int_equal(s.max_num_seqs, 64);
}

static void drafts_need_rows_and_a_layer_that_makes_them(void **state)
{
    (void)state;
    struct engine_settings s;
    struct model_config c = config;
    c.n_mtp = 1;
    fathom_options o = {.max_num_seqs = 8, .n_draft = 3};
    assert_int_equal(settings_resolve(&s, &o, &c, NULL), FATHOM_OK);
    assert_int_equal(s.n_draft, 3);
    assert_true(s.limits.with_mtp);
    assert_int_equal(s.limits.max_logit_row, 32 + SETTINGS_MAX_SCORE);
    o.max_num_batched_tokens = 20;
    assert_int_equal(settings_resolve(&s, &o, &c, NULL), FATHOM_OK);
    assert_int_equal(s.limits.max_logit_row, 20); /* as many as a step has tokens */
    assert_int_equal(s.max_score, 20);
    fathom_diag d = {{0}};
    c.n_mtp = 0;
    assert_int_equal(settings_resolve(&s, &o, &c, &d), FATHOM_EUNSUPPORTED);
    assert_non_null(strstr(d.text, "no MTP layer"));
    o.n_draft = 0;
    assert_int_equal(settings_resolve(&s, &o, &c, NULL), FATHOM_OK);
    assert_false(s.limits.with_mtp);
    assert_int_equal(s.limits.max_logit_row, 20);
    expect(&(fathom_options){.n_draft = 5}, FATHOM_EINVAL, "num_speculative_tokens is 5");
}

static void a_gpu_takes_fp8_where_widths_allow(void **state)
{
    (void)state;
    struct engine_settings s;
    struct model_config c = config;
    c.hidden = c.q_lora_rank = c.dense_inner = 256;
    fathom_options o = {.backend = FATHOM_BACKEND_CUDA};
    assert_int_equal(settings_resolve(&s, &o, &c, NULL), FATHOM_OK);
    assert_int_equal(s.backend, FATHOM_BACKEND_CUDA);
    assert_int_equal(s.limits.act, ACT_FP8);
    c.q_lora_rank = 96;
    assert_int_equal(settings_resolve(&s, &o, &c, NULL), FATHOM_OK);
    assert_int_equal(s.limits.act, ACT_BF16);
    c.q_lora_rank = 128;
    o.kv = FATHOM_KV_F32;
    assert_int_equal(settings_resolve(&s, &o, &c, NULL), FATHOM_OK);
    assert_int_equal(s.limits.act, ACT_BF16);
    o = (fathom_options){.backend = FATHOM_BACKEND_CPU, .act = FATHOM_ACT_FP8};
    assert_int_equal(settings_resolve(&s, &o, &c, NULL), FATHOM_OK);
    assert_int_equal(s.limits.act, ACT_FP8);
}

static void int8_inputs_and_an_int8_head(void **state)
{
    (void)state;
    struct engine_settings s;
    struct model_config c = config;
    fathom_options o = {.backend = FATHOM_BACKEND_CPU};
    assert_int_equal(settings_resolve(&s, &o, &c, NULL), FATHOM_OK);
    assert_int_equal(s.limits.act, ACT_BF16);
    assert_int_equal(s.loading.head, HEAD_AUTO);
    c.quant = QUANT_INT8;
    assert_int_equal(settings_resolve(&s, &o, &c, NULL), FATHOM_OK);
    assert_int_equal(s.limits.act, ACT_INT8);
    o.act = FATHOM_ACT_BF16;
    assert_int_equal(settings_resolve(&s, &o, &c, NULL), FATHOM_OK);
    assert_int_equal(s.limits.act, ACT_BF16);
    o.act = FATHOM_ACT_F32;
    assert_int_equal(settings_resolve(&s, &o, &c, NULL), FATHOM_OK);
    assert_int_equal(s.loading.head, HEAD_STORED);
    o.head = FATHOM_HEAD_FP8;
    assert_int_equal(settings_resolve(&s, &o, &c, NULL), FATHOM_OK);
    assert_int_equal(s.loading.head, HEAD_FP8);
    o = (fathom_options){.backend = FATHOM_BACKEND_REF, .act = FATHOM_ACT_INT8};
    assert_int_equal(settings_resolve(&s, &o, &c, NULL), FATHOM_OK);
    assert_int_equal(s.limits.act, ACT_INT8);
    assert_int_equal(s.loading.head, HEAD_STORED);
    o = (fathom_options){.backend = FATHOM_BACKEND_CUDA};
    assert_int_equal(settings_resolve(&s, &o, &config, NULL), FATHOM_OK);
    assert_int_equal(s.loading.head, HEAD_STORED);
    o.head = FATHOM_HEAD_INT8;
    expect(&o, FATHOM_EUNSUPPORTED, "--head-dtype int8 is for a CPU");
    o = (fathom_options){.backend = FATHOM_BACKEND_CUDA, .act = FATHOM_ACT_INT8};
    assert_int_equal(settings_resolve(&s, &o, &config, NULL), FATHOM_OK);
    assert_int_equal(s.limits.act, ACT_INT8);
    o = (fathom_options){.backend = FATHOM_BACKEND_CUDA};
    c = config;
    c.quant = QUANT_COMPRESSED_TENSORS;
    c.quant_int8 = true;
    c.hidden = c.dense_inner = c.moe_inner = c.q_lora_rank = 256;
    assert_int_equal(settings_resolve(&s, &o, &c, NULL), FATHOM_OK);
    assert_int_equal(s.limits.act, ACT_INT8);
    c.hidden = 320; /* no whole groups of 128 */
    assert_int_equal(settings_resolve(&s, &o, &c, NULL), FATHOM_OK);
    assert_int_equal(s.limits.act, ACT_BF16);
}

static void a_slice_is_one_rank_of_many(void **state)
{
    (void)state;
    struct engine_settings s;
    struct model_config c = config;
    c.n_head = c.dense_inner = c.moe_inner = 256;
    fathom_options o = {.world = 8, .rank = 3, .rank_slice = true};
    assert_int_equal(settings_resolve(&s, &o, &c, NULL), FATHOM_OK);
    assert_true(s.place.parallel.is_slice);
    assert_int_equal(s.place.parallel.tp.rank, 3);
    assert_int_equal(s.place.parallel.tp.size, 8);
    assert_int_equal(s.n_vocab_used, 512);
    expect(&(fathom_options){.world = 65}, FATHOM_EINVAL, "1 to 64");
    expect(&(fathom_options){.data_parallel = 65, .expert_parallel = true}, FATHOM_EINVAL,
           "--data-parallel-size 65");
    expect(&(fathom_options){.data_parallel = 2}, FATHOM_EUNSUPPORTED, "--enable-expert-parallel");
    expect(&(fathom_options){.backend = FATHOM_BACKEND_CUDA,
                             .data_parallel = 16,
                             .expert_parallel = true},
           FATHOM_EUNSUPPORTED,
           "--data-parallel-size 16 of --tensor-parallel-size 1: 2, 4 or 8 GPUs of one host");
    expect(&(fathom_options){.backend = FATHOM_BACKEND_CUDA,
                             .data_parallel = 8,
                             .world = 4,
                             .expert_parallel = true},
           FATHOM_EUNSUPPORTED,
           "--data-parallel-size 8 of --tensor-parallel-size 4: 2, 4 or 8 GPUs of one host");
    expect(&(fathom_options){.data_parallel = 16, .world = 8, .expert_parallel = true},
           FATHOM_EINVAL, "at most 64 ranks share a model");
    expect(
        &(fathom_options){
            .data_parallel = 2, .world = 2, .expert_parallel = true, .rank_slice = true},
        FATHOM_EUNSUPPORTED, "leave --data-parallel-size out");
    expect(&(fathom_options){.world = 8, .rank = 8, .rank_slice = true}, FATHOM_EINVAL,
           "--rank-slice 8 of --tensor-parallel-size 8");
    expect(&(fathom_options){.world = 1, .rank_slice = true}, FATHOM_EINVAL, "2 ranks or more");
    c.n_head = 12;
    fathom_diag d = {{0}};
    assert_int_equal(settings_resolve(&s, &o, &c, &d), FATHOM_EINVAL);
    assert_non_null(strstr(d.text, "num_attention_heads"));
}

static void stages_are_of_ranks_that_share_layers(void **state)
{
    (void)state;
    struct engine_settings s;
    struct model_config c;
    struct checkpoint *pilot;
    fathom_options o = {.backend = FATHOM_BACKEND_CPU, .pipeline = 3, .world = 2};
    assert_int_equal(checkpoint_open(&pilot, FATHOM_SOURCE_DIR "/models/pilot", NULL), FATHOM_OK);
    assert_int_equal(model_config_load(&c, pilot, NULL), FATHOM_OK);
    checkpoint_close(pilot);
    assert_int_equal(settings_resolve(&s, &o, &c, NULL), FATHOM_OK);
    assert_int_equal(settings_n_rank(&s), 6);
    assert_int_equal(s.max_flight, 3);
    struct model_place place;
    settings_place(&place, &s, 3);
    assert_int_equal(place.parallel.pp.rank, 1);
    assert_int_equal(place.parallel.tp.rank, 1);
    expect(&(fathom_options){.backend = FATHOM_BACKEND_CPU,
                             .pipeline = 2,
                             .data_parallel = 2,
                             .expert_parallel = true},
           FATHOM_EUNSUPPORTED, "leave --data-parallel-size out");
    const fathom_hosts two = {.n_node = 2};
    const fathom_options shared = {.backend = FATHOM_BACKEND_CUDA, .world = 2, .hosts = &two};
    assert_int_equal(settings_resolve(&s, &shared, &c, NULL), FATHOM_OK);
    assert_int_equal(s.place.n_host, 2);
    assert_int_equal(s.max_flight, 2);
    const fathom_options apart = {.backend = FATHOM_BACKEND_CUDA,
                                  .data_parallel = 16, /* more than peers' memory is for */
                                  .expert_parallel = true,
                                  .hosts = &two};
    assert_false(s.graphs.by_all_lanes);
    assert_int_equal(settings_resolve(&s, &apart, &c, NULL), FATHOM_OK);
    assert_int_equal(s.place.n_host, 2);
    assert_int_equal(settings_n_rank(&s), 8);
    assert_true(s.graphs.by_all_lanes);
    fathom_diag d = {{0}};
    o.pipeline = 9;
    assert_int_equal(settings_resolve(&s, &o, &c, &d), FATHOM_EINVAL);
    assert_non_null(strstr(d.text, "needed is 1 to 8"));
    const fathom_hosts hosts = {.n_node = 2, .node_rank = 1};
    o.hosts = &hosts;
    o.pipeline = 3;
    diag_clear(&d);
    assert_int_equal(settings_resolve(&s, &o, &c, &d), FATHOM_EUNSUPPORTED);
    assert_non_null(strstr(d.text, "--nnodes 2 does not divide --pipeline-parallel-size 3"));
    o.pipeline = 4; /* the second host has the last two stages */
    assert_int_equal(settings_resolve(&s, &o, &c, NULL), FATHOM_OK);
    assert_int_equal(settings_n_rank(&s), 4);
    assert_int_equal(s.max_flight, 4);
    assert_int_equal(s.place.parallel.pp.rank, 2);
    settings_place(&place, &s, 3);
    assert_int_equal(place.parallel.pp.rank, 3);
    assert_int_equal(place.parallel.tp.rank, 1);
    o = (fathom_options){.backend = FATHOM_BACKEND_CPU,
                         .data_parallel = 4,
                         .expert_parallel = true,
                         .hosts = &hosts};
    assert_int_equal(settings_resolve(&s, &o, &c, NULL), FATHOM_OK);
    assert_int_equal(settings_n_rank(&s), 2); /* lanes 2 and 3 */
    settings_place(&place, &s, 1);
    assert_int_equal(place.parallel.dp.rank, 3);
    o.world = 2; /* of two ranks each */
    assert_int_equal(settings_resolve(&s, &o, &c, NULL), FATHOM_OK);
    assert_int_equal(settings_n_rank(&s), 4);
    settings_place(&place, &s, 1);
    assert_int_equal(place.parallel.dp.rank, 2);
    assert_int_equal(place.parallel.tp.rank, 1);
    assert_int_equal(parallel_axis(&place.parallel, CUT_EXPERTS).rank, 5);
    assert_int_equal(parallel_axis(&place.parallel, CUT_EXPERTS).size, 8);
    o.world = 1;
    o.data_parallel = 8;
    const fathom_hosts three = {.n_node = 3};
    o.hosts = &three;
    diag_clear(&d);
    assert_int_equal(settings_resolve(&s, &o, &c, &d), FATHOM_EINVAL);
    assert_non_null(strstr(d.text, "--nnodes 3 does not divide --data-parallel-size 8"));
}

static void a_device_goes_to_the_rank_that_runs(void **state)
{
    (void)state;
    struct engine_settings s;
    const int devices[] = {3, 0, 3};
    const int none[] = {-1};
    fathom_options o = {.backend = FATHOM_BACKEND_CUDA};
    assert_int_equal(settings_resolve(&s, &o, &config, NULL), FATHOM_OK);
    assert_int_equal(s.place.device, 0);
    o.devices = none;
    o.n_device = 1;
    expect(&o, FATHOM_EINVAL, "--devices names GPU -1, needed is 0 or more");
    o.devices = devices;
    if (backend_cuda_count() == 0) { /* nobody knows which there are: the backend will say */
        assert_int_equal(settings_resolve(&s, &o, &config, NULL), FATHOM_OK);
        assert_int_equal(s.place.device, 3);
        o.n_device = 2;
        expect(&o, FATHOM_EINVAL, "names 2 GPUs, and 1 rank runs here");
        o.n_device = 3;
        expect(&o, FATHOM_EINVAL, "names GPU 3 twice");
    }
    o.backend = FATHOM_BACKEND_CPU;
    expect(&o, FATHOM_EINVAL, "a CPU computes");
}

static void recorded_sizes_are_sorted_and_within_a_step(void **state)
{
    (void)state;
    struct engine_settings s;
    const uint32_t given[] = {8, 1, 300, 8, 3, 0, 200};
    fathom_options o = {.max_num_seqs = 6, .max_num_batched_tokens = 200};
    assert_int_equal(settings_resolve(&s, &o, &config, NULL), FATHOM_OK);
    const uint32_t usual[] = {1, 2, 3, 4, 5, 6};
    assert_int_equal(s.graphs.n_size, 6);
    assert_memory_equal(s.graphs.sizes, usual, sizeof usual);
    assert_int_equal(s.graphs.n_warm_up, 1);
    o.graph_sizes = given;
    o.n_graph_size = 7;
    o.n_graph_warm_up = 3;
    assert_int_equal(settings_resolve(&s, &o, &config, NULL), FATHOM_OK);
    const uint32_t sorted[] = {1, 3, 8, 200};
    assert_int_equal(s.graphs.n_size, 4);
    assert_memory_equal(s.graphs.sizes, sorted, sizeof sorted);
    assert_int_equal(s.graphs.n_warm_up, 3);
    o.enforce_eager = true;
    assert_int_equal(settings_resolve(&s, &o, &config, NULL), FATHOM_OK);
    assert_int_equal(s.graphs.n_size, 0);
    expect(&(fathom_options){.graph_sizes = given, .n_graph_size = 129}, FATHOM_EINVAL,
           "129 cudagraph_capture_sizes");
}

static void more_requests_run_on_a_gpu_where_half_a_step_holds_their_tokens(void **state)
{
    (void)state;
    const struct {
        fathom_options o;
        bool fits;
        const char *why;
    } cases[] = {
        {{.backend = FATHOM_BACKEND_CPU}, false, "of a CPU"},
        {{.backend = FATHOM_BACKEND_CUDA}, true, NULL},
        {{.backend = FATHOM_BACKEND_CUDA, .max_num_seqs = 64}, false, NULL},
        {{.backend = FATHOM_BACKEND_CUDA, .n_draft = 3}, true, NULL},
        {{.backend = FATHOM_BACKEND_CUDA, .n_draft = 4}, false, "half of --max-num-batched-tokens"},
        {{.backend = FATHOM_BACKEND_CUDA, .max_num_batched_tokens = 512}, true, NULL},
        {{.backend = FATHOM_BACKEND_CUDA, .max_num_batched_tokens = 511},
         false,
         "half of --max-num-batched-tokens"},
    };
    struct engine_settings s;
    struct model_config c = config;
    c.n_mtp = 1;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        assert_int_equal(settings_resolve(&s, &cases[i].o, &c, NULL), FATHOM_OK);
        assert_int_equal(s.max_num_seqs, 64);
        assert_int_equal(s.fit_seqs, cases[i].fits);
        assert_int_equal(s.seqs_why == NULL, cases[i].o.max_num_seqs > 0);
        if (cases[i].why) assert_true(s.seqs_why && strstr(s.seqs_why, cases[i].why));
    }
}

static void every_range_names_its_flag(void **state)
{
    (void)state;
    expect(&(fathom_options){.max_model_len = 4001}, FATHOM_EINVAL, "--max-model-len 4001");
    expect(&(fathom_options){.max_model_len = 4001}, FATHOM_EINVAL, "4000");
    expect(&(fathom_options){.max_model_len = 1}, FATHOM_EINVAL, "--max-model-len 1");
    expect(&(fathom_options){.max_num_seqs = LIMIT_NUM_SEQS + 1}, FATHOM_EINVAL, "--max-num-seqs");
    expect(&(fathom_options){.max_num_batched_tokens = LIMIT_BATCHED_TOKENS + 1}, FATHOM_EINVAL,
           "--max-num-batched-tokens");
    expect(&(fathom_options){.max_queued = LIMIT_QUEUED + 1}, FATHOM_EINVAL, "--max-queued");
    expect(&(fathom_options){.n_thread = LIMIT_THREADS + 1}, FATHOM_EINVAL, "--threads 257");
    expect(&(fathom_options){.memory_utilization = 1.1}, FATHOM_EINVAL,
           "--gpu-memory-utilization 1.1");
    expect(&(fathom_options){.memory_utilization = -1}, FATHOM_EINVAL, "(0, 1]");
    expect(&(fathom_options){.n_vocab_used = 4097}, FATHOM_EINVAL, "n_vocab_used 4097");
    expect(&(fathom_options){.n_vocab_used = -1}, FATHOM_EINVAL, "n_vocab_used -1");
    expect(&(fathom_options){.act = (enum fathom_act)9}, FATHOM_EINVAL, "--dtype");
    expect(&(fathom_options){.kv = (enum fathom_kv)9}, FATHOM_EINVAL, "--kv-cache-dtype");
    expect(&(fathom_options){.backend = (enum fathom_backend)9}, FATHOM_EUNSUPPORTED, "--backend");
    expect(&(fathom_options){.max_num_seqs = LIMIT_NUM_SEQS}, FATHOM_OK, "");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(zero_means_the_default),
        cmocka_unit_test(a_method_that_is_not_read_is_refused),
        cmocka_unit_test(made_up_weights_are_of_the_method_asked_for),
        cmocka_unit_test(tiers_want_both_halves_of_a_directory),
        cmocka_unit_test(activations_follow_the_checkpoint),
        cmocka_unit_test(bf16_on_a_gpu_leaves_codes_to_quantized_weights),
        cmocka_unit_test(cache_types_map_one_to_one),
        cmocka_unit_test(a_step_has_no_more_requests_than_tokens),
        cmocka_unit_test(drafts_need_rows_and_a_layer_that_makes_them),
        cmocka_unit_test(a_gpu_takes_fp8_where_widths_allow),
        cmocka_unit_test(int8_inputs_and_an_int8_head),
        cmocka_unit_test(a_slice_is_one_rank_of_many),
        cmocka_unit_test(stages_are_of_ranks_that_share_layers),
        cmocka_unit_test(a_device_goes_to_the_rank_that_runs),
        cmocka_unit_test(recorded_sizes_are_sorted_and_within_a_step),
        cmocka_unit_test(more_requests_run_on_a_gpu_where_half_a_step_holds_their_tokens),
        cmocka_unit_test(every_range_names_its_flag),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
