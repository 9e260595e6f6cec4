/* rank_group.c - a ring of commands, and the threads that carry them out
 *
 *   ring      commands [n_done of the slowest rank, n_told); a place is written again when every
 *             rank is done with it
 *   n_told    commands put into the ring; the engine's thread writes it
 *   n_done    of a rank: commands carried out, or passed over after a failure
 *   lock      guards the conditions and the fault; numbers are also read without it
 *
 * Lanes. Rank i is of lane i / n_lane_rank; the first of a lane has the blocks, which the others
 * read, and tells what was drawn.
 *
 * Stages. Rank i is peer i % n_peer of stage i / n_peer of those that run here. A step's wait is
 * told right behind its draw: a rank is done with one step before it looks at the next one, and the
 * engine waits for the last stage alone. Where another host has stages, the hops at the edges are
 * stage_net.h's too, and the last host's first rank tells it what was drawn.
 *
 * A rank that has failed passes over commands, so that the engine never waits for it. One that does
 * not end a command is lost: once another rank has failed, or when nothing moves for longer than
 * the ranks' patience, the engine goes on without it. Its thread cannot be ended, so that all it
 * may touch stays; the process is about to end. Invariants:
 * n_told - n_done <= RING for each rank; flights ascend in n.
 */
#include "engine/rank_group.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "backend/backend.h"
#include "backend/host_group.h"
#include "base/assert.h"
#include "base/clock.h"
#include "base/fail.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/os.h"
#include "engine/block_ring.h"
#include "engine/runner.h"
#include "engine/stage_hop.h"
#include "engine/stage_net.h"
#include "model/config.h"
#include "model/stages.h"

enum {
    RING = 64,
    SPIN_NS = 20000,         /* looks for a command, or for a rank, before a thread sleeps */
    LOAD_PATIENCE_S = 86400, /* for a rank that loads a layer */
    FAREWELL_MS = 2000,      /* for a rank to end its command after a fault */
    LOOK_MS = 100,           /* between looks at ranks that are waited for */
    N_LAUNCH = 255,          /* steps of which a rank keeps what launching took */
};

enum command_kind {
    COMMAND_LAUNCH,
    COMMAND_DRAW,
    COMMAND_NEXT_BLOCK,
    COMMAND_WAIT,
    COMMAND_PAGE_OUT,
    COMMAND_PAGE_IN,
    COMMAND_SYNC,
    COMMAND_RENEW,
    COMMAND_ALLOC,   /* rank 0's */
    COMMAND_RELEASE, /* rank 0's */
    COMMAND_END,
};

static const char *const command_names[] = {
    [COMMAND_LAUNCH] = "launch",   [COMMAND_DRAW] = "draw",         [COMMAND_NEXT_BLOCK] = "block",
    [COMMAND_WAIT] = "wait",       [COMMAND_PAGE_OUT] = "page out", [COMMAND_PAGE_IN] = "page in",
    [COMMAND_SYNC] = "sync",       [COMMAND_RENEW] = "renew",       [COMMAND_ALLOC] = "alloc",
    [COMMAND_RELEASE] = "release", [COMMAND_END] = "end",
};

struct command {
    enum command_kind kind;
    struct step step; /* launch, draw; of stages wait too */
    uint32_t block;   /* of stages, likewise */
    void *host;       /* their block; NULL: each rank's own */
    uint32_t rank;    /* page_out, page_in: whose page, of peers rank .. rank + n_rank - 1 */
    uint32_t n_rank;
    uint32_t page;
    void *to;         /* page_out; alloc: void ** */
    const void *from; /* page_in */
    size_t bytes;     /* alloc */
    fathom_err *err;  /* alloc: what became of it */
    fathom_diag *diag;
};

/* What the ranks are made from. */
struct rank_sources {
    const struct engine_settings *settings;
    const struct memory_plan *plan;
    const struct model_config *config;
    const struct checkpoint *checkpoint;
};

