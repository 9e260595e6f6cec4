/* net.c - a communicator, and the thread that watches over it
 *
 *   lock   of all members from `state` on; fault is written once before BREAKING, and then read
 *          without it
 *   calls  held around calls that enqueue, so that none is under way when the communicator goes. A
 *          call may wait for the device, where its queue is full, and the device for a rank that is
 *          gone: then the communicator is given up beside it, which is what ends the wait
 */
#define _GNU_SOURCE
#include "backend/cuda/net.h"

#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "backend/cuda/nccl.h"
#include "backend/host_group.h"
#include "base/assert.h"
#include "base/clock.h"
#include "base/fail.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/os.h"

enum {
    WATCH_MS = 20,
    LOSS_MS = 6000,   /* for the control channel to know a host as lost that NCCL does not reach */
    CALL_MS = 2000,   /* for a call to end before the communicator goes */
    LEAVE_MS = 20000, /* for it to go */
    SPIN_US = 2000,   /* looks at NCCL before a thread sleeps between them */
    SLEEP_US = 200,
};

enum net_state { NET_PARTED, NET_CONNECTING, NET_WHOLE, NET_BREAKING, NET_BROKEN };

struct cuda_net {
    struct nccl_api api;
    struct host_rank hosts; /* meets the ranks of all hosts, to connect */
    struct host_net *net;
    uint32_t rank, world;
    uint64_t patience_ms;
    pthread_t watcher;
    bool has_watcher;
    pthread_mutex_t calls;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    enum net_state state;
    bool ends;
    struct nccl_comm *comm;
    fathom_err err; /* from BREAKING on */
    char fault[200];
};

static struct timespec after_ms(uint64_t ms)
{
    const uint64_t ns = clock_now_ns() + ms * 1000000;
    return (struct timespec){.tv_sec = (time_t)(ns / 1000000000),
                             .tv_nsec = (long)(ns % 1000000000)};
}

/* Under the lock: for a change, or so long. */
static void await_change(struct cuda_net *n, uint64_t ms)
{
    const struct timespec end = after_ms(ms);
    (void)pthread_cond_timedwait(&n->changed, &n->lock, &end);
}

/* Under the lock: the net is given up; the first reason stays. */
static void begin_break(struct cuda_net *n, fathom_err err, const char *why)
{
    if (n->state != NET_WHOLE && n->state != NET_CONNECTING) return;
    n->state = NET_BREAKING;
    n->err = err;
    (void)snprintf(n->fault, sizeof n->fault, "%s", why);
    pthread_cond_broadcast(&n->changed);
}

static enum net_state state_of(struct cuda_net *n)
{
    pthread_mutex_lock(&n->lock);
    const enum net_state state = n->state;
    pthread_mutex_unlock(&n->lock);
    return state;
}

/* ---- watching ------------------------------------------------------------------------------- */

/* Whether a host is lost, or a rank of this process has failed: why. */
static bool is_alone(struct cuda_net *n, char why[200])
{
    const char *fault = host_rank_fault(&n->hosts);
    if (n->net->is_lost(n->net, why, 200)) return true;
    if (fault[0]) (void)snprintf(why, 200, "%s", fault);
    return fault[0] != '\0';
}

/* What NCCL has found by itself: most often that a host is gone, before its control channel says
 * so. What is not known after LOSS_MS is an error of this rank's. */
static fathom_err judge(struct cuda_net *n, int result, char why[200])
{
    const uint64_t end_ns = clock_now_ns() + (uint64_t)LOSS_MS * 1000000;
    while (clock_now_ns() < end_ns) {
        if (is_alone(n, why)) return FATHOM_EPEER;
        clock_sleep_us((uint64_t)WATCH_MS * 1000);
    }
    const char *last = n->api.ncclGetLastError(NULL);
    (void)snprintf(why, 200, "NCCL: %s%s%.120s", n->api.ncclGetErrorString(result),
                   last && last[0] ? ": " : "", last ? last : "");
    return FATHOM_EDEVICE;
}

