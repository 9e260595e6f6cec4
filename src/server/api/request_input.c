/* request_input.c - the fields that make the prompt: messages, tools, prompt */
#include <stdio.h>
#include <string.h>

#include "base/fail.h"
#include "base/json.h"
#include "base/mem.h"
#include "chat/chat.h"
#include "server/api/request_field.h"

/* The path at the start of a message like "messages[2].content is ..."; "" if there is none. */
static void path_of_message(const char *message, const char *root, char *path, size_t bytes)
{
    path[0] = '\0';
    if (strncmp(message, root, strlen(root)) != 0) return;
    size_t n = strcspn(message, " :");
    if (n < bytes) (void)snprintf(path, bytes, "%.*s", (int)n, message);
}

fathom_err field_messages(struct field_context *x, const struct field *f, json_t *v)
{
    if (!json_is_array(v)) return field_wrong_type(x, f->name, v, "an array of messages");
    if (json_array_size(v) == 0) {
        return api_error_set(x->e, 400, "invalid_value", f->name,
                             "messages is empty, at least one message is needed");
    }
    if (json_array_size(v) > LIMIT_MESSAGES) {
        return field_too_many(x, f->name, json_array_size(v), LIMIT_MESSAGES);
    }
    fathom_diag d;
    diag_clear(&d);
    fathom_err err = chat_check_messages(v, &d);
    if (err) {
        char path[API_PARAM_BYTES];
        path_of_message(d.text, f->name, path, sizeof path);
        if (err == FATHOM_ENOMEM) return err;
        return api_error_set(x->e, 400,
                             err == FATHOM_EUNSUPPORTED ? "unsupported_value" : "invalid_value",
                             path[0] ? path : f->name, "%s", d.text);
    }
    x->r->messages = json_incref(v);
    return FATHOM_OK;
}

/* Checks a tool; *pass becomes true if its type does not run here, so that it is passed over. */
static fathom_err check_tool(struct field_context *x, size_t i, const json_t *tool, bool *pass)
{
    *pass = false;
    char path[64];
    (void)snprintf(path, sizeof path, "tools[%zu]", i);
    if (!json_is_plain_object(tool)) return field_wrong_type(x, path, tool, "an object");

    const json_t *type = json_object_get(tool, "type");
    (void)snprintf(path, sizeof path, "tools[%zu].type", i);
    if (type && !json_is_string(type)) return field_wrong_type(x, path, type, "\"function\"");
    if (type && strcmp(json_string_value(type), "function") != 0) {
        *pass = true;
        return field_pass_tool_type(x, field_element("tools", i).path, json_string_value(type));
    }
    const json_t *function = json_object_get(tool, "function");
    (void)snprintf(path, sizeof path, "tools[%zu].function", i);
    if (!json_is_plain_object(function)) return field_wrong_type(x, path, function, "an object");

    const json_t *name = json_object_get(function, "name");
    (void)snprintf(path, sizeof path, "tools[%zu].function.name", i);
    if (!json_is_string(name) || json_string_length(name) == 0) {
        return field_wrong_type(x, path, name, "a string that is not empty");
    }
    const json_t *parameters = json_object_get(function, "parameters");
    (void)snprintf(path, sizeof path, "tools[%zu].function.parameters", i);
    if (parameters && !json_is_null(parameters) && !json_is_plain_object(parameters)) {
        return field_wrong_type(x, path, parameters, "an object (a JSON schema)");
    }
    const json_t *strict = json_object_get(function, "strict");
    (void)snprintf(path, sizeof path, "tools[%zu].function.strict", i);
    if (strict && !json_is_null(strict) && !json_is_boolean(strict)) {
        return field_wrong_type(x, path, strict, "a boolean");
    }
    return FATHOM_OK;
}

fathom_err field_tools(struct field_context *x, const struct field *f, json_t *v)
{
    if (!json_is_array(v)) return field_wrong_type(x, f->name, v, "an array of tools");
    size_t n = json_array_size(v);
    if (n > LIMIT_TOOLS) {
        return api_error_set(x->e, 400, "invalid_value", f->name,
                             "tools has %zu entries, at most %d are taken", n, LIMIT_TOOLS);
    }
    json_t *tools = json_array();
    fathom_err err = tools ? FATHOM_OK : FATHOM_ENOMEM;
    for (size_t i = 0; i < n && !err; i++) {
        json_t *tool = json_array_get(v, i);
        bool pass;
        err = check_tool(x, i, tool, &pass);
        if (!err && !pass) err = field_push(tools, json_incref(tool));
    }
    if (!err && json_array_size(tools)) x->r->tools = json_incref(tools);
    json_decref(tools);
    return err;
}

