/* cpu_dot_amx.c - products with bf16 inputs over AMX
 *
 * A tile instruction multiplies 16 rows of x by 16 rows of a weight over 32 columns, a step. Order
 * of sums, for every number of rows: from the first of the columns that share a scale, step by
 * step. Of a step the even columns are added up from zero, each by one fused multiply-add, the odd
 * ones likewise, then both to each other and then to the sum. Rounding is to nearest even, and
 * denormals are zeros wherever they come up. vdpbf16ps has another order: one row and two go
 * over vectors that add as tiles do, and what is less than a tile has tiles of as many lines.
 *
 * Codes are decoded into what PACK_BF16 is, a few steps ahead of the tiles that use them: look-ups
 * and tiles run side by side then, and no tile is loaded from what has just been stored.
 */
#include <string.h>

#include "backend/cpu/cpu_simd_avx512.h"

#include "backend/cpu/cpu_kernel.h"
#include "backend/cpu/cpu_simd_decode.h"
#include "backend/cpu/cpu_tile.h"
#include "base/assert.h"

enum {
    STEP_PAIRS = 16,   /* columns, two by two, of a tile instruction */
    STEP_BYTES = 2048, /* of a panel's step in bf16: two tiles, line by line in turn */
    /* Steps that are decoded before the one that is multiplied, and the places for what is decoded,
     * in turn: few, for the nearest cache may be shared with another processor. */
    LEAD = 2,
    FEW_PLACES = 4,
    PLACES = 8,
    MAX_TILES = 6,             /* of rows of x at a time */
    PREFETCH_BYTES = 8192,     /* so far ahead the second cache is asked for weights */
    ROW_PREFETCH_BYTES = 4096, /* and the first, for one row */
};

enum { DENORMALS_ARE_ZERO = 0x8040 /* results and operands */ };

static_assert(PLACES * STEP_BYTES <= CHUNK_BYTES, "they fit the scratch of a call");

/* ---- where in the weight ---- */

/* The next columns of some panels, panel by panel. A run is what shares a scale. */
struct place {
    uint32_t panel; /* of the call's */
    uint32_t run;
    uint32_t pair;
};

static bool is_one_run(const struct packed *w)
{
    return w->n_scale == 1;
}

static uint32_t run_end(const struct packed *w, uint32_t run)
{
    return is_one_run(w) ? w->n_pair : packed_block_start(w, run) + packed_block_pairs(w, run);
}

static void advance(const struct packed *w, struct place *p, uint32_t n_pair)
{
    p->pair += n_pair;
    if (p->pair == run_end(w, p->run)) p->run++;
    if (p->pair == w->n_pair) *p = (struct place){.panel = p->panel + 1};
}

static const uint8_t *codes_at(const struct gemm_call *c, const struct place *p)
{
    return c->w->data + (size_t)(c->panel0 + p->panel) * c->w->panel_bytes +
           (size_t)p->pair * pack_group_bytes(c->w->kind);
}

static uint32_t min_pairs(uint32_t a, uint32_t b)
{
    return a < b ? a : b;
}

/* ---- decoding ---- */

/* The bf16 values of -16 .. 15: of codes of U4 less their zeros. */
static const uint16_t small_values[32] = {
    0xc180, 0xc170, 0xc160, 0xc150, 0xc140, 0xc130, 0xc120, 0xc110, 0xc100, 0xc0e0, 0xc0c0,
    0xc0a0, 0xc080, 0xc040, 0xc000, 0xbf80, 0x0000, 0x3f80, 0x4000, 0x4040, 0x4080, 0x40a0,
    0x40c0, 0x40e0, 0x4100, 0x4110, 0x4120, 0x4130, 0x4140, 0x4150, 0x4160, 0x4170};

INLINE struct tables load_values(enum pack_kind kind)
{
    if (kind != PACK_U4) return load_tables(kind);
    return (struct tables){.values = _mm512_loadu_si512(small_values)};
}

/* Where the zeros of 16 rows stand among the small values, for both columns of a pair. */
INLINE __m512i place_of_zeros(const uint8_t *zero)
{
    __m512i z = zero ? _mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)zero))
                     : _mm512_set1_epi32(U4_ZERO);
    return _mm512_sub_epi16(_mm512_set1_epi16(16), _mm512_or_si512(z, _mm512_slli_epi32(z, 16)));
}

