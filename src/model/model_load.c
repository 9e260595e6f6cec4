/* model_load.c - from views of a checkpoint to weights and buffers on a backend */
#include <stdio.h>
#include <string.h>

#include "base/assert.h"
#include "base/fail.h"
#include "base/log.h"
#include "base/mem.h"
#include "model/config.h"
#include "model/forward.h"
#include "model/model_int.h"
#include "model/quantize.h"
#include "model/stages.h"
#include "model/weights.h"

void model_backend_config(struct backend_config *out, const struct model_config *config,
                          const struct model_limits *limits, const struct model_place *place)
{
    const struct model_config *c = config;
    const struct parallel *p = &place->parallel;
    ASSERT(c->n_head % parallel_axis(p, CUT_HEADS).size == 0);
    ASSERT(c->dense_inner % parallel_axis(p, CUT_INNER).size == 0);
    ASSERT(c->moe_inner % parallel_axis(p, CUT_EXPERT_INNER).size == 0);
    ASSERT(c->n_vocab % parallel_axis(p, CUT_VOCAB).size == 0);
    memset(out, 0, sizeof *out);
    out->act = limits->act;
    out->hidden = c->hidden;
    out->n_head = parallel_part(p, CUT_HEADS, c->n_head);
    out->q_lora_rank = c->q_lora_rank;
    out->nope_dim = MODEL_QK_NOPE_DIM;
    out->v_dim = MODEL_V_DIM;
    out->softmax_scale = c->softmax_scale;
    out->norm_eps = c->norm_eps;
    rope_frequencies(out->rope_freq, KV_ROPE, c->rope_theta, &c->yarn);
    out->rope_interleaved = c->rope_interleaved;
    out->index_rope_interleaved = c->index_rope_interleaved;
    if (c->has_indexer) {
        out->index_n_head = c->index_n_head;
        out->index_topk = c->index_topk;
    }
    out->dense_inner = parallel_part(p, CUT_INNER, c->dense_inner);
    out->n_expert = c->n_expert;
    out->n_expert_used = c->n_expert_used;
    out->n_group = c->n_group;
    out->topk_group = c->topk_group;
    out->moe_inner = parallel_part(p, CUT_EXPERT_INNER, c->moe_inner);
    out->shared_inner = parallel_part(p, CUT_SHARED_INNER, c->n_shared_expert * c->moe_inner);
    out->routed_scale = c->routed_scale;
    out->norm_topk = c->norm_topk;
    out->n_vocab = p->is_slice ? parallel_part(p, CUT_VOCAB, c->n_vocab) : c->n_vocab;
    stages_layout(&out->kv, c, limits->kv_type, limits->with_mtp, p);
    out->max_token = limits->max_token;
    out->max_request = limits->max_request;
    out->max_context = limits->max_context;
    out->max_logit_row = limits->max_logit_row;
    out->n_thread = place->n_thread;
    out->i_local = place->i_local;
    out->n_local = place->n_local;
    out->device = place->device;
    out->patience_ms = place->patience_ms;
    out->net = place->net;
    out->n_host = place->n_host;
    out->parallel = *p;
    out->parallel.pp = (struct axis){0}; /* a backend has peers alone */
}

/* ---- weights ---- */

/* Where a tensor belongs, for messages. A backend names the tensor; this names the rest. */
struct place {
    fathom_diag *d;
    char what[48];
};

static fathom_err name_place(const struct place *p, fathom_err err, const fathom_diag *inner)
{
    if (err == FATHOM_OK) return err;
    return diag_fail(p->d, err, "%s: %s", p->what,
                     inner->text[0] ? inner->text : fathom_err_text(err));
}

static fathom_err load_vector(struct model *m, const struct place *p, const struct tensor_view *v,
                              struct weight **out)
{
    fathom_diag inner = {{0}};
    return name_place(p, m->ops->prepare_vector(m->b, v, out, &inner), &inner);
}

static fathom_err load_linear(struct model *m, const struct place *p, const struct tensor_view *v,
                              struct weight **out)
{
    fathom_diag inner = {{0}};
    return name_place(p, m->ops->prepare_linear(m->b, v, out, &inner), &inner);
}

static struct place place_of(fathom_diag *d, const char *what)
{
    struct place p = {.d = d};
    snprintf(p.what, sizeof p.what, "%s", what);
    return p;
}

static struct place place_in_layer(fathom_diag *d, uint32_t i_layer, const char *what)
{
    struct place p = {.d = d};
    snprintf(p.what, sizeof p.what, "layer %u, %s", i_layer, what);
    return p;
}

