/* responses_field.c - the fields of /v1/responses */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/fail.h"
#include "base/json.h"
#include "server/api/request_field.h"
#include "server/api/responses_form.h"

static fathom_err read_string(struct field_context *x, const struct field *f, json_t *v)
{
    return json_is_string(v) ? FATHOM_OK : field_wrong_type(x, f->name, v, "a string");
}

static fathom_err read_metadata(struct field_context *x, const struct field *f, json_t *v)
{
    const char *key;
    json_t *value;
    if (!json_is_plain_object(v)) return field_wrong_type(x, f->name, v, "an object of strings");
    json_object_foreach (v, key, value) {
        if (json_is_string(value)) continue;
        return field_wrong_type(x, field_member(f->name, key).path, value, "a string");
    }
    return FATHOM_OK;
}

/* ---- tools --------------------------------------------------------------------------------- */

/* A copy of an object without "type" and without null members; NULL: out of memory. */
static json_t *copy_members(const json_t *object)
{
    const char *key;
    json_t *value;
    json_t *copy = json_object();
    json_object_foreach ((json_t *)object, key, value) {
        if (json_is_null(value) || strcmp(key, "type") == 0) continue;
        if (json_object_set(copy, key, value) == 0) continue;
        json_decref(copy);
        return NULL;
    }
    return copy;
}

/* Sets the function's name for the model: a tool of a namespace gets both names. */
static fathom_err name_function(json_t *function, const json_t *space)
{
    if (!function) return FATHOM_ENOMEM;
    (void)json_object_del(function, "defer_loading");
    if (!space) return FATHOM_OK;
    json_t *name = responses_function_name(space, json_object_get(function, "name"));
    return json_object_set_new(function, "name", name) == 0 ? FATHOM_OK : FATHOM_ENOMEM;
}

/* Turns a function into a chat's tool, with the names that its calls are told by beside it. All
 * functions are shown to the model, deferred ones too. */
static fathom_err read_function(struct field_context *x, const char *path, const json_t *tool,
                                const json_t *space, json_t *tools)
{
    static const char *const keys[] = {"type",   "name",          "description", "parameters",
                                       "strict", "defer_loading", NULL};
    json_t *name;
    TRY(field_check_keys(x, path, tool, keys));
    TRY(field_get_string(x, path, tool, "name", &name));
    json_t *function = copy_members(tool);
    fathom_err err = name_function(function, space);
    if (err) {
        json_decref(function);
        return err;
    }
    return field_push(tools, json_pack("{s:s, s:o, s:O*, s:O*}", "type", "function", "function",
                                       function, "namespace", space, "name", space ? name : NULL));
}

static fathom_err read_namespace(struct field_context *x, const char *path, const json_t *tool,
                                 json_t *tools)
{
    static const char *const keys[] = {"type", "name", "description", "tools", NULL};
    json_t *space;
    const struct field_place list = field_member(path, "tools");
    const json_t *v = json_object_get(tool, "tools");
    TRY(field_check_keys(x, path, tool, keys));
    TRY(field_get_string(x, path, tool, "name", &space));
    if (!json_is_array(v)) return field_wrong_type(x, list.path, v, "an array of tools");
    for (size_t i = 0; i < json_array_size(v); i++) {
        const struct field_place at = field_element(list.path, i);
        const json_t *own = json_array_get(v, i);
        json_t *type;
        if (!json_is_plain_object(own)) return field_wrong_type(x, at.path, own, "an object");
        TRY(field_get_string(x, at.path, own, "type", &type));
        bool callable = strcmp(json_string_value(type), "function") == 0;
        TRY(callable ? read_function(x, at.path, own, space, tools)
                     : field_pass_tool_type(x, at.path, json_string_value(type)));
    }
    return FATHOM_OK;
}

