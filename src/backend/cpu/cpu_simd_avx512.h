/* cpu_simd_avx512.h - vectors of 16 floats (AVX-512 F, BW, DQ, VL, VBMI, BF16)
 *
 * One of the three vocabularies of cpu_kernel_body.h; the functions are explained in
 * cpu_simd_portable.h. An e4m3 byte becomes the two bytes of its bf16 value by two look-ups in
 * tables of 128 entries, which is exact for subnormals and NaN.
 */
#ifndef FATHOM_BACKEND_CPU_SIMD_AVX512_H
#define FATHOM_BACKEND_CPU_SIMD_AVX512_H

#include <immintrin.h>
#include <stdint.h>

#include "backend/cpu/cpu_e4m3_table.h"

enum { LANES = 16, TILE_ROWS = 8 };

typedef __m512 vf;

static inline vf v_zero(void)
{
    return _mm512_setzero_ps();
}

static inline vf v_set(float a)
{
    return _mm512_set1_ps(a);
}

static inline vf v_load(const float *p)
{
    return _mm512_loadu_ps(p);
}

static inline void v_store(float *p, vf a)
{
    _mm512_storeu_ps(p, a);
}

static inline vf v_add(vf a, vf b)
{
    return _mm512_add_ps(a, b);
}

static inline vf v_sub(vf a, vf b)
{
    return _mm512_sub_ps(a, b);
}

static inline vf v_mul(vf a, vf b)
{
    return _mm512_mul_ps(a, b);
}

static inline vf v_div(vf a, vf b)
{
    return _mm512_div_ps(a, b);
}

static inline vf v_max(vf a, vf b)
{
    return _mm512_max_ps(a, b);
}

static inline vf v_min(vf a, vf b)
{
    return _mm512_min_ps(a, b);
}

static inline vf v_fma(vf a, vf b, vf c)
{
    return _mm512_fmadd_ps(a, b, c);
}

static inline vf v_round(vf a)
{
    return _mm512_roundscale_ps(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}

static inline vf v_pow2(vf n)
{
    __m512i e = _mm512_add_epi32(_mm512_cvtps_epi32(n), _mm512_set1_epi32(127));
    return _mm512_castsi512_ps(_mm512_slli_epi32(e, 23));
}

static inline vf v_zero_below(vf x, float limit, vf y)
{
    return _mm512_maskz_mov_ps(_mm512_cmp_ps_mask(x, _mm512_set1_ps(limit), _CMP_NLT_UQ), y);
}

/* The four sums; each is ((0+8)+(4+12)) + ... of its vector, whatever stands beside it. */
static inline void v_sum4(vf a, vf b, vf c, vf d, float out[4])
{
    vf ab = _mm512_add_ps(_mm512_unpacklo_ps(a, b), _mm512_unpackhi_ps(a, b));
    vf cd = _mm512_add_ps(_mm512_unpacklo_ps(c, d), _mm512_unpackhi_ps(c, d));
    __m512d abd = _mm512_castps_pd(ab);
    __m512d cdd = _mm512_castps_pd(cd);
    vf s = _mm512_add_ps(_mm512_castpd_ps(_mm512_unpacklo_pd(abd, cdd)),
                         _mm512_castpd_ps(_mm512_unpackhi_pd(abd, cdd)));
    __m256 half = _mm256_add_ps(_mm512_castps512_ps256(s), _mm512_extractf32x8_ps(s, 1));
    __m128 sums = _mm_add_ps(_mm256_castps256_ps128(half), _mm256_extractf128_ps(half, 1));
    _mm_storeu_ps(out, sums);
}

static inline float v_sum(vf a)
{
    float out[4];
    v_sum4(a, a, a, a, out);
    return out[0];
}

static inline float v_max_all(vf a)
{
    return _mm512_reduce_max_ps(a);
}

static inline vf v_load_bf16(const uint16_t *p)
{
    __m256i h = _mm256_loadu_si256((const __m256i *)p);
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(h), 16));
}

static inline void v_store_bf16(uint16_t *p, vf a)
{
    _mm256_storeu_si256((__m256i *)p, (__m256i)_mm512_cvtneps_pbh(a));
}

/* ---- e4m3 ---- */

