/* step_runner.h - who computes a step: the model on a backend (runner.c), or a test's stand-in
 *
 * The engine writes the arrays of a step into `host` and calls launch, draw and wait. From launch
 * on the device works and the engine is free; masks are written before draw, while it computes.
 *
 * Steps are under way in a queue. Overlap scheduling launches a step behind another one that runs;
 * the engine begins it with next_block:
 *
 *   launch, draw              step 0, in one block
 *   next_block, launch, draw  step 1, in the next block; its ids are what step 0 draws
 *   wait                      for step 0
 *   next_block, launch, draw  step 2, in a block that no step has
 *   wait                      for step 1
 *
 * A runner of several stages (stage_hop.h) has as many steps under way as stages, over requests of
 * which none is in two of them, in blocks that the engine names:
 *
 *   use_block, launch, draw   a step, in a block that no step has; again and again
 *   wait                      for the step that was launched first
 *   use_block, launch, draw   the pass of its drafts, in the block that it had
 *
 * A step is a shape and bytes (batch_build.h): it holds no pointer, so that a runner may give it to
 * any number of devices.
 *
 * A runner may have several lanes, each with requests, pages, blocks and draws of its own, which
 * step together: launch and draw take a step for each lane, all of one pass, and wait gives a
 * result for each. A lane without work has a step of zeros but for its pass.
 *
 * A runner belongs to one thread, which makes all calls but create, destroy, fault, progress and
 * get_waits. bind says which: a GPU is the current device of the threads that work with it.
 */
#ifndef FATHOM_ENGINE_STEP_RUNNER_H
#define FATHOM_ENGINE_STEP_RUNNER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "backend/parallel.h"
#include "engine/batch_build.h"
#include "fathom/err.h"
#include "model/forward.h"

struct step {
    enum step_pass pass;
    bool watches_experts; /* of a step without prompts; it is not replayed from a recording */
    size_t prefix_bytes;  /* of the block: what batch_build returned */
    struct batch_shape batch;
    struct sample_shape sampler;
};

/* What was drawn, in the order of the sample rows; valid until the next wait, and the next launch
 * without next_block. */
struct step_result {
    const int32_t *ids;           /* i32 [n_row] */
    const float *logprobs;        /* f32 [n_row] */
    const uint32_t *ranks;        /* u32 [n_row] */
    const int32_t *top_ids;       /* i32 [n_row][SAMPLE_TOP_MAX]; NULL when no row asked */
    const float *top_logprobs;    /* f32 [n_row][SAMPLE_TOP_MAX]; likewise */
    struct expert_counts experts; /* of all steps so far that watched them */
};

struct step_runner;

struct step_runner_ops {
    void (*destroy)(struct step_runner *r); /* any thread; accepts NULL */
    /* The calling thread is the runner's from now on. At first that is the one that created it. */
    fathom_err (*bind)(struct step_runner *r);
    /* Enqueue the pass over the batch; of the block only the masks may change until wait. Here and
     * below: step [n_lane], out [n_lane]. */
    fathom_err (*launch)(struct step_runner *r, const struct step *step);
    /* Enqueue the draws of the same step; then *step may change, the block only after wait. */
    fathom_err (*draw)(struct step_runner *r, const struct step *step);
    /* Wait for the step that was launched first. An error of any of the three is final. */
    fathom_err (*wait)(struct step_runner *r, struct step_result *out);
    /* With fewer than max_flight steps under way: change host to a block that none of them has. The
     * step launched next has neither masks nor histories. */
    void (*next_block)(struct step_runner *r);
    /* Of several stages, in its place: change host to block i, below max_flight. All members of the
     * block are there. */
    void (*use_block)(struct step_runner *r, uint32_t i);
    /* The cause of that error; "" when the runner has none to tell. */
    const char *(*fault)(struct step_runner *r);
    /* A number that changes as the step under way gets on, read from any thread; NULL: only its
     * end can be seen. */
    uint64_t (*progress)(const struct step_runner *r);
    /* What each rank has waited for the others so far, into out[0 .. n); returns n. Any thread.
     * NULL: there is one rank. 0: this is not known. */
    uint32_t (*get_waits)(const struct step_runner *r, struct rank_waits *out);

