/* plan.c - what a conversion makes of each tensor */
#include "quantize/plan.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/assert.h"
#include "base/fail.h"
#include "base/json.h"
#include "base/mem.h"
#include "checkpoint/checkpoint.h"

/* ---- names ----------------------------------------------------------------------------------- */

static const char *const methods[] = {
    [METHOD_RTN] = "rtn", [METHOD_MSE] = "mse", [METHOD_SCALE] = "scale", [METHOD_GPTQ] = "gptq"};

const char *quant_method_text(enum quant_method_name method)
{
    return methods[method];
}

bool quant_scheme_of(struct quant_scheme *out, const char *scheme, uint32_t group,
                     const char *method)
{
    static const struct quant_scheme schemes[] = {
        {.name = "w4a16", .code = CODE_U4},
        {.name = "w4a16_asym", .code = CODE_U4, .asymmetric = true},
        {.name = "w8a8", .code = CODE_I8},
        {.name = "fp8", .code = CODE_E4M3, .is_block = true},
        {.name = "fp8_channel", .code = CODE_E4M3},
    };
    bool has_method = false;
    for (size_t i = 0; i < sizeof schemes / sizeof *schemes; i++) {
        if (strcmp(scheme, schemes[i].name) != 0) continue;
        *out = schemes[i];
        out->group = out->code == CODE_U4 ? group : 0;
        for (int m = METHOD_RTN; m <= METHOD_GPTQ; m++) {
            if (strcmp(method, methods[m]) != 0) continue;
            out->method = (enum quant_method_name)m;
            has_method = out->code != CODE_E4M3 || !quant_method_calibrates(out->method);
        }
        return has_method;
    }
    return false;
}

static const struct {
    const char *name;
    unsigned bits;
} targets_by_name[] = {
    {"experts", TARGET_EXPERTS},     {"shared", TARGET_SHARED}, {"dense", TARGET_DENSE},
    {"attention", TARGET_ATTENTION}, {"kv_b", TARGET_KV_B},     {"indexer", TARGET_INDEXER},
    {"linear", TARGET_LINEAR},
};

unsigned quant_target_of(const char *name)
{
    for (size_t i = 0; i < sizeof targets_by_name / sizeof *targets_by_name; i++) {
        if (strcmp(name, targets_by_name[i].name) == 0) return targets_by_name[i].bits;
    }
    return 0;
}

const char *quant_target_name(unsigned target)
{
    for (size_t i = 0; i < sizeof targets_by_name / sizeof *targets_by_name; i++) {
        if (target == targets_by_name[i].bits) return targets_by_name[i].name;
    }
    ASSERT(!"a target");
    return "";
}

static enum quant_target target_of(const struct weight_linear *linear)
{
    switch (linear->kind) {
    case WEIGHT_EXPERTS: return TARGET_EXPERTS;
    case WEIGHT_SHARED: return TARGET_SHARED;
    case WEIGHT_DENSE: return TARGET_DENSE;
    case WEIGHT_INDEXER: return TARGET_INDEXER;
    default: return strstr(linear->name, ".kv_b_proj.") ? TARGET_KV_B : TARGET_ATTENTION;
    }
}

/* ---- sizes ----------------------------------------------------------------------------------- */

static uint64_t blocks_of(uint64_t n, uint64_t block)
{
    return n / block + (n % block != 0);
}

uint32_t plan_layer_used(const struct plan *p, uint32_t layer)
{
    return model_config_layer_is_moe(p->config, layer) ? p->config->n_expert_used : 0;
}

struct plan_parts plan_parts_of(const struct quant_scheme *s, uint32_t n_row, uint32_t n_col)
{
    const uint64_t n = (uint64_t)n_row * n_col;
    if (s->code == CODE_U4) {
        const uint64_t n_group = n_col / s->group;
        return (struct plan_parts){
            .codes = (uint64_t)n_row * blocks_of(n_col, 8) * 4,
            .scales = (uint64_t)n_row * n_group * 2,
            .zeros = s->asymmetric ? blocks_of(n_row, 8) * n_group * 4 : 0,
            .shape = 16,
        };
    }
    const uint64_t n_scale =
        s->code == CODE_E4M3 && s->is_block
            ? blocks_of(n_row, TENSOR_SCALE_BLOCK) * blocks_of(n_col, TENSOR_SCALE_BLOCK)
            : n_row;
    return (struct plan_parts){.codes = n, .scales = n_scale * 4};
}

