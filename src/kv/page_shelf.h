/* page_shelf.h - the records in memory that other servers may read
 *
 * The tiers put a record on the shelf once it is whole and has its sum, and remove it before they
 * reuse its memory. The threads that send records take one by its name and give it back. So these
 * threads and the engine's thread never wait for each other: a record that is being sent cannot be
 * removed, and the tiers then reuse other memory.
 *
 *   (none) --put--> THERE --take--> TAKEN (n readers) --give--> THERE --remove--> (none)
 *
 * A record may also be lent: another server is expected to ask for it. It is lent from
 * page_shelf_lend until it is done (it has been sent, or page_shelf_release says that it is not
 * wanted), until its time is over, or until it is removed.
 */
#ifndef FATHOM_KV_PAGE_SHELF_H
#define FATHOM_KV_PAGE_SHELF_H

#include <stdbool.h>
#include <stdint.h>

#include "fathom/err.h"
#include "kv/tier_record.h"

struct page_shelf;

/* page_shelf_create - for n places of memory; ENOMEM. page_shelf_destroy accepts NULL. */
fathom_err page_shelf_create(struct page_shelf **out, uint32_t n_place);
void page_shelf_destroy(struct page_shelf *s);

/* page_shelf_put - put the record of a place on the shelf; name and page must not change until it
 * is removed */
void page_shelf_put(struct page_shelf *s, uint32_t place, const struct tier_name *name,
                    const void *page, uint64_t sum);

/* page_shelf_remove - take the record of a place off the shelf; accepts a place without one
 *
 * Returns  false: it stays, because a server is reading it. */
bool page_shelf_remove(struct page_shelf *s, uint32_t place);

struct shelf_page {
    uint32_t place;
    const void *page;
    uint64_t sum;
};

/* page_shelf_take - find the record of a name (tokens are compared) and begin to read it
 * page_shelf_give - end reading; sent: the other server has all of it
 * page_shelf_is_done - whether it was sent or released since it was put there, or lent last */
bool page_shelf_take(struct page_shelf *s, const struct tier_name *name, struct shelf_page *out);
void page_shelf_give(struct page_shelf *s, uint32_t place, bool sent);
bool page_shelf_is_done(struct page_shelf *s, uint32_t place);

/* page_shelf_lend - another server will ask for the record of a place before until_us; accepts a
 * place without one. A record that is done is lent anew.
 * page_shelf_n_lent - how many records are lent now
 *
 * Cost  O(records that are lent for longer). */
void page_shelf_lend(struct page_shelf *s, uint32_t place, uint64_t until_us, uint64_t now_us);
uint32_t page_shelf_n_lent(struct page_shelf *s, uint64_t now_us);

/* page_shelf_release - the server that would have asked for a record does not want it any more
 *
 * If there is no record with this key, the key is noted until until_us: the next record lent under
 * it is done at once. About SHELF_RELEASED_MAX keys can be noted, and a later one may replace an
 * earlier one.
 *
 * page_shelf_n_released - how many lent records were not wanted, since creation */
enum { SHELF_RELEASED_MAX = 4096 };
void page_shelf_release(struct page_shelf *s, const struct hash128 *key, uint64_t until_us);
uint64_t page_shelf_n_released(struct page_shelf *s);

/* page_shelf_is_released - whether the key has been noted by page_shelf_release, for longer than
 * now_us
 * page_shelf_n_noted - how many keys have been noted, since creation */
bool page_shelf_is_released(struct page_shelf *s, const struct hash128 *key, uint64_t now_us);
uint64_t page_shelf_n_noted(struct page_shelf *s);

/* page_shelf_count - how many of the keys are on the shelf, counted up to the first that is not */
uint32_t page_shelf_count(struct page_shelf *s, const struct hash128 *keys, uint32_t n);

/* page_shelf_n_sent - records given back as sent, since creation */
uint64_t page_shelf_n_sent(struct page_shelf *s);

#endif
