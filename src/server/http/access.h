/* access.h - who may ask, from which web page, under which path, and by what name
 *
 * Pure functions of the server's options and of headers.
 */
#ifndef FATHOM_SERVER_HTTP_ACCESS_H
#define FATHOM_SERVER_HTTP_ACCESS_H

#include "base/buf.h"
#include "server/server_options.h"

/* access_bearer - the key in the value of an Authorization header; NULL: the value holds none */
const char *access_bearer(const char *authorization);

/* access_origin - the value of Access-Control-Allow-Origin
 *
 *   origin  of the web page that asks; NULL: none asks, or it does not say
 *   varies  whether the value depends on the origin
 * Returns NULL: there is no such header. */
const char *access_origin(const struct server_options *o, const char *origin, bool *varies);

/* access_list - "a, b"; `any` instead when the list holds "*" */
fathom_err access_list(struct buf *out, const char *const *items, size_t n, const char *any);

/* access_path - what follows --root-path, or the whole path when it does not begin so */
const char *access_path(const struct server_options *o, const char *path);

enum { REQUEST_ID_BYTES = 129 };

/* access_request_id - the client's X-Request-Id if it is 1 to 128 printable characters of ASCII
 * without quotes, else "" */
void access_request_id(char out[REQUEST_ID_BYTES], const char *given);

#endif
