/* tiers.h - page records that left the device's cache: in host memory, and behind it on disk
 *
 * A record is copied in after the last request has given its page back, or when the page is
 * evicted. When a tier is full, it gives up the record that was used the longest ago (LRU). With a
 * disk every record is written as soon as it is in memory (write-through). So memory can be given
 * up without waiting, and a crash loses only what had not been written. A record that is read from
 * disk is in memory too from then on. Policy and format: docs/tiers.md; invariants and states:
 * tiers_move.c.
 *
 * All functions belong to one thread, and none of them waits or reads a page. Copies between device
 * and memory go into the device's queue. Other threads read and write the disk and compute sums
 * (tier_io.h).
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

/* Functions of the step runner that enqueue copies of whole pages on the device's queue. tiers_keep
 * and tiers_restore call them. */
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
    uint64_t step_bytes;   /* copied per step at most, evicted pages not counted */
    struct hash128 secret; /* of the keys */
    struct tiers_device device;
    struct tier_io *io;             /* belongs to the tiers on success */
    uint32_t n_disk;                /* places on its disk; 0: there is no disk */
    const struct tier_found *found; /* [n_found] the records on disk, the latest at the end */
    uint32_t n_found;
    struct page_shelf *shelf; /* where other servers find records in memory; NULL: they cannot */
};

/* Pages of memory between device and disk: the minimum, and the default. */
enum { TIERS_MIN_RAM = 16, TIERS_DEFAULT_RAM = 64 };

/* tiers_create - tiers that have the records on disk, and none in memory
 *
 * Errors  EINVAL naming the member; ENOMEM. */
fathom_err tiers_create(struct tiers **out, const struct tiers_config *c, fathom_diag *d);
void tiers_destroy(struct tiers *t); /* accepts NULL; finishes the jobs that are under way */

/* tiers_secret - of the keys that records are found under */
const struct hash128 *tiers_secret(const struct tiers *t);

/* tiers_begin_step - take back the jobs that the threads have done, and give them new ones
 *
 *   prefill_page_us  how long computing a page takes at present; 0: unknown */
void tiers_begin_step(struct tiers *t, uint64_t now_us, double prefill_page_us);

/* tiers_synced - the device has done all copies enqueued so far */
void tiers_synced(struct tiers *t);

/* tiers_renew - the device has begun anew: copies that it had not done are dropped, and tiers_fault
 * is OK again */
void tiers_renew(struct tiers *t);

/* tiers_fault - the first error of enqueuing a copy; OK: none. It stays until tiers_renew. */
fathom_err tiers_fault(const struct tiers *t);

/* tiers_keep - enqueue a copy of a page to memory
 *
 *   name         the name of its record
 *   overwritten  the page is about to be overwritten; otherwise its contents may be used again
 * Edge  A record that is there already counts as used and is not copied. If it is only on disk, it
 *       is copied to memory when its page is overwritten. */
void tiers_keep(struct tiers *t, const struct tier_name *name, uint32_t page, bool overwritten);

/* tiers_use - count a record as used just now; false: the tiers do not have it */
bool tiers_use(struct tiers *t, const struct hash128 *key);

/* tiers_has_room - whether a page can be kept without giving up one that is not written yet
 * tiers_may_copy - the same, and the step may still copy a page ahead of need
 * tiers_keep_all - whether keeping a page loses no other record: memory has a free place, or there
 * is a disk behind it */
bool tiers_has_room(const struct tiers *t);
bool tiers_may_copy(const struct tiers *t);
bool tiers_keep_all(const struct tiers *t);

/* tiers_touch - touch the memory of one place that was never used, so that the system provides it
 * now and not during the first copy
 *
 * Returns  false: there is no such place. */
bool tiers_touch(struct tiers *t);

enum tier_where {
    TIER_NOWHERE,
    TIER_IN_RAM,
    TIER_ON_DISK,
    TIER_ASKED_FOR, /* another server is being asked for it now */
};

/* tiers_find - where the record of a key is */
enum tier_where tiers_find(const struct tiers *t, const struct hash128 *key);

enum tier_answer {
    TIER_RESTORED, /* its copy into the page is enqueued */
    TIER_WAIT,     /* it is being read, pulled or checked, or soon will be: ask in the next step */
    TIER_GONE,     /* it is not there, or damaged: compute the page */
};

