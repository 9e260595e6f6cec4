/* generate_form.c - the form of /inference/v1/generate: a choice is its token ids */
#include "base/fail.h"
#include "server/api/openai_chunk.h"

/* Text is made for stop strings alone. */
static fathom_err take(struct choice *c, const struct chat_event *e)
{
    (void)c, (void)e;
    return FATHOM_OK;
}

static void write_choice(struct buf *b, struct choice *c)
{
    (void)buf_printf(b, "{\"index\":%u,\"logprobs\":", c->index);
    logprob_write_chat(b, &c->logprobs);
    (void)buf_add_char(b, ',');
    openai_write_finish(b, c);
    openai_write_ids(b, "token_ids", &c->ids);
    (void)buf_add_char(b, '}');
}

static fathom_err write_chunk(struct choice *c)
{
    return openai_write_flat(c, write_choice, !c->begun);
}

static fathom_err flush(struct choice *c)
{
    return c->ids.len && !c->ended ? write_chunk(c) : FATHOM_OK;
}

static fathom_err end(struct choice *c)
{
    return answer_is_streamed(c->answer) ? write_chunk(c) : FATHOM_OK;
}

static fathom_err open(struct answer *a)
{
    return openai_chunk_open(a, "generate.tokens");
}

static fathom_err close(struct answer *a)
{
    return openai_close(a, "generate.tokens", write_choice);
}

const struct answer_form answer_form_generate = {
    .id_prefix = "gen-",
    .open = open,
    .take = take,
    .flush = flush,
    .end = end,
    .close = close,
    .fail = openai_fail,
    .keep_alive = openai_keep_alive,
};
