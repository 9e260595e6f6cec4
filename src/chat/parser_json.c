/* parser_json.c - calls of V3, R1, V3.1 and Kimi K2: the arguments are JSON text, passed on as such
 *
 *   V3    CALL_BEGIN type SEP name "\n```json\n" { ... } "\n```" CALL_END
 *   V3.1  CALL_BEGIN name SEP { ... } CALL_END
 *   Kimi  the same with its own markers; the name stands in an id, "functions.NAME:NUMBER"
 *
 *   HEAD --name--> ARGS_OPEN --{--> ARGS --}--> AFTER --CALL_END, or none--> TEXT, after_call
 *    |                 |              `--end marker too early--> AFTER (completed)
 *    |                 |--end marker--> AFTER ("{}")
 *    |                 `--anything else--> TEXT, after_call ("{}")
 *    `--no name--> TEXT: it was no call
 *
 * The end of the object is found by its brackets and strings: an end marker inside a string is
 * text. Code fences, white space and the outer markers may be missing or be there in both forms.
 */
#include <string.h>

#include "chat/parser_int.h"

static enum look look_mark(const struct chat_parser *p, size_t at, enum parser_mark *mark,
                           size_t *end)
{
    const struct json_marks *of = p->markup->marks;
    const struct {
        const char *literal;
        enum parser_mark mark;
    } marks[] = {{of->open, MARK_OPEN},
                 {of->open_also, MARK_OPEN},
                 {of->call, MARK_CALL},
                 {of->close, MARK_CLOSE},
                 {of->close_also, MARK_CLOSE}};
    enum look best = LOOK_NO;
    for (size_t i = 0; i < sizeof marks / sizeof marks[0]; i++) {
        if (!marks[i].literal || (marks[i].mark == MARK_CLOSE && !p->in_block)) continue;
        enum look look = parser_look(p, at, marks[i].literal);
        if (look == LOOK_YES) {
            *mark = marks[i].mark;
            *end = at + strlen(marks[i].literal);
            return LOOK_YES;
        }
        if (look == LOOK_MORE) best = LOOK_MORE;
    }
    return best;
}

/* Moves *at over a code fence and white space to a marker that ends a call. */
static enum look find_end(const struct chat_parser *p, size_t *at)
{
    const struct json_marks *of = p->markup->marks;
    const char *const ends[] = {of->end, of->close, of->close_also, of->call};
    enum look best = parser_skip_space(p, at);
    if (best == LOOK_YES && *parser_at(p, *at) == '`') {
        best = parser_look(p, *at, "```");
        if (best == LOOK_YES) {
            *at += 3;
            best = parser_skip_space(p, at);
        }
    }
    if (best != LOOK_YES) return best;
    best = LOOK_NO;
    for (size_t i = 0; i < sizeof ends / sizeof ends[0]; i++) {
        if (!ends[i]) continue;
        enum look look = parser_look(p, *at, ends[i]);
        if (look == LOOK_YES) return LOOK_YES;
        if (look == LOOK_MORE) best = LOOK_MORE;
    }
    return best;
}

static enum look look_end(const struct chat_parser *p, size_t at)
{
    return find_end(p, &at);
}

/* ---- name ------------------------------------------------------------------------------- */

static void begin_head(struct chat_parser *p, size_t at, size_t end)
{
    (void)at;
    p->pos = end;
    p->part = PART_HEAD;
}

/* A name without the white space around it; false when nothing usable is left. */
static bool trim_name(const char **s, size_t *n)
{
    while (*n > 0 && memchr(" \n\t\r", **s, 4)) {
        ++*s;
        --*n;
    }
    while (*n > 0 && memchr(" \n\t\r", (*s)[*n - 1], 4)) --*n;
    for (size_t i = 0; i < *n; i++) {
        if ((unsigned char)(*s)[i] < ' ') return false;
    }
    return *n > 0;
}

/* The name in an id of Kimi's: without what stands before and behind it. */
static void cut_id(const char **s, size_t *n)
{
    size_t n_prefix = strlen(CHAT_FUNCTIONS), end = *n;
    while (end > 0 && (*s)[end - 1] >= '0' && (*s)[end - 1] <= '9') end--;
    if (end > 0 && end < *n && (*s)[end - 1] == ':') *n = end - 1;
    if (*n < n_prefix || memcmp(*s, CHAT_FUNCTIONS, n_prefix) != 0) return;
    *s += n_prefix;
    *n -= n_prefix;
}

