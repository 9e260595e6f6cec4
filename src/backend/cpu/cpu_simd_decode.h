/* cpu_simd_decode.h - codes of weights as bf16 values, for products over bf16 pairs */
#ifndef FATHOM_BACKEND_CPU_SIMD_DECODE_H
#define FATHOM_BACKEND_CPU_SIMD_DECODE_H

#include "backend/cpu/cpu_simd_avx512.h"

#include "backend/cpu/cpu_int8_table.h"
#include "backend/cpu/cpu_kernel.h"

#define INLINE static inline __attribute__((always_inline))

struct tables {
    __m512i low0, low1, high0, high1, sign; /* of codes of a byte */
    __m512i values;                         /* of codes of four bits: 16 bf16 values, twice */
};

/* Codes of U4 less U4_ZERO. */
static const uint16_t u4_values[16] = {0xc100, 0xc0e0, 0xc0c0, 0xc0a0, 0xc080, 0xc040,
                                       0xc000, 0xbf80, 0x0000, 0x3f80, 0x4000, 0x4040,
                                       0x4080, 0x40a0, 0x40c0, 0x40e0};
static const uint16_t e2m1_values[16] = {0x0000, 0x3f00, 0x3f80, 0x3fc0, 0x4000, 0x4040,
                                         0x4080, 0x40c0, 0x8000, 0xbf00, 0xbf80, 0xbfc0,
                                         0xc000, 0xc040, 0xc080, 0xc0c0};

INLINE struct tables load_tables(enum pack_kind kind)
{
    if (pack_is_nibbles(kind)) {
        const uint16_t *values = kind == PACK_U4 ? u4_values : e2m1_values;
        __m256i all = _mm256_loadu_si256((const __m256i *)values);
        return (struct tables){.values = _mm512_broadcast_i64x4(all)};
    }
    const uint8_t *low = kind == PACK_I8 ? cpu_int8_low : cpu_e4m3_low;
    const uint8_t *high = kind == PACK_I8 ? cpu_int8_high : cpu_e4m3_high;
    return (struct tables){.low0 = _mm512_load_si512(low),
                           .low1 = _mm512_load_si512(low + 64),
                           .high0 = _mm512_load_si512(high),
                           .high1 = _mm512_load_si512(high + 64),
                           .sign = _mm512_set1_epi8((char)0x80)};
}

/* The two weight vectors of pair p of a panel: rows 0 .. 15 and 16 .. 31. */
INLINE void load_pair(enum pack_kind kind, const struct tables *t, const uint8_t *panel, uint32_t p,
                      __m512i w[2])
{
    if (kind == PACK_BF16) {
        w[0] = _mm512_loadu_si512(panel + 128 * (size_t)p);
        w[1] = _mm512_loadu_si512(panel + 128 * (size_t)p + 64);
    } else if (pack_is_nibbles(kind)) {
        __m512i code = _mm512_loadu_si512(panel + 64 * (size_t)(p / 2));
        if (p % 2) code = _mm512_srli_epi16(code, 8);
        w[0] = _mm512_permutexvar_epi16(code, t->values);
        w[1] = _mm512_permutexvar_epi16(_mm512_srli_epi16(code, 4), t->values);
    } else {
        __m512i code = _mm512_loadu_si512(panel + 64 * (size_t)p);
        __m512i low = _mm512_permutex2var_epi8(t->low0, code, t->low1);
        __m512i high = _mm512_permutex2var_epi8(t->high0, code, t->high1);
        high = _mm512_ternarylogic_epi32(high, code, t->sign, 0xf8); /* high | (code & sign) */
        w[0] = _mm512_unpacklo_epi8(low, high);
        w[1] = _mm512_unpackhi_epi8(low, high);
    }
}

#endif
