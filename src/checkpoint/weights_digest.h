/* weights_digest.h - one number for every byte of a checkpoint's weights
 *
 * Two checkpoints have one digest only if their shards have the same names and the same bytes,
 * wherever they lie: SHA-256 says so, whoever made them. It is computed by threads of its own while
 * the weights are loaded, and kept in a file of a private directory beside the stamps of the
 * shards, so that it is computed once (weights_digest.c).
 */
#ifndef FATHOM_CHECKPOINT_WEIGHTS_DIGEST_H
#define FATHOM_CHECKPOINT_WEIGHTS_DIGEST_H

#include <stdbool.h>
#include <stdint.h>

#include "base/sha256.h"
#include "checkpoint/checkpoint.h"

struct weights_digest;

struct weights_digest_config {
    unsigned n_thread; /* at least 1 */
    int dir;           /* of private_dir_open, where digests are kept, and closed in the end by
                            the digest; -1: they are not kept */
    int64_t settled_s; /* a shard written to later than so long ago is not kept */
};

/* Longer than any file system takes to tell two moments apart: FAT has 2 s. */
enum { WEIGHTS_SETTLED_S = 10 };

/* weights_digest_begin - start, for the shards whose digest is not kept
 *
 *   c  outlives it
 * Errors  ENOMEM; the directory is closed then too. A directory that fails costs the work, nothing
 *         else. */
fathom_err weights_digest_begin(struct weights_digest **out, const struct checkpoint *c,
                                const struct weights_digest_config *config, fathom_diag *d);

struct weights_digest_result {
    struct sha256 digest;
    uint32_t n_shard;
    uint32_t n_kept;  /* of them taken from the file */
    uint64_t n_bytes; /* read */
    uint64_t wait_us; /* this call waited */
    bool changed;     /* a shard was written to meanwhile: the digest is drawn at random */
};

/* weights_digest_end - wait for it, keep it; frees w
 *
 * To be called when the weights have been loaded: a shard that has changed since it was opened may
 * have been loaded in part, so its digest is nobody else's.
 * weights_digest_cancel - give it up; the leaves under way end first, some milliseconds. Accepts
 * NULL. */
void weights_digest_end(struct weights_digest *w, struct weights_digest_result *out);
void weights_digest_cancel(struct weights_digest *w);

#endif
