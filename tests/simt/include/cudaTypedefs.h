/* cudaTypedefs.h - the driver's functions by their address */
#ifndef FATHOM_TESTS_SIMT_CUDA_TYPEDEFS_H
#define FATHOM_TESTS_SIMT_CUDA_TYPEDEFS_H

#include "cuda.h"
#include "cuda_runtime.h"

typedef CUresult (*PFN_cuTensorMapEncodeTiled_v12000)(
    CUtensorMap *map, CUtensorMapDataType type, cuuint32_t rank, void *data, const cuuint64_t *size,
    const cuuint64_t *stride, const cuuint32_t *box, const cuuint32_t *step,
    CUtensorMapInterleave interleave, CUtensorMapSwizzle swizzle, CUtensorMapL2promotion promotion,
    CUtensorMapFloatOOBfill fill);

enum cudaDriverEntryPointQueryResult { cudaDriverEntryPointSuccess };
enum { cudaEnableDefault };

/* cuTensorMapEncodeTiled is the one there is. */
cudaError_t cudaGetDriverEntryPointByVersion(const char *name, void **function, unsigned version,
                                             unsigned long long flags,
                                             cudaDriverEntryPointQueryResult *result);

#endif
