/* engine.c - the engine's thread and the public functions around it
 *
 *   loop:  take_mail                     new sequences, cancels
 *          end_expired                   those that waited too long
 *          offload_begin_step            what the disk has done
 *          sched_plan                    whose tokens, which pages; pages of the tiers, in
 *          offload_keep                  pages worth keeping, out
 *          batch_build, sampler_build    into the runner's block
 *          launch                        -- the device works from here
 *          sampler_fill_masks, draw      what constraints allow
 *          launch_ahead                  overlap scheduling: the steps after it
 *          wait                          -- to here, for the oldest step
 *          sched_commit                  append what was drawn, end what is over
 *          follow                        constraints go over it
 *          mailbox_publish               events
 *          drafter_begin, launch, wait   with drafts: the draft layer, once or a few times
 *
 * Overlap scheduling: a step is launched ahead when all of it is known but the ids that it reads,
 * which the step before it draws on the device. The device goes from one step to the next, and the
 * host does everything else meanwhile. A step launched ahead is the first step of the next round.
 * It may compute rows of a request that an earlier step has ended, or that has been cancelled:
 * these rows are dropped. A request that arrives waits for the end of all steps under way.
 *
 * States of the engine, kept by its thread
 *
 *   RUNNING ---- a launch or wait fails ----> FAILED ---- fathom_close ----> gone
 *      +------------------- fathom_close --------------------------------------^
 *
 *   AWAY is RUNNING without a step: of several hosts one is not there. Every live request ends with
 *   ERROR, new ones are refused with its name, and when all are there again the engine goes on
 *   with a cache in which nothing is found.
 *
 *   FAILED is final: every live request ends with ERROR, every new one is refused with the cause,
 *   and no step is tried again.
 *
 * Threads. Only the engine's thread touches what stands under "the engine thread's" below. Callers
 * and that thread meet in the mailbox. Nothing is allocated between taking mail and publishing: in
 * builds with FATHOM_DCHECK an allocation there is a fault. */
#include "engine/engine.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

#include "base/assert.h"
#include "base/clock.h"
#include "base/fail.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/os.h"
#include "checkpoint/checkpoint.h"
#include "engine/draft.h"
#include "engine/host_runner.h"
#include "engine/mailbox.h"
#include "engine/offload.h"
#include "engine/results.h"
#include "engine/sampler.h"
#include "engine/sequence.h"
#include "kv/page_pool.h"
#include "kv/prefix.h"
#include "sched/sched.h"

/* A step planned, or under way. */
struct flight {
    struct plan plan;
    struct step step;
};

struct fathom_engine {
    /* fixed */
    fathom_info info;
    char model_type[64];
    char backend_name[32];
    struct sequence_limits limits;
    struct step_runner *runner;
    struct checkpoint *checkpoint;
    struct mailbox *mailbox;
    struct admission_config admission;
    pthread_t thread;
    bool has_thread;
    atomic_uint_fast64_t cache_epoch; /* goes into the salt of new requests */
    atomic_bool hurry;                /* nothing more is written to the tiers */
    atomic_bool watches_experts;

    /* the engine thread's */
    struct page_pool *pool;
    struct prefix_cache *prefix; /* NULL: turned off */
    struct offload *offload;     /* NULL: there are no tiers */
    struct sched *sched;
    struct flight *flights; /* [max_flight] in a ring: n_flight of them from i_now on */
    uint32_t max_flight;
    uint32_t i_now;         /* the oldest step under way, or the one planned next: now_of */
    uint32_t n_flight;      /* steps launched and not waited for */
    bool was_launched;      /* the oldest step, before the round began */
    uint64_t start_us;      /* of the oldest step: when the one before was over, if later */
    struct sequence **told; /* [max_num_seqs] sequences with events of the step, in its order */
    struct drafter drafter;
    fathom_stats stats;
    struct admission_rates rates;
    struct admission_step measured; /* the step under way */
    bool failed;
    bool is_away;
};

/* ---- steps under way ------------------------------------------------------------------------ */

/* The i-th step under way, from the oldest on. */
static struct flight *flight_at(fathom_engine *e, uint32_t i)
{
    ASSERT(i < e->max_flight);
    return &e->flights[(e->i_now + i) % e->max_flight];
}

static struct flight *now_of(fathom_engine *e)
{
    return flight_at(e, 0);
}

