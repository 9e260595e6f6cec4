/* scorer.c - logits of whole texts */
#include "engine/scorer.h"

#include "backend/backend.h"
#include "base/fail.h"
#include "base/mem.h"
#include "checkpoint/checkpoint.h"
#include "engine/memory_plan.h"
#include "engine/runner.h"
#include "engine/text_batch.h"
#include "model/config.h"
#include "model/weights.h"

struct scorer {
    struct backend *b;
    struct backend_caps caps;
    struct model *model;
    struct text_batch text;
    uint32_t n_vocab;
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
    r->n_vocab = config->n_vocab;
    TRY_GOTO(load(r, &s, config, c, d), fail);
    TRY_GOTO(text_batch_open(&r->text, r->b, &s, config, d), fail);
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
        text_batch_close(&r->text);
        model_destroy(r->model);
        r->b->ops->destroy(r->b);
    }
    mem_free(r);
}

uint32_t scorer_step_tokens(const struct scorer *r)
{
    return r->text.max_token;
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
    r->text.n_past = 0;
}

fathom_err scorer_step(struct scorer *r, const int32_t *ids, uint32_t n, float *logits)
{
    const struct backend_ops *ops = r->b->ops;
    struct batch batch;
    TRY(text_batch_next(&r->text, ids, n, true, &batch));
    TRY(model_forward(r->model, &batch, &r->text.kv));
    TRY(ops->buffer_read(r->b, model_logits(r->model), 0, n, r->n_vocab, logits));
    return ops->sync(r->b);
}
