/* chat.h - messages to prompt, tokens to reasoning, content and tool calls
 *
 * One encoding for each release of the family. It is chosen from the checkpoint and can be
 * overridden. Rendering gives text; the caller tokenises it. Parsing takes the text of the stream
 * (special tokens kept) and never fails: markup that is not well formed becomes content.
 */
#ifndef FATHOM_CHAT_CHAT_H
#define FATHOM_CHAT_CHAT_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/buf.h"
#include "fathom/err.h"
#include "tokenizer/tokenizer.h"

enum chat_encoding {
    CHAT_ENCODING_V3,  /* V3, V3-0324 */
    CHAT_ENCODING_R1,  /* R1, R1-0528 */
    CHAT_ENCODING_V31, /* V3.1, V3.1-Terminus, V3.2-Exp */
    CHAT_ENCODING_V32, /* V3.2, V3.2-Speciale */
    CHAT_ENCODING_KIMI_K2,
    CHAT_ENCODING_KIMI_K2_THINKING,
    CHAT_ENCODING_COUNT,
};

/* chat_encoding_name - "deepseek_v3" "deepseek_r1" "deepseek_v31" "deepseek_v32" "kimi_k2"
 * "kimi_k2_thinking" */
const char *chat_encoding_name(enum chat_encoding e);

/* How the prompt is made and how the answer is read; filled by chat_style_choose. */
struct chat_style {
    enum chat_encoding encoding;    /* renders the prompt */
    enum chat_encoding tool_markup; /* of calls in the answer; R1 reads as V3, K2 Thinking as K2 */
    bool parse_tools;               /* false: tool markup stays in the content */
    bool parse_reasoning;           /* false: reasoning stays in the content, with its tags */
    bool model_opens_think; /* R1-0528, K2 Thinking: the model writes <think>, not the prompt */
};

/* What the command line may override; NULL or "auto": from the checkpoint. vLLM's names:
 * --tokenizer-mode auto | slow | hf | deepseek_v32 (and the other encodings' names);
 * --tool-call-parser deepseek_v3 | deepseek_v31 | deepseek_v32 | kimi_k2 | none;
 * --reasoning-parser deepseek_r1 | deepseek_v3 | kimi_k2 | none. The reasoning names mean the same:
 * the prompt tells whether the answer begins inside reasoning. */
struct chat_overrides {
    const char *tokenizer_mode;
    const char *tool_call_parser;
    const char *reasoning_parser;
};

/* chat_style_choose - decide the style of a checkpoint
 *
 *   model_type  of config.json ("deepseek_v3", "deepseek_v32", "kimi_k2")
 *   t           which markers exist as single tokens decides between V3, R1, V3.1, V3.2-Exp, V3.2
 *   chat_template  the checkpoint's, or NULL: tells R1 and V3.1 from V3, and K2 Thinking from K2,
 *                  where tokens do not
 * Errors  EINVAL: an override that is none of the names, with the names. */
fathom_err chat_style_choose(struct chat_style *out, const char *model_type,
                             const struct tokenizer *t, const char *chat_template,
                             const struct chat_overrides *o, fathom_diag *d);

struct chat_request {
    const json_t *messages;        /* array of OpenAI messages; borrowed */
    const json_t *tools;           /* array of {"type": "function", "function": {...}}, or NULL */
    const json_t *response_format; /* OpenAI response_format, or NULL; only a schema is rendered */
    bool thinking;                 /* V3.1, V3.2: open a <think>; V3 never thinks, R1 always does */
    bool tools_first_message;      /* V3.2: vLLM's place for request tools, not the trained one */
    bool continue_final_message;   /* the last assistant message is a prefix to go on from */
    bool add_generation_prompt;    /* normally true; continue_final_message goes before it */
};

/* chat_check_messages - whether a list of messages can be rendered
 *
 * Checks roles, content (a string, null, or an array of text parts), reasoning, tool_calls,
 * tool_call_id. Arguments of a call are an object, or a string that holds one, or absent.
 * Errors  EINVAL with the path: "messages[2].content[0].type is \"image_url\", only text is
 *         supported". */
fathom_err chat_check_messages(const json_t *messages, fathom_diag *d);

/* Where markers of the encoding begin in a prompt, ascending: what tokenizer_encode_marked needs.
 * Zeroed: none. Released with chat_marks_free. */
struct chat_marks {
    size_t *at;
    size_t n;
    size_t cap;
};

void chat_marks_free(struct chat_marks *m);

