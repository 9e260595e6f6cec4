#include "server/openai_parse.h"

#include <stdio.h>
#include <string.h>

#include "base/assert.h"
#include "base/fail.h"
#include "base/json.h"
#include "base/log.h"
#include "base/mem.h"
#include "server/openai_field.h"

/* Completions stop after this many tokens unless told otherwise, as OpenAI's do. */
enum { COMPLETION_MAX_TOKENS = 16 };

static void set_defaults(struct openai_request *r, enum openai_api api)
{
    memset(r, 0, sizeof *r);
    r->api = api;
    r->n = api == ANTHROPIC_COUNT ? 0 : 1;
    r->max_tokens = -1;
    r->skip_special_tokens = true;
    r->add_special_tokens = true;
    r->add_generation_prompt = true;
    fathom_sampling_init(&r->sampling);
    r->sampling.temperature = -1.0f;
    r->sampling.top_p = -1.0f;
    r->sampling.top_k = OPENAI_TOP_K_UNSET;
}

static const struct field *find_field(const char *name, enum openai_api api)
{
    bool other = openai_is_anthropic(api);
    const struct field *fields = other ? anthropic_fields : openai_fields;
    size_t n = other ? anthropic_fields_n : openai_fields_n;
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

/* Clients of OpenAI's older endpoints send much that only some servers know; the other APIs refuse
 * what they do not know. */
static fathom_err take_unknown(const struct field_context *x, const char *key)
{
    if (!openai_is_anthropic(x->r->api)) {
        LOG_DEBUG("server", "request field \"%.64s\" is unknown and ignored", key);
        return FATHOM_OK;
    }
    char path[API_PARAM_BYTES];
    (void)snprintf(path, sizeof path, "%.64s", key);
    return api_error_set(x->e, 400, "unsupported_parameter", path,
                         "%s is not a known field; leave it out", path);
}

static fathom_err read_fields(struct field_context *x)
{
    const char *key;
    json_t *value;
    json_object_foreach (x->r->root, key, value) {
        if (json_is_null(value)) continue;
        const struct field *f = find_field(key, x->r->api);
        TRY(f ? f->read(x, f, value) : take_unknown(x, key));
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
    if (r->best_of && r->best_of != r->n) {
        return api_error_set(e, 400, "unsupported_parameter", "best_of",
                             "best_of is %u and n is %u; best_of other than n is not supported",
                             r->best_of, r->n);
    }
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
    if (r->echo) {
        return api_error_set(e, 400, "unsupported_parameter", "echo",
                             "echo is not supported here; /v1/completions has it");
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
    if (r->echo && r->sampling.logprobs) {
        return api_error_set(e, 400, "unsupported_parameter", "logprobs",
                             "logprobs with echo is not supported: log-probabilities are given "
                             "for generated tokens only");
    }
    return FATHOM_OK;
}

static fathom_err check_endpoint(struct field_context *x)
{
    switch (x->r->api) {
    case OPENAI_CHAT: return check_chat(x->r, x->e);
    case OPENAI_COMPLETION: return check_completion(x->r, x->e);
    case ANTHROPIC_MESSAGES:
    case ANTHROPIC_COUNT: return anthropic_check(x);
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
    json_decref(r->root);
    memset(r, 0, sizeof *r);
}
