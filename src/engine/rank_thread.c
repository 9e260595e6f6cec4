/* rank_thread.c - a rank's thread: makes its runner and carries out commands */
#include <stdio.h>

#include "backend/backend.h"
#include "base/assert.h"
#include "base/clock.h"
#include "base/fail.h"
#include "base/os.h"
#include "engine/rank_group_int.h"
#include "engine/runner.h"

/* Breaks all hops, so that no stage waits for another one any more. */
static void break_hops(struct rank_group *g)
{
    ASSERT(atomic_load(&g->has_fault));
    for (uint32_t i = 0; i <= g->n_stage; i++) {
        if (g->hops[i]) stage_hop_break(g->hops[i], g->fault);
    }
    if (g->net) stage_net_break(g->net, g->fault);
}

/* Whether a rank has failed because another host is lost. */
static bool is_of_host(const struct rank_group *g, fathom_err err)
{
    char why[200];
    if (err != FATHOM_EPEER) return false;
    return g->net || (g->hosts && g->hosts->is_lost(g->hosts, why, sizeof why));
}

/* Notes the first fault of the group. Errors of peers that waited for the failed rank come later,
 * and count only if no rank has failed itself, for example because one does not come. */
static void note_fault(struct rank *r, fathom_err err)
{
    struct rank_group *g = r->group;
    const bool is_parted = is_of_host(g, err);
    r->err = err;
    pthread_mutex_lock(&g->lock); /* until the fault is whole; abandon, within, fails the peers */
    if (!atomic_load(&g->has_fault)) {
        int n = snprintf(g->fault, sizeof g->fault, "rank %u of %u, layer %u, step %llu: ", r->i,
                         g->n_rank, runner_layer(r->runner), (unsigned long long)r->n_step);
        const char *cause = r->runner->ops->fault(r->runner);
        bool knows = cause[0] != '\0';
        n += snprintf(g->fault + n, sizeof g->fault - (size_t)n, "%.200s",
                      knows ? cause : fathom_err_text(err));
        if (r->backend->ops->abandon) r->backend->ops->abandon(r->backend);
        cause = r->runner->ops->fault(r->runner);
        if (!knows && cause[0])
            snprintf(g->fault + n, sizeof g->fault - (size_t)n, "; %.160s", cause);
        atomic_store(&g->is_parted, is_parted);
        atomic_store(&g->has_fault, true);
    } else if (r->backend->ops->abandon) {
        r->backend->ops->abandon(r->backend);
    }
    pthread_mutex_unlock(&g->lock);
    break_hops(g);
}

/* Waits for a step. If the net is broken, that is no error of this rank: those who wait learn of
 * it. */
static fathom_err end_step(struct rank *r, const struct command *c)
{
    struct step_result *result = &r->results[c->block];
    const struct sample_shape *drawn = &c->step.sampler;
    TRY(r->runner->ops->wait(r->runner, result));
    if (!r->group->net || r->stage.to || r->peer > 0) return FATHOM_OK;
    (void)stage_net_tell_drawn(r->group->net, c->block, result, drawn->n_row, drawn->n_top);
    return FATHOM_OK;
}

static bool is_asked(const struct rank *r, const struct command *c)
{
    return r->peer >= c->rank && r->peer < c->rank + c->n_rank;
}

static fathom_err carry_out(struct rank *r, const struct command *c)
{
    struct step_runner *runner = r->runner;
    const struct step_runner_ops *ops = runner->ops;
    switch (c->kind) {
    case COMMAND_LAUNCH:
        r->n_step++;
        if (r->group->is_staged) runner_use_block(runner, c->block);
        if (c->host) runner->host = c->host;
        return ops->launch(runner, &c->step);
    case COMMAND_DRAW:
        if (c->host) runner->host = c->host;
        return ops->draw(runner, &c->step);
    case COMMAND_NEXT_BLOCK: ops->next_block(runner); return FATHOM_OK;
    case COMMAND_WAIT: return end_step(r, c);
    case COMMAND_PAGE_OUT:
        if (!is_asked(r, c)) return FATHOM_OK;
        return ops->page_out(runner, c->page, (char *)c->to + r->record_offset);
    case COMMAND_PAGE_IN:
        if (!is_asked(r, c)) return FATHOM_OK;
        return ops->page_in(runner, c->page, (const char *)c->from + r->record_offset);
    case COMMAND_SYNC: return ops->sync(runner);
    case COMMAND_RENEW: r->err = FATHOM_OK; return ops->renew(runner);
    case COMMAND_CONNECT: return ops->connect(runner);
    case COMMAND_ALLOC:
        if (r->i == 0) *c->err = ops->alloc_host(runner, c->bytes, c->to, c->diag);
        return FATHOM_OK;
    case COMMAND_RELEASE:
        if (r->i == 0) ops->release_host(runner, c->to);
        return FATHOM_OK;
    case COMMAND_END: return FATHOM_OK;
    }
    ASSERT(!"a command");
    return FATHOM_EINVAL;
}

