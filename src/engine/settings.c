/* settings.c - from fathom_options to what the engine runs with */
#include "engine/settings.h"

#include <string.h>

#include "backend/backend.h"
#include "base/assert.h"
#include "base/fail.h"
#include "base/limits.h"
#include "base/os.h"
#include "model/config.h"
#include "model/stages.h"
#include "model/weights.h"

static fathom_err check_count(const char *flag, uint32_t given, uint32_t fallback, uint32_t max,
                              uint32_t *out, fathom_diag *d)
{
    *out = given ? given : fallback;
    if (*out > max) {
        FAIL(d, FATHOM_EINVAL, "%s %u is out of range, needed is 1 to %u", flag, given, max);
    }
    return FATHOM_OK;
}

static uint32_t least(uint64_t n, uint32_t most)
{
    return n < most ? (uint32_t)n : most;
}

static fathom_err resolve_ranks(struct engine_settings *out, const fathom_options *o,
                                fathom_diag *d)
{
    struct parallel *p = &out->place.parallel;
    const uint32_t n_lane = o->data_parallel ? o->data_parallel : 1;
    p->tp.size = o->world ? o->world : 1;
    p->dp = (struct axis){.rank = 0, .size = n_lane};
    p->experts_whole = n_lane * p->tp.size > 1 && o->expert_parallel;
    p->tp.rank = o->rank;
    p->is_slice = o->rank_slice;
    if (!o->rank_slice && p->tp.rank != 0) {
        FAIL(d, FATHOM_EINVAL, "rank %u is given, and all ranks of %u run here", p->tp.rank,
             p->tp.size);
    }
    if (!o->rank_slice && p->tp.size > PARALLEL_RANKS_MAX) {
        FAIL(d, FATHOM_EINVAL, "--tensor-parallel-size %u is out of range, needed is 1 to %d",
             p->tp.size, PARALLEL_RANKS_MAX);
    }
    if (n_lane > PARALLEL_RANKS_MAX) {
        FAIL(d, FATHOM_EINVAL, "--data-parallel-size %u is out of range, needed is 1 to %d", n_lane,
             PARALLEL_RANKS_MAX);
    }
    if (n_lane > 1 && o->rank_slice) {
        FAIL(d, FATHOM_EUNSUPPORTED,
             "--rank-slice measures a rank of --tensor-parallel-size alone: leave "
             "--data-parallel-size out");
    }
    if (n_lane > 1 && n_lane * p->tp.size > PARALLEL_RANKS_MAX) {
        FAIL(d, FATHOM_EINVAL,
             "--data-parallel-size %u of --tensor-parallel-size %u: at most %d ranks share a model",
             n_lane, p->tp.size, PARALLEL_RANKS_MAX);
    }
    if (n_lane > 1 && !o->expert_parallel) {
        FAIL(d, FATHOM_EUNSUPPORTED,
             "--data-parallel-size %u: experts are whole on a rank of it: give "
             "--enable-expert-parallel too",
             n_lane);
    }
    if (o->rank_slice && (p->tp.size < 2 || p->tp.rank >= p->tp.size)) {
        FAIL(d, FATHOM_EINVAL,
             "--rank-slice %u of --tensor-parallel-size %u: needed is a rank below the number of "
             "ranks, and 2 ranks or more",
             p->tp.rank, p->tp.size);
    }
    return FATHOM_OK;
}

/* Stages of the ranks. After the backend is known. */
static fathom_err resolve_stages(struct engine_settings *out, const fathom_options *o,
                                 const struct model_config *config, fathom_diag *d)
{
    struct parallel *p = &out->place.parallel;
    const uint32_t n_stage = o->pipeline ? o->pipeline : 1;
    ASSERT(p->pp.size == 0);
    if (n_stage == 1) return FATHOM_OK;
    if (p->dp.size > 1 || p->is_slice) {
        FAIL(d, FATHOM_EUNSUPPORTED,
             "--pipeline-parallel-size %u goes with --tensor-parallel-size alone: leave %s out",
             n_stage, p->is_slice ? "--rank-slice" : "--data-parallel-size");
    }
    TRY(stages_cut(p, config, o->n_draft > 0, n_stage, d));
    if (parallel_n_rank(p) <= PARALLEL_RANKS_MAX) return FATHOM_OK;
    FAIL(d, FATHOM_EINVAL,
         "--pipeline-parallel-size %u of --tensor-parallel-size %u: at most %d ranks share a model",
         n_stage, p->tp.size, PARALLEL_RANKS_MAX);
}

