/* mtp.c - multi-token prediction: the draft layer
 *
 *   x      = eh_proj [ rmsnorm(embed[next id]) ; rmsnorm(hidden) ]     next id: the token after
 *   logits = head( rmsnorm( layer(x) ) )
 *
 * At position i it reads token i + 1 and the target's hidden state of position i, and predicts
 * token i + 2. Rope and cache use position i; its cache is one more layer of the page. Embedding
 * and head are the model's own. The hidden state is the one after the final norm. The draft layer
 * leaves its own normed state in the same place, so a second pass goes on from there: it has fewer
 * tokens, and batch->hidden_rows says which rows they go on from.
 */
#include "base/assert.h"
#include "base/fail.h"
#include "model/forward.h"
#include "model/model_int.h"

fathom_err model_mtp(struct model *m, const struct batch *batch, const struct kv_cache *kv)
{
    ASSERT(m->has_mtp && (batch->next_ids || batch->n_token == 0));
    ASSERT(batch->n_logit_row <= batch->n_token);
    if (batch->n_token == 0) return model_join_experts(m, &m->mtp.layer, m->n_layer, batch);
    struct mtp_front_args front = {.table = m->embed,
                                   .enorm = m->mtp.enorm,
                                   .hnorm = m->mtp.hnorm,
                                   .eh_proj = m->mtp.eh_proj,
                                   .next_ids = batch->next_ids,
                                   .hidden = m->hidden,
                                   .rows = batch->hidden_rows,
                                   .y = m->delta,
                                   .n_token = batch->n_token};
    TRY(m->ops->mtp_front(m->b, &front));
    TRY(model_layer(m, &m->mtp.layer, m->n_layer, STREAM_BEGINS, batch, kv));
    return model_head(m, m->mtp.head_norm, m->n_layer, batch);
}
