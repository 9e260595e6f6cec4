/* test_config.c - config.json of every release, of variants, and with faults */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>
#include <jansson.h>
#include <math.h>

#include "base/json.h"
#include "base/mem.h"
#include "checkpoint/checkpoint.h"
#include "model/config.h"
#include "model/config_override.h"
#include "support/json_tree.h"

#define DATA FATHOM_SOURCE_DIR "/tests/data/checkpoint/"

/* Takes over o. */
static fathom_err parse(struct model_config *c, json_t *o, fathom_diag *d)
{
    struct buf text = {0};
    assert_int_equal(json_write(&text, o), FATHOM_OK);
    fathom_err err = model_config_parse(c, text.data, text.len, d);
    buf_free(&text);
    json_decref(o);
    return err;
}

/* The V3.2 config with the member at `path` ("a" or "a.b") set to the JSON text `value`, or removed
 * when it is NULL. */
static json_t *with(const char *path, const char *value)
{
    json_t *o = json_tree_of_file(DATA "config_v32.json");
    json_t *at = o;
    const char *dot = strchr(path, '.');
    if (dot) {
        char outer[64];
        (void)snprintf(outer, sizeof outer, "%.*s", (int)(dot - path), path);
        at = json_object_get(o, outer);
        assert_non_null(at);
        path = dot + 1;
    }
    if (value) {
        json_t *v = json_loads(value, JSON_DECODE_ANY, NULL);
        assert_non_null(v);
        assert_int_equal(json_object_set_new(at, path, v), 0);
    } else {
        assert_int_equal(json_object_del(at, path), 0);
    }
    return o;
}

static void expect_fault(const char *path, const char *value, fathom_err want, const char *message)
{
    struct model_config c;
    fathom_diag d = {0};
    fathom_err err = parse(&c, with(path, value), &d);
    if (err != want || !strstr(d.text, message)) {
        print_error("%s = %s gives %s \"%s\"\n  needed is \"%s\"\n", path, value ? value : "(none)",
                    fathom_err_name(err), d.text, message);
    }
    assert_int_equal(err, want);
    assert_non_null(strstr(d.text, message));
    assert_non_null(strstr(d.text, "config.json: "));
}

static void assert_is_v3(const struct model_config *c)
{
    assert_int_equal(c->n_vocab, 129280);
    assert_int_equal(c->hidden, 7168);
    assert_int_equal(c->n_layer, 61);
    assert_int_equal(c->n_mtp, 1);
    assert_int_equal(c->max_position, 163840);
    assert_true(c->norm_eps == 1e-6f);
    assert_int_equal(c->dtype, DTYPE_BF16);
    assert_int_equal(c->n_head, 128);
    assert_int_equal(c->q_lora_rank, 1536);
    assert_true(c->rope_theta == 10000.0);
    assert_true(c->yarn.on);
    assert_true(c->yarn.factor == 40.0 && c->yarn.original_max_position == 4096.0);
    assert_true(c->rope_interleaved);
    assert_false(c->index_rope_interleaved);
    assert_true(fabsf(c->softmax_scale - 0.13523378f) < 1e-7f);
    assert_int_equal(c->dense_inner, 18432);
    assert_int_equal(c->n_dense_layer, 3);
    assert_int_equal(c->moe_inner, 2048);
    assert_int_equal(c->n_expert, 256);
    assert_int_equal(c->n_shared_expert, 1);
    assert_int_equal(c->n_expert_used, 8);
    assert_int_equal(c->n_group, 8);
    assert_int_equal(c->topk_group, 4);
    assert_true(c->routed_scale == 2.5f);
    assert_true(c->norm_topk);
    assert_int_equal(c->bos_id, 0);
    assert_int_equal(c->n_eos, 1);
    assert_int_equal(c->eos_ids[0], 1);
    assert_int_equal(c->quant, QUANT_FP8);
    assert_false(model_config_layer_is_moe(c, 2));
    assert_true(model_config_layer_is_moe(c, 3));
    assert_true(model_config_layer_is_moe(c, 61));
}