INLINE void load_small_pair(const struct tables *t, const uint8_t *codes, const uint8_t *zero,
                            uint32_t p, __m512i w[2])
{
    const __m512i low = _mm512_set1_epi16(15);
    __m512i code = _mm512_loadu_si512(codes + (size_t)(p / 2) * 64);
    if (p % 2) code = _mm512_srli_epi16(code, 8);
    for (int v = 0; v < 2; v++, code = _mm512_srli_epi16(code, 4)) {
        __m512i from = place_of_zeros(zero ? zero + 16 * v : NULL);
        __m512i at = _mm512_add_epi16(_mm512_and_si512(code, low), from);
        w[v] = _mm512_permutexvar_epi16(at, t->values);
    }
}

/* Four pairs of e4m3 codes, if all of them are normal: half of what the look-ups cost that hold
 * for all codes. The low byte of a value is the low half of its code, shifted; the high one depends
 * on the high half alone. */
INLINE bool decode_normal(const uint8_t *codes, uint8_t *to)
{
    const __m512i high = _mm512_broadcast_i32x4(
        _mm_setr_epi8(0x3c, 0x3d, 0x3e, 0x3f, 0x40, 0x41, 0x42, 0x43, (char)0xbc, (char)0xbd,
                      (char)0xbe, (char)0xbf, (char)0xc0, (char)0xc1, (char)0xc2, (char)0xc3));
    const __m512i half = _mm512_set1_epi8((char)0xf0), two = _mm512_set1_epi8(2);
    __m512i least = _mm512_set1_epi8((char)0xff);
#pragma GCC unroll 4
    for (uint32_t i = 0; i < 4; i++, to += 128) {
        __m512i c = _mm512_loadu_si512(codes + 64 * (size_t)i);
        __m512i h = _mm512_permutexvar_epi8(_mm512_srli_epi16(c, 4), high);
        __m512i l = _mm512_and_si512(_mm512_slli_epi16(c, 4), half);
        /* 0 of NaN, 2 .. 16 of those below the normal ones */
        least = _mm512_min_epu8(least, _mm512_add_epi8(_mm512_add_epi8(c, c), two));
        _mm512_store_si512(to, _mm512_unpacklo_epi8(l, h));
        _mm512_store_si512(to + 64, _mm512_unpackhi_epi8(l, h));
    }
    return _mm512_cmple_epu8_mask(least, _mm512_set1_epi8(16)) == 0;
}

INLINE void decode_pairs(enum pack_kind kind, const struct tables *t, const uint8_t *codes,
                         const uint8_t *zero, uint32_t n, uint8_t *to)
{
    for (uint32_t p = 0; p < n; p++, to += 128) {
        __m512i w[2];
        if (kind == PACK_U4)
            load_small_pair(t, codes, zero, p, w);
        else
            load_pair(kind, t, codes, p, w);
        _mm512_store_si512(to, w[0]);
        _mm512_store_si512(to + 64, w[1]);
    }
}

/* What is decoded next, and how many steps have been. */
struct decoding {
    struct place at;
    uint32_t n_step;
    uint8_t *places;
    uint32_t n_place; /* a power of two */
};

/* The next step, if there is one, as two tiles; what is not there is zero. */
INLINE void decode_step(enum pack_kind kind, const struct tables *t, const struct gemm_call *c,
                        struct decoding *d)
{
    const struct packed *w = c->w;
    if (d->at.panel == c->n_panel) return;
    const uint32_t n = min_pairs(STEP_PAIRS, run_end(w, d->at.run) - d->at.pair);
    const uint8_t *codes = codes_at(c, &d->at);
    const uint8_t *zero = w->zero ? packed_zeros(w, c->panel0 + d->at.panel, d->at.run) : NULL;
    uint8_t *to = d->places + (size_t)(d->n_step++ & (d->n_place - 1)) * STEP_BYTES;
    advance(w, &d->at, n);
    if (n < STEP_PAIRS) memset(to, 0, STEP_BYTES);
    for (uint32_t p = 0; p < n; p += 4) {
        const uint8_t *from = codes + (size_t)p * pack_group_bytes(kind);
        const uint32_t four = min_pairs(4, n - p);
        for (size_t i = 0; i < 4 * pack_group_bytes(kind); i += 64)
            _mm_prefetch((const char *)from + PREFETCH_BYTES + i, _MM_HINT_T1);
        if (kind != PACK_FP8 || four < 4 || !decode_normal(from, to + 128 * p))
            decode_pairs(kind, t, from, zero, four, to + 128 * p);
    }
}

