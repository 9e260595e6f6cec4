/* text.c - a token to whole characters to settled text */
#include "server/api/text.h"

#include "base/assert.h"
#include "base/fail.h"

void text_init(struct text_stream *t, const struct text_options *o)
{
    *t = (struct text_stream){.o = *o, .hit = -1};
    detok_init(&t->detok, o->tokenizer, o->skip_special);
    stop_matcher_init(&t->stop, o->stops);
}

void text_free(struct text_stream *t)
{
    stop_matcher_free(&t->stop);
    buf_free(&t->piece);
}

static bool is_skipped(const struct text_stream *t, int32_t id)
{
    for (unsigned i = 0; i < t->o.n_skip_id; i++) {
        if (t->o.skip_ids[i] == id) return true;
    }
    return false;
}

fathom_err text_push(struct text_stream *t, int32_t id, struct buf *out)
{
    ASSERT(t->hit < 0);
    bool may_stop = t->n_token >= t->o.min_tokens;
    t->n_token++;
    if (is_skipped(t, id)) return FATHOM_OK;
    buf_clear(&t->piece);
    TRY(detok_push(&t->detok, id, &t->piece));
    if (!may_stop) return buf_add(out, buf_str(&t->piece), t->piece.len);
    return stop_push(&t->stop, buf_str(&t->piece), t->piece.len, t->o.include_stop, out, &t->hit);
}

fathom_err text_end(struct text_stream *t, struct buf *out)
{
    if (t->hit >= 0) return FATHOM_OK;
    buf_clear(&t->piece);
    TRY(detok_flush(&t->detok, &t->piece));
    if (t->n_token <= t->o.min_tokens) return buf_add(out, buf_str(&t->piece), t->piece.len);
    TRY(stop_push(&t->stop, buf_str(&t->piece), t->piece.len, t->o.include_stop, out, &t->hit));
    return t->hit >= 0 ? FATHOM_OK : stop_flush(&t->stop, out);
}