/* ---- matrices -------------------------------------------------------------------------------- */

struct making {
    struct plan *plan;
    const struct checkpoint *c;
    unsigned targets;
    size_t *matrix_of; /* [n_tensor] 1 + the matrix whose code or scale a tensor is; 0: none */
    fathom_diag *d;
};

static fathom_err check_matrix(const struct making *m, const struct weight_linear *linear,
                               bool is_quantized)
{
    const struct quant_scheme *s = &m->plan->scheme;
    char form[WEIGHT_FORM_TEXT_BYTES];
    if (linear->form.code != CODE_WIDE && linear->form.code != CODE_E4M3) {
        FAIL(m->d, FATHOM_EUNSUPPORTED,
             "%s is quantized already: %s is %s, %s; needed is a source in BF16, F16, F32 or FP8",
             checkpoint_where(m->c), linear->name, linear->format,
             weight_form_text(form, &linear->form));
    }
    if (is_quantized && s->code == CODE_U4 && linear->view->n_col % s->group != 0) {
        FAIL(m->d, FATHOM_EINVAL,
             "--group %u does not divide the %u inputs of %s: give one of 128, 64 and 32 that does",
             s->group, linear->view->n_col, linear->name);
    }
    return FATHOM_OK;
}

static fathom_err add_matrix(void *arg, const struct weight_linear *linear)
{
    struct making *m = arg;
    struct plan *p = m->plan;
    const enum quant_target target = target_of(linear);
    const bool is_quantized = (target & m->targets) != 0;
    TRY(check_matrix(m, linear, is_quantized));
    if (mem_grow(&p->matrices, &p->matrix_cap, p->n_matrix + 1, sizeof *p->matrices)) {
        FAIL(m->d, FATHOM_ENOMEM, "no memory for a list of %zu matrices", p->n_matrix + 1);
    }
    char *name = mem_strndup(linear->name, strlen(linear->name) - strlen(".weight"));
    if (!name) FAIL(m->d, FATHOM_ENOMEM, "no memory for names");
    p->matrices[p->n_matrix++] = (struct plan_matrix){
        .name = name,
        .target = target,
        .is_quantized = is_quantized,
        .is_draft = linear->layer >= p->config->n_layer,
        .layer = linear->layer,
        .expert = linear->expert,
        .form = linear->form,
        .code = linear->code,
        .scale = linear->scale,
        .view = linear->view,
    };
    p->n_quantized += is_quantized;
    p->keeps_fp8 |= !is_quantized && linear->form.code == CODE_E4M3;
    m->matrix_of[checkpoint_tensor_place(m->c, linear->code)] = p->n_matrix;
    if (linear->scale) m->matrix_of[checkpoint_tensor_place(m->c, linear->scale)] = p->n_matrix;
    if (!is_quantized) return FATHOM_OK;
    const struct plan_parts parts =
        plan_parts_of(&p->scheme, linear->view->n_row, linear->view->n_col);
    const uint64_t bytes = parts.codes + parts.scales + parts.zeros + parts.shape;
    if (bytes > p->matrix_bytes) p->matrix_bytes = bytes;
    if (linear->view->n_col > p->max_col) p->max_col = linear->view->n_col;
    return FATHOM_OK;
}

/* ---- shards ---------------------------------------------------------------------------------- */

static int compare_places(const void *a, const void *b)
{
    const struct plan_item *x = a, *y = b;
    const char *p = x->source->data, *q = y->source->data;
    if (p != q) return p < q ? -1 : 1;
    return strcmp(x->source->name, y->source->name); /* tensors without bytes */
}

