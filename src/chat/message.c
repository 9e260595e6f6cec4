/* message.c - messages that have been checked: roles, texts, calls, results in the order of the
 * calls */
#include <string.h>

#include "base/json.h"
#include "base/mem.h"
#include "chat/chat_int.h"

static const char *const role_names[] = {
    [CHAT_ROLE_SYSTEM] = "system",       [CHAT_ROLE_USER] = "user",
    [CHAT_ROLE_ASSISTANT] = "assistant", [CHAT_ROLE_TOOL] = "tool",
    [CHAT_ROLE_DEVELOPER] = "developer",
};

bool chat_role_find(const char *name, enum chat_role *out)
{
    for (size_t i = 0; i < sizeof role_names / sizeof role_names[0]; i++) {
        if (strcmp(name, role_names[i]) == 0) {
            *out = (enum chat_role)i;
            return true;
        }
    }
    return false;
}

enum chat_role chat_message_role(const json_t *message)
{
    enum chat_role role = CHAT_ROLE_USER;
    (void)chat_role_find(json_string_value(json_object_get(message, "role")), &role);
    return role;
}

void chat_text_append(struct buf *out, const json_t *s)
{
    if (json_is_string(s)) (void)buf_add(out, json_string_value(s), json_string_length(s));
}

const json_t *chat_part_text(const json_t *part)
{
    const json_t *text = json_is_string(part) ? part : json_object_get(part, "text");
    return text ? text : json_object_get(part, "refusal");
}

bool chat_message_has_content(const json_t *message)
{
    const json_t *content = json_object_get(message, "content");
    if (json_is_string(content)) return json_string_length(content) > 0;
    if (json_array_size(content) > 1) return true; /* the newline between parts */
    return json_string_length(chat_part_text(json_array_get(content, 0))) > 0;
}

void chat_add_content(struct buf *out, const json_t *message)
{
    const json_t *content = json_object_get(message, "content");
    chat_text_append(out, content);
    for (size_t i = 0; i < json_array_size(content); i++) {
        if (i) (void)buf_add_char(out, '\n');
        chat_text_append(out, chat_part_text(json_array_get(content, i)));
    }
}

static bool think_tag_at(const char *s, size_t n)
{
    static const char *const tags[] = {CHAT_THINK, CHAT_THINK_END};
    for (int i = 0; i < 2; i++) {
        size_t len = strlen(tags[i]);
        if (n >= len && memcmp(s, tags[i], len) == 0) return true;
    }
    return false;
}

static void add_own_text(struct buf *out, const char *s, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        if (think_tag_at(s + i, n - i)) (void)buf_add_char(out, CHAT_MARK_BYTE);
        (void)buf_add_char(out, s[i]);
    }
}

void chat_add_own_content(struct buf *out, const json_t *message)
{
    struct buf text = {0};
    chat_add_content(&text, message);
    add_own_text(out, buf_str(&text), text.len);
    if (text.failed) out->failed = true;
    buf_free(&text);
}

fathom_err chat_add_content_after(struct buf *out, const json_t *message, enum chat_cut cut)
{
    struct buf text = {0};
    chat_add_content(&text, message);
    fathom_err err = buf_status(&text);
    size_t start = 0;
    const size_t n_tag = strlen(CHAT_THINK_END);
    for (size_t i = 0; i + n_tag <= text.len; i++) {
        if (memcmp(text.data + i, CHAT_THINK_END, n_tag) != 0) continue;
        start = i + n_tag;
        if (cut == CHAT_CUT_FIRST) break;
    }
    if (!err) add_own_text(out, buf_str(&text) + start, text.len - start);
    buf_free(&text);
    return err ? err : buf_status(out);
}

const json_t *chat_message_reasoning(const json_t *message)
{
    const json_t *s = json_object_get(message, "reasoning_content");
    if (!json_is_string(s)) s = json_object_get(message, "reasoning");
    return json_is_string(s) && json_string_length(s) > 0 ? s : NULL;
}

const json_t *chat_message_calls(const json_t *message)
{
    const json_t *calls = json_object_get(message, "tool_calls");
    return json_array_size(calls) > 0 ? calls : NULL;
}

static const json_t *call_function(const json_t *calls, size_t i)
{
    return json_object_get(json_array_get(calls, i), "function");
}