static void every_release_is_read(void **state)
{
    (void)state;
    static const struct {
        const char *file, *type;
        bool indexer, pow2;
    } releases[] = {
        {DATA "config_v3.json", "deepseek_v3", false, false},
        {DATA "config_v31.json", "deepseek_v3", false, true},
        {DATA "config_v32.json", "deepseek_v32", true, true},
        {DATA "config_v32_new.json", "deepseek_v32", true, true},
    };
    for (size_t i = 0; i < sizeof releases / sizeof *releases; i++) {
        struct model_config c;
        fathom_diag d = {0};
        assert_int_equal(parse(&c, json_tree_of_file(releases[i].file), &d), FATHOM_OK);
        assert_is_v3(&c);
        assert_string_equal(c.model_type, releases[i].type);
        assert_int_equal(c.has_indexer, releases[i].indexer);
        assert_int_equal(c.index_n_head, releases[i].indexer ? 64 : 0);
        assert_int_equal(c.index_topk, releases[i].indexer ? 2048 : 0);
        assert_int_equal(c.scales_are_pow2, releases[i].pow2);
        assert_int_equal(model_config_check_quant(&c, &d), FATHOM_OK);
    }
}

/* V3's architecture in other sizes: one group of 384 experts, a YaRN without a slope. */
static void kimi_k2_is_read(void **state)
{
    (void)state;
    static const struct {
        const char *file;
        double factor;
        float eps;
        int32_t eos;
        enum quant_method quant;
        uint32_t group, context;
    } releases[] = {
        {DATA "config_kimi_k2.json", 32, 1e-6f, 163585, QUANT_FP8, 0, 131072},
        {DATA "config_kimi_k2_thinking.json", 64, 1e-5f, 163586, QUANT_COMPRESSED_TENSORS, 32,
         262144},
    };
    for (size_t i = 0; i < sizeof releases / sizeof *releases; i++) {
        struct model_config c;
        fathom_diag d = {0};
        if (parse(&c, json_tree_of_file(releases[i].file), &d)) fail_msg("%s", d.text);
        assert_string_equal(c.architecture, "DeepseekV3ForCausalLM");
        assert_string_equal(c.model_type, "kimi_k2");
        assert_false(c.has_indexer);
        assert_int_equal(c.n_vocab, 163840);
        assert_int_equal(c.n_head, 64);
        assert_int_equal(c.n_dense_layer, 1);
        assert_int_equal(c.n_expert, 384);
        assert_int_equal(c.n_group, 1);
        assert_int_equal(c.topk_group, 1);
        assert_int_equal(c.n_expert_used, 8);
        assert_int_equal(c.n_mtp, 0);
        assert_true(c.routed_scale == 2.827f);
        assert_true(c.rope_theta == 50000.0);
        assert_true(c.yarn.on && c.yarn.beta_fast == 1.0 && c.yarn.beta_slow == 1.0);
        assert_true(c.yarn.factor == releases[i].factor);
        assert_true(c.norm_eps == releases[i].eps);
        assert_int_equal(c.max_position, releases[i].context);
        assert_int_equal(c.bos_id, 163584);
        assert_int_equal(c.eos_ids[0], releases[i].eos);
        assert_int_equal(c.quant, releases[i].quant);
        assert_int_equal(c.quant_group, releases[i].group);
        assert_int_equal(model_config_check_quant(&c, &d), FATHOM_OK);
    }
    struct model_config c;
    fathom_diag d = {0};
    json_t *o = json_tree_of_file(releases[0].file);
    assert_int_equal(json_object_del(o, "architectures"), 0);
    assert_int_equal(parse(&c, o, &d), FATHOM_OK);
    assert_string_equal(c.architecture, "DeepseekV3ForCausalLM");
}

