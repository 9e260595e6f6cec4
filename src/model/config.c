/* config.c - config.json and generation_config.json, read key by key and checked */
#include "model/config.h"

#include <math.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

#include "base/assert.h"
#include "base/fail.h"
#include "base/json.h"
#include "checkpoint/checkpoint.h"

/* Bounds that keep every product of two counts inside 32 bits and catch a misread file. */
enum {
    COUNT_MAX = 1 << 20,   /* widths and token counts */
    VOCAB_MAX = 1 << 24,   /* rows of the embedding */
    HEADS_MAX = 1 << 14,   /* 256 values each */
    LAYERS_MAX = 4096,     /* main and MTP */
    EXPERTS_MAX = 1 << 16, /* of one layer */
    CONTEXT_MAX = 1 << 28, /* positions */
};

static const char *const architectures[] = {"DeepseekV3ForCausalLM", "DeepseekV32ForCausalLM"};
static const char *const model_types[] = {"deepseek_v3", "deepseek_v32", "kimi_k2"};

/* ---- typed members -------------------------------------------------------------------------- */

static fathom_err get_u32(const json_t *o, const char *key, bool required, int64_t lo, int64_t hi,
                          uint32_t *out, fathom_diag *d)
{
    int64_t v = *out;
    ASSERT(lo >= 0 && lo <= hi && hi <= UINT32_MAX);
    TRY(json_get_i64(o, key, required, lo, hi, &v, d));
    *out = (uint32_t)v;
    return FATHOM_OK;
}

/* A number in [lo, hi]. */
static fathom_err get_real(const json_t *o, const char *key, bool required, double lo, double hi,
                           double *out, fathom_diag *d)
{
    double v = lo;
    ASSERT(lo <= hi);
    TRY(json_get_f64(o, key, required, &v, d));
    if (!(v >= lo && v <= hi)) {
        FAIL(d, FATHOM_EFORMAT, "\"%s\" is %g, needed is %g to %g", key, v, lo, hi);
    }
    if (json_is_number(json_object_get(o, key))) *out = v;
    return FATHOM_OK;
}

static fathom_err get_f32(const json_t *o, const char *key, bool required, double lo, double hi,
                          float *out, fathom_diag *d)
{
    double v = *out;
    TRY(get_real(o, key, required, lo, hi, &v, d));
    *out = (float)v;
    return FATHOM_OK;
}

/* A width that the operators fix. */
static fathom_err need_width(const json_t *o, const char *key, int64_t need, fathom_diag *d)
{
    int64_t seen = need;
    TRY(json_get_i64(o, key, true, INT64_MIN, INT64_MAX, &seen, d));
    if (seen == need) return FATHOM_OK;
    FAIL(d, FATHOM_EUNSUPPORTED, "\"%s\" is %lld, needed is %lld", key, (long long)seen,
         (long long)need);
}

/* Names and switches that may be absent, but if present have one value only. */
static fathom_err need_text(const json_t *o, const char *key, const char *need, fathom_diag *d)
{
    const char *seen = need;
    TRY(json_get_str(o, key, false, &seen, d));
    if (strcmp(seen, need) == 0) return FATHOM_OK;
    FAIL(d, FATHOM_EUNSUPPORTED, "\"%s\" is \"%s\", needed is \"%s\"", key, seen, need);
}

static fathom_err need_false(const json_t *o, const char *key, fathom_diag *d)
{
    bool seen = false;
    TRY(json_get_bool(o, key, false, &seen, d));
    if (!seen) return FATHOM_OK;
    FAIL(d, FATHOM_EUNSUPPORTED, "\"%s\" is true, needed is false", key);
}

