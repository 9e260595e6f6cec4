/* calibration.h - rows that calibration texts gave: inputs of the feed-forward blocks, in files
 *
 * One file a layer in the target's folder: what the block's norm gave for each token, and the
 * experts that the router chose for it. They are written while the source runs over the texts and
 * are gone when the conversion is done.
 */
#ifndef FATHOM_QUANTIZE_CALIBRATION_H
#define FATHOM_QUANTIZE_CALIBRATION_H

#include <stdbool.h>
#include <stdint.h>

#include "base/limits.h"
#include "base/new_file.h"
#include "base/os.h"
#include "fathom/err.h"

/* Where what inputs are comes from. */
struct convert_calibration {
    const char *text; /* what names it in the order: files of other texts are another order */
    uint64_t n_row;   /* tokens */
    /* Makes the files below in dir, for all layers that are no drafts' and are not there
     * already. */
    fathom_err (*make)(void *arg, const char *dir, fathom_diag *d);
    void *arg;
};

struct calibration_shape {
    uint64_t n_row; /* tokens */
    uint32_t hidden;
    uint32_t n_used; /* experts of a token; 0: a layer without */
};

/* calibration_path - of layer `layer`'s file in folder `dir`; EINVAL: too long */
fathom_err calibration_path(char out[LIMIT_PATH_BYTES], const char *dir, uint32_t layer);

/* calibration_bytes - of such a file */
uint64_t calibration_bytes(const struct calibration_shape *s);

/* calibration_write - rows [row0, row0 + n_row)
 *
 *   rows     f32 [n_row][hidden]
 *   experts  u16 [n_row][n_used]; not read with n_used 0
 * Numerics  rows are rounded to bf16. Errors those of new_file_write; ENOMEM. */
fathom_err calibration_write(struct new_file *f, const struct calibration_shape *s, uint64_t row0,
                             uint64_t n_row, const float *rows, const uint16_t *experts,
                             fathom_diag *d);

/* A layer's file, mapped. A zeroed one is closed. */
struct calibration_layer {
    struct file_map map;
    struct calibration_shape shape;
    const uint16_t *rows;    /* bf16 [n_row][hidden] */
    const uint16_t *experts; /* [n_row][n_used] */
};

/* calibration_open - ENOTFOUND, EIO; EFORMAT: not of this shape
 * calibration_close - accepts a closed one */
fathom_err calibration_open(struct calibration_layer *l, const char *dir, uint32_t layer,
                            const struct calibration_shape *s, fathom_diag *d);
void calibration_close(struct calibration_layer *l);

/* calibration_remove - every file of calibration_path below n_layer; those not there are fine */
fathom_err calibration_remove(const char *dir, uint32_t n_layer, fathom_diag *d);

#endif
