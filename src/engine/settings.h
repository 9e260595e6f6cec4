/* settings.h - fathom_options with every default filled in and every range checked */
#ifndef FATHOM_ENGINE_SETTINGS_H
#define FATHOM_ENGINE_SETTINGS_H

#include <stdbool.h>
#include <stdint.h>

#include "engine/admission.h"
#include "engine/step_graph.h"
#include "fathom/fathom.h"
#include "model/forward.h"

struct model_config;
struct stage_net;

enum {
    SETTINGS_MAX_NUM_SEQS = 64,
    SETTINGS_MAX_NUM_SEQS_GPU = 256, /* where there is room: memory_plan_fit */
    SETTINGS_MAX_NUM_BATCHED_TOKENS = 2048,
    SETTINGS_MAX_QUEUED = 1024,
    SETTINGS_SHARE_PROMPTS = 256,
    SETTINGS_MAX_SCORE = 256, /* prompt tokens of a step whose logits are wanted */
};

struct engine_settings {
    enum fathom_backend backend;     /* never AUTO */
    bool dummy;                      /* weights are made up */
    const char *quantization;        /* what the checkpoint's method must be, or NULL */
    struct model_limits limits;      /* max_context is max_model_len */
    bool fit_context;                /* it may become what the cache has room for */
    struct model_place place;        /* of the rank that runs; of several, of rank 0 */
    int devices[PARALLEL_RANKS_MAX]; /* GPUs of the ranks that run here */
    struct model_loading loading;
    uint32_t max_num_seqs;
    bool fit_seqs;        /* it may become SETTINGS_MAX_NUM_SEQS_GPU */
    const char *seqs_why; /* of a default: for the log and the plan; NULL: given */
    uint32_t max_queued;
    struct admission_config admission;
    bool priorities;
    uint32_t n_draft;   /* with_mtp of the limits if not 0 */
    uint32_t max_score; /* there are rows of logits for so many prompt tokens besides the draws */
    uint32_t n_vocab_used;
    uint64_t kv_cache_bytes; /* 0: what memory_plan.h decides */
    uint64_t kv_cache_pages; /* the same said in pages; 0: not given */
    double memory_utilization;
    bool no_prefix_cache;
    uint32_t share_prompts; /* 0: none is */
    uint64_t offload_ram_bytes;
    const char *offload_dir; /* the caller's; NULL: none */
    uint64_t offload_dir_bytes;
    const fathom_transfer *transfer;   /* the caller's; NULL: none */
    const fathom_kv_events *kv_events; /* likewise */
    const fathom_hosts *hosts;         /* the caller's; NULL: this one alone */
    struct stage_net *stage_net;       /* of stages on several hosts: to the others; borrowed */
    uint32_t
        max_flight; /* steps under way at most. Of several stages as many as there are, of other
                            requests each. Else, where the backend is asynchronous, 1, or 2 for a
                            step that is launched while the one before it runs */
    struct step_graph_config graphs; /* n_size 0: none; padding_page is the runner's */
    bool usual_graphs;               /* their sizes are step_graph_sizes' */
};

/* settings_n_rank - ranks that run here; a slice runs by itself */
static inline uint32_t settings_n_rank(const struct engine_settings *s)
{
    const uint32_t n_node = s->hosts ? s->hosts->n_node : 1;
    return s->place.parallel.is_slice ? 1 : parallel_n_rank(&s->place.parallel) / n_node;
}

/* settings_place - who computes rank i of those that run here. On a CPU they share the threads. */
void settings_place(struct model_place *out, const struct engine_settings *s, uint32_t i);

/* settings_set_seqs - let n >= 1 requests run at once: rows of a step and recorded sizes follow.
 * `why` becomes seqs_why. */
void settings_set_seqs(struct engine_settings *s, uint32_t n, const char *why);

/* settings_stored - the config with the method of quantization that the weights get: made-up ones
 * that of --quantization, ones that are quantized while they load FP8 */
struct model_config settings_stored(const struct engine_settings *s,
                                    const struct model_config *config);

/* settings_resolve - what the options mean for a model
 *
 * AUTO: backend cuda where there is a device, else cpu; activations f32 for an f32 checkpoint, else
 * bf16, on cuda fp8 if the widths of a rank are multiples of 128; cache bf16.
 * max_num_seqs that is not given is 64 until memory_plan_fit has seen what more would take.
 * Errors  EINVAL, EUNSUPPORTED: names the flag, the value and the range. */
fathom_err settings_resolve(struct engine_settings *out, const fathom_options *o,
                            const struct model_config *config, fathom_diag *d);

#endif
