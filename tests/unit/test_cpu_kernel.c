/* test_cpu_kernel.c - the CPU backend's inner loops, every instruction set that this machine
 * has: products and attention against sums in double, and bits that do not
 * depend on neighbours */
#include <float.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "backend/cpu/cpu_int.h"
#include "backend/cpu/cpu_topk.h"
#include "base/mem.h"
#include "base/rng.h"
#include "support/cpu_isas.h"

static void *aligned(size_t bytes)
{
    void *p = mem_alloc_aligned(64, bytes);
    assert_non_null(p);
    memset(p, 0, bytes);
    return p;
}

/* ---- products ---- */

/* A packed matrix of n_row x n_col made by hand, and its values. */
struct made {
    struct packed w;
    float *value; /* [n_row][n_col], scaled */
    float *raw;   /* and not */
};

/* Stores what comes nearest to a value and returns it. zero: of the row. */
static float put_raw(struct packed *w, uint32_t r, uint32_t c, float value, int zero)
{
    uint8_t *panel = w->data + r / PANEL * w->panel_bytes;
    uint8_t *group = panel + (size_t)(c / 2) * pack_group_bytes(w->kind);
    uint32_t row = r % PANEL;
    uint8_t *both = panel + (size_t)(c / 4) * 64 + 4 * (row % 16) + 2 * (c % 2) + c / 2 % 2;
    uint16_t half = bf16_from_f32(value);
    int code = (int)fminf(fmaxf(rintf(value * 40), -127), 127);
    switch (w->kind) {
    case PACK_FP8:
        group[2 * byte_place(row) + c % 2] = e4m3_from_f32(value);
        return f32_from_e4m3(e4m3_from_f32(value));
    case PACK_I8:
        group[2 * byte_place(row) + c % 2] = (uint8_t)(code < 0 ? 0x80 | -code : code);
        return (float)code;
    case PACK_BF16: memcpy(group + 4 * row + 2 * (c % 2), &half, 2); return f32_from_bf16(half);
    case PACK_U4:
    case PACK_E2M1:
        code &= 15;
        *both = (uint8_t)(*both | code << 4 * (row / 16));
        return w->kind == PACK_U4 ? (float)(code - zero) : e2m1_value((uint8_t)code);
    default: memcpy(group + 4 * ((c % 2) * PANEL + row), &value, 4); return value;
    }
}

static uint32_t block_at(const struct packed *w, uint32_t c)
{
    return c / 2 < w->first_pair ? 0 : 1 + (c / 2 - w->first_pair) / w->block_pairs;
}

/* Codes of four bits lie in blocks of whole vectors: block_pairs of them, from column 0 on. */
static struct made make(enum pack_kind kind, const uint32_t shape[4], bool zeros, uint64_t *seed)
{
    struct made m;
    struct packed *w = &m.w;
    const bool nibbles = pack_is_nibbles(kind);
    memset(w, 0, sizeof *w);
    w->kind = kind;
    w->n_row = shape[0];
    w->n_col = nibbles ? (shape[1] + 15) / 16 * 16 : shape[1];
    w->n_panel = (w->n_row + PANEL - 1) / PANEL;
    w->n_pair = (w->n_col + 1) / 2;
    w->block_pairs = nibbles ? 8u << rng_below(seed, 4) : PAIRS_PER_BLOCK;
    w->first_pair = min_u32(nibbles ? w->block_pairs : shape[2], w->n_pair);
    w->n_block = 1 + (w->n_pair - w->first_pair + w->block_pairs - 1) / w->block_pairs;
    w->n_scale = w->n_block;
    w->scale_lanes = shape[3];
    w->panel_bytes = (size_t)w->n_pair * pack_group_bytes(kind);
    w->data = aligned(w->n_panel * w->panel_bytes);
    size_t n_scale = (size_t)w->n_panel * w->n_block * w->scale_lanes;
    w->scale = aligned(n_scale * sizeof *w->scale);
    for (size_t i = 0; i < n_scale; i++) w->scale[i] = 0.5f + (float)rng_below(seed, 100) * 0.01f;
    size_t n_zero = (size_t)w->n_panel * w->n_block * PANEL;
    if (zeros) w->zero = aligned(n_zero);
    for (size_t i = 0; zeros && i < n_zero; i++) w->zero[i] = (uint8_t)rng_below(seed, 17);
    m.value = aligned((size_t)w->n_row * w->n_col * sizeof *m.value);
    m.raw = aligned((size_t)w->n_row * w->n_col * sizeof *m.raw);
    for (uint32_t r = 0; r < w->n_row; r++) {
        for (uint32_t c = 0; c < w->n_col; c++) {
            const uint8_t *zero = packed_zeros(w, r / PANEL, block_at(w, c));
            size_t at = ((size_t)(r / PANEL) * w->n_block + block_at(w, c)) * w->scale_lanes;
            float scale = w->scale[at + (w->scale_lanes == 1 ? 0 : r % PANEL)];
            if (nibbles || kind == PACK_I8) scale /= 32;
            float value = put_raw(w, r, c, rng_normal(seed), zero ? zero[r % PANEL] : U4_ZERO);
            m.raw[(size_t)r * w->n_col + c] = value;
            m.value[(size_t)r * w->n_col + c] = value * scale;
        }
    }
    for (size_t i = 0; (nibbles || kind == PACK_I8) && i < n_scale; i++) w->scale[i] /= 32;
    return m;
}

