/* fault.cu - the first fault of the device, which is final: call, operator, cause, last launch */
#include <stdio.h>

#include "backend/cuda/cuda_int.cuh"

/* Which rank this one has waited for too long; "" where it has not. */
static void describe_wait(const struct cuda_backend *c, char *out, size_t n)
{
    static const char *const ops[] = {"reduce_norm", "spread_rows", "logits", "moe_ep",
                                      "share_rows"};
    const struct peer_report *f = c->report;
    out[0] = '\0';
    if (!f || !f->is_lost) return;
    ASSERT(f->op < sizeof ops / sizeof *ops);
    (void)snprintf(
        out, n, "rank %u waited more than %llu ms for rank %u: %s of layer %u, row %u, epoch %u; ",
        parallel_peer(&c->c.parallel), (unsigned long long)(cuda_peer_bound_ns(c) / 1000000),
        f->peer, ops[f->op], f->layer, f->row, f->epoch);
}

/* An error of the device itself comes out of a later call, so the last launch is named too. */
fathom_err cuda_check(struct cuda_backend *c, gpu_error e, const char *call, const char *what)
{
    ASSERT(call && what);
    if (e == GPU_SUCCESS) return FATHOM_OK;
    if (c->fault[0] == '\0') {
        char wait[128];
        describe_wait(c, wait, sizeof wait);
        (void)snprintf(c->fault, sizeof c->fault,
                       "%sdevice %d (%s): %s in %s: %s (%s); last launched: %s, grid %u x %u x %u",
                       wait, c->device, c->properties.name, call, what, gpu_error_name(e),
                       gpu_error_string(e), c->last.what ? c->last.what : "nothing", c->last.grid.x,
                       c->last.grid.y, c->last.grid.z);
    }
    return FATHOM_EDEVICE;
}
