/* test_memory_plan.c - sizes worked out by hand for the pilot model, and the answers when
 * something does not fit */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "backend/cuda/peers.h"
#include "checkpoint/checkpoint.h"
#include "engine/memory_plan.h"
#include "model/config.h"

#define GIB ((uint64_t)1 << 30)

enum {
    PILOT_LAYERS = 8,
    PILOT_PAGE_BF16 = PILOT_LAYERS * 64 * (1152 + 132),
    PILOT_PAGE_FP8 = PILOT_LAYERS * 64 * (656 + 132),
};

static struct checkpoint *pilot;
static struct model_config config;

static int open_pilot(void **state)
{
    (void)state;
    if (checkpoint_open(&pilot, FATHOM_SOURCE_DIR "/models/pilot", NULL) != FATHOM_OK) return -1;
    return model_config_load(&config, pilot, NULL) == FATHOM_OK ? 0 : -1;
}

static int close_pilot(void **state)
{
    (void)state;
    checkpoint_close(pilot);
    return 0;
}

static fathom_err plan(struct memory_plan *p, const fathom_options *o, uint64_t available,
                       fathom_diag *d)
{
    struct engine_settings s;
    assert_int_equal(settings_resolve(&s, o, &config, d), FATHOM_OK);
    return memory_plan_make(p, &s, &config, pilot, available, d);
}

static void parts_add_up(void **state)
{
    (void)state;
    struct memory_plan p;
    fathom_options o = {0};
    assert_int_equal(plan(&p, &o, 64 * GIB, NULL), FATHOM_OK);
    assert_int_equal(p.kv.page_bytes, PILOT_PAGE_BF16);
    assert_int_equal(p.token_bytes, PILOT_LAYERS * (1152 + 132));
    assert_int_equal(p.request_pages, 64);
    assert_int_equal(p.n_page, 64 * 64);
    assert_int_equal(p.n_page_wanted, 64 * 64);
    assert_int_equal(p.kv_bytes, (uint64_t)4096 * PILOT_PAGE_BF16);
    assert_int_equal(p.n_token_capacity, 64 * 4096);
    uint64_t sum = 0;
    for (uint32_t i = 0; i < p.n_buffer; i++) {
        assert_non_null(p.buffers[i].name);
        assert_true(p.buffers[i].bytes > 0);
        sum += p.buffers[i].bytes;
    }
    assert_int_equal(sum, p.buffers_bytes);
    uint64_t weights = 0;
    for (int k = 0; k < WEIGHT_KIND_COUNT; k++) weights += p.weights.kind[k].bytes;
    assert_int_equal(weights, p.weights_bytes);
    assert_int_equal(p.weights.kind[WEIGHT_MTP].bytes, 0);
    assert_true(p.weights_bytes > 10u << 20 && p.weights_bytes < 60u << 20);
    assert_int_equal(p.total_bytes, p.weights_bytes + p.kv_bytes + p.buffers_bytes + p.step_bytes);
    assert_true(p.total_bytes <= p.usable_bytes && p.usable_bytes < p.available_bytes);
}

static void tiers_take_whole_pages(void **state)
{
    (void)state;
    enum { PLACE = (PILOT_PAGE_BF16 + 4095) / 4096 * 4096 };
    struct memory_plan p, without;
    fathom_diag d = {{0}};
    fathom_options o = {.max_num_seqs = 1};
    assert_int_equal(plan(&without, &o, 64 * GIB, NULL), FATHOM_OK);
    assert_int_equal(without.n_ram_page, 0);
    o.offload_ram_bytes = 100 * (uint64_t)PLACE + 99;
    assert_int_equal(plan(&p, &o, 64 * GIB, NULL), FATHOM_OK);
    assert_int_equal(p.n_ram_page, 100);
    assert_int_equal(p.ram_bytes, 100 * PLACE);
    assert_int_equal(p.total_bytes, without.total_bytes + p.ram_bytes);
    o.offload_dir = "/x";
    o.offload_dir_bytes = 4096 + 10 * (4096 + PLACE) + 4000;
    assert_int_equal(plan(&p, &o, 64 * GIB, NULL), FATHOM_OK);
    assert_int_equal(p.n_disk_page, 10);
    assert_int_equal(p.disk_bytes, o.offload_dir_bytes - 4000);
    o.offload_ram_bytes = 0; /* something has to be there */
    assert_int_equal(plan(&p, &o, 64 * GIB, NULL), FATHOM_OK);
    assert_int_equal(p.n_ram_page, 64);
    o.offload_dir_bytes = 4096 + PLACE;
    assert_int_equal(plan(&p, &o, 64 * GIB, &d), FATHOM_EINVAL);
    assert_non_null(strstr(d.text, "does not hold one page: give 667648 at least"));
    o = (fathom_options){.max_num_seqs = 1, .offload_ram_bytes = 15 * PLACE};
    d.text[0] = '\0';
    assert_int_equal(plan(&p, &o, 64 * GIB, &d), FATHOM_EINVAL);
    assert_non_null(strstr(d.text, "needed are 16: give"));
    o.offload_ram_bytes = 4 * GIB;
    d.text[0] = '\0';
    assert_int_equal(plan(&p, &o, 4 * GIB, &d), FATHOM_ENOMEM);
    assert_non_null(strstr(d.text, "--kv-offload-ram 4294"));
    assert_non_null(strstr(d.text, "leaves no room"));
}

