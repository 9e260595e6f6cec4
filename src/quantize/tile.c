/* tile.c - the inner loop of products of matrices */
#include "quantize/tile.h"

#include <assert.h>

typedef float lanes __attribute__((vector_size(32), aligned(4), may_alias));

enum { LANES = 8 };

/* Eight sums of vectors stay in registers with AVX2. */
static inline __attribute__((always_inline)) void add(float c[TILE_ROWS][TILE_COLS], const float *a,
                                                      size_t a_k, size_t a_i, const float *b,
                                                      size_t b_k, size_t n)
{
    static_assert((int)TILE_ROWS == 4 && (int)TILE_COLS == 2 * (int)LANES, "the sums below");
    lanes *to = (lanes *)c;
    lanes s00 = to[0], s01 = to[1], s10 = to[2], s11 = to[3];
    lanes s20 = to[4], s21 = to[5], s30 = to[6], s31 = to[7];
    for (size_t k = 0; k < n; k++) {
        const float *p = a + k * a_k;
        const lanes *q = (const lanes *)(b + k * b_k);
        const lanes q0 = q[0], q1 = q[1];
        s00 += p[0] * q0;
        s01 += p[0] * q1;
        s10 += p[a_i] * q0;
        s11 += p[a_i] * q1;
        s20 += p[2 * a_i] * q0;
        s21 += p[2 * a_i] * q1;
        s30 += p[3 * a_i] * q0;
        s31 += p[3 * a_i] * q1;
    }
    to[0] = s00;
    to[1] = s01;
    to[2] = s10;
    to[3] = s11;
    to[4] = s20;
    to[5] = s21;
    to[6] = s30;
    to[7] = s31;
}

#if defined(__x86_64__)

/* Chosen by a look at each call, not by the loader: sanitizers do not bear that. */
__attribute__((target("avx2"))) static void add_avx2(float c[TILE_ROWS][TILE_COLS], const float *a,
                                                     size_t a_k, size_t a_i, const float *b,
                                                     size_t b_k, size_t n)
{
    add(c, a, a_k, a_i, b, b_k, n);
}

void tile_add(float c[TILE_ROWS][TILE_COLS], const float *a, size_t a_k, size_t a_i, const float *b,
              size_t b_k, size_t n)
{
    if (__builtin_cpu_supports("avx2")) {
        add_avx2(c, a, a_k, a_i, b, b_k, n);
    } else {
        add(c, a, a_k, a_i, b, b_k, n);
    }
}

#else

void tile_add(float c[TILE_ROWS][TILE_COLS], const float *a, size_t a_k, size_t a_i, const float *b,
              size_t b_k, size_t n)
{
    add(c, a, a_k, a_i, b, b_k, n);
}

#endif
