/* pool.h - the servers behind a router: what is known of each, and which one a request goes to
 *
 *   (none) --pool_add--> UNKNOWN --a look succeeds--> UP --a look fails--> DOWN --succeeds--> UP
 *                                                     any --pool_remove--> LEAVING --last request
 *                                                                          ends--> (none)
 *
 * A look (GET /load, several times a second) tells the state and the load of a server. Each server
 * also has a circuit breaker. After BREAKER_FAILURES requests in a row have failed there, it gets
 * none for BREAKER_US, and then one, the probe. If the probe is answered the breaker closes; if it
 * fails the server rests again. The breaker also closes when a server that was DOWN is UP again,
 * or has started again meanwhile.
 * Requests that were under way when one failed count as that one, so connections that are cut
 * together are one failure.
 *
 * Servers have places, 0 to POOL_SERVERS_MAX - 1. A place is free again once a server that was
 * removed has no requests left. Any thread may call; one lock, held no longer than a choice takes.
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
 * Edge    If a removed server with this address still has requests, it keeps its place beside the
 *         new one.
 * Errors  EINVAL: this is no address, or the server is there already; ELIMIT: no place is free. */
fathom_err pool_add(struct pool *p, const char *url, fathom_diag *d);

/* pool_add_prefill - the same, of a server that computes prompts for the others (docs/pd.md) */
fathom_err pool_add_prefill(struct pool *p, const char *url, fathom_diag *d);

/* pool_add_named - a server at one of the addresses of a name (discover.h)
 *
 *   name  the name that its certificate must have; "": the host of the address */
fathom_err pool_add_named(struct pool *p, const char *url, const char *name, bool prefills,
                          fathom_diag *d);

/* pool_remove - give a server no new requests; those that it has go on
 * Errors  ENOTFOUND. */
fathom_err pool_remove(struct pool *p, const char *url, fathom_diag *d);

/* pool_url - the address of a place's server, without a slash at its end
 *
 *   out, name   [POOL_URL_BYTES], name as in pool_add_named
 *   generation  of the server: a later server in this place has another
 * Returns false: no server is there. */
bool pool_url(struct pool *p, uint32_t place, char *out, char *name, uint64_t *generation);

/* Servers that a request has tried: for each place the generation of the server that failed it; 0:
 * none. A later server in the same place has not been tried. */
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
    bool prefills;                  /* a server is wanted that only computes the prompt */
    bool has_pages;                 /* another server computes the prompt */
    bool moves;                     /* the server must be able to go on with a stream, */
    uint64_t numerics;              /* and must have these numerics */
};

struct pool_lease {
    uint32_t place;
    uint64_t generation;
    char url[POOL_URL_BYTES], name[POOL_URL_BYTES];
    bool moves; /* the server can go on with streams of others */
    uint64_t numerics;
    bool is_probe;      /* the one request of a server whose breaker is open */
    uint64_t n_counted; /* failures that the server's breaker had counted before */
    uint64_t n_token;   /* prompt tokens counted as waiting there until pool_settle */
    uint64_t n_look;    /* looks before it; a later look tells of those tokens itself */
    char pages_host[POOL_URL_BYTES]; /* where other servers ask it for pages; "": nowhere */
    uint16_t pages_port;
};

/* pool_tried_add - the server of a lease has been tried; replaces an earlier server of that place
 * */
void pool_tried_add(struct pool_tried *t, const struct pool_lease *l);

/* pool_take - choose a server for a request
 * Returns false: no server may have it. */
bool pool_take(struct pool *p, const struct pool_request *r, uint64_t now_us,
               struct pool_lease *out);

/* pool_is_lost - whether the server of a lease has answered no look for POOL_SILENT_US and another
 * server could have the request. Without another server the request may as well wait. */
enum { POOL_SILENT_US = 10000000 };
bool pool_is_lost(struct pool *p, const struct pool_request *r, const struct pool_lease *l,
                  uint64_t now_us);

/* pool_tell_none - why no server takes requests, for an error
 *
 *   text  [POOL_NONE_BYTES] written
 * Returns after how many seconds one may take requests. */
enum { POOL_NONE_BYTES = 240 };
uint32_t pool_tell_none(struct pool *p, uint64_t now_us, char *text);

/* pool_note_sent - remember that the server of a lease was sent the prompt of a request. Called
 * once the request is on its way, because it is slow: each key lies elsewhere in memory.
 * Cost  50 us for 250 keys that are not in the processor's caches. */
void pool_note_sent(struct pool *p, const struct pool_request *r, const struct pool_lease *l);

/* pool_wants_prefill - whether another server should compute the prompt of a request
 *
 * It should if a server that prefills is up and gives pages, and one of the other servers takes
 * pages. None of these others may have all but POOL_NEAR_TOKENS of the prompt, and none may be able
 * to compute it before the shortest queue of the servers that prefill is done. */
enum { POOL_NEAR_TOKENS = 256 };
bool pool_wants_prefill(struct pool *p, const struct pool_request *r, uint64_t now_us);

/* How a request has ended at its server. */
enum pool_end {
    POOL_SERVED,  /* it answered, whatever it said */
    POOL_REFUSED, /* it is full or being stopped */
    POOL_FAILED,  /* no connection, or it broke */
    POOL_LEFT,    /* the client left: nothing is known */
};

/* pool_settle - the answer to a request has begun with status 200, so its prompt no longer waits at
 * the server; a second call does nothing */
void pool_settle(struct pool *p, struct pool_lease *l);

/* pool_give - the request has ended at its server */
void pool_give(struct pool *p, struct pool_lease *l, enum pool_end how, uint64_t now_us);

/* What a look at a server has told. */
struct pool_load {
    bool is_up;
    bool moves;          /* a fathom whose streams can go on at another server */
    uint64_t numerics;   /* servers with equal numerics compute equal bits; 0: not told */
    uint64_t started_us; /* of its process; a server that has started again tells a later one */
    uint32_t n_room;     /* requests that it runs at once; 0: not told, as in the next members */
    uint64_t n_page, n_page_free;
    uint64_t n_owed;
    double token_us, step_us;
    char pages_host[POOL_URL_BYTES]; /* as in pool_lease */
    uint16_t pages_port;
    bool takes_none;    /* it says that it takes no pages of other servers */
    uint64_t silent_us; /* when the first look that got no answer began; 0: the last one got one */
    char why[POOL_WHY_BYTES]; /* why it is not up, or why its load is not known; printable ASCII */
};

/* pool_note_load - what a look has told of the server with this place and generation */
void pool_note_load(struct pool *p, uint32_t place, uint64_t generation, const struct pool_load *l);

/* pool_n_up - servers that are UP; pool_n - all servers, LEAVING ones too */
uint32_t pool_n_up(struct pool *p);
uint32_t pool_n(struct pool *p);

/* pool_write_json - a JSON array with an object for each server */
fathom_err pool_write_json(struct pool *p, struct buf *out, uint64_t now_us);

/* pool_write_metrics - in Prometheus' form */
fathom_err pool_write_metrics(struct pool *p, struct buf *out);

/* pool_check - the invariants of pool.c */
void pool_check(struct pool *p);

#endif
