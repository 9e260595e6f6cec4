/* config.h - config.json as data: DeepSeek-V3, R1, V3.1, V3.2, Kimi K2
 *
 * Every number of the model comes from the file. What the operators fix (the widths in the enum
 * below, sigmoid routing with a bias, SiLU, no biases) is checked: a file that says otherwise is
 * refused with the key, the value seen and the value needed.
 */
#ifndef FATHOM_MODEL_CONFIG_H
#define FATHOM_MODEL_CONFIG_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/dtype.h"
#include "base/tensor_view.h"
#include "fathom/err.h"
#include "kv/layout.h"

struct checkpoint;

/* Widths that all models of the family share and the operators rely on. */
enum {
    MODEL_KV_LORA_RANK = KV_LATENT,
    MODEL_QK_NOPE_DIM = 128,
    MODEL_QK_ROPE_DIM = KV_ROPE,
    MODEL_QK_DIM = MODEL_QK_NOPE_DIM + MODEL_QK_ROPE_DIM,
    MODEL_V_DIM = 128,
    MODEL_INDEX_DIM = KV_INDEX_DIM,
    MODEL_EOS_MAX = 8,
};

/* How a model trained on short contexts reads long ones. A zeroed struct is plain RoPE. */
struct rope_yarn {
    bool on;
    double factor;                /* stretch of the context, >= 1 */
    double original_max_position; /* trained context, tokens */
    double beta_fast;             /* turns over the trained context above which w_i is kept */
    double beta_slow;             /* and below which it is divided by factor */
    double mscale;
    double mscale_all_dim;
};

/* How the linear layers are stored, by quantization_config.quant_method. What each of them is, its
 * tensors say (weight_formats.h). */
enum quant_method {
    QUANT_NONE,
    QUANT_FP8,                /* e4m3 with one f32 scale per 128 x 128 block */
    QUANT_AWQ,                /* 4 bits in groups of inputs */
    QUANT_GPTQ,               /* the same, packed along inputs */
    QUANT_COMPRESSED_TENSORS, /* llm-compressor's container, int4, int8, fp8 or fp4 */
    QUANT_INT8,               /* w8a8: per channel or per block */
    QUANT_W4AFP8,             /* 4-bit experts, all else FP8 blocks */
    QUANT_MODELOPT,           /* NVFP4 or FP8 */
    QUANT_ASCEND,             /* ModelSlim's w8a8 */
    QUANT_OTHER,              /* a method that is not read: see quant_name */
};

struct model_config {
    char model_type[32];   /* "deepseek_v32" */
    char architecture[48]; /* "DeepseekV32ForCausalLM" */

    uint32_t n_vocab;
    uint32_t hidden;
    uint32_t n_layer; /* the MTP layers not included */
    uint32_t n_mtp;   /* MTP layers that the file announces */
    uint32_t max_position;
    float norm_eps;
    enum dtype dtype; /* BF16, F16 or F32: what activations are meant to be */

    /* attention */
    uint32_t n_head;
    uint32_t q_lora_rank;
    double rope_theta;
    struct rope_yarn yarn;
    bool rope_interleaved;       /* pairs (2i, 2i+1); else halves (i, i+32) */
    bool index_rope_interleaved; /* the same for the indexer */
    float softmax_scale;         /* 1/sqrt(192), times YaRN's m squared */

    /* indexer of sparse attention */
    bool has_indexer;
    uint32_t index_n_head;
    uint32_t index_topk;

    /* feed-forward */
    uint32_t dense_inner;
    uint32_t n_dense_layer; /* the first layers, without experts */
    uint32_t moe_layer_freq;
    uint32_t moe_inner;       /* one expert */
    uint32_t n_expert;        /* routed */
    uint32_t n_shared_expert; /* their widths add up; 0: none */
    uint32_t n_expert_used;
    uint32_t n_group;
    uint32_t topk_group;
    float routed_scale;
    bool norm_topk;

    /* tokens */
    int32_t bos_id; /* -1: none */
    int32_t eos_ids[MODEL_EOS_MAX];
    uint32_t n_eos;

    /* storage */
    enum quant_method quant;
    char quant_name[48];  /* quant_method as the file spells it; "" without one */
    bool scales_are_pow2; /* scale_fmt is ue8m0 */
    uint32_t quant_group; /* inputs that share a scale, as the file says; 0: it does not */
    bool quant_int8;      /* weights are int8, and inputs are meant to be */
    bool gptq_v2;         /* zeros are stored as they are, not less one */
    bool quant_symmetric; /* all weights are said to be symmetric: no zeros are stored */
};

/* Defaults for requests, from generation_config.json. Negative: not given. */
struct generation_config {
    float temperature;
    float top_p;
    int32_t top_k;
    bool do_sample; /* true when not given */
    int32_t bos_id;
    int32_t eos_ids[MODEL_EOS_MAX];
    uint32_t n_eos; /* 0: not given */
};

/* model_config_parse - read and check the text of a config.json
 *
 *   text  n bytes of JSON
 * Errors  EFORMAT       not JSON; a key missing, of the wrong type or out of range
 *         EUNSUPPORTED  an architecture or a variant that fathom does not serve: names the key, the
 *                       value seen and the value needed
 *         A quantization method is not judged here: weights_bind does. */
fathom_err model_config_parse(struct model_config *out, const char *text, size_t n, fathom_diag *d);

/* model_config_load - the same for a checkpoint's config.json; ENOTFOUND when it has none */
fathom_err model_config_load(struct model_config *out, struct checkpoint *c, fathom_diag *d);

/* generation_config_parse, generation_config_load - n_vocab bounds the token ids. A checkpoint
 * without the file gives a struct in which nothing is given. Errors as above. */
fathom_err generation_config_parse(struct generation_config *out, const char *text, size_t n,
                                   uint32_t n_vocab, fathom_diag *d);
fathom_err generation_config_load(struct generation_config *out, struct checkpoint *c,
                                  uint32_t n_vocab, fathom_diag *d);

/* model_config_layer_is_moe - whether layer `layer` (an MTP layer is n_layer + i) has experts */
bool model_config_layer_is_moe(const struct model_config *c, uint32_t layer);

/* model_config_check_quant - EUNSUPPORTED, naming the method, unless the storage is one that the
 * loader reads; settings_resolve asks, so nothing is planned or made up for another */
fathom_err model_config_check_quant(const struct model_config *c, fathom_diag *d);

/* model_config_set_quant - the config of the same model, stored by a method that
 * model_config_check_quant has accepted: "awq_marlin" */
void model_config_set_quant(struct model_config *c, const char *name);

/* quant_method_of - by the name that config.json and --quantization use: "awq_marlin" */
enum quant_method quant_method_of(const char *name);

/* ---- frequencies of the rotary embedding, plain or stretched by YaRN (rope.c) ---------------- */

/* rope_frequencies - radians per position of each rotated pair
 *
 *   freq   f32 [dim / 2], written: angle(position, i) = position * freq[i]
 *   dim    rotated elements, even, >= 2
 *   theta  base, > 1
 * Numerics  computed in double, rounded once.
 * Source    YaRN (arXiv 2309.00071), section 3.2, "NTK-by-parts". */
void rope_frequencies(float *freq, uint32_t dim, double theta, const struct rope_yarn *yarn);

/* rope_mscale - YaRN's correction of attention: 0.1 * scale * ln(factor) + 1, or 1 when off.
 * With mscale_all_dim it multiplies the softmax scale twice (once for q, once for k). */
double rope_mscale(const struct rope_yarn *yarn, double scale);

#endif
