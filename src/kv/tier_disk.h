/* tier_disk.h - records in a directory that outlives the process
 *
 * There are two files. kv.index is a block that says whose records these are, then one header a
 * place. kv.pages is the pages, place by place. Both have their full size from the start. The
 * process that has the directory open has kv.index locked. Sums tell what a crash has left behind:
 * tier_disk.c.
 *
 * tier_disk_read and tier_disk_write may run on another thread than the one that opened it; one at
 * a time.
 */
#ifndef FATHOM_KV_TIER_DISK_H
#define FATHOM_KV_TIER_DISK_H

#include <stdint.h>

#include "base/direct_file.h"
#include "fathom/err.h"
#include "kv/page_source.h"
#include "kv/tier_record.h"

struct tier_disk;

struct tier_disk_config {
    const char *dir; /* made if it is not there */
    uint64_t bytes;  /* that both files may take */
    uint64_t page_bytes;
    struct identity identity;
    const struct hash128 *secret; /* of the keys, where others know it; NULL: the directory's own */
};

/* A record that was there at the start. */
struct tier_found {
    struct hash128 key;
    uint64_t order;
    uint32_t place;
};

/* tier_disk_place_bytes - what one record takes of the directory */
static inline uint64_t tier_disk_place_bytes(uint64_t page_bytes)
{
    return DIRECT_ALIGN + direct_round(page_bytes);
}

/* tier_disk_n_place - records that so many bytes hold */
uint32_t tier_disk_n_place(uint64_t bytes, uint64_t page_bytes);

/* tier_disk_open - lock the directory and read every header
 *
 * Records of another identity or version are given up: they are counted, and the directory begins
 * anew. So it does when its first block cannot be read; a header that cannot be read costs that
 * record.
 * Errors  EINVAL  not even one record fits in `bytes`, or the directory cannot be used as it is:
 *                 private_dir.h
 *         EBUSY   another process, or engine, has the directory
 *         EFORMAT kv.index is not an index of ours: nothing is touched
 *         ELIMIT  the disk has not got the room
 *         EIO     the disk fails: the caller can go on without it
 *         ENOMEM. Each names the directory and what to change.
 * Cost    reads 4096 bytes a place in one go. */
fathom_err tier_disk_open(struct tier_disk **out, const struct tier_disk_config *c, fathom_diag *d);
void tier_disk_close(struct tier_disk *t); /* accepts NULL */

/* tier_disk_found - the records, the one written last at the end; valid until tier_disk_forget
 * tier_disk_n_rejected - how many records were not taken for a reason */
const struct tier_found *tier_disk_found(const struct tier_disk *t, uint32_t *n);
void tier_disk_forget(struct tier_disk *t);
uint64_t tier_disk_n_rejected(const struct tier_disk *t, enum tier_verdict why);

/* tier_disk_secret - the secret of the keys, the same as long as the records are kept */
const struct hash128 *tier_disk_secret(const struct tier_disk *t);

/* tier_disk_source - the disk as a source of records; its places are tier_disk_read's */
struct page_source *tier_disk_source(struct tier_disk *t);

/* tier_disk_capacity - places */
uint32_t tier_disk_capacity(const struct tier_disk *t);

/* tier_disk_write, tier_disk_read - one record
 *
 *   page  [direct_round(page_bytes)], aligned to DIRECT_ALIGN
 *   sum   hash_checksum of the page: of what is written; *sum of what was read, when it is GOOD
 *   d     names a fault of the disk
 * Returns  a read: GOOD, or why the record is not taken; then its place is empty. A write: GOOD,
 *          BAD_IO or, without room, BAD_TRUNCATED. */
enum tier_verdict tier_disk_write(struct tier_disk *t, uint32_t place, uint64_t order,
                                  const struct tier_name *name, const void *page, uint64_t sum,
                                  fathom_diag *d);
enum tier_verdict tier_disk_read(struct tier_disk *t, uint32_t place, const struct tier_name *name,
                                 void *page, uint64_t *sum, fathom_diag *d);

#endif
