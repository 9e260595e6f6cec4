/* stages.c - a cut of the layers whose largest part is least */
#include "model/stages.h"

#include <string.h>

#include "base/assert.h"
#include "base/fail.h"
#include "base/mem.h"
#include "model/config.h"
#include "model/weights_int.h"

/* Parameters of each layer; the ends' are added to the first layer and the last. */
struct weighing {
    const struct model_config *config;
    bool with_mtp;
    uint64_t *n; /* [n_layer] */
};

static fathom_err weigh_one(void *arg, const struct weight_need *need)
{
    struct weighing *w = arg;
    const uint64_t n = (uint64_t)need->n_row * need->n_col;
    const uint32_t last = w->config->n_layer - 1;
    if (need->rule->scope == SCOPE_MODEL) {
        const bool is_first = need->kind == WEIGHT_EMBED;
        w->n[is_first ? 0 : last] += n;
        if (is_first && w->with_mtp && last > 0) w->n[last] += n;
    } else if (need->layer <= last) {
        w->n[need->layer] += n;
    } else if (w->with_mtp) {
        w->n[last] += n;
    }
    return FATHOM_OK;
}

/* Runs of at most `most`, each as long as it can be, with a layer for every stage. False: the
 * layers do not fit. */
static bool fill_runs(uint16_t *ends, const uint64_t *n, uint32_t n_layer, uint32_t n_stage,
                      uint64_t most)
{
    uint32_t i = 0;
    for (uint32_t s = 0; s < n_stage; s++) {
        const uint32_t n_behind = n_stage - 1 - s; /* that need a layer each */
        uint64_t sum = n[i++];
        if (sum > most) return false;
        while (i + n_behind < n_layer && n[i] <= most - sum) sum += n[i++];
        ends[s] = (uint16_t)i;
    }
    return i == n_layer;
}

fathom_err stages_cut(struct parallel *p, const struct model_config *config, bool with_mtp,
                      uint32_t n_stage, fathom_diag *d)
{
    const uint32_t n_most =
        config->n_layer < PARALLEL_STAGES_MAX ? config->n_layer : PARALLEL_STAGES_MAX;
    p->pp = (struct axis){.rank = 0, .size = n_stage};
    memset(p->layer_ends, 0, sizeof p->layer_ends);
    if (n_stage < 1 || n_stage > n_most) {
        FAIL(d, FATHOM_EINVAL,
             "--pipeline-parallel-size %u is out of range, needed is 1 to %u for the %u layers of "
             "this model",
             n_stage, n_most, config->n_layer);
    }
    if (n_stage == 1) return FATHOM_OK;
    struct weighing w = {config, with_mtp, mem_calloc(config->n_layer, sizeof *w.n)};
    if (!w.n) FAIL(d, FATHOM_ENOMEM, "no memory for the sizes of %u layers", config->n_layer);
    const fathom_err err = weights_walk(config, config->n_mtp, weigh_one, &w);
    ASSERT(err == FATHOM_OK);
    uint64_t lo = 0, hi = 0; /* lo does not fit, hi does */
    for (uint32_t i = 0; i < config->n_layer; i++) hi += w.n[i];
    while (hi - lo > 1) {
        const uint64_t middle = lo + (hi - lo) / 2;
        *(fill_runs(p->layer_ends, w.n, config->n_layer, n_stage, middle) ? &hi : &lo) = middle;
    }
    const bool fits = fill_runs(p->layer_ends, w.n, config->n_layer, n_stage, hi);
    ASSERT(fits && p->layer_ends[n_stage - 1] == config->n_layer);
    mem_free(w.n);
    return FATHOM_OK;
}

void stages_layout(struct kv_layout *out, const struct model_config *config, enum kv_type type,
                   bool with_mtp, const struct parallel *p)
{
    const struct layer_run run = parallel_layers(p, config->n_layer);
    const bool has_mtp = with_mtp && parallel_is_last(p);
    ASSERT(run.first < run.end && run.end <= config->n_layer);
    kv_layout_init(out, type, run.end - run.first + (has_mtp ? 1 : 0), config->has_indexer);
}

uint64_t stages_record_offset(const struct model_config *config, enum kv_type type, bool with_mtp,
                              const struct parallel *p)
{
    struct parallel before = *p;
    uint64_t offset = 0;
    ASSERT(p->pp.rank <= parallel_n_stage(p));
    for (before.pp.rank = 0; before.pp.rank < p->pp.rank; before.pp.rank++) {
        struct kv_layout part;
        stages_layout(&part, config, type, with_mtp, &before);
        offset += part.page_bytes;
    }
    return offset;
}
