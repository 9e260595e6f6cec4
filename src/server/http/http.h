/* http.h - the port: listening, connections, request bodies, replies
 *
 * Only files of this folder know libmicrohttpd: http.c, tls.c and admin.c.
 *
 * One exchange is one request on a connection:
 *
 *   (headers) --> RECEIVING --body complete--> answered at once        (models, health, errors)
 *                                         \--> job, suspended --> answered   (chats, completions)
 *   answered --> MHD tells completion --> end_exchange: job_detach, log line, free
 *
 * The body is read to its end before a reply, so that the connection can be kept. A body that
 * announces too many bytes is refused unread.
 */
#ifndef FATHOM_SERVER_HTTP_HTTP_H
#define FATHOM_SERVER_HTTP_HTTP_H

#include "server/http/route.h"

struct http;
struct server_claim;

/* http_open - listen and start the HTTP threads
 *
 *   env    copied; its parts outlive http_close
 *   claim  its socket is taken over, its access log borrowed until http_close
 * Errors  EINVAL (certificate), EIO, ENOMEM; the socket then stays the claim's. */
fathom_err http_open(struct http **out, const struct route_env *env, struct server_claim *claim,
                     fathom_diag *d);

/* http_set_certificates - connections from now on begin with these PEM texts, borrowed for the call
 *
 *   ca_pem  NULL: no certificate is asked of clients
 * Errors  EINVAL, EUNSUPPORTED, ENOMEM: the old ones stay. */
fathom_err http_set_certificates(struct http *h, const char *cert_pem, const char *key_pem,
                                 const char *ca_pem, fathom_diag *d);

/* http_close - close everything; accepts NULL
 *
 * Connections are taken until then: MHD_quiesce_daemon races with the threads of its own pool,
 * which ends the process.
 * Needs   no connection suspended, and none that could be. */
void http_close(struct http *h);

#endif
