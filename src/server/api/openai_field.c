/* openai_field.c - the fields of /v1/chat/completions, /v1/completions, /tokenize and /detokenize
 *
 * The other APIs read what they share with a chat through the table of this file (field_pass).
 */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/assert.h"
#include "base/fail.h"
#include "base/json.h"
#include "base/mem.h"
#include "server/api/request_field.h"

/* Completions stop after this many tokens unless told otherwise, as OpenAI's do. */
enum { COMPLETION_MAX_TOKENS = 16 };

/* ---- readers of one field ------------------------------------------------------------------ */

fathom_err field_stop_token_ids(struct field_context *x, const struct field *f, json_t *v)
{
    if (!json_is_array(v)) return field_wrong_type(x, f->name, v, "an array of integers");
    size_t n = json_array_size(v);
    if (n > LIMIT_STOP_TOKENS) return field_too_many(x, f->name, n, LIMIT_STOP_TOKENS);
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

static fathom_err read_allowed_ids(struct field_context *x, const struct field *f, json_t *v)
{
    struct api_request *r = x->r;
    if (!json_is_array(v)) return field_wrong_type(x, f->name, v, "an array of token ids");
    if (json_array_size(v) == 0) {
        return api_error_set(x->e, 400, "invalid_value", f->name,
                             "allowed_token_ids is empty, needed is at least one token id");
    }
    r->n_allowed_word = (x->bounds->n_vocab + 31) / 32;
    r->allowed_ids = mem_calloc(r->n_allowed_word, sizeof *r->allowed_ids);
    if (!r->allowed_ids) return FATHOM_ENOMEM;
    for (size_t i = 0; i < json_array_size(v); i++) {
        const struct field_place at = field_element(f->name, i);
        const json_t *item = json_array_get(v, i);
        bool ok;
        int64_t id = field_integer(item, &ok);
        if (!ok) return field_wrong_type(x, at.path, item, "a token id");
        if (id < 0 || id >= x->bounds->n_vocab) {
            return field_out_of_range(x, at.path, item, 0, (double)x->bounds->n_vocab - 1, false);
        }
        r->allowed_ids[id / 32] |= 1u << (id % 32);
    }
    return FATHOM_OK;
}

static fathom_err read_bad_words(struct field_context *x, const struct field *f, json_t *v)
{
    struct api_request *r = x->r;
    if (!json_is_array(v)) return field_wrong_type(x, f->name, v, "an array of strings");
    size_t n = json_array_size(v);
    if (n > LIMIT_BAD_WORDS) return field_too_many(x, f->name, n, LIMIT_BAD_WORDS);
    for (size_t i = 0; i < n; i++) {
        const struct field_place at = field_element(f->name, i);
        const json_t *word = json_array_get(v, i);
        if (!json_is_string(word) || json_string_length(word) == 0) {
            return field_wrong_type(x, at.path, word, "a string that is not empty");
        }
        if (json_string_length(word) > LIMIT_STOP_BYTES) {
            return api_error_set(x->e, 400, "invalid_value", at.path,
                                 "%s is %zu bytes long, at most %d are taken", at.path,
                                 json_string_length(word), LIMIT_STOP_BYTES);
        }
        r->bad_words[r->n_bad_word] = mem_strdup(json_string_value(word));
        if (!r->bad_words[r->n_bad_word]) return FATHOM_ENOMEM;
        r->n_bad_word++;
    }
    return FATHOM_OK;
}

static fathom_err read_chat_logprobs(struct field_context *x, const struct field *f, json_t *v)
{
    if (field_boolean(v, &x->r->sampling.logprobs)) return FATHOM_OK;
    return field_wrong_type(x, f->name, v, "a boolean");
}

/* true is 1, as a chat's field of that name has it. */
static fathom_err read_completion_logprobs(struct field_context *x, const struct field *f,
                                           json_t *v)
{
    int64_t i = json_is_true(v);
    if (json_is_false(v)) return FATHOM_OK;
    if (!i) TRY(field_read_integer(x, f, v, &i));
    x->r->sampling.logprobs = true;
    x->r->sampling.n_top_logprobs = (uint32_t)i;
    return FATHOM_OK;
}

static fathom_err read_prompt_logprobs(struct field_context *x, const struct field *f, json_t *v)
{
    int64_t i;
    TRY(field_read_integer(x, f, v, &i));
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

fathom_err field_id(struct field_context *x, const struct field *f, json_t *v,
                    char out[LIMIT_REQUEST_ID_BYTES + 1])
{
    if (!json_is_string(v)) return field_wrong_type(x, f->name, v, "a string");
    const char *s = json_string_value(v);
    if (!api_is_request_id(s) || json_string_length(v) != strlen(s)) {
        if (!x->bounds->strict) {
            return field_warn(x,
                              "%s is no id of 1 to %d letters, digits or characters of -_.:, so "
                              "the answer has its own",
                              f->name, LIMIT_REQUEST_ID_BYTES);
        }
        return api_error_set(x->e, 400, "invalid_value", f->name,
                             "%s is \"%.80s\", needed are 1 to %d letters, digits or "
                             "characters of -_.:",
                             f->name, s, LIMIT_REQUEST_ID_BYTES);
    }
    memcpy(out, s, strlen(s) + 1);
    return FATHOM_OK;
}

fathom_err field_request_id(struct field_context *x, const struct field *f, json_t *v)
{
    return field_id(x, f, v, x->r->request_id);
}

/* Proxies put kv_transfer_params there. */
static fathom_err read_extra_args(struct field_context *x, const struct field *f, json_t *v)
{
    static const char *const keys[] = {"kv_transfer_params", NULL};
    json_t *transfer = json_object_get(v, keys[0]);
    if (!json_is_plain_object(v)) return field_wrong_type(x, f->name, v, "an object");
    TRY(field_check_keys(x, f->name, v, keys));
    return transfer && !json_is_null(transfer) ? field_kv_transfer(x, f, transfer) : FATHOM_OK;
}

/* ---- rules over several fields ------------------------------------------------------------- */

static fathom_err check_chat(struct api_request *r, struct api_error *e)
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

static fathom_err check_completion(struct api_request *r, struct api_error *e)
{
    if (!r->prompts) {
        return api_error_set(e, 400, "missing_required_parameter", "prompt",
                             "prompt is missing, a string or an array is needed");
    }
    if (r->max_tokens < 0) r->max_tokens = COMPLETION_MAX_TOKENS;
    if (r->echo && r->suffix) {
        return api_error_set(e, 400, "unsupported_parameter", "echo",
                             "echo with suffix is not supported");
    }
    return FATHOM_OK;
}

static fathom_err check_tokenize(struct api_request *r, struct api_error *e)
{
    r->return_token_ids = true;
    if (r->messages && r->prompts) {
        return api_error_set(e, 400, "invalid_value", "prompt",
                             "prompt and messages are both there, needed is one of them");
    }
    if (r->messages) {
        r->api = API_TOKENIZE_CHAT;
        return check_chat(r, e);
    }
    if (r->prompts) return FATHOM_OK;
    return api_error_set(e, 400, "missing_required_parameter", "prompt",
                         "prompt and messages are missing, one of them is needed");
}

static fathom_err check_detokenize(const struct api_request *r, struct api_error *e)
{
    if (r->prompts) return FATHOM_OK;
    return api_error_set(e, 400, "missing_required_parameter", "tokens",
                         "tokens is missing, an array of token ids is needed");
}

static fathom_err check(struct field_context *x)
{
    switch (x->r->api) {
    case API_COMPLETION: return check_completion(x->r, x->e);
    case API_TOKENIZE: return check_tokenize(x->r, x->e);
    case API_DETOKENIZE: return check_detokenize(x->r, x->e);
    default: return check_chat(x->r, x->e);
    }
}

/* ---- the table ----------------------------------------------------------------------------- */

#define AT(member) offsetof(struct api_request, member)
#define NO_MEDIA "messages are text"

static const struct field fields[] = {
    {"model", BOTH | TOKENIZE | DETOKENIZE, field_model, 0, 0, 0, false, NULL},
    {"messages", CHAT | TOKENIZE, field_messages, 0, 0, 0, false, NULL},
    {"tools", CHAT | TOKENIZE, field_tools, 0, 0, 0, false, NULL},
    {"tool_choice", CHAT | TOKENIZE, field_tool_choice, 0, 0, 0, false, NULL},
    {"parallel_tool_calls", CHAT, field_parallel_tool_calls, 0, 0, 0, false, NULL},
    {"separate_reasoning", CHAT, field_separate_reasoning, 0, 0, 0, false, NULL},
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
    {"n", SAMPLING, field_count, AT(n), 1, LIMIT_CHOICES, false, NULL},
    {"priority", BOTH, field_int, AT(priority), INT32_MIN, INT32_MAX, false, NULL},
    {"data_parallel_rank", BOTH, field_int, AT(data_parallel_rank), 0, INT32_MAX, false, NULL},
    {"best_of", BOTH, field_count, AT(best_of), 1, LIMIT_CHOICES, false, NULL},
    {"max_tokens", CHAT | GENERATE, field_max_tokens, 0, 1, INT32_MAX, false, NULL},
    {"max_completion_tokens", CHAT, field_max_tokens, 0, 1, INT32_MAX, false, NULL},
    {"max_tokens", COMPLETION, field_max_tokens, 0, 0, INT32_MAX, false, NULL},
    {"max_completion_tokens", COMPLETION, field_max_tokens, 0, 0, INT32_MAX, false, NULL},
    {"min_tokens", SAMPLING, field_count, AT(sampling.min_tokens), 0, INT32_MAX, false, NULL},
    {"stop", SAMPLING, field_stop, 0, 0, 0, false, NULL},
    {"stop_token_ids", SAMPLING, field_stop_token_ids, 0, 0, 0, false, NULL},
    {"include_stop_str_in_output", SAMPLING, field_flag, AT(include_stop), 0, 0, false, NULL},
    {"no_stop_trim", BOTH, field_flag, AT(include_stop), 0, 0, false, NULL}, /* SGLang's name */
    {"ignore_eos", SAMPLING, field_flag, AT(sampling.ignore_eos), 0, 0, false, NULL},
    {"skip_special_tokens", SAMPLING, field_flag, AT(skip_special_tokens), 0, 0, false, NULL},
    {"return_token_ids", BOTH, field_flag, AT(return_token_ids), 0, 0, false, NULL},
    {"return_tokens_as_token_ids", BOTH, field_flag, AT(tokens_as_ids), 0, 0, false, NULL},

    {"temperature", SAMPLING, field_real, AT(sampling.temperature), 0, 2, false, NULL},
    {"top_p", SAMPLING, field_real, AT(sampling.top_p), 0, 1, true, NULL},
    {"top_k", SAMPLING, field_int, AT(sampling.top_k), -1, INT32_MAX, false, NULL},
    {"min_p", SAMPLING, field_real, AT(sampling.min_p), 0, 1, false, NULL},
    {"seed", SAMPLING, field_seed, 0, 0, 0, false, NULL},
    {"cache_salt", BOTH, field_cache_salt, 0, 0, 0, false, NULL},
    {"resume", BOTH, field_resume, 0, 0, 0, false, NULL},
    {"kv_transfer_params", BOTH, field_kv_transfer, 0, 0, 0, false, NULL},
    {"bootstrap_host", BOTH, field_bootstrap_host, 0, 0, 0, false, NULL},
    {"bootstrap_port", BOTH, field_bootstrap_port, 0, 1, 65535, false, NULL},
    {"bootstrap_room", BOTH, field_bootstrap_room, 0, 0, 0, false, NULL},
    {"request_id", BOTH, field_request_id, 0, 0, 0, false, NULL},
    {"presence_penalty", SAMPLING, field_real, AT(sampling.presence_penalty), -2, 2, false, NULL},
    {"frequency_penalty", SAMPLING, field_real, AT(sampling.frequency_penalty), -2, 2, false, NULL},
    {"repetition_penalty", SAMPLING, field_real, AT(sampling.repetition_penalty), 0, INFINITY, true,
     NULL},
    {"logit_bias", SAMPLING, field_logit_bias, 0, -100, 100, false, NULL},
    {"allowed_token_ids", SAMPLING, read_allowed_ids, 0, 0, 0, false, NULL},
    {"bad_words", SAMPLING, read_bad_words, 0, 0, 0, false, NULL},
    {"logprobs", CHAT, read_chat_logprobs, 0, 0, 0, false, NULL},
    {"logprobs", COMPLETION | GENERATE, read_completion_logprobs, 0, 0, LIMIT_TOP_LOGPROBS, false,
     NULL},
    {"top_logprobs", CHAT, field_top_logprobs, 0, 0, LIMIT_TOP_LOGPROBS, false, NULL},
    {"prompt_logprobs", SAMPLING, read_prompt_logprobs, 0, 0, LIMIT_TOP_LOGPROBS, false, NULL},

    {"add_generation_prompt", CHAT | TOKENIZE, field_add_generation_prompt,
     AT(add_generation_prompt), 0, 0, false, NULL},
    {"continue_final_message", CHAT | TOKENIZE, field_flag, AT(continue_final_message), 0, 0, false,
     NULL},
    {"chat_template_kwargs", CHAT | TOKENIZE, field_template_kwargs, 0, 0, 0, false, NULL},
    {"reasoning_effort", CHAT | TOKENIZE, field_reasoning_effort, 0, 0, 0, false, NULL},
    {"thinking", CHAT | TOKENIZE, field_thinking, 0, 0, 0, false, NULL},
    {"enable_thinking", CHAT | TOKENIZE, field_thinking, 0, 0, 0, false,
     NULL}, /* hosts' names, both */
    {"thinking_budget", CHAT, field_thinking_budget, 0, -1, INT32_MAX, false, NULL},
    {"thinking_token_budget", SAMPLING, field_thinking_budget, 0, -1, INT32_MAX, false, NULL},
    {"response_format", BOTH | TOKENIZE, field_response_format, 0, 0, 0, false, NULL},
    {"guided_json", BOTH, field_guided_json, 0, 0, 0, false, NULL},
    {"guided_regex", BOTH, field_guided_regex, 0, 0, 0, false, NULL},
    {"guided_choice", BOTH, field_guided_choice, 0, 0, 0, false, NULL},
    {"guided_grammar", BOTH, field_guided_grammar, 0, 0, 0, false, NULL},
    {"json_schema", BOTH, field_guided_json, 0, 0, 0, false, NULL}, /* SGLang's, all four */
    {"regex", BOTH, field_guided_regex, 0, 0, 0, false, NULL},
    {"ebnf", BOTH, field_guided_grammar, 0, 0, 0, false, NULL},
    {"structural_tag", BOTH, field_structural_tag, 0, 0, 0, false, NULL},
    {"structured_outputs", SAMPLING, field_structured_outputs, 0, 0, 0, false, NULL},
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
    {"stream_interval", SAMPLING, field_none, 0, 0, 0, false, NULL},
    {"stream_reasoning", CHAT, field_none, 0, 0, 0, false, NULL},
    {"length_penalty", SAMPLING, field_none, 0, 0, 0, false, NULL},
    {"spaces_between_special_tokens", SAMPLING, field_none, 0, 0, 0, false, NULL},

    {"extra_args", GENERATE, read_extra_args, 0, 0, 0, false, NULL},
    {"guided_decoding", GENERATE, field_structured_outputs, 0, 0, 0, false,
     NULL}, /* its older name */
    {"detokenize", GENERATE, field_none, 0, 0, 0, false, NULL},
    {"flat_logprobs", GENERATE, field_none, 0, 0, 0, false, NULL},
    {"output_kind", GENERATE, field_none, 0, 0, 0, false, NULL},
    {"skip_reading_prefix_cache", GENERATE, field_none, 0, 0, 0, false, NULL},

    {"audio", CHAT, field_refuse, 0, 0, 0, false, "only text is generated"},
    {"functions", CHAT, field_refuse, 0, 0, 0, false, "use tools"},
    {"function_call", CHAT, field_refuse, 0, 0, 0, false, "use tool_choice"},
    {"prediction", CHAT, field_idle, 0, 0, 0, false, "drafts are the model's own"},
    {"verbosity", CHAT, field_verbosity, 0, 0, 0, false, NULL},
    {"reasoning", CHAT, field_idle, 0, 0, 0, false, "reasoning_effort is what a chat has"},
    {"documents", CHAT, field_idle, 0, 0, 0, false,
     "the model's prompt has no place for them, put them into a message"},
    {"media_io_kwargs", CHAT | TOKENIZE, field_idle, 0, 0, 0, false, NO_MEDIA},
    {"mm_processor_kwargs", BOTH | TOKENIZE, field_idle, 0, 0, 0, false, NO_MEDIA},
    {"prompt_embeds", COMPLETION, field_refuse, 0, 0, 0, false, "send text or token ids"},
    {"web_search_options", CHAT, field_refuse, 0, 0, 0, false, "give a search tool in tools"},
    {"chat_template", CHAT | TOKENIZE, field_refuse, 0, 0, 0, false,
     "the checkpoint decides how messages are rendered"},
    {"use_beam_search", BOTH, field_refuse, 0, 0, 0, false, "use n for several samples"},
    {"logprob_token_ids", SAMPLING, field_refuse, 0, 0, 0, false, "use top_logprobs"},
    {"repetition_detection", SAMPLING, field_refuse, 0, 0, 0, false, "use frequency_penalty"},
    {"watermarking", BOTH, field_refuse, 0, 0, 0, false, "output has no watermark"},
    {"vllm_xargs", BOTH, field_idle, 0, 0, 0, false, "there are no extensions"},
    {"ec_transfer_params", BOTH, field_refuse, 0, 0, 0, false, "send the prompt"},
    {"return_prompt_text", BOTH, field_refuse, 0, 0, 0, false, "use return_token_ids"},
    {"return_token_offsets", BOTH, field_idle, 0, 0, 0, false, "logprobs have text_offset"},
    {"guided_whitespace_pattern", BOTH, field_refuse, 0, 0, 0, false,
     "use structured_outputs.disable_any_whitespace"},
    {"stop_regex", BOTH, field_refuse, 0, 0, 0, false, "use stop"},
    {"return_hidden_states", BOTH, field_refuse, 0, 0, 0, false, "tokens are told, not states"},
    {"custom_logit_processor", BOTH, field_refuse, 0, 0, 0, false, "use logit_bias"},
};

const struct field_table openai_table = {fields, sizeof fields / sizeof fields[0], check};

/* ---- values of other APIs ------------------------------------------------------------------ */

fathom_err field_pass(struct field_context *x, const char *name, json_t *v)
{
    const struct field *f = field_find(&openai_table, name, API_CHAT);
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
        TRY_GOTO(read(x, field_element("tools", i).path, json_array_get(v, i), tools), out);
    }
    err = field_pass(x, "tools", tools);
out:
    json_decref(tools);
    return err;
}
