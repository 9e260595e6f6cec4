/* tuned.cpp - the simulated GPU as one of sm_90, with the kernels that are tuned for it */
#include "simt/simt_fault.h"

extern "C" {
#include "backend/backend.h"

fathom_err backend_cuda_sim_tuned_create(struct backend **out, const struct backend_config *c,
                                         fathom_diag *d)
{
    simt_set_capability(9, 0);
    return backend_cuda_create(out, c, d);
}
}
