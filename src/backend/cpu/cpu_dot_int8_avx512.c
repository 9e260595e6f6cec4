/* cpu_dot_int8_avx512.c - products of int8 and four-bit weights with int8 inputs, over vpdpbusd
 *
 * vpdpbusd adds four products of an unsigned and a signed byte to each of 16 sums: 64
 * multiply-adds, all exact. Weights are the unsigned side: a code of four bits as it is, an int8
 * code plus 128. What that adds is taken off once a block, from the sum of x's codes, as zeros are.
 */
#include <string.h>

#include "backend/cpu/cpu_simd_avx512.h"

#include "backend/cpu/cpu_kernel.h"
#include "base/assert.h"

#define INLINE static inline __attribute__((always_inline))

enum {
    MAX_TILE = 6,         /* rows of x in registers, against two panels */
    BLOCKS_AT_A_TIME = 4, /* of columns, for all rows of x before the next: they stay near */
    PREFETCH_BYTES = 4096,
    BIAS = 128, /* of PACK_I8's codes as unsigned bytes */
};

INLINE void dot(__m512i *sum, __m512i weight, __m512i x)
{
    __asm__("vpdpbusd %2, %1, %0" : "+v"(*sum) : "v"(weight), "v"(x));
}

INLINE __m512i broadcast_four(const int8_t *x)
{
    int four;
    memcpy(&four, x, sizeof four);
    return _mm512_set1_epi32(four);
}

/* Sign and magnitude to the number plus 128: 0x80 + m, or 0x80 - m. */
INLINE __m512i biased(__m512i code)
{
    const __m512i sign = _mm512_set1_epi8((char)0x80);
    __mmask64 negative = _mm512_movepi8_mask(code);
    __m512i up = _mm512_xor_si512(code, sign);
    return _mm512_mask_sub_epi8(up, negative, _mm512_setzero_si512(), code);
}

/* The four columns from pair p on: rows 0 .. 15 and 16 .. 31. */
INLINE void load_four(enum pack_kind kind, const uint8_t *panel, uint32_t p, __m512i w[2])
{
    if (kind == PACK_U4) {
        const __m512i nibble = _mm512_set1_epi8(15);
        __m512i code = _mm512_loadu_si512(panel + 32 * (size_t)p);
        w[0] = _mm512_and_si512(code, nibble);
        w[1] = _mm512_and_si512(_mm512_srli_epi16(code, 4), nibble);
    } else {
        __m512i first = biased(_mm512_loadu_si512(panel + 64 * (size_t)p));
        __m512i second = biased(_mm512_loadu_si512(panel + 64 * (size_t)p + 64));
        w[0] = _mm512_unpacklo_epi16(first, second);
        w[1] = _mm512_unpackhi_epi16(first, second);
    }
}

/* Some columns of P panels against M rows of x. */
struct block {
    const uint8_t *panel[2];
    const float *scale[2];
    const uint8_t *zero[2]; /* of PACK_U4; NULL: all are U4_ZERO */
    uint32_t scale_lanes;
    uint32_t n_pair;
    uint32_t n_sum; /* of x_sum */
    bool first;
    const int8_t *x;
    size_t x_stride;
    const float *x_scale;
    const int32_t *x_sum;
    size_t x_blocks; /* from a row's scales and sums to the next's */
    float *y;
    size_t y_stride;
};

/* What a panel's 16 codes count from. */
INLINE __m512i load_zeros(enum pack_kind kind, const uint8_t *zero, int v)
{
    if (kind != PACK_U4) return _mm512_set1_epi32(BIAS);
    if (!zero) return _mm512_set1_epi32(U4_ZERO);
    return _mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)(zero + 16 * v)));
}

INLINE void finish_tile(const int M, const int P, enum pack_kind kind, const struct block *b,
                        __m512i part[MAX_TILE][4])
{
#pragma GCC unroll 4
    for (int v = 0; v < 2 * P; v++) {
        const __m512i zero = load_zeros(kind, b->zero[v / 2], v % 2);
        const float *scales = b->scale[v / 2];
        __m512 scale =
            b->scale_lanes == 1 ? _mm512_set1_ps(*scales) : _mm512_loadu_ps(scales + 16 * (v % 2));
#pragma GCC unroll 6
        for (int m = 0; m < M; m++) {
            float *y = b->y + (size_t)m * b->y_stride + 16 * v;
            int32_t sum = 0;
            for (uint32_t i = 0; i < b->n_sum; i++) sum += b->x_sum[m * b->x_blocks + i];
            __m512i of_zeros = _mm512_mullo_epi32(zero, _mm512_set1_epi32(sum));
            __m512 exact = _mm512_cvtepi32_ps(_mm512_sub_epi32(part[m][v], of_zeros));
            __m512 s = _mm512_mul_ps(scale, _mm512_set1_ps(b->x_scale[m * b->x_blocks]));
            if (b->first)
                _mm512_storeu_ps(y, _mm512_mul_ps(exact, s));
            else
                _mm512_storeu_ps(y, _mm512_fmadd_ps(exact, s, _mm512_loadu_ps(y)));
        }
    }
}