static fathom_err make_flights(fathom_engine *e, uint32_t max_num_seqs)
{
    e->max_flight = e->runner->max_flight;
    ASSERT(e->max_flight >= 1 && e->n_flight == 0);
    e->flights = mem_calloc(e->max_flight, sizeof *e->flights);
    if (!e->flights) return FATHOM_ENOMEM;
    for (uint32_t i = 0; i < e->max_flight; i++) {
        TRY(plan_init(&e->flights[i].plan, max_num_seqs));
    }
    return FATHOM_OK;
}

static void free_flights(fathom_engine *e)
{
    for (uint32_t i = 0; e->flights && i < e->max_flight; i++) plan_fini(&e->flights[i].plan);
    mem_free(e->flights);
}

/* The invariants of the ring and of the backlog, and all of the scheduler's. They hold between the
 * commit of a step and the next plan. */
static void check(const fathom_engine *e)
{
    uint64_t n_owed = 0;
    sched_check(e->sched);
    ASSERT(e->i_now < e->max_flight && e->n_flight < e->max_flight);
    ASSERT(e->n_flight == sched_n_flight(e->sched));
    for (const struct request *r = sched_first_waiting(e->sched); r; r = r->next) {
        n_owed += sequence_of((struct request *)r)->n_owed;
    }
    ASSERT(n_owed <= e->stats.n_backlog_token);
    ASSERT(sched_any(e->sched) || e->stats.n_backlog_token == 0);
}

/* ---- the step ------------------------------------------------------------------------------- */

/* Tells who waits for a page of a prompt how long all prompts take; a guess where none has been
 * computed yet. */
static void note_busy(fathom_engine *e)
{
    enum { UNKNOWN_US = 5000000 };
    const struct admission_load load = {e->stats.n_running + e->stats.n_waiting,
                                        e->stats.n_backlog_token, clock_now_us()};
    uint64_t us = admission_first_token_us(&e->admission, &e->rates, &load, 1);
    if (us == 0 && load.n_backlog_token > 0) us = UNKNOWN_US;
    page_exchange_note_busy(offload_exchange(e->offload), us);
}

static void publish(fathom_engine *e, struct sequence *const *sequences, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        const struct request *r = &sequences[i]->request;
        ASSERT((r->finish != REQUEST_FINISH_NONE) == (r->state == REQUEST_FINISHED));
        if (r->finish == REQUEST_FINISH_STOP || r->finish == REQUEST_FINISH_LENGTH) {
            e->stats.n_finished++;
        } else if (r->finish == REQUEST_FINISH_CANCEL) {
            e->stats.n_cancelled++;
        } else if (r->finish == REQUEST_FINISH_EXPIRED) {
            e->stats.n_expired++;
        }
        if (r->finish != REQUEST_FINISH_NONE && r->first_us) {
            ASSERT(r->finished_us >= r->scheduled_us);
            admission_note_end(&e->rates, r->finished_us - r->scheduled_us);
        }
    }
    e->stats.n_running = sched_n_running(e->sched);
    e->stats.n_fetching = sched_n_fetching(e->sched);
    e->stats.n_waiting = sched_n_waiting(e->sched) + e->stats.n_fetching;
    e->stats.n_page_free = page_pool_n_available(e->pool);
    ASSERT(e->stats.n_page_free <= e->stats.n_page);
    const struct sched_totals *totals = sched_totals(e->sched);
    e->stats.n_preempted = totals->n_preempted;
    e->stats.n_prefix_query_token = totals->n_query_token;
    e->stats.n_prefix_hit_token = totals->n_hit_token;
    e->stats.n_page_cached = page_pool_n_cached(e->pool);
    offload_fill_stats(e->offload, e->prefix, &e->stats.tiers);
    note_busy(e);
    mailbox_set_rates(e->mailbox, &e->rates);
    mailbox_publish(e->mailbox, sequences, n, &e->stats);
}

/* From now on n prompt tokens of the sequence count in the backlog. */
static void set_owed(fathom_engine *e, struct sequence *q, uint32_t n)
{
    ASSERT(e->stats.n_backlog_token >= q->n_owed);
    e->stats.n_backlog_token += n;
    e->stats.n_backlog_token -= q->n_owed;
    q->n_owed = n;
}

