/* runner.c - the model on one backend: memory of the steps, the queue of those under way
 *
 * Each step under way has a block of host memory, which the engine has written, and the fence of
 * the same number. Blocks are taken in a ring (block_ring.h). Block 0 is whole; the others end
 * before the histories. With several stages, all blocks are whole, and the engine says which one a
 * step uses.
 */
#include "engine/runner.h"

#include <pthread.h>

#include "base/assert.h"
#include "base/clock.h"
#include "base/fail.h"
#include "base/log.h"
#include "base/mem.h"
#include "checkpoint/checkpoint.h"
#include "engine/block_ring.h"
#include "engine/stage_hop.h"
#include "engine/step_graph.h"
#include "model/config.h"
#include "model/forward.h"
#include "model/stages.h"
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

/* Host memory of a step that is under way. */
struct step_block {
    void *arrays;
    void *drawn;
    bool wants_top;
};

struct model_runner {
    struct step_runner base; /* first member */
    pthread_t owner;         /* the thread that makes the calls */
    struct backend *backend;
    struct backend_caps caps;
    struct model *model;
    struct kv_cache kv;
    struct step_graphs *graphs; /* NULL: every step runs as it is */
    struct step_graph_config graph_config;
    bool connects; /* to ranks on other hosts, before anything is recorded */
    void *arrays;  /* the device's twin of a block */
    struct draw_layout draw;
    void *draw_device;
    struct step_block blocks[BACKEND_FENCE_MAX];
    struct block_ring ring;
    struct expert_counts experts;
    bool is_staged; /* there are several stages */
    struct runner_stage stage;
    struct expert_counts experts_before; /* what the stages before counted in the step under way */
};

static struct model_runner *runner_of(struct step_runner *r)
{
    return (struct model_runner *)r;
}

static const struct model_runner *runner_of_const(const struct step_runner *r)
{
    return (const struct model_runner *)r;
}

/* The runner, called by the thread that it is bound to. */
static struct model_runner *owned(void *runner)
{
    struct model_runner *r = runner;
    ASSERT(pthread_equal(r->owner, pthread_self()));
    return r;
}

/* Bytes of a block: the first is whole, the others end before histories. */
static size_t block_bytes(const struct model_runner *r, uint32_t i)
{
    return i == 0 || r->is_staged ? r->base.layout.n_bytes : r->base.layout.history;
}

static fathom_err bind(struct step_runner *base)
{
    struct model_runner *r = runner_of(base);
    r->owner = pthread_self();
    return r->backend->ops->bind_thread(r->backend);
}

