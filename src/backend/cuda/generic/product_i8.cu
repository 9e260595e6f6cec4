/* product_i8.cu - matrix products of int8 weights with int8 inputs
 *
 * Inputs are codes with one scale a row, where the weight has one a row, or for 128 values
 * (backend.h). Sums of codes are exact integers: over all of K with scales of rows, over a K line
 * with squares, whose sums are then added in f32 in the order of k_parts.h. So both kernels give
 * the same bits, those of sm90/, and those of ref but for a few roundings.
 *
 * Few rows: a warp owns 16 outputs and a part of K; weights stream once from memory to registers,
 * as in product_small.cu. Many: tiles of 128 rows x 64 outputs in shared memory, as in
 * product_large.cu. In both the order of k inside a K line is free as long as the operands share
 * it, so a lane takes 16 bytes at 16 t of each half. */
#include "backend/cuda/k_parts.h"
#include "backend/cuda/launch.cuh"
#include "backend/cuda/product.cuh"

/* What is summed: codes over all of K, or values. */
template <bool BY_ROW> struct sum_of {
    typedef int type;
};
template <> struct sum_of<false> {
    typedef float type;
};

/* The scale of output n's weights in K line k_line. */
static __device__ __forceinline__ float weight_scale(const struct product_args &a,
                                                     const struct product_rows &p, uint32_t n,
                                                     uint32_t k_line)
{
    return p.w_scale[(size_t)((a.row0 + n) / a.block_row) * a.scale_stride + k_line];
}

/* An output with scales of rows. */
static __device__ __forceinline__ float
finished(const struct product_args &a, const struct product_rows &p, int row, uint32_t n, int sum)
{
    const size_t n_k_line = a.k / K_LINE_BYTES;
    return int8_value(sum, a.q_scale[in_row(a, p, row) * n_k_line], p.row_scale[n]);
}

static __device__ __forceinline__ float
finished(const struct product_args &, const struct product_rows &, int, uint32_t, float sum)
{
    return sum;
}

/* A lane's part of a row's K line: the 16 bytes at 16 t of both halves. */
struct alignas(16) piece {
    uint32_t lo[4], hi[4];
};

/* c += 16 rows of weights times 8 of inputs, over a K line */
static __device__ __forceinline__ void multiply(int (&c)[4], const struct piece &row,
                                                const struct piece &row8, const struct piece &in)
{
#pragma unroll
    for (int j = 0; j < 4; j++)
        mma_s8(c, row.lo[j], row8.lo[j], row.hi[j], row8.hi[j], in.lo[j], in.hi[j]);
}

/* ---- few rows ---- */

enum { FEW_WARPS = 8, FEW_AHEAD = 4 };

static __device__ __forceinline__ void load_weights(struct piece &to, const char *from)
{
    *(uint4 *)to.lo = load_stream(from);
    *(uint4 *)to.hi = load_stream(from + K_LINE_BYTES / 2);
}

/* One K line of weights times up to 8 * NT rows, added to acc: rows g and g + 8 of a warp's
 * outputs, which begin at n0. */
template <int NT, bool BY_ROW>
static __device__ __forceinline__ void
    add_k_line(typename sum_of<BY_ROW>::type (&acc)[NT][4], const struct piece (&w)[2],
               const struct product_args &a, const struct product_rows &p, uint32_t n0,
               uint32_t k_line)
{
    const uint32_t lane = threadIdx.x % WARP, g = lane / 4, t = lane % 4;
    const size_t n_k_line = a.k / K_LINE_BYTES;
#pragma unroll
    for (int i = 0; i < NT; i++) {
        const int row = min(i * 8 + (int)g, p.n - 1);
        const uint8_t *from =
            a.q + (size_t)in_row(a, p, row) * a.k + k_line * K_LINE_BYTES + 16 * t;
        struct piece in;
        *(uint4 *)in.lo = *(const uint4 *)from;
        *(uint4 *)in.hi = *(const uint4 *)(from + K_LINE_BYTES / 2);
        if constexpr (BY_ROW) {
            multiply(acc[i], w[0], w[1], in);
        } else {
            int c[4] = {};
            multiply(c, w[0], w[1], in);
#pragma unroll
            for (int j = 0; j < 4; j++) {
                const int x = in_row(a, p, min(i * 8 + (int)(2 * t) + j % 2, p.n - 1));
                const uint32_t n = min(n0 + g + (uint32_t)(j / 2 * 8), a.n - 1);
                const float s =
                    a.q_scale[(size_t)x * n_k_line + k_line] * weight_scale(a, p, n, k_line);
                acc[i][j] = fmaf((float)c[j], s, acc[i][j]);
            }
        }
    }
}

