/* down_scale.h - factors between up and down of a feed-forward block (activation-aware scaling)
 *
 * Input k of down is silu(gate x) * (up x): row k of up divided by a factor and column k of down
 * multiplied by it give the same block, whatever else reads its input. Columns whose inputs are
 * large are then coded with finer steps.
 *
 * Source  Lin et al., AWQ, 2023.
 */
#ifndef FATHOM_QUANTIZE_DOWN_SCALE_H
#define FATHOM_QUANTIZE_DOWN_SCALE_H

#include "fathom/err.h"
#include "quantize/plan.h"

struct thread_pool;

/* down_scale_choose - factors [n_col] of a down projection's columns
 *
 *   squares  f32 [n_col] sums of its inputs' squares
 * The factors are powers r = 0, 0.05 .. 0.95 of the inputs' root mean squares, their geometric mean
 * 1; r is the one of least error over at most 512 rows, evenly, errors weighted by the squares.
 * Numerics  the same bits for any number of threads. Errors ENOMEM. */
fathom_err down_scale_choose(float *factors, const struct tensor_view *down,
                             const struct quant_scheme *s, const float *squares,
                             struct thread_pool *pool, fathom_diag *d);

#endif
