/* op_bench.c - every operator of a model by itself: its batch, its runs, its floors */
#include "bench/op_bench.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/assert.h"
#include "base/dtype.h"
#include "base/fail.h"
#include "base/mem.h"
#include "base/rng.h"
#include "model/config.h"
#include "model/weights.h"

enum { SEED = 1, DENSE_LAYER = 0, MOE_LAYER = 1, ARRAY_ALIGN = 64, N_ARRAY = 8, FILL_BLOCKS = 509 };

struct op_bench {
    struct backend *b;
    const struct backend_ops *ops;
    struct model_config config; /* of two layers */
    struct backend_config c;
    struct model_limits limits;
    struct model_place place;
    struct op_bench_options o;
    struct model *m;
    struct model_operands dense; /* of DENSE_LAYER */
    struct model_operands moe;   /* of MOE_LAYER */
    struct kv_cache kv;
    void *flush;     /* device: the larger of 2 * flush_bytes and measure_bytes */
    int32_t *device; /* a batch's arrays, [n_int] */
    int32_t *host;
    size_t n_int;
    uint32_t page_stride;
    void *drawn; /* device: what sample writes */
    double *us;  /* [n_repeat] */
    double bandwidth;
    double linear_bytes; /* of a weight of a linear matrix; of packed ones with scales */
    bool with_trains;
};

/* ---- making it ------------------------------------------------------------------------------ */

static struct model_config two_layers(const struct model_config *config)
{
    struct model_config c = *config;
    c.n_layer = 2;
    c.n_dense_layer = 1;
    c.moe_layer_freq = 1;
    return c;
}

void op_bench_config(struct backend_config *out, const struct model_config *config,
                     const struct model_limits *limits, const struct model_place *place)
{
    struct model_config c = two_layers(config);
    model_backend_config(out, &c, limits, place);
}

static fathom_err make_weights(struct op_bench *p, fathom_diag *d)
{
    const struct model_loading as_stored = {0};
    struct model_weights w;
    TRY(weights_generate(&w, &p->config, SEED, &p->place.parallel, d));
    const struct tensor_view *gate = &w.layers[DENSE_LAYER].dense.gate;
    p->linear_bytes = (double)dtype_size(gate->dtype);
    if (gate->source) {
        const double n = (double)gate->n_row * gate->n_col;
        p->linear_bytes =
            (double)weight_form_bytes(&gate->source->form, gate->n_row, gate->n_col) / n;
    }
    fathom_err err = model_create(&p->m, p->b, &p->config, &w, &p->limits, &as_stored, d);
    weights_release(&w);
    if (err) return err;
    model_operands(&p->dense, p->m, DENSE_LAYER);
    model_operands(&p->moe, p->m, MOE_LAYER);
    return FATHOM_OK;
}

/* Index keys that differ: equal scores are not what index_topk finds in a context. The pages share
 * FILL_BLOCKS blocks of them. */
static fathom_err fill_index_keys(struct op_bench *p, fathom_diag *d)
{
    const struct kv_layout *l = &p->kv.layout;
    if (!l->has_index || l->type == KV_TYPE_F32) return FATHOM_OK;
    void *memory;
    TRY(p->ops->alloc_host(p->b, (size_t)FILL_BLOCKS * KV_INDEX_BLOCK_BYTES_FP8, &memory, d));
    uint8_t *blocks = memory;
    uint64_t state = SEED;
    for (uint32_t i = 0; i < FILL_BLOCKS; i++) {
        uint8_t *block = blocks + (size_t)i * KV_INDEX_BLOCK_BYTES_FP8;
        float scales[KV_PAGE_TOKENS];
        for (uint32_t k = 0; k < KV_INDEX_SCALES_OFFSET; k++)
            block[k] = e4m3_from_f32((float)rng_below(&state, 2048) / 1024 - 1);
        for (uint32_t k = 0; k < KV_PAGE_TOKENS; k++) scales[k] = 1;
        memcpy(block + KV_INDEX_SCALES_OFFSET, scales, sizeof scales);
    }
    fathom_err err = FATHOM_OK;
    for (uint32_t page = 0; !err && page < p->kv.n_page; page++) {
        char *to = (char *)p->kv.base + page * l->page_bytes + kv_index_offset(l, MOE_LAYER);
        err = p->ops->copy_in(p->b, to,
                              blocks + (size_t)(page % FILL_BLOCKS) * KV_INDEX_BLOCK_BYTES_FP8,
                              KV_INDEX_BLOCK_BYTES_FP8);
    }
    if (!err) err = p->ops->sync(p->b);
    p->ops->release_host(p->b, memory);
    return err ? diag_fail(d, err, "%s", p->ops->fault(p->b)) : FATHOM_OK;
}

