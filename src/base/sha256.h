/* sha256.h - digests that nobody can make two contents of
 *
 * For what has to be told apart whoever made it. Sums against damage and keys of tables are
 * base/hash.h: they are ten times as fast.
 */
#ifndef FATHOM_BASE_SHA256_H
#define FATHOM_BASE_SHA256_H

#include <stdbool.h>
#include <stddef.h>

struct sha256 {
    unsigned char bytes[32];
};

/* sha256_equal - all bytes */
bool sha256_equal(const struct sha256 *a, const struct sha256 *b);

/* sha256_of - of n bytes. From any thread.
 * Cost    1.8 GB/s on a core that has instructions for it (GnuTLS). */
struct sha256 sha256_of(const void *data, size_t n);

/* sha256_absorb - add a part: *h becomes the digest of itself and of the part's digest. So where
 * one part ends and the next begins counts too. Begin with {{0}}. */
void sha256_absorb(struct sha256 *h, const void *data, size_t n);
void sha256_absorb_text(struct sha256 *h, const char *text);

#endif
