/* openai_field.c - the fields of a request that are a number, a flag or a word */
#include "server/openai_field.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/fail.h"
#include "base/json.h"
#include "base/mem.h"
#include "base/rng.h"

static void *member(const struct field_context *x, const struct field *f)
{
    return (char *)x->r + f->offset;
}

/* ---- errors -------------------------------------------------------------------------------- */

fathom_err field_wrong_type(struct field_context *x, const char *path, const json_t *v,
                            const char *want)
{
    return api_error_set(x->e, 400, "invalid_type", path, "%s is %s, needed is %s", path,
                         json_type_text(v), want);
}

fathom_err field_out_of_range(struct field_context *x, const char *path, const json_t *v, double lo,
                              double hi, bool lo_open)
{
    char seen[40], range[80];
    if (json_is_integer(v)) {
        (void)snprintf(seen, sizeof seen, "%lld", (long long)json_integer_value(v));
    } else {
        (void)snprintf(seen, sizeof seen, "%g", json_number_value(v));
    }
    if (isinf(hi)) {
        (void)snprintf(range, sizeof range, "%s %.10g", lo_open ? "more than" : "at least", lo);
    } else if (lo_open) {
        (void)snprintf(range, sizeof range, "more than %.10g, up to %.10g", lo, hi);
    } else {
        (void)snprintf(range, sizeof range, "%.10g to %.10g", lo, hi);
    }
    return api_error_set(x->e, 400, "invalid_value", path, "%s is %s, needed is %s", path, seen,
                         range);
}

struct field_place field_element(const char *parent, size_t i)
{
    struct field_place p;
    (void)snprintf(p.path, sizeof p.path, "%.96s[%zu]", parent, i);
    return p;
}

struct field_place field_member(const char *parent, const char *member)
{
    struct field_place p;
    (void)snprintf(p.path, sizeof p.path, "%.80s.%.40s", parent, member);
    return p;
}

fathom_err field_get_string(struct field_context *x, const char *path, const json_t *object,
                            const char *key, json_t **out)
{
    *out = json_object_get(object, key);
    if (json_is_string(*out)) return FATHOM_OK;
    return field_wrong_type(x, field_member(path, key).path, *out, "a string");
}

fathom_err field_push(json_t *list, json_t *value)
{
    return json_array_append_new(list, value) == 0 ? FATHOM_OK : FATHOM_ENOMEM;
}

fathom_err field_check_keys(struct field_context *x, const char *path, const json_t *object,
                            const char *const *keys)
{
    const char *key;
    json_t *value;
    json_object_foreach ((json_t *)object, key, value) {
        size_t i = 0;
        while (keys[i] && strcmp(keys[i], key) != 0) i++;
        if (keys[i] || json_is_null(value)) continue;
        const struct field_place at = field_member(path, key);
        return api_error_set(x->e, 400, "unsupported_parameter", at.path,
                             "%s is not known here; leave it out", at.path);
    }
    return FATHOM_OK;
}

/* ---- readers by type ----------------------------------------------------------------------- */

int64_t field_integer(const json_t *v, bool *ok)
{
    *ok = true;
    if (json_is_integer(v)) return json_integer_value(v);
    double d = json_is_real(v) ? json_real_value(v) : NAN;
    *ok = d == rint(d) && fabs(d) < 9e15;
    return *ok ? (int64_t)d : 0;
}

fathom_err field_flag(struct field_context *x, const struct field *f, json_t *v)
{
    if (!json_is_boolean(v)) return field_wrong_type(x, f->name, v, "a boolean");
    *(bool *)member(x, f) = json_is_true(v);
    return FATHOM_OK;
}

fathom_err field_real(struct field_context *x, const struct field *f, json_t *v)
{
    if (!json_is_number(v)) return field_wrong_type(x, f->name, v, "a number");
    double d = json_number_value(v);
    if (!(d >= f->lo && d <= f->hi) || (f->lo_open && d == f->lo)) {
        return field_out_of_range(x, f->name, v, f->lo, f->hi, f->lo_open);
    }
    float value = (float)d;
    /* a tiny positive number must not become the excluded bound, nor a huge one infinite */
    if ((f->lo_open && (double)value <= f->lo) || !isfinite(value)) {
        return field_out_of_range(x, f->name, v, f->lo, f->hi, f->lo_open);
    }
    *(float *)member(x, f) = value;
    return FATHOM_OK;
}

