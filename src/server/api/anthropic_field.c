/* anthropic_field.c - the fields of /v1/messages and /v1/messages/count_tokens */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/fail.h"
#include "base/json.h"
#include "server/api/request_field.h"

/* There is one speed. */
static fathom_err read_speed(struct field_context *x, const struct field *f, json_t *v)
{
    if (json_is_string(v) && strcmp(json_string_value(v), "standard") == 0) return FATHOM_OK;
    return api_error_set(x->e, 400, "unsupported_value", f->name,
                         "speed is only supported as \"standard\"");
}

/* No thread is kept between requests. A request that begins one brings all messages. One that
 * continues a thread gets the error upon which Anthropic's clients send all messages again. */
static fathom_err read_thread(struct field_context *x, const struct field *f, json_t *v)
{
    if (!json_is_plain_object(v)) return field_wrong_type(x, f->name, v, "an object");
    const char *type = json_string_value(json_object_get(v, "type"));
    if (type && strcmp(type, "create") == 0) return FATHOM_OK;
    if (type && strcmp(type, "continue") == 0) {
        return api_error_set(x->e, 404, API_THREAD_NOT_FOUND, f->name,
                             "no thread is kept here: send all messages, with thread.type "
                             "\"create\" or without thread");
    }
    return api_error_set(x->e, 400, "invalid_value", "thread.type",
                         "thread.type is not known, needed is create or continue");
}

/* ---- tools --------------------------------------------------------------------------------- */

/* Turns a tool into a chat's. A tool without a type is "custom". Tools of other types run at
 * Anthropic, or have a schema that only Anthropic's models know. All tools are shown to the model,
 * deferred ones too. */
static fathom_err read_tool(struct field_context *x, const char *path, const json_t *tool,
                            json_t *tools)
{
    static const char *const keys[] = {
        "name",   "description",           "input_schema",   "type",          "cache_control",
        "strict", "eager_input_streaming", "input_examples", "defer_loading", NULL};
    char at[API_PARAM_BYTES];
    if (!json_is_plain_object(tool)) return field_wrong_type(x, path, tool, "an object");
    const json_t *type = json_object_get(tool, "type");
    (void)snprintf(at, sizeof at, "%s.type", path);
    if (type && !json_is_null(type)) {
        if (!json_is_string(type)) return field_wrong_type(x, at, type, "a string");
        if (strcmp(json_string_value(type), "custom") != 0) {
            return field_pass_tool_type(x, path, json_string_value(type));
        }
    }
    TRY(field_check_keys(x, path, tool, keys));
    json_t *name = json_object_get(tool, "name");
    (void)snprintf(at, sizeof at, "%s.name", path);
    if (!json_is_string(name) || json_string_length(name) == 0) {
        return field_wrong_type(x, at, name, "a string that is not empty");
    }
    json_t *schema = json_object_get(tool, "input_schema");
    (void)snprintf(at, sizeof at, "%s.input_schema", path);
    if (!json_is_plain_object(schema)) {
        return field_wrong_type(x, at, schema, "an object (a JSON schema)");
    }
    json_t *description = json_object_get(tool, "description");
    (void)snprintf(at, sizeof at, "%s.description", path);
    if (description && !json_is_null(description) && !json_is_string(description)) {
        return field_wrong_type(x, at, description, "a string");
    }
    json_t *strict = json_object_get(tool, "strict");
    (void)snprintf(at, sizeof at, "%s.strict", path);
    if (strict && !json_is_null(strict) && !json_is_boolean(strict)) {
        return field_wrong_type(x, at, strict, "a boolean");
    }
    return field_push(
        tools, json_pack("{s:s, s:{s:O, s:O*, s:O, s:O*}}", "type", "function", "function", "name",
                         name, "description", json_is_string(description) ? description : NULL,
                         "parameters", schema, "strict", json_is_boolean(strict) ? strict : NULL));
}

static fathom_err read_tools(struct field_context *x, const struct field *f, json_t *v)
{
    (void)f;
    return field_pass_tools(x, v, read_tool);
}

