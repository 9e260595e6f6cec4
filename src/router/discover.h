/* discover.h - names that stand for servers which come and go
 *
 * "dns+http://name:port" stands for one server at each address of the name. A thread resolves the
 * name every few seconds (the system's resolver blocks). It adds new addresses to the pool, and
 * removes those that the name no longer has. If the name has addresses of two families, those of
 * the first family are used, because a server may have one of each. A name that has no address, or
 * cannot be resolved, changes nothing: looks notice servers that are lost (look.h).
 */
#ifndef FATHOM_ROUTER_DISCOVER_H
#define FATHOM_ROUTER_DISCOVER_H

#include <stdbool.h>

#include "router/pool.h"

struct discover;

/* discover_create - resolves nothing before discover_start; discover_destroy accepts NULL
 *
 * Needs   for discover_destroy the pool, still.
 * Cost    discover_destroy waits for a lookup that is under way.
 * Errors  ENOMEM. */
fathom_err discover_create(struct discover **out, struct pool *pool);
void discover_destroy(struct discover *d);

/* discover_is_name - whether an address is such a name */
bool discover_is_name(const char *url);

/* discover_add - add a name; before discover_start
 *
 *   prefills  its servers compute prompts for the others
 * Errors  EINVAL: not dns+http://name:port or dns+https://name:port; ENOMEM. */
fathom_err discover_add(struct discover *v, const char *url, bool prefills, fathom_diag *d);

/* discover_start - start the thread; without a name it does nothing
 * Errors  EIO: no thread. */
fathom_err discover_start(struct discover *v, fathom_diag *d);

#endif
