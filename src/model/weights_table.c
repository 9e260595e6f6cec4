/* weights_table.c - the binding table, the walk over it, and the check of one tensor */
#include <stdio.h>
#include <string.h>

#include "base/assert.h"
#include "base/fail.h"
#include "checkpoint/checkpoint.h"
#include "model/config.h"
#include "model/weights_int.h"

#define IN_MODEL(member) offsetof(struct model_weights, member)
#define IN_LAYER(member) offsetof(struct layer_views, member)
#define IN_EXPERT(member) offsetof(struct ffn_tensors, member)

/* clang-format off */
static const struct weight_rule rules[] = {
    {"model.embed_tokens.weight", IN_MODEL(embed),
     SCOPE_MODEL,   STORED_PLAIN,      DIM_VOCAB,       DIM_HIDDEN,     WEIGHT_EMBED},
    {"model.norm.weight", IN_MODEL(final_norm),
     SCOPE_MODEL,   STORED_VECTOR,     DIM_ONE,         DIM_HIDDEN,     WEIGHT_NORM},
    {"lm_head.weight", IN_MODEL(head),
     SCOPE_MODEL,   STORED_PLAIN,      DIM_HEAD,        DIM_HIDDEN,     WEIGHT_HEAD},

    {"enorm.weight", IN_LAYER(enorm),
     SCOPE_MTP,     STORED_VECTOR,     DIM_ONE,         DIM_HIDDEN,     WEIGHT_NORM},
    {"hnorm.weight", IN_LAYER(hnorm),
     SCOPE_MTP,     STORED_VECTOR,     DIM_ONE,         DIM_HIDDEN,     WEIGHT_NORM},
    {"eh_proj.weight", IN_LAYER(eh_proj),
     SCOPE_MTP,     STORED_LINEAR,     DIM_HIDDEN,      DIM_TWO_HIDDEN, WEIGHT_MTP},
    {"shared_head.norm.weight", IN_LAYER(head_norm),
     SCOPE_MTP,     STORED_VECTOR,     DIM_ONE,         DIM_HIDDEN,     WEIGHT_NORM},

    {"input_layernorm.weight", IN_LAYER(input_norm),
     SCOPE_LAYER,   STORED_VECTOR,     DIM_ONE,         DIM_HIDDEN,     WEIGHT_NORM},
    {"self_attn.q_a_proj.weight", IN_LAYER(mla.q_a),
     SCOPE_LAYER,   STORED_LINEAR,     DIM_Q_LORA,      DIM_HIDDEN,     WEIGHT_ATTENTION},
    {"self_attn.q_a_layernorm.weight", IN_LAYER(mla.q_a_norm),
     SCOPE_LAYER,   STORED_VECTOR,     DIM_ONE,         DIM_Q_LORA,     WEIGHT_NORM},
    {"self_attn.q_b_proj.weight", IN_LAYER(mla.q_b),
     SCOPE_LAYER,   STORED_LINEAR,     DIM_HEADS_QK,    DIM_Q_LORA,     WEIGHT_ATTENTION},
    {"self_attn.kv_a_proj_with_mqa.weight", IN_LAYER(mla.kv_a),
     SCOPE_LAYER,   STORED_LINEAR,     DIM_KV_A,        DIM_HIDDEN,     WEIGHT_ATTENTION},
    {"self_attn.kv_a_layernorm.weight", IN_LAYER(mla.kv_a_norm),
     SCOPE_LAYER,   STORED_VECTOR,     DIM_ONE,         DIM_KV_LORA,    WEIGHT_NORM},
    {"self_attn.kv_b_proj.weight", IN_LAYER(mla.kv_b),
     SCOPE_LAYER,   STORED_LINEAR,     DIM_HEADS_KV,    DIM_KV_LORA,    WEIGHT_ATTENTION},
    {"self_attn.o_proj.weight", IN_LAYER(mla.o),
     SCOPE_LAYER,   STORED_LINEAR,     DIM_HIDDEN,      DIM_HEADS_V,    WEIGHT_ATTENTION},

    {"self_attn.indexer.wq_b.weight", IN_LAYER(mla.index_q_b),
     SCOPE_INDEXER, STORED_LINEAR,     DIM_INDEX_Q,     DIM_Q_LORA,     WEIGHT_INDEXER},
    {"self_attn.indexer.wk.weight", IN_LAYER(mla.index_k),
     SCOPE_INDEXER, STORED_LINEAR,     DIM_INDEX_K,     DIM_HIDDEN,     WEIGHT_INDEXER},
    {"self_attn.indexer.k_norm.weight", IN_LAYER(mla.index_k_weight),
     SCOPE_INDEXER, STORED_VECTOR,     DIM_ONE,         DIM_INDEX_K,    WEIGHT_INDEXER},
    {"self_attn.indexer.k_norm.bias", IN_LAYER(mla.index_k_bias),
     SCOPE_INDEXER, STORED_VECTOR,     DIM_ONE,         DIM_INDEX_K,    WEIGHT_INDEXER},
    {"self_attn.indexer.weights_proj.weight", IN_LAYER(mla.index_head),
     SCOPE_INDEXER, STORED_PLAIN,      DIM_INDEX_HEADS, DIM_HIDDEN,     WEIGHT_INDEXER},

    {"post_attention_layernorm.weight", IN_LAYER(post_norm),
     SCOPE_LAYER,   STORED_VECTOR,     DIM_ONE,         DIM_HIDDEN,     WEIGHT_NORM},
    {"mlp.gate_proj.weight", IN_LAYER(dense.gate),
     SCOPE_DENSE,   STORED_LINEAR,     DIM_DENSE,       DIM_HIDDEN,     WEIGHT_DENSE},
    {"mlp.up_proj.weight", IN_LAYER(dense.up),
     SCOPE_DENSE,   STORED_LINEAR,     DIM_DENSE,       DIM_HIDDEN,     WEIGHT_DENSE},
    {"mlp.down_proj.weight", IN_LAYER(dense.down),
     SCOPE_DENSE,   STORED_LINEAR,     DIM_HIDDEN,      DIM_DENSE,      WEIGHT_DENSE},

    {"mlp.gate.weight", IN_LAYER(moe.router),
     SCOPE_MOE,     STORED_PLAIN,      DIM_EXPERTS,     DIM_HIDDEN,     WEIGHT_ROUTER},
    {"mlp.gate.e_score_correction_bias", IN_LAYER(moe.router_bias),
     SCOPE_MOE,     STORED_VECTOR_F32, DIM_ONE,         DIM_EXPERTS,    WEIGHT_ROUTER},
    {"mlp.shared_experts.gate_proj.weight", IN_LAYER(moe.shared.gate),
     SCOPE_SHARED,  STORED_LINEAR,     DIM_SHARED,      DIM_HIDDEN,     WEIGHT_SHARED},
    {"mlp.shared_experts.up_proj.weight", IN_LAYER(moe.shared.up),
     SCOPE_SHARED,  STORED_LINEAR,     DIM_SHARED,      DIM_HIDDEN,     WEIGHT_SHARED},
    {"mlp.shared_experts.down_proj.weight", IN_LAYER(moe.shared.down),
     SCOPE_SHARED,  STORED_LINEAR,     DIM_HIDDEN,      DIM_SHARED,     WEIGHT_SHARED},
    {"mlp.experts.%u.gate_proj.weight", IN_EXPERT(gate),
     SCOPE_EXPERT,  STORED_LINEAR,     DIM_EXPERT,      DIM_HIDDEN,     WEIGHT_EXPERTS},
    {"mlp.experts.%u.up_proj.weight", IN_EXPERT(up),
     SCOPE_EXPERT,  STORED_LINEAR,     DIM_EXPERT,      DIM_HIDDEN,     WEIGHT_EXPERTS},
    {"mlp.experts.%u.down_proj.weight", IN_EXPERT(down),
     SCOPE_EXPERT,  STORED_LINEAR,     DIM_HIDDEN,      DIM_EXPERT,     WEIGHT_EXPERTS},
};
/* clang-format on */

