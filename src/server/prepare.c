/* prepare.c - the worker's part of a job: body to prompt tokens to requests in the engine
 *
 * All steps but the last work without the job's lock. Until RUNNING the request, the prompts and
 * the answer belong to the worker.
 */
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/assert.h"
#include "base/clock.h"
#include "base/crash.h"
#include "base/fail.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/rng.h"
#include "server/grammar_constraint.h"
#include "server/gunzip.h"
#include "server/job.h"
#include "server/response_store.h"
#include "server/thinking_budget.h"
#include "server/token_rule.h"

/* ---- checks against what is served --------------------------------------------------------- */

static fathom_err refuse_model(const struct served *s, const char *model, struct api_error *e)
{
    struct buf names = {.limit = 512};
    for (size_t i = 0; i < s->o.n_model_name; i++) {
        (void)buf_printf(&names, i ? ", \"%s\"" : "\"%s\"", s->o.model_names[i]);
    }
    fathom_err err = api_error_set(e, 404, "model_not_found", "model",
                                   "the model \"%.200s\" is not served here; served: %s", model,
                                   buf_str(&names));
    buf_free(&names);
    return err;
}

/* The served name that the request used; the first one when it named none, or "". */
static fathom_err find_model(const struct served *s, const char *model, const char **out,
                             struct api_error *e)
{
    *out = s->o.model_names[0];
    if (!model || !*model) return FATHOM_OK;
    for (size_t i = 0; i < s->o.n_model_name; i++) {
        *out = s->o.model_names[i];
        if (strcmp(*out, model) == 0) return FATHOM_OK;
    }
    return refuse_model(s, model, e);
}

/* The first of these that is given, which is not negative. */
static float first_of(float requested, float by_operator, float by_checkpoint, float neutral)
{
    if (requested >= 0.0f) return requested;
    if (by_operator >= 0.0f) return by_operator;
    return by_checkpoint >= 0.0f ? by_checkpoint : neutral;
}

static void set_defaults(const struct served *s, struct api_request *r)
{
    static const fathom_sampling none = {
        .temperature = -1, .top_p = -1, .top_k = -1, .min_p = -1, .repetition_penalty = -1};
    const fathom_sampling *o = s->o.sampling ? s->o.sampling : &none;
    const fathom_info *info = s->info;
    bool use = !s->o.neutral_sampling && r->api != API_SGLANG;
    fathom_sampling *p = &r->sampling;
    p->temperature =
        first_of(p->temperature, o->temperature, use ? info->default_temperature : -1, 1);
    const float top_p = use && info->default_top_p > 0.0f ? info->default_top_p : -1;
    p->top_p = first_of(p->top_p, o->top_p, top_p, 1);
    p->min_p = first_of(p->min_p, o->min_p, -1, 0);
    p->repetition_penalty = first_of(p->repetition_penalty, o->repetition_penalty, -1, 1);
    if (p->top_k == API_TOP_K_UNSET) {
        p->top_k = use && info->default_top_k > 0 ? info->default_top_k : 0;
        if (o->top_k >= 0) p->top_k = o->top_k;
    }
    p->max_tokens = r->max_tokens > 0 ? (uint32_t)r->max_tokens : 0;
    if (s->o.always_usage && r->stream) r->include_usage = r->continuous_usage = true;
}

/* Each entry of a prompt's log-probabilities waits in memory until the answer is complete. */
static fathom_err check_prompt_logprobs(const struct api_request *r, uint64_t n_prompt,
                                        struct api_error *e)
{
    uint64_t n = n_prompt * (1 + r->sampling.n_prompt_top_logprobs);
    if (!r->sampling.prompt_logprobs || n <= LIMIT_PROMPT_LOGPROBS) return FATHOM_OK;
    return api_error_set(e, 400, "invalid_value",
                         r->api == API_SGLANG ? "logprob_start_len"
                         : r->prompt_logprobs ? "prompt_logprobs"
                                              : "logprobs",
                         "the prompt's %llu tokens with %u alternatives each are %llu entries, at "
                         "most %d are told: ask for fewer alternatives",
                         (unsigned long long)n_prompt, r->sampling.n_prompt_top_logprobs,
                         (unsigned long long)n, LIMIT_PROMPT_LOGPROBS);
}

static const char *prompt_field(const struct api_request *r)
{
    if (r->api == API_RESPONSES || r->api == API_INPUT_TOKENS) return "input";
    if (r->api == API_DETOKENIZE) return "tokens";
    if (r->api == API_GENERATE) return "token_ids";
    if (r->api == API_SGLANG) return r->prompts[0].ids ? "input_ids" : "text";
    return api_is_chat(r->api) ? "messages" : "prompt";
}

