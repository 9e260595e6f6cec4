/* step_time.h - how long a step is expected to take, from bytes and operations
 *
 * Nothing is measured here. A step's bytes and operations, of one rank, are divided by what a
 * machine of the kind has been measured to do (struct machine_figures, one table in step_time.c),
 * and what ranks send each other is added. Experts are taken to be chosen uniformly, and a step to
 * draft nothing.
 */
#ifndef FATHOM_ENGINE_STEP_TIME_H
#define FATHOM_ENGINE_STEP_TIME_H

#include <stdbool.h>
#include <stdint.h>

#include "engine/memory_plan.h"

/* What a rank's device does in a second. */
struct machine_figures {
    const char *name;      /* "NVIDIA H200" */
    uint64_t memory_bytes; /* of a GPU, by which it is known; 0: a processor */
    double read_bytes;     /* weights and index keys, in the order in which they lie */
    double gather_bytes;   /* latent rows that were selected */
    double product_ops;    /* operations of products of many rows; a multiply-add is two */
    double expert_ops;     /* the same in routed experts */
    double attend_ops;     /* of attention over latents */
    double expanded_ops;   /* over keys and values that are made of them, for prompts; 0: never */
    double index_ops;      /* of the indexer's scores */
    double send_bytes;     /* to other ranks */
    double sum_bytes;      /* of a value of the sum of a rank's experts, as it is sent */
    double layer_s;        /* that a layer takes whatever there is to compute */
    double index_s;        /* and its indexer, where it has to select */
    double meet_s;         /* from what a rank sends to what another does with it */
    uint32_t
        own_rows_least; /* rows of a step from which on ranks share what is not cut; 0: never */
};

/* machine_figures_find - of the GPU that has about as much memory, or of a rank's threads
 *
 *   memory_bytes  that a rank may have; of a processor not looked at */
void machine_figures_find(struct machine_figures *out, const struct engine_settings *s,
                          uint64_t memory_bytes);

/* What each lane computes in a step: each rank that has requests of its own, or all ranks that
 * share their rows. */
struct step_rows {
    double n_row;       /* tokens */
    double n_request;   /* whose they are: its cache is read once for each */
    double first, last; /* tokens before a row: anything between, evenly */
    double n_logit;     /* rows of logits */
    double n_lane;      /* so many lanes have such rows, others none; 0: all. Of lanes that
                           have fewer: all rows over n_row */
    bool is_shared;     /* they are a lane's run of a prompt that all compute (share.h) */
    bool is_prompt;     /* rows of a request are neighbours, so that they share what they see */
};

/* step_time - seconds that a step of such rows is expected to take
 *
 *   p  of the rank, for its weights and its cache */
double step_time(const struct machine_figures *m, const struct engine_settings *s,
                 const struct memory_plan *p, const struct model_config *config,
                 const struct step_rows *rows);

#endif
