/* fuzz_request_responses.c - any body of /v1/responses is refused with a status and a message, or
 * becomes a chat that can be rendered; what it repeats of the request is JSON */
#include <stdlib.h>

#include "base/json.h"
#include "chat/chat.h"
#include "server/responses.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void must(bool ok)
{
    if (!ok) abort();
}

static void must_be_json(const struct buf *text)
{
    json_t *root = NULL;
    must(json_read(buf_str(text), text->len, "text", &root, NULL) == FATHOM_OK);
    json_decref(root);
}

static void check_parsed(const struct openai_request *r)
{
    struct buf object = {0};
    must(chat_check_messages(r->messages, NULL) == FATHOM_OK);
    must(r->n == 1 && (r->max_tokens >= 1 || r->max_tokens == -1));
    must(json_array_size(r->tools) <= LIMIT_TOOLS);
    must_be_json(&r->responses->items);
    (void)buf_add_str(&object, "{\"a\":1");
    (void)buf_add(&object, buf_str(&r->responses->echo), r->responses->echo.len);
    (void)buf_add_char(&object, '}');
    must_be_json(&object);
    buf_free(&object);
}

static void check_refused(const struct api_error *e)
{
    struct buf body = {0};
    must(e->status >= 400 && e->diag.text[0]);
    must(api_error_write(&body, e) == FATHOM_OK);
    must_be_json(&body);
    buf_free(&body);
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
    static const struct openai_bounds bounds = {.n_vocab = 1000, .recall = recall};
    static struct openai_request r;
    struct api_error e = {0};
    fathom_err err = openai_parse(&r, OPENAI_RESPONSES, (const char *)data, size, &bounds, &e);
    if (err) {
        check_refused(&e);
    } else {
        if (r.responses->store) check_parsed(&r);
        openai_request_drop_body(&r);
    }
    openai_request_free(&r);
    return 0;
}