const char *chat_call_name(const json_t *calls, size_t i)
{
    return json_string_value(json_object_get(call_function(calls, i), "name"));
}

fathom_err chat_call_arguments(const json_t *calls, size_t i, json_t **out)
{
    json_t *a = json_object_get(call_function(calls, i), "arguments");
    *out = NULL;
    if (json_is_plain_object(a)) {
        *out = json_incref(a);
        return FATHOM_OK;
    }
    if (json_string_length(a) > 0) {
        fathom_err err =
            json_read(json_string_value(a), json_string_length(a), "arguments", out, NULL);
        if (!err && json_is_plain_object(*out)) return FATHOM_OK;
        if (err && err != FATHOM_EFORMAT) return err;
        json_decref(*out);
        *out = json_pack("{s:O}", "arguments", a);
    } else {
        *out = json_object();
    }
    return *out ? FATHOM_OK : FATHOM_ENOMEM;
}

void chat_add_arguments(struct buf *out, const json_t *calls, size_t i)
{
    const json_t *a = json_object_get(call_function(calls, i), "arguments");
    if (json_is_plain_object(a)) {
        (void)json_write_python(out, a);
    } else if (json_string_length(a) > 0) {
        chat_text_append(out, a);
    } else {
        (void)buf_add_str(out, "{}");
    }
}

/* ---- results of calls ------------------------------------------------------------------- */

/* The results by tool_call_id; *out is NULL when one has no id, or two have the same. */
static fathom_err index_results(const struct chat_results *r, json_t **out)
{
    json_t *by_id = json_object();
    *out = NULL;
    if (!by_id) return FATHOM_ENOMEM;
    for (size_t i = 0; i < r->n; i++) {
        const json_t *id = json_object_get(r->messages[i], "tool_call_id");
        if (!json_is_string(id) || json_object_get(by_id, json_string_value(id))) {
            json_decref(by_id);
            return FATHOM_OK;
        }
        if (json_object_set(by_id, json_string_value(id), (json_t *)r->messages[i]) != 0) {
            json_decref(by_id);
            return FATHOM_ENOMEM;
        }
    }
    *out = by_id;
    return FATHOM_OK;
}

/* Puts the results into the order of the calls, if each result has a call of its own. */
static fathom_err order_results(struct chat_results *r, const json_t *calls)
{
    json_t *by_id;
    fathom_err err = index_results(r, &by_id);
    if (err || !by_id) return err;
    const json_t **ordered = mem_alloc_array(r->n, sizeof *ordered);
    if (!ordered) {
        json_decref(by_id);
        return FATHOM_ENOMEM;
    }
    size_t n = 0;
    for (size_t i = 0; i < json_array_size(calls); i++) {
        const json_t *id = json_object_get(json_array_get(calls, i), "id");
        const json_t *result = json_object_get(by_id, json_string_value(id));
        if (!result) continue;
        ordered[n++] = result;
        (void)json_object_del(by_id, json_string_value(id));
    }
    if (n == r->n) memcpy(r->messages, ordered, n * sizeof *ordered);
    mem_free(ordered);
    json_decref(by_id);
    return FATHOM_OK;
}

fathom_err chat_results_open(struct chat_results *out, const json_t *messages, size_t first,
                             const json_t *calls)
{
    *out = (struct chat_results){.end = first};
    for (size_t i = first; i < json_array_size(messages); i++) {
        enum chat_role role = chat_message_role(json_array_get(messages, i));
        if (role != CHAT_ROLE_TOOL && role != CHAT_ROLE_SYSTEM) break;
        if (role == CHAT_ROLE_TOOL) out->end = i + 1;
        out->n += role == CHAT_ROLE_TOOL;
    }
    out->messages = mem_alloc_array(out->n, sizeof *out->messages);
    if (!out->messages) return FATHOM_ENOMEM;
    for (size_t i = first, n = 0; i < out->end; i++) {
        const json_t *m = json_array_get(messages, i);
        if (chat_message_role(m) == CHAT_ROLE_TOOL) out->messages[n++] = m;
    }
    fathom_err err = calls ? order_results(out, calls) : FATHOM_OK;
    if (err) chat_results_close(out);
    return err;
}

void chat_results_close(struct chat_results *r)
{
    mem_free(r->messages);
    memset(r, 0, sizeof *r);
}
