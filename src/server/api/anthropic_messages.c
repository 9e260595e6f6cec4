/* anthropic_messages.c - the forms of /v1/messages and /v1/messages/count_tokens
 *
 * An answer is a list of blocks: thinking, text, tool_use. One is open at a time:
 *
 *   NONE --text of some kind--> OPEN --another kind, the end of a call or of the answer--> NONE
 *
 * Streamed, message_start comes with the first block or the first ping, whichever is earlier.
 * message_delta comes with the counts, once the engine has ended the request.
 *
 * Invariants: `part` is PART_NONE while no block is open, and `text` is empty then. Streamed,
 * `text` holds what the next delta will have; otherwise, all text of the open block.
 */
#include <string.h>

#include "base/fail.h"
#include "base/json.h"
#include "base/mem.h"
#include "base/rng.h"
#include "server/api/answer.h"
#include "server/api/sse.h"

struct blocks {
    struct buf done; /* whole: JSON of the closed blocks, comma between */
    struct buf name; /* of the open call */
    struct buf text;
    enum answer_part part;
    uint32_t n; /* blocks closed: the index of the open one */
    uint64_t signature;
    bool begun; /* message_start has been written */
};

static struct blocks *blocks_of(const struct answer *a)
{
    return a->own;
}

static fathom_err open_blocks(struct answer *a)
{
    a->own = mem_calloc(1, sizeof(struct blocks));
    return a->own ? FATHOM_OK : FATHOM_ENOMEM;
}

static void free_blocks(struct answer *a)
{
    struct blocks *k = blocks_of(a);
    if (!k) return;
    buf_free(&k->done);
    buf_free(&k->name);
    buf_free(&k->text);
    mem_free(k);
    a->own = NULL;
}

static size_t block_bytes(const struct answer *a)
{
    const struct blocks *k = blocks_of(a);
    return k->done.cap + k->name.cap + k->text.cap;
}

/* ---- pieces of bodies and events ----------------------------------------------------------- */

/* In Anthropic's counts, input tokens do not include cached ones. */
static void write_usage(struct buf *b, const struct answer *a)
{
    struct answer_usage u = answer_count(a);
    (void)buf_printf(b,
                     "\"usage\":{\"input_tokens\":%llu,\"cache_creation_input_tokens\":0,"
                     "\"cache_read_input_tokens\":%llu,\"output_tokens\":%llu,"
                     "\"output_tokens_details\":{\"thinking_tokens\":%llu}}",
                     (unsigned long long)(u.n_prompt - u.n_cached), (unsigned long long)u.n_cached,
                     (unsigned long long)u.n_output, (unsigned long long)u.n_reasoning);
}

static const char *stop_reason(const struct choice *c)
{
    if (strcmp(c->finish_reason, "length") == 0) return "max_tokens";
    if (chat_parser_n_call(c->parser) > 0) return "tool_use";
    return c->text.hit >= 0 ? "stop_sequence" : "end_turn";
}

static void write_stop(struct buf *b, const struct choice *c)
{
    const char *reason = stop_reason(c);
    (void)buf_printf(b, "\"stop_reason\":\"%s\",\"stop_sequence\":", reason);
    if (strcmp(reason, "stop_sequence") == 0) {
        size_t n;
        const char *text = stop_set_text(c->text.o.stops, (size_t)c->text.hit, &n);
        (void)json_write_string(b, text, n);
    } else {
        (void)buf_add_str(b, "null");
    }
}

/* Writes the message object; whole: with how it ended, else as it is when it begins. */
static void write_message(struct buf *b, const struct answer *a, bool whole)
{
    const struct blocks *k = blocks_of(a);
    (void)buf_printf(
        b, "{\"id\":\"%s\",\"type\":\"message\",\"role\":\"assistant\",\"model\":", a->id);
    (void)json_write_string(b, a->setup.model, strlen(a->setup.model));
    (void)buf_add_str(b, ",\"content\":[");
    (void)buf_add(b, buf_str(&k->done), k->done.len);
    (void)buf_add_str(b, "],");
    if (whole)
        write_stop(b, &a->choices[0]);
    else
        (void)buf_add_str(b, "\"stop_reason\":null,\"stop_sequence\":null");
    (void)buf_add_char(b, ',');
    write_usage(b, a);
    (void)buf_add_char(b, '}');
}

