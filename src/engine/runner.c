#include "engine/runner.h"

#include "base/assert.h"
#include "base/clock.h"
#include "base/fail.h"
#include "base/log.h"
#include "base/mem.h"
#include "engine/step_graph.h"
#include "model/config.h"
#include "model/forward.h"
#include "model/weights.h"

enum { DUMMY_SEED = 1 };

/* The drawn tokens, in device memory and, at the same offsets, in host memory. */
struct draw_layout {
    size_t ids;          /* i32 [max_logit_row] */
    size_t logprobs;     /* f32 [max_logit_row] */
    size_t ranks;        /* u32 [max_logit_row] */
    size_t top_ids;      /* i32 [max_logit_row][SAMPLE_TOP_MAX] */
    size_t top_logprobs; /* f32 [max_logit_row][SAMPLE_TOP_MAX] */
    size_t n_bytes;
};

/* What the host has of a step while it is under way; its fence has the same number. The second one
 * is there only where the backend is asynchronous, its block without histories and masks. */
struct slot {
    void *block;
    void *drawn;
    bool wants_top;
};

struct model_runner {
    struct step_runner base; /* first member */
    struct backend *backend;
    struct backend_caps caps;
    struct model *model;
    struct kv_cache kv;
    struct step_graphs *graphs; /* NULL: every step runs as it is */
    struct draw_layout draw;
    void *draw_device;
    struct slot slots[2];
    uint32_t i_slot;  /* of the step that is written, or was launched last */
    uint32_t n_drawn; /* steps that have been drawn and not waited for */
};

static struct model_runner *runner_of(struct step_runner *r)
{
    return (struct model_runner *)r;
}

static const struct model_runner *runner_of_const(const struct step_runner *r)
{
    return (const struct model_runner *)r;
}

static void destroy(struct step_runner *base)
{
    struct model_runner *r = runner_of(base);
    if (!r) return;
    if (r->backend) {
        const struct backend_ops *ops = r->backend->ops;
        (void)ops->sync(r->backend);
        step_graphs_destroy(r->graphs);
        model_destroy(r->model);
        if (r->kv.base) ops->release(r->backend, r->kv.base);
        if (base->device) ops->release(r->backend, base->device);
        if (r->draw_device) ops->release(r->backend, r->draw_device);
        for (int i = 0; i < 2; i++) {
            if (r->slots[i].block) ops->release_host(r->backend, r->slots[i].block);
            if (r->slots[i].drawn) ops->release_host(r->backend, r->slots[i].drawn);
        }
        ops->destroy(r->backend);
    }
    mem_free(r);
}

/* ---- a step --------------------------------------------------------------------------------- */

static void *at(void *base, size_t offset)
{
    return (char *)base + offset;
}

static fathom_err copy_in(struct model_runner *r, size_t offset, size_t n_bytes)
{
    if (n_bytes == 0) return FATHOM_OK;
    return r->backend->ops->copy_in(r->backend, at(r->base.device, offset),
                                    at(r->base.host, offset), n_bytes);
}

static fathom_err compute(void *arg, const struct batch *batch, enum step_pass pass)
{
    struct model_runner *r = arg;
    struct batch with = *batch;
    with.drawn = at(r->draw_device, r->draw.ids);
    if (pass == STEP_MODEL) return model_forward(r->model, &with, &r->kv);
    return model_mtp(r->model, batch, &r->kv);
}

static fathom_err launch(struct step_runner *base, const struct step *step)
{
    struct model_runner *r = runner_of(base);
    size_t prefix_bytes;
    struct graph *graph = step_graphs_pick(r->graphs, step, base->host, &prefix_bytes);
    TRY(copy_in(r, 0, prefix_bytes));
    for (int i = 0; i < 3; i++) {
        const struct block_range *extra = &step->sampler.extras[i];
        TRY(copy_in(r, extra->offset, extra->n_bytes));
    }
    if (graph) return r->backend->ops->graph_launch(r->backend, graph);
    return compute(r, &step->batch, step_pass_of(step));
}

