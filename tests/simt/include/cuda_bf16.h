/* cuda_bf16.h - bfloat16 of the simulated GPU */
#ifndef FATHOM_TESTS_SIMT_CUDA_BF16_H
#define FATHOM_TESTS_SIMT_CUDA_BF16_H

#include "cuda_runtime.h"

extern "C" {
#include "base/dtype.h"
}

struct __nv_bfloat16 {
    uint16_t bits;
    __nv_bfloat16() = default;
    explicit __nv_bfloat16(float v) : bits(bf16_from_f32(v))
    {
    }
};
struct alignas(4) __nv_bfloat162 {
    __nv_bfloat16 x, y;
};

static inline __nv_bfloat16 __float2bfloat16_rn(float v)
{
    return __nv_bfloat16(v);
}
static inline float __bfloat162float(__nv_bfloat16 v)
{
    return f32_from_bf16(v.bits);
}
static inline __nv_bfloat162 __floats2bfloat162_rn(float x, float y)
{
    return {__float2bfloat16_rn(x), __float2bfloat16_rn(y)};
}
static inline float2 __bfloat1622float2(__nv_bfloat162 v)
{
    return {__bfloat162float(v.x), __bfloat162float(v.y)};
}

#endif
