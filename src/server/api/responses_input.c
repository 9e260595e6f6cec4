/* responses_input.c - items of /v1/responses as the messages of a chat
 *
 *   message (user, system, developer)   a message
 *   function_call_output                a tool message
 *   reasoning, message (assistant),     joined to one assistant message as long as no other item
 *   function_call                       stands between. A message right behind a message begins a
 *                                       new one, and so does reasoning behind a message or a call
 */
#include <stdio.h>
#include <string.h>

#include "base/fail.h"
#include "base/json.h"
#include "base/json_arena.h"
#include "server/api/request_field.h"

/* The messages made so far, and the assistant's message to which more may be joined. */
struct talk {
    struct field_context *x;
    json_t *messages;
    struct buf reasoning;
    struct buf text;
    json_t *calls; /* owned; NULL: none yet */
    bool open;     /* there is such a message */
    bool has_text; /* its last part is a message item */
};

static fathom_err end_assistant(struct talk *t)
{
    if (!t->open) return FATHOM_OK;
    fathom_err err = field_push(
        t->messages, json_pack("{s:s, s:s%, s:s%, s:O*}", "role", "assistant", "content",
                               buf_str(&t->text), t->text.len, "reasoning_content",
                               buf_str(&t->reasoning), t->reasoning.len, "tool_calls", t->calls));
    buf_clear(&t->text);
    buf_clear(&t->reasoning);
    json_decref(t->calls);
    t->calls = NULL;
    t->open = t->has_text = false;
    return err;
}

/* ---- members ------------------------------------------------------------------------------- */

/* A part of text of one of two types, the second of which may be NULL. */
static fathom_err read_part(struct talk *t, const char *path, const json_t *part,
                            const char *const types[2], json_t **out)
{
    static const char *const keys[] = {"type", "text", "annotations", "logprobs", NULL};
    static const char *const refusal_keys[] = {"type", "refusal", NULL};
    json_t *type;
    if (!json_is_plain_object(part))
        return field_wrong_type(t->x, path, part, "an object (a part)");
    TRY(field_get_string(t->x, path, part, "type", &type));
    const char *name = json_string_value(type);
    if (strcmp(name, types[0]) == 0) {
        TRY(field_check_keys(t->x, path, part, keys));
        return field_get_string(t->x, path, part, "text", out);
    }
    if (types[1] && strcmp(name, types[1]) == 0) {
        TRY(field_check_keys(t->x, path, part, refusal_keys));
        return field_get_string(t->x, path, part, "refusal", out);
    }
    const struct field_place at = field_member(path, "type");
    return api_error_set(t->x->e, 400, "unsupported_value", at.path,
                         "%s is \"%.60s\", which is not supported; only %s is", at.path, name,
                         types[0]);
}

/* The texts of an array of parts, put together. */
static fathom_err add_parts(struct talk *t, const char *path, const json_t *parts,
                            const char *const types[2], struct buf *to)
{
    if (!json_is_array(parts)) return field_wrong_type(t->x, path, parts, "an array of parts");
    for (size_t i = 0; i < json_array_size(parts); i++) {
        json_t *text;
        TRY(read_part(t, field_element(path, i).path, json_array_get(parts, i), types, &text));
        TRY(buf_add(to, json_string_value(text), json_string_length(text)));
    }
    return FATHOM_OK;
}

/* A string, or input_text parts, as the content of a message: *out is a new reference. */
static fathom_err read_content(struct talk *t, const char *path, json_t *v, json_t **out)
{
    static const char *const types[] = {"input_text", NULL};
    fathom_err err = FATHOM_OK;
    *out = NULL;
    if (json_is_string(v)) {
        *out = json_incref(v);
        return FATHOM_OK;
    }
    if (!json_is_array(v) || json_array_size(v) == 0) {
        return field_wrong_type(t->x, path, v, "a string or an array of parts that is not empty");
    }
    json_t *parts = json_array();
    if (!parts) return FATHOM_ENOMEM;
    for (size_t i = 0; i < json_array_size(v); i++) {
        json_t *text;
        TRY_GOTO(read_part(t, field_element(path, i).path, json_array_get(v, i), types, &text),
                 out);
        TRY_GOTO(field_push(parts, json_pack("{s:s, s:O}", "type", "text", "text", text)), out);
    }
    *out = parts;
    return FATHOM_OK;
out:
    json_decref(parts);
    return err;
}

