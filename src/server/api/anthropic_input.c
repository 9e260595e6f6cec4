/* anthropic_input.c - system and messages of /v1/messages as the messages of a chat
 *
 *   system               a system message, wherever it stands; a first block that bills the client,
 *                        which differs from run to run, is left out
 *   user: text           one user message for all text up to a tool_result
 *   user: tool_result    a tool message
 *   assistant            one message: its reasoning is all thinking, its content all text, joined
 *                        without anything between; its calls are all tool_use
 */
#include <stdio.h>
#include <string.h>

#include "base/fail.h"
#include "base/json.h"
#include "server/api/request_field.h"

/* The type of a block; borrowed. */
static fathom_err get_type(struct field_context *x, const char *path, const json_t *block,
                           const char **out)
{
    json_t *type;
    *out = "";
    if (!json_is_plain_object(block))
        return field_wrong_type(x, path, block, "an object (a block)");
    TRY(field_get_string(x, path, block, "type", &type));
    *out = json_string_value(type);
    return FATHOM_OK;
}

static fathom_err refuse_block(struct field_context *x, const char *path, const char *type,
                               const char *taken)
{
    const struct field_place at = field_member(path, "type");
    return api_error_set(x->e, 400, "unsupported_value", at.path,
                         "%s is \"%.60s\", which is not supported; %s", at.path, type, taken);
}

static fathom_err read_text(struct field_context *x, const char *path, const json_t *block,
                            json_t **out)
{
    static const char *const keys[] = {"type", "text", "cache_control", "citations", NULL};
    TRY(field_check_keys(x, path, block, keys));
    if (json_array_size(json_object_get(block, "citations"))) {
        const struct field_place at = field_member(path, "citations");
        return api_error_set(x->e, 400, "unsupported_parameter", at.path,
                             "%s is not supported: write sources into the text", at.path);
    }
    return field_get_string(x, path, block, "text", out);
}

/* A tool that the client has found for the model, which sees all tools anyway, as text: *out is a
 * new reference. */
static fathom_err read_reference(struct field_context *x, const char *path, const json_t *block,
                                 json_t **out)
{
    static const char *const keys[] = {"type", "tool_name", "cache_control", NULL};
    json_t *name;
    TRY(field_check_keys(x, path, block, keys));
    TRY(field_get_string(x, path, block, "tool_name", &name));
    *out = json_sprintf("The tool %s is there.", json_string_value(name));
    return *out ? FATHOM_OK : FATHOM_ENOMEM;
}

/* A string, or an array of text blocks, as the content of a chat's message: *out is a new
 * reference. */
static fathom_err read_plain(struct field_context *x, const char *path, json_t *v, json_t **out)
{
    fathom_err err = FATHOM_OK;
    *out = NULL;
    if (json_is_string(v)) {
        *out = json_incref(v);
        return FATHOM_OK;
    }
    if (!json_is_array(v)) {
        return field_wrong_type(x, path, v, "a string or an array of text blocks");
    }
    json_t *parts = json_array();
    if (!parts) return FATHOM_ENOMEM;
    for (size_t i = 0; i < json_array_size(v); i++) {
        const struct field_place at = field_element(path, i);
        const json_t *block = json_array_get(v, i);
        const char *type;
        json_t *text = NULL;
        TRY_GOTO(get_type(x, at.path, block, &type), out);
        if (strcmp(type, "tool_reference") == 0) {
            TRY_GOTO(read_reference(x, at.path, block, &text), out);
            TRY_GOTO(field_push(parts, json_pack("{s:s, s:o}", "type", "text", "text", text)), out);
            continue;
        }
        if (strcmp(type, "text") != 0) {
            TRY_GOTO(refuse_block(x, at.path, type, "only text is"), out);
        }
        TRY_GOTO(read_text(x, at.path, block, &text), out);
        TRY_GOTO(field_push(parts, json_pack("{s:s, s:O}", "type", "text", "text", text)), out);
    }
    *out = parts;
    return FATHOM_OK;
out:
    json_decref(parts);
    return err;
}

/* ---- user ---------------------------------------------------------------------------------- */

/* A user's turn: text parts that have been read and are not in a message yet. */
struct turn {
    json_t *messages;
    json_t *parts; /* owned; text parts; NULL: none */
};