static fathom_err draw(struct step_runner *base, const struct step *step)
{
    struct model_runner *r = runner_of(base);
    const struct backend_ops *ops = r->backend->ops;
    struct slot *slot = &r->slots[r->i_slot];
    slot->wants_top = step->sampler.n_top > 0;
    r->n_drawn++;
    if (step->sampler.args.n_row == 0) return ops->fence_record(r->backend, (int)r->i_slot);
    TRY(copy_in(r, step->sampler.masks.offset, step->sampler.masks.n_bytes));
    struct sample_args args = step->sampler.args;
    args.logits = model_logits(r->model);
    args.ids = at(r->draw_device, r->draw.ids);
    args.logprobs = at(r->draw_device, r->draw.logprobs);
    args.ranks = at(r->draw_device, r->draw.ranks);
    args.top_ids = at(r->draw_device, r->draw.top_ids);
    args.top_logprobs = at(r->draw_device, r->draw.top_logprobs);
    TRY(ops->sample(r->backend, &args));
    size_t n_bytes = slot->wants_top ? r->draw.n_bytes : r->draw.top_ids;
    TRY(ops->copy_out(r->backend, slot->drawn, r->draw_device, n_bytes));
    return ops->fence_record(r->backend, (int)r->i_slot);
}

static void use_slot(struct model_runner *r, uint32_t i)
{
    r->i_slot = i;
    r->base.host = r->slots[i].block;
}

static void turn(struct step_runner *base)
{
    struct model_runner *r = runner_of(base);
    ASSERT(base->is_async && r->n_drawn == 1);
    use_slot(r, r->i_slot ^ 1);
}

static fathom_err wait(struct step_runner *base, struct step_result *out)
{
    struct model_runner *r = runner_of(base);
    ASSERT(r->n_drawn > 0);
    uint32_t i = r->n_drawn == 2 ? r->i_slot ^ 1 : r->i_slot;
    const struct slot *slot = &r->slots[i];
    TRY(r->backend->ops->fence_wait(r->backend, (int)i));
    if (--r->n_drawn == 0) use_slot(r, 0);
    out->ids = at(slot->drawn, r->draw.ids);
    out->logprobs = at(slot->drawn, r->draw.logprobs);
    out->ranks = at(slot->drawn, r->draw.ranks);
    out->top_ids = slot->wants_top ? at(slot->drawn, r->draw.top_ids) : NULL;
    out->top_logprobs = slot->wants_top ? at(slot->drawn, r->draw.top_logprobs) : NULL;
    return FATHOM_OK;
}

static const char *fault(struct step_runner *base)
{
    struct model_runner *r = runner_of(base);
    return r->backend->ops->fault(r->backend);
}

static uint64_t progress(const struct step_runner *base)
{
    const struct backend *b = runner_of_const(base)->backend;
    return b->ops->progress ? b->ops->progress(b) : 0;
}

static void *record_of(const struct model_runner *r, uint32_t page)
{
    ASSERT(page < r->kv.n_page);
    return at(r->kv.base, page * r->kv.layout.page_bytes);
}

static fathom_err page_out(struct step_runner *base, uint32_t page, void *to)
{
    struct model_runner *r = runner_of(base);
    return r->backend->ops->copy_out(r->backend, to, record_of(r, page), r->kv.layout.page_bytes);
}

static fathom_err page_in(struct step_runner *base, uint32_t page, const void *from)
{
    struct model_runner *r = runner_of(base);
    return r->backend->ops->copy_in(r->backend, record_of(r, page), from, r->kv.layout.page_bytes);
}

static fathom_err sync_device(struct step_runner *base)
{
    struct model_runner *r = runner_of(base);
    return r->backend->ops->sync(r->backend);
}

