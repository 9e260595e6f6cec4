/* router.h - many servers behind one address
 *
 * The HTTP threads do everything: each reads requests, chooses servers for them, talks to these
 * servers, writes what comes back and moves streams (relay.h). So a token passes through one
 * thread, which is woken once. The first thread also looks at the servers. Another thread resolves
 * names that stand for servers (discover.h).
 *
 * The folder, from the ground up: request_view.h looks at a body, prefix_table.h remembers what was
 * sent where, choice.h chooses a server, pool.h knows the servers, discover.h finds them by name,
 * upstream.h talks to them, stream_follow.h follows a stream, relay.h is a request on its way,
 * look.h asks servers for their load, front.h is the router's port.
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
    const char *root_path; /* this and the next three: only with is_host, as in port_rules */
    const char *const *origins;
    size_t n_origin;
    bool allow_credentials;
    const char *const *servers; /* addresses, or names of discover.h; more may come while it runs */
    size_t n_server;
    const char *const *prefills; /* servers that compute prompts for the others */
    size_t n_prefill;
    enum choice_policy policy;
    struct pool_secret secret;
    const char *server_key; /* API key for looks at the servers; NULL: none */
    const char *admin_key;  /* key to add and remove servers; NULL: none, from this machine only */
    struct tls_setup tls;
    bool insecure;                              /* certificates of servers are not checked */
    const char *ca_path, *cert_path, *key_path; /* as in dial_setup */
    uint32_t look_ms;                           /* between looks at a server */
    uint32_t max_moves;                         /* how often a stream may change its server */
    uint32_t max_connections;
    uint32_t n_http_thread;
    uint32_t drain_timeout_ms; /* how long requests may go on after a stop */
    bool is_host; /* the port of a host that forwards all requests to host 0: router_follow */
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
