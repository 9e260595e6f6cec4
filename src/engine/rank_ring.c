/* rank_ring.c - commands for ranks, and the waits for them */
#include <stdio.h>
#include <time.h>

#include "backend/backend.h"
#include "base/clock.h"
#include "engine/rank_group_int.h"

static const char *const command_names[] = {
    [COMMAND_LAUNCH] = "launch",   [COMMAND_DRAW] = "draw",         [COMMAND_NEXT_BLOCK] = "block",
    [COMMAND_WAIT] = "wait",       [COMMAND_PAGE_OUT] = "page out", [COMMAND_PAGE_IN] = "page in",
    [COMMAND_SYNC] = "sync",       [COMMAND_RENEW] = "renew",       [COMMAND_ALLOC] = "alloc",
    [COMMAND_RELEASE] = "release", [COMMAND_END] = "end",           [COMMAND_CONNECT] = "connect",
};

static bool reached(const _Atomic uint64_t *number, uint64_t n)
{
    return atomic_load_explicit(number, memory_order_acquire) >= n;
}

void rank_ring_await(struct rank_group *g, const _Atomic uint64_t *number, uint64_t n,
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

void rank_ring_raise(struct rank_group *g, _Atomic uint64_t *number, uint64_t n,
                     pthread_cond_t *changed)
{
    pthread_mutex_lock(&g->lock);
    atomic_store_explicit(number, n, memory_order_release);
    pthread_cond_broadcast(changed);
    pthread_mutex_unlock(&g->lock);
}

/* One look of LOOK_MS; under the lock. */
static void look(struct rank_group *g)
{
    uint64_t ns = clock_now_ns() + (uint64_t)LOOK_MS * 1000000;
    struct timespec end = {.tv_sec = (time_t)(ns / 1000000000), .tv_nsec = (long)(ns % 1000000000)};
    (void)pthread_cond_timedwait(&g->done, &g->lock, &end);
}

/* Under the lock: gives rank r up, which did not end command n_done. */
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

/* Whether a rank has failed, so that the process is about to end. */
static bool is_ending(const struct rank_group *g)
{
    return atomic_load(&g->has_fault) && !atomic_load(&g->is_parted);
}

/* How long rank r may show no progress in the command that it is at. Calls that take or give back
 * host memory show none, but they do end, and until then they use memory of the caller. So the wait
 * for them has no bound, not even after a fault. A backend that cannot tell its progress shows none
 * in a long step; there the ranks themselves bound the time that they wait for each other. */
static uint64_t patience_ms(const struct rank *r, uint64_t n_done)
{
    const struct rank_group *g = r->group;
    enum command_kind kind = g->ring[n_done % RING].kind;
    if (kind == COMMAND_ALLOC || kind == COMMAND_RELEASE) return UINT64_MAX;
    if (is_ending(g)) return FAREWELL_MS;
    return r->backend->ops->progress ? g->patience_ms : (uint64_t)LOAD_PATIENCE_S * 1000;
}

void rank_ring_await_rank(struct rank_group *g, struct rank *r, uint64_t n)
{
    if (g->spins && !reached(&r->n_done, n)) {
        uint64_t end_ns = clock_now_ns() + SPIN_NS;
        while (!reached(&r->n_done, n) && clock_now_ns() < end_ns) {
        }
    }
    if (reached(&r->n_done, n) || atomic_load(&r->is_lost)) return;
    uint64_t moved = g->base.ops->progress(&g->base), since_ns = clock_now_ns(), was_done = 0;
    bool was_ending = false;
    pthread_mutex_lock(&g->lock);
    while (!reached(&r->n_done, n) && !atomic_load(&r->is_lost)) {
        look(g);
        bool ends = is_ending(g);
        uint64_t n_done = atomic_load(&r->n_done), p = g->base.ops->progress(&g->base);
        uint64_t now_ns = clock_now_ns();
        bool moves = n_done != was_done || (!ends && p != moved);
        if (moves || ends != was_ending) since_ns = now_ns;
        was_ending = ends;
        was_done = n_done;
        moved = p;
        uint64_t waited_ms = (now_ns - since_ns) / 1000000;
        if (n_done < n && waited_ms > patience_ms(r, n_done)) lose(r, n_done, waited_ms);
    }
    pthread_mutex_unlock(&g->lock);
}

/* Keeps the steps and blocks of all lanes for command n. */
static void put_lanes(struct rank_group *g, uint64_t n, const struct step *steps)
{
    const uint32_t n_lane = g->base.n_lane;
    step_runner_put_lanes(&g->steps[n % RING * n_lane], steps, n_lane);
    memcpy(&g->step_hosts[n % RING * n_lane], g->base.hosts, n_lane * sizeof *g->step_hosts);
}

void rank_ring_tell_steps(struct rank_group *g, const struct command *c, const struct step *steps)
{
    uint64_t n = atomic_load(&g->n_told);
    for (uint32_t i = 0; n >= RING && i < g->n_rank; i++)
        rank_ring_await_rank(g, &g->ranks[i], n - RING + 1);
    g->ring[n % RING] = *c;
    if (steps && g->steps)
        put_lanes(g, n, steps);
    else if (steps)
        g->ring[n % RING].step = *steps;
    rank_ring_raise(g, &g->n_told, n + 1, &g->told);
}

void rank_ring_tell(struct rank_group *g, const struct command *c)
{
    rank_ring_tell_steps(g, c, NULL);
}

/* An error of some rank, if there is one; one of a rank itself before one that a peer caused. */
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

fathom_err rank_ring_await_all(struct rank_group *g)
{
    uint64_t n = atomic_load(&g->n_told);
    for (uint32_t i = 0; i < g->n_rank; i++) rank_ring_await_rank(g, &g->ranks[i], n);
    return error_of(g);
}

fathom_err rank_ring_ask(struct rank_group *g, const struct command *c)
{
    rank_ring_tell(g, c);
    return rank_ring_await_all(g);
}
