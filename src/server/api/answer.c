/* answer.c - the choices of an answer: their text, how they end, counts. A form writes the
 * bytes. */
#include "server/api/answer.h"

#include <stdio.h>
#include <string.h>

#include "base/assert.h"
#include "base/fail.h"
#include "base/json.h"
#include "base/mem.h"
#include "base/rng.h"

struct answer_usage answer_count(const struct answer *a)
{
    struct answer_usage u = {0};
    for (size_t i = 0; i < a->n_prompt; i++) {
        u.n_prompt += a->prompts[i].n_token;
        u.n_cached += a->prompts[i].n_cached;
    }
    for (size_t i = 0; i < a->n_choice; i++) {
        u.n_output += a->choices[i].n_token;
        u.n_reasoning += a->choices[i].n_reasoning;
    }
    return u;
}

void answer_write_text(struct buf *b, const struct buf *text)
{
    (void)json_write_string(b, buf_str(text), text->len);
}

bool answer_is_streamed(const struct answer *a)
{
    return a->setup.request->stream;
}

bool answer_repeats(const struct answer *a)
{
    return a->setup.request->api == API_SGLANG && !a->setup.stream_pieces;
}

void answer_write_id(struct buf *b, const struct choice *c, const char *prefix, uint32_t i)
{
    uint64_t nonce = c->answer->setup.nonce;
    uint64_t key = ((uint64_t)c->index << 32 | i) + 1;
    (void)buf_printf(b, "\"%s%016llx%08x\"", prefix, (unsigned long long)rng_mix(nonce, key, 0),
                     (unsigned)rng_mix(nonce, key, 1));
}

static fathom_err add_id(struct buf *ids, int32_t id)
{
    return buf_printf(ids, ids->len ? ",%d" : "%d", id);
}

const struct api_request *answer_request_of(const struct choice *c)
{
    return api_request_of(c->answer->setup.request, c->i_prompt);
}

/* ---- open ---------------------------------------------------------------------------------- */

/* In a chat the parser reads the special tokens, so they are kept in the text; only BOS and EOS,
 * which are no markup, are left out. */
static void set_text_options(const struct choice *c, struct text_options *o)
{
    const struct answer *a = c->answer;
    const struct api_request *r = answer_request_of(c);
    const fathom_info *info = a->setup.info;
    *o = (struct text_options){.tokenizer = a->setup.tokenizer,
                               .stops = &a->stops[a->setup.request->each ? c->i_prompt : 0],
                               .include_stop = r->include_stop,
                               .min_tokens = r->sampling.min_tokens};
    if (!api_is_chat(r->api)) {
        o->skip_special = r->skip_special_tokens;
        return;
    }
    if (!r->skip_special_tokens) return;
    if (info->bos_id >= 0) o->skip_ids[o->n_skip_id++] = info->bos_id;
    for (uint32_t i = 0; i < info->n_eos; i++) o->skip_ids[o->n_skip_id++] = info->eos_ids[i];
}

static fathom_err open_prompts(struct answer *a)
{
    const struct api_request *r = a->setup.request;
    size_t n = api_is_chat(r->api) ? 1 : r->n_prompt;
    a->prompts = mem_calloc(n, sizeof *a->prompts);
    if (!a->prompts) return FATHOM_ENOMEM;
    a->n_prompt = n;
    for (size_t i = 0; i < n; i++) {
        const struct token_list *ids = &a->setup.prompts[i];
        a->prompts[i].n_token = (uint32_t)ids->n;
        if (!r->return_token_ids) continue;
        for (size_t k = 0; k < ids->n; k++) TRY(add_id(&a->prompts[i].ids, ids->ids[k]));
    }
    return FATHOM_OK;
}

/* Passes an event on to the form, unless the request does not want to see reasoning. */
static fathom_err take_event(void *arg, const struct chat_event *e)
{
    struct choice *c = arg;
    const struct api_request *r = c->answer->setup.request;
    if (e->kind == CHAT_EVENT_REASONING && !r->include_reasoning) return FATHOM_OK;
    return c->answer->form->take(c, e);
}

