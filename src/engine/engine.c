/* engine.c - the engine's thread
 *
 *   loop:  take_mail                     new sequences, cancels
 *          end_expired                   those that waited too long
 *          offload_begin_step            what the disk has done
 *          sched_plan                    whose tokens, which pages; pages of the tiers, in
 *          share_cut                     several lanes: a long prompt's tokens, to all of them
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
 * Overlap scheduling: a step is launched ahead when everything about it is known except the ids of
 * its tokens, which the step before it draws on the device. The device goes from one step straight
 * to the next, and the host works meanwhile. A step launched ahead is the first step of the next
 * round. It may compute rows of a request that an earlier step has ended, or that has been
 * cancelled: these rows are dropped. A request that arrives waits until no step is under way.
 *
 * With several stages (engine_stages.c) each has a step under way. No request is in two of them.
 *
 * States of the engine, kept by its thread
 *
 *   RUNNING ---- a launch or wait fails ----> FAILED ---- fathom_close ----> gone
 *      +------------------- fathom_close --------------------------------------^
 *
 *   AWAY is RUNNING without steps, because one of several hosts is missing. Every live request ends
 *   with ERROR, and new ones are refused with a text that names the host. When all hosts are there
 *   again, the engine goes on. Its prefix cache is then empty, but the tiers have kept their pages.
 *
 *   FAILED is final: every live request ends with ERROR, every new one is refused with the cause,
 *   and no step is tried again.
 *
 * Threads. Only the engine's thread touches the members of struct fathom_engine that are marked
 * "the engine thread's" (engine_int.h). Callers and that thread meet in the mailbox. A step
 * allocates nothing: in builds with FATHOM_DCHECK an allocation in run_step is a fault. */
#include "engine/engine.h"

#include "base/assert.h"
#include "base/clock.h"
#include "base/fail.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/os.h"
#include "engine/engine_int.h"
#include "engine/host_runner.h"
#include "engine/results.h"

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

/* How many of the n_flight steps under way have rows of a lane. The oldest of them is
 * flight_at(e, first); with several stages `queue` has them. */
static uint32_t n_flight_of(fathom_engine *e, uint32_t lane, uint32_t first)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < e->n_flight; i++) {
        const struct flight *f = e->n_stage > 1 ? e->queue[i] : flight_at(e, first + i);
        n += lane_has_part(&f->steps[lane]) && f->steps[lane].pass == STEP_MODEL;
    }
    return n;
}

/* The schedulers take back the plans of all steps under way: they will not be committed. */
static void abort_flights(fathom_engine *e)
{
    for (uint32_t i = 0; i < e->n_lane; i++) {
        struct sched *s = e->lanes[i].sched;
        if (sched_n_flight(s) > 0) sched_abort(s);
    }
}

/* The engine will not wait for the steps that the runner has under way. */
static void forget_flights(fathom_engine *e)
{
    e->n_flight = 0;
    for (uint32_t i = 0; i < e->max_flight; i++) e->flights[i].is_busy = false;
}

/* The invariants of the ring and of all lanes. They hold after the commit of a step, while i_now
 * still points at it, until the next plan. */
static void check(fathom_engine *e)
{
    ASSERT(e->i_now < e->max_flight && e->n_flight < e->max_flight);
    for (uint32_t i = 0; i < e->n_lane; i++) {
        lane_check(&e->lanes[i]);
        ASSERT(sched_n_flight(e->lanes[i].sched) == n_flight_of(e, i, 1));
    }
}

static bool is_live(const fathom_engine *e)
{
    for (uint32_t i = 0; i < e->n_lane; i++) {
        if (sched_any(e->lanes[i].sched)) return true;
    }
    return false;
}

/* ---- the step ------------------------------------------------------------------------------- */

bool engine_is_quiet(const fathom_engine *e)
{
    for (uint32_t i = 0; e->offload && i < e->n_lane; i++) {
        if (!offload_is_quiet(e->offload, e->lanes[i].prefix)) return false;
    }
    return true;
}

/* Tells other servers that wait here for pages of a prompt how long the prompts of this one will
 * take: a guess while none has been measured, and 0 when no request is live and no page is still on
 * its way to memory. */
