/* pool.h - the servers behind a router: what is known of each, and which one a request goes to
 *
 *   (none) --pool_add--> UNKNOWN --a look succeeds--> UP --a look fails--> DOWN --succeeds--> UP
 *                                                     any --pool_remove--> LEAVING --last request
 *                                                                          ends--> (none)
 *
 * A server is looked at several times a second (GET /load). Beside that each has a breaker: after
 * BREAKER_FAILURES requests in a row that failed there, it gets none for BREAKER_US, then one, and
 * that one decides, as its answer begins or it ends. From DOWN to UP closes it. Requests that were
 * under way when one failed count as that one: connections that are cut together are one failure.
 *
 * Servers have places, 0 to POOL_SERVERS_MAX - 1. A place is free again once a server that was
 * removed has no request. Any thread may call; one lock, held for as long as a choice takes.
 */
#ifndef FATHOM_ROUTER_POOL_H
#define FATHOM_ROUTER_POOL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/buf.h"
#include "fathom/err.h"
#include "router/choice.h"
#include "router/prefix_table.h"

enum {
    POOL_SERVERS_MAX = PREFIX_SERVERS_MAX,
    POOL_URL_BYTES = 256,
    POOL_WHY_BYTES = 192,
    POOL_KEYS_MAX = 4096,  /* blocks of a prompt that are looked at: 1 MB of text */
    POOL_PAGE_TOKENS = 64, /* of a page of a server's cache */
    BREAKER_FAILURES = 5,
    BREAKER_US = 30000000,
};

struct pool;

/* pool_create - no servers; pool_destroy accepts NULL
 *
 *   n_key  block keys that are remembered, a power of two
 * Errors  ENOMEM. */
fathom_err pool_create(struct pool **out, enum choice_policy policy, uint32_t n_key);
void pool_destroy(struct pool *p);

/* pool_add - a server by its address: http(s)://host[:port][/path], or host:port
 *
 * A server that is leaving stays.
 * Errors  EINVAL: no such address, or it is there already; ELIMIT: no place is free. */
fathom_err pool_add(struct pool *p, const char *url, fathom_diag *d);

/* pool_add_prefill - the same, of a server that computes prompts for the others (docs/pd.md) */
fathom_err pool_add_prefill(struct pool *p, const char *url, fathom_diag *d);

/* pool_add_named - a server at an address that a name has (discover.h), and whose certificate must
 * be of this name
 *
 *   name  "": of the address's host */
fathom_err pool_add_named(struct pool *p, const char *url, const char *name, bool prefills,
                          fathom_diag *d);

/* pool_remove - no new requests; those that it has go on
 * Errors  ENOTFOUND. */
fathom_err pool_remove(struct pool *p, const char *url, fathom_diag *d);

/* pool_url - the address of a place's server, without a slash at its end
 *
 *   out, name   [POOL_URL_BYTES], name as in pool_add_named
 *   generation  of the server: another one in this place later has another
 * Returns false: no server is there. */
bool pool_url(struct pool *p, uint32_t place, char *out, char *name, uint64_t *generation);

/* Servers that a request shall not get again: of each place the generation of the one that failed
 * it, 0: none. Another server that has come into the place since is not meant. */
struct pool_tried {
    uint64_t generations[POOL_SERVERS_MAX];
    uint32_t n;
};

/* A request that looks for a server. */
struct pool_request {
    const uint64_t *keys; /* [n_key] of its prompt's blocks */
    size_t n_key;
    uint64_t n_token;               /* of its prompt, about */
    uint64_t session;               /* 0: none */
    const struct pool_tried *tried; /* NULL: none */
    bool prefills;                  /* its prompt is for another server to go on with */
    bool has_pages;                 /* another one computes its prompt */
    bool moves;                     /* only a server that goes on with streams will do, */
    uint64_t numerics;              /* and one of these */
};

