/* cpu_kernel_body.h - the inner loops, written over the vocabulary of a cpu_simd_*.h
 *
 * Included once by each cpu_kernel_<isa>.c after its vocabulary; everything is static but the
 * table at the end, KERNEL_TABLE. Declarations and the order of sums: cpu_kernel.h. Plain loops
 * over independent elements are left to the compiler, which may not reorder sums.
 */
#include <math.h>
#include <string.h>

#include "backend/cpu/cpu_kernel.h"
#include "base/assert.h"
#include "base/dtype.h"

#define INLINE static inline __attribute__((always_inline))

static_assert(PANEL % LANES == 0 && KV_ROPE % LANES == 0, "rows are whole vectors");

enum { PANEL_VECTORS = PANEL / LANES, STRIP = 2 /* vectors of a panel in registers at a time */ };

/* ---- exp ---- */

/* e^x for x <= 88, 0 below -87.3: within 2 units in the last place. n = round(x / ln 2), then a
 * polynomial in x - n ln 2. Exactly 1 at 0. */
INLINE vf exp_vector(vf x)
{
    const float low = -87.3f;
    vf clamped = v_min(v_set(88.0f), v_max(v_set(low), x)); /* NaN stays */
    vf n = v_round(v_mul(clamped, v_set(1.44269504089f)));
    vf r = v_fma(n, v_set(-0.693359375f), clamped);
    r = v_fma(n, v_set(2.12194440e-4f), r);
    vf p = v_set(1.9875691500e-4f);
    p = v_fma(p, r, v_set(1.3981999507e-3f));
    p = v_fma(p, r, v_set(8.3334519073e-3f));
    p = v_fma(p, r, v_set(4.1665795894e-2f));
    p = v_fma(p, r, v_set(1.6666665459e-1f));
    p = v_fma(p, r, v_set(5.0000001201e-1f));
    p = v_add(v_fma(p, v_mul(r, r), r), v_set(1.0f));
    return v_zero_below(x, low, v_mul(p, v_pow2(n)));
}

INLINE float exp_scalar(float x)
{
    float out[LANES];
    v_store(out, exp_vector(v_set(x)));
    return out[0];
}

INLINE vf sigmoid_vector(vf x)
{
    vf e = exp_vector(v_sub(v_zero(), x));
    return v_div(v_set(1.0f), v_add(v_set(1.0f), e));
}

/* ---- products with f32 inputs ---- */

/* Vector v of the two columns of pair `pair` of a panel. zero: of a panel's rows, for PACK_U4. */
INLINE void load_pair(enum pack_kind kind, const uint8_t *panel, uint32_t pair, int v,
                      const uint8_t *zero, vf *even, vf *odd)
{
    const uint8_t *group = panel + (size_t)pair * pack_group_bytes(kind);
    const uint8_t *both = panel + (size_t)(pair / 2) * 64; /* of four bits */
    const float *f = (const float *)(const void *)group + v * LANES;
    vf from;
    switch (kind) {
    case PACK_FP8: v_pair_fp8(group, v, even, odd); break;
    case PACK_I8: v_pair_int8(group, v, even, odd); break;
    case PACK_BF16: v_pair_bf16((const uint16_t *)(const void *)group, v, even, odd); break;
    case PACK_E2M1: v_pair_e2m1(both, pair % 2, v, even, odd); break;
    case PACK_U4:
        from = zero ? v_load_u8(zero + v * LANES) : v_set(U4_ZERO);
        v_pair_u4(both, pair % 2, v, even, odd);
        *even = v_sub(*even, from);
        *odd = v_sub(*odd, from);
        break;
    default: *even = v_load(f); *odd = v_load(f + PANEL);
    }
}

/* One block of columns of a panel against some rows of x. */
struct block {
    const uint8_t *groups;
    uint32_t n_pair;
    const float *scale;
    uint32_t scale_lanes;
    const uint8_t *zero;
    bool first;
    const float *x;
    size_t x_stride;
    float *y;
    size_t y_stride;
};