/* One look at a net that is WHOLE. */
static void look(struct cuda_net *n)
{
    char why[200] = "";
    int result = NCCL_SUCCESS;
    fathom_err err = FATHOM_OK;
    if (n->api.ncclCommGetAsyncError(n->comm, &result) != NCCL_SUCCESS) result = NCCL_SUCCESS;
    if (is_alone(n, why))
        err = FATHOM_EPEER;
    else if (result != NCCL_SUCCESS && result != NCCL_IN_PROGRESS)
        err = judge(n, result, why);
    if (!err) return;
    pthread_mutex_lock(&n->lock);
    begin_break(n, err, why);
    pthread_mutex_unlock(&n->lock);
}

/* Kernels that wait end, and the communicator goes when no recording holds it. */
static void give_up(struct cuda_net *n)
{
    const struct timespec end = after_ms(CALL_MS);
    const bool has_calls = pthread_mutex_clocklock(&n->calls, CLOCK_MONOTONIC, &end) == 0;
    const int result = n->api.ncclCommAbort(n->comm);
    if (has_calls) pthread_mutex_unlock(&n->calls);
    if (result != NCCL_SUCCESS && result != NCCL_IN_PROGRESS)
        LOG_WARN("cuda", "rank=%u NCCL: %s", n->rank, n->api.ncclGetErrorString(result));
}

static void *watch_main(void *arg)
{
    struct cuda_net *n = arg;
    os_name_thread("net");
    pthread_mutex_lock(&n->lock);
    while (!n->ends || n->state == NET_WHOLE || n->state == NET_BREAKING) {
        if (n->ends) begin_break(n, FATHOM_EPEER, "this rank has ended");
        const enum net_state state = n->state;
        pthread_mutex_unlock(&n->lock);
        if (state == NET_WHOLE) look(n);
        if (state == NET_BREAKING && n->comm) give_up(n);
        pthread_mutex_lock(&n->lock);
        if (state == NET_BREAKING) {
            n->comm = NULL;
            n->state = NET_BROKEN;
            pthread_cond_broadcast(&n->changed);
        }
        if (n->state == state && !n->ends) await_change(n, WATCH_MS);
    }
    pthread_mutex_unlock(&n->lock);
    return NULL;
}

/* ---- connecting ----------------------------------------------------------------------------- */

/* Host 0's first rank makes an id, which the control channel brings to all. */
static fathom_err share_id(struct cuda_net *n, struct nccl_id *id)
{
    const struct host_place place = {.op = "connect", .n_bytes = sizeof *id};
    const void *const *all;
    memset(id, 0, sizeof *id);
    if (n->rank == 0) {
        const int result = n->api.ncclGetUniqueId(id);
        if (result != NCCL_SUCCESS) {
            host_rank_break(&n->hosts);
            (void)snprintf(n->fault, sizeof n->fault, "NCCL: %s: %.120s",
                           n->api.ncclGetErrorString(result), n->api.ncclGetLastError(NULL));
            return FATHOM_EDEVICE;
        }
    }
    fathom_err err = host_meet(&n->hosts, &place, id, &all);
    if (!err) {
        struct nccl_id of_all;
        memcpy(&of_all, all[0], sizeof of_all);
        err = host_part(&n->hosts);
        *id = of_all;
    }
    if (err) (void)snprintf(n->fault, sizeof n->fault, "%.190s", host_rank_fault(&n->hosts));
    return err;
}

/* Until NCCL has done what it was at, which goes on beside the caller. */
static fathom_err await_nccl(struct cuda_net *n, int result, char why[200])
{
    const uint64_t start_ns = clock_now_ns(), end_ns = start_ns + n->patience_ms * 1000000;
    for (uint64_t now_ns; result == NCCL_IN_PROGRESS && (now_ns = clock_now_ns()) < end_ns;) {
        if (now_ns - start_ns > (uint64_t)SPIN_US * 1000) {
            if (is_alone(n, why)) return FATHOM_EPEER;
            clock_sleep_us(SLEEP_US);
        }
        const int asked = n->api.ncclCommGetAsyncError(n->comm, &result);
        if (asked != NCCL_SUCCESS) result = asked;
    }
    if (result == NCCL_SUCCESS) return FATHOM_OK;
    if (result != NCCL_IN_PROGRESS) return judge(n, result, why);
    (void)snprintf(why, 200, "NCCL: ranks have not come together within %llu ms",
                   (unsigned long long)n->patience_ms);
    return FATHOM_EDEVICE;
}

