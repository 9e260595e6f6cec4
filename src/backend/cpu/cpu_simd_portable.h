/* cpu_simd_portable.h - vectors of 4 floats in plain C
 *
 * The vocabulary that cpu_kernel_body.h is written in, and its meaning for the other two. LANES
 * floats form a vector; TILE_ROWS is how many activation rows a product keeps in registers. There
 * is no fused multiply-add here: v_fma rounds twice, so bits differ from the other ISAs'.
 */
#ifndef FATHOM_BACKEND_CPU_SIMD_PORTABLE_H
#define FATHOM_BACKEND_CPU_SIMD_PORTABLE_H

#include <math.h>
#include <stdint.h>
#include <string.h>

#include "backend/cpu/cpu_e4m3_table.h"
#include "backend/cpu/cpu_kernel.h"
#include "base/dtype.h"
#include "base/weight_form.h"

enum { LANES = 4, TILE_ROWS = 4 };

typedef float vf __attribute__((vector_size(16)));

static inline vf v_zero(void)
{
    return (vf){0, 0, 0, 0};
}

static inline vf v_set(float a)
{
    return (vf){a, a, a, a};
}

static inline vf v_load(const float *p)
{
    vf a;
    memcpy(&a, p, sizeof a);
    return a;
}

static inline void v_store(float *p, vf a)
{
    memcpy(p, &a, sizeof a);
}

static inline vf v_add(vf a, vf b)
{
    return a + b;
}

static inline vf v_sub(vf a, vf b)
{
    return a - b;
}

static inline vf v_mul(vf a, vf b)
{
    return a * b;
}

static inline vf v_div(vf a, vf b)
{
    return a / b;
}

/* v_max, v_min - b where either is NaN */
static inline vf v_max(vf a, vf b)
{
    for (int i = 0; i < LANES; i++) a[i] = a[i] > b[i] ? a[i] : b[i];
    return a;
}

static inline vf v_min(vf a, vf b)
{
    for (int i = 0; i < LANES; i++) a[i] = a[i] < b[i] ? a[i] : b[i];
    return a;
}

/* v_fma - a * b + c */
static inline vf v_fma(vf a, vf b, vf c)
{
    return a * b + c;
}

/* v_round - to the nearest integer, ties to even */
static inline vf v_round(vf a)
{
    for (int i = 0; i < LANES; i++) a[i] = rintf(a[i]);
    return a;
}

/* v_pow2 - 2^n for integers -126 <= n <= 127 */
static inline vf v_pow2(vf n)
{
    for (int i = 0; i < LANES; i++) n[i] = f32_from_bits((uint32_t)((int32_t)n[i] + 127) << 23);
    return n;
}

/* v_zero_below - y, but 0 where x < limit; a NaN x keeps y */
static inline vf v_zero_below(vf x, float limit, vf y)
{
    for (int i = 0; i < LANES; i++) y[i] = x[i] < limit ? 0 : y[i];
    return y;
}

/* v_sum4 - the sums of four vectors, each in the same fixed order of lanes */
static inline void v_sum4(vf a, vf b, vf c, vf d, float out[4])
{
    const vf v[4] = {a, b, c, d};
    for (int i = 0; i < 4; i++) out[i] = (v[i][0] + v[i][1]) + (v[i][2] + v[i][3]);
}

static inline float v_sum(vf a)
{
    return (a[0] + a[1]) + (a[2] + a[3]);
}

static inline float v_max_all(vf a)
{
    float m = a[0];
    for (int i = 1; i < LANES; i++) m = a[i] > m ? a[i] : m;
    return m;
}

static inline vf v_load_bf16(const uint16_t *p)
{
    vf a;
    for (int i = 0; i < LANES; i++) a[i] = f32_from_bf16(p[i]);
    return a;
}

/* v_store_bf16 - rounded to nearest, ties to even */
static inline void v_store_bf16(uint16_t *p, vf a)
{
    for (int i = 0; i < LANES; i++) p[i] = bf16_from_f32(a[i]);
}

static inline float f32_from_code(uint8_t code)
{
    uint32_t magnitude =
        (uint32_t)cpu_e4m3_high[code & 0x7f] << 24 | (uint32_t)cpu_e4m3_low[code & 0x7f] << 16;
    return f32_from_bits(magnitude | (uint32_t)(code & 0x80) << 24);
}

