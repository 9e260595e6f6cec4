/* grammar_simple.c - grammars without JSON: a pattern, a choice */
#include "base/fail.h"
#include "base/json.h"
#include "chat/grammar_build_int.h"
#include "chat/regex.h"

fathom_err grammar_put_regex(struct grammar_builder *b, uint32_t from, const char *pattern,
                             size_t n, uint32_t *to, fathom_diag *d)
{
    struct dfa dfa;
    TRY(regex_compile(&dfa, pattern, n, REGEX_FULL, d));
    fathom_err err = FATHOM_OK;
    if (dfa_is_empty(&dfa)) {
        err = diag_fail(d, FATHOM_EINVAL, "no text matches the pattern");
    } else {
        *to = grammar_put_dfa(b, from, &dfa);
    }
    dfa_free(&dfa);
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

fathom_err grammar_put_choice(struct grammar_builder *b, uint32_t from, const json_t *choices,
                              uint32_t *to, fathom_diag *d)
{
    TRY(check_choices(choices, d));
    *to = grammar_add_state(b);
    for (size_t i = 0; i < json_array_size(choices); i++) {
        const json_t *choice = json_array_get(choices, i);
        const char *text = json_string_value(choice);
        grammar_join(b, grammar_put_text(b, from, text, json_string_length(choice)), *to);
    }
    return FATHOM_OK;
}