static void buffers_of_known_shape(void **state)
{
    (void)state;
    struct memory_plan p;
    fathom_options o = {.max_num_batched_tokens = 100, .max_num_seqs = 3};
    assert_int_equal(plan(&p, &o, 64 * GIB, NULL), FATHOM_OK);
    const struct {
        const char *name;
        uint32_t width;
    } want[] = {
        {"residual stream", 256},       {"normed inputs", 2 * 256}, {"block outputs", 256},
        {"queries", 4 * 576 + 8 * 129}, {"selected rows", 1 + 256}, {"attention outputs", 4 * 512},
        {"expert choices", 2 * 4},      {"logits", 4096}, /* prompts may want all */
    };
    assert_int_equal(p.n_buffer, sizeof want / sizeof *want);
    for (uint32_t i = 0; i < p.n_buffer; i++) {
        assert_string_equal(p.buffers[i].name, want[i].name);
        assert_int_equal(p.buffers[i].bytes, 100 * (uint64_t)want[i].width * 4);
    }
    o.max_num_batched_tokens = 1000;
    assert_int_equal(plan(&p, &o, 64 * GIB, NULL), FATHOM_OK);
    assert_int_equal(p.buffers[p.n_buffer - 1].bytes, (3 + SETTINGS_MAX_SCORE) * 4096 * 4);
}

static void the_cache_type_decides_the_page(void **state)
{
    (void)state;
    struct memory_plan p;
    fathom_options o = {.kv = FATHOM_KV_FP8, .max_num_seqs = 2, .max_model_len = 65};
    assert_int_equal(plan(&p, &o, 64 * GIB, NULL), FATHOM_OK);
    assert_int_equal(p.kv.page_bytes, PILOT_PAGE_FP8);
    assert_int_equal(p.request_pages, 2);
    assert_int_equal(p.n_page, 4);
}

static void drafts_cost_a_layer_of_weights_and_of_cache(void **state)
{
    (void)state;
    struct memory_plan without, with;
    fathom_options o = {.max_num_seqs = 2, .max_model_len = 65};
    assert_int_equal(plan(&without, &o, 64 * GIB, NULL), FATHOM_OK);
    o.n_draft = 2;
    assert_int_equal(plan(&with, &o, 64 * GIB, NULL), FATHOM_OK);
    assert_true(with.weights.kind[WEIGHT_MTP].bytes > 0);
    assert_int_equal(with.kv.page_bytes * 8, without.kv.page_bytes * 9);
    assert_int_equal(with.buffers[with.n_buffer - 1].bytes -
                         without.buffers[without.n_buffer - 1].bytes,
                     2 * 2 * 4096 * 4);
    assert_true(with.step_bytes > without.step_bytes);
}

static void memory_bounds_the_pages(void **state)
{
    (void)state;
    struct memory_plan all, p;
    fathom_options o = {.memory_utilization = 0.5};
    assert_int_equal(plan(&all, &o, 64 * GIB, NULL), FATHOM_OK);
    uint64_t other = all.total_bytes - all.kv_bytes;
    uint64_t available = 2 * (other + 1000 * (uint64_t)PILOT_PAGE_BF16 + 5);
    assert_int_equal(plan(&p, &o, available, NULL), FATHOM_OK);
    assert_int_equal(p.n_page, 1000);
    o.memory_utilization = 0;
    o.kv_cache_bytes = 700 * (uint64_t)PILOT_PAGE_BF16 + PILOT_PAGE_BF16 - 1;
    assert_int_equal(plan(&p, &o, 64 * GIB, NULL), FATHOM_OK);
    assert_int_equal(p.n_page, 700);
    assert_int_equal(p.usable_bytes, p.available_bytes);
}

