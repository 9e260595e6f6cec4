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
    CHAT_ENCODING_COUNT,
};

/* chat_encoding_name - "deepseek_v3" "deepseek_r1" "deepseek_v31" "deepseek_v32" */
const char *chat_encoding_name(enum chat_encoding e);

/* How the prompt is made and how the answer is read; filled by chat_style_choose. */
struct chat_style {
    enum chat_encoding encoding;    /* renders the prompt */
    enum chat_encoding tool_markup; /* markup of tool calls in the answer */
    bool parse_tools;               /* false: tool markup stays in the content */
    bool parse_reasoning;           /* false: reasoning stays in the content, with its tags */
};

/* What the command line may override; NULL or "auto": from the checkpoint. vLLM's names:
 * --tokenizer-mode deepseek_v32 | auto; --tool-call-parser deepseek_v3 | deepseek_v31 |
 * deepseek_v32 | none; --reasoning-parser deepseek_r1 | deepseek_v3 | none. */
struct chat_overrides {
    const char *tokenizer_mode;
    const char *tool_call_parser;
    const char *reasoning_parser;
};

/* chat_style_choose - decide the style of a checkpoint
 *
 *   model_type  of config.json ("deepseek_v3", "deepseek_v32")
 *   t           which markers exist as single tokens decides between V3, R1, V3.1, V3.2-Exp, V3.2
 *   chat_template  of tokenizer_config.json, or NULL: tells R1 and V3.1 from V3 where tokens do not
 * Errors  EINVAL: an override that is none of the names, with the names. */
fathom_err chat_style_choose(struct chat_style *out, const char *model_type,
                             const struct tokenizer *t, const char *chat_template,
                             const struct chat_overrides *o, fathom_diag *d);

struct chat_request {
    const json_t *messages;        /* array of OpenAI messages; borrowed */
    const json_t *tools;           /* array of {"type": "function", "function": {...}}, or NULL */
    const json_t *response_format; /* OpenAI response_format, or NULL; only a schema is rendered */
    bool thinking;
    bool tools_first_message;    /* V3.2: vLLM's place for request tools, not the trained one */
    bool continue_final_message; /* the last assistant message is a prefix to go on from */
    bool add_generation_prompt;  /* normally true */
};

/* chat_check_messages - is this a list of messages that can be rendered?
 *
 * Checks roles, content (a string, null, or an array of text parts), tool_calls, tool_call_id.
 * Errors  EINVAL with the path: "messages[2].content[0].type is \"image_url\", only text is
 *         supported". */
fathom_err chat_check_messages(const json_t *messages, fathom_diag *d);

/* chat_render - the prompt text, BOS included (encode it without adding one)
 * Errors  EINVAL with the path of what is wrong; ENOMEM. */
fathom_err chat_render(const struct chat_style *s, const struct chat_request *r, struct buf *out,
                       fathom_diag *d);

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
    const char *text; /* not terminated; valid during the callback */
    size_t n;
};

typedef fathom_err chat_sink(void *arg, const struct chat_event *e);

struct chat_parser;

/* chat_parser_create - a machine for one answer
 *
 *   s         style
 *   thinking  whether the prompt ended inside reasoning (chat_render was given thinking)
 *   tools     the request's tools (schemas decide how V3.2 "string" attributes are taken when the
 *             markup leaves it open), or NULL: then tool markup stays in the content
 *   sink      receives the events in order; an error it returns is passed on
 */
fathom_err chat_parser_create(struct chat_parser **out, const struct chat_style *s, bool thinking,
                              const json_t *tools, chat_sink *sink, void *arg);
void chat_parser_destroy(struct chat_parser *p);

/* chat_parser_push - text of the stream, in any pieces, special tokens spelled out, EOS left out.
 * Errors  ENOMEM, or what the sink returned. */
fathom_err chat_parser_push(struct chat_parser *p, const char *text, size_t n);

/* chat_parser_finish - end of the stream: what was held back is emitted, an unfinished call is
 * closed or degrades to content */
fathom_err chat_parser_finish(struct chat_parser *p);

/* chat_parser_n_call - tool calls begun so far */
uint32_t chat_parser_n_call(const struct chat_parser *p);
bool chat_parser_in_reasoning(const struct chat_parser *p);

#endif