/* int8 whose rows have one scale in all columns. */
static struct made make_whole_rows(const uint32_t shape[4], uint64_t *seed)
{
    struct made m = make(PACK_I8, shape, false, seed);
    struct packed *w = &m.w;
    for (uint32_t r = 0; r < w->n_row; r++) {
        const uint32_t lane = w->scale_lanes == 1 ? 0 : r % PANEL;
        const float first = packed_scales(w, r / PANEL, 0)[lane];
        for (uint32_t c = 0; c < w->n_col; c++)
            m.value[(size_t)r * w->n_col + c] *=
                first / packed_scales(w, r / PANEL, block_at(w, c))[lane];
    }
    for (uint32_t p = 1; p < w->n_panel; p++)
        memcpy(w->scale + p * w->scale_lanes, packed_scales(w, p, 0),
               w->scale_lanes * sizeof *w->scale);
    w->n_scale = 1;
    w->input = INPUT_CODE_INT8_ROW;
    return m;
}

static void drop(struct made *m)
{
    mem_free(m->w.data);
    mem_free(m->w.scale);
    mem_free(m->w.zero);
    mem_free(m->value);
    mem_free(m->raw);
}

enum { N_TOKEN = 29, X_STRIDE = 416, Y_STRIDE = 160 };

static void check_product(const struct cpu_kernels *k, enum operand type, const struct made *m,
                          uint64_t *seed)
{
    const struct packed *w = &m->w;
    size_t size = operand_bytes(type);
    float *x = aligned(N_TOKEN * X_STRIDE * sizeof *x);
    uint8_t *act = aligned(N_TOKEN * X_STRIDE * size);
    float *y = aligned(N_TOKEN * Y_STRIDE * sizeof *y);
    float *one = aligned(N_TOKEN * Y_STRIDE * sizeof *one);
    uint8_t *decoded = aligned(CHUNK_BYTES);
    for (uint32_t t = 0; t < N_TOKEN; t++) {
        for (uint32_t c = 0; c < w->n_col; c++)
            x[t * X_STRIDE + c] = f32_from_bf16(bf16_from_f32(rng_normal(seed)));
        k->to_operand(type, false, x + t * X_STRIDE, X_STRIDE, act + t * X_STRIDE * size);
    }
    struct gemm_call call = {.w = w,
                             .n_panel = w->n_panel,
                             .n_token = N_TOKEN,
                             .x = act,
                             .x_stride = X_STRIDE,
                             .y = y,
                             .y_stride = Y_STRIDE,
                             .decoded = decoded};
    k->gemm[type](&call);
    for (uint32_t t = 0; t < N_TOKEN; t++) {
        for (uint32_t r = 0; r < w->n_row; r++) {
            double want = 0;
            for (uint32_t c = 0; c < w->n_col; c++)
                want += (double)m->value[(size_t)r * w->n_col + c] * (double)x[t * X_STRIDE + c];
            assert_true(fabs((double)y[t * Y_STRIDE + r] - want) < 1e-4 * sqrt(w->n_col) + 1e-6);
        }
    }
    /* any run of tokens, any run of panels: the same bits */
    for (int round = 0; round < 60; round++) {
        uint32_t t0 = (uint32_t)rng_below(seed, N_TOKEN);
        uint32_t p0 = (uint32_t)rng_below(seed, w->n_panel);
        call.n_token = 1 + (uint32_t)rng_below(seed, N_TOKEN - t0);
        call.panel0 = p0;
        call.n_panel = 1 + (uint32_t)rng_below(seed, w->n_panel - p0);
        call.x = act + t0 * X_STRIDE * size;
        call.y = one;
        k->gemm[type](&call);
        for (uint32_t t = 0; t < call.n_token; t++)
            assert_memory_equal(one + t * Y_STRIDE, y + (t0 + t) * Y_STRIDE + p0 * PANEL,
                                call.n_panel * PANEL * sizeof *y);
    }
    mem_free(x);
    mem_free(act);
    mem_free(y);
    mem_free(one);
    mem_free(decoded);
}

