/* page_exchange.h - the engine's side of pages that servers of one pool give each other
 *
 * Puts together what kv/ and comm/ have for it: the shelf of records in memory and the service that
 * gives them, the servers that records are taken from, and for each request who may have its pages.
 * All functions but page_exchange_create accept NULL: there is no exchange.
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

/* Prompts of fewer whole pages are not asked for at other servers. */
enum { EXCHANGE_MIN_PAGES = 2 };

/* One part in so many of memory is for pages that wait to be taken: as much as the longest prompt
 * has, where memory is what it is by default. */
enum { EXCHANGE_SHARE = 2 };

/* page_exchange_create - listens when it gives
 * Errors  EINVAL, EIO: the address; ENOTFOUND, EIO: UCX; ENOMEM. */
fathom_err page_exchange_create(struct page_exchange **out, const struct exchange_config *c,
                                fathom_diag *d);
/* page_exchange_end - nobody is given records any more; page_exchange_destroy frees it, with nobody
 * reading from its source any more */
void page_exchange_end(struct page_exchange *x);
void page_exchange_destroy(struct page_exchange *x);

/* page_exchange_secret - of the keys of records; not for NULL
 * page_exchange_shelf  - where records lie for other servers
 * page_exchange_source - NULL: it takes none
 * page_exchange_n_lane - threads that read from it */
const struct hash128 *page_exchange_secret(const struct page_exchange *x);
struct page_shelf *page_exchange_shelf(const struct page_exchange *x);
struct page_source *page_exchange_source(struct page_exchange *x);
unsigned page_exchange_n_lane(const struct page_exchange *x);
uint64_t page_exchange_n_sent(const struct page_exchange *x);
uint64_t page_exchange_n_released(const struct page_exchange *x);

/* page_exchange_tell - its member pages */
void page_exchange_tell(const struct page_exchange *x, fathom_info *out);

/* page_exchange_note_busy - page_service_note_busy */
void page_exchange_note_busy(struct page_exchange *x, uint64_t us);

/* page_exchange_choose - who may have the pages of a request that is about to be submitted, and
 * whether it lends its own: fills has_peer to hand_over. From any
 * thread.
 *
 * Without a server in r, those of transfer.peers are asked how much of the prompt they have.
 * Errors  EINVAL: r names a server or lends pages, and the engine may not; EBUSY: it lends, and
 *         pages that nobody has taken in the first half of their leases fill EXCHANGE_SHARE of
 *         memory: one more prompt would cost others theirs; ENOMEM. */
fathom_err page_exchange_choose(struct page_exchange *x, const fathom_request *r,
                                struct request *out, fathom_diag *d);

/* page_exchange_is_unwanted - whether a request lends pages, and who would have taken them has left
 * page_exchange_n_left - rises when that may have changed for a request that there is */
bool page_exchange_is_unwanted(const struct page_exchange *x, const struct request *r);
uint64_t page_exchange_n_left(const struct page_exchange *x);

/* page_exchange_n_refused - requests that page_exchange_choose was EBUSY for */
uint64_t page_exchange_n_refused(const struct page_exchange *x);

#endif
