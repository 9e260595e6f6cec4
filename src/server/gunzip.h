/* gunzip.h - a request's body out of gzip, within bounds */
#ifndef FATHOM_SERVER_GUNZIP_H
#define FATHOM_SERVER_GUNZIP_H

#include <stdbool.h>
#include <stddef.h>

#include "base/buf.h"
#include "fathom/err.h"

/* gunzip - append what gzip data unpacks to; members one behind the other are one text
 *
 *   hold   is asked before each part of out grows by so many bytes; false ends it. What it has
 *          held is out->len then, and the caller's to give back
 * Edge    out->limit bounds the text, and so do LIMIT_GZIP_FACTOR times the data and
 *         LIMIT_GZIP_LEAST_BYTES more: what unpacks to more is made to, and costs little before it
 *         is refused.
 * Errors  EFORMAT: it is no gzip, or is cut; ELIMIT: it is longer than that; EBUSY: not held;
 *         ENOMEM. */
fathom_err gunzip(struct buf *out, const char *data, size_t n, bool (*hold)(void *arg, size_t n),
                  void *arg);

#endif
