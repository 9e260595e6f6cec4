/* answer_rule.h - what the answer to a request must be: JSON, a schema's value, a text that a
 * pattern matches, one of some choices, tool calls
 *
 * Each API reads its own fields (request_constraint.c reads OpenAI's) and tells them here, parsed.
 * Nothing here compiles: grammar_cache.h does.
 */
#ifndef FATHOM_SERVER_API_ANSWER_RULE_H
#define FATHOM_SERVER_API_ANSWER_RULE_H

#include <jansson.h>
#include <stdbool.h>

#include "base/api_error.h"
#include "chat/answer_grammar.h"

enum tool_choice {
    TOOL_CHOICE_AUTO,     /* the model decides */
    TOOL_CHOICE_NONE,     /* the tools are not shown to it */
    TOOL_CHOICE_REQUIRED, /* it calls one tool or more */
    TOOL_CHOICE_NAMED,    /* it calls tool_name once */
};

/* Zeroed: anything goes. Released with answer_rule_free. */
struct answer_rule {
    enum answer_content content;    /* NONE: it was not set */
    json_t *value;                  /* of the content; own reference */
    struct grammar_options options; /* for JSON */
    const char *field;              /* static: the request's field that set the content */
    const char *param;              /* static: path of the value, for messages */
    bool of_messages;               /* the content holds only if the answer is a message */
    enum tool_choice tool_choice;
    char *tool_name; /* own */
    bool one_call;   /* at most one tool call */
};

/* answer_rule_set_content - set what the content must be
 *
 *   field  the field of the request that says so; param: path of the value in it. Both are static.
 *   value  as enum answer_content says; a reference is taken; NULL for an object
 * Errors  EINVAL (400): the content was set before; the message names both fields. */
fathom_err answer_rule_set_content(struct answer_rule *r, enum answer_content content,
                                   const char *field, const char *param, json_t *value,
                                   struct api_error *e);

/* answer_rule_rename - change the names under which the content was set; both are static */
void answer_rule_rename(struct answer_rule *r, const char *field, const char *param);

/* answer_rule_set_tool - demand a call of this tool (TOOL_CHOICE_NAMED); ENOMEM */
fathom_err answer_rule_set_tool(struct answer_rule *r, const char *name, size_t n);

/* answer_rule_check - check that the parts of a rule fit together, and fit the tools (NULL: none).
 * If calls are required, a content that holds only for messages is dropped.
 * Errors  EINVAL (400): calls are required, but there are no tools, or the named one is none of
 *         them, or a content is set that holds for any answer. */
fathom_err answer_rule_check(struct answer_rule *r, const json_t *tools, struct api_error *e);

/* answer_rule_grammar - the grammar to compile
 *
 *   tools     that the answer's parser reads calls of; NULL: none
 *   markup    of the calls
 *   thinking  the answer begins inside reasoning
 *   out       points to *calls and borrows from the rule and the tools
 * Returns false if no grammar is needed: no content is set, calls are not required, no tool is
 * "strict", and there may be several calls. */
bool answer_rule_grammar(const struct answer_rule *r, const json_t *tools,
                         enum chat_encoding markup, bool thinking, struct answer_grammar *out,
                         struct call_grammar *calls);

void answer_rule_free(struct answer_rule *r);

#endif