/* v_load_e4m3 - LANES codes, in order */
static inline vf v_load_e4m3(const uint8_t *p)
{
    vf a;
    for (int i = 0; i < LANES; i++) a[i] = f32_from_code(p[i]);
    return a;
}

/* ---- panels: vector v of a group (one pair of columns of 32 rows) as its two columns ---- */

static inline void v_pair_bf16(const uint16_t *group, int v, vf *even, vf *odd)
{
    const uint16_t *p = group + 2 * LANES * v;
    *even =
        (vf){f32_from_bf16(p[0]), f32_from_bf16(p[2]), f32_from_bf16(p[4]), f32_from_bf16(p[6])};
    *odd = (vf){f32_from_bf16(p[1]), f32_from_bf16(p[3]), f32_from_bf16(p[5]), f32_from_bf16(p[7])};
}

static inline void v_pair_fp8(const uint8_t *group, int v, vf *even, vf *odd)
{
    const uint8_t *p = group + 16 * (v & 3) + 8 * (v >> 2);
    *even =
        (vf){f32_from_code(p[0]), f32_from_code(p[2]), f32_from_code(p[4]), f32_from_code(p[6])};
    *odd = (vf){f32_from_code(p[1]), f32_from_code(p[3]), f32_from_code(p[5]), f32_from_code(p[7])};
}

static inline float f32_from_sign_magnitude(uint8_t code)
{
    return (float)(code & 0x80 ? -(code & 0x7f) : code);
}

static inline void v_pair_int8(const uint8_t *group, int v, vf *even, vf *odd)
{
    const uint8_t *p = group + 16 * (v & 3) + 8 * (v >> 2);
    vf a = v_zero(), b = v_zero();
    for (int i = 0; i < LANES; i++) {
        a[i] = f32_from_sign_magnitude(p[2 * i]);
        b[i] = f32_from_sign_magnitude(p[2 * i + 1]);
    }
    *even = a;
    *odd = b;
}

/* ---- four bits: vector v of pair `pair` (0 or 1) of a group ---- */

static inline uint8_t nibble_of(const uint8_t *group, int pair, int row, int odd)
{
    return group[4 * (row % 16) + pair + 2 * odd] >> 4 * (row / 16) & 15;
}

/* the codes as numbers 0 .. 15 */
static inline void v_pair_u4(const uint8_t *group, int pair, int v, vf *even, vf *odd)
{
    vf a = v_zero(), b = v_zero();
    for (int i = 0; i < LANES; i++) {
        a[i] = nibble_of(group, pair, LANES * v + i, 0);
        b[i] = nibble_of(group, pair, LANES * v + i, 1);
    }
    *even = a;
    *odd = b;
}

static inline void v_pair_e2m1(const uint8_t *group, int pair, int v, vf *even, vf *odd)
{
    vf a = v_zero(), b = v_zero();
    for (int i = 0; i < LANES; i++) {
        a[i] = e2m1_value(nibble_of(group, pair, LANES * v + i, 0));
        b[i] = e2m1_value(nibble_of(group, pair, LANES * v + i, 1));
    }
    *even = a;
    *odd = b;
}

/* v_dot_int8 - sum[row] += the codes of four columns of a panel (64 bytes of four bits, or two
 * groups of int8) times those of x, which stand in the order 0, 2, 1, 3 for four bits */
static inline void v_dot_int8(bool is_u4, const uint8_t *group, const int8_t x[4], int32_t sum[32])
{
    for (uint32_t r = 0; r < 32; r++) {
        const uint8_t *at = is_u4 ? group + 4 * (r % 16) : group + 2 * byte_place(r);
        for (uint32_t j = 0; j < 4; j++) {
            uint8_t code = is_u4 ? at[j] >> 4 * (r / 16) & 15 : at[64 * (j / 2) + j % 2];
            sum[r] += (is_u4 || code < 0x80 ? code : 0x80 - code) * x[j];
        }
    }
}

/* v_load_u8 - LANES bytes as numbers */
static inline vf v_load_u8(const uint8_t *p)
{
    return (vf){p[0], p[1], p[2], p[3]};
}

#endif
