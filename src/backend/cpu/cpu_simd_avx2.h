/* cpu_simd_avx2.h - vectors of 8 floats (AVX2, FMA, F16C not needed)
 *
 * One of the three vocabularies of cpu_kernel_body.h; the functions are explained in
 * cpu_simd_portable.h. An e4m3 code is moved into the exponent and mantissa fields of an f32 and
 * multiplied by 2^120, which is exact for subnormals too. A NaN code would become 480: packed
 * weights hold none (cpu_weight.c), and v_load_e4m3 looks for it.
 */
#ifndef FATHOM_BACKEND_CPU_SIMD_AVX2_H
#define FATHOM_BACKEND_CPU_SIMD_AVX2_H

#include <immintrin.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

enum { LANES = 8, TILE_ROWS = 4 };

typedef __m256 vf;

static inline vf v_zero(void)
{
    return _mm256_setzero_ps();
}

static inline vf v_set(float a)
{
    return _mm256_set1_ps(a);
}

static inline vf v_load(const float *p)
{
    return _mm256_loadu_ps(p);
}

static inline void v_store(float *p, vf a)
{
    _mm256_storeu_ps(p, a);
}

static inline vf v_add(vf a, vf b)
{
    return _mm256_add_ps(a, b);
}

static inline vf v_sub(vf a, vf b)
{
    return _mm256_sub_ps(a, b);
}

static inline vf v_mul(vf a, vf b)
{
    return _mm256_mul_ps(a, b);
}

static inline vf v_div(vf a, vf b)
{
    return _mm256_div_ps(a, b);
}

static inline vf v_max(vf a, vf b)
{
    return _mm256_max_ps(a, b);
}

static inline vf v_min(vf a, vf b)
{
    return _mm256_min_ps(a, b);
}

static inline vf v_fma(vf a, vf b, vf c)
{
    return _mm256_fmadd_ps(a, b, c);
}

static inline vf v_round(vf a)
{
    return _mm256_round_ps(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}

static inline vf v_pow2(vf n)
{
    __m256i e = _mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127));
    return _mm256_castsi256_ps(_mm256_slli_epi32(e, 23));
}

static inline vf v_zero_below(vf x, float limit, vf y)
{
    return _mm256_and_ps(_mm256_cmp_ps(x, _mm256_set1_ps(limit), _CMP_NLT_UQ), y);
}

static inline void v_sum4(vf a, vf b, vf c, vf d, float out[4])
{
    vf ab = _mm256_add_ps(_mm256_unpacklo_ps(a, b), _mm256_unpackhi_ps(a, b));
    vf cd = _mm256_add_ps(_mm256_unpacklo_ps(c, d), _mm256_unpackhi_ps(c, d));
    __m256d abd = _mm256_castps_pd(ab);
    __m256d cdd = _mm256_castps_pd(cd);
    vf s = _mm256_add_ps(_mm256_castpd_ps(_mm256_unpacklo_pd(abd, cdd)),
                         _mm256_castpd_ps(_mm256_unpackhi_pd(abd, cdd)));
    _mm_storeu_ps(out, _mm_add_ps(_mm256_castps256_ps128(s), _mm256_extractf128_ps(s, 1)));
}

static inline float v_sum(vf a)
{
    float out[4];
    v_sum4(a, a, a, a, out);
    return out[0];
}

static inline float v_max_all(vf a)
{
    __m128 m = _mm_max_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
    m = _mm_max_ps(m, _mm_movehl_ps(m, m));
    m = _mm_max_ss(m, _mm_movehdup_ps(m));
    return _mm_cvtss_f32(m);
}

static inline vf v_load_bf16(const uint16_t *p)
{
    __m256i words = _mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)p));
    return _mm256_castsi256_ps(_mm256_slli_epi32(words, 16));
}

static inline void v_store_bf16(uint16_t *p, vf a)
{
    __m256i u = _mm256_castps_si256(a);
    __m256i odd = _mm256_and_si256(_mm256_srli_epi32(u, 16), _mm256_set1_epi32(1));
    __m256i near = _mm256_add_epi32(u, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff)));
    __m256i quiet = _mm256_or_si256(u, _mm256_set1_epi32(0x400000));
    __m256i is_nan = _mm256_castps_si256(_mm256_cmp_ps(a, a, _CMP_UNORD_Q));
    __m256i high = _mm256_srli_epi32(_mm256_blendv_epi8(near, quiet, is_nan), 16);
    __m256i packed = _mm256_permute4x64_epi64(_mm256_packus_epi32(high, high), 0x08);
    _mm_storeu_si128((__m128i *)p, _mm256_castsi256_si128(packed));
}

/* ---- e4m3 ---- */

/* The values of codes that stand in the top byte of each lane; what is below is dropped. The shift
 * copies the sign down over the exponent's upper bits, the mask takes the copies away. */