static uint32_t dim_value(const struct model_config *c, enum weight_dim dim)
{
    switch (dim) {
    case DIM_ONE: return 1;
    case DIM_VOCAB:
    case DIM_HEAD: return c->n_vocab;
    case DIM_HIDDEN: return c->hidden;
    case DIM_TWO_HIDDEN: return 2 * c->hidden;
    case DIM_Q_LORA: return c->q_lora_rank;
    case DIM_KV_LORA: return MODEL_KV_LORA_RANK;
    case DIM_KV_A: return MODEL_KV_LORA_RANK + MODEL_QK_ROPE_DIM;
    case DIM_HEADS_QK: return c->n_head * MODEL_QK_DIM;
    case DIM_HEADS_KV: return c->n_head * (MODEL_QK_NOPE_DIM + MODEL_V_DIM);
    case DIM_HEADS_V: return c->n_head * MODEL_V_DIM;
    case DIM_INDEX_Q: return c->index_n_head * MODEL_INDEX_DIM;
    case DIM_INDEX_K: return MODEL_INDEX_DIM;
    case DIM_INDEX_HEADS: return c->index_n_head;
    case DIM_DENSE: return c->dense_inner;
    case DIM_SHARED: return c->n_shared_expert * c->moe_inner;
    case DIM_EXPERT: return c->moe_inner;
    case DIM_EXPERTS: return c->n_expert;
    }
    ASSERT(!"a dimension");
    return 0;
}