static void note_busy(fathom_engine *e)
{
    enum { UNKNOWN_US = 5000000 };
    const struct admission_load load = {e->stats.n_running + e->stats.n_waiting,
                                        e->stats.n_backlog_token, clock_now_us()};
    uint64_t us = admission_first_token_us(&e->admission, &e->rates, &load, 1);
    if (us == 0 && load.n_backlog_token > 0) us = UNKNOWN_US;
    if (load.n_live == 0 && engine_is_quiet(e)) us = 0;
    page_exchange_note_busy(offload_exchange(e->offload), us);
}

/* Sums the statistics of all lanes: what they have now, and what they have counted so far. */
static void fill_stats(fathom_engine *e)
{
    fathom_stats *s = &e->stats;
    s->n_running = s->n_fetching = s->n_waiting = s->n_page_free = s->n_page_cached = 0;
    s->n_backlog_token = s->n_preempted = 0;
    s->n_prefix_query_token = s->n_prefix_hit_token = s->n_prefix_fetched_token = 0;
    offload_fill_stats(e->offload, &s->tiers);
    for (uint32_t i = 0; i < e->n_lane; i++) lane_fill_stats(&e->lanes[i], s);
    ASSERT(s->n_page_free <= s->n_page);
}

void engine_publish(fathom_engine *e, struct sequence *const *sequences, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        const struct request *r = &sequences[i]->request;
        ASSERT((r->finish != REQUEST_FINISH_NONE) == (r->state == REQUEST_FINISHED));
        if (r->finish == REQUEST_FINISH_STOP || r->finish == REQUEST_FINISH_LENGTH) {
            e->stats.n_finished++;
        } else if (r->finish == REQUEST_FINISH_CANCEL || r->finish == REQUEST_FINISH_UNWANTED) {
            e->stats.n_cancelled++;
        } else if (r->finish == REQUEST_FINISH_EXPIRED) {
            e->stats.n_expired++;
        }
        if (r->finish != REQUEST_FINISH_NONE && r->first_us) {
            ASSERT(r->finished_us >= r->scheduled_us);
            admission_note_end(&e->rates, r->finished_us - r->scheduled_us);
        }
    }
    fill_stats(e);
    note_busy(e);
    mailbox_set_rates(e->mailbox, &e->rates);
    mailbox_publish(e->mailbox, sequences, n, &e->stats);
}

static struct lane *lane_of(fathom_engine *e, const struct sequence *q)
{
    ASSERT(q->lane < e->n_lane);
    return &e->lanes[q->lane];
}

static void end_sequence(fathom_engine *e, struct sequence *q, enum request_finish why)
{
    share_drop(&e->share, &q->request);
    lane_end(lane_of(e, q), q, why, clock_now_us());
    engine_publish(e, &q, 1);
}

/* Takes new requests and cancels from the mailbox; returns whether there was a new request. */
static bool take_mail(fathom_engine *e)
{
    struct sequence *q;
    bool any = false;
    for (; (q = mailbox_take_new(e->mailbox)); any = true) {
        lane_add(lane_choose(e->lanes, e->n_lane, q, e->info.max_num_seqs,
                             e->info.max_num_batched_tokens),
                 q);
    }
    while ((q = mailbox_take_cancel(e->mailbox))) end_sequence(e, q, REQUEST_FINISH_CANCEL);
    if (any) engine_publish(e, NULL, 0); /* admission of the next request must know of these */
    return any;
}

static void end_unwanted_from(fathom_engine *e, struct request *first)
{
    const struct page_exchange *x = offload_exchange(e->offload);
    struct request *next;
    for (struct request *r = first; r; r = next) {
        next = r->next;
        ASSERT(r->state != REQUEST_NEW && r->state != REQUEST_FINISHED);
        if (page_exchange_is_unwanted(x, r))
            end_sequence(e, sequence_of(r), REQUEST_FINISH_UNWANTED);
    }
}

/* Ends requests that only compute pages for another server, if the request there has ended. That
 * may have happened before they arrived here. */