static fathom_err make_memory(struct op_bench *p, fathom_diag *d)
{
    const struct backend_ops *ops = p->ops;
    const struct model_limits *l = &p->limits;
    p->page_stride = (l->max_context + KV_PAGE_TOKENS - 1) / KV_PAGE_TOKENS;
    p->kv.layout = p->c.kv;
    p->kv.n_page = p->page_stride * l->max_request;
    p->n_int = (size_t)N_ARRAY * (l->max_token + ARRAY_ALIGN) +
               (size_t)l->max_request * (p->page_stride + 2);
    p->us = mem_calloc(p->o.n_repeat, sizeof *p->us);
    if (!p->us) FAIL(d, FATHOM_ENOMEM, "no memory for %u times", p->o.n_repeat);
    size_t flush = 2 * p->o.flush_bytes;
    if (p->o.measure_bytes > flush) flush = p->o.measure_bytes;
    void *device;
    void *host;
    TRY(ops->alloc(p->b, flush, "the copy between runs", &p->flush, d));
    TRY(ops->alloc(p->b, p->kv.n_page * p->kv.layout.page_bytes, "pages", &p->kv.base, d));
    TRY(fill_index_keys(p, d));
    TRY(ops->alloc(p->b, p->n_int * sizeof(int32_t), "a batch", &device, d));
    p->device = device;
    size_t drawn = (size_t)l->max_request * (3 + 2 * SAMPLE_TOP_MAX) * sizeof(int32_t);
    size_t rows = 2 * l->max_request * sizeof(struct sample_row);
    TRY(ops->alloc(p->b, drawn + rows, "draws", &p->drawn, d));
    TRY(ops->alloc_host(p->b, p->n_int * sizeof(int32_t), &host, d));
    p->host = host;
    return FATHOM_OK;
}

static fathom_err measure_bandwidth(struct op_bench *p)
{
    size_t half = p->o.measure_bytes / 2;
    double best = INFINITY;
    for (int i = 0; i < 5; i++) {
        double us;
        TRY(p->ops->fence_record(p->b, 0));
        TRY(p->ops->copy_in(p->b, p->flush, (char *)p->flush + half, half));
        TRY(p->ops->fence_record(p->b, 1));
        TRY(p->ops->fence_elapsed(p->b, 0, 1, &us));
        if (us < best) best = us;
    }
    p->bandwidth = 2e6 * (double)half / fmax(best, 1e-3);
    return FATHOM_OK;
}

fathom_err op_bench_create(struct op_bench **out, struct backend *b,
                           const struct model_config *config, const struct model_limits *limits,
                           const struct model_place *place, const struct op_bench_options *o,
                           fathom_diag *d)
{
    *out = NULL;
    struct op_bench *p = mem_calloc(1, sizeof *p);
    if (!p) {
        b->ops->destroy(b);
        FAIL(d, FATHOM_ENOMEM, "no memory for the benchmark");
    }
    fathom_err err;
    ASSERT(o->n_repeat >= 1);
    p->b = b;
    p->ops = b->ops;
    p->config = two_layers(config);
    p->limits = *limits;
    p->place = *place;
    p->o = *o;
    op_bench_config(&p->c, config, limits, place);
    struct backend_caps caps;
    p->ops->get_caps(b, &caps);
    p->with_trains = caps.graphs;
    TRY_GOTO(make_weights(p, d), fail);
    TRY_GOTO(make_memory(p, d), fail);
    err = measure_bandwidth(p);
    if (err) {
        err = diag_fail(d, err, "%s", b->ops->fault(b));
        goto fail;
    }
    *out = p;
    return FATHOM_OK;
fail:
    op_bench_destroy(p);
    return err;
}

