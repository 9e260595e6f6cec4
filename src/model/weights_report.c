/* weights_report.c - faults, sizes and left-over tensors: the binding table against a checkpoint */
#include <stdio.h>
#include <string.h>

#include "backend/backend.h"
#include "base/assert.h"
#include "base/fail.h"
#include "base/mem.h"
#include "checkpoint/checkpoint.h"
#include "model/config.h"
#include "model/weights.h"
#include "model/weights_int.h"

static bool has_layer(const struct checkpoint *c, uint32_t layer)
{
    char prefix[WEIGHT_NAME_BYTES];
    (void)snprintf(prefix, sizeof prefix, "model.layers.%u.", layer);
    size_t n = strlen(prefix);
    for (size_t i = 0; i < checkpoint_n_tensor(c); i++) {
        if (strncmp(checkpoint_tensor(c, i)->name, prefix, n) == 0) return true;
    }
    return false;
}

uint32_t weights_count_mtp(const struct checkpoint *c, const struct model_config *config)
{
    uint32_t n = 0;
    while (n < config->n_mtp && has_layer(c, config->n_layer + n)) n++;
    return n;
}

/* ---- faults ---------------------------------------------------------------------------------- */

struct check {
    const struct checkpoint *c;
    const struct model_config *config;
    weights_report *report;
    void *arg;
    size_t n_fault;
};

static fathom_err check_one(void *arg, const struct weight_need *need)
{
    struct check *k = arg;
    struct weight_found found;
    fathom_diag fault = {0};
    if (weights_match(&found, k->c, need, k->config, &fault)) {
        k->n_fault++;
        if (k->report) k->report(k->arg, fault.text);
    }
    return FATHOM_OK;
}

size_t weights_check(const struct checkpoint *c, const struct model_config *config,
                     weights_report *report, void *arg)
{
    struct check k = {.c = c, .config = config, .report = report, .arg = arg};
    fathom_diag name = {0};
    if (weights_check_names(c, &name)) {
        k.n_fault++;
        if (report) report(arg, name.text);
    }
    fathom_err err = weights_walk(config, weights_count_mtp(c, config), check_one, &k);
    ASSERT(err == FATHOM_OK);
    return k.n_fault;
}

/* ---- left-over tensors ----------------------------------------------------------------------- */

struct usage {
    const struct checkpoint *c;
    const struct model_config *config;
    bool *used; /* [n_tensor], by place in the checkpoint's table */
};

static fathom_err mark_one(void *arg, const struct weight_need *need)
{
    struct usage *u = arg;
    struct weight_found found;
    (void)weights_match(&found, u->c, need, u->config, NULL);
    for (enum weight_part_name i = 0; i < N_PART; i++) {
        bool is_used = found.format ? weight_format_uses(&found, i) : found.part[i] != NULL;
        if (is_used) u->used[checkpoint_tensor_place(u->c, found.part[i])] = true;
    }
    return FATHOM_OK;
}

fathom_err weights_each_unused(const struct checkpoint *c, const struct model_config *config,
                               weights_unused *visit, void *arg)
{
    size_t n = checkpoint_n_tensor(c);
    struct usage u = {.c = c, .config = config, .used = mem_calloc(n, sizeof(bool))};
    if (!u.used) return FATHOM_ENOMEM;
    fathom_err err = weights_walk(config, weights_count_mtp(c, config), mark_one, &u);
    ASSERT(err == FATHOM_OK);
    for (size_t i = 0; i < n; i++) {
        const struct tensor *t = checkpoint_tensor(c, i);
        if (!u.used[i]) visit(arg, t, weights_is_mtp_copy(config, t->name));
    }
    mem_free(u.used);
    return FATHOM_OK;
}

/* ---- sizes ----------------------------------------------------------------------------------- */