/* The signature is a checksum of the text; nothing checks it when it comes back. */
static void write_signature(struct buf *b, const struct blocks *k)
{
    (void)buf_printf(b, "\"%016llx\"", (unsigned long long)k->signature);
}

static void sign(struct blocks *k, const struct chat_event *e)
{
    for (size_t i = 0; i < e->n; i++) {
        k->signature = rng_hash(k->signature ^ (unsigned char)e->text[i]);
    }
}

static void event_begin(struct answer *a, const char *name)
{
    sse_begin_named(&a->out, name);
    (void)buf_printf(&a->out, "{\"type\":\"%s\"", name);
}

static void event_end(struct answer *a)
{
    (void)buf_add_char(&a->out, '}');
    sse_end(&a->out);
}

static void start_once(struct answer *a)
{
    struct blocks *k = blocks_of(a);
    if (k->begun) return;
    k->begun = true;
    event_begin(a, "message_start");
    (void)buf_add_str(&a->out, ",\"message\":");
    write_message(&a->out, a, false);
    event_end(a);
}

/* ---- blocks -------------------------------------------------------------------------------- */

/* Writes a block's object; whole: with its text, else as it is when it begins. */
static void write_block(struct buf *b, const struct choice *c, bool whole)
{
    static const struct buf nothing = {0};
    const struct blocks *k = blocks_of(c->answer);
    const struct buf *text = whole ? &k->text : &nothing;
    switch (k->part) {
    case PART_REASONING:
        (void)buf_add_str(b, "{\"type\":\"thinking\",\"thinking\":");
        answer_write_text(b, text);
        (void)buf_add_str(b, ",\"signature\":");
        if (whole)
            write_signature(b, k);
        else
            (void)buf_add_str(b, "\"\"");
        break;
    case PART_CONTENT:
        (void)buf_add_str(b, "{\"type\":\"text\",\"text\":");
        answer_write_text(b, text);
        break;
    case PART_ARGUMENTS:
        (void)buf_add_str(b, "{\"type\":\"tool_use\",\"id\":");
        answer_write_id(b, c, "toolu_", c->i_call);
        (void)buf_add_str(b, ",\"name\":");
        answer_write_text(b, &k->name);
        (void)buf_add_str(b, ",\"input\":");
        (void)(whole ? buf_add(b, buf_str(text), text->len) : buf_add_str(b, "{}"));
        break;
    case PART_NONE: return;
    }
    (void)buf_add_char(b, '}');
}

static void write_delta(struct answer *a, const char *type, const char *key)
{
    struct blocks *k = blocks_of(a);
    event_begin(a, "content_block_delta");
    (void)buf_printf(&a->out, ",\"index\":%u,\"delta\":{\"type\":\"%s\",\"%s\":", k->n, type, key);
    if (strcmp(key, "signature") == 0)
        write_signature(&a->out, k);
    else
        answer_write_text(&a->out, &k->text);
    (void)buf_add_char(&a->out, '}');
    event_end(a);
}

static fathom_err flush(struct choice *c)
{
    struct answer *a = c->answer;
    struct blocks *k = blocks_of(a);
    if (k->text.len == 0) return FATHOM_OK;
    switch (k->part) {
    case PART_REASONING: write_delta(a, "thinking_delta", "thinking"); break;
    case PART_CONTENT: write_delta(a, "text_delta", "text"); break;
    case PART_ARGUMENTS: write_delta(a, "input_json_delta", "partial_json"); break;
    case PART_NONE: break;
    }
    buf_clear(&k->text);
    return buf_status(&a->out);
}

/* If the model did not write the arguments as a JSON object, wraps them into one, so that the body
 * is valid JSON. */
static fathom_err make_input_valid(struct blocks *k)
{
    json_t *input;
    fathom_err err = json_read(buf_str(&k->text), k->text.len, "arguments", &input, NULL);
    if (err == FATHOM_ENOMEM) return err;
    bool ok = !err && json_is_plain_object(input);
    if (!err) json_decref(input);
    if (ok) return FATHOM_OK;
    struct buf wrapped = {0};
    (void)buf_add_str(&wrapped, "{\"arguments\":");
    answer_write_text(&wrapped, &k->text);
    (void)buf_add_char(&wrapped, '}');
    buf_free(&k->text);
    k->text = wrapped;
    return buf_status(&k->text);
}