/* Command n, copied: the ring of a rank that is lost meanwhile goes on without it. False: it is
 * lost, and the ring is not read any more. */
static bool take_command(struct rank *r, uint64_t n, struct command *out)
{
    struct rank_group *g = r->group;
    rank_ring_await(g, &g->n_told, n + 1, &g->told);
    pthread_mutex_lock(&g->lock);
    bool is_lost = atomic_load(&r->is_lost);
    if (!is_lost) *out = g->ring[n % RING];
    if (!is_lost && g->steps) {
        const uint64_t lane = n % RING * g->base.n_lane + r->i / g->n_lane_rank;
        out->step = g->steps[lane];
        out->host = g->step_hosts[lane];
    }
    pthread_mutex_unlock(&g->lock);
    return !is_lost;
}

/* What a command took of a step's launches, which its draw ends. */
static void count_launch(struct rank *r, enum command_kind kind, uint64_t took_ns)
{
    if (kind != COMMAND_LAUNCH && kind != COMMAND_DRAW) return;
    r->launch.ns += took_ns;
    if (kind == COMMAND_LAUNCH) return;
    r->launch.last_ns[r->launch.n++ % N_LAUNCH] =
        r->launch.ns < UINT32_MAX ? (uint32_t)r->launch.ns : UINT32_MAX;
    r->launch.ns = 0;
}

static void obey(struct rank *r)
{
    struct rank_group *g = r->group;
    struct command c;
    for (uint64_t n = 0; take_command(r, n, &c); n++) {
        const bool always =
            c.kind == COMMAND_ALLOC || c.kind == COMMAND_RELEASE || c.kind == COMMAND_RENEW;
        if (!r->err || always) {
            const uint64_t start_ns = clock_now_ns();
            fathom_err err = carry_out(r, &c);
            count_launch(r, c.kind, clock_now_ns() - start_ns);
            if (err) note_fault(r, err);
        }
        rank_ring_raise(g, &r->n_done, n + 1, &g->done);
        if (c.kind == COMMAND_END) return;
    }
}

/* After each layer: no rank begins the next one before all have read this one. Rank 0 tells how far
 * loading is. */
void rank_thread_end_layer(void *arg, uint64_t done_bytes, uint64_t total_bytes)
{
    struct rank *r = arg;
    const struct host_place place = {.op = "loading"};
    const struct model_loading *loading = &r->group->from->settings->loading;
    const void *const *all;
    if (r->i == 0 && loading->on_load)
        loading->on_load(loading->on_load_arg, done_bytes, total_bytes);
    if (host_meet(&r->load, &place, r, &all) == FATHOM_OK) (void)host_part(&r->load);
}

static fathom_err make_runner(struct rank *r)
{
    const struct rank_sources *from = r->group->from;
    struct backend *b = r->backend;
    fathom_err err = b->ops->bind_thread(b);
    if (err) {
        (void)diag_fail(&r->diag, err, "%s", b->ops->fault(b));
        b->ops->destroy(b);
    } else {
        err = runner_create_on(&r->runner, b, &r->settings, from->plan, from->config,
                               from->checkpoint, &r->diag);
    }
    if (err) r->backend = NULL;
    return err;
}

void *rank_thread_main(void *arg)
{
    struct rank *r = arg;
    char name[16];
    snprintf(name, sizeof name, "rank %u", r->i);
    os_name_thread(name);
    r->err = make_runner(r);
    if (r->err) host_rank_break(&r->load);
    rank_ring_raise(r->group, &r->is_made, 1, &r->group->done);
    if (r->runner) obey(r);
    return NULL;
}