const char *weight_kind_name(enum weight_kind kind)
{
    static const char *const names[WEIGHT_KIND_COUNT] = {
        [WEIGHT_EMBED] = "embedding",
        [WEIGHT_HEAD] = "head",
        [WEIGHT_ATTENTION] = "attention",
        [WEIGHT_INDEXER] = "indexer",
        [WEIGHT_DENSE] = "dense feed-forward",
        [WEIGHT_SHARED] = "shared experts",
        [WEIGHT_EXPERTS] = "routed experts",
        [WEIGHT_ROUTER] = "router",
        [WEIGHT_NORM] = "norms",
        [WEIGHT_MTP] = "mtp layer",
    };
    ASSERT(kind < WEIGHT_KIND_COUNT);
    return names[kind];
}

struct measure {
    struct weight_sizes *out;
    const struct checkpoint *c;
    const struct model_config *config;
    const struct parallel *parallel;
};

static fathom_err measure_one(void *arg, const struct weight_need *need)
{
    struct measure *m = arg;
    struct weight_found found = {0};
    struct weight_form form = weights_expected_form(m->config, need);
    if (!weights_is_held(need, m->config, m->parallel)) return FATHOM_OK;
    uint64_t n_tensor = form.code == CODE_WIDE ? 1 : 2;
    if (m->c && weights_match(&found, m->c, need, m->config, NULL) == FATHOM_OK) {
        form = found.form;
        n_tensor = 0;
        for (enum weight_part_name i = 0; i < N_PART; i++)
            n_tensor += found.format ? weight_format_uses(&found, i) : found.part[i] != NULL;
    }
    struct weight_part part = weights_part(need, m->parallel);
    uint64_t n_value = (uint64_t)part.n_row * part.n_col;
    uint64_t bytes = weight_form_bytes(&form, part.n_row, part.n_col);
    ASSERT(need->kind < WEIGHT_KIND_COUNT);
    uint64_t cpu_bytes = backend_cpu_weight_bytes(&form, part.n_row, part.n_col);
    m->out->kind[need->kind].cpu_bytes += cpu_bytes;
    m->out->total.cpu_bytes += cpu_bytes;
    m->out->kind[need->kind].bytes += bytes;
    m->out->kind[need->kind].n_parameter += n_value;
    m->out->kind[need->kind].n_tensor += n_tensor;
    m->out->total.bytes += bytes;
    m->out->total.n_parameter += n_value;
    m->out->total.n_tensor += n_tensor;
    return FATHOM_OK;
}

void weights_measure(struct weight_sizes *out, const struct model_config *config,
                     const struct checkpoint *c, const struct parallel *p)
{
    struct measure m = {.out = out, .c = c, .config = config, .parallel = p};
    memset(out, 0, sizeof *out);
    uint32_t n_mtp = c ? weights_count_mtp(c, config) : config->n_mtp;
    fathom_err err = weights_walk(config, n_mtp, measure_one, &m);
    ASSERT(err == FATHOM_OK);
}

/* ---- linear weights ------------------------------------------------------------------------- */

struct linear_walk {
    struct model_weights *w;
    const struct checkpoint *c;
    const struct model_config *config;
    weights_linear_visit *visit;
    void *arg;
};

static fathom_err visit_linear(void *arg, const struct weight_need *need)
{
    const struct linear_walk *walk = arg;
    struct weight_found found;
    const struct weight_rule *rule = need->rule;
    if (rule->storage != STORED_LINEAR || rule->scope == SCOPE_MTP) return FATHOM_OK;
    fathom_err err = weights_match(&found, walk->c, need, walk->config, NULL);
    ASSERT(!err && found.format); /* it is bound */
    const struct weight_linear linear = {
        .name = need->name,
        .layer = need->layer,
        .expert = need->expert,
        .kind = rule->kind,
        .format = found.format->name,
        .form = found.form,
        .code = found.part[found.format->code],
        .scale = weight_format_scale(&found),
        .view = weights_view_of(walk->w, need, walk->config),
    };
    return walk->visit(walk->arg, &linear);
}

fathom_err weights_each_linear(struct model_weights *w, const struct checkpoint *c,
                               const struct model_config *config, weights_linear_visit *visit,
                               void *arg)
{
    struct linear_walk walk = {w, c, config, visit, arg};
    ASSERT(parallel_n_rank(&w->parallel) == 1);
    return weights_walk(config, w->n_mtp, visit_linear, &walk);
}
