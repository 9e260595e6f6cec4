/* host_group.c - a barrier that can break, and the meetings made of it
 *
 *   lock     guards all but what is said otherwise
 *   epoch    meetings and partings that are over; read without the lock by who waits
 *   places   of the ranks that have come; compared when the last one comes
 *   shown    written by a rank before it comes, read by all between host_meet and host_part
 *   net      swaps under the lock, when all ranks of this process have come
 *   fault    written once, before is_broken
 */
#define _GNU_SOURCE
#include "backend/host_group.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "base/assert.h"
#include "base/clock.h"
#include "base/fail.h"
#include "base/mem.h"
#include "base/os.h"

enum { SPIN_NS = 20000 };

/* struct rank_waits, as it grows; each rank writes its own. */
struct waits {
    _Alignas(64) _Atomic uint64_t n;
    _Atomic uint64_t ns;
};

struct host_group {
    pthread_mutex_t lock;
    pthread_cond_t turned; /* an epoch is over, or the group is broken */
    uint32_t n_rank;
    uint32_t name0, n_name; /* what messages call rank i: name0 + i of n_name */
    uint32_t first;         /* ranks first .. first + n_local - 1 are of this process */
    uint32_t n_local;
    struct host_net *net; /* NULL: they are all */
    uint32_t n_member;    /* ranks that have not left */
    uint32_t n_come;
    bool spins;
    uint64_t patience_us;
    _Atomic uint64_t epoch;
    _Atomic bool is_broken;
    char fault[192];
    struct host_place *places; /* [n_rank] */
    uint64_t *came;            /* [n_rank] epochs that each has come to */
    const void **shown;        /* [n_rank] */
    struct waits *waits;       /* [n_rank] */
};

static void group_free(struct host_group *g)
{
    if (!g) return;
    mem_free(g->places);
    mem_free(g->came);
    mem_free(g->shown);
    mem_free(g->waits);
    mem_free(g);
}

fathom_err host_group_create(struct host_rank *const *r, uint32_t n_local, struct host_net *net,
                             uint64_t patience_us, fathom_diag *d)
{
    const uint32_t n = net ? net->n_rank : n_local;
    const uint32_t first = net ? net->first : 0;
    ASSERT(n_local >= 1 && patience_us > 0 && first + n_local <= n);
    ASSERT(!net || net->n_local == n_local);
    struct host_group *g = mem_calloc(1, sizeof *g);
    if (g) {
        g->places = mem_calloc(n, sizeof *g->places);
        g->came = mem_calloc(n, sizeof *g->came);
        g->shown = mem_calloc(n, sizeof *g->shown);
        g->waits = mem_alloc_aligned(64, n * sizeof *g->waits);
    }
    if (!g || !g->places || !g->came || !g->shown || !g->waits) {
        group_free(g);
        FAIL(d, FATHOM_ENOMEM, "no memory for a group of %u ranks", n);
    }
    memset(g->waits, 0, n * sizeof *g->waits);
    pthread_condattr_t attr;
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_mutex_init(&g->lock, NULL);
    pthread_cond_init(&g->turned, &attr);
    pthread_condattr_destroy(&attr);
    g->n_rank = g->n_name = n;
    g->first = first;
    g->n_local = n_local;
    g->net = net;
    g->n_member = n_local;
    g->spins = os_n_cpu() >= n_local;
    g->patience_us = patience_us;
    for (uint32_t i = 0; i < n_local; i++) {
        ASSERT(!r[i]->group);
        *r[i] = (struct host_rank){.group = g, .rank = first + i, .n_rank = n};
    }
    return FATHOM_OK;
}

/* Under the lock. The first fault stays. */
static void break_group(struct host_group *g, const char *fault)
{
    if (atomic_load(&g->is_broken)) return;
    snprintf(g->fault, sizeof g->fault, "%s", fault);
    atomic_store(&g->is_broken, true);
    pthread_cond_broadcast(&g->turned);
}

void host_rank_renew(struct host_rank *r)
{
    struct host_group *g = r->group;
    if (!g) return;
    pthread_mutex_lock(&g->lock);
    atomic_store(&g->is_broken, false);
    atomic_store(&g->epoch, 0);
    g->n_come = 0;
    g->fault[0] = '\0';
    memset(g->came, 0, g->n_rank * sizeof *g->came);
    pthread_mutex_unlock(&g->lock);
}

