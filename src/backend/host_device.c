#include "backend/host_device.h"

#include <string.h>

#include "base/assert.h"
#include "base/clock.h"
#include "base/fail.h"
#include "base/mem.h"

fathom_err host_alloc(struct backend *b, size_t bytes, const char *what, void **out, fathom_diag *d)
{
    (void)b;
    *out = mem_alloc_pages(bytes);
    if (!*out) FAIL(d, FATHOM_ENOMEM, "no memory for %s, %zu bytes", what, bytes);
    return FATHOM_OK;
}

fathom_err host_alloc_pinned(struct backend *b, size_t bytes, void **out, fathom_diag *d)
{
    return host_alloc(b, bytes, "host memory", out, d);
}

void host_release(struct backend *b, void *p)
{
    (void)b;
    mem_free_pages(p);
}

fathom_err host_copy(struct backend *b, void *to, const void *from, size_t bytes)
{
    (void)b;
    memcpy(to, from, bytes);
    return FATHOM_OK;
}

fathom_err host_sync(struct backend *b)
{
    (void)b;
    return FATHOM_OK;
}

fathom_err host_fence_wait(struct backend *b, int slot)
{
    (void)b;
    ASSERT(slot == 0 || slot == 1);
    return FATHOM_OK;
}

fathom_err host_fence_record(struct host_fences *f, int slot)
{
    ASSERT(slot == 0 || slot == 1);
    f->at_ns[slot] = clock_now_ns();
    return FATHOM_OK;
}

fathom_err host_fence_elapsed(const struct host_fences *f, double *us)
{
    *us = (double)(f->at_ns[1] - f->at_ns[0]) / 1e3;
    return FATHOM_OK;
}

const char *host_fault(struct backend *b)
{
    (void)b;
    return "";
}
