/* page_exchange.h - pages that the servers of one pool give each other, as the engine sees it
 *
 * It puts together what kv/ and comm/ have for that: the shelf of records in memory, the service
 * that gives them to other servers, and the servers that records are taken from. For each request
 * it finds out which server may have its pages. All functions but page_exchange_create accept NULL,
 * which means that there is no exchange.
 */
#ifndef FATHOM_ENGINE_PAGE_EXCHANGE_H
#define FATHOM_ENGINE_PAGE_EXCHANGE_H

#include "fathom/fathom.h"
#include "kv/identity.h"
#include "kv/page_shelf.h"
#include "kv/page_source.h"
#include "sched/request.h"

struct page_exchange;

struct exchange_config {
    const fathom_transfer *transfer; /* what it points to is copied */
    struct identity identity;
    uint64_t page_bytes;
    uint32_t n_ram_page;
    bool with_next; /* records depend on the token after the page */
};

/* Other servers are asked only for prompts with at least so many whole pages. */
enum { EXCHANGE_MIN_PAGES = 2 };

/* 1 / EXCHANGE_SHARE of the memory may be taken by pages that wait for other servers. With the
 * default size of the memory that is as much as the longest prompt has. */
enum { EXCHANGE_SHARE = 2 };

/* page_exchange_create - listens, if it gives pages
 * Errors  EINVAL, EIO: the address; ENOTFOUND, EIO: UCX; ENOMEM. */
fathom_err page_exchange_create(struct page_exchange **out, const struct exchange_config *c,
                                fathom_diag *d);
/* page_exchange_end - give no more records to other servers
 * page_exchange_destroy - the same, and free it; no thread may read from its source any more */
void page_exchange_end(struct page_exchange *x);
void page_exchange_destroy(struct page_exchange *x);

/* page_exchange_secret - the secret of the keys of records; does not accept NULL
 * page_exchange_shelf  - the records that other servers may read
 * page_exchange_source - the other servers to read from; NULL: it takes no pages
 * page_exchange_n_lane - how many threads may read from the source */
const struct hash128 *page_exchange_secret(const struct page_exchange *x);
struct page_shelf *page_exchange_shelf(const struct page_exchange *x);
struct page_source *page_exchange_source(struct page_exchange *x);
unsigned page_exchange_n_lane(const struct page_exchange *x);
uint64_t page_exchange_n_sent(const struct page_exchange *x);
uint64_t page_exchange_n_released(const struct page_exchange *x);

/* page_exchange_tell - fill out->pages */
void page_exchange_tell(const struct page_exchange *x, fathom_info *out);

/* page_exchange_note_busy - page_service_note_busy */
void page_exchange_note_busy(struct page_exchange *x, uint64_t us);

/* page_exchange_choose - before a request is submitted: find out which server may have its pages,
 * and whether it lends its own. Fills the members has_peer to hand_over of *out. Any thread.
 *
 * If r names no server, those of transfer.peers are asked how much of the prompt they have. Errors
 * EINVAL: r names a server or lends pages, and the engine may not. EBUSY: r lends pages, and
 *         1 / EXCHANGE_SHARE of memory is full of lent pages that have not been taken in the first
 *         half of their leases: the pages of one more prompt would displace others. ENOMEM. */
fathom_err page_exchange_choose(struct page_exchange *x, const fathom_request *r,
                                struct request *out, fathom_diag *d);

/* page_exchange_is_unwanted - whether a request only lends pages, and the request on the other
 * server that would have taken them has ended
 * page_exchange_n_left - a number that rises when this may have changed for some request */
bool page_exchange_is_unwanted(const struct page_exchange *x, const struct request *r);
uint64_t page_exchange_n_left(const struct page_exchange *x);

/* page_exchange_n_refused - how many requests page_exchange_choose has refused with EBUSY */
uint64_t page_exchange_n_refused(const struct page_exchange *x);

#endif
