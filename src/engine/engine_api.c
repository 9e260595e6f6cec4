/* engine_api.c - making an engine, ending it, and what its callers ask of it */
#include <stdio.h>
#include <string.h>

#include "base/assert.h"
#include "base/clock.h"
#include "base/fail.h"
#include "base/mem.h"
#include "checkpoint/checkpoint.h"
#include "engine/engine.h"
#include "engine/engine_int.h"

/* ---- making it and ending it ---------------------------------------------------------------- */

static fathom_err make_flights(fathom_engine *e, uint32_t max_num_seqs)
{
    e->max_flight = e->runner->max_flight;
    ASSERT(e->max_flight >= 1 && e->n_flight == 0);
    ASSERT(e->n_stage <= 1 || (e->n_lane == 1 && e->max_flight == e->n_stage));
    e->flights = mem_calloc(e->max_flight, sizeof *e->flights);
    e->results = mem_calloc(e->n_lane, sizeof *e->results);
    if (!e->flights || !e->results) return FATHOM_ENOMEM;
    for (uint32_t i = 0; i < e->max_flight; i++) {
        struct flight *f = &e->flights[i];
        f->i = i;
        f->plans = mem_calloc(e->n_lane, sizeof *f->plans);
        f->steps = mem_calloc(e->n_lane, sizeof *f->steps);
        if (!f->plans || !f->steps) return FATHOM_ENOMEM;
        for (uint32_t k = 0; k < e->n_lane; k++) TRY(plan_init(&f->plans[k], max_num_seqs));
    }
    return FATHOM_OK;
}

static void free_flights(fathom_engine *e)
{
    for (uint32_t i = 0; e->flights && i < e->max_flight; i++) {
        struct flight *f = &e->flights[i];
        for (uint32_t k = 0; f->plans && k < e->n_lane; k++) plan_fini(&f->plans[k]);
        mem_free(f->plans);
        mem_free(f->steps);
    }
    mem_free(e->flights);
    mem_free(e->results);
}

void engine_kick(void *arg)
{
    mailbox_kick(((fathom_engine *)arg)->mailbox);
}

static void copy_info(fathom_engine *e, const fathom_info *info)
{
    e->info = *info;
    static_assert(sizeof e->limits.eos_ids == sizeof info->eos_ids, "copied whole");
    ASSERT(info->n_eos <= sizeof info->eos_ids / sizeof info->eos_ids[0]);
    snprintf(e->model_type, sizeof e->model_type, "%s", info->model_type);
    snprintf(e->backend_name, sizeof e->backend_name, "%s", info->backend);
    e->info.model_type = e->model_type;
    e->info.backend = e->backend_name;
    e->limits.max_model_len = info->max_model_len;
    e->limits.n_vocab = info->n_vocab;
    e->limits.n_eos = info->n_eos;
    memcpy(e->limits.eos_ids, info->eos_ids, sizeof e->limits.eos_ids);
}

static bool is_in_hurry(void *arg)
{
    return atomic_load(&((fathom_engine *)arg)->hurry);
}

static fathom_err make_tiers(fathom_engine *e, const struct offload_config *c, fathom_diag *d)
{
    if (c->n_ram_page == 0) return FATHOM_OK;
    if (!e->lanes[0].prefix)
        FAIL(d, FATHOM_EINVAL, "tiers of the prefix cache, which is turned off");
    const struct tier_io_owner owner = {.done = engine_kick, .in_hurry = is_in_hurry, .arg = e};
    TRY(offload_create(&e->offload, c, e->runner, &owner, d));
    for (uint32_t i = 0; i < e->n_lane; i++)
        prefix_attach_tiers(e->lanes[i].prefix, offload_tiers(e->offload), i * e->info.n_page);
    page_exchange_tell(offload_exchange(e->offload), &e->info);
    return FATHOM_OK;
}

static fathom_err make_events(fathom_engine *e, struct page_events *events, fathom_diag *d)
{
    struct prefix_cache *caches[PARALLEL_RANKS_MAX] = {NULL};
    if (!events) return FATHOM_OK;
    ASSERT(e->n_lane <= PARALLEL_RANKS_MAX);
    for (uint32_t i = 0; i < e->n_lane; i++) caches[i] = e->lanes[i].prefix;
    if (!caches[0]) FAIL(d, FATHOM_EINVAL, "events of the prefix cache, which is turned off");
    TRY(page_events_start(events, caches, e->n_lane, e->info.n_page, engine_kick, e, d));
    e->events = events;
    return FATHOM_OK;
}

