/* cuda_absent.c - the CUDA backend's entry points in a build without it */
#include <string.h>

#include "backend/backend.h"
#include "base/fail.h"

static fathom_err refuse(fathom_diag *d)
{
    FAIL(d, FATHOM_EUNSUPPORTED,
         "--backend cuda: this build has the backends cpu and ref. The preset cuda builds the "
         "third: cmake --preset cuda");
}

fathom_err backend_cuda_create(struct backend **out, const struct backend_config *c, fathom_diag *d)
{
    (void)c;
    *out = NULL;
    return refuse(d);
}

fathom_err backend_cuda_generic_create(struct backend **out, const struct backend_config *c,
                                       fathom_diag *d)
{
    return backend_cuda_create(out, c, d);
}

int backend_cuda_count(void)
{
    return 0;
}

enum cuda_link backend_cuda_link(int from, int to)
{
    (void)from, (void)to;
    return CUDA_LINK_NONE;
}

fathom_err backend_cuda_query(struct cuda_device_info *out, int device, fathom_diag *d)
{
    (void)device;
    memset(out, 0, sizeof *out);
    return refuse(d);
}
