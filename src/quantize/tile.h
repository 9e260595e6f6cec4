/* tile.h - the inner loop of products of matrices
 *
 * Numerics  f32, each sum in the order of k, no multiply-add: the same bits on every processor.
 */
#ifndef FATHOM_QUANTIZE_TILE_H
#define FATHOM_QUANTIZE_TILE_H

#include <stddef.h>

enum { TILE_ROWS = 4, TILE_COLS = 16 };

/* tile_add - c[i][j] += sum over k of a[k a_k + i a_i] x b[k b_k + j]
 *
 *   c  [TILE_ROWS][TILE_COLS]
 *   n  terms of the sums */
void tile_add(float c[TILE_ROWS][TILE_COLS], const float *a, size_t a_k, size_t a_i, const float *b,
              size_t b_k, size_t n);

#endif
