/* moments.h - sums of products of a matrix's inputs (its Hessian, up to a factor), and their factor
 *
 * The squared error that differences d of a row of weights make in its output, over rows x of
 * inputs, is d M d' with M the sum of x' x. With M = L L', L lower, it is the sum over s of
 * (sum over t >= s of d[t] L[t][s])^2.
 *
 * Numerics  f32, in one order: the same bits for any number of threads.
 */
#ifndef FATHOM_QUANTIZE_MOMENTS_H
#define FATHOM_QUANTIZE_MOMENTS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "fathom/err.h"
#include "quantize/tile.h"

struct thread_pool;

enum { MOMENTS_ALIGN = TILE_COLS }; /* n is a multiple */

/* moments_stride - elements from one row to the next: no power of two, for the sake of caches */
static inline size_t moments_stride(uint32_t n)
{
    return (size_t)n + TILE_COLS;
}

/* moments_add - m += sum of x' x over n_row rows, below the diagonal and on it
 *
 *   m       f32 [n][moments_stride(n)]; above the diagonal's tiles not touched
 *   panels  f32 [n / 16][n_row][16]: x by panels of 16 inputs
 * Cost      n_row n^2 operations. */
void moments_add(struct thread_pool *pool, float *m, uint32_t n, const float *panels,
                 uint32_t n_row);

/* moments_order - inputs by ascending moment, equal ones by their place: order [n]; ENOMEM */
fathom_err moments_order(uint32_t *order, const float *m, uint32_t n);

/* moments_factor - the lower factor of m, its inputs in `order`, with damp x the mean of the
 * diagonal added to the diagonal
 *
 *   factor  f32 [n][moments_stride(n)], written on and below the diagonal
 *   order   [n] place s is input order[s]
 * Returns false: m is not positive definite in f32; more damp helps.
 * Cost    n^3 / 3 operations. */
bool moments_factor(struct thread_pool *pool, float *factor, const float *m, uint32_t n,
                    const uint32_t *order, float damp, float *panels);

/* moments_panel_elements - of `panels`, which moments_factor works in */
static inline size_t moments_panel_elements(uint32_t n)
{
    return (size_t)64 * n;
}

#endif