static fathom_err read_tool(struct field_context *x, const char *path, const json_t *tool,
                            json_t *tools)
{
    json_t *type;
    if (!json_is_plain_object(tool)) return field_wrong_type(x, path, tool, "an object");
    TRY(field_get_string(x, path, tool, "type", &type));
    const char *name = json_string_value(type);
    if (strcmp(name, "function") == 0) return read_function(x, path, tool, NULL, tools);
    if (strcmp(name, "namespace") == 0) return read_namespace(x, path, tool, tools);
    return field_pass_tool_type(x, path, name);
}

static fathom_err read_tools(struct field_context *x, const struct field *f, json_t *v)
{
    (void)f;
    return field_pass_tools(x, v, read_tool);
}

static fathom_err read_tool_choice(struct field_context *x, const struct field *f, json_t *v)
{
    static const char *const keys[] = {"type", "name", "namespace", NULL};
    json_t *type, *name;
    if (json_is_string(v)) return field_pass(x, f->name, v);
    if (!json_is_plain_object(v)) return field_wrong_type(x, f->name, v, "a string or an object");
    TRY(field_get_string(x, f->name, v, "type", &type));
    if (strcmp(json_string_value(type), "allowed_tools") == 0) {
        return field_allow_tools(x, f->name, v, NULL);
    }
    if (strcmp(json_string_value(type), "function") != 0) {
        return api_error_set(x->e, 400, "unsupported_value", "tool_choice.type",
                             "tool_choice.type is \"%.40s\", which is not supported; only "
                             "\"function\" is",
                             json_string_value(type));
    }
    TRY(field_check_keys(x, f->name, v, keys));
    TRY(field_get_string(x, f->name, v, "name", &name));
    const json_t *space = json_object_get(v, "namespace");
    name = json_is_string(space) ? responses_function_name(space, name) : json_incref(name);
    return field_pass_new(
        x, f->name, json_pack("{s:s, s:{s:o}}", "type", "function", "function", "name", name));
}

/* ---- options ------------------------------------------------------------------------------- */

static bool is_one_of(const json_t *v, const char *const *words)
{
    for (; *words; words++) {
        if (json_is_string(v) && strcmp(json_string_value(v), *words) == 0) return true;
    }
    return false;
}

/* Reasoning is never abridged: a summary of any length is all of it. */
static fathom_err read_summary(struct field_context *x, const json_t *object, const char *key)
{
    static const char *const words[] = {"auto", "concise", "detailed", NULL};
    const json_t *v = json_object_get(object, key);
    if (!v || json_is_null(v)) return FATHOM_OK;
    if (is_one_of(v, words)) {
        x->r->responses->summary = true;
        return FATHOM_OK;
    }
    const struct field_place at = field_member("reasoning", key);
    return api_error_set(x->e, 400, "invalid_value", at.path,
                         "%s is not known, needed is auto, concise or detailed", at.path);
}

static fathom_err read_reasoning(struct field_context *x, const struct field *f, json_t *v)
{
    static const char *const keys[] = {"effort", "summary", "generate_summary", NULL};
    if (!json_is_plain_object(v)) return field_wrong_type(x, f->name, v, "an object");
    TRY(field_check_keys(x, f->name, v, keys));
    TRY(read_summary(x, v, "summary"));
    TRY(read_summary(x, v, "generate_summary"));
    json_t *effort = json_object_get(v, "effort");
    if (!effort || json_is_null(effort)) return FATHOM_OK;
    if (!json_is_string(effort)) {
        return field_wrong_type(x, "reasoning.effort", effort, "a string");
    }
    return field_pass(x, "reasoning_effort", effort);
}

