/* calibrate.h - texts through a model's layers, for the methods of fathom quantize that need what
 * matrices read */
#ifndef FATHOM_CLI_CALIBRATE_H
#define FATHOM_CLI_CALIBRATE_H

#include "cli/cli.h"
#include "fathom/err.h"

struct model_config;

struct calibration;
struct convert_calibration;

/* calibration_begin - read --calibration and settle what computes; nothing runs yet
 *
 *   checkpoint, config  of `model`; they outlive it
 * Errors  EINVAL: no --calibration; those of evaluation_texts_read and settings_resolve. */
fathom_err calibration_begin(struct calibration **out, const struct settings *settings,
                             const struct model_source *model, struct checkpoint *checkpoint,
                             const struct model_config *config, fathom_diag *d);
void calibration_end(struct calibration *c); /* accepts NULL */

/* calibration_order - what a conversion is given; it lives as long as c */
const struct convert_calibration *calibration_order(const struct calibration *c);

#endif
