/* look.h - looks at the servers: GET /load of each, several times a second
 *
 * A server that answers with any status below 500 is up. A fathom tells its load. Of another
 * program the router knows only the requests that it has sent there.
 */
#ifndef FATHOM_ROUTER_LOOK_H
#define FATHOM_ROUTER_LOOK_H

#include "router/pool.h"
#include "router/upstream.h"

struct looks;

/* looks_create - looks_destroy accepts NULL
 *
 *   key  API key of the servers; NULL: none
 * Needs   the upstream closed, for looks_destroy.
 * Errors  ENOMEM. */
fathom_err looks_create(struct looks **out, struct pool *pool, const char *key);
void looks_destroy(struct looks *l);

/* looks_tick - look at each server at which no look is under way; on the upstream's thread */
void looks_tick(struct looks *l, struct upstream *u);

/* look_read - the figures in the body of /load: the server is up, unless it says that it takes no
 * requests; false: it is no JSON object */
bool look_read(struct pool_load *out, const char *body, size_t n);

#endif
