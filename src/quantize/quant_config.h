/* quant_config.h - config.json of a converted checkpoint, in compressed-tensors' form */
#ifndef FATHOM_QUANTIZE_QUANT_CONFIG_H
#define FATHOM_QUANTIZE_QUANT_CONFIG_H

#include <stddef.h>

#include "base/buf.h"
#include "fathom/err.h"
#include "quantize/plan.h"

/* quant_config_write - the source's config.json with another quantization_config
 *
 *   text  n bytes: the source's
 *
 * One form alone is group_0 with the target "Linear", and `ignore` names all that is left. Several
 * (matrices that are left as FP8 are a form) are format "mixed-precision", each with its targets.
 * Names are patterns (re:) over layers and experts where all that fit them are treated alike, else
 * each module is named.
 * Errors  EFORMAT: the source's text; ENOMEM. */
fathom_err quant_config_write(struct buf *out, const struct plan *plan, const char *text, size_t n,
                              fathom_diag *d);

#endif