/* Whether the inputs of every product are whole groups of 128 on this rank. */
static bool widths_fit_fp8(const struct model_config *c, const struct parallel *p)
{
    const uint32_t widths[] = {
        c->hidden, c->q_lora_rank, parallel_part(p, CUT_INNER, c->dense_inner),
        parallel_part(p, CUT_EXPERT_INNER, c->moe_inner),
        parallel_part(p, CUT_SHARED_INNER, c->n_shared_expert * c->moe_inner)};
    for (size_t i = 0; i < sizeof widths / sizeof *widths; i++) {
        if (widths[i] % TENSOR_SCALE_BLOCK != 0) return false;
    }
    return true;
}

/* Whether ACT_FP8 or ACT_INT8, which a GPU has its quickest kernels for, can be had. */
static bool fp8_fits(const struct engine_settings *s, const struct model_config *config)
{
    return s->backend == FATHOM_BACKEND_CUDA && s->limits.kv_type != KV_TYPE_F32 &&
           widths_fit_fp8(config, &s->place.parallel);
}

/* On a GPU, whose products of other forms are slow, bfloat16 is the type of what is not quantized,
 * as in vLLM: inputs of quantized weights become codes, and all others are rounded to bf16. */
static enum act_type bf16_act(const struct engine_settings *s, const struct model_config *config)
{
    if (!fp8_fits(s, config)) return ACT_BF16;
    return config->quant_int8 ? ACT_INT8 : ACT_FP8;
}

static enum act_type default_act(const struct engine_settings *s, const struct model_config *config)
{
    if (config->dtype == DTYPE_F32) return ACT_F32;
    const bool is_int8 = config->quant == QUANT_INT8 || config->quant == QUANT_ASCEND;
    return is_int8 && s->backend == FATHOM_BACKEND_CPU ? ACT_INT8 : bf16_act(s, config);
}

static fathom_err resolve_backend(struct engine_settings *out, const fathom_options *o,
                                  fathom_diag *d)
{
    switch (o->backend) {
    case FATHOM_BACKEND_AUTO:
        out->backend = backend_cuda_count() > 0 ? FATHOM_BACKEND_CUDA : FATHOM_BACKEND_CPU;
        return FATHOM_OK;
    case FATHOM_BACKEND_REF:
    case FATHOM_BACKEND_CPU:
    case FATHOM_BACKEND_CUDA: out->backend = o->backend; return FATHOM_OK;
    }
    FAIL(d, FATHOM_EUNSUPPORTED, "--backend: no backend has the number %d", (int)o->backend);
}

/* A device for each rank that runs here. It is bound to the thread that works with it
 * (step_runner.h). */
