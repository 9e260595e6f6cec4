/* tier_thread.h - the thread that reads and writes records of a directory */
#ifndef FATHOM_KV_TIER_THREAD_H
#define FATHOM_KV_TIER_THREAD_H

#include "fathom/err.h"
#include "kv/tier_disk.h"
#include "kv/tier_io.h"

/* tier_thread_create - start it
 *
 *   disk  the thread's on success
 *   done  done(arg) is called on the thread after each job, so that its owner looks again
 * Errors  ENOMEM; EIO when the thread cannot start. */
fathom_err tier_thread_create(struct tier_io **out, struct tier_disk *disk, void (*done)(void *arg),
                              void *arg, fathom_diag *d);

#endif
