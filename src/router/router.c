/* router.c - opens and closes a router */
#include "router/router.h"

#include <errno.h>
#include <semaphore.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/fail.h"
#include "base/limits.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/os.h"
#include "http/gate.h"
#include "http/listen.h"
#include "http/loop.h"
#include "router/discover.h"
#include "router/front.h"
#include "router/look.h"

enum {
    PREFIX_KEYS = 1 << 18, /* 64 MB of prompts */
    PREFIX_KEYS_HOST = 64, /* of a host, which has one to choose from */
    CONNECT_MS = 2000,
    RESERVED_FILES = 512,
    DRAIN_STEP_US = 20000,
};

struct router {
    struct router_options o;
    struct pool *pool;
    struct discover *discover;
    struct looks *looks;
    struct upstream **upstreams; /* [n_http_thread], as the guests of these */
    struct loop_guest *guests;
    struct relays relays;
    struct front front;
    struct front_host host; /* of a host */
    struct gate *gate;
    struct tls *tls;
    struct loop *loop;
    int listen_fd;
    uint16_t port;
    sem_t stop; /* a post for each router_stop */
};

static void tick(void *arg, struct upstream *u)
{
    looks_tick(arg, u);
}

/* A request takes a file here and one at its server. */
static void raise_file_limit(const struct router_options *o)
{
    uint64_t need = 2ull * o->max_connections + RESERVED_FILES;
    uint64_t allowed = os_allow_files(need);
    if (allowed == 0 || allowed >= need) return;
    LOG_WARN("router",
             "at most %llu open files are allowed (ulimit -n), and %u connections need "
             "%llu",
             (unsigned long long)allowed, o->max_connections, (unsigned long long)need);
}

static fathom_err open_pool(struct router *r, fathom_diag *d)
{
    TRY(pool_create(&r->pool, r->o.policy, r->o.is_host ? PREFIX_KEYS_HOST : PREFIX_KEYS));
    TRY(discover_create(&r->discover, r->pool));
    for (size_t i = 0; i < r->o.n_server + r->o.n_prefill; i++) {
        bool prefills = i >= r->o.n_server;
        const char *url = prefills ? r->o.prefills[i - r->o.n_server] : r->o.servers[i];
        if (discover_is_name(url)) {
            TRY(discover_add(r->discover, url, prefills, d));
        } else {
            TRY(prefills ? pool_add_prefill(r->pool, url, d) : pool_add(r->pool, url, d));
        }
    }
    return looks_create(&r->looks, r->pool, r->o.server_key);
}

static int wait_ms(const void *arg)
{
    return upstream_wait_ms(arg);
}

static void run(void *arg, bool has_events)
{
    upstream_run(arg, has_events);
}

static fathom_err open_upstreams(struct router *r, fathom_diag *d)
{
    struct upstream_setup setup = {.tick_ms = r->o.look_ms,
                                   .tick = tick,
                                   .arg = r->looks,
                                   .dial = {.insecure = r->o.insecure,
                                            .ca_path = r->o.ca_path,
                                            .cert_path = r->o.cert_path,
                                            .key_path = r->o.key_path,
                                            .connect_timeout_ms = CONNECT_MS}};
    r->upstreams = mem_calloc(r->o.n_http_thread, sizeof(struct upstream *));
    r->guests = mem_calloc(r->o.n_http_thread, sizeof *r->guests);
    if (!r->upstreams || !r->guests) return FATHOM_ENOMEM;
    for (uint32_t i = 0; i < r->o.n_http_thread; i++) {
        if (i > 0 || r->o.is_host) setup.tick = NULL; /* host 0 tells how it is by answering */
        TRY(upstream_open(&r->upstreams[i], &setup, d));
        r->guests[i] = (struct loop_guest){.fd = upstream_fd(r->upstreams[i]),
                                           .arg = r->upstreams[i],
                                           .wait_ms = wait_ms,
                                           .run = run};
    }
    return FATHOM_OK;
}