static void variants_are_read(void **state)
{
    (void)state;
    struct model_config c;
    fathom_diag d = {0};
    assert_int_equal(parse(&c, with("rope_scaling", "null"), &d), FATHOM_OK);
    assert_false(c.yarn.on);
    assert_true(fabsf(c.softmax_scale - 0.07216878f) < 1e-8f);

    assert_int_equal(parse(&c, with("rope_scaling", NULL), &d), FATHOM_OK);
    assert_false(c.yarn.on);

    assert_int_equal(
        parse(&c, with("rope_parameters", "{\"rope_theta\":5e4,\"rope_type\":\"default\"}"), &d),
        FATHOM_OK);
    assert_false(c.yarn.on); /* the new form wins over the old one */
    assert_true(c.rope_theta == 50000.0);

    assert_int_equal(parse(&c, with("indexer_rope_interleave", "true"), &d), FATHOM_OK);
    assert_true(c.index_rope_interleaved);
    assert_int_equal(parse(&c, with("rope_interleave", "false"), &d), FATHOM_OK);
    assert_false(c.rope_interleaved);

    assert_int_equal(parse(&c, with("eos_token_id", "[1, 128799]"), &d), FATHOM_OK);
    assert_int_equal(c.n_eos, 2);
    assert_int_equal(c.eos_ids[1], 128799);
    assert_int_equal(parse(&c, with("eos_token_id", NULL), &d), FATHOM_OK);
    assert_int_equal(c.n_eos, 0);
    assert_int_equal(parse(&c, with("bos_token_id", "null"), &d), FATHOM_OK);
    assert_int_equal(c.bos_id, -1);

    assert_int_equal(parse(&c, with("architectures", NULL), &d), FATHOM_OK);
    assert_string_equal(c.architecture, "DeepseekV32ForCausalLM");
    assert_int_equal(parse(&c, with("num_nextn_predict_layers", NULL), &d), FATHOM_OK);
    assert_int_equal(c.n_mtp, 0);
    assert_int_equal(parse(&c, with("moe_layer_freq", "2"), &d), FATHOM_OK);
    assert_false(model_config_layer_is_moe(&c, 3));
    assert_true(model_config_layer_is_moe(&c, 4));
    assert_int_equal(parse(&c, with("torch_dtype", "\"float16\""), &d), FATHOM_OK);
    assert_int_equal(c.dtype, DTYPE_F16);
    assert_int_equal(parse(&c, with("quantization_config", "null"), &d), FATHOM_OK);
    assert_int_equal(c.quant, QUANT_NONE);
    assert_int_equal(model_config_check_quant(&c, &d), FATHOM_OK);
    assert_string_equal(d.text, "");
}

enum { FORMAT = FATHOM_EFORMAT, UNSUPPORTED = FATHOM_EUNSUPPORTED };