static fathom_err read_integer(struct field_context *x, const struct field *f, const json_t *v,
                               int64_t *out)
{
    bool ok;
    *out = field_integer(v, &ok);
    if (!ok) return field_wrong_type(x, f->name, v, "an integer");
    if ((double)*out < f->lo || (double)*out > f->hi) {
        return field_out_of_range(x, f->name, v, f->lo, f->hi, false);
    }
    return FATHOM_OK;
}

fathom_err field_count(struct field_context *x, const struct field *f, json_t *v)
{
    int64_t i;
    TRY(read_integer(x, f, v, &i));
    *(uint32_t *)member(x, f) = (uint32_t)i;
    return FATHOM_OK;
}

fathom_err field_int(struct field_context *x, const struct field *f, json_t *v)
{
    int64_t i;
    TRY(read_integer(x, f, v, &i));
    *(int32_t *)member(x, f) = (int32_t)i;
    return FATHOM_OK;
}

fathom_err field_none(struct field_context *x, const struct field *f, json_t *v)
{
    (void)x, (void)f, (void)v;
    return FATHOM_OK;
}

fathom_err field_object(struct field_context *x, const struct field *f, json_t *v)
{
    return json_is_object(v) ? FATHOM_OK : field_wrong_type(x, f->name, v, "an object");
}

/* What a client sends to say that it does not want something. */
static bool is_off(const json_t *v)
{
    return json_is_false(v) || (json_is_array(v) && json_array_size(v) == 0) ||
           (json_is_object(v) && json_object_size(v) == 0);
}

fathom_err field_refuse(struct field_context *x, const struct field *f, json_t *v)
{
    if (is_off(v)) return FATHOM_OK;
    return api_error_set(x->e, 400, "unsupported_parameter", f->name, "%s is not supported: %s",
                         f->name, f->note);
}

/* ---- readers of one field ------------------------------------------------------------------ */

fathom_err field_model(struct field_context *x, const struct field *f, json_t *v)
{
    if (!json_is_string(v)) return field_wrong_type(x, f->name, v, "a string");
    mem_free(x->r->model);
    x->r->model = mem_strndup(json_string_value(v), json_string_length(v));
    return x->r->model ? FATHOM_OK : FATHOM_ENOMEM;
}

fathom_err field_seed(struct field_context *x, const struct field *f, json_t *v)
{
    bool ok;
    int64_t seed = field_integer(v, &ok);
    if (!ok) return field_wrong_type(x, f->name, v, "an integer");
    x->r->sampling.has_seed = true;
    x->r->sampling.seed = (uint64_t)seed;
    return FATHOM_OK;
}

/* Salts only keep requests apart, so a hash of the text does; 0 is the salt of those without. */
fathom_err field_cache_salt(struct field_context *x, const struct field *f, json_t *v)
{
    if (!json_is_string(v)) return field_wrong_type(x, f->name, v, "a string");
    const char *s = json_string_value(v);
    size_t n = json_string_length(v);
    if (n == 0) {
        return api_error_set(x->e, 400, "invalid_value", f->name,
                             "cache_salt is empty, needed is at least one character");
    }
    uint64_t h = 1;
    for (size_t i = 0; i < n; i++) h = rng_hash(h ^ (unsigned char)s[i]);
    x->r->cache_salt = h ? h : 1;
    return FATHOM_OK;
}

/* max_completion_tokens is the newer name and wins when both are given. A completion that only
 * echoes its prompt may ask for 0; check_output_length knows. */
fathom_err field_max_tokens(struct field_context *x, const struct field *f, json_t *v)
{
    int64_t i;
    TRY(read_integer(x, f, v, &i));
    bool newer = strcmp(f->name, "max_completion_tokens") == 0;
    if (!newer) {
        const json_t *other = json_object_get(x->r->root, "max_completion_tokens");
        if (other && !json_is_null(other)) return FATHOM_OK;
    }
    x->r->max_tokens = i;
    return FATHOM_OK;
}

static fathom_err add_stop(struct field_context *x, const char *path, const json_t *v)
{
    if (!json_is_string(v)) return field_wrong_type(x, path, v, "a string");
    size_t n = json_string_length(v);
    if (n == 0) {
        return api_error_set(x->e, 400, "invalid_value", path,
                             "%s is an empty string, which would stop at once", path);
    }
    struct openai_request *r = x->r;
    r->stops[r->n_stop] = mem_strndup(json_string_value(v), n);
    if (!r->stops[r->n_stop]) return FATHOM_ENOMEM;
    r->stop_lens[r->n_stop++] = n;
    return FATHOM_OK;
}