/* ---- items --------------------------------------------------------------------------------- */

static fathom_err add_assistant_text(struct talk *t, const char *path, const json_t *content)
{
    static const char *const types[] = {"output_text", "refusal"};
    if (t->has_text) TRY(end_assistant(t));
    t->open = t->has_text = true;
    if (json_is_string(content)) {
        return buf_add(&t->text, json_string_value(content), json_string_length(content));
    }
    return add_parts(t, path, content, types, &t->text);
}

static fathom_err add_message(struct talk *t, const char *path, const json_t *item)
{
    static const char *const keys[] = {"type", "role", "content", "id", "status", "phase", NULL};
    static const char *const roles[] = {"user", "system", "developer"};
    json_t *role, *content;
    TRY(field_check_keys(t->x, path, item, keys));
    TRY(field_get_string(t->x, path, item, "role", &role));
    const struct field_place at = field_member(path, "content");
    json_t *v = json_object_get(item, "content");
    if (strcmp(json_string_value(role), "assistant") == 0) return add_assistant_text(t, at.path, v);
    for (int i = 0; i < 3; i++) {
        if (strcmp(json_string_value(role), roles[i]) != 0) continue;
        TRY(end_assistant(t));
        TRY(read_content(t, at.path, v, &content));
        return field_push(t->messages, json_pack("{s:O, s:o}", "role", role, "content", content));
    }
    const struct field_place role_at = field_member(path, "role");
    return api_error_set(t->x->e, 400, "invalid_value", role_at.path,
                         "%s is \"%.40s\", needed is user, assistant, system or developer",
                         role_at.path, json_string_value(role));
}

/* A list of parts, NULL where there is none. */
static fathom_err get_parts(struct talk *t, const char *path, const json_t *item, const char *key,
                            const json_t **out)
{
    const json_t *v = json_object_get(item, key);
    *out = json_is_array(v) && json_array_size(v) > 0 ? v : NULL;
    if (!v || json_is_null(v) || json_is_array(v)) return FATHOM_OK;
    return field_wrong_type(t->x, field_member(path, key).path, v, "an array of parts");
}

/* The reasoning itself if it is there, else its summary. */
static fathom_err add_reasoning(struct talk *t, const char *path, const json_t *item)
{
    static const char *const keys[] = {"type",   "id", "summary", "content", "encrypted_content",
                                       "status", NULL};
    static const char *const text_types[] = {"reasoning_text", NULL};
    static const char *const summary_types[] = {"summary_text", NULL};
    TRY(field_check_keys(t->x, path, item, keys));
    if (t->text.len || t->calls || t->has_text) TRY(end_assistant(t));
    t->open = true;
    const json_t *content, *summary;
    TRY(get_parts(t, path, item, "content", &content));
    TRY(get_parts(t, path, item, "summary", &summary));
    if (content) {
        return add_parts(t, field_member(path, "content").path, content, text_types, &t->reasoning);
    }
    if (summary) {
        return add_parts(t, field_member(path, "summary").path, summary, summary_types,
                         &t->reasoning);
    }
    if (json_is_string(json_object_get(item, "encrypted_content"))) {
        const struct field_place at = field_member(path, "encrypted_content");
        return api_error_set(t->x->e, 400, "unsupported_value", at.path,
                             "%s cannot be read here: it comes from another server; leave the "
                             "item out",
                             at.path);
    }
    return FATHOM_OK;
}

/* Checks arguments: a string that holds an object, or the beginning of one if the call was cut off.
 * Values beyond the limits are refused with their place. */
static fathom_err check_arguments(struct talk *t, const char *path, const json_t *arguments)
{
    json_t *object = NULL;
    fathom_diag d;
    size_t n = json_string_length(arguments);
    if (n == 0) return FATHOM_OK;
    diag_clear(&d);
    const struct json_arena_mark mark = json_arena_take_mark();
    fathom_err err = json_read(json_string_value(arguments), n, path, &object, &d);
    json_decref(object);
    json_arena_rewind(&mark);
    if (!err || err == FATHOM_EFORMAT) return FATHOM_OK;
    return api_error_from(t->x->e, err, path, &d);
}

