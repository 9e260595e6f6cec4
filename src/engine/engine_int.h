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

/* A step that is planned or under way. It has a part for each lane. */
struct flight {
    struct plan *plans; /* [n_lane] */
    struct step *steps; /* [n_lane], all of one pass */
    uint32_t i;         /* its number */
    bool is_busy;       /* with several stages: from its plan until its last draft is taken */
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
    struct share share;          /* the prompt that all lanes compute together, if there is one */
    struct offload *offload;     /* the tiers, which all lanes use; NULL: there are none */
    struct page_events *events;  /* NULL: nobody is told of pages */
    struct flight *flights;      /* [max_flight] in a ring: n_flight of them from i_now on */
    struct step_result *results; /* [n_lane] of the oldest step */
    uint32_t max_flight;
    uint32_t i_now;    /* the oldest step under way, or the one planned next: now_of */
    uint32_t n_flight; /* steps launched and not waited for */
    uint32_t n_stage;  /* above 1: a step takes any free flight, and `queue` has their order */
    struct flight *queue[PARALLEL_STAGES_MAX]; /* [n_flight], oldest first; with several stages */
    bool was_launched; /* the oldest step had been launched before this round began */
    uint64_t start_us; /* the oldest step's launch, or the end of the one before if that is later */
    struct sequence **told; /* [n_lane * max_num_seqs] sequences with events of the step */
    uint64_t n_left;        /* page_exchange_n_left when requests were last looked at */
    fathom_stats stats;
    struct admission_rates rates;
    struct admission_step measured; /* the step under way */
    bool failed;
    bool is_away;
};

/* engine_plan - plan a step of all lanes into f, and tell the tiers which pages to copy before it
 *
 *   any     written: whether at least one lane has a part in the step
 * Needs   no step under way; with several stages, a flight that is free. */
fathom_err engine_plan(fathom_engine *e, struct flight *f, uint64_t now_us, bool *any);

/* engine_write_step - write the arrays of the step planned in f into the runner's block */
void engine_write_step(fathom_engine *e, struct flight *f);

/* engine_launch - launch the step of f, or its next pass of drafts, with its masks and draws
 * engine_wait - wait for the step launched first; its results are then in e->results */
fathom_err engine_launch(fathom_engine *e, struct flight *f);
fathom_err engine_wait(fathom_engine *e, uint64_t *now_us);

/* engine_take_results - the step of f has been computed: commit e->results, write the first pass of
 * drafts, publish the events
 *
 * Edge  With drafts, f->steps become that pass of drafts, which the caller launches. */
void engine_take_results(fathom_engine *e, struct flight *f, uint64_t now_us);

/* engine_take_drafts - keep what a pass of drafts drew
 *
 * Returns  whether another pass follows, which f->steps then hold. */
bool engine_take_drafts(fathom_engine *e, struct flight *f);

/* engine_is_quiet - the tiers have nothing to copy */
bool engine_is_quiet(const fathom_engine *e);

/* engine_note_step - a step that began at e->start_us is over: measure it. The next one begins
 * now. */
void engine_note_step(fathom_engine *e, uint64_t now_us);

/* engine_main - the engine's thread: `arg` is the engine */
void *engine_main(void *arg);

/* engine_publish - make the events of n sequences and the engine's statistics visible to callers
 *
 * Edge  n == 0: the statistics alone. */
void engine_publish(fathom_engine *e, struct sequence *const *sequences, size_t n);

/* engine_kick - wake the thread of the engine `arg`; any thread */
void engine_kick(void *arg);

/* engine_void_pages - new requests find none of the pages cached so far. These stay in the cache
 * until they are evicted.
 * engine_salt - what keys of pages begin with from then on: the salt of requests that have none */
void engine_void_pages(fathom_engine *e);
uint64_t engine_salt(fathom_engine *e);

/* engine_run_stages - a round with several stages: plan and launch steps until every stage has one,
 * then wait for the oldest step, or pass of drafts, and launch the pass that follows it
 *
 *   any     written: whether a step was under way
 * Errors  as of the runner, final; what was planned is then the caller's to abort. */
fathom_err engine_run_stages(fathom_engine *e, bool *any);

#endif