static void products_are_right_and_rows_are_alone(void **state)
{
    (void)state;
    uint64_t seed = 9;
    static const uint32_t shapes[][4] = {
        /* rows, columns, pairs of the first block, scales */
        {32, 128, 64, 1}, {144, 400, 64, 1},    {144, 399, 13, PANEL},
        {7, 3, 64, 1},    {33, 257, 64, PANEL}, {96, 386, 1, 1},
    };
    for (int i = 0; i < N_ISA; i++) {
        const struct cpu_kernels *k = cpu_kernels_of(isas[i]);
        if (!k) continue;
        for (size_t s = 0; s < sizeof shapes / sizeof *shapes; s++) {
            for (int kind = 0; kind < N_PACK_KIND; kind++) {
                for (int zeros = 0; zeros < 1 + (kind == PACK_U4); zeros++) {
                    struct made m = make((enum pack_kind)kind, shapes[s], zeros, &seed);
                    check_product(k, OPERAND_F32, &m, &seed);
                    if (k->gemm[OPERAND_BF16]) check_product(k, OPERAND_BF16, &m, &seed);
                    drop(&m);
                }
            }
        }
    }
}

/* ---- the order of sums over tiles ---- */

static float flushed(float f)
{
    return fabsf(f) < FLT_MIN ? copysignf(0, f) : f;
}

/* What 32 columns add to a sum: the even and the odd ones apart, each product by one fused
 * multiply-add; w: of a row, x: of a row of inputs, n columns. */
static float add_tile_step(float sum, const float *w, const float *x, uint32_t n)
{
    float half[2] = {0, 0};
    for (uint32_t c = 0; c < n; c++)
        half[c % 2] = flushed(fmaf(flushed(w[c]), flushed(x[c]), half[c % 2]));
    return flushed(sum + flushed(half[0] + half[1]));
}

/* Row r of a weight times x, as cpu_dot_amx.c says. */
static float tile_product(const struct made *m, uint32_t r, const float *x)
{
    const struct packed *w = &m->w;
    const float *raw = m->raw + (size_t)r * w->n_col;
    float y = 0;
    for (uint32_t b = 0; b < w->n_block; b++) {
        const bool is_whole = w->n_scale == 1;
        const uint32_t first = 2 * packed_block_start(w, b);
        const uint32_t end =
            is_whole ? w->n_col : min_u32(first + 2 * packed_block_pairs(w, b), w->n_col);
        const float scale = packed_scales(w, r / PANEL, b)[w->scale_lanes == 1 ? 0 : r % PANEL];
        float sum = 0;
        for (uint32_t c = first; c < end; c += 32)
            sum = add_tile_step(sum, raw + c, x + c, min_u32(32, end - c));
        y = flushed(b == 0 ? sum * scale : fmaf(sum, scale, y));
        if (is_whole) break;
    }
    return y;
}

enum { MANY = 101 }; /* rows: more than pass at a time */

