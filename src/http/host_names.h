/* host_names.h - may a server be asked by this name?
 *
 * A web page can have its own name lead to 127.0.0.1 and so ask what listens there as if that were
 * its own server. It cannot choose the name that the browser tells: so on loopback, and wherever
 * there is a list of names, only addresses, localhost, the server's host and the list are taken.
 */
#ifndef FATHOM_HTTP_HOST_NAMES_H
#define FATHOM_HTTP_HOST_NAMES_H

#include <stdbool.h>
#include <stddef.h>

/* Texts are borrowed. */
struct host_names {
    const char *host;           /* that it listens on; NULL: none */
    const char *const *allowed; /* [n_allowed] other names of it; "*": all */
    size_t n_allowed;
    bool on_loopback; /* the port is reached from this machine alone */
};

/* host_names_take - whether the server may be asked so
 *
 *   host  with or without a port; NULL: none is told, which is taken */
bool host_names_take(const struct host_names *h, const char *host);

#endif
