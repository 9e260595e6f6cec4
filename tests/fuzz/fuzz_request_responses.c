/* fuzz_request_responses.c - any body of /v1/responses is refused with a status and a message, or
 * becomes a chat that can be rendered; what it repeats of the request is JSON */
#include "base/assert.h"
#include "base/json.h"
#include "chat/chat.h"
#include "server/api/responses_form.h"
#include "support/request_fuzz.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check(const struct api_request *r, enum api_kind api)
{
    (void)api;
    if (!r->responses->store) return;
    struct buf object = {0};
    ASSERT(chat_check_messages(r->messages, NULL) == FATHOM_OK);
    ASSERT(r->n == 1 && (r->max_tokens >= 1 || r->max_tokens == -1));
    ASSERT(json_array_size(r->tools) <= LIMIT_TOOLS);
    request_fuzz_json(&r->responses->items);
    (void)buf_add_str(&object, "{\"a\":1");
    (void)buf_add(&object, buf_str(&r->responses->echo), r->responses->echo.len);
    (void)buf_add_char(&object, '}');
    request_fuzz_json(&object);
    buf_free(&object);
}

static fathom_err recall(void *arg, const char *id, json_t *items, struct api_error *e)
{
    (void)arg, (void)id, (void)e;
    return json_array_append_new(items, json_pack("{s:s, s:s}", "role", "user", "content", "q"))
               ? FATHOM_ENOMEM
               : FATHOM_OK;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const struct api_bounds bounds = {.n_vocab = 1000, .recall = recall};
    request_fuzz_body(API_RESPONSES, &bounds, data, size, api_error_write, check);
    return 0;
}
