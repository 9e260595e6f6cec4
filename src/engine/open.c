/* open.c - fathom_open: from a directory or bundle to a running engine
 *
 *   checkpoint -> config -> settings -> memory plan -> runner (backend, weights, cache) -> engine
 *
 * Nothing large is read or allocated before the memory plan has said that it fits. */
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/assert.h"
#include "base/clock.h"
#include "base/fail.h"
#include "base/log.h"
#include "base/os.h"
#include "base/private_dir.h"
#include "base/rng.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/weights_digest.h"
#include "comm/tcp_link.h"
#include "engine/engine.h"
#include "engine/engine_identity.h"
#include "engine/host_follow.h"
#include "engine/host_lanes.h"
#include "engine/host_runner.h"
#include "engine/rank_group.h"
#include "engine/rank_layout.h"
#include "engine/runner.h"
#include "fathom/follow.h"
#include "model/config.h"
#include "model/config_override.h"
#include "model/weights.h"

static fathom_err open_files(struct checkpoint **out, const fathom_options *o, fathom_diag *d)
{
    bool any = o->bundle || o->model_dir;
    if (any && o->dummy) {
        return checkpoint_open_files(out, o->model_dir, o->bundle, d);
    }
    if (o->bundle) return checkpoint_open_bundle(out, o->bundle, d);
    if (o->model_dir) return checkpoint_open(out, o->model_dir, d);
    FAIL(d, FATHOM_EINVAL, "no model: neither model_dir nor bundle is given");
}

static fathom_err open_checkpoint(struct checkpoint **out, const fathom_options *o, fathom_diag *d)
{
    TRY(open_files(out, o, d));
    return checkpoint_override(*out, o->config_overrides, true, d);
}

static fathom_err check_draft_layer(const struct engine_settings *s, const struct checkpoint *c,
                                    const struct model_config *config, fathom_diag *d)
{
    if (s->n_draft == 0 || s->dummy || weights_count_mtp(c, config) == config->n_mtp) {
        return FATHOM_OK;
    }
    FAIL(d, FATHOM_EUNSUPPORTED,
         "--speculative-config: config.json announces an MTP layer and the checkpoint does not "
         "hold it. Leave the flag out, or take a checkpoint with the tensors of model.layers.%u",
         config->n_layer);
}

static void add_eos(fathom_info *info, const int32_t *ids, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        bool known = false;
        for (uint32_t k = 0; k < info->n_eos; k++) known |= info->eos_ids[k] == ids[i];
        uint32_t room = (uint32_t)(sizeof info->eos_ids / sizeof info->eos_ids[0]);
        if (!known && info->n_eos < room) info->eos_ids[info->n_eos++] = ids[i];
    }
}

/* What both configuration files say about tokens and defaults. The ids that end an answer are
 * those of either file. */
static void fill_tokens(fathom_info *info, const struct model_config *config,
                        const struct generation_config *g)
{
    info->n_vocab = config->n_vocab;
    info->n_expert = config->n_expert;
    info->n_expert_used = config->n_expert_used;
    info->bos_id = config->bos_id >= 0 ? config->bos_id : g->bos_id;
    add_eos(info, config->eos_ids, config->n_eos);
    add_eos(info, g->eos_ids, g->n_eos);
    info->default_temperature = g->do_sample ? g->temperature : 0;
    info->default_top_p = g->top_p;
    info->default_top_k = g->top_k;
}

static void fill_sizes(fathom_info *info, const struct engine_settings *s,
                       const struct memory_plan *plan)
{
    info->max_model_len = s->limits.max_context;
    info->max_num_seqs = s->max_num_seqs;
    info->max_num_batched_tokens = s->limits.max_token;
    info->n_draft = s->n_draft;
    info->dummy = s->dummy;
    info->rank = s->place.parallel.tp.rank;
    info->rank_slice = s->place.parallel.is_slice;
    info->world = parallel_n_peer(&s->place.parallel);
    info->n_page = plan->n_page;
    info->kv_bytes = plan->kv_bytes;
}

/* Whose the tiers are. */
static bool is_first_host(const struct engine_settings *s)
{
    return !s->hosts || s->hosts->node_rank == 0;
}

/* With a directory of pages, or other servers to share them with: refuses a directory that cannot
 * be used before anything is loaded, and begins to compute the digest of the weights, which says
 * whose pages they are, beside their loading. */
