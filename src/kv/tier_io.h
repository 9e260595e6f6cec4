/* tier_io.h - reads and writes of records, done by somebody else while the engine goes on
 *
 * The owner submits jobs and takes them back when they are done; it never waits. The program's is a
 * thread over a directory, tier_io_create; tests have others, which are slow or fail as told.
 */
#ifndef FATHOM_KV_TIER_IO_H
#define FATHOM_KV_TIER_IO_H

#include <stdbool.h>
#include <stdint.h>

#include "fathom/err.h"
#include "kv/tier_disk.h"
#include "kv/tier_record.h"

enum tier_job_kind { TIER_JOB_READ, TIER_JOB_WRITE };

struct tier_job {
    enum tier_job_kind kind;
    uint32_t entry;               /* the owner's */
    uint32_t place;               /* of the disk */
    uint64_t order;               /* of a write */
    const struct tier_name *name; /* what is written, or has to be found; lives until it is done */
    void *page;                   /* likewise; aligned to DIRECT_ALIGN, and room up to it */
    uint64_t sum;                 /* hash_checksum of the page: what is written must have it, and
                                     what has been read has it */
    enum tier_verdict verdict;    /* of a job that is done. A write is GOOD, BAD_IO, BAD_TRUNCATED:
                                     there is no room, or BAD_CHECKSUM: nothing is written */
};

enum { TIER_JOBS_MAX = 64 }; /* submitted and not taken back */

struct tier_io;

struct tier_io_ops {
    void (*destroy)(struct tier_io *io); /* what is under way is finished first */
    /* Reads go before writes; otherwise jobs are done in the order of submission.
     * Needs  fewer than TIER_JOBS_MAX jobs that have not been taken back. */
    void (*submit)(struct tier_io *io, const struct tier_job *job);
    /* A job that is done; false: none is. */
    bool (*take_done)(struct tier_io *io, struct tier_job *job);
};

struct tier_io {
    const struct tier_io_ops *ops;
};

/* tier_io_create - start a thread that reads and writes the records of a directory
 *
 *   disk  the thread's on success
 *   done  done(arg) is called on the thread after each job, so that its owner looks again
 * Errors  ENOMEM; EIO when the thread cannot start. */
fathom_err tier_io_create(struct tier_io **out, struct tier_disk *disk, void (*done)(void *arg),
                          void *arg, fathom_diag *d);

#endif