/* What a key's value, or its absence (NULL), is told to be. */
static const struct {
    const char *path, *value;
    int err;
    const char *message;
} faults[] = {
    {"architectures", "[\"LlamaForCausalLM\"]", UNSUPPORTED,
     "the architecture is \"LlamaForCausalLM\" (model_type \"deepseek_v32\"); served are "
     "DeepseekV3ForCausalLM (V3, R1, V3.1, Kimi K2) and DeepseekV32ForCausalLM (V3.2)"},
    {"kv_lora_rank", "256", UNSUPPORTED, "\"kv_lora_rank\" is 256, needed is 512"},
    {"qk_nope_head_dim", "192", UNSUPPORTED, "\"qk_nope_head_dim\" is 192, needed is 128"},
    {"qk_rope_head_dim", "32", UNSUPPORTED, "\"qk_rope_head_dim\" is 32, needed is 64"},
    {"v_head_dim", "256", UNSUPPORTED, "\"v_head_dim\" is 256, needed is 128"},
    {"index_head_dim", "64", UNSUPPORTED, "\"index_head_dim\" is 64, needed is 128"},
    {"index_topk", NULL, FORMAT, "\"index_topk\" is missing"},
    {"index_n_heads", "0", FORMAT, "\"index_n_heads\" is 0, needed is 1 to"},
    {"hidden_size", NULL, FORMAT, "\"hidden_size\" is missing"},
    {"hidden_size", "\"7168\"", FORMAT, "\"hidden_size\" is a string, an integer is needed"},
    {"hidden_size", "-1", FORMAT, "\"hidden_size\" is -1, needed is 1 to"},
    {"hidden_size", "99999999999", FORMAT, "\"hidden_size\" is 99999999999, needed is 1 to"},
    {"q_lora_rank", "null", UNSUPPORTED, "\"q_lora_rank\" is null"},
    {"rms_norm_eps", "0", FORMAT, "\"rms_norm_eps\" is 0, needed is 1e-30 to 1"},
    {"hidden_act", "\"gelu\"", UNSUPPORTED, "\"hidden_act\" is \"gelu\", needed is \"silu\""},
    {"attention_bias", "true", UNSUPPORTED, "\"attention_bias\" is true, needed is false"},
    {"tie_word_embeddings", "true", UNSUPPORTED, "\"tie_word_embeddings\" is true"},
    {"torch_dtype", "\"float64\"", UNSUPPORTED, "\"torch_dtype\" is \"float64\", needed is"},
    {"scoring_func", "\"softmax\"", UNSUPPORTED,
     "\"scoring_func\" is \"softmax\", needed is \"sigmoid\""},
    {"topk_method", "\"greedy\"", UNSUPPORTED,
     "\"topk_method\" is \"greedy\", needed is \"noaux_tc\""},
    {"n_group", "7", FORMAT, "\"n_routed_experts\" is 256, needed is a multiple of n_group = 7"},
    {"topk_group", "9", FORMAT, "\"topk_group\" is 9, needed is 1 to 8"},
    {"num_experts_per_tok", "129", FORMAT, "\"num_experts_per_tok\" is 129, needed is at most 128"},
    {"num_experts_per_tok", "257", FORMAT, "\"num_experts_per_tok\" is 257, needed is 1 to 256"},
    {"first_k_dense_replace", "62", FORMAT, "\"first_k_dense_replace\" is 62, needed is 0 to 61"},
    {"moe_layer_freq", "0", FORMAT, "\"moe_layer_freq\" is 0, needed is 1 to"},
    {"rope_theta", NULL, FORMAT, "\"rope_theta\" is missing"},
    {"rope_theta", "1", FORMAT, "\"rope_theta\" is 1, needed is 2 to 1e+12"},
    {"rope_scaling", "\"yarn\"", FORMAT, "\"rope_scaling\" is a string, an object is needed"},
    {"rope_scaling", "{}", FORMAT, "\"type\" of \"rope_scaling\" is missing"},
    {"rope_scaling.type", "\"linear\"", UNSUPPORTED,
     "the type of \"rope_scaling\" is \"linear\", needed is \"yarn\" or \"default\""},
    {"rope_scaling.factor", NULL, FORMAT, "\"factor\" is missing"},
    {"rope_scaling.factor", "0.5", FORMAT, "\"factor\" is 0.5, needed is 1 to"},
    {"rope_scaling.original_max_position_embeddings", NULL, FORMAT,
     "\"original_max_position_embeddings\" is missing"},
    {"rope_scaling.beta_slow", "33", FORMAT, "\"beta_slow\" is 33, needed is 0.001 to 32"},
    {"rope_scaling.mscale_all_dim", "0.5", UNSUPPORTED,
     "\"mscale\" 1 and \"mscale_all_dim\" 0.5 scale the rotary embedding by"},
    {"rope_scaling.truncate", "false", UNSUPPORTED, "\"truncate\" is false, needed is true"},
    {"eos_token_id", "129280", FORMAT, "\"eos_token_id\" is 129280, needed is 0 to 129279"},
    {"eos_token_id", "[1, \"x\"]", FORMAT, "\"eos_token_id\" holds a string, a token id"},
    {"eos_token_id", "[1,2,3,4,5,6,7,8,9]", FATHOM_ELIMIT, "\"eos_token_id\" has 9 ids, at most 8"},
    {"bos_token_id", "-2", FORMAT, "\"bos_token_id\" is -2, needed is 0 to 129279"},
    {"quantization_config", "7", FORMAT, "\"quantization_config\" is an integer"},
    {"quantization_config.quant_method", NULL, FORMAT, "\"quant_method\" is missing"},
    {"quantization_config.fmt", "\"e5m2\"", UNSUPPORTED, "\"fmt\" is \"e5m2\", needed is \"e4m3\""},
    {"quantization_config.activation_scheme", "\"static\"", UNSUPPORTED,
     "\"activation_scheme\" is \"static\", needed is \"dynamic\""},
    {"quantization_config.weight_block_size", "[64, 128]", UNSUPPORTED,
     "\"weight_block_size\" of \"quantization_config\" is [64, 128], needed is [128, 128]"},
    {"quantization_config.weight_block_size", NULL, UNSUPPORTED, "needed is [128, 128]"},
};

