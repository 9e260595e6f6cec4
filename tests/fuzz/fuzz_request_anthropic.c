/* fuzz_request_anthropic.c - any body of /v1/messages and its count_tokens is refused with a status
 * and a message, or becomes a chat that can be rendered */
#include "base/assert.h"
#include "base/json.h"
#include "chat/chat.h"
#include "support/request_fuzz.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check(const struct api_request *r, enum api_kind api)
{
    ASSERT(chat_check_messages(r->messages, NULL) == FATHOM_OK);
    ASSERT(r->n == (api == API_MESSAGES) && r->n_stop <= LIMIT_STOP_STRINGS);
    ASSERT(r->max_tokens >= 1 || api == API_COUNT_TOKENS);
    ASSERT(r->add_generation_prompt != r->continue_final_message);
    ASSERT(json_array_size(r->tools) <= LIMIT_TOOLS);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const struct api_bounds bounds = {.n_vocab = 1000};
    request_fuzz_body(API_MESSAGES, &bounds, data, size, api_error_write_anthropic, check);
    request_fuzz_body(API_COUNT_TOKENS, &bounds, data, size, api_error_write_anthropic, check);
    return 0;
}