/* auto, none, any (the chat's "required") or one tool by name. */
static fathom_err pass_choice(struct field_context *x, const char *type, json_t *name)
{
    static const char *const words[][2] = {{"auto", "auto"}, {"none", "none"}, {"any", "required"}};
    for (size_t i = 0; i < sizeof words / sizeof words[0]; i++) {
        if (strcmp(type, words[i][0]) == 0) {
            return field_pass_new(x, "tool_choice", json_string(words[i][1]));
        }
    }
    if (strcmp(type, "tool") != 0) {
        return api_error_set(x->e, 400, "invalid_value", "tool_choice.type",
                             "tool_choice.type is \"%.40s\", needed is auto, any, tool or none",
                             type);
    }
    if (!json_is_string(name)) return field_wrong_type(x, "tool_choice.name", name, "a string");
    return field_pass_new(
        x, "tool_choice",
        json_pack("{s:s, s:{s:O}}", "type", "function", "function", "name", name));
}

static fathom_err read_tool_choice(struct field_context *x, const struct field *f, json_t *v)
{
    static const char *const keys[] = {"type", "name", "disable_parallel_tool_use", NULL};
    if (!json_is_plain_object(v)) return field_wrong_type(x, f->name, v, "an object");
    TRY(field_check_keys(x, f->name, v, keys));
    const json_t *type = json_object_get(v, "type");
    if (!json_is_string(type)) return field_wrong_type(x, "tool_choice.type", type, "a string");
    const json_t *single = json_object_get(v, "disable_parallel_tool_use");
    if (single && !json_is_null(single)) {
        bool on;
        if (!field_boolean(single, &on)) {
            return field_wrong_type(x, "tool_choice.disable_parallel_tool_use", single,
                                    "a boolean");
        }
        TRY(field_pass_new(x, "parallel_tool_calls", json_boolean(!on)));
    }
    return pass_choice(x, json_string_value(type), json_object_get(v, "name"));
}

/* ---- thinking and form --------------------------------------------------------------------- */

static fathom_err read_thinking(struct field_context *x, const struct field *f, json_t *v)
{
    static const char *const keys[] = {"type", "budget_tokens", "display", NULL};
    if (!json_is_plain_object(v)) return field_wrong_type(x, f->name, v, "an object");
    TRY(field_check_keys(x, f->name, v, keys));
    const json_t *display = json_object_get(v, "display");
    const char *how = json_string_value(display);
    if (how && strcmp(how, "omitted") == 0) {
        x->r->hide_thinking = true;
    } else if (display && !json_is_null(display) && (!how || strcmp(how, "summarized") != 0)) {
        if (x->bounds->strict) {
            return api_error_set(x->e, 400, "invalid_value", "thinking.display",
                                 "thinking.display is not known, needed is summarized (all of it "
                                 "is told) or omitted");
        }
        TRY(field_warn(x, "thinking.display is not known: all of it is told"));
    }
    return field_pass(x, f->name, v);
}

/* {"type": "json_schema", "schema": {...}} as a chat's response_format. Paths are static. */
static fathom_err pass_format(struct field_context *x, const char *path, const char *schema_path,
                              json_t *v)
{
    static const char *const keys[] = {"type", "schema", NULL};
    char at[API_PARAM_BYTES];
    if (!json_is_plain_object(v)) return field_wrong_type(x, path, v, "an object");
    TRY(field_check_keys(x, path, v, keys));
    const json_t *type = json_object_get(v, "type");
    json_t *schema = json_object_get(v, "schema");
    (void)snprintf(at, sizeof at, "%s.type", path);
    if (!json_is_string(type)) return field_wrong_type(x, at, type, "\"json_schema\"");
    if (strcmp(json_string_value(type), "json_schema") != 0) {
        return api_error_set(x->e, 400, "invalid_value", at,
                             "%s is \"%.40s\", needed is json_schema", at, json_string_value(type));
    }
    if (!json_is_plain_object(schema)) return field_wrong_type(x, schema_path, schema, "an object");
    TRY(field_pass_new(x, "response_format",
                       json_pack("{s:s, s:{s:s, s:O, s:b}}", "type", "json_schema", "json_schema",
                                 "name", "output", "schema", schema, "strict", 1)));
    answer_rule_rename(&x->r->rule, path, schema_path);
    return FATHOM_OK;
}

