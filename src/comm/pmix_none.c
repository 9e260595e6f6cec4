/* pmix_none.c - where PMIx's headers were not there */
#include <stddef.h>

#include "base/assert.h"
#include "base/fail.h"
#include "comm/pmix_client.h"

fathom_err pmix_open(struct pmix **out, struct pmix_job *job, uint64_t timeout_us, fathom_diag *d)
{
    (void)job;
    (void)timeout_us;
    *out = NULL;
    FAIL(d, FATHOM_ENOTFOUND, "this program was built without PMIx: libpmix-dev was not there");
}

fathom_err pmix_share(struct pmix *p, char text[PMIX_TEXT_BYTES], uint64_t timeout_us,
                      fathom_diag *d)
{
    (void)p;
    (void)text;
    (void)timeout_us;
    FAIL(d, FATHOM_EIO, "this program was built without PMIx");
}

void pmix_close(struct pmix *p)
{
    ASSERT(!p);
}
