/* chat_int.h - what the files of chat/ share about prompts: markers, messages, tool sections */
#ifndef FATHOM_CHAT_CHAT_INT_H
#define FATHOM_CHAT_CHAT_INT_H

#include "chat/chat.h"

/* The bar is U+FF5C and the underscore U+2581, except in think tags. */
#define CHAT_BOS "<｜begin▁of▁sentence｜>"
#define CHAT_EOS "<｜end▁of▁sentence｜>"
#define CHAT_USER "<｜User｜>"
#define CHAT_ASSISTANT "<｜Assistant｜>"
#define CHAT_THINK "<think>"
#define CHAT_THINK_END "</think>"
#define CHAT_CALLS_BEGIN "<｜tool▁calls▁begin｜>"
#define CHAT_CALLS_END "<｜tool▁calls▁end｜>"
#define CHAT_CALL_BEGIN "<｜tool▁call▁begin｜>"
#define CHAT_CALL_END "<｜tool▁call▁end｜>"
#define CHAT_CALL_SEP "<｜tool▁sep｜>"
#define CHAT_OUTPUTS_BEGIN "<｜tool▁outputs▁begin｜>"
#define CHAT_OUTPUTS_END "<｜tool▁outputs▁end｜>"
#define CHAT_OUTPUT_BEGIN "<｜tool▁output▁begin｜>"
#define CHAT_OUTPUT_END "<｜tool▁output▁end｜>"
#define CHAT_DSML "｜DSML｜"

/* Kimi's, in ASCII. */
#define CHAT_IM_USER "<|im_user|>"
#define CHAT_IM_ASSISTANT "<|im_assistant|>"
#define CHAT_IM_SYSTEM "<|im_system|>"
#define CHAT_IM_MIDDLE "<|im_middle|>"
#define CHAT_IM_END "<|im_end|>"
#define CHAT_SECTION_BEGIN "<|tool_calls_section_begin|>"
#define CHAT_SECTION_END "<|tool_calls_section_end|>"
#define CHAT_KIMI_CALL_BEGIN "<|tool_call_begin|>"
#define CHAT_KIMI_ARGUMENTS "<|tool_call_argument_begin|>"
#define CHAT_KIMI_CALL_END "<|tool_call_end|>"
#define CHAT_FUNCTIONS "functions." /* before the name in a call's id */

/* A marker of the encoding itself, in a prompt under way: told from the same text in a message by a
 * byte that no JSON string holds. chat_render takes the bytes out and keeps their places. */
#define CHAT_MARK_BYTE '\xff'
#define MARK(marker) "\xff" marker

/* ---- style (chat_style.c) --------------------------------------------------------------- */

/* Which markers are single tokens of the tokenizer. */
struct chat_markers {
    bool dsml;   /* ｜DSML｜ */
    bool think;  /* <think> */
    bool search; /* <｜search▁begin｜> */
    bool kimi;   /* <|im_middle|> */
};

/* chat_style_guess - the style without overrides; model_type and chat_template may be NULL */
void chat_style_guess(struct chat_style *out, const char *model_type,
                      const struct chat_markers *has, const char *chat_template);

/* chat_style_override - EINVAL naming the valid names */
fathom_err chat_style_override(struct chat_style *s, const struct chat_overrides *o,
                               fathom_diag *d);

/* ---- messages that passed chat_check_messages (message.c) ------------------------------- */

enum chat_role {
    CHAT_ROLE_SYSTEM,
    CHAT_ROLE_USER,
    CHAT_ROLE_ASSISTANT,
    CHAT_ROLE_TOOL,
    CHAT_ROLE_DEVELOPER,
};

/* chat_role_find - false when the name is no role */
bool chat_role_find(const char *name, enum chat_role *out);
enum chat_role chat_message_role(const json_t *message);

/* chat_part_text - of a part of a content array: a string, "text", or "refusal" of a refusal */
const json_t *chat_part_text(const json_t *part);

/* chat_message_has_content - whether its text has at least one byte */
bool chat_message_has_content(const json_t *message);