/* {"type", "name", "schema", "strict"} as a chat's response_format, which has them one deeper. */
static fathom_err pass_schema(struct field_context *x, json_t *format)
{
    static const char *const keys[] = {"type", "name", "schema", "strict", "description", NULL};
    json_t *name;
    TRY(field_check_keys(x, "text.format", format, keys));
    TRY(field_get_string(x, "text.format", format, "name", &name));
    json_t *schema = json_object_get(format, "schema");
    json_t *strict = json_object_get(format, "strict");
    if (!json_is_plain_object(schema)) {
        return field_wrong_type(x, "text.format.schema", schema, "an object (a JSON schema)");
    }
    TRY(field_pass_new(x, "response_format",
                       json_pack("{s:s, s:{s:O, s:O, s:O*}}", "type", "json_schema", "json_schema",
                                 "name", name, "schema", schema, "strict", strict)));
    answer_rule_rename(&x->r->rule, "text.format", "text.format.schema");
    return FATHOM_OK;
}

static fathom_err read_text(struct field_context *x, const struct field *f, json_t *v)
{
    static const char *const keys[] = {"format", "verbosity", NULL};
    static const char *const types[] = {"text", "json_object", "json_schema", NULL};
    static const char *const type_key[] = {"type", NULL};
    if (!json_is_plain_object(v)) return field_wrong_type(x, f->name, v, "an object");
    TRY(field_check_keys(x, f->name, v, keys));
    json_t *verbosity = json_object_get(v, "verbosity");
    static const struct field own = {.name = "text.verbosity"};
    if (verbosity && !json_is_null(verbosity)) TRY(field_verbosity(x, &own, verbosity));
    json_t *format = json_object_get(v, "format");
    if (!format || json_is_null(format)) return FATHOM_OK;
    if (!json_is_plain_object(format))
        return field_wrong_type(x, "text.format", format, "an object");
    json_t *type;
    TRY(field_get_string(x, "text.format", format, "type", &type));
    if (!is_one_of(type, types)) {
        return api_error_set(x->e, 400, "invalid_value", "text.format.type",
                             "text.format.type is \"%.40s\", needed is text, json_object or "
                             "json_schema",
                             json_string_value(type));
    }
    if (strcmp(json_string_value(type), "json_schema") == 0) return pass_schema(x, format);
    TRY(field_check_keys(x, "text.format", format, type_key));
    TRY(field_pass(x, "response_format", format));
    answer_rule_rename(&x->r->rule, "text.format", "text.format");
    return FATHOM_OK;
}

/* Reasoning comes encrypted only from servers that hide it; here it is told as it is. The other
 * words ask for items that no answer here has. */
static fathom_err read_include(struct field_context *x, const struct field *f, json_t *v)
{
    static const char *const idle[] = {
        "reasoning.encrypted_content",   "file_search_call.results",
        "web_search_call.results",       "web_search_call.action.sources",
        "message.input_image.image_url", "computer_call_output.output.image_url",
        "code_interpreter_call.outputs", NULL};
    if (!json_is_array(v)) return field_wrong_type(x, f->name, v, "an array of strings");
    for (size_t i = 0; i < json_array_size(v); i++) {
        const json_t *item = json_array_get(v, i);
        const struct field_place at = field_element(f->name, i);
        if (!json_is_string(item)) return field_wrong_type(x, at.path, item, "a string");
        const char *name = json_string_value(item);
        if (strcmp(name, "message.output_text.logprobs") == 0) {
            x->r->sampling.logprobs = true;
        } else if (is_one_of(item, idle)) {
            continue;
        } else if (!x->bounds->strict) {
            TRY(field_warn(x, "%s is \"%.60s\", which is not known here", at.path, name));
        } else {
            return api_error_set(x->e, 400, "unsupported_value", at.path,
                                 "%s is \"%.60s\", which is not supported; "
                                 "message.output_text.logprobs and reasoning.encrypted_content "
                                 "are",
                                 at.path, name);
        }
    }
    return FATHOM_OK;
}

static fathom_err read_top_logprobs(struct field_context *x, const struct field *f, json_t *v)
{
    TRY(field_top_logprobs(x, f, v));
    if (x->r->has_top_logprobs) x->r->sampling.logprobs = true;
    return FATHOM_OK;
}

