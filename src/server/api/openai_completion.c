/* openai_completion.c - the form of /v1/completions */
#include <string.h>

#include "base/assert.h"
#include "base/fail.h"
#include "server/api/openai_chunk.h"

/* A BOS that the server has put in front of a text is no part of it. */
static bool begins_with_token(const struct tokenizer *t, const struct api_prompt *p, int32_t id)
{
    size_t n;
    const char *bytes = tokenizer_bytes(t, id, &n);
    ASSERT(p->text);
    return n <= p->n_text && memcmp(p->text, bytes, n) == 0;
}

/* With echo the prompt's text stands in front of the choice's own. */
static fathom_err begin(struct choice *c)
{
    const struct answer_setup *s = &c->answer->setup;
    const struct api_request *r = s->request;
    if (!r->echo) return FATHOM_OK;
    const struct api_prompt *p = &r->prompts[c->i_prompt];
    const struct token_list *ids = &s->prompts[c->i_prompt];
    c->echoes_special = p->text && !r->truncate;
    if (c->echoes_special) {
        TRY(buf_add(&c->content, p->text, p->n_text));
    } else {
        TRY(tokenizer_decode(s->tokenizer, ids->ids, ids->n, r->skip_special_tokens, &c->content));
    }
    c->place.n_char = logprob_count_char(buf_str(&c->content), c->content.len);
    if (!r->sampling.logprobs) return FATHOM_OK;
    struct logprob_style style = answer_logprob_style(c->answer, c->i_prompt);
    if (c->echoes_special) style.skip_special = !begins_with_token(s->tokenizer, p, ids->ids[0]);
    return logprob_add_first(&c->logprobs, &style, ids->ids[0], &c->prompt_place);
}

static fathom_err take(struct choice *c, const struct chat_event *e)
{
    return buf_add(&c->content, e->text, e->n);
}

static void write_choice(struct buf *b, struct choice *c)
{
    const struct answer *a = c->answer;
    (void)buf_printf(b, "{\"index\":%u,\"text\":", c->index);
    answer_write_text(b, &c->content);
    (void)buf_add_str(b, ",\"logprobs\":");
    logprob_write_completion(b, &c->logprobs);
    (void)buf_add_char(b, ',');
    openai_write_finish(b, c);
    if (a->setup.request->return_token_ids) {
        if (!c->begun) openai_write_ids(b, "prompt_token_ids", &a->prompts[c->i_prompt].ids);
        openai_write_ids(b, "token_ids", &c->ids);
    }
    openai_write_scores(b, a, c->i_prompt);
    (void)buf_add_char(b, '}');
}

static fathom_err write_chunk(struct choice *c)
{
    return openai_write_flat(c, write_choice, false);
}

static fathom_err flush(struct choice *c)
{
    return c->content.len ? write_chunk(c) : FATHOM_OK;
}

static fathom_err end(struct choice *c)
{
    return answer_is_streamed(c->answer) ? write_chunk(c) : FATHOM_OK;
}

static fathom_err open(struct answer *a)
{
    return openai_chunk_open(a, "text_completion");
}

static fathom_err close(struct answer *a)
{
    return openai_close(a, "text_completion", write_choice);
}

const struct answer_form answer_form_completion = {
    .id_prefix = "cmpl-",
    .open = open,
    .begin = begin,
    .take = take,
    .flush = flush,
    .end = end,
    .close = close,
    .fail = openai_fail,
    .keep_alive = openai_keep_alive,
};