    /* After an error of EPEER, with no step under way: begin anew with the peers that are there. An
     * error is final. NULL: every error is. */
    fathom_err (*renew)(struct step_runner *r);
    /* Of ranks on several hosts, when all hosts are there and no step is under way: what is needed
     * of each other before the first step. EPEER: one is lost. NULL: nothing ever is. */
    fathom_err (*connect)(struct step_runner *r);
    /* Of several hosts; NULL: there is one. is_away: a host is not there, so that no step can be
     * launched; any thread. rejoin, with no step under way: EPEER names who is missing; OK: all are
     * there, no page of the cache holds what it held, and n_page is written. Other errors are
     * final. */
    bool (*is_away)(struct step_runner *r);
    fathom_err (*rejoin)(struct step_runner *r, fathom_diag *d);

    /* For tiers; NULL members: the runner has none of it. Copies of a whole page record of the
     * cache, enqueued between the steps. `to` and `from` are memory of alloc_host. The tiers call
     * these functions themselves, so the runner is a void pointer as in struct tiers_device. Of
     * several lanes, page p of lane i has the number i * lane_pages + p. */
    fathom_err (*page_out)(void *runner, uint32_t page, void *to);
    fathom_err (*page_in)(void *runner, uint32_t page, const void *from);
    fathom_err (*sync)(struct step_runner *r); /* wait for them, without a step */
    fathom_err (*alloc_host)(struct step_runner *r, size_t bytes, void **out, fathom_diag *d);
    void (*release_host)(struct step_runner *r, void *p);
};

struct step_runner {
    const struct step_runner_ops *ops;
    struct batch_layout layout;
    uint32_t max_flight; /* steps that may be under way, >= 1 */
    uint32_t n_stage;    /* 0: one */
    bool prompt_form;    /* rows of prompts have other bits than rows of answers (backend.h) */
    void *host;          /* block of layout.n_bytes that the engine writes; after next_block up to
                            histories */
    uint32_t n_lane;     /* 0: one, whose block is host */
    uint32_t lane_pages; /* of several */
    uint32_t n_page;     /* of several hosts, from rejoin on: that a lane of each has room for */
    bool shares_rows;    /* of several lanes: steps may share rows of a prompt (batch.h) */
    void **hosts;        /* [n_lane] of several: their blocks, as host, which is the first */
};

/* step_runner_n_lane - 1 or more; step_runner_host - the block of lane i */
static inline uint32_t step_runner_n_lane(const struct step_runner *r)
{
    return r->n_lane > 1 ? r->n_lane : 1;
}

static inline void *step_runner_host(const struct step_runner *r, uint32_t i)
{
    return r->n_lane > 1 ? r->hosts[i] : r->host;
}

/* step_runner_put_lanes - to[i] is steps[i], and knows the rows of all and the largest of them, 1
 * where none has rows, and whether all can be replayed; one of no rows has the others' context.
 * Needs: n > 1 */
static inline void step_runner_put_lanes(struct step *to, const struct step *steps, uint32_t n)
{
    uint32_t n_most = 1, stride = 0;
    bool some_run = false;
    for (uint32_t i = 0; i < n; i++) {
        const struct batch_shape *b = &steps[i].batch; /* which may know of other hosts' lanes */
        const uint32_t most = b->n_most > b->n_token ? b->n_most : b->n_token;
        if (most > n_most) n_most = most;
        if (b->page_stride > stride) stride = b->page_stride;
        some_run |= b->some_run || b->n_answer_token < b->n_token || steps[i].watches_experts;
    }
    for (uint32_t i = 0; i < n; i++) {
        to[i] = steps[i];
        to[i].batch.n_most = n_most;
        for (uint32_t k = 0; k < n && steps[i].batch.n_lane == 0; k++)
            to[i].batch.lane_rows[k] = steps[k].batch.n_token;
        if (steps[i].batch.n_lane == 0) to[i].batch.n_lane = n;
        to[i].batch.some_run = some_run;
        if (to[i].batch.n_token == 0) to[i].batch.page_stride = stride;
    }
}

#endif