static void end_sequence(fathom_engine *e, struct sequence *q, enum request_finish why)
{
    sched_end(e->sched, &q->request, why, clock_now_us());
    set_owed(e, q, 0);
    publish(e, &q, 1);
}

static void take_mail(fathom_engine *e)
{
    struct sequence *q;
    bool any = false;
    for (; (q = mailbox_take_new(e->mailbox)); any = true) {
        sched_add(e->sched, &q->request);
        set_owed(e, q, q->request.n_prompt);
    }
    while ((q = mailbox_take_cancel(e->mailbox))) end_sequence(e, q, REQUEST_FINISH_CANCEL);
    if (any) publish(e, NULL, 0); /* who comes next is judged by what has been taken */
}

/* Ends requests whose promised time to the first token has passed while they waited. */
static void end_expired(fathom_engine *e, uint64_t now_us)
{
    if (e->admission.ttft_us == 0) return;
    struct request *next;
    for (struct request *r = sched_first_waiting(e->sched); r; r = next) {
        next = r->next;
        struct sequence *q = sequence_of(r);
        ASSERT(r->state == REQUEST_WAITING);
        bool fresh = r->n_preempted == 0;
        if (fresh && admission_has_expired(&e->admission, q->submitted_us, now_us)) {
            end_sequence(e, q, REQUEST_FINISH_EXPIRED);
        }
    }
}

static void set_bounds(fathom_engine *e)
{
    struct sched_bounds bounds = admission_bounds(&e->admission, &e->rates);
    sched_set_bounds(e->sched, &bounds);
}

static void note_masks(fathom_engine *e, uint32_t n, uint64_t start_us)
{
    e->stats.n_mask += n;
    e->stats.mask_us += clock_now_us() - start_us;
}

static fathom_err launch_step(fathom_engine *e, struct flight *f)
{
    struct step_runner *r = e->runner;
    struct step *s = &f->step;
    ASSERT(e->n_flight < e->max_flight && f->plan.n_entry > 0);
    s->pass = STEP_MODEL;
    s->watches_experts = atomic_load(&e->watches_experts);
    s->prefix_bytes = batch_build(&r->layout, &f->plan, r->host, &s->batch);
    sampler_build(&r->layout, &f->plan, r->host, &s->sampler);
    ASSERT(s->prefix_bytes <= r->layout.bias && s->sampler.n_row == s->batch.n_logit_row);
    ASSERT(!f->plan.is_ahead || s->sampler.masks.n_bytes == 0);
    TRY(r->ops->launch(r, s));
    e->n_flight++;
    if (s->sampler.masks.n_bytes) {
        uint64_t start_us = clock_now_us();
        uint32_t n_mask = sampler_fill_masks(&r->layout, &f->plan, r->host);
        ASSERT(n_mask <= s->sampler.n_row);
        note_masks(e, n_mask, start_us);
    }
    return r->ops->draw(r, s);
}

/* Whether a request of the plan has sample rows that depend on ids not drawn yet. */
static bool reads_ids(const struct plan *plan)
{
    for (uint32_t i = 0; i < plan->n_entry; i++) {
        if (sampler_reads_ids(sequence_of(plan->entries[i].request))) return true;
    }
    return false;
}

/* Overlap scheduling: launches the steps after the newest one under way, as long as all that
 * decides them is known. */
static fathom_err launch_ahead(fathom_engine *e)
{
    ASSERT(e->n_flight >= 1 && e->n_flight <= e->max_flight);
    if (e->n_flight == e->max_flight || reads_ids(&now_of(e)->plan)) return FATHOM_OK;
    if (!offload_is_quiet(e->offload, e->prefix)) return FATHOM_OK;
    set_bounds(e);
    while (e->n_flight < e->max_flight) {
        const struct flight *newest = flight_at(e, e->n_flight - 1);
        struct flight *next = flight_at(e, e->n_flight);
        if (!sched_plan_ahead(e->sched, &newest->plan, &next->plan)) return FATHOM_OK;
        TRY(offload_fault(e->offload));
        e->runner->ops->next_block(e->runner);
        TRY(launch_step(e, next));
    }
    return FATHOM_OK;
}

/* Counts the step's decodes and prompt tokens for admission, before the step is published. end_step
 * adds the duration. */
