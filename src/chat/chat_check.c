/* chat_check.c - whether a list of messages can be rendered */
#include <stdio.h>
#include <string.h>

#include "base/fail.h"
#include "base/json.h"
#include "base/json_arena.h"
#include "chat/chat_int.h"

/* Where in the request the value under check stands: "messages[2].content[0]". */
struct path {
    char text[96];
};

static struct path path_of(const char *parent, const char *member, size_t i)
{
    struct path p;
    (void)snprintf(p.text, sizeof p.text, "%.48s%.24s[%zu]", parent, member, i);
    return p;
}

static fathom_err check_part(const json_t *part, const char *path, fathom_diag *d)
{
    if (json_is_string(part)) return FATHOM_OK;
    if (!json_is_plain_object(part)) {
        FAIL(d, FATHOM_EINVAL, "%s is %s, a part is an object like {\"type\": \"text\"}", path,
             json_type_text(part));
    }
    const char *type = json_string_value(json_object_get(part, "type"));
    if (!type) FAIL(d, FATHOM_EINVAL, "%s.type is not a string; \"text\" is supported", path);
    const char *key = strcmp(type, "refusal") == 0 ? "refusal" : "text";
    bool known = strcmp(type, "text") == 0 || strcmp(type, "input_text") == 0 ||
                 strcmp(type, "output_text") == 0 || strcmp(type, "refusal") == 0;
    if (!known) {
        FAIL(d, FATHOM_EINVAL, "%s.type is \"%s\", only text is supported", path, type);
    }
    const json_t *text = json_object_get(part, key);
    if (!json_is_string(text)) {
        FAIL(d, FATHOM_EINVAL, "%s.%s is %s, a string is needed", path, key, json_type_text(text));
    }
    return FATHOM_OK;
}

/* Users and developers must say something; the others may have nothing to say. */
static fathom_err check_content(const json_t *message, enum chat_role role, const char *path,
                                fathom_diag *d)
{
    const json_t *content = json_object_get(message, "content");
    bool required = role == CHAT_ROLE_USER || role == CHAT_ROLE_DEVELOPER;
    if (!content || json_is_null(content)) {
        if (!required) return FATHOM_OK;
        FAIL(d, FATHOM_EINVAL, "%s.content is %s, a message of this role needs text", path,
             json_type_text(content));
    }
    if (json_is_string(content)) return FATHOM_OK;
    if (!json_is_array(content)) {
        FAIL(d, FATHOM_EINVAL, "%s.content is %s, a string or an array of text parts is needed",
             path, json_type_text(content));
    }
    if (required && json_array_size(content) == 0) {
        FAIL(d, FATHOM_EINVAL, "%s.content has no part, a message of this role needs text", path);
    }
    for (size_t i = 0; i < json_array_size(content); i++) {
        TRY(check_part(json_array_get(content, i), path_of(path, ".content", i).text, d));
    }
    return FATHOM_OK;
}

static fathom_err check_optional_string(const json_t *object, const char *key, const char *path,
                                        fathom_diag *d)
{
    const json_t *v = json_object_get(object, key);
    if (!v || json_is_null(v) || json_is_string(v)) return FATHOM_OK;
    FAIL(d, FATHOM_EINVAL, "%s.%s is %s, a string is needed", path, key, json_type_text(v));
}

/* Text that is no JSON object is what a model has written, or begun: chat_call_arguments. */
static fathom_err check_arguments(const json_t *function, const char *path, fathom_diag *d)
{
    const json_t *a = json_object_get(function, "arguments");
    if (!a || json_is_null(a) || json_is_plain_object(a)) return FATHOM_OK;
    if (!json_is_string(a)) {
        FAIL(d, FATHOM_EINVAL,
             "%s.function.arguments is %s, a string that holds a JSON object is needed", path,
             json_type_text(a));
    }
    if (json_string_length(a) == 0) return FATHOM_OK;
    json_t *parsed = NULL;
    char what[128];
    fathom_diag why = {{0}};
    (void)snprintf(what, sizeof what, "%s.function.arguments", path);
    const struct json_arena_mark mark = json_arena_take_mark();
    fathom_err err = json_read(json_string_value(a), json_string_length(a), what, &parsed, &why);
    json_decref(parsed);
    json_arena_rewind(&mark);
    if (!err || err == FATHOM_EFORMAT) return FATHOM_OK;
    FAIL(d, err, "%s", why.text);
}

