/* test_open.c - fathom_open without a checkpoint's weights, and with a rank's part of them */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "base/log.h"
#include "base/mem.h"
#include "base/os.h"
#include "support/answers.h"
#include "support/small_model.h"

#define PILOT FATHOM_SOURCE_DIR "/models/pilot"

enum { N_PROMPT = 40, N_OUTPUT = 12 };

static struct file_map config_map;
static fathom_bundle_file config_file;
static fathom_bundle config_bundle;

static int open_config(void **state)
{
    (void)state;
    if (file_map_open(&config_map, PILOT "/config.json", NULL) != FATHOM_OK) return -1;
    config_file = (fathom_bundle_file){"config.json", (const unsigned char *)config_map.data,
                                       config_map.size};
    config_bundle = (fathom_bundle){"config alone", &config_file, 1};
    return 0;
}

static int close_config(void **state)
{
    (void)state;
    file_map_close(&config_map);
    return 0;
}

static fathom_options small(enum fathom_backend backend)
{
    return (fathom_options){.backend = backend,
                            .n_thread = 2,
                            .max_model_len = 128,
                            .max_num_seqs = 2,
                            .max_num_batched_tokens = 32,
                            .seed = 1};
}

/* Greedy tokens after a prompt that uses the whole vocabulary. */
static void generate(const fathom_options *o, struct answer *a, fathom_info *info)
{
    fathom_engine *e = NULL;
    fathom_diag d = {{0}};
    int32_t prompt[N_PROMPT];
    if (fathom_open(&e, o, &d) != FATHOM_OK) fail_msg("%s", d.text);
    *info = *fathom_get_info(e);
    for (int i = 0; i < N_PROMPT; i++) prompt[i] = (int32_t)info->n_vocab - 1 - 101 * i;
    fathom_request r = {.prompt = prompt, .n_prompt = N_PROMPT};
    fathom_sampling_init(&r.sampling);
    r.sampling.temperature = 0;
    r.sampling.ignore_eos = true;
    r.sampling.max_tokens = N_OUTPUT;
    answer_ask(e, a, &r);
    answers_wait(e, 1);
    assert_int_equal(a->finish.finish, FATHOM_FINISH_LENGTH);
    fathom_close(e);
}

static void a_config_alone_runs_with_made_up_weights(void **state)
{
    (void)state;
    static const enum fathom_backend backends[] = {FATHOM_BACKEND_CPU, FATHOM_BACKEND_REF};
    static struct answer a, again;
    for (int i = 0; i < 2; i++) {
        fathom_info info;
        fathom_options o = small(backends[i]);
        o.bundle = &config_bundle;
        o.dummy = true;
        generate(&o, &a, &info);
        generate(&o, &again, &info);
        assert_true(info.dummy);
        assert_int_equal(info.world, 1);
        assert_int_equal(a.n, N_OUTPUT);
        assert_memory_equal(a.ids, again.ids, N_OUTPUT * sizeof *a.ids);
    }
}

static void made_up_weights_need_no_draft_layer_in_a_file(void **state)
{
    (void)state;
    static struct answer plain, drafted;
    fathom_info info;
    fathom_options o = small(FATHOM_BACKEND_CPU);
    o.bundle = &config_bundle;
    o.dummy = true;
    generate(&o, &plain, &info);
    o.n_draft = 2;
    generate(&o, &drafted, &info);
    assert_int_equal(info.n_draft, 2);
    assert_memory_equal(plain.ids, drafted.ids, N_OUTPUT * sizeof *plain.ids);
}

/* Two heads of four, half of every inner width, half of the head: it loads and steps. Prompts
 * may use all of the vocabulary, answers are of the rank's rows. */
