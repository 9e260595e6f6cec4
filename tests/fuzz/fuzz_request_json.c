/* fuzz_request_json.c - any body is parsed or refused with a status and a message; what is parsed
 * keeps its ranges */
#include <stdlib.h>

#include "base/json.h"
#include "server/openai_parse.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void must(bool ok)
{
    if (!ok) abort();
}

static void check_parsed(const struct openai_request *r, enum openai_api api)
{
    const fathom_sampling *s = &r->sampling;
    must(r->n >= 1 && r->n <= LIMIT_CHOICES && r->n_stop <= LIMIT_STOP_STRINGS);
    must(s->temperature <= 2.0f && s->top_p <= 1.0f && s->repetition_penalty > 0.0f);
    must(s->n_top_logprobs <= LIMIT_TOP_LOGPROBS && s->n_bias <= LIMIT_LOGIT_BIAS);
    must(r->max_tokens >= 0 || (api == OPENAI_CHAT && r->max_tokens == -1));
    for (size_t i = 0; i < r->n_stop; i++) must(r->stop_lens[i] > 0);
    if (api == OPENAI_CHAT) {
        must(r->messages && json_array_size(r->messages) > 0);
    } else {
        must(r->n_prompt >= 1 && r->n_prompt * r->n <= LIMIT_CHOICES);
    }
}

static void check_refused(const struct api_error *e)
{
    struct buf body = {0};
    json_t *root = NULL;
    must(e->status >= 400 && e->diag.text[0]);
    must(api_error_write(&body, e) == FATHOM_OK);
    must(json_read(buf_str(&body), body.len, "body", &root, NULL) == FATHOM_OK);
    json_decref(root);
    buf_free(&body);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const struct openai_bounds bounds = {.n_vocab = 1000};
    for (int api = OPENAI_CHAT; api <= OPENAI_COMPLETION; api++) {
        static struct openai_request r;
        struct api_error e = {0};
        fathom_err err =
            openai_parse(&r, (enum openai_api)api, (const char *)data, size, &bounds, &e);
        if (err) {
            check_refused(&e);
        } else {
            check_parsed(&r, (enum openai_api)api);
            openai_request_drop_body(&r);
        }
        openai_request_free(&r);
    }
    return 0;
}
