/* weight_form.h - how the elements of a matrix are coded, whatever file they came from
 *
 * An element is its code's value, times the scale of its block. U4 counts from a zero: it is
 * (code - zero) times the scale. The product is exact before its one rounding to f32, because a
 * code and a scale have few bits; that value is what the element means.
 */
#ifndef FATHOM_BASE_WEIGHT_FORM_H
#define FATHOM_BASE_WEIGHT_FORM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/dtype.h"

enum weight_code {
    CODE_WIDE, /* an element of weight_form.type */
    CODE_E4M3,
    CODE_I8,   /* -128 .. 127 */
    CODE_U4,   /* 0 .. 15 */
    CODE_E2M1, /* sign, two bits of exponent, one of mantissa: 0 .5 1 1.5 2 3 4 6 */
};

struct weight_form {
    enum weight_code code;
    enum dtype type;       /* of CODE_WIDE */
    enum dtype scale_type; /* as stored: F32, F16, BF16, F8_E4M3; U8: 2^(s - 127). NONE: unscaled */
    uint32_t block_row;    /* rows that share a scale; 0: all */
    uint32_t block_col;    /* columns that share a scale; 0: all */
    bool has_zero;         /* CODE_U4: a zero is stored for each scale; else it is 8 */
};

/* weight_form_equal - whether matrices can lie in one */
bool weight_form_equal(const struct weight_form *a, const struct weight_form *b);

/* weight_form_bytes - codes, scales and zeros of a matrix, as files store them */
uint64_t weight_form_bytes(const struct weight_form *f, uint32_t n_row, uint32_t n_col);

/* weight_form_text - "BF16", "e4m3 128x128 F32", "i8 channel BF16", "u4 g64 F16 + zero" */
enum { WEIGHT_FORM_TEXT_BYTES = 48 };
const char *weight_form_text(char out[WEIGHT_FORM_TEXT_BYTES], const struct weight_form *f);

/* A matrix whose codes do not lie row by row, one to a byte or more: they are unpacked on demand.
 * Pure functions of mapped memory: any thread may call. */
struct weight_source {
    struct weight_form form; /* block_row is 1: a scale for each row and block of columns */
    uint32_t n_row;          /* of the whole matrix */
    uint32_t n_col;
    const uint8_t *code_data; /* in the layout that `codes` knows; any alignment */
    const uint8_t *scale_data;
    const uint8_t *zero_data; /* NULL: none */
    int zero_add;             /* added to what zero_data holds */
    float global;             /* multiplies or divides every scale, rounded once */
    bool global_divides;
    bool is_made; /* there is no data: values come from made_seed (weight_source_make) */
    uint64_t made_seed;
    /* n codes of a row from column col on, one a byte */
    void (*codes)(const struct weight_source *s, uint32_t row, uint32_t col, uint32_t n,
                  uint8_t *out);
    /* the scale of a row's block of columns; *zero for CODE_U4 */
    float (*scale)(const struct weight_source *s, uint32_t row, uint32_t block, int *zero);
};

/* weight_source_make - a matrix of U4 or E2M1 whose codes, scales and zeros are made up
 *
 * Codes are spread evenly over all sixteen; scales lie within a quarter of what gives elements the
 * standard deviation `std`, zeros are 6 to 9. They depend on the seed and their place in the whole
 * matrix alone:
 *   code (r, c)            bits 4 (c % 16) .. of rng_mix(seed, r, c / 16)
 *   scale, zero (r, b)     bits 0 .. 7, and 8 .. 9, of rng_mix(~seed, r, b)
 *   form  block_row is 1 */
void weight_source_make(struct weight_source *out, const struct weight_form *form, uint32_t n_row,
                        uint32_t n_col, uint64_t seed, float std);

/* weight_scale_value - element i of a tensor of scales as f32; U8 is an exponent plus 127 */
float weight_scale_value(enum dtype type, const void *data, uint64_t i);

/* e2m1_value - of a code 0 .. 15 */
float e2m1_value(uint8_t code);

#endif