static fathom_err resolve_devices(struct engine_settings *out, const fathom_options *o,
                                  fathom_diag *d)
{
    const uint32_t n_rank = settings_n_rank(out);
    const int n_gpu = backend_cuda_count();
    const uint32_t n_lane = out->place.parallel.dp.size, n_share = out->place.parallel.tp.size;
    for (uint32_t i = 0; i < n_rank; i++) out->devices[i] = (int)i;
    const uint32_t n_peer = n_lane * n_share;
    if (out->backend == FATHOM_BACKEND_CUDA && n_lane > 1 && !o->hosts && n_peer != 2 &&
        n_peer != 4 && n_peer != 8) {
        FAIL(d, FATHOM_EUNSUPPORTED,
             "--data-parallel-size %u of --tensor-parallel-size %u: 2, 4 or 8 GPUs of one host "
             "share experts, CPUs by any number: give sizes whose product is one of these, or "
             "--backend cpu",
             n_lane, n_share);
    }
    if (out->backend == FATHOM_BACKEND_CUDA && n_gpu > 0 && n_rank > (uint32_t)n_gpu) {
        if (n_lane > 1 && n_share > 1) {
            FAIL(d, FATHOM_EINVAL,
                 "--data-parallel-size %u of --tensor-parallel-size %u needs a GPU for each of %u "
                 "ranks, and this machine has %d",
                 n_lane, n_share, n_rank, n_gpu);
        }
        FAIL(d, FATHOM_EINVAL,
             "%s %u needs a GPU for each rank, and this machine has %d: give %d at most",
             n_lane > 1 ? "--data-parallel-size" : "--tensor-parallel-size", n_rank, n_gpu, n_gpu);
    }
    if (o->n_device == 0) return FATHOM_OK;
    if (out->backend != FATHOM_BACKEND_CUDA) {
        FAIL(d, FATHOM_EINVAL,
             "--devices names GPUs, and a CPU computes: leave it out, or give --backend cuda");
    }
    for (uint32_t i = 0; i < o->n_device; i++) {
        for (uint32_t k = 0; k < i; k++) {
            if (o->devices[k] != o->devices[i]) continue;
            FAIL(d, FATHOM_EINVAL, "--devices names GPU %d twice: each rank needs one of its own",
                 o->devices[i]);
        }
        if (o->devices[i] < 0) {
            FAIL(d, FATHOM_EINVAL, "--devices names GPU %d, needed is 0 or more", o->devices[i]);
        }
        if (n_gpu > 0 && o->devices[i] >= n_gpu) {
            FAIL(d, FATHOM_EINVAL, "--devices names GPU %d, and this machine has 0 to %d",
                 o->devices[i], n_gpu - 1);
        }
    }
    if (o->n_device != n_rank) {
        FAIL(d, FATHOM_EINVAL, "--devices names %u GPUs, and %u %s here: name as many", o->n_device,
             n_rank, n_rank == 1 ? "rank runs" : "ranks run");
    }
    for (uint32_t i = 0; i < n_rank; i++) out->devices[i] = o->devices[i];
    out->place.device = out->devices[0];
    return FATHOM_OK;
}

/* Each host has as many ranks as another: whole stages, or a part of the only one. */
static fathom_err resolve_hosts(struct engine_settings *out, const fathom_options *o,
                                fathom_diag *d)
{
    const fathom_hosts *h = o->hosts;
    if (!h) return FATHOM_OK;
    const uint32_t n_rank = out->place.parallel.tp.size;
    const uint32_t n_lane = out->place.parallel.dp.size;
    const uint32_t n_stage = parallel_n_stage(&out->place.parallel);
    if (n_lane > 1 && n_lane % h->n_node != 0) {
        FAIL(d, FATHOM_EINVAL,
             "--nnodes %u does not divide --data-parallel-size %u: each host has as many of its "
             "groups of ranks as another",
             h->n_node, n_lane);
    }
    if (n_stage > 1 && n_stage % h->n_node != 0) {
        FAIL(d, FATHOM_EUNSUPPORTED,
             "--nnodes %u does not divide --pipeline-parallel-size %u: each host has as many "
             "stages as another",
             h->n_node, n_stage);
    }
    const bool cuts_layers = n_stage == 1 && n_lane <= 1;
    if (out->place.parallel.is_slice || (cuts_layers && n_rank % h->n_node != 0)) {
        FAIL(d, FATHOM_EINVAL,
             "--nnodes %u does not divide --tensor-parallel-size %u: each host has as many ranks "
             "as another",
             h->n_node, n_rank);
    }
    if (n_stage > 1) out->place.parallel.pp.rank = n_stage / h->n_node * h->node_rank;
    out->place.n_host = n_stage == 1 ? h->n_node : 1;
    out->hosts = h;
    return FATHOM_OK;
}

static fathom_err resolve_types(struct engine_settings *out, const fathom_options *o,
                                const struct model_config *config, fathom_diag *d)
{
    switch (o->kv) {
    case FATHOM_KV_F32: out->limits.kv_type = KV_TYPE_F32; break;
    case FATHOM_KV_AUTO:
    case FATHOM_KV_BF16: out->limits.kv_type = KV_TYPE_BF16; break;
    case FATHOM_KV_FP8: out->limits.kv_type = KV_TYPE_FP8; break;
    default: FAIL(d, FATHOM_EINVAL, "--kv-cache-dtype: no type has the number %d", (int)o->kv);
    }
    switch (o->act) {
    case FATHOM_ACT_AUTO: out->limits.act = default_act(out, config); break;
    case FATHOM_ACT_F32: out->limits.act = ACT_F32; break;
    case FATHOM_ACT_BF16: out->limits.act = bf16_act(out, config); break;
    case FATHOM_ACT_FP8: out->limits.act = ACT_FP8; break;
    case FATHOM_ACT_INT8: out->limits.act = ACT_INT8; break;
    default: FAIL(d, FATHOM_EINVAL, "--dtype: no activation type has the number %d", (int)o->act);
    }
    return FATHOM_OK;
}