static void a_size_that_is_given_is_taken(void **state)
{
    (void)state;
    struct memory_plan p;
    fathom_diag d = {{0}};
    fathom_options o = {.backend = FATHOM_BACKEND_CPU,
                        .max_num_seqs = 1,
                        .kv_cache_bytes = 1000 * (uint64_t)PILOT_PAGE_BF16};
    assert_int_equal(plan(&p, &o, 64 * GIB, NULL), FATHOM_OK);
    assert_int_equal(p.n_page_wanted, 64);
    assert_int_equal(p.n_page, 1000); /* the other pages keep prefixes */
    assert_false(p.is_modest);
    o.kv_cache_bytes = 500 * GIB;
    assert_int_equal(plan(&p, &o, 4 * GIB, &d), FATHOM_ENOMEM);
    assert_non_null(strstr(d.text, "--kv-cache-memory-bytes 536870912000 is 536.9 GB"));
    assert_non_null(strstr(d.text, "of 4.3 GB that are free"));
    assert_null(strchr(d.text, '\n'));
    const char *most = strstr(d.text, "Give ");
    assert_non_null(most);
    o.kv_cache_bytes = strtoull(most + 5, NULL, 10);
    assert_int_equal(plan(&p, &o, 4 * GIB, NULL), FATHOM_OK); /* the advice is right */
    o.kv_cache_bytes += PILOT_PAGE_BF16;
    assert_int_equal(plan(&p, &o, 4 * GIB, NULL), FATHOM_ENOMEM); /* and the most there is */
}

static void a_number_of_tokens_that_is_given_is_taken(void **state)
{
    (void)state;
    struct memory_plan p;
    fathom_diag d = {{0}};
    fathom_options o = {
        .backend = FATHOM_BACKEND_CPU, .max_num_seqs = 1, .kv_cache_tokens = 64000 - 63};
    assert_int_equal(plan(&p, &o, 64 * GIB, NULL), FATHOM_OK);
    assert_int_equal(p.n_token_capacity, 64000); /* of whole pages */
    assert_false(p.is_modest);
    assert_int_equal(p.usable_bytes, p.available_bytes);
    o.kv_cache_tokens = (uint64_t)1 << 50;
    assert_int_equal(plan(&p, &o, 4 * GIB, &d), FATHOM_ENOMEM);
    assert_non_null(strstr(d.text, "a cache of 1125899906842624 tokens takes"));
    const char *most = strstr(d.text, "Give ");
    assert_non_null(most);
    o.kv_cache_tokens = strtoull(most + 5, NULL, 10);
    assert_int_equal(plan(&p, &o, 4 * GIB, NULL), FATHOM_OK); /* the advice is right */
    assert_int_equal(p.n_token_capacity, o.kv_cache_tokens);
    o.kv_cache_tokens++;
    assert_int_equal(plan(&p, &o, 4 * GIB, NULL), FATHOM_ENOMEM); /* and the most there is */
    o.kv_cache_tokens = 1000;
    d = (fathom_diag){{0}};
    assert_int_equal(plan(&p, &o, 4 * GIB, &d), FATHOM_ENOMEM);
    assert_non_null(strstr(d.text, "a cache of 1024 tokens has no room for one request of "
                                   "--max-model-len 4096: give that many tokens at least, or a "
                                   "--max-model-len of 1024 at most"));
    struct engine_settings s;
    o.kv_cache_bytes = 1;
    d = (fathom_diag){{0}};
    assert_int_equal(settings_resolve(&s, &o, &config, &d), FATHOM_EINVAL);
    assert_non_null(strstr(d.text, "say the same"));
}

static void a_gpu_is_filled_and_a_cpu_is_not(void **state)
{
    (void)state;
    struct memory_plan p;
    fathom_options o = {.backend = FATHOM_BACKEND_CPU, .max_num_seqs = 1};
    assert_int_equal(plan(&p, &o, 64 * GIB, NULL), FATHOM_OK);
    assert_int_equal(p.n_page, p.n_page_wanted);
    assert_true(p.is_modest);
    o.backend = FATHOM_BACKEND_CUDA;
    assert_int_equal(plan(&p, &o, 64 * GIB, NULL), FATHOM_OK);
    assert_true(p.n_page > p.n_page_wanted);
    assert_true(p.usable_bytes - p.total_bytes < p.kv.page_bytes);
    assert_false(p.is_modest);
}

