/* memory_plan.h - every byte of an engine, computed before anything is loaded
 *
 * With several ranks, it is the plan of one of them. Each rank needs as much as any other, except
 * that stages of a pipeline differ; these have equally many pages, but not of equal size. On a CPU
 * each rank has its share of the machine's memory.
 *
 * Pure: computes sizes from settings, configuration and the names and types in the checkpoint.
 * fathom_open allocates what the plan says, and `fathom plan` prints the same struct. Not counted
 * are the scratch memory of the CPU backend and what a backend needs while it packs weights.
 */
#ifndef FATHOM_ENGINE_MEMORY_PLAN_H
#define FATHOM_ENGINE_MEMORY_PLAN_H

#include <stdbool.h>
#include <stdint.h>

#include "engine/settings.h"
#include "fathom/err.h"
#include "kv/layout.h"
#include "model/weights.h"

struct checkpoint;
struct model_config;

struct memory_part {
    const char *name; /* "latent queries" */
    uint64_t bytes;
};

enum { MEMORY_BUFFERS_MAX = 11 };

/* What each rank of a stage of a pipeline holds. */
struct memory_stage {
    struct layer_run layers;
    uint64_t weights_bytes;
    uint64_t kv_bytes;
    uint64_t total_bytes;
};

struct memory_plan {
    /* weights as the checkpoint stores them, or as the cpu backend keeps them; a kind that is not
     * loaded is 0 */
    struct weight_sizes weights;
    uint64_t weights_bytes;

    /* the cache */
    struct kv_layout kv;     /* this rank's layers */
    struct kv_layout record; /* all layers; differs from kv only if there are several stages */
    uint64_t token_bytes;    /* of one token in this rank's layers */
    uint32_t request_pages;  /* of one request of max_model_len */
    uint32_t n_page_wanted;  /* max_num_seqs requests of max_model_len */
    uint32_t n_page;         /* decided */
    bool is_modest;    /* on a CPU, if no size was given: no more pages than wanted, since other
                                  programs share the memory */
    uint64_t kv_bytes; /* n_page pages */
    uint64_t n_token_capacity; /* n_page * 64 */

    /* activations between operators, at 4 bytes a value, and on a GPU what its operators need
     * besides */
    struct memory_part buffers[MEMORY_BUFFERS_MAX];
    uint32_t n_buffer;
    uint64_t buffers_bytes;

    /* pages outside of the cache */
    uint32_t n_ram_page; /* 0: there are no tiers */
    uint64_t ram_bytes;  /* of host memory; on a CPU total_bytes includes a rank's share of it, on a
                            GPU it is not in total_bytes */
    uint32_t n_disk_page;
    uint64_t disk_bytes;

    uint64_t padding_bytes; /* the page for padding rows of recorded steps; 0: none are recorded */
    uint64_t step_bytes;    /* arrays that describe a step, in host and in device memory */

    struct memory_stage stages[PARALLEL_STAGES_MAX]; /* [n_stage] */
    uint32_t n_stage;                                /* 1: the plan itself */

    uint64_t total_bytes;     /* weights, cache, buffers, step, padding, ram_bytes on a CPU */
    uint64_t available_bytes; /* as given */
    uint64_t usable_bytes;    /* how much of it may be used: the share of memory_utilization, or all
                                 of it if the size of the cache was given */
};

/* memory_available - memory that is free now for a rank: that of the GPU with the least, or a share
 * of the machine's
 *
 *   rank  set to the first rank whose GPU has the least; 0 on a CPU
 * Errors  those of backend_cuda_query. */
fathom_err memory_available(uint64_t *bytes, uint32_t *rank, const struct engine_settings *s,
                            fathom_diag *d);

/* memory_check_host - on a GPU: whether the machine has enough memory free for the memory tier,
 * which total_bytes does not include; ENOMEM names the flag */
fathom_err memory_check_host(const struct memory_plan *p, const struct engine_settings *s,
                             fathom_diag *d);

/* memory_plan_make - sizes and the number of pages
 *
 *   c                NULL: the weights' types are those that the configuration suggests
 *   available_bytes  memory that is free before loading
 * Errors  EINVAL  --kv-offload-ram or --kv-offload-dir-size are too small for their pages
 *         ENOMEM  not even one request of max_model_len fits; the message names what is needed,
 *                 what there is and the flag to change. *out is filled all the same, with the pages
 *                 that would fit. Also: the size that was given for the cache does not fit. */
fathom_err memory_plan_make(struct memory_plan *out, const struct engine_settings *s,
                            const struct model_config *config, const struct checkpoint *c,
                            uint64_t available_bytes, fathom_diag *d);

/* memory_plan_make_here - the same with the memory that is free now
 * Errors  those of memory_available and memory_plan_make; with several GPUs, ENOMEM names the rank
 *         and the GPU that has the least memory. */
fathom_err memory_plan_make_here(struct memory_plan *out, const struct engine_settings *s,
                                 const struct model_config *config, const struct checkpoint *c,
                                 fathom_diag *d);

/* memory_plan_fit - make a plan, and change settings that are to fit the memory
 *
 *   s->fit_context   if no request of s->limits.max_context fits, lower that to the whole pages
 *                    that do
 *   s->fit_seqs      let SETTINGS_MAX_NUM_SEQS_GPU requests run at once, if at least 15 of 16 pages
 *                    are left then
 *   available_bytes  0: the memory that is free now */
fathom_err memory_plan_fit(struct memory_plan *out, struct engine_settings *s,
                           const struct model_config *config, const struct checkpoint *c,
                           uint64_t available_bytes, fathom_diag *d);

#endif
