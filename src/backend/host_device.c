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

uint32_t host_index_width(const struct backend_config *c)
{
    return c->index_n_head * (KV_INDEX_DIM + 1);
}

uint32_t host_buffer_width(const struct backend_config *c, enum buffer_kind kind)
{
    switch (kind) {
    case BUFFER_RESIDUAL:
    case BUFFER_NORMED:
    case BUFFER_DELTA: return c->hidden;
    case BUFFER_QUERY: return c->n_head * KV_ROW + host_index_width(c);
    case BUFFER_SELECT: return 1 + c->index_topk;
    case BUFFER_LATENT: return c->n_head * (c->v_dim > KV_LATENT ? c->v_dim : (uint32_t)KV_LATENT);
    case BUFFER_ROUTE: return c->n_expert_used;
    case BUFFER_LOGITS: return c->n_vocab;
    }
    return 0;
}
