/* weight_formats.h - the tensors that stand for a matrix in each kind of checkpoint
 *
 * A linear layer "x" is "x.weight" in a plain checkpoint. Tools that quantize put codes, scales and
 * zeros in its place, under names of their own. Names, types and shapes say which; JSON files are
 * asked for little else.
 */
#ifndef FATHOM_MODEL_WEIGHT_FORMATS_H
#define FATHOM_MODEL_WEIGHT_FORMATS_H

#include <stdbool.h>
#include <stdint.h>

#include "base/weight_form.h"
#include "fathom/err.h"

struct checkpoint;
struct model_config;
struct tensor;

/* What may stand under a module's name. */
enum weight_part_name {
    PART_WEIGHT,
    PART_SCALE_INV,
    PART_SCALE,
    PART_SCALE_2,
    PART_QWEIGHT,
    PART_QZEROS,
    PART_SCALES,
    PART_G_IDX,
    PART_PACKED,
    PART_PACKED_SHAPE,
    PART_ZERO_POINT,
    PART_PACKED_G_IDX,
    PART_GLOBAL_SCALE,
    PART_OFFSET,
    N_PART,
};

struct weight_format;

/* What a checkpoint has for a need. */
struct weight_found {
    const struct tensor *part[N_PART];  /* NULL: it is not there */
    const struct weight_format *format; /* NULL: none was recognised */
    struct weight_form form;
};

struct weight_format {
    const char *name;                                /* "awq" */
    enum weight_part_name code, scale, zero, global; /* N_PART: the format has none */
    bool global_divides;
    bool (*claims)(const struct weight_found *f, uint32_t n_row, uint32_t n_col);
    /* checks types and shapes, writes f->form */
    fathom_err (*shape)(struct weight_found *f, const struct model_config *config, uint32_t n_row,
                        uint32_t n_col, fathom_diag *d);
    /* as struct weight_source has them; NULL: codes lie row by row, one to an element */
    void (*codes)(const struct weight_source *s, uint32_t row, uint32_t col, uint32_t n,
                  uint8_t *out);
    float (*read_scale)(const struct weight_source *s, uint32_t row, uint32_t block, int *zero);
};

/* weight_format_find - the tensors under the name of a linear weight, and what they are
 *
 *   name  "x.weight", the matrix [n_row][n_col]
 * Edge    without any of them out->format is NULL.
 * Errors  EMISMATCH naming tensor, value seen and value needed; out->part is filled all the same.
 *         EUNSUPPORTED for a form of the format that is not read. */
fathom_err weight_format_find(struct weight_found *out, const struct checkpoint *c,
                              const struct model_config *config, const char *name, uint32_t n_row,
                              uint32_t n_col, fathom_diag *d);

/* weight_format_scale - the tensor of its scales; NULL: it has none
 * weight_format_uses - whether a part is there and is one that the format knows */
const struct tensor *weight_format_scale(const struct weight_found *f);
bool weight_format_uses(const struct weight_found *f, enum weight_part_name part);

/* weight_format_check_values - what only the tensors' contents tell: scales that are finite and not
 * negative, offsets that are zero, inputs in the order of their groups
 * Errors  EFORMAT, EUNSUPPORTED, naming the tensor. */
fathom_err weight_format_check_values(const struct weight_found *f, uint32_t n_col, fathom_diag *d);

/* weight_format_source - how to unpack a matrix of a format that has `codes` */
void weight_format_source(struct weight_source *out, const struct weight_found *f,
                          const struct model_config *config, uint32_t n_row, uint32_t n_col);

/* weight_check_shape - EMISMATCH, naming the dimension, unless t is [n_row][n_col], or with one
 * dimension [n_col] */
fathom_err weight_check_shape(const struct tensor *t, uint32_t n_dim, uint32_t n_row,
                              uint32_t n_col, fathom_diag *d);

#endif