/* The 64 low and high bytes of the bf16 values of 64 codes. */
static inline void v_e4m3_bytes(__m512i code, __m512i *low, __m512i *high)
{
    __m512i low0 = _mm512_load_si512(cpu_e4m3_low);
    __m512i low1 = _mm512_load_si512(cpu_e4m3_low + 64);
    __m512i high0 = _mm512_load_si512(cpu_e4m3_high);
    __m512i high1 = _mm512_load_si512(cpu_e4m3_high + 64);
    *low = _mm512_permutex2var_epi8(low0, code, low1);
    __m512i magnitude = _mm512_permutex2var_epi8(high0, code, high1);
    /* magnitude | (code & 0x80) */
    *high = _mm512_ternarylogic_epi32(magnitude, code, _mm512_set1_epi8((char)0x80), 0xf8);
}

/* 16 codes, in order */
static inline vf v_load_e4m3(const uint8_t *p)
{
    __m512i low, high;
    __m128i code = _mm_loadu_si128((const __m128i *)p);
    v_e4m3_bytes(_mm512_castsi128_si512(code), &low, &high);
    __m128i lo = _mm512_castsi512_si128(low);
    __m128i hi = _mm512_castsi512_si128(high);
    __m256i words = _mm256_set_m128i(_mm_unpackhi_epi8(lo, hi), _mm_unpacklo_epi8(lo, hi));
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(words), 16));
}

/* ---- panels ---- */

static inline void v_split_pair(__m512i pair, vf *even, vf *odd)
{
    *even = _mm512_castsi512_ps(_mm512_slli_epi32(pair, 16));
    *odd = _mm512_castsi512_ps(_mm512_and_si512(pair, _mm512_set1_epi32((int)0xffff0000)));
}

static inline void v_pair_bf16(const uint16_t *group, int v, vf *even, vf *odd)
{
    v_split_pair(_mm512_loadu_si512(group + 32 * v), even, odd);
}

static inline void v_pair_fp8(const uint8_t *group, int v, vf *even, vf *odd)
{
    __m512i low, high;
    v_e4m3_bytes(_mm512_loadu_si512(group), &low, &high);
    v_split_pair(v == 0 ? _mm512_unpacklo_epi8(low, high) : _mm512_unpackhi_epi8(low, high), even,
                 odd);
}

/* The numbers of signs and magnitudes in the low bytes of lanes; what is above is dropped. */
static inline vf v_from_sign_magnitude(__m512i code)
{
    __m512i magnitude = _mm512_and_si512(code, _mm512_set1_epi32(0x7f));
    __m512i sign = _mm512_slli_epi32(_mm512_and_si512(code, _mm512_set1_epi32(0x80)), 24);
    __m512i value = _mm512_castps_si512(_mm512_cvtepi32_ps(magnitude));
    return _mm512_castsi512_ps(_mm512_or_si512(value, sign));
}

static inline void v_pair_int8(const uint8_t *group, int v, vf *even, vf *odd)
{
    const __m512i code = _mm512_loadu_si512(group), none = _mm512_setzero_si512();
    __m512i pair = v == 0 ? _mm512_unpacklo_epi8(code, none) : _mm512_unpackhi_epi8(code, none);
    *even = v_from_sign_magnitude(pair);
    *odd = v_from_sign_magnitude(_mm512_srli_epi32(pair, 16));
}

/* ---- four bits ---- */

static inline void v_pair_nibbles(const uint8_t *group, int pair, int v, __m512i *even,
                                  __m512i *odd)
{
    *even = _mm512_srli_epi32(_mm512_loadu_si512(group), (unsigned)(8 * pair + 4 * v));
    *odd = _mm512_srli_epi32(*even, 16);
}

static inline void v_pair_u4(const uint8_t *group, int pair, int v, vf *even, vf *odd)
{
    const __m512i mask = _mm512_set1_epi32(15);
    __m512i a, b;
    v_pair_nibbles(group, pair, v, &a, &b);
    *even = _mm512_cvtepi32_ps(_mm512_and_si512(a, mask));
    *odd = _mm512_cvtepi32_ps(_mm512_and_si512(b, mask));
}

/* The permutation looks at the low four bits of a lane alone. */
static inline void v_pair_e2m1(const uint8_t *group, int pair, int v, vf *even, vf *odd)
{
    const vf values =
        _mm512_setr_ps(0, 0.5f, 1, 1.5f, 2, 3, 4, 6, -0.0f, -0.5f, -1, -1.5f, -2, -3, -4, -6);
    __m512i a, b;
    v_pair_nibbles(group, pair, v, &a, &b);
    *even = _mm512_permutexvar_ps(a, values);
    *odd = _mm512_permutexvar_ps(b, values);
}

static inline vf v_load_u8(const uint8_t *p)
{
    return _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)p)));
}

#endif
