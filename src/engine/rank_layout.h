/* rank_layout.h - which way to cut a model over ranks, before anything is loaded
 *
 * There are two ways (backend/parallel.h). Latency: all ranks share every layer, each byte of a
 * step is read by all of them side by side. Throughput: each rank has requests of its own, so that
 * no token of a cache is kept twice, and experts whole. Which is better for a load follows from
 * their bytes and operations (step_time.h): both are planned as if they were given, and the one
 * that is expected to make more tokens a second is taken.
 */
#ifndef FATHOM_ENGINE_RANK_LAYOUT_H
#define FATHOM_ENGINE_RANK_LAYOUT_H

#include <stdbool.h>
#include <stdint.h>

#include "engine/memory_plan.h"
#include "engine/step_time.h"

/* One way, planned for a load. */
struct layout_plan {
    fathom_layout layout;
    fathom_err err;  /* it cannot be: */
    fathom_diag why; /* for this reason */
    struct engine_settings settings;
    struct memory_plan memory; /* of a rank */
    uint64_t n_token;          /* that the caches of all ranks hold */
    uint32_t n_running;        /* of the load's requests, those that run at once */
    double step_s;             /* of a step of them, without prompts */
    double first_token_s;      /* of a prompt that comes alone, from its first step on */
    bool shares_prompt;        /* which all lanes compute (share.h) */
    double prompt_tokens_per_s;
    double output_tokens_per_s; /* with prompts in between as requests end */
};

enum { LAYOUTS = 2, LAYOUT_OPTIONS_BYTES = 64, LAYOUT_REASON_BYTES = 400 };

struct rank_layout {
    uint32_t n_rank;
    fathom_load load; /* with every default filled in */
    struct machine_figures machine;
    struct layout_plan plans[LAYOUTS]; /* latency, throughput */
    int chosen;                        /* the one that is expected to do most; -1: none can be */
    char reason[LAYOUT_REASON_BYTES];  /* one line: "throughput over 8 ranks: ..." */
};

/* layout_name - "latency"; layout_options - what gives it by hand: "-tp 8" */
const char *layout_name(fathom_layout layout);
const char *layout_options(char out[LAYOUT_OPTIONS_BYTES], fathom_layout layout, uint32_t n_rank);

/* rank_layout_compare - both ways, planned for the load
 *
 *   o                its layout is not looked at; of layout_ranks 0 its world and data_parallel
 *                    say how many ranks there are
 *   c                NULL: types that the config lets expect
 *   available_bytes  memory that is free before loading, of a rank; 0: what is free now
 * Errors  EINVAL  the number of ranks is not known, or the load is more than a context. A way that
 *                 cannot be says so in its plan. */
fathom_err rank_layout_compare(struct rank_layout *out, const fathom_options *o,
                               const struct model_config *config, const struct checkpoint *c,
                               uint64_t available_bytes, fathom_diag *d);

/* rank_layout_resolve - o with a layout that is given, as the other options would give it
 *
 *   choice   filled in where o leaves the choice, else zeroed
 * Errors  EINVAL  other options say otherwise, or layout_ranks is missing or given without a layout
 *         those of rank_layout_compare; no way can be: the reason of the first */
fathom_err rank_layout_resolve(fathom_options *out, struct rank_layout *choice,
                               const fathom_options *o, const struct model_config *config,
                               const struct checkpoint *c, uint64_t available_bytes,
                               fathom_diag *d);

#endif
