/* cuda.h - the CUDA backend's entry points; present in builds with FATHOM_CUDA */
#ifndef FATHOM_BACKEND_CUDA_CUDA_H
#define FATHOM_BACKEND_CUDA_CUDA_H

#include "backend/backend.h"

#ifdef __cplusplus
extern "C" {
#endif

/* backend_cuda_create - one GPU (config->device)
 * Errors  EDEVICE: no such device; EUNSUPPORTED: a shape or path this GPU or backend lacks;
 *         ENOMEM: device memory, with what was wanted and what is free. */
fathom_err backend_cuda_create(struct backend **out, const struct backend_config *c,
                               fathom_diag *d);

/* backend_cuda_device_count - 0 without a driver or device */
int backend_cuda_device_count(void);

#ifdef __cplusplus
}
#endif
#endif