void op_bench_destroy(struct op_bench *p)
{
    if (!p) return;
    (void)p->ops->sync(p->b);
    model_destroy(p->m);
    if (p->flush) p->ops->release(p->b, p->flush);
    if (p->kv.base) p->ops->release(p->b, p->kv.base);
    if (p->device) p->ops->release(p->b, p->device);
    if (p->drawn) p->ops->release(p->b, p->drawn);
    if (p->host) p->ops->release_host(p->b, p->host);
    p->ops->destroy(p->b);
    mem_free(p->us);
    mem_free(p);
}

double op_bench_bandwidth(const struct op_bench *p)
{
    return p->bandwidth;
}

/* ---- a step --------------------------------------------------------------------------------- */

static int32_t *take(int32_t **cursor, size_t n)
{
    int32_t *at = *cursor;
    *cursor += (n + ARRAY_ALIGN - 1) / ARRAY_ALIGN * ARRAY_ALIGN;
    return at;
}

/* Random ids at the end of each request; every request has pages of its own. */
static fathom_err make_batch(struct op_bench *p, const struct op_bench_shape *s, struct batch *out)
{
    uint32_t n = s->n_token;
    uint32_t n_request = s->is_prefill ? 1 : n;
    uint32_t n_each = n / n_request;
    uint64_t state = SEED;
    int32_t *cursor = p->host;
    int32_t *ids = take(&cursor, n), *next = take(&cursor, n), *pos = take(&cursor, n);
    int32_t *request = take(&cursor, n), *slot = take(&cursor, n), *rows = take(&cursor, n_request);
    int32_t *first = take(&cursor, n_request + 1), *table = cursor;
    for (uint32_t i = 0; i < n_request * p->page_stride; i++) table[i] = (int32_t)i;
    for (uint32_t t = 0; t < n; t++) {
        uint32_t r = t / n_each;
        uint32_t at = s->context - n_each + t % n_each;
        ids[t] = (int32_t)rng_below(&state, p->c.n_vocab);
        next[t] = (int32_t)rng_below(&state, p->c.n_vocab);
        pos[t] = (int32_t)at;
        request[t] = (int32_t)r;
        slot[t] = table[r * p->page_stride + at / KV_PAGE_TOKENS] * KV_PAGE_TOKENS +
                  (int32_t)(at % KV_PAGE_TOKENS);
    }
    for (uint32_t r = 0; r < n_request; r++) {
        first[r] = (int32_t)(r * n_each);
        rows[r] = (int32_t)((r + 1) * n_each) - 1;
    }
    first[n_request] = (int32_t)n;
#define ON_DEVICE(array) (p->device + ((array)-p->host))
    *out = (struct batch){.n_token = n,
                          .n_request = n_request,
                          .n_answer_token = s->is_prefill ? 0 : n,
                          .n_answer_request = s->is_prefill ? 0 : n_request,
                          .n_logit_row = n_request,
                          .max_context = s->context,
                          .page_stride = p->page_stride,
                          .ids = ON_DEVICE(ids),
                          .next_ids = ON_DEVICE(next),
                          .pos = ON_DEVICE(pos),
                          .request = ON_DEVICE(request),
                          .slot = ON_DEVICE(slot),
                          .page_table = ON_DEVICE(table),
                          .first = ON_DEVICE(first),
                          .logit_rows = ON_DEVICE(rows)};
#undef ON_DEVICE
    return p->ops->copy_in(p->b, p->device, p->host, p->n_int * sizeof(int32_t));
}