static fathom_err load_layer(struct model *m, uint32_t i_layer, const struct layer_views *v,
                             struct layer *out, fathom_diag *d)
{
    fathom_diag inner = {{0}};
    struct place norm = place_in_layer(d, i_layer, "input_layernorm");
    TRY(load_vector(m, &norm, &v->input_norm, &out->input_norm));
    struct place attention = place_in_layer(d, i_layer, "self_attn");
    TRY(name_place(&attention, m->ops->prepare_mla(m->b, &v->mla, &out->mla, &inner), &inner));
    norm = place_in_layer(d, i_layer, "post_attention_layernorm");
    TRY(load_vector(m, &norm, &v->post_norm, &out->post_norm));

    struct place ffn = place_in_layer(d, i_layer, "mlp");
    out->is_moe = v->moe.experts != NULL;
    fathom_err err = out->is_moe ? m->ops->prepare_moe(m->b, &v->moe, &out->ffn, &inner)
                                 : m->ops->prepare_ffn(m->b, &v->dense, &out->ffn, &inner);
    return name_place(&ffn, err, &inner);
}

static fathom_err load_mtp(struct model *m, uint32_t i_layer, const struct layer_views *v,
                           fathom_diag *d)
{
    struct place place = place_in_layer(d, i_layer, "enorm");
    TRY(load_vector(m, &place, &v->enorm, &m->mtp.enorm));
    place = place_in_layer(d, i_layer, "hnorm");
    TRY(load_vector(m, &place, &v->hnorm, &m->mtp.hnorm));
    place = place_in_layer(d, i_layer, "eh_proj");
    TRY(load_linear(m, &place, &v->eh_proj, &m->mtp.eh_proj));
    place = place_in_layer(d, i_layer, "shared_head.norm");
    TRY(load_vector(m, &place, &v->head_norm, &m->mtp.head_norm));
    return load_layer(m, i_layer, v, &m->mtp.layer, d);
}

/* Layer i of the model, or the MTP layer after the last; through q if it is not NULL. */
static fathom_err load_one(struct model *m, uint32_t i, const struct model_weights *w,
                           struct quantizer *q, fathom_diag *d)
{
    struct layer_views quantized;
    const struct layer_views *v = &w->layers[i];
    ASSERT(i < w->n_layer + w->n_mtp);
    if (q) {
        TRY(quantize_layer(q, v, &quantized, d));
        v = &quantized;
    }
    if (i >= w->n_layer) return load_mtp(m, i, v, d);
    ASSERT(i >= m->first_layer && i - m->first_layer < m->n_layer);
    return load_layer(m, i, v, &m->layers[i - m->first_layer], d);
}

/* The layers of the model's stage. */
static fathom_err load_layers(struct model *m, const struct model_weights *w,
                              const struct model_config *config,
                              const struct model_loading *loading, fathom_diag *d)
{
    struct quantizer q = {0};
    fathom_err err = FATHOM_OK;
    const uint32_t n_held = parallel_part(&w->parallel, CUT_EXPERTS, config->n_expert);
    if (loading->quantize_fp8) err = quantizer_init(&q, n_held, loading->n_thread, d);
    uint32_t n = m->n_layer + (m->has_mtp ? 1 : 0);
    for (uint32_t i = 0; i < n && !err; i++) {
        const uint32_t i_layer = i < m->n_layer ? m->first_layer + i : w->n_layer;
        err = load_one(m, i_layer, w, loading->quantize_fp8 ? &q : NULL, d);
        if (loading->let_go) loading->let_go(loading->let_go_arg);
        if (err || !loading->on_load) continue;
        loading->on_load(loading->on_load_arg, model_weights_bytes(m), loading->load_bytes);
    }
    quantizer_fini(&q);
    return err;
}

static fathom_err load_head(struct model *m, const struct model_weights *w,
                            const struct model_loading *loading, fathom_diag *d)
{
    static const char *const names[] = {
        [HEAD_STORED] = "as stored", [HEAD_INT8] = "int8", [HEAD_FP8] = "fp8"};
    const struct place place = place_of(d, "lm_head");
    struct tensor_view head = w->head;
    enum head_form form = loading->head;
    struct quantizer q = {0};
    fathom_err err = FATHOM_OK;
    double kl = 0;
    if (form == HEAD_STORED) return load_linear(m, &place, &w->head, &m->head);
    TRY(quantizer_init(&q, 0, loading->n_thread, d));
    err = quantize_head(&q, &form, &w->final_norm, &head, &kl, d);
    if (!err) err = load_linear(m, &place, &head, &m->head);
    if (!err) LOG_INFO("model", "head=\"%s\" int8_kl=%.1e nats (estimated)", names[form], kl);
    quantizer_fini(&q);
    return err;
}