static fathom_err read_output_config(struct field_context *x, const struct field *f, json_t *v)
{
    static const char *const keys[] = {"effort", "format", NULL};
    static const char *const efforts[] = {"low", "medium", "high", "xhigh", "max"};
    if (!json_is_plain_object(v)) return field_wrong_type(x, f->name, v, "an object");
    TRY(field_check_keys(x, f->name, v, keys));
    const json_t *effort = json_object_get(v, "effort");
    if (effort && !json_is_null(effort)) {
        size_t i = 0;
        if (!json_is_string(effort)) {
            return field_wrong_type(x, "output_config.effort", effort, "a string");
        }
        while (i < 5 && strcmp(efforts[i], json_string_value(effort)) != 0) i++;
        if (i == 5) {
            return api_error_set(x->e, 400, "invalid_value", "output_config.effort",
                                 "output_config.effort is \"%.40s\", needed is low, medium, high, "
                                 "xhigh or max",
                                 json_string_value(effort));
        }
    }
    json_t *format = json_object_get(v, "format");
    if (!format || json_is_null(format)) return FATHOM_OK;
    return pass_format(x, "output_config.format", "output_config.format.schema", format);
}

static fathom_err read_output_format(struct field_context *x, const struct field *f, json_t *v)
{
    return pass_format(x, f->name, "output_format.schema", v);
}

/* Thinking of earlier turns is rendered as the checkpoint was trained, so edits that clear it have
 * no effect; other edits would change the prompt. */
static fathom_err read_context(struct field_context *x, const struct field *f, json_t *v)
{
    static const char *const keys[] = {"edits", NULL};
    if (!json_is_plain_object(v)) return field_wrong_type(x, f->name, v, "an object");
    TRY(field_check_keys(x, f->name, v, keys));
    const json_t *edits = json_object_get(v, "edits");
    for (size_t i = 0; i < json_array_size(edits); i++) {
        const char *type = json_string_value(json_object_get(json_array_get(edits, i), "type"));
        if (type && strncmp(type, "clear_thinking_", 15) == 0) continue;
        return api_error_set(x->e, 400, "unsupported_value", f->name,
                             "context_management.edits[%zu] is \"%.40s\", which is not supported: "
                             "send the messages as they shall be read",
                             i, type ? type : "");
    }
    return FATHOM_OK;
}

/* ---- all together -------------------------------------------------------------------------- */

/* If the last message is the assistant's, the model continues it. */
static fathom_err check_last(struct api_request *r, struct api_error *e)
{
    const json_t *last = json_array_get(r->messages, json_array_size(r->messages) - 1);
    if (strcmp(json_string_value(json_object_get(last, "role")), "assistant") != 0) {
        return FATHOM_OK;
    }
    if (json_object_get(last, "tool_calls")) {
        return api_error_set(e, 400, "invalid_value", "messages",
                             "the last message has a tool_use, needed is a message with its "
                             "tool_result after it");
    }
    r->continue_final_message = true;
    r->add_generation_prompt = false;
    return FATHOM_OK;
}

static fathom_err check(struct field_context *x)
{
    struct api_request *r = x->r;
    const json_t *messages = json_object_get(r->root, "messages");
    if (!messages || json_is_null(messages)) {
        return api_error_set(x->e, 400, "missing_required_parameter", "messages",
                             "messages is missing, an array of messages is needed");
    }
    if (r->api == API_MESSAGES && r->max_tokens < 0) {
        return api_error_set(x->e, 400, "missing_required_parameter", "max_tokens",
                             "max_tokens is missing, an integer of at least 1 is needed");
    }
    TRY(anthropic_read_messages(x, json_object_get(r->root, "system"), messages));
    return check_last(r, x->e);
}

/* ---- the table ----------------------------------------------------------------------------- */

#define AT(member) offsetof(struct api_request, member)
#define ASKED (MESSAGES | COUNT)

