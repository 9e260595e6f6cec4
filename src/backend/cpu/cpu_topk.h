/* cpu_topk.h - the n-th largest of many values without sorting them */
#ifndef FATHOM_BACKEND_CPU_TOPK_H
#define FATHOM_BACKEND_CPU_TOPK_H

#include "backend/cpu/cpu_kernel.h"

#define TOPK_ALL UINT32_MAX

/* topk_least - a bound of the n largest of n_key keys
 *
 * All keys above the bound are among the largest. Of the keys equal to it the first n_equal are, or
 * every one when n_equal is TOPK_ALL.
 * Needs    1 <= n <= n_key.
 * Cost     at most 32 passes that count; no scratch. */
uint32_t topk_least(const struct cpu_kernels *k, const uint32_t *keys, uint32_t n_key, uint32_t n,
                    uint32_t *n_equal);

#endif
