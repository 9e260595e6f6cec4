/* step_runner.h - the interface to what computes a step: the model on a backend (runner.c), several
 * ranks of it (rank_group.c), or a test's stand-in
 *
 * The engine writes the arrays of a step into `host` and calls launch, draw and wait. The device
 * works from launch on, and the engine is free meanwhile: it writes the masks between launch and
 * draw.
 *
 * Steps under way form a queue. With overlap scheduling the engine launches a step behind one that
 * still runs. It calls next_block before it writes that step:
 *
 *   launch, draw              step 0, in one block
 *   next_block, launch, draw  step 1, in the next block; its ids are what step 0 draws
 *   wait                      for step 0
 *   next_block, launch, draw  step 2, in a block that no step uses
 *   wait                      for step 1
 *
 * With several stages (stage_hop.h) as many steps are under way as there are stages. No request is
 * in two of them, and the engine says which block each step uses:
 *
 *   use_block, launch, draw   a step, in a block that no step uses; again for each stage
 *   wait                      for the step that was launched first
 *   use_block, launch, draw   its pass of drafts, in the same block
 *
 * A step is a shape and bytes (batch_build.h): it holds no pointer, so that a runner may give it to
 * any number of devices.
 *
 * A runner may have several lanes, each with its own requests, pages, blocks and draws. Lanes step
 * together: launch and draw take one step for each lane, all of the same pass, and wait gives one
 * result for each. A lane without work has a step whose members are 0, except for the pass.
 *
 * A runner belongs to one thread, the one that called bind last. That thread makes all calls but
 * create, destroy, fault, progress and get_waits. (CUDA has a current device per thread.)
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
    bool watches_experts; /* counts the chosen experts, if it has no prompt rows. Such a step is not
                             replayed from a recording */
    size_t prefix_bytes;  /* bytes of the block that every step has: what batch_build returned */
    struct batch_shape batch;
    struct sample_shape sampler;
};

/* What was drawn, in the order of the sample rows. Valid until the next wait, or until the next
 * launch that no next_block came before. */
struct step_result {
    const int32_t *ids;           /* i32 [n_row] */
    const float *logprobs;        /* f32 [n_row] */
    const uint32_t *ranks;        /* u32 [n_row] */
    const int32_t *top_ids;       /* i32 [n_row][SAMPLE_TOP_MAX]; NULL when no row asked */
    const float *top_logprobs;    /* f32 [n_row][SAMPLE_TOP_MAX]; likewise */
    struct expert_counts experts; /* sums over all steps so far with watches_experts */
};

struct step_runner;

struct step_runner_ops {
    void (*destroy)(struct step_runner *r); /* any thread; accepts NULL */
    /* The runner belongs to the calling thread from now on. At first its creator is its thread. */
    fathom_err (*bind)(struct step_runner *r);
    /* Enqueue the pass over the batch. Until wait only the masks in the block may be written. Here
     * and below: step [n_lane], out [n_lane]. */
    fathom_err (*launch)(struct step_runner *r, const struct step *step);
    /* Enqueue the draws of the same step. Then *step may be changed, but the block only after
     * wait. */
    fathom_err (*draw)(struct step_runner *r, const struct step *step);
    /* Wait for the step that was launched first. An error of launch, draw or wait is final, unless
     * it is EPEER and there is renew or rejoin. */
    fathom_err (*wait)(struct step_runner *r, struct step_result *out);
    /* With fewer than max_flight steps under way: let host be a block that none of them uses. The
     * step launched next must have neither masks nor histories. */
    void (*next_block)(struct step_runner *r);
    /* With several stages, instead of next_block: let host be block i, below max_flight. Such a
     * block has room for masks and histories too. */
    void (*use_block)(struct step_runner *r, uint32_t i);
    /* The cause of an error of launch, draw or wait; "" when it is not known. */
    const char *(*fault)(struct step_runner *r);
    /* A number that changes as the step under way makes progress; any thread. NULL: only the end of
     * a step can be seen. */
    uint64_t (*progress)(const struct step_runner *r);
    /* Writes how long each rank has waited for the others so far to out[0 .. n), and returns n; 0:
     * this is not known. Any thread. NULL: there is one rank. */
    uint32_t (*get_waits)(const struct step_runner *r, struct rank_waits *out);

    /* After an error EPEER, with no step under way: begin anew with the peers that are there. An
     * error of renew is final. NULL: EPEER is final too. */
    fathom_err (*renew)(struct step_runner *r);
    /* With ranks on several hosts, when all hosts are there and no step is under way: exchange what
     * ranks need to know of each other before the first step. EPEER: a host is lost. NULL: ranks
     * need nothing of each other. */
    fathom_err (*connect)(struct step_runner *r);
    /* With several hosts; NULL: there is one. is_away: whether a host is missing, so that no step
     * can be launched; any thread. rejoin, with no step under way: OK: all hosts are there, the
     * contents of all cache pages are lost, and n_page is written. EPEER: *d names the host that is
     * missing. Other errors are final. */
    bool (*is_away)(struct step_runner *r);
    fathom_err (*rejoin)(struct step_runner *r, fathom_diag *d);

    /* For the tiers; all NULL if the runner cannot copy pages. page_out and page_in enqueue a copy
     * of a whole page record, between the steps. `to` and `from` are memory of alloc_host. The
     * tiers call these functions directly, so the runner is a void pointer as in struct
     * tiers_device. With several lanes, page p of lane i has the number i * lane_pages + p. */
    fathom_err (*page_out)(void *runner, uint32_t page, void *to);
    fathom_err (*page_in)(void *runner, uint32_t page, const void *from);
    fathom_err (*sync)(struct step_runner *r); /* wait until the copies are done */
    fathom_err (*alloc_host)(struct step_runner *r, size_t bytes, void **out, fathom_diag *d);
    void (*release_host)(struct step_runner *r, void *p);
};

struct step_runner {
    const struct step_runner_ops *ops;
    struct batch_layout layout;
    uint32_t max_flight; /* steps that may be under way, >= 1 */
    uint32_t n_stage;    /* 0: one */
    bool prompt_form;    /* prompt rows and answer rows have different bits (backend.h) */
    void *host;          /* block of layout.n_bytes that the engine writes; after next_block only
                            the part before the histories */
    uint32_t n_lane;     /* 0: one lane, whose block is host */
    uint32_t lane_pages; /* with several lanes: pages of each */
    uint32_t n_page;     /* with several hosts, from rejoin on: pages of a lane that every host has
                            room for */
    bool shares_rows;    /* with several lanes: steps may share rows of a prompt (batch.h) */
    void **hosts;        /* [n_lane] with several lanes: the block of each; hosts[0] is host */
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

/* step_runner_put_lanes - copy the lanes' steps, and write into each what it must know of the
 * others
 *
 * Each learns the number of rows of every lane (lane_rows), the largest of them or 1 (n_most), and
 * whether any lane's part cannot be replayed (some_run). A step without rows gets the largest page
 * stride.
 * Needs  n > 1. */
static inline void step_runner_put_lanes(struct step *to, const struct step *steps, uint32_t n)
{
    uint32_t n_most = 1, stride = 0;
    bool some_run = false;
    for (uint32_t i = 0; i < n; i++) {
        const struct batch_shape *b = &steps[i].batch; /* it may have other hosts' lanes already */
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