/* A token id, or a list of them; absent or null leaves *n at 0. */
static fathom_err get_ids(const json_t *o, const char *key, uint32_t n_vocab, int32_t *ids,
                          uint32_t *n, fathom_diag *d)
{
    const json_t *v = json_object_get(o, key);
    ASSERT(n_vocab >= 1 && n_vocab <= VOCAB_MAX);
    *n = 0;
    if (!v || json_is_null(v)) return FATHOM_OK;
    size_t count = json_is_array(v) ? json_array_size(v) : 1;
    if (count > MODEL_EOS_MAX) {
        FAIL(d, FATHOM_ELIMIT, "\"%s\" has %zu ids, at most %d are allowed", key, count,
             MODEL_EOS_MAX);
    }
    for (size_t i = 0; i < count; i++) {
        const json_t *id = json_is_array(v) ? json_array_get(v, i) : v;
        if (!json_is_integer(id)) {
            FAIL(d, FATHOM_EFORMAT, "\"%s\" holds %s, a token id is needed", key,
                 json_type_text(id));
        }
        if (json_integer_value(id) < 0 || json_integer_value(id) >= n_vocab) {
            FAIL(d, FATHOM_EFORMAT, "\"%s\" is %lld, needed is 0 to %u (vocab_size - 1)", key,
                 (long long)json_integer_value(id), n_vocab - 1);
        }
        ids[(*n)++] = (int32_t)json_integer_value(id);
    }
    return FATHOM_OK;
}

static fathom_err get_bos(const json_t *o, uint32_t n_vocab, int32_t *out, fathom_diag *d)
{
    int64_t id = -1;
    ASSERT(n_vocab >= 1 && n_vocab <= VOCAB_MAX);
    TRY(json_get_i64(o, "bos_token_id", false, 0, (int64_t)n_vocab - 1, &id, d));
    *out = (int32_t)id;
    return FATHOM_OK;
}

/* Text read from the file, cut to the size of its place. */
static void copy_text(char *out, size_t out_bytes, const char *text)
{
    (void)snprintf(out, out_bytes, "%s", text);
}

/* ---- the parts of config.json ---------------------------------------------------------------- */

static int find_text(const char *const *list, size_t n, const char *text)
{
    for (size_t i = 0; i < n; i++) {
        if (strcmp(list[i], text) == 0) return (int)i;
    }
    return -1;
}

/* architectures[0] decides; a file without it is taken by its model_type. */
static fathom_err read_architecture(struct model_config *c, const json_t *o, fathom_diag *d)
{
    const char *type = "";
    TRY(json_get_str(o, "model_type", false, &type, d));
    const json_t *list = json_object_get(o, "architectures");
    const char *name = json_string_value(json_array_get(list, 0));
    int i = name ? find_text(architectures, 2, name) : find_text(model_types, 3, type);
    if (i < 0) {
        FAIL(
            d, FATHOM_EUNSUPPORTED,
            "the architecture is \"%s\" (model_type \"%s\"); served are %s (V3, R1, V3.1, Kimi K2) "
            "and %s (V3.2)",
            name ? name : "", type, architectures[0], architectures[1]);
    }
    copy_text(c->architecture, sizeof c->architecture, architectures[i % 2]);
    copy_text(c->model_type, sizeof c->model_type, type[0] ? type : model_types[i]);
    return FATHOM_OK;
}

static fathom_err read_sizes(struct model_config *c, const json_t *o, fathom_diag *d)
{
    TRY(get_u32(o, "vocab_size", true, 1, VOCAB_MAX, &c->n_vocab, d));
    TRY(get_u32(o, "hidden_size", true, 1, COUNT_MAX, &c->hidden, d));
    TRY(get_u32(o, "num_hidden_layers", true, 1, LAYERS_MAX, &c->n_layer, d));
    TRY(get_u32(o, "num_nextn_predict_layers", false, 0, LAYERS_MAX, &c->n_mtp, d));
    TRY(get_u32(o, "max_position_embeddings", true, 1, CONTEXT_MAX, &c->max_position, d));
    TRY(get_f32(o, "rms_norm_eps", true, 1e-30, 1.0, &c->norm_eps, d));
    TRY(need_text(o, "hidden_act", "silu", d));
    TRY(need_false(o, "attention_bias", d));
    TRY(need_false(o, "mlp_bias", d));
    TRY(need_false(o, "tie_word_embeddings", d));

    const char *type = "bfloat16";
    const char *key = json_object_get(o, "dtype") ? "dtype" : "torch_dtype";
    TRY(json_get_str(o, key, false, &type, d));
    static const char *const names[] = {"bfloat16", "float16", "float32"};
    static const enum dtype types[] = {DTYPE_BF16, DTYPE_F16, DTYPE_F32};
    int i = find_text(names, 3, type);
    if (i < 0) {
        FAIL(d, FATHOM_EUNSUPPORTED, "\"%s\" is \"%s\", needed is bfloat16, float16 or float32",
             key, type);
    }
    c->dtype = types[i];
    return FATHOM_OK;
}