/* y[m][0 .. 32) becomes or gains scale * (panel . x[m]) for M rows. */
INLINE void block_tile(const int M, enum pack_kind kind, const struct block *b)
{
    for (int v0 = 0; v0 < PANEL_VECTORS; v0 += STRIP) {
        vf part[TILE_ROWS][STRIP];
        for (int m = 0; m < M; m++) {
            for (int v = 0; v < STRIP; v++) part[m][v] = v_zero();
        }
        for (uint32_t p = 0; p < b->n_pair; p++) {
            vf even[STRIP], odd[STRIP];
            for (int v = 0; v < STRIP; v++)
                load_pair(kind, b->groups, p, v0 + v, b->zero, &even[v], &odd[v]);
            for (int m = 0; m < M; m++) {
                vf x0 = v_set(b->x[m * b->x_stride + 2 * p]);
                vf x1 = v_set(b->x[m * b->x_stride + 2 * p + 1]);
                for (int v = 0; v < STRIP; v++) {
                    part[m][v] = v_fma(even[v], x0, part[m][v]);
                    part[m][v] = v_fma(odd[v], x1, part[m][v]);
                }
            }
        }
        for (int v = 0; v < STRIP; v++) {
            vf s = b->scale_lanes == 1 ? v_set(*b->scale) : v_load(b->scale + (v0 + v) * LANES);
            for (int m = 0; m < M; m++) {
                float *to = b->y + m * b->y_stride + (v0 + v) * LANES;
                v_store(to, b->first ? v_mul(part[m][v], s) : v_fma(part[m][v], s, v_load(to)));
            }
        }
    }
}

typedef void tile_function(const struct block *b);

#define TILE(M, KIND)                                                                              \
    static void tile_##M##_##KIND(const struct block *b)                                           \
    {                                                                                              \
        block_tile(M, KIND, b);                                                                    \
    }
#define TILES(KIND) TILE(1, KIND) TILE(2, KIND) TILE(3, KIND) TILE(4, KIND)

TILES(PACK_FP8)
TILES(PACK_I8)
TILES(PACK_BF16)
TILES(PACK_U4)
TILES(PACK_E2M1)
TILES(PACK_F32)

enum { MAX_TILE = 4 };

static tile_function *const tiles[N_PACK_KIND][MAX_TILE + 1] = {
#define TILE_ROW(KIND)                                                                             \
    {                                                                                              \
        NULL, tile_1_##KIND, tile_2_##KIND, tile_3_##KIND, tile_4_##KIND                           \
    }
    [PACK_FP8] = TILE_ROW(PACK_FP8),   [PACK_I8] = TILE_ROW(PACK_I8),
    [PACK_BF16] = TILE_ROW(PACK_BF16), [PACK_U4] = TILE_ROW(PACK_U4),
    [PACK_E2M1] = TILE_ROW(PACK_E2M1), [PACK_F32] = TILE_ROW(PACK_F32),
};

/* n_pair groups of a panel's block as PACK_F32 groups. */
static void decode_groups(enum pack_kind kind, const uint8_t *groups, uint32_t n_pair,
                          const uint8_t *zero, float *out)
{
    for (uint32_t p = 0; p < n_pair; p++, out += 2 * PANEL) {
        for (int v = 0; v < PANEL_VECTORS; v++) {
            vf even, odd;
            load_pair(kind, groups, p, v, zero, &even, &odd);
            v_store(out + v * LANES, even);
            v_store(out + PANEL + v * LANES, odd);
        }
    }
}

/* Blocks [block0, block1) of one panel against all rows of x. */
static void gemm_chunk(const struct gemm_call *c, uint32_t i_panel, uint32_t block0,
                       uint32_t block1)
{
    const struct packed *w = c->w;
    DCHECK(c->panel0 + i_panel < w->n_panel);
    DCHECK(block0 < block1 && block1 <= w->n_block);
    enum pack_kind kind = w->kind;
    const uint32_t panel = c->panel0 + i_panel, pair0 = packed_block_start(w, block0);
    const uint8_t *groups = w->data + panel * w->panel_bytes;
    uint32_t group0 = 0; /* pair that `groups` begins with */
    if (c->n_token > MAX_TILE && kind != PACK_F32) {
        for (uint32_t block = block0; block < block1; block++) {
            uint32_t at = packed_block_start(w, block);
            decode_groups(kind, groups + (size_t)at * pack_group_bytes(kind),
                          packed_block_pairs(w, block), packed_zeros(w, panel, block),
                          (float *)c->decoded + (size_t)(at - pair0) * 2 * PANEL);
        }
        groups = c->decoded;
        group0 = pair0;
        kind = PACK_F32;
    }
    for (uint32_t t = 0; t < c->n_token; t += MAX_TILE) {
        uint32_t m = c->n_token - t < MAX_TILE ? c->n_token - t : MAX_TILE;
        for (uint32_t block = block0; block < block1; block++) {
            uint32_t at = packed_block_start(w, block);
            const struct block b = {
                .groups = groups + (size_t)(at - group0) * pack_group_bytes(kind),
                .n_pair = packed_block_pairs(w, block),
                .scale = packed_scales(w, panel, block),
                .scale_lanes = w->scale_lanes,
                .zero = packed_zeros(w, panel, block),
                .first = block == 0,
                .x = (const float *)c->x + t * c->x_stride + 2 * at,
                .x_stride = c->x_stride,
                .y = c->y + t * c->y_stride + (size_t)i_panel * PANEL,
                .y_stride = c->y_stride,
            };
            tiles[kind][m](&b);
        }
    }
}

