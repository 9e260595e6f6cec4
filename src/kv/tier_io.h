/* tier_io.h - what takes time with records, done by other threads while the engine goes on
 *
 * The owner submits jobs and takes them back when they are done; it never waits. The program's are
 * threads, tier_io_create; tests have others, which are slow or fail as told.
 */
#ifndef FATHOM_KV_TIER_IO_H
#define FATHOM_KV_TIER_IO_H

#include <stdbool.h>
#include <stdint.h>

#include "fathom/err.h"
#include "kv/tier_disk.h"
#include "kv/tier_record.h"

enum tier_job_kind {
    TIER_JOB_READ,  /* a record of the disk, and judge it */
    TIER_JOB_PULL,  /* the same of another server */
    TIER_JOB_WRITE, /* a page that still has its sum, and its header */
    TIER_JOB_CHECK, /* whether a page still has its sum */
    TIER_JOB_SUM,   /* take the sum of a page */
};
enum { TIER_JOB_KINDS = 5 };

struct tier_job {
    enum tier_job_kind kind;
    uint32_t entry;               /* the owner's */
    uint32_t place;               /* of the disk, of a read or write; the server of a pull */
    uint64_t pull;                /* the owner's, of a pull */
    uint64_t order;               /* of a write */
    const struct tier_name *name; /* what is written, or has to be found; lives until it is done */
    void *page;                   /* likewise; aligned to DIRECT_ALIGN, and room up to it */
    uint64_t sum;                 /* hash_checksum of the page: given to a write and a check,
                                     told by a read, a pull and a sum. Of a pull that is NOT_YET:
                                     page_source_ops.read */
    enum tier_verdict verdict;    /* of a job that is done. A write is GOOD, BAD_IO, BAD_TRUNCATED:
                                     there is no room, or BAD_CHECKSUM: nothing is written. A check
                                     is GOOD or BAD_CHECKSUM, a sum GOOD */
};

enum { TIER_JOBS_MAX = 256 }; /* submitted and not taken back */

struct tier_io;

struct tier_io_ops {
    /* Records that are being written or wait for it are written first, unless the owner is
     * in a hurry; other jobs are dropped. */
    void (*destroy)(struct tier_io *io);
    /* Reads go before writes, checks before sums; otherwise jobs of one kind are begun in the order
     * of submission. The disk's jobs and the others do not wait for each other.
     * Needs  fewer than TIER_JOBS_MAX jobs that have not been taken back. */
    void (*submit)(struct tier_io *io, const struct tier_job *job);
    /* A job that is done; false: none is. The owner is told of jobs when there were none before. */
    bool (*take_done)(struct tier_io *io, struct tier_job *job);
    /* page_source_ops.release of the servers that are pulled from. NULL: there are none. */
    void (*release)(struct tier_io *io, uint32_t place, const struct hash128 *key);
};

struct tier_io {
    const struct tier_io_ops *ops;
};

/* Whose jobs they are; called by the threads. */
struct tier_io_owner {
    void (*done)(void *arg);     /* jobs are: take them all */
    bool (*in_hurry)(void *arg); /* what waits to be written at the end is not. NULL: never */
    void *arg;
};

enum { TIER_SUM_THREADS_MAX = 8, TIER_PULL_THREADS_MAX = 8 };

struct tier_io_config {
    struct tier_disk *disk;    /* the threads' on success; NULL: no reads and no writes */
    struct page_source *peers; /* other servers, borrowed; NULL: no pulls */
    uint64_t page_bytes;
    unsigned n_sum_thread;  /* 1 to TIER_SUM_THREADS_MAX */
    unsigned n_pull_thread; /* with peers: 1 to TIER_PULL_THREADS_MAX */
    struct tier_io_owner owner;
};

/* tier_io_create - start a thread for the disk, and some that take sums and that pull
 *
 * Errors  ENOMEM; EIO when a thread cannot start. */
fathom_err tier_io_create(struct tier_io **out, const struct tier_io_config *c, fathom_diag *d);

#endif
