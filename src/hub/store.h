/* store.h - a repository's folder in the cache: blobs, snapshots, refs */
#ifndef FATHOM_HUB_STORE_H
#define FATHOM_HUB_STORE_H

#include <stdbool.h>

#include "base/limits.h"
#include "hub/listing.h"

struct hub_store {
    char folder[LIMIT_PATH_BYTES]; /* <cache>/models--org--name */
    int lock;                      /* -1: none */
};

/* store_open - make the folder if it is not there, and lock it, so that nobody else fills it
 * Errors  EINVAL: a path that is too long; EBUSY: another pull of this repository runs; EIO. */
fathom_err store_open(struct hub_store *s, const char *cache, const char *repository,
                      fathom_diag *d);
void store_close(struct hub_store *s);

/* store_name_blob - the path of a file's contents; with `partial`, of what has come of them so
 * far */
fathom_err store_name_blob(char out[LIMIT_PATH_BYTES], const struct hub_store *s,
                           const struct hub_file *f, bool partial, fathom_diag *d);

/* store_holds - whether the blob is there and has the listed size */
bool store_holds(const struct hub_store *s, const struct hub_file *f);

/* store_make_snapshot - make a link for each file, then the reference; links that are there stay
 *
 *   revision  NULL, or the commit itself: no reference is written
 *   dir       LIMIT_PATH_BYTES
 * Needs   every blob is there.
 * Errors  EIO, EINVAL. */
fathom_err store_make_snapshot(char *dir, const struct hub_store *s, const struct hub_listing *l,
                               const char *revision, fathom_diag *d);

#endif
