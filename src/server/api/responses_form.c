/* responses_form.c - the form of /v1/responses
 *
 * An answer is a list of items: reasoning, message, function_call. One is open at a time:
 *
 *   NONE --text of some kind--> OPEN --another kind, the end of a call or of the answer--> NONE
 *
 * Streamed, response.created comes once the engine has taken the request. response.completed (or
 * .incomplete) comes with the counts, once the engine has ended it. Every event has the next
 * sequence number.
 *
 * Invariants: `open` is KIND_NONE while no item is open, and `text` and `logprobs` are empty then.
 * The first n_told bytes of text, and n_logprob_told of logprobs, have been sent as deltas.
 */
#include "server/api/responses_form.h"

#include <string.h>

#include "base/fail.h"
#include "base/json.h"
#include "base/mem.h"
#include "server/api/openai_chunk.h"
#include "server/api/sse.h"

enum kind_id { KIND_NONE, KIND_REASONING, KIND_SUMMARY, KIND_MESSAGE, KIND_CALL };

/* What items of a kind are called. */
struct kind {
    const char *id_prefix;
    const char *part_event; /* + .added, .done; NULL: an item without parts */
    const char *text_event; /* + .delta, .done */
    const char *index;      /* of the part, in events */
    const char *part_type;
    const char *text_member; /* of text_event.done */
};

static const struct kind kinds[] = {
    [KIND_NONE] = {0},
    [KIND_REASONING] = {"rs_", "response.content_part", "response.reasoning_text", "content_index",
                        "reasoning_text", "text"},
    [KIND_SUMMARY] = {"rs_", "response.reasoning_summary_part", "response.reasoning_summary_text",
                      "summary_index", "summary_text", "text"},
    [KIND_MESSAGE] = {"msg_", "response.content_part", "response.output_text", "content_index",
                      "output_text", "text"},
    [KIND_CALL] = {"fc_", NULL, "response.function_call_arguments", NULL, NULL, "arguments"},
};

struct writer {
    struct buf items; /* JSON of the closed items, comma between */
    uint32_t n_item;  /* closed: the index of the open one */
    enum kind_id open;
    struct buf name; /* of the open call */
    struct buf text; /* of the open item */
    size_t n_told;
    struct buf logprobs; /* of the open message: JSON of its tokens, comma between */
    size_t n_logprob_told;
    uint64_t n_event;
    bool begun; /* response.created has been written */
};

static struct writer *writer_of(const struct answer *a)
{
    return a->own;
}

static fathom_err open_writer(struct answer *a)
{
    a->own = mem_calloc(1, sizeof(struct writer));
    return a->own ? FATHOM_OK : FATHOM_ENOMEM;
}

static void free_writer(struct answer *a)
{
    struct writer *w = writer_of(a);
    if (!w) return;
    buf_free(&w->items);
    buf_free(&w->name);
    buf_free(&w->text);
    buf_free(&w->logprobs);
    mem_free(w);
    a->own = NULL;
}

static size_t writer_bytes(const struct answer *a)
{
    const struct writer *w = writer_of(a);
    return w->items.cap + w->name.cap + w->text.cap + w->logprobs.cap;
}

/* ---- the response object ------------------------------------------------------------------- */

static void write_usage(struct buf *b, const struct answer *a)
{
    struct answer_usage u = answer_count(a);
    (void)buf_printf(b,
                     "{\"input_tokens\":%llu,\"input_tokens_details\":{\"cached_tokens\":%llu,"
                     "\"cache_write_tokens\":0},\"output_tokens\":%llu,\"output_tokens_details\":"
                     "{\"reasoning_tokens\":%llu},\"total_tokens\":%llu}",
                     (unsigned long long)u.n_prompt, (unsigned long long)u.n_cached,
                     (unsigned long long)u.n_output, (unsigned long long)u.n_reasoning,
                     (unsigned long long)(u.n_prompt + u.n_output));
}

