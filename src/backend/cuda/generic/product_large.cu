/* product_large.cu - FP8 matrix product for many rows
 *
 * Block: 128 tokens x 64 outputs x 128 of K, 8 warps of 32 x 32, four stages of cp.async into
 * swizzled shared memory. Each 128-wide step is summed in the tensor cores, multiplied by the
 * token's and the block's scale, and added to an f32 sum of the current part of K; parts are
 * added in ascending order. The parts, and the order of k inside a step, are those of
 * product_small.cu, so both files give the same bits. */
#include "backend/cuda/k_parts.h"
#include "backend/cuda/launch.cuh"
#include "backend/cuda/product.cuh"

enum {
    BM = PRODUCT_LARGE_TILE,
    BN = 64,
    BK = 128,
    STAGES = 4,
    THREADS = 256,
    STAGE_BYTES = (BM + BN) * BK,
};
static_assert((int)BK == (int)SCALE_BLOCK && (int)SCALE_BLOCK % BN == 0, "one weight scale a step");
static_assert(BM * BN == THREADS / WARP * 32 * 32, "a warp has 32 x 32 outputs");
static_assert((BM + BN) * 8 % THREADS == 0, "every thread copies equally much");
static_assert(STAGE_BYTES % 1024 == 0 && BM * BK % 1024 == 0, "tiles begin aligned");

/* Byte (row, 16-byte piece) of a tile with 128-byte rows: pieces permuted so that four
 * neighbouring pieces of two neighbouring rows lie in different banks. */
static __device__ __forceinline__ uint32_t swizzle(int row, int piece)
{
    DCHECK(piece >= 0 && piece < BK / 16);
    return (uint32_t)(row * BK + ((piece ^ (row & 1) << 2) << 4));
}

struct large_shared {
    int in[BM];
    int out[BM];
};

static __device__ __forceinline__ void load_stage(const struct product_args &a,
                                                  const struct product_rows &p,
                                                  const struct large_shared *rows, uint32_t base,
                                                  uint32_t n0, uint32_t block)
{
    for (int i = (int)threadIdx.x; i < (BM + BN) * 8; i += THREADS) {
        int row = i / 8, piece = i % 8;
        size_t at = (size_t)block * BK + (size_t)piece * 16;
        if (row < BM) {
            bool valid = row < p.n;
            const uint8_t *src = a.q + (size_t)rows->in[valid ? row : 0] * a.k + at;
            cp_async_16(base + swizzle(row, piece), src, valid);
        } else {
            uint32_t n = n0 + (uint32_t)(row - BM);
            bool valid = n < a.n;
            const char *src = p.w + (size_t)(valid ? n : 0) * a.k + at;
            cp_async_16(base + BM * BK + swizzle(row - BM, piece), src, valid);
        }
    }
    cp_async_commit();
}

/* A lane's part of a tile row: the 16 bytes at 16*t of both halves. Word j of each goes into the
 * j-th product: the order of k of product_small.cu. */
struct alignas(16) piece {
    uint32_t lo[4], hi[4];
};

static __device__ __forceinline__ void load_piece(struct piece &to, const unsigned char *tile,
                                                  int row)
{
    const int t = (int)threadIdx.x % 4;
    *(uint4 *)to.lo = *(const uint4 *)(tile + swizzle(row, t));
    *(uint4 *)to.hi = *(const uint4 *)(tile + swizzle(row, 4 + t));
}

/* c[m][n] = the tensor core's sum over one 128-wide step of a warp's 32 x 32 outputs */
static __device__ __forceinline__ void multiply_stage(float (&c)[2][4][4],
                                                      const unsigned char *stage, int m0, int n0)
{
    const int g = (int)threadIdx.x % WARP / 4;
    struct piece a[2][2], b[4];
#pragma unroll
    for (int m = 0; m < 2; m++) {
        load_piece(a[m][0], stage, m0 + m * 16 + g);
        load_piece(a[m][1], stage, m0 + m * 16 + 8 + g);
    }
#pragma unroll
    for (int n = 0; n < 4; n++) load_piece(b[n], stage + BM * BK, n0 + n * 8 + g);
#pragma unroll
    for (int j = 0; j < 4; j++) {
#pragma unroll
        for (int m = 0; m < 2; m++) {
#pragma unroll
            for (int n = 0; n < 4; n++) {
                mma_e4m3(c[m][n], a[m][0].lo[j], a[m][1].lo[j], a[m][0].hi[j], a[m][1].hi[j],
                         b[n].lo[j], b[n].hi[j]);
            }
        }
    }
}