static void end_unwanted(fathom_engine *e, bool any_new)
{
    const uint64_t n_left = page_exchange_n_left(offload_exchange(e->offload));
    if (n_left == 0 || (n_left == e->n_left && !any_new)) return;
    e->n_left = n_left;
    for (uint32_t i = 0; i < e->n_lane; i++) {
        const struct sched *s = e->lanes[i].sched;
        end_unwanted_from(e, sched_first_running(s));
        end_unwanted_from(e, sched_first_fetching(s));
        end_unwanted_from(e, sched_first_waiting(s));
    }
}

/* Ends the waiting requests of a lane whose promised time to the first token has passed. */
static void end_expired(fathom_engine *e, const struct lane *l, uint64_t now_us)
{
    struct request *next;
    for (struct request *r = sched_first_waiting(l->sched); r; r = next) {
        next = r->next;
        struct sequence *q = sequence_of(r);
        ASSERT(r->state == REQUEST_WAITING);
        bool fresh = r->n_preempted == 0;
        if (fresh && admission_has_expired(&e->admission, q->submitted_us, now_us)) {
            end_sequence(e, q, REQUEST_FINISH_EXPIRED);
        }
    }
}

/* Divides what admission allows a step among the lanes. */
static void set_bounds(fathom_engine *e)
{
    const uint32_t n = e->n_lane;
    ASSERT(n >= 1);
    struct sched_bounds bounds = admission_bounds(&e->admission, &e->rates);
    bounds.max_running = (bounds.max_running + n - 1) / n;
    bounds.max_prefill = (bounds.max_prefill + n - 1) / n;
    for (uint32_t i = 0; i < n && n > 1 && e->admission.tpot_us > 0; i++)
        bounds.paces_others |= sched_decodes(e->lanes[i].sched);
    for (uint32_t i = 0; i < n; i++) sched_set_bounds(e->lanes[i].sched, &bounds);
}

static void note_masks(fathom_engine *e, uint32_t n, uint64_t start_us)
{
    e->stats.n_mask += n;
    e->stats.mask_us += clock_now_us() - start_us;
}

/* Writes the masks of constrained requests into the blocks of a step that has been launched. */
static void fill_masks(fathom_engine *e, const struct flight *f)
{
    bool any = false;
    for (uint32_t i = 0; i < e->n_lane; i++) any |= f->steps[i].sampler.masks.n_bytes > 0;
    if (!any) return;
    uint32_t n_mask = 0;
    const uint64_t start_us = clock_now_us();
    for (uint32_t i = 0; i < e->n_lane; i++)
        n_mask += lane_fill_masks(&e->lanes[i], &f->plans[i], e->runner, &f->steps[i],
                                  e->n_stage > 1 ? f->i : 0);
    note_masks(e, n_mask, start_us);
}

/* Gives all lanes' plans the longest context among them, since they may replay one recording. */
static void share_context(fathom_engine *e, struct flight *f)
{
    uint32_t max_context = 0;
    for (uint32_t i = 0; i < e->n_lane; i++) {
        if (f->plans[i].n_entry > 0 && f->plans[i].max_context > max_context)
            max_context = f->plans[i].max_context;
    }
    for (uint32_t i = 0; i < e->n_lane; i++) f->plans[i].max_context = max_context;
}

void engine_write_step(fathom_engine *e, struct flight *f)
{
    const bool watches_experts = atomic_load(&e->watches_experts);
    share_context(e, f);
    for (uint32_t i = 0; i < e->n_lane; i++) {
        f->steps[i].pass = STEP_MODEL;
        f->steps[i].watches_experts = watches_experts;
        const struct plan *part = share_plan(&e->share, i, &f->plans[i]);
        lane_write_step(&e->lanes[i], &f->plans[i], part, e->runner, &f->steps[i]);
        share_put(&e->share, i, &e->runner->layout, step_runner_host(e->runner, i), &f->steps[i]);
    }
}

fathom_err engine_launch(fathom_engine *e, struct flight *f)
{
    struct step_runner *r = e->runner;
    ASSERT(e->n_flight < e->max_flight);
    TRY(r->ops->launch(r, f->steps));
    if (e->n_stage > 1) e->queue[e->n_flight] = f;
    e->n_flight++;
    fill_masks(e, f);
    return r->ops->draw(r, f->steps);
}

/* Whether the host cannot write the next step yet, because its penalties or masks depend on ids
 * that steps under way will draw. (Reading ids as tokens is no obstacle: the device does that.) */
