/* http_target_int.h - what questions and load share of libcurl */
#ifndef FATHOM_BENCH_HTTP_TARGET_INT_H
#define FATHOM_BENCH_HTTP_TARGET_INT_H

#include <curl/curl.h>

#include "bench/http_target.h"

/* http_headers - the header lines of a request; released with curl_slist_free_all
 * Errors  EINVAL for a header without '='; ENOMEM. */
fathom_err http_headers(struct curl_slist **out, const struct http_target *t, bool has_body,
                        fathom_diag *d);

/* http_set_common - URL and what all requests have; false when out of memory */
bool http_set_common(CURL *easy, const struct http_target *t, const char *url,
                     const struct curl_slist *headers);

#endif