/* What the operators run on, with the objects of struct model_operands. */
struct context {
    struct op_bench *p;
    struct batch batch;
    bool is_long;
    struct sample_args sample;
};

typedef fathom_err op_run(const struct context *x);

static fathom_err run_embed(const struct context *x)
{
    const struct op_bench *p = x->p;
    const struct model_operands *m = &p->moe;
    struct embed_args a = {m->embed, x->batch.ids, NULL, x->batch.n_token, m->residual};
    return p->ops->embed(p->b, &a);
}

static fathom_err run_norm(const struct context *x)
{
    const struct op_bench *p = x->p;
    const struct model_operands *m = &p->moe;
    struct reduce_norm_args a = {.x = m->residual,
                                 .delta = m->delta,
                                 .weight = m->input_norm,
                                 .out = m->normed,
                                 .n_token = x->batch.n_token};
    return p->ops->reduce_norm(p->b, &a);
}

static fathom_err run_front(const struct context *x)
{
    const struct op_bench *p = x->p;
    const struct model_operands *m = &p->moe;
    struct mla_front_args a = {.w = m->mla,
                               .batch = &x->batch,
                               .kv = &p->kv,
                               .layer = MOE_LAYER,
                               .want_index_query = x->is_long,
                               .x = m->normed,
                               .query = m->query};
    return p->ops->mla_front(p->b, &a);
}

static fathom_err run_index(const struct context *x)
{
    const struct op_bench *p = x->p;
    const struct model_operands *m = &p->moe;
    struct index_topk_args a = {.batch = &x->batch,
                                .kv = &p->kv,
                                .layer = MOE_LAYER,
                                .query = m->query,
                                .select = m->select};
    return p->ops->index_topk(p->b, &a);
}

static fathom_err run_attend(const struct context *x)
{
    const struct op_bench *p = x->p;
    const struct model_operands *m = &p->moe;
    struct mla_attend_args a = {.w = m->mla,
                                .batch = &x->batch,
                                .kv = &p->kv,
                                .layer = MOE_LAYER,
                                .query = m->query,
                                .select = x->is_long ? m->select : NULL,
                                .out = m->latent};
    return p->ops->mla_attend(p->b, &a);
}

static fathom_err run_out(const struct context *x)
{
    const struct op_bench *p = x->p;
    const struct model_operands *m = &p->moe;
    struct mla_out_args a = {m->mla, &x->batch, m->latent, m->delta};
    return p->ops->mla_out(p->b, &a);
}

static fathom_err run_ffn(const struct context *x)
{
    const struct op_bench *p = x->p;
    const struct model_operands *m = &p->dense;
    struct ffn_args a = {m->ffn, m->normed, m->delta, x->batch.n_token};
    return p->ops->ffn(p->b, &a);
}

static fathom_err run_router(const struct context *x)
{
    const struct op_bench *p = x->p;
    const struct model_operands *m = &p->moe;
    struct router_args a = {m->ffn, m->normed, m->route, x->batch.n_token, NULL};
    return p->ops->router(p->b, &a);
}

static fathom_err run_moe(const struct context *x)
{
    const struct op_bench *p = x->p;
    const struct model_operands *m = &p->moe;
    struct moe_args a = {m->ffn, m->normed, m->route, m->delta, x->batch.n_token};
    return p->ops->moe(p->b, &a);
}

static fathom_err run_head(const struct context *x)
{
    const struct op_bench *p = x->p;
    const struct model_operands *m = &p->moe;
    struct head_args a = {m->head, m->hidden, x->batch.logit_rows, x->batch.n_logit_row, m->logits};
    return p->ops->head(p->b, &a);
}

static fathom_err run_sample(const struct context *x)
{
    return x->p->ops->sample(x->p->b, &x->sample);
}