static void faults_name_key_value_and_need(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof faults / sizeof *faults; i++) {
        expect_fault(faults[i].path, faults[i].value, (fathom_err)faults[i].err, faults[i].message);
    }
}

static void text_that_is_no_object_is_refused(void **state)
{
    (void)state;
    static const char *const texts[] = {"", "{", "[]", "null", "{\"a\":1} x"};
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        struct model_config c;
        fathom_diag d = {0};
        fathom_err err = model_config_parse(&c, texts[i], strlen(texts[i]), &d);
        assert_int_equal(err, FATHOM_EFORMAT);
        assert_non_null(strstr(d.text, "config.json: "));
    }
}

static void other_quantizations_are_recognised(void **state)
{
    (void)state;
    static const struct {
        const char *text, *name;
        enum quant_method method;
    } cases[] = {
        {"{\"quant_method\":\"awq\",\"bits\":4,\"group_size\":64}", "awq", QUANT_AWQ},
        {"{\"quant_method\":\"compressed-tensors\",\"format\":\"int-quantized\"}",
         "compressed-tensors", QUANT_COMPRESSED_TENSORS},
        {"{\"quant_method\":\"w8a8_int8\"}", "w8a8_int8", QUANT_INT8},
        {"{\"quant_method\":\"blockwise_int8\"}", "blockwise_int8", QUANT_INT8},
        {"{\"quant_method\":\"gptq\"}", "gptq", QUANT_GPTQ},
        {"{\"quant_method\":\"quark\"}", "quark", QUANT_OTHER},
        {"{\"quant_method\":\"w4afp8\"}", "w4afp8", QUANT_W4AFP8},
        {"{\"quant_method\":\"modelopt_fp4\"}", "modelopt_fp4", QUANT_MODELOPT},
        {"{\"quant_method\":\"hqq\"}", "hqq", QUANT_OTHER},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct model_config c;
        fathom_diag d = {0};
        assert_int_equal(parse(&c, with("quantization_config", cases[i].text), &d), FATHOM_OK);
        assert_int_equal(c.quant, cases[i].method);
        assert_string_equal(c.quant_name, cases[i].name);
        bool is_read = cases[i].method != QUANT_OTHER;
        assert_int_equal(model_config_check_quant(&c, &d),
                         is_read ? FATHOM_OK : FATHOM_EUNSUPPORTED);
        if (!is_read) assert_non_null(strstr(d.text, cases[i].name));
    }
    struct model_config older;
    fathom_diag d = {0};
    json_t *o = with("compression_config", "{\"quant_method\":\"compressed-tensors\"}");
    assert_int_equal(json_object_del(o, "quantization_config"), 0);
    assert_int_equal(parse(&older, o, &d), FATHOM_OK);
    assert_int_equal(older.quant, QUANT_COMPRESSED_TENSORS);
}

