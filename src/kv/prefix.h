/* prefix.h - pages found again by the tokens that they hold
 *
 * This is prefix caching. A page is published when its 64 tokens have been computed. It is found
 * under its tokens and the page before it; the first page of a request is found under its tokens
 * and the request's salt. So a page that is found stands for every token from the first on. Tokens
 * are compared, not hashes: a page of other tokens cannot be found. The draft layer's row at a
 * position depends on the token after it, so with that layer a page is found under the token after
 * the page too.
 *
 * Rows of prompts and rows of answers may have other bits (backend/batch.h). Then a page is found
 * under the place where its answer begins too. So a page of a prompt is found by every prompt that
 * begins like it, and a page with rows of an answer by that answer alone: its own request, after a
 * preemption, or one that draws the same after the same prompt. Invariants: prefix.c. One thread at
 * a time.
 */
#ifndef FATHOM_KV_PREFIX_H
#define FATHOM_KV_PREFIX_H

#include <stdbool.h>
#include <stdint.h>

#include "base/buf.h"
#include "fathom/err.h"
#include "kv/page_pool.h"

struct page_feed;
struct prefix_cache;
struct tiers;

/* What the pages of a request are found under. */
struct prefix_text {
    uint64_t salt;
    const int32_t *ids; /* [n_id] */
    uint32_t n_prompt;  /* rows from this position on are an answer's; UINT32_MAX: rows of prompts
                           and of answers are the same */
    struct prefix_peer {
        bool is_set;
        uint32_t place; /* struct tier_peer */
        uint64_t pull;
        uint32_t end; /* it may have the pages before this one */
    } peer;           /* another server, for what is neither in the cache nor in the tiers */
};

/* prefix_create - nothing is published
 *
 *   pool       borrowed; while the cache lives, it alone decides which pages are kept and hears of
 *              evictions
 *   with_next  records depend on the token after the page
 * Errors  ENOMEM */
fathom_err prefix_create(struct prefix_cache **out, struct page_pool *pool, bool with_next,
                         fathom_diag *d);
void prefix_destroy(struct prefix_cache *c); /* accepts NULL */

/* prefix_attach_tiers - pages that leave the cache go to the tiers, and are found there
 *
 *   tiers       borrowed; outlives the cache. Its page and token counts are the cache's. Several
 *               caches may have the same, whose records of equal tokens have equal bits
 *   first_page  the number of the pool's page 0 among all pages that the tiers' device has
 * Needs  a cache without tiers in which no page is published. */
void prefix_attach_tiers(struct prefix_cache *c, struct tiers *tiers, uint32_t first_page);

/* prefix_attach_feed - it hears of every page that is published, and of every one that is no more
 *
 *   feed  borrowed; outlives the cache, whose page and token counts it has
 * Needs  a cache without a feed in which no page is published. */
void prefix_attach_feed(struct prefix_cache *c, struct page_feed *feed);

/* prefix_n_key_id - tokens that a page is found under */
uint32_t prefix_n_key_id(const struct prefix_cache *c);

/* prefix_find - the published pages that hold the beginning of n_id ids, but not all of them
 *
 *   pages  [(n_id - 1) / 64], written: page i has tokens 64*i .. 64*i + 63. They get no holder by
 *          this: the caller refers to them before the next page_pool_take, or forgets them
 * Returns  how many were found.
 * Cost     O(tokens found + 64). */
uint32_t prefix_find(const struct prefix_cache *c, const struct prefix_text *t, uint32_t n_id,
                     uint32_t *pages);

/* prefix_publish - page `i` of a request has been computed and will not change
 *
 *   t      with more than 64*(i + 1) ids
 *   pages  [i + 1] held by the request; those before i are published
 * Returns  the page that the request holds from now on: pages[i], or one with the same tokens that
 *          was published before, in whose favour pages[i] has been given back */
uint32_t prefix_publish(struct prefix_cache *c, const struct prefix_text *t, const uint32_t *pages,
                        uint32_t i);

/* prefix_end_answer - the request that holds the page has ended, and is about to give it
 *
 * A page with rows of an answer that nobody else holds will not be asked for again: it is
 * unpublished. Its memory is the first to be taken, and the tiers get no copy. Other pages stay.
 * Needs  the pages after it given, or passed to this function, before. */