static fathom_err run_sample_cut(const struct context *x)
{
    struct sample_args a = x->sample;
    a.rows += x->p->limits.max_request;
    return x->p->ops->sample(x->p->b, &a);
}

/* ---- what has to be moved and computed ------------------------------------------------------ */

struct cost {
    double bytes;
    double flop;
};

/* A product of n_row rows of inputs with a matrix: the weights once, inputs and outputs in the
 * narrowest form, bf16. */
static struct cost product(const struct op_bench *p, double n_row, double n_out, double n_in,
                           double weight_bytes)
{
    (void)p;
    return (struct cost){n_out * n_in * weight_bytes + n_row * (n_out + n_in) * 2,
                         2 * n_row * n_out * n_in};
}

static struct cost sum(struct cost a, struct cost b)
{
    return (struct cost){a.bytes + b.bytes, a.flop + b.flop};
}

static struct cost cost_front(const struct context *x)
{
    const struct op_bench *p = x->p;
    const struct backend_config *c = &p->c;
    double t = x->batch.n_token;
    double w = p->linear_bytes;
    struct cost all = product(p, t, c->q_lora_rank + KV_ROW, c->hidden, w);
    all = sum(all, product(p, t, c->n_head * (c->nope_dim + KV_ROPE), c->q_lora_rank, w));
    all = sum(all, product(p, t, (double)c->n_head * KV_LATENT, c->nope_dim, w));
    if (c->index_n_head) all = sum(all, product(p, t, KV_INDEX_DIM, c->hidden, w));
    if (!x->is_long) return all;
    all = sum(all, product(p, t, (double)c->index_n_head * KV_INDEX_DIM, c->q_lora_rank, w));
    return sum(all, product(p, t, c->index_n_head, c->hidden, 2));
}

/* Rows that the tokens of a step see, and rows that are read, once for each request. */
static void visible(const struct context *x, double limit, double *seen, double *read)
{
    double context = x->batch.max_context;
    double n_each = (double)x->batch.n_token / x->batch.n_request;
    double mean = context - (n_each - 1) / 2; /* of a prompt's tokens */
    *seen = x->batch.n_token * fmin(mean, limit);
    *read = n_each > 1 ? context * x->batch.n_request : *seen;
}

static struct cost cost_index(const struct context *x)
{
    const struct backend_config *c = &x->p->c;
    double seen, read;
    visible(x, INFINITY, &seen, &read);
    return (struct cost){read * (KV_INDEX_DIM + 4) + x->batch.n_token * (double)c->index_topk * 4,
                         2 * seen * c->index_n_head * KV_INDEX_DIM};
}

static struct cost cost_attend(const struct context *x)
{
    const struct backend_config *c = &x->p->c;
    double seen, read;
    visible(x, x->is_long ? c->index_topk : INFINITY, &seen, &read);
    double rows = (double)x->batch.n_token * c->n_head * (KV_ROW + KV_LATENT) * 2;
    return (struct cost){read * c->kv.row_bytes + rows,
                         2 * seen * c->n_head * (KV_ROW + KV_LATENT)};
}

static struct cost cost_out(const struct context *x)
{
    const struct backend_config *c = &x->p->c;
    double t = x->batch.n_token, w = x->p->linear_bytes;
    struct cost value = product(x->p, t, (double)c->n_head * c->v_dim, KV_LATENT, w);
    return sum(value, product(x->p, t, c->hidden, (double)c->n_head * c->v_dim, w));
}

static struct cost cost_experts(const struct op_bench *p, double n_row, double n_hit, double inner)
{
    double w = p->linear_bytes, hidden = p->c.hidden;
    return (struct cost){3 * hidden * inner * w * n_hit + n_row * hidden * 4,
                         6 * n_row * hidden * inner};
}

static struct cost cost_ffn(const struct context *x)
{
    return cost_experts(x->p, x->batch.n_token, 1, x->p->c.dense_inner);
}

