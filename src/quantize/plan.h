/* plan.h - what a conversion makes of each tensor, before anything is written
 *
 * Each shard of the source becomes one shard of the same name. Its tensors are those of the source
 * in their order; a matrix that is quantized has in place of its weight the tensors that stand for
 * it, and its old scales go. All sizes follow from shapes, so headers are written first.
 */
#ifndef FATHOM_QUANTIZE_PLAN_H
#define FATHOM_QUANTIZE_PLAN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/buf.h"
#include "model/config.h"
#include "model/weights.h"

struct checkpoint;

enum quant_method_name {
    METHOD_RTN,   /* the largest magnitude of a group decides its scale */
    METHOD_MSE,   /* of 32 scales that of least squared error */
    METHOD_SCALE, /* the same weighted by what inputs are, and inputs of down_proj scaled */
    METHOD_GPTQ,  /* weighted so, and the rounding of an input made good by the others */
};

/* What matrices are to become. */
struct quant_scheme {
    const char *name;      /* "w4a16" */
    enum weight_code code; /* CODE_U4, CODE_I8, CODE_E4M3 */
    uint32_t group;        /* CODE_U4: inputs that share a scale */
    bool asymmetric;       /* CODE_U4: zeros are stored */
    bool is_block;         /* CODE_E4M3: scales of 128 x 128, else of rows */
    enum quant_method_name method;
};

/* quant_scheme_of - by the names of --scheme and --method; false: there is none. FP8 is of
 * METHOD_RTN and METHOD_MSE, which are the same there. */
bool quant_scheme_of(struct quant_scheme *out, const char *scheme, uint32_t group,
                     const char *method);

/* Parts of the model, as bits. */
enum quant_target {
    TARGET_EXPERTS = 1 << 0,
    TARGET_SHARED = 1 << 1,
    TARGET_DENSE = 1 << 2,
    TARGET_ATTENTION = 1 << 3, /* but kv_b_proj */
    TARGET_KV_B = 1 << 4,
    TARGET_INDEXER = 1 << 5,
    TARGET_LINEAR = (1 << 6) - 1,
};

/* quant_method_calibrates - whether a method asks what inputs are */
static inline bool quant_method_calibrates(enum quant_method_name method)
{
    return method == METHOD_SCALE || method == METHOD_GPTQ;
}

/* quant_method_text - "gptq" */
const char *quant_method_text(enum quant_method_name method);

/* quant_target_of - by its name; 0: there is none. quant_target_name - of one bit */
unsigned quant_target_of(const char *name);
const char *quant_target_name(unsigned target);

/* What becomes of a source tensor. */
enum plan_action {
    PLAN_COPY,     /* byte for byte, maybe under another name */
    PLAN_QUANTIZE, /* a matrix: codes, scales, zeros, shape */
    PLAN_DROP,     /* old scales of such a matrix */
};

/* A linear weight of the source. */
struct plan_matrix {
    char *name; /* without ".weight" */
    enum quant_target target;
    bool is_quantized;
    bool is_draft; /* of an MTP layer */
    uint32_t layer, expert;
    struct weight_form form;
    const struct tensor *code, *scale;
    const struct tensor_view *view;
};

struct plan_item {
    enum plan_action action;
    const struct tensor *source;
    bool is_linear;  /* a linear weight of the model, or its scales */
    size_t i_matrix; /* PLAN_QUANTIZE */
    char *name;      /* of what is written; of a matrix without ".weight" */
    uint64_t offset; /* in the data of the new shard */
    uint64_t n_bytes;
};

struct plan_shard {
    const char *name;
    struct plan_item *items; /* [n_item] by the place in the source */
    size_t n_item;
    struct buf header;     /* the new file's first bytes */
    uint64_t data_bytes;   /* after it */
    uint64_t source_bytes; /* of the tensors that are read */
};

struct plan {
    struct quant_scheme scheme;
    const struct model_config *config; /* borrowed */
    struct plan_matrix *matrices;
    size_t n_matrix, matrix_cap;
    size_t n_quantized;
    struct plan_shard *shards; /* [n_shard] as the checkpoint numbers them */
    size_t n_shard;
    uint64_t out_bytes;
    uint64_t matrix_bytes; /* of the largest matrix's new tensors */
    uint32_t max_col;      /* of a matrix that is quantized */
    bool keeps_fp8;        /* matrices that are left are FP8 blocks */
};

/* plan_make - check that the source can be converted, and lay all files out
 *
 *   w  bound to c for one rank; outlives the plan, as c does
 * Errors  EUNSUPPORTED  the source is quantized to other forms than FP8; nothing is a target
 *         EINVAL        a group that does not divide a matrix's inputs
 *         ENOMEM */
fathom_err plan_make(struct plan *out, struct model_weights *w, const struct checkpoint *c,
                     const struct model_config *config, const struct quant_scheme *scheme,
                     unsigned targets, fathom_diag *d);
void plan_free(struct plan *p); /* accepts a zeroed one */

/* plan_layer_used - experts of a token in a layer; 0: the layer has none */
uint32_t plan_layer_used(const struct plan *p, uint32_t layer);

/* The tensors of a matrix that is quantized, one after the other from item.offset on. */
struct plan_parts {
    uint64_t codes, scales, zeros, shape; /* bytes of each; 0: there is none */
};
struct plan_parts plan_parts_of(const struct quant_scheme *s, uint32_t n_row, uint32_t n_col);

#endif