static void check_tile_product(const struct cpu_kernels *k, const struct made *m, uint32_t n_token,
                               uint64_t *seed)
{
    const struct packed *w = &m->w;
    float *x = aligned((size_t)MANY * X_STRIDE * sizeof *x);
    uint16_t *act = aligned((size_t)MANY * X_STRIDE * sizeof *act);
    float *y = aligned((size_t)MANY * Y_STRIDE * sizeof *y);
    uint8_t *decoded = aligned(CHUNK_BYTES);
    for (uint32_t i = 0; i < n_token * X_STRIDE; i++) {
        /* some so small that products, or the values themselves, are denormal */
        const int small = rng_below(seed, 4) == 0 ? -(int)rng_below(seed, 140) : 0;
        act[i] = bf16_from_f32(i % X_STRIDE < w->n_col ? ldexpf(rng_normal(seed), small) : NAN);
        x[i] = f32_from_bf16(act[i]);
    }
    for (uint32_t t = 0; t < n_token && w->n_col % 2; t++) act[t * X_STRIDE + w->n_col] = 0;
    const struct gemm_call call = {.w = w,
                                   .type = OPERAND_BF16,
                                   .n_panel = w->n_panel,
                                   .n_token = n_token,
                                   .x = act,
                                   .x_stride = X_STRIDE,
                                   .y = y,
                                   .y_stride = Y_STRIDE,
                                   .decoded = decoded};
    k->gemm[OPERAND_BF16](&call);
    for (uint32_t t = 0; t < n_token; t++) {
        for (uint32_t r = 0; r < w->n_row; r++) {
            const float want = tile_product(m, r, x + t * X_STRIDE);
            assert_true(same_float(y[t * Y_STRIDE + r] + 0.0f, want + 0.0f));
        }
    }
    mem_free(x);
    mem_free(act);
    mem_free(y);
    mem_free(decoded);
}

static void products_over_tiles_have_the_order_that_is_written(void **state)
{
    (void)state;
    static const uint32_t shapes[][4] = {
        {32, 128, 64, 1}, {144, 400, 64, 1},    {144, 399, 13, PANEL},
        {7, 3, 64, 1},    {33, 257, 64, PANEL}, {96, 386, 1, 1},
    };
    static const uint32_t rows[] = {1, 2, 15, 16, 17, 33, 64, MANY};
    const struct cpu_kernels *k = cpu_kernels_of(CPU_ISA_AMX);
    uint64_t seed = 29;
    if (!k) {
        print_message("this machine has no AMX: nothing is multiplied over tiles\n");
        skip();
    }
    for (size_t s = 0; s < sizeof shapes / sizeof *shapes; s++) {
        for (int kind = 0; kind < PACK_F32; kind++) {
            struct made m = make((enum pack_kind)kind, shapes[s], s % 2 == 0, &seed);
            for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
                check_tile_product(k, &m, rows[i], &seed);
            /* one scale for all columns: all are one run */
            for (uint32_t p = 1; p < m.w.n_panel; p++)
                memcpy(m.w.scale + p * m.w.scale_lanes, packed_scales(&m.w, p, 0),
                       m.w.scale_lanes * sizeof *m.w.scale);
            if (!pack_is_nibbles((enum pack_kind)kind)) m.w.n_scale = 1;
            for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
                check_tile_product(k, &m, rows[i], &seed);
            drop(&m);
        }
    }
}

/* ---- products with int8 inputs ---- */

enum { N_ROW = 101, ROW_STRIDE = 1184 }; /* more rows than pass tiles at a time */

/* The codes of some rows as their definition has them, and beside them what a product takes. */
struct int8_rows {
    float *x;
    int8_t *code; /* in order of columns */
    int8_t *as_kept;
    float *scale;
    int32_t *sum;
};