static fathom_err begin_digest(struct weights_digest **out, const struct engine_settings *s,
                               const struct checkpoint *checkpoint, fathom_diag *d)
{
    enum {
        THREADS_MAX = 16
    }; /* a quarter of the processors, and so many: loading needs them too */
    *out = NULL;
    if (!s->offload_dir && !s->transfer && !s->hosts) return FATHOM_OK;
    fathom_diag cause = {{0}};
    unsigned n_thread = os_n_cpu() / 4;
    struct weights_digest_config config = {.dir = -1, .settled_s = WEIGHTS_SETTLED_S};
    config.n_thread = n_thread < 1 ? 1 : n_thread < THREADS_MAX ? n_thread : THREADS_MAX;
    fathom_err err = FATHOM_OK;
    if (s->offload_dir && is_first_host(s))
        err = private_dir_open(&config.dir, s->offload_dir, &cause);
    if (err && err != FATHOM_EIO) FAIL(d, err, "--kv-offload-dir %s", cause.text);
    return weights_digest_begin(out, checkpoint, &config, d);
}

static void end_digest(struct sha256 *out, struct weights_digest *digest, const char *where)
{
    struct weights_digest_result r;
    weights_digest_end(digest, &r);
    *out = r.digest;
    LOG_INFO("engine", "weights_digest shards=%u kept=%u bytes=%llu waited_ms=%llu", r.n_shard,
             r.n_kept, (unsigned long long)r.n_bytes, (unsigned long long)(r.wait_us / 1000));
    if (!r.changed) return;
    LOG_WARN("engine",
             "%s: weights were written to while they were loaded: nobody can say what they are, "
             "and their pages are not kept for the next start",
             where);
}

enum { NUMERICS_BYTES = 256 };

static void write_numerics(char out[NUMERICS_BYTES], const struct engine_settings *s,
                           const struct step_runner *runner)
{
    char ranks[32] = "";
    const uint32_t n_rank = s->place.parallel.is_slice ? 1 : s->place.parallel.tp.size;
    if (n_rank > 1) snprintf(ranks, sizeof ranks, ", %u parts in f32", n_rank);
    snprintf(out, NUMERICS_BYTES, "%s, %s, act %d%s%s", runner_backend_name(runner),
             runner_numerics(runner), (int)s->limits.act,
             s->loading.quantize_fp8 ? ", made fp8" : "", ranks);
}

/* Of everything but the weights, which are read as a whole only where somebody asks for that. */
static uint64_t numerics_of(const struct identity_source *source)
{
    struct identity id;
    struct identity_source without = *source;
    memset(&without.weights, 0, sizeof without.weights);
    identify(&id, &without);
    return identity_key(&id).lo;
}

/* The tiers, and who may share them: whoever computes the same bits from the same weights.
 * `digest` is freed; NULL: there is no directory, and nobody to share with; or, with several hosts,
 * the source has it. */
static void fill_offload(struct offload_config *out, const struct engine_settings *s,
                         const struct memory_plan *plan, struct identity_source source,
                         struct weights_digest *digest)
{
    struct checkpoint *checkpoint = source.checkpoint;
    *out = (struct offload_config){.n_ram_page = plan->n_ram_page,
                                   .dir = s->offload_dir,
                                   .dir_bytes = s->offload_dir_bytes,
                                   .transfer = s->transfer,
                                   .with_next = s->n_draft > 0,
                                   .page_bytes = plan->record.page_bytes};
    if (!digest && !s->hosts) return;
    if (digest) end_digest(&source.weights, digest, checkpoint_where(checkpoint));
    identify(&out->identity, &source);
}

/* Which weights these are, when they are not simply the checkpoint's. */
static void log_weights(const fathom_options *o, const struct engine_settings *s,
                        const struct model_config *config)
{
    if (o->quantize_fp8 && config->quant == QUANT_FP8) {
        LOG_INFO("engine", "quantization=fp8: the checkpoint is FP8 already");
    } else if (o->quantize_fp8) {
        LOG_INFO("engine", "quantization=fp8: linear weights become FP8 blocks of 128 x 128, scale "
                           "= largest / 448, while they load");
    }
    if (s->dummy) {
        LOG_WARN("engine",
                 "load_format=dummy: normally distributed weights of a fixed seed, experts "
                 "chosen near uniformly; outputs mean nothing");
    }
    const struct parallel *p = &s->place.parallel;
    if (p->is_slice) {
        LOG_WARN("engine",
                 "benchmark mode: rank %u of %u runs by itself with %u of %u heads and rows of the "
                 "vocabulary in proportion, collectives left out; outputs mean nothing",
                 p->tp.rank, p->tp.size, parallel_part(p, CUT_HEADS, config->n_head),
                 config->n_head);
    }
}

/* The runner of the settings' ranks, and that of the first of them. */
static fathom_err make_runner(struct step_runner **out, const struct step_runner **first,
                              const struct engine_settings *s, const struct memory_plan *plan,
                              const struct model_config *config,
                              const struct checkpoint *checkpoint, fathom_diag *d)
{
    bool several = settings_n_rank(s) > 1 || s->hosts;
    if (several) {
        TRY(rank_group_create(out, s, plan, config, checkpoint, d));
    } else {
        TRY(runner_create(out, s, plan, config, checkpoint, d));
    }
    *first = several ? rank_group_first(*out) : *out;
    return FATHOM_OK;
}

