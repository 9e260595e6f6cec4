/* identity.h - whose page records these are
 *
 * The bits of a page depend on its tokens and on three things, each of which has a digest. Records
 * are shared where all three are equal: between two runs of a server, and between servers. They
 * are told apart so that a message can say which of them differs, and what to change.
 */
#ifndef FATHOM_KV_IDENTITY_H
#define FATHOM_KV_IDENTITY_H

#include "base/hash.h"
#include "base/sha256.h"

struct identity {
    struct sha256 model;    /* every byte of the weights and of config.json */
    struct sha256 numerics; /* the program's version, backend, precision: all that changes bits */
    struct sha256 layout;   /* what a record holds: cache type, layers, rank of how many */
};

enum identity_part {
    IDENTITY_EQUAL,
    IDENTITY_MODEL,
    IDENTITY_NUMERICS,
    IDENTITY_LAYOUT,
};

/* identity_compare - the first part in which two differ */
enum identity_part identity_compare(const struct identity *a, const struct identity *b);

/* identity_key - 128 bits of all three, for the header of a record */
struct hash128 identity_key(const struct identity *id);

#endif
