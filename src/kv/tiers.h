/* tiers.h - pages that left the device's cache: in host memory, and behind it on disk
 *
 * A record comes in when its last request gives its page up, or when the page is evicted. It stays
 * until it is the one that was used the longest ago (LRU). With a disk every record is written as
 * soon as it is in memory (write-through). So memory is given up without waiting, and a crash costs
 * only what had not been written. A record that is read from disk is in memory too from then on.
 * Policy and format: docs/tiers.md; invariants and states: tiers_move.c.
 *
 * All functions belong to one thread; none of them waits or reads a page. Copies between device and
 * memory are enqueued on the device's queue; other threads read, write and sum (tier_io.h).
 */
#ifndef FATHOM_KV_TIERS_H
#define FATHOM_KV_TIERS_H

#include <stdbool.h>
#include <stdint.h>

#include "base/buf.h"
#include "fathom/err.h"
#include "kv/page_shelf.h"
#include "kv/tier_disk.h"
#include "kv/tier_io.h"
#include "kv/tier_lacking.h"

struct tiers;

/* Copies of whole pages, enqueued in the order of the device's queue. What computes on the device
 * gives its own functions here, and tiers_keep and tiers_restore call them: there is nothing
 * between. */
struct tiers_device {
    fathom_err (*page_out)(void *arg, uint32_t page, void *to);
    fathom_err (*page_in)(void *arg, uint32_t page, const void *from);
    void *arg;
};

struct tiers_config {
    uint64_t page_bytes;
    uint32_t n_ram;        /* pages of memory, at least TIERS_MIN_RAM */
    unsigned char *ram;    /* [n_ram][direct_round(page_bytes)], borrowed; with a disk aligned to
                              DIRECT_ALIGN */
    uint64_t step_bytes;   /* copied per step at most, beside pages that are evicted */
    struct hash128 secret; /* of the keys */
    struct tiers_device device;
    struct tier_io *io;             /* the tiers' on success */
    uint32_t n_disk;                /* its disk's places; 0: it has none */
    const struct tier_found *found; /* [n_found] what it holds, the one used last at the end */
    uint32_t n_found;
    struct page_shelf *shelf; /* where records in memory lie for other servers; NULL: nowhere */
};

/* Pages on their way between device and disk: at least, and where nobody asks for more. */
enum { TIERS_MIN_RAM = 16, TIERS_DEFAULT_RAM = 64 };

/* tiers_create - with the records that the disk has
 *
 * Errors  EINVAL naming the member; ENOMEM. */
fathom_err tiers_create(struct tiers **out, const struct tiers_config *c, fathom_diag *d);
void tiers_destroy(struct tiers *t); /* accepts NULL; finishes the jobs that are under way */

/* tiers_secret - of the keys that records are found under */
const struct hash128 *tiers_secret(const struct tiers *t);

/* tiers_begin_step - take what the threads have done, give them more to sum and to write
 *
 *   prefill_page_us  what computing a page costs lately; 0: unknown */
void tiers_begin_step(struct tiers *t, uint64_t now_us, double prefill_page_us);

/* tiers_synced - the device has done all copies that were enqueued */
void tiers_synced(struct tiers *t);

/* tiers_renew - the device begins anew and has no copy under way: of those that it had not done,
 * nothing is taken, and its fault is over */
void tiers_renew(struct tiers *t);

/* tiers_fault - the first error of a copy, which is final for the device, or until it
 * begins anew; OK while none failed */
fathom_err tiers_fault(const struct tiers *t);

/* tiers_keep - take a copy of a page that is given up, or about to be overwritten
 *
 *   name         what it holds
 *   overwritten  it is about to be; otherwise it may be used again
 * Edge  A record that is there already counts as used and is not copied. A record that is on disk
 *       alone is copied to memory only when its page is overwritten. */
void tiers_keep(struct tiers *t, const struct tier_name *name, uint32_t page, bool overwritten);

/* tiers_use - a record counts as used; false when it is nowhere */
bool tiers_use(struct tiers *t, const struct hash128 *key);

/* tiers_has_room - whether a page could be kept without giving up one that is not written yet.
 * tiers_may_copy - whether, besides, the step may copy one more page ahead of need.
 * tiers_keep_all - whether keeping a page loses no other: there is a free place, or a disk behind
 * memory. */
bool tiers_has_room(const struct tiers *t);
bool tiers_may_copy(const struct tiers *t);
bool tiers_keep_all(const struct tiers *t);

/* tiers_touch - make the system provide the memory of one place that was never used, so that the
 * first copy to it takes no longer than others
 *
 * Returns  false when there is no such place. */
bool tiers_touch(struct tiers *t);

enum tier_where {
    TIER_NOWHERE,
    TIER_IN_RAM,
    TIER_ON_DISK,
    TIER_ASKED_FOR, /* at another server, perhaps: somebody asks for it now */
};

/* tiers_find - where the record of a key is */
enum tier_where tiers_find(const struct tiers *t, const struct hash128 *key);

