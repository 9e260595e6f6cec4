/* fuzz_request_anthropic.c - any body of /v1/messages and its count_tokens is refused with a status
 * and a message, or becomes a chat that can be rendered */
#include <stdlib.h>

#include "base/json.h"
#include "chat/chat.h"
#include "server/openai_parse.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void must(bool ok)
{
    if (!ok) abort();
}

static void check_parsed(const struct openai_request *r, enum openai_api api)
{
    must(chat_check_messages(r->messages, NULL) == FATHOM_OK);
    must(r->n == (api == ANTHROPIC_MESSAGES) && r->n_stop <= LIMIT_STOP_STRINGS);
    must(r->max_tokens >= 1 || api == ANTHROPIC_COUNT);
    must(r->add_generation_prompt != r->continue_final_message);
    must(json_array_size(r->tools) <= LIMIT_TOOLS);
}

static void check_refused(const struct api_error *e)
{
    struct buf body = {0};
    json_t *root = NULL;
    must(e->status >= 400 && e->diag.text[0]);
    must(api_error_write_anthropic(&body, e) == FATHOM_OK);
    must(json_read(buf_str(&body), body.len, "body", &root, NULL) == FATHOM_OK);
    json_decref(root);
    buf_free(&body);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const struct openai_bounds bounds = {.n_vocab = 1000};
    static const enum openai_api apis[] = {ANTHROPIC_MESSAGES, ANTHROPIC_COUNT};
    for (int i = 0; i < 2; i++) {
        static struct openai_request r;
        struct api_error e = {0};
        fathom_err err = openai_parse(&r, apis[i], (const char *)data, size, &bounds, &e);
        if (err) {
            check_refused(&e);
        } else {
            check_parsed(&r, apis[i]);
            openai_request_drop_body(&r);
        }
        openai_request_free(&r);
    }
    return 0;
}
