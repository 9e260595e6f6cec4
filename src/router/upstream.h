/* upstream.h - requests to servers: one thread, libcurl's multi interface and an epoll
 *
 *   upstream_send --> ASKED --the answer's head--> head --> body ... --> end
 *                       |                                    |
 *                       +--no connection, it broke, upstream_cancel--> end
 *
 * All calls of upstream_ops come from that thread, `end` exactly once and last. Between `head` and
 * `end` what is not wanted yet may be left (UPSTREAM_LATER): then the server's bytes wait in its
 * socket, and so the server, until upstream_go_on.
 */
#ifndef FATHOM_ROUTER_UPSTREAM_H
#define FATHOM_ROUTER_UPSTREAM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/buf.h"
#include "fathom/err.h"

struct upstream;
struct upstream_call;

enum upstream_take { UPSTREAM_TAKEN, UPSTREAM_LATER, UPSTREAM_STOP };

struct upstream_ops {
    /* The head of the answer has come.
     *   fields  header lines as they came, each ended by CR LF, without the status line */
    void (*head)(void *arg, int status, const struct buf *fields);
    enum upstream_take (*body)(void *arg, const char *bytes, size_t n);
    /* ok: the answer came whole; cause: why not */
    void (*end)(void *arg, bool ok, const char *cause);
};

struct upstream_request {
    const char *method;
    const char *url;    /* whole */
    const char *fields; /* header lines, each ended by CR LF; copied */
    const char *body;   /* [n_body]; borrowed until the end */
    size_t n_body;
    uint32_t timeout_ms; /* of all of it; 0: none */
    const struct upstream_ops *ops;
    void *arg;
};

/* upstream_open - start the thread; upstream_close - every call ends, then the thread; accepts NULL
 *
 *   tick, arg  called on the thread every tick_ms
 * Errors  EIO, ENOMEM. */
struct upstream_setup {
    uint32_t tick_ms;
    void (*tick)(void *arg, struct upstream *u);
    void *arg;
    bool insecure; /* certificates are not checked */
    uint32_t connect_timeout_ms;
};
fathom_err upstream_open(struct upstream **out, const struct upstream_setup *setup, fathom_diag *d);
void upstream_close(struct upstream *u);

/* upstream_send - from any thread; *out is valid until `end`
 * Errors  ENOMEM: no call of ops comes. */
fathom_err upstream_send(struct upstream *u, const struct upstream_request *r,
                         struct upstream_call **out);

/* upstream_cancel, upstream_go_on - from any thread, before `end` */
void upstream_cancel(struct upstream_call *c);
void upstream_go_on(struct upstream_call *c);

#endif
