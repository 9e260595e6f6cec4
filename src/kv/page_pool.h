/* page_pool.h - who holds which page of the cache
 *
 * Pages are numbers in [0, n_page); what they hold is no concern of the pool. A page is FREE, HELD
 * by one or more holders, or CACHED. Nobody holds a CACHED page, but its record is still good; it
 * is taken again only when no page is FREE. States and edges: page_pool.c. One thread at a time.
 */
#ifndef FATHOM_KV_PAGE_POOL_H
#define FATHOM_KV_PAGE_POOL_H

#include <stdbool.h>
#include <stdint.h>

#include "base/buf.h"
#include "fathom/err.h"

struct page_pool;

enum page_state { PAGE_FREE, PAGE_HELD, PAGE_CACHED };

/* page_pool_create - n_page pages, all FREE
 *
 * Errors  EINVAL for 0 pages or more than INT32_MAX / 64, which is where row numbers end; ENOMEM */
fathom_err page_pool_create(struct page_pool **out, uint32_t n_page, fathom_diag *d);
void page_pool_destroy(struct page_pool *p); /* accepts NULL */

/* page_pool_limit - pages are numbers in [0, n_page) from now on
 *
 *   n_page  1 to what the pool was created with
 * Needs  all pages FREE.
 * Cost   O(n_page). */
void page_pool_limit(struct page_pool *p, uint32_t n_page);

/* page_pool_on_evict - evicted(arg, page) is called when page_pool_take is about to hand out a page
 * that was CACHED: whoever finds the page by its content must forget it. NULL: nobody.
 *
 * Needs  nobody told so far, or NULL. */
void page_pool_on_evict(struct page_pool *p, void (*evicted)(void *arg, uint32_t page), void *arg);

/* page_pool_take - a page for one holder: the FREE page given last, else the CACHED page that has
 * been unused the longest
 *
 *   page  written on success
 * Returns  false when every page is HELD.
 * Cost     O(1), like everything here but check and dump. */
bool page_pool_take(struct page_pool *p, uint32_t *page);

/* page_pool_ref - one more holder of a page that is HELD or CACHED */
void page_pool_ref(struct page_pool *p, uint32_t page);

/* page_pool_give - one holder less; without the last one the page is CACHED if it is kept, else
 * FREE
 *
 * Needs  a page that is HELD. */
void page_pool_give(struct page_pool *p, uint32_t page);

/* page_pool_keep - whether the record is worth finding again after the last page_pool_give. A
 * CACHED page that is no longer kept is FREE.
 *
 * Needs  a page that is not FREE. */
void page_pool_keep(struct page_pool *p, uint32_t page, bool keep);

/* page_pool_state, page_pool_n_holder - of one page */
enum page_state page_pool_state(const struct page_pool *p, uint32_t page);
uint32_t page_pool_n_holder(const struct page_pool *p, uint32_t page);

/* page_pool_n_page, page_pool_n_free, page_pool_n_cached - all pages, and those in a state */
uint32_t page_pool_n_page(const struct page_pool *p);
uint32_t page_pool_n_free(const struct page_pool *p);
uint32_t page_pool_n_cached(const struct page_pool *p);

/* page_pool_n_available - how many times page_pool_take would succeed: FREE and CACHED pages */
uint32_t page_pool_n_available(const struct page_pool *p);

/* page_pool_check - assert every invariant of page_pool.c
 *
 * Cost  O(n_page). */
void page_pool_check(const struct page_pool *p);

/* page_pool_dump - the counts, then a line for each page that is not FREE */
fathom_err page_pool_dump(const struct page_pool *p, struct buf *out);

#endif