#define GROUP_OF(inputs)                                                                           \
    "{\"quant_method\":\"compressed-tensors\",\"format\":\"int-quantized\",\"config_groups\":{"    \
    "\"g\":{\"weights\":{\"num_bits\":8},\"input_activations\":" inputs "}}}"

static void int8_inputs_are_those_of_w8a8(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        bool is_int8;
    } cases[] = {
        {"{\"quant_method\":\"w8a8_int8\"}", true}, {"{\"quant_method\":\"ascend\"}", true},
        {"{\"quant_method\":\"gptq\"}", false},     {"{\"quant_method\":\"w4afp8\"}", false},
        {GROUP_OF("{\"num_bits\":8}"), true},       {GROUP_OF("null"), false},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct model_config c;
        fathom_diag d = {0};
        if (parse(&c, with("quantization_config", cases[i].text), &d)) fail_msg("%s", d.text);
        assert_int_equal(c.quant_int8, cases[i].is_int8);
        model_config_set_quant(&c, "w8a8_int8");
        assert_true(c.quant_int8);
        model_config_set_quant(&c, "awq");
        assert_false(c.quant_int8);
    }
}

static fathom_err parse_generation(struct generation_config *g, const char *text, fathom_diag *d)
{
    return generation_config_parse(g, text, strlen(text), 1000, d);
}

static void generation_defaults(void **state)
{
    (void)state;
    struct generation_config g;
    fathom_diag d = {0};
    assert_int_equal(parse_generation(&g,
                                      "{\"bos_token_id\":0,\"eos_token_id\":[1,7],\"do_sample\":"
                                      "false,\"temperature\":0,\"top_p\":0.95,\"top_k\":50}",
                                      &d),
                     FATHOM_OK);
    assert_true(g.temperature == 0.0f && g.top_p == 0.95f && g.top_k == 50);
    assert_false(g.do_sample);
    assert_int_equal(g.bos_id, 0);
    assert_int_equal(g.n_eos, 2);
    assert_int_equal(g.eos_ids[1], 7);

    assert_int_equal(parse_generation(&g, "{}", &d), FATHOM_OK);
    assert_true(g.temperature < 0.0f && g.top_p < 0.0f && g.top_k < 0 && g.do_sample);
    assert_int_equal(g.n_eos, 0);
    assert_int_equal(g.bos_id, -1);

    static const struct {
        const char *text, *message;
    } bad[] = {
        {"[]", "generation_config.json: the text is an array"},
        {"{\"top_p\":1.5}", "generation_config.json: \"top_p\" is 1.5, needed is 1e-06 to 1"},
        {"{\"temperature\":-1}", "\"temperature\" is -1, needed is 0 to 1000"},
        {"{\"temperature\":\"hot\"}", "\"temperature\" is a string, a number is needed"},
        {"{\"top_k\":-2}", "\"top_k\" is -2, needed is -1 to"},
        {"{\"eos_token_id\":1000}", "\"eos_token_id\" is 1000, needed is 0 to 999"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        d.text[0] = '\0';
        assert_int_equal(parse_generation(&g, bad[i].text, &d), FATHOM_EFORMAT);
        assert_non_null(strstr(d.text, bad[i].message));
        assert_true(g.temperature < 0.0f && g.n_eos == 0);
    }
}

static void every_failing_allocation_is_clean(void **state)
{
    (void)state;
    struct buf text = {0};
    json_t *o = json_tree_of_file(DATA "config_v32.json");
    assert_int_equal(json_write(&text, o), FATHOM_OK);
    json_decref(o);
    for (long n = 0;; n++) {
        struct model_config c;
        fathom_diag d = {0};
        mem_fail_after(n);
        fathom_err err = model_config_parse(&c, text.data, text.len, &d);
        bool hit = mem_fail_hit();
        mem_fail_after(-1);
        if (!hit) {
            assert_int_equal(err, FATHOM_OK);
            break;
        }
        /* a parser that runs out of memory may also have misread the text */
        if (err) assert_int_equal(c.n_layer, 0);
        assert_true(err == FATHOM_OK || d.text[0] != '\0');
    }
    buf_free(&text);
}

static void a_file_beside_the_config_tells_of_quantization(void **state)
{
    (void)state;
    struct buf text = {0};
    json_t *o = json_tree_of_file(DATA "config_v32.json");
    assert_int_equal(json_object_del(o, "quantization_config"), 0);
    assert_int_equal(json_write(&text, o), FATHOM_OK);
    json_decref(o);
    static const char *const files[][2] = {{"hf_quant_config.json", "modelopt"},
                                           {"quant_model_description.json", "ascend"},
                                           {"quantize_config.json", "gptq"},
                                           {"quant_config.json", "awq"},
                                           {"other.json", ""}};
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        const fathom_bundle_file held[] = {
            {.name = "config.json", .data = (const unsigned char *)text.data, .size = text.len},
            {.name = files[i][0], .data = (const unsigned char *)"{}", .size = 2}};
        const fathom_bundle bundle = {.name = "b", .files = held, .n_file = 2};
        struct checkpoint *c;
        struct model_config config;
        assert_int_equal(checkpoint_open_files(&c, NULL, &bundle, NULL), FATHOM_OK);
        assert_int_equal(model_config_load(&config, c, NULL), FATHOM_OK);
        assert_string_equal(config.quant_name, files[i][1]);
        enum quant_method method = files[i][1][0] ? quant_method_of(files[i][1]) : QUANT_NONE;
        assert_int_equal(config.quant, method);
        checkpoint_close(c);
    }
    buf_free(&text);
}