static struct int8_rows make_int8_rows(const struct cpu_kernels *k, const struct packed *w,
                                       uint64_t *seed)
{
    const uint32_t group = w->input == INPUT_CODE_INT8_ROW ? w->n_col : KV_FP8_GROUP;
    const uint32_t block = 2 * w->block_pairs;
    const bool by_fours = w->kind == PACK_U4;
    struct int8_rows r = {.x = aligned(N_ROW * ROW_STRIDE * sizeof *r.x),
                          .code = aligned(N_ROW * ROW_STRIDE),
                          .as_kept = aligned(N_ROW * ROW_STRIDE),
                          .scale = aligned(N_ROW * w->n_block * sizeof *r.scale),
                          .sum = aligned(N_ROW * w->n_block * sizeof *r.sum)};
    for (uint32_t t = 0; t < N_ROW; t++) {
        float *x = r.x + t * ROW_STRIDE;
        int8_t *code = r.code + t * ROW_STRIDE, *as_kept = r.as_kept + t * ROW_STRIDE;
        for (uint32_t c = 0; c < w->n_col; c++) x[c] = rng_normal(seed) * (t == 3 ? 0 : 1);
        for (uint32_t i = 0; i < w->n_col; i += group) {
            float top = 1e-10f;
            for (uint32_t c = i; c < i + group; c++) top = fmaxf(top, fabsf(x[c]));
            const float scale = k->int8_scale(x + i, group);
            assert_true(scale == top / 127);
            k->int8_codes(x + i, group, scale, by_fours, as_kept + i);
            for (uint32_t c = i; c < i + group; c++) {
                code[c] = (int8_t)fmaxf(fminf(rintf(x[c] / scale), 127), -127);
                uint32_t at = (c & ~3u) | (c & 1) << 1 | (c >> 1 & 1);
                assert_int_equal(as_kept[by_fours ? at : c], code[c]);
                r.scale[t * w->n_block + c / block] = scale;
                r.sum[t * w->n_block + c / block] += code[c];
            }
        }
    }
    return r;
}

/* Sums of codes are exact, so what is left are the few roundings of scales and of their sum. */
static void check_int8_product(const struct cpu_kernels *k, const struct made *m, uint64_t *seed)
{
    const struct packed *w = &m->w;
    const bool is_row = w->input == INPUT_CODE_INT8_ROW;
    const uint32_t block = 2 * w->block_pairs;
    struct int8_rows rows = make_int8_rows(k, w, seed);
    float *y = aligned(N_ROW * Y_STRIDE * sizeof *y);
    float *one = aligned(N_ROW * Y_STRIDE * sizeof *one);
    uint8_t *decoded = aligned(CHUNK_BYTES);
    double error = 0, norm = 0;
    struct gemm_call call = {.w = w,
                             .type = OPERAND_INT8,
                             .n_panel = w->n_panel,
                             .n_token = N_ROW,
                             .x = rows.as_kept,
                             .x_stride = ROW_STRIDE,
                             .x_scale = rows.scale,
                             .x_sum = rows.sum,
                             .y = y,
                             .y_stride = Y_STRIDE,
                             .decoded = decoded};
    k->gemm[OPERAND_INT8](&call);
    for (uint32_t t = 0; t < N_ROW; t++) {
        for (uint32_t r = 0; r < w->n_row; r++) {
            double want = 0;
            for (uint32_t c = 0; c < w->n_col; c++) {
                const double scale = (double)rows.scale[t * w->n_block + c / block];
                want += (double)m->value[(size_t)r * w->n_col + c] * scale *
                        rows.code[t * ROW_STRIDE + c];
            }
            norm += want * want;
            error += pow((double)y[t * Y_STRIDE + r] - want, 2);
        }
    }
    assert_true(sqrt(error) <= (is_row ? 2e-7 : 1e-6) * sqrt(norm));
    for (int round = 0; round < 40; round++) {
        uint32_t t0 = (uint32_t)rng_below(seed, N_ROW);
        call.panel0 = (uint32_t)rng_below(seed, w->n_panel);
        call.n_token = 1 + (uint32_t)rng_below(seed, N_ROW - t0);
        call.n_panel = 1 + (uint32_t)rng_below(seed, w->n_panel - call.panel0);
        call.x = rows.as_kept + t0 * ROW_STRIDE;
        call.x_scale = rows.scale + t0 * w->n_block;
        call.x_sum = rows.sum + t0 * w->n_block;
        call.y = one;
        k->gemm[OPERAND_INT8](&call);
        for (uint32_t t = 0; t < call.n_token; t++)
            assert_memory_equal(one + t * Y_STRIDE, y + (t0 + t) * Y_STRIDE + call.panel0 * PANEL,
                                call.n_panel * PANEL * sizeof *y);
    }
    mem_free(rows.x);
    mem_free(rows.code);
    mem_free(rows.as_kept);
    mem_free(rows.scale);
    mem_free(rows.sum);
    mem_free(y);
    mem_free(one);
    mem_free(decoded);
}

