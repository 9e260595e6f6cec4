/* step_time.c - bytes and operations of a step over what a machine does */
#include "engine/step_time.h"

#include <math.h>

#include "base/assert.h"
#include "base/os.h"
#include "model/config.h"

/* The figures of GPUs. H200: read, layer and products from steps and prompts of one GPU
 * (bench/results/h200_latency_prompts.csv), gather and scores from operators (h200_kernels.csv),
 * attention from docs/kernels/attend.md and prompt_attend.md, sending between two of them
 * (h200_x2_links.csv). H100 has not been measured: the same processor, with memory of 3.35 TB/s for
 * 4.8. */
#define HOPPER                                                                                     \
    .product_ops = 750e12, .expert_ops = 640e12, .attend_ops = 325e12, .expanded_ops = 500e12,     \
    .index_ops = 395e12, .send_bytes = 330e9, .sum_bytes = 2, .layer_s = 38e-6, .index_s = 10e-6,  \
    .meet_s = 2e-6, .own_rows_least = 64
static const struct machine_figures gpus[] = {
    {.name = "NVIDIA H200",
     .memory_bytes = 141000000000,
     .read_bytes = 4.3e12,
     .gather_bytes = 1.8e12,
     HOPPER},
    {.name = "NVIDIA H100",
     .memory_bytes = 80000000000,
     .read_bytes = 3.0e12,
     .gather_bytes = 1.3e12,
     HOPPER},
};

/* Of one thread (docs/kernels/cpu.md); a machine's memory gives PROCESSOR_READ_MOST to all. */
static const struct machine_figures processor = {
    .name = "processor",
    .read_bytes = 42e9,
    .gather_bytes = 42e9,
    .product_ops = 463e9,
    .expert_ops = 463e9,
    .attend_ops = 250e9,
    .index_ops = 250e9,
    .send_bytes = 10e9,
    .sum_bytes = 4,
    .layer_s = 10e-6,
    .meet_s = 20e-6,
};
#define PROCESSOR_READ_MOST 300e9

void machine_figures_find(struct machine_figures *out, const struct engine_settings *s,
                          uint64_t memory_bytes)
{
    struct model_place place;
    if (s->backend == FATHOM_BACKEND_CUDA) {
        *out = gpus[0];
        for (size_t i = 1; i < sizeof gpus / sizeof *gpus; i++) {
            const double was = fabs((double)out->memory_bytes - (double)memory_bytes);
            const double is = fabs((double)gpus[i].memory_bytes - (double)memory_bytes);
            if (is < was) *out = gpus[i];
        }
        return;
    }
    settings_place(&place, s, 0);
    const double n_thread = place.n_thread ? place.n_thread : os_n_cpu();
    const double most = PROCESSOR_READ_MOST / settings_n_rank(s);
    ASSERT(n_thread >= 1);
    *out = processor;
    out->read_bytes = fmin(out->read_bytes * n_thread, most);
    out->gather_bytes = out->read_bytes;
    out->product_ops *= n_thread;
    out->expert_ops *= n_thread;
    out->attend_ops *= n_thread;
    out->index_ops *= n_thread;
}

/* Of a step, what most terms need. */
struct terms {
    const struct machine_figures *m;
    const struct engine_settings *s;
    const struct memory_plan *p;
    const struct model_config *config;
    const struct step_rows *rows;
    double n_rank;
    double n_share; /* ranks of a lane, which share its rows */
    double own;     /* rows of what a rank computes for all that share them */
    bool is_tp;
};

static double larger(double bytes_s, double ops_s)
{
    return bytes_s > ops_s ? bytes_s : ops_s;
}

/* Weights that all rows pass, read once. */
static double product_time(const struct terms *t, enum weight_kind kind, double n_row)
{
    const double bytes = (double)t->p->weights.kind[kind].bytes;
    const double n_weight = (double)t->p->weights.kind[kind].n_parameter;
    return larger(bytes / t->m->read_bytes, 2 * n_weight * n_row / t->m->product_ops);
}

/* The experts that the rows of all ranks hit, on the rank that has most of them to do: of n held
 * ones, each hit with equal chance, the largest number on one of several ranks is about the mean
 * and sqrt(2 ln ranks) deviations. */
static double expert_time(const struct terms *t)
{
    const struct model_config *c = t->config;
    if (c->n_expert == 0) return 0;
    const double n_lane = t->rows->n_lane > 0 ? t->rows->n_lane : t->n_rank / t->n_share;
    const double n_all = t->is_tp ? t->rows->n_row : t->rows->n_row * n_lane;
    const double share = (double)c->n_expert_used / c->n_expert;
    const double hit = 1 - pow(1 - share, n_all);
    double most = 1;
    if (!t->is_tp) {
        const double n_held = c->n_expert / t->n_rank;
        ASSERT(n_held >= 1 && hit > 0);
        const double deviation = sqrt(n_held * hit * (1 - hit));
        most = 1 + sqrt(2 * log(t->n_rank)) * deviation / (n_held * hit);
        if (most * hit > 1) most = 1 / hit;
    }
    const double bytes = (double)t->p->weights.kind[WEIGHT_EXPERTS].bytes * hit * most;
    const double n_weight = (double)t->p->weights.kind[WEIGHT_EXPERTS].n_parameter;
    return larger(bytes / t->m->read_bytes, 2 * n_weight * share * n_all * most / t->m->expert_ops);
}

/* Of rows whose contexts lie evenly between two, the rows that one sees on average, of the nearest
 * `most` at most. */
static double mean_seen(const struct step_rows *r, double most)
{
    if (r->last <= most) return (r->first + r->last) / 2;
    if (r->first >= most) return most;
    ASSERT(r->first < most && most < r->last);
    const double below = (most - r->first) / (r->last - r->first);
    return below * (r->first + most) / 2 + (1 - below) * most;
}

