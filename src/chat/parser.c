/* parser.c - the answer parser: window, events, reasoning, text between calls
 *
 *   STAGE_START --<think> or thinking--> STAGE_REASONING --</think>--> STAGE_BODY
 *        `------------otherwise---------------------------------------------^
 *
 * Body, for both markups (other edges: parser_json.c, parser_v32.c):
 *
 *   TEXT --block marker--> OPEN --call marker--> [call] --end of call--> TEXT, after_call
 *     |                      `--anything else--> TEXT
 *     `--call marker--> [call]
 *
 * A part looks at whole tokens at `pos` and either takes one, or waits for more text, or leaves.
 * Everything it decides depends on bytes that it has seen, never on how much text happens to be
 * there: that is why events joined do not depend on how the stream was cut.
 *
 * Invariants (parser_check): start <= pos <= window.len; in PART_TEXT start == pos; a call is open
 * exactly in the parts of a call after its name; what is held between two pushes is bounded.
 */
#include "chat/parser_int.h"

#include <string.h>

#include "base/assert.h"
#include "base/json.h"
#include "base/mem.h"
#include "base/utf8.h"

enum { HELD_MAX = PARSER_VALUE_MAX + 4096 };

/* ---- window ----------------------------------------------------------------------------- */

enum look parser_look(const struct chat_parser *p, size_t at, const char *literal)
{
    size_t n = strlen(literal);
    size_t have = p->window.len - at;
    if (memcmp(parser_at(p, at), literal, have < n ? have : n) != 0) return LOOK_NO;
    return have < n ? LOOK_MORE : LOOK_YES;
}

enum look parser_skip_space(const struct chat_parser *p, size_t *at)
{
    size_t from = *at;
    while (*at < p->window.len && memchr(" \n\t\r", *parser_at(p, *at), 4)) {
        if (++*at - from > PARSER_SPACE_MAX) return LOOK_NO;
    }
    return *at < p->window.len ? LOOK_YES : LOOK_MORE;
}

enum look parser_find(const struct chat_parser *p, size_t *at, const char *set, size_t max)
{
    size_t from = *at;
    for (; *at - from <= max; ++*at) {
        if (*at == p->window.len) return LOOK_MORE;
        if (memchr(set, *parser_at(p, *at), strlen(set))) return LOOK_YES;
    }
    return LOOK_NO;
}

void parser_commit(struct chat_parser *p, size_t at)
{
    ASSERT(at >= p->start && at <= p->window.len);
    p->start = at;
    p->pos = at;
}

/* ---- events ----------------------------------------------------------------------------- */

static void send(struct chat_parser *p, enum chat_event_kind kind, const char *s, size_t n)
{
    if (p->err) return;
    struct chat_event e = {.kind = kind, .text = s, .n = n};
    bool of_call = kind != CHAT_EVENT_REASONING && kind != CHAT_EVENT_CONTENT;
    if (of_call) e.i_call = p->n_call - 1;
    p->err = p->sink(p->sink_arg, &e);
}

/* Sends the text under construction: its whole characters, or with `all` everything. */
static void flush(struct chat_parser *p, bool all)
{
    size_t n = all ? p->out.len : utf8_complete(buf_str(&p->out), p->out.len);
    if (n == 0) return;
    send(p, p->out_kind, p->out.data, n);
    buf_consume(&p->out, n);
}

static void set_kind(struct chat_parser *p, enum chat_event_kind kind)
{
    if (p->out_kind != kind) flush(p, true);
    p->out_kind = kind;
}

static void keep_error(struct chat_parser *p, fathom_err err)
{
    if (!p->err) p->err = err;
}

void parser_put(struct chat_parser *p, enum chat_event_kind kind, const char *s, size_t n)
{
    if (n == 0) return;
    set_kind(p, kind);
    keep_error(p, buf_add(&p->out, s, n));
}

void parser_put_escaped(struct chat_parser *p, const char *s, size_t n)
{
    if (n == 0) return;
    set_kind(p, CHAT_EVENT_TOOL_ARGS);
    size_t before = p->out.len;
    fathom_err err = json_write_string(&p->out, s, n);
    keep_error(p, err);
    if (err) return;
    char *quoted = p->out.data + before;
    size_t inside = p->out.len - before - 2;
    memmove(quoted, quoted + 1, inside);
    p->out.len = before + inside;
    p->out.data[p->out.len] = '\0';
}

