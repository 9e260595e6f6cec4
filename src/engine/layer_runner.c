/* layer_runner.c - a checkpoint's layers over texts, one layer at a time */
#include "engine/layer_runner.h"

#include "base/assert.h"
#include "base/fail.h"
#include "base/mem.h"
#include "checkpoint/checkpoint.h"
#include "engine/runner.h"
#include "engine/text_batch.h"
#include "model/config.h"
#include "model/layer_walk.h"
#include "model/weights.h"

struct layer_runner {
    const struct model_config *config;
    struct backend *b;
    struct model *model;
    struct model_weights weights;
    struct text_batch text;
    uint32_t layer;
    float *route; /* [max_token][2 n_expert_used] */
};

static fathom_err open_parts(struct layer_runner *r, const struct engine_settings *s,
                             const struct checkpoint *c, fathom_diag *d)
{
    const size_t n = (size_t)s->limits.max_token * 2 * r->config->n_expert_used + 1;
    TRY(weights_bind(&r->weights, c, r->config, &s->place.parallel, d));
    TRY(runner_make_backend(&r->b, s, r->config, d));
    TRY(layer_walk_create(&r->model, r->b, r->config, d));
    TRY(text_batch_open(&r->text, r->b, s, r->config, d));
    r->route = mem_alloc_array(n, sizeof *r->route);
    if (!r->route) FAIL(d, FATHOM_ENOMEM, "no memory for the routes of a step");
    return FATHOM_OK;
}

fathom_err layer_runner_open(struct layer_runner **out, const struct engine_settings *settings,
                             const struct model_config *config, const struct checkpoint *c,
                             fathom_diag *d)
{
    struct engine_settings s = *settings;
    *out = NULL;
    if (settings_n_rank(&s) > 1 || s.place.parallel.is_slice) {
        FAIL(d, FATHOM_EUNSUPPORTED,
             "layers are looked at by one rank: leave --tensor-parallel-size out");
    }
    if (s.limits.max_token > LAYER_RUNNER_STEP_TOKENS) {
        s.limits.max_token = LAYER_RUNNER_STEP_TOKENS;
    }
    s.limits.max_logit_row = 1;
    s.limits.max_request = 1;
    s.limits.with_mtp = false;
    struct layer_runner *r = mem_calloc(1, sizeof *r);
    if (!r) FAIL(d, FATHOM_ENOMEM, "no memory for a walk over layers");
    r->config = config;
    fathom_err err = open_parts(r, &s, c, d);
    if (err) {
        layer_runner_close(r);
        return err;
    }
    *out = r;
    return FATHOM_OK;
}

void layer_runner_close(struct layer_runner *r)
{
    if (!r) return;
    text_batch_close(&r->text);
    model_destroy(r->model);
    if (r->b) r->b->ops->destroy(r->b);
    weights_release(&r->weights);
    mem_free(r->route);
    mem_free(r);
}

uint32_t layer_runner_step_tokens(const struct layer_runner *r)
{
    return r->text.max_token;
}

void layer_runner_embed(const struct layer_runner *r, const int32_t *ids, uint32_t n, float *x)
{
    const uint32_t hidden = r->config->hidden;
    for (uint32_t i = 0; i < n; i++) {
        ASSERT(ids[i] >= 0 && (uint32_t)ids[i] < r->config->n_vocab);
        tensor_view_row(&r->weights.embed, (uint32_t)ids[i], 0, hidden, x + (size_t)i * hidden);
    }
}

fathom_err layer_runner_load(struct layer_runner *r, uint32_t layer, fathom_diag *d)
{
    ASSERT(layer < r->config->n_layer);
    r->layer = layer;
    return layer_walk_load(r->model, &r->weights, layer, d);
}

void layer_runner_begin(struct layer_runner *r)
{
    r->text.n_past = 0;
}

fathom_err layer_runner_step(struct layer_runner *r, uint32_t n, float *x, float *normed,
                             uint16_t *experts)
{
    const uint32_t n_used = r->config->n_expert_used;
    struct batch batch;
    TRY(text_batch_next(&r->text, NULL, n, false, &batch));
    TRY(layer_walk_step(r->model, &batch, &r->text.kv, x, normed, r->route));
    if (!model_config_layer_is_moe(r->config, r->layer)) return FATHOM_OK;
    for (uint32_t i = 0; i < n * n_used; i++) {
        experts[i] = (uint16_t)r->route[(size_t)(i / n_used) * 2 * n_used + i % n_used];
    }
    return FATHOM_OK;
}