fathom_err net_connect(struct cuda_net *n)
{
    struct nccl_id id;
    char why[200] = "";
    const enum net_state before = state_of(n);
    if (before == NET_BREAKING || before == NET_BROKEN) return net_check(n); /* see net_renew */
    ASSERT(before == NET_PARTED && !n->comm);
    TRY(share_id(n, &id));
    struct nccl_config config = nccl_config_make();
    pthread_mutex_lock(&n->lock);
    n->state = NET_CONNECTING;
    pthread_mutex_unlock(&n->lock);
    const int result =
        n->api.ncclCommInitRankConfig(&n->comm, (int)n->world, id, (int)n->rank, &config);
    const fathom_err err = await_nccl(n, result, why);
    pthread_mutex_lock(&n->lock);
    if (err)
        begin_break(n, err, why);
    else if (n->state == NET_CONNECTING)
        n->state = NET_WHOLE;
    pthread_cond_broadcast(&n->changed);
    pthread_mutex_unlock(&n->lock);
    return net_check(n);
}

/* ---- sending -------------------------------------------------------------------------------- */

static int enqueue(struct cuda_net *n, const struct net_part *parts, uint32_t n_part, void *stream)
{
    int result = n->api.ncclGroupStart();
    for (uint32_t i = 0; i < n_part && result == NCCL_SUCCESS; i++) {
        const struct net_part *p = &parts[i];
        ASSERT(p->n > 0 && p->peer < n->world && p->peer != n->rank);
        result = p->is_send
                     ? n->api.ncclSend(p->at, p->n, NCCL_BYTES, (int)p->peer, n->comm, stream)
                     : n->api.ncclRecv(p->at, p->n, NCCL_BYTES, (int)p->peer, n->comm, stream);
    }
    const int end = n->api.ncclGroupEnd();
    return result == NCCL_SUCCESS ? end : result;
}

fathom_err net_exchange(struct cuda_net *n, const struct net_part *parts, uint32_t n_part,
                        void *stream)
{
    char why[200] = "";
    ASSERT(n_part <= NET_PARTS_MAX);
    pthread_mutex_lock(&n->calls);
    const bool is_whole = state_of(n) == NET_WHOLE;
    const int result = is_whole ? enqueue(n, parts, n_part, stream) : NCCL_SUCCESS;
    fathom_err err = result == NCCL_IN_PROGRESS ? await_nccl(n, result, why) : FATHOM_OK;
    pthread_mutex_unlock(&n->calls);
    if (result != NCCL_SUCCESS && result != NCCL_IN_PROGRESS) err = judge(n, result, why);
    if (err) {
        pthread_mutex_lock(&n->lock);
        begin_break(n, err, why);
        pthread_mutex_unlock(&n->lock);
    }
    return net_check(n);
}

fathom_err net_check(struct cuda_net *n)
{
    pthread_mutex_lock(&n->lock);
    const fathom_err err = n->state == NET_WHOLE ? FATHOM_OK : n->err ? n->err : FATHOM_EPEER;
    pthread_mutex_unlock(&n->lock);
    return err;
}

/* ---- breaking ------------------------------------------------------------------------------- */

void net_part(struct cuda_net *n)
{
    pthread_mutex_lock(&n->lock);
    begin_break(n, FATHOM_EPEER, "ranks part");
    pthread_mutex_unlock(&n->lock);
}

void net_abandon(struct cuda_net *n)
{
    host_rank_break(&n->hosts);
    net_part(n);
}

