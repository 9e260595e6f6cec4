/* sglang_field.c - the fields of /generate, SGLang's own endpoint
 *
 * Its sampling_params have a table of their own, with other names for the readers of a completion.
 * They, and other fields that may be a list with a value for each prompt, are read once the prompts
 * are known.
 */
#include <math.h>
#include <string.h>

#include "base/fail.h"
#include "base/json.h"
#include "base/mem.h"
#include "server/api/request_field.h"

/* What is generated where sampling_params do not say it. */
enum { DEFAULT_NEW_TOKENS = 128 };

/* ---- readers ------------------------------------------------------------------------------- */

static fathom_err read_prompts(struct field_context *x, const struct field *f, json_t *v)
{
    if (!x->r->prompts) return field_prompt(x, f, v);
    return api_error_set(x->e, 400, "invalid_value", f->name,
                         "text and input_ids are both there, needed is one of them");
}

static fathom_err read_text(struct field_context *x, const struct field *f, json_t *v)
{
    const json_t *first = json_is_array(v) ? json_array_get(v, 0) : v;
    if (first && !json_is_string(first)) {
        return field_wrong_type(x, f->name, v, "a string or an array of strings");
    }
    return read_prompts(x, f, v);
}

static fathom_err read_input_ids(struct field_context *x, const struct field *f, json_t *v)
{
    if (json_is_string(v) || json_is_string(json_array_get(v, 0))) {
        return field_wrong_type(x, f->name, v, "an array of token ids or of such arrays");
    }
    return read_prompts(x, f, v);
}

static fathom_err read_sampling_params(struct field_context *x, const struct field *f, json_t *v)
{
    const char *key;
    json_t *value;
    if (!json_is_plain_object(v)) return field_wrong_type(x, f->name, v, "an object");
    json_object_foreach (v, key, value) {
        const struct field *inner = field_find(&sglang_sampling_table, key, API_SGLANG);
        bool is_empty = json_is_string(value) && json_string_length(value) == 0;
        if (json_is_null(value) || is_empty) continue;
        TRY(inner ? inner->read(x, inner, value) : field_take_unknown(x, f->name, key, value));
    }
    return FATHOM_OK;
}

static fathom_err read_logprob_start(struct field_context *x, const struct field *f, json_t *v)
{
    int64_t i;
    TRY(field_read_integer(x, f, v, &i));
    x->r->prompt_logprobs = i >= 0;
    x->r->prompt_logprobs_from = i >= 0 ? (uint32_t)i : 0;
    return FATHOM_OK;
}

static fathom_err read_salt(struct field_context *x, const struct field *f, json_t *v)
{
    return field_is_off(v) ? FATHOM_OK : field_cache_salt(x, f, v);
}

/* ---- tables -------------------------------------------------------------------------------- */

#define AT(member) offsetof(struct api_request, member)
#define TEXT_ALONE "prompts are text, or token ids"
#define NOT_TOLD "tokens and their log-probabilities are told"

