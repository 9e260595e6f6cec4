/* cpu_kernel.h - the inner loops, one table per instruction set
 *
 * Everything that depends on the instruction set is behind struct cpu_kernels; the files that call
 * it are compiled for the plain machine. The kernels know nothing of threads, models or steps.
 *
 * Order of sums. A product's output element is accumulated block by block of columns (128, or the
 * weight's own groups where these are smaller), inside a
 * block pair by pair in ascending column, from zero. The block's sum times its scale is added to
 * the f32 result. That order holds for every number of rows, so an element's bits depend on its own
 * row of x and of w only. Between instruction sets bits differ (numerics): `vdpbf16ps` adds the two
 * products of a pair one after the other without keeping denormals, FMA rounds once, plain C twice,
 * and AMX adds 32 columns before they reach the sum (cpu_dot_amx.c).
 */
#ifndef FATHOM_BACKEND_CPU_KERNEL_H
#define FATHOM_BACKEND_CPU_KERNEL_H

#include <assert.h>
#include <math.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "backend/backend.h"
#include "base/assert.h"
#include "base/dtype.h"
#include "kv/layout.h"

enum {
    PANEL = 32,           /* rows of a weight that are stored together */
    PAIRS_PER_BLOCK = 64, /* columns, two by two, that share a scale: at most */
    /* Columns whose decoded panel is used for a whole block of tokens before the next ones. */
    CHUNK_BLOCKS = 4,
    CHUNK_BYTES = CHUNK_BLOCKS * PAIRS_PER_BLOCK * 2 * PANEL * 4, /* of one decoded panel */
    GROUP_ROWS = KV_PAGE_TOKENS,                                  /* rows of a group of attention */
    QUERY_MAX = 32, /* queries that attend to one group at a time */
};

static_assert(PANEL % 16 == 0, "a panel is whole vectors of every instruction set");
static_assert(GROUP_ROWS == 64, "op_attn.h fixes the groups of attention");
static_assert(2 * PAIRS_PER_BLOCK == 128, "a block of columns shares one scale");

/* How the inputs of products stand in memory: rows of f32 (rounded to bf16 values where the
 * activation type asks for it), of bf16, or of int8 codes with scales beside them. */
enum operand { OPERAND_F32, OPERAND_BF16, OPERAND_INT8, N_OPERAND };

static inline size_t operand_bytes(enum operand t)
{
    DCHECK(t < N_OPERAND);
    return t == OPERAND_INT8 ? 1 : t == OPERAND_BF16 ? 2 : 4;
}

/* A matrix [n_row][n_col] in panels of 32 rows, padded with zeros. A panel is its columns two by
 * two: for each pair a group of 32 rows x 2 columns.
 *   PACK_FP8   64 bytes: row r's two codes at 2 * byte_place(r)
 *   PACK_I8    the same, of int8 codes as sign (0x80) and magnitude
 *   PACK_BF16  128 bytes: row r's two values at 4 * r
 *   PACK_F32   256 bytes: the 32 rows of the even column, then those of the odd one
 *   PACK_U4    64 bytes for two pairs: rows r and 16 + r in the low and high four bits of bytes
 *              4 r .. 4 r + 3, which are columns 0, 2, 1, 3. A code counts from its row's zero.
 *   PACK_E2M1  the same, of codes that are values
 * The rows of single bytes are so ordered that unpacking bytes inside 128-bit lanes restores them.
 * With four bits, shifting 16-bit words by 0, 4, 8 and 12 puts the low bits of two columns of 16
 * rows where a table of 32 words finds them, whatever stands above. */
enum pack_kind { PACK_FP8, PACK_I8, PACK_BF16, PACK_U4, PACK_E2M1, PACK_F32, N_PACK_KIND };

static inline bool pack_is_nibbles(enum pack_kind kind)
{
    return kind == PACK_U4 || kind == PACK_E2M1;
}

static inline uint32_t byte_place(uint32_t row)
{
    DCHECK(row < PANEL);
    return (row & 12) << 1 | (row & 16) >> 2 | (row & 3);
}

/* of one pair; groups of PACK_U4 and PACK_E2M1 are two */
static inline uint32_t pack_group_bytes(enum pack_kind kind)
{
    DCHECK(kind < N_PACK_KIND);
    if (pack_is_nibbles(kind)) return 32;
    return kind == PACK_F32 ? 256 : kind == PACK_BF16 ? 128 : 64;
}

enum { U4_ZERO = 8 }; /* where no zeros are stored */

