/* matrix.h - one matrix to the bytes of its new tensors, by several threads */
#ifndef FATHOM_QUANTIZE_MATRIX_H
#define FATHOM_QUANTIZE_MATRIX_H

#include <stddef.h>
#include <stdint.h>

#include "fathom/err.h"
#include "quantize/codes.h"
#include "quantize/feedback.h"
#include "quantize/plan.h"

struct thread_pool;

/* Room for the largest matrix of a plan, and a row for each thread. */
struct matrix_room {
    struct thread_pool *pool; /* borrowed */
    unsigned n_thread;
    uint8_t *bytes; /* the new tensors, one after the other as plan_parts_of says */
    struct matrix_worker *workers;
    struct codes_error *errors; /* of each block of rows */
    size_t n_error;
};

/* matrix_room_init - ENOMEM; matrix_room_fini accepts a zeroed one */
fathom_err matrix_room_init(struct matrix_room *r, const struct plan *plan,
                            struct thread_pool *pool, unsigned n_thread, fathom_diag *d);
void matrix_room_fini(struct matrix_room *r);

/* matrix_room_bytes - what a conversion of this plan holds besides the source's mapped files */
uint64_t matrix_room_bytes(const struct plan *plan, unsigned n_thread);

/* What is quantized: element (r, c) of the view x row_factor[r] x col_factor[c]. */
struct matrix_order {
    const char *name; /* for messages */
    const struct tensor_view *view;
    const struct quant_scheme *scheme;
    const float *importance;  /* [n_col] of the squared errors of its columns; NULL: all equal */
    const float *row_factor;  /* NULL: 1 */
    const float *col_factor;  /* NULL: 1 */
    struct feedback feedback; /* of the scheme's METHOD_GPTQ; no factor: without, as METHOD_MSE */
};

/* matrix_quantize - room->bytes are its new tensors
 *
 *   error  added to
 * Numerics  the same bits for any number of threads.
 * Errors    EFORMAT: an element is not finite; names the matrix and the element. */
fathom_err matrix_quantize(struct matrix_room *room, const struct matrix_order *order,
                           struct codes_error *error, fathom_diag *d);

#endif
