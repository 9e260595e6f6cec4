/* encode_v32.c - V3.2
 *
 * The assistant's marker and think tag belong to the turn before it: a user's text, or the results
 * of its calls. L is the last user or developer message.
 *
 *   system     text [tools] [response format]
 *   user       U text A tag            tag: <think> when thinking and this is L, else </think>
 *   developer  U [tools] [response format] "\n\n# The user's message is: " text A tag
 *   assistant  [reasoning </think>] text ["\n\n" DSML block] EOS    reasoning: thinking, after L
 *   tool       "\n\n<function_results>" ("\n<result>" text "</result>")+ "\n</function_results>"
 *              "\n\n" tag              tag: <think> when thinking and after L, else </think>
 *
 * A new user turn drops the reasoning before it, and in thinking mode the developer messages
 * before it too.
 *
 * A system message stands where it is, unless an assistant's marker stands there already: the model
 * would read it as words of its own. Behind a user, a developer or results it is folded into them,
 * and with no user behind it, after an answer, it is a user's turn.
 */
#include <stdio.h>
#include <string.h>

#include "base/fail.h"
#include "base/json.h"
#include "base/json_arena.h"
#include "chat/chat_int.h"

struct encoder {
    const struct chat_request *request;
    struct buf *out;
    fathom_diag *d;
    size_t n_message;
    size_t i_last;     /* L, or n_message */
    size_t i_sections; /* the message that carries the request's tools and schema, or n_message */
    bool go_on;
};

static bool is_after_last(const struct encoder *e, size_t i)
{
    return e->i_last == e->n_message || i > e->i_last;
}

/* Tools and response format, of message m (may be NULL) and, with `request`, of the request. */
static void add_sections(struct encoder *e, const json_t *m, bool request)
{
    const json_t *own = json_object_get(m, "tools");
    const json_t *given = request ? e->request->tools : NULL;
    if (chat_has_tools(own) || chat_has_tools(given)) {
        (void)buf_add_str(e->out, "\n\n");
        chat_add_tools_dsml(e->out, own, given);
    }
    const json_t *format = json_object_get(m, "response_format");
    const json_t *schema = request ? chat_schema(e->request->response_format) : NULL;
    if (format && !json_is_null(format)) schema = format;
    if (schema) {
        (void)buf_add_str(e->out, "\n\n");
        chat_add_schema(e->out, schema);
    }
}

/* The turn passes to the assistant, unless this is the end and nothing is to be generated. */
static void add_turn(struct encoder *e, size_t i, const char *lead, bool think)
{
    if (i + 1 == e->n_message && !e->request->add_generation_prompt) return;
    (void)buf_add_str(e->out, lead);
    (void)buf_add_str(e->out, think ? MARK(CHAT_THINK) : MARK(CHAT_THINK_END));
}

/* ---- system ----------------------------------------------------------------------------- */

static enum chat_role role_of(const struct encoder *e, size_t i)
{
    return chat_message_role(json_array_get(e->request->messages, i));
}

/* Where the run of system messages ends that has message i. */
static size_t run_end(const struct encoder *e, size_t i)
{
    while (i < e->n_message && role_of(e, i) == CHAT_ROLE_SYSTEM) i++;
    return i;
}

/* In thinking mode a developer message is told as long as no user's turn has come after it. */
static bool is_told(const struct encoder *e, size_t i)
{
    return role_of(e, i) != CHAT_ROLE_DEVELOPER || !e->request->thinking || i == e->i_last;
}

/* Whether the run [i, end) is told with the message before it, whose end has the assistant's
 * marker, or with the results behind it: nothing comes between a call and these. */
static bool is_folded(const struct encoder *e, size_t i, size_t end)
{
    if (end < e->n_message && role_of(e, end) == CHAT_ROLE_TOOL) return true;
    return i > 0 && role_of(e, i - 1) != CHAT_ROLE_ASSISTANT && is_told(e, i - 1);
}

/* Whether the run [i, end) is a user's turn: no other asks for what comes next. */
static bool is_turn(const struct encoder *e, size_t i, size_t end)
{
    if (i == 0 || role_of(e, i - 1) != CHAT_ROLE_ASSISTANT) return false;
    return end == e->n_message || role_of(e, end) == CHAT_ROLE_ASSISTANT;
}

/* The system texts among messages [i, end), behind the text of `before` (may be NULL). */
static void add_texts(struct encoder *e, const json_t *before, size_t i, size_t end)
{
    bool first = !before || !chat_message_has_content(before);
    for (; i < end; i++) {
        const json_t *m = json_array_get(e->request->messages, i);
        if (chat_message_role(m) != CHAT_ROLE_SYSTEM) continue;
        if (chat_message_has_content(m)) {
            if (!first) (void)buf_add_str(e->out, "\n\n");
            first = false;
            chat_add_content(e->out, m);
        }
        add_sections(e, m, false);
    }
}