struct packed {
    enum pack_kind kind;
    uint32_t n_row;
    uint32_t n_col;
    uint32_t n_panel;
    uint32_t n_pair;
    uint32_t block_pairs; /* pairs of a block, 8 to PAIRS_PER_BLOCK; of four bits always even */
    uint32_t first_pair;  /* those of the first block; the last has what is left */
    uint32_t n_block;     /* blocks of columns */
    uint32_t scale_lanes; /* scales of a panel's block: 1, or one per row */
    uint32_t n_scale;     /* blocks of a panel that have scales of their own: all, or the first */
    size_t panel_bytes;
    bool is_lent; /* data, scale and zero are the backend's, which frees them after all weights */
    enum input_code input; /* how inputs are quantized */
    uint8_t *data;         /* [n_panel][panel_bytes], 64-byte aligned */
    float *scale;          /* f32 [n_panel][n_scale][scale_lanes] */
    uint8_t *zero;         /* of PACK_U4, [n_panel][n_block][PANEL]; NULL: all are U4_ZERO */
};

static inline uint32_t packed_block_pairs(const struct packed *w, uint32_t block)
{
    DCHECK(block < w->n_block);
    if (block == 0) return w->first_pair;
    uint32_t left = w->n_pair - w->first_pair - (block - 1) * w->block_pairs;
    return left < w->block_pairs ? left : w->block_pairs;
}

static inline uint32_t packed_block_start(const struct packed *w, uint32_t block)
{
    DCHECK(block < w->n_block);
    return block == 0 ? 0 : w->first_pair + (block - 1) * w->block_pairs;
}

/* The scales of a panel's block. */
static inline float *packed_scales(const struct packed *w, uint32_t panel, uint32_t block)
{
    DCHECK(panel < w->n_panel && block < w->n_block);
    size_t i = (size_t)panel * w->n_scale + (w->n_scale == 1 ? 0 : block);
    return w->scale + i * w->scale_lanes;
}

static inline const uint8_t *packed_zeros(const struct packed *w, uint32_t panel, uint32_t block)
{
    DCHECK(panel < w->n_panel && block < w->n_block);
    return w->zero ? w->zero + ((size_t)panel * w->n_block + block) * PANEL : NULL;
}

/* y[t][32 * (p - panel0) + r] = w[32 p + r] . x[t] for n_panel panels from panel0
 *   x  operand [n_token][x_stride], n_col values, zero up to the next even column
 *   y  f32 [n_token][y_stride]; 32 * n_panel columns are written
 *   decoded  CHUNK_BYTES of scratch, 64-byte aligned
 * Of int8 codes, for each block of w's columns: x_scale, f32 [n_token][n_block], and x_sum, the sum
 * of the codes, i32 [n_token][n_block]. Codes for PACK_U4 stand in the order 0, 2, 1, 3 of four. */
struct gemm_call {
    const struct packed *w;
    enum operand type; /* of x */
    uint32_t panel0;
    uint32_t n_panel;
    uint32_t n_token;
    const void *x;
    size_t x_stride;
    const float *x_scale;
    const int32_t *x_sum;
    float *y;
    size_t y_stride;
    void *decoded;
};

/* One group of at most 64 cache rows and the queries that attend to it. Rows are pointers, so that
 * they may lie in the cache itself; those from n_row up to the next multiple of 4 point to zeros.
 *   operand F32: queries, rows and weights in f32. BF16: queries and rows are bf16. */
struct attend_call {
    const void *const *row; /* [GROUP_ROWS] */
    uint32_t n_row;
    uint32_t n_query;
    uint32_t key_dim;   /* multiple of 32 */
    uint32_t value_dim; /* multiple of 64: the first of a row */
    const void *query;  /* operand [n_query][query_stride] */
    size_t query_stride;
    const uint32_t *n_visible; /* [n_query] rows of the group that each query sees, 1 .. n_row */
    float softmax_scale;
    float *score; /* scratch f32 [n_query][GROUP_ROWS] */
    float *max;   /* f32 [n_query] written: the largest score */
    float *sum;   /* f32 [n_query] written: sum of exp(score - max) */
    float *out;   /* f32 [n_query][out_stride] written: sum of exp(score - max) * value */
    size_t out_stride;
};

/* topk_key - larger values have larger keys; NaN counts as -inf, -0 as 0 */
static inline uint32_t topk_key(float value)
{
    uint32_t u = f32_bits(value != value ? -INFINITY : value + 0.0f);
    return u ^ ((uint32_t)((int32_t)u >> 31) | 0x80000000);
}

struct cpu_kernels {
    const char *isa;
    const char *numerics;      /* equal for tables that compute the same bits */
    enum operand bf16_operand; /* how ACT_BF16 inputs are kept */
    /* Products by the type of x; OPERAND_BF16 is NULL where there is no bf16 dot product.
     * OPERAND_INT8 is for PACK_I8 and PACK_U4 of blocks that are whole fours of columns: sums of
     * codes are exact, a block's is multiplied by (its scale of x) * (its scale of w). With
     * INPUT_CODE_INT8_ROW all blocks are one. */
    void (*gemm[N_OPERAND])(const struct gemm_call *c);
    /* Attention over one group, by the type of queries and rows; the same. */
    void (*attend[N_OPERAND])(const struct attend_call *c);
    /* Row q of c->score becomes exp(score - max), max and sum are set: shared by both. */
    void (*softmax_group)(const struct attend_call *c, uint32_t q);