static void destroy(struct step_runner *base)
{
    struct model_runner *r = runner_of(base);
    if (!r) return;
    if (r->backend) {
        const struct backend_ops *ops = r->backend->ops;
        (void)ops->bind_thread(r->backend);
        if (r->connects) ops->disconnect(r->backend);
        (void)ops->sync(r->backend);
        step_graphs_destroy(r->graphs);
        model_destroy(r->model);
        if (r->kv.base) ops->release(r->backend, r->kv.base);
        if (r->arrays) ops->release(r->backend, r->arrays);
        if (r->draw_device) ops->release(r->backend, r->draw_device);
        for (uint32_t i = 0; i < base->max_flight; i++) {
            if (r->blocks[i].arrays) ops->release_host(r->backend, r->blocks[i].arrays);
            if (r->blocks[i].drawn) ops->release_host(r->backend, r->blocks[i].drawn);
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
    ASSERT(offset + n_bytes <= block_bytes(r, r->ring.i));
    return r->backend->ops->copy_in(r->backend, at(r->arrays, offset), at(r->base.host, offset),
                                    n_bytes);
}

static fathom_err compute(void *arg, const struct batch *batch, enum step_pass pass)
{
    struct model_runner *r = arg;
    struct batch with = *batch;
    ASSERT((pass == STEP_MODEL) == !batch->next_ids);
    with.drawn = at(r->draw_device, r->draw.ids);
    if (pass == STEP_MODEL) return model_forward(r->model, &with, &r->kv);
    return model_mtp(r->model, batch, &r->kv);
}

/* Waits for the rows of the stage before. */
static fathom_err take_rows(struct model_runner *r, uint32_t n_token)
{
    const struct stage_head wanted = {.block = r->ring.i, .n_row = n_token};
    struct stage_head head;
    TRY(stage_hop_take(r->stage.from, r->stage.peer, &wanted, &head));
    r->experts_before = head.experts;
    TRY(model_put_stream(r->model, stage_hop_room(r->stage.from, head.block), n_token));
    stage_hop_release(r->stage.from, head.block);
    return FATHOM_OK;
}

static struct expert_counts sum_counts(const struct expert_counts *a, const struct expert_counts *b)
{
    return (struct expert_counts){.n_choice = a->n_choice + b->n_choice,
                                  .n_hit = a->n_hit + b->n_hit,
                                  .uniform = a->uniform + b->uniform,
                                  .n_token = a->n_token + b->n_token,
                                  .n_busiest = a->n_busiest + b->n_busiest};
}

/* All ranks of a stage have the same rows, so only one gives them. If the hop is broken, nobody
 * wants them any more. That is no error of this rank, whose peers compute the step too. */
static fathom_err give_rows(struct model_runner *r, uint32_t n_token)
{
    const struct stage_head head = {.block = r->ring.i,
                                    .n_row = n_token,
                                    .experts = sum_counts(&r->experts_before, &r->experts)};
    if (r->stage.peer != 0) return FATHOM_OK;
    if (stage_hop_claim(r->stage.to, head.block)) return FATHOM_OK;
    TRY(model_get_stream(r->model, stage_hop_room(r->stage.to, head.block), n_token));
    (void)stage_hop_give(r->stage.to, &head);
    return FATHOM_OK;
}

static fathom_err launch(struct step_runner *base, const struct step *step)
{
    struct model_runner *r = owned(base);
    size_t prefix_bytes;
    if (r->stage.to && step->pass != STEP_MODEL) return FATHOM_OK;
    ASSERT(r->ring.n_drawn < base->max_flight && step->prefix_bytes <= base->layout.bias);
    struct graph *graph = step_graphs_pick(r->graphs, step, base->host, &prefix_bytes);
    const bool watches = step->watches_experts && step->pass == STEP_MODEL;
    model_watch_experts(r->model, watches ? &r->experts : NULL);
    TRY(copy_in(r, 0, prefix_bytes));
    for (int i = 0; i < SAMPLE_EXTRA_N; i++) {
        const struct block_range *extra = &step->sampler.extras[i];
        TRY(copy_in(r, extra->offset, extra->n_bytes));
    }
    struct batch_shape shape = step->batch;
    struct batch batch;
    shape.n_most = step_graphs_size(r->graphs, shape.n_most);
    batch_locate(&base->layout, &shape, step->pass, r->arrays, &batch);
    if (r->is_staged) model_use_hidden(r->model, r->ring.i);
    if (r->stage.from && step->pass == STEP_MODEL) TRY(take_rows(r, step->batch.n_token));
    TRY(graph ? r->backend->ops->graph_launch(r->backend, graph) : compute(r, &batch, step->pass));
    return r->stage.to ? give_rows(r, step->batch.n_token) : FATHOM_OK;
}

static fathom_err draw(struct step_runner *base, const struct step *step)
{
    struct model_runner *r = owned(base);
    const struct backend_ops *ops = r->backend->ops;
    struct step_block *block = &r->blocks[r->ring.i];
    struct sample_args args;
    ASSERT(step->sampler.n_row == step->batch.n_logit_row);
    block->wants_top = step->sampler.n_top > 0;
    block_ring_draw(&r->ring);
    if (step->sampler.n_row == 0 || r->stage.to) return ops->fence_record(r->backend, r->ring.i);
    TRY(copy_in(r, step->sampler.masks.offset, step->sampler.masks.n_bytes));
    sample_locate(&base->layout, &step->sampler, r->arrays, &args);
    args.logits = model_logits(r->model);
    args.ids = at(r->draw_device, r->draw.ids);
    args.logprobs = at(r->draw_device, r->draw.logprobs);
    args.ranks = at(r->draw_device, r->draw.ranks);
    args.top_ids = at(r->draw_device, r->draw.top_ids);
    args.top_logprobs = at(r->draw_device, r->draw.top_logprobs);
    TRY(ops->sample(r->backend, &args));
    size_t n_bytes = block->wants_top ? r->draw.n_bytes : r->draw.top_ids;
    TRY(ops->copy_out(r->backend, block->drawn, r->draw_device, n_bytes));
    return ops->fence_record(r->backend, r->ring.i);
}

static void show_block(struct model_runner *r)
{
    r->base.host = r->blocks[r->ring.i].arrays;
    ASSERT(r->base.host);
}

static void next_block(struct step_runner *base)
{
    struct model_runner *r = owned(base);
    block_ring_next(&r->ring);
    show_block(r);
}

static fathom_err wait(struct step_runner *base, struct step_result *out)
{
    struct model_runner *r = owned(base);
    const uint32_t oldest = block_ring_oldest(&r->ring);
    const struct step_block *block = &r->blocks[oldest];
    TRY(r->backend->ops->fence_wait(r->backend, oldest));
    block_ring_end(&r->ring);
    show_block(r);
    out->ids = at(block->drawn, r->draw.ids);
    out->logprobs = at(block->drawn, r->draw.logprobs);
    out->ranks = at(block->drawn, r->draw.ranks);
    out->top_ids = block->wants_top ? at(block->drawn, r->draw.top_ids) : NULL;
    out->top_logprobs = block->wants_top ? at(block->drawn, r->draw.top_logprobs) : NULL;
    out->experts = sum_counts(&r->experts_before, &r->experts);
    return FATHOM_OK;
}

static fathom_err renew(struct step_runner *base)
{
    struct model_runner *r = owned(base);
    if (!r->backend->ops->renew) return FATHOM_EPEER;
    if (r->connects) r->backend->ops->disconnect(r->backend);
    TRY(r->backend->ops->sync(r->backend)); /* steps may be under way that nobody waits for */
    if (r->connects) {
        step_graphs_destroy(r->graphs);
        r->graphs = NULL;
    }
    r->backend->ops->renew(r->backend);
    r->ring.i = 0;
    r->ring.n_drawn = 0;
    show_block(r);
    return FATHOM_OK;
}

static const char *fault(struct step_runner *base)
{
    struct model_runner *r = runner_of(base);
    const char *why = r->backend->ops->fault(r->backend);
    if (!why[0] && r->stage.from) why = stage_hop_fault(r->stage.from);
    if (!why[0] && r->stage.to) why = stage_hop_fault(r->stage.to);
    return why;
}

static uint64_t progress(const struct step_runner *base)
{
    const struct backend *b = runner_of_const(base)->backend;
    return b->ops->progress ? b->ops->progress(b) : 0;
}

static fathom_err record_steps(struct model_runner *r, fathom_diag *d)
{
    const struct step_graph_config *c = &r->graph_config;
    const uint64_t start_us = clock_now_us();
    if (c->n_size == 0) return FATHOM_OK;
    ASSERT(c->padding_page < r->kv.n_page && r->ring.i == 0 && !r->graphs);
    model_watch_experts(r->model, NULL);
    TRY(step_graphs_create(&r->graphs, r->backend, &r->base.layout, r->base.host, r->arrays, c,
                           compute, r, d));
    LOG_INFO("engine", "recorded_steps=%u sizes=%u..%u ms=%llu", step_graphs_count(r->graphs),
             c->sizes[0], c->sizes[c->n_size - 1],
             (unsigned long long)((clock_now_us() - start_us) / 1000));
    return FATHOM_OK;
}

/* Recordings hold calls in which ranks meet, so they are made again each time that the hosts have
 * joined. */
static fathom_err connect_runner(struct step_runner *base)
{
    struct model_runner *r = owned(base);
    ASSERT(r->ring.n_drawn == 0);
    if (!r->connects) return FATHOM_OK;
    TRY(r->backend->ops->connect(r->backend));
    return record_steps(r, NULL); /* the backend's fault says why */
}

static void *record_of(const struct model_runner *r, uint32_t page)
{
    ASSERT(page < r->kv.n_page);
    return at(r->kv.base, page * r->kv.layout.page_bytes);
}

static fathom_err page_out(void *runner, uint32_t page, void *to)
{
    struct model_runner *r = owned(runner);
    return r->backend->ops->copy_out(r->backend, to, record_of(r, page), r->kv.layout.page_bytes);
}

static fathom_err page_in(void *runner, uint32_t page, const void *from)
{
    struct model_runner *r = owned(runner);
    return r->backend->ops->copy_in(r->backend, record_of(r, page), from, r->kv.layout.page_bytes);
}

static fathom_err sync_device(struct step_runner *base)
{
    struct model_runner *r = owned(base);
    return r->backend->ops->sync(r->backend);
}

static fathom_err alloc_host(struct step_runner *base, size_t bytes, void **out, fathom_diag *d)
{
    struct model_runner *r = owned(base);
    return r->backend->ops->alloc_host(r->backend, bytes, out, d);
}

static void release_host(struct step_runner *base, void *p)
{
    struct model_runner *r = owned(base);
    r->backend->ops->release_host(r->backend, p);
}

static const struct step_runner_ops runner_ops = {
    .destroy = destroy,
    .bind = bind,
    .launch = launch,
    .draw = draw,
    .wait = wait,
    .next_block = next_block,
    .renew = renew,
    .connect = connect_runner,
    .fault = fault,
    .progress = progress,
    .page_out = page_out,
    .page_in = page_in,
    .sync = sync_device,
    .alloc_host = alloc_host,
    .release_host = release_host,
};

/* ---- making it ------------------------------------------------------------------------------ */

fathom_err runner_make_backend(struct backend **out, const struct engine_settings *s,
                               const struct model_config *config, fathom_diag *d)
{
    struct backend_config c;
    model_backend_config(&c, config, &s->limits, &s->place);
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
    if (!s->dummy) return weights_bind(w, checkpoint, config, &s->place.parallel, d);
    const struct model_config made = settings_stored(s, config);
    return weights_generate(w, &made, DUMMY_SEED, &s->place.parallel, d);
}

/* The backend has copied what it was given, so the checkpoint's pages may be dropped. */
static void let_go(void *checkpoint)
{
    if (checkpoint) checkpoint_let_go(checkpoint);
}

static fathom_err make_model(struct model_runner *r, const struct engine_settings *s,
                             const struct model_config *config, const struct checkpoint *checkpoint,
                             fathom_diag *d)
{
    struct model_weights weights;
    struct model_loading loading = s->loading;
    loading.let_go = let_go;
    loading.let_go_arg = (void *)(uintptr_t)checkpoint;
    fathom_err err = get_weights(&weights, s, config, checkpoint, d);
    if (err == FATHOM_OK) {
        err = model_create(&r->model, r->backend, config, &weights, &s->limits, &loading, d);
    }
    weights_release(&weights);
    const bool is_last = parallel_is_last(&s->place.parallel);
    ASSERT(err || model_has_mtp(r->model) == (s->limits.with_mtp && is_last));
    return err;
}

static size_t place(size_t *end, size_t n)
{
    size_t start = *end;
    *end = (start + n * 4 + 255) / 256 * 256;
    return start;
}

static fathom_err make_memory(struct model_runner *r, const struct engine_settings *s,
                              const struct memory_plan *plan, const struct model_config *config,
                              fathom_diag *d)
{
    struct backend *b = r->backend;
    ASSERT(plan->kv_bytes == plan->n_page * plan->kv.page_bytes);
    ASSERT(plan->padding_bytes == 0 || plan->padding_bytes == plan->kv.page_bytes);
    size_t n_row = r->base.layout.max_logit_row;
    size_t end = 0;
    r->draw.ids = place(&end, n_row);
    r->draw.logprobs = place(&end, n_row);
    r->draw.ranks = place(&end, n_row);
    r->draw.top_ids = place(&end, n_row * SAMPLE_TOP_MAX);
    r->draw.top_logprobs = place(&end, n_row * SAMPLE_TOP_MAX);
    r->draw.n_bytes = end;
    r->kv.n_page = plan->n_page + (plan->padding_bytes ? 1 : 0);
    stages_layout(&r->kv.layout, config, s->limits.kv_type, s->limits.with_mtp, &s->place.parallel);
    TRY(b->ops->alloc(b, r->kv.n_page * r->kv.layout.page_bytes, "the KV cache", &r->kv.base, d));
    TRY(b->ops->alloc(b, r->base.layout.n_bytes, "step arrays", &r->arrays, d));
    TRY(b->ops->alloc(b, end, "drawn tokens", &r->draw_device, d));
    for (uint32_t i = 0; i < r->base.max_flight; i++) {
        TRY(b->ops->alloc_host(b, block_bytes(r, i), &r->blocks[i].arrays, d));
        TRY(b->ops->alloc_host(b, end, &r->blocks[i].drawn, d));
    }
    r->ring.n_block = r->base.max_flight;
    show_block(r);
    return FATHOM_OK;
}

/* Why no step is recorded; NULL: steps are. A recording has one place for hidden states, but with
 * several stages each step under way needs its own until its drafts are made. */
static const char *why_not_recorded(const struct model_runner *r, const struct engine_settings *s,
                                    const struct memory_plan *plan)
{
    if (!r->caps.graphs) return "this backend runs every step as it comes";
    if (s->graphs.n_size == 0 || plan->padding_bytes == 0) return "none are wanted";
    if (r->is_staged && model_has_mtp(r->model)) return "several steps wait for drafts";
    return NULL;
}

/* Records steps, if the backend can and the settings want it. */
static fathom_err make_graphs(struct model_runner *r, const struct engine_settings *s,
                              const struct memory_plan *plan, fathom_diag *d)
{
    const char *why_not = why_not_recorded(r, s, plan);
    if (why_not) {
        LOG_INFO("engine", "recorded_steps=0: %s", why_not);
        return FATHOM_OK;
    }
    r->graph_config = s->graphs;
    r->graph_config.with_drafts = model_has_mtp(r->model);
    r->graph_config.padding_page = plan->n_page;
    return r->connects ? FATHOM_OK : record_steps(r, d);
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
    r->owner = pthread_self();
    r->backend = backend;
    batch_layout_init(&r->base.layout, &s->limits, config->n_vocab);
    TRY_GOTO(check_caps(r, s, d), fail);
    r->connects = s->place.n_host > 1 && backend->ops->connect;
    r->base.prompt_form = r->caps.prompt_form;
    r->is_staged = parallel_n_stage(&s->place.parallel) > 1;
    r->base.max_flight = r->caps.async || r->is_staged ? s->max_flight : 1;
    ASSERT(r->base.max_flight >= 1 && r->base.max_flight <= BACKEND_FENCE_MAX);
    TRY_GOTO(make_model(r, s, config, checkpoint, d), fail);
    TRY_GOTO(make_memory(r, s, plan, config, d), fail);
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
    TRY(runner_make_backend(&backend, s, config, d));
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

void *runner_block(const struct step_runner *r, uint32_t i)
{
    ASSERT(i < r->max_flight);
    return runner_of_const(r)->blocks[i].arrays;
}

void runner_set_stage(struct step_runner *base, const struct runner_stage *stage)
{
    struct model_runner *r = runner_of(base);
    ASSERT(r->is_staged && r->ring.n_drawn == 0);
    r->stage = *stage;
}

void runner_use_block(struct step_runner *base, uint32_t i)
{
    struct model_runner *r = owned(base);
    ASSERT(r->is_staged && i < base->max_flight && r->ring.n_drawn == 0);
    r->ring.i = i;
    show_block(r);
}

uint32_t runner_layer(const struct step_runner *r)
{
    return model_layer_begun(runner_of_const(r)->model);
}

uint64_t runner_weights_bytes(const struct step_runner *r)
{
    return model_weights_bytes(runner_of_const(r)->model);
}