/* chat_add_content - append the text of the message; nothing when it has none */
void chat_add_content(struct buf *out, const json_t *message);

/* chat_add_own_content - the same for a message of the assistant: its think tags are markers */
void chat_add_own_content(struct buf *out, const json_t *message);

/* chat_add_content_after - of a message of the assistant, the text after the last (or first)
 * </think> in it, or all of it */
enum chat_cut { CHAT_CUT_FIRST, CHAT_CUT_LAST };
fathom_err chat_add_content_after(struct buf *out, const json_t *message, enum chat_cut cut);

/* chat_message_reasoning - reasoning_content, or reasoning; NULL when absent, null or empty */
const json_t *chat_message_reasoning(const json_t *message);

/* chat_message_calls - the tool calls, or NULL when there is none */
const json_t *chat_message_calls(const json_t *message);

/* chat_call_arguments - the arguments of call i as an object; a new reference. Text that is none,
 * as of a call that was cut off, is its member "arguments". ENOMEM. */
fathom_err chat_call_arguments(const json_t *calls, size_t i, json_t **out);
const char *chat_call_name(const json_t *calls, size_t i);

/* chat_add_arguments - as text: a string as it is, an object as Python writes it, else "{}" */
void chat_add_arguments(struct buf *out, const json_t *calls, size_t i);

/* chat_text_append - a JSON string's bytes; nothing when s is NULL or no string */
void chat_text_append(struct buf *out, const json_t *s);

/* The results that follow one assistant message: the tool messages of messages[first .. end), of
 * which the others are system messages. */
struct chat_results {
    size_t n;
    size_t end;
    const json_t **messages; /* [n], in the order in which they are rendered */
};

/* chat_results_open - gather the tool messages from index `first` on and order them by `calls`
 * (NULL: as they come). Released with chat_results_close. ENOMEM. */
fathom_err chat_results_open(struct chat_results *out, const json_t *messages, size_t first,
                             const json_t *calls);
void chat_results_close(struct chat_results *r);

/* ---- the sections of a system text (system_text.c) -------------------------------------- */

/* chat_check_tools - array of {"type": "function", "function": {"name": ...}}; path for messages.
 * NULL and null are an empty list. */
fathom_err chat_check_tools(const json_t *tools, const char *path, fathom_diag *d);

/* chat_has_tools - a list with at least one tool */
bool chat_has_tools(const json_t *tools);

/* chat_add_tools_text - the Markdown section of V3, R1 and V3.1, which differ in the format line */
void chat_add_tools_text(struct buf *out, const json_t *tools, enum chat_encoding e);

/* chat_add_tools_dsml - V3.2's preamble with the functions of two lists, either may be NULL */
void chat_add_tools_dsml(struct buf *out, const json_t *first, const json_t *second);

/* chat_schema - the schema inside an OpenAI response_format; NULL when there is none */
const json_t *chat_schema(const json_t *response_format);

/* chat_add_schema - "## Response Format:" and the schema */
void chat_add_schema(struct buf *out, const json_t *schema);

/* chat_add_system - V3, R1, V3.1: the system and developer texts of messages [begin, end) */
void chat_add_system(struct buf *out, const struct chat_request *r, size_t begin, size_t end);

/* chat_add_system_sections - V3, R1, V3.1: what follows the system text: tools, schema */
void chat_add_system_sections(struct buf *out, const struct chat_request *r, enum chat_encoding e);

/* ---- encodings -------------------------------------------------------------------------- */

/* chat_encode_* - messages and tools have been checked; `go_on`: the last message, of the
 * assistant and without tool calls, is a prefix */
fathom_err chat_encode_v3(const struct chat_style *s, const struct chat_request *r, bool go_on,
                          struct buf *out);
fathom_err chat_encode_kimi(const struct chat_style *s, const struct chat_request *r, bool go_on,
                            struct buf *out);
fathom_err chat_encode_v31(const struct chat_request *r, bool go_on, struct buf *out);
fathom_err chat_encode_v32(const struct chat_request *r, bool go_on, struct buf *out,
                           fathom_diag *d);

#endif