/* AUTO is a CPU's, where inputs are rounded anyway. Ranks would judge by different rows. */
static fathom_err resolve_head(struct engine_settings *out, const fathom_options *o, fathom_diag *d)
{
    const bool is_gpu = out->backend == FATHOM_BACKEND_CUDA;
    const bool may_choose = out->backend == FATHOM_BACKEND_CPU && out->limits.act != ACT_F32 &&
                            out->place.parallel.tp.size == 1 && !out->dummy;
    switch (o->head) {
    case FATHOM_HEAD_AUTO: out->loading.head = may_choose ? HEAD_AUTO : HEAD_STORED; break;
    case FATHOM_HEAD_STORED: out->loading.head = HEAD_STORED; break;
    case FATHOM_HEAD_INT8: out->loading.head = HEAD_INT8; break;
    case FATHOM_HEAD_FP8: out->loading.head = HEAD_FP8; break;
    default: FAIL(d, FATHOM_EINVAL, "--head-dtype: no type has the number %d", (int)o->head);
    }
    if (!is_gpu || out->loading.head == HEAD_STORED) return FATHOM_OK;
    FAIL(d, FATHOM_EUNSUPPORTED, "--head-dtype %s is for a CPU: on a GPU the head is as stored",
         o->head == FATHOM_HEAD_INT8 ? "int8" : "fp8");
}

static fathom_err resolve_drafts(struct engine_settings *out, const fathom_options *o,
                                 const struct model_config *config, fathom_diag *d)
{
    struct model_limits *l = &out->limits;
    if (o->n_draft > FATHOM_DRAFT_MAX) {
        FAIL(d, FATHOM_EINVAL,
             "--speculative-config: num_speculative_tokens is %u, needed is 1 to %d", o->n_draft,
             FATHOM_DRAFT_MAX);
    }
    if (o->n_draft > 0 && config->n_mtp == 0) {
        FAIL(d, FATHOM_EUNSUPPORTED,
             "--speculative-config: the model has no MTP layer to draft with "
             "(num_nextn_predict_layers is 0). Leave the flag out");
    }
    out->n_draft = o->n_draft;
    l->with_mtp = o->n_draft > 0;
    out->max_score = least(SETTINGS_MAX_SCORE, l->max_token);
    return FATHOM_OK;
}

/* Sizes in ascending order, each once, no larger than a step. */
static fathom_err resolve_graphs(struct engine_settings *out, const fathom_options *o,
                                 fathom_diag *d)
{
    struct step_graph_config *c = &out->graphs;
    c->with_drafts = out->limits.with_mtp;
    c->n_warm_up = o->n_graph_warm_up ? o->n_graph_warm_up : 1;
    c->by_all_lanes = out->place.n_host > 1 && out->place.parallel.dp.size > 1;
    if (o->enforce_eager) return FATHOM_OK;
    out->usual_graphs = o->n_graph_size == 0;
    if (o->n_graph_size > STEP_GRAPH_SIZES_MAX) {
        FAIL(d, FATHOM_EINVAL, "--compilation-config: %u cudagraph_capture_sizes, at most %d",
             o->n_graph_size, STEP_GRAPH_SIZES_MAX);
    }
    for (uint32_t i = 0; i < o->n_graph_size; i++) {
        uint32_t size = o->graph_sizes[i];
        uint32_t at = c->n_size;
        if (size == 0 || size > out->limits.max_token) continue; /* no step has it */
        while (at > 0 && c->sizes[at - 1] > size) at--;
        if (at > 0 && c->sizes[at - 1] == size) continue;
        memmove(&c->sizes[at + 1], &c->sizes[at], (c->n_size - at) * sizeof size);
        c->sizes[at] = size;
        c->n_size++;
    }
    return FATHOM_OK;
}

