/* weights_bind.c - from the binding table to the views of one rank */
#include "model/weights.h"

#include <string.h>

#include "base/assert.h"
#include "base/fail.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/rng.h"
#include "checkpoint/checkpoint.h"
#include "model/config.h"
#include "model/weights_int.h"

/* A copy of bytes that cannot be used where they lie; freed with the weights. */
struct owned_block {
    struct owned_block *next;
    uint64_t bytes[]; /* aligned for anything kept in it */
};

/* Where a binding stands. c is NULL when values are to be generated. */
struct bind {
    struct model_weights *w;
    const struct checkpoint *c;
    const struct model_config *config;
    uint64_t seed;
    bool has_warned; /* of groups */
    fathom_diag *d;
};

/* ---- places ---------------------------------------------------------------------------------- */

struct tensor_view *weights_view_of(struct model_weights *w, const struct weight_need *need,
                                    const struct model_config *config)
{
    char *base;
    struct layer_views *layer = &w->layers[need->layer];
    ASSERT(need->layer < w->n_layer + w->n_mtp);
    switch (need->rule->scope) {
    case SCOPE_MODEL: base = (char *)w; break;
    case SCOPE_EXPERT: {
        ptrdiff_t first = layer->moe.experts - w->experts;
        const uint32_t n_held = parallel_part(&w->parallel, CUT_EXPERTS, config->n_expert);
        ASSERT(need->expert < config->n_expert && weights_is_held(need, config, &w->parallel));
        base = (char *)&w->experts[first + need->expert % n_held];
        break;
    }
    default: base = (char *)layer; break;
    }
    return (struct tensor_view *)(void *)(base + need->rule->offset);
}

/* Room for the layers' views and, in one block, for all experts'. */
static fathom_err reserve(struct bind *b, uint32_t n_mtp)
{
    struct model_weights *w = b->w;
    const struct model_config *config = b->config;
    uint32_t n = config->n_layer + n_mtp;
    const uint32_t n_held = parallel_part(&w->parallel, CUT_EXPERTS, config->n_expert);
    size_t n_moe = 0;
    for (uint32_t i = 0; i < n; i++) n_moe += model_config_layer_is_moe(config, i);

    w->n_layer = config->n_layer;
    w->n_mtp = n_mtp;
    w->layers = mem_calloc(n, sizeof *w->layers);
    w->experts = mem_calloc(n_moe * n_held, sizeof *w->experts);
    if (!w->layers || !w->experts) {
        FAIL(b->d, FATHOM_ENOMEM, "out of memory for the views of %u layers", n);
    }
    struct ffn_tensors *next = w->experts;
    for (uint32_t i = 0; i < n; i++) {
        if (!model_config_layer_is_moe(config, i)) continue;
        w->layers[i].moe.experts = next;
        next += n_held;
    }
    ASSERT(next == w->experts + n_moe * n_held);
    return FATHOM_OK;
}

/* Room that lives as long as the weights. */
static fathom_err own_bytes(struct bind *b, size_t bytes, void **out)
{
    struct owned_block *block = mem_alloc(sizeof *block + bytes);
    if (!block) FAIL(b->d, FATHOM_ENOMEM, "out of memory for %zu bytes of scales", bytes);
    block->next = b->w->owned;
    b->w->owned = block;
    b->w->owned_bytes += bytes;
    *out = block->bytes;
    return FATHOM_OK;
}

static fathom_err own_floats(struct bind *b, size_t n, float **out)
{
    void *bytes = NULL;
    TRY(own_bytes(b, n * sizeof(float), &bytes));
    *out = bytes;
    return FATHOM_OK;
}

/* ---- views ----------------------------------------------------------------------------------- */