static bool reads_ids(fathom_engine *e)
{
    for (uint32_t i = 0; i < e->n_lane; i++) {
        if (lane_reads_ids(&now_of(e)->plans[i], e->n_flight)) return true;
    }
    return false;
}

/* Plans the step after the newest one. A lane that will have nothing to compute has no part in it.
 * Returns false, with nothing planned, if what a lane will compute then is not certain. */
static bool plan_lanes_ahead(fathom_engine *e, const struct flight *newest, struct flight *next)
{
    bool any = false;
    ASSERT(newest != next);
    for (uint32_t i = 0; i < e->n_lane; i++) {
        struct sched *s = e->lanes[i].sched;
        const bool has_part = lane_has_part(&newest->steps[i]);
        if (has_part && sched_plan_ahead(s, &newest->plans[i], &next->plans[i])) {
            any = true;
            continue;
        }
        next->plans[i].n_entry = 0;
        if (e->n_lane > 1 && sched_rests_after(s, has_part ? &newest->plans[i] : NULL)) continue;
        while (i-- > 0) {
            if (next->plans[i].n_entry > 0) sched_take_back(e->lanes[i].sched, &next->plans[i]);
        }
        return false;
    }
    return any;
}

/* Overlap scheduling: launches steps behind the newest one under way, as long as everything that
 * decides what they compute is known. */
static fathom_err launch_ahead(fathom_engine *e)
{
    ASSERT(e->n_flight >= 1 && e->n_flight <= e->max_flight);
    if (e->n_flight == e->max_flight || reads_ids(e)) return FATHOM_OK;
    if (!engine_is_quiet(e) || e->share.n_token > 0) return FATHOM_OK;
    set_bounds(e);
    do {
        const struct flight *newest = flight_at(e, e->n_flight - 1);
        struct flight *next = flight_at(e, e->n_flight);
        if (!plan_lanes_ahead(e, newest, next)) return FATHOM_OK;
        TRY(offload_fault(e->offload));
        e->runner->ops->next_block(e->runner);
        engine_write_step(e, next);
        TRY(engine_launch(e, next));
    } while (e->n_flight < e->max_flight && !reads_ids(e));
    return FATHOM_OK;
}

/* Sums the counts of chosen experts over the lanes: each rank chooses for its own tokens. */
static void count_experts(fathom_engine *e)
{
    struct expert_counts sum = {0};
    for (uint32_t i = 0; i < e->n_lane; i++) {
        const struct expert_counts *c = &e->results[i].experts;
        sum.n_choice += c->n_choice;
        sum.n_hit += c->n_hit;
        sum.uniform += c->uniform;
        sum.n_token += c->n_token;
        sum.n_busiest += c->n_busiest;
    }
    e->stats.n_expert_choice = sum.n_choice;
    e->stats.n_expert_hit = sum.n_hit;
    e->stats.expert_uniform = sum.uniform;
    e->stats.n_expert_token = sum.n_token;
    e->stats.n_expert_busiest = sum.n_busiest;
}

static struct drafter *drafter_of(fathom_engine *e, uint32_t lane, const struct flight *f)
{
    struct lane *l = &e->lanes[lane];
    ASSERT(e->n_stage <= 1 || f->i < l->n_drafter);
    return &l->drafters[e->n_stage > 1 ? f->i : 0];
}

/* Writes the first pass of the draft layer, which goes over the tokens of the step. */
static void begin_drafts(fathom_engine *e, struct flight *now)
{
    const struct step_runner *r = e->runner;
    ASSERT((e->n_flight == 0 || e->n_stage > 1) && now->steps[0].pass == STEP_MODEL);
    for (uint32_t i = 0; i < e->n_lane; i++) {
        struct step *step = &now->steps[i];
        if (lane_has_part(step))
            drafter_begin(drafter_of(e, i, now), share_plan(&e->share, i, &now->plans[i]),
                          &r->layout, step_runner_host(r, i), step);
        else
            lane_rest(step, STEP_DRAFT);
    }
}

/* Commits the lanes' parts of the oldest step and counts them. Returns the number of sequences in
 * e->told, which are those that have events now. */
