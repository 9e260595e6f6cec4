/* feedback.h - codes of rows, each input's rounding made good by the inputs that come after (GPTQ)
 *
 * Inputs are coded one by one, those of large moments first. What rounding has changed in the
 * output so far moves the number that is rounded next by what changes the output back the most.
 *
 * Source  Frantar et al., GPTQ, 2023: the same codes as its updates by the inverse of the moments,
 *         without an inverse (Chen et al., The Geometry of LLM Quantization, 2025).
 */
#ifndef FATHOM_QUANTIZE_FEEDBACK_H
#define FATHOM_QUANTIZE_FEEDBACK_H

#include <stdint.h>

#include "quantize/codes.h"

enum { FEEDBACK_ROWS = 16, FEEDBACK_BLOCK = 128 };

/* What the inputs of a matrix are. */
struct feedback {
    const float *factor;   /* of moments_factor, [n_col] rows */
    const uint32_t *order; /* [n_col] place s is input order[s]; the last place is coded first */
};

/* Rows that are coded together. */
struct feedback_rows {
    uint32_t n_row, n_col;            /* at most FEEDBACK_ROWS */
    const float *w;                   /* [n_row][n_col] */
    uint32_t group;                   /* inputs that share a scale */
    const struct codes_scale *scales; /* [n_row][n_col / group] */
    bool is_u4;
};

/* feedback_codes - codes, as codes_u4 or codes_i8 write them
 *
 *   sums         f32 [n_col][FEEDBACK_ROWS], scratch
 *   differences  f32 [FEEDBACK_BLOCK][FEEDBACK_ROWS], scratch
 *   codes        u8 [n_row][n_col], written
 * Returns   codes that are clipped (codes_is_clipped)
 * Numerics  a row's codes depend on that row and on f. Cost n_col^2 multiply-adds a row. */
uint64_t feedback_codes(const struct feedback *f, const struct feedback_rows *rows, float *sums,
                        float *differences, uint8_t *codes);

/* feedback_error - squared error of such codes, without regard to inputs */
double feedback_error(const struct feedback_rows *rows, const uint8_t *codes);

#endif