/* What cuts a dimension over ranks. Heads are cut in attention, inner widths in the feed-forward
 * blocks, and so are the inputs of eh_proj: a rank's output of o_proj, down_proj and eh_proj is a
 * partial sum. The vocabulary is cut in the head. All else is whole on every rank: any token may
 * need any row of the embedding, every head reads the latents, all ranks must select the same keys,
 * and router and norms are small. */
static enum parallel_cut dim_cut(enum weight_dim dim)
{
    switch (dim) {
    case DIM_HEAD: return CUT_VOCAB;
    case DIM_HEADS_QK:
    case DIM_HEADS_KV:
    case DIM_HEADS_V: return CUT_HEADS;
    case DIM_DENSE:
    case DIM_TWO_HIDDEN: return CUT_INNER;
    case DIM_SHARED: return CUT_SHARED_INNER;
    case DIM_EXPERT: return CUT_EXPERT_INNER;
    default: return CUT_NONE;
    }
}

/* A rank's part of n things along an axis. */
static uint32_t take_part(struct axis axis, uint32_t n, uint32_t *first)
{
    ASSERT(axis.rank < axis.size && n % axis.size == 0);
    *first = axis.rank * (n / axis.size);
    return n / axis.size;
}

struct weight_part weights_part(const struct weight_need *need, const struct parallel *p)
{
    struct weight_part part;
    part.n_row = take_part(parallel_axis(p, dim_cut(need->rule->row)), need->n_row, &part.row0);
    part.n_col = take_part(parallel_axis(p, dim_cut(need->rule->col)), need->n_col, &part.col0);
    ASSERT(part.n_row >= 1 && part.row0 + part.n_row <= need->n_row);
    ASSERT(part.n_col >= 1 && part.col0 + part.n_col <= need->n_col);
    return part;
}

/* Where there is a draft layer, its stage has the embedding too. */
static bool is_of_stage(const struct weight_need *need, const struct model_config *config,
                        const struct parallel *p)
{
    const struct layer_run run = parallel_layers(p, config->n_layer);
    const bool is_last = parallel_is_last(p);
    if (need->rule->scope != SCOPE_MODEL) {
        if (need->layer >= config->n_layer) return is_last;
        return need->layer >= run.first && need->layer < run.end;
    }
    if (need->kind != WEIGHT_EMBED) return is_last;
    return parallel_is_first(p) || (is_last && config->n_mtp > 0);
}

bool weights_is_held(const struct weight_need *need, const struct model_config *config,
                     const struct parallel *p)
{
    const struct axis axis = parallel_axis(p, CUT_EXPERTS);
    if (!is_of_stage(need, config, p)) return false;
    if (need->rule->scope != SCOPE_EXPERT || axis.size == 1) return true;
    return expert_rank(parallel_place(p, config->n_expert, need->expert)) == axis.rank;
}

/* Whether layer `layer` has the tensors of this scope. */
static bool layer_has(const struct model_config *c, enum weight_scope scope, uint32_t layer)
{
    bool is_moe = model_config_layer_is_moe(c, layer);
    switch (scope) {
    case SCOPE_MODEL: return false;
    case SCOPE_LAYER: return true;
    case SCOPE_INDEXER: return c->has_indexer;
    case SCOPE_DENSE: return !is_moe;
    case SCOPE_MOE:
    case SCOPE_EXPERT: return is_moe;
    case SCOPE_SHARED: return is_moe && c->n_shared_expert > 0;
    case SCOPE_MTP: return layer >= c->n_layer;
    }
    return false;
}

static void name_need(struct weight_need *need)
{
    const struct weight_rule *r = need->rule;
    int n = 0;
    if (r->scope != SCOPE_MODEL) {
        n = snprintf(need->name, sizeof need->name, "model.layers.%u.", need->layer);
    }
    const char *number = r->scope == SCOPE_EXPERT ? strstr(r->name, "%u") : NULL;
    size_t room = sizeof need->name - (size_t)n;
    int m = number ? snprintf(need->name + n, room, "%.*s%u%s", (int)(number - r->name), r->name,
                              need->expert, number + 2)
                   : snprintf(need->name + n, room, "%s", r->name);
    ASSERT(m > 0 && (size_t)m < room);
}

