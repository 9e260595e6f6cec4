/* dtype.h - element types of tensors and the scalar conversions between them
 *
 * bf16 and f16 travel as uint16_t, e4m3 (the OCP "fn" variant: no infinity, max 448, 0x7f/0xff
 * NaN) as uint8_t. Conversions to a narrower type round to nearest, ties to even.
 */
#ifndef FATHOM_BASE_DTYPE_H
#define FATHOM_BASE_DTYPE_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

enum dtype {
    DTYPE_NONE,
    DTYPE_F32,
    DTYPE_F16,
    DTYPE_BF16,
    DTYPE_F8_E4M3,
    DTYPE_I8,
    DTYPE_U8,
    DTYPE_I32,
    DTYPE_I64,
    DTYPE_COUNT,
};

/* dtype_size - bytes of one element; 0 for DTYPE_NONE */
size_t dtype_size(enum dtype t);

/* dtype_name - the safetensors spelling: "F32" "BF16" "F8_E4M3" ... */
const char *dtype_name(enum dtype t);

/* dtype_parse - the type a safetensors header names; DTYPE_NONE if it is none of ours */
enum dtype dtype_parse(const char *name);

/* f32_from_bits, f32_bits - a float and its 32 bits */
static inline float f32_from_bits(uint32_t u)
{
    float f;
    memcpy(&f, &u, sizeof f);
    return f;
}

static inline uint32_t f32_bits(float f)
{
    uint32_t u;
    memcpy(&u, &f, sizeof u);
    return u;
}

/* f32_from_bf16, f32_from_f16 - exact; bf16_from_f32, f16_from_f32 - overflow gives infinity, NaN
 * stays NaN */
static inline float f32_from_bf16(uint16_t h)
{
    return f32_from_bits((uint32_t)h << 16);
}

static inline uint16_t bf16_from_f32(float f)
{
    uint32_t u = f32_bits(f);
    if ((u & 0x7fffffffu) > 0x7f800000u) return (uint16_t)((u >> 16) | 0x40u);
    return (uint16_t)((u + 0x7fffu + ((u >> 16) & 1u)) >> 16);
}

float f32_from_f16(uint16_t h);
uint16_t f16_from_f32(float f);

/* f32_from_e4m3 - exact; NaN for 0x7f and 0xff */
float f32_from_e4m3(uint8_t b);

/* e4m3_from_f32 - saturates to +-448; NaN gives 0x7f */
uint8_t e4m3_from_f32(float f);

/* ue8m0_round_up - the smallest power of two >= s; s is positive and normal */
static inline float ue8m0_round_up(float s)
{
    uint32_t u = f32_bits(s);
    return f32_from_bits((u + 0x7fffffu) & 0x7f800000u);
}

#endif
