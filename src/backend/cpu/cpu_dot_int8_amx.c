/* cpu_dot_int8_amx.c - products of int8 and four-bit weights with many rows of int8, over AMX
 *
 * A tile instruction multiplies 16 rows of x by 16 rows of a weight over 64 columns: 16384
 * multiply-adds, all exact, so sums are those of vpdpbusd and a row's bits do not depend on which
 * of the two computed it. Few rows leave tiles empty: cpu_dot_int8_avx512.c takes them.
 *
 * Weights are unpacked, some columns of a panel at a time, into bytes as a tile has them: 16 lines
 * of four columns of 16 rows. All rows of x pass before the next columns. int8 codes become signed
 * bytes; codes of four bits stay unsigned, and what they count from is taken off a block's sum.
 */
#include <string.h>

#include "backend/cpu/cpu_simd_avx512.h"

#include "backend/cpu/cpu_kernel.h"
#include "backend/cpu/cpu_tile.h"
#include "base/assert.h"

#define INLINE static inline __attribute__((always_inline))

enum {
    STEP_PAIRS = 32,   /* columns, two by two, of a tile instruction */
    STEP_BYTES = 2048, /* of a panel's columns, unpacked: two tiles */
    CHUNK_STEPS = 8,   /* unpacked at a time */
    MAX_TILES = 6,     /* of rows of x: what passes by one unpacked chunk */
    LEAST_ROWS = 16,   /* fewer gain little in cache, and lose where weights come from memory */
};

static_assert(CHUNK_STEPS * STEP_BYTES <= CHUNK_BYTES, "a chunk fits the scratch of a call");
static_assert(CHUNK_STEPS * STEP_PAIRS % PAIRS_PER_BLOCK == 0, "a chunk is whole blocks");

/* Tiles: 0 .. 3 sums, 4 and 5 rows of x, 6 and 7 a panel's rows 0 .. 15 and 16 .. 31. */
#define TILE_DOT(kind, sum, x, weight)                                                             \
    do {                                                                                           \
        if ((kind) == PACK_U4)                                                                     \
            TILE_OP("tdpbsud", sum, x, weight);                                                    \
        else                                                                                       \
            TILE_OP("tdpbssd", sum, x, weight);                                                    \
    } while (0)

/* ---- unpacking ---- */

/* Sign and magnitude to a signed byte. */
INLINE __m512i signed_byte(__m512i code)
{
    const __m512i sign = _mm512_set1_epi8((char)0x80);
    return _mm512_mask_sub_epi8(code, _mm512_movepi8_mask(code), sign, code);
}

/* 64 columns of a panel: the tile of rows 0 .. 15, then that of 16 .. 31. */
INLINE void unpack_step(enum pack_kind kind, const uint8_t *code, uint8_t *to)
{
    const __m512i nibble = _mm512_set1_epi8(15);
    for (int i = 0; i < TILE; i++, to += 64) {
        if (kind == PACK_U4) {
            __m512i c = _mm512_loadu_si512(code + 64 * i);
            _mm512_store_si512(to, _mm512_and_si512(c, nibble));
            _mm512_store_si512(to + STEP_BYTES / 2,
                               _mm512_and_si512(_mm512_srli_epi16(c, 4), nibble));
        } else {
            __m512i first = signed_byte(_mm512_loadu_si512(code + 128 * i));
            __m512i second = signed_byte(_mm512_loadu_si512(code + 128 * i + 64));
            _mm512_store_si512(to, _mm512_unpacklo_epi16(first, second));
            _mm512_store_si512(to + STEP_BYTES / 2, _mm512_unpackhi_epi16(first, second));
        }
    }
}

/* ---- some columns of a panel against one or two tiles of x ---- */

struct piece {
    const uint8_t *weight; /* unpacked */
    const uint8_t *ahead;  /* codes to ask memory for, or NULL */
    uint32_t n_step;
    const int8_t *x[2];
    size_t x_stride;
    int32_t *sum[2]; /* [TILE][PANEL] */
    bool first;      /* sums start from zero */
};

