/* rank_group.c - the calls that the engine makes to a group of ranks, and how a group is made */
#include "engine/rank_group.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "backend/backend.h"
#include "base/assert.h"
#include "base/fail.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/os.h"
#include "engine/rank_group_int.h"
#include "engine/runner.h"
#include "model/config.h"
#include "model/stages.h"

static struct rank_group *group_of(struct step_runner *r)
{
    return (struct rank_group *)r;
}

static fathom_err bind(struct step_runner *base)
{
    (void)base; /* each rank's thread has bound its own runner */
    return FATHOM_OK;
}

static fathom_err launch(struct step_runner *base, const struct step *step)
{
    struct rank_group *g = group_of(base);
    const struct command c = {
        .kind = COMMAND_LAUNCH, .host = g->steps ? NULL : base->host, .block = g->block};
    for (uint32_t i = 1; i < base->n_lane; i++) ASSERT(step[i].pass == step->pass);
    rank_ring_tell_steps(g, &c, step);
    return FATHOM_OK;
}

static fathom_err draw(struct step_runner *base, const struct step *step)
{
    struct rank_group *g = group_of(base);
    struct command c = {
        .kind = COMMAND_DRAW, .host = g->steps ? NULL : base->host, .block = g->block};
    if (!g->is_staged) block_ring_draw(&g->blocks);
    rank_ring_tell_steps(g, &c, step);
    if (!g->is_staged) return FATHOM_OK;
    ASSERT(g->n_flight < base->max_flight);
    c.kind = COMMAND_WAIT;
    rank_ring_tell_steps(g, &c, step);
    g->flights[g->n_flight].n = atomic_load(&g->n_told);
    g->flights[g->n_flight++].block = g->block;
    return FATHOM_OK;
}

static void show_block(struct rank_group *g)
{
    g->base.host = runner_block(g->ranks[0].runner, g->is_staged ? g->block : g->blocks.i);
    for (uint32_t i = 0; i < g->base.n_lane; i++)
        g->base.hosts[i] = runner_block(g->ranks[i * g->n_lane_rank].runner, g->blocks.i);
}

static void next_block(struct step_runner *base)
{
    struct rank_group *g = group_of(base);
    const struct command c = {.kind = COMMAND_NEXT_BLOCK};
    block_ring_next(&g->blocks);
    show_block(g);
    rank_ring_tell(g, &c);
}

static void use_block(struct step_runner *base, uint32_t i)
{
    struct rank_group *g = group_of(base);
    ASSERT(g->is_staged && i < base->max_flight);
    for (uint32_t k = 0; k < g->n_flight; k++) ASSERT(g->flights[k].block != i);
    g->block = i;
    show_block(g);
}

/* With stages, waits for the ranks of the last stage here. An error may be that of any rank: a rank
 * that waits for a failed one fails too. */
static fathom_err wait_for_last(struct rank_group *g, struct step_result *out)
{
    const uint64_t n = g->flights[0].n;
    const uint32_t block = g->flights[0].block, first = g->n_rank - g->n_peer;
    ASSERT(g->n_flight > 0);
    for (uint32_t i = first; i < g->n_rank; i++) rank_ring_await_rank(g, &g->ranks[i], n);
    if (atomic_load(&g->has_fault)) {
        const fathom_err err = rank_ring_await_all(g);
        return err ? err : FATHOM_EPEER;
    }
    g->n_flight--;
    memmove(&g->flights[0], &g->flights[1], g->n_flight * sizeof g->flights[0]);
    if (g->n_filling < n) g->is_filling = false;
    *out = g->ranks[first].results[block];
    return FATHOM_OK;
}

static fathom_err wait(struct step_runner *base, struct step_result *out)
{
    struct rank_group *g = group_of(base);
    const struct command c = {.kind = COMMAND_WAIT};
    if (g->is_staged) return wait_for_last(g, out);
    TRY(rank_ring_ask(g, &c));
    block_ring_end(&g->blocks);
    show_block(g);
    g->is_filling = false;
    *out = g->ranks[0].results[0];
    for (uint32_t i = 1; i < base->n_lane; i++) out[i] = g->ranks[i * g->n_lane_rank].results[0];
    return FATHOM_OK;
}

