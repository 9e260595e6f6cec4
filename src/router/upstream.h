/* upstream.h - requests to servers, and what comes back
 *
 *   upstream_send --> ASKED --the answer's head--> head --> body ... --> end
 *                       |                                    |
 *                       +--no connection, it broke, upstream_cancel--> end
 *
 * One belongs to one thread, which runs it (http/loop.h) and makes all calls. Those of
 * upstream_ops come from upstream_run, never from within another call; `end` exactly once and last.
 * Between `head` and `end` what is not wanted yet may be left (UPSTREAM_LATER): then the server's
 * bytes wait in its socket, and so the server, until upstream_go_on.
 */
#ifndef FATHOM_ROUTER_UPSTREAM_H
#define FATHOM_ROUTER_UPSTREAM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/buf.h"
#include "fathom/err.h"
#include "router/dial.h"

struct upstream;
struct upstream_call;

enum upstream_take { UPSTREAM_TAKEN, UPSTREAM_LATER, UPSTREAM_STOP };

struct upstream_ops {
    /* What can be sent at once of the request has been. NULL: nobody is told. */
    void (*begun)(void *arg);
    /* The head of the answer has come.
     *   fields  header lines as they came, each ended by CR LF, without the status line */
    void (*head)(void *arg, int status, const struct buf *fields);
    enum upstream_take (*body)(void *arg, const char *bytes, size_t n);
    /* Nothing has come for 10 s: whether its server is lost, which ends it; asked at each tick.
     * NULL: it never is. */
    bool (*lost)(void *arg);
    /* ok: the answer came whole; cause: why not */
    void (*end)(void *arg, bool ok, const char *cause);
};

struct upstream_request {
    const char *method;
    const char *url;    /* whole; or without a path, and "*" behind it */
    const char *name;   /* that the server's certificate must have; "": the URL's host */
    const char *fields; /* header lines, each ended by CR LF; copied */
    const char *body;   /* [n_body]; borrowed until the end */
    size_t n_body;
    uint32_t timeout_ms; /* of all of it; 0: none */
    const struct upstream_ops *ops;
    void *arg;
};

/* upstream_open; upstream_close - every call ends; accepts NULL
 *
 *   tick, arg  called every tick_ms; NULL: not
 * Errors  EIO, ENOMEM. */
struct upstream_setup {
    uint32_t tick_ms;
    void (*tick)(void *arg, struct upstream *u);
    void *arg;
    struct dial_setup dial;
};
fathom_err upstream_open(struct upstream **out, const struct upstream_setup *setup, fathom_diag *d);
void upstream_close(struct upstream *u);

/* upstream_fd - can be read when there is something to run for
 * upstream_wait_ms - it shall be run then at the latest
 * upstream_run - begin, go on with and end calls; has_events: upstream_fd can be read */
int upstream_fd(const struct upstream *u);
int upstream_wait_ms(const struct upstream *u);
void upstream_run(struct upstream *u, bool has_events);

/* upstream_send - it begins in the next run; *out is valid until `end`
 * Errors  ENOMEM: no call of ops comes. */
fathom_err upstream_send(struct upstream *u, const struct upstream_request *r,
                         struct upstream_call **out);

/* upstream_cancel, upstream_go_on - in the next run; before `end`
 * upstream_take_time - its timeout_ms is over with the head; within `head` */
void upstream_cancel(struct upstream_call *c);
void upstream_go_on(struct upstream_call *c);
void upstream_take_time(struct upstream_call *c);

#endif