static void fill_need(struct weight_need *need, const struct model_config *c,
                      const struct weight_rule *rule, uint32_t layer, uint32_t expert)
{
    bool is_vector = rule->storage == STORED_VECTOR || rule->storage == STORED_VECTOR_F32;
    need->rule = rule;
    need->layer = layer;
    need->expert = expert;
    need->n_dim = is_vector ? 1 : 2;
    need->n_row = dim_value(c, rule->row);
    need->n_col = dim_value(c, rule->col);
    ASSERT(need->n_row >= 1 && need->n_col >= 1 && (!is_vector || need->n_row == 1));
    need->kind = rule->scope != SCOPE_MODEL && layer >= c->n_layer ? WEIGHT_MTP : rule->kind;
    name_need(need);
}

static fathom_err walk_layer(const struct model_config *c, uint32_t layer, weights_visit *visit,
                             void *arg)
{
    struct weight_need need;
    for (size_t i = 0; i < sizeof rules / sizeof *rules; i++) {
        if (!layer_has(c, rules[i].scope, layer)) continue;
        uint32_t n = rules[i].scope == SCOPE_EXPERT ? c->n_expert : 1;
        for (uint32_t expert = 0; expert < n; expert++) {
            fill_need(&need, c, &rules[i], layer, expert);
            TRY(visit(arg, &need));
        }
    }
    return FATHOM_OK;
}

fathom_err weights_walk(const struct model_config *config, uint32_t n_mtp, weights_visit *visit,
                        void *arg)
{
    struct weight_need need;
    for (size_t i = 0; i < sizeof rules / sizeof *rules; i++) {
        if (rules[i].scope != SCOPE_MODEL) continue;
        fill_need(&need, config, &rules[i], 0, 0);
        TRY(visit(arg, &need));
    }
    for (uint32_t layer = 0; layer < config->n_layer + n_mtp; layer++) {
        TRY(walk_layer(config, layer, visit, arg));
    }
    return FATHOM_OK;
}

/* eh_proj, the one linear weight of SCOPE_MTP, stays wide. */
static bool takes_fp8(const struct weight_rule *rule)
{
    return rule->storage == STORED_LINEAR && rule->scope != SCOPE_MTP;
}

void weights_walk_fp8(struct layer_views *layer, struct ffn_tensors *experts, uint32_t n_expert,
                      weights_view_visit *visit, void *arg)
{
    ASSERT(!layer->moe.experts || experts);
    for (size_t i = 0; i < sizeof rules / sizeof *rules; i++) {
        if (!takes_fp8(&rules[i])) continue;
        bool is_expert = rules[i].scope == SCOPE_EXPERT;
        uint32_t n = is_expert ? layer->moe.experts ? n_expert : 0 : 1;
        for (uint32_t e = 0; e < n; e++) {
            char *base = is_expert ? (char *)&experts[e] : (char *)layer;
            visit(arg, (struct tensor_view *)(void *)(base + rules[i].offset));
        }
    }
}

/* The form that a method's tools give a matrix that they quantize. */
static struct weight_form form_of_method(const struct model_config *config, bool is_expert)
{
    const struct weight_form fp8 = {.code = CODE_E4M3,
                                    .scale_type = DTYPE_F32,
                                    .block_row = TENSOR_SCALE_BLOCK,
                                    .block_col = TENSOR_SCALE_BLOCK};
    struct weight_form f = {.code = CODE_U4,
                            .scale_type = DTYPE_F16,
                            .block_row = 1,
                            .block_col = config->quant_group ? config->quant_group : 128};
    const bool is_block = strcmp(config->quant_name, "blockwise_int8") == 0;
    switch (config->quant) {
    case QUANT_AWQ:
    case QUANT_GPTQ: f.has_zero = true; return f;
    case QUANT_COMPRESSED_TENSORS: f.scale_type = DTYPE_BF16; return f;
    case QUANT_W4AFP8: f.scale_type = DTYPE_F32; return is_expert ? f : fp8;
    case QUANT_MODELOPT:
        f.code = CODE_E2M1;
        f.scale_type = DTYPE_F8_E4M3;
        f.block_col = 16;
        return f;
    case QUANT_INT8:
    case QUANT_ASCEND:
        f = fp8;
        f.code = CODE_I8;
        if (!is_block) {
            f.block_row = 1;
            f.block_col = 0;
        }
        return f;
    default: return fp8;
    }
}

