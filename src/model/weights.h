/* weights.h - the binding table: from tensor names to the views that a backend prepares
 *
 * One table (weights_table.c) says for every tensor its name, shape, types, what it is for, and
 * how it is cut over ranks. Checking, binding, measuring and listing all walk that table.
 */
#ifndef FATHOM_MODEL_WEIGHTS_H
#define FATHOM_MODEL_WEIGHTS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "backend/op_attn.h"
#include "backend/op_dense.h"
#include "backend/op_moe.h"
#include "backend/parallel.h"
#include "base/tensor_view.h"
#include "fathom/err.h"

struct checkpoint;
struct model_config;
struct owned_block;
struct tensor;

/* This rank's part of one layer. What a layer does not have is all zero (n_row 0), and so is what
 * another stage has. */
struct layer_views {
    struct tensor_view input_norm; /* [D] */
    struct tensor_view post_norm;  /* [D] after attention, before the feed-forward block */
    struct mla_tensors mla;        /* projections, latent norms, indexer */
    struct ffn_tensors dense;      /* layers without experts */
    struct moe_tensors moe;        /* layers with experts; moe.experts is NULL elsewhere */
    /* MTP layers only */
    struct tensor_view enorm;     /* [D] of the next token's embedding */
    struct tensor_view hnorm;     /* [D] of the hidden state */
    struct tensor_view eh_proj;   /* [D][2D], embedding half first */
    struct tensor_view head_norm; /* [D] before the shared head */
};

/* All views point into the checkpoint, which outlives them, or into memory owned here. */
struct model_weights {
    struct tensor_view embed;      /* [V][D] */
    struct tensor_view head;       /* [V][D] */
    struct tensor_view final_norm; /* [D] */
    struct layer_views *layers;    /* [n_layer + n_mtp]: the MTP layers last */
    uint32_t n_layer;
    uint32_t n_mtp;              /* MTP layers that are there: config's, or fewer */
    struct parallel parallel;    /* whose part they are */
    struct ffn_tensors *experts; /* what layers[].moe.experts point into */
    struct owned_block *owned;   /* copies of scales that lie unaligned in the file, and of router
                                    biases that are not f32 there */
    uint64_t owned_bytes;
};

/* weights_bind - check the whole checkpoint against the config and cut out one rank's views
 *
 *   w      written; released by weights_release, also after a failure
 *   p      the rank
 * Edge    a checkpoint without the MTP layers that the config announces binds with a smaller
 *         n_mtp. The MTP layer's own copies of embedding and head are ignored.
 *         Linear weights may be any of weight_formats.h, tensor by tensor.
 * Errors  EMISMATCH     a tensor is missing or has another shape or type: names the first one, what
 *                       it is and what is needed, and how many more there are
 *         EUNSUPPORTED  a quantization method that is not read
 *         EINVAL        heads, inner widths or a vocabulary that the ranks do not divide
 *         ENOMEM */
fathom_err weights_bind(struct model_weights *w, const struct checkpoint *c,
                        const struct model_config *config, const struct parallel *p,
                        fathom_diag *d);

/* weights_generate - views that ask the backend for random values instead: a model of the config's
 * shape without a checkpoint, stored as the config says. Equal seeds give equal weights for the
 * same rank. Errors EUNSUPPORTED, EINVAL and ENOMEM as weights_bind. */
fathom_err weights_generate(struct model_weights *w, const struct model_config *config,
                            uint64_t seed, const struct parallel *p, fathom_diag *d);

void weights_release(struct model_weights *w); /* accepts a zeroed struct */

/* ---- reports -------------------------------------------------------------------------------- */

/* weights_count_mtp - how many of config's MTP layers the checkpoint holds (any tensor of it) */
uint32_t weights_count_mtp(const struct checkpoint *c, const struct model_config *config);

/* weights_check - compare every tensor that the config needs with the checkpoint
 *
 *   report  called with one message for each fault, in the order of the model; may be NULL
 * Returns the number of faults. */
typedef void weights_report(void *arg, const char *message);
size_t weights_check(const struct checkpoint *c, const struct model_config *config,
                     weights_report *report, void *arg);

/* weights_each_unused - call visit for every tensor that the model does not read, by name
 *
 *   is_copy  it is the MTP layer's copy of embedding or head
 * Errors  ENOMEM. */
typedef void weights_unused(void *arg, const struct tensor *t, bool is_copy);
fathom_err weights_each_unused(const struct checkpoint *c, const struct model_config *config,
                               weights_unused *visit, void *arg);

