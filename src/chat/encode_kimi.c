/* encode_kimi.c - Kimi K2, Kimi K2 Thinking
 *
 *   [SYSTEM "tool_declare" MIDDLE tools END] [SYSTEM "system" MIDDLE "You are Kimi ..." END]
 *   { header MIDDLE text END } ASSISTANT "assistant" MIDDLE
 *   header     USER, ASSISTANT or SYSTEM, and the message's name or role
 *   assistant  [<think> reasoning </think>] text [CALLS_BEGIN call+ CALLS_END]
 *   call       CALL_BEGIN id ARGUMENTS arguments CALL_END          id: functions.NAME:NUMBER
 *   result     "## Return of " id "\n" text
 *
 * K2 has no reasoning. K2 Thinking writes an empty pair of tags up to the last answer without
 * calls, and the reasoning behind it. Every message stands in its place. Numbers count the calls of
 * the chat; an id of another form, as other servers give them, is written as it should be.
 * Source  chat_template.jinja and tokenization_kimi.py (order of the tools' keys) of
 *         moonshotai/Kimi-K2-Thinking.
 */
#include <string.h>

#include "base/fail.h"
#include "base/json.h"
#include "chat/chat_int.h"

#define SYSTEM MARK(CHAT_IM_SYSTEM)
#define MIDDLE MARK(CHAT_IM_MIDDLE)
#define END MARK(CHAT_IM_END)

static const char default_system[] =
    SYSTEM "system" MIDDLE "You are Kimi, an AI assistant created by Moonshot AI." END;

struct encoder {
    const struct chat_request *request;
    struct buf *out;
    bool thinks;
    size_t n_closed;     /* messages at the beginning whose reasoning is not shown */
    const json_t *calls; /* of the last message that has any, whose first one has number */
    size_t first_number; /* this one */
    size_t n_result;     /* results since then */
    size_t n_call;       /* of all messages so far */
};

/* "functions.NAME:NUMBER" */
static bool is_own_id(const char *id)
{
    const char *colon = id ? strrchr(id, ':') : NULL;
    return colon && strncmp(id, CHAT_FUNCTIONS, strlen(CHAT_FUNCTIONS)) == 0 && colon[1] &&
           strspn(colon + 1, "0123456789") == strlen(colon + 1);
}

static void add_id(struct encoder *e, const char *given, const char *name, size_t number)
{
    if (is_own_id(given)) {
        (void)buf_add_str(e->out, given);
        return;
    }
    (void)buf_printf(e->out, CHAT_FUNCTIONS "%s:%zu", name ? name : "unknown", number);
}

static const char *call_id(const json_t *calls, size_t i)
{
    return json_string_value(json_object_get(json_array_get(calls, i), "id"));
}

static void add_calls(struct encoder *e, const json_t *calls)
{
    e->calls = calls;
    e->first_number = e->n_call;
    e->n_result = 0;
    (void)buf_add_str(e->out, MARK(CHAT_SECTION_BEGIN));
    for (size_t i = 0; i < json_array_size(calls); i++) {
        (void)buf_add_str(e->out, MARK(CHAT_KIMI_CALL_BEGIN));
        add_id(e, call_id(calls, i), chat_call_name(calls, i), e->n_call++);
        (void)buf_add_str(e->out, MARK(CHAT_KIMI_ARGUMENTS));
        chat_add_arguments(e->out, calls, i);
        (void)buf_add_str(e->out, MARK(CHAT_KIMI_CALL_END));
    }
    (void)buf_add_str(e->out, MARK(CHAT_SECTION_END));
}

/* The id of the call that a result belongs to: the one it names, or else the next in order. */
static void add_result_id(struct encoder *e, const json_t *m)
{
    const char *id = json_string_value(json_object_get(m, "tool_call_id"));
    size_t n = json_array_size(e->calls), i = 0;
    while (id && i < n && (!call_id(e->calls, i) || strcmp(call_id(e->calls, i), id) != 0)) i++;
    if (!id || i == n) i = e->n_result;
    e->n_result++;
    if (i < n) {
        add_id(e, call_id(e->calls, i), chat_call_name(e->calls, i), e->first_number + i);
    } else {
        add_id(e, id, json_string_value(json_object_get(m, "name")), e->n_call);
    }
}

/* Parts follow each other without anything between them. */
static void add_text(struct buf *out, const json_t *m, bool own)
{
    const json_t *content = json_object_get(m, "content");
    if (!json_is_array(content)) {
        own ? chat_add_own_content(out, m) : chat_add_content(out, m);
        return;
    }
    for (size_t i = 0; i < json_array_size(content); i++) {
        chat_text_append(out, chat_part_text(json_array_get(content, i)));
    }
}