struct pool_lease {
    uint32_t place;
    uint64_t generation;
    char url[POOL_URL_BYTES], name[POOL_URL_BYTES];
    bool moves; /* the server goes on with streams of others */
    uint64_t numerics;
    bool is_probe;                   /* of a breaker */
    uint64_t n_counted;              /* failures that its server's breaker had counted before */
    uint64_t n_token;                /* that the server owes for it until pool_settle */
    uint64_t n_look;                 /* of looks before: a later one has counted them */
    char pages_host[POOL_URL_BYTES]; /* where other servers ask it for pages; "": nowhere */
    uint16_t pages_port;
};

/* pool_tried_add - the server of a lease; one that was in its place before is forgotten */
void pool_tried_add(struct pool_tried *t, const struct pool_lease *l);

/* pool_take - a server for a request
 * Returns false: there is none that may have it. */
bool pool_take(struct pool *p, const struct pool_request *r, uint64_t now_us,
               struct pool_lease *out);

/* pool_is_lost - whether the server of a lease has answered no look for POOL_SILENT_US, and another
 * one could have the request: who has no other may as well wait */
enum { POOL_SILENT_US = 10000000 };
bool pool_is_lost(struct pool *p, const struct pool_request *r, const struct pool_lease *l,
                  uint64_t now_us);

/* pool_tell_none - why no server that answers takes requests
 *
 *   text  [POOL_NONE_BYTES]
 * Returns seconds after which one may. */
enum { POOL_NONE_BYTES = 240 };
uint32_t pool_tell_none(struct pool *p, uint64_t now_us, char *text);

/* pool_note_sent - the prompt of a request was sent to the server of a lease. Called once it is on
 * its way: the keys lie anywhere in memory, and nobody waits for them.
 * Cost  50 us for 250 keys that are in no cache of the processor. */
void pool_note_sent(struct pool *p, const struct pool_request *r, const struct pool_lease *l);

/* pool_wants_prefill - whether a server that prefills is up and gives pages, one of the others
 * takes them, and none of these has all but POOL_NEAR_TOKENS of the prompt, or would have computed
 * it before what waits at every one that prefills */
enum { POOL_NEAR_TOKENS = 256 };
bool pool_wants_prefill(struct pool *p, const struct pool_request *r, uint64_t now_us);

/* How a request has ended at its server. */
enum pool_end {
    POOL_SERVED,  /* it answered, whatever it said */
    POOL_REFUSED, /* it is full or being stopped */
    POOL_FAILED,  /* no connection, or it broke */
    POOL_LEFT,    /* the client left: nothing is known */
};

/* pool_settle - its answer has begun, status 200: its prompt is computed, and what the last look
 * told is less by that now; once */
void pool_settle(struct pool *p, struct pool_lease *l);

/* pool_give - the request is over there */
void pool_give(struct pool *p, struct pool_lease *l, enum pool_end how, uint64_t now_us);

/* What a look at a server has told. */
struct pool_load {
    bool is_up;
    bool moves;        /* a fathom whose streams can go on elsewhere */
    uint64_t numerics; /* bits are equal where this is; 0: not told */
    uint32_t n_room;   /* 0: not told, as the next ones */
    uint64_t n_page, n_page_free;
    uint64_t n_owed;
    double token_us, step_us;
    char pages_host[POOL_URL_BYTES]; /* as in pool_lease */
    uint16_t pages_port;
    bool takes_none;          /* of the pages that others compute, as it says */
    uint64_t silent_us;       /* since then no look has been answered; 0: the last one was */
    char why[POOL_WHY_BYTES]; /* it is not up, or not known as it should be; printable ASCII */
};

/* pool_note_load - of the server that had this place and generation when it was looked at */
void pool_note_load(struct pool *p, uint32_t place, uint64_t generation, const struct pool_load *l);

/* pool_n_up - servers that take requests; pool_n - that there are, leaving ones too */
uint32_t pool_n_up(struct pool *p);
uint32_t pool_n(struct pool *p);

/* pool_write_json - a JSON array with an object for each server */
fathom_err pool_write_json(struct pool *p, struct buf *out, uint64_t now_us);

/* pool_write_metrics - in Prometheus' form */
fathom_err pool_write_metrics(struct pool *p, struct buf *out);

/* pool_check - the invariants of pool.c */
void pool_check(struct pool *p);

#endif