static fathom_err open_choice(struct answer *a, size_t i)
{
    const struct api_request *r = a->setup.request;
    struct choice *c = &a->choices[i];
    struct text_options o;
    c->answer = a;
    c->index = (uint32_t)i;
    c->i_prompt = (uint32_t)(i / r->n);
    c->stop_id = -1;
    set_text_options(c, &o);
    text_init(&c->text, &o);
    if (api_is_chat(r->api)) {
        TRY(chat_parser_create(&c->parser, a->setup.style, a->setup.thinking, r->tools, take_event,
                               c));
    }
    return a->form->begin ? a->form->begin(c) : FATHOM_OK;
}

static fathom_err open_stops(struct answer *a)
{
    const size_t n = api_request_n_rule(a->setup.request);
    a->stops = mem_calloc(n, sizeof *a->stops);
    if (!a->stops) return FATHOM_ENOMEM;
    for (size_t i = 0; i < n; i++) {
        const struct api_request *r = api_request_of(a->setup.request, i);
        TRY(stop_set_create(&a->stops[i], (const char *const *)r->stops, r->stop_lens, r->n_stop));
    }
    return FATHOM_OK;
}

/* The id of a response can be used to ask for it later, so a client must not choose it. */
static void write_id(struct answer *a)
{
    const char *prefix = a->form->id_prefix;
    uint64_t nonce = a->setup.nonce;
    const char *given = a->setup.request_id;
    if (given && given[0] && a->setup.request->api != API_RESPONSES) {
        (void)snprintf(a->id, sizeof a->id, "%s%s", prefix, given);
    } else {
        (void)snprintf(a->id, sizeof a->id, "%s%016llx%016llx", prefix,
                       (unsigned long long)rng_mix(nonce, 0, 0),
                       (unsigned long long)rng_mix(nonce, 0, 1));
    }
}

fathom_err answer_open(struct answer *a, const struct answer_setup *s)
{
    const struct api_request *r = s->request;
    *a = (struct answer){.setup = *s};
    a->form = s->form;
    write_id(a);
    TRY(open_stops(a));
    TRY(open_prompts(a));
    if (a->form->open) TRY(a->form->open(a));
    size_t n = a->n_prompt * r->n;
    a->choices = mem_calloc(n, sizeof *a->choices);
    if (!a->choices) return FATHOM_ENOMEM;
    a->n_choice = n;
    a->n_open = n;
    for (size_t i = 0; i < n; i++) TRY(open_choice(a, i));
    return FATHOM_OK;
}

static void free_choice(struct choice *c)
{
    text_free(&c->text);
    chat_parser_destroy(c->parser);
    c->parser = NULL;
    buf_free(&c->reasoning);
    buf_free(&c->content);
    buf_free(&c->calls);
    buf_free(&c->arguments);
    buf_free(&c->ids);
    logprob_list_free(&c->logprobs);
}

void answer_drop_text(struct answer *a)
{
    if (a->form && a->form->free) a->form->free(a);
    for (size_t i = 0; i < a->n_choice; i++) free_choice(&a->choices[i]);
    for (size_t i = 0; i < a->n_prompt; i++) {
        buf_free(&a->prompts[i].ids);
        logprob_list_free(&a->prompts[i].scores);
    }
}

void answer_free(struct answer *a)
{
    answer_drop_text(a);
    mem_free(a->choices);
    mem_free(a->prompts);
    for (size_t i = 0; a->stops && i < api_request_n_rule(a->setup.request); i++) {
        stop_set_destroy(&a->stops[i]);
    }
    mem_free(a->stops);
    buf_free(&a->head);
    buf_free(&a->piece);
    buf_free(&a->out);
    *a = (struct answer){0};
}

/* ---- memory -------------------------------------------------------------------------------- */

static size_t logprob_bytes(const struct logprob_list *l)
{
    return l->tokens.cap + l->values.cap + l->top.cap + l->offsets.cap;
}