static fathom_err read_truncation(struct field_context *x, const struct field *f, json_t *v)
{
    static const char *const words[] = {"auto", "disabled", NULL};
    if (is_one_of(v, words)) return FATHOM_OK;
    return api_error_set(x->e, 400, "invalid_value", f->name,
                         "truncation is not known, needed is disabled, or auto, which is the same "
                         "here: what is too long is refused");
}

/* An answer lives only as long as its connection, so it cannot be made in the background. */
static fathom_err read_background(struct field_context *x, const struct field *f, json_t *v)
{
    bool on;
    if (!field_boolean(v, &on)) return field_wrong_type(x, f->name, v, "a boolean");
    if (!on) return FATHOM_OK;
    if (!x->bounds->strict) {
        return field_warn(x,
                          "background is true: the answer comes by this connection all the same");
    }
    return api_error_set(x->e, 400, "unsupported_parameter", f->name,
                         "background is not supported: an answer lives as long as its connection; "
                         "stream it");
}

static fathom_err read_stream_options(struct field_context *x, const struct field *f, json_t *v)
{
    static const char *const keys[] = {"include_obfuscation", NULL};
    if (!json_is_plain_object(v)) return field_wrong_type(x, f->name, v, "an object");
    x->r->has_stream_options = true;
    return field_check_keys(x, f->name, v, keys);
}

/* ---- all together -------------------------------------------------------------------------- */

static fathom_err decide_store(struct field_context *x)
{
    const json_t *v = json_object_get(x->r->root, "store");
    bool can = x->bounds->recall != NULL;
    if (x->r->api != API_RESPONSES) return FATHOM_OK;
    x->r->responses->store = can;
    if (!v || json_is_null(v)) return FATHOM_OK;
    bool on;
    if (!field_boolean(v, &on)) return field_wrong_type(x, "store", v, "a boolean");
    if (on && !can) {
        return api_error_set(x->e, 400, "unsupported_value", "store",
                             "store is true and this server keeps no responses "
                             "(--max-stored-responses 0)");
    }
    x->r->responses->store = on;
    return FATHOM_OK;
}

/* Members of the response object that repeat the request, as they were sent; numbers and booleans
 * as such, though they came as texts. */
static fathom_err write_echo(struct field_context *x)
{
    static const char *const members[][2] = {
        {"instructions", "null"},
        {"max_tool_calls", "null"},
        {"metadata", "{}"},
        {"previous_response_id", "null"},
        {"prompt_cache_key", "null"},
        {"reasoning", "{\"effort\":null,\"summary\":null}"},
        {"safety_identifier", "null"},
        {"text", "{\"format\":{\"type\":\"text\"}}"},
        {"tool_choice", "\"auto\""},
        {"tools", "[]"},
        {"truncation", "\"disabled\""},
        {"user", "null"},
    };
    struct buf *b = &x->r->responses->echo;
    for (size_t i = 0; i < sizeof members / sizeof members[0]; i++) {
        const json_t *v = json_object_get(x->r->root, members[i][0]);
        (void)buf_printf(b, ",\"%s\":", members[i][0]);
        if (v && !json_is_null(v))
            (void)json_write(b, v);
        else
            (void)buf_add_str(b, members[i][1]);
    }
    if (x->r->max_tokens >= 0) {
        (void)buf_printf(b, ",\"max_output_tokens\":%lld", (long long)x->r->max_tokens);
    } else {
        (void)buf_add_str(b, ",\"max_output_tokens\":null");
    }
    (void)buf_printf(b, ",\"parallel_tool_calls\":%s,\"top_logprobs\":%u",
                     x->r->rule.one_call ? "false" : "true", x->r->sampling.n_top_logprobs);
    return buf_status(b);
}

