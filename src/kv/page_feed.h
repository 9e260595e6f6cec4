/* page_feed.h - what a prefix cache has published, told to one other thread
 *
 * The cache tells of every page that it publishes or takes out. The feed makes events of this and
 * puts them into a ring, from which one thread takes them: each page once when it is stored, after
 * its parent, and once when it is removed. Events stand for what a prompt without a salt can find.
 * So pages of other salts are passed over, and so are pages with rows of an answer where these have
 * other bits (prefix.h).
 *
 * The ring is bounded and nobody waits for it. A page that was not told of yet waits in the cache
 * itself. Only a removal that has no place is lost; then PAGE_CLEARED comes as soon as there is
 * room, and after it all that is in the cache again. Whoever applies the events in order never
 * holds a page that had left the cache when the last of them was made.
 *
 * All functions belong to the cache's thread but page_feed_peek and page_feed_drop, which belong to
 * the one that takes. Invariants: page_feed.c.
 */
#ifndef FATHOM_KV_PAGE_FEED_H
#define FATHOM_KV_PAGE_FEED_H

#include <stdbool.h>
#include <stdint.h>

#include "base/hash.h"
#include "fathom/err.h"
#include "kv/layout.h"

struct page_feed;

enum page_event_kind { PAGE_STORED, PAGE_REMOVED, PAGE_CLEARED };

struct page_event {
    enum page_event_kind kind;
    uint64_t page;               /* a hash of all tokens up to its end, never 0; CLEARED: 0 */
    uint64_t parent;             /* of the page before it; 0: a first page */
    int32_t ids[KV_PAGE_TOKENS]; /* of STORED */
};

struct page_feed_config {
    uint32_t n_page;       /* of the cache */
    uint32_t n_key_id;     /* tokens that a page is found under: 64 or 65 */
    uint32_t n_event;      /* that the ring has room for, at least PAGE_FEED_MIN; rounded up to a
                              power of two */
    struct hash128 secret; /* of the hashes */
};

enum { PAGE_FEED_MIN = 4 };

/* page_feed_create - nothing is published; ENOMEM */
fathom_err page_feed_create(struct page_feed **out, const struct page_feed_config *c,
                            fathom_diag *d);
void page_feed_destroy(struct page_feed *f); /* accepts NULL */

/* page_feed_publish - a page is found from now on
 *
 *   parent    a published page; UINT32_MAX: it is a first page
 *   salt      of a first page
 *   n_answer  rows of an answer in it
 *   ids       [n_key_id], which stay as they are until the page is taken out
 * page_feed_take_out - it is found no more; pages that it is the parent of were taken out before
 * page_feed_void - none is
 * Edge  for NULL these do nothing. */
void page_feed_publish(struct page_feed *f, uint32_t page, uint32_t parent, uint64_t salt,
                       uint32_t n_answer, const int32_t *ids);
void page_feed_take_out(struct page_feed *f, uint32_t page);
void page_feed_void(struct page_feed *f);

/* page_feed_tell - put events of at most n pages into the ring, as far as it has room
 *
 *   salt  of requests without one; when it is another one than before, all is cleared
 * Returns  whether it has more to say and room for it. When it has more and no room,
 *          page_feed_drop says so in its time. */
bool page_feed_tell(struct page_feed *f, uint64_t salt, uint32_t n);

/* page_feed_n_put - events put into the ring so far */
uint64_t page_feed_n_put(const struct page_feed *f);

/* page_feed_n_overflow - times that a removal had no place in the ring; any thread */
uint64_t page_feed_n_overflow(const struct page_feed *f);

/* page_feed_peek - the oldest events; returns how many lie in a row at *out, 0 when there are none
 *
 * page_feed_drop - the first n of them are done with. Returns whether the feed waits for room: then
 * page_feed_tell is to be called again, by its thread. */
uint32_t page_feed_peek(const struct page_feed *f, const struct page_event **out);
bool page_feed_drop(struct page_feed *f, uint32_t n);

/* page_feed_check - assert every invariant of page_feed.c
 *
 * Cost  O(n_page). */
void page_feed_check(const struct page_feed *f);

#endif