/* A prompt that the context does not hold, in the words by which clients of each API know it and
 * shorten the conversation; what follows tells the numbers. */
static fathom_err refuse_long(struct job *job, const char *param, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
static fathom_err refuse_long(struct job *job, const char *param, const char *fmt, ...)
{
    char text[200];
    va_list ap;
    va_start(ap, fmt);
    (void)vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    if (api_is_anthropic(job->api)) {
        return api_error_set(&job->error, 400, "context_length_exceeded", param,
                             "prompt is too long: %s", text);
    }
    return api_error_set(&job->error, 400, "context_length_exceeded", param,
                         "This model's maximum context length is %u tokens. However, %s "
                         "(context_length_exceeded)",
                         job->jobs->served->info->max_model_len, text);
}

static fathom_err refuse_tokens_of(struct job *job, const char *more, uint64_t n)
{
    uint32_t max_len = job->jobs->served->info->max_model_len;
    const char *param = prompt_field(&job->request);
    if (api_is_anthropic(job->api)) {
        return refuse_long(job, param, "%s%llu tokens > %u maximum", more, (unsigned long long)n,
                           max_len);
    }
    return refuse_long(job, param, "your prompt has %s%llu tokens: shorten it", more,
                       (unsigned long long)n);
}

/* Prompt and answer together. Claude Code lowers max_tokens by the numbers that it reads here. */
static fathom_err refuse_sum(struct job *job, uint64_t n_prompt, uint64_t n_output)
{
    const char *length = api_length_name(job->api);
    if (api_is_anthropic(job->api)) {
        return api_error_set(&job->error, 400, "context_length_exceeded", length,
                             "input length and `max_tokens` exceed context limit: %llu + %llu > "
                             "%u, decrease input length or `max_tokens` and try again",
                             (unsigned long long)n_prompt, (unsigned long long)n_output,
                             job->jobs->served->info->max_model_len);
    }
    return refuse_long(job, length,
                       "you requested %llu tokens (%llu in the prompt, %llu in %s): lower %s or "
                       "shorten the prompt",
                       (unsigned long long)(n_prompt + n_output), (unsigned long long)n_prompt,
                       (unsigned long long)n_output, length, length);
}

/* An answer of no tokens that needs the engine: one is drawn for it and not told. SGLang's clients
 * put prompts into the cache so. */
static bool draws_untold(const struct api_request *r)
{
    return r->max_tokens == 0 && (r->sampling.prompt_logprobs || r->api == API_SGLANG);
}

static fathom_err check_length(struct job *job, size_t i)
{
    const struct api_request *r = api_request_of(&job->request, i);
    const char *param = prompt_field(&job->request);
    uint64_t n_prompt = job->prompts[i].n;
    uint64_t max_len = job->jobs->served->info->max_model_len;
    uint64_t n_output = r->max_tokens >= 0 ? (uint64_t)r->max_tokens : 1;
    if (draws_untold(r)) n_output = 1;
    TRY(check_prompt_logprobs(r, n_prompt, &job->error));
    if (n_prompt == 0) {
        return api_error_set(&job->error, 400, "invalid_value", param,
                             "prompt %zu has no tokens, at least "
                             "one is needed",
                             i);
    }
    if (n_prompt + n_output <= max_len) return FATHOM_OK;
    return n_prompt + 1 > max_len ? refuse_tokens_of(job, "", n_prompt)
                                  : refuse_sum(job, n_prompt, n_output);
}

/* Each choice is a request of the engine, and has its prompt's ids until it ends. */
static fathom_err check_choices(struct job *job)
{
    const struct api_request *r = &job->request;
    const uint32_t n_most = job->jobs->served->info->max_requests;
    uint64_t n = 0;
    if (job->n_prompt * r->n > n_most) { /* there will never be room: 429 would be no help */
        return api_error_set(&job->error, 400, "invalid_value", r->n > 1 ? "n" : prompt_field(r),
                             "%zu choices are more than run and wait here at once, which is %u "
                             "(--max-num-seqs and --max-queued): send several requests",
                             job->n_prompt * r->n, n_most);
    }
    for (size_t i = 0; i < job->n_prompt; i++) n += job->prompts[i].n;
    if (n * r->n <= LIMIT_CHOICE_TOKENS) return FATHOM_OK;
    return api_error_set(&job->error, 400, "invalid_value", r->n > 1 ? "n" : prompt_field(r),
                         "%llu prompt tokens times n = %u are %llu, at most %d are taken: send "
                         "several requests",
                         (unsigned long long)n, r->n, (unsigned long long)(n * r->n),
                         LIMIT_CHOICE_TOKENS);
}

/* A text longer than the context's longest tokens is refused before it costs anything: tokenising
 * takes a multiple of its memory. */
static fathom_err refuse_bytes(struct job *job, const char *param, size_t n, bool is_all)
{
    const struct served *s = job->jobs->served;
    return refuse_long(job, param,
                       "your prompt is %s%zu bytes long and the longest token has %zu bytes: at "
                       "most %zu bytes fit; shorten it",
                       is_all ? "" : "more than ", n, s->max_prompt_bytes / s->info->max_model_len,
                       s->max_prompt_bytes);
}

/* What the tokenizer's ELIMIT says of a prompt; other errors as they are. */
static fathom_err refuse_tokens(struct job *job, const struct token_list *l, fathom_err err)
{
    const char *param = prompt_field(&job->request);
    if (err != FATHOM_ELIMIT) return err;
    if (l->n > l->limit) return refuse_tokens_of(job, "more than ", l->limit);
    return api_error_set(&job->error, 400, "invalid_value", param,
                         "the prompt has a part without a break, as a run of letters or of spaces, "
                         "that is too long to become tokens (more than %d bytes): break it up",
                         LIMIT_PIECE_BYTES);
}

/* ---- prompts ------------------------------------------------------------------------------- */

/* The encoding writes the control tokens. A message that spells one is text, unless the server is
 * told to trust messages. */
static fathom_err encode_chat(const struct served *s, const struct buf *text,
                              const struct chat_marks *marks, struct token_list *out)
{
    if (s->o.markup_in_messages) {
        return tokenizer_encode(s->tokenizer, buf_str(text), text->len, TOKENIZER_MARKUP_ON, out);
    }
    return tokenizer_encode_marked(s->tokenizer, buf_str(text), text->len, marks->at, marks->n,
                                   out);
}

static fathom_err make_chat_prompt(struct job *job, bool *thinking)
{
    const struct served *s = job->jobs->served;
    const struct api_request *r = &job->request;
    struct buf text = {.limit = s->max_prompt_bytes};
    struct chat_marks marks = {0};
    fathom_diag d;
    diag_clear(&d);
    struct chat_request chat = {
        .messages = r->messages,
        .tools = r->tools,
        .response_format = r->response_format,
        .thinking = r->thinking == API_UNSET ? s->o.thinking : r->thinking == API_ON,
        .tools_first_message = s->o.tools_first_message,
        .continue_final_message = r->continue_final_message,
        .add_generation_prompt = r->add_generation_prompt,
    };
    /* arguments of calls are JSON in a string, of the client's too */
    struct json_arena *before = json_arena_enter(r->body_arena);
    fathom_err err = chat_render(&s->style, &chat, &text, &marks, &d);
    (void)json_arena_enter(before);
    if (text.over_limit) {
        err = refuse_bytes(job, prompt_field(r), s->max_prompt_bytes, false);
        goto out;
    }
    if (err) {
        (void)api_error_from(&job->error, err, prompt_field(r), &d);
        goto out;
    }
    err = encode_chat(s, &text, &marks, &job->prompts[0]);
    TRY_GOTO(refuse_tokens(job, &job->prompts[0], err), out);
    *thinking = chat_prompt_in_reasoning(&s->style, buf_str(&text), text.len);
out:
    chat_marks_free(&marks);
    buf_free(&text);
    return err;
}

/* BOS is put in front of text where the checkpoint's tokenizer does so, but never twice. */
static fathom_err add_bos(struct job *job, const struct api_prompt *p, struct token_list *out)
{
    const struct served *s = job->jobs->served;
    if (!p->text || !s->add_bos || !job->request.add_special_tokens || s->info->bos_id < 0) {
        return FATHOM_OK;
    }
    size_t n;
    const char *bos = tokenizer_bytes(s->tokenizer, s->info->bos_id, &n);
    bool has_bos = n && n <= p->n_text && memcmp(p->text, bos, n) == 0;
    return has_bos ? FATHOM_OK : token_list_add(out, s->info->bos_id);
}

static fathom_err add_prompt(struct job *job, const struct api_prompt *p, struct token_list *out)
{
    const struct served *s = job->jobs->served;
    const struct api_request *r = &job->request;
    if (p->n_id > s->info->max_model_len && !r->truncate) {
        const char *param = prompt_field(r);
        return refuse_long(job, param, "your %s has %zu token ids: shorten it", param, p->n_id);
    }
    for (size_t i = 0; i < p->n_id; i++) TRY(token_list_add(out, p->ids[i]));
    if (!p->text) return FATHOM_OK;
    if (p->n_text > s->max_prompt_bytes) {
        return refuse_bytes(job, prompt_field(r), p->n_text, true);
    }
    fathom_err err = tokenizer_encode(s->tokenizer, p->text, p->n_text, TOKENIZER_MARKUP_ON, out);
    return refuse_tokens(job, out, err);
}

/* The tokens around prompt and suffix (fill in the middle): the model writes what is between. */
struct fim {
    int32_t begin, hole, end;
};

static fathom_err find_fim(struct job *job, struct fim *f)
{
    const struct tokenizer *t = job->jobs->served->tokenizer;
    *f = (struct fim){tokenizer_find(t, "<｜fim▁begin｜>"), tokenizer_find(t, "<｜fim▁hole｜>"),
                      tokenizer_find(t, "<｜fim▁end｜>")};
    if (f->begin >= 0 && f->hole >= 0 && f->end >= 0) return FATHOM_OK;
    return api_error_set(&job->error, 400, "unsupported_parameter", "suffix",
                         "suffix is not supported by this model: its tokenizer has no tokens to "
                         "fill in the middle (<｜fim▁begin｜>, <｜fim▁hole｜>, <｜fim▁end｜>)");
}

static fathom_err make_infill_prompt(struct job *job, const struct api_prompt *p,
                                     struct token_list *out)
{
    const struct served *s = job->jobs->served;
    const struct api_request *r = &job->request;
    struct fim f;
    TRY(find_fim(job, &f));
    if (r->n_suffix > s->max_prompt_bytes) return refuse_bytes(job, "suffix", r->n_suffix, true);
    TRY(add_bos(job, p, out));
    TRY(token_list_add(out, f.begin));
    TRY(add_prompt(job, p, out));
    TRY(token_list_add(out, f.hole));
    fathom_err err =
        tokenizer_encode(s->tokenizer, r->suffix, r->n_suffix, TOKENIZER_MARKUP_ON, out);
    TRY(refuse_tokens(job, out, err));
    return token_list_add(out, f.end);
}

static fathom_err make_completion_prompt(struct job *job, const struct api_prompt *p,
                                         struct token_list *out)
{
    if (job->request.suffix) return make_infill_prompt(job, p, out);
    TRY(add_bos(job, p, out));
    return add_prompt(job, p, out);
}

/* Keeps the last tokens, or the first; BOS stays. */
static fathom_err truncate_prompt(struct job *job, struct token_list *l)
{
    const struct api_request *r = &job->request;
    const fathom_info *info = job->jobs->served->info;
    if (r->truncate == 0) return FATHOM_OK;
    if (r->truncate > 0 && (uint32_t)r->truncate > info->max_model_len) {
        return api_error_set(&job->error, 400, "invalid_value", "truncate_prompt_tokens",
                             "truncate_prompt_tokens is %d, the context holds %u tokens",
                             r->truncate, info->max_model_len);
    }
    uint64_t n_output = r->max_tokens > 0 ? (uint64_t)r->max_tokens : 1;
    uint64_t room = info->max_model_len > n_output ? info->max_model_len - n_output : 1;
    size_t n = r->truncate > 0 ? (size_t)r->truncate : (size_t)room;
    if (l->n <= n) return FATHOM_OK;
    size_t n_first = l->ids[0] == info->bos_id ? 1 : 0;
    size_t n_last = n > n_first ? n - n_first : 0;
    if (!r->truncate_right) {
        memmove(l->ids + n_first, l->ids + l->n - n_last, n_last * sizeof *l->ids);
    }
    l->n = n;
    return FATHOM_OK;
}

static fathom_err make_prompts(struct job *job, bool *thinking)
{
    const struct api_request *r = &job->request;
    size_t n = api_is_chat(r->api) ? 1 : r->n_prompt;
    *thinking = false;
    job->prompts = mem_calloc(n, sizeof *job->prompts);
    if (!job->prompts) return FATHOM_ENOMEM;
    job->n_prompt = n;
    /* what is only counted, or cut, may be longer than the context; of the rest a prompt a little
     * too long is told by its length */
    bool may_pass = r->n == 0 || r->truncate;
    size_t limit = may_pass ? SIZE_MAX : 2 * (size_t)job->jobs->served->info->max_model_len;
    for (size_t i = 0; i < n; i++) job->prompts[i].limit = limit;
    if (api_is_chat(r->api)) {
        TRY(make_chat_prompt(job, thinking));
        TRY(truncate_prompt(job, &job->prompts[0]));
        if (r->n) TRY(check_length(job, 0));
        return check_choices(job);
    }
    for (size_t i = 0; i < n; i++) {
        TRY(make_completion_prompt(job, &r->prompts[i], &job->prompts[i]));
        TRY(truncate_prompt(job, &job->prompts[i]));
        if (r->n) TRY(check_length(job, i));
    }
    return check_choices(job);
}

/* ---- the form of the answer ---------------------------------------------------------------- */

static fathom_err refuse_grammar(struct job *job, const char *param, fathom_err err,
                                 const fathom_diag *d)
{
    if (err == FATHOM_ENOMEM || err == FATHOM_ECANCEL) return err;
    if (err == FATHOM_EBUSY) {
        return api_error_set(&job->error, 503, "server_busy", param, "%s; try again later",
                             d->text);
    }
    bool of_tools = !param || strncmp(d->text, "schema tools[", 13) == 0;
    const char *code = err == FATHOM_EUNSUPPORTED ? "unsupported_value" : "invalid_value";
    return api_error_set(&job->error, 400, code, of_tools ? "tools" : param, "%s", d->text);
}

/* *rest is WORK_DONE once grammar i is there, or none is wanted. */
static fathom_err make_grammar(struct job *job, size_t i, enum work_kind kind, enum work_rest *rest)
{
    const struct served *s = job->jobs->served;
    const struct answer_rule *rule = &api_request_of(&job->request, i)->rule;
    const json_t *tools = s->style.parse_tools ? job->request.tools : NULL;
    struct answer_grammar answer;
    struct call_grammar calls;
    fathom_diag d;
    *rest = WORK_DONE;
    if (job->request.n == 0) return FATHOM_OK; /* its tokens are only counted */
    if (!tools && rule->tool_choice >= TOOL_CHOICE_REQUIRED) {
        return api_error_set(&job->error, 400, "unsupported_value", "tool_choice",
                             "tool_choice demands a call, and this server does not read calls "
                             "(--tool-call-parser none)");
    }
    if (!answer_rule_grammar(rule, tools, s->style.tool_markup, job->thinking, &answer, &calls)) {
        return FATHOM_OK;
    }
    diag_clear(&d);
    fathom_err err = grammar_cache_get(job->jobs->grammars, &answer, &rule->options,
                                       kind == WORK_COMPILE, &job->wait, &job->grammars[i], &d);
    if (err) return refuse_grammar(job, rule->param, err, &d);
    if (job->wait.next == GRAMMAR_COMPILE) *rest = WORK_TO_COMPILE;
    if (job->wait.next == GRAMMAR_WAIT) *rest = WORK_TO_WAIT;
    return FATHOM_OK;
}

/* A turn to compile is for one of them: a client that has left meanwhile wants no more. */
static fathom_err make_grammars(struct job *job, enum work_kind kind, enum work_rest *rest)
{
    const size_t n = api_request_n_rule(&job->request);
    if (!job->grammars) job->grammars = mem_calloc(n, sizeof(struct grammar *));
    if (!job->grammars) return FATHOM_ENOMEM;
    while (job->n_ruled < n) {
        TRY(make_grammar(job, job->n_ruled, kind, rest));
        if (*rest != WORK_DONE) return FATHOM_OK;
        job->n_ruled++;
        kind = WORK_PREPARE;
    }
    return FATHOM_OK;
}

/* api_bounds.recall: the job holds on to the response. */
static fathom_err recall(void *arg, const char *id, json_t *items, struct api_error *e)
{
    struct job *job = arg;
    job->previous = response_store_hold(job->jobs->responses, id, job->tenant, clock_now_us());
    if (job->previous) return response_link_items(job->previous, items);
    return api_error_set(e, 400, "previous_response_not_found", "previous_response_id",
                         "there is no response \"%.80s\": it was not stored, or is deleted, too "
                         "old, or had to make room for newer ones (--max-stored-responses)",
                         id);
}

/* What clients send is told once for each way they send it. */
static void log_warnings(struct job *job)
{
    const struct api_warnings *w = &job->request.warnings;
    struct jobs *jobs = job->jobs;
    uint64_t sum = 1;
    if (w->n == 0) return;
    for (const char *c = w->text; *c; c++) sum = rng_hash(sum ^ (unsigned char)*c);
    for (size_t i = 0; i < JOBS_WARNED_MAX; i++) {
        uint64_t seen = 0;
        if (atomic_compare_exchange_strong(&jobs->warned[i], &seen, sum)) {
            LOG_WARN("server", "passed over in requests: %s (--strict-fields refuses it)", w->text);
            return;
        }
        if (seen == sum) return;
    }
}

static bool hold(void *arg, size_t n)
{
    const struct job *job = arg;
    return state_hold_bytes(job->jobs->state, n);
}

/* The text takes the place of the body that it came in. */
static fathom_err unpack_body(struct job *job)
{
    struct buf text = {.limit = LIMIT_HTTP_BODY_BYTES};
    struct api_error *e = &job->error;
    if (!job->gzip) return FATHOM_OK;
    fathom_err err = gunzip(&text, buf_str(&job->body), job->body.len, hold, job);
    job_drop_body(job);
    job->body = text; /* what there is of it is counted */
    job->gzip = false;
    switch (err) {
    case FATHOM_EFORMAT:
        return api_error_set(e, 400, "invalid_value", "Content-Encoding",
                             "the request body is no gzip, as Content-Encoding says, or is cut");
    case FATHOM_ELIMIT:
        return api_error_set(e, 413, "request_too_large", NULL,
                             "the request body unpacks to more than %d bytes, or to more than %d "
                             "for each of its bytes",
                             LIMIT_HTTP_BODY_BYTES, LIMIT_GZIP_FACTOR);
    case FATHOM_EBUSY:
        return api_error_set(e, 429, "server_busy", NULL,
                             "the bodies of requests on their way hold %u bytes, which is the "
                             "limit; try again later",
                             job->jobs->served->o.max_held_bytes);
    default: return err;
    }
}

/* Body to prompts. */
static fathom_err read_request(struct job *job)
{
    const struct served *s = job->jobs->served;
    struct api_request *r = &job->request;
    const struct api_bounds bounds = {.n_vocab = s->info->n_vocab,
                                      .strict = s->o.strict_fields,
                                      .tokens_as_ids = s->o.tokens_as_ids,
                                      .recall = job->jobs->responses ? recall : NULL,
                                      .recall_arg = job};
    TRY(unpack_body(job));
    TRY(api_request_parse(r, job->api, buf_str(&job->body), job->body.len, &bounds, &job->error));
    job_drop_body(job);
    log_warnings(job);
    TRY(find_model(s, r->model, &job->model, &job->error));
    set_defaults(s, r);
    for (size_t i = 0; r->each && i < r->n_prompt; i++) set_defaults(s, &r->each[i]);
    TRY(make_prompts(job, &job->thinking));
    const struct rule_source from = {s->tokenizer, s->info->n_vocab};
    TRY(token_rule_create(&job->barred, r, &from, &job->error));
    if (!r->echo) api_request_drop_body(r); /* the grammar may take its time */
    return FATHOM_OK;
}

static fathom_err open_answer(struct job *job)
{
    const struct served *s = job->jobs->served;
    struct api_request *r = &job->request;
    struct answer_setup setup = {.form = answer_form_of(r->api),
                                 .request = r,
                                 .prompts = job->prompts,
                                 .tokenizer = s->tokenizer,
                                 .style = &s->style,
                                 .info = s->info,
                                 .model = job->model,
                                 .thinking = job->thinking,
                                 .stream_pieces = s->o.stream_pieces,
                                 .nonce = job->pass.is_on ? job->pass.nonce : rng_entropy(),
                                 .request_id = r->request_id[0] ? r->request_id : job->request_id,
                                 .created = job->pass.is_on ? job->pass.created : clock_unix_s()};
    fathom_err err = answer_open(&job->answer, &setup);
    if (err == FATHOM_ELIMIT) {
        return api_error_set(&job->error, 400, "answer_too_large", prompt_field(r),
                             "the answer is larger than %d MiB: send less at a time",
                             LIMIT_TOKEN_ANSWER_BYTES >> 20);
    }
    TRY(err);
    TRY(job_check_resume(job));
    job->crash_entry = crash_note(job->answer.id);
    api_request_drop_body(r);
    job->choices = mem_calloc(job->answer.n_choice, sizeof *job->choices);
    return job->choices ? FATHOM_OK : FATHOM_ENOMEM;
}

/* ---- submit, with the lock held ------------------------------------------------------------ */

/* Bounds its reasoning; what does not reason, and has no tag to end it by, is as it is. */
static fathom_err bound_thinking(struct job *job, const struct token_list *prompt,
                                 fathom_constraint *c)
{
    static const char *const name = "thinking_token_budget";
    const struct served *s = job->jobs->served;
    const struct api_request *r = &job->request;
    struct thinking_budget b;
    if (r->thinking_budget == API_NO_BUDGET) return FATHOM_OK;
    const struct thinking_source from = {&s->style, s->tokenizer, s->info->n_vocab};
    thinking_budget_init(&b, r->thinking_budget, &from, &s->thinking_closing, r->tools);
    const bool thinking = api_is_chat(r->api) ? job->thinking : thinking_budget_opens(&b, prompt);
    if (b.end < 0) {
        if (!thinking) return FATHOM_OK;
        return api_error_set(&job->error, 400, "unsupported_parameter", name,
                             "%s is not supported by this model: its tokenizer has no token "
                             "</think> that would end reasoning",
                             name);
    }
    if (thinking && r->allowed_ids && !(r->allowed_ids[b.end / 32] >> (b.end % 32) & 1)) {
        return api_error_set(&job->error, 400, "invalid_value", "allowed_token_ids",
                             "allowed_token_ids has not %d (</think>), by which %s ends reasoning",
                             (int)b.end, name);
    }
    return thinking_budget_constrain(&b, prompt, thinking, c);
}

/* What the request may draw, behind the tokens that it goes on from. */
static fathom_err constrain(struct job *job, size_t i_prompt, fathom_constraint *c)
{
    const struct token_list *prompt = &job->prompts[i_prompt];
    struct grammar *grammar = job->grammars[job->request.each ? i_prompt : 0];
    fathom_diag d;
    diag_clear(&d);
    if (grammar) {
        const char *param = api_request_of(&job->request, i_prompt)->rule.param;
        fathom_err err = grammar_constraint_create(c, grammar, job->jobs->served->info, &d);
        if (err) return api_error_from(&job->error, err, param, &d);
    }
    if (job->barred) TRY(token_rule_constrain(job->barred, c));
    TRY(bound_thinking(job, prompt, c));
    for (uint32_t i = 0; c->ops && i < job->request.n_resume; i++) {
        if (c->ops->accept(c->state, job->request.resume[i])) continue;
        return api_error_set(&job->error, 400, "invalid_value", "resume",
                             "resume[%u] is %d, which cannot come there", i,
                             (int)job->request.resume[i]);
    }
    return FATHOM_OK;
}

/* Where each host has a port, ranks are counted within it, as vLLM does. */
static fathom_err choose_lanes(struct job *job, fathom_request *r)
{
    const struct served *s = job->jobs->served;
    const int32_t lane = job->lane >= 0 ? job->lane : job->request.data_parallel_rank;
    const uint32_t n_host = s->o.n_host, n_lane = n_host > 0 ? s->info->n_lane / n_host : 0;
    r->has_lane = lane >= 0 || n_host > 0;
    r->lane = job->host * n_lane + (lane >= 0 ? (uint32_t)lane : 0);
    r->n_lane = lane >= 0 ? 1 : n_lane;
    if (n_host == 0 || lane < (int32_t)n_lane) return FATHOM_OK;
    return api_error_set(&job->error, 400, "invalid_value", "data_parallel_rank",
                         "data_parallel_rank is %d, needed is 0 to %u: of %u ranks each of %u "
                         "hosts has %u",
                         (int)lane, n_lane - 1, s->info->n_lane, n_host, n_lane);
}

/* Lower is earlier for the engine. */
static int32_t place_of(const struct job *job)
{
    const int32_t priority = job->request.priority;
    if (!job->jobs->served->o.high_priority_first) return priority;
    return priority == INT32_MIN ? INT32_MAX : -priority;
}

static fathom_err submit_choice(struct job *job, size_t i)
{
    const struct choice *c = &job->answer.choices[i];
    const struct api_request *own = answer_request_of(c);
    const struct token_list *prompt = &job->prompts[c->i_prompt];
    struct job_choice *choice = &job->choices[i];
    struct api_transfer *transfer = &job->request.transfer;
    if (transfer->is_shared) { /* both servers get the same request, and each does its part */
        transfer->takes = transfer->port && job->jobs->served->info->pages.takes;
        transfer->lends = !transfer->takes;
    }
    bool takes = transfer->takes;
    fathom_request r = {.prompt = prompt->ids,
                        .n_prompt = (uint32_t)prompt->n,
                        .output = job->request.resume,
                        .n_output = job->request.n_resume,
                        .sampling = own->sampling,
                        .cache_salt = served_salt(job->jobs->served, job->tenant, own->cache_salt),
                        .priority = place_of(job),
                        .pages.lent = job->request.transfer.lends,
                        .pages.needed = job->jobs->served->o.fail_lost_pages,
                        .pages.host = takes ? transfer->host : NULL,
                        .pages.port = transfer->port,
                        .pages.hand_over = transfer->name,
                        .tenant = job->tenant,
                        .user = choice};
    ASSERT(job->request.n > 0); /* this is one of them */
    TRY(choose_lanes(job, &r));
    /* the choices of one prompt differ though the request gives one seed */
    r.sampling.seed += i % job->request.n;
    if (job->request.n_told < job->request.n) r.sampling.logprobs = true;
    if (own->max_tokens == 0) r.sampling.max_tokens = 1;
    if (transfer->is_shared && transfer->lends) { /* the answer is the other server's */
        r.sampling.max_tokens = 1;
        r.sampling.min_tokens = 0;
    }
    /* echo tells the prompt with every choice, vLLM's form once */
    if (!job->request.echo && i % job->request.n > 0) r.sampling.prompt_logprobs = false;
    fathom_diag d;
    diag_clear(&d);
    fathom_err err = constrain(job, c->i_prompt, &r.constraint);
    if (!err) {
        choice->job = job;
        job_hold(job);
        err = fathom_submit(job->jobs->served->engine, &r, &choice->id, &d);
        if (err) job_release(job);
    }
    if (err) {
        if (r.constraint.ops) r.constraint.ops->destroy(r.constraint.state);
        return api_error_from(&job->error, err, NULL, &d);
    }
    choice->flying = true;
    job->n_flying++;
    return FATHOM_OK;
}

/* A completion that asks for no tokens and no log-probabilities is its echo alone. */
static fathom_err finish_without_engine(struct job *job)
{
    fathom_event e = {.kind = FATHOM_EVENT_FINISH, .finish = FATHOM_FINISH_LENGTH, .stop_id = -1};
    for (size_t i = 0; i < job->answer.n_choice; i++) TRY(answer_finish(&job->answer, i, &e));
    return FATHOM_OK;
}

static fathom_err submit_all(struct job *job)
{
    struct metrics *m = job->jobs->metrics;
    for (size_t i = 0; i < job->n_prompt && job->request.n; i++) {
        histogram_observe(&m->n_choice, job->request.n);
    }
    if (job->request.max_tokens == 0 && !draws_untold(&job->request)) {
        return finish_without_engine(job);
    }
    bool ended = false;
    if (job->request.n_resume) TRY(job_replay(job, &ended));
    for (size_t i = 0; i < job->answer.n_choice && !ended; i++) TRY(submit_choice(job, i));
    for (size_t i = 0; i < job->n_prompt; i++) token_list_free(&job->prompts[i]);
    job_drop_grammars(job);
    token_rule_destroy(job->barred);
    job->barred = NULL;
    return FATHOM_OK;
}

/* Whether anybody waits for the answer; begins the preparation. */
static bool begin(struct job *job, bool *first)
{
    (void)pthread_mutex_lock(&job->lock);
    ASSERT(job->state <= JOB_PREPARING);
    bool wanted = !job->cut && !atomic_load(&job->jobs->state->cancelling);
    *first = job->state == JOB_QUEUED;
    job->state = JOB_PREPARING;
    (void)pthread_mutex_unlock(&job->lock);
    return wanted;
}

static void submit(struct job *job, fathom_err err)
{
    if (err) { /* the answer may wait for its reader, and nothing of the request for that */
        job_drop_body(job);
        api_request_drop_body(&job->request);
    }
    (void)pthread_mutex_lock(&job->lock);
    if (job->cut) {
        job->state = JOB_DONE;
    } else {
        bool given_up = !err || err == FATHOM_ECANCEL;
        if (given_up && atomic_load(&job->jobs->state->cancelling)) {
            err = api_error_set(&job->error, 503, "shutting_down", NULL,
                                "the server is shutting down");
        }
        if (!err) {
            /* before the first submit: an event may wait for the lock as soon as it returns */
            job->state = JOB_RUNNING;
            job->moved_us = clock_now_us();
            err = job_count_answer(job, NULL);
            if (!err) err = submit_all(job);
            if (!err && !job->request.n_resume) err = answer_start(&job->answer);
        }
        if (err) job_fail(job, err);
        job_finish_if_ended(job);
        job_wake(job);
    }
    job_check(job);
    (void)pthread_mutex_unlock(&job->lock);
}

enum work_rest job_prepare(struct job *job, enum work_kind kind)
{
    bool first;
    enum work_rest rest = WORK_DONE;
    fathom_err err = begin(job, &first) ? FATHOM_OK : FATHOM_ECANCEL;
    if (!err && first) err = read_request(job);
    if (!err) err = make_grammars(job, kind, &rest);
    if (rest != WORK_DONE) return rest;
    if (!err) err = open_answer(job);
    submit(job, err);
    return WORK_DONE;
}