static fathom_err make_lanes(fathom_engine *e, const struct engine_config *c, fathom_diag *d)
{
    const fathom_info *info = &c->info;
    const uint32_t n_lane = step_runner_n_lane(e->runner);
    struct lane_config lane = {.sched = {.max_num_batched_tokens = info->max_num_batched_tokens,
                                         .max_num_seqs = info->max_num_seqs,
                                         .max_draft = info->n_draft,
                                         .max_score = c->max_score,
                                         .max_flight = e->runner->max_flight,
                                         .n_stage = e->n_stage,
                                         .prompt_form = e->runner->prompt_form,
                                         .n_lane = n_lane},
                               .n_page = info->n_page,
                               .no_prefix_cache = c->no_prefix_cache};
    if (request_n_page(info->max_model_len) > info->n_page) {
        FAIL(d, FATHOM_EINVAL, "%u pages do not hold one request of %u tokens", info->n_page,
             info->max_model_len);
    }
    ASSERT(n_lane == 1 || e->runner->lane_pages == info->n_page);
    e->lanes = mem_calloc(n_lane, sizeof *e->lanes);
    if (!e->lanes) FAIL(d, FATHOM_ENOMEM, "no memory for %u lanes", n_lane);
    e->n_lane = e->info.n_lane = e->stats.n_lane = n_lane;
    for (uint32_t i = 0; i < n_lane; i++) {
        lane.sched.lane = i;
        TRY(lane_init(&e->lanes[i], &lane, d));
    }
    return FATHOM_OK;
}

/* Prompts are shared by lanes whose ranks bring rows to each other. */
static fathom_err make_share(fathom_engine *e, const struct engine_config *c)
{
    struct share_config share = {.n_lane = e->n_lane,
                                 .least = c->share_prompts,
                                 .max_num_seqs = e->runner->layout.max_request,
                                 .max_context = c->info.max_model_len};
    if (e->n_lane == 1 || !e->runner->shares_rows || share.least == 0) return FATHOM_OK;
    for (uint32_t i = 0; i < e->n_lane; i++) share.scheds[i] = e->lanes[i].sched;
    return share_init(&e->share, &share);
}

static fathom_err make_parts(fathom_engine *e, const struct engine_config *c, fathom_diag *d)
{
    const fathom_info *info = &c->info;
    TRY(make_lanes(e, c, d));
    const uint32_t n_seq = e->n_lane * info->max_num_seqs; /* of all lanes, at once */
    e->limits.n_lane = e->n_lane;
    e->admission = c->admission;
    if (e->n_stage > 1) e->admission.tpot_us /= e->n_stage; /* a token takes as many steps' time */
    e->admission.max_num_seqs = n_seq;
    e->admission.max_num_batched_tokens = e->n_lane * info->max_num_batched_tokens;
    e->info.max_requests = n_seq + c->max_queued;
    TRY(mailbox_create(&e->mailbox, e->info.max_requests, c->seed, d));
    mailbox_set_admission(e->mailbox, &e->admission);
    TRY(make_tiers(e, &c->offload, d));
    TRY(make_events(e, c->events, d));
    e->told = mem_calloc(n_seq, sizeof(struct sequence *));
    if (!e->told || make_flights(e, info->max_num_seqs) != FATHOM_OK ||
        make_share(e, c) != FATHOM_OK) {
        FAIL(d, FATHOM_ENOMEM, "no memory for plans of %u requests", n_seq);
    }
    e->stats.n_page = e->n_lane * info->n_page;
    engine_publish(e, NULL, 0); /* whoever looks before the thread does sees what there is */
    return FATHOM_OK;
}

fathom_err engine_create(fathom_engine **out, const struct engine_config *c,
                         struct step_runner *runner, struct checkpoint *checkpoint, fathom_diag *d)
{
    *out = NULL;
    fathom_engine *e = mem_calloc(1, sizeof *e);
    if (!e) FAIL(d, FATHOM_ENOMEM, "no memory for the engine");
    fathom_err err;
    ASSERT(runner->layout.max_token == c->info.max_num_batched_tokens);
    ASSERT(runner->layout.max_context >= c->info.max_model_len);
    copy_info(e, &c->info);
    e->limits.n_vocab_used = c->n_vocab_used;
    e->limits.priorities = c->priorities;
    e->runner = runner;
    e->n_stage = runner->n_stage;
    e->checkpoint = checkpoint;
    TRY_GOTO(make_parts(e, c, d), fail);
    if (runner->ops->is_away) mailbox_suspend(e->mailbox, runner->ops->fault(runner));
    if (pthread_create(&e->thread, NULL, engine_main, e) != 0) {
        err = diag_fail(d, FATHOM_EIO, "the engine's thread cannot be started");
        goto fail;
    }
    e->has_thread = true;
    *out = e;
    return FATHOM_OK;
fail:
    offload_destroy(e->offload);
    e->offload = NULL;
    e->events = NULL;
    e->runner = NULL; /* still the caller's, and so is the checkpoint */
    e->checkpoint = NULL;
    fathom_close(e);
    return err;
}

