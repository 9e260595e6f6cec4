/* moe.c - the feed-forward block: routed and shared experts, or one dense block
 *
 * The first layers of the model are dense; all others, and the draft layer, choose n_expert_used of
 * n_expert experts per token and add the shared expert.
 */
#include <math.h>
#include <string.h>

#include "base/assert.h"
#include "base/fail.h"
#include "base/mem.h"
#include "model/forward.h"
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

void model_watch_experts(struct model *m, struct expert_counts *to)
{
    ASSERT(!to || m->watch.n_row || m->watch.n_expert == 0);
    m->watch.to = to;
}

/* Reading waits and may allocate, which steps that nobody watches do not. */
static fathom_err read_routes(struct model *m, uint32_t first, uint32_t n)
{
    const bool forbidden = mem_forbid(false);
    const fathom_err err =
        m->ops->buffer_read(m->b, m->route, first, n, 2 * m->watch.n_used, m->watch.routes);
    (void)mem_forbid(forbidden);
    return err;
}

static fathom_err watch_route(struct model *m, uint32_t n_token)
{
    const struct expert_watch *w = &m->watch;
    uint32_t busiest = 0;
    memset(w->n_row, 0, w->n_expert * sizeof *w->n_row);
    for (uint32_t first = 0; first < n_token; first += EXPERT_WATCH_ROWS) {
        const uint32_t left = n_token - first,
                       n = left < EXPERT_WATCH_ROWS ? left : EXPERT_WATCH_ROWS;
        TRY(read_routes(m, first, n));
        for (uint32_t i = 0; i < n * w->n_used; i++) {
            const float *row = w->routes + (size_t)(i / w->n_used) * 2 * w->n_used;
            const uint32_t expert = (uint32_t)row[i % w->n_used];
            ASSERT(expert < w->n_expert);
            w->to->n_hit += w->n_row[expert]++ == 0;
            if (w->n_row[expert] > busiest) busiest = w->n_row[expert];
        }
    }
    w->to->n_choice++;
    w->to->n_token += n_token;
    w->to->uniform += w->n_expert * (1 - pow(1 - (double)w->n_used / w->n_expert, n_token));
    w->to->n_busiest += busiest;
    return FATHOM_OK;
}

static fathom_err run_experts(struct model *m, const struct layer *layer, uint32_t i_layer,
                              const struct batch *batch)
{
    const uint32_t n_token = batch->n_token;
    if (m->place) {
        const struct moe_ep_args ep = {.w = layer->ffn,
                                       .x = m->normed,
                                       .route = m->route,
                                       .y = m->delta,
                                       .n_token = n_token,
                                       .n_most = batch->n_most,
                                       .lane_rows = batch->lane_rows,
                                       .n_live = n_token > 0 ? batch->n_live : NULL,
                                       .place = m->place,
                                       .layer = i_layer};
        return m->ops->moe_ep(m->b, &ep);
    }
    const struct moe_args moe = {
        .w = layer->ffn, .x = m->normed, .route = m->route, .y = m->delta, .n_token = n_token};
    return m->ops->moe(m->b, &moe);
}

fathom_err model_join_experts(struct model *m, const struct layer *layer, uint32_t i_layer,
                              const struct batch *batch)
{
    ASSERT(m->place && batch->n_token == 0);
    m->i_layer = i_layer;
    return layer->is_moe ? run_experts(m, layer, i_layer, batch) : FATHOM_OK;
}

fathom_err model_feed_forward(struct model *m, const struct layer *layer, const struct batch *batch)
{
    const uint32_t n_token = batch->n_token, n_own = model_own_rows(m, batch);
    ASSERT(layer->ffn && n_token >= 1);
    if (layer->is_moe) TRY(route_rows(m, layer, batch, n_own));
    if (n_own > 0) TRY(spread_rows(m, layer, n_token));
    if (m->watch.to && layer->is_moe && batch->n_answer_token == n_token)
        TRY(watch_route(m, n_token));
    if (!layer->is_moe) {
        struct ffn_args ffn = {.w = layer->ffn, .x = m->normed, .y = m->delta, .n_token = n_token};
        return m->ops->ffn(m->b, &ffn);
    }
    return run_experts(m, layer, m->i_layer, batch);
}