/* ---- prompts of a completion --------------------------------------------------------------- */

static fathom_err refuse_id(struct field_context *x, const char *path, size_t i, int64_t id)
{
    struct field_place at = field_element(path, i);
    return api_error_set(x->e, 400, "invalid_value", at.path, "%s is %lld, needed is 0 to %u",
                         at.path, (long long)id, x->bounds->n_vocab - 1);
}

/* Reads ids from an array in which not all numbers are plain integers: 3.0 counts too. */
static fathom_err read_number_ids(struct field_context *x, const char *path, const json_t *v,
                                  struct api_prompt *p)
{
    size_t n = json_array_size(v);
    p->ids = mem_alloc_array(n, sizeof *p->ids);
    if (!p->ids) return FATHOM_ENOMEM;
    for (size_t i = 0; i < n; i++) {
        const json_t *item = json_array_get(v, i);
        bool ok;
        int64_t id = field_integer(item, &ok);
        if (!ok) return field_wrong_type(x, field_element(path, i).path, item, "a token id");
        if (id < 0 || id >= x->bounds->n_vocab) return refuse_id(x, path, i, id);
        p->ids[p->n_id++] = (int32_t)id;
    }
    return FATHOM_OK;
}

static fathom_err read_ids(struct field_context *x, const char *path, const json_t *v,
                           struct api_prompt *p)
{
    size_t n;
    const int32_t *ids = json_ids(v, &n);
    if (!ids) return read_number_ids(x, path, v, p);
    for (size_t i = 0; i < n; i++) {
        if ((uint32_t)ids[i] >= x->bounds->n_vocab) return refuse_id(x, path, i, ids[i]);
    }
    p->ids = mem_alloc_array(n, sizeof *p->ids);
    if (!p->ids) return FATHOM_ENOMEM;
    memcpy(p->ids, ids, n * sizeof *ids);
    p->n_id = n;
    return FATHOM_OK;
}

static bool is_array(const json_t *v)
{
    size_t n;
    return json_is_array(v) || json_ids(v, &n);
}

static fathom_err read_prompt(struct field_context *x, const char *path, const json_t *v,
                              struct api_prompt *p)
{
    if (json_is_string(v)) {
        p->text = json_string_value(v);
        p->n_text = json_string_length(v);
        return FATHOM_OK;
    }
    if (!is_array(v)) return field_wrong_type(x, path, v, "a string or an array of token ids");
    if (json_is_array(v) && json_array_size(v) == 0) {
        return api_error_set(x->e, 400, "invalid_value", path,
                             "%s is empty, at least one token is needed", path);
    }
    return read_ids(x, path, v, p);
}

static fathom_err alloc_prompts(struct field_context *x, size_t n)
{
    x->r->prompts = mem_calloc(n, sizeof *x->r->prompts);
    if (!x->r->prompts) return FATHOM_ENOMEM;
    x->r->n_prompt = n;
    return FATHOM_OK;
}

/* A string, an array of strings, an array of token ids, or an array of arrays of token ids: the
 * first element tells which. */
fathom_err field_prompt(struct field_context *x, const struct field *f, json_t *v)
{
    const json_t *first = json_array_get(v, 0);
    if (!json_is_array(v) || json_is_number(first)) {
        TRY(alloc_prompts(x, 1));
        return read_prompt(x, f->name, v, &x->r->prompts[0]);
    }
    size_t n = json_array_size(v);
    if (n == 0 || n > LIMIT_CHOICES) {
        return api_error_set(x->e, 400, "invalid_value", f->name,
                             "%s has %zu entries, needed is 1 to %d", f->name, n, LIMIT_CHOICES);
    }
    TRY(alloc_prompts(x, n));
    x->r->has_prompt_list = true;
    for (size_t i = 0; i < n; i++) {
        const struct field_place at = field_element(f->name, i);
        TRY(read_prompt(x, at.path, json_array_get(v, i), &x->r->prompts[i]));
    }
    return FATHOM_OK;
}

fathom_err field_text(struct field_context *x, const struct field *f, json_t *v)
{
    if (!json_is_string(v)) return field_wrong_type(x, f->name, v, "a string");
    TRY(alloc_prompts(x, 1));
    return read_prompt(x, f->name, v, &x->r->prompts[0]);
}

fathom_err field_tokens(struct field_context *x, const struct field *f, json_t *v)
{
    if (!is_array(v)) return field_wrong_type(x, f->name, v, "an array of token ids");
    TRY(alloc_prompts(x, 1));
    bool none = json_is_array(v) && json_array_size(v) == 0;
    return none ? FATHOM_OK : read_ids(x, f->name, v, &x->r->prompts[0]);
}
