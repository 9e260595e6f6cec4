/* cpu_dot_avx512.c - products, attention and key packing over vdpbf16ps
 *
 * vdpbf16ps adds two products of bf16 pairs to each of 16 sums: 32 multiply-adds. A panel's group
 * (one pair of columns of 32 rows) is two vectors of weights; a pair of x is broadcast. The
 * instruction is spelled as assembly because the compiler copies registers around the intrinsic.
 */
#include <math.h>
#include <string.h>

#include "backend/cpu/cpu_simd_avx512.h"

#include "backend/cpu/cpu_kernel.h"
#include "backend/cpu/cpu_simd_decode.h"
#include "backend/cpu/cpu_simd_transpose.h"
#include "base/assert.h"

enum {
    MAX_TILE = 6,         /* rows of x in registers, against two panels */
    BLOCKS_AT_A_TIME = 2, /* of columns, for all rows of x before the next: they stay near */
    /* So much a tile asks for ahead of itself. The rows of x after the first find their panels in
     * cache, and memory would be idle unless the next panels were under way. */
    PREFETCH_BYTES = 4096,
};

INLINE void dot(__m512 *sum, __m512i a, __m512i b)
{
    __asm__("vdpbf16ps %2, %1, %0" : "+v"(*sum) : "v"(a), "v"(b));
}

INLINE __m512i broadcast_pair(const uint16_t *x)
{
    int pair;
    memcpy(&pair, x, sizeof pair);
    return _mm512_set1_epi32(pair);
}

/* ---- one block of columns of P panels against M rows of x ---- */

struct block {
    const uint8_t *panel[2];
    const float *scale[2];
    const uint8_t *zero[2]; /* NULL: all are U4_ZERO */
    uint32_t scale_lanes;
    uint32_t n_pair;
    bool first;
    const uint16_t *x;
    size_t x_stride;
    float *y;
    size_t y_stride;
};

INLINE void add_block(float *y, __m512 part, __m512 scale, bool first)
{
    if (first)
        _mm512_storeu_ps(y, _mm512_mul_ps(part, scale));
    else
        _mm512_storeu_ps(y, _mm512_fmadd_ps(part, scale, _mm512_loadu_ps(y)));
}

/* The sum of a block of a row of x, whose pairs are whole vectors of eight at least. */
INLINE __m512 sum_block(const uint16_t *x, uint32_t n_pair)
{
    const __m512i ones = _mm512_set1_epi16(0x3f80);
    __m512 sum = _mm512_setzero_ps();
    for (uint32_t p = 0; p < n_pair; p += 8) {
        __m256i eight = _mm256_loadu_si256((const __m256i *)(x + 2 * p));
        dot(&sum, _mm512_castsi256_si512(eight), ones);
    }
    return _mm512_set1_ps(_mm512_mask_reduce_add_ps(0xff, sum));
}

/* How far a panel's 16 zeros are from U4_ZERO. */
INLINE __m512 load_zeros(const uint8_t *zero)
{
    __m512i z = _mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)zero));
    return _mm512_cvtepi32_ps(_mm512_sub_epi32(z, _mm512_set1_epi32(U4_ZERO)));
}

/* The dot products of pairs [p, p + N) of a panel or two with M rows of x. */
INLINE void add_pairs(const int N, const int M, const int P, enum pack_kind kind,
                      const struct tables *t, const struct block *b, uint32_t p,
                      __m512 part[MAX_TILE][4])
{
    const uint16_t *x[2] = {b->x + 2 * p, b->x + 3 * b->x_stride + 2 * p};
    const size_t ahead = (size_t)p * pack_group_bytes(kind) + PREFETCH_BYTES;
    _mm_prefetch((const char *)b->panel[0] + ahead, _MM_HINT_T0);
    if (P == 2) _mm_prefetch((const char *)b->panel[1] + ahead, _MM_HINT_T0);
#pragma GCC unroll 2
    for (int i = 0; i < N; i++) {
        __m512i w[4];
        load_pair(kind, t, b->panel[0], p + (uint32_t)i, w);
        if (P == 2) load_pair(kind, t, b->panel[1], p + (uint32_t)i, w + 2);
#pragma GCC unroll 6
        for (int m = 0; m < M; m++) {
            __m512i pair = broadcast_pair(x[m / 3] + (size_t)(m % 3) * b->x_stride + 2 * i);
#pragma GCC unroll 4
            for (int v = 0; v < 2 * P; v++) dot(&part[m][v], w[v], pair);
        }
    }
}

