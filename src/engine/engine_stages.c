/* engine_stages.c - rounds of several stages
 *
 *   fill      plan, launch       while a flight is free and some request can be planned
 *   finish    wait               for the oldest flight in the queue
 *             take results       after a step of the model: commit, publish
 *             launch             its next pass of drafts, at the end of the queue
 *             free               when no such pass follows
 *
 * Each flight has a block of the runner, a drafter, and requests that no other flight has. All
 * stages process the queue in its order, so on each stage an earlier step has written the rows that
 * a later step reads. A step is planned only when everything that decides it is known. The bits do
 * not depend on how the steps are interleaved.
 *
 * The tiers copy pages between steps, and learn that copies are done only when no step is under
 * way. So while they have something to copy, or a request waits for pages, no step is planned
 * beside another one: the stages run empty first.
 */
#include "base/assert.h"
#include "base/clock.h"
#include "base/fail.h"
#include "engine/engine_int.h"

/* A flight without a step under way; NULL: there is none. */
static struct flight *free_flight(fathom_engine *e)
{
    for (uint32_t i = 0; i < e->max_flight; i++) {
        if (!e->flights[i].is_busy) return &e->flights[i];
    }
    return NULL;
}

static bool may_plan_beside(const fathom_engine *e)
{
    return engine_is_quiet(e) && sched_n_fetching(e->lanes[0].sched) == 0;
}

static fathom_err launch(fathom_engine *e, struct flight *f)
{
    ASSERT(f->is_busy && e->n_flight < e->max_flight);
    return engine_launch(e, f);
}

static fathom_err fill(fathom_engine *e)
{
    struct flight *f;
    while ((f = free_flight(e)) && (e->n_flight == 0 || may_plan_beside(e))) {
        const uint64_t now_us = clock_now_us();
        bool any;
        TRY(engine_plan(e, f, now_us, &any));
        if (!any) return FATHOM_OK;
        if (e->n_flight == 0) e->start_us = now_us;
        f->is_busy = true;
        e->runner->ops->use_block(e->runner, f->i);
        engine_write_step(e, f);
        TRY(launch(e, f));
    }
    return FATHOM_OK;
}

/* Takes the oldest flight out of the queue. */
static struct flight *pop(fathom_engine *e)
{
    struct flight *f = e->queue[0];
    for (uint32_t i = 0; i < e->n_flight; i++) e->queue[i] = e->queue[i + 1];
    ASSERT(f->is_busy);
    return f;
}

static fathom_err finish(fathom_engine *e)
{
    uint64_t now_us;
    bool goes_on;
    TRY(engine_wait(e, &now_us));
    struct flight *f = pop(e);
    e->runner->ops->use_block(e->runner, f->i);
    if (f->steps[0].pass == STEP_MODEL) {
        engine_take_results(e, f, now_us);
        engine_note_step(e, now_us);
        goes_on = f->steps[0].pass != STEP_MODEL;
    } else {
        goes_on = engine_take_drafts(e, f);
    }
    if (goes_on) return launch(e, f);
    f->is_busy = false;
    return FATHOM_OK;
}

fathom_err engine_run_stages(fathom_engine *e, bool *any)
{
    ASSERT(e->n_stage > 1 && e->n_lane == 1);
    TRY(fill(e));
    *any = e->n_flight > 0;
    return *any ? finish(e) : FATHOM_OK;
}
