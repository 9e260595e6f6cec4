/* moe.c - the feed-forward block: routed and shared experts, or one dense block
 *
 * The first layers of the model are dense; all others, and the draft layer, choose n_expert_used of
 * n_expert experts per token and add the shared expert.
 */
#include "base/assert.h"
#include "base/fail.h"
#include "model/model_int.h"

/* Own rows of the block's input, and of a route, to all ranks. */
static fathom_err spread_rows(struct model *m, const struct layer *layer, uint32_t n_token)
{
    struct spread_rows_args args = {.w = layer->ffn,
                                    .from = m->hidden,
                                    .to = m->normed,
                                    .from_route = layer->is_moe ? m->own_route : NULL,
                                    .to_route = layer->is_moe ? m->route : NULL,
                                    .n_token = n_token};
    return m->ops->spread_rows(m->b, &args);
}

static fathom_err route_rows(struct model *m, const struct layer *layer, const struct batch *batch,
                             uint32_t n_own)
{
    struct router_args router = {.w = layer->ffn,
                                 .x = n_own ? m->hidden : m->normed,
                                 .route = n_own ? m->own_route : m->route,
                                 .n_token = n_own ? n_own : batch->n_token,
                                 .n_live = n_own ? NULL : batch->n_live};
    return m->ops->router(m->b, &router);
}

fathom_err model_feed_forward(struct model *m, const struct layer *layer, const struct batch *batch)
{
    const uint32_t n_token = batch->n_token, n_own = model_own_rows(m, batch);
    ASSERT(layer->ffn && n_token >= 1);
    if (layer->is_moe) TRY(route_rows(m, layer, batch, n_own));
    if (n_own > 0) TRY(spread_rows(m, layer, n_token));
    if (!layer->is_moe) {
        struct ffn_args ffn = {.w = layer->ffn, .x = m->normed, .y = m->delta, .n_token = n_token};
        return m->ops->ffn(m->b, &ffn);
    }
    struct moe_args moe = {
        .w = layer->ffn, .x = m->normed, .route = m->route, .y = m->delta, .n_token = n_token};
    return m->ops->moe(m->b, &moe);
}
