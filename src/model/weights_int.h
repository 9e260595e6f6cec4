/* weights_int.h - the binding table as its own files see it */
#ifndef FATHOM_MODEL_WEIGHTS_INT_H
#define FATHOM_MODEL_WEIGHTS_INT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/dtype.h"
#include "fathom/err.h"
#include "model/weight_formats.h"
#include "model/weights.h"

/* Where a tensor occurs. */
enum weight_scope {
    SCOPE_MODEL,   /* once */
    SCOPE_LAYER,   /* in every layer */
    SCOPE_INDEXER, /* in every layer of a model with an indexer */
    SCOPE_DENSE,   /* in layers without experts */
    SCOPE_MOE,     /* in layers with experts */
    SCOPE_SHARED,  /* there too, if the model has shared experts */
    SCOPE_EXPERT,  /* once per routed expert of such a layer */
    SCOPE_MTP,     /* in MTP layers */
};

/* How it may be stored. */
enum weight_storage {
    STORED_LINEAR,     /* any of weight_formats.h */
    STORED_PLAIN,      /* BF16, F16 or F32 */
    STORED_VECTOR,     /* the same, one dimension */
    STORED_VECTOR_F32, /* the same; handed over as F32 */
};

/* A dimension, as a value of the config. It is cut over ranks or whole (weights_table.c). */
enum weight_dim {
    DIM_ONE,
    DIM_VOCAB, /* rows of the embedding */
    DIM_HEAD,  /* rows of the head */
    DIM_HIDDEN,
    DIM_TWO_HIDDEN,
    DIM_Q_LORA,
    DIM_KV_LORA,
    DIM_KV_A,     /* latent and rotary key */
    DIM_HEADS_QK, /* heads x 192 */
    DIM_HEADS_KV, /* heads x (128 key, 128 value) */
    DIM_HEADS_V,  /* heads x 128 */
    DIM_INDEX_Q,  /* index heads x 128 */
    DIM_INDEX_K,
    DIM_INDEX_HEADS,
    DIM_DENSE,
    DIM_SHARED, /* all shared experts side by side */
    DIM_EXPERT,
    DIM_EXPERTS,
};

/* A row of the binding table. A matrix is [row][col], a vector [col]. */
struct weight_rule {
    const char *name; /* after "model.layers.N."; "%u" is the expert */
    size_t offset;    /* of the view in model_weights, layer_views, or an expert's ffn_tensors */
    enum weight_scope scope;
    enum weight_storage storage;
    enum weight_dim row;
    enum weight_dim col;
    enum weight_kind kind;
};

enum { WEIGHT_NAME_BYTES = 128 };

/* One tensor that the model needs: a rule applied to a layer and an expert. */
struct weight_need {
    const struct weight_rule *rule;
    char name[WEIGHT_NAME_BYTES];
    uint32_t layer;
    uint32_t expert;
    uint32_t n_dim;
    uint32_t n_row; /* of the whole tensor; 1 for a vector */
    uint32_t n_col;
    enum weight_kind kind;
};

/* A rank's part of a need. */
struct weight_part {
    uint32_t row0, n_row, col0, n_col;
};

/* weights_part - the rows and columns of a need that are a rank's */
struct weight_part weights_part(const struct weight_need *need, const struct parallel *p);

/* weights_is_held - whether a rank has anything of a need: of a whole expert one has, of a layer
 * one stage */
bool weights_is_held(const struct weight_need *need, const struct model_config *config,
                     const struct parallel *p);

/* weights_walk - visit every tensor of the model with n_mtp MTP layers, layer by layer; stops at
 * the first error of visit and returns it */
typedef fathom_err weights_visit(void *arg, const struct weight_need *need);
fathom_err weights_walk(const struct model_config *config, uint32_t n_mtp, weights_visit *visit,
                        void *arg);

/* weights_walk_fp8 - visit the views of a layer that an FP8 checkpoint stores as FP8 blocks: the
 * linear weights but for the MTP layer's eh_proj. What the layer does not have is visited as it is,
 * with n_row 0.
 *
 *   experts  [n_expert] of the rank, visited in place of layer->moe.experts, if there are any */
typedef void weights_view_visit(void *arg, struct tensor_view *view);
void weights_walk_fp8(struct layer_views *layer, struct ffn_tensors *experts, uint32_t n_expert,
                      weights_view_visit *visit, void *arg);

/* weights_match - find a need in the checkpoint and check types and shapes
 * Errors  EMISMATCH with the message of the fault; *out then holds what was found so far. */
fathom_err weights_match(struct weight_found *out, const struct checkpoint *c,
                         const struct weight_need *need, const struct model_config *config,
                         fathom_diag *d);

/* weights_expected_form - how a checkpoint of the config's method stores the need, as far as a
 * config lets expect: made-up weights are so. Of compressed-tensors that is int4 of the routed
 * experts, of modelopt NVFP4 of all feed-forward blocks. */
struct weight_form weights_expected_form(const struct model_config *config,
                                         const struct weight_need *need);

/* weights_view_of - the view that a need fills; of an expert that the rank of *w holds */
struct tensor_view *weights_view_of(struct model_weights *w, const struct weight_need *need,
                                    const struct model_config *config);

/* weights_check_names - EUNSUPPORTED for tensors that change what the model computes: biases of its
 * norms, rotations */
fathom_err weights_check_names(const struct checkpoint *c, fathom_diag *d);

/* weights_check_cut - EINVAL, naming the tensor, for a part that begins or ends inside a group of
 * packed inputs */
fathom_err weights_check_cut(const struct weight_form *form, const struct weight_need *need,
                             const struct weight_part *part, fathom_diag *d);

/* weights_is_mtp_copy - whether a name is an MTP layer's copy of embedding or head */
bool weights_is_mtp_copy(const struct model_config *config, const char *name);

#endif
