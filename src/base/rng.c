/* rng.c - draws from a normal distribution, and a seed from the system */
#include "base/rng.h"

#include <math.h>
#include <sys/random.h>

#include "base/clock.h"

float rng_normal(uint64_t *state)
{
    float u = rng_unit(rng_next(state));
    float v = rng_unit(rng_next(state));
    return sqrtf(-2.0f * logf(u)) * cosf(6.28318530718f * v);
}

uint64_t rng_entropy(void)
{
    uint64_t bits;
    if (getrandom(&bits, sizeof bits, 0) == (ssize_t)sizeof bits) return bits;
    return rng_hash(clock_now_ns());
}
