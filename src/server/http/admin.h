/* admin.h - a socket file for the operator, apart from the port for requests
 *
 * The file has mode 0600: the file system says who may open it, so there are no keys. HTTP is
 * spoken on it: curl --unix-socket PATH http://fathom/state. Its actions stand in one table in
 * admin.c and in docs/security.md.
 */
#ifndef FATHOM_SERVER_HTTP_ADMIN_H
#define FATHOM_SERVER_HTTP_ADMIN_H

#include "server/http/route.h"

struct admin;
struct server_claim;

/* admin_open - listen on the claim's socket, on a thread of its own
 *
 *   claim  its socket is taken over, after an error too
 *   stop   is called with arg when the server is to stop
 * Errors  EIO: the thread cannot be started; ENOMEM. */
fathom_err admin_open(struct admin **out, const struct route_env *env, struct server_claim *claim,
                      void (*stop)(void *arg), void *arg, fathom_diag *d);

/* admin_close - ends the thread; accepts NULL */
void admin_close(struct admin *a);

#endif
