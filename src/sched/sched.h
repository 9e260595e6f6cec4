/* sched.h - what the next step computes
 *
 * One rule: tokens computed catch up with tokens wanted, within a budget of tokens a step. This is
 * continuous batching with chunked prefill. The scheduler is pure: no clock, no device, no socket.
 * Time is an argument, and the same calls give the same plans. docs/scheduler.md tells the policy,
 * sched_plan.c the invariants. One thread at a time.
 */
#ifndef FATHOM_SCHED_SCHED_H
#define FATHOM_SCHED_SCHED_H

#include <stdbool.h>
#include <stdint.h>

#include "base/buf.h"
#include "fathom/err.h"
#include "kv/page_pool.h"
#include "kv/prefix.h"
#include "sched/request.h"

struct sched;

struct sched_config {
    uint32_t max_num_batched_tokens; /* tokens of a step, >= 1 */
    uint32_t max_num_seqs;           /* requests RUNNING at once, >= 1 */
    uint32_t max_draft;              /* drafts of a request; 0: there are none */
    uint32_t max_score;              /* prompt tokens whose logits a step gives, >= 1 */
    uint32_t max_flight;             /* plans given and not committed, >= 1 */
    uint32_t n_stage;                /* more than 1: so many plans are under way, of other requests
                                        each; max_flight is as large */
    bool prompt_form;                /* rows of prompts have other bits than rows of answers
                                        (backend/batch.h): an entry has rows of one kind, and pages
                                        are found by where the answer begins too */
    uint32_t lane, n_lane;           /* of schedulers whose caches share tiers: its number, and how
                                        many there are, so that no two requests have the same number
                                        there; zeros: one */
};

/* Limits of one step, below those of sched_config. */
struct sched_bounds {
    uint32_t max_running; /* requests RUNNING; no more are admitted, and none is preempted for it */
    uint32_t max_prefill; /* tokens of gaps wider than one, while any request decodes */
    bool paces_others;    /* requests of another scheduler decode in the same steps */
};

/* What a step computes of one request: positions first .. first + n_token - 1. */
struct plan_entry {
    struct request *request;
    uint32_t first;
    uint32_t n_token;  /* >= 1, drafts included */
    uint32_t n_draft;  /* the last of them are guesses; 0 unless draws */
    uint32_t n_score;  /* tokens whose logits are wanted besides, from request_n_scored on */
    bool draws;        /* the entry closes the gap: the logits of its last known token give the next
                          token, and the logits of each draft give the token after it */
    uint32_t i_token;  /* the first of its tokens, among those of the step */
    uint32_t i_draw;   /* the first of its draws, likewise */
    uint32_t i_score;  /* the first of its n_score, likewise */
    uint32_t i_before; /* in a plan made ahead: the draw of the step before that it computes, by
                          that step's i_draw */
    bool is_prompt;    /* with prompt_form: its positions are below n_prompt; all others' are not */
    bool is_lent;      /* others may compute tokens of it (sched_lend), */
    uint32_t n_lent;   /* and so many that the budget does not hold */
};

struct plan {
    struct plan_entry *entries; /* [max_num_seqs], n_entry used; those of answers, then those of
                                   prompts, each: requests that ran before, in order (turn.h), then
                                   those admitted by this plan */
    uint32_t n_entry;           /* 0: nothing to run */
    uint32_t n_token;           /* of all entries */
    uint32_t n_lent;            /* likewise */
    uint32_t n_draw;            /* tokens drawn: 1 + n_draft for each entry that draws */
    uint32_t n_score;           /* of all entries */
    uint32_t max_context;       /* largest first + n_token */
    bool is_ahead;              /* made by sched_plan_ahead */
};

/* plan_init - room for max_num_seqs entries; ENOMEM. plan_fini accepts a zeroed plan. */
fathom_err plan_init(struct plan *p, uint32_t max_num_seqs);
void plan_fini(struct plan *p);

/* sched_create - the pool and the prefix cache are borrowed, and nobody else uses them meanwhile
 *
 *   prefix  over the same pool; NULL: no page is found again
 * Errors  EINVAL naming the member of *c that is 0; ENOMEM. */
fathom_err sched_create(struct sched **out, const struct sched_config *c, struct page_pool *pool,
                        struct prefix_cache *prefix, fathom_diag *d);
void sched_destroy(struct sched *s); /* accepts NULL; requests are the owner's */

