/* sched_sim.h - the world that test_sched_sim.c runs the scheduler in, and its tiers
 * (sched_sim_tiers.c) */
#ifndef FATHOM_TESTS_SIM_SCHED_SIM_H
#define FATHOM_TESTS_SIM_SCHED_SIM_H

#include <stdbool.h>
#include <stdint.h>

#include "base/rng.h"
#include "kv/tiers.h"
#include "sched/sched.h"

enum {
    MAX_LIVE = 48,
    MAX_PAGE = 40,
    MAX_TOKEN = MAX_PAGE * KV_PAGE_TOKENS,
    MAX_SEQS = 24,
    EPISODE_STEPS = 2000,
    N_SMALL = 1000,
    STOP_ID = 0,
    N_TEXT = 6,
    MAX_DRAFT = 4,
    MAX_BUDGET = 300,
    MAX_FLIGHT = 4,
    MAX_RAM = 40,
    MAX_DISK = 100,
    ROW_BYTES = 2 * (int)sizeof(uint64_t), /* of the model and of the draft layer */
    PAGE_BYTES = KV_PAGE_TOKENS * ROW_BYTES,
};

struct job {
    struct request r;
    bool live;
    uint64_t arrived_us;
    uint32_t stop_after; /* the output has a stop id here */
    uint64_t taste;      /* requests of one prompt and one taste draw the same */
    uint32_t n_prompt;   /* rows from here on hold other bits; UINT32_MAX: all are of one form */
    uint32_t n_hash;
    uint32_t n_score;           /* prompt tokens scored so far */
    uint64_t hashes[MAX_TOKEN]; /* [n_hash] of ids[0 .. i], their forms and the salt */
    int32_t ids[MAX_TOKEN];
    uint32_t pages[MAX_PAGE];
};

/* A text that was in the cache, to begin other prompts with. */
struct text {
    uint64_t salt;
    uint32_t n;
    int32_t ids[MAX_TOKEN];
};

/* A step under way, or the next one. */
struct flight {
    struct plan plan;
    uint32_t rows[MAX_BUDGET]; /* [n_row] where it writes, by what was planned */
    uint32_t n_row;
    uint32_t n_entry; /* likewise */
};

struct sim {
    uint64_t rng;
    uint64_t now_us;
    uint64_t next_id;
    uint32_t n_page;
    uint32_t max_prompt;
    uint32_t max_output;
    uint32_t short_prompt;
    uint32_t short_output;
    uint32_t arrival_per_1024; /* chance of an arrival, tried twice a step */
    uint32_t cancel_per_1024;
    uint32_t fail_per_1024;  /* chance that a step fails */
    uint64_t patience_us;    /* who waits longer expires; 0: nobody does */
    uint32_t share_per_1024; /* chance that a prompt begins as a text before did */
    uint32_t n_priority;
    uint32_t n_tenant;
    bool bounded;
    bool prompt_form;
    struct page_pool *pool;
    uint32_t max_draft;
    uint32_t max_score;
    uint32_t right_per_1024;     /* chance that a draft is right */
    struct prefix_cache *prefix; /* NULL in some episodes */
    struct tiers *tiers;         /* NULL in many */
    struct platter *platter;     /* what an episode before has left; NULL: nothing */
    struct hash128 platter_model;
    bool with_tiers;
    bool late_sync; /* copies are known to be done only in the next step */
    struct sched *s;
    struct flight flights[MAX_FLIGHT]; /* a ring of max_flight */
    uint32_t max_flight;
    uint32_t n_stage; /* more than 1: so many steps are under way, of other requests each */
    uint32_t first_flight;
    uint32_t n_flight;
    struct plan *plan; /* of the oldest, or the next one */
    uint32_t ahead_per_1024;
    struct job jobs[MAX_LIVE];
    struct text texts[N_TEXT];
    uint64_t rows[MAX_TOKEN];       /* hashes */
    uint64_t draft_rows[MAX_TOKEN]; /* hashes with one token more */
    uint32_t step_rows[MAX_BUDGET]; /* where the step's tokens went */
    uint64_t n_step, n_token, n_request, n_cancel, n_draft, n_accepted, n_score;
    uint64_t n_failed, n_expired, n_ahead, n_in_vain, n_beside, n_held;
    uint64_t n_deep[MAX_FLIGHT + 1]; /* steps that ended with so many under way */
    struct sched_totals totals;
    struct tiers_stats tier_totals;
    uint64_t n_idle_step; /* nothing could be planned: all wait for pages */
};

static inline uint32_t between(struct sim *m, uint32_t lo, uint32_t hi)
{
    return lo + (uint32_t)rng_below(&m->rng, (uint64_t)hi - lo + 1);
}

/* sched_sim_open_tiers - memory and maybe a disk, drawn for an episode, behind its prefix cache
 * sched_sim_close_tiers - their counts are added up; nothing where there are none
 * sched_sim_begin_tiers - of a step */
void sched_sim_open_tiers(struct sim *m);
void sched_sim_close_tiers(struct sim *m);
void sched_sim_begin_tiers(struct sim *m);

#endif