static const char *fault(struct step_runner *base)
{
    struct rank_group *g = group_of(base);
    return atomic_load(&g->has_fault) ? g->fault : "";
}

static uint64_t progress(const struct step_runner *base)
{
    const struct rank_group *g = (const struct rank_group *)base;
    uint64_t sum = 0;
    for (uint32_t i = 0; i < g->n_rank; i++) {
        const struct step_runner *r = g->ranks[i].runner; /* NULL: it did not load */
        if (r) sum += r->ops->progress(r);
    }
    return sum;
}

static uint32_t get_waits(const struct step_runner *base, struct rank_waits *out)
{
    const struct rank_group *g = (const struct rank_group *)base;
    if (!g->ranks[0].backend->ops->get_waits) return 0;
    for (uint32_t i = 0; i < g->n_rank; i++) {
        const struct backend *b = g->ranks[i].backend;
        b->ops->get_waits(b, &out[i]);
    }
    return g->n_rank;
}

/* Fills in which ranks copy a page: in to all ranks of the lane, or of each stage, out of one. */
static void name_page(const struct rank_group *g, struct command *c, uint32_t page)
{
    const uint32_t n_page = g->base.lane_pages, n = g->steps ? g->n_lane_rank : g->n_peer;
    const bool is_out = c->kind == COMMAND_PAGE_OUT;
    c->page = g->steps ? page % n_page : page;
    c->rank = g->steps ? page / n_page * n : 0;
    c->n_rank = is_out ? 1 : n;
    if (is_out) c->rank += c->page % n;
    ASSERT(c->rank + c->n_rank <= g->n_peer);
}

static fathom_err page_out(void *runner, uint32_t page, void *to)
{
    struct rank_group *g = runner;
    struct command c = {.kind = COMMAND_PAGE_OUT, .to = to};
    name_page(g, &c, page);
    g->is_filling = true;
    rank_ring_tell(g, &c);
    g->n_filling = atomic_load(&g->n_told);
    return FATHOM_OK;
}

static fathom_err sync_ranks(struct step_runner *base)
{
    struct rank_group *g = group_of(base);
    const struct command c = {.kind = COMMAND_SYNC};
    TRY(rank_ring_ask(g, &c));
    g->is_filling = false;
    return FATHOM_OK;
}

/* A single device copies in order. With several ranks, one may still be filling the memory that
 * another one reads, so the ranks are waited for first. */
static fathom_err page_in(void *runner, uint32_t page, const void *from)
{
    struct rank_group *g = runner;
    struct command c = {.kind = COMMAND_PAGE_IN, .from = from};
    name_page(g, &c, page);
    if (g->is_filling) TRY(sync_ranks(&g->base));
    rank_ring_tell(g, &c);
    return FATHOM_OK;
}

static fathom_err alloc_host(struct step_runner *base, size_t bytes, void **out, fathom_diag *d)
{
    struct rank_group *g = group_of(base);
    fathom_err err = FATHOM_EPEER; /* stays if rank 0 is lost */
    const struct command c = {
        .kind = COMMAND_ALLOC, .bytes = bytes, .to = out, .err = &err, .diag = d};
    (void)rank_ring_ask(g, &c);
    if (err == FATHOM_EPEER) FAIL(d, err, "%s", fault(base));
    return err;
}

static bool has_lost(const struct rank_group *g)
{
    bool lost = false;
    for (uint32_t i = 0; i < g->n_rank; i++) lost |= atomic_load(&g->ranks[i].is_lost);
    return lost;
}

/* Not if a rank is lost: it may still copy from or to the memory. */
static void release_host(struct step_runner *base, void *p)
{
    const struct command c = {.kind = COMMAND_RELEASE, .to = p};
    if (!has_lost(group_of(base))) (void)rank_ring_ask(group_of(base), &c);
}