/* sched_add - NEW -> WAITING, in its turn
 *
 * Needs  request_n_page(max_token) <= the pool's pages: else it could wait for ever.
 * Owns   the request is the caller's and does not move until FINISHED. */
void sched_add(struct sched *s, struct request *r);

/* sched_withdraw - WAITING -> NEW: another scheduler takes it
 *
 * Needs  a request that has had no pages since sched_add (sched_may_withdraw). */
bool sched_may_withdraw(const struct request *r);
void sched_withdraw(struct sched *s, struct request *r);

/* sched_end - WAITING, FETCHING or RUNNING -> FINISHED for a reason from outside (CANCEL, ERROR);
 * its pages are given back. Its entries are taken out of all plans under way, and their rows are
 * computed in vain. */
void sched_end(struct sched *s, struct request *r, enum request_finish why, uint64_t now_us);

/* sched_set_bounds - for the plans from now on; both at least 1 */
void sched_set_bounds(struct sched *s, const struct sched_bounds *bounds);

/* sched_plan - decide the next step, with no plan under way; with several stages, with fewer than
 * max_flight
 *
 * With several stages a plan is of requests that are in none under way and are not held, and of no
 * more than an equal share of those that can run, so that each stage has something to do.
 *
 * Fills pages of FETCHING requests; a request runs when all its pages have come or no more will.
 * Then walks the RUNNING requests in order (turn.h). Then admits WAITING requests, with what the
 * prefix cache has of them; if the tiers have more, the request goes by FETCHING. Takes the pages
 * that the step writes; when they run out, preempts the last request. Drafts get what is left of
 * the budget, and pages that nobody must be preempted for.
 *
 *   plan  filled. n_entry == 0 only when no request is live, or when every request that could run
 *         waits for pages from the tiers: plan again when some have come, or after
 *         sched_fetch_poll_us. With another plan under way, or a request held: when none can run
 *         before that is over. After sched_hold_back: when none but those has a token to compute
 * Errors  never fails: shortage becomes waiting or preemption.
 * Cost    O(RUNNING + admitted), and O(1) a page; O(tokens found) for looking up. */
void sched_plan(struct sched *s, uint64_t now_us, struct plan *plan);
enum { SCHED_FETCH_POLL_US = 100000, SCHED_AGAIN_POLL_US = 2000 };

/* sched_fetch_poll_us - SCHED_FETCH_POLL_US; SCHED_AGAIN_POLL_US while another server has not got
 * yet what it was asked for */
uint64_t sched_fetch_poll_us(const struct sched *s);

/* sched_plan_ahead - decide the step after the newest under way, before that one has drawn
 *
 * This is overlap scheduling. The step's requests go on with the token that each is about to draw,
 * but for those whose length ends them. Then one plan more is under way. What is drawn meanwhile
 * may end more of its requests: their entries are taken out of *next. Their rows are computed in
 * vain, into pages that others get in later steps only.
 *
 *   plan  the newest under way: what sched_plan or sched_plan_ahead gave last
 *   next  filled; a plan that is not under way. Both are the scheduler's until their commit
 * Needs    one stage.
 * Returns  false, with nothing changed, when max_flight plans are under way, or when the next step
 *          may be another one. That is so with drafts; when a request draws nothing in the step,
 *          stands still, fetches pages or could be admitted; when one would have to be preempted;
 *          and when no request goes on.
 * Cost     O(RUNNING). */
bool sched_plan_ahead(struct sched *s, const struct plan *plan, struct plan *next);

/* ---- a prompt that schedulers whose steps are one compute together ---- */

/* sched_first_wide - the request that plans come to first of those that lack `least` tokens of one
 * kind of rows, of their prompts first, besides what the cache and the tiers have of them, and no
 * logits of these; NULL: there is none. None counts that waits for a place or fetches pages, and of
 * the others that wait the first alone that would lack as many if nothing were found.
 *
 *   n_lacking  how many it lacks; undefined without one
 * Cost  O(live requests), and what admission takes to look for the pages of one. */
struct request *sched_first_wide(const struct sched *s, uint32_t least, uint32_t *n_lacking);

/* sched_lend - others compute up to n_token tokens of r in the next step: the next sched_plan may
 * give it as many more than there is budget for, if it lacks `least` or more, of its prompt first,
 * and gets one of the budget's
 *
 * Needs  r live, with no draft. That plan ends it. */
void sched_lend(struct sched *s, const struct request *r, uint32_t n_token, uint32_t least);

