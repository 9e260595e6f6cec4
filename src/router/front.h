/* front.h - the router's port: what it answers itself, and what it passes on
 *
 *   GET  /health, /healthcheck, /ready   200 while a server is up, else 503
 *   GET  /load                           requests under way
 *   GET  /metrics                        figures of the router, in Prometheus' form
 *   GET  /instances                      the servers and what is known of them
 *   POST /instances/add, /remove         {"url": "http://host:port"}, or {"instances": [...]};
 *                                        "type": "prefill": servers that compute prompts
 *
 * Everything else goes to a server, with the headers of the client.
 *
 * Of a host of a model everything goes to host 0, these paths too, with a pass (host_pass.h). What
 * it refuses itself it refuses as host 0 would.
 */
#ifndef FATHOM_ROUTER_FRONT_H
#define FATHOM_ROUTER_FRONT_H

#include "http/connection.h"
#include "http/port.h"
#include "router/relay.h"

/* Whether a host of a model has somewhere to hand requests on to. */
enum { FRONT_TEXT_BYTES = 600 };
struct front_host {
    char url[POOL_URL_BYTES]; /* the pool's only server; "": none. Of who sets it */
    pthread_mutex_t lock;     /* of what follows */
    bool has_host_0;
    char text[FRONT_TEXT_BYTES]; /* a host's pass, or why there is no host 0 */
};

/* front_host_init - no host 0; front_host_fini accepts a zeroed struct
 * front_host_set - from now on */
void front_host_init(struct front_host *h);
void front_host_fini(struct front_host *h);
void front_host_set(struct front_host *h, bool has_host_0, const char *text);

struct front {
    struct relays *relays;
    struct front_host *host; /* NULL: a router of servers */
    const char *admin_key;   /* NULL: none */
    struct port_rules port;
    atomic_bool draining;
    atomic_size_t held_bytes; /* of bodies */
};

/* The exchanges of the port's connections; their arg is a struct front. */
extern const struct connection_ops front_ops;

#endif
