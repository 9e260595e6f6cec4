/* tensor_view.h - a matrix of a checkpoint, or the part of it that one rank holds; its values */
#ifndef FATHOM_BASE_TENSOR_VIEW_H
#define FATHOM_BASE_TENSOR_VIEW_H

#include <stdbool.h>
#include <stdint.h>

#include "base/dtype.h"
#include "base/weight_form.h"

enum { TENSOR_SCALE_BLOCK = 128 }; /* side of the square that shares one FP8 scale */

#define TENSOR_SCALE_WHOLE UINT32_MAX /* all rows, or all columns, share a scale */

/* Element (r, c) is data[r * row_stride + c], times, when scale is not NULL,
 * scale[(scale_row0 + r) / R * scale_stride + (scale_col0 + c) / C], where R and C are
 * scale_block_row and scale_block_col, or 128 where these are 0. With a source it is the source's
 * element (source_row0 + r, source_col0 + c), and data and dtype are empty.
 * A vector is one row. An absent tensor is all zero: test n_row. data may be less aligned than
 * its type. Neither data nor source, with n_row > 0, asks the backend to make values: normally
 * distributed with standard deviation `generate_std`, from `generate_seed`, quantized as dtype
 * says. The view is a part of a matrix of row_stride columns: it begins at row generate_row0 of it
 * and at column generate_col0. */
struct tensor_view {
    const void *data; /* host, mapped */
    enum dtype dtype;
    uint32_t n_row;
    uint32_t n_col;
    uint64_t row_stride; /* elements */
    const float *scale;  /* f32 [ceil][scale_stride], 4-byte aligned; NULL: unscaled */
    uint32_t scale_stride;
    uint32_t scale_row0; /* place of element (0, 0) inside its block */
    uint32_t scale_col0;
    uint32_t scale_block_row; /* rows and columns that share a scale; 0: TENSOR_SCALE_BLOCK */
    uint32_t scale_block_col;
    const struct weight_source *source;
    uint32_t source_row0;
    uint32_t source_col0; /* a multiple of the source's block of columns */
    uint64_t generate_seed;
    uint32_t generate_row0;
    uint32_t generate_col0;
    float generate_std;
};

/* tensor_takes_fp8 - whether inputs of this matrix are quantized with ACT_FP8: it is E4M3 or U4,
 * and its scale blocks begin where it does, as groups of its inputs do */
static inline bool tensor_takes_fp8(const struct tensor_view *v)
{
    if (v->n_col % TENSOR_SCALE_BLOCK != 0) return false;
    if (v->source) {
        return v->source->form.code == CODE_U4 && v->source_col0 % TENSOR_SCALE_BLOCK == 0;
    }
    return v->dtype == DTYPE_F8_E4M3 && v->scale_row0 == 0 && v->scale_col0 == 0;
}

/* tensor_takes_int8 - the same with ACT_INT8 and int8 codes: it is U4 or I8. One scale holds for a
 * row of inputs where the weight has one a row, else for 128 of them, and the weight's blocks begin
 * where it does. */
enum tensor_int8 { TENSOR_INT8_NONE, TENSOR_INT8_GROUP, TENSOR_INT8_ROW };
static inline enum tensor_int8 tensor_takes_int8(const struct tensor_view *v)
{
    if (v->n_col % TENSOR_SCALE_BLOCK != 0) return TENSOR_INT8_NONE;
    if (v->source) return tensor_takes_fp8(v) ? TENSOR_INT8_GROUP : TENSOR_INT8_NONE;
    if (v->dtype != DTYPE_I8) return TENSOR_INT8_NONE;
    if (v->scale_block_col == TENSOR_SCALE_WHOLE) return TENSOR_INT8_ROW;
    if (!v->scale && v->data) return TENSOR_INT8_ROW;
    bool is_block = v->scale_block_col == 0 || v->scale_block_col == TENSOR_SCALE_BLOCK;
    return is_block && v->scale_col0 == 0 ? TENSOR_INT8_GROUP : TENSOR_INT8_NONE;
}

/* tensor_view_is_float - whether elements have a value: F32, F16, BF16, F8_E4M3, a source, or I8
 * with scales or made up */
bool tensor_view_is_float(const struct tensor_view *v);

/* tensor_view_is_block128 - whether a scale belongs to a square of TENSOR_SCALE_BLOCK; so is what
 * has none */
static inline bool tensor_view_is_block128(const struct tensor_view *v)
{
    return !v->source && (!v->scale || (v->scale_block_row % TENSOR_SCALE_BLOCK == 0 &&
                                        v->scale_block_col % TENSOR_SCALE_BLOCK == 0 &&
                                        v->scale_block_row <= TENSOR_SCALE_BLOCK &&
                                        v->scale_block_col <= TENSOR_SCALE_BLOCK));
}

/* tensor_view_row - n elements of a row from column col0 on, as f32
 *
 * This is the meaning of a stored element: its type's value, times its scale.
 * Needs    data or a source; a type that is a float; rows and columns that the view has.
 * Numerics one rounding, of the product with the scale. */
void tensor_view_row(const struct tensor_view *v, uint32_t row, uint32_t col0, uint32_t n,
                     float *out);

/* tensor_view_scale - what the stored element (row, col) is multiplied by; 1 in an unscaled view.
 * For a view without data the scale of its made elements. Not for a view with a source. */
float tensor_view_scale(const struct tensor_view *v, uint32_t row, uint32_t col);

/* tensor_view_make - n stored elements of a view without data, as backends of the host make them
 * tensor_view_make_row - their values
 *
 * An element depends on generate_seed and its place in the whole matrix alone.
 * E4M3 has one power-of-two scale, which puts 8 standard deviations into the range; I8 has one that
 * puts 4 there, and ends at +-127.
 *
 *   raw  in the view's type
 *
 * Needs    no data; a type that is a float. */
void tensor_view_make(const struct tensor_view *v, uint32_t row, uint32_t col0, uint32_t n,
                      void *raw);
void tensor_view_make_row(const struct tensor_view *v, uint32_t row, uint32_t col0, uint32_t n,
                          float *out);

#endif