/* ---- some steps of a run against one or two tiles of x ---- */

/* Tiles: 0 .. 3 sums, 4 and 5 rows of x, 6 and 7 a panel's rows 0 .. 15 and 16 .. 31. */
struct pass {
    const uint16_t *x[2];
    size_t x_stride; /* bytes */
    uint32_t n_pair;
    uint32_t height;
    const uint8_t *weight; /* of PACK_BF16, where it is; others: NULL */
    uint32_t first_step;   /* of those decoded */
    bool is_first;         /* of its run: sums start from zero */
    bool is_head;          /* the first pass of a piece: it asks for weights ahead, and decodes */
    float *sum[2];         /* [TILE][PANEL] */
};

INLINE void add_step(const int N, const uint8_t *weight, const void *x0, const void *x1,
                     size_t x_stride)
{
    const size_t line = 128;
    TILE_LOAD(4, x0, x_stride);
    TILE_LOAD(6, weight, line);
    TILE_LOAD(7, weight + 64, line);
    TILE_OP("tdpbf16ps", 0, 4, 6);
    TILE_OP("tdpbf16ps", 1, 4, 7);
    if (N == 1) return;
    TILE_LOAD(5, x1, x_stride);
    TILE_OP("tdpbf16ps", 2, 5, 6);
    TILE_OP("tdpbf16ps", 3, 5, 7);
}

/* The last step where it is short: what stands behind its columns is not looked at. */
INLINE void add_short_step(const int N, const struct pass *p, const uint8_t *weight, uint32_t step)
{
    _Alignas(64) uint16_t x[2][TILE][2 * STEP_PAIRS];
    _Alignas(64) uint8_t stored[STEP_BYTES];
    const size_t n = p->n_pair % STEP_PAIRS;
    memset(x, 0, sizeof x);
    for (int i = 0; i < N; i++) {
        const uint8_t *from = (const uint8_t *)p->x[i] + (size_t)step * 64;
        for (uint32_t t = 0; t < p->height; t++, from += p->x_stride) memcpy(x[i][t], from, 4 * n);
    }
    if (p->weight) {
        memset(stored, 0, sizeof stored);
        memcpy(stored, weight, 128 * n);
        weight = stored;
    }
    add_step(N, weight, x[0], x[1], sizeof x[0][0]);
}

INLINE void begin_sums(const int N, const struct pass *p)
{
    const size_t line = PANEL * sizeof(float);
    TILE_ZERO(0);
    TILE_ZERO(1);
    TILE_ZERO(2);
    TILE_ZERO(3);
    if (p->is_first) return;
    TILE_LOAD(0, p->sum[0], line);
    TILE_LOAD(1, p->sum[0] + TILE, line);
    if (N == 2) TILE_LOAD(2, p->sum[1], line);
    if (N == 2) TILE_LOAD(3, p->sum[1] + TILE, line);
}

INLINE void run_pass(enum pack_kind kind, const int N, const struct gemm_call *c,
                     const struct tables *t, const struct pass *p, struct decoding *d)
{
    const size_t line = PANEL * sizeof(float);
    const uint32_t n_step = (p->n_pair + STEP_PAIRS - 1) / STEP_PAIRS;
    begin_sums(N, p);
    for (uint32_t s = 0; s < n_step; s++) {
        const size_t column = (size_t)s * 2 * STEP_PAIRS;
        const uint8_t *weight =
            kind == PACK_BF16
                ? p->weight + (size_t)s * STEP_BYTES
                : d->places + (size_t)((p->first_step + s) & (d->n_place - 1)) * STEP_BYTES;
        for (int i = 0; kind == PACK_BF16 && p->is_head && i < STEP_BYTES; i += 64)
            _mm_prefetch((const char *)weight + PREFETCH_BYTES + i, _MM_HINT_T1);
        if ((s + 1) * STEP_PAIRS <= p->n_pair)
            add_step(N, weight, p->x[0] + column, p->x[1] + column, p->x_stride);
        else
            add_short_step(N, p, weight, s);
        if (kind != PACK_BF16 && p->is_head) decode_step(kind, t, c, d);
    }
    TILE_STORE(0, p->sum[0], line);
    TILE_STORE(1, p->sum[0] + TILE, line);
    if (N == 2) TILE_STORE(2, p->sum[1], line);
    if (N == 2) TILE_STORE(3, p->sum[1] + TILE, line);
}

