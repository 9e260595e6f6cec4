#include "server/openai_parse.h"

#include <stdio.h>
#include <string.h>

#include "base/assert.h"
#include "base/fail.h"
#include "base/json.h"
#include "base/mem.h"
#include "server/openai_field.h"
#include "server/responses.h"

/* Completions stop after this many tokens unless told otherwise, as OpenAI's do. */
enum { COMPLETION_MAX_TOKENS = 16 };

static void set_defaults(struct openai_request *r, enum openai_api api)
{
    memset(r, 0, sizeof *r);
    r->api = api;
    r->n = api >= ANTHROPIC_COUNT ? 0 : 1;
    r->max_tokens = -1;
    r->skip_special_tokens = true;
    r->add_special_tokens = true;
    r->add_generation_prompt = true;
    r->include_reasoning = true;
    fathom_sampling_init(&r->sampling);
    r->sampling.temperature = -1.0f;
    r->sampling.top_p = -1.0f;
    r->sampling.top_k = OPENAI_TOP_K_UNSET;
}

static const struct field *fields_of(enum openai_api api, size_t *n)
{
    switch (api) {
    case OPENAI_RESPONSES: *n = responses_fields_n; return responses_fields;
    case ANTHROPIC_MESSAGES:
    case ANTHROPIC_COUNT: *n = anthropic_fields_n; return anthropic_fields;
    default: *n = openai_fields_n; return openai_fields;
    }
}

static const struct field *find_field(const char *name, enum openai_api api)
{
    size_t n;
    const struct field *fields = fields_of(api, &n);
    for (size_t i = 0; i < n; i++) {
        const struct field *f = &fields[i];
        if ((f->apis & (1u << api)) && strcmp(f->name, name) == 0) return f;
    }
    return NULL;
}

fathom_err field_pass(struct field_context *x, const char *name, json_t *v)
{
    const struct field *f = find_field(name, OPENAI_CHAT);
    ASSERT(f);
    return f->read(x, f, v);
}

fathom_err field_pass_new(struct field_context *x, const char *name, json_t *v)
{
    if (!v) return FATHOM_ENOMEM;
    fathom_err err = field_pass(x, name, v);
    json_decref(v);
    return err;
}

fathom_err field_pass_tools(struct field_context *x, const json_t *v, field_read_tool *read)
{
    fathom_err err = FATHOM_OK;
    if (!json_is_array(v)) return field_wrong_type(x, "tools", v, "an array of tools");
    json_t *tools = json_array();
    if (!tools) return FATHOM_ENOMEM;
    for (size_t i = 0; i < json_array_size(v); i++) {
        json_t *tool = NULL;
        TRY_GOTO(read(x, field_element("tools", i).path, json_array_get(v, i), &tool), out);
        TRY_GOTO(field_push(tools, tool), out);
    }
    err = field_pass(x, "tools", tools);
out:
    json_decref(tools);
    return err;
}

static const char *const paths[] = {
    [OPENAI_CHAT] = "/v1/chat/completions",
    [OPENAI_COMPLETION] = "/v1/completions",
    [OPENAI_RESPONSES] = "/v1/responses",
    [ANTHROPIC_MESSAGES] = "/v1/messages",
    [ANTHROPIC_COUNT] = "/v1/messages/count_tokens",
    [OPENAI_TOKENIZE] = "/tokenize",
    [OPENAI_DETOKENIZE] = "/detokenize",
};

enum { NAME_BYTES = 48 };

/* Letters to add, drop or change to make b of a; more than NAME_BYTES for long names. */
static unsigned distance(const char *a, const char *b)
{
    unsigned row[NAME_BYTES + 1];
    size_t n = strlen(a), m = strlen(b);
    if (n > NAME_BYTES || m > NAME_BYTES) return NAME_BYTES + 1;
    for (unsigned k = 0; k <= m; k++) row[k] = k;
    for (size_t i = 0; i < n; i++) {
        unsigned diagonal = row[0]++;
        for (size_t k = 1; k <= m; k++) {
            unsigned least = diagonal + (a[i] != b[k - 1]);
            if (row[k] + 1 < least) least = row[k] + 1;
            if (row[k - 1] + 1 < least) least = row[k - 1] + 1;
            diagonal = row[k];
            row[k] = least;
        }
    }
    return row[m];
}

