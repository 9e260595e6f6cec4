/* layer_runner.h - a checkpoint's layers over texts, one layer at a time, on one backend
 *
 * For looking at what layers read. The residual stream between layers is kept by the caller, who
 * takes all texts through one layer before the next: memory holds one layer and a step.
 */
#ifndef FATHOM_ENGINE_LAYER_RUNNER_H
#define FATHOM_ENGINE_LAYER_RUNNER_H

#include <stdint.h>

#include "engine/settings.h"
#include "fathom/err.h"

struct checkpoint;
struct layer_runner;
struct model_config;

enum { LAYER_RUNNER_STEP_TOKENS = 256 };

/* layer_runner_open - without a layer yet
 *
 *   s       of one rank; limits.max_context is the longest text
 *   config, c  outlive it
 * Errors  those of binding the checkpoint and of making a backend; EUNSUPPORTED: several ranks. */
fathom_err layer_runner_open(struct layer_runner **out, const struct engine_settings *s,
                             const struct model_config *config, const struct checkpoint *c,
                             fathom_diag *d);
void layer_runner_close(struct layer_runner *r); /* accepts NULL */

/* layer_runner_step_tokens - of a step, at most */
uint32_t layer_runner_step_tokens(const struct layer_runner *r);

/* layer_runner_embed - x f32 [n][hidden]: what the first layer reads of ids [n], which the
 * vocabulary has */
void layer_runner_embed(const struct layer_runner *r, const int32_t *ids, uint32_t n, float *x);

/* layer_runner_load - a layer instead of the one before; errors as of model_create */
fathom_err layer_runner_load(struct layer_runner *r, uint32_t layer, fathom_diag *d);

/* layer_runner_begin - forget the text */
void layer_runner_begin(struct layer_runner *r);

/* layer_runner_step - n more tokens of the text through the loaded layer
 *
 *   x        f32 [n][hidden] what the layer reads; then what the next one does
 *   normed   f32 [n][hidden] what its feed-forward block reads, written
 *   experts  u16 [n][n_expert_used], written; of a layer without experts not touched
 * Needs   1 <= n <= layer_runner_step_tokens; the text within max_context. Errors EDEVICE. */
fathom_err layer_runner_step(struct layer_runner *r, uint32_t n, float *x, float *normed,
                             uint16_t *experts);

#endif