static void log_open(const char *where, const fathom_info *info, const struct step_runner *runner,
                     uint64_t start_us)
{
    LOG_INFO("engine",
             "model=%s type=%s backend=%s device=\"%s\" weights_bytes=%llu kv_bytes=%llu pages=%u "
             "max_model_len=%u max_num_seqs=%u ready_ms=%llu",
             where, info->model_type, info->backend, runner_device(runner),
             (unsigned long long)info->weights_bytes, (unsigned long long)info->kv_bytes,
             info->n_page, info->max_model_len, info->max_num_seqs,
             (unsigned long long)((clock_now_us() - start_us) / 1000));
}

/* What is there before the engine: the model, loaded onto the ranks that run here. */
struct opening {
    struct checkpoint *checkpoint;
    struct model_config config;
    struct generation_config generation;
    struct engine_settings settings;
    struct memory_plan plan;
    struct weights_digest *digest;
    struct host_lanes *lanes; /* of several hosts */
    struct page_events *events;
    struct step_runner *runner;
    const struct step_runner *first;
    char numerics[NUMERICS_BYTES];
    struct identity_source source;
};

static void close_opening(struct opening *p)
{
    weights_digest_cancel(p->digest);
    if (p->runner) p->runner->ops->destroy(p->runner);
    host_lanes_destroy(p->lanes);
    page_events_close(p->events);
    checkpoint_close(p->checkpoint);
}

/* The settings, with a layout that is chosen where the options leave it. */
static fathom_err resolve(struct opening *p, const fathom_options *o, fathom_diag *d)
{
    fathom_options as;
    struct rank_layout choice;
    TRY(rank_layout_resolve(&as, &choice, o, &p->config, p->checkpoint, 0, d));
    if (choice.n_rank > 0) LOG_INFO("engine", "layout=%s", choice.reason);
    return settings_resolve(&p->settings, &as, &p->config, d);
}

/* Before anything is loaded, which may take minutes: what cannot be had is told then. */
static fathom_err open_events(struct opening *p, fathom_diag *d)
{
    const struct engine_settings *s = &p->settings;
    if (!s->kv_events || !is_first_host(s)) return FATHOM_OK;
    const uint32_t n_lane = s->place.parallel.is_slice ? 1 : s->place.parallel.dp.size;
    return page_events_open(&p->events, s->kv_events, n_lane, d);
}

static fathom_err load(struct opening *p, const fathom_options *o, fathom_diag *d)
{
    struct engine_settings *s = &p->settings;
    TRY(open_checkpoint(&p->checkpoint, o, d));
    TRY(model_config_load(&p->config, p->checkpoint, d));
    TRY(generation_config_load(&p->generation, p->checkpoint, p->config.n_vocab, d));
    TRY(resolve(p, o, d));
    TRY(open_events(p, d));
    TRY(check_draft_layer(s, p->checkpoint, &p->config, d));
    log_weights(o, s, &p->config);
    TRY(memory_plan_fit(&p->plan, s, &p->config, p->checkpoint, 0, d));
    if (s->seqs_why) LOG_INFO("engine", "max_num_seqs=%u: %s", s->max_num_seqs, s->seqs_why);
    if (is_first_host(s)) TRY(memory_check_host(&p->plan, s, d));
    s->loading.load_bytes = p->plan.weights_bytes;
    if (s->hosts) {
        TRY(host_lanes_create(&p->lanes, s, &p->config, p->plan.n_ram_page > 0, d));
        TRY(host_lanes_find(p->lanes, d));
        s->place.net = host_lanes_net(p->lanes);
        s->stage_net = host_lanes_stages(p->lanes);
    }
    TRY(begin_digest(&p->digest, s, p->checkpoint, d));
    TRY(make_runner(&p->runner, &p->first, s, &p->plan, &p->config, p->checkpoint, d));
    write_numerics(p->numerics, s, p->first);
    p->source = (struct identity_source){.checkpoint = p->checkpoint,
                                         .dummy = s->dummy,
                                         .numerics = p->numerics,
                                         .prompt_form = p->first->prompt_form,
                                         .layout = &p->plan.record,
                                         .parallel = s->place.parallel};
    return FATHOM_OK;
}

/* What this host says of itself. Hosts have the same model, bits and sizes of steps; of pages as
 * many are used as all have. */