/* Adds the K parts and writes rows x outputs. */
template <int NT, int WK, bool BY_ROW>
static __device__ __forceinline__ void
finish(const struct product_args &a, const struct product_rows &p,
       typename sum_of<BY_ROW>::type (&acc)[NT][4], typename sum_of<BY_ROW>::type *shared,
       uint32_t n_block)
{
    enum { COLS = NT * 8, ROWS = 16, PITCH = ROWS + 1, AREA = COLS * PITCH, WN = FEW_WARPS / WK };
    const int lane = (int)threadIdx.x % WARP, g = lane / 4, t = lane % 4;
    typename sum_of<BY_ROW>::type *mine = shared + (int)threadIdx.x / WARP * AREA;
#pragma unroll
    for (int i = 0; i < NT; i++) {
#pragma unroll
        for (int j = 0; j < 4; j++)
            mine[(i * 8 + 2 * t + j % 2) * PITCH + g + j / 2 * 8] = acc[i][j];
    }
    __syncthreads();
    for (int i = (int)threadIdx.x; i < p.n * WN * ROWS; i += FEW_WARPS * WARP) {
        const int n = i % (WN * ROWS), col = i / (WN * ROWS);
        const uint32_t at = n_block + (uint32_t)n;
        if (at >= a.n) continue;
        const typename sum_of<BY_ROW>::type *from =
            shared + n / ROWS * WK * AREA + col * PITCH + n % ROWS;
        typename sum_of<BY_ROW>::type sum = from[0];
#pragma unroll
        for (int j = 1; j < WK; j++) sum += from[j * AREA];
        a.out[(size_t)out_row(p, col) * a.out_stride + at] = finished(a, p, col, at, sum);
    }
}

template <int NT, int WK, bool BY_ROW>
__global__ void __launch_bounds__(FEW_WARPS *WARP, NT == 1 ? 2 : 1)
    product_i8_few_kernel(const struct product_args a)
{
    SHARED_DYNAMIC(float, shared);
    const uint32_t warp = threadIdx.x / WARP, lane = threadIdx.x % WARP;
    const uint32_t n_k_line = a.k / K_LINE_BYTES, k_part = n_k_line / WK,
                   first = warp % WK * k_part;
    const uint32_t n_block = blockIdx.x * (FEW_WARPS / WK) * 16, n0 = n_block + warp / WK * 16;
    DCHECK(n_k_line % WK == 0);
    kernel_begin();
    const struct product_rows p = product_rows_of(a, (int)blockIdx.y, NT * 8);
    if (p.n <= 0) return;
    const char *w[2];
#pragma unroll
    for (uint32_t h = 0; h < 2; h++) {
        const uint32_t n = min(n0 + lane / 4 + 8 * h, a.n - 1);
        w[h] = p.w + (size_t)n * a.k + (size_t)first * K_LINE_BYTES + lane % 4 * 16;
    }
    typename sum_of<BY_ROW>::type acc[NT][4] = {};
    for (uint32_t b = 0; b < k_part; b += FEW_AHEAD) {
        struct piece l[FEW_AHEAD][2];
#pragma unroll
        for (uint32_t u = 0; u < FEW_AHEAD; u++) {
            if (b + u >= k_part) break;
            load_weights(l[u][0], w[0] + (size_t)(b + u) * K_LINE_BYTES);
            load_weights(l[u][1], w[1] + (size_t)(b + u) * K_LINE_BYTES);
        }
#pragma unroll
        for (uint32_t u = 0; u < FEW_AHEAD; u++) {
            if (b + u >= k_part) break;
            add_k_line<NT, BY_ROW>(acc, l[u], a, p, n0, first + b + u);
        }
    }
    finish<NT, WK, BY_ROW>(a, p, acc, (typename sum_of<BY_ROW>::type *)shared, n_block);
}