static void count_step(fathom_engine *e)
{
    struct admission_step step = {.n_running = sched_n_running(e->sched),
                                  .short_of_pages = sched_is_short_of_pages(e->sched)};
    const struct plan *plan = &now_of(e)->plan;
    for (uint32_t i = 0; i < plan->n_entry; i++) {
        const struct plan_entry *entry = &plan->entries[i];
        struct sequence *q = sequence_of(entry->request);
        uint32_t end = entry->first + entry->n_token;
        uint32_t n_prompt = q->request.n_prompt;
        uint32_t n_left = n_prompt > end ? n_prompt - end : 0;
        if (n_left < q->n_owed) set_owed(e, q, n_left);
        if (entry->first >= n_prompt) {
            step.n_decode++;
        } else {
            step.n_prefill += entry->n_token;
        }
    }
    e->measured = step;
}

/* What a committed entry has drawn, and how its drafts fared. */
static void count_drawn(fathom_engine *e, const struct plan_entry *entry)
{
    if (!entry->draws) return;
    struct sequence *q = sequence_of(entry->request);
    uint32_t n_drawn = q->request.n_token - (entry->first + entry->n_token - entry->n_draft);
    ASSERT(n_drawn >= 1 && n_drawn <= 1 + entry->n_draft);
    e->stats.n_output_token += n_drawn;
    for (uint32_t i = 0; i < entry->n_draft; i++) {
        e->stats.n_draft_token[i]++;
        e->stats.n_accepted_token[i] += i + 1 < n_drawn;
    }
    draft_pace_note(&q->pace, entry->n_draft, n_drawn - 1);
}

/* The constraint of a committed entry goes over what was drawn. */
static void follow(fathom_engine *e, const struct plan_entry *entry, uint64_t now_us)
{
    struct request *r = entry->request;
    struct constraint *c = &sequence_of(r)->constraint;
    if (!entry->draws || !constraint_is_set(c)) return;
    uint32_t p = entry->first + entry->n_token - entry->n_draft;
    while (r->state == REQUEST_RUNNING && p < r->n_token) {
        if (!constraint_push(c, r->ids[p++])) {
            sched_end(e->sched, r, REQUEST_FINISH_CONSTRAINT, now_us);
        }
    }
}

/* Returns how many sequences have something to tell. */
static size_t keep_results(fathom_engine *e, const struct step_result *result)
{
    const struct plan *plan = &now_of(e)->plan;
    size_t n_told = 0;
    size_t i_score = plan->n_draw; /* the rows of prompts come last */
    uint32_t n_token = 0;
    for (uint32_t i = 0; i < plan->n_entry; i++) {
        const struct plan_entry *entry = &plan->entries[i];
        struct sequence *q = sequence_of(entry->request);
        uint32_t n_output = request_n_output(&q->request);
        e->stats.n_prompt_token += results_new_prompt_tokens(entry);
        n_token += entry->n_token;
        for (uint32_t k = 0; entry->draws && k <= entry->n_draft; k++) {
            results_keep_logprobs(q, result, entry->i_draw + k, n_output + k);
        }
        results_keep_scores(q, result, i_score, entry->n_score);
        i_score += entry->n_score;
        if (entry->draws || entry->n_score > 0) e->told[n_told++] = q;
    }
    ASSERT(n_told <= e->info.max_num_seqs);
    ASSERT(i_score == plan->n_draw + plan->n_score);
    results_count_size(&e->stats, n_token);
    return n_told;
}

/* Fails before the commit only. */
static fathom_err finish_step(fathom_engine *e)
{
    struct step_result result;
    struct flight *now = now_of(e);
    ASSERT(e->n_flight >= 1);
    uint64_t wait_us = clock_now_us();
    TRY(e->runner->ops->wait(e->runner, &result));
    e->n_flight--;
    if (e->n_flight == 0) offload_end_step(e->offload); /* the device has done all */
    e->stats.wait_us += clock_now_us() - wait_us;
    size_t n_told = keep_results(e, &result);
    uint64_t now_us = clock_now_us();
    sched_commit(e->sched, &now->plan, result.ids, now_us);
    for (uint32_t i = 0; i < now->plan.n_entry; i++) {
        count_drawn(e, &now->plan.entries[i]);
        follow(e, &now->plan.entries[i], now_us);
    }
    e->stats.n_expert_choice = result.experts.n_choice;
    e->stats.n_expert_hit = result.experts.n_hit;
    e->stats.expert_uniform = result.experts.uniform;
    e->stats.n_expert_token = result.experts.n_token;
    e->stats.n_expert_busiest = result.experts.n_busiest;
    e->stats.n_step++;
    e->stats.n_step_ahead += e->was_launched;
    e->stats.busy_us += now_us - e->start_us;
    count_step(e);
#ifdef FATHOM_DCHECK
    check(e);
#endif
    if (e->drafter.max_draft > 0) drafter_begin(&e->drafter, &now->plan, e->runner, &now->step);
    publish(e, e->told, n_told); /* from here on nobody touches those that are over */
    return FATHOM_OK;
}

