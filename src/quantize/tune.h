/* tune.h - what calibration says of a matrix: how much its inputs matter, their feedback
 *
 * Gate, up and down of a feed-forward block are looked at together: rows that texts gave its inputs
 * go through the source's gate and up, which gives down's inputs. An expert takes the tokens that
 * were routed to it; one of fewer than TUNE_FEW takes tokens of the whole layer, and so do blocks
 * that every token goes through. At most TUNE_ROWS tokens are taken, evenly.
 */
#ifndef FATHOM_QUANTIZE_TUNE_H
#define FATHOM_QUANTIZE_TUNE_H

#include <stdbool.h>
#include <stdint.h>

#include "fathom/err.h"
#include "quantize/matrix.h"
#include "quantize/plan.h"

struct thread_pool;
struct tuner;

enum { TUNE_FEW = 64, TUNE_ROWS = 16384 };

/* tuner_create - for the matrices of a plan with METHOD_SCALE or METHOD_GPTQ
 *
 *   dir    holds the calibration's files when tuner_matrix is called
 *   n_row  their tokens
 * Owns    plan, dir and pool are borrowed.
 * Errors  EINVAL: a width that is no multiple of 16; ENOMEM. */
fathom_err tuner_create(struct tuner **out, const struct plan *plan, const char *dir,
                        uint64_t n_row, struct thread_pool *pool, unsigned n_thread,
                        fathom_diag *d);
void tuner_destroy(struct tuner *t); /* accepts NULL */

/* tuner_bytes - what a tuner of this plan holds, besides mapped files */
uint64_t tuner_bytes(const struct plan *plan, uint64_t n_row, unsigned n_thread);

/* How matrix i was tuned. */
enum tuned {
    TUNED_NOT, /* it is none of a feed-forward block, or of the draft layer: METHOD_MSE */
    TUNED,
    TUNED_FEW, /* an expert that too few tokens went to */
};

/* tuner_matrix - fill importance, factors and feedback of matrix i's order
 *
 *   order  what it points to then is valid until the next call
 * Cost    of the first matrix of a block: its rows through gate and up, and for METHOD_GPTQ the
 *         moments of its inputs and their factor.
 * Errors  those of calibration_open; ENOMEM. */
fathom_err tuner_matrix(struct tuner *t, size_t i_matrix, struct matrix_order *order,
                        enum tuned *how, fathom_diag *d);

#endif