static fathom_err open_port(struct router *r, fathom_diag *d)
{
    const struct gate_limits limits = {.max_connections = r->o.max_connections,
                                       .head_timeout_ms = LIMIT_HTTP_HEAD_MS,
                                       .idle_timeout_ms = LIMIT_HTTP_IDLE_MS,
                                       .body_timeout_ms = LIMIT_HTTP_BODY_MS,
                                       .unread_timeout_ms = LIMIT_HTTP_UNREAD_MS,
                                       .max_unread_bytes = LIMIT_HTTP_UNREAD_BYTES};
    TRY(gate_create(&r->gate, &limits));
    r->front.port.gate = r->gate;
    TRY(listen_begin(r->listen_fd, d));
    const struct loop_setup setup = {.name = "http",
                                     .n_thread = r->o.n_http_thread,
                                     .listen_fd = r->listen_fd,
                                     .gate = r->gate,
                                     .tls = r->tls,
                                     .guests = r->guests,
                                     .ops = &front_ops,
                                     .arg = &r->front};
    return loop_open(&r->loop, &setup, d);
}

static fathom_err open_all(struct router *r, fathom_diag *d)
{
    TRY(tls_create(&r->tls, &r->o.tls, d));
    TRY(listen_bind_tcp(r->o.host, r->o.port, &r->listen_fd, &r->port, d));
    TRY(open_pool(r, d));
    raise_file_limit(&r->o);
    TRY(open_upstreams(r, d));
    r->relays.pool = r->pool;
    r->relays.secret = r->o.secret;
    r->relays.max_moves = r->o.max_moves;
    r->relays.is_host = r->o.is_host;
    r->front.relays = &r->relays;
    r->front.admin_key = r->o.admin_key;
    r->front.host = r->o.is_host ? &r->host : NULL;
    r->front.port =
        (struct port_rules){.names = {r->o.host, r->o.allowed_hosts, r->o.n_allowed_host,
                                      listen_is_on_loopback(r->listen_fd)},
                            .root_path = r->o.root_path,
                            .origins = r->o.origins,
                            .n_origin = r->o.n_origin,
                            .allow_credentials = r->o.allow_credentials};
    TRY(discover_start(r->discover, d));
    return open_port(r, d);
}

fathom_err router_open(struct router **out, const struct router_options *o, fathom_diag *d)
{
    struct router *r = mem_calloc(1, sizeof *r);
    *out = NULL;
    if (!r) return FATHOM_ENOMEM;
    r->o = *o;
    r->listen_fd = -1;
    (void)sem_init(&r->stop, 0, 0);
    front_host_init(&r->host);
    fathom_err err = open_all(r, d);
    if (err) {
        router_close(r);
        return err;
    }
    *out = r;
    return FATHOM_OK;
}

uint16_t router_port(const struct router *r)
{
    return r->port;
}

fathom_err router_set_certificates(struct router *r, const struct tls_texts *t, fathom_diag *d)
{
    return tls_replace(r->tls, t, d);
}

fathom_err router_follow(struct router *r, const char *url, const char *text, fathom_diag *d)
{
    char *was = r->host.url;
    if (was[0]) TRY(pool_remove(r->pool, was, d));
    was[0] = '\0';
    if (url) {
        TRY(pool_add(r->pool, url, d));
        (void)snprintf(was, sizeof r->host.url, "%s", url);
    }
    front_host_set(&r->host, url != NULL, text);
    return FATHOM_OK;
}

void router_stop(struct router *r)
{
    (void)sem_post(&r->stop);
}

void router_drain(struct router *r)
{
    atomic_store(&r->front.draining, true);
}

void router_run(struct router *r)
{
    while (sem_wait(&r->stop) != 0) { /* a signal */
    }
    router_drain(r);
    uint64_t end_us = clock_now_us() + (uint64_t)r->o.drain_timeout_ms * 1000;
    while (atomic_load(&r->relays.n_live) > 0 && clock_now_us() < end_us) {
        if (sem_trywait(&r->stop) == 0) return;
        clock_sleep_us(DRAIN_STEP_US);
    }
}

/* Clients first: their relays give up what servers still do for them. */
void router_close(struct router *r)
{
    if (!r) return;
    loop_close(r->loop);
    for (uint32_t i = 0; r->upstreams && i < r->o.n_http_thread; i++) {
        upstream_close(r->upstreams[i]);
    }
    mem_free(r->upstreams);
    mem_free(r->guests);
    looks_destroy(r->looks);
    discover_destroy(r->discover);
    pool_destroy(r->pool);
    gate_destroy(r->gate);
    tls_destroy(r->tls);
    if (r->listen_fd >= 0) (void)close(r->listen_fd);
    (void)sem_destroy(&r->stop);
    front_host_fini(&r->host);
    mem_free(r);
}