static size_t commit(fathom_engine *e, struct flight *now, uint64_t now_us)
{
    struct lane_tally t = {.stats = &e->stats, .told = e->told};
    ASSERT(e->n_flight < e->max_flight);
    for (uint32_t i = 0; i < e->n_lane; i++) {
        struct lane *l = &e->lanes[i];
        const struct step *step = &now->steps[i];
        if (lane_has_part(step) && !share_is_guest_alone(&e->share, i, step))
            lane_finish(l, &now->plans[i], &e->results[i], now_us, &t);
        t.measured.n_running += sched_n_running(l->sched);
        t.measured.short_of_pages |= sched_is_short_of_pages(l->sched);
    }
    ASSERT(t.n_told <= (size_t)e->n_lane * e->info.max_num_seqs);
    results_count_size(&e->stats, t.n_token);
    e->measured = t.measured;
    return t.n_told;
}

fathom_err engine_wait(fathom_engine *e, uint64_t *now_us)
{
    ASSERT(e->n_flight >= 1);
    const uint64_t wait_us = clock_now_us();
    TRY(e->runner->ops->wait(e->runner, e->results));
    e->n_flight--;
    if (e->n_flight == 0) offload_end_step(e->offload); /* the device has done all */
    *now_us = clock_now_us();
    e->stats.wait_us += *now_us - wait_us;
    return FATHOM_OK;
}

void engine_take_results(fathom_engine *e, struct flight *now, uint64_t now_us)
{
    size_t n_told = commit(e, now, now_us);
    count_experts(e);
    e->stats.n_step++;
    e->stats.n_step_ahead += e->was_launched;
    e->stats.busy_us += now_us - e->start_us;
#ifdef FATHOM_DCHECK
    check(e);
#endif
    if (e->info.n_draft > 0) begin_drafts(e, now);
    share_settle(&e->share);
    engine_publish(e, e->told, n_told); /* finished sequences belong to the poller from here on */
}

/* Waits for the oldest step and commits it. An error comes before the commit. */
static fathom_err finish_step(fathom_engine *e)
{
    struct flight *now = now_of(e);
    uint64_t now_us;
    TRY(engine_wait(e, &now_us));
    engine_take_results(e, now, now_us);
    return FATHOM_OK;
}

/* Writes the pass that makes one more draft for each request that wants one; false: none does. */
static bool continue_drafts(fathom_engine *e, struct flight *now)
{
    const struct step_runner *r = e->runner;
    uint32_t max_context = 0;
    bool any = false;
    ASSERT(now->steps[0].pass != STEP_MODEL);
    for (uint32_t i = 0; i < e->n_lane; i++) {
        const uint32_t context = now->steps[i].batch.max_context;
        if (context > max_context) max_context = context;
    }
    if (max_context < r->layout.max_context) max_context++; /* each draft is one position later */
    for (uint32_t i = 0; i < e->n_lane; i++) {
        struct drafter *d = drafter_of(e, i, now);
        struct step *step = &now->steps[i];
        if (lane_has_part(step) &&
            drafter_continue(d, &r->layout, max_context, step_runner_host(r, i), step)) {
            any = true;
        } else {
            lane_rest(step, STEP_DRAFT_ROWS);
        }
    }
    return any;
}

bool engine_take_drafts(fathom_engine *e, struct flight *f)
{
    for (uint32_t i = 0; i < e->n_lane; i++) {
        if (lane_has_part(&f->steps[i])) drafter_take(drafter_of(e, i, f), e->results[i].ids);
    }
    return continue_drafts(e, f);
}

static fathom_err make_drafts(fathom_engine *e)
{
    struct flight *now = now_of(e);
    uint64_t start_us = clock_now_us(), now_us;
    if (e->info.n_draft == 0) return FATHOM_OK;
    ASSERT(e->n_flight == 0); /* no step is launched ahead of drafts */
    do {
        TRY(engine_launch(e, now));
        TRY(engine_wait(e, &now_us));
    } while (engine_take_drafts(e, now));
#ifdef FATHOM_DCHECK
    check(e);
#endif
    e->stats.busy_us += clock_now_us() - start_us;
    return FATHOM_OK;
}