INLINE void add_piece(enum pack_kind kind, const int N, const struct piece *p)
{
    const size_t line = PANEL * sizeof(int32_t), step_codes = STEP_PAIRS * pack_group_bytes(kind);
    TILE_ZERO(0);
    TILE_ZERO(1);
    TILE_ZERO(2);
    TILE_ZERO(3);
    if (!p->first) {
        TILE_LOAD(0, p->sum[0], line);
        TILE_LOAD(1, p->sum[0] + TILE, line);
        if (N == 2) TILE_LOAD(2, p->sum[1], line);
        if (N == 2) TILE_LOAD(3, p->sum[1] + TILE, line);
    }
    for (uint32_t s = 0; s < p->n_step; s++) {
        const uint8_t *weight = p->weight + (size_t)s * STEP_BYTES;
        for (size_t i = 0; p->ahead && i < step_codes; i += 64)
            _mm_prefetch((const char *)p->ahead + s * step_codes + i, _MM_HINT_T1);
        TILE_LOAD(6, weight, (size_t)64);
        TILE_LOAD(7, weight + STEP_BYTES / 2, (size_t)64);
        TILE_LOAD(4, p->x[0] + 64 * (size_t)s, p->x_stride);
        TILE_DOT(kind, 0, 4, 6);
        TILE_DOT(kind, 1, 4, 7);
        if (N == 1) continue;
        TILE_LOAD(5, p->x[1] + 64 * (size_t)s, p->x_stride);
        TILE_DOT(kind, 2, 5, 6);
        TILE_DOT(kind, 3, 5, 7);
    }
    TILE_STORE(0, p->sum[0], line);
    TILE_STORE(1, p->sum[0] + TILE, line);
    if (N == 2) TILE_STORE(2, p->sum[1], line);
    if (N == 2) TILE_STORE(3, p->sum[1] + TILE, line);
}

/* ---- a panel against all rows of x ---- */

/* Columns from `pair` on, unpacked in c->decoded, of a panel. */
struct chunk {
    uint32_t panel;
    uint32_t pair;
    uint32_t n_pair;
    bool is_row; /* all columns are one block */
};

static uint32_t min_pairs(uint32_t a, uint32_t b)
{
    return a < b ? a : b;
}

/* The sums of a tile, scaled, to those rows of y that are not the tile's before. Arithmetic and
 * order are those of cpu_dot_int8_avx512.c. */
static void finish_tile(const struct gemm_call *c, const struct chunk *k, uint32_t block,
                        const struct tile_rows *r, uint32_t tile, const int32_t *sum)
{
    const struct packed *w = c->w;
    const float *scales = packed_scales(w, k->panel, block);
    const uint8_t *zeros = packed_zeros(w, k->panel, block);
    const uint32_t t0 = tile_first_row(r, tile), n_sum = k->is_row ? w->n_block : 1;
    __m512 scale[2];
    __m512i zero[2];
    for (int v = 0; v < 2; v++) {
        scale[v] = w->scale_lanes == 1 ? _mm512_set1_ps(*scales) : _mm512_loadu_ps(scales + 16 * v);
        zero[v] = zeros ? _mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)(zeros + 16 * v)))
                        : _mm512_set1_epi32(w->kind == PACK_U4 ? U4_ZERO : 0);
    }
    for (uint32_t t = tile * r->height; t < t0 + r->height; t++) {
        const size_t at = (size_t)t * w->n_block + block;
        const int32_t *line = sum + (size_t)(t - t0) * PANEL;
        float *y = c->y + t * c->y_stride + (size_t)(k->panel - c->panel0) * PANEL;
        int32_t of_x = 0;
        for (uint32_t i = 0; i < n_sum; i++) of_x += c->x_sum[at + i];
        const __m512 x_scale = _mm512_set1_ps(c->x_scale[at]);
        for (int v = 0; v < 2; v++, y += 16) {
            __m512i of_zeros = _mm512_mullo_epi32(zero[v], _mm512_set1_epi32(of_x));
            __m512i part = _mm512_sub_epi32(_mm512_loadu_si512(line + 16 * v), of_zeros);
            __m512 exact = _mm512_cvtepi32_ps(part), s = _mm512_mul_ps(scale[v], x_scale);
            if (block == 0)
                _mm512_storeu_ps(y, _mm512_mul_ps(exact, s));
            else
                _mm512_storeu_ps(y, _mm512_fmadd_ps(exact, s, _mm512_loadu_ps(y)));
        }
    }
}

