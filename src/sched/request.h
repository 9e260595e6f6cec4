/* request.h - one request as the scheduler knows it: tokens wanted, tokens computed, pages
 *
 * A request wants the cache rows of all its known tokens (n_token: prompt and output so far);
 * n_computed of them exist. A step closes the gap in whole or in part. The step that closes it
 * draws the next token, which opens the gap again by one. Prefill, decode, going on from cached
 * pages and recomputing after a preemption differ in the width of the gap alone. Drafts
 * (speculative decoding) widen it: they are guesses at the tokens to come, computed along with the
 * known ones. A draft is kept if it and all drafts before it are the tokens that are drawn.
 * States and edges: request.c.
 */
#ifndef FATHOM_SCHED_REQUEST_H
#define FATHOM_SCHED_REQUEST_H

#include <stdbool.h>
#include <stdint.h>

#include "base/buf.h"
#include "base/hash.h"
#include "fathom/err.h"
#include "kv/layout.h"

enum request_state {
    REQUEST_NEW,      /* not yet given to the scheduler */
    REQUEST_WAITING,  /* holds no page */
    REQUEST_FETCHING, /* holds the pages of all its known tokens; the first ones are being filled
                         with records from the tiers; is in no step */
    REQUEST_RUNNING,  /* holds the pages of all its known tokens; the newest token's may be missing
                       */
    REQUEST_FINISHED, /* holds no page, will not change again */
};

enum request_finish {
    REQUEST_FINISH_NONE,
    REQUEST_FINISH_STOP,   /* a stop id was drawn; it is the last of ids */
    REQUEST_FINISH_LENGTH, /* n_token == max_token */
    REQUEST_FINISH_CANCEL,
    REQUEST_FINISH_EXPIRED,    /* it waited until it could not be served in time */
    REQUEST_FINISH_CONSTRAINT, /* nothing could be drawn */
    REQUEST_FINISH_ERROR,
    REQUEST_FINISH_LOST,     /* its peer did not give all pages, and it may not compute them */
    REQUEST_FINISH_UNWANTED, /* who would have taken its pages has left */
};

/* Pages that come from the tiers. */
struct request_fetch {
    uint32_t first; /* pages[first .. end) are to be filled */
    uint32_t end;
    bool from_disk;     /* some of them */
    bool from_peer;     /* likewise */
    bool all_from_peer; /* of the prompt, whatever the peer may have */
    bool failed;        /* no more come, and the request may not compute them: the owner ends it */
    uint64_t start_us;
    uint64_t moved_us; /* when the last page came */
};

struct request {
    /* Fixed by the owner before sched_add. The arrays are the owner's and outlive the request. */
    uint64_t id;
    int32_t *ids;            /* [max_token] prompt, then output; the prompt is filled in */
    uint32_t *pages;         /* [request_n_page(max_token)] */
    const int32_t *stop_ids; /* [n_stop_id] tokens that end the output, EOS among them */
    uint32_t n_stop_id;
    uint32_t n_prompt;   /* >= 1 */
    uint32_t max_token;  /* prompt and output; > n_prompt */
    uint32_t n_given;    /* output that was drawn before it entered, in ids behind the prompt; less
                            than the output has room for */
    uint32_t n_to_score; /* so many of the prompt's first tokens have their logits wanted too, each
                            once: 0 .. n_prompt - 1 */
    uint32_t min_output; /* stop ids do not count among the first min_output tokens of the output */
    uint64_t cache_salt; /* its pages are found by requests of the same salt alone */
    int32_t priority;    /* lower is earlier */
    uint32_t tenant;     /* whose it is: turn.h */
    bool has_peer;       /* another server, peer, may have pages of the prompt: */
    uint32_t peer;       /* struct tier_peer */
    uint32_t peer_end;   /* those before this one */
    bool peer_lends;     /* and keeps them for it until it is told otherwise, which clears this */
    bool needs_peer;     /* what it does not give is not computed here */
    uint64_t lend_us;    /* other servers will ask for its pages, for so long; 0: they will not */
    bool has_hand_over; /* another server has the prompt too; who takes the pages tells who lends */
    struct hash128 hand_over; /* them that it has left, by this key */