struct rank {
    struct rank_group *group;
    uint32_t i;
    uint32_t peer;                   /* its number in its stage */
    struct engine_settings settings; /* with this rank's place */
    struct host_rank load;           /* meets the others while it loads */
    struct backend *backend;         /* until the runner has it */
    struct step_runner *runner;
    struct runner_stage stage;
    uint64_t record_offset;                          /* of its stage's part of a page's record */
    struct step_result results[PARALLEL_STAGES_MAX]; /* of the last wait, of stages by block */
    fathom_err err;                                  /* the first; written before n_done */
    fathom_diag diag;                                /* of creation */
    pthread_t thread;
    bool has_thread;
    uint64_t n_step; /* launched; this thread's */
    struct {
        uint64_t ns;                /* of the step that is launched */
        uint32_t last_ns[N_LAUNCH]; /* of the last steps, from launch to draw */
        uint32_t n;
    } launch;                 /* likewise */
    _Atomic uint64_t is_made; /* 1: the runner is there, or err says why not */
    _Atomic bool is_lost;     /* the engine does not wait for it any more */
    _Alignas(64) _Atomic uint64_t n_done;
};

struct rank_group {
    struct step_runner base;         /* first member */
    const struct rank_sources *from; /* while it is made */
    uint32_t n_rank;
    struct rank *ranks; /* [n_rank] */
    bool spins;
    uint32_t patience_ms;     /* of the engine, for a rank that does not move */
    struct block_ring blocks; /* the ranks' rings are where it is, once all commands are done */
    uint32_t n_peer;          /* ranks of a stage */
    uint32_t n_stage;         /* that run here */
    bool is_staged;           /* the model has several */
    struct stage_net *net;    /* to other hosts' stages; NULL: all are here */
    struct stage_hop *hops[PARALLEL_STAGES_MAX + 1]; /* [i]: before stage i of those here, and
                                                        [n_stage] behind them; NULL at the model's
                                                        ends */
    void *rooms[PARALLEL_STAGES_MAX + 1];            /* of the hops, which borrow them */
    uint32_t block;                                  /* of stages: of the step that is written */
    struct {
        uint64_t n; /* commands up to its wait */
        uint32_t block;
    } flights[PARALLEL_STAGES_MAX]; /* of stages: n_flight steps under way, oldest first */
    uint32_t n_flight;
    bool is_filling;    /* pages have gone out since the ranks were waited for */
    uint64_t n_filling; /* commands up to the last one of these */
    struct command ring[RING];
    uint32_t n_lane_rank; /* ranks of a lane; 1: there is none, or each is one */
    struct step *steps;   /* [RING][n_lane] of lanes: instead of the commands' */
    void **step_hosts;    /* [RING][n_lane] of lanes of several ranks: their blocks likewise */
    _Alignas(64) _Atomic uint64_t n_told;
    pthread_mutex_t lock;
    pthread_cond_t told;
    pthread_cond_t done;
    _Atomic bool has_fault; /* fault is whole */
    char fault[320];
};

static struct rank_group *group_of(struct step_runner *r)
{
    return (struct rank_group *)r;
}

/* ---- the ring ------------------------------------------------------------------------------- */

static bool reached(const _Atomic uint64_t *number, uint64_t n)
{
    return atomic_load_explicit(number, memory_order_acquire) >= n;
}

/* Waits until *number is n or more; who raises it signals `changed`. */
static void await(struct rank_group *g, const _Atomic uint64_t *number, uint64_t n,
                  pthread_cond_t *changed)
{
    if (g->spins && !reached(number, n)) {
        uint64_t end_ns = clock_now_ns() + SPIN_NS;
        while (!reached(number, n) && clock_now_ns() < end_ns) {
        }
    }
    if (reached(number, n)) return;
    pthread_mutex_lock(&g->lock);
    while (!reached(number, n)) pthread_cond_wait(changed, &g->lock);
    pthread_mutex_unlock(&g->lock);
}