/* Experts are hit as if each token chose at random. */
static struct cost cost_moe(const struct context *x)
{
    const struct backend_config *c = &x->p->c;
    double t = x->batch.n_token, e = c->n_expert, k = c->n_expert_used;
    struct cost routed = cost_experts(x->p, t * k, e * (1 - pow(1 - k / e, t)), c->moe_inner);
    return sum(routed, cost_experts(x->p, t, 1, c->shared_inner));
}

static struct cost cost_of_rows(const struct context *x, double bytes)
{
    return (struct cost){x->batch.n_token * (double)x->p->c.hidden * bytes, 0};
}

/* ---- one operator after the other ----------------------------------------------------------- */

static int compare(const void *a, const void *b)
{
    double x = *(const double *)a;
    double y = *(const double *)b;
    return (x > y) - (x < y);
}

static fathom_err time_op(const struct context *x, op_run *run, double *us)
{
    struct op_bench *p = x->p;
    for (uint32_t i = 0; i < p->o.n_warm_up + p->o.n_repeat; i++) {
        double once;
        TRY(p->ops->copy_in(p->b, p->flush, (char *)p->flush + p->o.flush_bytes, p->o.flush_bytes));
        TRY(p->ops->fence_record(p->b, 0));
        TRY(run(x));
        TRY(p->ops->fence_record(p->b, 1));
        TRY(p->ops->fence_elapsed(p->b, 0, 1, &once));
        if (i >= p->o.n_warm_up) p->us[i - p->o.n_warm_up] = once;
    }
    qsort(p->us, p->o.n_repeat, sizeof *p->us, compare);
    *us = p->us[p->o.n_repeat / 2];
    return FATHOM_OK;
}

/* The operator TRAIN times in a row in one recorded step: what it adds to a step, launches hidden
 * as there, its weights in the caches as far as they fit. */
static fathom_err time_train(const struct context *x, op_run *run, double *us)
{
    enum { TRAIN = 16 };
    struct op_bench *p = x->p;
    struct graph *g;
    TRY(p->ops->sync(p->b));
    TRY(p->ops->graph_begin(p->b));
    fathom_err err = FATHOM_OK;
    for (int i = 0; i < TRAIN && !err; i++) err = run(x);
    fathom_err end_err = p->ops->graph_end(p->b, &g);
    if (err || end_err) return err ? err : end_err;
    for (uint32_t i = 0; i < p->o.n_warm_up + p->o.n_repeat && !err; i++) {
        double all = 0;
        err = p->ops->fence_record(p->b, 0);
        if (!err) err = p->ops->graph_launch(p->b, g);
        if (!err) err = p->ops->fence_record(p->b, 1);
        if (!err) err = p->ops->fence_elapsed(p->b, 0, 1, &all);
        if (i >= p->o.n_warm_up) p->us[i - p->o.n_warm_up] = all / TRAIN;
    }
    p->ops->graph_destroy(p->b, g);
    qsort(p->us, p->o.n_repeat, sizeof *p->us, compare);
    *us = p->us[p->o.n_repeat / 2];
    return err;
}

static fathom_err make_draws(struct context *x)
{
    struct op_bench *p = x->p;
    uint32_t n = x->batch.n_logit_row;
    int32_t *out = p->drawn;
    size_t room = p->limits.max_request;
    struct sample_row *rows = (struct sample_row *)(void *)(out + room * (3 + 2 * SAMPLE_TOP_MAX));
    struct sample_row row = {.temperature = 1,
                             .top_p = 1,
                             .repetition_penalty = 1,
                             .seed = SEED,
                             .mask_offset = SAMPLE_NONE,
                             .n_vocab_used = p->c.n_vocab};
    for (uint32_t i = 0; i < 2 * n; i++) { /* plain rows, then rows with cut-offs */
        row.logit_row = i < n ? i : i - n;
        row.temperature = i < n ? 1 : 0.6f;
        row.top_p = i < n ? 1 : 0.95f;
        TRY(p->ops->copy_in(p->b, &rows[i < n ? i : room + i - n], &row, sizeof row));
        TRY(p->ops->sync(p->b)); /* row is used again */
    }
    x->sample = (struct sample_args){.logits = p->moe.logits,
                                     .n_row = n,
                                     .rows = rows,
                                     .ids = out,
                                     .logprobs = (float *)(out + room),
                                     .ranks = (uint32_t *)(out + 2 * room),
                                     .top_ids = out + 3 * room,
                                     .top_logprobs = (float *)(out + room * (3 + SAMPLE_TOP_MAX))};
    return FATHOM_OK;
}

