/* op_check.c - the needs of every operator, as assertions */
#include "backend/op_check.h"

#include "base/assert.h"

static void check_tokens(const struct backend_config *c, uint32_t n_token)
{
    ASSERT(n_token >= 1);
    ASSERT(n_token <= c->max_token);
}

/* The arrays and counts that every operator over the cache reads. */
static void check_batch(const struct backend_config *c, const struct batch *batch)
{
    ASSERT(batch);
    check_tokens(c, batch->n_token);
    ASSERT(batch->n_request >= 1);
    ASSERT(batch->n_request <= c->max_request);
    ASSERT(batch->n_request <= batch->n_token);
    ASSERT(batch->n_answer_request <= batch->n_answer_token);
    ASSERT(batch->n_answer_token <= batch->n_token);
    ASSERT(batch->n_answer_request <= batch->n_request);
    ASSERT((batch->n_answer_token == 0) == (batch->n_answer_request == 0));
    ASSERT((batch->n_answer_token == batch->n_token) ==
           (batch->n_answer_request == batch->n_request));
    ASSERT(batch->max_context >= 1);
    ASSERT(batch->max_context <= c->max_context);
    ASSERT((uint64_t)batch->page_stride * KV_PAGE_TOKENS >= batch->max_context);
    ASSERT(batch->pos);
    ASSERT(batch->request);
    ASSERT(batch->slot);
    ASSERT(batch->page_table);
    ASSERT(batch->first);
}

static void check_cache(const struct backend_config *c, const struct kv_cache *kv, uint32_t layer)
{
    ASSERT(kv);
    ASSERT(kv->base);
    ASSERT(kv->n_page >= 1);
    ASSERT(kv->layout.type == c->kv.type);
    ASSERT(kv->layout.has_index == c->kv.has_index);
    ASSERT(kv->layout.row_bytes == c->kv.row_bytes);
    ASSERT(kv->layout.layer_bytes == c->kv.layer_bytes);
    ASSERT(kv->layout.page_bytes == kv->layout.layer_bytes * kv->layout.n_layer);
    ASSERT(layer < kv->layout.n_layer);
}

void op_check_embed(const struct backend_config *c, const struct embed_args *a)
{
    check_tokens(c, a->n_token);
    ASSERT(a->table);
    ASSERT(a->ids);
    ASSERT(a->x);
}

void op_check_reduce_norm(const struct backend_config *c, const struct reduce_norm_args *a)
{
    check_tokens(c, a->n_token);
    ASSERT(a->x);
    ASSERT(a->weight);
    ASSERT(a->out);
    ASSERT(a->x != a->out);
    ASSERT(a->x != a->delta);
    ASSERT(a->out != a->delta);
    ASSERT(!a->begins || a->delta);
    ASSERT(a->spread != SPREAD_BACK || a->delta);
}

void op_check_spread_rows(const struct backend_config *c, const struct spread_rows_args *a)
{
    check_tokens(c, a->n_token);
    ASSERT(a->w && a->from && a->to && a->from != a->to);
    ASSERT(!a->from_route == !a->to_route);
    ASSERT(!a->to_route || a->from_route != a->to_route);
}

void op_check_mla_front(const struct backend_config *c, const struct mla_front_args *a)
{
    check_batch(c, a->batch);
    check_cache(c, a->kv, a->layer);
    ASSERT(a->w);
    ASSERT(a->x);
    ASSERT(a->query);
    ASSERT(!a->want_index_query || c->index_n_head > 0);
}

void op_check_share_rows(const struct backend_config *c, const struct share_rows_args *a)
{
    const struct batch_share *s = a->share;
    const uint32_t n_lane = parallel_n_peer(&c->parallel) / c->parallel.tp.size;
    uint32_t n = 0;
    check_cache(c, a->kv, a->layer);
    ASSERT(a->pages && s);
    ASSERT(s->n_segment >= 1 && s->n_segment <= n_lane + 1);
    for (uint32_t i = 0; i < s->n_segment; i++) {
        ASSERT(s->segments[i].lane < n_lane);
        n += s->segments[i].n_row;
    }
    ASSERT(n >= 1 && n == s->n_row && s->first + n <= c->max_context);
}

