/* request.h - one request as the scheduler knows it: tokens wanted, tokens computed, pages
 *
 * A request wants the cache rows of all its known tokens (n_token: prompt and output so far);
 * n_computed of them exist. A step closes a part of this gap, or all of it. The step that closes it
 * draws the next token, which opens the gap again by one. Prefill, decode, going on from cached
 * pages and recomputing after a preemption differ only in how wide the gap is. Drafts (speculative
 * decoding) are guesses at the next tokens, computed along with the known ones. A draft is accepted
 * if it, and every draft before it, equals the token drawn in its place.
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
    REQUEST_FETCHING, /* holds the pages of all its known tokens, of which the first are being
                         filled from the tiers; is in no step */
    REQUEST_RUNNING, /* holds the pages of all its known tokens, perhaps without the newest one's */
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
    REQUEST_FINISH_LOST,     /* its peer did not send all pages, and it may not compute them here */
    REQUEST_FINISH_UNWANTED, /* the request on another server that wanted its pages has ended */
};

/* Pages that come from the tiers. */
struct request_fetch {
    uint32_t first; /* pages[first .. end) are to be filled */
    uint32_t end;
    bool from_disk;     /* some of them come from disk */
    bool from_peer;     /* some of them come from the peer */
    bool all_from_peer; /* every page that the peer has of the prompt is fetched */
    bool failed;        /* no more pages come, and it may not compute them: the owner ends it */
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
    uint32_t n_given;    /* output tokens drawn before it entered, in ids behind the prompt; fewer
                            than the output has room for */
    uint32_t n_to_score; /* of the first n_to_score prompt tokens the logits are wanted too, each
                            once: 0 .. n_prompt - 1 */
    uint32_t min_output; /* stop ids do not count among the first min_output tokens of the output */
    uint64_t cache_salt; /* only requests with the same salt find its pages */
    int32_t priority;    /* lower is earlier */
    uint32_t tenant;     /* whose request it is: turn.h */
    bool has_peer;       /* another server may have pages of the prompt */
    uint32_t peer;       /* which one: tier_peer.place */
    uint32_t peer_end;   /* it may have the pages before this one */
    bool peer_lends;     /* it keeps them for this request; cleared once it need not */
    bool needs_peer;     /* pages that the peer does not send must not be computed here */
    uint64_t lend_us;    /* how long other servers may ask for its pages; 0: none will ask */
    bool has_hand_over;  /* one server computes the prompt for a request of another one, and both
                            know that request by the key hand_over */
    struct hash128 hand_over; /* with it the one tells the other that its request has ended */

    /* What changes as the request runs. Zero before sched_add. */
    enum request_state state;
    enum request_finish finish;
    uint32_t n_token;     /* ids known: the tokens wanted */
    uint32_t n_computed;  /* tokens whose cache rows exist: positions 0 .. n_computed - 1 */
    uint32_t n_reached;   /* the largest n_computed so far: rows beyond it were never computed */
    uint32_t n_draft;     /* ids[n_token .. n_token + n_draft) are drafts; the owner may set them
                             between sched_commit and sched_plan when the gap is 1 */
    uint32_t n_planned;   /* its tokens in the steps under way, drafts included */
    bool is_held;         /* its drafts are being made: no plan takes it, and it keeps its pages.
                             The owner sets this between sched_commit and sched_plan */
    uint32_t n_page;      /* pages[0 .. n_page) are held; page j has positions 64*j .. 64*j + 63 */
    uint32_t n_published; /* the first so many of them are in the prefix cache */
    uint32_t n_cached;    /* prompt tokens found there or in the tiers when the request first ran */
    uint32_t n_preempted;
    struct request_fetch fetch; /* the one under way, or the last one */
    uint64_t arrival;           /* rises with each sched_add; unique among all lanes */
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

/* request_n_scored - how many of the n_to_score tokens have had their logits computed. Until all
 * have, the request does not use cached pages, so every row up to n_reached was computed here. */
static inline uint32_t request_n_scored(const struct request *r)
{
    return r->n_reached < r->n_to_score ? r->n_reached : r->n_to_score;
}

/* request_draft_room - how many drafts a request can have, so that they and the token drawn after
 * them fit into max_token */
static inline uint32_t request_draft_room(const struct request *r)
{
    return r->max_token - 1 - r->n_token;
}

/* request_push - append a drawn token
 *
 * Needs    a RUNNING request with n_token < max_token.
 * Returns  why the request is over now: STOP, LENGTH, or NONE when it goes on. Changes no state. */
enum request_finish request_push(struct request *r, int32_t id);

/* One function for each edge of request.c; each asserts the state that it starts from. The
 * scheduler takes and gives pages around these calls.
 *
 *   n_found  tokens whose rows are in published pages and need no step; fewer than n_token
 *   fetch    fetch->first is the page after the published ones */
void request_enter(struct request *r, uint64_t arrival);
void request_leave(struct request *r); /* back to NEW, as if it had not entered */
void request_start_fetch(struct request *r, const struct request_fetch *fetch);
void request_fill(struct request *r, uint32_t n_page, uint64_t now_us); /* n_page more came */
void request_stop_fetch(struct request *r);
void request_admit(struct request *r, uint32_t n_found, uint64_t now_us);
void request_preempt(struct request *r);
void request_end(struct request *r, enum request_finish why, uint64_t now_us);

/* request_check - assert the invariants of request.c for the state of r */
void request_check(const struct request *r);

/* request_dump - one line */
fathom_err request_dump(const struct request *r, struct buf *out);

#endif