static fathom_err check_call(const json_t *call, const char *path, fathom_diag *d)
{
    if (!json_is_plain_object(call)) {
        FAIL(d, FATHOM_EINVAL, "%s is %s, an object is needed", path, json_type_text(call));
    }
    TRY(check_optional_string(call, "id", path, d));
    const json_t *type = json_object_get(call, "type");
    if (type && (!json_is_string(type) || strcmp(json_string_value(type), "function") != 0)) {
        FAIL(d, FATHOM_EINVAL, "%s.type is not \"function\"", path);
    }
    const json_t *function = json_object_get(call, "function");
    if (!json_is_plain_object(function)) {
        FAIL(d, FATHOM_EINVAL, "%s.function is %s, an object is needed", path,
             json_type_text(function));
    }
    const json_t *name = json_object_get(function, "name");
    if (json_string_length(name) == 0) {
        FAIL(d, FATHOM_EINVAL, "%s.function.name is missing", path);
    }
    return check_arguments(function, path, d);
}

static fathom_err check_calls(const json_t *message, enum chat_role role, const char *path,
                              fathom_diag *d)
{
    const json_t *calls = json_object_get(message, "tool_calls");
    if (!calls || json_is_null(calls)) return FATHOM_OK;
    if (!json_is_array(calls)) {
        FAIL(d, FATHOM_EINVAL, "%s.tool_calls is %s, an array is needed", path,
             json_type_text(calls));
    }
    if (json_array_size(calls) > 0 && role != CHAT_ROLE_ASSISTANT) {
        FAIL(d, FATHOM_EINVAL, "%s.tool_calls: only an assistant message can have calls", path);
    }
    for (size_t i = 0; i < json_array_size(calls); i++) {
        TRY(check_call(json_array_get(calls, i), path_of(path, ".tool_calls", i).text, d));
    }
    return FATHOM_OK;
}

static fathom_err check_message(const json_t *message, const char *path, fathom_diag *d)
{
    if (!json_is_plain_object(message)) {
        FAIL(d, FATHOM_EINVAL, "%s is %s, an object with role and content is needed", path,
             json_type_text(message));
    }
    const json_t *name = json_object_get(message, "role");
    enum chat_role role;
    if (!json_is_string(name)) {
        FAIL(d, FATHOM_EINVAL, "%s.role is %s, a string is needed", path, json_type_text(name));
    }
    if (!chat_role_find(json_string_value(name), &role)) {
        FAIL(d, FATHOM_EINVAL,
             "%s.role is \"%.64s\", it can be system, user, assistant, tool or developer", path,
             json_string_value(name));
    }
    TRY(check_content(message, role, path, d));
    TRY(check_optional_string(message, "tool_call_id", path, d));
    TRY(check_optional_string(message, "reasoning_content", path, d));
    TRY(check_optional_string(message, "reasoning", path, d));
    return check_calls(message, role, path, d);
}

fathom_err chat_check_messages(const json_t *messages, fathom_diag *d)
{
    if (!json_is_array(messages)) {
        FAIL(d, FATHOM_EINVAL, "messages is %s, an array is needed", json_type_text(messages));
    }
    if (json_array_size(messages) == 0) {
        FAIL(d, FATHOM_EINVAL, "messages is empty, at least one message is needed");
    }
    for (size_t i = 0; i < json_array_size(messages); i++) {
        TRY(check_message(json_array_get(messages, i), path_of("messages", "", i).text, d));
    }
    return FATHOM_OK;
}