/* The step's operators in its order, so that each finds what the one before left. */
static fathom_err run_all(struct context *x, const struct op_bench_shape *shape,
                          op_bench_report *report, void *arg)
{
    const struct backend_config *c = &x->p->c;
    double rows = x->batch.n_logit_row;
    struct cost router = product(x->p, x->batch.n_token, c->n_expert, c->hidden, 2);
    struct cost draws = {rows * c->n_vocab * 4, 0};
    const struct {
        const char *name;
        op_run *run;
        struct cost cost;
        bool present;
    } ops[] = {
        {"embed", run_embed, cost_of_rows(x, 2 + 4), true},
        {"reduce_norm", run_norm, cost_of_rows(x, 4 + 4 + 4 + 2), true},
        {"mla_front", run_front, cost_front(x), true},
        {"index_topk", run_index, cost_index(x), x->is_long},
        {"mla_attend", run_attend, cost_attend(x), true},
        {"mla_out", run_out, cost_out(x), true},
        {"ffn", run_ffn, cost_ffn(x), true},
        {"router", run_router, router, c->n_expert > 0},
        {"moe", run_moe, cost_moe(x), c->n_expert > 0},
        {"head", run_head, product(x->p, rows, c->n_vocab, c->hidden, 2), true},
        {"sample", run_sample, draws, true},
        {"sample_cut", run_sample_cut, draws, true},
    };
    for (size_t i = 0; i < sizeof ops / sizeof *ops; i++) {
        struct op_bench_row row = {.op = ops[i].name,
                                   .shape = *shape,
                                   .bytes = ops[i].cost.bytes,
                                   .flop = ops[i].cost.flop};
        if (!ops[i].present) continue;
        if (x->p->o.only && strcmp(x->p->o.only, row.op) != 0) {
            TRY(ops[i].run(x));
            continue;
        }
        TRY(time_op(x, ops[i].run, &row.us));
        if (x->p->with_trains) TRY(time_train(x, ops[i].run, &row.train_us));
        row.floor_us = 1e6 * row.bytes / x->p->bandwidth;
        report(arg, &row);
    }
    return FATHOM_OK;
}

fathom_err op_bench_run(struct op_bench *p, const struct op_bench_shape *shape,
                        op_bench_report *report, void *arg, fathom_diag *d)
{
    const struct model_limits *l = &p->limits;
    uint32_t n_request = shape->is_prefill ? 1 : shape->n_token;
    uint32_t n_each = shape->is_prefill ? shape->n_token : 1;
    if (shape->n_token == 0 || shape->n_token > l->max_token || n_request > l->max_request ||
        shape->context > l->max_context || shape->context < n_each) {
        FAIL(d, FATHOM_EINVAL,
             "a step of %u tokens, context %u: at most %u tokens, %u requests, "
             "context %u",
             shape->n_token, shape->context, l->max_token, l->max_request, l->max_context);
    }
    struct context x = {.p = p};
    fathom_err err = make_batch(p, shape, &x.batch);
    x.is_long = p->c.index_topk > 0 && shape->context > p->c.index_topk;
    if (!err) err = make_draws(&x);
    if (!err) err = run_all(&x, shape, report, arg);
    if (err) return diag_fail(d, err, "%s", p->ops->fault(p->b));
    return FATHOM_OK;
}