static fathom_err load_weights(struct model *m, const struct model_weights *w,
                               const struct model_config *config,
                               const struct model_loading *loading, fathom_diag *d)
{
    struct place place = place_of(d, "embed_tokens");
    if (m->is_first || m->has_mtp) TRY(load_linear(m, &place, &w->embed, &m->embed));
    place = place_of(d, "norm");
    if (m->is_last) TRY(load_vector(m, &place, &w->final_norm, &m->final_norm));
    if (m->is_last) TRY(load_head(m, w, loading, d));
    return load_layers(m, w, config, loading, d);
}

/* ---- buffers ---- */

struct buffer_entry {
    enum buffer_kind kind;
    struct buffer **buffer;
};

enum { N_BUFFER = 9 };

static void list_buffers(struct model *m, struct buffer_entry out[N_BUFFER])
{
    const struct buffer_entry entries[N_BUFFER] = {
        {BUFFER_RESIDUAL, &m->residual}, {BUFFER_NORMED, &m->normed},
        {BUFFER_NORMED, &m->hiddens[0]}, {BUFFER_DELTA, &m->delta},
        {BUFFER_QUERY, &m->query},       {BUFFER_SELECT, &m->select},
        {BUFFER_LATENT, &m->latent},     {BUFFER_ROUTE, &m->route},
        {BUFFER_LOGITS, &m->logits},
    };
    memcpy(out, entries, sizeof entries);
}

static fathom_err make_buffers(struct model *m, uint32_t n_hidden, fathom_diag *d)
{
    struct buffer_entry entries[N_BUFFER];
    list_buffers(m, entries);
    for (int i = 0; i < N_BUFFER; i++) {
        if (entries[i].kind == BUFFER_LOGITS && !m->is_last) continue;
        TRY(m->ops->buffer_create(m->b, entries[i].kind, entries[i].buffer, d));
    }
    for (uint32_t i = 1; i < n_hidden && m->has_mtp; i++)
        TRY(m->ops->buffer_create(m->b, BUFFER_NORMED, &m->hiddens[i], d));
    m->hidden = m->hiddens[0];
    if (!m->ops->own_rows) return FATHOM_OK;
    return m->ops->buffer_create(m->b, BUFFER_ROUTE, &m->own_route, d);
}

/* The table of moe_ep: where each expert is. */
static fathom_err make_places(struct model *m, const struct model_config *config,
                              const struct parallel *p, fathom_diag *d)
{
    const size_t bytes = config->n_expert * sizeof(uint16_t);
    void *device = NULL;
    if (!parallel_moves_rows(p) || bytes == 0) return FATHOM_OK;
    if (!m->ops->moe_ep) FAIL(d, FATHOM_EUNSUPPORTED, "the backend has no whole experts on ranks");
    uint16_t *host = mem_alloc(bytes);
    if (!host) FAIL(d, FATHOM_ENOMEM, "no memory for the places of %u experts", config->n_expert);
    for (uint32_t e = 0; e < config->n_expert; e++)
        host[e] = parallel_place(p, config->n_expert, e);
    fathom_err err = m->ops->alloc(m->b, bytes, "places of experts", &device, d);
    m->place = device;
    if (!err) err = m->ops->copy_in(m->b, device, host, bytes);
    if (!err) err = m->ops->sync(m->b);
    mem_free(host);
    return err;
}

static fathom_err make_watch(struct expert_watch *w, const struct model_config *config,
                             fathom_diag *d)
{
    w->n_expert = config->n_expert;
    w->n_used = config->n_expert_used;
    if (w->n_expert == 0) return FATHOM_OK;
    w->routes = mem_alloc_array((size_t)EXPERT_WATCH_ROWS * 2 * w->n_used, sizeof *w->routes);
    w->n_row = mem_alloc_array(w->n_expert, sizeof *w->n_row);
    if (!w->routes || !w->n_row) FAIL(d, FATHOM_ENOMEM, "no memory for counts of experts");
    return FATHOM_OK;
}

/* ---- the model ---- */

/* A stage of a model before its weights. */
static fathom_err make_model(struct model **out, struct backend *b,
                             const struct model_config *config, const struct parallel *p,
                             fathom_diag *d)
{
    const struct layer_run run = parallel_layers(p, config->n_layer);
    ASSERT(run.first < run.end && run.end <= config->n_layer);
    struct model *m = mem_calloc(1, sizeof *m);
    if (!m) FAIL(d, FATHOM_ENOMEM, "no memory for the model");
    m->b = b;
    m->ops = b->ops;
    m->first_layer = run.first;
    m->n_layer = run.end - run.first;
    m->is_first = parallel_is_first(p);
    m->is_last = parallel_is_last(p);
    m->hidden_width = config->hidden;
    m->index_topk = config->has_indexer ? config->index_topk : 0;
    m->layers = mem_calloc(m->n_layer, sizeof *m->layers);
    *out = m;
    if (!m->layers) FAIL(d, FATHOM_ENOMEM, "no memory for a table of %u layers", m->n_layer);
    return FATHOM_OK;
}