static void a_context_is_fitted_to_the_cache_where_that_is_asked_for(void **state)
{
    (void)state;
    struct memory_plan p;
    struct engine_settings s;
    fathom_options o = {.kv_cache_bytes = 10 * (uint64_t)PILOT_PAGE_BF16, .fit_model_len = true};
    assert_int_equal(settings_resolve(&s, &o, &config, NULL), FATHOM_OK);
    assert_int_equal(memory_plan_fit(&p, &s, &config, pilot, 64 * GIB, NULL), FATHOM_OK);
    assert_int_equal(s.limits.max_context, 640);
    assert_int_equal(p.n_page, 10);
    assert_int_equal(p.request_pages, 10);
    o.kv_cache_bytes = 0; /* what there is room for is taken, and no more than the model's */
    assert_int_equal(settings_resolve(&s, &o, &config, NULL), FATHOM_OK);
    assert_int_equal(memory_plan_fit(&p, &s, &config, pilot, 64 * GIB, NULL), FATHOM_OK);
    assert_int_equal(s.limits.max_context, 4096);
    const uint64_t other = p.total_bytes - p.kv_bytes;
    const uint64_t few = (uint64_t)((double)(other + 20 * (uint64_t)PILOT_PAGE_BF16) / 0.9);
    assert_int_equal(memory_plan_fit(&p, &s, &config, pilot, few, NULL), FATHOM_OK);
    assert_in_range(s.limits.max_context, 19 * 64, 20 * 64);
    assert_true(p.total_bytes <= p.usable_bytes);
    o.max_model_len = 2048; /* a number is taken as given */
    assert_int_equal(settings_resolve(&s, &o, &config, NULL), FATHOM_OK);
    assert_int_equal(memory_plan_fit(&p, &s, &config, pilot, few, NULL), FATHOM_ENOMEM);
    o.max_model_len = 0;
    assert_int_equal(settings_resolve(&s, &o, &config, NULL), FATHOM_OK);
    assert_int_equal(memory_plan_fit(&p, &s, &config, pilot, 1 << 20, NULL), FATHOM_ENOMEM);
}

/* The plan of options without max_num_seqs is that of as many as were chosen. */
static void expect_seqs(fathom_options o, uint64_t available, uint32_t n, const char *why)
{
    struct memory_plan p, given;
    struct engine_settings s, as;
    assert_int_equal(settings_resolve(&s, &o, &config, NULL), FATHOM_OK);
    assert_int_equal(memory_plan_fit(&p, &s, &config, pilot, available, NULL), FATHOM_OK);
    assert_int_equal(s.max_num_seqs, n);
    assert_non_null(strstr(s.seqs_why, why));
    o.max_num_seqs = n;
    o.max_model_len = s.limits.max_context;
    assert_int_equal(settings_resolve(&as, &o, &config, NULL), FATHOM_OK);
    assert_int_equal(memory_plan_fit(&given, &as, &config, pilot, available, NULL), FATHOM_OK);
    assert_null(as.seqs_why);
    assert_memory_equal(&s.limits, &as.limits, sizeof s.limits);
    assert_memory_equal(&s.graphs, &as.graphs, sizeof s.graphs);
    assert_int_equal(s.admission.max_num_seqs, n);
    assert_int_equal(p.total_bytes, given.total_bytes);
    assert_int_equal(p.n_page_wanted, given.n_page_wanted);
    assert_int_equal(p.n_page, given.n_page);
}

/* Memory of which so many pages are free for a cache of 64 requests. */
static uint64_t memory_of(uint32_t n_page)
{
    struct memory_plan p;
    fathom_options o = {.backend = FATHOM_BACKEND_CUDA, .max_num_seqs = 64};
    assert_int_equal(plan(&p, &o, 64 * GIB, NULL), FATHOM_OK);
    const uint64_t bytes = p.total_bytes - p.kv_bytes + (n_page + 1) * p.kv.page_bytes;
    return (uint64_t)((double)bytes / 0.9);
}

