/* codes.h - numbers to codes: rounding, scales, the search for where to clip
 *
 * Pure, in f32, each element by itself or in lanes of a fixed number: the same bits wherever it
 * runs. A code's value is (code - zero) x scale with the scale as it will be stored.
 */
#ifndef FATHOM_QUANTIZE_CODES_H
#define FATHOM_QUANTIZE_CODES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
    CODES_CLIPS = 32, /* scales that the search tries */
    CODES_LANES = 8,
};

/* What n numbers that share a scale become. */
struct codes_scale {
    float scale; /* above 0; of u4 a bf16 value */
    int zero;
};

/* How far codes are from what they stand for. */
struct codes_error {
    double error, value; /* sums of squares: of the differences, of the numbers */
    uint64_t n_clipped;  /* numbers that the range of codes ends more than a step before */
    float largest_scale;
};

/* codes_error_add - of both */
static inline void codes_error_add(struct codes_error *to, const struct codes_error *more)
{
    to->error += more->error;
    to->value += more->value;
    to->n_clipped += more->n_clipped;
    if (more->largest_scale > to->largest_scale) to->largest_scale = more->largest_scale;
}

/* codes_u4 - a group as 0 .. 15
 *
 *   w           f32 [n], finite
 *   importance  f32 [n] weights of the squared errors, not negative; NULL: all equal
 *   asymmetric  the zero is chosen, 0 .. 15; else it is 8
 *   searches    of CODES_CLIPS scales the one of least error; else the first of them
 *   codes       u8 [n], written
 *
 * Symmetric scales are clip x largest / 7.5: the code range is 8 down and 7 up of the zero, so that
 * the largest of one sign is met within half a step. Asymmetric ones are clip x (largest -
 * smallest) / 15, zero included in the range. Clips go from 1 down to 0.7.
 * Numerics  scales to bf16, codes to nearest even of w x (1 / scale), then into the range. */
struct codes_scale codes_u4(const float *w, const float *importance, size_t n, bool asymmetric,
                            bool searches, uint8_t *codes, struct codes_error *error);

/* codes_i8 - a row as -127 .. 127; the scale is f32, clip x largest / 127, 1 for zeros */
struct codes_scale codes_i8(const float *w, const float *importance, size_t n, bool searches,
                            int8_t *codes, struct codes_error *error);

/* codes_nearest - the code that stands for what is nearest to w: 0 .. 15 of u4, else -127 .. 127
 * codes_is_clipped - whether code q is more than a step off w */
float codes_nearest(float w, const struct codes_scale *s, bool is_u4);
bool codes_is_clipped(float w, const struct codes_scale *s, float q);

/* codes_e4m3_scale - largest / 448, 1 for zeros; codes_e4m3 - n numbers by a scale */
float codes_e4m3_scale(float largest);
void codes_e4m3(const float *w, size_t n, float scale, uint8_t *codes, struct codes_error *error);

/* codes_largest - the largest magnitude of n; NaN if one of them is not finite */
float codes_largest(const float *w, size_t n);

#endif