void parser_put_close(struct chat_parser *p)
{
    set_kind(p, CHAT_EVENT_TOOL_ARGS);
    args_scan_close(&p->scan, &p->out);
    keep_error(p, buf_status(&p->out));
}

void parser_begin_call(struct chat_parser *p, const char *name, size_t n)
{
    flush(p, true);
    p->n_call++;
    p->in_block = true;
    p->call_open = true;
    send(p, CHAT_EVENT_TOOL_BEGIN, name, n);
}

void parser_end_call(struct chat_parser *p)
{
    flush(p, true);
    p->call_open = false;
    send(p, CHAT_EVENT_TOOL_END, "", 0);
}

/* ---- ways out of a part ----------------------------------------------------------------- */

enum step parser_to_text(struct chat_parser *p, bool after_call)
{
    if (after_call) {
        p->pos = p->start;
    } else {
        parser_put(p, CHAT_EVENT_CONTENT, parser_at(p, p->start), p->pos - p->start);
        p->start = p->pos;
    }
    p->part = PART_TEXT;
    p->after_call = after_call;
    return STEP_AGAIN;
}

bool parser_is_cut(const struct chat_parser *p, size_t at)
{
    return p->window.len - at > strlen("</");
}

enum step parser_drop_rest(struct chat_parser *p)
{
    ASSERT(p->finished);
    parser_commit(p, p->window.len);
    p->part = PART_TEXT;
    return STEP_MORE;
}

/* ---- arguments that are a JSON object --------------------------------------------------- */

static enum step close_args(struct chat_parser *p)
{
    parser_put_close(p);
    parser_end_call(p);
    p->part = PART_AFTER;
    return p->finished ? parser_drop_rest(p) : STEP_AGAIN;
}

enum step parser_args_step(struct chat_parser *p,
                           enum look (*look_end)(const struct chat_parser *p, size_t at))
{
    while (!p->err) {
        size_t used;
        const char *s = parser_at(p, p->pos);
        enum args_stop stop = args_scan_run(&p->scan, s, p->window.len - p->pos, &used);
        parser_put(p, CHAT_EVENT_TOOL_ARGS, s, used);
        parser_commit(p, p->pos + used);
        enum look end = LOOK_NO;
        switch (stop) {
        case ARGS_STOP_MORE: return p->finished ? close_args(p) : STEP_MORE;
        case ARGS_STOP_DONE:
            parser_end_call(p);
            p->part = PART_AFTER;
            return STEP_AGAIN;
        case ARGS_STOP_MARK:
            end = look_end(p, p->pos);
            if (end == LOOK_MORE) return p->finished ? close_args(p) : STEP_MORE;
            break;
        case ARGS_STOP_CONTROL: break;
        }
        s = parser_at(p, p->pos);
        if (end == LOOK_YES) {
            parser_put_close(p);
            parser_end_call(p);
            p->part = PART_AFTER;
            return STEP_AGAIN;
        }
        if (stop == ARGS_STOP_CONTROL) {
            parser_put_escaped(p, s, 1);
        } else {
            parser_put(p, CHAT_EVENT_TOOL_ARGS, s, 1);
        }
        args_scan_skip(&p->scan, *s);
        parser_commit(p, p->pos + 1);
    }
    return STEP_MORE;
}

/* ---- text between calls ----------------------------------------------------------------- */

static enum step take_mark(struct chat_parser *p, enum parser_mark mark, size_t at, size_t end)
{
    p->after_call = false;
    switch (mark) {
    case MARK_OPEN:
        p->pos = end;
        p->part = PART_OPEN;
        break;
    case MARK_CALL: p->markup->begin(p, at, end); break;
    case MARK_CLOSE:
        parser_commit(p, end);
        p->in_block = false;
        p->after_call = true;
        break;
    }
    return STEP_AGAIN;
}

