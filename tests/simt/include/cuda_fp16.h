/* cuda_fp16.h - half of the simulated GPU; it only stands between e4m3 and float, and holds the
 * float */
#ifndef FATHOM_TESTS_SIMT_CUDA_FP16_H
#define FATHOM_TESTS_SIMT_CUDA_FP16_H

#include "cuda_runtime.h"

struct __half {
    float v;
};
struct __half2 {
    float x, y;
};
typedef __half __half_raw;
typedef __half2 __half2_raw;

static inline float __half2float(__half h)
{
    return h.v;
}
static inline float2 __half22float2(__half2 h)
{
    return {h.x, h.y};
}

#endif