static fathom_err add_text(struct turn *t, json_t *text)
{
    if (!t->parts) t->parts = json_array();
    return field_push(t->parts, json_pack("{s:s, s:O}", "type", "text", "text", text));
}

static fathom_err end_text(struct turn *t)
{
    json_t *parts = t->parts;
    if (!parts) return FATHOM_OK;
    t->parts = NULL;
    return field_push(t->messages, json_pack("{s:s, s:o}", "role", "user", "content", parts));
}

static fathom_err add_result(struct field_context *x, const char *path, const json_t *block,
                             struct turn *t)
{
    static const char *const keys[] = {"type",     "tool_use_id",   "content",
                                       "is_error", "cache_control", NULL};
    json_t *id, *content;
    TRY(field_check_keys(x, path, block, keys));
    TRY(field_get_string(x, path, block, "tool_use_id", &id));
    json_t *v = json_object_get(block, "content");
    if (!v || json_is_null(v)) {
        content = json_string("");
    } else {
        TRY(read_plain(x, field_member(path, "content").path, v, &content));
    }
    json_t *message =
        json_pack("{s:s, s:O, s:o}", "role", "tool", "tool_call_id", id, "content", content);
    fathom_err err = end_text(t);
    if (err) {
        json_decref(message);
        return err;
    }
    return field_push(t->messages, message);
}

static fathom_err add_user_blocks(struct field_context *x, const char *path, const json_t *blocks,
                                  struct turn *t)
{
    for (size_t i = 0; i < json_array_size(blocks); i++) {
        const struct field_place at = field_element(field_member(path, "content").path, i);
        const json_t *block = json_array_get(blocks, i);
        const char *type;
        json_t *text = NULL;
        TRY(get_type(x, at.path, block, &type));
        if (strcmp(type, "text") == 0) {
            TRY(read_text(x, at.path, block, &text));
            TRY(add_text(t, text));
        } else if (strcmp(type, "tool_result") == 0) {
            TRY(add_result(x, at.path, block, t));
        } else {
            TRY(refuse_block(x, at.path, type, "text and tool_result are in a user's message"));
        }
    }
    return end_text(t);
}

/* ---- assistant ----------------------------------------------------------------------------- */

/* An assistant's turn on its way to one message. */
struct said {
    struct buf thinking;
    struct buf text;
    json_t *calls; /* owned */
};

static fathom_err add_call(struct field_context *x, const char *path, const json_t *block,
                           struct said *s)
{
    static const char *const keys[] = {"type",          "id",     "name", "input",
                                       "cache_control", "caller", NULL};
    json_t *id, *name;
    TRY(field_check_keys(x, path, block, keys));
    TRY(field_get_string(x, path, block, "id", &id));
    TRY(field_get_string(x, path, block, "name", &name));
    if (json_string_length(name) == 0) {
        return field_wrong_type(x, field_member(path, "name").path, name,
                                "a string that is not empty");
    }
    json_t *input = json_object_get(block, "input");
    if (!json_is_plain_object(input)) {
        return field_wrong_type(x, field_member(path, "input").path, input, "an object");
    }
    return field_push(s->calls, json_pack("{s:O, s:s, s:{s:O, s:O}}", "id", id, "type", "function",
                                          "function", "name", name, "arguments", input));
}

static fathom_err add_assistant_block(struct field_context *x, const char *path,
                                      const json_t *block, struct said *s)
{
    static const char *const thinking_keys[] = {"type", "thinking", "signature", NULL};
    const char *type;
    json_t *text = NULL;
    TRY(get_type(x, path, block, &type));
    if (strcmp(type, "text") == 0) {
        TRY(read_text(x, path, block, &text));
        return buf_add(&s->text, json_string_value(text), json_string_length(text));
    }
    if (strcmp(type, "thinking") == 0) {
        TRY(field_check_keys(x, path, block, thinking_keys));
        TRY(field_get_string(x, path, block, "thinking", &text));
        return buf_add(&s->thinking, json_string_value(text), json_string_length(text));
    }
    if (strcmp(type, "tool_use") == 0) return add_call(x, path, block, s);
    return refuse_block(x, path, type, "text, thinking and tool_use are in an assistant's message");
}