static fathom_err resolve_offload(struct engine_settings *out, const fathom_options *o,
                                  fathom_diag *d)
{
    bool has_dir = o->offload_dir && o->offload_dir[0];
    if (has_dir != (o->offload_dir_bytes > 0)) {
        FAIL(d, FATHOM_EINVAL, "--kv-offload-dir and --kv-offload-dir-size: give both or neither");
    }
    if ((has_dir || o->offload_ram_bytes > 0 || o->transfer) && o->no_prefix_cache) {
        FAIL(d, FATHOM_EINVAL,
             "--kv-offload-ram, --kv-offload-dir and --kv-transfer-config keep pages of the prefix "
             "cache: leave "
             "--no-enable-prefix-caching out");
    }
    if (o->kv_events && o->no_prefix_cache) {
        FAIL(d, FATHOM_EINVAL,
             "--kv-events-config tells of pages of the prefix cache: leave "
             "--no-enable-prefix-caching out");
    }
    out->kv_events = o->kv_events;
    out->no_prefix_cache = o->no_prefix_cache;
    out->offload_ram_bytes = o->offload_ram_bytes;
    out->offload_dir = has_dir ? o->offload_dir : NULL;
    out->offload_dir_bytes = o->offload_dir_bytes;
    out->transfer = o->transfer;
    return FATHOM_OK;
}

void settings_place(struct model_place *out, const struct engine_settings *s, uint32_t i)
{
    const uint32_t n_rank = settings_n_rank(s);
    const uint32_t first = s->hosts ? s->hosts->node_rank * n_rank : 0;
    ASSERT(i < n_rank);
    *out = s->place;
    if (!out->parallel.is_slice) parallel_be(&out->parallel, first + i);
    if (n_rank == 1) return;
    const uint32_t n_thread = s->place.n_thread ? s->place.n_thread : os_n_cpu();
    out->device = s->devices[i];
    out->i_local = i;
    out->n_local = n_rank;
    out->n_thread = n_thread > n_rank ? n_thread / n_rank : 1;
}

struct model_config settings_stored(const struct engine_settings *s,
                                    const struct model_config *config)
{
    struct model_config stored = *config;
    if (s->loading.quantize_fp8) stored.quant = QUANT_FP8;
    if (s->dummy && s->quantization) model_config_set_quant(&stored, s->quantization);
    return stored;
}

void settings_set_seqs(struct engine_settings *s, uint32_t n, const char *why)
{
    struct model_limits *l = &s->limits;
    struct step_graph_config *c = &s->graphs;
    ASSERT(n >= 1 && n <= LIMIT_NUM_SEQS && l->max_token >= 1);
    s->max_num_seqs = s->admission.max_num_seqs = n;
    s->seqs_why = why;
    l->max_request = least(n, l->max_token);
    const uint64_t n_row = (uint64_t)l->max_request * (1 + s->n_draft);
    l->max_logit_row = least(n_row + s->max_score, l->max_token);
    if (s->usual_graphs) c->n_size = step_graph_sizes(c->sizes, least(n_row, l->max_token));
}

/* As many as were given, or the default. It becomes more on a GPU whose cache has room, if the
 * tokens of so many answers and their drafts leave half of a step to prompts. */
static fathom_err resolve_seqs(struct engine_settings *out, const fathom_options *o, fathom_diag *d)
{
    const uint64_t n_row = (uint64_t)SETTINGS_MAX_NUM_SEQS_GPU * (1 + out->n_draft);
    const char *why = "256 would take more than half of --max-num-batched-tokens";
    uint32_t n;
    TRY(check_count("--max-num-seqs", o->max_num_seqs, SETTINGS_MAX_NUM_SEQS, LIMIT_NUM_SEQS, &n,
                    d));
    if (o->max_num_seqs > 0) {
        why = NULL;
    } else if (out->backend != FATHOM_BACKEND_CUDA) {
        why = "the default of a CPU";
    } else if (n_row <= out->limits.max_token / 2) {
        out->fit_seqs = true;
        why = "256 would take more than a sixteenth of the cache";
    }
    settings_set_seqs(out, n, why);
    return FATHOM_OK;
}

static uint32_t share_prompts_of(const fathom_options *o)
{
    if (o->share_prompts == 0) return SETTINGS_SHARE_PROMPTS;
    return o->share_prompts > 0 ? (uint32_t)o->share_prompts : 0;
}

