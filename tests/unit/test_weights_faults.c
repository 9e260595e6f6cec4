/* test_weights_faults.c - what a checkpoint lacks, has otherwise, or is refused for */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "base/log.h"
#include "base/mem.h"
#include "checkpoint/checkpoint.h"
#include "model/config.h"
#include "model/weights_int.h"
#include "support/small_checkpoint.h"

static const struct parallel one_rank = {.tp = {.rank = 0, .size = 1}};

static void every_mismatch_names_tensor_value_and_need(void **state)
{
    (void)state;
    static const struct {
        struct change change;
        const char *message;
    } cases[] = {
        {{.name = "model.norm.weight", .drop = true},
         "small: model.norm.weight: missing; needed is BF16 [200]"},
        {{.name = "model.layers.1.self_attn.q_a_proj.weight", .drop = true},
         "model.layers.1.self_attn.q_a_proj.weight: missing; needed is F8_E4M3 [72, 200]"},
        {{.name = "model.layers.1.mlp.gate.e_score_correction_bias", .drop = true},
         "model.layers.1.mlp.gate.e_score_correction_bias: missing; needed is F32 [2]"},
        {{.name = "model.layers.0.self_attn.indexer.k_norm.bias", .drop = true},
         "model.layers.0.self_attn.indexer.k_norm.bias: missing; needed is BF16 [128]"},
        {{.name = "model.layers.1.mlp.experts.1.up_proj.weight", .drop = true},
         "model.layers.1.mlp.experts.1.up_proj.weight: missing"},
        {{.name = "model.layers.2.hnorm.weight", .drop = true},
         "model.layers.2.hnorm.weight: missing"},
        {{.name = "model.layers.1.self_attn.kv_b_proj.weight", .n_dim = 2, .dim = {512, 256}},
         "model.layers.1.self_attn.kv_b_proj.weight: dim[1] is 256, needed is 512"},
        {{.name = "model.layers.1.self_attn.kv_b_proj.weight", .n_dim = 2, .dim = {511, 512}},
         "model.layers.1.self_attn.kv_b_proj.weight: dim[0] is 511, needed is 512"},
        {{.name = "lm_head.weight", .n_dim = 1, .dim = {8000}},
         "lm_head.weight: it has 1 dimensions, needed is [40, 200]"},
        {{.name = "model.norm.weight", .n_dim = 1, .dim = {201}},
         "model.norm.weight: dim[0] is 201, needed is 200"},
        {{.name = "model.norm.weight", .dtype = "F8_E4M3"},
         "model.norm.weight: dtype is F8_E4M3, needed is BF16, F16 or F32"},
        {{.name = "model.layers.0.mlp.up_proj.weight", .dtype = "I32"},
         "model.layers.0.mlp.up_proj.weight: dtype is I32, needed is F8_E4M3, BF16, F16 or F32"},
        {{.name = "model.layers.0.mlp.up_proj.weight", .dtype = "F8_E5M2"},
         "model.layers.0.mlp.up_proj.weight: dtype is F8_E5M2, needed is"},
        {{.name = "model.layers.0.mlp.up_proj.weight_scale_inv", .drop = true},
         "model.layers.0.mlp.up_proj.weight_scale_inv: missing; needed is F32 [3, 2], because the "
         "weight is F8_E4M3"},
        {{.name = "model.layers.0.self_attn.kv_a_proj_with_mqa.weight_scale_inv",
          .n_dim = 2,
          .dim = {4, 2}},
         "model.layers.0.self_attn.kv_a_proj_with_mqa.weight_scale_inv: dim[0] is 4, needed is 5"},
        {{.name = "model.layers.0.mlp.up_proj.weight_scale_inv", .dtype = "BF16"},
         "model.layers.0.mlp.up_proj.weight_scale_inv: dtype is BF16, needed is F32"},
    };
    struct model_config config;
    small_config(&config);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct model_weights w;
        struct small s;
        fathom_diag d = {0};
        struct maker m = fp8_maker(&config);
        m.change = &cases[i].change;
        small_open(&s, &m);
        fathom_err err = weights_bind(&w, s.c, &config, &one_rank, &d);
        if (!strstr(d.text, cases[i].message)) {
            print_error("gives \"%s\"\n  needed is \"%s\"\n", d.text, cases[i].message);
        }
        assert_int_equal(err, FATHOM_EMISMATCH);
        assert_non_null(strstr(d.text, cases[i].message));
        assert_null(w.layers);
        weights_release(&w);
        small_close(&s);
    }
}

static void count_missing(void *arg, const char *message)
{
    size_t *n_missing = arg;
    *n_missing += strstr(message, ": missing; needed is ") != NULL;
}

static void all_faults_are_reported(void **state)
{
    (void)state;
    struct model_config config, larger;
    struct small s;
    size_t n_missing = 0;
    small_config(&config);
    larger = config;
    larger.n_expert = 4;
    larger.n_mtp = 0;
    config.n_mtp = 0;
    struct maker m = fp8_maker(&config);
    small_open(&s, &m);
    larger.n_layer = 3; /* a whole layer, and the experts 2 and 3 of layer 1, are not there */
    size_t n_fault = weights_check(s.c, &larger, count_missing, &n_missing);
    assert_true(n_fault > 20 &&
                n_fault == n_missing + 2); /* the router's two tensors have another shape */
    small_close(&s);
}