static fathom_err read_attention(struct model_config *c, const json_t *o, fathom_diag *d)
{
    TRY(get_u32(o, "num_attention_heads", true, 1, HEADS_MAX, &c->n_head, d));
    if (json_is_null(json_object_get(o, "q_lora_rank"))) {
        FAIL(d, FATHOM_EUNSUPPORTED,
             "\"q_lora_rank\" is null: queries without a low rank (V2-Lite) are not supported");
    }
    TRY(get_u32(o, "q_lora_rank", true, 1, COUNT_MAX, &c->q_lora_rank, d));
    TRY(need_width(o, "kv_lora_rank", MODEL_KV_LORA_RANK, d));
    TRY(need_width(o, "qk_nope_head_dim", MODEL_QK_NOPE_DIM, d));
    TRY(need_width(o, "qk_rope_head_dim", MODEL_QK_ROPE_DIM, d));
    TRY(need_width(o, "v_head_dim", MODEL_V_DIM, d));

    bool named = strcmp(c->architecture, architectures[1]) == 0;
    const json_t *topk = json_object_get(o, "index_topk");
    c->has_indexer = named || (topk && !json_is_null(topk));
    if (!c->has_indexer) return FATHOM_OK;
    TRY(get_u32(o, "index_n_heads", true, 1, HEADS_MAX, &c->index_n_head, d));
    TRY(get_u32(o, "index_topk", true, 1, CONTEXT_MAX, &c->index_topk, d));
    return need_width(o, "index_head_dim", MODEL_INDEX_DIM, d);
}

/* The members of a YaRN rope_scaling, or of a new-style rope_parameters. */
static fathom_err read_yarn(struct rope_yarn *y, const json_t *o, fathom_diag *d)
{
    *y = (struct rope_yarn){.on = true, .beta_fast = 32.0, .beta_slow = 1.0, .mscale = 1.0};
    bool truncate = true;
    double attention_factor = 1.0;
    TRY(get_real(o, "factor", true, 1.0, 1e6, &y->factor, d));
    TRY(get_real(o, "original_max_position_embeddings", true, 1.0, CONTEXT_MAX,
                 &y->original_max_position, d));
    TRY(get_real(o, "beta_fast", false, 1e-3, 1e6, &y->beta_fast, d));
    TRY(get_real(o, "beta_slow", false, 1e-3, y->beta_fast, &y->beta_slow, d));
    TRY(get_real(o, "mscale", false, 0.0, 1e3, &y->mscale, d));
    TRY(get_real(o, "mscale_all_dim", false, 0.0, 1e3, &y->mscale_all_dim, d));
    TRY(json_get_bool(o, "truncate", false, &truncate, d));
    if (!truncate) FAIL(d, FATHOM_EUNSUPPORTED, "\"truncate\" is false, needed is true");

    /* cos and sin would have to be scaled by this; in the whole family it is 1 */
    attention_factor = rope_mscale(y, y->mscale) / rope_mscale(y, y->mscale_all_dim);
    TRY(get_real(o, "attention_factor", false, 0.0, 1e6, &attention_factor, d));
    if (fabs(attention_factor - 1.0) > 1e-6) {
        FAIL(d, FATHOM_EUNSUPPORTED,
             "\"mscale\" %g and \"mscale_all_dim\" %g scale the rotary embedding by %g, needed is "
             "1: equal values",
             y->mscale, y->mscale_all_dim, attention_factor);
    }
    return FATHOM_OK;
}

