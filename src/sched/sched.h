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
    uint32_t max_draft;              /* drafts per request; 0: there are none */
    uint32_t max_score;              /* prompt tokens per step whose logits are wanted, >= 1 */
    uint32_t max_flight;             /* plans under way: made and not committed, >= 1 */
    uint32_t n_stage;      /* above 1: up to max_flight == n_stage plans are under way, and no
                              request is in two of them */
    bool prompt_form;      /* prompt rows and answer rows have different bits (backend/batch.h): an
                              entry has rows of one kind, and the place where the answer begins is
                              part of a page's key */
    uint32_t lane, n_lane; /* this scheduler's number and how many there are, when several have
                              caches over the same tiers: so no two requests get the same `arrival`.
                              Zeros: there is one scheduler */
};

/* Limits of one step, below those of sched_config. */
struct sched_bounds {
    uint32_t max_running; /* at this many RUNNING none is admitted; above it none is preempted */
    uint32_t max_prefill; /* tokens of gaps wider than one, while any request decodes */
    bool paces_others;    /* max_prefill holds always: another scheduler's requests decode in the
                             same steps */
};

/* What a step computes of one request: positions first .. first + n_token - 1. */
struct plan_entry {
    struct request *request;
    uint32_t first;
    uint32_t n_token;  /* >= 1, drafts included */
    uint32_t n_draft;  /* the last n_draft of them are drafts; 0 unless draws */
    uint32_t n_score;  /* prompt tokens whose logits are wanted too, from request_n_scored on */
    bool draws;        /* the entry closes the gap: the logits of its last known token give the next
                          token, and the logits of each draft give the token after it */
    uint32_t i_token;  /* index of its first token among the tokens of the step */
    uint32_t i_draw;   /* index of its first draw among the draws of the step */
    uint32_t i_score;  /* index of its first scored token among those of the step */
    uint32_t i_before; /* in a plan made ahead: which draw of the step before is its token */
    bool is_prompt;    /* with prompt_form: its rows are prompt rows */
    bool is_lent;      /* other lanes may compute some of its tokens (sched_lend) */
    uint32_t n_lent;   /* so many of its tokens are beyond this scheduler's own budget */
};

struct plan {
    struct plan_entry *entries; /* [max_num_seqs], n_entry used. Entries with is_prompt come last.
                                   Within each kind: requests that ran before, in order (turn.h),
                                   then those that this plan admits */
    uint32_t n_entry;           /* 0: nothing to run */
    uint32_t n_token;           /* sum over the entries, as n_lent and n_score */
    uint32_t n_lent;
    uint32_t n_draw; /* tokens drawn: 1 + n_draft for each entry that draws */
    uint32_t n_score;
    uint32_t max_context; /* largest first + n_token */
    bool is_ahead;        /* made by sched_plan_ahead */
};

/* plan_init - room for max_num_seqs entries; ENOMEM. plan_fini accepts a zeroed plan. */
fathom_err plan_init(struct plan *p, uint32_t max_num_seqs);
void plan_fini(struct plan *p);

/* sched_create - over a pool and a prefix cache, which it borrows and alone may use
 *
 *   prefix  a cache over the same pool; NULL: no prefix caching
 * Errors  EINVAL naming the member of *c that is 0; ENOMEM. */
fathom_err sched_create(struct sched **out, const struct sched_config *c, struct page_pool *pool,
                        struct prefix_cache *prefix, fathom_diag *d);
void sched_destroy(struct sched *s); /* accepts NULL; requests are the owner's */

/* sched_add - NEW -> WAITING; gives the request its turn (turn.h)
 *
 * Needs  request_n_page(max_token) <= the pool's pages: else it could wait for ever.
 * Owns   the request stays the caller's, and stays at its address until FINISHED. */
void sched_add(struct sched *s, struct request *r);

/* sched_withdraw - WAITING -> NEW, so that another scheduler can take it
 *
 * Needs  a request that has held no page since sched_add (sched_may_withdraw). */