void fathom_hurry(fathom_engine *e)
{
    ASSERT(e);
    atomic_store(&e->hurry, true);
}

void fathom_close(fathom_engine *e)
{
    if (!e) return;
    if (e->has_thread) {
        mailbox_close(e->mailbox);
        pthread_join(e->thread, NULL);
    }
    page_events_close(e->events);
    if (e->runner) (void)e->runner->ops->bind(e->runner); /* the engine's thread had it */
    offload_destroy(e->offload);
    if (e->runner) e->runner->ops->destroy(e->runner);
    mailbox_destroy(e->mailbox);
    free_flights(e);
    share_fini(&e->share);
    for (uint32_t i = 0; i < e->n_lane; i++) lane_fini(&e->lanes[i]);
    mem_free(e->lanes);
    checkpoint_close(e->checkpoint);
    mem_free(e->told);
    mem_free(e);
}

/* ---- callers' side -------------------------------------------------------------------------- */

const fathom_info *fathom_get_info(const fathom_engine *e)
{
    return &e->info;
}

fathom_err fathom_get_file(fathom_engine *e, const char *name, const char **data, size_t *n)
{
    if (!e->checkpoint) return FATHOM_ENOTFOUND;
    return checkpoint_file(e->checkpoint, name, data, n, NULL);
}

fathom_err fathom_submit(fathom_engine *e, const fathom_request *r, uint64_t *id, fathom_diag *d)
{
    struct sequence *q = NULL;
    fathom_request with = *r;
    with.cache_salt ^= engine_salt(e);
    TRY(sequence_check(&with, &e->limits, d));
    TRY(sequence_create(&q, &with, &e->limits, clock_now_us(), d));
    fathom_err err = page_exchange_choose(offload_exchange(e->offload), &with, &q->request, d);
    if (!err) err = mailbox_submit(e->mailbox, q, id, d);
    if (err == FATHOM_OK) return FATHOM_OK;
    sequence_give_back(q);
    sequence_destroy(q);
    return err;
}

void fathom_reset_cache(fathom_engine *e)
{
    engine_void_pages(e);
}

void fathom_watch_experts(fathom_engine *e, bool on)
{
    atomic_store(&e->watches_experts, on);
}

void fathom_cancel(fathom_engine *e, uint64_t id)
{
    mailbox_cancel(e->mailbox, id);
}

size_t fathom_poll(fathom_engine *e, fathom_event *events, size_t max, int timeout_ms)
{
    return mailbox_poll(e->mailbox, events, max, timeout_ms);
}

void fathom_wake(fathom_engine *e)
{
    mailbox_wake(e->mailbox);
}

void fathom_get_stats(fathom_engine *e, fathom_stats *out)
{
    const struct step_runner *r = e->runner;
    struct rank_waits waits[PARALLEL_RANKS_MAX];
    static_assert((int)PARALLEL_RANKS_MAX == FATHOM_RANKS_MAX, "a place for each rank");
    mailbox_get_stats(e->mailbox, out);
    out->tiers.n_sent = page_exchange_n_sent(offload_exchange(e->offload));
    out->tiers.n_released = page_exchange_n_released(offload_exchange(e->offload));
    page_events_fill_stats(e->events, &out->events);
    out->n_refused_pages = page_exchange_n_refused(offload_exchange(e->offload));
    out->n_rank_wait = r->ops->get_waits ? r->ops->get_waits(r, waits) : 0;
    for (uint32_t i = 0; i < out->n_rank_wait; i++)
        out->rank_waits[i] = (fathom_rank_waits){waits[i].n, waits[i].ns / 1000};
    out->progress = (out->n_step << 40) + (r->ops->progress ? r->ops->progress(r) : 0) +
                    out->tiers.n_ram_hit + out->tiers.n_disk_hit + out->n_fetch_plan;
}

const char *fathom_fault(fathom_engine *e)
{
    return mailbox_fault(e->mailbox);
}

void engine_check(fathom_engine *e)
{
    mailbox_check(e->mailbox);
}
