/* supervisor.h - what a service manager gives a service, and what it is told
 *
 * systemd's protocol, which others speak too: datagrams to a socket file, and sockets that were
 * bound before the process began. None of it is needed: all zero is a process that nobody watches.
 */
#ifndef FATHOM_HTTP_SUPERVISOR_H
#define FATHOM_HTTP_SUPERVISOR_H

#include <stdint.h>

#include "fathom/err.h"

struct supervisor {
    const char *notify_socket; /* $NOTIFY_SOCKET; NULL: nobody wants to know */
    uint64_t watchdog_us; /* $WATCHDOG_USEC: the process ends when it is silent so long; 0: no */
    unsigned n_socket;    /* $LISTEN_FDS: sockets from descriptor 3 on */
};

/* supervisor_tell - "READY=1\nSTATUS=serving": lines of sd_notify(3). What cannot be told is not:
 * the manager's patience ends then. From any thread.
 * Cost    a system call. */
void supervisor_tell(const struct supervisor *s, const char *lines);

/* supervisor_take_socket - the one socket that was handed over, ready for listen_begin
 *
 *   fd, port  the caller closes it; port 0: of a socket file
 * Errors  EINVAL: more than one was handed over, or it is no stream socket. */
fathom_err supervisor_take_socket(const struct supervisor *s, int *fd, uint16_t *port,
                                  fathom_diag *d);

#endif