static inline vf v_from_top_byte(__m256i code)
{
    __m256i bits = _mm256_and_si256(_mm256_srai_epi32(code, 4), _mm256_set1_epi32((int)0x87f00000));
    return _mm256_mul_ps(_mm256_castsi256_ps(bits), _mm256_set1_ps(0x1p120f));
}

static inline vf v_load_e4m3(const uint8_t *p)
{
    __m256i code = _mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)p));
    __m256i magnitude = _mm256_and_si256(code, _mm256_set1_epi32(0x7f));
    __m256i is_nan = _mm256_cmpeq_epi32(magnitude, _mm256_set1_epi32(0x7f));
    vf value = v_from_top_byte(_mm256_slli_epi32(code, 24));
    return _mm256_or_ps(value, _mm256_castsi256_ps(is_nan));
}

/* ---- panels ---- */

static inline void v_pair_bf16(const uint16_t *group, int v, vf *even, vf *odd)
{
    __m256i pair = _mm256_loadu_si256((const __m256i *)(group + 16 * v));
    *even = _mm256_castsi256_ps(_mm256_slli_epi32(pair, 16));
    *odd = _mm256_castsi256_ps(_mm256_and_si256(pair, _mm256_set1_epi32((int)0xffff0000)));
}

/* The two bytes of rows 8v .. 8v+7, which are two runs of 8 bytes, 16 apart. */
static inline __m256i v_pair_bytes(const uint8_t *group, int v)
{
    const uint8_t *p = group + 32 * (v & 1) + 8 * (v >> 1);
    __m128i run0 = _mm_loadl_epi64((const __m128i *)p);
    __m128i run1 = _mm_loadl_epi64((const __m128i *)(p + 16));
    return _mm256_cvtepu16_epi32(_mm_unpacklo_epi64(run0, run1));
}

static inline void v_pair_fp8(const uint8_t *group, int v, vf *even, vf *odd)
{
    __m256i pair = v_pair_bytes(group, v);
    *even = v_from_top_byte(_mm256_slli_epi32(pair, 24));
    *odd = v_from_top_byte(_mm256_slli_epi32(pair, 16));
}

/* The numbers of signs and magnitudes in the low bytes of lanes; what is above is dropped. */
static inline vf v_from_sign_magnitude(__m256i code)
{
    __m256i magnitude = _mm256_and_si256(code, _mm256_set1_epi32(0x7f));
    __m256i sign = _mm256_slli_epi32(_mm256_and_si256(code, _mm256_set1_epi32(0x80)), 24);
    return _mm256_or_ps(_mm256_cvtepi32_ps(magnitude), _mm256_castsi256_ps(sign));
}

static inline void v_pair_int8(const uint8_t *group, int v, vf *even, vf *odd)
{
    __m256i pair = v_pair_bytes(group, v);
    *even = v_from_sign_magnitude(pair);
    *odd = v_from_sign_magnitude(_mm256_srli_epi32(pair, 8));
}

/* ---- four bits ---- */

/* The codes of vector v of a pair, in the low four bits of lanes; above them are others. */
static inline void v_pair_nibbles(const uint8_t *group, int pair, int v, __m256i *even,
                                  __m256i *odd)
{
    __m256i word = _mm256_loadu_si256((const __m256i *)(group + 32 * (v & 1)));
    *even = _mm256_srli_epi32(word, 8 * pair + 4 * (v >> 1));
    *odd = _mm256_srli_epi32(*even, 16);
}

static inline void v_pair_u4(const uint8_t *group, int pair, int v, vf *even, vf *odd)
{
    const __m256i mask = _mm256_set1_epi32(15);
    __m256i a, b;
    v_pair_nibbles(group, pair, v, &a, &b);
    *even = _mm256_cvtepi32_ps(_mm256_and_si256(a, mask));
    *odd = _mm256_cvtepi32_ps(_mm256_and_si256(b, mask));
}

static inline vf v_from_e2m1(__m256i code)
{
    const vf magnitudes = _mm256_setr_ps(0, 0.5f, 1, 1.5f, 2, 3, 4, 6);
    __m256i sign = _mm256_slli_epi32(_mm256_and_si256(code, _mm256_set1_epi32(8)), 28);
    return _mm256_or_ps(_mm256_permutevar8x32_ps(magnitudes, code), _mm256_castsi256_ps(sign));
}

static inline void v_pair_e2m1(const uint8_t *group, int pair, int v, vf *even, vf *odd)
{
    __m256i a, b;
    v_pair_nibbles(group, pair, v, &a, &b);
    *even = v_from_e2m1(a);
    *odd = v_from_e2m1(b);
}

static inline vf v_load_u8(const uint8_t *p)
{
    return _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)p)));
}

#endif
