/* forward.h - the model over a backend: DeepSeek-V3.2's layers as a list of operator calls */
#ifndef FATHOM_MODEL_FORWARD_H
#define FATHOM_MODEL_FORWARD_H

#include <stdbool.h>
#include <stdint.h>

#include "backend/backend.h"
#include "fathom/err.h"
#include "model/quantize.h"

struct host_net;
struct model_config;
struct model_weights;
struct model;

/* Types of the steps that a model will be given, and their sizes. */
struct model_limits {
    enum act_type act;
    enum kv_type kv_type;
    uint32_t max_token;
    uint32_t max_request;
    uint32_t max_context;
    uint32_t max_logit_row;
    bool with_mtp; /* load the MTP layer and give it room in the pages, if the checkpoint has it */
    uint32_t n_flight; /* steps whose hidden states are kept for their drafts; 0: one */
};

/* Who computes: one rank of the model, on a device. */
struct model_place {
    struct parallel parallel;
    struct host_net *net; /* the other processes with ranks of this stage, or NULL */
    uint32_t n_host;      /* over which these are spread; 0: one */
    int device;           /* GPU only: index */
    uint32_t n_thread;    /* CPU only; 0: all processors */
    uint32_t i_local;     /* CPU only, as backend_config has them, with n_local */
    uint32_t n_local;
    uint32_t patience_ms; /* for another rank; 0: RANK_PATIENCE_MS */
};

/* How weights are loaded. Zeros: as they are stored, and nobody is told. */
struct model_loading {
    bool quantize_fp8;   /* linear weights that are not FP8 become FP8 blocks while they load, */
    enum head_form head; /* and the head this, */
    uint32_t n_thread;   /* by so many threads; 0: one for each processor */
    /* called after each layer that is loaded, with the bytes of weights so far; NULL: not */
    void (*on_load)(void *arg, uint64_t done_bytes, uint64_t total_bytes);
    void *on_load_arg;
    uint64_t load_bytes; /* what is expected: total_bytes */
    /* called after each layer, whose views are not read again; NULL: not */
    void (*let_go)(void *arg);
    void *let_go_arg;
};

/* model_backend_config - what a backend must know to run a rank of this model within limits
 *
 * Needs   a place that weights_check_parallel accepts. */
void model_backend_config(struct backend_config *out, const struct model_config *config,
                          const struct model_limits *limits, const struct model_place *place);

/* model_create - prepare every weight on the backend, and the buffers of a step
 *
 *   b        created from model_backend_config; borrowed, outlives the model
 *   weights  views of the checkpoint, needed only during the call; of the backend's rank
 * Errors  ENOMEM, EUNSUPPORTED (a weight type), EDEVICE; d names the layer and tensor. */
fathom_err model_create(struct model **out, struct backend *b, const struct model_config *config,
                        const struct model_weights *weights, const struct model_limits *limits,
                        const struct model_loading *loading, fathom_diag *d);
void model_destroy(struct model *m); /* accepts NULL */

/* model_forward - one step: embed, layers, final norm, head; of a stage, what it has of them
 *
 * Writes the cache rows of every token and the logits of batch->logit_rows. A stage but the first
 * goes on from the residual stream that model_put_stream has written; one but the last leaves it
 * for model_get_stream.
 * Needs   batch within the limits; kv->layout equal to the backend's. Ranks with requests of their
 *         own make the same calls of this and model_mtp.
 * Edge    such a rank may have no rows: n_token 0, all else of the batch is not read.
 * Errors  EDEVICE. Enqueues only. */
fathom_err model_forward(struct model *m, const struct batch *batch, const struct kv_cache *kv);

/* model_put_stream, model_get_stream - the residual stream of n_token tokens between stages: f32
 * [n_token][hidden], as it lies in the buffer. Both wait for the queue. */
fathom_err model_put_stream(struct model *m, const float *rows, uint32_t n_token);
fathom_err model_get_stream(struct model *m, float *rows, uint32_t n_token);

/* model_use_hidden - model_forward leaves its hidden states in place i from now on, and model_mtp
 * goes on from there. Needs i below limits.n_flight, or 0. */
void model_use_hidden(struct model *m, uint32_t i);

/* model_mtp - the draft layer over the same tokens, or over tokens that go on from some of them
 *
 * Reads the hidden states that the last model_forward (or model_mtp) left, and batch->next_ids;
 * writes the MTP layer's cache rows and the draft logits of batch->logit_rows over the logits.
 * Needs   model_has_mtp; the same batch as before, or hidden_rows that name rows of it. */
fathom_err model_mtp(struct model *m, const struct batch *batch, const struct kv_cache *kv);

/* What experts tokens chose, added up over layers and steps. */
struct expert_counts {
    uint64_t n_choice;  /* layers that chose */
    uint64_t n_hit;     /* experts that any token chose */
    double uniform;     /* the same if tokens chose at random, expected */
    uint64_t n_token;   /* of the batch, for each layer */
    uint64_t n_busiest; /* tokens of the expert that most chose */
};

/* model_watch_experts - from now on each layer of experts of a batch without prompts adds to *to;
 * NULL: no more. It waits for the queue to look, so nothing may be recorded meanwhile. */
void model_watch_experts(struct model *m, struct expert_counts *to);

/* model_has_mtp - the draft layer was asked for, is in the checkpoint, and is this stage's */
bool model_has_mtp(const struct model *m);

/* model_layer_begun - the layer of the model that was begun last; for messages */
uint32_t model_layer_begun(const struct model *m);

/* model_logits - LOGITS of the last call, row i for batch->logit_rows[i] */
struct buffer *model_logits(struct model *m);

/* What the operators of a step run on when they are called one by one. All of it is the model's. */
struct model_operands {
    const struct weight *embed;
    const struct weight *head;
    const struct weight *input_norm; /* of one layer, as the two below */
    const struct weight *mla;
    const struct weight *ffn; /* prepare_moe of a layer with experts, else prepare_ffn */
    struct buffer *residual;
    struct buffer *normed;
    struct buffer *delta;
    struct buffer *hidden;
    struct buffer *query;
    struct buffer *select;
    struct buffer *latent;
    struct buffer *route;
    struct buffer *logits;
};

/* model_operands - weights of layer i_layer and of the model's ends, and the buffers of a step;
 * valid until model_destroy */
void model_operands(struct model_operands *out, const struct model *m, uint32_t i_layer);

/* model_weights_bytes - device memory of all prepared weights, as packed */
uint64_t model_weights_bytes(const struct model *m);

#endif