/* Renews all ranks while they are idle, before any gets work again. A lost rank stays lost. */
static fathom_err renew(struct step_runner *base)
{
    struct rank_group *g = group_of(base);
    const struct command c = {.kind = COMMAND_RENEW};
    const fathom_err err = rank_ring_await_all(g);
    if (has_lost(g)) return FATHOM_EDEVICE;
    if (err && err != FATHOM_EPEER) return err;
    pthread_mutex_lock(&g->lock);
    atomic_store(&g->has_fault, false);
    atomic_store(&g->is_parted, false);
    g->fault[0] = '\0';
    pthread_mutex_unlock(&g->lock);
    for (uint32_t i = 0; i <= g->n_stage; i++) {
        if (g->hops[i]) stage_hop_renew(g->hops[i]);
    }
    TRY(rank_ring_ask(g, &c));
    g->blocks.i = 0;
    g->blocks.n_drawn = 0;
    g->block = 0;
    g->n_flight = 0;
    g->is_filling = false;
    show_block(g);
    return FATHOM_OK;
}

static fathom_err connect_ranks(struct step_runner *base)
{
    const struct command c = {.kind = COMMAND_CONNECT};
    ASSERT(group_of(base)->n_flight == 0);
    return rank_ring_ask(group_of(base), &c);
}

static int by_size(const void *a, const void *b)
{
    const uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
    return (x > y) - (x < y);
}

/* Logs how long the ranks' threads took to launch the last steps; on a CPU that is the step itself.
 * */
static void log_costs(struct rank_group *g)
{
    for (uint32_t i = 0; i < g->n_rank; i++) {
        struct rank *r = &g->ranks[i];
        const uint32_t n = r->launch.n < N_LAUNCH ? r->launch.n : N_LAUNCH;
        if (n == 0) continue;
        qsort(r->launch.last_ns, n, sizeof *r->launch.last_ns, by_size);
        const uint64_t middle_ns = r->launch.last_ns[n / 2];
        LOG_INFO("engine", "rank=%u steps=%u launch_us=%.1f (median), %.1f to %.1f", i, n,
                 (double)middle_ns / 1e3, (double)r->launch.last_ns[0] / 1e3,
                 (double)r->launch.last_ns[n - 1] / 1e3);
    }
}

/* Frees the rooms of the hops, once no rank copies from or to them any more. */
static void free_rooms(struct rank_group *g)
{
    for (uint32_t i = 0; i <= g->n_stage; i++) {
        if (!g->rooms[i]) continue;
        (void)rank_ring_await_all(g);
        release_host(&g->base, g->rooms[i]);
    }
}

/* All threads end before the first runner is destroyed, because ranks read their peers' memory. */
static void destroy(struct step_runner *base)
{
    struct rank_group *g = group_of(base);
    if (!g) return;
    const struct command end = {.kind = COMMAND_END};
    free_rooms(g);
    rank_ring_tell(g, &end);
    for (uint32_t i = 0; i < g->n_rank; i++) {
        if (g->ranks[i].runner) rank_ring_await_rank(g, &g->ranks[i], atomic_load(&g->n_told));
    }
    for (uint32_t i = 0; i < g->n_rank; i++) {
        struct rank *r = &g->ranks[i];
        if (!r->has_thread) continue;
        (void)(atomic_load(&r->is_lost) ? pthread_detach(r->thread)
                                        : pthread_join(r->thread, NULL));
    }
    if (has_lost(g)) return;
    log_costs(g);
    for (uint32_t i = 0; i < g->n_rank; i++) {
        struct rank *r = &g->ranks[i];
        if (r->runner)
            r->runner->ops->destroy(r->runner);
        else if (r->backend)
            r->backend->ops->destroy(r->backend);
        host_rank_leave(&r->load);
    }
    for (uint32_t i = 0; i <= g->n_stage; i++) stage_hop_destroy(g->hops[i]);
    pthread_cond_destroy(&g->told);
    pthread_cond_destroy(&g->done);
    pthread_mutex_destroy(&g->lock);
    mem_free(g->base.hosts);
    mem_free(g->step_hosts);
    mem_free(g->steps);
    mem_free(g->ranks);
    mem_free(g);
}