static const struct field fields[] = {
    {"model", ASKED, field_model, 0, 0, 0, false, NULL},
    {"messages", ASKED, field_later, 0, 0, 0, false, NULL},
    {"system", ASKED, field_later, 0, 0, 0, false, NULL},
    {"tools", ASKED, read_tools, 0, 0, 0, false, NULL},
    {"tool_choice", ASKED, read_tool_choice, 0, 0, 0, false, NULL},
    {"thinking", ASKED, read_thinking, 0, 0, 0, false, NULL},
    {"output_config", ASKED, read_output_config, 0, 0, 0, false, NULL},
    {"output_format", ASKED, read_output_format, 0, 0, 0, false, NULL},
    {"context_management", ASKED, read_context, 0, 0, 0, false, NULL},
    {"cache_control", ASKED, field_object, 0, 0, 0, false, NULL},
    {"thread", ASKED, read_thread, 0, 0, 0, false, NULL},

    {"max_tokens", MESSAGES, field_max_tokens, 0, 1, INT32_MAX, false, NULL},
    {"stream", MESSAGES, field_flag, AT(stream), 0, 0, false, NULL},
    {"stop_sequences", MESSAGES, field_stop, 0, 0, 0, false, NULL},
    {"temperature", MESSAGES, field_real, AT(sampling.temperature), 0, 2, false, NULL},
    {"top_p", MESSAGES, field_real, AT(sampling.top_p), 0, 1, true, NULL},
    {"top_k", MESSAGES, field_int, AT(sampling.top_k), -1, INT32_MAX, false, NULL},
    {"metadata", MESSAGES, field_object, 0, 0, 0, false, NULL},
    {"service_tier", MESSAGES, field_none, 0, 0, 0, false, NULL},
    {"speed", ASKED, read_speed, 0, 0, 0, false, NULL},

    /* beyond Anthropic's */
    {"min_p", MESSAGES, field_real, AT(sampling.min_p), 0, 1, false, NULL},
    {"min_tokens", MESSAGES, field_count, AT(sampling.min_tokens), 0, INT32_MAX, false, NULL},
    {"ignore_eos", MESSAGES, field_flag, AT(sampling.ignore_eos), 0, 0, false, NULL},
    {"seed", MESSAGES, field_seed, 0, 0, 0, false, NULL},
    {"repetition_penalty", MESSAGES, field_real, AT(sampling.repetition_penalty), 0, INFINITY, true,
     NULL},
    {"priority", MESSAGES, field_int, AT(priority), INT32_MIN, INT32_MAX, false, NULL},
    {"cache_salt", MESSAGES, field_cache_salt, 0, 0, 0, false, NULL},
    {"resume", MESSAGES, field_resume, 0, 0, 0, false, NULL},
    {"kv_transfer_params", MESSAGES, field_kv_transfer, 0, 0, 0, false, NULL},
    {"bootstrap_host", MESSAGES, field_bootstrap_host, 0, 0, 0, false, NULL},
    {"bootstrap_port", MESSAGES, field_bootstrap_port, 0, 1, 65535, false, NULL},
    {"bootstrap_room", MESSAGES, field_bootstrap_room, 0, 0, 0, false, NULL},
    {"chat_template_kwargs", ASKED, field_template_kwargs, 0, 0, 0, false, NULL},
    {"thinking_token_budget", MESSAGES, field_thinking_budget, 0, -1, INT32_MAX, false, NULL},

    {"stop", ASKED, field_refuse, 0, 0, 0, false, "use stop_sequences"},
    {"max_completion_tokens", ASKED, field_refuse, 0, 0, 0, false, "use max_tokens"},
    {"response_format", ASKED, field_refuse, 0, 0, 0, false, "use output_config.format"},
    {"mcp_servers", ASKED, field_refuse, 0, 0, 0, false, "tools run at the client; list them"},
    {"container", ASKED, field_refuse, 0, 0, 0, false, "nothing is run here; leave it out"},
};

const struct field_table anthropic_table = {fields, sizeof fields / sizeof fields[0], check};
