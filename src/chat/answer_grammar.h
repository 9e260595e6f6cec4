/* answer_grammar.h - a whole answer as a grammar: reasoning, then content or tool calls */
#ifndef FATHOM_CHAT_ANSWER_GRAMMAR_H
#define FATHOM_CHAT_ANSWER_GRAMMAR_H

#include "chat/call_grammar.h"

/* What an answer says besides calls. */
enum answer_content {
    ANSWER_CONTENT_NONE,
    ANSWER_CONTENT_TEXT,   /* any text in which no tool markup begins */
    ANSWER_CONTENT_OBJECT, /* any JSON object */
    ANSWER_CONTENT_SCHEMA, /* value: the schema */
    ANSWER_CONTENT_REGEX,  /* value: the pattern, a string */
    ANSWER_CONTENT_CHOICE, /* value: the choices, an array of strings */
    ANSWER_CONTENT_EBNF,   /* value: a grammar in GBNF or Lark's notation, a string */
    ANSWER_CONTENT_TAG,    /* value: a structural tag, an object */
};

struct answer_grammar {
    bool thinking; /* begins inside reasoning: any text up to </think>, then what follows */
    enum answer_content content;
    const json_t *value;
    const struct call_grammar *calls; /* instead of the content, or after a TEXT; NULL: none */
};

/* answer_grammar_compile - the grammar of an answer
 *
 *   v        outlives the grammar
 *   options  NULL: all zero; space is ONE at most where there are calls
 *   stop     as of grammar_compile; may be NULL
 * Needs    a content or calls.
 * Errors   as the grammar_from_* of its content, and call_grammar_put; ECANCEL when the flag was
 *          raised
 * Owns     *out, to be released. */
fathom_err answer_grammar_compile(struct grammar **out, const struct grammar_vocab *v,
                                  const struct answer_grammar *answer,
                                  const struct grammar_options *options, const atomic_bool *stop,
                                  fathom_diag *d);

#endif