static void raise_to(struct rank_group *g, _Atomic uint64_t *number, uint64_t n,
                     pthread_cond_t *changed)
{
    pthread_mutex_lock(&g->lock);
    atomic_store_explicit(number, n, memory_order_release);
    pthread_cond_broadcast(changed);
    pthread_mutex_unlock(&g->lock);
}

static uint64_t progress(const struct step_runner *base);

/* One look of LOOK_MS; under the lock. */
static void look(struct rank_group *g)
{
    uint64_t ns = clock_now_ns() + (uint64_t)LOOK_MS * 1000000;
    struct timespec end = {.tv_sec = (time_t)(ns / 1000000000), .tv_nsec = (long)(ns % 1000000000)};
    (void)pthread_cond_timedwait(&g->done, &g->lock, &end);
}

/* Under the lock: rank r stays away, in command n_done. */
static void lose(struct rank *r, uint64_t n_done, uint64_t waited_ms)
{
    struct rank_group *g = r->group;
    atomic_store(&r->is_lost, true);
    if (atomic_load(&g->has_fault)) return;
    snprintf(g->fault, sizeof g->fault,
             "rank %u of %u: it did not end command %llu, %s, within %llu ms", r->i, g->n_rank,
             (unsigned long long)(n_done + 1), command_names[g->ring[n_done % RING].kind],
             (unsigned long long)waited_ms);
    atomic_store(&g->has_fault, true);
}

/* How long rank r may be still in the command that it is at. Memory of the host is taken and given
 * back without a sign of life, by calls that end, and into what is the caller's until then: that
 * has no bound, not after a fault either. A backend without progress gives none in a long step,
 * whose meetings are bounded by the ranks themselves. */
static uint64_t patience_ms(const struct rank *r, uint64_t n_done)
{
    const struct rank_group *g = r->group;
    enum command_kind kind = g->ring[n_done % RING].kind;
    if (kind == COMMAND_ALLOC || kind == COMMAND_RELEASE) return UINT64_MAX;
    if (atomic_load(&g->has_fault)) return FAREWELL_MS;
    return r->backend->ops->progress ? g->patience_ms : (uint64_t)LOAD_PATIENCE_S * 1000;
}

/* Waits until rank r is done with n commands, or lost. */
static void await_rank(struct rank_group *g, struct rank *r, uint64_t n)
{
    if (g->spins && !reached(&r->n_done, n)) {
        uint64_t end_ns = clock_now_ns() + SPIN_NS;
        while (!reached(&r->n_done, n) && clock_now_ns() < end_ns) {
        }
    }
    if (reached(&r->n_done, n) || atomic_load(&r->is_lost)) return;
    uint64_t moved = progress(&g->base), since_ns = clock_now_ns(), was_done = 0;
    bool had_fault = false;
    pthread_mutex_lock(&g->lock);
    while (!reached(&r->n_done, n) && !atomic_load(&r->is_lost)) {
        look(g);
        bool has_fault = atomic_load(&g->has_fault);
        uint64_t n_done = atomic_load(&r->n_done), p = progress(&g->base);
        uint64_t now_ns = clock_now_ns();
        bool moves = n_done != was_done || (!has_fault && p != moved);
        if (moves || has_fault != had_fault) since_ns = now_ns;
        had_fault = has_fault;
        was_done = n_done;
        moved = p;
        uint64_t waited_ms = (now_ns - since_ns) / 1000000;
        if (n_done < n && waited_ms > patience_ms(r, n_done)) lose(r, n_done, waited_ms);
    }
    pthread_mutex_unlock(&g->lock);
}

/* Lanes' steps and blocks, as command n's. */
static void put_lanes(struct rank_group *g, uint64_t n, const struct step *steps)
{
    const uint32_t n_lane = g->base.n_lane;
    step_runner_put_lanes(&g->steps[n % RING * n_lane], steps, n_lane);
    memcpy(&g->step_hosts[n % RING * n_lane], g->base.hosts, n_lane * sizeof *g->step_hosts);
}