/* Scales are read as floats: an unaligned tensor of them is copied, one of another type widened. */
static fathom_err floats_of(struct bind *b, const struct tensor *t, const float **out)
{
    float *copy = NULL;
    *out = t->data;
    if (t->dtype == DTYPE_F32 && (uintptr_t)t->data % sizeof(float) == 0) return FATHOM_OK;
    size_t n = t->n_bytes / dtype_size(t->dtype);
    TRY(own_floats(b, n, &copy));
    for (size_t i = 0; i < n; i++) copy[i] = weight_scale_value(t->dtype, t->data, i);
    *out = copy;
    return FATHOM_OK;
}

static fathom_err view_scale(struct bind *b, struct tensor_view *v,
                             const struct weight_found *found, const struct weight_part *s)
{
    const struct weight_form *form = &found->form;
    const struct tensor *scale = weight_format_scale(found);
    const float *values;
    TRY(floats_of(b, scale, &values));
    uint32_t row = form->block_row ? s->row0 / form->block_row : 0;
    uint32_t col = form->block_col ? s->col0 / form->block_col : 0;
    v->scale_stride = form->block_col && scale->n_dim == 2 ? (uint32_t)scale->dim[1] : 1;
    v->scale_row0 = form->block_row ? s->row0 % form->block_row : 0;
    v->scale_col0 = form->block_col ? s->col0 % form->block_col : 0;
    v->scale_block_row = form->block_row ? form->block_row : TENSOR_SCALE_WHOLE;
    v->scale_block_col = form->block_col ? form->block_col : TENSOR_SCALE_WHOLE;
    v->scale = values + (size_t)row * v->scale_stride + col;
    return FATHOM_OK;
}

/* A part of a matrix that is unpacked on demand. */
static fathom_err view_source(struct bind *b, struct tensor_view *v,
                              const struct weight_source *source, const struct weight_part *s)
{
    void *room = NULL;
    TRY(own_bytes(b, sizeof *source, &room));
    memcpy(room, source, sizeof *source);
    *v = (struct tensor_view){.n_row = s->n_row,
                              .n_col = s->n_col,
                              .source = room,
                              .source_row0 = s->row0,
                              .source_col0 = s->col0};
    return FATHOM_OK;
}

/* A vector as f32, whatever 16-bit type it has in the file. */
static fathom_err widen_vector(struct bind *b, struct tensor_view *v)
{
    if (v->dtype == DTYPE_F32) return FATHOM_OK;
    float *values = NULL;
    ASSERT(v->n_row == 1 && (v->dtype == DTYPE_BF16 || v->dtype == DTYPE_F16));
    TRY(own_floats(b, v->n_col, &values));
    for (uint32_t i = 0; i < v->n_col; i++) {
        uint16_t h;
        memcpy(&h, (const char *)v->data + (size_t)i * sizeof h, sizeof h);
        values[i] = v->dtype == DTYPE_BF16 ? f32_from_bf16(h) : f32_from_f16(h);
    }
    v->data = values;
    v->dtype = DTYPE_F32;
    return FATHOM_OK;
}

/* Shapes are right; a config that says otherwise may be another checkpoint's. */
static void warn_of_group(struct bind *b, const struct weight_need *need, uint32_t group)
{
    if (b->has_warned || !b->config->quant_group || !group || group == b->config->quant_group)
        return;
    b->has_warned = true;
    LOG_WARN("model", "tensor=%s has groups of %u inputs, config.json says %u: %u is used",
             need->name, group, b->config->quant_group, group);
}