void host_rank_break(struct host_rank *r)
{
    struct host_group *g = r->group;
    char fault[160];
    if (!g) return;
    pthread_mutex_lock(&g->lock);
    const struct host_place *place = &g->places[r->rank];
    int n =
        snprintf(fault, sizeof fault, "rank %u of %u has failed", g->name0 + r->rank, g->n_name);
    if (place->op)
        snprintf(fault + n, sizeof fault - (size_t)n, " after %s of layer %u, epoch %llu",
                 place->op, place->layer, (unsigned long long)atomic_load(&g->epoch));
    break_group(g, fault);
    pthread_mutex_unlock(&g->lock);
}

struct host_net *host_rank_net(const struct host_rank *r)
{
    return r->group ? r->group->net : NULL;
}

void host_rank_leave(struct host_rank *r)
{
    struct host_group *g = r->group;
    if (!g) return;
    char fault[64];
    snprintf(fault, sizeof fault, "rank %u of %u has ended", g->name0 + r->rank, g->n_name);
    r->group = NULL;
    pthread_mutex_lock(&g->lock);
    ASSERT(g->n_member >= 1);
    bool is_last = --g->n_member == 0;
    break_group(g, fault);
    pthread_mutex_unlock(&g->lock);
    if (!is_last) return;
    pthread_cond_destroy(&g->turned);
    pthread_mutex_destroy(&g->lock);
    group_free(g);
}

const char *host_rank_fault(const struct host_rank *r)
{
    return r->group && atomic_load(&r->group->is_broken) ? r->group->fault : "";
}

void host_rank_waits(const struct host_rank *r, struct rank_waits *out)
{
    *out = (struct rank_waits){0};
    if (!r->group) return;
    const struct waits *w = &r->group->waits[r->rank];
    out->n = atomic_load_explicit(&w->n, memory_order_relaxed);
    out->ns = atomic_load_explicit(&w->ns, memory_order_relaxed);
}

/* ---- waiting ---- */

/* Under the lock, when the last rank has come. */
static void check_places(struct host_group *g)
{
    const struct host_place *first = &g->places[g->first];
    for (uint32_t i = g->first + 1; i < g->first + g->n_local; i++) {
        const struct host_place *p = &g->places[i];
        bool same =
            p->layer == first->layer && p->n_row == first->n_row && p->n_bytes == first->n_bytes;
        if (same && strcmp(p->op, first->op) == 0) continue;
        char fault[192];
        snprintf(fault, sizeof fault,
                 "rank %u of %u is at %s of layer %u with %u rows, rank %u at %s of layer %u with "
                 "%u rows",
                 g->name0 + g->first, g->n_name, first->op, first->layer, first->n_row,
                 g->name0 + i, p->op, p->layer, p->n_row);
        break_group(g, fault);
        return;
    }
}

/* Under the lock: names a rank that has not come to this epoch. */
static void give_up(struct host_group *g, const struct host_rank *r, uint64_t epoch)
{
    uint32_t missing = g->first;
    while (missing + 1 < g->first + g->n_local && g->came[missing] > epoch) missing++;
    const struct host_place *place = &g->places[r->rank];
    char fault[192];
    snprintf(fault, sizeof fault,
             "rank %u of %u did not come to %s of layer %u, epoch %llu, within %llu ms: rank %u "
             "waited",
             g->name0 + missing, g->n_name, place->op, place->layer, (unsigned long long)epoch,
             (unsigned long long)(g->patience_us / 1000), g->name0 + r->rank);
    break_group(g, fault);
}

static struct timespec deadline_of(const struct host_group *g)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    uint64_t ns = (uint64_t)t.tv_nsec + g->patience_us % 1000000 * 1000;
    t.tv_sec += (time_t)(g->patience_us / 1000000 + ns / 1000000000);
    t.tv_nsec = (long)(ns % 1000000000);
    return t;
}

static bool is_over(const struct host_group *g, uint64_t epoch)
{
    return atomic_load_explicit(&g->epoch, memory_order_acquire) != epoch;
}