static fathom_err close_block(struct choice *c)
{
    struct answer *a = c->answer;
    struct blocks *k = blocks_of(a);
    if (k->part == PART_NONE) return FATHOM_OK;
    if (answer_is_streamed(a)) {
        TRY(flush(c));
        if (k->part == PART_REASONING) write_delta(a, "signature_delta", "signature");
        event_begin(a, "content_block_stop");
        (void)buf_printf(&a->out, ",\"index\":%u", k->n);
        event_end(a);
    } else {
        if (k->part == PART_ARGUMENTS) TRY(make_input_valid(k));
        if (k->n) (void)buf_add_char(&k->done, ',');
        write_block(&k->done, c, true);
        TRY(buf_status(&k->done));
    }
    k->part = PART_NONE;
    buf_clear(&k->text);
    k->n++;
    return buf_status(&a->out);
}

static fathom_err open_block(struct choice *c, enum answer_part part)
{
    struct answer *a = c->answer;
    struct blocks *k = blocks_of(a);
    if (k->part == part) return FATHOM_OK;
    TRY(close_block(c));
    k->part = part;
    if (!answer_is_streamed(a)) return FATHOM_OK;
    start_once(a);
    event_begin(a, "content_block_start");
    (void)buf_printf(&a->out, ",\"index\":%u,\"content_block\":", k->n);
    write_block(&a->out, c, false);
    event_end(a);
    return buf_status(&a->out);
}

static fathom_err add_text(struct choice *c, enum answer_part part, const struct chat_event *e)
{
    struct blocks *k = blocks_of(c->answer);
    if (e->n == 0) return FATHOM_OK;
    TRY(open_block(c, part));
    if (part == PART_REASONING) {
        sign(k, e);
        if (c->answer->setup.request->hide_thinking) return FATHOM_OK;
    }
    return buf_add(&k->text, e->text, e->n);
}

static fathom_err begin_call(struct choice *c, const struct chat_event *e)
{
    struct blocks *k = blocks_of(c->answer);
    TRY(close_block(c));
    c->i_call = e->i_call;
    buf_clear(&k->name);
    TRY(buf_add(&k->name, e->text, e->n));
    return open_block(c, PART_ARGUMENTS);
}

static fathom_err take(struct choice *c, const struct chat_event *e)
{
    switch (e->kind) {
    case CHAT_EVENT_REASONING: return add_text(c, PART_REASONING, e);
    case CHAT_EVENT_CONTENT: return add_text(c, PART_CONTENT, e);
    case CHAT_EVENT_TOOL_BEGIN: return begin_call(c, e);
    case CHAT_EVENT_TOOL_ARGS: return add_text(c, PART_ARGUMENTS, e);
    case CHAT_EVENT_TOOL_END: return close_block(c);
    }
    return FATHOM_OK;
}

/* ---- ends ---------------------------------------------------------------------------------- */

static fathom_err close_message(struct answer *a)
{
    if (!answer_is_streamed(a)) {
        write_message(&a->out, a, true);
        return buf_status(&a->out);
    }
    start_once(a);
    event_begin(a, "message_delta");
    (void)buf_add_str(&a->out, ",\"delta\":{");
    write_stop(&a->out, &a->choices[0]);
    (void)buf_add_str(&a->out, "},");
    write_usage(&a->out, a);
    event_end(a);
    event_begin(a, "message_stop");
    event_end(a);
    return buf_status(&a->out);
}

static fathom_err fail(struct answer *a, const struct api_error *e)
{
    sse_begin_named(&a->out, "error");
    (void)api_error_write_anthropic(&a->out, e);
    sse_end(&a->out);
    return buf_status(&a->out);
}

static fathom_err ping(struct answer *a)
{
    start_once(a);
    event_begin(a, "ping");
    event_end(a);
    return buf_status(&a->out);
}

const struct answer_form answer_form_messages = {
    .id_prefix = "msg_",
    .open = open_blocks,
    .free = free_blocks,
    .bytes = block_bytes,
    .take = take,
    .flush = flush,
    .end = close_block,
    .close = close_message,
    .fail = fail,
    .keep_alive = ping,
};

/* ---- count --------------------------------------------------------------------------------- */

static fathom_err close_count(struct answer *a)
{
    return buf_printf(&a->out, "{\"input_tokens\":%llu}",
                      (unsigned long long)answer_count(a).n_prompt);
}

const struct answer_form answer_form_count = {.id_prefix = "count_", .close = close_count};