    /* Rows. n is a multiple of 32 unless it is said otherwise; padding is zero. */

    /* x += delta (if not NULL); out = x * rsqrt(sum(x^2) / n_mean + eps) * weight */
    void (*add_norm)(float *x, const float *delta, const float *weight, uint32_t n, uint32_t n_mean,
                     float eps, float *out);
    void (*layer_norm)(const float *x, const float *weight, const float *bias, uint32_t n,
                       float eps, float *out);
    /* out = in as an operand; round: to bf16 values, also where the operand is f32 */
    void (*to_operand)(enum operand type, bool round, const float *in, uint32_t n, void *out);
    void (*silu_mul)(const float *gate, const float *up, uint32_t n, float *out);
    void (*add_scaled)(float *y, float a, const float *x, uint32_t n); /* y += a * x */
    void (*scale)(float *y, float a, uint32_t n);
    /* x[64] rotated by cos_sin[32][2] */
    void (*rope)(float *x, const float *cos_sin, bool interleaved);
    void (*hadamard)(float x[KV_INDEX_DIM]); /* H x / sqrt(128) */
    /* The codes of 128 values and their power-of-two scale. */
    float (*quantize_group)(const float x[KV_FP8_GROUP], uint8_t code[KV_FP8_GROUP]);
    void (*sigmoid)(float *x, uint32_t n);
    /* max(|x|, 1e-10) / 127, NaN if a value is not finite; n codes rint(x / scale), -127 .. 127.
     * by_fours: in the order 0, 2, 1, 3 */
    float (*int8_scale)(const float *x, uint32_t n);
    void (*int8_codes)(const float *x, uint32_t n, float scale, bool by_fours, int8_t *code);

    /* One latent row from its cache type to an operand (exact), and back from f32. */
    void (*load_latent)(enum kv_type type, const uint8_t *row, enum operand to, void *out);
    void (*store_latent)(enum kv_type type, const float *row, uint8_t *out);
    /* codes as an operand; any n */
    void (*load_codes)(const uint8_t *code, uint32_t n, enum operand to, void *out);

    /* out[i] += w * max(0, dot[i]), n multiple of 32 */
    void (*add_relu)(float *out, float w, const float *dot, uint32_t n);
    /* 128 columns of a panel (64 groups) from at most 32 rows; rows from n_row on are zero and not
     * read. pack_codes: codes to PACK_FP8, rows `stride` bytes apart; pack_halves: bf16 values to
     * PACK_BF16. pack_keys_f32: index keys, as the cache has them, to PACK_F32. */
    void (*pack_codes)(const uint8_t *rows, size_t stride, uint32_t n_row, uint8_t *panel);
    void (*pack_halves)(const uint8_t *rows, size_t stride, uint32_t n_row, uint8_t *panel);
    void (*pack_keys_f32)(bool coded, const uint8_t *keys, uint32_t n_row, uint8_t *panel);

    /* (max, sum, out) of a group joined to those of the groups before it */
    void (*merge)(float *max, float *sum, float *out, float group_max, float group_sum,
                  const float *group_out, uint32_t n);

    /* keys[i] = topk_key(x[i]); how many keys are >= least */
    void (*order_keys)(const float *x, uint32_t n, uint32_t *keys);
    uint32_t (*count_from)(const uint32_t *keys, uint32_t n, uint32_t least);

    float (*max)(const float *x, uint32_t n);                /* any n >= 1; NaN counts as -inf */
    float (*sum_exp)(const float *x, float max, uint32_t n); /* any n: sum of exp(x - max) */
    void (*exp_row)(const float *x, float max, uint32_t n, float *out); /* n rounded up to 32 */
};

extern const struct cpu_kernels cpu_kernels_portable;
#if defined(__x86_64__)
extern const struct cpu_kernels cpu_kernels_avx2;
extern const struct cpu_kernels cpu_kernels_avx512;
extern const struct cpu_kernels cpu_kernels_amx;

/* cpu_dot_avx512.c, for the AVX-512 table */
void cpu_gemm_bf16_avx512(const struct gemm_call *c);
void cpu_gemm_bf16_amx(const struct gemm_call *c);    /* cpu_dot_amx.c */
void cpu_gemm_int8_avx512(const struct gemm_call *c); /* cpu_dot_int8_avx512.c */
void cpu_gemm_int8_amx(const struct gemm_call *c);    /* cpu_dot_int8_amx.c */
void cpu_gemm_int8_avx2(const struct gemm_call *c);   /* cpu_dot_int8_avx2.c */
void cpu_attend_bf16_avx512(const struct attend_call *c);
void cpu_attend_bf16_amx(const struct attend_call *c); /* cpu_attend_amx.c */
void cpu_pack_codes_avx512(const uint8_t *rows, size_t stride, uint32_t n_row, uint8_t *panel);
void cpu_pack_halves_avx512(const uint8_t *rows, size_t stride, uint32_t n_row, uint8_t *panel);
#endif

#endif