/* Scores of all that a row sees, where it sees more than it selects. */
static double index_time(const struct terms *t)
{
    const struct step_rows *r = t->rows;
    const struct kv_layout *kv = &t->p->kv;
    if (!kv->has_index || r->last <= t->config->index_topk) return 0;
    const double key_bytes = (double)kv->index_block_bytes / KV_PAGE_TOKENS;
    const double seen = mean_seen(r, r->last);
    const double ops = 2.0 * t->config->index_n_head * KV_INDEX_DIM * seen;
    return t->m->index_s + larger(r->n_request * seen * key_bytes / t->m->read_bytes,
                                  t->own * ops / t->m->index_ops);
}

/* Attention over the rows that each token selects; of prompts, over all that it sees where that is
 * quicker. */
static double attend_time(const struct terms *t)
{
    const struct step_rows *r = t->rows;
    const struct kv_layout *kv = &t->p->kv;
    const double n_head = parallel_part(&t->s->place.parallel, CUT_HEADS, t->config->n_head);
    const double selected = mean_seen(r, kv->has_index ? t->config->index_topk : r->last);
    const double ops = 2.0 * n_head * selected * (KV_ROW + KV_LATENT);
    const double gather_s = r->n_request * selected * kv->row_bytes / t->m->gather_bytes;
    const double attend_s = larger(gather_s, r->n_row * ops / t->m->attend_ops);
    if (!r->is_prompt || t->m->expanded_ops <= 0) return attend_s;
    const double expanded = 2.0 * n_head * mean_seen(r, r->last) * (MODEL_QK_DIM + MODEL_V_DIM);
    return fmin(attend_s, r->n_row * expanded / t->m->expanded_ops);
}

/* What is written and read between two blocks: residual, delta and the next inputs, twice. */
static double norm_time(const struct terms *t)
{
    const double bytes = 2.0 * 3 * sizeof(float) * t->config->hidden;
    return t->own * bytes * t->config->n_layer / t->m->read_bytes;
}

/* Ranks that share rows add partial sums twice a layer. While rows are few each rank gets all
 * sums; later a row's owner does, and gives the others what it has made of them. */
static double sum_time(const struct terms *t)
{
    const double n = t->n_share, n_row = t->rows->n_row;
    const double sum_bytes = (double)t->config->hidden * sizeof(float);
    const double codes_bytes = 1.4 * t->config->hidden; /* with scales, routes and latents */
    const double bytes =
        t->own < n_row ? (n - 1) / n * (2 * sum_bytes + codes_bytes) : (n - 1) * 2 * sum_bytes;
    return t->config->n_layer * (2 * t->m->meet_s + n_row * bytes / t->m->send_bytes);
}

/* Rows go to the ranks that have their experts, a byte a value, and sums come back. */
static double spread_time(const struct terms *t)
{
    const struct model_config *c = t->config;
    const double n_dense = c->n_dense_layer;
    const double most = c->topk_group > 0 ? c->topk_group : c->n_expert_used;
    const double n_to = fmin(most, t->n_rank) * (t->n_rank - 1) / t->n_rank;
    const double bytes = n_to * c->hidden * (1 + t->m->sum_bytes);
    const double n_row = t->rows->n_row / t->n_share;
    return (c->n_layer - n_dense) * (4 * t->m->meet_s + n_row * bytes / t->m->send_bytes);
}

/* The cache rows of a run go to all other lanes, in every layer. */
static double share_time(const struct terms *t)
{
    const struct kv_layout *kv = &t->p->kv;
    const double row_bytes = kv->row_bytes + (double)kv->index_block_bytes / KV_PAGE_TOKENS;
    const double n_to = t->n_rank / t->n_share - 1;
    ASSERT(!t->is_tp && n_to >= 1);
    const double send_s = n_to * t->rows->n_row * row_bytes / t->m->send_bytes;
    return t->config->n_layer * (2 * t->m->meet_s + send_s);
}

double step_time(const struct machine_figures *m, const struct engine_settings *s,
                 const struct memory_plan *p, const struct model_config *config,
                 const struct step_rows *rows)
{
    const struct parallel *cut = &s->place.parallel;
    const double n_rank = parallel_n_rank(cut);
    struct terms t = {.m = m, .s = s, .p = p, .config = config, .rows = rows, .n_rank = n_rank};
    ASSERT(n_rank >= 1 && rows->n_row > 0);
    t.is_tp = cut->dp.size <= 1;
    t.n_share = cut->tp.size;
    t.own = rows->n_row;
    const bool has_owners = m->own_rows_least > 0 && rows->n_row >= m->own_rows_least;
    if (has_owners && t.is_tp && !cut->is_slice) t.own /= n_rank;
    double s_all = m->layer_s * config->n_layer;
    s_all += product_time(&t, WEIGHT_ATTENTION, rows->n_row);
    s_all += product_time(&t, WEIGHT_INDEXER, t.own);
    s_all += product_time(&t, WEIGHT_DENSE, rows->n_row);
    s_all += product_time(&t, WEIGHT_SHARED, t.is_tp ? rows->n_row : rows->n_row / t.n_share);
    s_all += product_time(&t, WEIGHT_ROUTER, t.own);
    s_all += product_time(&t, WEIGHT_HEAD, rows->n_logit);
    s_all += expert_time(&t) + norm_time(&t);
    s_all += config->n_layer * (index_time(&t) + attend_time(&t));
    if (cut->is_slice) return s_all;
    if (t.n_share > 1) s_all += sum_time(&t);
    if (rows->is_shared) s_all += share_time(&t);
    return t.is_tp ? s_all : s_all + spread_time(&t);
}
