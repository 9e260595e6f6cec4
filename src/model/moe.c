/* moe.c - the feed-forward block: routed and shared experts, or one dense block
 *
 * The first layers of the model are dense; all others, and the draft layer, choose n_expert_used of
 * n_expert experts per token and add the shared expert.
 */
#include "base/assert.h"
#include "base/fail.h"
#include "model/model_int.h"

fathom_err model_feed_forward(struct model *m, const struct layer *layer, const struct batch *batch)
{
    uint32_t n_token = batch->n_token;
    ASSERT(layer->ffn && n_token >= 1);
    if (!layer->is_moe) {
        struct ffn_args ffn = {.w = layer->ffn, .x = m->normed, .y = m->delta, .n_token = n_token};
        return m->ops->ffn(m->b, &ffn);
    }
    struct router_args router = {.w = layer->ffn,
                                 .x = m->normed,
                                 .route = m->route,
                                 .n_token = n_token,
                                 .n_live = batch->n_live};
    TRY(m->ops->router(m->b, &router));
    struct moe_args moe = {
        .w = layer->ffn, .x = m->normed, .route = m->route, .y = m->delta, .n_token = n_token};
    return m->ops->moe(m->b, &moe);
}