static const struct step_runner_ops group_ops = {
    .destroy = destroy,
    .bind = bind,
    .launch = launch,
    .draw = draw,
    .wait = wait,
    .next_block = next_block,
    .use_block = use_block,
    .renew = renew,
    .connect = connect_ranks,
    .fault = fault,
    .progress = progress,
    .get_waits = get_waits,
    .page_out = page_out,
    .page_in = page_in,
    .sync = sync_ranks,
    .alloc_host = alloc_host,
    .release_host = release_host,
};

/* ---- making it ------------------------------------------------------------------------------ */

static fathom_err make_group(struct rank_group **out, const struct rank_sources *from,
                             fathom_diag *d)
{
    const uint32_t n = settings_n_rank(from->settings);
    struct rank_group *g = mem_alloc_aligned(64, sizeof *g);
    struct rank *ranks = mem_alloc_aligned(64, n * sizeof *ranks);
    if (!g || !ranks) {
        mem_free(g);
        mem_free(ranks);
        FAIL(d, FATHOM_ENOMEM, "no memory for a group of %u ranks", n);
    }
    memset(g, 0, sizeof *g);
    memset(ranks, 0, n * sizeof *ranks);
    g->base.ops = &group_ops;
    g->from = from;
    g->n_rank = n;
    g->is_staged = parallel_n_stage(&from->settings->place.parallel) > 1;
    g->n_peer = g->is_staged ? parallel_n_peer(&from->settings->place.parallel) : n;
    ASSERT(g->n_peer >= 1 && n % g->n_peer == 0);
    g->n_stage = n / g->n_peer;
    g->n_lane_rank = 1;
    g->hosts = from->settings->place.net;
    g->net = from->settings->stage_net;
    g->ranks = ranks;
    g->spins = os_n_cpu() > n;
    g->patience_ms =
        (from->settings->place.patience_ms ? from->settings->place.patience_ms : RANK_PATIENCE_MS) +
        FAREWELL_MS;
    pthread_condattr_t attr;
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_mutex_init(&g->lock, NULL);
    pthread_cond_init(&g->told, NULL);
    pthread_cond_init(&g->done, &attr);
    pthread_condattr_destroy(&attr);
    for (uint32_t i = 0; i < n; i++) {
        struct rank *r = &ranks[i];
        r->group = g;
        r->i = i;
        r->peer = i % g->n_peer;
        r->settings = *from->settings;
        settings_place(&r->settings.place, from->settings, i);
        r->settings.loading.n_thread = r->settings.place.n_thread;
        r->settings.loading.on_load = rank_thread_end_layer;
        r->settings.loading.on_load_arg = r;
    }
    *out = g;
    return FATHOM_OK;
}

/* With data parallelism, divides the ranks into lanes; before the first command. If only one lane
 * runs on this host, the group has no lanes. */
static fathom_err make_lanes(struct rank_group *g, const struct memory_plan *plan, fathom_diag *d)
{
    const struct parallel *p = &g->from->settings->place.parallel;
    if (p->dp.size <= 1) return FATHOM_OK;
    g->base.shares_rows = g->ranks[0].backend->ops->share_rows != NULL;
    if (g->n_rank == 1) return FATHOM_OK;
    const uint32_t n_lane = g->n_rank / p->tp.size;
    ASSERT(n_lane >= 1 && g->n_rank % p->tp.size == 0);
    g->base.hosts = mem_calloc(n_lane, sizeof *g->base.hosts);
    g->steps = mem_calloc((size_t)RING * n_lane, sizeof *g->steps);
    g->step_hosts = mem_calloc((size_t)RING * n_lane, sizeof *g->step_hosts);
    if (!g->base.hosts || !g->steps || !g->step_hosts)
        FAIL(d, FATHOM_ENOMEM, "no memory for the steps of %u lanes", n_lane);
    g->base.n_lane = n_lane;
    g->base.lane_pages = plan->n_page;
    g->n_lane_rank = p->tp.size;
    return FATHOM_OK;
}

