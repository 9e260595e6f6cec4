/* page_events.h - what the prefix caches of an engine hold, told to subscribers
 *
 * A feed for each lane's cache (kv/page_feed.h), and the publisher that takes from all of them
 * (comm/event_publisher.h).
 */
#ifndef FATHOM_ENGINE_PAGE_EVENTS_H
#define FATHOM_ENGINE_PAGE_EVENTS_H

#include "comm/event_publisher.h"
#include "fathom/fathom.h"
#include "kv/prefix.h"

struct page_events;

/* page_events_open - its sockets, for the caches of n_lane lanes
 *
 * Errors  as of event_publisher_open. */
fathom_err page_events_open(struct page_events **out, const fathom_kv_events *c, uint32_t n_lane,
                            fathom_diag *d);

/* page_events_start - the caches are told of from now on
 *
 *   caches  [n_lane], of n_page pages each, of which none is published
 *   wanted  called by another thread when page_events_tell is to be called
 * Errors  ENOMEM, EIO. */
fathom_err page_events_start(struct page_events *e, struct prefix_cache *const *caches,
                             uint32_t n_lane, uint32_t n_page, void (*wanted)(void *arg), void *arg,
                             fathom_diag *d);

/* page_events_tell - what has happened in the caches; between two steps. For NULL this and the next
 * ones do nothing.
 *
 *   salt  of requests without one
 * Returns  whether there is more to tell.
 * Cost     nothing where nothing has happened, else 40 ns a page, of PAGE_EVENTS_STEP at most a
 *          lane, and a system call. It does not allocate. */
enum { PAGE_EVENTS_STEP = 256 };
bool page_events_tell(struct page_events *e, uint64_t salt);

/* page_events_fill_stats - so far; any thread */
void page_events_fill_stats(const struct page_events *e, fathom_event_stats *out);

/* page_events_close - before its lanes end; accepts NULL */
void page_events_close(struct page_events *e);

#endif
