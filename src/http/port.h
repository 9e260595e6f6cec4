/* port.h - what the ports for clients have in common, whatever they serve: who may ask and by which
 * name, header lines of every answer, and refusals that need no more than a head
 *
 * A host that hands requests on refuses some itself, in the words and forms of host 0.
 */
#ifndef FATHOM_HTTP_PORT_H
#define FATHOM_HTTP_PORT_H

#include "base/api_error.h"
#include "base/buf.h"
#include "http/host_names.h"

struct connection;
struct gate;
struct head;

/* Texts are borrowed. */
struct port_rules {
    struct host_names names;
    struct gate *gate;
    const char *root_path;      /* prefix that a proxy leaves on paths; NULL: none */
    const char *const *origins; /* pages that may ask from a browser; "*": all; none: no CORS */
    size_t n_origin;
    bool allow_credentials;
};

enum { REQUEST_ID_BYTES = 129 };

/* What of a head every answer to it tells again. */
struct port_asker {
    char *allow_origin; /* header of CORS; NULL: none */
    bool varies;        /* with the page that asks */
    char request_id[REQUEST_ID_BYTES];
};

/* port_asker_read - ENOMEM; port_asker_free accepts a zeroed struct */
fathom_err port_asker_read(struct port_asker *a, const struct port_rules *r, const struct head *h);
void port_asker_free(struct port_asker *a);

/* port_add_fields - header lines of every answer: CORS, by which a browser shows it to a web page,
 * and X-Request-Id
 *
 *   id         of the answer, told where the client has given none; "": none
 *   preflight  the answer is that to a preflight */
void port_add_fields(const struct port_rules *r, const struct port_asker *a, const char *id,
                     bool preflight, struct buf *fields);

/* port_origin - the value of Access-Control-Allow-Origin
 *
 *   origin  of the web page that asks; NULL: none asks, or it does not say
 *   varies  whether the value depends on the origin
 * Returns NULL: there is no such header. */
const char *port_origin(const struct port_rules *r, const char *origin, bool *varies);

/* port_request_id - the client's X-Request-Id if it is 1 to 128 printable characters of ASCII
 * without quotes, else "" */
void port_request_id(char out[REQUEST_ID_BYTES], const char *given);

/* port_path - what follows root_path, or the whole path when it does not begin so */
const char *port_path(const struct port_rules *r, const char *path);

/* port_is_anthropic - errors of this path have Anthropic's form: of /v1/messages and below it, of
 * which there is more than is served */
bool port_is_anthropic(const struct port_rules *r, const char *path);

/* port_write_error - the body of an error, by port_is_anthropic */
fathom_err port_write_error(struct buf *body, const struct api_error *e, bool anthropic);

/* port_check - whether this client may ask, by this name; sets *e if not
 * Returns whether it may. */
bool port_check(const struct port_rules *r, const struct connection *c, const char *host,
                struct api_error *e);

/* Each sets *e, unless it holds an error: the request or its body is malformed, a body has more
 * bytes than the limit, bodies on their way hold as many as they may, more connections are open
 * than may be. */
void port_refuse_form(struct api_error *e, int status, const char *text);
void port_refuse_size(struct api_error *e, size_t limit);
void port_refuse_bodies(struct api_error *e, size_t bytes);
void port_refuse_connections(struct api_error *e, const struct port_rules *r);

#endif
