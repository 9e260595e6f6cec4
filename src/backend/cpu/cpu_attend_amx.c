/* cpu_attend_amx.c - attention over one group, with tiles
 *
 * Scores: rows of the cache are a tile's lines, and queries, their columns two by two turned into
 * lines, are what they are multiplied by. So a score is the sum of steps of 32 columns, as
 * cpu_dot_amx.c has them. They come out row by row and are turned. Values: the weights of a query,
 * bf16, are a line, and rows of the cache, two by two, what it is multiplied by: two steps of 32
 * rows, the missing ones zero, for every number of rows. So an element's sum has one shape.
 */
#include <string.h>

#include "backend/cpu/cpu_simd_avx512.h"

#include "backend/cpu/cpu_kernel.h"
#include "backend/cpu/cpu_simd_transpose.h"
#include "backend/cpu/cpu_tile.h"
#include "base/assert.h"

enum {
    STEP = 32, /* columns of a tile instruction, or rows of values */
    STEP_BYTES = 2048,
    MAX_KEY = KV_ROW,
};

static_assert(GROUP_ROWS == 2 * STEP, "the values of a group are two steps");
static_assert(QUERY_MAX == 2 * TILE, "queries are two tiles");

/* Tiles: 0 .. 3 sums, 4 and 5 lines, 6 and 7 columns, whose lines stand in turn. */
INLINE void add_step(const int N, const int M, const void *line0, const void *line1, size_t stride0,
                     size_t stride1, const uint8_t *columns)
{
    const size_t pair = 128;
    TILE_LOAD(4, line0, stride0);
    TILE_LOAD(6, columns, pair);
    TILE_OP("tdpbf16ps", 0, 4, 6);
    if (M == 2) TILE_LOAD(7, columns + 64, pair);
    if (M == 2) TILE_OP("tdpbf16ps", 1, 4, 7);
    if (N == 1) return;
    TILE_LOAD(5, line1, stride1);
    TILE_OP("tdpbf16ps", 2, 5, 6);
    if (M == 2) TILE_OP("tdpbf16ps", 3, 5, 7);
}

INLINE void begin_sums(void)
{
    TILE_ZERO(0);
    TILE_ZERO(1);
    TILE_ZERO(2);
    TILE_ZERO(3);
}

/* stride: bytes */
INLINE void end_sums(const int N, const int M, float *out0, float *out1, size_t stride)
{
    TILE_STORE(0, out0, stride);
    if (M == 2) TILE_STORE(1, out0 + TILE, stride);
    if (N == 1) return;
    TILE_STORE(2, out1, stride);
    if (M == 2) TILE_STORE(3, out1 + TILE, stride);
}

/* ---- scores ---- */

/* Queries as columns: for each two of theirs a line of 16 queries, and one of the next 16. */
static void turn_queries(const struct attend_call *c, uint8_t *columns)
{
    const uint8_t *query = c->query;
    const size_t stride = c->query_stride * sizeof(uint16_t);
    for (uint32_t i = 0; i < c->key_dim; i += STEP, query += 2 * STEP, columns += STEP_BYTES) {
        for (uint32_t q = 0; q < c->n_query; q += TILE) {
            __m512i column[TILE];
            load_columns(query + q * stride, stride, c->n_query - q, column);
            for (int p = 0; p < TILE; p++)
                _mm512_store_si512(columns + 128 * p + 4 * (size_t)q, column[p]);
        }
    }
}

/* Where the lines of a tile of rows lie, and how far apart. They are copied where they are not all
 * equally far, or fewer than a tile has. */
struct lines {
    const uint8_t *at;
    size_t stride;
};

static struct lines lines_of(const struct attend_call *c, uint32_t first, uint8_t *copy)
{
    const uint32_t n = c->n_row - first < TILE ? c->n_row - first : TILE;
    const size_t bytes = c->key_dim * sizeof(uint16_t);
    const uint8_t *row = c->row[first];
    const size_t stride = n == TILE ? (size_t)((const uint8_t *)c->row[first + 1] - row) : 0;
    bool is_even = n == TILE;
    for (uint32_t r = 1; r < n && is_even; r++)
        is_even = (const uint8_t *)c->row[first + r] == row + r * stride;
    if (is_even) return (struct lines){row, stride};
    for (uint32_t r = 0; r < TILE; r++) {
        if (r < n)
            memcpy(copy + r * bytes, c->row[first + r], bytes);
        else
            memset(copy + r * bytes, 0, bytes);
    }
    return (struct lines){copy, bytes};
}

/* Rows [first, first + 16 N) against 16 M queries: turned[row][query]. */
INLINE void score_rows(const int N, const int M, const struct attend_call *c, uint32_t first,
                       const uint8_t *columns, uint8_t *copy, float *turned)
{
    const struct lines a = lines_of(c, first, copy);
    const struct lines b =
        N == 1 ? a : lines_of(c, first + TILE, copy + TILE * MAX_KEY * sizeof(uint16_t));
    begin_sums();
    for (uint32_t i = 0; i < c->key_dim; i += STEP, columns += STEP_BYTES) {
        const size_t at = i * sizeof(uint16_t);
        add_step(N, M, a.at + at, b.at + at, a.stride, b.stride, columns);
    }
    turned += (size_t)first * QUERY_MAX;
    end_sums(N, M, turned, turned + (size_t)TILE * QUERY_MAX, QUERY_MAX * sizeof(float));
}