template <int NT, int WK>
static fathom_err launch_few(struct cuda_backend *c, const struct product_args &a, uint32_t n_tile,
                             const char *what)
{
    const dim3 grid(ceil_div(a.n, FEW_WARPS / WK * 16), n_tile);
    const size_t bytes = (size_t)FEW_WARPS * NT * 8 * sizeof(float) * 17;
    static_assert(FEW_WARPS * NT * 8 * sizeof(float) * 17 <= SHARED_PLAIN_MAX,
                  "no limit is raised for it");
    return cuda_launch(c, what,
                       a.row_scale ? product_i8_few_kernel<NT, WK, true>
                                   : product_i8_few_kernel<NT, WK, false>,
                       grid, FEW_WARPS * WARP, bytes, a);
}

/* K is cut as sm90/ does. */
static uint32_t part_count(const struct product_args &a)
{
    return fp8_k_part_count(a.n, a.k / K_LINE_BYTES, a.tasks != NULL);
}

template <int NT>
static fathom_err launch_k_parts(struct cuda_backend *c, const struct product_args &a,
                                 uint32_t n_tile, const char *what)
{
    switch (part_count(a)) {
    case 8: return launch_few<NT, 8>(c, a, n_tile, what);
    case 4: return launch_few<NT, 4>(c, a, n_tile, what);
    case 2: return launch_few<NT, 2>(c, a, n_tile, what);
    default: return launch_few<NT, 1>(c, a, n_tile, what);
    }
}

/* ---- many rows ---- */

enum {
    BM = PRODUCT_LARGE_TILE,
    BN = 64,
    BK = K_LINE_BYTES,
    STAGES = 4,
    MANY_THREADS = 256,
    STAGE_BYTES = (BM + BN) * BK,
};
static_assert(BM * BN == MANY_THREADS / WARP * 32 * 32, "a warp has 32 x 32 outputs");
static_assert((BM + BN) * 8 % MANY_THREADS == 0, "every thread copies equally much");

/* Byte (row, 16-byte piece) of a tile with 128-byte rows: as in product_large.cu. */
static __device__ __forceinline__ uint32_t swizzle(int row, int piece)
{
    return (uint32_t)(row * BK + ((piece ^ (row & 1) << 2) << 4));
}

static __device__ __forceinline__ void load_stage(const struct product_args &a,
                                                  const struct product_rows &p, const int *rows,
                                                  uint32_t base, uint32_t n0, uint32_t k_line)
{
    for (int i = (int)threadIdx.x; i < (BM + BN) * 8; i += MANY_THREADS) {
        const int row = i / 8, piece = i % 8;
        const size_t at = (size_t)k_line * BK + (size_t)piece * 16;
        if (row < BM) {
            const bool valid = row < p.n;
            const uint8_t *src = a.q + (size_t)rows[valid ? row : 0] * a.k + at;
            cp_async_16(base + swizzle(row, piece), src, valid);
        } else {
            const uint32_t n = n0 + (uint32_t)(row - BM);
            const bool valid = n < a.n;
            const char *src = p.w + (size_t)(valid ? n : 0) * a.k + at;
            cp_async_16(base + BM * BK + swizzle(row - BM, piece), src, valid);
        }
    }
}

