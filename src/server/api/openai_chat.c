/* openai_chat.c - the form of /v1/chat/completions
 *
 * Text goes through the parser of the checkpoint's encoding, which tells reasoning, content and
 * tool calls apart. Streamed, pieces of one kind are gathered until another kind comes or all text
 * of the token has been taken; then they are sent as one chunk. Reasoning has both names that
 * clients read, reasoning_content and reasoning.
 */
#include <string.h>

#include "base/fail.h"
#include "base/json.h"
#include "server/api/openai_chunk.h"

static void write_call_id(struct buf *b, const struct choice *c)
{
    (void)buf_add_str(b, "\"id\":");
    answer_write_id(b, c, "call_", c->i_call);
}

/* ---- chunks -------------------------------------------------------------------------------- */

static void delta_begin(struct choice *c)
{
    openai_chunk_begin(c->answer);
    (void)buf_printf(&c->answer->out, "{\"index\":%u,\"delta\":{", c->index);
}

static void delta_end(struct choice *c)
{
    struct buf *b = &c->answer->out;
    (void)buf_add_str(b, "},\"logprobs\":");
    logprob_write_chat(b, &c->logprobs);
    logprob_list_clear(&c->logprobs);
    (void)buf_add_char(b, ',');
    openai_write_finish(b, c);
    if (c->answer->setup.request->return_token_ids) {
        openai_write_ids(b, "token_ids", &c->ids);
        buf_clear(&c->ids);
    }
    (void)buf_add_char(b, '}');
    openai_chunk_end(c->answer, false);
}

/* The first chunk of a choice has its role and no text, and it is never the last one. */
static void write_role_once(struct choice *c)
{
    if (c->begun) return;
    c->begun = true;
    delta_begin(c);
    (void)buf_add_str(
        &c->answer->out,
        "\"role\":\"assistant\",\"content\":\"\"},\"logprobs\":null,\"finish_reason\":null}");
    openai_chunk_end(c->answer, true);
}

static fathom_err flush(struct choice *c)
{
    struct buf *b = &c->answer->out;
    if (c->part == PART_NONE) return FATHOM_OK;
    write_role_once(c);
    delta_begin(c);
    switch (c->part) {
    case PART_REASONING:
        (void)buf_add_str(b, "\"reasoning_content\":");
        answer_write_text(b, &c->reasoning);
        (void)buf_add_str(b, ",\"reasoning\":");
        answer_write_text(b, &c->reasoning);
        buf_clear(&c->reasoning);
        break;
    case PART_CONTENT:
        (void)buf_add_str(b, "\"content\":");
        answer_write_text(b, &c->content);
        buf_clear(&c->content);
        break;
    case PART_ARGUMENTS:
        (void)buf_printf(b,
                         "\"tool_calls\":[{\"index\":%u,\"function\":{\"arguments\":", c->i_call);
        answer_write_text(b, &c->arguments);
        (void)buf_add_str(b, "}}]");
        buf_clear(&c->arguments);
        break;
    case PART_NONE: break;
    }
    delta_end(c);
    c->part = PART_NONE;
    return buf_status(b);
}

static fathom_err write_call_begin(struct choice *c, const char *name, size_t n)
{
    struct buf *b = &c->answer->out;
    write_role_once(c);
    delta_begin(c);
    (void)buf_printf(b, "\"tool_calls\":[{\"index\":%u,", c->i_call);
    write_call_id(b, c);
    (void)buf_add_str(b, ",\"type\":\"function\",\"function\":{\"name\":");
    (void)json_write_string(b, name, n);
    (void)buf_add_str(b, ",\"arguments\":\"\"}}]");
    delta_end(c);
    return buf_status(b);
}

static fathom_err end(struct choice *c)
{
    if (!answer_is_streamed(c->answer)) return FATHOM_OK;
    write_role_once(c);
    delta_begin(c);
    delta_end(c);
    return buf_status(&c->answer->out);
}

/* ---- what the parser tells ----------------------------------------------------------------- */

