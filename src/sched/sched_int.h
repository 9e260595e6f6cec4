/* sched_int.h - the scheduler's state, for sched_plan.c, which changes it, sched_ask.c and
 * sched_check.c */
#ifndef FATHOM_SCHED_SCHED_INT_H
#define FATHOM_SCHED_SCHED_INT_H

#include "base/assert.h"
#include "sched/sched.h"
#include "sched/turn.h"

struct sched {
    /* fixed */
    struct sched_config config;
    struct page_pool *pool;
    struct prefix_cache *prefix; /* NULL: none */
    uint32_t *n_seen;            /* [n_page] scratch of sched_check */
    struct plan_entry *prompts;  /* [max_num_seqs] scratch of sched_plan */
    /* state */
    struct request_list waiting;
    struct request_list fetching;
    struct request_list running;
    struct sched_bounds bounds;
    struct {
        const struct request *request; /* NULL: nothing is lent */
        uint32_t n_token;
        uint32_t least;
    } lent;                          /* of sched_lend, for the next sched_plan */
    const struct request *held_back; /* of sched_hold_back, likewise; NULL: no request is */
    uint32_t *guest;                 /* [n_guest_page] pages of another scheduler's request */
    uint32_t n_guest_page;
    uint32_t n_left; /* of the last sched_plan: see sched_n_left */
    struct turns turns;
    uint64_t n_arrived;
    struct sched_totals totals;
    bool short_of_pages; /* in the last plan of sched_plan */
    bool closed;         /* the last sched_plan ran short of pages; no request has come or ended and
                            no page has become free since then, so none can be admitted */
    struct plan **ring;  /* [max_flight] plans under way, from first_flight on */
    uint32_t first_flight;
    uint32_t n_flight;
};

/* The i-th plan under way; 0: the oldest. */
static inline struct plan *flight(const struct sched *s, uint32_t i)
{
    ASSERT(i < s->n_flight);
    return s->ring[(s->first_flight + i) % s->config.max_flight];
}

static inline struct prefix_text text_of(const struct sched *s, const struct request *r)
{
    return (struct prefix_text){
        .salt = r->cache_salt,
        .ids = r->ids,
        .n_prompt = s->config.prompt_form ? r->n_prompt : UINT32_MAX,
        .peer = {.is_set = r->has_peer, .place = r->peer, .pull = r->arrival, .end = r->peer_end},
    };
}

/* How many tokens of r, of which the first n have been computed, one step may compute: those up to
 * the end of the prompt or of the known tokens, since an entry has rows of one kind. */
static inline uint32_t gap_behind(const struct sched *s, const struct request *r, uint32_t n)
{
    const bool is_cut = s->config.prompt_form && n < r->n_prompt;
    return (is_cut ? r->n_prompt : r->n_token) - n;
}

static inline uint32_t gap_of_kind(const struct sched *s, const struct request *r)
{
    return gap_behind(s, r, r->n_computed);
}

/* Whether r may go on from cached pages. */
static inline bool is_found(const struct sched *s, const struct request *r)
{
    return s->prefix && request_n_scored(r) == r->n_to_score;
}

/* What the cache and the tiers have of a request. */
struct sched_findings {
    uint32_t n_page;           /* pages of the cache, in r->pages; they get no holder by this */
    struct prefix_match match; /* what the tiers have beyond these */
};

/* sched_look_up - look for the pages of a WAITING request; overwrites r->pages */
struct sched_findings sched_look_up(const struct sched *s, struct request *r);

static inline uint32_t n_holding(const struct sched *s)
{
    return s->running.n + s->fetching.n;
}

/* Whether no more requests may hold pages. */
static inline bool is_full(const struct sched *s)
{
    return n_holding(s) >= s->config.max_num_seqs || n_holding(s) >= s->bounds.max_running;
}

#endif