static const struct field sampling_fields[] = {
    {"max_new_tokens", SGLANG, field_max_tokens, 0, 0, INT32_MAX, false, NULL},
    {"min_new_tokens", SGLANG, field_count, AT(sampling.min_tokens), 0, INT32_MAX, false, NULL},
    {"n", SGLANG, field_count, AT(n), 1, LIMIT_CHOICES, false, NULL},
    {"stop", SGLANG, field_stop, 0, 0, 0, false, NULL},
    {"stop_token_ids", SGLANG, field_stop_token_ids, 0, 0, 0, false, NULL},
    {"no_stop_trim", SGLANG, field_flag, AT(include_stop), 0, 0, false, NULL},
    {"ignore_eos", SGLANG, field_flag, AT(sampling.ignore_eos), 0, 0, false, NULL},
    {"skip_special_tokens", SGLANG, field_flag, AT(skip_special_tokens), 0, 0, false, NULL},
    {"temperature", SGLANG, field_real, AT(sampling.temperature), 0, 2, false, NULL},
    {"top_p", SGLANG, field_real, AT(sampling.top_p), 0, 1, true, NULL},
    {"top_k", SGLANG, field_int, AT(sampling.top_k), -1, INT32_MAX, false, NULL},
    {"min_p", SGLANG, field_real, AT(sampling.min_p), 0, 1, false, NULL},
    {"sampling_seed", SGLANG, field_seed, 0, 0, 0, false, NULL},
    {"presence_penalty", SGLANG, field_real, AT(sampling.presence_penalty), -2, 2, false, NULL},
    {"frequency_penalty", SGLANG, field_real, AT(sampling.frequency_penalty), -2, 2, false, NULL},
    {"repetition_penalty", SGLANG, field_real, AT(sampling.repetition_penalty), 0, INFINITY, true,
     NULL},
    {"logit_bias", SGLANG, field_logit_bias, 0, -100, 100, false, NULL},
    {"json_schema", SGLANG, field_guided_json, 0, 0, 0, false, NULL},
    {"regex", SGLANG, field_guided_regex, 0, 0, 0, false, NULL},
    {"ebnf", SGLANG, field_guided_grammar, 0, 0, 0, false, NULL},
    {"structural_tag", SGLANG, field_structural_tag, 0, 0, 0, false, NULL},
    {"spaces_between_special_tokens", SGLANG, field_none, 0, 0, 0, false, NULL},
    {"stream_interval", SGLANG, field_none, 0, 0, 0, false, NULL},
    {"custom_params", SGLANG, field_idle, 0, 0, 0, false, "there are no logit processors"},
    {"stop_regex", SGLANG, field_refuse, 0, 0, 0, false, "use stop"},
    {"beam_width", SGLANG, field_refuse, 0, 0, 0, false, "use n for several samples"},
    {"watermark", SGLANG, field_refuse, 0, 0, 0, false, "output has no watermark"},
};