static void describe_host(struct host_self *out, struct opening *p)
{
    const struct engine_settings *s = &p->settings;
    const struct model_limits *l = &s->limits;
    *out = (struct host_self){
        .node_rank = s->hosts->node_rank,
        .n_node = s->hosts->n_node,
        .n_page = p->plan.n_page,
        .token = p->lanes->address.token,
        .inner = {s->hosts->inner_port, {s->hosts->inner_key[0], s->hosts->inner_key[1]}}};
    (void)snprintf(out->build, sizeof out->build, "fathom %s", FATHOM_VERSION);
    end_digest(&p->source.weights, p->digest, checkpoint_where(p->checkpoint));
    p->digest = NULL;
    identify(&out->identity, &p->source);
    const uint32_t sizes[] = {l->max_token,
                              l->max_request,
                              l->max_context,
                              l->max_logit_row,
                              l->with_mtp,
                              s->n_draft,
                              p->plan.n_ram_page > 0,
                              s->n_vocab_used,
                              s->place.parallel.tp.size,
                              parallel_n_stage(&s->place.parallel),
                              s->place.parallel.dp.size,
                              s->max_flight,
                              s->hosts->all_serve};
    struct sha256 parts[2] = {out->identity.layout, sha256_of(sizes, sizeof sizes)};
    out->identity.layout = sha256_of(parts, sizeof parts);
}

/* Host 0's runner takes the place of its ranks'. */
static fathom_err lead(struct opening *p, fathom_diag *d)
{
    struct host_self self;
    struct step_runner *ranks = p->runner;
    if (!p->settings.hosts) return FATHOM_OK;
    describe_host(&self, p);
    TRY(host_runner_create(&p->runner, p->lanes, ranks, &self,
                           request_n_page(p->settings.limits.max_context), d));
    p->lanes = NULL;
    return FATHOM_OK;
}

fathom_err fathom_follow(const fathom_options *o, fathom_diag *d)
{
    struct opening p = {0};
    struct host_self self;
    fathom_err err;
    ASSERT(o->hosts && o->hosts->node_rank > 0);
    TRY_GOTO(load(&p, o, d), done);
    describe_host(&self, &p);
    if (o->hosts->on_loaded) o->hosts->on_loaded(o->hosts->on_loaded_arg);
    err = host_follow(p.lanes, p.runner, &self, d);
done:
    close_opening(&p);
    return err;
}

static fathom_err try_port(const char *flag, const char *host, uint16_t port, fathom_diag *d)
{
    fathom_diag why = {{0}};
    uint16_t had;
    int fd = -1;
    if (tcp_link_listen(host, port, &fd, &had, &why) != FATHOM_OK)
        FAIL(d, FATHOM_EIO, "%s: %s", flag, why.text);
    (void)close(fd);
    return FATHOM_OK;
}

/* Ports that are opened once weights are loaded, which may take minutes: what cannot be had is told
 * before that. */
static fathom_err try_ports(const fathom_options *o, fathom_diag *d)
{
    const fathom_hosts *h = o->hosts;
    const fathom_transfer *t = o->transfer;
    if (h && !h->by_pmix) TRY(try_port("--master-addr", h->address, h->port, d));
    return t && t->gives ? try_port("--kv-ip", t->host, t->port, d) : FATHOM_OK;
}

fathom_err fathom_open(fathom_engine **out, const fathom_options *o, fathom_diag *d)
{
    *out = NULL;
    uint64_t start_us = clock_now_us();
    fathom_err err;
    struct opening p = {0};
    struct engine_config c = {0};
    const struct engine_settings *settings = &p.settings;

    ASSERT(!o->hosts || o->hosts->node_rank == 0);
    TRY_GOTO(try_ports(o, d), fail);
    TRY_GOTO(load(&p, o, d), fail);
    TRY_GOTO(lead(&p, d), fail);

    fill_tokens(&c.info, &p.config, &p.generation);
    fill_sizes(&c.info, settings, &p.plan);
    c.info.model_type = p.config.model_type;
    c.info.backend = runner_backend_name(p.first);
    c.info.weights_bytes = runner_weights_bytes(p.first);
    c.max_queued = settings->max_queued;
    c.admission = settings->admission;
    c.priorities = settings->priorities;
    c.n_vocab_used = settings->n_vocab_used;
    c.max_score = settings->max_score;
    c.no_prefix_cache = settings->no_prefix_cache;
    c.share_prompts = settings->share_prompts;
    c.info.numerics = numerics_of(&p.source);
    if (p.plan.n_ram_page > 0) {
        fill_offload(&c.offload, settings, &p.plan, p.source, p.digest);
        p.digest = NULL;
    }
    c.events = p.events;
    c.seed = o->seed ? o->seed : rng_entropy();
    TRY_GOTO(engine_create(out, &c, p.runner, p.checkpoint, d), fail);
    log_open(checkpoint_where(p.checkpoint), &c.info, p.first, start_us);
    return FATHOM_OK;
fail:
    close_opening(&p);
    return err;
}