/* Until the epoch is over or the group broken. */
static void wait_for_others(struct host_rank *r, uint64_t epoch)
{
    struct host_group *g = r->group;
    const uint64_t start_ns = clock_now_ns();
    if (g->spins) {
        while (!is_over(g, epoch) && clock_now_ns() < start_ns + SPIN_NS) {
        }
    }
    if (!is_over(g, epoch)) {
        struct timespec deadline = deadline_of(g);
        pthread_mutex_lock(&g->lock);
        while (!is_over(g, epoch) && !atomic_load(&g->is_broken)) {
            if (pthread_cond_timedwait(&g->turned, &g->lock, &deadline)) give_up(g, r, epoch);
        }
        pthread_mutex_unlock(&g->lock);
    }
    struct waits *w = &g->waits[r->rank];
    atomic_fetch_add_explicit(&w->n, 1, memory_order_relaxed);
    atomic_fetch_add_explicit(&w->ns, clock_now_ns() - start_ns, memory_order_relaxed);
}

/* Under the lock, when the last rank of this process has come to a meeting. */
static void swap(struct host_group *g)
{
    char fault[192] = "";
    const struct host_place *place = &g->places[g->first];
    if (!g->net || atomic_load(&g->is_broken)) return;
    ASSERT(place->n_bytes > 0);
    const fathom_err err = g->net->swap(g->net, place, g->shown, fault, sizeof fault);
    if (err) break_group(g, fault[0] ? fault : fathom_err_text(err));
}

/* Waits until all ranks have come to the epoch that is under way. */
static fathom_err come(struct host_rank *r, bool to_meet)
{
    struct host_group *g = r->group;
    pthread_mutex_lock(&g->lock);
    uint64_t epoch = atomic_load(&g->epoch);
    g->came[r->rank] = epoch + 1;
    if (++g->n_come == g->n_local && !atomic_load(&g->is_broken)) {
        check_places(g);
        if (to_meet) swap(g);
        g->n_come = 0;
        atomic_store_explicit(&g->epoch, epoch + 1, memory_order_release);
        pthread_cond_broadcast(&g->turned);
    }
    bool wait = !is_over(g, epoch);
    pthread_mutex_unlock(&g->lock);
    if (wait) wait_for_others(r, epoch);
    return atomic_load(&g->is_broken) ? FATHOM_EPEER : FATHOM_OK;
}

fathom_err host_meet(struct host_rank *r, const struct host_place *place, const void *own,
                     const void *const **all)
{
    ASSERT(r->group && place->op && own);
    r->group->places[r->rank] = *place;
    r->group->shown[r->rank] = own;
    *all = r->group->shown;
    return come(r, true);
}

fathom_err host_part(struct host_rank *r)
{
    ASSERT(r->group);
    return come(r, false);
}

/* ---- both memberships ---- */

/* The ranks of one lane, which messages call by their numbers among all. */
static fathom_err join_lane(struct host_rank *const *sums, const struct parallel *p, uint32_t i,
                            uint64_t patience_us, fathom_diag *d)
{
    TRY(host_group_create(sums, p->tp.size, NULL, patience_us, d));
    struct host_group *g = sums[0]->group;
    g->name0 = i;
    g->n_name = parallel_n_peer(p);
    return FATHOM_OK;
}

fathom_err host_join(struct backend *const *b, uint32_t n, const struct backend_config *c,
                     struct host_peers *(*peers_of)(struct backend *b), fathom_diag *d)
{
    struct host_rank *sums[PARALLEL_RANKS_MAX], *experts[PARALLEL_RANKS_MAX];
    const struct parallel *p = &c->parallel;
    const uint64_t patience_us =
        (uint64_t)(c->patience_ms ? c->patience_ms : RANK_PATIENCE_MS) * 1000;
    const uint32_t first = parallel_peer(p), n_lane_rank = p->tp.size;
    ASSERT(n >= 1 && n <= PARALLEL_RANKS_MAX);
    for (uint32_t i = 0; i < n; i++) {
        sums[i] = &peers_of(b[i])->sums;
        experts[i] = &peers_of(b[i])->experts;
    }
    if (p->dp.size <= 1) return host_group_create(sums, n, c->net, patience_us, d);
    ASSERT(n % n_lane_rank == 0 && first % n_lane_rank == 0);
    for (uint32_t i = 0; n_lane_rank > 1 && i + n_lane_rank <= n; i += n_lane_rank)
        TRY(join_lane(sums + i, p, first + i, patience_us, d));
    return host_group_create(experts, n, c->net, patience_us, d);
}

void host_peers_leave(struct host_peers *p)
{
    host_rank_leave(&p->sums);
    host_rank_leave(&p->experts);
}

void host_peers_renew(struct host_peers *p)
{
    host_rank_renew(&p->sums);
    host_rank_renew(&p->experts);
}