/* ---- all rows of x ---- */

/* y of row t gains what a run of a panel adds up to, scaled. */
INLINE void add_scaled(const struct gemm_call *c, const struct place *p, uint32_t t, __m512 a,
                       __m512 b)
{
    const struct packed *w = c->w;
    const float *scales = packed_scales(w, c->panel0 + p->panel, p->run);
    const bool is_one = w->scale_lanes == 1;
    const __m512 s0 = is_one ? _mm512_set1_ps(*scales) : _mm512_loadu_ps(scales);
    const __m512 s1 = is_one ? s0 : _mm512_loadu_ps(scales + TILE);
    float *y = c->y + t * c->y_stride + (size_t)p->panel * PANEL;
    if (p->run == 0) {
        _mm512_storeu_ps(y, _mm512_mul_ps(a, s0));
        _mm512_storeu_ps(y + TILE, _mm512_mul_ps(b, s1));
    } else {
        _mm512_storeu_ps(y, _mm512_fmadd_ps(a, s0, _mm512_loadu_ps(y)));
        _mm512_storeu_ps(y + TILE, _mm512_fmadd_ps(b, s1, _mm512_loadu_ps(y + TILE)));
    }
}

/* The sums of a run to those rows of y that are not the tile's before. */
static void finish_tile(const struct gemm_call *c, const struct place *p, const struct tile_rows *r,
                        uint32_t tile, const float *sum)
{
    const uint32_t t0 = tile_first_row(r, tile);
    for (uint32_t t = tile * r->height; t < t0 + r->height; t++) {
        const float *line = sum + (size_t)(t - t0) * PANEL;
        add_scaled(c, p, t, _mm512_loadu_ps(line), _mm512_loadu_ps(line + TILE));
    }
}

/* All panels, in pieces of a run that all rows of x pass before the next: as many steps as there
 * are places for, or the whole run where there is one pass. */
INLINE void run_panels(enum pack_kind kind, const struct gemm_call *c, const struct tile_rows *r)
{
    _Alignas(64) float sum[MAX_TILES][TILE * PANEL];
    const struct packed *w = c->w;
    const bool is_one_pass = r->n_tile <= 2;
    const uint32_t most = is_one_pass ? UINT32_MAX : (PLACES - LEAD) * STEP_PAIRS;
    const struct tables t = load_values(kind);
    struct decoding d = {.places = c->decoded, .n_place = is_one_pass ? FEW_PLACES : PLACES};
    struct place at = {0};
    struct pass p = {.x_stride = c->x_stride * sizeof(uint16_t), .height = r->height};
    for (int i = 0; kind != PACK_BF16 && i < LEAD; i++) decode_step(kind, &t, c, &d);
    while (at.panel < c->n_panel) {
        const uint32_t left = run_end(w, at.run) - at.pair;
        const uint16_t *x = (const uint16_t *)c->x + 2 * (size_t)at.pair;
        p.n_pair = min_pairs(left, most);
        p.is_first = at.pair == (is_one_run(w) ? 0 : packed_block_start(w, at.run));
        p.weight = kind == PACK_BF16 ? codes_at(c, &at) : NULL;
        for (uint32_t tile = 0; tile < r->n_tile; tile += 2) {
            const uint32_t last = tile + 1 < r->n_tile ? tile + 1 : tile;
            p.x[0] = x + tile_first_row(r, tile) * c->x_stride;
            p.x[1] = x + tile_first_row(r, last) * c->x_stride;
            p.sum[0] = sum[tile];
            p.sum[1] = sum[last];
            p.is_head = tile == 0;
            if (last > tile)
                run_pass(kind, 2, c, &t, &p, &d);
            else
                run_pass(kind, 1, c, &t, &p, &d);
            for (uint32_t i = tile; i <= last && p.n_pair == left; i++)
                finish_tile(c, &at, r, i, sum[i]);
        }
        p.first_step += (p.n_pair + STEP_PAIRS - 1) / STEP_PAIRS;
        advance(w, &at, p.n_pair);
    }
}

/* ---- one row or two ---- */

/* A tile would be all but empty, and what it costs to fill it with a weight is not hidden behind
 * memory. The same sums by vectors, whose weights become f32: P panels against M rows, of which
 * one is 1. */

/* A run of a panel. */
struct codes {
    const uint8_t *at;
    __m512 values; /* of codes of four bits */
    __m512 zero[2];
    bool has_zeros;
};