static void gemm_f32(const struct gemm_call *c)
{
    DCHECK(c->n_token >= 1 && c->decoded);
    for (uint32_t i = 0; i < c->n_panel; i++) {
        for (uint32_t block = 0; block < c->w->n_block; block += CHUNK_BLOCKS) {
            uint32_t end = block + CHUNK_BLOCKS;
            gemm_chunk(c, i, block, end < c->w->n_block ? end : c->w->n_block);
        }
    }
}

#ifndef KERNEL_NUMERICS
#define KERNEL_NUMERICS KERNEL_ISA
#endif
#ifndef KERNEL_GEMM_INT8

/* ---- products with int8 inputs ---- */

/* Adds the products of a block's codes with those of one row of x, 32 rows in order. */
INLINE void int8_block(enum pack_kind kind, const uint8_t *groups, uint32_t n_pair, const int8_t *x,
                       int32_t sum[PANEL])
{
    for (uint32_t p = 0; p < n_pair; p += 2)
        v_dot_int8(kind == PACK_U4, groups + (size_t)p * pack_group_bytes(kind), x + 2 * p, sum);
}

/* y[0 .. 32) becomes or gains scale * (the sum, less that of the zeros). */
static void add_int8_block(const struct gemm_call *c, uint32_t panel, uint32_t block,
                           const int32_t *sum, size_t t, float *y)
{
    const struct packed *w = c->w;
    const float *scale = packed_scales(w, panel, block);
    const uint8_t *zero = packed_zeros(w, panel, block);
    const float x_scale = c->x_scale[t * w->n_block + block];
    const int32_t x_sum = c->x_sum[t * w->n_block + block];
    for (uint32_t r = 0; r < PANEL; r++) {
        int32_t from = w->kind != PACK_U4 ? 0 : zero ? zero[r] : U4_ZERO;
        float part =
            (float)(sum[r] - from * x_sum) * (scale[w->scale_lanes == 1 ? 0 : r] * x_scale);
        y[r] = block == 0 ? part : y[r] + part;
    }
}

static void gemm_int8(const struct gemm_call *c)
{
    const struct packed *w = c->w;
    const bool is_row = w->input == INPUT_CODE_INT8_ROW;
    DCHECK(w->kind == PACK_I8 || w->kind == PACK_U4);
    for (uint32_t i = 0; i < c->n_panel; i++) {
        const uint8_t *groups = w->data + (c->panel0 + i) * w->panel_bytes;
        for (size_t t = 0; t < c->n_token; t++) {
            const int8_t *x = (const int8_t *)c->x + t * c->x_stride;
            float *y = c->y + t * c->y_stride + (size_t)i * PANEL;
            const uint32_t n_block = is_row ? 1 : w->n_block;
            for (uint32_t block = 0; block < n_block; block++) {
                const uint32_t p = packed_block_start(w, block);
                const uint8_t *at = groups + (size_t)p * pack_group_bytes(w->kind);
                const uint32_t n_pair = is_row ? w->n_pair : packed_block_pairs(w, block);
                int32_t sum[PANEL] = {0};
                if (w->kind == PACK_U4)
                    int8_block(PACK_U4, at, n_pair, x + 2 * p, sum);
                else
                    int8_block(PACK_I8, at, n_pair, x + 2 * p, sum);
                add_int8_block(c, c->panel0 + i, block, sum, t, y);
            }
        }
    }
}

#endif

/* ---- attention over one group, f32 ---- */