/* rope_theta, rope_scaling (absent: plain RoPE), or both inside rope_parameters. */
static fathom_err read_rope(struct model_config *c, const json_t *o, fathom_diag *d)
{
    const char *key = "rope_parameters";
    const json_t *p = json_object_get(o, key);
    bool has_new_style = p && !json_is_null(p);
    if (!has_new_style) p = json_object_get(o, key = "rope_scaling");
    if (p && !json_is_null(p) && !json_is_object(p)) {
        FAIL(d, FATHOM_EFORMAT, "\"%s\" is %s, an object is needed", key, json_type_text(p));
    }
    bool has_inner_theta = json_object_get(p, "rope_theta") != NULL;
    TRY(get_real(has_inner_theta ? p : o, "rope_theta", true, 2.0, 1e12, &c->rope_theta, d));

    c->rope_interleaved = true;
    c->index_rope_interleaved = false;
    TRY(json_get_bool(o, "rope_interleave", false, &c->rope_interleaved, d));
    TRY(json_get_bool(o, "indexer_rope_interleave", false, &c->index_rope_interleaved, d));

    const char *type = NULL;
    if (json_is_object(p)) {
        TRY(json_get_str(p, "type", false, &type, d));
        TRY(json_get_str(p, "rope_type", false, &type, d));
        if (!type && !has_new_style) {
            FAIL(d, FATHOM_EFORMAT, "\"type\" of \"rope_scaling\" is missing (yarn is needed)");
        }
    }
    if (type && strcmp(type, "default") != 0) {
        if (strcmp(type, "yarn") != 0) {
            FAIL(d, FATHOM_EUNSUPPORTED,
                 "the type of \"%s\" is \"%s\", needed is \"yarn\" or \"default\"", key, type);
        }
        TRY(read_yarn(&c->yarn, p, d));
    }
    double m = rope_mscale(&c->yarn, c->yarn.mscale_all_dim);
    c->softmax_scale = (float)(m * m / sqrt(MODEL_QK_DIM));
    return FATHOM_OK;
}

static fathom_err read_experts(struct model_config *c, const json_t *o, fathom_diag *d)
{
    double scale = 1.0;
    c->moe_layer_freq = 1;
    c->norm_topk = true;
    TRY(get_u32(o, "intermediate_size", true, 1, COUNT_MAX, &c->dense_inner, d));
    TRY(get_u32(o, "first_k_dense_replace", true, 0, c->n_layer, &c->n_dense_layer, d));
    TRY(get_u32(o, "moe_layer_freq", false, 1, LAYERS_MAX, &c->moe_layer_freq, d));
    TRY(get_u32(o, "moe_intermediate_size", true, 1, COUNT_MAX, &c->moe_inner, d));
    TRY(get_u32(o, "n_routed_experts", true, 1, EXPERTS_MAX, &c->n_expert, d));
    TRY(get_u32(o, "n_shared_experts", false, 0, 1024, &c->n_shared_expert, d));
    TRY(get_u32(o, "num_experts_per_tok", true, 1, c->n_expert, &c->n_expert_used, d));
    TRY(get_u32(o, "n_group", true, 1, c->n_expert, &c->n_group, d));
    TRY(get_u32(o, "topk_group", true, 1, c->n_group, &c->topk_group, d));
    TRY(get_real(o, "routed_scaling_factor", true, 1e-6, 1e6, &scale, d));
    TRY(json_get_bool(o, "norm_topk_prob", false, &c->norm_topk, d));
    TRY(need_text(o, "scoring_func", "sigmoid", d));
    TRY(need_text(o, "topk_method", "noaux_tc", d));
    c->routed_scale = (float)scale;

    if (c->n_expert % c->n_group != 0) {
        FAIL(d, FATHOM_EFORMAT, "\"n_routed_experts\" is %u, needed is a multiple of n_group = %u",
             c->n_expert, c->n_group);
    }
    uint32_t n_eligible = c->topk_group * (c->n_expert / c->n_group);
    if (c->n_expert_used > n_eligible) {
        FAIL(d, FATHOM_EFORMAT,
             "\"num_experts_per_tok\" is %u, needed is at most %u (the experts of topk_group = %u "
             "groups)",
             c->n_expert_used, n_eligible, c->topk_group);
    }
    return FATHOM_OK;
}

static fathom_err read_fp8(struct model_config *c, const json_t *q, fathom_diag *d)
{
    TRY(need_text(q, "fmt", "e4m3", d));
    TRY(need_text(q, "activation_scheme", "dynamic", d));
    const json_t *block = json_object_get(q, "weight_block_size");
    json_int_t rows = json_integer_value(json_array_get(block, 0));
    json_int_t cols = json_integer_value(json_array_get(block, 1));
    if (json_array_size(block) != 2 || rows != TENSOR_SCALE_BLOCK || cols != TENSOR_SCALE_BLOCK) {
        FAIL(d, FATHOM_EUNSUPPORTED,
             "\"weight_block_size\" of \"quantization_config\" is [%lld, %lld], needed is [%d, %d]",
             (long long)rows, (long long)cols, TENSOR_SCALE_BLOCK, TENSOR_SCALE_BLOCK);
    }
    const char *format = "float";
    TRY(json_get_str(q, "scale_fmt", false, &format, d));
    c->scales_are_pow2 = strcmp(format, "ue8m0") == 0;
    return FATHOM_OK;
}

