/* answer_form.c - which form the answers of an API have */
#include "server/api/answer.h"

static const struct answer_form *const forms[] = {
    [API_CHAT] = &answer_form_chat,
    [API_COMPLETION] = &answer_form_completion,
    [API_RESPONSES] = &answer_form_responses,
    [API_MESSAGES] = &answer_form_messages,
    [API_GENERATE] = &answer_form_generate,
    [API_SGLANG] = &answer_form_sglang,
    [API_COUNT_TOKENS] = &answer_form_count,
    [API_INPUT_TOKENS] = &answer_form_input_tokens,
    [API_TOKENIZE] = &answer_form_tokenize,
    [API_TOKENIZE_CHAT] = &answer_form_tokenize,
    [API_DETOKENIZE] = &answer_form_detokenize,
};

const struct answer_form *answer_form_of(enum api_kind api)
{
    return forms[api];
}
