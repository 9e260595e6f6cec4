/* encode_v3.c - V3 and R1
 *
 *   BOS system { U user A assistant EOS } A
 *   tool turn   A [text] CALLS_BEGIN call ("\n" call)* CALLS_END EOS
 *   call        CALL_BEGIN "function" SEP name "\n```json\n" arguments "\n```" CALL_END
 *   results     OUTPUTS_BEGIN output ("\n" output)* OUTPUTS_END, and no A after them: the model
 *               goes on directly, in history and at the end
 *
 * R1 ends the prompt with A <think> "\n" and loses what precedes the last </think> of history.
 */
#include "base/fail.h"
#include "chat/chat_int.h"

struct encoder {
    const struct chat_style *style;
    const struct chat_request *request;
    struct buf *out;
    bool after_results; /* the assistant goes on without its marker */
};

static void add_calls(struct buf *out, const json_t *calls)
{
    (void)buf_add_str(out, MARK(CHAT_CALLS_BEGIN));
    for (size_t i = 0; i < json_array_size(calls); i++) {
        if (i) (void)buf_add_char(out, '\n');
        (void)buf_add_str(out, MARK(CHAT_CALL_BEGIN) "function" MARK(CHAT_CALL_SEP));
        (void)buf_add_str(out, chat_call_name(calls, i));
        (void)buf_add_str(out, "\n```json\n");
        chat_add_arguments(out, calls, i);
        (void)buf_add_str(out, "\n```" MARK(CHAT_CALL_END));
    }
    (void)buf_add_str(out, MARK(CHAT_CALLS_END));
}

static fathom_err add_results(struct encoder *e, size_t first, const json_t *calls, size_t *n)
{
    struct chat_results results;
    TRY(chat_results_open(&results, e->request->messages, first, calls));
    (void)buf_add_str(e->out, MARK(CHAT_OUTPUTS_BEGIN));
    for (size_t i = 0; i < results.n; i++) {
        if (i) (void)buf_add_char(e->out, '\n');
        (void)buf_add_str(e->out, MARK(CHAT_OUTPUT_BEGIN));
        chat_add_content(e->out, results.messages[i]);
        (void)buf_add_str(e->out, MARK(CHAT_OUTPUT_END));
    }
    (void)buf_add_str(e->out, MARK(CHAT_OUTPUTS_END));
    *n = results.end - first;
    chat_results_close(&results);
    return FATHOM_OK;
}

static fathom_err add_assistant(struct encoder *e, const json_t *m)
{
    if (!e->after_results) (void)buf_add_str(e->out, MARK(CHAT_ASSISTANT));
    if (e->style->encoding == CHAT_ENCODING_R1) {
        TRY(chat_add_content_after(e->out, m, CHAT_CUT_LAST));
    } else {
        chat_add_own_content(e->out, m);
    }
    const json_t *calls = chat_message_calls(m);
    if (calls) add_calls(e->out, calls);
    return buf_add_str(e->out, MARK(CHAT_EOS));
}

/* The prefix of an answer, uncut. */
static void add_prefix(struct encoder *e, const json_t *m)
{
    const json_t *reasoning = chat_message_reasoning(m);
    if (!e->after_results) (void)buf_add_str(e->out, MARK(CHAT_ASSISTANT));
    if (reasoning && e->style->encoding == CHAT_ENCODING_R1) {
        (void)buf_add_str(e->out, MARK(CHAT_THINK) "\n");
        chat_text_append(e->out, reasoning);
        if (chat_message_has_content(m)) (void)buf_add_str(e->out, MARK(CHAT_THINK_END));
    }
    chat_add_own_content(e->out, m);
}

fathom_err chat_encode_v3(const struct chat_style *s, const struct chat_request *r, bool go_on,
                          struct buf *out)
{
    struct encoder e = {.style = s, .request = r, .out = out};
    const json_t *calls = NULL; /* of the assistant message before */
    size_t n_message = json_array_size(r->messages);
    (void)buf_add_str(out, MARK(CHAT_BOS));
    chat_add_system(out, r, 0, n_message);
    chat_add_system_sections(out, r, s->encoding);
    for (size_t i = 0; i < n_message; i++) {
        const json_t *m = json_array_get(r->messages, i);
        size_t n = 1;
        switch (chat_message_role(m)) {
        case CHAT_ROLE_SYSTEM:
        case CHAT_ROLE_DEVELOPER: continue;
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
        e.after_results = chat_message_role(m) == CHAT_ROLE_TOOL;
        calls = chat_message_calls(m);
        i += n - 1;
    }
    if (r->add_generation_prompt && !e.after_results) {
        (void)buf_add_str(out, MARK(CHAT_ASSISTANT));
        bool open = s->encoding == CHAT_ENCODING_R1 && !s->model_opens_think;
        if (open) (void)buf_add_str(out, MARK(CHAT_THINK) "\n");
    }
    return buf_status(out);
}
