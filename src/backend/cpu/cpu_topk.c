/* cpu_topk.c - the n-th largest of many values by bisection over their keys */
#include "backend/cpu/cpu_topk.h"

#include "base/assert.h"

/* Bisection: at least n keys are >= low, fewer than n are >= high. Counting runs at the speed of
 * reading, so that twenty passes over a few thousand keys cost less than one that sorts them into
 * bins. A middle that has exactly n keys from it on is a bound as good as the n-th itself. */
uint32_t topk_least(const struct cpu_kernels *k, const uint32_t *keys, uint32_t n_key, uint32_t n,
                    uint32_t *n_equal)
{
    ASSERT(n >= 1 && n <= n_key);
    DCHECK(k->count_from(keys, n_key, 0) == n_key);
    uint32_t low = 0;
    uint64_t high = (uint64_t)UINT32_MAX + 1;
    uint32_t n_above = 0; /* keys >= high */
    while (high - low > 1) {
        uint32_t middle = (uint32_t)((low + high) / 2);
        uint32_t count = k->count_from(keys, n_key, middle);
        if (count == n) {
            *n_equal = TOPK_ALL;
            return middle;
        }
        if (count > n) {
            low = middle;
        } else {
            high = middle;
            n_above = count;
        }
    }
    *n_equal = n - n_above;
    return low;
}