/* score[q][r0 .. r0 + 4) for Q queries */
INLINE void score_tile(const int Q, const struct attend_call *c, uint32_t q0, uint32_t r0)
{
    const float *query = (const float *)c->query + q0 * c->query_stride;
    const float *row[4];
    vf part[4][4];
    for (int r = 0; r < 4; r++) row[r] = c->row[r0 + r];
    for (int q = 0; q < Q; q++) {
        for (int r = 0; r < 4; r++) part[q][r] = v_zero();
    }
    for (uint32_t i = 0; i < c->key_dim; i += LANES) {
        vf k[4];
        for (int r = 0; r < 4; r++) k[r] = v_load(row[r] + i);
        for (int q = 0; q < Q; q++) {
            vf x = v_load(query + q * c->query_stride + i);
            for (int r = 0; r < 4; r++) part[q][r] = v_fma(x, k[r], part[q][r]);
        }
    }
    for (int q = 0; q < Q; q++)
        v_sum4(part[q][0], part[q][1], part[q][2], part[q][3],
               c->score + (size_t)(q0 + q) * GROUP_ROWS + r0);
}

/* The scores of one query to exp(score - max); 0 beyond what it sees. */
static void softmax_group(const struct attend_call *c, uint32_t q)
{
    DCHECK(c->n_visible[q] >= 1 && c->n_visible[q] <= c->n_row);
    float *score = c->score + (size_t)q * GROUP_ROWS;
    for (uint32_t r = c->n_visible[q]; r < GROUP_ROWS; r++) score[r] = -INFINITY;
    vf top = v_set(-INFINITY);
    for (int r = 0; r < GROUP_ROWS; r += LANES) {
        vf s = v_mul(v_load(score + r), v_set(c->softmax_scale));
        v_store(score + r, s);
        top = v_max(top, s);
    }
    c->max[q] = v_max_all(top);
    vf max = v_set(c->max[q]);
    vf sum = v_zero();
    for (int r = 0; r < GROUP_ROWS; r += LANES) {
        vf e = exp_vector(v_sub(v_load(score + r), max));
        v_store(score + r, e);
        sum = v_add(sum, e);
    }
    c->sum[q] = v_sum(sum);
}

/* out[q][i .. i + 4 vectors) = sum over rows of weight * value, for Q queries */
INLINE void value_tile(const int Q, const struct attend_call *c, uint32_t q0, uint32_t i)
{
    enum { V = 2 };
    vf part[4][V];
    for (int q = 0; q < Q; q++) {
        for (int v = 0; v < V; v++) part[q][v] = v_zero();
    }
    for (uint32_t r = 0; r < c->n_row; r++) {
        const float *value = (const float *)c->row[r] + i;
        vf x[V];
        for (int v = 0; v < V; v++) x[v] = v_load(value + v * LANES);
        for (int q = 0; q < Q; q++) {
            vf p = v_set(c->score[(size_t)(q0 + q) * GROUP_ROWS + r]);
            for (int v = 0; v < V; v++) part[q][v] = v_fma(p, x[v], part[q][v]);
        }
    }
    for (int q = 0; q < Q; q++) {
        for (int v = 0; v < V; v++)
            v_store(c->out + (q0 + q) * c->out_stride + i + v * LANES, part[q][v]);
    }
}

static void attend_f32(const struct attend_call *c)
{
    DCHECK(c->n_row >= 1 && c->n_row <= GROUP_ROWS && c->n_query <= QUERY_MAX);
    DCHECK(c->key_dim % 32 == 0 && c->value_dim % 64 == 0);
    uint32_t q = 0;
    for (; q + 4 <= c->n_query; q += 4) {
        for (uint32_t r = 0; r < c->n_row; r += 4) score_tile(4, c, q, r);
    }
    for (; q < c->n_query; q++) {
        for (uint32_t r = 0; r < c->n_row; r += 4) score_tile(1, c, q, r);
    }
    for (q = 0; q < c->n_query; q++) softmax_group(c, q);
    for (q = 0; q + 4 <= c->n_query; q += 4) {
        for (uint32_t i = 0; i < c->value_dim; i += 2 * LANES) value_tile(4, c, q, i);
    }
    for (; q < c->n_query; q++) {
        for (uint32_t i = 0; i < c->value_dim; i += 2 * LANES) value_tile(1, c, q, i);
    }
}

static void merge(float *max, float *sum, float *out, float group_max, float group_sum,
                  const float *group_out, uint32_t n)
{
    DCHECK(n % 32 == 0);
    float top = group_max > *max ? group_max : *max;
    float keep = exp_scalar(*max - top);
    float add = exp_scalar(group_max - top);
    *max = top;
    *sum = *sum * keep + group_sum * add;
    vf a = v_set(keep);
    vf b = v_set(add);
    for (uint32_t i = 0; i < n; i += LANES)
        v_store(out + i, v_fma(v_load(group_out + i), b, v_mul(v_load(out + i), a)));
}