static void int8_products_are_exact_but_for_scales(void **state)
{
    (void)state;
    uint64_t seed = 19;
    for (int i = 0; i < N_ISA; i++) {
        const struct cpu_kernels *k = cpu_kernels_of(isas[i]);
        if (!k) continue;
        for (int round = 0; round < 12; round++) {
            const uint32_t shape[4] = {7 + 20 * (uint32_t)(round % 7), round % 5 == 0 ? 1152 : 384,
                                       PAIRS_PER_BLOCK, round % 3 == 0 ? 1 : PANEL};
            const bool is_u4 = round % 2 == 0;
            struct made m = make(is_u4 ? PACK_U4 : PACK_I8, shape, round % 4 == 0, &seed);
            m.w.input = INPUT_CODE_INT8_GROUP;
            check_int8_product(k, &m, &seed);
            drop(&m);
            if (is_u4) continue;
            m = make_whole_rows(shape, &seed);
            check_int8_product(k, &m, &seed);
            drop(&m);
        }
    }
}

static void int8_scales_of_what_is_not_finite_are_no_numbers(void **state)
{
    (void)state;
    for (int i = 0; i < N_ISA; i++) {
        const struct cpu_kernels *k = cpu_kernels_of(isas[i]);
        if (!k) continue;
        float x[KV_FP8_GROUP] = {1, -2};
        assert_true(k->int8_scale(x, KV_FP8_GROUP) == 2.0f / 127);
        for (int at = 0; at < KV_FP8_GROUP; at += 9) {
            const float was = x[at];
            x[at] = NAN;
            assert_true(isnan(k->int8_scale(x, KV_FP8_GROUP)));
            x[at] = -INFINITY;
            assert_true(isnan(k->int8_scale(x, KV_FP8_GROUP)));
            x[at] = was;
        }
    }
}

/* ---- attention ---- */

enum { KEY = KV_ROW, VALUE = KV_LATENT, N_QUERY = 21 };

struct group {
    float *row; /* [64][KEY] bf16 values */
    float *query;
    void *row_act;
    void *query_act;
    float zero[KEY];
    const void *pointer[GROUP_ROWS];
    uint32_t visible[N_QUERY];
    float score[N_QUERY * GROUP_ROWS];
    float max[N_QUERY], sum[N_QUERY];
    float *out;
};

static void run_group(const struct cpu_kernels *k, enum operand type, struct group *g,
                      uint32_t n_row, uint32_t q0, uint32_t n_query)
{
    struct attend_call call = {.row = g->pointer,
                               .n_row = n_row,
                               .n_query = n_query,
                               .key_dim = KEY,
                               .value_dim = VALUE,
                               .query = operand_row(type, g->query_act, (size_t)q0 * KEY),
                               .query_stride = KEY,
                               .n_visible = g->visible + q0,
                               .softmax_scale = 0.05f,
                               .score = g->score,
                               .max = g->max,
                               .sum = g->sum,
                               .out = g->out,
                               .out_stride = VALUE};
    k->attend[type](&call);
}

/* Of a query and the rows that it sees, as cpu_attend_amx.c has it: scores in steps of 32 columns,
 * values in two steps of 32 rows. The weights between are taken as they are. */
static void check_tile_group(const struct group *g, uint32_t q)
{
    float top = -INFINITY, weight[GROUP_ROWS], value[GROUP_ROWS];
    for (uint32_t r = 0; r < g->visible[q]; r++) {
        float sum = 0;
        for (uint32_t i = 0; i < KEY; i += 32)
            sum = add_tile_step(sum, g->row + r * KEY + i, g->query + q * KEY + i, 32);
        top = fmaxf(top, sum * 0.05f);
    }
    assert_true(same_float(g->max[q], top));
    for (uint32_t r = 0; r < GROUP_ROWS; r++)
        weight[r] = f32_from_bf16(bf16_from_f32(g->score[q * GROUP_ROWS + r]));
    for (uint32_t i = 0; i < VALUE; i++) {
        for (uint32_t r = 0; r < GROUP_ROWS; r++) value[r] = g->row[r * KEY + i];
        float sum = add_tile_step(0, value, weight, 32);
        sum = add_tile_step(sum, value + 32, weight + 32, 32);
        assert_true(same_float(g->out[q * VALUE + i] + 0.0f, sum + 0.0f));
    }
}

