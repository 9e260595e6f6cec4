/* ucx_none.c - where UCX's headers were not there */
#include "base/assert.h"
#include "base/fail.h"
#include "comm/ucx_link.h"

fathom_err ucx_open(struct ucx **out, fathom_diag *d)
{
    *out = NULL;
    FAIL(d, FATHOM_ENOTFOUND, "this program was built without UCX: libucx-dev was not there");
}

void ucx_close(struct ucx *u)
{
    ASSERT(!u);
}

fathom_err ucx_link_over(struct page_link **l, struct ucx *u, uint64_t deadline_us, fathom_diag *d)
{
    (void)l;
    (void)u;
    (void)deadline_us;
    FAIL(d, FATHOM_EIO, "this program was built without UCX");
}