/* What a tensor is for, in reports. Every tensor of an MTP layer counts as WEIGHT_MTP. */
enum weight_kind {
    WEIGHT_EMBED,
    WEIGHT_HEAD,
    WEIGHT_ATTENTION,
    WEIGHT_INDEXER,
    WEIGHT_DENSE,
    WEIGHT_SHARED,
    WEIGHT_EXPERTS,
    WEIGHT_ROUTER,
    WEIGHT_NORM,
    WEIGHT_MTP,
    WEIGHT_KIND_COUNT,
};

/* weight_kind_name - "routed experts" */
const char *weight_kind_name(enum weight_kind kind);

/* A linear weight of the whole model: one that checkpoints quantize. The MTP layer's eh_proj, which
 * none does, is not among them. */
struct weight_linear {
    const char *name; /* "model.layers.3.mlp.experts.0.up_proj.weight" */
    uint32_t layer;
    uint32_t expert;                /* of a routed one */
    enum weight_kind kind;          /* WEIGHT_MTP never: what it is for within its layer */
    const char *format;             /* "awq" */
    struct weight_form form;        /* as it is stored */
    const struct tensor *code;      /* the tensor of its codes, or of itself */
    const struct tensor *scale;     /* NULL: none */
    const struct tensor_view *view; /* all of it */
};

/* weights_each_linear - in the order of the model; stops at the first error of visit
 *
 *   w  bound to c for one rank
 * Errors  those of visit. */
typedef fathom_err weights_linear_visit(void *arg, const struct weight_linear *linear);
fathom_err weights_each_linear(struct model_weights *w, const struct checkpoint *c,
                               const struct model_config *config, weights_linear_visit *visit,
                               void *arg);

struct weight_sizes {
    struct {
        uint64_t bytes;       /* with scales */
        uint64_t cpu_bytes;   /* the same as the cpu backend keeps them */
        uint64_t n_parameter; /* without */
        uint64_t n_tensor;    /* files' tensors: weights and scales */
    } kind[WEIGHT_KIND_COUNT], total;
};

/* weights_measure - sizes of what one rank holds
 *
 *   c  stored types are the checkpoint's; NULL (or where a tensor is missing): those that the
 *      config lets expect, with all its MTP layers
 * Needs   ranks that weights_check_parallel accepts. */
void weights_measure(struct weight_sizes *out, const struct model_config *config,
                     const struct checkpoint *c, const struct parallel *p);

/* Linear weights of one kind that are coded alike. */
struct weight_form_count {
    enum weight_kind kind;
    const char *format; /* "awq" */
    struct weight_form form;
    uint64_t n_matrix;
    uint64_t bytes; /* codes, scales and zeros */
};
enum { WEIGHT_FORMS_MAX = 48 };

/* weights_count_forms - in the order in which they first occur; what is past the last place is left
 * out. Returns their number. */
size_t weights_count_forms(struct weight_form_count out[WEIGHT_FORMS_MAX],
                           const struct checkpoint *c, const struct model_config *config);

/* Who is to compute with a checkpoint. */
struct weight_use {
    const char *backend_name;                   /* for messages */
    bool (*takes)(const struct weight_form *f); /* of the backend; NULL: all forms */
    bool stacks_experts;      /* gate and up of a layer's experts must be of one form, and down */
    bool fp8_inputs;          /* ACT_FP8 */
    bool no_int8_groups;      /* ACT_INT8 is there for int8 weights, not for those of 4 bits */
    const char *quantization; /* a method that the user has named, or NULL */
    struct parallel parallel;
};

/* weights_check_served - whether the matrices can be computed with, before any is loaded
 *
 *   c  NULL: they are made up, as the config says
 * Errors  EUNSUPPORTED  a form that the backend lacks, or two in a layer's experts where it stacks
 *                       them: names the tensor, the form, what to do
 *         EINVAL        another method than `quantization`; ranks that cut a group of inputs
 *         What is missing or unsound is left to weights_bind. */
fathom_err weights_check_served(const struct checkpoint *c, const struct model_config *config,
                                const struct weight_use *use, fathom_diag *d);

/* weights_check_parallel - EINVAL, naming key and value, unless the ranks can share the model */
fathom_err weights_check_parallel(const struct model_config *config, const struct parallel *p,
                                  fathom_diag *d);

#endif