INLINE struct codes codes_of(enum pack_kind kind, const struct gemm_call *c, const struct place *p)
{
    struct codes d = {.at = codes_at(c, p), .has_zeros = kind == PACK_U4 && c->w->zero};
    if (!pack_is_nibbles(kind)) return d;
    const __m512i most = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    d.values =
        _mm512_cvtepi32_ps(_mm512_sub_epi32(most, _mm512_set1_epi32(d.has_zeros ? 0 : U4_ZERO)));
    if (kind == PACK_E2M1) {
        const __m512i halves =
            _mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)(const void *)e2m1_values));
        d.values = _mm512_castsi512_ps(_mm512_slli_epi32(halves, 16));
    }
    for (int v = 0; v < 2 && d.has_zeros; v++) {
        const uint8_t *zero = packed_zeros(c->w, c->panel0 + p->panel, p->run) + 16 * v;
        d.zero[v] = _mm512_cvtepi32_ps(
            _mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)(const void *)zero)));
    }
    return d;
}

/* The even and the odd column of pair p, rows 16 v .. 16 v + 15 in vector v. */
INLINE void load_columns(enum pack_kind kind, const struct tables *t, const struct codes *d,
                         uint32_t p, __m512 even[2], __m512 odd[2])
{
    const __m512i odd_half = _mm512_set1_epi32((int)0xffff0000);
    __m512i w[2];
    if (pack_is_nibbles(kind)) {
        /* the low four bits of each word of 32 are looked up */
        __m512i code = _mm512_loadu_si512(d->at + 64 * (size_t)(p / 2));
        if (p % 2) code = _mm512_srli_epi32(code, 8);
        for (int v = 0; v < 2; v++) {
            even[v] = _mm512_permutexvar_ps(_mm512_srli_epi32(code, 4 * v), d->values);
            odd[v] = _mm512_permutexvar_ps(_mm512_srli_epi32(code, 16 + 4 * v), d->values);
            if (!d->has_zeros) continue;
            even[v] = _mm512_sub_ps(even[v], d->zero[v]);
            odd[v] = _mm512_sub_ps(odd[v], d->zero[v]);
        }
        return;
    }
    load_pair(kind, t, d->at, p, w);
    for (int v = 0; v < 2; v++) {
        even[v] = _mm512_castsi512_ps(_mm512_slli_epi32(w[v], 16));
        odd[v] = _mm512_castsi512_ps(_mm512_and_si512(w[v], odd_half));
    }
}

/* n pairs of a step from `first` on. */
INLINE void add_vectors(enum pack_kind kind, const int P, const int M, const struct tables *t,
                        const struct codes d[2], const uint16_t *x, size_t x_stride, uint32_t first,
                        uint32_t n, __m512 sum[4])
{
    _Alignas(64) float x0[2][STEP_PAIRS], x1[2][STEP_PAIRS];
    __m512 even[4], odd[4];
    for (int m = 0; m < M; m++) {
        const __m512i pairs = _mm512_maskz_loadu_epi32((__mmask16)((1u << n) - 1),
                                                       x + m * x_stride + 2 * (size_t)first);
        _mm512_store_si512(x0[m], _mm512_slli_epi32(pairs, 16));
        _mm512_store_si512(x1[m], _mm512_and_si512(pairs, _mm512_set1_epi32((int)0xffff0000)));
    }
#pragma GCC unroll 4
    for (int v = 0; v < 2 * P * M; v++) even[v] = odd[v] = _mm512_setzero_ps();
#pragma GCC unroll 2
    for (uint32_t p = 0; p < n; p++) {
#pragma GCC unroll 2
        for (int i = 0; i < P; i++) {
            __m512 w0[2], w1[2];
            const size_t ahead = (size_t)(first + p) * pack_group_bytes(kind) + ROW_PREFETCH_BYTES;
            if (!pack_is_nibbles(kind) || p % 2 == 0)
                _mm_prefetch((const char *)d[i].at + ahead, _MM_HINT_T0);
            load_columns(kind, t, &d[i], first + p, w0, w1);
#pragma GCC unroll 4
            for (int v = 0; v < 2 * M; v++) {
                const int to = 2 * i + v, m = v / 2;
                even[to] = _mm512_fmadd_ps(w0[v % 2], _mm512_set1_ps(x0[m][p]), even[to]);
                odd[to] = _mm512_fmadd_ps(w1[v % 2], _mm512_set1_ps(x1[m][p]), odd[to]);
            }
        }
    }
#pragma GCC unroll 4
    for (int v = 0; v < 2 * P * M; v++)
        sum[v] = _mm512_add_ps(sum[v], _mm512_add_ps(even[v], odd[v]));
}