static fathom_err alloc_host(struct step_runner *base, size_t bytes, void **out, fathom_diag *d)
{
    struct model_runner *r = runner_of(base);
    return r->backend->ops->alloc_host(r->backend, bytes, out, d);
}

static void release_host(struct step_runner *base, void *p)
{
    struct model_runner *r = runner_of(base);
    r->backend->ops->release_host(r->backend, p);
}

static const struct step_runner_ops runner_ops = {
    .destroy = destroy,
    .launch = launch,
    .draw = draw,
    .wait = wait,
    .turn = turn,
    .fault = fault,
    .progress = progress,
    .page_out = page_out,
    .page_in = page_in,
    .sync = sync_device,
    .alloc_host = alloc_host,
    .release_host = release_host,
};

/* ---- making it ------------------------------------------------------------------------------ */

static fathom_err make_backend(struct backend **out, const struct engine_settings *s,
                               const struct model_config *config, fathom_diag *d)
{
    struct backend_config c;
    model_backend_config(&c, config, &s->limits, s->limits.with_mtp);
    switch (s->backend) {
    case FATHOM_BACKEND_REF: TRY(backend_ref_create(out, &c, d)); break;
    case FATHOM_BACKEND_CPU: TRY(backend_cpu_create(out, &c, d)); break;
    case FATHOM_BACKEND_CUDA: TRY(backend_cuda_create(out, &c, d)); break;
    default: FAIL(d, FATHOM_EUNSUPPORTED, "this build does not have the backend asked for");
    }
    return FATHOM_OK;
}

static fathom_err check_caps(struct model_runner *r, const struct engine_settings *s,
                             fathom_diag *d)
{
    static const char *const names[] = {"f32", "bf16", "fp8"};
    r->backend->ops->get_caps(r->backend, &r->caps);
    if (r->caps.kv_types[s->limits.kv_type]) return FATHOM_OK;
    FAIL(d, FATHOM_EUNSUPPORTED, "--kv-cache-dtype %s does not work on backend %s",
         names[s->limits.kv_type], r->caps.name);
}

static fathom_err get_weights(struct model_weights *w, const struct engine_settings *s,
                              const struct model_config *config,
                              const struct checkpoint *checkpoint, fathom_diag *d)
{
    const struct model_limits *l = &s->limits;
    if (!s->dummy) return weights_bind(w, checkpoint, config, l->rank, l->world, d);
    struct model_config made = *config;
    if (l->quantize_fp8) made.quant = QUANT_FP8;
    return weights_generate(w, &made, DUMMY_SEED, l->rank, l->world, d);
}

static fathom_err make_model(struct model_runner *r, const struct engine_settings *s,
                             const struct model_config *config, const struct checkpoint *checkpoint,
                             fathom_diag *d)
{
    struct model_weights weights;
    fathom_err err = get_weights(&weights, s, config, checkpoint, d);
    if (err == FATHOM_OK) {
        err = model_create(&r->model, r->backend, config, &weights, &s->limits, d);
    }
    weights_release(&weights);
    ASSERT(err || model_has_mtp(r->model) == s->limits.with_mtp);
    return err;
}

static size_t place(size_t *end, size_t n)
{
    size_t start = *end;
    *end = (start + n * 4 + 255) / 256 * 256;
    return start;
}

