/* encode_v31.c - V3.1, V3.1-Terminus, V3.2-Exp
 *
 *   BOS system { U user A </think> assistant EOS } A (<think> or </think>)
 *   tool turn   A </think> [text] CALLS_BEGIN call+ CALLS_END EOS
 *   call        CALL_BEGIN name SEP arguments CALL_END
 *   result      OUTPUT_BEGIN content OUTPUT_END, and no A after it
 *
 * A stands only right after a user's text; two assistant turns in a row share one. History never
 * carries reasoning. System texts are joined at the head, but those that come last, behind an
 * answer, are a user's turn: no other asks for what comes next.
 */
#include "base/fail.h"
#include "chat/chat_int.h"

struct encoder {
    const struct chat_request *request;
    struct buf *out;
    size_t i_turn; /* the system texts from here on are a user's turn; n_message: none are */
    bool after_user;
    bool after_results;
};

static bool is_system(const struct chat_request *r, size_t i)
{
    enum chat_role role = chat_message_role(json_array_get(r->messages, i));
    return role == CHAT_ROLE_SYSTEM || role == CHAT_ROLE_DEVELOPER;
}

static size_t find_turn(const struct chat_request *r, size_t n_message)
{
    size_t i = n_message;
    while (i > 0 && is_system(r, i - 1)) i--;
    if (i == 0) return n_message;
    const json_t *before = json_array_get(r->messages, i - 1);
    return chat_message_role(before) == CHAT_ROLE_ASSISTANT ? i : n_message;
}

static void add_calls(struct buf *out, const json_t *calls)
{
    (void)buf_add_str(out, MARK(CHAT_CALLS_BEGIN));
    for (size_t i = 0; i < json_array_size(calls); i++) {
        (void)buf_add_str(out, MARK(CHAT_CALL_BEGIN));
        (void)buf_add_str(out, chat_call_name(calls, i));
        (void)buf_add_str(out, MARK(CHAT_CALL_SEP));
        chat_add_arguments(out, calls, i);
        (void)buf_add_str(out, MARK(CHAT_CALL_END));
    }
    (void)buf_add_str(out, MARK(CHAT_CALLS_END));
}

static fathom_err add_results(struct encoder *e, size_t first, const json_t *calls, size_t *n)
{
    struct chat_results results;
    TRY(chat_results_open(&results, e->request->messages, first, calls));
    for (size_t i = 0; i < results.n; i++) {
        (void)buf_add_str(e->out, MARK(CHAT_OUTPUT_BEGIN));
        chat_add_content(e->out, results.messages[i]);
        (void)buf_add_str(e->out, MARK(CHAT_OUTPUT_END));
    }
    *n = results.end - first;
    chat_results_close(&results);
    return FATHOM_OK;
}

static fathom_err add_assistant(struct encoder *e, const json_t *m)
{
    const json_t *calls = chat_message_calls(m);
    if (e->after_user) (void)buf_add_str(e->out, MARK(CHAT_ASSISTANT) MARK(CHAT_THINK_END));
    if (calls || e->after_results) {
        chat_add_own_content(e->out, m);
    } else {
        TRY(chat_add_content_after(e->out, m, CHAT_CUT_FIRST));
    }
    if (calls) add_calls(e->out, calls);
    return buf_add_str(e->out, MARK(CHAT_EOS));
}

/* The prefix of an answer. In thinking mode a message flagged "prefix" is reasoning to go on from,
 * as is one that has nothing but reasoning. */
static void add_prefix(struct encoder *e, const json_t *m)
{
    bool thinking = e->request->thinking;
    const json_t *reasoning = thinking ? chat_message_reasoning(m) : NULL;
    bool flagged = thinking && json_is_true(json_object_get(m, "prefix"));
    bool content = chat_message_has_content(m);
    if (e->after_user) (void)buf_add_str(e->out, MARK(CHAT_ASSISTANT));
    if (reasoning || flagged) {
        (void)buf_add_str(e->out, MARK(CHAT_THINK));
        chat_text_append(e->out, reasoning);
        if (reasoning && content) (void)buf_add_str(e->out, MARK(CHAT_THINK_END));
    } else if (e->after_user) {
        (void)buf_add_str(e->out, MARK(CHAT_THINK_END));
    }
    chat_add_own_content(e->out, m);
}

fathom_err chat_encode_v31(const struct chat_request *r, bool go_on, struct buf *out)
{
    size_t n_message = json_array_size(r->messages);
    struct encoder e = {.request = r, .out = out, .i_turn = find_turn(r, n_message)};
    const json_t *calls = NULL; /* of the assistant message before */
    (void)buf_add_str(out, MARK(CHAT_BOS));
    chat_add_system(out, r, 0, e.i_turn);
    chat_add_system_sections(out, r, CHAT_ENCODING_V31);
    for (size_t i = 0; i < n_message; i++) {
        const json_t *m = json_array_get(r->messages, i);
        enum chat_role role = chat_message_role(m);
        size_t n = 1;
        switch (role) {
        case CHAT_ROLE_SYSTEM:
        case CHAT_ROLE_DEVELOPER:
            if (i < e.i_turn) continue;
            (void)buf_add_str(out, MARK(CHAT_USER));
            chat_add_system(out, r, i, n_message);
            n = n_message - i;
            break;
        case CHAT_ROLE_USER:
            (void)buf_add_str(out, MARK(CHAT_USER));
            chat_add_content(out, m);
            break;
        case CHAT_ROLE_ASSISTANT:
            if (go_on && i + 1 == n_message) {
                add_prefix(&e, m);
                return buf_status(out);
            }
            TRY(add_assistant(&e, m));
            break;
        case CHAT_ROLE_TOOL: TRY(add_results(&e, i, calls, &n)); break;
        }
        e.after_user = role == CHAT_ROLE_USER || i >= e.i_turn;
        e.after_results = role == CHAT_ROLE_TOOL;
        calls = chat_message_calls(m);
        i += n - 1;
    }
    if (r->add_generation_prompt && e.after_user) {
        (void)buf_add_str(out, MARK(CHAT_ASSISTANT));
        (void)buf_add_str(out, r->thinking ? MARK(CHAT_THINK) : MARK(CHAT_THINK_END));
    }
    return buf_status(out);
}
