/* forward.c - the whole model: read this file first
 *
 *   x = embed(ids)
 *   for each layer:
 *       x += attention( rmsnorm(x) )          mla.c
 *       x += feed_forward( rmsnorm(x) )       moe.c
 *   logits = head( rmsnorm(x) )
 *
 * A block's output is added in the norm that follows it (reduce_norm), so that the sum is formed
 * once. On several ranks a block's output is a partial sum, and the ranks' parts come together in
 * the norm that adds it. The draft layer (mtp.c) is one more layer with a front of its own.
 *
 * Rows of prompts may have owners (op_dense.h): one rank norms a row, projects it to its latents,
 * selects for it, routes it, and sends that to all. Bits are the same.
 *
 * Of a pipeline each stage has a run of the layers: the first one embeds, the last one has the
 * head, and between them goes the residual stream, whole.
 *
 * Where ranks have requests of their own, experts are whole on a rank and moe_ep alone brings ranks
 * together. All make the same passes; one without rows lends its experts.
 *
 * A forward pass only enqueues: nothing here waits for the device or allocates.
 */
#include "model/forward.h"

#include "base/assert.h"
#include "base/fail.h"
#include "model/model_int.h"

/* A step of the other ranks. */
static fathom_err join_layers(struct model *m, const struct batch *batch)
{
    for (uint32_t i = 0; i < m->n_layer; i++) TRY(model_join_experts(m, &m->layers[i], i, batch));
    return FATHOM_OK;
}

struct norm {
    const struct weight *weight;
    const struct weight *reader; /* reduce_norm_args.reader */
    uint32_t i_layer;
};

static fathom_err reduce_norm(struct model *m, enum stream stream, struct norm norm,
                              struct buffer *out, uint32_t n_token, enum spread spread)
{
    struct reduce_norm_args args = {.x = m->residual,
                                    .delta = stream == STREAM_WHOLE ? NULL : m->delta,
                                    .weight = norm.weight,
                                    .out = out,
                                    .n_token = n_token,
                                    .begins = stream == STREAM_BEGINS,
                                    .layer = norm.i_layer,
                                    .spread = spread,
                                    .reader = norm.reader};
    return m->ops->reduce_norm(m->b, &args);
}

/* The last block's output is added to the stream that the next stage goes on from. Of the norm
 * nobody reads anything: the sum alone is wanted, which has the bits that it has in the norm of the
 * layer after it. */
static fathom_err make_whole(struct model *m, const struct batch *batch)
{
    const uint32_t last = m->n_layer - 1;
    const struct norm norm = {m->layers[last].input_norm, NULL, last};
    ASSERT(model_own_rows(m, batch) == 0);
    return reduce_norm(m, STREAM_PENDING, norm, m->normed, batch->n_token, SPREAD_ALL);
}

fathom_err model_forward(struct model *m, const struct batch *batch, const struct kv_cache *kv)
{
    ASSERT(batch->n_logit_row <= batch->n_token);
    if (batch->n_token == 0) return join_layers(m, batch);
    struct embed_args embed = {.table = m->embed,
                               .ids = batch->ids,
                               .drawn = batch->drawn,
                               .n_token = batch->n_token,
                               .x = m->residual};
    if (m->is_first) TRY(m->ops->embed(m->b, &embed));
    for (uint32_t i = 0; i < m->n_layer; i++)
        TRY(model_layer(m, &m->layers[i], i, i > 0 ? STREAM_PENDING : STREAM_WHOLE, batch, kv));
    if (!m->is_last) return make_whole(m, batch);
    return model_head(m, m->final_norm, m->n_layer - 1, batch);
}

fathom_err model_layer(struct model *m, const struct layer *layer, uint32_t i_layer,
                       enum stream stream, const struct batch *batch, const struct kv_cache *kv)
{
    uint32_t n_token = batch->n_token;
    struct buffer *x = model_block_input(m, batch);
    const enum spread spread = x == m->hidden ? SPREAD_OWN : SPREAD_ALL;
    ASSERT(i_layer < kv->layout.n_layer);
    m->i_layer = i_layer;
    const struct norm input_norm = {layer->input_norm, layer->mla, i_layer};
    const struct norm post_norm = {layer->post_norm, layer->ffn, i_layer};
    TRY(reduce_norm(m, stream, input_norm, x, n_token, spread));
    TRY(model_attention(m, layer, i_layer, batch, kv));
    TRY(reduce_norm(m, STREAM_PENDING, post_norm, x, n_token, spread));
    return model_feed_forward(m, layer, batch);
}

fathom_err model_head(struct model *m, const struct weight *weight, uint32_t i_layer,
                      const struct batch *batch)
{
    const struct norm norm = {weight, NULL, i_layer};
    const enum spread spread = model_own_rows(m, batch) > 0 ? SPREAD_BACK : SPREAD_ALL;
    TRY(reduce_norm(m, STREAM_PENDING, norm, m->hidden, batch->n_token, spread));
    if (batch->n_logit_row == 0) return FATHOM_OK;
    ASSERT(batch->logit_rows);
    struct head_args head = {.w = m->head,
                             .hidden = m->hidden,
                             .rows = batch->logit_rows,
                             .n_row = batch->n_logit_row,
                             .logits = m->logits};
    return m->ops->head(m->b, &head);
}

uint32_t model_layer_begun(const struct model *m)
{
    return m->first_layer + m->i_layer;
}

fathom_err model_put_stream(struct model *m, const float *rows, uint32_t n_token)
{
    ASSERT(!m->is_first);
    return m->ops->buffer_write(m->b, m->residual, 0, n_token, m->hidden_width, rows);
}

fathom_err model_get_stream(struct model *m, float *rows, uint32_t n_token)
{
    ASSERT(!m->is_last);
    return m->ops->buffer_read(m->b, m->residual, 0, n_token, m->hidden_width, rows);
}

void model_use_hidden(struct model *m, uint32_t i)
{
    ASSERT(i < PARALLEL_STAGES_MAX);
    if (m->has_mtp) m->hidden = m->hiddens[i];
    ASSERT(m->hidden);
}

struct buffer *model_logits(struct model *m)
{
    return m->logits;
}

void model_operands(struct model_operands *out, const struct model *m, uint32_t i_layer)
{
    ASSERT(i_layer < m->n_layer);
    const struct layer *layer = &m->layers[i_layer];
    *out = (struct model_operands){.embed = m->embed,
                                   .head = m->head,
                                   .input_norm = layer->input_norm,
                                   .mla = layer->mla,
                                   .ffn = layer->ffn,
                                   .residual = m->residual,
                                   .normed = m->normed,
                                   .delta = m->delta,
                                   .hidden = m->hidden,
                                   .query = m->query,
                                   .select = m->select,
                                   .latent = m->latent,
                                   .route = m->route,
                                   .logits = m->logits};
}

bool model_has_mtp(const struct model *m)
{
    return m->has_mtp;
}