static void other_quantizations_are_refused_in_one_line(void **state)
{
    (void)state;
    struct model_config config;
    struct model_weights w;
    struct small s;
    fathom_diag d = {0};
    small_config(&config);
    struct maker m = fp8_maker(&config);
    small_open(&s, &m);
    config.quant = QUANT_OTHER;
    (void)snprintf(config.quant_name, sizeof config.quant_name, "hqq");
    assert_int_equal(weights_bind(&w, s.c, &config, &one_rank, &d), FATHOM_EUNSUPPORTED);
    assert_non_null(strstr(d.text, "the quantization method \"hqq\" is not read"));
    small_close(&s);
}

static void every_failing_allocation_is_clean(void **state)
{
    (void)state;
    struct model_config config;
    struct small s;
    small_config(&config);
    struct maker m = fp8_maker(&config);
    m.residue = 1;
    small_open(&s, &m);
    for (long n = 0;; n++) {
        struct model_weights w;
        fathom_diag d = {0};
        mem_fail_after(n);
        fathom_err err = weights_bind(&w, s.c, &config, &one_rank, &d);
        bool hit = mem_fail_hit();
        mem_fail_after(-1);
        if (!hit) {
            assert_int_equal(err, FATHOM_OK);
            assert_true(n > 10);
            weights_release(&w);
            break;
        }
        assert_int_equal(err, FATHOM_ENOMEM);
        assert_true(d.text[0] != '\0');
    }
    struct unused u = {0};
    mem_fail_after(0);
    assert_int_equal(weights_each_unused(s.c, &config, count_unused, &u), FATHOM_ENOMEM);
    mem_fail_after(-1);
    small_close(&s);
}

static void ranks_that_cut_a_group_are_refused(void **state)
{
    (void)state;
    struct model_config config;
    struct model_weights w;
    fathom_diag d = {0};
    small_config(&config);
    config.hidden = 256;
    config.moe_inner = 320; /* 160 a rank: two and a half groups */
    config.quant_group = 64;
    model_config_set_quant(&config, "awq");
    assert_int_equal(weights_generate(&w, &config, 7, &(struct parallel){.tp = {1, 2}}, &d),
                     FATHOM_EINVAL);
    assert_string_equal(d.text,
                        "model.layers.1.mlp.shared_experts.down_proj.weight: a rank has 160 of its "
                        "320 inputs, which cuts a group of 64: choose fewer ranks");
    const struct weight_use use = {.backend_name = "cpu", .parallel = {.tp = {0, 2}}};
    fathom_diag plan = {0};
    assert_int_equal(weights_check_served(NULL, &config, &use, &plan), FATHOM_EINVAL);
    assert_string_equal(plan.text, d.text);
    weights_release(&w);
}

/* Where experts are stacked; a processor multiplies each by itself. */
static void two_forms_in_experts_are_named(void **state)
{
    (void)state;
    static const struct {
        struct change change;
        const char *message;
    } cases[] = {
        {{.name = "model.layers.1.mlp.experts.1.up_proj.weight", .dtype = "F16"},
         "model.layers.1.mlp.experts.1.up_proj.weight is F16, "
         "model.layers.1.mlp.experts.0.gate_proj.weight is BF16: the cuda backend needs gate and "
         "up of a layer's experts in one form: use --backend cpu, or a release that codes them "
         "alike"},
        {{.name = "model.layers.1.mlp.experts.1.down_proj.weight", .dtype = "F32"},
         "model.layers.1.mlp.experts.1.down_proj.weight is F32, "
         "model.layers.1.mlp.experts.0.down_proj.weight is BF16: the cuda backend needs down of a "
         "layer's experts in one form: use --backend cpu, or a release that codes them alike"},
        {{.name = "model.layers.1.mlp.shared_experts.down_proj.weight", .dtype = "F32"}, NULL},
        {{.name = "model.layers.0.mlp.up_proj.weight", .dtype = "F16"}, NULL},
    };
    struct model_config config;
    small_config(&config);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct small s;
        fathom_diag d = {{0}};
        struct maker m = {.config = &config,
                          .change = &cases[i].change,
                          .linear = DTYPE_BF16,
                          .other = DTYPE_BF16};
        struct weight_use use = {
            .backend_name = "cuda", .stacks_experts = true, .parallel = one_rank};
        small_open(&s, &m);
        const fathom_err err = weights_check_served(s.c, &config, &use, &d);
        assert_int_equal(err, cases[i].message ? FATHOM_EUNSUPPORTED : FATHOM_OK);
        if (cases[i].message) assert_string_equal(d.text, cases[i].message);
        use.stacks_experts = false;
        assert_int_equal(weights_check_served(s.c, &config, &use, &d), FATHOM_OK);
        small_close(&s);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_mismatch_names_tensor_value_and_need),
        cmocka_unit_test(all_faults_are_reported),
        cmocka_unit_test(other_quantizations_are_refused_in_one_line),
        cmocka_unit_test(every_failing_allocation_is_clean),
        cmocka_unit_test(ranks_that_cut_a_group_are_refused),
        cmocka_unit_test(two_forms_in_experts_are_named),
    };
    log_set_level(LOG_LEVEL_ERROR);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
