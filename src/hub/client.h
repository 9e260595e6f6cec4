/* client.h - requests to a hub: how they are made, when they are tried again, and the message if
 * one fails */
#ifndef FATHOM_HUB_CLIENT_H
#define FATHOM_HUB_CLIENT_H

#include <curl/curl.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/buf.h"
#include "fathom/err.h"
#include "hub/order.h"

enum { HUB_ATTEMPTS = 5 }; /* so many in a row, none of which got a file further, are the last */

/* A request, from before it is made to after its end. */
struct hub_request {
    CURL *easy;
    CURLcode code;
    long status;     /* of HTTP; 0: no answer */
    char reason[32]; /* the hub's X-Error-Code; "": none */
    uint64_t offset; /* where the bytes of a partial answer begin */
    char cause[CURL_ERROR_SIZE];
};

/* client_add_escaped - append text as it stands in a URL. path: a slash is not escaped */
fathom_err client_add_escaped(struct buf *url, const char *text, bool path);

/* client_endpoint - the order's endpoint, or the one of its hub */
const char *client_endpoint(const struct hub_order *o);

/* request_init - a GET of url; the caller adds where its bytes go. The token is sent to the
 * endpoint's host, not where that redirects to.
 * Errors  ENOMEM. request_fini accepts a zeroed one. */
fathom_err request_init(struct hub_request *r, const struct hub_order *o, const char *url,
                        fathom_diag *d);
void request_fini(struct hub_request *r);

/* request_note_end - keep the code and status with which a request ended */
void request_note_end(struct hub_request *r, CURLcode code);

/* request_pause_us - how long to wait before another try, after n_failed failures in a row; 0:
 * another try is not worth it */
uint64_t request_pause_us(const struct hub_request *r, unsigned n_failed);

/* request_fail - write the message for a request that is given up; returns its error */
fathom_err request_fail(const struct hub_request *r, const struct hub_order *o, const char *what,
                        fathom_diag *d);

/* client_get - get a small answer as a whole; tries again as request_pause_us says */
fathom_err client_get(struct buf *body, const struct hub_order *o, const char *url,
                      const char *what, fathom_diag *d);

#endif
