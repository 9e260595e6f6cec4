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
 */
#ifndef FATHOM_ROUTER_FRONT_H
#define FATHOM_ROUTER_FRONT_H

#include "http/connection.h"
#include "http/host_names.h"
#include "router/relay.h"

struct front {
    struct relays *relays;
    const char *admin_key; /* NULL: none */
    struct host_names names;
    atomic_bool draining;
    atomic_size_t held_bytes; /* of bodies */
};

/* The exchanges of the port's connections; their arg is a struct front. */
extern const struct connection_ops front_ops;

#endif
