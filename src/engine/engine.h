/* engine.h - the engine over a step runner, below include/fathom/fathom.h
 *
 * fathom_open (open.c) makes a runner from a checkpoint and then an engine from the runner; tests
 * and benches bring runners of their own.
 */
#ifndef FATHOM_ENGINE_ENGINE_H
#define FATHOM_ENGINE_ENGINE_H

#include <stdbool.h>
#include <stdint.h>

#include "engine/admission.h"
#include "engine/offload.h"
#include "engine/page_events.h"
#include "engine/step_runner.h"
#include "fathom/fathom.h"

struct checkpoint;

struct engine_config {
    fathom_info info; /* complete; its strings are copied */
    uint32_t max_queued;
    struct admission_config admission; /* its limits of requests and tokens are taken from info */
    bool priorities;
    uint32_t n_vocab_used;
    uint32_t max_score; /* of sched_config; the runner has rows of logits for them */
    uint64_t seed;
    bool no_prefix_cache;
    uint32_t share_prompts;        /* share_config.least; 0: none is shared */
    struct offload_config offload; /* n_ram_page 0: there are no tiers; needs the prefix cache */
    struct page_events *events;    /* the engine's on success, else still the caller's; NULL: nobody
                                      is told of pages; needs the prefix cache */
};

/* engine_create - start the engine's thread
 *
 *   runner      the engine's on success, else still the caller's; its layout's limits are those of
 *               c->info
 *   checkpoint  likewise; serves fathom_get_file; NULL: there are no files
 * Errors  EINVAL, ENOMEM, EIO when the thread cannot start. */
fathom_err engine_create(fathom_engine **out, const struct engine_config *c,
                         struct step_runner *runner, struct checkpoint *checkpoint, fathom_diag *d);

/* engine_check - assert the invariants that any thread may look at */
void engine_check(fathom_engine *e);

#endif