static void more_requests_run_on_a_gpu_where_the_cache_is_hardly_smaller(void **state)
{
    (void)state;
    struct memory_plan few, many;
    fathom_options o = {.backend = FATHOM_BACKEND_CUDA, .max_num_seqs = 64};
    assert_int_equal(plan(&few, &o, 64 * GIB, NULL), FATHOM_OK);
    o.max_num_seqs = SETTINGS_MAX_NUM_SEQS_GPU;
    assert_int_equal(plan(&many, &o, 64 * GIB, NULL), FATHOM_OK);
    assert_true(many.n_page < few.n_page);
    const uint32_t lost = few.n_page - many.n_page;
    o.max_num_seqs = 0;
    expect_seqs(o, 64 * GIB, 256, "the default of a GPU");
    expect_seqs(o, memory_of((lost + 2) * 16), 256, "the default of a GPU");
    expect_seqs(o, memory_of((lost - 2) * 16), 64, "a sixteenth of the cache");
    o.fit_model_len = true; /* a context that takes all there is has no page to spare */
    expect_seqs(o, memory_of(20), 64, "a sixteenth of the cache");
    o.fit_model_len = false;
    expect_seqs(o, memory_of(64), 64, "a sixteenth of the cache");
    o.kv_cache_bytes = 100 * (uint64_t)PILOT_PAGE_BF16; /* given: the same with either */
    expect_seqs(o, 64 * GIB, 256, "the default of a GPU");
    o.kv_cache_bytes = 0;
    o.n_draft = 1;
    expect_seqs(o, 64 * GIB, 256, "the default of a GPU");
    o.pipeline = 2;
    expect_seqs(o, 64 * GIB, 256, "the default of a GPU");
    o = (fathom_options){.backend = FATHOM_BACKEND_CPU};
    expect_seqs(o, 64 * GIB, 64, "the default of a CPU");
}

static void what_does_not_fit_is_told_with_the_smallest_change(void **state)
{
    (void)state;
    struct memory_plan p;
    fathom_diag d = {{0}};
    fathom_options o = {.kv_cache_bytes = 10 * (uint64_t)PILOT_PAGE_BF16};
    assert_int_equal(plan(&p, &o, 64 * GIB, &d), FATHOM_ENOMEM);
    assert_non_null(strstr(d.text, "holds 640 tokens"));
    assert_non_null(strstr(d.text, "--max-model-len 640 at most"));
    assert_int_equal(p.n_page, 10);
    o.max_model_len = 640;
    assert_int_equal(plan(&p, &o, 64 * GIB, NULL), FATHOM_OK); /* the advice is right */

    fathom_options few = {0};
    uint64_t other = p.total_bytes - p.kv_bytes;
    fathom_diag d2 = {{0}};
    uint64_t available = (uint64_t)((double)(other + 20 * (uint64_t)PILOT_PAGE_BF16) / 0.89);
    assert_int_equal(plan(&p, &few, available, &d2), FATHOM_ENOMEM);
    assert_non_null(strstr(d2.text, "give --max-model-len 1"));
    assert_null(strstr(d2.text, "--gpu-memory-utilization")); /* all of it would not be enough */
    few.max_model_len = p.n_page * 64;
    assert_int_equal(plan(&p, &few, available, NULL), FATHOM_OK);

    fathom_diag d3 = {{0}};
    fathom_options none = {0};
    assert_int_equal(plan(&p, &none, 1 << 20, &d3), FATHOM_ENOMEM);
    assert_non_null(strstr(d3.text, "take a machine with more memory"));
    assert_null(strstr(d3.text, "--gpu-memory-utilization"));
    assert_null(strstr(d3.text, "--max-model-len 0"));
    assert_int_equal(p.n_page, 0);

    fathom_diag d4 = {{0}};
    fathom_options half = {.memory_utilization = 0.5, .max_num_seqs = 1};
    assert_int_equal(plan(&p, &half, 64 * GIB, NULL), FATHOM_OK);
    available = p.total_bytes + p.total_bytes / 20;
    assert_int_equal(plan(&p, &half, available, &d4), FATHOM_ENOMEM);
    const char *share = strstr(d4.text, "raise --gpu-memory-utilization to ");
    assert_non_null(share);
    half.memory_utilization = strtod(share + strlen("raise --gpu-memory-utilization to "), NULL);
    assert_int_equal(plan(&p, &half, available, NULL), FATHOM_OK);
    few = (fathom_options){.kv_cache_bytes = 1024};
    d4.text[0] = '\0';
    assert_int_equal(plan(&p, &few, 64 * GIB, &d4), FATHOM_ENOMEM);
    assert_null(strstr(d4.text, "--max-model-len 0"));
}