static const struct field fields[] = {
    {"model", SGLANG, field_model, 0, 0, 0, false, NULL},
    {"text", SGLANG, read_text, 0, 0, 0, false, NULL},
    {"input_ids", SGLANG, read_input_ids, 0, 0, 0, false, NULL},
    {"sampling_params", SGLANG, field_later, 0, 0, 0, false, NULL},
    {"stream", SGLANG, field_flag, AT(stream), 0, 0, false, NULL},
    {"rid", SGLANG, field_later, 0, 0, 0, false, NULL},
    {"return_logprob", SGLANG, field_later, 0, 0, 0, false, NULL},
    {"logprob_start_len", SGLANG, field_later, 0, 0, 0, false, NULL},
    {"top_logprobs_num", SGLANG, field_later, 0, 0, 0, false, NULL},
    {"return_text_in_logprobs", SGLANG, field_flag, AT(logprob_texts), 0, 0, false, NULL},
    {"return_prompt_token_ids", SGLANG, field_flag, AT(return_token_ids), 0, 0, false, NULL},
    {"priority", SGLANG, field_int, AT(priority), INT32_MIN, INT32_MAX, false, NULL},
    {"routed_dp_rank", SGLANG, field_int, AT(data_parallel_rank), 0, INT32_MAX, false, NULL},
    {"data_parallel_rank", SGLANG, field_int, AT(data_parallel_rank), 0, INT32_MAX, false, NULL},
    {"cache_salt", SGLANG, field_later, 0, 0, 0, false, NULL},
    {"extra_key", SGLANG, field_later, 0, 0, 0, false, NULL},
    {"max_thinking_tokens", SGLANG, field_thinking_budget, 0, -1, INT32_MAX, false, NULL},
    {"bootstrap_host", SGLANG, field_bootstrap_host, 0, 0, 0, false, NULL},
    {"bootstrap_port", SGLANG, field_bootstrap_port, 0, 1, 65535, false, NULL},
    {"bootstrap_room", SGLANG, field_bootstrap_room, 0, 0, 0, false, NULL},
    {"background", SGLANG, field_none, 0, 0, 0, false, NULL},
    {"conversation_id", SGLANG, field_none, 0, 0, 0, false, NULL},
    {"custom_labels", SGLANG, field_none, 0, 0, 0, false, NULL},
    {"log_metrics", SGLANG, field_none, 0, 0, 0, false, NULL},
    {"modalities", SGLANG, field_none, 0, 0, 0, false, NULL},
    {"no_logs", SGLANG, field_none, 0, 0, 0, false, NULL},
    {"routing_key", SGLANG, field_none, 0, 0, 0, false, NULL},
    {"session_id", SGLANG, field_none, 0, 0, 0, false, NULL},
    {"input_embeds", SGLANG, field_refuse, 0, 0, 0, false, TEXT_ALONE},
    {"image_data", SGLANG, field_refuse, 0, 0, 0, false, TEXT_ALONE},
    {"video_data", SGLANG, field_refuse, 0, 0, 0, false, TEXT_ALONE},
    {"audio_data", SGLANG, field_refuse, 0, 0, 0, false, TEXT_ALONE},
    {"session_params", SGLANG, field_refuse, 0, 0, 0, false, "send the whole prompt"},
    {"lora_path", SGLANG, field_refuse, 0, 0, 0, false, "there are no adapters"},
    {"require_reasoning", SGLANG, field_refuse, 0, 0, 0, false, "use /v1/chat/completions"},
    {"token_ids_logprob", SGLANG, field_refuse, 0, 0, 0, false, "use top_logprobs_num"},
    {"custom_logit_processor", SGLANG, field_refuse, 0, 0, 0, false, "use logit_bias"},
    {"watermark", SGLANG, field_refuse, 0, 0, 0, false, "output has no watermark"},
    {"return_hidden_states", SGLANG, field_refuse, 0, 0, 0, false, NOT_TOLD},
    {"return_routed_experts", SGLANG, field_refuse, 0, 0, 0, false, NOT_TOLD},
    {"return_indexer_topk", SGLANG, field_refuse, 0, 0, 0, false, NOT_TOLD},
    {"return_entropy", SGLANG, field_refuse, 0, 0, 0, false, NOT_TOLD},
    {"return_sampling_mask", SGLANG, field_refuse, 0, 0, 0, false, NOT_TOLD},
    {"return_flat_raw_top_logprobs", SGLANG, field_refuse, 0, 0, 0, false, "they come nested"},
    {"return_flat_raw_output_top_logprobs", SGLANG, field_refuse, 0, 0, 0, false,
     "they come nested"},
};

/* What may be a list, with a value for each prompt. */
static const struct field own_fields[] = {
    {"sampling_params", SGLANG, read_sampling_params, 0, 0, 0, false, NULL},
    {"return_logprob", SGLANG, field_flag, AT(sampling.logprobs), 0, 0, false, NULL},
    {"logprob_start_len", SGLANG, read_logprob_start, 0, -1, INT32_MAX, false, NULL},
    {"top_logprobs_num", SGLANG, field_count, AT(sampling.n_top_logprobs), 0, LIMIT_TOP_LOGPROBS,
     false, NULL},
    {"cache_salt", SGLANG, read_salt, 0, 0, 0, false, NULL},
    {"extra_key", SGLANG, read_salt, 0, 0, 0, false, NULL},
};
enum { N_OWN = sizeof own_fields / sizeof own_fields[0] };

/* ---- rules --------------------------------------------------------------------------------- */

/* The value that a member has for prompt i; a list of one value holds for all prompts. */
static json_t *value_for(const struct api_request *r, const char *name, size_t i)
{
    json_t *v = json_object_get(r->root, name);
    const size_t n = json_array_size(v); /* 0 of what is no list */
    return n ? json_array_get(v, n > 1 ? i : 0) : v;
}