/* A string is one message of the user; *out is a new reference. */
static fathom_err read_input(struct field_context *x, json_t **out)
{
    json_t *v = json_object_get(x->r->root, "input");
    *out = NULL;
    if (!v || json_is_null(v)) {
        return api_error_set(x->e, 400, "missing_required_parameter", "input",
                             "input is missing, a string or an array of items is needed");
    }
    if (json_is_string(v)) {
        *out = json_pack("[{s:s, s:s, s:O}]", "type", "message", "role", "user", "content", v);
        return *out ? FATHOM_OK : FATHOM_ENOMEM;
    }
    if (!json_is_array(v)) return field_wrong_type(x, "input", v, "a string or an array of items");
    *out = json_incref(v);
    return FATHOM_OK;
}

static fathom_err recall(struct field_context *x, json_t *before)
{
    const json_t *id = json_object_get(x->r->root, "previous_response_id");
    if (!json_is_string(id)) return FATHOM_OK;
    if (x->bounds->recall) {
        return x->bounds->recall(x->bounds->recall_arg, json_string_value(id), before, x->e);
    }
    return api_error_set(x->e, 400, "unsupported_parameter", "previous_response_id",
                         "previous_response_id is given and this server keeps no responses "
                         "(--max-stored-responses 0): send all items in input");
}

static fathom_err check(struct field_context *x)
{
    json_t *input;
    const json_t *instructions = json_object_get(x->r->root, "instructions");
    TRY(decide_store(x));
    TRY(read_input(x, &input));
    json_t *before = json_array();
    fathom_err err = before ? FATHOM_OK : FATHOM_ENOMEM;
    if (!err) err = recall(x, before);
    if (!err) {
        err = responses_read_items(x, json_is_string(instructions) ? instructions : NULL, before,
                                   input);
    }
    if (!err && x->r->responses->store) err = json_write(&x->r->responses->items, input);
    if (!err && x->r->api == API_RESPONSES) err = write_echo(x);
    json_decref(before);
    json_decref(input);
    return err;
}

/* ---- the table ----------------------------------------------------------------------------- */

#define AT(member) offsetof(struct api_request, member)
#define IS RESPONSES
#define ASKED (RESPONSES | INPUT)

