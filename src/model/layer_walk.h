/* layer_walk.h - a model's layers one at a time: no more than one of them is in memory
 *
 * What a layer gives is its caller's, who gives it to the next one. Embedding, head and draft
 * layers have no part in it.
 */
#ifndef FATHOM_MODEL_LAYER_WALK_H
#define FATHOM_MODEL_LAYER_WALK_H

#include <stdint.h>

#include "model/forward.h"

/* layer_walk_create - a model without weights on a backend of one rank
 *
 *   b  as for model_create; model_destroy ends it
 * Errors  ENOMEM, EDEVICE. */
fathom_err layer_walk_create(struct model **out, struct backend *b,
                             const struct model_config *config, fathom_diag *d);

/* layer_walk_load - layer `layer` in place of the one that was loaded before
 *
 * Errors  as of model_create. */
fathom_err layer_walk_load(struct model *m, const struct model_weights *weights, uint32_t layer,
                           fathom_diag *d);

/* layer_walk_step - the loaded layer over the tokens of a batch
 *
 *   x       f32 [n_token][hidden] the residual stream: read, and then what it is after the layer
 *   normed  f32 [n_token][hidden] what the feed-forward block reads, written
 *   route   f32 [n_token][2 n_expert_used] as buffer_read gives ROUTE, written; of a layer without
 *           experts not touched
 * Writes the tokens' rows in the layer's part of the cache. Waits.
 * Needs   batch within the limits, n_logit_row 0. Errors EDEVICE. */
fathom_err layer_walk_step(struct model *m, const struct batch *batch, const struct kv_cache *kv,
                           float *x, float *normed, float *route);

#endif
