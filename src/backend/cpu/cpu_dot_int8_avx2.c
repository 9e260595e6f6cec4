/* cpu_dot_int8_avx2.c - products of int8 and four-bit weights with int8 inputs, over vpmaddubsw
 *
 * vpmaddubsw multiplies unsigned with signed bytes and adds two products in 16 bits. Both kinds are
 * exact there: 127 x 127 x 2 fits, and of four bits eight sums of 15 x 127 x 2 do, so that they are
 * widened once in 32 columns. The unsigned side of an int8 weight is its magnitude, and x takes the
 * weight's sign.
 */
#include <string.h>

#include "backend/cpu/cpu_simd_avx2.h"

#include "backend/cpu/cpu_kernel.h"
#include "base/assert.h"

#define INLINE static inline __attribute__((always_inline))

enum {
    MAX_TILE = 3,         /* rows of x, whose 12 sums stay in registers */
    VECTORS = PANEL / 8,  /* of a panel's rows */
    BLOCKS_AT_A_TIME = 4, /* of columns, for all rows of x before the next: they stay near */
    STEP_PAIRS = 2,       /* columns of a step, two by two */
    NARROW_STEPS = 8,     /* of four bits, before sums of 16 bits are widened */
    PREFETCH_BYTES = 2048,
};

/* Some columns of a panel against M rows of x. */
struct block {
    const uint8_t *panel;
    const int8_t *x;
    size_t x_stride;
    uint32_t n_pair;
};

INLINE __m256i broadcast_four(const int8_t *x)
{
    int four;
    memcpy(&four, x, sizeof four);
    return _mm256_set1_epi32(four);
}

/* Neighbouring sums of 16 bits, added. */
INLINE __m256i widen(__m256i pairs)
{
    return _mm256_madd_epi16(pairs, _mm256_set1_epi16(1));
}

/* Four columns of rows 8 half .. and of rows 16 + 8 half .. */
INLINE void load_four(enum pack_kind kind, const uint8_t *group, int half, __m256i w[2])
{
    const __m256i *at = (const __m256i *)(const void *)group;
    __m256i first = _mm256_loadu_si256(at + half);
    if (kind == PACK_U4) {
        const __m256i nibble = _mm256_set1_epi8(15);
        w[0] = _mm256_and_si256(first, nibble);
        w[1] = _mm256_and_si256(_mm256_srli_epi16(first, 4), nibble);
    } else {
        __m256i second = _mm256_loadu_si256(at + 2 + half);
        w[0] = _mm256_unpacklo_epi16(first, second);
        w[1] = _mm256_unpackhi_epi16(first, second);
    }
}

INLINE void step_int8(const int M, const struct block *b, uint32_t pair,
                      __m256i part[MAX_TILE][VECTORS])
{
    const __m256i magnitude = _mm256_set1_epi8(127);
    const uint8_t *group = b->panel + (size_t)pair * pack_group_bytes(PACK_I8);
    _mm_prefetch((const char *)group + PREFETCH_BYTES, _MM_HINT_T0);
    _mm_prefetch((const char *)group + PREFETCH_BYTES + 64, _MM_HINT_T0);
#pragma GCC unroll 2
    for (int half = 0; half < 2; half++) {
        __m256i w[2];
        load_four(PACK_I8, group, half, w);
#pragma GCC unroll 2
        for (int high = 0; high < 2; high++) {
            const __m256i size = _mm256_and_si256(w[high], magnitude);
#pragma GCC unroll 3
            for (int m = 0; m < M; m++) {
                __m256i four = broadcast_four(b->x + (size_t)m * b->x_stride + 2 * pair);
                __m256i *sum = &part[m][2 * high + half];
                __m256i pairs = _mm256_maddubs_epi16(size, _mm256_sign_epi8(four, w[high]));
                *sum = _mm256_add_epi32(*sum, widen(pairs));
            }
        }
    }
}

INLINE void step_u4(const int M, const struct block *b, uint32_t pair,
                    __m256i narrow[MAX_TILE][VECTORS])
{
    const uint8_t *group = b->panel + (size_t)pair * pack_group_bytes(PACK_U4);
    _mm_prefetch((const char *)group + PREFETCH_BYTES, _MM_HINT_T0);
#pragma GCC unroll 2
    for (int half = 0; half < 2; half++) {
        __m256i w[2];
        load_four(PACK_U4, group, half, w);
#pragma GCC unroll 3
        for (int m = 0; m < M; m++) {
            __m256i four = broadcast_four(b->x + (size_t)m * b->x_stride + 2 * pair);
#pragma GCC unroll 2
            for (int high = 0; high < 2; high++) {
                __m256i *sum = &narrow[m][2 * high + half];
                *sum = _mm256_add_epi16(*sum, _mm256_maddubs_epi16(w[high], four));
            }
        }
    }
}

INLINE void sum_int8(const int M, const struct block *b, int32_t *out)
{
    __m256i part[MAX_TILE][VECTORS];
#pragma GCC unroll 12
    for (int i = 0; i < M * VECTORS; i++) part[i / VECTORS][i % VECTORS] = _mm256_setzero_si256();
    for (uint32_t pair = 0; pair < b->n_pair; pair += STEP_PAIRS) step_int8(M, b, pair, part);
#pragma GCC unroll 12
    for (int i = 0; i < M * VECTORS; i++) {
        _mm256_storeu_si256((__m256i *)(void *)(out + 8 * i), part[i / VECTORS][i % VECTORS]);
    }
}