/* Four bits are what is read of the methods that may have others. */
static fathom_err need_4_bits(const json_t *q, const char *key, fathom_diag *d)
{
    int64_t bits = 4;
    TRY(json_get_i64(q, key, false, INT64_MIN, INT64_MAX, &bits, d));
    if (bits == 4) return FATHOM_OK;
    FAIL(d, FATHOM_EUNSUPPORTED,
         "\"%s\" of \"quantization_config\" is %lld, needed is 4: choose a release of 4 bits", key,
         (long long)bits);
}

/* Inputs that share a scale; -1, or null, is all of a row. */
static fathom_err read_group_size(struct model_config *c, const json_t *q, const char *key,
                                  fathom_diag *d)
{
    int64_t n = 0;
    if (json_is_null(json_object_get(q, key))) return FATHOM_OK;
    TRY(json_get_i64(q, key, false, -1, 1 << 20, &n, d));
    if (n > 0) c->quant_group = (uint32_t)n;
    return FATHOM_OK;
}

static fathom_err read_awq(struct model_config *c, const json_t *q, fathom_diag *d)
{
    const char *version = "gemm";
    bool zero_point = true;
    TRY(read_group_size(c, q, "group_size", d));
    TRY(read_group_size(c, q, "q_group_size", d));
    TRY(need_4_bits(q, "bits", d));
    TRY(need_4_bits(q, "w_bit", d));
    TRY(json_get_str(q, "version", false, &version, d));
    TRY(json_get_bool(q, "zero_point", false, &zero_point, d));
    if (strcasecmp(version, "gemm") != 0) {
        FAIL(d, FATHOM_EUNSUPPORTED,
             "\"version\" of \"quantization_config\" is \"%s\", needed is \"gemm\": convert the "
             "checkpoint with AutoAWQ",
             version);
    }
    if (!zero_point) {
        FAIL(d, FATHOM_EUNSUPPORTED,
             "\"zero_point\" of \"quantization_config\" is false, needed is true: use a GPTQ or "
             "compressed-tensors release for symmetric weights");
    }
    return FATHOM_OK;
}

static fathom_err read_gptq(struct model_config *c, const json_t *q, fathom_diag *d)
{
    const char *format = "gptq";
    TRY(need_4_bits(q, "bits", d));
    TRY(need_false(q, "lm_head", d));
    TRY(read_group_size(c, q, "group_size", d));
    TRY(json_get_str(q, "checkpoint_format", false, &format, d));
    c->gptq_v2 = strcmp(format, "gptq_v2") == 0;
    if (c->gptq_v2 || strcmp(format, "gptq") == 0) return FATHOM_OK;
    FAIL(d, FATHOM_EUNSUPPORTED,
         "\"checkpoint_format\" of \"quantization_config\" is \"%s\", needed is \"gptq\" or "
         "\"gptq_v2\"",
         format);
}