static fathom_err make_drafts(fathom_engine *e)
{
    struct step_runner *r = e->runner;
    struct step *step = &now_of(e)->step;
    uint64_t start_us = clock_now_us();
    if (e->drafter.max_draft == 0) return FATHOM_OK;
    ASSERT(e->n_flight == 0); /* no step is launched ahead of drafts */
    do {
        struct step_result result;
        TRY(r->ops->launch(r, step));
        if (step->sampler.masks.n_bytes) {
            uint64_t fill_us = clock_now_us();
            note_masks(e, drafter_fill_masks(&e->drafter, r), fill_us);
        }
        TRY(r->ops->draw(r, step));
        uint64_t wait_us = clock_now_us();
        TRY(r->ops->wait(r, &result));
        e->stats.wait_us += clock_now_us() - wait_us;
        drafter_take(&e->drafter, result.ids);
    } while (drafter_continue(&e->drafter, r, step));
#ifdef FATHOM_DCHECK
    check(e);
#endif
    e->stats.busy_us += clock_now_us() - start_us;
    return FATHOM_OK;
}

static void end_all(fathom_engine *e, enum request_finish why)
{
    struct request *r;
    while ((r = sched_any(e->sched))) end_sequence(e, sequence_of(r), why);
    ASSERT(e->stats.n_backlog_token == 0);
}

/* The first error is the last: see the states above. */
static void fail_engine(fathom_engine *e, fathom_err err)
{
    ASSERT(err != FATHOM_OK && !e->failed);
    const char *cause = e->runner->ops->fault(e->runner);
    if (cause[0] == '\0') cause = fathom_err_text(err);
    LOG_ERROR("engine", "step %llu failed: %s", (unsigned long long)e->stats.n_step, cause);
    e->failed = true;
    e->n_flight = 0;
    mailbox_fail(e->mailbox, cause);
}

/* A step has failed. One that a lost host has failed is tried no more, but others will be. */
static void stop_step(fathom_engine *e, fathom_err err)
{
    const struct step_runner_ops *ops = e->runner->ops;
    if (err != FATHOM_EPEER || !ops->is_away || !ops->is_away(e->runner)) {
        fail_engine(e, err);
        return;
    }
    LOG_ERROR("engine", "step %llu failed: %s", (unsigned long long)e->stats.n_step,
              ops->fault(e->runner));
    e->n_flight = 0;
}

/* Pages of other salts are never found, so they are the first to be taken. */
static void void_pages(fathom_engine *e)
{
    atomic_fetch_add(&e->cache_epoch, 1);
}

/* Of several hosts: ends what cannot go on, and begins anew when all are there. */
static void look_at_hosts(fathom_engine *e)
{
    const struct step_runner_ops *ops = e->runner->ops;
    fathom_diag why = {{0}};
    if (!ops->is_away || e->failed || e->n_flight > 0) return;
    if (!e->is_away && !ops->is_away(e->runner)) return;
    if (!e->is_away) {
        e->is_away = true;
        mailbox_suspend(e->mailbox, ops->fault(e->runner));
        take_mail(e); /* what came before is the last */
    }
    end_all(e, REQUEST_FINISH_ERROR);
    ASSERT(!sched_any(e->sched));
    const fathom_err err = ops->rejoin(e->runner, &why);
    if (err == FATHOM_OK) {
        e->is_away = false;
        void_pages(e);
    } else if (err != FATHOM_EPEER) {
        fail_engine(e, err);
    }
    mailbox_suspend(e->mailbox, why.text);
}

