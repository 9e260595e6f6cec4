/* mla.c - the attention block: latent attention with the lightning indexer
 *
 *   front    projections; the token's latent row and index key go to the cache
 *   share    rows of a prompt that several ranks compute: those of the others come
 *   select   long requests only: the index_topk cached rows that each token attends to
 *   attend   softmax over those rows (or over all)
 *   out      back to the hidden width
 *
 * Which form attention has is the backend's choice, by the row's kind and position (op_attn.h). So
 * a token's bits do not depend on whether its request was computed in one step or many, or found in
 * the prefix cache.
 * The indexer runs when some request of the step is longer than index_topk. For shorter requests it
 * selects every row, which gives the same bits as attending without it. Index keys are written at
 * every step, because a later step may need them.
 */
#include "base/assert.h"
#include "base/fail.h"
#include "model/model_int.h"

/* Of a prompt that several ranks compute: what others have written, and what this one has. */
static fathom_err share_rows(struct model *m, uint32_t i_layer, const struct batch *batch,
                             const struct kv_cache *kv)
{
    const struct batch_share *share = batch->share;
    const struct share_rows_args args = {.kv = kv,
                                         .layer = i_layer,
                                         .pages = batch->page_table +
                                                  (size_t)share->request * batch->page_stride,
                                         .share = share};
    ASSERT(share->request < batch->n_request);
    return m->ops->share_rows(m->b, &args);
}

fathom_err model_attention(struct model *m, const struct layer *layer, uint32_t i_layer,
                           const struct batch *batch, const struct kv_cache *kv)
{
    bool is_long = m->index_topk > 0 && batch->max_context > m->index_topk;
    ASSERT(!is_long || kv->layout.has_index);
    struct mla_front_args front = {.w = layer->mla,
                                   .batch = batch,
                                   .kv = kv,
                                   .layer = i_layer,
                                   .want_index_query = is_long,
                                   .owned = model_own_rows(m, batch) > 0,
                                   .x = model_block_input(m, batch),
                                   .query = m->query};
    TRY(m->ops->mla_front(m->b, &front));
    if (batch->share) TRY(share_rows(m, i_layer, batch, kv));
    if (is_long) {
        struct index_topk_args topk = {.batch = batch,
                                       .kv = kv,
                                       .layer = i_layer,
                                       .owned = front.owned,
                                       .query = m->query,
                                       .select = m->select};
        TRY(m->ops->index_topk(m->b, &topk));
    }
    struct mla_attend_args attend = {.w = layer->mla,
                                     .batch = batch,
                                     .kv = kv,
                                     .layer = i_layer,
                                     .query = m->query,
                                     .select = is_long ? m->select : NULL,
                                     .out = m->latent,
                                     .left_to_out = true};
    TRY(m->ops->mla_attend(m->b, &attend));
    struct mla_out_args out = {.w = layer->mla, .batch = batch, .z = m->latent, .y = m->delta};
    return m->ops->mla_out(m->b, &out);
}