INLINE void run_vectors(enum pack_kind kind, const int P, const int M, const struct gemm_call *c,
                        const struct tables *t, uint32_t panel)
{
    const struct packed *w = c->w;
    for (struct place at = {.panel = panel}; at.panel == panel;) {
        const uint32_t n_pair = run_end(w, at.run) - at.pair;
        const uint16_t *x = (const uint16_t *)c->x + 2 * (size_t)at.pair;
        const struct place other = {panel + (uint32_t)P - 1, at.run, at.pair};
        const struct codes d[2] = {codes_of(kind, c, &at), codes_of(kind, c, &other)};
        __m512 sum[4];
#pragma GCC unroll 4
        for (int v = 0; v < 2 * P * M; v++) sum[v] = _mm512_setzero_ps();
        for (uint32_t p = 0; p < n_pair; p += STEP_PAIRS) {
            if (p + STEP_PAIRS <= n_pair)
                add_vectors(kind, P, M, t, d, x, c->x_stride, p, STEP_PAIRS, sum);
            else
                add_vectors(kind, P, M, t, d, x, c->x_stride, p, n_pair - p, sum);
        }
#pragma GCC unroll 2
        for (uint32_t i = 0; i < (uint32_t)(P * M); i++) {
            const struct place of = {panel + (P == 2 ? i : 0), at.run, 0};
            add_scaled(c, &of, M == 2 ? i : 0, sum[2 * i], sum[2 * i + 1]);
        }
        advance(w, &at, n_pair);
    }
}

INLINE void run_rows(enum pack_kind kind, const struct gemm_call *c)
{
    const struct tables t = load_values(kind);
    uint32_t panel = 0;
    for (; c->n_token == 1 && panel + 2 <= c->n_panel; panel += 2)
        run_vectors(kind, 2, 1, c, &t, panel);
    for (; panel < c->n_panel; panel++) {
        if (c->n_token == 1)
            run_vectors(kind, 1, 1, c, &t, panel);
        else
            run_vectors(kind, 1, 2, c, &t, panel);
    }
}

#define PANELS(KIND)                                                                               \
    static void panels_##KIND(const struct gemm_call *c, const struct tile_rows *r)                \
    {                                                                                              \
        if ((KIND) != PACK_BF16 && r->n_row <= 2)                                                  \
            run_rows(KIND, c);                                                                     \
        else                                                                                       \
            run_panels(KIND, c, r);                                                                \
    }
PANELS(PACK_FP8)
PANELS(PACK_I8)
PANELS(PACK_BF16)
PANELS(PACK_U4)
PANELS(PACK_E2M1)

void cpu_gemm_bf16_amx(const struct gemm_call *c)
{
    static void (*const panels[PACK_F32])(const struct gemm_call *, const struct tile_rows *) = {
        [PACK_FP8] = panels_PACK_FP8,   [PACK_I8] = panels_PACK_I8,
        [PACK_BF16] = panels_PACK_BF16, [PACK_U4] = panels_PACK_U4,
        [PACK_E2M1] = panels_PACK_E2M1,
    };
    DCHECK(c->panel0 + c->n_panel <= c->w->n_panel && c->n_token >= 1);
    if (c->w->kind == PACK_F32) {
        cpu_gemm_bf16_avx512(c); /* rare: a row at a time in any case */
        return;
    }
    const unsigned was = _mm_getcsr();
    struct gemm_call part = *c;
    _mm_setcsr(was | DENORMALS_ARE_ZERO); /* vectors take and give them as tiles do */
    for (uint32_t t = 0; t < c->n_token; t += part.n_token) {
        part.n_token = c->n_token - t;
        if (part.n_token > MAX_TILES * TILE) part.n_token = MAX_TILES * TILE;
        const struct tile_rows r = tile_rows_of(part.n_token);
        part.x = (const uint16_t *)c->x + t * c->x_stride;
        part.y = c->y + t * c->y_stride;
        tile_configure(r.height);
        panels[c->w->kind](&part, &r);
        tile_release();
    }
    _mm_setcsr(was);
}
