/* claim.h - what a server takes of the machine before there is a model to serve
 *
 * Loading takes minutes, so what can be known before is known before: a claim binds the sockets,
 * opens the access log, checks the certificates and sets up what sends traces. Clients are refused
 * until the server listens.
 * A claim outlives the server that was made with it, and what the options point to outlives the
 * claim. It is written by the thread that makes it and, within server_create, by the server.
 */
#ifndef FATHOM_SERVER_HTTP_CLAIM_H
#define FATHOM_SERVER_HTTP_CLAIM_H

#include <stdint.h>

#include "fathom/err.h"
#include "server/server_options.h"

struct server_claim {
    int listen_fd;                  /* bound; -1: its owner is who listens on it */
    int admin_fd;                   /* likewise; -1 without --admin-socket, too */
    int inner_fd;                   /* likewise, for other hosts of the model; -1: there are none */
    uint16_t port;                  /* of listen_fd; 0 on a socket file */
    uint16_t inner_port;            /* of inner_fd; 0: none */
    const char *uds, *admin_socket; /* our files, removed at the end; NULL: none */
    struct access_log *access_log;  /* NULL: none */
    struct trace_exporter *traces;  /* likewise */
};

/* claim_take - claim_take(&c->listen_fd): the caller closes that socket from now on */
int claim_take(int *fd);

#endif