/* chat_render - append the prompt text to *out, BOS included (encode it without adding one)
 *
 * Text parts of a message are joined by newlines. Tool results take the order of the calls when all
 * of their tool_call_id match; otherwise they keep their own. A last assistant message with
 * "prefix": true is continued, like continue_final_message.
 *
 *         system    developer                  reasoning of history
 *   V3    joined    as system                  never rendered
 *   R1    joined    as system                  never rendered; content is cut after </think>
 *   V3.1  joined    as system                  never rendered; content is cut after </think>
 *   V3.2  in place  a user turn of its own     kept after the last user turn, in thinking mode
 *   K2    in place  a system turn              K2 Thinking: kept after the last plain answer
 *
 * Nothing stands behind the generation prompt. A system text of V3.2 that would stand behind an
 * assistant's marker, since a user, a developer or results come before it, is folded into those.
 * V3.1 and V3.2: system texts that come last, behind an answer, are a user's turn.
 *
 * Kimi K2 joins text parts by nothing, declares tools and a schema before all messages, keeps the
 * results' order, and names calls functions.NAME:NUMBER: other ids are replaced.
 *
 * Tools and a response schema stand after the system text; V3.2 takes them from a system or
 * developer message too ("tools", "response_format" of the message).
 *
 *   marks  the encoding's own markers, appended; may be NULL. Other text that is spelled like a
 *          marker comes from a message or a tool. Think tags of assistant messages are markers.
 *
 * Errors  EINVAL with the path of what is wrong; ENOMEM. *out is then as it was, or unfinished. */
fathom_err chat_render(const struct chat_style *s, const struct chat_request *r, struct buf *out,
                       struct chat_marks *marks, fathom_diag *d);

/* chat_prompt_in_reasoning - whether an answer to this rendered prompt begins inside reasoning:
 * what chat_parser_create wants to know. The last think tag of the open turn decides; without one
 * only R1 and K2 Thinking right after their header begin by reasoning. */
bool chat_prompt_in_reasoning(const struct chat_style *s, const char *prompt, size_t n);

/* What begins reasoning in an answer, and what ends it. */
struct chat_reasoning_tags {
    const char *begin, *end;
    const char *calls; /* a marker that ends it too; NULL: none does */
    const char *turn;  /* what an answer's header ends in: tags in front of it are others' */
};

/* chat_reasoning_tags - as chat_parser_create's parser takes them; tools may be NULL */
struct chat_reasoning_tags chat_reasoning_tags(const struct chat_style *s, const json_t *tools);

/* ---- the answer ------------------------------------------------------------------------- */

enum chat_event_kind {
    CHAT_EVENT_REASONING,  /* text */
    CHAT_EVENT_CONTENT,    /* text */
    CHAT_EVENT_TOOL_BEGIN, /* i_call, name in text */
    CHAT_EVENT_TOOL_ARGS,  /* i_call, a piece of the arguments' JSON text */
    CHAT_EVENT_TOOL_END,   /* i_call */
};

struct chat_event {
    enum chat_event_kind kind;
    uint32_t i_call;
    const char *text; /* not terminated; valid during the callback; whole characters */
    size_t n;
};

typedef fathom_err chat_sink(void *arg, const struct chat_event *e);

struct chat_parser;

/* chat_parser_create - a machine for one answer
 *
 *   s         style
 *   thinking  whether the prompt ended inside reasoning (chat_prompt_in_reasoning)
 *   tools     the request's tools (schemas decide how V3.2 "string" attributes are taken when the
 *             markup leaves it open), or NULL or empty: then tool markup stays in the content. The
 *             parser holds a reference.
 *   sink      receives the events in order; an error it returns is passed on
 *
 * Reasoning runs to </think>; without one, all of it is reasoning, tool markup included, but for
 * K2 Thinking, where calls end it. A <think>
 * that the model writes first is recognised whatever `thinking` says. Text is not altered.
 *
 * Tool calls are events as soon as they are certain: TOOL_BEGIN when the name is complete,
 * arguments as they come. The pieces of a call's arguments put together are a JSON object: for V3
 * and V3.1 the model's own text, for V3.2 an object made with ", " and ": ". White space between
 * calls and after the last one is dropped; other text after a call is content.
 *
 * What is not well formed:
 *   before the name of a call is complete   the text, markers included, is content
 *   in a call that has begun                the call ends, its arguments completed; the text from
 *                                           the first byte that does not fit is content
 *   V3, V3.1: arguments that are not JSON   passed on as they are up to the closing bracket or the
 *                                           end marker; control characters in strings are escaped
 *   V3.2: a "false" value that is no JSON   True, False, None, nothing: the JSON they mean; else
 *                                           the value is taken as a string
 *   the stream ends inside a call           the arguments are completed with the fewest characters
 *                                           that make them JSON; a marker cut short is dropped
 *   outer markers missing                   accepted
 */
fathom_err chat_parser_create(struct chat_parser **out, const struct chat_style *s, bool thinking,
                              const json_t *tools, chat_sink *sink, void *arg);
void chat_parser_destroy(struct chat_parser *p); /* accepts NULL */

/* chat_parser_push - text of the stream, in any pieces, special tokens spelled out, EOS left out.
 *
 * Events joined do not depend on the pieces.
 * Errors  ENOMEM, or what the sink returned; the parser then answers the same for ever.
 * Cost    linear in the text; memory beyond the piece is bounded (64 KiB). */
fathom_err chat_parser_push(struct chat_parser *p, const char *text, size_t n);

/* chat_parser_finish - end of the stream: what was held back is emitted, an unfinished call is
 * closed or degrades to content. Nothing may be pushed after it. */
fathom_err chat_parser_finish(struct chat_parser *p);

/* chat_parser_n_call - tool calls begun so far */
uint32_t chat_parser_n_call(const struct chat_parser *p);
bool chat_parser_in_reasoning(const struct chat_parser *p);

#endif