static fathom_err add_assistant_blocks(struct field_context *x, const char *path,
                                       const json_t *blocks, json_t *messages)
{
    struct said s = {.calls = json_array()};
    fathom_err err = s.calls ? FATHOM_OK : FATHOM_ENOMEM;
    for (size_t i = 0; !err && i < json_array_size(blocks); i++) {
        const struct field_place at = field_element(field_member(path, "content").path, i);
        err = add_assistant_block(x, at.path, json_array_get(blocks, i), &s);
    }
    if (err) goto out;
    json_t *calls = json_array_size(s.calls) ? s.calls : NULL;
    err =
        field_push(messages, json_pack("{s:s, s:s%, s:s%, s:O*}", "role", "assistant", "content",
                                       buf_str(&s.text), s.text.len, "reasoning_content",
                                       buf_str(&s.thinking), s.thinking.len, "tool_calls", calls));
out:
    buf_free(&s.thinking);
    buf_free(&s.text);
    json_decref(s.calls);
    return err;
}

/* ---- entry --------------------------------------------------------------------------------- */

/* Claude Code's first block of system text says what to bill and changes with every run. It tells
 * the model nothing, and with it no prompt would be found in the cache. */
static void drop_billing(json_t *parts)
{
    static const char head[] = "x-anthropic-billing-header:";
    const char *first = json_string_value(json_object_get(json_array_get(parts, 0), "text"));
    if (first && strncmp(first, head, sizeof head - 1) == 0) (void)json_array_remove(parts, 0);
}

static fathom_err add_system(struct field_context *x, const char *path, json_t *v, json_t *messages)
{
    json_t *content;
    TRY(read_plain(x, path, v, &content));
    size_t n = json_array_size(content);
    drop_billing(content);
    if (n == 1 && json_array_size(content) == 0) {
        json_decref(content);
        return FATHOM_OK;
    }
    return field_push(messages, json_pack("{s:s, s:o}", "role", "system", "content", content));
}

static fathom_err add_message(struct field_context *x, const char *path, const json_t *message,
                              json_t *messages)
{
    static const char *const keys[] = {"role", "content", NULL};
    json_t *role;
    if (!json_is_plain_object(message)) {
        return field_wrong_type(x, path, message, "an object with role and content");
    }
    TRY(field_check_keys(x, path, message, keys));
    TRY(field_get_string(x, path, message, "role", &role));
    bool is_user = strcmp(json_string_value(role), "user") == 0;
    json_t *content = json_object_get(message, "content");
    if (strcmp(json_string_value(role), "system") == 0) {
        return add_system(x, field_member(path, "content").path, content, messages);
    }
    if (!is_user && strcmp(json_string_value(role), "assistant") != 0) {
        const struct field_place at = field_member(path, "role");
        return api_error_set(x->e, 400, "invalid_value", at.path,
                             "%s is \"%.40s\", needed is user, assistant or system", at.path,
                             json_string_value(role));
    }
    if (json_is_string(content)) {
        return field_push(messages, json_pack("{s:O, s:O}", "role", role, "content", content));
    }
    if (!json_is_array(content) || json_array_size(content) == 0) {
        return field_wrong_type(x, field_member(path, "content").path, content,
                                "a string or an array of blocks that is not empty");
    }
    if (!is_user) return add_assistant_blocks(x, path, content, messages);
    struct turn t = {messages, NULL};
    fathom_err err = add_user_blocks(x, path, content, &t);
    json_decref(t.parts);
    return err;
}

fathom_err anthropic_read_messages(struct field_context *x, const json_t *system,
                                   const json_t *messages)
{
    if (!json_is_array(messages)) {
        return field_wrong_type(x, "messages", messages, "an array of messages");
    }
    if (json_array_size(messages) == 0) {
        return api_error_set(x->e, 400, "invalid_value", "messages",
                             "messages is empty, at least one message is needed");
    }
    if (json_array_size(messages) > LIMIT_MESSAGES) {
        return field_too_many(x, "messages", json_array_size(messages), LIMIT_MESSAGES);
    }
    json_t *out = x->r->messages = json_array();
    if (!out) return FATHOM_ENOMEM;
    if (system && !json_is_null(system)) {
        TRY(add_system(x, "system", (json_t *)system, out));
    }
    for (size_t i = 0; i < json_array_size(messages); i++) {
        const struct field_place at = field_element("messages", i);
        TRY(add_message(x, at.path, json_array_get(messages, i), out));
    }
    if (json_array_size(out) > 0) return FATHOM_OK;
    return api_error_set(x->e, 400, "invalid_value", "messages",
                         "messages say only what to bill, at least one message is needed");
}