size_t answer_choice_bytes(const struct answer *a, size_t i)
{
    const struct choice *c = &a->choices[i];
    size_t n = c->reasoning.cap + c->content.cap + c->calls.cap + c->arguments.cap + c->ids.cap +
               logprob_bytes(&c->logprobs);
    bool first = i % a->setup.request->n == 0;
    return first ? n + logprob_bytes(&a->prompts[c->i_prompt].scores) : n;
}

size_t answer_bytes(const struct answer *a)
{
    size_t n = a->out.cap + a->head.cap + a->piece.cap;
    for (size_t i = 0; i < a->n_prompt; i++) n += a->prompts[i].ids.cap;
    return a->form && a->form->bytes && a->own ? n + a->form->bytes(a) : n;
}

/* ---- events -------------------------------------------------------------------------------- */

/* Takes the next text of a choice. */
static fathom_err take_text(struct choice *c, const struct buf *text)
{
    if (c->parser) return chat_parser_push(c->parser, buf_str(text), text->len);
    const struct chat_event e = {.kind = CHAT_EVENT_CONTENT, .text = buf_str(text), .n = text->len};
    return take_event(c, &e);
}

/* If a call was asked for by name, OpenAI and vLLM call its end "stop", not "tool_calls". */
static bool is_named(const struct api_request *r)
{
    return r->api == API_CHAT && r->rule.tool_choice == TOOL_CHOICE_NAMED;
}

static fathom_err end_choice(struct choice *c, const char *reason)
{
    struct answer *a = c->answer;
    buf_clear(&a->piece);
    TRY(text_end(&c->text, &a->piece));
    TRY(take_text(c, &a->piece));
    if (c->parser) TRY(chat_parser_finish(c->parser));
    if (answer_is_streamed(a)) TRY(a->form->flush(c));
    if (c->text.hit >= 0) reason = "stop";
    bool has_calls = c->parser && chat_parser_n_call(c->parser) > 0 && !is_named(a->setup.request);
    c->finish_reason = has_calls && strcmp(reason, "stop") == 0 ? "tool_calls" : reason;
    c->ended = true;
    a->n_open--;
    return a->form->end(c);
}

struct logprob_style answer_logprob_style(const struct answer *a, size_t i_prompt)
{
    const struct api_request *r = a->setup.request;
    return (struct logprob_style){a->setup.tokenizer, r->tokens_as_ids,
                                  api_request_of(r, i_prompt)->skip_special_tokens,
                                  r->logprob_texts};
}

fathom_err answer_add_score(struct answer *a, size_t i, const fathom_event *e)
{
    const struct api_request *r = api_request_of(a->setup.request, i);
    struct logprob_list *l = &a->prompts[i].scores;
    struct logprob_style s = answer_logprob_style(a, i);
    s.as_ids = false; /* they are told beside the texts */
    if (r->api != API_SGLANG) return logprob_add_prompt(l, &s, e, r->n_prompt_logprobs);
    if (l->n < r->prompt_logprobs_from) {
        l->n++;
        return FATHOM_OK;
    }
    return logprob_add_sglang(l, &s, e);
}

fathom_err answer_prompt_token(struct answer *a, size_t i, const fathom_event *e)
{
    struct choice *c = &a->choices[i];
    const struct api_request *r = answer_request_of(c);
    struct logprob_style s = answer_logprob_style(a, c->i_prompt);
    if (c->ended || a->closed) return FATHOM_OK;
    if (r->echo && r->sampling.logprobs) {
        if (c->echoes_special) s.skip_special = false;
        TRY(logprob_add_completion(&c->logprobs, &s, e, r->sampling.n_top_logprobs,
                                   &c->prompt_place));
    }
    if (!r->prompt_logprobs || i % r->n > 0) return FATHOM_OK;
    return answer_add_score(a, c->i_prompt, e);
}