static void a_gpu_needs_room_for_its_operators(void **state)
{
    (void)state;
    struct memory_plan cpu, gpu;
    fathom_options o = {.backend = FATHOM_BACKEND_CPU, .max_num_batched_tokens = 512};
    assert_int_equal(plan(&cpu, &o, 64 * GIB, NULL), FATHOM_OK);
    o.backend = FATHOM_BACKEND_CUDA;
    assert_int_equal(plan(&gpu, &o, 64 * GIB, NULL), FATHOM_OK);
    const struct memory_part *last = &gpu.buffers[gpu.n_buffer - 1];
    assert_int_equal(gpu.n_buffer, cpu.n_buffer + 1);
    assert_string_equal(last->name, "operators' scratch");
    /* the widest parts alone: outputs of 5 experts a token, twice the logits of a row */
    assert_true(last->bytes > (uint64_t)512 * 5 * 256 * 4 + 2 * 64 * 4096 * 4);
    assert_true(last->bytes < GIB);
    uint64_t few = last->bytes;
    o.max_num_batched_tokens = 1024;
    assert_int_equal(plan(&gpu, &o, 64 * GIB, NULL), FATHOM_OK);
    assert_true(gpu.buffers[gpu.n_buffer - 1].bytes > few);
}

static void a_slice_takes_its_share(void **state)
{
    (void)state;
    struct memory_plan whole, half;
    fathom_options o = {.backend = FATHOM_BACKEND_CPU};
    assert_int_equal(plan(&whole, &o, 64 * GIB, NULL), FATHOM_OK);
    o.world = 2;
    o.rank_slice = true;
    assert_int_equal(plan(&half, &o, 64 * GIB, NULL), FATHOM_OK);
    assert_int_equal(2 * half.weights.kind[WEIGHT_EXPERTS].n_parameter,
                     whole.weights.kind[WEIGHT_EXPERTS].n_parameter);
    assert_int_equal(2 * half.weights.kind[WEIGHT_HEAD].bytes,
                     whole.weights.kind[WEIGHT_HEAD].bytes);
    assert_int_equal(half.kv_bytes, whole.kv_bytes); /* every rank holds the cache */
}

static void stages_hold_the_whole_between_them(void **state)
{
    (void)state;
    struct memory_plan whole, p;
    fathom_diag d = {{0}};
    fathom_options o = {.backend = FATHOM_BACKEND_CPU, .max_num_seqs = 4};
    assert_int_equal(plan(&whole, &o, 64 * GIB, NULL), FATHOM_OK);
    assert_int_equal(whole.n_stage, 1);
    o.pipeline = 3;
    assert_int_equal(plan(&p, &o, 64 * GIB, NULL), FATHOM_OK);
    assert_int_equal(p.n_stage, 3);
    assert_int_equal(p.n_page, whole.n_page);
    assert_int_equal(p.record.page_bytes, PILOT_PAGE_BF16);
    uint64_t weights_bytes = 0, kv_bytes = 0;
    for (uint32_t i = 0; i < p.n_stage; i++) {
        weights_bytes += p.stages[i].weights_bytes;
        kv_bytes += p.stages[i].kv_bytes;
        assert_true(p.stages[i].total_bytes > p.stages[i].weights_bytes + p.stages[i].kv_bytes);
    }
    assert_int_equal(weights_bytes, whole.weights_bytes);
    assert_int_equal(kv_bytes, whole.kv_bytes);
    /* the stage with most decides how many pages all have, and is the one that is named */
    uint32_t most = 0;
    for (uint32_t i = 1; i < p.n_stage; i++) {
        if (p.stages[i].total_bytes > p.stages[most].total_bytes) most = i;
    }
    o.memory_utilization = 1;
    const uint64_t available = p.stages[most].total_bytes - p.stages[most].kv_bytes / 2;
    assert_int_equal(plan(&p, &o, available, &d), FATHOM_OK);
    assert_true(p.n_page < whole.n_page && p.n_page >= whole.n_page / 2 - 1);
    for (uint32_t i = 0; i < p.n_stage; i++) assert_true(p.stages[i].total_bytes <= available);
    assert_int_equal(plan(&p, &o, p.stages[most].weights_bytes, &d), FATHOM_ENOMEM);
    assert_non_null(strstr(d.text, "stage "));
    assert_non_null(strstr(d.text, " of 3: "));
}

