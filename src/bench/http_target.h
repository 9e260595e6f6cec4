/* http_target.h - a server, and plain questions to it */
#ifndef FATHOM_BENCH_HTTP_TARGET_H
#define FATHOM_BENCH_HTTP_TARGET_H

#include <stdbool.h>
#include <stddef.h>

#include "base/buf.h"
#include "fathom/err.h"

struct curl_slist;

enum { HTTP_ANSWER_BYTES = 64 << 20 };

struct http_target {
    const char *base_url;       /* "http://127.0.0.1:8000", no slash at the end */
    const char *api_key;        /* NULL: none */
    const char *const *headers; /* "name=value" each */
    size_t n_header;
    bool insecure;    /* any certificate will do */
    double timeout_s; /* of a whole request */
};

/* http_get - the answer to GET base_url + path
 *
 *   body    appended, whatever the status
 *   status  of HTTP
 * Errors  EIO with the cause when no answer came; EINVAL for a header without '='; ENOMEM. */
fathom_err http_get(const struct http_target *t, const char *path, struct buf *body, long *status,
                    fathom_diag *d);

/* A request with a body, whose answer is taken as it comes. */
struct http_post {
    const char *path;
    const struct buf *body;                                     /* JSON */
    fathom_err (*take)(void *arg, const char *bytes, size_t n); /* of an answer of status 200; its
                                                                   errors end the request */
    void *arg;
    struct buf *refusal; /* what an answer of another status says is appended */
};

/* http_post - and its answer, to the end
 *
 *   status  of HTTP
 * Errors  as http_get; those of `take`. */
fathom_err http_post(const struct http_target *t, const struct http_post *p, long *status,
                     fathom_diag *d);

/* ---- for callers that drive libcurl themselves --------------------------------------------- */

/* http_headers - the header lines of a request; released with curl_slist_free_all
 * Errors  EINVAL for a header without '='; ENOMEM. */
fathom_err http_headers(struct curl_slist **out, const struct http_target *t, bool has_body,
                        fathom_diag *d);

/* http_set_common - URL and what all requests have
 *
 *   easy  a CURL
 * Returns false when out of memory. */
bool http_set_common(void *easy, const struct http_target *t, const char *url,
                     const struct curl_slist *headers);

#endif
