/* parser_window.c - the ground of the answer parser: window, events, the ways out of a part, and
 * arguments that are a JSON object */
#include <string.h>

#include "base/assert.h"
#include "base/json.h"
#include "base/utf8.h"
#include "chat/parser_int.h"

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

void parser_flush(struct chat_parser *p, bool all)
{
    size_t n = all ? p->out.len : utf8_complete(buf_str(&p->out), p->out.len);
    if (n == 0) return;
    send(p, p->out_kind, p->out.data, n);
    buf_consume(&p->out, n);
}

static void set_kind(struct chat_parser *p, enum chat_event_kind kind)
{
    if (p->out_kind != kind) parser_flush(p, true);
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
    parser_flush(p, true);
    p->n_call++;
    p->in_block = true;
    p->call_open = true;
    send(p, CHAT_EVENT_TOOL_BEGIN, name, n);
}

void parser_end_call(struct chat_parser *p)
{
    parser_flush(p, true);
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
