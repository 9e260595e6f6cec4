/* layer_walk.c - a model's layers one at a time */
#include "model/layer_walk.h"

#include "base/assert.h"
#include "base/fail.h"
#include "model/config.h"
#include "model/model_int.h"

fathom_err layer_walk_create(struct model **out, struct backend *b,
                             const struct model_config *config, fathom_diag *d)
{
    return model_create_empty(out, b, config, d);
}

fathom_err layer_walk_load(struct model *m, const struct model_weights *weights, uint32_t layer,
                           fathom_diag *d)
{
    model_drop_layer(m, m->i_layer);
    m->i_layer = layer;
    return model_load_layer(m, weights, layer, d);
}

/* All rows of a norm, which anybody may read. */
static fathom_err norm(struct model *m, const struct weight *weight, bool adds, struct buffer *out,
                       uint32_t n_token)
{
    struct reduce_norm_args args = {.x = m->residual,
                                    .delta = adds ? m->delta : NULL,
                                    .weight = weight,
                                    .out = out,
                                    .n_token = n_token,
                                    .layer = m->i_layer,
                                    .spread = SPREAD_ALL};
    return m->ops->reduce_norm(m->b, &args);
}

fathom_err layer_walk_step(struct model *m, const struct batch *batch, const struct kv_cache *kv,
                           float *x, float *normed, float *route)
{
    const struct layer *layer = &m->layers[m->i_layer];
    const struct backend_ops *ops = m->ops;
    const uint32_t n = batch->n_token;
    ASSERT(layer->ffn && n >= 1 && batch->n_logit_row == 0);
    ASSERT(model_own_rows(m, batch) == 0);
    TRY(ops->buffer_write(m->b, m->residual, 0, n, m->hidden_width, x));
    TRY(norm(m, layer->input_norm, false, m->normed, n));
    TRY(model_attention(m, layer, m->i_layer, batch, kv));
    TRY(norm(m, layer->post_norm, true, m->normed, n));
    TRY(ops->buffer_read(m->b, m->normed, 0, n, m->hidden_width, normed));
    TRY(model_feed_forward(m, layer, batch));
    if (layer->is_moe) {
        TRY(ops->buffer_read(m->b, m->route, 0, n, 2 * m->watch.n_used, route));
    }
    TRY(norm(m, layer->post_norm, true, m->hidden, n)); /* for the sum alone */
    return ops->buffer_read(m->b, m->residual, 0, n, m->hidden_width, x);
}
