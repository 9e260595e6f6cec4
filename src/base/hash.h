/* hash.h - two hashes: one that nobody can steer, one that is fast
 *
 * Values depend on the bytes alone, so they may be kept in files of this machine's byte order.
 */
#ifndef FATHOM_BASE_HASH_H
#define FATHOM_BASE_HASH_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct hash128 {
    uint64_t lo;
    uint64_t hi;
};

/* hash128_equal - both halves */
static inline bool hash128_equal(const struct hash128 *a, const struct hash128 *b)
{
    return a->lo == b->lo && a->hi == b->hi;
}

/* hash_keyed - SipHash-2-4 with 128 bits of output
 *
 * Who does not know the key can neither foretell a value nor make two inputs of one value.
 * Cost    about a cycle a byte.
 * Source  Aumasson, Bernstein: SipHash, a fast short-input PRF; test vectors of its reference. */
struct hash128 hash_keyed(const struct hash128 *key, const void *data, size_t n);

/* hash_checksum - tells damage, not malice
 *
 * Two inputs of one length that differ within one aligned group of 8 bytes never have the same sum.
 * Other inputs have it by a chance of 2^-64. Each of 8 lanes steps by a bijection of its state and
 * of the word that it takes in, and the lanes are joined by such steps too.
 * Cost    that of reading the bytes from memory. */
uint64_t hash_checksum(const void *data, size_t n);

#endif
