/* relay.h - a request on its way through a router: which server has it, and what has come back
 *
 *               relay_ask              head of a stream
 *   READING ------------------> ASKING -----------------> STREAMING --its end--> OVER
 *                                | ^  \--a whole answer, or nobody has one-----> OVER
 *                                | |                          |
 *           refused, or no answer+-+                          | its server is lost
 *           (another server)       ^                          v
 *                                  +------ RESUMING <---------+
 *
 *   READING    the body comes in (the HTTP thread's alone)
 *   ASKING     a server has it, and nothing of an answer has left
 *   STREAMING  what comes leaves
 *   RESUMING   another server has it, and goes on where the stream broke
 *   OVER       what there is may leave; no server has it any more
 *
 * Until something has left, a request that a server refuses or loses goes to another one, to each
 * once. A stream with a pass goes on at another server at any place (stream_follow.h).
 *
 * Where prefill is apart another server computes the prompt meanwhile, and the one that answers
 * takes its pages as they are done. If it refuses or is lost before anything has left, the request
 * is asked anew: with another one that prefills, or without.
 *
 * The connection and the calls of servers hold a reference each. Everything from `state` on is
 * under `lock`; before ASKING the HTTP thread has all of it. Locks of the pool and of the
 * upstream's mail are taken within it and last.
 */
#ifndef FATHOM_ROUTER_RELAY_H
#define FATHOM_ROUTER_RELAY_H

#include <pthread.h>
#include <stdatomic.h>
#include <sys/types.h>

#include "base/api_error.h"
#include "base/buf.h"
#include "base/stream_pass.h"
#include "router/pool.h"
#include "router/request_view.h"
#include "router/stream_follow.h"
#include "router/upstream.h"

/* What relays share. */
struct relays {
    struct pool *pool;
    struct pool_secret secret;
    uint32_t max_moves;             /* of a stream to another server */
    bool is_host;                   /* the one server is host 0, asked whatever failed before */
    atomic_uint_fast64_t n_prefill; /* prompts that another server has computed */
    atomic_uint_fast64_t n_request, n_retry, n_move, n_unserved;
    atomic_uint n_live;
};

enum relay_state { RELAY_READING, RELAY_ASKING, RELAY_STREAMING, RELAY_RESUMING, RELAY_OVER };

/* The calls of the client's side, made with the relay's lock, and none after relay_detach. */
struct relay_client {
    void (*wake)(void *arg); /* there is something to go on with */
    void *arg;
};

struct relay {
    struct relays *all;
    struct upstream *upstream; /* of the connection's thread */
    atomic_uint n_ref;
    char method[16];
    char *target;      /* path and query */
    struct buf fields; /* header lines for the server, without a pass */
    uint64_t session;  /* 0: none */
    bool may_move;     /* of a path whose streams can be resumed */
    bool is_anthropic; /* errors have Anthropic's form */
    struct buf body;
    struct request_view view;
    uint64_t *keys; /* [n_key] */
    size_t n_key;
    struct stream_pass pass;
    uint64_t start_us;

    pthread_mutex_t lock;
    enum relay_state state;
    struct relay_client client; /* valid while attached */
    bool attached;
    struct upstream_call *call; /* NULL: no server has it */
    struct pool_lease lease;    /* with call */
    struct pool_tried tried;    /* servers that failed it */
    uint32_t n_move;
    struct buf resume_body; /* what is sent, when it is not `body` */
    struct relay_prefill {
        struct upstream_call *call; /* NULL: no server computes the prompt for another one */
        struct pool_lease lease;
        struct pool_tried tried; /* those that have not computed it */
        struct buf body;
        int status;
        bool is_refused; /* it has been told that the request is wrong */
    } prefill;
    char pages_host[POOL_URL_BYTES]; /* who computes the prompt, or has; "": nobody */
    uint16_t pages_port;
    int status;
    struct api_error error; /* the answer, where no server has one */
    struct buf head;        /* header lines of the answer; to HEAD, its length too */
    struct buf out;
    bool is_late;   /* the server waits until some of `out` has left */
    bool is_broken; /* the stream ends early */
    struct stream_follow follow;
    bool follows;       /* events leave whole; else bytes pass: the server is another program */
    bool moves;         /* of a stream: its server has taken the pass, and tells tokens */
    bool gave_up;       /* nothing more is wanted of this server */
    bool asks_anew;     /* once its call has ended: the pages that it waits for do not come */
    struct buf refusal; /* the answer of a server that is full, should no other have one */
    struct buf refusal_head;
    int refusal_status; /* 0: none */
    uint32_t refusal_s; /* Retry-After */
};

enum { RELAY_OUT_BYTES = 1 << 20, RELAY_WHOLE_BYTES = 256 << 20 };

/* relay_create - for a request whose head has come; the client holds it. ENOMEM.
 *
 *   upstream  that the connection's thread runs
 *   target    path and query, copied */
fathom_err relay_create(struct relay **out, struct relays *all, struct upstream *upstream,
                        const char *method, const char *target, const struct relay_client *client);

/* relay_ask - the body is whole: choose a server and send it there. From here on the client is
 * woken when there is something to take. */
void relay_ask(struct relay *r);

/* What the client's side does next. */
enum relay_answer { RELAY_WAIT, RELAY_STREAM, RELAY_WHOLE, RELAY_ERROR };

/* relay_take - what there is to answer with
 *
 *   status, head  set for STREAM and WHOLE; head is borrowed until relay_detach
 *   body          of WHOLE, moved to the caller
 *   error         set for ERROR: no server has answered */
enum relay_answer relay_take(struct relay *r, int *status, const struct buf **head,
                             struct buf *body, struct api_error *error);

/* relay_read - bytes of a stream: 1 to max; 0: none yet; RELAY_END; RELAY_BROKEN */
enum { RELAY_END = -1, RELAY_BROKEN = -2 };
ssize_t relay_read(struct relay *r, char *bytes, size_t max);

/* relay_detach - the client is gone or has its answer: a call under way is given up. Drops the
 * client's reference. */
void relay_detach(struct relay *r);

#endif
