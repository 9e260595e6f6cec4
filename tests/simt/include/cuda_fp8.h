/* cuda_fp8.h - e4m3 of the simulated GPU */
#ifndef FATHOM_TESTS_SIMT_CUDA_FP8_H
#define FATHOM_TESTS_SIMT_CUDA_FP8_H

#include "cuda_fp16.h"

extern "C" {
#include "base/dtype.h"
}

enum __nv_fp8_interpretation_t { __NV_E4M3 };
enum __nv_saturation_t { __NV_SATFINITE };

/* The value of every code: much of a run's time is spent on them. */
struct simt_e4m3_values {
    float of[256];
    simt_e4m3_values()
    {
        for (int i = 0; i < 256; i++) of[i] = f32_from_e4m3((uint8_t)i);
    }
};
static const simt_e4m3_values simt_e4m3_table;

SIMT_WITHIN static inline float simt_e4m3(uint8_t code)
{
    return simt_e4m3_table.of[code];
}

static inline __half_raw __nv_cvt_fp8_to_halfraw(uint8_t v, __nv_fp8_interpretation_t)
{
    return {simt_e4m3(v)};
}
static inline __half2_raw __nv_cvt_fp8x2_to_halfraw2(uint16_t v, __nv_fp8_interpretation_t)
{
    return {simt_e4m3((uint8_t)v), simt_e4m3((uint8_t)(v >> 8))};
}
static inline uint8_t __nv_cvt_float_to_fp8(float v, __nv_saturation_t, __nv_fp8_interpretation_t)
{
    return e4m3_from_f32(v);
}
static inline uint16_t __nv_cvt_float2_to_fp8x2(float2 v, __nv_saturation_t,
                                                __nv_fp8_interpretation_t)
{
    return (uint16_t)(e4m3_from_f32(v.x) | e4m3_from_f32(v.y) << 8);
}

#endif