/* More elements than `limit` in an array or object. */
static fathom_err too_many(struct field_context *x, const char *path, size_t n, size_t limit)
{
    return api_error_set(x->e, 400, "invalid_value", path,
                         "%s has %zu entries, at most %zu are taken", path, n, limit);
}

fathom_err field_stop(struct field_context *x, const struct field *f, json_t *v)
{
    if (json_is_string(v)) return add_stop(x, f->name, v);
    if (!json_is_array(v))
        return field_wrong_type(x, f->name, v, "a string or an array of strings");
    size_t n = json_array_size(v);
    if (n > LIMIT_STOP_STRINGS) return too_many(x, f->name, n, LIMIT_STOP_STRINGS);
    for (size_t i = 0; i < n; i++) {
        char path[48];
        (void)snprintf(path, sizeof path, "%s[%zu]", f->name, i);
        TRY(add_stop(x, path, json_array_get(v, i)));
    }
    return FATHOM_OK;
}

static fathom_err read_stop_token_ids(struct field_context *x, const struct field *f, json_t *v)
{
    if (!json_is_array(v)) return field_wrong_type(x, f->name, v, "an array of integers");
    size_t n = json_array_size(v);
    if (n > LIMIT_STOP_TOKENS) return too_many(x, f->name, n, LIMIT_STOP_TOKENS);
    for (size_t i = 0; i < n; i++) {
        char path[40];
        (void)snprintf(path, sizeof path, "stop_token_ids[%zu]", i);
        const json_t *item = json_array_get(v, i);
        bool ok;
        int64_t id = field_integer(item, &ok);
        if (!ok) return field_wrong_type(x, path, item, "an integer");
        if (id < 0 || id >= x->bounds->n_vocab) {
            return field_out_of_range(x, path, item, 0, (double)x->bounds->n_vocab - 1, false);
        }
        x->r->stop_ids[i] = (int32_t)id;
    }
    x->r->sampling.stop_ids = x->r->stop_ids;
    x->r->sampling.n_stop_id = (uint32_t)n;
    return FATHOM_OK;
}

/* A key of logit_bias: decimal digits. -1 when it is not an id of the vocabulary. */
static int64_t read_id_key(const char *key, uint32_t n_vocab)
{
    int64_t id = 0;
    if (!*key) return -1;
    for (const char *c = key; *c; c++) {
        if (*c < '0' || *c > '9') return -1;
        id = id * 10 + (*c - '0');
        if (id >= n_vocab) return -1;
    }
    return id;
}

fathom_err field_logit_bias(struct field_context *x, const struct field *f, json_t *v)
{
    if (!json_is_object(v)) {
        return field_wrong_type(x, f->name, v, "an object of token ids and numbers");
    }
    size_t n = json_object_size(v);
    if (n > LIMIT_LOGIT_BIAS) return too_many(x, f->name, n, LIMIT_LOGIT_BIAS);
    const char *key;
    json_t *value;
    uint32_t i = 0;
    json_object_foreach (v, key, value) {
        char path[64];
        (void)snprintf(path, sizeof path, "logit_bias[\"%.24s\"]", key);
        int64_t id = read_id_key(key, x->bounds->n_vocab);
        if (id < 0) {
            return api_error_set(x->e, 400, "invalid_value", path,
                                 "%s: the key is not a token id, needed is 0 to %u", path,
                                 x->bounds->n_vocab - 1);
        }
        if (!json_is_number(value)) return field_wrong_type(x, path, value, "a number");
        double bias = json_number_value(value);
        if (!(bias >= f->lo && bias <= f->hi)) {
            return field_out_of_range(x, path, value, f->lo, f->hi, false);
        }
        x->r->bias[i++] = (fathom_bias){(int32_t)id, (float)bias};
    }
    x->r->sampling.bias = x->r->bias;
    x->r->sampling.n_bias = i;
    return FATHOM_OK;
}

static fathom_err read_chat_logprobs(struct field_context *x, const struct field *f, json_t *v)
{
    if (!json_is_boolean(v)) return field_wrong_type(x, f->name, v, "a boolean");
    x->r->sampling.logprobs = json_is_true(v);
    return FATHOM_OK;
}

