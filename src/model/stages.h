/* stages.h - the list of layers cut into runs, one for each stage of a pipeline */
#ifndef FATHOM_MODEL_STAGES_H
#define FATHOM_MODEL_STAGES_H

#include <stdbool.h>
#include <stdint.h>

#include "backend/parallel.h"
#include "fathom/err.h"
#include "kv/layout.h"

struct model_config;

/* stages_cut - the layers of each of n_stage stages, so that the largest stage is as small as it
 * can be
 *
 * A stage's size is its parameters: of the layers, and of what lies at the model's ends. That is a
 * matter of the config alone.
 *
 *   p         pp.size and layer_ends are written; pp.rank becomes 0
 *   with_mtp  the draft layer is loaded, and the embedding for it where it is
 * Errors  EINVAL: more stages than layers, or than PARALLEL_STAGES_MAX. */
fathom_err stages_cut(struct parallel *p, const struct model_config *config, bool with_mtp,
                      uint32_t n_stage, fathom_diag *d);

/* stages_layout - the part of a page record that a rank's cache has: its stage's layers, the draft
 * layer with the last one. The parts of all stages, in order, are the record of the whole model. */
void stages_layout(struct kv_layout *out, const struct model_config *config, enum kv_type type,
                   bool with_mtp, const struct parallel *p);

/* stages_record_offset - where that part begins in the record of the whole model; of the stage
 * behind the last one, how long the record is */
uint64_t stages_record_offset(const struct model_config *config, enum kv_type type, bool with_mtp,
                              const struct parallel *p);

#endif