/* The field that a misspelt one may stand for, NULL when none is near. */
static const char *find_near(const char *name, enum openai_api api)
{
    const char *best = NULL;
    unsigned least = 3;
    size_t n;
    const struct field *fields = fields_of(api, &n);
    for (size_t i = 0; i < n; i++) {
        const struct field *f = &fields[i];
        unsigned d = distance(name, f->name);
        if (d >= least || !(f->apis & (1u << api)) || f->read == field_refuse) continue;
        least = d;
        best = f->name;
    }
    return best;
}

static fathom_err refuse_unknown(struct field_context *x, const char *key)
{
    enum openai_api api = x->r->api;
    enum openai_api other = api == OPENAI_COMPLETION ? OPENAI_CHAT : OPENAI_COMPLETION;
    const char *near = find_near(key, api);
    char name[NAME_BYTES + 1];
    (void)snprintf(name, sizeof name, "%s", key);
    if (near) {
        return api_error_set(x->e, 400, "unknown_parameter", name,
                             "%s is no field of %s; did you mean %s?", name, paths[api], near);
    }
    if ((api == OPENAI_CHAT || api == OPENAI_COMPLETION) && find_field(key, other)) {
        return api_error_set(x->e, 400, "unknown_parameter", name,
                             "%s is no field of %s; %s has it", name, paths[api], paths[other]);
    }
    return api_error_set(x->e, 400, "unknown_parameter", name, "%s is no field of %s; leave it out",
                         name, paths[api]);
}

static fathom_err read_fields(struct field_context *x)
{
    const char *key;
    json_t *value;
    json_object_foreach (x->r->root, key, value) {
        if (json_is_null(value)) continue;
        const struct field *f = find_field(key, x->r->api);
        TRY(f ? f->read(x, f, value) : refuse_unknown(x, key));
    }
    return FATHOM_OK;
}

/* ---- rules over several fields ------------------------------------------------------------- */

static fathom_err check_output_length(struct openai_request *r, struct api_error *e)
{
    if (r->api == OPENAI_COMPLETION && r->max_tokens < 0) r->max_tokens = COMPLETION_MAX_TOKENS;
    if (r->max_tokens == 0 && !r->echo) {
        return api_error_set(e, 400, "invalid_value", "max_tokens",
                             "max_tokens is 0, needed is at least 1 (0 only with echo)");
    }
    if (r->max_tokens >= 0 && r->sampling.min_tokens > (uint64_t)r->max_tokens) {
        return api_error_set(e, 400, "invalid_value", "min_tokens",
                             "min_tokens is %u, more than max_tokens, which is %lld",
                             r->sampling.min_tokens, (long long)r->max_tokens);
    }
    return FATHOM_OK;
}

static fathom_err check_choices(struct openai_request *r, struct api_error *e)
{
    r->n_told = r->n;
    if (r->best_of && r->best_of < r->n) {
        return api_error_set(e, 400, "invalid_value", "best_of",
                             "best_of is %u and n is %u, needed is at least n", r->best_of, r->n);
    }
    if (r->best_of > r->n && r->stream) {
        return api_error_set(e, 400, "invalid_value", "best_of",
                             "best_of is more than n, so what is told is known at the end: it "
                             "cannot be streamed");
    }
    if (r->best_of) r->n = r->best_of;
    size_t n_prompt = openai_is_chat(r->api) ? 1 : r->n_prompt;
    if (n_prompt * r->n > LIMIT_CHOICES) {
        return api_error_set(e, 400, "invalid_value", "n",
                             "%zu prompts times n = %u are %zu choices, at most %d are taken",
                             n_prompt, r->n, n_prompt * r->n, LIMIT_CHOICES);
    }
    return FATHOM_OK;
}