/* steps: a launch's or draw's, as many as there are lanes; else NULL. */
static void tell_steps(struct rank_group *g, const struct command *c, const struct step *steps)
{
    uint64_t n = atomic_load(&g->n_told);
    for (uint32_t i = 0; n >= RING && i < g->n_rank; i++) await_rank(g, &g->ranks[i], n - RING + 1);
    g->ring[n % RING] = *c;
    if (steps && g->steps)
        put_lanes(g, n, steps);
    else if (steps)
        g->ring[n % RING].step = *steps;
    raise_to(g, &g->n_told, n + 1, &g->told);
}

static void tell(struct rank_group *g, const struct command *c)
{
    tell_steps(g, c, NULL);
}

/* A rank's error where there is one: its own before one that it has from a peer. */
static fathom_err error_of(const struct rank_group *g)
{
    fathom_err err = FATHOM_OK;
    for (uint32_t i = 0; i < g->n_rank; i++) {
        const struct rank *r = &g->ranks[i];
        fathom_err e = atomic_load(&r->is_lost) ? FATHOM_EPEER : r->err;
        if (e && (!err || err == FATHOM_EPEER)) err = e;
    }
    return err;
}

/* Waits until all ranks are done with what has been told. */
static fathom_err await_all(struct rank_group *g)
{
    uint64_t n = atomic_load(&g->n_told);
    for (uint32_t i = 0; i < g->n_rank; i++) await_rank(g, &g->ranks[i], n);
    return error_of(g);
}

/* Tells a command and waits until all ranks are done with it. */
static fathom_err ask(struct rank_group *g, const struct command *c)
{
    tell(g, c);
    return await_all(g);
}

/* ---- a rank's thread ------------------------------------------------------------------------ */

/* No stage waits for another one any more. */
static void break_hops(struct rank_group *g)
{
    ASSERT(atomic_load(&g->has_fault));
    for (uint32_t i = 0; i <= g->n_stage; i++) {
        if (g->hops[i]) stage_hop_break(g->hops[i], g->fault);
    }
    if (g->net) stage_net_break(g->net, g->fault);
}

/* The first rank that fails by itself is the fault; peers that it leaves alone say so only where
 * no rank has failed, such as one that does not come. */
static void note_fault(struct rank *r, fathom_err err)
{
    struct rank_group *g = r->group;
    r->err = err;
    pthread_mutex_lock(&g->lock); /* until the fault is whole: peers are told under it */
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
        atomic_store(&g->has_fault, true);
    } else if (r->backend->ops->abandon) {
        r->backend->ops->abandon(r->backend);
    }
    pthread_mutex_unlock(&g->lock);
    break_hops(g);
}

/* A step is over for this rank. A net that is broken is no error of it: who waits is told. */
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
    await(g, &g->n_told, n + 1, &g->told);
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
        raise_to(g, &r->n_done, n + 1, &g->done);
        if (c.kind == COMMAND_END) return;
    }
}

/* After each layer: no rank begins the next one before all have read this one. Rank 0 tells how far
 * loading is. */
static void end_layer(void *arg, uint64_t done_bytes, uint64_t total_bytes)
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

static void *rank_main(void *arg)
{
    struct rank *r = arg;
    char name[16];
    snprintf(name, sizeof name, "rank %u", r->i);
    os_name_thread(name);
    r->err = make_runner(r);
    if (r->err) host_rank_break(&r->load);
    raise_to(r->group, &r->is_made, 1, &r->group->done);
    if (r->runner) obey(r);
    return NULL;
}

/* ---- what the engine calls ------------------------------------------------------------------ */

static fathom_err bind(struct step_runner *base)
{
    (void)base; /* the ranks' threads are the ranks' */
    return FATHOM_OK;
}

