/* scorer.h - logits of whole texts: a model on one backend, one text at a time
 *
 * For measuring a model rather than serving it. There is no engine thread, no sampler and no
 * sharing: a text goes through model_forward in pieces, and every row's logits come back.
 */
#ifndef FATHOM_ENGINE_SCORER_H
#define FATHOM_ENGINE_SCORER_H

#include <stdint.h>

#include "engine/settings.h"
#include "fathom/err.h"

struct checkpoint;
struct model_config;
struct scorer;

enum { SCORER_STEP_TOKENS = 256 }; /* a step has no more, whatever the settings say */

/* scorer_open - load the weights onto the settings' backend, with a cache for one text
 *
 *   s  one rank, or several of one host that share every layer; limits.max_context is the longest
 *      text
 *   c  needed during the call only
 * Errors  ENOMEM: it does not fit, as memory_plan_make says it; EUNSUPPORTED: ranks that
 *         share no layer, or weights that the backend does not compute with; EDEVICE. A message
 *         about one rank of several names it. */
fathom_err scorer_open(struct scorer **out, const struct engine_settings *s,
                       const struct model_config *config, const struct checkpoint *c,
                       fathom_diag *d);
void scorer_close(struct scorer *r); /* accepts NULL */

/* scorer_step_tokens - of a step, at most */
uint32_t scorer_step_tokens(const struct scorer *r);

/* scorer_backend_name - "cpu"; scorer_device - "AMD EPYC, avx512, 2 threads" */
const char *scorer_backend_name(const struct scorer *r);
const char *scorer_device(const struct scorer *r);

/* scorer_begin - forget the text */
void scorer_begin(struct scorer *r);

/* scorer_step - n more tokens of the text
 *
 *   ids     [n]
 *   logits  f32 [n][n_vocab], written
 * Needs   1 <= n <= scorer_step_tokens; the text within max_context.
 * Errors  EDEVICE. */
fathom_err scorer_step(struct scorer *r, const int32_t *ids, uint32_t n, float *logits);

#endif
