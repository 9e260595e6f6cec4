/* page_frame.h - the frames with which two servers exchange page records
 *
 *   { u32 magic, u16 type, u16 flags, u64 stream, u32 n_body, u32 check }  then n_body bytes
 *
 * Little-endian; `check` is a checksum of the 20 bytes before it. Each type has its own bounds of
 * n_body, which a reader checks before it allocates. The side that connects asks, the other
 * answers:
 *
 *   asks                                     answers
 *   HELLO  who it is, a nonce                WELCOME who it is, a nonce, a MAC; or REFUSE: why
 *   PROOF  its MAC                           READY; or REFUSE
 *   WANT   the name of a record              PAGE: header and page; or MISS
 *   FIND   keys of a prompt's pages          FOUND: how many of the first it has
 *   RELEASE  keys of pages that nobody       nothing
 *          will ask for any more, and of the
 *          request that computes them
 *
 * If both sides have UCX, everything after READY goes by UCX. An answer carries the stream number
 * of its question. `flags` is 0 in this version.
 */
#ifndef FATHOM_COMM_PAGE_FRAME_H
#define FATHOM_COMM_PAGE_FRAME_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "fathom/err.h"
#include "kv/tier_record.h"

enum frame_type {
    FRAME_HELLO = 1,
    FRAME_WELCOME,
    FRAME_REFUSE,
    FRAME_PROOF,
    FRAME_READY,
    FRAME_WANT,
    FRAME_PAGE,
    FRAME_MISS,
    FRAME_FIND,
    FRAME_FOUND,
    FRAME_RELEASE,
    FRAME_TYPE_END
};

enum {
    FRAME_BYTES = 24,
    FRAME_MAGIC_BYTES = 4, /* of these, the first */
    FRAME_VERSION = 3,     /* changes when any byte changes its meaning */
    FRAME_ID_BYTES = 64,
    FRAME_TEXT_MAX = 512, /* of REFUSE */
    FRAME_KEYS_MAX = 4096,
    FRAME_NONCE_BYTES = 16,
};

struct frame {
    enum frame_type type;
    uint64_t stream;
    uint32_t n_body;
};

/* frame_write - the FRAME_BYTES before a body */
void frame_write(unsigned char out[FRAME_BYTES], const struct frame *f);

/* frame_read - parse FRAME_BYTES received from the other side
 *
 *   page_bytes  the size of a page on this link; 0: no PAGE is expected
 * Errors  EFORMAT: not a frame of this version, or n_body is out of the bounds of its type. */
fathom_err frame_read(struct frame *out, const unsigned char bytes[FRAME_BYTES],
                      uint64_t page_bytes, fathom_diag *d);

/* What a side says of itself: the body of HELLO, and of WELCOME before its MAC. */
struct page_hello {
    uint32_t version;
    uint32_t layout;
    uint32_t page_tokens;
    bool has_secret;
    bool any_numerics; /* records of other numerics are welcome */
    bool has_ucx;
    uint64_t page_bytes;
    struct identity identity;
    unsigned char nonce[FRAME_NONCE_BYTES];
    char id[FRAME_ID_BYTES]; /* of the engine, for messages */
};

enum { HELLO_BYTES = 24 + 96 + FRAME_NONCE_BYTES + FRAME_ID_BYTES, MAC_BYTES = 16 };

/* hello_write, hello_read - EFORMAT: the id is not printable ASCII with a NUL behind it */
void hello_write(unsigned char out[HELLO_BYTES], const struct page_hello *h);
fathom_err hello_read(struct page_hello *out, const unsigned char bytes[HELLO_BYTES],
                      fathom_diag *d);

/* Sizes of the bodies of WANT and MISS. The latter is a number: how many milliseconds the server
 * expects to need for the prompts that it has now. */
enum { WANT_BYTES = sizeof(struct tier_name), MISS_BYTES = 4 };

/* want_write, want_read - EFORMAT: no name of a page */
void want_write(unsigned char out[WANT_BYTES], const struct tier_name *name);
fathom_err want_read(struct tier_name *out, const unsigned char bytes[WANT_BYTES], fathom_diag *d);

/* find_write, find_read - the body of FIND and RELEASE: n keys of 16 bytes. EFORMAT: not whole keys
 *
 *   out   [16 * n], [n_body / 16] */
void find_write(unsigned char *out, const struct hash128 *keys, uint32_t n);
fathom_err find_read(struct hash128 *out, uint32_t *n, const unsigned char *body, uint32_t n_body,
                     fathom_diag *d);

/* number_write, number_read - the body of FOUND */
void number_write(unsigned char out[4], uint32_t n);
uint32_t number_read(const unsigned char bytes[4]);

#endif