void host_peers_break(struct host_peers *p)
{
    host_rank_break(&p->sums);
    host_rank_break(&p->experts);
}

const char *host_peers_fault(const struct host_peers *p)
{
    const char *fault = host_rank_fault(&p->sums);
    return fault[0] ? fault : host_rank_fault(&p->experts);
}

void host_peers_waits(const struct host_peers *p, struct rank_waits *out)
{
    struct rank_waits experts;
    host_rank_waits(&p->sums, out);
    host_rank_waits(&p->experts, &experts);
    out->n += experts.n;
    out->ns += experts.ns;
}

/* ---- meetings ---- */

void host_sum_row(float *restrict sum, const float *const *parts, uint32_t n_part, uint32_t n)
{
    ASSERT(n_part >= 1);
    memcpy(sum, parts[0], n * sizeof *sum);
    for (uint32_t p = 1; p < n_part; p++) {
        const float *restrict part = parts[p];
        for (uint32_t i = 0; i < n; i++) sum[i] += part[i];
    }
}

fathom_err host_gather_logits(struct host_rank *r, const float *own, size_t stride, uint32_t n_col,
                              uint32_t n_row, float *logits, size_t logit_stride)
{
    const struct host_place place = {
        .op = "head", .n_row = n_row, .n_bytes = n_row * stride * sizeof *own};
    const void *const *all;
    ASSERT(n_col <= stride);
    TRY(host_meet(r, &place, own, &all));
    for (uint32_t i = r->rank; i < n_row; i += r->n_rank) {
        ASSERT(logit_row_owner(i, r->n_rank) == r->rank);
        for (uint32_t k = 0; k < r->n_rank; k++) {
            memcpy(logits + i * logit_stride + (size_t)k * n_col,
                   (const float *)all[k] + i * stride, n_col * sizeof *logits);
        }
    }
    return host_part(r);
}

/* One array of values of 4 bytes, `width` to a row, each row from its owner. */
static fathom_err share_array(struct host_rank *r, const struct sample_args *a, void *own,
                              uint32_t width)
{
    const size_t row_bytes = 4 * (size_t)width;
    const struct host_place place = {
        .op = "sample", .n_row = a->n_row, .n_bytes = a->n_row * row_bytes};
    const void *const *all;
    TRY(host_meet(r, &place, own, &all));
    for (uint32_t i = 0; i < a->n_row; i++) {
        const uint32_t owner = logit_row_owner(a->rows[i].logit_row, r->n_rank);
        if (owner == r->rank) continue;
        memcpy((char *)own + i * row_bytes, (const char *)all[owner] + i * row_bytes, row_bytes);
    }
    return host_part(r);
}

/* Over several processes, array by array. */
static fathom_err share_arrays(struct host_rank *r, const struct sample_args *a)
{
    bool any_top = false;
    for (uint32_t i = 0; i < a->n_row; i++) any_top |= a->rows[i].n_top > 0;
    TRY(share_array(r, a, a->ids, 1));
    TRY(share_array(r, a, a->logprobs, 1));
    TRY(share_array(r, a, a->ranks, 1));
    if (!any_top) return FATHOM_OK;
    TRY(share_array(r, a, a->top_ids, SAMPLE_TOP_MAX));
    return share_array(r, a, a->top_logprobs, SAMPLE_TOP_MAX);
}

fathom_err host_share_draws(struct host_rank *r, const struct sample_args *a)
{
    if (r->group->net) return share_arrays(r, a);
    const struct host_place place = {.op = "sample", .n_row = a->n_row};
    const void *const *all;
    TRY(host_meet(r, &place, a, &all));
    for (uint32_t i = 0; i < a->n_row; i++) {
        uint32_t owner = logit_row_owner(a->rows[i].logit_row, r->n_rank);
        if (owner == r->rank) continue;
        const struct sample_args *from = all[owner];
        size_t top = (size_t)i * SAMPLE_TOP_MAX;
        a->ids[i] = from->ids[i];
        a->logprobs[i] = from->logprobs[i];
        a->ranks[i] = from->ranks[i];
        memcpy(a->top_ids + top, from->top_ids + top, a->rows[i].n_top * sizeof *a->top_ids);
        memcpy(a->top_logprobs + top, from->top_logprobs + top,
               a->rows[i].n_top * sizeof *a->top_logprobs);
    }
    return host_part(r);
}
