/* zmq.h - what is used of ZeroMQ, whose library is opened at run time
 *
 * Nothing of it is there when the program is built: the entry points and numbers are declared here,
 * and have been the same since libzmq 4.2.
 *
 * Source  libzmq 4.2, manual pages */
#ifndef FATHOM_COMM_ZMQ_H
#define FATHOM_COMM_ZMQ_H

#include <stddef.h>

#include "fathom/err.h"

enum { ZMQ_PUB = 1, ZMQ_ROUTER = 6 };       /* kinds of sockets */
enum { ZMQ_POLLIN = 1 };                    /* of struct zmq_item */
enum { ZMQ_DONTWAIT = 1, ZMQ_SNDMORE = 2 }; /* of zmq_send and zmq_recv */
enum {                                      /* options; values are int where nothing is said */
       ZMQ_RCVMORE = 13,
       ZMQ_LINGER = 17,
       ZMQ_MAXMSGSIZE = 22, /* int64_t */
       ZMQ_SNDHWM = 23,
       ZMQ_ROUTER_MANDATORY = 33,
       ZMQ_TCP_KEEPALIVE = 34,
       ZMQ_TCP_KEEPALIVE_IDLE = 36, /* seconds */
       ZMQ_IPV6 = 42
};

struct zmq_item {
    void *socket; /* NULL: fd */
    int fd;
    short events, revents;
};

/* The entry points, as libzmq calls them. */
struct zmq_api {
    void *(*zmq_ctx_new)(void);
    int (*zmq_ctx_term)(void *context);
    void *(*zmq_socket)(void *context, int kind);
    int (*zmq_close)(void *socket);
    int (*zmq_setsockopt)(void *socket, int option, const void *value, size_t n);
    int (*zmq_getsockopt)(void *socket, int option, void *value, size_t *n);
    int (*zmq_bind)(void *socket, const char *endpoint);
    int (*zmq_connect)(void *socket, const char *endpoint);
    int (*zmq_send)(void *socket, const void *bytes, size_t n, int flags);
    int (*zmq_recv)(void *socket, void *bytes, size_t n, int flags);
    int (*zmq_poll)(struct zmq_item *items, int n, long timeout_ms);
    int (*zmq_errno)(void);
    const char *(*zmq_strerror)(int number);
};

/* zmq_load - the library, which stays
 * Errors  EUNSUPPORTED: it is not there, or lacks an entry point. */
fathom_err zmq_load(struct zmq_api *out, fathom_diag *d);

#endif