/* OpenAI's clients know a closed list of codes. */
static void write_error(struct buf *b, const struct api_error *e)
{
    (void)buf_printf(b, "{\"code\":\"%s\",\"message\":",
                     e->status == 429 ? "rate_limit_exceeded" : "server_error");
    api_error_write_message(b, e);
    (void)buf_add_char(b, '}');
}

fathom_err responses_write(struct buf *b, const struct answer *a, enum responses_status status,
                           const struct api_error *e, struct responses_part *part)
{
    static const char *const names[] = {"in_progress", "completed", "incomplete", "failed",
                                        "cancelled"};
    const struct writer *w = writer_of(a);
    const struct api_request *r = a->setup.request;
    (void)buf_printf(b,
                     "{\"id\":\"%s\",\"object\":\"response\",\"created_at\":%lld,\"status\":\"%s\","
                     "\"background\":false,\"error\":",
                     a->id, (long long)a->setup.created, names[status]);
    if (e)
        write_error(b, e);
    else
        (void)buf_add_str(b, "null");
    (void)buf_printf(b, ",\"incomplete_details\":%s,\"model\":",
                     status == RESPONSES_INCOMPLETE ? "{\"reason\":\"max_output_tokens\"}"
                                                    : "null");
    (void)json_write_string(b, a->setup.model, strlen(a->setup.model));
    (void)buf_add_str(b, ",\"output\":");
    if (part) part->output_at = b->len;
    (void)buf_add_char(b, '[');
    (void)buf_add(b, buf_str(&w->items), w->items.len);
    (void)buf_add_char(b, ']');
    if (part) part->n_output = b->len - part->output_at;
    (void)buf_printf(
        b, ",\"store\":%s,\"temperature\":%.7g,\"top_p\":%.7g,\"service_tier\":\"default\"",
        r->responses->store ? "true" : "false", (double)r->sampling.temperature,
        (double)r->sampling.top_p);
    (void)buf_add(b, buf_str(&r->responses->echo), r->responses->echo.len);
    (void)buf_add_str(b, ",\"usage\":");
    if (status == RESPONSES_IN_PROGRESS)
        (void)buf_add_str(b, "null");
    else
        write_usage(b, a);
    (void)buf_add_char(b, '}');
    return buf_status(b);
}

enum responses_status responses_status_of(const struct answer *a)
{
    const char *reason = a->choices[0].finish_reason;
    return strcmp(reason, "length") == 0 ? RESPONSES_INCOMPLETE : RESPONSES_COMPLETED;
}

/* ---- events -------------------------------------------------------------------------------- */

/* name and tail together are the event's type. */
static void event_begin(struct answer *a, const char *name, const char *tail)
{
    struct writer *w = writer_of(a);
    (void)buf_printf(&a->out, "event: %s%s\n", name, tail);
    sse_begin(&a->out);
    (void)buf_printf(&a->out, "{\"type\":\"%s%s\",\"sequence_number\":%llu", name, tail,
                     (unsigned long long)w->n_event++);
}

static void event_end(struct answer *a)
{
    (void)buf_add_char(&a->out, '}');
    sse_end(&a->out);
}

static fathom_err write_response_event(struct answer *a, const char *tail,
                                       enum responses_status status, const struct api_error *e)
{
    event_begin(a, "response.", tail);
    (void)buf_add_str(&a->out, ",\"response\":");
    TRY(responses_write(&a->out, a, status, e, NULL));
    event_end(a);
    return buf_status(&a->out);
}

static fathom_err start_once(struct answer *a)
{
    struct writer *w = writer_of(a);
    if (w->begun) return FATHOM_OK;
    w->begun = true;
    TRY(write_response_event(a, "created", RESPONSES_IN_PROGRESS, NULL));
    return write_response_event(a, "in_progress", RESPONSES_IN_PROGRESS, NULL);
}

