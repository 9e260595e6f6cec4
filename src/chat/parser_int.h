/* parser_int.h - the answer parser: what its stages and the markups share
 *
 *   parser_window.c  window, events, ways out of a part: used by all others
 *   parser_json.c    calls of V3, R1, V3.1 and Kimi K2, whose arguments are JSON text
 *   parser_v32.c     calls of V3.2, whose arguments are DSML parameters
 *   parser.c         reasoning, text between calls, the driver
 */
#ifndef FATHOM_CHAT_PARSER_INT_H
#define FATHOM_CHAT_PARSER_INT_H

#include "chat/args_scan.h"
#include "chat/chat_int.h"

enum {
    PARSER_SPACE_MAX = 256,   /* white space between tags, bytes: more is text */
    PARSER_NAME_MAX = 256,    /* a tool's or parameter's name, bytes: longer is no name */
    PARSER_TAG_MAX = 1024,    /* a tag with attributes, bytes: longer is no tag */
    PARSER_VALUE_MAX = 65536, /* a V3.2 "false" value held to see if it is JSON, bytes: longer is
                                 judged by its beginning and streamed */
};

enum parser_stage { STAGE_START, STAGE_REASONING, STAGE_BODY };

enum parser_part {
    PART_TEXT,       /* content; a marker may begin a call */
    PART_OPEN,       /* after the outer begin marker */
    PART_HEAD,       /* JSON markups: type and name */
    PART_ARGS_OPEN,  /* JSON markups: between the name and the object */
    PART_ARGS,       /* inside a JSON object that is the arguments */
    PART_AFTER,      /* after that object */
    PART_INVOKE,     /* V3.2: between the tags of a call */
    PART_STRING,     /* V3.2: inside a string value */
    PART_VALUE,      /* V3.2: inside a "false" value that is held */
    PART_VALUE_LONG, /* V3.2: inside one that streams */
};

/* Whether the window has a certain text at a position. MORE: not known until more text has come. */
enum look { LOOK_NO, LOOK_YES, LOOK_MORE };

enum step { STEP_AGAIN, STEP_MORE };

/* What may stand in text between calls. */
enum parser_mark { MARK_OPEN, MARK_CALL, MARK_CLOSE };

/* Literals of a markup whose arguments are JSON text. */
struct json_marks {
    const char *open, *open_also, *close, *close_also; /* of a block; `also` may be NULL */
    const char *call, *sep, *end;                      /* of a call */
};

struct markup {
    size_t n_newline; /* newlines before a block that belong to it */
    const struct json_marks *marks;
    const char *ends_reasoning; /* besides </think>, when there are tools; may be NULL */
    /* Is there a marker at window position `at`? On YES: which, and where it ends. MARK_CLOSE is
     * known only inside a block. */
    enum look (*look_mark)(const struct chat_parser *p, size_t at, enum parser_mark *mark,
                           size_t *end);
    /* begin the call whose MARK_CALL stands at [at, end) of the window */
    void (*begin)(struct chat_parser *p, size_t at, size_t end);
    enum step (*step)(struct chat_parser *p); /* every part but PART_TEXT */
};

extern const struct markup parser_markup_v3;
extern const struct markup parser_markup_v31;
extern const struct markup parser_markup_v32;
extern const struct markup parser_markup_kimi;

/* The window: text[start .. pos) has been taken but not committed, and becomes content if the
 * markup turns out to be broken. Text from pos on has not been taken yet. Invariants: parser_check.
 * */
struct chat_parser {
    struct chat_style style;
    json_t *tools; /* owned reference; NULL: tool markup stays content */
    const struct markup *markup;
    chat_sink *sink;
    void *sink_arg;
    fathom_err err; /* the first one, for ever */

    enum parser_stage stage;
    enum parser_part part;
    bool thinking;   /* STAGE_START: what follows unless <think> does */
    bool finished;   /* no more text will come */
    bool in_block;   /* a call has begun and its block is not closed */
    bool after_call; /* PART_TEXT: only white space since a call or its block ended */
    bool call_open;
    uint32_t n_call;

    struct buf window;
    size_t start;
    size_t pos;

    struct buf out; /* text of the event under construction */
    enum chat_event_kind out_kind;

    struct args_scan scan;
    size_t n_scanned;         /* PART_VALUE: bytes of the value that hold no closing tag */
    bool any_argument;        /* V3.2: the object has been opened */
    const json_t *properties; /* V3.2: of the call's schema, borrowed from tools; or NULL */
};

/* ---- window (parser_window.c) ----------------------------------------------------------- */

static inline const char *parser_at(const struct chat_parser *p, size_t at)
{
    return p->window.data + at;
}

/* parser_look - the literal at position `at` */
enum look parser_look(const struct chat_parser *p, size_t at, const char *literal);

/* parser_skip_space - move *at over white space. YES: something stands there; NO: too much space */
enum look parser_skip_space(const struct chat_parser *p, size_t *at);

/* parser_find - move *at to the first byte of `set`. NO: not within `max` bytes */
enum look parser_find(const struct chat_parser *p, size_t *at, const char *set, size_t max);

/* parser_commit - everything before `at` is done with: it will not become content */
void parser_commit(struct chat_parser *p, size_t at);

/* ---- events (parser_window.c) ----------------------------------------------------------- */

/* parser_put - text of the current call's arguments, reasoning or content; joined to one event */
void parser_put(struct chat_parser *p, enum chat_event_kind kind, const char *s, size_t n);

/* parser_put_escaped - arguments: s as the inside of a JSON string */
void parser_put_escaped(struct chat_parser *p, const char *s, size_t n);

/* parser_put_close - arguments: what completes p->scan */
void parser_put_close(struct chat_parser *p);

/* parser_flush - send the text under construction: its whole characters, or with `all` everything
 */
void parser_flush(struct chat_parser *p, bool all);

void parser_begin_call(struct chat_parser *p, const char *name, size_t n);
void parser_end_call(struct chat_parser *p);

/* ---- ways out of a part (parser_window.c) ----------------------------------------------- */

/* parser_to_text - the call is over, or was none: text that is not committed becomes content */
enum step parser_to_text(struct chat_parser *p, bool after_call);

/* parser_is_cut - end of the stream: the beginning of a marker at `at` is more than "<" or "</",
 * which may be text */
bool parser_is_cut(const struct chat_parser *p, size_t at);

/* parser_drop_rest - end of the stream inside markup: what is left of the marker is dropped */
enum step parser_drop_rest(struct chat_parser *p);

/* parser_args_step - PART_ARGS, for both markups: pass the object on up to its end, or up to where
 * look_end finds that the call ends without it */
enum step parser_args_step(struct chat_parser *p,
                           enum look (*look_end)(const struct chat_parser *p, size_t at));

/* ---- parser.c --------------------------------------------------------------------------- */

/* parser_check - ASSERT the invariants; parser_dump - the state as text */
void parser_check(const struct chat_parser *p);
void parser_dump(const struct chat_parser *p, struct buf *out);

#endif