void prefix_end_answer(struct prefix_cache *c, uint32_t page);

/* prefix_void - the pages hold nothing any more: none is published, and none goes to the tiers
 * Needs  no published page that is held. */
void prefix_void(struct prefix_cache *c);

/* ---- with tiers; without tiers these find, wait for and keep nothing --------------------------
 */

/* What the tiers have of a request beyond the cache. */
struct prefix_match {
    uint32_t n_page;
    uint32_t n_disk; /* of them not in memory */
    uint32_t n_peer; /* of them at the peer, perhaps */
};

/* prefix_find_tiers - the pages after the first n_page that the tiers hold, but not all of ids
 *
 *   pages  [n_page] what prefix_find has found
 * Returns  none if restoring them does not pay (tiers.h).
 * Cost     100 ns a page. */
struct prefix_match prefix_find_tiers(const struct prefix_cache *c, const struct prefix_text *t,
                                      uint32_t n_id, const uint32_t *pages, uint32_t n_page);

enum prefix_fetch {
    PREFIX_FETCHED,    /* all pages are there */
    PREFIX_FETCH_WAIT, /* more will come: ask again in the next step */
    PREFIX_FETCH_HERE, /* likewise, and the next one is in memory: steps copy so much and no more */
    PREFIX_FETCH_LOST, /* no more will come */
};

/* prefix_fetch - fill pages of a request from the tiers, as far as that goes now
 *
 *   pages     [end] held by the request; the pages before `first` are published
 *   first     the first page to be filled
 *   n_filled  written: how many were filled and published. A page may have been swapped, as by
 *             prefix_publish */
enum prefix_fetch prefix_fetch(struct prefix_cache *c, const struct prefix_text *t, uint32_t *pages,
                               uint32_t first, uint32_t end, uint32_t *n_filled);

/* prefix_leave_peer - the text's peer need not keep any of its pages any more (tiers_release)
 *
 * Cost  100 ns a page. */
void prefix_leave_peer(const struct prefix_cache *c, const struct prefix_text *t);

/* prefix_tiers - NULL: there are none */
struct tiers *prefix_tiers(const struct prefix_cache *c);

/* prefix_offer - a holder has given the page; if it is CACHED now, the tiers get a copy in time */
void prefix_offer(struct prefix_cache *c, uint32_t page);

/* prefix_share - another server will ask for a published page: the tiers get a copy before all
 * others, and lend it memory until then (tiers_lease, also for is_new). Without tiers nothing
 * happens. */
void prefix_share(struct prefix_cache *c, uint32_t page, uint64_t until_us, bool is_new);

/* prefix_keep_offered - give the tiers the shared pages, and at most n others that were offered
 *
 * A page is given only while a copy is due and the step may copy. The pages that will be evicted
 * first go first.
 * Needs  every row of the published pages written: it is called between two steps. */
void prefix_keep_offered(struct prefix_cache *c, uint32_t n);

/* prefix_n_offered - pages that were given by their last holder and have no copy yet
 *
 * prefix_n_margin - pages that a request shall find available without a copy being made first. It
 * counts when copies cost other records their memory.
 *
 * prefix_is_due - whether the next copy is to be made as soon as there is time. It is when memory
 * has a free place, when a disk stands behind it, or when fewer pages than the margin are available
 * without a copy. */
uint32_t prefix_n_offered(const struct prefix_cache *c);
uint32_t prefix_n_margin(const struct prefix_cache *c);
bool prefix_is_due(const struct prefix_cache *c);

/* prefix_n_page - pages that are published now */
uint32_t prefix_n_page(const struct prefix_cache *c);

/* prefix_check - assert every invariant of prefix.c
 *
 * Cost  O(n_page * 64). */
void prefix_check(struct prefix_cache *c);

/* prefix_check_chain - assert that pages[0 .. n) are what prefix_find finds for *t */
void prefix_check_chain(const struct prefix_cache *c, const struct prefix_text *t,
                        const uint32_t *pages, uint32_t n);

/* prefix_dump - the count, then a line a page */
fathom_err prefix_dump(const struct prefix_cache *c, struct buf *out);

#endif
