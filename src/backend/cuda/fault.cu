/* fault.cu - the first fault of the device, which is final: call, operator, cause, last launch */
#include <stdio.h>

#include "backend/cuda/cuda_int.cuh"

/* An error of the device itself comes out of a later call, so the last launch is named too. */
fathom_err cuda_check(struct cuda_backend *c, cudaError_t e, const char *call, const char *what)
{
    ASSERT(call && what);
    if (e == cudaSuccess) return FATHOM_OK;
    if (c->fault[0] == '\0') {
        (void)snprintf(c->fault, sizeof c->fault,
                       "device %d (%s): %s in %s: %s (%s); last launched: %s, grid %u x %u x %u",
                       c->device, c->properties.name, call, what, cudaGetErrorName(e),
                       cudaGetErrorString(e), c->last.what ? c->last.what : "nothing",
                       c->last.grid.x, c->last.grid.y, c->last.grid.z);
    }
    return FATHOM_EDEVICE;
}
