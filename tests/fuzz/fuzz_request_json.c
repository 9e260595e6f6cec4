/* fuzz_request_json.c - any body is parsed or refused with a status and a message; what is parsed
 * keeps its ranges */
#include "base/assert.h"
#include "base/json.h"
#include "support/request_fuzz.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check(const struct api_request *r, enum api_kind api)
{
    const fathom_sampling *s = &r->sampling;
    ASSERT(r->n >= 1 && r->n <= LIMIT_CHOICES && r->n_stop <= LIMIT_STOP_STRINGS);
    ASSERT(s->temperature <= 2.0f && s->top_p <= 1.0f && s->min_p <= 1.0f);
    ASSERT(s->repetition_penalty > 0.0f || s->repetition_penalty == -1.0f); /* not given */
    ASSERT(s->n_top_logprobs <= LIMIT_TOP_LOGPROBS && s->n_bias <= LIMIT_LOGIT_BIAS);
    ASSERT(r->max_tokens >= 0 || (api != API_COMPLETION && r->max_tokens == -1));
    for (size_t i = 0; i < r->n_stop; i++) ASSERT(r->stop_lens[i] > 0);
    if (api == API_CHAT) {
        ASSERT(r->messages && json_array_size(r->messages) > 0);
    } else {
        ASSERT(r->n_prompt >= 1 && r->n_prompt * r->n <= LIMIT_CHOICES);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const struct api_bounds bounds = {.n_vocab = 1000};
    request_fuzz_body(API_CHAT, &bounds, data, size, api_error_write, check);
    request_fuzz_body(API_GENERATE, &bounds, data, size, api_error_write, check);
    request_fuzz_body(API_SGLANG, &bounds, data, size, api_error_write, check);
    request_fuzz_body(API_COMPLETION, &bounds, data, size, api_error_write, check);
    return 0;
}