/* What steps need beside weights. */
static fathom_err make_rest(struct model *m, const struct model_config *config,
                            const struct parallel *p, uint32_t n_hidden, fathom_diag *d)
{
    TRY(make_buffers(m, n_hidden, d));
    TRY(make_places(m, config, p, d));
    return make_watch(&m->watch, config, d);
}

fathom_err model_create(struct model **out, struct backend *b, const struct model_config *config,
                        const struct model_weights *weights, const struct model_limits *limits,
                        const struct model_loading *loading, fathom_diag *d)
{
    struct model *m = NULL;
    fathom_err err;
    ASSERT(weights->n_layer == config->n_layer && weights->n_mtp <= config->n_mtp);
    ASSERT(limits->n_flight <= PARALLEL_STAGES_MAX);
    *out = NULL;
    TRY_GOTO(make_model(&m, b, config, &weights->parallel, d), fail);
    m->has_mtp = limits->with_mtp && weights->n_mtp > 0 && m->is_last;
    TRY_GOTO(load_weights(m, weights, config, loading, d), fail);
    TRY_GOTO(make_rest(m, config, &weights->parallel, limits->n_flight, d), fail);
    *out = m;
    return FATHOM_OK;

fail:
    model_destroy(m);
    return err;
}

fathom_err model_create_empty(struct model **out, struct backend *b,
                              const struct model_config *config, fathom_diag *d)
{
    const struct parallel one = parallel_one();
    struct model *m = NULL;
    fathom_err err;
    *out = NULL;
    TRY_GOTO(make_model(&m, b, config, &one, d), fail);
    TRY_GOTO(make_rest(m, config, &one, 1, d), fail);
    *out = m;
    return FATHOM_OK;

fail:
    model_destroy(m);
    return err;
}

fathom_err model_load_layer(struct model *m, const struct model_weights *w, uint32_t i_layer,
                            fathom_diag *d)
{
    ASSERT(i_layer < m->n_layer);
    return load_layer(m, i_layer, &w->layers[i_layer], &m->layers[i_layer], d);
}

void model_drop_layer(struct model *m, uint32_t i_layer)
{
    struct layer *layer = &m->layers[i_layer];
    ASSERT(i_layer < m->n_layer);
    m->ops->weight_destroy(m->b, layer->input_norm);
    m->ops->weight_destroy(m->b, layer->post_norm);
    m->ops->weight_destroy(m->b, layer->mla);
    m->ops->weight_destroy(m->b, layer->ffn);
    *layer = (struct layer){0};
}

/* Every weight, once; what is not loaded is NULL. */
static void each_weight(const struct model *m, void (*visit)(void *arg, struct weight *w),
                        void *arg)
{
    struct weight *single[] = {m->embed,     m->head,        m->final_norm,   m->mtp.enorm,
                               m->mtp.hnorm, m->mtp.eh_proj, m->mtp.head_norm};
    for (size_t i = 0; i < sizeof single / sizeof *single; i++) visit(arg, single[i]);
    for (uint32_t i = 0; i <= m->n_layer; i++) {
        const struct layer *layer = i < m->n_layer ? m->layers + i : &m->mtp.layer;
        if (!m->layers) break;
        visit(arg, layer->input_norm);
        visit(arg, layer->post_norm);
        visit(arg, layer->mla);
        visit(arg, layer->ffn);
    }
}

static void destroy_weight(void *arg, struct weight *w)
{
    struct model *m = arg;
    m->ops->weight_destroy(m->b, w);
}

void model_destroy(struct model *m)
{
    if (!m) return;
    struct buffer_entry entries[N_BUFFER];
    list_buffers(m, entries);
    for (int i = 0; i < N_BUFFER; i++) m->ops->buffer_destroy(m->b, *entries[i].buffer);
    for (int i = 1; i < PARALLEL_STAGES_MAX; i++) m->ops->buffer_destroy(m->b, m->hiddens[i]);
    m->ops->buffer_destroy(m->b, m->own_route);
    if (m->place) m->ops->release(m->b, m->place);
    each_weight(m, destroy_weight, m);
    mem_free(m->watch.routes);
    mem_free(m->watch.n_row);
    mem_free(m->layers);
    mem_free(m);
}

struct byte_count {
    const struct model *m;
    uint64_t n;
};

static void count_weight(void *arg, struct weight *w)
{
    struct byte_count *count = arg;
    if (w) count->n += count->m->ops->weight_bytes(w);
}

uint64_t model_weights_bytes(const struct model *m)
{
    struct byte_count count = {.m = m};
    each_weight(m, count_weight, &count);
    return count.n;
}