/* Of GPUs rows between stages lie in the host's memory, and what keeps them for drafts does not. */
static void rows_between_stages_of_gpus_are_the_hosts(void **state)
{
    (void)state;
    struct memory_plan on[2];
    for (int gpu = 0; gpu < 2; gpu++) {
        fathom_options o = {.backend = gpu ? FATHOM_BACKEND_CUDA : FATHOM_BACKEND_CPU,
                            .max_num_seqs = 4,
                            .n_draft = 1,
                            .pipeline = 2};
        const fathom_hosts second = {.n_node = 2, .node_rank = 1};
        o.hosts = &second; /* the plan is of the last stage */
        assert_int_equal(plan(&on[gpu], &o, 64 * GIB, NULL), FATHOM_OK);
        bool has_rows = false, has_hidden = false;
        for (uint32_t i = 0; i < on[gpu].n_buffer; i++) {
            has_rows |= strcmp(on[gpu].buffers[i].name, "rows between stages") == 0;
            has_hidden |= strcmp(on[gpu].buffers[i].name, "hidden states for drafts") == 0;
        }
        assert_int_equal(has_rows, gpu == 0);
        assert_int_equal(has_hidden, gpu == 1);
    }
}

static void without_a_checkpoint_the_config_says_the_types(void **state)
{
    (void)state;
    struct memory_plan with, without;
    struct engine_settings s;
    fathom_options o = {0};
    assert_int_equal(settings_resolve(&s, &o, &config, NULL), FATHOM_OK);
    assert_int_equal(memory_plan_make(&with, &s, &config, pilot, 64 * GIB, NULL), FATHOM_OK);
    assert_int_equal(memory_plan_make(&without, &s, &config, NULL, 64 * GIB, NULL), FATHOM_OK);
    assert_int_equal(with.kv_bytes, without.kv_bytes);
    assert_true(without.weights_bytes > 0);
}

/* Rows of all ranks in a round of moe_ep lie along a grid's y, and hold a step spread evenly. */
static void rounds_of_experts_by_rank_fit_a_grid(void **state)
{
    (void)state;
    struct backend_config c = {.act = ACT_FP8};
    c.parallel.tp.size = 1;
    for (uint32_t world = 2; world <= PARALLEL_RANKS_MAX; world *= 2) {
        c.parallel.dp.size = world;
        for (c.max_token = 1; c.max_token <= 65535; c.max_token += c.max_token < 65500 ? 97 : 1) {
            const uint32_t n = world * peer_ep_rows(&c);
            if (n > 65535 || world * peer_ep_rows_listed(&c) > 65535)
                fail_msg("%u ranks, steps of %u: %u rows a round", world, c.max_token, n);
            assert_true(n >= c.max_token || n + world > 65535);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(parts_add_up),
        cmocka_unit_test(tiers_take_whole_pages),
        cmocka_unit_test(buffers_of_known_shape),
        cmocka_unit_test(the_cache_type_decides_the_page),
        cmocka_unit_test(drafts_cost_a_layer_of_weights_and_of_cache),
        cmocka_unit_test(memory_bounds_the_pages),
        cmocka_unit_test(a_size_that_is_given_is_taken),
        cmocka_unit_test(a_number_of_tokens_that_is_given_is_taken),
        cmocka_unit_test(a_gpu_is_filled_and_a_cpu_is_not),
        cmocka_unit_test(a_context_is_fitted_to_the_cache_where_that_is_asked_for),
        cmocka_unit_test(more_requests_run_on_a_gpu_where_the_cache_is_hardly_smaller),
        cmocka_unit_test(what_does_not_fit_is_told_with_the_smallest_change),
        cmocka_unit_test(a_gpu_needs_room_for_its_operators),
        cmocka_unit_test(a_slice_takes_its_share),
        cmocka_unit_test(stages_hold_the_whole_between_them),
        cmocka_unit_test(rows_between_stages_of_gpus_are_the_hosts),
        cmocka_unit_test(without_a_checkpoint_the_config_says_the_types),
        cmocka_unit_test(rounds_of_experts_by_rank_fit_a_grid),
    };
    return cmocka_run_group_tests(tests, open_pilot, close_pilot);
}