bool sched_may_withdraw(const struct request *r);
void sched_withdraw(struct sched *s, struct request *r);

/* sched_end - WAITING, FETCHING or RUNNING -> FINISHED for a reason from outside (CANCEL, ERROR);
 * its pages are given back. Its entries leave all plans under way. Steps that have been launched
 * compute its rows in vain. */
void sched_end(struct sched *s, struct request *r, enum request_finish why, uint64_t now_us);

/* sched_set_bounds - limits of all later plans
 *
 * Needs  max_running and max_prefill >= 1. */
void sched_set_bounds(struct sched *s, const struct sched_bounds *bounds);

/* sched_plan - decide the next step
 *
 * Fills pages of FETCHING requests. Such a request becomes RUNNING when all its pages have come or
 * no more will come. Then walks the RUNNING requests in order (turn.h). Then admits WAITING
 * requests, with the pages that the prefix cache has of them. A request of which the tiers have
 * more pages is FETCHING first. Takes the pages that the step writes, and preempts the last request
 * when they run out. Drafts get what is left of the budget, and pages only if nobody must be
 * preempted for them.
 *
 * With several stages a plan takes only requests that are in no plan under way and not held. It
 * takes no more than an equal share of those that can run, so that each stage has something to do.
 *
 *   plan  filled. n_entry is 0 only in these cases:
 *         - no request is live
 *         - every request that could run waits for pages from the tiers: plan again when some have
 *           come, or after sched_fetch_poll_us
 *         - another plan is under way, or a request is held, and no other request can run
 *         - after sched_hold_back: only requests that are held back have tokens to compute
 * Needs   no plan under way; with several stages, fewer than max_flight.
 * Errors  never fails: a request that lacks room waits, or is preempted.
 * Cost    O(RUNNING + admitted), and O(1) a page; O(tokens found) for looking up. */
void sched_plan(struct sched *s, uint64_t now_us, struct plan *plan);
enum { SCHED_FETCH_POLL_US = 100000, SCHED_AGAIN_POLL_US = 2000 };

/* sched_fetch_poll_us - how long to wait before planning again: SCHED_FETCH_POLL_US, but
 * SCHED_AGAIN_POLL_US while another server does not have yet what it was asked for */
uint64_t sched_fetch_poll_us(const struct sched *s);

/* sched_plan_ahead - decide the step after the newest under way, before that one has drawn
 *
 * This is overlap scheduling. Each request of `plan` goes on with the token that it is about to
 * draw, except those that then reach their full length. *next is then under way too. When a token
 * drawn meanwhile ends a request, its entry leaves *next. The step still computes that row, but in
 * vain; a page that the request gave back is written by its next holder in a later step.
 *
 *   plan  the newest under way: what sched_plan or sched_plan_ahead gave last
 *   next  filled; must not be under way. Both plans stay with the scheduler until their commit
 * Needs    one stage.
 * Returns  false, with nothing changed, when max_flight plans are under way or when it is not
 *          certain what the next step computes. That is so with drafts; when a request draws
 *          nothing in the newest step, lacks a page, fetches pages or could be admitted; when one
 *          would have to be preempted; and when no request goes on.
 * Cost     O(RUNNING). */
bool sched_plan_ahead(struct sched *s, const struct plan *plan, struct plan *next);

/* ---- a long prompt that the schedulers of several lanes compute together (engine/share.h) ---- */

/* sched_first_wide - the first request, in order, that lacks a part of its prompt and whose next
 * gap is at least `least` tokens wide
 *
 * The gap counts rows of one kind (prompt rows before answer rows), and not those that the cache or
 * the tiers have. Only requests that want no logits of their prompt are looked at: all that are
 * RUNNING, and, if one more could be admitted, the first WAITING one that would be wide enough if
 * nothing of it were found.
 *
 *   n_lacking  written: the width of its gap; undefined without such a request
 * Returns  NULL: there is no such request.
 * Cost  O(live requests), and what admission takes to look for the pages of one. */