static const struct field fields[] = {
    {"model", ASKED, field_model, 0, 0, 0, false, NULL},
    {"input", ASKED, field_later, 0, 0, 0, false, NULL},
    {"instructions", ASKED, read_string, 0, 0, 0, false, NULL},
    {"previous_response_id", ASKED, read_string, 0, 0, 0, false, NULL},
    {"store", IS, field_none, 0, 0, 0, false, NULL},
    {"metadata", IS, read_metadata, 0, 0, 0, false, NULL},
    {"tools", ASKED, read_tools, 0, 0, 0, false, NULL},
    {"tool_choice", ASKED, read_tool_choice, 0, 0, 0, false, NULL},
    {"parallel_tool_calls", ASKED, field_parallel_tool_calls, 0, 0, 0, false, NULL},
    {"reasoning", ASKED, read_reasoning, 0, 0, 0, false, NULL},
    {"text", ASKED, read_text, 0, 0, 0, false, NULL},
    {"include", IS, read_include, 0, 0, 0, false, NULL},
    {"truncation", ASKED, read_truncation, 0, 0, 0, false, NULL},
    {"stream", IS, field_flag, AT(stream), 0, 0, false, NULL},
    {"stream_options", IS, read_stream_options, 0, 0, 0, false, NULL},

    {"max_output_tokens", IS, field_max_tokens, 0, 1, INT32_MAX, false, NULL},
    {"temperature", IS, field_real, AT(sampling.temperature), 0, 2, false, NULL},
    {"top_p", IS, field_real, AT(sampling.top_p), 0, 1, true, NULL},
    {"top_logprobs", IS, read_top_logprobs, 0, 0, LIMIT_TOP_LOGPROBS, false, NULL},

    {"user", IS, read_string, 0, 0, 0, false, NULL},
    {"safety_identifier", IS, read_string, 0, 0, 0, false, NULL},
    {"prompt_cache_key", IS, read_string, 0, 0, 0, false, NULL},
    {"prompt_cache_retention", IS, read_string, 0, 0, 0, false, NULL},
    {"service_tier", IS, read_string, 0, 0, 0, false, NULL},
    {"client_metadata", IS, field_object, 0, 0, 0, false, NULL},
    {"max_tool_calls", IS, field_none, 0, 0, 0, false, NULL},

    /* beyond OpenAI's */
    {"top_k", IS, field_int, AT(sampling.top_k), -1, INT32_MAX, false, NULL},
    {"min_p", IS, field_real, AT(sampling.min_p), 0, 1, false, NULL},
    {"seed", IS, field_seed, 0, 0, 0, false, NULL},
    {"min_tokens", IS, field_count, AT(sampling.min_tokens), 0, INT32_MAX, false, NULL},
    {"ignore_eos", IS, field_flag, AT(sampling.ignore_eos), 0, 0, false, NULL},
    {"stop", IS, field_stop, 0, 0, 0, false, NULL},
    {"presence_penalty", IS, field_real, AT(sampling.presence_penalty), -2, 2, false, NULL},
    {"frequency_penalty", IS, field_real, AT(sampling.frequency_penalty), -2, 2, false, NULL},
    {"repetition_penalty", IS, field_real, AT(sampling.repetition_penalty), 0, INFINITY, true,
     NULL},
    {"logit_bias", IS, field_logit_bias, 0, -100, 100, false, NULL},
    {"priority", IS, field_int, AT(priority), INT32_MIN, INT32_MAX, false, NULL},
    {"structured_outputs", IS, field_structured_outputs, 0, 0, 0, false, NULL},
    {"include_stop_str_in_output", IS, field_flag, AT(include_stop), 0, 0, false, NULL},
    {"skip_special_tokens", IS, field_flag, AT(skip_special_tokens), 0, 0, false, NULL},
    {"include_reasoning", IS, field_flag, AT(include_reasoning), 0, 0, false, NULL},
    {"request_id", IS, field_idle, 0, 0, 0, false, "a response's id is the server's"},
    {"cache_salt", IS, field_cache_salt, 0, 0, 0, false, NULL},
    {"resume", IS, field_resume, 0, 0, 0, false, NULL},
    {"kv_transfer_params", IS, field_kv_transfer, 0, 0, 0, false, NULL},
    {"bootstrap_host", IS, field_bootstrap_host, 0, 0, 0, false, NULL},
    {"bootstrap_port", IS, field_bootstrap_port, 0, 1, 65535, false, NULL},
    {"bootstrap_room", IS, field_bootstrap_room, 0, 0, 0, false, NULL},
    {"chat_template_kwargs", ASKED, field_template_kwargs, 0, 0, 0, false, NULL},
    {"thinking_token_budget", IS, field_thinking_budget, 0, -1, INT32_MAX, false, NULL},

    {"messages", ASKED, field_refuse, 0, 0, 0, false, "use input"},
    {"max_tokens", IS, field_refuse, 0, 0, 0, false, "use max_output_tokens"},
    {"max_completion_tokens", IS, field_refuse, 0, 0, 0, false, "use max_output_tokens"},
    {"response_format", ASKED, field_refuse, 0, 0, 0, false, "use text.format"},
    {"reasoning_effort", ASKED, field_refuse, 0, 0, 0, false, "use reasoning.effort"},
    {"background", IS, read_background, 0, 0, 0, false, NULL},
    {"conversation", ASKED, field_refuse, 0, 0, 0, false, "use previous_response_id"},
    {"prompt", ASKED, field_refuse, 0, 0, 0, false, "there are no templates; send instructions"},
    {"context_management", ASKED, field_refuse, 0, 0, 0, false, "send a shorter input"},
};

const struct field_table responses_table = {fields, sizeof fields / sizeof fields[0], check};