static fathom_err add_logprob(struct choice *c, const fathom_event *e)
{
    const struct api_request *r = answer_request_of(c);
    struct logprob_style s = answer_logprob_style(c->answer, c->i_prompt);
    if (!r->sampling.logprobs) return FATHOM_OK;
    /* the Responses API has them for messages only */
    if (r->api == API_RESPONSES && chat_parser_in_reasoning(c->parser)) return FATHOM_OK;
    if (r->api == API_SGLANG) return logprob_add_sglang(&c->logprobs, &s, e);
    if (r->api != API_COMPLETION) return logprob_add_chat(&c->logprobs, &s, e);
    return logprob_add_completion(&c->logprobs, &s, e, r->sampling.n_top_logprobs, &c->place);
}

/* Only the first choice of a prompt tells what was cached before this request; the others find its
 * pages. */
static void note_cached(struct answer *a, size_t i, const fathom_event *e)
{
    if (i % a->setup.request->n == 0) a->prompts[a->choices[i].i_prompt].n_cached = e->n_cached;
}

/* Whether answers of an API have token ids even if the request does not ask for them. */
static bool tells_ids(enum api_kind api)
{
    return api == API_GENERATE || api == API_SGLANG;
}

fathom_err answer_token(struct answer *a, size_t i, const fathom_event *e, bool *stopped)
{
    struct choice *c = &a->choices[i];
    const struct api_request *r = answer_request_of(c);
    *stopped = false;
    note_cached(a, i, e);
    if (c->ended || a->closed || r->max_tokens == 0) return FATHOM_OK;
    c->n_token++;
    c->sum_logprob += (double)e->logprob;
    if (c->parser && chat_parser_in_reasoning(c->parser)) c->n_reasoning++;
    if (r->return_token_ids || tells_ids(r->api)) TRY(add_id(&c->ids, e->token));
    TRY(add_logprob(c, e));
    if (e->is_stop && !r->include_stop) return FATHOM_OK;
    buf_clear(&a->piece);
    TRY(text_push(&c->text, e->token, &a->piece));
    TRY(take_text(c, &a->piece));
    if (c->text.hit >= 0) {
        *stopped = true;
        return end_choice(c, "stop");
    }
    return answer_is_streamed(a) ? a->form->flush(c) : FATHOM_OK;
}

/* The stop token to tell, or -1. One that ends every answer of the model is told only to SGLang's
 * clients; one that the request has named is told to all. */
static int32_t told_stop_id(const struct answer *a, int32_t id)
{
    const fathom_info *info = a->setup.info;
    if (a->setup.request->api == API_SGLANG) return id;
    for (uint32_t i = 0; i < info->n_eos; i++) {
        if (info->eos_ids[i] == id) return -1;
    }
    return id;
}

fathom_err answer_finish(struct answer *a, size_t i, const fathom_event *e)
{
    struct choice *c = &a->choices[i];
    if (a->closed) return FATHOM_OK;
    note_cached(a, i, e);
    if (c->ended) return FATHOM_OK;
    const bool is_cut = e->finish == FATHOM_FINISH_LENGTH || e->finish == FATHOM_FINISH_UNWANTED ||
                        answer_request_of(c)->max_tokens == 0;
    if (e->finish == FATHOM_FINISH_STOP && !is_cut) c->stop_id = told_stop_id(a, e->stop_id);
    return end_choice(c, is_cut ? "length" : "stop");
}

fathom_err answer_start(struct answer *a)
{
    if (a->closed || !answer_is_streamed(a) || !a->form->start) return FATHOM_OK;
    return a->form->start(a);
}

fathom_err answer_close(struct answer *a)
{
    ASSERT(a->n_open == 0);
    if (a->closed) return FATHOM_OK;
    a->closed = true;
    return a->form->close(a);
}

fathom_err answer_fail(struct answer *a, const struct api_error *e)
{
    if (a->closed) return FATHOM_OK;
    a->closed = true;
    return answer_is_streamed(a) ? a->form->fail(a, e) : FATHOM_OK;
}

fathom_err answer_keep_alive(struct answer *a)
{
    return a->closed ? FATHOM_OK : a->form->keep_alive(a);
}