static void write_item_id(struct buf *b, const struct choice *c)
{
    const struct writer *w = writer_of(c->answer);
    answer_write_id(b, c, kinds[w->open].id_prefix, w->n_item);
}

/* Begins an event about the open item, or about its part. */
static void item_event_begin(struct choice *c, const char *name, const char *tail)
{
    struct answer *a = c->answer;
    const struct writer *w = writer_of(a);
    event_begin(a, name, tail);
    (void)buf_add_str(&a->out, ",\"item_id\":");
    write_item_id(&a->out, c);
    (void)buf_printf(&a->out, ",\"output_index\":%u", w->n_item);
    if (kinds[w->open].index) (void)buf_printf(&a->out, ",\"%s\":0", kinds[w->open].index);
}

/* ---- items --------------------------------------------------------------------------------- */

static void write_logprobs(struct buf *b, const struct writer *w, size_t from)
{
    const char *text = buf_str(&w->logprobs);
    if (from && from < w->logprobs.len) from++; /* the comma */
    (void)buf_add_str(b, ",\"logprobs\":[");
    (void)buf_add(b, text + from, w->logprobs.len - from);
    (void)buf_add_char(b, ']');
}

/* Writes the part of the open item; whole: with its text, else as it is when it begins. */
static void write_part(struct buf *b, const struct writer *w, bool whole)
{
    static const struct buf nothing = {0};
    (void)buf_printf(b, "{\"type\":\"%s\",\"text\":", kinds[w->open].part_type);
    answer_write_text(b, whole ? &w->text : &nothing);
    if (w->open == KIND_MESSAGE) {
        (void)buf_add_str(b, ",\"annotations\":[]");
        write_logprobs(b, w, whole ? 0 : w->logprobs.len);
    }
    (void)buf_add_char(b, '}');
}

static void write_parts(struct buf *b, const struct writer *w, const char *member, bool any)
{
    (void)buf_printf(b, ",\"%s\":[", member);
    if (any) write_part(b, w, true);
    (void)buf_add_char(b, ']');
}

/* The tool that the open call names, if it is one of a namespace; else NULL. */
static const json_t *space_tool(const struct choice *c)
{
    const json_t *tools = c->answer->setup.request->tools;
    const char *name = buf_str(&writer_of(c->answer)->name);
    for (size_t i = 0; i < json_array_size(tools); i++) {
        const json_t *tool = json_array_get(tools, i);
        const json_t *own = json_object_get(json_object_get(tool, "function"), "name");
        if (!json_object_get(tool, "namespace") || !json_is_string(own)) continue;
        if (strcmp(json_string_value(own), name) == 0) return tool;
    }
    return NULL;
}

/* "name", and "namespace" if it has one, as the request spelt them. */
static void write_call_name(struct buf *b, const struct choice *c)
{
    const json_t *tool = space_tool(c);
    (void)buf_add_str(b, ",\"name\":");
    if (!tool) {
        answer_write_text(b, &writer_of(c->answer)->name);
        return;
    }
    (void)json_write(b, json_object_get(tool, "name"));
    (void)buf_add_str(b, ",\"namespace\":");
    (void)json_write(b, json_object_get(tool, "namespace"));
}

static void write_item(struct buf *b, const struct choice *c, const char *status, bool whole)
{
    static const struct buf nothing = {0};
    static const char *const types[] = {"", "reasoning", "reasoning", "message", "function_call"};
    const struct writer *w = writer_of(c->answer);
    (void)buf_add_str(b, "{\"id\":");
    write_item_id(b, c);
    (void)buf_printf(b, ",\"type\":\"%s\",\"status\":\"%s\"", types[w->open], status);
    switch (w->open) {
    case KIND_REASONING:
    case KIND_SUMMARY:
        write_parts(b, w, "summary", whole && w->open == KIND_SUMMARY);
        if (w->open == KIND_REASONING) write_parts(b, w, "content", whole);
        break;
    case KIND_MESSAGE:
        (void)buf_add_str(b, ",\"role\":\"assistant\"");
        write_parts(b, w, "content", whole);
        break;
    case KIND_CALL:
        (void)buf_add_str(b, ",\"call_id\":");
        answer_write_id(b, c, "call_", c->i_call);
        write_call_name(b, c);
        (void)buf_add_str(b, ",\"arguments\":");
        answer_write_text(b, whole ? &w->text : &nothing);
        break;
    case KIND_NONE: break;
    }
    (void)buf_add_char(b, '}');
}

