/* text_batch.c - batches that walk over one text at a time */
#include "engine/text_batch.h"

#include <string.h>

#include "base/assert.h"
#include "base/fail.h"
#include "base/mem.h"
#include "model/config.h"

/* Arrays of a step, one after the other in `host` and in `device`: each [max_token], then the page
 * table and the request's first and last token. Page i holds positions 64 i and up. */
enum { ARRAY_IDS, ARRAY_POS, ARRAY_REQUEST, ARRAY_SLOT, ARRAY_ROWS, N_ARRAY };

static fathom_err make_memory(struct text_batch *t, const struct kv_layout *layout, fathom_diag *d)
{
    void *arrays;
    t->kv.layout = *layout;
    t->kv.n_page = (t->max_context + KV_PAGE_TOKENS - 1) / KV_PAGE_TOKENS;
    size_t bytes = (size_t)t->kv.n_page * layout->page_bytes;
    TRY(t->b->ops->alloc(t->b, bytes, "the KV cache", &t->kv.base, d));
    t->n_int = (size_t)N_ARRAY * t->max_token + t->kv.n_page + 2;
    TRY(t->b->ops->alloc(t->b, t->n_int * sizeof *t->device, "step arrays", &arrays, d));
    t->device = arrays;
    t->host = mem_calloc(t->n_int, sizeof *t->host);
    if (!t->host) FAIL(d, FATHOM_ENOMEM, "no memory for the arrays of a step");
    return FATHOM_OK;
}

fathom_err text_batch_open(struct text_batch *t, struct backend *b, const struct engine_settings *s,
                           const struct model_config *config, fathom_diag *d)
{
    struct backend_config backend;
    *t = (struct text_batch){
        .b = b, .max_token = s->limits.max_token, .max_context = s->limits.max_context};
    model_backend_config(&backend, config, &s->limits, &s->place);
    fathom_err err = make_memory(t, &backend.kv, d);
    if (err) text_batch_close(t);
    return err;
}

void text_batch_close(struct text_batch *t)
{
    if (!t->b) return;
    if (t->kv.base) t->b->ops->release(t->b, t->kv.base);
    if (t->device) t->b->ops->release(t->b, t->device);
    mem_free(t->host);
    memset(t, 0, sizeof *t);
}

static void fill_arrays(struct text_batch *b, const int32_t *ids, uint32_t n)
{
    const uint32_t m = b->max_token;
    for (uint32_t t = 0; t < n; t++) {
        int32_t pos = (int32_t)(b->n_past + t);
        b->host[ARRAY_IDS * m + t] = ids ? ids[t] : 0;
        b->host[ARRAY_POS * m + t] = pos;
        b->host[ARRAY_REQUEST * m + t] = 0;
        b->host[ARRAY_SLOT * m + t] = pos; /* pages stand in order */
        b->host[ARRAY_ROWS * m + t] = (int32_t)t;
    }
    int32_t *table = b->host + (size_t)N_ARRAY * m;
    for (uint32_t i = 0; i < b->kv.n_page; i++) table[i] = (int32_t)i;
    table[b->kv.n_page] = 0;
    table[b->kv.n_page + 1] = (int32_t)n;
}

fathom_err text_batch_next(struct text_batch *t, const int32_t *ids, uint32_t n, bool has_logits,
                           struct batch *out)
{
    const uint32_t m = t->max_token;
    ASSERT(n >= 1 && n <= m && t->n_past + n <= t->max_context);
    fill_arrays(t, ids, n);
    TRY(t->b->ops->copy_in(t->b, t->device, t->host, t->n_int * sizeof *t->host));
    const int32_t *table = t->device + (size_t)N_ARRAY * m;
    t->n_past += n;
    *out = (struct batch){
        .n_token = n,
        .n_request = 1,
        .n_logit_row = has_logits ? n : 0,
        .max_context = t->n_past,
        .page_stride = t->kv.n_page,
        .ids = t->device + ARRAY_IDS * m,
        .pos = t->device + ARRAY_POS * m,
        .request = t->device + ARRAY_REQUEST * m,
        .slot = t->device + ARRAY_SLOT * m,
        .logit_rows = t->device + ARRAY_ROWS * m,
        .page_table = table,
        .first = table + t->kv.n_page,
    };
    return FATHOM_OK;
}