INLINE void block_tile(const int M, const int P, enum pack_kind kind, const struct block *b)
{
    __m512i part[MAX_TILE][4];
#pragma GCC unroll 6
    for (int m = 0; m < M; m++) {
#pragma GCC unroll 4
        for (int v = 0; v < 2 * P; v++) part[m][v] = _mm512_setzero_si512();
    }
    for (uint32_t p = 0; p < b->n_pair; p += 2) {
        const int8_t *x[2] = {b->x + 2 * p, b->x + 3 * b->x_stride + 2 * p};
        const size_t ahead = (size_t)p * pack_group_bytes(kind) + PREFETCH_BYTES;
        __m512i w[4];
#pragma GCC unroll 2
        for (int i = 0; i < P; i++) {
            _mm_prefetch((const char *)b->panel[i] + ahead, _MM_HINT_T0);
            if (kind == PACK_I8) _mm_prefetch((const char *)b->panel[i] + ahead + 64, _MM_HINT_T0);
            load_four(kind, b->panel[i], p, w + 2 * i);
        }
#pragma GCC unroll 6
        for (int m = 0; m < M; m++) {
            __m512i four = broadcast_four(x[m / 3] + (size_t)(m % 3) * b->x_stride);
#pragma GCC unroll 4
            for (int v = 0; v < 2 * P; v++) dot(&part[m][v], w[v], four);
        }
    }
    finish_tile(M, P, kind, b, part);
}

typedef void tile_function(const struct block *b);

#define TILE(M, P, KIND)                                                                           \
    static void tile_##M##_##P##_##KIND(const struct block *b)                                     \
    {                                                                                              \
        block_tile(M, P, KIND, b);                                                                 \
    }
#define TILES(P, KIND)                                                                             \
    TILE(1, P, KIND)                                                                               \
    TILE(2, P, KIND)                                                                               \
    TILE(3, P, KIND)                                                                               \
    TILE(4, P, KIND)                                                                               \
    TILE(5, P, KIND)                                                                               \
    TILE(6, P, KIND)
#define TILE_ROW(P, KIND)                                                                          \
    {                                                                                              \
        tile_1_##P##_##KIND, tile_2_##P##_##KIND, tile_3_##P##_##KIND, tile_4_##P##_##KIND,        \
            tile_5_##P##_##KIND, tile_6_##P##_##KIND                                               \
    }

TILES(1, PACK_I8)
TILES(2, PACK_I8)
TILES(1, PACK_U4)
TILES(2, PACK_U4)

/* By is-it-PACK_U4, panels - 1 and rows - 1. */
static tile_function *const tiles[2][2][MAX_TILE] = {
    {TILE_ROW(1, PACK_I8), TILE_ROW(2, PACK_I8)},
    {TILE_ROW(1, PACK_U4), TILE_ROW(2, PACK_U4)},
};

/* Blocks [block0, block1) of n_panel (1 or 2) panels from `panel` against all rows of x, in tiles
 * of nearly equal height. is_row: they are one. */
static void gemm_blocks(const struct gemm_call *c, uint32_t panel, uint32_t n_panel,
                        uint32_t block0, uint32_t block1, bool is_row)
{
    const struct packed *w = c->w;
    const uint32_t last = panel + n_panel - 1;
    const uint32_t n_tile = (c->n_token + MAX_TILE - 1) / MAX_TILE;
    DCHECK(n_panel == 1 || n_panel == 2);
    for (uint32_t i = 0, t = 0; i < n_tile; i++) {
        uint32_t m = (c->n_token - t + n_tile - i - 1) / (n_tile - i);
        tile_function *tile = tiles[w->kind == PACK_U4][n_panel - 1][m - 1];
        for (uint32_t block = block0; block < block1; block++) {
            uint32_t pair = packed_block_start(w, block);
            const uint8_t *at =
                w->data + (size_t)panel * w->panel_bytes + (size_t)pair * pack_group_bytes(w->kind);
            const struct block b = {
                .panel = {at, at + w->panel_bytes},
                .scale = {packed_scales(w, panel, block), packed_scales(w, last, block)},
                .zero = {packed_zeros(w, panel, block), packed_zeros(w, last, block)},
                .scale_lanes = w->scale_lanes,
                .n_pair = is_row ? w->n_pair : packed_block_pairs(w, block),
                .n_sum = is_row ? w->n_block : 1,
                .first = block == 0,
                .x = (const int8_t *)c->x + t * c->x_stride + 2 * pair,
                .x_stride = c->x_stride,
                .x_scale = c->x_scale + (size_t)t * w->n_block + block,
                .x_sum = c->x_sum + (size_t)t * w->n_block + block,
                .x_blocks = w->n_block,
                .y = c->y + t * c->y_stride + (size_t)(panel - c->panel0) * PANEL,
                .y_stride = c->y_stride,
            };
            tile(&b);
        }
        t += m;
    }
}

void cpu_gemm_int8_avx512(const struct gemm_call *c)
{
    const struct packed *w = c->w;
    const bool is_row = w->input == INPUT_CODE_INT8_ROW;
    const uint32_t end = c->panel0 + c->n_panel, n_block = is_row ? 1 : w->n_block;
    DCHECK(w->kind == PACK_I8 || w->kind == PACK_U4);
    DCHECK(end <= w->n_panel && c->n_token >= 1);
    for (uint32_t panel = c->panel0; panel < end; panel += 2) {
        for (uint32_t block = 0; block < n_block; block += BLOCKS_AT_A_TIME) {
            uint32_t last = block + BLOCKS_AT_A_TIME;
            gemm_blocks(c, panel, panel + 1 < end ? 2 : 1, block, last < n_block ? last : n_block,
                        is_row);
        }
    }
}
