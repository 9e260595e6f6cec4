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
    struct admission_config admission; /* max_num_seqs and max_num_batched_tokens are info's */
    bool priorities;
    uint32_t n_vocab_used;
    uint32_t max_score; /* as in sched_config; the runner has rows for so many more logits */
    uint64_t seed;
    bool no_prefix_cache;
    uint32_t share_prompts;        /* share_config.least; 0: lanes share no prompt */
    struct offload_config offload; /* n_ram_page 0: no tiers; tiers need the prefix cache */
    struct page_events *events;    /* the engine's on success, else still the caller's; NULL: nobody
                                      is told of pages; needs the prefix cache */
};

/* engine_create - start the engine's thread
 *
 *   runner      belongs to the engine on success, else still to the caller. The limits of its
 *               layout equal those of c->info
 *   checkpoint  belongs to the engine on success too; fathom_get_file reads its files. NULL: there
 *               are none
 * Errors  EINVAL, ENOMEM, EIO when the thread cannot start. */
fathom_err engine_create(fathom_engine **out, const struct engine_config *c,
                         struct step_runner *runner, struct checkpoint *checkpoint, fathom_diag *d);

/* engine_check - assert the invariants that can be checked from any thread */
void engine_check(fathom_engine *e);

#endif