/* Whether a method's tools quantize a matrix; files may say otherwise. */
static bool is_quantized(const struct model_config *config, const struct weight_rule *rule)
{
    if (!takes_fp8(rule)) return false;
    switch (config->quant) {
    case QUANT_NONE:
    case QUANT_OTHER: return false;
    case QUANT_COMPRESSED_TENSORS: return rule->kind == WEIGHT_EXPERTS;
    case QUANT_MODELOPT:
        return rule->kind == WEIGHT_EXPERTS || rule->kind == WEIGHT_SHARED ||
               rule->kind == WEIGHT_DENSE;
    case QUANT_ASCEND: return rule->kind != WEIGHT_INDEXER && rule->row != DIM_HEADS_KV;
    default: return true;
    }
}

struct weight_form weights_expected_form(const struct model_config *config,
                                         const struct weight_need *need)
{
    const struct weight_form f = form_of_method(config, need->rule->kind == WEIGHT_EXPERTS);
    const bool is_cut = f.block_row == 1 && f.block_col && need->n_col % f.block_col != 0;
    if (is_quantized(config, need->rule) && !is_cut) return f;
    bool is_f32 = need->rule->storage == STORED_VECTOR_F32;
    return (struct weight_form){.code = CODE_WIDE, .type = is_f32 ? DTYPE_F32 : config->dtype};
}

bool weights_is_mtp_copy(const struct model_config *config, const char *name)
{
    for (uint32_t i = 0; i < config->n_mtp; i++) {
        char copy[WEIGHT_NAME_BYTES];
        (void)snprintf(copy, sizeof copy, "model.layers.%u.", config->n_layer + i);
        size_t n = strlen(copy);
        if (strncmp(name, copy, n) != 0) continue;
        return strcmp(name + n, "embed_tokens.weight") == 0 ||
               strcmp(name + n, "shared_head.head.weight") == 0;
    }
    return false;
}

/* ---- one tensor ------------------------------------------------------------------------------ */

static fathom_err check_plain(const struct tensor *t, fathom_diag *d)
{
    if (t->dtype == DTYPE_F32 || t->dtype == DTYPE_F16 || t->dtype == DTYPE_BF16) return FATHOM_OK;
    FAIL(d, FATHOM_EMISMATCH, "%s: dtype is %s, needed is BF16, F16 or F32", t->name,
         t->dtype_name);
}

static fathom_err say_missing(const struct model_config *config, const struct weight_need *need,
                              fathom_diag *d)
{
    char shape[32];
    struct weight_form form = weights_expected_form(config, need);
    bool is_quantized = config->quant != QUANT_NONE && config->quant != QUANT_FP8;
    if (need->n_dim == 1) {
        (void)snprintf(shape, sizeof shape, "[%u]", need->n_col);
    } else {
        (void)snprintf(shape, sizeof shape, "[%u, %u]", need->n_row, need->n_col);
    }
    FAIL(d, FATHOM_EMISMATCH, "%s: missing%s; needed is %s %s", need->name,
         is_quantized && need->rule->storage == STORED_LINEAR
             ? ", and no codes (qweight, weight_packed) are in its place"
             : "",
         dtype_name(form.code == CODE_E4M3 ? DTYPE_F8_E4M3 : form.type), shape);
}

fathom_err weights_match(struct weight_found *out, const struct checkpoint *c,
                         const struct weight_need *need, const struct model_config *config,
                         fathom_diag *d)
{
    if (need->rule->storage == STORED_LINEAR) {
        TRY(weight_format_find(out, c, config, need->name, need->n_row, need->n_col, d));
        return out->format ? FATHOM_OK : say_missing(config, need, d);
    }
    *out = (struct weight_found){.part = {[PART_WEIGHT] = checkpoint_find(c, need->name)}};
    const struct tensor *t = out->part[PART_WEIGHT];
    if (!t) return say_missing(config, need, d);
    TRY(check_plain(t, d));
    out->form = (struct weight_form){.code = CODE_WIDE, .type = t->dtype};
    return weight_check_shape(t, need->n_dim, need->n_row, need->n_col, d);
}

fathom_err weights_check_cut(const struct weight_form *form, const struct weight_need *need,
                             const struct weight_part *part, fathom_diag *d)
{
    const uint32_t block = form->block_col ? form->block_col : need->n_col;
    const bool is_packed = form->code == CODE_U4 || form->code == CODE_E2M1;
    if (!is_packed || part->n_col == need->n_col || part->n_col % block == 0) return FATHOM_OK;
    FAIL(d, FATHOM_EINVAL,
         "%s: a rank has %u of its %u inputs, which cuts a group of %u: choose fewer ranks",
         need->name, part->n_col, need->n_col, block);
}