/* A chunk against tiles [tile, tile + N) of x, block by block. */
INLINE void run_tiles(enum pack_kind kind, const int N, const struct gemm_call *c,
                      const struct chunk *k, const struct tile_rows *r, uint32_t tile,
                      int32_t sum[MAX_TILES][TILE * PANEL])
{
    const struct packed *w = c->w;
    const uint32_t size = k->is_row ? k->n_pair : min_pairs(w->block_pairs, k->n_pair);
    const uint8_t *end = w->data + (size_t)k->panel * w->panel_bytes +
                         (size_t)(k->pair + k->n_pair) * pack_group_bytes(kind);
    for (uint32_t done = 0; done < k->n_pair; done += size) {
        const uint32_t pair = k->pair + done, block = k->is_row ? 0 : pair / w->block_pairs;
        struct piece p = {
            .weight = (const uint8_t *)c->decoded + (size_t)(done / STEP_PAIRS) * STEP_BYTES,
            .ahead = tile == 0 ? end + (size_t)done * pack_group_bytes(kind) : NULL,
            .n_step = size / STEP_PAIRS,
            .x_stride = c->x_stride,
            .first = !k->is_row || pair == 0,
        };
        for (uint32_t i = 0; i < (uint32_t)N; i++) {
            p.x[i] =
                (const int8_t *)c->x + tile_first_row(r, tile + i) * c->x_stride + 2 * (size_t)pair;
            p.sum[i] = sum[tile + i];
        }
        add_piece(kind, N, &p);
        if (k->is_row && k->pair + k->n_pair < w->n_pair) continue;
        for (uint32_t i = 0; i < (uint32_t)N; i++)
            finish_tile(c, k, block, r, tile + i, sum[tile + i]);
    }
}

INLINE void run_panel(enum pack_kind kind, const struct gemm_call *c, uint32_t panel,
                      const struct tile_rows *r)
{
    _Alignas(64) int32_t sum[MAX_TILES][TILE * PANEL];
    const struct packed *w = c->w;
    struct chunk k = {.panel = panel, .is_row = w->input == INPUT_CODE_INT8_ROW};
    for (; k.pair < w->n_pair; k.pair += k.n_pair) {
        const uint8_t *code =
            w->data + (size_t)panel * w->panel_bytes + (size_t)k.pair * pack_group_bytes(kind);
        k.n_pair = min_pairs(CHUNK_STEPS * STEP_PAIRS, w->n_pair - k.pair);
        for (uint32_t s = 0; s < k.n_pair / STEP_PAIRS; s++)
            unpack_step(kind, code + (size_t)s * STEP_PAIRS * pack_group_bytes(kind),
                        (uint8_t *)c->decoded + (size_t)s * STEP_BYTES);
        uint32_t tile = 0;
        for (; tile + 2 <= r->n_tile; tile += 2) run_tiles(kind, 2, c, &k, r, tile, sum);
        if (tile < r->n_tile) run_tiles(kind, 1, c, &k, r, tile, sum);
    }
}

static void run_i8(const struct gemm_call *c, const struct tile_rows *r)
{
    for (uint32_t i = 0; i < c->n_panel; i++) run_panel(PACK_I8, c, c->panel0 + i, r);
}

static void run_u4(const struct gemm_call *c, const struct tile_rows *r)
{
    for (uint32_t i = 0; i < c->n_panel; i++) run_panel(PACK_U4, c, c->panel0 + i, r);
}

/* Blocks are whole steps, and begin where a chunk does. */
static bool fits_tiles(const struct gemm_call *c)
{
    const struct packed *w = c->w;
    DCHECK(w->n_pair >= 1);
    return c->n_token >= LEAST_ROWS && w->n_pair % STEP_PAIRS == 0 &&
           w->block_pairs % STEP_PAIRS == 0 && (w->first_pair == w->block_pairs || w->n_block == 1);
}

void cpu_gemm_int8_amx(const struct gemm_call *c)
{
    DCHECK(c->w->kind == PACK_I8 || c->w->kind == PACK_U4);
    DCHECK(c->panel0 + c->n_panel <= c->w->n_panel && c->n_token >= 1);
    if (!fits_tiles(c)) {
        cpu_gemm_int8_avx512(c);
        return;
    }
    struct gemm_call part = *c;
    for (uint32_t t = 0; t < c->n_token; t += part.n_token) {
        part.n_token = c->n_token - t;
        if (part.n_token > MAX_TILES * TILE) part.n_token = MAX_TILES * TILE;
        const struct tile_rows r = tile_rows_of(part.n_token);
        part.x = (const int8_t *)c->x + t * c->x_stride;
        part.x_scale = c->x_scale + (size_t)t * c->w->n_block;
        part.x_sum = c->x_sum + (size_t)t * c->w->n_block;
        part.y = c->y + t * c->y_stride;
        tile_configure(r.height);
        if (c->w->kind == PACK_U4)
            run_u4(&part, &r);
        else
            run_i8(&part, &r);
        tile_release();
    }
}