/* White space after a call: dropped before a marker and at the end, else the beginning of text. */
static enum step after_call_step(struct chat_parser *p)
{
    size_t at = p->pos;
    size_t end;
    enum parser_mark mark;
    enum look look = parser_skip_space(p, &at);
    if (look == LOOK_YES) look = p->markup->look_mark(p, at, &mark, &end);
    if (look == LOOK_YES) return take_mark(p, mark, at, end);
    if (look == LOOK_MORE && !p->finished) return STEP_MORE;
    p->after_call = false;
    bool drop = look == LOOK_MORE && (at == p->window.len || parser_is_cut(p, at));
    return drop ? parser_drop_rest(p) : STEP_AGAIN;
}

static enum step text_step(struct chat_parser *p)
{
    if (p->after_call) return after_call_step(p);
    const char *s = p->window.data;
    size_t n_newline = 0; /* right before i, those that may belong to a block */
    size_t i = p->pos;
    for (; i < p->window.len; i++) {
        size_t end;
        enum parser_mark mark;
        if (s[i] == '\n') {
            n_newline += n_newline < p->markup->n_newline;
            continue;
        }
        enum look look = s[i] == '<' ? p->markup->look_mark(p, i, &mark, &end) : LOOK_NO;
        if (look == LOOK_NO || (look == LOOK_MORE && p->finished)) {
            n_newline = 0;
            continue;
        }
        parser_put(p, CHAT_EVENT_CONTENT, s + p->pos, i - n_newline - p->pos);
        parser_commit(p, i - n_newline);
        return look == LOOK_MORE ? STEP_MORE : take_mark(p, mark, i, end);
    }
    if (p->finished) n_newline = 0;
    parser_put(p, CHAT_EVENT_CONTENT, s + p->pos, i - n_newline - p->pos);
    parser_commit(p, i - n_newline);
    return STEP_MORE;
}

/* After a block's begin marker only a call makes it a block. */
static enum step open_step(struct chat_parser *p)
{
    size_t at = p->pos;
    size_t end;
    enum parser_mark mark;
    enum look look = parser_skip_space(p, &at);
    if (look == LOOK_YES) look = p->markup->look_mark(p, at, &mark, &end);
    if (look == LOOK_YES && mark == MARK_CALL) return take_mark(p, mark, at, end);
    if (look == LOOK_MORE && !p->finished) return STEP_MORE;
    return parser_to_text(p, false);
}

static enum step body_step(struct chat_parser *p)
{
    if (!p->tools) {
        parser_put(p, CHAT_EVENT_CONTENT, parser_at(p, p->pos), p->window.len - p->pos);
        parser_commit(p, p->window.len);
        return STEP_MORE;
    }
    if (p->part == PART_TEXT) return text_step(p);
    if (p->part == PART_OPEN) return open_step(p);
    return p->markup->step(p);
}

/* ---- reasoning -------------------------------------------------------------------------- */

static enum chat_event_kind reasoning_kind(const struct chat_parser *p)
{
    return p->style.parse_reasoning ? CHAT_EVENT_REASONING : CHAT_EVENT_CONTENT;
}

/* Takes a think tag of n bytes: markup, or text when reasoning is not parsed. */
static enum step take_tag(struct chat_parser *p, size_t n, enum parser_stage next)
{
    if (!p->style.parse_reasoning) {
        parser_put(p, CHAT_EVENT_CONTENT, parser_at(p, p->pos), n);
    }
    parser_commit(p, p->pos + n);
    p->stage = next;
    return STEP_AGAIN;
}

static enum step start_step(struct chat_parser *p)
{
    enum look look = parser_look(p, p->pos, CHAT_THINK);
    if (look == LOOK_YES) return take_tag(p, strlen(CHAT_THINK), STAGE_REASONING);
    if (look == LOOK_MORE && !p->finished) return STEP_MORE;
    p->stage = p->thinking ? STAGE_REASONING : STAGE_BODY;
    return STEP_AGAIN;
}

static enum step reasoning_step(struct chat_parser *p)
{
    const char *s = p->window.data;
    enum look look = LOOK_NO;
    size_t i = p->pos;
    while (i < p->window.len) {
        if (s[i] == '<') look = parser_look(p, i, CHAT_THINK_END);
        if (look == LOOK_YES || (look == LOOK_MORE && !p->finished)) break;
        look = LOOK_NO;
        i++;
    }
    parser_put(p, reasoning_kind(p), s + p->pos, i - p->pos);
    parser_commit(p, i);
    if (look == LOOK_YES) return take_tag(p, strlen(CHAT_THINK_END), STAGE_BODY);
    return STEP_MORE;
}