/* Another server that may have records which these tiers do not have. */
struct tier_peer {
    uint32_t place; /* its number in the page_source */
    uint64_t pull;  /* the number of the request that asks, which no other ever has. Once the server
                       has failed to send a record for a pull, it is asked for no other one. A
                       record that it does not have yet is asked for again */
};

/* tiers_restore - enqueue the copy of a record into a page of the device
 *
 *   peer  asked for a record that these tiers do not have; NULL: such a record is GONE */
enum tier_answer tiers_restore(struct tiers *t, const struct tier_name *name, uint32_t page,
                               const struct tier_peer *peer);

/* tiers_read_ahead - begin to read, pull or check a record that will be wanted soon
 *
 * Returns  false: there is no such record, or no more jobs can be begun now. */
bool tiers_read_ahead(struct tiers *t, const struct tier_name *name, const struct tier_peer *peer);

/* tiers_pull_until_us - until when the server of a place may be busy with its prompts: twice as
 * long as it said when it was last asked; 0: it said nothing
 * tiers_pulls_again - whether a record will be asked for again, within TIER_AGAIN_US
 * tiers_give_up - a pull has failed: nothing more is asked for under its number */
uint64_t tiers_pull_until_us(const struct tiers *t, uint32_t place);
bool tiers_pulls_again(const struct tiers *t);
void tiers_give_up(struct tiers *t, uint64_t pull);

/* tiers_release - tell the server of a place that this one does not need a record
 *
 *   key  of the record, which it then need not keep; or request.hand_over, whose prompt it then
 *        need not compute */
void tiers_release(struct tiers *t, uint32_t place, const struct hash128 *key);

/* tiers_lease - keep a record in memory for another server: while it has a lease, records without
 * one are given up first. The lease ends when the record has been sent, when the other server
 * releases it, or at until_us.
 *
 *   is_new  it was just computed, so no other server has it: it is lent (page_shelf_lend)
 * Returns  false: the record is not in memory. */
bool tiers_lease(struct tiers *t, const struct hash128 *key, uint64_t until_us, bool is_new);

/* tiers_pay - whether restoring n pages, n_disk of them from disk, is faster than computing them
 *
 * Measurements of the last minute decide; without one the answer is yes. If any page is on disk and
 * there are fewer than TIERS_MIN_DISK_PAGES, the answer is no. */
enum { TIERS_MIN_DISK_PAGES = 2 };
bool tiers_pay(const struct tiers *t, uint32_t n_page, uint32_t n_disk);

/* tiers_patience_us - how long to wait for n pages: as long as computing them would take, but at
 * least one second; five seconds while that time is unknown */
uint64_t tiers_patience_us(const struct tiers *t, uint32_t n_page);
/* A fetch ends when no page has come for so long, unless a server says that it is busy for longer.
 * */
enum { TIERS_STALL_US = 2000000 };

/* tiers_note_fetch - a fetch of n pages took `us`; from_disk: some of them came from disk */
void tiers_note_fetch(struct tiers *t, uint32_t n_page, bool from_disk, uint64_t us);

/* tiers_is_busy - whether any page is being copied or waits for a thread */
bool tiers_is_busy(const struct tiers *t);

struct tiers_stats {
    uint32_t n_ram, n_ram_used; /* pages */
    uint32_t n_disk, n_disk_used;
    uint32_t n_unwritten;     /* pages in memory that wait for the disk */
    uint64_t n_kept;          /* copied from the device */
    uint64_t n_written;       /* to disk */
    uint64_t n_read;          /* read from disk and found good */
    uint64_t n_restored_ram;  /* copied to the device; they were in memory */
    uint64_t n_restored_disk; /* copied to the device; they were read from disk for it */
    uint64_t n_pulled;        /* got from other servers and found good */
    uint64_t n_pull_lost;     /* pulls that failed */
    uint64_t n_dropped;       /* given up before they were written */
    uint64_t n_refused;       /* not kept, because all places of memory were in use by jobs */
    uint64_t n_write_failed;
    uint64_t n_rejected[TIER_VERDICT_COUNT]; /* records that were not good, by reason */
    uint64_t n_fetch;                        /* requests that had pages restored */
    uint64_t fetch_us;                       /* how long they waited for that, all together */
    bool
        writes_off; /* TIERS_MAX_FAULTS writes in a row have failed, and none has succeeded since */
};

/* While writes are off they are tried again every TIERS_REST_US: the disk may have room again. */
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