static fathom_err read_completion_logprobs(struct field_context *x, const struct field *f,
                                           json_t *v)
{
    int64_t i;
    TRY(read_integer(x, f, v, &i));
    x->r->sampling.logprobs = true;
    x->r->sampling.n_top_logprobs = (uint32_t)i;
    return FATHOM_OK;
}

fathom_err field_top_logprobs(struct field_context *x, const struct field *f, json_t *v)
{
    int64_t i;
    TRY(read_integer(x, f, v, &i));
    x->r->sampling.n_top_logprobs = (uint32_t)i;
    x->r->has_top_logprobs = i > 0;
    return FATHOM_OK;
}

static fathom_err read_prompt_logprobs(struct field_context *x, const struct field *f, json_t *v)
{
    int64_t i;
    TRY(read_integer(x, f, v, &i));
    x->r->prompt_logprobs = true;
    x->r->n_prompt_logprobs = (uint32_t)i;
    return FATHOM_OK;
}

static fathom_err read_suffix(struct field_context *x, const struct field *f, json_t *v)
{
    if (!json_is_string(v)) return field_wrong_type(x, f->name, v, "a string");
    if (json_string_length(v) == 0) return FATHOM_OK;
    x->r->suffix = json_string_value(v);
    x->r->n_suffix = json_string_length(v);
    return FATHOM_OK;
}

static fathom_err read_truncate(struct field_context *x, const struct field *f, json_t *v)
{
    TRY(field_int(x, f, v));
    if (x->r->truncate != 0) return FATHOM_OK;
    return api_error_set(x->e, 400, "invalid_value", f->name,
                         "%s is 0, needed is a number of tokens, or -1 for as many as fit",
                         f->name);
}

static fathom_err read_truncation_side(struct field_context *x, const struct field *f, json_t *v)
{
    const char *s = json_string_value(v);
    if (!s) return field_wrong_type(x, f->name, v, "a string");
    x->r->truncate_right = strcmp(s, "right") == 0;
    if (x->r->truncate_right || strcmp(s, "left") == 0) return FATHOM_OK;
    return api_error_set(x->e, 400, "invalid_value", f->name,
                         "truncation_side is \"%.40s\", needed is left or right", s);
}

static fathom_err read_request_id(struct field_context *x, const struct field *f, json_t *v)
{
    if (!json_is_string(v)) return field_wrong_type(x, f->name, v, "a string");
    const char *s = json_string_value(v);
    if (!openai_is_request_id(s)) {
        return api_error_set(x->e, 400, "invalid_value", f->name,
                             "request_id is \"%.80s\", needed are 1 to %d letters, digits or "
                             "characters of -_.:",
                             s, LIMIT_REQUEST_ID_BYTES);
    }
    (void)snprintf(x->r->request_id, sizeof x->r->request_id, "%s", s);
    return FATHOM_OK;
}

/* ---- the table ----------------------------------------------------------------------------- */

#define AT(member) offsetof(struct openai_request, member)
#define NO_GRAMMAR "use response_format, guided_json, guided_regex or guided_choice"
#define NO_MEDIA "messages are text"