/* The name at [*from, *to) and the position after it, or LOOK_NO when it is not a call. */
static enum look look_name(const struct chat_parser *p, size_t *from, size_t *to, size_t *end)
{
    size_t at = p->pos;
    enum look look = parser_find(p, &at, "<", PARSER_NAME_MAX);
    if (look == LOOK_YES) look = parser_look(p, at, p->markup->marks->sep);
    if (look != LOOK_YES) return look;
    *from = p->pos;
    *to = at;
    *end = at + strlen(p->markup->marks->sep);
    if (p->markup != &parser_markup_v3) return LOOK_YES;
    *from = at = *end;
    look = parser_find(p, &at, "\n`{<", PARSER_NAME_MAX);
    if (look != LOOK_YES) return look;
    *to = *end = at;
    return *parser_at(p, at) == '<' ? LOOK_NO : LOOK_YES;
}

static enum step head_step(struct chat_parser *p)
{
    size_t from, to, end;
    enum look look = look_name(p, &from, &to, &end);
    if (look == LOOK_MORE && !p->finished) return STEP_MORE;
    if (look != LOOK_YES) return parser_to_text(p, false);
    const char *name = parser_at(p, from);
    size_t n = to - from;
    if (!trim_name(&name, &n)) return parser_to_text(p, false);
    if (p->markup == &parser_markup_kimi) cut_id(&name, &n);
    if (n == 0) return parser_to_text(p, false);
    parser_begin_call(p, name, n);
    parser_commit(p, end);
    p->part = PART_ARGS_OPEN;
    return STEP_AGAIN;
}

/* ---- arguments -------------------------------------------------------------------------- */

/* Moves *at over white space and an opening code fence with its language. */
static enum look skip_fence(const struct chat_parser *p, size_t *at)
{
    enum look look = parser_skip_space(p, at);
    if (look != LOOK_YES || *parser_at(p, *at) != '`') return look;
    look = parser_look(p, *at, "```");
    if (look != LOOK_YES) return look;
    *at += 3;
    if (parser_look(p, *at, "json") == LOOK_MORE) return LOOK_MORE;
    if (parser_look(p, *at, "json") == LOOK_YES) *at += 4;
    return parser_skip_space(p, at);
}

static enum step args_open_step(struct chat_parser *p)
{
    size_t at = p->pos;
    enum look look = skip_fence(p, &at);
    if (look == LOOK_YES && *parser_at(p, at) == '{') {
        parser_commit(p, at);
        args_scan_init(&p->scan);
        p->part = PART_ARGS;
        return STEP_AGAIN;
    }
    if (look == LOOK_YES) look = look_end(p, at);
    if (look == LOOK_MORE && !p->finished) return STEP_MORE;
    parser_put(p, CHAT_EVENT_TOOL_ARGS, "{}", 2);
    parser_end_call(p);
    if (look == LOOK_MORE) return parser_drop_rest(p);
    if (look == LOOK_NO) return parser_to_text(p, true);
    parser_commit(p, at);
    p->part = PART_AFTER;
    return STEP_AGAIN;
}

static enum step after_step(struct chat_parser *p)
{
    size_t at = p->pos;
    enum look look = find_end(p, &at);
    if (look == LOOK_MORE) return p->finished ? parser_drop_rest(p) : STEP_MORE;
    if (look == LOOK_YES) {
        const char *own = p->markup->marks->end;
        parser_commit(p, parser_look(p, at, own) == LOOK_YES ? at + strlen(own) : at);
    }
    return parser_to_text(p, true);
}

static enum step step_json(struct chat_parser *p)
{
    switch (p->part) {
    case PART_HEAD: return head_step(p);
    case PART_ARGS_OPEN: return args_open_step(p);
    case PART_ARGS: return parser_args_step(p, look_end);
    default: return after_step(p);
    }
}

static const struct json_marks marks_v3 = {.open = CHAT_CALLS_BEGIN,
                                           .close = CHAT_CALLS_END,
                                           .call = CHAT_CALL_BEGIN,
                                           .sep = CHAT_CALL_SEP,
                                           .end = CHAT_CALL_END};
static const struct json_marks marks_kimi = {.open = CHAT_SECTION_BEGIN,
                                             .open_also = "<|tool_call_section_begin|>",
                                             .close = CHAT_SECTION_END,
                                             .close_also = "<|tool_call_section_end|>",
                                             .call = CHAT_KIMI_CALL_BEGIN,
                                             .sep = CHAT_KIMI_ARGUMENTS,
                                             .end = CHAT_KIMI_CALL_END};

const struct markup parser_markup_v3 = {
    .marks = &marks_v3, .look_mark = look_mark, .begin = begin_head, .step = step_json};
const struct markup parser_markup_v31 = {
    .marks = &marks_v3, .look_mark = look_mark, .begin = begin_head, .step = step_json};
const struct markup parser_markup_kimi = {.marks = &marks_kimi,
                                          .ends_reasoning = CHAT_SECTION_BEGIN,
                                          .look_mark = look_mark,
                                          .begin = begin_head,
                                          .step = step_json};
