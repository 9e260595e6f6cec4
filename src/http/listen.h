/* listen.h - sockets that wait for connections
 *
 *   (none) --listen_bind_*--> BOUND --listen_begin--> LISTENING
 *
 *   BOUND      the address is this process's and no other can have it; clients are refused
 *   LISTENING  the system takes connections
 */
#ifndef FATHOM_HTTP_LISTEN_H
#define FATHOM_HTTP_LISTEN_H

#include <stdbool.h>
#include <stdint.h>

#include "fathom/err.h"

/* listen_bind_tcp - the first address of `host` that can be had
 *
 *   port  0: any free one
 *   fd, out_port  the socket and its port; the caller closes it
 * Errors  EINVAL: host is no address of this machine. EIO: the port is taken, no permission. */
fathom_err listen_bind_tcp(const char *host, uint16_t port, int *fd, uint16_t *out_port,
                           fathom_diag *d);

/* listen_bind_unix - a socket file that only this user may open (mode 0600)
 *
 * A socket file that no process has any more is replaced.
 * Errors  EINVAL: the path is too long for a socket. EIO: another process has it, the path is no
 *         socket, or it cannot be made. */
fathom_err listen_bind_unix(const char *path, int *fd, fathom_diag *d);

/* listen_begin - take connections on a socket that is bound
 * Errors  EIO. */
fathom_err listen_begin(int fd, fathom_diag *d);

/* listen_is_on_loopback - the socket's address is one that only this machine reaches */
bool listen_is_on_loopback(int fd);

#endif