static fathom_err launch(struct step_runner *base, const struct step *step)
{
    struct rank_group *g = group_of(base);
    const struct command c = {
        .kind = COMMAND_LAUNCH, .host = g->steps ? NULL : base->host, .block = g->block};
    for (uint32_t i = 1; i < base->n_lane; i++) ASSERT(step[i].pass == step->pass);
    tell_steps(g, &c, step);
    return FATHOM_OK;
}

static fathom_err draw(struct step_runner *base, const struct step *step)
{
    struct rank_group *g = group_of(base);
    struct command c = {
        .kind = COMMAND_DRAW, .host = g->steps ? NULL : base->host, .block = g->block};
    if (!g->is_staged) block_ring_draw(&g->blocks);
    tell_steps(g, &c, step);
    if (!g->is_staged) return FATHOM_OK;
    ASSERT(g->n_flight < base->max_flight);
    c.kind = COMMAND_WAIT;
    tell_steps(g, &c, step);
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
    tell(g, &c);
}

static void use_block(struct step_runner *base, uint32_t i)
{
    struct rank_group *g = group_of(base);
    ASSERT(g->is_staged && i < base->max_flight);
    for (uint32_t k = 0; k < g->n_flight; k++) ASSERT(g->flights[k].block != i);
    g->block = i;
    show_block(g);
}

/* Of stages, for the last one here. Errors are those of any: who waits for a rank that has failed
 * fails too. */
