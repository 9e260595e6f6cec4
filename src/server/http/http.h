/* http.h - the port: its sockets, its certificates, its threads
 *
 * The folder from the ground up: head.h and chunk.h read requests, gate.h counts connections,
 * connection.h turns bytes into requests and answers into bytes, loop.h has the threads,
 * exchange.h says what a request means, and routes.h which there are.
 */
#ifndef FATHOM_SERVER_HTTP_HTTP_H
#define FATHOM_SERVER_HTTP_HTTP_H

#include "server/http/route.h"

struct http;
struct server_claim;

/* http_open - listen and start the HTTP threads
 *
 *   env    copied; its parts outlive http_close
 *   claim  its socket is taken over, after an error too; its access log is borrowed
 * Errors  EINVAL (certificate), EIO, ENOMEM. */
fathom_err http_open(struct http **out, const struct route_env *env, struct server_claim *claim,
                     fathom_diag *d);

/* http_set_certificates - connections from now on get these; those that are open keep theirs
 *
 *   certificate, key  PEM texts, borrowed
 *   client_ca  NULL: clients are asked for no certificate
 * Errors  EINVAL: one is no PEM, the key belongs to another certificate, or the port is one without
 *         TLS; ENOMEM. Then nothing has changed. */
fathom_err http_set_certificates(struct http *h, const char *certificate, const char *key,
                                 const char *client_ca, fathom_diag *d);

/* http_close - close everything; accepts NULL. Connections are taken until then. */
void http_close(struct http *h);

#endif
