/* scorer.c - logits of whole texts */
#include "engine/scorer.h"

#include <string.h>

#include "backend/backend.h"
#include "base/assert.h"
#include "base/fail.h"
#include "base/mem.h"
#include "checkpoint/checkpoint.h"
#include "engine/memory_plan.h"
#include "engine/runner.h"
#include "model/config.h"
#include "model/weights.h"

/* Arrays of a step, one after the other in `host` and in `device`: each [max_token], then the page
 * table and the request's first and last token. Page i holds positions 64 i and up. */
enum { ARRAY_IDS, ARRAY_POS, ARRAY_REQUEST, ARRAY_SLOT, ARRAY_ROWS, N_ARRAY };

struct scorer {
    struct backend *b;
    struct backend_caps caps;
    struct model *model;
    struct kv_cache kv;
    uint32_t max_token;
    uint32_t max_context;
    uint32_t n_vocab;
    uint32_t n_past; /* tokens of the text so far */
    int32_t *host;
    int32_t *device;
    size_t n_int;
};

/* What the plan says of the settings' machine, and that it fits. */
static fathom_err check_memory(const struct engine_settings *s, const struct model_config *config,
                               const struct checkpoint *c, fathom_diag *d)
{
    struct memory_plan plan;
    uint64_t available;
    TRY(memory_available(&available, s, d));
    return memory_plan_make(&plan, s, config, c, available, d);
}

static fathom_err load(struct scorer *r, const struct engine_settings *s,
                       const struct model_config *config, const struct checkpoint *c,
                       fathom_diag *d)
{
    struct model_weights weights;
    TRY(runner_make_backend(&r->b, s, config, d));
    r->b->ops->get_caps(r->b, &r->caps);
    TRY(weights_bind(&weights, c, config, &s->place.parallel, d));
    fathom_err err = model_create(&r->model, r->b, config, &weights, &s->limits, &s->loading, d);
    weights_release(&weights);
    return err;
}

static fathom_err make_memory(struct scorer *r, const struct engine_settings *s,
                              const struct model_config *config, fathom_diag *d)
{
    struct backend_config backend;
    void *arrays;
    model_backend_config(&backend, config, &s->limits, &s->place);
    r->kv.layout = backend.kv;
    r->kv.n_page = (r->max_context + KV_PAGE_TOKENS - 1) / KV_PAGE_TOKENS;
    size_t bytes = (size_t)r->kv.n_page * backend.kv.page_bytes;
    TRY(r->b->ops->alloc(r->b, bytes, "the KV cache", &r->kv.base, d));
    r->n_int = (size_t)N_ARRAY * r->max_token + r->kv.n_page + 2;
    TRY(r->b->ops->alloc(r->b, r->n_int * sizeof *r->device, "step arrays", &arrays, d));
    r->device = arrays;
    r->host = mem_calloc(r->n_int, sizeof *r->host);
    if (!r->host) FAIL(d, FATHOM_ENOMEM, "no memory for the arrays of a step");
    return FATHOM_OK;
}

fathom_err scorer_open(struct scorer **out, const struct engine_settings *settings,
                       const struct model_config *config, const struct checkpoint *c,
                       fathom_diag *d)
{
    struct engine_settings s = *settings;
    fathom_err err;
    *out = NULL;
    if (settings_n_rank(&s) > 1 || s.place.parallel.is_slice) {
        FAIL(d, FATHOM_EUNSUPPORTED,
             "texts are scored by one rank: leave --tensor-parallel-size out");
    }
    if (s.limits.max_token > SCORER_STEP_TOKENS) s.limits.max_token = SCORER_STEP_TOKENS;
    s.limits.max_logit_row = s.limits.max_token;
    s.limits.max_request = 1;
    s.limits.with_mtp = false;
    TRY(check_memory(&s, config, c, d));
    struct scorer *r = mem_calloc(1, sizeof *r);
    if (!r) FAIL(d, FATHOM_ENOMEM, "no memory for the model's scorer");
    r->max_token = s.limits.max_token;
    r->max_context = s.limits.max_context;
    r->n_vocab = config->n_vocab;
    TRY_GOTO(load(r, &s, config, c, d), fail);
    TRY_GOTO(make_memory(r, &s, config, d), fail);
    *out = r;
    return FATHOM_OK;
fail:
    scorer_close(r);
    return err;
}

void scorer_close(struct scorer *r)
{
    if (!r) return;
    if (r->b) {
        model_destroy(r->model);
        if (r->kv.base) r->b->ops->release(r->b, r->kv.base);
        if (r->device) r->b->ops->release(r->b, r->device);
        r->b->ops->destroy(r->b);
    }
    mem_free(r->host);
    mem_free(r);
}

uint32_t scorer_step_tokens(const struct scorer *r)
{
    return r->max_token;
}

const char *scorer_backend_name(const struct scorer *r)
{
    return r->caps.name;
}

const char *scorer_device(const struct scorer *r)
{
    return r->caps.device;
}

void scorer_begin(struct scorer *r)
{
    r->n_past = 0;
}

static void fill_arrays(struct scorer *r, const int32_t *ids, uint32_t n)
{
    const uint32_t m = r->max_token;
    for (uint32_t t = 0; t < n; t++) {
        int32_t pos = (int32_t)(r->n_past + t);
        r->host[ARRAY_IDS * m + t] = ids[t];
        r->host[ARRAY_POS * m + t] = pos;
        r->host[ARRAY_REQUEST * m + t] = 0;
        r->host[ARRAY_SLOT * m + t] = pos; /* pages stand in order */
        r->host[ARRAY_ROWS * m + t] = (int32_t)t;
    }
    int32_t *table = r->host + (size_t)N_ARRAY * m;
    for (uint32_t i = 0; i < r->kv.n_page; i++) table[i] = (int32_t)i;
    table[r->kv.n_page] = 0;
    table[r->kv.n_page + 1] = (int32_t)n;
}

fathom_err scorer_step(struct scorer *r, const int32_t *ids, uint32_t n, float *logits)
{
    const struct backend_ops *ops = r->b->ops;
    const uint32_t m = r->max_token;
    ASSERT(n >= 1 && n <= m && r->n_past + n <= r->max_context);
    fill_arrays(r, ids, n);
    TRY(ops->copy_in(r->b, r->device, r->host, r->n_int * sizeof *r->host));
    const int32_t *table = r->device + (size_t)N_ARRAY * m;
    const struct batch batch = {
        .n_token = n,
        .n_request = 1,
        .n_logit_row = n,
        .max_context = r->n_past + n,
        .page_stride = r->kv.n_page,
        .ids = r->device + ARRAY_IDS * m,
        .pos = r->device + ARRAY_POS * m,
        .request = r->device + ARRAY_REQUEST * m,
        .slot = r->device + ARRAY_SLOT * m,
        .logit_rows = r->device + ARRAY_ROWS * m,
        .page_table = table,
        .first = table + r->kv.n_page,
    };
    TRY(model_forward(r->model, &batch, &r->kv));
    TRY(ops->buffer_read(r->b, model_logits(r->model), 0, n, r->n_vocab, logits));
    TRY(ops->sync(r->b));
    r->n_past += n;
    return FATHOM_OK;
}