/* Reads the fields that may be a list, for prompt i, into `own`. */
static fathom_err read_own(struct field_context *x, struct api_request *own, size_t i)
{
    struct field_context of = {own, x->bounds, x->e};
    fathom_sampling *s = &own->sampling;
    for (size_t k = 0; k < N_OWN; k++) {
        json_t *v = value_for(x->r, own_fields[k].name, i);
        if (v && !json_is_null(v)) TRY(own_fields[k].read(&of, &own_fields[k], v));
    }
    const json_t *params = value_for(x->r, "sampling_params", i);
    bool is_unbounded = json_is_null(json_object_get(params, "max_new_tokens")); /* it is there */
    if (own->max_tokens < 0 && !is_unbounded) own->max_tokens = DEFAULT_NEW_TOKENS;
    if (!s->logprobs) { /* without it, the others have no effect */
        own->prompt_logprobs = false;
        s->n_top_logprobs = 0;
    }
    own->n_prompt_logprobs = own->prompt_logprobs ? s->n_top_logprobs : 0;
    return FATHOM_OK;
}

/* Finds out whether any field is a list with a value for each prompt. */
static fathom_err find_lists(bool *any, struct field_context *x)
{
    const size_t n_prompt = x->r->n_prompt;
    *any = false;
    for (size_t k = 0; k < N_OWN; k++) {
        const char *name = own_fields[k].name;
        const size_t n = json_array_size(json_object_get(x->r->root, name));
        if (n > 1 && n != n_prompt) {
            return api_error_set(x->e, 400, "invalid_value", name,
                                 "%s has %zu values, needed is one, or one for each of %zu prompts",
                                 name, n, n_prompt);
        }
        *any = *any || n > 1;
    }
    return FATHOM_OK;
}

static fathom_err read_each(struct field_context *x)
{
    struct api_request *r = x->r;
    r->each = mem_calloc(r->n_prompt, sizeof *r->each);
    if (!r->each) return FATHOM_ENOMEM;
    for (size_t i = 0; i < r->n_prompt; i++) {
        struct api_request *own = &r->each[i];
        field_set_defaults(own, r->api);
        fathom_err err = read_own(x, own, i);
        if (err) return field_name_prompt(x->e, err, i);
        const char *warning = own->warnings.text;
        if (warning[0] && !strstr(r->warnings.text, warning)) TRY(field_warn(x, "%s", warning));
        if (own->n == r->each[0].n) continue;
        return api_error_set(x->e, 400, "invalid_value", "n",
                             "n is %u for prompt %zu and %u for prompt 0, needed is the same for "
                             "all: send several requests",
                             own->n, i, r->each[0].n);
    }
    r->n = r->each[0].n;
    return FATHOM_OK;
}

/* An id, or a list of one for each prompt. */
static fathom_err read_rid(struct field_context *x)
{
    static const struct field f = {.name = "rid"};
    struct api_request *r = x->r;
    json_t *v = json_object_get(r->root, f.name);
    if (!v || json_is_null(v)) return FATHOM_OK;
    if (!json_is_array(v)) return field_request_id(x, &f, v);
    if (json_array_size(v) != r->n_prompt) {
        return api_error_set(x->e, 400, "invalid_value", f.name,
                             "rid has %zu ids, needed is one for each of %zu prompts",
                             json_array_size(v), r->n_prompt);
    }
    r->ids = mem_calloc(r->n_prompt, sizeof *r->ids);
    if (!r->ids) return FATHOM_ENOMEM;
    for (size_t i = 0; i < r->n_prompt; i++) {
        fathom_err err = field_id(x, &f, json_array_get(v, i), r->ids[i].text);
        if (err) return field_name_prompt(x->e, err, i);
    }
    return FATHOM_OK;
}

static fathom_err check(struct field_context *x)
{
    bool any;
    if (!x->r->prompts) {
        return api_error_set(x->e, 400, "missing_required_parameter", "text",
                             "text and input_ids are missing, one of them is needed");
    }
    TRY(read_rid(x));
    TRY(find_lists(&any, x));
    return any ? read_each(x) : read_own(x, x->r, 0);
}

const struct field_table sglang_table = {fields, sizeof fields / sizeof fields[0], check};
const struct field_table sglang_sampling_table = {
    sampling_fields, sizeof sampling_fields / sizeof sampling_fields[0], NULL};