/* Decoding costs nothing beside 4 or more rows of x: the look-ups run where the dot products do
 * not. So a weight is decoded again for every tile, and no decoded copy is kept. */
INLINE void block_tile(const int M, const int P, enum pack_kind kind, const struct block *b)
{
    __m512 part[MAX_TILE][4];
    const struct tables t = load_tables(kind);
#pragma GCC unroll 6
    for (int m = 0; m < M; m++) {
#pragma GCC unroll 4
        for (int v = 0; v < 2 * P; v++) part[m][v] = _mm512_setzero_ps();
    }
    if (pack_is_nibbles(kind)) {
        for (uint32_t p = 0; p < b->n_pair; p += 2) add_pairs(2, M, P, kind, &t, b, p, part);
    } else {
        for (uint32_t p = 0; p < b->n_pair; p++) add_pairs(1, M, P, kind, &t, b, p, part);
    }
    if (kind == PACK_U4 && b->zero[0]) {
#pragma GCC unroll 6
        for (int m = 0; m < M; m++) {
            __m512 sum = sum_block(b->x + (size_t)m * b->x_stride, b->n_pair);
#pragma GCC unroll 4
            for (int v = 0; v < 2 * P; v++)
                part[m][v] =
                    _mm512_fnmadd_ps(load_zeros(b->zero[v / 2] + 16 * (v % 2)), sum, part[m][v]);
        }
    }
#pragma GCC unroll 2
    for (int i = 0; i < P; i++) {
        bool one = b->scale_lanes == 1;
        __m512 s0 = one ? _mm512_set1_ps(*b->scale[i]) : _mm512_loadu_ps(b->scale[i]);
        __m512 s1 = one ? s0 : _mm512_loadu_ps(b->scale[i] + 16);
#pragma GCC unroll 6
        for (int m = 0; m < M; m++) {
            float *y = b->y + (size_t)m * b->y_stride + i * PANEL;
            add_block(y, part[m][2 * i], s0, b->first);
            add_block(y + 16, part[m][2 * i + 1], s1, b->first);
        }
    }
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

TILES(1, PACK_FP8)
TILES(2, PACK_FP8)
TILES(1, PACK_I8)
TILES(2, PACK_I8)
TILES(1, PACK_BF16)
TILES(2, PACK_BF16)
TILES(1, PACK_U4)
TILES(2, PACK_U4)
TILES(1, PACK_E2M1)
TILES(2, PACK_E2M1)

/* By kind of weight, panels - 1 and rows - 1. */
static tile_function *const tiles[PACK_F32][2][MAX_TILE] = {
    [PACK_FP8] = {TILE_ROW(1, PACK_FP8), TILE_ROW(2, PACK_FP8)},
    [PACK_I8] = {TILE_ROW(1, PACK_I8), TILE_ROW(2, PACK_I8)},
    [PACK_BF16] = {TILE_ROW(1, PACK_BF16), TILE_ROW(2, PACK_BF16)},
    [PACK_U4] = {TILE_ROW(1, PACK_U4), TILE_ROW(2, PACK_U4)},
    [PACK_E2M1] = {TILE_ROW(1, PACK_E2M1), TILE_ROW(2, PACK_E2M1)},
};

/* ---- whole products ---- */

/* Blocks [block0, block1) of n_panel (1 or 2) panels from `panel` against all rows of x, in tiles
 * of nearly equal height. */
static void gemm_blocks(const struct gemm_call *c, uint32_t panel, uint32_t n_panel,
                        uint32_t block0, uint32_t block1)
{
    DCHECK(n_panel == 1 || n_panel == 2);
    const struct packed *w = c->w;
    DCHECK(w->kind < PACK_F32 && c->n_token >= 1);
    uint32_t n_tile = (c->n_token + MAX_TILE - 1) / MAX_TILE;
    for (uint32_t i = 0, t = 0; i < n_tile; i++) {
        uint32_t m = (c->n_token - t + n_tile - i - 1) / (n_tile - i);
        tile_function *tile = tiles[w->kind][n_panel - 1][m - 1];
        for (uint32_t block = block0; block < block1; block++) {
            uint32_t pair = packed_block_start(w, block);
            const uint8_t *at =
                w->data + (size_t)panel * w->panel_bytes + (size_t)pair * pack_group_bytes(w->kind);
            struct block b = {
                .panel = {at, at + w->panel_bytes},
                .scale = {packed_scales(w, panel, block),
                          packed_scales(w, panel + n_panel - 1, block)},
                .zero = {packed_zeros(w, panel, block),
                         packed_zeros(w, panel + n_panel - 1, block)},
                .scale_lanes = w->scale_lanes,
                .n_pair = packed_block_pairs(w, block),
                .first = block == 0,
                .x = (const uint16_t *)c->x + t * c->x_stride + 2 * pair,
                .x_stride = c->x_stride,
                .y = c->y + t * c->y_stride + (size_t)(panel - c->panel0) * PANEL,
                .y_stride = c->y_stride,
            };
            tile(&b);
        }
        t += m;
    }
}

/* f32 weights against bf16 x: rare (a weight that is kept in f32), so one row at a time. */
static void gemm_f32_weight(const struct gemm_call *c)
{
    const struct packed *w = c->w;
    DCHECK(w->kind == PACK_F32);
    for (uint32_t i = 0; i < c->n_panel; i++) {
        const float *panel =
            (const float *)(const void *)(w->data + (size_t)(c->panel0 + i) * w->panel_bytes);
        for (uint32_t t = 0; t < c->n_token; t++) {
            const uint16_t *x = (const uint16_t *)c->x + t * c->x_stride;
            float *y = c->y + t * c->y_stride + (size_t)i * PANEL;
            for (uint32_t block = 0; block < w->n_block; block++) {
                const float *scale = packed_scales(w, c->panel0 + i, block);
                uint32_t p = packed_block_start(w, block);
                uint32_t end = p + packed_block_pairs(w, block);
                __m512 part[2] = {_mm512_setzero_ps(), _mm512_setzero_ps()};
                for (; p < end; p++) {
                    __m512 x0, x1;
                    const float *group = panel + (size_t)p * 2 * PANEL;
                    v_split_pair(broadcast_pair(x + 2 * p), &x0, &x1);
                    for (int v = 0; v < 2; v++) {
                        part[v] = v_fma(v_load(group + 16 * v), x0, part[v]);
                        part[v] = v_fma(v_load(group + PANEL + 16 * v), x1, part[v]);
                    }
                }
                for (int v = 0; v < 2; v++) {
                    vf s = w->scale_lanes == 1 ? v_set(*scale) : v_load(scale + 16 * v);
                    add_block(y + 16 * v, part[v], s, block == 0);
                }
            }
        }
    }
}

void cpu_gemm_bf16_avx512(const struct gemm_call *c)
{
    const struct packed *w = c->w;
    DCHECK(c->panel0 + c->n_panel <= w->n_panel);
    if (w->kind == PACK_F32) {
        gemm_f32_weight(c);
        return;
    }
    uint32_t end = c->panel0 + c->n_panel;
    for (uint32_t panel = c->panel0; panel < end; panel += 2) {
        for (uint32_t block = 0; block < w->n_block; block += BLOCKS_AT_A_TIME) {
            uint32_t last = block + BLOCKS_AT_A_TIME;
            gemm_blocks(c, panel, panel + 1 < end ? 2 : 1, block,
                        last < w->n_block ? last : w->n_block);
        }
    }
}

/* ---- attention over one group ---- */

/* score[q][r0 .. r0 + 4) for Q queries */
INLINE void score_tile(const int Q, const struct attend_call *c, uint32_t q0, uint32_t r0)
{
    const uint16_t *query = (const uint16_t *)c->query + q0 * c->query_stride;
    const uint16_t *row[4];
    __m512 part[4][4];
#pragma GCC unroll 4
    for (int r = 0; r < 4; r++) row[r] = c->row[r0 + r];
#pragma GCC unroll 4
    for (int q = 0; q < Q; q++) {
#pragma GCC unroll 4
        for (int r = 0; r < 4; r++) part[q][r] = _mm512_setzero_ps();
    }
    for (uint32_t i = 0; i < c->key_dim; i += 32) {
        __m512i k[4];
#pragma GCC unroll 4
        for (int r = 0; r < 4; r++) k[r] = _mm512_loadu_si512(row[r] + i);
#pragma GCC unroll 4
        for (int q = 0; q < Q; q++) {
            __m512i x = _mm512_loadu_si512(query + q * c->query_stride + i);
#pragma GCC unroll 4
            for (int r = 0; r < 4; r++) dot(&part[q][r], x, k[r]);
        }
    }
#pragma GCC unroll 4
    for (int q = 0; q < Q; q++)
        v_sum4(part[q][0], part[q][1], part[q][2], part[q][3],
               c->score + (size_t)(q0 + q) * GROUP_ROWS + r0);
}

/* out[q][i .. i + 64) = sum over rows of weight * value, two rows at a time, for Q queries.
 * weight: bf16 [n_query][GROUP_ROWS]. Interleaving two rows puts dims 8 l .. 8 l + 3 and
 * 8 l + 4 .. 8 l + 7 of 32 into lane l of the two sums. */
INLINE void value_tile(const int Q, const struct attend_call *c, const uint16_t *weight,
                       uint32_t q0, uint32_t i)
{
    __m512 part[4][4];
    const size_t at = i;
    weight += (size_t)q0 * GROUP_ROWS;
#pragma GCC unroll 4
    for (int q = 0; q < Q; q++) {
#pragma GCC unroll 4
        for (int v = 0; v < 4; v++) part[q][v] = _mm512_setzero_ps();
    }
    for (uint32_t r = 0; r < c->n_row; r += 2) {
        const uint16_t *a = (const uint16_t *)c->row[r] + at;
        const uint16_t *b = (const uint16_t *)c->row[r + 1] + at;
        __m512i a0 = _mm512_loadu_si512(a);
        __m512i a1 = _mm512_loadu_si512(a + 32);
        __m512i b0 = _mm512_loadu_si512(b);
        __m512i b1 = _mm512_loadu_si512(b + 32);
        const __m512i ab[4] = {_mm512_unpacklo_epi16(a0, b0), _mm512_unpackhi_epi16(a0, b0),
                               _mm512_unpacklo_epi16(a1, b1), _mm512_unpackhi_epi16(a1, b1)};
#pragma GCC unroll 4
        for (int q = 0; q < Q; q++) {
            __m512i p = broadcast_pair(weight + q * GROUP_ROWS + r);
#pragma GCC unroll 4
            for (int v = 0; v < 4; v++) dot(&part[q][v], ab[v], p);
        }
    }
    const __m512i first = _mm512_setr_epi32(0, 1, 2, 3, 16, 17, 18, 19, 4, 5, 6, 7, 20, 21, 22, 23);
    const __m512i second =
        _mm512_setr_epi32(8, 9, 10, 11, 24, 25, 26, 27, 12, 13, 14, 15, 28, 29, 30, 31);
#pragma GCC unroll 4
    for (int q = 0; q < Q; q++) {
        float *out = c->out + (q0 + q) * c->out_stride + i;
#pragma GCC unroll 2
        for (int v = 0; v < 4; v += 2, out += 32) {
            _mm512_storeu_ps(out, _mm512_permutex2var_ps(part[q][v], first, part[q][v + 1]));
            _mm512_storeu_ps(out + 16, _mm512_permutex2var_ps(part[q][v], second, part[q][v + 1]));
        }
    }
}

INLINE void score_rows(const int Q, const struct attend_call *c, uint32_t q)
{
    for (uint32_t r = 0; r < c->n_row; r += 4) score_tile(Q, c, q, r);
}

/* Columns of 64 values are outermost: a group's stay in the nearest cache while all queries pass.
 */
void cpu_attend_bf16_avx512(const struct attend_call *c)
{
    DCHECK(c->n_row >= 1 && c->n_row <= GROUP_ROWS && c->n_query <= QUERY_MAX);
    DCHECK(c->key_dim % 32 == 0 && c->value_dim % 64 == 0);
    _Alignas(64) uint16_t weight[QUERY_MAX * GROUP_ROWS];
    uint32_t q = 0;
    for (; q + 4 <= c->n_query; q += 4) score_rows(4, c, q);
    for (; q + 2 <= c->n_query; q += 2) score_rows(2, c, q);
    for (; q < c->n_query; q++) score_rows(1, c, q);
    for (q = 0; q < c->n_query; q++) {
        const float *score = c->score + (size_t)q * GROUP_ROWS;
        cpu_kernels_avx512.softmax_group(c, q);
        for (uint32_t r = 0; r < GROUP_ROWS; r += 16)
            v_store_bf16(weight + (size_t)q * GROUP_ROWS + r, v_load(score + r));
    }
    for (uint32_t i = 0; i < c->value_dim; i += 64) {
        for (q = 0; q + 4 <= c->n_query; q += 4) value_tile(4, c, weight, q, i);
        for (; q + 2 <= c->n_query; q += 2) value_tile(2, c, weight, q, i);
        for (; q < c->n_query; q++) value_tile(1, c, weight, q, i);
    }
}

/* ---- codes to panels ---- */

void cpu_pack_codes_avx512(const uint8_t *rows, size_t stride, uint32_t n_row, uint8_t *panel)
{
    DCHECK(n_row <= PANEL);
    _Alignas(64) uint16_t even_words[PANEL], odd_words[PANEL];
    for (uint32_t r = 0; r < PANEL; r++) {
        /* word index into the two vectors of 16 rows; each row's 32 bits are two pairs */
        uint16_t at = (uint16_t)(r < 16 ? 2 * r : 32 + 2 * (r - 16));
        even_words[byte_place(r)] = at;
        odd_words[byte_place(r)] = (uint16_t)(at + 1);
    }
    const __m512i even = _mm512_load_si512(even_words);
    const __m512i odd = _mm512_load_si512(odd_words);
    for (uint32_t half = 0; half < 2; half++, rows += 64) {
        __m512i a[16], b[16];
        load_columns(rows, stride, n_row, a);
        load_columns(rows + 16 * stride, stride, n_row > 16 ? n_row - 16 : 0, b);
        for (uint32_t i = 0; i < 16; i++, panel += 128) {
            _mm512_storeu_si512(panel, _mm512_permutex2var_epi16(a[i], even, b[i]));
            _mm512_storeu_si512(panel + 64, _mm512_permutex2var_epi16(a[i], odd, b[i]));
        }
    }
}

void cpu_pack_halves_avx512(const uint8_t *rows, size_t stride, uint32_t n_row, uint8_t *panel)
{
    DCHECK(n_row <= PANEL);
    for (uint32_t part = 0; part < 4; part++, rows += 64) {
        __m512i a[16], b[16];
        load_columns(rows, stride, n_row, a);
        load_columns(rows + 16 * stride, stride, n_row > 16 ? n_row - 16 : 0, b);
        for (uint32_t i = 0; i < 16; i++, panel += 128) {
            _mm512_storeu_si512(panel, a[i]);
            _mm512_storeu_si512(panel + 64, b[i]);
        }
    }
}