/* One entry of config_groups. */
static fathom_err read_group(struct model_config *c, const char *name, const json_t *group,
                             const char *format, fathom_diag *d)
{
    static const char *const formats[] = {"pack-quantized",       "int-quantized",
                                          "float-quantized",      "naive-quantized",
                                          "nvfp4-pack-quantized", "mxfp4-pack-quantized"};
    const json_t *w = json_object_get(group, "weights");
    const char *order = NULL;
    bool symmetric = true;
    TRY(json_get_str(group, "format", false, &format, d));
    if (find_text(formats, sizeof formats / sizeof *formats, format) < 0) {
        FAIL(d, FATHOM_EUNSUPPORTED,
             "the format of \"%s\" is \"%s\", which is not read; needed is pack-quantized, "
             "int-quantized, float-quantized, nvfp4-pack-quantized or mxfp4-pack-quantized",
             name, format);
    }
    if (strcmp(format, "int-quantized") == 0 &&
        json_is_object(json_object_get(group, "input_activations"))) {
        c->quant_int8 = true;
    }
    if (!json_is_object(w)) return FATHOM_OK;
    if (strcmp(format, "pack-quantized") == 0) {
        TRY(need_4_bits(w, "num_bits", d));
        TRY(read_group_size(c, w, "group_size", d));
    }
    if (json_is_string(json_object_get(w, "actorder"))) {
        TRY(json_get_str(w, "actorder", false, &order, d));
    }
    if (order && strcmp(order, "group") == 0) {
        FAIL(d, FATHOM_EUNSUPPORTED,
             "\"actorder\" of \"%s\" is \"group\", which is not read: quantize again with actorder "
             "\"static\" or none",
             name);
    }
    TRY(json_get_bool(w, "symmetric", false, &symmetric, d));
    c->quant_symmetric = c->quant_symmetric && symmetric;
    return FATHOM_OK;
}

/* A member that has a meaning for the weights that nothing here computes. */
static fathom_err need_empty(const json_t *q, const char *key, fathom_diag *d)
{
    const json_t *v = json_object_get(q, key);
    if (!v || json_is_null(v) || (json_is_object(v) && json_object_size(v) == 0)) return FATHOM_OK;
    const json_t *inner = json_object_get(v, "config_groups");
    if (json_is_object(inner) && json_object_size(inner) == 0) return FATHOM_OK;
    const json_t *format = json_object_get(v, "format");
    if (strcmp(key, "sparsity_config") == 0 && json_is_string(format) &&
        strcmp(json_string_value(format), "dense") == 0) {
        return FATHOM_OK;
    }
    FAIL(d, FATHOM_EUNSUPPORTED,
         "\"%s\" of \"quantization_config\" is given, which is not read (online rotations, sparse "
         "weights): use a release without",
         key);
}

static fathom_err read_compressed_tensors(struct model_config *c, const json_t *q, fathom_diag *d)
{
    const char *format = "mixed-precision", *status = "compressed", *name;
    json_t *group;
    TRY(json_get_str(q, "format", false, &format, d));
    TRY(json_get_str(q, "quantization_status", false, &status, d));
    if (strcmp(status, "compressed") != 0) {
        FAIL(d, FATHOM_EUNSUPPORTED,
             "\"quantization_status\" is \"%s\", needed is \"compressed\": save the model with "
             "save_compressed=True",
             status);
    }
    TRY(need_empty(q, "sparsity_config", d));
    TRY(need_empty(q, "transform_config", d));
    c->quant_symmetric = true;
    json_object_foreach (json_object_get(q, "config_groups"), name, group) {
        TRY(read_group(c, name, group, format, d));
    }
    return FATHOM_OK;
}

enum quant_method quant_method_of(const char *name)
{
    static const struct {
        const char *name;
        enum quant_method method;
    } methods[] = {
        {"fp8", QUANT_FP8},
        {"fp8_per_block", QUANT_FP8},
        {"deepseek_v3", QUANT_FP8},
        {"awq", QUANT_AWQ},
        {"auto_awq", QUANT_AWQ},
        {"awq_marlin", QUANT_AWQ},
        {"moe_wna16", QUANT_AWQ},
        {"gptq", QUANT_GPTQ},
        {"auto_gptq", QUANT_GPTQ},
        {"gptq_marlin", QUANT_GPTQ},
        {"compressed-tensors", QUANT_COMPRESSED_TENSORS},
        {"w8a8_int8", QUANT_INT8},
        {"blockwise_int8", QUANT_INT8},
        {"int8", QUANT_INT8},
        {"w4afp8", QUANT_W4AFP8},
        {"modelopt", QUANT_MODELOPT},
        {"modelopt_fp4", QUANT_MODELOPT},
        {"ascend", QUANT_ASCEND},
    };
    for (size_t i = 0; i < sizeof methods / sizeof *methods; i++) {
        if (strcmp(methods[i].name, name) == 0) return methods[i].method;
    }
    return QUANT_OTHER;
}