void op_check_index_topk(const struct backend_config *c, const struct index_topk_args *a)
{
    ASSERT(c->index_n_head > 0);
    ASSERT(c->index_topk > 0);
    check_batch(c, a->batch);
    check_cache(c, a->kv, a->layer);
    ASSERT(a->query);
    ASSERT(a->select);
}

void op_check_mla_attend(const struct backend_config *c, const struct mla_attend_args *a)
{
    check_batch(c, a->batch);
    check_cache(c, a->kv, a->layer);
    ASSERT(a->w || a->batch->n_answer_token == a->batch->n_token);
    ASSERT(a->query);
    ASSERT(a->out);
    ASSERT(!a->select || c->index_topk > 0);
}

void op_check_mla_out(const struct backend_config *c, const struct mla_out_args *a)
{
    check_batch(c, a->batch);
    ASSERT(a->w);
    ASSERT(a->z);
    ASSERT(a->y);
}

void op_check_ffn(const struct backend_config *c, const struct ffn_args *a)
{
    check_tokens(c, a->n_token);
    ASSERT(c->dense_inner > 0);
    ASSERT(a->w);
    ASSERT(a->x);
    ASSERT(a->y);
    ASSERT(a->x != a->y);
}

void op_check_router(const struct backend_config *c, const struct router_args *a)
{
    check_tokens(c, a->n_token);
    ASSERT(c->n_expert > 0);
    ASSERT(a->w);
    ASSERT(a->x);
    ASSERT(a->route);
}

void op_check_moe(const struct backend_config *c, const struct moe_args *a)
{
    check_tokens(c, a->n_token);
    ASSERT(c->n_expert > 0);
    ASSERT(a->w);
    ASSERT(a->x);
    ASSERT(a->route);
    ASSERT(a->y);
    ASSERT(a->x != a->y);
}

void op_check_moe_ep(const struct backend_config *c, const struct moe_ep_args *a)
{
    ASSERT(c->n_expert > 0);
    ASSERT(a->n_token <= a->n_most);
    ASSERT(a->n_most >= 1 && a->n_most <= c->max_token);
    ASSERT(!a->lane_rows || a->lane_rows[c->parallel.dp.rank] == a->n_token);
    ASSERT(a->w);
    ASSERT(a->x);
    ASSERT(a->route);
    ASSERT(a->y);
    ASSERT(a->x != a->y);
    ASSERT(a->place);
}

void op_check_head(const struct backend_config *c, const struct head_args *a)
{
    ASSERT(a->n_row <= c->max_logit_row);
    ASSERT(a->w);
    ASSERT(a->hidden);
    ASSERT(a->logits);
    ASSERT(a->n_row == 0 || a->rows);
}

void op_check_mtp_front(const struct backend_config *c, const struct mtp_front_args *a)
{
    check_tokens(c, a->n_token);
    ASSERT(a->table);
    ASSERT(a->enorm);
    ASSERT(a->hnorm);
    ASSERT(a->eh_proj);
    ASSERT(a->next_ids);
    ASSERT(a->hidden);
    ASSERT(a->y);
}

void op_check_sample(const struct backend_config *c, const struct sample_args *a)
{
    ASSERT(a->n_row <= c->max_request || a->n_row <= c->max_logit_row);
    ASSERT(a->logits);
    if (a->n_row == 0) return;
    ASSERT(a->rows);
    ASSERT(a->ids);
    ASSERT(a->logprobs);
    ASSERT(a->ranks);
    ASSERT(a->top_ids);
    ASSERT(a->top_logprobs);
}
