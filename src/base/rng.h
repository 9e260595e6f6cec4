/* rng.h - random numbers that depend on keys, not on history
 *
 * rng_mix hashes its three keys; the same keys always give the same 64 bits, so a draw keyed by
 * (seed, stream, position) does not depend on what else ran. rng_next is a sequence for tests.
 */
#ifndef FATHOM_BASE_RNG_H
#define FATHOM_BASE_RNG_H

#include <stdint.h>

/* The keyed draws run on the device too. */
#if defined(__CUDACC__) || defined(__HIP__)
#define RNG_INLINE static __host__ __device__ inline
#else
#define RNG_INLINE static inline
#endif

/* splitmix64's finaliser */
RNG_INLINE uint64_t rng_hash(uint64_t x)
{
    x += 0x9e3779b97f4a7c15u;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
}

RNG_INLINE uint64_t rng_mix(uint64_t seed, uint64_t stream, uint64_t position)
{
    return rng_hash(rng_hash(rng_hash(seed) ^ stream) ^ position);
}

/* rng_unit - 23 bits to a float in (0, 1): never 0, never 1, every value exact */
RNG_INLINE float rng_unit(uint64_t bits)
{
    return ((float)(bits >> 41) + 0.5f) * 0x1p-23f;
}

static inline uint64_t rng_next(uint64_t *state)
{
    *state += 0x9e3779b97f4a7c15u;
    return rng_hash(*state);
}

/* rng_below - uniform in [0, n), n >= 1 */
static inline uint64_t rng_below(uint64_t *state, uint64_t n)
{
    return (uint64_t)(((unsigned __int128)rng_next(state) * n) >> 64);
}

/* rng_normal - one standard normal value */
float rng_normal(uint64_t *state);

/* rng_entropy - 64 bits from the operating system */
uint64_t rng_entropy(void);

#endif
