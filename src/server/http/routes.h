/* routes.h - which paths exist, and the ones that need no engine */
#ifndef FATHOM_SERVER_HTTP_ROUTES_H
#define FATHOM_SERVER_HTTP_ROUTES_H

#include "server/http/route.h"
#include "server/server_options.h"

/* route_find - NULL when there is no such path; *rest is what follows a prefix */
const struct route *route_find(const char *path, const char **rest);

/* route_at - the i-th route; NULL past the last */
const struct route *route_at(size_t i);

/* route_number - the i of a route; SIZE_MAX: NULL */
size_t route_number(const struct route *r);

/* route_is_open - it needs no API key */
bool route_is_open(const struct server_options *o, const struct route *r);

/* route_method - the METHOD_ bit of a request's method */
unsigned route_method(const char *name);

/* route_allow - value of the Allow header */
const char *route_allow(const struct route *r);

/* route_refuse_path - the 404 for an unknown path, with what exists */
fathom_err route_refuse_path(const char *method, const char *path, struct api_error *e);

#endif