/* Makes the hops between the stages, and at the edges to stages of other hosts; before the first
 * command. */
static fathom_err make_hops(struct rank_group *g, fathom_diag *d)
{
    const struct engine_settings *s = g->from->settings;
    struct stage_hop_config c = {.n_block = s->max_flight,
                                 .max_row = s->limits.max_token,
                                 .width = g->from->config->hidden,
                                 .borrows_rooms = true};
    if (!g->is_staged) return FATHOM_OK;
    ASSERT(g->n_stage <= PARALLEL_STAGES_MAX && s->max_flight <= PARALLEL_STAGES_MAX);
    for (uint32_t i = 0; i <= g->n_stage; i++) {
        const bool is_end = i == g->n_stage;
        const struct parallel *p =
            &g->ranks[(is_end ? i - 1 : i) * g->n_peer].settings.place.parallel;
        if (is_end ? parallel_is_last(p) : parallel_is_first(p)) continue;
        c.n_taker = is_end ? 1 : g->n_peer;
        TRY(stage_hop_create(&g->hops[i], &c, d));
    }
    if (g->net) stage_net_attach(g->net, g->hops[0], g->hops[g->n_stage]);
    for (uint32_t i = 0; i < g->n_rank; i++) {
        struct rank *r = &g->ranks[i];
        const uint32_t i_stage = i / g->n_peer;
        r->stage = (struct runner_stage){g->hops[i_stage], g->hops[i_stage + 1], r->peer};
        r->record_offset =
            stages_record_offset(g->from->config, s->limits.kv_type, s->limits.with_mtp,
                                 &r->settings.place.parallel) -
            stages_record_offset(g->from->config, s->limits.kv_type, s->limits.with_mtp,
                                 &g->ranks[0].settings.place.parallel);
    }
    return FATHOM_OK;
}

/* Allocates the rooms of the hops as memory that devices access fast; the runners must exist. */
static fathom_err make_rooms(struct rank_group *g, fathom_diag *d)
{
    const struct engine_settings *s = g->from->settings;
    const size_t n_value = (size_t)s->max_flight * s->limits.max_token * g->from->config->hidden;
    for (uint32_t i = 0; i <= g->n_stage; i++) {
        if (!g->hops[i]) continue;
        TRY(alloc_host(&g->base, n_value * sizeof(float), &g->rooms[i], d));
        stage_hop_lend_rooms(g->hops[i], g->rooms[i]);
    }
    return FATHOM_OK;
}

/* Every rank loads on its own thread. The group's error is that of a rank, preferably not one that
 * a peer caused. Waiting here has no time limit: a load waits for storage and the device, whose
 * errors end it, and for its peers, which are given up after LOAD_PATIENCE_S. Slow storage is no
 * fault, and a signal still ends the process. */
static fathom_err load(struct rank_group *g, fathom_diag *d)
{
    struct host_rank *loads[PARALLEL_RANKS_MAX];
    const struct rank *failed = NULL;
    for (uint32_t i = 0; i < g->n_rank; i++) loads[i] = &g->ranks[i].load;
    for (uint32_t i = 0; i < g->n_rank; i += g->n_peer) {
        TRY(host_group_create(loads + i, g->n_peer, NULL, (uint64_t)LOAD_PATIENCE_S * 1000000, d));
    }
    for (uint32_t i = 0; i < g->n_rank; i++) {
        struct rank *r = &g->ranks[i];
        r->has_thread = pthread_create(&r->thread, NULL, rank_thread_main, r) == 0;
        if (r->has_thread) continue;
        host_rank_break(&r->load);
        r->err = diag_fail(&r->diag, FATHOM_EIO, "its thread cannot be started");
        atomic_store(&r->is_made, 1);
    }
    for (uint32_t i = 0; i < g->n_rank; i++) {
        struct rank *r = &g->ranks[i];
        rank_ring_await(g, &r->is_made, 1, &g->done);
        if (r->err && (!failed || failed->err == FATHOM_EPEER)) failed = r;
    }
    if (!failed) return FATHOM_OK;
    FAIL(d, failed->err, "rank %u of %u: %s", failed->i, g->n_rank,
         failed->diag.text[0] ? failed->diag.text : fathom_err_text(failed->err));
}