/* The run [i, end) that is told with no message before it. */
static void add_system(struct encoder *e, size_t i, size_t end)
{
    if (is_folded(e, i, end)) return;
    if (is_turn(e, i, end)) {
        (void)buf_add_str(e->out, MARK(CHAT_USER));
        add_texts(e, NULL, i, end);
        add_turn(e, end - 1, MARK(CHAT_ASSISTANT), e->request->thinking && i == e->i_last);
        return;
    }
    for (; i < end; i++) {
        const json_t *m = json_array_get(e->request->messages, i);
        chat_add_content(e->out, m);
        add_sections(e, m, i == e->i_sections);
    }
}

/* ---- user, developer -------------------------------------------------------------------- */

/* *n: how many messages it is, with those folded into it. */
static void add_user(struct encoder *e, size_t i, const json_t *m, size_t *n)
{
    (void)buf_add_str(e->out, MARK(CHAT_USER));
    chat_add_content(e->out, m);
    *n = run_end(e, i + 1) - i;
    add_texts(e, m, i + 1, i + *n);
    add_turn(e, i + *n - 1, MARK(CHAT_ASSISTANT), e->request->thinking && i == e->i_last);
}

static fathom_err add_developer(struct encoder *e, size_t i, const json_t *m, size_t *n)
{
    if (!is_told(e, i)) return FATHOM_OK;
    if (!chat_message_has_content(m)) {
        FAIL(e->d, FATHOM_EINVAL, "messages[%zu].content is empty, a developer message needs text",
             i);
    }
    (void)buf_add_str(e->out, MARK(CHAT_USER));
    add_sections(e, m, false);
    (void)buf_add_str(e->out, "\n\n# The user's message is: ");
    chat_add_content(e->out, m);
    *n = run_end(e, i + 1) - i;
    add_texts(e, m, i + 1, i + *n);
    add_turn(e, i + *n - 1, MARK(CHAT_ASSISTANT), e->request->thinking && i == e->i_last);
    return FATHOM_OK;
}

/* ---- assistant -------------------------------------------------------------------------- */

static void add_parameter(struct buf *out, const char *key, const json_t *value)
{
    bool string = json_is_string(value);
    (void)buf_printf(out, "<" MARK(CHAT_DSML) "parameter name=\"%s\" string=\"%s\">", key,
                     string ? "true" : "false");
    if (string) {
        chat_text_append(out, value);
    } else {
        (void)json_write_python(out, value);
    }
    (void)buf_add_str(out, "</" MARK(CHAT_DSML) "parameter>");
}

static fathom_err add_invoke(struct buf *out, const json_t *calls, size_t i)
{
    json_t *arguments;
    const char *key;
    json_t *value;
    bool first = true;
    const struct json_arena_mark mark = json_arena_take_mark();
    TRY(chat_call_arguments(calls, i, &arguments));
    (void)buf_printf(out, "<" MARK(CHAT_DSML) "invoke name=\"%s\">\n", chat_call_name(calls, i));
    json_object_foreach (arguments, key, value) {
        if (!first) (void)buf_add_char(out, '\n');
        first = false;
        add_parameter(out, key, value);
    }
    (void)buf_add_str(out, "\n</" MARK(CHAT_DSML) "invoke>\n");
    json_decref(arguments);
    json_arena_rewind(&mark);
    return FATHOM_OK;
}

static fathom_err add_assistant(struct encoder *e, size_t i, const json_t *m)
{
    const json_t *calls = chat_message_calls(m);
    bool prefix = e->go_on && i + 1 == e->n_message;
    if (e->request->thinking && is_after_last(e, i)) {
        const json_t *reasoning = chat_message_reasoning(m);
        bool open = prefix && reasoning && !chat_message_has_content(m);
        chat_text_append(e->out, reasoning);
        if (!open) (void)buf_add_str(e->out, MARK(CHAT_THINK_END));
    }
    chat_add_own_content(e->out, m);
    if (prefix) return FATHOM_OK;
    if (calls) {
        (void)buf_add_str(e->out, "\n\n<" MARK(CHAT_DSML) "function_calls>\n");
        for (size_t k = 0; k < json_array_size(calls); k++) TRY(add_invoke(e->out, calls, k));
        (void)buf_add_str(e->out, "</" MARK(CHAT_DSML) "function_calls>");
    }
    return buf_add_str(e->out, MARK(CHAT_EOS));
}

