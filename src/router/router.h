/* router.h - many servers behind one address
 *
 * All is done by the HTTP threads: each reads requests, chooses their servers, speaks to these,
 * writes what comes back and moves streams (relay.h). So a token passes through one thread, which
 * is woken once. The first one looks at the servers too; names that stand for servers have a thread
 * of their own.
 *
 * The folder from the ground up: request_view.h looks at a body, prefix_table.h remembers what was
 * sent where, choice.h chooses, pool.h knows the servers, discover.h finds them, upstream.h speaks
 * to them, stream_follow.h notes what has left, relay.h is a request on its way, look.h looks at
 * servers, front.h is the port.
 */
#ifndef FATHOM_ROUTER_ROUTER_H
#define FATHOM_ROUTER_ROUTER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/stream_pass.h"
#include "fathom/err.h"
#include "http/tls.h"
#include "router/choice.h"

/* What it points to is borrowed and outlives the router. */
struct router_options {
    const char *host;
    uint16_t port;                    /* 0: one that is free (router_port tells) */
    const char *const *allowed_hosts; /* names of it: http/host_names.h */
    size_t n_allowed_host;
    const char *root_path; /* of a host, as the next three: as in port_rules */
    const char *const *origins;
    size_t n_origin;
    bool allow_credentials;
    const char *const *servers; /* addresses, or names of discover.h; more may come while it runs */
    size_t n_server;
    const char *const *prefills; /* servers that compute prompts for those */
    size_t n_prefill;
    enum choice_policy policy;
    struct pool_secret secret;
    const char *server_key; /* API key with which servers are looked at; NULL: none */
    const char *admin_key;  /* to add and remove servers from afar; NULL: from this machine alone */
    struct tls_setup tls;
    bool insecure;                              /* certificates of servers are not checked */
    const char *ca_path, *cert_path, *key_path; /* as in dial_setup */
    uint32_t look_ms;                           /* between looks at a server */
    uint32_t max_moves;                         /* of a stream */
    uint32_t max_connections;
    uint32_t n_http_thread;
    uint32_t drain_timeout_ms; /* how long requests may go on after a stop */
    bool is_host; /* a host of a model, whose requests all go to host 0: see router_follow */
};

struct router;

/* router_open - listen and start the threads
 * Errors  EINVAL: an address, a certificate; EIO: the port, a thread; ENOMEM. */
FATHOM_MUST_CHECK fathom_err router_open(struct router **out, const struct router_options *o,
                                         fathom_diag *d);

/* router_port - the TCP port it listens on */
uint16_t router_port(const struct router *r);

/* router_run - wait for router_stop; then requests may end, up to drain_timeout_ms or a second stop
 * router_stop - from any thread, and from a signal handler */
void router_run(struct router *r);
void router_stop(struct router *r);

/* router_follow - of a host: where requests go from now on
 *
 *   url   of host 0's inner port; NULL: nowhere, they are answered 503
 *   text  what HOST_PASS_HEADER says with each; or why there is none, told to clients
 * One thread at a time. */
FATHOM_MUST_CHECK fathom_err router_follow(struct router *r, const char *url, const char *text,
                                           fathom_diag *d);

/* router_drain - new requests are answered 503 from now on; any thread */
void router_drain(struct router *r);

/* router_set_certificates - connections from now on begin with these; with options.tls alone
 * Errors  those of tls_replace: nothing has changed. */
FATHOM_MUST_CHECK fathom_err router_set_certificates(struct router *r, const struct tls_texts *t,
                                                     fathom_diag *d);

/* router_close - end what still runs; accepts NULL. After router_run, or in its place. */
void router_close(struct router *r);

#endif