static void end_all(fathom_engine *e, enum request_finish why)
{
    for (uint32_t i = 0; i < e->n_lane; i++) {
        struct request *r;
        while ((r = sched_any(e->lanes[i].sched))) end_sequence(e, sequence_of(r), why);
        ASSERT(e->lanes[i].n_owed_token == 0);
    }
}

static const char *cause_of(fathom_engine *e, fathom_err err)
{
    const char *cause = e->runner->ops->fault(e->runner);
    ASSERT(err != FATHOM_OK);
    return cause[0] ? cause : fathom_err_text(err);
}

/* To FAILED, with the cause of the first error: see the states above. */
static void fail_engine(fathom_engine *e, const char *cause)
{
    ASSERT(cause[0] && !e->failed);
    LOG_ERROR("engine", "step %llu failed: %s", (unsigned long long)e->stats.n_step, cause);
    e->failed = true;
    forget_flights(e);
    mailbox_fail(e->mailbox, cause);
}

/* A step has failed. If a lost host is the reason, the engine is AWAY and not FAILED: its requests
 * end, and later ones are served once the host is back. */
static void stop_step(fathom_engine *e, fathom_err err)
{
    const struct step_runner_ops *ops = e->runner->ops;
    if (err != FATHOM_EPEER || !ops->is_away || !ops->is_away(e->runner)) {
        fail_engine(e, cause_of(e, err));
        return;
    }
    LOG_ERROR("engine", "step %llu failed: %s", (unsigned long long)e->stats.n_step,
              ops->fault(e->runner));
    forget_flights(e);
}

void engine_void_pages(fathom_engine *e)
{
    atomic_fetch_add(&e->cache_epoch, 1);
    engine_kick(e); /* so that subscribers hear of it */
}

uint64_t engine_salt(fathom_engine *e)
{
    return atomic_load(&e->cache_epoch) * 0x9e3779b97f4a7c15u;
}

/* The runner has begun anew: what the pages of the cache held is lost, and copies under way are
 * void. Pages in the tiers are still good. A host that joined may have room for fewer pages than
 * this one; then all use as few as it has. */
static void forget_pages(fathom_engine *e)
{
    const uint32_t n_page = e->runner->n_page;
    ASSERT(e->n_flight == 0 && !is_live(e));
    for (uint32_t i = 0; i < e->n_lane; i++) {
        if (e->lanes[i].prefix) prefix_void(e->lanes[i].prefix);
        if (n_page > 0) page_pool_limit(e->lanes[i].pool, n_page);
    }
    if (n_page > 0 && n_page * e->n_lane != e->stats.n_page) {
        LOG_INFO("engine", "pages=%u, as all hosts have room for; here=%u", n_page, e->info.n_page);
        e->stats.n_page = e->n_lane * n_page;
    }
    offload_renew(e->offload);
}

/* With several hosts: goes to AWAY when one is missing, and begins anew when all are there. */
static void look_at_hosts(fathom_engine *e)
{
    const struct step_runner_ops *ops = e->runner->ops;
    fathom_diag why = {{0}};
    if (!ops->is_away || e->failed || e->n_flight > 0) return;
    if (!e->is_away && !ops->is_away(e->runner)) return;
    if (!e->is_away) {
        e->is_away = true;
        mailbox_suspend(e->mailbox, ops->fault(e->runner));
        (void)take_mail(e); /* from now on submits are refused: these end too */
    }
    end_all(e, REQUEST_FINISH_ERROR);
    ASSERT(!is_live(e));
    const fathom_err err = ops->rejoin(e->runner, &why);
    if (err == FATHOM_OK || err == FATHOM_EPEER) {
        forget_pages(e);
        engine_publish(e, NULL, 0); /* statistics are true before the next step too */
        e->is_away = err == FATHOM_EPEER;
    } else {
        fail_engine(e, why.text[0] ? why.text : cause_of(e, err));
    }
    mailbox_suspend(e->mailbox, why.text);
}

/* Ends requests of a lane that may not compute their pages here and did not get them all from their
 * peer. */
static void end_lost(fathom_engine *e, const struct lane *l)
{
    struct request *next;
    for (struct request *r = sched_first_fetching(l->sched); r; r = next) {
        next = r->next;
        if (r->fetch.failed) end_sequence(e, sequence_of(r), REQUEST_FINISH_LOST);
    }
}

