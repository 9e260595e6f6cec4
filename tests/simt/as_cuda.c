/* as_cuda.c - the simulated GPU takes the place of the CUDA backend
 *
 * A program that is linked with it has no need of cuda_absent.c, whose entry points these are. It
 * has SIMT_DEVICES of them, of SIMT_MIB each, where that is set. */
#include <stdlib.h>

#include "backend/backend.h"
#include "simt/simt_fault.h"

fathom_err backend_cuda_sim_create(struct backend **out, const struct backend_config *c,
                                   fathom_diag *d);
fathom_err backend_cuda_sim_generic_create(struct backend **out, const struct backend_config *c,
                                           fathom_diag *d);
int backend_cuda_sim_count(void);
fathom_err backend_cuda_sim_query(struct cuda_device_info *out, int device, fathom_diag *d);
enum cuda_link backend_cuda_sim_link(int from, int to);

__attribute__((constructor)) static void take_devices(void)
{
    const char *n = getenv("SIMT_DEVICES");
    const char *mib = getenv("SIMT_MIB");
    if (n) simt_set_devices((int)strtol(n, NULL, 10));
    if (mib) simt_set_memory((size_t)strtol(mib, NULL, 10) << 20);
}

fathom_err backend_cuda_create(struct backend **out, const struct backend_config *c, fathom_diag *d)
{
    return backend_cuda_sim_create(out, c, d);
}

fathom_err backend_cuda_generic_create(struct backend **out, const struct backend_config *c,
                                       fathom_diag *d)
{
    return backend_cuda_sim_generic_create(out, c, d);
}

int backend_cuda_count(void)
{
    return backend_cuda_sim_count();
}

fathom_err backend_cuda_query(struct cuda_device_info *out, int device, fathom_diag *d)
{
    return backend_cuda_sim_query(out, device, d);
}

enum cuda_link backend_cuda_link(int from, int to)
{
    return backend_cuda_sim_link(from, to);
}
