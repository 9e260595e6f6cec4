/* three_gpus.c - a CUDA backend of a machine with three devices, which cannot be opened
 *
 * Linked before those of a build without CUDA. 0 and 1 are on NVLink, 2 reaches 0 over PCIe. */
#include <string.h>

#include "backend/backend.h"
#include "base/fail.h"

fathom_err backend_cuda_create(struct backend **out, const struct backend_config *c, fathom_diag *d)
{
    (void)c;
    *out = NULL;
    FAIL(d, FATHOM_EDEVICE, "a device that is not there");
}

fathom_err backend_cuda_generic_create(struct backend **out, const struct backend_config *c,
                                       fathom_diag *d)
{
    return backend_cuda_create(out, c, d);
}

int backend_cuda_count(void)
{
    return 3;
}

fathom_err backend_cuda_query(struct cuda_device_info *out, int device, fathom_diag *d)
{
    (void)device, (void)d;
    *out = (struct cuda_device_info){
        .name = "a fake", .memory_bytes = 80000000000, .memory_free_bytes = 80000000000};
    return FATHOM_OK;
}

enum cuda_link backend_cuda_link(int from, int to)
{
    if (from + to == 1) return CUDA_LINK_NVLINK;
    return from + to == 2 && from != to ? CUDA_LINK_PCIE : CUDA_LINK_NONE;
}