static fathom_err fill_item(const struct making *m, struct plan_item *item)
{
    const struct plan *p = m->plan;
    const struct tensor *t = item->source;
    const size_t at = m->matrix_of[checkpoint_tensor_place(m->c, t)];
    const struct plan_matrix *matrix = at ? &p->matrices[at - 1] : NULL;
    item->n_bytes = t->n_bytes;
    item->is_linear = matrix != NULL;
    if (matrix && matrix->is_quantized) {
        item->action = t == matrix->code ? PLAN_QUANTIZE : PLAN_DROP;
        item->i_matrix = at - 1;
        item->name = mem_strdup(matrix->name);
    } else if (matrix && t == matrix->scale) {
        char name[512]; /* FP8 that is left has compressed-tensors' name for its scales */
        (void)snprintf(name, sizeof name, "%.400s.weight_scale", matrix->name);
        item->name = mem_strdup(name);
    } else {
        item->name = mem_strdup(t->name);
    }
    if (!item->name) FAIL(m->d, FATHOM_ENOMEM, "no memory for names");
    return FATHOM_OK;
}

/* One entry of a header. */
struct entry {
    const char *module, *suffix; /* the name is module + suffix */
    const char *dtype;
    uint32_t n_dim;
    uint64_t dim[LIMIT_TENSOR_DIMS];
    uint64_t n_bytes;
};

static void add_entry(struct plan_shard *shard, const struct entry *e)
{
    struct buf *b = &shard->header;
    struct buf name = {0};
    (void)buf_printf(&name, "%s%s", e->module, e->suffix);
    (void)buf_add_str(b, b->len > 8 + 1 ? "," : "");
    (void)json_write_string(b, buf_str(&name), name.len);
    (void)buf_printf(b, ":{\"dtype\":\"%s\",\"shape\":[", e->dtype);
    for (uint32_t i = 0; i < e->n_dim; i++) {
        (void)buf_printf(b, "%s%llu", i ? "," : "", (unsigned long long)e->dim[i]);
    }
    (void)buf_printf(b, "],\"data_offsets\":[%llu,%llu]}", (unsigned long long)shard->data_bytes,
                     (unsigned long long)(shard->data_bytes + e->n_bytes));
    if (buf_status(&name)) b->failed = true;
    buf_free(&name);
    shard->data_bytes += e->n_bytes;
}

static void add_quantized(struct plan_shard *shard, const struct plan *p,
                          const struct plan_item *item)
{
    const struct quant_scheme *s = &p->scheme;
    const struct tensor_view *v = p->matrices[item->i_matrix].view;
    const struct plan_parts parts = plan_parts_of(s, v->n_row, v->n_col);
    if (s->code == CODE_U4) {
        const uint64_t n_group = v->n_col / s->group;
        add_entry(shard, &(struct entry){item->name,
                                         ".weight_packed",
                                         "I32",
                                         2,
                                         {v->n_row, blocks_of(v->n_col, 8)},
                                         parts.codes});
        add_entry(shard,
                  &(struct entry){
                      item->name, ".weight_scale", "BF16", 2, {v->n_row, n_group}, parts.scales});
        if (parts.zeros) {
            add_entry(shard, &(struct entry){item->name,
                                             ".weight_zero_point",
                                             "I32",
                                             2,
                                             {blocks_of(v->n_row, 8), n_group},
                                             parts.zeros});
        }
        add_entry(shard, &(struct entry){item->name, ".weight_shape", "I64", 1, {2}, parts.shape});
        return;
    }
    const bool is_block = s->code == CODE_E4M3 && s->is_block;
    add_entry(shard, &(struct entry){item->name,
                                     ".weight",
                                     s->code == CODE_I8 ? "I8" : "F8_E4M3",
                                     2,
                                     {v->n_row, v->n_col},
                                     parts.codes});
    add_entry(shard, &(struct entry){item->name,
                                     ".weight_scale",
                                     "F32",
                                     2,
                                     {is_block ? blocks_of(v->n_row, TENSOR_SCALE_BLOCK) : v->n_row,
                                      is_block ? blocks_of(v->n_col, TENSOR_SCALE_BLOCK) : 1},
                                     parts.scales});
}

static void add_copied(struct plan_shard *shard, const struct plan_item *item)
{
    const struct tensor *t = item->source;
    struct entry e = {item->name, "", t->dtype_name, t->n_dim, {0}, t->n_bytes};
    memcpy(e.dim, t->dim, sizeof e.dim);
    add_entry(shard, &e);
}