enum tier_answer {
    TIER_RESTORED, /* its copy into the page is enqueued */
    TIER_WAIT,     /* it is on its way or being checked, or will be: ask again in the next step */
    TIER_GONE,     /* it is not there, or was damaged: compute the page */
};

/* Another server that may have records which are nowhere here. */
struct tier_peer {
    uint32_t place; /* as its page_source counts them */
    uint64_t pull; /* who asks, and nobody else ever: once that has failed, no other record is asked
                       for under this number. One that is not there yet is asked for again */
};

/* tiers_restore - the record into a page of the device
 *
 *   peer  NULL: a record that is nowhere here is GONE */
enum tier_answer tiers_restore(struct tiers *t, const struct tier_name *name, uint32_t page,
                               const struct tier_peer *peer);

/* tiers_read_ahead - begin to read or check a record that will be wanted soon
 *
 * Returns  false when it is nowhere, or no more can be begun now. */
bool tiers_read_ahead(struct tiers *t, const struct tier_name *name, const struct tier_peer *peer);

/* tiers_pull_until_us - until then the server of a place may compute the prompts that it had when
 * it was last asked, if it needs twice as long as it said; 0: it said nothing.
 * tiers_pulls_again - records will be asked for again, in TIER_AGAIN_US at most.
 * tiers_give_up - no more of them are asked for, and one is lost */
uint64_t tiers_pull_until_us(const struct tiers *t, uint32_t place);
bool tiers_pulls_again(const struct tiers *t);
void tiers_give_up(struct tiers *t, uint64_t pull);

/* tiers_release - the server of a place need not keep the record for this one any more, or, by the
 * key of its request there (request.hand_over), compute it */
void tiers_release(struct tiers *t, uint32_t place, const struct hash128 *key);

/* tiers_lease - memory of the record is given up after that of all without a lease, until it has
 * been sent to another server or is released by one, or until_us
 *
 *   is_new  just computed, so that nobody else has it: it is lent on the shelf (page_shelf_lend)
 * Returns  false when it is nowhere, or on disk alone. */
bool tiers_lease(struct tiers *t, const struct hash128 *key, uint64_t until_us, bool is_new);

/* tiers_pay - whether n pages, of which n_disk are on disk, come sooner than they are computed
 *
 * Measurements of the last minute decide. Without one the answer is yes. Fewer pages than
 * TIERS_MIN_DISK_PAGES are never waited for when one is on disk. */
enum { TIERS_MIN_DISK_PAGES = 2 };
bool tiers_pay(const struct tiers *t, uint32_t n_page, uint32_t n_disk);

/* tiers_patience_us - how long to wait for n pages: as long as computing them takes, and at least a
 * second; five seconds while that time is unknown */
uint64_t tiers_patience_us(const struct tiers *t, uint32_t n_page);
enum {
    TIERS_STALL_US = 2000000
}; /* without one page more: nobody waits longer, but for a server
                                      that says how long it is busy */

/* tiers_note_fetch - a fetch of n pages took so long; from_disk: some of them came from disk */
void tiers_note_fetch(struct tiers *t, uint32_t n_page, bool from_disk, uint64_t us);

/* tiers_is_busy - a page is on its way, or waits for a thread */
bool tiers_is_busy(const struct tiers *t);

struct tiers_stats {
    uint32_t n_ram, n_ram_used; /* pages */
    uint32_t n_disk, n_disk_used;
    uint32_t n_unwritten;     /* pages in memory that wait for the disk */
    uint64_t n_kept;          /* copied from the device */
    uint64_t n_written;       /* to disk */
    uint64_t n_read;          /* from disk, and taken */
    uint64_t n_restored_ram;  /* copied to the device; they were in memory */
    uint64_t n_restored_disk; /* copied to the device; they were read from disk for it */
    uint64_t n_pulled;        /* from other servers, and taken */
    uint64_t n_pull_lost;     /* not taken from them, for whatever reason */
    uint64_t n_dropped;       /* given up before they were written */
    uint64_t n_refused;       /* not kept: all of memory was under way */
    uint64_t n_write_failed;
    uint64_t n_rejected[TIER_VERDICT_COUNT]; /* records not taken */
    uint64_t n_fetch;                        /* requests that had pages restored */
    uint64_t fetch_us;                       /* how long that took them together */
    bool writes_off; /* since TIERS_MAX_FAULTS failed in a row, until one has not */
};

/* While they are off, writes are tried anew after TIERS_REST_US: a disk may have room again. */
enum { TIERS_MAX_FAULTS = 8, TIERS_REST_US = 60000000 };

/* tiers_get_stats - the tiers' own, up to date after each call */
const struct tiers_stats *tiers_get_stats(const struct tiers *t);

/* tiers_check - assert every invariant of tiers_move.c
 *
 * Cost  O(records). */
void tiers_check(const struct tiers *t);

/* tiers_dump - the counts, then a line for each record in memory */
fathom_err tiers_dump(const struct tiers *t, struct buf *out);

#endif
