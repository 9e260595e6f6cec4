/* buffer_shape.c - the shapes of activations, kind by kind */
#include "backend/buffer_shape.h"

#include "base/assert.h"

static uint32_t main_width(const struct backend_config *c, enum buffer_kind kind)
{
    switch (kind) {
    case BUFFER_RESIDUAL:
    case BUFFER_NORMED:
    case BUFFER_DELTA: return c->hidden;
    case BUFFER_QUERY: return c->n_head * KV_ROW;
    case BUFFER_SELECT: return 1 + c->index_topk;
    case BUFFER_LATENT: return c->n_head * KV_LATENT;
    case BUFFER_ROUTE: return c->n_expert_used;
    case BUFFER_LOGITS: return c->n_vocab;
    }
    ASSERT(kind <= BUFFER_LOGITS);
    return 0;
}

struct buffer_shape buffer_shape_of(const struct backend_config *c, enum buffer_kind kind)
{
    ASSERT(c);
    struct buffer_shape s = {.n_row = kind == BUFFER_LOGITS ? c->max_logit_row : c->max_token,
                             .main_width = main_width(c, kind)};
    s.width = s.main_width;
    if (kind == BUFFER_QUERY) s.width += c->index_n_head * (KV_INDEX_DIM + 1);
    if (kind == BUFFER_ROUTE) s.width += c->n_expert_used;
    return s;
}