/* ---- driver ----------------------------------------------------------------------------- */

static fathom_err run(struct chat_parser *p)
{
    enum step step = STEP_AGAIN;
    while (step == STEP_AGAIN && !p->err && p->window.data) {
        switch (p->stage) {
        case STAGE_START: step = start_step(p); break;
        case STAGE_REASONING: step = reasoning_step(p); break;
        case STAGE_BODY: step = body_step(p); break;
        }
    }
    if (p->err) return p->err;
    buf_consume(&p->window, p->start);
    p->pos -= p->start;
    p->start = 0;
    flush(p, p->finished);
    if (!p->err) parser_check(p);
    return p->err;
}

fathom_err chat_parser_create(struct chat_parser **out, const struct chat_style *s, bool thinking,
                              const json_t *tools, chat_sink *sink, void *arg)
{
    struct chat_parser *p = mem_calloc(1, sizeof *p);
    *out = p;
    if (!p) return FATHOM_ENOMEM;
    p->style = *s;
    p->thinking = thinking;
    p->sink = sink;
    p->sink_arg = arg;
    p->out_kind = CHAT_EVENT_CONTENT;
    if (s->parse_tools && chat_has_tools(tools)) p->tools = json_incref((json_t *)tools);
    switch (s->tool_markup) {
    case CHAT_ENCODING_V32: p->markup = &parser_markup_v32; break;
    case CHAT_ENCODING_V31: p->markup = &parser_markup_v31; break;
    default: p->markup = &parser_markup_v3; break;
    }
    return FATHOM_OK;
}

void chat_parser_destroy(struct chat_parser *p)
{
    if (!p) return;
    json_decref(p->tools);
    buf_free(&p->window);
    buf_free(&p->out);
    mem_free(p);
}

fathom_err chat_parser_push(struct chat_parser *p, const char *text, size_t n)
{
    ASSERT(!p->finished);
    if (!p->err) p->err = buf_add(&p->window, text, n);
    return p->err ? p->err : run(p);
}

fathom_err chat_parser_finish(struct chat_parser *p)
{
    ASSERT(!p->finished);
    p->finished = true;
    return p->err ? p->err : run(p);
}

uint32_t chat_parser_n_call(const struct chat_parser *p)
{
    return p->n_call;
}

bool chat_parser_in_reasoning(const struct chat_parser *p)
{
    return p->stage == STAGE_REASONING || (p->stage == STAGE_START && p->thinking);
}

/* ---- check and dump --------------------------------------------------------------------- */

void parser_check(const struct chat_parser *p)
{
    bool in_call = p->part != PART_TEXT && p->part != PART_OPEN && p->part != PART_HEAD &&
                   p->part != PART_AFTER;
    ASSERT(p->start <= p->pos && p->pos <= p->window.len);
    ASSERT(p->part != PART_TEXT || p->start == p->pos);
    ASSERT(p->call_open == in_call);
    ASSERT(!p->call_open || p->in_block);
    ASSERT(p->stage == STAGE_BODY || p->part == PART_TEXT);
    ASSERT(p->window.len <= HELD_MAX);
    ASSERT(p->out.len < 4);
    ASSERT(!p->finished || (p->window.len == 0 && p->out.len == 0 && !p->call_open));
}

void parser_dump(const struct chat_parser *p, struct buf *out)
{
    static const char *const stages[] = {"start", "reasoning", "body"};
    static const char *const parts[] = {"text",  "open",   "head",   "args_open", "args",
                                        "after", "invoke", "string", "value",     "value_long"};
    (void)buf_printf(out,
                     "stage=%s part=%s start=%zu pos=%zu held=%zu n_call=%u call_open=%d "
                     "in_block=%d after_call=%d finished=%d err=%s window=",
                     stages[p->stage], parts[p->part], p->start, p->pos, p->window.len, p->n_call,
                     p->call_open, p->in_block, p->after_call, p->finished,
                     fathom_err_name(p->err));
    (void)json_write_string(out, buf_str(&p->window), p->window.len);
    (void)buf_add_char(out, '\n');
}
