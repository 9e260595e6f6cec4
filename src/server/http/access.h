/* access.h - what headers say of who asks: keys, logins, pages, lanes
 *
 * Pure functions of headers.
 */
#ifndef FATHOM_SERVER_HTTP_ACCESS_H
#define FATHOM_SERVER_HTTP_ACCESS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/buf.h"
#include "fathom/err.h"

/* access_bearer - the key in the value of an Authorization header; NULL: the value holds none */
const char *access_bearer(const char *authorization);

/* access_password - the password in the value of an Authorization header by name and password;
 * false: the value (NULL: there is none) holds none, or one of more than LOGIN_BYTES - 1 bytes with
 * its name */
enum { LOGIN_BYTES = 512 };
bool access_password(char out[LOGIN_BYTES], const char *authorization);

/* Who asks, as browsers tell it; NULL: not told. */
struct access_asker {
    unsigned method;        /* METHOD_ bit */
    const char *fetch_site; /* header Sec-Fetch-Site */
    const char *origin;     /* header Origin */
    const char *host;       /* that is asked */
};

/* access_is_own_page - does a page of this server ask, or nobody's page, rather than another's?
 *
 * Browsers that tell neither site nor origin do so where nothing can be changed, so GET counts. */
bool access_is_own_page(const struct access_asker *a);

/* access_list - "a, b"; `any` instead when the list holds "*" */
fathom_err access_list(struct buf *out, const char *const *items, size_t n, const char *any);

/* access_copy_path - a path as one printable line for logs and messages, cut to bytes - 1: '?'
 * stands for control characters, for those that change lines or the direction of text, and, where
 * a path is not UTF-8, for each byte beyond ASCII */
void access_copy_path(char *out, size_t bytes, const char *path);

/* access_lane - the number in a header X-data-parallel-rank; -1 for none, and for what is no
 * number, which vLLM passes over too */
int32_t access_lane(const char *given);

#endif