/* ---- rows ---- */

static void add_norm(float *x, const float *delta, const float *weight, uint32_t n, uint32_t n_mean,
                     float eps, float *out)
{
    DCHECK(n_mean >= 1 && n_mean <= n);
    DCHECK(n % 32 == 0);
    vf square[4] = {v_zero(), v_zero(), v_zero(), v_zero()};
    for (uint32_t i = 0; i < n; i += LANES) {
        vf a = v_load(x + i);
        if (delta) {
            a = v_add(a, v_load(delta + i));
            v_store(x + i, a);
        }
        vf *s = &square[i / LANES % 4];
        *s = v_fma(a, a, *s);
    }
    float sum = v_sum(v_add(v_add(square[0], square[1]), v_add(square[2], square[3])));
    vf scale = v_set(1.0f / sqrtf(sum / (float)n_mean + eps));
    for (uint32_t i = 0; i < n; i += LANES)
        v_store(out + i, v_mul(v_mul(v_load(x + i), scale), v_load(weight + i)));
}

static void layer_norm(const float *x, const float *weight, const float *bias, uint32_t n,
                       float eps, float *out)
{
    DCHECK(n % 32 == 0);
    vf sum = v_zero();
    for (uint32_t i = 0; i < n; i += LANES) sum = v_add(sum, v_load(x + i));
    vf mean = v_set(v_sum(sum) / (float)n);
    vf square = v_zero();
    for (uint32_t i = 0; i < n; i += LANES) {
        vf d = v_sub(v_load(x + i), mean);
        square = v_fma(d, d, square);
    }
    vf scale = v_set(1.0f / sqrtf(v_sum(square) / (float)n + eps));
    for (uint32_t i = 0; i < n; i += LANES) {
        vf d = v_mul(v_sub(v_load(x + i), mean), scale);
        v_store(out + i, v_fma(d, v_load(weight + i), v_load(bias + i)));
    }
}

static void to_operand(enum operand type, bool round, const float *in, uint32_t n, void *out)
{
    DCHECK(n % 32 == 0);
    if (type == OPERAND_F32 && !round) {
        memcpy(out, in, n * sizeof(float));
        return;
    }
    uint16_t rounded[LANES];
    for (uint32_t i = 0; i < n; i += LANES) {
        vf a = v_load(in + i);
        if (type == OPERAND_BF16) {
            v_store_bf16((uint16_t *)out + i, a);
        } else {
            v_store_bf16(rounded, a);
            v_store((float *)out + i, v_load_bf16(rounded));
        }
    }
}

static void silu_mul(const float *gate, const float *up, uint32_t n, float *out)
{
    DCHECK(n % 32 == 0);
    for (uint32_t i = 0; i < n; i += LANES) {
        vf g = v_load(gate + i);
        v_store(out + i, v_mul(v_mul(g, sigmoid_vector(g)), v_load(up + i)));
    }
}

static void sigmoid(float *x, uint32_t n)
{
    DCHECK(n % 32 == 0);
    for (uint32_t i = 0; i < n; i += LANES) v_store(x + i, sigmoid_vector(v_load(x + i)));
}

static void add_scaled(float *y, float a, const float *x, uint32_t n)
{
    DCHECK(n % 32 == 0);
    for (uint32_t i = 0; i < n; i += LANES)
        v_store(y + i, v_fma(v_set(a), v_load(x + i), v_load(y + i)));
}

static void scale_row(float *y, float a, uint32_t n)
{
    DCHECK(n % 32 == 0);
    for (uint32_t i = 0; i < n; i += LANES) v_store(y + i, v_mul(v_set(a), v_load(y + i)));
}

static void rope(float *x, const float *cos_sin, bool interleaved)
{
    float a[KV_ROPE / 2], b[KV_ROPE / 2];
    for (int i = 0; i < KV_ROPE / 2; i++) {
        a[i] = interleaved ? x[2 * i] : x[i];
        b[i] = interleaved ? x[2 * i + 1] : x[i + KV_ROPE / 2];
    }
    for (int i = 0; i < KV_ROPE / 2; i++) {
        float cosine = cos_sin[2 * i];
        float sine = cos_sin[2 * i + 1];
        float first = a[i] * cosine - b[i] * sine;
        float second = a[i] * sine + b[i] * cosine;
        x[interleaved ? 2 * i : i] = first;
        x[interleaved ? 2 * i + 1 : i + KV_ROPE / 2] = second;
    }
}

