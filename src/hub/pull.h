/* pull.h - a repository of a model hub into the cache of Hugging Face's layout
 *
 *   <cache>/models--org--name/blobs/SUM            what files hold, by SHA-256 or git's id
 *                                  /blobs/SUM.incomplete  what has come of it
 *                                  /snapshots/COMMIT/     names: links into blobs/
 *                                  /refs/REVISION         the commit that "main" means
 *
 * Files come in parallel and go on where they stopped. A file is checked before it takes its name,
 * and the snapshot is made when all of them are there, so a snapshot has all files.
 */
#ifndef FATHOM_HUB_PULL_H
#define FATHOM_HUB_PULL_H

#include <stdint.h>

#include "base/limits.h"
#include "fathom/err.h"
#include "hub/order.h"

struct hub_result {
    char dir[LIMIT_PATH_BYTES]; /* the snapshot */
    char commit[HUB_ID_BYTES];
    uint64_t fetched_bytes;
};

/* hub_pull - fetch all of a repository, except for files that the listing leaves out. After an
 * error, what has come is kept, and another call goes on from there.
 *
 * Errors  EINVAL: a name or a revision that cannot be one. ENOTFOUND: the hub does not have it, or
 *         does not show it without a key. EBUSY: another pull of it runs. EFORMAT: the listing is
 *         malformed, or a file came twice with a sum that is not the listed one. ELIMIT: the disk
 *         is too small, or the listing too large. EIO: hub or disk do not work; each request has
 *         been tried five times. ENOMEM.
 * Cost    every byte is hashed as it comes; one thread. */
fathom_err hub_pull(struct hub_result *out, const struct hub_order *o, fathom_diag *d);

#endif
