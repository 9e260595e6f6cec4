/* model_int.h - what forward.c, mla.c, moe.c, mtp.c and model_load.c share */
#ifndef FATHOM_MODEL_MODEL_INT_H
#define FATHOM_MODEL_MODEL_INT_H

#include <stdbool.h>
#include <stdint.h>

#include "backend/backend.h"

struct expert_counts;
struct model_config;
struct model_weights;

/* One decoder layer, prepared. */
struct layer {
    struct weight *input_norm;
    struct weight *post_norm;
    struct weight *mla;
    struct weight *ffn; /* prepare_moe when is_moe, else prepare_ffn */
    bool is_moe;
};

/* The draft layer: a decoder layer behind a front of its own. */
struct mtp {
    struct weight *enorm;
    struct weight *hnorm;
    struct weight *eh_proj;
    struct weight *head_norm;
    struct layer layer;
};

/* Who looks at what experts are chosen, and with what. */
struct expert_watch {
    struct expert_counts *to; /* NULL: nobody */
    uint32_t n_expert;
    uint32_t n_used; /* of a token */
    float *routes;   /* [EXPERT_WATCH_ROWS][2 * n_used] as buffer_read gives them */
    uint32_t *n_row; /* [n_expert] rows of the batch that chose it */
};

enum { EXPERT_WATCH_ROWS = 64 }; /* read at a time */

/* Belongs to the engine's thread. Everything is made in model_create and lives until
 * model_destroy; a step only writes the buffers' contents. */
struct model {
    struct backend *b;
    const struct backend_ops *ops;

    /* of the stage: layers first_layer .. first_layer + n_layer - 1 of the model. Below they are
     * counted from 0, as the cache does; the MTP layer is not included: its cache is layer
     * n_layer */
    uint32_t first_layer;
    uint32_t n_layer;
    bool is_first;       /* it has the embedding */
    bool is_last;        /* it has the head */
    uint32_t index_topk; /* 0: no indexer */
    uint32_t hidden_width;
    bool has_mtp;
    uint32_t i_layer; /* begun last */

    struct weight *embed; /* NULL, as the next two, where it is another stage's */
    struct weight *head;
    struct weight *final_norm;
    struct layer *layers; /* [n_layer] */
    struct mtp mtp;

    struct buffer *residual; /* the stream that blocks add to */
    struct buffer *normed;   /* input of a block */
    struct buffer *delta;    /* output of a block, not yet added */
    struct buffer *hidden;   /* after the last norm: input of the head and of the MTP layer; within
                                layers own rows of normed; one of hiddens */
    struct buffer *hiddens[PARALLEL_STAGES_MAX]; /* of each step under way that gets drafts */
    struct buffer *query;
    struct buffer *select;
    struct buffer *latent;
    struct buffer *route;
    struct buffer *own_route; /* of own rows; NULL where rows have no owners */
    struct buffer *logits;
    uint16_t *place; /* device, [n_expert]: of moe_ep; NULL where no expert is on another rank */
    struct expert_watch watch;
};

/* model_own_rows - rows of the step that this rank owns; 0: its rows have no owners. Steps of
 * answers alone have none: they are replayed with rows of padding. Nor have those of several
 * stages, between which one rank hands on all rows.
 * model_block_input - where a block's input is: all rows, or own rows alone */
static inline uint32_t model_own_rows(const struct model *m, const struct batch *batch)
{
    const bool has_stages = !m->is_first || !m->is_last;
    if (!m->ops->own_rows || has_stages || batch->n_answer_token == batch->n_token) return 0;
    return m->ops->own_rows(m->b, batch->n_token);
}

static inline struct buffer *model_block_input(struct model *m, const struct batch *batch)
{
    return model_own_rows(m, batch) > 0 ? m->hidden : m->normed;
}

/* model_create_empty - a model without weights, of one rank; model_load_layer, model_drop_layer - a
 * layer of it; errors as of model_create */
fathom_err model_create_empty(struct model **out, struct backend *b,
                              const struct model_config *config, fathom_diag *d);
fathom_err model_load_layer(struct model *m, const struct model_weights *w, uint32_t i_layer,
                            fathom_diag *d);
void model_drop_layer(struct model *m, uint32_t i_layer);

/* model_attention - delta = attention(normed) of one layer; writes its cache rows */
fathom_err model_attention(struct model *m, const struct layer *layer, uint32_t i_layer,
                           const struct batch *batch, const struct kv_cache *kv);

/* model_feed_forward - delta = experts(normed), or the dense block of a layer without them */
fathom_err model_feed_forward(struct model *m, const struct layer *layer,
                              const struct batch *batch);

/* model_join_experts - feed-forward block of a step in which this rank has no rows: its experts
 * serve the other ranks' */
fathom_err model_join_experts(struct model *m, const struct layer *layer, uint32_t i_layer,
                              const struct batch *batch);

/* Where the residual stream is before a layer: whole; or the delta of the block before is still to
 * be added to it; or that delta is all there is of it. */
enum stream { STREAM_WHOLE, STREAM_PENDING, STREAM_BEGINS };

/* model_layer - one decoder layer; on return a delta is pending */
fathom_err model_layer(struct model *m, const struct layer *layer, uint32_t i_layer,
                       enum stream stream, const struct batch *batch, const struct kv_cache *kv);

/* model_head - residual += delta; hidden = norm of it; logits of batch->logit_rows
 *
 *   i_layer  the layer before */
fathom_err model_head(struct model *m, const struct weight *norm, uint32_t i_layer,
                      const struct batch *batch);

#endif