struct request *sched_first_wide(const struct sched *s, uint32_t least, uint32_t *n_lacking);

/* sched_lend - other lanes will compute up to n_token tokens of r's prompt in the next step
 *
 * So the next sched_plan may give r that many tokens beyond the budget. It does so only if r's gap
 * is at least `least` wide and uses up what the budget has for r, which must be a token or more.
 * The offer ends with that plan.
 * Needs  r live, with no draft and no prompt tokens to score. */
void sched_lend(struct sched *s, const struct request *r, uint32_t n_token, uint32_t least);

/* sched_hold_back - the next sched_plan gives r and all requests behind it no tokens of gaps wider
 * than one, and admits none of them
 *
 * One exception: if the tiers have pages of r, it is admitted to fetch them meanwhile. sched_n_left
 * tells what the plan could have given. The plan may have no entry though requests are live. The
 * order ends with that plan. */
void sched_hold_back(struct sched *s, const struct request *r);

/* sched_n_left - tokens of wide gaps that the last sched_plan still had budget for */
uint32_t sched_n_left(const struct sched *s);

/* sched_take_guest - take n pages for rows of another scheduler's request, the guest
 *
 * They are taken only if as many more pages are available as requests hold pages here. The
 * scheduler gives them back by itself before it preempts a request or lets one wait for pages.
 *
 *   pages  written; the caller's array, which must stay until the pages are given back
 * Needs    no guest.
 * Returns  false: nothing is taken.
 * sched_give_guest - give the pages back, if there are any; sched_n_guest_page - how many there
 * are */
bool sched_take_guest(struct sched *s, uint32_t *pages, uint32_t n);
void sched_give_guest(struct sched *s);
uint32_t sched_n_guest_page(const struct sched *s);

/* sched_rests_after - whether, as far as is known, no request is live after a plan: all that run
 * reach their full length in it, and none waits or fetches
 *
 *   plan  the newest under way; NULL: none is */
bool sched_rests_after(const struct sched *s, const struct plan *plan);

/* sched_take_back - undo the last sched_plan_ahead: `next` will not be computed. The pages taken
 * for it stay with their requests. */
void sched_take_back(struct sched *s, const struct plan *next);

/* sched_commit - the oldest step has been computed: advance every entry, append what was drawn,
 * publish the pages that are full, end the requests that are over
 *
 * Follows each sched_plan that gave entries and each sched_plan_ahead that returned true.
 *
 *   plan   the oldest under way
 *   drawn  [n_draw] the tokens drawn: those of an entry from i_draw on. Drafts are accepted up to
 *          the first that differs from the token drawn in its place. That token is still appended;
 *          the tokens drawn after it are dropped, and rows of wrong drafts count as not written. */
void sched_commit(struct sched *s, const struct plan *plan, const int32_t *drawn, uint64_t now_us);

/* sched_abort - no step under way was computed: all plans are void. Pages taken for them stay with
 * their requests.
 * Needs  a plan under way. */
void sched_abort(struct sched *s);

/* sched_n_flight - plans under way */
uint32_t sched_n_flight(const struct sched *s);

/* sched_n_found - how many pages of a NEW request the prefix cache has now; overwrites r->pages
 *
 * Cost  O(tokens found). */
uint32_t sched_n_found(const struct sched *s, struct request *r);

/* sched_decodes - whether any RUNNING request decodes: has a gap of one
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
    uint64_t n_query_token;   /* prompt tokens looked up in the cache; each request counts once */
    uint64_t n_hit_token;     /* those found, in the cache or in the tiers */
    uint64_t n_fetched_token; /* the part of n_hit_token found in the tiers or at another server */
};

/* sched_totals - the scheduler's own, up to date after each call */
const struct sched_totals *sched_totals(const struct sched *s);

/* sched_is_short_of_pages - whether a request waited or was preempted for lack of pages in the last
 * sched_plan */
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

/* sched_dump - counts, a line for each plan under way, a line for each request, then the pool */
fathom_err sched_dump(const struct sched *s, struct buf *out);

#endif