static void check_group(const struct cpu_kernels *k, enum operand type, uint32_t n_row,
                        uint64_t *seed)
{
    struct group *g = aligned(sizeof *g);
    float *all = aligned(N_QUERY * VALUE * sizeof *all);
    float max[N_QUERY];
    g->row = aligned(GROUP_ROWS * KEY * sizeof *g->row);
    g->query = aligned(N_QUERY * KEY * sizeof *g->query);
    g->row_act = aligned(GROUP_ROWS * KEY * sizeof(float));
    g->query_act = aligned(N_QUERY * KEY * sizeof(float));
    g->out = aligned(N_QUERY * VALUE * sizeof *g->out);
    for (uint32_t i = 0; i < n_row * KEY; i++)
        g->row[i] = f32_from_bf16(bf16_from_f32(rng_normal(seed)));
    for (uint32_t i = 0; i < N_QUERY * KEY; i++)
        g->query[i] = f32_from_bf16(bf16_from_f32(rng_normal(seed)));
    k->to_operand(type, false, g->row, GROUP_ROWS * KEY, g->row_act);
    k->to_operand(type, false, g->query, N_QUERY * KEY, g->query_act);
    for (uint32_t r = 0; r < GROUP_ROWS; r++)
        g->pointer[r] = r < n_row ? operand_row(type, g->row_act, (size_t)r * KEY) : g->zero;
    for (uint32_t q = 0; q < N_QUERY; q++) g->visible[q] = 1 + (uint32_t)rng_below(seed, n_row);
    run_group(k, type, g, n_row, 0, N_QUERY);
    const bool has_tiles = k == cpu_kernels_of(CPU_ISA_AMX) && type == OPERAND_BF16;
    for (uint32_t q = 0; q < N_QUERY && has_tiles; q++) check_tile_group(g, q);
    memcpy(all, g->out, N_QUERY * VALUE * sizeof *all);
    memcpy(max, g->max, sizeof max);
    for (uint32_t q = 0; q < N_QUERY; q++) {
        double score[GROUP_ROWS], top = -INFINITY, sum = 0;
        for (uint32_t r = 0; r < g->visible[q]; r++) {
            score[r] = 0;
            for (int i = 0; i < KEY; i++)
                score[r] += (double)g->query[q * KEY + i] * (double)g->row[r * KEY + i];
            score[r] *= 0.05;
            top = score[r] > top ? score[r] : top;
        }
        for (uint32_t r = 0; r < g->visible[q]; r++) sum += exp(score[r] - top);
        assert_true(fabs((double)max[q] - top) < 1e-5 * (1 + fabs(top)));
        assert_true(fabs((double)g->sum[q] - sum) < 1e-5 * sum);
        for (int i = 0; i < VALUE; i++) {
            double want = 0;
            for (uint32_t r = 0; r < g->visible[q]; r++)
                want += exp(score[r] - top) * (double)g->row[r * KEY + i];
            double limit = type == OPERAND_BF16 ? 1e-2 * sum : 1e-4 * sum;
            assert_true(fabs((double)all[q * VALUE + i] - want) < limit);
        }
    }
    /* a query alone, or beside others: the same bits */
    for (uint32_t q = 0; q < N_QUERY; q++) {
        uint32_t n = 1 + (uint32_t)rng_below(seed, N_QUERY - q);
        run_group(k, type, g, n_row, q, n);
        assert_memory_equal(g->out, all + q * VALUE, n * VALUE * sizeof *all);
    }
    mem_free(g->row);
    mem_free(g->query);
    mem_free(g->row_act);
    mem_free(g->query_act);
    mem_free(g->out);
    mem_free(g);
    mem_free(all);
}

