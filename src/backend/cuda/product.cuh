/* product.cuh - arguments that the matrix product kernels share */
#ifndef FATHOM_BACKEND_CUDA_PRODUCT_CUH
#define FATHOM_BACKEND_CUDA_PRODUCT_CUH

#include "backend/cuda/common.cuh"
#include "backend/cuda/cuda_int.cuh"
#include "backend/cuda/k_parts.h"

/* A tiled matrix lies in tiles of TILE_ROWS rows and one K line, the K lines of the same rows one
 * after the other, so that whoever walks along K reads memory from end to end. Inside a tile the
 * pieces of a row are permuted as the tensor cores take them from shared memory: a tile is one copy
 * of TILE_BYTES. */
enum { TILE_ROWS = 64, TILE_BYTES = TILE_ROWS * K_LINE_BYTES };

/* Where byte `col` of `row` lies in a tiled matrix of rows of k bytes. */
static __host__ __device__ inline size_t tiled_at(uint32_t row, uint32_t col, uint32_t k)
{
    const size_t tile = (size_t)(row / TILE_ROWS) * (k / K_LINE_BYTES) + col / K_LINE_BYTES;
    return tile * TILE_BYTES + row % TILE_ROWS * K_LINE_BYTES +
           ((col % K_LINE_BYTES) ^ (row % 8 * 16));
}

/* Bytes of a tiled matrix: whole squares of SCALE_BLOCK; rows past the end are zero. */
static inline size_t tiled_bytes(uint32_t n_row, uint32_t k)
{
    static_assert((int)SCALE_BLOCK % (int)TILE_ROWS == 0, "squares of whole tiles");
    return (size_t)ceil_div(n_row, SCALE_BLOCK) * SCALE_BLOCK * k;
}

/* U4 codes less their zeros turned to E4M3 (sm90/product_u4_turned.cu) are a tiled matrix of 2^-9
 * times each, which is TURNED_FACTOR short. Behind it lie the scales, F16, of 64 outputs and a K
 * line TURNED_SCALE_BYTES, those of the same 128 outputs beside each other. Inside, columns 8 j +
 * 2 t and the next lie as the tensor cores give a lane's sums: [j / 4][t][j % 4][2]. */
#define TURNED_FACTOR 512.0f
enum { TURNED_SCALE_BYTES = TILE_ROWS * 2 };

/* Where those of tile `tile` begin, from the matrix's end. */
static __host__ __device__ inline size_t turned_scales_at(uint32_t tile, uint32_t k_line,
                                                          uint32_t n_k_line)
{
    return (((size_t)(tile / 2) * n_k_line + k_line) * 2 + tile % 2) * TURNED_SCALE_BYTES;
}

/* out[row][n] = sum_k W[n][k] in[row][k]. Plain: blockIdx.y cuts rows 0 .. n_token. Mapped: a task
 * names an expert and a piece of the row list; row r reads in[r / in_divisor], writes out[r]. */
struct product_args {
    const void *w;
    bool tiled; /* w lies as tiled_at says; else row by row */
    const float *w_scale;
    const float *row_scale; /* times each output, where scales of blocks are ones; or NULL */
    size_t row_scale_step;  /* mapped: floats from matrix to matrix */
    uint32_t n;
    uint32_t k;
    uint32_t scale_stride;
    uint32_t row0;
    uint32_t col0;
    uint32_t block_row; /* of w_scale, in product_float */
    uint32_t block_col;
    struct pack4 pack; /* w is packed (pack4.h) */
    const float *f;
    const bf16 *h;
    const uint8_t *q;
    const float *q_scale;   /* [rows][k / 128] */
    bool int8;              /* q and w hold int8; with row_scale, a row of inputs has one scale */
    bool round;             /* inputs are rounded to bf16: float kernel only */
    const int32_t *in_rows; /* plain, bf16: row r reads in[in_rows[r]]; NULL: in[r] */
    uint32_t n_token;
    float *out;
    uint32_t out_stride;
    /* written instead of out, by product_fp8_sm90 alone but for out_h: */
    bf16 *out_h;    /* rounded; mapped: of rows in_listed, of E2M1, or of few; plain: with angles */
    uint8_t *out_q; /* W is [gate ; up]: codes and scales of their SwiGLU, rows of n / 2 */
    float *out_scale; /* [rows][n / 2 / FP8_GROUP] */
    /* with out_h, plain: columns are heads of QUERY_DIM, the last KV_ROPE of each pairs of
     * neighbours that are turned before they are rounded. Row r's sines and cosines, one after the
     * other, begin at angles[r * angle_stride]. */
    const float *angles;
    uint32_t angle_stride;
    /* mapped only */
    const struct task *tasks; /* NULL: plain */
    const int32_t *n_task;
    const int32_t *rows;
    uint32_t in_divisor;
    size_t w_stride;     /* bytes from matrix to matrix; also of a plain product that is tiled */
    size_t w_scale_step; /* floats */
    bool in_listed;      /* entry i of `rows` reads in[i], of n_token: product_fp8_sm90 alone */
    bool out_listed;     /* and writes out[i] */
    int32_t *feed;       /* two zeros, by which blocks of product_fp8_wide, product_u4_sm90,
                    * product_e2m1_sm90 and product_bf16_sm90 take tasks (sm90/feed.cuh); in the
                    * end zeros again */
    const float *input_sums; /* U4: input_sum of [rows of inputs][k / group] */
    int known_task; /* the number of tasks, and the last one's expert, whatever is chosen; 0: it is
                     * not known */
    int known_expert;
    bool tasks_early; /* tasks were there before the kernel in front let this one begin */
    struct handed_sums handed;
};

