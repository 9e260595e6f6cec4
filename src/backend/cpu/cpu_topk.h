/* cpu_topk.h - the n-th largest of many values without sorting them */
#ifndef FATHOM_BACKEND_CPU_TOPK_H
#define FATHOM_BACKEND_CPU_TOPK_H

#include <math.h>
#include <stdint.h>

#include "base/dtype.h"

struct cpu_kernels;

#define TOPK_ALL UINT32_MAX

/* topk_key - larger values have larger keys; NaN counts as -inf, -0 as 0 */
static inline uint32_t topk_key(float value)
{
    uint32_t u = f32_bits(value != value ? -INFINITY : value + 0.0f);
    return u ^ ((uint32_t)((int32_t)u >> 31) | 0x80000000);
}

/* topk_least - a bound of the n largest of n_key keys, 1 <= n <= n_key: all keys above it are among
 * them, and of those equal to it the first n_equal, or every one when that is TOPK_ALL
 *
 * Cost     at most 32 passes that count; no scratch. */
uint32_t topk_least(const struct cpu_kernels *k, const uint32_t *keys, uint32_t n_key, uint32_t n,
                    uint32_t *n_equal);

#endif
