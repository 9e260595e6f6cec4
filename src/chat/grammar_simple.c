/* grammar_simple.c - grammars without JSON: a pattern, a choice */
#include "base/fail.h"
#include "base/json.h"
#include "chat/grammar_build_int.h"
#include "chat/regex.h"

/* A builder with one rule, whose begin state is *at. */
static fathom_err begin(struct grammar_builder **b, const struct grammar_vocab *v, uint32_t *rule,
                        uint32_t *at)
{
    TRY(grammar_builder_create(b, v, NULL));
    *rule = grammar_add_rule(*b);
    *at = grammar_rule_begin(*b, *rule);
    return FATHOM_OK;
}

fathom_err grammar_from_regex(struct grammar **out, const struct grammar_vocab *v,
                              const char *pattern, size_t n, fathom_diag *d)
{
    struct grammar_builder *b = NULL;
    struct dfa dfa;
    uint32_t rule, at;
    *out = NULL;
    TRY(regex_compile(&dfa, pattern, n, REGEX_FULL, d));
    fathom_err err = FATHOM_OK;
    if (dfa_is_empty(&dfa)) {
        TRY_GOTO(diag_fail(d, FATHOM_EINVAL, "no text matches the pattern"), out);
    }
    TRY_GOTO(begin(&b, v, &rule, &at), out);
    grammar_join(b, grammar_put_dfa(b, at, &dfa), grammar_rule_end(b, rule));
    TRY_GOTO(grammar_build(out, b, rule, d), out);
out:
    dfa_free(&dfa);
    grammar_builder_destroy(b);
    return err;
}

static fathom_err check_choices(const json_t *choices, fathom_diag *d)
{
    size_t n_byte = 0;
    if (!json_is_array(choices) || json_array_size(choices) == 0) {
        FAIL(d, FATHOM_EINVAL, "the choices are %s, an array of at least one string is needed",
             json_is_array(choices) ? "an empty array" : json_type_text(choices));
    }
    for (size_t i = 0; i < json_array_size(choices); i++) {
        const json_t *choice = json_array_get(choices, i);
        if (!json_is_string(choice)) {
            FAIL(d, FATHOM_EINVAL, "choice %zu is %s, a string is needed", i,
                 json_type_text(choice));
        }
        n_byte += json_string_length(choice);
    }
    if (json_array_size(choices) > GRAMMAR_CHOICES_MAX || n_byte > GRAMMAR_CHOICE_BYTES_MAX) {
        FAIL(d, FATHOM_ELIMIT, "%zu choices of %zu bytes, at most %d of %d are possible",
             json_array_size(choices), n_byte, GRAMMAR_CHOICES_MAX, GRAMMAR_CHOICE_BYTES_MAX);
    }
    return FATHOM_OK;
}

fathom_err grammar_from_choice(struct grammar **out, const struct grammar_vocab *v,
                               const json_t *choices, fathom_diag *d)
{
    struct grammar_builder *b;
    uint32_t rule, at;
    *out = NULL;
    TRY(check_choices(choices, d));
    TRY(begin(&b, v, &rule, &at));
    for (size_t i = 0; i < json_array_size(choices); i++) {
        const json_t *choice = json_array_get(choices, i);
        uint32_t to =
            grammar_put_text(b, at, json_string_value(choice), json_string_length(choice));
        grammar_join(b, to, grammar_rule_end(b, rule));
    }
    fathom_err err = grammar_build(out, b, rule, d);
    grammar_builder_destroy(b);
    return err;
}
