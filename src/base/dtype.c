/* dtype.c - element types: names, sizes, conversions */
#include "base/dtype.h"

#include <math.h>

static const struct {
    const char *name;
    size_t size;
} types[DTYPE_COUNT] = {
    [DTYPE_NONE] = {"none", 0}, [DTYPE_F32] = {"F32", 4},         [DTYPE_F16] = {"F16", 2},
    [DTYPE_BF16] = {"BF16", 2}, [DTYPE_F8_E4M3] = {"F8_E4M3", 1}, [DTYPE_I8] = {"I8", 1},
    [DTYPE_U8] = {"U8", 1},     [DTYPE_I32] = {"I32", 4},         [DTYPE_I64] = {"I64", 8},
};

size_t dtype_size(enum dtype t)
{
    return types[t].size;
}

const char *dtype_name(enum dtype t)
{
    return types[t].name;
}

enum dtype dtype_parse(const char *name)
{
    for (int t = DTYPE_NONE + 1; t < DTYPE_COUNT; t++) {
        if (strcmp(types[t].name, name) == 0) return (enum dtype)t;
    }
    return DTYPE_NONE;
}

float f32_from_f16(uint16_t h)
{
    uint32_t sign = (uint32_t)(h & 0x8000u) << 16;
    uint32_t exponent = (h >> 10) & 0x1fu;
    uint32_t mantissa = h & 0x3ffu;
    if (exponent == 0x1f) return f32_from_bits(sign | 0x7f800000u | mantissa << 13);
    if (exponent == 0) {
        float magnitude = ldexpf((float)mantissa, -24);
        return sign ? -magnitude : magnitude;
    }
    return f32_from_bits(sign | (exponent + 112u) << 23 | mantissa << 13);
}

uint16_t f16_from_f32(float f)
{
    uint32_t u = f32_bits(f);
    uint16_t sign = (uint16_t)((u >> 16) & 0x8000u);
    uint32_t magnitude = u & 0x7fffffffu;
    if (magnitude > 0x7f800000u) return (uint16_t)(sign | 0x7e00u);
    if (magnitude >= 0x477ff000u) return (uint16_t)(sign | 0x7c00u);
    if (magnitude < 0x38800000u) {
        /* subnormal: the value in units of 2^-24, rounded by the current (nearest even) mode */
        float units = f32_from_bits(magnitude) * 16777216.0f;
        return (uint16_t)(sign | (uint16_t)lrintf(units));
    }
    uint32_t rounded = magnitude + 0xfffu + ((magnitude >> 13) & 1u);
    return (uint16_t)(sign | ((rounded - 0x38000000u) >> 13));
}

float f32_from_e4m3(uint8_t b)
{
    uint32_t sign = (uint32_t)(b & 0x80u) << 24;
    uint32_t exponent = (b >> 3) & 0xfu;
    uint32_t mantissa = b & 7u;
    if ((b & 0x7fu) == 0x7fu) return f32_from_bits(sign | 0x7fc00000u);
    if (exponent == 0) {
        float magnitude = (float)mantissa * 0x1p-9f;
        return sign ? -magnitude : magnitude;
    }
    return f32_from_bits(sign | (exponent + 120u) << 23 | mantissa << 20);
}

uint8_t e4m3_from_f32(float f)
{
    uint32_t u = f32_bits(f);
    uint8_t sign = (uint8_t)((u >> 24) & 0x80u);
    uint32_t magnitude = u & 0x7fffffffu;
    if (magnitude > 0x7f800000u) return 0x7f;
    if (magnitude >= 0x43e00000u) return (uint8_t)(sign | 0x7e); /* >= 448 */
    if (magnitude < 0x3c800000u) { /* below 2^-6: subnormal, units of 2^-9 */
        return (uint8_t)(sign | (uint8_t)lrintf(f32_from_bits(magnitude) * 512.0f));
    }
    uint32_t rounded = magnitude + 0x7ffffu + ((magnitude >> 20) & 1u);
    uint32_t code = (rounded - 0x3c000000u) >> 20;
    return (uint8_t)(sign | (code > 0x7e ? 0x7e : code));
}
