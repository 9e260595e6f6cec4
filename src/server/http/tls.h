/* tls.h - certificates: checked before the server starts, and of clients */
#ifndef FATHOM_SERVER_HTTP_TLS_H
#define FATHOM_SERVER_HTTP_TLS_H

#include "fathom/err.h"
#include "server/server_options.h"

struct MHD_Connection;

/* tls_check - can the options' PEM texts be served? A certificate that has ended or soon will is
 * told in the log.
 * Errors  EINVAL: one is no PEM, the key belongs to another certificate; ENOMEM. */
fathom_err tls_check(const struct server_options *o, fathom_diag *d);

/* tls_client_is_known - may this connection ask? Always, unless client certificates are asked for.
 * Cost  a verification, some 0.1 ms. */
bool tls_client_is_known(const struct server_options *o, struct MHD_Connection *c);

#endif