static __device__ __forceinline__ void load_piece(struct piece &to, const unsigned char *tile,
                                                  int row)
{
    const int t = (int)threadIdx.x % 4;
    *(uint4 *)to.lo = *(const uint4 *)(tile + swizzle(row, t));
    *(uint4 *)to.hi = *(const uint4 *)(tile + swizzle(row, 4 + t));
}

/* c += one K line of a warp's 32 x 32 outputs */
static __device__ __forceinline__ void multiply_stage(int (&c)[2][4][4], const unsigned char *stage,
                                                      int m0, int n0)
{
    const int g = (int)threadIdx.x % WARP / 4;
    struct piece in[2][2], w[4];
#pragma unroll
    for (int m = 0; m < 2; m++) {
        load_piece(in[m][0], stage, m0 + m * 16 + g);
        load_piece(in[m][1], stage, m0 + m * 16 + 8 + g);
    }
#pragma unroll
    for (int n = 0; n < 4; n++) load_piece(w[n], stage + BM * BK, n0 + n * 8 + g);
#pragma unroll
    for (int m = 0; m < 2; m++) {
#pragma unroll
        for (int n = 0; n < 4; n++) multiply(c[m][n], in[m][0], in[m][1], w[n]);
    }
}

/* Where a warp's sums are: those of a thread are rows m0 + 16 m + 8 j + g, columns nw + 8 n + 2 t
 * and the next, c[m][n][2 j] and the next. */
struct many_place {
    int m0, nw, g, t;
    uint32_t n0;
};

/* part += c, the sums of a K line, times both scales */
static __device__ __forceinline__ void add_scaled(float (&part)[2][4][4], const int (&c)[2][4][4],
                                                  const struct product_args &a,
                                                  const struct product_rows &p, const int *rows,
                                                  const struct many_place &at, uint32_t k_line)
{
    const size_t n_k_line = a.k / BK;
#pragma unroll
    for (int m = 0; m < 2; m++) {
#pragma unroll
        for (int j = 0; j < 2; j++) {
            const int row = rows[at.m0 + m * 16 + j * 8 + at.g];
            const float of_row = a.q_scale[(size_t)row * n_k_line + k_line];
#pragma unroll
            for (int n = 0; n < 4; n++) {
#pragma unroll
                for (int i = 0; i < 2; i++) {
                    const uint32_t col = at.n0 + (uint32_t)(at.nw + n * 8 + 2 * at.t + i);
                    const float s = of_row * weight_scale(a, p, min(col, a.n - 1), k_line);
                    float *to = &part[m][n][2 * j + i];
                    *to = fmaf((float)c[m][n][2 * j + i], s, *to);
                }
            }
        }
    }
}

template <bool BY_ROW>
static __device__ __forceinline__ void
store_tile(const struct product_args &a, const struct product_rows &p,
           const typename sum_of<BY_ROW>::type (&total)[2][4][4], const struct many_place &at)
{
#pragma unroll
    for (int m = 0; m < 2; m++) {
#pragma unroll
        for (int j = 0; j < 2; j++) {
            const int row = at.m0 + m * 16 + j * 8 + at.g;
            if (row >= p.n) continue;
            float *out = a.out + (size_t)out_row(p, row) * a.out_stride;
#pragma unroll
            for (int n = 0; n < 4; n++) {
#pragma unroll
                for (int i = 0; i < 2; i++) {
                    const uint32_t col = at.n0 + (uint32_t)(at.nw + n * 8 + 2 * at.t + i);
                    if (col < a.n) out[col] = finished(a, p, row, col, total[m][n][2 * j + i]);
                }
            }
        }
    }
}

