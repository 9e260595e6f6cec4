/* cuda.h - tensor maps of the simulated GPU: of bytes, in three dimensions, with boxes whose rows
 * are 128 bytes and permuted */
#ifndef FATHOM_TESTS_SIMT_CUDA_H
#define FATHOM_TESTS_SIMT_CUDA_H

#include <stdint.h>

typedef uint64_t cuuint64_t;
typedef uint32_t cuuint32_t;

enum CUresult { CUDA_SUCCESS, CUDA_ERROR_INVALID_VALUE };
enum CUtensorMapDataType { CU_TENSOR_MAP_DATA_TYPE_UINT8 };
enum CUtensorMapInterleave { CU_TENSOR_MAP_INTERLEAVE_NONE };
enum CUtensorMapSwizzle { CU_TENSOR_MAP_SWIZZLE_128B };
enum CUtensorMapL2promotion { CU_TENSOR_MAP_L2_PROMOTION_L2_256B };
enum CUtensorMapFloatOOBfill { CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE };

struct alignas(64) CUtensorMap {
    const char *data;
    cuuint64_t size[3], stride[2];
    cuuint32_t box[3];
};

#endif