static fathom_err make_memory(struct model_runner *r, const struct memory_plan *plan,
                              fathom_diag *d)
{
    struct backend *b = r->backend;
    size_t n_row = r->base.layout.max_logit_row;
    size_t end = 0;
    r->draw.ids = place(&end, n_row);
    r->draw.logprobs = place(&end, n_row);
    r->draw.ranks = place(&end, n_row);
    r->draw.top_ids = place(&end, n_row * SAMPLE_TOP_MAX);
    r->draw.top_logprobs = place(&end, n_row * SAMPLE_TOP_MAX);
    r->draw.n_bytes = end;
    r->kv.n_page = plan->n_page + (plan->padding_bytes ? 1 : 0);
    r->kv.layout = plan->kv;
    TRY(b->ops->alloc(b, plan->kv_bytes + plan->padding_bytes, "the KV cache", &r->kv.base, d));
    TRY(b->ops->alloc(b, r->base.layout.n_bytes, "step arrays", &r->base.device, d));
    TRY(b->ops->alloc(b, end, "drawn tokens", &r->draw_device, d));
    for (int i = 0; i < (r->base.is_async ? 2 : 1); i++) {
        size_t n_bytes = i == 0 ? r->base.layout.n_bytes : r->base.layout.history;
        TRY(b->ops->alloc_host(b, n_bytes, &r->slots[i].block, d));
        TRY(b->ops->alloc_host(b, end, &r->slots[i].drawn, d));
    }
    use_slot(r, 0);
    return FATHOM_OK;
}

/* Recordings where the backend can and the settings want them. */
static fathom_err make_graphs(struct model_runner *r, const struct engine_settings *s,
                              const struct memory_plan *plan, fathom_diag *d)
{
    if (!r->caps.graphs || s->graphs.n_size == 0 || plan->padding_bytes == 0) {
        LOG_INFO("engine", "recorded_steps=0: %s",
                 r->caps.graphs ? "none are wanted" : "this backend runs every step as it comes");
        return FATHOM_OK;
    }
    struct step_graph_config c = s->graphs;
    uint64_t start_us = clock_now_us();
    c.padding_page = plan->n_page;
    TRY(step_graphs_create(&r->graphs, r->backend, &r->base, &c, compute, r, d));
    LOG_INFO("engine", "recorded_steps=%u sizes=%u..%u ms=%llu", step_graphs_count(r->graphs),
             c.sizes[0], c.sizes[c.n_size - 1],
             (unsigned long long)((clock_now_us() - start_us) / 1000));
    return FATHOM_OK;
}

fathom_err runner_create_on(struct step_runner **out, struct backend *backend,
                            const struct engine_settings *s, const struct memory_plan *plan,
                            const struct model_config *config, const struct checkpoint *checkpoint,
                            fathom_diag *d)
{
    *out = NULL;
    struct model_runner *r = mem_calloc(1, sizeof *r);
    if (!r) {
        backend->ops->destroy(backend);
        FAIL(d, FATHOM_ENOMEM, "no memory for the model's runner");
    }
    fathom_err err;
    r->base.ops = &runner_ops;
    r->backend = backend;
    batch_layout_init(&r->base.layout, &s->limits, config->n_vocab);
    if (s->limits.is_slice) r->base.layout.n_vocab_row = config->n_vocab / s->limits.world;
    TRY_GOTO(check_caps(r, s, d), fail);
    r->base.is_async = r->caps.async && s->async;
    TRY_GOTO(make_model(r, s, config, checkpoint, d), fail);
    TRY_GOTO(make_memory(r, plan, d), fail);
    TRY_GOTO(make_graphs(r, s, plan, d), fail);
    *out = &r->base;
    return FATHOM_OK;
fail:
    destroy(&r->base);
    return err;
}

fathom_err runner_create(struct step_runner **out, const struct engine_settings *s,
                         const struct memory_plan *plan, const struct model_config *config,
                         const struct checkpoint *checkpoint, fathom_diag *d)
{
    struct backend *backend = NULL;
    *out = NULL;
    TRY(make_backend(&backend, s, config, d));
    return runner_create_on(out, backend, s, plan, config, checkpoint, d);
}

const char *runner_backend_name(const struct step_runner *r)
{
    return runner_of_const(r)->caps.name;
}

const char *runner_numerics(const struct step_runner *r)
{
    return runner_of_const(r)->caps.numerics;
}

const char *runner_device(const struct step_runner *r)
{
    return runner_of_const(r)->caps.device;
}

uint64_t runner_weights_bytes(const struct step_runner *r)
{
    return model_weights_bytes(runner_of_const(r)->model);
}
