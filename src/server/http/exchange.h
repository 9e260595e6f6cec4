/* exchange.h - what a request on a connection means
 *
 * One exchange is one request and its answer:
 *
 *   (head) --> RECEIVING --body complete--> answered at once  (models, health, errors)
 *                                      \--> job --> answered  (chats, completions)
 *   answered, or the connection is gone --> job_detach, log line, free
 *
 * The body is read to its end before a reply, so that the connection can be kept. A body that
 * announces too many bytes, or waits to be asked for and is not wanted, is refused unread.
 */
#ifndef FATHOM_SERVER_HTTP_EXCHANGE_H
#define FATHOM_SERVER_HTTP_EXCHANGE_H

#include "http/connection.h"
#include "http/port.h"
#include "server/http/route.h"

/* What all exchanges of a port share; fixed. */
struct exchange_env {
    struct route_env routes;
    struct port_rules port;
    struct access_log *access_log; /* NULL: none */
    bool is_inner; /* other hosts hand on what their clients ask, by a host_pass.h; names and
                      certificates of clients are theirs to look at */
};

/* exchange_ops - for connections whose arg is a struct exchange_env */
extern const struct connection_ops exchange_ops;

#endif