static void attention_is_right_and_queries_are_alone(void **state)
{
    (void)state;
    uint64_t seed = 10;
    static const uint32_t n_rows[] = {1, 2, 3, 4, 5, 31, 63, 64};
    for (int i = 0; i < N_ISA; i++) {
        const struct cpu_kernels *k = cpu_kernels_of(isas[i]);
        if (!k) continue;
        for (size_t n = 0; n < sizeof n_rows / sizeof *n_rows; n++) {
            check_group(k, OPERAND_F32, n_rows[n], &seed);
            if (k->attend[OPERAND_BF16]) check_group(k, OPERAND_BF16, n_rows[n], &seed);
        }
    }
}

/* ---- packing of codes ---- */

static void packed_codes_stand_at_their_places(void **state)
{
    (void)state;
    enum { STRIDE = 200, COLUMNS = 2 * PAIRS_PER_BLOCK };
    uint64_t seed = 11;
    uint8_t rows[PANEL * STRIDE];
    uint8_t *panel = aligned(COLUMNS * PANEL);
    for (size_t i = 0; i < sizeof rows; i++) rows[i] = (uint8_t)rng_next(&seed);
    for (int i = 0; i < N_ISA; i++) {
        const struct cpu_kernels *k = cpu_kernels_of(isas[i]);
        if (!k) continue;
        for (uint32_t n_row = 0; n_row <= PANEL; n_row++) {
            k->pack_codes(rows, STRIDE, n_row, panel);
            for (uint32_t r = 0; r < PANEL; r++) {
                for (uint32_t c = 0; c < COLUMNS; c++) {
                    uint8_t want = r < n_row ? rows[r * STRIDE + c] : 0;
                    assert_int_equal(panel[c / 2 * 64 + 2 * byte_place(r) + c % 2], want);
                }
            }
        }
    }
    mem_free(panel);
}

/* ---- selection ---- */

static int descending(const void *a, const void *b)
{
    uint32_t x = *(const uint32_t *)a;
    uint32_t y = *(const uint32_t *)b;
    return (x < y) - (x > y);
}

static void the_bound_separates_exactly_n(void **state)
{
    (void)state;
    enum { N = 700 };
    uint64_t seed = 12;
    float x[N];
    uint32_t keys[N], sorted[N];
    for (int i = 0; i < N_ISA; i++) {
        const struct cpu_kernels *k = cpu_kernels_of(isas[i]);
        if (!k) continue;
        for (int round = 0; round < 300; round++) {
            uint32_t n_key = 1 + (uint32_t)rng_below(&seed, N);
            uint32_t n = 1 + (uint32_t)rng_below(&seed, n_key);
            for (uint32_t j = 0; j < n_key; j++) {
                x[j] = rng_normal(&seed);
                if (round % 3 == 0) x[j] = roundf(x[j]); /* many ties */
                if (round % 5 == 0 && j % 4 == 0) x[j] = j % 8 ? NAN : -INFINITY;
            }
            k->order_keys(x, n_key, keys);
            for (uint32_t j = 0; j < n_key; j++) assert_int_equal(keys[j], topk_key(x[j]));
            memcpy(sorted, keys, n_key * sizeof *keys);
            qsort(sorted, n_key, sizeof *sorted, descending);
            uint32_t n_equal;
            uint32_t least = topk_least(k, keys, n_key, n, &n_equal);
            uint32_t above = 0, equal = 0;
            for (uint32_t j = 0; j < n_key; j++) {
                above += keys[j] > least;
                equal += keys[j] == least;
            }
            assert_true(least <= sorted[n - 1]);
            assert_int_equal(above + (equal < n_equal ? equal : n_equal), n);
        }
    }
    assert_true(topk_key(-0.0f) == topk_key(0.0f));
    assert_true(topk_key(NAN) == topk_key(-INFINITY));
    assert_true(topk_key(-1.0f) < topk_key(-0.5f) && topk_key(-0.5f) < topk_key(1e-30f));
    assert_true(topk_key(3.0f) < topk_key(INFINITY));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(products_are_right_and_rows_are_alone),
        cmocka_unit_test(products_over_tiles_have_the_order_that_is_written),
        cmocka_unit_test(int8_products_are_exact_but_for_scales),
        cmocka_unit_test(int8_scales_of_what_is_not_finite_are_no_numbers),
        cmocka_unit_test(attention_is_right_and_queries_are_alone),
        cmocka_unit_test(packed_codes_stand_at_their_places),
        cmocka_unit_test(the_bound_separates_exactly_n),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