    /* What changes as the request runs. Zero before sched_add. */
    enum request_state state;
    enum request_finish finish;
    uint32_t n_token;     /* ids known: the tokens wanted */
    uint32_t n_computed;  /* of which cache rows exist: positions 0 .. n_computed - 1 */
    uint32_t n_reached;   /* the largest n_computed so far: beyond it nothing is computed twice */
    uint32_t n_draft;     /* ids[n_token .. n_token + n_draft) are guesses; the owner may set them
                             between sched_commit and sched_plan when the gap is 1 */
    uint32_t n_planned;   /* tokens of the steps that are under way, drafts included */
    bool is_held;         /* its drafts are being made: it is in no plan and keeps its pages. The
                             owner's to say, between sched_commit and sched_plan */
    uint32_t n_page;      /* pages[0 .. n_page) are held; page j has positions 64*j .. 64*j + 63 */
    uint32_t n_published; /* the first so many of them are in the prefix cache */
    uint32_t n_cached;    /* prompt tokens found there or in the tiers when the request first ran */
    uint32_t n_preempted;
    struct request_fetch fetch; /* the one under way, or the last one */
    uint64_t arrival;           /* its number in the order of sched_add */
    uint64_t turn;              /* turn.h */
    uint64_t scheduled_us;      /* when first planned */
    uint64_t first_us;          /* when the first token was drawn; 0: none yet */
    uint64_t finished_us;
    struct request *prev; /* neighbours in the list of this state: turn.h */
    struct request *next;
};

/* request_n_page - pages that n_token tokens fill, the last one maybe in part */
static inline uint32_t request_n_page(uint32_t n_token)
{
    return (uint32_t)(((uint64_t)n_token + KV_PAGE_TOKENS - 1) / KV_PAGE_TOKENS);
}

/* request_n_output - tokens drawn so far */
static inline uint32_t request_n_output(const struct request *r)
{
    return r->n_token - r->n_prompt;
}

/* request_gap - tokens wanted and not computed: at least 1 until the request is finished */
static inline uint32_t request_gap(const struct request *r)
{
    return r->n_token - r->n_computed;
}

/* request_is_stop - whether drawing `id` now ends the request */
bool request_is_stop(const struct request *r, int32_t id);

/* request_n_scored - how many of the n_to_score tokens have had their logits given by a step. Until
 * all have, such a request goes on from no cached page, so all that it has reached was computed. */
static inline uint32_t request_n_scored(const struct request *r)
{
    return r->n_reached < r->n_to_score ? r->n_reached : r->n_to_score;
}

/* request_draft_room - drafts that a request can have: they and the token drawn after them end
 * within max_token */
static inline uint32_t request_draft_room(const struct request *r)
{
    return r->max_token - 1 - r->n_token;
}

/* request_push - append a drawn token
 *
 * Needs    a RUNNING request with n_token < max_token.
 * Returns  why the request is over now: STOP, LENGTH, or NONE when it goes on. Changes no state. */
enum request_finish request_push(struct request *r, int32_t id);

/* One function an edge; each asserts the state it starts from. The scheduler takes and gives pages
 * around these calls.
 *
 *   n_found  tokens whose rows lie in published pages, computed without a step; fewer than n_token
 *   fetch    its first page is the one after the published pages */
void request_enter(struct request *r, uint64_t arrival);
void request_leave(struct request *r); /* as if it had not entered */
void request_start_fetch(struct request *r, const struct request_fetch *fetch);
void request_fill(struct request *r, uint32_t n_page, uint64_t now_us); /* as many more came */
void request_stop_fetch(struct request *r);
void request_admit(struct request *r, uint32_t n_found, uint64_t now_us);
void request_preempt(struct request *r);
void request_end(struct request *r, enum request_finish why, uint64_t now_us);

/* request_check - assert what request.c lists for the state that r is in */
void request_check(const struct request *r);

/* request_dump - one line */
fathom_err request_dump(const struct request *r, struct buf *out);

#endif