static fathom_err bind_one(void *arg, const struct weight_need *need)
{
    struct bind *b = arg;
    struct weight_found found;
    if (!weights_is_held(need, b->config, &b->w->parallel)) return FATHOM_OK;
    TRY(weights_match(&found, b->c, need, b->config, b->d));
    const struct tensor *t = found.part[PART_WEIGHT];
    struct tensor_view *v = weights_view_of(b->w, need, b->config);
    struct weight_part s = weights_part(need, &b->w->parallel);
    if (found.format) TRY(weight_format_check_values(&found, need->n_col, b->d));
    if (found.format && found.format->codes) {
        struct weight_source source;
        TRY(weights_check_cut(&found.form, need, &s, b->d));
        if (found.form.code == CODE_U4) warn_of_group(b, need, found.form.block_col);
        weight_format_source(&source, &found, b->config, need->n_row, need->n_col);
        return view_source(b, v, &source, &s);
    }
    uint64_t first = (uint64_t)s.row0 * need->n_col + s.col0;
    *v = (struct tensor_view){
        .data = (const char *)t->data + first * dtype_size(t->dtype),
        .dtype = t->dtype,
        .n_row = s.n_row,
        .n_col = s.n_col,
        .row_stride = need->n_col,
    };
    if (found.form.scale_type != DTYPE_NONE) TRY(view_scale(b, v, &found, &s));
    return need->rule->storage == STORED_VECTOR_F32 ? widen_vector(b, v) : FATHOM_OK;
}

#define WEIGHT_STD 0.02f /* of made-up weights but norms */

/* Norm weights are spread around zero like all others: such a model computes, it does not speak.
 * The ranks' parts are those of one model, whatever their number. */
static fathom_err generate_one(void *arg, const struct weight_need *need)
{
    struct bind *b = arg;
    const struct weight_rule *rule = need->rule;
    ASSERT(!b->c);
    if (!weights_is_held(need, b->config, &b->w->parallel)) return FATHOM_OK;
    struct weight_part s = weights_part(need, &b->w->parallel);
    bool is_norm = rule->storage == STORED_VECTOR;
    const struct weight_form form = weights_expected_form(b->config, need);
    uint64_t key = rng_mix(b->seed, rule->offset, rule->scope);
    key = rng_mix(key, (uint64_t)need->layer << 32 | need->expert, 0);
    struct tensor_view *v = weights_view_of(b->w, need, b->config);
    if (form.code == CODE_U4 || form.code == CODE_E2M1) {
        struct weight_source source;
        TRY(weights_check_cut(&form, need, &s, b->d));
        weight_source_make(&source, &form, need->n_row, need->n_col, key, WEIGHT_STD);
        return view_source(b, v, &source, &s);
    }
    *v = (struct tensor_view){
        .dtype = form.code == CODE_E4M3 ? DTYPE_F8_E4M3
                 : form.code == CODE_I8 ? DTYPE_I8
                                        : form.type,
        .n_row = s.n_row,
        .n_col = s.n_col,
        .row_stride = need->n_col,
        .generate_seed = key,
        .generate_row0 = s.row0,
        .generate_col0 = s.col0,
        .generate_std = is_norm ? 1.0f : WEIGHT_STD,
    };
    if (form.code == CODE_I8) {
        v->scale_block_row = form.block_row;
        v->scale_block_col = form.block_col ? form.block_col : TENSOR_SCALE_WHOLE;
    }
    return FATHOM_OK;
}

/* ---- whole models ---------------------------------------------------------------------------- */

