/* pmix_client.h - the processes that one launcher has started, as its PMIx knows them
 *
 *   closed --pmix_open--> OPEN --pmix_share, once--> OPEN --pmix_close--> closed
 *   OPEN --time-out--> LOST: the call that hangs keeps its thread, and its memory, to the end
 *
 * Every call that asks the launcher's server runs in a thread of its own, so that its time is
 * bounded whatever the library does.
 */
#ifndef FATHOM_COMM_PMIX_CLIENT_H
#define FATHOM_COMM_PMIX_CLIENT_H

#include <stdint.h>

#include "fathom/err.h"

struct pmix;

enum { PMIX_TEXT_BYTES = 384, PMIX_JOB_BYTES = 256 };

/* What is told of a job: a PMIx namespace. */
struct pmix_job {
    char name[PMIX_JOB_BYTES];
    uint32_t rank;      /* of this process */
    uint32_t n_process; /* of the job */
    uint32_t n_local;   /* of these on this machine */
};

/* pmix_open - libpmix.so.2, and the launcher's server that its variables PMIX_* name
 *
 * Errors  ENOTFOUND: this build has been made without PMIx's headers, or the library is not there.
 *         EIO: there is no server, it does not answer in time, or does not know the job. ENOMEM. */
fathom_err pmix_open(struct pmix **out, struct pmix_job *job, uint64_t timeout_us, fathom_diag *d);

/* pmix_share - what the process of rank 0 says is told to all: all processes of the job call it
 *
 *   text  printable ASCII: of rank 0 what is told, of others written
 * Errors  EIO: not all came in time, the server says no, or rank 0 has told nothing. */
fathom_err pmix_share(struct pmix *p, char text[PMIX_TEXT_BYTES], uint64_t timeout_us,
                      fathom_diag *d);

/* pmix_close - leave the server; accepts NULL */
void pmix_close(struct pmix *p);

#endif
