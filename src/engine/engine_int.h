/* engine_int.h - what the files of the engine share */
#ifndef FATHOM_ENGINE_ENGINE_INT_H
#define FATHOM_ENGINE_ENGINE_INT_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "backend/parallel.h"
#include "engine/admission.h"
#include "engine/lane.h"
#include "engine/mailbox.h"
#include "engine/offload.h"
#include "engine/page_events.h"
#include "engine/sequence.h"
#include "engine/share.h"
#include "fathom/fathom.h"

/* A step planned, or under way: a part for each lane. */
struct flight {
    struct plan *plans; /* [n_lane] */
    struct step *steps; /* [n_lane], all of one pass */
    uint32_t i;         /* its number */
    bool is_busy;       /* of stages: from its plan to its last draft */
};

struct fathom_engine {
    /* fixed */
    fathom_info info;
    char model_type[64];
    char backend_name[32];
    struct sequence_limits limits;
    struct step_runner *runner;
    struct checkpoint *checkpoint;
    struct mailbox *mailbox;
    struct admission_config admission;
    pthread_t thread;
    bool has_thread;
    atomic_uint_fast64_t cache_epoch; /* goes into the salt of new requests */
    atomic_bool hurry;                /* nothing more is written to the tiers */
    atomic_bool watches_experts;

    /* the engine thread's */
    struct lane *lanes; /* [n_lane] */
    uint32_t n_lane;
    struct share share;          /* a prompt that all of them compute */
    struct offload *offload;     /* NULL: there are no tiers; of all lanes */
    struct page_events *events;  /* NULL: nobody is told of pages */
    struct flight *flights;      /* [max_flight] in a ring: n_flight of them from i_now on */
    struct step_result *results; /* [n_lane] of the oldest step */
    uint32_t max_flight;
    uint32_t i_now;    /* the oldest step under way, or the one planned next: now_of */
    uint32_t n_flight; /* steps launched and not waited for */
    uint32_t n_stage;  /* more than 1: flights are taken as they are free, and queued: */
    struct flight *queue[PARALLEL_STAGES_MAX]; /* [n_flight], oldest first */
    bool was_launched;                         /* the oldest step, before the round began */
    uint64_t start_us;      /* of the oldest step: when the one before was over, if later */
    struct sequence **told; /* [n_lane * max_num_seqs] sequences with events of the step */
    uint64_t n_left;        /* page_exchange_n_left when requests were last looked at */
    fathom_stats stats;
    struct admission_rates rates;
    struct admission_step measured; /* the step under way */
    bool failed;
    bool is_away;
};

/* engine_plan - a step of all lanes, into f; what the tiers are to copy before it is told to them
 *
 *   any     a lane has a part in it
 * Needs   no step under way; of stages, a flight that is free. */
fathom_err engine_plan(fathom_engine *e, struct flight *f, uint64_t now_us, bool *any);

/* engine_write_step - the arrays of a plan, into the runner's block */
void engine_write_step(fathom_engine *e, struct flight *f);

/* engine_launch - the step of f, or its pass of drafts, with masks and draws
 * engine_wait - for the one launched first; its results are in e->results */
fathom_err engine_launch(fathom_engine *e, struct flight *f);
fathom_err engine_wait(fathom_engine *e, uint64_t *now_us);

/* engine_take_results - the step of f has been computed, as e->results say: commit it, begin its
 * drafts, tell what it gave
 * Edge  its step becomes the pass of drafts, where there are any. */
void engine_take_results(fathom_engine *e, struct flight *f, uint64_t now_us);

/* engine_take_drafts - what a pass of drafts drew; whether there is to be another one, in f's
 * step */
bool engine_take_drafts(fathom_engine *e, struct flight *f);

/* engine_is_quiet - the tiers have nothing to copy */
bool engine_is_quiet(const fathom_engine *e);

/* engine_note_step - a step is over that took from e->start_us on; so does the next one, from
 * now */
void engine_note_step(fathom_engine *e, uint64_t now_us);

/* engine_main - the engine's thread: `arg` is the engine */
void *engine_main(void *arg);

/* engine_publish - events of n sequences and what the engine counts, to whoever waits or looks
 * Edge  no sequences: the counts. */
void engine_publish(fathom_engine *e, struct sequence *const *sequences, size_t n);

/* engine_kick - wakes the thread of the engine `arg` */
void engine_kick(void *arg);

/* engine_void_pages - pages of the past are never found again, so they are the first to be taken
 * engine_salt - what these and later ones differ in: the salt of requests that have none */
void engine_void_pages(fathom_engine *e);
uint64_t engine_salt(fathom_engine *e);

/* engine_run_stages - a round of several stages: plan and launch until all have something to do,
 * then wait for the oldest step, or pass of drafts, and launch what follows it
 *
 *   any     a step was under way
 * Errors  as of the runner, final; what was planned is then the caller's to abort. */
fathom_err engine_run_stages(fathom_engine *e, bool *any);

#endif