INLINE void sum_u4(const int M, const struct block *b, int32_t *out)
{
    memset(out, 0, (size_t)M * PANEL * sizeof *out);
    for (uint32_t first = 0; first < b->n_pair; first += NARROW_STEPS * STEP_PAIRS) {
        const uint32_t rest = b->n_pair - first, most = NARROW_STEPS * STEP_PAIRS;
        const uint32_t end = first + (rest < most ? rest : most);
        __m256i narrow[MAX_TILE][VECTORS];
#pragma GCC unroll 12
        for (int i = 0; i < M * VECTORS; i++) {
            narrow[i / VECTORS][i % VECTORS] = _mm256_setzero_si256();
        }
        for (uint32_t pair = first; pair < end; pair += STEP_PAIRS) step_u4(M, b, pair, narrow);
#pragma GCC unroll 12
        for (int i = 0; i < M * VECTORS; i++) {
            __m256i *to = (__m256i *)(void *)(out + 8 * i);
            __m256i wide = widen(narrow[i / VECTORS][i % VECTORS]);
            _mm256_storeu_si256(to, _mm256_add_epi32(_mm256_loadu_si256(to), wide));
        }
    }
}

/* Sums of a block, i32 [M][PANEL]. */
typedef void tile_function(const struct block *b, int32_t *out);

#define TILE(M)                                                                                    \
    static void tile_##M##_int8(const struct block *b, int32_t *out)                               \
    {                                                                                              \
        sum_int8(M, b, out);                                                                       \
    }                                                                                              \
    static void tile_##M##_u4(const struct block *b, int32_t *out)                                 \
    {                                                                                              \
        sum_u4(M, b, out);                                                                         \
    }

TILE(1)
TILE(2)
TILE(3)

/* By is-it-PACK_U4 and rows - 1. */
static tile_function *const tiles[2][MAX_TILE] = {{tile_1_int8, tile_2_int8, tile_3_int8},
                                                  {tile_1_u4, tile_2_u4, tile_3_u4}};

/* y[0 .. 32) becomes or gains scale * (the sum, less that of the zeros). */
static void add_block(const struct gemm_call *c, uint32_t panel, uint32_t block, const int32_t *sum,
                      uint32_t t)
{
    const struct packed *w = c->w;
    const float *scale = packed_scales(w, panel, block);
    const uint8_t *zero = packed_zeros(w, panel, block);
    const __m256 x_scale = _mm256_set1_ps(c->x_scale[(size_t)t * w->n_block + block]);
    const __m256i x_sum = _mm256_set1_epi32(c->x_sum[(size_t)t * w->n_block + block]);
    float *y = c->y + t * c->y_stride + (size_t)(panel - c->panel0) * PANEL;
    for (int v = 0; v < VECTORS; v++) {
        __m256i exact = _mm256_loadu_si256((const __m256i *)(const void *)(sum + 8 * v));
        if (w->kind == PACK_U4) {
            __m256i from = _mm256_set1_epi32(U4_ZERO);
            if (zero) {
                from = _mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)(zero + 8 * v)));
            }
            exact = _mm256_sub_epi32(exact, _mm256_mullo_epi32(from, x_sum));
        }
        __m256 s = w->scale_lanes == 1 ? _mm256_set1_ps(*scale) : _mm256_loadu_ps(scale + 8 * v);
        __m256 part = _mm256_mul_ps(_mm256_cvtepi32_ps(exact), _mm256_mul_ps(s, x_scale));
        if (block > 0) part = _mm256_add_ps(_mm256_loadu_ps(y + 8 * v), part);
        _mm256_storeu_ps(y + 8 * v, part);
    }
}

/* Blocks [block0, block1) of a panel against all rows of x, in tiles of nearly equal height.
 * is_row: they are one. */
static void gemm_blocks(const struct gemm_call *c, uint32_t panel, uint32_t block0, uint32_t block1,
                        bool is_row)
{
    const struct packed *w = c->w;
    const uint32_t n_tile = (c->n_token + MAX_TILE - 1) / MAX_TILE;
    int32_t sum[MAX_TILE * PANEL];
    for (uint32_t i = 0, t = 0; i < n_tile; i++) {
        const uint32_t m = (c->n_token - t + n_tile - i - 1) / (n_tile - i);
        tile_function *tile = tiles[w->kind == PACK_U4][m - 1];
        for (uint32_t block = block0; block < block1; block++) {
            const uint32_t pair = packed_block_start(w, block);
            const struct block b = {
                .panel = w->data + (size_t)panel * w->panel_bytes +
                         (size_t)pair * pack_group_bytes(w->kind),
                .x = (const int8_t *)c->x + t * c->x_stride + 2 * (size_t)pair,
                .x_stride = c->x_stride,
                .n_pair = is_row ? w->n_pair : packed_block_pairs(w, block),
            };
            tile(&b, sum);
            for (uint32_t k = 0; k < m; k++) {
                add_block(c, panel, block, sum + (size_t)k * PANEL, t + k);
            }
        }
        t += m;
    }
}

void cpu_gemm_int8_avx2(const struct gemm_call *c)
{
    const struct packed *w = c->w;
    const bool is_row = w->input == INPUT_CODE_INT8_ROW;
    const uint32_t n_block = is_row ? 1 : w->n_block;
    DCHECK(w->kind == PACK_I8 || w->kind == PACK_U4);
    DCHECK(c->panel0 + c->n_panel <= w->n_panel && c->n_token >= 1);
    for (uint32_t i = 0; i < c->n_panel; i++) {
        for (uint32_t block = 0; block < n_block; block += BLOCKS_AT_A_TIME) {
            const uint32_t last = block + BLOCKS_AT_A_TIME;
            gemm_blocks(c, c->panel0 + i, block, last < n_block ? last : n_block, is_row);
        }
    }
}
