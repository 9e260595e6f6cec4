/* loop.h - threads that take connections from a listening socket and serve them
 *
 * Each thread has an epoll of its own for the connections that it has taken. The first one sweeps
 * the gate every 250 ms.
 */
#ifndef FATHOM_HTTP_LOOP_H
#define FATHOM_HTTP_LOOP_H

#include "fathom/err.h"
#include "http/connection.h"

struct loop;

/* What else a thread does, when `fd` can be read, or at latest after wait_ms: it may wake the
 * thread's connections, and their calls may give it something to do, which is done before the
 * thread waits. */
struct loop_guest {
    int fd;
    void *arg;                       /* connection_guest */
    int (*wait_ms)(const void *arg); /* 0: at once */
    void (*run)(void *arg, bool has_events);
};

struct loop_setup {
    const char *name; /* of the threads; at most 15 characters */
    uint32_t n_thread;
    int listen_fd; /* borrowed, does not block */
    struct gate *gate;
    struct tls *tls;                 /* NULL: none */
    const struct loop_guest *guests; /* [n_thread]; NULL: none */
    const struct connection_ops *ops;
    void *arg;
};

/* loop_open - start the threads; what the setup points to outlives them
 * Errors  EIO: no handle or no thread; ENOMEM. */
fathom_err loop_open(struct loop **out, const struct loop_setup *setup, fathom_diag *d);

/* loop_close - ends all connections, and the threads; accepts NULL. What the system has taken of an
 * answer is still sent.
 * Needs   nobody else who could wake a connection once its exchange has ended. */
void loop_close(struct loop *l);

#endif