/* Plans a lane's part of the next step, and has the tiers enqueue the copies before it. */
static void plan_lane(fathom_engine *e, struct lane *l, uint64_t now_us, struct plan *plan)
{
    sched_plan(l->sched, now_us, plan);
    end_lost(e, l);
    ASSERT(plan->n_entry <= e->info.max_num_seqs);
    ASSERT(plan->n_token - plan->n_lent <= e->info.max_num_batched_tokens && !plan->is_ahead);
    (void)offload_keep(e->offload, l->prefix, plan->n_token);
}

/* Whether lanes may share a prompt in the next step. If so, its home plans last (share.h). */
static bool begin_sharing(fathom_engine *e)
{
    uint64_t owed[PARALLEL_RANKS_MAX];
    if (e->share.n_lane == 0) return false;
    ASSERT(e->share.n_lane == e->n_lane && e->n_lane <= PARALLEL_RANKS_MAX);
    for (uint32_t i = 0; i < e->n_lane; i++) owed[i] = e->lanes[i].n_owed_token;
    return share_begin(&e->share, owed);
}

/* No prompt is shared after all: lanes whose prompts waited for it plan once more. */
static void plan_waiting(fathom_engine *e, struct flight *f, uint64_t now_us)
{
    for (uint32_t i = 0; i < e->n_lane; i++) {
        if (!share_is_waiting(&e->share, i)) continue;
        if (f->plans[i].n_entry > 0) sched_abort(e->lanes[i].sched);
        plan_lane(e, &e->lanes[i], now_us, &f->plans[i]);
    }
}

fathom_err engine_plan(fathom_engine *e, struct flight *f, uint64_t now_us, bool *any)
{
    ASSERT(e->n_flight == 0 || e->n_stage > 1);
    *any = false;
    set_bounds(e);
    (void)lanes_level(e->lanes, e->n_lane, e->info.max_num_seqs);
    offload_begin_step(e->offload, now_us, e->rates.token_us);
    const bool shares = begin_sharing(e);
    for (uint32_t k = 0; k < e->n_lane; k++) {
        const uint32_t i =
            (shares ? e->share.home + 1 + k : k) % e->n_lane; /* the home plans last */
        if (shares && i == e->share.home) share_lend(&e->share, f->plans);
        plan_lane(e, &e->lanes[i], now_us, &f->plans[i]);
    }
    const uint32_t n_shared = share_cut(&e->share, f->plans);
    e->stats.n_shared_token += n_shared;
    if (shares && n_shared == 0) plan_waiting(e, f, now_us);
    for (uint32_t i = 0; i < e->n_lane; i++) *any |= f->plans[i].n_entry > 0;
    if (*any || e->n_flight > 0) return offload_fault(e->offload);
    TRY(offload_sync(e->offload)); /* every live request waits for pages of the tiers */
    e->stats.n_fetch_plan++;
    engine_publish(e, NULL, 0);
    return FATHOM_OK;
}

/* Plans and launches a step unless one is under way. *any: whether one is under way now. */
static fathom_err start_step(fathom_engine *e, bool *any)
{
    *any = true;
    e->was_launched = e->n_flight > 0;
    if (e->was_launched) return FATHOM_OK;
    e->start_us = clock_now_us();
    fathom_err err = engine_plan(e, now_of(e), e->start_us, any);
    if (err || !*any) return err;
    engine_write_step(e, now_of(e));
    return engine_launch(e, now_of(e));
}

/* How long to sleep when all live requests wait for pages. */
static uint64_t fetch_poll_us(const fathom_engine *e)
{
    uint64_t us = SCHED_FETCH_POLL_US;
    for (uint32_t i = 0; i < e->n_lane; i++) {
        const uint64_t of_lane = sched_fetch_poll_us(e->lanes[i].sched);
        if (of_lane < us) us = of_lane;
    }
    return us;
}

void engine_note_step(fathom_engine *e, uint64_t now_us)
{
    ASSERT(now_us >= e->start_us);
    e->measured.us = now_us - e->start_us;
    admission_note_step(&e->rates, &e->measured, now_us);
    e->start_us = now_us;
}