template <bool BY_ROW>
__global__ void __launch_bounds__(MANY_THREADS, 1)
    product_i8_many_kernel(const struct product_args a, const uint32_t k_part)
{
    SHARED_DYNAMIC(unsigned char, tiles);
    __shared__ int rows[BM];
    kernel_begin();
    const struct product_rows p = product_rows_of(a, (int)blockIdx.y, BM);
    if (p.n <= 0) return;
    for (int i = (int)threadIdx.x; i < BM; i += MANY_THREADS)
        rows[i] = in_row(a, p, i < p.n ? i : 0);
    __syncthreads();
    const int warp = (int)threadIdx.x / WARP, lane = (int)threadIdx.x % WARP;
    const struct many_place at = {warp / 2 * 32, warp % 2 * 32, lane / 4, lane % 4,
                                  blockIdx.x * BN};
    const uint32_t n_step = a.k / BK, base = smem_address(tiles);
    typename sum_of<BY_ROW>::type total[2][4][4] = {};
    float part[2][4][4] = {};
    for (uint32_t s = 0; s < STAGES - 1; s++) {
        if (s < n_step) load_stage(a, p, rows, base + s * STAGE_BYTES, at.n0, s);
        cp_async_commit();
    }
    for (uint32_t s = 0; s < n_step; s++) {
        cp_async_wait<STAGES - 2>();
        __syncthreads();
        const uint32_t next = s + STAGES - 1;
        if (next < n_step) load_stage(a, p, rows, base + next % STAGES * STAGE_BYTES, at.n0, next);
        cp_async_commit();
        const unsigned char *stage = tiles + s % STAGES * STAGE_BYTES;
        if constexpr (BY_ROW) {
            multiply_stage(total, stage, at.m0, at.nw);
        } else {
            int c[2][4][4] = {};
            multiply_stage(c, stage, at.m0, at.nw);
            add_scaled(part, c, a, p, rows, at, s);
            if ((s + 1) % k_part == 0) {
#pragma unroll
                for (int i = 0; i < 32; i++) {
                    float *to = &total[0][0][0] + i, *from = &part[0][0][0] + i;
                    *to += *from;
                    *from = 0.0f;
                }
            }
        }
    }
    store_tile<BY_ROW>(a, p, total, at);
}

static fathom_err launch_many(struct cuda_backend *c, const struct product_args &a, uint32_t n_tile,
                              const char *what)
{
    static_assert(STAGES * STAGE_BYTES + BM * sizeof(int) <= shared_limit(true),
                  "shared memory of a block");
    auto *kernel = a.row_scale ? product_i8_many_kernel<true> : product_i8_many_kernel<false>;
    CU_TRY(c, gpu_raise_shared(kernel, STAGES * STAGE_BYTES), what);
    return cuda_launch(c, what, kernel, dim3(ceil_div(a.n, BN), n_tile), MANY_THREADS,
                       STAGES * STAGE_BYTES, a, a.k / BK / part_count(a));
}

/* Needs k a multiple of 128, w row by row; tile 8, 16, 32 or PRODUCT_LARGE_TILE. */
fathom_err product_i8(struct cuda_backend *c, const struct product_args &a, uint32_t tile,
                      uint32_t n_tile, const char *what)
{
    ASSERT(a.k % K_LINE_BYTES == 0 && a.col0 == 0 && a.block_row > 0 && a.int8 && !a.tiled);
    ASSERT(a.q && a.q_scale && (a.row_scale || a.w_scale) && (!a.tasks || a.in_divisor > 0));
    ASSERT((uintptr_t)a.q % 16 == 0 && (uintptr_t)a.w % 16 == 0 && a.w_stride % 16 == 0);
    switch (tile) {
    case 8: return launch_k_parts<1>(c, a, n_tile, what);
    case 16: return launch_k_parts<2>(c, a, n_tile, what);
    case 32: return launch_k_parts<4>(c, a, n_tile, what);
    default: ASSERT(tile == BM); return launch_many(c, a, n_tile, what);
    }
}
