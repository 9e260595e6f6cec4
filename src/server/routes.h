/* routes.h - which paths exist, and the ones that need no engine */
#ifndef FATHOM_SERVER_ROUTES_H
#define FATHOM_SERVER_ROUTES_H

#include "server/api/api_error.h"
#include "server/state.h"

enum {
    METHOD_GET = 1, /* and HEAD */
    METHOD_POST = 2,
    METHOD_OPTIONS = 4,
    METHOD_OTHER = 8,
    METHOD_DELETE = 16,
};

/* The body of a GET, status 200 and JSON unless the route says another type, or an error in *e.
 * `rest` is the path after a prefix route. */
typedef fathom_err route_get(struct server *s, const char *rest, struct buf *body,
                             struct api_error *e);

/* A request that needs no engine and is more than a GET of a path. */
struct route_request {
    unsigned method;
    const char *rest;
    uint32_t tenant; /* number of the API key */
    bool stream;     /* the query asks for a stream */
};
typedef fathom_err route_call(struct server *s, const struct route_request *r, struct buf *body,
                              struct api_error *e);

/* responses_call - /v1/responses/ID by GET and DELETE, /v1/responses/ID/cancel by POST
 * (responses_route.c) */
route_call responses_call;

/* Without get and call it is one that has a prompt. */
struct route {
    const char *path;
    bool prefix; /* path ends in "/", anything may follow */
    enum {
        ROUTE_GUARDED, /* needs an API key, when there are any */
        ROUTE_PROBE,   /* never does */
        ROUTE_METRICS, /* does unless open_metrics */
    } guard;
    bool web;         /* for a browser: web.h */
    unsigned methods; /* without OPTIONS, which all have */
    int api;          /* POST: enum api_kind */
    route_get *get;
    route_call *call;
    const char *type; /* of the body; NULL: JSON, or of a page the path's */
};

/* route_find - NULL when there is no such path; *rest is what follows a prefix */
const struct route *route_find(const char *path, const char **rest);

/* route_at - the i-th route; NULL past the last */
const struct route *route_at(size_t i);

/* route_is_open - it needs no API key */
bool route_is_open(const struct server_options *o, const struct route *r);

/* route_method - the METHOD_ bit of a request's method */
unsigned route_method(const char *name);

/* route_allow - value of the Allow header */
const char *route_allow(const struct route *r);

/* route_refuse_path - the 404 for an unknown path, with what exists */
fathom_err route_refuse_path(const char *method, const char *path, struct api_error *e);

#endif