fathom_err weights_check_parallel(const struct model_config *config, const struct parallel *p,
                                  fathom_diag *d)
{
    const struct {
        const char *key;
        uint32_t value;
        enum parallel_cut cut;
    } cuts[] = {
        {"num_attention_heads", config->n_head, CUT_HEADS},
        {"intermediate_size", config->dense_inner, CUT_INNER},
        {"moe_intermediate_size", config->moe_inner, CUT_EXPERT_INNER},
        {"moe_intermediate_size", config->n_shared_expert * config->moe_inner, CUT_SHARED_INNER},
        {"hidden_size", 2 * config->hidden, config->n_mtp ? CUT_INNER : CUT_NONE},
        {"vocab_size", config->n_vocab, CUT_VOCAB},
        {"n_routed_experts", config->n_expert, CUT_EXPERTS}};
    if (p->dp.size > 1 && !p->experts_whole) {
        FAIL(d, FATHOM_EINVAL,
             "%u ranks with requests of their own: needed are experts whole on a rank", p->dp.size);
    }
    for (size_t i = 0; i < sizeof cuts / sizeof *cuts; i++) {
        uint32_t n_rank = parallel_axis(p, cuts[i].cut).size;
        if (n_rank == 0) {
            FAIL(d, FATHOM_EINVAL, "the number of ranks is 0, needed is 1 or more");
        }
        if (cuts[i].value % n_rank == 0) continue;
        FAIL(d, FATHOM_EINVAL,
             "\"%s\" is %u, which %u ranks cannot share: choose a number of ranks that divides it",
             cuts[i].key, cuts[i].value, n_rank);
    }
    const uint32_t n_held = parallel_part(p, CUT_EXPERTS, config->n_expert);
    if (p->experts_whole && n_held > EXPERTS_HELD_MAX) {
        FAIL(d, FATHOM_EINVAL, "\"n_routed_experts\" is %u, %u on each of %u ranks: at most %d are",
             config->n_expert, n_held, parallel_n_peer(p), EXPERTS_HELD_MAX);
    }
    return FATHOM_OK;
}

static fathom_err begin(struct bind *b, const struct parallel *p)
{
    memset(b->w, 0, sizeof *b->w);
    TRY(model_config_check_quant(b->config, b->d));
    TRY(weights_check_parallel(b->config, p, b->d));
    ASSERT(parallel_rank(p) < parallel_n_rank(p) && p->pp.size <= PARALLEL_STAGES_MAX);
    b->w->parallel = *p;
    return FATHOM_OK;
}

/* Keeps the first fault's message. */
static void keep_first(void *arg, const char *message)
{
    fathom_diag *first = arg;
    (void)diag_fail(first, FATHOM_EMISMATCH, "%s", message);
}

fathom_err weights_bind(struct model_weights *w, const struct checkpoint *c,
                        const struct model_config *config, const struct parallel *p, fathom_diag *d)
{
    struct bind b = {.w = w, .c = c, .config = config, .d = d};
    TRY(begin(&b, p));
    uint32_t n_mtp = weights_count_mtp(c, config);
    if (n_mtp < config->n_mtp) {
        LOG_INFO("model", "mtp_layers=%u of %u announced: drafting is off", n_mtp, config->n_mtp);
    }
    fathom_diag first = {0};
    size_t n_fault = weights_check(c, config, keep_first, &first);
    if (n_fault > 1) {
        FAIL(d, FATHOM_EMISMATCH, "%s: %s (and %zu more)", checkpoint_where(c), first.text,
             n_fault - 1);
    }
    if (n_fault) FAIL(d, FATHOM_EMISMATCH, "%s: %s", checkpoint_where(c), first.text);

    fathom_err err;
    TRY_GOTO(reserve(&b, n_mtp), fail);
    TRY_GOTO(weights_walk(config, n_mtp, bind_one, &b), fail);
    return FATHOM_OK;
fail:
    weights_release(w);
    return err;
}

fathom_err weights_generate(struct model_weights *w, const struct model_config *config,
                            uint64_t seed, const struct parallel *p, fathom_diag *d)
{
    struct bind b = {.w = w, .config = config, .seed = seed, .d = d};
    memset(w, 0, sizeof *w);
    TRY(begin(&b, p));
    fathom_err err;
    TRY_GOTO(reserve(&b, config->n_mtp), fail);
    TRY_GOTO(weights_walk(config, config->n_mtp, generate_one, &b), fail);
    return FATHOM_OK;
fail:
    weights_release(w);
    return err;
}

void weights_release(struct model_weights *w)
{
    while (w->owned) {
        struct owned_block *block = w->owned;
        w->owned = block->next;
        mem_free(block);
    }
    mem_free(w->layers);
    mem_free(w->experts);
    memset(w, 0, sizeof *w);
}