static fathom_err wait_for_last(struct rank_group *g, struct step_result *out)
{
    const uint64_t n = g->flights[0].n;
    const uint32_t block = g->flights[0].block, first = g->n_rank - g->n_peer;
    ASSERT(g->n_flight > 0);
    for (uint32_t i = first; i < g->n_rank; i++) await_rank(g, &g->ranks[i], n);
    if (atomic_load(&g->has_fault)) {
        const fathom_err err = await_all(g);
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
    TRY(ask(g, &c));
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

/* The command's page: of all ranks of a stage or lane alike, of which one copies it out. */
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
    tell(g, &c);
    g->n_filling = atomic_load(&g->n_told);
    return FATHOM_OK;
}

static fathom_err sync_ranks(struct step_runner *base)
{
    struct rank_group *g = group_of(base);
    const struct command c = {.kind = COMMAND_SYNC};
    TRY(ask(g, &c));
    g->is_filling = false;
    return FATHOM_OK;
}

/* One device copies in order; of several, one may still fill what another one reads. */
static fathom_err page_in(void *runner, uint32_t page, const void *from)
{
    struct rank_group *g = runner;
    struct command c = {.kind = COMMAND_PAGE_IN, .from = from};
    name_page(g, &c, page);
    if (g->is_filling) TRY(sync_ranks(&g->base));
    tell(g, &c);
    return FATHOM_OK;
}

static fathom_err alloc_host(struct step_runner *base, size_t bytes, void **out, fathom_diag *d)
{
    struct rank_group *g = group_of(base);
    fathom_err err = FATHOM_EPEER; /* stays where rank 0 is lost */
    const struct command c = {
        .kind = COMMAND_ALLOC, .bytes = bytes, .to = out, .err = &err, .diag = d};
    (void)ask(g, &c);
    if (err == FATHOM_EPEER) FAIL(d, err, "%s", fault(base));
    return err;
}

static bool has_lost(const struct rank_group *g)
{
    bool lost = false;
    for (uint32_t i = 0; i < g->n_rank; i++) lost |= atomic_load(&g->ranks[i].is_lost);
    return lost;
}

/* A rank that is lost may still copy from or to it. */
static void release_host(struct step_runner *base, void *p)
{
    const struct command c = {.kind = COMMAND_RELEASE, .to = p};
    if (!has_lost(group_of(base))) (void)ask(group_of(base), &c);
}

/* Every rank is idle when it is renewed, and all are before any gets work. */
static fathom_err renew(struct step_runner *base)
{
    struct rank_group *g = group_of(base);
    const struct command c = {.kind = COMMAND_RENEW};
    const fathom_err err = await_all(g);
    if (has_lost(g) || (err && err != FATHOM_EPEER)) return err;
    pthread_mutex_lock(&g->lock);
    atomic_store(&g->has_fault, false);
    g->fault[0] = '\0';
    pthread_mutex_unlock(&g->lock);
    for (uint32_t i = 0; i <= g->n_stage; i++) {
        if (g->hops[i]) stage_hop_renew(g->hops[i]);
    }
    TRY(ask(g, &c));
    g->blocks.i = 0;
    g->blocks.n_drawn = 0;
    g->block = 0;
    g->n_flight = 0;
    g->is_filling = false;
    show_block(g);
    return FATHOM_OK;
}

static int by_size(const void *a, const void *b)
{
    const uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
    return (x > y) - (x < y);
}

/* What the last steps have cost the ranks' threads; on a CPU that is the step itself. */
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

/* When no rank copies from or to them any more. */
static void free_rooms(struct rank_group *g)
{
    for (uint32_t i = 0; i <= g->n_stage; i++) {
        if (!g->rooms[i]) continue;
        (void)await_all(g);
        release_host(&g->base, g->rooms[i]);
    }
}

/* Threads end before runners go: a peer's memory stays until nobody reads it. */
static void destroy(struct step_runner *base)
{
    struct rank_group *g = group_of(base);
    if (!g) return;
    const struct command end = {.kind = COMMAND_END};
    free_rooms(g);
    tell(g, &end);
    for (uint32_t i = 0; i < g->n_rank; i++) {
        if (g->ranks[i].runner) await_rank(g, &g->ranks[i], atomic_load(&g->n_told));
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
        r->settings.loading.on_load = end_layer;
        r->settings.loading.on_load_arg = r;
    }
    *out = g;
    return FATHOM_OK;
}

/* Ranks are of lanes where requests are cut; before commands are told. */
static fathom_err make_lanes(struct rank_group *g, const struct memory_plan *plan, fathom_diag *d)
{
    const struct parallel *p = &g->from->settings->place.parallel;
    if (p->dp.size <= 1 || g->n_rank == 1) return FATHOM_OK;
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

/* The ways between the stages, and at the edges to those of other hosts; before ranks are told
 * anything. */
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
        struct parallel p = r->settings.place.parallel;
        const uint32_t i_stage = i / g->n_peer;
        r->stage = (struct runner_stage){g->hops[i_stage], g->hops[i_stage + 1], r->peer};
        for (p.pp.rank = 0; p.pp.rank < r->settings.place.parallel.pp.rank; p.pp.rank++) {
            struct kv_layout part;
            stages_layout(&part, g->from->config, s->limits.kv_type, s->limits.with_mtp, &p);
            r->record_offset += part.page_bytes;
        }
    }
    return FATHOM_OK;
}

/* Rooms of the hops, which devices read and write fast; when the ranks' runners are there. */
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

/* Every rank loads, in its thread; its error is the group's, its own before a peer's. The wait for
 * them has no bound: what a load waits for is storage and the device, whose errors end it, and its
 * peers, who are given up after LOAD_PATIENCE_S. Storage that is slow is no fault, and a signal
 * ends the process meanwhile. */
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
        r->has_thread = pthread_create(&r->thread, NULL, rank_main, r) == 0;
        if (r->has_thread) continue;
        host_rank_break(&r->load);
        r->err = diag_fail(&r->diag, FATHOM_EIO, "its thread cannot be started");
        atomic_store(&r->is_made, 1);
    }
    for (uint32_t i = 0; i < g->n_rank; i++) {
        struct rank *r = &g->ranks[i];
        await(g, &r->is_made, 1, &g->done);
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