fathom_err settings_resolve(struct engine_settings *out, const fathom_options *o,
                            const struct model_config *config, fathom_diag *d)
{
    *out = (struct engine_settings){0};
    struct model_limits *l = &out->limits;
    if (!o->dummy || !o->quantization) TRY(model_config_check_quant(config, d));
    TRY(resolve_ranks(out, o, d));
    TRY(weights_check_parallel(config, &out->place.parallel, d));
    TRY(resolve_backend(out, o, d));
    TRY(resolve_stages(out, o, config, d));
    TRY(resolve_hosts(out, o, d));
    TRY(resolve_devices(out, o, d));
    out->dummy = o->dummy;
    out->quantization = o->quantization;
    out->place.n_thread = o->n_thread;
    out->loading = (struct model_loading){
        .quantize_fp8 = o->quantize_fp8 && config->quant == QUANT_NONE,
        .n_thread = o->n_thread,
        .on_load = o->on_load,
        .on_load_arg = o->on_load_arg,
    };
    const struct model_config stored = settings_stored(out, config);
    TRY(resolve_types(out, o, &stored, d));
    TRY(resolve_head(out, o, d));
    if (o->n_thread > LIMIT_THREADS) {
        FAIL(d, FATHOM_EINVAL, "--threads %u is out of range, needed is 0 to %d", o->n_thread,
             LIMIT_THREADS);
    }
    l->max_context = o->max_model_len ? o->max_model_len : config->max_position;
    out->fit_context = o->fit_model_len && !o->max_model_len;
    if (l->max_context > config->max_position || l->max_context < 2) {
        FAIL(d, FATHOM_EINVAL,
             "--max-model-len %u is out of range, needed is 2 to the model's "
             "max_position_embeddings, %u",
             o->max_model_len, config->max_position);
    }
    TRY(check_count("--max-num-batched-tokens", o->max_num_batched_tokens,
                    SETTINGS_MAX_NUM_BATCHED_TOKENS, LIMIT_BATCHED_TOKENS, &l->max_token, d));
    TRY(check_count("--max-queued", o->max_queued, SETTINGS_MAX_QUEUED, LIMIT_QUEUED,
                    &out->max_queued, d));
    out->admission = (struct admission_config){.max_num_batched_tokens = l->max_token,
                                               .max_queued_tokens = o->max_queued_tokens,
                                               .ttft_us = (uint64_t)o->slo_ttft_ms * 1000,
                                               .tpot_us = (uint64_t)o->slo_tpot_ms * 1000};
    out->priorities = o->priorities;
    out->share_prompts = share_prompts_of(o);
    out->max_flight = o->no_async ? 1 : 2;
    if (out->place.parallel.pp.size > 1)
        out->max_flight = l->n_flight = out->place.parallel.pp.size;
    TRY(resolve_drafts(out, o, config, d));
    TRY(resolve_graphs(out, o, d));
    TRY(resolve_seqs(out, o, d));

    out->memory_utilization = o->memory_utilization == 0 ? 0.9 : o->memory_utilization;
    if (!(out->memory_utilization > 0 && out->memory_utilization <= 1)) {
        FAIL(d, FATHOM_EINVAL, "--gpu-memory-utilization %g is out of range, needed is (0, 1]",
             o->memory_utilization);
    }
    if (o->kv_cache_bytes && o->kv_cache_tokens)
        FAIL(d, FATHOM_EINVAL,
             "--kv-cache-memory-bytes and the cache's tokens (--max-total-tokens, "
             "--num-gpu-blocks-override) say the same: leave one of them out");
    out->kv_cache_bytes = o->kv_cache_bytes;
    out->kv_cache_pages = (o->kv_cache_tokens + KV_PAGE_TOKENS - 1) / KV_PAGE_TOKENS;
    TRY(resolve_offload(out, o, d));
    out->n_vocab_used = o->n_vocab_used ? (uint32_t)o->n_vocab_used : config->n_vocab;
    if (o->n_vocab_used < 0 || out->n_vocab_used > config->n_vocab) {
        FAIL(d, FATHOM_EINVAL, "n_vocab_used %d is out of range, needed is 0 to vocab_size, %u",
             (int)o->n_vocab_used, config->n_vocab);
    }
    const struct parallel *p = &out->place.parallel;
    uint32_t n_drawn = p->is_slice ? parallel_part(p, CUT_VOCAB, config->n_vocab) : config->n_vocab;
    if (out->n_vocab_used > n_drawn) out->n_vocab_used = n_drawn;
    return FATHOM_OK;
}
