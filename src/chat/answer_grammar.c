/* answer_grammar.c - the whole of an answer: reasoning, then content or tool calls
 *
 *   answer  = [reasoning] (content | calls)          reasoning = ["<think>"] text "</think>"
 */
#include "chat/answer_grammar.h"

#include "base/assert.h"
#include "base/fail.h"
#include "chat/chat_int.h"

/* A model that opens its reasoning itself writes the tag: a marker in most vocabularies. */
static uint32_t put_reasoning(struct grammar_builder *b, uint32_t from)
{
    uint32_t inside = grammar_add_state(b);
    grammar_join(b, from, inside);
    grammar_join(b, grammar_put_markup(b, from, CHAT_THINK), inside);
    return grammar_put_until(b, inside, CHAT_THINK_END);
}

static fathom_err put_content(struct grammar_builder *b, uint32_t from,
                              const struct answer_grammar *a, uint32_t *to, fathom_diag *d)
{
    switch (a->content) {
    case ANSWER_CONTENT_OBJECT: *to = grammar_put_json(b, from, GRAMMAR_JSON_OBJECT); break;
    case ANSWER_CONTENT_SCHEMA: return grammar_put_schema(b, from, a->value, to, d);
    case ANSWER_CONTENT_REGEX:
        return grammar_put_regex(b, from, json_string_value(a->value), json_string_length(a->value),
                                 to, d);
    case ANSWER_CONTENT_CHOICE: return grammar_put_choice(b, from, a->value, to, d);
    case ANSWER_CONTENT_EBNF:
        return grammar_put_ebnf(b, from, json_string_value(a->value), json_string_length(a->value),
                                to, d);
    case ANSWER_CONTENT_TAG: return grammar_put_tag(b, from, a->value, to, d);
    case ANSWER_CONTENT_TEXT: return call_grammar_put_text(b, from, a->calls, to, d);
    case ANSWER_CONTENT_NONE: ASSERT(a->content != ANSWER_CONTENT_NONE); break;
    }
    return FATHOM_OK;
}

static fathom_err put_answer(struct grammar_builder *b, uint32_t from, const void *what,
                             uint32_t *to, fathom_diag *d)
{
    const struct answer_grammar *a = what;
    uint32_t end;
    *to = grammar_add_state(b);
    if (a->thinking) from = put_reasoning(b, from);
    if (a->content != ANSWER_CONTENT_NONE) {
        TRY(put_content(b, from, a, &end, d));
        grammar_join(b, end, *to);
    }
    if (a->calls && a->content != ANSWER_CONTENT_TEXT) {
        TRY(call_grammar_put(b, from, a->calls, &end, d));
        grammar_join(b, end, *to);
    }
    return FATHOM_OK;
}

fathom_err answer_grammar_compile(struct grammar **out, const struct grammar_vocab *v,
                                  const struct answer_grammar *answer,
                                  const struct grammar_options *options, const atomic_bool *stop,
                                  fathom_diag *d)
{
    struct grammar_options own = options ? *options : (struct grammar_options){0};
    if (answer->calls && own.space == GRAMMAR_SPACE_LINES) own.space = GRAMMAR_SPACE_ONE;
    return grammar_compile(out, v, &own, put_answer, answer, stop, d);
}
