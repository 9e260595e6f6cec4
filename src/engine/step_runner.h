/* step_runner.h - who computes a step: the model on a backend (runner.c), or a test's stand-in
 *
 * The engine writes the arrays of a step into `host` and calls launch, draw and wait. From launch
 * on the device works and the engine is free; masks are written before draw, while it computes. One
 * step is under way at a time; after turn, two:
 *
 *   launch, draw          step 0, in one block
 *   turn, launch, draw    step 1, in the other; its ids are what step 0 draws
 *   wait                  for step 0
 *   turn, launch, draw    step 2, in the block of step 0
 *   wait                  for step 1
 *
 * The engine's thread makes all calls but create and destroy.
 */
#ifndef FATHOM_ENGINE_STEP_RUNNER_H
#define FATHOM_ENGINE_STEP_RUNNER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "backend/batch.h"
#include "engine/batch_build.h"
#include "engine/sampler.h"
#include "fathom/err.h"

struct step {
    bool is_draft;       /* the draft layer goes over the batch, after a step without is_draft */
    size_t prefix_bytes; /* of the block: what batch_build returned */
    struct batch batch;
    struct sampler_step sampler;
};

/* What was drawn, in the order of the sample rows; valid until the next wait, and the next launch
 * without turn. */
struct step_result {
    const int32_t *ids;        /* i32 [n_row] */
    const float *logprobs;     /* f32 [n_row] */
    const uint32_t *ranks;     /* u32 [n_row] */
    const int32_t *top_ids;    /* i32 [n_row][SAMPLE_TOP_MAX]; NULL when no row asked */
    const float *top_logprobs; /* f32 [n_row][SAMPLE_TOP_MAX]; likewise */
};

struct step_runner;

struct step_runner_ops {
    void (*destroy)(struct step_runner *r); /* accepts NULL */
    /* Enqueue the model over the batch; of the block only the masks may change until wait. */
    fathom_err (*launch)(struct step_runner *r, const struct step *step);
    /* Enqueue the draws of the same step; then *step may change, the block only after wait. */
    fathom_err (*draw)(struct step_runner *r, const struct step *step);
    /* Wait for the step that was launched first. An error of any of the three is final. */
    fathom_err (*wait)(struct step_runner *r, struct step_result *out);
    /* With is_async: change host to the other block while the step drawn last is under way; the one
     * launched next has neither masks nor histories. */
    void (*turn)(struct step_runner *r);
    /* The cause of that error; "" when the runner has none to tell. */
    const char *(*fault)(struct step_runner *r);
    /* A number that changes as the step under way gets on, read from any thread; NULL: only its
     * end can be seen. */
    uint64_t (*progress)(const struct step_runner *r);

    /* For tiers; NULL members: the runner has none of it. Copies of a whole page record of the
     * cache, enqueued between the steps; `to` and `from` are memory of alloc_host. */
    fathom_err (*page_out)(struct step_runner *r, uint32_t page, void *to);
    fathom_err (*page_in)(struct step_runner *r, uint32_t page, const void *from);
    fathom_err (*sync)(struct step_runner *r); /* wait for them, without a step */
    fathom_err (*alloc_host)(struct step_runner *r, size_t bytes, void **out, fathom_diag *d);
    void (*release_host)(struct step_runner *r, void *p);
};

struct step_runner {
    const struct step_runner_ops *ops;
    struct batch_layout layout;
    bool is_async; /* two steps may be under way */
    void *host;    /* block of layout.n_bytes that the engine writes; after turn up to histories */
    void *device;  /* its twin that the step's pointers point into; may be the same */
};

#endif
