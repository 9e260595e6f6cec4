/* page_query.h - what proxies ask by HTTP of the port that pages are asked of
 *
 * Proxies of Mooncake's connector ask each server that prefills, once, for the names of its engines
 * (GET /query), and tell the server that decodes the name that they were given.
 */
#ifndef FATHOM_COMM_PAGE_QUERY_H
#define FATHOM_COMM_PAGE_QUERY_H

#include "comm/page_link.h"

enum { QUERY_BEGIN_BYTES = 4, QUERY_BYTES_MAX = 8192 };

/* page_query_is - whether the first bytes of a connection begin such a question */
bool page_query_is(const unsigned char begin[QUERY_BEGIN_BYTES]);

/* page_query_answer - read the rest of the question and answer it; the link is of no more use
 *
 *   id  of the engine: printable ASCII without blanks, quotes and backslashes
 * Cost    at most QUERY_BYTES_MAX bytes are read, one by one: proxies ask once.
 * Errors  EFORMAT: it has no end within these; EIO: time-out, or the other side is gone. */
fathom_err page_query_answer(struct page_link *l, const char *id, uint64_t deadline_us,
                             fathom_diag *d);

#endif
