/* prefix.h - pages found again by the tokens that they hold
 *
 * This is prefix caching. A page is published when its 64 tokens have been computed. Its key is its
 * tokens and the page before it; of a request's first page, its tokens and the request's salt. So a
 * page that is found stands for every token from the first on. Tokens are compared, not only
 * hashes: a page of other tokens is never found. The draft layer's row at a position depends on the
 * token after it, so with that layer the token after the page is part of the key too.
 *
 * Prompt rows and answer rows may have different bits (backend/batch.h). Then the place where the
 * answer begins is part of the key too. So a page of prompt rows is found by every prompt that
 * begins with the same tokens. A page with answer rows is found only by a request with the same
 * prompt and answer: its own request after a preemption, or one that draws the same after the same
 * prompt. Invariants: prefix.c. One thread at a time.
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

/* The text of a request, by which its pages are found. */
struct prefix_text {
    uint64_t salt;
    const int32_t *ids; /* [n_id] */
    uint32_t n_prompt;  /* rows from this position on are answer rows; UINT32_MAX: prompt rows and
                           answer rows have the same bits */
    struct prefix_peer {
        bool is_set;
        uint32_t place; /* struct tier_peer */
        uint64_t pull;
        uint32_t end; /* it may have the pages before this one */
    } peer;           /* another server to ask for pages that the cache and the tiers lack */
};

/* prefix_create - an empty cache
 *
 *   pool       borrowed. While the cache lives, only it may call page_pool_keep and
 *              page_pool_on_evict
 *   with_next  the token after a page is part of its key
 * Errors  ENOMEM */
fathom_err prefix_create(struct prefix_cache **out, struct page_pool *pool, bool with_next,
                         fathom_diag *d);
void prefix_destroy(struct prefix_cache *c); /* accepts NULL */

/* prefix_attach_tiers - from now on pages that leave the cache go to the tiers, and are found there
 *
 *   tiers       borrowed; outlives the cache. Several caches may share them, if pages of equal
 *               tokens have equal bits in all
 *   first_page  the number of the pool's page 0 among all pages of the tiers' device
 * Needs  a cache without tiers in which no page is published. */
void prefix_attach_tiers(struct prefix_cache *c, struct tiers *tiers, uint32_t first_page);

/* prefix_attach_feed - it hears of every page that is published, and of every one that is no more
 *
 *   feed  borrowed; outlives the cache, whose page and token counts it has
 * Needs  a cache without a feed in which no page is published. */
void prefix_attach_feed(struct prefix_cache *c, struct page_feed *feed);

/* prefix_n_key_id - tokens that a page is found under */
uint32_t prefix_n_key_id(const struct prefix_cache *c);

/* prefix_find - the published pages of the first tokens of a text, without the page of token n_id -
 * 1
 *
 *   pages  [(n_id - 1) / 64], written: page i has tokens 64*i .. 64*i + 63. They get no holder by
 *          this: call page_pool_ref on them before the next page_pool_take, or do not use them
 * Returns  how many were found.
 * Cost     O(tokens found + 64). */
uint32_t prefix_find(const struct prefix_cache *c, const struct prefix_text *t, uint32_t n_id,
                     uint32_t *pages);

/* prefix_publish - page `i` of a request has been computed and will not change
 *
 *   t      with more than 64*(i + 1) ids
 *   pages  [i + 1] held by the request; those before i are published
 * Returns  the page that the request holds from now on: pages[i], or an equal page that was
 *          published before. In that case pages[i] has been given back */
uint32_t prefix_publish(struct prefix_cache *c, const struct prefix_text *t, const uint32_t *pages,
                        uint32_t i);

/* prefix_end_answer - the request that holds the page has ended and is about to give it back
 *
 * If the page has answer rows and no other holder, no request will look for it again. It is
 * unpublished: its memory is reused first, and the tiers get no copy. Other pages stay published.
 * Needs  all later pages of the request were passed to this function or given back before. */
void prefix_end_answer(struct prefix_cache *c, uint32_t page);

/* prefix_void - the contents of all pages are lost: unpublish all, and give none to the tiers
 * Needs  no published page that is held. */
void prefix_void(struct prefix_cache *c);

/* ---- with tiers; without tiers these find, wait for and keep nothing --------------------------
 */

/* What the tiers have of a request beyond the cache. */
struct prefix_match {
    uint32_t n_page;
    uint32_t n_disk; /* how many of them are on disk only */
    uint32_t n_peer; /* how many of them only the peer may have */
};

/* prefix_find_tiers - which pages after the first n_page the tiers have, again without the page of
 * token n_id - 1
 *
 *   pages  [n_page] what prefix_find has found
 * Returns  none, if computing them is faster than restoring them (tiers_pay).
 * Cost     100 ns per page. */
struct prefix_match prefix_find_tiers(const struct prefix_cache *c, const struct prefix_text *t,
                                      uint32_t n_id, const uint32_t *pages, uint32_t n_page);

enum prefix_fetch {
    PREFIX_FETCHED,    /* all pages are there */
    PREFIX_FETCH_WAIT, /* more will come: ask again in the next step */
    PREFIX_FETCH_HERE, /* likewise; the next one is in memory, and waits for a check or a copy */
    PREFIX_FETCH_LOST, /* no more will come */
};

/* prefix_fetch - fill pages of a request from the tiers, as many as can be filled now
 *
 *   pages     [end] held by the request; the pages before `first` are published. An entry may be
 *             replaced by an equal page, as by prefix_publish
 *   first     the first page to be filled
 *   n_filled  written: how many were filled and published */
enum prefix_fetch prefix_fetch(struct prefix_cache *c, const struct prefix_text *t, uint32_t *pages,
                               uint32_t first, uint32_t end, uint32_t *n_filled);

/* prefix_leave_peer - tell the text's peer that it need not keep its pages any more (tiers_release)
 *
 * Cost  100 ns per page. */
void prefix_leave_peer(const struct prefix_cache *c, const struct prefix_text *t);

/* prefix_tiers - NULL: there are none */
struct tiers *prefix_tiers(const struct prefix_cache *c);

/* prefix_offer - a holder has given the page back. If it is CACHED now, it joins the offered pages:
 * those that the tiers are to get a copy of. */
void prefix_offer(struct prefix_cache *c, uint32_t page);

/* prefix_share - another server will ask for a published page. The tiers get its copy before those
 * of other pages, and keep it in memory until until_us (tiers_lease, also for is_new). Without
 * tiers nothing happens. */
void prefix_share(struct prefix_cache *c, uint32_t page, uint64_t until_us, bool is_new);

/* prefix_keep_offered - give the tiers copies of the shared pages, and of at most n other offered
 * pages, those first that will be evicted first. Stops when no copy is due (prefix_is_due) or the
 * step may copy no more.
 *
 * Needs  every row of the published pages written: it is called between two steps. */
void prefix_keep_offered(struct prefix_cache *c, uint32_t n);

/* prefix_n_offered - offered pages without a copy yet
 *
 * prefix_n_margin - how many pages should be available whose eviction needs no copy first. It
 * matters when each copy costs another record its place in memory.
 *
 * prefix_is_due - whether the next copy should be made as soon as there is time: a shared page is
 * offered, the tiers have a free place in memory or a disk, or fewer than prefix_n_margin pages are
 * available without a copy. */
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