/* All scores, query by query again. What is behind the rows is not set. */
static void make_scores(const struct attend_call *c)
{
    _Alignas(64) uint8_t columns[MAX_KEY / STEP * STEP_BYTES];
    _Alignas(64) uint8_t copy[2 * TILE * MAX_KEY * sizeof(uint16_t)];
    _Alignas(64) float turned[GROUP_ROWS * QUERY_MAX];
    turn_queries(c, columns);
    for (uint32_t r = 0; r < c->n_row; r += 2 * TILE) {
        const bool one = c->n_row - r <= TILE, few = c->n_query <= TILE;
        if (one && few)
            score_rows(1, 1, c, r, columns, copy, turned);
        else if (one)
            score_rows(1, 2, c, r, columns, copy, turned);
        else if (few)
            score_rows(2, 1, c, r, columns, copy, turned);
        else
            score_rows(2, 2, c, r, columns, copy, turned);
    }
    for (uint32_t r = 0; r < c->n_row; r += TILE) {
        for (uint32_t q = 0; q < c->n_query; q += TILE) {
            const uint32_t n = c->n_query - q < TILE ? c->n_query - q : TILE;
            __m512i line[TILE];
            const float *from = turned + (size_t)r * QUERY_MAX + q;
            for (int i = 0; i < TILE; i++) line[i] = _mm512_load_si512(from + i * QUERY_MAX);
            transpose_16x16(line);
            for (uint32_t i = 0; i < n; i++)
                _mm512_storeu_si512(c->score + (size_t)(q + i) * GROUP_ROWS + r, line[i]);
        }
    }
}

/* ---- values ---- */

/* Values [i, i + 32) of all rows, two by two, in order: 64 lines. */
static void pair_rows(const struct attend_call *c, uint32_t i, uint8_t *columns)
{
    /* 64-bit words so placed that unpacking inside 128-bit lanes leaves values in order */
    const __m512i order = _mm512_setr_epi64(0, 4, 1, 5, 2, 6, 3, 7);
    for (uint32_t r = 0; r < c->n_row; r += 2, columns += 128) {
        const bool is_last = r + 1 == c->n_row;
        __m512i a = _mm512_loadu_si512((const uint16_t *)c->row[r] + i);
        __m512i b = is_last ? _mm512_setzero_si512()
                            : _mm512_loadu_si512((const uint16_t *)c->row[r + 1] + i);
        a = _mm512_permutexvar_epi64(order, a);
        b = _mm512_permutexvar_epi64(order, b);
        _mm512_store_si512(columns, _mm512_unpacklo_epi16(a, b));
        _mm512_store_si512(columns + 64, _mm512_unpackhi_epi16(a, b));
    }
}

INLINE void make_values(const int N, const struct attend_call *c, const struct tile_rows *r,
                        const uint16_t *weight)
{
    _Alignas(64) uint8_t columns[2][2 * STEP_BYTES];
    const uint32_t last = tile_first_row(r, r->n_tile - 1);
    const size_t stride = GROUP_ROWS * sizeof *weight;
    const uint16_t *weight1 = weight + (size_t)last * GROUP_ROWS;
    memset(columns, 0, sizeof columns); /* behind the rows */
    pair_rows(c, 0, columns[0]);
    for (uint32_t i = 0; i < c->value_dim; i += STEP) {
        const uint8_t *here = columns[i / STEP % 2];
        begin_sums();
        add_step(N, 2, weight, weight1, stride, stride, here);
        add_step(N, 2, weight + STEP, weight1 + STEP, stride, stride, here + STEP_BYTES);
        if (i + STEP < c->value_dim) pair_rows(c, i + STEP, columns[(i / STEP + 1) % 2]);
        end_sums(N, 2, c->out + i, c->out + last * c->out_stride + i,
                 c->out_stride * sizeof *c->out);
    }
}

void cpu_attend_bf16_amx(const struct attend_call *c)
{
    _Alignas(64) uint16_t weight[QUERY_MAX * GROUP_ROWS];
    const struct tile_rows r = tile_rows_of(c->n_query);
    DCHECK(c->n_row >= 1 && c->n_row <= GROUP_ROWS && c->n_query <= QUERY_MAX);
    DCHECK(c->key_dim % STEP == 0 && c->key_dim <= MAX_KEY && c->value_dim % STEP == 0);
    tile_configure(TILE);
    make_scores(c);
    for (uint32_t q = 0; q < c->n_query; q++) {
        const float *score = c->score + (size_t)q * GROUP_ROWS;
        cpu_kernels_amx.softmax_group(c, q);
        for (uint32_t i = 0; i < GROUP_ROWS; i += 16)
            v_store_bf16(weight + (size_t)q * GROUP_ROWS + i, v_load(score + i));
    }
    tile_configure(r.height);
    if (r.n_tile == 2)
        make_values(2, c, &r, weight);
    else
        make_values(1, c, &r, weight);
    tile_release();
}
