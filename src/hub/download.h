/* download.h - the contents of a listing's files, several at once */
#ifndef FATHOM_HUB_DOWNLOAD_H
#define FATHOM_HUB_DOWNLOAD_H

#include "hub/order.h"
#include "hub/store.h"

/* download_missing - every blob that the store does not hold
 *
 *   there_bytes  bytes of the listing that are there already; progress is counted from here on
 *   fetched      bytes that were fetched
 * If a connection ends, its file goes on where it stopped. A file whose sum is not the listed one
 * is fetched a second time. The first file that cannot be fetched ends all; what has come of the
 * others stays.
 * Errors  those of hub_pull. */
fathom_err download_missing(uint64_t *fetched, const struct hub_store *s,
                            const struct hub_listing *l, const struct hub_order *o,
                            uint64_t there_bytes, fathom_diag *d);

#endif