static void a_rank_of_two_runs_by_itself(void **state)
{
    (void)state;
    static const enum fathom_backend backends[] = {FATHOM_BACKEND_CPU, FATHOM_BACKEND_REF};
    static struct answer whole, part[2];
    fathom_info info;
    fathom_options o = small(FATHOM_BACKEND_CPU);
    o.model_dir = PILOT;
    generate(&o, &whole, &info);
    uint64_t whole_bytes = info.weights_bytes;
    for (int i = 0; i < 2; i++) {
        for (uint32_t rank = 0; rank < 2; rank++) {
            o = small(backends[i]);
            o.model_dir = PILOT;
            o.world = 2;
            o.rank = rank;
            o.rank_slice = true;
            o.n_draft = rank;
            generate(&o, &part[rank], &info);
            assert_int_equal(info.rank, rank);
            assert_int_equal(info.world, 2);
            assert_int_equal(info.n_vocab, 4096);
            if (i == 0) assert_true(info.weights_bytes < whole_bytes * 3 / 4);
            for (int k = 0; k < N_OUTPUT; k++) assert_in_range(part[rank].ids[k], 0, 2047);
        }
        assert_memory_not_equal(part[0].ids, part[1].ids, N_OUTPUT * sizeof(int32_t));
    }
}

static void an_fp8_checkpoint_stays_what_it_is(void **state)
{
    (void)state;
    static struct answer plain, quantized;
    fathom_info info;
    fathom_options o = small(FATHOM_BACKEND_CPU);
    o.model_dir = PILOT;
    generate(&o, &plain, &info);
    o.quantize_fp8 = true;
    generate(&o, &quantized, &info);
    assert_memory_equal(plain.ids, quantized.ids, N_OUTPUT * sizeof *plain.ids);
}

static void refusals_name_the_way_out(void **state)
{
    (void)state;
    const struct {
        fathom_options o;
        fathom_err err;
        const char *part;
    } cases[] = {
        {{.bundle = &config_bundle}, FATHOM_ENOTFOUND, "no weights"},
        {{.dummy = true}, FATHOM_EINVAL, "no model"},
        {{.model_dir = PILOT, .world = 3}, FATHOM_EINVAL, "\"num_attention_heads\" is 4, which 3"},
        {{.model_dir = PILOT, .world = 65}, FATHOM_EINVAL, "1 to 64"},
        {{.model_dir = PILOT, .world = 2, .rank = 1}, FATHOM_EINVAL, "all ranks"},
        {{.model_dir = PILOT, .world = 3, .rank_slice = true}, FATHOM_EINVAL, "3 ranks"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        fathom_engine *e = NULL;
        fathom_diag d = {{0}};
        assert_int_equal(fathom_open(&e, &cases[i].o, &d), cases[i].err);
        assert_null(e);
        if (!strstr(d.text, cases[i].part)) fail_msg("no %s in: %s", cases[i].part, d.text);
    }
}

static void each_failing_allocation_while_opening_is_clean(void **state)
{
    (void)state;
    struct small_model model;
    log_set_level(LOG_LEVEL_ERROR);
    small_model_make(&model, 1);
    const fathom_options options[] = {
        {.bundle = &model.bundle,
         .backend = FATHOM_BACKEND_CPU,
         .n_thread = 2,
         .n_draft = 2,
         .max_num_seqs = 2,
         .max_model_len = 128},
        {.bundle = &model.bundle,
         .backend = FATHOM_BACKEND_REF,
         .max_num_seqs = 2,
         .max_model_len = 128,
         .no_prefix_cache = true,
         .kv = FATHOM_KV_FP8},
    };
    for (size_t i = 0; i < 2; i++) {
        bool hit = true;
        long n = 0;
        for (; hit; n++) {
            fathom_engine *e = NULL;
            mem_fail_after(n);
            fathom_err err = fathom_open(&e, &options[i], NULL);
            hit = mem_fail_hit();
            mem_fail_after(-1);
            assert_int_equal(err, hit ? FATHOM_ENOMEM : FATHOM_OK);
            if (hit) assert_null(e);
            fathom_close(e);
        }
        assert_true(n > 50);
    }
    small_model_free(&model);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_config_alone_runs_with_made_up_weights),
        cmocka_unit_test(made_up_weights_need_no_draft_layer_in_a_file),
        cmocka_unit_test(a_rank_of_two_runs_by_itself),
        cmocka_unit_test(an_fp8_checkpoint_stays_what_it_is),
        cmocka_unit_test(refusals_name_the_way_out),
        cmocka_unit_test(each_failing_allocation_while_opening_is_clean),
    };
    return cmocka_run_group_tests(tests, open_config, close_config);
}