/* Ends requests whose peer has not given what they may not compute. */
static void end_lost(fathom_engine *e)
{
    struct request *next;
    for (struct request *r = sched_first_fetching(e->sched); r; r = next) {
        next = r->next;
        if (r->fetch.failed) end_sequence(e, sequence_of(r), REQUEST_FINISH_LOST);
    }
}

/* Plans the next step; the tiers begin the copies that the plan asks for. */
static fathom_err plan_step(fathom_engine *e, uint64_t now_us)
{
    ASSERT(e->n_flight == 0);
    set_bounds(e);
    offload_begin_step(e->offload, now_us, e->rates.token_us);
    struct plan *plan = &now_of(e)->plan;
    sched_plan(e->sched, now_us, plan);
    end_lost(e);
    ASSERT(plan->n_entry <= e->info.max_num_seqs);
    ASSERT(plan->n_token <= e->info.max_num_batched_tokens && !plan->is_ahead);
    (void)offload_keep(e->offload, e->prefix, plan->n_token);
    if (plan->n_entry > 0) return offload_fault(e->offload);
    TRY(offload_sync(e->offload)); /* all that live wait for pages */
    e->stats.n_fetch_plan++;
    publish(e, NULL, 0);
    return FATHOM_OK;
}

/* Plans and launches a step, unless one is under way. *any: a step is under way now. */
static fathom_err start_step(fathom_engine *e, bool *any)
{
    *any = true;
    e->was_launched = e->n_flight > 0;
    if (e->was_launched) return FATHOM_OK;
    e->start_us = clock_now_us();
    fathom_err err = plan_step(e, e->start_us);
    *any = now_of(e)->plan.n_entry > 0;
    return err || !*any ? err : launch_step(e, now_of(e));
}

/* The step is over; the next one, if it was launched ahead, is the oldest under way. */
static void end_step(fathom_engine *e)
{
    uint64_t now_us = clock_now_us();
    ASSERT(now_us >= e->start_us);
    e->measured.us = now_us - e->start_us; /* drafts included: the next tokens wait for them */
    admission_note_step(&e->rates, &e->measured, now_us);
    if (e->n_flight == 0) return;
    e->i_now = (e->i_now + 1) % e->max_flight;
    e->start_us = now_us;
}

/* Returns how long nothing can be done but wait. */
static uint64_t run_step(fathom_engine *e)
{
    bool any;
    ASSERT(!e->failed);
    bool forbidden = mem_forbid(true);
    fathom_err err = start_step(e, &any);
    if (err == FATHOM_OK && any) err = launch_ahead(e);
    if (err == FATHOM_OK && any) err = finish_step(e);
    if (err != FATHOM_OK && any) sched_abort(e->sched);
    if (err == FATHOM_OK && any) err = make_drafts(e);
    mem_forbid(forbidden);
    if (err != FATHOM_OK) stop_step(e, err);
    if (err != FATHOM_OK || !any) return err ? 0 : sched_fetch_poll_us(e->sched);
    end_step(e);
    return 0;
}

/* No request is live. Copies pages that are worth keeping; when all are copied, prepares memory for
 * later copies. Does a little of it a call, so that a request need not wait. Returns what
 * run_step returns. */
static uint64_t rest(fathom_engine *e, bool was_busy)
{
    ASSERT(e->n_flight == 0 && !sched_any(e->sched));
    if (was_busy) check(e);
    if (!e->offload || e->failed) return MAILBOX_FOREVER;
    offload_begin_step(e->offload, clock_now_us(), e->rates.token_us);
    bool more = offload_keep(e->offload, e->prefix, 0);
    fathom_err err = offload_sync(e->offload);
    if (err != FATHOM_OK) fail_engine(e, err);
    publish(e, NULL, 0);
    if (!more && !e->failed) more = offload_touch(e->offload);
    return more ? 0 : MAILBOX_FOREVER; /* or until the disk has done something */
}

/* Waits for the steps under way and drops their results. */
static void drop_steps(fathom_engine *e)
{
    struct step_result result;
    fathom_err err = FATHOM_OK;
    for (; e->n_flight > 0 && err == FATHOM_OK; e->n_flight--) {
        err = e->runner->ops->wait(e->runner, &result);
    }
    sched_abort(e->sched);
    if (err != FATHOM_OK) stop_step(e, err);
    ASSERT(e->n_flight == sched_n_flight(e->sched));
}