/* ---- deltas -------------------------------------------------------------------------------- */

static fathom_err flush(struct choice *c)
{
    struct answer *a = c->answer;
    struct writer *w = writer_of(a);
    if (w->text.len == w->n_told && w->logprobs.len == w->n_logprob_told) return FATHOM_OK;
    item_event_begin(c, kinds[w->open].text_event, ".delta");
    (void)buf_add_str(&a->out, ",\"delta\":");
    (void)json_write_string(&a->out, buf_str(&w->text) + w->n_told, w->text.len - w->n_told);
    if (w->open == KIND_MESSAGE) write_logprobs(&a->out, w, w->n_logprob_told);
    event_end(a);
    w->n_told = w->text.len;
    w->n_logprob_told = w->logprobs.len;
    return buf_status(&a->out);
}

static void write_part_event(struct choice *c, const char *tail, bool whole)
{
    struct answer *a = c->answer;
    const struct writer *w = writer_of(a);
    if (!kinds[w->open].part_event) return;
    item_event_begin(c, kinds[w->open].part_event, tail);
    (void)buf_add_str(&a->out, ",\"part\":");
    write_part(&a->out, w, whole);
    event_end(a);
}

static void write_item_event(struct choice *c, const char *tail, const char *status, bool whole)
{
    struct answer *a = c->answer;
    event_begin(a, "response.output_item", tail);
    (void)buf_printf(&a->out, ",\"output_index\":%u,\"item\":", writer_of(a)->n_item);
    write_item(&a->out, c, status, whole);
    event_end(a);
}

static fathom_err write_item_end(struct choice *c, const char *status)
{
    struct answer *a = c->answer;
    const struct writer *w = writer_of(a);
    const struct kind *k = &kinds[w->open];
    TRY(flush(c));
    item_event_begin(c, k->text_event, ".done");
    (void)buf_printf(&a->out, ",\"%s\":", k->text_member);
    answer_write_text(&a->out, &w->text);
    if (w->open == KIND_MESSAGE) write_logprobs(&a->out, w, 0);
    if (w->open == KIND_CALL) write_call_name(&a->out, c);
    event_end(a);
    write_part_event(c, ".done", true);
    write_item_event(c, ".done", status, true);
    return buf_status(&a->out);
}

static fathom_err close_item(struct choice *c, const char *status)
{
    struct answer *a = c->answer;
    struct writer *w = writer_of(a);
    if (w->open == KIND_NONE) return FATHOM_OK;
    if (answer_is_streamed(a)) TRY(write_item_end(c, status));
    if (w->n_item) (void)buf_add_char(&w->items, ',');
    write_item(&w->items, c, status, true);
    w->n_item++;
    w->open = KIND_NONE;
    w->n_told = w->n_logprob_told = 0;
    buf_clear(&w->text);
    buf_clear(&w->logprobs);
    return buf_status(&w->items);
}

static fathom_err open_item(struct choice *c, enum kind_id kind)
{
    struct answer *a = c->answer;
    struct writer *w = writer_of(a);
    if (w->open == kind) return FATHOM_OK;
    TRY(close_item(c, "completed"));
    w->open = kind;
    if (!answer_is_streamed(a)) return FATHOM_OK;
    TRY(start_once(a));
    write_item_event(c, ".added", "in_progress", false);
    write_part_event(c, ".added", false);
    return buf_status(&a->out);
}