/* A round without stages: the oldest step, its drafts, and launching steps ahead. */
static fathom_err run_one(fathom_engine *e, bool *any)
{
    TRY(start_step(e, any));
    if (!*any) return FATHOM_OK;
    TRY(launch_ahead(e));
    TRY(finish_step(e));
    TRY(make_drafts(e));
    engine_note_step(e, clock_now_us()); /* drafts included: the next tokens wait for them */
    /* a step launched ahead is the oldest one under way now */
    if (e->n_flight > 0) e->i_now = (e->i_now + 1) % e->max_flight;
    return FATHOM_OK;
}

/* Returns for how long the engine has nothing to do but wait; 0: go on at once. */
static uint64_t run_step(fathom_engine *e)
{
    bool any = false;
    ASSERT(!e->failed);
    bool forbidden = mem_forbid(true);
    fathom_err err = e->n_stage > 1 ? engine_run_stages(e, &any) : run_one(e, &any);
    if (err != FATHOM_OK) abort_flights(e);
    mem_forbid(forbidden);
    if (err != FATHOM_OK) stop_step(e, err);
    return err || any ? 0 : fetch_poll_us(e);
}

/* When no request is live: copies pages that are worth keeping to the tiers, and then prepares
 * memory for later copies. Each call does a little, so that a new request need not wait. Returns
 * what run_step returns. */
static uint64_t rest(fathom_engine *e, bool was_busy)
{
    ASSERT(e->n_flight == 0 && !is_live(e));
    if (was_busy) check(e);
    if (!e->offload || e->failed) return MAILBOX_FOREVER;
    offload_begin_step(e->offload, clock_now_us(), e->rates.token_us);
    bool more = false;
    for (uint32_t i = 0; i < e->n_lane; i++)
        more |= offload_keep(e->offload, e->lanes[i].prefix, 0);
    fathom_err err = offload_sync(e->offload);
    if (err != FATHOM_OK) stop_step(e, err);
    engine_publish(e, NULL, 0);
    if (!more && !e->failed) more = offload_touch(e->offload);
    return more ? 0 : MAILBOX_FOREVER; /* a thread of the tiers that is done wakes it */
}

/* Returns wait_us, or 0 when there is more to tell. */
static uint64_t tell_events(fathom_engine *e, uint64_t wait_us)
{
    const bool forbidden = mem_forbid(true);
    const bool more = page_events_tell(e->events, engine_salt(e));
    mem_forbid(forbidden);
    return more ? 0 : wait_us;
}

/* Waits for the steps under way and drops their results. */
static void drop_steps(fathom_engine *e)
{
    fathom_err err = FATHOM_OK;
    for (; e->n_flight > 0 && err == FATHOM_OK; e->n_flight--) {
        err = e->runner->ops->wait(e->runner, e->results);
    }
    abort_flights(e);
    if (err != FATHOM_OK) stop_step(e, err);
}

void *engine_main(void *arg)
{
    fathom_engine *e = arg;
    uint64_t wait_us = 0;
    bool busy = true;
    os_name_thread("engine");
    fathom_err err = e->runner->ops->bind(e->runner);
    if (err != FATHOM_OK) fail_engine(e, cause_of(e, err));
    host_runner_on_change(e->runner, engine_kick, e);
    look_at_hosts(e);
    while (mailbox_wait(e->mailbox, wait_us)) {
        const bool any_new = take_mail(e);
        end_unwanted(e, any_new);
        look_at_hosts(e);
        if (e->failed) end_all(e, REQUEST_FINISH_ERROR);
        for (uint32_t i = 0; i < e->n_lane && e->admission.ttft_us > 0; i++)
            end_expired(e, &e->lanes[i], clock_now_us());
        bool was_busy = busy;
        busy = is_live(e) || e->n_flight > 0;
        wait_us = tell_events(e, busy ? run_step(e) : rest(e, was_busy));
    }
    if (e->n_flight > 0) drop_steps(e);
    if (e->offload && !e->failed) {
        end_all(e, REQUEST_FINISH_CANCEL); /* so that their pages are flushed too */
        const uint64_t end_us = clock_now_us() + OFFLOAD_FLUSH_US;
        for (uint32_t i = 0; i < e->n_lane; i++)
            offload_flush(e->offload, e->lanes[i].prefix, end_us);
    }
    return NULL;
}