json_t *responses_function_name(const json_t *space, const json_t *name)
{
    return json_sprintf("%s__%s", json_string_value(space), json_string_value(name));
}

static fathom_err add_call(struct talk *t, const char *path, const json_t *item)
{
    static const char *const keys[] = {"type",      "id",     "call_id",   "name",
                                       "arguments", "status", "namespace", NULL};
    json_t *id, *name, *arguments;
    TRY(field_check_keys(t->x, path, item, keys));
    TRY(field_get_string(t->x, path, item, "call_id", &id));
    TRY(field_get_string(t->x, path, item, "name", &name));
    TRY(field_get_string(t->x, path, item, "arguments", &arguments));
    if (json_string_length(name) == 0) {
        return field_wrong_type(t->x, field_member(path, "name").path, name,
                                "a string that is not empty");
    }
    TRY(check_arguments(t, field_member(path, "arguments").path, arguments));
    if (!t->calls) t->calls = json_array();
    t->open = true;
    t->has_text = false;
    const json_t *space = json_object_get(item, "namespace");
    name = json_is_string(space) ? responses_function_name(space, name) : json_incref(name);
    return field_push(t->calls, json_pack("{s:O, s:s, s:{s:o, s:O}}", "id", id, "type", "function",
                                          "function", "name", name, "arguments", arguments));
}

static fathom_err add_output(struct talk *t, const char *path, const json_t *item)
{
    static const char *const keys[] = {"type", "id", "call_id", "output", "status", NULL};
    json_t *id, *content;
    TRY(field_check_keys(t->x, path, item, keys));
    TRY(field_get_string(t->x, path, item, "call_id", &id));
    TRY(end_assistant(t));
    TRY(read_content(t, field_member(path, "output").path, json_object_get(item, "output"),
                     &content));
    return field_push(t->messages, json_pack("{s:s, s:O, s:o}", "role", "tool", "tool_call_id", id,
                                             "content", content));
}

static fathom_err add_item(struct talk *t, const char *path, const json_t *item)
{
    if (!json_is_plain_object(item))
        return field_wrong_type(t->x, path, item, "an object (an item)");
    const json_t *type = json_object_get(item, "type");
    if (!type || json_is_null(type)) return add_message(t, path, item);
    const struct field_place at = field_member(path, "type");
    if (!json_is_string(type)) return field_wrong_type(t->x, at.path, type, "a string");
    const char *name = json_string_value(type);
    if (strcmp(name, "message") == 0) return add_message(t, path, item);
    if (strcmp(name, "reasoning") == 0) return add_reasoning(t, path, item);
    if (strcmp(name, "function_call") == 0) return add_call(t, path, item);
    if (strcmp(name, "function_call_output") == 0) return add_output(t, path, item);
    return api_error_set(t->x->e, 400, "unsupported_value", at.path,
                         "%s is \"%.60s\", which is not supported; message, reasoning, "
                         "function_call and function_call_output are",
                         at.path, name);
}

static fathom_err add_items(struct talk *t, const char *path, const json_t *items)
{
    for (size_t i = 0; i < json_array_size(items); i++) {
        TRY(add_item(t, field_element(path, i).path, json_array_get(items, i)));
    }
    return FATHOM_OK;
}

fathom_err responses_read_items(struct field_context *x, const json_t *instructions,
                                const json_t *before, const json_t *items)
{
    struct talk t = {.x = x, .messages = json_array()};
    fathom_err err = t.messages ? FATHOM_OK : FATHOM_ENOMEM;
    size_t n = json_array_size(before) + json_array_size(items);
    if (!err && n > LIMIT_MESSAGES) err = field_too_many(x, "input", n, LIMIT_MESSAGES);
    if (!err && n == 0) {
        err = api_error_set(x->e, 400, "invalid_value", "input",
                            "input is empty, at least one item is needed");
    }
    if (!err && instructions) {
        err = field_push(t.messages,
                         json_pack("{s:s, s:O}", "role", "system", "content", instructions));
    }
    if (!err) err = add_items(&t, "previous_response_id", before);
    if (!err) err = add_items(&t, "input", items);
    if (!err) err = end_assistant(&t);
    x->r->messages = t.messages;
    buf_free(&t.reasoning);
    buf_free(&t.text);
    json_decref(t.calls);
    return err;
}
