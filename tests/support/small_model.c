/* small_model.c - a checkpoint with random weights, in memory */
#include "support/small_model.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "base/mem.h"
#include "base/rng.h"
#include "kv/layout.h"
#include "model/config.h"
#include "model/weights_int.h"
#include "support/safetensors_write.h"

/* Widths of the residual stream, the dense layer, an expert and the latent of queries. */
static const char config_format[] =
    "{\"architectures\": [\"DeepseekV32ForCausalLM\"], \"model_type\": \"deepseek_v32\","
    "\"vocab_size\": 64, \"hidden_size\": %u, \"num_hidden_layers\": 2,"
    "\"num_nextn_predict_layers\": 1, \"first_k_dense_replace\": 1, \"moe_layer_freq\": 1,"
    "\"intermediate_size\": %u, \"moe_intermediate_size\": %u, \"n_routed_experts\": 8,"
    "\"n_shared_experts\": 1, \"num_experts_per_tok\": 2, \"n_group\": 4, \"topk_group\": 2,"
    "\"routed_scaling_factor\": 2.5, \"scoring_func\": \"sigmoid\", \"topk_method\": "
    "\"noaux_tc\", \"norm_topk_prob\": true, \"num_attention_heads\": 2,"
    "\"num_key_value_heads\": 2, \"q_lora_rank\": %u, \"kv_lora_rank\": 512,"
    "\"qk_nope_head_dim\": 128, \"qk_rope_head_dim\": 64, \"v_head_dim\": 128,"
    "\"attention_bias\": false, \"hidden_act\": \"silu\", \"rms_norm_eps\": 1e-6,"
    "\"rope_theta\": 10000, \"max_position_embeddings\": 512,"
    "\"index_n_heads\": 2, \"index_head_dim\": 128, \"index_topk\": 16,"
    "\"tie_word_embeddings\": false, \"torch_dtype\": \"bfloat16\","
    "\"bos_token_id\": 0, \"eos_token_id\": 1}";

struct maker {
    struct safetensors_writer writer;
    uint64_t rng;
};

/* Norms are near 1, biases near 0, matrices keep the size of what they multiply. */
static float draw_weight(struct maker *m, const struct weight_need *need)
{
    bool is_norm = need->n_dim == 1 && !strstr(need->name, "bias");
    float scale = need->n_dim == 1 ? 0.1f : 1 / sqrtf((float)need->n_col);
    if (need->kind == WEIGHT_EMBED || need->kind == WEIGHT_HEAD) scale = 1;
    return (is_norm ? 1.0f : 0.0f) + scale * rng_normal(&m->rng);
}

static fathom_err add_tensor(void *arg, const struct weight_need *need)
{
    struct maker *m = arg;
    uint64_t dim[2] = {need->n_dim == 1 ? need->n_col : need->n_row, need->n_col};
    size_t n = (size_t)need->n_row * need->n_col;
    float *values = mem_alloc_array(n, sizeof *values);
    uint16_t *halves = mem_alloc_array(n, sizeof *halves);
    assert_true(values && halves);
    for (size_t i = 0; i < n; i++) {
        values[i] = draw_weight(m, need);
        halves[i] = bf16_from_f32(values[i]);
    }
    if (need->rule->storage == STORED_VECTOR_F32) {
        safetensors_add(&m->writer, need->name, "F32", need->n_dim, dim, values, 4 * n);
    } else {
        safetensors_add(&m->writer, need->name, "BF16", need->n_dim, dim, halves, 2 * n);
    }
    mem_free(values);
    mem_free(halves);
    return FATHOM_OK;
}

static void make(struct small_model *m, uint64_t seed, const uint32_t widths[4])
{
    struct model_config config;
    struct maker maker = {.rng = seed};
    fathom_diag d = {{0}};
    memset(m, 0, sizeof *m);
    int n = snprintf(m->config, sizeof m->config, config_format, widths[0], widths[1], widths[2],
                     widths[3]);
    assert_in_range(n, 1, sizeof m->config - 1);
    if (model_config_parse(&config, m->config, (size_t)n, &d) != FATHOM_OK) {
        fail_msg("%s", d.text);
    }
    assert_int_equal(weights_walk(&config, config.n_mtp, add_tensor, &maker), FATHOM_OK);
    safetensors_finish(&maker.writer, 0, &m->weights);
    m->files[0] = (fathom_bundle_file){"config.json", (const unsigned char *)m->config, (size_t)n};
    m->files[1] = (fathom_bundle_file){"model.safetensors", (const unsigned char *)m->weights.data,
                                       m->weights.len};
    m->bundle = (fathom_bundle){.name = "small", .files = m->files, .n_file = 2};
}

void small_model_make(struct small_model *m, uint64_t seed)
{
    make(m, seed, (const uint32_t[]){64, 96, 32, 32});
}

void small_model_make_wide(struct small_model *m, uint64_t seed)
{
    make(m, seed, (const uint32_t[]){128, 128, 128, 128});
}

void small_model_free(struct small_model *m)
{
    buf_free(&m->weights);
}

uint64_t small_model_page_bytes(fathom_kv kv, bool with_mtp)
{
    struct kv_layout l;
    enum kv_type type = kv == FATHOM_KV_F32   ? KV_TYPE_F32
                        : kv == FATHOM_KV_FP8 ? KV_TYPE_FP8
                                              : KV_TYPE_BF16;
    kv_layout_init(&l, type, SMALL_MODEL_LAYERS + with_mtp, true);
    return l.page_bytes;
}