/* n * log n sums of neighbours: seven times the same stage, which sends the pair (2i, 2i+1) to i
 * and i + 64, makes the Sylvester order. */
static void hadamard(float x[KV_INDEX_DIM])
{
    enum { HALF = KV_INDEX_DIM / 2 };
    const float factor = 0.08838834764831845f; /* 128^-1/2 */
    float even[KV_INDEX_DIM];
    float odd[KV_INDEX_DIM];
    for (int i = 0; i < KV_INDEX_DIM; i++) even[i] = x[i] * factor;
    for (int stage = 0; stage < 6; stage += 2) {
        for (int i = 0; i < HALF; i++) odd[i] = even[2 * i] + even[2 * i + 1];
        for (int i = 0; i < HALF; i++) odd[HALF + i] = even[2 * i] - even[2 * i + 1];
        for (int i = 0; i < HALF; i++) even[i] = odd[2 * i] + odd[2 * i + 1];
        for (int i = 0; i < HALF; i++) even[HALF + i] = odd[2 * i] - odd[2 * i + 1];
    }
    for (int i = 0; i < HALF; i++) x[i] = even[2 * i] + even[2 * i + 1];
    for (int i = 0; i < HALF; i++) x[HALF + i] = even[2 * i] - even[2 * i + 1];
}

/* e4m3_from_f32 without branches, so that the compiler makes vectors of it */
INLINE uint8_t e4m3_code(float f)
{
    uint32_t u = f32_bits(f);
    uint32_t sign = u >> 24 & 0x80;
    uint32_t magnitude = u & 0x7fffffff;
    uint32_t normal = (magnitude + 0x7ffff + (magnitude >> 20 & 1) - 0x3c000000) >> 20;
    /* below 2^-6: adding 2^14 leaves units of 2^-9, rounded to even */
    uint32_t small = f32_bits(f32_from_bits(magnitude) + 16384.0f) - 0x46800000;
    uint32_t code = magnitude < 0x3c800000 ? small : normal;
    code = magnitude >= 0x43e00000 ? 0x7e : code;
    code = code > 0x7e ? 0x7e : code;
    return (uint8_t)(magnitude > 0x7f800000 ? 0x7f : sign | code);
}

static float quantize_group(const float x[KV_FP8_GROUP], uint8_t code[KV_FP8_GROUP])
{
    vf top = v_set(1e-4f);
    for (int i = 0; i < KV_FP8_GROUP; i += LANES) {
        vf a = v_load(x + i);
        top = v_max(v_max(a, v_sub(v_zero(), a)), top);
    }
    float scale = ue8m0_round_up(v_max_all(top) / 448.0f);
    float inverse = 1.0f / scale;
    for (int i = 0; i < KV_FP8_GROUP; i++) code[i] = e4m3_code(x[i] * inverse);
    return scale;
}

/* What is not finite is no number times 0. */
static float int8_scale(const float *x, uint32_t n)
{
    vf top = v_set(1e-10f), none = v_zero();
    DCHECK(n % 32 == 0);
    for (uint32_t i = 0; i < n; i += LANES) {
        vf a = v_load(x + i);
        top = v_max(v_max(a, v_sub(v_zero(), a)), top);
        none = v_fma(a, v_zero(), none);
    }
    return v_max_all(top) / 127.0f + v_sum(none);
}

static void int8_codes(const float *x, uint32_t n, float scale, bool by_fours, int8_t *code)
{
    enum { RUN = 32 };
    const vf s = v_set(scale), least = v_set(-127), most = v_set(127);
    float q[RUN];
    DCHECK(n % RUN == 0);
    for (uint32_t i = 0; i < n; i += RUN) {
        for (uint32_t j = 0; j < RUN; j += LANES) /* no number becomes `least` */
            v_store(q + j, v_min(v_max(v_round(v_div(v_load(x + i + j), s)), least), most));
        if (by_fours) {
            for (uint32_t j = 0; j < RUN; j++)
                code[i + j] = (int8_t)q[(j & ~3u) | (j & 1) << 1 | (j >> 1 & 1)];
        } else {
            for (uint32_t j = 0; j < RUN; j++) code[i + j] = (int8_t)q[j];
        }
    }
}