static void add_header(struct encoder *e, const json_t *m, const char *mark)
{
    const json_t *name = json_object_get(m, "name");
    if (json_string_length(name) == 0) name = json_object_get(m, "role");
    (void)buf_add_str(e->out, mark);
    chat_text_append(e->out, name);
    (void)buf_add_str(e->out, MIDDLE);
}

static void add_reasoning(struct encoder *e, const json_t *m, bool shown)
{
    if (!e->thinks) return;
    (void)buf_add_str(e->out, MARK(CHAT_THINK));
    if (shown) chat_text_append(e->out, chat_message_reasoning(m));
    (void)buf_add_str(e->out, MARK(CHAT_THINK_END));
}

static void add_assistant(struct encoder *e, const json_t *m, size_t i)
{
    const json_t *calls = chat_message_calls(m);
    add_header(e, m, MARK(CHAT_IM_ASSISTANT));
    add_reasoning(e, m, i >= e->n_closed);
    add_text(e->out, m, true);
    if (calls) add_calls(e, calls);
    (void)buf_add_str(e->out, END);
}

/* The prefix of an answer: reasoning that it ends in is gone on from. */
static void add_prefix(struct encoder *e, const json_t *m)
{
    bool content = chat_message_has_content(m);
    add_header(e, m, MARK(CHAT_IM_ASSISTANT));
    if (e->thinks && chat_message_reasoning(m) && !content) {
        (void)buf_add_str(e->out, MARK(CHAT_THINK));
        chat_text_append(e->out, chat_message_reasoning(m));
        return;
    }
    if (content) add_reasoning(e, m, true);
    add_text(e->out, m, true);
}

static void add_message(struct encoder *e, const json_t *m, size_t i)
{
    enum chat_role role = chat_message_role(m);
    if (role == CHAT_ROLE_ASSISTANT) {
        add_assistant(e, m, i);
        return;
    }
    add_header(e, m, role == CHAT_ROLE_USER ? MARK(CHAT_IM_USER) : SYSTEM);
    if (role == CHAT_ROLE_TOOL) {
        (void)buf_add_str(e->out, "## Return of ");
        add_result_id(e, m);
        (void)buf_add_char(e->out, '\n');
    }
    add_text(e->out, m, false);
    (void)buf_add_str(e->out, END);
}

/* The messages up to the last answer without calls. */
static size_t count_closed(const json_t *messages)
{
    for (size_t i = json_array_size(messages); i-- > 0;) {
        const json_t *m = json_array_get(messages, i);
        if (chat_message_role(m) == CHAT_ROLE_ASSISTANT && !chat_message_calls(m)) return i + 1;
    }
    return 0;
}

static void add_head(struct encoder *e)
{
    const struct chat_request *r = e->request;
    const json_t *schema = chat_schema(r->response_format);
    if (chat_has_tools(r->tools)) {
        (void)buf_add_str(e->out, SYSTEM "tool_declare" MIDDLE);
        (void)json_write_sorted(e->out, r->tools);
        (void)buf_add_str(e->out, END);
    }
    if (schema) {
        (void)buf_add_str(e->out, SYSTEM "system" MIDDLE);
        chat_add_schema(e->out, schema);
        (void)buf_add_str(e->out, END);
    }
    if (chat_message_role(json_array_get(r->messages, 0)) != CHAT_ROLE_SYSTEM) {
        (void)buf_add_str(e->out, default_system);
    }
}

fathom_err chat_encode_kimi(const struct chat_style *s, const struct chat_request *r, bool go_on,
                            struct buf *out)
{
    size_t n = json_array_size(r->messages);
    struct encoder e = {.request = r,
                        .out = out,
                        .thinks = s->encoding == CHAT_ENCODING_KIMI_K2_THINKING,
                        .n_closed = count_closed(r->messages)};
    add_head(&e);
    for (size_t i = 0; i < n; i++) {
        const json_t *m = json_array_get(r->messages, i);
        if (go_on && i + 1 == n) {
            add_prefix(&e, m);
            return buf_status(out);
        }
        add_message(&e, m, i);
    }
    if (r->add_generation_prompt) {
        (void)buf_add_str(out, MARK(CHAT_IM_ASSISTANT) "assistant" MIDDLE);
    }
    return buf_status(out);
}