/* The rows that a block works on: at most `tile` of them, and where its weights are. */
struct product_rows {
    const int32_t *rows; /* NULL: first, first + 1, ... */
    int first;
    int n; /* 0: nothing to do */
    const char *w;
    const float *w_scale;
    const float *row_scale; /* NULL: none */
};

static __device__ __forceinline__ struct product_rows product_rows_of(const struct product_args &a,
                                                                      int i_tile, int tile)
{
    struct product_rows p = {NULL, i_tile * tile, 0, (const char *)a.w, a.w_scale, a.row_scale};
    DCHECK(i_tile >= 0 && tile > 0);
    if (!a.tasks) {
        p.n = min(tile, (int)a.n_token - p.first);
        return p;
    }
    if (i_tile >= *a.n_task) return p;
    struct task t = a.tasks[i_tile];
    DCHECK(t.expert >= 0 && t.first >= 0 && t.n > 0 && t.n <= tile);
    p.rows = a.rows + t.first;
    p.first = 0;
    p.n = t.n;
    p.w += (size_t)t.expert * a.w_stride;
    p.w_scale += (size_t)t.expert * a.w_scale_step;
    if (p.row_scale) p.row_scale += (size_t)t.expert * a.row_scale_step;
    return p;
}

/* An int8 output, of the sum of all products of codes: times both scales, whose product is rounded
 * first. */
static __device__ __forceinline__ float int8_value(int sum, float in_scale, float row_scale)
{
    return (float)sum * (in_scale * row_scale);
}

/* The finished sum of output n. */
static __device__ __forceinline__ float row_scaled(const struct product_rows &p, uint32_t n,
                                                   float sum)
{
    return p.row_scale ? sum * p.row_scale[n] : sum;
}

/* Where row i of p is written. */
static __device__ __forceinline__ int out_row(const struct product_rows &p, int i)
{
    DCHECK(i >= 0 && i < p.n);
    return p.rows ? p.rows[i] : p.first + i;
}

/* Where row i of p is read. */
static __device__ __forceinline__ int in_row(const struct product_args &a,
                                             const struct product_rows &p, int i)
{
    DCHECK(i >= 0 && i < p.n && (!p.rows || a.in_divisor > 0));
    return p.rows ? p.rows[i] / (int)a.in_divisor : p.first + i;
}

/* Launchers; each says in its file which shapes it takes. */
fathom_err product_float(struct cuda_backend *c, const struct product_args &a, enum dtype dtype,
                         uint32_t n_tile, const char *what);
fathom_err product_small(struct cuda_backend *c, const struct product_args &a, uint32_t tile_tokens,
                         uint32_t n_tile, const char *what);
fathom_err product_u4_small(struct cuda_backend *c, const struct product_args &a,
                            uint32_t tile_tokens, uint32_t n_tile, const char *what);
fathom_err product_i8(struct cuda_backend *c, const struct product_args &a, uint32_t tile,
                      uint32_t n_tile, const char *what);
fathom_err product_bf16(struct cuda_backend *c, const struct product_args &a, uint32_t tile,
                        uint32_t n_tile, const char *what);
fathom_err product_fp8_large(struct cuda_backend *c, const struct product_args &a, uint32_t n_tile,
                             const char *what);

enum {
    PRODUCT_FLOAT_TILE = 64,
    PRODUCT_BF16_TILE_MAX = 64,
    PRODUCT_LARGE_TILE = 128,
    PRODUCT_WIDE_TILE = 192, /* of experts in product_fp8_wide */
};
static_assert((int)PRODUCT_LARGE_TILE == (int)SCALE_BLOCK,
              "product_fp8: a tile has one scale a K line");

#endif