/* ---- cache rows ---- */

INLINE void store_as(enum operand type, void *out, uint32_t i, vf a)
{
    if (type == OPERAND_F32)
        v_store((float *)out + i, a);
    else
        v_store_bf16((uint16_t *)out + i, a);
}

static void load_codes(const uint8_t *code, uint32_t n, enum operand to, void *out)
{
    for (uint32_t i = 0; i < n; i += LANES) store_as(to, out, i, v_load_e4m3(code + i));
}

static void load_latent(enum kv_type type, const uint8_t *row, enum operand to, void *out)
{
    DCHECK(type <= KV_TYPE_FP8);
    if (type == KV_TYPE_F32) {
        const float *f = (const float *)(const void *)row;
        for (uint32_t i = 0; i < KV_ROW; i += LANES) store_as(to, out, i, v_load(f + i));
    } else if (type == KV_TYPE_BF16) {
        const uint16_t *h = (const uint16_t *)(const void *)row;
        for (uint32_t i = 0; i < KV_ROW; i += LANES) store_as(to, out, i, v_load_bf16(h + i));
    } else {
        float scale[KV_LATENT / KV_FP8_GROUP];
        memcpy(scale, row + KV_FP8_SCALES_OFFSET, sizeof scale);
        for (uint32_t i = 0; i < KV_LATENT; i += LANES)
            store_as(to, out, i, v_mul(v_load_e4m3(row + i), v_set(scale[i / KV_FP8_GROUP])));
        const uint16_t *h = (const uint16_t *)(const void *)(row + KV_FP8_ROPE_OFFSET);
        for (uint32_t i = 0; i < KV_ROPE; i += LANES)
            store_as(to, out, KV_LATENT + i, v_load_bf16(h + i));
    }
}

static void store_bf16_row(const float *in, uint32_t n, uint8_t *out)
{
    uint16_t *h = (uint16_t *)(void *)out;
    for (uint32_t i = 0; i < n; i += LANES) v_store_bf16(h + i, v_load(in + i));
}

static void store_latent(enum kv_type type, const float *row, uint8_t *out)
{
    DCHECK(type <= KV_TYPE_FP8);
    if (type == KV_TYPE_F32) {
        memcpy(out, row, KV_ROW_BYTES_F32);
    } else if (type == KV_TYPE_BF16) {
        store_bf16_row(row, KV_ROW, out);
    } else {
        for (int g = 0; g < KV_LATENT / KV_FP8_GROUP; g++) {
            float scale = quantize_group(row + g * KV_FP8_GROUP, out + g * KV_FP8_GROUP);
            memcpy(out + KV_FP8_SCALES_OFFSET + g * sizeof scale, &scale, sizeof scale);
        }
        store_bf16_row(row + KV_LATENT, KV_ROPE, out + KV_FP8_ROPE_OFFSET);
    }
}

/* ---- the indexer ---- */

static void pack_keys_f32(bool coded, const uint8_t *keys, uint32_t n_row, uint8_t *panel)
{
    DCHECK(n_row <= PANEL);
    float *column = (float *)(void *)panel;
    float row[KV_INDEX_DIM];
    memset(panel, 0, sizeof(float) * PANEL * KV_INDEX_DIM);
    for (uint32_t r = 0; r < n_row; r++, column++) {
        if (coded)
            load_codes(keys + (size_t)r * KV_INDEX_DIM, KV_INDEX_DIM, OPERAND_F32, row);
        else
            memcpy(row, keys + (size_t)r * KV_INDEX_ROW_BYTES_F32, sizeof row);
        for (uint32_t k = 0; k < KV_INDEX_DIM; k++) column[(size_t)k * PANEL] = row[k];
    }
}

#ifndef KERNEL_PACK_CODES
#define KERNEL_PACK_CODES pack_codes
static void pack_codes(const uint8_t *rows, size_t stride, uint32_t n_row, uint8_t *panel)
{
    DCHECK(n_row <= PANEL);
    memset(panel, 0, (size_t)PAIRS_PER_BLOCK * 64);
    for (uint32_t r = 0; r < n_row; r++) {
        const uint8_t *row = rows + r * stride;
        uint8_t *to = panel + 2 * byte_place(r);
        for (uint32_t p = 0; p < PAIRS_PER_BLOCK; p++) memcpy(to + (size_t)p * 64, row + 2 * p, 2);
    }
}
#endif