const struct field openai_fields[] = {
    {"model", BOTH | TOKENIZE | DETOKENIZE, field_model, 0, 0, 0, false, NULL},
    {"messages", CHAT | TOKENIZE, field_messages, 0, 0, 0, false, NULL},
    {"tools", CHAT | TOKENIZE, field_tools, 0, 0, 0, false, NULL},
    {"tool_choice", CHAT, field_tool_choice, 0, 0, 0, false, NULL},
    {"parallel_tool_calls", CHAT, field_parallel_tool_calls, 0, 0, 0, false, NULL},
    {"include_reasoning", CHAT, field_flag, AT(include_reasoning), 0, 0, false, NULL},
    {"prompt", TOKENIZE, field_text, 0, 0, 0, false, NULL},
    {"tokens", DETOKENIZE, field_tokens, 0, 0, 0, false, NULL},
    {"return_token_strs", TOKENIZE, field_flag, AT(return_token_strs), 0, 0, false, NULL},
    {"prompt", COMPLETION, field_prompt, 0, 0, 0, false, NULL},
    {"echo", COMPLETION, field_flag, AT(echo), 0, 0, false, NULL},
    {"echo", CHAT, field_refuse, 0, 0, 0, false, "/v1/completions has it"},
    {"suffix", COMPLETION, read_suffix, 0, 0, 0, false, NULL},
    {"add_special_tokens", COMPLETION | TOKENIZE, field_flag, AT(add_special_tokens), 0, 0, false,
     NULL},
    {"add_special_tokens", CHAT, field_refuse, 0, 0, 0, false, "a chat has its BOS already"},
    {"truncate_prompt_tokens", BOTH, read_truncate, AT(truncate), -1, INT32_MAX, false, NULL},
    {"truncation_side", BOTH, read_truncation_side, 0, 0, 0, false, NULL},

    {"stream", BOTH, field_flag, AT(stream), 0, 0, false, NULL},
    {"stream_options", BOTH, field_stream_options, 0, 0, 0, false, NULL},
    {"n", BOTH, field_count, AT(n), 1, LIMIT_CHOICES, false, NULL},
    {"priority", BOTH, field_int, AT(priority), INT32_MIN, INT32_MAX, false, NULL},
    {"best_of", COMPLETION, field_count, AT(best_of), 1, LIMIT_CHOICES, false, NULL},
    {"max_tokens", BOTH, field_max_tokens, 0, 0, INT32_MAX, false, NULL},
    {"max_completion_tokens", BOTH, field_max_tokens, 0, 0, INT32_MAX, false, NULL},
    {"min_tokens", BOTH, field_count, AT(sampling.min_tokens), 0, INT32_MAX, false, NULL},
    {"stop", BOTH, field_stop, 0, 0, 0, false, NULL},
    {"stop_token_ids", BOTH, read_stop_token_ids, 0, 0, 0, false, NULL},
    {"include_stop_str_in_output", BOTH, field_flag, AT(include_stop), 0, 0, false, NULL},
    {"ignore_eos", BOTH, field_flag, AT(sampling.ignore_eos), 0, 0, false, NULL},
    {"skip_special_tokens", BOTH, field_flag, AT(skip_special_tokens), 0, 0, false, NULL},
    {"return_token_ids", BOTH, field_flag, AT(return_token_ids), 0, 0, false, NULL},
    {"return_tokens_as_token_ids", BOTH, field_flag, AT(tokens_as_ids), 0, 0, false, NULL},

    {"temperature", BOTH, field_real, AT(sampling.temperature), 0, 2, false, NULL},
    {"top_p", BOTH, field_real, AT(sampling.top_p), 0, 1, true, NULL},
    {"top_k", BOTH, field_int, AT(sampling.top_k), -1, INT32_MAX, false, NULL},
    {"min_p", BOTH, field_real, AT(sampling.min_p), 0, 1, false, NULL},
    {"seed", BOTH, field_seed, 0, 0, 0, false, NULL},
    {"cache_salt", BOTH, field_cache_salt, 0, 0, 0, false, NULL},
    {"request_id", BOTH, read_request_id, 0, 0, 0, false, NULL},
    {"presence_penalty", BOTH, field_real, AT(sampling.presence_penalty), -2, 2, false, NULL},
    {"frequency_penalty", BOTH, field_real, AT(sampling.frequency_penalty), -2, 2, false, NULL},
    {"repetition_penalty", BOTH, field_real, AT(sampling.repetition_penalty), 0, INFINITY, true,
     NULL},
    {"logit_bias", BOTH, field_logit_bias, 0, -100, 100, false, NULL},
    {"logprobs", CHAT, read_chat_logprobs, 0, 0, 0, false, NULL},
    {"logprobs", COMPLETION, read_completion_logprobs, 0, 0, LIMIT_TOP_LOGPROBS, false, NULL},
    {"top_logprobs", CHAT, field_top_logprobs, 0, 0, LIMIT_TOP_LOGPROBS, false, NULL},
    {"prompt_logprobs", BOTH, read_prompt_logprobs, 0, 0, LIMIT_TOP_LOGPROBS, false, NULL},

    {"add_generation_prompt", CHAT | TOKENIZE, field_add_generation_prompt,
     AT(add_generation_prompt), 0, 0, false, NULL},
    {"continue_final_message", CHAT | TOKENIZE, field_flag, AT(continue_final_message), 0, 0, false,
     NULL},
    {"chat_template_kwargs", CHAT | TOKENIZE, field_template_kwargs, 0, 0, 0, false, NULL},
    {"reasoning_effort", CHAT | TOKENIZE, field_reasoning_effort, 0, 0, 0, false, NULL},
    {"thinking", CHAT | TOKENIZE, field_thinking, 0, 0, 0, false, NULL},
    {"response_format", BOTH, field_response_format, 0, 0, 0, false, NULL},
    {"guided_json", BOTH, field_guided_json, 0, 0, 0, false, NULL},
    {"guided_regex", BOTH, field_guided_regex, 0, 0, 0, false, NULL},
    {"guided_choice", BOTH, field_guided_choice, 0, 0, 0, false, NULL},
    {"structured_outputs", BOTH, field_structured_outputs, 0, 0, 0, false, NULL},
    {"guided_decoding_backend", BOTH, field_none, 0, 0, 0, false, NULL},
    {"modalities", CHAT, field_modalities, 0, 0, 0, false, NULL},

    {"user", BOTH, field_none, 0, 0, 0, false, NULL},
    {"metadata", BOTH, field_none, 0, 0, 0, false, NULL},
    {"store", BOTH, field_none, 0, 0, 0, false, NULL},
    {"service_tier", BOTH, field_none, 0, 0, 0, false, NULL},
    {"safety_identifier", BOTH, field_none, 0, 0, 0, false, NULL},
    {"prompt_cache_key", BOTH, field_none, 0, 0, 0, false, NULL},
    {"prompt_cache_retention", BOTH, field_none, 0, 0, 0, false, NULL},
    {"session_id", BOTH, field_none, 0, 0, 0, false, NULL},
    {"stream_interval", BOTH, field_none, 0, 0, 0, false, NULL},
    {"length_penalty", BOTH, field_none, 0, 0, 0, false, NULL},
    {"spaces_between_special_tokens", BOTH, field_none, 0, 0, 0, false, NULL},

    {"audio", CHAT, field_refuse, 0, 0, 0, false, "only text is generated"},
    {"functions", CHAT, field_refuse, 0, 0, 0, false, "use tools"},
    {"function_call", CHAT, field_refuse, 0, 0, 0, false, "use tool_choice"},
    {"prediction", CHAT, field_refuse, 0, 0, 0, false, "leave it out"},
    {"verbosity", CHAT, field_refuse, 0, 0, 0, false, "ask for it in a message"},
    {"documents", CHAT, field_refuse, 0, 0, 0, false, "put them into a message"},
    {"media_io_kwargs", CHAT | TOKENIZE, field_refuse, 0, 0, 0, false, NO_MEDIA},
    {"mm_processor_kwargs", BOTH | TOKENIZE, field_refuse, 0, 0, 0, false, NO_MEDIA},
    {"prompt_embeds", COMPLETION, field_refuse, 0, 0, 0, false, "send text or token ids"},
    {"web_search_options", CHAT, field_refuse, 0, 0, 0, false, "give a search tool in tools"},
    {"chat_template", CHAT | TOKENIZE, field_refuse, 0, 0, 0, false,
     "the checkpoint decides how messages are rendered"},
    {"use_beam_search", BOTH, field_refuse, 0, 0, 0, false, "use n for several samples"},
    {"allowed_token_ids", BOTH, field_refuse, 0, 0, 0, false, "use logit_bias"},
    {"bad_words", BOTH, field_refuse, 0, 0, 0, false, "use logit_bias with -100"},
    {"logprob_token_ids", BOTH, field_refuse, 0, 0, 0, false, "use top_logprobs"},
    {"thinking_token_budget", BOTH, field_refuse, 0, 0, 0, false, "use max_tokens"},
    {"repetition_detection", BOTH, field_refuse, 0, 0, 0, false, "use frequency_penalty"},
    {"watermarking", BOTH, field_refuse, 0, 0, 0, false, "output has no watermark"},
    {"vllm_xargs", BOTH, field_refuse, 0, 0, 0, false, "there are no extensions"},
    {"kv_transfer_params", BOTH, field_refuse, 0, 0, 0, false, "send the prompt"},
    {"ec_transfer_params", BOTH, field_refuse, 0, 0, 0, false, "send the prompt"},
    {"return_prompt_text", BOTH, field_refuse, 0, 0, 0, false, "use return_token_ids"},
    {"return_token_offsets", BOTH, field_refuse, 0, 0, 0, false, "use logprobs"},
    {"guided_grammar", BOTH, field_refuse, 0, 0, 0, false, NO_GRAMMAR},
    {"guided_whitespace_pattern", BOTH, field_refuse, 0, 0, 0, false,
     "use structured_outputs.disable_any_whitespace"},
    {"structural_tag", BOTH, field_refuse, 0, 0, 0, false, NO_GRAMMAR},
};

const size_t openai_fields_n = sizeof openai_fields / sizeof openai_fields[0];
