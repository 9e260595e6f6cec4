/* call_grammar.h - tool calls as a grammar, in the markup of each release */
#ifndef FATHOM_CHAT_CALL_GRAMMAR_H
#define FATHOM_CHAT_CALL_GRAMMAR_H

#include "chat/chat.h"
#include "grammar/builder.h"

/* Which calls must be made. */
struct call_grammar {
    enum chat_encoding markup; /* chat_style.tool_markup */
    const json_t *tools;       /* that chat_check_tools accepts */
    const char *name;          /* this tool alone; NULL: any of them */
    bool parallel;             /* one or more calls; false: exactly one */
    bool strict_only;          /* tools without "strict": true take any arguments */
};

/* call_grammar_put - tool calls and nothing else, from before the opening marker on
 *
 *   to  the state after them
 * Arguments follow the tool's "parameters"; a tool without them takes {}. In V3.2's markup a string
 * argument is raw text without the closing tag, and properties that are not named do not occur.
 * Errors  as grammar_from_schema; EINVAL for a name that is none of the tools, or without tools. */
fathom_err call_grammar_put(struct grammar_builder *b, uint32_t from,
                            const struct call_grammar *calls, uint32_t *to, fathom_diag *d);

/* call_grammar_put_text - any text in which no markup of calls begins, and then calls or nothing.
 * Errors as call_grammar_put. */
fathom_err call_grammar_put_text(struct grammar_builder *b, uint32_t from,
                                 const struct call_grammar *calls, uint32_t *to, fathom_diag *d);

#endif