__global__ void __launch_bounds__(THREADS, 1)
    product_fp8_large_kernel(const struct product_args a, const uint32_t k_part)
{
    SHARED_DYNAMIC(unsigned char, tiles);
    __shared__ struct large_shared rows;
    kernel_begin();
    struct product_rows p = product_rows_of(a, (int)blockIdx.y, BM);
    if (p.n <= 0) return;
    for (int i = (int)threadIdx.x; i < BM; i += THREADS) {
        rows.in[i] = i < p.n ? in_row(a, p, i) : 0;
        rows.out[i] = i < p.n ? out_row(p, i) : 0;
    }
    __syncthreads();
    const int warp = (int)threadIdx.x / WARP, lane = (int)threadIdx.x % WARP;
    const int g = lane / 4, t = lane % 4, m0 = warp / 2 * 32, nw = warp % 2 * 32;
    const uint32_t n0 = blockIdx.x * BN, n_step = a.k / BK, base = smem_address(tiles);
    const float *ws = p.w_scale + (size_t)(n0 / SCALE_BLOCK) * a.scale_stride;
    float total[2][4][4] = {}, part[2][4][4] = {};
    const float *xs[2][2];
#pragma unroll
    for (int m = 0; m < 2; m++) {
#pragma unroll
        for (int j = 0; j < 2; j++) {
            xs[m][j] = a.q_scale + (size_t)rows.in[m0 + m * 16 + j * 8 + g] * n_step;
        }
    }
    for (uint32_t s = 0; s < STAGES - 1; s++) {
        if (s < n_step) {
            load_stage(a, p, &rows, base + s * STAGE_BYTES, n0, s);
        } else {
            cp_async_commit();
        }
    }
    for (uint32_t s = 0; s < n_step; s++) {
        cp_async_wait<STAGES - 2>();
        __syncthreads();
        uint32_t next = s + STAGES - 1;
        if (next < n_step) {
            load_stage(a, p, &rows, base + next % STAGES * STAGE_BYTES, n0, next);
        } else {
            cp_async_commit();
        }
        float c[2][4][4] = {};
        multiply_stage(c, tiles + s % STAGES * STAGE_BYTES, m0, nw);
        float w_scale = ws[s];
#pragma unroll
        for (int m = 0; m < 2; m++) {
            float s0 = w_scale * xs[m][0][s], s1 = w_scale * xs[m][1][s];
#pragma unroll
            for (int n = 0; n < 4; n++) {
                part[m][n][0] = fmaf(c[m][n][0], s0, part[m][n][0]);
                part[m][n][1] = fmaf(c[m][n][1], s0, part[m][n][1]);
                part[m][n][2] = fmaf(c[m][n][2], s1, part[m][n][2]);
                part[m][n][3] = fmaf(c[m][n][3], s1, part[m][n][3]);
            }
        }
        if ((s + 1) % k_part == 0) {
#pragma unroll
            for (int i = 0; i < 32; i++) {
                float *to = &total[0][0][0] + i, *from = &part[0][0][0] + i;
                *to += *from;
                *from = 0.0f;
            }
        }
    }
#pragma unroll
    for (int m = 0; m < 2; m++) {
#pragma unroll
        for (int j = 0; j < 2; j++) {
            int row = m0 + m * 16 + j * 8 + g;
            if (row >= p.n) continue;
            float *out = a.out + (size_t)rows.out[row] * a.out_stride;
#pragma unroll
            for (int n = 0; n < 4; n++) {
                uint32_t col = n0 + (uint32_t)(nw + n * 8 + 2 * t);
                const float *v = &total[m][n][j * 2];
                if (col < a.n) out[col] = row_scaled(p, col, v[0]);
                if (col + 1 < a.n) out[col + 1] = row_scaled(p, col + 1, v[1]);
            }
        }
    }
}

/* Needs k a multiple of 128 and scale offsets 0. */
fathom_err product_fp8_large(struct cuda_backend *c, const struct product_args &a, uint32_t n_tile,
                             const char *what)
{
    static_assert(STAGES * STAGE_BYTES + sizeof(struct large_shared) <= shared_limit(true),
                  "shared memory of a block");
    ASSERT(a.k % BK == 0 && a.row0 == 0 && a.col0 == 0);
    ASSERT(a.q && a.q_scale && a.w_scale && (!a.tasks || a.in_divisor > 0));
    ASSERT((uintptr_t)a.q % 16 == 0 && (uintptr_t)a.w % 16 == 0 && a.w_stride % 16 == 0);
    uint32_t k_part = a.k / BK / k_part_count(a.k / BK);
    ASSERT(a.k / BK % k_part == 0);
    CU_TRY(c, gpu_raise_shared(product_fp8_large_kernel, STAGES * STAGE_BYTES), what);
    return cuda_launch(c, what, product_fp8_large_kernel, dim3(ceil_div(a.n, BN), n_tile), THREADS,
                       STAGES * STAGE_BYTES, a, k_part);
}
