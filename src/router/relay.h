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
 *   READING    the body is being read; only the HTTP thread has the relay
 *   ASKING     a server has the request, and nothing has been sent to the client yet
 *   STREAMING  what the server sends goes to the client
 *   RESUMING   another server has the request, to go on where the stream broke
 *   OVER       no server has the request any more; the rest of `out` may still go to the client
 *
 * Until something has been sent to the client, a request that a server refuses or loses goes to
 * another server, to each server once. A stream with a pass can go on at another server from any
 * token on (stream_follow.h).
 *
 * With disaggregated prefill one server computes the prompt, and the one that answers takes its
 * pages as they are done. If the first refuses or is lost before anything has been sent to the
 * client, the request is sent anew: with another server that prefills, or without one.
 *
 * The connection and each call to a server hold a reference. Everything from `state` on is under
 * `lock`; before ASKING the HTTP thread has it alone. The pool's lock is taken while this one is
 * held, never the other way round.
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
    uint32_t max_moves;             /* how often a stream may go on at another server */
    bool is_host;                   /* this is a host's port: the only server is host 0 */
    atomic_uint_fast64_t n_prefill; /* prompts that another server has computed */
    atomic_uint_fast64_t n_request, n_retry, n_move, n_unserved;
    atomic_uint n_live;
};

enum relay_state { RELAY_READING, RELAY_ASKING, RELAY_STREAMING, RELAY_RESUMING, RELAY_OVER };

/* How a relay calls its client's side: with the relay's lock held, and not after relay_detach. */
struct relay_client {
    void (*wake)(void *arg); /* relay_take or relay_read has something new */
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
    bool may_move;     /* streams of this path can be resumed */
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
    struct upstream_call *call; /* the request at the server that answers; NULL: no server has it */
    struct pool_lease lease;    /* of that server; valid with call */
    struct pool_tried tried;    /* servers that refused or lost the request */
    uint32_t n_move;            /* how often the stream went on at another server */
    struct buf resume_body;     /* the body that is sent, if it is not `body` */
    struct relay_prefill {
        struct upstream_call *call; /* the request at the server that prefills; NULL: none has it */
        struct pool_lease lease;
        struct pool_tried tried; /* servers that did not compute the prompt */
        struct buf body;
        int status;
        bool is_refused; /* a server has answered that the request is wrong: ask no other */
    } prefill;
    char pages_host[POOL_URL_BYTES]; /* where the prompt's pages are, or will be */
    uint16_t pages_port;             /* 0: no server prefills */
    int status;
    struct api_error error; /* the router's own answer, if no server has one; status 0: none */
    struct buf head;        /* header lines of the answer; for HEAD, with Content-Length */
    struct buf out;         /* bytes for the client */
    bool is_late;           /* the server is not read until a part of `out` has been sent */
    bool is_broken;         /* the stream ends before its end */
    bool is_too_large;      /* the answer, or an event of it, is larger than a relay may hold */
    struct stream_follow follow;
    bool follows;   /* the server is a fathom: whole events are sent. Else bytes, as they come */
    bool moves;     /* its server has taken the stream's pass, and tells the tokens */
    bool gave_up;   /* whatever this server still sends is dropped */
    bool asks_anew; /* when its call has ended, send it anew: its pages will not come */
    struct buf refusal; /* the best refusal so far, sent if no other server answers */
    struct buf refusal_head;
    int refusal_status; /* 0: none */
    uint32_t refusal_s; /* Retry-After */
};

enum { RELAY_OUT_BYTES = 1 << 20, RELAY_WHOLE_BYTES = 256 << 20 };

/* relay_create - for a request whose head has been read; the client holds a reference. ENOMEM.
 *
 *   upstream  the one that the connection's thread runs
 *   target    path and query, copied */
fathom_err relay_create(struct relay **out, struct relays *all, struct upstream *upstream,
                        const char *method, const char *target, const struct relay_client *client);

/* relay_ask - the body is whole: choose a server and send the request there. From now on the client
 * is woken when there is something to take. */
void relay_ask(struct relay *r);

/* What the client's side does next. */
enum relay_answer { RELAY_WAIT, RELAY_STREAM, RELAY_WHOLE, RELAY_ERROR };

/* relay_take - the answer, as far as it is known
 *
 *   status, head  set for STREAM and WHOLE; head is borrowed until relay_detach
 *   body          set for WHOLE: moved to the caller
 *   error         set for ERROR: no server has answered */
enum relay_answer relay_take(struct relay *r, int *status, const struct buf **head,
                             struct buf *body, struct api_error *error);

/* relay_read - bytes of a stream: 1 to max; 0: none yet; RELAY_END; RELAY_BROKEN */
enum { RELAY_END = -1, RELAY_BROKEN = -2 };
ssize_t relay_read(struct relay *r, char *bytes, size_t max);

/* relay_detach - the client has left or has its answer: calls under way are cancelled. Drops the
 * client's reference. */
void relay_detach(struct relay *r);

#endif
