/* sglang_form.c - the form of /generate: an object for each choice, in a list where there may be
 * several; streamed, each event has all that the choice has said so far, or what is new */
#include "base/fail.h"
#include "server/api/openai_chunk.h"
#include "server/api/sse.h"

/* While more bytes than this wait for the client, an event is left out; the next one repeats it. */
enum { WAITING_BYTES = 64 << 10 };

static bool is_list(const struct answer *a)
{
    return a->setup.request->has_prompt_list || a->n_choice > 1;
}

/* The first token of a prompt has nothing before it. */
static fathom_err open(struct answer *a)
{
    const struct api_request *r = a->setup.request;
    for (size_t i = 0; i < a->n_prompt; i++) {
        if (!api_request_of(r, i)->prompt_logprobs) continue;
        const fathom_event first = {.kind = FATHOM_EVENT_PROMPT,
                                    .token = a->setup.prompts[i].ids[0]};
        TRY(answer_add_score(a, i, &first));
    }
    return FATHOM_OK;
}

static fathom_err take(struct choice *c, const struct chat_event *e)
{
    return buf_add(&c->content, e->text, e->n);
}

static void write_finish(struct buf *b, const struct choice *c)
{
    (void)buf_add_str(b, "\"finish_reason\":");
    if (!c->finish_reason) {
        (void)buf_add_str(b, "null");
    } else if (c->finish_reason[0] == 'l') {
        (void)buf_printf(b, "{\"type\":\"length\",\"length\":%u}", c->n_token);
    } else {
        (void)buf_add_str(b, "{\"type\":\"stop\",\"matched\":");
        openai_write_stop(b, c);
        (void)buf_add_char(b, '}');
    }
}

static void write_logprobs(struct buf *b, const struct choice *c)
{
    const struct answer *a = c->answer;
    const fathom_sampling *s = &answer_request_of(c)->sampling;
    const struct logprob_list *input = &a->prompts[c->i_prompt].scores;
    if (!s->logprobs) return;
    (void)buf_printf(b, ",\"output_token_logprobs_length\":%u", c->n_token);
    openai_write_ids(b, "input_token_logprobs", &input->tokens);
    openai_write_ids(b, "output_token_logprobs", &c->logprobs.tokens);
    if (s->n_top_logprobs == 0) return;
    openai_write_ids(b, "input_top_logprobs", &input->top);
    openai_write_ids(b, "output_top_logprobs", &c->logprobs.top);
}

/* The prompt's own id, if the client named each prompt; else the answer's, with the choice's number
 * if there may be several. */
static void write_id(struct buf *b, const struct choice *c)
{
    const struct answer *a = c->answer;
    const struct api_request *r = a->setup.request;
    const char *own = r->ids ? r->ids[c->i_prompt].text : "";
    (void)buf_printf(b, "\"id\":\"%s", own[0] ? own : a->id);
    if (!own[0] && is_list(a)) (void)buf_printf(b, "_%u", c->index);
    if (own[0] && r->n > 1) (void)buf_printf(b, "_%u", c->index % r->n);
    (void)buf_add_str(b, "\",");
}

static void write_meta(struct buf *b, const struct choice *c)
{
    const struct answer *a = c->answer;
    const struct answer_prompt *p = &a->prompts[c->i_prompt];
    (void)buf_add_char(b, '{');
    write_id(b, c);
    write_finish(b, c);
    (void)buf_printf(b,
                     ",\"prompt_tokens\":%u,\"completion_tokens\":%u,\"cached_tokens\":%u,"
                     "\"weight_version\":\"default\"",
                     p->n_token, c->n_token, p->n_cached);
    if (c->ended) (void)buf_printf(b, ",\"e2e_latency\":%.6f", (double)c->ended_us / 1e6);
    write_logprobs(b, c);
    (void)buf_add_char(b, '}');
}

static void write_choice(struct buf *b, const struct choice *c)
{
    const struct answer *a = c->answer;
    (void)buf_add_str(b, "{\"text\":");
    answer_write_text(b, &c->content);
    openai_write_ids(b, "output_ids", &c->ids);
    if (a->setup.request->return_token_ids) {
        openai_write_ids(b, "prompt_token_ids", &a->prompts[c->i_prompt].ids);
    }
    (void)buf_add_str(b, ",\"meta_info\":");
    write_meta(b, c);
    if (answer_is_streamed(a) && is_list(a)) (void)buf_printf(b, ",\"index\":%u", c->index);
    (void)buf_add_char(b, '}');
}

static fathom_err write_event(struct choice *c)
{
    struct buf *b = &c->answer->out;
    sse_begin(b);
    write_choice(b, c);
    sse_end(b);
    c->n_told = c->n_token;
    if (!answer_repeats(c->answer)) {
        buf_clear(&c->content);
        buf_clear(&c->ids);
        logprob_list_clear(&c->logprobs);
    }
    return buf_status(b);
}

/* A choice that a stop string ends says so in the same event. */
static fathom_err flush(struct choice *c)
{
    const struct answer *a = c->answer;
    if (c->n_token == c->n_told || c->text.hit >= 0) return FATHOM_OK;
    return answer_repeats(a) && a->out.len > WAITING_BYTES ? FATHOM_OK : write_event(c);
}

static fathom_err end(struct choice *c)
{
    c->ended_us = c->answer->age_us;
    return answer_is_streamed(c->answer) ? write_event(c) : FATHOM_OK;
}

static fathom_err close(struct answer *a)
{
    struct buf *b = &a->out;
    if (answer_is_streamed(a)) {
        sse_done(b);
        return buf_status(b);
    }
    if (is_list(a)) (void)buf_add_char(b, '[');
    for (size_t i = 0; i < a->n_choice; i++) {
        if (i) (void)buf_add_char(b, ',');
        write_choice(b, &a->choices[i]);
    }
    if (is_list(a)) (void)buf_add_char(b, ']');
    return buf_status(b);
}

const struct answer_form answer_form_sglang = {
    .id_prefix = "",
    .open = open,
    .take = take,
    .flush = flush,
    .end = end,
    .close = close,
    .fail = openai_fail,
    .keep_alive = openai_keep_alive,
};
