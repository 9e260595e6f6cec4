/* partial.h - a file that arrives: written, hashed, and checked before it takes its name
 *
 *   CLOSED --open--> OPEN --add--> OPEN --finish--> CLOSED, the file has its name
 *                     |  ^                   |
 *                     +--+ restart           +--> CLOSED, EFORMAT: nothing is left of it
 */
#ifndef FATHOM_HUB_PARTIAL_H
#define FATHOM_HUB_PARTIAL_H

#include <gnutls/crypto.h>

#include "hub/store.h"

struct partial {
    const struct hub_file *file;
    char path[LIMIT_PATH_BYTES]; /* SUM.incomplete */
    char name[LIMIT_PATH_BYTES]; /* SUM */
    int fd;                      /* -1: closed, or not opened */
    uint64_t n;                  /* bytes that are there */
    gnutls_hash_hd_t hash;       /* of them */
};

/* partial_open - open the file, and read and hash what is there of it; if that is more than the
 * file has, it is begun anew
 * Errors  EIO, ELIMIT, EINVAL. */
fathom_err partial_open(struct partial *p, const struct hub_store *s, const struct hub_file *f,
                        fathom_diag *d);

/* partial_add - append bytes; ELIMIT: the disk is full; EFORMAT: more than the file has; EIO */
fathom_err partial_add(struct partial *p, const void *bytes, size_t n, fathom_diag *d);

/* partial_restart - drop what is there, and begin anew */
fathom_err partial_restart(struct partial *p, fathom_diag *d);

/* partial_finish - give the file its name. EFORMAT: its sum is not the listed one, and it is
 * removed. EIO. */
fathom_err partial_finish(struct partial *p, fathom_diag *d);

/* partial_close - close the file; what is there stays. Accepts a closed one. */
void partial_close(struct partial *p);

#endif