#ifndef KERNEL_PACK_HALVES
#define KERNEL_PACK_HALVES pack_halves
static void pack_halves(const uint8_t *rows, size_t stride, uint32_t n_row, uint8_t *panel)
{
    DCHECK(n_row <= PANEL);
    memset(panel, 0, (size_t)PAIRS_PER_BLOCK * 128);
    for (uint32_t r = 0; r < n_row; r++) {
        const uint8_t *row = rows + r * stride;
        uint8_t *to = panel + 4 * (size_t)r;
        for (uint32_t p = 0; p < PAIRS_PER_BLOCK; p++) memcpy(to + (size_t)p * 128, row + 4 * p, 4);
    }
}
#endif

static void add_relu(float *out, float w, const float *dot, uint32_t n)
{
    DCHECK(n % 32 == 0);
    for (uint32_t i = 0; i < n; i += LANES) {
        vf positive = v_max(v_zero(), v_load(dot + i)); /* NaN stays */
        v_store(out + i, v_fma(v_set(w), positive, v_load(out + i)));
    }
}

/* ---- selection and sampling ---- */

static void order_keys(const float *x, uint32_t n, uint32_t *keys)
{
    for (uint32_t i = 0; i < n; i++) keys[i] = topk_key(x[i]);
}

static uint32_t count_from(const uint32_t *keys, uint32_t n, uint32_t least)
{
    uint32_t count = 0;
    for (uint32_t i = 0; i < n; i++) count += keys[i] >= least;
    return count;
}

static float max_value(const float *x, uint32_t n)
{
    DCHECK(n >= 1);
    vf top = v_set(-INFINITY);
    uint32_t i = 0;
    for (; i + LANES <= n; i += LANES) top = v_max(v_load(x + i), top); /* NaN: top stays */
    float max = v_max_all(top);
    for (; i < n; i++) max = x[i] > max ? x[i] : max;
    return max;
}

static float sum_exp(const float *x, float max, uint32_t n)
{
    vf sum = v_zero();
    vf m = v_set(max);
    uint32_t i = 0;
    for (; i + LANES <= n; i += LANES) sum = v_add(sum, exp_vector(v_sub(v_load(x + i), m)));
    float total = v_sum(sum);
    for (; i < n; i++) total += exp_scalar(x[i] - max);
    return total;
}

static void exp_row(const float *x, float max, uint32_t n, float *out)
{
    vf m = v_set(max);
    for (uint32_t i = 0; i < n; i += LANES) v_store(out + i, exp_vector(v_sub(v_load(x + i), m)));
}

#ifndef KERNEL_NUMERICS
#define KERNEL_NUMERICS KERNEL_ISA
#endif
#ifndef KERNEL_GEMM_INT8
#define KERNEL_GEMM_INT8 gemm_int8
#endif
#ifndef KERNEL_BF16_OPERAND
#define KERNEL_BF16_OPERAND OPERAND_F32
#define KERNEL_GEMM_BF16 NULL
#define KERNEL_ATTEND_BF16 NULL
#endif

const struct cpu_kernels KERNEL_TABLE = {
    .isa = KERNEL_ISA,
    .numerics = KERNEL_NUMERICS,
    .bf16_operand = KERNEL_BF16_OPERAND,
    .gemm = {[OPERAND_F32] = gemm_f32,
             [OPERAND_BF16] = KERNEL_GEMM_BF16,
             [OPERAND_INT8] = KERNEL_GEMM_INT8},
    .attend = {[OPERAND_F32] = attend_f32, [OPERAND_BF16] = KERNEL_ATTEND_BF16},
    .softmax_group = softmax_group,
    .merge = merge,
    .add_norm = add_norm,
    .layer_norm = layer_norm,
    .to_operand = to_operand,
    .silu_mul = silu_mul,
    .sigmoid = sigmoid,
    .add_scaled = add_scaled,
    .scale = scale_row,
    .rope = rope,
    .hadamard = hadamard,
    .quantize_group = quantize_group,
    .int8_scale = int8_scale,
    .int8_codes = int8_codes,
    .load_codes = load_codes,
    .load_latent = load_latent,
    .store_latent = store_latent,
    .pack_codes = KERNEL_PACK_CODES,
    .pack_halves = KERNEL_PACK_HALVES,
    .pack_keys_f32 = pack_keys_f32,
    .add_relu = add_relu,
    .order_keys = order_keys,
    .count_from = count_from,
    .max = max_value,
    .sum_exp = sum_exp,
    .exp_row = exp_row,
};