void net_renew(struct cuda_net *n)
{
    const uint64_t end_ns = clock_now_ns() + (uint64_t)LEAVE_MS * 1000000;
    pthread_mutex_lock(&n->lock);
    ASSERT(n->state != NET_WHOLE && n->state != NET_CONNECTING);
    while (n->state == NET_BREAKING && clock_now_ns() < end_ns) await_change(n, WATCH_MS);
    if (n->state == NET_BROKEN) n->state = NET_PARTED;
    if (n->state == NET_PARTED) {
        n->err = FATHOM_OK;
        n->fault[0] = '\0';
    } else {
        n->err = FATHOM_EDEVICE;
        (void)snprintf(n->fault, sizeof n->fault, "NCCL has kept its communicator for %d ms",
                       LEAVE_MS);
    }
    pthread_mutex_unlock(&n->lock);
    host_rank_renew(&n->hosts);
}

const char *net_fault(const struct cuda_net *n)
{
    return n->fault;
}

/* ---- life ----------------------------------------------------------------------------------- */

static fathom_err make(struct cuda_net **out, const struct backend_config *c, fathom_diag *d)
{
    pthread_condattr_t monotonic;
    struct cuda_net *n = mem_calloc(1, sizeof *n);
    if (!n) FAIL(d, FATHOM_ENOMEM, "no memory for the way to other hosts");
    n->net = c->net;
    n->rank = parallel_peer(&c->parallel);
    n->world = parallel_n_peer(&c->parallel);
    n->patience_ms = c->patience_ms ? c->patience_ms : RANK_PATIENCE_MS;
    pthread_mutex_init(&n->calls, NULL);
    pthread_mutex_init(&n->lock, NULL);
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_cond_init(&n->changed, &monotonic);
    pthread_condattr_destroy(&monotonic);
    *out = n;
    TRY(nccl_load(&n->api, d));
    n->has_watcher = pthread_create(&n->watcher, NULL, watch_main, n) == 0;
    if (n->has_watcher) return FATHOM_OK;
    FAIL(d, FATHOM_EIO, "the thread that watches over NCCL cannot be started");
}

fathom_err net_join(struct cuda_net **nets, const struct backend_config *const *c, uint32_t n,
                    fathom_diag *d)
{
    struct host_rank *members[PARALLEL_RANKS_MAX];
    fathom_err err = FATHOM_OK;
    ASSERT(n >= 1 && n <= PARALLEL_RANKS_MAX && c[0]->net);
    memset(nets, 0, n * sizeof *nets);
    for (uint32_t i = 0; i < n && !err; i++) {
        err = make(&nets[i], c[i], d);
        if (nets[i]) members[i] = &nets[i]->hosts;
    }
    const uint64_t patience_us = 1000ull * (err ? 0 : nets[0]->patience_ms);
    if (!err) err = host_group_create(members, n, c[0]->net, patience_us, d);
    for (uint32_t i = 0; err && i < n; i++) {
        net_leave(nets[i]);
        nets[i] = NULL;
    }
    return err;
}

void net_leave(struct cuda_net *n)
{
    if (!n) return;
    const uint64_t end_ns = clock_now_ns() + (uint64_t)LEAVE_MS * 1000000;
    pthread_mutex_lock(&n->lock);
    n->ends = true;
    pthread_cond_broadcast(&n->changed);
    while ((n->state == NET_WHOLE || n->state == NET_BREAKING) && clock_now_ns() < end_ns)
        await_change(n, WATCH_MS);
    const bool is_stuck = n->state == NET_BREAKING;
    pthread_mutex_unlock(&n->lock);
    if (is_stuck) { /* within NCCL: what it may touch stays */
        LOG_WARN("cuda", "rank=%u NCCL keeps its communicator", n->rank);
        return;
    }
    if (n->has_watcher) pthread_join(n->watcher, NULL);
    host_rank_leave(&n->hosts);
    pthread_cond_destroy(&n->changed);
    pthread_mutex_destroy(&n->lock);
    pthread_mutex_destroy(&n->calls);
    mem_free(n);
}
