/* page_shelf.h - the records in memory that other servers may read
 *
 * The tiers put a record there once it is whole and has its sum, and take it away before its memory
 * gets another. Threads that send take a record by its name and give it back. So they need nothing
 * of the engine's thread, and it waits for none of them: memory that is being sent is passed over.
 *
 *   (none) --put--> THERE --take--> TAKEN (n readers) --give--> THERE --remove--> (none)
 *
 * Beside that a record is lent from page_shelf_lend until it is done: it has been sent, or
 * page_shelf_release has said that nobody wants it; until its time is over; or until it is removed.
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

/* page_shelf_put - a place holds a record; name and page stay as they are until it is removed */
void page_shelf_put(struct page_shelf *s, uint32_t place, const struct tier_name *name,
                    const void *page, uint64_t sum);

/* page_shelf_remove - nobody takes it from now on; accepts a place that holds none
 *
 * Returns  false, and it stays, while somebody reads it. */
bool page_shelf_remove(struct page_shelf *s, uint32_t place);

struct shelf_page {
    uint32_t place;
    const void *page;
    uint64_t sum;
};

/* page_shelf_take - the record of a name, tokens compared; page_shelf_give it back
 *
 *   sent  a reader has all of it
 * page_shelf_is_done - it was sent or released since it was put, or lent last */
bool page_shelf_take(struct page_shelf *s, const struct tier_name *name, struct shelf_page *out);
void page_shelf_give(struct page_shelf *s, uint32_t place, bool sent);
bool page_shelf_is_done(struct page_shelf *s, uint32_t place);

/* page_shelf_lend - another server will ask for the record of a place until then; accepts a place
 * that holds none. One that is done may be asked for once more.
 * page_shelf_n_lent - records that are lent now
 *
 * Cost  O(records that are lent for longer). */
void page_shelf_lend(struct page_shelf *s, uint32_t place, uint64_t until_us, uint64_t now_us);
uint32_t page_shelf_n_lent(struct page_shelf *s, uint64_t now_us);

/* page_shelf_release - who would have asked for a record does not want it any more. When nothing of
 * the key is there, the first that is lent until then is done at once: its reader has left before
 * it came. Of such keys only the latest are known, some SHELF_RELEASED_MAX.
 * page_shelf_n_released - records that were lent, and not wanted, since creation */
enum { SHELF_RELEASED_MAX = 4096 };
void page_shelf_release(struct page_shelf *s, const struct hash128 *key, uint64_t until_us);
uint64_t page_shelf_n_released(struct page_shelf *s);

/* page_shelf_is_released - whether something of that key was released, is not there and will still
 * be known then
 * page_shelf_n_noted - released so, since creation */
bool page_shelf_is_released(struct page_shelf *s, const struct hash128 *key, uint64_t now_us);
uint64_t page_shelf_n_noted(struct page_shelf *s);

/* page_shelf_count - how many of the first of n keys are there, up to the first that is not */
uint32_t page_shelf_count(struct page_shelf *s, const struct hash128 *keys, uint32_t n);

/* page_shelf_n_sent - records given back as sent, since creation */
uint64_t page_shelf_n_sent(struct page_shelf *s);

#endif