/* Gathers text of one kind, once pending text of another kind has been sent. */
static fathom_err gather(struct choice *c, enum answer_part part, struct buf *to,
                         const struct chat_event *e)
{
    if (e->n == 0) return FATHOM_OK;
    if (answer_is_streamed(c->answer) && c->part != part) TRY(flush(c));
    c->part = part;
    return buf_add(to, e->text, e->n);
}

static fathom_err begin_call(struct choice *c, const struct chat_event *e)
{
    if (answer_is_streamed(c->answer)) {
        TRY(flush(c));
        c->i_call = e->i_call;
        return write_call_begin(c, e->text, e->n);
    }
    c->i_call = e->i_call;
    buf_clear(&c->arguments);
    if (c->calls.len) (void)buf_add_char(&c->calls, ',');
    (void)buf_add_char(&c->calls, '{');
    write_call_id(&c->calls, c);
    (void)buf_add_str(&c->calls, ",\"type\":\"function\",\"function\":{\"name\":");
    return json_write_string(&c->calls, e->text, e->n);
}

static fathom_err end_call(struct choice *c)
{
    if (answer_is_streamed(c->answer)) return flush(c);
    (void)buf_add_str(&c->calls, ",\"arguments\":");
    answer_write_text(&c->calls, &c->arguments);
    return buf_add_str(&c->calls, "}}");
}

static fathom_err take(struct choice *c, const struct chat_event *e)
{
    switch (e->kind) {
    case CHAT_EVENT_REASONING: return gather(c, PART_REASONING, &c->reasoning, e);
    case CHAT_EVENT_CONTENT: return gather(c, PART_CONTENT, &c->content, e);
    case CHAT_EVENT_TOOL_ARGS: return gather(c, PART_ARGUMENTS, &c->arguments, e);
    case CHAT_EVENT_TOOL_BEGIN: return begin_call(c, e);
    case CHAT_EVENT_TOOL_END: return end_call(c);
    }
    return FATHOM_OK;
}

/* ---- whole body ---------------------------------------------------------------------------- */

static void write_text_or_null(struct buf *b, const struct buf *text)
{
    if (text->len) {
        answer_write_text(b, text);
    } else {
        (void)buf_add_str(b, "null");
    }
}

/* content is null only beside tool calls: clients take it for a string otherwise. */
static void write_message(struct buf *b, const struct choice *c)
{
    (void)buf_add_str(b, "{\"role\":\"assistant\",\"content\":");
    if (c->calls.len) {
        write_text_or_null(b, &c->content);
    } else {
        answer_write_text(b, &c->content);
    }
    (void)buf_add_str(b, ",\"refusal\":null,\"reasoning_content\":");
    write_text_or_null(b, &c->reasoning);
    (void)buf_add_str(b, ",\"reasoning\":");
    write_text_or_null(b, &c->reasoning);
    if (c->calls.len) {
        (void)buf_add_str(b, ",\"tool_calls\":[");
        (void)buf_add(b, buf_str(&c->calls), c->calls.len);
        (void)buf_add_char(b, ']');
    }
    (void)buf_add_char(b, '}');
}

static void write_choice(struct buf *b, struct choice *c)
{
    (void)buf_printf(b, "{\"index\":%u,\"message\":", c->index);
    write_message(b, c);
    (void)buf_add_str(b, ",\"logprobs\":");
    logprob_write_chat(b, &c->logprobs);
    (void)buf_add_char(b, ',');
    openai_write_finish(b, c);
    if (c->answer->setup.request->return_token_ids) openai_write_ids(b, "token_ids", &c->ids);
    (void)buf_add_char(b, '}');
}

static fathom_err open(struct answer *a)
{
    return openai_chunk_open(a, "chat.completion.chunk");
}

static fathom_err close(struct answer *a)
{
    return openai_close(a, "chat.completion", write_choice);
}

const struct answer_form answer_form_chat = {
    .id_prefix = "chatcmpl-",
    .open = open,
    .take = take,
    .flush = flush,
    .end = end,
    .close = close,
    .fail = openai_fail,
    .keep_alive = openai_keep_alive,
};
