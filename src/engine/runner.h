/* runner.h - the step runner that the program uses: one model on one backend */
#ifndef FATHOM_ENGINE_RUNNER_H
#define FATHOM_ENGINE_RUNNER_H

#include <stdint.h>

#include "engine/memory_plan.h"
#include "engine/settings.h"
#include "engine/step_runner.h"

struct backend;
struct checkpoint;
struct model_config;
struct runner_stage;

/* runner_create - load the weights onto the backend and allocate all that a step needs
 *
 *   checkpoint  needed during the call only
 *   plan        made from the same settings: says how many pages there are
 * Errors  everything that binding and preparing weights can meet, with a message. */
fathom_err runner_create(struct step_runner **out, const struct engine_settings *s,
                         const struct memory_plan *plan, const struct model_config *config,
                         const struct checkpoint *checkpoint, fathom_diag *d);

/* runner_create_on - the same over a backend that the caller has made from the settings; it is the
 * runner's from now on, also after a failure */
fathom_err runner_create_on(struct step_runner **out, struct backend *backend,
                            const struct engine_settings *s, const struct memory_plan *plan,
                            const struct model_config *config, const struct checkpoint *checkpoint,
                            fathom_diag *d);

/* runner_make_backend - the backend that the settings want, of their rank; errors as of its kind */
fathom_err runner_make_backend(struct backend **out, const struct engine_settings *s,
                               const struct model_config *config, fathom_diag *d);

/* runner_block - block i, 0 .. max_flight - 1, of those that `host` points at in turn. launch and
 * draw may also be given a step from the block with the same number of another runner. */
void *runner_block(const struct step_runner *r, uint32_t i);

/* runner_set_stage - make it the runner of one of several stages, before its first step. Then
 * launch waits for the stage before, and only the last stage runs passes of drafts. */
void runner_set_stage(struct step_runner *r, const struct runner_stage *stage);

/* runner_use_block - with several stages, while no step is under way: the next step has this block
 * */
void runner_use_block(struct step_runner *r, uint32_t i);

/* runner_layer - the layer whose operators were enqueued last, for messages; the runner's thread */
uint32_t runner_layer(const struct step_runner *r);

/* runner_backend_name - "cpu"; runner_device - "AMD EPYC, avx512, 2 threads" */
const char *runner_backend_name(const struct step_runner *r);
const char *runner_device(const struct step_runner *r);

/* runner_numerics - of its backend (backend.h) */
const char *runner_numerics(const struct step_runner *r);

/* runner_weights_bytes - the size of the prepared weights */
uint64_t runner_weights_bytes(const struct step_runner *r);

#endif