/* ---- what is said -------------------------------------------------------------------------- */

/* Log-probabilities of tokens since the last text belong to the text that comes now. */
static fathom_err take_logprobs(struct choice *c, enum kind_id kind)
{
    struct writer *w = writer_of(c->answer);
    struct logprob_list *l = &c->logprobs;
    fathom_err err = FATHOM_OK;
    if (kind == KIND_MESSAGE && l->n) {
        if (w->logprobs.len) (void)buf_add_char(&w->logprobs, ',');
        err = buf_add(&w->logprobs, buf_str(&l->tokens), l->tokens.len);
    }
    logprob_list_clear(l);
    return err;
}

static fathom_err add_text(struct choice *c, enum kind_id kind, const struct chat_event *e)
{
    struct writer *w = writer_of(c->answer);
    if (e->n == 0) return FATHOM_OK;
    TRY(open_item(c, kind));
    TRY(take_logprobs(c, kind));
    return buf_add(&w->text, e->text, e->n);
}

static fathom_err begin_call(struct choice *c, const struct chat_event *e)
{
    struct writer *w = writer_of(c->answer);
    TRY(close_item(c, "completed"));
    c->i_call = e->i_call;
    buf_clear(&w->name);
    TRY(buf_add(&w->name, e->text, e->n));
    return open_item(c, KIND_CALL);
}

static fathom_err take(struct choice *c, const struct chat_event *e)
{
    bool summary = c->answer->setup.request->responses->summary;
    switch (e->kind) {
    case CHAT_EVENT_REASONING: return add_text(c, summary ? KIND_SUMMARY : KIND_REASONING, e);
    case CHAT_EVENT_CONTENT: return add_text(c, KIND_MESSAGE, e);
    case CHAT_EVENT_TOOL_BEGIN: return begin_call(c, e);
    case CHAT_EVENT_TOOL_ARGS: return add_text(c, KIND_CALL, e);
    case CHAT_EVENT_TOOL_END: return close_item(c, "completed");
    }
    return FATHOM_OK;
}

/* ---- ends ---------------------------------------------------------------------------------- */

/* The token that ends the answer has no text, so its log-probability has not been taken yet: it
 * belongs to the message that it ends. */
static fathom_err end(struct choice *c)
{
    bool cut = responses_status_of(c->answer) == RESPONSES_INCOMPLETE;
    TRY(take_logprobs(c, writer_of(c->answer)->open));
    return close_item(c, cut ? "incomplete" : "completed");
}

fathom_err responses_end_item(struct answer *a)
{
    return close_item(&a->choices[0], "incomplete");
}

static fathom_err close(struct answer *a)
{
    enum responses_status status = responses_status_of(a);
    if (!answer_is_streamed(a)) return responses_write(&a->out, a, status, NULL, NULL);
    TRY(start_once(a));
    return write_response_event(a, status == RESPONSES_COMPLETED ? "completed" : "incomplete",
                                status, NULL);
}

static fathom_err fail(struct answer *a, const struct api_error *e)
{
    TRY(start_once(a));
    TRY(responses_end_item(a));
    return write_response_event(a, "failed", RESPONSES_FAILED, e);
}

const struct answer_form answer_form_responses = {
    .id_prefix = "resp_",
    .open = open_writer,
    .free = free_writer,
    .bytes = writer_bytes,
    .start = start_once,
    .take = take,
    .flush = flush,
    .end = end,
    .close = close,
    .fail = fail,
    .keep_alive = openai_keep_alive,
};

/* ---- count --------------------------------------------------------------------------------- */

static fathom_err close_count(struct answer *a)
{
    return buf_printf(&a->out, "{\"object\":\"response.input_tokens\",\"input_tokens\":%llu}",
                      (unsigned long long)answer_count(a).n_prompt);
}

const struct answer_form answer_form_input_tokens = {.id_prefix = "count_", .close = close_count};
