/* response_store.h - responses stored for later requests, within bounds
 *
 * A stored response is a link. It refers to the response that it went on from, so a conversation of
 * n turns is a chain of n links, and each turn is stored once. A link that is deleted, too old or
 * evicted can no longer be found by its id. It is freed with the last response that goes on from
 * it.
 *
 *   (put) --> LISTED --drop | too old | bounds--> UNLISTED --last holder gone--> (freed)
 *
 * The bounds hold for all tenants together. When they are exceeded, the tenant that has most loses
 * its oldest responses: so of n tenants, none loses a response while it keeps no more than the n-th
 * part.
 *
 * Any thread may call. The content of a link does not change, so its holders read it without the
 * lock.
 */
#ifndef FATHOM_SERVER_RESPONSE_STORE_H
#define FATHOM_SERVER_RESPONSE_STORE_H

#include <jansson.h>
#include <stdint.h>

#include "base/buf.h"

struct response_store;
struct response_link;

struct response_limits {
    size_t max;      /* responses that can be asked for, >= 1 */
    size_t bytes;    /* of all links */
    uint64_t age_us; /* after which a response can no longer be asked for */
};

fathom_err response_store_create(struct response_store **out, const struct response_limits *limits);
/* response_store_destroy - accepts NULL
 * Needs   no link held. */
void response_store_destroy(struct response_store *s);

/* A response as it is put. */
struct response_record {
    const char *id;
    uint32_t tenant;                /* API key that it belongs to: others do not find it */
    struct response_link *previous; /* what it went on from; NULL: nothing */
    struct buf items;               /* what its request brought: a JSON array; moved */
    struct buf body;                /* the response object; moved */
    size_t output_at, n_output;     /* bytes of body: the array of its output items */
};

/* response_store_put - keep a response; when there is no room, the oldest of the tenant that has
 * most of what is scarce leave
 *
 * Edge    one that is larger than all the room there is, with what it goes on from, is not kept.
 * Errors  ENOMEM; the buffers are released then. */
fathom_err response_store_put(struct response_store *s, struct response_record *r, uint64_t now_us);

/* response_store_hold - find a response and hold it; NULL when it cannot be asked for
 * response_store_release - accepts NULL */
struct response_link *response_store_hold(struct response_store *s, const char *id, uint32_t tenant,
                                          uint64_t now_us);
void response_store_release(struct response_store *s, struct response_link *link);

/* response_store_drop - unlist a response; false when it cannot be asked for */
bool response_store_drop(struct response_store *s, const char *id, uint32_t tenant,
                         uint64_t now_us);

/* response_link_body - the response object, borrowed */
const struct buf *response_link_body(const struct response_link *link);

/* response_link_input - what its request brought, a JSON array, borrowed */
const struct buf *response_link_input(const struct response_link *link);

/* response_link_items - append to an array all items of the conversation up to this response, in
 * order
 * Errors  ENOMEM. */
fathom_err response_link_items(const struct response_link *link, json_t *items);

/* How much is kept. */
struct response_store_count {
    size_t n_listed;
    size_t n_link;
    size_t bytes;
};
struct response_store_count response_store_count(struct response_store *s);

void response_store_check(struct response_store *s);
/* response_store_dump - one line of state */
void response_store_dump(struct response_store *s, struct buf *out);

#endif