static fathom_err check_chat(struct openai_request *r, struct api_error *e)
{
    if (!r->messages) {
        return api_error_set(e, 400, "missing_required_parameter", "messages",
                             "messages is missing, an array of messages is needed");
    }
    if (r->continue_final_message) {
        if (r->asks_generation_prompt) {
            return api_error_set(e, 400, "invalid_value", "continue_final_message",
                                 "continue_final_message and add_generation_prompt cannot both "
                                 "be true");
        }
        r->add_generation_prompt = false;
        size_t last = json_array_size(r->messages) - 1;
        const json_t *role = json_object_get(json_array_get(r->messages, last), "role");
        if (!json_is_string(role) || strcmp(json_string_value(role), "assistant") != 0) {
            return api_error_set(e, 400, "invalid_value", "continue_final_message",
                                 "continue_final_message needs a last message of the role "
                                 "assistant, messages[%zu] has another",
                                 last);
        }
    }
    return FATHOM_OK;
}

static fathom_err check_completion(struct openai_request *r, struct api_error *e)
{
    if (!r->prompts) {
        return api_error_set(e, 400, "missing_required_parameter", "prompt",
                             "prompt is missing, a string or an array is needed");
    }
    if (r->echo && r->suffix) {
        return api_error_set(e, 400, "unsupported_parameter", "echo",
                             "echo with suffix is not supported");
    }
    return FATHOM_OK;
}

/* What the engine has to tell of prompt tokens: the more of what two fields want. */
static fathom_err check_prompt_logprobs(struct openai_request *r, struct api_error *e)
{
    fathom_sampling *s = &r->sampling;
    bool echoed = r->echo && s->logprobs;
    if (r->prompt_logprobs && r->stream) {
        return api_error_set(e, 400, "invalid_value", "prompt_logprobs",
                             "prompt_logprobs cannot be streamed; leave stream out");
    }
    s->prompt_logprobs = r->prompt_logprobs || echoed;
    s->n_prompt_top_logprobs = r->n_prompt_logprobs;
    if (echoed && s->n_top_logprobs > r->n_prompt_logprobs) {
        s->n_prompt_top_logprobs = s->n_top_logprobs;
    }
    return FATHOM_OK;
}

static fathom_err check_tokenize(struct openai_request *r, struct api_error *e)
{
    r->return_token_ids = true;
    if (r->messages && r->prompts) {
        return api_error_set(e, 400, "invalid_value", "prompt",
                             "prompt and messages are both there, needed is one of them");
    }
    if (r->messages) {
        r->api = OPENAI_TOKENIZE_CHAT;
        return check_chat(r, e);
    }
    if (r->prompts) return FATHOM_OK;
    return api_error_set(e, 400, "missing_required_parameter", "prompt",
                         "prompt and messages are missing, one of them is needed");
}

static fathom_err check_detokenize(const struct openai_request *r, struct api_error *e)
{
    if (r->prompts) return FATHOM_OK;
    return api_error_set(e, 400, "missing_required_parameter", "tokens",
                         "tokens is missing, an array of token ids is needed");
}

static fathom_err check_endpoint(struct field_context *x)
{
    switch (x->r->api) {
    case OPENAI_CHAT: return check_chat(x->r, x->e);
    case OPENAI_COMPLETION: return check_completion(x->r, x->e);
    case OPENAI_RESPONSES: return responses_check(x);
    case ANTHROPIC_MESSAGES:
    case ANTHROPIC_COUNT: return anthropic_check(x);
    case OPENAI_TOKENIZE: return check_tokenize(x->r, x->e);
    case OPENAI_DETOKENIZE: return check_detokenize(x->r, x->e);
    case OPENAI_TOKENIZE_CHAT: break; /* comes of the check */
    }
    return FATHOM_OK;
}