static fathom_err read_quantization(struct model_config *c, const json_t *o, fathom_diag *d)
{
    const char *key = "quantization_config";
    const json_t *q = json_object_get(o, key);
    if (!q || json_is_null(q)) {
        key = "compression_config"; /* llm-compressor's older name */
        q = json_object_get(o, key);
    }
    if (!q || json_is_null(q)) return FATHOM_OK;
    if (!json_is_object(q)) {
        FAIL(d, FATHOM_EFORMAT, "\"%s\" is %s, an object is needed", key, json_type_text(q));
    }
    const char *name = "";
    TRY(json_get_str(q, "quant_method", true, &name, d));
    copy_text(c->quant_name, sizeof c->quant_name, name);
    c->quant = quant_method_of(name);
    c->quant_int8 = c->quant == QUANT_INT8 || c->quant == QUANT_ASCEND;
    switch (c->quant) {
    case QUANT_FP8: return read_fp8(c, q, d);
    case QUANT_AWQ: return read_awq(c, q, d);
    case QUANT_GPTQ: return read_gptq(c, q, d);
    case QUANT_COMPRESSED_TENSORS: return read_compressed_tensors(c, q, d);
    default: return FATHOM_OK;
    }
}

static fathom_err read_config(struct model_config *c, const json_t *o, fathom_diag *d)
{
    TRY(read_architecture(c, o, d));
    TRY(read_sizes(c, o, d));
    TRY(read_attention(c, o, d));
    TRY(read_rope(c, o, d));
    TRY(read_experts(c, o, d));
    TRY(get_bos(o, c->n_vocab, &c->bos_id, d));
    TRY(get_ids(o, "eos_token_id", c->n_vocab, c->eos_ids, &c->n_eos, d));
    return read_quantization(c, o, d);
}

/* ---- files ----------------------------------------------------------------------------------- */

static fathom_err read_object(json_t **out, const char *text, size_t n, const char *what,
                              fathom_diag *d)
{
    TRY(json_read(text, n, what, out, d));
    if (json_is_object(*out)) return FATHOM_OK;
    fathom_err err = diag_fail(d, FATHOM_EFORMAT, "%s: the text is %s, an object is needed", what,
                               json_type_text(*out));
    json_decref(*out);
    *out = NULL;
    return err;
}

fathom_err model_config_parse(struct model_config *out, const char *text, size_t n, fathom_diag *d)
{
    json_t *o;
    fathom_diag fault = {0};
    memset(out, 0, sizeof *out);
    TRY(read_object(&o, text, n, "config.json", d));
    fathom_err err = read_config(out, o, &fault);
    json_decref(o);
    if (!err) return FATHOM_OK;
    memset(out, 0, sizeof *out);
    FAIL(d, err, "config.json: %s", fault.text);
}

/* What is wrong with a file begins with its name; here the place of its checkpoint comes before, of
 * which a command may have two. */
static fathom_err tell_where(const struct checkpoint *c, fathom_err err, const fathom_diag *fault,
                             fathom_diag *d)
{
    const char *where = checkpoint_where(c);
    if (!err) return FATHOM_OK;
    const bool ends = where[0] && where[strlen(where) - 1] == '/';
    FAIL(d, err, "%s%s%s", where, ends ? "" : "/", fault->text);
}

/* Tools that say in a file of their own how the weights are quantized, and not in config.json. */
static fathom_err read_beside(struct model_config *out, const char *file, const char *text,
                              size_t n, fathom_diag *d)
{
    json_t *o;
    fathom_err err = FATHOM_OK;
    fathom_diag fault = {0};
    TRY(read_object(&o, text, n, file, d));
    out->quant = quant_method_of(out->quant_name);
    if (out->quant == QUANT_GPTQ) err = read_gptq(out, o, &fault);
    if (out->quant == QUANT_AWQ) err = read_awq(out, o, &fault);
    json_decref(o);
    if (err) FAIL(d, err, "%s: %s", file, fault.text);
    return FATHOM_OK;
}

