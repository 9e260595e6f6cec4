/* upstream.h - requests to servers, and what comes back
 *
 *   upstream_send --> ASKED --the answer's head--> head --> body ... --> end
 *                       |                                    |
 *                       +--no connection, it broke, upstream_cancel--> end
 *
 * An upstream belongs to one thread, which runs it (http/loop.h) and makes all calls. The functions
 * of upstream_ops are called by upstream_run only, never from within another call of this header;
 * `end` is called exactly once, and last. Between `head` and `end` the owner may refuse bytes for
 * now (UPSTREAM_LATER). Then the connection is not read, and so the server has to wait, until
 * upstream_go_on.
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
    /* As much of the request as could be sent at once has been sent. NULL: not called. */
    void (*begun)(void *arg);
    /* The head of the answer has come.
     *   fields  header lines as they came, each ended by CR LF, without the status line */
    void (*head)(void *arg, int status, const struct buf *fields);
    enum upstream_take (*body)(void *arg, const char *bytes, size_t n);
    /* Nothing has come for 10 s. Returns whether the server is lost, which ends the call; called at
     * each tick. NULL: it never is. */
    bool (*lost)(void *arg);
    /* ok: the answer came whole; cause: why not */
    void (*end)(void *arg, bool ok, const char *cause);
};

struct upstream_request {
    const char *method;
    const char *url;    /* with a path, or with "*" behind the host and port */
    const char *name;   /* the name that the server's certificate must have; "": the URL's host */
    const char *fields; /* header lines, each ended by CR LF; copied */
    const char *body;   /* [n_body]; borrowed until the end */
    size_t n_body;
    uint32_t timeout_ms; /* for the whole call; 0: none */
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

/* upstream_fd - a descriptor that can be read when upstream_run has something to do
 * upstream_wait_ms - after how long upstream_run must be called at the latest
 * upstream_run - begin, go on with and end calls; has_events: upstream_fd can be read */
int upstream_fd(const struct upstream *u);
int upstream_wait_ms(const struct upstream *u);
void upstream_run(struct upstream *u, bool has_events);

/* upstream_send - begin a call in the next upstream_run; *out is valid until `end`
 * Errors  ENOMEM: then no function of ops is called. */
fathom_err upstream_send(struct upstream *u, const struct upstream_request *r,
                         struct upstream_call **out);

/* upstream_cancel, upstream_go_on - take effect in the next upstream_run; not after `end`
 * upstream_take_time - called within `head`: timeout_ms no longer applies */
void upstream_cancel(struct upstream_call *c);
void upstream_go_on(struct upstream_call *c);
void upstream_take_time(struct upstream_call *c);

#endif