static void what_is_wrong_is_told_with_its_place(void **state)
{
    (void)state;
    static const unsigned char list[] = "[]";
    static const char *const wheres[] = {"b", "b/"};
    const fathom_bundle_file files[] = {
        {.name = "config.json", .data = list, .size = 2},
        {.name = "generation_config.json", .data = list, .size = 2}};
    for (size_t i = 0; i < sizeof wheres / sizeof *wheres; i++) {
        const fathom_bundle bundle = {.name = wheres[i], .files = files, .n_file = 2};
        struct checkpoint *c;
        struct model_config config;
        struct generation_config g;
        fathom_diag d = {0};
        assert_int_equal(checkpoint_open_files(&c, NULL, &bundle, NULL), FATHOM_OK);
        assert_int_equal(model_config_load(&config, c, &d), FATHOM_EFORMAT);
        assert_string_equal(d.text, "b/config.json: the text is an array, an object is needed");
        d.text[0] = '\0';
        assert_int_equal(generation_config_load(&g, c, 1, &d), FATHOM_EFORMAT);
        assert_non_null(strstr(d.text, "b/generation_config.json: the text is an array"));
        checkpoint_close(c);
    }
}

static void configs_come_from_the_checkpoint(void **state)
{
    (void)state;
    const char *dir = FATHOM_SOURCE_DIR "/models/pilot";
    struct checkpoint *c;
    struct model_config config;
    struct generation_config g;
    fathom_diag d = {0};
    assert_int_equal(checkpoint_open(&c, dir, &d), FATHOM_OK);
    assert_int_equal(model_config_load(&config, c, &d), FATHOM_OK);
    assert_int_equal(config.n_layer, 8);
    assert_int_equal(config.n_head, 4);
    assert_int_equal(config.index_topk, 256);
    assert_true(config.yarn.factor == 4.0 && config.yarn.original_max_position == 1024.0);
    assert_int_equal(generation_config_load(&g, c, config.n_vocab, &d), FATHOM_OK);
    assert_true(g.temperature == 0.6f && g.top_p == 0.95f && g.top_k == -1 && g.n_eos == 1);
    checkpoint_close(c);
}