fathom_err rank_group_create_on(struct step_runner **out, struct backend *const *backends,
                                const struct engine_settings *s, const struct memory_plan *plan,
                                const struct model_config *config,
                                const struct checkpoint *checkpoint, fathom_diag *d)
{
    const struct rank_sources from = {
        .settings = s, .plan = plan, .config = config, .checkpoint = checkpoint};
    const uint32_t n = settings_n_rank(s);
    struct rank_group *g = NULL;
    *out = NULL;
    fathom_err err = make_group(&g, &from, d);
    if (err) {
        for (uint32_t i = 0; i < n; i++) backends[i]->ops->destroy(backends[i]);
        return err;
    }
    for (uint32_t i = 0; i < n; i++) g->ranks[i].backend = backends[i];
    TRY_GOTO(make_lanes(g, plan, d), fail);
    TRY_GOTO(make_hops(g, d), fail);
    TRY_GOTO(load(g, d), fail);
    TRY_GOTO(make_rooms(g, d), fail);
    const struct step_runner *first = g->ranks[0].runner;
    g->base.layout = first->layout;
    g->base.max_flight = first->max_flight;
    g->base.prompt_form = first->prompt_form;
    g->base.n_stage = parallel_n_stage(&s->place.parallel);
    for (uint32_t i = 0; i < n && g->is_staged; i++)
        runner_set_stage(g->ranks[i].runner, &g->ranks[i].stage);
    g->from = NULL;
    g->blocks.n_block = g->base.max_flight;
    show_block(g);
    LOG_INFO("engine", "ranks=%u threads_a_rank=%u", n, g->ranks[0].settings.place.n_thread);
    *out = &g->base;
    return FATHOM_OK;
fail:
    destroy(&g->base);
    return err;
}

fathom_err rank_group_create(struct step_runner **out, const struct engine_settings *s,
                             const struct memory_plan *plan, const struct model_config *config,
                             const struct checkpoint *checkpoint, fathom_diag *d)
{
    const uint32_t n = settings_n_rank(s);
    const struct parallel *p = &s->place.parallel;
    struct backend *backends[PARALLEL_RANKS_MAX] = {NULL};
    fathom_err err = FATHOM_OK;
    *out = NULL;
    for (uint32_t i = 0; i < n; i++) {
        struct engine_settings of_rank = *s;
        fathom_diag inner = {{0}};
        settings_place(&of_rank.place, s, i);
        err = runner_make_backend(&backends[i], &of_rank, config, &inner);
        if (err) err = diag_fail(d, err, "rank %u of %u: %s", i, n, inner.text);
        if (err) goto fail;
    }
    const uint32_t n_peer = parallel_n_stage(p) > 1 ? parallel_n_peer(p) : n;
    for (uint32_t i = 0; i < n && (n_peer > 1 || s->place.net); i += n_peer)
        TRY_GOTO(backend_join(backends + i, n_peer, d), fail);
    return rank_group_create_on(out, backends, s, plan, config, checkpoint, d);
fail:
    for (uint32_t i = 0; i < n; i++) {
        if (backends[i]) backends[i]->ops->destroy(backends[i]);
    }
    return err;
}

const struct step_runner *rank_group_first(const struct step_runner *group)
{
    return ((const struct rank_group *)group)->ranks[0].runner;
}
