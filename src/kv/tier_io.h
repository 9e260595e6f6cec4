/* tier_io.h - the slow work on records, done by other threads while the engine goes on
 *
 * The owner submits jobs and takes them back when they are done; it never waits. tier_io_create
 * makes the threads that the program uses. Tests have their own, which are slow or fail on demand.
 */
#ifndef FATHOM_KV_TIER_IO_H
#define FATHOM_KV_TIER_IO_H

#include <stdbool.h>
#include <stdint.h>

#include "fathom/err.h"
#include "kv/tier_disk.h"
#include "kv/tier_record.h"

enum tier_job_kind {
    TIER_JOB_READ,  /* read a record from disk, and judge it */
    TIER_JOB_PULL,  /* ask another server for a record, and judge it */
    TIER_JOB_WRITE, /* write a page and its header to disk, if the page still has its sum */
    TIER_JOB_CHECK, /* find out whether a page still has its sum */
    TIER_JOB_SUM,   /* compute the sum of a page */
};
enum { TIER_JOB_KINDS = 5 };

struct tier_job {
    enum tier_job_kind kind;
    uint32_t entry;               /* for the owner's use */
    uint32_t place;               /* read, write: place on disk; pull: number of the server */
    uint64_t pull;                /* pull: for the owner's use */
    uint64_t order;               /* write: tier_header.order */
    const struct tier_name *name; /* of the record; must stay until the job is done */
    void *page;                   /* likewise; aligned to DIRECT_ALIGN, its size rounded up to it */
    uint64_t sum;                 /* hash_checksum of the page: an input of write and check, a
                                     result of read, pull and sum. Of a pull that is NOT_YET: as
                                     page_source_ops.read says */
    enum tier_verdict verdict;    /* result. write: GOOD, BAD_IO, BAD_TRUNCATED (no room on disk) or
                                     BAD_CHECKSUM (nothing was written). check: GOOD or
                                     BAD_CHECKSUM. sum: GOOD */
};

enum { TIER_JOBS_MAX = 256 }; /* submitted and not taken back */

struct tier_io;

struct tier_io_ops {
    /* Writes that were submitted are done first, unless the owner is in a hurry; other jobs are
     * dropped. */
    void (*destroy)(struct tier_io *io);
    /* Reads are done before writes, checks before sums, and jobs of one kind are begun in the order
     * of submission. Jobs of the disk, of sums and of pulls do not wait for each other.
     * Needs  fewer than TIER_JOBS_MAX jobs that have not been taken back. */
    void (*submit)(struct tier_io *io, const struct tier_job *job);
    /* Take back a job that is done; false: none is. owner.done is called when the first job is done
     * after there was none to take back. */
    bool (*take_done)(struct tier_io *io, struct tier_job *job);
    /* As page_source_ops.release, for the servers of pulls. NULL: there are none. */
    void (*release)(struct tier_io *io, uint32_t place, const struct hash128 *key);
};

struct tier_io {
    const struct tier_io_ops *ops;
};

/* The owner of the jobs; the threads call these functions. */
struct tier_io_owner {
    void (*done)(void *arg);     /* jobs are done: take all of them back */
    bool (*in_hurry)(void *arg); /* at the end: whether to skip the remaining writes. NULL: no */
    void *arg;
};

enum { TIER_SUM_THREADS_MAX = 8, TIER_PULL_THREADS_MAX = 8 };

struct tier_io_config {
    struct tier_disk *disk;    /* belongs to the threads on success; NULL: no reads or writes */
    struct page_source *peers; /* other servers, borrowed; NULL: no pulls */
    uint64_t page_bytes;
    unsigned n_sum_thread;  /* 1 to TIER_SUM_THREADS_MAX */
    unsigned n_pull_thread; /* with peers: 1 to TIER_PULL_THREADS_MAX */
    struct tier_io_owner owner;
};

/* tier_io_create - start a thread for the disk, and the threads that compute sums and that pull
 *
 * Errors  ENOMEM; EIO when a thread cannot start. */
fathom_err tier_io_create(struct tier_io **out, const struct tier_io_config *c, fathom_diag *d);

#endif