/* sched_hold_back - in the next sched_plan neither r nor who comes behind it gets tokens of a gap
 * wider than one, nor is one of them admitted, but for r that the tiers have pages of: they come
 * meanwhile. What that plan could have given is sched_n_left. That plan ends it; it may have no
 * entry though requests are live. */
void sched_hold_back(struct sched *s, const struct request *r);

/* sched_n_left - tokens of prompts that the last sched_plan had budget for besides its entries */
uint32_t sched_n_left(const struct sched *s);

/* sched_take_guest - n pages for rows of another scheduler's request, if as many more are available
 * as requests hold pages here; they go before any request of this one is preempted or waits
 *
 *   pages  written; the caller's, and stays until the pages are given
 * Needs    no guest.
 * Returns  false: nothing is taken.
 * sched_give_guest - gives them back, if there are any; sched_n_guest_page - how many there are */
bool sched_take_guest(struct sched *s, uint32_t *pages, uint32_t n);
void sched_give_guest(struct sched *s);
uint32_t sched_n_guest_page(const struct sched *s);

/* sched_rests_after - whether no request is live after a plan, as far as is known: each ends by its
 * length, and none waits or fetches
 *
 *   plan  the newest under way; NULL: none is */
bool sched_rests_after(const struct sched *s, const struct plan *plan);

/* sched_take_back - `next`, which sched_plan_ahead gave last, will not be computed; pages taken for
 * it stay with their requests */
void sched_take_back(struct sched *s, const struct plan *next);

/* sched_commit - the oldest step has been computed: advance every entry, append what was drawn,
 * publish the pages that are full, end the requests that are over
 *
 * Follows each sched_plan that gave entries and each
 * sched_plan_ahead that returned true.
 *
 *   plan   the oldest under way
 *   drawn  [n_draw] the tokens drawn: those of an entry from i_draw on. A token drawn after a draft
 *          counts as long as that draft and all drafts before it are the tokens drawn there. Later
 *          tokens are dropped, and the rows of wrong drafts are as if never written. */
void sched_commit(struct sched *s, const struct plan *plan, const int32_t *drawn, uint64_t now_us);

/* sched_abort - no step under way was computed: all plans are void, pages taken for them stay.
 * Needs  a plan under way. */
void sched_abort(struct sched *s);

/* sched_n_flight - plans under way */
uint32_t sched_n_flight(const struct sched *s);

/* sched_n_found - pages of a NEW request that the prefix cache has now; writes to its pages
 *
 * Cost  O(tokens found). */
uint32_t sched_n_found(const struct sched *s, struct request *r);

/* sched_decodes - whether a request RUNNING has a gap of one
 *
 * Cost  O(RUNNING). */
bool sched_decodes(const struct sched *s);

/* sched_n_waiting, sched_n_fetching, sched_n_running - requests in a state */
uint32_t sched_n_waiting(const struct sched *s);
uint32_t sched_n_fetching(const struct sched *s);
uint32_t sched_n_running(const struct sched *s);

/* What has happened since creation. */
struct sched_totals {
    uint64_t n_preempted;
    uint64_t n_query_token;   /* prompt tokens looked up, once a request */
    uint64_t n_hit_token;     /* of them found, in the cache or in the tiers */
    uint64_t n_fetched_token; /* of these in the tiers, or at another server */
};

/* sched_totals - the scheduler's own, up to date after each call */
const struct sched_totals *sched_totals(const struct sched *s);

/* sched_is_short_of_pages - whether, in the last plan of sched_plan, a request waited or was
 * preempted for want of pages */
bool sched_is_short_of_pages(const struct sched *s);

/* sched_first_waiting - the WAITING request that is next; its `next` follows it */
struct request *sched_first_waiting(const struct sched *s);

/* sched_first_fetching, sched_first_running - likewise of the FETCHING and RUNNING requests */
struct request *sched_first_fetching(const struct sched *s);
struct request *sched_first_running(const struct sched *s);

/* sched_any - a live request, RUNNING before FETCHING before WAITING; NULL when there is none */
struct request *sched_any(const struct sched *s);

/* sched_check - assert every invariant of sched_plan.c, of each live request and of the pool
 *
 * Cost  O(live requests + pages + entries under way). */
void sched_check(struct sched *s);

/* sched_dump - counts, then a line a plan under way and a request, then the pool */
fathom_err sched_dump(const struct sched *s, struct buf *out);

#endif
