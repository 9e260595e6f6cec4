/* grammar_answer.c - the whole of an answer: reasoning, then content or tool calls
 *
 *   answer  = [reasoning] (content | calls)          reasoning = ["<think>"] text "</think>"
 */
#include <string.h>

#include "base/assert.h"
#include "base/fail.h"
#include "chat/chat_int.h"
#include "chat/grammar_build.h"

/* A model that opens its reasoning itself writes the tag, which is a marker in most vocabularies.
 */
static uint32_t put_reasoning(struct grammar_builder *b, uint32_t from)
{
    uint32_t inside = grammar_add_state(b);
    grammar_join(b, from, inside);
    grammar_join(b, grammar_put_markup(b, from, CHAT_THINK), inside);
    return grammar_put_until(b, inside, CHAT_THINK_END);
}

static fathom_err put_content(struct grammar_builder *b, uint32_t from,
                              const struct grammar_answer *a, uint32_t *to, fathom_diag *d)
{
    switch (a->content) {
    case GRAMMAR_CONTENT_OBJECT: *to = grammar_put_json(b, from, GRAMMAR_JSON_OBJECT); break;
    case GRAMMAR_CONTENT_SCHEMA: return grammar_put_schema(b, from, a->value, to, d);
    case GRAMMAR_CONTENT_REGEX:
        return grammar_put_regex(b, from, json_string_value(a->value), json_string_length(a->value),
                                 to, d);
    case GRAMMAR_CONTENT_CHOICE: return grammar_put_choice(b, from, a->value, to, d);
    case GRAMMAR_CONTENT_TEXT: return grammar_put_text_and_calls(b, from, a->calls, to, d);
    case GRAMMAR_CONTENT_NONE: ASSERT(a->content != GRAMMAR_CONTENT_NONE); break;
    }
    return FATHOM_OK;
}

static fathom_err put_answer(struct grammar_builder *b, uint32_t rule,
                             const struct grammar_answer *a, fathom_diag *d)
{
    uint32_t from = grammar_rule_begin(b, rule), end = grammar_rule_end(b, rule), to;
    if (a->thinking) from = put_reasoning(b, from);
    if (a->content != GRAMMAR_CONTENT_NONE) {
        TRY(put_content(b, from, a, &to, d));
        grammar_join(b, to, end);
    }
    if (a->calls && a->content != GRAMMAR_CONTENT_TEXT) {
        TRY(grammar_put_calls(b, from, a->calls, &to, d));
        grammar_join(b, to, end);
    }
    return FATHOM_OK;
}

fathom_err grammar_from_answer(struct grammar **out, const struct grammar_vocab *v,
                               const struct grammar_answer *answer,
                               const struct grammar_options *options, fathom_diag *d)
{
    struct grammar_options own = options ? *options : (struct grammar_options){0};
    struct grammar_builder *b;
    *out = NULL;
    if (answer->calls && own.space == GRAMMAR_SPACE_LINES) own.space = GRAMMAR_SPACE_ONE;
    TRY(grammar_builder_create(&b, v, &own));
    uint32_t rule = grammar_add_rule(b);
    fathom_err err = put_answer(b, rule, answer, d);
    if (!err) err = grammar_build(out, b, rule, d);
    grammar_builder_destroy(b);
    return err;
}

/* ---- one part alone --------------------------------------------------------------------- */

fathom_err grammar_from_schema(struct grammar **out, const struct grammar_vocab *v,
                               const json_t *schema, const struct grammar_options *options,
                               fathom_diag *d)
{
    struct grammar_answer a = {.content = GRAMMAR_CONTENT_SCHEMA, .value = schema};
    return grammar_from_answer(out, v, &a, options, d);
}

fathom_err grammar_from_json_object(struct grammar **out, const struct grammar_vocab *v,
                                    const struct grammar_options *options, fathom_diag *d)
{
    struct grammar_answer a = {.content = GRAMMAR_CONTENT_OBJECT};
    return grammar_from_answer(out, v, &a, options, d);
}

fathom_err grammar_from_regex(struct grammar **out, const struct grammar_vocab *v,
                              const char *pattern, size_t n, fathom_diag *d)
{
    json_t *value = json_stringn_nocheck(pattern, n);
    struct grammar_answer a = {.content = GRAMMAR_CONTENT_REGEX, .value = value};
    *out = NULL;
    fathom_err err = value ? grammar_from_answer(out, v, &a, NULL, d) : FATHOM_ENOMEM;
    json_decref(value);
    return err;
}

fathom_err grammar_from_choice(struct grammar **out, const struct grammar_vocab *v,
                               const json_t *choices, fathom_diag *d)
{
    struct grammar_answer a = {.content = GRAMMAR_CONTENT_CHOICE, .value = choices};
    return grammar_from_answer(out, v, &a, NULL, d);
}

fathom_err grammar_from_calls(struct grammar **out, const struct grammar_vocab *v,
                              const struct grammar_calls *calls,
                              const struct grammar_options *options, fathom_diag *d)
{
    struct grammar_answer a = {.calls = calls};
    return grammar_from_answer(out, v, &a, options, d);
}
