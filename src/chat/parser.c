/* parser.c - the answer parser: reasoning, text between calls, the driver
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
 * Each part looks at the text at `pos`. It takes a piece of it, waits for more text, or leaves to
 * another part. Its decisions depend on the bytes alone, never on how many of them have come so
 * far: the events, joined, are the same however the stream is cut.
 *
 * Invariants (parser_check): start <= pos <= window.len. In PART_TEXT start == pos. A call is open
 * exactly in the parts of a call after its name. The text held between two pushes is bounded.
 */
#include <string.h>

#include "base/assert.h"
#include "base/json.h"
#include "base/mem.h"
#include "chat/parser_int.h"

enum { HELD_MAX = PARSER_VALUE_MAX + 4096 };

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

/* What ends reasoning at position i: the tag, or the first marker of calls. */
static enum look look_reasoning_end(const struct chat_parser *p, size_t i, bool *is_tag)
{
    const char *calls = p->tools ? p->markup->ends_reasoning : NULL;
    enum look look = parser_look(p, i, CHAT_THINK_END);
    *is_tag = look == LOOK_YES;
    return look == LOOK_NO && calls ? parser_look(p, i, calls) : look;
}

static enum step reasoning_step(struct chat_parser *p)
{
    const char *s = p->window.data;
    enum look look = LOOK_NO;
    bool is_tag = false;
    size_t i = p->pos;
    while (i < p->window.len) {
        if (s[i] == '<') look = look_reasoning_end(p, i, &is_tag);
        if (look == LOOK_YES || (look == LOOK_MORE && !p->finished)) break;
        look = LOOK_NO;
        i++;
    }
    parser_put(p, reasoning_kind(p), s + p->pos, i - p->pos);
    parser_commit(p, i);
    if (look != LOOK_YES) return STEP_MORE;
    if (is_tag) return take_tag(p, strlen(CHAT_THINK_END), STAGE_BODY);
    p->stage = STAGE_BODY;
    return STEP_AGAIN;
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
    parser_flush(p, p->finished);
    if (!p->err) parser_check(p);
    return p->err;
}

static const struct markup *markup_of(const struct chat_style *s)
{
    switch (s->tool_markup) {
    case CHAT_ENCODING_V32: return &parser_markup_v32;
    case CHAT_ENCODING_V31: return &parser_markup_v31;
    case CHAT_ENCODING_KIMI_K2: return &parser_markup_kimi;
    default: return &parser_markup_v3;
    }
}

static bool reads_calls(const struct chat_style *s, const json_t *tools)
{
    return s->parse_tools && chat_has_tools(tools);
}

struct chat_reasoning_tags chat_reasoning_tags(const struct chat_style *s, const json_t *tools)
{
    return (struct chat_reasoning_tags){
        .begin = CHAT_THINK,
        .end = CHAT_THINK_END,
        .calls = reads_calls(s, tools) ? markup_of(s)->ends_reasoning : NULL,
        .turn = markup_of(s) == &parser_markup_kimi ? CHAT_IM_MIDDLE : CHAT_ASSISTANT,
    };
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
    if (reads_calls(s, tools)) p->tools = json_incref((json_t *)tools);
    p->markup = markup_of(s);
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