/* ---- results ---------------------------------------------------------------------------- */

/* Renders all results from message `first` on, the last with the system texts around them; *n: how
 * many messages. */
static fathom_err add_results(struct encoder *e, size_t first, size_t *n)
{
    size_t begin = first;
    while (begin > 0 && role_of(e, begin - 1) == CHAT_ROLE_SYSTEM) begin--;
    const json_t *before = begin > 0 ? json_array_get(e->request->messages, begin - 1) : NULL;
    const json_t *calls = chat_message_calls(before);
    struct chat_results results;
    if (!calls) {
        FAIL(e->d, FATHOM_EINVAL,
             "messages[%zu] is a tool result, but the message before has no tool_calls", first);
    }
    TRY(chat_results_open(&results, e->request->messages, first, calls));
    const size_t end = run_end(e, results.end), n_result = results.n;
    (void)buf_add_str(e->out, "\n\n<function_results>");
    for (size_t i = 0; i < results.n; i++) {
        (void)buf_add_str(e->out, "\n<result>");
        chat_add_content(e->out, results.messages[i]);
        if (i + 1 == n_result) add_texts(e, results.messages[i], begin, end);
        (void)buf_add_str(e->out, "</result>");
    }
    chat_results_close(&results);
    if (n_result > json_array_size(calls)) {
        FAIL(e->d, FATHOM_EINVAL, "messages[%zu]: %zu tool results follow %zu tool calls", first,
             n_result, json_array_size(calls));
    }
    *n = end - first;
    (void)buf_add_str(e->out, "\n</function_results>");
    add_turn(e, first + *n - 1, "\n\n", e->request->thinking && is_after_last(e, first));
    return FATHOM_OK;
}

/* ---- driver ----------------------------------------------------------------------------- */

static size_t find_last(const struct encoder *e)
{
    for (size_t i = e->n_message; i-- > 0;) {
        enum chat_role role = role_of(e, i);
        if (role == CHAT_ROLE_USER || role == CHAT_ROLE_DEVELOPER) return i;
        if (role != CHAT_ROLE_SYSTEM) continue;
        const size_t end = i + 1;
        while (i > 0 && role_of(e, i - 1) == CHAT_ROLE_SYSTEM) i--;
        if (is_turn(e, i, end)) return i;
    }
    return e->n_message;
}

/* The first system message that stands where it is. */
static size_t find_system(const struct encoder *e)
{
    size_t i = 0;
    while (i < e->n_message) {
        if (role_of(e, i) != CHAT_ROLE_SYSTEM) {
            i++;
            continue;
        }
        const size_t end = run_end(e, i);
        if (!is_folded(e, i, end) && !is_turn(e, i, end)) return i;
        i = end;
    }
    return i;
}

static fathom_err check_message_tools(const struct encoder *e)
{
    for (size_t i = 0; i < e->n_message; i++) {
        char path[64];
        (void)snprintf(path, sizeof path, "messages[%zu].tools", i);
        const json_t *m = json_array_get(e->request->messages, i);
        TRY(chat_check_tools(json_object_get(m, "tools"), path, e->d));
    }
    return FATHOM_OK;
}

fathom_err chat_encode_v32(const struct chat_request *r, bool go_on, struct buf *out,
                           fathom_diag *d)
{
    size_t n_message = json_array_size(r->messages);
    struct encoder e = {.request = r, .out = out, .d = d, .n_message = n_message, .go_on = go_on};
    e.i_last = find_last(&e);
    e.i_sections = r->tools_first_message ? n_message : find_system(&e);
    TRY(check_message_tools(&e));
    (void)buf_add_str(out, MARK(CHAT_BOS));
    if (e.i_sections == n_message) add_sections(&e, NULL, true);
    for (size_t i = 0; i < n_message; i++) {
        const json_t *m = json_array_get(r->messages, i);
        size_t n = 1;
        switch (chat_message_role(m)) {
        case CHAT_ROLE_SYSTEM:
            n = run_end(&e, i) - i;
            add_system(&e, i, i + n);
            break;
        case CHAT_ROLE_USER: add_user(&e, i, m, &n); break;
        case CHAT_ROLE_DEVELOPER: TRY(add_developer(&e, i, m, &n)); break;
        case CHAT_ROLE_ASSISTANT: TRY(add_assistant(&e, i, m)); break;
        case CHAT_ROLE_TOOL: TRY(add_results(&e, i, &n)); break;
        }
        i += n - 1;
    }
    return buf_status(out);
}