static void kick(void *arg)
{
    mailbox_kick(((fathom_engine *)arg)->mailbox);
}

static void *engine_main(void *arg)
{
    fathom_engine *e = arg;
    uint64_t wait_us = 0;
    bool busy = true;
    os_name_thread("engine");
    fathom_err err = e->runner->ops->bind(e->runner);
    if (err != FATHOM_OK) fail_engine(e, err);
    host_runner_on_change(e->runner, kick, e);
    look_at_hosts(e);
    while (mailbox_wait(e->mailbox, wait_us)) {
        take_mail(e);
        look_at_hosts(e);
        if (e->failed) end_all(e, REQUEST_FINISH_ERROR);
        end_expired(e, clock_now_us());
        bool was_busy = busy;
        busy = sched_any(e->sched) != NULL || e->n_flight > 0;
        wait_us = busy ? run_step(e) : rest(e, was_busy);
    }
    if (e->n_flight > 0) drop_steps(e);
    if (e->offload && !e->failed) {
        end_all(e, REQUEST_FINISH_CANCEL); /* their pages are worth as much as others */
        offload_flush(e->offload, e->prefix);
    }
    return NULL;
}

/* ---- life ----------------------------------------------------------------------------------- */

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
    if (!e->prefix) FAIL(d, FATHOM_EINVAL, "tiers of the prefix cache, which is turned off");
    const struct tier_io_owner owner = {.done = kick, .in_hurry = is_in_hurry, .arg = e};
    TRY(offload_create(&e->offload, c, e->runner, &owner, d));
    prefix_attach_tiers(e->prefix, offload_tiers(e->offload));
    page_exchange_tell(offload_exchange(e->offload), &e->info);
    return FATHOM_OK;
}

static fathom_err make_parts(fathom_engine *e, const struct engine_config *c, fathom_diag *d)
{
    const fathom_info *info = &c->info;
    struct sched_config sched = {.max_num_batched_tokens = info->max_num_batched_tokens,
                                 .max_num_seqs = info->max_num_seqs,
                                 .max_draft = info->n_draft,
                                 .max_score = c->max_score,
                                 .max_flight = e->runner->max_flight,
                                 .prompt_form = e->runner->prompt_form};
    TRY(page_pool_create(&e->pool, info->n_page, d));
    if (request_n_page(info->max_model_len) > info->n_page) {
        FAIL(d, FATHOM_EINVAL, "%u pages do not hold one request of %u tokens", info->n_page,
             info->max_model_len);
    }
    if (!c->no_prefix_cache) TRY(prefix_create(&e->prefix, e->pool, info->n_draft > 0, d));
    TRY(sched_create(&e->sched, &sched, e->pool, e->prefix, d));
    TRY(mailbox_create(&e->mailbox, info->max_num_seqs + c->max_queued, c->seed, d));
    mailbox_set_admission(e->mailbox, &e->admission);
    TRY(make_tiers(e, &c->offload, d));
    e->told = mem_calloc(info->max_num_seqs, sizeof(struct sequence *));
    if (!e->told || make_flights(e, info->max_num_seqs) != FATHOM_OK ||
        drafter_init(&e->drafter, info->n_draft, info->max_num_seqs) != FATHOM_OK) {
        FAIL(d, FATHOM_ENOMEM, "no memory for plans of %u requests", info->max_num_seqs);
    }
    e->stats.n_page = info->n_page;
    publish(e, NULL, 0); /* whoever looks before the thread does sees what there is */
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
    e->admission = c->admission;
    e->admission.max_num_seqs = c->info.max_num_seqs;
    e->admission.max_num_batched_tokens = c->info.max_num_batched_tokens;
    e->runner = runner;
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
    if (e->runner) (void)e->runner->ops->bind(e->runner); /* the engine's thread had it */
    offload_destroy(e->offload);
    if (e->runner) e->runner->ops->destroy(e->runner);
    mailbox_destroy(e->mailbox);
    free_flights(e);
    sched_destroy(e->sched);
    prefix_destroy(e->prefix);
    page_pool_destroy(e->pool);
    checkpoint_close(e->checkpoint);
    mem_free(e->told);
    drafter_fini(&e->drafter);
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
    with.cache_salt ^= atomic_load(&e->cache_epoch) * 0x9e3779b97f4a7c15u;
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
    void_pages(e);
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
