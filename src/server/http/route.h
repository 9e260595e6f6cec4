/* route.h - what a path of the server is, and what it may look at */
#ifndef FATHOM_SERVER_HTTP_ROUTE_H
#define FATHOM_SERVER_HTTP_ROUTE_H

#include <stdbool.h>
#include <stdint.h>

#include "base/api_error.h"
#include "base/buf.h"

struct gate;
struct health;
struct jobs;
struct served;
struct server_state;

/* The parts of a server that its routes look at. */
struct route_env {
    const struct served *served;
    struct server_state *state;
    struct health *health;
    struct jobs *jobs;
    struct gate *gate;
    uint32_t host; /* whose port was asked: server_options.n_host */
};

enum {
    METHOD_GET = 1, /* and HEAD */
    METHOD_POST = 2,
    METHOD_OPTIONS = 4,
    METHOD_OTHER = 8,
    METHOD_DELETE = 16,
};

/* Writes the body of an answer to a GET, or to a POST that needs no body, or sets an error in *e.
 * The status is 200, the type JSON unless the route says another. `rest` is the path after a prefix
 * route. */
typedef fathom_err route_get(const struct route_env *env, const char *rest, struct buf *body,
                             struct api_error *e);

/* A request that needs no engine, of any method. */
struct route_request {
    unsigned method;
    const char *rest;
    uint32_t tenant;   /* of the API key: key_ring.h */
    bool stream;       /* the query asks for a stream */
    const char *query; /* "": none */
};
typedef fathom_err route_call(const struct route_env *env, const struct route_request *r,
                              struct buf *body, struct api_error *e);

/* responses_call - /v1/responses/ID by GET and DELETE, /v1/responses/ID/input_items by GET,
 * /v1/responses/ID/cancel by POST (responses_route.c) */
route_call responses_call;

/* What SGLang's clients ask beside /generate: the model, the server, and for an empty cache
 * (sglang_route.c) */
route_get sglang_get_model;
route_get sglang_get_server;
route_get sglang_flush_cache;

/* A path. Without get and call its requests have a prompt and become jobs. */
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

#endif