static fathom_err lay_out(const struct making *m, struct plan_shard *shard)
{
    struct buf *b = &shard->header;
    uint64_t n = 0;
    (void)buf_add(b, &n, sizeof n);
    (void)buf_add_str(b, "{");
    for (size_t i = 0; i < shard->n_item; i++) {
        struct plan_item *item = &shard->items[i];
        TRY(fill_item(m, item));
        item->offset = shard->data_bytes;
        if (item->action == PLAN_COPY) add_copied(shard, item);
        if (item->action == PLAN_QUANTIZE) add_quantized(shard, m->plan, item);
        if (item->action != PLAN_DROP) shard->source_bytes += item->source->n_bytes;
    }
    (void)buf_printf(b, "%s\"__metadata__\":{\"format\":\"pt\"}}", b->len > 9 ? "," : "");
    while (b->len % 8 != 0 && !b->failed) (void)buf_add_char(b, ' ');
    if (buf_status(b)) FAIL(m->d, buf_status(b), "no memory for the header of %s", shard->name);
    n = b->len - sizeof n;
    for (int i = 0; i < 8; i++) b->data[i] = (char)(n >> 8 * i & 255);
    m->plan->out_bytes += b->len + shard->data_bytes;
    return FATHOM_OK;
}

static fathom_err make_shards(struct making *m)
{
    struct plan *p = m->plan;
    const size_t n_tensor = checkpoint_n_tensor(m->c);
    p->n_shard = checkpoint_n_shard(m->c);
    p->shards = mem_calloc(p->n_shard, sizeof *p->shards);
    if (!p->shards) FAIL(m->d, FATHOM_ENOMEM, "no memory for %zu shards", p->n_shard);
    for (size_t i = 0; i < n_tensor; i++) {
        p->shards[checkpoint_tensor(m->c, i)->i_shard].n_item++;
    }
    for (size_t i = 0; i < p->n_shard; i++) {
        struct plan_shard *shard = &p->shards[i];
        shard->name = checkpoint_shard_name(m->c, i);
        shard->items = mem_calloc(shard->n_item, sizeof *shard->items);
        if (!shard->items) FAIL(m->d, FATHOM_ENOMEM, "no memory for the tensors of a shard");
        shard->n_item = 0;
    }
    for (size_t i = 0; i < n_tensor; i++) {
        const struct tensor *t = checkpoint_tensor(m->c, i);
        struct plan_shard *shard = &p->shards[t->i_shard];
        shard->items[shard->n_item++] = (struct plan_item){.source = t};
    }
    for (size_t i = 0; i < p->n_shard; i++) {
        struct plan_shard *shard = &p->shards[i];
        if (shard->n_item) {
            qsort(shard->items, shard->n_item, sizeof *shard->items, compare_places);
        }
        TRY(lay_out(m, shard));
    }
    return FATHOM_OK;
}

/* ---- the plan -------------------------------------------------------------------------------- */

fathom_err plan_make(struct plan *out, struct model_weights *w, const struct checkpoint *c,
                     const struct model_config *config, const struct quant_scheme *scheme,
                     unsigned targets, fathom_diag *d)
{
    struct making m = {.plan = out, .c = c, .targets = targets, .d = d};
    fathom_err err;
    *out = (struct plan){.scheme = *scheme, .config = config};
    m.matrix_of = mem_calloc(checkpoint_n_tensor(c), sizeof *m.matrix_of);
    if (!m.matrix_of) FAIL(d, FATHOM_ENOMEM, "no memory for a list of tensors");
    TRY_GOTO(weights_each_linear(w, c, config, add_matrix, &m), done);
    if (out->n_quantized == 0) {
        err = diag_fail(d, FATHOM_EUNSUPPORTED, "%s has no matrix that --targets names",
                        checkpoint_where(c));
        goto done;
    }
    err = make_shards(&m);
done:
    mem_free(m.matrix_of);
    if (err) plan_free(out);
    return err;
}

void plan_free(struct plan *p)
{
    for (size_t i = 0; i < p->n_matrix; i++) mem_free(p->matrices[i].name);
    mem_free(p->matrices);
    for (size_t i = 0; p->shards && i < p->n_shard; i++) {
        struct plan_item *items = p->shards[i].items;
        for (size_t k = 0; items && k < p->shards[i].n_item; k++) mem_free(items[k].name);
        mem_free(items);
        buf_free(&p->shards[i].header);
    }
    mem_free(p->shards);
    memset(p, 0, sizeof *p);
}