static fathom_err check_together(struct field_context *x)
{
    struct openai_request *r = x->r;
    struct api_error *e = x->e;
    TRY(check_endpoint(x));
    if (r->rule.tool_choice == TOOL_CHOICE_NONE) {
        json_decref(r->tools);
        r->tools = NULL;
    }
    TRY(answer_rule_check(&r->rule, r->tools, e));
    TRY(check_output_length(r, e));
    TRY(check_prompt_logprobs(r, e));
    TRY(check_choices(r, e));
    if (r->has_stream_options && !r->stream) {
        return api_error_set(e, 400, "invalid_value", "stream_options",
                             "stream_options is only taken when stream is true");
    }
    if (r->has_top_logprobs && !r->sampling.logprobs) {
        return api_error_set(e, 400, "invalid_value", "top_logprobs",
                             "top_logprobs is only taken when logprobs is true");
    }
    return FATHOM_OK;
}

bool openai_is_request_id(const char *s)
{
    size_t n = strlen(s);
    if (n == 0 || n > LIMIT_REQUEST_ID_BYTES) return false;
    for (; *s; s++) {
        bool is_letter = (*s >= 'a' && *s <= 'z') || (*s >= 'A' && *s <= 'Z');
        if (!is_letter && !(*s >= '0' && *s <= '9') && !strchr("-_.:", *s)) return false;
    }
    return true;
}

/* ---- entry --------------------------------------------------------------------------------- */

static fathom_err parse_body(struct openai_request *r, const char *body, size_t n,
                             const struct openai_bounds *bounds, struct api_error *e)
{
    if (n == 0) {
        return api_error_set(e, 400, NULL, NULL,
                             "the request body is empty, a JSON object is "
                             "needed");
    }
    fathom_diag d;
    diag_clear(&d);
    fathom_err err = json_read(body, n, "request body", &r->root, &d);
    if (err) return api_error_from(e, err, NULL, &d);
    if (!json_is_object(r->root)) {
        return api_error_set(e, 400, "invalid_type", NULL,
                             "the request body is %s, needed is an object",
                             json_type_text(r->root));
    }
    if (r->api == OPENAI_RESPONSES) {
        r->responses = mem_calloc(1, sizeof *r->responses);
        if (!r->responses) return FATHOM_ENOMEM;
    }
    struct field_context x = {r, bounds, e};
    TRY(read_fields(&x));
    return check_together(&x);
}

fathom_err openai_parse(struct openai_request *r, enum openai_api api, const char *body, size_t n,
                        const struct openai_bounds *bounds, struct api_error *e)
{
    set_defaults(r, api);
    fathom_err err = parse_body(r, body, n, bounds, e);
    if (err) return api_error_from(e, err, NULL, NULL);
    return FATHOM_OK;
}

void openai_request_drop_body(struct openai_request *r)
{
    json_decref(r->messages);
    json_decref(r->response_format);
    r->messages = r->response_format = NULL;
    r->suffix = NULL;
    for (size_t i = 0; i < r->n_prompt; i++) {
        r->prompts[i].text = NULL;
        r->prompts[i].n_text = 0;
    }
    json_decref(r->root);
    r->root = NULL;
}

void openai_request_free(struct openai_request *r)
{
    for (size_t i = 0; i < r->n_prompt; i++) mem_free(r->prompts[i].ids);
    mem_free(r->prompts);
    for (size_t i = 0; i < r->n_stop; i++) mem_free(r->stops[i]);
    mem_free(r->model);
    json_decref(r->messages);
    json_decref(r->response_format);
    json_decref(r->tools);
    answer_rule_free(&r->rule);
    if (r->responses) {
        buf_free(&r->responses->echo);
        buf_free(&r->responses->items);
        mem_free(r->responses);
    }
    json_decref(r->root);
    memset(r, 0, sizeof *r);
}