static void values_may_be_given_in_place_of_the_files(void **state)
{
    (void)state;
    static const struct {
        const char *config, *overrides, *made, *fault;
    } cases[] = {
        {"{\"a\":1,\"b\":{\"c\":2,\"d\":3}}", "{\"b\":{\"c\":4},\"e\":null,\"a\":\"x\"}",
         "{\"a\":\"x\",\"b\":{\"c\":4},\"e\":null}", NULL},
        {"{\"a\":1}", "{}", "{\"a\":1}", NULL},
        {"{\"a\":1}", "[]", NULL, "--hf-overrides: the text is an array, an object is needed"},
        {"{\"a\":1}", "{", NULL, "--hf-overrides"},
        {"[]", "{}", NULL, "config.json: the text is an array, an object is needed"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct buf b = {0};
        fathom_diag d = {0};
        const char *text = cases[i].config;
        fathom_err err = config_override(&b, text, strlen(text), cases[i].overrides, true, &d);
        assert_int_equal(err, cases[i].made ? FATHOM_OK : FATHOM_EFORMAT);
        if (cases[i].made) assert_string_equal(buf_str(&b), cases[i].made);
        if (cases[i].fault) assert_non_null(strstr(d.text, cases[i].fault));
        buf_free(&b);
    }
}

/* Also for who has read the file before. */
static void a_checkpoint_has_them_from_then_on(void **state)
{
    (void)state;
    struct checkpoint *c;
    struct model_config config;
    const char *before, *text;
    size_t n_before, n;
    fathom_diag d = {0};
    const char *dir = FATHOM_SOURCE_DIR "/models/pilot";
    assert_int_equal(checkpoint_open(&c, dir, &d), FATHOM_OK);
    assert_int_equal(checkpoint_file(c, "config.json", &before, &n_before, &d), FATHOM_OK);
    assert_int_equal(checkpoint_override(c, NULL, true, &d), FATHOM_OK);
    assert_int_equal(checkpoint_override(c, "{\"num_hidden_layers\":5}", true, &d), FATHOM_OK);
    assert_int_equal(checkpoint_override(c, "{\"index_topk\":64}", true, &d), FATHOM_OK);
    assert_int_equal(model_config_load(&config, c, &d), FATHOM_OK);
    assert_int_equal(config.n_layer, 5);
    assert_int_equal(config.index_topk, 64);
    assert_int_equal(config.n_head, 4);
    assert_int_equal(checkpoint_file(c, "config.json", &text, &n, &d), FATHOM_OK);
    assert_true(text != before && before[0] == '{');
    checkpoint_close(c);
    assert_int_equal(checkpoint_open_files(&c, "/nowhere", NULL, &d), FATHOM_OK);
    assert_int_equal(checkpoint_override(c, "{}", true, &d), FATHOM_ENOTFOUND);
    assert_string_equal(d.text, "/nowhere: there is no config.json");
    checkpoint_close(c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(values_may_be_given_in_place_of_the_files),
        cmocka_unit_test(a_checkpoint_has_them_from_then_on),
        cmocka_unit_test(every_release_is_read),
        cmocka_unit_test(kimi_k2_is_read),
        cmocka_unit_test(variants_are_read),
        cmocka_unit_test(faults_name_key_value_and_need),
        cmocka_unit_test(text_that_is_no_object_is_refused),
        cmocka_unit_test(other_quantizations_are_recognised),
        cmocka_unit_test(int8_inputs_are_those_of_w8a8),
        cmocka_unit_test(generation_defaults),
        cmocka_unit_test(every_failing_allocation_is_clean),
        cmocka_unit_test(a_file_beside_the_config_tells_of_quantization),
        cmocka_unit_test(what_is_wrong_is_told_with_its_place),
        cmocka_unit_test(configs_come_from_the_checkpoint),
    };
    json_set_alloc_funcs(mem_alloc, mem_free);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
