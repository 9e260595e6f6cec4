/* request_fuzz.c - what holds for any body of a request */
#include "support/request_fuzz.h"

#include "base/assert.h"
#include "base/json.h"

void request_fuzz_json(const struct buf *text)
{
    json_t *root = NULL;
    ASSERT(!json_read(buf_str(text), text->len, "text", &root, NULL));
    json_decref(root);
}

static void check_refused(const struct api_error *e, request_fuzz_write *write)
{
    struct buf body = {0};
    ASSERT(e->status >= 400 && e->diag.text[0]);
    ASSERT(!write(&body, e));
    request_fuzz_json(&body);
    buf_free(&body);
}

void request_fuzz_body(enum api_kind api, const struct api_bounds *bounds, const uint8_t *data,
                       size_t size, request_fuzz_write *write, request_fuzz_check *check)
{
    static struct api_request r;
    struct api_error e = {0};
    if (api_request_parse(&r, api, (const char *)data, size, bounds, &e)) {
        check_refused(&e, write);
    } else {
        check(&r, api);
        api_request_drop_body(&r);
    }
    api_request_free(&r);
}