static fathom_err look_beside(struct model_config *out, struct checkpoint *c, fathom_diag *d)
{
    static const char *const files[][2] = {{"hf_quant_config.json", "modelopt"},
                                           {"quant_model_description.json", "ascend"},
                                           {"quantize_config.json", "gptq"},
                                           {"quant_config.json", "awq"}};
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        const char *text;
        size_t n;
        fathom_diag fault = {0};
        fathom_err err = checkpoint_file(c, files[i][0], &text, &n, d);
        if (err == FATHOM_ENOTFOUND) continue;
        TRY(err);
        copy_text(out->quant_name, sizeof out->quant_name, files[i][1]);
        return tell_where(c, read_beside(out, files[i][0], text, n, &fault), &fault, d);
    }
    return FATHOM_OK;
}

fathom_err model_config_load(struct model_config *out, struct checkpoint *c, fathom_diag *d)
{
    const char *text;
    size_t n;
    fathom_diag fault = {0};
    memset(out, 0, sizeof *out);
    fathom_err err = checkpoint_file(c, "config.json", &text, &n, d);
    if (err == FATHOM_ENOTFOUND) {
        FAIL(d, err, "%s: there is no config.json", checkpoint_where(c));
    }
    TRY(err);
    TRY(tell_where(c, model_config_parse(out, text, n, &fault), &fault, d));
    return out->quant == QUANT_NONE ? look_beside(out, c, d) : FATHOM_OK;
}

static fathom_err read_generation(struct generation_config *g, const json_t *o, uint32_t n_vocab,
                                  fathom_diag *d)
{
    int64_t top_k = -1;
    TRY(json_get_bool(o, "do_sample", false, &g->do_sample, d));
    TRY(get_f32(o, "temperature", false, 0.0, 1e3, &g->temperature, d));
    TRY(get_f32(o, "top_p", false, 1e-6, 1.0, &g->top_p, d));
    TRY(json_get_i64(o, "top_k", false, -1, INT32_MAX, &top_k, d));
    g->top_k = (int32_t)top_k;
    TRY(get_bos(o, n_vocab, &g->bos_id, d));
    return get_ids(o, "eos_token_id", n_vocab, g->eos_ids, &g->n_eos, d);
}

static void clear_generation(struct generation_config *g)
{
    *g = (struct generation_config){
        .temperature = -1.0f, .top_p = -1.0f, .top_k = -1, .do_sample = true, .bos_id = -1};
}

fathom_err generation_config_parse(struct generation_config *out, const char *text, size_t n,
                                   uint32_t n_vocab, fathom_diag *d)
{
    json_t *o;
    fathom_diag fault = {0};
    clear_generation(out);
    TRY(read_object(&o, text, n, "generation_config.json", d));
    fathom_err err = read_generation(out, o, n_vocab, &fault);
    json_decref(o);
    if (!err) return FATHOM_OK;
    clear_generation(out);
    FAIL(d, err, "generation_config.json: %s", fault.text);
}

fathom_err generation_config_load(struct generation_config *out, struct checkpoint *c,
                                  uint32_t n_vocab, fathom_diag *d)
{
    const char *text;
    size_t n;
    fathom_diag fault = {0};
    clear_generation(out);
    fathom_err err = checkpoint_file(c, "generation_config.json", &text, &n, d);
    if (err == FATHOM_ENOTFOUND) return FATHOM_OK;
    TRY(err);
    err = generation_config_parse(out, text, n, n_vocab, &fault);
    return tell_where(c, err, &fault, d);
}

/* ---- questions ------------------------------------------------------------------------------- */

bool model_config_layer_is_moe(const struct model_config *c, uint32_t layer)
{
    ASSERT(c->moe_layer_freq >= 1);
    return layer >= c->n_dense_layer && layer % c->moe_layer_freq == 0;
}

fathom_err model_config_check_quant(const struct model_config *c, fathom_diag *d)
{
    if (c->quant != QUANT_OTHER) return FATHOM_OK;
    FAIL(
        d, FATHOM_EUNSUPPORTED,
        "the quantization method \"%s\" is not read; needed is fp8, awq, gptq, compressed-tensors, "
        "w8a8_int8, blockwise_int8, w4afp8, modelopt, ascend or none: choose another checkpoint",
        c->quant_name);
}

void model_config_set_quant(struct model_config *c, const char *name)
{
    copy_text(c->quant_name, sizeof c->quant_name, name);
    c->quant = quant_method_of(name);
    c->quant_int8 = c->quant == QUANT_INT8 || c->quant == QUANT_ASCEND;
    ASSERT(c->quant != QUANT_OTHER);
}
